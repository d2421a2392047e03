//! One thread's operations, and what each costs.
//!
//! ```text
//!   get      nothing
//!   insert   [blob] entry, write back | FENCE | bitmap, write back | FENCE        (fingerprint: stored before, in the bitmap's line)
//!   upsert   of a key that is there: value, write back | FENCE
//!   remove   bitmap, write back | FENCE
//! ```
//!
//! Why stopping is safe. Insert: until the bitmap's store nothing that counts was changed; that store is one word, which is old or new, and
//! everything it makes count was durable before it. (Fingerprints share its line. On line media a line's stores arrive in program order,
//! elsewhere the first fence covers them.) Remove and upsert are one store of one word.
//!
//! What must always hold: a leaf stays locked until what was stored is durable, so no reader is given what a crash could take back;
//! when a write fails the leaf stays locked for good, and whoever waits for it learns of the failure.

use std::ops::{Bound, ControlFlow};

use towa_alloc::Local;

use super::FpTree;
use super::index::{Found, Place};
use super::leaf::Leaf;
use super::scan::Buffers;
use super::split::Split;
use crate::keys::BLOB_LEN;
use crate::{Direction, Key, Result, Session};

/// One thread's way to an [`FpTree`].
pub struct FpSession<'t, K: Key + ?Sized> {
    pub(super) tree: &'t FpTree<K>,
    pub(super) local: Local,
    pub(super) buffers: Buffers<K>,
}

impl<K: Key + ?Sized> std::fmt::Debug for FpSession<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FpSession({:?})", self.tree)
    }
}

/// Waiting for another thread to finish with a leaf or node.
#[derive(Default)]
pub(super) struct Patience(u32);

impl Patience {
    /// Waits a little. A failed arena keeps leaves locked for good: an error.
    #[cold]
    pub fn wait<K: Key + ?Sized>(&mut self, tree: &FpTree<K>) -> Result<()> {
        self.0 += 1;
        if self.0 < 64 {
            std::hint::spin_loop();
            return Ok(());
        }
        if tree.arena.is_failed() {
            return Err(tree.arena.fail().into());
        }
        // There may be more threads than processors.
        std::thread::yield_now();
        Ok(())
    }
}

impl<K: Key + ?Sized> FpTree<K> {
    /// The leaf at `place`, not locked when looked at.
    #[inline]
    pub(super) fn find(&self, place: Place<'_, K>) -> Result<Found<'_>> {
        let mut patience = Patience::default();
        loop {
            match self.index.try_find(&place, &self.arena) {
                Some(found) if found.version & 1 == 0 => return Ok(found),
                _ => patience.wait(self)?,
            }
        }
    }

    /// The leaf of `key`, locked; its version before.
    #[inline]
    fn lock(&self, key: &K) -> Result<Found<'_>> {
        let mut patience = Patience::default();
        loop {
            let found = self.find(Place::Of(key))?;
            if found.leaf.lock(found.version) {
                return Ok(found);
            }
            patience.wait(self)?;
        }
    }

    #[inline]
    fn free_slot(&self, leaf: &Leaf<'_>) -> Option<usize> {
        let free = !leaf.bitmap() & self.full;
        (free != 0).then(|| free.trailing_zeros() as usize)
    }
}

impl<'t, K: Key + ?Sized> FpSession<'t, K> {
    pub(super) fn new(tree: &'t FpTree<K>) -> Self {
        FpSession { tree, local: tree.allocator.local(), buffers: Buffers::default() }
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&mut self, key: &K) -> Result<Option<u64>> {
        key.check()?;
        let print = key.fingerprint();
        let mut patience = Patience::default();
        loop {
            let Found { leaf, version } = self.tree.find(Place::Of(key))?;
            let found = leaf.find(key, print, &self.tree.arena);
            if leaf.validate(version) {
                return Ok(found.map(|(_, value)| value));
            }
            patience.wait(self.tree)?;
        }
    }

    /// Adds `key`, unless it is there; whether it was added.
    #[inline]
    pub fn insert(&mut self, key: &K, value: u64) -> Result<bool> {
        Ok(self.put(key, value, false)?.is_none())
    }

    /// Adds `key` or changes its value; the value before.
    #[inline]
    pub fn upsert(&mut self, key: &K, value: u64) -> Result<Option<u64>> {
        self.put(key, value, true)
    }

