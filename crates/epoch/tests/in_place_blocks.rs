//! New blocks of a pool in place: what a kill leaves of them, and of the blocks whose memory they took.

mod support;

use towa_epoch::Tx;

use support::{Block, NEW, OLD, dir, killed, killed_after};

const GROUP: u64 = 8192;

fn open(dir: &std::path::Path) -> towa_epoch::Pool {
    support::open(dir, 8 << 20)
}

/// Blocks of one size are freed, and blocks of another take their memory, before the freeing is durable: in the same epoch, or in the next
/// while the first one ends.
#[test]
fn a_block_that_is_taken_again_comes_back() {
    for (old_len, new_len) in [(1000, 1000), (300_000, 300_000), (300_000, 3000), (60_000, 3000), (3000, 200_000)] {
        for later in [false, true] {
            let case = format!("{old_len} bytes, then {new_len}; in the next epoch: {later}");
            let home = dir();
            let pool = open(home.path());
            let mut thread = pool.register().unwrap();
            let tx = thread.begin_reserving(4 << 20).unwrap();
            let old: Vec<Block> = (0..(2 << 20) / old_len).map(|_| Block::new(&tx, old_len, OLD)).collect();
            tx.commit();
            pool.checkpoint().unwrap();
            let take = |tx: &Tx<'_>| {
                let new: Vec<Block> = (0..(3 << 20) / new_len.max(30_000)).map(|_| Block::new(tx, new_len, NEW)).collect();
                assert!(new.iter().any(|new| old.iter().any(|old| new.overlaps(old))), "{case}: no memory was taken again");
            };
            // SAFETY: live, and not used in this process any more.
            let free = |tx: &Tx<'_>| old.iter().for_each(|block| unsafe { tx.free(block.0) });
            let left = killed_after((home.path(), &pool), &mut thread, free, take, later);
            drop(thread);
            pool.close().unwrap();
            let pool = open(left.path());
            assert!(pool.recovery().lines_replayed > 0);
            old.iter().for_each(|block| assert!(block.is_all(OLD), "{case}: a block has other bytes"));
            pool.close().unwrap();
        }
    }
}

/// A block that was free when the durable epoch ended costs the log one entry, and its memory comes back as zeros.
#[test]
fn new_blocks_are_blank_and_cost_an_entry() {
    let home = dir();
    let pool = open(home.path());
    let mut thread = pool.register().unwrap();
    thread.begin().unwrap().commit();
    pool.checkpoint().unwrap();
    let mut blocks = Vec::new();
    // Chunks that were never carved, and then those of blocks that are no more.
    for round in 0..2 {
        let before = pool.stats().log_bytes;
        let tx = thread.begin_reserving(1 << 20).unwrap();
        blocks = [300_000, 60_000, 1000, 300_000].map(|len| Block::new(&tx, len, NEW)).to_vec();
        tx.commit();
        let cost = pool.stats().log_bytes - before;
        assert!(cost <= 2 * GROUP, "round {round}: {cost} bytes of log for new blocks");
        if round == 1 {
            break;
        }
        // Sound with blank lines in chunks that no durable epoch knows of.
        killed(home.path());
        pool.checkpoint().unwrap();
        let tx = thread.begin().unwrap();
        // SAFETY: live, and not used in this process any more.
        blocks.iter().for_each(|block| unsafe { tx.free(block.0) });
        tx.commit();
        pool.checkpoint().unwrap();
        pool.checkpoint().unwrap();
    }
    let left = killed(home.path());
    drop(thread);
    pool.abandon();
    let pool = open(left.path());
    for block in blocks {
        // The first line was saved: it has a header.
        // SAFETY: within the block.
        let behind = Block(unsafe { block.0.add(64) }, block.1 - 64);
        assert!(behind.is_all(0), "a block of {} bytes is not blank", block.1);
    }
    pool.close().unwrap();
}
