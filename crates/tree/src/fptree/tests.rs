//! The tree against a `BTreeMap`, over reopenings; threads; damage; the benchmark of the crate.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Model, SimMedium};
use towa_media::{Access, FileMedium, Guarantee, Medium, RamMedium};

use super::*;
use crate::{Direction, KEY_MAX};

fn options(entries: u32) -> Options {
    Options { len: 64 << 20, entries }
}

/// A kind of key, made of numbers so that both kinds have the same tests.
trait Made: Key {
    fn made(n: u64) -> Self::Owned;
}
impl Made for u64 {
    fn made(n: u64) -> u64 {
        n
    }
}
impl Made for [u8] {
    /// Of many lengths, some a beginning of others.
    fn made(n: u64) -> Vec<u8> {
        let mut key = format!("{:x}", n / 3).into_bytes();
        key.extend(std::iter::repeat_n(b'0', (n % 3) as usize * 7));
        key
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Upsert(u64, u64),
    Remove(u64),
    RemoveRange(u64, u64),
    Get(u64),
    Scan(Bound<u64>, Bound<u64>, bool),
    Reopen,
}

fn bound() -> impl Strategy<Value = Bound<u64>> {
    prop_oneof![(0u64..200).prop_map(Bound::Included), (0u64..200).prop_map(Bound::Excluded), Just(Bound::Unbounded)]
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0u64..200;
    prop_oneof![
        8 => (key(), any::<u64>()).prop_map(|(k, v)| Step::Insert(k, v)),
        4 => (key(), any::<u64>()).prop_map(|(k, v)| Step::Upsert(k, v)),
        5 => key().prop_map(Step::Remove),
        1 => (key(), 0u64..60).prop_map(|(k, n)| Step::RemoveRange(k, n)),
        3 => key().prop_map(Step::Get),
        2 => (bound(), bound(), any::<bool>()).prop_map(|(a, b, d)| Step::Scan(a, b, d)),
        1 => Just(Step::Reopen),
    ]
}

fn borrowed<K: Key + ?Sized>(bound: &Bound<K::Owned>) -> Bound<&K> {
    match bound {
        Bound::Included(key) => Bound::Included(std::borrow::Borrow::borrow(key)),
        Bound::Excluded(key) => Bound::Excluded(std::borrow::Borrow::borrow(key)),
        Bound::Unbounded => Bound::Unbounded,
    }
}

fn all<K: Key + ?Sized>(tree: &FpTree<K>, direction: Direction) -> Vec<(K::Owned, u64)> {
    let mut found = Vec::new();
    let each = |key: &K, value: u64| {
        let mut owned = K::Owned::default();
        key.copy_to(&mut owned);
        found.push((owned, value));
        ControlFlow::Continue(())
    };
    tree.session().scan((Bound::Unbounded, Bound::Unbounded), direction, each).unwrap();
    found
}

fn as_a_map<K: Made + ?Sized>(steps: &[Step], entries: u32) {
    use std::borrow::Borrow;
    let medium = RamMedium::anonymous();
    let mut tree = FpTree::<K>::create(medium.clone(), &options(entries)).unwrap();
    let mut model: BTreeMap<K::Owned, u64> = BTreeMap::new();
    for step in steps {
        let mut session = tree.session();
        match *step {
            Step::Insert(key, value) => {
                let key = K::made(key);
                assert_eq!(session.insert(key.borrow(), value).unwrap(), !model.contains_key(key.borrow() as &K));
                model.entry(key).or_insert(value);
            }
            Step::Upsert(key, value) => {
                let key = K::made(key);
                assert_eq!(session.upsert(key.borrow(), value).unwrap(), model.insert(key, value));
            }
            Step::Remove(key) => {
                let key = K::made(key);
                assert_eq!(session.remove(key.borrow()).unwrap(), model.remove(key.borrow() as &K));
            }
            Step::RemoveRange(key, n) => {
                for key in (key..key + n).map(K::made) {
                    assert_eq!(session.remove(key.borrow()).unwrap(), model.remove(key.borrow() as &K));
                }
            }
            Step::Get(key) => {
                let key = K::made(key);
                assert_eq!(session.get(key.borrow()).unwrap(), model.get(key.borrow() as &K).copied());
            }
            Step::Scan(low, high, forward) => {
                let (low, high) = (low.map(K::made), high.map(K::made));
                let bounds = (borrowed::<K>(&low), borrowed::<K>(&high));
                let mut expected: Vec<_> = model
                    .iter()
                    .filter(|(key, _)| within((*key).borrow(), &bounds.0, &bounds.1))
                    .map(|(k, v)| (k.clone(), *v))
                    .collect();
                let direction = if forward { Direction::Forward } else { Direction::Backward };
                if !forward {
                    expected.reverse();
                }
                let mut found = Vec::new();
                let each = |key: &K, value: u64| {
                    let mut owned = K::Owned::default();
                    key.copy_to(&mut owned);
                    found.push((owned, value));
                    ControlFlow::Continue(())
                };
                session.scan(bounds, direction, each).unwrap();
                assert_eq!(found, expected);
            }
            Step::Reopen => {
                drop(session);
                tree.check().unwrap();
                tree.close().unwrap();
                tree = FpTree::open(medium.clone()).unwrap();
            }
        }
    }
    tree.check().unwrap();
    let mut expected: Vec<_> = model.into_iter().collect();
    assert_eq!(all(&tree, Direction::Forward), expected);
    expected.reverse();
    assert_eq!(all(&tree, Direction::Backward), expected);
    let mut session = tree.session();
    for (key, value) in expected {
        assert_eq!(session.remove(key.borrow()).unwrap(), Some(value));
    }
    drop(session);
    assert_eq!((tree.stats().leaves, tree.stats().keys), (1, 0));
    tree.check().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn numbers_are_as_in_a_map(steps in prop::collection::vec(step(), 1..400), entries in 2u32..12) {
        as_a_map::<u64>(&steps, entries);
    }
    #[test]
    fn byte_strings_are_as_in_a_map(steps in prop::collection::vec(step(), 1..400), entries in 2u32..12) {
        as_a_map::<[u8]>(&steps, entries);
    }
}

/// Enough for three levels of nodes, with leaves that come and go.
fn large<K: Made + ?Sized>() {
    use std::borrow::Borrow;
    let medium = RamMedium::anonymous();
    let tree = FpTree::<K>::create(medium.clone(), &options(4)).unwrap();
    let mut model = BTreeMap::new();
    let mut rng = SmallRng::seed_from_u64(7);
    let mut session = tree.session();
    for round in 0..4u64 {
        for i in 0..40_000 {
            let key = K::made(if round == 1 { i } else { rng.random_range(0..40_000) });
            if rng.random_ratio([1, 9, 2, 9][round as usize], 10) {
                assert_eq!(session.remove(key.borrow()).unwrap(), model.remove(key.borrow() as &K));
            } else {
                assert_eq!(session.upsert(key.borrow(), i).unwrap(), model.insert(key, i));
            }
        }
        tree.check().unwrap();
        assert!(round % 2 == 1 || tree.stats().nodes > 100);
    }
    drop(session);
    drop(tree);
    let tree = FpTree::<K>::open(medium).unwrap();
    tree.check().unwrap();
    assert_eq!(all(&tree, Direction::Forward), model.into_iter().collect::<Vec<_>>());
}

#[test]
fn many_numbers() {
    large::<u64>();
}

#[test]
fn many_byte_strings() {
    large::<[u8]>();
}

/// Threads with keys of their own find them as they left them, beside threads that fight over the same keys and scan.
fn threads<K: Made + ?Sized>() {
    use std::borrow::Borrow;
    const MINE: u64 = 3000;
    let medium = RamMedium::anonymous();
    let tree = FpTree::<K>::create(medium.clone(), &options(6)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|me| {
                let tree = &tree;
                scope.spawn(move || {
                    let (mut session, mut rng, mut model) = (tree.session(), SmallRng::seed_from_u64(me), BTreeMap::new());
                    for i in 0..40_000u64 {
                        // Neighbours in the key order belong to different threads; every fourth key to all.
                        let n = rng.random_range(0..MINE) * 4;
                        let key = K::made(n + me);
                        match rng.random_range(0..4) {
                            0 => assert_eq!(session.upsert(key.borrow(), i).unwrap(), model.insert(key, i)),
                            1 => assert_eq!(session.remove(key.borrow()).unwrap(), model.remove(key.borrow() as &K)),
                            2 => assert_eq!(session.get(key.borrow()).unwrap(), model.get(key.borrow() as &K).copied()),
                            _ => {
                                let key = K::made(n + 3);
                                if rng.random() {
                                    session.upsert(key.borrow(), n).unwrap();
                                } else if let Some(value) = session.remove(key.borrow()).unwrap() {
                                    assert_eq!(value, n);
                                }
                            }
                        }
                    }
                    model
                })
            })
            .collect();
        let (tree, stop) = (&tree, &stop);
        let scanner = scope.spawn(move || {
            let mut session = tree.session();
            let mut scans = 0;
            while !stop.load(Relaxed) {
                for direction in [Direction::Forward, Direction::Backward] {
                    let mut last: Option<K::Owned> = None;
                    let each = |key: &K, _| {
                        let mut owned = K::Owned::default();
                        key.copy_to(&mut owned);
                        if let Some(last) = &last {
                            assert!(if direction == Direction::Forward { *last < owned } else { *last > owned });
                        }
                        last = Some(owned);
                        ControlFlow::Continue(())
                    };
                    session.scan((Bound::Unbounded, Bound::Unbounded), direction, each).unwrap();
                    scans += 1;
                }
            }
            scans
        });
        let mut model = BTreeMap::new();
        workers.into_iter().for_each(|worker| model.extend(worker.join().unwrap()));
        stop.store(true, Relaxed);
        assert!(scanner.join().unwrap() > 0);
        let mut session = tree.session();
        for (key, value) in &model {
            assert_eq!(session.get(key.borrow()).unwrap(), Some(*value));
        }
    });
    tree.check().unwrap();
    let before = all(&tree, Direction::Forward);
    drop(tree);
    let tree = FpTree::<K>::open(medium).unwrap();
    tree.check().unwrap();
    assert_eq!(all(&tree, Direction::Forward), before);
}

