//! Which transactions of a strict pool wait for which: for those whose words they read or change, and for no others.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use crate::ways::gate::{Gate, Gated, Opens};
use crate::ways::{ways, words};
use towa_tx::{Abort, Addr, Error, Options, Pool, Root, Thread, TmChoice, Tx};

/// Longer than a transaction takes that waits for none, and shorter than anything else in these tests.
const SOON: Duration = Duration::from_millis(150);

/// Of the shortest logs.
fn pool(tm: TmChoice) -> (Pool, Arc<Gate>) {
    let (medium, gate) = Gated::anonymous();
    let options = Options { heap_len: 16 << 20, lanes: 16, lane_len: 64 << 10, tm, ..Options::default() };
    (Pool::create_on(Arc::new(medium), &options).unwrap(), gate)
}

/// Does `work` in a thread of its own; the receiver has its result when it is done.
fn beside<'s, T: Send + 's>(scope: &'s thread::Scope<'s, '_>, work: impl FnOnce() -> T + Send + 's) -> Receiver<T> {
    let (done, is_done) = channel();
    scope.spawn(move || done.send(work()));
    is_done
}

/// A root that leads to `block`.
fn root(block: Addr) -> Root {
    Root { ptr: NonNull::new(std::ptr::with_exposed_provenance_mut(block as usize)).unwrap(), type_tag: 1, size: 512 }
}

