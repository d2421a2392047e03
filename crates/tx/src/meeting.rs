//! How a pool's owner and a separate checkpointer meet: they share a control block (`place`), and the lock of the
//! pool's image says which of them checkpoints.
//!
//! ```text
//!   the image's lock:   owner, while it opens the pool ──► free ──attach──► separate process ──detach, or its death──► free
//!                                                          free ──► owner's own thread, for a round ──► free
//! ```
//!
//! The lock is the kernel's (`towa_media::Lock::take`). It ends with the process that has it, whichever way that
//! ends, and no other can have it before: so it holds across containers, and where a process number was used again or
//! an owner started itself anew by `execve`.
//! `control.checkpointer` names the process for messages; nothing is decided by it.
//!
//! What must always hold: only the process that has the image's lock applies records, and it reads the cut after it
//! got the lock; a pool is recovered only under that lock, taken after the lock of the directory. So the checkpointer
//! of a former owner is gone by then. It cannot come back: it looks whether its owner lives after it got the lock,
//! and the owner that comes next gets the lock after that look or before.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use towa_heap::lanes::Replayer;
use towa_heap::names::IMAGE;
use towa_heap::superblock::Door;
use towa_media::{Lock, Medium, holder};

use crate::checkpointer::Rounds;
use crate::control::{self, CONTROL_MAGIC, Control, ControlMemory};
use crate::error::{Error, Result};
use crate::place::{self, Line, Place};
use crate::process::Process;

/// A round of the owner's own thread takes less than this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at whether the other side lives.
const LOOK: Duration = Duration::from_millis(10);

/// Why a checkpointer is not let in.
const NOT_OPEN: &str =
    "no program has this pool open with a separate checkpointer (option `Checkpointer::Process`); start it first";
const CLOSING: &str = "its program is about to close it, or it failed";

/// The owner's control block for a separate checkpointer; the way to it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Meeting {
    place: Place,
}

impl Meeting {
    /// Makes the control block of the pool that this process has just opened.
    pub fn call(medium: &dyn Medium) -> Result<(ControlMemory, Meeting)> {
        let (control, place) = Place::make(medium)?;
        control.owner.store(Process::this().word(), Release);
        Ok((control, Meeting { place }))
    }

    /// From here on a checkpointer finds it. The pool's lock is held for as long as this lives: its end removes the socket.
    pub fn open(&self) -> Result<()> {
        Ok(self.place.listen()?)
    }
}

/// Enters the owner's own thread as the checkpointer for a round, unless another process checkpoints.
pub(crate) fn stand_in(lock: &dyn Lock, control: &Control) -> Result<bool> {
    let entered = lock.try_take(IMAGE)?;
    if entered {
        control.checkpointer.store(Process::this().word(), Release);
    }
    Ok(entered)
}

/// The owner's own thread has ended its round.
pub(crate) fn stand_back(lock: &dyn Lock, control: &Control) {
    leave(control);
    lock.give_back(IMAGE);
}

/// Takes the name out, and wakes who waits.
fn leave(control: &Control) {
    control.checkpointer.store(0, Release);
    control::wake(&control.done);
}

/// Who checkpoints a pool whose program asked for a separate checkpointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Standing {
    /// The separate checkpointer's process number; `None`: there is none, and a thread of the program stands in.
    pub pid: Option<u32>,
    /// It does nothing until it is let go on (SIGSTOP, a debugger), and keeps its place.
    pub stopped: bool,
}

/// Who checkpoints the pool on `medium` now; `None`: it is not open, or open without a separate checkpointer. One
/// that outlives its program is named, too, until it has ended its round. Looks only; processes of other containers
/// are not seen.
pub fn who_checkpoints(medium: &dyn Medium) -> Result<Option<Standing>> {
    let control = place::call(medium)?.map(|(control, _)| control).filter(|c| c.magic.load(Acquire) == CONTROL_MAGIC);
    let (owner, writer) = (holder_of(medium, c"superblock"), writer_of(medium));
    let standing = |pid: Option<u32>| Standing { pid, stopped: pid.is_some_and(holder::is_stopped) };
    Ok(match control {
        // The owner's own thread enters for a round at a time.
        Some(control) => {
            let owner = owner.or(Process::noted(&control.owner).map(Process::id));
            Some(standing(writer.filter(|pid| Some(*pid) != owner)))
        }
        // An owner without a separate checkpointer has both locks, and a reader, too.
        None => writer.filter(|_| owner.is_none()).map(|pid| standing(Some(pid))),
    })
}

