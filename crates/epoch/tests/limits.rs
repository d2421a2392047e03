//! The log's space and the pool's end under many threads: nobody who keeps to the rules is refused, and nobody's commit is lost.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use towa_epoch::{Error, Options, Pool, Root, Thread, Tx};
use towa_media::Kind;

const LINE: usize = 64;

fn options() -> Options {
    Options { heap_len: 64 << 20, log_len: Some(4 << 20), interval: Duration::from_millis(5), ..Options::default() }
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// A block of `lines` lines under root `name`.
fn block(thread: &mut Thread, name: &str, lines: usize) -> NonNull<u8> {
    let tx = thread.begin_reserving(lines * LINE).expect("begin");
    let block = tx.alloc(lines * LINE).expect("space");
    // SAFETY: a live block of that size, which holds bytes.
    unsafe { tx.set_root(name, Some(Root { ptr: block, type_tag: 1, size: (lines * LINE) as u64 })) }.expect("a root slot");
    tx.commit();
    block
}

/// Writes `value` into the first word of each of the block's lines.
fn write_lines(tx: &Tx<'_>, block: NonNull<u8>, lines: usize, value: u64) {
    for line in 0..lines {
        let word = block.as_ptr().wrapping_add(line * LINE).cast::<u64>();
        // SAFETY: in a live block, aligned (large blocks are, as chunks), used by one thread.
        unsafe {
            tx.mark(word.cast(), 8);
            word.write(value);
        }
    }
}

fn first_word(pool: &Pool, name: &str) -> Option<u64> {
    // SAFETY: the block is live as long as its root is there.
    pool.root(name).map(|root| unsafe { root.ptr.cast::<u64>().read() })
}

#[test]
fn many_threads_with_full_shares_never_fill_the_log() {
    const THREADS: usize = 100;
    let dir = dir();
    let pool = Pool::create(dir.path(), &options()).expect("create");
    // What each may mark when all are registered: a quarter of the log, divided.
    let lines = (4 << 20) / 4 / THREADS / LINE / 3;
    let mut threads: Vec<_> = (0..THREADS).map(|_| pool.register().expect("register")).collect();
    let blocks: Vec<_> =
        threads.iter_mut().enumerate().map(|(i, t)| block(t, &format!("b{i}"), lines.max(512)).as_ptr().addr()).collect();
    std::thread::scope(|scope| {
        for (mut thread, at) in threads.into_iter().zip(blocks) {
            scope.spawn(move || {
                for round in 1..=50 {
                    let tx = thread.begin().expect("nobody who keeps to his share is refused");
                    write_lines(&tx, NonNull::new(at as *mut u8).expect("an address"), lines, round);
                    tx.try_commit().expect("the pool is well");
                }
            });
        }
    });
    pool.sync().expect("sync");
    pool.close().expect("close");
    let pool = Pool::open(dir.path(), &options()).expect("open");
    assert!((0..THREADS).all(|i| first_word(&pool, &format!("b{i}")) == Some(50)));
}

#[test]
fn a_thread_per_transaction_is_accounted() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { interval: Duration::from_secs(3600), ..options() }).expect("create");
    let lines = 200;
    let at: Vec<_> = (0..400).map(|i| block(&mut pool.register().expect("register"), &format!("b{i}"), lines)).collect();
    pool.sync().expect("sync");
    for round in 1..=3 {
        for block in &at {
            let mut thread = pool.register().expect("register");
            let tx = thread.begin().expect("the log was given up unnoticed");
            write_lines(&tx, *block, lines, round);
            tx.try_commit().expect("the pool is well");
        }
    }
    pool.close().expect("close");
}

