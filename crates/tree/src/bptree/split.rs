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
use super::layout::{Draft, Inner, LEVELS_MAX, PRINTS, Shape, VERSION, Word, added, copy, entry, header, keys_of, level_of, meta};
use super::session::BpSession;
use super::walk::{Leaf, Path, Target};
use crate::fingerprint::{self, slots};
use crate::keys::{BLOB_WORDS, Key};
use crate::map::Result;

/// An entry of a leaf, copied.
#[derive(Debug)]
pub(super) struct Entry<O> {
    pub key: O,
    /// The key's word.
    pub stored: u64,
    pub value: u64,
    pub print: u8,
}

/// The key's word, the value and the fingerprint of a slot in the words of a leaf.
#[inline]
fn entry_of(words: &[u64], slot: usize) -> (u64, u64, u8) {
    let at = entry(0, slot) as usize / 8;
    (words[at], words[at + 1], fingerprint::of_slot(words[PRINTS as usize / 8 + slot / 8], slot))
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpSession<'_, K, LEAF, INNER> {
    /// The entries of `leaf`, sorted; `None` if it changed meanwhile.
    pub(super) fn entries(&self, leaf: Leaf) -> Option<Vec<Entry<K::Owned>>> {
        let words = copy(&self.thread, leaf.at, Shape::<LEAF, INNER>::LEAF_WORDS);
        let mut entries = Vec::with_capacity(LEAF);
        for slot in slots(words[1] & Shape::<LEAF, INNER>::FULL) {
            let (stored, value, print) = entry_of(&words, slot);
            entries.push(Entry { key: self.key(stored)?, stored, value, print });
        }
        if !self.thread.validate(leaf.at + VERSION, leaf.version) {
            return None;
        }
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Some(entries)
    }

    /// The key that is stored so; `None` where there is none.
    fn key(&self, stored: u64) -> Option<K::Owned> {
        let mut key = K::Owned::default();
        K::read(stored, &self.loads(), &mut key).then_some(key)
    }

    /// Those of the slots `among` of a leaf whose keys are below `key`.
    #[inline]
    fn below(&self, words: &[u64], among: u64, key: &K) -> u64 {
        let is_below = |slot: usize| key.compare(words[entry(0, slot) as usize / 8], &self.loads()).is_gt();
        slots(among).fold(0, |below, slot| below | u64::from(is_below(slot)) << slot)
    }

    /// Parts the entries of a full leaf: the slots of the lower ones, about half of them, and the least key of the upper ones. `None` if what
    /// lies there is no key.
    ///
    /// Looks for a key in the midst, as a quick selection does, but moves nothing: sets of slots are all it changes. Each round leaves out
    /// at least the key that it looked at.
    fn halves(&self, words: &[u64]) -> Option<(u64, K::Owned)> {
        let enough = LEAF / 2 - LEAF / 16..=LEAF / 2 + LEAF / 16;
        // Below the border; on either side.
        let (mut low, mut among) = (0, Shape::<LEAF, INNER>::FULL);
        loop {
            let (slot, key) = self.middle(words, among)?;
            let below = low | self.below(words, among, key.borrow());
            let count = below.count_ones() as usize;
            if enough.contains(&count) {
                return Some((below, key));
            } else if count < *enough.start() {
                low = below | 1 << slot;
                among &= !low;
            } else {
                among = below & !low;
            }
        }
    }

    /// The middle one of three of these slots' keys.
    #[inline]
    fn middle(&self, words: &[u64], among: u64) -> Option<(usize, K::Owned)> {
        let (first, last) = (among.trailing_zeros(), among.ilog2());
        let between = (first + last) / 2 + (among >> ((first + last) / 2)).trailing_zeros();
        let read = |slot: u32| Some((self.key(words[entry(0, slot as usize) as usize / 8])?, slot as usize));
        let mut three = [read(first)?, read(between)?, read(last)?];
        three.sort_unstable();
        let [_, (key, slot), _] = three;
        Some((slot, key))
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
        let is_last = path.steps.iter().all(|step| step.child == step.keys);
        let full = Shape::<LEAF, INNER>::FULL;
        // Behind all others: nothing moves.
        let halves = if is_last && self.below(&was, full, key) == full { None } else { Some(self.halves(&was)) };
        let alike = fingerprint::matching(std::array::from_fn(|at| was[PRINTS as usize / 8 + at]), print) & full;
        let is_there = || slots(alike).any(|slot| key.is(entry_of(&was, slot).0, &self.loads()));
        if was[1] & full != full || is_there() || !self.thread.validate(leaf.at + VERSION, leaf.version) {
            return Ok(false);
        }
        let mut change = Change::default();
        let stored = Self::word_in(&mut change, key);
        let new_leaf = |entries| Draft::new(Shape::<LEAF, INNER>::leaf_words(entries));
        let (high, separator) = match halves {
            None => {
                change.edit(leaf.at, leaf.version, []);
                let mut high = new_leaf(1);
                high.add(stored, value, print);
                (high, Self::word_in(&mut change, key))
            }
            Some(halves) => {
                let Some((low, least)) = halves else { return Err(self.tree.damaged("a leaf's key is none")) };
                let is_high = key >= least.borrow();
                let mut high = new_leaf((full & !low).count_ones() as usize + usize::from(is_high));
                for (stored, value, print) in slots(full & !low).map(|slot| entry_of(&was, slot)) {
                    high.add(Word::Is(stored), value, print);
                }
                if is_high {
                    high.add(stored, value, print);
                    change.edit(leaf.at, leaf.version, [(1, Word::Is(low))]);
                } else {
                    change.edit(leaf.at, leaf.version, added(&was, low, stored, value, print));
                }
                (high, Self::word_in(&mut change, least.borrow()))
            }
        };
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
                change.edit(step.node, step.version, with_child::<LEAF, INNER>(&was, step.child, separator, new));
                return Ok(true);
            }
            let mut inner = Inner::of::<LEAF, INNER>(&was).expect("no more keys than it can have");
            inner.keys.insert(step.child, separator);
            inner.children.insert(step.child + 1, new);
            // Behind all others: the old node stays full, as with leaves.
            let middle = if step.child == INNER { INNER - 1 } else { INNER / 2 };
            let high = Inner { level, keys: inner.keys.split_off(middle + 1), children: inner.children.split_off(middle + 1) };
            separator = inner.keys.pop().expect("the middle key");
            change.rewrite(step.node, step.version, &was, inner.draft::<LEAF, INNER>(), Shape::<LEAF, INNER>::inner_has);
            new = change.add(level, high.draft::<LEAF, INNER>());
            left = step.node;
        }
        if level == LEVELS_MAX {
            return Err(self.tree.damaged("the tree has more levels than there can be"));
        }
        let root = Inner { level: level + 1, keys: vec![separator], children: vec![Word::Is(left), new] };
        let root = change.add(level + 1, root.draft::<LEAF, INNER>());
        self.set_root(change, path, root, level + 1);
        Ok(true)
    }

    /// The tree's root word becomes that node.
    pub(super) fn set_root(&self, change: &mut Change, path: &Path, root: Word, level: u64) {
        change.edit(self.tree.header + header::VERSION, path.header_version, [(1, root), (2, Word::Is(level))]);
    }
}

