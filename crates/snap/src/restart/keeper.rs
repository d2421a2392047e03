//! The keeper: a small process that sees to it that nobody is given zeros when a lazy restart is cut off.
//!
//! As long as pages are owed to a process, the userfaultfd of its memory must stay open: the kernel gives zeros for all that is missing as
//! soon as it is closed, and a process that is killed closes its files *before* it sends the signal that its children asked for
//! (PR_SET_PDEATHSIG) or ends those it traces. So the table of descriptors itself is held by two processes:
//!
//! ```text
//!   restarter ── pager ──┐                                       ┌──> process       label in its stub: 16 random bytes
//!                        ├── one table of descriptors: uffd ... ─┤
//!   keeper ──────────────┘   (CLONE_FILES)                       └──> its children  the same label: fork copies it
//!
//!   restarter says "done"       keeper ends
//!   restarter ends before that  the table, and with it each userfaultfd, lives on in the keeper: who touches a missing page waits;
//!                               the keeper kills the process, and all who have the label, until there are none; then it ends
//!   keeper ends                 the table lives on in the restarter, which starts another keeper
//! ```
//!
//! Why that is enough:
//! - A child that is forked meanwhile gets a userfaultfd when the pager reads the message that says so. The kernel puts it into the table
//!   that both hold, in that very call: there is no moment at which only the restarter has it. Nothing is sent from one to the other.
//! - Which processes those are, no message says; but whoever still has memory of the process has its stub, and in it the label. One that
//!   runs another program (exec) has neither, and nothing is owed to it. Those that are found are killed, and waited for until their
//!   last thread is gone (a thread that is being killed inside a system call still copies memory); a child that is forked during one
//!   search is found by the next, and a killed process forks no more.
//!
//! What remains: if restarter *and* keeper are killed within the same moment, before either has seen the other end, the last one's table is
//! closed with pages owed. The process itself is then killed by PR_SET_PDEATHSIG some microseconds after that, its children are not.
//!
//! What must always hold: the keeper has a copy of this program's memory, in which locks may be held by threads that it does not have.
//! So it makes system calls only, and allocates nothing.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::error::{Error, Result};
use crate::remote::LABEL_LEN;
use crate::sys::ptrace::Tid;
use crate::sys::vm;

/// Who is to be killed: a process, and all who have its label.
#[derive(Debug)]
pub struct Marked {
    /// The process.
    pub pidfd: OwnedFd,
    /// Where the label is.
    pub address: u64,
    /// The label.
    pub label: [u8; LABEL_LEN],
    /// `/proc`, open before descriptors may run out.
    proc: OwnedFd,
}

/// The keeper, seen from the restarter.
#[derive(Debug)]
pub struct Keeper {
    pid: Tid,
    pidfd: OwnedFd,
    done: OwnedFd,
    /// This process, as the keeper sees it: in the table that both have, so it is closed when the keeper has ended.
    _restarter: OwnedFd,
}

impl Marked {
    /// Process `pid`, with this label at `address`.
    pub fn new(pid: Tid, address: u64, label: [u8; LABEL_LEN]) -> Result<Marked> {
        let pidfd = vm::pidfd(pid).map_err(|e| Error::io(format!("pidfd_open of process {pid}"), e))?;
        // SAFETY: a NUL-terminated name; the descriptor is new and ours.
        let proc = owned(unsafe { libc::open(c"/proc".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) }, "/proc")?;
        Ok(Marked { pidfd, address, label, proc })
    }

    /// Kills all of them, and comes back when their last threads are gone. System calls only.
    pub fn end_all(&self) {
        end(self.pidfd.as_raw_fd());
        // One pass may miss what is forked during it.
        while self.end_found() {}
    }

    /// One search; whether it found any.
    fn end_found(&self) -> bool {
        let mut found = false;
        each_number(self.proc.as_raw_fd(), &mut |pid, name| {
            found |= self.has_label(pid, name) && self.end_one(pid, name);
        });
        found
    }

    fn end_one(&self, pid: Tid, name: &[u8]) -> bool {
        // SAFETY: numbers only.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
        // Again: now the number cannot have come to mean another process but by the end of this one.
        if !self.has_label(pid, name) {
            close(pidfd);
            return false;
        }
        if pidfd < 0 {
            // No descriptors left: by number, then, and slowly.
            // SAFETY: numbers only.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::poll(std::ptr::null_mut(), 0, 1);
            }
            return true;
        }
        end(pidfd);
        close(pidfd);
        true
    }

    /// Whether a process has the label. Its first thread may have ended and its memory live on: then another one is asked.
    fn has_label(&self, pid: Tid, name: &[u8]) -> bool {
        self.thread_has_label(pid).unwrap_or_else(|| {
            let mut path = [0u8; 32];
            let parts = [name, b"/task\0"].concat_into(&mut path);
            // SAFETY: a NUL-terminated name.
            let tasks = unsafe {
                libc::openat(self.proc.as_raw_fd(), parts.as_ptr().cast(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)
            };
            let mut has = false;
            each_number(tasks, &mut |tid, _| has |= self.thread_has_label(tid) == Some(true));
            close(tasks);
            has
        })
    }

    /// The same of a thread; `None` if it has no memory (any more).
    fn thread_has_label(&self, tid: Tid) -> Option<bool> {
        let mut found = [0u8; LABEL_LEN];
        let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: LABEL_LEN };
        let remote = libc::iovec { iov_base: self.address as *mut libc::c_void, iov_len: LABEL_LEN };
        // SAFETY: `local` describes a live buffer; `remote` is an address elsewhere, which the kernel checks.
        let got = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
        if got < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
            return None;
        }
        Some(got == LABEL_LEN as isize && found == self.label)
    }
}

