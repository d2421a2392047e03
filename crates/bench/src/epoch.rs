//! `towa bench epoch`: the epoch door's figures, from start to report.
//!
//! What must hold: `--quick` ends within four minutes on two cores; a missed target is a finding, not a failure (exit 0, unless
//! `--check`); a section that breaks is told and makes the run fail, but what the others found is written all the same.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use towa_media::Kind;

use crate::cache::{self, sequence::CacheLoad};
use crate::cleanup::{Scratch, watch_signals};
use crate::engines::{self, Rig};
use crate::machine::{CpuTimes, Machine, date_utc};
use crate::output;
use crate::peers::Setup;
use crate::progress::Progress;
use crate::recovery::{self, Children};
use crate::report::{MediumDetail, Report, SCHEMA, Settings, units};
use crate::store::VALUE_BYTES;
use crate::targets::verdict;
use crate::workload::Workload;
use crate::{html, serving, table, targets};

/// Measure the epoch door: throughput and stops beside a volatile and a stop-the-world engine, the server beside memcached and
/// Redis, as a cache of items of many sizes beside memcached, and the time to reopen after SIGKILL.
///
/// Engines and servers take turns in short rounds; a ratio is the median of the ratios within rounds. As caches, towa and memcached
/// are full all the time and evict; both are asked the same of items whose sizes are mixed, drift, or follow published traces. Prints tables and a list
/// of targets; a missed target does not fail the run unless --check is given. Needs about 4 GiB of memory (--quick) or 24 GiB
/// (full; larger heaps are skipped where memory is short). Peers are started from the Debian packages memcached and
/// redis-server and skipped, with a message, where they are absent.
#[derive(Clone, Debug, Args)]
pub struct EpochBenchArgs {
    /// Smaller heaps, fewer and shorter rounds: at most four minutes on two cores.
    #[arg(long)]
    pub quick: bool,
    /// Write all figures to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to FILE; it needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep the pools in a new directory within DIR [default: /dev/shm for ram, the current directory for file].
    #[arg(long, value_name = "DIR")]
    pub pool: Option<PathBuf>,
    /// Where durable bytes live.
    #[arg(long, value_enum, default_value_t = MediumArg::Ram)]
    pub medium: MediumArg,
    /// Exit with status 1 if a measured target is missed.
    #[arg(long)]
    pub check: bool,
    /// The program started as `towa serve` [default: this one].
    #[arg(long, value_name = "PATH")]
    pub towa_bin: Option<PathBuf>,
    /// Only these sections.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    pub only: Vec<Section>,
    /// Time between checkpoints, in milliseconds.
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub interval_ms: u64,
    /// Buckets of the hash map, and keys of YCSB [default: 1000000, quick 200000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    pub buckets: Option<u64>,
    /// Worker threads of each server (Redis has one).
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub server_threads: u64,
    /// Connections of the load generator, one request in flight on each.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub connections: u64,
    /// Seed of all keys and operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Where durable bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MediumArg {
    /// tmpfs: survives the process, not the machine.
    Ram,
    /// A file system, durable by fdatasync.
    File,
    /// A file system on durable memory.
    Dax,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Engines side by side, one user thread.
    Engines,
    /// The same with two and four user threads.
    Threads,
    /// Servers side by side.
    Server,
    /// Reopening after SIGKILL.
    Recovery,
    /// Servers as caches: values mixed from 100 B to 500 KB, few and many writes.
    Mixed,
    /// Servers as caches: the typical size moves from small to large and back.
    Drift,
    /// Servers as caches: as Facebook's ETC pool.
    Etc,
    /// Servers as caches: as one of Twitter's clusters, write-heavy.
    Twitter,
}

/// The section of a load on a cache.
fn section_of(load: CacheLoad) -> Section {
    match load {
        CacheLoad::MixedRead | CacheLoad::MixedWrite => Section::Mixed,
        CacheLoad::Drift => Section::Drift,
        CacheLoad::Etc => Section::Etc,
        CacheLoad::Twitter => Section::Twitter,
    }
}

