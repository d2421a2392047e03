//! `towa bench snap`: checkpoints and restarts of a program, from start to report.
//!
//! ```text
//!   mod ── pause ────── program, board       a program that writes and watches the clock, and what both sides see
//!     │                    └ stats           what of its gaps belongs to a pause
//!     ├─── restart                           the same program, killed and started again, in a process of its own
//!     ├─── space, criu                       what checkpoints take, what writes cost then; the peer
//!     └─── report ── targets, table, page    what was found
//! ```
//!
//! What must hold: `--quick` ends within four minutes on two cores; a missed target is a finding, not a failure (exit 0, unless
//! `--check`); a section that breaks is told and makes the run fail, but what the others found is written all the same.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::cleanup::{Scratch, watch_signals};
use crate::machine::{CpuTimes, Machine, date_utc, memory_available_mb};
use crate::output;
use crate::progress::Progress;
use crate::targets::verdict;

pub mod board;
pub mod criu;
pub mod page;
pub mod pause;
pub mod program;
pub mod report;
pub mod restart;
pub mod space;
pub mod stats;
pub mod system;
pub mod table;
pub mod targets;

use pause::Mode;
use program::Shape;
use report::{SCHEMA, Settings, SnapReport, units};

/// First word of the children's arguments.
pub const CHILD: &str = "snap";

/// Pages a second that the program writes where memory sizes are compared.
pub const PACE: u64 = 10_000;
/// Memory of the program where paces are compared, in MiB.
pub const PACED_MB: u64 = 512;
/// Threads of the program whose pause is taken apart.
const MANY_THREADS: usize = 8;
/// Larger programs are not copied whole in the pause.
const COPIED_MB: u64 = 1024;
/// Checkpoints between which 1 % changes.
const SPACE_CHECKPOINTS: usize = 10;

/// Measure checkpoints and restarts of a program: how long it stands still, how soon it runs again, what checkpoints take.
///
/// The program fills its memory, writes to it at a steady pace and watches the clock: a pause is what it saw itself. Beside it, the same
/// checkpoint by copying while it stands still. Prints tables and a list of targets; a missed target does not fail the run unless --check is
/// given. The peer, CRIU, is measured where it is installed and works.
#[derive(Clone, Debug, Args)]
pub struct SnapBenchArgs {
    /// Fewer sizes and checkpoints: at most four minutes on two cores.
    #[arg(long)]
    pub quick: bool,
    /// Write all figures to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to FILE; it needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep the checkpoints in a new directory within DIR.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub dir: PathBuf,
    /// Exit with status 1 if a measured target is missed.
    #[arg(long)]
    pub check: bool,
    /// Only these sections.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    pub only: Vec<Section>,
    /// Memory of the program in MiB, powers of two [default: 64,256,512,1024,4096, and 8192 where there is room; quick 64,512].
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = power_of_two)]
    pub mb: Vec<u64>,
    /// Pages a second that the program of 512 MiB writes.
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "0,10000,50000,200000")]
    pub paces: Vec<u64>,
    /// Checkpoints of each row [default: 100, quick 30].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub checkpoints: Option<u64>,
    /// Seed of the moments at which checkpoints are taken.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The program that answers to `bench-child`; else this one.
    #[arg(long, hide = true)]
    pub children: Option<PathBuf>,
}

fn power_of_two(text: &str) -> Result<u64, String> {
    let number: u64 = text.parse().map_err(|e| format!("{e}"))?;
    if number.is_power_of_two() { Ok(number) } else { Err("not a power of two".into()) }
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// How long the program stands still.
    Pause,
    /// How soon it runs again.
    Restart,
    /// What checkpoints take, and what writes cost after them.
    Space,
    /// The peer.
    Criu,
}

/// When a quick run begins to leave things out; the four minutes it is promised to take leave room for what is under way.
const QUICK: Duration = Duration::from_secs(200);

/// The children's side: `args` are those after `bench-child snap`.
pub fn child_main(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((what, rest)) if what == "program" => program::main(rest),
        Some((what, rest)) if what == "restart" => restart::main(rest),
        _ => bail!("a child of the benchmark is a program or a restart"),
    }
}

struct Plan {
    sizes: Vec<u64>,
    checkpoints: usize,
    restarts: usize,
}

fn plan(args: &SnapBenchArgs) -> Plan {
    let sizes = match (args.mb.is_empty(), args.quick) {
        (false, _) => args.mb.clone(),
        (true, true) => vec![64, 512],
        (true, false) => vec![64, 256, 512, 1024, 4096, 8192],
    };
    let pick = |quick: usize, full: usize| if args.quick { quick } else { full };
    Plan { sizes, checkpoints: args.checkpoints.map_or(pick(30, 100), |n| n as usize), restarts: pick(3, 5) }
}

