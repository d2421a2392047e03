//! What a pool counts: commits, aborts by cause, where time went.
//!
//! What must always hold: each thread counts in words of its own, so counting costs no line that moves between cores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::clock::{Clock, tsc, tsc_about};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One thread's counts.
        #[derive(Debug, Default)]
        pub(crate) struct Counts { $(pub $name: AtomicU64,)* }

        impl Counts {
            fn add_to(&self, stats: &mut Stats) {
                $(stats.$name += self.$name.load(Relaxed);)*
            }
        }

        /// A pool's figures since it was opened. Times are in nanoseconds, summed over threads.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Rounds of the checkpointer that brought up the image.
            pub checkpoints: u64,
            /// Records applied to the image.
            pub records_applied: u64,
            /// Lines of the image written back for them.
            pub lines_written_back: u64,
            /// Time the checkpointer worked.
            pub replay_ns: u64,
        }
    };
}

counters! {
    /// Transactions that took effect in hardware.
    commits_hardware,
    /// Transactions that took effect in software.
    commits_software,
    /// Of both: those that wrote nothing.
    commits_read_only,
    /// Hardware aborts because another thread touched the same lines.
    aborts_conflict,
    /// Hardware aborts because too much was read or written.
    aborts_capacity,
    /// Hardware aborts asked for: a version was locked, a software transaction took effect.
    aborts_explicit,
    /// Hardware aborts without a reason given: interrupts, page faults, system calls.
    aborts_spurious,
    /// Software runs that were repeated because what they had read changed.
    aborts_software,
    /// Bodies that gave up because what they were begun for had changed.
    stale,
    /// Bodies that gave up for a reason of the program, or failed.
    aborts_user,
    /// Time in runs that were aborted or gave up as stale, and in waiting before the next.
    abort_ns,
    /// Time waiting for log space.
    log_full_ns,
    /// Time from taking effect to being durable: waiting for others' records, writing and fencing one's own (which is measured of
    /// one record in sixteen).
    durability_ns,
    /// Of that: waiting for others.
    dependency_ns,
    /// Words logged.
    log_words,
    /// Bytes logged.
    log_bytes,
}

/// Adds to a count that only this thread writes.
#[inline]
pub(crate) fn add(count: &AtomicU64, n: u64) {
    count.store(count.load(Relaxed) + n, Relaxed);
}

/// Sums the threads' counts, their times still in ticks.
pub(crate) fn sum<'c>(counts: impl Iterator<Item = &'c Counts>, ticks: &Ticks) -> Stats {
    let mut stats = Stats::default();
    counts.for_each(|c| c.add_to(&mut stats));
    let per_tick = ticks.ns_per_tick();
    for time in [&mut stats.abort_ns, &mut stats.log_full_ns, &mut stats.durability_ns, &mut stats.dependency_ns] {
        *time = (*time as f64 * per_tick) as u64;
    }
    stats
}

/// A cheap clock to measure spans of time with, and what its ticks are worth.
#[derive(Debug)]
pub(crate) struct Ticks {
    clock: Clock,
    began: Instant,
    first: u64,
}

impl Ticks {
    pub fn new(clock: Clock) -> Ticks {
        Ticks { clock, began: Instant::now(), first: if clock == Clock::Tsc { tsc() } else { 0 } }
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.clock {
            Clock::Tsc => tsc_about(),
            Clock::Counter => self.began.elapsed().as_nanos() as u64,
        }
    }

    fn ns_per_tick(&self) -> f64 {
        match self.clock {
            Clock::Tsc => self.began.elapsed().as_nanos() as f64 / (tsc().saturating_sub(self.first)).max(1) as f64,
            Clock::Counter => 1.0,
        }
    }
}
