//! What a transaction promises, on every way of running one: atomic, isolated, durable when the call returns.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::ways::ways;
use towa_tx::{Abort, Addr, Checkpointer, Commit, Error, Options, Pool, Root, Thread, TmChoice, hardware_transactions_commit};

fn options(tm: TmChoice) -> Options {
    // Pools of parallel tests live in one process, and are opened again where they were.
    static NEXT: AtomicUsize = AtomicUsize::new(0x4100_0000_0000);
    let base = Some(NEXT.fetch_add(1 << 30, Relaxed));
    Options {
        base,
        heap_len: 16 << 20,
        lanes: 8,
        lane_len: 256 << 10,
        tm,
        medium: Some(towa_media::Kind::Ram),
        ..Options::default()
    }
}

/// A block of `words` words of 0, named `name`.
fn array(thread: &mut Thread, name: &str, words: usize) -> Addr {
    thread
        .transaction(|tx| {
            let block = tx.alloc(words * 8)?;
            tx.init(block, &vec![0; words])?;
            let ptr = NonNull::new(block as *mut u8).expect("an address");
            tx.set_root(name, Some(Root { ptr, type_tag: 7, size: words as u64 * 8 }))?;
            Ok(block)
        })
        .unwrap()
}

fn root(pool: &Pool, name: &str) -> Addr {
    pool.root(name).expect("a root").ptr.as_ptr() as Addr
}

fn reopen(dir: &Path, options: &Options) -> Pool {
    Pool::open(dir, options).unwrap()
}

/// Of a block that is logged in part the rest costs nothing, and counts as soon as it is written.
#[test]
fn a_block_is_logged_as_far_as_is_asked_for() {
    for tm in ways() {
        // In a slab, and in chunks of its own.
        for size in [4000, 300_000] {
            let dir = tempfile::tempdir().unwrap();
            let options = options(tm);
            let pool = Pool::create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let before = pool.stats().log_bytes;
            let alloc = |tx: &mut towa_tx::Tx<'_>| {
                let block = tx.alloc_partly(size, 100)?;
                tx.init(block, &[5; 13])?;
                tx.write(block + 13 * 8, 6)?;
                tx.write(block + size as u64 - 8, 7)?;
                let ptr = NonNull::new(block as *mut u8).expect("an address");
                tx.set_root("block", Some(Root { ptr, type_tag: 7, size: size as u64 }))?;
                Ok(block)
            };
            let block = thread.transaction(alloc).unwrap();
            let logged = pool.stats().log_bytes - before;
            assert!(logged < 1024, "{tm:?}: {logged} bytes for a block of {size} of which 100 are logged");
            let beyond = thread.transaction(|tx| {
                let block = tx.alloc_partly(size, 100)?;
                tx.init(block, &[5; 14])
            });
            assert!(matches!(beyond, Err(Error::Usage(_))), "{beyond:?}");
            thread.transaction(|tx| tx.write(block + 2000, 8)).unwrap();
            drop(thread);
            pool.abandon();
            let pool = reopen(dir.path(), &options);
            let thread = pool.register().unwrap();
            assert_eq!(root(&pool, "block"), block);
            let words: Vec<_> = [0, 12 * 8, 13 * 8, 2000, size as u64 - 8].map(|at| thread.load(block + at)).into();
            assert_eq!(words, [5, 5, 6, 8, 7], "{tm:?} {size}");
        }
    }
}

#[test]
fn what_returned_is_there_after_the_process_is_gone() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(tm);
        for round in 0..4u64 {
            let pool = Pool::open_or_create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let block = if round == 0 { array(&mut thread, "cells", 100) } else { root(&pool, "cells") };
            for i in 0..100 {
                assert_eq!(thread.load(block + i * 8), round * 1000, "{tm:?} round {round} word {i}");
            }
            for i in 0..100u64 {
                thread.transaction(|tx| tx.write(block + i * 8, 7)).unwrap();
                thread.transaction(|tx| tx.write(block + i * 8, (round + 1) * 1000)).unwrap();
            }
            drop(thread);
            if round % 2 == 0 { pool.abandon() } else { pool.close().unwrap() }
        }
    }
}

