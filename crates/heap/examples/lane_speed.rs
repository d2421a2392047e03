//! How long appending a record takes, and applying one, with 1, 2, 4 lanes and 4 words a record in a heap of 1 GiB.
//!
//! `cargo run --release -p towa-heap --example lane_speed`: anonymous memory stands in for durable memory, and has no delay of its own.

use std::time::Instant;

use towa_heap::lanes::{RecordBuilder, Replayer};
use towa_heap::superblock::Door;
use towa_heap::{CreateOptions, Heap, LogShape};
use towa_media::RamMedium;

const HEAP_LEN: u64 = 1 << 30;
const LANE_LEN: u64 = 64 << 20;
const RECORDS: u64 = 900_000;

fn main() {
    println!("lanes  words near  append ns  append+fence ns  apply ns/record  (two threads)  lines/record");
    for (lanes, near) in [(1, true), (2, true), (4, true), (1, false), (4, false)] {
        let options =
            CreateOptions { door: Door::Tx, heap_len: HEAP_LEN, log: LogShape::Lanes { count: lanes, lane_len: LANE_LEN }, base: None };
        let heap = Heap::create(RamMedium::anonymous(), &options).expect("a pool");
        heap.image().reserve(0, HEAP_LEN).expect("space");
        // Every page of the image is there before anything is timed.
        (0..HEAP_LEN).step_by(4096).for_each(|off| heap.image().store(off | 2048, &[0]).expect("a page"));
        let mut replayer = Replayer::of(&heap).expect("a cut");
        (0..lanes as usize).for_each(|lane| heap.lanes().provide(lane).expect("space"));
        let mut heads = vec![0; lanes as usize];
        let mut record = RecordBuilder::new();
        let mut random = 1u64;
        let mut figures = [0.0; 4];
        let mut lines = 0.0;
        // The first round brings the log's pages.
        for round in 0..6 {
            let began = Instant::now();
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
            let each = began.elapsed().as_nanos() as f64 / RECORDS as f64;
            replayer.set_threads(1 + (round / 2 % 2) as usize);
            let began = Instant::now();
            let applied = replayer.apply(&heads, u64::MAX, &mut || ()).expect("sound records");
            assert_eq!(applied.records, RECORDS);
            let apply = began.elapsed().as_nanos() as f64 / RECORDS as f64;
            lines = applied.lines as f64 / RECORDS as f64;
            if round > 1 {
                figures[(round % 2) as usize] = each;
                figures[2 + (round / 2 % 2) as usize] = apply;
            }
        }
        let [append, fenced, one, two] = figures;
        println!("{lanes:5}  {near:10}  {append:9.1}  {fenced:15.1}  {one:15.1}  {two:13.1}  {lines:12.2}");
    }
}
