//! Random transactions of three threads over two open epochs, with evacuations among them, against a model; every epoch's image is opened and
//! compared.

use super::world::{FIRST, Memory, Random, UndoLog, World, open};
use crate::alloc::cache::Cache;
use crate::alloc::layout::{BLOCK_HEADER, CHUNK, LINE, SMALL_MAX};
use crate::alloc::{Allocator, Window, check};
use std::collections::BTreeMap;
use std::rc::Rc;

const HEAP: usize = 6 << 20;

/// A live block: what was asked for and what was written into it.
#[derive(Clone, Debug, PartialEq)]
struct Object {
    size: usize,
    /// Bytes of heap it takes: not known from its size, as a full heap gives blocks of larger classes too.
    takes: u64,
    /// Newest epoch that wrote it; older transactions do not get to see it.
    epoch: u64,
    fill: Rc<[u8]>,
}

/// Live blocks by offset.
type Model = BTreeMap<u64, Object>;

#[derive(Default)]
struct Thread {
    cache: Cache,
    tx: Option<Open>,
    last_epoch: u64,
}

/// A transaction under way.
struct Open {
    epoch: u64,
    ops_left: usize,
    undoable: bool,
    allocated: Vec<u64>,
    freed: Vec<(u64, Object)>,
}

/// An evacuation under way.
struct Leaving {
    window: Window,
    /// Threads whose transaction ran when it began, and runs.
    waits: Vec<bool>,
    ops_left: usize,
}

struct Run {
    random: Random,
    world: World,
    allocator: Allocator,
    threads: Vec<Thread>,
    logs: Vec<UndoLog>,
    /// As of the newest epoch.
    now: Model,
    /// Without what epoch `newest` did, while `oldest` is still open.
    oldest: Model,
    sizes: fn(&mut Random) -> usize,
    refused: usize,
    leaving: Option<Leaving>,
    evacuated: usize,
    released: u64,
}

impl Run {
    fn new(seed: u64, sizes: fn(&mut Random) -> usize) -> Self {
        let world = World::new(Memory::new(HEAP));
        let allocator = open(&world.memory, FIRST);
        let logs = (0..3).map(|_| UndoLog::default()).collect();
        let threads = (0..3).map(|_| Thread::default()).collect();
        let (now, oldest) = (Model::new(), Model::new());
        Self {
            random: Random::new(seed),
            world,
            allocator,
            threads,
            logs,
            now,
            oldest,
            sizes,
            refused: 0,
            leaving: None,
            evacuated: 0,
            released: 0,
        }
    }

    fn step(&mut self) {
        let at = self.random.below(self.threads.len());
        match &self.threads[at].tx {
            None => self.begin(at),
            Some(tx) if tx.ops_left == 0 => self.end(at),
            Some(tx) if !tx.undoable && self.random.below(8) == 0 => self.evacuate(at),
            // More is freed the fuller the heap is, but it fills up now and then.
            Some(_) if self.random.below(100) < 55 => self.alloc(at),
            Some(_) => self.free(at),
        }
        if self.world.newest == self.world.oldest && self.random.below(40) == 0 {
            self.oldest = self.now.clone();
            self.world.newest += 1;
        }
    }

    fn begin(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        let undoable = self.random.below(4) == 0;
        if undoable {
            thread.cache.begin_undoable();
        }
        thread.last_epoch = self.world.newest;
        let ops_left = self.random.below(30);
        thread.tx = Some(Open { epoch: self.world.newest, ops_left, undoable, allocated: Vec::new(), freed: Vec::new() });
    }

    /// What a user might store: noise, or the worst, copies of the allocator's own headers wherever a header could be.
    fn fill(&mut self, size: usize) -> Vec<u8> {
        let mut fill = vec![0; size];
        let pick = self.random.below(self.now.len() + 1);
        if let Some((&off, _)) = self.now.iter().nth(pick).filter(|_| self.random.below(2) == 0) {
            let header = self.world.memory.bytes(off / LINE as u64 * LINE as u64, LINE).to_vec();
            fill.chunks_mut(LINE).for_each(|line| line.copy_from_slice(&header[..line.len()]));
            fill.rotate_left(size.min(BLOCK_HEADER));
        } else {
            let word = self.random.next().to_le_bytes();
            fill.chunks_mut(8).for_each(|to| to.copy_from_slice(&word[..to.len()]));
        }
        fill
    }

