//! Misuse and exhaustion: every refusal says what is wrong, and leaves the container as it was.

use std::panic::{AssertUnwindSafe, catch_unwind};
use towa_containers::{Change, Error, HashMap, HashMapOptions, OrderedMap, Queue, TypedHashMap, TypedOrderedMap, Vector};
use towa_epoch::{Options, Pool, Thread};

fn volatile(heap_len: u64) -> (Pool, Thread) {
    let pool = Pool::volatile(&Options { heap_len, ..Options::default() }).expect("open");
    let thread = pool.register().expect("register");
    (pool, thread)
}

fn hash(pool: &Pool, name: &str) -> Result<HashMap, Error> {
    HashMap::open(pool, name, &HashMapOptions::default())
}

fn is_misuse<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Epoch(towa_epoch::Error::Usage(_))))
}

#[test]
fn a_root_of_another_kind_is_refused() {
    let (pool, mut thread) = volatile(16 << 20);
    let options = HashMapOptions::default();
    TypedHashMap::<u64, u32>::open(&pool, "typed", &options).expect("open");
    let error = TypedHashMap::<u64, u64>::open(&pool, "typed", &options).expect_err("values of another size");
    let text = error.to_string();
    assert!(text.contains("8-byte keys and 8-byte values") && text.contains("8-byte keys and 4-byte values"), "{text}");
    assert!(matches!(hash(&pool, "typed"), Err(Error::WrongKind { .. })));
    assert!(matches!(OrderedMap::open(&pool, "typed"), Err(Error::WrongKind { .. })));
    TypedOrderedMap::<i32, u32>::open(&pool, "ordered").expect("open");
    assert!(matches!(TypedOrderedMap::<i64, u32>::open(&pool, "ordered"), Err(Error::WrongKind { .. })));
    Vector::<u32>::open(&pool, "vector").expect("open");
    assert!(matches!(Vector::<u64>::open(&pool, "vector"), Err(Error::WrongKind { .. })));
    // While a handle lives, too, and between containers and typed roots.
    let vector = Vector::<u32>::open(&pool, "vector").expect("open");
    assert!(Queue::open(&pool, "vector").is_err());
    assert!(pool.typed_root::<u64>("vector", &mut thread, |_| Ok(0)).is_err());
    assert!(vector.is_empty());
    assert!(hash(&pool, &"n".repeat(41)).is_err_and(|error| error.to_string().contains("1 to 40")));
}

#[test]
fn a_thread_of_another_pool_is_refused() {
    let (pool, _) = volatile(16 << 20);
    let (_other, mut stranger) = volatile(16 << 20);
    assert!(is_misuse(hash(&pool, "h").expect("open").insert(&mut stranger, b"k", b"v")));
    assert!(is_misuse(OrderedMap::open(&pool, "o").expect("open").insert(&mut stranger, b"k", b"v")));
    assert!(is_misuse(Queue::open(&pool, "q").expect("open").push(&mut stranger, b"v")));
    assert!(is_misuse(Vector::<u8>::open(&pool, "v").expect("open").push(&mut stranger, &1)));
}

#[test]
fn closures_cannot_start_what_would_deadlock() {
    let (pool, mut thread) = volatile(16 << 20);
    let (map, ordered) = (hash(&pool, "h").expect("open"), OrderedMap::open(&pool, "o").expect("open"));
    let (queue, vector) = (Queue::open(&pool, "q").expect("open"), Vector::<u8>::open(&pool, "v").expect("open"));
    let mut second = pool.register().expect("register");
    map.insert(&mut thread, b"k", b"v").expect("insert");
    let mut try_all = || {
        assert!(is_misuse(map.get(b"k")) && is_misuse(map.len()) && is_misuse(map.insert(&mut second, b"k", b"w")));
        assert!(is_misuse(ordered.get(b"k")) && is_misuse(ordered.insert(&mut second, b"k", b"w")));
        assert!(is_misuse(queue.push(&mut second, b"w")) && is_misuse(vector.get(0)) && is_misuse(vector.push(&mut second, &1)));
        assert!(map.iter().next().is_none() && ordered.iter().next().is_none() && is_misuse(hash(&pool, "new")));
    };
    map.update(&mut thread, b"k", |_| try_all()).expect("update");
    map.transact(&mut thread, &[b"k"], |_| {
        let _: () = try_all();
        Ok::<_, Error>(())
    })
    .expect("transact");
    ordered
        .transact(&mut thread, |_| {
            let _: () = try_all();
            Ok::<_, Error>(())
        })
        .expect("transact");
    map.modify(&mut thread, b"k", |_| {
        try_all();
        Change::Keep
    })
    .expect("modify");
    let root = pool.typed_root::<u64>("n", &mut thread, |_| Ok(0)).expect("root");
    root.write(&mut thread, |_, _| try_all()).expect("write");
    // Reads nest, even of the same key; changes inside a read are refused.
    let nested = map.get_with(b"k", |outer| (outer.to_vec(), map.get(b"k"), map.insert(&mut thread, b"k", b"w")));
    let (outer, inner, write) = nested.expect("get").expect("there");
    assert_eq!(Some(outer), inner.expect("get"));
    assert!(is_misuse(write));
}

