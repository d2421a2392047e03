//! What a run found, as it goes into JSON. Field names and units are stable; a figure that was not taken is `null`.
//!
//! ```text
//!   TxReport
//!   ├─ insert, lookup, mixed, scan                     [Row]   a row a tree, path and number of threads
//!   ├─ insert_more, lookup_zipfian, mixed_zipfian      [Row]
//!   ├─ breakdown    [Breakdown]         where the time of the inserts went
//!   ├─ sweep        [SweepPoint]        inserts on slower memory
//!   ├─ recovery     [RecoveryPoint]     opening after SIGKILL
//!   └─ targets      [Target]
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use crate::machine::Machine;
use crate::targets::Target;

use super::load::Phase;

/// Version of this layout; grows when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct TxReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Always `tx`.
    pub benchmark: &'static str,
    /// When it began, UTC.
    pub date: String,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Always `ram`: real write-backs and fences on tmpfs.
    pub medium: &'static str,
    /// Directory of the maps.
    pub location: String,
    /// The machine.
    pub machine: Machine,
    /// What was asked for.
    pub settings: Settings,
    /// Units of the fields below, for readers of the JSON alone.
    pub units: BTreeMap<&'static str, &'static str>,
    /// Inserts into an empty map, the drain included.
    pub insert: Vec<Row>,
    /// Look-ups of keys that are there, uniform.
    pub lookup: Vec<Row>,
    /// Half inserts of new keys, half look-ups; the drain included.
    pub mixed: Vec<Row>,
    /// Scans of 100 entries; an operation is a whole scan.
    pub scan: Vec<Row>,
    /// Inserts into a map that holds as many keys already.
    pub insert_more: Vec<Row>,
    /// Look-ups, Zipfian.
    pub lookup_zipfian: Vec<Row>,
    /// Half upserts, half look-ups, Zipfian.
    pub mixed_zipfian: Vec<Row>,
    /// Where the time of `insert` went.
    pub breakdown: Vec<Breakdown>,
    /// Inserts on memory with longer write-backs, or less bandwidth.
    pub sweep: Vec<SweepPoint>,
    /// Opening after SIGKILL, by size.
    pub recovery: Vec<RecoveryPoint>,
    /// What must hold, what was measured, and whether it was met.
    pub targets: Vec<Target>,
    /// What was not measured, and why.
    pub skipped: Vec<String>,
}

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// `--quick`.
    pub quick: bool,
    /// Keys inserted into the empty map, and again into the full one.
    pub keys: u64,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Rounds planned; fewer were run where `rounds` says so, because time was short.
    pub rounds: usize,
    /// Log of a thread, in MiB.
    pub log_mb_per_thread: u64,
    /// Seed of the keys.
    pub seed: u64,
}

/// One tree, path and number of threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `bptree_tx`, `bptree_paper`, `fptree`, `pmdk_btree` or `volatile`.
    pub tree: String,
    /// User threads.
    pub threads: usize,
    /// How operations are isolated: `rtm`, `stm`, `lock`; of a volatile map: which map.
    pub tm: String,
    /// Millions of operations per second, median of the rounds.
    pub mops: f64,
    /// Lines written back per operation, counted by the medium.
    pub flushes_per_op: Option<f64>,
    /// Fences per operation, counted by the medium.
    pub fences_per_op: Option<f64>,
    /// Bytes of non-temporal stores per operation, counted by the medium.
    pub streamed_bytes_per_op: Option<f64>,
    /// Over the best `fptree` of the same round; median of the rounds.
    pub ratio_to_fptree: Option<f64>,
    /// Over `pmdk_btree` of the same round.
    pub ratio_to_pmdk: Option<f64>,
    /// Smallest and largest `mops`.
    pub mops_range: [f64; 2],
    /// Rounds.
    pub rounds: usize,
}

/// Shares of the threads' whole time (0..=1).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Breakdown {
    /// Which tree.
    pub tree: String,
    /// Which path.
    pub tm: String,
    /// User threads.
    pub threads: usize,
    /// In transactions that were rolled back, and between their tries.
    pub share_abort: f64,
    /// Waiting for room in the log.
    pub share_log_full: f64,
    /// Waiting for durability.
    pub share_durability_wait: f64,
    /// The operations' own work, and the drain.
    pub share_other: f64,
    /// The same as the paper gives them: of the time beyond the operations' own work. `null` where there is none.
    pub of_extra: Option<OfExtra>,
}

/// Shares of the extra time (0..=1).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OfExtra {
    /// Aborts.
    pub abort: f64,
    /// Full logs.
    pub log_full: f64,
    /// Durability.
    pub durability_wait: f64,
}

impl Breakdown {
    /// From the three shares of the whole.
    pub fn new((tree, tm, threads): (String, String, usize), abort: f64, log_full: f64, durability_wait: f64) -> Self {
        let extra = abort + log_full + durability_wait;
        let of_extra = OfExtra { abort: abort / extra, log_full: log_full / extra, durability_wait: durability_wait / extra };
        Self {
            tree,
            tm,
            threads,
            share_abort: abort,
            share_log_full: log_full,
            share_durability_wait: durability_wait,
            share_other: (1.0 - extra).max(0.0),
            of_extra: (extra > 0.0).then_some(of_extra),
        }
    }
}

