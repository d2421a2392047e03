//! Owned memory mappings: working copies (anonymous, or private over a region's file) and the shared mappings of regions.
//!
//! What must always hold: a mapping never replaces one that was there (`MAP_FIXED_NOREPLACE`), is unmapped exactly once, on
//! drop, and does not cross `fork` (`MADV_DONTFORK`: a child that wrote into a pool would tear it).
//!
//! A private mapping shows a page of the file until the page is first written; from then on it is the program's own. `MADV_DONTNEED`
//! ([`release`](Mapping::release)) is for pages whose content is of no use: written ones fall back to what the file holds now.
//! [`replace_with_anonymous`](Mapping::replace_with_anonymous) turns a range of it into ordinary memory with huge pages, while
//! others read it:
//!
//! ```text
//!   working copy  [ file ][ file ][ file ]        buffer [ filled by the caller ]
//!                            ▲                                │
//!                            └──────── mremap, one step ──────┘
//!   working copy  [ file ][ anon ][ file ]
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};

use crate::error::in_range;
use crate::{Error, PAGE, Region, Result, fork, sanitizer};

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// An owned range of address space.
#[derive(Debug)]
pub struct Mapping {
    first: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory that belongs to no thread; this type gives out a raw pointer and never dereferences it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory, provided as touched. `at` asks for that address and no other; `huge` for huge pages where possible.
    pub fn anonymous(at: Option<usize>, len: usize, huge: bool) -> Result<Mapping> {
        let mapping = match at {
            None if huge && len >= HUGE_PAGE => congruent(0, len)?,
            _ => Self::map(at, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, WRITABLE, -1, "memory")?,
        };
        if huge {
            mapping.advise(0, len, libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    /// A working copy of the first `len` bytes of `region`: pages come in as touched, and writes stay in this mapping. A region
    /// without a file (`sim`) is copied.
    ///
    /// A page that was not written here yet shows what is written into the region later.
    pub fn private(region: &dyn Region, at: Option<usize>, len: usize) -> Result<Mapping> {
        in_range("private mapping of a region", 0, len as u64, region.len(), true)?;
        let Some(file) = region.file() else {
            return Self::copy_of(region, at, len);
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        Self::map(at, len, flags, WRITABLE, file.as_raw_fd(), "region for the working copy")
    }

    /// The first `len` bytes of `region` themselves, at that address: what is stored there is in the region. Only where a store needs no
    /// more than that to be kept, on `ram`. It is writable once no child of a fork can have it.
    pub fn shared_at(region: &dyn Region, at: usize, len: usize) -> Result<Mapping> {
        in_range("shared mapping of a region", 0, len as u64, region.len(), true)?;
        // Those that only look have a file, and no memory of its own.
        let (Some(file), Some(_)) = (region.file(), region.bytes()) else {
            return Err(Error::Unsupported {
                location: describe(at, len),
                what: "is to be mapped of a region that has no memory of its own".into(),
            });
        };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let mapping = Self::map(Some(at), len, flags, libc::PROT_NONE, file.as_raw_fd(), "region in place")?;
        let kept_from_children = || {
            // SAFETY: the range is this mapping; neither call changes what it holds.
            unsafe {
                libc::madvise(mapping.first.cast(), len, libc::MADV_DONTFORK) == 0
                    && libc::mprotect(mapping.first.cast(), len, WRITABLE) == 0
            }
        };
        if len > 0 && !kept_from_children() {
            let doing = "keeping a pool's memory from children of this process";
            return Err(Error::Io { location: describe(at, len), doing, source: io::Error::last_os_error() });
        }
        mapping.advise(0, len, libc::MADV_HUGEPAGE);
        Ok(mapping)
    }

    /// The first `len` bytes of `file`, shared with every process that maps them. They must be there for as long as this is mapped.
    pub fn of_file(file: &File, len: usize) -> Result<Mapping> {
        Self::shared(file, len, false, true, "shared memory")
    }

    /// The bytes of `file` themselves; with `sync` under `MAP_SYNC`.
    pub(crate) fn shared(file: &File, len: usize, sync: bool, writable: bool, location: &str) -> Result<Mapping> {
        let flags = if sync { libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC } else { libc::MAP_SHARED };
        let protection = if writable { WRITABLE } else { libc::PROT_READ };
        Self::map(None, len, flags, protection, file.as_raw_fd(), location).map_err(|e| match e {
            Error::Io { location, source, .. } if sync && source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                let what = "cannot be mapped with MAP_SYNC, so this is no DAX file system; use the file medium";
                Error::Unsupported { location, what: what.into() }
            }
            other => other,
        })
    }

    /// First byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.first
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts anonymous memory, with huge pages where possible, in place of `off..off + len`, in one step for whoever reads the
    /// range meanwhile. `fill` gets the new memory, zeroed, and must copy into it what the range holds. The new memory is not
    /// merged with its neighbours, so each call costs one of the process' mappings (65,530 by default): replace megabytes.
    ///
    /// On an error the range is as it was.
    ///
    /// # Safety
    /// From this call to its return nobody may write the range: the write would be lost. References into it stay valid.
    pub unsafe fn replace_with_anonymous(&self, off: usize, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        in_range("anonymous memory for a working copy", off as u64, len as u64, self.len as u64, true)?;
        if !off.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(Error::Unsupported {
                location: describe(self.first.addr() + off, len),
                what: "is not whole pages; replace whole pages".into(),
            });
        }
        if len == 0 {
            return Ok(());
        }
        let target = self.first.wrapping_add(off);
        let buffer = congruent(target.addr() % HUGE_PAGE, len)?;
        buffer.advise(0, len, libc::MADV_HUGEPAGE);
        // SAFETY: the buffer is mapped, zeroed, and known to us alone.
        fill(unsafe { std::slice::from_raw_parts_mut(buffer.first, len) });
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the source is our whole buffer, which is not used afterwards; the target lies in this mapping, and the caller
        // promises that nobody writes it. The kernel moves the pages under the lock that page faults take, so readers see the
        // old bytes or the new, never a hole.
        let moved = unsafe { libc::mremap(buffer.first.cast(), len, len, flags, target.cast::<libc::c_void>()) };
        if moved == libc::MAP_FAILED {
            let source = io::Error::last_os_error();
            return Err(Error::from_io(describe(target.addr(), len), "moving memory into place", len as u64, source));
        }
        std::mem::forget(buffer);
        Ok(())
    }

    fn map(
        at: Option<usize>,
        len: usize,
        flags: libc::c_int,
        protection: libc::c_int,
        fd: RawFd,
        location: &str,
    ) -> Result<Mapping> {
        if len == 0 {
            return Ok(Mapping { first: ptr::without_provenance_mut(at.unwrap_or(PAGE)), len: 0 });
        }
        if let (Some(at), Some(end)) = (at, sanitizer::fixed_end())
            && at.saturating_add(len) > end
        {
            return Err(Error::Unsupported { location: describe(at, len), what: sanitizer::refused() });
        }
        let fixed = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
        let hint = ptr::without_provenance_mut(at.unwrap_or(0));
        // SAFETY: without MAP_FIXED the kernel picks free address space, and MAP_FIXED_NOREPLACE refuses what is taken.
        let first = unsafe { libc::mmap(hint, len, protection, flags | fixed, fd, 0) };
        if first == libc::MAP_FAILED {
            let source = io::Error::last_os_error();
            return Err(match (at, source.raw_os_error()) {
                (Some(at), Some(libc::EEXIST)) => taken(at, len),
                (Some(at), Some(libc::EINVAL | libc::EPERM | libc::ENOMEM)) => refused(at, len, &source),
                _ => Error::from_io(location, "mapping", len as u64, source),
            });
        }
        let mapping = Mapping { first: first.cast(), len };
        if at.is_some_and(|at| at != mapping.first.addr()) {
            // A kernel older than MAP_FIXED_NOREPLACE takes the address for a hint.
            return Err(taken(at.unwrap_or(0), len));
        }
        fork::watch();
        mapping.advise(0, len, libc::MADV_DONTFORK);
        Ok(mapping)
    }

    /// For regions that only their methods can read.
    fn copy_of(region: &dyn Region, at: Option<usize>, len: usize) -> Result<Mapping> {
        let mapping = Self::anonymous(at, len, false)?;
        let mut page = vec![0; PAGE];
        for off in (0..len).step_by(PAGE) {
            let page = &mut page[..PAGE.min(len - off)];
            region.read(off as u64, page)?;
            // Pages of zeroes stay untouched, so that a sparse region costs no memory.
            if page.iter().any(|b| *b != 0) {
                // SAFETY: the page lies in the new mapping, which nobody else knows.
                unsafe { ptr::copy_nonoverlapping(page.as_ptr(), mapping.first.add(off), page.len()) };
            }
        }
        Ok(mapping)
    }

    /// Provides the memory of `off..off + len` now, whole pages, instead of each when it is first stored to; the kernel zeroes it meanwhile.
    pub fn provide(&self, off: usize, len: usize) -> Result<()> {
        in_range("memory to be provided", off as u64, len as u64, self.len as u64, true)?;
        let first = self.first.wrapping_add(off);
        let doing = "taking all of this memory at once (a smaller heap, or one without prefault, takes less)";
        populate(first, len).map_err(|source| Error::Io { location: describe(first.addr(), len), doing, source })
    }

    /// Wishes for no huge pages from here on. Those that are there stay.
    pub fn avoid_huge_pages(&self) {
        self.advise(0, self.len, libc::MADV_NOHUGEPAGE);
    }

    /// Gives the memory of the whole pages in `off..off + len` back. Then they read as zeros, or as the file behind a private mapping.
    ///
    /// # Safety
    /// Nothing refers to these bytes, and no code relies on what they hold.
    pub unsafe fn release(&self, off: usize, len: usize) -> Result<()> {
        in_range("memory to give back", off as u64, len as u64, self.len as u64, true)?;
        let (from, to) = (off.next_multiple_of(PAGE), (off + len) / PAGE * PAGE);
        if from < to {
            self.advise(from, to - from, libc::MADV_DONTNEED);
        }
        Ok(())
    }

    /// Advice is a wish: a kernel built without the feature refuses, and all stays correct.
    fn advise(&self, off: usize, len: usize, advice: libc::c_int) {
        // SAFETY: the range lies in this mapping. Only the advice of `release` changes what it holds, as its caller wants.
        unsafe { libc::madvise(self.first.wrapping_add(off).cast(), len, advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the range is ours; whoever used its bytes borrowed this mapping or promised to be gone.
            unsafe { libc::munmap(self.first.cast(), self.len) };
        }
    }
}

/// Wishes for huge pages under `bytes`, which spares misses of the TLB. Where the kernel gives none to such memory (tmpfs without
/// `huge=advise`) nothing happens.
pub fn advise_huge(bytes: NonNull<[u8]>) {
    // SAFETY: advice changes nothing that a program can see, whatever the range: a range that is not mapped is an error.
    unsafe { libc::madvise(bytes.as_ptr().cast(), bytes.len(), libc::MADV_HUGEPAGE) };
}

/// Has the pages of `bytes` mapped to be written all at once, instead of each by a fault when it is first stored to. A wish, as above; for
/// what was [reserved](crate::Region::reserve).
pub fn map_ahead(bytes: NonNull<[u8]>) {
    let _ = populate(bytes.as_ptr().cast(), bytes.len());
}

fn populate(first: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: as if each page was stored to and held what it holds; a range that is not mapped is an error.
    match unsafe { libc::madvise(first.cast(), len, libc::MADV_POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Anonymous memory whose address is `remainder` modulo a huge page, so that the kernel can use and move whole huge pages.
fn congruent(remainder: usize, len: usize) -> Result<Mapping> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let len = len.next_multiple_of(PAGE);
    let mut wide = Mapping::map(None, len + HUGE_PAGE, flags, WRITABLE, -1, "memory")?;
    let skip = (remainder + HUGE_PAGE - wide.first.addr() % HUGE_PAGE) % HUGE_PAGE;
    let first = wide.first.wrapping_add(skip);
    // Each piece is a mapping of its own now: the two ends are unmapped as they go out of scope.
    let _before = Mapping { first: wide.first, len: skip };
    let _after = Mapping { first: first.wrapping_add(len), len: HUGE_PAGE - skip };
    wide.first = first;
    wide.len = len;
    Ok(wide)
}

fn describe(at: usize, len: usize) -> String {
    format!("addresses {at:#x}..{:#x}", at.saturating_add(len))
}

fn taken(at: usize, len: usize) -> Error {
    let what = "are taken by something else in this process; a new pool can be put elsewhere with --base at its creation";
    Error::Unsupported { location: describe(at, len), what: what.into() }
}

fn refused(at: usize, len: usize, source: &io::Error) -> Error {
    let what = format!("cannot be mapped ({source}); choose a page-aligned --base below 0x7000_0000_0000 at creation, or less");
    Error::Unsupported { location: describe(at, len), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Allocation, Medium, RamMedium};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    fn bytes(mapping: &Mapping) -> &[u8] {
        // SAFETY: tests do not write while they hold this.
        unsafe { std::slice::from_raw_parts(mapping.as_ptr(), mapping.len()) }
    }

    #[test]
    fn anonymous_is_zeroed_and_huge_aligned() {
        let mapping = Mapping::anonymous(None, 3 * HUGE_PAGE, true).unwrap();
        assert_eq!(mapping.as_ptr().addr() % HUGE_PAGE, 0);
        assert!(bytes(&mapping).iter().all(|b| *b == 0));
        assert!(Mapping::anonymous(None, 0, true).unwrap().is_empty());
    }

    #[test]
    fn provided_memory_is_there() {
        let (len, resident) = (4 * HUGE_PAGE + PAGE, |mapping: &Mapping| {
            let mut pages = vec![0u8; mapping.len() / PAGE];
            // SAFETY: the kernel fills in a byte for each page of the mapping.
            assert_eq!(unsafe { libc::mincore(mapping.as_ptr().cast(), mapping.len(), pages.as_mut_ptr()) }, 0);
            pages.iter().filter(|page| **page & 1 == 1).count()
        });
        let mapping = Mapping::anonymous(None, len, true).unwrap();
        assert_eq!(resident(&mapping), 0);
        mapping.provide(0, len).unwrap();
        assert_eq!(resident(&mapping), len / PAGE);
        assert!(bytes(&mapping).iter().all(|b| *b == 0));
        Mapping::anonymous(None, 0, true).unwrap().provide(0, 0).unwrap();
        assert!(mapping.provide(PAGE, len).is_err());
    }

    #[test]
    fn memory_that_cannot_be_provided_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let medium = RamMedium::open(dir.path(), true, None).unwrap();
        let region = medium.create("image", 4 * HUGE_PAGE as u64, Allocation::Full).unwrap();
        let copy = Mapping::private(&*region, None, 4 * HUGE_PAGE).unwrap();
        // Behind the end of a file there is nothing to copy.
        std::fs::File::options().write(true).open(dir.path().join("image")).unwrap().set_len(PAGE as u64).unwrap();
        let error = copy.provide(0, 4 * HUGE_PAGE).unwrap_err().to_string();
        assert!(error.contains("prefault"), "{error}");
    }

    #[test]
    fn a_taken_address_is_refused_and_a_free_one_used() {
        let first = Mapping::anonymous(None, 16 * PAGE, false).unwrap();
        let at = first.as_ptr().addr();
        // SAFETY: the first page is ours.
        unsafe { *first.as_ptr() = 42 };
        let error = Mapping::anonymous(Some(at), 4 * PAGE, false).unwrap_err().to_string();
        assert!(error.contains(&format!("{at:#x}")) && error.contains("--base"), "{error}");
        assert_eq!(bytes(&first)[0], 42);
        let error = Mapping::anonymous(Some(at + 1), PAGE, false).unwrap_err().to_string();
        assert!(error.contains("page-aligned"), "{error}");
        // A range nobody else maps meanwhile: inside a reservation that is given up.
        let wide = Mapping::anonymous(None, 64 << 20, false).unwrap();
        let at = wide.as_ptr().addr() + (32 << 20);
        drop(wide);
        assert_eq!(Mapping::anonymous(Some(at), PAGE, false).unwrap().as_ptr().addr(), at);
    }

    #[test]
    fn a_private_mapping_keeps_its_writes_to_itself() {
        let medium = RamMedium::anonymous();
        let region = medium.create("image", 4 * PAGE as u64, Allocation::Full).unwrap();
        region.store(0, b"old").unwrap();
        let copy = Mapping::private(&*region, None, 4 * PAGE).unwrap();
        assert_eq!(&bytes(&copy)[..3], b"old");
        // SAFETY: nobody else uses the mapping.
        unsafe { copy.as_ptr().copy_from_nonoverlapping(b"new".as_ptr(), 3) };
        let mut read = [0; 3];
        region.read(0, &mut read).unwrap();
        assert_eq!(&read, b"old");
        assert!(Mapping::private(&*region, None, 5 * PAGE).is_err());
    }

    #[test]
    fn readers_never_see_a_hole_while_pages_are_replaced() {
        let len = 4 * HUGE_PAGE;
        let medium = RamMedium::anonymous();
        let region = medium.create("image", len as u64, Allocation::Sparse).unwrap();
        for off in (0..len).step_by(PAGE) {
            region.store(off as u64, &(off as u64 + 1).to_le_bytes()).unwrap();
        }
        let copy = Mapping::private(&*region, None, len).unwrap();
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = 0usize;
                while !stop.load(Relaxed) {
                    at = (at + 37 * PAGE) % len;
                    // SAFETY: the word is inside the mapping; volatile, because the page changes under us.
                    let word = unsafe { copy.as_ptr().add(at).cast::<u64>().read_volatile() };
                    assert_eq!(word, at as u64 + 1);
                    reads.fetch_add(1, Relaxed);
                }
            });
            while reads.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            for _ in 0..20 {
                for (off, len) in [(0, HUGE_PAGE), (HUGE_PAGE, 3 * PAGE), (2 * HUGE_PAGE - PAGE, HUGE_PAGE + PAGE)] {
                    // SAFETY: nobody writes the mapping.
                    unsafe {
                        let old = std::slice::from_raw_parts(copy.as_ptr().add(off), len);
                        copy.replace_with_anonymous(off, len, |new| new.copy_from_slice(old)).unwrap();
                    }
                }
            }
            stop.store(true, Relaxed);
        });
        // What was replaced is no longer the region's; the rest still is.
        region.store(0, &7u64.to_le_bytes()).unwrap();
        region.store(3 * HUGE_PAGE as u64 + 8, &7u64.to_le_bytes()).unwrap();
        assert_eq!(bytes(&copy)[0], 1);
        assert_eq!(bytes(&copy)[3 * HUGE_PAGE + 8], 7);
        // SAFETY: refused before anything happens.
        assert!(unsafe { copy.replace_with_anonymous(1, PAGE, |_| ()) }.is_err());
    }

    #[test]
    fn dropping_unmaps() {
        let is_unmapped = || {
            let mapping = Mapping::anonymous(None, 1 << 20, false).unwrap();
            let at = mapping.as_ptr();
            drop(mapping);
            // SAFETY: MADV_NORMAL changes nothing, whatever is mapped there by now; on unmapped memory it only fails.
            unsafe { libc::madvise(at.cast(), 1 << 20, libc::MADV_NORMAL) == -1 }
        };
        // Another test's thread may have been given the place at once.
        assert!((0..100).any(|_| is_unmapped()));
    }
}
