//! A thread's side: what it keeps between transactions and during one, and the loop that runs bodies.
//!
//! ```text
//!   room in the log? ─► announce ─► hardware, some tries, or under versions ─► takes effect ─► record durable ─► announce nothing
//!          ▲                        │ does not get through, or does more
//!          │                        ▼
//!          └── log full: wait ◄── software, until it gets through: body ─► announce ─► takes effect ─► ...
//! ```
//!
//! What must always hold: no thread waits while announced for something that itself waits for the announced one: log space is waited for
//! before announcing, or after retracting; records of older transactions never wait for younger ones. A software transaction that begins
//! waits for those under versions alone to take effect: they wait for nothing meanwhile. The body of a software transaction runs before it
//! is announced: so however long it takes, no other thread waits for it.

use std::marker::PhantomData;
use std::sync::Arc;

use towa_heap::Root;
use towa_heap::alloc::Cache;
use towa_heap::lanes::RecordBuilder;
use towa_media::{LINE, fork, persist};

use crate::dependencies::DEPENDENCIES_MAX;
use crate::engine::Engine;
use crate::error::{Abort, Error, Result};
use crate::options::Tm;
use crate::pool::Pool;
use crate::stats::{Counts, add};
use crate::tx::{GaveUp, NOTED_MAX, RootChange, TOUCHED_MAX, Tx};
use crate::view::{Addr, Span, View, WORD};
use crate::write_set::WriteSet;
use crate::{guarded, hardware, nesting, software};

/// Ticks by which the clock may seem to go back when a thread moves to another core.
const CLOCK_BACK_MAX: u64 = 1 << 20;

/// One thread's way to a pool. Not shared; a thread that ends gives its log to the next.
#[derive(Debug)]
pub struct Thread {
    core: Core,
    /// Keeps the pool open.
    _pool: Pool,
    /// Its lane's words are this thread's alone.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

/// What belongs to a thread, and to the transaction it runs.
#[derive(Debug)]
pub(crate) struct Core {
    pub engine: Arc<Engine>,
    pub view: View,
    /// Of the same: where blocks may be, which programs read.
    pub blocks: View,
    /// Where blocks begin; before it lie the pool's own tables.
    pub data: Addr,
    pub lane: usize,
    pub counts: Arc<Counts>,
    /// Up to here everything is known to be durable.
    pub known_durable: u64,
    /// Up to here all is known to be durable that transactions did which stamp no lines.
    pub known_unstamped: u64,
    /// The last of the stamps of roots that was found durable.
    pub known_roots: u64,
    /// The time of a run that stamped lines or roots, and then failed.
    pub failed_at: Option<u64>,
    /// Where the next record goes.
    pub position: u64,
    /// `tail` of the lane when last looked at.
    pub seen_tail: u64,
    /// Position from which on a checkpoint is asked for.
    pub hurry_at: u64,
    pub cache: Cache,

