//! ptrace by SEIZE: threads that stand still on request, and their registers.
//!
//! What must always hold: only the thread that seized makes the calls; what is asked of a thread that runs fails with `ESRCH`, and does
//! no harm.

use std::io;

use super::machine;
use crate::error::{Error, Result};

/// Number of a thread.
pub type Tid = libc::pid_t;

pub use super::machine::Registers;

/// General registers, by name of the regset.
pub const NT_PRSTATUS: i32 = 1;
/// Floating point and vector registers, as XSAVE stores them.
pub const NT_X86_XSTATE: i32 = 0x202;

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;
const PTRACE_PEEKSIGINFO: libc::c_uint = 0x4209;
const PTRACE_PEEKSIGINFO_SHARED: u32 = 1;
/// `status >> 16` of a stop that SEIZE and INTERRUPT make.
const EVENT_STOP: i32 = 128;

/// Where a thread came to a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// As asked by INTERRUPT, or a new thread at its very first.
    Interrupted,
    /// In a group stop: the process is stopped by SIGSTOP or its kin.
    Group,
    /// About to get this signal.
    Signal(i32),
    /// Entering or leaving a system call.
    Syscall,
    /// An event of `PTRACE_O_TRACE...`, by its number.
    Event(i32),
    /// It has ended, with this status.
    Ended(i32),
}

fn call(request: libc::c_uint, tid: Tid, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: ptrace reads and writes what `data` points to as `request` says; the callers below pass live buffers of the right size.
    let result = unsafe { libc::ptrace(request, tid, addr, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn called(what: &'static str, tid: Tid, result: io::Result<i64>) -> Result<()> {
    result.map(drop).map_err(|e| match e.raw_os_error() {
        Some(libc::ESRCH) => Error::Gone { pid: tid },
        Some(libc::EPERM) if has_ended(tid) => Error::Gone { pid: tid },
        Some(libc::EPERM) => Error::NotPermitted {
            pid: tid,
            what: "tracing it",
            remedy: "it must be yours, not traced by a debugger, and kernel.yama.ptrace_scope must allow it (root, or start it with `towa snap run`)",
        },
        _ => Error::io(format!("{what} of thread {tid}"), e),
    })
}

/// Whether it has ended and was not waited for yet.
pub fn has_ended(tid: Tid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// Begins to trace a thread, which runs on. `options`: of `PTRACE_O_`.
pub fn seize(tid: Tid, options: i32) -> Result<()> {
    called("PTRACE_SEIZE", tid, call(libc::PTRACE_SEIZE, tid, 0, options as usize))
}

/// Asks a thread to stop; [`wait`] says when.
pub fn interrupt(tid: Tid) -> Result<()> {
    called("PTRACE_INTERRUPT", tid, call(libc::PTRACE_INTERRUPT, tid, 0, 0))
}

/// Lets a stopped thread run, with a signal or 0.
pub fn cont(tid: Tid, signal: i32) -> Result<()> {
    called("PTRACE_CONT", tid, call(libc::PTRACE_CONT, tid, 0, signal as usize))
}

/// Lets a stopped thread run to where it next enters or leaves a system call.
pub fn cont_to_syscall(tid: Tid) -> Result<()> {
    called("PTRACE_SYSCALL", tid, call(libc::PTRACE_SYSCALL, tid, 0, 0))
}

/// Lets a stopped thread run, untraced, with a signal or 0.
pub fn detach(tid: Tid, signal: i32) -> Result<()> {
    called("PTRACE_DETACH", tid, call(libc::PTRACE_DETACH, tid, 0, signal as usize))
}

/// Changes the options of a traced thread that stands still.
pub fn set_options(tid: Tid, options: i32) -> Result<()> {
    called("PTRACE_SETOPTIONS", tid, call(libc::PTRACE_SETOPTIONS, tid, 0, options as usize))
}

/// The number that comes with an event: of the new thread, mostly.
pub fn event_message(tid: Tid) -> Result<u64> {
    let mut message = 0u64;
    called("PTRACE_GETEVENTMSG", tid, call(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message as usize))?;
    Ok(message)
}

/// Waits for a traced thread to stop or end. A child of this process that has ended is left to whoever started it, and wants to know how it
/// ended.
pub fn wait(tid: Tid) -> Result<Stop> {
    let mut status = 0;
    loop {
        if let Some(status) = looks_ended(tid).filter(|_| is_own_child(tid)) {
            return Ok(Stop::Ended(status));
        }
        // SAFETY: `status` is live.
        let got = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
        if got == tid {
            return Ok(stop_of(status));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECHILD) => return Err(Error::Gone { pid: tid }),
            _ => return Err(Error::io(format!("waiting for thread {tid}"), error)),
        }
    }
}

/// Waits as [`wait`] does and takes nothing away: the status of one that has ended.
fn looks_ended(tid: Tid) -> Option<i32> {
    // SAFETY: the struct is numbers, all 0 otherwise, and live.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
        let seen = libc::waitid(libc::P_PID, tid as libc::id_t, &raw mut info, how) == 0;
        (seen && matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)).then(|| info.si_status())
    }
}

/// Whether it is a process that this one has started (and not a thread of such a one).
fn is_own_child(tid: Tid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let number = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<Tid>().ok());
    number("Tgid:") == Some(tid) && number("PPid:") == Some(std::process::id() as Tid)
}

