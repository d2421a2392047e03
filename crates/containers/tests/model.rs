//! Random operations against the standard library's containers, with the pool closed and reopened in between.

use proptest::prelude::*;
use proptest::test_runner::Config;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Duration;
use tempfile::TempDir;
use towa_containers::{HashMap, HashMapOptions, OrderedMap, Queue, Vector};
use towa_epoch::{Options, Pool};

type Bytes = Vec<u8>;

#[derive(Clone, Debug)]
enum Op {
    Insert(Bytes, Bytes),
    Remove(Bytes),
    Get(Bytes),
    Range(Bound<Bytes>, Bound<Bytes>, Vec<bool>),
    Push(Bytes),
    Pop,
    Set(u8, u8),
    Clear,
    Reopen,
}

fn bytes() -> impl Strategy<Value = Bytes> {
    // Few different ones, so that they meet again; with prefixes of each other and zeroes at the end.
    prop_oneof![
        prop::collection::vec(prop_oneof![Just(0), Just(b'a'), Just(255)], 0..4),
        (0u16..200).prop_map(|n| n.to_be_bytes().to_vec()),
        (0u8..20).prop_map(|n| [b"the same eight bytes ", &[n][..]].concat()),
    ]
}

fn value() -> impl Strategy<Value = Bytes> {
    (any::<u8>(), prop_oneof![9 => 0..80usize, 1 => 0..9000usize]).prop_map(|(byte, len)| vec![byte; len])
}

fn bound() -> impl Strategy<Value = Bound<Bytes>> {
    prop_oneof![Just(Bound::Unbounded), bytes().prop_map(Bound::Included), bytes().prop_map(Bound::Excluded)]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        30 => (bytes(), value()).prop_map(|(k, v)| Op::Insert(k, v)),
        15 => bytes().prop_map(Op::Remove),
        10 => bytes().prop_map(Op::Get),
        5 => (bound(), bound(), prop::collection::vec(any::<bool>(), 0..50)).prop_map(|(a, b, ends)| Op::Range(a, b, ends)),
        20 => value().prop_map(Op::Push),
        18 => Just(Op::Pop),
        10 => any::<(u8, u8)>().prop_map(|(i, v)| Op::Set(i, v)),
        1 => Just(Op::Clear),
        1 => Just(Op::Reopen),
    ];
    prop::collection::vec(op, 1..600)
}

struct Opened {
    pool: Pool,
    hash: HashMap,
    ordered: OrderedMap,
    vector: Vector<u64>,
    queue: Queue,
}

impl Opened {
    fn new(dir: &TempDir) -> Self {
        let options =
            Options { heap_len: 32 << 20, log_len: Some(8 << 20), interval: Duration::from_millis(3), ..Options::default() };
        let pool = Pool::open_or_create(&dir.path().join("pool"), &options).expect("open");
        Self {
            hash: HashMap::open(&pool, "hash", &HashMapOptions::default()).expect("open"),
            ordered: OrderedMap::open(&pool, "ordered").expect("open"),
            vector: Vector::open(&pool, "vector").expect("open"),
            queue: Queue::open(&pool, "queue").expect("open"),
            pool,
        }
    }
}

#[derive(Default)]
struct Model {
    map: BTreeMap<Bytes, Bytes>,
    vector: Vec<u64>,
    queue: VecDeque<Bytes>,
}

impl Model {
    fn agrees(&self, with: &Opened) {
        let items = || self.map.clone().into_iter();
        let mut hashed: Vec<_> = with.hash.iter().collect();
        hashed.sort();
        assert!(hashed.into_iter().eq(items()));
        assert!(with.ordered.iter().eq(items()));
        assert!(with.ordered.iter().rev().eq(items().rev()));
        assert_eq!(with.ordered.first(), items().next());
        assert_eq!(with.ordered.last(), items().next_back());
        assert_eq!(with.vector.iter().collect::<Vec<_>>(), self.vector);
        let lens = [with.hash.len(), with.ordered.len(), with.hash.check(), with.ordered.check()];
        assert_eq!(lens.map(|len| len.expect("len") as usize), [self.map.len(); 4]);
        assert_eq!(with.vector.check().expect("sound") as usize, self.vector.len());
        assert_eq!(with.queue.check().expect("sound") as usize, self.queue.len());
        assert_eq!(with.queue.peek_with(<[u8]>::to_vec).expect("peek").as_ref(), self.queue.front());
    }
}

