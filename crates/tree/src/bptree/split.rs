//! Growing: a full leaf is split, its parents as far as they are full, too, and the new entry goes in with the same transaction.
//!
//! ```text
//!        | ... k ... |                      | ... k  s ... |            s: the least key of the upper half
//!          /     \            ──►             /    |    \               (byte strings: a copy of its own)
//!       ...    | full |                    ...  | low | | high |        low: the old leaf, only its bitmap changes
//! ```
//!
//! What must always hold: a node that is split is touched, its new half is reachable when the transaction takes effect, and not before.
//! Where the new entry goes behind all others nothing moves: the new leaf has it alone, so that rising keys fill their leaves.

use std::borrow::Borrow;

use towa_tx::Addr;

use super::change::Change;
use super::layout::{Draft, Inner, LEVELS_MAX, PRINTS, Shape, VERSION, Word, copy, entry, header, keys_of, level_of, meta};
use super::session::BpSession;
use super::walk::{Leaf, Path, Target};
use crate::fingerprint;
use crate::keys::{BLOB_WORDS, Key};
use crate::map::Result;

/// An entry of a leaf, copied.
#[derive(Debug)]
pub(super) struct Entry<O> {
    pub key: O,
    pub slot: usize,
    /// The key's word.
    pub stored: u64,
    pub value: u64,
    pub print: u8,
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpSession<'_, K, LEAF, INNER> {
    /// The entries of `leaf`, sorted; `None` if it changed meanwhile.
    pub(super) fn entries(&self, leaf: Leaf) -> Option<Vec<Entry<K::Owned>>> {
        let mut entries = self.unsorted(leaf, &copy(&self.thread, leaf.at, Shape::<LEAF, INNER>::LEAF_WORDS))?;
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Some(entries)
    }

    /// The same in no order; its `words` were copied after its version was loaded.
    fn unsorted(&self, leaf: Leaf, words: &[u64]) -> Option<Vec<Entry<K::Owned>>> {
        let bitmap = words[1] & Shape::<LEAF, INNER>::FULL;
        let prints: [u64; 6] = words[PRINTS as usize / 8..][..6].try_into().expect("six words");
        let mut entries = Vec::with_capacity(LEAF);
        for slot in (0..LEAF).filter(|slot| bitmap >> slot & 1 == 1) {
            let at = entry(0, slot) as usize / 8;
            let (stored, value) = (words[at], words[at + 1]);
            let mut key = K::Owned::default();
            if !K::read(stored, &self.loads(), &mut key) {
                return None;
            }
            entries.push(Entry { key, slot, stored, value, print: fingerprint::of_slot(prints, slot) });
        }
        if !self.thread.validate(leaf.at + VERSION, leaf.version) {
            return None;
        }
        Some(entries)
    }

    /// A key's word among those of a change.
    pub(super) fn word_in(change: &mut Change, key: &K) -> Word {
        if K::INLINE {
            return Word::Is(key.word());
        }
        let mut blob = [0; BLOB_WORDS];
        let len = key.blob(&mut blob);
        change.add_blob(&blob[..len])
    }

    /// Adds `key`, which is not there, by splitting the full leaf where it belongs. False: something changed beside it, look again.
    pub(super) fn split(&mut self, key: &K, value: u64, print: u8) -> Result<bool> {
        let path = self.tree.path(&self.thread, Target::At(key))?;
        let leaf = path.leaf;
        let was = copy(&self.thread, leaf.at, Shape::<LEAF, INNER>::LEAF_WORDS);
        let Some(mut entries) = self.unsorted(leaf, &was) else { return Ok(false) };
        if entries.len() < LEAF || entries.iter().any(|e| e.key.borrow() == key) {
            return Ok(false);
        }
        let mut change = Change::default();
        let stored = Self::word_in(&mut change, key);
        let is_last = path.steps.iter().all(|step| step.child == step.keys);
        let place = entries.iter().filter(|e| e.key.borrow() < key).count();
        let half = if place == LEAF && is_last { LEAF } else { LEAF / 2 };
        if half < LEAF {
            // In two halves; within them the order is nobody's business.
            entries.select_nth_unstable_by(half, |a, b| a.key.cmp(&b.key));
        }
        // The new entry is the least of the upper half where it stands at the border.
        let goes_up = place > half || place == half && half == LEAF;
        let least = if goes_up && place == half { key } else { entries[half].key.borrow() };
        let separator = Self::word_in(&mut change, least);

        let mut low = Draft::of(&was);
        low.retain(entries[..half].iter().fold(0, |bits, e| bits | 1 << e.slot));
        let mut high = Draft::new(Shape::<LEAF, INNER>::LEAF_WORDS);
        entries[half..].iter().for_each(|e| high.add(Word::Is(e.stored), e.value, e.print));
        if goes_up {
            high.add(stored, value, print)
        } else {
            low.add(stored, value, print)
        }
        change.rewrite(leaf.at, leaf.version, &was, low);
        let new = change.add(0, high);
        if !self.hang_in(&mut change, &path, leaf.at, separator, new)? {
            return Ok(false);
        }
        self.make(change)
    }

