//! Room for a value for which no row of neighbouring chunks can be cleared: fewer chunks were ever in use than it takes,
//! or a segment of the table stands in each row. It gets chunks that were never used; as many of those in use become free
//! before that, wherever they lie.
//!
//! The request *reserves* chunks: the bound of those in use is lower by the bytes that it takes, as if `-m` were, so no other
//! request takes a chunk that comes free. Its worker clears used windows, a slice of time a turn; the keeper gives their
//! memory back. Then the value is stored beyond the lowered bound, and the bound is as before.
//!
//! What must always hold:
//! - There is one reservation at a time, one request's; others wait. So about as much is evicted for a value as it takes.
//! - A reservation ends with the answer to its request, whatever the answer is. If there never is one, it ends some time
//!   after the request's last look.
//! - Reservation and bound change under one lock: while there is a reservation, the bound is lower by its bytes.

use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use towa_epoch::Pool;

use super::evict::{SLICE, Work};
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
const FORGOTTEN: Duration = Duration::from_secs(2);
/// The same where the value is being stored, which may have to wait for log space.
const FORGOTTEN_IN_USE: Duration = Duration::from_secs(60);
/// A worker some of whose requests wait for others naps so long, once in so many times as long.
const NAP: Duration = Duration::from_micros(200);
const NAP_SHARE: u32 = 5;

/// A request that waits for chunks, in all its turns.
pub(super) struct Wait {
    /// Bytes of the block that it was refused.
    pub(super) wanted: usize,
    pub(super) since: Instant,
    /// Its reservation's; 0 while it has none.
    ticket: u64,
    /// The window that it clears. Other requests of the worker have another one.
    work: Option<Work>,
    /// Since when only memory is missing.
    lacks_memory: Option<Instant>,
    /// When a checkpoint was last asked for.
    asked: Option<Instant>,
}

impl Wait {
    fn new(wanted: usize) -> Self {
        Wait { wanted, since: Instant::now(), ticket: 0, work: None, lacks_memory: None, asked: None }
    }

    fn bytes(&self) -> u64 {
        Pool::chunk_bytes_for(self.wanted)
    }

    fn is_over(&self) -> bool {
        self.since.elapsed() > PATIENCE + Duration::from_secs(self.bytes() / PATIENCE_BYTES)
    }
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("wanted", &self.wanted).field("ticket", &self.ticket).finish_non_exhaustive()
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

impl Reservation {
    fn is_forgotten(&self) -> bool {
        self.looked.elapsed() > if self.is_used { FORGOTTEN_IN_USE } else { FORGOTTEN }
    }
}

/// The reservation there is, and the tickets given out.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    now: Option<Reservation>,
    tickets: u64,
}

impl Reservations {
    /// That of a request that waits.
    fn of(&mut self, wait: &Wait) -> Option<&mut Reservation> {
        self.now.as_mut().filter(|one| one.ticket == wait.ticket)
    }
}

impl Store {
    /// Lets the pool have as many chunks in use as `-m` says, and those that the table takes, but for those reserved.
    pub(super) fn fit_bound(&self) {
        self.fit_bound_of(&self.lock_reservations());
    }

