//! What one thread keeps to itself: free blocks at hand, and the journal of its undoable transaction.
//!
//! Blocks in a bin are free in the heap and out of their slab's bitmap. All of them were freed in this thread, or taken
//! from slabs that its transactions might use; as a thread's epochs only grow, they stay fit for it as long as their slab stands. A
//! slab may be evacuated under them: so each carries its slab's seal, which says whether it is still there. When they go
//! back to their slabs they carry `epoch`, the newest in which this thread wrote a header.
//!
//! While the journal is on, nothing that an abort would take back is shown to other threads: freed blocks and runs wait
//! for the commit, slabs carved and what remained of split runs are held back.

use super::header::RunHeader;
use super::layout::{CLASSES, SIZES};
use super::runs::Run;

/// Bytes that move between a bin and the slabs at a time, about.
const BATCH_BYTES: usize = 16 << 10;

/// A free block at hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub(super) off: u64,
    /// Of the slab it was taken from.
    pub(super) seal: u64,
}

/// A thread's free blocks. Give it back with [`flush`](Self::flush) before the thread ends; what a dropped cache held stays
/// unused until the heap is opened again.
#[derive(Debug)]
pub struct Cache {
    pub(super) bins: [Vec<Spare>; CLASSES],
    pub(super) epoch: u64,
    pub(super) journal: Option<Box<Journal>>,
    /// Chunks that were evacuated for this thread.
    pub(super) granted: Option<Run>,
    /// See [`set_lean`](Self::set_lean).
    pub(super) lean: bool,
    /// See [`set_unbounded`](Self::set_unbounded).
    pub(super) unbounded: bool,
}

/// What an undoable transaction did, until it ends.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Blocks allocated: offsets.
    pub(super) allocs: Vec<u64>,
    /// Blocks freed: offsets. Not to be reused before the commit.
    pub(super) frees: Vec<u64>,
    /// Large objects allocated.
    pub(super) large_allocs: Vec<Run>,
    /// Large objects freed.
    pub(super) large_frees: Vec<Run>,
    /// Slabs carved: class, index, epoch.
    pub(super) slabs: Vec<(usize, u32, u64)>,
    /// Free runs this transaction made (what remained of split ones, slabs given up), which only it may use.
    pub(super) runs: Vec<Run>,
    /// Run headers written while carving, in order, for they outlive an abort.
    pub(super) headers: Vec<(u32, RunHeader)>,
}

impl Default for Cache {
    fn default() -> Self {
        Self::new()
    }
}

impl Cache {
    /// An empty cache.
    pub const fn new() -> Self {
        Self { bins: [const { Vec::new() }; CLASSES], epoch: 0, journal: None, granted: None, lean: false, unbounded: false }
    }

    /// Whether an allocation is refused as soon as there are no blocks of its class and no chunks at hand, rather than look
    /// everywhere: for an owner that can free something of the class faster than that.
    pub fn set_lean(&mut self, lean: bool) {
        self.lean = lean;
    }

    /// Whether this thread's allocations may take chunks beyond [`Allocator::set_bound`](super::Allocator::set_bound).
    pub fn set_unbounded(&mut self, unbounded: bool) {
        self.unbounded = unbounded;
    }

    /// Starts the journal: the transaction that begins now can be rolled back. Ended by
    /// [`Allocator::commit`](super::Allocator::commit) or [`Allocator::rollback`](super::Allocator::rollback).
    ///
    /// # Panics
    /// If the journal is on already.
    pub fn begin_undoable(&mut self) {
        assert!(self.journal.is_none(), "an undoable transaction of this thread has not ended");
        self.journal = Some(Box::default());
    }

    /// Bytes of free blocks it holds.
    #[cfg(test)]
    pub(super) fn cached_bytes(&self) -> u64 {
        self.bins.iter().zip(&SIZES).map(|(bin, &size)| bin.len() as u64 * u64::from(size)).sum()
    }
}

/// Blocks of a class that move at a time.
#[inline]
pub(super) fn batch(class: usize) -> usize {
    (BATCH_BYTES / SIZES[class] as usize).clamp(1, 64)
}