fn stop_of(status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Ended(status);
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        EVENT_STOP if signal == libc::SIGTRAP => Stop::Interrupted,
        EVENT_STOP => Stop::Group,
        0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
        0 => Stop::Signal(signal),
        event => Stop::Event(event),
    }
}

/// The general registers of a stopped thread.
pub fn registers(tid: Tid) -> Result<Registers> {
    let mut registers = std::mem::MaybeUninit::<Registers>::zeroed();
    called("PTRACE_GETREGS", tid, call(machine::GETREGS, tid, 0, registers.as_mut_ptr() as usize))?;
    // SAFETY: numbers, zeroed and then filled.
    Ok(unsafe { registers.assume_init() })
}

/// Gives a stopped thread other general registers. With `orig_rax` and `rax` as they were in an interrupted system call, the kernel
/// starts that again as it would have.
pub fn set_registers(tid: Tid, registers: &Registers) -> Result<()> {
    called("PTRACE_SETREGS", tid, call(machine::SETREGS, tid, 0, std::ptr::from_ref(registers) as usize))
}

/// A set of registers of a stopped thread, by `NT_...`.
pub fn regset(tid: Tid, kind: i32) -> Result<Vec<u8>> {
    // Larger than any XSAVE area there is (with AMX: 11 KB).
    let mut bytes = vec![0u8; 16 << 10];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    called("PTRACE_GETREGSET", tid, call(libc::PTRACE_GETREGSET, tid, kind as usize, &raw mut iov as usize))?;
    bytes.truncate(iov.iov_len);
    Ok(bytes)
}

/// Gives a stopped thread such a set.
pub fn set_regset(tid: Tid, kind: i32, bytes: &[u8]) -> Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    called("PTRACE_SETREGSET", tid, call(libc::PTRACE_SETREGSET, tid, kind as usize, &raw mut iov as usize))
}

/// The signals that a stopped thread blocks; while it waits with others for a time (sigsuspend, ppoll), the lasting ones.
pub fn signal_mask(tid: Tid) -> Result<u64> {
    let mut mask = 0u64;
    called("PTRACE_GETSIGMASK", tid, call(PTRACE_GETSIGMASK, tid, 8, &raw mut mask as usize))?;
    Ok(mask)
}

/// Sets them.
pub fn set_signal_mask(tid: Tid, mask: u64) -> Result<()> {
    called("PTRACE_SETSIGMASK", tid, call(PTRACE_SETSIGMASK, tid, 8, &raw const mask as usize))
}

/// Bytes of a `siginfo_t`.
pub const SIGINFO: usize = 128;

/// The signals that wait for a stopped thread, or (`shared`) for its process, oldest first.
pub fn pending(tid: Tid, shared: bool) -> Result<Vec<[u8; SIGINFO]>> {
    #[repr(C)]
    struct Args {
        off: u64,
        flags: u32,
        nr: i32,
    }
    let mut all = Vec::new();
    loop {
        let mut some = [[0u8; SIGINFO]; 16];
        let flags = if shared { PTRACE_PEEKSIGINFO_SHARED } else { 0 };
        let args = Args { off: all.len() as u64, flags, nr: some.len() as i32 };
        let got = call(PTRACE_PEEKSIGINFO, tid, &raw const args as usize, some.as_mut_ptr() as usize)
            .map_err(|e| Error::io(format!("PTRACE_PEEKSIGINFO of thread {tid}"), e))?;
        all.extend_from_slice(&some[..got as usize]);
        if (got as usize) < some.len() {
            return Ok(all);
        }
    }
}

/// What a thread registered with rseq(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rseq {
    /// Address, 0: none.
    pub address: u64,
    /// Bytes.
    pub size: u32,
    /// Signature before an abort handler.
    pub signature: u32,
    /// Flags.
    pub flags: u32,
    /// Unused.
    pub pad: u32,
}

/// That, of a stopped thread.
pub fn rseq(tid: Tid) -> Result<Rseq> {
    let mut rseq = Rseq::default();
    match call(PTRACE_GET_RSEQ_CONFIGURATION, tid, size_of::<Rseq>(), &raw mut rseq as usize) {
        Ok(_) => Ok(rseq),
        // A kernel without it.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => Ok(Rseq::default()),
        Err(e) => Err(Error::io(format!("PTRACE_GET_RSEQ_CONFIGURATION of thread {tid}"), e)),
    }
}

/// Whether a stopped thread has PR_SET_SYSCALL_USER_DISPATCH on.
pub fn dispatches_system_calls(tid: Tid) -> Result<bool> {
    // Mode, address of the selector, first address and length of the code that is spared.
    let mut config = [0u64; 4];
    match call(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size_of_val(&config), config.as_mut_ptr() as usize) {
        Ok(_) => Ok(config[0] != 0),
        // A kernel without it.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => Ok(false),
        Err(e) => Err(Error::io(format!("PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG of thread {tid}"), e)),
    }
}
