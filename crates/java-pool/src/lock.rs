//! Who has the file open: the Java door locks all of it (F_OFD_SETLK: the lock is the open file's, so no other close of it ends it).
//!
//! What must always hold: asking changes nothing for anybody. The lock taken while the file is checked is shared, and belongs to the
//! open file, not to the process: other checks go on beside it, an owner cannot come in, and it ends with the file's closing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Somebody who has locked the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its number, as it knows itself: in a container beside this one another may have it.
    pub pid: Option<u32>,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// A lock of all of a file.
fn whole(kind: libc::c_int) -> libc::flock {
    // SAFETY: a plain structure of numbers, for which zeros are values. (On some systems it has fields that have no names.)
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

fn ask(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the kernel writes to the structure, which is ours, at most.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Who has locked the file against reading: an owner, but nobody who checks it.
pub(crate) fn owner(file: &File) -> Option<Owner> {
    let mut lock = whole(libc::F_RDLCK);
    // Asked in the name of the open file: a lock that this very process has counts, too.
    ask(file, libc::F_OFD_GETLK, &mut lock).ok()?;
    let is_locked = lock.l_type != libc::F_UNLCK as libc::c_short;
    is_locked.then(|| Owner { pid: u32::try_from(lock.l_pid).ok().filter(|pid| *pid > 0) })
}

/// Keeps owners out until the file is closed. `Err`: there is one. Where a file system has no locks, nobody is kept out.
pub(crate) fn keep_owners_out(file: &File) -> Result<(), Owner> {
    match ask(file, libc::F_OFD_SETLK, &mut whole(libc::F_RDLCK)) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Err(owner(file).unwrap_or(Owner { pid: None })),
        _ => Ok(()),
    }
}
