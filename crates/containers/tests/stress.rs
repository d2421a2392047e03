//! Threads on shared containers while epochs change every millisecond; then reopened, and compared with what must be there.
//!
//! Each thread owns some keys, so that it knows what they must hold, and shares others, whose sum must not change.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use towa_containers::{Error, HashMap, HashMapOptions, OrderedMap, Queue, TypedHashMap, Vector};
use towa_epoch::{Options, Pool, Thread};

const THREADS: u64 = 4;
const TIME: Duration = Duration::from_millis(1500);
/// Turns of all threads that there shall be, and most time for them, should the machine be busy with other things.
const TURNS: u64 = 20_000;
const TIME_MAX: Duration = Duration::from_secs(60);
const ACCOUNTS: u64 = 64;
const BALANCE: u64 = 1000;

fn open(dir: &Path) -> Pool {
    let options =
        Options { heap_len: 256 << 20, log_len: Some(32 << 20), interval: Duration::from_millis(1), ..Options::default() };
    Pool::open_or_create(&dir.join("pool"), &options).expect("open")
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

/// Runs `work` on each thread with its number, a registration, a generator and a clock that is asked at each turn, and gives what each returns.
fn run<R: Send>(pool: &Pool, work: impl Fn(u64, &mut Thread, &mut SmallRng, &dyn Fn() -> bool) -> R + Sync) -> Vec<R> {
    let (began, turns) = (Instant::now(), AtomicU64::new(0));
    let goes_on = || {
        let enough = turns.fetch_add(1, Ordering::Relaxed) > TURNS;
        began.elapsed() < if enough { TIME } else { TIME_MAX }
    };
    let one = |t: u64| {
        let mut thread = pool.register().expect("register");
        work(t, &mut thread, &mut SmallRng::seed_from_u64(t), &goes_on)
    };
    let one = &one;
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || one(t))).collect();
        handles.into_iter().map(|handle| handle.join().expect("a worker")).collect()
    })
}

type Own = BTreeMap<Vec<u8>, Vec<u8>>;

fn change(rng: &mut SmallRng, t: u64, own: &mut Own) -> (Vec<u8>, Option<Vec<u8>>) {
    // Interleaved with the other threads' keys, so that they share leaves and bucket lines.
    let key = (rng.random_range(0..3000) * THREADS + t).to_be_bytes().to_vec();
    let value = rng.random_bool(0.7).then(|| vec![rng.random(); rng.random_range(0..400)]);
    match &value {
        Some(value) => own.insert(key.clone(), value.clone()),
        None => own.remove(&key),
    };
    (key, value)
}

#[test]
fn hash_maps_keep_what_each_thread_wrote() {
    let dir = dir();
    let owned: Own = {
        let pool = open(dir.path());
        let map = HashMap::open(&pool, "map", &HashMapOptions::default()).expect("open");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let walker = scope.spawn(|| {
                let mut met = 0;
                while !stop.load(Ordering::Relaxed) || met == 0 {
                    map.for_each(|key, _| assert_eq!(key.len(), 8)).expect("walk");
                    met += map.iter().count();
                    map.check().expect("sound");
                }
                met
            });
            let owned = run(&pool, |t, thread, rng, goes_on| {
                let mut own = Own::new();
                while goes_on() {
                    let (key, value) = change(rng, t, &mut own);
                    match value {
                        Some(value) => _ = map.insert(thread, &key, &value).expect("insert"),
                        None => _ = map.remove(thread, &key).expect("remove"),
                    }
                    assert_eq!(map.get(&key).expect("get").as_ref(), own.get(&key));
                }
                own
            });
            stop.store(true, Ordering::Relaxed);
            assert!(walker.join().expect("the walker") > 0);
            owned.into_iter().flatten().collect()
        })
    };
    let map = HashMap::open(&open(dir.path()), "map", &HashMapOptions::default()).expect("open");
    assert_eq!(map.check().expect("sound"), owned.len() as u64);
    assert_eq!(map.iter().collect::<Own>(), owned);
}

