//! What was freed rests until that is durable.

use super::world::{FIRST, Memory, open};
use crate::alloc::cache::Cache;
use crate::alloc::layout::CHUNK;
use crate::alloc::{Allocator, Marker};
use std::ptr::NonNull;

const HEAP: usize = 16 << 20;

/// A transaction of one epoch while another is the newest durable one; marks go nowhere.
struct At {
    epoch: u64,
    durable: u64,
}

impl Marker for At {
    fn mark(&self, _: usize, _: usize) {}
    fn epoch(&self) -> u64 {
        self.epoch
    }
    fn durable(&self) -> u64 {
        self.durable
    }
}

fn patient(bytes: u64) -> Cache {
    let mut cache = Cache::new();
    cache.set_lean(true);
    cache.set_patience(bytes);
    cache
}

fn free(allocator: &Allocator, cache: &mut Cache, epoch: u64, block: NonNull<u8>) {
    // SAFETY: live, and nobody else's.
    unsafe { allocator.free(cache, &At { epoch, durable: epoch - 2 }, block) };
}

#[test]
fn the_block_that_was_freed_first_is_taken_when_its_epoch_is_durable() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let mut cache = patient(1 << 20);
    let old = At { epoch: 2, durable: 1 };
    let blocks: Vec<_> = std::iter::from_fn(|| allocator.alloc(&mut cache, &old, 1000).ok()).collect();
    assert_eq!((cache.take_owed(1000), cache.take_haste()), (0, false), "none of them rested");
    for (epoch, block) in [(3, 10), (4, 500), (5, 20), (5, 21)] {
        free(&allocator, &mut cache, epoch, blocks[block]);
    }
    // One is durable: it is taken, and one is to be freed for it.
    assert_eq!(allocator.alloc(&mut cache, &At { epoch: 5, durable: 3 }, 1000), Ok(blocks[10]));
    assert_eq!((cache.take_owed(1000), cache.take_haste()), (1, false));
    // None is: the oldest is taken before its time, and there should be more.
    assert_eq!(allocator.alloc(&mut cache, &At { epoch: 5, durable: 3 }, 1000), Ok(blocks[500]));
    assert_eq!((cache.take_owed(1000), cache.take_haste()), (2, true));
    assert_eq!((cache.take_owed(1000), cache.take_haste()), (0, false));
    // Others are not asked for: there are enough.
    assert_eq!(allocator.alloc(&mut cache, &At { epoch: 7, durable: 5 }, 1000), Ok(blocks[20]));
    assert_eq!((cache.take_owed(1000), cache.take_haste()), (0, false));
    cache.flush(&allocator);
    assert_eq!(
        allocator.alloc(&mut Cache::new(), &At { epoch: 7, durable: 5 }, 1000),
        Ok(blocks[21]),
        "flushed, it is everybody's"
    );
    assert!(allocator.alloc(&mut cache, &At { epoch: 7, durable: 5 }, 1000).is_err());
}

#[test]
fn no_more_rests_than_a_thread_has_patience_for() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let mut cache = patient(5000);
    let blocks: Vec<_> =
        (0..40).map(|_| allocator.alloc(&mut cache, &At { epoch: 2, durable: 1 }, 1000).expect("there is room")).collect();
    for &block in &blocks {
        free(&allocator, &mut cache, 3, block);
        assert!(cache.resting_bytes <= 5000);
    }
    assert!(cache.resting_bytes > 3000);
    cache.flush(&allocator);
    assert_eq!((cache.resting_bytes, allocator.used_bytes()), (0, 0));
}

/// Chunks of a large object rest, too: others beyond the bound are taken while there are not too many.
#[test]
fn chunks_rest_and_others_are_taken() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let (mut cache, size) = (patient(1 << 20), 2 * CHUNK as usize);
    allocator.set_bound(64 * CHUNK);
    let old = At { epoch: 2, durable: 1 };
    let blocks: Vec<_> = std::iter::from_fn(|| allocator.alloc(&mut cache, &old, size).ok()).collect();
    assert_eq!(blocks.len(), 32);
    free(&allocator, &mut cache, 5, blocks[3]);
    let now = At { epoch: 5, durable: 3 };
    // A sixteenth of 64 chunks: two objects beyond the bound.
    let beyond = allocator.alloc(&mut cache, &now, size).expect("chunks beyond the bound");
    assert!(!blocks.contains(&beyond));
    free(&allocator, &mut cache, 5, blocks[9]);
    let more = allocator.alloc(&mut cache, &now, size).expect("chunks beyond the bound");
    assert!(!blocks.contains(&more));
    assert!(allocator.alloc(&mut cache, &now, size).is_err(), "as many are in use as the bound allows");
    // Those that are durably free come first; then there are no more but those that are not.
    free(&allocator, &mut cache, 6, blocks[20]);
    assert_eq!(allocator.alloc(&mut cache, &At { epoch: 7, durable: 5 }, size), Ok(blocks[3]));
    free(&allocator, &mut cache, 7, blocks[21]);
    assert_eq!(allocator.alloc(&mut cache, &At { epoch: 7, durable: 5 }, size), Ok(blocks[9]));
    free(&allocator, &mut cache, 7, blocks[30]);
    let hasty = allocator.alloc(&mut cache, &At { epoch: 7, durable: 5 }, size);
    assert!([20, 21, 30].iter().any(|block| hasty == Ok(blocks[*block])), "nothing is left that has rested");
}
