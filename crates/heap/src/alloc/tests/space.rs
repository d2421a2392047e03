//! Space: what happens when it runs out, that it moves between classes, and in which order it is handed out.

use super::world::{FIRST, Memory, Random, open};
use crate::alloc::cache::Cache;
use crate::alloc::layout::{CHUNK, LINE};
use crate::alloc::{Allocator, Full, Marker, OutOfSpace};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const HEAP: usize = 16 << 20;

/// A transaction of this epoch; marks go nowhere.
struct Epoch(u64);

impl Marker for Epoch {
    fn mark(&self, _: usize, _: usize) {}
    fn epoch(&self) -> u64 {
        self.0
    }
}

fn free_all(allocator: &Allocator, cache: &mut Cache, epoch: u64, blocks: Vec<NonNull<u8>>) {
    for block in blocks {
        // SAFETY: live, and nobody else's.
        unsafe { allocator.free(cache, &Epoch(epoch), block) };
    }
}

fn fill(allocator: &Allocator, cache: &mut Cache, epoch: u64, size: usize) -> Vec<NonNull<u8>> {
    std::iter::from_fn(|| allocator.alloc(cache, &Epoch(epoch), size).ok()).collect()
}

/// A server whose values change their size over time must not end with all memory stuck in the sizes of yesterday.
#[test]
fn a_full_heap_serves_other_sizes_after_what_filled_it_is_freed() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let mut cache = Cache::new();
    let usable = allocator.free_chunk_bytes();
    for (epoch, size) in [(1, 48), (2, 3000), (3, 700_000), (4, 110), (5, 100_000), (6, 200)] {
        let blocks = fill(&allocator, &mut cache, epoch, size);
        let bytes = (blocks.len() * size) as u64;
        assert!(bytes > usable * 2 / 3, "epoch {epoch}: only {bytes} of {usable} bytes were to be had in blocks of {size}");
        let refused = allocator.alloc(&mut cache, &Epoch(epoch), size);
        assert_eq!(refused, Err(OutOfSpace { wanted: size, heap_len: HEAP as u64 }));
        free_all(&allocator, &mut cache, epoch, blocks);
    }
}

#[test]
fn reclaim_turns_empty_slabs_into_chunks_but_not_before_their_epoch() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let (mut cache, mut other) = (Cache::new(), Cache::new());
    let all = allocator.free_chunk_bytes();
    let blocks = fill(&allocator, &mut cache, 7, 1000);
    free_all(&allocator, &mut cache, 8, blocks);
    cache.flush(&allocator);
    assert_eq!(allocator.reclaim(&mut other, &Epoch(7)), 0, "freed by epoch 8: not for epoch 7");
    assert!(allocator.alloc(&mut other, &Epoch(7), 1000).is_err());
    assert_eq!(allocator.reclaim(&mut cache, &Epoch(8)), all);
    assert_eq!((allocator.free_chunk_bytes(), allocator.used_bytes()), (all, 0));
    assert!(allocator.alloc(&mut other, &Epoch(7), 1000).is_err(), "given up by epoch 8: not for epoch 7 either");
    assert!(allocator.alloc(&mut other, &Epoch(8), 1000).is_ok());
}

#[test]
fn a_free_run_at_the_frontier_grows_but_not_before_its_epoch() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let mut cache = Cache::new();
    let (chunk, start) = (CHUNK as usize, allocator.frontier());
    let freed = allocator.alloc(&mut cache, &Epoch(1), 3 * chunk).expect("there is room");
    free_all(&allocator, &mut cache, 2, vec![freed]);
    let old = allocator.alloc(&mut Cache::new(), &Epoch(1), 5 * chunk).expect("there is room");
    assert_eq!(memory.off(old), start + 3 * CHUNK, "freed by epoch 2: not for epoch 1");
    free_all(&allocator, &mut cache, 2, vec![old]);
    let new = allocator.alloc(&mut cache, &Epoch(2), 10 * chunk).expect("there is room");
    assert_eq!((memory.off(new), allocator.frontier()), (start, start + 10 * CHUNK));
}

