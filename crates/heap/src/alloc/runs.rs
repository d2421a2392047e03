//! The pool of free chunk runs, in DRAM only: which chunks are nobody's, and since which epoch.
//!
//! Adjacent free runs are joined here at once, but not in the heap: their headers stay as they were, one behind the other,
//! and walking over them gives the same chunks. Whoever takes from a joined run writes the header of what he takes and
//! of what remains, under the pool's lock, so the walk meets no line that is not a header (see the parent's opening).
//!
//! A run's `epoch` is the newest epoch in which any header line inside it was written. Only transactions of that epoch or
//! later may take it; joined runs have the newer of their epochs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A free run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) chunk: u32,
    pub(super) len: u32,
    pub(super) epoch: u64,
    /// The newest epoch at whose end a byte of it may have belonged to something. As of the end of this epoch and of all later ones it is
    /// free, whatever headers were written since.
    pub(super) unused_since: u64,
    /// Never written, see [`RunHeader::clean`](super::header::RunHeader::clean).
    pub(super) clean: bool,
    /// Parts of it, or all, may have no memory: space must be provided before it is written.
    pub(super) hollow: bool,
    /// How many of its chunks may have memory.
    pub(super) backed: u32,
}

impl Run {
    /// One that has all of its memory, and that became free in `epoch`.
    pub(super) fn solid(chunk: u32, len: u32, epoch: u64, clean: bool) -> Run {
        Run { chunk, len, epoch, unused_since: epoch, clean, hollow: false, backed: len }
    }
}

/// All free runs below the frontier, and the frontier.
#[derive(Debug, Default)]
pub(super) struct Runs {
    by_place: BTreeMap<u32, Run>,
    by_len: BTreeSet<(u32, u32)>,
    /// Large objects by first chunk, for diagnostics: length in chunks.
    pub(super) large: BTreeMap<u32, u32>,
    /// Chunks in the pool.
    free: u32,
    /// Those of them that have no memory.
    unbacked: u32,
    /// Free chunks that are out of the pool for a moment, while their memory is released.
    out: u32,
    /// Large objects that are being evacuated, and their chunks once they are free.
    pub(super) leaving: BTreeMap<u32, Option<Run>>,
    /// First chunk never carved.
    pub(super) frontier: u32,
    /// Offset up to which space was provided.
    pub(super) provided: u64,
    /// How often that was taken back to the frontier.
    pub(super) releases: u64,
}

impl Runs {
    /// No free run below `frontier` (in chunks), and space up to offset `provided`.
    pub(super) fn new(frontier: u32, provided: u64) -> Self {
        Self { frontier, provided, ..Self::default() }
    }

    /// Gives a run to the pool and joins it with its neighbours.
    pub(super) fn insert(&mut self, mut run: Run) {
        debug_assert!(run.len > 0 && run.chunk + run.len <= self.frontier);
        let before = self.by_place.range(..run.chunk).next_back().map(|(_, run)| *run);
        if let Some(before) = before {
            assert!(before.chunk + before.len <= run.chunk, "chunk {} freed twice", run.chunk);
            if before.chunk + before.len == run.chunk {
                self.remove(before);
                run = Run { chunk: before.chunk, ..join(before, run) };
            }
        }
        if let Some(after) = self.by_place.range(run.chunk..).next().map(|(_, run)| *run) {
            assert!(run.chunk + run.len <= after.chunk, "chunk {} freed twice", after.chunk);
            if run.chunk + run.len == after.chunk {
                self.remove(after);
                run = join(run, after);
            }
        }
        self.by_place.insert(run.chunk, run);
        self.by_len.insert((run.len, run.chunk));
        self.free += run.len;
        self.unbacked += run.len - run.backed;
    }

    fn remove(&mut self, run: Run) {
        self.free -= run.len;
        self.unbacked -= run.len - run.backed;
        self.by_place.remove(&run.chunk);
        self.by_len.remove(&(run.len, run.chunk));
    }