impl MediumArg {
    fn name(self) -> &'static str {
        match self {
            MediumArg::Ram => "ram",
            MediumArg::File => "file",
            MediumArg::Dax => "dax",
        }
    }
}

impl From<MediumArg> for Kind {
    fn from(medium: MediumArg) -> Kind {
        match medium {
            MediumArg::Ram => Kind::Ram,
            MediumArg::File => Kind::File,
            MediumArg::Dax => Kind::Dax,
        }
    }
}

/// A medium by its name.
pub(crate) fn medium_kind(name: &str) -> Result<Kind> {
    match MediumArg::from_str(name, false) {
        Ok(medium) => Ok(medium.into()),
        Err(_) => bail!("no medium {name:?}; there are ram, file and dax"),
    }
}

/// When a quick run begins to leave things out; the four minutes it is promised to take leave room for what is under way.
const QUICK: Duration = Duration::from_secs(210);

/// Sizes and lengths of a run.
struct Plan {
    buckets: u64,
    one: engines::Plan,
    more: Vec<engines::Plan>,
    server: serving::Plan,
    caches: cache::Plan,
    heaps_mb: &'static [u64],
}

fn plan(args: &EpochBenchArgs) -> Plan {
    let ms = Duration::from_millis;
    let stretches = vec![Workload::YcsbA, Workload::HashmapWrite];
    let engines = |threads, rounds, round, stretches, time| engines::Plan {
        workloads: Workload::ALL.to_vec(),
        threads,
        rounds,
        round,
        stretches,
        time,
    };
    let server = |keys, rounds, round| {
        let (connections, seed) = (args.connections as usize, args.seed);
        serving::Plan { keys, rounds, round, connections, seed, due: 0.7 }
    };
    let caches = |memory_mb, memory_small_mb, rounds, round| {
        let wanted = |load: &CacheLoad| args.only.is_empty() || args.only.contains(&section_of(*load));
        let loads = CacheLoad::ALL.into_iter().filter(wanted).collect();
        let (connections, seed) = (args.connections as usize, args.seed);
        cache::Plan { loads, memory_mb, memory_small_mb, rounds, round, connections, seed }
    };
    if args.quick {
        Plan {
            buckets: args.buckets.unwrap_or(200_000),
            one: engines(1, 6, ms(500), stretches, (0.02, 0.40)),
            more: vec![engines(2, 2, ms(400), vec![], (0.4, 0.5)), engines(4, 2, ms(250), vec![], (0.5, 0.56))],
            server: server(100_000, 3, ms(2000)),
            caches: caches(128, 64, 6, ms(400)),
            heaps_mb: &[2048, 100, 500],
        }
    } else {
        Plan {
            buckets: args.buckets.unwrap_or(1_000_000),
            one: engines(1, 12, ms(2000), stretches, (0.0, 1.0)),
            more: vec![engines(2, 6, ms(1500), vec![], (0.0, 1.0)), engines(4, 6, ms(1500), vec![], (0.0, 1.0))],
            server: server(500_000, 6, ms(5000)),
            caches: caches(256, 256, 8, ms(5000)),
            heaps_mb: &[2048, 100, 500, 1024, 4096, 8192],
        }
    }
}

/// Where pools go unless told otherwise.
fn parent_directory(args: &EpochBenchArgs) -> Result<PathBuf> {
    Ok(match (&args.pool, args.medium) {
        (Some(dir), _) => {
            std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
            dir.canonicalize()?
        }
        (None, MediumArg::Ram) => PathBuf::from("/dev/shm"),
        (None, MediumArg::File) => std::env::current_dir()?,
        (None, MediumArg::Dax) => {
            bail!("--medium dax needs --pool DIR on a file system mounted with -o dax")
        }
    })
}

/// Fails before an hour of measuring rather than after it.
pub(crate) fn check_outputs(files: [&Option<PathBuf>; 2]) -> Result<()> {
    for file in files.into_iter().flatten() {
        let dir = file.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        ensure!(dir.is_dir(), "{}: no such directory to write {} in", dir.display(), file.display());
    }
    Ok(())
}

