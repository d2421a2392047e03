//! The lock of those who change a store: taking, removing, marking and merging exclude each other.
//!
//! What must always hold: while one holds it nobody else gets it; it goes with its holder, however that ends.

use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, OFlags};

use super::{failed, is_still, opening};
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
            let Some(file) = opening::regular_in(CWD, &path, &path, OFlags::WRONLY)? else {
                match File::options().write(true).create_new(true).mode(0o600).open(&path) {
                    Ok(_) => {}
                    Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                    Err(e) => return Err(failed("creating", &path, e)),
                }
                continue;
            };
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
