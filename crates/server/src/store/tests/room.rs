//! Values of other sizes than those that fill the cache: what goes for them, and what must not.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;

use super::*;

pub(super) const LIMIT: u64 = 16 << 20;

/// A key that says its value's length.
pub(super) fn key_of(number: u32, len: usize) -> String {
    format!("{number}:{len}")
}

fn value_of(key: &str, len: usize) -> Vec<u8> {
    let mut value = key.as_bytes().repeat(len / key.len() + 1);
    value.truncate(len);
    value.extend_from_slice(b"\r\n");
    value
}

/// Stores as a connection does: again after a pause, and when the log has space.
pub(super) fn store_sized(store: &Store, worker: &mut Worker, number: u32, len: usize) -> std::result::Result<(), Failure> {
    until_answered(|| store_once(store, worker, number, len, None))
}

/// Carries a request out, turn by turn.
fn until_answered(mut turn: impl FnMut() -> std::result::Result<(), Failure>) -> std::result::Result<(), Failure> {
    loop {
        let result = turn();
        if result != Err(Failure::NoLogSpace) {
            return result;
        }
    }
}

/// One turn of a request that stores; `kept` is the hash of the key whose item it builds on.
pub(super) fn store_once(
    store: &Store,
    worker: &mut Worker,
    number: u32,
    len: usize,
    kept: Option<u64>,
) -> std::result::Result<(), Failure> {
    let key = key_of(number, len);
    let (hash, value) = (store.hash(key.as_bytes()), value_of(&key, len));
    let result = store.with_room(worker, item::HEAD_LEN + key.len() + value.len(), kept, |worker| {
        let stripe = store.lock(hash);
        let found = stripe.find(key.as_bytes());
        let cas = store.new_cas()?;
        let (key, value) = (key.as_bytes(), (&value[..], &[][..]));
        let content = Content { key, hash, value, flags: 0, expires: 0, bits: 0, cas, now: worker.now };
        let tx = stripe.begin(worker, content.size())?;
        match found {
            Some(found) => stripe.replace(&tx, found, &content)?,
            None => stripe.insert(&tx, &content)?,
        };
        tx.commit();
        Ok(())
    });
    worker.take_pause();
    if worker.take_wanted_log().is_some() {
        store.pool().checkpoint().unwrap();
        store.pool().apply_now().unwrap();
    }
    result
}

/// Looks at every item: how many there are of each length.
pub(super) fn verify_values(store: &Store) -> HashMap<usize, usize> {
    let mut found = HashMap::new();
    store.visit(1000, |item| {
        let key = std::str::from_utf8(item.key()).unwrap();
        let len = key.split_once(':').unwrap().1.parse().unwrap();
        assert!(item.data() == value_of(key, len), "the value of {key} is another's");
        *found.entry(len).or_default() += 1;
        true
    });
    found
}

/// Stores values of one length; checks that none is refused, and that what goes is about what comes.
pub(super) fn phase(store: &Store, worker: &mut Worker, numbers: std::ops::Range<u32>, len: usize) {
    let (before, count) = (store.bytes(), numbers.len() as u64);
    worker.now += 10;
    for number in numbers {
        store_sized(store, worker, number, len).unwrap_or_else(|why| panic!("value {number} of {len} bytes: {why:?}"));
    }
    let (after, stored) = (store.bytes(), count * len as u64);
    assert!(after <= LIMIT, "{after} bytes");
    let lost = (before + stored).saturating_sub(after);
    assert!(lost <= stored + stored / 4 + LIMIT / 8, "{lost} bytes are gone for {stored} of {len} each; {after} are left");
    assert!(verify_values(store)[&len] > 0);
}

