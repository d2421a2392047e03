//! The engine: what user threads and the persister share, and the way in and out of a transaction.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use towa_heap::Heap;
use towa_heap::log::commit::Commit;
use towa_media::fork;

use crate::clock::Clock;
use crate::detector::{ForgottenMark, Markers};
use crate::gate::{Gate, Reason};
use crate::log_space::{Share, no_log_space_in_a_manual_pool};
use crate::slot::Slots;
use crate::stats::Counts;
use crate::tags::Tags;
use crate::warming::Warming;
use crate::{Error, Mode, Options, Result, Stats};

#[derive(Debug)]
pub(crate) struct Engine {
    pub heap: Heap,
    pub mode: Mode,
    /// None in volatile mode.
    pub tags: Option<Tags>,
    pub clock: CachePadded<Clock>,
    /// The persister has read all lines of epochs up to this one: nobody need save them any more.
    pub read_done: CachePadded<AtomicU64>,
    pub gate: Gate,
    pub slots: Slots,
    /// Lines marked, and old lines saved meanwhile, per epoch parity, as far as accounted.
    pub marked: [CachePadded<AtomicU64>; 2],
    pub share: Share,
    /// Lines reserved beyond that by large transactions that run now.
    pub reserved: AtomicU64,
    pub durable: AtomicU64,
    pub durable_changed: (Mutex<()>, Condvar),
    /// When the newest durable epoch ended.
    pub durable_end: Mutex<Instant>,
    interval_ns: AtomicU64,
    pub requests: (Mutex<Requests>, Condvar),
    /// Held by whoever applies pending epochs: one at a time, or older lines would be written over newer ones.
    pub applying: Mutex<()>,
    /// Committed epochs whose lines are not yet durable in the image, oldest first.
    pub pending: (Mutex<std::collections::VecDeque<Commit>>, Condvar),
    poisoned: AtomicBool,
    poison: Mutex<Option<String>>,
    process: u32,
    pub counts: Counts,
    pub persisters: usize,
    /// No background threads.
    pub manual: bool,
    pub cores: usize,
    /// Somebody waits for the next durable epoch.
    pub urgent: AtomicBool,
    /// A lazily opened working copy on its way to anonymous memory.
    pub warming: Option<Warming>,
    /// The durable epoch when memory was last released: what was free then can be released now.
    pub releasable: AtomicU64,
    pub markers: Option<Markers>,
    pub forgotten: Mutex<Vec<ForgottenMark>>,
}

/// Nanoseconds between checkpoints: shorter than 100 us the persister would do nothing else, longer than the number holds is for ever.
fn interval_ns(interval: Duration) -> u64 {
    u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).clamp(100_000, 1 << 62)
}

/// What the persister has been asked for.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// A checkpoint now.
    pub checkpoint: bool,
    /// The image up to date and the log cut now.
    pub bring_up: bool,
    /// No more work.
    pub stop: bool,
}

