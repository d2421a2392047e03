//! The store without a protocol around it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use towa_epoch::{Options, Root};

use super::item::Content;
use super::*;
use crate::clock::Clock;
use crate::counters::Counter;
use crate::error::Error;

mod large;
mod room;

fn pool() -> Pool {
    Pool::volatile(&Options { heap_len: 32 << 20, ..Options::default() }).unwrap()
}

fn durable(dir: &std::path::Path) -> Pool {
    Pool::open_or_create(dir, &Options { heap_len: 32 << 20, manual: true, ..Options::default() }).unwrap()
}

fn worker(pool: &Pool) -> Worker {
    let mut worker = Worker::new(pool, Arc::default()).unwrap();
    worker.now = 1000;
    worker
}

fn put(store: &Store, worker: &mut Worker, key: &[u8], expires: u32) -> u64 {
    let hash = store.hash(key);
    let stripe = store.lock(hash);
    let found = stripe.find(key);
    let cas = store.new_cas().unwrap();
    let content = Content { key, hash, value: (b"value\r\n", &[]), flags: 0, expires, bits: 0, cas, now: worker.now };
    let tx = stripe.begin(worker, 0).unwrap();
    match found {
        Some(found) => stripe.replace(&tx, found, &content).unwrap(),
        None => stripe.insert(&tx, &content).unwrap(),
    };
    tx.commit();
    cas
}

fn remove(store: &Store, worker: &mut Worker, key: &[u8]) {
    let stripe = store.lock(store.hash(key));
    let found = stripe.find(key).unwrap();
    let tx = stripe.begin(worker, 0).unwrap();
    stripe.remove(&tx, found);
    tx.commit();
}

#[test]
fn a_root_of_another_program_is_refused_and_left_alone() {
    let pool = pool();
    let mut thread = pool.register().unwrap();
    let tx = thread.begin().unwrap();
    let ptr = tx.alloc(64).unwrap();
    let theirs = Root { ptr, type_tag: 7, size: 64 };
    // SAFETY: a live block of that size; nobody reads it by its tag.
    unsafe { tx.set_root(root::NAME, Some(theirs)) }.unwrap();
    tx.commit();
    assert!(matches!(Store::open(&pool, 1 << 20, true, 0), Err(Error::Foreign { .. })));
    assert_eq!(pool.root(root::NAME).unwrap().type_tag, 7);
}

#[test]
fn counters_follow_what_is_stored() {
    let pool = pool();
    let store = Store::open(&pool, 16 << 20, true, 0).unwrap();
    let mut worker = worker(&pool);
    for i in 0..1000u32 {
        put(&store, &mut worker, &i.to_le_bytes(), i % 2 * 5000);
    }
    assert_eq!((store.items(), store.expiring()), (1000, 500));
    let bytes = store.bytes();
    for i in 0..1000u32 {
        put(&store, &mut worker, &i.to_le_bytes(), 0);
    }
    assert_eq!((store.items(), store.bytes(), store.expiring()), (1000, bytes, 0));
    for i in 0..1000u32 {
        remove(&store, &mut worker, &i.to_le_bytes());
    }
    assert_eq!((store.items(), store.bytes(), store.expiring()), (0, 0, 0));
}

/// No CAS id comes twice, even when the process ended without a word and its last epochs were lost.
#[test]
fn cas_ids_never_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = HashSet::new();
    for _ in 0..4 {
        let pool = durable(dir.path());
        let store = Store::open(&pool, 16 << 20, true, 0).unwrap();
        let mut worker = worker(&pool);
        for i in 0..100u32 {
            assert!(seen.insert(put(&store, &mut worker, &i.to_le_bytes(), 0)), "an id came again");
        }
        // Poisoned, so that nothing since the opening becomes durable: as after a crash.
        drop((store, worker));
        pool.register().unwrap().begin().unwrap().abort();
    }
}

#[test]
fn more_cas_ids_are_reserved_before_they_run_out() {
    let pool = pool();
    let store = Arc::new(Store::open(&pool, 16 << 20, true, 0).unwrap());
    let mut upkeep = Upkeep::start(Arc::clone(&store), worker(&pool), Arc::new(Clock::default()), false).unwrap();
    let limit = store.cas_limit.load(Ordering::Relaxed);
    store.next_cas.store(limit - 2, Ordering::Relaxed);
    let mut ids = HashSet::new();
    let deadline = Instant::now() + Duration::from_secs(10);
    while ids.len() < 100 {
        match store.new_cas() {
            Ok(id) => assert!(ids.insert(id)),
            // Out of reserve for a moment: refused, never reused.
            Err(Failure::Engine(why)) => assert!(why.contains("CAS ids"), "{why}"),
            Err(other) => panic!("{other:?}"),
        }
        assert!(Instant::now() < deadline, "no more ids came");
        std::thread::sleep(Duration::from_millis(1));
    }
    upkeep.stop();
}