/// What a transaction does with lines by their numbers.
type Body = fn(&mut Tx<'_>, &dyn Fn(u64) -> Addr) -> Result<(), Abort>;

fn add_one(tx: &mut Tx<'_>, a: Addr) -> Result<(), Abort> {
    let had = tx.read(a)?;
    tx.write(a, had + 1)
}

/// A transaction on the word at 0 has taken effect and is not durable. Of others, those that read or change what it
/// changed wait for it, and those that wait for these; all others return.
#[test]
fn a_transaction_waits_for_those_whose_words_it_uses() {
    for tm in ways().into_iter().filter(|tm| *tm != TmChoice::Rtm) {
        let (pool, gate) = pool(tm);
        let base = words(&mut pool.register().unwrap(), 64);
        let at = |line: u64| base.next_multiple_of(64) + line * 64;
        thread::scope(|scope| {
            let _opens = Opens(&gate);
            let (pool, held) = (&pool, &gate);
            let first = beside(scope, move || {
                held.hold(|| pool.register().unwrap().transaction(|tx| add_one(tx, at(0))).unwrap());
            });
            gate.await_held(1);
            let run = |body: Body| beside(scope, move || pool.register().unwrap().transaction(|tx| body(tx, &at)));
            // One after the other, for the second pair reads what the first pair writes.
            let reads = run(|tx, at| tx.read(at(0)).map(|_| ()));
            let aborts = run(|tx, at| tx.read(at(0)).and_then(|_| tx.abort("no")));
            let overwrites = run(|tx, at| tx.write(at(0), 7));
            let copies = run(|tx, at| tx.read(at(0)).and_then(|value| tx.write(at(1), value)));
            thread::sleep(SOON);
            let reads_the_copy = run(|tx, at| tx.read(at(1)).map(|_| ()));
            let others = [
                run(|tx, at| tx.read(at(2)).map(|_| ())),
                run(|tx, at| add_one(tx, at(3))),
                run(|tx, at| tx.alloc(64).and_then(|block| tx.init(block, &[1; 8]).and_then(|()| tx.write(at(4), block)))),
            ];
            for other in others {
                other.recv_timeout(Duration::from_secs(20)).expect("it waits for a transaction that it does not need").unwrap();
            }
            thread::sleep(SOON);
            for (name, waits) in [
                ("reads", &reads),
                ("aborts", &aborts),
                ("overwrites", &overwrites),
                ("copies", &copies),
                ("reads the copy", &reads_the_copy),
            ] {
                assert!(waits.try_recv().is_err(), "{tm:?}: the one that {name} returned before what it depends on was durable");
            }
            gate.open();
            first.recv().unwrap();
            assert!(matches!(aborts.recv().unwrap(), Err(Error::Aborted("no"))));
            for waits in [reads, overwrites, copies, reads_the_copy] {
                waits.recv().unwrap().unwrap();
            }
        });
    }
}

/// A block that another transaction allocated and filled is read by its address, which no transaction wrote anywhere.
#[test]
fn the_words_of_a_new_block_are_those_of_who_filled_it() {
    let (pool, gate) = pool(TmChoice::Stm);
    let (tell, told) = channel();
    thread::scope(|scope| {
        let _opens = Opens(&gate);
        let (pool, held) = (&pool, &gate);
        let _first = beside(scope, move || {
            held.hold(|| {
                pool.register().unwrap().transaction(|tx| {
                    let block = tx.alloc(640)?;
                    tx.init(block, &[5; 80])?;
                    tell.send(block).unwrap();
                    Ok(())
                })
            })
        });
        let block: Addr = told.recv().unwrap();
        gate.await_held(1);
        let reads = beside(scope, move || pool.register().unwrap().transaction(|tx| tx.read(block + 632)).unwrap());
        assert!(reads.recv_timeout(2 * SOON).is_err(), "read before it is durable");
        gate.open();
        assert_eq!(reads.recv().unwrap(), 5);
    });
}

/// A word changes away and back while a transaction runs that read it: the value is the same, and another transaction's.
#[test]
fn a_value_that_came_back_is_that_of_its_newest_writer() {
    for aborts in [false, true] {
        let (pool, gate) = pool(TmChoice::Stm);
        let base = words(&mut pool.register().unwrap(), 64).next_multiple_of(64);
        let (a, b) = (base, base + 64);
        thread::scope(|scope| {
            let _opens = Opens(&gate);
            let (pool, held) = (&pool, &gate);
            let mut runs = 0;
            let reads = beside(scope, move || {
                pool.register().unwrap().transaction(|tx| {
                    assert_eq!(tx.read(a)?, 0);
                    runs += 1;
                    if runs == 1 {
                        thread::scope(|scope| {
                            scope.spawn(|| pool.register().unwrap().transaction(|tx| tx.write(a, 1)).unwrap()).join().unwrap();
                        });
                        // It is in effect, and not durable, when the body goes on.
                        scope.spawn(move || held.hold(|| pool.register().unwrap().transaction(|tx| tx.write(a, 0)).unwrap()));
                        held.await_held(1);
                    }
                    if aborts { tx.read(b).and_then(|_| tx.abort("no")) } else { tx.write(b, 7) }
                })
            });
            assert!(reads.recv_timeout(2 * SOON).is_err(), "returned before the value that it read was durable");
            gate.open();
            assert_eq!(reads.recv().unwrap().is_err(), aborts);
        });
    }
}

/// The program looks a root up between transactions, as it may while the one that set it is not durable.
#[test]
fn what_a_root_led_to_is_durable_after_the_root() {
    let (pool, gate) = pool(TmChoice::Stm);
    let block = words(&mut pool.register().unwrap(), 64);
    thread::scope(|scope| {
        let _opens = Opens(&gate);
        let (pool, held) = (&pool, &gate);
        let sets = beside(scope, move || {
            held.hold(|| pool.register().unwrap().transaction(|tx| tx.set_root("it", Some(root(block)))).unwrap())
        });
        gate.await_held(1);
        assert_eq!(pool.root("it"), Some(root(block)));
        let writes = beside(scope, move || pool.register().unwrap().transaction(|tx| tx.write(block, 1)).unwrap());
        assert!(writes.recv_timeout(2 * SOON).is_err(), "durable, and the root that leads there is not");
        gate.open();
        sets.recv().unwrap();
        writes.recv().unwrap();
    });
}

/// A transaction frees a block, by which it stamps the block's line, and then fails: the writer of a word there is named by no stamp any
/// more, and is waited for all the same.
#[test]
fn a_transaction_that_fails_hides_no_writer() {
    for tm in [TmChoice::Stm, TmChoice::Lock] {
        let (pool, gate) = pool(tm);
        let mut thread = pool.register().unwrap();
        let (a, b) = (words(&mut thread, 64), words(&mut thread, 64));
        thread.transaction(|tx| tx.set_root("taken", Some(root(b)))).unwrap();
        drop(thread);
        thread::scope(|scope| {
            let _opens = Opens(&gate);
            let (pool, held) = (&pool, &gate);
            let writes = beside(scope, move || held.hold(|| pool.register().unwrap().transaction(|tx| tx.write(a, 42)).unwrap()));
            gate.await_held(1);
            let fails = beside(scope, move || {
                pool.register().unwrap().transaction(|tx| tx.free(a).and_then(|()| tx.create_root("taken", root(b))))
            });
            assert!(fails.recv_timeout(2 * SOON).is_err(), "told before what it read is durable");
            let copies = beside(scope, move || {
                pool.register().unwrap().transaction(|tx| tx.read(a).and_then(|value| tx.write(b, value))).unwrap();
            });
            assert!(copies.recv_timeout(2 * SOON).is_err(), "{tm:?}: durable, and what it copied is not");
            gate.open();
            writes.recv().unwrap();
            assert!(matches!(fails.recv().unwrap(), Err(Error::RootExists { .. })));
            copies.recv().unwrap();
        });
    }
}

/// Two transactions create a root: the second fails, and the first is not durable.
#[test]
fn a_root_that_could_not_be_created_hides_not_who_created_it() {
    let (pool, gate) = pool(TmChoice::Stm);
    let mut thread = pool.register().unwrap();
    let (a, b) = (words(&mut thread, 64), words(&mut thread, 64));
    drop(thread);
    thread::scope(|scope| {
        let _opens = Opens(&gate);
        let (pool, held) = (&pool, &gate);
        let creates =
            beside(scope, move || held.hold(|| pool.register().unwrap().transaction(|tx| tx.create_root("it", root(a))).unwrap()));
        gate.await_held(1);
        let fails = beside(scope, move || pool.register().unwrap().transaction(|tx| tx.create_root("it", root(b))));
        assert!(fails.recv_timeout(2 * SOON).is_err(), "told before the root is durable");
        let writes = beside(scope, move || pool.register().unwrap().transaction(|tx| tx.write(a, 1)).unwrap());
        assert!(writes.recv_timeout(2 * SOON).is_err(), "durable, and the root that leads there is not");
        gate.open();
        creates.recv().unwrap();
        assert!(matches!(fails.recv().unwrap(), Err(Error::RootExists { .. })));
        writes.recv().unwrap();
    });
}

/// What a transaction on guarded words does below a root is durable after that root, too.
#[test]
fn guarded_words_below_a_root_are_durable_after_it() {
    for tm in ways() {
        let (pool, gate) = pool(tm);
        let block = words(&mut pool.register().unwrap(), 64);
        thread::scope(|scope| {
            let _opens = Opens(&gate);
            let (pool, held) = (&pool, &gate);
            let sets = beside(scope, move || {
                held.hold(|| pool.register().unwrap().transaction(|tx| tx.set_root("it", Some(root(block)))).unwrap());
            });
            gate.await_held(1);
            let changes = beside(scope, move || pool.register().unwrap().change_guarded(block, 0, [(block + 64, 9)]).unwrap());
            assert!(changes.recv_timeout(2 * SOON).is_err(), "{tm:?}: durable, and the root that leads there is not");
            gate.open();
            sets.recv().unwrap();
            changes.recv().unwrap();
        });
    }
}

/// A block that a transaction on guarded words allocated, which stamps no lines, is freed by its address.
#[test]
fn a_block_is_freed_when_its_allocation_is_durable() {
    for tm in ways() {
        for in_software in [false, true] {
            let (pool, gate) = pool(tm);
            let guard = words(&mut pool.register().unwrap(), 64);
            thread::scope(|scope| {
                let _opens = Opens(&gate);
                let (pool, held) = (&pool, &gate);
                let allocates = beside(scope, move || {
                    let body = |tx: &mut Tx<'_>| {
                        tx.read_version(guard)?;
                        let block = tx.alloc(64)?;
                        tx.write_guarded(guard + 64, block)?;
                        tx.touch(guard)
                    };
                    let mut thread = pool.register().unwrap();
                    let done =
                        || if in_software { thread.transaction_software(body) } else { thread.transaction_guarded_software(body) };
                    held.hold(done).unwrap();
                });
                gate.await_held(1);
                let mut thread = pool.register().unwrap();
                let block = thread.load(guard + 64);
                assert_ne!(block, 0);
                let frees = beside(scope, move || thread.transaction(|tx| tx.free(block)).unwrap());
                assert!(frees.recv_timeout(2 * SOON).is_err(), "{tm:?}: freed durably, and its allocation is not durable");
                gate.open();
                allocates.recv().unwrap();
                frees.recv().unwrap();
                assert!(pool.check_blocks().is_ok());
            });
        }
    }
}

