//! What the threads of a pool and its checkpointer share, be that a thread or another process: who is in a transaction since when, how
//! far each log is durable, and how far it is applied.
//!
//! ```text
//!   Control: | sequence lock | owner, checkpointer, wake-up words | lane 0 | lane 1 | ... |
//!   lane:    | announced, guarded, stamped (a line of their own) | head, tail, taken |
//!
//!   log of a lane, by position:      tail ........ head
//!                              applied | durable, live | being written
//! ```
//!
//! What must always hold:
//! 1. `announced` is 0, or not greater than the timestamp of the transaction that the thread runs, from before that transaction can take
//!    effect until its record is durable;
//! 2. `guarded` is 1 from before a transaction under versions looks whether software transactions run until it has taken effect, unless it
//!    saw any; and a software transaction reads nothing before it has entered, and then seen 0 there. So the two never take effect beside each
//!    other without the sequence lock;
//! 3. records before `head` are durable; those before `tail` are in the durable image;
//! 4. `stamped` is 1 only while the announced transaction stamps all that it changes in the table of last writers (`writers.rs`);
//! 5. none of this matters after a crash: it is volatile, made anew at each opening.

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

use crossbeam_utils::Backoff;
use towa_media::Mapping;

use crate::clock::{self, Clock};
use crate::sequence::Sequence;
use crate::sync::AtomicU64;

#[cfg(all(test, loom))]
mod loom_tests;

/// Most lanes. (In models one, for all words are on the stack of a thread of loom's.)
pub(crate) const LANES_MAX: usize = if cfg!(loom) { 1 } else { 64 };
/// Ticks that the TSCs of two cores may differ by: less than a line takes from one to the other.
const SKEW: u64 = 100;

/// One thread's part.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Lane {
    /// 0, or a lower bound of the timestamp of the transaction that runs or whose record is not durable yet.
    pub announced: AtomicU64,
    /// 1 while a transaction runs that takes effect under the locks of its versions alone. It waits for nothing meanwhile.
    pub guarded: AtomicU64,
    /// 1 if the transaction that was announced last stamps the lines that it changes.
    pub stamped: AtomicU64,
    _line: [u64; 13],
    /// Position up to which the log is durable.
    pub head: AtomicU64,
    /// Position up to which it is applied, and so free.
    pub tail: AtomicU64,
    /// 1 while a thread has it.
    pub taken: AtomicU32,
    _reserved: u32,
}

/// The shared words. All-zero bytes are a valid one.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Control {
    pub sequence: Sequence,
    /// What it is: [`CONTROL_MAGIC`] once the owner has made it.
    pub magic: AtomicU64,
    /// Generation of the logs.
    pub generation: AtomicU64,
    /// The owner's process number.
    pub owner: AtomicU64,
    /// The checkpointer's process number; 0: none.
    pub checkpointer: AtomicU64,
    /// 1: timestamps are the sequence lock's numbers.
    pub counter: AtomicU32,
    /// The TSC when the pool was opened: timestamps count from there.
    pub first_tick: AtomicU64,
    /// Number of lanes.
    pub lanes_used: AtomicU32,
    /// Checkpoints begun by request; the checkpointer sleeps on it.
    pub work: AtomicU32,
    /// Checkpoints done; threads that wait for log space sleep on it.
    pub done: AtomicU32,
    /// 1: the owner closes the pool, or something failed.
    pub stop: AtomicU32,
    /// How many sleep until there is work: the checkpointer, and the thread that stands in for a separate one.
    pub asleep: AtomicU32,
    /// How many separate checkpointers have come. The owner syncs its files for each.
    pub attached: AtomicU32,
    /// The owner has synced its files since so many had come; a checkpointer that comes sleeps on it.
    pub synced: AtomicU32,
    /// Newest timestamp that the image holds durably.
    pub applied: AtomicU64,
    /// Of each lane a bit: transactions under versions have run there.
    pub guarded_lanes: AtomicU64,
    pub lanes: [Lane; LANES_MAX],
}

/// What a finished control block begins with.
pub(crate) const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"TCONTRL3");

/// A control block, of this process alone or shared with another.
#[derive(Debug)]
pub(crate) struct ControlMemory {
    at: NonNull<Control>,
    /// What keeps it mapped.
    _mapping: Mapping,
}

// SAFETY: the control block is mapped as long as `_mapping` lives, wherever that moves, and all of it is atomic.
unsafe impl Send for ControlMemory {}
// SAFETY: as above.
unsafe impl Sync for ControlMemory {}

impl ControlMemory {
    /// Of this process alone.
    pub fn private() -> towa_media::Result<ControlMemory> {
        Ok(Self::over(Mapping::anonymous(None, Self::LEN as usize, false)?))
    }

    /// In memory behind a descriptor that both processes have, as long as [`LEN`](Self::LEN) at least.
    pub fn of(file: &File) -> io::Result<ControlMemory> {
        Ok(Self::over(Mapping::of_file(file, Self::LEN as usize).map_err(io::Error::other)?))
    }

    fn over(mapping: Mapping) -> ControlMemory {
        let at = NonNull::new(mapping.as_ptr().cast()).expect("a mapping is not at address 0");
        ControlMemory { at, _mapping: mapping }
    }

    /// Bytes it takes.
    pub const LEN: u64 = size_of::<Control>().next_multiple_of(towa_media::PAGE) as u64;
}

