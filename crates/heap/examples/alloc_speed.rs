//! How long `alloc` and `free` take beside the marks (CPU time of one thread), and how long opening takes (wall-clock time).
//!
//! `cargo run --release -p towa-heap --example alloc_speed [HEAP_MB]`

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::{Duration, Instant};
use towa_heap::alloc::{Allocator, CHUNK, Cache, Full, Marker};

/// Marks cost nothing here: what is measured is the allocator.
struct NoMarks;

impl Marker for NoMarks {
    #[inline]
    fn mark(&self, addr: usize, len: usize) {
        black_box((addr, len));
    }
    #[inline]
    fn epoch(&self) -> u64 {
        1
    }
}

/// CPU time of this thread: other programs on the machine do not count.
fn cpu() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the one value it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn open(base: NonNull<u8>, len: u64, frontier: u64) -> Allocator {
    // SAFETY: `base..base + len` is one allocation that `main` keeps, and nobody else writes there.
    unsafe { Allocator::new(base, len, CHUNK, frontier, Box::new(|_| Ok::<(), Full>(()))) }.expect("an undamaged heap")
}

fn main() {
    let mb: usize = std::env::args().nth(1).map_or(1024, |mb| mb.parse().expect("HEAP_MB is a number"));
    let layout = Layout::from_size_align(mb << 20, 4096).expect("a possible size");
    // SAFETY: the layout is not empty.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    let len = layout.size() as u64;
    let allocator = open(base, len, CHUNK);
    let mut cache = Cache::new();

    println!("{:>8}  {:>14} {:>14} {:>16} {:>16}", "bytes", "fresh ns", "pair ns", "free random ns", "alloc again ns");
    for size in [48, 200, 1000, 4000, 16_000] {
        let count = (mb << 20) / 2 / (size + 64);
        let each = |began: Duration, count: usize| (cpu() - began).as_nanos() as f64 / count as f64;
        let began = cpu();
        let mut blocks: Vec<_> = (0..count).map(|_| allocator.alloc(&mut cache, &NoMarks, size).expect("room")).collect();
        let fresh = each(began, count);

        let began = cpu();
        for _ in 0..1_000_000 {
            let block = black_box(allocator.alloc(&mut cache, &NoMarks, size).expect("room"));
            // SAFETY: live, ours.
            unsafe { allocator.free(&mut cache, &NoMarks, block) };
        }
        let pair = each(began, 1_000_000);

        let mut state = 1u64;
        for at in (1..blocks.len()).rev() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            blocks.swap(at, (state >> 33) as usize % (at + 1));
        }
        let half = blocks.split_off(count / 2);
        let began = cpu();
        // SAFETY: live, ours.
        half.iter().for_each(|&block| unsafe { allocator.free(&mut cache, &NoMarks, block) });
        let free = each(began, half.len());
        let began = cpu();
        blocks.extend((0..half.len()).map(|_| allocator.alloc(&mut cache, &NoMarks, size).expect("room")));
        let again = each(began, half.len());
        println!("{size:>8}  {fresh:>14.1} {pair:>14.1} {free:>16.1} {again:>16.1}");

        if size == 1000 {
            cache.flush(&allocator);
            let began = Instant::now();
            let reopened = open(base, len, allocator.frontier());
            let opened = began.elapsed();
            let began = Instant::now();
            while reopened.warm(64) {}
            println!(
                "          reopened {} MiB in {opened:?}, all slabs scanned in {:?}",
                allocator.frontier() >> 20,
                began.elapsed()
            );
        }
        // SAFETY: live, ours.
        blocks.into_iter().for_each(|block| unsafe { allocator.free(&mut cache, &NoMarks, block) });
        allocator.reclaim(&mut cache, &NoMarks);
    }
    drop(allocator);
    // SAFETY: allocated above with this layout.
    unsafe { dealloc(base.as_ptr(), layout) };
}
