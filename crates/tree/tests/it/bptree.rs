//! The B+-tree does what a map does, on every way of running transactions, and is the same after it is opened anew.

use crate::model::{Make, Model, end, options, play, pool, rng, same, seed, ways};
use rand::Rng;
use towa_tree::{BpTree, Error, FpTree, OrderedMap, PaperTree, Session, fptree};
use towa_tx::{Commit, Options, Pool, TmChoice};

/// Nodes so small that few keys make a deep tree.
type Small<K> = BpTree<K, 8, 4>;

fn model_test<K: Make + ?Sized, const LEAF: usize, const INNER: usize>(options: &Options, keys: u64, rounds: usize, ops: usize) {
    let seed = seed();
    let mut rng = rng(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::<K>::new();
    for round in 0..rounds {
        let pool = pool(dir.path(), options);
        let tree = BpTree::<K, LEAF, INNER>::open_or_create(&pool, "map").unwrap();
        let what = format!("{:?} {:?} seed {seed} round {round}", options.tm, options.commit);
        same(&tree, &model, &format!("{what} opened"));
        for part in 0..4 {
            play(&tree, &mut model, &mut rng, keys, ops / 4);
            tree.check().unwrap_or_else(|e| panic!("{what} part {part}: {e}"));
        }
        same(&tree, &model, &what);
        drop(tree);
        end(pool, rng.random());
    }
}

#[test]
fn numbers_as_a_model_has_them() {
    for tm in ways() {
        model_test::<u64, 8, 4>(&options(tm), 600, 6, 8000);
        model_test::<u64, 48, 62>(&options(tm), 4000, 4, 20_000);
    }
}

#[test]
fn byte_strings_as_a_model_has_them() {
    for tm in ways() {
        model_test::<[u8], 8, 4>(&options(tm), 600, 6, 8000);
        model_test::<[u8], 48, 62>(&options(tm), 3000, 3, 12_000);
    }
}

#[test]
fn buffered_pools_too() {
    for tm in ways() {
        let options = Options { commit: Commit::Buffered, ..options(tm) };
        model_test::<u64, 8, 4>(&options, 600, 4, 8000);
        model_test::<[u8], 8, 4>(&options, 600, 4, 4000);
    }
}

#[test]
fn the_papers_tree_is_a_map_too() {
    let seed = seed();
    for tm in ways() {
        let (mut rng, dir, mut model) = (rng(seed), tempfile::tempdir().unwrap(), Model::<u64>::new());
        for round in 0..3 {
            let pool = pool(dir.path(), &options(tm));
            let tree = towa_tree::PaperTree::open_or_create(&pool, "paper").unwrap();
            same(&tree, &model, &format!("{tm:?} seed {seed} round {round}"));
            play(&tree, &mut model, &mut rng, 100_000, 60_000);
            same(&tree, &model, &format!("{tm:?} seed {seed} round {round}"));
            drop(tree);
            end(pool, rng.random());
        }
    }
}

#[test]
fn an_emptied_tree_is_one_leaf_and_its_nodes_are_used_again() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let pool = pool(dir.path(), &options(tm));
        let tree = Small::<u64>::create(&pool, "map").unwrap();
        let mut session = tree.session().unwrap();
        let mut frontier = 0;
        for round in 0..6u64 {
            let key = |i: u64| match round % 3 {
                0 => i,
                1 => u64::MAX - i,
                _ => u64::make(i),
            };
            for i in 0..5000 {
                assert!(session.insert(&key(i), i).unwrap());
            }
            tree.check().unwrap();
            assert!(tree.depth().unwrap() >= 4);
            for i in 0..5000 {
                assert_eq!(session.remove(&key(i)).unwrap(), Some(i));
            }
            tree.check().unwrap();
            assert_eq!((tree.count().unwrap(), tree.depth().unwrap()), (0, 0), "{tm:?} round {round}");
            if round == 2 {
                frontier = pool.heap().allocator().used_bytes();
            }
        }
        assert!(pool.heap().allocator().used_bytes() <= frontier + frontier / 8, "nodes are used again");
    }
}