impl std::ops::Deref for ControlMemory {
    type Target = Control;
    #[inline]
    fn deref(&self) -> &Control {
        // SAFETY: page-aligned, long enough, mapped as long as this lives; any bytes are a Control, and all of it is atomic.
        unsafe { self.at.as_ref() }
    }
}

impl Control {
    /// The lanes that the pool has. The number may come from another process.
    pub fn used(&self) -> &[Lane] {
        let used = self.lanes_used.load(Relaxed) as usize;
        &self.lanes[..used.min(LANES_MAX)]
    }

    /// The clock that timestamps come from.
    pub fn clock(&self) -> Clock {
        if self.counter.load(Relaxed) == 1 { Clock::Counter } else { Clock::Tsc }
    }

    /// A time that no transaction which begins after this call is older than. What the caller loads later may be loaded earlier.
    #[inline]
    pub fn no_later(&self) -> u64 {
        match self.clock() {
            Clock::Tsc => (clock::tsc_about() - self.first_tick.load(Relaxed)).saturating_sub(SKEW),
            Clock::Counter => self.sequence.number() & !1,
        }
    }

    /// A time that no transaction is younger than whose words were loaded before this call, or which this thread committed.
    pub fn no_sooner(&self) -> u64 {
        match self.clock() {
            Clock::Tsc => clock::tsc() - self.first_tick.load(Relaxed) + SKEW,
            Clock::Counter => self.sequence.wait_even(),
        }
    }

    /// All transactions up to this timestamp are durable, and none older than it will come. `me`: a lane to pass over.
    ///
    /// The time is read first: whoever announces himself after his word was looked at takes effect later than that.
    pub fn frontier(&self, me: usize) -> u64 {
        self.frontier_of(me, |_| true)
    }

    /// The same of transactions that stamp no lines: of those that stamp, some up to this timestamp may not be durable.
    pub fn unstamped_frontier(&self, me: usize) -> u64 {
        // Stored before the transaction took effect which the caller may have seen. If a later one of the thread has
        // stored 1, the earlier one is durable or never took effect.
        self.frontier_of(me, |lane| lane.stamped.load(Acquire) == 0)
    }

    /// The frontier of the transactions of lanes for which `counts` holds, asked after the announcement was loaded.
    #[inline]
    fn frontier_of(&self, me: usize, counts: impl Fn(&Lane) -> bool) -> u64 {
        let mut frontier = self.no_later();
        clock::before_loads();
        for (at, lane) in self.used().iter().enumerate() {
            let announced = lane.announced.load(Acquire);
            if announced != 0 && at != me && counts(lane) {
                frontier = frontier.min(announced - 1);
            }
        }
        frontier
    }

    /// Announces that the thread of `lane` begins a transaction, or that it takes effect soon. `stamps`: it stamps the
    /// lines that it changes.
    #[inline]
    pub fn announce(&self, lane: usize, stamps: bool) -> u64 {
        let since = self.no_later().max(1);
        let lane = &self.lanes[lane];
        lane.stamped.store(u64::from(stamps), Release);
        // A full barrier: a thread that finds the word still empty cannot have read the time after this thread will.
        lane.announced.swap(since, SeqCst);
        since
    }

    /// Announces that the thread of `lane` begins a transaction that takes effect under the locks of its versions; with it, whether it
    /// needs the sequence lock, too, for software transactions run beside it. Ends with [`end_guarded`](Self::end_guarded).
    #[inline]
    pub fn announce_guarded(&self, lane: usize) -> (u64, bool) {
        let bit = 1 << lane;
        if self.guarded_lanes.load(Relaxed) & bit == 0 {
            self.guarded_lanes.fetch_or(bit, SeqCst);
        }
        self.lanes[lane].guarded.store(1, Relaxed);
        // Its barrier stands between the store and the look: a software transaction that is not seen here sees that store.
        let since = self.announce(lane, false);
        let beside = self.sequence.is_entered();
        if beside {
            self.end_guarded(lane);
        }
        (since, beside)
    }

    /// It has taken effect, or never will.
    #[inline]
    pub fn end_guarded(&self, lane: usize) {
        self.lanes[lane].guarded.store(0, Release);
    }

    /// A software transaction begins: from here on nobody takes effect without the sequence lock.
    pub fn enter_software(&self) {
        self.sequence.enter();
        let (mut left, backoff) = (self.guarded_lanes.load(SeqCst), Backoff::new());
        loop {
            left = self.still_guarded(left);
            if left == 0 {
                return;
            }
            backoff.snooze();
        }
    }

    /// On which of these lanes a transaction takes effect under versions alone.
    fn still_guarded(&self, lanes: u64) -> u64 {
        let (mut left, mut rest) = (0, lanes);
        while rest != 0 {
            let lane = rest.trailing_zeros();
            if self.lanes[lane as usize].guarded.load(Acquire) != 0 {
                left |= 1 << lane;
            }
            rest &= rest - 1;
        }
        left
    }

    /// Asks for a checkpoint.
    pub fn request(&self) {
        self.work.fetch_add(1, Release);
        if self.asleep.load(SeqCst) != 0 {
            wake(&self.work);
        }
    }
}

/// Sleeps while `word` is `value`, for at most `timeout`.
pub(crate) fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: libc::c_long::from(timeout.subsec_nanos()) };
    // SAFETY: `word` is a live aligned word; the kernel reads it and the timeout. (Not the private kind: another process may wake.)
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const timeout) };
}

/// Wakes everybody who sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: `word` is a live aligned word, whose address alone is used.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}
