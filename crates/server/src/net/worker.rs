//! A worker thread: a poll loop over its share of the connections.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};
use parking_lot::Mutex;

use super::connection::{Connection, Fate, Loan, SCRATCH};
use super::stream::Stream;
use crate::counters::Counter;
use crate::error::{Result, io as tried};
use crate::server::Shared;
use crate::store::Worker as StoreWorker;

const WAKE: Token = Token(usize::MAX);
/// How often connections are looked over for overdue ones.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a stopping worker sleeps between looks at those it waits for.
const DRAIN_TICK: Duration = Duration::from_millis(10);

/// How the acceptor hands connections to a worker.
#[derive(Clone)]
pub struct Mailbox {
    incoming: Arc<Mutex<Vec<Stream>>>,
    waker: Arc<Waker>,
}

impl Mailbox {
    /// Hands over a connection.
    pub fn send(&self, stream: Stream) {
        self.incoming.lock().push(stream);
        let _ = self.waker.wake();
    }

    /// What wakes the worker.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }
}

struct Worker {
    index: usize,
    shared: Arc<Shared>,
    store: StoreWorker,
    mailbox: Mailbox,
    poll: Poll,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    /// Those whose turn was over before their input was.
    again: Vec<usize>,
    parked: Vec<usize>,
    scratch: Box<[u8]>,
    out: Vec<u8>,
    began: Instant,
    tick: u32,
    /// A delayed flush failed, and that was said.
    flush_fails: bool,
}

/// Starts worker `index`.
pub fn start(index: usize, shared: &Arc<Shared>) -> Result<(Mailbox, JoinHandle<()>)> {
    let poll = Poll::new().map_err(tried("make a poll"))?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(tried("make a waker"))?);
    let mailbox = Mailbox { incoming: Arc::default(), waker };
    let mut worker = Worker {
        index,
        shared: Arc::clone(shared),
        store: shared.new_worker()?,
        mailbox: mailbox.clone(),
        poll,
        connections: Vec::new(),
        free: Vec::new(),
        again: Vec::new(),
        parked: Vec::new(),
        scratch: vec![0; SCRATCH].into(),
        out: Vec::with_capacity(SCRATCH),
        began: Instant::now(),
        tick: 0,
        flush_fails: false,
    };
    let thread = std::thread::Builder::new().name(format!("towa-worker-{index}"));
    let thread = thread.spawn(move || worker.run()).map_err(tried("start a worker"))?;
    Ok((mailbox, thread))
}

impl Worker {
    fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        let mut looked = 0;
        while !self.shared.shutdown.is_wanted() {
            let timeout = if self.again.is_empty() { LOOK_EVERY } else { Duration::ZERO };
            self.round(&mut events, timeout);
            if self.tick != looked {
                looked = self.tick;
                self.drop_overdue();
            }
        }
        self.drain(&mut events);
    }

    /// One poll and everything it brings.
    fn round(&mut self, events: &mut Events, timeout: Duration) {
        if let Err(error) = self.poll.poll(events, Some(timeout))
            && error.kind() != io::ErrorKind::Interrupted
        {
            log::error!("worker {} cannot poll: {error}", self.index);
            std::thread::sleep(DRAIN_TICK);
        }
        self.renew_time();
        let again = std::mem::take(&mut self.again);
        for event in events.iter() {
            if event.token() == WAKE {
                self.take_in();
                self.look_at_parked();
                continue;
            }
            let index = event.token().0;
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                connection.ends |= event.is_read_closed() || event.is_error();
                self.turn(index);
            }
        }
        for index in again {
            self.turn(index);
        }
    }

    /// Once per batch: the time, and a flush that has come due.
    fn renew_time(&mut self) {
        self.tick = self.began.elapsed().as_secs() as u32;
        self.store.now = self.shared.clock.now();
        match self.shared.store.tick(&mut self.store) {
            Ok(()) => self.flush_fails = false,
            // It stays due, and fails again with every batch of requests: said once, not for each.
            Err(failure) if !std::mem::replace(&mut self.flush_fails, true) => {
                log::error!("a delayed flush_all fails: {failure:?}");
            }
            Err(_) => {}
        }
    }

    fn take_in(&mut self) {
        let incoming = std::mem::take(&mut *self.mailbox.incoming.lock());
        for stream in incoming {
            let index = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let mut connection = Box::new(Connection::new(stream, self.tick));
            match connection.stream().register(self.poll.registry(), Token(index)) {
                Ok(()) => self.connections[index] = Some(connection),
                Err(error) => {
                    log::warn!("a connection cannot be polled: {error}");
                    self.free.push(index);
                    self.shared.connections.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// Serves one connection. A panic in there costs that connection alone.
    fn turn(&mut self, index: usize) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let mut loan =
            Loan { shared: &self.shared, worker: &mut self.store, scratch: &mut self.scratch, out: &mut self.out, tick: self.tick };
        match catch_unwind(AssertUnwindSafe(|| connection.turn(&mut loan))) {
            Ok(Fate::Wait) => {}
            Ok(Fate::Again) => self.again.push(index),
            Ok(Fate::Park(epoch)) => {
                self.parked.push(index);
                self.shared.barrier.wait_for(epoch, self.index);
            }
            Ok(Fate::Drop) => self.drop_connection(index),
            Err(_) => {
                self.out.clear();
                self.store.counters.inc(Counter::Panics);
                log::error!("a request made worker {} panic; its connection is closed", self.index);
                self.drop_connection(index);
            }
        }
    }

    fn look_at_parked(&mut self) {
        let failed = self.shared.barrier.failure();
        for index in std::mem::take(&mut self.parked) {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            let mut loan = Loan {
                shared: &self.shared,
                worker: &mut self.store,
                scratch: &mut self.scratch,
                out: &mut self.out,
                tick: self.tick,
            };
            if connection.unpark(&mut loan, failed.as_deref()) {
                self.turn(index);
            } else if connection.parked.is_some() {
                self.parked.push(index);
            }
        }
    }

    fn drop_connection(&mut self, index: usize) {
        if let Some(mut connection) = self.connections[index].take() {
            connection.stream().deregister(self.poll.registry());
            self.free.push(index);
            self.shared.connections.fetch_sub(1, Relaxed);
        }
    }

    fn drop_overdue(&mut self) {
        for index in 0..self.connections.len() {
            let overdue = self.connections[index].as_ref().and_then(|connection| connection.overdue(&self.shared, self.tick));
            if let Some(counter) = overdue {
                self.store.counters.inc(counter);
                self.drop_connection(index);
            }
        }
    }

    /// The end: serves what was received already, waits a little for answers to be taken and epochs to become durable, closes.
    fn drain(&mut self, events: &mut Events) {
        let deadline = Instant::now() + self.shared.config.drain_timeout;
        self.take_in();
        for index in 0..self.connections.len() {
            self.turn(index);
        }
        while self.connections.iter().flatten().any(|connection| connection.is_busy()) && Instant::now() < deadline {
            if !self.parked.is_empty() {
                self.shared.store.pool().request_checkpoint();
            }
            self.round(events, DRAIN_TICK);
        }
        for index in 0..self.connections.len() {
            self.drop_connection(index);
        }
    }
}
