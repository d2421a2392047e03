//! Values for which no window is large enough: chunks come free elsewhere, and others come into use.

use super::room::{LIMIT, phase, store_sized, verify_values};
use super::*;

/// A pool with room for the whole cache behind all that is in use.
fn pools() -> (tempfile::TempDir, [Pool; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { heap_len: 6 * LIMIT, log_len: Some(8 * LIMIT), manual: true, ..Options::default() };
    let pools = [Pool::create(&dir.path().join("pool"), &options).unwrap(), Pool::volatile(&options).unwrap()];
    (dir, pools)
}

/// Large values, and then one for which some have to go, although fewer chunks were ever in use than that takes.
#[test]
fn a_value_larger_than_all_that_is_there_takes_its_place() {
    for (first, second) in [(6_000_000, 13_000_000), (6_000_000, 12_000_000), (100_000, 14_000_000)] {
        let (_dir, pools) = pools();
        for pool in pools {
            let store = Store::open(&pool, LIMIT, true, 0).unwrap();
            let mut worker = worker(&pool);
            let many = 6_000_000 / first as u32;
            phase(&store, &mut worker, 0..many, first);
            worker.now += 10;
            store_sized(&store, &mut worker, many, second).unwrap();
            assert_eq!(verify_values(&store)[&second], 1);
        }
    }
}

/// The same where most chunks that were ever in use are free, some here and some there: only those in use are worth clearing.
#[test]
fn a_value_larger_than_all_that_was_there_takes_the_place_of_what_is_left() {
    for keep in [2, 5, 10] {
        let (_dir, pools) = pools();
        for pool in pools {
            let store = Store::open(&pool, LIMIT, true, 0).unwrap();
            let mut worker = worker(&pool);
            phase(&store, &mut worker, 0..50, 200_000);
            let keys: Vec<String> = (0..50).filter(|number| number % keep != 0).map(|number| format!("{number}:200000")).collect();
            keys.iter().for_each(|key| remove(&store, &mut worker, key.as_bytes()));
            worker.now += 10;
            store_sized(&store, &mut worker, 50, 15_000_000).unwrap_or_else(|why| panic!("1 of {keep} kept: {why:?}"));
            assert_eq!(verify_values(&store)[&15_000_000], 1);
        }
    }
}

/// The table's segments stand between small items: no window of the value's size is without one.
#[test]
fn a_large_value_finds_room_between_the_segments_of_the_table() {
    let (_dir, pools) = pools();
    for pool in pools {
        let store = Arc::new(Store::open(&pool, LIMIT, true, 0).unwrap());
        let mut upkeep = Upkeep::start(Arc::clone(&store), worker(&pool), Arc::new(Clock::default()), false).unwrap();
        let mut worker = worker(&pool);
        phase(&store, &mut worker, 0..60_000, 100);
        worker.now += 10;
        store_sized(&store, &mut worker, 60_000, 14_000_000).unwrap();
        assert_eq!(verify_values(&store)[&14_000_000], 1);
        upkeep.stop();
    }
}