/// A new node is logged only as far as it is filled. What lay in the rest of its block, which is the working copy's alone, may look like
/// what comes to lie there later.
#[test]
fn what_seems_to_be_there_already_is_durable_all_the_same() {
    const LEFT: u64 = 7;
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { heap_len: 2 << 20, ..options(tm) };
        let pool = pool(dir.path(), &options);
        // Never takes effect: all of the heap is free again, and holds this.
        let littered = pool.register().unwrap().transaction_software(|tx| -> Result<(), _> {
            loop {
                let block = tx.alloc(1008)?;
                tx.init(block, &[LEFT; 126])?;
            }
        });
        assert!(matches!(littered, Err(towa_tx::Error::OutOfSpace { .. })), "{littered:?}");
        let tree = Small::<u64>::create(&pool, "map").unwrap();
        let (mut session, mut model) = (tree.session().unwrap(), Model::<u64>::new());
        // Falling keys: each split leaves a leaf behind of which half is never taken. Then leaves are merged, and entries move there.
        for key in (0..500).rev() {
            assert!(session.insert(&key, LEFT).unwrap());
            model.insert(key, LEFT);
        }
        for key in (0..500).step_by(2) {
            assert_eq!(session.remove(&key).unwrap(), model.remove(&key));
        }
        drop(session);
        drop(tree);
        pool.abandon();
        let pool = Pool::open(dir.path(), &options).unwrap();
        let tree = Small::<u64>::open(&pool, "map").unwrap();
        tree.check().unwrap();
        same(&tree, &model, &format!("{tm:?}"));
    }
}

#[test]
fn sorted_entries_are_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), &options(TmChoice::Auto));
    for (name, count) in [("none", 0u64), ("one", 1), ("some", 45), ("more", 46), ("many", 20_000)] {
        let tree = BpTree::<u64>::create(&pool, name).unwrap();
        assert_eq!(tree.bulk_load((0..count).map(|k| (k * 3, k))).unwrap(), count);
        same(&tree, &(0..count).map(|k| (k * 3, k)).collect(), name);
        if count > 0 {
            assert!(matches!(tree.bulk_load([(1u64, 1)]), Err(Error::Mismatch { .. })), "it is not empty");
        }
    }
    let tree = Small::<[u8]>::create(&pool, "bytes").unwrap();
    let model: Model<[u8]> = (0..3000).map(|i| (<[u8]>::make(i), i)).collect();
    tree.bulk_load(model.iter().map(|(k, v)| (k.as_slice(), *v))).unwrap();
    same(&tree, &model, "byte strings");
    let tree = Small::<u64>::create(&pool, "unsorted").unwrap();
    assert!(matches!(tree.bulk_load((0..20u64).chain([5]).map(|k| (k, k))), Err(Error::Mismatch { .. })));
    tree.check().unwrap();
}

/// Through the trait: both trees, and one that has no way of its own.
#[test]
fn every_map_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), &options(TmChoice::Auto));
    let medium = towa_media::RamMedium::anonymous();
    let in_place = FpTree::<u64>::create(medium, &fptree::Options { len: 4 << 20, ..Default::default() }).unwrap();
    let maps: [Box<dyn OrderedMap<u64>>; 3] = [
        Box::new(Small::<u64>::create(&pool, "map").unwrap()),
        Box::new(in_place),
        Box::new(PaperTree::open_or_create(&pool, "paper").unwrap()),
    ];
    let model: Model<u64> = (0..2000).map(|k| (k * 3, k)).collect();
    for (nr, mut map) in maps.into_iter().enumerate() {
        let load = |map: &mut dyn OrderedMap<u64>, entries: &[(u64, u64)]| map.bulk_load(&mut entries.iter().map(|(k, v)| (k, *v)));
        let refused = load(&mut *map, &[(5, 1), (5, 2)]);
        assert!(matches!(refused, Err(Error::Mismatch { .. })), "{nr}: {refused:?}");
        map.session().unwrap().remove(&5).unwrap();
        let entries: Vec<_> = model.iter().map(|(k, v)| (*k, *v)).collect();
        assert_eq!(load(&mut *map, &entries).unwrap(), 2000, "{nr}");
        same(&*map, &model, &format!("map {nr}"));
        assert!(matches!(load(&mut *map, &[(1, 1)]), Err(Error::Mismatch { .. })), "{nr}: it is not empty");
    }
}

