//! Memory of another process, and its end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::pages::{PAGE, Pages};

/// Most ranges that one [`read_pages`] takes.
pub(crate) const MOST_RANGES: usize = libc::UIO_MAXIOV as usize;

/// Reads `ranges` of process `pid` into `into`, one behind the other, until the first page that cannot be read; the bytes read.
pub(crate) fn read_pages(pid: i32, ranges: &[Pages], into: &mut [u8]) -> io::Result<usize> {
    assert!(ranges.len() <= MOST_RANGES && ranges.iter().map(|r| (r.end - r.start) * PAGE).sum::<u64>() <= into.len() as u64);
    let remote: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec { iov_base: (range.start * PAGE) as *mut _, iov_len: ((range.end - range.start) * PAGE) as usize })
        .collect();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the only memory of ours that is written is `into`; the other addresses are the other process's.
    match unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), remote.len() as u64, 0) } {
        -1 => Err(io::Error::last_os_error()),
        bytes => Ok(bytes as usize),
    }
}

/// A handle of process `pid` that never means another one.
pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    match unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel made this descriptor for us, nobody else has it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    }
}

/// Ends the process of a [`pidfd`] at once.
pub(crate) fn kill(pidfd: &OwnedFd) -> io::Result<()> {
    let none: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: no memory is involved: there is no siginfo.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), libc::SIGKILL, none, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
