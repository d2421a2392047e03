//! What the kernel keeps for a process and its threads, given back.

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::files::Opened;
use crate::error::{Error, Result};
use crate::freeze::Frozen;
use crate::remote::{Call, Stub, arch};
use crate::state::State;
use crate::state::descriptors::Kind;
use crate::state::thread::{Thread, unhex};
use crate::sys::memory;
use crate::sys::ptrace::{self, Stop, Tid};

const PR_SET_MM_MAP: u64 = 14;
/// How long the numbers of a process that has ended are waited for.
pub const NUMBERS_COME_FREE: Duration = Duration::from_secs(1);
const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;

fn damaged(what: &str) -> Error {
    Error::Target { pid: 0, what: format!("the checkpoint's {what} are not understood") }
}

/// The new process forgets what this program's libc had registered for it: the kernel would write to memory that is gone.
pub fn forget_own(pid: Tid, stub: &Stub) -> Result<()> {
    const UNREGISTER: u64 = 1;
    let rseq = ptrace::rseq(pid)?;
    if rseq.address != 0 {
        stub.call(pid, libc::SYS_rseq, &[rseq.address, u64::from(rseq.size), UNREGISTER, u64::from(rseq.signature)])?;
    }
    Ok(())
}

/// Addresses, signals' actions, timers, limits.
pub fn process(state: &State, opened: &Opened, stub: &Stub) -> Result<()> {
    let process = &state.process;
    let pid = process.pid;
    let layout = &process.layout;
    let auxv = unhex(&layout.auxv).ok_or_else(|| damaged("auxiliary vector"))?;
    let mut map: Vec<u8> = [
        layout.code.0,
        layout.code.1,
        layout.data.0,
        layout.data.1,
        layout.brk.0,
        layout.brk.1,
        layout.stack,
        layout.arguments.0,
        layout.arguments.1,
        layout.environment.0,
        layout.environment.1,
        stub.scratch() + 256,
    ]
    .iter()
    .flat_map(|word| word.to_le_bytes())
    .collect();
    map.extend((auxv.len() as u32).to_le_bytes());
    map.extend(new_program(pid, opened)?.to_le_bytes());
    let len = map.len() as u64;
    memory::write(pid, stub.scratch(), &map)?;
    memory::write(pid, stub.scratch() + 256, &auxv)?;
    stub.call(pid, libc::SYS_prctl, &[libc::PR_SET_MM as u64, PR_SET_MM_MAP, stub.scratch(), len, 0])?;

    let actions: Vec<u8> = process.actions.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    memory::write(pid, stub.scratch(), &actions)?;
    let calls: Vec<Call> = (1..=process.actions.len() as u64)
        .filter(|signal| ![libc::SIGKILL as u64, libc::SIGSTOP as u64].contains(signal))
        .map(|signal| Call::new(libc::SYS_rt_sigaction, &[signal, stub.scratch() + (signal - 1) * 32, 0, 8]))
        .collect();
    for (call, result) in calls.iter().zip(stub.run(pid, &calls)?) {
        stub.checked(call.number, result)?;
    }
    for (resource, (soft, hard)) in process.limits.iter().enumerate() {
        let limit = libc::rlimit64 { rlim_cur: *soft, rlim_max: *hard };
        // SAFETY: a live struct, which is read.
        if unsafe { libc::syscall(libc::SYS_prlimit64, pid, resource, &raw const limit, 0) } != 0 {
            return Err(Error::last(format!("limit {resource} of process {pid}")));
        }
    }
    Ok(())
}

/// The descriptor of the program, or the number that says it is the one already: the kernel refuses to put a program in the place of one that
/// is mapped, also of itself.
fn new_program(pid: Tid, opened: &Opened) -> Result<u32> {
    let path = format!("/proc/{pid}/exe");
    let which = |of: std::io::Result<std::fs::Metadata>| of.map(|of| (of.dev(), of.ino())).map_err(|e| Error::io(&path, e));
    let program = std::fs::File::from(opened.program.try_clone().map_err(|e| Error::io(&path, e))?);
    Ok(if which(std::fs::metadata(&path))? == which(program.metadata())? { u32::MAX } else { opened.program.as_raw_fd() as u32 })
}

