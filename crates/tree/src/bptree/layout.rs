//! Where things lie in a tree's blocks, and copies of nodes.
//!
//! ```text
//!   header, line 0:  | magic | format version | kind of keys | leaf entries | inner keys | 0 | 0 | checksum |     never changes
//!           line 1:  | version | root | its level | 1: being destroyed |
//!           line 2:  | free leaves |      line 3:  | free inner nodes |      heads of lists, linked through word 1 of the nodes
//!
//!   leaf:    | version | bitmap | 48 fingerprints | key, value | key, value | ...      line 0, then the entries, in no order
//!   inner:   | version | keys, level << 32 | key ... (sorted) | child ... |            child i: keys below key i, child i + 1: the others
//! ```
//!
//! What must always hold:
//! 1. a node begins a line, and stays a node of its kind for ever, in the tree or in a free list, so that its version word is always one;
//! 2. a slot that no bit says is taken, and what is behind an inner node's keys or children, holds anything, and after a crash something
//!    else: a new node is logged only as far as it is filled. So what comes to lie there is written whatever lay there before.

use towa_tx::{Addr, Span, Thread};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fingerprint;

/// What a tree's header begins with.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TOWABPT\0");
/// Version of the format of everything here.
pub(super) const FORMAT: u64 = 1;
/// Tag of a tree's root.
pub(crate) const ROOT_TAG: u64 = MAGIC;

/// Bytes of the header, and offsets of its words.
pub(super) mod header {
    pub const LEN: u64 = 256;
    pub const VERSION: u64 = 64;
    pub const ROOT: u64 = 72;
    pub const LEVEL: u64 = 80;
    pub const DESTROYED: u64 = 88;
    pub const FREE_LEAVES: u64 = 128;
    pub const FREE_INNERS: u64 = 192;
}

/// Words of a header's first line.
pub(super) const DESCRIPTION: usize = 8;

/// What stands in the last word of a header's first line: the checksum of the words before.
pub(super) fn description_sum(words: &[u64; DESCRIPTION]) -> u64 {
    let bytes: Vec<u8> = words[..DESCRIPTION - 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, MAGIC).max(1)
}

/// Offset of every node's version word.
pub(super) const VERSION: u64 = 0;
/// Offset of a leaf's bitmap, of an inner node's count and level, of a free node's link.
pub(super) const WORD_1: u64 = 8;
/// Offset of a leaf's fingerprints.
pub(super) const PRINTS: u64 = 16;
/// Offset of a leaf's entries.
pub(super) const ENTRIES: u64 = 64;
/// Offset of an inner node's keys.
pub(super) const KEYS: u64 = 16;

/// Most levels of inner nodes. With the smallest nodes no heap is large enough for more.
pub(super) const LEVELS_MAX: u64 = 48;

/// Bytes at most between a block's first and the node in it: payloads are aligned to 16, nodes to 64.
pub(super) const SLACK: u64 = 48;

/// The first line that begins in a block's payload.
pub(super) fn aligned(block: Addr) -> Addr {
    block.next_multiple_of(64)
}

/// Sizes of a tree whose leaves have `LEAF` entries and whose inner nodes have `INNER` keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<const LEAF: usize, const INNER: usize>;

impl<const LEAF: usize, const INNER: usize> Shape<LEAF, INNER> {
    /// Asserts at compile time that such nodes can be.
    pub const POSSIBLE: () = assert!(LEAF >= 4 && LEAF <= fingerprint::SLOTS && INNER >= 4 && INNER <= 1 << 12);
    /// All bits of a leaf's bitmap.
    pub const FULL: u64 = (1 << LEAF) - 1;
    /// Words of a leaf.
    pub const LEAF_WORDS: usize = Self::leaf_words(LEAF);
    /// Words of an inner node.
    pub const INNER_WORDS: usize = 2 + INNER + INNER + 1;
    /// Offset of an inner node's children.
    pub const CHILDREN: u64 = KEYS + 8 * INNER as u64;

    /// Words of a leaf up to the end of its first `entries` slots.
    pub const fn leaf_words(entries: usize) -> usize {
        ENTRIES as usize / 8 + 2 * entries
    }

    /// Whether word `at` of a leaf with these words counts: whether it was ever written nobody knows of the others.
    pub fn leaf_has(words: &[u64], at: usize) -> bool {
        at < Self::leaf_words(0) || words[1] >> ((at - Self::leaf_words(0)) / 2) & 1 == 1
    }

    /// Whether word `at` of an inner node with these words counts, as in a leaf.
    pub fn inner_has(words: &[u64], at: usize) -> bool {
        let (keys, children) = (KEYS as usize / 8, Self::CHILDREN as usize / 8);
        let count = keys_of(words[1]);
        at < keys + count || (children..children + count + 1).contains(&at)
    }

