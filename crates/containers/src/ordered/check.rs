//! Verifying a whole tree.

use super::OrderedMap;
use super::node::{CAPACITY, Inner, Leaf, SEAL, Slot, Sought};
use super::tree::{Tree, UNKNOWN};
use crate::pair::Pair;
use crate::{Error, Result, bounds};
use std::sync::atomic::Ordering;
use towa_epoch::typed::scope;

/// More than any tree has: each level has at least twice as many nodes as the one above it.
const LEVELS_MAX: u64 = 40;

impl OrderedMap {
    /// Verifies the whole structure: order, fences, prefixes, counts, depth. O(n), alone in the map. Gives the number of items.
    ///
    /// # Errors
    /// [`Error::Damaged`] says what and where.
    pub fn check(&self) -> Result<u64> {
        scope::check_write()?;
        let _structure = self.0.structure.write();
        // SAFETY: the structure lock is held alone.
        let found = unsafe {
            let top = &raw const (*self.0.header.as_ptr()).top;
            if (*top).height > LEVELS_MAX {
                return Err(Error::Damaged(format!("a tree of {} levels", (*top).height)));
            }
            self.0.check_node((*top).root, (*top).height, None, None)?
        };
        let known = self.0.len.load(Ordering::Relaxed);
        if known != UNKNOWN && known != found {
            return Err(Error::Damaged(format!("the map has {found} items, and was counted to have {known}")));
        }
        Ok(found)
    }
}

impl Tree {
    /// Number of items.
    ///
    /// # Safety
    /// The structure lock is held alone.
    pub unsafe fn count_all(&self) -> u64 {
        unsafe fn count(node: *mut u8, height: u64) -> u64 {
            // SAFETY: nobody else is in the tree; `height` says what the node is.
            unsafe {
                if height == 0 {
                    return (*node.cast::<Leaf>()).count;
                }
                Inner::children(node.cast()).iter().map(|child| count(*child, height - 1)).sum()
            }
        }
        // SAFETY: the caller's promise.
        unsafe { count((*self.header.as_ptr()).top.root, (*self.header.as_ptr()).top.height) }
    }

    /// # Safety
    /// The structure lock is held alone. Pointers are checked before they are followed.
    unsafe fn check_node(&self, node: *mut u8, height: u64, from: Option<&[u8]>, to: Option<&[u8]>) -> Result<u64> {
        // SAFETY: in the heap, and what `height` says unless the tree is damaged.
        unsafe {
            if height == 0 {
                let leaf = node.cast::<Leaf>();
                bounds::check(&self.pool, leaf, 0, "a leaf")?;
                self.check_slots(node, ((*leaf).count, (*leaf).seal), || Leaf::slots(leaf), from, to)?;
                return Ok((*leaf).count);
            }
            let inner = node.cast::<Inner>();
            bounds::check(&self.pool, inner, 0, "an inner node")?;
            self.check_slots(node, ((*inner).count, (*inner).seal), || Inner::slots(inner), from, to)?;
            let fences: Vec<&[u8]> = Inner::slots(inner).iter().map(|slot| Pair::key(slot.pair)).collect();
            let mut sum = 0;
            for (i, child) in Inner::children(inner).iter().enumerate() {
                let from = i.checked_sub(1).map(|i| fences[i]).or(from);
                sum += self.check_node(*child, height - 1, from, fences.get(i).copied().or(to))?;
            }
            Ok(sum)
        }
    }

    fn check_slots<'s>(
        &self,
        node: *mut u8,
        (count, seal): (u64, u64),
        slots: impl FnOnce() -> &'s [Slot],
        from: Option<&[u8]>,
        to: Option<&[u8]>,
    ) -> Result<()> {
        if seal != SEAL {
            return Err(Error::Damaged(format!("node {node:p} is none: zeros, or something else, lie there")));
        }
        if count as usize > CAPACITY {
            return Err(Error::Damaged(format!("node {node:p} says it has {count} entries of {CAPACITY}")));
        }
        let mut before: Option<&[u8]> = None;
        for slot in slots() {
            bounds::check_pair(&self.pool, slot.pair, "an entry")?;
            // SAFETY: in the heap, and a pair unless the tree is damaged.
            let key = unsafe { Pair::key(slot.pair) };
            let in_order = before.is_none_or(|before| before < key);
            if !in_order || from.is_some_and(|from| key < from) || to.is_some_and(|to| key >= to) {
                return Err(Error::Damaged(format!("a key of node {node:p} is out of order or outside the node's fences")));
            }
            if slot.prefix != Sought::new(key).prefix {
                return Err(Error::Damaged(format!("a prefix of node {node:p} is not its key's")));
            }
            before = Some(key);
        }
        Ok(())
    }
}
