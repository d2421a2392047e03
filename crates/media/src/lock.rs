//! The owner's lock of a directory, and the note that says which process the owner is.
//!
//! ```text
//!   the directory   flock: one owner, or several readers           leaves no trace, cannot be deleted; decides while a pool is made
//!   a file of it    flock: of the owner, or of who writes this file  decides once the pool is there; for hard links, too
//!   file `lock`     the owner's process id, flocked by the owner    for people, and for messages
//! ```
//!
//! Whoever can read a directory can lock it. The files of a pool are opened by those alone who may use the pool. So a
//! lock of the directory that another user holds keeps no owner from a pool that is there (`lock_by`); it can keep a
//! pool from being made in that very directory, and another directory is one `mkdir` away.
//!
//! `keeper.rs` says how they are kept.
//!
//! What must always hold: while one process holds the lock no other gets it, whatever is done to file `lock`; locking
//! writes nothing (but where the file system locks no directories); a file `lock` of somebody else is never written;
//! no process number decides anything.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::directory::{Directory, LOCK, result};
use crate::keeper::{Held, Table};
use crate::{Error, PAGE, Result, holder};

/// A lock of a medium, let go when this is dropped.
pub trait Lock: Send + Sync {
    /// Writes the process id into file `lock`, and locks that for as long as the number is true. A courtesy to those
    /// who find the pool taken: where it cannot be done, on a full disk for instance, there is no note.
    fn sign(&self) {}
    /// Locks region `name` too, for the process that writes it; a [lock of a reader](crate::Medium::lock_to_read) is
    /// one here as well. Waits for another process that has it, not longer than `patience`, and not for one that is
    /// stopped. `whose` says in a message who that is.
    ///
    /// # Errors
    /// [`Error::Busy`], naming the process where it can be seen.
    fn take(&self, _name: &str, _patience: Duration, _whose: &str) -> Result<()> {
        Ok(())
    }
    /// [`take`](Self::take) without waiting; whether it was to be had.
    fn try_take(&self, _name: &str) -> Result<bool> {
        Ok(true)
    }
    /// Lets go of region `name`.
    fn give_back(&self, _name: &str) {}
    /// From now on `names` must lead to the files that they lead to now.
    fn watch(&self, _names: &[&str]) -> Result<()> {
        Ok(())
    }
    /// Fails if one of the [watched](Self::watch) names was found to lead elsewhere, or to nothing: within some 100
    /// ms of that. Cheap.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// [`check`](Self::check) with a look now.
    fn look(&self) -> Result<()> {
        Ok(())
    }
}

impl Lock for () {}
impl Directory {
    /// Takes the lock, or fails with [`Error::Busy`].
    ///
    /// It is the kernel's lock of the directory itself: removing a file that looks like a stale note of a process
    /// lets no second owner in. Some network file systems lock no directories; there it is the lock of file `lock`.
    pub fn lock(&self) -> Result<Box<dyn Lock>> {
        self.check_owner()?;
        self.refuse_foreign_note()?;
        let held = Held::start(self, libc::LOCK_EX)?;
        if held.ask(Table::lock)? { Ok(Box::new(held)) } else { Err(self.busy()) }
    }

    /// Takes the lock beside other readers, without leaving a trace. Where directories cannot be locked and there is
    /// no lock file, no process has ever owned the pool, or a copy was made without it: nothing to take. Where a file `lock` would keep
    /// every owner out, readers are told the same; one that cannot be read here says nothing.
    pub fn lock_to_read(&self) -> Result<Box<dyn Lock>> {
        if let Err(e @ (Error::NotRegular { .. } | Error::Unsupported { .. })) = self.refuse_foreign_note() {
            return Err(e);
        }
        let held = Held::start(self, libc::LOCK_SH)?;
        if held.ask(Table::lock)? { Ok(Box::new(held)) } else { Err(self.busy()) }
    }

    /// [`lock`](Self::lock), or as a reader [`lock_to_read`](Self::lock_to_read), of a pool that is there, whose owner
    /// has the lock of file `name` for its whole stay: that lock decides. `whose`: who has it, if not this directory's
    /// owner. Where there is no such file, it is the directory's lock alone.
    pub fn lock_by(&self, name: &str, reads: bool, whose: &str) -> Result<Box<dyn Lock>> {
        if !reads {
            self.check_owner()?;
            self.refuse_foreign_note()?;
        }
        let held = Held::start(self, if reads { libc::LOCK_SH } else { libc::LOCK_EX })?;
        let has_directory = held.ask(Table::lock)?;
        if !self.exists(name)? {
            return if has_directory { Ok(Box::new(held)) } else { Err(self.busy()) };
        }
        match held.take(name, Duration::ZERO, if has_directory { whose } else { "" }) {
            Err(Error::Busy { .. }) if self.noted().is_some() => return Err(self.busy()),
            other => other?,
        }
        if !has_directory {
            // Not an owner: owners have the file's lock before the file has this name.
            log::warn!(
                "{}: another process has the lock of the directory, but not the pool, which is opened",
                self.path().display()
            );
        }
        Ok(Box::new(held))
    }

