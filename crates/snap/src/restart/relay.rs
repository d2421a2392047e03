//! Signals for the restarted program that whoever started the tool sends to the tool.
//!
//! ```text
//!   kill(tool, SIGTERM) ─────────────► tool ──► program
//!   Ctrl-C: the terminal ──┬─────────► tool (passes nothing on)
//!                          └──────────────────► program, which has it already
//! ```
//!
//! The terminal signals its whole foreground group, the program too; the kernel marks those signals (SI_KERNEL). They, and what the program
//! itself sends to its group, are not passed on. A SIGCONT is if the program is stopped. What the tool ignored from the beginning (nohup, a
//! job in the background of a script) it goes on to ignore.
//!
//! What must always hold: before there is a program, a signal that ends the tool ends what was made of it, too; once there is one, it is
//! passed on once, and the tool ends when the program does. If the tool is killed by SIGKILL the program goes on.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

use crate::error::{Error, Result};
use crate::sys::fd::Process;
use crate::sys::ptrace::Tid;

/// What is passed on.
const RELAYED: [i32; 9] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGWINCH,
];

/// Whether this process passes signals on at all.
static WATCHES: AtomicBool = AtomicBool::new(false);
/// A pidfd of the program; -1: there is none yet.
static PROGRAM: AtomicI32 = AtomicI32::new(-1);
/// Its number, as this process sees it.
static NUMBER: AtomicI32 = AtomicI32::new(0);
/// The process that is to end if a signal ends this one before there is a program; 0: none.
static MAKER: AtomicI32 = AtomicI32::new(0);

/// From now on signals are passed on, or end the tool while there is no program.
pub fn watch() -> Result<()> {
    for signal in RELAYED {
        // SAFETY: the structs are live, and zeroed as C has them; the handler keeps to what a handler may do.
        let set = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, std::ptr::null(), &raw mut before) == 0
                && (before.sa_sigaction == libc::SIG_IGN || libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0)
        };
        if !set {
            return Err(Error::last(format!("watching signal {signal}")));
        }
    }
    WATCHES.store(true, SeqCst);
    Ok(())
}

/// Of a process between the tool and the program: it is not meant by any of them.
pub fn ignore() {
    WATCHES.store(false, SeqCst);
    for signal in RELAYED {
        // SAFETY: numbers only.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// This process ends if the tool does before there is a program.
pub fn made_by(maker: Tid) {
    MAKER.store(maker, SeqCst);
}

/// There is a program now, a child of this process, in which nothing has run yet.
pub fn begin(pid: Tid) -> Result<()> {
    if !WATCHES.load(SeqCst) {
        return Ok(());
    }
    begin_by(Process::open(pid)?.into_descriptor())
}

/// The same, of a program that is known by a pidfd.
pub fn begin_by(pidfd: OwnedFd) -> Result<()> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let told = std::fs::read_to_string(&path).map_err(|e| Error::io(path, e))?;
    let number = told.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).unwrap_or(0);
    NUMBER.store(number, SeqCst);
    // Held as long as this process is there: the handler may run at any time.
    PROGRAM.store(std::os::fd::IntoRawFd::into_raw_fd(pidfd), SeqCst);
    Ok(())
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: calls that a handler may make, with numbers and live memory; errno is put back.
    unsafe {
        let errno = *libc::__errno_location();
        let by_terminal = (*info).si_code == libc::SI_KERNEL;
        let by_itself = (*info).si_code <= 0 && (*info).si_pid() == NUMBER.load(SeqCst) && (*info).si_pid() != 0;
        let program = PROGRAM.load(SeqCst);
        match signal {
            libc::SIGCONT => {
                if program >= 0 && !by_terminal && is_stopped(NUMBER.load(SeqCst)) {
                    send(program, signal);
                }
            }
            _ if program >= 0 => {
                if !by_terminal && !by_itself {
                    send(program, signal);
                }
            }
            libc::SIGTSTP | libc::SIGWINCH => {}
            _ => end(signal),
        }
        if signal == libc::SIGTSTP {
            stop();
        }
        *libc::__errno_location() = errno;
    }
}

/// Stops this process as SIGTSTP does, so that the shell sees that its job has stopped; in a group that no shell looks after, not at all.
unsafe fn stop() {
    // SAFETY: the structs are live, and zeroed as C has them.
    unsafe {
        let mut ours: libc::sigaction = std::mem::zeroed();
        let default: libc::sigaction = std::mem::zeroed();
        let mut alone: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut alone, libc::SIGTSTP);
        libc::sigaction(libc::SIGTSTP, &raw const default, &raw mut ours);
        libc::raise(libc::SIGTSTP);
        // Here it stops, and goes on.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const alone, std::ptr::null_mut());
        libc::sigaction(libc::SIGTSTP, &raw const ours, std::ptr::null_mut());
    }
}

unsafe fn send(program: i32, signal: i32) {
    let none: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, program, signal, none, 0) };
}

/// Ends this process by the signal, and what it was making with it.
unsafe fn end(signal: i32) {
    // SAFETY: numbers only; the maker is our own child, which was not waited for.
    unsafe {
        if let maker @ 1.. = MAKER.load(SeqCst) {
            libc::kill(maker, libc::SIGKILL);
        }
        libc::signal(signal, libc::SIG_DFL);
        // It comes when the handler is left.
        libc::raise(signal);
    }
}

/// Whether `/proc/PID/stat` says so.
unsafe fn is_stopped(number: i32) -> bool {
    let mut path = *b"/proc/\0\0\0\0\0\0\0\0\0\0\0/stat\0";
    let (mut digits, mut left) = ([0u8; 10], number.max(0) as u32);
    let mut count = 0;
    while left > 0 && count < digits.len() {
        (digits[count], left, count) = (b'0' + (left % 10) as u8, left / 10, count + 1);
    }
    for n in 0..count {
        path[6 + n] = digits[count - 1 - n];
    }
    let tail = b"/stat\0";
    path[6 + count..6 + count + tail.len()].copy_from_slice(tail);
    let mut text = [0u8; 64];
    // SAFETY: a name that ends in NUL, and a live buffer with its length.
    let got = unsafe {
        let file = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        let got = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        got
    };
    let text = &text[..got.max(0) as usize];
    text.iter().rposition(|byte| *byte == b')').and_then(|end| text.get(end + 2)).is_some_and(|state| *state == b'T')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_seen_to_be() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let mut status = 0;
        // SAFETY: our own child.
        unsafe {
            assert!(!is_stopped(pid));
            libc::kill(pid, libc::SIGSTOP);
            libc::waitpid(pid, &raw mut status, libc::WUNTRACED);
            assert!(libc::WIFSTOPPED(status) && is_stopped(pid));
            libc::kill(pid, libc::SIGCONT);
            libc::waitpid(pid, &raw mut status, libc::WCONTINUED);
            assert!(!is_stopped(pid) && !is_stopped(i32::MAX) && !is_stopped(0));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
