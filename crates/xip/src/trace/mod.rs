//! Traces a command and all its descendants: forks, execs and page faults, by program and library (`towa xip trace`).
//!
//! ```text
//!            ┌── tree (ptrace) ── programs, forks, execs, how it ended ─────────────┐
//!   command ─┤                                                                      ├─► Trace
//!            └── perf ── spaces ── objects: faults and pages, text and data ────────┘
//!                 └ not permitted: smaps, pages only
//! ```
//!
//! How it is counted, after the paper's tables 1 and 2:
//! - *text* is what lies in executable mappings of a file, *data* its other mappings, read-only data included: what stays in ABC. Pages behind
//!   the end of a file (most of `.bss`), heap, stack and files that are no programs are *other*.
//! - A fork that is followed at once by an exec counts in [`Trace::forks`], but not for programs and libraries: the child used none of it.
//! - Pages are counted once in each run of a process: for each exec, and for each fork that lives on. With perf only pages that faulted are
//!   counted, so there are at most as many as faults (the kernel maps up to 16 neighbours of a faulting text page along, which then do
//!   not fault; the paper's kernel did not). Without perf the pages are those that were mapped at the end, neighbours included.
//! - A split program's text counts for the program, and a library's for the library: over whose text it is mapped.
//! - Faults without an instruction (the arguments that exec writes to a new stack, pages pinned for direct I/O) are seen by nobody.
//!
//! What must hold: the command runs as it would without us; what was not seen is said ([`Trace::exact`], [`Trace::notes`]), never guessed.

mod elf;
mod objects;
mod perf;
mod smaps;
mod spaces;
mod sys;
mod tree;

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread::JoinHandle;

use self::tree::Tree;
use crate::traced::{SCHEMA, Trace};
use crate::{Error, Result};

/// How to trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Trace until all processes have ended, not just the command itself.
    pub waits_for_all: bool,
    /// Set when the command has ended: what else still runs is let go.
    pub stop: Arc<AtomicBool>,
    /// Do without perf, as where it is not permitted.
    pub without_perf: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { waits_for_all: true, stop: Arc::default(), without_perf: false }
    }
}

/// A command that is being traced. To drop it does not end it.
#[derive(Debug)]
pub struct Running {
    leader: Arc<OwnedFd>,
    thread: JoinHandle<Result<Trace>>,
}

/// The command itself, to send signals to.
#[derive(Clone, Debug)]
pub struct Leader(Arc<OwnedFd>);

impl Leader {
    /// Sends it a signal; that it has ended is no error.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        sys::pidfd_signal(&self.0, signal).or_else(|e| if e.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(e) })
    }
}

impl Running {
    /// The command.
    pub fn leader(&self) -> Leader {
        Leader(Arc::clone(&self.leader))
    }