#[test]
fn threads_with_numbers() {
    threads::<u64>();
}

#[test]
fn threads_with_byte_strings() {
    threads::<[u8]>();
}

/// What is there all the time is found by every scan, whatever splits and goes beside it.
#[test]
fn scans_miss_nothing_that_stays() {
    let tree = FpTree::<u64>::create(RamMedium::anonymous(), &options(4)).unwrap();
    let mut session = tree.session();
    (0..500).for_each(|i| assert!(session.insert(&(i * 100), i).unwrap()));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (tree, stop) = (&tree, &stop);
        scope.spawn(move || {
            let (mut session, mut rng) = (tree.session(), SmallRng::seed_from_u64(1));
            while !stop.load(Relaxed) {
                let from = rng.random_range(0..49_900u64);
                let keys: Vec<u64> = (from..from + 60).filter(|key| key % 100 != 0).collect();
                keys.iter().for_each(|key| assert!(session.insert(key, 1).unwrap()));
                keys.iter().for_each(|key| assert_eq!(session.remove(key).unwrap(), Some(1)));
            }
        });
        for i in 0..300 {
            let direction = if i % 2 == 0 { Direction::Forward } else { Direction::Backward };
            let mut stay = Vec::new();
            let each = |key: &u64, _| {
                if key.is_multiple_of(100) {
                    stay.push(key / 100);
                }
                ControlFlow::Continue(())
            };
            session.scan((Bound::Unbounded, Bound::Unbounded), direction, each).unwrap();
            if i % 2 == 1 {
                stay.reverse();
            }
            assert_eq!(stay, (0..500).collect::<Vec<_>>());
        }
        stop.store(true, Relaxed);
    });
    tree.check().unwrap();
}