fn medium_detail(parent: &Path, medium: MediumArg) -> Result<MediumDetail> {
    let found = towa_media::detect(parent).with_context(|| format!("{}: looking at the medium", parent.display()))?;
    let word = |value: serde_json::Value| value.as_str().unwrap_or("unknown").to_owned();
    let kind = Kind::from(medium);
    if kind == Kind::File && found.kind == Kind::Ram {
        eprintln!("note: {} is on {}: fdatasync costs nothing there; name a disk with --pool", parent.display(), found.fs);
    }
    Ok(MediumDetail {
        location: format!("{} ({} on {})", parent.display(), found.fs, found.device),
        guarantee: word(serde_json::to_value(found.guarantee)?),
        durability: if kind == Kind::File { "sync".into() } else { "line".into() },
    })
}

/// Runs the benchmark: figures to stdout and to the files asked for, progress to stderr.
///
/// # Errors
/// Bad arguments, a section that broke (after everything else was measured and written), or, with `--check`, a missed target.
pub fn run(args: EpochBenchArgs) -> Result<()> {
    check_outputs([&args.json, &args.html])?;
    watch_signals()?;
    let parent = parent_directory(&args)?;
    let scratch = Scratch::within(&parent)?;
    let mut progress = if args.quick { Progress::within(QUICK) } else { Progress::new() };
    let cpu = CpuTimes::now();
    let mut report = empty_report(&args, medium_detail(&parent, args.medium)?);
    let broken = measure(&args, &scratch, &mut progress, &mut report)?;
    progress.done();
    drop(scratch);
    report.machine.finish(cpu);
    report.took_s = progress.seconds();
    report.targets = targets::judge(&report);
    output::write(&report, args.json.as_deref(), args.html.as_deref(), html::page, table::render)?;
    verdict(&broken, &report.targets, args.check)
}

fn empty_report(args: &EpochBenchArgs, medium_detail: MediumDetail) -> Report {
    let plan = plan(args);
    let settings = Settings {
        quick: args.quick,
        interval_ms: args.interval_ms,
        buckets: plan.buckets,
        value_bytes: VALUE_BYTES as u64,
        ycsb_store: "towa_containers::HashMap, in process".into(),
        rounds: plan.one.rounds,
        round_ms: plan.one.round.as_millis() as u64,
        seed: args.seed,
        server_keys: plan.server.keys,
        server_connections: plan.server.connections,
        server_threads: args.server_threads as usize,
        ..Settings::default()
    };
    Report {
        schema: SCHEMA,
        benchmark: "epoch",
        date: date_utc(),
        took_s: 0.0,
        medium: args.medium.name().into(),
        medium_detail,
        machine: Machine::here(),
        settings,
        units: units(),
        workloads: Default::default(),
        threads: Default::default(),
        server: Default::default(),
        caches: Default::default(),
        recovery: Vec::new(),
        targets: Vec::new(),
        skipped: Vec::new(),
    }
}

/// All sections; gives what broke.
fn measure(args: &EpochBenchArgs, scratch: &Scratch, progress: &mut Progress, report: &mut Report) -> Result<Vec<String>> {
    let plan = plan(args);
    let wanted = |section| args.only.is_empty() || args.only.contains(&section);
    let program = std::env::current_exe().context("finding this program, to start it as a child")?;
    let mut broken = Vec::new();
    let mut note = |section: &str, outcome: Result<()>| {
        if let Err(e) = outcome {
            eprintln!("{section}: {e:#}");
            broken.push(format!("{section}: {e:#}"));
        }
    };
    if wanted(Section::Engines) || wanted(Section::Threads) {
        note("engines", side_by_side(args, &plan, scratch, progress, report));
    }
    let setup = Setup {
        towa: args.towa_bin.clone().unwrap_or_else(|| program.clone()),
        medium: args.medium.name().into(),
        interval: Duration::from_millis(args.interval_ms),
        threads: args.server_threads as usize,
        memory_mb: serving::memory_mb(plan.server.keys),
    };
    if wanted(Section::Server) {
        let outcome = serving::run(&setup, &plan.server, scratch, progress, &mut report.skipped);
        note("server", outcome.map(|server| report.server = server));
    }
    if wanted(Section::Recovery) {
        let interval = Duration::from_millis(args.interval_ms);
        let children = Children { program, medium: args.medium.name().into(), interval, seed: args.seed };
        let in_memory = args.medium != MediumArg::File;
        let outcome = recovery::run(&children, scratch, plan.heaps_mb, in_memory, progress, &mut report.skipped);
        note("recovery", outcome.map(|points| report.recovery = points));
    }
    report.caches = cache::run(&setup, &plan.caches, scratch, progress, &mut report.skipped);
    report.skipped.extend(broken.iter().map(|why| format!("broke: {why}")));
    Ok(broken)
}

