//! How much memory answers may take together that clients' sockets do not take.
//!
//! What must always hold: the sum of all connections' unsent answers stays within [`limit`]:
//!
//! ```text
//!   limit ─┬─ budgets, one for each worker: a share for each connection, which is what its socket did not take
//!          └─ turns: what each worker answers before it has sent, and counted, what is left
//! ```
//!
//! Each connection is served at any time: what a turn answers is in the second part. If output is left after the turn, the connection's
//! share becomes that; if the worker's budget has no room for it, the worker closes its connection with the most unsent output (this one,
//! it may be) until there is room. So clients that read their answers never wait for those that do not, and the largest holders go first.
//! A session [answers less](enough) before it sends where its client reads slowly, and while more than half of the budget is
//! held: so a client that reads, if slowly, holds little, and is not the largest. A worker closes only its own connections, so each has
//! a budget of its own: the clients of one worker that do not read never cost a client of another its connection.

use std::sync::Arc;

use crate::budget::Budget;
use crate::commands::{CACHEDUMP_MAX, OUTPUT_HIGH};

/// A value that is larger is large.
const LARGE: u64 = 64 << 10;
/// Output at which a session lets the network drain it, while much is held.
const OUTPUT_LOW: usize = 64 << 10;
/// Everything about a value in an answer but the value: its key, numbers, flags, line ends.
const AROUND_VALUE: u64 = 4096;

/// The most memory that the answers of one turn take: a session stops at [`OUTPUT_HIGH`], or with the answer that goes beyond it, a
/// value or a dump of keys. A buffer that grows by small answers may have doubled; see [`reserve`].
pub fn turn_max(item_size_max: u64) -> u64 {
    let small = 2 * (OUTPUT_HIGH as u64 + LARGE);
    let large = item_size_max.max(CACHEDUMP_MAX as u64) + AROUND_VALUE;
    small.max(OUTPUT_HIGH as u64 + large)
}

/// The most bytes of unsent answers of a server of `memory_limit` bytes of items with so many workers: an eighth of that, and two turns of
/// each worker in any case.
pub fn limit(memory_limit: u64, item_size_max: u64, workers: usize) -> u64 {
    (memory_limit / 8).max(2 * turns(item_size_max, workers))
}

/// What one turn of each worker takes at most.
fn turns(item_size_max: u64, workers: usize) -> u64 {
    workers as u64 * turn_max(item_size_max)
}

/// The unsent answers of all connections.
#[derive(Debug)]
pub struct Unsent {
    /// Their memory by workers, but for that of turns that are not over.
    budgets: Vec<Arc<Budget>>,
}

impl Unsent {
    /// For a server of `memory_limit` bytes of items with so many workers.
    pub fn new(memory_limit: u64, item_size_max: u64, workers: usize) -> Unsent {
        let limit = limit(memory_limit, item_size_max, workers);
        let each = (limit - turns(item_size_max, workers)) / workers as u64;
        Unsent { budgets: (0..workers).map(|_| Budget::new(each)).collect() }
    }

    /// The memory for answers of a worker's connections.
    pub fn of(&self, worker: usize) -> Arc<Budget> {
        Arc::clone(&self.budgets[worker])
    }

    /// Bytes of all of them.
    pub fn held(&self) -> u64 {
        self.budgets.iter().map(|budget| budget.held()).sum()
    }
}

/// Output at which a session lets the network drain it before it goes on.
#[inline]
pub fn enough(budget: &Budget, is_read_slowly: bool) -> usize {
    if is_read_slowly || budget.held() > budget.limit() / 2 { OUTPUT_LOW } else { OUTPUT_HIGH }
}

/// Room in `out` for `len` bytes more. Exactly that for a large value, so that the buffer does not double for it.
#[inline]
pub fn reserve(out: &mut Vec<u8>, len: usize) {
    if len as u64 > LARGE { out.reserve_exact(len) } else { out.reserve(len) }
}