#[test]
fn stripes_keep_threads_apart_while_the_table_doubles() {
    let pool = pool();
    let store = Arc::new(Store::open(&pool, 24 << 20, true, 0).unwrap());
    let mut upkeep = Upkeep::start(Arc::clone(&store), worker(&pool), Arc::new(Clock::default()), false).unwrap();
    let (threads, each) = (4u32, 15_000u32);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (store, pool) = (&store, &pool);
            scope.spawn(move || {
                let mut worker = worker(pool);
                for i in 0..each {
                    put(store, &mut worker, format!("{thread}-{i}").as_bytes(), 0);
                    if i % 3 == 0 {
                        remove(store, &mut worker, format!("{thread}-{i}").as_bytes());
                    }
                }
            });
        }
    });
    let deadline = Instant::now() + Duration::from_secs(10);
    while store.shape().bits == table::BITS_MIN || store.shape().splitting {
        assert!(Instant::now() < deadline, "the table does not grow: {:?}", store.shape());
        std::thread::sleep(Duration::from_millis(5));
    }
    upkeep.stop();
    assert_eq!(store.items(), u64::from(threads * each / 3 * 2));
    let mut visited = HashSet::new();
    store.visit(1000, |item| visited.insert(item.key().to_vec()));
    assert_eq!(visited.len() as u64, store.items());
    for thread in 0..threads {
        for i in 0..each {
            let key = format!("{thread}-{i}");
            let found = store.lock(store.hash(key.as_bytes())).find(key.as_bytes()).is_some();
            assert_eq!(found, i % 3 != 0, "{key}");
        }
    }
}

fn copy_pool(from: &std::path::Path) -> tempfile::TempDir {
    copy_pool_to(tempfile::tempdir().unwrap(), from, None)
}

/// The same in a directory on this kind of medium.
fn copy_pool_to(to: tempfile::TempDir, from: &std::path::Path, kind: Option<towa_media::Kind>) -> tempfile::TempDir {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    // Nothing wrote to the pool, which was open.
    towa_epoch::accept_copy(&*towa_media::open_dir(to.path(), kind, false).unwrap()).unwrap();
    to
}

/// Two threads see that a delayed flush is due; the one that comes second must not flush what was stored after the first.
#[test]
fn a_delayed_flush_comes_once() {
    let pool = pool();
    let store = Store::open(&pool, 16 << 20, true, 0).unwrap();
    let mut first = worker(&pool);
    put(&store, &mut first, b"old", 0);
    store.flush(&mut first, Some(1500)).unwrap();
    let before = store.next_cas.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let held = store.lock(0);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut worker = worker(&pool);
                worker.now = 2000;
                store.tick(&mut worker).unwrap();
            });
        }
        // Both have looked at the time by now, and wait for the lock.
        std::thread::sleep(Duration::from_millis(200));
        drop(held);
    });
    assert_eq!(store.next_cas.load(Ordering::Relaxed), before + 1, "it was carried out twice");
    assert!(!store.flush_due(3000));
    let item = store.lock(store.hash(b"old")).find(b"old").unwrap().item;
    assert_eq!(store.life(&item, 2000), Life::Flushed);
}

