//! Removal, and the merging of nodes that have become sparse.
//!
//! A removal stays within its leaf. When few entries are left there, the leaf is merged with a neighbour by a transaction of
//! its own, and so are inner nodes on the way up. Sparse nodes between full neighbours stay: correct, and rare.

use super::node::{CAPACITY, Inner, Leaf, Slot, Sought, lower_bound};
use super::tree::{Path, Tree};
use crate::pair::Pair;
use crate::store::{put, put_bytes, shift};
use std::ptr::NonNull;
use towa_epoch::Tx;

/// Two nodes are merged if this leaves room, so that the next insertion does not split them again.
const MERGED_MAX: usize = CAPACITY * 3 / 4;

/// Whether it is worth trying to merge a leaf with so many entries left: not at each removal, in case it fails.
pub(super) fn is_sparse(count: usize) -> bool {
    matches!(count, 0 | 3 | 7)
}

impl Tree {
    /// Removes the key from its leaf, and gives how many entries are left there; `None` if it was not there. `last` sees the
    /// value before it goes.
    ///
    /// # Safety
    /// Around `tx`, the leaf's lock is held, or the structure lock alone; `leaf` is the leaf of `sought`.
    pub unsafe fn remove_from_leaf(tx: &Tx<'_>, leaf: *mut Leaf, sought: Sought<'_>) -> Option<usize> {
        // SAFETY: the caller's promise.
        unsafe {
            let count = (*leaf).count as usize;
            let (i, found) = lower_bound(Leaf::slots(leaf), sought);
            if !found {
                return None;
            }
            let slot = (&raw mut (*leaf).slots).cast::<Slot>().add(i);
            let pair = (*slot).pair;
            shift(tx, slot.add(1), slot, count - i - 1);
            put(tx, &raw mut (*leaf).count, count as u64 - 1);
            tx.free(NonNull::new_unchecked(pair).cast());
            Some(count - 1)
        }
    }

    /// Empties the leaf that `path` leads to; gives the number of entries that went.
    ///
    /// # Safety
    /// The structure lock is held alone around `tx`.
    pub unsafe fn empty_leaf(tx: &Tx<'_>, leaf: *mut Leaf) -> u64 {
        // SAFETY: nobody else is in the tree.
        unsafe {
            let pairs: Vec<*mut Pair> = Leaf::slots(leaf).iter().map(|slot| slot.pair).collect();
            put(tx, &raw mut (*leaf).count, 0);
            pairs.iter().for_each(|pair| tx.free(NonNull::new_unchecked(*pair).cast()));
            pairs.len() as u64
        }
    }

    /// Merges the leaf that `path` leads to with a neighbour, and what becomes sparse by it further up.
    ///
    /// # Safety
    /// The structure lock is held alone around `tx`.
    pub unsafe fn merge(&self, tx: &Tx<'_>, mut path: Path) {
        // SAFETY: nobody else is in the tree.
        unsafe {
            let mut merge: unsafe fn(&Tx<'_>, *mut u8, Slot, *mut u8) -> bool = merge_leaves;
            while let Some((parent, i)) = path.pop() {
                let count = (*parent).count as usize;
                // With the left neighbour, or with the right one.
                let pairs = [i.checked_sub(1), (i < count).then_some(i)];
                let merged = pairs.into_iter().flatten().any(|left| {
                    let (separator, children) = (Inner::slots(parent)[left], Inner::children(parent));
                    if !merge(tx, children[left], separator, children[left + 1]) {
                        return false;
                    }
                    unlink_right(tx, parent, left);
                    true
                });
                if !merged {
                    return;
                }
                merge = merge_inners;
                if path.is_empty() && (*parent).count == 0 {
                    let top = &raw mut (*self.header.as_ptr()).top;
                    put(tx, &raw mut (*top).root, Inner::children(parent)[0]);
                    put(tx, &raw mut (*top).height, (*top).height - 1);
                    tx.free(NonNull::new_unchecked(parent).cast());
                } else if (*parent).count as usize > CAPACITY / 4 {
                    return;
                }
            }
        }
    }
}

fn fits(left: usize, right: usize, more: usize) -> bool {
    let sum = left + right + more;
    sum <= MERGED_MAX || (left.min(right) == 0 && sum <= CAPACITY)
}

/// Moves the entries of `right` to `left` and frees `right` and the separator; `false` if they do not fit.
unsafe fn merge_leaves(tx: &Tx<'_>, left: *mut u8, separator: Slot, right: *mut u8) -> bool {
    // SAFETY: nobody else is in the tree.
    unsafe {
        let (left, right) = (left.cast::<Leaf>(), right.cast::<Leaf>());
        let (n, m) = ((*left).count as usize, (*right).count as usize);
        if !fits(n, m, 0) {
            return false;
        }
        append(tx, (&raw mut (*left).slots).cast::<Slot>().add(n), Leaf::slots(right));
        put(tx, &raw mut (*left).count, (n + m) as u64);
        tx.free(NonNull::new_unchecked(separator.pair).cast());
        tx.free(NonNull::new_unchecked(right).cast());
        true
    }
}

/// Likewise for inner nodes, between which the separator moves down.
unsafe fn merge_inners(tx: &Tx<'_>, left: *mut u8, separator: Slot, right: *mut u8) -> bool {
    // SAFETY: nobody else is in the tree.
    unsafe {
        let (left, right) = (left.cast::<Inner>(), right.cast::<Inner>());
        let (n, m) = ((*left).count as usize, (*right).count as usize);
        if !fits(n, m, 1) {
            return false;
        }
        let slots = (&raw mut (*left).slots).cast::<Slot>();
        append(tx, slots.add(n), &[separator]);
        append(tx, slots.add(n + 1), Inner::slots(right));
        append(tx, (&raw mut (*left).children).cast::<*mut u8>().add(n + 1), Inner::children(right));
        put(tx, &raw mut (*left).count, (n + m + 1) as u64);
        tx.free(NonNull::new_unchecked(right).cast());
        true
    }
}

/// Takes the separator after child `left`, and the child after that, out of `parent`.
unsafe fn unlink_right(tx: &Tx<'_>, parent: *mut Inner, left: usize) {
    // SAFETY: nobody else is in the tree.
    unsafe {
        let count = (*parent).count as usize;
        let slot = (&raw mut (*parent).slots).cast::<Slot>().add(left);
        let child = (&raw mut (*parent).children).cast::<*mut u8>().add(left + 1);
        shift(tx, slot.add(1), slot, count - left - 1);
        shift(tx, child.add(1), child, count - left - 1);
        put(tx, &raw mut (*parent).count, count as u64 - 1);
    }
}

unsafe fn append<T: Copy>(tx: &Tx<'_>, at: *mut T, values: &[T]) {
    // SAFETY: plain values are bytes; the caller has made sure of the room.
    unsafe { put_bytes(tx, at.cast(), std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values))) };
}
