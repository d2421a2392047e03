//! Shrinking: a node with few entries is merged with a neighbour under the same parent, if both fit with room to spare; a root with one
//! child gives way to it.
//!
//! ```text
//!        | ... k ... |                      | ... ... |          the left one takes all; the right one goes to the free list,
//!          /     \            ──►               |                k with it
//!       | left | right |                     | left |
//! ```
//!
//! What must always hold: both are touched, the parent, too; one transaction for each merge, so a tree is whole between any two. An
//! empty leaf, and an inner node with one child, fit with any neighbour that has room: so an emptied tree has no empty leaves but one.

use towa_tx::Addr;

use super::BpTree;
use super::change::Change;
use super::layout::{Draft, Inner, Shape, VERSION, WORD_1, Word, copy, keys_of};
use super::session::BpSession;
use super::split::Entry;
use super::walk::{Leaf, Path, Target};
use crate::keys::Key;
use crate::map::Result;

/// How an attempt ended.
enum Attempt {
    /// Something was merged: there may be more to do.
    Merged,
    /// Something changed beside it.
    Again,
    /// There is nothing to merge.
    Nothing,
}

/// The parent of two neighbours.
struct Parent {
    at: Addr,
    version: u64,
    was: Vec<u64>,
    inner: Inner,
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpSession<'_, K, LEAF, INNER> {
    /// Merges what is sparse on the way to `key`. The removal that called for it has been done: if this fails (the pool does), the tree
    /// is merely less dense.
    #[cold]
    pub(super) fn shrink(&mut self, key: &K) {
        for _ in 0..1000 {
            match self.try_shrink(key) {
                Ok(Attempt::Merged | Attempt::Again) => {}
                Ok(Attempt::Nothing) | Err(_) => return,
            }
        }
    }

    fn try_shrink(&mut self, key: &K) -> Result<Attempt> {
        let path = self.tree.path(&self.thread, Target::At(key))?;
        let count = (self.thread.load(path.leaf.at + WORD_1) & Shape::<LEAF, INNER>::FULL).count_ones() as usize;
        if count <= Shape::<LEAF, INNER>::LEAF_FEW && !path.steps.is_empty() {
            let attempt = self.merge_at(&path, path.steps.len() - 1, path.leaf)?;
            if !matches!(attempt, Attempt::Nothing) {
                return Ok(attempt);
            }
        }
        for (depth, step) in path.steps.iter().enumerate().rev() {
            let attempt = match depth {
                0 if step.keys == 0 => self.lower_root(&path)?,
                _ if depth > 0 && step.keys <= Shape::<LEAF, INNER>::INNER_FEW => {
                    self.merge_at(&path, depth - 1, Leaf { at: step.node, version: step.version })?
                }
                _ => Attempt::Nothing,
            };
            if !matches!(attempt, Attempt::Nothing) {
                return Ok(attempt);
            }
        }
        Ok(Attempt::Nothing)
    }

    /// Merges `node`, a child of the step at `depth`, with a neighbour.
    fn merge_at(&mut self, path: &Path, depth: usize, node: Leaf) -> Result<Attempt> {
        let step = path.steps[depth];
        let was = copy(&self.thread, step.node, Shape::<LEAF, INNER>::INNER_WORDS);
        if !self.thread.validate(step.node + VERSION, step.version) {
            return Ok(Attempt::Again);
        }
        let Some(inner) = Inner::of::<LEAF, INNER>(&was) else {
            return Err(self.tree.damaged("an inner node has more keys than it can have"));
        };
        // With its right neighbour, else with its left one: the number of the key between them.
        for between in [Some(step.child), step.child.checked_sub(1)].into_iter().flatten().filter(|k| *k < inner.keys.len()) {
            let is_left = between == step.child;
            let Word::Is(other) = inner.children[if is_left { between + 1 } else { between }] else { unreachable!("copied") };
            let below = inner.level - 1;
            let Some(words) = BpTree::<K, LEAF, INNER>::node(&self.thread, other, below) else {
                return Err(self.tree.damaged("a node's address is that of none"));
            };
            let Some(version) = words.load_version(0) else { return Ok(Attempt::Again) };
            if !self.thread.validate(step.node + VERSION, step.version) {
                return Ok(Attempt::Again);
            }
            let other = Leaf { at: other, version };
            let (left, right) = if is_left { (node, other) } else { (other, node) };
            let parent = Parent { at: step.node, version: step.version, was: was.clone(), inner: inner.clone() };
            let attempt = if below == 0 {
                self.merge_leaves(parent, between, left, right)?
            } else {
                self.merge_inners(parent, between, left, right)?
            };
            if !matches!(attempt, Attempt::Nothing) {
                return Ok(attempt);
            }
        }
        Ok(Attempt::Nothing)
    }