/// That a block was freed is an answer, too.
#[test]
fn a_block_that_was_freed_is_refused_when_that_is_durable() {
    let (pool, gate) = pool(TmChoice::Stm);
    let block = words(&mut pool.register().unwrap(), 64);
    thread::scope(|scope| {
        let _opens = Opens(&gate);
        let (pool, held) = (&pool, &gate);
        let frees = beside(scope, move || held.hold(|| pool.register().unwrap().transaction(|tx| tx.free(block)).unwrap()));
        gate.await_held(1);
        let again = beside(scope, move || pool.register().unwrap().transaction(|tx| tx.free(block)));
        assert!(again.recv_timeout(2 * SOON).is_err(), "told of what is not durable");
        gate.open();
        frees.recv().unwrap();
        assert!(matches!(again.recv().unwrap(), Err(Error::Usage(_))));
    });
}

/// Transactions that change guarded words leave no stamp on the lines: a plain read waits for all of them that are
/// older.
#[test]
fn a_plain_read_waits_for_transactions_that_change_guarded_words() {
    a_plain_read_waits_for(TmChoice::Stm, |thread, guard, word| thread.change_guarded(guard, 0, [(word, 9)]));
    let in_software: Change = |thread, guard, word| {
        thread.transaction_software(|tx| {
            tx.read_version(guard)?;
            tx.write_guarded(word, 9)?;
            tx.touch(guard)
        })
    };
    for tm in ways() {
        a_plain_read_waits_for(tm, in_software);
    }
}

