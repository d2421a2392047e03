//! Resting: what was freed is not taken again before its epoch is durable, where that costs its old bytes.
//!
//! In a heap in place the undo log saves the bytes of what a transaction takes that was in use in the durable epoch. A thread
//! with [patience](Cache::set_patience) takes first what was free then: blocks that it freed long enough ago, and chunks. It takes what still rests
//! only when there is nothing else. So a program that frees one block for each that it takes pays for every one; it should
//! [free some more](Cache::take_owed), until as many rest as it takes while an epoch becomes durable.
//!
//! What must always hold: a block that rests is free in the heap and out of its slab's bitmap, as one in a bin is. It may lose its slab as
//! that may, and its seal tells.

use super::cache::{Cache, Resting, Spare};
use super::layout::{CHUNK, SIZES};
use super::runs::Run;
use super::table::{Entry, SlabChunk};
use super::{Allocator, Marker, OutOfSpace};
use std::sync::atomic::Ordering::Relaxed;

/// Chunks beyond the bound that may be free so that others can rest: one for so many.
const SLACK_SHARE: u32 = 16;

impl Allocator {
    /// A free block of `slab` rests; when there are too many, the oldest of its class go into the bin.
    pub(super) fn rest(&self, cache: &mut Cache, slab: &SlabChunk, off: u64) {
        let class = usize::from(slab.key.class);
        let spare = Spare { off, seal: slab.key.seal };
        cache.rests[class].blocks.push_back(Resting { spare, epoch: cache.epoch });
        cache.resting_bytes += u64::from(SIZES[class]);
        while cache.resting_bytes > cache.patience && self.wake(cache, class, u64::MAX) {}
    }

    /// Puts the oldest block of `class` that rests since an epoch up to `durable` into the bin, if its slab still stands; whether there was one.
    fn wake(&self, cache: &mut Cache, class: usize, durable: u64) -> bool {
        let Some(first) = cache.rests[class].blocks.pop_front_if(|first| first.epoch <= durable) else { return false };
        cache.resting_bytes -= u64::from(SIZES[class]);
        if let Entry::Slab(slab) = self.table.get(((first.spare.off - self.geo.data) / CHUNK) as u32)
            && slab.key.seal == first.spare.seal
        {
            self.cache_block(cache, &slab, first.spare.off);
        }
        true
    }

    /// Puts all blocks of `class` into the bin.
    pub(super) fn wake_all(&self, cache: &mut Cache, class: usize) {
        while self.wake(cache, class, u64::MAX) {}
    }

    /// A block of `class` where the bin has none: one that has rested; else what [`refill`](Self::refill) finds; else one that still
    /// rests.
    #[cold]
    #[inline(never)]
    pub(super) fn pop_cold<M: Marker>(
        &self,
        cache: &mut Cache,
        m: &M,
        class: usize,
        size: usize,
    ) -> Result<(u64, SlabChunk), OutOfSpace> {
        if cache.rests[class].blocks.is_empty() {
            return self.refill(cache, m, class, size);
        }
        let durable = m.durable();
        while self.wake(cache, class, durable) {
            if let Some(found) = self.pop(cache, class) {
                let rest = &mut cache.rests[class];
                // Where half of them have rested, fewer would do.
                let has_many = rest.blocks.get(rest.blocks.len() / 2).is_some_and(|half| half.epoch <= durable);
                rest.owed += u32::from(!has_many);
                return Ok(found);
            }
        }
        let found = self.refill(cache, m, class, size);
        if found.is_ok() {
            return found;
        }
        cache.is_hasty = true;
        // One for this one, and one more.
        cache.rests[class].owed += 1 + u32::from(cache.resting_bytes < cache.patience);
        while self.wake(cache, class, u64::MAX) {
            if let Some(found) = self.pop(cache, class) {
                return Ok(found);
            }
        }
        found
    }

    /// `len` chunks or more that are free in the durable epoch; those that were evacuated for this thread are not, and count as if
    /// they were free already.
    pub(super) fn take_rested_run<M: Marker>(&self, cache: &Cache, m: &M, len: u32) -> Option<Run> {
        let (epoch, durable) = (m.epoch(), m.durable());
        let granted = cache.granted.filter(|granted| granted.unused_since > durable).map_or(0, |granted| granted.len);
        let bound = self.bound.load(Relaxed).min(self.geo.chunks);
        let mut runs = self.runs.lock();
        if !cache.unbounded && u64::from(runs.in_use()) + u64::from(len) > u64::from(bound) + u64::from(granted) {
            return None;
        }
        let rested = runs.take_rested(len, epoch, durable);
        if rested.is_some() || runs.frontier.saturating_add(len) > bound.saturating_add(bound / SLACK_SHARE) {
            return rested;
        }
        let tail = runs.tail(epoch).filter(|tail| tail.unused_since <= durable && tail.len < len);
        self.extend_with(&mut runs, tail, len)
    }
}
