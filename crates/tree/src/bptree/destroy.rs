//! Giving blocks back to the pool: free nodes of a tree that nothing has open, and a whole tree.
//!
//! ```text
//!   free nodes   list ─► x ─► y ─► z ─► ...          one step: the list begins at z; x and y are free blocks
//!
//!   destroy      1 mark the header        from here on the tree cannot be opened
//!                2 cut leaves off, from the right; with an inner node's last child the node itself, and so on up to
//!                  the root
//!                3 free nodes             4 header and root name
//! ```
//!
//! What must always hold: nothing here runs beside a session. A walk keeps addresses of nodes and believes their
//! version words; in a block that was given back that word may become anything, the version that the walk knows
//! included. So these run when a tree is opened or closed, alone, while nothing else in this process (which owns the
//! pool) has it open.
//!
//! Each step is one transaction that frees a bounded number of blocks. It is over (where commits are strict: durable)
//! before a session begins, so no session must wait for it: steps stamp no version.
//!
//! Stopping after each is safe:
//! - of the free lists, what was taken out is free, and the rest is a list as before;
//! - after 1, and after each step of 2, the tree is whole, with fewer keys: an inner node has one child at least,
//!   and what leads to a block is cut in the transaction that frees it. The mark keeps programs from taking it for the
//!   tree that it was; destroying it again goes on;
//! - after 3 the header says that there is no root; 4 is one transaction.

use towa_tx::{Abort, Addr, Pool, Thread, Tx};

use super::BpTree;
use super::layout::{KEYS, Shape, VERSION, WORD_1, entry, header, keys_of, meta};
use crate::fingerprint::slots;
use crate::keys::Key;
use crate::map::{Error, Result};

/// Blocks that one step frees, about: its record fits into half of the least log.
const STEP: usize = 64;