#[test]
fn sorted_input_is_loaded_at_once() {
    let medium = RamMedium::anonymous();
    let mut tree = FpTree::<[u8]>::create(medium.clone(), &options(48)).unwrap();
    let mut keys: Vec<Vec<u8>> = (0..20_000).map(<[u8]>::made).collect();
    keys.sort();
    let input = || keys.iter().enumerate().map(|(i, key)| (key.as_slice(), i as u64));
    assert!(tree.bulk_load(input().chain([(&b""[..], 0)])).unwrap_err().to_string().contains("ascend"));
    tree.check().unwrap();
    assert_eq!(tree.stats().keys, 0);
    assert_eq!(tree.bulk_load(input()).unwrap(), 20_000);
    tree.check().unwrap();
    assert!(tree.bulk_load(input()).is_err());
    tree.session().insert(b"another", 7).unwrap();
    drop(tree);
    let tree = FpTree::<[u8]>::open(medium).unwrap();
    tree.check().unwrap();
    assert_eq!(tree.count().unwrap(), 20_001);
    let mut session = tree.session();
    assert!(input().all(|(key, value)| session.get(key).unwrap() == Some(value)));
}

/// One of byte strings was created, and held none.
#[test]
fn the_least_tree_holds_a_key_and_a_smaller_one_is_refused() {
    fn least<K: Made + ?Sized>(longest: &K) {
        let create = |len| FpTree::<K>::create(RamMedium::anonymous(), &Options { len, entries: ENTRIES_MAX });
        let len = (0..64).map(|segments| segments * 4096).find(|&len| Options { len, entries: 48 }.check::<K>().is_ok()).unwrap();
        assert!(len <= 20 << 10, "{len}");
        assert!(create(len).unwrap().session().insert(longest, 1).unwrap());
        assert!(create(len - 4096).is_err());
    }
    least(&u64::MAX);
    least(&[7; KEY_MAX][..]);
}