    #[inline]
    fn put(&mut self, key: &K, value: u64, replace: bool) -> Result<Option<u64>> {
        key.check()?;
        let print = key.fingerprint();
        let arena = &*self.tree.arena;
        let Found { leaf, version } = self.tree.lock(key)?;
        if let Some((slot, old)) = leaf.find(key, print, arena) {
            if replace && old != value {
                leaf.replace(arena, slot, value)?;
                leaf.unlock(version);
            } else {
                leaf.unlock_unchanged(version);
            }
            return Ok(Some(old));
        }
        match self.add(leaf, key, value, print) {
            Ok(()) => {
                leaf.unlock(version);
                Ok(None)
            }
            Err(e) => {
                // Nothing was published. If it was not a lack of space, what is durable is unknown, and the leaf stays locked.
                if !arena.is_failed() {
                    leaf.unlock(version);
                }
                Err(e)
            }
        }
    }

    /// Adds an entry to a locked leaf, or to the one that splits off it.
    #[inline]
    fn add(&mut self, leaf: Leaf<'t>, key: &K, value: u64, print: u8) -> Result<()> {
        let word = self.store_key(key)?;
        if let Some(slot) = self.tree.free_slot(&leaf) {
            return self.add_at(leaf, slot, word, value, print);
        }
        match self.split(leaf) {
            Ok(split) => self.add_after_split(leaf, split, key, (word, value, print)),
            Err(e) => {
                self.drop_key(word);
                Err(e)
            }
        }
    }

    /// The micro-log was cleared, but not yet fenced: the fence before the commit covers it too. Until then nobody else may change
    /// either leaf, or recovery would apply the log to what it was not written for: the new one is published afterwards.
    #[cold]
    fn add_after_split(&mut self, leaf: Leaf<'t>, split: Split<'t, K>, key: &K, entry: (u64, u64, u8)) -> Result<()> {
        let (word, value, print) = entry;
        let goes_right = key >= std::borrow::Borrow::borrow(&split.key);
        let target = if goes_right { split.right } else { leaf };
        let slot = self.tree.free_slot(&target).expect("a half is not full");
        self.add_at(target, slot, word, value, print)?;
        self.publish(split);
        Ok(())
    }

    #[inline]
    fn add_at(&mut self, leaf: Leaf<'t>, slot: usize, word: u64, value: u64, print: u8) -> Result<()> {
        let arena = &*self.tree.arena;
        leaf.fill(arena, slot, word, value, print)?;
        arena.fence()?;
        leaf.commit(arena, leaf.bitmap() | 1 << slot)
    }

    /// The key's word; a blob is stored and written back, and durable with the fence before the commit.
    #[inline]
    fn store_key(&mut self, key: &K) -> Result<u64> {
        if K::INLINE {
            return Ok(key.word());
        }
        let mut blob = [0; BLOB_LEN];
        let n = key.blob(&mut blob);
        let off = self.local.reserve(n * 8)?;
        self.tree.arena.store(off, &blob[..n])?;
        self.tree.arena.write_back(off, n as u64 * 8);
        Ok(off)
    }

    /// Frees a key that cannot be reached any more, durably.
    #[inline]
    fn drop_key(&mut self, word: u64) {
        if !K::INLINE {
            self.local.free(word);
        }
    }

    /// Removes `key`; the value it had.
    pub fn remove(&mut self, key: &K) -> Result<Option<u64>> {
        key.check()?;
        let print = key.fingerprint();
        let arena = &*self.tree.arena;
        let Found { leaf, version } = self.tree.lock(key)?;
        let Some((slot, value)) = leaf.find(key, print, arena) else {
            leaf.unlock_unchanged(version);
            return Ok(None);
        };
        let (word, rest) = (leaf.key_word(slot), leaf.bitmap() & !(1 << slot));
        leaf.set_bitmap(arena, rest)?;
        if rest == 0 && leaf.off != self.tree.head {
            // Its fence is enough: the key is gone when its bit is, or when its leaf is.
            self.unlink(leaf, version, key)?;
        } else {
            arena.fence()?;
            leaf.unlock(version);
        }
        self.drop_key(word);
        Ok(Some(value))
    }

    /// Calls `each` for the entries between the bounds in order, until it breaks.
    pub fn scan(
        &mut self,
        bounds: (Bound<&K>, Bound<&K>),
        direction: Direction,
        mut each: impl FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_with(bounds, direction, &mut each)
    }
}

impl<K: Key + ?Sized> Session<K> for FpSession<'_, K> {
    fn insert(&mut self, key: &K, value: u64) -> Result<bool> {
        FpSession::insert(self, key, value)
    }
    fn upsert(&mut self, key: &K, value: u64) -> Result<Option<u64>> {
        FpSession::upsert(self, key, value)
    }
    fn get(&mut self, key: &K) -> Result<Option<u64>> {
        FpSession::get(self, key)
    }
    fn remove(&mut self, key: &K) -> Result<Option<u64>> {
        FpSession::remove(self, key)
    }
    fn scan(
        &mut self,
        bounds: (Bound<&K>, Bound<&K>),
        direction: Direction,
        each: &mut dyn FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        self.scan_with(bounds, direction, each)
    }
}
