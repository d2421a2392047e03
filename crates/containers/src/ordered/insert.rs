//! Insertion: within a leaf when it has room, else by splitting on the way up.
//!
//! Everything a split needs is allocated before the first store, so that running out of space changes nothing.

use super::node::{CAPACITY, Inner, Leaf, Slot, Sought, lower_bound, separator};
use super::tree::{Path, Tree};
use crate::Result;
use crate::pair::{self, Pair};
use crate::store::{put, put_bytes, shift};
use std::ptr::NonNull;
use towa_epoch::Tx;

/// What became of an attempt to insert within a leaf.
pub(super) enum Fit {
    Done { new: bool },
    LeafIsFull,
}

fn new_pair(tx: &Tx<'_>, sought: Sought<'_>, value: &[u8]) -> Result<Slot> {
    let pair = tx.alloc(pair::size(sought.key, value)?)?.cast::<Pair>().as_ptr();
    // SAFETY: a fresh block of that size, marked.
    unsafe { Pair::init(pair, sought.key, value) };
    Ok(Slot { prefix: sought.prefix, pair })
}

impl Tree {
    /// Whether `sought` can be stored in the leaf without splitting it.
    ///
    /// # Safety
    /// As [`insert_in_leaf`](Self::insert_in_leaf).
    pub unsafe fn fits(leaf: *mut Leaf, sought: Sought<'_>) -> bool {
        // SAFETY: the caller's promise.
        unsafe { ((*leaf).count as usize) < CAPACITY || lower_bound(Leaf::slots(leaf), sought).1 }
    }

    /// Stores the pair if the leaf has room, or the key already.
    ///
    /// # Safety
    /// Around `tx`, the leaf's lock is held, or the structure lock alone; `leaf` is the leaf of `sought`.
    pub unsafe fn insert_in_leaf(&self, tx: &Tx<'_>, leaf: *mut Leaf, sought: Sought<'_>, value: &[u8]) -> Result<Fit> {
        // SAFETY: the caller's promise; the new pair is ours.
        unsafe {
            let count = (*leaf).count as usize;
            let (i, found) = lower_bound(Leaf::slots(leaf), sought);
            let slot = (&raw mut (*leaf).slots).cast::<Slot>().add(i);
            if found {
                let old = (*slot).pair;
                if !Pair::replace(tx, old, value, self.capacity(old)) {
                    put(tx, &raw mut (*slot).pair, new_pair(tx, sought, value)?.pair);
                    tx.free(NonNull::new_unchecked(old).cast());
                }
                return Ok(Fit::Done { new: false });
            }
            if count == CAPACITY {
                return Ok(Fit::LeafIsFull);
            }
            let new = new_pair(tx, sought, value)?;
            shift(tx, slot, slot.add(1), count - i);
            put(tx, slot, new);
            put(tx, &raw mut (*leaf).count, count as u64 + 1);
            Ok(Fit::Done { new: true })
        }
    }

    /// Stores the pair, splitting what must be split; whether the key is new.
    ///
    /// # Safety
    /// The structure lock is held alone around `tx`.
    pub unsafe fn insert_alone(&self, tx: &Tx<'_>, sought: Sought<'_>, value: &[u8]) -> Result<bool> {
        // SAFETY: nobody else is in the tree.
        unsafe {
            let (path, leaf) = self.path_to(sought);
            match self.insert_in_leaf(tx, leaf, sought, value)? {
                Fit::Done { new } => Ok(new),
                Fit::LeafIsFull => self.split_leaf(tx, path, leaf, sought, value).map(|()| true),
            }
        }
    }

    /// # Safety
    /// As [`insert_alone`](Self::insert_alone); the leaf is full and has not the key; `path` leads to it.
    unsafe fn split_leaf(&self, tx: &Tx<'_>, path: Path, leaf: *mut Leaf, sought: Sought<'_>, value: &[u8]) -> Result<()> {
        // SAFETY: nobody else is in the tree.
        unsafe {
            let (i, _) = lower_bound(Leaf::slots(leaf), sought);
            // Keys that only grow leave full leaves behind, if the last leaf is split at its end.
            let is_last = path.iter().all(|(inner, child)| *child == (**inner).count as usize);
            let left = if is_last && i == CAPACITY { CAPACITY } else { CAPACITY.div_ceil(2) };

            let mut spare = Spare::new(tx);
            let new = spare.keep(new_pair(tx, sought, value)?);
            let mut slots = Leaf::slots(leaf).to_vec();
            slots.insert(i, new);
            let between = separator(Pair::key(slots[left - 1].pair), Pair::key(slots[left].pair));
            let separator = spare.keep(new_pair(tx, Sought::new(between), &[])?);
            let right = spare.node::<Leaf>()?;
            let inners = self.inners_for(&path, &mut spare)?;
            spare.used();

            Leaf::init(right, &slots[left..]);
            if i < left {
                put_slots(tx, (&raw mut (*leaf).slots).cast(), i, &slots[..left]);
            }
            put(tx, &raw mut (*leaf).count, left as u64);
            self.insert_in_parents(tx, path, inners, separator, right.cast());
            Ok(())
        }
    }

