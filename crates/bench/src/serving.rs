//! The server beside memcached and Redis: all running at once, one at a time under load, the same client for each.
//!
//! ```text
//!   start and load all ── round 1: each for some seconds, in turn ── round 2 ... ── kill each under load, restart, refind speed
//! ```
//!
//! What must hold: every server gets the same table of operations in a round; a round starts when the last server's background
//! work is over; a ratio is taken within a round. A server that fails is reported with its reason and does not end the run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cleanup::Scratch;
use crate::client::{Client, Use};
use crate::contender::{Contender, rates_of, ratio, start_all, take_turns};
use crate::peers::{Peer, Server, Setup};
use crate::progress::Progress;
use crate::record::Recorder;
use crate::report::ServerReport;
use crate::windows::{StopTally, mean, median};
use crate::wire::VALUE_LEN;
use crate::workload::{Keys, OpTable, TABLE_LEN, Workload, fnv1a, initial_keys};

/// How long and with what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Keys in each server.
    pub keys: u64,
    /// Rounds.
    pub rounds: usize,
    /// Length of a round.
    pub round: Duration,
    /// Connections of the load generator.
    pub connections: usize,
    /// Seed of the operations.
    pub seed: u64,
    /// Share of the run's time limit after which further rounds are left out.
    pub due: f64,
}

/// Keys that tell what a restart kept.
const WITNESSES: u64 = 5000;
/// Percentiles of the plot.
const PERCENTILES: [f64; 10] = [50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.95, 99.99];
/// Full speed is this share of the former rate...
const FULL_SPEED: f64 = 0.9;
/// ... over so long.
const SPEED_WINDOW: Duration = Duration::from_millis(100);
/// Given up looking for full speed after this.
const SPEED_PATIENCE: Duration = Duration::from_secs(20);

fn server_report(contender: &Contender, checkpoints_before: Option<u64>) -> ServerReport {
    let Contender { server, record, .. } = contender;
    let latency = record.latency_ns();
    let us = |percentile: f64| latency.value_at_quantile(percentile / 100.0) as f64 / 1e3;
    let own = StopTally::of(&record.counts, mean(&record.counts)).shares();
    ServerReport {
        ops: median(&contender.rates),
        p50: us(50.0),
        p99: us(99.0),
        p999: us(99.9),
        max: latency.max() as f64 / 1e3,
        windows_500us_above_own_50pct: own.windows_500us_above_50pct,
        checkpoints: checkpoints(server).zip(checkpoints_before).map(|(b, a)| b - a),
        rss_mb: server.rss_mb(),
        fork_copy_mb: fork_copy_mb(server),
        bytes_written: bytes_written(server, &contender.dir),
        percentiles: PERCENTILES.iter().map(|p| (*p, us(*p))).collect(),
        ..ServerReport::default()
    }
}

/// Kills it under load and starts it again over what it left; fills in the restart's figures.
fn restart(contender: Contender, setup: &Setup, plan: &Plan, table: &OpTable, report: &mut ServerReport) -> Result<()> {
    let Contender { server, mut client, dir, .. } = contender;
    let peer = server.peer;
    let load = table;
    std::thread::scope(|scope| -> Result<()> {
        // The load must still be running when the server dies; its end is the client's error.
        let busy = scope.spawn(move || client.run(load, 0, Duration::from_secs(10), &mut Recorder::new()));
        std::thread::sleep(Duration::from_millis(800));
        server.process.kill()?;
        let outcome = busy.join().map_err(|_| anyhow::anyhow!("the load generator panicked"))?;
        anyhow::ensure!(outcome.is_err(), "the load ended before the server was killed");
        Ok(())
    })?;
    let begun = Instant::now();
    let (server, first_answer) = peer.start(setup, &dir).context("starting it again")?;
    report.restart_first_answer_ms = Some(first_answer.as_secs_f64() * 1e3);
    let mut client = Client::connect(server.address, peer.protocol(), plan.connections, Use::Store)?;
    report.restart_full_speed_ms = full_speed(&mut client, table, report.ops * FULL_SPEED, begun)?;
    report.kept_share = Some(client.count_present(witnesses())? as f64 / witnesses().count() as f64);
    Ok(())
}

/// Keys that are loaded and never touched by the load: updates would put back what a restart lost.
fn witnesses() -> impl Iterator<Item = u64> {
    (0..WITNESSES).map(|i| 2 * i + 1)
}

/// Time since `begun`, in ms, until a window of the load is fast enough; `None` if it never was.
fn full_speed(client: &mut Client, table: &OpTable, rate: f64, begun: Instant) -> Result<Option<f64>> {
    let mut next = 0;
    while begun.elapsed() < SPEED_PATIENCE {
        let (start, mut record) = (Instant::now(), Recorder::new());
        next = client.run(table, next, SPEED_WINDOW, &mut record)?;
        if record.completed() as f64 / start.elapsed().as_secs_f64() >= rate {
            // Fast from the beginning of this window on.
            return Ok(Some((start - begun).as_secs_f64() * 1e3));
        }
    }
    Ok(None)
}