/// Full of small values, then larger ones, up to a megabyte, then small ones again; a crash at any time, and all is
/// sound.
#[test]
fn values_of_all_sizes_take_each_others_place() {
    let dir = tempfile::tempdir().unwrap();
    let pool = durable(dir.path());
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    let mut copies = Vec::new();
    let sizes =
        [(100, 100_000), (10_000, 400), (200_000, 40), (1_000_000, 8), (100, 60_000), (3000, 3000), (1_000_000, 20), (100, 90_000)];
    let mut number = 0;
    for (len, count) in sizes {
        phase(&store, &mut worker, number..number + count, len);
        number += count;
        pool.checkpoint().unwrap();
        copies.push((copy_pool(dir.path()), verify_values(&store)));
    }
    let cleared = worker.counters.get(Counter::WindowsCleared);
    assert!(cleared > 20, "only {cleared} windows were cleared");
    assert_eq!(worker.counters.get(Counter::WindowsKept), 0);
    drop((store, worker));
    pool.close().unwrap();
    for (copy, values) in copies {
        let pool = durable(copy.path());
        let items: usize = values.values().sum();
        assert_eq!(super::super::check(&pool).unwrap().unwrap().items, items as u64);
        let store = Store::open(&pool, LIMIT, true, 0).unwrap();
        assert_eq!(verify_values(&store), values);
        let mut worker = self::worker(&pool);
        worker.now = 2000;
        for len in [50_000, 700_000, 100] {
            phase(&store, &mut worker, number..number + 30, len);
            number += 30;
        }
    }
}

/// A directory in memory that survives the process; elsewhere it is opened as such, too.
fn memory() -> tempfile::TempDir {
    let shm = std::path::Path::new("/dev/shm");
    tempfile::tempdir_in(if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() }).unwrap()
}

fn in_place(dir: &std::path::Path) -> Pool {
    let medium = Some(towa_media::Kind::Ram);
    let options = Options { heap_len: 32 << 20, manual: true, in_place: true, medium, ..Options::default() };
    Pool::open_or_create(dir, &options).unwrap()
}

/// A cache in place that evicted, and was killed before that was durable.
struct Killed {
    files: tempfile::TempDir,
    /// Items of the first length in the durable epoch, and how many of all were evicted since.
    before: usize,
    evicted: usize,
}

/// Full of values of one length, then of another, which take the place of the first.
fn fill_and_kill(len: usize, next: usize) -> Killed {
    let dir = memory();
    let pool = in_place(dir.path());
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    let first = (LIMIT * 3 / 2 / len as u64) as u32;
    (0..first).for_each(|number| store_sized(&store, &mut worker, number, len).unwrap());
    worker.now += 10;
    pool.checkpoint().unwrap();
    let (durable, before) = (pool.durable_epoch(), verify_values(&store)[&len]);
    let evicted = worker.counters.get(Counter::Evictions);
    let second = first + (LIMIT / 8 / next as u64) as u32;
    (first..second).for_each(|number| store_sized(&store, &mut worker, number, next).unwrap());
    let evicted = (worker.counters.get(Counter::Evictions) - evicted) as usize;
    assert_eq!(pool.durable_epoch(), durable, "a checkpoint came before the kill");
    let files = copy_pool_to(memory(), dir.path(), Some(towa_media::Kind::Ram));
    drop((store, worker));
    pool.close().unwrap();
    Killed { files, before, evicted }
}

/// By the class, by windows of larger and of smaller ones, and by large ones.
const LENGTHS: [(usize, usize); 7] =
    [(100, 100), (100, 5000), (3000, 100), (3000, 3000), (200_000, 200_000), (200_000, 100), (100, 500_000)];

/// What was evicted before a kill is whole or lost, never wrong; and new values take the room of the lost ones first.
#[test]
fn what_was_evicted_before_a_kill_is_whole_or_lost() {
    for (len, next) in LENGTHS {
        let case = format!("{len} bytes, then {next}");
        let Killed { files, before, evicted } = fill_and_kill(len, next);
        let pool = in_place(files.path());
        let report = super::super::check(&pool).unwrap().unwrap();
        assert_eq!(report.items, before as u64, "{case}");
        let store = Store::open(&pool, LIMIT, true, 0).unwrap();
        let whole = verify_values(&store)[&len];
        let lost = before - whole;
        assert!(lost > 0 && lost <= evicted, "{case}: {lost} of {before} are lost, {evicted} were evicted");
        assert_eq!(report.lost, lost as u64, "{case}");
        let mut worker = worker(&pool);
        worker.now += 20;
        // A window's lost items lie in few slabs, and victims are looked for in slabs at random: until one was found.
        for (number, stored) in (10_000_000..).zip(0..before) {
            if stored >= (lost / 2).max(1) && worker.counters.get(Counter::Reclaimed) > 0 {
                break;
            }
            store_sized(&store, &mut worker, number, len).unwrap();
        }
        let (reclaimed, more) = (worker.counters.get(Counter::Reclaimed), worker.counters.get(Counter::Evictions));
        assert!(reclaimed > 0, "{case}: none of {lost} lost items of {before} made room, {more} others did");
        let left = verify_values(&store)[&len];
        assert!(left + 2 >= whole, "{case}: {whole} whole ones, {lost} lost ones, and {left} after more were stored");
        // Their keys are stored anew, some of which a lost large item still has.
        for number in 0..(LIMIT / 4 / len as u64) as u32 {
            store_sized(&store, &mut worker, number, len).unwrap();
            let key = key_of(number, len);
            let stripe = store.lock(store.hash(key.as_bytes()));
            let found = stripe.find(key.as_bytes()).unwrap();
            assert!(!found.item.is_lost() && found.item.data() == value_of(&key, len), "{case}: {key}");
        }
        verify_values(&store);
        pool.checkpoint().unwrap();
        super::super::check(&pool).unwrap();
        drop((store, worker));
        pool.close().unwrap();
    }
}

