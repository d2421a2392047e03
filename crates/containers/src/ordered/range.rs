//! Range scans, from both ends, a leaf at a time.
//!
//! Between steps nothing is locked. What was between the two ends and not yet copied is remembered by its bounds; each step goes
//! down the tree again to the leaf at one end of it, copies what that leaf has, and moves the bound to the leaf's fence.

use super::OrderedMap;
use super::node::{Inner, Leaf, Sought, lower_bound};
use crate::pair::Pair;
use std::collections::VecDeque;
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use towa_epoch::typed::scope;

type Item = (Vec<u8>, Vec<u8>);
type Key = Bound<Vec<u8>>;

/// Iterator over copies of the items of a range; both ends may be taken from.
///
/// **Weakly consistent**: in order; what is there throughout is met exactly once; what is inserted, removed or changed meanwhile
/// may or may not be seen. Inside a transaction it ends.
#[derive(Debug)]
pub struct Range {
    map: OrderedMap,
    /// Copied at the front, in order.
    front: VecDeque<Item>,
    /// Copied at the back, in order.
    back: VecDeque<Item>,
    /// What has not been copied; `None` when that is nothing.
    rest: Option<(Key, Key)>,
}

impl Range {
    pub(super) fn new(map: OrderedMap, from: Key, to: Key) -> Self {
        Self { map, front: VecDeque::new(), back: VecDeque::new(), rest: Some((from, to)) }
    }
}

impl Iterator for Range {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        while self.front.is_empty() && self.rest.is_some() {
            self.rest = self.map.copy_first_leaf(self.rest.take(), &mut self.front);
        }
        self.front.pop_front().or_else(|| self.back.pop_front())
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Item> {
        while self.back.is_empty() && self.rest.is_some() {
            self.rest = self.map.copy_last_leaf(self.rest.take(), &mut self.back);
        }
        self.back.pop_back().or_else(|| self.front.pop_back())
    }
}

impl OrderedMap {
    /// Copies what the first leaf of the range has; gives the range that remains.
    fn copy_first_leaf(&self, rest: Option<(Key, Key)>, into: &mut VecDeque<Item>) -> Option<(Key, Key)> {
        let (from, to) = rest?;
        let is_nested = scope::check_read().ok()?;
        let _structure = scope::lock(&self.0.structure, is_nested);
        let mut fence = None;
        // SAFETY: the structure lock is held.
        let leaf = unsafe {
            self.0.descend(|inner| {
                let child = match &from {
                    Included(key) | Excluded(key) => Inner::child_of(inner, Sought::new(key)),
                    Unbounded => 0,
                };
                // The nearest fence is the lowest one passed.
                fence = Inner::slots(inner).get(child).map(|slot| Pair::key(slot.pair)).or(fence);
                child
            })
        };
        // SAFETY: the structure lock is held, and the leaf's.
        unsafe { self.copy_leaf(leaf, is_nested, &from, &to, into) };
        let next = Included(fence?.to_vec());
        (!is_empty(&next, &to)).then_some((next, to))
    }

    /// Copies what the last leaf of the range has; gives the range that remains.
    fn copy_last_leaf(&self, rest: Option<(Key, Key)>, into: &mut VecDeque<Item>) -> Option<(Key, Key)> {
        let (from, to) = rest?;
        let is_nested = scope::check_read().ok()?;
        let _structure = scope::lock(&self.0.structure, is_nested);
        let mut fence = None;
        // SAFETY: the structure lock is held.
        let leaf = unsafe {
            self.0.descend(|inner| {
                let slots = Inner::slots(inner);
                let child = match &to {
                    Included(key) => Inner::child_of(inner, Sought::new(key)),
                    // Keys below a separator are to its left.
                    Excluded(key) => lower_bound(slots, Sought::new(key)).0,
                    Unbounded => slots.len(),
                };
                fence = child.checked_sub(1).map(|i| Pair::key(slots[i].pair)).or(fence);
                child
            })
        };
        // SAFETY: the structure lock is held, and the leaf's.
        unsafe { self.copy_leaf(leaf, is_nested, &from, &to, into) };
        let next = Excluded(fence?.to_vec());
        (!is_empty(&from, &next)).then_some((from, next))
    }

    /// Appends the leaf's items between the bounds.
    ///
    /// # Safety
    /// The structure lock is held.
    unsafe fn copy_leaf(&self, leaf: *mut Leaf, is_nested: bool, from: &Key, to: &Key, into: &mut VecDeque<Item>) {
        let _leaf = scope::lock(self.0.leaf_lock(leaf), is_nested);
        // SAFETY: the leaf's lock is held.
        unsafe {
            let slots = Leaf::slots(leaf);
            let at = |key: &[u8]| lower_bound(slots, Sought::new(key));
            let first = match from {
                Included(key) => at(key).0,
                Excluded(key) => at(key).0 + usize::from(at(key).1),
                Unbounded => 0,
            };
            let end = match to {
                Included(key) => at(key).0 + usize::from(at(key).1),
                Excluded(key) => at(key).0,
                Unbounded => slots.len(),
            };
            for slot in slots.get(first..end).unwrap_or_default() {
                into.push_back((Pair::key(slot.pair).to_vec(), Pair::value(slot.pair).to_vec()));
            }
        }
    }
}

/// Whether no key can lie between the bounds.
fn is_empty(from: &Key, to: &Key) -> bool {
    match (from, to) {
        (Unbounded, _) | (_, Unbounded) => false,
        (Included(from), Included(to)) => from > to,
        (Included(from) | Excluded(from), Included(to) | Excluded(to)) => from >= to,
    }
}