    fn alloc(&mut self, at: usize) {
        let size = (self.sizes)(&mut self.random);
        let fill = self.fill(size);
        let thread = &mut self.threads[at];
        let tx = thread.tx.as_mut().expect("begun");
        tx.ops_left = tx.ops_left.saturating_sub(1);
        let marker = self.world.tx(tx.epoch, tx.undoable.then_some(&self.logs[at]));
        let Ok(ptr) = self.allocator.alloc(&mut thread.cache, &marker, size) else {
            self.refused += 1;
            return;
        };
        let off = self.world.memory.off(ptr);
        assert_eq!(off % 16, 0);
        let usable = self.allocator.usable_size(ptr);
        assert!(usable >= size);
        let header = if size > SMALL_MAX { 0 } else { BLOCK_HEADER as u64 };
        let before = self.now.range(..=off).next_back();
        let clear = before.is_none_or(|(&start, object)| start + object.size as u64 <= off - header);
        let after = self.now.range(off..).next();
        assert!(clear && after.is_none_or(|(&start, _)| off + size as u64 <= start), "overlaps a live block");
        self.world.memory.write(off, &fill);
        tx.allocated.push(off);
        let takes = usable as u64 + header;
        let object = Object { size, takes, epoch: tx.epoch, fill: fill.into() };
        if tx.epoch == self.world.oldest && self.world.newest > tx.epoch {
            self.oldest.insert(off, object.clone());
        }
        self.now.insert(off, object);
    }

    /// Begins an evacuation, goes on with the one under way, or ends it.
    fn evacuate(&mut self, at: usize) {
        self.threads[at].tx.as_mut().expect("begun").ops_left -= 1;
        let Some(leaving) = &mut self.leaving else {
            let (random, size) = (self.random.next(), (self.sizes)(&mut self.random));
            let survey = self.allocator.survey(random, size);
            let window = survey.and_then(|survey| self.allocator.evacuate(&survey));
            let waits = self.threads.iter().map(|thread| thread.tx.is_some()).collect();
            self.leaving = window.map(|window| Leaving { window, waits, ops_left: 40 });
            return;
        };
        leaving.ops_left -= 1;
        if leaving.ops_left == 0 {
            let leaving = self.leaving.take().expect("looked at just before");
            return self.allocator.put_back(leaving.window);
        }
        let mut live = Vec::new();
        self.allocator.live_in(&leaving.window, 0, usize::MAX, &mut |address| {
            live.push((address - self.world.memory.base.as_ptr() as usize) as u64)
        });
        for off in live.into_iter().take(200) {
            self.free_block(at, off);
        }
        self.settle(at);
    }

    /// Ends the evacuation if nothing lives in its window, by a transaction that may have begun before that was so.
    /// What was seen to be free stays so until then.
    fn settle(&mut self, at: usize) {
        let leaving = self.leaving.as_mut().expect("under way");
        let newest = self.world.newest;
        if leaving.waits.contains(&true) {
            return;
        }
        if self.random.below(3) > 0 {
            self.allocator.inspect(&mut leaving.window, usize::MAX, || newest);
            return;
        }
        let thread = &mut self.threads[at];
        let marker = self.world.tx(thread.tx.as_ref().expect("begun").epoch, None);
        if !self.allocator.settle(&mut leaving.window, &marker) {
            return;
        }
        self.evacuated += 1;
        let leaving = self.leaving.take().expect("looked at just before");
        if self.random.below(3) == 0 {
            self.allocator.put_back(leaving.window);
        } else {
            self.allocator.grant(leaving.window, &mut thread.cache);
            self.alloc(at);
            self.allocator.release_grant(&mut self.threads[at].cache);
        }
    }

    fn free(&mut self, at: usize) {
        self.threads[at].tx.as_mut().expect("begun").ops_left -= 1;
        let pick = self.random.below(self.now.len() + 1);
        if let Some((&off, _)) = self.now.iter().nth(pick) {
            self.free_block(at, off);
        }
    }

