//! Records: what goes in comes out, and nothing else does.

use towa_media::{LINE, RamMedium};

use super::super::record::{self, LINE_WORDS};
use super::super::{Geometry, cursor::Cursor, record::lane_seed};
use super::*;

/// The words of `builder`'s record at `position`, as it lies in a lane.
fn bytes_of(builder: &RecordBuilder, seed: u64, position: u64) -> Vec<u64> {
    match builder.compact(seed, position) {
        Some(line) => line.to_vec(),
        None => builder.long(seed, position, |first, rest| [&first[..], rest].concat()),
    }
}

/// Its words in the order of writing: heap offset and value.
fn words_in(record: &[u64]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let each = |words: record::Words<'_>| {
        found.extend((words.first..).zip(words.values).map(|(index, value)| (index * 8, *value)));
        Ok::<(), ()>(())
    };
    record::each_run(record, each).unwrap();
    found
}

/// A record of some shape, and what it writes.
fn some_record(random: &mut Random, ts: u64) -> (RecordBuilder, Vec<(u64, u64)>, Option<u64>) {
    let mut builder = RecordBuilder::new();
    let mut expected = Vec::new();
    builder.set_ts(ts);
    let spread = [16, 60_000, 400_000][random.next(3) as usize];
    for _ in 0..random.next(7) {
        let offset = DATA + random.next(spread) * 8;
        if random.next(4) == 0 {
            let values: Vec<u64> = (0..random.next(40)).map(|_| random.next(u64::from(u32::MAX))).collect();
            builder.words(offset, &values);
            expected.extend(values.iter().enumerate().map(|(i, value)| (offset + i as u64 * 8, *value)));
        } else {
            let value = random.next(u64::from(u32::MAX));
            builder.word(offset, value);
            expected.push((offset, value));
        }
    }
    let frontier = (random.next(5) == 0).then(|| (1 + random.next(60)) * crate::alloc::CHUNK);
    frontier.iter().for_each(|f| builder.frontier(*f));
    (builder, expected, frontier)
}

#[test]
fn what_goes_in_comes_out() {
    let mut random = Random(1);
    let (mut compact, mut long) = (0, 0);
    let mut again = RecordBuilder::new();
    for ts in 1..20_000 {
        let (builder, expected, frontier) = some_record(&mut random, ts);
        let record = bytes_of(&builder, ts, ts * 64);
        assert_eq!(record.len() as u64 * 8, builder.len());
        let look = record::look(&record).unwrap();
        assert_eq!((look.len, look.summed, look.is_pad), (builder.len(), builder.len(), false));
        assert!(record::is_whole(&record, ts, ts * 64));
        record::check(&record, 1 << 20).unwrap();
        assert_eq!((record::timestamp(&record), record::frontier(&record)), (ts, frontier));
        assert_eq!(words_in(&record), expected);
        *if record.len() == LINE_WORDS && expected.len() > 2 { &mut compact } else { &mut long } += 1;
        assert!(builder.len() <= crate::lanes::Lanes::record_len(expected.len() as u64, expected.len() as u64));
        // A buffer that was used before.
        again.clear();
        assert!(again.is_empty());
        again.set_ts(ts);
        expected.iter().for_each(|(offset, value)| again.word(*offset, *value));
        assert_eq!(words_in(&bytes_of(&again, 0, 0)), expected);
        // All at once, and behind others.
        let (some, rest) = expected.split_at(random.next(expected.len() as u64 + 1) as usize);
        again.clear();
        again.each(some.iter().copied());
        again.each(rest.iter().copied());
        assert_eq!((words_in(&bytes_of(&again, 0, 0)), again.count()), (expected.clone(), expected.len() as u64));
        assert_eq!(again.len(), bytes_of(&again, 0, 0).len() as u64 * 8);
    }
    assert!(compact > 1000 && long > 1000);
}

