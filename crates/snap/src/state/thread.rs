//! A thread: registers, signals, and what the kernel knows of it by number.

use serde::{Deserialize, Serialize};

use super::settings::{self, Settings};
use super::told::ThreadTold;
use crate::error::{Error, Result};
use crate::remote::arch;
use crate::sys::proc;
use crate::sys::ptrace::{self, Registers, Rseq, Tid};

/// Words in the order of `struct user_regs_struct`.
const WORDS: usize = size_of::<Registers>() / 8;

/// A thread as a checkpoint keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its number, which it has again after a restart.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// General registers (`struct user_regs_struct`), as they were in the stop: an interrupted system call is made again by the kernel.
    pub registers: Vec<u64>,
    /// Floating point and vector registers, as XSAVE stores them, in hexadecimal.
    pub xstate: String,
    /// The signals it blocks.
    pub mask: u64,
    /// Signals that wait for it: each a `siginfo_t`, in hexadecimal.
    pub pending: Vec<String>,
    /// rseq(2)
    pub rseq: Rseq,
    /// Head and length of its list of robust futexes.
    pub robust_list: (u64, u64),
    /// Where its number is cleared when it ends.
    pub tid_address: u64,
    /// Alternate signal stack: address, flags (SS_ONSTACK if it stands on it), length.
    pub altstack: (u64, i32, u64),
    /// Scheduling: policy, nice value, priority.
    pub scheduling: (u32, i32, u32),
    /// The processors it may run on, as a bit mask; empty: all there are.
    pub affinity: Vec<u64>,
    /// The signal it gets when its parent ends.
    pub death_signal: i32,
    /// The system call that it was in and that goes on with what was left of it (a sleep, a wait with a timeout): a restart makes it again in
    /// full.
    pub sleeps_in: Option<u64>,
    /// What it has set for itself.
    pub settings: Settings,
}

/// `bytes` in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)] as char, DIGITS[usize::from(byte & 15)] as char]).collect()
}

/// What [`hex`] made.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| (c as char).to_digit(16).map(|value| value as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|two| Some(digit(two[0])? << 4 | digit(two[1])?)).collect()).flatten()
}

impl Thread {
    /// Its registers.
    pub fn user_registers(&self) -> Option<Registers> {
        let words: [u64; WORDS] = self.registers.clone().try_into().ok()?;
        // SAFETY: both are 27 words, and any words are registers.
        Some(unsafe { std::mem::transmute::<[u64; WORDS], Registers>(words) })
    }

    /// Looks at a thread that stands still; `told`: what it was told itself. Pending signals `quiet` are the tool's own. There are so many
    /// processors `online`.
    pub(super) fn look(tid: Tid, told: ThreadTold, quiet: i32, online: u32) -> Result<Thread> {
        settings::refuse(tid)?;
        let registers = ptrace::registers(tid)?;
        let name_at = format!("/proc/{tid}/comm");
        let name = proc::text(&name_at).map_err(|e| Error::io(format!("reading {name_at}"), e))?;
        Ok(Thread {
            tid,
            name: name.trim_end_matches('\n').to_owned(),
            // SAFETY: both are 27 words.
            registers: unsafe { std::mem::transmute::<Registers, [u64; WORDS]>(registers) }.to_vec(),
            xstate: hex(&ptrace::regset(tid, ptrace::NT_X86_XSTATE)?),
            mask: ptrace::signal_mask(tid)?,
            pending: pending(tid, false, quiet)?,
            rseq: ptrace::rseq(tid)?,
            robust_list: robust_list(tid)?,
            tid_address: told.tid_address,
            altstack: told.altstack,
            scheduling: scheduling(tid)?,
            affinity: affinity(tid, online)?,
            death_signal: told.death_signal,
            sleeps_in: arch::goes_on(&registers).then_some(registers.orig_rax),
            settings: told.settings,
        })
    }
}

/// Signals that wait, without those that the tool itself uses.
pub(crate) fn pending(tid: Tid, shared: bool, quiet: i32) -> Result<Vec<String>> {
    let all = ptrace::pending(tid, shared)?;
    Ok(all
        .iter()
        .filter(|info| i32::from_le_bytes(info[..4].try_into().expect("four bytes")) != quiet)
        .map(|info| hex(info))
        .collect())
}

fn robust_list(tid: Tid) -> Result<(u64, u64)> {
    let (mut head, mut len) = (0u64, 0u64);
    // SAFETY: two words.
    if unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) } != 0 {
        return Err(Error::last(format!("get_robust_list of thread {tid}")));
    }
    Ok((head, len))
}

fn scheduling(tid: Tid) -> Result<(u32, i32, u32)> {
    // SAFETY: the struct is numbers; the kernel writes at most the size it is told.
    unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        if libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size_of::<libc::sched_attr>(), 0) != 0 {
            return Err(Error::last(format!("sched_getattr of thread {tid}")));
        }
        Ok((attr.sched_policy, attr.sched_nice, attr.sched_priority))
    }
}

fn affinity(tid: Tid, online: u32) -> Result<Vec<u64>> {
    let mut mask = vec![0u64; 128];
    // SAFETY: a buffer and its length.
    let got = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, mask.len() * 8, mask.as_mut_ptr()) };
    if got < 0 {
        return Err(Error::last(format!("sched_getaffinity of thread {tid}")));
    }
    let may: u32 = mask.iter().map(|word| word.count_ones()).sum();
    mask.truncate(mask.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
    Ok(if may >= online { Vec::new() } else { mask })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_comes_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        assert_eq!((unhex("0"), unhex("0g"), unhex("")), (None, None, Some(vec![])));
    }
}