/// Without a request, and in a store that does not evict.
#[test]
fn lost_items_are_removed_after_the_start() {
    for (len, next) in LENGTHS {
        let killed = fill_and_kill(len, next);
        let pool = in_place(killed.files.path());
        let store = Arc::new(Store::open(&pool, LIMIT, false, 0).unwrap());
        let whole = verify_values(&store)[&len] as u64;
        assert!(store.items() > whole);
        let mut upkeep = Upkeep::start(Arc::clone(&store), worker(&pool), Arc::new(Clock::default()), false).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        while store.items() > whole && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(store.items(), whole, "{len} bytes, then {next}");
        upkeep.stop();
        drop((store, upkeep));
        assert_eq!(super::super::check(&pool).unwrap().unwrap().items, whole);
        pool.close().unwrap();
    }
}

/// A head of zeros, as damage leaves it, has the CAS id of a lost item, and neither a block to be freed nor a hash that leads to it.
#[test]
fn the_crawl_leaves_damaged_items_alone() {
    let pool = pool();
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    (0..6000).for_each(|number| store_sized(&store, &mut worker, number, 100).unwrap());
    let hash_of = |number: u32| store.hash(key_of(number, 100).as_bytes());
    let first = (0..6000).find(|number| stripe_of(hash_of(*number)) == 0).unwrap();
    let other = (0..6000).find(|number| stripe_of(hash_of(*number)) != 0).unwrap();
    for number in [first, other] {
        let address = store.lock(hash_of(number)).find(key_of(number, 100).as_bytes()).unwrap().item.address();
        // SAFETY: the item's head, which no other thread looks at.
        unsafe { std::ptr::write_bytes(address as *mut u8, 0, item::HEAD_LEN) };
    }
    let items = store.items();
    for stripe in 0..STRIPES {
        assert!(store.crawl_stripe(&mut worker, stripe, 0, 1 << 20).unwrap().is_none());
    }
    pool.check().unwrap();
    assert_eq!(store.items(), items);
    assert!(super::super::check(&pool).is_err());
}

/// A kill undoes a flush, and what made room after it: the flushed items are live again, all of them.
#[test]
fn what_was_flushed_before_a_kill_is_whole() {
    let dir = memory();
    let pool = in_place(dir.path());
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    (0..3000).for_each(|number| store_sized(&store, &mut worker, number, 10_000).unwrap());
    pool.checkpoint().unwrap();
    let before = verify_values(&store);
    store.flush(&mut worker, None).unwrap();
    (3000..3100).for_each(|number| store_sized(&store, &mut worker, number, 10_000).unwrap());
    assert!(worker.counters.get(Counter::Reclaimed) > 0, "no flushed item made room");
    let left = copy_pool_to(memory(), dir.path(), Some(towa_media::Kind::Ram));
    drop((store, worker));
    pool.close().unwrap();
    let pool = in_place(left.path());
    assert_eq!(verify_values(&Store::open(&pool, LIMIT, true, 0).unwrap()), before);
    pool.close().unwrap();
}

