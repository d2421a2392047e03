//! A worker thread: a poll loop over its share of the connections.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry, Token, Waker};
use parking_lot::Mutex;

use super::clients::Clients;
use super::stream::{Registered, Stream};
use crate::error::{Result, io as tried};
use crate::server::{Seat, Shared};

const WAKE: Token = Token(usize::MAX);
/// How often connections are looked over for overdue ones.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a worker sleeps between looks at the log, or the memory, that connections wait for.
const QUEUE_TICK: Duration = Duration::from_millis(1);
/// How long a stopping worker sleeps between looks at those it waits for.
const DRAIN_TICK: Duration = Duration::from_millis(10);

/// How the acceptor hands connections to a worker.
#[derive(Clone)]
pub struct Mailbox {
    incoming: Arc<Mutex<Vec<(Stream, Seat)>>>,
    waker: Arc<Waker>,
}

impl Mailbox {
    /// Hands over a connection.
    pub fn send(&self, stream: Stream, seat: Seat) {
        self.incoming.lock().push((stream, seat));
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
    mailbox: Mailbox,
    poll: Poll,
    registry: Arc<Registry>,
    clients: Clients<Registered>,
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
    let registry = poll.registry().try_clone().map_err(tried("make a poll"))?;
    let mut worker = Worker {
        index,
        shared: Arc::clone(shared),
        mailbox: mailbox.clone(),
        poll,
        registry: Arc::new(registry),
        clients: Clients::new(index, shared)?,
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
            let timeout = match (self.clients.have_more(), self.clients.are_short_of_log()) {
                (true, _) | (_, Some(false)) => Duration::ZERO,
                (_, Some(true)) => QUEUE_TICK,
                _ if self.clients.are_starving() => QUEUE_TICK,
                _ => LOOK_EVERY,
            };
            self.round(&mut events, timeout);
            if self.tick != looked {
                looked = self.tick;
                self.clients.drop_overdue();
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
        let again = self.clients.take_again();
        for event in events.iter() {
            if event.token() == WAKE {
                self.take_in();
                self.clients.look_at_parked();
            } else {
                self.clients.event(event.token().into(), event.is_read_closed() || event.is_error());
            }
        }
        again.into_iter().for_each(|key| self.clients.turn(key));
        self.clients.go_on_with_queue();
        self.clients.go_on_with_starving();
    }

    fn renew_time(&mut self) {
        self.tick = self.began.elapsed().as_secs() as u32;
        match self.clients.renew_time(self.tick) {
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
        for (stream, seat) in incoming {
            let connect = |key| Registered::new(stream, seat, &self.registry, Token::from(key));
            if let Err(error) = self.clients.admit(connect) {
                log::warn!("a connection cannot be polled: {error}");
            }
        }
    }

    /// The end: serves what was received already, waits a little for answers to be taken and epochs to become durable. Then the
    /// worker goes, and its connections with it.
    fn drain(&mut self, events: &mut Events) {
        let deadline = Instant::now() + self.shared.config.drain_timeout;
        self.take_in();
        self.clients.turn_all();
        while (self.clients.are_busy() || self.clients.have_more()) && Instant::now() < deadline {
            if self.clients.are_parked() {
                self.shared.store.pool().request_checkpoint();
            }
            self.round(events, if self.clients.have_more() { Duration::ZERO } else { DRAIN_TICK });
        }
    }
}
