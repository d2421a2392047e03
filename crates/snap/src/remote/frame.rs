//! The signal frame that takes a thread back to where it was (struct rt_sigframe of x86-64).
//!
//! ```text
//!   return address │ ucontext: flags, link, altstack, registers, mask │ siginfo │ ... │ XSAVE area, 64-byte aligned │ magic
//!                  ▲ rsp when rt_sigreturn is called
//! ```

use super::Saved;

const UC_FP_XSTATE: u64 = 1;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
/// Flags of an alternate stack that the kernel refuses, and so leaves the thread's as it is.
const NO_SUCH_MODE: u64 = 0xff;

const SIGINFO: usize = 128;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Where the kernel looks for its own words in the legacy part of the area.
const SOFTWARE_BYTES: usize = 464;

/// What an interrupted system call returns inside the kernel, if it is to be started again.
const RESTARTED: [i64; 4] = [-512, -513, -514, -516];

/// Registers with which an interrupted system call is made again from its beginning.
fn rewound(registers: &crate::sys::ptrace::Registers) -> crate::sys::ptrace::Registers {
    let mut registers = *registers;
    if registers.orig_rax as i64 >= 0 && RESTARTED.contains(&(registers.rax as i64)) {
        registers.rax = registers.orig_rax;
        registers.rip -= 2;
    }
    registers
}

/// The frame at address `at`, for a thread with these registers and mask and this XSAVE area.
pub fn build(at: u64, saved: &Saved, xstate: &[u8]) -> Vec<u8> {
    let r = rewound(&saved.registers);
    let mut words: Vec<u64> = vec![0]; // return address: nobody returns here
    words.extend([UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS, 0]);
    words.extend([0, NO_SUCH_MODE, 0]); // alternate stack
    words.extend([
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp, r.rip,
    ]);
    words.extend([r.eflags, r.cs | r.ss << 48, 0, 0, 0, 0]); // flags, segments, error, trap, old mask, cr2
    let pointer = words.len();
    words.push(0); // XSAVE area
    words.extend([0; 8]);
    words.push(saved.mask);
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.resize(bytes.len() + SIGINFO, 0);
    let area = (at + bytes.len() as u64).next_multiple_of(64);
    bytes.resize((area - at) as usize, 0);
    bytes[pointer * 8..][..8].copy_from_slice(&area.to_le_bytes());

    let start = bytes.len();
    bytes.extend_from_slice(xstate);
    let software = &mut bytes[start + SOFTWARE_BYTES..][..48];
    // Which states there are: the kernel keeps the mask in the same place when it hands the area to a tracer.
    let states: [u8; 8] = software[..8].try_into().expect("eight bytes");
    software.fill(0);
    software[..4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    software[4..8].copy_from_slice(&(xstate.len() as u32 + 4).to_le_bytes());
    software[8..16].copy_from_slice(&states);
    software[16..20].copy_from_slice(&(xstate.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    bytes
}