#[test]
fn four_words_take_a_line_if_they_are_near() {
    let mut builder = RecordBuilder::new();
    builder.words(DATA, &[1, 2, 3]);
    builder.word(DATA + 0xFFFF * 8, 4);
    assert_eq!(builder.len(), 64);
    let mut far = RecordBuilder::new();
    far.word(DATA, 1);
    far.word(DATA + 0x1_0000 * 8, 4);
    assert_eq!(far.len(), 64);
    far.word(DATA + 0x2_0000 * 8, 4);
    assert_eq!(far.len(), 128);
    builder.word(DATA + 24, 5);
    assert_eq!(builder.len(), 128);
    builder.clear();
    builder.word(DATA, 1);
    builder.frontier(crate::alloc::CHUNK);
    assert_eq!(builder.len(), 64);
    assert_eq!(record::frontier(&bytes_of(&builder, 0, 0)), Some(crate::alloc::CHUNK));
}

/// Earlier builds set a bit of runs that were written in place: their pools open.
#[test]
fn a_run_of_an_earlier_build_is_read_as_any_other() {
    let mut builder = RecordBuilder::new();
    builder.words(DATA, &[1, 2, 3, 4, 5, 6]);
    let mut record = bytes_of(&builder, 0, 0);
    let expected = words_in(&record);
    record[4] |= 1 << 63;
    record::check(&record, 1 << 20).unwrap();
    assert_eq!((words_in(&record), expected.len()), (expected, 6));
}

/// Every prefix of its stores over what was there before, and every flipped bit.
#[test]
fn torn_and_damaged_records_are_none() {
    let mut random = Random(7);
    for ts in 1..60 {
        let record = bytes_of(&some_record(&mut random, ts).0, 5, 640);
        let before = bytes_of(&some_record(&mut random, ts).0, 5, 640 + LANE_LEN);
        for upto in 0..record.len() {
            if record[upto..].iter().all(|word| *word == 0) {
                continue;
            }
            for background in [0, 1] {
                let old = |i: usize| before.get(i).map_or(0, |word| word * background);
                let torn: Vec<u64> = (0..record.len()).map(|i| if i < upto { record[i] } else { old(i) }).collect();
                if torn == record {
                    continue;
                }
                let look = record::look(&torn).filter(|look| look.summed <= torn.len() as u64 * 8);
                assert!(!look.is_some_and(|look| record::is_whole(&torn[..look.summed as usize / 8], 5, 640)), "{upto}");
            }
        }
        for bit in 0..record.len() * 64 {
            let mut damaged = record.clone();
            damaged[bit / 64] ^= 1 << (bit % 64);
            let look = record::look(&damaged).filter(|look| look.summed <= damaged.len() as u64 * 8);
            assert!(!look.is_some_and(|look| record::is_whole(&damaged[..look.summed as usize / 8], 5, 640)), "bit {bit}");
        }
    }
}

#[test]
fn records_of_another_lap_lane_generation_or_pool_are_none() {
    let mut random = Random(3);
    let uuid = [3; 16];
    for ts in 1..200 {
        let builder = some_record(&mut random, ts).0;
        let seed = lane_seed(&uuid, 4, 1);
        let record = bytes_of(&builder, seed, 128);
        assert!(record::is_whole(&record, seed, 128));
        for (other, position) in [
            (seed, 128 + LANE_LEN),
            (seed, 64),
            (lane_seed(&uuid, 5, 1), 128),
            (lane_seed(&uuid, 3, 1), 128),
            (lane_seed(&uuid, 4, 0), 128),
            (lane_seed(&[4; 16], 4, 1), 128),
        ] {
            assert!(!record::is_whole(&record, other, position));
        }
    }
    let pad = record::pad(9, 0, 256);
    assert!(record::is_whole(&pad, 9, 0) && !record::is_whole(&pad, 9, 64));
}

