//! The server as a whole: what its threads share, how it starts and ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use mio::Waker;
use parking_lot::Mutex;
use towa_epoch::{Mode, Pool};

use crate::clock::Clock;
use crate::config::Config;
use crate::counters::{Counters, Sums};
use crate::error::Result;
use crate::net::{self, Barrier, Listeners, Mailbox};
use crate::protocol::Limits;
use crate::receiving::Receiving;
use crate::store::{Store, Upkeep, Worker};
use crate::unsent::Unsent;

/// The memcached version whose protocol is spoken, and the server's own.
pub const VERSION: &str = concat!("1.6.18-towa-", env!("CARGO_PKG_VERSION"));

/// Asks a server to end. Clones ask the same server; asking twice does nothing more.
#[derive(Clone, Default)]
pub struct Shutdown(Arc<ShutdownState>);

#[derive(Default)]
struct ShutdownState {
    wanted: AtomicBool,
    wakers: Mutex<Vec<Arc<Waker>>>,
}

impl std::fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shutdown(wanted: {})", self.is_wanted())
    }
}

impl Shutdown {
    /// Asks. Returns at once; [`Handle::join`] returns when it is done. For threads, not for signal handlers.
    pub fn trigger(&self) {
        self.0.wanted.store(true, Ordering::Release);
        for waker in self.0.wakers.lock().iter() {
            let _ = waker.wake();
        }
    }

    /// Whether somebody asked.
    pub fn is_wanted(&self) -> bool {
        self.0.wanted.load(Ordering::Acquire)
    }

    pub(crate) fn add_waker(&self, waker: Arc<Waker>) {
        self.0.wakers.lock().push(waker);
    }
}

/// Counts the connections of a server.
#[derive(Clone, Default)]
pub(crate) struct Seats(Arc<AtomicUsize>);

impl Seats {
    /// Connections there are.
    pub fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One connection's part in the count, for as long as this lives.
pub(crate) struct Seat(Seats);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What all threads of a server share.
pub struct Shared {
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) limits: Limits,
    pub(crate) receiving: Receiving,
    pub(crate) unsent: Unsent,
    pub(crate) config: Config,
    pub(crate) shutdown: Shutdown,
    pub(crate) barrier: Barrier,
    pub(crate) seats: Seats,
    pub(crate) accepting: AtomicBool,
    pub(crate) listen_disabled_us: AtomicU64,
    pub(crate) verbosity: AtomicU32,
    pub(crate) listening: Mutex<Vec<String>>,
    counters: Mutex<Vec<Arc<Counters>>>,
    base: Mutex<Sums>,
}

impl Shared {
    /// Opens the store in `pool` for a server that is told `config`.
    pub fn new(config: Config, pool: &Pool) -> Result<Shared> {
        config.check()?;
        let clock = Arc::new(Clock::default());
        let limit = config.limit_in(pool.heap_range().1);
        check_item_size(&config, pool)?;
        let store = Store::open(pool, limit, config.evict, clock.now())?;
        Ok(Shared {
            store: Arc::new(store),
            clock,
            receiving: Receiving::new(limit, config.item_size_max, config.threads),
            unsent: Unsent::new(limit, config.item_size_max, config.threads),
            limits: Limits { item_size_max: config.item_size_max, ..Limits::default() },
            shutdown: Shutdown::default(),
            barrier: Barrier::default(),
            seats: Seats::default(),
            accepting: AtomicBool::new(true),
            listen_disabled_us: AtomicU64::new(0),
            verbosity: AtomicU32::new(config.verbosity),
            listening: Mutex::default(),
            counters: Mutex::default(),
            base: Mutex::default(),
            config,
        })
    }

    /// A worker on the store, whose counters are summed with the others'.
    pub fn new_worker(&self) -> Result<Worker> {
        let mut worker = Worker::new(self.store.pool(), self.new_counters())?;
        worker.now = self.clock.now();
        Ok(worker)
    }