    /// Locks them; a forgotten one has ended.
    fn lock_reservations(&self) -> MutexGuard<'_, Reservations> {
        let mut reservations = self.reservations.lock();
        if reservations.now.take_if(|one| one.is_forgotten()).is_some() {
            self.fit_bound_of(&reservations);
        }
        reservations
    }

    fn fit_bound_of(&self, reservations: &Reservations) {
        let reserved = reservations.now.as_ref().map_or(0, |one| one.bytes);
        self.pool.set_bound(self.chunk_bytes_allowed().saturating_sub(reserved));
    }

    /// Whether more chunks are in use than there may be. A value that is being stored in reserved chunks does not count.
    pub(super) fn is_beyond_bound(&self) -> bool {
        let reservations = self.lock_reservations();
        let space = self.pool.space();
        space.in_use > space.bound && reservations.now.as_ref().is_none_or(|one| !one.is_used)
    }

    /// Reserves chunks for a value of `wanted` bytes, and clears some or waits for them. `true`: they are there; the caller
    /// stores the value beyond the bound. `false`: there is no room, and will be none. A request that builds on an item is
    /// refused: that item may be all that is in the way.
    pub(super) fn reserve(&self, worker: &mut Worker, wanted: usize) -> Result<bool, Failure> {
        if worker.kept.is_some() || self.shares_pool() || !Pool::is_large(wanted) || !self.could_hold(wanted) {
            return Ok(false);
        }
        if Pool::chunk_bytes_for(wanted) > self.pool.chunk_bytes_never_used() {
            return Ok(false);
        }
        let mut wait = worker.client.wait.take().unwrap_or_else(|| Box::new(Wait::new(wanted)));
        let result = self.look(worker, &mut wait);
        worker.client.wait = Some(wait);
        result
    }

    fn look(&self, worker: &mut Worker, wait: &mut Wait) -> Result<bool, Failure> {
        let until = Instant::now() + SLICE;
        let mut is_cleared = self.hold(worker, wait);
        if wait.is_over() && !self.has_chunks(wait) {
            return Ok(false);
        }
        while is_cleared && self.is_beyond_bound() && Instant::now() < until {
            std::mem::swap(&mut worker.clearing, &mut wait.work);
            let result = self.used_window(worker);
            std::mem::swap(&mut worker.clearing, &mut wait.work);
            worker.thread.release_cleared();
            is_cleared = result?;
        }
        if !self.has_chunks(wait) {
            if !is_cleared {
                self.leave_it_to_the_keeper(worker);
            }
            return Err(worker.pause());
        }
        let lacks_memory = has_too_much_memory(&self.pool.space());
        if lacks_memory && wait.lacks_memory.get_or_insert_with(Instant::now).elapsed() < PATIENCE_FOR_MEMORY {
            if wait.asked.is_none_or(|at| at.elapsed() > CHECKPOINT_EVERY) {
                wait.asked = Some(Instant::now());
                self.pool.request_checkpoint();
            }
            self.leave_it_to_the_keeper(worker);
            return Err(worker.pause());
        }
        match self.reservations.lock().of(wait) {
            Some(own) => own.is_used = true,
            None => return Err(worker.pause()),
        }
        Ok(true)
    }

    /// Whether this request has the reservation now: it had, or there was none.
    fn hold(&self, worker: &mut Worker, wait: &mut Wait) -> bool {
        let mut reservations = self.lock_reservations();
        if reservations.now.is_none() {
            reservations.tickets += 1;
            wait.ticket = reservations.tickets;
            reservations.now =
                Some(Reservation { ticket: wait.ticket, bytes: wait.bytes(), looked: Instant::now(), is_used: false });
            self.fit_bound_of(&reservations);
            worker.failed = 0;
        }
        reservations.of(wait).map(|own| (own.looked, own.is_used) = (Instant::now(), false)).is_some()
    }

    /// Whether this request has the reservation, and its chunks are free.
    fn has_chunks(&self, wait: &Wait) -> bool {
        self.reservations.lock().of(wait).is_some() && !self.is_beyond_bound()
    }

    /// Others have their turns, and the keeper its own, before the request looks again.
    fn leave_it_to_the_keeper(&self, worker: &mut Worker) {
        self.wake.now();
        worker.nap(NAP, NAP_SHARE);
    }

    /// The request at hand has an answer.
    pub(super) fn end_wait(&self, worker: &mut Worker) {
        let Some(wait) = worker.client.wait.take() else { return };
        let mut reservations = self.reservations.lock();
        if reservations.now.take_if(|one| one.ticket == wait.ticket).is_some() {
            self.fit_bound_of(&reservations);
        }
    }
}
