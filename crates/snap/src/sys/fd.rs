//! Descriptors of another process: taken over, compared, looked into.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::{Error, Result};
use crate::sys::ptrace::Tid;

fn checked(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A process, held so that its number cannot come to mean another.
#[derive(Debug)]
pub struct Process {
    pid: Tid,
    pidfd: OwnedFd,
}

impl Process {
    /// The process of this number.
    pub fn open(pid: Tid) -> Result<Process> {
        // SAFETY: numbers only; the descriptor that comes back is new and ours.
        let pidfd = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).map_err(|e| match e.raw_os_error() {
            Some(libc::ESRCH | libc::EINVAL) => Error::Gone { pid },
            _ => Error::io(format!("pidfd_open of process {pid}"), e),
        })?;
        // SAFETY: as above.
        Ok(Process { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd as i32) } })
    }

    /// The pidfd.
    pub fn into_descriptor(self) -> OwnedFd {
        self.pidfd
    }

    /// Its number.
    pub fn pid(&self) -> Tid {
        self.pid
    }

    /// Its descriptor `fd`, as one of this process: the same open file, with one position.
    pub fn descriptor(&self, fd: i32) -> Result<OwnedFd> {
        // SAFETY: numbers only; the descriptor that comes back is new and ours.
        let got = checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), fd, 0) }).map_err(|e| {
            match e.raw_os_error() {
                Some(libc::EPERM) => Error::NotPermitted {
                    pid: self.pid,
                    what: "taking over its descriptors",
                    remedy: "it must be yours, and kernel.yama.ptrace_scope must allow it (root, or start it with `towa snap run`)",
                },
                Some(libc::ESRCH) => Error::Gone { pid: self.pid },
                _ => Error::io(format!("pidfd_getfd of descriptor {fd} of process {}", self.pid), e),
            }
        })?;
        // SAFETY: as above.
        Ok(unsafe { OwnedFd::from_raw_fd(got as i32) })
    }

    /// Ends it, by SIGKILL.
    pub fn kill(&self) -> Result<()> {
        let none: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: numbers only; there is no siginfo.
        checked(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), libc::SIGKILL, none, 0) })
            .map(drop)
            .map_err(|e| Error::io(format!("ending process {}", self.pid), e))
    }

    /// Whether two descriptors of it are one open file.
    pub fn is_same_file(&self, a: i32, b: i32) -> Result<bool> {
        const KCMP_FILE: i32 = 0;
        // SAFETY: numbers only.
        let order = checked(unsafe { libc::syscall(libc::SYS_kcmp, self.pid, self.pid, KCMP_FILE, a, b) })
            .map_err(|e| Error::io(format!("kcmp of descriptors {a} and {b} of process {}", self.pid), e))?;
        Ok(order == 0)
    }
}

/// The same file, open to read, with a position of its own.
pub fn reopened(file: &impl AsRawFd) -> io::Result<File> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(name)
}

/// The same file, open with these flags, with a position of its own.
pub fn opened_again(file: &impl AsRawFd, flags: i32) -> io::Result<File> {
    let access = flags & libc::O_ACCMODE;
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    let (reads, writes) = (access != libc::O_WRONLY, access != libc::O_RDONLY);
    OpenOptions::new().read(reads).write(writes).custom_flags(flags & !libc::O_ACCMODE).open(name)
}

/// Whether two threads have one table of descriptors; also where that cannot be seen.
pub fn share_descriptors(a: Tid, b: Tid) -> bool {
    const KCMP_FILES: i32 = 2;
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_FILES, 0, 0) <= 0 }
}

/// What lies in a pipe, which stays there.
pub fn peek_pipe(read_end: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut waiting: libc::c_int = 0;
    // SAFETY: FIONREAD stores one int.
    checked(i64::from(unsafe { libc::ioctl(read_end.as_raw_fd(), libc::FIONREAD, &raw mut waiting) }))?;
    if waiting == 0 {
        return Ok(Vec::new());
    }
    let (mut copy, into) = io::pipe()?;
    let room = pipe_capacity(read_end)?;
    set_pipe_capacity(&into, room)?;
    // SAFETY: two pipes; nothing is consumed.
    let copied =
        checked(unsafe { libc::tee(read_end.as_raw_fd(), into.as_raw_fd(), waiting as usize, libc::SPLICE_F_NONBLOCK) } as i64)?;
    drop(into);
    let mut bytes = Vec::new();
    copy.read_to_end(&mut bytes)?;
    if copied != i64::from(waiting) || bytes.len() != waiting as usize {
        return Err(io::Error::other(format!("of {waiting} bytes in it {copied} could be copied")));
    }
    Ok(bytes)
}

