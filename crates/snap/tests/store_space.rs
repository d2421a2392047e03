//! What checkpoints cost: each about what changed; and on a full medium the last is given up and those before are whole.

use std::path::Path;

use rand::prelude::*;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use towa_snap::Error;
use towa_snap::store::{Base, Mode, Store, Which};

mod places;
use places::Place;

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

fn bytes(rng: &mut SmallRng, pages: u64) -> Vec<u8> {
    let mut bytes = vec![0; pages as usize * PAGE];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Bytes that `dir` takes: where the file system is its own, all that is used there.
fn taken(place: &Place, dir: &Path) -> u64 {
    if place.mode == Mode::Reflink {
        let status = statvfs(dir).unwrap();
        return (status.f_blocks - status.f_bfree) * status.f_frsize;
    }
    // A file with several names counts once.
    let out = std::process::Command::new("du").args(["-s", "-B1"]).arg(dir).output().unwrap();
    String::from_utf8(out.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn checkpoints_of_a_process_that_changes_one_percent_cost_one_percent() {
    for place in Place::both() {
        let mut rng = SmallRng::seed_from_u64(8);
        let store = Store::open_or_create(place.dir()).unwrap();
        let total = 64 * MIB / PAGE as u64;
        let mut draft = store.begin(Base::Empty).unwrap();
        draft.write(0, &bytes(&mut rng, total)).unwrap();
        let mut newest = draft.finish(b"").unwrap();
        let mut before = taken(&place, store.dir());
        let mut costs = Vec::new();
        for _ in 0..9 {
            let mut draft = store.begin(Base::On(newest)).unwrap();
            for _ in 0..total / 100 {
                draft.write(rng.random_range(0..total), &bytes(&mut rng, 1)).unwrap();
            }
            newest = draft.finish(b"").unwrap();
            let now = taken(&place, store.dir());
            costs.push((now - before) as f64 / (64 * MIB) as f64);
            before = now;
        }
        println!(
            "{:?}: each further checkpoint costs {:.2?} % of the memory",
            place.mode,
            costs.iter().map(|c| c * 100.0).collect::<Vec<_>>()
        );
        // 1 %, and the index with its checksums, 0.1 % and 32 bytes for each piece that memory has come to lie in.
        assert!(costs.iter().all(|&cost| cost < 0.025), "{costs:?}");
        let list = store.list().unwrap();
        let newest = list.last().unwrap();
        assert!(newest.bytes_own < 2 * MIB && newest.bytes_shared > 60 * MIB, "{newest:?}");
        // Each of them, in any order.
        let mut left = store.numbers().unwrap();
        left.shuffle(&mut rng);
        while let Some(number) = left.pop() {
            store.remove(number).unwrap();
            left.iter().for_each(|&n| store.open_checkpoint(Which::Number(n)).unwrap().verify(|_, _| {}).unwrap());
        }
        assert!(store.list().unwrap().is_empty());
        if place.mode == Mode::HardLinks {
            assert!(taken(&place, store.dir()) < MIB);
        }
    }
}

/// What a long run of checkpoints needs stays bounded, with merges between them.
#[test]
fn merging_gives_back_what_nobody_uses() {
    let place = Place::at_hand();
    let mut rng = SmallRng::seed_from_u64(9);
    let store = Store::open_or_create(place.dir()).unwrap();
    let total = 8 * MIB / PAGE as u64;
    let mut draft = store.begin(Base::Empty).unwrap();
    draft.write(0, &bytes(&mut rng, total)).unwrap();
    let mut newest = draft.finish(b"").unwrap();
    let (mut copied, mut written, mut most) = (0, total, 0);
    for _ in 0..100 {
        let mut draft = store.begin(Base::On(newest)).unwrap();
        for _ in 0..total / 20 {
            draft.write(rng.random_range(0..total), &bytes(&mut rng, 1)).unwrap();
            written += 1;
        }
        newest = draft.finish(b"").unwrap();
        store.keep(3).unwrap();
        copied += store.merge().unwrap().pages;
        let packs = std::fs::read_dir(store.dir().join(newest.number.to_string())).unwrap().count() - 2;
        assert!(packs <= 16, "{packs} packs");
        most = most.max(taken(&place, store.dir()));
    }
    println!("{written} pages were written and {copied} copied; at most {most} bytes were taken");
    assert!(most < 3 * 8 * MIB, "{most} bytes for three checkpoints of 8 MiB");
    assert!(copied < 3 * written, "{copied} pages copied for {written} written");
    store.open_checkpoint(Which::Newest).unwrap().verify(|_, _| {}).unwrap();
}

#[test]
fn on_a_full_medium_the_last_is_given_up_and_those_before_are_whole() {
    let xfs = Place::xfs().inspect(|place| {
        let filler = std::fs::File::create(place.mount_point().join("filler")).unwrap();
        let free = || {
            let status = statvfs(place.mount_point()).unwrap();
            status.f_bavail * status.f_frsize
        };
        fallocate(&filler, FallocateFlags::empty(), 0, free() - 12 * MIB).unwrap();
        std::mem::forget(filler.sync_all());
    });
    for place in [Place::tmpfs(8), xfs].into_iter().flatten() {
        let mut rng = SmallRng::seed_from_u64(10);
        let store = Store::open_or_create(place.dir()).unwrap();
        let memory = bytes(&mut rng, 256);
        let mut draft = store.begin(Base::Empty).unwrap();
        draft.write(0, &memory).unwrap();
        let first = draft.finish(b"").unwrap();
        for big in [5000, 100] {
            // The first cannot be finished; the second, small one, can.
            let mut draft = store.begin(Base::On(first)).unwrap();
            let written = (0..big / 50).try_for_each(|n| draft.write(n * 50, &bytes(&mut rng, 50)));
            let finished = written.and_then(|()| draft.finish(b""));
            match finished {
                Err(Error::Full { .. }) if big == 5000 => {}
                Ok(_) if big == 100 => {}
                other => panic!("{big} pages in {:?}: {other:?}", place.mode),
            }
            let checkpoint = store.open_checkpoint(Which::Number(first.number)).unwrap();
            checkpoint.verify(|_, _| {}).unwrap();
            let mut read = vec![0; memory.len()];
            checkpoint.read(0, &mut read).unwrap();
            assert!(read == memory);
        }
        assert_eq!(store.numbers().unwrap(), [first.number, first.number + 1]);
    }
}
