//! The stub's code on x86-64.
//!
//! It finds its table and the thread's own state at fixed distances from itself, so it runs wherever it is copied. The way back is not
//! `rt_sigreturn`: that would have interrupted sleeps fail (the kernel forgets what they were), and would need vector registers saved,
//! which the stub does not touch. Instead it sets the mask, on the thread's own stack, and then each register. A signal that comes in
//! between finds a sound stack, and its handler returns here.

#[cfg(target_arch = "x86_64")]
use std::arch::global_asm;

use super::{Saved, TABLE};
use crate::sys::ptrace::Registers;

/// Distance of the thread's state from the stub.
#[cfg(target_arch = "x86_64")]
pub const STATE: u64 = super::STATE;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .rodata.towa_snap_stub, \"a\"",
    // Known to the linker: what uses them may be compiled into another object.
    ".globl towa_snap_stub_begin",
    ".hidden towa_snap_stub_begin",
    ".globl towa_snap_stub_end",
    ".hidden towa_snap_stub_end",
    ".balign 16",
    "towa_snap_stub_begin:",
    // The calls: rbx the table, rbp how many are left. With bit 62 in its number the first argument is the result of the call before last.
    "20: test rbp, rbp",
    "jz 21f",
    "mov rax, [rbx]",
    "mov rdi, [rbx + 8]",
    "btr rax, 62",
    "jnc 22f",
    "mov rdi, [rbx - 72]",
    "22:",
    "mov rsi, [rbx + 16]",
    "mov rdx, [rbx + 24]",
    "mov r10, [rbx + 32]",
    "mov r8, [rbx + 40]",
    "mov r9, [rbx + 48]",
    "syscall",
    "mov [rbx + 56], rax",
    "add rbx, 64",
    "dec rbp",
    "jmp 20b",
    // Done: tgkill(r12, r13, r14). With a tool, the thread goes no further.
    "21: mov rdi, r12",
    "mov rsi, r13",
    "mov rdx, r14",
    "mov eax, 234",
    "syscall",
    // Without: the thread's own stack, then its mask (rt_sigprocmask(SIG_SETMASK, &mask, NULL, 8)).
    "mov rsp, [rip + towa_snap_stub_begin + {state} + 8]",
    "mov edi, 2",
    "lea rsi, [rip + towa_snap_stub_begin + {state}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    // Then the flags, below what may lie under the stack pointer, and all registers; nothing from here on changes flags.
    "lea rsp, [rsp - 128]",
    "push qword ptr [rip + towa_snap_stub_begin + {state} + 16]",
    "popfq",
    "lea rsp, [rsp + 128]",
    "mov r15, [rip + towa_snap_stub_begin + {state} + 32]",
    "mov r14, [rip + towa_snap_stub_begin + {state} + 40]",
    "mov r13, [rip + towa_snap_stub_begin + {state} + 48]",
    "mov r12, [rip + towa_snap_stub_begin + {state} + 56]",
    "mov rbp, [rip + towa_snap_stub_begin + {state} + 64]",
    "mov rbx, [rip + towa_snap_stub_begin + {state} + 72]",
    "mov r11, [rip + towa_snap_stub_begin + {state} + 80]",
    "mov r10, [rip + towa_snap_stub_begin + {state} + 88]",
    "mov r9, [rip + towa_snap_stub_begin + {state} + 96]",
    "mov r8, [rip + towa_snap_stub_begin + {state} + 104]",
    "mov rax, [rip + towa_snap_stub_begin + {state} + 112]",
    "mov rcx, [rip + towa_snap_stub_begin + {state} + 120]",
    "mov rdx, [rip + towa_snap_stub_begin + {state} + 128]",
    "mov rsi, [rip + towa_snap_stub_begin + {state} + 136]",
    "mov rdi, [rip + towa_snap_stub_begin + {state} + 144]",
    "jmp qword ptr [rip + towa_snap_stub_begin + {state} + 24]",
    "towa_snap_stub_end:",
    ".popsection",
    state = const STATE,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    static towa_snap_stub_begin: u8;
    static towa_snap_stub_end: u8;
}