/// What waits to be read in a socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nothing does.
    Nothing,
    /// All bytes of a stream, or the first message; no bytes: an end of the stream, or a message without any.
    Bytes(Vec<u8>),
    /// A descriptor.
    Descriptor,
}

/// What waits to be read in a socket, where it stays.
pub fn peek_socket(socket: BorrowedFd<'_>) -> io::Result<Waiting> {
    let mut waiting: libc::c_int = 0;
    // SAFETY: FIONREAD stores one int.
    checked(i64::from(unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut waiting) }))?;
    let mut bytes = vec![0u8; waiting.max(1) as usize];
    let mut control = [0u64; 64];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a struct of numbers and pointers, 0 but for those set here; two buffers and their lengths.
    let (got, message) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        (libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags), message)
    };
    let got = match checked(got as i64) {
        Ok(got) => got as usize,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Waiting::Nothing),
        Err(e) => return Err(e),
    };
    if close_received(&message) || message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Ok(Waiting::Descriptor);
    }
    if got < waiting as usize {
        return Err(io::Error::other(format!("of {waiting} bytes in it {got} could be read")));
    }
    bytes.truncate(got);
    Ok(Waiting::Bytes(bytes))
}

/// Closes descriptors that came with a message; whether there were any.
fn close_received(message: &libc::msghdr) -> bool {
    let mut any = false;
    // SAFETY: the kernel has filled the control buffer with whole messages; those of SCM_RIGHTS hold descriptors, new and ours.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if ((*head).cmsg_level, (*head).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                any = true;
                let count = ((*head).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<i32>();
                for n in 0..count {
                    drop(OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<i32>().add(n).read_unaligned()));
                }
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    any
}

/// Bytes of a `termios2`.
pub const TERMINAL_MODES: usize = size_of::<libc::termios2>();

/// The modes of a terminal (TCGETS2).
pub fn terminal_modes(terminal: BorrowedFd<'_>) -> io::Result<[u8; TERMINAL_MODES]> {
    let mut modes = [0u8; TERMINAL_MODES];
    // SAFETY: the ioctl stores one termios2.
    checked(i64::from(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TCGETS2, modes.as_mut_ptr()) }))?;
    Ok(modes)
}

/// Sets them. Of a process in the background, which must not, it is an error.
pub fn set_terminal_modes(terminal: BorrowedFd<'_>, modes: &[u8; TERMINAL_MODES]) -> io::Result<()> {
    // SAFETY: numbers only.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(terminal.as_raw_fd()), libc::getpgrp()) };
    if foreground != own {
        return Err(io::Error::other("the terminal is another program's now"));
    }
    // SAFETY: the ioctl reads one termios2.
    checked(i64::from(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TCSETS2, modes.as_ptr()) })).map(drop)
}

/// Two unix sockets, connected to each other.
pub fn socket_pair(kind: i32, protocol: i32) -> io::Result<[OwnedFd; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: the kernel stores two descriptors, new and ours.
    checked(i64::from(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, protocol, ends.as_mut_ptr()) }))?;
    // SAFETY: as above.
    Ok(ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
}

/// Bytes that a pipe holds at most.
pub fn pipe_capacity(pipe: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: numbers only.
    checked(i64::from(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) })).map(|len| len as i32)
}

/// Sets that.
pub fn set_pipe_capacity(pipe: &impl AsRawFd, len: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    checked(i64::from(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, len) })).map(drop)
}

/// An option of a socket that is a number.
pub fn socket_option(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let (mut value, mut len): (libc::c_int, libc::socklen_t) = (0, size_of::<libc::c_int>() as u32);
    // SAFETY: an int and its length.
    checked(i64::from(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) }))?;
    Ok(value)
}

/// Sets one.
pub fn set_socket_option(socket: &impl AsRawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as u32;
    // SAFETY: an int and its length.
    checked(i64::from(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) })).map(drop)
}

/// The address a socket is bound to, or (`peer`) connected to: bytes of a `sockaddr`.
pub fn socket_address(socket: BorrowedFd<'_>, peer: bool) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; size_of::<libc::sockaddr_storage>()];
    let mut len = bytes.len() as libc::socklen_t;
    let address = bytes.as_mut_ptr().cast();
    // SAFETY: a buffer and its length.
    checked(i64::from(unsafe {
        if peer {
            libc::getpeername(socket.as_raw_fd(), address, &raw mut len)
        } else {
            libc::getsockname(socket.as_raw_fd(), address, &raw mut len)
        }
    }))?;
    bytes.truncate(len as usize);
    Ok(bytes)
}
