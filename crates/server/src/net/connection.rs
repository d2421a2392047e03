//! One client's connection: its socket, its session, and the bytes in between.

use std::io::{self, ErrorKind, Read, Write};

use super::stream::Stream;
use crate::commands::{Progress, Session};
use crate::counters::Counter;
use crate::server::Shared;
use crate::store::Worker;

/// Bytes that a worker reads at once; one buffer per worker, not per connection.
pub const SCRATCH: usize = 64 * 1024;
/// Reads in one turn, so that one busy client does not hold up the others of its worker.
const READS_PER_TURN: usize = 8;
/// A buffer that grew beyond this is given back when it is empty.
const KEEP: usize = 4096;
/// An output buffer that grew beyond this is given back.
const KEEP_OUTPUT: usize = 1 << 20;
/// Bytes that earn a slow request another second.
const BYTES_PER_SECOND_MIN: u64 = 4096;

/// What a worker lends to the connection it serves.
pub struct Loan<'a> {
    /// The server.
    pub shared: &'a Shared,
    /// The worker's side of the store.
    pub worker: &'a mut Worker,
    /// Where input is read to; [`SCRATCH`] bytes.
    pub scratch: &'a mut [u8],
    /// Where replies are put.
    pub out: &'a mut Vec<u8>,
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
    /// Close it.
    Drop,
}

/// What one read brought.
struct Got {
    bytes: usize,
    room: usize,
    in_scratch: bool,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    session: Session,
    /// Received, not done with.
    input: Vec<u8>,
    /// Whether `input` holds bytes that the session has not seen, or may go on with.
    unfed: bool,
    /// Bytes that the session needs at least.
    need: usize,
    /// Replies that the socket did not take.
    output: Vec<u8>,
    sent: usize,
    closing: bool,
    /// The epoch it waits for.
    pub parked: Option<u64>,
    /// The peer has closed its side, says the event: read until the end.
    pub ends: bool,
    /// Last request's time.
    active: u32,
    /// Since when a request has been arriving, and how many bytes came since.
    arriving: Option<(u32, u64)>,
    /// Since when the socket takes no output.
    stuck: Option<u32>,
}

impl Connection {
    /// A new connection.
    pub fn new(stream: Stream, tick: u32) -> Connection {
        Connection {
            stream,
            session: Session::default(),
            input: Vec::new(),
            unfed: false,
            need: 1,
            output: Vec::new(),
            sent: 0,
            closing: false,
            parked: None,
            ends: false,
            active: tick,
            arriving: None,
            stuck: None,
        }
    }

