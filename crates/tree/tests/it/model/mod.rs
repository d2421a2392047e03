//! What the tests of the trees share: the ways to run transactions, pools, keys, a model.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_tree::{Direction, Key, OrderedMap, Session};
use towa_tx::{Commit, Options, Pool, TmChoice, hardware_transactions_commit};

/// Every way of running transactions that this machine has.
pub fn ways() -> Vec<TmChoice> {
    if !hardware_transactions_commit() {
        eprintln!("SKIPPED: rtm (this machine commits no hardware transactions); tried: stm, lock");
        return vec![TmChoice::Stm, TmChoice::Lock];
    }
    vec![TmChoice::Rtm, TmChoice::Stm, TmChoice::Lock]
}

pub fn options(tm: TmChoice) -> Options {
    // Pools of parallel tests live in one process, and are opened again where they were.
    static NEXT: AtomicUsize = AtomicUsize::new(0x4100_0000_0000);
    let base = Some(NEXT.fetch_add(1 << 30, Relaxed));
    Options {
        base,
        heap_len: 64 << 20,
        lanes: 8,
        lane_len: 256 << 10,
        tm,
        medium: Some(towa_media::Kind::Ram),
        ..Options::default()
    }
}

/// Seed of random tests: `TOWA_SEED`, or another each time; printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let seed = std::env::var("TOWA_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| SmallRng::from_os_rng().random());
    eprintln!("TOWA_SEED={seed}");
    seed
}

/// Keys of a kind, made out of numbers in an order that is not theirs.
pub trait Make: Key {
    fn make(number: u64) -> Self::Owned;
}

impl Make for u64 {
    fn make(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }
}

impl Make for [u8] {
    fn make(number: u64) -> Vec<u8> {
        let mut key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_string().into_bytes();
        key.truncate(1 + number as usize % 20);
        key.extend(std::iter::repeat_n(b'x', if number.is_multiple_of(13) { 700 } else { number as usize % 9 }));
        key.extend(number.to_le_bytes().iter().take_while(|b| **b != 0));
        key
    }
}

/// What a map should hold.
pub type Model<K> = BTreeMap<<K as Key>::Owned, u64>;

pub fn everything<K: Key + ?Sized>(session: &mut dyn Session<K>, direction: Direction) -> Vec<(K::Owned, u64)> {
    let mut found = Vec::new();
    session
        .scan((Bound::Unbounded, Bound::Unbounded), direction, &mut |key, value| {
            let mut owned = K::Owned::default();
            key.copy_to(&mut owned);
            found.push((owned, value));
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

/// The map is what the model is, whichever way one looks.
pub fn same<K: Key + ?Sized>(map: &dyn OrderedMap<K>, model: &Model<K>, what: &str) {
    map.check().unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(map.count().unwrap(), model.len() as u64, "{what}");
    let mut session = map.session().unwrap();
    let wanted: Vec<_> = model.iter().map(|(k, v)| (k.clone(), *v)).collect();
    assert_eq!(everything(&mut *session, Direction::Forward), wanted, "{what}: forward");
    let mut backward = everything(&mut *session, Direction::Backward);
    backward.reverse();
    assert_eq!(backward, wanted, "{what}: backward");
}

/// `ops` random operations on both.
pub fn play<K: Make + ?Sized>(map: &dyn OrderedMap<K>, model: &mut Model<K>, rng: &mut SmallRng, keys: u64, ops: usize) {
    let mut session = map.session().unwrap();
    for _ in 0..ops / 1000 {
        scan_some(&mut *session, model, rng, keys);
    }
    drop(session);
    play_keys(map, model, rng, &|n| n, keys, ops);
}

/// The same on the keys that `number` names, which others leave alone.
pub fn play_keys<K: Make + ?Sized>(
    map: &dyn OrderedMap<K>,
    model: &mut Model<K>,
    rng: &mut SmallRng,
    number: &dyn Fn(u64) -> u64,
    keys: u64,
    ops: usize,
) {
    use std::borrow::Borrow;
    let mut session = map.session().unwrap();
    // Phases of growing and of shrinking, so that it splits and merges.
    let grow = rng.random_range(1..8);
    for _ in 0..ops {
        let (key, value) = (K::make(number(rng.random_range(0..keys))), rng.random());
        let k: &K = key.borrow();
        match rng.random_range(0..12) {
            0..5 if rng.random_range(0..8) < grow => match rng.random() {
                true => {
                    let added = session.insert(k, value).unwrap();
                    assert_eq!(added, !model.contains_key(k));
                    model.entry(key.clone()).or_insert(value);
                }
                false => assert_eq!(session.upsert(k, value).unwrap(), model.insert(key.clone(), value)),
            },
            0..5 => assert_eq!(session.remove(k).unwrap(), model.remove(k)),
            _ => assert_eq!(session.get(k).unwrap(), model.get(k).copied()),
        }
    }
}

fn bound<T>(rng: &mut SmallRng, key: T) -> Bound<T> {
    match rng.random_range(0..3) {
        0 => Bound::Included(key),
        1 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

/// A scan between random bounds, broken off somewhere.
fn scan_some<K: Make + ?Sized>(session: &mut dyn Session<K>, model: &Model<K>, rng: &mut SmallRng, keys: u64) {
    use std::borrow::Borrow;
    let (mut a, mut b) = (K::make(rng.random_range(0..keys)), K::make(rng.random_range(0..keys)));
    if a > b {
        std::mem::swap(&mut a, &mut b);
    }
    let (from, to) = (bound(rng, a.clone()), bound(rng, b.clone()));
    let limit = rng.random_range(1..200);
    let inside = |key: &K::Owned| {
        (match &from {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        }) && match &to {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        }
    };
    let direction = if rng.random() { Direction::Forward } else { Direction::Backward };
    let mut wanted: Vec<_> = model.iter().filter(|(k, _)| inside(k)).map(|(k, v)| (k.clone(), *v)).collect();
    if direction == Direction::Backward {
        wanted.reverse();
    }
    wanted.truncate(limit);
    let mut found = Vec::new();
    let bounds = (from.as_ref().map(|k| k.borrow()), to.as_ref().map(|k| k.borrow()));
    session
        .scan(bounds, direction, &mut |key, value| {
            let mut owned = K::Owned::default();
            key.copy_to(&mut owned);
            found.push((owned, value));
            if found.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(found, wanted, "{from:?} {to:?} {direction:?}");
}

/// Opens the pool in `dir`, or creates it.
pub fn pool(dir: &Path, options: &Options) -> Pool {
    Pool::open_or_create(dir, options).unwrap()
}

/// Ends as a crash would, or properly.
pub fn end(pool: Pool, crash: bool) {
    match crash {
        true => {
            if pool.commit_mode() == Commit::Buffered {
                pool.sync().unwrap();
            }
            pool.abandon();
        }
        false => pool.close().unwrap(),
    }
}

pub fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}