/// Inserts into an empty map on one kind of slower memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepPoint {
    /// What varies: `write_back_ns` or `write_gb_s`.
    pub varies: &'static str,
    /// Nanoseconds added per line written back.
    pub write_back_ns: f64,
    /// Bandwidth of writes in GB/s; `null`: the machine's own.
    pub write_gb_s: Option<f64>,
    /// Which tree.
    pub tree: String,
    /// Which path.
    pub tm: String,
    /// User threads.
    pub threads: usize,
    /// Millions of inserts per second.
    pub mops: f64,
}

/// Opening a map whose process was killed under load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecoveryPoint {
    /// Which tree.
    pub tree: String,
    /// Which path.
    pub tm: String,
    /// Keys in it.
    pub keys: u64,
    /// From the call that opens to the first answered look-up, in ms.
    pub first_answer_ms: f64,
}

impl TxReport {
    /// Where rows of a phase go.
    pub fn rows_mut(&mut self, phase: Phase) -> &mut Vec<Row> {
        match phase {
            Phase::Insert => &mut self.insert,
            Phase::Lookup => &mut self.lookup,
            Phase::LookupZipfian => &mut self.lookup_zipfian,
            Phase::Scan => &mut self.scan,
            Phase::MixedZipfian => &mut self.mixed_zipfian,
            Phase::InsertMore => &mut self.insert_more,
            Phase::Mixed => &mut self.mixed,
        }
    }

    /// Rows of a phase.
    pub fn rows(&self, phase: Phase) -> &[Row] {
        match phase {
            Phase::Insert => &self.insert,
            Phase::Lookup => &self.lookup,
            Phase::LookupZipfian => &self.lookup_zipfian,
            Phase::Scan => &self.scan,
            Phase::MixedZipfian => &self.mixed_zipfian,
            Phase::InsertMore => &self.insert_more,
            Phase::Mixed => &self.mixed,
        }
    }

    /// The fastest row of a tree with so many threads: its best path.
    pub fn best(&self, phase: Phase, tree: &str, threads: usize) -> Option<&Row> {
        let rows = self.rows(phase).iter().filter(|r| r.tree == tree && r.threads == threads);
        rows.max_by(|a, b| a.mops.total_cmp(&b.mops))
    }
}

/// Units by field name.
pub fn units() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("mops", "millions of operations per second, median of rounds; what writes includes the drain of all logs"),
        ("flushes_per_op, fences_per_op", "lines written back and fences per operation, counted by the medium"),
        ("share_*", "fraction of the threads' whole time during insert"),
        ("of_extra.*", "fraction of the time beyond the operations' own work"),
        ("ratio_*", "fraction, median of per-round ratios"),
        ("scan.mops", "millions of whole scans of 100 entries per second"),
        ("*_ms", "milliseconds"),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report with nothing in it.
    pub(crate) fn empty() -> TxReport {
        TxReport {
            schema: SCHEMA,
            benchmark: "tx",
            date: "2026-01-01T00:00:00Z".into(),
            took_s: 0.0,
            medium: "ram",
            location: "/dev/shm".into(),
            machine: Machine::here(),
            settings: Settings::default(),
            units: units(),
            insert: Vec::new(),
            lookup: Vec::new(),
            mixed: Vec::new(),
            scan: Vec::new(),
            insert_more: Vec::new(),
            lookup_zipfian: Vec::new(),
            mixed_zipfian: Vec::new(),
            breakdown: Vec::new(),
            sweep: Vec::new(),
            recovery: Vec::new(),
            targets: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// One in which two trees were measured with two threads.
    pub(crate) fn sample() -> TxReport {
        let mut report = empty();
        report.settings.threads = vec![1, 2];
        for phase in Phase::ALL {
            for (tree, mops, ratio) in [("bptree_tx", 2.2, 1.1), ("fptree", 2.0, 1.0), ("pmdk_btree", 0.5, 0.25)] {
                for threads in [1, 2] {
                    report.rows_mut(phase).push(Row {
                        tree: tree.into(),
                        threads,
                        tm: "stm".into(),
                        mops: mops * threads as f64 / 2.0,
                        flushes_per_op: (tree != "pmdk_btree").then_some(2.0),
                        fences_per_op: (tree != "pmdk_btree").then_some(1.5),
                        ratio_to_fptree: Some(ratio),
                        ratio_to_pmdk: Some(ratio * 4.0),
                        ..Row::default()
                    });
                }
            }
        }
        report.breakdown = vec![Breakdown::new(("bptree_tx".into(), "stm".into(), 2), 0.05, 0.02, 0.13)];
        for write_back_ns in [0.0, 100.0] {
            report.sweep.push(SweepPoint {
                varies: "write_back_ns",
                write_back_ns,
                write_gb_s: None,
                tree: "fptree".into(),
                tm: "stm".into(),
                threads: 1,
                mops: 1.0,
            });
        }
        for (keys, first_answer_ms) in [(10_000, 1.0), (100_000, 9.0)] {
            report.recovery.push(RecoveryPoint { tree: "fptree".into(), tm: "stm".into(), keys, first_answer_ms });
        }
        report
    }

    #[test]
    fn json_has_the_promised_fields() {
        let json = serde_json::to_value(sample()).unwrap();
        for list in ["insert", "lookup", "mixed", "scan"] {
            for field in ["tree", "threads", "tm", "mops", "flushes_per_op", "fences_per_op"] {
                assert!(json[list][0].get(field).is_some(), "{list}[].{field}");
            }
        }
        for field in ["threads", "share_abort", "share_log_full", "share_durability_wait", "share_other"] {
            assert!(json["breakdown"][0][field].is_number(), "breakdown[].{field}");
        }
        assert!(json["recovery"].is_array());
    }
}