#[test]
fn marking_beyond_the_share_takes_what_is_left_and_then_says_so() {
    let dir = dir();
    let manual = Options { manual: true, ..options() };
    let pool = Pool::create(dir.path(), &manual).expect("create");
    let mut thread = pool.register().expect("register");
    let lines = (1 << 20) / LINE;
    let big = block(&mut thread, "big", lines);
    pool.checkpoint().expect("checkpoint");
    pool.apply_now().expect("apply");
    let tx = thread.begin().expect("begin");
    write_lines(&tx, big, lines, 1);
    tx.try_commit().expect("the log had that much left");
    pool.checkpoint().expect("checkpoint");
    pool.apply_now().expect("apply");

    // More than the log could hold: put together from parts, each of which fits.
    let part = (512 << 10) / LINE;
    let parts: Vec<_> = (0..10)
        .map(|i| {
            let at = block(&mut thread, &format!("part{i}"), part);
            write_lines(&thread.begin_reserving(part * LINE).expect("begin"), at, part, 1);
            pool.checkpoint().expect("checkpoint");
            pool.apply_now().expect("apply");
            at
        })
        .collect();
    let tx = thread.begin().expect("begin");
    parts.iter().for_each(|at| write_lines(&tx, *at, part, 2));
    let why = tx.try_commit().expect_err("the log cannot hold it").to_string();
    assert!(why.contains("begin it reserving"), "{why}");
    drop(thread);
    pool.abandon();
    let pool = Pool::open(dir.path(), &manual).expect("the pool stays at its last epoch");
    assert_eq!((first_word(&pool, "big"), first_word(&pool, "part0"), first_word(&pool, "part9")), (Some(1), Some(1), Some(1)));
}

#[test]
fn a_manual_pool_says_that_it_needs_a_checkpoint() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { manual: true, ..options() }).expect("create");
    let mut thread = pool.register().expect("register");
    let refused = (0..100).find_map(|i| {
        thread
            .begin_reserving(1 << 20)
            .map(|tx| {
                let block = tx.alloc((1 << 20) - 4096).expect("space");
                write_lines(&tx, block, ((1 << 20) - 4096) / LINE, i);
                tx.commit();
            })
            .err()
    });
    assert!(matches!(refused, Some(Error::Usage(_))), "{refused:?}");
    drop(thread);
    pool.checkpoint().expect("checkpoint");
    pool.apply_now().expect("apply");
    pool.register().expect("register").begin_reserving(1 << 20).expect("there is room again").commit();
}

/// Fills the log of a manual pool with transactions of a MiB, as long as one begins; how many did.
fn fill_the_log(thread: &mut Thread) -> u64 {
    let mut begun = 0;
    while let Some(tx) = thread.try_begin_reserving(1 << 20).expect("a sound pool") {
        let block = tx.alloc((1 << 20) - 4096).expect("space");
        write_lines(&tx, block, ((1 << 20) - 4096) / LINE, begun);
        tx.commit();
        begun += 1;
        assert!(begun < 100, "a log of some MiB holds no hundred of them");
    }
    begun
}

#[test]
fn a_transaction_that_does_not_wait_for_log_space_says_so_and_changes_nothing() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { manual: true, ..options() }).expect("create");
    let mut thread = pool.register().expect("register");
    assert!(thread.has_log_space(1 << 20));
    assert!(fill_the_log(&mut thread) > 0);
    assert!(!thread.has_log_space(1 << 20));
    for _ in 0..100_000 {
        // What was reserved for one that did not begin is given back: else these would use up the log.
        assert!(thread.try_begin_reserving(1 << 20).expect("a sound pool").is_none());
    }
    pool.checkpoint().expect("checkpoint");
    pool.apply_now().expect("apply");
    assert!(thread.has_log_space(1 << 20));
    thread.try_begin_reserving(1 << 20).expect("a sound pool").expect("there is space again").commit();
    assert!(matches!(thread.try_begin_reserving(1 << 30), Err(Error::TooLarge { .. })));
}

