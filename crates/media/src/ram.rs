//! `ram`: memory that survives the process, not the machine. A tmpfs directory, or memfds without any path.
//!
//! It stands in for durable memory: the same instructions run as on `dax`, so their cost is in every figure, and an
//! [`NvmModel`] adds what real modules take longer. What must always hold: what was stored survives SIGKILL at once (it is the
//! kernel's page), whatever was written back or fenced; nothing survives a reboot.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{BorrowedFd, FromRawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::directory::{self, Directory};
use crate::mapped::{MappedRegion, Shared};
use crate::model::Device;
use crate::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Lock, Medium, NvmModel, Region, Result};

/// A directory of mapped files in memory.
#[derive(Debug)]
pub struct RamMedium {
    names: Names,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Names {
    /// A directory, on tmpfs as a rule. On a disk's file system the page cache plays the memory: process-safe all the same.
    Directory(Directory),
    /// Memfds, gone with the medium and its regions.
    Anonymous { files: Mutex<BTreeMap<String, File>>, locked: Arc<AtomicBool> },
}

impl RamMedium {
    /// Opens the directory at `path`, making it first when `create` says so. `model` adds the delays of real NVM.
    pub fn open(path: &Path, create: bool, model: Option<NvmModel>) -> Result<Arc<RamMedium>> {
        Ok(Self::with(Names::Directory(Directory::open(path, create)?), model))
    }

    /// A medium without a path, for tests and benchmarks: gone when it and its regions are dropped.
    pub fn anonymous() -> Arc<RamMedium> {
        Self::anonymous_with(None)
    }

    /// [`anonymous`](Self::anonymous) with the delays of `model`.
    pub fn anonymous_with(model: Option<NvmModel>) -> Arc<RamMedium> {
        Self::with(Names::Anonymous { files: Mutex::default(), locked: Arc::default() }, model)
    }

    fn with(names: Names, model: Option<NvmModel>) -> Arc<RamMedium> {
        let shared = Shared { counters: Counters::default(), device: model.map(Device::new) };
        Arc::new(RamMedium { names, shared: Arc::new(shared) })
    }

    fn place(&self, name: &str) -> String {
        match &self.names {
            Names::Directory(directory) => directory.location(name),
            Names::Anonymous { .. } => format!("anonymous ram, region {name}"),
        }
    }

    fn check(&self, name: &str) -> Result<()> {
        directory::check_name(name).map_err(|what| Error::Unsupported { location: self.place(name), what: what.into() })
    }

    fn create_file(&self, name: &str, len: u64, allocation: Allocation) -> Result<File> {
        let files = match &self.names {
            Names::Directory(directory) => return directory.create(name, len, allocation),
            Names::Anonymous { files, .. } => files,
        };
        self.check(name)?;
        let location = self.place(name);
        let mut files = files.lock();
        if files.contains_key(name) {
            return Err(Error::Exists { location });
        }
        let file = memfd(&location)?;
        file.set_len(len).map_err(|e| Error::from_io(&location, "setting the length", len, e))?;
        if allocation == Allocation::Full {
            directory::reserve(&file, &location, 0, len)?;
        }
        let mine = duplicate(&file, &location)?;
        files.insert(name.to_owned(), file);
        Ok(mine)
    }

