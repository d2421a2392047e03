//! Memory of another process, and its end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::memory::reader::Piece;
use crate::pages::PAGE;

/// Most pieces that one [`read_pages`] takes.
pub(crate) const MOST_PIECES: usize = libc::UIO_MAXIOV as usize;

/// Reads each piece of process `pid` to its place in `into`, until the first page that cannot be read; the bytes read.
pub(crate) fn read_pages(pid: i32, pieces: &[Piece], into: &mut [u8]) -> io::Result<usize> {
    assert!(pieces.len() <= MOST_PIECES && pieces.iter().all(|piece| (piece.to + piece.count()) * PAGE <= into.len() as u64));
    let bytes = |piece: &Piece| (piece.count() * PAGE) as usize;
    let there = |piece: &Piece| libc::iovec { iov_base: (piece.pages.start * PAGE) as *mut _, iov_len: bytes(piece) };
    let buffer = into.as_mut_ptr();
    let here =
        |piece: &Piece| libc::iovec { iov_base: buffer.wrapping_add((piece.to * PAGE) as usize).cast(), iov_len: bytes(piece) };
    let (remote, local): (Vec<_>, Vec<_>) = pieces.iter().map(|piece| (there(piece), here(piece))).unzip();
    let count = pieces.len() as u64;
    // SAFETY: the only memory of ours that is written are places in `into`, as was just seen; the other addresses are the other process's.
    match unsafe { libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0) } {
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
