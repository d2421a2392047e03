//! Blocks that are discarded, in a pool in place: what a kill leaves of them, and what that spares the log.

mod support;

use tempfile::TempDir;
use towa_epoch::{Pool, Tx};

use support::{Block, NEW, OLD, dir, killed, killed_after};

/// Where a block says that it is lost.
const WORD: usize = 16;

fn open(dir: &std::path::Path) -> Pool {
    support::open(dir, 8 << 20)
}

#[derive(Debug, PartialEq)]
enum Found {
    Whole,
    Lost,
}

/// What stands in a block that was written with this byte.
fn found(block: &Block, byte: u8) -> Found {
    if block.is_all(byte) {
        return Found::Whole;
    }
    let kept = |at: usize| if (WORD..WORD + 8).contains(&at) { 0 } else { byte };
    for (at, found) in block.bytes()[..Tx::KEPT].iter().enumerate() {
        assert_eq!(*found, kept(at), "byte {at} of a lost block of {}", block.1);
    }
    Found::Lost
}

/// Opens what a kill left; says what became of these blocks, and frees them all.
fn reopened(left: &TempDir, blocks: &[Block]) -> Vec<Found> {
    let pool = open(left.path());
    let found = blocks.iter().map(|block| found(block, OLD)).collect();
    let mut thread = pool.register().unwrap();
    let tx = thread.begin_reserving(4 << 20).unwrap();
    // SAFETY: live, and not used any more.
    blocks.iter().for_each(|block| unsafe { tx.free(block.0) });
    tx.commit();
    drop(thread);
    pool.close().unwrap();
    found
}

/// Blocks are discarded, and others take their memory, before that is durable: they come back lost, and the log has a line for each.
#[test]
fn what_was_discarded_comes_back_lost_and_costs_a_line() {
    for (old_len, new_len) in [(100, 100), (1000, 1000), (300_000, 300_000), (300_000, 3000), (60_000, 3000), (3000, 200_000)] {
        let home = dir();
        let pool = open(home.path());
        let mut thread = pool.register().unwrap();
        let tx = thread.begin_reserving(4 << 20).unwrap();
        let old: Vec<Block> = (0..(1 << 20) / old_len).map(|_| Block::new(&tx, old_len, OLD)).collect();
        tx.commit();
        pool.checkpoint().unwrap();
        let before = pool.stats().lines_logged;
        let tx = thread.begin_reserving(4 << 20).unwrap();
        // SAFETY: live blocks of this thread; `found` expects lost ones.
        old.iter().for_each(|block| unsafe { tx.discard(block.0, WORD) });
        let new: Vec<Block> = (0..(2 << 20) / new_len.max(30_000)).map(|_| Block::new(&tx, new_len, NEW)).collect();
        tx.commit();
        let left = killed(home.path());
        pool.checkpoint().unwrap();
        let logged = pool.stats().lines_logged - before;
        assert!(new.iter().any(|new| old.iter().any(|old| new.overlaps(old))), "{old_len}, {new_len}: no memory was taken again");
        // A line for each block that goes, and one, or two, for those that come; some for headers of chunks, and for what is left over in them.
        // (Of blocks of two lines `free` costs as much.)
        let most = (old.len() + 2 * new.len() + 600) as u64;
        assert!(logged <= most, "{old_len}, {new_len}: {logged} entries, at most {most} for {} and {}", old.len(), new.len());
        drop(thread);
        pool.close().unwrap();
        let became = reopened(&left, &old);
        assert!(became.iter().all(|block| *block == Found::Lost), "{old_len}, then {new_len}: {became:?}");
        // The pool that was not killed has the new blocks, whole.
        let pool = open(home.path());
        new.iter().for_each(|block| assert_eq!(found(block, NEW), Found::Whole));
        pool.close().unwrap();
    }
}

