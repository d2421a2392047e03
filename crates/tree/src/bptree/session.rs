//! One thread's way to the tree: looking up, adding, changing, removing.
//!
//! ```text
//!   walk down (no lock) ─► leaf, version ─► entry or free slot ─► transaction: version still the same? ─► one to four words, touch
//!                                                                      │ no: stale
//!                                                                      └─► walk again
//! ```
//!
//! A number is added with four words of one leaf (key, value, fingerprints, bitmap): one line of the log, one fence. An entry counts
//! when its bit is set.
//!
//! What must always hold: what an operation answers was true at one moment under one version of a leaf, and that version is durable when
//! it returns.

use std::ops::{Bound, ControlFlow};

use towa_tx::{Abort, Error as TxError, Thread, Tx};

use super::BpTree;
use super::layout::{PRINTS, Shape, VERSION, WORD_1, entry, prints};
use super::walk::{Leaf, Loads, Target};
use crate::fingerprint;
use crate::keys::{BLOB_WORDS, Key};
use crate::map::{Direction, Error, Result, Session};

/// A thread's way to a [`BpTree`].
#[derive(Debug)]
pub struct BpSession<'m, K: Key + ?Sized, const LEAF: usize, const INNER: usize> {
    pub(super) tree: &'m BpTree<K, LEAF, INNER>,
    pub(super) thread: Thread,
}

impl Leaf {
    /// For a transaction that was begun for this version of it.
    #[inline(always)]
    fn is_the_same(self, tx: &mut Tx<'_>) -> std::result::Result<(), Abort> {
        if tx.read_version(self.at + VERSION)? == self.version { Ok(()) } else { tx.stale() }
    }
}

/// Where a key is.
struct Place {
    slot: usize,
    stored: u64,
    value: u64,
}

impl<'m, K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpSession<'m, K, LEAF, INNER> {
    pub(super) fn new(tree: &'m BpTree<K, LEAF, INNER>) -> Result<Self> {
        Ok(BpSession { tree, thread: tree.pool.register()? })
    }