/// Bytes one behind the other, without allocating.
trait ConcatInto {
    fn concat_into<'b>(&self, into: &'b mut [u8]) -> &'b [u8];
}

impl ConcatInto for [&[u8]; 2] {
    fn concat_into<'b>(&self, into: &'b mut [u8]) -> &'b [u8] {
        let len = self[0].len() + self[1].len();
        into[..self[0].len()].copy_from_slice(self[0]);
        into[self[0].len()..len].copy_from_slice(self[1]);
        &into[..len]
    }
}

/// Kills the process of a pidfd, and waits until it has no threads any more.
fn end(pidfd: i32) {
    let none: *const libc::siginfo_t = std::ptr::null();
    let mut ended = libc::pollfd { fd: pidfd, events: libc::POLLIN, revents: 0 };
    // SAFETY: numbers, and one live entry. An interrupted or failed wait is looked at again.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd, libc::SIGKILL, none, 0);
        while libc::poll(&raw mut ended, 1, -1) != 1 {}
    }
}

fn close(fd: i32) {
    // SAFETY: one of our own, or none.
    unsafe { libc::close(fd) };
}

/// Calls `with` for each entry of a directory of `/proc` that is a number, with its name.
fn each_number(directory: i32, with: &mut dyn FnMut(Tid, &[u8])) {
    const NAME: usize = 19;
    let mut entries = [0u8; 4096];
    // SAFETY: numbers only: from the beginning.
    unsafe { libc::lseek(directory, 0, libc::SEEK_SET) };
    loop {
        // SAFETY: a buffer and its length.
        let got = unsafe { libc::syscall(libc::SYS_getdents64, directory, entries.as_mut_ptr(), entries.len()) };
        if got <= 0 {
            return;
        }
        let mut at = 0;
        while at < got as usize {
            let len = usize::from(u16::from_ne_bytes([entries[at + 16], entries[at + 17]]));
            let name = &entries[at + NAME..at + len];
            let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(name.len())];
            if !name.is_empty() && name.len() < 10 && name.iter().all(u8::is_ascii_digit) {
                with(name.iter().fold(0, |number, digit| number * 10 + Tid::from(digit - b'0')), name);
            }
            at += len;
        }
    }
}

impl Keeper {
    /// Starts one for the calling process. All userfaultfds are, and will be, in the table that it shares.
    pub fn start(marked: &Marked) -> Result<Keeper> {
        // SAFETY: numbers only; the descriptor is new and ours.
        let done = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }, "eventfd")?;
        let restarter = vm::pidfd(std::process::id() as Tid).map_err(|e| Error::io("pidfd_open of this process", e))?;
        // SAFETY: the struct is numbers, all 0 otherwise.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = libc::CLONE_FILES as u64;
        // No signal at its end: it is nobody's business but ours.
        // SAFETY: like fork: the child has a copy of this memory, and makes system calls only.
        let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) } as Tid;
        match pid {
            0 => keep(marked, restarter.as_raw_fd(), done.as_raw_fd()),
            -1 => Err(Error::last("starting the keeper of a lazy restart")),
            // Without a pidfd, what it polls is closed here: then it ends.
            _ => {
                let pidfd = vm::pidfd(pid).map_err(|e| Error::io("pidfd_open of the keeper", e))?;
                Ok(Keeper { pid, pidfd, done, _restarter: restarter })
            }
        }
    }

    /// Readable when it has ended.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Nothing is owed any more: it ends. Also of one that was killed.
    pub fn end(self) {
        let one = 1u64;
        // SAFETY: eight live bytes; then numbers and a status that nobody wants. The child is ours.
        unsafe {
            libc::write(self.done.as_raw_fd(), (&raw const one).cast(), 8);
            while libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

/// What the keeper does. System calls only.
fn keep(marked: &Marked, restarter: i32, done: i32) -> ! {
    let mut watched = [done, restarter].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: calls with numbers and live memory.
    unsafe {
        // Neither Ctrl-C nor the end of a terminal or a login is meant for it.
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"towa-keeper".as_ptr());
        loop {
            libc::poll(watched.as_mut_ptr(), 2, -1);
            if watched[0].revents != 0 {
                libc::_exit(0);
            }
            if watched[1].revents != 0 {
                marked.end_all();
                libc::_exit(1);
            }
        }
    }
}

fn owned(fd: i32, what: &str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::last(what));
    }
    // SAFETY: the caller has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
