//! One client's connection: its stream, its session, and the bytes in between.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

use super::buffers::{Output, SCRATCH, Scratch, Spare};
use super::stream::Transport;
use crate::budget::{Budget, Share};
use crate::commands::{Progress, Session};
use crate::counters::Counter;
use crate::receiving::{KEEP, PATIENCE_S, Receiving, Standing, WAITS_S};
use crate::server::Shared;
use crate::store::Worker;
use crate::unsent;

/// Reads in one turn, so that one busy client does not hold up the others of its worker.
const READS_PER_TURN: usize = 8;
/// Room for the answer to `durable`, which may be a reason.
const ANSWER_TO_DURABLE: usize = 1024;
/// Bytes that earn a slow request another second.
const BYTES_PER_SECOND_MIN: u64 = 4096;

/// What a worker lends to the connection it serves. None of it keeps bytes of a connection.
pub struct Loan<'a> {
    /// The server.
    pub shared: &'a Shared,
    /// The worker's side of the store.
    pub worker: &'a mut Worker,
    /// Where input is read to.
    pub scratch: &'a mut Scratch,
    /// Memory for output.
    pub spare: &'a mut Spare,
    /// How much output its connections may leave unsent.
    pub unsent: &'a Arc<Budget>,
    /// Seconds since the worker started.
    pub tick: u32,
}

/// What becomes of a connection after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Wait for the next event.
    Wait,
    /// There may be more at once: another turn after the others had theirs.
    Again,
    /// Wait until this epoch is durable.
    Park(u64),
    /// Wait for log space, behind those that wait already.
    Queue,
    /// Wait for memory to receive in, behind those that wait already.
    Starve,
    /// Close it.
    Drop,
}

/// One connection.
pub struct Connection<S> {
    stream: S,
    session: Session,
    /// Received, not done with.
    input: Vec<u8>,
    /// Whether `input` holds bytes that the session has not seen, or may go on with.
    unfed: bool,
    /// Bytes that the session needs at least.
    need: usize,
    /// Replies to be sent.
    output: Output,
    /// Its part of the memory for requests that arrive or wait, beside what the session holds for the one that arrives.
    input_share: Share,
    /// Its part of the memory for replies that sockets do not take.
    output_share: Share,
    /// The client did not take all of some batch's output at once. It gets less at a time from then on, and so holds less.
    is_read_slowly: bool,
    closing: bool,
    /// The epoch it waits for.
    pub parked: Option<u64>,
    /// Bytes of log it waits for, and since when. Without a time: for its turn behind others that wait.
    wants_log: Option<(usize, Option<Instant>)>,
    /// It stands still.
    wants_memory: Option<WantsMemory>,
    /// The peer has closed its side, says the event: read until the end.
    pub ends: bool,
    /// Its turn was over before its input was: it is among those that have another one.
    pub has_more: bool,
    /// Last request's time.
    active: u32,
    /// Since when a request has been arriving, and how many bytes came since.
    arriving: Option<(u32, u64)>,
    /// Since when the socket takes no output.
    stuck: Option<u32>,
    /// Since when there has been output, all the time.
    unsent_since: Option<u32>,
    /// Bytes were received, or done with, in this turn.
    has_moved: bool,
}

/// What a connection that stands still waits for.
struct WantsMemory {
    /// Bytes that it lacks to go on receiving.
    lacking: u64,
    since: Instant,
    _standing: Standing,
}

impl<S: Transport> Connection<S> {
    /// A new connection.
    pub fn new(stream: S, tick: u32) -> Connection<S> {
        Connection {
            stream,
            session: Session::default(),
            input: Vec::new(),
            unfed: false,
            need: 1,
            output: Output::default(),
            input_share: Share::default(),
            output_share: Share::default(),
            is_read_slowly: false,
            closing: false,
            parked: None,
            wants_log: None,
            wants_memory: None,
            ends: false,
            has_more: false,
            active: tick,
            arriving: None,
            stuck: None,
            unsent_since: None,
            has_moved: false,
        }
    }