/// The process that writes the image of the pool on `medium`, or is about to: by the lock, which it has before its name is in the control block,
/// and keeps if it is stopped in between.
pub(crate) fn writer_of(medium: &dyn Medium) -> Option<u32> {
    holder_of(medium, c"image")
}

/// The process that has the lock of a file of the pool's directory, or of that itself.
fn holder_of(medium: &dyn Medium, name: &std::ffi::CStr) -> Option<u32> {
    let directory = medium.directory()?;
    // SAFETY: all-zero is a valid `stat`; the name is NUL-terminated, the structure ours to fill.
    let status = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstatat(directory.as_raw_fd(), name.as_ptr(), &raw mut status, libc::AT_SYMLINK_NOFOLLOW) == 0).then_some(status)?
    };
    holder::of(status.st_dev, status.st_ino, None)
}

/// How a separate checkpointer's work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The owner closes the pool, or gave it up.
    Closed,
    /// The owner died. What is in the logs is recovered when the pool is next opened.
    OwnerDied,
    /// It was asked to stop; a thread of the owner stands in.
    Stopped,
}

/// What a separate checkpointer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// Rounds that applied something.
    pub rounds: u64,
    /// Records applied.
    pub records: u64,
    /// Image lines written back for them.
    pub lines: u64,
}

/// The checkpointer of a pool that another process has open with
/// [`Checkpointer::Process`](crate::Checkpointer::Process).
pub struct SeparateCheckpointer {
    rounds: Rounds,
    control: ControlMemory,
    line: Line,
    owner: u32,
    /// Of the image; last, when nothing is written any more.
    _lock: Box<dyn Lock>,
}

impl std::fmt::Debug for SeparateCheckpointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SeparateCheckpointer(of process {})", self.owner)
    }
}

impl SeparateCheckpointer {
    /// Takes over the checkpoints of the pool on `medium`.
    ///
    /// # Errors
    /// The pool is not open, or open without a separate checkpointer ([`Error::Usage`], which says which); another
    /// checkpointer works ([`towa_media::Error::Busy`]); it is no pool of this door.
    pub fn attach(medium: &dyn Medium) -> Result<SeparateCheckpointer> {
        let description = towa_heap::describe(medium)?;
        if let Some(door) = description.door.filter(|door| *door != Door::Tx) {
            let (found, wanted) = (door.name().into(), Door::Tx.name().into());
            return Err(towa_heap::Error::WrongDoor { pool: medium.location(), found, wanted }.into());
        }
        let usage = |what: &str| Error::Usage(format!("{}: {what}", medium.location()));
        let found = place::call(medium)?.filter(|(control, _)| control.magic.load(Acquire) == CONTROL_MAGIC);
        let (control, line) = found.ok_or_else(|| usage(NOT_OPEN))?;
        if control.stop.load(Acquire) != 0 {
            return Err(usage(CLOSING));
        }
        let lock = lock_beside(medium, &control)?;
        // The pool's next owner takes the lock before it writes anything. So if this owner lives, that has not
        // happened, and waits from here on.
        if !line.is_open() {
            return Err(usage(NOT_OPEN));
        }
        // An owner that closes the pool waits until it has the lock, after it has said so here.
        if control.stop.load(Acquire) != 0 {
            return Err(usage(CLOSING));
        }
        await_owner(&control, &line).map_err(usage)?;
        let replayer = Replayer::attach(medium)?;
        if replayer.generation() != control.generation.load(Acquire) {
            return Err(usage("it was reopened meanwhile; try again"));
        }
        control.checkpointer.store(Process::this().word(), Release);
        let owner = Process::noted(&control.owner).map_or(0, Process::id);
        Ok(SeparateCheckpointer { rounds: Rounds::with(replayer), control, line, owner, _lock: lock })
    }

