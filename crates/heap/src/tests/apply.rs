//! Applying with several threads gives the image that one thread gives, and it is durable when the log is cut.

use std::collections::HashMap;

use towa_media::RamMedium;
use towa_media::sim::Explorer;

use super::*;
use crate::log::FrameBuilder;

/// Two epochs of lines in all shares, many written more than once; and what is to be in the image.
fn epochs(heap: &Heap, lines: u64) -> (Vec<Commit>, HashMap<u64, u8>) {
    let mut expected = HashMap::new();
    let mut commits: Vec<Commit> = Vec::new();
    let mut random = 1u64;
    for epoch in 1..=2u8 {
        let writer = heap.log().begin(u64::from(epoch), commits.last().map_or(heap.recovered().1, |c| c.checksum));
        let mut frame = FrameBuilder::new();
        for n in 0..lines {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Runs that go across the border of two shares, too.
            let (first, run) = (DATA + (random >> 33) % (6 * 4096), 1 + n % 5);
            let run = run.min(frame.room() as u64);
            frame.run(first, run as usize).fill(n as u8 ^ epoch);
            expected.extend((first..first + run).map(|line| (line, n as u8 ^ epoch)));
            if frame.room() == 0 {
                writer.frame(&mut frame).unwrap();
            }
        }
        writer.frame(&mut frame).unwrap();
        writer.fence().unwrap();
        commits.push(writer.commit(heap.allocator().frontier()).unwrap());
    }
    (commits, expected)
}

fn assert_is(heap: &Heap, expected: &HashMap<u64, u8>) {
    for (line, byte) in expected {
        assert_eq!(line_of(heap, *line), [*byte; LINE], "line {line}");
    }
}

#[test]
fn threads_share_the_lines_and_keep_the_order() {
    for threads in [1, 2, 3, 7] {
        let heap = Heap::create(RamMedium::anonymous(), &options()).unwrap();
        let (commits, expected) = epochs(&heap, 1200);
        let mut pauses = 0;
        let streamed = || heap.medium().unwrap().counters().values().bytes_streamed;
        let before = streamed();
        heap.apply(&commits, threads, &mut || pauses += 1).unwrap();
        assert_eq!(streamed() - before, commits.iter().map(|c| c.lines).sum::<u64>() * LINE as u64, "each line once");
        assert!(threads > 1 || pauses > 0);
        assert_is(&heap, &expected);
    }
}

/// A fence is for what its own thread wrote: each thread has to have its own.
#[test]
fn what_threads_applied_is_durable_when_the_log_is_cut() {
    for medium in both_models() {
        let heap = create(&medium);
        let (commits, expected) = epochs(&heap, 300);
        heap.apply(&commits, 3, &mut || ()).unwrap();
        heap.cut(commits.last().unwrap()).unwrap();
        drop(heap);
        let end = medium.trace().len();
        let coverage = Explorer::new(medium.trace(), 1).only_at(end).for_each_image(20, |image| {
            let heap = open(&image.to_medium()).unwrap();
            assert_eq!((heap.recovery().epoch, heap.recovery().epochs_replayed), (2, 0));
            assert_is(&heap, &expected);
        });
        assert_eq!(coverage.images, 1, "something was not durable");
    }
}