/// Checkpoints or snapshots so far.
fn checkpoints(server: &Server) -> Option<u64> {
    match server.peer {
        Peer::Towa => server.stat("checkpoints"),
        Peer::RedisRdb => server.stat("rdb_saves"),
        _ => None,
    }
}

fn fork_copy_mb(server: &Server) -> Option<f64> {
    let name = (server.peer == Peer::RedisRdb).then_some("rdb_last_cow_size")?;
    Some(server.stat(name)? as f64 / (1 << 20) as f64)
}

/// Bytes written for durability since the start: towa's own counter; what Redis wrote itself that did not go to clients (the
/// append-only file), and what its forked children wrote: snapshots and rewrites, at the size of the last one.
fn bytes_written(server: &Server, dir: &std::path::Path) -> Option<u64> {
    match server.peer {
        Peer::Towa => server.stat("medium_bytes"),
        Peer::RedisAof | Peer::RedisRdb => {
            let written = io_counter(server.process.pid(), "wchar")?;
            let own = written.saturating_sub(server.stat("total_net_output_bytes")?);
            let snapshot = std::fs::metadata(dir.join("dump.rdb")).map_or(0, |m| m.len());
            let snapshots = server.stat("rdb_saves").unwrap_or(0) * snapshot;
            let rewrites = server.stat("aof_rewrites").unwrap_or(0) * server.stat("aof_base_size").unwrap_or(0);
            Some(own + snapshots + rewrites)
        }
        Peer::Memcached | Peer::TowaVolatile => Some(0),
    }
}

/// A counter of `/proc/PID/io`.
fn io_counter(pid: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?.parse().ok()
}

/// What was found, by server; reasons of absent ones go to `skipped`.
pub fn run(
    setup: &Setup,
    plan: &Plan,
    scratch: &Scratch,
    progress: &mut Progress,
    skipped: &mut Vec<String>,
) -> Result<BTreeMap<String, Option<ServerReport>>> {
    progress.section("servers");
    let mut skip = |peer: Peer, why: String| skipped.push(format!("server {}: {why}", peer.name()));
    let mut contenders = start_all(&Peer::ALL, setup, progress, &mut skip, |peer| {
        let loaded = initial_keys(plan.keys).chain(witnesses());
        Contender::start(peer, setup, plan.connections, Use::Store, loaded, scratch)
    });
    let before: Vec<_> = contenders.iter().map(|c| (c.server.peer, checkpoints(&c.server))).collect();
    let keys = Keys::of(Workload::YcsbA, plan.keys);
    for round in 0..plan.rounds {
        if round >= 2 && progress.spent(plan.due) {
            break;
        }
        let table = OpTable::new(Workload::YcsbA, &keys, fnv1a(plan.seed ^ round as u64), TABLE_LEN);
        contenders = take_turns(contenders, (round, plan.rounds), progress, &mut skip, |contender| {
            contender.round(|client, record| Ok(client.run(&table, 0, plan.round, record)? as u64))
        });
    }
    let table = OpTable::new(Workload::YcsbA, &keys, plan.seed, TABLE_LEN);
    finish(contenders, &before, setup, plan, &table, progress, skip)
}

/// Reports, ratios, restarts.
fn finish(
    contenders: Vec<Contender>,
    checkpoints_before: &[(Peer, Option<u64>)],
    setup: &Setup,
    plan: &Plan,
    table: &OpTable,
    progress: &Progress,
    mut skip: impl FnMut(Peer, String),
) -> Result<BTreeMap<String, Option<ServerReport>>> {
    let mut reports: BTreeMap<_, _> = Peer::ALL.iter().map(|peer| (peer.name().to_owned(), None)).collect();
    let memcached = rates_of(&contenders, Peer::Memcached);
    for contender in contenders {
        let peer = contender.server.peer;
        progress.step(&format!("killing and restarting {}", peer.name()));
        let before = checkpoints_before.iter().find(|(other, _)| *other == peer).and_then(|(_, count)| *count);
        let mut report = server_report(&contender, before);
        report.ratio_to_memcached = memcached.as_ref().map(|base| ratio(&contender.rates, base));
        if let Err(e) = restart(contender, setup, plan, table, &mut report) {
            skip(peer, format!("restart: {e:#}"));
        }
        reports.insert(peer.name().to_owned(), Some(report));
    }
    Ok(reports)
}

/// Memory limit for servers that hold `keys` keys: twice the values, so that nothing is evicted.
pub fn memory_mb(keys: u64) -> u64 {
    ((keys * VALUE_LEN.1 as u64 * 2) >> 20) + 64
}