    /// A seat for one connection more.
    pub(crate) fn take_seat(&self) -> Seat {
        self.seats.0.fetch_add(1, Ordering::Relaxed);
        Seat(self.seats.clone())
    }

    /// A set of counters of one thread.
    pub(crate) fn new_counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.counters.lock().push(Arc::clone(&counters));
        counters
    }

    fn all_sums(&self) -> Sums {
        Sums::of(self.counters.lock().iter().map(|counters| &**counters))
    }

    pub(crate) fn sums(&self) -> Sums {
        self.all_sums().since(&self.base.lock())
    }

    pub(crate) fn reset_counters(&self) {
        *self.base.lock() = self.all_sums();
    }

    pub(crate) fn version(&self) -> &'static str {
        concat!("VERSION 1.6.18-towa-", env!("CARGO_PKG_VERSION"))
    }

    pub(crate) fn set_verbosity(&self, level: u32) {
        self.verbosity.store(level.min(5), Ordering::Relaxed);
    }
}

/// An existing pool may have been made for smaller items.
fn check_item_size(config: &Config, pool: &Pool) -> Result<()> {
    let log = pool.stats().log_capacity;
    if pool.mode() == Mode::Volatile || log == 0 { Ok(()) } else { config.check_log(log) }
}

/// A server.
#[derive(Debug)]
pub struct Server;

/// A running server.
pub struct Handle {
    /// First TCP address it listens on; `None` on a Unix socket alone.
    pub addr: Option<SocketAddr>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    upkeep: Upkeep,
    barrier: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({:?}, {} threads)", self.addr, self.threads.len())
    }
}

impl Server {
    /// Starts a server on `pool` in this process. It answers when this returns.
    pub fn start(config: Config, pool: &Pool) -> Result<Handle> {
        let shared = Arc::new(Shared::new(config, pool)?);
        net::raise_descriptor_limit(shared.config.max_connections);
        let listeners = Listeners::bind(&shared.config)?;
        let addr = listeners.address();
        *shared.listening.lock() = listeners.names();
        let (store, clock) = (Arc::clone(&shared.store), Arc::clone(&shared.clock));
        let upkeep = Upkeep::start(store, shared.new_worker()?, clock, shared.config.prefault)?;
        let (mut threads, mut mailboxes) = (Vec::new(), Vec::new());
        for index in 0..shared.config.threads {
            let (mailbox, thread) = net::start_worker(index, &shared)?;
            shared.shutdown.add_waker(mailbox.waker());
            mailboxes.push(mailbox);
            threads.push(thread);
        }
        let barrier = Barrier::start(Arc::clone(&shared), mailboxes.iter().map(|mailbox: &Mailbox| mailbox.waker()).collect())?;
        threads.push(net::start_acceptor(&shared, listeners, mailboxes)?);
        Ok(Handle { addr, shared, threads, upkeep, barrier: Some(barrier) })
    }
}

impl Handle {
    /// Something to end the server with, from another thread.
    pub fn stopper(&self) -> Shutdown {
        self.shared.shutdown.clone()
    }

    /// Asks the server to end: no new connections, answers to what was received, then [`join`](Self::join) returns.
    pub fn shutdown(&self) {
        self.shared.shutdown.trigger();
    }

    /// Waits until the server has ended, then makes what it did durable. The pool stays open; who started the server closes it.
    pub fn join(mut self) -> Result<()> {
        let mut panicked = false;
        for thread in self.threads.drain(..) {
            panicked |= thread.join().is_err();
        }
        self.upkeep.stop();
        self.shared.barrier.stop();
        if let Some(thread) = self.barrier.take() {
            panicked |= thread.join().is_err();
        }
        if panicked {
            log::error!("a server thread had panicked; see above");
        }
        let pool = self.shared.store.pool();
        if pool.mode() != Mode::Volatile {
            pool.sync()?;
        }
        Ok(())
    }
}