    #[inline]
    pub(super) fn loads(&self) -> Loads<'_> {
        Loads(&self.thread)
    }

    /// The bitmap of `leaf`, and where in it `key` is, if its version says that this counts.
    #[inline]
    fn find(&self, leaf: Leaf, key: &K, print: u8) -> (u64, Option<Place>) {
        let words = self.thread.span(leaf.at, Shape::<LEAF, INNER>::LEAF_WORDS);
        let bitmap = words.load(WORD_1 as usize / 8) & Shape::<LEAF, INNER>::FULL;
        let mut candidates = fingerprint::matching(prints(words), print) & bitmap;
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            let at = entry(0, slot) as usize / 8;
            let stored = words.load(at);
            if key.is(stored, &self.loads()) {
                return (bitmap, Some(Place { slot, stored, value: words.load(at + 1) }));
            }
            candidates &= candidates - 1;
        }
        (bitmap, None)
    }

    /// Whether a transaction took effect; not if what it was begun for had changed.
    #[inline]
    pub(super) fn took_effect(&self, result: towa_tx::Result<()>) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(TxError::Stale) => Ok(false),
            Err(e) => Err(self.tree.failed(e)),
        }
    }

    /// Makes a change of several nodes. False: one of them has changed beside it.
    pub(super) fn make(&mut self, mut change: super::change::Change) -> Result<bool> {
        let tree = self.tree.header;
        let made = self.thread.transaction_guarded_software(|tx| change.apply::<LEAF, INNER>(tx, tree));
        self.took_effect(made)
    }

    /// Adds `key`, or, if it is there and `replace`, changes its value; the value that was there.
    #[inline]
    fn put(&mut self, key: &K, value: u64, replace: bool) -> Result<Option<u64>> {
        key.check()?;
        let print = key.fingerprint();
        let mut tries = 0;
        loop {
            let leaf = self.tree.walk(&self.thread, Target::At(key), &mut ())?;
            let done = match self.find(leaf, key, print) {
                (_, Some(found)) if !replace => {
                    self.thread.validate(leaf.at + VERSION, leaf.version) && {
                        self.thread.wait_durable(leaf.version)?;
                        return Ok(Some(found.value));
                    }
                }
                (_, Some(found)) => {
                    if self.set(leaf, found.slot, value)? {
                        return Ok(Some(found.value));
                    }
                    false
                }
                (bitmap, None) if bitmap == Shape::<LEAF, INNER>::FULL => self.split(key, value, print)?,
                (bitmap, None) => self.add(leaf, bitmap, key, value, print)?,
            };
            if done {
                return Ok(None);
            }
            self.tree.pause(&mut tries)?;
        }
    }

    /// Changes the value of an entry.
    #[inline]
    fn set(&mut self, leaf: Leaf, slot: usize, value: u64) -> Result<bool> {
        let done = self.thread.change_guarded(leaf.at + VERSION, leaf.version, [(entry(leaf.at, slot) + 8, value)]);
        self.took_effect(done)
    }

    /// Adds an entry in the first slot that is free in this bitmap. There is one.
    #[inline]
    fn add(&mut self, leaf: Leaf, bitmap: u64, key: &K, value: u64, print: u8) -> Result<bool> {
        let slot = bitmap.trailing_ones() as usize;
        let bitmap = bitmap | 1 << slot;
        let prints_at = leaf.at + PRINTS + slot as u64 / 8 * 8;
        let prints = fingerprint::replaced(self.thread.load(prints_at), slot, print);
        let at = entry(leaf.at, slot);
        let words = |key: u64| [(at, key), (at + 8, value), (prints_at, prints), (leaf.at + WORD_1, bitmap)];
        let done = if K::INLINE {
            self.thread.change_guarded(leaf.at + VERSION, leaf.version, words(key.word()))
        } else {
            let mut blob = [0; BLOB_WORDS];
            let len = key.blob(&mut blob);
            self.thread.transaction_guarded_software(|tx| {
                leaf.is_the_same(tx)?;
                let block = tx.alloc(8 * len)?;
                tx.init(block, &blob[..len])?;
                tx.write_all_guarded(words(block))?;
                tx.touch(leaf.at + VERSION)
            })
        };
        self.took_effect(done)
    }

    /// Takes an entry away.
    #[inline]
    fn take(&mut self, leaf: Leaf, found: &Place, bitmap: u64) -> Result<bool> {
        let body = |tx: &mut Tx<'_>| {
            leaf.is_the_same(tx)?;
            tx.write_guarded(leaf.at + WORD_1, bitmap)?;
            if !K::INLINE {
                tx.free(found.stored)?;
            }
            tx.touch(leaf.at + VERSION)
        };
        let done = if K::INLINE { self.thread.transaction_guarded(body) } else { self.thread.transaction_software(body) };
        self.took_effect(done)
    }
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> Session<K> for BpSession<'_, K, LEAF, INNER> {
    fn insert(&mut self, key: &K, value: u64) -> Result<bool> {
        Ok(self.put(key, value, false)?.is_none())
    }

    fn upsert(&mut self, key: &K, value: u64) -> Result<Option<u64>> {
        self.put(key, value, true)
    }

    fn get(&mut self, key: &K) -> Result<Option<u64>> {
        let print = key.fingerprint();
        let mut tries = 0;
        loop {
            let leaf = self.tree.walk(&self.thread, Target::At(key), &mut ())?;
            let (_, found) = self.find(leaf, key, print);
            if self.thread.validate(leaf.at + VERSION, leaf.version) {
                self.thread.wait_durable(leaf.version)?;
                return Ok(found.map(|place| place.value));
            }
            self.tree.pause(&mut tries)?;
        }
    }

    fn remove(&mut self, key: &K) -> Result<Option<u64>> {
        let print = key.fingerprint();
        let mut tries = 0;
        loop {
            let leaf = self.tree.walk(&self.thread, Target::At(key), &mut ())?;
            let (bitmap, found) = self.find(leaf, key, print);
            match found {
                None if self.thread.validate(leaf.at + VERSION, leaf.version) => {
                    self.thread.wait_durable(leaf.version)?;
                    return Ok(None);
                }
                Some(found) if self.take(leaf, &found, bitmap & !(1 << found.slot))? => {
                    if bitmap.count_ones() as usize - 1 <= Shape::<LEAF, INNER>::LEAF_FEW {
                        self.shrink(key);
                    }
                    return Ok(Some(found.value));
                }
                _ => self.tree.pause(&mut tries)?,
            }
        }
    }

    fn scan(
        &mut self,
        bounds: (Bound<&K>, Bound<&K>),
        direction: Direction,
        each: &mut dyn FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_leaves(bounds, direction, each)
    }
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpTree<K, LEAF, INNER> {
    /// Why a transaction failed.
    #[cold]
    pub(super) fn failed(&self, error: TxError) -> Error {
        match error {
            TxError::OutOfSpace { wanted, heap_len } => Error::OutOfSpace {
                pool: self.pool.location(),
                what: format!("no room for a block of {wanted} bytes in a heap of {heap_len}"),
            },
            e @ TxError::RootExists { .. } => Error::Mismatch { pool: self.pool.location(), what: e.to_string() },
            other => Error::Tx(other),
        }
    }
}
