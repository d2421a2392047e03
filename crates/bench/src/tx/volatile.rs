//! Maps that keep nothing, behind the trees' interface: what a durable map could reach at most.
//!
//! What must hold: nothing is added to the map that a durable one would not have to do. `BTreeMap` has no lock of its own, so its session
//! holds the lock as long as it lives, and one thread runs it. For more threads there are two: crossbeam's `SkipMap`, the usual choice, and
//! `BTreeMap`s of neighbouring ranges with a lock each. The second is no map for general use (it must know the range of the keys
//! beforehand) but the higher ceiling.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use anyhow::Result;
use crossbeam_skiplist::SkipMap;
use towa_tree::{Direction, OrderedMap, Session};

use super::contenders::{Contender, Instance, Site, VOLATILE};

/// The standard library's `BTreeMap`, one thread.
#[derive(Debug)]
pub struct Ordered;

/// crossbeam's `SkipMap`, any number of threads.
#[derive(Debug)]
pub struct Skip;

/// `BTreeMap`s side by side, any number of threads.
#[derive(Debug)]
pub struct Ranges;

impl Contender for Ordered {
    fn tree(&self) -> &'static str {
        VOLATILE
    }
    fn tm(&self) -> &'static str {
        "btreemap"
    }
    fn fits(&self, threads: usize) -> bool {
        threads == 1
    }
    fn durable(&self) -> bool {
        false
    }
    fn make(&self, _site: &Site) -> Result<Box<dyn Instance>> {
        Ok(Box::new(OneThread(Mutex::default())))
    }
}

impl Contender for Skip {
    fn tree(&self) -> &'static str {
        VOLATILE
    }
    fn tm(&self) -> &'static str {
        "skipmap"
    }
    fn durable(&self) -> bool {
        false
    }
    fn make(&self, _site: &Site) -> Result<Box<dyn Instance>> {
        Ok(Box::new(SkipInstance { map: SkipMap::new(), stamps: AtomicU64::new(0) }))
    }
}

impl Contender for Ranges {
    fn tree(&self) -> &'static str {
        VOLATILE
    }
    fn tm(&self) -> &'static str {
        "ranges"
    }
    fn durable(&self) -> bool {
        false
    }
    fn make(&self, site: &Site) -> Result<Box<dyn Instance>> {
        let width = site.keys / SHARDS as u64 + 1;
        Ok(Box::new(RangesInstance { shards: std::array::from_fn(|_| Shard::default()), width }))
    }
}

struct OneThread(Mutex<BTreeMap<u64, u64>>);

impl OneThread {
    fn hold(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Instance for OneThread {
    fn map(&self) -> &dyn OrderedMap<u64> {
        self
    }
}

impl OrderedMap<u64> for OneThread {
    fn session(&self) -> towa_tree::Result<Box<dyn Session<u64> + '_>> {
        Ok(Box::new(Held(self.hold())))
    }
    fn count(&self) -> towa_tree::Result<u64> {
        Ok(self.hold().len() as u64)
    }
    fn check(&self) -> towa_tree::Result<()> {
        Ok(())
    }
}

struct Held<'m>(MutexGuard<'m, BTreeMap<u64, u64>>);

impl Session<u64> for Held<'_> {
    fn insert(&mut self, key: &u64, value: u64) -> towa_tree::Result<bool> {
        match self.0.entry(*key) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(value);
                Ok(true)
            }
            std::collections::btree_map::Entry::Occupied(_) => Ok(false),
        }
    }
    fn upsert(&mut self, key: &u64, value: u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.0.insert(*key, value))
    }
    fn get(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.0.get(key).copied())
    }
    fn remove(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.0.remove(key))
    }
    fn scan(
        &mut self,
        bounds: (Bound<&u64>, Bound<&u64>),
        direction: Direction,
        each: &mut dyn FnMut(&u64, u64) -> ControlFlow<()>,
    ) -> towa_tree::Result<()> {
        let range = self.0.range(bounds);
        let _ = match direction {
            Direction::Forward => give(range.map(|(k, v)| (*k, *v)), each),
            Direction::Backward => give(range.rev().map(|(k, v)| (*k, *v)), each),
        };
        Ok(())
    }
}

