//! Descriptors are handed to another process, or back, through a socket (SCM_RIGHTS).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;

use super::filter::owned;
use crate::error::{Error, Result};
use crate::remote::{Call, Stub};
use crate::sys::fd::Process;
use crate::sys::memory;

/// Room for a control message with one descriptor.
const CONTROL: usize = 24;

/// Sends one. Makes system calls only.
pub(super) fn send(socket: RawFd, fd: RawFd) -> io::Result<()> {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; CONTROL / 8];
    // SAFETY: a message of live buffers; the control message fits its room, and is filled before it is sent.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL;
        let header = control.as_mut_ptr().cast::<libc::cmsghdr>();
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives one.
pub(super) fn receive(socket: &UnixDatagram) -> io::Result<OwnedFd> {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; CONTROL / 8];
    // SAFETY: a message of live buffers, which the kernel fills as far as it says.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = CONTROL;
        if libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = control.as_ptr().cast::<libc::cmsghdr>();
        if (*header).cmsg_len != libc::CMSG_LEN(4) as usize || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other("a message without a descriptor"));
        }
        Ok(owned(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    }
}

/// Gives a process that stands still a descriptor of ours; its number there. It has one more until [`take_back`].
///
/// By a socket, not by a name in `/proc`: the process need not be allowed to look there. If the tool dies in between, the process keeps up to
/// two descriptors that nobody knows of, which an exec closes.
pub(super) fn give(process: &Process, stub: &Stub, fd: RawFd) -> Result<i32> {
    let (pid, at) = (process.pid(), stub.scratch());
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    stub.call(pid, libc::SYS_socketpair, &[libc::AF_UNIX as u64, kind as u64, 0, at])?;
    let mut pair = [0u8; 8];
    memory::read(pid, at, &mut pair)?;
    let [theirs, ours] = [0, 4].map(|n| i32::from_le_bytes(pair[n..n + 4].try_into().expect("four bytes")));
    // Layout of struct msghdr: name, its length, iov, their number, control, its length, flags.
    let (header, iov, byte, control) = (at, at + 64, at + 96, at + 128);
    let message: [u64; 7] = [0, 0, iov, 1, control, CONTROL as u64, 0];
    let words: Vec<u8> = message.iter().chain(&[0, byte, 1]).flat_map(|word| word.to_le_bytes()).collect();
    memory::write(pid, header, &words)?;
    let sent = process.descriptor(ours).and_then(|socket| {
        send(socket.as_raw_fd(), fd).map_err(|e| Error::io(format!("handing a descriptor to process {pid}"), e))
    });
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
    let calls = [
        Call::new(libc::SYS_recvmsg, &[theirs as u64, header, flags]),
        Call::new(libc::SYS_close, &[theirs as u64]),
        Call::new(libc::SYS_close, &[ours as u64]),
    ];
    // Also when nothing was sent: the sockets go.
    let results = stub.run(pid, &calls)?;
    sent?;
    stub.checked(libc::SYS_recvmsg, results[0])?;
    let mut rights = [0u8; CONTROL];
    memory::read(pid, control, &mut rights)?;
    Ok(i32::from_le_bytes(rights[16..20].try_into().expect("four bytes")))
}

/// Takes it back.
pub(super) fn take_back(process: &Process, stub: &Stub, number: i32) -> Result<()> {
    stub.call(process.pid(), libc::SYS_close, &[number as u64]).map(drop)
}
