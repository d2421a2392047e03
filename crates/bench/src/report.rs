//! What a run found, as it goes into JSON. Field names and units are stable; a figure that was not taken is `null`.
//!
//! ```text
//!   Report
//!   ├─ medium, machine, date, settings
//!   ├─ workloads   name -> WorkloadReport      one user thread
//!   ├─ threads     "2", "4" -> name -> WorkloadReport
//!   ├─ server      name -> ServerReport | null
//!   ├─ caches      load -> CacheReport           both servers as caches
//!   ├─ recovery    [RecoveryPoint]
//!   ├─ targets     [Target]
//!   └─ skipped     what was not measured, and why
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use crate::cache::report::CacheReport;
use crate::machine::Machine;
use crate::targets::Target;
use crate::windows::StopShares;

/// Version of this layout; grows when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Always `epoch`.
    pub benchmark: &'static str,
    /// When it began, UTC.
    pub date: String,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Medium of every durable engine: `ram`, `file` or `dax`.
    pub medium: String,
    /// Where the medium was and what it promises.
    pub medium_detail: MediumDetail,
    /// The machine.
    pub machine: Machine,
    /// What was asked for.
    pub settings: Settings,
    /// Units of the fields below, for readers of the JSON alone.
    pub units: BTreeMap<&'static str, &'static str>,
    /// One user thread: workload name to its figures.
    pub workloads: BTreeMap<String, WorkloadReport>,
    /// More user threads: number of threads to workload name to figures.
    pub threads: BTreeMap<String, BTreeMap<String, WorkloadReport>>,
    /// Servers by name; `null` where one was not measured (see `skipped`).
    pub server: BTreeMap<String, Option<ServerReport>>,
    /// Servers as caches of items of many sizes: load name to its figures.
    pub caches: BTreeMap<String, CacheReport>,
    /// Reopening after SIGKILL, by heap size.
    pub recovery: Vec<RecoveryPoint>,
    /// What must hold, what was measured, and whether it was met.
    pub targets: Vec<Target>,
    /// What was not measured, and why.
    pub skipped: Vec<String>,
}

/// The medium, in its own words.
#[derive(Clone, Debug, Serialize)]
pub struct MediumDetail {
    /// Directory of the pools.
    pub location: String,
    /// `process-safe` or `power-safe`.
    pub guarantee: String,
    /// How bytes become durable: `line` or `sync`.
    pub durability: String,
}

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// `--quick`: smaller heaps, fewer and shorter rounds.
    pub quick: bool,
    /// Time between checkpoints, in ms.
    pub interval_ms: u64,
    /// Buckets of the hash map, and keys of YCSB; half as many as there are hash-map keys.
    pub buckets: u64,
    /// Bytes of a value of the in-process stores.
    pub value_bytes: u64,
    /// What the YCSB workloads run on.
    pub ycsb_store: String,
    /// Rounds per engine planned, one user thread; fewer were run where `rounds` says so, because time was short.
    pub rounds: usize,
    /// Length of a round, in ms.
    pub round_ms: u64,
    /// Seed of all operation tables.
    pub seed: u64,
    /// The clock that windows are cut by.
    pub clock: String,
    /// Keys in each server.
    pub server_keys: u64,
    /// Connections of the load generator.
    pub server_connections: usize,
    /// Worker threads of each server.
    pub server_threads: usize,
    /// Whether the volatile heap had huge pages: share of its memory (0..=1), if the kernel says.
    pub volatile_huge_page_share: Option<f64>,
    /// The same of towa's working copy.
    pub towa_huge_page_share: Option<f64>,
}

