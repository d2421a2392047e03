//! The pool's life: create, change, close, reopen, refuse.

use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use towa_epoch::{Error, Mode, Options, Pool, Root, Tx};

fn options() -> Options {
    Options { heap_len: 16 << 20, log_len: Some(4 << 20), interval: Duration::from_millis(5), ..Options::default() }
}

fn dirs() -> Vec<tempfile::TempDir> {
    let mut dirs = vec![tempfile::tempdir().expect("a temporary directory")];
    if Path::new("/dev/shm").is_dir() {
        dirs.push(tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm"));
    }
    dirs
}

/// Sets the counter behind root "counter" to `value`, making it first if need be.
fn set_counter(tx: &Tx<'_>, value: u64) {
    let counter = match tx.pool().root("counter") {
        Some(root) => root.ptr.cast::<u64>(),
        None => {
            let fresh = tx.alloc(8).expect("space for a counter");
            // SAFETY: eight bytes, just allocated, that hold any value.
            unsafe { tx.set_root("counter", Some(Root { ptr: fresh, type_tag: 7, size: 8 })) }.expect("a root slot");
            fresh.cast()
        }
    };
    // SAFETY: a live block of 8 bytes, used by this thread alone.
    unsafe {
        tx.mark(counter.as_ptr().cast(), 8);
        counter.write(value);
    }
}

fn counter(pool: &Pool) -> Option<u64> {
    let root = pool.root("counter")?;
    assert_eq!((root.type_tag, root.size), (7, 8));
    // SAFETY: the counter's block is live as long as its root is there.
    Some(unsafe { root.ptr.cast::<u64>().read() })
}

#[test]
fn what_was_closed_is_there_again() {
    for dir in dirs() {
        for round in 0..5 {
            let pool = Pool::open_or_create(dir.path(), &options()).expect("open");
            assert_eq!(counter(&pool), (round > 0).then(|| round * 100));
            assert!(pool.recovery().clean);
            let mut thread = pool.register().expect("register");
            for i in 0..=100 {
                let tx = thread.begin().expect("begin");
                set_counter(&tx, round * 100 + i);
                tx.commit();
            }
            drop(thread);
            pool.close().expect("close");
        }
    }
}

#[test]
fn what_was_synced_survives_an_unclean_end() {
    for dir in dirs() {
        for round in 1..=3u64 {
            let pool = Pool::open_or_create(dir.path(), &Options { manual: true, ..options() }).expect("open");
            assert_eq!(counter(&pool), (round > 1).then(|| round - 1));
            let mut thread = pool.register().expect("register");
            set_counter(&thread.begin().expect("begin"), round);
            thread.sync().expect("sync");
            set_counter(&thread.begin().expect("begin"), 999);
            // Poisoned: the last write is dropped with its epoch, like the process' death would.
            thread.begin().expect("begin").abort();
            drop(thread);
            assert!(matches!(pool.close(), Err(Error::Poisoned { .. })));
        }
    }
}

#[test]
fn checkpoints_come_by_themselves() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pool = Pool::create(dir.path(), &options()).expect("create");
    let mut thread = pool.register().expect("register");
    let tx = thread.begin().expect("begin");
    set_counter(&tx, 5);
    let epoch = tx.commit();
    assert!(pool.wait_durable(epoch, Duration::from_secs(10)).expect("not poisoned"));
}

#[test]
fn undo_restores_lines_blocks_and_roots() {
    let dir = tempfile::tempdir().expect("dir");
    let pool = Pool::create(dir.path(), &options()).expect("create");
    let mut thread = pool.register().expect("register");
    set_counter(&thread.begin().expect("begin"), 1);
    // A thread's free blocks count as used until it gives them back.
    drop(thread);
    let used = pool.stats().heap_used;
    let mut thread = pool.register().expect("register");
    for _ in 0..100 {
        let tx = thread.begin_undoable().expect("begin");
        set_counter(&tx, 2);
        let block = tx.alloc(1000).expect("space");
        // SAFETY: a fresh block of bytes.
        unsafe { tx.set_root("other", Some(Root { ptr: block, type_tag: 1, size: 1000 })) }.expect("root");
        tx.abort();
        assert_eq!(counter(&pool), Some(1));
        assert_eq!(pool.root("other"), None);
    }
    thread.begin().expect("not poisoned").commit();
    drop(thread);
    assert_eq!(pool.stats().heap_used, used, "every block came back");
    pool.close().expect("close");
}

#[test]
fn second_owner_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let _pool = Pool::create(dir.path(), &options()).expect("create");
    let second = Pool::open(dir.path(), &options()).expect_err("locked");
    assert!(second.to_string().contains("in use"), "{second}");
}