/// What a step does.
#[derive(Debug, Default)]
struct Step {
    writes: Vec<(Addr, u64)>,
    /// Addresses in the blocks to be freed: of nodes, which begin somewhere in them, and of blobs.
    frees: Vec<Addr>,
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpTree<K, LEAF, INNER> {
    /// Removes the tree that is root `name` of `pool` and gives all its blocks back. Of one whose destruction did
    /// not end, because the process did, it goes on with that.
    ///
    /// # Errors
    /// [`Error::InUse`]: this program has it open. [`Error::Mismatch`]: as for [`open`](Self::open). If the pool
    /// fails meanwhile, a part of the tree may be gone; once the pool was opened again, this goes on.
    pub fn destroy(pool: &Pool, name: &str) -> Result<()> {
        let hold = pool.hold_root(name);
        let entered = hold.enter();
        if !entered.is_only() {
            let what = format!("the tree {name:?} is open in this program; close it before it is destroyed");
            return Err(Error::InUse { pool: pool.location(), what });
        }
        let (mut thread, at) = Self::find(pool, name)?;
        let tree = Self::at(pool, pool.hold_root(name), at);
        tree.change(&mut thread, |tx| tx.write(at + header::DESTROYED, 1))?;
        while let Some(step) = tree.cut(&thread)? {
            tree.take(&mut thread, &step)?;
        }
        tree.give_back_free_nodes(&mut thread)?;
        let block = tree.block_of(at)?;
        tree.change(&mut thread, |tx| {
            tx.remove_held_root(&hold)?;
            tx.free(block)
        })
    }

    /// Closes the tree, and gives the nodes that it has no use for back to the pool, unless this program has it open
    /// elsewhere, too. (Opening does the same. A tree that is only dropped keeps them until then.)
    ///
    /// # Errors
    /// The pool's.
    pub fn close(self) -> Result<()> {
        let entered = self.hold.enter();
        if !entered.is_only() {
            return Ok(());
        }
        match self.pool.register() {
            Ok(mut thread) => self.give_back_free_nodes(&mut thread),
            // They are given back when it is opened again.
            Err(towa_tx::Error::TooManyThreads { .. }) => Ok(()),
            Err(e) => Err(Error::Tx(e)),
        }
    }

    /// Gives free nodes back. Nothing has the tree open.
    pub(super) fn give_back_free_nodes(&self, thread: &mut Thread) -> Result<()> {
        for (list, level) in [(header::FREE_LEAVES, 0), (header::FREE_INNERS, 1)] {
            loop {
                let mut step = Step::default();
                let mut next = thread.load(self.header + list);
                while next != 0 && step.frees.len() < STEP {
                    if Self::node(thread, next, level).is_none() {
                        return Err(self.damaged(format!("a free node at {next:#x} cannot be one")));
                    }
                    step.frees.push(next);
                    next = thread.load(next + WORD_1);
                }
                if step.frees.is_empty() {
                    break;
                }
                step.writes.push((self.header + list, next));
                self.take(thread, &step)?;
            }
        }
        Ok(())
    }

    /// Whether the tree was being destroyed, and no node of it was left.
    pub(super) fn has_lost_all_nodes(&self, thread: &Thread) -> bool {
        thread.load(self.header + header::ROOT) == 0 && thread.load(self.header + header::DESTROYED) != 0
    }

    /// The next step that makes the tree smaller; `None`: it has no node any more.
    fn cut(&self, thread: &Thread) -> Result<Option<Step>> {
        let (root, mut level) = (thread.load(self.header + header::ROOT), thread.load(self.header + header::LEVEL));
        if root == 0 {
            return Ok(None);
        }
        let none = [(self.header + header::ROOT, 0), (self.header + header::LEVEL, 0)];
        let mut step = Step::default();
        // Down the right edge, to the lowest inner node.
        let (mut node, mut above) = (root, Vec::new());
        while level > 0 {
            let keys = self.keys_at(thread, node, level)?;
            above.push((node, level, keys));
            node = self.child(thread, node, keys);
            level -= 1;
        }
        let Some((parent, level, keys)) = above.pop() else {
            self.drop_leaf(thread, root, &mut step)?;
            step.writes.extend(none);
            return Ok(Some(step));
        };
        let mut left = keys + 1;
        while left > 0 && step.frees.len() < STEP {
            left -= 1;
            self.drop_leaf(thread, self.child(thread, parent, left), &mut step)?;
            self.drop_separator(thread, parent, left, &mut step);
        }
        if left > 0 {
            step.writes.push((parent + WORD_1, meta(left - 1, level)));
            return Ok(Some(step));
        }
        step.frees.push(parent);
        while let Some((node, level, keys)) = above.pop() {
            if keys > 0 {
                self.drop_separator(thread, node, keys, &mut step);
                step.writes.push((node + WORD_1, meta(keys - 1, level)));
                return Ok(Some(step));
            }
            // That was its only child.
            step.frees.push(node);
        }
        step.writes.extend(none);
        Ok(Some(step))
    }

    /// Number of keys of an inner node.
    fn keys_at(&self, thread: &Thread, node: Addr, level: u64) -> Result<usize> {
        let words = Self::node(thread, node, level).ok_or_else(|| self.damaged("a node's address is that of none"))?;
        let keys = keys_of(words.load(WORD_1 as usize / 8));
        if keys > INNER {
            return Err(self.damaged("an inner node has more keys than it can have"));
        }
        Ok(keys)
    }

    fn child(&self, thread: &Thread, node: Addr, at: usize) -> Addr {
        thread.load(node + Shape::<LEAF, INNER>::CHILDREN + 8 * at as u64)
    }

    /// The key left of child `at` goes, where it has a blob.
    fn drop_separator(&self, thread: &Thread, node: Addr, at: usize, step: &mut Step) {
        if !K::INLINE && at > 0 {
            step.frees.push(thread.load(node + KEYS + 8 * (at as u64 - 1)));
        }
    }

    /// A leaf goes, with its keys' blobs.
    fn drop_leaf(&self, thread: &Thread, leaf: Addr, step: &mut Step) -> Result<()> {
        if Self::node(thread, leaf, 0).is_none() {
            return Err(self.damaged("a leaf's address is that of none"));
        }
        if !K::INLINE {
            let taken = thread.load(leaf + WORD_1) & Shape::<LEAF, INNER>::FULL;
            step.frees.extend(slots(taken).map(|slot| thread.load(entry(leaf, slot))));
        }
        step.frees.push(leaf);
        Ok(())
    }

    /// Makes a step.
    fn take(&self, thread: &mut Thread, step: &Step) -> Result<()> {
        let blocks: Vec<Addr> = step.frees.iter().map(|at| self.block_of(*at)).collect::<Result<_>>()?;
        self.change(thread, |tx| {
            step.writes.iter().try_for_each(|&(at, word)| tx.write(at, word))?;
            blocks.iter().try_for_each(|block| tx.free(*block))
        })
    }

    fn change(&self, thread: &mut Thread, body: impl FnMut(&mut Tx<'_>) -> std::result::Result<(), Abort>) -> Result<()> {
        thread.transaction_software(body).map_err(|e| self.failed(e))
    }

    /// First address of the live block that holds `at`.
    fn block_of(&self, at: Addr) -> Result<Addr> {
        match self.pool.heap().allocator().block_of(at as usize) {
            Some(block) if block.live => Ok(block.start as u64),
            _ => Err(self.damaged(format!("a node or key at {at:#x} lies in no live block"))),
        }
    }
}

const _: () = assert!(VERSION == 0 && WORD_1 == 8, "a free node is linked by the word behind its version");

#[cfg(test)]
mod tests {
    use towa_tx::Options;

    use super::*;
    use crate::bptree::layout::aligned;
    use crate::map::Session;

    fn options() -> Options {
        Options { heap_len: 2 << 20, lanes: 2, lane_len: 64 << 10, medium: Some(towa_media::Kind::Ram), ..Options::default() }
    }

    /// Where the heap says that a tree is, and there is none, that is damage.
    #[test]
    fn a_header_that_is_gone_is_damage() {
        let pool = Pool::create_on(towa_media::RamMedium::anonymous(), &options()).unwrap();
        let tree = BpTree::<u64>::create(&pool, "tree").unwrap();
        tree.change(&mut tree.thread().unwrap(), |tx| tx.write(tree.header, 0)).unwrap();
        drop(tree);
        let found = BpTree::<u64>::open(&pool, "tree").unwrap_err();
        assert!(matches!(found, Error::Damaged { .. }), "{found}");
        assert!(crate::check_all(&pool).is_err());
    }

    /// A tree whose words were overwritten is called damaged, whichever step meets them: its destruction frees nothing of others.
    #[test]
    fn a_destruction_that_meets_damage_says_so() {
        type Tree = BpTree<[u8], 4, 4>;
        let pool = Pool::create_on(towa_media::RamMedium::anonymous(), &options()).unwrap();
        let free_block = |pool: &Pool| {
            let mut thread = pool.register().unwrap();
            let block = thread.transaction(|tx| tx.alloc(1000)).unwrap();
            thread.transaction(|tx| tx.free(block)).unwrap();
            aligned(block)
        };
        /// Where, from the header on, which word is written; the last argument is the address of a free block.
        type Damage = fn(&Tree, &Thread, Addr) -> (Addr, u64);
        let overwrite: [Damage; 7] = [
            |_, _, _| (header::ROOT, 8),
            |_, _, free| (header::ROOT, free),
            |_, _, _| (header::FREE_LEAVES, 8),
            |_, _, free| (header::FREE_INNERS, free),
            |tree, thread, _| (thread.load(tree.header + header::ROOT) + WORD_1 - tree.header, meta(u32::MAX as usize, 1)),
            |tree, thread, _| (Shape::<4, 4>::CHILDREN + thread.load(tree.header + header::ROOT) - tree.header, 8),
            |tree, thread, free| (KEYS + thread.load(tree.header + header::ROOT) - tree.header, free),
        ];
        for (nr, overwrite) in overwrite.iter().enumerate() {
            let name = format!("tree {nr}");
            let tree = Tree::create(&pool, &name).unwrap();
            let mut session = tree.session().unwrap();
            (0..6u64).for_each(|n| assert!(session.insert(&n.to_be_bytes(), n).unwrap()));
            drop(session);
            let mut thread = tree.thread().unwrap();
            let (at, word) = overwrite(&tree, &thread, free_block(&pool));
            tree.change(&mut thread, |tx| tx.write(tree.header.wrapping_add(at), word)).unwrap();
            drop((tree, thread));
            let found = Tree::destroy(&pool, &name).unwrap_err();
            assert!(matches!(found, Error::Damaged { .. }), "{nr}: {found}");
            assert!(pool.root(&name).is_some(), "{nr}");
        }
    }
}
