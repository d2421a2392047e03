//! `dax`: durable memory, mapped with `MAP_SYNC` from a file system on it (ext4 or XFS mounted with `-o dax`).
//!
//! What must always hold: a line is durable after write-back and fence, without a system call. The kernel's part of that is
//! `MAP_SYNC`: a page becomes writable only once the file system's metadata for it is on the medium. It says nothing about a
//! file's length, so a created file is synced once, before anybody relies on it.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::directory::Directory;
use crate::mapped::{MappedRegion, Shared};
use crate::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Lock, Medium, Region, Result, persist};

/// A directory on durable memory.
#[derive(Debug)]
pub struct DaxMedium {
    directory: Directory,
    shared: Arc<Shared>,
}

impl DaxMedium {
    /// Opens the directory at `path`, making it first when `create` says so. That `MAP_SYNC` works there is checked at each
    /// mapping; [`detect`](crate::detect) tells beforehand.
    pub fn open(path: &Path, create: bool) -> Result<Arc<DaxMedium>> {
        if persist::write_back_method() == "none" {
            return Err(Error::Unsupported {
                location: path.display().to_string(),
                what: "no instruction is known here that writes a cache line back; use the file medium".into(),
            });
        }
        Ok(Arc::new(DaxMedium { directory: Directory::open(path, create)?, shared: Arc::default() }))
    }
}

// SAFETY: files of the directory by their names, and its lock.
unsafe impl Medium for DaxMedium {
    fn kind(&self) -> Kind {
        Kind::Dax
    }
    fn durability(&self) -> Durability {
        Durability::Line
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerSafe
    }
    fn location(&self) -> String {
        self.directory.path().display().to_string()
    }
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.descriptor()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        let file = self.directory.create(name, len, allocation)?;
        let location = self.directory.location(name);
        let region = file
            .sync_all()
            .map_err(|e| Error::from_io(&location, "syncing the new file", len, e))
            .and_then(|()| MappedRegion::map(file, len, true, Access::ReadWrite, location, self.shared.clone()));
        if region.is_err() {
            let _ = self.directory.remove(name);
        }
        region
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        let (file, len) = self.directory.open_file(name, access)?;
        MappedRegion::map(file, len, true, access, self.directory.location(name), self.shared.clone())
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.directory.exists(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.directory.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.directory.rename(from, to)
    }
    fn sync_names(&self) -> Result<()> {
        self.directory.sync()
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        self.directory.lock()
    }
    fn lock_to_read(&self) -> Result<Box<dyn Lock>> {
        self.directory.lock_to_read()
    }
    fn lock_by(&self, name: &str, reads: bool, whose: &str) -> Result<Box<dyn Lock>> {
        self.directory.lock_by(name, reads, whose)
    }
    fn lock_file(&self, name: &str, patience: Duration, whose: &str) -> Result<Box<dyn Lock>> {
        self.directory.lock_file(name, patience, whose)
    }
    fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}
