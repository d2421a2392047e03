//! The connections of one worker: who is served when, and what they are lent.
//!
//! What must always hold: whatever happens to one connection - an error of its socket, a panic, a time limit - ends that one, with
//! all that it owns, and nothing else. What the worker keeps (scratch, spare memory, its side of the store) holds nothing of it.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::buffers::{Scratch, Spare};
use super::connection::{Connection, Fate, Loan};
use super::slots::{Key, Slots};
use super::stream::Transport;
use crate::budget::Budget;
use crate::counters::Counter;
use crate::error::Result;
use crate::receiving::PATIENCE_S;
use crate::server::Shared;
use crate::store::{Failure, Worker as StoreWorker};

/// Transactions of one connection while others wait for log space.
const STORES_PER_TURN: u32 = 32;
/// Transactions of one connection otherwise.
const UNLIMITED: u32 = u32::MAX;

/// Between two requests that are refused for want of memory, if the first held some: what it gave back may do for the second.
const REFUSES_EVERY: Duration = Duration::from_millis(20);

/// Connections over `S`, served by one thread.
pub struct Clients<S> {
    /// The worker's number.
    index: usize,
    shared: Arc<Shared>,
    store: StoreWorker,
    /// How much output the connections may leave unsent.
    unsent: Arc<Budget>,
    connections: Slots<Box<Connection<S>>>,
    /// Those whose turn was over before their input was.
    again: Vec<Key>,
    parked: Vec<Key>,
    /// Those that wait for log space, in the order in which they get it.
    queue: VecDeque<Key>,
    /// The log had no space for the first of them when it was last looked at.
    is_short: bool,
    /// Those that wait for memory to receive in, in the order in which they get it.
    starving: VecDeque<Key>,
    /// When one of them was last refused.
    refused: Option<Instant>,
    scratch: Scratch,
    spare: Spare,
    tick: u32,
}

impl<S: Transport> Clients<S> {
    /// None yet.
    pub fn new(index: usize, shared: &Arc<Shared>) -> Result<Clients<S>> {
        Ok(Clients {
            index,
            shared: Arc::clone(shared),
            store: shared.new_worker()?,
            unsent: shared.unsent.of(index),
            connections: Slots::default(),
            again: Vec::new(),
            parked: Vec::new(),
            queue: VecDeque::new(),
            is_short: false,
            starving: VecDeque::new(),
            refused: None,
            scratch: Scratch::default(),
            spare: Spare::default(),
            tick: 0,
        })
    }

    /// A new connection, over what `connect` makes of the key that it will have.
    pub fn admit(&mut self, connect: impl FnOnce(Key) -> io::Result<S>) -> io::Result<Key> {
        let tick = self.tick;
        self.connections.insert(|key| Ok(Box::new(Connection::new(connect(key)?, tick))))
    }

    /// Once per batch: seconds since the worker started, the time of day, and a flush that has come due.
    pub fn renew_time(&mut self, tick: u32) -> std::result::Result<(), Failure> {
        self.tick = tick;
        self.store.now = self.shared.clock.now();
        if !self.queue.is_empty() {
            self.store.keep_window();
        }
        self.shared.store.tick(&mut self.store)
    }