/// One workload, all engines.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkloadReport {
    /// Operations a second, volatile; median of the rounds.
    pub ops_volatile: Option<f64>,
    /// Operations a second, towa (non-stop).
    pub ops_towa: Option<f64>,
    /// Operations a second, stop-the-world.
    pub ops_cpnvm: Option<f64>,
    /// Operations a second, volatile beside a thread that copies as many bytes in the same bursts as towa logged.
    pub ops_control: Option<f64>,
    /// towa / volatile; median of the ratios within each round.
    pub ratio_to_volatile: Option<f64>,
    /// The same for stop-the-world.
    pub ratio_cpnvm_to_volatile: Option<f64>,
    /// The same for the control.
    pub ratio_control_to_volatile: Option<f64>,
    /// Smallest and largest of towa's ratios over the rounds: how far to trust the median.
    pub ratio_to_volatile_range: Option<[f64; 2]>,
    /// Rounds of each engine.
    pub rounds: usize,
    /// Processor time of the user threads per operation.
    pub user_cpu_ns_per_op: CpuPerOp,
    /// Stops, volatile.
    pub volatile: Option<StopShares>,
    /// Stops, towa.
    pub towa: Option<StopShares>,
    /// Stops, stop-the-world.
    pub cpnvm: Option<StopShares>,
    /// Stops, control.
    pub control: Option<StopShares>,
    /// What towa's engine did meanwhile.
    pub towa_engine: Option<EngineActivity>,
    /// Completions per 100-us window over a stretch that holds checkpoints, where one was kept: volatile, towa, cpnvm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stretch_100us: Option<Stretch>,
}

/// Processor time that an operation costs the thread that asks for it, in nanoseconds; median of the rounds. Unlike throughput
/// it leaves out what the persister takes and what others on the machine take.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CpuPerOp {
    /// Volatile.
    pub volatile: Option<f64>,
    /// Towa.
    pub towa: Option<f64>,
    /// Stop-the-world.
    pub cpnvm: Option<f64>,
    /// Control.
    pub control: Option<f64>,
}

/// Completions per 100-us window, for the plot.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stretch {
    /// Volatile.
    pub volatile: Vec<u32>,
    /// Towa.
    pub towa: Vec<u32>,
    /// Stop-the-world.
    pub cpnvm: Vec<u32>,
}

/// What the engine did during its rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EngineActivity {
    /// Checkpoints taken.
    pub checkpoints: u64,
    /// Bytes of lines logged per checkpoint.
    pub logged_bytes_per_checkpoint: u64,
    /// Bytes written to the medium.
    pub media_bytes_written: u64,
    /// Bytes of values that the program wrote.
    pub user_bytes_written: u64,
    /// `media_bytes_written / user_bytes_written`.
    pub write_amplification: Option<f64>,
    /// Times a transaction waited for log space.
    pub stalls: u64,
    /// Microseconds so waited.
    pub stall_us: u64,
    /// Longest wait of the persister for the transactions of an old epoch since the pool was opened, in us.
    pub boundary_us_max: u64,
}

/// One server under the YCSB-A-like load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ServerReport {
    /// Operations a second; median of the rounds.
    pub ops: f64,
    /// ops / memcached's, median of the ratios within each round.
    pub ratio_to_memcached: Option<f64>,
    /// Median latency over the whole run, in us.
    pub p50: f64,
    /// 99th percentile, in us.
    pub p99: f64,
    /// 99.9th percentile, in us.
    pub p999: f64,
    /// Largest, in us.
    pub max: f64,
    /// Share of 500-us windows with at least half of the server's own mean rate.
    pub windows_500us_above_own_50pct: f64,
    /// Checkpoints (towa) or snapshots (Redis RDB) within the run.
    pub checkpoints: Option<u64>,
    /// Resident memory at the end of the run, in MiB.
    pub rss_mb: Option<f64>,
    /// Memory copied because of the last fork, in MiB (Redis).
    pub fork_copy_mb: Option<f64>,
    /// Bytes written to the medium or to files during the whole run, loading included; as far as the server tells.
    pub bytes_written: Option<u64>,
    /// SIGKILL under load, then: start of the new process to its first answer, in ms.
    pub restart_first_answer_ms: Option<f64>,
    /// Start of the new process to 90 % of its former rate, in ms.
    pub restart_full_speed_ms: Option<f64>,
    /// Share of the keys it still has after that restart (0..=1).
    pub kept_share: Option<f64>,
    /// Completions over percentiles, for the plot: percentile, us.
    pub percentiles: Vec<(f64, f64)>,
}

