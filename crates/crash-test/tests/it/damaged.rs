//! Damaged, truncated, foreign and newer pools: refused with a word that says which, never a panic, never a write.
//!
//! A flipped bit in a checksummed structure must be refused, or have no effect (a superseded slot, an unused byte); it must never
//! give a state that no epoch had. Opening refuses before it writes, and verifying never writes.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::epoch::{History, World, check_image};
use towa_epoch::{Options, Pool};
use towa_heap::superblock::{Door, Superblock};
use towa_heap::{Error, Heap, OpenOptions, names, verify};
use towa_media::sim::{EventKind, Explorer, Model, SimMedium};
use towa_media::{Access, Allocation, Medium};

/// Bytes of the stamp at the end of `image` and `log`.
const STAMP: usize = 8192;

/// A pool with at least three live epochs in its log, as files.
struct Files {
    regions: Vec<(&'static str, Vec<u8>)>,
    history: History,
    durable: u64,
}

fn pool(mut seed: u64) -> Files {
    loop {
        let medium = SimMedium::new(Model::File);
        let world =
            World::run(medium.clone(), &mut SmallRng::seed_from_u64(seed), History::default()).expect("work without faults");
        let report = verify(&medium, Door::Epoch, &mut |_, _| ()).expect("a sound pool");
        if report.epochs_to_replay >= 3 {
            let regions = [names::SUPERBLOCK, names::IMAGE, names::LOG].map(|name| (name, content(&medium, name))).to_vec();
            return Files { regions, history: world.history, durable: report.epoch };
        }
        seed += 100;
    }
}

fn content(medium: &SimMedium, name: &str) -> Vec<u8> {
    let region = medium.open(name, Access::ReadOnly).expect("a region of the pool");
    let mut bytes = vec![0; region.len() as usize];
    region.read(0, &mut bytes).expect("readable");
    bytes
}

/// Calls `visit` with a function that makes media holding the pool, cheaply.
fn with_copies(files: &Files, mut visit: impl FnMut(&dyn Fn() -> SimMedium)) {
    let trace = medium_of(&files.regions).trace();
    let end = trace.len();
    let coverage = Explorer::new(trace, 0).only_at(end).for_each_image(1, |image| visit(&|| image.to_medium()));
    assert_eq!(coverage.images, 1, "everything is durable: there is one image");
}

fn medium_of(regions: &[(&str, Vec<u8>)]) -> SimMedium {
    let medium = SimMedium::new(Model::Line);
    for (name, bytes) in regions {
        let region = medium.create(name, bytes.len() as u64, Allocation::Full).expect("an empty medium");
        region.store(0, bytes).expect("in range");
        region.write_back(0, bytes.len() as u64);
        region.fence().expect("no faults");
    }
    medium.sync_names().expect("no faults");
    medium
}

fn writes(medium: &SimMedium) -> usize {
    medium
        .trace()
        .events()
        .filter(|e| matches!(e.kind(), EventKind::Store | EventKind::Stream | EventKind::Rename | EventKind::Remove))
        .count()
}

/// Opens and verifies; what is refused must be untouched. Gives the refusal.
fn open(medium: &SimMedium, files: &Files) -> Option<String> {
    let before = writes(medium);
    let verdict = verify(medium, Door::Epoch, &mut |_, _| ());
    assert_eq!(writes(medium), before, "verify wrote");
    match Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Epoch, eager: true, prefault: false }) {
        Err(e) => {
            assert_eq!(writes(medium), before, "refused ({e}), but wrote");
            assert!(verdict.is_err(), "open refuses ({e}) what verify finds sound");
            Some(e.to_string())
        }
        Ok(heap) => {
            drop(heap);
            check_image(medium, &[files.durable], &files.history).expect("what is not refused is right");
            None
        }
    }
}

/// Flips one bit and opens; gives the refusal.
fn open_flipped(copy: &dyn Fn() -> SimMedium, files: &Files, name: &str, byte: usize, bit: u32) -> Option<String> {
    let medium = copy();
    let region = medium.open(name, Access::ReadWrite).expect("a region of the pool");
    let mut value = [0];
    region.read(byte as u64, &mut value).expect("in range");
    region.store(byte as u64, &[value[0] ^ (1 << bit)]).expect("in range");
    open(&medium, files)
}

