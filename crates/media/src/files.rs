//! Durability of plain files and directories, for doors whose bytes lie in files of their own rather than in the regions of a medium.
//!
//! What must always hold: these functions return without an error only when what they name is durable; and after an error nothing is
//! known of the file, which the caller must give up (the kernel drops dirty pages after a failed sync, so that trying again tells
//! nothing).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use crate::Error;
use crate::directory::Directory;

#[cfg(feature = "failing-files")]
pub mod failing;

/// A device of the tests that fails answers in the place of the kernel.
macro_rules! or_a_failing_device {
    ($what:ident($of:expr)) => {
        #[cfg(feature = "failing-files")]
        if let Some(answer) = failing::answer(&failing::What::$what($of)) {
            return answer;
        }
    };
}

/// Makes the bytes and the length of `file` durable; of a directory, its names.
#[track_caller]
pub fn sync(file: &File) -> io::Result<()> {
    or_a_failing_device!(File(file));
    file.sync_all()
}

/// Makes the names in directory `path` durable: what was created, renamed or removed in it.
#[track_caller]
pub fn sync_dir(path: &Path) -> io::Result<()> {
    or_a_failing_device!(Names(path));
    File::open(path)?.sync_all()
}

/// Makes everything durable that is on the file system of `file`.
#[track_caller]
pub fn sync_file_system(file: &File) -> io::Result<()> {
    or_a_failing_device!(Everything(file));
    // SAFETY: a call on a descriptor that is open.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has `to`, an empty file's descriptor or one of the same length, share all bytes of `from` until either changes: where the file system can do that.
pub fn clone_whole(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a call on two descriptors that are open.
    match unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE, from.as_raw_fd()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether the file system has twice as much space left as `file` takes: a clone of it shares its blocks, and either side needs new
/// ones for what it writes then.
pub fn has_room_for_a_clone(file: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeros are such structures, which are ours to fill; the descriptor is open.
    unsafe {
        let (mut space, mut status): (libc::statvfs, libc::stat) = std::mem::zeroed();
        libc::fstatvfs(file.as_raw_fd(), &raw mut space) == 0
            && libc::fstat(file.as_raw_fd(), &raw mut status) == 0
            && space.f_bavail.saturating_mul(space.f_frsize) / 2 > status.st_blocks as u64 * 512
    }
}

/// The first offset at or after `off` at which `file` has bytes: before it are holes, which read as zeros. `None`: it has none there. Where the file
/// system does not tell, `off`. The position of the file moves.
pub fn next_data(file: BorrowedFd<'_>, off: u64) -> Option<u64> {
    // SAFETY: numbers only.
    match unsafe { libc::lseek(file.as_raw_fd(), off as libc::off_t, libc::SEEK_DATA) } {
        -1 if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => None,
        -1 => Some(off),
        data => Some(data as u64),
    }
}

/// [`sync_dir`], and the names that lead to `path` on its file system: for a directory that has just been made.
#[track_caller]
pub fn sync_dir_and_above(path: &Path) -> io::Result<()> {
    or_a_failing_device!(NamesAndAbove(path));
    Directory::open(path, false).and_then(|directory| directory.sync()).map_err(|error| match error {
        Error::Io { source, .. } => source,
        Error::Full { .. } => io::ErrorKind::StorageFull.into(),
        Error::NotFound { .. } => io::ErrorKind::NotFound.into(),
        other => io::Error::other(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_synced_and_what_is_not_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = File::create(&path).unwrap();
        sync(&file).unwrap();
        sync_dir(dir.path()).unwrap();
        sync_dir_and_above(dir.path()).unwrap();
        assert_eq!(sync_dir(&dir.path().join("b")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(sync_dir_and_above(&dir.path().join("b")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
