//! Concurrent runs of both trees are linearizable: recorded, and judged exactly (`towa_crash_test::linear`).
//!
//! ```text
//!   4 threads on a few hot keys and the cold ones around them ─► history ─► an order that explains every answer?
//! ```
//!
//! What must hold, of numbers and byte strings, of every way to run transactions and of buffered pools too (which are told from strict ones by
//! crashes alone). Keys are few and nodes small where that is possible, so that splits and merges run under the operations.

use towa_crash_test::linear::{Key as Numbered, Plan, run};
use towa_media::RamMedium;
use towa_tree::fptree::{ENTRIES_MIN, Options as FpOptions};
use towa_tree::{BpTree, FpTree, Key};
use towa_tx::{Checkpointer, Commit, Options, Pool, TmChoice, hardware_transactions_commit};

/// Runs of each kind.
const SEEDS: std::ops::Range<u64> = 0..3;

/// Every way of running transactions that this machine has.
fn ways() -> Vec<TmChoice> {
    if !hardware_transactions_commit() {
        eprintln!("SKIPPED: rtm (this machine commits no hardware transactions); tried: stm, lock");
        return vec![TmChoice::Stm, TmChoice::Lock];
    }
    vec![TmChoice::Rtm, TmChoice::Stm, TmChoice::Lock]
}

fn plan(seed: u64) -> Plan {
    Plan { seed, ops: 5000, ..Plan::default() }
}

fn fptree<K: Key + Numbered + ?Sized>() {
    for seed in SEEDS {
        let options = FpOptions { entries: ENTRIES_MIN, ..FpOptions::default() };
        let tree = FpTree::<K>::create(RamMedium::anonymous(), &options).unwrap();
        run::<K>(&tree, &plan(seed)).unwrap_or_else(|why| panic!("{why}"));
    }
}

fn bptree<K: Key + Numbered + ?Sized, const LEAF: usize, const INNER: usize>(commit: Commit, checkpointer: Checkpointer) {
    for tm in ways() {
        for seed in SEEDS {
            let options =
                Options { tm, commit, checkpointer, heap_len: 64 << 20, lanes: 8, lane_len: 1 << 20, ..Options::default() };
            let pool = Pool::create_on(RamMedium::anonymous(), &options).unwrap();
            let tree = BpTree::<K, LEAF, INNER>::create(&pool, "map").unwrap();
            run::<K>(&tree, &plan(seed)).unwrap_or_else(|why| panic!("{tm:?}, {commit:?}: {why}"));
        }
    }
}

#[test]
fn an_fptree_of_numbers_is_linearizable() {
    fptree::<u64>();
}

#[test]
fn an_fptree_of_byte_strings_is_linearizable() {
    fptree::<[u8]>();
}

#[test]
fn a_bptree_of_numbers_is_linearizable() {
    bptree::<u64, 4, 4>(Commit::Strict, Checkpointer::Thread);
    bptree::<u64, 48, 62>(Commit::Strict, Checkpointer::Thread);
}

#[test]
fn a_bptree_of_byte_strings_is_linearizable() {
    bptree::<[u8], 4, 4>(Commit::Strict, Checkpointer::Thread);
    bptree::<[u8], 48, 62>(Commit::Strict, Checkpointer::Thread);
}

#[test]
fn a_bptree_in_a_buffered_pool_is_linearizable() {
    bptree::<u64, 4, 4>(Commit::Buffered, Checkpointer::Thread);
    bptree::<[u8], 4, 4>(Commit::Buffered, Checkpointer::Thread);
}