#[test]
fn transfers_keep_the_sum() {
    let dir = dir();
    let total = {
        let pool = open(dir.path());
        let map = TypedHashMap::<u64, u64>::open(&pool, "accounts", &HashMapOptions::default()).expect("open");
        let bytes = HashMap::open(&pool, "bytes", &HashMapOptions::default()).expect("open");
        let mut thread = pool.register().expect("register");
        for account in 0..ACCOUNTS {
            map.insert(&mut thread, &account, &BALANCE).expect("insert");
            bytes.insert(&mut thread, &account.to_le_bytes(), &BALANCE.to_le_bytes()).expect("insert");
        }
        let transfers: u64 = run(&pool, |_, thread, rng, goes_on| {
            let mut transfers = 0;
            while goes_on() {
                let pair = [rng.random_range(0..ACCOUNTS).to_le_bytes(), rng.random_range(0..ACCOUNTS).to_le_bytes()];
                if pair[0] == pair[1] {
                    continue;
                }
                let done = bytes.transact(thread, &[&pair[0], &pair[1]], |view| {
                    let read = |key: &[u8; 8]| Ok::<u64, Error>(u64::from_le_bytes(view.get(key)?.unwrap().try_into().unwrap()));
                    let (from, to) = (read(&pair[0])?, read(&pair[1])?);
                    view.insert(&pair[0], &from.wrapping_sub(1).to_le_bytes())?;
                    if from == 0 {
                        return Err(Error::Full("no money: the first half is undone".into()));
                    }
                    view.insert(&pair[1], &(to + 1).to_le_bytes())?;
                    Ok(())
                });
                transfers += u64::from(done.is_ok());
                map.update(thread, &rng.random_range(0..ACCOUNTS), |n| *n += 1).expect("update");
            }
            transfers
        })
        .into_iter()
        .sum();
        assert!(transfers > 1000, "only {transfers} transfers");
        let mut total = 0;
        map.for_each(|_, n| total += n).expect("walk");
        total
    };
    let pool = open(dir.path());
    let bytes = HashMap::open(&pool, "bytes", &HashMapOptions::default()).expect("open");
    let sum: u64 = bytes.iter().map(|(_, v)| u64::from_le_bytes(v.try_into().expect("eight bytes"))).sum();
    assert_eq!(sum, ACCOUNTS * BALANCE);
    let map = TypedHashMap::<u64, u64>::open(&pool, "accounts", &HashMapOptions::default()).expect("open");
    let mut found = 0;
    map.for_each(|_, n| found += n).expect("walk");
    assert_eq!(found, total);
}

#[test]
fn ordered_maps_keep_what_each_thread_wrote() {
    let dir = dir();
    let owned: Own = {
        let pool = open(dir.path());
        let map = OrderedMap::open(&pool, "map").expect("open");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let scanner = scope.spawn(|| {
                let mut met = 0;
                while !stop.load(Ordering::Relaxed) || met == 0 {
                    let keys: Vec<_> = map.iter().map(|(key, _)| key).collect();
                    assert!(keys.is_sorted());
                    let back: Vec<_> = map.iter().rev().map(|(key, _)| key).collect();
                    assert!(back.iter().rev().is_sorted());
                    met += keys.len();
                }
                met
            });
            let owned = run(&pool, |t, thread, rng, goes_on| {
                let mut own = Own::new();
                while goes_on() {
                    let (key, value) = change(rng, t, &mut own);
                    match value {
                        Some(value) => _ = map.insert(thread, &key, &value).expect("insert"),
                        None => _ = map.remove(thread, &key).expect("remove"),
                    }
                    assert_eq!(map.get(&key).expect("get").as_ref(), own.get(&key));
                    if rng.random_bool(0.001) {
                        // Everything of this thread goes, so that leaves become sparse and merge.
                        own.keys().for_each(|key| assert!(map.remove(thread, key).expect("remove")));
                        own.clear();
                    }
                }
                own
            });
            stop.store(true, Ordering::Relaxed);
            assert!(scanner.join().expect("the scanner") > 0);
            map.check().expect("sound");
            owned.into_iter().flatten().collect()
        })
    };
    let map = OrderedMap::open(&open(dir.path()), "map").expect("open");
    assert_eq!(map.check().expect("sound"), owned.len() as u64);
    assert!(map.iter().eq(owned));
}

