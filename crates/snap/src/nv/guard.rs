//! Answers the system calls that a process in mode `nv` may not simply make: a thread of the tool, as long as there is such a process.
//!
//! ```text
//!   thread of the process: madvise ──► kernel: asks ──► guard: holes in the pool ──► "go on" ──► kernel: drops what is mapped ──► 0
//! ```
//!
//! What is asked about while the process is being stopped is answered first (the kernel lets such a thread be killed, not stopped), so that a
//! checkpoint sees a call done or not begun. What must always hold: a call is let through only if it does to the pool's memory what it does to
//! private memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use super::filter::ASKED_ADVICE;
use super::pool::Pool;
use crate::error::{Error, Result};
use crate::memory::maps::{self, Mapping};
use crate::pages::{PAGE, Pages};
use crate::sys::priority::Urgent;
use crate::sys::{self, machine, memory};

/// What the kernel asks (struct seccomp_notif).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    id: u64,
    tid: i32,
    flags: u32,
    number: i32,
    arch: u32,
    instruction: u64,
    args: [u64; 6],
}

/// What it is told (struct seccomp_notif_resp).
#[repr(C)]
struct Told {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

const RECEIVE: libc::Ioctl = sys::read_write::<Asked>(b'!', 0);
const SEND: libc::Ioctl = sys::read_write::<Told>(b'!', 1);
const CONTINUE: u32 = 1;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The kernel makes it.
    LetThrough,
    /// It fails with this.
    Fails(i32),
    /// It is done.
    Done,
}

/// Who answers.
pub struct Guard {
    listener: OwnedFd,
    pool: Arc<Pool>,
}

impl Guard {
    /// Answers what is asked at `listener`, in a thread that ends with the last process under the filter.
    pub fn start(listener: OwnedFd, pool: Arc<Pool>) -> Result<()> {
        let guard = Guard { listener, pool };
        let thread = std::thread::Builder::new().name("nv-guard".into()).spawn(move || guard.serve());
        thread.map(drop).map_err(|e| Error::io("a thread that answers system calls", e))
    }

    fn serve(&self) {
        // Until a question was read, a signal for who asks interrupts the call (EINTR where the handler does not have calls made again).
        let _urgent = Urgent::begin();
        while let Ok(true) = self.wait() {
            let mut asked = Asked::default();
            // SAFETY: the argument is this ioctl's, without pointers.
            match unsafe { sys::ioctl(self.listener.as_fd(), RECEIVE, &mut asked) } {
                Ok(_) => self.answer(&asked),
                // Whoever asked has been killed, or interrupted.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {}
                Err(e) => {
                    log::error!("system calls of the process cannot be answered: {e}");
                    return;
                }
            }
        }
    }

    /// Until there is a question; false when there will be none any more.
    fn wait(&self) -> io::Result<bool> {
        loop {
            let mut polled = libc::pollfd { fd: self.listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live entry.
            match unsafe { libc::poll(&raw mut polled, 1, -1) } {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                -1 => return Err(io::Error::last_os_error()),
                _ => return Ok(polled.revents & libc::POLLIN != 0),
            }
        }
    }

    fn answer(&self, asked: &Asked) {
        let answer = self.judge(asked).unwrap_or_else(|e| {
            log::warn!("system call {} of thread {}: {e}", asked.number, asked.tid);
            Answer::Fails(libc::ENOMEM)
        });
        let (error, flags) = match answer {
            Answer::LetThrough => (0, CONTINUE),
            Answer::Fails(error) => (-error, 0),
            Answer::Done => (0, 0),
        };
        let mut told = Told { id: asked.id, value: 0, error, flags };
        // Fails if the thread has been killed meanwhile.
        // SAFETY: the argument is this ioctl's, without pointers.
        let _ = unsafe { sys::ioctl(self.listener.as_fd(), SEND, &mut told) };
    }

    fn judge(&self, asked: &Asked) -> Result<Answer> {
        let mappings = maps::read(asked.tid)?;
        let args = &asked.args;
        match i64::from(asked.number) {
            libc::SYS_clone3 => {
                let mut flags = [0u8; 8];
                let shares =
                    memory::read(asked.tid, args[0], &mut flags).is_ok() && u64::from_le_bytes(flags) & libc::CLONE_VM as u64 != 0;
                Ok(if shares { Answer::LetThrough } else { self.fork(&mappings) })
            }
            machine::SYS_FORK | libc::SYS_clone => Ok(self.fork(&mappings)),
            libc::SYS_madvise => self.madvise(asked.tid, &mappings, args[0], args[1], args[2] as i32),
            libc::SYS_mremap => {
                let concerned = !self.parts(&mappings, args[0], args[1].max(1)).is_empty();
                let grows = args[1] != 0 && args[2] > args[1];
                Ok(match concerned {
                    true if grows => Answer::Fails(libc::ENOMEM),
                    true => Answer::Fails(libc::EINVAL),
                    false => Answer::LetThrough,
                })
            }
            _ => Ok(Answer::LetThrough),
        }
    }

    /// A child with a copy of the memory: not of what is shared.
    fn fork(&self, mappings: &[Mapping]) -> Answer {
        if mappings.iter().any(|mapping| self.pool.has(mapping)) { Answer::Fails(libc::EAGAIN) } else { Answer::LetThrough }
    }

    fn madvise(&self, tid: i32, mappings: &[Mapping], at: u64, len: u64, advice: i32) -> Result<Answer> {
        debug_assert!(ASKED_ADVICE.contains(&advice));
        let parts = self.parts(mappings, at, len);
        // What the kernel refuses it is to refuse.
        if parts.is_empty() || !at.is_multiple_of(PAGE) || advice == libc::MADV_DONTNEED && locked(tid, at, len)? {
            return Ok(Answer::LetThrough);
        }
        if ![libc::MADV_DONTNEED, libc::MADV_FREE, 24].contains(&advice) {
            return Ok(Answer::Fails(libc::EINVAL));
        }
        for part in &parts {
            self.pool.drop_pages(part)?;
        }
        // MADV_FREE is a wish, which the kernel knows for private memory alone: what of the range is that stays for now.
        Ok(if advice == libc::MADV_FREE { Answer::Done } else { Answer::LetThrough })
    }

    /// The pages of the pool that lie in a range of addresses.
    fn parts(&self, mappings: &[Mapping], at: u64, len: u64) -> Vec<Pages> {
        let (start, end) = (at / PAGE, at.saturating_add(len).div_ceil(PAGE));
        let within = mappings.iter().filter(|mapping| self.pool.has(mapping)).filter_map(|mapping| {
            let (first, last) = (mapping.pages.start.max(start), mapping.pages.end.min(end));
            let place = |page: u64| mapping.offset / PAGE + (page - mapping.pages.start);
            (first < last).then(|| place(first)..place(last))
        });
        within.collect()
    }
}

/// Whether some of a range is locked in memory.
fn locked(tid: i32, at: u64, len: u64) -> Result<bool> {
    let path = format!("/proc/{tid}/status");
    let status = std::fs::read_to_string(&path).map_err(|e| Error::io(format!("reading {path}"), e))?;
    if status.lines().any(|line| line.strip_prefix("VmLck:").is_some_and(|rest| rest.trim() == "0 kB")) {
        return Ok(false);
    }
    let (start, end) = (at / PAGE, at.saturating_add(len).div_ceil(PAGE));
    let all = maps::read_with_flags(tid)?;
    Ok(all.iter().any(|(mapping, flags)| flags.has("lo") && mapping.pages.start < end && start < mapping.pages.end))
}
