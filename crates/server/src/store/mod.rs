//! The store: memcached's items in a pool's heap, through `towa_epoch`'s public interface alone.
//!
//! ```text
//!   pool root "serve" ──► Root: seed │ shape │ cas limit │ flush marker │ levels ──► segments ──► lines ──► items
//!                               1024 x { items, bytes, expiring }   one 64-byte line per stripe
//! ```
//!
//! What must always hold:
//! - **Locks enclose transactions**: a stripe is locked, then the transaction begins; it ends before the unlock. Hence an epoch
//!   never holds an effect without its cause.
//! - **Concurrent transactions never write one line**: an item, its bucket line and its stripe's counters are written under the
//!   stripe's lock; shape, levels and cas limit by the upkeep thread alone; the flush marker with all stripes locked.
//! - A thread never waits for a stripe while it holds a higher one: `flush` takes all of them in order, a batch of evictions some.
//! - Inside a transaction whatever can fail comes first, so a failed request changes nothing.
//!
//! The counters are durable and exact, so opening needs no scan: it reads the root, 1024 lines of counters and the list of
//! segments, whatever the number of items.

mod check;
mod evict;
mod growth;
pub mod item;
mod locked;
mod reservation;
mod room;
mod root;
pub mod table;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use towa_epoch::{Mode, Pool, Thread, Tx};

use crate::counters::{Counter, Counters};
use crate::error::Result;
pub use check::{StoreReport, check};
use item::Item;
pub use locked::Locked;
use reservation::{Reservations, Wait};
pub use room::LEAST;
pub use root::NAME as ROOT;
use root::Roots;
use table::{STRIPES, Table};
pub use upkeep::Upkeep;

/// Bytes that a transaction may write beside an item: links, counters, a split line's items.
const SMALL_WRITES: usize = 4096;
/// Work of one turn of a connection, in bytes, after which others have theirs: less than a millisecond.
pub const TURN: u64 = 512 << 10;
/// What a request costs beside the bytes that it copies: a look-up.
const REQUEST: u64 = 256;

/// Why one operation failed; nothing was changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// No room, and nothing could be evicted.
    NoMemory,
    /// The log has no space now. The request comes again when there is some: see [`Worker::take_wanted_log`].
    NoLogSpace,
    /// The engine refused: the pool is poisoned, its log is full for good, or the CAS ids ran out of reserve.
    Engine(String),
}

impl From<towa_epoch::Error> for Failure {
    fn from(error: towa_epoch::Error) -> Self {
        match error {
            towa_epoch::Error::OutOfSpace { .. } => Failure::NoMemory,
            other => Failure::Engine(other.to_string()),
        }
    }
}

/// What the store knows of a connection.
#[derive(Debug, Default)]
pub struct Client {
    /// The newest epoch that it wrote in.
    written: u64,
    /// Its request waits for chunks. Few do, and this is moved at each turn.
    wait: Option<Box<Wait>>,
}

/// What a thread carries along when it works on the store.
pub struct Worker {
    /// Its registration with the pool.
    pub thread: Thread,
    /// Its counters.
    pub counters: Arc<Counters>,
    /// Seconds since 1970, renewed once per batch of requests.
    pub now: u32,
    /// The connection that it works for: see [`serve`](Self::serve).
    client: Client,
    /// When it last napped for requests that wait for others.
    napped: Instant,
    /// Transactions that may still begin. Few, or none, while connections of this thread wait for log space: see [`allow`](Self::allow).
    allowed: u32,
    /// Bytes of log that the request at hand wanted and did not get.
    wanted_log: Option<usize>,
    /// When this worker may next compare windows that it could do without: see `room`.
    rested: Instant,
    /// The window that it clears, and goes on with: see `evict`.
    clearing: Option<evict::Work>,
    /// The hash of the key whose item the request at hand builds on: that item is not evicted for it.
    kept: Option<u64>,
    /// Windows that could not be cleared for the request at hand, in all its turns.
    failed: usize,
    /// The request at hand took its share of time: others have their turns before it is carried out again.
    paused: bool,
    /// Work of the turn at hand, in bytes: see [`TURN`].
    work: u64,
    /// Pseudo-random state for eviction samples.
    random: u64,
}