/// Each thing that [`super::check`] looks at, broken: said, and no crash.
#[test]
fn what_is_broken_is_found() {
    let pool = pool();
    assert_eq!(super::check(&pool).unwrap(), None, "a pool without a store");
    let store = Store::open(&pool, 16 << 20, true, 0).unwrap();
    let mut worker = worker(&pool);
    for i in 0..500u32 {
        put(&store, &mut worker, &i.to_le_bytes(), i % 3 * 5000);
    }
    let sound = super::check(&pool).unwrap().unwrap();
    assert_eq!((sound.items, sound.bytes, sound.lines), (500, store.bytes(), 1 << table::BITS_MIN));
    let item = store.lock(store.hash(&7u32.to_le_bytes())).find(&7u32.to_le_bytes()).unwrap();
    let (head, link) = (item.item.block().as_ptr(), item.slot);
    let root = pool.root(root::NAME).unwrap().ptr;
    let layout = table::align_to_line(root).as_ptr();
    let stripe = stripe_of(store.hash(&7u32.to_le_bytes()));
    let broken = |what: &str, at: *mut u8, byte: u8, said: &str| {
        // SAFETY: places in the heap that nobody else uses meanwhile; each is put back.
        unsafe {
            let was = at.read();
            assert_ne!(was, byte, "{what}: nothing is broken by this");
            at.write(byte);
            let error = super::check(&pool).expect_err(what).to_string();
            assert!(error.contains(said) && error.contains("damaged"), "{what}: {error}");
            at.write(was);
        }
    };
    // SAFETY: as above.
    unsafe {
        let flipped = |at: *mut u8| !at.read();
        broken("hash", head.add(16), flipped(head.add(16)), "has not the hash");
        broken("key", head.add(48), flipped(head.add(48)), "has not the hash");
        broken("key length", head.add(44), 255, "in a block of");
        broken("value length", head.add(35), 0x7f, "in a block of");
        broken("room", head.add(39), 0x7f, "in a block of");
        broken("end of the value", head.add(48 + 4 + 5), b'x', "without its end");
        broken("cas", head.add(15), 0x7f, "CAS id");
        broken("next, far away", head.add(7), 0x7f, "outside the heap");
        broken("next, inside a line", head, 1, "outside the heap");
        broken("link", link.cast::<u8>().add(7), 0x7f, "outside the heap");
        broken("items", layout.add(64 * (8 + stripe)), 77, "counts");
        broken("bytes", layout.add(64 * (8 + stripe) + 8), flipped(layout.add(64 * (8 + stripe) + 8)), "counts");
        broken("expiring", layout.add(64 * (8 + stripe) + 16), 99, "counts");
        broken("list of segments", layout.add(64 * 4 + 7), 0x7f, "list of segments");
        let list = layout.add(64 * 4).cast::<*mut u8>().read();
        broken("segment", list.add(8 + 7), 0x7f, "segment 1 of level 0");
        broken("level", store.table.line(5).cast::<u8>().add(56), 13, "of level 13");
        // The item follows itself.
        let next = head.cast::<u64>();
        let was = next.read();
        next.write(head as u64);
        assert!(super::check(&pool).unwrap_err().to_string().contains("the key of another one"));
        next.write(was);
    }
    assert_eq!(super::check(&pool).unwrap(), Some(sound));
}

/// One word of the heap after the other gets a value that it should not have: noticed, or harmless, and never followed - else this
/// test ends by SIGSEGV.
#[test]
fn nothing_broken_is_followed() {
    let pool = pool();
    let store = Store::open(&pool, 16 << 20, true, 0).unwrap();
    let mut worker = worker(&pool);
    for i in 0..2000u32 {
        put(&store, &mut worker, &i.to_le_bytes(), i % 3 * 5000);
    }
    let sound = super::check(&pool).unwrap();
    let (base, _) = pool.heap_range();
    // Behind the roots and the allocator's headers, which the heap's own verification looks at.
    let (from, len) = (base + (256 << 10), pool.stats().heap_used as usize + (1 << 20));
    let (mut noticed, mut tried) = (0, 0);
    while tried < 2000 {
        let random = worker.random();
        let at = (from + random as usize % (len / 8) * 8) as *mut u64;
        // SAFETY: in the heap, which is mapped; put back before anybody else uses the pool.
        unsafe {
            let was = at.read();
            if was == 0 && !random.is_multiple_of(64) {
                continue;
            }
            tried += 1;
            at.write(match (random >> 32) % 5 {
                0 => was ^ 1 << (random >> 58),
                1 => u64::MAX,
                2 => 0,
                3 => was.wrapping_add(base as u64),
                _ => from as u64 + (random >> 32) % len as u64,
            });
            noticed += usize::from(super::check(&pool).is_err());
            at.write(was);
        }
    }
    assert!(noticed > 200, "{noticed} of {tried} were noticed");
    assert_eq!(super::check(&pool).unwrap(), sound);
}

/// Every item hangs where it is found, and the counters agree: with `expected` numbers stored.
fn check(store: &Store, expected: u32) {
    let mut visited = 0;
    store.visit(1000, |_| {
        visited += 1;
        true
    });
    assert_eq!((visited, store.items()), (expected, u64::from(expected)));
    for i in 0..expected {
        let key = i.to_le_bytes();
        assert!(store.lock(store.hash(&key)).find(&key).is_some(), "{i} of {expected} is lost");
    }
}

