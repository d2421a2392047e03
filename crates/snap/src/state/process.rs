//! A process: what its threads share, but for memory and descriptors.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cpu::Machine;
use super::settings;
use super::thread::{hex, pending};
use super::told::ProcessTold;
use crate::error::{Error, Refusal, Result};
use crate::sys::fd::share_descriptors;
use crate::sys::proc;
use crate::sys::ptrace::Tid;

/// Signals there are.
pub const SIGNALS: u64 = 64;

/// A process as a checkpoint keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number, which it has again after a restart.
    pub pid: Tid,
    /// The program.
    #[serde(with = "towa_media::paths::one")]
    pub program: PathBuf,
    /// Its arguments, for people.
    pub arguments: Vec<String>,
    /// Current directory.
    #[serde(with = "towa_media::paths::one")]
    pub directory: PathBuf,
    /// umask(2)
    pub umask: u32,
    /// Who it is.
    pub who: Who,
    /// PR_SET_NO_NEW_PRIVS
    pub no_new_privileges: bool,
    /// Soft and hard limits, by number of the resource.
    pub limits: Vec<(u64, u64)>,
    /// personality(2)
    pub personality: u64,
    /// What happens on each signal: handler, flags, restorer, mask.
    pub actions: Vec<[u64; 4]>,
    /// Signals that wait for the process, each a `siginfo_t` in hexadecimal.
    pub pending: Vec<String>,
    /// setitimer(2), real, virtual and profiling: value and interval in nanoseconds.
    pub interval_timers: [(u64, u64); 3],
    /// timer_create(2)
    pub timers: Vec<PosixTimer>,
    /// PR_SET_DUMPABLE
    pub dumpable: u64,
    /// PR_SET_CHILD_SUBREAPER
    pub subreaper: bool,
    /// PR_SET_THP_DISABLE
    pub no_huge_pages: bool,
    /// Commands of membarrier(2) it has registered for, as a bit mask.
    pub membarrier: u64,
    /// Addresses of code, data, heap, stack, arguments, environment.
    pub layout: Layout,
    /// CLOCK_MONOTONIC and CLOCK_BOOTTIME when it stood still, in nanoseconds.
    pub clocks: (u64, u64),
    /// What it could have seen of the processor.
    pub machine: Machine,
    /// Sets of registers that it asked for before using them (ARCH_REQ_XCOMP_PERM: AMX), and those that all have.
    pub register_sets: u64,
    /// PR_SET_MDWE
    pub deny_write_execute: u64,
    /// PR_SET_MEMORY_MERGE
    pub merge_memory: bool,
    /// `/proc/PID/oom_score_adj`
    pub oom_score: i32,
    /// Whether its user namespace gives names to some groups only: one of [`Who::supplementary`] that has none reads as 65534.
    pub unnamed_groups: bool,
}

/// Who a thread is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// Real, effective, saved and file system's user.
    pub users: [u32; 4],
    /// The same of groups.
    pub groups: [u32; 4],
    /// Supplementary groups, ascending.
    pub supplementary: Vec<u32>,
    /// Capabilities: inheritable, permitted, effective, bounding, ambient.
    pub capabilities: [u64; 5],
}

impl Who {
    /// That of a thread.
    pub fn of(tid: Tid) -> Result<Who> {
        Ok(Status::of(tid)?.who())
    }
}

/// Addresses as of PR_SET_MM_MAP, in that order up to `end of environment`, and the auxiliary vector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Start and end of code.
    pub code: (u64, u64),
    /// Start and end of data.
    pub data: (u64, u64),
    /// Where brk(2) began, and where it is.
    pub brk: (u64, u64),
    /// Top of the stack.
    pub stack: u64,
    /// Start and end of the arguments.
    pub arguments: (u64, u64),
    /// Start and end of the environment.
    pub environment: (u64, u64),
    /// The auxiliary vector, in hexadecimal.
    pub auxv: String,
}

