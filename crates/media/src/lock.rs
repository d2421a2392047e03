//! The owner's lock of a directory, and the note that says which process the owner is.
//!
//! ```text
//!   the directory   flock: one owner, or several readers           leaves no trace, cannot be deleted
//!   a file of it    flock: of the process that writes this file     for those that write beside the owner, and for hard links
//!   file `lock`     the owner's process id, flocked by the owner    for people, and for messages
//! ```
//!
//! The descriptors of all three stand in the table of a thread apart (`apart.rs`), which this file calls the keeper. So a lock ends when the
//! value that stands for it is dropped, when the process ends, and at `execve`; not when the program closes descriptors, and no forked child
//! has a share of it.
//!
//! The keeper also looks, ten times a second, at whether the names in the directory still lead to the files that its owner has open. Renaming
//! the directory changes nothing of that: the files go with it, and so does the lock. Removing or replacing a file does.
//!
//! What must always hold: while one process holds the lock no other gets it, whatever is done to file `lock`; locking writes nothing
//! (but where the file system locks no directories); a file `lock` of somebody else is never written; no process number decides anything.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::directory::{Directory, LOCK, result};
use crate::{Error, Result, apart, holder};

/// Between two looks of the keeper at the names.
const LOOK: Duration = Duration::from_millis(100);
/// Between two tries to get a lock that is waited for.
const TRY: Duration = Duration::from_millis(10);
/// A process that has been stopped for so long will not end what it does; one that is traced is stopped for moments.
const STOPPED: Duration = Duration::from_millis(300);
/// Waiting for so long is worth a word.
const LONG: Duration = Duration::from_secs(2);

/// A lock of a medium, let go when this is dropped.
pub trait Lock: Send + Sync {
    /// Writes the process id into file `lock`, and locks that for as long as the number is true. A courtesy to those who find the pool
    /// taken: where it cannot be done, on a full disk for instance, there is no note.
    fn sign(&self) {}
    /// Locks region `name` too, for the process that writes it; a [lock of a reader](crate::Medium::lock_to_read) is one here as well. Waits
    /// for another process that has it, not longer than `patience`, and not for one that is stopped. `whose` says in a message who that is.
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
    /// Fails if one of the [watched](Self::watch) names was found to lead elsewhere, or to nothing: within some 100 ms of that. Cheap.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// [`check`](Self::check) with a look now.
    fn look(&self) -> Result<()> {
        Ok(())
    }
}

impl Lock for () {}

/// A lock whose descriptors a thread keeps.
struct Held {
    /// In the program's table: for looks by the thread that wants to know, as long as the program leaves it alone.
    directory: Directory,
    /// Both are left alone in a forked child, where that thread is not.
    requests: ManuallyDrop<Sender<Request>>,
    keeper: ManuallyDrop<JoinHandle<()>>,
    process: u32,
    watched: Arc<Watched>,
}

type Request = Box<dyn FnOnce(&mut Table) + Send>;

/// The names that must lead to the files that the owner has open.
#[derive(Debug, Default)]
struct Watched {
    /// Names, with device and number of the file that each leads to.
    names: Mutex<Vec<(String, (u64, u64))>>,
    is_gone: AtomicBool,
    /// The first that was found to lead elsewhere.
    gone: Mutex<String>,
}

impl Watched {
    fn is_empty(&self) -> bool {
        locked(&self.names).is_empty()
    }

    fn add(&self, directory: &Directory, names: Vec<String>) -> Result<()> {
        for name in names {
            let status = directory.status(&name)?.ok_or_else(|| Error::NotFound { location: directory.location(&name) })?;
            locked(&self.names).push((name, (status.st_dev, status.st_ino)));
        }
        Ok(())
    }

