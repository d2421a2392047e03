//! Who a process is, so that another can tell whether it still lives.
//!
//! What must always hold: a number that the kernel gave to another process since is not taken for the same.

use std::sync::atomic::Ordering::*;

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

    /// The one noted in `word`.
    pub fn noted(word: &AtomicU64) -> Option<Process> {
        Some(Process(word.load(Acquire))).filter(|p| p.0 != 0)
    }

    /// That of this number.
    #[cfg(test)]
    pub fn of(pid: u32) -> Process {
        Process(pack(pid, started(pid).expect("it runs")))
    }

    /// As a word.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Its number.
    pub fn id(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// Whether it still runs.
    pub fn lives(self) -> bool {
        started(self.id()).is_some_and(|start| pack(self.id(), start) == self.0)
    }
}

fn pack(pid: u32, start: u64) -> u64 {
    u64::from(pid) << 40 | start & ((1 << 40) - 1)
}

/// When process `pid` started; `None` if there is none, or nothing but its exit status is left of it.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_ends() {
        assert!(Process::this().lives());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id());
        assert!(process.lives() && process != Process::this());
        child.kill().unwrap();
        while process.lives() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!Process(pack(std::process::id(), 1)).lives(), "another process of that number");
    }
}
