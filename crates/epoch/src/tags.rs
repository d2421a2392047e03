//! Which epoch last marked each line: one byte a line, in place of the paper's two bitmaps.
//!
//! The paper keeps two bitmaps, used alternately, and the persister clears a bit when it has logged the line. A byte that says
//! *which* epoch marked the line does the work of both, needs no clearing by the persister on the hot path, no atomic
//! read-modify-write by users, and shows a conflict (a line that a later epoch marked) at once. Its value is `epoch % 254 + 1`,
//! so it must not be mistaken for the same value 254 epochs later: [`Tags::sweep`] forgets old tags long before.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};

use towa_media::Mapping;

/// Epochs in which one pass over all tags completes. A tag is forgotten at most two passes after it was set; 2 * 64 < 252.
const SWEEP_EPOCHS: u64 = 64;

/// Equal to no tag of a line: a window with this tag sends every mark to the slow path.
pub(crate) const NO_TAG: u8 = 255;

/// The tag of an epoch; never 0 (never marked) and never [`NO_TAG`].
#[inline]
pub(crate) fn tag_of(epoch: u64) -> u8 {
    (epoch % 254) as u8 + 1
}

/// A tag for each line of the heap.
#[derive(Debug)]
pub(crate) struct Tags {
    map: Mapping,
    lines: u64,
    /// Where the running pass is, and where it ends: the frontier when it began. Lines carved since have younger tags.
    sweep: (AtomicU64, AtomicU64),
}

impl Tags {
    pub fn new(lines: u64) -> towa_media::Result<Tags> {
        let map = Mapping::anonymous(None, (lines as usize).next_multiple_of(towa_media::PAGE), true)?;
        Ok(Tags { map, lines, sweep: Default::default() })
    }

    /// The array, for the inlined mark of the C header.
    pub fn as_ptr(&self) -> *const u8 {
        self.map.as_ptr()
    }

    /// The tag of line `index`.
    #[inline]
    pub fn get(&self, index: u64) -> &AtomicU8 {
        debug_assert!(index < self.lines);
        // SAFETY: within the mapping (`Tx::mark` checks ranges before), which lives as long as self; zeroed bytes are AtomicU8s.
        unsafe { &*self.map.as_ptr().add(index as usize).cast::<AtomicU8>() }
    }

    /// Forgets the tags of epochs before `current - 1` in the next share of lines below `frontier_lines`.
    pub fn sweep(&self, current: u64, frontier_lines: u64) {
        let (at, end) = (self.sweep.0.load(Relaxed), self.sweep.1.load(Relaxed));
        let (at, end) = if at >= end { (0, frontier_lines) } else { (at, end) };
        let share = end.div_ceil(SWEEP_EPOCHS).next_multiple_of(64);
        let until = (at + share).min(end);
        let keep = [tag_of(current - 1), tag_of(current), tag_of(current + 1)];
        for index in at..until {
            let tag = self.get(index);
            let old = tag.load(Relaxed);
            if old != 0 && !keep.contains(&old) {
                // A user may set the tag at the same time: then this fails, and rightly.
                let _ = tag.compare_exchange(old, 0, Relaxed, Relaxed);
            }
        }
        self.sweep.0.store(until, Relaxed);
        self.sweep.1.store(end, Relaxed);
    }
}