    // Of the transaction that runs.
    /// The TSC when the pool was opened: timestamps count from there.
    pub first_tick: u64,
    /// Lower bound of its timestamp, as announced.
    pub since: u64,
    /// Versions it read that were not known to be durable: of other lanes, one a lane.
    pub dependencies: Vec<u64>,
    /// Everything older must be durable before it: it depends on more than is noted, or on what is not.
    pub unguarded: bool,
    /// It read or wrote words that no version guards: what is older and stamps no lines must be durable before it.
    pub plain: bool,
    /// Version words to be stamped.
    pub touched: Vec<Addr>,
    /// In hardware and under versions: the writes, in order.
    pub noted: Vec<(Addr, u64)>,
    /// Under versions: why it will not take effect.
    pub gave_up: Option<GaveUp>,
    /// In software: the sequence number at which everything read was the same state.
    pub snapshot: u64,
    /// In software: the sequence lock is held.
    pub holds_lock: bool,
    /// In software: words read, and what they were; under versions: those alone.
    pub reads: Vec<(Addr, u64)>,
    /// In software: roots read, and what they were.
    pub roots_read: Vec<(String, Option<Root>)>,
    pub writes: WriteSet,
    /// Blocks it allocated: address and length.
    pub fresh: Vec<(Addr, u64)>,
    /// Ranges written in place (block headers, fresh blocks, roots): logged as they are when it takes effect.
    pub ranges: Vec<(Addr, u64)>,
    /// What stood where allocation wrote, oldest first.
    pub undo: Vec<(Addr, u64)>,
    /// The allocator's journal is on.
    pub allocating: bool,
    /// A block that it asked for was refused for want of space.
    pub lacks_space: bool,
    /// Roots to be set.
    pub roots: Vec<RootChange>,
    pub roots_changed: bool,
    /// Blocks it frees when it takes effect.
    pub frees: Vec<Addr>,
    /// The allocator's frontier, if its record says one.
    pub frontier: u64,
    /// When its run began, in ticks.
    pub began: u64,
    pub record: RecordBuilder,
    /// Words on their way into the record.
    pub words: Vec<u64>,
}

impl Thread {
    pub(crate) fn new(pool: Pool, lane: usize) -> Thread {
        let engine = Arc::clone(pool.engine_of());
        let control = &engine.control;
        let (position, tail) = (
            control.lanes[lane].head.load(std::sync::atomic::Ordering::Acquire),
            control.lanes[lane].tail.load(std::sync::atomic::Ordering::Acquire),
        );
        let core = Core {
            view: engine.view,
            blocks: engine.view.from(engine.data),
            data: engine.data,
            lane,
            counts: engine.counts(lane),
            known_durable: 0,
            known_unstamped: 0,
            known_roots: 0,
            failed_at: None,
            position,
            seen_tail: tail,
            hurry_at: 0,
            cache: Cache::new(),
            first_tick: engine.control.first_tick.load(std::sync::atomic::Ordering::Relaxed),
            since: 0,
            dependencies: Vec::with_capacity(DEPENDENCIES_MAX),
            unguarded: false,
            plain: false,
            touched: Vec::with_capacity(TOUCHED_MAX),
            noted: Vec::with_capacity(NOTED_MAX),
            gave_up: None,
            snapshot: 0,
            holds_lock: false,
            reads: Vec::new(),
            roots_read: Vec::new(),
            writes: WriteSet::default(),
            fresh: Vec::new(),
            ranges: Vec::new(),
            undo: Vec::new(),
            allocating: false,
            lacks_space: false,
            roots: Vec::new(),
            roots_changed: false,
            frees: Vec::new(),
            frontier: 0,
            began: 0,
            record: RecordBuilder::default(),
            words: Vec::new(),
            engine,
        };
        Thread { core, _pool: pool, _not_sync: PhantomData }
    }

    /// Runs `body` as one transaction, in hardware if the pool runs them there and it gets through, else in software. The body may run
    /// many times, and only its last run counts: it should do nothing but through the [`Tx`].
    ///
    /// In a [strict](crate::Commit::Strict) pool the transaction is durable when the call returns, and whatever it read is, too.
    ///
    /// # Errors
    /// The body's own ([`Error::Stale`], [`Error::Aborted`], what it failed with), [`Error::TooLarge`], [`Error::Poisoned`],
    /// [`Error::Usage`] inside the body of another transaction, which it might wait for; nothing it did remains. (A medium that fails while the record is written poisons the pool; whether that transaction is there, the next opening
    /// shows.)
    #[inline]
    pub fn transaction<R>(&mut self, mut body: impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>) -> Result<R> {
        let core = &mut self.core;
        if core.engine.tm == Tm::Rtm {
            nesting::refuse_with_rtm(&core.engine, "a transaction")?;
            core.make_room(hardware::record_max())?;
            core.announce();
            if let Err(closed) = core.engine.check() {
                core.retract();
                return Err(closed);
            }
            match hardware::run(core, &mut body) {
                hardware::Outcome::Done(result, timestamp) => {
                    core.finish_hardware(timestamp)?;
                    return Ok(result);
                }
                hardware::Outcome::Stale => {
                    core.retract();
                    add(&core.counts.stale, 1);
                    return Err(Error::Stale);
                }
                hardware::Outcome::Software => core.retract(),
            }
        }
        software::run(core, &mut body)
    }