    /// The socket.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Sends, reads and serves as much as there is, within a turn's bounds.
    pub fn turn(&mut self, loan: &mut Loan<'_>) -> Fate {
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
        if !self.flush(loan)? || self.parked.is_some() {
            return Ok(Some(Fate::Wait));
        }
        if self.closing {
            return Ok(Some(Fate::Drop));
        }
        let mut drained = false;
        let progress = if self.unfed {
            self.feed_own(loan, 0)
        } else {
            match self.receive(loan) {
                Ok(got) if got.bytes == 0 => return Ok(Some(Fate::Drop)),
                Ok(got) => {
                    // A short read has emptied the socket: the next event will tell of more. Unless its end is known to come.
                    drained = got.bytes < got.room && !self.ends;
                    loan.worker.counters.add(Counter::BytesRead, got.bytes as u64);
                    if got.in_scratch { self.feed_scratch(loan, got.bytes) } else { self.feed_own(loan, got.bytes) }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(Fate::Wait)),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
                Err(error) => return Err(error),
            }
        };
        let sent = self.send(loan)?;
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
            Progress::Close => {
                self.closing = true;
                Some(if sent { Fate::Drop } else { Fate::Wait })
            }
        })
    }

    /// Reads behind what is left over: into scratch or, for large values, into the connection's own buffer.
    fn receive(&mut self, loan: &mut Loan<'_>) -> io::Result<Got> {
        let left = self.input.len();
        if left + self.need <= SCRATCH {
            loan.scratch[..left].copy_from_slice(&self.input);
            let bytes = self.stream.read(&mut loan.scratch[left..])?;
            return Ok(Got { bytes, room: SCRATCH - left, in_scratch: true });
        }
        // At most doubling: a client that announces much and sends little costs little.
        let room = self.need.min(left.max(SCRATCH));
        Ok(Got { bytes: self.stream.read_more(&mut self.input, room)?, room, in_scratch: false })
    }

    fn feed_scratch(&mut self, loan: &mut Loan<'_>, received: usize) -> Progress {
        let filled = self.input.len() + received;
        let (done, progress) = self.session.feed(loan.shared, loan.worker, &loan.scratch[..filled], loan.out);
        self.input.clear();
        self.input.extend_from_slice(&loan.scratch[done..filled]);
        self.after_feed(progress, done, received, loan.tick);
        progress
    }

    fn feed_own(&mut self, loan: &mut Loan<'_>, received: usize) -> Progress {
        let (done, progress) = self.session.feed(loan.shared, loan.worker, &self.input, loan.out);
        self.input.drain(..done);
        self.after_feed(progress, done, received, loan.tick);
        progress
    }

    fn after_feed(&mut self, progress: Progress, done: usize, received: usize, tick: u32) {
        self.unfed = !matches!(progress, Progress::More(_));
        if self.input.is_empty() && self.input.capacity() > KEEP {
            self.input = Vec::new();
        }
        let moved_on = done > 0 && !self.session.is_swallowing();
        if moved_on {
            self.active = tick;
        }
        self.arriving = match self.arriving {
            _ if self.unfed || !self.session.is_mid_request(self.input.len()) => None,
            Some((since, bytes)) if !moved_on => Some((since, bytes + received as u64)),
            _ => Some((tick, 0)),
        };
    }

    /// Sends the batch's replies; whether the socket took them all.
    fn send(&mut self, loan: &mut Loan<'_>) -> io::Result<bool> {
        let (mut sent, out) = (0, &mut *loan.out);
        let mut blocked = false;
        while sent < out.len() && !blocked {
            match self.stream.write(&out[sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        loan.worker.counters.add(Counter::BytesWritten, sent as u64);
        if blocked {
            self.output.extend_from_slice(&out[sent..]);
            self.stuck = Some(loan.tick);
        }
        out.clear();
        if out.capacity() > KEEP_OUTPUT {
            *out = Vec::with_capacity(SCRATCH);
        }
        Ok(!blocked)
    }

    /// Sends what an earlier turn could not; whether all is gone.
    fn flush(&mut self, loan: &mut Loan<'_>) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    self.stuck = Some(loan.tick);
                    loan.worker.counters.add(Counter::BytesWritten, count as u64);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent > 0 {
            (self.output, self.sent, self.stuck) = (Vec::new(), 0, None);
        }
        Ok(true)
    }

    /// Ends a wait for durability if it is over; whether it is.
    pub fn unpark(&mut self, loan: &mut Loan<'_>, failed: Option<&str>) -> bool {
        let Some(epoch) = self.parked else { return false };
        let store = &loan.shared.store;
        if failed.is_none() && store.pool().durable_epoch() < epoch {
            return false;
        }
        self.parked = None;
        self.session.resume(loan.shared, failed.filter(|_| store.pool().durable_epoch() < epoch), loan.out);
        let out = std::mem::take(loan.out);
        self.output.extend_from_slice(&out);
        self.stuck = Some(loan.tick);
        true
    }

    /// Whether it has been silent, or slow, for too long: what to count, if so.
    pub fn overdue(&self, shared: &Shared, tick: u32) -> Option<Counter> {
        if let (Some(limit), Some(since)) = (shared.config.request_timeout, self.stuck)
            && !self.output.is_empty()
            && u64::from(tick - since) > limit.as_secs()
        {
            return Some(Counter::RequestKicks);
        }
        if self.parked.is_some() || !self.output.is_empty() {
            return None;
        }
        if let (Some(limit), Some((since, bytes))) = (shared.config.request_timeout, self.arriving)
            && u64::from(tick - since) > limit.as_secs() + bytes / BYTES_PER_SECOND_MIN
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
