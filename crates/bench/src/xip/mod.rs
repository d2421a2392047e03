//! `towa bench xip`: programs in two files beside whole ones, from start to report.
//!
//! ```text
//!   mod ── bench ── matrix, exec, sharing, sweep    what is measured, in which order
//!     │      │         └── usage                    one run of a program
//!     │      └─── programs, layouts ── ground       what is started, from where; pages that can be made cold
//!     └─── report ── fit, targets, table, page      what was found
//! ```
//!
//! What must hold: `--quick` ends within four minutes on two cores; a missed target is a finding, not a failure (exit 0, unless
//! `--check`); a section that breaks is told and makes the run fail, but what the others found is written all the same; without DAX the
//! report says that memory stood for NVM, and without cold pages it has no cold rows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::cleanup::{Scratch, watch_signals};
use crate::machine::{CpuTimes, Machine, date_utc};
use crate::output;
use crate::progress::Progress;
use crate::snap::system;
use crate::targets::verdict;

pub mod bench;
pub mod exec;
pub mod fit;
pub mod ground;
pub mod layouts;
pub mod matrix;
pub mod page;
pub mod programs;
pub mod report;
pub mod sharing;
pub mod sweep;
pub mod table;
pub mod targets;
pub mod usage;

use report::{SCHEMA, Settings, XipReport, units};

/// Measure programs in two files, with text on NVM, beside whole ones: faults and time, cold and warm, and what starting them costs.
///
/// Programs (cc1, python, gzip, java, as far as they are there) are copied to a file system of their own on a loop device, so that their pages can be made
/// cold (as root; else their files' pages are dropped one by one). Without --dax, memory stands for NVM. Prints tables and a list of targets; a missed
/// target does not fail the run unless --check is given.
#[derive(Clone, Debug, Args)]
pub struct XipBenchArgs {
    /// Fewer rounds and programs: at most four minutes on two cores.
    #[arg(long)]
    pub quick: bool,
    /// Write all figures to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to FILE; it needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep the programs in a new directory within DIR, which should be on a disk.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Keep texts in a new directory within DIR, which should be in memory.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub store: PathBuf,
    /// Keep texts, and whole programs, in a new directory within DIR, on a DAX file system; instead of --store.
    #[arg(long, value_name = "DIR")]
    pub dax: Option<PathBuf>,
    /// Exit with status 1 if a measured target is missed.
    #[arg(long)]
    pub check: bool,
    /// Only these sections.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    pub only: Vec<Section>,
    /// Only these programs in the matrix.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = programs::NAMES)]
    pub programs: Vec<String>,
    /// Rounds of the matrix [default: 15 cold and 31 warm, quick 7 and 11].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: Option<u64>,
    /// Seed of the order in which layouts take turns, and of the choice of programs that are split.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Programs by layout, and the model fitted to them.
    Matrix,
    /// What starting a split program costs more.
    Exec,
    /// Processes that share a program.
    Sharing,
    /// Programs of /usr/bin, split.
    Sweep,
}

/// When a quick run begins to leave things out; the four minutes it is promised to take leave room for what is under way.
const QUICK: Duration = Duration::from_secs(200);

/// How often, and how many.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    cold: usize,
    warm: usize,
    long: usize,
    starts: usize,
    shared: usize,
    swept: usize,
}

fn plan(args: &XipBenchArgs) -> Plan {
    let pick = |quick: usize, full: usize| if args.quick { quick } else { full };
    let rounds = args.rounds.map(|rounds| rounds as usize);
    Plan {
        cold: rounds.unwrap_or(pick(7, 15)),
        warm: rounds.unwrap_or(pick(11, 31)),
        long: rounds.unwrap_or(pick(5, 15)),
        starts: pick(300, 1000),
        shared: pick(3, 7),
        swept: pick(40, 150),
    }
}