/// In a call's number: its first argument is the result of the call before the last one.
pub const OF_RESULT: i64 = 1 << 62;

/// There is none for another processor, and so no process is ever looked into there ([`crate::sys::machine::check`]).
#[cfg(not(target_arch = "x86_64"))]
pub fn code() -> &'static [u8] {
    &[]
}

/// The code.
#[cfg(target_arch = "x86_64")]
pub fn code() -> &'static [u8] {
    // SAFETY: the two symbols enclose read-only bytes, defined above.
    unsafe {
        let (begin, end) = (&raw const towa_snap_stub_begin, &raw const towa_snap_stub_end);
        std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin))
    }
}

/// What an interrupted system call returns inside the kernel, if it is to be made again.
const MADE_AGAIN: [i64; 3] = [-512, -513, -514];
/// The same, if it goes on with what was left of it (sleeps, and waits with a timeout).
const GOES_ON: i64 = -516;
/// The system call by which such a one goes on.
pub const RESTART_SYSCALL: u64 = 219;

/// Whether the thread was interrupted in a system call that goes on with what was left of it.
pub fn goes_on(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && registers.rax as i64 == GOES_ON
}

/// Whether the thread may be about to go on with what was left of a call: the same registers can come about otherwise.
pub fn may_go_on(registers: &Registers) -> bool {
    registers.rax == RESTART_SYSCALL
}

/// Where a thread goes on behind the system call that it is about to make.
pub fn behind_call(registers: &Registers) -> u64 {
    registers.rip.wrapping_add(2)
}

/// Where the thread goes on by itself: with registers as the kernel makes them when it starts an interrupted system call again.
fn resumed(registers: &Registers) -> Registers {
    let mut registers = *registers;
    if goes_on(&registers) {
        registers.rax = RESTART_SYSCALL;
        registers.rip -= 2;
    } else if registers.orig_rax as i64 >= 0 && MADE_AGAIN.contains(&(registers.rax as i64)) {
        registers.rax = registers.orig_rax;
        registers.rip -= 2;
    }
    registers
}

/// The thread's state, in the order in which the code above reads it.
pub fn state(saved: &Saved) -> Vec<u8> {
    let r = resumed(&saved.registers);
    [
        saved.mask, r.rsp, r.eflags, r.rip, r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx,
        r.rdx, r.rsi, r.rdi,
    ]
    .iter()
    .flat_map(|word| word.to_le_bytes())
    .collect()
}

/// Registers with which `tid` runs the stub at `base` with `count` calls.
pub fn start(saved: &Saved, base: u64, count: usize, pid: i32, tid: i32, signal: i32) -> Registers {
    let mut registers = saved.registers;
    registers.rip = base;
    registers.rbx = base + TABLE;
    registers.rbp = count as u64;
    (registers.r12, registers.r13, registers.r14) = (pid as u64, tid as u64, signal as u64);
    // Not in a system call: the kernel must not take the stub for one to be started again.
    registers.orig_rax = u64::MAX;
    registers
}

/// Registers with which a thread makes one call at `rip`, where a `syscall` stands.
pub fn one_call(saved: &Saved, rip: u64, number: i64, args: &[u64; 6]) -> Registers {
    let mut registers = saved.registers;
    registers.rip = rip;
    registers.rax = number as u64;
    registers.orig_rax = u64::MAX;
    (registers.rdi, registers.rsi, registers.rdx) = (args[0], args[1], args[2]);
    (registers.r10, registers.r8, registers.r9) = (args[3], args[4], args[5]);
    registers
}

/// Makes the system call again from its beginning that the thread was in, or was about to go on with. One that was already going on with the
/// rest of another fails with EINTR: which that was, only the kernel knew.
pub fn make_again(registers: &mut Registers, number: u64) {
    let behind = if goes_on(registers) { registers.rip } else { behind_call(registers) };
    (registers.rax, registers.rip) = match number {
        RESTART_SYSCALL => (-i64::from(libc::EINTR) as u64, behind),
        number => (number, behind - 2),
    };
    registers.orig_rax = u64::MAX;
}