    /// Puts `separator` and the node right of it into the parents, from the leaf up, splitting those that are full. `old`: the leaf that
    /// was split. False: look again.
    pub(super) fn hang_in(&self, change: &mut Change, path: &Path, old: Addr, mut separator: Word, mut new: Word) -> Result<bool> {
        let (mut level, mut left) = (0, old);
        for step in path.steps.iter().rev() {
            level += 1;
            let was = copy(&self.thread, step.node, Shape::<LEAF, INNER>::INNER_WORDS);
            if !self.thread.validate(step.node + VERSION, step.version) {
                return Ok(false);
            }
            let keys = keys_of(was[1]);
            if keys > INNER || level_of(was[1]) != level {
                let what = format!("the inner node at level {level} says that it has {keys} keys and level {}", level_of(was[1]));
                return Err(self.tree.damaged(what));
            }
            if keys < INNER {
                change.rewrite(step.node, step.version, &was, with_child::<LEAF, INNER>(&was, step.child, separator, new));
                return Ok(true);
            }
            let mut inner = Inner::of::<LEAF, INNER>(&was).expect("no more keys than it can have");
            inner.keys.insert(step.child, separator);
            inner.children.insert(step.child + 1, new);
            // Behind all others: the old node stays full, as with leaves.
            let middle = if step.child == INNER { INNER - 1 } else { INNER / 2 };
            let high = Inner { level, keys: inner.keys.split_off(middle + 1), children: inner.children.split_off(middle + 1) };
            separator = inner.keys.pop().expect("the middle key");
            change.rewrite(step.node, step.version, &was, inner.draft::<LEAF, INNER>(Some(&was)));
            new = change.add(level, high.draft::<LEAF, INNER>(None));
            left = step.node;
        }
        if level == LEVELS_MAX {
            return Err(self.tree.damaged("the tree has more levels than there can be"));
        }
        let root = Inner { level: level + 1, keys: vec![separator], children: vec![Word::Is(left), new] };
        let root = change.add(level + 1, root.draft::<LEAF, INNER>(None));
        self.set_root(change, path, root, level + 1);
        Ok(true)
    }

    /// The tree's root word becomes that node.
    pub(super) fn set_root(&self, change: &mut Change, path: &Path, root: Word, level: u64) {
        let was = [path.header_version, path.root, path.level];
        let mut draft = Draft::of(&was);
        draft.put(1, root);
        draft.put(2, Word::Is(level));
        change.rewrite(self.tree.header + header::VERSION, path.header_version, &was, draft);
    }
}

/// The inner node `was`, which has room, with `new` right of child `at` and `separator` between them.
fn with_child<const L: usize, const I: usize>(was: &[u64], at: usize, separator: Word, new: Word) -> Draft {
    let (keys, children) = (keys_of(was[1]), Shape::<L, I>::CHILDREN as usize / 8);
    let mut draft = Draft::of(was);
    draft.words.copy_within(2 + at..2 + keys, 3 + at);
    draft.words.copy_within(children + at + 1..children + keys + 1, children + at + 2);
    draft.put(2 + at, separator);
    draft.put(children + at + 1, new);
    draft.words[1] = meta(keys + 1, level_of(was[1]));
    draft
}
