//! The acceptor: takes clients in and deals them out to the workers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, io::Write};

use mio::{Events, Interest, Poll, Token, Waker};

use super::listen::Listeners;
use super::worker::Mailbox;
use crate::counters::{Counter, Counters};
use crate::error::{Result, io as tried};
use crate::server::Shared;

/// How soon an acceptor that had to stop looks again.
const RETRY: Duration = Duration::from_millis(10);
const FULL: &[u8] = b"ERROR Too many open connections\r\n";

struct Acceptor {
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    listeners: Listeners,
    mailboxes: Vec<Mailbox>,
    next: usize,
    /// Since when no connection is taken, for want of room or descriptors.
    stopped: Option<Instant>,
}

/// Starts the acceptor.
pub fn start(shared: &Arc<Shared>, mut listeners: Listeners, mailboxes: Vec<Mailbox>) -> Result<JoinHandle<()>> {
    let poll = Poll::new().map_err(tried("make a poll"))?;
    for (index, listener) in listeners.0.iter_mut().enumerate() {
        let registered = poll.registry().register(listener.source(), Token(index), Interest::READABLE);
        registered.map_err(tried("poll a listening socket"))?;
    }
    let waker = Waker::new(poll.registry(), Token(listeners.0.len())).map_err(tried("make a waker"))?;
    shared.shutdown.add_waker(Arc::new(waker));
    let counters = shared.new_counters();
    let acceptor = Acceptor { shared: Arc::clone(shared), counters, listeners, mailboxes, next: 0, stopped: None };
    let thread = std::thread::Builder::new().name("towa-accept".into());
    thread.spawn(move || acceptor.run(poll)).map_err(tried("start the acceptor"))
}

impl Acceptor {
    fn run(mut self, mut poll: Poll) {
        let mut events = Events::with_capacity(16);
        while !self.shared.shutdown.is_wanted() {
            let timeout = self.stopped.map(|_| RETRY);
            if let Err(error) = poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                log::error!("the acceptor cannot poll: {error}");
                std::thread::sleep(RETRY);
            }
            // Edge-triggered: after an event, or a pause, take all who wait.
            self.accept_all();
        }
    }

    fn accept_all(&mut self) {
        for index in 0..self.listeners.0.len() {
            while !self.shared.shutdown.is_wanted() {
                let full = self.shared.seats.taken() >= self.shared.config.max_connections;
                if full && !self.shared.config.reject_when_full {
                    return self.stop("all connections (-c) are in use");
                }
                match self.listeners.0[index].accept() {
                    Ok(mut stream) if full => {
                        self.counters.inc(Counter::Rejected);
                        let _ = stream.write(FULL);
                    }
                    Ok(stream) => {
                        stream.tune();
                        self.counters.inc(Counter::Connections);
                        self.mailboxes[self.next].send(stream, self.shared.take_seat());
                        self.next = (self.next + 1) % self.mailboxes.len();
                    }
                    Err(error) => match error.raw_os_error() {
                        Some(libc::EAGAIN) => break,
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                            return self.stop(&format!("{error}"));
                        }
                        // The client went away meanwhile.
                        Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO) => {}
                        _ => return self.stop(&format!("{error}")),
                    },
                }
            }
        }
        self.go_on();
    }

    fn stop(&mut self, why: &str) {
        if self.stopped.is_none() {
            log::warn!("no connections are taken for now: {why}");
            self.counters.inc(Counter::ListenDisabled);
            self.stopped = Some(Instant::now());
            self.shared.accepting.store(false, Relaxed);
        }
    }

    fn go_on(&mut self) {
        if let Some(since) = self.stopped.take() {
            self.shared.accepting.store(true, Relaxed);
            self.shared.listen_disabled_us.fetch_add(since.elapsed().as_micros() as u64, Relaxed);
        }
    }
}
