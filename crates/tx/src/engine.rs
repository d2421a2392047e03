//! What all threads of an open pool share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use crossbeam_utils::{Backoff, CachePadded};
use parking_lot::Mutex;
use towa_heap::Heap;
use towa_heap::alloc::{CHUNK, headers_end};

use crate::buffered::Buffer;
use crate::checkpointer::Rounds;
use crate::clock::{self, Clock};
use crate::control::{CONTROL_MAGIC, ControlMemory, LANES_MAX};
use crate::error::{Error, Result};
use crate::held::Held;
use crate::options::{Checkpointer, Commit, Options, Retry, Tm, TmChoice};
use crate::rtm;
use crate::stats::{self, Counts, Stats, Ticks};
use crate::view::{Addr, View};
use crate::writers::Writers;

/// An open pool's shared part. Hot fields never change while it is open.
#[derive(Debug)]
pub(crate) struct Engine {
    pub heap: Heap,
    pub control: ControlMemory,
    pub view: View,
    /// Where blocks begin.
    pub data: Addr,
    pub tm: Tm,
    /// Transactions on guarded words take effect under the locks of their versions.
    pub by_versions: bool,
    pub retry: Retry,
    pub commit: Commit,
    pub checkpointer: Checkpointer,
    pub lanes: usize,
    pub lane_len: u64,
    /// Live bytes of a log from which on a checkpoint is asked for.
    pub early: u64,
    pub ticks: Ticks,
    counts: Vec<Arc<Counts>>,
    /// Of each lane how often its thread has begun and ended a journal of the allocator's: odd while one is on.
    journals: Vec<CachePadded<AtomicU64>>,
    /// What buffered transactions have written, by lane.
    pub buffers: Vec<Buffer>,
    volatile: bool,
    /// The checkpointer's own state, if it works in this process.
    pub rounds: Mutex<Option<Rounds>>,
    /// Which software transaction changed a line last.
    pub writers: Writers,
    /// Which transaction changed a root last.
    pub roots_writer: AtomicU64,
    /// A software transaction changed words and stamped no lines.
    unstamped: AtomicBool,
    /// Roots that belong to what is open.
    pub held: Held,
    /// The allocator's frontier that the log has durably. On a line of its own: each thread that allocates writes it, and every
    /// transaction reads what would lie beside it.
    frontier: CachePadded<AtomicU64>,
    failed: AtomicBool,
    /// No transaction begins any more; those that run go on to their end.
    closing: AtomicBool,
    why: Mutex<Option<String>>,
    process: u32,
}

impl Engine {
    pub fn new(heap: Heap, control: ControlMemory, options: &Options) -> Result<Arc<Engine>> {
        let (tm, clock) = choose(options.tm)?;
        let volatile = heap.is_volatile();
        let (lanes, lane_len) = if volatile { (LANES_MAX, u64::MAX / 4) } else { (heap.lanes().count(), heap.lanes().lane_len()) };
        control.counter.store(u32::from(clock == Clock::Counter), Relaxed);
        control.first_tick.store(if clock == Clock::Tsc { clock::tsc().saturating_sub(10_000) } else { 0 }, Relaxed);
        control.lanes_used.store(lanes as u32, Relaxed);
        control.generation.store(if volatile { 0 } else { heap.lanes().generation() }, Relaxed);
        control.magic.store(CONTROL_MAGIC, Release);
        // SAFETY: the heap's working copy, which lives as long as the engine beside it, and which this crate writes atomically only. The
        // allocator and the root table write their own lines, and blocks that nobody else knows yet.
        let view = unsafe { View::new(heap.base().as_ptr(), heap.len()) };
        let rounds = if volatile { None } else { Some(Rounds::of(&heap)?) };
        Ok(Arc::new(Engine {
            data: view.base() + headers_end(heap.len(), CHUNK),
            view,
            tm,
            // Where timestamps are the sequence lock's numbers, everybody has to take that; in hardware nobody has to take any.
            by_versions: tm == Tm::Stm && clock == Clock::Tsc,
            retry: options.retry,
            commit: options.commit,
            checkpointer: options.checkpointer,
            lanes,
            lane_len,
            early: lane_len * 3 / 8,
            ticks: Ticks::new(clock),
            counts: (0..lanes).map(|_| Arc::default()).collect(),
            journals: (0..lanes).map(|_| CachePadded::default()).collect(),
            buffers: (0..lanes).map(|_| Buffer::default()).collect(),
            writers: if volatile || options.commit == Commit::Buffered { Writers::none() } else { Writers::of_heap(heap.len()) },
            roots_writer: AtomicU64::new(0),
            unstamped: AtomicBool::new(false),
            volatile,
            rounds: Mutex::new(rounds),
            held: Held::default(),
            frontier: CachePadded::new(AtomicU64::new(heap.allocator().frontier())),
            failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            why: Mutex::new(None),
            process: std::process::id(),
            control,
            heap,
        }))
    }

    pub fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// Whether threads write records into lanes themselves.
    #[inline]
    pub fn writes_lanes(&self) -> bool {
        !self.volatile && self.commit == Commit::Strict
    }

    /// Whether there may be transactions that changed words and stamped no lines.
    #[inline]
    pub fn has_unstamped(&self) -> bool {
        self.tm == Tm::Rtm || self.control.guarded_lanes.load(Relaxed) != 0 || self.unstamped.load(Relaxed)
    }

