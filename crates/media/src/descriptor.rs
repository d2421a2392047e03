//! A file of the pool, whose descriptor any line of the program can close.
//!
//! A program that closes descriptors it does not know, as becoming a daemon by the book does, closes those of its
//! pools too; the next file that it opens gets one of these numbers. What is then written there goes into that file,
//! and closing the number closes that file. So the file behind the number is compared with the one that was opened:
//! before writes and syncs (0.2 us), and before it is closed. A close by another thread between the look and the use
//! is not noticed.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;

/// An open file, and which one it was when it was opened.
#[derive(Debug)]
pub(crate) struct Descriptor {
    file: ManuallyDrop<File>,
    device: u64,
    inode: u64,
}

impl Descriptor {
    /// Of `file`, which was opened just now.
    pub fn of(file: File) -> io::Result<Descriptor> {
        let (device, inode) = identity(&file)?;
        Ok(Descriptor { file: ManuallyDrop::new(file), device, inode })
    }

    /// Fails if the number leads to another file by now, or to none.
    pub fn check(&self) -> io::Result<()> {
        match identity(&self.file) {
            Ok(now) if now == (self.device, self.inode) => Ok(()),
            Err(e) if e.raw_os_error() != Some(libc::EBADF) => Err(e),
            _ => Err(io::Error::other(LOST)),
        }
    }
}

/// Device and inode. Nothing else is asked for: a network file system writes back all that is dirty to tell the times.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    // SAFETY: all zeros are a `statx`.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the name is NUL-terminated, and `status` is ours to fill.
    let rc = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_INO, &raw mut status) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((u64::from(status.stx_dev_major) << 32 | u64::from(status.stx_dev_minor), status.stx_ino))
}

const LOST: &str = "this program closed the descriptor of the pool's file (as a program does that closes all descriptors to become a daemon); \
                    open the pool after that";

impl Deref for Descriptor {
    type Target = File;
    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: dropped once: this is dropped now.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_number_that_leads_elsewhere_is_noticed_and_not_closed() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, other] = ["ours", "other"].map(|name| File::create(dir.path().join(name)).unwrap());
        let ours = Descriptor::of(ours).unwrap();
        ours.check().unwrap();
        let number = ours.as_raw_fd();
        // What a program does that closes the number and opens another file.
        // SAFETY: both numbers are this test's.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(ours.check().unwrap_err().to_string().contains("closed the descriptor"));
        drop(ours);
        // SAFETY: as above; the number is not used again.
        assert_eq!(unsafe { libc::close(number) }, 0, "the other file was closed");
    }
}