#[test]
fn what_is_not_this_tree_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), &options(TmChoice::Auto));
    let refused = |e: Error, words: &str| match e {
        Error::Mismatch { what, .. } => assert!(what.contains(words), "{what:?} should say {words:?}"),
        other => panic!("{other}"),
    };
    refused(BpTree::<u64>::open(&pool, "map").unwrap_err(), "no root");
    BpTree::<u64>::create(&pool, "map").unwrap();
    refused(BpTree::<u64>::create(&pool, "map").unwrap_err(), "already");
    refused(BpTree::<[u8]>::open(&pool, "map").unwrap_err(), "u64 keys");
    refused(Small::<u64>::open(&pool, "map").unwrap_err(), "48 entries");
    let mut thread = pool.register().unwrap();
    let other = thread.transaction(|tx| {
        let block = tx.alloc(512)?;
        tx.init(block, &[1; 64])?;
        let ptr = std::ptr::NonNull::new(block as *mut u8).unwrap();
        tx.set_root("other", Some(towa_tx::Root { ptr, type_tag: 1, size: 512 }))
    });
    other.unwrap();
    refused(BpTree::<u64>::open(&pool, "other").unwrap_err(), "no B+-tree");
    let long = vec![b'k'; towa_tree::KEY_MAX + 1];
    let bytes = BpTree::<[u8]>::create(&pool, "bytes").unwrap();
    let mut session = bytes.session().unwrap();
    assert!(matches!(session.insert(&long, 1), Err(Error::KeyTooLong { len: 1025 })));
    assert!(session.insert(&long[1..], 1).unwrap() && session.insert(b"", 2).unwrap());
    assert_eq!((session.get(&long).unwrap(), session.get(b"").unwrap()), (None, Some(2)));
}

fn fill_up<K: Make + ?Sized, const LEAF: usize, const INNER: usize>(tm: TmChoice) {
    use std::borrow::Borrow;
    let dir = tempfile::tempdir().unwrap();
    let options = Options { heap_len: 2 << 20, ..options(tm) };
    let pool = pool(dir.path(), &options);
    let tree = BpTree::<K, LEAF, INNER>::create(&pool, "map").unwrap();
    let mut model = Model::<K>::new();
    let mut session = tree.session().unwrap();
    for round in 0..3u64 {
        let mut refused = 0;
        for i in 0..400_000u64 {
            let key = K::make(round << 32 | i);
            let k: &K = key.borrow();
            match session.insert(k, i) {
                Ok(added) => {
                    assert_eq!(added, !model.contains_key(k));
                    model.entry(key.clone()).or_insert(i);
                }
                Err(Error::OutOfSpace { pool, what }) => {
                    assert!(!pool.is_empty() && what.contains("no room"), "{pool} {what}");
                    assert_eq!(session.get(k).unwrap(), model.get(k).copied());
                    refused += 1;
                    if refused > 200 {
                        break;
                    }
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert!(refused > 200, "the heap is full");
        same(&tree, &model, &format!("full, {tm:?} round {round}"));
        // It goes on: some leave, others come.
        let leaving: Vec<_> = model.keys().skip(round as usize).step_by(2).cloned().collect();
        for key in leaving {
            assert_eq!(session.remove(key.borrow()).unwrap(), model.remove::<K>(key.borrow()));
        }
        same(&tree, &model, &format!("half, {tm:?} round {round}"));
    }
    drop(session);
    drop(tree);
    pool.abandon();
    let pool = Pool::open(dir.path(), &options).unwrap();
    same(&BpTree::<K, LEAF, INNER>::open(&pool, "map").unwrap(), &model, "after a crash");
}

#[test]
fn a_full_heap_loses_nothing() {
    for tm in ways() {
        fill_up::<u64, 8, 4>(tm);
        fill_up::<u64, 48, 62>(tm);
        fill_up::<[u8], 8, 4>(tm);
    }
}

/// A tree that had filled the pool and was emptied kept every node, in this run and in all later ones.
#[test]
fn an_emptied_tree_gives_its_space_back() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { heap_len: 4 << 20, lane_len: 64 << 10, ..options(tm) };
        let pool = Pool::create(dir.path(), &options).unwrap();
        let block = |pool: &Pool| pool.register().unwrap().transaction_software(|tx| tx.alloc(4000));
        let fill = |tree: &BpTree<u64>| {
            let mut session = tree.session().unwrap();
            let count = (0u64..).find(|n| session.insert(&n.reverse_bits(), *n).is_err()).unwrap();
            (0..count).for_each(|n| assert_eq!(session.remove(&n.reverse_bits()).unwrap(), Some(n)));
            count
        };
        let tree = BpTree::<u64>::create(&pool, "one").unwrap();
        let count = fill(&tree);
        assert!(block(&pool).is_err(), "while the tree is open its nodes are its own");
        let beside = BpTree::<u64>::open(&pool, "one").unwrap();
        tree.close().unwrap();
        assert!(block(&pool).is_err(), "it is open still");
        beside.close().unwrap();
        block(&pool).unwrap();
        // One that is dropped, not closed, gives it back when it is opened again: after a crash, say.
        let tree = BpTree::<u64>::open(&pool, "one").unwrap();
        assert!(fill(&tree) > count * 9 / 10);
        drop(tree);
        pool.abandon();
        let pool = Pool::open(dir.path(), &options).unwrap();
        let tree = BpTree::<u64>::open(&pool, "one").unwrap();
        let two = BpTree::<u64>::create(&pool, "two").unwrap();
        tree.check().unwrap();
        assert!(fill(&two) > count * 8 / 10);
        assert_eq!(tree.count().unwrap(), 0);
    }
}

#[test]
fn a_destroyed_tree_is_gone_and_an_open_one_is_not_destroyed() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), &options(TmChoice::Auto));
    let tree = BpTree::<[u8]>::create(&pool, "tree").unwrap();
    let mut session = tree.session().unwrap();
    (0u64..2000).for_each(|n| assert!(session.insert(&<[u8]>::make(n), n).unwrap()));
    drop(session);
    assert!(matches!(BpTree::<[u8]>::destroy(&pool, "tree"), Err(Error::InUse { .. })));
    // Nor does a transaction take its root away, or put something else there.
    let mut thread = pool.register().unwrap();
    let other = pool.root("tree").map(|root| towa_tx::Root { type_tag: 7, ..root });
    for root in [None, other] {
        let refused = thread.transaction(|tx| tx.set_root("tree", root)).unwrap_err().to_string();
        assert!(refused.contains("tree which is open"), "{refused}");
    }
    assert!(thread.transaction(|tx| tx.create_root("tree", other.unwrap())).is_err());
    assert_eq!(tree.session().unwrap().get(&<[u8]>::make(7)).unwrap(), Some(7));
    tree.close().unwrap();
    assert!(matches!(BpTree::<u64>::destroy(&pool, "tree"), Err(Error::Mismatch { .. })), "of other keys");
    BpTree::<[u8]>::destroy(&pool, "tree").unwrap();
    assert!(matches!(BpTree::<[u8]>::destroy(&pool, "tree"), Err(Error::Mismatch { .. })), "there is none");
    assert_eq!((pool.root_names().len(), pool.check_blocks()), (0, Ok(0)));
    thread.transaction(|tx| tx.set_root("tree", None)).unwrap();
    BpTree::<u64>::create(&pool, "tree").unwrap();
}