/// A doubling that stops at any point - segments half provided, lines half split, with stores in between - opens whole and is
/// carried to its end by the next process.
#[test]
fn a_crash_amid_a_doubling_is_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let pool = durable(dir.path());
    let store = Store::open(&pool, 24 << 20, true, 0).unwrap();
    let mut worker = worker(&pool);
    let mut thread = pool.register().unwrap();
    let mut stored = 0u32;
    let mut store_some = |worker: &mut Worker, count: u32| {
        for _ in 0..count {
            put(&store, worker, &stored.to_le_bytes(), 0);
            stored += 1;
        }
        stored
    };
    let mut copies = Vec::new();
    // Enough that the table wants to grow at the next start, too.
    store_some(&mut worker, 30_000);
    let bits = store.shape().bits;
    let level = bits + 1 - table::BITS_MIN;
    store.roots.provide_segment(&mut thread, &store.table, level, 0).unwrap();
    pool.checkpoint().unwrap();
    copies.push((copy_pool(dir.path()), store_some(&mut worker, 0)));
    assert!(store.widen(&mut thread, &AtomicBool::new(false)).unwrap());
    for stripe in 0..STRIPES {
        if stripe % 200 == 0 {
            let stored = store_some(&mut worker, 500);
            pool.checkpoint().unwrap();
            copies.push((copy_pool(dir.path()), stored));
        }
        assert_eq!(store.split_stripe(&mut worker, stripe, 0, 3).unwrap(), Some(3));
        assert_eq!(store.split_stripe(&mut worker, stripe, 3, 3).unwrap(), None);
    }
    pool.checkpoint().unwrap();
    copies.push((copy_pool(dir.path()), store_some(&mut worker, 0)));
    store.end_split(&mut thread).unwrap();
    check(&store, store_some(&mut worker, 0));
    drop((store, worker, thread));
    pool.close().unwrap();
    for (index, (copy, stored)) in copies.iter().enumerate() {
        let pool = durable(copy.path());
        let store = Arc::new(Store::open(&pool, 24 << 20, true, 0).unwrap());
        assert_eq!(store.shape().splitting, index > 0);
        check(&store, *stored);
        assert_eq!(super::check(&pool).unwrap().map(|found| found.items), Some(u64::from(*stored)), "copy {index}");
        let worker = self::worker(&pool);
        let mut upkeep = Upkeep::start(Arc::clone(&store), worker, Arc::new(Clock::default()), false).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while store.shape().splitting || store.shape().bits == bits {
            assert!(Instant::now() < deadline, "copy {index} is not carried to its end");
            std::thread::sleep(Duration::from_millis(5));
        }
        upkeep.stop();
        check(&store, *stored);
        drop((store, upkeep));
        pool.close().unwrap();
    }
}

/// A store with `k` and a flush due at 1010, in a pool whose log is full; with the worker that filled it, without which it has space.
fn full_log_before_a_flush(dir: &std::path::Path) -> (Pool, Store, Worker) {
    let pool = durable(dir);
    let store = Store::open(&pool, 1 << 30, true, 1000).unwrap();
    let mut worker = worker(&pool);
    put(&store, &mut worker, b"k", 0);
    store.flush(&mut worker, Some(1010)).unwrap();
    while let Some(tx) = worker.thread.try_begin_reserving(0).unwrap() {
        let block = tx.alloc(4000).unwrap();
        // SAFETY: a new block of this transaction.
        unsafe { tx.mark(block.as_ptr(), 4000) };
        tx.commit();
    }
    (pool, store, worker)
}

fn make_space(pool: &Pool) {
    pool.checkpoint().unwrap();
    pool.apply_now().unwrap();
}

fn life_of_k(store: &Store, now: u32) -> Life {
    let stripe = store.lock(store.hash(b"k"));
    store.life(&stripe.find(b"k").unwrap().item, now)
}

#[test]
fn a_due_flush_that_was_seen_is_not_undone_by_another_for_later() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, store, _filler) = full_log_before_a_flush(dir.path());
    let mut worker = worker(&pool);
    worker.now = 1020;
    store.tick(&mut worker).unwrap();
    assert_eq!(life_of_k(&store, 1020), Life::Flushed);
    make_space(&pool);
    store.flush(&mut worker, Some(1120)).unwrap();
    assert_eq!(life_of_k(&store, 1020), Life::Flushed);
    store.tick(&mut worker).unwrap();
    assert_eq!(life_of_k(&store, 1020), Life::Flushed);
    put(&store, &mut worker, b"k", 0);
    assert_eq!((life_of_k(&store, 1119), life_of_k(&store, 1120)), (Life::Live, Life::Flushed));
}