/// What has a right sum and cannot be.
#[test]
fn records_that_cannot_be_are_told() {
    let mut builder = RecordBuilder::new();
    builder.set_ts(1);
    builder.word(DATA, 1);
    let line = bytes_of(&builder, 0, 0);
    assert!(record::check(&line, DATA / 8 + 1).is_ok() && record::check(&line, DATA / 8).is_err());
    builder.words(DATA, &[1; 20]);
    let record = bytes_of(&builder, 0, 0);
    assert!(record::check(&record, DATA / 8 + 20).is_ok() && record::check(&record, DATA / 8 + 19).is_err());
    let changed = |at: usize, to: u64| {
        let mut record = record.clone();
        record[at] = to;
        record::check(&record, 1 << 20).unwrap_err()
    };
    assert_eq!(changed(0, record[0] | 1 << 8), "is of a kind that this version does not know");
    assert_eq!(changed(2, record[2] | 1 << 33), "is of a kind that this version does not know");
    assert_eq!(changed(4, record[4] & ((1 << 40) - 1)), "contradicts itself");
    assert_eq!(changed(6, record[6] + (1 << 40)), "contradicts itself");
}

/// Records of all sizes around a lane several times, mapped and not: read back they are what was appended, pads left out.
#[test]
fn records_go_round_and_do_not_wrap() {
    fn check(heap: &Heap, seed: u64) {
        let lanes = heap.lanes();
        let mut random = Random(seed);
        lanes.provide(1).unwrap();
        let (mut position, mut tail) = (0, 0);
        let mut written: Vec<Vec<(u64, u64)>> = Vec::new();
        let (mut pads, mut compared) = (0, 0);
        for ts in 1..800 {
            let (mut builder, mut expected, _) = some_record(&mut random, ts);
            if random.next(8) == 0 {
                let values = vec![ts; random.next(3000) as usize];
                builder.words(DATA, &values);
                expected.extend(values.iter().enumerate().map(|(i, value)| (DATA + i as u64 * 8, *value)));
            }
            if lanes.end_of(position, builder.len()) - tail > LANE_LEN {
                let geometry = Geometry { count: 3, lane_len: LANE_LEN, heap_words: 1 << 20, uuid: lanes.geometry.uuid };
                let seed = lane_seed(&geometry.uuid, lanes.generation(), 1);
                let mut cursor = Cursor::new(&*lanes.region, &geometry, 1, seed, (tail, position), true);
                for written in written.drain(..) {
                    assert!(cursor.find().unwrap().is_ok_and(|found| found));
                    assert_eq!(words_in(cursor.record().unwrap()), written);
                    compared += 1;
                }
                assert!(cursor.find().unwrap().is_ok_and(|found| !found) && cursor.is_at_end());
                tail = position;
            }
            let end = lanes.end_of(position, builder.len());
            pads += u64::from(end > position + builder.len());
            assert_eq!(lanes.append(1, position, &builder).unwrap(), end);
            position = end;
            written.push(expected);
        }
        assert!(pads > 5 && compared > 500 && position > 8 * LANE_LEN, "{pads} {compared} {position}");
    }
    check(&Heap::create(RamMedium::anonymous(), &options()).unwrap(), 1);
    both_models().into_iter().for_each(|medium| check(&create(medium), 2));
}

#[test]
fn records_longer_than_half_a_lane_are_refused() {
    let heap = create(SimMedium::new(Model::Line));
    let lanes = heap.lanes();
    lanes.provide(0).unwrap();
    let mut builder = RecordBuilder::new();
    builder.set_ts(1);
    builder.words(DATA, &vec![1; (lanes.record_len_max() / 8) as usize - 5]);
    assert_eq!(builder.len(), lanes.record_len_max());
    let mut position = lanes.append(0, 0, &builder).unwrap();
    // Wherever in the lap it begins: with its pad it fits into an empty lane.
    for _ in 0..20 {
        let end = lanes.append(0, position + LINE as u64, &builder).unwrap();
        assert!(end - position <= LANE_LEN + LINE as u64);
        position = end;
    }
    builder.word(DATA, 1);
    assert!(matches!(lanes.append(0, position, &builder), Err(Error::LogFull { .. })));
}