    fn open_file(&self, name: &str, access: Access) -> Result<(File, u64)> {
        let files = match &self.names {
            Names::Directory(directory) => return directory.open_file(name, access),
            Names::Anonymous { files, .. } => files,
        };
        let location = self.place(name);
        let files = files.lock();
        let file = files.get(name).ok_or_else(|| Error::NotFound { location: location.clone() })?;
        let len = file.metadata().map_err(|e| Error::from_io(&location, "reading the status", 0, e))?.len();
        Ok((duplicate(file, &location)?, len))
    }
}

// SAFETY: files of the directory, or of this medium alone, by their names; locked by the directory, or by a flag.
unsafe impl Medium for RamMedium {
    fn kind(&self) -> Kind {
        Kind::Ram
    }
    fn durability(&self) -> Durability {
        Durability::Line
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::ProcessSafe
    }
    fn location(&self) -> String {
        match &self.names {
            Names::Directory(directory) => directory.path().display().to_string(),
            Names::Anonymous { .. } => "anonymous ram".into(),
        }
    }
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        match &self.names {
            Names::Directory(directory) => directory.descriptor(),
            Names::Anonymous { .. } => None,
        }
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        let file = self.create_file(name, len, allocation)?;
        let region = MappedRegion::map(file, len, false, Access::ReadWrite, self.place(name), self.shared.clone());
        if region.is_err() {
            let _ = self.remove(name);
        }
        region
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        let (file, len) = self.open_file(name, access)?;
        MappedRegion::map(file, len, false, access, self.place(name), self.shared.clone())
    }
    fn exists(&self, name: &str) -> Result<bool> {
        match &self.names {
            Names::Directory(directory) => directory.exists(name),
            Names::Anonymous { files, .. } => Ok(files.lock().contains_key(name)),
        }
    }
    fn remove(&self, name: &str) -> Result<()> {
        match &self.names {
            Names::Directory(directory) => directory.remove(name),
            Names::Anonymous { files, .. } => match files.lock().remove(name) {
                Some(_) => Ok(()),
                None => Err(Error::NotFound { location: self.place(name) }),
            },
        }
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        match &self.names {
            Names::Directory(directory) => directory.rename(from, to),
            Names::Anonymous { files, .. } => {
                self.check(to)?;
                let mut files = files.lock();
                let file = files.remove(from).ok_or_else(|| Error::NotFound { location: self.place(from) })?;
                files.insert(to.to_owned(), file);
                Ok(())
            }
        }
    }
    fn sync_names(&self) -> Result<()> {
        match &self.names {
            Names::Directory(directory) => directory.sync(),
            Names::Anonymous { .. } => Ok(()),
        }
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        match &self.names {
            Names::Directory(directory) => directory.lock(),
            Names::Anonymous { locked, .. } => Taken::take(locked, "anonymous ram"),
        }
    }
    fn lock_to_read(&self) -> Result<Box<dyn Lock>> {
        match &self.names {
            Names::Directory(directory) => directory.lock_to_read(),
            Names::Anonymous { .. } => self.lock(),
        }
    }
    fn lock_by(&self, name: &str, reads: bool, whose: &str) -> Result<Box<dyn Lock>> {
        match &self.names {
            Names::Directory(directory) => directory.lock_by(name, reads, whose),
            Names::Anonymous { .. } => self.lock(),
        }
    }
    fn lock_file(&self, name: &str, patience: Duration, whose: &str) -> Result<Box<dyn Lock>> {
        match &self.names {
            Names::Directory(directory) => directory.lock_file(name, patience, whose),
            Names::Anonymous { .. } => Ok(Box::new(())),
        }
    }
    fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

/// The lock of a medium that only this process can see.
pub(crate) struct Taken(Arc<AtomicBool>);

impl Taken {
    pub fn take(locked: &Arc<AtomicBool>, location: &str) -> Result<Box<dyn Lock>> {
        if locked.swap(true, Ordering::Acquire) {
            let holder = format!("this process ({})", std::process::id());
            return Err(Error::Busy { location: location.into(), holder });
        }
        Ok(Box::new(Taken(locked.clone())))
    }
}

impl Lock for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn memfd(location: &str) -> Result<File> {
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { libc::memfd_create(c"towa".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::from_io(location, "creating a memfd", 0, std::io::Error::last_os_error()));
    }
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn duplicate(file: &File, location: &str) -> Result<File> {
    file.try_clone().map_err(|e| Error::from_io(location, "duplicating the descriptor", 0, e))
}