#[test]
fn nothing_is_stored_between_a_flush_that_was_seen_and_its_mark() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, store, _filler) = full_log_before_a_flush(dir.path());
    // The second worker's round began a second earlier.
    let (mut first, mut second) = (worker(&pool), worker(&pool));
    (first.now, second.now) = (1010, 1009);
    store.tick(&mut second).unwrap();
    store.tick(&mut first).unwrap();
    assert_eq!((life_of_k(&store, 1010), life_of_k(&store, 1009)), (Life::Flushed, Life::Flushed));
    make_space(&pool);
    let stripe = store.lock(store.hash(b"k"));
    assert!(matches!(stripe.begin(&mut second, 0), Err(Failure::NoLogSpace)));
    assert!(second.take_wanted_log().is_some());
    drop(stripe);
    store.tick(&mut second).unwrap();
    put(&store, &mut second, b"k", 0);
    store.tick(&mut first).unwrap();
    assert_eq!(life_of_k(&store, 1010), Life::Live);
}

/// What stands in the place of items that were overwritten leads nowhere, and claims any length: they are not found, and nothing ends.
#[test]
fn overwritten_items_are_not_found() {
    use rand::{Rng, SeedableRng};
    let (pool, mut rng) = (pool(), rand::rngs::SmallRng::seed_from_u64(1));
    let store = Store::open(&pool, 1 << 30, true, 0).unwrap();
    let mut worker = worker(&pool);
    let keys: Vec<String> = (0..20_000).map(|number| format!("key {number}")).collect();
    for key in &keys {
        put(&store, &mut worker, key.as_bytes(), 0);
    }
    let find = |key: &String| {
        let stripe = store.lock(store.hash(key.as_bytes()));
        stripe.find(key.as_bytes()).map(|found| (found.item.address(), found.item.data() == b"value\r\n"))
    };
    for key in keys.iter().step_by(10) {
        let Some((address, _)) = find(key) else { continue };
        let mut garbage: [u8; item::HEAD_LEN] = rng.random();
        // A link to the last bytes of the heap, or nothing at all; or the head as it is with a link to itself.
        let (base, len) = pool.heap_range();
        match rng.random_range(0..40) {
            0..10 => garbage[..8].copy_from_slice(&(base as u64 + len - 16).to_ne_bytes()),
            10..20 => garbage.fill(0),
            // SAFETY: the item's head, which no other thread looks at.
            20 => unsafe {
                std::ptr::copy_nonoverlapping(address as *const u8, garbage.as_mut_ptr(), garbage.len());
                garbage[..8].copy_from_slice(&address.to_ne_bytes());
            },
            _ => {}
        }
        // SAFETY: the item's head, which no other thread looks at.
        unsafe { std::ptr::copy_nonoverlapping(garbage.as_ptr(), address as *mut u8, garbage.len()) };
    }
    let (whole, lost) = keys.iter().fold((0, 0), |(whole, lost), key| match find(key) {
        Some((_, is_whole)) => (whole + usize::from(is_whole), lost),
        None => (whole, lost + 1),
    });
    // The table doubles, and what is damaged is passed over.
    for key in &keys {
        put(&store, &mut worker, format!("{key} again").as_bytes(), 0);
    }
    assert!(whole > 15_000 && lost > 1000 && whole + lost == keys.len(), "{whole} are whole, {lost} are not found");
}

