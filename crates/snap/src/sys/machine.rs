//! What this crate knows of a processor besides its code (`remote::x86_64`, `remote::frame`, `remote::gate`): registers as the kernel has them,
//! and numbers of calls that not every processor's kernel has. There is one processor so far, x86-64; another one needs these two things.

use crate::error::{Error, Result};

/// Whether processes of this machine can be looked into.
pub fn check() -> Result<()> {
    match cfg!(target_arch = "x86_64") {
        true => Ok(()),
        false => Err(Error::Unsupported {
            what: format!("checkpoints of processes on {}", std::env::consts::ARCH),
            remedy: "they are taken on x86-64 only so far",
        }),
    }
}

/// The general registers of a thread (`struct user_regs_struct`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the processor's names
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the system call that the thread is in; -1: none.
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<Registers>() == size_of::<libc::user_regs_struct>());

/// ptrace(2)
pub const GETREGS: libc::c_uint = 12;
/// ptrace(2)
pub const SETREGS: libc::c_uint = 13;
/// fork(2)
pub const SYS_FORK: i64 = 57;
/// arch_prctl(2)
pub const SYS_ARCH_PRCTL: i64 = 158;
/// prctl(2)
pub const PR_GET_SPECULATION_CTRL: i32 = 52;
/// prctl(2)
pub const PR_SET_SPECULATION_CTRL: i32 = 53;

/// Processors beside the one that this thread runs on: for helpers, of which more than three do not get through the locks of one process's
/// memory any faster.
pub(crate) fn helpers() -> usize {
    std::thread::available_parallelism().map_or(0, |processors| (processors.get() - 1).min(3))
}
