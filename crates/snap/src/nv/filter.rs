//! The filter of system calls of a process in mode `nv`: what it does not let through, it asks the tool about ([`super::guard`]).
//!
//! ```text
//!   another architecture ─► ENOSYS                    clone ── CLONE_VM? ─► yes: let through
//!   fork, clone3 ─────────► ask                       madvise ── advice? ─► one that drops content: ask
//!   process_madvise, remap_file_pages ─► ENOSYS       mremap ── grows, or leaves the old mapping? ─► ask
//! ```
//!
//! A program that starts another one passes the filter on: the tool lets that one's calls through, since it has none of the pool.
//!
//! What must always hold: the filter is there before the first instruction of the program.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::handing;
use crate::error::{Error, Result};
use crate::remote::{Call, Stub};
use crate::sys::fd::Process;
use crate::sys::{machine, memory};

const SET_MODE_FILTER: u64 = 1;
const TSYNC: u64 = 1 << 0;
const NEW_LISTENER: u64 = 1 << 3;
const TSYNC_ESRCH: u64 = 1 << 4;
/// A thread that asks is not disturbed by signals (nor stopped by us) while it is being answered. Linux 5.19.
const WAIT_KILLABLE_RECV: u64 = 1 << 5;

/// Advice that drops content, or that is not the same on shared memory.
pub(super) const ASKED_ADVICE: [i32; 5] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    24,  // MADV_DONTNEED_LOCKED
    102, // MADV_GUARD_INSTALL
];

const ALLOW: u32 = 0x7fff_0000;
const ASK: u32 = 0x7fc0_0000;
const ERRNO: u32 = 0x0005_0000;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
/// Numbers from here on are of the x32 ABI.
const X32: u32 = 0x4000_0000;

type Step = libc::sock_filter;

const fn step(code: u32, jt: u8, jf: u8, k: u32) -> Step {
    Step { code: code as u16, jt, jf, k }
}

/// Loads a word of `struct seccomp_data`.
const fn load(at: u32) -> Step {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at)
}

const fn answer(value: u32) -> Step {
    step(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

/// Goes `yes` or `no` steps further.
const fn is(value: u32, yes: u8, no: u8) -> Step {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, yes, no, value)
}

const fn has(bits: u32, yes: u8, no: u8) -> Step {
    step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, yes, no, bits)
}

const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn low(argument: u32) -> u32 {
    16 + argument * 8
}
const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

/// The filter.
fn program() -> Vec<Step> {
    let at_least = |value: u32, yes: u8, no: u8| step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, yes, no, value);
    let number = |number: i64, no: u8| is(number as u32, 0, no);
    let to_x = step(libc::BPF_MISC | libc::BPF_TAX, 0, 0, 0);
    let compare = |how: u32, yes: u8, no: u8| step(libc::BPF_JMP | how | libc::BPF_X, yes, no, 0);
    let mut all = vec![load(ARCH), is(AUDIT_ARCH_X86_64, 1, 0), answer(ERRNO | libc::ENOSYS as u32), load(NUMBER)];
    all.extend([at_least(X32, 0, 1), answer(ERRNO | libc::ENOSYS as u32)]);
    for asked in [machine::SYS_FORK, libc::SYS_clone3] {
        all.extend([number(asked, 1), answer(ASK)]);
    }
    for unknown in [libc::SYS_process_madvise, libc::SYS_remap_file_pages] {
        all.extend([number(unknown, 1), answer(ERRNO | libc::ENOSYS as u32)]);
    }
    all.extend([number(libc::SYS_clone, 4), load(low(0)), has(libc::CLONE_VM as u32, 0, 1), answer(ALLOW), answer(ASK)]);
    all.extend([number(libc::SYS_madvise, ASKED_ADVICE.len() as u8 + 3), load(low(2))]);
    for (n, advice) in ASKED_ADVICE.iter().enumerate() {
        all.push(is(*advice as u32, (ASKED_ADVICE.len() - n) as u8, 0));
    }
    all.extend([answer(ALLOW), answer(ASK)]);
    // mremap(old, old length, new length, flags, ...): asked if the new one is longer, the old one is 0, or the old one stays.
    let mremap = [
        load(low(3)),
        has(libc::MREMAP_DONTUNMAP as u32, 12, 0), // ask
        load(high(1)),
        to_x,
        load(high(2)),
        compare(libc::BPF_JGT, 8, 0), // ask
        compare(libc::BPF_JEQ, 0, 6), // let through
        load(low(1)),
        is(0, 5, 0), // ask (also what has a multiple of 4 GB)
        to_x,
        load(low(2)),
        compare(libc::BPF_JGT, 2, 0), // ask
        answer(ALLOW),
        answer(ALLOW),
        answer(ASK),
    ];
    all.extend([number(libc::SYS_mremap, mremap.len() as u8)]);
    all.extend(mremap);
    all.push(answer(ALLOW));
    all
}

/// Starts a program under the filter; gives the descriptor at which its calls are asked about.
pub(super) fn spawn(command: &mut Command) -> Result<(Child, OwnedFd)> {
    let (ours, theirs) = UnixDatagram::pair().map_err(|e| Error::io("a pair of sockets", e))?;
    let filter = program();
    let socket = theirs.as_raw_fd();
    // SAFETY: the closure makes system calls only, with memory that was made before.
    unsafe {
        command.pre_exec(move || {
            let listener = install(&filter)?;
            handing::send(socket, listener)
        });
    }
    let child = command.spawn().map_err(|e| Error::io(format!("starting {}", command.get_program().to_string_lossy()), e))?;
    drop(theirs);
    let listener = handing::receive(&ours).map_err(|e| Error::io("the filter of system calls", e))?;
    Ok((child, listener))
}

