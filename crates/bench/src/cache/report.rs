//! What was found of a server as a cache, as it goes into JSON.

use std::collections::BTreeMap;

use serde::Serialize;

/// One load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CacheReport {
    /// What it is, and after what source.
    pub what: String,
    /// Size of the cache in MiB (`-m`), the same for both.
    pub memory_mb: u64,
    /// Keys there are.
    pub keys: u64,
    /// Names and values of the items asked for at a time, in MiB.
    pub working_set_mb: f64,
    /// Lengths of the values asked for, in bytes: mean, median and 99th percentile, by operations.
    pub value_bytes: [f64; 3],
    /// Operations planned: reads, each with the write that follows a miss, and writes.
    pub requests: u64,
    /// towa's operations a second over memcached's; median of the ratios within each round.
    pub ratio_to_memcached: Option<f64>,
    /// Smallest and largest of these ratios.
    pub ratio_to_memcached_range: Option<[f64; 2]>,
    /// By server; `null` where one was not measured (see `skipped`).
    pub server: BTreeMap<String, Option<CacheServerReport>>,
}

/// One server under one load. Counts are of the rounds, without filling.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CacheServerReport {
    /// Operations a second; median of the rounds.
    pub ops: f64,
    /// The same of each round.
    pub ops_by_round: Vec<f64>,
    /// Operations done; fewer than planned where rounds took too long and were cut off.
    pub requests: u64,
    /// Latency of reads, whether they found a value or not, in us.
    pub get: Latency,
    /// Latency of writes, those that followed a miss and those that were refused among them, in us.
    pub set: Latency,
    /// Share of reads that found a value (0..=1).
    pub hit_rate: Option<f64>,
    /// Writes that followed a miss.
    pub refills: u64,
    /// Items evicted, by the server's own count.
    pub evictions: Option<u64>,
    /// Writes refused.
    pub refused: u64,
    /// Writes refused while the cache was filled, before the first round.
    pub refused_filling: u64,
    /// Memory of the process without what it maps of its pool, in MiB.
    pub rss_mb: Option<f64>,
    /// What the files of its pool take, in MiB.
    pub pool_mb: f64,
    /// Memory altogether: the process's, and the pool's files where the medium is memory.
    pub resident_mb: Option<f64>,
}

/// Latencies, in us.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}
