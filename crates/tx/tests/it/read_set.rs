//! What is not in the read set decides nothing by itself: headers of blocks, space, roots. A body that lost a race
//! is run again; only a body whose reads hold is refused. And what decides an answer is durable when the caller gets
//! it.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread;
use std::time::Duration;

use crate::ways::gate::{Gated, Opens};
use crate::ways::{ways, words};
use towa_media::RamMedium;
use towa_tx::{Abort, Addr, Commit, Error, Options, Pool, Root, Thread, TmChoice, Tx};

fn pool(tm: TmChoice, commit: Commit, heap_len: u64) -> Pool {
    let options = Options { heap_len, lanes: 8, lane_len: 4 << 20, tm, commit, ..Options::default() };
    Pool::create_on(RamMedium::anonymous(), &options).unwrap()
}

fn push(tx: &mut Tx<'_>, top: Addr, payload: u64) -> Result<(), Abort> {
    let next = tx.read(top)?;
    let block = tx.alloc(16)?;
    tx.init(block, &[next, payload])?;
    tx.write(top, block)
}

fn pop(tx: &mut Tx<'_>, top: Addr) -> Result<(), Abort> {
    let first = tx.read(top)?;
    if first == 0 {
        return Ok(());
    }
    let next = tx.read(first)?;
    tx.write(top, next)?;
    tx.free(first)
}

/// Between a look at a block's header and a look at the reads, by value, another thread had freed the block,
/// allocated it anew and pushed it again: some hundred of a few million pops were told that there is no live block.
#[test]
fn a_stack_by_the_book_frees_what_it_popped() {
    for commit in [Commit::Buffered, Commit::Strict] {
        let pool = pool(TmChoice::Stm, commit, 16 << 20);
        let top = words(&mut pool.register().unwrap(), 8);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..4 {
                let (pool, over) = (&pool, &over);
                scope.spawn(move || {
                    let mut thread = pool.register().unwrap();
                    while !over.load(Relaxed) {
                        thread.transaction(|tx| push(tx, top, number)).unwrap();
                        thread.transaction(|tx| pop(tx, top)).unwrap();
                    }
                });
            }
            thread::sleep(Duration::from_millis(1500));
            over.store(true, Relaxed);
        });
        assert_eq!(pool.check_blocks(), Ok(1), "{commit:?}: the stack is empty");
    }
}

