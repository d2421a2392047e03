//! The server as a cache beside memcached: sizes as caches have them, both full and evicting, the same requests for each.
//!
//! ```text
//!   for each load:  start and fill both ── round 1: one, then the other ── round 2: the other way round ── ... ── end both
//! ```
//!
//! What must hold:
//! - both have the same limit (`-m`), the same items and the same table of operations, cut into the same rounds;
//! - a read that misses is followed by a write of that key, as an application does that looks aside;
//! - a ratio is taken within a round, of operations of the table: a read and the write that follows its miss count as one;
//! - what a server refuses is counted and told; a round that takes too long is cut off, and its report says how much was done.
//!
//! memcached keeps nothing; towa keeps the items on the run's medium.

pub mod laws;
pub(crate) mod page;
pub mod report;
mod resident;
pub mod sequence;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::cleanup::Scratch;
use crate::client::{Client, Use};
use crate::contender::{Contender, rates_of, ratios, start_all, take_turns};
use crate::peers::{Peer, Setup};
use crate::progress::Progress;
use crate::record::Recorder;
use crate::windows::median;
use report::{CacheReport, CacheServerReport, Latency};
use sequence::{CacheLoad, Sequence};

/// Who takes part.
const PEERS: [Peer; 2] = [Peer::Towa, Peer::Memcached];

/// How long and with what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The loads.
    pub loads: Vec<CacheLoad>,
    /// Size of the cache in MiB (`-m`).
    pub memory_mb: u64,
    /// The same where items are small: filling it takes as many requests as it holds items.
    pub memory_small_mb: u64,
    /// Rounds.
    pub rounds: usize,
    /// Length of a round that the operations are meant for; one that takes longer than `PATIENCE` times this is cut off.
    pub round: Duration,
    /// Connections of the load generator.
    pub connections: usize,
    /// Seed of sizes and operations.
    pub seed: u64,
}

/// A round may take so many times the length it is meant for, and filling twice that. Rounds of a drifting load have unlike lengths, and others
/// may use the machine, so it is far more than a server needs that is no slower than planned.
const PATIENCE: u32 = 6;
/// Share of the run's limit after which no load begins. It is the last part of a run, and short: it may use what the limit leaves of the
/// time that is promised.
const BEGIN: f64 = 1.05;
/// Share of the limit after which no further round begins.
const GO_ON: f64 = 1.1;

impl Plan {
    /// `-m` for `load`.
    pub fn memory_mb(&self, load: CacheLoad) -> u64 {
        if load == CacheLoad::Etc { self.memory_small_mb } else { self.memory_mb }
    }

    /// Operations of a whole run of `load`: about as many as a server does, with a processor of its own, in the rounds' time.
    fn requests(&self, load: CacheLoad) -> usize {
        let a_second = match load {
            CacheLoad::MixedRead | CacheLoad::MixedWrite => 20_000.0,
            CacheLoad::Drift => 70_000.0,
            CacheLoad::Etc => 60_000.0,
            CacheLoad::Twitter => 35_000.0,
        };
        (a_second * self.round.as_secs_f64() * self.rounds as f64) as usize
    }

    /// Longest that a round takes before it is cut off.
    fn limit(&self) -> Duration {
        self.round * PATIENCE
    }
}

/// What was found, by load; what was not measured goes to `skipped` with its reason.
pub fn run(
    setup: &Setup,
    plan: &Plan,
    scratch: &Scratch,
    progress: &mut Progress,
    skipped: &mut Vec<String>,
) -> BTreeMap<String, CacheReport> {
    let mut reports = BTreeMap::new();
    for load in &plan.loads {
        progress.section(&format!("cache {}", load.name()));
        if progress.spent(BEGIN) {
            skipped.push(format!("cache {}: the time was up; run without --quick", load.name()));
            continue;
        }
        let setup = Setup { memory_mb: plan.memory_mb(*load), ..setup.clone() };
        reports.insert(load.name().to_owned(), measure(*load, &setup, plan, scratch, progress, skipped));
    }
    reports
}