#[test]
fn money_is_neither_made_nor_lost_by_many_threads() {
    const ACCOUNTS: u64 = 16;
    for tm in ways() {
        for commit in [Commit::Strict, Commit::Buffered] {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { commit, ..options(tm) };
            let pool = Pool::create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let block = array(&mut thread, "accounts", ACCOUNTS as usize);
            for i in 0..ACCOUNTS {
                thread.transaction(|tx| tx.write(block + i * 8, 1000)).unwrap();
            }
            std::thread::scope(|scope| {
                for worker in 0..4u64 {
                    let pool = &pool;
                    scope.spawn(move || {
                        let mut thread = pool.register().unwrap();
                        for n in 0..5000u64 {
                            let (from, to) = ((n * 7 + worker) % ACCOUNTS, (n * 11 + worker * 3 + 1) % ACCOUNTS);
                            let sum = thread.transaction(|tx| {
                                let (a, b) = (tx.read(block + from * 8)?, tx.read(block + to * 8)?);
                                if from != to && a > 0 {
                                    tx.write(block + from * 8, a - 1)?;
                                    tx.write(block + to * 8, b + 1)?;
                                }
                                if n % 100 > 0 {
                                    return Ok(None);
                                }
                                (0..ACCOUNTS).map(|i| tx.read(block + i * 8)).sum::<Result<u64, Abort>>().map(Some)
                            });
                            assert!(matches!(sum, Ok(None | Some(16_000))), "{tm:?}: {sum:?}");
                        }
                    });
                }
            });
            let stats = pool.stats();
            assert!(stats.commits_hardware + stats.commits_software >= 20_000, "{stats:?}");
            assert!(tm == TmChoice::Rtm || stats.commits_hardware == 0);
            drop(thread);
            if commit == Commit::Buffered {
                pool.sync().unwrap();
            }
            pool.abandon();
            let pool = reopen(dir.path(), &options);
            let (block, thread) = (root(&pool, "accounts"), pool.register().unwrap());
            assert_eq!((0..ACCOUNTS).map(|i| thread.load(block + i * 8)).sum::<u64>(), 16_000);
        }
    }
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::create(dir.path(), &options(tm)).unwrap();
        let mut thread = pool.register().unwrap();
        let block = array(&mut thread, "cells", 8);
        drop(thread);
        // Blocks at hand in caches count as used: a thread that ended has none.
        let used = pool.heap().allocator().used_bytes();
        let mut thread = pool.register().unwrap();
        for n in 0..200 {
            let aborted: Result<(), Error> = thread.transaction(|tx| {
                tx.write(block, 1)?;
                let more = tx.alloc(if n % 3 == 0 { 300_000 } else { 64 << (n % 5) })?;
                tx.init(more, &[1, 2, 3])?;
                tx.free(block)?;
                tx.set_root("other", None)?;
                tx.abort("a test")
            });
            assert!(matches!(aborted, Err(Error::Aborted("a test"))));
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            thread.transaction(|tx| -> Result<(), Abort> {
                tx.write(block, 1)?;
                tx.alloc(100)?;
                std::panic::resume_unwind(Box::new("on purpose"))
            })
        }));
        assert!(panicked.is_err());
        assert_eq!(thread.load(block), 0);
        assert!(pool.root("other").is_none());
        assert!(thread.transaction(|tx| tx.read(block)).is_ok(), "the thread goes on");
        drop(thread);
        assert_eq!(pool.heap().allocator().used_bytes(), used, "{tm:?}");
        pool.abandon();
        assert_eq!(reopen(dir.path(), &options(tm)).heap().allocator().block_of(block as usize).map(|b| b.live), Some(true));
    }
}

#[test]
fn blocks_are_neither_leaked_nor_used_twice() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(tm);
        for round in 0..3 {
            let pool = Pool::open_or_create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let cells = if round == 0 { array(&mut thread, "cells", 64) } else { root(&pool, "cells") };
            drop(thread);
            std::thread::scope(|scope| {
                for worker in 0..4u64 {
                    let pool = &pool;
                    scope.spawn(move || {
                        let mut thread = pool.register().unwrap();
                        for n in 0..400u64 {
                            let cell = cells + (n * 13 + worker * 29) % 64 * 8;
                            thread
                                .transaction_software(|tx| {
                                    let old = tx.read(cell)?;
                                    if old != 0 {
                                        assert_eq!(tx.read(old)?, cell, "a block of another cell");
                                        tx.free(old)?;
                                    }
                                    let new = tx.alloc(16 + (n % 40) as usize * 16)?;
                                    tx.init(new, &[cell])?;
                                    tx.write(cell, new)
                                })
                                .unwrap();
                        }
                    });
                }
            });
            let live = 1 + (0..64).filter(|i| pool.register().unwrap().load(cells + i * 8) != 0).count() as u64;
            pool.abandon();
            let medium = towa_media::open_dir(dir.path(), options.medium, false).unwrap();
            let report = towa_heap::verify(&*medium, towa_heap::superblock::Door::Tx, &mut |_, _| ()).unwrap();
            assert_eq!(report.live_blocks, live, "{tm:?} round {round}");
        }
    }
}

