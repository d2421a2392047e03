//! Every invariant of a tree, looked at while nobody writes.
//!
//! ```text
//!   from the root down: versions, counts, levels, order, ranges ─► every node and blob once ─► free lists ─► each in a live block,
//!   and, where the pool has no root but this tree: no live block besides
//! ```

use std::borrow::Borrow;
use std::collections::HashSet;

use towa_tx::{Addr, Thread};

use super::BpTree;
use super::layout::{ENTRIES, Inner, LEVELS_MAX, Shape, VERSION, WORD_1, Word, copy, header};
use super::walk::Loads;
use crate::fingerprint;
use crate::keys::Key;
use crate::map::Result;

/// What was found so far.
struct Seen<'t, K: Key + ?Sized, const LEAF: usize, const INNER: usize> {
    tree: &'t BpTree<K, LEAF, INNER>,
    thread: Thread,
    /// First addresses of live blocks.
    blocks: HashSet<u64>,
}

/// An end of a range of keys.
type End<'k, K> = Option<&'k <K as Key>::Owned>;

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpTree<K, LEAF, INNER> {
    pub(super) fn check_all(&self) -> Result<()> {
        let mut seen = Seen { tree: self, thread: self.thread()?, blocks: HashSet::new() };
        seen.block(self.header, header::LEN, "the header")?;
        let [version, root, level] = [header::VERSION, header::ROOT, header::LEVEL].map(|at| seen.thread.load(self.header + at));
        if !version.is_multiple_of(2) {
            return Err(self.damaged("the header's version is locked"));
        }
        if level > LEVELS_MAX {
            return Err(self.damaged(format!("the root has level {level}")));
        }
        if !self.has_lost_all_nodes(&seen.thread) {
            seen.node(root, level, None, None)?;
        }
        for (list, level, what) in [(header::FREE_LEAVES, 0, "a free leaf"), (header::FREE_INNERS, 1, "a free inner node")] {
            let mut next = seen.thread.load(self.header + list);
            while next != 0 {
                seen.begin_node(next, level, what)?;
                next = seen.thread.load(next + WORD_1);
            }
        }
        if self.pool.root_names().len() == 1 { seen.no_other_block() } else { Ok(()) }
    }
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> Seen<'_, K, LEAF, INNER> {
    /// `at..at + len` lies in a live block that was not seen before.
    fn block(&mut self, at: Addr, len: u64, what: &str) -> Result<()> {
        match self.tree.pool.heap().allocator().block_of(at as usize) {
            Some(block) if block.live && block.start as u64 + block.len as u64 >= at + len => {
                if self.blocks.insert(block.start as u64) {
                    return Ok(());
                }
                Err(self.tree.damaged(format!("{what} at {at:#x} is used twice")))
            }
            _ => Err(self.tree.damaged(format!("{what} at {at:#x} lies in no live block"))),
        }
    }

    fn begin_node(&mut self, node: Addr, level: u64, what: &str) -> Result<()> {
        if BpTree::<K, LEAF, INNER>::node(&self.thread, node, level).is_none() {
            return Err(self.tree.damaged(format!("{what} at {node:#x} cannot be one")));
        }
        self.block(node, 8 * Shape::<LEAF, INNER>::words(level) as u64, what)?;
        if !self.thread.load(node + VERSION).is_multiple_of(2) {
            return Err(self.tree.damaged(format!("{what} at {node:#x} is locked")));
        }
        Ok(())
    }

    /// A stored key, not below `low` and below `high`.
    fn key(&mut self, stored: u64, low: End<'_, K>, high: End<'_, K>, what: &str) -> Result<K::Owned> {
        let mut key = K::Owned::default();
        let bytes = K::blob_bytes(stored, &Loads(&self.thread));
        let (Some(bytes), true) = (bytes, K::read(stored, &Loads(&self.thread), &mut key)) else {
            return Err(self.tree.damaged(format!("{what}: {stored:#x} is no key's address")));
        };
        if bytes > 0 {
            self.block(stored, bytes as u64, what)?;
        }
        if low.is_some_and(|low| key < *low) || high.is_some_and(|high| key >= *high) {
            return Err(self.tree.damaged(format!("{what}: {key:?} is not in {low:?}..{high:?}")));
        }
        Ok(key)
    }

    /// A node with the range `low..high`, and all below it.
    fn node(&mut self, node: Addr, level: u64, low: End<'_, K>, high: End<'_, K>) -> Result<()> {
        if level == 0 {
            return self.leaf(node, low, high);
        }
        self.begin_node(node, level, "an inner node")?;
        let words = copy(&self.thread, node, Shape::<LEAF, INNER>::INNER_WORDS);
        let Some(inner) = Inner::of::<LEAF, INNER>(&words).filter(|inner| inner.level == level) else {
            return Err(self
                .tree
                .damaged(format!("the inner node at {node:#x} of level {level} has count and level {:#x}", words[1])));
        };
        let stored = |word: &Word| if let Word::Is(value) = word { *value } else { unreachable!("copied") };
        let mut keys: Vec<K::Owned> = Vec::with_capacity(INNER);
        for key in &inner.keys {
            let key = self.key(stored(key), keys.last().or(low), high, "a separator")?;
            if keys.last() == Some(&key) {
                return Err(self.tree.damaged(format!("the inner node at {node:#x} has {key:?} twice")));
            }
            keys.push(key);
        }
        for (i, child) in inner.children.iter().enumerate() {
            let from = i.checked_sub(1).map(|i| &keys[i]).or(low);
            self.node(stored(child), level - 1, from, keys.get(i).or(high))?;
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: Addr, low: End<'_, K>, high: End<'_, K>) -> Result<()> {
        self.begin_node(leaf, 0, "a leaf")?;
        let words = copy(&self.thread, leaf, Shape::<LEAF, INNER>::LEAF_WORDS);
        let prints = &words[2..8];
        if words[1] & !Shape::<LEAF, INNER>::FULL != 0 {
            return Err(self.tree.damaged(format!("the leaf at {leaf:#x} has the bitmap {:#x}", words[1])));
        }
        let mut keys = HashSet::new();
        for slot in (0..LEAF).filter(|slot| words[1] >> slot & 1 == 1) {
            let key = self.key(words[ENTRIES as usize / 8 + 2 * slot], low, high, "an entry")?;
            let borrowed: &K = key.borrow();
            if borrowed.fingerprint() != fingerprint::of_slot(prints[slot / 8], slot) {
                return Err(self.tree.damaged(format!("the leaf at {leaf:#x} has another fingerprint for {key:?}")));
            }
            if !keys.insert(format!("{key:?}")) {
                return Err(self.tree.damaged(format!("the leaf at {leaf:#x} has {key:?} twice")));
            }
        }
        Ok(())
    }

    /// All live blocks were seen.
    fn no_other_block(&self) -> Result<()> {
        let live = self.tree.pool.check_blocks().map_err(|what| self.tree.damaged(format!("the allocator: {what}")))?;
        let known = self.blocks.len() as u64;
        if live != known {
            return Err(self.tree.damaged(format!("{live} blocks are allocated, the tree has {known}")));
        }
        Ok(())
    }
}