    fn merge_leaves(&mut self, parent: Parent, between: usize, left: Leaf, right: Leaf) -> Result<Attempt> {
        let was = copy(&self.thread, left.at, Shape::<LEAF, INNER>::LEAF_WORDS);
        let (Some(low), Some(high)) = (self.entries(left), self.entries(right)) else { return Ok(Attempt::Again) };
        let together = low.len() + high.len();
        let one_is_empty = low.is_empty() || high.is_empty();
        if together > if one_is_empty { LEAF } else { Shape::<LEAF, INNER>::LEAF_ROOMY } {
            return Ok(Attempt::Nothing);
        }
        let mut draft = Draft::of(&was);
        high.iter().for_each(|e: &Entry<_>| draft.add(Word::Is(e.stored), e.value, e.print));
        let mut change = Change::default();
        change.rewrite(left.at, left.version, &was, draft, Shape::<LEAF, INNER>::leaf_has);
        change.retire(right.at, right.version, 0);
        self.take_out(&mut change, parent, between, false);
        Ok(if self.make(change)? { Attempt::Merged } else { Attempt::Again })
    }

    fn merge_inners(&mut self, parent: Parent, between: usize, left: Leaf, right: Leaf) -> Result<Attempt> {
        let words = Shape::<LEAF, INNER>::INNER_WORDS;
        let (was, theirs) = (copy(&self.thread, left.at, words), copy(&self.thread, right.at, words));
        let (low, high) = (keys_of(was[1]), keys_of(theirs[1]));
        let together = low + high + 1;
        let one_is_single = low == 0 || high == 0;
        if together > if one_is_single { INNER } else { Shape::<LEAF, INNER>::INNER_ROOMY } {
            return Ok(Attempt::Nothing);
        }
        let (Some(mut inner), Some(right_inner)) = (Inner::of::<LEAF, INNER>(&was), Inner::of::<LEAF, INNER>(&theirs)) else {
            return Ok(Attempt::Again);
        };
        // The key between them comes down.
        inner.keys.push(parent.inner.keys[between]);
        inner.keys.extend(right_inner.keys);
        inner.children.extend(right_inner.children);
        let level = inner.level;
        let mut change = Change::default();
        change.rewrite(left.at, left.version, &was, inner.draft::<LEAF, INNER>(), Shape::<LEAF, INNER>::inner_has);
        change.retire(right.at, right.version, level);
        self.take_out(&mut change, parent, between, true);
        Ok(if self.make(change)? { Attempt::Merged } else { Attempt::Again })
    }

    /// Takes the key between two merged nodes, and the right one, out of their parent. `kept`: the key lives on in a node below.
    fn take_out(&self, change: &mut Change, mut parent: Parent, between: usize, kept: bool) {
        let key = parent.inner.keys.remove(between);
        parent.inner.children.remove(between + 1);
        if let (false, false, Word::Is(blob)) = (K::INLINE, kept, key) {
            change.free_blob(blob);
        }
        let draft = parent.inner.draft::<LEAF, INNER>();
        change.rewrite(parent.at, parent.version, &parent.was, draft, Shape::<LEAF, INNER>::inner_has);
    }

    /// The root has one child only: that is the root from now on.
    fn lower_root(&mut self, path: &Path) -> Result<Attempt> {
        let step = path.steps[0];
        let child = self.thread.load(step.node + Shape::<LEAF, INNER>::CHILDREN);
        let mut change = Change::default();
        change.retire(step.node, step.version, path.level);
        self.set_root(&mut change, path, Word::Is(child), path.level - 1);
        Ok(if self.make(change)? { Attempt::Merged } else { Attempt::Again })
    }
}