    fn look(&self, directory: &Directory) {
        // Where nothing can be said, nothing is: the medium's own calls fail if it has failed.
        let leads_elsewhere = |(name, file): &&(String, (u64, u64))| match directory.status(name) {
            Ok(Some(status)) => (status.st_dev, status.st_ino) != *file,
            Ok(None) => true,
            Err(_) => false,
        };
        if let Some((name, _)) = locked(&self.names).iter().find(leads_elsewhere) {
            *locked(&self.gone) = directory.location(name);
            self.is_gone.store(true, Release);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the keeper has.
struct Table {
    directory: Directory,
    how: libc::c_int,
    held: Vec<(String, File)>,
    watched: Arc<Watched>,
}

impl Directory {
    /// Takes the lock, or fails with [`Error::Busy`].
    ///
    /// It is the kernel's lock of the directory itself: removing a file that looks like a stale note of a process lets no second owner in.
    /// Some network file systems lock no directories; there it is the lock of file `lock`.
    pub fn lock(&self) -> Result<Box<dyn Lock>> {
        let note = self.open_note()?;
        if let Some(mut note) = note {
            self.refuse_foreign(&mut note)?;
        }
        let held = Held::start(self, libc::LOCK_EX)?;
        if held.ask(Table::lock)? { Ok(Box::new(held)) } else { Err(self.busy()) }
    }

    /// Takes the lock beside other readers, without leaving a trace. Where directories cannot be locked and there is no lock file, no
    /// process has ever owned the pool, or a copy was made without it: nothing to take.
    pub fn lock_to_read(&self) -> Result<Box<dyn Lock>> {
        let held = Held::start(self, libc::LOCK_SH)?;
        if held.ask(Table::lock)? { Ok(Box::new(held)) } else { Err(self.busy()) }
    }

    /// Takes the lock of file `name` alone, as [`Lock::take`] does, for a process that writes it beside the owner.
    pub fn lock_file(&self, name: &str, patience: Duration, whose: &str) -> Result<Box<dyn Lock>> {
        let held = Held::start(self, libc::LOCK_EX)?;
        held.take(name, patience, whose)?;
        Ok(Box::new(held))
    }

    /// Whether `file` could be locked.
    fn flock(&self, file: &File, how: libc::c_int) -> Result<bool> {
        // SAFETY: a call on a descriptor that we own.
        match result(unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) }) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
            Err(e) => Err(Error::from_io(self.path().display().to_string(), "locking", 0, e)),
        }
    }

    /// The error for a lock that another has. The number in file `lock` is believed only while its writer holds it, and says little where it
    /// is of another PID namespace; without it the kernel's table of locks is asked.
    fn busy(&self) -> Error {
        let signed = |mut file: File| {
            let mut text = String::new();
            let held = matches!(self.flock(&file, libc::LOCK_SH), Ok(false));
            (held && file.read_to_string(&mut text).is_ok()).then_some(text)
        };
        let text = self.open_note().ok().flatten().and_then(signed).unwrap_or_default();
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

    /// File `lock`, if it is there. Nothing is waited for: a FIFO may have that name.
    fn open_note(&self) -> Result<Option<File>> {
        let file = match self.open_at(LOCK, libc::O_RDONLY | libc::O_NONBLOCK) {
            Ok(file) => file,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let status = file.metadata().map_err(|e| Error::from_io(self.location(LOCK), "reading the status", 0, e))?;
        if status.is_file() { Ok(Some(file)) } else { Err(Error::NotRegular { location: self.location(LOCK) }) }
    }

    /// A file `lock` that holds anything but numbers is not ours. The note is never synced: a power cut can leave zeros of it.
    fn refuse_foreign(&self, note: &mut File) -> Result<()> {
        let mut text = Vec::new();
        let status = note.metadata().map_err(|e| Error::from_io(self.location(LOCK), "reading the status", 0, e))?;
        if !status.is_file() {
            return Err(Error::NotRegular { location: self.location(LOCK) });
        }
        note.take(64).read_to_end(&mut text).map_err(|e| Error::from_io(self.location(LOCK), "reading", 0, e))?;
        if text.len() < 64 && text.iter().all(|b| b.is_ascii_digit() || b.is_ascii_whitespace() || *b == 0) {
            return Ok(());
        }
        let what = "is a file of something else than Towa; choose another directory, or move it away".into();
        Err(Error::Unsupported { location: self.location(LOCK), what })
    }
}

fn name_of(pid: u32) -> String {
    if pid == std::process::id() { format!("this process ({pid})") } else { format!("process {pid}") }
}

/// The number of the PID namespace that this process is in.
fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|status| status.ino())
}

