//! The calls of the system that tracing needs: a child that waits before its exec, ptrace, and the rings of perf.
//!
//! What must hold: this is the only file of `trace` with `unsafe` in it; nothing here looks at registers, so that it is the same on every
//! architecture; a ring's records are copied out before the kernel is told that it may overwrite them.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{self as perf, bindings as b};

/// Number of a process or thread.
pub type Pid = libc::pid_t;

/// Page size of this machine.
pub fn page_size() -> u64 {
    // SAFETY: it asks for a number.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// The clock that the records of perf are stamped with.
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it fills `t`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A child of this thread that waits before its exec.
#[derive(Debug)]
pub struct Waiting {
    /// Its number.
    pub pid: Pid,
    go: io::PipeWriter,
    failed: io::PipeReader,
}

impl Waiting {
    /// Forks a child that will run `command`, found by PATH as a shell finds it.
    pub fn fork(command: &[OsString]) -> io::Result<Waiting> {
        let args: Vec<CString> = command.iter().map(|arg| CString::new(arg.as_bytes())).collect::<Result<_, _>>()?;
        let argv: Vec<*const libc::c_char> = args.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]).collect();
        let (wait, go) = io::pipe()?;
        let (failed, report) = io::pipe()?;
        // SAFETY: a descriptor of ours; it is read only when its writer has ended, and then must not wait for copies of the writer's end.
        checked(unsafe { libc::fcntl(failed.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }.into())?;
        // SAFETY: the child does only what may be done between fork and exec in a process of several threads.
        match checked(unsafe { libc::fork() }.into())? {
            // SAFETY: in the child; everything was made before the fork.
            0 => unsafe { become_command(wait.as_raw_fd(), go.as_raw_fd(), report.as_raw_fd(), &argv) },
            pid => Ok(Waiting { pid: pid as Pid, go, failed }),
        }
    }

    /// Lets it go on to its exec.
    pub fn release(&mut self) -> io::Result<()> {
        self.go.write_all(&[1])
    }

    /// Why its exec failed, if it did; to be asked when it has ended.
    pub fn exec_error(&mut self) -> Option<io::Error> {
        let mut errno = [0; 4];
        self.failed.read_exact(&mut errno).ok().map(|()| io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }

    /// Ends it, when it cannot be traced.
    pub fn kill(self) {
        // SAFETY: a child that was not waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), libc::__WALL);
        }
    }
}

/// # Safety
/// Only in a child just forked; `argv` ends with a null.
unsafe fn become_command(wait: RawFd, go: RawFd, report: RawFd, argv: &[*const libc::c_char]) -> ! {
    // SAFETY: calls that a signal handler may make, with memory from before the fork.
    unsafe {
        // The end of the other is then seen as an end of file.
        libc::close(go);
        let mut byte = 0u8;
        if libc::read(wait, (&raw mut byte).cast(), 1) == 1 {
            // What Rust programs, and towa, ignore: the command gets it as it is by default.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            libc::execvp(argv[0], argv.as_ptr());
            let errno = *libc::__errno_location();
            libc::write(report, (&raw const errno).cast(), 4);
        }
        libc::_exit(127)
    }
}

/// Handle of a process that stays its own when its number is given to another.
pub fn pidfd(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: two numbers; what comes back is a new descriptor.
    unsafe { Ok(OwnedFd::from_raw_fd(checked(libc::syscall(libc::SYS_pidfd_open, pid, 0))? as RawFd)) }
}

/// Sends a signal by such a handle.
pub fn pidfd_signal(process: &OwnedFd, signal: i32) -> io::Result<()> {
    let none = ptr::null::<libc::siginfo_t>();
    // SAFETY: no siginfo is given, so none is read.
    checked(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, none, 0) }).map(drop)
}

/// A ptrace request about a task that is traced by this thread.
pub fn ptrace(request: libc::c_uint, pid: Pid, data: usize) -> io::Result<()> {
    // SAFETY: only requests that take a number are made (SEIZE, CONT, LISTEN, INTERRUPT, DETACH).
    checked(unsafe { libc::ptrace(request as _, pid, ptr::null_mut::<libc::c_void>(), data as *mut libc::c_void) }).map(drop)
}

/// The number that came with an event of ptrace.
pub fn event_message(pid: Pid) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    let null = ptr::null_mut::<libc::c_void>();
    // SAFETY: it fills `message`.
    checked(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG as _, pid, null, &raw mut message) })?;
    Ok(message as u64)
}

/// Waits for a child or a traced task of this thread; none if it should not block and nothing happened.
pub fn wait(block: bool) -> io::Result<Option<(Pid, i32)>> {
    let flags = libc::__WALL | libc::__WNOTHREAD | if block { 0 } else { libc::WNOHANG };
    let mut status = 0;
    // SAFETY: it fills `status`.
    let pid = checked(unsafe { libc::waitpid(-1, &mut status, flags) }.into())?;
    Ok((pid != 0).then_some((pid as Pid, status)))
}

/// Opens an event that counts for `pid` and its descendants on `cpu`.
pub fn perf_open(attr: &mut b::perf_event_attr, pid: Pid, cpu: i32) -> io::Result<File> {
    // SAFETY: `attr` names its own size; what comes back is a new descriptor.
    unsafe {
        let fd = perf::perf_event_open(attr, pid, cpu, -1, b::PERF_FLAG_FD_CLOEXEC.into());
        Ok(File::from_raw_fd(checked(fd.into())? as RawFd))
    }
}

/// The number that its samples carry.
pub fn perf_id(event: &File) -> io::Result<u64> {
    let mut id = 0;
    // SAFETY: it fills `id`.
    checked(unsafe { perf::ioctls::ID(event.as_raw_fd(), &mut id) }.into()).map(|_| id)
}

/// The records of `event` go to the ring of `to`.
pub fn perf_output(event: &File, to: &File) -> io::Result<()> {
    // SAFETY: two open descriptors.
    checked(unsafe { perf::ioctls::SET_OUTPUT(event.as_raw_fd(), to.as_raw_fd() as _) }.into()).map(drop)
}

/// The ring that the kernel writes an event's records to.
#[derive(Debug)]
pub struct Ring {
    event: File,
    base: NonNull<u8>,
    page: usize,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and is not tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring for `event`, of `len` bytes (a power of two, whole pages).
    pub fn map(event: File, len: usize) -> Result<Ring, (File, io::Error)> {
        let page = page_size() as usize;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let base = unsafe { libc::mmap(ptr::null_mut(), page + len, prot, libc::MAP_SHARED, event.as_raw_fd(), 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Ring { event, base, page, len }),
            _ => Err((event, io::Error::last_os_error())),
        }
    }

    /// The event.
    pub fn event(&self) -> &File {
        &self.event
    }

    /// Moves all records to `out`.
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        let control = self.base.cast::<b::perf_event_mmap_page>().as_ptr();
        // SAFETY: the first page of the mapping; the kernel changes `data_head` and we `data_tail`, each with one store.
        let (head, tail) =
            unsafe { (AtomicU64::from_ptr(&raw mut (*control).data_head), AtomicU64::from_ptr(&raw mut (*control).data_tail)) };
        let (to, from) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        let (at, count) = ((from as usize) & (self.len - 1), (to - from) as usize);
        let first = count.min(self.len - at);
        for (start, len) in [(at, first), (0, count - first)] {
            // SAFETY: within the mapping; the kernel does not write between tail and head.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.page + start), len) });
        }
        tail.store(to, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, which nobody else has.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.page + self.len) };
    }
}
