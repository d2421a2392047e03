//! What the server counts: one set of counters per thread, written by that thread alone, summed when somebody asks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// One thing counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Counter { $($(#[$doc])* $name),* }
        const COUNT: usize = [$(Counter::$name),*].len();
    };
}

counters! {
    GetCommands, GetHits, GetMisses, GetExpired, GetFlushed, SetCommands, FlushCommands, MetaCommands,
    TouchCommands, TouchHits, TouchMisses, DeleteHits, DeleteMisses, IncrHits, IncrMisses, DecrHits, DecrMisses,
    CasHits, CasMisses, CasMismatches, StoreTooLarge, StoreNoMemory, StoreFailed,
    TotalItems, Evictions, EvictedUnfetched, EvictedExpiring, Reclaimed, CrawlerReclaimed, ExpiredUnfetched,
    BytesRead, BytesWritten, Connections, Rejected, IdleKicks, RequestKicks, ListenDisabled, Yields, Panics, Barriers,
    LogWaits, LogWaitMicros,
    WindowsCleared, WindowsKept, WindowEvictions,
}

/// A thread's counters, on lines of their own.
#[repr(align(64))]
#[derive(Debug)]
pub struct Counters([AtomicU64; COUNT]);

impl Default for Counters {
    fn default() -> Self {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    /// Counts `by` more. Only the owning thread calls this, hence no read-modify-write.
    #[inline]
    pub fn add(&self, counter: Counter, by: u64) {
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// What this thread counted.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }

    /// Counts one more.
    #[inline]
    pub fn inc(&self, counter: Counter) {
        self.add(counter, 1);
    }
}

/// A sum of counters at one moment.
#[derive(Clone, Debug)]
pub struct Sums([u64; COUNT]);

impl Default for Sums {
    fn default() -> Self {
        Sums([0; COUNT])
    }
}

impl Sums {
    /// Adds up `all`.
    pub fn of<'a>(all: impl Iterator<Item = &'a Counters>) -> Sums {
        let mut sums = Sums::default();
        for counters in all {
            for (sum, cell) in sums.0.iter_mut().zip(&counters.0) {
                *sum = sum.wrapping_add(cell.load(Relaxed));
            }
        }
        sums
    }

    /// What came since `base` (`stats reset`).
    pub fn since(mut self, base: &Sums) -> Sums {
        for (sum, base) in self.0.iter_mut().zip(&base.0) {
            *sum = sum.wrapping_sub(*base);
        }
        self
    }

    /// One sum.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
}