#[test]
fn a_closed_gate_does_not_hold_up_a_transaction_that_does_not_wait() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { manual: true, ..options() }).expect("create");
    let mut thread = pool.register().expect("register");
    // Small transactions reserve nothing: the gate is all that stops them.
    let mut begun = 0u64;
    while let Some(tx) = thread.try_begin_reserving(0).expect("a sound pool") {
        let block = tx.alloc(4000).expect("space");
        write_lines(&tx, block, 4000 / LINE, begun);
        tx.commit();
        begun += 1;
        assert!(begun < 100_000, "the log never fills");
    }
    assert!(!thread.has_log_space(0));
    assert!(thread.begin().is_err(), "a manual pool says that it needs a checkpoint");
    pool.checkpoint().expect("checkpoint");
    pool.apply_now().expect("apply");
    assert!(thread.try_begin_reserving(0).expect("a sound pool").is_some());
}

#[test]
fn what_can_never_begin_is_refused_and_does_not_wait() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { log_len: Some(16 << 20), ..options() }).expect("create");
    let _others: Vec<Thread> = (0..40).map(|_| pool.register().expect("register")).collect();
    let mut thread = pool.register().expect("register");
    // The log is empty: what does not begin at once, never will.
    for size in (0..16 << 20).step_by(1 << 18) {
        match thread.try_begin_reserving(size) {
            Ok(begun) => assert!(begun.is_some(), "{size} bytes wait for ever"),
            Err(Error::TooLarge { need, .. }) => assert!(need > 16 << 20, "{size} bytes: {need} are there"),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn space_is_provided_ahead_for_as_much_as_was_taken_before() {
    use std::os::unix::fs::MetadataExt;
    let dir = dir();
    let options = Options { manual: true, heap_len: 256 << 20, log_len: Some(64 << 20), ..Options::default() };
    let pool = Pool::create(dir.path(), &options).expect("create");
    let mut thread = pool.register().expect("register");
    for _ in 0..40 {
        // Most of them never written: what counts is the space.
        let tx = thread.begin_reserving(1 << 20).expect("begin");
        tx.alloc(1 << 20).expect("space");
        tx.commit();
    }
    pool.checkpoint().expect("checkpoint");
    // Until the next checkpoint has ended as much may be taken again: no transaction finds the image without space, and waits for the
    // file system.
    let image = std::fs::metadata(dir.path().join("image")).expect("the image");
    assert!(image.blocks() * 512 >= (40 + 80) << 20, "{} bytes", image.blocks() * 512);
}

#[test]
fn a_reservation_that_waits_learns_that_it_has_no_chance_any_more() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { log_len: Some(16 << 20), ..options() }).expect("create");
    let (mut first, mut second) = (pool.register().expect("register"), pool.register().expect("register"));
    let large = first.begin_reserving(4 << 20).expect("begin");
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || second.begin_reserving(4 << 20).err());
        std::thread::sleep(Duration::from_millis(100));
        let others: Vec<Thread> = (0..60).map(|_| pool.register().expect("register")).collect();
        large.commit();
        let refused = waits.join().expect("no panic");
        assert!(matches!(refused, Some(Error::TooLarge { .. })), "{refused:?}");
        drop(others);
    });
}

#[test]
fn a_failed_pool_is_no_lack_of_log_space() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { manual: true, ..options() }).expect("create");
    let mut thread = pool.register().expect("register");
    fill_the_log(&mut thread);
    pool.register().expect("register").begin().expect("a small one").abort();
    assert!(matches!(thread.try_begin_reserving(1 << 20), Err(Error::Poisoned { .. })));
    assert!(thread.has_log_space(1 << 20), "there is nothing to wait for");
}

