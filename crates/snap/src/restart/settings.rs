//! Gives back the small things that a process and its threads had set for themselves, and sees that the machine can.
//!
//! What must always hold: what the program relies on is as it was, or there is no restart; what only says how well it is served (input and
//! output, memory that is scarce) is as near to it as permitted, and said in the log where it is not.

use crate::error::{Error, Result};
use crate::remote::{Call, Stub};
use crate::state::State;
use crate::state::cpu::Machine;
use crate::state::process::Process;
use crate::state::settings::{ARCH_SET_CPUID, io_priority, set_io_priority};
use crate::state::thread::Thread;
use crate::sys::ptrace::Tid;
use crate::sys::{machine, memory};

const ARCH_GET_XCOMP_PERM: u64 = 0x1022;
const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
const PR_SET_MEMORY_MERGE: u64 = 67;
/// Of a result of PR_GET_SPECULATION_CTRL: all but that it can be chosen.
const SPECULATION_CHOICE: u64 = 0x1e;

/// Whether this machine has all that the program has seen of the one of its checkpoint.
pub fn check(process: &Process) -> Result<()> {
    let lacking = Machine::here().lacks(&process.machine);
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: format!("the processor lacks what the program may use since its start: {}", lacking.join(", ")),
        remedy: "restart it on a machine like the one of its checkpoint",
    })
}

fn checked(stub: &Stub, tid: Tid, calls: &[Call]) -> Result<()> {
    for (call, result) in calls.iter().zip(stub.run(tid, calls)?) {
        stub.checked(call.number, result)?;
    }
    Ok(())
}

/// What threads share. The memory is complete: what a personality says of new mappings does not touch it.
pub fn process(state: &State, stub: &Stub) -> Result<()> {
    let process = &state.process;
    let pid = process.pid;
    let mut calls = vec![Call::new(libc::SYS_personality, &[process.personality])];
    memory::write(pid, stub.scratch(), &[0; 8])?;
    // A processor without such registers says no, and nobody has asked for them there.
    stub.run(pid, &[Call::new(machine::SYS_ARCH_PRCTL, &[ARCH_GET_XCOMP_PERM, stub.scratch()])])?;
    let mut sets = [0u8; 8];
    memory::read(pid, stub.scratch(), &mut sets)?;
    let asked = process.register_sets & !u64::from_le_bytes(sets);
    let asked = (0..64).filter(|bit| asked & 1 << bit != 0);
    calls.extend(asked.map(|bit| Call::new(machine::SYS_ARCH_PRCTL, &[ARCH_REQ_XCOMP_PERM, bit])));
    if process.deny_write_execute != 0 {
        calls.push(Call::new(libc::SYS_prctl, &[libc::PR_SET_MDWE as u64, process.deny_write_execute]));
    }
    checked(stub, pid, &calls)?;
    if process.merge_memory && stub.run(pid, &[Call::new(libc::SYS_prctl, &[PR_SET_MEMORY_MERGE, 1])])?[0] < 0 {
        log::warn!("process {pid}: its pages are not merged with equal ones any more (PR_SET_MEMORY_MERGE is not permitted)");
    }
    oom_score(process)
}

/// As near to what it was as permitted: less than what the process once had takes CAP_SYS_RESOURCE.
fn oom_score(process: &Process) -> Result<()> {
    let path = format!("/proc/{}/oom_score_adj", process.pid);
    let failed = |e| Error::io(path.clone(), e);
    let now: i32 = std::fs::read_to_string(&path).map_err(failed)?.trim().parse().unwrap_or(0);
    if now == process.oom_score || std::fs::write(&path, process.oom_score.to_string()).is_ok() {
        return Ok(());
    }
    let (mut denied, mut given) = (process.oom_score, now);
    while given - denied > 1 {
        let between = denied + (given - denied) / 2;
        match std::fs::write(&path, between.to_string()) {
            Ok(()) => given = between,
            Err(_) => denied = between,
        }
    }
    log::warn!(
        "process {}: when memory is scarce it is ended sooner than before (oom_score_adj {given} instead of {}; less takes CAP_SYS_RESOURCE)",
        process.pid,
        process.oom_score
    );
    Ok(())
}

/// What each thread has for itself.
pub fn thread(thread: &Thread, stub: &Stub) -> Result<()> {
    let (tid, settings) = (thread.tid, &thread.settings);
    if io_priority(tid)? != settings.io_priority
        && let Err(e) = set_io_priority(tid, settings.io_priority)
    {
        log::warn!("thread {tid}: priority of its input and output ({:#x}): {e}", settings.io_priority);
    }
    let prctl = |option: i32, value: u64| Call::new(libc::SYS_prctl, &[option as u64, value]);
    let mut calls = Vec::new();
    // That of a real-time thread comes with its scheduling; 0 would mean another thing here.
    if settings.timer_slack != 0 {
        calls.push(prctl(libc::PR_SET_TIMERSLACK, settings.timer_slack));
    }
    if settings.no_tsc {
        calls.push(prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV as u64));
    }
    if settings.no_cpuid {
        calls.push(Call::new(machine::SYS_ARCH_PRCTL, &[ARCH_SET_CPUID, 0]));
    }
    checked(stub, tid, &calls)?;
    speculation(thread, stub)
}

/// What is as it was is left alone; what is not must be given.
fn speculation(thread: &Thread, stub: &Stub) -> Result<()> {
    let was = thread.settings.speculation;
    let ask = |n: usize| Call::new(libc::SYS_prctl, &[machine::PR_GET_SPECULATION_CTRL as u64, n as u64]);
    let now = stub.run(thread.tid, &std::array::from_fn::<Call, { crate::state::settings::SPECULATION }, _>(ask))?;
    let differ = (0..was.len()).filter(|n| was[*n] != 0 && now[*n] != was[*n] as i64);
    let calls: Vec<Call> = differ
        .map(|n| Call::new(libc::SYS_prctl, &[machine::PR_SET_SPECULATION_CTRL as u64, n as u64, was[n] & SPECULATION_CHOICE]))
        .collect();
    checked(stub, thread.tid, &calls)
}