    /// Frees a block if this transaction may know of it: of its epoch or older, and not of an undoable one still open.
    fn free_block(&mut self, at: usize, off: u64) {
        let epoch = self.threads[at].tx.as_ref().expect("begun").epoch;
        let Some(object) = self.now.get(&off) else { return };
        let others = self.threads.iter().enumerate().filter(|&(other, _)| other != at).filter_map(|(_, thread)| thread.tx.as_ref());
        if object.epoch > epoch || others.clone().any(|tx| tx.undoable && tx.allocated.contains(&off)) {
            return;
        }
        let object = object.clone();
        let ptr = self.world.memory.at(off);
        assert_eq!(self.world.memory.bytes(off, object.size), &*object.fill, "a live block changed");
        let thread = &mut self.threads[at];
        let tx = thread.tx.as_mut().expect("begun");
        let marker = self.world.tx(epoch, tx.undoable.then_some(&self.logs[at]));
        // SAFETY: live according to the model.
        unsafe { self.allocator.free(&mut thread.cache, &marker, ptr) };
        tx.freed.push((off, object));
        self.now.remove(&off);
        if epoch == self.world.oldest {
            self.oldest.remove(&off);
        }
    }

    fn end(&mut self, at: usize) {
        let thread = &mut self.threads[at];
        let tx = thread.tx.take().expect("begun");
        if let Some(leaving) = &mut self.leaving {
            leaving.waits[at] = false;
        }
        let in_oldest = tx.epoch == self.world.oldest;
        if tx.undoable && self.random.below(2) == 0 {
            self.world.undo(&self.logs[at]);
            self.allocator.rollback(&mut thread.cache, &self.world.tx(tx.epoch, None));
            // Freed ones first: what was allocated and freed in this transaction is gone in the end.
            for (off, object) in tx.freed {
                if in_oldest {
                    self.oldest.insert(off, object.clone());
                }
                self.now.insert(off, Object { epoch: tx.epoch, ..object });
            }
            for off in tx.allocated {
                self.now.remove(&off);
                if in_oldest {
                    self.oldest.remove(&off);
                }
            }
        } else if tx.undoable {
            self.logs[at].borrow_mut().clear();
            self.allocator.commit(&mut thread.cache);
        }
        if self.random.below(10) == 0 {
            thread.cache.flush(&self.allocator);
        }
        if self.random.below(20) == 0 {
            self.allocator.warm(3);
        }
        if self.random.below(10) == 0 {
            let most = self.random.below(HEAP) as u64;
            self.released += self.allocator.release_memory(self.world.oldest - 1, most, |range| self.world.let_go(range));
        }
        self.world.verify_marks(self.allocator.frontier());
        let behind = self.threads.iter().any(|thread| thread.tx.as_ref().is_some_and(|tx| tx.epoch == self.world.oldest));
        if self.world.newest > self.world.oldest && !behind {
            self.boundary();
        }
    }

    /// Epoch `oldest` is over: its image must open as the model says. Now and then the run goes on from there, as after a crash.
    fn boundary(&mut self) {
        let frontier = self.allocator.frontier();
        let image = self.world.end_oldest();
        let recovered = Memory::of(&image[..frontier as usize], HEAP);
        verify_recovered(&recovered, frontier, &self.oldest, &mut self.random);
        if self.random.below(4) == 0 {
            self.world = World::new(Memory::of(&image[..frontier as usize], HEAP));
            self.leaving = None;
            self.allocator = open(&self.world.memory, frontier);
            if self.random.below(2) == 0 {
                self.world.hollow_out(&self.allocator);
            }
            self.threads.iter_mut().for_each(|thread| *thread = Thread::default());
            self.logs.iter().for_each(|log| log.borrow_mut().clear());
            self.now = std::mem::take(&mut self.oldest);
            self.now.values_mut().for_each(|object| object.epoch = 0);
        }
    }
}

impl Run {
    /// Everything ends and is freed: the allocator that lived through all this has lost nothing either.
    fn finish(&mut self) {
        for at in 0..self.threads.len() {
            if self.threads[at].tx.is_some() {
                self.end(at);
            }
            self.threads[at].cache.flush(&self.allocator);
        }
        if let Some(leaving) = self.leaving.take() {
            self.allocator.put_back(leaving.window);
        }
        let (mut cache, tx) = (Cache::new(), self.world.tx(self.world.newest, None));
        for &off in self.now.keys() {
            // SAFETY: live according to the model.
            unsafe { self.allocator.free(&mut cache, &tx, self.world.memory.at(off)) };
        }
        self.allocator.warm(u64::MAX);
        self.allocator.reclaim(&mut cache, &tx);
        assert_eq!(self.allocator.used_bytes(), 0);
        assert_eq!(self.allocator.free_chunk_bytes(), u64::from(self.allocator.geo.chunks) * CHUNK, "chunks leaked");
    }
}

