//! Runs of free segments: for large objects, and for classes that want another segment.
//!
//! ```text
//!   first segment ─ [run][used][  run  ][used] ... next ─ never used ─ mark ─ no space provided yet ─ end
//! ```
//!
//! What must always hold: runs do not overlap or touch; nothing at `next` or beyond was ever handed out since the opening.

use std::collections::BTreeMap;

/// The free segments below `next`.
#[derive(Debug)]
pub(crate) struct Runs {
    /// First segment to number of segments.
    free: BTreeMap<u64, u64>,
    /// First segment never used.
    pub next: u64,
    /// The durable mark: segments below may be used.
    pub mark: u64,
}

impl Runs {
    /// No free run; nothing used at `mark` or beyond.
    pub fn new(mark: u64) -> Runs {
        Runs { free: BTreeMap::new(), next: mark, mark }
    }

    /// The first run of `n` segments, if there is one. A single segment is likely in the first run of all.
    pub fn take(&mut self, n: u64) -> Option<u64> {
        let (&first, &len) = self.free.iter().find(|(_, len)| **len >= n)?;
        self.free.remove(&first);
        if len > n {
            self.free.insert(first + n, len - n);
        }
        Some(first)
    }

    /// Segments of the free run that ends at `next`.
    pub fn before_next(&self) -> u64 {
        self.free.last_key_value().filter(|(first, len)| *first + *len == self.next).map_or(0, |(_, len)| *len)
    }

    /// Takes `n` segments from those never used (which the mark must allow), with the free run before them.
    pub fn extend(&mut self, n: u64) -> u64 {
        let before = self.before_next();
        debug_assert!(before < n && self.next + n - before <= self.mark);
        self.free.remove(&(self.next - before));
        let first = self.next - before;
        self.next = first + n;
        first
    }

    /// Gives segments back.
    pub fn give(&mut self, mut first: u64, mut n: u64) {
        if let Some((&before, &len)) = self.free.range(..first).next_back() {
            debug_assert!(before + len <= first, "segments {first}..+{n} are free already");
            if before + len == first {
                self.free.remove(&before);
                (first, n) = (before, n + len);
            }
        }
        if let Some(len) = self.free.remove(&(first + n)) {
            n += len;
        }
        self.free.insert(first, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_split() {
        let mut runs = Runs { mark: 20, ..Runs::new(10) };
        runs.give(1, 2);
        runs.give(5, 1);
        runs.give(3, 2);
        assert_eq!(runs.free, BTreeMap::from([(1, 5)]));
        assert_eq!(runs.take(6), None);
        assert_eq!(runs.take(2), Some(1));
        runs.give(8, 2);
        assert_eq!(runs.before_next(), 2);
        assert_eq!(runs.extend(4), 8);
        assert_eq!((runs.next, runs.free), (12, BTreeMap::from([(3, 3)])));
    }
}
