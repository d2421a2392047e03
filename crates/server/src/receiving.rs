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
//! Where little of the budget is left, a worker [reads](Receiving::most_beyond) no more than [`KEEP`] bytes beyond what a share covers. A
//! request that needs a share and gets none is refused: a value is skipped as it comes, a longer line ends the connection. So nothing is
//! kept for which there is no memory.

use std::sync::Arc;

use crate::budget::{Budget, Share};

/// How long, in seconds, a request may stand still while memory is short.
pub const PATIENCE_S: u64 = 1;
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
}

impl Receiving {
    /// For a server of `memory_limit` bytes of items with so many workers.
    pub fn new(memory_limit: u64, item_size_max: u64, workers: usize) -> Receiving {
        let turns = turns(workers);
        Receiving { budget: Budget::new(limit(memory_limit, item_size_max, workers) - turns), turns }
    }

    /// The most bytes that a worker may read beyond what a share covers.
    #[inline]
    pub fn most_beyond(&self) -> usize {
        if self.is_short() { KEEP } else { READ }
    }

    /// Whether little is left: less than the workers may read before they look again.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.budget.left() < self.turns
    }

    /// Takes a share for a request of `len` bytes, of which `there` have arrived; `false`: there is no room for it.
    pub fn hold(&self, share: &mut Share, there: u64, len: u64) -> bool {
        if len <= KEEP as u64 {
            share.release();
            return true;
        }
        // What the buffer may grow to with the next read.
        share.grow(&self.budget, len.min(2 * there.max(READ as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_follows_what_has_arrived() {
        let all = Receiving::new(2 << 20, 1 << 20, 1);
        let (mut one, mut two) = (Share::default(), Share::default());
        assert!(all.hold(&mut one, 10, 1000) && all.budget.held() == 0, "small requests are not counted");
        assert!(all.hold(&mut one, 10, 1 << 20) && all.hold(&mut two, 10, 1 << 20), "announced is not held");
        assert!(!all.is_short() && all.hold(&mut one, 500_000, 1 << 20) && all.is_short());
        assert!(!all.hold(&mut two, 500_000, 1 << 20));
        one.release();
        assert!(all.hold(&mut two, 500_000, 1 << 20));
        drop(two);
        assert_eq!(all.budget.held(), 0);
        assert!(all.hold(&mut one, 1 << 20, 1 << 20), "the largest item fits alone");
    }
}
