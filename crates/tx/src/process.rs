//! Who a process is, so that another can tell whether it still lives.
//!
//! What must always hold: a number that the kernel gave to another process since is not taken for the same.

use std::sync::atomic::Ordering::*;

use towa_media::holder;

use crate::sync::AtomicU64;

/// A process: its number, and when it started (in clock ticks since boot, 40 bits of them), in one word. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// This one.
    pub fn this() -> Process {
        let pid = std::process::id();
        Process(pack(pid, started(pid).unwrap_or(0)))
    }

    /// The one that has this number now.
    pub fn of(pid: u32) -> Option<Process> {
        Some(Process(pack(pid, started(pid)?)))
    }

    /// The one noted in `word`.
    pub fn noted(word: &AtomicU64) -> Option<Process> {
        Some(Process(word.load(Acquire))).filter(|p| p.0 != 0)
    }

    /// As a word.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Its number.
    pub fn id(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// Whether it still runs, or would if it were let.
    pub fn lives(self) -> bool {
        started(self.id()).is_some_and(|start| pack(self.id(), start) == self.0)
    }

    /// Whether it lives, and does nothing until it is let go on: after SIGSTOP, or in a debugger.
    pub fn is_stopped(self) -> bool {
        self.lives() && holder::is_stopped(self.id())
    }
}

fn pack(pid: u32, start: u64) -> u64 {
    u64::from(pid) << 40 | start & ((1 << 40) - 1)
}

/// When process `pid` started; `None` if there is none, or nothing but its exit status is left of it.
fn started(pid: u32) -> Option<u64> {
    holder::state(pid).filter(|(state, _)| !matches!(state, 'Z' | 'X')).map(|(_, start)| start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_ends() {
        assert!(Process::this().lives());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.lives() && process != Process::this());
        // SAFETY: a child of ours that nobody has waited for.
        let signal = |signal| assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
        signal(libc::SIGSTOP);
        while !process.is_stopped() {
            std::thread::yield_now();
        }
        assert!(process.lives(), "a stopped process lives");
        signal(libc::SIGCONT);
        while process.is_stopped() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        while process.lives() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!Process(pack(std::process::id(), 1)).lives(), "another process of that number");
    }
}
