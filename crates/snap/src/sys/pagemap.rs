//! `/proc/PID/pagemap` and its ioctl PAGEMAP_SCAN (Linux 6.7): which pages of a process are there, and which were written.
//!
//! The file belongs to the memory that the process had when it was opened: after an exec it is seen to be empty ([`Pagemap::ended`]),
//! it never shows the new program.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use crate::pages::{PAGE, Pages};

/// Written since it was armed, or never armed.
pub(crate) const WRITTEN: u64 = 1 << 1;
/// A page of a file (or of shared memory), not an anonymous one.
pub(crate) const FILE: u64 = 1 << 2;
/// In memory.
pub(crate) const PRESENT: u64 = 1 << 3;
/// Swapped out; or a marker of the kernel in the page's place (write-protected before it had content, guard, poison).
pub(crate) const SWAPPED: u64 = 1 << 4;
/// The page of zeros.
pub(crate) const ZERO: u64 = 1 << 5;
/// A guard (MADV_GUARD_INSTALL); the kernel tells since 6.15.
pub(crate) const GUARD: u64 = 1 << 8;

const WP_MATCHING: u64 = 1 << 0;
const CHECK_WPASYNC: u64 = 1 << 1;

/// A run of pages of the same categories, as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Region {
    start: u64,
    end: u64,
    /// Which of the categories of [`Query::tell`] its pages are in.
    pub categories: u64,
}

impl Region {
    pub fn pages(&self) -> Pages {
        self.start / PAGE..self.end / PAGE
    }
}

/// What is looked for: pages that, once the categories in `inverted` are flipped, are in all of `all` and in one of `any`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Query {
    pub inverted: u64,
    pub all: u64,
    pub any: u64,
    /// Categories that are told of each page found (not flipped).
    pub tell: u64,
    /// Write-protects what it finds, so that a later write shows.
    pub arm: bool,
    /// Fails with EPERM where a mapping is not registered for that.
    pub registered_only: bool,
}

#[repr(C)]
#[derive(Default)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: libc::Ioctl = super::read_write::<ScanArgument>(b'f', 16);

/// The pagemap of one memory.
pub(crate) struct Pagemap(File);

impl Pagemap {
    pub fn open(pid: i32) -> io::Result<Pagemap> {
        File::open(format!("/proc/{pid}/pagemap")).map(Pagemap)
    }

    /// Whether no process has this memory any more: all that had it ended or called exec.
    pub fn ended(&self) -> io::Result<bool> {
        Ok(self.0.read_at(&mut [0; 8], 0)? == 0)
    }

    /// Whether the kernel has the ioctl, and knows of `categories`.
    pub fn can_tell(&self, categories: u64) -> bool {
        let query = Query { any: categories, tell: categories, ..Query::default() };
        self.scan(&(0..1), query, &mut Vec::new()).is_ok()
    }

    /// Appends the runs of `range` that `query` finds to `found`. On an error some pages may have been armed and not told.
    pub fn scan(&self, range: &Pages, query: Query, found: &mut Vec<Region>) -> io::Result<()> {
        let mut at = range.start * PAGE;
        let end = range.end * PAGE;
        while at < end {
            found.reserve(512);
            let room = found.spare_capacity_mut();
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                flags: if query.arm { WP_MATCHING } else { 0 } | if query.registered_only { CHECK_WPASYNC } else { 0 },
                start: at,
                end,
                vec: room.as_mut_ptr() as u64,
                vec_len: room.len() as u64,
                category_inverted: query.inverted,
                category_mask: query.all,
                category_anyof_mask: query.any,
                return_mask: query.tell,
                ..ScanArgument::default()
            };
            // SAFETY: the argument is the ioctl's; `vec` is room for `vec_len` regions, and the kernel writes no more.
            let count = unsafe { super::ioctl(self.0.as_fd(), PAGEMAP_SCAN, &mut argument) }?;
            // SAFETY: the kernel has written `count` regions into the room behind the last element.
            unsafe { found.set_len(found.len() + count as usize) };
            assert!(argument.walk_end > at && argument.walk_end <= end, "a scan of the kernel goes on");
            at = argument.walk_end;
        }
        Ok(())
    }

    /// The runs of pages that are in memory or swapped out, for kernels without the ioctl: 8 bytes are read for each page.
    /// Pages of zeros and pages of files are found as well; with `anonymous_only`, those of files are left out.
    pub fn present(&self, range: &Pages, anonymous_only: bool, found: &mut Vec<Pages>) -> io::Result<()> {
        let (present, swapped, file) = (1 << 63, 1 << 62, 1 << 61);
        let mut entries = vec![0u64; 8192.min(range.end - range.start) as usize];
        let mut at = range.start;
        while at < range.end {
            let want = entries.len().min((range.end - at) as usize);
            let got = self.0.read_at(bytemuck::cast_slice_mut(&mut entries[..want]), at * 8)? / 8;
            if got == 0 {
                return Ok(());
            }
            for (page, entry) in (at..).zip(&entries[..got]) {
                if entry & (present | swapped) == 0 || anonymous_only && entry & file != 0 {
                    continue;
                }
                match found.last_mut() {
                    Some(last) if last.end == page => last.end += 1,
                    _ => found.push(page..page + 1),
                }
            }
            at += got as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::PageSet;

    #[test]
    fn both_ways_find_the_same_pages() {
        let pagemap = Pagemap::open(std::process::id() as i32).unwrap();
        let mut memory = vec![0u8; 400 * PAGE as usize];
        let first = (memory.as_ptr() as u64).div_ceil(PAGE);
        let offset = first * PAGE - memory.as_ptr() as u64;
        for page in [3, 4, 5, 9, 100] {
            memory[(offset + page * PAGE) as usize] = 1;
        }
        let range = first..first + 398;
        let (mut regions, mut present) = (Vec::new(), Vec::new());
        let query = Query { any: PRESENT | SWAPPED, ..Query::default() };
        if let Err(err) = pagemap.scan(&range, query, &mut regions) {
            println!("SKIP PAGEMAP_SCAN: {err} (Linux 6.7)");
            return;
        }
        pagemap.present(&range, true, &mut present).unwrap();
        let scanned: PageSet = regions.iter().map(Region::pages).collect();
        assert_eq!(PageSet::of(present), scanned);
        assert!(scanned.contains(first + 4) && scanned.contains(first + 100) && !pagemap.ended().unwrap());
    }
}
