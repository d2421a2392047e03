//! How much memory requests may take together while they arrive, or wait.
//!
//! What must always hold: what connections' own buffers take beyond twice [`KEEP`] are shares of one [budget](crate::budget); a share is
//! given back when the value is there or refused, and with its connection. A share follows what has arrived, not what was
//! announced: a client that announces much and sends little keeps no other client out.
//!
//! ```text
//!   limit ─┬─ budget: the shares
//!          └─ turns: what each worker reads between a look at the budget and the next
//! ```
//!
//! Where little of the budget is left, or some request stands still, memory is short: a worker [reads](Receiving::most_beyond) no more than
//! [`KEEP`] bytes beyond what a share covers. A request that needs a share and gets none stands still: nothing more of it is read. Requests
//! of one worker that stand still get memory in the order in which they came. A new request may take memory before them, if what is left is
//! enough for it. A request that has got none for [`PATIENCE_S`] is refused, one at a time where that gives memory back: a value is then
//! skipped as it comes, a longer line ends the connection. So nothing is kept for which there is no memory.
//!
//! Requests that arrive slowly keep the others waiting, so while memory is short each that has a share has to
//! [arrive within](Receiving::least_per_second) a time that does not depend on its size, counted from its beginning. A client
//! that has sent much behind answers that it does not read has [as long](WAITS_S) to read them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::budget::{Budget, Share};

/// How long, in seconds, a request may stand still while memory is short.
pub const PATIENCE_S: u64 = 1;
/// In how many seconds, at the pace at which it comes, a request has to be there while memory is short, after those of patience.
const ARRIVES_WITHIN_S: u64 = 16;
/// How long, in seconds, requests may wait while memory is short for their client to take the answers before them.
pub const WAITS_S: u64 = PATIENCE_S + ARRIVES_WITHIN_S;
/// Bytes of a request that has begun, which are not counted; and bytes that are read behind those while memory is short.
pub const KEEP: usize = 4096;
/// The most that a worker reads beyond what shares allow: what comes with a request of those behind it.
pub const READ: usize = 64 << 10;

/// The most bytes that are held for a server of `memory_limit` bytes of items with so many workers: half of that, and one of the
/// largest items in any case.
pub fn limit(memory_limit: u64, item_size_max: u64, workers: usize) -> u64 {
    (memory_limit / 2).max(item_size_max + 2 * turns(workers))
}

/// The most that a turn of each worker adds before it looks again; twice what it reads, as it may copy that.
fn turns(workers: usize) -> u64 {
    workers as u64 * 2 * READ as u64
}

/// The requests of all connections that arrive, or wait.
#[derive(Debug)]
pub struct Receiving {
    /// Their memory.
    pub budget: Arc<Budget>,
    turns: u64,
    standing: Arc<AtomicUsize>,
}

/// A request that stands still, for as long as this lives.
#[derive(Debug)]
pub struct Standing(Arc<AtomicUsize>);

impl Drop for Standing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Receiving {
    /// For a server of `memory_limit` bytes of items with so many workers.
    pub fn new(memory_limit: u64, item_size_max: u64, workers: usize) -> Receiving {
        let turns = turns(workers);
        Receiving { budget: Budget::new(limit(memory_limit, item_size_max, workers) - turns), turns, standing: Arc::default() }
    }

    /// A request stands still from now on.
    pub fn stand_still(&self) -> Standing {
        self.standing.fetch_add(1, Relaxed);
        Standing(Arc::clone(&self.standing))
    }

    /// The most bytes that a worker may read beyond what a share covers.
    #[inline]
    pub fn most_beyond(&self) -> usize {
        if self.is_short() { KEEP } else { READ }
    }

    /// Whether memory is short: less is left than the workers may read before they look again, or than some request lacks.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.budget.left() < self.turns || self.standing.load(Relaxed) > 0
    }

    /// Takes a share for a request of `len` bytes, of which `there` have arrived. Where there is no room for that: the bytes that it
    /// lacks.
    pub fn hold(&self, share: &mut Share, there: u64, len: u64) -> Result<(), u64> {
        if len <= KEEP as u64 {
            share.release();
            return Ok(());
        }
        // What the buffer may grow to with the next read.
        let wanted = len.min(2 * there.max(READ as u64));
        if share.grow(&self.budget, wanted) { Ok(()) } else { Err(wanted - share.bytes()) }
    }

    /// The bytes that have to arrive each second of a request that holds so many, while memory is short.
    pub fn least_per_second(held: u64) -> u64 {
        (held / ARRIVES_WITHIN_S).max(KEEP as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_follows_what_has_arrived() {
        let all = Receiving::new(2 << 20, 1 << 20, 1);
        let (mut one, mut two) = (Share::default(), Share::default());
        assert!(all.hold(&mut one, 10, 1000).is_ok() && all.budget.held() == 0, "small requests are not counted");
        assert!(all.hold(&mut one, 10, 1 << 20).is_ok() && all.hold(&mut two, 10, 1 << 20).is_ok(), "announced is not held");
        assert!(!all.is_short() && all.hold(&mut one, 500_000, 1 << 20).is_ok() && all.is_short());
        assert_eq!(all.hold(&mut two, 500_000, 1 << 20), Err(1_000_000 - two.bytes()));
        one.release();
        assert!(!all.is_short());
        let standing = all.stand_still();
        assert!(all.is_short(), "whatever is left, it is less than somebody lacks");
        drop(standing);
        assert!(!all.is_short());
        assert_eq!(all.hold(&mut two, 500_000, 1 << 20), Ok(()));
        drop(two);
        assert_eq!(all.budget.held(), 0);
        assert!(all.hold(&mut one, 1 << 20, 1 << 20).is_ok(), "the largest item fits alone");
    }
}
