//! Opening and creating pools with lanes: what is refused was not written.

use bytemuck::Zeroable;
use towa_media::Access;
use towa_media::sim::{Effect, EventKind, Explorer, Point};

use super::super::Cut;
use super::*;
use crate::superblock::Superblock;
use crate::{describe, names, verify};

/// Changes bytes of a region behind the pool's back.
fn tamper(medium: &SimMedium, name: &str, off: u64, len: usize, change: impl FnOnce(&mut [u8])) {
    let region = medium.open(name, Access::ReadWrite).unwrap();
    let mut bytes = vec![0; len];
    region.read(off, &mut bytes).unwrap();
    change(&mut bytes);
    region.store(off, &bytes).unwrap();
}

fn writes(medium: &SimMedium) -> usize {
    let is_write = |kind| matches!(kind, EventKind::Store | EventKind::Stream | EventKind::Rename | EventKind::Remove);
    medium.trace().events().filter(|e| is_write(e.kind())).count()
}

/// The refusal, after which nothing was written by open or verify.
fn refused_unwritten(medium: &SimMedium) -> String {
    let before = writes(medium);
    let verdict = verify(medium, Door::Tx, &mut |_, _| ());
    let Err(Error::Damaged { what, .. }) = open(medium) else { panic!("not refused, or otherwise") };
    assert!(matches!(&verdict, Err(Error::Damaged { what: said, .. }) if *said == what), "open: {what}; verify: {verdict:?}");
    assert_eq!(writes(medium), before, "refused ({what}), but written");
    what
}

/// A pool with a record of two words in lane 1, and one of many in lane 2.
fn pool(medium: &SimMedium) {
    let heap = create(medium.clone());
    for (lane, words) in [(1, 2), (2, 100)] {
        heap.lanes().provide(lane).unwrap();
        let words = (0..words).map(|n| (DATA + n * 8, n + 1)).collect();
        heap.lanes().append(lane, 0, &Written { ts: lane as u64, lane, words }.builder()).unwrap();
    }
    heap.lanes().fence().unwrap();
}

#[test]
fn a_pool_says_what_it_is() {
    for medium in both_models() {
        pool(&medium);
        let found = describe(&medium).unwrap();
        assert_eq!((found.door, found.lanes, found.log_len), (Some(Door::Tx), Some(3), 3 * LANE_LEN));
        assert_eq!((found.log_live, found.clean), (64 + 896, false));
        let report = verify(&medium, Door::Tx, &mut |_, _| ()).unwrap();
        assert_eq!((report.records_to_replay, report.words_to_replay, report.lanes_in_use), (2, 102, 2));
        assert_eq!(report.lines_to_replay, 13);
        let heap = open(&medium).unwrap();
        assert_eq!((heap.recovery().records_replayed, heap.recovery().lines_replayed, heap.recovery().clean), (2, 13, false));
        let generation = heap.lanes().generation();
        heap.close().unwrap();
        drop(heap);
        let heap = open(&medium).unwrap();
        assert!(heap.recovery().clean && heap.recovery().records_replayed == 0 && heap.lanes().generation() == generation + 1);
        assert_eq!(describe(&medium).unwrap().log_live, 0);
        assert!(matches!(
            Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Epoch, eager: true, prefault: false }),
            Err(Error::WrongDoor { .. })
        ));
    }
}

#[test]
fn shapes_that_cannot_be_are_refused_before_there_are_files() {
    let lanes = |count, lane_len| LogShape::Lanes { count, lane_len };
    for log in [
        lanes(0, LANE_LEN),
        lanes(65, LANE_LEN),
        lanes(1, LANE_LEN - 4096),
        lanes(1, LANE_LEN + 64),
        lanes(64, 1 << 40),
        LogShape::Ring { len: None },
    ] {
        let medium = SimMedium::new(Model::Line);
        let wrong = CreateOptions { log, ..options() };
        assert!(matches!(Heap::create(Arc::new(medium.clone()), &wrong), Err(Error::Options { .. })), "{log:?}");
        assert_eq!(medium.events(), 0);
    }
    let wrong = CreateOptions { door: Door::Epoch, ..options() };
    assert!(matches!(Heap::create(Arc::new(SimMedium::new(Model::Line)), &wrong), Err(Error::Options { .. })));
}

#[test]
fn superblocks_and_cuts_that_contradict_themselves_are_refused() {
    for change in [
        (&|sb: &mut Superblock| sb.commit_slots = 0) as &dyn Fn(&mut Superblock),
        &|sb| sb.commit_slots = 65,
        &|sb| sb.ring_len += 4096,
        &|sb| sb.ring_len = 3 * 4096,
        &|sb| sb.ring_len = 1 << 62,
        &|sb| sb.tail = 64,
        &|sb| sb.applied_epoch = 1,
        &|sb| sb.frontier = 2 * crate::alloc::CHUNK,
    ] {
        let medium = SimMedium::new(Model::Line);
        pool(&medium);
        for slot in [0, 4096] {
            tamper(&medium, names::SUPERBLOCK, slot, 256, |bytes| {
                let mut sb: Superblock = bytemuck::pod_read_unaligned(bytes);
                change(&mut sb);
                sb.seal();
                bytes.copy_from_slice(bytemuck::bytes_of(&sb));
            });
        }
        assert!(refused_unwritten(&medium).contains("superblock fields contradict"));
    }
    for change in [
        (&|cut: &mut Cut| cut.frontier = 64) as &dyn Fn(&mut Cut),
        &|cut| cut.frontier = 1 << 40,
        &|cut| cut.tails[1] = 32,
        &|cut| cut.tails[3] = 64,
        &|cut| cut.tails[0] = 1 << 63,
        &|cut| cut.generation = u64::MAX,
        &|cut| cut.generation = u64::MAX >> 2,
        &|cut| cut.seq = u64::MAX >> 2,
    ] {
        let medium = SimMedium::new(Model::Line);
        pool(&medium);
        tamper(&medium, names::LOG, 4096, 640, |bytes| {
            let mut cut: Cut = bytemuck::pod_read_unaligned(bytes);
            change(&mut cut);
            cut.seal();
            bytes.copy_from_slice(bytemuck::bytes_of(&cut));
        });
        assert!(refused_unwritten(&medium).contains("newest cut"));
    }
}

