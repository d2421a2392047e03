//! What is no heap, or no block: never a panic where bytes come from a medium, always one (with a clear message, before
//! anything is written) where a pointer comes from the program.

use super::world::{FIRST, Memory, Random, open};
use crate::alloc::cache::Cache;
use crate::alloc::layout::{CHUNK, LINE, SMALL_MAX};
use crate::alloc::{Allocator, CheckReport, Damage, Full, Marker, check};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

const HEAP: usize = 8 << 20;

/// Marks nothing, but counts.
#[derive(Default)]
struct Counting(std::cell::Cell<usize>);

impl Marker for Counting {
    fn mark(&self, _: usize, _: usize) {
        self.0.set(self.0.get() + 1);
    }
    fn epoch(&self) -> u64 {
        1
    }
}

fn checked(memory: &Memory, frontier: u64) -> CheckReport {
    let mut read = |off: u64, into: &mut [u8]| {
        into.copy_from_slice(memory.bytes(off, into.len()));
        Ok::<(), ()>(())
    };
    check(&mut read, HEAP as u64, FIRST, frontier).expect("reads cannot fail")
}

/// A heap with small, middling and large blocks, some of them freed.
fn sample() -> (Memory, u64, Vec<NonNull<u8>>) {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let (mut cache, marker) = (Cache::new(), Counting::default());
    let mut blocks = Vec::new();
    for size in [10, 100, 1000, 10_000, 100_000, 300_000].repeat(5) {
        blocks.push(allocator.alloc(&mut cache, &marker, size).expect("there is room"));
    }
    for at in [3, 11, 17, 20] {
        // SAFETY: live, and nobody else's.
        unsafe { allocator.free(&mut cache, &marker, blocks.remove(at)) };
    }
    let frontier = allocator.frontier();
    drop(allocator);
    (memory, frontier, blocks)
}

#[test]
fn garbage_is_reported_and_never_panics() {
    let mut random = Random::new(1);
    for round in 0..200 {
        let memory = Memory::new(HEAP);
        let mut noise = vec![0; 1 << 16];
        noise.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        memory.write(FIRST, &noise);
        // Frontiers that are none, too.
        let frontier = match round % 4 {
            0 => random.next(),
            1 => random.next() % (2 * HEAP as u64),
            _ => FIRST + CHUNK * (2 + random.next() % 40),
        };
        let report = checked(&memory, frontier);
        assert_eq!(report.is_clean(), frontier <= FIRST + CHUNK, "frontier {frontier:#x}: {report:?}");
        let grant = Box::new(|_| Ok::<(), Full>(()));
        // SAFETY: one mapping, longer-lived than the allocator.
        let opened = unsafe { Allocator::new(memory.base, HEAP as u64, FIRST, frontier, grant) };
        assert_eq!(opened.is_ok(), report.is_clean(), "opening and checking agree");
    }
}

#[test]
fn lengths_and_offsets_of_any_kind_do_no_harm_to_the_check() {
    let mut random = Random::new(2);
    for _ in 0..2000 {
        let mut number = || if random.below(3) == 0 { random.next() } else { random.next() >> random.below(64) };
        let (len, first, frontier) = (number(), number() / CHUNK * CHUNK, number());
        let mut read = |_: u64, into: &mut [u8]| {
            into.fill(0xA5);
            Ok::<(), ()>(())
        };
        let report = check(&mut read, len, first, frontier).expect("reads cannot fail");
        assert!(report.chunks == 0 || !report.is_clean());
    }
    let failing = check(&mut |_, _| Err("no such file"), HEAP as u64, FIRST, FIRST + 3 * CHUNK);
    assert_eq!(failing, Err("no such file"));
}

#[test]
fn each_damaged_header_is_named() {
    let (memory, frontier, blocks) = sample();
    let clean = checked(&memory, frontier);
    assert!(clean.is_clean() && clean.blocks_live == blocks.len() as u64, "{clean:?}");
    // Every line of the table that is used: opening must refuse, and say where.
    let mut run_headers = 0;
    for off in (FIRST..FIRST + (frontier - FIRST) / CHUNK * LINE as u64).step_by(LINE) {
        let line = memory.bytes(off, LINE).to_vec();
        if line.iter().all(|&byte| byte == 0) {
            continue;
        }
        for bad in [vec![0xFF; LINE], flipped(&line, 9), flipped(&line, 60 * 8)] {
            memory.write(off, &bad);
            let report = checked(&memory, frontier);
            assert_eq!(report.damage.first().map(|damage| damage.offset), Some(off));
            // SAFETY: one mapping, longer-lived than the allocator.
            let opened = unsafe { Allocator::new(memory.base, HEAP as u64, FIRST, frontier, Box::new(|_| Ok(()))) };
            assert!(matches!(opened, Err(Damage { offset, .. }) if offset == off));
        }
        memory.write(off, &line);
        run_headers += 1;
    }
    assert!(run_headers >= 10);
    // Every small block: the heap opens, the block is not reused, and the check names it.
    for block in blocks.iter().map(|&block| memory.off(block)).filter(|off| off % CHUNK != 0) {
        let off = block - 16;
        let header = memory.bytes(off, 16).to_vec();
        for bad in [vec![0xFF; 16], flipped(&header, 3), flipped(&header, 64), flipped(&header, 127)] {
            memory.write(off, &bad);
            let report = checked(&memory, frontier);
            assert_eq!((report.damage_count, report.damage[0].offset), (1, off));
            let allocator = open(&memory, frontier);
            assert!(!allocator.warm(u64::MAX) && allocator.damaged_blocks() == 1);
            let live = allocator.block_of(memory.at(block).as_ptr() as usize).map(|block| block.live);
            assert_eq!(live, Some(false));
            drop(allocator);
        }
        memory.write(off, &header);
    }
    assert_eq!(checked(&memory, frontier), clean);
}

