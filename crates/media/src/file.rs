//! `file`: a medium on any file system. Writes are `pwrite`, durable by `fdatasync`.
//!
//! What must always hold: after a failed `fdatasync` the region stays failed. The kernel has dropped the dirty pages, reports
//! the error once and would call the next sync a success, so a retry would lie.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::directory::{self, Directory};
use crate::error::in_range;
use crate::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Medium, Region, Result};

/// A directory of files.
#[derive(Debug)]
pub struct FileMedium {
    directory: Directory,
    guarantee: Guarantee,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct FileRegion {
    file: File,
    location: String,
    len: u64,
    writable: bool,
    failed: AtomicBool,
    counters: Arc<Counters>,
}

impl FileMedium {
    /// Opens the directory at `path`, making it first when `create` says so. `guarantee` is what an `fdatasync` there is worth;
    /// [`detect`](crate::detect) tells.
    pub fn open(path: &Path, create: bool, guarantee: Guarantee) -> Result<Arc<FileMedium>> {
        Ok(Arc::new(FileMedium { directory: Directory::open(path, create)?, guarantee, counters: Arc::default() }))
    }

    fn region(&self, name: &str, file: File, len: u64, writable: bool) -> Arc<dyn Region> {
        Arc::new(FileRegion {
            file,
            location: self.directory.location(name),
            len,
            writable,
            failed: AtomicBool::new(false),
            counters: self.counters.clone(),
        })
    }
}

impl Medium for FileMedium {
    fn kind(&self) -> Kind {
        Kind::File
    }
    fn durability(&self) -> Durability {
        Durability::Sync
    }
    fn guarantee(&self) -> Guarantee {
        self.guarantee
    }
    fn location(&self) -> String {
        self.directory.path().display().to_string()
    }
    fn identity(&self) -> Option<(u64, u64)> {
        self.directory.identity()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        let file = self.directory.create(name, len, allocation)?;
        Ok(self.region(name, file, len, true))
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        let (file, len) = self.directory.open_file(name, access)?;
        Ok(self.region(name, file, len, access == Access::ReadWrite))
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
    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.directory.lock()
    }
    fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        self.directory.lock_to_read()
    }
    fn sign(&self) -> Box<dyn Send + Sync> {
        self.directory.sign()
    }
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl FileRegion {
    fn write(&self, off: u64, bytes: &[u8]) -> Result<()> {
        in_range(&self.location, off, bytes.len() as u64, self.len, self.writable)?;
        self.file.write_all_at(bytes, off).map_err(|e| Error::from_io(&self.location, "writing", bytes.len() as u64, e))
    }
}

impl Region for FileRegion {
    fn len(&self) -> u64 {
        self.len
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        in_range(&self.location, off, into.len() as u64, self.len, true)?;
        self.file.read_exact_at(into, off).map_err(|e| Error::from_io(&self.location, "reading", 0, e))
    }
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.write(off, bytes)?;
        self.counters.stored(bytes.len());
        Ok(())
    }
    fn write_back(&self, _off: u64, _len: u64) {}
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.write(off, bytes)?;
        self.counters.streamed(bytes.len());
        Ok(())
    }
    fn fence(&self) -> Result<()> {
        let sync = || {
            if self.failed.load(Relaxed) {
                return Err(io::Error::other("an earlier sync failed, what is durable is unknown; reopen to recover"));
            }
            self.file.sync_data()
        };
        self.counters.fenced();
        sync().map_err(|e| {
            self.failed.store(true, Relaxed);
            Error::from_io(&self.location, "syncing", self.len, e)
        })
    }
    fn reserve(&self, off: u64, len: u64) -> Result<()> {
        in_range(&self.location, off, len, self.len, self.writable)?;
        directory::reserve(&self.file, &self.location, off, len)
    }
    fn bytes(&self) -> Option<NonNull<[u8]>> {
        None
    }
    fn birth(&self) -> Option<u64> {
        directory::birth(&self.file)
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        directory::borrow(&self.file)
    }
}
