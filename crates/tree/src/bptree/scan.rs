//! Scans: leaf by leaf. Leaves are not linked; the way to the next one is a walk to where the last one's range ends.
//!
//! ```text
//!   walk, noting the separators left and right of it ─► leaf: range [low, high) ─► entries under one version, sorted ─► durable? ─► given
//!        ▲                                                                                                                       │
//!        └──────────────── forward: the leaf of `high`;  backward: the leaf below `low` ◄──────────────────────────────────────────┘
//! ```
//!
//! What must always hold: a leaf has its range as long as it has its version (`walk.rs`), so between two leaves nothing is left out and
//! nothing is given twice, whatever is split and merged meanwhile: the next leaf may begin earlier, and what was given is passed over.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use super::session::BpSession;
use super::split::Entry;
use super::walk::{Leaf, Range, Target};
use crate::keys::Key;
use crate::map::{Direction, Result};

/// Entries of a leaf.
type Entries<K> = Vec<Entry<<K as Key>::Owned>>;

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpSession<'_, K, LEAF, INNER> {
    pub(super) fn scan_leaves(
        &mut self,
        (from, to): (Bound<&K>, Bound<&K>),
        direction: Direction,
        each: &mut dyn FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let forward = direction == Direction::Forward;
        // Where the next leaf is looked for; what it has on the other side of it was given before.
        let mut border: Option<K::Owned> = None;
        loop {
            let target = match (&border, forward) {
                (Some(border), true) => Target::At(border.borrow()),
                (Some(border), false) => Target::Below(border.borrow()),
                (None, true) => match from {
                    Bound::Included(key) | Bound::Excluded(key) => Target::At(key),
                    Bound::Unbounded => Target::First,
                },
                (None, false) => match to {
                    Bound::Included(key) => Target::At(key),
                    Bound::Excluded(key) => Target::Below(key),
                    Bound::Unbounded => Target::Last,
                },
            };
            let (leaf, range, entries) = self.leaf(target)?;
            self.thread.wait_durable(leaf.version)?;
            let is_new = |key: &K| match &border {
                Some(border) if forward => key >= border.borrow(),
                Some(border) => key < border.borrow(),
                None => true,
            };
            let mut wanted = entries.iter().filter(|e| {
                let key: &K = e.key.borrow();
                is_new(key) && (from, to).contains_key(key)
            });
            while let Some(e) = if forward { wanted.next() } else { wanted.next_back() } {
                if each(e.key.borrow(), e.value).is_break() {
                    return Ok(());
                }
            }
            // On to the next, unless all of it lies beyond the end.
            border = if forward { range.high } else { range.low };
            let Some(border) = border.as_ref().map(Borrow::borrow) else { return Ok(()) };
            let over = if forward { !to.may_follow(border) } else { !from.may_precede(border) };
            if over {
                return Ok(());
            }
        }
    }

    /// The leaf of `target`, its range, and its entries, sorted.
    pub(super) fn leaf(&self, target: Target<'_, K>) -> Result<(Leaf, Range<K>, Entries<K>)> {
        let mut range = Range { low: None, high: None };
        let mut tries = 0;
        loop {
            let leaf = self.tree.walk(&self.thread, target, &mut range)?;
            if let Some(entries) = self.entries(leaf) {
                return Ok((leaf, range, entries));
            }
            self.tree.pause(&mut tries)?;
        }
    }
}

/// Questions to a bound.
trait Limit<K: ?Sized> {
    /// As an upper one: whether keys from `border` on may lie below it.
    fn may_follow(&self, border: &K) -> bool;
    /// As a lower one: whether keys below `border` may lie above it.
    fn may_precede(&self, border: &K) -> bool;
}

impl<K: Ord + ?Sized> Limit<K> for Bound<&K> {
    fn may_follow(&self, border: &K) -> bool {
        match self {
            Bound::Included(to) => border <= to,
            Bound::Excluded(to) => border < to,
            Bound::Unbounded => true,
        }
    }

    fn may_precede(&self, border: &K) -> bool {
        match self {
            Bound::Included(from) | Bound::Excluded(from) => border > from,
            Bound::Unbounded => true,
        }
    }
}

/// Whether a key lies between two bounds.
trait Between<K: ?Sized> {
    fn contains_key(&self, key: &K) -> bool;
}

impl<K: Ord + ?Sized> Between<K> for (Bound<&K>, Bound<&K>) {
    fn contains_key(&self, key: &K) -> bool {
        let from = match self.0 {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        from && self.1.may_follow(key)
    }
}
