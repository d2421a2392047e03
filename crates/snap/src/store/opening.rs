//! Opening what somebody else may have put into a store.
//!
//! What must always hold: nothing is opened but a directory or a regular file of just that name. No link is followed, a named pipe does
//! not make the tool wait, and a device is never opened, as that alone may do something.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::{failed, not_usable};
use crate::Result;

/// Opens directory `path`; `None` if there is nothing of that name.
pub(super) fn folder(path: &Path) -> Result<Option<File>> {
    folder_in(CWD, path, path)
}

/// Opens directory `name`, which is at `path`, of the directory `of`; `None` if there is nothing of that name.
pub(super) fn folder_in(of: BorrowedFd<'_>, name: &Path, path: &Path) -> Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(of, name, flags, Mode::empty()) {
        Ok(folder) => Ok(Some(folder.into())),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => Err(not_usable(path, "is not a directory")),
        Err(e) => Err(failed("opening", path, e.into())),
    }
}

/// Opens regular file `path` to read; `None` if there is nothing of that name.
pub(super) fn regular(path: &Path) -> Result<Option<File>> {
    regular_in(CWD, path, path, OFlags::RDONLY)
}

/// Opens regular file `name`, which is at `path`, of the directory `of`; `None` if there is nothing of that name.
pub(super) fn regular_in(of: BorrowedFd<'_>, name: &Path, path: &Path, access: OFlags) -> Result<Option<File>> {
    // First only the name, which touches nothing; then what it has led to.
    let found = match openat(of, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTDIR) => return Err(not_usable(path, "is missing")),
        Err(e) => return Err(failed("opening", path, e.into())),
    };
    let status = fstat(&found).map_err(|e| failed("reading the status of", path, e.into()))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(not_usable(path, "is not a regular file"));
    }
    let again = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    match openat(CWD, again, access | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(e) => Err(failed("opening", path, io::Error::from(e))),
    }
}