#[test]
fn close_beside_writers_keeps_every_commit() {
    for round in 0..20u64 {
        let dir = dir();
        let pool = Pool::create(dir.path(), &options()).expect("create");
        let committed: Vec<_> = (0..3).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for (i, committed) in committed.iter().enumerate() {
                let mut thread = pool.register().expect("register");
                let at = block(&mut thread, &format!("b{i}"), 1).as_ptr().addr();
                scope.spawn(move || {
                    for n in 1.. {
                        let Ok(tx) = thread.begin() else { return };
                        write_lines(&tx, NonNull::new(at as *mut u8).expect("an address"), 1, n);
                        tx.commit();
                        committed.store(n, Release);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(3 + round % 7));
            pool.clone().close().expect("close");
        });
        drop(pool);
        let pool = Pool::open(dir.path(), &options()).expect("open");
        assert!(pool.recovery().clean);
        for (i, committed) in committed.iter().enumerate() {
            assert_eq!(first_word(&pool, &format!("b{i}")), Some(committed.load(Acquire)), "a committed transaction is lost");
        }
    }
}

#[test]
fn applying_on_demand_beside_the_applier_keeps_order() {
    let dir = dir();
    let options = Options { medium: Some(Kind::File), log_len: Some(1 << 20), interval: Duration::from_millis(1), ..options() };
    let pool = Pool::create(dir.path(), &options).expect("create");
    let mut thread = pool.register().expect("register");
    let at = block(&mut thread, "b", 64);
    let over = AtomicBool::new(false);
    let mut n = 0;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Acquire) {
                    pool.apply_now().expect("apply");
                }
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1500) {
            n += 1;
            let tx = thread.begin().expect("begin");
            write_lines(&tx, at, 64, n);
            tx.commit();
        }
        over.store(true, Release);
    });
    drop(thread);
    pool.sync().expect("sync");
    pool.apply_now().expect("apply");
    pool.abandon();
    let pool = Pool::open(dir.path(), &options).expect("open");
    assert_eq!(first_word(&pool, "b"), Some(n), "an older epoch was applied over a newer one");
}

#[test]
fn epochs_recovered_keep_their_commit_slots() {
    let dir = dir();
    let options = Options { medium: Some(Kind::File), manual: true, ..options() };
    let mut epochs = 0;
    for generation in 0..4 {
        let pool = Pool::open_or_create(dir.path(), &options).unwrap_or_else(|e| panic!("generation {generation}: {e}"));
        let mut thread = pool.register().expect("register");
        if epochs == 0 {
            block(&mut thread, "b", 1);
        }
        assert_eq!(first_word(&pool, "b"), Some(epochs), "generation {generation}");
        for _ in 0..100 {
            let at = pool.root("b").expect("the root").ptr;
            epochs += 1;
            let tx = thread.begin().expect("begin");
            write_lines(&tx, at, 1, epochs);
            tx.commit();
            pool.checkpoint().expect("checkpoint");
        }
        drop(thread);
        pool.abandon();
    }
}

#[test]
fn age_is_that_of_the_oldest_change() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { interval: Duration::from_millis(20), ..options() }).expect("create");
    let mut thread = pool.register().expect("register");
    let at = block(&mut thread, "b", 1);
    pool.sync().expect("sync");
    // A busy machine may not let anybody look meanwhile.
    let ages = (0..10).map(|n| {
        std::thread::sleep(Duration::from_millis(500));
        let tx = thread.begin().expect("begin");
        write_lines(&tx, at, 1, n);
        tx.commit();
        let age = pool.stats().durable_age_us;
        pool.sync().expect("sync");
        age
    });
    let least = ages.scan(u64::MAX, |least, age| Some(std::mem::replace(least, age.min(*least)))).find(|least| *least < 250_000);
    assert!(least.is_some(), "nothing was written for half a second, and as much is said to be at risk");
}

#[test]
fn no_interval_makes_the_persister_spin() {
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { interval: Duration::ZERO, ..options() }).expect("create");
    assert!(pool.interval() >= Duration::from_micros(100));
    pool.set_interval(Duration::MAX);
    assert!(pool.wait_durable(pool.durable_epoch(), Duration::MAX).expect("durable already"));
}

