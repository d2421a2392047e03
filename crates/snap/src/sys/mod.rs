//! Calls of the kernel that neither `std` nor `libc` wraps, each in one place, safe to call.

pub mod fd;
pub mod machine;
pub mod memory;
pub(crate) mod pagemap;
pub(crate) mod priority;
pub(crate) mod proc;
pub mod ptrace;
pub(crate) mod uffd;
pub(crate) mod unix_diag;
pub(crate) mod vm;
pub(crate) mod writeback;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Number of an ioctl that reads and writes its argument of type `T` (`_IOWR`).
pub(crate) const fn read_write<T>(kind: u8, number: u8) -> libc::Ioctl {
    (3 << 30 | (size_of::<T>() as u64) << 16 | (kind as u64) << 8 | number as u64) as libc::Ioctl
}

/// Number of an ioctl that reads its argument of type `T` (`_IOR`).
pub(crate) const fn read<T>(kind: u8, number: u8) -> libc::Ioctl {
    (2 << 30 | (size_of::<T>() as u64) << 16 | (kind as u64) << 8 | number as u64) as libc::Ioctl
}

/// Calls ioctl `number` with `argument`.
///
/// # Safety
/// `number` must be one whose argument is a `T` (made by [`read_write`] or [`read`] with that type), and memory that the argument
/// points to must be good for what the ioctl does with it.
pub(crate) unsafe fn ioctl<T>(fd: BorrowedFd<'_>, number: libc::Ioctl, argument: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the caller vouches for number and argument; the descriptor is open.
    match unsafe { libc::ioctl(fd.as_raw_fd(), number, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
