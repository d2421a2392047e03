//! Has the kernel write what is dirty of a file that belongs to somebody else.
//!
//! What must always hold: an error of the write-back is not taken from those whom the kernel owes it. The kernel tells an error of a file to
//! each descriptor that was open, and to one that is opened later only if it told none yet: an fsync of the tool would take it from the program. To
//! ask that writing begins, and to count what is not written yet, tells nothing and takes nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct Range {
    offset: u64,
    /// 0: to the end.
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Counts {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Begins to write what is dirty of `file`, and does not wait.
pub fn begin(file: &File) -> io::Result<()> {
    // SAFETY: numbers only.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The error of a write-back of `file` that this opening of it was not told yet. Only for files of our own.
pub fn error_of(file: &File) -> io::Result<()> {
    // Waiting for the write-back of a range tells errors of the whole file; nothing lies in this one.
    // SAFETY: numbers only.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), i64::MAX - 1, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Pages of `file` that are on their way to the device. Those that the program has written since are not among them. An error where the kernel does not tell (before Linux 6.5, or of another user's file).
pub fn pending(file: &File) -> io::Result<u64> {
    let (range, mut counts) = (Range { offset: 0, len: 0 }, Counts::default());
    // SAFETY: the kernel reads one live struct and fills another; both are laid out as it expects.
    match unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0) } {
        0 => Ok(counts.writeback),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_not_pending_any_more() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 100_000], 0).unwrap();
        begin(&file).unwrap();
        match pending(&file) {
            Ok(_) => {}
            Err(e) => return println!("SKIP what_was_written_is_not_pending_any_more: cachestat: {e}"),
        }
        towa_media::files::sync(&file).unwrap();
        assert_eq!(pending(&file).unwrap(), 0);
    }
}