/// A strict engine commits transactions one by one: what one has built and not committed must not carry another's blocks.
#[test]
fn what_an_undoable_transaction_builds_is_its_own_until_it_ends() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let (mut first, mut second) = (Cache::new(), Cache::new());
    let chunk = CHUNK as usize;
    let run = allocator.alloc(&mut first, &Epoch(1), 4 * chunk).expect("there is room");
    free_all(&allocator, &mut first, 1, vec![run]);
    let alloc = |cache: &mut Cache, size| memory.off(allocator.alloc(cache, &Epoch(1), size).expect("there is room")) / CHUNK;
    let start = memory.off(run) / CHUNK;

    first.begin_undoable();
    assert_eq!(alloc(&mut first, 1000), start, "a slab at the start of the free run");
    assert!(alloc(&mut second, 1000) >= start + 4, "another one, for its slab is not there yet");
    assert!(alloc(&mut second, chunk) >= start + 4, "neither is what remains of the run");
    assert_eq!(alloc(&mut first, chunk), start + 1, "but it may go on using it");
    allocator.commit(&mut first);
    assert_eq!(alloc(&mut second, 2 * chunk), start + 2, "now it is everybody's");
    let (mut third, per_slab) = (Cache::new(), chunk / 1024);
    assert!((0..per_slab).any(|_| alloc(&mut third, 1000) == start), "so is the slab");
}

/// What a cache under pressure does: evicts neighbours together, so that their slab serves other sizes again.
#[test]
fn freeing_the_blocks_that_share_a_slab_gives_its_chunks_back() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let mut cache = Cache::new();
    let blocks = fill(&allocator, &mut cache, 1, 1000);
    let (victim, before) = (blocks[1234], allocator.free_chunk_bytes());
    // A slab of this class is one chunk.
    let chunk_of = |block: &NonNull<u8>| allocator.geo.chunk_of(allocator.geo.offset_of(block.addr().get()).unwrap());
    let shared: Vec<_> = blocks.iter().copied().filter(|block| chunk_of(block) == chunk_of(&victim)).collect();
    assert_eq!(shared.len(), CHUNK as usize / 1024);
    free_all(&allocator, &mut cache, 1, shared);
    allocator.reclaim(&mut cache, &Epoch(1));
    assert_eq!(allocator.free_chunk_bytes(), before + CHUNK);
    assert!(allocator.alloc(&mut cache, &Epoch(1), 100_000).is_err(), "no class that large fits into one chunk");
    assert!(allocator.alloc(&mut cache, &Epoch(1), 5000).is_ok());
}

#[test]
fn fresh_slabs_are_handed_out_in_order_of_address() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let mut cache = Cache::new();
    let blocks = fill(&allocator, &mut cache, 1, 200);
    assert!(blocks.len() > 10_000 && blocks.is_sorted());
    assert!(blocks.iter().all(|block| block.as_ptr() as usize % LINE == 16));
}

#[test]
fn a_medium_that_is_full_refuses_only_what_needs_more_of_it() {
    let memory = Memory::new(HEAP);
    let limit = Arc::new(AtomicU64::new(6 << 20));
    let granted = limit.clone();
    let provide = Box::new(move |range: Range<u64>| if range.end <= granted.load(SeqCst) { Ok(()) } else { Err(Full) });
    // SAFETY: one mapping, longer-lived than the allocator.
    let allocator = unsafe { Allocator::new(memory.base, HEAP as u64, FIRST, FIRST, provide) }.expect("a fresh heap");
    let mut cache = Cache::new();
    let blocks = fill(&allocator, &mut cache, 1, 5000);
    assert!(blocks.len() * 5000 > 4 << 20 && allocator.frontier() <= 6 << 20);
    assert!(allocator.provide_ahead(1 << 20).is_err());
    free_all(&allocator, &mut cache, 1, blocks);
    let smaller = fill(&allocator, &mut cache, 1, 300);
    assert!(smaller.len() * 300 > 4 << 20, "what is there can still be used");
    limit.store(HEAP as u64, SeqCst);
    assert_eq!(allocator.provide_ahead(1 << 20), Ok(()));
    assert!(!fill(&allocator, &mut cache, 1, 5000).is_empty(), "and more when there is space again");
    assert_eq!(allocator.frontier(), HEAP as u64);
}

#[test]
fn heaps_too_small_for_a_chunk_and_requests_too_large_for_any_are_refused() {
    for len in [0, CHUNK, FIRST, FIRST + CHUNK, FIRST + 2 * CHUNK - 1] {
        let memory = Memory::new(CHUNK as usize * 8);
        // SAFETY: a part of one mapping, longer-lived than the allocator.
        let allocator = unsafe { Allocator::new(memory.base, len, FIRST, FIRST, Box::new(|_| Ok(()))) }.expect("a fresh heap");
        let mut cache = Cache::new();
        assert!(allocator.alloc(&mut cache, &Epoch(1), 8).is_err());
    }
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let mut cache = Cache::new();
    for size in [HEAP, 1 << 40, usize::MAX - 20, usize::MAX] {
        assert!(allocator.alloc(&mut cache, &Epoch(1), size).is_err());
    }
    let empty = allocator.alloc(&mut cache, &Epoch(1), 0).expect("an empty block");
    assert!(allocator.usable_size(empty) >= 48);
}

