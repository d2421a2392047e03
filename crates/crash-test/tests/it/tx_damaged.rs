//! Damaged, truncated and foreign pools of the tx door: refused with a word that says which, never a panic, never a write by whoever refuses.
//!
//! A flipped bit in the superblock or in a cut is refused, or has no effect. A flipped bit in a live record makes it one that was never
//! finished, for a record is all there is to tell; but where a whole one stands behind it, that is damage, and refused. So the last of
//! each lane alone may go without a word: how many did is counted and printed.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tx::{Base, Found, Shape, World, read_image};
use towa_heap::superblock::Door;
use towa_heap::{Error, Heap, OpenOptions, names, verify};
use towa_media::sim::{EventKind, Explorer, Model, SimMedium};
use towa_media::{Access, Allocation, Medium};

const NAMES: [&str; 3] = [names::SUPERBLOCK, names::IMAGE, names::LOG];
/// Where lanes begin in the log.
const LANES: usize = 8192;
/// Bytes of a lane of these pools.
const LANE: usize = 64 << 10;

/// A pool, as files.
type Files = Vec<(&'static str, Vec<u8>)>;

/// One left by a crash, with records that are not applied.
fn pool(seed: u64) -> Files {
    let mut rng = SmallRng::seed_from_u64(seed);
    let medium = SimMedium::new(Model::File);
    let shape = Shape { checkpoint_one_in: 30, ..Shape::plain(&mut rng) };
    World::run(&medium, &mut rng, Base::default(), 0, &shape).expect("work without faults");
    NAMES.map(|name| (name, content(&medium, name))).to_vec()
}

fn content(medium: &SimMedium, name: &str) -> Vec<u8> {
    let region = medium.open(name, Access::ReadOnly).expect("a region of the pool");
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).expect("readable");
    bytes
}

fn medium_of(files: &Files) -> SimMedium {
    let medium = SimMedium::new(Model::Line);
    for (name, bytes) in files {
        let region = medium.create(name, bytes.len() as u64, Allocation::Full).expect("an empty medium");
        region.store(0, bytes).expect("in range");
        region.write_back(0, bytes.len() as u64);
        region.fence().expect("no faults");
    }
    medium.sync_names().expect("no faults");
    medium
}

/// Calls `visit` with a function that makes media holding the pool, cheaply.
fn with_copies(files: &Files, mut visit: impl FnMut(&dyn Fn() -> SimMedium)) {
    let trace = medium_of(files).trace();
    let end = trace.len();
    let coverage = Explorer::new(trace, 0).only_at(end).for_each_image(1, |image| visit(&|| image.to_medium()));
    assert_eq!(coverage.images, 1, "everything is durable: there is one image");
}

fn writes(medium: &SimMedium) -> usize {
    let is_write =
        |kind| matches!(kind, EventKind::Store | EventKind::Stream | EventKind::Rename | EventKind::Remove | EventKind::Create);
    medium.trace().events().filter(|e| is_write(e.kind())).count()
}

/// Opens and verifies; what is refused must be untouched. Gives what was found, or the refusal.
fn open(medium: &SimMedium) -> Result<Found, String> {
    let before = writes(medium);
    let verdict = verify(medium, Door::Tx, &mut |_, _| ());
    assert_eq!(writes(medium), before, "verify wrote");
    let opened = Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Tx, eager: true, prefault: false });
    match opened {
        Err(e) => {
            assert_eq!(writes(medium), before, "refused ({e}), but wrote");
            assert!(verdict.is_err(), "open refuses ({e}) what verify finds sound");
            Err(e.to_string())
        }
        Ok(heap) => {
            drop(heap);
            read_image(medium).map(|found| found.expect("a pool"))
        }
    }
}

fn flip(medium: &SimMedium, name: &str, byte: usize, bit: u32) {
    let region = medium.open(name, Access::ReadWrite).expect("a region of the pool");
    let mut value = [0];
    region.read(byte as u64, &mut value).expect("in range");
    region.store(byte as u64, &[value[0] ^ (1 << bit)]).expect("in range");
}

#[test]
fn every_byte_of_the_superblock_may_flip() {
    let files = pool(1);
    with_copies(&files, |copy| {
        let sound = open(&copy()).expect("a sound pool");
        for byte in (0..256).chain(4096..4096 + 256) {
            let medium = copy();
            flip(&medium, names::SUPERBLOCK, byte, byte as u32 % 8);
            match open(&medium) {
                Ok(found) => assert_eq!(found.cells, sound.cells, "byte {byte}"),
                Err(why) => assert!(why.contains("damaged") || why.contains("version"), "byte {byte}: {why}"),
            }
        }
    });
}