impl Engine {
    pub fn new(heap: Heap, options: &Options) -> Result<std::sync::Arc<Engine>> {
        let (epoch, _) = heap.recovered();
        let volatile = heap.is_volatile();
        let tags = if volatile { None } else { Some(Tags::new(heap.len() / towa_media::LINE as u64)?) };
        let mode = if volatile { Mode::Volatile } else { options.mode };
        let persisters = match (options.persisters, mode) {
            (0, Mode::StopTheWorld) => 2,
            (0, _) => 1,
            (n, _) => n.min(64),
        };
        Ok(std::sync::Arc::new(Engine {
            mode,
            tags,
            clock: CachePadded::new(Clock::new(epoch + 1)),
            read_done: CachePadded::new(AtomicU64::new(epoch)),
            gate: Gate::default(),
            slots: Slots::new(),
            marked: Default::default(),
            share: Share::of(&heap),
            reserved: AtomicU64::new(0),
            durable: AtomicU64::new(epoch),
            durable_changed: Default::default(),
            durable_end: Mutex::new(Instant::now()),
            interval_ns: AtomicU64::new(interval_ns(options.interval)),
            requests: Default::default(),
            applying: Mutex::default(),
            pending: (Mutex::new(heap.recovered_commits().iter().copied().collect()), Condvar::new()),
            poisoned: AtomicBool::new(false),
            poison: Mutex::new(None),
            process: std::process::id(),
            counts: Counts::default(),
            persisters,
            manual: options.manual,
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            urgent: AtomicBool::new(false),
            warming: heap.lazy_part().map(Warming::new),
            releasable: AtomicU64::new(0),
            markers: options.detect_forgotten_marks.then(Markers::default),
            forgotten: Mutex::default(),
            heap,
        }))
    }

    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns.load(Relaxed))
    }

    pub fn set_interval(&self, interval: Duration) {
        self.interval_ns.store(interval_ns(interval), Relaxed);
        self.requests.1.notify_all();
    }

    /// Asks the persister for a checkpoint now; somebody waits for it.
    pub fn request_checkpoint(&self) {
        self.urgent.store(true, Relaxed);
        self.end_epoch();
    }

    /// Asks the persister to begin a checkpoint now, which nobody waits for.
    pub fn end_epoch(&self) {
        let mut requests = self.requests.0.lock();
        if !requests.checkpoint {
            requests.checkpoint = true;
            self.requests.1.notify_all();
        }
    }

    /// Whether a checkpoint was asked for, or log space is short: no time for pauses.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Relaxed)
    }

    /// A checkpoint begins: whether it was asked for. What is asked for from now on is for the next.
    pub fn take_urgency(&self) -> bool {
        self.urgent.swap(false, Relaxed)
    }

    /// The gate was closed at a transaction start: waits, or says why the pool is no more. `false`: it is closed for log space, and the
    /// caller does not wait for that.
    #[cold]
    pub fn wait_at_gate(&self, for_log_space: bool) -> Result<bool> {
        let stalled = for_log_space && self.gate.is_closed_for(Reason::LogSpace);
        if stalled && self.manual {
            return Err(no_log_space_in_a_manual_pool());
        }
        let began = Instant::now();
        let left = self.gate.wait(for_log_space);
        if stalled {
            self.count_stall(began);
        }
        match left {
            None => Ok(true),
            Some(Reason::LogSpace) => {
                self.ask_for_log_space();
                Ok(false)
            }
            Some(_) => Err(self.poison_error()),
        }
    }

    /// Gives the pool up: it stays at its last durable epoch. The first reason is kept.
    pub fn poison(&self, why: impl Into<String>) {
        let why = why.into();
        {
            let mut poison = self.poison.lock();
            if poison.is_none() {
                log::error!("{}: poisoned: {why}", self.heap.location());
                *poison = Some(why);
            }
        }
        self.poisoned.store(true, Release);
        self.gate.close(&self.clock, Reason::Poisoned);
        self.gate.wake();
        self.durable_changed.1.notify_all();
        self.requests.1.notify_all();
        self.pending.1.notify_all();
    }

    /// Whether this is a child that the pool's process forked: it has neither the heap nor the threads.
    pub fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Refuses `what` in a child that the pool's process forked.
    #[inline]
    pub fn refuse_in_child(&self, what: &str) -> Result<()> {
        if fork::is_child() { self.refuse_if_forked(what) } else { Ok(()) }
    }

    #[cold]
    fn refuse_if_forked(&self, what: &str) -> Result<()> {
        if self.is_forked() { Err(Error::Usage(fork::refused(&self.heap.location(), what))) } else { Ok(()) }
    }

    /// The pool is closed: no more transactions. Not a failure, so nothing is logged.
    pub fn shut(&self) {
        self.poison.lock().get_or_insert_with(|| "closed".into());
        self.poisoned.store(true, Release);
        self.gate.close(&self.clock, Reason::Poisoned);
        self.gate.wake();
        self.durable_changed.1.notify_all();
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Acquire)
    }

    pub fn poison_error(&self) -> Error {
        let why = self.poison.lock().clone().unwrap_or_else(|| "closed".into());
        Error::Poisoned { pool: self.heap.location(), why, durable: self.durable.load(Acquire) }
    }

    pub fn check(&self) -> Result<()> {
        if self.is_poisoned() { Err(self.poison_error()) } else { Ok(()) }
    }

    /// Poisons the pool if its files are gone from their directory, or others in their place; with `now` by a look, else by what was found in
    /// the last 100 ms or so.
    pub fn check_files(&self, now: bool) -> Result<()> {
        let found = if now { self.heap.look_at_files() } else { self.heap.check_files() };
        found.map_err(|e| {
            self.poison(e.to_string());
            self.poison_error()
        })
    }

    /// Nothing was changed between the end of the newest durable epoch and `then`: that state is no older.
    pub fn note_idle(&self, then: Instant) {
        *self.durable_end.lock() = then;
    }

    /// `epoch` is durable: tell those who wait.
    pub fn publish_durable(&self, epoch: u64, ended: Instant) {
        *self.durable_end.lock() = ended;
        let _guard = self.durable_changed.0.lock();
        self.durable.store(epoch, Release);
        self.durable_changed.1.notify_all();
    }

    /// Waits until `epoch` is durable; `false` when time ran out.
    pub fn wait_durable(&self, epoch: u64, deadline: Option<Instant>) -> Result<bool> {
        let mut guard = self.durable_changed.0.lock();
        loop {
            if self.durable.load(Acquire) >= epoch {
                return Ok(true);
            }
            self.check()?;
            // Woken up at least now and then, so that a lost poisoning is found.
            let tick = Instant::now() + Duration::from_millis(200);
            let until = deadline.map_or(tick, |d| d.min(tick));
            self.durable_changed.1.wait_until(&mut guard, until);
            if deadline.is_some_and(|d| Instant::now() >= d) && self.durable.load(Acquire) < epoch {
                return Ok(false);
            }
        }
    }

    /// Whether the threads that changed something in `epoch` would keep every core busy: the persister must share one.
    pub fn cores_are_short(&self, epoch: u64) -> bool {
        self.slots.count_dirty(epoch) >= self.cores
    }

    /// The epoch that holds everything completed before the call.
    pub fn completed_epoch(&self) -> u64 {
        let epoch = self.clock.epoch();
        if self.slots.any_dirty(epoch) { epoch } else { epoch - 1 }
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            epoch: self.clock.epoch(),
            durable_epoch: self.durable.load(Acquire),
            heap_used: self.heap.allocator().used_bytes(),
            heap_len: self.heap.len(),
            threads: self.slots.taken() as u64,
            warm_percent: self.warming.as_ref().map_or(100, Warming::percent),
            recovered_lines: self.heap.recovery().lines_replayed,
            recovery_us: self.heap.recovery().elapsed.as_micros() as u64,
            ..Stats::default()
        };
        if let Some(medium) = self.heap.medium() {
            let c = medium.counters().values();
            (stats.medium_bytes, stats.medium_fences) = (c.bytes_stored + c.bytes_streamed, c.fences);
            (stats.log_bytes, stats.log_capacity) = (self.log_live(), self.log_capacity());
            if self.completed_epoch() > stats.durable_epoch {
                stats.durable_age_us = self.durable_end.lock().elapsed().as_micros() as u64;
            }
        }
        self.counts.fill(&mut stats);
        stats
    }
}
