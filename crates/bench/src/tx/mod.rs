//! `towa bench tx`: durable ordered maps side by side, from start to report.
//!
//! ```text
//!   mod ── sides ─── contenders, pmdk        who is measured; rounds in which they take turns
//!     │      └ load                          what the threads do
//!     ├─── sweep, recovery                   slower memory; opening after SIGKILL
//!     └─── report ── targets, table, page    what was found
//! ```
//!
//! What must hold: `--quick` ends within four minutes on two cores; a missed target is a finding, not a failure (exit 0, unless
//! `--check`); a side that breaks is told and makes the run fail, but what the others found is written all the same.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::cleanup::{Scratch, watch_signals};
use crate::machine::{CpuTimes, Machine, date_utc};
use crate::output;
use crate::progress::Progress;
use crate::targets::verdict;

pub mod contenders;
mod durable;
pub mod load;
pub mod page;
pub mod pmdk;
pub mod recovery;
pub mod report;
pub mod sides;
pub mod sweep;
pub mod table;
pub mod targets;
mod volatile;

pub use recovery::{CHILD, child_main};

use contenders::{Contender, PMDK_BTREE, TREES, contenders};
use load::{Phase, Work};
use report::{SCHEMA, Settings, TxReport, units};
use sides::Side;

/// Measure the durable ordered maps: inserts, look-ups, scans and mixes of the B+-trees on transactions, of FPTree, of
/// libpmemobj's btree_map and of volatile maps.
///
/// Maps take turns in rounds, with the same keys; a ratio is the median of the ratios within rounds. What writes is timed until every
/// log is applied. Prints tables and a list of targets; a missed target does not fail the run unless --check is given. The peer
/// is built from the Debian package libpmemobj-dev and skipped, with a message, where that or gcc is absent.
#[derive(Clone, Debug, Args)]
pub struct TxBenchArgs {
    /// Fewer keys and rounds: at most four minutes on two cores.
    #[arg(long)]
    pub quick: bool,
    /// Write all figures to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to FILE; it needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep the maps in a new directory within DIR, on tmpfs.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub pool: PathBuf,
    /// Exit with status 1 if a measured target is missed.
    #[arg(long)]
    pub check: bool,
    /// Only these sections.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    pub only: Vec<Section>,
    /// Only these trees.
    #[arg(long, value_delimiter = ',', value_name = "TREE", value_parser = TREES)]
    pub trees: Vec<String>,
    /// Numbers of threads [default: 1,2 and, without --quick, 4, and 8 and 16 where there are so many cores].
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: Vec<u64>,
    /// Keys inserted into the empty map, and again into the full one [default: 2500000, quick 500000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub keys: Option<u64>,
    /// Rounds [default: 5, quick 3].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub rounds: Option<u64>,
    /// Seed of all keys.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Maps side by side.
    Trees,
    /// Inserts on slower memory.
    Sweep,
    /// Opening after SIGKILL.
    Recovery,
}

/// When a quick run begins to leave things out; the four minutes it is promised to take leave room for what is under way.
const QUICK: Duration = Duration::from_secs(200);
/// By then a quick run leaves the rounds, and the sweep.
const DUE: (f64, f64) = (0.75, 0.9);

struct Plan {
    keys: usize,
    threads: Vec<usize>,
    rounds: usize,
    sweep_rounds: usize,
    recovered_keys: &'static [u64],
}

fn plan(args: &TxBenchArgs) -> Plan {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let all = [1, 2, 4, 8, 16].into_iter().filter(|n| *n <= if args.quick { 2 } else { 4 } || (!args.quick && *n <= cores));
    let threads = if args.threads.is_empty() { all.collect() } else { args.threads.iter().map(|n| *n as usize).collect() };
    let pick = |quick: u64, full: u64| if args.quick { quick } else { full };
    Plan {
        keys: args.keys.unwrap_or(pick(500_000, 2_500_000)) as usize,
        threads,
        rounds: args.rounds.unwrap_or(pick(3, 5)) as usize,
        sweep_rounds: pick(1, 3) as usize,
        recovered_keys: if args.quick { &[50_000, 500_000] } else { &[100_000, 500_000, 2_500_000] },
    }
}

/// Runs the benchmark: figures to stdout and to the files asked for, progress to stderr.
///
/// # Errors
/// Bad arguments, a side that broke (after everything else was measured and written), or, with `--check`, a missed target.
pub fn run(args: TxBenchArgs) -> Result<()> {
    crate::epoch::check_outputs([&args.json, &args.html])?;
    ensure!(args.pool.is_dir(), "{}: no such directory; name one on tmpfs with --pool", args.pool.display());
    watch_signals()?;
    let scratch = Scratch::within(&args.pool)?;
    let mut progress = if args.quick { Progress::within(QUICK) } else { Progress::new() };
    let cpu = CpuTimes::now();
    let mut report = empty_report(&args);
    let broken = measure(&args, &scratch, &mut progress, &mut report);
    progress.done();
    drop(scratch);
    report.skipped.extend(broken.iter().map(|why| format!("broke: {why}")));
    report.machine.finish(cpu);
    report.took_s = progress.seconds();
    report.targets = targets::judge(&report);
    output::write(&report, args.json.as_deref(), args.html.as_deref(), page::page, table::render)?;
    verdict(&broken, &report.targets, args.check)
}

