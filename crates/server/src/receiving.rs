//! How much memory large values may take together while they arrive.
//!
//! What must always hold: connections' own buffers beyond what a worker reads at once are shares of one sum, which stays within its
//! limit; a share is given back when the value is there or refused, and with its connection. A share follows what has arrived, not
//! what was announced: a client that announces much and sends little keeps nobody else out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Values below this are not counted.
pub const COUNTED_FROM: u64 = 64 << 10;

/// The most bytes that are held for a server of `memory_limit` bytes of items: half of that, and one of the largest items in any case.
pub fn limit(memory_limit: u64, item_size_max: u64) -> u64 {
    (memory_limit / 2).max(item_size_max + 2 * COUNTED_FROM)
}

/// The sum of all shares.
#[derive(Debug, Default)]
pub struct Receiving {
    limit: u64,
    held: AtomicU64,
}

impl Receiving {
    /// For a server of `memory_limit` bytes of items.
    pub fn new(memory_limit: u64, item_size_max: u64) -> Arc<Receiving> {
        Arc::new(Receiving { limit: limit(memory_limit, item_size_max), held: AtomicU64::new(0) })
    }
}

/// One connection's share.
#[derive(Debug, Default)]
pub struct Share {
    of: Arc<Receiving>,
    bytes: u64,
}

impl Share {
    /// Takes a share for a value of `len` bytes, of which `there` have arrived; `false`: there is no room for it.
    pub fn hold(&mut self, of: &Arc<Receiving>, there: u64, len: u64) -> bool {
        if len <= COUNTED_FROM {
            self.release();
            return true;
        }
        // What the buffer may grow to with the next read.
        let wanted = len.min(2 * there.max(COUNTED_FROM));
        let more = wanted.saturating_sub(self.bytes);
        let held = of.held.fetch_add(more, Relaxed);
        if more > 0 && held + more > of.limit {
            of.held.fetch_sub(more, Relaxed);
            return false;
        }
        if more > 0 {
            (self.of, self.bytes) = (Arc::clone(of), wanted);
        }
        true
    }

    /// Gives it back.
    #[inline]
    pub fn release(&mut self) {
        if self.bytes > 0 {
            self.of.held.fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stay_within_the_limit_and_come_back() {
        let all = Receiving::new(2 << 20, 1 << 20);
        let (mut one, mut two) = (Share::default(), Share::default());
        assert!(one.hold(&all, 10, 1000) && all.held.load(Relaxed) == 0, "small values are not counted");
        assert!(one.hold(&all, 10, 1 << 20) && two.hold(&all, 10, 1 << 20), "announced is not held");
        assert!(one.hold(&all, 500_000, 1 << 20));
        assert!(!two.hold(&all, 500_000, 1 << 20));
        one.release();
        assert!(two.hold(&all, 500_000, 1 << 20));
        drop(two);
        assert_eq!(all.held.load(Relaxed), 0);
        assert!(one.hold(&all, 1 << 20, 1 << 20), "the largest item fits alone");
    }
}