#[test]
fn every_byte_of_the_superblock_may_flip() {
    let files = pool(1);
    with_copies(&files, |copy| {
        for byte in (0..256).chain(4096..4096 + 256) {
            // The other slot is one update older: it either still leads to the whole log, or the log does not fit it.
            if let Some(why) = open_flipped(copy, &files, names::SUPERBLOCK, byte, byte as u32 % 8) {
                assert!(why.contains("damaged") || why.contains("version"), "{why}");
            }
        }
    });
}

#[test]
fn a_flip_in_any_commit_record_but_the_newest_is_a_gap() {
    let files = pool(2);
    with_copies(&files, |copy| {
        for epoch in [files.durable - 1, files.durable - 2] {
            for byte in (0..256).step_by(3) {
                let at = (epoch as usize % 256) * 4096 + byte;
                let why = open_flipped(copy, &files, names::LOG, at, byte as u32 % 8).expect("refused");
                assert!(why.contains("missing") || why.contains("does not follow"), "{why}");
            }
        }
    });
}

#[test]
fn flips_in_live_frames_are_refused() {
    let files = pool(3);
    let mut rng = SmallRng::seed_from_u64(3);
    let sb: Superblock = [0, 4096]
        .map(|slot| bytemuck::pod_read_unaligned::<Superblock>(&files.regions[0].1[slot..slot + 256]))
        .into_iter()
        .max_by_key(|sb| sb.seq)
        .expect("two slots");
    let ring = 256 * 4096;
    // Not those of the newest epoch: on a sync medium, as the pool was made on one, it may lack frames.
    let number = |at: usize| u64::from_le_bytes(files.regions[2].1[at..at + 8].try_into().expect("eight bytes"));
    let slots = (0..ring).step_by(4096).filter(|slot| files.regions[2].1[*slot..].starts_with(b"TCOMMIT1"));
    let newest = slots.max_by_key(|slot| number(slot + 32)).expect("commit records");
    let end = number(newest + 48) as usize;
    with_copies(&files, |copy| {
        for _ in 0..200 {
            let byte = ring + rng.random_range(sb.tail as usize..end);
            let bit = rng.random_range(0..8);
            let why = open_flipped(copy, &files, names::LOG, byte, bit);
            assert!(why.is_some(), "a flip of bit {bit} at {byte} went unnoticed");
        }
    });
}

#[test]
fn truncated_files_are_refused() {
    let files = pool(4);
    for (i, name) in [names::SUPERBLOCK, names::IMAGE, names::LOG].iter().enumerate() {
        for share in [0, 1, 2, 3] {
            let mut regions = files.regions.clone();
            let len = regions[i].1.len();
            regions[i].1.truncate(len * share / 4);
            let refusal = open(&medium_of(&regions), &files).expect("refused");
            assert!(
                refusal.contains("truncated") || refusal.contains("bytes, not") || refusal.contains("not a Towa"),
                "{name}: {refusal}"
            );
        }
        let mut regions = files.regions.clone();
        regions.remove(i);
        open(&medium_of(&regions), &files).expect("refused");
    }
}

/// Where the headers of the image's runs are. The headers of the chunks inside a run are not among them: those are never read.
fn run_headers(image: &[u8]) -> impl Iterator<Item = usize> {
    let header = |chunk: usize| (128 << 10) + 64 * chunk;
    let chunks = |at: usize| u32::from_le_bytes(image[at + 8..at + 12].try_into().unwrap()) as usize;
    std::iter::successors(Some(0), move |chunk| Some(chunk + chunks(header(*chunk))))
        .map(header)
        .take_while(|at| image[*at..at + 64] != [0; 64])
}

/// Closed cleanly, the pool is what its image says.
fn closed_pool(seed: u64) -> Files {
    let medium = SimMedium::new(Model::File);
    let world = World::run(medium.clone(), &mut SmallRng::seed_from_u64(seed), History::default()).expect("work without faults");
    let options = Options { manual: true, ..Options::default() };
    Pool::open_on(Arc::new(medium.clone()), &options).and_then(Pool::close).expect("a sound pool");
    let durable = verify(&medium, Door::Epoch, &mut |_, _| ()).expect("a sound pool").epoch;
    let regions = [names::SUPERBLOCK, names::IMAGE, names::LOG].map(|name| (name, content(&medium, name))).to_vec();
    Files { regions, history: world.history, durable }
}

