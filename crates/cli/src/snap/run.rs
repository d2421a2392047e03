//! `towa snap run` and `towa snap take`.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use towa_snap::nv::Nv;
use towa_snap::store::Store;
use towa_snap::take::{Taken, Target};

use crate::failure;
use crate::progress::Progress;
use crate::report;

/// Where a program's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Where it always is. Pages that change are copied to the checkpoint, most while the program runs.
    Dram,
    /// In a file beside the checkpoints, which a checkpoint clones: nothing is copied. For XFS on persistent memory (DAX); needs a file system
    /// that clones files, with room for all of the memory once more. The program cannot fork then (threads and posix_spawn work).
    Nv,
}

/// Run a program, with checkpoints.
///
/// The program is a child of this command, has its standard streams, and ends it when it ends. Other descriptors that are open here are not
/// passed on.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where the program's memory is.
    #[arg(long, value_enum, default_value = "dram")]
    mode: Mode,
    /// Time between checkpoints: 500ms, 10s, 5m. Without it none is taken but by `towa snap take`.
    #[arg(long, value_name = "TIME", value_parser = time)]
    every: Option<Duration>,
    /// Keep the newest N checkpoints only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Say on standard error what each checkpoint took.
    #[arg(long, short)]
    verbose: bool,
    /// Directory of the checkpoints; made if it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    program: Vec<std::ffi::OsString>,
}

/// Take a checkpoint of a program that runs.
#[derive(Debug, Args)]
pub struct TakeArgs {
    /// End the program in the state of the checkpoint, when that is durable: it does not run in between.
    #[arg(long)]
    stop: bool,
    /// Keep the newest N checkpoints only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// Directory of the checkpoints; made if it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Number of the process.
    #[arg(value_name = "PID", required_unless_present = "own", conflicts_with = "own", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Of the program that starts this command: it waits until the checkpoint is durable, and goes on. After a restart it has no child to
    /// wait for: that is how it tells the two apart.
    #[arg(long = "self")]
    own: bool,
}

#[derive(Serialize)]
struct Report {
    checkpoint: u64,
    process: i32,
    program: String,
    pause_ms: f64,
    total_ms: f64,
    rounds: usize,
    pages_while_running: u64,
    pages_in_pause: u64,
    removed: Vec<u64>,
}

impl Report {
    fn of(taken: &Taken, removed: Vec<u64>) -> Report {
        Report {
            checkpoint: taken.number,
            process: taken.pid,
            program: taken.name.clone(),
            pause_ms: taken.pause.as_secs_f64() * 1e3,
            total_ms: taken.total.as_secs_f64() * 1e3,
            rounds: taken.rounds.len(),
            pages_while_running: taken.rounds.iter().map(|round| round.written_pages).sum(),
            pages_in_pause: taken.last.written_pages,
            removed,
        }
    }

    fn line(&self) -> String {
        let Report { checkpoint, process, program, pause_ms, total_ms, pages_in_pause, pages_while_running, .. } = self;
        let program = report::plain(program);
        format!(
            "checkpoint {checkpoint} of process {process} ({program}): paused {pause_ms:.2} ms, {pages_in_pause} pages; {pages_while_running} while it ran; {total_ms:.0} ms in all"
        )
    }
}

/// "500ms", "10s", "5m", "1h"
fn time(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits.parse().map_err(|_| format!("{text}: a number and ms, s, m or h"))?;
    let unit = match &text[digits.len()..] {
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("{other}: ms, s, m or h")),
    };
    let time = Duration::try_from_secs_f64(number * unit).map_err(|e| e.to_string())?;
    if time < Duration::from_millis(10) { Err("10ms at least".into()) } else { Ok(time) }
}

fn one(target: &mut Target, store: &Store, keep: Option<u32>) -> Result<Report> {
    let taken = target.take(store)?;
    Ok(Report::of(&taken, self::keep(store, keep)?))
}

/// Removes all but the newest.
fn keep(store: &Store, keep: Option<u32>) -> Result<Vec<u64>> {
    Ok(keep.map_or(Ok(Vec::new()), |keep| store.keep(keep as usize))?)
}

/// `towa snap take`.
pub fn take(args: &TakeArgs) -> Result<()> {
    // SAFETY: it asks for a number.
    let pid = args.pid.unwrap_or_else(|| unsafe { libc::getppid() });
    let report = report::bad_news(args.json, ("process", pid.to_string()), try_take(args, pid))?;
    if args.json { report::json(&report) } else { report::line(report.line()) }
}

fn try_take(args: &TakeArgs, pid: i32) -> Result<Report> {
    anyhow::ensure!(
        pid != std::process::id() as i32,
        "process {pid} is this command itself; a program has itself checkpointed by --self"
    );
    super::make_private();
    let ours = args.own.then(|| std::process::id() as i32);
    let mut target = open(pid, ours)?;
    let store = Store::open_or_create(&args.dir)?;
    let bar = Progress::bytes("copying");
    target.on_progress(Box::new(move |done, all| bar.at(done * 4096, all * 4096)));
    if args.stop {
        let taken = target.take_and_end(&store)?;
        return Ok(Report::of(&taken, keep(&store, args.keep)?));
    }
    let report = one(&mut target, &store, args.keep)?;
    target.leave()?;
    Ok(report)
}