impl Worker {
    /// A worker of `pool`.
    pub fn new(pool: &Pool, counters: Arc<Counters>) -> Result<Worker> {
        let random = std::ptr::from_ref(&*counters) as u64 | 1;
        Ok(Worker {
            thread: pool.register()?,
            counters,
            now: 0,
            client: Client::default(),
            napped: Instant::now(),
            allowed: u32::MAX,
            wanted_log: None,
            rested: Instant::now(),
            clearing: None,
            kept: None,
            failed: 0,
            paused: false,
            work: 0,
            random,
        })
    }

    /// How many transactions may begin from now on. Then they fail with [`Failure::NoLogSpace`], so that the connections that wait for
    /// log space get it in turn.
    pub fn allow(&mut self, transactions: u32) {
        self.allowed = transactions;
    }

    /// How many of them are left.
    pub fn allowed(&self) -> u32 {
        self.allowed
    }

    /// Bytes of log that the request just carried out wanted and did not get. The store is as before that request, and what it
    /// answered does not count: it is to be carried out again.
    pub fn take_wanted_log(&mut self) -> Option<usize> {
        self.wanted_log.take()
    }

    /// Whether the request just carried out is to be carried out again after others have had their turns, as if it had wanted log.
    pub fn take_pause(&mut self) -> bool {
        std::mem::take(&mut self.paused)
    }

    /// A connection's turn begins.
    pub fn begin_turn(&mut self) {
        self.work = 0;
    }

    /// Notes work of the turn at hand: a request, and so many bytes to copy.
    #[inline]
    pub fn works(&mut self, bytes: u64) {
        self.work = self.work.saturating_add(REQUEST + bytes);
    }

    /// Whether others are to have their turns now.
    #[inline]
    pub fn has_worked_enough(&self) -> bool {
        self.work >= TURN
    }

    /// Works for one connection: what is known of it follows what `act` does. No other connection's is seen, nor changed.
    pub fn serve<R>(&mut self, client: &mut Client, act: impl FnOnce(&mut Worker) -> R) -> R {
        std::mem::swap(&mut self.client, client);
        let result = act(self);
        std::mem::swap(&mut self.client, client);
        result
    }

    /// Leaves the processor to others, unless it did so less than `share` times as long ago, for another connection.
    fn nap(&mut self, time: Duration, share: u32) {
        if self.napped.elapsed() >= time * share {
            std::thread::sleep(time);
            self.napped = Instant::now();
        }
    }

    /// The newest epoch that the connection that it works for wrote in; what `durable` waits for.
    pub fn written(&self) -> u64 {
        self.client.written
    }

    /// Starts a transaction that a client asked for, if it may and it is its turn; see [`Locked::begin`].
    fn begin(&mut self, bytes: usize, may: bool) -> std::result::Result<Tx<'_>, Failure> {
        if self.allowed == 0 || !may {
            self.wanted_log = Some(bytes);
            return Err(Failure::NoLogSpace);
        }
        let tx = try_begin(&mut self.thread, &mut self.wanted_log, bytes)?;
        self.allowed -= 1;
        self.work = self.work.saturating_add(bytes as u64);
        self.client.written = self.client.written.max(tx.epoch());
        Ok(tx)
    }

    /// Starts a transaction that no client asked for, such as an eviction: none's `durable` waits for it.
    pub(super) fn begin_upkeep(&mut self, bytes: usize) -> std::result::Result<Tx<'_>, Failure> {
        try_begin(&mut self.thread, &mut self.wanted_log, bytes)
    }

    /// The request at hand is to be carried out again, after others have had their turns.
    fn pause(&mut self) -> Failure {
        self.paused = true;
        Failure::NoLogSpace
    }

    /// The request at hand is to be carried out again when the log has space for `bytes`.
    fn want_log(&mut self, bytes: usize) -> Failure {
        self.wanted_log = Some(bytes);
        Failure::NoLogSpace
    }

    /// Requests of this worker wait for log space: the window that one of them clears is not forgotten.
    pub fn keep_window(&mut self) {
        if let Some(work) = &mut self.clearing {
            work.renew();
        }
    }

    /// Gives a window back that no request goes on with.
    fn drop_forgotten_window(&mut self) {
        if self.clearing.as_ref().is_some_and(evict::Work::is_forgotten) {
            self.give_window_back();
        }
    }

    fn give_window_back(&mut self) {
        self.clearing = None;
        self.counters.inc(Counter::WindowsKept);
    }

    /// Whether it may compare windows again. If so, it does, and rests from that.
    fn has_rested(&mut self) -> bool {
        let now = Instant::now();
        let rested = now >= self.rested;
        if rested {
            self.rested = now + room::REST;
        }
        rested
    }

    fn random(&mut self) -> u64 {
        // xorshift64*: good enough to pick victims.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// When a flush is due that readers see and that could not be carried out yet: long ago.
const OWED: u32 = 1;

/// Starts a transaction of `bytes` if the log has space for it now; else notes that.
fn try_begin<'t>(thread: &'t mut Thread, wanted: &mut Option<usize>, bytes: usize) -> std::result::Result<Tx<'t>, Failure> {
    match thread.try_begin_reserving(bytes) {
        Ok(Some(tx)) => Ok(tx),
        Ok(None) => {
            *wanted = Some(bytes);
            Err(Failure::NoLogSpace)
        }
        // A failed pool, or more than the log can ever hold: evicting would not help.
        Err(error) => Err(Failure::Engine(error.to_string())),
    }
}

