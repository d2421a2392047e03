//! `file`: a medium on any file system. Writes are `pwrite`, durable by `fdatasync`.
//!
//! What must always hold: after a failed `fdatasync` the region stays failed, for all threads (`group_sync.rs`). The kernel has
//! marked the dirty pages clean, reports the error once and would call the next sync a success. A later process that reads such
//! pages and relies on them writes them again ([`Region::rewrite`]).

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::directory::{self, Directory};
use crate::error::in_range;
use crate::group_sync::GroupSync;
use crate::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Lock, Medium, PAGE, Region, Result};

/// A directory of files.
#[derive(Debug)]
pub struct FileMedium {
    directory: Directory,
    guarantee: Guarantee,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct FileRegion {
    file: Descriptor,
    location: String,
    len: u64,
    writable: bool,
    syncs: GroupSync,
    rewriting: Mutex<()>,
    counters: Arc<Counters>,
}

impl FileMedium {
    /// Opens the directory at `path`, making it first when `create` says so. `guarantee` is what an `fdatasync` there is worth;
    /// [`detect`](crate::detect) tells.
    pub fn open(path: &Path, create: bool, guarantee: Guarantee) -> Result<Arc<FileMedium>> {
        Ok(Arc::new(FileMedium { directory: Directory::open(path, create)?, guarantee, counters: Arc::default() }))
    }

    /// The directory that is open as `handle`, whatever the path leads to by which it was opened; `path` is that, for messages.
    pub fn of(handle: File, path: PathBuf, guarantee: Guarantee) -> Result<Arc<FileMedium>> {
        Ok(Arc::new(FileMedium { directory: Directory::of(path, handle)?, guarantee, counters: Arc::default() }))
    }

    fn region(&self, name: &str, file: File, len: u64, writable: bool) -> Result<Arc<dyn Region>> {
        let location = self.directory.location(name);
        let file = Descriptor::of(file).map_err(|e| Error::from_io(&location, "reading the status", 0, e))?;
        let (syncs, counters) = (GroupSync::default(), self.counters.clone());
        Ok(Arc::new(FileRegion { file, location, len, writable, syncs, rewriting: Mutex::default(), counters }))
    }
}

// SAFETY: files of the directory by their names, and its lock.
unsafe impl Medium for FileMedium {
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
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.descriptor()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        let file = self.directory.create(name, len, allocation)?;
        self.region(name, file, len, true)
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        let (file, len) = self.directory.open_file(name, access)?;
        self.region(name, file, len, access == Access::ReadWrite)
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
        &self.counters
    }
}

impl FileRegion {
    /// Has the kernel drop the pages of `off..off + len` that are clean; length 0 is up to the end.
    fn drop_clean_pages(&self, off: u64, len: u64) {
        // SAFETY: numbers only. It is advice: where it is not taken, nothing is lost that was there.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), off as i64, len as i64, libc::POSIX_FADV_DONTNEED) };
    }

    fn sync(&self) -> std::io::Result<()> {
        self.syncs.run(|| self.file.check().and_then(|()| self.file.sync_data()))
    }

    fn write(&self, off: u64, bytes: &[u8]) -> Result<()> {
        in_range(&self.location, off, bytes.len() as u64, self.len, self.writable)?;
        let written = self.file.check().and_then(|()| self.file.write_all_at(bytes, off));
        written.map_err(|e| Error::from_io(&self.location, "writing", bytes.len() as u64, e))
    }
}

// SAFETY: no bytes; the file has its length, and the lock keeps others away.
unsafe impl Region for FileRegion {
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
    /// Whole pages, each of which leaves the page cache first ([`evict`](Region::evict) says why).
    fn rewrite(&self, off: u64, bytes: &[u8]) -> Result<()> {
        // Two threads may rewrite parts of one page: between the eviction and the write it is as the device has it.
        let _one = self.rewriting.lock();
        let page = PAGE as u64;
        let (first, end) = (off / page * page, (off + bytes.len() as u64).next_multiple_of(page).min(self.len));
        let mut pages = vec![0; (end.saturating_sub(first)) as usize];
        self.read(first, &mut pages)?;
        pages[(off - first) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.drop_clean_pages(first, end - first);
        self.store(first, &pages)
    }
    /// A page that was written once more after its write-back had failed is dirty, and stays: so what is dirty is
    /// synced first. A failure shows at the next fence, as the region stays failed.
    fn evict(&self) {
        let _ = self.sync();
        self.drop_clean_pages(0, 0);
    }
    fn fence(&self) -> Result<()> {
        self.counters.fenced();
        self.sync().map_err(|e| Error::from_io(&self.location, "syncing", self.len, e))
    }
    fn reserve(&self, off: u64, len: u64) -> Result<()> {
        in_range(&self.location, off, len, self.len, self.writable)?;
        self.file.check().map_err(|e| Error::from_io(&self.location, "reserving space", len, e))?;
        directory::reserve(&self.file, &self.location, off, len)
    }
    fn is_provided(&self, len: u64) -> bool {
        self.file.check().is_err() || directory::is_provided(&self.file, len)
    }
    fn unshare(&self, off: u64, len: u64) -> Result<()> {
        in_range(&self.location, off, len, self.len, self.writable)?;
        directory::unshare(&self.file, &self.location, off, len)
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