/// A program that has itself checkpointed permits that by the number of this command, which it learns when this command runs already.
fn open(pid: i32, ours: Option<i32>) -> Result<Target> {
    let began = Instant::now();
    loop {
        match Target::open(pid, ours) {
            Err(towa_snap::Error::NotPermitted { .. }) if ours.is_some() && began.elapsed() < Duration::from_secs(1) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return Ok(opened?),
        }
    }
}

/// `towa snap run`.
pub fn run(args: &RunArgs) -> Result<()> {
    let umask = super::make_private();
    let store = Store::open_or_create(&args.dir)?;
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]);
    // SAFETY: calls of the system, with numbers.
    unsafe {
        command.pre_exec(move || {
            libc::umask(umask);
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
            Ok(())
        });
    }
    let terminated = Arc::new(AtomicBool::new(false));
    // Ctrl-C reaches the program by itself; this command ends when it does.
    signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false))).context("SIGINT cannot be watched")?;
    signal_hook::flag::register(SIGTERM, Arc::clone(&terminated)).context("SIGTERM cannot be watched")?;
    let (mut child, nv) = match args.mode {
        Mode::Dram => {
            let child = command.spawn().map_err(|e| not_started(&args.program[0], &e))?;
            (child, None)
        }
        Mode::Nv => towa_snap::nv::spawn(&mut command, &store).map(|(child, nv)| (child, Some(nv)))?,
    };
    let status = watch(&mut child, nv, args, &store, &terminated);
    match status {
        Ok(status) => super::end_as(status),
        Err(e) => {
            report::say(&format!("{e}; the program goes on without further checkpoints"));
            super::end_as(child.wait()?)
        }
    }
}

/// With the exit status that env(1), nohup(1) and shells give.
fn not_started(program: &std::ffi::OsStr, e: &std::io::Error) -> anyhow::Error {
    let code = if e.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    failure::coded(code, format!("{} cannot be started: {e}", program.to_string_lossy()))
}

/// Of a program that runs here: when the next checkpoint is due, and what takes it.
struct Watch<'a> {
    pid: i32,
    nv: Option<Nv>,
    store: &'a Store,
    args: &'a RunArgs,
    target: Option<Target>,
    due: Option<Instant>,
}

/// How a checkpoint came out.
enum Came {
    Out(Report),
    /// Another has the directory for a moment.
    Again,
    No(anyhow::Error),
}

fn watch(
    child: &mut Child,
    nv: Option<Nv>,
    args: &RunArgs,
    store: &Store,
    terminated: &AtomicBool,
) -> Result<std::process::ExitStatus> {
    const LOOK: Duration = Duration::from_millis(20);
    const AGAIN: Duration = Duration::from_millis(3);
    let due = args.every.map(|every| Instant::now() + every);
    let mut watch = Watch { pid: child.id() as i32, nv, store, args, target: None, due };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if terminated.swap(false, Relaxed) {
            // SAFETY: our own child, which was not waited for.
            unsafe { libc::kill(watch.pid, SIGTERM) };
        }
        let left = watch.due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()));
        if !left.is_zero() {
            std::thread::sleep(LOOK.min(left));
            continue;
        }
        match watch.attempt()? {
            Came::Out(report) if args.verbose => report::say(&report.line()),
            Came::Out(_) => {}
            Came::Again => std::thread::sleep(AGAIN),
            // It ended meanwhile: that is seen above.
            Came::No(_) if child.try_wait()?.is_some() => {}
            Came::No(e) => report::say(&format!("no checkpoint this time: {e}")),
        }
    }
}

impl Watch<'_> {
    /// An error: there will never be one.
    fn attempt(&mut self) -> Result<Came> {
        // What the program, and others who use the directory, have at least between two checkpoints, however long these take.
        const GAP: Duration = Duration::from_millis(10);
        const PATIENCE: Duration = Duration::from_secs(1);
        let (every, began) = (self.args.every.unwrap_or_default(), Instant::now());
        let target = match &mut self.target {
            Some(target) => target,
            none => none.insert(match &self.nv {
                Some(nv) => Target::open_nv(self.pid, nv.clone())?,
                None => Target::open(self.pid, None)?,
            }),
        };
        let taken = one(target, self.store, self.args.keep);
        let is_busy = taken.as_ref().is_err_and(|e| e.downcast_ref().is_some_and(|e| matches!(e, towa_snap::Error::Busy { .. })));
        if is_busy && self.due.is_some_and(|due| due.elapsed() < every.max(PATIENCE)) {
            return Ok(Came::Again);
        }
        self.due = Some((began + every).max(Instant::now() + GAP));
        // It may run another program now (exec), of which nothing is known.
        if taken.is_err() && !is_busy {
            self.target = None;
        }
        Ok(taken.map_or_else(Came::No, Came::Out))
    }
}
