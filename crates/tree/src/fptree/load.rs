//! Sorted input into an empty tree, all or nothing.
//!
//! ```text
//!   head (empty) ─► 0          leaf ─► leaf ─► ... ─► 0       written, written back, one FENCE
//!   head (empty) ─► leaf ...                                  head.next := first leaf; write back | FENCE
//! ```
//!
//! What must always hold: until the last store nothing of it can be reached, so stopping leaves an empty tree, and everything it took is
//! free at the next opening; after that store's fence all of it is there.

use std::borrow::Borrow;
use std::sync::Arc;

use towa_alloc::Allocator;

use super::index::Index;
use super::layout::*;
use super::leaf::Leaf;
use super::{FpTree, recover};
use crate::fingerprint::replaced;
use crate::{Error, Key, Result};

impl<K: Key + ?Sized> FpTree<K> {
    /// Fills an empty tree with `entries`, whose keys must ascend. Leaves are filled to three quarters. Nothing is there before it returns.
    pub fn bulk_load<Q: Borrow<K>>(&mut self, entries: impl IntoIterator<Item = (Q, u64)>) -> Result<u64> {
        let arena = self.arena.clone();
        let head = Leaf::at(&arena, self.head).expect("the head leaf");
        let pool = || arena.location().to_owned();
        if head.bitmap() != 0 || head.next() != 0 {
            return Err(Error::Mismatch { pool: pool(), what: "only an empty tree can be loaded at once".into() });
        }
        let mut loaded =
            Loaded { allocator: &self.allocator, blocks: Vec::new(), leaves: Vec::new(), open: None, count: 0, linked: false };
        let index = Index::new(self.head, arena.len())?;
        self.load_leaves(entries, &mut loaded)?;
        // The index before the list: what is in the list is found.
        recover::build_index(&arena, &index, self.head, &loaded.leaves)?;
        let Some((_, first)) = loaded.leaves.first() else { return Ok(0) };
        arena.fence()?;
        // From here on it may be in the list.
        loaded.linked = true;
        head.set_next(&arena, *first)?;
        arena.fence()?;
        let count = loaded.count;
        drop(loaded);
        self.index = index;
        Ok(count)
    }

    fn load_leaves<Q: Borrow<K>>(&self, entries: impl IntoIterator<Item = (Q, u64)>, loaded: &mut Loaded<'_, K>) -> Result<()> {
        let arena = &*self.arena;
        let mut local = self.allocator.local();
        let fill = (self.full.count_ones() as usize * 3 / 4).max(1);
        let mut last = None::<K::Owned>;
        let mut image = [0; LEAF_WORDS];
        image[TAG] = LEAF_TAG;
        let (mut n, mut least) = (0, K::Owned::default());
        let mut entries = entries.into_iter().peekable();
        while let Some((key, value)) = entries.next() {
            let key: &K = key.borrow();
            key.check()?;
            if last.as_ref().is_some_and(|last| last.borrow() >= key) {
                let what = format!("the key after {last:?} is not greater: input must ascend");
                return Err(Error::Mismatch { pool: arena.location().into(), what });
            }
            key.copy_to(last.get_or_insert_default());
            let word = if K::INLINE {
                key.word()
            } else {
                let mut blob = [0; crate::keys::BLOB_LEN];
                let words = key.blob(&mut blob);
                let off = local.reserve(words * 8)?;
                loaded.blocks.push(off);
                arena.store(off, &blob[..words])?;
                arena.write_back(off, words as u64 * 8);
                off
            };
            if n == 0 {
                key.copy_to(&mut least);
            }
            image[ENTRIES + 2 * n] = word;
            image[ENTRIES + 2 * n + 1] = value;
            image[FINGERPRINTS + n / 8] = replaced(image[FINGERPRINTS + n / 8], n, key.fingerprint());
            n += 1;
            loaded.count += 1;
            let more = entries.peek().is_some();
            if n == fill || !more {
                let off = match loaded.open.take() {
                    Some(off) => off,
                    None => local.reserve(LEAF_LEN)?,
                };
                loaded.leaves.push((std::mem::take(&mut least), off));
                image[BITMAP] = (1 << n) - 1;
                image[NEXT] = if more { local.reserve(LEAF_LEN)? } else { 0 };
                loaded.open = more.then_some(image[NEXT]);
                let leaf = Leaf::at(arena, off).expect("a block of the arena");
                leaf.write(arena, &image)?;
                leaf.reset_version();
                n = 0;
            }
        }
        Ok(())
    }
}

/// What was taken so far. It is free again if the load does not end, because of an error or of a panic in the iterator.
struct Loaded<'a, K: Key + ?Sized> {
    allocator: &'a Arc<Allocator>,
    /// Blobs.
    blocks: Vec<u64>,
    /// Leaves with their least keys.
    leaves: Vec<(K::Owned, u64)>,
    /// The leaf that comes next.
    open: Option<u64>,
    count: u64,
    /// The list may lead to it.
    linked: bool,
}

impl<K: Key + ?Sized> Drop for Loaded<'_, K> {
    fn drop(&mut self) {
        if !self.linked {
            let mut local = self.allocator.local();
            let leaves = self.leaves.iter().map(|(_, off)| off).chain(&self.open);
            self.blocks.iter().chain(leaves).for_each(|off| local.free(*off));
        }
    }
}
