//! A leaf: reading it while others write, and writing it while others read.
//!
//! ```text
//!   reader   version even? ──► read words ──► fence ──► version the same? ── no ──► descend again
//!   writer   version + 1 (locked) ──► store, write back, fence, commit, write back, fence ──► version + 2
//! ```
//!
//! What must always hold: whoever stores into a leaf holds its lock, until what he stored is durable - so whatever a reader is given is
//! durable; readers write nothing. Memory that was a leaf stays one until the arena is closed (unlinked leaves go to the tree's own
//! list), and its version only grows: a reader that comes late finds another version, whatever has become of the leaf.
//!
//! The version shares a line with what is durable, so some version reaches the medium with it; it means nothing there, and opening resets
//! it. All words are read by atomic loads, and a blob's address is checked at each word, so a torn view is garbage, never undefined.

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use towa_alloc::Arena;

use super::layout::*;
use crate::fingerprint::{self, SLOTS, slots};
use crate::{Blobs, Error, Key, Result};

impl Blobs for Arena {
    #[inline]
    fn word(&self, address: u64) -> Option<u64> {
        self.get(address)
    }
}

/// A leaf of an arena.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    pub off: u64,
    words: &'a [AtomicU64; LEAF_WORDS],
}

/// What a leaf holds, as stored: what a split starts from.
pub(super) type Image = [u64; LEAF_WORDS];

impl<'a> Leaf<'a> {
    /// The leaf at `off`, if one could be there.
    #[inline]
    pub fn at(arena: &'a Arena, off: u64) -> Option<Leaf<'a>> {
        if !off.is_multiple_of(towa_media::LINE as u64) {
            return None;
        }
        Some(Leaf { off, words: arena.words(off, LEAF_WORDS)?.try_into().ok()? })
    }

    /// Its version; odd while it is locked.
    #[inline]
    pub fn version(&self) -> u64 {
        self.words[0].load(Acquire)
    }

    /// Whether everything read since the version was `version` belongs together.
    #[inline]
    pub fn validate(&self, version: u64) -> bool {
        fence(Acquire);
        self.words[0].load(Relaxed) == version
    }

    /// Locks it, if it still has `version` (which is even).
    #[inline]
    pub fn lock(&self, version: u64) -> bool {
        let locked = self.words[0].compare_exchange(version, version | 1, Acquire, Relaxed).is_ok();
        // What is stored under the lock must not be seen before it.
        fence(Release);
        locked
    }

    /// Unlocks it, changed.
    #[inline]
    pub fn unlock(&self, version: u64) {
        self.words[0].store(version + 2, Release);
    }

    /// Unlocks it, unchanged: readers need not look again.
    #[inline]
    pub fn unlock_unchanged(&self, version: u64) {
        self.words[0].store(version, Release);
    }

    /// For recovery: nobody reads it.
    pub fn reset_version(&self) {
        self.words[0].store(0, Relaxed);
    }

    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        self.words[at].load(Relaxed)
    }

    #[inline]
    pub fn bitmap(&self) -> u64 {
        self.word(BITMAP) & ((1 << SLOTS) - 1)
    }

    pub fn next(&self) -> u64 {
        self.word(NEXT)
    }

    #[inline]
    pub fn fingerprints(&self) -> [u64; 6] {
        std::array::from_fn(|i| self.word(FINGERPRINTS + i))
    }

    #[inline]
    pub fn key_word(&self, slot: usize) -> u64 {
        self.word(ENTRIES + 2 * slot)
    }

    #[inline]
    pub fn value(&self, slot: usize) -> u64 {
        self.word(ENTRIES + 2 * slot + 1)
    }

    /// Slot and value of `key`.
    #[inline]
    pub fn find<K: Key + ?Sized>(&self, key: &K, print: u8, arena: &Arena) -> Option<(usize, u64)> {
        let mut candidates = fingerprint::matching(self.fingerprints(), print) & self.bitmap();
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            if key.is(self.key_word(slot), arena) {
                return Some((slot, self.value(slot)));
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Everything it holds. For the lock's holder, or before validating.
    pub fn image(&self) -> Image {
        std::array::from_fn(|i| self.word(i))
    }

    /// Stores an entry beside the live ones, its words written back, its fingerprint not: that shares the bitmap's line, whose stores
    /// reach a line medium in program order, so a bitmap that is there has its fingerprints; on other media the fence before the
    /// bitmap covers it.
    #[inline]
    pub fn fill(&self, arena: &Arena, slot: usize, word: u64, value: u64, print: u8) -> Result<()> {
        let entry = self.off + 8 * (ENTRIES + 2 * slot) as u64;
        arena.store(entry, &[word, value])?;
        arena.write_back(entry, 16);
        let at = FINGERPRINTS + slot / 8;
        arena.store_word(self.off + 8 * at as u64, fingerprint::replaced(self.word(at), slot, print))?;
        Ok(())
    }

    /// Makes `bitmap` the leaf's, durably: the one store that entries come and go by.
    #[inline]
    pub fn commit(&self, arena: &Arena, bitmap: u64) -> Result<()> {
        self.set_bitmap(arena, bitmap)?;
        Ok(arena.fence()?)
    }

    /// Stores `bitmap` and writes it back.
    #[inline]
    pub fn set_bitmap(&self, arena: &Arena, bitmap: u64) -> Result<()> {
        arena.store_word(self.off + 8 * BITMAP as u64, bitmap)?;
        arena.write_back(self.off, towa_media::LINE as u64);
        Ok(())
    }

    /// Replaces a value, durably: one word, so the old one or the new one is there.
    #[inline]
    pub fn replace(&self, arena: &Arena, slot: usize, value: u64) -> Result<()> {
        let at = self.off + 8 * (ENTRIES + 2 * slot + 1) as u64;
        arena.store_word(at, value)?;
        arena.write_back(at, 8);
        Ok(arena.fence()?)
    }

    /// Stores `next` and writes it back.
    pub fn set_next(&self, arena: &Arena, next: u64) -> Result<()> {
        let at = self.off + 8 * NEXT as u64;
        arena.store_word(at, next)?;
        arena.write_back(at, 8);
        Ok(())
    }

    /// Stores all of a fresh leaf but its version, and writes it back.
    pub fn write(&self, arena: &Arena, image: &Image) -> Result<()> {
        arena.store(self.off + 8, &image[1..])?;
        arena.write_back(self.off, LEAF_LEN as u64);
        Ok(())
    }
}

/// The slots of `image` that are live, in the order of their keys, with their keys.
pub(super) fn sorted<K: Key + ?Sized>(image: &Image, arena: &Arena) -> Result<Vec<(K::Owned, usize)>> {
    let mut keys = Vec::with_capacity(SLOTS);
    for slot in slots(image[BITMAP]) {
        let mut key = K::Owned::default();
        if !K::read(image[ENTRIES + 2 * slot], arena, &mut key) {
            let what = format!("the key in slot {slot} of a leaf has no blob at {:#x}", image[ENTRIES + 2 * slot]);
            return Err(Error::Damaged { pool: arena.location().into(), what });
        }
        keys.push((key, slot));
    }
    keys.sort_unstable();
    Ok(keys)
}