#[test]
fn a_full_tree_refuses_and_keeps_what_it_has() {
    let small = Options { len: 256 << 10, entries: 48 };
    let medium = RamMedium::anonymous();
    let tree = FpTree::<[u8]>::create(medium.clone(), &small).unwrap();
    let mut session = tree.session();
    let mut n = 0;
    let error = loop {
        match session.insert(&<[u8]>::made(n), n) {
            Ok(added) => assert!(added),
            Err(e) => break e,
        }
        n += 1;
    };
    assert!(matches!(error, Error::OutOfSpace { .. }) && n > 1000, "{n}: {error}");
    drop(session);
    tree.check().unwrap();
    let mut session = tree.session();
    assert!((0..n).all(|i| session.get(&<[u8]>::made(i)).unwrap() == Some(i)));
    assert_eq!(session.remove(&<[u8]>::made(5)).unwrap(), Some(5));
    assert!(session.insert(&<[u8]>::made(5), 6).unwrap());
    assert!(matches!(session.insert(&[0; 2000], 1), Err(Error::KeyTooLong { len: 2000 })));
}

#[test]
fn every_medium_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let media: [Arc<dyn Medium>; 3] = [
        FileMedium::open(dir.path(), false, Guarantee::PowerSafe).unwrap(),
        Arc::new(SimMedium::new(Model::Line)),
        Arc::new(SimMedium::new(Model::File)),
    ];
    for medium in media {
        let tree = FpTree::<[u8]>::create(medium.clone(), &options(8)).unwrap();
        let mut session = tree.session();
        (0..100).for_each(|n| assert!(session.insert(&<[u8]>::made(n), n).unwrap()));
        (0..50).for_each(|n| assert_eq!(session.remove(&<[u8]>::made(n)).unwrap(), Some(n)));
        drop(session);
        tree.close().unwrap();
        assert!(matches!(FpTree::<u64>::open(medium.clone()), Err(Error::Mismatch { .. })));
        let tree = FpTree::<[u8]>::open(medium).unwrap();
        tree.check().unwrap();
        assert_eq!(tree.count().unwrap(), 50);
    }
}

/// Any word of the file replaced by anything: an error or a tree that can be used, never a panic or a loop without end.
#[test]
fn damage_is_reported_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let medium = || RamMedium::open(dir.path(), false, None).unwrap();
    let options = Options { len: 256 << 10, entries: 8 };
    let tree = FpTree::<[u8]>::create(medium(), &options).unwrap();
    let mut session = tree.session();
    (0..120).for_each(|n| assert!(session.insert(&<[u8]>::made(n), n).unwrap()));
    drop(session);
    let leaves: Vec<u64> = {
        let mut leaves = Vec::new();
        tree.index.for_each_leaf(&mut |off, _| {
            leaves.push(off);
            ControlFlow::Continue(())
        });
        leaves
    };
    drop(tree);
    let good = medium().open("arena", Access::ReadOnly).unwrap();
    let mut bytes = vec![0; good.len() as usize];
    good.read(0, &mut bytes).unwrap();
    drop(good);
    let mut rng = SmallRng::seed_from_u64(3);
    let (mut refused, mut opened) = (0, 0);
    for _ in 0..1500 {
        let leaf = leaves[rng.random_range(0..leaves.len())];
        let at = match rng.random_range(0..4) {
            0 => rng.random_range(512..8192 + 4096) / 8 * 8,
            1 => leaf + rng.random_range(0..14) * 64,
            2 => leaf + rng.random_range(0..112) * 8,
            _ => leaf + 8 * rng.random_range(1..10),
        };
        let word = match rng.random_range(0..5) {
            0 => rng.random(),
            1 => leaves[rng.random_range(0..leaves.len())],
            2 => rng.random_range(0..70_000) / 16 * 16,
            3 => 0,
            _ => u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap()) ^ 1 << rng.random_range(0..64),
        };
        let mut damaged = bytes.clone();
        damaged[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        std::fs::write(dir.path().join("arena"), damaged).unwrap();
        match FpTree::<[u8]>::open(medium()) {
            Ok(tree) => {
                opened += 1;
                let mut session = tree.session();
                (0..130).step_by(3).for_each(|n| assert!(session.upsert(&<[u8]>::made(n), n).is_ok()));
                (0..130).for_each(|n| assert!(session.remove(&<[u8]>::made(n)).is_ok()));
                drop(session);
                tree.check().unwrap();
            }
            Err(Error::Damaged { .. }) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(refused > 200 && opened > 100, "{refused} refused, {opened} opened");
}
