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

    /// The most that they may hold.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit
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
        bytes <= self.bytes || self.resize(of, bytes)
    }

    /// Becomes `bytes`; `false`, and no change, where that is more than it is and the limit leaves no room.
    #[inline]
    pub fn resize(&mut self, of: &Arc<Budget>, bytes: u64) -> bool {
        if bytes <= self.bytes {
            self.become_of(of, bytes);
            return true;
        }
        let more = bytes - self.bytes;
        let fits = |held: u64| held.checked_add(more).filter(|sum| *sum <= of.limit);
        let has_grown = of.held.fetch_update(Relaxed, Relaxed, fits).is_ok();
        if has_grown {
            (self.of, self.bytes) = (Some(Arc::clone(of)), bytes);
        }
        has_grown
    }

    /// Becomes `bytes`, whatever the limit is: the caller has made sure that there is memory for them.
    #[inline]
    pub fn become_of(&mut self, of: &Arc<Budget>, bytes: u64) {
        // The difference alone: what it keeps is never free for others.
        match bytes.checked_sub(self.bytes) {
            Some(0) => return,
            Some(more) => drop(of.held.fetch_add(more, Relaxed)),
            None => drop(of.held.fetch_sub(self.bytes - bytes, Relaxed)),
        }
        (self.of, self.bytes) = ((bytes > 0).then(|| Arc::clone(of)), bytes);
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
        assert!(!one.resize(&all, 21) && one.resize(&all, 10) && one.bytes() == 10 && one.resize(&all, 20));
        drop(two);
        one.release();
        assert_eq!(all.held(), 0);
    }
}