/// A timer of timer_create(2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// Its number.
    pub id: i32,
    /// Its clock.
    pub clock: i32,
    /// The signal it sends.
    pub signal: i32,
    /// The value sent with it.
    pub value: u64,
    /// SIGEV_SIGNAL, SIGEV_NONE, SIGEV_THREAD_ID.
    pub notify: i32,
    /// The thread it is for, of SIGEV_THREAD_ID.
    pub thread: Tid,
    /// Nanoseconds until it expires, 0: not armed.
    pub value_ns: u64,
    /// Nanoseconds between expirations.
    pub interval_ns: u64,
}

/// The lines of `/proc/PID/status`.
struct Status(String);

impl Status {
    fn of(pid: Tid) -> Result<Status> {
        Ok(Status(text(pid, "status")?))
    }

    fn words(&self, key: &str) -> impl Iterator<Item = &str> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or("").split_whitespace()
    }

    fn number(&self, key: &str) -> u64 {
        self.words(key).next().and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    fn in_base(&self, key: &str, base: u32) -> u64 {
        self.words(key).next().and_then(|word| u64::from_str_radix(word, base).ok()).unwrap_or(0)
    }

    fn who(&self) -> Who {
        Who {
            users: self.four("Uid"),
            groups: self.four("Gid"),
            supplementary: self.words("Groups").filter_map(|word| word.parse().ok()).collect(),
            capabilities: ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].map(|key| self.in_base(key, 16)),
        }
    }

    fn four(&self, key: &str) -> [u32; 4] {
        let mut words = self.words(key).map(|word| word.parse().unwrap_or(0));
        std::array::from_fn(|_| words.next().unwrap_or(0))
    }
}

pub(super) fn text(pid: Tid, name: &str) -> Result<String> {
    told_by_system(pid, name, proc::text)
}

fn told_by_system<T>(pid: Tid, name: &str, read: fn(&str) -> std::io::Result<T>) -> Result<T> {
    let path = format!("/proc/{pid}/{name}");
    read(&path).map_err(proc::failed(pid, &path))
}

fn link(pid: Tid, name: &str) -> Result<PathBuf> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::read_link(&path).map_err(|e| Error::io(format!("reading {path}"), e))
}