fn run(ops: Vec<Op>) {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let (mut opened, mut model) = (Opened::new(&dir), Model::default());
    let mut thread = opened.pool.register().expect("register");
    for op in ops {
        let Opened { hash, ordered, vector, queue, .. } = &opened;
        match op {
            Op::Insert(k, v) => {
                let new = !model.map.contains_key(&k);
                assert_eq!(hash.insert(&mut thread, &k, &v).expect("insert"), new);
                assert_eq!(ordered.insert(&mut thread, &k, &v).expect("insert"), new);
                model.map.insert(k, v);
            }
            Op::Remove(k) => {
                let gone = model.map.remove(&k);
                assert_eq!(hash.take(&mut thread, &k).expect("take"), gone);
                assert_eq!(ordered.take(&mut thread, &k).expect("take"), gone);
            }
            Op::Get(k) => {
                assert_eq!(hash.get(&k).expect("get").as_ref(), model.map.get(&k));
                assert_eq!(ordered.get(&k).expect("get").as_ref(), model.map.get(&k));
                assert_eq!(hash.contains(&k).expect("get"), model.map.contains_key(&k));
            }
            Op::Range(from, to, ends) => range(ordered, &model.map, (from, to), &ends),
            Op::Push(v) => {
                queue.push(&mut thread, &v).expect("push");
                assert_eq!(vector.push(&mut thread, &(v.len() as u64)).expect("push"), model.vector.len() as u64);
                model.vector.push(v.len() as u64);
                model.queue.push_back(v);
            }
            Op::Pop => {
                assert_eq!(queue.pop(&mut thread).expect("pop"), model.queue.pop_front());
                assert_eq!(vector.pop(&mut thread).expect("pop"), model.vector.pop());
            }
            Op::Set(i, v) => {
                let there = model.vector.get_mut(i as usize).map(|at| *at = u64::from(v)).is_some();
                assert_eq!(vector.set(&mut thread, i.into(), &v.into()).expect("set"), there);
                assert_eq!(vector.get(i.into()).expect("get"), model.vector.get(i as usize).copied());
            }
            Op::Clear => {
                hash.clear(&mut thread).expect("clear");
                ordered.clear(&mut thread).expect("clear");
                vector.clear(&mut thread).expect("clear");
                queue.clear(&mut thread).expect("clear");
                model = Model::default();
            }
            Op::Reopen => {
                model.agrees(&opened);
                drop(thread);
                drop(opened);
                opened = Opened::new(&dir);
                thread = opened.pool.register().expect("register");
                model.agrees(&opened);
            }
        }
    }
    model.agrees(&opened);
}

/// Takes from both ends in the order given, as from a `BTreeMap`.
fn range(map: &OrderedMap, model: &BTreeMap<Bytes, Bytes>, (from, to): (Bound<Bytes>, Bound<Bytes>), ends: &[bool]) {
    // A BTreeMap panics where the range is not one; ours is empty.
    let is_range = match (&from, &to) {
        (Bound::Excluded(a), Bound::Excluded(b)) => a < b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a <= b,
        _ => true,
    };
    let mut found = map.range((from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice)));
    if !is_range {
        assert_eq!(found.next(), None);
        return;
    }
    let mut expected = model.range((from, to)).map(|(k, v)| (k.clone(), v.clone()));
    for at_front in ends {
        if *at_front {
            assert_eq!(found.next(), expected.next());
        } else {
            assert_eq!(found.next_back(), expected.next_back());
        }
    }
    assert!(found.eq(expected));
}

proptest! {
    #![proptest_config(Config { cases: 24, failure_persistence: None, ..Config::default() })]

    #[test]
    fn containers_do_what_the_standard_ones_do(ops in ops()) {
        run(ops);
    }
}

/// Enough entries for three levels of the tree, in several orders, and all removed again.
#[test]
fn deep_trees_grow_and_shrink() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let opened = Opened::new(&dir);
    let mut thread = opened.pool.register().expect("register");
    let before = opened.pool.stats().heap_used;
    let n = 20_000u64;
    let scrambled = |i: u64| (i * 7919) % n;
    let orders: [&dyn Fn(u64) -> u64; 3] = [&|i| i, &|i| n - 1 - i, &scrambled];
    for insert in orders {
        for remove in orders {
            for i in 0..n {
                assert!(opened.ordered.insert(&mut thread, &insert(i).to_be_bytes(), b"").expect("insert"));
            }
            assert_eq!(opened.ordered.check().expect("sound"), n);
            assert!(opened.ordered.iter().map(|(k, _)| k).eq((0..n).map(|i| i.to_be_bytes().to_vec())));
            for i in 0..n {
                assert!(opened.ordered.remove(&mut thread, &remove(i).to_be_bytes()).expect("remove"));
                if i % 5000 == 0 {
                    opened.ordered.check().expect("sound");
                }
            }
            assert_eq!(opened.ordered.check().expect("sound"), 0);
        }
    }
    opened.ordered.clear(&mut thread).expect("clear");
    drop(thread);
    opened.pool.sync().expect("sync");
    let after = opened.pool.stats().heap_used;
    assert!(after < before + (1 << 16), "blocks leak: {before} bytes used before, {after} after");
}

/// A hash map that outgrows its first size many times keeps everything, also across a reopening in the middle.
#[test]
fn hash_maps_grow() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let n = 60_000u64;
    for half in 0..2 {
        let opened = Opened::new(&dir);
        let mut thread = opened.pool.register().expect("register");
        for i in (half * n / 2)..((half + 1) * n / 2) {
            assert!(opened.hash.insert(&mut thread, &i.to_le_bytes(), &(i * i).to_le_bytes()).expect("insert"));
        }
        assert_eq!(opened.hash.check().expect("sound"), (half + 1) * n / 2);
        assert_eq!(opened.hash.len().expect("len"), (half + 1) * n / 2);
    }
    let opened = Opened::new(&dir);
    for i in 0..n {
        assert_eq!(opened.hash.get(&i.to_le_bytes()).expect("get").expect("there"), (i * i).to_le_bytes());
    }
}