fn empty_report(args: &TxBenchArgs) -> TxReport {
    let plan = plan(args);
    let settings = Settings {
        quick: args.quick,
        keys: plan.keys as u64,
        threads: plan.threads,
        rounds: plan.rounds,
        log_mb_per_thread: sides::log_mb_per_thread(),
        seed: args.seed,
    };
    TxReport {
        schema: SCHEMA,
        benchmark: "tx",
        date: date_utc(),
        took_s: 0.0,
        medium: "ram",
        location: args.pool.display().to_string(),
        machine: Machine::here(),
        settings,
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

/// Those asked for that this machine can make; the others are told.
fn present(args: &TxBenchArgs, skipped: &mut Vec<String>) -> Vec<Box<dyn Contender>> {
    let wanted = |tree: &str| args.trees.is_empty() || args.trees.iter().any(|t| t == tree);
    let mut all: Vec<_> = contenders().into_iter().filter(|c| wanted(c.tree())).collect();
    all.retain(|c| {
        let missing = c.missing().map(|why| format!("{} ({}): {why}", c.tree(), c.tm()));
        skipped.extend(missing.clone());
        missing.is_none()
    });
    all
}

/// All sections; gives what broke.
fn measure(args: &TxBenchArgs, scratch: &Scratch, progress: &mut Progress, report: &mut TxReport) -> Vec<String> {
    let plan = plan(args);
    let wanted = |section| args.only.is_empty() || args.only.contains(&section);
    let mut broken = Vec::new();
    let all = present(args, &mut report.skipped);
    if wanted(Section::Trees) {
        let mut sides: Vec<Box<dyn Side>> = present(args, &mut Vec::new()).into_iter().map(|c| Box::new(c) as _).collect();
        if args.trees.is_empty() || args.trees.iter().any(|t| t == PMDK_BTREE) {
            match pmdk::Pmdk::build(scratch) {
                Ok(pmdk) => sides.push(Box::new(pmdk)),
                Err(why) => report.skipped.push(format!("{PMDK_BTREE}: {why}")),
            }
        }
        let work = Work::new(plan.keys, args.seed);
        for (n, threads) in plan.threads.iter().enumerate() {
            progress.section(&format!("maps, {threads} thread(s)"));
            let due = DUE.0 * (n + 1) as f64 / plan.threads.len() as f64;
            let rounds = sides::rounds(&sides, scratch, &work, (*threads, plan.rounds, due), progress, &mut broken);
            for phase in Phase::ALL {
                report.rows_mut(phase).extend(rounds.rows(phase));
            }
            report.breakdown.extend(rounds.breakdown());
        }
    }
    if wanted(Section::Sweep) {
        let durable = present(args, &mut Vec::new()).into_iter().filter(|c| c.durable());
        let sides: Vec<Box<dyn Side>> = durable.map(|c| Box::new(c) as _).collect();
        let threads: Vec<usize> = plan.threads.iter().copied().filter(|n| *n <= 2).collect();
        let work = Work::new(plan.keys.div_ceil(5).max(4), args.seed);
        report.sweep = sweep::run(&sides, scratch, &work, (&threads, plan.sweep_rounds, DUE.1), progress, &mut broken);
    }
    if wanted(Section::Recovery) {
        report.recovery = recovery::run(&all, scratch, plan.recovered_keys, progress, &mut broken);
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: TxBenchArgs,
    }

    fn parse(words: &[&str]) -> Result<TxBenchArgs, clap::Error> {
        Cli::try_parse_from(["bench"].iter().chain(words)).map(|cli| cli.args)
    }

    #[test]
    fn arguments_are_checked_before_anything_is_measured() {
        assert!(parse(&["--threads", "0"]).is_err());
        assert!(parse(&["--trees", "oak"]).is_err());
        let why = run(parse(&["--json", "/proc/nonexistent/x.json"]).unwrap()).unwrap_err().to_string();
        assert!(why.contains("/proc/nonexistent"), "{why}");
        let why = run(parse(&["--pool", "/proc/nonexistent"]).unwrap()).unwrap_err().to_string();
        assert!(why.contains("--pool"), "{why}");
        assert_eq!(plan(&parse(&["--quick"]).unwrap()).threads, [1, 2]);
        assert!(plan(&parse(&[]).unwrap()).threads.starts_with(&[1, 2, 4]), "four threads run on two cores, too");
    }

    #[test]
    fn a_small_run_gives_its_files() {
        let dir = Scratch::within(&std::env::temp_dir()).unwrap();
        let (json, html) = (dir.path().join("out.json"), dir.path().join("out.html"));
        let files = ["--json", json.to_str().unwrap(), "--html", html.to_str().unwrap(), "--pool", dir.path().to_str().unwrap()];
        let small =
            ["--quick", "--keys", "2000", "--rounds", "2", "--threads", "1,2", "--only", "trees,sweep", "--trees", "volatile"];
        run(parse(&[&files[..], &small].concat()).unwrap()).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        for list in ["insert", "lookup", "mixed", "scan", "insert_more", "lookup_zipfian", "mixed_zipfian"] {
            let rows = report[list].as_array().unwrap();
            assert_eq!(rows.len(), 5, "BTreeMap with one thread, the others with one and two: {rows:?}");
            assert!(rows.iter().all(|r| r["mops"].as_f64().unwrap() > 0.0 && r["fences_per_op"].is_null()));
        }
        assert!(std::fs::read_to_string(html).unwrap().contains("<svg"));
        assert!(!dir.path().read_dir().unwrap().any(|e| e.unwrap().file_name().to_string_lossy().starts_with("towa-bench-")));
    }
}