    /// [`transaction`](Self::transaction) for bodies that only read versions, read and write words guarded by these, and touch them: in
    /// software such a one takes effect under the locks of its versions, beside all others, if the kernel trusts the time stamp counter. A
    /// body that does more is run anew, as `transaction` does; what it does by [`Tx::read_guarded`] and [`Tx::write_guarded`] must be
    /// as these demand.
    #[inline]
    pub fn transaction_guarded<R>(&mut self, mut body: impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>) -> Result<R> {
        match self.under_versions(&mut body)? {
            Some(result) => Ok(result),
            None => self.transaction(body),
        }
    }

    /// [`transaction_guarded`](Self::transaction_guarded) of a body that reads the version word at `a`, [gives up](Tx::stale) if that is not
    /// `version`, writes these words, which it guards, and touches it; in some four fifths of the instructions.
    ///
    /// # Errors
    /// As [`transaction`](Self::transaction): [`Error::Stale`] if the version is another one, or locked.
    #[inline]
    pub fn change_guarded<const N: usize>(&mut self, a: Addr, version: u64, words: [(Addr, u64); N]) -> Result<()> {
        if self.core.engine.by_versions && guarded::change(&mut self.core, a, version, &words)? {
            return Ok(());
        }
        self.transaction_guarded(|tx| {
            if tx.read_version(a)? != version {
                return tx.stale();
            }
            tx.write_all_guarded(words)?;
            tx.touch(a)
        })
    }

    /// [`transaction_guarded`](Self::transaction_guarded) for bodies that allocate, too, which hardware cannot do.
    pub fn transaction_guarded_software<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>,
    ) -> Result<R> {
        match self.under_versions(&mut body)? {
            Some(result) => Ok(result),
            None => self.transaction_software(body),
        }
    }

    /// Runs `body` under versions; `None`: not in this pool, or not this body.
    #[inline]
    fn under_versions<R>(&mut self, body: &mut impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>) -> Result<Option<R>> {
        if self.core.engine.by_versions { guarded::run(&mut self.core, body) } else { Ok(None) }
    }

    /// [`transaction`](Self::transaction) in software at once: for bodies that allocate, free, or write much.
    pub fn transaction_software<R>(&mut self, mut body: impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>) -> Result<R> {
        software::run(&mut self.core, &mut body)
    }

    /// The word at `a`, as it is now: part of no transaction, durable or not.
    ///
    /// # Panics
    /// If that is no word of the heap, or one of the pool's own tables.
    #[inline]
    pub fn load(&self, a: Addr) -> u64 {
        self.core.blocks.load(a)
    }

    /// The `count` words from `a` on, each as it is now.
    ///
    /// # Panics
    /// As [`load`](Self::load).
    pub fn load_all(&self, a: Addr, count: usize) -> Vec<u64> {
        assert!(count as u64 <= self.core.blocks.len() / WORD, "{count} words are more than the heap has");
        let mut words = Vec::with_capacity(count);
        self.core.blocks.load_all(a, a + count as u64 * WORD, &mut words);
        words
    }