fn give(entries: impl Iterator<Item = (u64, u64)>, each: &mut dyn FnMut(&u64, u64) -> ControlFlow<()>) -> ControlFlow<()> {
    for (key, value) in entries {
        each(&key, value)?;
    }
    ControlFlow::Continue(())
}

/// A value, and who put its entry in: the map gives back the entry that is there, not whether it is the caller's.
struct Slot {
    value: AtomicU64,
    stamp: u64,
}

struct SkipInstance {
    map: SkipMap<u64, Slot>,
    /// Sessions so far; the high half of their stamps.
    stamps: AtomicU64,
}

impl Instance for SkipInstance {
    fn map(&self) -> &dyn OrderedMap<u64> {
        self
    }
}

impl OrderedMap<u64> for SkipInstance {
    fn session(&self) -> towa_tree::Result<Box<dyn Session<u64> + '_>> {
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed) << 40;
        Ok(Box::new(SkipSession { map: &self.map, stamp }))
    }
    fn count(&self) -> towa_tree::Result<u64> {
        Ok(self.map.len() as u64)
    }
    fn check(&self) -> towa_tree::Result<()> {
        Ok(())
    }
}

struct SkipSession<'m> {
    map: &'m SkipMap<u64, Slot>,
    stamp: u64,
}

impl Session<u64> for SkipSession<'_> {
    fn insert(&mut self, key: &u64, value: u64) -> towa_tree::Result<bool> {
        self.stamp += 1;
        let entry = self.map.get_or_insert(*key, Slot { value: AtomicU64::new(value), stamp: self.stamp });
        Ok(entry.value().stamp == self.stamp)
    }
    fn upsert(&mut self, key: &u64, value: u64) -> towa_tree::Result<Option<u64>> {
        self.stamp += 1;
        // Beside a removal of the same key it may be lost with the entry; the benchmark does not do that.
        let entry = self.map.get_or_insert(*key, Slot { value: AtomicU64::new(value), stamp: self.stamp });
        let slot = entry.value();
        Ok((slot.stamp != self.stamp).then(|| slot.value.swap(value, Ordering::AcqRel)))
    }
    fn get(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.map.get(key).map(|entry| entry.value().value.load(Ordering::Acquire)))
    }
    fn remove(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.map.remove(key).map(|entry| entry.value().value.load(Ordering::Acquire)))
    }
    fn scan(
        &mut self,
        bounds: (Bound<&u64>, Bound<&u64>),
        direction: Direction,
        each: &mut dyn FnMut(&u64, u64) -> ControlFlow<()>,
    ) -> towa_tree::Result<()> {
        let range = self.map.range::<u64, _>((bounds.0.cloned(), bounds.1.cloned()));
        let _ = match direction {
            Direction::Forward => give(range.map(|e| (*e.key(), e.value().value.load(Ordering::Acquire))), each),
            Direction::Backward => give(range.rev().map(|e| (*e.key(), e.value().value.load(Ordering::Acquire))), each),
        };
        Ok(())
    }
}

/// Enough that threads seldom meet.
const SHARDS: usize = 256;

/// A line of its own, so that neighbours' locks do not slow each other.
#[derive(Default)]
#[repr(align(64))]
struct Shard(RwLock<BTreeMap<u64, u64>>);

struct RangesInstance {
    shards: [Shard; SHARDS],
    /// Keys of a shard; the last one has all that lie beyond.
    width: u64,
}

impl RangesInstance {
    fn number(&self, key: u64) -> usize {
        ((key / self.width) as usize).min(SHARDS - 1)
    }

    fn of(&self, key: u64) -> &RwLock<BTreeMap<u64, u64>> {
        &self.shards[self.number(key)].0
    }
}