/// The heap holds exactly the model's blocks, and everything else can be used again.
fn verify_recovered(memory: &Memory, frontier: u64, model: &Model, random: &mut Random) {
    let mut read = |off: u64, into: &mut [u8]| {
        into.copy_from_slice(memory.bytes(off, into.len()));
        Ok::<(), ()>(())
    };
    let report = check(&mut read, HEAP as u64, FIRST, frontier).expect("reads cannot fail");
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.blocks_live, model.len() as u64);
    assert_eq!(report.bytes_live, model.values().map(|object| object.size as u64).sum::<u64>());

    let allocator = open(memory, frontier);
    for (&off, object) in model {
        let start = memory.at(off).as_ptr() as usize;
        let block = allocator.block_of(start + object.size.saturating_sub(1)).expect("a block");
        assert_eq!((block.start, block.len, block.live), (start, object.size, true));
        assert_eq!(memory.bytes(off, object.size), &*object.fill);
    }
    if random.below(2) == 0 {
        while allocator.warm(5) {}
        assert_eq!(allocator.used_bytes(), model.values().map(|object| object.takes).sum::<u64>());
    }
    assert_eq!(allocator.damaged_blocks(), 0);
    if random.below(8) == 0 {
        verify_nothing_leaks(memory, &allocator, model, random);
    }
}

/// Fills the heap to the brim beside the live blocks, then frees everything: all chunks must be there again.
fn verify_nothing_leaks(memory: &Memory, allocator: &Allocator, model: &Model, random: &mut Random) {
    struct Careless;
    impl crate::alloc::Marker for Careless {
        fn mark(&self, _: usize, _: usize) {}
        fn epoch(&self) -> u64 {
            1
        }
    }
    let mut cache = Cache::new();
    let mut filled = Vec::new();
    let size = [40, 1000, 20_000][random.below(3)];
    while let Ok(ptr) = allocator.alloc(&mut cache, &Careless, size) {
        memory.write(memory.off(ptr), &vec![0xEE; size]);
        filled.push(ptr);
    }
    for (&off, object) in model {
        assert_eq!(memory.bytes(off, object.size), &*object.fill, "a recovered block was given out again");
        filled.push(memory.at(off));
    }
    for ptr in filled {
        // SAFETY: live, and nobody else's.
        unsafe { allocator.free(&mut cache, &Careless, ptr) };
    }
    allocator.warm(u64::MAX);
    allocator.reclaim(&mut cache, &Careless);
    assert_eq!((allocator.used_bytes(), cache.cached_bytes()), (0, 0));
    assert_eq!(allocator.free_chunk_bytes(), u64::from(allocator.geo.chunks) * CHUNK, "chunks leaked");
    let whole = allocator.geo.chunks as usize * CHUNK as usize;
    let all = allocator.alloc(&mut cache, &Careless, whole).expect("all chunks are one free run");
    assert_eq!(allocator.usable_size(all), whole);
}

fn run(seed: u64, steps: usize, sizes: fn(&mut Random) -> usize) -> Run {
    let mut run = Run::new(seed, sizes);
    for _ in 0..steps {
        run.step();
    }
    run.finish();
    run
}

#[test]
fn every_epoch_recovers_with_mixed_sizes() {
    let (mut evacuated, mut released) = (0, 0);
    for seed in 0..3 {
        let run = run(seed, 6000, Random::size);
        (evacuated, released) = (evacuated + run.evacuated, released + run.released);
    }
    assert!(evacuated > 20, "only {evacuated} windows were evacuated");
    assert!(released > 20 * CHUNK, "only {released} bytes were released");
}

#[test]
fn every_epoch_recovers_with_small_blocks() {
    let evacuated: usize = (10..13).map(|seed| run(seed, 8000, |random| random.below(2000)).evacuated).sum();
    assert!(evacuated > 20, "only {evacuated} windows were evacuated");
}

#[test]
fn every_epoch_recovers_with_large_objects_in_a_full_heap() {
    let mut refused = 0;
    for seed in 20..23 {
        refused += run(seed, 3000, |random| 60_000 + random.below(600_000)).refused;
    }
    assert!(refused > 0, "the heap was never full, which this test is about");
}