    /// Takes the smallest run of at least `len` chunks that a transaction of `epoch` may use: one that has its memory, if there is such a run.
    pub(super) fn take(&mut self, len: u32, epoch: u64) -> Option<Run> {
        let fits = || self.by_len.range((len, 0)..).map(|&(_, chunk)| self.by_place[&chunk]).filter(|run| run.epoch <= epoch);
        let run = if self.unbacked > 0 { fits().find(|run| !run.hollow).or_else(|| fits().next()) } else { fits().next() }?;
        self.remove(run);
        Some(run)
    }

    /// The run that ends at the frontier, if a transaction of `epoch` may use it. It stays in the pool.
    pub(super) fn tail(&self, epoch: u64) -> Option<Run> {
        let run = *self.by_place.values().next_back()?;
        (run.chunk + run.len == self.frontier && run.epoch <= epoch).then_some(run)
    }

    /// Moves the frontier by `more` chunks and returns the `len` chunks that end there: `tail` (taken out) and the new ones.
    pub(super) fn extend(&mut self, tail: Option<Run>, more: u32) -> Run {
        let fresh = Run::solid(self.frontier, more, 0, true);
        self.frontier += more;
        match tail {
            Some(tail) => {
                self.remove(tail);
                join(tail, fresh)
            }
            None => fresh,
        }
    }

    /// The large object that holds `chunk`: its first chunk.
    pub(super) fn find_large(&self, chunk: u32) -> Option<u32> {
        let (&head, &len) = self.large.range(..=chunk).next_back()?;
        (chunk < head + len).then_some(head)
    }

    /// Chunks in the pool.
    pub(super) fn free_chunks(&self) -> u64 {
        u64::from(self.free)
    }

    /// Chunks below the frontier that are not in the pool.
    pub(super) fn in_use(&self) -> u32 {
        self.frontier - self.free - self.out
    }

    /// Chunks below the frontier that have memory, as far as is known.
    pub(super) fn resident(&self) -> u32 {
        self.frontier - self.unbacked
    }

    /// Takes the longest run that may have memory, and whose headers are of `epoch` or an older one, out of the pool for a moment.
    pub(super) fn take_out(&mut self, epoch: u64) -> Option<Run> {
        let longest_first = self.by_len.iter().rev().map(|&(_, chunk)| self.by_place[&chunk]);
        let run = longest_first.into_iter().find(|run| run.backed > 0 && run.epoch <= epoch)?;
        self.remove(run);
        self.out += run.len;
        Some(run)
    }

    /// The run that was taken out comes back.
    pub(super) fn bring_back(&mut self, run: Run) {
        self.out -= run.len;
        self.insert(run);
    }

    /// Which parts of the free runs have memory is not known. With `holes`, some may have none.
    pub(super) fn forget_backing(&mut self, holes: bool) {
        for run in self.by_place.values_mut() {
            (run.hollow, run.backed) = (run.hollow | holes, run.len);
        }
        self.unbacked = 0;
    }

    /// The chunks below the frontier that are not in the pool: first one and the one behind the last of each row.
    pub(super) fn rows_in_use(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        debug_assert!(self.out == 0);
        let ends = std::iter::once(0).chain(self.by_place.values().map(|run| run.chunk + run.len));
        let begins = self.by_place.keys().copied().chain(std::iter::once(self.frontier));
        ends.zip(begins).filter(|(from, to)| from < to)
    }

    /// Chunks of the longest run in the pool.
    pub(super) fn longest(&self) -> u32 {
        self.by_len.last().map_or(0, |&(len, _)| len)
    }

    /// The run in the pool that holds `chunk`.
    pub(super) fn find_free(&self, chunk: u32) -> Option<Run> {
        let (_, run) = self.by_place.range(..=chunk).next_back()?;
        (chunk < run.chunk + run.len).then_some(*run)
    }

    /// Takes this very run out of the pool, if it is there.
    pub(super) fn take_this(&mut self, chunk: u32, len: u32) -> Option<Run> {
        let run = *self.by_place.get(&chunk).filter(|run| run.len == len)?;
        self.remove(run);
        Some(run)
    }