    /// Takes the lock of file `name` alone, as [`Lock::take`] does, for a process that writes it beside the owner.
    pub fn lock_file(&self, name: &str, patience: Duration, whose: &str) -> Result<Box<dyn Lock>> {
        self.check_owner()?;
        let held = Held::start(self, libc::LOCK_EX)?;
        held.take(name, patience, whose)?;
        Ok(Box::new(held))
    }

    /// Whether `file` could be locked.
    pub(crate) fn flock(&self, file: &File, how: libc::c_int) -> Result<bool> {
        // SAFETY: a call on a descriptor that we own.
        match result(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) }) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
            Err(e) => Err(Error::from_io(self.path().display().to_string(), "locking", 0, e)),
        }
    }

    /// The owner's note, while its writer holds it.
    fn noted(&self) -> Option<String> {
        let signed = |mut file: File| {
            let mut text = String::new();
            let held = matches!(self.flock(&file, libc::LOCK_SH), Ok(false));
            (held && file.read_to_string(&mut text).is_ok()).then_some(text)
        };
        self.open_note().ok().flatten().and_then(signed)
    }

    /// The error for a lock that another has. The number in file `lock` is believed only while its writer holds it,
    /// and says little where it is of another PID namespace; without it the kernel's table of locks is asked.
    fn busy(&self) -> Error {
        let text = self.noted().unwrap_or_default();
        let mut numbers = text.split_whitespace().map(str::parse::<u64>);
        let (pid, namespace) = (numbers.next().and_then(|n| n.ok()), numbers.next().and_then(|n| n.ok()));
        let holder = match (pid, namespace) {
            (Some(pid), Some(namespace)) if pid_namespace().is_some_and(|here| here != namespace) => {
                format!("process {pid} of another container (PID namespace {namespace})")
            }
            (Some(pid), _) => name_of(pid as u32),
            _ => {
                let status = self.handle.metadata().ok();
                let pid = status.and_then(|status| holder::of(status.dev(), status.ino(), None));
                pid.map_or("another process".into(), name_of)
            }
        };
        Error::Busy { location: self.path().display().to_string(), holder }
    }

    /// File `lock`, if it is there. Nothing is waited for, a FIFO may have that name; and reading it leaves no trace.
    pub(crate) fn open_note(&self) -> Result<Option<File>> {
        let file = match self.open_without_trace(LOCK) {
            Ok(file) => file,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let status = file.metadata().map_err(|e| Error::from_io(self.location(LOCK), "reading the status", 0, e))?;
        if status.is_file() { Ok(Some(file)) } else { Err(Error::NotRegular { location: self.location(LOCK) }) }
    }

    fn refuse_foreign_note(&self) -> Result<()> {
        self.open_note()?.map_or(Ok(()), |mut note| self.refuse_foreign(&mut note))
    }

    /// A file `lock` that holds anything but numbers is not ours. The note is never synced: a power cut can leave
    /// zeros of it, or of the page that it is in.
    pub(crate) fn refuse_foreign(&self, note: &mut File) -> Result<()> {
        let mut text = Vec::new();
        let status = note.metadata().map_err(|e| Error::from_io(self.location(LOCK), "reading the status", 0, e))?;
        if !status.is_file() {
            return Err(Error::NotRegular { location: self.location(LOCK) });
        }
        note.take(PAGE as u64 + 1).read_to_end(&mut text).map_err(|e| Error::from_io(self.location(LOCK), "reading", 0, e))?;
        let is_number = text.len() < 64 && text.iter().all(|b| b.is_ascii_digit() || b.is_ascii_whitespace() || *b == 0);
        if is_number || text.len() <= PAGE && text.iter().all(|b| *b == 0) {
            return Ok(());
        }
        let what = "is a file of something else than Towa; choose another directory, or move it away".into();
        Err(Error::Unsupported { location: self.location(LOCK), what })
    }
}

pub(crate) fn name_of(pid: u32) -> String {
    let user = || std::fs::metadata(format!("/proc/{pid}")).ok().map(|status| status.uid());
    // SAFETY: asks, and changes nothing.
    let me = unsafe { libc::geteuid() };
    match user() {
        _ if pid == std::process::id() => format!("this process ({pid})"),
        Some(user) if user != me => format!("process {pid} of user {user}"),
        _ => format!("process {pid}"),
    }
}