/// Reopening a heap after SIGKILL under full write load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RecoveryPoint {
    /// Size of the live data, in MiB.
    pub heap_mb: u64,
    /// Open to the first answered look-up, pages loaded as touched, in ms.
    pub lazy_ms: Option<f64>,
    /// The same with everything loaded at opening, in ms.
    pub eager_ms: Option<f64>,
    /// Redo lines replayed by the lazy opening.
    pub replayed_lines: Option<u64>,
    /// Bytes in the log when the heap was killed, as far as known: replayed lines of 64 bytes.
    pub replayed_mb: Option<f64>,
}

/// Units by field name.
pub fn units() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("ops_*", "operations per second, median of rounds"),
        ("ratio_*", "fraction, median of per-round ratios"),
        ("stop_share_N", "fraction of 100-us windows below N % of the volatile mean of the same round"),
        ("windows_500us_above_50pct", "fraction of 500-us windows with at least 50 % of the volatile mean"),
        ("server.*.ops", "operations per second"),
        ("server.*.p50/p99/p999/max", "microseconds"),
        ("caches.*.server.*.ops", "operations per second; a read and the write that follows its miss are one"),
        ("caches.*.server.*.get/set.p50/p99/p999/max", "microseconds"),
        ("recovery[].heap_mb", "MiB of live data"),
        ("*_ms", "milliseconds"),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cache::report::CacheServerReport;

    /// A report with nothing in it.
    pub(crate) fn empty() -> Report {
        Report {
            schema: SCHEMA,
            benchmark: "epoch",
            date: "2026-01-01T00:00:00Z".into(),
            took_s: 0.0,
            medium: "ram".into(),
            medium_detail: MediumDetail {
                location: "/dev/shm".into(),
                guarantee: "process-safe".into(),
                durability: "line".into(),
            },
            machine: Machine::here(),
            settings: Settings::default(),
            units: units(),
            workloads: BTreeMap::new(),
            threads: BTreeMap::new(),
            server: BTreeMap::new(),
            caches: BTreeMap::new(),
            recovery: Vec::new(),
            targets: Vec::new(),
            skipped: Vec::new(),
        }
    }

    #[test]
    fn json_has_the_promised_fields() {
        let mut report = empty();
        let shares = Some(StopShares::default());
        let workload = WorkloadReport {
            volatile: shares.clone(),
            towa: shares.clone(),
            cpnvm: shares.clone(),
            control: shares,
            ..WorkloadReport::default()
        };
        for name in ["ycsb_a", "hashmap_write"] {
            report.workloads.insert(name.into(), workload.clone());
        }
        report.server.insert("towa".into(), Some(ServerReport::default()));
        report.server.insert("redis_rdb".into(), None);
        let cache = CacheReport { server: [("towa".into(), Some(CacheServerReport::default()))].into(), ..CacheReport::default() };
        report.caches.insert("drift".into(), cache);
        report.recovery.push(RecoveryPoint { heap_mb: 100, ..RecoveryPoint::default() });
        let json = serde_json::to_value(&report).unwrap();
        for field in ["ops_volatile", "ops_towa", "ops_cpnvm", "ratio_to_volatile"] {
            assert!(json["workloads"]["ycsb_a"].get(field).is_some(), "{field}");
        }
        for engine in ["volatile", "towa", "cpnvm", "control"] {
            for field in ["stop_share_10", "stop_share_30", "stop_share_50", "windows_500us_above_50pct"] {
                assert!(json["workloads"]["hashmap_write"][engine][field].is_f64(), "{engine}.{field}");
            }
        }
        for field in ["ops", "p50", "p99", "p999", "max"] {
            assert!(json["server"]["towa"][field].is_f64(), "{field}");
        }
        assert!(json["server"]["redis_rdb"].is_null());
        for field in ["ops", "get", "set", "hit_rate", "evictions", "refused", "resident_mb"] {
            assert!(json["caches"]["drift"]["server"]["towa"].get(field).is_some(), "{field}");
        }
        assert!(json["caches"]["drift"]["server"]["towa"]["get"]["p999"].is_f64());
        assert!(json["caches"]["drift"].get("ratio_to_memcached").is_some());
        for field in ["heap_mb", "lazy_ms", "eager_ms"] {
            assert!(json["recovery"][0].get(field).is_some(), "{field}");
        }
        assert_eq!(json["medium"], "ram");
    }
}
