//! Replaying: the image is that of the records in the order of their timestamps, whoever does it.

use std::collections::HashSet;

use towa_media::RamMedium;

use super::super::cursor::Cursor;
use super::super::record;
use super::*;

/// Appends records to all lanes, timestamps across them, and gives the heads after each.
fn fill(heap: &Heap, seed: u64, heads: &mut [u64], first_ts: u64, count: u64) -> Vec<Written> {
    let mut random = Random(seed);
    let mut records = Vec::new();
    for ts in (first_ts..).take(count as usize) {
        let lane = random.next(3) as usize;
        heap.lanes().provide(lane).unwrap();
        let spread = if random.next(4) == 0 { 400_000 } else { 64 };
        let first = DATA + random.next(100) * 8;
        let words = (0..1 + random.next(12)).map(|_| (first + random.next(spread) * 8, 1 + random.next(1 << 30))).collect();
        let record = Written { ts, lane, words };
        heads[lane] = heap.lanes().append(lane, heads[lane], &record.builder()).unwrap();
        records.push(record);
    }
    heap.lanes().fence().unwrap();
    records
}

fn check_applying(heap: &Heap) {
    let mut replayer = Replayer::of(heap).unwrap();
    let mut heads = [0; 3];
    let mut all = Vec::new();
    for round in 0..6 {
        let first = 1 + round * 300;
        all.extend(fill(heap, round, &mut heads, first, 300));
        // Half of what is new, then all.
        for upto in [first + 150, u64::MAX] {
            let applied = replayer.apply(&heads, upto, &mut || ()).unwrap();
            assert_eq!((applied.records, applied.ts), if upto < u64::MAX { (151, upto) } else { (149, first + 299) });
            assert_eq!(applied.tails, replayer.tails());
            assert!(applied.lines > 0 && applied.words >= applied.records);
            let expected = Words::of(all.iter().filter(|record| record.ts <= upto));
            assert_eq!(Words::read(heap, &all), expected, "round {round}");
        }
        assert_eq!(replayer.tails(), heads);
        assert_eq!(replayer.apply(&heads, u64::MAX, &mut || ()).unwrap().records, 0);
    }
}

#[test]
fn records_are_applied_in_order() {
    check_applying(&Heap::create(RamMedium::anonymous(), &options()).unwrap());
    both_models().into_iter().for_each(|medium| check_applying(&create(medium)));
}

#[test]
fn what_was_stored_is_written_back_once() {
    let medium = RamMedium::anonymous();
    let heap = Heap::create(medium.clone(), &options()).unwrap();
    let mut heads = [0; 3];
    fill(&heap, 1, &mut heads, 1, 500);
    let mut replayer = Replayer::of(&heap).unwrap();
    let before = medium.counters().values();
    let applied = replayer.apply(&heads, u64::MAX, &mut || ()).unwrap();
    let after = medium.counters().values();
    // And the lines of the cut, and of two stamps: before its first change the image forgets the stamp before.
    assert_eq!(after.write_backs - before.write_backs, applied.lines + 10 + 4);
    assert_eq!(after.fences - before.fences, 3);
}

/// The same line over and over: each write-back would wait for the one before.
#[test]
fn a_line_that_records_in_a_row_write_is_written_back_once() {
    let heap = Heap::create(RamMedium::anonymous(), &options()).unwrap();
    heap.lanes().provide(0).unwrap();
    // The other one has the same place.
    let (line, other) = (DATA.next_multiple_of(64), DATA.next_multiple_of(64) + 64 * 64);
    let records: Vec<Written> = (0..100)
        .map(|n| Written {
            ts: n + 1,
            lane: 0,
            words: vec![(line + n % 7 * 8, n), (line + 56, n), (if n == 50 { other } else { line }, n)],
        })
        .collect();
    let head = records.iter().fold(0, |head, record| heap.lanes().append(0, head, &record.builder()).unwrap());
    heap.lanes().fence().unwrap();
    let applied = Replayer::of(&heap).unwrap().apply(&[head, 0, 0], u64::MAX, &mut || ()).unwrap();
    // Before the other line, that one, and behind it.
    assert_eq!((applied.records, applied.words, applied.lines), (100, 300, 3));
    assert_eq!(Words::read(&heap, &records), Words::of(&records));
}

/// Another process sees the same files; it takes up where this one stopped, and this one where that stopped.
#[test]
fn another_process_can_apply() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [towa_media::Kind::Ram, towa_media::Kind::File] {
        let place = dir.path().join(format!("{kind:?}"));
        let medium = towa_media::open_dir(&place, Some(kind), true).unwrap();
        let heap = Heap::create(medium, &options()).unwrap();
        let mut heads = [0; 3];
        let mut all = fill(&heap, 1, &mut heads, 1, 100);
        let there = towa_media::open_dir(&place, Some(kind), false).unwrap();
        let applied = Replayer::attach(&*there).unwrap().apply(&heads, 60, &mut || ()).unwrap();
        assert_eq!((applied.records, applied.ts), (60, 60));
        all.extend(fill(&heap, 2, &mut heads, 101, 100));
        let mut here = Replayer::take_over(&heap).unwrap();
        assert_eq!(here.tails(), applied.tails);
        assert_eq!(here.apply(&heads, 150, &mut || ()).unwrap().records, 90);
        assert_eq!(Replayer::attach(&*there).unwrap().apply(&heads, u64::MAX, &mut || ()).unwrap().records, 50);
        assert_eq!(Words::read(&heap, &all), Words::of(&all));
    }
}

