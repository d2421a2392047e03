//! The allocator against a model, over crashes of the process, with threads; and files that are not ours, or not whole.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Effect, Model, Point, SimMedium};
use towa_media::{Access, Allocation, FileMedium, Guarantee, Medium, RamMedium};

use crate::*;

fn options(len: u64) -> CreateOptions {
    CreateOptions { len, user_len: 4096, kind: "test" }
}

fn create(medium: Arc<dyn Medium>, len: u64) -> Arc<Allocator> {
    let arena = Arc::new(Arena::create(medium, &options(len)).unwrap());
    arena.publish().unwrap();
    Allocator::rebuild(arena).unwrap().finish().unwrap()
}

fn reopen(medium: Arc<dyn Medium>, live: &BTreeMap<u64, usize>) -> Arc<Allocator> {
    let rebuild = Allocator::rebuild(Arc::new(Arena::open(medium, "test").unwrap())).unwrap();
    live.iter().for_each(|(off, size)| rebuild.mark(*off, *size).unwrap());
    rebuild.finish().unwrap()
}

fn audit(allocator: &Allocator, live: &BTreeMap<u64, usize>) {
    let audit = allocator.audit().unwrap();
    live.iter().for_each(|(off, size)| audit.mark(*off, *size).unwrap());
    audit.finish().unwrap();
    assert_eq!(allocator.usage().blocks, live.len() as u64);
}

fn add(live: &mut BTreeMap<u64, usize>, off: u64, size: usize, len: u64) {
    assert!(off >= 8192 && off + size as u64 <= len, "block at {off} of {size}");
    assert!(off.is_multiple_of(if size.is_multiple_of(64) { 64 } else { 16 }));
    let before = live.range(..off).next_back().is_none_or(|(o, s)| o + *s as u64 <= off);
    assert!(before && live.range(off..).next().is_none_or(|(o, _)| off + size as u64 <= *o), "block at {off} overlaps");
    live.insert(off, size);
}

#[derive(Clone, Debug)]
enum Step {
    Reserve(usize),
    Free(prop::sample::Index),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1usize..3000).prop_map(Step::Reserve),
        8 => (1usize..200).prop_map(Step::Reserve),
        1 => (4000usize..30_000).prop_map(Step::Reserve),
        10 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn blocks_never_overlap_and_are_used_again(steps in prop::collection::vec(step(), 1..600)) {
        let len = 512 << 10;
        let medium = RamMedium::anonymous();
        let mut allocator = create(medium.clone(), len);
        let mut local = allocator.local();
        let mut live = BTreeMap::new();
        for step in steps {
            match step {
                Step::Reserve(size) => match local.reserve(size) {
                    Ok(off) => add(&mut live, off, size, len),
                    Err(Error::OutOfSpace { .. }) => prop_assert!(live.len() > 5),
                    Err(e) => panic!("{e}"),
                },
                Step::Free(index) if !live.is_empty() => {
                    let off = *live.keys().nth(index.index(live.len())).unwrap();
                    live.remove(&off);
                    local.free(off);
                }
                Step::Free(_) => {}
                Step::Reopen => {
                    drop(local);
                    drop(allocator);
                    allocator = reopen(medium.clone(), &live);
                    local = allocator.local();
                }
            }
        }
        audit(&allocator, &live);
        live.keys().for_each(|off| local.free(*off));
        audit(&allocator, &BTreeMap::new());
        drop(local);
        // Whatever the classes of before: everything is free for one large object.
        allocator.local().reserve(len as usize - 8192).unwrap();
    }
}

#[test]
fn a_full_arena_refuses_and_loses_nothing() {
    let len = 64 << 10;
    let allocator = create(RamMedium::anonymous(), len);
    let mut local = allocator.local();
    let mut live = BTreeMap::new();
    for round in 0..3 {
        let error = loop {
            match local.reserve(896) {
                Ok(off) => add(&mut live, off, 896, len),
                Err(e) => break e.to_string(),
            }
        };
        assert!(error.contains("no room for a block of 896 bytes"), "{error}");
        assert_eq!(live.len(), 14 * 4, "round {round}");
        audit(&allocator, &live);
        std::mem::take(&mut live).keys().for_each(|off| local.free(*off));
    }
}

