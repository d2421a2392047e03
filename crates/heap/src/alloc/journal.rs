//! How an undoable transaction ends.
//!
//! What it allocated and freed is taken back by an abort; the *structure* it made on the way (slabs carved, runs split,
//! slabs given up) stays, because that is simpler than to take it back and costs nothing: it is all free space. The
//! engine's undo has restored the header lines, so `rollback` writes them once more. Nobody else has seen any of it: it was
//! held until now.

use super::cache::Cache;
use super::header::{Kind, RunHeader};
use super::{Allocator, Marker};

impl Allocator {
    /// The transaction that began with [`Cache::begin_undoable`] commits: what it freed may be reused from here on.
    ///
    /// # Panics
    /// If none began.
    pub fn commit(&self, cache: &mut Cache) {
        let mut journal = cache.journal.take().expect("no undoable transaction began");
        for run in journal.large_frees.drain(..) {
            self.release_large(run);
        }
        for off in journal.frees.drain(..) {
            self.cache_block(cache, &self.slab_at(off), off);
        }
        self.release_structure(&journal);
    }

    /// The transaction that began with [`Cache::begin_undoable`] was aborted. Call it **after** the engine has restored every
    /// line that the transaction marked, with a transaction (the same, or a new one of this thread) that will commit.
    ///
    /// # Panics
    /// If none began.
    pub fn rollback<M: Marker>(&self, cache: &mut Cache, m: &M) {
        self.undo(cache, m);
        self.release_undone(cache);
    }

    /// The first half of [`rollback`](Self::rollback): writes the headers, and shows nobody. They may be written to the medium in
    /// parts, in this order: every part from the first on is a whole state.
    ///
    /// # Panics
    /// If no undoable transaction began.
    pub fn undo<M: Marker>(&self, cache: &mut Cache, m: &M) {
        let epoch = m.epoch();
        cache.epoch = epoch;
        let journal = cache.journal.as_mut().expect("no undoable transaction began");
        for (chunk, header) in journal.headers.drain(..) {
            self.put_header(m, chunk, header);
        }
        for slab in &mut journal.slabs {
            slab.2 = epoch;
        }
        for run in journal.runs.iter_mut().chain(&mut journal.large_allocs) {
            run.epoch = epoch;
        }
        for run in &journal.large_allocs {
            self.put_header(m, run.chunk, RunHeader { kind: Kind::Free, len: run.len, clean: run.clean });
        }
    }

    /// The second half: what was undone is free, for everybody.
    ///
    /// # Panics
    /// If no undoable transaction began.
    pub fn release_undone(&self, cache: &mut Cache) {
        let mut journal = cache.journal.take().expect("no undoable transaction began");
        for run in journal.large_allocs.drain(..) {
            self.release_large(run);
        }
        self.release_structure(&journal);
        for off in journal.allocs.drain(..) {
            self.cache_block(cache, &self.slab_at(off), off);
        }
    }

    /// Shows everyone what was held.
    fn release_structure(&self, journal: &super::cache::Journal) {
        for &(class, index, epoch) in &journal.slabs {
            self.classes[class].lock().release_hold(index, epoch);
        }
        // Mostly there are none, and the lock is one word that all threads write.
        if !journal.runs.is_empty() {
            let mut runs = self.runs.lock();
            journal.runs.iter().for_each(|run| runs.insert(*run));
        }
    }
}