/// A request that builds on an item finds it each time that it is carried out, even if no item was accessed longer ago.
#[test]
fn what_a_request_builds_on_is_not_evicted_for_it() {
    let pool = pool();
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    let mut number = 0;
    for (len, longer) in [(100, 100), (100, 900_000), (3000, 3000), (3000, 200_000), (100_000, 100_000), (600_000, 600_000)] {
        let kept = key_of(number, len);
        store_sized(&store, &mut worker, number, len).unwrap();
        worker.now += 100;
        let others = (2 * LIMIT / len as u64) as u32;
        // Twice as much as there is room for.
        let hash = store.hash(kept.as_bytes());
        for other in number + 1..number + 1 + others {
            until_answered(|| store_once(&store, &mut worker, other, len, Some(hash))).unwrap();
        }
        number += others + 1;
        let before = worker.counters.get(Counter::Evictions);
        for other in number..number + 60 {
            until_answered(|| store_once(&store, &mut worker, other, longer, Some(hash))).unwrap();
            assert!(store.lock(hash).find(kept.as_bytes()).is_some(), "{len}, {longer}: gone");
        }
        number += 60;
        assert!(worker.counters.get(Counter::Evictions) > before, "{len}, {longer}: nothing was evicted");
        worker.now += 100;
    }
}

/// The least recently accessed go, of whatever size.
#[test]
fn what_is_accessed_stays() {
    let pool = pool();
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    (0..60_000).for_each(|number| store_sized(&store, &mut worker, number, 100).unwrap());
    worker.now += 100;
    let touched = |number: u32| number >= 50_000;
    let get = |number: u32, now: u32| {
        let key = key_of(number, 100);
        let stripe = store.lock(store.hash(key.as_bytes()));
        stripe.find(key.as_bytes()).map(|found| found.item.touch_access(now, true)).is_some()
    };
    let there = (0..60_000).filter(|&number| touched(number) && get(number, worker.now)).count();
    // A third of the cache for values of 20 KB: what was not accessed makes room.
    (60_000..60_250).for_each(|number| store_sized(&store, &mut worker, number, 20_000).unwrap());
    let left = (0..60_000).filter(|&number| touched(number) && get(number, worker.now)).count();
    assert!(left * 100 > there * 90, "of {there} items that were accessed {left} are left");
}

/// Of what was accessed in the same second, values stored under one key again and again outlive those that were stored once, even later.
#[test]
fn what_is_stored_again_stays() {
    let pool = pool();
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    let uses = |number: u32| {
        let key = key_of(number, 100);
        let stripe = store.lock(store.hash(key.as_bytes()));
        stripe.find(key.as_bytes()).map(|found| (found.item.uses(), found.item.fetched()))
    };
    {
        // A value that does not fit into the block of the one before counts as one that does.
        store_sized(&store, &mut worker, 0, 100).unwrap();
        let (key, value) = (key_of(0, 100), [b' '; 1000]);
        let (hash, now) = (store.hash(key.as_bytes()), worker.now);
        let stripe = store.lock(hash);
        let content = Content { key: key.as_bytes(), hash, value: (&value, b"\r\n"), flags: 0, expires: 0, bits: 0, cas: 2, now };
        let tx = stripe.begin(&mut worker, content.size()).unwrap();
        stripe.replace(&tx, stripe.find(content.key).unwrap(), &content).unwrap();
        tx.commit();
    }
    for stored in 2..5 {
        (0..10_000).for_each(|number| store_sized(&store, &mut worker, number, 100).unwrap());
        assert_eq!((uses(0), uses(1)), (Some((stored, false)), Some((stored - 2, false))));
    }
    (10_000..70_000).for_each(|number| store_sized(&store, &mut worker, number, 100).unwrap());
    worker.now += 8;
    (70_000..100_000).for_each(|number| store_sized(&store, &mut worker, number, 100).unwrap());
    let left = |numbers: std::ops::Range<u32>| numbers.filter(|&number| uses(number).is_some()).count();
    let (again, once) = (left(0..10_000), left(10_000..20_000));
    assert!(again > 9_900 && once < 9_900, "of 10,000 that were stored again {again} are left, of as many others {once}");
}

