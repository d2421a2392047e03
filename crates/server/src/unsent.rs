//! How much memory answers may take together that clients' sockets do not take.
//!
//! What must always hold: the sum of all connections' unsent answers stays within [`limit`]. A worker serves a connection only
//! [while](Unsent::may_serve) one more answer of the largest kind for each worker fits in; after the turn the connection's share is what its
//! socket did not take. So the look before each turn is one load, and no two workers have to agree.
//!
//! While there is no room, connections wait for their turns, and those whose sockets have taken nothing for [`PATIENCE_S`] seconds are
//! closed to make some: a client that does not read its answers must not hold up those that do.

use std::sync::Arc;

use crate::budget::Budget;
use crate::commands::OUTPUT_HIGH;

/// How long, in seconds, a socket may take nothing while there is no room.
pub const PATIENCE_S: u64 = 1;
/// A value that is larger is large.
const LARGE: u64 = 64 << 10;
/// Everything about a value in an answer but the value: its key, numbers, flags, line ends.
const AROUND_VALUE: u64 = 4096;

/// The most memory that the answers of one turn take: a session stops at [`OUTPUT_HIGH`], or with the value that goes beyond it. A
/// buffer that grows by small answers may have doubled; see [`reserve`].
pub fn turn_max(item_size_max: u64) -> u64 {
    let small = 2 * (OUTPUT_HIGH as u64 + LARGE);
    small.max(OUTPUT_HIGH as u64 + item_size_max + AROUND_VALUE)
}

/// The most bytes of unsent answers of a server of `memory_limit` bytes of items with so many workers: an eighth of that, and two turns of
/// each worker in any case.
pub fn limit(memory_limit: u64, item_size_max: u64, workers: usize) -> u64 {
    (memory_limit / 8).max(2 * workers as u64 * turn_max(item_size_max))
}

/// The unsent answers of all connections.
#[derive(Debug)]
pub struct Unsent {
    /// Their memory.
    pub budget: Arc<Budget>,
    /// What one turn of each worker takes at most.
    turns: u64,
}

impl Unsent {
    /// For a server of `memory_limit` bytes of items with so many workers.
    pub fn new(memory_limit: u64, item_size_max: u64, workers: usize) -> Unsent {
        let budget = Budget::new(limit(memory_limit, item_size_max, workers));
        Unsent { budget, turns: workers as u64 * turn_max(item_size_max) }
    }

    /// Whether a turn may begin: the answers of a turn of each worker fit in.
    #[inline]
    pub fn may_serve(&self) -> bool {
        self.budget.left() >= self.turns
    }
}

/// Room in `out` for `len` bytes more. Exactly that for a large value, so that the buffer does not double for it.
#[inline]
pub fn reserve(out: &mut Vec<u8>, len: usize) {
    if len as u64 > LARGE { out.reserve_exact(len) } else { out.reserve(len) }
}