#[test]
fn transactions_touch_named_keys_only() {
    let (pool, mut thread) = volatile(16 << 20);
    let map = hash(&pool, "h").expect("open");
    let error = map.transact(&mut thread, &[b"a"], |view| {
        view.insert(b"a", b"1")?;
        view.insert(b"some other key", b"2")
    });
    assert!(matches!(error, Err(Error::KeyNotLocked(key)) if key == "some other key"));
    assert!(map.is_empty().expect("len"), "the first insertion is undone");
}

#[test]
fn panics_in_closures_change_nothing() {
    let (pool, mut thread) = volatile(16 << 20);
    let map = hash(&pool, "h").expect("open");
    let ordered = OrderedMap::open(&pool, "o").expect("open");
    let vector = Vector::<u64>::open(&pool, "v").expect("open");
    map.insert(&mut thread, b"k", b"value").expect("insert");
    ordered.insert(&mut thread, b"k", b"value").expect("insert");
    vector.push(&mut thread, &7).expect("push");
    let mut panics = |f: &mut dyn FnMut(&mut Thread)| assert!(catch_unwind(AssertUnwindSafe(|| f(&mut thread))).is_err());
    let spoil = |value: &mut [u8]| {
        value.fill(0);
        panic!("on purpose")
    };
    panics(&mut |thread| drop(map.update(thread, b"k", spoil)));
    panics(&mut |thread| drop(ordered.update(thread, b"k", spoil)));
    panics(&mut |thread| drop(map.modify(thread, b"k", |_| panic!("on purpose"))));
    panics(&mut |thread| drop(vector.update(thread, 0, |_| panic!("on purpose"))));
    panics(&mut |thread| {
        drop(map.transact(thread, &[b"k"], |view| -> Result<(), Error> {
            view.remove(b"k")?;
            panic!("on purpose")
        }))
    });
    panics(&mut |thread| {
        drop(ordered.transact(thread, |view| -> Result<(), Error> {
            (0..200u8).try_for_each(|n| view.insert(&[n], &[n]).map(drop))?;
            panic!("on purpose")
        }))
    });
    assert_eq!(map.get(b"k").expect("get").expect("there"), b"value");
    assert_eq!(ordered.get(b"k").expect("get").expect("there"), b"value");
    assert_eq!((map.check().expect("sound"), ordered.check().expect("sound")), (1, 1));
    assert_eq!(vector.get(0).expect("get"), Some(7));
    assert!(!map.insert(&mut thread, b"k", b"new").expect("the pool is good"));
}

/// Fills a small heap to the brim, again and again: the operation that does not fit fails and changes nothing, and what is
/// removed makes room for as much again - so nothing leaks, on the failing paths neither.
#[test]
fn a_full_heap_refuses_and_recovers() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let options = Options { heap_len: 8 << 20, log_len: Some(8 << 20), ..Options::default() };
    let pool = Pool::create(&dir.path().join("pool"), &options).expect("create");
    let mut thread = pool.register().expect("register");
    let (map, ordered) = (hash(&pool, "h").expect("open"), OrderedMap::open(&pool, "o").expect("open"));
    let (queue, vector) = (Queue::open(&pool, "q").expect("open"), Vector::<[u64; 4]>::open(&pool, "v").expect("open"));
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let value = [1; 900];
        let mut full = [false; 4];
        let mut n = 0u64;
        while full != [true; 4] {
            n += 1;
            let results = [
                map.insert(&mut thread, &n.to_le_bytes(), &value).map(drop),
                ordered.insert(&mut thread, &n.to_le_bytes(), &value).map(drop),
                queue.push(&mut thread, &value),
                vector.push(&mut thread, &[n; 4]).map(drop),
            ];
            for (full, result) in full.iter_mut().zip(results) {
                match result {
                    Ok(()) => {}
                    Err(Error::Epoch(towa_epoch::Error::OutOfSpace { .. })) => *full = true,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let found = [map.check(), ordered.check(), queue.check(), vector.check()].map(|found| found.expect("sound"));
        assert_eq!(map.len().expect("len"), found[0]);
        sizes.push(found.iter().sum::<u64>());
        map.clear(&mut thread).expect("clear");
        ordered.clear(&mut thread).expect("clear");
        queue.clear(&mut thread).expect("clear");
        vector.clear(&mut thread).expect("clear");
        pool.sync().expect("sync");
    }
    assert!(sizes[0] > 1000 && sizes[2] * 10 > sizes[0] * 9, "ever less fits: {sizes:?}");
}

#[test]
fn a_value_larger_than_a_transaction_may_be_is_refused() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let options = Options { heap_len: 32 << 20, log_len: Some(4 << 20), ..Options::default() };
    let pool = Pool::create(&dir.path().join("pool"), &options).expect("create");
    let mut thread = pool.register().expect("register");
    let map = hash(&pool, "h").expect("open");
    // More than the usual share of the log, less than the log: reserved.
    map.insert(&mut thread, b"large", &vec![1; 500 << 10]).expect("insert");
    map.update(&mut thread, b"large", |value| value.fill(2)).expect("update").expect("there");
    map.transact_reserving(&mut thread, 600 << 10, &[b"large"], |view| view.insert(b"large", &vec![3; 600 << 10]))
        .expect("transact");
    assert_eq!(map.get(b"large").expect("get").expect("there"), vec![3; 600 << 10]);
    let error = map.insert(&mut thread, b"too large", &vec![1; 8 << 20]).expect_err("more than the log");
    assert!(matches!(error, Error::Epoch(towa_epoch::Error::TooLarge { .. })), "{error}");
    assert_eq!(map.check().expect("sound"), 1);
    pool.sync().expect("the pool is good");
}