/// A block one of whose lines was changed since the durable epoch has that in the log already: it comes back whole.
#[test]
fn what_was_changed_before_it_was_discarded_comes_back_whole() {
    // In the same epoch, or in the one before, which is not durable yet.
    for earlier in [false, true] {
        let home = dir();
        let pool = open(home.path());
        let mut thread = pool.register().unwrap();
        let tx = thread.begin_reserving(4 << 20).unwrap();
        let old: Vec<Block> = (0..40).map(|_| Block::new(&tx, 3000, OLD)).collect();
        tx.commit();
        pool.checkpoint().unwrap();
        let change = |tx: &Tx<'_>| {
            for (nth, block) in old.iter().enumerate() {
                // One of its lines, another in each; none in every fourth.
                if !nth.is_multiple_of(4) {
                    // SAFETY: within a live block of this thread's.
                    unsafe {
                        let at = block.0.add(nth * 64);
                        tx.mark(at.as_ptr(), 8);
                        at.cast::<u64>().write_unaligned(7);
                    }
                }
            }
        };
        let discard = |tx: &Tx<'_>| {
            // SAFETY: live blocks of this thread; `found` expects lost ones.
            old.iter().for_each(|block| unsafe { tx.discard(block.0, WORD) });
            for _ in 0..60 {
                Block::new(tx, 3000, NEW);
            }
        };
        let left = killed_after((home.path(), &pool), &mut thread, change, discard, earlier);
        drop(thread);
        pool.close().unwrap();
        for (nth, found) in reopened(&left, &old).into_iter().enumerate() {
            let expected = if nth.is_multiple_of(4) { Found::Lost } else { Found::Whole };
            assert_eq!(found, expected, "block {nth}, changed in the epoch before: {earlier}");
        }
    }
}

/// One that has more lines than an entry can speak of.
#[test]
fn a_block_of_many_megabytes_is_lost_for_a_few_lines() {
    const LEN: usize = 20 << 20;
    let home = dir();
    let pool = support::open(home.path(), 40 << 20);
    let mut thread = pool.register().unwrap();
    let tx = thread.begin_reserving(24 << 20).unwrap();
    let old = Block::new(&tx, LEN, OLD);
    tx.commit();
    pool.checkpoint().unwrap();
    let before = pool.stats().lines_logged;
    let tx = thread.begin_reserving(24 << 20).unwrap();
    // SAFETY: a live block of this thread; `found` expects a lost one.
    unsafe { tx.discard(old.0, WORD) };
    let new = Block::new(&tx, LEN, NEW);
    assert_eq!(new.0, old.0);
    tx.commit();
    let left = killed(home.path());
    pool.checkpoint().unwrap();
    let logged = pool.stats().lines_logged - before;
    assert!(logged < 20, "{logged}");
    drop(thread);
    pool.close().unwrap();
    let pool = support::open(left.path(), 40 << 20);
    assert_eq!(found(&old, OLD), Found::Lost);
    pool.close().unwrap();
}

/// In a transaction that can be undone, to discard is to free.
#[test]
fn what_is_rolled_back_was_not_discarded() {
    let home = dir();
    let pool = open(home.path());
    let mut thread = pool.register().unwrap();
    let tx = thread.begin_reserving(4 << 20).unwrap();
    let old = Block::new(&tx, 5000, OLD);
    tx.commit();
    pool.checkpoint().unwrap();
    let tx = thread.begin_undoable_reserving(1 << 20).unwrap();
    // SAFETY: a live block of this thread; `found` expects a lost one.
    unsafe { tx.discard(old.0, WORD) };
    tx.abort();
    assert_eq!(found(&old, OLD), Found::Whole);
    let left = killed(home.path());
    drop(thread);
    pool.close().unwrap();
    assert_eq!(reopened(&left, &[old]), [Found::Whole]);
}

#[test]
#[should_panic(expected = "offset 48 is not a multiple of 8 below 48")]
fn the_word_lies_in_what_is_kept() {
    let home = dir();
    let pool = open(home.path());
    let mut thread = pool.register().unwrap();
    let tx = thread.begin().unwrap();
    let block = Block::new(&tx, 100, OLD);
    // SAFETY: it does not come to that.
    unsafe { tx.discard(block.0, Tx::KEPT) };
}