#[test]
fn lists_are_counted_and_given_back() {
    let dir = dir();
    let options = Options { manual: true, heap_len: 256 << 20, log_len: Some(128 << 20), ..options() };
    let pool = Pool::create(dir.path(), &options).expect("create");
    let mut thread = pool.register().expect("register");
    let lines = (16 << 20) / LINE;
    let at = block(&mut thread, "b", lines);
    pool.checkpoint().expect("checkpoint");
    // Every second line, so that neighbours do not merge.
    let tx = thread.begin_reserving(lines * LINE).expect("begin");
    // SAFETY: in a live block that one thread uses.
    (0..lines / 2).for_each(|i| unsafe { tx.mark(at.as_ptr().wrapping_add(2 * i * LINE), 1) });
    tx.commit();
    pool.checkpoint().expect("checkpoint");
    let most = pool.stats().list_bytes;
    assert!(most as usize >= lines / 2 * 8, "{most} bytes of lists for {} runs", lines / 2);
    for n in 0..40 {
        write_lines(&thread.begin().expect("begin"), at, 1, n);
        pool.checkpoint().expect("checkpoint");
    }
    let least = pool.stats().list_bytes;
    assert!(least < most / 4, "{least} bytes are held, {most} at the most");
}

/// A lazily opened working copy shows the image: an older version of a line, written there again, would be read by the program.
#[test]
fn what_was_replayed_is_not_applied_again() {
    let dir = dir();
    let options = Options { medium: Some(Kind::File), manual: true, ..options() };
    let pool = Pool::create(dir.path(), &options).expect("create");
    let mut thread = pool.register().expect("register");
    let at = block(&mut thread, "b", 512);
    for n in 1..=20 {
        write_lines(&thread.begin().expect("begin"), at, 512, n);
        pool.checkpoint().expect("checkpoint");
    }
    drop(thread);
    pool.abandon();
    let pool = Pool::open(dir.path(), &options).expect("open");
    assert_eq!(pool.recovery().epochs_replayed, 20);
    let before = pool.stats();
    pool.apply_now().expect("apply");
    let after = pool.stats();
    assert_eq!(after.log_bytes, 0, "the epochs are cut");
    let written = after.medium_bytes - before.medium_bytes;
    assert!(written <= 4096, "{written} bytes were written: the superblock, and lines of the image again");
    assert_eq!(first_word(&pool, "b"), Some(20));
}

#[test]
fn bringing_the_image_up_shows_the_program_nothing_old() {
    const LINES: usize = (4 << 20) / LINE;
    const EPOCHS: u64 = 12;
    let dir = dir();
    let options = Options { medium: Some(Kind::File), manual: true, log_len: Some(128 << 20), ..options() };
    let pool = Pool::create(dir.path(), &options).expect("create");
    let mut thread = pool.register().expect("register");
    let at = block(&mut thread, "b", LINES);
    for n in 1..=EPOCHS {
        let tx = thread.begin_reserving(LINES * LINE).expect("begin");
        write_lines(&tx, at, LINES, n);
        tx.commit();
        pool.checkpoint().expect("checkpoint");
    }
    drop(thread);
    pool.abandon();
    let pool = Pool::open(dir.path(), &options).expect("open");
    assert_eq!(pool.recovery().epochs_replayed, EPOCHS, "all is still in the log: more than is applied at a time");
    let root = pool.root("b").expect("the root").ptr;
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| pool.apply_now().expect("apply"));
        while !applying.is_finished() {
            for line in (0..LINES).step_by(64) {
                // SAFETY: in a live block; nobody writes it.
                let word = unsafe { root.as_ptr().add(line * LINE).cast::<u64>().read_volatile() };
                assert_eq!(word, EPOCHS, "line {line} went back in time");
            }
        }
    });
}

/// The persister's thread has scheduling of its own; a user who takes a checkpoint himself keeps his.
#[test]
fn a_checkpoint_leaves_the_callers_scheduling_alone() {
    // SAFETY: takes and gives numbers only.
    let policy = || unsafe { libc::sched_getscheduler(0) };
    let before = policy();
    let dir = dir();
    let pool = Pool::create(dir.path(), &Options { manual: true, ..options() }).expect("create");
    let mut thread = pool.register().expect("register");
    let at = block(&mut thread, "b", 8);
    write_lines(&thread.begin().expect("begin"), at, 8, 1);
    pool.checkpoint().expect("checkpoint");
    drop(thread);
    pool.close().expect("close");
    assert_eq!(policy(), before);
}