/// The number of the PID namespace that this process is in.
pub(crate) fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|status| status.ino())
}
#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn removing_the_lock_file_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (Directory::open(dir.path(), false).unwrap(), Directory::open(dir.path(), false).unwrap());
        let held = one.lock().unwrap();
        held.sign();
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
        let held = directory.lock().unwrap();
        held.sign();
        // SAFETY: the children make system calls only: the first drops its copies (a look at the process number,
        // flock, close), the second waits to be killed. Both are waited for.
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

    /// As another user does who can only read the directory: a descriptor of it is enough for either kind of lock.
    #[test]
    fn a_lock_of_the_directory_alone_keeps_no_owner_from_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let directory = || Directory::open(dir.path(), false).unwrap();
        std::fs::write(dir.path().join("image"), "").unwrap();
        for how in [libc::LOCK_SH, libc::LOCK_EX] {
            let stranger = File::open(dir.path()).unwrap();
            // SAFETY: a call on a descriptor that we own.
            result(unsafe { libc::flock(stranger.as_raw_fd(), how) }).unwrap();
            assert!(matches!(directory().lock(), Err(Error::Busy { .. })), "what is not there yet is not made there");
            let reader = directory().lock_by("image", true, "").unwrap();
            assert!(matches!(directory().lock_by("image", false, ""), Err(Error::Busy { .. })), "a reader has it");
            drop(reader);
            let owner = directory().lock_by("image", false, "").unwrap();
            for reads in [false, true] {
                assert!(matches!(directory().lock_by("image", reads, ""), Err(Error::Busy { .. })));
            }
            drop(stranger);
            let second = directory().lock_by("image", false, "the owner elsewhere").map(|_| ()).unwrap_err().to_string();
            assert!(second.contains("the owner elsewhere"), "the owner does not have the directory, and wrote no note: {second}");
            owner.sign();
            let second = directory().lock_by("image", false, "the owner elsewhere").map(|_| ()).unwrap_err().to_string();
            assert!(second.contains("in use by this process"), "{second}");
            drop(owner);
            std::fs::remove_file(dir.path().join(LOCK)).unwrap();
        }
        assert!(directory().lock_by("none", false, "").is_ok());
    }

    #[test]
    fn readers_share_and_name_no_process_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK), "1").unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let readers = (directory.lock_to_read().unwrap(), directory.lock_to_read().unwrap());
        let Err(Error::Busy { holder, .. }) = directory.lock() else { panic!("readers hold it") };
        assert_eq!(holder, format!("this process ({})", std::process::id()));
        drop(readers);
    }

    /// It is never synced: that is what a power cut can leave of it.
    #[test]
    fn a_note_of_zeros_is_our_own() {
        let dir = tempfile::tempdir().unwrap();
        for len in [1, 20, 64, PAGE] {
            std::fs::write(dir.path().join(LOCK), vec![0; len]).unwrap();
            let directory = Directory::open(dir.path(), false).unwrap();
            drop(directory.lock_to_read().unwrap());
            let held = directory.lock().unwrap();
            held.sign();
            let refused = directory.lock().map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains(&format!("this process ({})", std::process::id())), "{refused}");
        }
    }

    #[test]
    fn a_file_is_locked_beside_the_owner_by_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("image"), "").unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let owner = directory.lock().unwrap();
        owner.take("image", Duration::ZERO, "").unwrap();
        let beside = || directory.lock_file("image", Duration::ZERO, "the checkpointer").map(|_| ());
        let refused = beside().unwrap_err().to_string();
        assert!(refused.contains(&format!("the checkpointer (this process ({}))", std::process::id())), "{refused}");
        owner.give_back("image");
        beside().unwrap();
        assert!(owner.try_take("image").unwrap() && beside().is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (pool, name) = (dir.path().join("pool"), dir.path().join("renamed"));
        std::fs::create_dir(&pool).unwrap();
        std::fs::write(pool.join("image"), "").unwrap();
        let held = Directory::open(&pool, false).unwrap().lock().unwrap();
        held.watch(&["image"]).unwrap();
        std::fs::rename(&pool, &name).unwrap();
        held.look().unwrap();
        std::fs::write(name.join("other"), "").unwrap();
        std::fs::rename(name.join("other"), name.join("image")).unwrap();
        let began = Instant::now();
        while held.check().is_ok() {
            assert!(began.elapsed() < Duration::from_secs(10), "not noticed without a look");
            std::thread::yield_now();
        }
        assert!(held.look().unwrap_err().to_string().contains("leads to another file"));
    }

    /// What lies behind its end cannot be written, and its mapping ends the program by SIGBUS.
    #[test]
    fn a_file_that_is_cut_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, [7; 100]).unwrap();
        let held = Directory::open(dir.path(), false).unwrap().lock().unwrap();
        held.watch(&["image"]).unwrap();
        let set_len = |len| std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(len).unwrap();
        set_len(200);
        held.look().unwrap();
        set_len(99);
        assert!(held.look().unwrap_err().to_string().contains("shorter than it was"));
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
        for asked in [directory.lock(), directory.lock_to_read()] {
            let refused = asked.map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains("something else"), "{refused}");
        }
        std::fs::write(dir.path().join("image"), "").unwrap();
        let refused = directory.lock_by("image", false, "").map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("something else"), "{refused}");
        // It comes when the lock is held already.
        std::fs::remove_file(&lock).unwrap();
        let held = directory.lock().unwrap();
        std::fs::write(&lock, "mine").unwrap();
        held.sign();
        assert_eq!(std::fs::read(&lock).unwrap(), b"mine");
    }

    #[test]
    fn a_lock_that_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let lock = dir.path().join(LOCK);
        let refused = || {
            assert!(matches!(directory.lock(), Err(Error::NotRegular { .. })));
            assert!(matches!(directory.lock_to_read(), Err(Error::NotRegular { .. })), "a reader would call it sound");
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
