//! Real threads, real epochs: blocks go from thread to thread while the epoch moves on, every mark is checked against the
//! epoch rule, and afterwards nothing is lost.

use super::world::{FIRST, Memory, Random, open};
use crate::alloc::cache::Cache;
use crate::alloc::layout::{CHUNK, LINE};
use crate::alloc::{Allocator, Inspected, Marker};
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

const HEAP: usize = 24 << 20;
const THREADS: usize = 4;

/// The epoch as threads see it: at most two are open, as in the engine.
struct Clock {
    epoch: AtomicU64,
    /// Epoch of each thread's transaction; 0 outside.
    inside: Vec<AtomicU64>,
    /// Newest epoch that marked each line.
    marked: Vec<AtomicU64>,
    base: usize,
}

struct Tx<'c> {
    clock: &'c Clock,
    thread: usize,
    epoch: u64,
}

impl Clock {
    fn begin(&self, thread: usize) -> Tx<'_> {
        loop {
            let epoch = self.epoch.load(SeqCst);
            self.inside[thread].store(epoch, SeqCst);
            if self.epoch.load(SeqCst) == epoch {
                return Tx { clock: self, thread, epoch };
            }
        }
    }

    /// Moves on once nobody is left in the epoch before.
    fn advance(&self) {
        let epoch = self.epoch.load(SeqCst);
        if self.inside.iter().all(|inside| matches!(inside.load(SeqCst), 0) || inside.load(SeqCst) == epoch) {
            self.epoch.store(epoch + 1, SeqCst);
        }
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        self.clock.inside[self.thread].store(0, SeqCst);
    }
}