/// Timers of timer_create(2), when all threads are there: some are for one of them.
pub fn posix_timers(state: &State, stub: &Stub) -> Result<()> {
    let pid = state.process.pid;
    if state.process.timers.is_empty() {
        return Ok(());
    }
    // Linux 6.15; before, numbers are given out in order, and those that are not wanted are given back.
    let by_number = stub.run(pid, &[Call::new(libc::SYS_prctl, &[PR_TIMER_CREATE_RESTORE_IDS, 1])])?[0] == 0;
    for timer in &state.process.timers {
        let mut event = [0u8; 64];
        event[..8].copy_from_slice(&timer.value.to_le_bytes());
        event[8..12].copy_from_slice(&timer.signal.to_le_bytes());
        event[12..16].copy_from_slice(&timer.notify.to_le_bytes());
        event[16..20].copy_from_slice(&timer.thread.to_le_bytes());
        memory::write(pid, stub.scratch(), &event)?;
        let id_at = stub.scratch() + 64;
        let create = Call::new(libc::SYS_timer_create, &[timer.clock as u64, stub.scratch(), id_at]);
        loop {
            memory::write(pid, id_at, &timer.id.to_le_bytes())?;
            let result = stub.run(pid, &[create])?[0];
            stub.checked(create.number, result)?;
            let mut id = [0u8; 4];
            memory::read(pid, id_at, &mut id)?;
            let id = i32::from_le_bytes(id);
            if id == timer.id {
                break;
            }
            if by_number || id > timer.id {
                return Err(Error::Target { pid, what: format!("timer {} became {id}", timer.id) });
            }
            stub.call(pid, libc::SYS_timer_delete, &[id as u64])?;
        }
    }
    if by_number {
        stub.call(pid, libc::SYS_prctl, &[PR_TIMER_CREATE_RESTORE_IDS, 0])?;
    }
    Ok(())
}

/// That another thread has the number.
fn taken(tid: Tid) -> Error {
    let name = std::fs::read_to_string(format!("/proc/{tid}/comm")).unwrap_or_default();
    let what = format!("is the number of a thread that runs ({}); a restart needs it (end that first)", name.trim_end());
    Error::Target { pid: tid, what }
}

/// A thread with its old number, which stands still.
pub fn make(thread: &Thread, stub: &Stub, frozen: &mut Frozen) -> Result<()> {
    let flags =
        libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SYSVSEM;
    let number_at = stub.scratch() + 128;
    // SAFETY: the struct is numbers, all 0 otherwise.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags as u64;
    args.set_tid = number_at;
    args.set_tid_size = 1;
    // Never used: it makes no step before it has registers of its own.
    args.stack = stub.scratch() + 1024;
    args.stack_size = 1024;
    let words: [u64; 11] = [
        args.flags,
        args.pidfd,
        args.child_tid,
        args.parent_tid,
        args.exit_signal,
        args.stack,
        args.stack_size,
        args.tls,
        args.set_tid,
        args.set_tid_size,
        args.cgroup,
    ];
    let pid = frozen.pid();
    memory::write(pid, stub.scratch(), &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())?;
    memory::write(pid, number_at, &thread.tid.to_le_bytes())?;
    let began = Instant::now();
    let made = loop {
        let result = stub.run(pid, &[Call::new(libc::SYS_clone3, &[stub.scratch(), 88])])?[0];
        match result == -i64::from(libc::EEXIST) {
            // The old thread may have been killed a moment ago: its number is free soon after it can be waited for.
            true if began.elapsed() < NUMBERS_COME_FREE => std::thread::sleep(Duration::from_millis(1)),
            true => return Err(taken(thread.tid)),
            false => break stub.checked(libc::SYS_clone3, result)?,
        }
    };
    match ptrace::wait(made as Tid)? {
        Stop::Interrupted => {}
        stop => return Err(Error::Target { pid: made as Tid, what: format!("a new thread stopped with {stop:?}") }),
    }
    frozen.add(made as Tid);
    Ok(())
}