/// Runs the benchmark: figures to stdout and to the files asked for, progress to stderr.
///
/// # Errors
/// Bad arguments, a section that broke (after everything else was measured and written), or, with `--check`, a missed target.
pub fn run(args: XipBenchArgs) -> Result<()> {
    crate::epoch::check_outputs([&args.json, &args.html])?;
    let nvm_dir = args.dax.as_deref().unwrap_or(&args.store);
    let option = if args.dax.is_some() { "--dax" } else { "--store" };
    ensure!(args.dir.is_dir(), "{}: no such directory; name another one with --dir", args.dir.display());
    ensure!(nvm_dir.is_dir(), "{}: no such directory; name another one with {option}", nvm_dir.display());
    watch_signals()?;
    let mut progress = if args.quick { Progress::within(QUICK) } else { Progress::new() };
    let cpu = CpuTimes::now();
    let mut report = empty_report(&args, nvm_dir)?;
    let broken = {
        let (scratch, nvm) = (Scratch::within(&args.dir)?, Scratch::within(nvm_dir)?);
        bench::Bench::new(&args, plan(&args), &scratch, &nvm, &mut report)?.run(&mut progress)
    };
    progress.done();
    report.skipped.extend(broken.iter().map(|why| format!("broke: {why}")));
    report.machine.finish(cpu);
    report.took_s = progress.seconds();
    report.targets = targets::judge(&report);
    output::write(&report, args.json.as_deref(), args.html.as_deref(), page::page, table::render)?;
    verdict(&broken, &report.targets, args.check)
}

fn empty_report(args: &XipBenchArgs, nvm: &Path) -> Result<XipReport> {
    let plan = plan(args);
    let mut report = XipReport {
        schema: SCHEMA,
        benchmark: "xip",
        date: date_utc(),
        took_s: 0.0,
        ground: report::Ground {
            location: args.dir.display().to_string(),
            file_system: system::name(&args.dir)?,
            ..report::Ground::default()
        },
        nvm: report::Nvm {
            location: nvm.display().to_string(),
            file_system: system::name(nvm)?,
            dax_asked: args.dax.is_some(),
            dax: ground::is_dax(nvm),
        },
        machine: Machine::here(),
        settings: Settings { quick: args.quick, rounds_cold: plan.cold, rounds_warm: plan.warm, seed: args.seed },
        units: units(),
        matrix: Vec::new(),
        exec_overhead: Vec::new(),
        sharing: Vec::new(),
        model_fit: None,
        sweep: None,
        targets: Vec::new(),
        skipped: Vec::new(),
    };
    if report.nvm.dax_asked && !report.nvm.dax {
        let why = "DAX: the file system of --dax does not map files directly (mount it with -o dax=always); its figures are those of a page cache";
        report.skipped.push(why.into());
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: XipBenchArgs,
    }

    fn parse(words: &[&str]) -> Result<XipBenchArgs, clap::Error> {
        Cli::try_parse_from(["bench"].iter().chain(words)).map(|cli| cli.args)
    }

    #[test]
    fn arguments_are_checked_before_anything_is_measured() {
        assert!(parse(&["--only", "boot"]).is_err() && parse(&["--programs", "emacs"]).is_err());
        assert!(parse(&["--rounds", "0"]).is_err());
        for (words, named) in [
            (["--json", "/proc/nonexistent/x.json"], "/proc/nonexistent"),
            (["--dir", "/proc/nonexistent"], "--dir"),
            (["--store", "/proc/nonexistent"], "--store"),
            (["--dax", "/proc/nonexistent"], "--dax"),
        ] {
            let why = run(parse(&words).unwrap()).unwrap_err().to_string();
            assert!(why.contains(named), "{why}");
        }
        assert_eq!(plan(&parse(&["--quick"]).unwrap()).swept, 40);
        let two = plan(&parse(&["--rounds", "2"]).unwrap());
        assert_eq!((two.cold, two.warm, two.starts), (2, 2, 1000));
    }

    #[test]
    fn a_file_system_without_dax_is_not_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let args = parse(&["--dax", dir.path().to_str().unwrap()]).unwrap();
        let report = empty_report(&args, dir.path()).unwrap();
        assert!(report.nvm.dax_asked && report.nvm.dax == report.skipped.is_empty(), "{:?}", report.skipped);
    }
}
