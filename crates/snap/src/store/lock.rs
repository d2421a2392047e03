//! The lock of those who change a store: taking, removing, marking and merging exclude each other.
//!
//! What must always hold: while one holds it nobody else gets it; it goes with its holder, however that ends.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{failed, is_still, not_usable};
use crate::{Error, Result};

pub(super) const LOCK: &str = "lock";

/// The lock, held.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing it would not do: a child that another thread of ours has just forked has the same lock until it execs.
        let _ = self.0.unlock();
    }
}

impl Lock {
    /// Takes the lock of the store in `dir`, or fails with [`Error::Busy`].
    pub(super) fn take(dir: &Path) -> Result<Lock> {
        let path = dir.join(LOCK);
        loop {
            let mut options = File::options();
            options.write(true).create(true).truncate(false).mode(0o600);
            let open = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path);
            let file = open.map_err(|e| match e.raw_os_error() {
                Some(libc::ELOOP | libc::ENXIO | libc::EISDIR) => not_usable(&path, "is not a regular file"),
                _ => failed("opening", &path, e),
            })?;
            match file.try_lock() {
                // Whoever takes it for a leftover and removes it must not let a second one in.
                Ok(()) if is_still(&file, &path)? => return Ok(Lock(file)),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { dir: dir.to_owned() }),
                Err(TryLockError::Error(e)) => return Err(failed("locking", &path, e)),
            }
        }
    }
}