/// What a thread registers for itself.
pub fn thread(thread: &Thread, stub: &Stub) -> Result<()> {
    let tid = thread.tid;
    let at = stub.scratch();
    let (address, altstack_flags, len) = thread.altstack;
    let mut scratch = vec![0u8; 128];
    scratch[..8].copy_from_slice(&address.to_le_bytes());
    // That it stands on it is seen from its stack pointer.
    scratch[8..12].copy_from_slice(&(altstack_flags & !libc::SS_ONSTACK).to_le_bytes());
    scratch[16..24].copy_from_slice(&len.to_le_bytes());
    let name = thread.name.as_bytes();
    scratch[64..64 + name.len().min(15)].copy_from_slice(&name[..name.len().min(15)]);
    memory::write(tid, at, &scratch)?;
    let mut calls =
        vec![Call::new(libc::SYS_sigaltstack, &[at, 0]), Call::new(libc::SYS_prctl, &[libc::PR_SET_NAME as u64, at + 64])];
    if thread.robust_list.0 != 0 {
        calls.push(Call::new(libc::SYS_set_robust_list, &[thread.robust_list.0, thread.robust_list.1]));
    }
    let rseq = thread.rseq;
    if rseq.address != 0 {
        calls.push(Call::new(
            libc::SYS_rseq,
            &[rseq.address, u64::from(rseq.size), u64::from(rseq.flags), u64::from(rseq.signature)],
        ));
    }
    for (call, result) in calls.iter().zip(stub.run(tid, &calls)?) {
        stub.checked(call.number, result)?;
    }
    // Gives its own number, not an error.
    stub.run(tid, &[Call::new(libc::SYS_set_tid_address, &[thread.tid_address])])?;
    scheduling(thread)?;
    // Blocked until the thread has its own mask again.
    ptrace::set_signal_mask(tid, u64::MAX)?;
    for info in &thread.pending {
        memory::write(tid, at, &unhex(info).ok_or_else(|| damaged("pending signals"))?)?;
        let signal = signal_of(info)?;
        let pid = crate::state::process::thread_group(tid)?;
        stub.call(tid, libc::SYS_rt_tgsigqueueinfo, &[pid as u64, tid as u64, signal, at])?;
    }
    Ok(())
}

fn signal_of(info: &str) -> Result<u64> {
    let bytes = unhex(info).filter(|bytes| bytes.len() >= 4).ok_or_else(|| damaged("pending signals"))?;
    Ok(u64::from(u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))))
}

fn scheduling(thread: &Thread) -> Result<()> {
    let (policy, nice, priority) = thread.scheduling;
    // SAFETY: the struct is numbers, all 0 otherwise; the kernel reads as many as it says.
    unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        attr.size = size_of::<libc::sched_attr>() as u32;
        (attr.sched_policy, attr.sched_nice, attr.sched_priority) = (policy, nice, priority);
        if libc::syscall(libc::SYS_sched_setattr, thread.tid, &raw const attr, 0) != 0 {
            return Err(Error::last(format!("scheduling of thread {}", thread.tid)));
        }
        if !thread.affinity.is_empty()
            && libc::syscall(libc::SYS_sched_setaffinity, thread.tid, thread.affinity.len() * 8, thread.affinity.as_ptr()) != 0
        {
            return Err(Error::last(format!("processors of thread {}", thread.tid)));
        }
    }
    Ok(())
}