/// The newest cut torn in any way: the one before counts. Both gone: refused.
#[test]
fn a_torn_cut_is_none() {
    for medium in both_models() {
        drop(create(medium.clone()));
        pool_again(&medium);
        let region = medium.open(names::LOG, Access::ReadOnly).unwrap();
        let mut slots = [Cut::zeroed(); 2];
        for (i, slot) in slots.iter_mut().enumerate() {
            region.read(i as u64 * 4096, bytemuck::bytes_of_mut(slot)).unwrap();
        }
        let newest = usize::from(slots[1].seq > slots[0].seq);
        for byte in (0..640).step_by(3) {
            tamper(&medium, names::LOG, newest as u64 * 4096 + byte, 1, |b| b[0] ^= 1);
            let log = medium.open(names::LOG, Access::ReadOnly).unwrap();
            let sb = crate::superblock::find_superblock(&medium, None).unwrap();
            assert_eq!(Cut::read(&*log, &sb).unwrap().unwrap().seq, slots[1 - newest].seq);
            tamper(&medium, names::LOG, newest as u64 * 4096 + byte, 1, |b| b[0] ^= 1);
        }
        for slot in [0, 4096] {
            tamper(&medium, names::LOG, slot, 640, |b| b[100] ^= 1);
        }
        assert!(refused_unwritten(&medium).contains("no cut slot"));
    }
}

/// With the newest superblock and both cuts gone, what is left looks like a pool that was never opened. Fuzzing found that it was taken for
/// one: without its records, and the opening after that brought them back.
#[test]
fn a_pool_that_has_records_was_opened() {
    for medium in both_models() {
        pool(&medium);
        for slot in [0, 4096] {
            tamper(&medium, names::LOG, slot, 640, |bytes| bytes[100] ^= 1);
            tamper(&medium, names::SUPERBLOCK, slot, 256, |bytes| {
                let sb: Superblock = bytemuck::pod_read_unaligned(bytes);
                bytes[100] ^= u8::from(sb.generation > 0);
            });
        }
        assert_eq!(crate::superblock::find_superblock(&medium, None).unwrap().generation, 0);
        assert!(refused_unwritten(&medium).contains("no cut slot"));
    }
}

fn pool_again(medium: &SimMedium) {
    drop(open(medium).unwrap());
}

/// A record whose last word is that of a root slot: what it makes of the roots is looked at before it is applied.
#[test]
fn records_that_damage_roots_or_headers_are_refused_before_anything_is_written() {
    for medium in both_models() {
        for (offset, what) in [(128 * 9 + 8, "root slot 9"), (1 << 40, "outside the heap")] {
            let medium = medium.trace().killed_after(0);
            pool(&medium);
            let heap = open(&medium).unwrap();
            heap.lanes().provide(0).unwrap();
            let record = Written { ts: 9, lane: 0, words: vec![(offset, 1)] };
            heap.lanes().append(0, 0, &record.builder()).unwrap();
            heap.lanes().fence().unwrap();
            drop(heap);
            let said = refused_unwritten(&medium);
            assert!(said.contains(what), "{said}");
        }
    }
}

/// A lane's space is provided before it is used, and a full medium is an error then.
#[test]
fn a_full_medium_is_told_when_a_lane_is_provided() {
    for medium in both_models() {
        let heap = create(medium.clone());
        medium.inject(Point::Reserve, 0, Effect::Full);
        assert!(matches!(heap.lanes().provide(1), Err(Error::Media(towa_media::Error::Full { .. }))));
        heap.lanes().provide(1).unwrap();
    }
}

/// Wherever creation is cut off, there is a pool afterwards, or creating it again makes one.
#[test]
fn an_interrupted_creation_can_be_done_again() {
    for (seed, medium) in both_models().into_iter().enumerate() {
        drop(create(medium.clone()));
        let mut created = 0;
        let checked = Explorer::new(medium.trace(), seed as u64).check(500, |image| {
            let left = image.to_medium();
            match open(&left) {
                Ok(_) => Ok(()),
                Err(Error::Missing { .. }) => {
                    created += 1;
                    Heap::create(Arc::new(left), &options()).map(|_| ()).map_err(|e| e.to_string())
                }
                Err(e) => Err(e.to_string()),
            }
        });
        checked.unwrap_or_else(|counterexample| panic!("{counterexample}"));
        assert!(created > 40);
    }
    for point in [Point::Create, Point::Reserve, Point::Write, Point::Fence, Point::SyncNames, Point::Rename] {
        for after in 0..8 {
            for medium in both_models() {
                medium.inject(point, after, Effect::Io);
                if Heap::create(Arc::new(medium.clone()), &options()).is_err() {
                    let all = [names::SUPERBLOCK, names::SUPERBLOCK_NEW, names::IMAGE, names::LOG];
                    assert!(all.iter().all(|name| !medium.exists(name).unwrap()), "{point:?} failed after {after}");
                }
            }
        }
    }
}
