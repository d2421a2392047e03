//! How long appending a record takes, and applying one (CPU time of one thread), with 1, 2, 4 lanes and 4 words a record in a heap of 1 GiB.
//!
//! `cargo run --release -p towa-heap --example lane_speed`: anonymous memory stands in for durable memory, and has no delay of its own.

use std::time::Duration;

use towa_heap::lanes::{RecordBuilder, Replayer};
use towa_heap::superblock::Door;
use towa_heap::{CreateOptions, Heap, LogShape};
use towa_media::{Allocation, Medium, RamMedium};

const HEAP_LEN: u64 = 1 << 30;
const LANE_LEN: u64 = 64 << 20;
const RECORDS: u64 = 900_000;

/// CPU time of this thread: other programs on the machine do not count.
fn cpu() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the one value it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What the medium itself takes to store a line and start writing it back.
fn medium_alone() {
    let region = RamMedium::anonymous().create("lines", LANE_LEN, Allocation::Full).expect("space");
    let line = [1; 64];
    for _ in 0..2 {
        let began = cpu();
        for off in (0..LANE_LEN).step_by(64) {
            region.store(off, &line).expect("a line");
            region.write_back(off, 64);
        }
        println!("the medium alone: {:.1} ns a line", (cpu() - began).as_nanos() as f64 / (LANE_LEN / 64) as f64);
    }
}

fn main() {
    medium_alone();
    println!("lanes  words near  append ns  append+fence ns    apply ns  lines/record");
    for (lanes, near) in [(1, true), (2, true), (4, true), (1, false), (4, false)] {
        let options = CreateOptions {
            door: Door::Tx,
            heap_len: HEAP_LEN,
            log: LogShape::Lanes { count: lanes, lane_len: LANE_LEN },
            base: None,
            prefault: false,
        };
        let heap = Heap::create(RamMedium::anonymous(), &options).expect("a pool");
        heap.image().reserve(0, HEAP_LEN).expect("space");
        // Every page of the image is there before anything is timed.
        (0..HEAP_LEN).step_by(4096).for_each(|off| heap.image().store(off | 2048, &[0]).expect("a page"));
        let mut replayer = Replayer::of(&heap).expect("a cut");
        (0..lanes as usize).for_each(|lane| heap.lanes().provide(lane).expect("space"));
        let mut heads = vec![0; lanes as usize];
        let mut record = RecordBuilder::new();
        let mut random = 1u64;
        let mut figures = [0.0; 3];
        let mut lines = 0.0;
        // The first round brings the log's pages.
        for round in 0..6 {
            let began = cpu();
            for i in 0..RECORDS {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let first = (64 << 20) + (random >> 35) * 64 % (HEAP_LEN - (128 << 20));
                record.clear();
                record.set_ts(1 + round * RECORDS + i);
                let lane = (random % u64::from(lanes)) as usize;
                let stride = if near { 8 } else { 64 * 64 };
                (0..4).for_each(|n| record.word(first + n * stride, i));
                heads[lane] = heap.lanes().append(lane, heads[lane], &record).expect("room");
                if round % 2 == 1 {
                    heap.lanes().fence().expect("a fence");
                }
            }
            heap.lanes().fence().expect("a fence");
            let each = (cpu() - began).as_nanos() as f64 / RECORDS as f64;
            let began = cpu();
            let applied = replayer.apply(&heads, u64::MAX, &mut || ()).expect("sound records");
            assert_eq!(applied.records, RECORDS);
            let apply = (cpu() - began).as_nanos() as f64 / RECORDS as f64;
            lines = applied.lines as f64 / RECORDS as f64;
            if round > 1 {
                figures[(round % 2) as usize] = each;
                figures[2] = apply;
            }
        }
        let [append, fenced, apply] = figures;
        println!("{lanes:5}  {near:10}  {append:9.1}  {fenced:15.1}  {apply:11.1}  {lines:12.2}");
    }
}