/// Installs the filter for the calling thread; without privileges, at the price of never gaining any (PR_SET_NO_NEW_PRIVS).
fn install(filter: &[Step]) -> io::Result<RawFd> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let flags = NEW_LISTENER | WAIT_KILLABLE_RECV;
    // SAFETY: the kernel reads the program, which is live.
    let set = || unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const program) };
    let mut listener = set();
    if listener < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES) {
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        listener = set();
    }
    if listener < 0 { Err(io::Error::last_os_error()) } else { Ok(listener as RawFd) }
}

/// Installs it for all threads of a process that stands still, by a call in its name; gives the descriptor at which it asks.
pub(super) fn install_in(process: &Process, stub: &Stub) -> Result<OwnedFd> {
    let pid = process.pid();
    let filter = program();
    let mut bytes: Vec<u8> = [filter.len() as u64, stub.scratch() + 16].iter().flat_map(|word| word.to_le_bytes()).collect();
    for step in &filter {
        bytes.extend(step.code.to_le_bytes());
        bytes.extend([step.jt, step.jf]);
        bytes.extend(step.k.to_le_bytes());
    }
    memory::write(pid, stub.scratch(), &bytes)?;
    let flags = NEW_LISTENER | WAIT_KILLABLE_RECV | TSYNC | TSYNC_ESRCH;
    let set = Call::new(libc::SYS_seccomp, &[SET_MODE_FILTER, flags, stub.scratch()]);
    let mut listener = stub.run(pid, &[set])?[0];
    if listener == -i64::from(libc::EACCES) {
        stub.call(pid, libc::SYS_prctl, &[libc::PR_SET_NO_NEW_PRIVS as u64, 1])?;
        listener = stub.run(pid, &[set])?[0];
    }
    let theirs = stub.checked(set.number, listener)?;
    let ours = process.descriptor(theirs as RawFd)?;
    stub.call(pid, libc::SYS_close, &[theirs])?;
    Ok(ours)
}

/// A descriptor that the kernel has just made for us.
pub(super) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller got it from the kernel, nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter says of a call; no more of BPF than it uses.
    fn says(number: i64, arguments: [u64; 6]) -> u32 {
        let mut data = vec![number as u32, AUDIT_ARCH_X86_64, 0, 0];
        data.extend(arguments.iter().flat_map(|argument| [*argument as u32, (argument >> 32) as u32]));
        let (mut a, mut x, mut at) = (0u32, 0u32, 0usize);
        let program = program();
        loop {
            let Step { code, jt, jf, k } = program[at];
            let code = u32::from(code);
            at += 1;
            if code == libc::BPF_RET | libc::BPF_K {
                return k;
            } else if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                a = data[k as usize / 4];
            } else if code == libc::BPF_MISC | libc::BPF_TAX {
                x = a;
            } else {
                let with = if code & libc::BPF_X != 0 { x } else { k };
                let yes = match code & 0xf0 {
                    libc::BPF_JEQ => a == with,
                    libc::BPF_JGT => a > with,
                    libc::BPF_JGE => a >= with,
                    _ => a & with != 0,
                };
                at += usize::from(if yes { jt } else { jf });
            }
        }
    }

    #[test]
    fn calls_are_asked_about_that_are_another_on_shared_memory() {
        let grown = |old: u64, new: u64, flags: i32| says(libc::SYS_mremap, [1 << 40, old, new, flags as u64, 0, 0]);
        let four = 4 << 30;
        for (old, new) in [(4096, 8192), (four, four + 4096), (4096, four), (four + 8192, 2 * four), (0, 4096), (0, four)] {
            assert_eq!(grown(old, new, 0), ASK, "{old:x} {new:x}");
        }
        for (old, new) in [(8192, 4096), (4096, 4096), (four + 4096, four + 4096), (2 * four, four + 8192), (four + 4096, 4096)] {
            assert_eq!(grown(old, new, libc::MREMAP_MAYMOVE), ALLOW, "{old:x} {new:x}");
        }
        assert_eq!(grown(4096, 4096, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP), ASK);
        for advice in 0..128 {
            let asked = ASKED_ADVICE.contains(&advice);
            assert_eq!(says(libc::SYS_madvise, [4096, 4096, advice as u64, 0, 0, 0]), if asked { ASK } else { ALLOW }, "{advice}");
        }
        let clone = |flags: i32| says(libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0]);
        assert_eq!((clone(libc::SIGCHLD), clone(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD)), (ASK, ALLOW));
        assert_eq!(
            (says(machine::SYS_FORK, [0; 6]), says(libc::SYS_clone3, [0; 6]), says(libc::SYS_vfork, [0; 6])),
            (ASK, ASK, ALLOW)
        );
        assert_eq!(says(libc::SYS_process_madvise, [0; 6]), ERRNO | libc::ENOSYS as u32);
        assert_eq!(says(i64::from(X32) + 25, [0; 6]), ERRNO | libc::ENOSYS as u32);
        assert_eq!((says(libc::SYS_read, [0; 6]), says(libc::SYS_execve, [0; 6])), (ALLOW, ALLOW));
    }
}