#[test]
fn misuse_is_an_error_and_harms_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    let pool = Pool::create(dir.path(), &options()).expect("create");
    assert!(matches!(Pool::create(dir.path(), &options()), Err(Error::Heap(_))));
    let mut thread = pool.register().expect("register");
    let tx = thread.begin().expect("begin");
    assert!(matches!(pool.sync(), Err(Error::Usage(_))));
    assert!(matches!(pool.checkpoint(), Err(Error::Usage(_))));
    let outside = Root { ptr: NonNull::dangling(), type_tag: 0, size: 1 };
    // SAFETY: refused.
    unsafe {
        assert!(matches!(tx.set_root("r", Some(outside)), Err(Error::Usage(_))));
        assert!(matches!(tx.set_root("", None), Err(Error::Usage(_))));
        assert!(matches!(tx.set_root(&"x".repeat(41), None), Err(Error::Usage(_))));
    }
    assert!(matches!(tx.alloc(1 << 40), Err(Error::NotReserved { .. })));
    tx.commit();
    std::mem::forget(thread.begin().expect("begin"));
    assert!(matches!(thread.begin(), Err(Error::Usage(_))), "nested");
    drop(thread);
    assert!(matches!(pool.register(), Err(Error::Poisoned { .. })), "a thread died inside a transaction");
}

#[test]
#[should_panic(expected = "not in the pool's heap")]
fn mark_outside_the_heap_panics() {
    let dir = tempfile::tempdir().expect("dir");
    let pool = Pool::create(dir.path(), &options()).expect("create");
    let mut thread = pool.register().expect("register");
    let local = 0u8;
    // SAFETY: it panics.
    unsafe { thread.begin().expect("begin").mark(&raw const local, 1) };
}

/// With something to store, without, and without being asked.
#[test]
fn a_pool_that_was_removed_says_so() {
    for (writes, asks) in [(true, true), (false, true), (true, false)] {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("pool");
        let pool = Pool::create(&path, &options()).expect("create");
        let mut thread = pool.register().expect("register");
        set_counter(&thread.begin().expect("begin"), 3);
        thread.sync().expect("sync");
        std::fs::remove_dir_all(&path).expect("removed");
        if let Some(tx) = writes.then(|| thread.begin().ok()).flatten() {
            set_counter(&tx, 4);
        }
        let began = std::time::Instant::now();
        while !asks && pool.check().is_ok() {
            assert!(began.elapsed().as_secs() < 10, "not noticed");
            std::thread::yield_now();
        }
        let said = thread.sync().expect_err("removed").to_string();
        assert!(said.contains("was removed"), "{said}");
    }
}

#[test]
fn out_of_space_fails_the_operation_only() {
    let dir = tempfile::tempdir().expect("dir");
    let pool = Pool::create(dir.path(), &options()).expect("create");
    let mut thread = pool.register().expect("register");
    set_counter(&thread.begin().expect("begin"), 3);
    let mut blocks = 0;
    while thread.begin_reserving(100_000).expect("begin").alloc(100_000).is_ok() {
        blocks += 1;
    }
    assert!(blocks > 50, "{blocks} blocks of 100 kB in 16 MiB");
    set_counter(&thread.begin().expect("the pool stays good"), 4);
    thread.sync().expect("sync");
    assert_eq!(counter(&pool), Some(4));
}

#[test]
fn small_log_holds_writers_back_and_loses_nothing() {
    for dir in dirs() {
        let small = Options { heap_len: 32 << 20, log_len: Some(1 << 20), ..options() };
        let pool = Pool::create(dir.path(), &small).expect("create");
        let mut thread = pool.register().expect("register");
        assert!(matches!(thread.begin_reserving(8 << 20), Err(Error::TooLarge { .. })));
        assert!(matches!(thread.begin().expect("begin").alloc(1 << 20), Err(Error::NotReserved { .. })));
        let blocks: Vec<NonNull<u8>> =
            (0..2048).map(|_| thread.begin_reserving(4096).expect("begin").alloc(4096).expect("space")).collect();
        for round in 0..20u64 {
            for (page, block) in blocks.iter().enumerate() {
                let tx = thread.begin().expect("begin");
                let at = block.as_ptr();
                // SAFETY: within the block, which only this thread uses.
                unsafe {
                    tx.mark(at, 4096);
                    std::ptr::write_bytes(at, (round + page as u64) as u8, 4096);
                }
            }
        }
        set_counter(&thread.begin().expect("begin"), 77);
        drop(thread);
        pool.close().expect("close");
        let pool = Pool::open(dir.path(), &small).expect("open");
        assert_eq!(counter(&pool), Some(77));
        for (page, block) in blocks.iter().enumerate() {
            // SAFETY: within the block, live in the reopened pool at the same address.
            let byte = unsafe { *block.as_ptr().add(5) };
            assert_eq!(byte, (19 + page as u64) as u8);
        }
    }
}

#[test]
fn stop_the_world_keeps_the_same_promises() {
    let dir = tempfile::tempdir().expect("dir");
    let stop = Options { mode: Mode::StopTheWorld, ..options() };
    let pool = Pool::create(dir.path(), &stop).expect("create");
    let mut thread = pool.register().expect("register");
    for i in 0..10_000 {
        set_counter(&thread.begin().expect("begin"), i);
    }
    drop(thread);
    pool.close().expect("close");
    assert_eq!(counter(&Pool::open(dir.path(), &stop).expect("open")), Some(9_999));
}

