//! Room for a value for which no row of neighbouring chunks can be cleared: fewer chunks were ever in use than it takes, or a segment of the
//! table stands in each row. It gets chunks that were never used; as many of those in use become free before that, wherever they lie.
//!
//! The request *reserves* chunks: the bound of those in use is lower by what it takes, as if `-m` were, so no other request takes what comes
//! free. Its worker clears used windows, a slice of time a turn; the keeper gives their memory back. Then the value is stored beyond the lowered
//! bound, and the bound is as before.
//!
//! What must always hold:
//! - There is one reservation at a time, one request's; others wait. So about as much is evicted for a value as it takes.
//! - A reservation ends with the answer to its request, whatever that is; soon after its last look if there never is one.
//! - Reservation and bound change under one lock: with a reservation goes the lower bound.

use std::time::{Duration, Instant};

use towa_epoch::Pool;

use super::evict::SLICE;
use super::upkeep::has_too_much_memory;
use super::{Failure, Store, Worker};

/// A request is refused if its chunks did not come free in this time, and a second more for each of so many bytes.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 100 } else { 5 });
const PATIENCE_BYTES: u64 = 32 << 20;
/// It does not wait longer than this for memory to be given back.
pub(super) const PATIENCE_FOR_MEMORY: Duration = Duration::from_secs(2);
/// Between two requests for a checkpoint: memory is given back of what is durably free.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(100);
/// A reservation ends after so long without a look: its request was dropped with its connection.
const FORGOTTEN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// A worker whose requests wait for others naps so long, and then serves all its connections.
const NAP: Duration = Duration::from_micros(200);

/// A request that waits for chunks, in all its turns.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) since: Instant,
    /// Its reservation's; 0 while it has none.
    ticket: u64,
    /// Since when only memory is missing.
    lacks_memory: Option<Instant>,
    /// When a checkpoint was last asked for.
    asked: Option<Instant>,
}

impl Wait {
    pub(super) fn new() -> Self {
        Wait { since: Instant::now(), ticket: 0, lacks_memory: None, asked: None }
    }

    fn is_over(&self, bytes: u64) -> bool {
        self.since.elapsed() > PATIENCE + Duration::from_secs(bytes / PATIENCE_BYTES)
    }
}

/// Chunks reserved for a value.
#[derive(Debug)]
pub(super) struct Reservation {
    ticket: u64,
    /// Bytes of chunks that it takes.
    bytes: u64,
    /// When its request last looked.
    looked: Instant,
    /// The value is being stored.
    is_used: bool,
}

/// The reservation there is, and the tickets given out.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    now: Option<Reservation>,
    tickets: u64,
}

impl Store {
    /// Lets the pool have as many chunks in use as `-m` says, and those that the table takes, but for those reserved.
    pub(super) fn fit_bound(&self) {
        self.fit_bound_of(&mut self.reservations.lock());
    }

    fn fit_bound_of(&self, reservations: &mut Reservations) {
        reservations.now.take_if(|one| one.looked.elapsed() > FORGOTTEN);
        let reserved = reservations.now.as_ref().map_or(0, |one| one.bytes);
        self.pool.set_bound(self.chunk_bytes_allowed().saturating_sub(reserved));
    }

    /// Whether more chunks are in use than there may be. A value that is being stored in reserved chunks is not too much.
    pub(super) fn is_beyond_bound(&self) -> bool {
        let mut reservations = self.reservations.lock();
        self.fit_bound_of(&mut reservations);
        let space = self.pool.space();
        space.in_use > space.bound && reservations.now.as_ref().is_none_or(|one| !one.is_used)
    }

    /// Reserves chunks for a value of `wanted` bytes, and clears some or waits for them. `true`: they are there; the caller stores the value beyond
    /// the bound. `false`: there is no room, and will be none. A request that builds on an item is left to be refused: that item may be all that
    /// is in the way.
    pub(super) fn reserve(&self, worker: &mut Worker, wanted: usize) -> Result<bool, Failure> {
        let bytes = Pool::chunk_bytes_for(wanted);
        if worker.kept.is_some() || self.shares_pool() || !Pool::is_large(wanted) || !self.could_hold(wanted) {
            return Ok(false);
        }
        if bytes > self.pool.chunk_bytes_never_used() {
            return Ok(false);
        }
        let mut wait = worker.client.wait.take().unwrap_or_else(Wait::new);
        let result = self.look(worker, bytes, &mut wait);
        worker.client.wait = Some(wait);
        result
    }

    fn look(&self, worker: &mut Worker, bytes: u64, wait: &mut Wait) -> Result<bool, Failure> {
        if !self.hold(bytes, wait) {
            return self.look_again(worker, bytes, wait);
        }
        let until = Instant::now() + SLICE;
        while self.is_beyond_bound() {
            let is_cleared = self.used_window(worker)?;
            worker.thread.release_cleared();
            if !is_cleared {
                return self.look_again(worker, bytes, wait);
            }
            if Instant::now() >= until {
                return Err(worker.pause());
            }
        }
        if has_too_much_memory(&self.pool.space())
            && wait.lacks_memory.get_or_insert_with(Instant::now).elapsed() < PATIENCE_FOR_MEMORY
        {
            if wait.asked.is_none_or(|at| at.elapsed() > CHECKPOINT_EVERY) {
                wait.asked = Some(Instant::now());
                self.pool.request_checkpoint();
            }
            return self.look_again(worker, bytes, wait);
        }
        let mut reservations = self.reservations.lock();
        let own = reservations.now.as_mut().filter(|one| one.ticket == wait.ticket);
        own.map(|own| own.is_used = true).ok_or_else(|| worker.pause()).map(|()| true)
    }

    /// Whether this request has the reservation now: it had, or there was none.
    fn hold(&self, bytes: u64, wait: &mut Wait) -> bool {
        let mut reservations = self.reservations.lock();
        if reservations.now.is_none() {
            reservations.tickets += 1;
            wait.ticket = reservations.tickets;
            reservations.now = Some(Reservation { ticket: wait.ticket, bytes, looked: Instant::now(), is_used: false });
            self.fit_bound_of(&mut reservations);
        }
        let own = reservations.now.as_mut().filter(|one| one.ticket == wait.ticket);
        own.map(|own| (own.looked, own.is_used) = (Instant::now(), false)).is_some()
    }

    /// Others have their turns, and the keeper its own: then the request looks again, unless it has waited for long enough.
    fn look_again(&self, worker: &mut Worker, bytes: u64, wait: &Wait) -> Result<bool, Failure> {
        if wait.is_over(bytes) {
            return Ok(false);
        }
        self.wake.now();
        worker.nap(NAP);
        Err(worker.pause())
    }

    /// The request at hand has an answer.
    pub(super) fn end_wait(&self, worker: &mut Worker) {
        let Some(wait) = worker.client.wait.take() else { return };
        let mut reservations = self.reservations.lock();
        if reservations.now.take_if(|one| one.ticket == wait.ticket).is_some() {
            self.fit_bound_of(&mut reservations);
        }
    }
}