    /// The owner's process number.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Works until the pool is closed, its owner dies, or `stop` says so. `progress` is called after each round.
    pub fn run(mut self, stop: &dyn Fn() -> bool, progress: &mut dyn FnMut(Progress)) -> Result<Ended> {
        let mut looked = Instant::now();
        loop {
            if stop() {
                return Ok(Ended::Stopped);
            }
            if self.control.stop.load(Acquire) != 0 {
                return Ok(Ended::Closed);
            }
            if looked.elapsed() >= LOOK {
                if !self.line.is_open() {
                    let closed = self.control.stop.load(Acquire) != 0;
                    return Ok(if closed { Ended::Closed } else { Ended::OwnerDied });
                }
                looked = Instant::now();
            }
            let work = self.control.work.load(Acquire);
            if self.rounds.round(&self.control)? {
                progress(self.rounds.progress());
            }
            self.control.asleep.fetch_add(1, SeqCst);
            if self.control.work.load(SeqCst) == work && self.control.stop.load(SeqCst) == 0 {
                control::wait(&self.control.work, work, LOOK);
            }
            self.control.asleep.fetch_sub(1, SeqCst);
        }
    }
}

/// Waits until the owner has synced its files, with the lock of the image. So nothing is left of what an earlier checkpointer wrote and could not sync.
fn await_owner(control: &Control, line: &Line) -> std::result::Result<(), &'static str> {
    let (began, mine) = (Instant::now(), control.attached.fetch_add(1, AcqRel) + 1);
    loop {
        control.request();
        let synced = control.synced.load(Acquire);
        if synced.wrapping_sub(mine) as i32 >= 0 {
            return Ok(());
        }
        if control.stop.load(Acquire) != 0 {
            return Err(CLOSING);
        }
        if !line.is_open() {
            return Err(NOT_OPEN);
        }
        if began.elapsed() > PATIENCE {
            return Err(
                "its program does not answer: it is stopped, or still writes what an earlier checkpointer left; let it go on, and try again",
            );
        }
        control::wait(&control.synced, synced, LOOK);
    }
}

/// The lock of the image, for a process beside the owner. The owner's own thread has it for a round at a time.
fn lock_beside(medium: &dyn Medium, control: &Control) -> Result<Box<dyn Lock>> {
    let began = Instant::now();
    loop {
        match medium.lock_file(IMAGE, Duration::ZERO, "another checkpointer") {
            Err(busy @ towa_media::Error::Busy { .. }) => {
                let is_owner = [0, control.owner.load(Acquire)].contains(&control.checkpointer.load(Acquire));
                if began.elapsed() > if is_owner { PATIENCE } else { LOOK } {
                    return Err(busy.into());
                }
            }
            other => return Ok(other?),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for SeparateCheckpointer {
    fn drop(&mut self) {
        leave(&self.control);
    }
}

#[cfg(test)]
mod tests {
    use towa_media::RamMedium;

    use super::*;
    use crate::{Checkpointer, Options, Pool};

    /// The owner dies between the look at whether it lives and the entry: the process that opens its pool next may
    /// have had the image's lock before that, so nothing must be applied.
    #[test]
    fn nobody_attaches_to_a_pool_whose_owner_dies_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let medium = RamMedium::open(dir.path(), false, None).unwrap();
        let manual = || Options { heap_len: 4 << 20, lanes: 2, checkpointer: Checkpointer::Manual, ..Options::default() };
        Pool::create_on(medium.clone(), &manual()).unwrap().abandon();
        let (control, meeting) = Meeting::call(&*medium).unwrap();
        meeting.open().unwrap();
        control.generation.store(Replayer::attach(&*medium).unwrap().generation(), Release);
        control.lanes_used.store(2, Release);
        control.magic.store(CONTROL_MAGIC, Release);
        // While the owner's own thread stands there for a round, the process that attaches has seen that the owner
        // lives, and waits.
        let lock = medium.lock_file(IMAGE, Duration::ZERO, "").unwrap();
        assert!(stand_in(&*lock, &control).unwrap());
        let attached = std::thread::scope(|scope| {
            let attaching = scope.spawn(|| SeparateCheckpointer::attach(&*medium).map(|_| ()));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!attaching.is_finished());
            // What the kernel does when the owner dies: its connections end, then its locks.
            drop(meeting);
            drop(lock);
            attaching.join().unwrap()
        });
        assert!(matches!(attached, Err(Error::Usage(ref why)) if why.contains("no program has this pool open")), "{attached:?}");
        Pool::open_on(medium, &manual()).unwrap().close().unwrap();
    }
}