    /// Up to `most` large objects of so many chunks, of those at `from` and behind it, and then of the first there are.
    pub(super) fn large_from(&self, from: u32, chunks: RangeInclusive<u32>, most: usize) -> Vec<u32> {
        let behind = self.large.range(from..).chain(self.large.range(..from)).take(4 * most);
        behind.filter(|&(_, len)| chunks.contains(len)).map(|(&head, _)| head).take(most).collect()
    }
}

pub(super) fn join(low: Run, high: Run) -> Run {
    Run {
        chunk: low.chunk,
        len: low.len + high.len,
        epoch: low.epoch.max(high.epoch),
        unused_since: low.unused_since.max(high.unused_since),
        clean: low.clean && high.clean,
        hollow: low.hollow || high.hollow,
        backed: low.backed + high.backed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(chunk: u32, len: u32, epoch: u64) -> Run {
        Run::solid(chunk, len, epoch, true)
    }

    #[test]
    fn neighbours_join_and_keep_the_newer_epoch() {
        let mut runs = Runs { frontier: 20, ..Runs::default() };
        runs.insert(run(0, 2, 1));
        runs.insert(run(4, 2, 1));
        runs.insert(run(2, 2, 5));
        assert_eq!(runs.take(1, 4), None, "epoch 4 must not use what epoch 5 freed");
        assert_eq!(runs.take(6, 5), Some(run(0, 6, 5)));
        assert_eq!(runs.free_chunks(), 0);
    }

    #[test]
    fn the_smallest_fit_is_taken_and_the_frontier_extends_the_tail() {
        let mut runs = Runs { frontier: 20, ..Runs::default() };
        runs.insert(run(0, 5, 0));
        runs.insert(run(8, 3, 0));
        runs.insert(run(18, 2, 0));
        assert_eq!(runs.take(3, 0), Some(run(8, 3, 0)));
        let tail = runs.tail(0);
        assert_eq!(tail, Some(run(18, 2, 0)));
        assert_eq!(runs.extend(tail, 4), run(18, 6, 0));
        assert_eq!((runs.frontier, runs.tail(0)), (24, None));
    }

    #[test]
    fn what_has_no_memory_is_counted_and_passed_on() {
        let mut runs = Runs { frontier: 20, ..Runs::default() };
        runs.insert(run(0, 2, 1));
        runs.insert(run(5, 4, 3));
        runs.insert(run(12, 3, 2));
        assert_eq!(runs.rows_in_use().collect::<Vec<_>>(), [(2, 5), (9, 12), (15, 20)]);
        let taken = runs.take_out(2).unwrap();
        assert_eq!(taken, run(12, 3, 2), "the longest is of a newer epoch");
        assert_eq!((runs.in_use(), runs.free_chunks()), (11, 6), "it is in no use while it is out");
        runs.bring_back(Run { hollow: true, backed: 0, ..taken });
        assert_eq!((runs.resident(), runs.in_use()), (17, 11));
        assert_eq!(runs.take(3, 3), Some(run(5, 4, 3)), "one with memory comes before a smaller one without");
        runs.insert(run(5, 4, 3));
        // It joins one that has none: its own is not forgotten.
        runs.insert(run(9, 3, 2));
        let joined = Run { hollow: true, backed: 7, ..run(5, 10, 3) };
        assert_eq!((runs.resident(), runs.take_out(3)), (17, Some(joined)));
        runs.bring_back(Run { backed: 0, ..joined });
        assert_eq!((runs.resident(), runs.take_out(3)), (10, Some(run(0, 2, 1))));
        runs.bring_back(run(0, 2, 1));
        runs.forget_backing(true);
        assert_eq!((runs.resident(), runs.take_out(3)), (20, Some(Run { hollow: true, ..run(5, 10, 3) })));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_chunk_freed_twice_is_noticed() {
        let mut runs = Runs { frontier: 20, ..Runs::default() };
        runs.insert(run(0, 5, 0));
        runs.insert(run(4, 1, 0));
    }
}