    /// Serves a connection after an event. `ends`: the peer has closed its side.
    pub fn event(&mut self, key: Key, ends: bool) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.ends |= ends;
            // One that has more to do has its turn with the others that have: one turn a round, however often its client sends.
            if !connection.has_more {
                self.turn(key);
            }
        }
    }

    /// Whether some have more to do, with or without an event.
    pub fn have_more(&self) -> bool {
        !self.again.is_empty()
    }

    /// Those that have; a turn for each is due.
    pub fn take_again(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.again)
    }

    /// Serves one connection. While others wait for log space, it may not begin a transaction before them.
    pub fn turn(&mut self, key: Key) {
        self.turn_behind_queue(key, Connection::turn);
    }

    /// Serves one connection by `act`, which may not begin a transaction while others wait for log space.
    fn turn_behind_queue(&mut self, key: Key, act: impl FnOnce(&mut Connection<S>, &mut Loan<'_>) -> Fate) {
        self.store.allow(if self.queue.is_empty() { UNLIMITED } else { 0 });
        self.turn_by(key, act);
    }

    /// Serves one connection by `act`. A panic in there costs that connection alone.
    fn turn_by(&mut self, key: Key, act: impl FnOnce(&mut Connection<S>, &mut Loan<'_>) -> Fate) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.has_more = false;
        }
        match self.guarded(key, act) {
            None | Some(Fate::Wait) => {}
            Some(Fate::Queue) => {
                self.is_short |= self.queue.is_empty();
                self.queue.push_back(key);
            }
            Some(Fate::Starve) => self.starving.push_back(key),
            Some(Fate::Again) => {
                if let Some(connection) = self.connections.get_mut(key) {
                    connection.has_more = true;
                }
                self.again.push(key);
            }
            Some(Fate::Park(epoch)) => {
                self.parked.push(key);
                self.shared.barrier.wait_for(epoch, self.index);
            }
            Some(Fate::Drop) => drop(self.connections.remove(key)),
        }
        self.make_room_for_output_of(key);
    }

    /// Closes connections with the most unsent output, this one among them, until there is room for what this one's socket did not take.
    fn make_room_for_output_of(&mut self, key: Key) {
        let unsent = &self.unsent;
        while self.connections.get_mut(key).is_some_and(|connection| !connection.has_room_for_output(unsent)) {
            let Some(largest) = self.connections.max_by_key(|connection| connection.in_the_way(self.tick)) else { return };
            self.connections.remove(largest);
            self.store.counters.inc(Counter::RequestKicks);
        }
    }

    /// Calls `act` with the connection and the loan. `None`: it is gone, if only now, by a panic.
    fn guarded<R>(&mut self, key: Key, act: impl FnOnce(&mut Connection<S>, &mut Loan<'_>) -> R) -> Option<R> {
        let connection = self.connections.get_mut(key)?;
        let mut loan = Loan {
            shared: &self.shared,
            worker: &mut self.store,
            scratch: &mut self.scratch,
            spare: &mut self.spare,
            unsent: &self.unsent,
            tick: self.tick,
        };
        if let Ok(result) = catch_unwind(AssertUnwindSafe(|| act(connection, &mut loan))) {
            return Some(result);
        }
        self.store.counters.inc(Counter::Panics);
        log::error!("a request made worker {} panic; its connection is closed", self.index);
        self.connections.remove(key);
        None
    }

    /// Goes on with connections whose epoch is durable, or never will be.
    pub fn look_at_parked(&mut self) {
        let failed = self.shared.barrier.failure();
        for key in std::mem::take(&mut self.parked) {
            match self.guarded(key, |connection, loan| connection.unpark(loan, failed.as_deref())) {
                Some(true) => self.turn(key),
                Some(false) => self.parked.push(key),
                None => {}
            }
        }
    }

    /// Goes on with connections that wait for log space, in turn, as long as there is some. Each stores a little and goes to the end of
    /// the queue, so that one with many requests does not keep the others waiting; when the log has had space for all of them, as much
    /// as it likes.
    pub fn go_on_with_queue(&mut self) {
        let was_short = std::mem::replace(&mut self.is_short, false);
        let allowed = if was_short { STORES_PER_TURN } else { UNLIMITED };
        for _ in 0..self.queue.len() {
            let Some(&key) = self.queue.front() else { break };
            let wanted = self.connections.get_mut(key).and_then(|connection| connection.wanted_log());
            self.is_short = wanted.is_some_and(|bytes| !self.store.thread.has_log_space(bytes));
            if self.is_short {
                break;
            }
            self.queue.pop_front();
            if wanted.is_none() {
                continue;
            }
            self.store.allow(allowed);
            self.turn_by(key, Connection::go_on);
            // Another thread took the space in that moment: it stays the first.
            if self.store.allowed() == allowed && self.queue.back() == Some(&key) {
                self.queue.rotate_right(1);
                self.is_short = true;
                break;
            }
        }
    }

    /// Goes on with connections that wait for memory to receive in, in turn, as long as there is some. Where there is none the first is
    /// refused, if it has waited for long enough and no other one gave memory back by that a moment ago.
    pub fn go_on_with_starving(&mut self) {
        for _ in 0..self.starving.len() {
            let Some(&key) = self.starving.front() else { break };
            let connection = self.connections.get_mut(key);
            let wanted = connection.and_then(|connection| Some((connection.wanted_memory()?, connection.held())));
            let mut stays = false;
            if let Some(((lacking, since), held)) = wanted {
                let has_memory = self.shared.receiving.budget.left() >= lacking;
                let is_refused = !has_memory && self.refuses_now(since);
                if !has_memory && !is_refused {
                    break;
                }
                if is_refused && held > 0 {
                    self.refused = Some(Instant::now());
                }
                self.turn_behind_queue(key, |connection, loan| connection.go_on_receiving(loan, is_refused));
                let stands = self.connections.get_mut(key).and_then(|connection| connection.wanted_memory());
                stays = stands.is_some_and(|(_, now)| now == since);
            }
            self.starving.pop_front();
            // Another worker took the memory in that moment: it stays the first.
            if stays {
                self.starving.rotate_right(1);
                break;
            }
        }
    }

    fn refuses_now(&self, since: Instant) -> bool {
        since.elapsed() > Duration::from_secs(PATIENCE_S) && self.refused.is_none_or(|refused| refused.elapsed() > REFUSES_EVERY)
    }

    /// Whether some wait for memory to receive in.
    pub fn are_starving(&self) -> bool {
        !self.starving.is_empty()
    }

    /// Whether some wait for log space, and if so, whether there is none (or it is their turn already).
    pub fn are_short_of_log(&self) -> Option<bool> {
        (!self.queue.is_empty()).then_some(self.is_short)
    }

    /// Whether some wait for an epoch.
    pub fn are_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Closes those that are silent, or slow, for too long.
    pub fn drop_overdue(&mut self) {
        for key in self.connections.keys(|connection| connection.overdue(&self.shared, self.tick).is_some()) {
            // The others may have more time, since one is gone.
            let connection = self.connections.get_mut(key);
            let Some(counter) = connection.and_then(|connection| connection.overdue(&self.shared, self.tick)) else { continue };
            self.connections.remove(key);
            self.store.counters.inc(counter);
        }
    }

    /// A turn for everyone who has none coming.
    pub fn turn_all(&mut self) {
        self.connections.keys(|connection| !connection.has_more).into_iter().for_each(|key| self.turn(key));
    }

    /// Whether a stopping server has to wait for some.
    pub fn are_busy(&self) -> bool {
        self.connections.values().any(|connection| connection.is_busy())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.connections.values().count()
    }
}
