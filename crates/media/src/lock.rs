//! The owner's lock of a directory, and the note that says who he is.
//!
//! ```text
//!   the directory   flock: one owner, or several readers       leaves no trace, cannot be deleted
//!   file `lock`     the owner's process id, flocked by him     for people, and for messages
//! ```
//!
//! What must always hold: while one process holds the lock no other gets it, whatever is done to file `lock`; locking writes nothing
//! (but where the file system locks no directories); a file `lock` of somebody else is never written.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};

use crate::directory::{Directory, LOCK, result};
use crate::{Error, Result};

/// A lock, let go when dropped.
#[derive(Debug)]
struct Held {
    file: File,
    /// Whoever took it. A child that was forked has a copy, and its end must not be the end of the lock.
    process: u32,
}

impl Held {
    fn new(file: File) -> Held {
        Held { file, process: std::process::id() }
    }
}

impl Drop for Held {
    /// Closing is not enough: between `fork` and `exec` of another thread there is a copy of the descriptor, which would keep the lock.
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: a call on a descriptor that we own.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
    }
}

impl Directory {
    /// Takes the lock, or fails with [`Error::Busy`].
    ///
    /// It is the kernel's lock of the directory itself: whoever removes a file that looks like a stale note of a process cannot let a
    /// second owner in. Some network file systems lock no directories; there it is the lock of file `lock`.
    pub fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        let note = self.open_note()?;
        if let Some(mut note) = note {
            self.refuse_foreign(&mut note)?;
        }
        match self.lock_self(libc::LOCK_EX)? {
            Some(held) => Ok(Box::new(held)),
            None => {
                let file = self.open_at(LOCK, libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK)?;
                if self.flock(&file, libc::LOCK_EX)? { Ok(Box::new(Held::new(file))) } else { Err(self.busy()) }
            }
        }
    }

    /// Takes the lock beside other readers, without leaving a trace. Where directories cannot be locked and there is no lock file,
    /// nobody has ever owned the pool, or a copy was made without it: nothing to take.
    pub fn lock_to_read(&self) -> Result<Box<dyn Send + Sync>> {
        if let Some(held) = self.lock_self(libc::LOCK_SH)? {
            return Ok(Box::new(held));
        }
        match self.open_note()? {
            Some(file) if !self.flock(&file, libc::LOCK_SH)? => Err(self.busy()),
            Some(file) => Ok(Box::new(Held::new(file))),
            None => Ok(Box::new(())),
        }
    }

    /// Writes the process id into file `lock`, and locks it for as long as the number is true. A courtesy to whoever finds the pool
    /// taken: where it cannot be done, on a full disk for instance, we do without.
    pub fn sign(&self) -> Box<dyn Send + Sync> {
        let Ok(mut file) = self.open_at(LOCK, libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK) else { return Box::new(()) };
        if self.refuse_foreign(&mut file).is_err() {
            return Box::new(());
        }
        // Where the lock is this file's, we hold it already by another descriptor.
        let _ = self.flock(&file, libc::LOCK_EX);
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
        Box::new(Held::new(file))
    }

    /// Locks the directory; `None` where the file system cannot.
    fn lock_self(&self, how: libc::c_int) -> Result<Option<Held>> {
        // A descriptor of its own, so that it conflicts with other locks of this process.
        // SAFETY: the name is NUL-terminated; the descriptor returned is ours alone.
        let fd =
            unsafe { libc::openat(self.handle.as_raw_fd(), c".".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(Error::from_io(self.path().display().to_string(), "opening the directory", 0, io::Error::last_os_error()));
        }
        // SAFETY: `fd` was just opened and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        match self.flock(&file, how) {
            Ok(true) => Ok(Some(Held::new(file))),
            Ok(false) => Err(self.busy()),
            Err(Error::Io { source, .. })
                if matches!(source.raw_os_error(), Some(libc::EBADF | libc::EINVAL | libc::EOPNOTSUPP)) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether the lock was to be had.
    fn flock(&self, file: &File, how: libc::c_int) -> Result<bool> {
        // SAFETY: a call on a descriptor that we own.
        match result(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) }) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
            Err(e) => Err(Error::from_io(self.path().display().to_string(), "locking", 0, e)),
        }
    }

    /// The error for a lock that somebody has. The number in file `lock` is believed only while its writer holds it.
    fn busy(&self) -> Error {
        let signed = |mut file: File| {
            let mut text = String::new();
            let held = matches!(self.flock(&file, libc::LOCK_SH), Ok(false));
            (held && file.read_to_string(&mut text).is_ok()).then(|| text.trim().parse::<u32>().ok())?
        };
        let holder = match self.open_note().ok().flatten().and_then(signed) {
            Some(pid) if pid == std::process::id() => format!("this process ({pid})"),
            Some(pid) => format!("process {pid}"),
            None => "another process".to_owned(),
        };
        Error::Busy { location: self.path().display().to_string(), holder }
    }

    /// File `lock`, if it is there. Nothing is waited for: somebody may have put a FIFO there.
    fn open_note(&self) -> Result<Option<File>> {
        let file = match self.open_at(LOCK, libc::O_RDONLY | libc::O_NONBLOCK) {
            Ok(file) => file,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let status = file.metadata().map_err(|e| Error::from_io(self.location(LOCK), "reading the status", 0, e))?;
        if status.is_file() { Ok(Some(file)) } else { Err(Error::NotRegular { location: self.location(LOCK) }) }
    }

    /// A file `lock` that holds anything but a number is somebody else's.
    fn refuse_foreign(&self, note: &mut File) -> Result<()> {
        let mut text = Vec::new();
        let status = note.metadata().map_err(|e| Error::from_io(self.location(LOCK), "reading the status", 0, e))?;
        if !status.is_file() {
            return Err(Error::NotRegular { location: self.location(LOCK) });
        }
        note.take(32).read_to_end(&mut text).map_err(|e| Error::from_io(self.location(LOCK), "reading", 0, e))?;
        if text.len() < 32 && text.iter().all(|b| b.is_ascii_digit() || b.is_ascii_whitespace()) {
            return Ok(());
        }
        let what = "is a file of something else than Towa; choose another directory, or move it away".into();
        Err(Error::Unsupported { location: self.location(LOCK), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn removing_the_lock_file_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (Directory::open(dir.path(), false).unwrap(), Directory::open(dir.path(), false).unwrap());
        let held = (one.lock().unwrap(), one.sign());
        let refused = two.lock().map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains(&format!("this process ({})", std::process::id())), "{refused}");
        std::fs::remove_file(dir.path().join(LOCK)).unwrap();
        assert!(matches!(two.lock(), Err(Error::Busy { .. })));
        assert!(matches!(two.lock_to_read(), Err(Error::Busy { .. })));
        drop(held);
        two.lock().unwrap();
    }

    /// As while another thread starts a program: its child has our descriptors until it calls `exec`.
    #[test]
    fn a_copy_in_a_forked_child_keeps_nothing_and_lets_go_of_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let held = (directory.lock().unwrap(), directory.sign());
        // SAFETY: the children make system calls only: the first drops its copies (a look at the process number, flock, close), the
        // second waits to be killed. Both are waited for.
        unsafe {
            let drops = libc::fork();
            if drops == 0 {
                drop(held);
                libc::_exit(0);
            }
            libc::waitpid(drops, std::ptr::null_mut(), 0);
            assert!(matches!(directory.lock(), Err(Error::Busy { .. })), "a child's end was the end of the lock");
            let keeps = libc::fork();
            if keeps == 0 {
                libc::pause();
                libc::_exit(0);
            }
            drop(held);
            let again = directory.lock().map(|_| ());
            libc::kill(keeps, libc::SIGKILL);
            libc::waitpid(keeps, std::ptr::null_mut(), 0);
            again.unwrap();
        }
    }

    #[test]
    fn readers_share_and_name_no_process_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK), "1").unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let readers = (directory.lock_to_read().unwrap(), directory.lock_to_read().unwrap());
        let Err(Error::Busy { holder, .. }) = directory.lock() else { panic!("readers hold it") };
        assert_eq!(holder, "another process");
        drop(readers);
    }

    #[test]
    fn locking_leaves_no_trace_and_touches_no_file_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        drop(directory.lock().unwrap());
        drop(directory.lock_to_read().unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let lock = dir.path().join(LOCK);
        std::fs::write(&lock, "mine").unwrap();
        let refused = directory.lock().map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("something else"), "{refused}");
        drop(directory.sign());
        assert_eq!(std::fs::read(&lock).unwrap(), b"mine");
    }

    #[test]
    fn a_lock_that_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let lock = dir.path().join(LOCK);
        let refused = || {
            assert!(matches!(directory.lock(), Err(Error::NotRegular { .. })));
            drop(directory.sign());
        };
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "1234").unwrap();
        symlink("victim", &lock).unwrap();
        refused();
        assert_eq!(std::fs::read(&victim).unwrap(), b"1234");
        std::fs::remove_file(&lock).unwrap();
        let name = CString::new(lock.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is NUL-terminated.
        result(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }).unwrap();
        refused();
        std::fs::remove_file(&lock).unwrap();
        std::fs::create_dir(&lock).unwrap();
        refused();
    }
}
