//! A command and all its descendants under ptrace: which programs ran, how often they forked, how everything ended.
//!
//! ```text
//!   fork ─► child waits ─► SEIZE ─► events of perf are opened ─► child goes on ─► exec ─► ... its children are traced from their first moment
//!
//!   stop            what is done
//!   new task        a process is a fork of its program; a thread is nothing
//!   exec            the program is looked at; the fork that led to it, if nothing else came between, does not count for its program
//!   exit            the kernel's own count of its faults is read (and without perf its pages)
//!   signal          it is delivered
//!   group stop      it stays stopped (LISTEN), until somebody continues it
//! ```
//!
//! What must hold: a traced process behaves as it would untraced, only slower. All calls are made by one thread, whose children are the
//! traced processes alone. If that thread or the whole tool dies, they die too (EXITKILL): none is left half traced.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::elf::{self, Elf};
use super::objects::Objects;
use super::smaps;
use super::sys::{self, Pid};
use crate::traced::Faults;

/// A program that ran.
#[derive(Debug, Default)]
pub struct Program {
    /// Where it lies, as its processes saw it.
    pub path: PathBuf,
    /// What it is.
    pub elf: Option<Elf>,
    /// Times it was begun.
    pub execs: u64,
    /// Forks by it that were not followed at once by an exec.
    pub forks: u64,
}

#[derive(Debug, Default)]
struct Process {
    program: Option<usize>,
    /// Made by a fork of this program, and has neither forked, nor executed a program, nor ended.
    undecided: Option<usize>,
    is_by_exec: bool,
}

/// What the stops told.
#[derive(Debug, Default)]
pub struct Tree {
    /// Programs, in the order of their first exec.
    pub programs: Vec<Program>,
    /// New processes that were made.
    pub forks: u64,
    /// Execs that succeeded.
    pub execs: u64,
    /// How the command ended: its status, or 128 and the signal.
    pub exit_status: i32,
    /// How long the command ran.
    pub wall: Duration,
    /// Faults of all threads that were seen to end, by the kernel's own count.
    pub kernel: Faults,
    /// Processes that were let go.
    pub detached: u64,
    /// Pages that were mapped when processes ended, where that is asked for.
    pub pages: Option<Objects>,
    tasks: HashMap<Pid, Pid>,
    processes: HashMap<Pid, Process>,
    /// Tasks whose own first stop came before that of their parent.
    early: HashSet<Pid>,
    has_ended: bool,
    /// Faults of the command before its exec: ours.
    before: Faults,
}

const OPTIONS: i32 = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_EXITKILL;

/// Begins to trace a child that waits before its exec.
pub fn seize(pid: Pid) -> io::Result<()> {
    sys::ptrace(libc::PTRACE_SEIZE, pid, OPTIONS as usize)
}

/// A task that was killed is gone at any time.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|e| if e.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(e) })
}

