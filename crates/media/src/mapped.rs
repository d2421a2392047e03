//! The regions of `dax` and `ram`: a file mapped shared, whose bytes the CPU reads and writes itself.
//!
//! What must always hold: the mapping is as long as the file was when it was opened, and nothing of ours ever shortens a file;
//! writes go through the verbs of [`Region`], so that they are counted, and delayed when an NVM model says so.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::descriptor::Descriptor;
use crate::error::{Error, in_range};
use crate::model::Device;
use crate::{Access, Counters, LINE, Mapping, PAGE, Region, Result, directory, persist};

/// From this length on the kernel copies: it does not take a page fault for every page read for the first time.
const READ_BY_CALL: usize = 64 << 10;

/// What the regions of one mapped medium share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub counters: Counters,
    pub device: Option<Device>,
}

/// A mapped file.
#[derive(Debug)]
pub(crate) struct MappedRegion {
    file: Descriptor,
    mapping: Mapping,
    location: String,
    writable: bool,
    shared: Arc<Shared>,
}

impl MappedRegion {
    /// Maps `len` bytes of `file`; with `sync`, so that write-back and fence alone make a line durable.
    pub fn map(file: File, len: u64, sync: bool, access: Access, location: String, shared: Arc<Shared>) -> Result<Arc<dyn Region>> {
        let writable = access == Access::ReadWrite;
        let mapping = Mapping::shared(&file, len as usize, sync, writable, &location)?;
        let file = Descriptor::of(file).map_err(|e| Error::from_io(&location, "reading the status", 0, e))?;
        Ok(Arc::new(MappedRegion { file, mapping, location, writable, shared }))
    }

    #[inline]
    fn at(&self, off: u64, len: usize, allowed: bool) -> Result<*mut u8> {
        let off = in_range(&self.location, off, len as u64, self.mapping.len() as u64, allowed)?;
        // SAFETY: `in_range` puts the offset inside the mapping or at its end.
        Ok(unsafe { self.mapping.as_ptr().add(off) })
    }
}

// SAFETY: a shared mapping of the whole file, which lives and keeps its length as long as the region does; the lock
// keeps others away.
unsafe impl Region for MappedRegion {
    fn len(&self) -> u64 {
        self.mapping.len() as u64
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        let from = self.at(off, into.len(), true)?;
        if into.len() >= READ_BY_CALL && self.file.check().is_ok() {
            let read = self.file.read_exact_at(into, off);
            read.map_err(|e| Error::from_io(self.location.clone(), "reading", 0, e))?;
        } else {
            // SAFETY: the range is inside the mapping; callers never write a range while another thread reads it.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        }
        if let Some(device) = &self.shared.device {
            device.read(into.len());
        }
        Ok(())
    }
    #[inline]
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        let to = self.at(off, bytes.len(), self.writable)?;
        // SAFETY: the range is inside the mapping, which is writable; callers never write one range from two threads.
        unsafe { persist::store(to, bytes) };
        self.shared.counters.stored(bytes.len());
        Ok(())
    }
    #[inline]
    fn write_back(&self, off: u64, len: u64) {
        let Ok(from) = self.at(off, len as usize, true) else {
            debug_assert!(false, "{}: write-back of {len} bytes at {off}, outside the region", self.location);
            return;
        };
        // SAFETY: the range is inside the mapping.
        let lines = unsafe { persist::write_back(from, len as usize) };
        self.shared.counters.wrote_back(lines);
        if let Some(device) = &self.shared.device {
            device.write_back(from.addr(), lines);
        }
    }
    #[inline]
    fn store_words(&self, off: u64, words: &[u64; LINE / 8], mask: u8) -> Result<()> {
        assert!(off.is_multiple_of(LINE as u64), "no line begins at {off}");
        let to = self.at(off, LINE, self.writable)?;
        // SAFETY: the line is inside the mapping, which is writable; callers never write one range from two threads.
        unsafe { persist::store_words(to.cast(), words, mask) };
        self.shared.counters.stored(mask.count_ones() as usize * 8);
        Ok(())
    }
    #[inline]
    fn store_line(&self, off: u64, words: &[u64; LINE / 8]) -> Result<()> {
        assert!(off.is_multiple_of(LINE as u64), "no line begins at {off}");
        let to = self.at(off, LINE, self.writable)?;
        // SAFETY: as for `store_words`.
        unsafe {
            persist::store_words(to.cast(), words, u8::MAX);
            persist::write_back(to, LINE);
        }
        self.shared.counters.stored_line();
        if let Some(device) = &self.shared.device {
            device.write_back(to.addr(), 1);
        }
        Ok(())
    }
    #[inline]
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        let to = self.at(off, bytes.len(), self.writable)?;
        // SAFETY: the range is inside the mapping, which is writable; callers never write one range from two threads.
        unsafe { persist::stream(to, bytes) };
        self.shared.counters.streamed(bytes.len());
        if let Some(device) = &self.shared.device {
            device.write(to.addr(), bytes.len());
        }
        Ok(())
    }
    #[inline]
    fn fence(&self) -> Result<()> {
        persist::fence();
        self.shared.counters.fenced();
        if let Some(device) = &self.shared.device {
            device.fence();
        }
        Ok(())
    }
    fn reserve(&self, off: u64, len: u64) -> Result<()> {
        in_range(&self.location, off, len, self.len(), self.writable)?;
        if self.file.check().is_err() {
            // What is mapped goes on without a descriptor.
            let first = off as usize / PAGE * PAGE;
            return self.mapping.provide(first, (off + len) as usize - first);
        }
        directory::reserve(&self.file, &self.location, off, len)
    }
    fn is_provided(&self, len: u64) -> bool {
        self.file.check().is_err() || directory::is_provided(&self.file, len)
    }
    fn release(&self, off: u64, len: u64) -> Result<()> {
        in_range(&self.location, off, len, self.len(), self.writable)?;
        if self.file.check().is_err() { Ok(()) } else { directory::release(&self.file, &self.location, off, len) }
    }
    fn unshare(&self, off: u64, len: u64) -> Result<()> {
        in_range(&self.location, off, len, self.len(), self.writable)?;
        if self.file.check().is_err() { Ok(()) } else { directory::unshare(&self.file, &self.location, off, len) }
    }
    fn bytes(&self) -> Option<NonNull<[u8]>> {
        let first = NonNull::new(self.mapping.as_ptr()).expect("a mapping is never at zero");
        Some(NonNull::slice_from_raw_parts(first, self.mapping.len()))
    }
    fn birth(&self) -> Option<u64> {
        directory::birth(&self.file)
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        directory::borrow(&self.file)
    }
}