/// A transaction that set the root before the tree was opened takes effect before that, or not at all.
#[test]
fn a_root_that_is_held_by_the_time_it_would_be_set_stays() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), &Options { commit: Commit::Buffered, ..options(TmChoice::Stm) });
    BpTree::<u64>::create(&pool, "tree").unwrap();
    let mut held = None;
    let late = pool.register().unwrap().transaction(|tx| {
        tx.set_root("tree", None)?;
        held = Some(pool.hold_root("tree"));
        Ok(())
    });
    assert!(matches!(late, Err(towa_tx::Error::Usage(_))), "{late:?}");
    drop(held);
    BpTree::<u64>::open(&pool, "tree").unwrap();
}

/// An FPTree kept the blocks that it had taken, and its check then said that it is damaged.
#[test]
fn an_iterator_that_panics_leaves_a_sound_map() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path(), &options(TmChoice::Auto));
    let medium = towa_media::RamMedium::anonymous();
    let in_place = FpTree::<[u8]>::create(medium, &fptree::Options { len: 4 << 20, ..Default::default() }).unwrap();
    let maps: [Box<dyn OrderedMap<[u8]>>; 2] = [Box::new(Small::<[u8]>::create(&pool, "map").unwrap()), Box::new(in_place)];
    for (nr, mut map) in maps.into_iter().enumerate() {
        let keys: Vec<Vec<u8>> = (0..1000u64).map(|n| format!("key {n:05}").into_bytes()).collect();
        let mut entries = keys.iter().enumerate().map(|(n, key)| {
            assert!(n != 500, "from the iterator");
            (key.as_slice(), n as u64)
        });
        let load = std::panic::AssertUnwindSafe(|| map.bulk_load(&mut entries));
        assert!(std::panic::catch_unwind(load).is_err());
        map.check().unwrap_or_else(|e| panic!("map {nr}: {e}"));
        assert!(map.session().unwrap().insert(b"~", 1).unwrap());
        map.check().unwrap_or_else(|e| panic!("map {nr}: {e}"));
    }
}

/// A leaf with its keys is one record: of the longest keys it did not fit into the least log, where inserting them did.
#[test]
fn long_keys_are_loaded_with_the_least_logs() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &Options { lane_len: 64 << 10, ..options(TmChoice::Auto) }).unwrap();
    let tree = BpTree::<[u8]>::create(&pool, "map").unwrap();
    let model: Model<[u8]> = (0..500u64).map(|n| (format!("{n:01024}").into_bytes(), n)).collect();
    assert_eq!(tree.bulk_load(model.iter().map(|(k, v)| (k.as_slice(), *v))).unwrap(), 500);
    tree.check().unwrap();
    same(&tree, &model, "long keys");
}
