//! Which blocks are taken: one line of DRAM per segment.
//!
//! ```text
//!   line of a segment:   | meta | taken: 4 words, one bit per block | - - - |
//!   meta:    0                     free
//!            class + 1 | state     blocks of a class              state: see `allocator`
//!            HEAD | segments << 32  first of a large object        BODY   the others
//! ```
//!
//! What must always hold: a bit is set by whoever holds the segment (or by marking), and cleared under the lock of its class; so the holder
//! may look for a clear bit and set it without a lock, for nobody else sets one.

use std::sync::atomic::{AtomicU64, Ordering::*};

use towa_media::Mapping;

use crate::classes::{SIZES, blocks, class_of};
use crate::{Result, SEGMENT};

pub(crate) const FREE: u64 = 0;
pub(crate) const HEAD: u64 = 0xFE;
pub(crate) const BODY: u64 = 0xFF;
/// The part of meta that says what the segment is.
pub(crate) const WHAT: u64 = 0xFF;
/// Some thread's current segment.
pub(crate) const HELD: u64 = 1 << 8;
/// In its class's list of segments with free blocks.
pub(crate) const LISTED: u64 = 1 << 9;

/// A segment's line.
#[repr(C, align(64))]
pub(crate) struct Line {
    pub meta: AtomicU64,
    pub taken: [AtomicU64; 4],
    _rest: [AtomicU64; 3],
}

const _: () = assert!(size_of::<Line>() == 64);

/// What marking a block found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    /// It was free until now.
    Fresh,
    /// Somebody marked it, or a part of it, before.
    Twice,
    /// No block of that size begins there.
    NoBlock,
}

/// A line for each segment of an arena; lines not touched cost no memory.
#[derive(Debug)]
pub(crate) struct Table {
    memory: Mapping,
    segments: u64,
}

impl Table {
    pub fn new(segments: u64) -> Result<Table> {
        let memory = Mapping::anonymous(None, segments as usize * size_of::<Line>(), false)?;
        Ok(Table { memory, segments })
    }

    /// The line of `segment`, which must be one of the arena's.
    #[inline]
    pub fn line(&self, segment: u64) -> &Line {
        assert!(segment < self.segments);
        // SAFETY: inside the mapping (just checked), which is page-aligned, zeroed (a line of zeroes is one), and only accessed by
        // atomics.
        unsafe { &*self.memory.as_ptr().cast::<Line>().add(segment as usize) }
    }

    /// Marks the block of `size` bytes at `off` as taken; segments below `mark` may hold blocks. Any number of threads at once.
    pub fn mark(&self, first: u64, mark: u64, off: u64, size: usize) -> Marked {
        let segment = off / SEGMENT;
        if segment < first || segment >= mark {
            return Marked::NoBlock;
        }
        let Some(class) = class_of(size) else {
            return self.mark_large(segment, mark, off, size);
        };
        let within = (off % SEGMENT) as usize;
        let block = within / SIZES[class] as usize;
        if !within.is_multiple_of(SIZES[class] as usize) || block >= blocks(class) {
            return Marked::NoBlock;
        }
        let line = self.line(segment);
        let what = class as u64 + 1;
        match line.meta.compare_exchange(FREE, what, Relaxed, Relaxed) {
            Ok(_) => {}
            Err(meta) if meta & WHAT == what => {}
            Err(_) => return Marked::Twice,
        }
        let bit = 1 << (block % 64);
        if line.taken[block / 64].fetch_or(bit, Relaxed) & bit == 0 { Marked::Fresh } else { Marked::Twice }
    }

    fn mark_large(&self, segment: u64, mark: u64, off: u64, size: usize) -> Marked {
        let n = (size as u64).div_ceil(SEGMENT);
        if !off.is_multiple_of(SEGMENT) || n > mark - segment {
            return Marked::NoBlock;
        }
        for i in 0..n {
            let what = if i == 0 { HEAD | n << 32 } else { BODY };
            if self.line(segment + i).meta.compare_exchange(FREE, what, Relaxed, Relaxed).is_err() {
                return Marked::Twice;
            }
        }
        Marked::Fresh
    }
}

impl Line {
    /// Takes a free block of `class`, if there is one. Only for the segment's holder.
    #[inline]
    pub fn take(&self, class: usize) -> Option<usize> {
        let n = blocks(class);
        for (i, word) in self.taken[..n.div_ceil(64)].iter().enumerate() {
            let block = i * 64 + word.load(Relaxed).trailing_ones() as usize;
            if block < n && block < (i + 1) * 64 {
                // Acquire: what the last owner of the block read of it is behind us.
                word.fetch_or(1 << (block % 64), Acquire);
                return Some(block);
            }
        }
        None
    }

    /// Gives a block back; whether it was taken.
    #[inline]
    pub fn give(&self, block: usize) -> bool {
        let bit = 1 << (block % 64);
        self.taken[block / 64].fetch_and(!bit, Release) & bit != 0
    }

    /// Blocks taken.
    pub fn count(&self) -> usize {
        self.taken.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }
}
