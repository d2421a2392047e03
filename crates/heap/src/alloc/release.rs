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
//! **A crash** at any step leaves a free run, with or without memory: all else is in DRAM. The next process asks which chunks
//! [have none](Allocator::hollow_out).

use super::Allocator;
use super::layout::CHUNK;
use super::runs::Run;
use std::ops::Range;

impl Allocator {
    /// Calls `let_go` with the offsets of all that lies beyond the frontier, and of free chunks of which no epoch after `durable` has written a
    /// header, the longest rows first, until these were at least `bytes`, or all. Returns how many bytes they were. Their space is
    /// provided again before they are used.
    pub fn release_memory(&self, durable: u64, bytes: u64, mut let_go: impl FnMut(Range<u64>)) -> u64 {
        // An earlier process may have provided more than this one knows of.
        let mut runs = self.runs.lock();
        let (frontier, end) = (self.geo.offset(runs.frontier), self.geo.offset(self.geo.chunks));
        if frontier < end {
            let_go(frontier..end);
        }
        (runs.provided, runs.releases) = (frontier, runs.releases + 1);
        drop(runs);
        let mut given = 0;
        while given < bytes {
            let Some(run) = self.runs.lock().take_solid(durable) else { break };
            let_go(self.offsets(run.chunk, run.chunk + run.len));
            given += u64::from(run.len) * CHUNK;
            self.runs.lock().insert(Run { hollow: true, ..run });
        }
        given
    }

    /// Free chunks need have no memory: says the owner of a heap whose earlier process gave some back.
    pub fn hollow_out(&self) {
        self.runs.lock().hollow_out();
    }

    /// The offsets of the chunks that are in use, in rows.
    pub fn rows_in_use(&self) -> Vec<Range<u64>> {
        self.runs.lock().rows_in_use().map(|(from, to)| self.offsets(from, to)).collect()
    }

    fn offsets(&self, from: u32, to: u32) -> Range<u64> {
        self.geo.offset(from)..self.geo.offset(to)
    }
}