#[test]
fn volatile_pool_allocates_and_forgets() {
    let pool = Pool::volatile(&options()).expect("volatile");
    let mut thread = pool.register().expect("register");
    set_counter(&thread.begin().expect("begin"), 1);
    assert_eq!(counter(&pool), Some(1));
    assert_eq!(pool.stats().log_bytes, 0);
    pool.sync().expect("nothing to wait for");
}

#[test]
fn forgotten_mark_is_named() {
    let detect = Options { detect_forgotten_marks: true, manual: true, ..options() };
    forget_one_mark(&Pool::create_on(towa_media::RamMedium::anonymous(), &detect).expect("create"));
    // On a sync medium the image is behind, and is brought up for the comparison.
    let dir = tempfile::tempdir().expect("a temporary directory");
    let on_file = Options { medium: Some(towa_media::Kind::File), ..detect };
    forget_one_mark(&Pool::create(dir.path(), &on_file).expect("create"));
}

fn forget_one_mark(pool: &Pool) {
    let mut thread = pool.register().expect("register");
    let tx = thread.begin().expect("begin");
    let block = tx.alloc(4096).expect("space");
    // SAFETY: a fresh block of bytes.
    unsafe { tx.set_root("object", Some(Root { ptr: block, type_tag: 1, size: 4096 })) }.expect("root");
    // SAFETY: a fresh block of 4096 bytes.
    unsafe { std::ptr::write_bytes(block.as_ptr(), 0, 4096) };
    tx.commit();
    pool.checkpoint().expect("checkpoint");
    assert!(pool.take_forgotten_marks().is_empty(), "nothing was forgotten yet");
    let tx = thread.begin().expect("begin");
    // SAFETY: within the block. The second write is the planted bug.
    unsafe {
        tx.mark(block.as_ptr(), 8);
        block.as_ptr().write(1);
        block.as_ptr().add(2000).write(2);
    }
    tx.commit();
    pool.checkpoint().expect("checkpoint");
    let found = pool.take_forgotten_marks();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].address, block.as_ptr().addr() + 2000);
    assert_eq!(found[0].root.as_deref(), Some("object"));
    assert_eq!(found[0].block, Some((block.as_ptr().addr(), 4096)));
    assert!(found[0].last_marked.is_some());
}

/// A lazily opened heap is warmed while threads write all over it: nothing is lost on the way, nor at the next opening.
#[test]
fn warming_beside_writers_loses_nothing() {
    const CELLS: usize = 40_000;
    let lazy = Options { heap_len: 128 << 20, log_len: Some(32 << 20), interval: Duration::from_millis(10), ..options() };
    for dir in dirs() {
        let pool = Pool::create(dir.path(), &lazy).expect("create");
        let mut thread = pool.register().expect("register");
        let cells: Vec<usize> = (0..CELLS)
            .map(|_| {
                let tx = thread.begin().expect("begin");
                let cell = tx.alloc(1000).expect("space");
                // SAFETY: a fresh block.
                unsafe { cell.cast::<u64>().write(0) };
                cell.as_ptr().expose_provenance()
            })
            .collect();
        drop(thread);
        pool.close().expect("close");

        let pool = Pool::open(dir.path(), &lazy).expect("open lazily");
        let rounds = |pool: &Pool, share: usize| {
            let mut thread = pool.register().expect("register");
            let mut round = 0u64;
            while pool.stats().warm_percent < 100 || round < 3 {
                round += 1;
                for cell in cells.iter().skip(share).step_by(2) {
                    let at = std::ptr::with_exposed_provenance_mut::<u64>(*cell);
                    let tx = thread.begin().expect("begin");
                    // SAFETY: a live block that only this thread touches.
                    unsafe {
                        tx.mark(at.cast(), 8);
                        at.write(at.read() + 1);
                    }
                }
            }
            round
        };
        let (even, odd) = std::thread::scope(|scope| {
            let other = scope.spawn(|| rounds(&pool, 1));
            (rounds(&pool, 0), other.join().expect("no panic"))
        });
        let check = || {
            for (i, cell) in cells.iter().enumerate() {
                // SAFETY: a live block; nobody writes now.
                let value = unsafe { std::ptr::with_exposed_provenance::<u64>(*cell).read() };
                assert_eq!(value, if i % 2 == 0 { even } else { odd }, "cell {i}");
            }
        };
        check();
        pool.close().expect("close");
        let pool = Pool::open(dir.path(), &lazy).expect("open again");
        check();
        drop(pool);
    }
}

/// What is asked for is looked at before anything is made.
#[test]
fn a_refused_creation_leaves_no_directory() {
    let dir = tempfile::tempdir().expect("dir");
    let at = dir.path().join("pool");
    for asked in [Options { heap_len: 1, ..options() }, Options { log_len: Some(1), ..options() }] {
        assert!(Pool::create(&at, &asked).is_err() && Pool::open_or_create(&at, &asked).is_err());
        assert!(!at.exists(), "left behind");
    }
}
