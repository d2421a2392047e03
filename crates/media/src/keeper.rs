//! The thread that keeps a lock of a directory, and looks at the directory's names.
//!
//! The lock's descriptors stand in the table of a thread apart (`apart.rs`), the keeper. So a lock ends when the
//! value that stands for it is dropped, when the process ends, and at `execve`; not when the program closes
//! descriptors, and no forked child has a share of it.
//!
//! The keeper also looks, ten times a second, at whether the names in the directory still lead to the files that its
//! owner has open. Renaming the directory changes nothing of that: the files go with it, and so does the lock.
//! Removing or replacing a file does.
//!
//! What must always hold: descriptors of locks are opened by the keeper and closed by it, and stand in no other table.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::directory::{Directory, LOCK};
use crate::lock::{Lock, name_of, pid_namespace};
use crate::{Error, Result, apart, holder};

/// Between two looks of the keeper at the names.
const LOOK: Duration = Duration::from_millis(100);
/// Between two tries to get a lock that is waited for.
const TRY: Duration = Duration::from_millis(10);
/// A process that has been stopped for so long will not end what it does; one that is traced is stopped for moments.
const STOPPED: Duration = Duration::from_millis(300);
/// A name that leads to another file each time it is looked at is another process's.
const TRIES: u32 = 10;
/// Waiting for so long is worth a word.
const LONG: Duration = Duration::from_secs(2);
/// A lock whose descriptors a thread keeps.
pub(crate) struct Held {
    /// In the program's table: for looks by the thread that wants to know, as long as the program leaves it alone.
    directory: Directory,
    /// Both are left alone in a forked child, where that thread is not.
    requests: ManuallyDrop<Sender<Request>>,
    keeper: ManuallyDrop<JoinHandle<()>>,
    process: u32,
    watched: Arc<Watched>,
}

type Request = Box<dyn FnOnce(&mut Table) + Send>;

/// The names that must lead to the files that the owner has open, whose length is never less than it was.
#[derive(Debug, Default)]
struct Watched {
    names: Mutex<Vec<Name>>,
    is_gone: AtomicBool,
    /// The first that was found to lead elsewhere, or to be cut, and which of the two.
    gone: Mutex<(String, &'static str)>,
}

#[derive(Debug)]
struct Name {
    name: String,
    /// Device and number of the file that it leads to.
    file: (u64, u64),
    len: i64,
}

impl Name {
    /// What became of it, if anything did. Where nothing can be said, nothing is: the medium's own calls fail if it has failed.
    fn look(&self, directory: &Directory) -> Option<&'static str> {
        match directory.status(&self.name) {
            Ok(Some(status)) if (status.st_dev, status.st_ino) != self.file => Some(GONE),
            Ok(Some(status)) if status.st_size < self.len => Some(CUT),
            Ok(None) => Some(GONE),
            Ok(Some(_)) | Err(_) => None,
        }
    }
}

impl Watched {
    fn is_empty(&self) -> bool {
        locked(&self.names).is_empty()
    }

    fn add(&self, directory: &Directory, names: Vec<String>) -> Result<()> {
        for name in names {
            let status = directory.status(&name)?.ok_or_else(|| Error::NotFound { location: directory.location(&name) })?;
            locked(&self.names).push(Name { name, file: (status.st_dev, status.st_ino), len: status.st_size });
        }
        Ok(())
    }

    fn look(&self, directory: &Directory) {
        let found = locked(&self.names).iter().find_map(|name| Some((directory.location(&name.name), name.look(directory)?)));
        if let Some(gone) = found {
            *locked(&self.gone) = gone;
            self.is_gone.store(true, Release);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the keeper has.
pub(crate) struct Table {
    directory: Directory,
    how: libc::c_int,
    held: Vec<(String, File)>,
    watched: Arc<Watched>,
}
impl Held {
    /// Starts a keeper that has nothing yet.
    pub fn start(directory: &Directory, how: libc::c_int) -> Result<Held> {
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
    pub fn ask<R: Send + 'static>(&self, what: impl FnOnce(&mut Table) -> Result<R> + Send + 'static) -> Result<R> {
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
        let (location, what) = locked(&self.watched.gone).clone();
        Err(Error::Io { location, doing: "looking at the files of the open pool", source: io::Error::other(what) })
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
const CUT: &str = "the file is shorter than it was: what is written to the pool is lost; close it, and restore a copy";

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // SAFETY: taken once: this is dropped now. The keeper ends when nothing is left that can ask it.
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
        // However often it is asked, the looks come in time.
        let mut next_look = Instant::now() + LOOK;
        loop {
            let request = if self.watched.is_empty() {
                asked.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                asked.recv_timeout(next_look.saturating_duration_since(Instant::now()))
            };
            match request {
                Ok(request) => request(&mut self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next_look {
                self.watched.look(&self.directory);
                next_look = Instant::now() + LOOK;
            }
        }
    }

    /// Locks the directory, or where the file system cannot lock directories, file `lock`; whether it was to be had.
    pub fn lock(&mut self) -> Result<bool> {
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
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}{namespace}", std::process::id()));
        self.held.push(("note".into(), file));
    }

    fn try_take(&mut self, name: &str) -> Result<bool> {
        if self.held.iter().any(|(held, _)| held == name) {
            return Ok(true);
        }
        let access = if self.how == libc::LOCK_EX { libc::O_RDWR } else { libc::O_RDONLY };
        for _ in 0..TRIES {
            let file = self.directory.open_at(name, access | libc::O_NONBLOCK)?;
            if !self.directory.flock(&file, self.how)? {
                return Ok(false);
            }
            let status = file.metadata().map_err(|e| Error::from_io(self.directory.location(name), "reading the status", 0, e))?;
            // Another process may have removed or replaced the file between the two calls: its lock says nothing then.
            if self.directory.status(name)?.is_some_and(|named| (named.st_dev, named.st_ino) == (status.dev(), status.ino())) {
                self.held.push((name.into(), file));
                return Ok(true);
            }
        }
        Ok(false)
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

    /// Where threads share one table of descriptors, a forked child has copies of the keeper's.
    #[test]
    fn a_lock_ends_though_a_descriptor_of_it_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path(), false).unwrap();
        let (file, other) = (File::open(dir.path()).unwrap(), File::open(dir.path()).unwrap());
        assert!(directory.flock(&file, libc::LOCK_EX).unwrap() && !directory.flock(&other, libc::LOCK_EX).unwrap());
        let _copy = file.try_clone().unwrap();
        unlock((".".into(), file));
        assert!(directory.flock(&other, libc::LOCK_EX).unwrap());
    }
}