/// Runs the benchmark: figures to stdout and to the files asked for, progress to stderr.
///
/// # Errors
/// Bad arguments, a section that broke (after everything else was measured and written), or, with `--check`, a missed target.
pub fn run(args: SnapBenchArgs) -> Result<()> {
    crate::epoch::check_outputs([&args.json, &args.html])?;
    ensure!(args.dir.is_dir(), "{}: no such directory; name another one with --dir", args.dir.display());
    watch_signals()?;
    let scratch = Scratch::within(&args.dir)?;
    let mut progress = if args.quick { Progress::within(QUICK) } else { Progress::new() };
    let cpu = CpuTimes::now();
    let mut report = empty_report(&args, scratch.path())?;
    let children = match &args.children {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("finding this program")?,
    };
    let mut bench = Bench {
        plan: plan(&args),
        args: &args,
        children,
        scratch: &scratch,
        rng: SmallRng::seed_from_u64(args.seed),
        report: &mut report,
        broken: Vec::new(),
    };
    bench.run(&mut progress);
    let broken = bench.broken;
    progress.done();
    drop(scratch);
    report.skipped.extend(broken.iter().map(|why| format!("broke: {why}")));
    report.machine.finish(cpu);
    report.took_s = progress.seconds();
    report.targets = targets::judge(&report);
    output::write(&report, args.json.as_deref(), args.html.as_deref(), page::page, table::render)?;
    verdict(&broken, &report.targets, args.check)
}

fn empty_report(args: &SnapBenchArgs, dir: &Path) -> Result<SnapReport> {
    let plan = plan(args);
    let settings = Settings {
        quick: args.quick,
        sizes_mb: plan.sizes,
        paces: args.paces.clone(),
        checkpoints: plan.checkpoints,
        restarts: plan.restarts,
        seed: args.seed,
    };
    Ok(SnapReport {
        schema: SCHEMA,
        benchmark: "snap",
        date: date_utc(),
        took_s: 0.0,
        location: args.dir.display().to_string(),
        file_system: system::name(dir)?,
        clones_files: system::clones(dir)?,
        machine: Machine::here(),
        settings,
        units: units(),
        pause: Vec::new(),
        restart: Vec::new(),
        space: Vec::new(),
        deferred: Vec::new(),
        criu: None,
        criu_note: Some("it was not asked for".into()),
        targets: Vec::new(),
        skipped: Vec::new(),
    })
}

/// A run under way.
struct Bench<'a> {
    plan: Plan,
    args: &'a SnapBenchArgs,
    children: PathBuf,
    scratch: &'a Scratch,
    rng: SmallRng,
    report: &'a mut SnapReport,
    broken: Vec<String>,
}