/// What could disturb the others: signals that wait for the process, timers that run, files that only the restart needs.
pub fn process_last(state: &State, stub: &Stub) -> Result<()> {
    let process = &state.process;
    let (pid, at) = (process.pid, stub.scratch());
    for thread in &state.threads {
        ptrace::set_signal_mask(thread.tid, u64::MAX)?;
    }
    for info in &process.pending {
        memory::write(pid, at, &unhex(info).ok_or_else(|| damaged("pending signals"))?)?;
        stub.call(pid, libc::SYS_rt_sigqueueinfo, &[pid as u64, signal_of(info)?, at])?;
    }
    let mut words = Vec::new();
    for (value, interval) in process.interval_timers {
        words.extend([
            interval / 1_000_000_000,
            interval % 1_000_000_000 / 1000,
            value / 1_000_000_000,
            value % 1_000_000_000 / 1000,
        ]);
    }
    for timer in &process.timers {
        let (value, interval) = (timer.value_ns, timer.interval_ns);
        words.extend([interval / 1_000_000_000, interval % 1_000_000_000, value / 1_000_000_000, value % 1_000_000_000]);
    }
    memory::write(pid, at, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
    let mut calls = vec![
        Call::new(libc::SYS_prctl, &[libc::PR_SET_CHILD_SUBREAPER as u64, u64::from(process.subreaper)]),
        Call::new(libc::SYS_prctl, &[libc::PR_SET_THP_DISABLE as u64, u64::from(process.no_huge_pages)]),
    ];
    let armed = |n: u64| at + n * 32;
    calls.extend((0..3).map(|n| Call::new(libc::SYS_setitimer, &[n, armed(n), 0])));
    calls.extend(
        process.timers.iter().zip(3..).map(|(timer, n)| Call::new(libc::SYS_timer_settime, &[timer.id as u64, 0, armed(n), 0])),
    );
    let first = state.descriptors.table.last().map_or(0, |last| last.fd + 1) as u64;
    calls.push(Call::new(libc::SYS_close_range, &[first, u64::from(u32::MAX), 0]));
    let commands = (0..32).map(|bit| 1u64 << bit).filter(|command| process.membarrier & command != 0);
    calls.extend(commands.map(|command| Call::new(libc::SYS_membarrier, &[command, 0, 0])));
    for (call, result) in calls.iter().zip(stub.run(pid, &calls)?) {
        stub.checked(call.number, result)?;
    }
    locks(state, stub)
}

/// Locks of fcntl(2): when no descriptor will be closed any more, for closing any of a file lets go of all that the process has on it.
fn locks(state: &State, stub: &Stub) -> Result<()> {
    let pid = state.process.pid;
    for descriptor in &state.descriptors.table {
        let Kind::Regular { path, locks, .. } = &state.descriptors.files[descriptor.file].kind else { continue };
        for lock in locks.iter().filter(|lock| !lock.whole) {
            // SAFETY: the struct is numbers, all 0 otherwise.
            let mut range: libc::flock = unsafe { std::mem::zeroed() };
            range.l_type = if lock.exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as i16;
            range.l_start = lock.start as i64;
            range.l_len = lock.last.map_or(0, |last| (last - lock.start + 1) as i64);
            let mut bytes = Vec::with_capacity(32);
            bytes.extend(range.l_type.to_le_bytes());
            bytes.extend(range.l_whence.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(range.l_start.to_le_bytes());
            bytes.extend(range.l_len.to_le_bytes());
            bytes.extend([0; 8]);
            memory::write(pid, stub.scratch(), &bytes)?;
            stub.call(pid, libc::SYS_fcntl, &[descriptor.fd as u64, libc::F_SETLK as u64, stub.scratch()]).map_err(|e| {
                let what = format!("the lock on {} cannot be taken again ({e}); does another process have it?", path.display());
                Error::Target { pid, what }
            })?;
        }
    }
    Ok(())
}

/// The thread's own registers and mask, with which it goes on when it is let go.
pub fn registers(thread: &Thread) -> Result<()> {
    let mut registers = thread.user_registers().ok_or_else(|| damaged("registers"))?;
    if let Some(number) = thread.sleeps_in {
        arch::make_again(&mut registers, number);
    }
    let mut xstate = unhex(&thread.xstate).ok_or_else(|| damaged("vector registers"))?;
    // A machine with more registers has more room for them; one that lacks some that were used was refused.
    xstate.resize(ptrace::regset(thread.tid, ptrace::NT_X86_XSTATE)?.len(), 0);
    ptrace::set_regset(thread.tid, ptrace::NT_X86_XSTATE, &xstate)?;
    ptrace::set_registers(thread.tid, &registers)?;
    ptrace::set_signal_mask(thread.tid, thread.mask)
}
