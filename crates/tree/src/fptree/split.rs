//! Leaves come and go. Each step, and why stopping after it is safe.
//!
//! ```text
//!   split of L, locked and full                                          stopped here, the next opening finds
//!   1  N := copy of L, upper half of the bitmap; write back              N cannot be reached: free
//!   2  log := L, N; write back | FENCE                                   the log, and L.next is not N: cleared
//!   3  L.next := N; write back | FENCE                                   the log, and L.next is N, both hold the upper half:
//!                                                                          L.bitmap loses what N has, the log is cleared
//!   4  L.bitmap := lower half; write back | FENCE                        the log, and L.next is N: the same again, which changes nothing
//!   5  log := 0, 0; write back                                           half a log is none; a whole one: as after 4
//!      (fenced by the insert's first fence; until then L is locked and nobody else knows N)
//!   6  N into the index, L unlocked
//!
//!   unlink of E, locked, its last key's bit cleared and written back, P before it in the list, locked
//!   1  P.next := E.next; write back | FENCE                              E is linked, with its key or empty, or cannot be reached: free
//!   2  E out of the index, to the spare leaves, both unlocked
//! ```
//!
//! What must always hold: a leaf waits for leaves before it in the list only, and for the index; the index waits for nobody: no deadlock. N
//! is another block than any that L.next was when the log was last durable as something else, for a leaf is used again only after the
//! store that unlinked it is durable.

use std::borrow::Borrow;
use std::sync::atomic::Ordering::*;

use super::index::{Place, Range};
use super::layout::*;
use super::leaf::{Leaf, sorted};
use super::session::Patience;
use super::{FpSession, FpTree};
use crate::{Key, Result};

/// A leaf that split off another, not in the index yet.
pub(super) struct Split<'t, K: Key + ?Sized> {
    pub right: Leaf<'t>,
    /// Its least key.
    pub key: K::Owned,
    separator: u64,
    log: u32,
}

impl<K: Key + ?Sized> FpTree<K> {
    /// A micro-log for one split.
    fn take_log(&self) -> Result<u32> {
        let mut patience = Patience::default();
        loop {
            let idle = self.idle_logs.load(Relaxed);
            if idle != 0 && self.idle_logs.compare_exchange_weak(idle, idle & (idle - 1), Acquire, Relaxed).is_ok() {
                return Ok(idle.trailing_zeros());
            }
            patience.wait(self)?;
        }
    }

    fn give_log(&self, log: u32) {
        self.idle_logs.fetch_or(1 << log, Release);
    }
}

impl<'t, K: Key + ?Sized> FpSession<'t, K> {
    /// Steps 1 to 5. Fails for want of space before anything durable was changed.
    #[cold]
    pub(super) fn split(&mut self, leaf: Leaf<'t>) -> Result<Split<'t, K>> {
        let tree = self.tree;
        let arena = &*tree.arena;
        let mut image = leaf.image();
        let keys = sorted::<K>(&image, arena)?;
        let (key, _) = keys[keys.len() / 2].clone();
        let upper = keys[keys.len() / 2..].iter().fold(0, |bits, (_, slot)| bits | 1 << slot);
        let separator = tree.index.separator(key.borrow())?;
        let right = match self.fresh_leaf() {
            Ok(right) => right,
            Err(e) => {
                tree.index.drop_separator(separator);
                return Err(e);
            }
        };
        let lower = image[BITMAP] & !upper;
        image[BITMAP] = upper;
        right.write(arena, &image)?;
        let log = tree.take_log()?;
        let log_off = log_at(arena, log);
        arena.store(log_off, &[leaf.off, right.off])?;
        arena.write_back(log_off, 16);
        arena.fence()?;
        leaf.set_next(arena, right.off)?;
        arena.fence()?;
        leaf.commit(arena, lower)?;
        arena.store(log_off, &[0, 0])?;
        arena.write_back(log_off, 16);
        Ok(Split { right, key, separator, log })
    }

    /// Step 6, once the log is durably clear.
    pub(super) fn publish(&mut self, split: Split<'t, K>) {
        self.tree.give_log(split.log);
        self.tree.index.insert(split.key.borrow(), split.separator, split.right.off);
    }

    /// A leaf that was one before, or a block that never was. Its version is even.
    fn fresh_leaf(&mut self) -> Result<Leaf<'t>> {
        let arena = &*self.tree.arena;
        let spare = self.tree.spare.lock().pop();
        if let Some(off) = spare {
            return Ok(Leaf::at(arena, off).expect("it was a leaf"));
        }
        let leaf = Leaf::at(arena, self.local.reserve(LEAF_LEN)?).expect("a block of the arena");
        leaf.reset_version();
        Ok(leaf)
    }

    /// Takes an empty leaf out of the list, in whose range `key` is, and unlocks it.
    #[cold]
    pub(super) fn unlink(&mut self, leaf: Leaf<'t>, version: u64, key: &K) -> Result<()> {
        let tree = self.tree;
        let arena = &*tree.arena;
        let mut range = Range::<K>::default();
        let mut patience = Patience::default();
        let (before, before_version) = loop {
            // Its lower bound may move while we wait: a neighbour that goes leaves its range to this leaf.
            let found = tree.index.try_find_range(&Place::Of(key), arena, &mut range);
            let is_it = found.is_some_and(|found| found.leaf.off == leaf.off);
            if let (true, Some(low)) = (is_it, &range.low) {
                let before = tree.index.try_find(&Place::Before(low.borrow()), arena);
                if let Some(before) = before
                    && before.leaf.off != leaf.off
                    && before.version & 1 == 0
                    && before.leaf.lock(before.version)
                {
                    break (before.leaf, before.version);
                }
            }
            patience.wait(tree)?;
        };
        if before.next() != leaf.off {
            before.unlock_unchanged(before_version);
            leaf.unlock(version);
            return Err(tree.damaged(format!("leaf {:#x} does not follow {:#x}, as the index says", leaf.off, before.off)));
        }
        before.set_next(arena, leaf.next())?;
        arena.fence()?;
        let known = tree.index.remove(key, leaf.off);
        debug_assert!(known, "a leaf of the list is in the index");
        before.unlock(before_version);
        leaf.unlock(version);
        tree.spare.lock().push(leaf.off);
        Ok(())
    }
}