    /// Waits for the end of tracing. A command that could not be started is an [`Error::Io`] with its name.
    pub fn finish(self) -> Result<Trace> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Runs `command`, a program and its arguments, and traces it to its end.
pub fn trace(command: &[OsString], options: &Options) -> Result<Trace> {
    start(command, options)?.finish()
}

/// Starts `command`. It has our standard streams, and is in our process group: the terminal's signals reach it by themselves.
pub fn start(command: &[OsString], options: &Options) -> Result<Running> {
    if command.is_empty() {
        return Err(Error::Wrong("there is no command to trace".into()));
    }
    let (command, options) = (command.to_vec(), options.clone());
    let (started, starting) = mpsc::channel();
    // One thread makes all calls of ptrace, and waits for its own children only: others of this process are left alone.
    let thread = std::thread::Builder::new()
        .name("towa-trace".into())
        .spawn(move || begin(&command, &options, &started))
        .map_err(Error::io(Path::new("a thread"), "starting"))?;
    match starting.recv() {
        Ok(leader) => Ok(Running { leader: Arc::new(leader), thread }),
        Err(_) => match thread.join() {
            Ok(result) => Err(result.err().unwrap_or_else(|| Error::Wrong("nothing was traced".into()))),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

fn begin(command: &[OsString], options: &Options, started: &mpsc::Sender<OwnedFd>) -> Result<Trace> {
    let name = Path::new(&command[0]);
    let mut child = sys::Waiting::fork(command).map_err(Error::io(name, "starting"))?;
    let seized = sys::pidfd(child.pid).and_then(|leader| tree::seize(child.pid).map(|()| leader));
    let leader = match seized {
        Ok(leader) => leader,
        Err(e) => {
            let error = refused(name, child.pid, e);
            child.kill();
            return Err(error);
        }
    };
    let mut notes = Vec::new();
    let events = if options.without_perf { Err(io::Error::other("not asked for")) } else { perf::Events::open(child.pid) };
    let sees_kernel = events.as_ref().is_ok_and(|events| events.sees_kernel);
    let following = events.and_then(perf::Events::follow).map_err(|e| notes.push(without_perf(&e))).ok();
    let mut tree = Tree::default();
    tree.pages = following.is_none().then(Default::default);
    let _ = started.send(leader);
    let released = child.release();
    let followed = tree.follow(child.pid, options.waits_for_all, &options.stop);
    let seen = following.map(perf::Following::finish);
    released.and(followed).map_err(Error::io(name, "tracing"))?;
    if let (0, Some(source)) = (tree.execs, child.exec_error()) {
        return Err(Error::Io { path: name.to_owned(), doing: "starting", source });
    }
    if seen.is_some() && !sees_kernel {
        notes.push(
            "faults that the kernel took at a program's addresses were not seen: that needs root, CAP_PERFMON or kernel.perf_event_paranoid=1"
                .into(),
        );
    }
    Ok(assemble(command, tree, seen, notes))
}

fn refused(name: &Path, pid: i32, e: io::Error) -> Error {
    if e.raw_os_error() != Some(libc::EPERM) {
        return Error::io(name, "tracing")(e);
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map(str::trim).filter(|pid| *pid != "0");
    let what = match tracer {
        Some(tracer) => format!(
            "process {tracer} (a debugger, strace, or another `towa xip trace`) traces this command already, and a process has one tracer; run `towa xip trace` outside of it"
        ),
        None => "this machine does not let processes be traced (ptrace); in a container, allow it by --cap-add=SYS_PTRACE".into(),
    };
    Error::Unsupported { what }
}

fn without_perf(e: &io::Error) -> String {
    format!(
        "page faults could not be attributed (perf: {e}; as root, or with kernel.perf_event_paranoid=1 or less, they can): `pages` are those \
         mapped when each process ended, and all faults are under other"
    )
}

fn assemble(command: &[OsString], tree: Tree, seen: Option<perf::Seen>, mut notes: Vec<String>) -> Trace {
    if tree.detached > 0 {
        notes.push(format!("{} processes still ran when the command had ended, and were let go", tree.detached));
    }
    let mut is_exact = notes.is_empty();
    let objects = match seen {
        Some(seen) => {
            is_exact &= compare(&tree, &seen, &mut notes);
            seen.spaces.finish()
        }
        None => {
            let mut objects = tree.pages.unwrap_or_default();
            (objects.other.minor, objects.other.major) = (tree.kernel.minor, tree.kernel.major);
            objects
        }
    };
    let (objects, other) = objects.report(tree.programs);
    Trace {
        schema: SCHEMA,
        command: command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect(),
        wall_ms: tree.wall.as_secs_f64() * 1e3,
        exit_status: tree.exit_status,
        processes: tree.forks + 1,
        forks: tree.forks,
        execs: tree.execs,
        objects,
        other,
        exact: is_exact,
        notes,
    }
}

/// Whether perf saw all that ptrace saw, and the kernel counted.
fn compare(tree: &Tree, seen: &perf::Seen, notes: &mut Vec<String>) -> bool {
    let before = notes.len();
    if seen.lost > 0 {
        notes.push(format!("{} records were lost: this machine was too busy to read them", seen.lost));
    }
    if (seen.spaces.execs, seen.spaces.forks) != (tree.execs, tree.forks) && tree.detached == 0 {
        notes.push(format!(
            "perf told of {} execs and {} forks, ptrace of {} and {}: faults of some processes are missing (of set-user-id programs, for one)",
            seen.spaces.execs, seen.spaces.forks, tree.execs, tree.forks
        ));
    }
    // The kernel counts what it does for exec itself as well, and at a task's very end perf tells of faults that we read too early to see.
    let (counted, told) = (tree.kernel.minor + tree.kernel.major, seen.spaces.faults);
    if counted > told + told / 50 + 4 * tree.execs + 2 * tree.forks + 50 {
        notes.push(format!("the kernel counted {counted} faults, of which perf told {told}"));
    }
    notes.len() == before
}
