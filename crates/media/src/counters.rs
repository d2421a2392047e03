//! Counters of what was done on a medium. Flushes and fences per operation are measured here, never guessed.
//!
//! Each thread adds to its own cell with plain loads and stores, and a reader sums the cells; see `per_thread`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::LINE;
use crate::per_thread::PerThread;

/// Running totals since the medium was opened.
#[derive(Default)]
pub struct Counters {
    /// One cell per thread that used the medium; a thread that is gone leaves its cell to a later one, totals and all.
    cells: PerThread<Cell>,
}

/// One thread's share. Only its thread writes it.
#[derive(Default)]
struct Cell {
    bytes_stored: AtomicU64,
    bytes_streamed: AtomicU64,
    write_backs: AtomicU64,
    fences: AtomicU64,
}

/// The counters at one moment. Each is exact for what happened before the call in the caller's view; together they are not a
/// cut across other threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CounterValues {
    /// Bytes written with cached stores (on `file`: with `pwrite`).
    pub bytes_stored: u64,
    /// Bytes written with non-temporal stores (on `file`: with `pwrite`).
    pub bytes_streamed: u64,
    /// Lines written back (CLWB or its substitute) after cached stores; none on `file`.
    pub write_backs: u64,
    /// Fences; on `file` each is an `fdatasync`.
    pub fences: u64,
}

impl Counters {
    /// The values now.
    pub fn values(&self) -> CounterValues {
        self.cells.iter().fold(CounterValues::default(), |sum, cell| CounterValues {
            bytes_stored: sum.bytes_stored + cell.bytes_stored.load(Relaxed),
            bytes_streamed: sum.bytes_streamed + cell.bytes_streamed.load(Relaxed),
            write_backs: sum.write_backs + cell.write_backs.load(Relaxed),
            fences: sum.fences + cell.fences.load(Relaxed),
        })
    }

    #[inline]
    pub(crate) fn stored(&self, bytes: usize) {
        add(&self.cells.mine().bytes_stored, bytes);
    }

    /// A line, which was written back.
    #[inline]
    pub(crate) fn stored_line(&self) {
        let mine = self.cells.mine();
        add(&mine.bytes_stored, LINE);
        add(&mine.write_backs, 1);
    }

    #[inline]
    pub(crate) fn streamed(&self, bytes: usize) {
        add(&self.cells.mine().bytes_streamed, bytes);
    }

    #[inline]
    pub(crate) fn wrote_back(&self, lines: usize) {
        add(&self.cells.mine().write_backs, lines);
    }

    #[inline]
    pub(crate) fn fenced(&self) {
        add(&self.cells.mine().fences, 1);
    }
}

/// Not a read-modify-write: the cell's thread is its only writer.
#[inline]
fn add(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Relaxed) + n as u64, Relaxed);
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.values().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_threads_that_are_gone() {
        let counters = Counters::default();
        for _ in 0..3 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..1000 {
                            counters.stored(2);
                            counters.streamed(64);
                            counters.wrote_back(3);
                            counters.fenced();
                        }
                    });
                }
            });
        }
        let n = 3 * 4 * 1000;
        let expected = CounterValues { bytes_stored: 2 * n, bytes_streamed: 64 * n, write_backs: 3 * n, fences: n };
        assert_eq!(counters.values(), expected);
    }
}