/// Whether an item may still be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Yes.
    Live,
    /// Its time is over.
    Expired,
    /// A flush came after it.
    Flushed,
    /// It was evicted before a crash ([`Item::is_lost`](item::Item::is_lost)).
    Lost,
}

#[repr(align(64))]
#[derive(Default)]
struct Lock(Mutex<()>);

/// Items and bytes of some stripes, in DRAM, to be added up often.
#[repr(align(64))]
#[derive(Default)]
struct Usage {
    items: AtomicI64,
    bytes: AtomicI64,
    expiring: AtomicI64,
}

const USAGE_CELLS: usize = 16;

/// The store. Shared by all threads of a server.
pub struct Store {
    pool: Pool,
    roots: Roots,
    locks: Box<[Lock]>,
    table: Table,
    seed: u64,
    usage: [Usage; USAGE_CELLS],
    next_cas: AtomicU64,
    /// Ids below this may be given out: a later process starts at or above it.
    cas_limit: AtomicU64,
    /// Items with a smaller CAS id are flushed. Mirrors the root.
    oldest_cas: AtomicU64,
    /// When the next flush is due, or 0. Mirrors the root, but for [`OWED`].
    flush_at: AtomicU32,
    /// `-m` in bytes.
    limit: AtomicU64,
    /// Evict when full; else refuse (`-M`).
    evict: bool,
    /// Other programs have objects in the pool.
    shares_pool: AtomicBool,
    /// Chunks that are kept for a large value.
    reservations: Mutex<Reservations>,
    /// Upkeep is wanted: the table is too small, or a crawl was asked for.
    wake: upkeep::Wake,
    crawl: AtomicBool,
    crawler_enabled: AtomicBool,
}

/// Whether other programs have objects in `pool`, which are not the server's to give up.
pub fn is_shared(pool: &Pool) -> bool {
    pool.root_names().iter().any(|name| name != ROOT)
}

impl Store {
    /// Opens the store in `pool`, or creates it. Returns when no CAS id of an earlier process can come again.
    pub fn open(pool: &Pool, limit: u64, evict: bool, now: u32) -> Result<Store> {
        let mut thread = pool.register()?;
        let roots = Roots::open_or_create(pool, &mut thread)?;
        let (cas_first, _) = roots.reserve_cas(&mut thread)?;
        if pool.mode() != Mode::Volatile {
            pool.sync()?;
        }
        let store = Store {
            table: Table::new(pool, roots.shape()),
            seed: roots.seed(),
            next_cas: AtomicU64::new(cas_first),
            cas_limit: AtomicU64::new(roots.cas_limit()),
            oldest_cas: AtomicU64::new(roots.oldest_cas()),
            flush_at: AtomicU32::new(roots.flush_at()),
            usage: Default::default(),
            locks: (0..STRIPES).map(|_| Lock::default()).collect(),
            limit: AtomicU64::new(limit),
            evict,
            shares_pool: AtomicBool::new(false),
            reservations: Mutex::default(),
            wake: upkeep::Wake::default(),
            // A kill may have left lost items, also one before the last clean end. The crawl removes them, so that they take no room.
            crawl: AtomicBool::new(pool.is_in_place()),
            crawler_enabled: AtomicBool::new(true),
            pool: pool.clone(),
            roots,
        };
        store.roots.publish_segments(&store.table);
        store.fit_bound();
        for stripe in 0..STRIPES {
            let (items, bytes, expiring) = store.roots.stripe(stripe);
            store.count(stripe as u64, items as i64, bytes as i64, expiring as i64);
        }
        if store.flush_due(now) {
            store.flush_with(Flush::Due(now), || Ok(thread.begin()?)).map_err(engine_error)?;
        }
        Ok(store)
    }