fn side_by_side(args: &EpochBenchArgs, plan: &Plan, scratch: &Scratch, progress: &mut Progress, report: &mut Report) -> Result<()> {
    let wanted = |section| args.only.is_empty() || args.only.contains(&section);
    progress.section("engines");
    let dir = scratch.fresh("engines")?;
    let interval = Duration::from_millis(args.interval_ms);
    let mut rig = Rig::new(&dir, args.medium.into(), plan.buckets, interval, args.seed, progress)?;
    report.settings.clock = rig.clock_name().into();
    [report.settings.volatile_huge_page_share, report.settings.towa_huge_page_share] = rig.huge_page_shares();
    if wanted(Section::Engines) {
        report.workloads = rig.run(&plan.one, progress)?;
    }
    if wanted(Section::Threads) {
        for more in &plan.more {
            progress.section(&format!("engines, {} user threads", more.threads));
            report.threads.insert(more.threads.to_string(), rig.run(more, progress)?);
        }
    }
    drop(rig);
    std::fs::remove_dir_all(&dir).with_context(|| format!("{}: removing", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: EpochBenchArgs,
    }

    fn parse(words: &[&str]) -> Result<EpochBenchArgs, clap::Error> {
        Cli::try_parse_from(["bench"].iter().chain(words)).map(|cli| cli.args)
    }

    #[test]
    fn arguments_are_checked_before_anything_is_measured() {
        assert!(parse(&["--medium", "disk"]).is_err());
        assert!(parse(&["--interval-ms", "0"]).is_err());
        let args = parse(&["--json", "/proc/nonexistent/x.json"]).unwrap();
        assert!(run(args).unwrap_err().to_string().contains("/proc/nonexistent"));
        let args = parse(&["--medium", "dax"]).unwrap();
        assert!(run(args).unwrap_err().to_string().contains("--pool"));
    }

    #[test]
    fn quick_leaves_room_within_four_minutes() {
        let plan = plan(&parse(&["--quick"]).unwrap());
        let engines = |p: &engines::Plan| p.round.as_secs_f64() * (p.rounds * 4 * p.workloads.len()) as f64;
        let measured = engines(&plan.one) + plan.more.iter().map(engines).sum::<f64>();
        let servers = plan.server.round.as_secs_f64() * (plan.server.rounds * 5) as f64;
        assert!(measured + servers < 140.0, "{measured} s + {servers} s leave too little for filling, restarts and recovery");
        let caches = plan.caches.round.as_secs_f64() * (plan.caches.rounds * 2 * plan.caches.loads.len()) as f64;
        assert!(caches <= 25.0, "{caches} s leave too little for starting and filling");
    }

    #[test]
    fn sections_can_be_picked() {
        let args = parse(&["--only", "server,recovery"]).unwrap();
        assert_eq!(args.only, [Section::Server, Section::Recovery]);
        assert!(plan(&args).caches.loads.is_empty());
        let args = parse(&["--only", "mixed,etc"]).unwrap();
        assert_eq!(plan(&args).caches.loads, [CacheLoad::MixedRead, CacheLoad::MixedWrite, CacheLoad::Etc]);
    }
}
