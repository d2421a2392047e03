//! The B+-tree with many threads, on every way of running transactions.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::model::{Make, Model, end, options, play_keys, pool, rng, same, seed, ways};
use rand::Rng;
use towa_tree::{BpTree, Direction, OrderedMap, Session};
use towa_tx::{Commit, Options};

type Small<K> = BpTree<K, 8, 4>;

/// Each thread has its own keys, which lie among those of the others, and its own model of them.
fn disjoint<K: Make + ?Sized>(options: &Options, ops: usize) {
    let seed = seed();
    let dir = tempfile::tempdir().unwrap();
    let mut models = vec![Model::<K>::new(); 4];
    for round in 0..3 {
        let pool = pool(dir.path(), options);
        let tree = Small::<K>::open_or_create(&pool, "map").unwrap();
        std::thread::scope(|scope| {
            for (me, model) in models.iter_mut().enumerate() {
                let tree = &tree;
                scope.spawn(move || {
                    let mut rng = rng(seed ^ (me as u64 + round * 4));
                    play_keys(tree, model, &mut rng, &|n| n * 4 + me as u64, 300, ops);
                });
            }
        });
        let all: Model<K> = models.iter().flat_map(|m| m.iter().map(|(k, v)| (k.clone(), *v))).collect();
        same(&tree, &all, &format!("{:?} {:?} seed {seed} round {round}", options.tm, options.commit));
        drop(tree);
        end(pool, round % 2 == 0);
    }
}

#[test]
fn threads_with_keys_of_their_own() {
    for tm in ways() {
        disjoint::<u64>(&options(tm), 6000);
        disjoint::<[u8]>(&options(tm), 3000);
    }
    for tm in ways() {
        disjoint::<u64>(&Options { commit: Commit::Buffered, ..options(tm) }, 4000);
    }
}

/// Every value is written once at most. So each is replaced, or removed, or left at the end, once at most.
fn shared<K: Make + ?Sized>(options: &Options, keys: u64, ops: u64) {
    let seed = seed();
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), options);
    let tree = Small::<K>::create(&pool, "map").unwrap();
    let gone: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u64)
            .map(|me| {
                let tree = &tree;
                scope.spawn(move || {
                    let (mut rng, mut session, mut gone) = (rng(seed ^ me), tree.session().unwrap(), Vec::new());
                    for n in 0..ops {
                        let key = K::make(rng.random_range(0..keys));
                        let (key, value): (&K, u64) = (key.borrow(), n * 4 + me);
                        match rng.random_range(0..4) {
                            0 => gone.extend(session.remove(key).unwrap()),
                            1 => _ = session.insert(key, value).unwrap(),
                            2 => gone.extend(session.upsert(key, value).unwrap()),
                            _ => _ = session.get(key).unwrap(),
                        }
                    }
                    gone
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    let distinct: HashSet<u64> = gone.iter().copied().collect();
    assert_eq!(distinct.len(), gone.len(), "a value was replaced twice: {:?} seed {seed}", options.tm);
    let left: Vec<u64> =
        crate::model::everything(&mut *OrderedMap::session(&tree).unwrap(), Direction::Forward).iter().map(|e| e.1).collect();
    assert!(left.iter().all(|value| !distinct.contains(value)), "a value that was replaced is back: {:?} seed {seed}", options.tm);
    tree.check().unwrap();
}

#[test]
fn threads_with_few_keys_lose_no_value_and_see_none_twice() {
    for tm in ways() {
        for keys in [1, 6, 40] {
            shared::<u64>(&options(tm), keys, 5000);
            shared::<[u8]>(&options(tm), keys, 2000);
        }
    }
}

/// Even numbers stay, odd ones come and go: a scan gives every even one once, in order, and nothing that never was.
fn scans<K: Make + ?Sized>(options: &Options, scans: u64) {
    let seed = seed();
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), options);
    let tree = Small::<K>::create(&pool, "map").unwrap();
    const KEYS: u64 = 1000;
    let mut session = tree.session().unwrap();
    let mut stay: Vec<K::Owned> = (0..KEYS).step_by(10).map(K::make).collect();
    stay.sort();
    for key in &stay {
        session.insert(key.borrow(), u64::MAX).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for me in 0..2u64 {
            let (tree, stop) = (&tree, &stop);
            scope.spawn(move || {
                let (mut rng, mut session) = (rng(seed ^ me), tree.session().unwrap());
                while !stop.load(Relaxed) {
                    // Waves, so that leaves are split and merged where the scans are.
                    let from = rng.random_range(0..KEYS);
                    let add = rng.random();
                    for n in (from..KEYS.min(from + 200)).filter(|n| n % 10 != 0) {
                        let key = K::make(n);
                        if add { session.insert(key.borrow(), n).map(|_| ()) } else { session.remove(key.borrow()).map(|_| ()) }
                            .unwrap();
                    }
                }
            });
        }
        for n in 0..scans {
            let direction = if n % 2 == 0 { Direction::Forward } else { Direction::Backward };
            let mut found: Vec<(K::Owned, u64)> = Vec::new();
            session
                .scan((Bound::Unbounded, Bound::Unbounded), direction, &mut |key, value| {
                    let mut owned = K::Owned::default();
                    key.copy_to(&mut owned);
                    found.push((owned, value));
                    ControlFlow::Continue(())
                })
                .unwrap();
            if direction == Direction::Backward {
                found.reverse();
            }
            assert!(found.windows(2).all(|w| w[0].0 < w[1].0), "in order, each once: {:?} seed {seed}", options.tm);
            let kept: Vec<_> = found.iter().filter(|e| e.1 == u64::MAX).map(|e| e.0.clone()).collect();
            assert_eq!(kept, stay, "{:?} seed {seed}", options.tm);
            assert!(found.iter().all(|(key, n)| *n == u64::MAX || K::make(*n) == *key), "{:?} seed {seed}", options.tm);
        }
        stop.store(true, Relaxed);
    });
    tree.check().unwrap();
}

#[test]
fn scans_beside_writers() {
    for tm in ways() {
        scans::<u64>(&options(tm), 300);
        scans::<[u8]>(&options(tm), 100);
    }
}