impl Held {
    /// Starts a keeper that has nothing yet.
    fn start(directory: &Directory, how: libc::c_int) -> Result<Held> {
        let path = directory.path().to_owned();
        let location = path.display().to_string();
        let cannot = |e| Error::from_io(location.clone(), "starting the thread that keeps the lock", 0, e);
        let watched = Arc::<Watched>::default();
        let (requests, asked) = channel();
        let (theirs, theirs_path) = (Arc::clone(&watched), path.clone());
        let work = move |mut given: Vec<OwnedFd>| {
            let handle = given.pop().map(|fd| Directory::of(theirs_path, fd.into()));
            if let Some(Ok(directory)) = handle {
                Table { directory, how, held: Vec::new(), watched: theirs }.keep(&asked);
            }
        };
        let handle = directory.handle.try_clone().map_err(cannot)?;
        let own = directory.handle.try_clone().map_err(cannot)?;
        let keeper = apart::spawn("towa-lock", vec![handle.into()], work).map_err(cannot)?;
        Ok(Held {
            directory: Directory::of(path, own)?,
            requests: ManuallyDrop::new(requests),
            keeper: ManuallyDrop::new(keeper),
            process: std::process::id(),
            watched,
        })
    }

    fn location(&self) -> String {
        self.directory.path().display().to_string()
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Has the keeper do `what`.
    fn ask<R: Send + 'static>(&self, what: impl FnOnce(&mut Table) -> Result<R> + Send + 'static) -> Result<R> {
        if self.is_forked() {
            let what = "belongs to the process that opened it, not to a child that it forked; open it in the child".into();
            return Err(Error::Unsupported { location: self.location(), what });
        }
        let (answer, answered) = sync_channel(1);
        let sent = self.requests.send(Box::new(move |table| drop(answer.send(what(table)))));
        let lost = || Error::from_io(self.location(), "asking the thread that keeps the lock", 0, io::Error::other("it has ended"));
        sent.ok().and_then(|()| answered.recv().ok()).ok_or_else(lost)?
    }

    /// The process that has file `name`.
    fn holder_of(&self, name: &str) -> Option<u32> {
        let name = name.to_owned();
        let status = self.ask(move |table| table.directory.status(&name)).ok()??;
        holder::of(status.st_dev, status.st_ino, None)
    }

    /// The error for a file which another process holds. `whose`: what process that is.
    fn held_by_another(&self, pid: Option<u32>, is_stopped: bool, whose: &str) -> Error {
        let which = match (pid, is_stopped) {
            (Some(pid), false) => name_of(pid),
            (Some(pid), true) => format!("process {pid}, which is stopped: let it go on or kill it"),
            (None, _) => "another process".into(),
        };
        let holder = if whose.is_empty() { which } else { format!("{whose} ({which})") };
        Error::Busy { location: self.location(), holder }
    }
}

impl Lock for Held {
    fn sign(&self) {
        let _ = self.ask(|table| {
            table.sign();
            Ok(())
        });
    }

    fn take(&self, name: &str, patience: Duration, whose: &str) -> Result<()> {
        let began = Instant::now();
        let (mut stopped_since, mut was_said) = (None, false);
        while !self.try_take(name)? {
            let pid = self.holder_of(name);
            let is_stopped = pid.is_some_and(holder::is_stopped);
            let stopped = is_stopped && stopped_since.get_or_insert_with(Instant::now).elapsed() >= STOPPED;
            if !is_stopped {
                stopped_since = None;
            }
            if stopped || began.elapsed() >= patience && (!is_stopped || patience < STOPPED) {
                return Err(self.held_by_another(pid, is_stopped, whose));
            }
            if began.elapsed() >= LONG && !std::mem::replace(&mut was_said, true) {
                log::warn!("waits: {}", self.held_by_another(pid, is_stopped, whose));
            }
            std::thread::sleep(TRY.min(patience));
        }
        Ok(())
    }

    fn try_take(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.ask(move |table| table.try_take(&name))
    }

    fn give_back(&self, name: &str) {
        let name = name.to_owned();
        let _ = self.ask(move |table| {
            table.give_back(&name);
            Ok(())
        });
    }

    fn watch(&self, names: &[&str]) -> Result<()> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.ask(move |table| table.watched.add(&table.directory, names))
    }

    fn check(&self) -> Result<()> {
        if !self.watched.is_gone.load(Acquire) {
            return Ok(());
        }
        let location = locked(&self.watched.gone).clone();
        Err(Error::Io { location, doing: "looking at the files of the open pool", source: io::Error::other(GONE) })
    }

    fn look(&self) -> Result<()> {
        if self.is_forked() || self.directory.handle.check().is_ok() {
            self.watched.look(&self.directory);
        } else {
            self.ask(|table| {
                table.watched.look(&table.directory);
                Ok(())
            })?;
        }
        self.check()
    }
}

