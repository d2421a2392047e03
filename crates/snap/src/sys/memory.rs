//! Bytes of another process.

use std::io;

use crate::error::{Error, Result};
use crate::sys::ptrace::Tid;

/// Reads `bytes` at `address` of the process of `tid`.
pub fn read(tid: Tid, address: u64, bytes: &mut [u8]) -> Result<()> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `local` describes a live buffer; `remote` is an address elsewhere, which the kernel checks.
    let got = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    whole("reading", tid, address, bytes.len(), got)
}

/// Writes `bytes` there, which must be writable.
pub fn write(tid: Tid, address: u64, bytes: &[u8]) -> Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: as in `read`; `local` is only read.
    let got = unsafe { libc::process_vm_writev(tid, &raw const local, 1, &raw const remote, 1, 0) };
    whole("writing", tid, address, bytes.len(), got)
}

/// Bytes of this machine's memory that can still be used.
pub fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

fn whole(what: &str, tid: Tid, address: u64, len: usize, got: isize) -> Result<()> {
    let what = || format!("{what} {len} bytes at {address:#x} of process {tid}");
    match got {
        _ if got == len as isize => Ok(()),
        got if got < 0 => Err(Error::last(what())),
        got => Err(Error::io(what(), io::Error::other(format!("only {got} of them are there")))),
    }
}