#[test]
fn a_full_log_waits_for_the_checkpointer_and_a_record_that_never_fits_is_refused() {
    for tm in ways() {
        for checkpointer in [Checkpointer::Thread, Checkpointer::Manual] {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { lane_len: 64 << 10, checkpointer, ..options(tm) };
            let pool = Pool::create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let block = array(&mut thread, "cells", 600);
            for n in 0..3000 {
                thread.transaction(|tx| (0..20).try_for_each(|i| tx.write(block + (i * 30) * 8, n))).unwrap();
            }
            let large = thread.transaction(|tx| tx.alloc(40 << 10));
            assert!(matches!(large, Err(Error::TooLarge { .. })), "{large:?}");
            thread.transaction(|tx| tx.write(block + 8, 5)).unwrap();
            // Some fit because they lie in a row, and some do not even so.
            let row = thread.transaction(|tx| tx.alloc_partly(6000 * 8, 0)).unwrap();
            let mut fill =
                |count: u64, apart: u64| thread.transaction(|tx| (0..count).try_for_each(|i| tx.write(row + i * 8 * apart, count)));
            fill(3000, 1).unwrap();
            // Into an empty log, too.
            pool.checkpoint().unwrap();
            for large in [fill(6000, 1), fill(2500, 2)] {
                assert!(matches!(large, Err(Error::TooLarge { .. })), "{large:?}");
            }
            drop(thread);
            pool.abandon();
            let pool = reopen(dir.path(), &options);
            let thread = pool.register().unwrap();
            assert_eq!((thread.load(block), thread.load(block + 8), thread.load(block + 570 * 8)), (2999, 5, 2999));
            assert_eq!((thread.load(row), thread.load(row + 2999 * 8)), (3000, 3000));
        }
    }
}

/// A transaction that frees what another freed meanwhile is repeated, not refused: it would not have seen that block.
#[test]
fn a_block_freed_meanwhile_is_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    // Buffered: nobody waits for the transaction in whose midst another thread runs one.
    let options = Options { commit: Commit::Buffered, ..options(TmChoice::Stm) };
    let pool = Pool::create(dir.path(), &options).unwrap();
    let (mut one, mut other) = (pool.register().unwrap(), pool.register().unwrap());
    let (cell, block) = (array(&mut one, "cell", 1), array(&mut one, "block", 4));
    one.transaction(|tx| tx.write(cell, block)).unwrap();
    let mut runs = 0;
    let freed = one.transaction(|tx| {
        let found = tx.read(cell)?;
        runs += 1;
        if runs == 1 {
            let mut between = || {
                other.transaction(|tx| {
                    tx.free(block)?;
                    tx.write(cell, 0)
                })
            };
            std::thread::scope(|scope| scope.spawn(&mut between).join()).unwrap().unwrap();
        }
        if found == 0 {
            return Ok(false);
        }
        tx.free(found)?;
        tx.write(cell, 0)?;
        Ok(true)
    });
    assert!(matches!(freed, Ok(false)), "{freed:?}");
    assert_eq!(runs, 2);
}

/// What several transactions wrote between two writes of the log may be more than the group's lane takes in one record.
#[test]
fn buffered_commits_outgrow_the_lane_that_logs_them() {
    for tm in ways() {
        for checkpointer in [Checkpointer::Thread, Checkpointer::Manual] {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { lane_len: 64 << 10, checkpointer, commit: Commit::Buffered, ..options(tm) };
            let pool = Pool::create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let blocks: Vec<Addr> = (0..12).map(|n| array(&mut thread, &format!("cells {n}"), 2000)).collect();
            for n in 1..4 {
                for block in &blocks {
                    thread.transaction_software(|tx| (0..1000).try_for_each(|i| tx.write(block + i * 16, n))).unwrap();
                }
            }
            pool.sync().unwrap();
            drop(thread);
            pool.abandon();
            let pool = reopen(dir.path(), &options);
            let thread = pool.register().unwrap();
            for n in 0..12 {
                let block = root(&pool, &format!("cells {n}"));
                assert!((0..1000).all(|i| thread.load(block + i * 16) == 3), "{tm:?}, {checkpointer:?}, block {n}");
            }
        }
    }
}