    /// Sends, reads and serves as much as there is, within a turn's bounds.
    pub fn turn(&mut self, loan: &mut Loan<'_>) -> Fate {
        loan.worker.begin_turn();
        for _ in 0..READS_PER_TURN {
            match self.step(loan) {
                Ok(None) => {}
                Ok(Some(fate)) => return fate,
                Err(_) => return Fate::Drop,
            }
        }
        loan.worker.counters.inc(Counter::Yields);
        Fate::Again
    }

    /// One read, one batch of requests, one write. `None`: go on.
    fn step(&mut self, loan: &mut Loan<'_>) -> io::Result<Option<Fate>> {
        if !self.send(loan)? || self.waits() {
            return Ok(Some(Fate::Wait));
        }
        if self.closing {
            return Ok(Some(Fate::Drop));
        }
        let (progress, drained) = if self.unfed {
            (self.feed_own(loan, 0), false)
        } else {
            match self.receive(loan) {
                Ok(Some(outcome)) => outcome,
                Ok(None) => return Ok(Some(Fate::Drop)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(Fate::Wait)),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        let sent = self.send(loan)?;
        self.is_read_slowly |= !sent;
        Ok(match progress {
            Progress::More(need) => {
                self.need = need;
                (drained || !sent).then_some(Fate::Wait)
            }
            Progress::Full => (!sent).then_some(Fate::Wait),
            Progress::Parked(epoch) => {
                self.parked = Some(epoch);
                Some(Fate::Park(epoch))
            }
            Progress::Pause => {
                loan.worker.counters.inc(Counter::Yields);
                Some(Fate::Again)
            }
            Progress::WantsLog(bytes) => {
                let is_short = !loan.worker.thread.has_log_space(bytes);
                self.wants_log = Some((bytes, is_short.then(Instant::now)));
                Some(Fate::Queue)
            }
            Progress::WantsMemory(lacking) => {
                let _standing = loan.shared.receiving.stand_still();
                self.wants_memory = Some(WantsMemory { lacking, since: Instant::now(), _standing });
                Some(Fate::Starve)
            }
            Progress::Close => {
                self.closing = true;
                Some(if sent { Fate::Drop } else { Fate::Wait })
            }
        })
    }

    /// Reads behind what is left over, into scratch or, for large values, into the connection's own buffer, and feeds the session.
    /// `None` at the end of the stream. Tells, too, whether the socket is known to be empty.
    fn receive(&mut self, loan: &mut Loan<'_>) -> io::Result<Option<(Progress, bool)>> {
        // A short read has emptied the socket: the next event will tell of more. Unless its end is known to come.
        let ends = self.ends;
        let drained = |read: usize, room: usize| read < room && !ends;
        let left = self.input.len();
        if left + self.need <= SCRATCH {
            let most = self.need.max(loan.shared.receiving.most_beyond());
            let received = loan.scratch.receive(&self.input, most, &mut self.stream)?;
            if received.read == 0 {
                return Ok(None);
            }
            loan.worker.counters.add(Counter::BytesRead, received.read as u64);
            let replies = self.output.replies(loan.spare);
            let enough = unsent::enough(loan.unsent, self.is_read_slowly);
            let (done, progress) = self.session.feed(loan.shared, loan.worker, received.bytes, enough, replies);
            self.input.clear();
            // Exactly that: it would double otherwise.
            self.input.reserve_exact(received.bytes.len() - done);
            self.input.extend_from_slice(&received.bytes[done..]);
            self.after_feed(loan.shared, progress, done, received.read, loan.tick);
            return Ok(Some((progress, drained(received.read, received.room))));
        }
        // At most doubling: a client that announces much and sends little costs little. Not less than at other times: of a line one
        // knows only that its end is still to come.
        let covered = (self.session.held() as usize).saturating_sub(left);
        let room = self.need.clamp(SCRATCH, left.max(SCRATCH)).min(covered.max(loan.shared.receiving.most_beyond()));
        let read = self.stream.read_more(&mut self.input, room)?;
        if read == 0 {
            return Ok(None);
        }
        loan.worker.counters.add(Counter::BytesRead, read as u64);
        Ok(Some((self.feed_own(loan, read), drained(read, room))))
    }

    fn feed_own(&mut self, loan: &mut Loan<'_>, received: usize) -> Progress {
        let replies = self.output.replies(loan.spare);
        let enough = unsent::enough(loan.unsent, self.is_read_slowly);
        let (done, progress) = self.session.feed(loan.shared, loan.worker, &self.input, enough, replies);
        self.input.drain(..done);
        self.after_feed(loan.shared, progress, done, received, loan.tick);
        progress
    }

    fn after_feed(&mut self, shared: &Shared, progress: Progress, done: usize, received: usize, tick: u32) {
        self.unfed = !matches!(progress, Progress::More(_));
        self.has_moved |= done + received > 0;
        // Also where a little of the next request came with a large value.
        if self.input.len() < self.input.capacity() / 4 && self.input.capacity() > KEEP {
            self.input.shrink_to_fit();
        }
        let beside = (self.input.capacity() as u64).saturating_sub(self.session.held());
        self.input_share.become_of(&shared.receiving.budget, if beside > 2 * KEEP as u64 { beside } else { 0 });
        let moved_on = done > 0 && !self.session.is_swallowing();
        if moved_on {
            self.active = tick;
        }
        let is_arriving =
            matches!(progress, Progress::More(_) | Progress::WantsMemory(_)) && self.session.is_mid_request(self.input.len());
        self.arriving = match self.arriving {
            _ if !is_arriving => None,
            Some((since, bytes)) if !moved_on => Some((since, bytes + received as u64)),
            _ => Some((tick, 0)),
        };
    }

    /// Sends as much output as the socket takes; whether that was all.
    fn send(&mut self, loan: &mut Loan<'_>) -> io::Result<bool> {
        if self.output.is_empty() {
            self.settle(loan);
            self.stuck = None;
            return Ok(true);
        }
        let mut sent = 0;
        let result = self.output.send(&mut self.stream, &mut sent);
        loan.worker.counters.add(Counter::BytesWritten, sent);
        result?;
        self.settle(loan);
        let is_all = self.output.is_empty();
        self.stuck = match self.stuck {
            _ if is_all => None,
            Some(since) if sent == 0 => Some(since),
            _ => Some(loan.tick),
        };
        let since = self.unsent_since.unwrap_or(loan.tick);
        self.unsent_since = (!is_all).then_some(since);
        if is_all {
            self.excuse(loan.tick - since, loan.tick);
        }
        Ok(is_all)
    }

    /// Gives back the memory that what is not sent does not need.
    fn settle(&mut self, loan: &mut Loan<'_>) {
        self.output.settle(loan.spare);
        self.has_room_for_output(loan.unsent);
    }

    /// Whether its share of the memory for output is what its output takes, now if not before. Where it is not, others have to go.
    #[inline]
    pub fn has_room_for_output(&mut self, unsent: &Arc<Budget>) -> bool {
        self.output_share.resize(unsent, self.output.capacity() as u64)
    }

    /// By how much it is in the way of others' output: bytes of its own, and of two with as many, for how long its socket has taken none.
    pub fn in_the_way(&self, tick: u32) -> (usize, u32) {
        (self.output.capacity(), self.stuck.map_or(0, |since| tick - since))
    }

    /// Ends a wait for durability if it is over; whether it is.
    pub fn unpark(&mut self, loan: &mut Loan<'_>, failed: Option<&str>) -> bool {
        let Some(epoch) = self.parked else { return false };
        let store = &loan.shared.store;
        if failed.is_none() && store.pool().durable_epoch() < epoch {
            return false;
        }
        self.parked = None;
        let failed = failed.filter(|_| store.pool().durable_epoch() < epoch);
        let replies = self.output.replies(loan.spare);
        // It may have much output already, which does not double for a line.
        replies.reserve_exact(ANSWER_TO_DURABLE);
        self.session.resume(loan.shared, failed, replies);
        self.stuck = Some(loan.tick);
        true
    }

    /// Bytes of log that it waits for.
    pub fn wanted_log(&self) -> Option<usize> {
        self.wants_log.map(|(bytes, _)| bytes)
    }

    /// The log has space for what it waits for: goes on with the request.
    pub fn go_on(&mut self, loan: &mut Loan<'_>) -> Fate {
        if let Some((_, Some(since))) = self.wants_log.take() {
            loan.worker.counters.inc(Counter::LogWaits);
            loan.worker.counters.add(Counter::LogWaitMicros, since.elapsed().as_micros() as u64);
        }
        // Its time limits begin anew: it was not the client that let the server wait.
        self.active = loan.tick;
        self.turn(loan)
    }

    /// Bytes of memory that it lacks to go on receiving, and since when.
    pub fn wanted_memory(&self) -> Option<(u64, Instant)> {
        self.wants_memory.as_ref().map(|wants| (wants.lacking, wants.since))
    }

    /// Bytes of memory that its requests hold.
    pub fn held(&self) -> u64 {
        self.session.held() + self.input_share.bytes()
    }

    /// There is memory for what it receives, or it has waited long enough for that (`refused`): goes on with the request.
    pub fn go_on_receiving(&mut self, loan: &mut Loan<'_>, refused: bool) -> Fate {
        let stood = self.wants_memory.take();
        if refused {
            self.session.lose_patience();
        }
        if let Some(stood) = &stood {
            self.excuse(stood.since.elapsed().as_secs() as u32 + 1, loan.tick);
        }
        (self.active, self.has_moved) = (loan.tick, false);
        let fate = self.turn(loan);
        // Another worker took the memory in that moment: it has waited since then. Not if it got some, or this is its next request.
        if let (Some(now), Some(stood), false) = (&mut self.wants_memory, stood, self.has_moved || refused) {
            now.since = stood.since;
        }
        fate
    }

    /// So many seconds, in which nothing was read, do not count for the request that arrives.
    fn excuse(&mut self, seconds: u32, tick: u32) {
        if let Some((began, _)) = &mut self.arriving {
            *began = tick.min(*began + seconds);
        }
    }

    /// Whether it takes no input until something has come about.
    fn waits(&self) -> bool {
        self.parked.is_some() || self.wants_log.is_some() || self.wants_memory.is_some()
    }

    /// Whether it has been silent, or slow, for too long: what to count, if so.
    pub fn overdue(&self, shared: &Shared, tick: u32) -> Option<Counter> {
        let timeout = shared.config.request_timeout.map(|limit| limit.as_secs());
        if let (Some(limit), Some(since)) = (timeout, self.stuck)
            && !self.output.is_empty()
            && u64::from(tick - since) > limit
        {
            return Some(Counter::RequestKicks);
        }
        let is_in_the_way = self.held() > 0 && shared.receiving.is_short();
        if let (Some(since), true) = (self.unsent_since, is_in_the_way)
            && u64::from(tick - since) > WAITS_S
        {
            return Some(Counter::RequestKicks);
        }
        if self.waits() || !self.output.is_empty() {
            return None;
        }
        let (patience, least) = match is_in_the_way {
            true => (Some(PATIENCE_S), Receiving::least_per_second(self.session.held())),
            false => (timeout, BYTES_PER_SECOND_MIN),
        };
        if let (Some(limit), Some((since, bytes))) = (patience, self.arriving)
            && u64::from(tick - since) > limit + bytes / least
        {
            return Some(Counter::RequestKicks);
        }
        if let Some(limit) = shared.config.idle_timeout
            && u64::from(tick - self.active) > limit.as_secs()
        {
            return Some(Counter::IdleKicks);
        }
        None
    }

    /// Whether a stopping server has to wait for it.
    pub fn is_busy(&self) -> bool {
        self.parked.is_some() || !self.output.is_empty() || self.unfed
    }
}
