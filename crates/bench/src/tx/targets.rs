//! What must hold for the trees' speed, and whether the run found it so. Judged here and nowhere else.
//!
//! What must hold: where a tree was run on several transaction paths, its best one counts, on both sides of a ratio; a ratio is of
//! figures of the same round; what was not measured is not met and not missed.

use super::contenders::{BPTREE_TX, FPTREE};
use super::load::Phase;
use super::report::{Row, TxReport};
use crate::targets::{Bound, Target};

/// Millions of operations per second for 1 and 2 threads: inserts, look-ups.
const PACE: [(usize, f64, f64); 2] = [(1, 1.0, 2.4), (2, 2.0, 5.0)];
/// `bptree_tx` over `fptree`.
const INSERT_RATIO: f64 = 1.0;
/// The same for look-ups.
const LOOKUP_RATIO: f64 = 0.95;
/// `bptree_tx` over `pmdk_btree`, inserts.
const PMDK_RATIO: f64 = 3.0;
/// Per cent of all time.
const ABORT_MOST: f64 = 10.0;
/// The same.
const LOG_FULL_MOST: f64 = 1.0;
/// Per insert.
const FENCES_MOST: f64 = 2.0;

/// Judges a report.
pub fn judge(report: &TxReport) -> Vec<Target> {
    let mut targets = Vec::new();
    for threads in &report.settings.threads {
        relative(report, *threads, &mut targets);
    }
    for (threads, inserts, lookups) in PACE {
        for (tree, phase, least) in [
            (BPTREE_TX, Phase::Insert, inserts),
            (BPTREE_TX, Phase::Lookup, lookups),
            (FPTREE, Phase::Insert, inserts),
            (FPTREE, Phase::Lookup, lookups),
        ] {
            let meaning = format!("{tree}: {}s a second, {threads} thread(s), 8-byte keys", phase.name());
            let measured = report.best(phase, tree, threads).map(|row| row.mops);
            let name = format!("pace {tree} {} x{threads}", phase.name());
            targets.push(Target::new(name, meaning, Bound::AtLeast, least, measured, "M/s"));
        }
    }
    targets
}

fn relative(report: &TxReport, threads: usize, targets: &mut Vec<Target>) {
    let best = |phase| report.best(phase, BPTREE_TX, threads);
    let ratio = |phase, get: fn(&Row) -> Option<f64>| best(phase).and_then(get);
    for (phase, least) in [(Phase::Insert, INSERT_RATIO), (Phase::InsertMore, INSERT_RATIO), (Phase::Lookup, LOOKUP_RATIO)] {
        let meaning = format!("{}: bptree_tx's throughput over fptree's, {threads} thread(s)", phase.name());
        let name = format!("{} to fptree x{threads}", phase.name());
        targets.push(Target::new(name, meaning, Bound::AtLeast, least, ratio(phase, |r| r.ratio_to_fptree), "x"));
    }
    let meaning = format!("inserts: bptree_tx's throughput over that of libpmemobj's btree_map, {threads} thread(s)");
    let measured = ratio(Phase::Insert, |r| r.ratio_to_pmdk);
    targets.push(Target::new(format!("insert to pmdk x{threads}"), meaning, Bound::AtLeast, PMDK_RATIO, measured, "x"));
    let tm = best(Phase::Insert).map(|r| r.tm.as_str());
    let lost = report.breakdown.iter().find(|b| b.tree == BPTREE_TX && b.threads == threads && Some(b.tm.as_str()) == tm);
    for (name, share, most) in
        [("abort", lost.map(|b| b.share_abort), ABORT_MOST), ("log full", lost.map(|b| b.share_log_full), LOG_FULL_MOST)]
    {
        let meaning = format!("inserts into bptree_tx: share of all time lost to '{name}', {threads} thread(s)");
        let percent = share.map(|s| s * 100.0);
        targets.push(Target::new(format!("{name} x{threads}"), meaning, Bound::AtMost, most, percent, "%"));
    }
    let fences = best(Phase::Insert).and_then(|r| r.fences_per_op);
    let meaning = format!("fences per insert into bptree_tx, counted by the medium, {threads} thread(s)");
    targets.push(Target::new(format!("fences x{threads}"), meaning, Bound::AtMost, FENCES_MOST, fences, "an insert"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_judged_on_its_side_of_the_line() {
        let mut report = crate::tx::report::tests::sample();
        // A slower path of the same tree does not count.
        let mut slow = report.insert[0].clone();
        (slow.mops, slow.ratio_to_fptree, slow.tm) = (0.1, Some(0.05), "lock".into());
        report.insert.push(slow);
        let targets = judge(&report);
        let met = |name: &str| targets.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}")).met;
        assert_eq!(met("insert to fptree x1"), Some(true));
        assert_eq!(met("lookup to fptree x2"), Some(true));
        assert_eq!(met("insert to pmdk x1"), Some(true));
        assert_eq!(met("pace fptree insert x2"), Some(true), "on the line is met");
        assert_eq!(met("pace fptree lookup x2"), Some(false));
        assert_eq!(met("abort x2"), Some(true));
        assert_eq!(met("log full x2"), Some(false), "2 % of the time");
        assert_eq!(met("log full x1"), None, "not measured is not missed");
        assert_eq!(met("fences x1"), Some(true));
    }

    #[test]
    fn nothing_measured_is_nothing_missed() {
        let mut report = crate::tx::report::tests::empty();
        report.settings.threads = vec![1];
        assert!(judge(&report).iter().all(|t| t.met.is_none()));
    }
}