#[test]
fn a_record_that_is_not_there_is_an_error() {
    for medium in both_models() {
        let heap = create(medium.clone());
        let mut heads = [0; 3];
        fill(&heap, 1, &mut heads, 1, 50);
        let mut replayer = Replayer::of(&heap).unwrap();
        let tails = replayer.tails().to_vec();
        let mut beyond = heads;
        beyond[1] += 64;
        let error = replayer.apply(&beyond, u64::MAX, &mut || ()).unwrap_err();
        assert!(error.to_string().contains("lane 1"), "{error}");
        // The lane that was not provided, or one flipped bit.
        assert_eq!(replayer.tails(), tails, "no cut was written");
        let region = &heap.lanes().region;
        let mut byte = [0];
        let at = heap.lanes().geometry.lane_off(0) + 20;
        region.read(at, &mut byte).unwrap();
        region.store(at, &[byte[0] ^ 4]).unwrap();
        let error = replayer.apply(&heads, u64::MAX, &mut || ()).unwrap_err();
        assert!(error.to_string().contains("position 0 of lane 0"), "{error}");
        region.store(at, &byte).unwrap();
        assert_eq!(replayer.apply(&heads, u64::MAX, &mut || ()).unwrap().records, 50);
    }
}

/// In one lane time does not go back: what was applied up to some timestamp would pass over the older one.
#[test]
fn a_lane_whose_timestamps_go_back_is_an_error() {
    for medium in both_models() {
        let heap = create(medium.clone());
        heap.lanes().provide(0).unwrap();
        let mut head = 0;
        for ts in [5, 5, 4] {
            let record = Written { ts, lane: 0, words: vec![(DATA, ts)] };
            head = heap.lanes().append(0, head, &record.builder()).unwrap();
        }
        heap.lanes().fence().unwrap();
        let error = Replayer::of(&heap).unwrap().apply(&[head, 0, 0], 9, &mut || ()).unwrap_err();
        assert!(error.to_string().contains("older"), "{error}");
        drop(heap);
        assert!(matches!(open(&medium), Err(Error::Damaged { .. })));
    }
}

/// A separate replayer takes the heads from memory that it shares with the pool's owner.
#[test]
fn heads_that_cannot_be_are_an_error_and_nothing_is_applied() {
    for medium in both_models() {
        let heap = create(medium.clone());
        let mut heads = [0; 3];
        fill(&heap, 1, &mut heads, 1, 50);
        let mut replayer = Replayer::attach(&medium).unwrap();
        replayer.apply(&heads, u64::MAX, &mut || ()).unwrap();
        let tails = replayer.tails().to_vec();
        let events = medium.events();
        let [a, b, c] = heads;
        let wrong = [
            &[a, b - 64, c][..],
            &[a, b, 0],
            &[a, b, c + LANE_LEN + 64],
            &[a, b, u64::MAX],
            &[a + 8, b, c],
            &[a, b],
            &[a, b, c, 0],
        ];
        for wrong in wrong {
            let error = replayer.apply(wrong, u64::MAX, &mut || ()).unwrap_err();
            assert!(matches!(&error, Error::Damaged { what, .. } if what.contains("head")), "{error}");
        }
        assert_eq!((replayer.tails(), medium.events()), (&tails[..], events));
    }
}

#[test]
fn a_frontier_in_the_midst_of_a_chunk_is_an_error() {
    use crate::alloc::CHUNK;
    for (frontier, is_possible) in [(2 * CHUNK, true), (2 * CHUNK + 64, false), (16 << 20, false)] {
        for medium in both_models() {
            let heap = create(medium);
            heap.lanes().provide(0).unwrap();
            let mut builder = RecordBuilder::new();
            builder.set_ts(1);
            builder.word(DATA, 1);
            builder.frontier(frontier);
            let head = heap.lanes().append(0, 0, &builder).unwrap();
            heap.lanes().fence().unwrap();
            let applied = Replayer::of(&heap).unwrap().apply(&[head, 0, 0], 1, &mut || ());
            assert_eq!(applied.is_ok(), is_possible, "{frontier}: {applied:?}");
        }
    }
}

/// Long records between short ones, and a lane that goes round: what a short one writes was named while there was time to fetch it.
#[test]
fn what_comes_is_named_in_advance() {
    let heap = Heap::create(RamMedium::anonymous(), &options()).unwrap();
    let lanes = heap.lanes();
    lanes.provide(0).unwrap();
    let (mut random, mut head, mut tail, mut ts) = (Random(5), 0, 0, 0);
    while head < 3 * LANE_LEN {
        while head - tail < LANE_LEN / 2 {
            ts += 1;
            let words = if random.next(8) == 0 { 200 } else { 1 + random.next(4) };
            let first = DATA + random.next(10_000) * 8;
            let record = Written { ts, lane: 0, words: (0..words).map(|n| (first + n * 24, n)).collect() };
            head = lanes.append(0, head, &record.builder()).unwrap();
        }
        let seed = record::lane_seed(&lanes.geometry.uuid, lanes.generation(), 0);
        let mut cursor = Cursor::new(&*lanes.region, &lanes.geometry, 0, seed, (tail, head), true);
        let (mut named, mut looked_at) = (HashSet::new(), 0);
        while cursor.find().unwrap().is_ok_and(|found| found) {
            let position = cursor.position;
            let few = record::few(cursor.record().unwrap());
            let is_named = few.is_none_or(|few| few.numbers().all(|word| named.contains(&(word / 8))));
            assert!(position == tail || is_named, "at {position}");
            cursor.ahead(|word| {
                looked_at += 1;
                named.insert(word / 8);
            });
        }
        assert!(cursor.is_at_end());
        assert!(looked_at as u64 <= 4 * (head - tail) / 64, "each line once");
        tail = head;
    }
}