/// One load on all servers.
fn measure(
    load: CacheLoad,
    setup: &Setup,
    plan: &Plan,
    scratch: &Scratch,
    progress: &Progress,
    skipped: &mut Vec<String>,
) -> CacheReport {
    let sequence = load.sequence(setup.memory_mb << 20, plan.rounds, plan.requests(load), plan.seed);
    let mut skip = |peer: Peer, why: String| skipped.push(format!("cache {}, {}: {why}", load.name(), peer.name()));
    let mut contenders = start_all(&PEERS, setup, progress, &mut skip, |peer| {
        let usage = Use::Cache(sequence.laws.clone());
        let begun = Instant::now();
        let keys = sequence.fill.iter().copied().take_while(|_| begun.elapsed() < plan.limit() * 2);
        Contender::start(peer, setup, plan.connections, usage, keys, scratch)
    });
    for contender in &contenders {
        let (loaded, planned) = (contender.loading.completed(), sequence.fill.len());
        if loaded < planned as u64 {
            skip(contender.server.peer, format!("filling was cut off after {loaded} of {planned} items"));
        }
    }
    let evictions = |contender: &Contender| (contender.server.peer.name(), contender.server.stat("evictions"));
    let evicted_before: BTreeMap<_, _> = contenders.iter().map(evictions).collect();
    for (round, part) in sequence.rounds.iter().enumerate() {
        // The first round is always taken; a server far slower than planned must not take the time that the whole run is promised to take.
        if round > 0 && progress.spent(GO_ON) {
            break;
        }
        contenders = take_turns(contenders, (round, plan.rounds), progress, &mut skip, |contender| {
            let turn = |client: &mut Client, record: &mut Recorder| {
                Ok(client.run_part(&sequence.table, part.clone(), plan.limit(), record)? as u64)
            };
            contender.round(turn)
        });
    }
    let report = cache_report(load, setup, &sequence, &contenders, &evicted_before);
    for contender in contenders {
        let dir = contender.dir.clone();
        drop(contender);
        // The next load needs the room; what is left of it goes with the run's directory.
        let _ = std::fs::remove_dir_all(dir);
    }
    report
}

fn cache_report(
    load: CacheLoad,
    setup: &Setup,
    sequence: &Sequence,
    contenders: &[Contender],
    evicted_before: &BTreeMap<&str, Option<u64>>,
) -> CacheReport {
    let rates = |peer| rates_of(contenders, peer);
    let ratios = rates(Peer::Towa).zip(rates(Peer::Memcached)).map(|(towa, base)| ratios(&towa, &base));
    let mut server: BTreeMap<_, _> = PEERS.iter().map(|peer| (peer.name().to_owned(), None)).collect();
    for contender in contenders {
        let name = contender.server.peer.name();
        let before = evicted_before.get(name).copied().flatten();
        server.insert(name.to_owned(), Some(server_report(contender, before, setup)));
    }
    CacheReport {
        what: load.what().into(),
        memory_mb: setup.memory_mb,
        keys: sequence.keys,
        working_set_mb: sequence.working_set as f64 / (1 << 20) as f64,
        value_bytes: sequence.value_bytes(),
        requests: sequence.table.len() as u64,
        ratio_to_memcached: ratios.as_ref().map(|ratios| median(ratios)),
        ratio_to_memcached_range: ratios
            .map(|ratios| ratios.iter().fold([f64::MAX, 0.0], |[low, high], ratio| [ratio.min(low), ratio.max(high)])),
        server,
    }
}

fn server_report(contender: &Contender, evicted_before: Option<u64>, setup: &Setup) -> CacheServerReport {
    let Contender { server, record, dir, loading, rates, .. } = contender;
    let reads = record.hits + record.misses;
    let (rss_mb, pool_mb) = (resident::process_mb(server.process.pid(), dir), resident::files_mb(dir).unwrap_or(0.0));
    CacheServerReport {
        ops: median(rates),
        ops_by_round: rates.clone(),
        requests: record.completed() - record.refills,
        get: latency(&record.read_ns),
        set: latency(&record.write_ns),
        hit_rate: (reads > 0).then(|| record.hits as f64 / reads as f64),
        refills: record.refills,
        evictions: server.stat("evictions").zip(evicted_before).map(|(now, before)| now.saturating_sub(before)),
        refused: record.refused,
        refused_filling: loading.refused,
        rss_mb,
        pool_mb,
        resident_mb: rss_mb.map(|rss| if setup.medium == "file" { rss } else { rss + pool_mb }),
    }
}

fn latency(latency_ns: &Histogram<u64>) -> Latency {
    let us = |quantile: f64| latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    Latency { p50: us(0.5), p99: us(0.99), p999: us(0.999), max: latency_ns.max() as f64 / 1e3 }
}