const GONE: &str = "this name was removed, or leads to another file now: what is written to the pool is lost; close it, and open the pool that is \
                    there, or create one";

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // SAFETY: taken once: this is dropped now. The keeper ends when there is nobody left to ask it.
        let keeper = unsafe {
            ManuallyDrop::drop(&mut self.requests);
            ManuallyDrop::take(&mut self.keeper)
        };
        let _ = keeper.join();
    }
}

impl Table {
    /// The keeper's work: does what it is asked, and looks at the names.
    fn keep(mut self, asked: &Receiver<Request>) {
        loop {
            let request = if self.watched.is_empty() {
                asked.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                asked.recv_timeout(LOOK)
            };
            match request {
                Ok(request) => request(&mut self),
                Err(RecvTimeoutError::Timeout) => self.watched.look(&self.directory),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Locks the directory, or where the file system cannot lock directories, file `lock`; whether it was to be had.
    fn lock(&mut self) -> Result<bool> {
        let directory = self.directory.open_at(".", libc::O_RDONLY | libc::O_DIRECTORY)?;
        match self.directory.flock(&directory, self.how) {
            Ok(locked) => {
                self.held.push((".".into(), directory));
                return Ok(locked);
            }
            Err(Error::Io { source, .. })
                if matches!(source.raw_os_error(), Some(libc::EBADF | libc::EINVAL | libc::EOPNOTSUPP)) => {}
            Err(e) => return Err(e),
        }
        let file = if self.how == libc::LOCK_EX {
            self.directory.open_at(LOCK, libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK)?
        } else {
            match self.directory.open_note()? {
                Some(file) => file,
                None => return Ok(true),
            }
        };
        let locked = self.directory.flock(&file, self.how)?;
        self.held.push((LOCK.into(), file));
        Ok(locked)
    }

    fn sign(&mut self) {
        if self.how != libc::LOCK_EX {
            return;
        }
        let Ok(mut file) = self.directory.open_at(LOCK, libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK) else { return };
        if self.directory.refuse_foreign(&mut file).is_err() {
            return;
        }
        // Where the lock is this file's, it is held already by another descriptor.
        let _ = self.directory.flock(&file, libc::LOCK_EX);
        let namespace = pid_namespace().map_or(String::new(), |number| format!(" {number}"));
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}{namespace}\n", std::process::id()));
        self.held.push(("note".into(), file));
    }

    fn try_take(&mut self, name: &str) -> Result<bool> {
        if self.held.iter().any(|(held, _)| held == name) {
            return Ok(true);
        }
        let access = if self.how == libc::LOCK_EX { libc::O_RDWR } else { libc::O_RDONLY };
        let file = self.directory.open_at(name, access | libc::O_NONBLOCK)?;
        if !self.directory.flock(&file, self.how)? {
            return Ok(false);
        }
        self.held.push((name.into(), file));
        Ok(true)
    }

    fn give_back(&mut self, name: &str) {
        self.held.extract_if(.., |(held, _)| held == name).for_each(unlock);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.held.drain(..).for_each(unlock);
    }
}

/// Closing alone would not end a lock whose descriptor stood in the program's table when a child was forked.
fn unlock((_, file): (String, File)) {
    // SAFETY: a call on a descriptor that we own.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
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
        assert_eq!(holder, format!("this process ({})", std::process::id()));
        drop(readers);
    }

    /// It is never synced: that is what a power cut can leave of it.
    #[test]
    fn a_note_of_zeros_is_our_own() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(LOCK), [0; 20]).unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let held = directory.lock().unwrap();
        held.sign();
        let refused = directory.lock().map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains(&format!("this process ({})", std::process::id())), "{refused}");
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
        assert_eq!(std::fs::read(&lock).unwrap(), b"mine");
    }

    #[test]
    fn a_lock_that_is_no_file_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let lock = dir.path().join(LOCK);
        let refused = || {
            assert!(matches!(directory.lock(), Err(Error::NotRegular { .. })));
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
