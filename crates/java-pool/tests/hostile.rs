//! Files made to do harm: bytes flipped at random, cut, or with numbers that would lead a trusting reader astray. Never a panic, and
//! never more time or memory than a file of that length is worth.

mod builder;

use std::time::{Duration, Instant};

use builder::{HEAP, Made, WORDS, graphs};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use towa_java_pool::Pool;

/// The same cases each time; `PROPTEST_CASES` asks for more.
fn runner(cases: u32) -> TestRunner {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// Sound pools, and where in them words are that are not zero: the rest means little.
fn sound() -> [(Made, Vec<u64>); 2] {
    [graphs::graph(), graphs::crashed()].map(|made| {
        let words = (0..made.bytes.len() as u64 / 8).map(|n| n * 8);
        let there = words.filter(|at| made.get(*at) != 0).collect();
        (made, there)
    })
}

fn look(bytes: Vec<u8>) {
    let pool = Pool::of_bytes("bytes", bytes);
    if let Err(e) = pool.describe() {
        drop(e.to_string());
    }
    if let Ok(report) = pool.verify(&mut |done, all| assert!(done <= all)) {
        serde_json::to_string(&report).unwrap();
    }
}

/// Gives everything that has a sum the one that fits, so that what is behind the sums has something to do.
fn seal(made: &mut Made) {
    made.seal();
    let mut records: Vec<u64> = made.places.iter().filter(|(name, _)| name.contains(' ')).map(|(_, at)| *at).collect();
    records.retain(|at| matches!(made.get32(at + 8), 1..=2) && *at % 16 == 0);
    for at in records {
        let len = u64::from(made.get32(at + 12));
        if (33..10_000).contains(&len) && at + len < made.bytes.len() as u64 {
            made.seal_record(at);
        }
    }
}

#[test]
fn flipped_bytes_do_no_harm() {
    let pools = sound();
    let flip = (any::<prop::sample::Index>(), any::<u8>());
    let cases = (0..2usize, prop::collection::vec(flip, 1..40), any::<bool>());
    runner(3000)
        .run(&cases, |(which, flips, is_sealed)| {
            let (sound, there) = &pools[which];
            let mut made = sound.clone();
            for (at, value) in flips {
                made.bytes[there[at.index(there.len())] as usize + usize::from(value) % 8] ^= value;
            }
            if is_sealed {
                seal(&mut made);
            }
            look(made.bytes);
            Ok(())
        })
        .unwrap();
}

#[test]
fn words_that_are_exchanged_do_no_harm() {
    let pools = sound();
    let cases = (0..2usize, prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..6u8), 1..20));
    runner(2000)
        .run(&cases, |(which, edits)| {
            let (sound, there) = &pools[which];
            let mut made = sound.clone();
            for (to, from, how) in edits {
                let (to, from) = (there[to.index(there.len())], there[from.index(there.len())]);
                let value = match how {
                    0 => made.get(from),
                    1 => from & !15,
                    2 => made.get(from).wrapping_add(16),
                    3 => u64::MAX >> (from % 64),
                    4 => made.get(to) ^ 1 << (from / 8 % 64),
                    _ => from / 4096 * 4096,
                };
                made.set(to, value);
            }
            seal(&mut made);
            look(made.bytes);
            Ok(())
        })
        .unwrap();
}

#[test]
fn cut_and_random_files_do_no_harm() {
    let made = graphs::graph().bytes;
    let lengths = (0..300).chain((0..made.len()).step_by(509)).chain([8191, 8192, 8240, 65535, 65536]);
    lengths.for_each(|len| look(made[..len].to_vec()));
    runner(200)
        .run(&prop::collection::vec(any::<u8>(), 0..70_000), |bytes| {
            look(bytes);
            Ok(())
        })
        .unwrap();
}

/// Arrays that overlap, each with as many elements as fit; every element leads to one of them. A reader that believed them would
/// look at each element once for every array.
#[test]
fn work_is_bounded_by_the_length() {
    let mut made = Made::new("hostile", 1);
    made.add_class("[Ljava.lang.Object;", 1, &[]);
    let segments = 4000u64;
    let first = made.get(WORDS);
    made.bytes.resize((first + segments * 4096) as usize, 0);
    made.set(WORDS, first + segments * 4096);
    for n in 0..segments {
        let at = first + n * 4096;
        made.set32(at, 1);
        made.set32(at + 20, ((segments - n) * 512 - 3) as u32);
        (3..512).for_each(|slot| made.set(at + slot * 8, first + (n * 509 + slot) % segments * 4096));
    }
    made.root("a", "b", "[Ljava/lang/Object;", first + 4096);
    let start = Instant::now();
    let report = Pool::of_bytes("bytes", made.bytes).verify(&mut |_, _| {}).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(report.replicas, 1);
    assert!(report.problems_found > 1_000_000);
}