    /// A transaction in software is to change words and stamps no lines. Called before it announces that.
    #[inline]
    pub fn note_unstamped(&self) {
        if !self.unstamped.load(Relaxed) {
            // A fence stands between this store and the first word of that transaction, so a thread that reads such
            // a word finds this set.
            self.unstamped.store(true, Relaxed);
        }
    }

    pub fn is_durable(&self) -> bool {
        !self.volatile
    }

    pub fn is_manual(&self) -> bool {
        self.checkpointer == Checkpointer::Manual
    }

    pub fn counts(&self, lane: usize) -> Arc<Counts> {
        Arc::clone(&self.counts[lane])
    }

    /// Takes a lane for a thread.
    pub fn take_lane(&self) -> Result<usize> {
        let free = |lane: &usize| self.control.lanes[*lane].taken.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        // The last lane is the group's where commits are buffered.
        let last = if self.commit == Commit::Buffered && !self.volatile { self.lanes - 1 } else { self.lanes };
        let lane = (0..last).find(free);
        let lane = lane.ok_or_else(|| Error::TooManyThreads { pool: self.heap.location(), lanes: last })?;
        if self.writes_lanes() {
            self.heap.lanes().provide(lane).inspect_err(|_| self.release_lane(lane))?;
        }
        Ok(lane)
    }

    pub fn release_lane(&self, lane: usize) {
        self.control.lanes[lane].taken.store(0, Release);
    }

    /// The allocator's frontier as the log has it durably.
    pub fn logged_frontier(&self) -> u64 {
        self.frontier.load(Acquire)
    }

    pub fn frontier_logged(&self, frontier: u64) {
        self.frontier.fetch_max(frontier, AcqRel);
    }

    /// The thread of `lane` begins, or has ended, a journal of the allocator's.
    #[inline]
    pub fn turn_journal(&self, lane: usize) {
        let turns = &self.journals[lane];
        turns.store(turns.load(Relaxed) + 1, Release);
    }

    /// The journals of all lanes but `lane`, counted.
    pub fn journals_but(&self, lane: usize) -> Vec<u64> {
        let others = self.journals.iter().enumerate().filter(|(at, _)| *at != lane);
        others.map(|(_, turns)| turns.load(Acquire)).collect()
    }

    /// Waits until the transactions of other lanes that have a journal on now have ended it. Not to be called
    /// announced.
    pub fn await_journals(&self, lane: usize) -> Result<()> {
        let backoff = Backoff::new();
        for (at, turns) in self.journals.iter().enumerate() {
            let found = turns.load(Acquire);
            while at != lane && found % 2 == 1 && turns.load(Acquire) == found {
                // In a pool that failed, or is being closed, a journal may never end.
                self.check()?;
                backoff.snooze();
            }
        }
        Ok(())
    }

    /// Lets nothing more be committed.
    pub fn poison(&self, why: String) {
        let mut first = self.why.lock();
        log::error!("{}: {why}", self.heap.location());
        first.get_or_insert(why);
        self.failed.store(true, Release);
        self.control.stop.store(1, Release);
    }

    /// Whether this is a child that the pool's process forked: it has neither the heap nor the threads.
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Lets no transaction begin any more.
    pub fn shut(&self) {
        self.closing.store(true, SeqCst);
    }

    /// Whether a transaction may begin.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.failed.load(Acquire) || self.closing.load(Acquire) { Err(self.poisoned()) } else { Ok(()) }
    }

    /// Whether one that runs may go on: while the pool is being closed it does.
    #[inline]
    pub fn check_failed(&self) -> Result<()> {
        if self.failed.load(Acquire) { Err(self.poisoned()) } else { Ok(()) }
    }

    #[cold]
    fn poisoned(&self) -> Error {
        let why = self.why.lock().clone().unwrap_or_else(|| "closed".into());
        Error::Poisoned { pool: self.heap.location(), why }
    }

    pub fn stats(&self) -> Stats {
        let mut stats = stats::sum(self.counts.iter().map(|c| &**c), &self.ticks);
        if let Some(rounds) = &*self.rounds.lock() {
            rounds.add_to(&mut stats);
        }
        stats
    }
}

/// How transactions run here with this choice, and where their timestamps come from.
///
/// # Errors
/// [`Error::Usage`]: this machine does not run them so.
pub(crate) fn choose(wanted: TmChoice) -> Result<(Tm, Clock)> {
    let clock = clock::best();
    let tm = match wanted {
        TmChoice::Lock => Tm::Lock,
        TmChoice::Stm => Tm::Stm,
        TmChoice::Auto if rtm::commits() && clock == Clock::Tsc => Tm::Rtm,
        TmChoice::Auto => Tm::Stm,
        TmChoice::Rtm if !rtm::commits() => {
            return Err(Error::Usage("this machine does not commit hardware transactions (RTM); use stm, lock, or auto".into()));
        }
        TmChoice::Rtm if clock == Clock::Counter => {
            let why = "hardware transactions need a time stamp counter that the kernel trusts; use stm, lock, or auto";
            return Err(Error::Usage(why.into()));
        }
        TmChoice::Rtm => Tm::Rtm,
    };
    Ok((tm, clock))
}