#[test]
fn a_full_medium_refuses_and_the_rest_is_used() {
    let medium = SimMedium::new(Model::Line);
    medium.strict_space();
    let allocator = create(Arc::new(medium.clone()), 8 << 20);
    let mut local = allocator.local();
    (0..20).for_each(|i| medium.inject(Point::Reserve, i, Effect::Full));
    assert!(matches!(local.reserve(100), Err(Error::OutOfSpace { .. })));
    assert!(matches!(local.reserve(100_000), Err(Error::OutOfSpace { .. })));
    for _ in 0..20 {
        let _ = local.reserve(100);
    }
    local.reserve(100).unwrap();
}

#[test]
fn two_owners_and_blocks_that_cannot_be_are_damage() {
    let medium = RamMedium::anonymous();
    let allocator = create(medium.clone(), 1 << 20);
    let mut local = allocator.local();
    let (small, large) = (local.reserve(100).unwrap(), local.reserve(10_000).unwrap());
    drop((local, allocator));
    let rebuild = Allocator::rebuild(Arc::new(Arena::open(medium, "test").unwrap())).unwrap();
    rebuild.mark(small, 100).unwrap();
    rebuild.mark(large, 10_000).unwrap();
    let error = |off, size| rebuild.mark(off, size).unwrap_err().to_string();
    assert!(error(small, 100).contains("two owners"));
    assert!(error(small & !4095, 200).contains("two owners"));
    assert!(error(large + 4096, 100).contains("two owners"));
    assert!(error(small + 8, 100).contains("no block"));
    for off in [0, 4096, 1 << 20, u64::MAX, !4095] {
        assert!(error(off, 100).contains("no block"), "{off}");
        assert!(error(off, 10_000).contains("no block"), "{off}");
        assert!(error(off, usize::MAX).contains("no block"), "{off}");
    }
}

#[test]
fn threads_share_an_arena() {
    let len = 64 << 20;
    let allocator = create(RamMedium::anonymous(), len);
    let shared = parking_lot::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (allocator, shared) = (&allocator, &shared);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed);
                let mut local = allocator.local();
                for _ in 0..30_000 {
                    if rng.random() {
                        let size = rng.random_range(1..1500);
                        let off = local.reserve(size).unwrap();
                        // Its owner alone writes it: whoever finds another number there shares it.
                        allocator.arena().store_word(off, off ^ seed).unwrap();
                        shared.lock().push((off, size, off ^ seed));
                    } else {
                        let mut list = shared.lock();
                        let n = list.len().max(1);
                        let taken = (!list.is_empty()).then(|| list.swap_remove(rng.random_range(0..n)));
                        drop(list);
                        if let Some((off, _, word)) = taken {
                            assert_eq!(allocator.arena().load(off), word);
                            local.free(off);
                        }
                    }
                }
            });
        }
    });
    let mut live = BTreeMap::new();
    shared.into_inner().iter().for_each(|(off, size, _)| add(&mut live, *off, *size, len));
    audit(&allocator, &live);
}

#[test]
fn the_view_is_what_was_stored_on_every_medium() {
    let dir = tempfile::tempdir().unwrap();
    let media: [Arc<dyn Medium>; 4] = [
        RamMedium::anonymous(),
        FileMedium::open(dir.path(), false, Guarantee::PowerSafe).unwrap(),
        Arc::new(SimMedium::new(Model::Line)),
        Arc::new(SimMedium::new(Model::File)),
    ];
    for medium in media {
        let allocator = create(medium.clone(), 8 << 20);
        let off = allocator.local().reserve(200).unwrap();
        let arena = allocator.arena();
        arena.store(off, &[1, 2, 3]).unwrap();
        arena.words(off + 24, 1).unwrap()[0].store(9, std::sync::atomic::Ordering::Relaxed);
        arena.write_back(off, 24);
        arena.fence().unwrap();
        assert_eq!([0, 8, 16, 24].map(|at| arena.load(off + at)), [1, 2, 3, 9]);
        assert!(arena.get(off + 4).is_none() && arena.get(8 << 20).is_none() && arena.words((8 << 20) - 8, 2).is_none());
        assert!(arena.store(8 << 20, &[1]).is_err() && arena.store(u64::MAX - 7, &[1]).is_err());
        let uuid = arena.uuid();
        drop(allocator);
        let arena = Arena::open(medium, "test").unwrap();
        assert_eq!([0, 8, 16].map(|at| arena.load(off + at)), [1, 2, 3]);
        assert_eq!((arena.uuid(), arena.user_area()), (uuid, 4096..8192));
    }
}