    /// Nodes for the inner splits that follow: one for each full node at the path's end, and a root if all are full.
    unsafe fn inners_for(&self, path: &Path, spare: &mut Spare<'_>) -> Result<Vec<*mut Inner>> {
        // SAFETY: nobody else is in the tree.
        let full = path.iter().rev().take_while(|(inner, _)| unsafe { (**inner).count } as usize == CAPACITY).count();
        (0..full + usize::from(full == path.len())).map(|_| spare.node::<Inner>()).collect()
    }

    /// Links `right` (beginning at `separator`) behind the child that `path` leads to.
    ///
    /// # Safety
    /// As [`insert_alone`](Self::insert_alone); `inners` are from [`inners_for`](Self::inners_for).
    unsafe fn insert_in_parents(
        &self,
        tx: &Tx<'_>,
        mut path: Path,
        mut inners: Vec<*mut Inner>,
        mut separator: Slot,
        mut right: *mut u8,
    ) {
        // SAFETY: nobody else is in the tree; fresh nodes are ours.
        unsafe {
            while let Some((inner, i)) = path.pop() {
                let count = (*inner).count as usize;
                let slot = (&raw mut (*inner).slots).cast::<Slot>().add(i);
                let child = (&raw mut (*inner).children).cast::<*mut u8>().add(i + 1);
                if count < CAPACITY {
                    shift(tx, slot, slot.add(1), count - i);
                    put(tx, slot, separator);
                    shift(tx, child, child.add(1), count - i);
                    put(tx, child, right);
                    put(tx, &raw mut (*inner).count, count as u64 + 1);
                    return;
                }
                let mut slots = Inner::slots(inner).to_vec();
                let mut children = Inner::children(inner).to_vec();
                slots.insert(i, separator);
                children.insert(i + 1, right);
                let left = CAPACITY.div_ceil(2);
                let new = inners.pop().expect("one for each full node");
                Inner::init(new, &slots[left + 1..], &children[left + 1..]);
                if i < left {
                    put_slots(tx, (&raw mut (*inner).slots).cast(), i, &slots[..left]);
                    put_slots(tx, (&raw mut (*inner).children).cast(), i + 1, &children[..left + 1]);
                }
                put(tx, &raw mut (*inner).count, left as u64);
                (separator, right) = (slots[left], new.cast());
            }
            let root = inners.pop().expect("one for the new root");
            let top = &raw mut (*self.header.as_ptr()).top;
            Inner::init(root, &[separator], &[(*top).root, right]);
            put(tx, &raw mut (*top).root, root.cast());
            put(tx, &raw mut (*top).height, (*top).height + 1);
        }
    }
}

/// Stores `new[from..]` at its place in an array whose beginning equals `new[..from]`.
unsafe fn put_slots<T: Copy>(tx: &Tx<'_>, array: *mut T, from: usize, new: &[T]) {
    // SAFETY: a slice of plain values is bytes; the caller holds the structure lock alone.
    unsafe {
        let bytes = std::slice::from_raw_parts(new.as_ptr().add(from).cast::<u8>(), size_of_val(&new[from..]));
        put_bytes(tx, array.add(from).cast(), bytes);
    }
}

/// Blocks allocated for a change that has not begun; freed again unless it does.
struct Spare<'t> {
    tx: &'t Tx<'t>,
    blocks: Vec<NonNull<u8>>,
}

impl<'t> Spare<'t> {
    fn new(tx: &'t Tx<'_>) -> Self {
        Self { tx, blocks: Vec::new() }
    }

    fn keep(&mut self, slot: Slot) -> Slot {
        self.blocks.extend(NonNull::new(slot.pair.cast()));
        slot
    }

    fn node<N>(&mut self) -> Result<*mut N> {
        let block = self.tx.alloc(size_of::<N>())?;
        self.blocks.push(block);
        Ok(block.cast().as_ptr())
    }

    fn used(mut self) {
        self.blocks.clear();
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            // SAFETY: allocated by this transaction and linked nowhere.
            unsafe { self.tx.free(block) };
        }
    }
}