/// The words that change when the inner node `was`, which has room, gets `new` right of child `at` and `separator` between them.
fn with_child<const L: usize, const I: usize>(
    was: &[u64],
    at: usize,
    separator: Word,
    new: Word,
) -> impl Iterator<Item = (usize, Word)> {
    let (keys, children) = (keys_of(was[1]), Shape::<L, I>::CHILDREN as usize / 8);
    let moved = |from: usize, to: usize| (from + 1..to + 1).zip(was[from..to].iter().map(|&word| Word::Is(word)));
    let new = [(1, Word::Is(meta(keys + 1, level_of(was[1])))), (2 + at, separator), (children + at + 1, new)];
    new.into_iter().chain(moved(2 + at, 2 + keys)).chain(moved(children + at + 1, children + keys + 1))
}

#[cfg(test)]
mod tests {
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng, rngs::SmallRng};
    use towa_tx::{Options, Pool};

    use super::*;

    /// Parts a full leaf with these keys, and looks whether that is right.
    fn part<const LEAF: usize>(keys: &[u64]) {
        let options = Options { heap_len: 4 << 20, lanes: 2, ..Options::default() };
        let pool = Pool::create_on(towa_media::RamMedium::anonymous(), &options).unwrap();
        let tree = super::super::BpTree::<u64, LEAF, 8>::create(&pool, "map").unwrap();
        let session = tree.session().unwrap();
        let mut words = vec![0; Shape::<LEAF, 8>::LEAF_WORDS];
        keys.iter().enumerate().for_each(|(slot, key)| words[entry(0, slot) as usize / 8] = *key);
        let (low, least) = session.halves(&words).unwrap();
        let is_low = |slot: usize| low >> slot & 1 == 1;
        assert!(
            keys.iter().enumerate().all(|(slot, key)| is_low(slot) == (*key < least)),
            "{low:#x} are below {least} of {keys:?}"
        );
        assert!(keys.contains(&least));
        let count = low.count_ones() as usize;
        assert!(
            count.abs_diff(LEAF / 2) <= LEAF / 16 && low <= Shape::<LEAF, 8>::FULL,
            "{count} of {LEAF} are below {least}: {keys:?}"
        );
    }

    #[test]
    fn a_leaf_is_parted_in_its_midst_whatever_the_order_of_its_keys() {
        let mut rng = SmallRng::seed_from_u64(3);
        for turn in 0..20 {
            let mut keys: Vec<u64> = (0..48).map(|i| i << 58 | rng.random_range(0..1 << 40)).collect();
            match turn {
                0 => {}
                1 => keys.reverse(),
                // From both ends to the middle: the worst for whoever looks at the ends and the middle.
                2 => keys.sort_unstable_by_key(|key| (key >> 58).abs_diff(24)),
                _ => keys.shuffle(&mut rng),
            }
            part::<48>(&keys);
            part::<5>(&keys[..5]);
            part::<4>(&keys[20..24]);
        }
    }
}
