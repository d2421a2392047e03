//! An inner node: sorted separators and children, in DRAM.
//!
//! ```text
//!   | version | level, count | 62 separators | 63 children |          1008 bytes: 16 lines
//!
//!   child i holds the keys from separator i-1 (inclusive) to separator i (exclusive)
//! ```
//!
//! What must always hold: memory of a node is a node's for as long as the index lives, and its version only grows, so that a reader may
//! look at it at any time and finds out afterwards; a child is followed only once the version says that it was read whole.

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use crate::search;

/// Separators of a node.
pub(super) const KEYS: usize = 62;
/// Children of a node.
pub(super) const CHILDREN: usize = KEYS + 1;

#[repr(C, align(64))]
pub(super) struct Node {
    version: AtomicU64,
    /// Count of separators in the low half, level in the high one: 0 is just above the leaves.
    meta: AtomicU64,
    keys: [AtomicU64; KEYS],
    children: [AtomicU64; CHILDREN],
}

const _: () = assert!(size_of::<Node>() == 1024);

impl Node {
    pub fn new() -> Node {
        let zeroes = || AtomicU64::new(0);
        Node {
            version: zeroes(),
            meta: zeroes(),
            keys: std::array::from_fn(|_| zeroes()),
            children: std::array::from_fn(|_| zeroes()),
        }
    }

    /// Its version, unless it is being changed.
    #[inline]
    pub fn version(&self) -> Option<u64> {
        let version = self.version.load(Acquire);
        (version & 1 == 0).then_some(version)
    }

    #[inline]
    pub fn validate(&self, version: u64) -> bool {
        fence(Acquire);
        self.version.load(Relaxed) == version
    }

    /// Before the only writer (see `index`) changes it.
    pub fn lock(&self) {
        let version = self.version.load(Relaxed);
        debug_assert!(version & 1 == 0);
        self.version.store(version + 1, Relaxed);
        fence(Release);
    }

    pub fn unlock(&self) {
        let version = self.version.load(Relaxed);
        debug_assert!(version & 1 == 1);
        self.version.store(version + 1, Release);
    }

    /// Number of separators: one less than children.
    #[inline]
    pub fn count(&self) -> usize {
        (self.meta.load(Relaxed) as u32 as usize).min(KEYS)
    }

    #[inline]
    pub fn level(&self) -> u32 {
        (self.meta.load(Relaxed) >> 32) as u32
    }

    #[inline]
    pub fn key(&self, i: usize) -> u64 {
        self.keys[i].load(Relaxed)
    }

    #[inline]
    pub fn child(&self, i: usize) -> u64 {
        self.children[i].load(Relaxed)
    }

    /// How many separators `before` says come before the place looked for; it must say so of the first ones only.
    #[inline]
    pub fn search(&self, before: impl Fn(u64) -> bool) -> usize {
        search::passing(self.count(), |at| before(self.key(at)))
    }

    /// Fetches the separators' lines that a search looks at first.
    #[inline]
    pub fn prefetch(&self) {
        for i in [0, 14, 30, 46] {
            towa_media::persist::prefetch(self.keys[i].as_ptr().cast());
        }
    }

    pub fn set(&self, level: u32, keys: &[u64], children: &[u64]) {
        debug_assert!(children.len() == keys.len() + 1);
        keys.iter().zip(&self.keys).for_each(|(key, to)| to.store(*key, Relaxed));
        children.iter().zip(&self.children).for_each(|(child, to)| to.store(*child, Relaxed));
        self.meta.store(u64::from(level) << 32 | keys.len() as u64, Relaxed);
    }

    /// Adds `child` after child `at`, with the separator between them. There must be room; locked.
    pub fn insert(&self, at: usize, key: u64, child: u64) {
        let n = self.count();
        for i in (at..n).rev() {
            self.keys[i + 1].store(self.key(i), Relaxed);
            self.children[i + 2].store(self.child(i + 1), Relaxed);
        }
        self.keys[at].store(key, Relaxed);
        self.children[at + 1].store(child, Relaxed);
        self.meta.store(u64::from(self.level()) << 32 | (n as u64 + 1), Relaxed);
    }

    /// Removes child `at`, and the separator before it (after it, for the first child), which it gives. Locked.
    pub fn remove(&self, at: usize) -> u64 {
        let n = self.count();
        let key_at = at.saturating_sub(1);
        let key = self.key(key_at);
        for i in key_at..n - 1 {
            self.keys[i].store(self.key(i + 1), Relaxed);
        }
        for i in at..n {
            self.children[i].store(self.child(i + 1), Relaxed);
        }
        self.meta.store(u64::from(self.level()) << 32 | (n as u64 - 1), Relaxed);
        key
    }

    /// Separators and children.
    pub fn content(&self) -> (Vec<u64>, Vec<u64>) {
        let n = self.count();
        ((0..n).map(|i| self.key(i)).collect(), (0..=n).map(|i| self.child(i)).collect())
    }
}
