//! What is refused, in a transaction or at a pool's creation, and leaves nothing behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::ways::ways;
use towa_tx::{Addr, Commit, Error, Options, Pool, Root, Thread, TmChoice};

fn options(tm: TmChoice) -> Options {
    // Pools of parallel tests live in one process.
    static NEXT: AtomicUsize = AtomicUsize::new(0x4180_0000_0000);
    let base = Some(NEXT.fetch_add(1 << 30, Relaxed));
    let medium = Some(towa_media::Kind::Ram);
    Options { base, heap_len: 16 << 20, lanes: 8, lane_len: 256 << 10, tm, medium, ..Options::default() }
}

/// A word of 0, named `name`.
fn word(thread: &mut Thread, name: &str) -> Addr {
    let made = thread.transaction(|tx| {
        let block = tx.alloc(8)?;
        tx.init(block, &[0])?;
        let ptr = NonNull::new(block as *mut u8).expect("an address");
        tx.set_root(name, Some(Root { ptr, type_tag: 7, size: 8 }))?;
        Ok(block)
    });
    made.unwrap()
}

/// It waited for the outer one's announcement, or its lock, for ever.
#[test]
fn what_would_wait_for_the_transaction_that_runs_is_refused_in_its_body() {
    for tm in ways() {
        let pool = Pool::volatile(&options(tm)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let kept = Pool::create(dir.path(), &options(tm)).unwrap();
        for (pool, other) in [(&kept, &kept), (&kept, &pool), (&pool, &kept)] {
            let (mut outer, mut inner) = (pool.register().unwrap(), other.register().unwrap());
            let (mine, theirs) = (word(&mut outer, "outer"), word(&mut inner, "inner"));
            let mut refused = |what: &str, call: &mut dyn FnMut(&mut Thread) -> Result<(), Error>| {
                let result = outer.transaction(|tx| {
                    let was = tx.read(mine)?;
                    tx.write(mine, was + 1)?;
                    Ok(call(&mut inner)?)
                });
                assert!(matches!(&result, Err(Error::Usage(why)) if why.contains(what)), "{tm:?}: {result:?}");
            };
            refused("a transaction", &mut |inner| inner.transaction(|tx| tx.write(theirs, 1)));
            refused("a transaction", &mut |inner| inner.transaction(|tx| tx.read(theirs).map(|_| ())));
            refused("a transaction", &mut |inner| inner.transaction_software(|tx| tx.write(theirs, 1)));
            refused("`sync`", &mut |_| other.sync());
            refused("`checkpoint`", &mut |_| other.checkpoint());
            refused("`close`", &mut |_| other.clone().close());
            // A body that goes on takes effect, and one that panics leaves no mark.
            outer
                .transaction(|tx| {
                    assert!(inner.transaction(|tx| tx.write(theirs, 1)).is_err());
                    tx.write(mine, 7)
                })
                .unwrap();
            let panicked = catch_unwind(AssertUnwindSafe(|| outer.transaction::<()>(|_| panic!("on purpose"))));
            assert!(panicked.is_err());
            inner.transaction(|tx| tx.write(theirs, 2)).unwrap();
            assert_eq!((outer.load(mine), inner.load(theirs)), (7, 2));
        }
    }
}

/// A body under versions is announced while it runs: what is newer in its lane is not durable before it has ended.
#[test]
fn waiting_for_what_is_not_durable_is_refused_in_a_body() {
    let clock = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    if !clock.is_ok_and(|clock| clock.trim() == "tsc") {
        println!("SKIP: without a trusted time stamp counter, no body runs under versions");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &options(TmChoice::Stm)).unwrap();
    let (mut outer, mut inner) = (pool.register().unwrap(), pool.register().unwrap());
    // By the order in which threads came, the outer one's is lane 0.
    let newer = 1 << 62;
    assert!(inner.wait_durable(newer).is_ok(), "no transaction runs");
    let result = outer.transaction_guarded(|_| Ok(inner.wait_durable(newer)?));
    assert!(matches!(&result, Err(Error::Usage(why)) if why.contains("waiting until")), "{result:?}");
    assert!(inner.wait_durable(newer).is_ok(), "it has ended");
}

/// A pool that could hold nothing was made.
#[test]
fn the_least_heap_holds_blocks_and_a_smaller_one_is_refused() {
    const LEAST: u64 = 1 << 20;
    for size in [8, 64, 1000, 4096, 20_000, 60_000, 100_000, 128 << 10, 512 << 10] {
        let dir = tempfile::tempdir().unwrap();
        let options = |heap_len| Options { heap_len, lane_len: 2 << 20, ..options(TmChoice::Stm) };
        let refused = Pool::create(&dir.path().join("smaller"), &options(LEAST - 1)).unwrap_err().to_string();
        assert!(refused.contains("not between 1048576 bytes"), "{refused}");
        assert!(!dir.path().join("smaller").exists(), "left behind");
        let pool = Pool::create(&dir.path().join("least"), &options(LEAST)).unwrap();
        let made = pool.register().unwrap().transaction(|tx| tx.alloc(size));
        assert!(made.is_ok(), "{size}: {made:?}");
    }
}

/// What is asked for is looked at before anything is made.
#[test]
fn a_refused_creation_leaves_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let good = options(TmChoice::Auto);
    let asked = [
        Options { heap_len: 1, ..good.clone() },
        Options { lanes: 65, ..good.clone() },
        Options { lane_len: 4097, ..good.clone() },
        Options { base: Some(4096), ..good.clone() },
        Options { lanes: 1, commit: Commit::Buffered, ..good },
    ];
    for (nr, asked) in asked.iter().enumerate() {
        let at = dir.path().join(nr.to_string());
        assert!(Pool::create(&at, asked).is_err() && Pool::open_or_create(&at, asked).is_err(), "{nr}");
        assert!(!at.exists(), "{nr}: left behind");
    }
}