impl Marker for Tx<'_> {
    fn mark(&self, addr: usize, len: usize) {
        let off = addr - self.clock.base;
        for line in off / LINE..(off + len).div_ceil(LINE) {
            let before = self.clock.marked[line].fetch_max(self.epoch, SeqCst);
            assert!(before <= self.epoch, "epoch {} marks line {line:#x} after epoch {before}", self.epoch);
        }
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// A block on its way from one thread to another.
struct Parcel {
    ptr: NonNull<u8>,
    size: usize,
    word: u64,
    epoch: u64,
}

// SAFETY: whoever has the parcel owns the block.
unsafe impl Send for Parcel {}

impl Parcel {
    fn new(ptr: NonNull<u8>, size: usize, word: u64, epoch: u64) -> Self {
        let parcel = Self { ptr, size, word, epoch };
        for at in (0..size / 8).step_by(8) {
            // SAFETY: inside the block, which is ours, and aligned to 16.
            unsafe { ptr.cast::<u64>().add(at).write(word) };
        }
        parcel
    }

    fn verify(&self) {
        for at in (0..self.size / 8).step_by(8) {
            // SAFETY: as in `new`.
            assert_eq!(unsafe { self.ptr.cast::<u64>().add(at).read() }, self.word, "a live block was overwritten");
        }
    }
}

struct Shared {
    memory: Memory,
    allocator: Allocator,
    clock: Clock,
    table: Mutex<Vec<Parcel>>,
    allocated: AtomicUsize,
    evacuated: AtomicUsize,
}

/// Evacuates a window if whatever lives in it lies on the table: in other threads' hands it stays.
fn evacuate(shared: &Shared, thread: usize, cache: &mut Cache, random: &mut Random) {
    let Shared { allocator, clock, table, memory, .. } = shared;
    let Some(mut window) = allocator.survey(random.next(), random.size()).and_then(|survey| allocator.evacuate(&survey)) else {
        return;
    };
    let mut running: Vec<_> =
        clock.inside.iter().map(|inside| inside.load(SeqCst)).enumerate().filter(|&(_, epoch)| epoch != 0).collect();
    for _ in 0..50 {
        let tx = clock.begin(thread);
        let mut live = Vec::new();
        allocator.live_in(&window, 0, usize::MAX, &mut |address| live.push(address));
        let mut mine = Vec::new();
        table.lock().retain(|parcel| {
            let goes = parcel.epoch <= tx.epoch && live.contains(&parcel.ptr.addr().get());
            if goes {
                mine.push(Parcel { ..*parcel });
            }
            !goes
        });
        for parcel in mine {
            parcel.verify();
            // SAFETY: the parcel's block is ours.
            unsafe { allocator.free(cache, &tx, parcel.ptr) };
        }
        drop(tx);
        running.retain(|&(at, epoch)| clock.inside[at].load(SeqCst) == epoch);
        if running.is_empty() && allocator.inspect(&mut window, usize::MAX, || clock.epoch.load(SeqCst)) == Inspected::Free {
            let tx = clock.begin(thread);
            if allocator.settle(&mut window, &tx) {
                shared.evacuated.fetch_add(1, SeqCst);
                allocator.grant(window, cache);
                if let Ok(ptr) = allocator.alloc(cache, &tx, CHUNK as usize) {
                    assert!(memory.off(ptr) >= FIRST);
                    table.lock().push(Parcel::new(ptr, CHUNK as usize, random.next(), tx.epoch));
                }
                return allocator.release_grant(cache);
            }
        }
        std::thread::yield_now();
    }
    allocator.put_back(window);
}

fn work(shared: &Shared, thread: usize, mut random: Random, rounds: usize) {
    let mut cache = Cache::new();
    let mut mine: Vec<Parcel> = Vec::new();
    for _ in 0..rounds {
        let tx = shared.clock.begin(thread);
        for _ in 0..random.below(20) {
            match random.below(5) {
                0 | 1 => {
                    let size = random.size();
                    if let Ok(ptr) = shared.allocator.alloc(&mut cache, &tx, size) {
                        mine.push(Parcel::new(ptr, size, random.next(), tx.epoch));
                        shared.allocated.fetch_add(1, SeqCst);
                    }
                }
                2 if !mine.is_empty() => shared.table.lock().push(mine.swap_remove(random.below(mine.len()))),
                // As with locks taken before a transaction begins: it sees nothing of a later epoch.
                3 => {
                    let mut table = shared.table.lock();
                    let at = table.iter().rposition(|parcel| parcel.epoch <= tx.epoch);
                    mine.extend(at.map(|at| table.swap_remove(at)));
                }
                _ if !mine.is_empty() => {
                    let parcel = mine.swap_remove(random.below(mine.len()));
                    parcel.verify();
                    // SAFETY: the parcel's block is ours.
                    unsafe { shared.allocator.free(&mut cache, &tx, parcel.ptr) };
                }
                _ => {}
            }
        }
        while mine.len() > 300 {
            let parcel = mine.swap_remove(random.below(mine.len()));
            parcel.verify();
            // SAFETY: the parcel's block is ours.
            unsafe { shared.allocator.free(&mut cache, &tx, parcel.ptr) };
        }
        if random.below(200) == 0 {
            shared.allocator.reclaim(&mut cache, &tx);
        }
        drop(tx);
        if random.below(20) == 0 {
            evacuate(shared, thread, &mut cache, &mut random);
        }
    }
    shared.table.lock().append(&mut mine);
    cache.flush(&shared.allocator);
}

/// Threads work while epochs pass and a background thread scans; then all is checked.
fn storm(memory: Memory, frontier: u64, found: Vec<Parcel>, seed: u64) -> (Memory, u64, Vec<Parcel>) {
    let inside = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let marked = (0..HEAP / LINE).map(|_| AtomicU64::new(0)).collect();
    let base = memory.base.as_ptr() as usize;
    let clock = Clock { epoch: AtomicU64::new(1), inside, marked, base };
    let allocator = open(&memory, frontier);
    let shared = Shared {
        memory,
        allocator,
        clock,
        table: Mutex::new(found),
        allocated: AtomicUsize::new(0),
        evacuated: AtomicUsize::new(0),
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|at| (at, Random::new(seed + at as u64)))
            .map(|(at, random)| {
                scope.spawn({
                    let shared = &shared;
                    move || work(shared, at, random, 10_000)
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(SeqCst) {
                shared.clock.advance();
                shared.allocator.warm(1);
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, SeqCst);
        results.into_iter().for_each(|result| result.expect("a worker failed"));
    });
    let Shared { memory, allocator, clock, table, allocated, evacuated } = shared;
    assert!(clock.epoch.into_inner() > 3 && allocated.into_inner() > 1000);
    assert!(evacuated.into_inner() > 10, "hardly a window was evacuated");
    let left = table.into_inner();
    left.iter().for_each(Parcel::verify);
    let frontier = allocator.frontier();
    drop(allocator);
    (memory, frontier, left)
}

#[test]
fn threads_share_one_heap_across_epochs_and_a_reopening() {
    let (memory, frontier, left) = storm(Memory::new(HEAP), FIRST, Vec::new(), 100);
    let left = left.into_iter().map(|parcel| Parcel { epoch: 0, ..parcel }).collect();
    let (memory, frontier, left) = storm(memory, frontier, left, 200);

    let allocator = open(&memory, frontier);
    struct Last;
    impl Marker for Last {
        fn mark(&self, _: usize, _: usize) {}
        fn epoch(&self) -> u64 {
            1
        }
    }
    let mut cache = Cache::new();
    for parcel in left {
        // SAFETY: live, and nobody else's.
        unsafe { allocator.free(&mut cache, &Last, parcel.ptr) };
    }
    allocator.warm(u64::MAX);
    allocator.reclaim(&mut cache, &Last);
    assert_eq!(allocator.used_bytes(), 0);
    assert_eq!(allocator.free_chunk_bytes(), u64::from(allocator.geo.chunks) * CHUNK);
}