/// A link that leads back to its item, or to the one before it, ends the chain. Whether the items of the circle are evicted, replaced or found
/// by the crawler, each is freed and counted as gone once, and none is left in the end.
#[test]
fn the_items_of_a_circle_are_freed_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { heap_len: 32 << 20, log_len: Some(4 << 20), manual: true, ..Options::default() };
    let pool = Pool::create(&dir.path().join("pool"), &options).unwrap();
    let store = Store::open(&pool, 1 << 30, true, 0).unwrap();
    let mut worker = worker(&pool);
    let keys: Vec<String> = (0..6000).map(|number| format!("key {number}")).collect();
    for key in &keys {
        put(&store, &mut worker, key.as_bytes(), 1500);
    }
    let (alone, pairs) = make_circles(&store, &keys);
    let others: Vec<String> = (0..100).map(|number| format!("other {number}")).collect();
    let bytes = store.bytes();
    for key in &others {
        put(&store, &mut worker, key.as_bytes(), 0);
    }
    let bytes = store.bytes() - bytes;
    assert!(alone.len() > 1000 && pairs.len() > 100, "{} circles of one item, {} of two", alone.len(), pairs.len());
    let value = [[b'v'; 500].as_slice(), b"\r\n"].concat();
    for (number, key) in alone.iter().chain(&pairs).enumerate() {
        let hash = store.hash(key.as_bytes());
        let found = store.lock(hash).find(key.as_bytes());
        match (number % 4, found) {
            // Twice, as samples may have it.
            (0, Some(found)) => {
                let victim = store.candidate(found.item.address() as usize, worker.now);
                assert!(store.evict(&mut worker, vec![victim; 2]).unwrap() > 0);
            }
            // It does not fit into the old block.
            (1, Some(found)) => {
                let stripe = store.lock(hash);
                let (key, value) = (key.as_bytes(), (&value[..], &[][..]));
                let content = Content { key, hash, value, flags: 0, expires: 1500, bits: 0, cas: 1 << 40, now: worker.now };
                let tx = stripe.begin(&mut worker, content.size()).unwrap();
                stripe.replace(&tx, found, &content).unwrap();
                tx.commit();
            }
            (2, Some(_)) => {
                remove(&store, &mut worker, key.as_bytes());
                // Links that lead back were met before: what is free is not found any more.
                assert!(store.lock(hash).find(key.as_bytes()).is_none(), "{key} is found although it was deleted");
                // What is left of a circle of two is not written in place: another item may soon be there.
                put(&store, &mut worker, key.as_bytes(), 1500);
                let item = store.lock(hash).find(key.as_bytes()).unwrap().item;
                assert_eq!(pool.block_state(item.block()), towa_epoch::BlockState::Live);
            }
            _ => {}
        }
    }
    worker.now = 2000;
    let is_there = |key: &&String| store.lock(store.hash(key.as_bytes())).find(key.as_bytes()).is_some();
    crawl_all(&store, &mut worker);
    assert_eq!(alone.iter().filter(|key| is_there(key)).count(), 0);
    crawl_all(&store, &mut worker);
    assert_eq!(keys.iter().filter(is_there).count(), 0);
    assert_eq!(others.iter().filter(is_there).count(), others.len());
    assert_eq!((store.items(), store.bytes()), (others.len() as u64, bytes));
}

/// A circle that no look-up has met: the item that was deleted is still found behind the other one. Its block is not written.
#[test]
fn a_freed_item_that_is_still_linked_is_not_written() {
    let pool = pool();
    let store = Store::open(&pool, 1 << 30, true, 0).unwrap();
    let mut worker = worker(&pool);
    let keys: Vec<String> = (0..6000).map(|number| format!("key {number}")).collect();
    for key in &keys {
        put(&store, &mut worker, key.as_bytes(), 0);
    }
    let (_, pairs) = make_circles(&store, &keys);
    let find = || store.lock(store.hash(pairs[0].as_bytes())).find(pairs[0].as_bytes());
    remove(&store, &mut worker, pairs[0].as_bytes());
    assert_eq!(pool.block_state(find().unwrap().item.block()), towa_epoch::BlockState::Free);
    put(&store, &mut worker, pairs[0].as_bytes(), 0);
    assert_eq!(pool.block_state(find().unwrap().item.block()), towa_epoch::BlockState::Live);
    assert_eq!(store.items(), keys.len() as u64);
}

/// Makes circles of the last items of chains: of one, which leads to itself, or of two. Returns the keys of those, and of the first of these.
fn make_circles<'k>(store: &Store, keys: &'k [String]) -> (Vec<&'k String>, Vec<&'k String>) {
    let (mut alone, mut pairs) = (Vec::new(), Vec::new());
    // The newest come first in their chains.
    for key in keys.iter().rev() {
        let stripe = store.lock(store.hash(key.as_bytes()));
        let Some(found) = stripe.find(key.as_bytes()) else { continue };
        // SAFETY: the links of items, which come first in them, under their stripe's lock.
        unsafe {
            let behind = *found.item.next_slot() as *mut u64;
            if behind.is_null() {
                *found.item.next_slot() = found.item.address();
                alone.push(key);
            } else if *behind == 0 {
                *behind = found.item.address();
                pairs.push(key);
            }
        }
    }
    (alone, pairs)
}

fn crawl_all(store: &Store, worker: &mut Worker) {
    for stripe in 0..STRIPES {
        store.crawl_stripe(worker, stripe, 0, u64::MAX / 2).unwrap();
        store.pool().checkpoint().unwrap();
    }
}