#[test]
fn misuse_is_an_error_and_the_pool_stays_good() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::create(dir.path(), &options(tm)).unwrap();
        let mut thread = pool.register().unwrap();
        let block = array(&mut thread, "cells", 8);
        let (base, len) = pool.heap_range();
        let usage = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Usage(_))), "{result:?}");
        usage(thread.transaction(|tx| tx.write(base, 1)));
        usage(thread.transaction(|tx| tx.init(block, &[1])));
        usage(thread.transaction(|tx| tx.free(block + 8)));
        usage(thread.transaction(|tx| {
            tx.free(block)?;
            tx.free(block)
        }));
        usage(thread.transaction(|tx| tx.set_root("", None)));
        let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| thread.transaction(|tx| tx.read(base + len))));
        assert!(outside.is_err());
        let none = thread.transaction(|tx| tx.alloc(1 << 30));
        assert!(matches!(none, Err(Error::OutOfSpace { .. })), "{none:?}");
        let more: Vec<_> = (0..7).map(|_| pool.register().unwrap()).collect();
        assert!(matches!(pool.register(), Err(Error::TooManyThreads { lanes: 8, .. })));
        drop(more);
        thread.transaction(|tx| tx.write(block, 9)).unwrap();
        let second = Pool::open(dir.path(), &options(tm));
        assert!(second.is_err_and(|e| e.to_string().contains("in use")), "a second owner");
        pool.close().unwrap();
        assert!(matches!(thread.transaction(|tx| tx.write(block, 1)), Err(Error::Poisoned { .. })));
    }
}

#[test]
fn full_space_fails_the_transaction_only() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { heap_len: 2 << 20, ..options(tm) };
        let pool = Pool::create(dir.path(), &options).unwrap();
        let mut thread = pool.register().unwrap();
        let mut blocks = Vec::new();
        let full = loop {
            match thread.transaction(|tx| tx.alloc(4000)) {
                Ok(block) => blocks.push(block),
                Err(e) => break e,
            }
        };
        assert!(matches!(full, Error::OutOfSpace { .. }) && blocks.len() > 200, "{full}, {} blocks", blocks.len());
        let last = blocks.pop().unwrap();
        thread.transaction(|tx| tx.free(last)).unwrap();
        assert!(thread.transaction(|tx| tx.alloc(4000)).is_ok());
    }
}

#[test]
fn closing_beside_writers_keeps_what_returned_and_ends() {
    for tm in ways() {
        for round in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { lane_len: 64 << 10, ..options(tm) };
            let pool = Pool::create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let block = array(&mut thread, "cells", 64);
            drop(thread);
            let returned: Vec<u64> = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..4u64)
                    .map(|worker| {
                        let mut thread = pool.register().unwrap();
                        scope.spawn(move || {
                            let mut done = 0;
                            loop {
                                // Words that all read and one writes: records wait for each other.
                                let one = thread.transaction(|tx| {
                                    (0..4).try_for_each(|i| tx.read(block + i * 64).map(drop))?;
                                    tx.write(block + worker * 64, done + 1)
                                });
                                match one {
                                    Ok(()) => done += 1,
                                    Err(Error::Poisoned { why, .. }) if why == "closed" => return done,
                                    Err(e) => panic!("{e}"),
                                }
                            }
                        })
                    })
                    .collect();
                std::thread::sleep(std::time::Duration::from_millis(round % 7));
                pool.clone().close().unwrap();
                workers.into_iter().map(|worker| worker.join().unwrap()).collect()
            });
            drop(pool);
            let pool = reopen(dir.path(), &options);
            let thread = pool.register().unwrap();
            for (worker, done) in (0..).zip(returned) {
                assert_eq!(thread.load(block + worker * 64), done, "{tm:?}, worker {worker}");
            }
        }
    }
}

#[test]
fn sync_waits_for_what_came_before_it() {
    for tm in ways() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { commit: Commit::Buffered, checkpointer: Checkpointer::Manual, ..options(tm) };
        let pool = Pool::create(dir.path(), &options).unwrap();
        let mut thread = pool.register().unwrap();
        let block = array(&mut thread, "cells", 8);
        let (begun, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let mut other = pool.register().unwrap();
            let (begun, go) = (&begun, &go);
            // A lock would keep the first thread's transaction out.
            if tm != TmChoice::Lock {
                scope.spawn(move || {
                    let mut first = true;
                    other
                        .transaction_software(|tx| {
                            tx.read(block + 8)?;
                            if std::mem::take(&mut first) {
                                begun.wait();
                                go.wait();
                            }
                            tx.write(block + 8, 1)
                        })
                        .unwrap();
                });
                begun.wait();
            }
            thread.transaction(|tx| tx.write(block, 7)).unwrap();
            if tm != TmChoice::Lock {
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    go.wait();
                });
            }
            pool.sync().unwrap();
        });
        drop(thread);
        pool.abandon();
        let pool = reopen(dir.path(), &options);
        assert_eq!(pool.register().unwrap().load(block), 7, "{tm:?}");
    }
}

