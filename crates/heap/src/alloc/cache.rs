//! What one thread keeps to itself: free blocks at hand, and the journal of its undoable transaction.
//!
//! Blocks in a bin are free in the heap and out of their slab's bitmap. All of them were freed in this thread, or taken
//! from slabs that its transactions might use; as a thread's epochs only grow, they stay fit for it as long as their slab stands. A
//! slab may be evacuated under them: so each carries its slab's seal, which says whether it is still there. When they go
//! back to their slabs they carry `epoch`, the newest in which this thread wrote a header.
//!
//! Where a block that is taken again costs its old bytes (a heap in place), freed blocks *rest* first, until the epoch that freed them
//! is durable: in order, class by class, as long as the thread's patience has room for them.
//!
//! While the journal is on, nothing that an abort would take back is shown to other threads: freed blocks and runs wait
//! for the commit, slabs carved and what remained of split runs are held back.

use std::collections::VecDeque;

use super::header::RunHeader;
use super::layout::{BLOCK_HEADER, CLASSES, SIZES, SMALL_MAX, class_of};
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

/// A block that was freed and is not to be taken before its epoch is durable, if that can be helped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resting {
    pub(super) spare: Spare,
    pub(super) epoch: u64,
}

/// The blocks of a class that rest, those first that were freed first.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) blocks: VecDeque<Resting>,
    /// How many more should be freed, so that one has rested whenever one is wanted.
    pub(super) owed: u32,
}

/// A thread's free blocks. Give it back with [`flush`](Self::flush) before the thread ends; what a dropped cache held stays
/// unused until the heap is opened again.
#[derive(Debug)]
pub struct Cache {
    pub(super) bins: [Vec<Spare>; CLASSES],
    pub(super) rests: [Rest; CLASSES],
    pub(super) resting_bytes: u64,
    /// See [`set_patience`](Self::set_patience).
    pub(super) patience: u64,
    /// Something was taken that still rested.
    pub(super) is_hasty: bool,
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
        Self {
            bins: [const { Vec::new() }; CLASSES],
            rests: [const { Rest { blocks: VecDeque::new(), owed: 0 } }; CLASSES],
            resting_bytes: 0,
            patience: 0,
            is_hasty: false,
            epoch: 0,
            journal: None,
            granted: None,
            lean: false,
            unbounded: false,
        }
    }

    /// Whether an allocation is refused as soon as there are no blocks of its class and no chunks at hand, rather than look
    /// everywhere: for an owner that can free something of the class faster than that.
    pub fn set_lean(&mut self, lean: bool) {
        self.lean = lean;
    }

    /// How many bytes of blocks that this thread freed may wait for their epoch to be durable before it takes them again. None at first.
    pub fn set_patience(&mut self, bytes: u64) {
        self.patience = bytes;
    }

    /// How many blocks for `size` bytes should be freed now, for those that were taken since the last call: so that later ones find
    /// blocks that have rested.
    pub fn take_owed(&mut self, size: usize) -> usize {
        match size <= SMALL_MAX {
            true => std::mem::take(&mut self.rests[class_of(size + BLOCK_HEADER)].owed) as usize,
            false => 0,
        }
    }

    /// Whether a patient thread has taken something, since the last call, whose old bytes had to be saved: an epoch takes too long to be durable.
    pub fn take_haste(&mut self) -> bool {
        std::mem::take(&mut self.is_hasty)
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
