//! Room for a value for which no row of neighbouring chunks can be cleared: fewer chunks were ever in use than it takes, or a segment of the
//! table stands in each row. It gets chunks that were never used; as many of those in use become free before that, wherever they lie.
//!
//! The request *reserves* the bytes: the bound of chunks in use is lowered by them, as if `-m` were, so the keeper gives up others and gives
//! their memory back (`upkeep`), and no other request takes what comes free. When as much is free, this one allocates beyond the lowered
//! bound, and the bound is as before.
//!
//! What must always hold:
//! - There is one reservation at a time; a request for a value of another size waits. So what is evicted for one is about as much as it takes.
//! - A reservation ends: with its request, with its [`PATIENCE`], or soon after its client has left.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use towa_epoch::Pool;

use super::upkeep::has_too_much_memory;
use super::{Failure, Store, Worker};

/// A request is refused if the chunks did not come free in this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// It does not wait longer for memory to be given back.
pub(super) const PATIENCE_FOR_MEMORY: Duration = Duration::from_secs(2);
/// After so long without a look by its request a reservation ends: the client has left.
const FORGOTTEN: Duration = Duration::from_millis(200);

/// Between two looks.
const NAP: Duration = Duration::from_micros(200);

/// Chunks reserved for a value.
#[derive(Debug)]
pub(super) struct Reservation {
    /// Bytes of chunks that it takes.
    bytes: u64,
    began: Instant,
    /// When a request for such a value last looked.
    looked: Instant,
    /// One of these requests is storing its value now.
    is_used: bool,
}

impl Reservation {
    fn new(bytes: u64) -> Self {
        let now = Instant::now();
        Reservation { bytes, began: now, looked: now, is_used: false }
    }

    fn is_forgotten(&self) -> bool {
        !self.is_used && self.looked.elapsed() > FORGOTTEN
    }
}

impl Store {
    /// Whether the request at hand, for a value of `wanted` bytes, has to look at a reservation and not for windows.
    pub(super) fn waits_for_chunks(&self, worker: &Worker, wanted: usize) -> bool {
        let is_for = |reservation: &Reservation| reservation.bytes == Pool::chunk_bytes_for(wanted);
        worker.kept.is_none() && self.reservation.lock().as_ref().is_some_and(is_for)
    }

    /// Lets the pool have as many chunks in use as `-m` says, and those that the table takes, but for those reserved.
    pub(super) fn fit_bound(&self) {
        let mut reservation = self.reservation.lock();
        reservation.take_if(|reservation| reservation.is_forgotten());
        let reserved = reservation.as_ref().map_or(0, |reservation| reservation.bytes);
        self.pool.set_bound(self.chunk_bytes_allowed().saturating_sub(reserved));
    }

    /// Whether more chunks are in use than there may be, and whether any are reserved. The value for which they are is not one too many when it
    /// is being stored.
    pub(super) fn excess(&self) -> (bool, bool) {
        let reservation = self.reservation.lock();
        let space = self.pool.space();
        let is_used = reservation.as_ref().is_some_and(|reservation| reservation.is_used);
        (space.in_use > space.bound && !is_used, reservation.is_some())
    }

    /// Reserves chunks for a value of `wanted` bytes, and waits for them. `true`: they are there; the caller stores the value beyond the bound,
    /// and calls [`use_reservation`](Self::use_reservation). `false`: there is no room, and never will be. A request that builds on an item is left
    /// to be refused: that item may be all that is in the way.
    pub(super) fn reserve(&self, worker: &mut Worker, wanted: usize) -> Result<bool, Failure> {
        let bytes = Pool::chunk_bytes_for(wanted);
        if worker.kept.is_some() || self.shares_pool.load(Ordering::Relaxed) || !Pool::is_large(wanted) {
            return Ok(false);
        }
        if !self.could_hold(wanted) || bytes > self.pool.chunk_bytes_never_used() {
            return Ok(false);
        }
        if self.reservation.lock().is_none() {
            self.reservation.lock().get_or_insert_with(|| Reservation::new(bytes));
            self.fit_bound();
        }
        let mut reservation = self.reservation.lock();
        if let Some(own) = reservation.as_mut().filter(|one| one.bytes == bytes && !one.is_used) {
            own.looked = Instant::now();
            if self.has_reserved_chunks(own.began.elapsed()) {
                own.is_used = true;
                return Ok(true);
            }
            if own.began.elapsed() > PATIENCE {
                self.end_reservation(reservation);
                return Ok(false);
            }
        }
        drop(reservation);
        self.wake.now();
        // It looks again as soon as the worker's other connections had their turns; the keeper may need this core.
        std::thread::sleep(NAP);
        Err(worker.pause())
    }

    fn has_reserved_chunks(&self, waited: Duration) -> bool {
        let space = self.pool.space();
        space.in_use <= space.bound && (!has_too_much_memory(&space) || waited > PATIENCE_FOR_MEMORY)
    }

    /// The request whose chunks were there has tried to store its value. It was answered, or comes again.
    pub(super) fn use_reservation(&self, is_answered: bool) {
        let mut reservation = self.reservation.lock();
        if let Some(used) = reservation.as_mut().filter(|_| !is_answered) {
            (used.is_used, used.looked) = (false, Instant::now());
            return;
        }
        self.end_reservation(reservation);
    }

    fn end_reservation(&self, mut reservation: MutexGuard<'_, Option<Reservation>>) {
        // Both under the lock: else the keeper could see the value beyond a bound that is low for its sake.
        *reservation = None;
        self.pool.set_bound(self.chunk_bytes_allowed());
    }
}
