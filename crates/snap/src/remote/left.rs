//! What tools that were killed have left in a process: stubs, whole or begun, that nobody will ask for anything any more.
//!
//! ```text
//!   mmap          ... │ -wx                                                 │ ...      of a length that is a stub's: nothing in it, or code
//!   mprotect      ... │ r-x  code, ours to the byte │ -wx                   │ ...
//!   mprotect      ... │ r-x  code, ours to the byte │ rw-  table and so on  │ ...      whole; all of them without a name, without a file
//!   more slots    ... │ r-x  code │ rw-  slots, table and so on             │ ...      for a moment
//! ```
//!
//! Memory that may be written and executed but not read is nobody's but ours: the processor reads it all the same, so no program asks for
//! it. That tells a stub that was only begun from the program's own.
//!
//! What must always hold: a stub is used again or unmapped only if its tool is dead ([`Claim`] says so) and no thread stands in it or
//! will return to it. A thread that was in it when its tool died leaves it by itself, mostly within microseconds; on the way a signal
//! may take it elsewhere, to a handler that returns into the stub: then the stub's address lies on its stack. What looks like that is left for
//! the next one to clear away.
//!
//! A whole stub of another version of this program cannot be told from the program's own. It stays, and does no harm.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use super::{LEN, PAGE, TABLE, arch};
use crate::error::Result;
use crate::memory::maps::{self, Mapping};
use crate::sys::memory;
use crate::sys::ptrace::{self, Tid};

/// How far above the stack pointer a signal handler's way back is looked for.
const NEAR: u64 = 1 << 20;

/// Says that a living tool has a stub in a process. It goes with the tool, however that ends.
#[derive(Debug)]
pub struct Claim(Option<File>);

impl Claim {
    /// On a process. Tools that see it through another mount of procfs (in a container, say) do not see each other; so a stub is looked
    /// at before each use (`Stub::choose_signal`).
    pub fn open(pid: Tid) -> Claim {
        Claim(File::open(format!("/proc/{pid}")).ok())
    }

    /// Makes the claim, and says whether nobody else has one. Only while the process stands still for the caller: so two tools are
    /// never here at a time, and none finds another between its two steps.
    pub fn alone(&self) -> bool {
        let Some(file) = &self.0 else { return false };
        // SAFETY: numbers only.
        let lock = |how| unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) == 0 };
        let alone = lock(libc::LOCK_EX);
        lock(libc::LOCK_SH) && alone
    }
}

/// A stub that is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its addresses.
    pub at: Range<u64>,
    /// Whether it can be used.
    pub whole: bool,
}

/// The stubs in a process, whose `threads` (all of them) stand still, that none of these will ever come back to.
pub fn free(pid: Tid, threads: &[Tid]) -> Result<Vec<Left>> {
    let mappings = maps::read(pid)?;
    let mut found = Vec::new();
    for (n, mapping) in mappings.iter().enumerate() {
        let before = n.checked_sub(1).map(|n| &mappings[n]);
        found.extend(ending_in(pid, before, mapping));
    }
    if found.is_empty() {
        return Ok(found);
    }
    let mut used = Vec::new();
    for tid in threads {
        used.extend(leads_to(pid, &mappings, &ptrace::registers(*tid)?));
    }
    found.retain(|one| !used.iter().any(|address| one.at.contains(address)));
    Ok(found)
}

/// The stub whose last part `mapping` is, or begins with: the system shows neighbours of one kind as one mapping.
fn ending_in(pid: Tid, before: Option<&Mapping>, mapping: &Mapping) -> Option<Left> {
    const WX: i32 = libc::PROT_WRITE | libc::PROT_EXEC;
    let range = mapping.pages.start * PAGE..mapping.pages.end * PAGE;
    let is_code =
        |code: &&Mapping| nobodys(code) && code.prot == libc::PROT_READ | libc::PROT_EXEC && code.pages.end == mapping.pages.start;
    let begin = before.filter(is_code).and_then(|code| {
        let begins = |len: &u64| code.pages.start * PAGE + len <= range.start && holds_code(pid, range.start - len);
        [TABLE, PAGE].into_iter().find(begins)
    });
    let from = range.start - begin.unwrap_or(0);
    match mapping.prot {
        _ if !nobodys(mapping) => None,
        WX if (range.end - from).is_multiple_of(LEN) => Some(Left { at: from..range.end, whole: false }),
        prot if begin.is_some() && prot == libc::PROT_READ | libc::PROT_WRITE && range.end - from >= LEN => {
            Some(Left { at: from..from + LEN, whole: true })
        }
        _ => None,
    }
}

fn nobodys(mapping: &Mapping) -> bool {
    !mapping.shared && mapping.inode == 0 && mapping.name.is_empty()
}

/// Whether the stub's code is at that address of a process.
pub fn holds_code(pid: Tid, at: u64) -> bool {
    let mut there = vec![0; arch::code().len()];
    memory::read(pid, at, &mut there).is_ok() && there == arch::code()
}

/// Where a thread with these registers may come to: where it stands, and each address on its stack that somebody may return to.
fn leads_to(pid: Tid, mappings: &[Mapping], registers: &ptrace::Registers) -> Vec<u64> {
    let rsp = registers.rsp & !7;
    let stack = mappings.iter().find(|mapping| mapping.pages.contains(&(rsp / PAGE)));
    let near: Range<u64> = stack.map_or(rsp..rsp, |stack| rsp..(stack.pages.end * PAGE).min(rsp + NEAR));
    let mut bytes = vec![0; (near.end - near.start) as usize];
    let mut all = vec![registers.rip];
    // Not to be read: then there is nothing to return to, either.
    if memory::read(pid, near.start, &mut bytes).is_ok() {
        all.extend(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))));
    }
    all
}