impl Bench<'_> {
    fn run(&mut self, progress: &mut Progress) {
        let wanted = |section| self.args.only.is_empty() || self.args.only.contains(&section);
        let [pause, restart, space, criu] = [Section::Pause, Section::Restart, Section::Space, Section::Criu].map(wanted);
        if pause {
            progress.section("pauses");
            if !self.report.clones_files {
                let why = "pause, nv: the file system does not clone files; name a directory on XFS or btrfs with --dir";
                self.report.skipped.push(why.into());
            }
            for config in self.pauses() {
                self.pause(config, progress);
            }
        }
        if restart {
            progress.section("restarts");
            self.restarts(progress);
        }
        if space {
            progress.section("space");
            self.space(progress);
        }
        if criu {
            progress.section("criu");
            self.criu(progress);
        }
    }

    /// What is measured of pauses, in the order of importance: where a quick run is short of time, the last are left out.
    fn pauses(&self) -> Vec<pause::Config> {
        let checkpoints = self.plan.checkpoints;
        let config =
            |mb, pages_per_s, threads, mode| pause::Config { shape: Shape { mb, pages_per_s, threads }, mode, checkpoints };
        let mut all: Vec<_> = self.plan.sizes.iter().map(|mb| config(*mb, PACE, 2, Mode::Dram)).collect();
        if self.plan.sizes.contains(&PACED_MB) {
            let others = self.args.paces.iter().filter(|pace| **pace != PACE);
            all.extend(others.map(|pace| config(PACED_MB, *pace, 2, Mode::Dram)));
            all.push(config(PACED_MB, PACE, MANY_THREADS, Mode::Dram));
            // The slowest first: that is what the pause is compared with.
            all.extend(self.args.paces.iter().rev().map(|pace| config(PACED_MB, *pace, 2, Mode::Copy)));
        }
        if self.report.clones_files {
            let small = self.plan.sizes.iter().filter(|mb| **mb <= COPIED_MB);
            all.extend(small.map(|mb| config(*mb, PACE, 2, Mode::Nv)));
        }
        let copied = |mode| {
            let sizes = self.plan.sizes.iter().filter(move |mb| **mb <= COPIED_MB && (mode != Mode::Copy || **mb != PACED_MB));
            sizes.map(move |mb| config(*mb, PACE, 2, mode)).collect::<Vec<_>>()
        };
        all.extend(copied(Mode::Copy));
        all.extend(copied(Mode::CopyAll));
        all
    }

    fn pause(&mut self, config: pause::Config, progress: &Progress) {
        let pause::Config { shape: Shape { mb, pages_per_s, threads }, mode, .. } = config;
        let what = format!("pause, {}, {mb} MiB, {pages_per_s} pages/s, {threads} threads", mode.name());
        if progress.spent(0.6) {
            self.report.skipped.push(format!("{what}: no time left"));
        } else if self.fits(&what, mb, mode.needs()) {
            progress.step(&what);
            let (children, rng) = (self.children.clone(), &mut self.rng);
            let row = self.scratch.fresh("pause").and_then(|dir| pause::measure(&children, &dir, config, rng));
            self.keep(&what, row, |report, row| report.pause.push(row));
        }
    }

    fn restarts(&mut self, progress: &Progress) {
        let cold = self.report.file_system != "tmpfs";
        if !cold {
            self.report.skipped.push("restart, cold: tmpfs is always warm; name a directory on a disk with --dir".into());
        }
        for mb in self.plan.sizes.clone() {
            let what = format!("restart, {mb} MiB");
            if progress.spent(0.9) {
                self.report.skipped.push(format!("{what}: no time left"));
            } else if self.fits(&what, mb, 4) {
                progress.step(&what);
                let shape = Shape { mb, pages_per_s: PACE, threads: 2 };
                let config = restart::Config { shape, times: self.plan.restarts, cold };
                let rows = self.scratch.fresh("restart").and_then(|dir| restart::measure(&self.children, &dir, config));
                self.keep(&what, rows, |report, rows| report.restart.extend(rows));
            }
        }
    }

    fn space(&mut self, progress: &Progress) {
        let largest = self.plan.sizes.iter().copied().filter(|mb| *mb <= PACED_MB).max();
        let Some(mb) = largest.filter(|mb| self.fits("space", *mb, 4)) else { return };
        progress.step(&format!("space, {mb} MiB"));
        let space = self.scratch.fresh("space").and_then(|dir| space::measure(&self.children, &dir, mb, SPACE_CHECKPOINTS));
        self.keep("space", space, |report, row| report.space.push(row));
        let deferred = self.scratch.fresh("space").and_then(|dir| space::deferred(&self.children, &dir, mb, self.plan.restarts));
        self.keep("writes after a checkpoint", deferred, |report, row| report.deferred.push(row));
    }

    fn criu(&mut self, progress: &Progress) {
        self.report.criu_note = criu::missing();
        if self.report.criu_note.is_some() {
            return;
        }
        for mb in self.plan.sizes.clone() {
            let what = format!("criu, {mb} MiB");
            if !progress.spent(1.0) && self.fits(&what, mb, 4) {
                progress.step(&what);
                let shape = Shape { mb, pages_per_s: PACE, threads: 2 };
                match self.scratch.fresh("criu").and_then(|dir| criu::measure(&self.children, &dir, shape)) {
                    Ok(row) => self.report.criu.get_or_insert_default().push(row),
                    // Not ours to fail for.
                    Err(e) => self.report.criu_note = Some(format!("{mb} MiB: {e:#}")),
                }
            }
        }
    }

    /// Whether so many times the program's memory are there; else it is told.
    fn fits(&mut self, what: &str, mb: u64, times: u64) -> bool {
        let (need, have) = (mb * times, memory_available_mb().unwrap_or(0));
        let room = system::free_mb(self.scratch.path()).unwrap_or(0);
        let short = if have < need { Some(("memory", have)) } else { (room < mb * 3).then_some(("room", room)) };
        if let Some((of, have)) = short {
            self.report.skipped.push(format!("{what}: {have} MiB of {of} are too little"));
        }
        short.is_none()
    }

    fn keep<T>(&mut self, what: &str, found: Result<T>, put: impl FnOnce(&mut SnapReport, T)) {
        match found {
            Ok(found) => put(self.report, found),
            Err(e) => {
                eprintln!("{what}: {e:#}");
                self.broken.push(format!("{what}: {e:#}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: SnapBenchArgs,
    }

    fn parse(words: &[&str]) -> Result<SnapBenchArgs, clap::Error> {
        Cli::try_parse_from(["bench"].iter().chain(words)).map(|cli| cli.args)
    }

    #[test]
    fn arguments_are_checked_before_anything_is_measured() {
        assert!(parse(&["--mb", "100"]).is_err(), "not a power of two");
        assert!(parse(&["--only", "gzip"]).is_err());
        let why = run(parse(&["--json", "/proc/nonexistent/x.json"]).unwrap()).unwrap_err().to_string();
        assert!(why.contains("/proc/nonexistent"), "{why}");
        let why = run(parse(&["--dir", "/proc/nonexistent"]).unwrap()).unwrap_err().to_string();
        assert!(why.contains("--dir"), "{why}");
        assert_eq!(plan(&parse(&["--quick"]).unwrap()).sizes, [64, 512]);
        assert!(child_main(&["gzip".into()]).is_err() && child_main(&[]).is_err());
    }
}