/// The cost of opening must not depend on what the blocks hold: it reads the table only.
#[test]
fn a_reopened_heap_is_scanned_as_needed() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let (mut cache, mut random) = (Cache::new(), Random::new(5));
    let mut blocks = fill(&allocator, &mut cache, 1, 1000);
    let mut freed = Vec::new();
    for _ in 0..blocks.len() / 2 {
        freed.push(blocks.swap_remove(random.below(blocks.len())));
    }
    free_all(&allocator, &mut cache, 1, freed.clone());
    let (used, frontier) = (blocks.len() as u64 * 1024, allocator.frontier());
    drop(allocator);

    let allocator = open(&memory, frontier);
    let mut cache = Cache::new();
    assert!(allocator.used_bytes() > used, "unscanned slabs count as used");
    let first = allocator.alloc(&mut cache, &Epoch(1), 1000).expect("half of the heap is free");
    assert!(freed.contains(&first) && allocator.used_bytes() > used + used / 2, "one slab is enough for one block");
    let mut rounds = 0;
    while allocator.warm(8) {
        rounds += 1;
    }
    assert!(rounds > 5 && allocator.used_bytes() <= used + 64 * 1024, "one cache may be full");
    let again = fill(&allocator, &mut cache, 1, 1000);
    assert_eq!(again.len() + 1, freed.len(), "exactly what was freed is to be had");
}

#[test]
fn memory_that_was_released_is_asked_for_again_or_the_block_is_refused() {
    let memory = Memory::new(HEAP);
    let has_space = Arc::new(AtomicU64::new(1));
    let asked = Arc::new(AtomicU64::new(0));
    let (granted, counted) = (has_space.clone(), asked.clone());
    let provide = Box::new(move |range: Range<u64>| {
        counted.fetch_add(range.end - range.start, SeqCst);
        if granted.load(SeqCst) == 1 { Ok(()) } else { Err(Full) }
    });
    // SAFETY: one mapping, longer-lived than the allocator.
    let allocator = unsafe { Allocator::new(memory.base, HEAP as u64, FIRST, FIRST, provide) }.expect("a fresh heap");
    let mut cache = Cache::new();
    let blocks = fill(&allocator, &mut cache, 1, 3 * CHUNK as usize);
    let (all, used) = (allocator.free_chunk_bytes(), blocks.len() as u64 * 3 * CHUNK);
    free_all(&allocator, &mut cache, 2, blocks);
    let mut released = Vec::new();
    assert_eq!(allocator.release_memory(1, u64::MAX, |_| true), 0, "epoch 2 is not durable");
    let mut note = |range| {
        released.push(range);
        true
    };
    assert_eq!(allocator.release_memory(2, 1, &mut note), used);
    let beyond = |range: &Range<u64>| range.start >= allocator.frontier();
    assert_eq!(released.iter().filter(|range| !beyond(range)).count(), 1, "all of it lies in a row");
    assert_eq!(allocator.space().resident, allocator.space().in_use);
    assert_eq!(allocator.release_memory(2, u64::MAX, |range| beyond(&range)), 0, "twice");

    has_space.store(0, SeqCst);
    for size in [10, 3 * CHUNK as usize] {
        assert!(allocator.alloc(&mut cache, &Epoch(2), size).is_err(), "{size}");
    }
    assert_eq!(allocator.free_chunk_bytes(), all + used, "a refusal loses nothing");
    has_space.store(1, SeqCst);
    asked.store(0, SeqCst);
    let small = allocator.alloc(&mut cache, &Epoch(2), 10).unwrap();
    let large = allocator.alloc(&mut cache, &Epoch(2), 2 * CHUNK as usize).unwrap();
    let bytes = asked.swap(0, SeqCst);
    assert!(bytes > 2 * CHUNK && bytes < 20 * CHUNK, "{bytes} bytes for two blocks");
    free_all(&allocator, &mut cache, 2, vec![small, large]);
    allocator.reclaim(&mut cache, &Epoch(2));
    assert_eq!(allocator.free_chunk_bytes(), all + used);
    // All of it in one block: the frontier's tail has no memory either.
    assert!(allocator.alloc(&mut cache, &Epoch(2), (all + used) as usize).is_ok());
    let bytes = asked.load(SeqCst);
    assert!(bytes >= used - 20 * CHUNK, "{bytes} bytes for a block of {used} that were released, and more");
}