    /// The pool underneath.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Hash of a key; seeded, so that nobody can aim at one bucket.
    pub fn hash(&self, key: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(key, self.seed)
    }

    /// Locks the stripe of `hash`. Before any transaction.
    pub fn lock(&self, hash: u64) -> Locked<'_> {
        let guard = self.locks[stripe_of(hash)].0.lock();
        Locked { store: self, hash, shape: self.table.shape(), _guard: guard }
    }

    /// A CAS id that no item ever had. Taken under the stripe's lock.
    pub fn new_cas(&self) -> std::result::Result<u64, Failure> {
        let cas = self.next_cas.fetch_add(1, Ordering::Relaxed);
        if cas < self.cas_limit.load(Ordering::Relaxed) {
            return Ok(cas);
        }
        // Thousands of millions of ids are in reserve and the upkeep thread adds to them at half; only a pool that no longer
        // becomes durable gets here.
        self.wake.now();
        Err(Failure::Engine("no CAS ids left: the pool does not become durable any more".into()))
    }

    /// Whether `item` may be seen.
    pub fn life(&self, item: &Item, now: u32) -> Life {
        if item.is_lost() {
            return Life::Lost;
        }
        // A flush that is due comes before all that is stored from now on, so whatever is there now is flushed, even if the log has
        // no space yet to say so.
        if item.cas() < self.oldest_cas.load(Ordering::Relaxed) || self.flush_due(now) {
            Life::Flushed
        } else if self.is_dead(item.cas(), item.expires(), now) {
            Life::Expired
        } else {
            Life::Live
        }
    }

    /// Whether what has this CAS id and expiry time may not be seen any more.
    fn is_dead(&self, cas: u64, expires: u32, now: u32) -> bool {
        cas < self.oldest_cas.load(Ordering::Relaxed) || (expires != 0 && expires <= now)
    }

    /// Items, flushed and expired ones that nobody noticed yet among them.
    pub fn items(&self) -> u64 {
        self.usage.iter().map(|cell| cell.items.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }

    /// Bytes of their blocks.
    pub fn bytes(&self) -> u64 {
        self.usage.iter().map(|cell| cell.bytes.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }

    /// Items that will expire.
    fn expiring(&self) -> i64 {
        self.usage.iter().map(|cell| cell.expiring.load(Ordering::Relaxed)).sum()
    }

    /// `-m` in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes `-m`.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
        self.fit_bound();
        self.wake.now();
    }

    /// Whether it evicts when it is full.
    fn evicts(&self) -> bool {
        self.evict
    }

    /// Lines of the table, and whether it is growing.
    pub fn shape(&self) -> table::Shape {
        self.table.shape()
    }

    /// Asks for a crawl now.
    pub fn crawl(&self) {
        self.crawl.store(true, Ordering::Relaxed);
        self.wake.now();
    }

    /// Lets the crawler run, or stops it.
    pub fn enable_crawler(&self, on: bool) {
        self.crawler_enabled.store(on, Ordering::Relaxed);
    }

    /// Whether the crawler may run.
    pub fn crawler_enabled(&self) -> bool {
        self.crawler_enabled.load(Ordering::Relaxed)
    }

    fn count(&self, hash: u64, items: i64, bytes: i64, expiring: i64) {
        let cell = &self.usage[hash as usize % USAGE_CELLS];
        for (sum, by) in [(&cell.items, items), (&cell.bytes, bytes), (&cell.expiring, expiring)] {
            if by != 0 {
                sum.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    fn flush_due(&self, now: u32) -> bool {
        let at = self.flush_at.load(Ordering::Relaxed);
        at != 0 && at <= now
    }

    /// Carries out a flush whose time has come; called once per batch of requests, before any of them. Where the log has no space for
    /// it, the worker stores nothing until it has.
    pub fn tick(&self, worker: &mut Worker) -> std::result::Result<(), Failure> {
        worker.drop_forgotten_window();
        let at = self.flush_at.load(Ordering::Relaxed);
        if !self.flush_due(worker.now) {
            return Ok(());
        }
        let has_space = worker.thread.has_log_space(0);
        let result = if has_space { self.flush_by(worker, Flush::Due(worker.now)) } else { Err(Failure::NoLogSpace) };
        if !matches!(result, Err(Failure::NoLogSpace)) {
            return result;
        }
        worker.wanted_log = None;
        // From now on it is due for every worker, also one whose clock is a little behind. (Another flush may have come in between.)
        let _ = self.flush_at.compare_exchange(at, OWED, Ordering::Relaxed, Ordering::Relaxed);
        Ok(())
    }

    /// A flush is due and not carried out, and readers see it: nothing may be stored before it.
    fn owes_flush(&self) -> bool {
        self.flush_at.load(Ordering::Relaxed) == OWED
    }

    /// Flushes all items now, or those there will be at `at`. Takes all locks, so that nothing happens at the same time: each
    /// operation is before the flush in every epoch or after it in every epoch.
    pub fn flush(&self, worker: &mut Worker, at: Option<u32>) -> std::result::Result<(), Failure> {
        self.flush_by(worker, at.map_or(Flush::Now, |at| Flush::At { at, now: worker.now }))
    }

    fn flush_by(&self, worker: &mut Worker, flush: Flush) -> std::result::Result<(), Failure> {
        let (thread, wanted) = (&mut worker.thread, &mut worker.wanted_log);
        let epoch = self.flush_with(flush, || try_begin(thread, wanted, 0))?;
        worker.client.written = worker.client.written.max(epoch.unwrap_or(0));
        Ok(())
    }

    /// The epoch in which the marker was written; `None` when there was nothing to do any more.
    fn flush_with<'t>(
        &self,
        flush: Flush,
        begin: impl FnOnce() -> std::result::Result<Tx<'t>, Failure>,
    ) -> std::result::Result<Option<u64>, Failure> {
        let _guards: Vec<MutexGuard<'_, ()>> = self.locks.iter().map(|lock| lock.0.lock()).collect();
        let (oldest, at) = match flush {
            // Another thread saw it due too, and carried it out while this one waited for the locks. What was stored since then
            // was stored after the flush.
            Flush::Due(now) if !self.flush_due(now) => return Ok(None),
            Flush::Now | Flush::Due(_) => (self.new_cas()?, 0),
            // One that is due already is carried out with it.
            Flush::At { at, now } if self.flush_due(now) => (self.new_cas()?, at),
            Flush::At { at, .. } => (self.oldest_cas.load(Ordering::Relaxed), at),
        };
        let tx = begin()?;
        let epoch = tx.epoch();
        // SAFETY: all stripes are locked, and the marker is written here alone.
        unsafe { self.roots.put_flush(&tx, oldest, at) };
        tx.commit();
        self.oldest_cas.store(oldest, Ordering::Relaxed);
        self.flush_at.store(at, Ordering::Relaxed);
        Ok(Some(epoch))
    }
}

/// Why all items are flushed.
#[derive(Clone, Copy)]
enum Flush {
    /// A client asks for it.
    Now,
    /// A client asks for it at a later second; it is now `now`.
    At { at: u32, now: u32 },
    /// A second came for which it had been asked; it is now this second.
    Due(u32),
}

fn engine_error(failure: Failure) -> crate::error::Error {
    crate::error::Error::Config(match failure {
        Failure::NoMemory => "the pool is full".into(),
        Failure::NoLogSpace => "the pool's log is full".into(),
        Failure::Engine(why) => why,
    })
}

fn stripe_of(hash: u64) -> usize {
    hash as usize & (STRIPES - 1)
}

// SAFETY: the raw pointers inside are addresses in the pool's heap, which lives as long as the `Pool` held beside them; every
// access through them follows the locking rules above.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

#[cfg(test)]
mod tests;