/// Stores 9 to the word that the version word guards.
type Change = fn(&mut Thread, Addr, Addr) -> towa_tx::Result<()>;

fn a_plain_read_waits_for(tm: TmChoice, change: Change) {
    let (pool, gate) = pool(tm);
    let base = words(&mut pool.register().unwrap(), 64);
    thread::scope(|scope| {
        let _opens = Opens(&gate);
        let (pool, held) = (&pool, &gate);
        let guarded = beside(scope, move || {
            held.hold(|| change(&mut pool.register().unwrap(), base, base + 256).unwrap());
        });
        gate.await_held(1);
        let reads = beside(scope, move || pool.register().unwrap().transaction(|tx| tx.read(base + 256)).unwrap());
        assert!(reads.recv_timeout(2 * SOON).is_err(), "read before it is durable");
        gate.open();
        guarded.recv().unwrap();
        assert_eq!(reads.recv().unwrap(), 9);
    });
}

/// Ends bodies that wait for it, even if the test fails.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Release);
    }
}

/// However long a body takes, other transactions take effect and are durable, and so do checkpoints.
#[test]
fn a_slow_body_holds_up_no_other_transaction() {
    for tm in ways().into_iter().filter(|tm| *tm != TmChoice::Lock) {
        let (pool, _gate) = pool(tm);
        let base = words(&mut pool.register().unwrap(), 64);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let (pool, over) = (&pool, &over);
            let _ends = Ends(over);
            let (began, begins) = channel();
            let slow = beside(scope, move || {
                pool.register().unwrap().transaction_software(|tx| {
                    add_one(tx, base)?;
                    let _ = began.send(());
                    while !over.load(Acquire) {
                        thread::yield_now();
                    }
                    tx.write(base + 64, 1)
                })
            });
            begins.recv().unwrap();
            let others = beside(scope, move || {
                let mut thread = pool.register().unwrap();
                // More than its log holds at once.
                for _ in 0..2000 {
                    thread.transaction(|tx| add_one(tx, base + 128)).unwrap();
                    thread.transaction(|tx| tx.read(base + 192)).unwrap();
                    thread.transaction(|tx| tx.root("none")).unwrap();
                    thread.change_guarded(base + 256, thread.load(base + 256), [(base + 320, 1)]).unwrap();
                }
                pool.checkpoint().unwrap();
            });
            let done = others.recv_timeout(Duration::from_secs(30));
            over.store(true, Release);
            assert!(done.is_ok(), "{tm:?}: they wait for a body that they have nothing to do with");
            slow.recv().unwrap().unwrap();
        });
    }
}

/// A pool that is closed waits for bodies that run.
#[test]
fn closing_waits_for_a_body_that_runs() {
    for tm in ways() {
        let (pool, _gate) = pool(tm);
        let mut thread = pool.register().unwrap();
        let base = words(&mut thread, 8);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = &over;
            let _ends = Ends(over);
            let (began, begins) = channel();
            let slow = beside(scope, move || {
                thread.transaction_software(|tx| {
                    let _ = began.send(());
                    while !over.load(Acquire) {
                        thread::yield_now();
                    }
                    tx.write(base, 1)
                })
            });
            begins.recv().unwrap();
            let closes = beside(scope, move || pool.close());
            assert!(closes.recv_timeout(SOON).is_err(), "{tm:?}: closed under a running body");
            over.store(true, Release);
            slow.recv().unwrap().unwrap();
            closes.recv().unwrap().unwrap();
        });
    }
}
