//! A sum of memory with a limit, of which connections hold shares.
//!
//! What must always hold: the sum is that of all shares, and a share is given back with its connection, however that ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The sum.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    held: AtomicU64,
}

impl Budget {
    /// Of at most `limit` bytes.
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit, held: AtomicU64::new(0) })
    }

    /// Bytes that all shares hold.
    #[inline]
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Bytes that no share holds.
    #[inline]
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.held())
    }
}

/// One connection's share.
#[derive(Debug, Default)]
pub struct Share {
    of: Option<Arc<Budget>>,
    bytes: u64,
}

impl Share {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Grows to `bytes` if it is smaller; `false`, and no change, where the limit leaves no room for that.
    pub fn grow(&mut self, of: &Arc<Budget>, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let held = of.held.fetch_add(more, Relaxed);
        if more > 0 && held + more > of.limit {
            of.held.fetch_sub(more, Relaxed);
            return false;
        }
        if more > 0 {
            (self.of, self.bytes) = (Some(Arc::clone(of)), bytes);
        }
        true
    }

    /// Becomes `bytes`, which the caller has made sure are within the limit.
    #[inline]
    pub fn become_of(&mut self, of: &Arc<Budget>, bytes: u64) {
        if bytes == self.bytes {
            return;
        }
        self.release();
        if bytes > 0 {
            of.held.fetch_add(bytes, Relaxed);
            (self.of, self.bytes) = (Some(Arc::clone(of)), bytes);
        }
    }

    /// Gives it back.
    #[inline]
    pub fn release(&mut self) {
        if let Some(of) = self.of.take() {
            of.held.fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
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
        let all = Budget::new(100);
        let (mut one, mut two) = (Share::default(), Share::default());
        assert!(one.grow(&all, 60) && !two.grow(&all, 41) && two.grow(&all, 40));
        assert!(one.grow(&all, 10) && all.held() == 100, "it does not shrink");
        one.become_of(&all, 20);
        assert!(all.held() == 60 && two.grow(&all, 80) && !one.grow(&all, 21));
        drop(two);
        one.release();
        assert_eq!(all.held(), 0);
    }
}