#[test]
fn flips_in_roots_and_run_headers_are_refused_before_anything_is_written() {
    let files = closed_pool(7);
    let image = &files.regions[1].1;
    // The used root slot, and every fifth byte of the first run headers.
    let headers = run_headers(image).take_while(|at| *at < 130 << 10);
    let used: Vec<usize> = (0..128).chain(headers.flat_map(|at| (at..at + 64).step_by(5))).collect();
    assert!(used.len() > 128, "the pool has runs");
    with_copies(&files, |copy| {
        for &byte in &used {
            let why = open_flipped(copy, &files, names::IMAGE, byte, byte as u32 % 8).unwrap_or_else(|| panic!("byte {byte}"));
            assert!(why.contains("root slot 0") || why.contains("heap offset"), "{why}");
        }
    });
}

#[test]
fn a_clean_pool_whose_log_is_gone_is_refused() {
    let mut files = closed_pool(8);
    let len = files.regions[2].1.len();
    files.regions[2].1[..len - STAMP].fill(0);
    let why = open(&medium_of(&files.regions), &files).expect("refused");
    assert!(why.contains("missing from the log"), "{why}");
    files.regions[2].1.fill(0);
    let why = open(&medium_of(&files.regions), &files).expect("refused");
    assert!(why.contains("no valid stamp"), "{why}");
}

fn with_superblock(files: &Files, change: impl Fn(&mut Superblock)) -> SimMedium {
    let mut regions = files.regions.clone();
    for slot in [0, 4096] {
        let bytes = &mut regions[0].1[slot..slot + 256];
        let mut sb: Superblock = bytemuck::pod_read_unaligned(bytes);
        change(&mut sb);
        sb.seal();
        bytes.copy_from_slice(bytemuck::bytes_of(&sb));
    }
    medium_of(&regions)
}

#[test]
fn newer_foreign_and_contradictory_pools_are_refused_by_name() {
    let files = pool(5);
    let refusal = |change: &dyn Fn(&mut Superblock)| {
        let medium = with_superblock(&files, change);
        open(&medium, &files).expect("refused")
    };
    assert!(refusal(&|sb| sb.version = 3).contains("newer"));
    // Pools in place have version 2, others version 1.
    assert!(refusal(&|sb| sb.version = 2).contains("damaged"));
    assert!(refusal(&|sb| sb.door = 2).contains("tx door"));
    assert!(refusal(&|sb| sb.door = 99).contains("unknown"));
    assert!(refusal(&|sb| sb.magic = *b"SQLite f").contains("not a Towa pool"));
    for change in [
        (&|sb: &mut Superblock| sb.heap_len = 1) as &dyn Fn(&mut Superblock),
        &|sb| sb.heap_len = u64::MAX,
        &|sb| sb.base = 17,
        &|sb| sb.ring_len = 4096,
        &|sb| sb.commit_slots = 0,
        &|sb| sb.chunk_len = 3,
        &|sb| (sb.chunk_len, sb.heap_len, sb.frontier) = (4096, 8192, 4096),
        &|sb| sb.frontier += 4096,
        &|sb| sb.frontier = u64::MAX,
        &|sb| sb.applied_epoch += 1,
        &|sb| sb.tail += 64,
        &|sb| sb.anchor ^= 1,
        &|sb| sb.uuid[0] ^= 1,
    ] {
        let why = refusal(change);
        assert!(why.contains("damaged") || why.contains("another pool"), "{why}");
    }
}

#[test]
fn garbage_is_refused() {
    let mut rng = SmallRng::seed_from_u64(6);
    let files = pool(6);
    for len in [0, 1, 100, 4096, 8192, 100_000] {
        let regions: Vec<(&str, Vec<u8>)> =
            files.regions.iter().map(|(name, _)| (*name, (0..len).map(|_| rng.random()).collect())).collect();
        open(&medium_of(&regions), &files).expect("refused");
    }
    let error = Heap::open(Arc::new(SimMedium::new(Model::Line)), &OpenOptions { door: Door::Epoch, eager: true, prefault: false });
    assert!(matches!(error, Err(Error::Missing { .. })));
}
