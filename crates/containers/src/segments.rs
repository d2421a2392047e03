//! A growable run of bytes whose parts never move: a two-level directory of 64 KiB segments.
//!
//! ```text
//!   Directory (in the header)      page (4 KiB block)          segment (64 KiB, line-aligned in its block)
//!   | top 0 | top 1 | ... 512 | ─► | 0 | 1 | 2 | ... 512 | ─► | .................................. |
//! ```
//! Growing allocates at most two blocks, so no operation ever pays for a copy of the whole. Whoever calls [`add`] or [`remove`]
//! holds the container's growth lock; readers reach only segments that were added before (the container's length says which).

use crate::store::{line_aligned, put};
use crate::{Error, Result, bounds};
use std::ptr::{self, NonNull};
use towa_epoch::{Pool, Tx};

/// Bytes in a segment.
pub(crate) const SEGMENT: usize = 64 << 10;
const FANOUT: usize = 512;
/// Segments that a directory can hold: 16 GiB of them.
pub(crate) const SEGMENTS_MAX: usize = FANOUT * FANOUT;

type Page = [*mut u8; FANOUT];

#[repr(C, align(64))]
pub(crate) struct Directory {
    top: [*mut Page; FANOUT],
}

impl Directory {
    /// # Safety
    /// `at` is valid for writes and marked.
    pub(crate) unsafe fn init(at: *mut Directory) {
        // SAFETY: the caller's promise.
        unsafe { at.write(Directory { top: [ptr::null_mut(); FANOUT] }) };
    }

    /// First byte of segment `i`, on a line boundary.
    ///
    /// # Safety
    /// Segment `i` has been added, and not removed, in a way that happened before.
    #[inline]
    pub(crate) unsafe fn segment(at: *const Directory, i: usize) -> *mut u8 {
        // SAFETY: the page of an added segment is there.
        unsafe { line_aligned((*(*at).top[i / FANOUT])[i % FANOUT]) }
    }

    /// Refuses a directory whose first `count` segments are not all in the heap.
    ///
    /// # Safety
    /// `at` is valid for reads, and nobody changes it meanwhile.
    pub(crate) unsafe fn check(pool: &Pool, at: *const Directory, count: u64) -> Result<()> {
        if count > SEGMENTS_MAX as u64 {
            return Err(Error::Damaged(format!("a directory of {count} segments, of {SEGMENTS_MAX} at most")));
        }
        for i in 0..count as usize {
            // SAFETY: each page is looked at before its first entry is read.
            unsafe {
                let page = (*at).top[i / FANOUT];
                if i.is_multiple_of(FANOUT) {
                    bounds::check(pool, page, 0, "a page of segments")?;
                }
                bounds::check(pool, (*page)[i % FANOUT], SEGMENT as u64 + 63, &format!("segment {i}"))?;
            }
        }
        Ok(())
    }

    /// Adds segment `i`, of unspecified content. All segments below `i` are there already.
    ///
    /// # Safety
    /// The caller holds the growth lock around `tx`, and `at` is live in the pool of `tx`.
    pub(crate) unsafe fn add(tx: &Tx<'_>, at: *mut Directory, i: usize) -> Result<*mut u8> {
        if i >= SEGMENTS_MAX {
            return Err(Error::Full(format!(
                "a container holds at most {SEGMENTS_MAX} segments of 64 KiB: spread the data over several"
            )));
        }
        let block = tx.alloc(SEGMENT + 64)?.as_ptr();
        // SAFETY: the growth lock is held, so that nobody else writes the directory; fresh blocks are marked.
        unsafe {
            let top = &raw mut (*at).top[i / FANOUT];
            if i.is_multiple_of(FANOUT) {
                let page = match tx.alloc(size_of::<Page>()) {
                    Ok(page) => page.cast::<Page>().as_ptr(),
                    Err(error) => {
                        tx.free(NonNull::new_unchecked(block));
                        return Err(error.into());
                    }
                };
                page.write([ptr::null_mut(); FANOUT]);
                put(tx, top, page);
            }
            put(tx, (&raw mut (**top)[i % FANOUT]).cast(), block);
        }
        Ok(line_aligned(block))
    }

    /// Removes segment `i`, the last one.
    ///
    /// # Safety
    /// As [`add`](Self::add); nobody reads the segment any more.
    pub(crate) unsafe fn remove(tx: &Tx<'_>, at: *mut Directory, i: usize) {
        // SAFETY: the segment is there and unused, by the caller's promise; so is its page when it was the page's first.
        unsafe {
            let top = &raw mut (*at).top[i / FANOUT];
            tx.free(NonNull::new_unchecked((**top)[i % FANOUT]));
            if i.is_multiple_of(FANOUT) {
                tx.free(NonNull::new_unchecked((*top).cast()));
                put(tx, top, ptr::null_mut());
            } else {
                put(tx, &raw mut (**top)[i % FANOUT], ptr::null_mut());
            }
        }
    }
}
