//! The small things that a process or a thread has set for itself, mostly by prctl(2).
//!
//! Not kept, because the kernel tells nobody, or because it is the surroundings' and not the program's: what PR_SET_MCE_KILL chose;
//! memory policies of NUMA and mlockall(MCL_FUTURE); protection keys that are allocated and not used (used ones are refused); the slack
//! that PR_SET_TIMERSLACK goes back to; security labels, key rings, cgroup, process group, session and terminal (those of whoever
//! restarts); processor time used so far.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Refusal, Result};
use crate::remote::Call;
use crate::sys::machine;
use crate::sys::ptrace::{self, Tid};

/// What threads have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// PR_SET_TIMERSLACK, in nanoseconds; 0 of a thread with real-time scheduling.
    pub timer_slack: u64,
    /// ioprio_set(2): class and level.
    pub io_priority: i32,
    /// PR_SET_SECUREBITS
    pub secure_bits: u64,
    /// PR_SET_TSC: whether reading the time stamp counter is a fault.
    pub no_tsc: bool,
    /// ARCH_SET_CPUID: whether the instruction is a fault.
    pub no_cpuid: bool,
    /// PR_SET_SPECULATION_CTRL, of store bypass, indirect branches, and flushing the first cache: as PR_GET_SPECULATION_CTRL says; 0 where it
    /// cannot be chosen.
    pub speculation: [u64; SPECULATION],
}

/// Kinds of speculation that can be chosen.
pub const SPECULATION: usize = 3;
/// It is for each thread to choose.
const PR_SPEC_PRCTL: i64 = 1;
pub(crate) const ARCH_SET_CPUID: u64 = 0x1012;
const ARCH_GET_CPUID: u64 = 0x1011;
const IOPRIO_WHO_PROCESS: i32 = 1;

/// Bytes that the calls write.
pub(crate) const SCRATCH: u64 = 8;

/// What the thread itself asks; `at` are [`SCRATCH`] bytes of it.
pub(crate) fn calls(at: u64) -> Vec<Call> {
    let mut calls = vec![
        Call::new(libc::SYS_prctl, &[libc::PR_GET_TIMERSLACK as u64]),
        Call::new(libc::SYS_prctl, &[libc::PR_GET_SECUREBITS as u64]),
        Call::new(libc::SYS_prctl, &[libc::PR_GET_TSC as u64, at]),
        Call::new(machine::SYS_ARCH_PRCTL, &[ARCH_GET_CPUID]),
    ];
    calls.extend((0..SPECULATION as u64).map(|n| Call::new(libc::SYS_prctl, &[machine::PR_GET_SPECULATION_CTRL as u64, n])));
    calls
}

impl Settings {
    /// From the results of [`calls`], and what they wrote.
    pub(crate) fn of(tid: Tid, results: &[i64], written: u64) -> Result<Settings> {
        let speculation =
            |n: usize| if results[4 + n] > 0 && results[4 + n] & PR_SPEC_PRCTL != 0 { results[4 + n] as u64 } else { 0 };
        Ok(Settings {
            timer_slack: results[0].max(0) as u64,
            io_priority: io_priority(tid)?,
            secure_bits: results[1].max(0) as u64,
            no_tsc: results[2] == 0 && written as i32 == libc::PR_TSC_SIGSEGV,
            no_cpuid: results[3] == 0,
            speculation: std::array::from_fn(speculation),
        })
    }
}

/// ioprio_get(2)
pub(crate) fn io_priority(tid: Tid) -> Result<i32> {
    // SAFETY: numbers only.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) };
    if priority < 0 { Err(Error::last(format!("ioprio_get of thread {tid}"))) } else { Ok(priority as i32) }
}

/// ioprio_set(2)
pub(crate) fn set_io_priority(tid: Tid, priority: i32) -> std::io::Result<()> {
    // SAFETY: numbers only.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, priority) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// What of a stopped thread cannot be given again.
pub(crate) fn refuse(tid: Tid) -> Result<()> {
    if !ptrace::dispatches_system_calls(tid)? {
        return Ok(());
    }
    let what = "has its system calls dispatched to itself (PR_SET_SYSCALL_USER_DISPATCH, as Wine does), which cannot be kept";
    Err(Error::Refused { pid: tid, what: vec![Refusal { place: format!("thread {tid}"), what: what.into() }] })
}

/// The cookie of core scheduling that a process shares with those it may share a core with; 0: none.
pub(crate) fn core_cookie(pid: Tid) -> u64 {
    let mut cookie = 0u64;
    // SAFETY: the kernel stores one word; without core scheduling none.
    let got = unsafe { libc::prctl(libc::PR_SCHED_CORE, libc::PR_SCHED_CORE_GET, pid, 0, &raw mut cookie) };
    if got == 0 { cookie } else { 0 }
}
