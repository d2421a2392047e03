//! A device that fails a sync and works again afterwards, under every door that promises to survive the loss of power: a thousand rounds.
//!
//! What must hold: what was acknowledged is there, or the acknowledgement was an error; whichever process acknowledged it, and whatever
//! memory pressure did to the pages that the failed sync left clean. Each thing that recovery must write again is left out in turn: the
//! rounds notice. `TOWA_SEED` and `TOWA_ROUNDS` choose others.

use towa_crash_test::tree::{TinyBpTree, failing_round as tree_round};
use towa_crash_test::{Round, epoch, tx};
use towa_media::sim::ForgetsRewrite;
use towa_tree::FpTree;

type RoundOf = fn(u64, Option<ForgetsRewrite>) -> Result<Round, String>;

/// Runs rounds, all of which must be good.
fn rounds(door: &str, round: RoundOf, count: u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, count) = (number("TOWA_SEED").unwrap_or(0), number("TOWA_ROUNDS").unwrap_or(count));
    let mut all = Round::default();
    for seed in first..first + count {
        all += round(seed, None).unwrap_or_else(|e| panic!("{door}, round with TOWA_SEED={seed}: {e}"));
    }
    println!("{door}: {count} rounds from seed {first}, {all:?}");
    assert!(all.failed as u64 >= count / 4 || count < 20, "{door}: hardly any sync failed: {all:?}");
}

/// Runs rounds with a planted fault, one of which must fail.
fn noticed(door: &str, round: RoundOf, planted: ForgetsRewrite) {
    const MOST: u64 = 600;
    let found = (0..MOST).find_map(|seed| round(seed, Some(planted)).err().map(|e| (seed, e)));
    let (seed, why) = found.unwrap_or_else(|| panic!("{door}: {MOST} rounds did not notice the planted fault"));
    println!("{door}: noticed in round {seed}: {}", why.lines().next().unwrap_or_default());
}

#[test]
fn epoch_pools() {
    rounds("epoch", epoch::failing_round, 400);
}

#[test]
fn tx_pools() {
    rounds("tx", tx::failing_round, 300);
}

#[test]
fn bptrees() {
    rounds("B+-tree", tree_round::<TinyBpTree<u64>>, 100);
    rounds("B+-tree of strings", tree_round::<TinyBpTree<[u8]>>, 100);
}

#[test]
fn fptrees() {
    rounds("FPTree", tree_round::<FpTree<u64>>, 100);
    rounds("FPTree of strings", tree_round::<FpTree<[u8]>>, 100);
}

#[test]
fn epoch_recovery_that_leaves_out_a_rewrite_is_noticed() {
    noticed("superblock", epoch::failing_round, |region, _| region == "superblock");
    noticed("commit records", epoch::failing_round, |region, off| region == "log" && off < 4096);
    noticed("frames", epoch::failing_round, |region, off| region == "log" && off >= 4096);
}

#[test]
fn tx_recovery_that_leaves_out_a_rewrite_is_noticed() {
    noticed("superblock", tx::failing_round, |region, _| region == "superblock");
    noticed("cut", tx::failing_round, |region, off| region == "log" && off < 8192);
    noticed("records", tx::failing_round, |region, off| region == "log" && off >= 8192);
}

#[test]
fn fptree_recovery_that_leaves_out_a_rewrite_is_noticed() {
    noticed("arena", tree_round::<FpTree<u64>>, |_, _| true);
}