/// Several threads store values of all sizes in a full cache.
#[test]
fn threads_make_room_beside_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { heap_len: 32 << 20, ..Options::default() };
    let pool = Pool::open_or_create(dir.path(), &options).unwrap();
    let store = Arc::new(Store::open(&pool, LIMIT, true, 0).unwrap());
    let mut upkeep = Upkeep::start(Arc::clone(&store), worker(&pool), Arc::new(Clock::default()), false).unwrap();
    // Full of small ones: the first of each other size clears a window.
    let mut first = worker(&pool);
    (1_000_000..1_095_000).for_each(|number| store_sized(&store, &mut first, number, 100).unwrap());
    assert!(first.counters.get(Counter::Evictions) > 0, "it is not full");
    let (next, cleared) = (AtomicU32::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, next, cleared, pool) = (&store, &next, &cleared, &pool);
            scope.spawn(move || {
                let mut worker = worker(pool);
                worker.random = 77 + thread;
                for _ in 0..4000 {
                    let len = match worker.random() % 1000 {
                        0..2 => 900_000,
                        2..10 => 150_000,
                        10..100 => 10_000,
                        100..300 => 2000,
                        _ => 100,
                    };
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number == 5000 {
                        // It takes all stripes, beside batches of evictions that take some.
                        let _ = store.flush(&mut worker, None);
                    }
                    store_sized(store, &mut worker, number, len).unwrap();
                }
                cleared.fetch_add(worker.counters.get(Counter::WindowsCleared), Ordering::Relaxed);
            });
        }
    });
    assert!(cleared.into_inner() > 0);
    upkeep.stop();
    // Flushed items that nothing has taken the place of yet are counted, and not seen.
    let (values, items) = (verify_values(&store), store.items());
    assert!(values.len() > 1 && values.values().sum::<usize>() as u64 <= items);
    drop((store, upkeep, first));
    pool.close().unwrap();
    let pool = Pool::open(dir.path(), &options).unwrap();
    assert_eq!(super::super::check(&pool).unwrap().unwrap().items, items);
}

/// Blocks of another program in the same pool look like anything; they are never taken for items, and stay.
#[test]
fn what_is_no_item_stays() {
    let pool = pool();
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    let mut theirs = Vec::new();
    for number in 0..60_000 {
        store_sized(&store, &mut worker, number, 100).unwrap();
        if number < 10_000 && number % 500 == 0 {
            let tx = worker.thread.begin().unwrap();
            let block = tx.alloc(160).unwrap();
            // Worse than any bytes: a copy of an item.
            let copied = store.lock(store.hash(key_of(number, 100).as_bytes()));
            let item = copied.find(key_of(number, 100).as_bytes()).unwrap().item;
            // SAFETY: both blocks are of this size at least, and theirs is ours.
            unsafe { block.as_ptr().copy_from_nonoverlapping(item.block().as_ptr(), 160) };
            // SAFETY: just written.
            theirs.push((block, unsafe { std::slice::from_raw_parts(block.as_ptr(), 160) }.to_vec()));
            tx.commit();
        }
    }
    worker.now += 10;
    for number in 60_000..60_060 {
        store_sized(&store, &mut worker, number, 400_000).unwrap();
    }
    assert!(worker.counters.get(Counter::WindowsCleared) > 10);
    for (block, bytes) in theirs {
        // SAFETY: the block is live, and no thread writes it.
        let now = unsafe { std::slice::from_raw_parts(block.as_ptr(), 160) };
        assert!(now == bytes, "the block at {block:p} was changed");
    }
    verify_values(&store);
    super::super::check(&pool).unwrap();
}

#[test]
fn without_eviction_a_full_cache_refuses_and_keeps_all() {
    let pool = pool();
    let store = Store::open(&pool, LIMIT, false, 0).unwrap();
    let mut worker = worker(&pool);
    let stored = (0..).take_while(|&number| store_sized(&store, &mut worker, number, 100).is_ok()).count();
    assert!(store.bytes() > LIMIT * 3 / 4, "{} bytes", store.bytes());
    for len in [100, 10_000, 1_000_000] {
        assert!(matches!(store_sized(&store, &mut worker, 9_999_999, len), Err(Failure::NoMemory)));
    }
    assert_eq!((store.items(), verify_values(&store)[&100]), (stored as u64, stored));
    assert_eq!(worker.counters.get(Counter::Evictions), 0);
}

#[test]
fn a_value_larger_than_the_limit_costs_nothing() {
    let pool = pool();
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    (0..60_000).for_each(|number| store_sized(&store, &mut worker, number, 100).unwrap());
    let items = store.items();
    assert!(matches!(store_sized(&store, &mut worker, 1, LIMIT as usize + 1), Err(Failure::NoMemory)));
    assert_eq!(store.items(), items);
}