#[test]
fn a_flip_in_free_space_of_the_log_has_no_effect() {
    let files = pool(2);
    let log = &files[2].1;
    // In each lane: behind the last line that anything was written to.
    let free_of = |lane: usize| {
        let bytes = &log[LANES + lane * LANE..][..LANE];
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last + 1).next_multiple_of(64));
        (LANES + lane * LANE + end..LANES + (lane + 1) * LANE).step_by(997)
    };
    let free: Vec<usize> = (0..(log.len() - LANES) / LANE).flat_map(free_of).collect();
    assert!(free.len() > 50);
    with_copies(&files, |copy| {
        let sound = open(&copy()).expect("a sound pool");
        for &byte in &free {
            let medium = copy();
            flip(&medium, names::LOG, byte, byte as u32 % 8);
            assert_eq!(open(&medium).map(|found| found.cells), Ok(sound.cells), "byte {byte}");
        }
    });
}

/// What checks out is never half of something: refused, as it was, or without what was damaged.
#[test]
fn flips_in_cuts_and_records_never_panic_and_never_write_what_is_refused() {
    let files = pool(3);
    let log = &files[2].1;
    let mut rng = SmallRng::seed_from_u64(3);
    let used: Vec<usize> = (LANES..log.len()).filter(|at| log[at & !63..][..64] != [0; 64]).collect();
    let cuts = (0..640).chain(4096..4096 + 640);
    let records: Vec<usize> = (0..400).map(|_| used[rng.random_range(0..used.len())]).collect();
    let (mut refused, mut untouched, mut lost) = (0, 0, [0; 2]);
    with_copies(&files, |copy| {
        let sound = open(&copy()).expect("a sound pool");
        for byte in cuts.clone().chain(records.iter().copied()) {
            let medium = copy();
            flip(&medium, names::LOG, byte, byte as u32 % 8);
            match open(&medium) {
                Err(_) => refused += 1,
                Ok(found) if found.cells == sound.cells => untouched += 1,
                Ok(_) => lost[usize::from(byte >= LANES)] += 1,
            }
        }
    });
    println!("{refused} refused, {untouched} without effect, unnoticed: {} in cuts, {} in records", lost[0], lost[1]);
    assert_eq!(lost[0], 0, "a damaged cut lost something without a word");
    assert!(refused > 20 && refused > lost[1], "{refused} refused, {} unnoticed", lost[1]);
}

#[test]
fn truncated_files_are_refused() {
    let files = pool(4);
    for (i, name) in NAMES.iter().enumerate() {
        for share in [0, 1, 2, 3] {
            let mut files = files.clone();
            let len = files[i].1.len();
            files[i].1.truncate(len * share / 4);
            let refusal = open(&medium_of(&files)).expect_err("refused");
            assert!(
                refusal.contains("truncated") || refusal.contains("bytes, not") || refusal.contains("not a Towa"),
                "{name}: {refusal}"
            );
        }
        let mut files = files.clone();
        files.remove(i);
        open(&medium_of(&files)).expect_err("refused");
    }
}

#[test]
fn another_door_is_refused_by_name() {
    let medium = medium_of(&pool(5));
    let before = writes(&medium);
    let refusal = Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Epoch, eager: true, prefault: false });
    let refusal = refusal.expect_err("a pool of transactions is no pool of epochs");
    assert!(matches!(refusal, Error::WrongDoor { .. }) && refusal.to_string().contains("tx"), "{refusal}");
    assert_eq!(writes(&medium), before);
    let options = towa_tx::Options { medium: None, ..Default::default() };
    let epoch = Arc::new(SimMedium::new(Model::File));
    let manual = towa_epoch::Options { manual: true, heap_len: 4 << 20, ..Default::default() };
    towa_epoch::Pool::create_on(epoch.clone(), &manual).and_then(towa_epoch::Pool::close).expect("a pool of epochs");
    let before = writes(&epoch);
    let refusal = towa_tx::Pool::open_on(epoch.clone(), &options).expect_err("a pool of epochs is no pool of transactions");
    assert!(refusal.to_string().contains("epoch door"), "{refusal}");
    assert_eq!(writes(&epoch), before);
}

#[test]
fn garbage_is_refused() {
    let mut rng = SmallRng::seed_from_u64(6);
    for len in [0, 1, 100, 4096, 8192, 100_000] {
        let files: Files = NAMES.iter().map(|name| (*name, (0..len).map(|_| rng.random()).collect())).collect();
        open(&medium_of(&files)).expect_err("refused");
    }
}
