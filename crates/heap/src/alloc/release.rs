//! Giving back the memory of chunks that are free.
//!
//! What must always hold: only memory whose content no state of the heap needs is let go of, and none is written before space
//! was provided for it again.
//!
//! Why no state needs it. A run in the pool has headers of epochs up to its own. Once that epoch is durable, the run is free in every
//! state that a crash can leave, and no log holds a line of it that recovery would put back: lines of it that were logged are of epochs up to
//! that one. While the memory is let go of, the run is out of the pool, so no transaction gets it. Afterwards it reads as zeros, which is
//! what a chunk without a past reads as; block headers that were there belonged to slabs that are no more.
//!
//! Beyond the frontier no state has anything. The frontier does not move while the memory there is let go of, for that is done under the
//! lock of the pool; space that another thread provides in that moment counts as not provided.
//!
//! **A crash** at any step leaves a free run, with or without memory: all else is in DRAM. The next process finds holes
//! in the image, and [takes it](Allocator::forget_backing) that each free chunk may be one.

use super::Allocator;
use super::layout::CHUNK;
use super::runs::Run;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

impl Allocator {
    /// Calls `let_go` with the offsets of all that lies beyond the frontier, and of free chunks of which no epoch after `durable` has written a
    /// header, the longest rows first, until these were at least `bytes`, or all, or one was not let go of. Returns how many bytes they were. Their
    /// space is provided again before they are used.
    pub fn release_memory(&self, durable: u64, bytes: u64, mut let_go: impl FnMut(Range<u64>) -> bool) -> u64 {
        // An earlier process may have provided more than this one knows of.
        let mut runs = self.runs.lock();
        let (frontier, end) = (self.geo.offset(runs.frontier), self.geo.offset(self.geo.chunks));
        if frontier < end && let_go(frontier..end) {
            (runs.provided, runs.releases) = (frontier, runs.releases + 1);
        }
        drop(runs);
        let mut released = 0;
        while released < bytes {
            let Some(run) = self.runs.lock().take_out(durable) else { break };
            let is_gone = let_go(self.offsets(run.chunk, run.chunk + run.len));
            let backed = if is_gone { 0 } else { run.backed };
            self.runs.lock().bring_back(Run { hollow: run.hollow | is_gone, backed, ..run });
            if !is_gone {
                break;
            }
            released += u64::from(run.backed) * CHUNK;
        }
        released
    }

    /// Which parts of the free chunks have memory is not known from here on. With `holes`, some may have none.
    pub fn forget_backing(&self, holes: bool) {
        self.runs.lock().forget_backing(holes);
    }

    /// Whether more chunks are in use than the bound allows.
    pub fn is_beyond_bound(&self) -> bool {
        self.runs.lock().in_use() > self.bound.load(Relaxed)
    }

    /// The offsets of the chunks that are in use, in rows.
    pub fn rows_in_use(&self) -> Vec<Range<u64>> {
        self.runs.lock().rows_in_use().map(|(from, to)| self.offsets(from, to)).collect()
    }

    fn offsets(&self, from: u32, to: u32) -> Range<u64> {
        self.geo.offset(from)..self.geo.offset(to)
    }
}