/// What of a process as a whole stands in the way. `ours`: a child of it that need not be kept (a tool that it started to have itself
/// checkpointed). `filters`: so many filters of system calls are known to be ours.
pub fn refusals(pid: Tid, ours: Option<Tid>, filters: u64) -> Result<Vec<Refusal>> {
    let mut refused = Vec::new();
    let mut refuse = |place: &str, what: String| refused.push(Refusal { place: place.into(), what });
    let status = Status::of(pid)?;
    // One of our kind has it for a moment only.
    if let tracer @ 1.. = status.number("TracerPid")
        && !crate::freeze::is_kin(tracer as Tid)
    {
        refuse("process", format!("is traced by process {tracer} (a debugger?)"));
    }
    if status.number("Seccomp") != 0 && (filters == 0 || status.number("Seccomp_filters") != filters) {
        refuse("process", "runs under a seccomp filter, which cannot be read back".into());
    }
    if let Some(what) = elsewhere(pid, &status) {
        refuse("process", what);
    }
    if Stat::of(pid)?.word(FLAGS) & MEMALLOC_NOIO != 0 {
        refuse("process", "is one that writes out memory for others (PR_SET_IO_FLUSHER), which cannot be kept".into());
    }
    if settings::core_cookie(pid) != 0 {
        refuse("process", "shares its core with none but those it chose (PR_SCHED_CORE), which cannot be kept".into());
    }
    let who = status.who();
    for tid in crate::freeze::tasks(pid)? {
        if Status::of(tid).is_ok_and(|thread| thread.who() != who) {
            refuse("process", format!("thread {tid} has another user, other groups or other capabilities than the others"));
        }
        if !share_descriptors(pid, tid) {
            let whose = "has a table of descriptors of its own, as the thread that keeps the lock of an open Towa pool";
            refuse("process", format!("thread {tid} {whose}; that cannot be kept: close the pool first"));
        }
        let children = text(pid, &format!("task/{tid}/children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()).filter(|child| Some(*child) != ours) {
            let name = text(child, "comm").unwrap_or_default();
            refuse("process", format!("has a child, process {child} ({}); one process alone can be kept", name.trim_end()));
        }
    }
    Ok(refused)
}

/// Namespaces that a process can be in, and nsenter's letters for them.
const NAMESPACES: [(&str, &str, &str); 8] = [
    ("user", "user", "-U --preserve-credentials"),
    ("mnt", "mount", "-m"),
    ("pid", "pid", "-p"),
    ("time", "time", "-T"),
    ("net", "network", "-n"),
    ("ipc", "ipc", "-i"),
    ("uts", "uts", "-u"),
    ("cgroup", "cgroup", "-C"),
];

/// What a process in other namespaces than this one is told: names, numbers and times mean something else there.
fn elsewhere(pid: Tid, status: &Status) -> Option<String> {
    let here = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let there = |name: &str| link(pid, &format!("ns/{name}")).ok();
    let differs = |name: &str| here(name).zip(there(name)).is_some_and(|(here, there)| here != there);
    // Where its links may not be read, its numbers tell.
    let below = status.words("NSpid").count() > 1;
    let others: Vec<_> = NAMESPACES.iter().filter(|(name, ..)| differs(name) || below && *name == "pid").collect();
    for (name, own) in [("pid_for_children", "pid"), ("time_for_children", "time")] {
        if there(name).zip(there(own)).is_some_and(|(children, own)| children != own) {
            return Some(format!("has made a {own} namespace for its children, which cannot be kept"));
        }
    }
    if others.is_empty() {
        return None;
    }
    let names: Vec<&str> = others.iter().map(|(_, name, _)| *name).collect();
    let letters: Vec<&str> = others.iter().map(|(.., letter)| *letter).collect();
    let inner = status.words("NSpid").last().unwrap_or_default();
    Some(format!(
        "is in another {} namespace; run the tool in there: nsenter -t {pid} {} towa snap take DIR {inner} (with the whole name of DIR)",
        names.join(", "),
        letters.join(" "),
    ))
}

/// The word of `stat` that has the kernel's flags of a task, and the one of these that PR_SET_IO_FLUSHER sets.
const FLAGS: usize = 9;
const MEMALLOC_NOIO: u64 = 0x0008_0000;

/// Whether the user namespace of a process has no names for some groups.
fn unnamed_groups(pid: Tid) -> bool {
    const ALL: [&str; 3] = ["0", "0", "4294967295"];
    text(pid, "gid_map").is_ok_and(|map| map.split_whitespace().collect::<Vec<_>>() != ALL)
}

impl Process {
    /// Looks at a process that stands still; `told`: what it was told itself. Pending signals `quiet` are the tool's own.
    pub(super) fn look(pid: Tid, told: ProcessTold, quiet: i32) -> Result<Process> {
        let status = Status::of(pid)?;
        let stat = Stat::of(pid)?;
        let arguments = told_by_system(pid, "cmdline", proc::read)?;
        let arguments = arguments.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let mut arguments: Vec<String> = arguments.collect();
        arguments.pop();
        Ok(Process {
            pid,
            program: link(pid, "exe")?,
            arguments,
            directory: link(pid, "cwd")?,
            umask: status.in_base("Umask", 8) as u32,
            who: status.who(),
            no_new_privileges: status.number("NoNewPrivs") != 0,
            limits: limits(pid)?,
            personality: u64::from_str_radix(text(pid, "personality")?.trim(), 16).unwrap_or(0),
            actions: told.actions,
            pending: pending(pid, true, quiet)?,
            interval_timers: told.interval_timers,
            timers: told.timers,
            dumpable: told.dumpable,
            subreaper: told.subreaper,
            no_huge_pages: told.no_huge_pages,
            membarrier: told.membarrier,
            layout: Layout {
                code: (stat.word(26), stat.word(27)),
                data: (stat.word(45), stat.word(46)),
                brk: (stat.word(47), told.brk),
                stack: stat.word(28),
                arguments: (stat.word(48), stat.word(49)),
                environment: (stat.word(50), stat.word(51)),
                auxv: hex(&told_by_system(pid, "auxv", proc::read)?),
            },
            clocks: (clock_ns(libc::CLOCK_MONOTONIC), clock_ns(libc::CLOCK_BOOTTIME)),
            machine: Machine::here().clone(),
            register_sets: told.register_sets,
            deny_write_execute: told.deny_write_execute,
            merge_memory: told.merge_memory,
            oom_score: text(pid, "oom_score_adj")?.trim().parse().unwrap_or(0),
            unnamed_groups: unnamed_groups(pid),
        })
    }
}

/// Reads what `Process::look` will read, so that all that takes part in it is in the processor's caches when the process stands still.
pub fn rehearse(pid: Tid) {
    for name in ["status", "stat", "timers", "cmdline", "limits", "personality", "auxv", "oom_score_adj", "gid_map", "comm"] {
        let _ = told_by_system(pid, name, proc::read);
    }
}

/// The process that a thread is of.
pub fn thread_group(tid: Tid) -> Result<Tid> {
    Ok(Status::of(tid)?.number("Tgid") as Tid)
}

/// A clock's time in nanoseconds.
pub fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel stores one timespec.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The words of `/proc/PID/stat`, numbered as in proc(5).
struct Stat(Vec<u64>);

impl Stat {
    fn of(pid: Tid) -> Result<Stat> {
        let text = text(pid, "stat")?;
        let behind_name = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
        Ok(Stat(behind_name.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect()))
    }

    fn word(&self, number: usize) -> u64 {
        self.0.get(number - 3).copied().unwrap_or(0)
    }
}

/// `/proc/PID/limits`, which has them in the order of their numbers. (prlimit(2) would need more privileges for another user's process.)
fn limits(pid: Tid) -> Result<Vec<(u64, u64)>> {
    let text = text(pid, "limits")?;
    let limits: Option<Vec<(u64, u64)>> = text.lines().skip(1).map(limit).collect();
    limits
        .filter(|limits| limits.len() == 16)
        .ok_or_else(|| Error::Target { pid, what: format!("its limits are not understood: {text}") })
}

/// "Max open files            1024                 524288               files     "
fn limit(line: &str) -> Option<(u64, u64)> {
    const NAME: usize = 26;
    let mut words =
        line.get(NAME..)?.split_whitespace().map(|word| if word == "unlimited" { Some(u64::MAX) } else { word.parse().ok() });
    Some((words.next()??, words.next()??))
}

/// What `/proc/PID/timers` says of the timers of timer_create(2).
pub(super) fn posix_timers(text: &str) -> Vec<PosixTimer> {
    let mut timers: Vec<PosixTimer> = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let timer = timers.last_mut();
        match (key.trim(), timer) {
            ("ID", _) => timers.push(PosixTimer {
                id: value.parse().unwrap_or(0),
                clock: 0,
                signal: 0,
                value: 0,
                notify: 0,
                thread: 0,
                value_ns: 0,
                interval_ns: 0,
            }),
            ("signal", Some(timer)) => {
                let (signal, pointer) = value.split_once('/').unwrap_or((value, "0"));
                timer.signal = signal.parse().unwrap_or(0);
                timer.value = u64::from_str_radix(pointer.trim_start_matches("0x"), 16).unwrap_or(0);
            }
            ("notify", Some(timer)) => {
                let (how, whom) = value.split_once('/').unwrap_or((value, ""));
                let to_thread = whom.starts_with("tid.");
                timer.notify = match how {
                    "none" => libc::SIGEV_NONE,
                    _ if to_thread => libc::SIGEV_THREAD_ID,
                    _ => libc::SIGEV_SIGNAL,
                };
                timer.thread = whom.split_once('.').and_then(|(_, tid)| tid.parse().ok()).filter(|_| to_thread).unwrap_or(0);
            }
            ("ClockID", Some(timer)) => timer.clock = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    timers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_read_as_the_kernel_writes_them() {
        let text = "ID: 0\nsignal: 34/00007ffd4c2e6e50\nnotify: signal/tid.4711\nClockID: 1\nID: 3\nsignal: 0/(null)\nnotify: none/pid.12\nClockID: 0\n";
        let timers = posix_timers(text);
        let [first, second] = &timers[..] else { panic!("{timers:?}") };
        assert_eq!(
            (first.id, first.signal, first.value, first.notify, first.thread, first.clock),
            (0, 34, 0x7ffd_4c2e_6e50, libc::SIGEV_THREAD_ID, 4711, 1)
        );
        assert_eq!((second.id, second.signal, second.notify, second.thread), (3, 0, libc::SIGEV_NONE, 0));
    }
}
