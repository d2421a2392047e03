//! The store under measurement: Towa's own hash map, 8-byte keys and 1-KB values, on a pool of any mode.
//!
//! The same code runs on every engine; what differs is the pool's mode. What must hold: a read copies the whole value out and
//! sees the value of the key it asked for, whole; a write writes the whole value anew.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use towa_containers::{HashMap, HashMapOptions};
use towa_epoch::{Mode, Options, Pool, Thread};
use towa_media::Medium;

use crate::rounds::{Store, Worker};
use crate::workload::{Op, initial_keys};

/// Bytes of a value.
pub const VALUE_BYTES: usize = 1024;
/// Heap set aside for an item at most: the value, its header and key, and room of the allocator's classes.
const ITEM_ROOM: u64 = 2 * VALUE_BYTES as u64;
/// Heap for everything else.
const HEAP_FLOOR: u64 = 128 << 20;
/// Name of the map in its pool.
const NAME: &str = "bench";

/// A pool with the map in it.
#[derive(Debug)]
pub struct Shelf {
    /// The pool.
    pub pool: Pool,
    map: HashMap,
}

/// How much a heap must hold for `items` items.
pub fn heap_len(items: u64) -> u64 {
    (items * ITEM_ROOM + HEAP_FLOOR).next_multiple_of(2 << 20)
}

impl Shelf {
    /// A new, empty one: on `dir` with `medium`, or nowhere when the mode is volatile.
    pub fn create(dir: &Path, medium: towa_media::Kind, items: u64, options: Options) -> Result<Self> {
        let options = Options { heap_len: heap_len(items), medium: Some(medium), ..options };
        let pool = match options.mode {
            Mode::Volatile => Pool::volatile(&options),
            _ => Pool::create(dir, &options),
        };
        let pool = pool.with_context(|| format!("creating a {:?} pool in {}", options.mode, dir.display()))?;
        Self::over(pool, items)
    }

    /// The one in `dir`, recovered.
    pub fn open(dir: &Path, medium: towa_media::Kind, options: Options) -> Result<Self> {
        let options = Options { medium: Some(medium), ..options };
        let pool = Pool::open(dir, &options).with_context(|| format!("opening the pool in {}", dir.display()))?;
        Self::over(pool, 0)
    }

    fn over(pool: Pool, items: u64) -> Result<Self> {
        let map = HashMap::open(&pool, NAME, &HashMapOptions { capacity: items })?;
        Ok(Self { pool, map })
    }

    /// Puts the initial keys of `buckets` buckets.
    pub fn fill(&self, buckets: u64) -> Result<()> {
        let mut worker = self.worker()?;
        initial_keys(buckets).try_for_each(|key| worker.run(Op::Put, key))?;
        drop(worker);
        self.settle()
    }

    /// Returns when everything is durable, so that nothing of this engine runs into the next one's round.
    pub fn settle(&self) -> Result<()> {
        self.pool.sync().context("waiting for a checkpoint between rounds")?;
        Ok(())
    }

    /// The medium, for its counters.
    pub fn medium(&self) -> Option<&Arc<dyn Medium>> {
        self.pool.medium()
    }
}

/// One user thread on a [`Shelf`].
#[derive(Debug)]
pub struct ShelfWorker<'s> {
    map: &'s HashMap,
    thread: Thread,
    value: Vec<u8>,
    read: Vec<u8>,
    writes: u64,
}

impl Store for Shelf {
    type Worker<'s> = ShelfWorker<'s>;

    fn worker(&self) -> Result<ShelfWorker<'_>> {
        let thread = self.pool.register().context("registering a thread")?;
        let read = Vec::with_capacity(VALUE_BYTES);
        Ok(ShelfWorker { map: &self.map, thread, value: vec![0; VALUE_BYTES], read, writes: 0 })
    }
}

impl ShelfWorker<'_> {
    /// Whether `key` is there; its value is checked to be one that a worker wrote for it, whole.
    pub fn check(&mut self, key: u64) -> Result<bool> {
        if !self.map.get_into(&key.to_le_bytes(), &mut self.read)? {
            return Ok(false);
        }
        let whole = self.read.len() == VALUE_BYTES
            && self.read[..8] == key.to_le_bytes()
            && self.read[8..].iter().all(|b| *b == self.read[8]);
        ensure!(whole, "key {key} has a torn value: {:02x?}", &self.read[..self.read.len().min(32)]);
        Ok(true)
    }
}

impl Worker for ShelfWorker<'_> {
    #[inline]
    fn run(&mut self, op: Op, key: u64) -> Result<()> {
        let name = key.to_le_bytes();
        match op {
            Op::Get => {
                let found = self.map.get_into(&name, &mut self.read)?;
                ensure!(!found || self.read[..8] == name, "key {key} has the value of another key");
            }
            Op::Put => {
                self.writes += 1;
                self.value.fill(self.writes as u8);
                self.value[..8].copy_from_slice(&name);
                self.map.insert(&mut self.thread, &name, &self.value)?;
            }
            Op::Remove => drop(self.map.remove(&mut self.thread, &name)?),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Scratch;

    #[test]
    fn every_mode_keeps_what_it_is_told_and_durable_ones_over_a_reopening() {
        for mode in [Mode::Volatile, Mode::NonStop, Mode::StopTheWorld] {
            let scratch = Scratch::within(&std::env::temp_dir()).unwrap();
            let dir = scratch.path().join("pool");
            let options = Options { mode, ..Options::default() };
            let shelf = Shelf::create(&dir, towa_media::Kind::File, 1000, options.clone()).unwrap();
            shelf.fill(1000).unwrap();
            let present = |shelf: &Shelf| {
                let mut worker = shelf.worker().unwrap();
                (0..2000).filter(|key| worker.check(*key).unwrap()).count()
            };
            assert_eq!(present(&shelf), 1000, "{mode:?}");
            shelf.worker().unwrap().run(Op::Remove, 0).unwrap();
            assert_eq!(present(&shelf), 999, "{mode:?}");
            if mode != Mode::Volatile {
                drop(shelf);
                let shelf = Shelf::open(&dir, towa_media::Kind::File, options).unwrap();
                assert_eq!(present(&shelf), 999, "{mode:?} after reopening");
            }
        }
    }
}