impl Tree {
    /// Follows the command `command`, which was seized and released, and its descendants to their end; or, where `waits` is not asked for or
    /// `stop` is set, to the command's end.
    pub fn follow(&mut self, command: Pid, waits: bool, stop: &AtomicBool) -> io::Result<()> {
        let began = Instant::now();
        self.tasks.insert(command, command);
        self.processes.insert(command, Process::default());
        let mut idle = Duration::ZERO;
        loop {
            match sys::wait(!self.has_ended) {
                Ok(Some((pid, status))) if libc::WIFSTOPPED(status) => self.stopped(pid, status)?,
                Ok(Some((pid, status))) => {
                    self.ended(pid);
                    if pid == command {
                        (self.wall, self.has_ended) = (began.elapsed(), true);
                        self.exit_status =
                            if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
                        stop.store(false, Ordering::Relaxed);
                    }
                }
                Ok(None) if stop.load(Ordering::Relaxed) => self.let_go()?,
                Ok(None) => {
                    // Nothing wakes a wait for whatever comes first, a stop or the wish to end.
                    idle = (idle + Duration::from_micros(20)).min(Duration::from_millis(2));
                    std::thread::sleep(idle);
                    continue;
                }
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            idle = Duration::ZERO;
            if self.has_ended && !waits && !self.tasks.is_empty() {
                self.let_go()?;
            }
        }
        for (_, process) in std::mem::take(&mut self.processes) {
            self.decide(process.undecided);
        }
        self.kernel.minor = self.kernel.minor.saturating_sub(self.before.minor);
        self.kernel.major = self.kernel.major.saturating_sub(self.before.major);
        Ok(())
    }

    fn stopped(&mut self, pid: Pid, status: i32) -> io::Result<()> {
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        let mut deliver = 0;
        match event {
            0 => deliver = signal,
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => self.made_another(pid, event),
            libc::PTRACE_EVENT_EXEC => self.executed(pid),
            libc::PTRACE_EVENT_EXIT => self.exiting(pid),
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => self.first_stop(pid),
            libc::PTRACE_EVENT_STOP => {
                self.first_stop(pid);
                return unless_gone(sys::ptrace(libc::PTRACE_LISTEN, pid, 0));
            }
            _ => {}
        }
        unless_gone(sys::ptrace(libc::PTRACE_CONT, pid, deliver as usize))
    }

    /// A new task, or one that stopped for another reason.
    fn first_stop(&mut self, tid: Pid) {
        if !self.tasks.contains_key(&tid) {
            self.early.insert(tid);
            let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
            let number = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            self.register(tid, number("Tgid:").unwrap_or(tid), number("PPid:"));
        }
    }

    fn made_another(&mut self, pid: Pid, event: i32) {
        let Ok(new) = sys::event_message(pid).map(|message| message as Pid) else { return };
        if self.early.remove(&new) || self.tasks.contains_key(&new) {
            return;
        }
        let parent = self.tasks.get(&pid).copied();
        // A child that shares memory or signals nobody is a clone as a thread is one.
        let is_thread = event == libc::PTRACE_EVENT_CLONE
            && parent.is_some_and(|group| Path::new(&format!("/proc/{group}/task/{new}")).exists());
        self.register(new, if is_thread { parent.unwrap_or(new) } else { new }, parent);
    }

    fn register(&mut self, tid: Pid, group: Pid, parent: Option<Pid>) {
        self.tasks.insert(tid, group);
        if tid != group {
            return;
        }
        self.forks += 1;
        let mut process = Process::default();
        if let Some(parent) = parent.and_then(|parent| self.processes.get_mut(&parent)) {
            let decided = parent.undecided.take();
            (process.program, process.undecided) = (parent.program, parent.program);
            self.decide(decided);
        }
        self.processes.insert(tid, process);
    }

    fn decide(&mut self, fork_of: Option<usize>) {
        if let Some(program) = fork_of {
            self.programs[program].forks += 1;
        }
    }

    fn executed(&mut self, pid: Pid) {
        if let Ok(before) = sys::event_message(pid).map(|message| message as Pid)
            && before != pid
        {
            self.tasks.remove(&before);
        }
        self.tasks.insert(pid, pid);
        self.execs += 1;
        if self.execs == 1
            && let Some(already) = kernel_faults(pid, pid)
        {
            self.before = already;
        }
        let program = self.program(pid);
        self.programs[program].execs += 1;
        self.processes.insert(pid, Process { program: Some(program), undecided: None, is_by_exec: true });
    }

    /// The program that `pid` runs.
    fn program(&mut self, pid: Pid) -> usize {
        let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let (exe, root) = (link("exe"), link("root"));
        let path = exe.strip_prefix(&root).map_or_else(|_| exe.clone(), |inside| Path::new("/").join(inside));
        if let Some(index) = self.programs.iter().position(|program| program.path == path) {
            return index;
        }
        let elf = File::open(format!("/proc/{pid}/exe")).ok().and_then(|file| elf::inspect_file(&file));
        self.programs.push(Program { path, elf, ..Program::default() });
        self.programs.len() - 1
    }

    fn exiting(&mut self, tid: Pid) {
        let group = self.tasks.get(&tid).copied().unwrap_or(tid);
        if let Some(faults) = kernel_faults(group, tid) {
            self.kernel += faults;
        }
        if let (Some(pages), true) = (&mut self.pages, tid == group) {
            let is_by_exec = self.processes.get(&group).is_some_and(|process| process.is_by_exec);
            smaps::add(pages, group, !is_by_exec);
        }
    }

    fn ended(&mut self, tid: Pid) {
        self.tasks.remove(&tid);
        if let Some(process) = self.processes.remove(&tid) {
            self.decide(process.undecided);
        }
    }

    /// Lets all that are left go on untraced.
    fn let_go(&mut self) -> io::Result<()> {
        let mut processes = HashSet::new();
        for &tid in self.tasks.keys() {
            unless_gone(sys::ptrace(libc::PTRACE_INTERRUPT, tid, 0))?;
        }
        while !self.tasks.is_empty() {
            let (tid, status) = match sys::wait(true) {
                Ok(found) => found.unwrap_or_default(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => break,
                Err(e) => return Err(e),
            };
            if !libc::WIFSTOPPED(status) {
                self.ended(tid);
                continue;
            }
            let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
            match event {
                libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => self.made_another(tid, event),
                libc::PTRACE_EVENT_EXEC => self.executed(tid),
                _ => self.first_stop(tid),
            }
            unless_gone(sys::ptrace(libc::PTRACE_DETACH, tid, if event == 0 { signal as usize } else { 0 }))?;
            processes.extend(self.tasks.remove(&tid));
        }
        self.detached += processes.len() as u64;
        Ok(())
    }
}

/// Faults of a thread, as the kernel counts them.
fn kernel_faults(group: Pid, tid: Pid) -> Option<Faults> {
    let text = std::fs::read_to_string(format!("/proc/{group}/task/{tid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(7);
    let (minor, major) = (fields.next()?.parse().ok()?, fields.nth(1)?.parse().ok()?);
    Some(Faults { minor, major, pages: 0 })
}