#[test]
fn a_root_is_made_once() {
    for tm in ways() {
        let pool = Pool::volatile(&options(tm)).unwrap();
        let made = std::thread::scope(|scope| {
            let make = || {
                let mut thread = pool.register().unwrap();
                thread.transaction(|tx| {
                    let block = tx.alloc(64)?;
                    let ptr = NonNull::new(block as *mut u8).expect("an address");
                    tx.create_root("one", Root { ptr, type_tag: 1, size: 64 })
                })
            };
            let all: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            all.into_iter().map(|t| t.join().unwrap()).filter(Result::is_ok).count()
        });
        assert_eq!(made, 1, "{tm:?}");
    }
}

#[test]
fn an_undone_transaction_that_carved_more_than_a_record_holds_harms_nothing() {
    for tm in ways() {
        for commit in [Commit::Strict, Commit::Buffered] {
            let dir = tempfile::tempdir().unwrap();
            let options = Options { heap_len: 256 << 20, lane_len: 64 << 10, commit, ..options(tm) };
            let pool = Pool::create(dir.path(), &options).unwrap();
            let mut thread = pool.register().unwrap();
            let block = array(&mut thread, "cells", 8);
            for _ in 0..2 {
                let aborted: Result<(), Error> = thread.transaction_software(|tx| {
                    for _ in 0..1000 {
                        tx.alloc(140_000)?;
                    }
                    tx.abort("a test")
                });
                assert!(matches!(aborted, Err(Error::Aborted(_))), "{tm:?} {commit:?}: {aborted:?}");
            }
            thread.transaction(|tx| tx.write(block, 3)).unwrap();
            pool.sync().unwrap();
            drop(thread);
            pool.abandon();
            let pool = reopen(dir.path(), &options);
            assert_eq!(pool.register().unwrap().load(block), 3);
            let block = block as usize;
            assert_eq!(pool.heap().allocator().block_of(block).map(|b| b.live), Some(true));
        }
    }
}

#[test]
fn options_that_cannot_go_together_are_refused_before_anything_is_made() {
    let tm = TmChoice::Stm;
    for (bad, word) in [
        (
            Options { commit: Commit::Buffered, checkpointer: Checkpointer::Process, ..options(tm) },
            "a checkpointer that is a thread",
        ),
        (Options { commit: Commit::Buffered, lanes: 1, ..options(tm) }, "two lanes"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let refused = |result: Result<Pool, Error>| match result {
            Err(Error::Usage(why)) => assert!(why.contains(word), "{why}"),
            other => panic!("{other:?}"),
        };
        refused(Pool::open_or_create(dir.path(), &bad));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something was made");
        // Of a pool that is there, the number of logs is its own.
        Pool::create(dir.path(), &Options { commit: Commit::Strict, checkpointer: Checkpointer::Thread, ..bad.clone() })
            .unwrap()
            .close()
            .unwrap();
        refused(Pool::open(dir.path(), &Options { lanes: 8, ..bad }));
        Pool::open(dir.path(), &options(tm)).unwrap().close().unwrap();
    }
}

/// Page faults abort hardware transactions, and were not taken anywhere else on pages that only these write: such a transaction ran in
/// software for ever.
#[test]
fn hardware_transactions_survive_a_fork_and_bodies_that_write_much() {
    if !hardware_transactions_commit() {
        eprintln!("SKIPPED: this machine commits no hardware transactions");
        return;
    }
    const WORDS: u64 = 600;
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &options(TmChoice::Rtm)).unwrap();
    let mut thread = pool.register().unwrap();
    let block = array(&mut thread, "words", WORDS as usize);
    for after in ["the start", "a fork"] {
        if after == "a fork" {
            // SAFETY: the child does nothing but end; it is waited for.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(0);
                }
                assert!(child > 0 && libc::waitpid(child, std::ptr::null_mut(), 0) == child);
            }
        }
        let before = pool.stats().commits_hardware;
        // A neighbour on the same core may take the cache from many of them, not from all.
        for round in 0..20_000 {
            thread.transaction(|tx| (0..WORDS).try_for_each(|i| tx.write(block + i * 8, round))).unwrap();
            if pool.stats().commits_hardware - before > 100 {
                break;
            }
        }
        let stats = pool.stats();
        assert!(stats.commits_hardware - before > 100, "after {after}: they run in software for ever; {stats:?}");
    }
}
