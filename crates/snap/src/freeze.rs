//! A process that stands still: all its threads are stopped, until this is dropped.
//!
//! What must always hold: no thread runs while a [`Frozen`] lives; none is lost, and no signal that one was about to get. If the tool is
//! killed, the kernel lets them run on.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sys::proc;
use crate::sys::ptrace::{self, Stop, Tid};

/// All threads of a process, stopped.
#[derive(Debug)]
pub struct Frozen {
    pid: Tid,
    /// The leader first.
    threads: Vec<Tid>,
}

impl Frozen {
    /// Stops every thread of `pid`. A process that is stopped already by a signal (SIGSTOP, Ctrl-Z) is refused: whether it is, is part of
    /// its state that only its parent can see. One that another of our kind has stopped is waited for.
    pub fn freeze(pid: Tid) -> Result<Frozen> {
        let began = Instant::now();
        let mut seen_alone = 0;
        loop {
            match Self::freeze_now(pid) {
                Err(Error::NotPermitted { .. }) if began.elapsed() < A_PAUSE && seen_alone < 5 => match tracer(pid) {
                    Some(tracer) if is_kin(tracer) => {}
                    // It may have been let go since.
                    None => seen_alone += 1,
                    Some(_) => return Self::freeze_now(pid),
                },
                other => return other,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn freeze_now(pid: Tid) -> Result<Frozen> {
        let mut frozen = Frozen { pid, threads: Vec::new() };
        let mut seen = BTreeSet::new();
        // A thread that runs may make others: again, until there is none that was not stopped.
        loop {
            let new: Vec<Tid> = tasks(pid)?.into_iter().filter(|tid| !seen.contains(tid)).collect();
            if new.is_empty() {
                break;
            }
            let mut seized = Vec::new();
            for tid in new {
                match ptrace::seize(tid, libc::PTRACE_O_TRACESYSGOOD) {
                    Ok(()) => seized.push(tid),
                    // It ended meanwhile.
                    Err(Error::Gone { .. }) if tid != pid => {}
                    Err(e) => {
                        let let_go = |tid| ptrace::interrupt(tid).and_then(|()| stop(tid)).and_then(|()| ptrace::detach(tid, 0));
                        seized.into_iter().for_each(|tid| drop(let_go(tid)));
                        return Err(e);
                    }
                }
                seen.insert(tid);
            }
            seized.iter().for_each(|tid| drop(ptrace::interrupt(*tid)));
            let mut failed = None;
            for tid in seized {
                match stop(tid) {
                    Ok(()) => frozen.threads.push(tid),
                    Err(Error::Gone { .. }) if tid != pid => {}
                    Err(e) => {
                        // The others are let go when `frozen` is dropped; a thread in a group stop is let go here.
                        let _ = ptrace::detach(tid, 0);
                        failed.get_or_insert(e);
                    }
                }
            }
            if let Some(failed) = failed {
                return Err(failed);
            }
        }
        match frozen.threads.iter().position(|tid| *tid == pid) {
            Some(leader) => frozen.threads.swap(0, leader),
            None => return Err(Error::Gone { pid }),
        }
        Ok(frozen)
    }

    /// A process that was made stopped and traced by this thread.
    pub fn own(threads: Vec<Tid>) -> Frozen {
        Frozen { pid: threads[0], threads }
    }

    /// Its number.
    pub fn pid(&self) -> Tid {
        self.pid
    }

    /// Its threads, the leader first.
    pub fn threads(&self) -> &[Tid] {
        &self.threads
    }

    /// One more, which stands still.
    pub fn add(&mut self, tid: Tid) {
        self.threads.push(tid);
    }
}

impl Frozen {
    /// Of a process that has been killed: waits for the end of each thread, of which its parent hears only then.
    pub fn until_ended(self) {
        // The leader last: it ends as the process does.
        for tid in self.threads[1..].iter().chain(&self.threads[..1]) {
            while let Ok(stop) = ptrace::wait(*tid) {
                if matches!(stop, Stop::Ended(_)) || ptrace::cont(*tid, 0).is_err() {
                    break;
                }
            }
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // One that was killed meanwhile cannot be let go, and need not.
        self.threads.iter().for_each(|tid| drop(ptrace::detach(*tid, 0)));
    }
}

/// Longer than any pause.
const A_PAUSE: Duration = Duration::from_secs(20);

/// Whoever traces a process.
fn tracer(pid: Tid) -> Option<Tid> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()?;
    (tracer != 0).then_some(tracer)
}

/// Whether a process runs this very program: then it traces others for a moment only.
pub fn is_kin(pid: Tid) -> bool {
    let program = |pid: &str| std::fs::metadata(format!("/proc/{pid}/exe")).map(|status| (status.dev(), status.ino()));
    let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let (theirs, ours) = (pid.to_string(), "self");
    match (program(&theirs), program(ours)) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        // Another user's: by its name.
        _ => name(&theirs).is_ok_and(|theirs| name(ours).is_ok_and(|ours| theirs == ours)),
    }
}

/// Numbers of the threads of a process.
pub fn tasks(pid: Tid) -> Result<Vec<Tid>> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&path).map_err(proc::failed(pid, &path))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Waits until a thread that was asked to stop has stopped, outside of signals: those that it was about to get it gets first.
fn stop(tid: Tid) -> Result<()> {
    loop {
        match ptrace::wait(tid)? {
            Stop::Interrupted => return Ok(()),
            Stop::Signal(signal) => ptrace::cont(tid, signal)?,
            Stop::Group => {
                return Err(Error::Target {
                    pid: tid,
                    what: "is stopped by a signal (SIGSTOP, Ctrl-Z); let it go on (kill -CONT) first".into(),
                });
            }
            Stop::Syscall | Stop::Event(_) => ptrace::cont(tid, 0)?,
            Stop::Ended(_) => return Err(Error::Gone { pid: tid }),
        }
    }
}