/// Fills the heap with blocks of `size`.
fn fill(thread: &mut Thread, size: usize) -> Vec<Addr> {
    let mut blocks = Vec::new();
    loop {
        match thread.transaction_software(|tx| tx.alloc(size)) {
            Ok(block) => blocks.push(block),
            Err(Error::OutOfSpace { .. }) => return blocks,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn a_body_that_is_out_of_date_is_run_again_instead_of_being_refused_space() {
    for tm in ways().into_iter().filter(|tm| *tm != TmChoice::Lock) {
        // (Buffered: a strict transaction would wait for the body that runs it.)
        let pool = pool(tm, Commit::Buffered, 1 << 20);
        let (mut one, mut two) = (pool.register().unwrap(), pool.register().unwrap());
        let left = words(&mut one, 1);
        fill(&mut one, 60_000);
        let mut taken = false;
        // The program keeps a count of what is left, and asks for no more.
        one.transaction(|tx| tx.write(left, 1)).unwrap();
        let got = one.transaction_software(|tx| {
            if tx.read(left)? == 0 {
                return Ok(false);
            }
            if !std::mem::replace(&mut taken, true) {
                thread::scope(|scope| {
                    let take = || two.transaction_software(|tx| tx.write(left, 0)).unwrap();
                    scope.spawn(take).join().unwrap();
                });
            }
            tx.alloc(60_000).map(|_| true)
        });
        assert!(matches!(got, Ok(false)), "{tm:?}: {got:?}");
    }
}

/// A heap in which nothing is live refused a larger block at the first asking, and gave it at the second: within a
/// transaction the slabs that it gave up were not joined.
#[test]
fn what_was_freed_is_there_at_the_first_asking() {
    for tm in ways() {
        let pool = pool(tm, Commit::Strict, 8 << 20);
        let mut thread = pool.register().unwrap();
        for (small, large) in [(4096, 65_536), (32_768, 65_536), (65_536, 1 << 20)] {
            for block in fill(&mut thread, small) {
                thread.transaction_software(|tx| tx.free(block)).unwrap();
            }
            let block = thread.transaction_software(|tx| tx.alloc(large));
            let block = block.unwrap_or_else(|e| panic!("{tm:?}: {large} bytes after blocks of {small}: {e}"));
            thread.transaction_software(|tx| tx.free(block)).unwrap();
        }
    }
}

/// A block that another transaction freed is not to be had before that one is durable: a body that finds no other
/// waits for it.
#[test]
fn space_that_others_are_freeing_is_waited_for() {
    let (medium, gate) = Gated::anonymous();
    let options = Options { heap_len: 1 << 20, lanes: 8, lane_len: 4 << 20, tm: TmChoice::Stm, ..Options::default() };
    let pool = Pool::create_on(Arc::new(medium), &options).unwrap();
    let mut one = pool.register().unwrap();
    let blocks = fill(&mut one, 60_000);
    thread::scope(|scope| {
        let (pool, held) = (&pool, &gate);
        let _opens = Opens(held);
        scope.spawn(move || held.hold(|| pool.register().unwrap().transaction_software(|tx| tx.free(blocks[0])).unwrap()));
        gate.await_held(1);
        let asks = scope.spawn(move || one.transaction_software(|tx| tx.alloc(60_000)));
        thread::sleep(Duration::from_millis(200));
        assert!(!asks.is_finished(), "refused while the other's free is on its way");
        gate.open();
        asks.join().unwrap().unwrap();
    });
}

/// "Not enough money" is an answer as good as a sum: it may depend on what another transaction has done.
#[test]
fn what_an_abort_depends_on_is_durable_when_it_returns() {
    for tm in ways() {
        let (medium, gate) = Gated::anonymous();
        let options = Options { heap_len: 1 << 20, lanes: 8, lane_len: 4 << 20, tm, ..Options::default() };
        let pool = Pool::create_on(Arc::new(medium), &options).unwrap();
        let mut one = pool.register().unwrap();
        let money = words(&mut one, 1);
        thread::scope(|scope| {
            let (pool, held) = (&pool, &gate);
            let _opens = Opens(held);
            // It has taken effect, and is not durable while it is held.
            scope.spawn(move || held.hold(|| pool.register().unwrap().transaction(|tx| tx.write(money, 7)).unwrap()));
            gate.await_held(1);
            let asks =
                scope.spawn(move || one.transaction(|tx| if tx.read(money)? == 7 { tx.abort::<()>("seven") } else { Ok(()) }));
            thread::sleep(Duration::from_millis(200));
            assert!(!asks.is_finished(), "{tm:?}: told of what is not durable");
            gate.open();
            assert!(matches!(asks.join().unwrap(), Err(Error::Aborted("seven"))));
        });
    }
}

#[test]
fn a_root_that_a_body_read_is_part_of_what_it_read() {
    for tm in ways().into_iter().filter(|tm| *tm != TmChoice::Lock) {
        let pool = pool(tm, Commit::Buffered, 1 << 20);
        let (mut one, mut two) = (pool.register().unwrap(), pool.register().unwrap());
        let named = |block: Addr| Root { ptr: NonNull::new(block as *mut u8).unwrap(), type_tag: 1, size: 8 };
        let (old, new) = (words(&mut one, 1), words(&mut one, 1));
        one.transaction(|tx| tx.set_root("it", Some(named(old)))).unwrap();
        let mut runs = 0;
        let seen = one.transaction(|tx| {
            let root = tx.root("it")?.expect("a root");
            runs += 1;
            if runs == 1 {
                // Another block takes its name, and it is freed.
                let replace = |tx: &mut Tx<'_>| {
                    tx.set_root("it", Some(named(new)))?;
                    tx.free(old)
                };
                thread::scope(|scope| scope.spawn(|| two.transaction(replace).unwrap()).join().unwrap());
            }
            tx.free(root.ptr.as_ptr() as Addr)?;
            tx.set_root("it", None)?;
            assert_eq!(tx.root("it")?, None, "its own change");
            Ok(root)
        });
        assert_eq!((seen.unwrap(), runs), (named(new), 2), "{tm:?}");
        assert_eq!((pool.root("it"), pool.check_blocks()), (None, Ok(0)), "{tm:?}");
    }
}
