//! `towa xip trace`.
//!
//! What must hold: the command's streams, its signals and its exit status are its own; whatever ends it, what was seen is printed.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use towa_xip::trace::{self as xip, Leader, Options};

use crate::failure;
use crate::report;

/// Count forks, execs and page faults of a command, by program and library.
///
/// The command runs with all its children, slower than otherwise, and then two tables say what ran: programs, with how often they were
/// started (execs) and went on as a copy of themselves (forks; one that is followed at once by an exec is not counted here); and libraries,
/// with how many processes mapped them. Text is what lies in executable mappings, data the other mappings of the same file; stack, heap and
/// other files are "other". A fault is major if it waited for storage. For `towa xip plan`, write the trace to a file by --json.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa xip trace -- make -j4                           what does a build fault on?
  towa xip trace --json build.json -- make -j4         ... for `towa xip plan --trace build.json`
  towa xip trace --output faults.txt --top 50 -- ./run-tests.sh
  towa xip trace --no-wait -- /etc/init.d/sshd start   do not wait for what goes on in the background
  echo 3 >/proc/sys/vm/drop_caches; towa xip trace -- gcc -c x.c
                                                       a cold start: the major faults

Every fault is seen where perf events are permitted: as root, with CAP_PERFMON, or with kernel.perf_event_paranoid at 1 or less. Otherwise
the report says what is missing. A command that is traced cannot be traced once more (gdb, strace).

Exit status: that of the command, 128 and the number of the signal if one ended it; 127 if it is not there, 126 if it cannot be started;
otherwise as for `towa`.")]
pub struct TraceArgs {
    /// Write the trace as JSON to FILE; `-`, or no FILE, is standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write the tables to FILE instead of standard error.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// List the N programs and the N libraries with the most faults.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// End when the command itself has ended; what it left in the background goes on untraced.
    #[arg(long)]
    no_wait: bool,
    /// The command and its arguments.
    #[arg(value_name = "CMD", required = true, last = true)]
    command: Vec<OsString>,
}

/// `towa xip trace`.
pub fn run(args: &TraceArgs) -> Result<()> {
    // What cannot be written is said before the command runs.
    let mut tables = args.output.as_deref().map(created).transpose()?;
    let mut json = args.json.as_deref().filter(|path| *path != Path::new("-")).map(created).transpose()?;
    let options = Options { waits_for_all: !args.no_wait, stop: Arc::new(AtomicBool::new(false)), ..Options::default() };
    // The terminal's signals reach the command by themselves; when it has ended, they end the waiting for the others.
    for signal in [SIGINT, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&options.stop)).context("signals cannot be watched")?;
    }
    let signals = Signals::new([SIGTERM, SIGHUP]).context("signals cannot be watched")?;
    let running = xip::start(&args.command, &options).map_err(|e| not_started(&args.command, e))?;
    pass_on(signals, running.leader(), Arc::clone(&options.stop));
    let trace = running.finish().map_err(|e| not_started(&args.command, e))?;
    let text = report::plain_lines(&super::table::table(&trace, args.top)).into_owned();
    match &mut tables {
        Some(file) => file.write_all(text.as_bytes()).context("writing the tables")?,
        None => drop(std::io::stderr().write_all(text.as_bytes())),
    }
    match &mut json {
        Some(file) => {
            serde_json::to_writer_pretty(&mut *file, &trace).context("writing the trace")?;
            file.write_all(b"\n").context("writing the trace")?;
        }
        None if args.json.is_some() => report::json(&trace)?,
        None => {}
    }
    std::process::exit(trace.exit_status)
}

fn created(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("{}: writing", path.display()))
}

/// SIGTERM and SIGHUP for us are for the command; when that has ended, they end the waiting.
fn pass_on(mut signals: Signals, leader: Leader, stop: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        for signal in signals.forever() {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            let _ = leader.signal(signal);
        }
    });
}

/// With the exit status that env(1), nohup(1) and shells give.
fn not_started(command: &[OsString], e: towa_xip::Error) -> anyhow::Error {
    match &e {
        towa_xip::Error::Io { source, doing: "starting", .. } => {
            let code = if source.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            failure::coded(code, format!("{} cannot be started: {source}", command[0].to_string_lossy()))
        }
        _ => e.into(),
    }
}