#[test]
fn queues_lose_and_repeat_nothing() {
    let dir = dir();
    let item = |t: u64, n: u64| [t.to_le_bytes(), n.to_le_bytes()].concat();
    let (pushed, mut taken) = {
        let pool = open(dir.path());
        let queue = Queue::open(&pool, "queue").expect("open");
        let results = run(&pool, |t, thread, rng, goes_on| {
            let (mut pushed, mut taken) = (0, Vec::new());
            while goes_on() {
                // Mostly empty, so that both ends meet at one node again and again.
                if t % 2 == 0 && queue.len() < 3 {
                    queue.push(thread, &item(t, pushed)).expect("push");
                    pushed += 1;
                } else if rng.random_bool(0.5) {
                    taken.extend(queue.pop(thread).expect("pop"));
                }
            }
            (pushed, taken)
        });
        queue.check().expect("sound");
        results.into_iter().unzip::<u64, Vec<_>, Vec<_>, Vec<_>>()
    };
    let pool = open(dir.path());
    let queue = Queue::open(&pool, "queue").expect("open");
    let mut thread = pool.register().expect("register");
    taken.push(std::iter::from_fn(|| queue.pop(&mut thread).expect("pop")).collect());
    for one in &taken {
        for t in 0..THREADS {
            let order = one.iter().filter(|i| i[..8] == t.to_le_bytes()).map(|i| u64::from_le_bytes(i[8..].try_into().unwrap()));
            assert!(order.is_sorted(), "a consumer met items of producer {t} out of order");
        }
    }
    let mut all: Vec<Vec<u8>> = taken.concat();
    all.sort();
    let mut expected: Vec<Vec<u8>> = (0..THREADS).flat_map(|t| (0..pushed[t as usize]).map(move |n| item(t, n))).collect();
    expected.sort();
    assert!(expected.len() > 1000, "only {} items", expected.len());
    assert!(all == expected, "{} items came of {}", all.len(), expected.len());
}

#[test]
fn vectors_hold_what_was_set() {
    let dir = dir();
    let expected = {
        let pool = open(dir.path());
        let vector = Vector::<[u64; 3]>::open(&pool, "vector").expect("open");
        let results = run(&pool, |t, thread, rng, goes_on| {
            let mut own = BTreeMap::new();
            while goes_on() {
                if rng.random_bool(0.3) && vector.len() < 20_000 {
                    let i = vector.push(thread, &[t, 0, 0]).expect("push");
                    own.insert(i, [t, 0, 0]);
                } else if let Some((i, value)) = own.range_mut(rng.random_range(0..20_000)..).next() {
                    *value = [t, rng.random(), rng.random()];
                    assert!(vector.set(thread, *i, value).expect("set"));
                    assert_eq!(vector.get(*i).expect("get"), Some(*value));
                }
            }
            own
        });
        results.into_iter().flatten().collect::<BTreeMap<_, _>>()
    };
    let vector = Vector::<[u64; 3]>::open(&open(dir.path()), "vector").expect("open");
    assert_eq!(vector.check().expect("sound"), expected.len() as u64);
    assert!((0..).zip(vector.iter()).eq(expected));
}

/// Threads that push and pop at the same end, and read what may be gone: never a value that nobody pushed.
#[test]
fn vectors_shrink_while_read() {
    let dir = dir();
    let pool = open(dir.path());
    let vector = Vector::<[u64; 3]>::open(&pool, "vector").expect("open");
    let counts = run(&pool, |t, thread, rng, goes_on| {
        let mut gained = 0i64;
        while goes_on() {
            match rng.random_range(0..4) {
                0 if vector.len() < 9000 => {
                    let n = rng.random();
                    vector.push(thread, &[t, n, !n]).expect("push");
                    gained += 1;
                }
                1 => gained -= i64::from(vector.pop(thread).expect("pop").is_some()),
                _ => {
                    if let Some([t, n, m]) = vector.get(rng.random_range(0..9000)).expect("get") {
                        assert!(t < THREADS && n == !m);
                    }
                }
            }
        }
        gained
    });
    assert_eq!(vector.check().expect("sound") as i64, counts.iter().sum::<i64>());
}