    /// The `count` words from `a` on, to be loaded as they are then.
    ///
    /// # Panics
    /// As [`load`](Self::load).
    #[inline]
    pub fn span(&self, a: Addr, count: usize) -> Span<'_> {
        self.core.blocks.span(a, a + count as u64 * WORD)
    }

    /// The `count` words from `a` on, to be loaded as they are then; `None` if they do not lie where blocks may.
    #[inline(always)]
    pub fn find_span(&self, a: Addr, count: usize) -> Option<Span<'_>> {
        self.core.blocks.find_span(a, count)
    }

    /// Whether `a` is the address of a word in the heap, beyond the pool's own tables.
    #[inline]
    pub fn holds(&self, a: Addr) -> bool {
        self.core.blocks.holds(a)
    }

    /// The version word at `a`, before words that it guards are loaded; `None` while it is locked.
    #[inline]
    pub fn load_version(&self, a: Addr) -> Option<u64> {
        self.core.blocks.one(a).load_version(0)
    }

    /// Whether the version word at `a` is still `version`: then what was loaded in between was one state.
    #[inline]
    pub fn validate(&self, a: Addr, version: u64) -> bool {
        self.core.blocks.one(a).validate(0, version)
    }

    /// Has the lines of `a..a + len` fetched. A hint: any address will do.
    #[inline(always)]
    pub fn prefetch(&self, a: Addr, len: u64) {
        let mut at = 0;
        while at < len {
            persist::prefetch(std::ptr::without_provenance(a.wrapping_add(at) as usize));
            at += LINE as u64;
        }
    }

    /// Returns when what was read under this version is durable. At once in a [buffered](crate::Commit::Buffered) pool, which does not promise it.
    /// Not to be called by a body, where it is refused if it would wait.
    #[inline]
    pub fn wait_durable(&mut self, version: u64) -> Result<()> {
        // Each look-up of a tree comes here, and as a rule what it read is durable. (A child has no lanes to look at.)
        if self.core.is_durable(version) || !fork::is_child() && self.core.was_durable(version) {
            return Ok(());
        }
        self.wait_until_durable(version)
    }

    /// The rest of [`wait_durable`](Self::wait_durable), which look-ups need not carry with them.
    #[cold]
    #[inline(never)]
    fn wait_until_durable(&mut self, version: u64) -> Result<()> {
        nesting::refuse(&self.core.engine, "waiting until something is durable")?;
        self.core.wait_for_version(version)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let core = &mut self.core;
        if core.engine.is_forked() {
            return;
        }
        core.cache.flush(core.engine.heap.allocator());
        core.engine.release_lane(core.lane);
    }
}

impl Core {
    /// Announces that a transaction begins which stamps no lines, and forgets the last.
    #[inline]
    pub fn announce(&mut self) {
        let since = self.engine.control.announce(self.lane, false);
        self.begin(since);
    }

    /// Announces that the software transaction that runs takes effect soon. `stamps`: it stamps the lines that it changes.
    pub fn announce_effect(&mut self, stamps: bool) {
        if !stamps && self.engine.writers.are_known() {
            self.engine.note_unstamped();
        }
        let since = self.engine.control.announce(self.lane, stamps);
        self.announced_by(since);
    }

    /// A transaction begins, announced by this time.
    #[inline]
    pub fn begin(&mut self, since: u64) {
        self.announced_by(since);
        self.forget_transaction();
        self.depend_on_roots();
    }

    #[inline]
    fn announced_by(&mut self, since: u64) {
        if since + CLOCK_BACK_MAX < self.since {
            self.engine.poison(
                "the time stamp counter went back (suspended, or moved to another machine?); use stm on such a machine".into(),
            );
        }
        self.since = since;
    }

    /// Forgets what the transaction before this one depends on, touched and wrote.
    #[inline]
    pub fn forget_transaction(&mut self) {
        self.dependencies.clear();
        (self.unguarded, self.plain) = (false, false);
        self.touched.clear();
        self.noted.clear();
    }

    /// Takes the announcement back: nothing took effect.
    #[inline]
    pub fn retract(&mut self) {
        self.engine.control.lanes[self.lane].announced.store(0, std::sync::atomic::Ordering::Release);
    }
}
