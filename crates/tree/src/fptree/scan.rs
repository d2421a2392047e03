//! Ranges, forward and backward, while others write.
//!
//! ```text
//!   find the leaf and the keys that bound it ──► copy its entries ──► still the same version? ──► sort, give ──► on from its bound
//! ```
//!
//! What must always hold: what is given of one leaf was there at one moment, durably; the next leaf is looked up by the bound of the last one,
//! so that leaves that split or go meanwhile are neither skipped nor given twice. The pointers between leaves are for recovery.

use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};

use super::index::{Place, Range};
use super::session::Patience;
use super::{FpSession, within};
use crate::fingerprint::slots;
use crate::{Direction, Key, Result};

/// What a session keeps for scans, so that they allocate only once.
pub(super) struct Buffers<K: Key + ?Sized> {
    /// Entries of one leaf; those beyond `len` are left for their memory.
    entries: Vec<(K::Owned, u64)>,
    len: usize,
    range: Range<K>,
    from: K::Owned,
}

impl<K: Key + ?Sized> Default for Buffers<K> {
    fn default() -> Self {
        Buffers { entries: Vec::new(), len: 0, range: Range::default(), from: K::Owned::default() }
    }
}

impl<K: Key + ?Sized> FpSession<'_, K> {
    pub(super) fn scan_with(
        &mut self,
        (low, high): (Bound<&K>, Bound<&K>),
        direction: Direction,
        each: &mut dyn FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        // Taken out: `each` may be anything but this session.
        let mut buffers = std::mem::take(&mut self.buffers);
        let result = self.scan_leaves(&mut buffers, (low, high), direction, each);
        self.buffers = buffers;
        result
    }

    fn scan_leaves(
        &self,
        buffers: &mut Buffers<K>,
        (low, high): (Bound<&K>, Bound<&K>),
        direction: Direction,
        each: &mut dyn FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut first = true;
        loop {
            let from: &K = buffers.from.borrow();
            let place = match (direction, first) {
                (Direction::Forward, false) => Place::Of(from),
                (Direction::Backward, false) => Place::Before(from),
                (Direction::Forward, true) => match low {
                    Bound::Unbounded => Place::First,
                    Bound::Included(key) | Bound::Excluded(key) => Place::Of(key),
                },
                (Direction::Backward, true) => match high {
                    Bound::Unbounded => Place::Last,
                    Bound::Included(key) => Place::Of(key),
                    Bound::Excluded(key) => Place::Before(key),
                },
            };
            let mut patience = Patience::default();
            while !self.copy(&place, &mut buffers.entries, &mut buffers.len, &mut buffers.range) {
                patience.wait(self.tree)?;
            }
            let entries = &mut buffers.entries[..buffers.len];
            entries.sort_unstable();
            // Nothing that an earlier leaf gave: a leaf's range may have grown since.
            let from: &K = buffers.from.borrow();
            let inside = |key: &K| {
                let fresh = first || if direction == Direction::Forward { key >= from } else { key < from };
                fresh && within(key, &low, &high)
            };
            let mut give = |(key, value): &(K::Owned, u64)| match key.borrow() {
                key if inside(key) => each(key, *value),
                _ => ControlFlow::Continue(()),
            };
            let (flow, next) = match direction {
                Direction::Forward => (entries.iter().try_for_each(&mut give), &buffers.range.high),
                Direction::Backward => (entries.iter().rev().try_for_each(&mut give), &buffers.range.low),
            };
            let Some(next) = next.as_ref().filter(|_| flow.is_continue()) else { return Ok(()) };
            let next_key: &K = next.borrow();
            let beyond = match direction {
                Direction::Forward => matches!(high, Bound::Included(high) | Bound::Excluded(high) if next_key > high),
                Direction::Backward => matches!(low, Bound::Included(low) | Bound::Excluded(low) if next_key <= low),
            };
            if beyond {
                return Ok(());
            }
            next_key.copy_to(&mut buffers.from);
            first = false;
        }
    }

    /// Copies the entries of the leaf at `place`, as they were at one moment; false if there was none.
    fn copy(&self, place: &Place<'_, K>, entries: &mut Vec<(K::Owned, u64)>, len: &mut usize, range: &mut Range<K>) -> bool {
        let arena = &*self.tree.arena;
        let Some(found) = self.tree.index.try_find_range(place, arena, range) else { return false };
        if found.version & 1 != 0 {
            return false;
        }
        *len = 0;
        for slot in slots(found.leaf.bitmap()) {
            if *len == entries.len() {
                entries.push(Default::default());
            }
            let (key, value) = &mut entries[*len];
            if !K::read(found.leaf.key_word(slot), arena, key) {
                return false;
            }
            *value = found.leaf.value(slot);
            *len += 1;
        }
        found.leaf.validate(found.version)
    }
}