/// A slab of chunks some of which were used before is not clean: what lies where its headers will be is no damage.
#[test]
fn used_chunks_joined_with_unused_ones_are_not_taken_for_clean() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let (mut cache, marker) = (Cache::new(), Counting::default());
    let large = allocator.alloc(&mut cache, &marker, CHUNK as usize).expect("there is room");
    memory.write(memory.off(large), &[0xEE; CHUNK as usize]);
    // SAFETY: live, and nobody else's.
    unsafe { allocator.free(&mut cache, &marker, large) };
    let block = allocator.alloc(&mut cache, &marker, 100_000).expect("there is room");
    assert_eq!(memory.off(block), memory.off(large) + 16, "the slab begins with the used chunk and goes on beyond the frontier");
    assert!(allocator.frontier() > memory.off(large) + CHUNK);
    let report = checked(&memory, allocator.frontier());
    assert!(report.is_clean() && report.blocks_live == 1, "{report:?}");
    let reopened = open(&memory, allocator.frontier());
    reopened.warm(u64::MAX);
    assert_eq!((reopened.damaged_blocks(), reopened.used_bytes()), (0, 106_496));
}

fn flipped(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

/// The panic message of freeing `ptr`, and that nothing was marked.
fn refused(allocator: &Allocator, cache: &mut Cache, ptr: NonNull<u8>) -> String {
    let marker = Counting::default();
    // SAFETY: not upheld, on purpose: the allocator must notice. It touches header words only.
    let result = catch_unwind(AssertUnwindSafe(|| unsafe { allocator.free(cache, &marker, ptr) }));
    assert_eq!(marker.0.get(), 0, "nothing may be marked, let alone written");
    *result.expect_err("refused").downcast::<String>().expect("a message")
}

#[test]
fn wild_and_double_frees_are_refused_before_anything_is_written() {
    let memory = Memory::new(HEAP);
    let allocator = open(&memory, FIRST);
    let (mut cache, marker) = (Cache::new(), Counting::default());
    for size in [100, 5000, SMALL_MAX, 300_000] {
        let block = allocator.alloc(&mut cache, &marker, size).expect("there is room");
        memory.write(memory.off(block), &vec![0x5A; size]);
        for inside in [1, 16, 64, 80] {
            let message = refused(&allocator, &mut cache, memory.at(memory.off(block) + inside));
            assert!(message.contains("no live block") && message.contains("0x"), "{message}");
        }
        // SAFETY: live.
        unsafe { allocator.free(&mut cache, &marker, block) };
        let message = refused(&allocator, &mut cache, block);
        assert!(message.contains("already free") || message.contains("no live block"), "{message}");
    }
    for wild in [0x10, memory.base.as_ptr() as usize, memory.base.as_ptr() as usize + HEAP, usize::MAX & !15] {
        let message = refused(&allocator, &mut cache, NonNull::new(wild as *mut u8).expect("not null"));
        assert!(message.contains("no live block"), "{message}");
    }
    let block = allocator.alloc(&mut cache, &marker, 100).expect("there is room");
    memory.write(memory.off(block) - 16, &[7; 16]);
    let message = refused(&allocator, &mut cache, block);
    assert!(message.contains("wrote over the 16 bytes before"), "{message}");
}

#[test]
fn block_of_answers_for_every_address() {
    let (memory, frontier, blocks) = sample();
    let allocator = open(&memory, frontier);
    let base = memory.base.as_ptr() as usize;
    let mut live = std::collections::BTreeSet::new();
    for off in (0..HEAP).step_by(40).chain([HEAP, usize::MAX - base]) {
        if let Some(block) = allocator.block_of(base + off).filter(|block| block.live) {
            live.insert(block.start);
        }
    }
    assert_eq!(live, blocks.iter().map(|block| block.as_ptr() as usize).collect());
    assert_eq!(allocator.block_of(0), None);
}