#[test]
fn a_volatile_arena_allocates_too() {
    let arena = Arc::new(Arena::volatile(1 << 20).unwrap());
    let allocator = Allocator::rebuild(arena).unwrap().finish().unwrap();
    let mut local = allocator.local();
    let blocks: HashSet<u64> = std::iter::from_fn(|| local.reserve(4096).ok()).collect();
    assert_eq!(blocks.len(), 255);
    allocator.arena().store(*blocks.iter().next().unwrap(), &[7]).unwrap();
}

#[test]
fn what_is_not_ours_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let open = || {
        let medium = FileMedium::open(dir.path(), false, Guarantee::PowerSafe).unwrap();
        Arena::open(medium, "test").map(|_| ()).map_err(|e| e.to_string())
    };
    let refused = |bytes: &[u8], word: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = open().unwrap_err();
        assert!(error.contains(word), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let medium = FileMedium::open(dir.path(), false, Guarantee::PowerSafe).unwrap();
        assert!(matches!(Arena::create(medium, &options(1 << 20)), Err(Error::Exists { .. })));
    };
    assert!(open().unwrap_err().contains("no arena there"));
    refused(b"", "not a Towa arena");
    refused(b"something else entirely, of somebody", "not a Towa arena");
    refused(b"TOWAAREN and no more", "truncated");
    std::fs::remove_file(&path).unwrap();
    let medium = FileMedium::open(dir.path(), false, Guarantee::PowerSafe).unwrap();
    let arena = Arena::create(medium.clone(), &options(1 << 20)).unwrap();
    arena.publish().unwrap();
    assert!(open().unwrap_err().contains("in use"));
    drop(arena);
    open().unwrap();
    let error = Arena::open(medium, "other").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("\"test\"") && error.contains("\"other\""), "{error}");
    let good = std::fs::read(&path).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    refused(&with(8, 2), "format version 2");
    refused(&with(33, 0xFF), "checksum");
    refused(&with(120, good[120] ^ 1), "checksum");
    refused(&good[..good.len() / 2], "bytes, not");
    std::fs::write(&path, with(517, good[517] ^ 1)).unwrap();
    let medium = FileMedium::open(dir.path(), false, Guarantee::PowerSafe).unwrap();
    let arena = Arena::open(medium, "test");
    assert!(arena.and_then(|arena| Allocator::rebuild(Arc::new(arena)).map(|_| ())).unwrap_err().to_string().contains("mark"));
}

#[test]
fn an_interrupted_creation_is_removed_and_a_strange_file_is_not() {
    let medium = RamMedium::anonymous();
    drop(Arena::create(medium.clone(), &options(1 << 20)).unwrap());
    assert!(matches!(Arena::open(medium.clone(), "test"), Err(Error::Missing { .. })));
    let again = create(medium.clone(), 1 << 20);
    drop(again);
    let medium = RamMedium::anonymous();
    let strange = medium.create("arena.new", 100, Allocation::Full).unwrap();
    strange.store(0, b"mine").unwrap();
    assert!(matches!(Arena::create(medium.clone(), &options(1 << 20)), Err(Error::Foreign { .. })));
    let mut read = [0; 4];
    medium.open("arena.new", Access::ReadOnly).unwrap().read(0, &mut read).unwrap();
    assert_eq!(&read, b"mine");
}

#[test]
fn after_a_failed_sync_nothing_is_written() {
    let medium = SimMedium::new(Model::File);
    let allocator = create(Arc::new(medium.clone()), 1 << 20);
    let arena = allocator.arena();
    medium.inject(Point::Fence, 0, Effect::Io);
    assert!(matches!(arena.fence(), Err(Error::Media(_))));
    assert!(arena.is_failed());
    assert!(matches!(arena.store_word(4096, 1), Err(Error::Failed { .. })) && matches!(arena.fence(), Err(Error::Failed { .. })));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (len, user_len) in [(0, 0), (8192, 4096), (1 << 41, 0), (u64::MAX, 0), (1 << 20, u64::MAX)] {
        let options = CreateOptions { len, user_len, kind: "test" };
        assert!(matches!(Arena::create(RamMedium::anonymous(), &options), Err(Error::Options { .. })), "{len} {user_len}");
    }
}
