//! Values for which no row of neighbouring chunks can be cleared: chunks are reserved for them, and come free elsewhere (`reservation`).

use super::room::{LIMIT, key_of, phase, store_once, store_sized, verify_values};
use super::*;

/// A store with its keeper, in a pool with room for the whole cache behind all that is in use.
struct Kept {
    store: Arc<Store>,
    upkeep: Upkeep,
    worker: Worker,
    /// Bytes of memory of chunks when the large value was stored.
    resident_then: u64,
    _dir: tempfile::TempDir,
}

/// One in a volatile pool, one in a durable pool.
fn stores() -> [Kept; 2] {
    let options = Options { heap_len: 6 * LIMIT, log_len: Some(8 * LIMIT), ..Options::default() };
    [true, false].map(|is_volatile| {
        let dir = tempfile::tempdir().unwrap();
        let pool = if is_volatile { Pool::volatile(&options) } else { Pool::create(&dir.path().join("pool"), &options) }.unwrap();
        let store = Arc::new(Store::open(&pool, LIMIT, true, 0).unwrap());
        let upkeep = Upkeep::start(Arc::clone(&store), worker(&pool), Arc::new(Clock::default()), false).unwrap();
        let worker = worker(&pool);
        Kept { store, upkeep, worker, resident_then: 0, _dir: dir }
    })
}

impl Kept {
    /// Fills the cache with small values, and waits until the table has grown.
    fn fill(&mut self) {
        phase(&self.store, &mut self.worker, 0..70_000, 100);
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.store.shape().splitting || self.store.items() > self.store.shape().lines() * table::BUCKETS as u64 {
            assert!(Instant::now() < deadline, "the table does not grow: {:?}", self.store.shape());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stores a value for which no row can be cleared, and looks that it is there, and that memory is within the bound.
    fn store_large(&mut self, number: u32, len: usize) {
        self.worker.now += 10;
        store_sized(&self.store, &mut self.worker, number, len).unwrap_or_else(|why| panic!("{len} bytes: {why:?}"));
        self.resident_then = self.store.pool().space().resident;
        assert_eq!(verify_values(&self.store)[&len], 1);
        let (store, deadline) = (&self.store, Instant::now() + Duration::from_secs(5));
        // The reservation ends with the answer.
        let is_as_before = |space: towa_epoch::Space| {
            space.bound == store.chunk_bytes_allowed() && space.in_use <= space.bound && !upkeep::has_too_much_memory(&space)
        };
        while !is_as_before(store.pool().space()) {
            assert!(Instant::now() < deadline, "{:?}", store.pool().space());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.upkeep.stop();
    }
}

/// Large values, and then one for which some have to go, although fewer chunks were ever in use than that takes.
#[test]
fn a_value_larger_than_all_that_is_there_takes_its_place() {
    for (first, second) in [(6_000_000, 13_000_000), (6_000_000, 12_000_000), (100_000, 14_000_000)] {
        for mut kept in stores() {
            let many = 6_000_000 / first as u32;
            phase(&kept.store, &mut kept.worker, 0..many, first);
            kept.store_large(many, second);
        }
    }
}

/// The same where most chunks that were ever in use are free, some here and some there: only those in use are worth clearing.
#[test]
fn a_value_larger_than_all_that_was_there_takes_the_place_of_what_is_left() {
    for keep in [2, 5, 10] {
        for mut kept in stores() {
            phase(&kept.store, &mut kept.worker, 0..50, 200_000);
            for number in (0..50).filter(|number| number % keep != 0) {
                remove(&kept.store, &mut kept.worker, key_of(number, 200_000).as_bytes());
            }
            kept.store_large(50, 15_000_000);
        }
    }
}

/// The table's segments stand between small items: no window of the value's size is without one. No more goes than the value takes.
#[test]
fn a_large_value_finds_room_between_the_segments_of_the_table() {
    for mut kept in stores() {
        kept.fill();
        let (before, len) = (kept.store.bytes(), 10_000_000);
        let windows = || (0..1000).filter_map(|random| kept.store.pool().survey(random * 7919, len));
        assert!(windows().count() > 0 && windows().all(|survey| kept.store.roots.stand_in(survey.range())));
        let began = Instant::now();
        kept.store_large(70_000, len);
        assert!(
            kept.resident_then <= LIMIT + LIMIT / 4 || began.elapsed() > reservation::PATIENCE_FOR_MEMORY,
            "{}",
            kept.resident_then
        );
        let lost = before + len as u64 - kept.store.bytes();
        assert!(lost < len as u64 * 5 / 4, "{lost} of {before} bytes went for {len}");
    }
}

/// Two requests for large values, each of which wants most of the cache, and another thread that stores small values all the time: what comes
/// free for one is not another's.
#[test]
fn what_comes_free_for_a_large_value_goes_to_no_other() {
    for mut kept in stores() {
        kept.fill();
        let (store, done) = (Arc::clone(&kept.store), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (mut small, mut large, stop) = (worker(store.pool()), worker(store.pool()), StopAtEnd(&done));
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                for number in (100_000..).take_while(|_| !done.load(Ordering::Relaxed)) {
                    store_sized(store, &mut small, number, 100 + number as usize % 400).unwrap();
                }
            });
            let other = scope.spawn(move || store_sized(store, &mut large, 1, 12_000_000));
            let own = store_sized(store, &mut kept.worker, 0, 12_100_000);
            let results = (own, other.join().unwrap());
            drop(stop);
            assert_eq!(results, (Ok(()), Ok(())));
        });
        assert_eq!(store.pool().space().bound, store.chunk_bytes_allowed());
        kept.upkeep.stop();
    }
}