/// A lower `-m` is kept soon, by giving up what is old.
#[test]
fn a_lower_limit_gives_chunks_back() {
    let pool = pool();
    let store = Arc::new(Store::open(&pool, LIMIT, true, 0).unwrap());
    let mut worker = worker(&pool);
    (0..80_000).for_each(|number| store_sized(&store, &mut worker, number, 100).unwrap());
    let mut upkeep = Upkeep::start(Arc::clone(&store), self::worker(&pool), Arc::new(Clock::default()), false).unwrap();
    store.set_limit(LIMIT / 2);
    let deadline = Instant::now() + Duration::from_secs(10);
    while pool.space().in_use > pool.space().bound {
        assert!(Instant::now() < deadline, "{:?}", pool.space());
        std::thread::sleep(Duration::from_millis(5));
    }
    upkeep.stop();
    assert!((LIMIT / 3..=LIMIT / 2).contains(&store.bytes()), "{} bytes", store.bytes());
    verify_values(&store);
}

/// Values of the size of the table's segments take each other's place as all others do.
#[test]
fn values_as_large_as_a_segment_of_the_table_cost_no_windows() {
    let dir = tempfile::tempdir().unwrap();
    let pool = durable(dir.path());
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    let mut number = 0;
    let mut store_some = |worker: &mut Worker, len, count| {
        for _ in 0..count {
            store_sized(&store, worker, number, len).unwrap();
            number += 1;
        }
    };
    store_some(&mut worker, table::SEGMENT_BLOCK - 200, 100);
    worker.now += 100;
    store_some(&mut worker, 40, 150_000);
    worker.now += 1;
    let before = worker.counters.get(Counter::WindowsCleared);
    store_some(&mut worker, table::SEGMENT_BLOCK - 200, 300);
    let cleared = worker.counters.get(Counter::WindowsCleared) - before;
    assert!(cleared < 60, "{cleared} windows for 300 values of a class that has old ones");
}

/// The chunks of a request that does not come back are given back.
#[test]
fn a_window_that_is_forgotten_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let pool = durable(dir.path());
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    for number in 0..120_000 {
        store_sized(&store, &mut worker, number, 100).unwrap();
    }
    for _ in 0..1000 {
        if worker.clearing.is_some() {
            break;
        }
        worker.now += 1;
        let _ = store.make_room(&mut worker, 900_000);
        worker.thread.release_cleared();
    }
    assert!(worker.clearing.is_some(), "no window took longer than a slice");
    std::thread::sleep(std::time::Duration::from_millis(150));
    store.tick(&mut worker).unwrap();
    assert!(worker.clearing.is_none());
}

/// Objects of another program in the pool are not counted as items.
#[test]
fn another_programs_objects_leave_the_items_their_room() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open_or_create(dir.path(), &Options { heap_len: 96 << 20, manual: true, ..Options::default() }).unwrap();
    let mut thread = pool.register().unwrap();
    for number in 0..24 {
        let tx = thread.begin_reserving(1 << 20).unwrap();
        let ptr = tx.alloc(1 << 20).unwrap();
        // SAFETY: a live block of that size, which no one reads.
        unsafe { tx.set_root(&format!("theirs{number}"), Some(Root { ptr, type_tag: 1, size: 1 << 20 })) }.unwrap();
        tx.commit();
        pool.checkpoint().unwrap();
        pool.apply_now().unwrap();
    }
    let store = Store::open(&pool, LIMIT, true, 0).unwrap();
    let mut worker = worker(&pool);
    for number in 0..120_000 {
        store_sized(&store, &mut worker, number, 100).unwrap();
    }
    assert!(store.bytes() <= LIMIT && store.bytes() > LIMIT / 4 * 3, "{} bytes", store.bytes());
    assert!(!store.shrink(&mut worker, 4).unwrap());

    // A lower limit refuses nothing: as much goes as is beyond it.
    store.set_limit(LIMIT / 2);
    store_sized(&store, &mut worker, 0, 200_000).unwrap();
    for number in 0..100 {
        store_sized(&store, &mut worker, number, 100).unwrap();
    }
    assert!(store.bytes() <= LIMIT / 2 && store.bytes() > LIMIT / 8 * 3, "{} bytes", store.bytes());
    store.set_limit(LIMIT / 4);
    while !matches!(store.shrink(&mut worker, 4), Ok(false)) {
        pool.checkpoint().unwrap();
        pool.apply_now().unwrap();
    }
    assert!(store.bytes() <= LIMIT / 4 && store.bytes() > LIMIT / 16 * 3, "{} bytes", store.bytes());
}
