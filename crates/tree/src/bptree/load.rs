//! Filling an empty tree with sorted entries: leaf by leaf at its end, each leaf with one transaction.
//!
//! ```text
//!   | full | full | full | rest |        inner nodes fill up in the same way (`split.rs`: where a node is added behind all others)
//! ```
//!
//! What must always hold: after each transaction the tree is whole and has a prefix of the entries.

use std::borrow::Borrow;

use super::BpTree;
use super::change::Change;
use super::layout::{Draft, Shape, VERSION, WORD_1, copy};
use super::session::BpSession;
use super::walk::Target;
use crate::keys::Key;
use crate::map::{Error, Result};

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpTree<K, LEAF, INNER> {
    /// Fills the tree, which is empty, with entries of rising keys: how many there were. Leaves are filled to 15/16,
    /// or less where logs are small and keys are long.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: the tree is not empty, or a key does not follow the one before it. [`Error::OutOfSpace`]. What was loaded by
    /// then remains.
    pub fn bulk_load<Q: Borrow<K>>(&self, entries: impl IntoIterator<Item = (Q, u64)>) -> Result<u64> {
        let mut session = BpSession::new(self)?;
        let mut entries = entries.into_iter().peekable();
        let (mut count, mut last): (u64, Option<Q>) = (0, None);
        let full = LEAF - LEAF / 16;
        let heap = self.pool.heap();
        let most = if heap.is_volatile() { u64::MAX } else { heap.lanes().lane_len() / 4 };
        while entries.peek().is_some() {
            let mut part: Vec<(Q, u64)> = Vec::with_capacity(full);
            let mut blobs = 0;
            while part.len() < full {
                // A leaf and its keys are one record, which fits into half a log.
                let fits = |entry: &(Q, u64)| blobs == 0 || blobs + entry.0.borrow().blob_len() as u64 <= most;
                let Some(entry) = entries.next_if(fits) else { break };
                entry.0.borrow().check()?;
                blobs += entry.0.borrow().blob_len() as u64;
                let before = part.last().map(|e| &e.0).or(last.as_ref());
                if before.is_some_and(|before| before.borrow() >= entry.0.borrow()) {
                    let what = format!("entry {} to load does not follow the one before it; sort them", count + part.len() as u64);
                    return Err(Error::Mismatch { pool: self.pool.location(), what });
                }
                part.push(entry);
            }
            session.append(&part, last.as_ref().map(Borrow::borrow))?;
            count += part.len() as u64;
            last = part.pop().map(|e| e.0);
        }
        Ok(count)
    }

    /// Number of levels of inner nodes: 0 if the root is a leaf.
    pub fn depth(&self) -> Result<u64> {
        Ok(self.path(&self.thread()?, Target::First)?.level)
    }

    /// Number of keys, by the leaves' bitmaps.
    pub(super) fn count_leaves(&self) -> Result<u64> {
        let session = BpSession::new(self)?;
        if self.has_lost_all_nodes(&session.thread) {
            return Ok(0);
        }
        let (_, mut range, entries) = session.leaf(Target::First)?;
        let mut count = entries.len() as u64;
        while let Some(high) = range.high {
            let (_, next, entries) = session.leaf(Target::At(high.borrow()))?;
            // Merged with the leaf before it meanwhile, it has some that were counted.
            count += entries.iter().filter(|e| e.key.borrow() >= high.borrow()).count() as u64;
            range = next;
        }
        Ok(count)
    }
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpSession<'_, K, LEAF, INNER> {
    /// Adds entries as the last leaf. `last`: the tree's greatest key; `None`: it is empty.
    fn append<Q: Borrow<K>>(&mut self, part: &[(Q, u64)], last: Option<&K>) -> Result<()> {
        let mut tries = 0;
        loop {
            let path = self.tree.path(&self.thread, Target::Last)?;
            let leaf = path.leaf;
            let was = copy(&self.thread, leaf.at, Shape::<LEAF, INNER>::LEAF_WORDS);
            let Some(entries) = self.entries(leaf) else {
                self.tree.pause(&mut tries)?;
                continue;
            };
            // A tree that was emptied may have kept inner nodes: their ranges are not those of what is loaded.
            if entries.last().map(|e| e.key.borrow()) != last || last.is_none() && !path.steps.is_empty() {
                let what = "only an empty tree is loaded, and while nobody else writes; insert the entries instead".into();
                return Err(Error::Mismatch { pool: self.tree.pool.location(), what });
            }
            let mut change = Change::default();
            let mut draft = if last.is_some() { Draft::new(Shape::<LEAF, INNER>::leaf_words(part.len())) } else { Draft::of(&was) };
            for (key, value) in part {
                let stored = Self::word_in(&mut change, key.borrow());
                draft.add(stored, *value, key.borrow().fingerprint());
            }
            let hung = if last.is_some() {
                let separator = Self::word_in(&mut change, part[0].0.borrow());
                // The leaf before it has its end here now.
                change.edit(leaf.at, leaf.version, []);
                let new = change.add(0, draft);
                self.hang_in(&mut change, &path, leaf.at, separator, new)?
            } else {
                change.rewrite(leaf.at, leaf.version, &was, draft, Shape::<LEAF, INNER>::leaf_has);
                true
            };
            if hung && self.make(change)? {
                return Ok(());
            }
            self.tree.pause(&mut tries)?;
        }
    }
}

const _: () = assert!(VERSION == 0 && WORD_1 == 8, "copies of nodes begin with their version, then word 1");