impl Instance for RangesInstance {
    fn map(&self) -> &dyn OrderedMap<u64> {
        self
    }
}

impl OrderedMap<u64> for RangesInstance {
    fn session(&self) -> towa_tree::Result<Box<dyn Session<u64> + '_>> {
        Ok(Box::new(RangesSession(self)))
    }
    fn count(&self) -> towa_tree::Result<u64> {
        Ok(self.shards.iter().map(|s| s.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64).sum())
    }
    fn check(&self) -> towa_tree::Result<()> {
        Ok(())
    }
}

struct RangesSession<'m>(&'m RangesInstance);

impl Session<u64> for RangesSession<'_> {
    fn insert(&mut self, key: &u64, value: u64) -> towa_tree::Result<bool> {
        let mut shard = self.0.of(*key).write().unwrap_or_else(PoisonError::into_inner);
        match shard.entry(*key) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(value);
                Ok(true)
            }
            std::collections::btree_map::Entry::Occupied(_) => Ok(false),
        }
    }
    fn upsert(&mut self, key: &u64, value: u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.0.of(*key).write().unwrap_or_else(PoisonError::into_inner).insert(*key, value))
    }
    fn get(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.0.of(*key).read().unwrap_or_else(PoisonError::into_inner).get(key).copied())
    }
    fn remove(&mut self, key: &u64) -> towa_tree::Result<Option<u64>> {
        Ok(self.0.of(*key).write().unwrap_or_else(PoisonError::into_inner).remove(key))
    }
    fn scan(
        &mut self,
        bounds: (Bound<&u64>, Bound<&u64>),
        direction: Direction,
        each: &mut dyn FnMut(&u64, u64) -> ControlFlow<()>,
    ) -> towa_tree::Result<()> {
        let ends = (bounds.0.cloned(), bounds.1.cloned());
        let shard_at = |end: Bound<u64>, open| match end {
            Bound::Included(key) | Bound::Excluded(key) => self.0.number(key),
            Bound::Unbounded => open,
        };
        let (first, last) = (shard_at(ends.0, 0), shard_at(ends.1, SHARDS - 1));
        for n in 0..=last.saturating_sub(first) {
            let n = if direction == Direction::Forward { first + n } else { last - n };
            let shard = self.0.shards[n].0.read().unwrap_or_else(PoisonError::into_inner);
            let entries = shard.range(ends).map(|(k, v)| (*k, *v));
            let given = match direction {
                Direction::Forward => give(entries, each),
                Direction::Backward => give(entries.rev(), each),
            };
            if given.is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_maps() {
        let site = crate::tx::load::tests::site();
        for contender in [&Ordered as &dyn Contender, &Skip, &Ranges] {
            let instance = contender.make(&site).unwrap();
            let map = instance.map();
            {
                let mut session = map.session().unwrap();
                // In another range than those below.
                assert!(session.insert(&9000, 1).unwrap());
                assert_eq!(session.remove(&9000).unwrap(), Some(1));
                assert!(session.insert(&5, 50).unwrap());
                assert!(!session.insert(&5, 51).unwrap());
                assert_eq!(session.upsert(&5, 52).unwrap(), Some(50));
                assert_eq!(session.upsert(&6, 60).unwrap(), None);
                assert!(session.insert(&7, 70).unwrap());
                assert_eq!(session.remove(&7).unwrap(), Some(70));
                assert_eq!((session.get(&5).unwrap(), session.get(&7).unwrap()), (Some(52), None));
                for (direction, first) in [(Direction::Forward, (5, 52)), (Direction::Backward, (6, 60))] {
                    let mut seen = Vec::new();
                    let bounds = (Bound::Included(&5), Bound::Unbounded);
                    let mut each = |k: &u64, v| {
                        seen.push((*k, v));
                        ControlFlow::Break(())
                    };
                    session.scan(bounds, direction, &mut each).unwrap();
                    assert_eq!(seen, [first], "{}", contender.tm());
                }
            }
            assert_eq!(map.count().unwrap(), 2);
        }
    }
}