/// A sparse file that says it is all in use, with a chain of the longest records and an array of the longest length.
#[test]
fn memory_is_not_taken_on_a_files_word() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut made = graphs::crashed();
    let len = 1u64 << 36;
    for slot in [0, 4096] {
        made.set(slot + 40, len);
    }
    made.seal();
    made.set(WORDS, len);
    made.set32(made.at("primes") + 20, i32::MAX as u32);
    made.set32(made.at("class [J") + 12, u32::MAX);
    std::fs::write(file.path(), &made.bytes).unwrap();
    if file.as_file().set_len(len).is_err() {
        eprintln!("SKIP: no sparse files of {len} bytes here");
        return;
    }
    let report = Pool::open(file.path()).unwrap().verify(&mut |_, _| {}).unwrap();
    assert!(report.problems.iter().any(|p| p.what.contains("a class record of 4294967295 bytes")), "{:?}", report.problems);
    assert!(made.at("primes") > HEAP);
    let peak = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak: u64 = peak.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok()).unwrap();
    assert!(peak < 400 << 10, "{peak} KiB");
}

/// A file of `len` bytes, all in use as it says, that has no more content than `made`, and these numbers.
fn sparse(mut made: Made, len: u64, numbers: &[(u64, u64)]) -> Option<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new().unwrap();
    for slot in [0, 4096] {
        made.set(slot + 40, len);
    }
    made.seal();
    made.set(WORDS, len);
    std::fs::write(file.path(), &made.bytes).unwrap();
    if file.as_file().set_len(len).is_err() {
        eprintln!("SKIP: no sparse files of {len} bytes here");
        return None;
    }
    for (at, number) in numbers {
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), &number.to_le_bytes(), *at).unwrap();
    }
    Some(file)
}

/// An undo log that leads to itself, in a file whose length would have it followed for hours.
#[test]
fn an_undo_log_without_end_ends() {
    let mut made = graphs::crashed();
    let log = made.block(4096);
    made.set(WORDS + 40, log);
    made.set(log, log);
    made.set(log + 8, 77);
    made.put(log + 16, b"TOWAUNDO");
    (0..127).for_each(|n| made.undo_entry(log + 32 + n * 32, HEAP + n * 8));
    let Some(file) = sparse(made, 1 << 40, &[]) else { return };
    let report = Pool::open(file.path()).unwrap().verify(&mut |_, _| {}).unwrap();
    assert!(report.problems.iter().any(|p| p.what.contains("a block of it that came before")), "{:?}", report.problems);
}

/// Arrays of the greatest length, of which little more than their last element is there.
#[test]
fn arrays_of_holes_are_looked_at_in_proportion_to_what_they_hold() {
    let mut made = Made::new("hostile", 1);
    made.add_class("[Ljava.lang.Object;", 1, &[]);
    let (count, length) = (60, i32::MAX as u64);
    let all = made.array("[Ljava.lang.Object;", &vec![builder::Value::Reference(0); count as usize]);
    made.root("a", "b", "[Ljava/lang/Object;", all);
    let bytes = (24 + length * 8).next_multiple_of(4096);
    let first = made.get(WORDS).next_multiple_of(4096);
    let mut numbers = Vec::new();
    for n in 0..count {
        let at = first + n * bytes;
        made.set(all + 24 + n * 8, at);
        // Class and length, and as the last element what leads nowhere.
        numbers.extend([(at, 1), (at + 16, length << 32), (at + 24 + (length - 1) * 8, 8)]);
    }
    let Some(file) = sparse(made, first + count * bytes, &numbers) else { return };
    let start = Instant::now();
    let report = Pool::open(file.path()).unwrap().verify(&mut |_, _| {}).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!((report.replicas, report.problems_found), (count + 1, count));
    assert!(report.problems[0].what.contains("element 2147483646"), "{:?}", report.problems[0]);
}