struct StopAtEnd<'d>(&'d AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A request is dropped with its connection while it waits for chunks: they are for everybody again.
#[test]
fn a_reservation_ends_with_its_request() {
    for mut kept in stores() {
        kept.fill();
        let mut first = worker(kept.store.pool());
        assert_eq!(kept.store.reserve(&mut first, 12_000_000), Err(Failure::NoLogSpace));
        assert!(first.take_pause() && kept.store.pool().space().bound < kept.store.chunk_bytes_allowed());
        let deadline = Instant::now() + Duration::from_secs(30);
        while kept.store.pool().space().bound < kept.store.chunk_bytes_allowed() {
            assert!(Instant::now() < deadline, "the reservation does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        kept.store_large(70_000, 12_000_000);
    }
}

/// A request is refused when its chunks, or its turn, do not come in time; one whose chunks are free is not, although their memory is not given back.
#[test]
fn patience_ends_before_the_chunks_are_there_and_not_after() {
    for mut kept in stores() {
        kept.fill();
        let (store, long_ago) = (Arc::clone(&kept.store), Duration::from_secs(1000));
        let (mut first, mut other) = (worker(store.pool()), worker(store.pool()));
        assert_eq!(store.reserve(&mut first, 12_000_000), Err(Failure::NoLogSpace));
        assert_eq!(store.reserve(&mut other, 9_000_000), Err(Failure::NoLogSpace));
        other.client.wait.as_mut().unwrap().since -= long_ago;
        assert_eq!(store.reserve(&mut other, 9_000_000), Ok(false));
        let deadline = Instant::now() + Duration::from_secs(30);
        while store.is_beyond_bound() {
            assert!(Instant::now() < deadline, "{:?}", store.pool().space());
            assert_ne!(store.reserve(&mut first, 12_000_000), Ok(false));
        }
        first.client.wait.as_mut().unwrap().since -= long_ago;
        let reserved =
            std::iter::repeat_with(|| store.reserve(&mut first, 12_000_000)).find(|result| *result != Err(Failure::NoLogSpace));
        assert_eq!(reserved, Some(Ok(true)));
        store.end_wait(&mut first);
        assert_eq!(store.pool().space().bound, store.chunk_bytes_allowed());
        kept.upkeep.stop();
    }
}

/// Two clients of one worker, in turn: one waits for chunks, the other stores smaller values, which clear windows. Both go on.
#[test]
fn two_clients_of_one_worker_go_on_beside_each_other() {
    for mut kept in stores() {
        kept.fill();
        let (store, mut large, mut small) = (Arc::clone(&kept.store), Client::default(), Client::default());
        let (mut number, mut is_stored) = (100_000, false);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_stored {
            assert!(Instant::now() < deadline, "{:?}", store.pool().space());
            let result = kept.worker.serve(&mut large, |worker| store_once(&store, worker, 0, 12_000_000, None));
            is_stored = result != Err(Failure::NoLogSpace);
            assert!(matches!(result, Ok(()) | Err(Failure::NoLogSpace)), "{result:?}");
            for len in [90_000, 250_000] {
                number += 1;
                kept.worker.serve(&mut small, |worker| store_sized(&store, worker, number, len)).unwrap();
            }
        }
        kept.upkeep.stop();
    }
}