    /// Words of a node of that level; leaves have level 0.
    #[inline]
    pub fn words(level: u64) -> usize {
        if level == 0 { Self::LEAF_WORDS } else { Self::INNER_WORDS }
    }

    /// Up to so many entries, or keys, a node looks for a neighbour to merge with.
    pub const LEAF_FEW: usize = LEAF / 4;
    pub const INNER_FEW: usize = INNER / 4;
    /// Up to so many the merged node may have, so that the next insertions do not split it again.
    pub const LEAF_ROOMY: usize = LEAF * 3 / 4;
    pub const INNER_ROOMY: usize = INNER * 3 / 4;
}

/// Address of entry `slot` of a leaf: its key's word; the value's is the next.
#[inline]
pub(super) fn entry(leaf: Addr, slot: usize) -> Addr {
    leaf + ENTRIES + 16 * slot as u64
}

/// Number of keys of an inner node with this word 1.
#[inline]
pub(super) fn keys_of(meta: u64) -> usize {
    meta as u32 as usize
}

/// Level of an inner node with this word 1.
pub(super) fn level_of(meta: u64) -> u64 {
    meta >> 32
}

/// Word 1 of an inner node.
pub(super) fn meta(keys: usize, level: u64) -> u64 {
    keys as u64 | level << 32
}

/// The fingerprints of a leaf.
#[inline]
pub(super) fn prints(leaf: Span<'_>) -> [u64; 6] {
    let words = leaf.part(PRINTS as usize / 8, 6);
    std::array::from_fn(|i| words.load(i))
}

/// The words of a node, copied; what they are worth its version tells.
pub(super) fn copy(thread: &Thread, node: Addr, words: usize) -> Vec<u64> {
    thread.load_all(node, words)
}

/// A word of a node that a transaction will write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// As it is.
    Is(u64),
    /// The address of the new node of this number.
    Node(usize),
    /// The address of the new blob of this number.
    Blob(usize),
}

/// A node being put together: its words, as many as there are up to the last that counts, and those among them that only the transaction
/// will know.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub words: Vec<u64>,
    pub late: Vec<(usize, Word)>,
}

impl Draft {
    /// One of so many words, all zero.
    pub fn new(words: usize) -> Draft {
        Draft { words: vec![0; words], late: Vec::new() }
    }

    /// As `words` has it.
    pub fn of(words: &[u64]) -> Draft {
        Draft { words: words.to_vec(), late: Vec::new() }
    }

    /// Word `at` is `word`.
    #[inline]
    pub fn put(&mut self, at: usize, word: Word) {
        match word {
            Word::Is(value) => self.words[at] = value,
            late => self.late.push((at, late)),
        }
    }

    /// Adds an entry in a leaf's first free slot. There is one.
    #[inline]
    pub fn add(&mut self, key: Word, value: u64, print: u8) {
        added(&self.words, self.words[1], key, value, print).into_iter().for_each(|(at, word)| self.put(at, word));
    }
}

/// The words of `leaf` that change when an entry is added in the first free slot of `bitmap`. There is one.
#[inline]
pub(super) fn added(leaf: &[u64], bitmap: u64, key: Word, value: u64, print: u8) -> [(usize, Word); 4] {
    let slot = (!bitmap).trailing_zeros() as usize;
    let (prints, at) = (PRINTS as usize / 8 + slot / 8, entry(0, slot) as usize / 8);
    let replaced = fingerprint::replaced(leaf[prints], slot, print);
    [(at, key), (at + 1, Word::Is(value)), (prints, Word::Is(replaced)), (1, Word::Is(bitmap | 1 << slot))]
}

/// An inner node taken apart: one child more than keys.
#[derive(Clone, Debug)]
pub(super) struct Inner {
    pub level: u64,
    pub keys: Vec<Word>,
    pub children: Vec<Word>,
}

impl Inner {
    /// Out of a node's words; `None` if that is no inner node.
    pub fn of<const L: usize, const I: usize>(words: &[u64]) -> Option<Inner> {
        let count = keys_of(words[1]);
        if count > I {
            return None;
        }
        let at = Shape::<L, I>::CHILDREN as usize / 8;
        let words_at = |from: usize, len: usize| words[from..from + len].iter().copied().map(Word::Is).collect();
        Some(Inner { level: level_of(words[1]), keys: words_at(2, count), children: words_at(at, count + 1) })
    }

    /// The node.
    pub fn draft<const L: usize, const I: usize>(&self) -> Draft {
        assert!(self.keys.len() <= I && self.children.len() == self.keys.len() + 1);
        let children = Shape::<L, I>::CHILDREN as usize / 8;
        let mut draft = Draft::new(children + self.children.len());
        draft.words[1] = meta(self.keys.len(), self.level);
        self.keys.iter().enumerate().for_each(|(i, key)| draft.put(2 + i, *key));
        self.children.iter().enumerate().for_each(|(i, child)| draft.put(children + i, *child));
        draft
    }
}
