//! How a pool's owner and a separate checkpointer meet: in a control block in shared memory, found by the pool's identity (`place`).
//!
//! ```text
//!   control.checkpointer:   0 ──attach──► separate process ──detach, or its death seen by the owner──► 0
//!                           0 ──a round by the owner's own thread──► owner ──► 0
//! ```
//!
//! What must always hold: only who stands in `checkpointer` applies records, and reads the cut after he entered himself; a pool is
//! recovered only when no living process stands there.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use towa_heap::lanes::Replayer;
use towa_heap::superblock::Door;
use towa_media::Medium;

use crate::checkpointer::Rounds;
use crate::control::{self, CONTROL_MAGIC, Control, ControlMemory};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::process::Process;

/// A checkpointer sees its owner's death within this time, and a round takes less than this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at whether the other side lives.
const LOOK: Duration = Duration::from_millis(10);

/// The owner's control block for a separate checkpointer; its file goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Meeting {
    place: Place,
}

impl Meeting {
    /// Makes the control block of the pool that this process has just opened. Of one that an owner left who died nobody stands in it
    /// any more (see [`wait_for_former_checkpointer`]).
    pub fn call(medium: &dyn Medium) -> Result<(ControlMemory, Meeting)> {
        let place = Place::of(medium, &towa_heap::describe(medium)?.uuid);
        let control = place.make()?;
        control.owner.store(Process::this().word(), Release);
        Ok((control, Meeting { place }))
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.place.remove();
    }
}

/// Before a pool is opened, or looked into: the checkpointer of an owner that died must have ended its round. Opening a pool does that
/// itself.
///
/// # Errors
/// [`towa_media::Error::Busy`]: it does not end, because it is stopped, say.
pub fn wait_for_former_checkpointer(medium: &dyn Medium) -> Result<()> {
    // What is no pool is refused by who opens it.
    let Ok(description) = towa_heap::describe(medium) else { return Ok(()) };
    let Some(control) = Place::of(medium, &description.uuid).find()? else { return Ok(()) };
    let owner = Process::noted(&control.owner);
    if owner.is_some_and(Process::lives) {
        return Ok(());
    }
    let began = Instant::now();
    while let Some(checkpointer) = Process::noted(&control.checkpointer).filter(|p| p.lives()) {
        if began.elapsed() > PATIENCE {
            let how = if checkpointer.is_stopped() { ", which is stopped: let it go on or kill it" } else { "" };
            let holder = format!("the checkpointer of its former owner (process {}{how})", checkpointer.id());
            return Err(towa_media::Error::Busy { location: medium.location(), holder }.into());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Enters `me` as the checkpointer, if nobody stands there, or nobody who lives.
pub(crate) fn enter(control: &Control, me: Process) -> std::result::Result<(), Process> {
    let word = &control.checkpointer;
    match Process::noted(word) {
        Some(other) if other.lives() => Err(other),
        gone => {
            let gone = gone.map_or(0, Process::word);
            let entered = word.compare_exchange(gone, me.word(), AcqRel, Acquire);
            entered.map(|_| ()).map_err(|now| Process::noted(&now.into()).unwrap_or(me))
        }
    }
}

/// Gives the place up.
pub(crate) fn leave(control: &Control) {
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

/// Who checkpoints the pool on `medium` now; `None`: it is not open, or open without a separate checkpointer. One that outlives its
/// program is named, too, until it has ended its round. Looks only.
pub fn who_checkpoints(medium: &dyn Medium) -> Result<Option<Standing>> {
    let place = Place::of(medium, &towa_heap::describe(medium)?.uuid);
    let Some(control) = place.find()?.filter(|c| c.magic.load(Acquire) == CONTROL_MAGIC) else { return Ok(None) };
    let owner = Process::noted(&control.owner).filter(|p| p.lives());
    // The owner's own thread enters for a round at a time.
    let other = Process::noted(&control.checkpointer).filter(|p| Some(*p) != owner && p.lives());
    let standing = Standing { pid: other.map(Process::id), stopped: other.is_some_and(Process::is_stopped) };
    Ok((owner.is_some() || other.is_some()).then_some(standing))
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

/// The checkpointer of a pool that another process has open with [`Checkpointer::Process`](crate::Checkpointer::Process).
#[derive(Debug)]
pub struct SeparateCheckpointer {
    control: Arc<ControlMemory>,
    rounds: Rounds,
    owner: Process,
    place: Place,
}

impl SeparateCheckpointer {
    /// Takes over the checkpoints of the pool on `medium`.
    ///
    /// # Errors
    /// The pool is not open, or open without a separate checkpointer ([`Error::Usage`], which says which); another checkpointer works
    /// ([`towa_media::Error::Busy`]); it is no pool of this door.
    pub fn attach(medium: &dyn Medium) -> Result<SeparateCheckpointer> {
        let description = towa_heap::describe(medium)?;
        if let Some(door) = description.door.filter(|door| *door != Door::Tx) {
            let (found, wanted) = (door.name().into(), Door::Tx.name().into());
            return Err(towa_heap::Error::WrongDoor { pool: medium.location(), found, wanted }.into());
        }
        let usage = |what: &str| Error::Usage(format!("{}: {what}", medium.location()));
        let not_open =
            "no program has this pool open with a separate checkpointer (option `Checkpointer::Process`); start it first";
        let place = Place::of(medium, &description.uuid);
        let control = place.find()?.filter(|c| c.magic.load(Acquire) == CONTROL_MAGIC);
        let control = control.ok_or_else(|| usage(not_open))?;
        let owner = Process::noted(&control.owner).filter(|p| p.lives()).ok_or_else(|| usage(not_open))?;
        if control.stop.load(Acquire) != 0 {
            return Err(usage("its program is about to close it"));
        }
        let began = Instant::now();
        while let Err(other) = enter(&control, Process::this()) {
            // The owner's own thread stands there for a round at a time.
            if other != owner && began.elapsed() > LOOK || began.elapsed() > PATIENCE {
                let holder = format!("another checkpointer (process {})", other.id());
                return Err(towa_media::Error::Busy { location: medium.location(), holder }.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Whoever opens the pool after its owner's death waits for the one who stands here, or looked before: then the owner is dead.
        if !owner.lives() {
            leave(&control);
            return Err(usage(not_open));
        }
        let replayer = Replayer::attach(medium);
        match replayer {
            Ok(replayer) if replayer.generation() == control.generation.load(Acquire) => {
                Ok(SeparateCheckpointer { control: Arc::new(control), rounds: Rounds::with(replayer), owner, place })
            }
            other => {
                leave(&control);
                other?;
                Err(usage("it was reopened meanwhile; try again"))
            }
        }
    }

    /// The owner's process number.
    pub fn owner(&self) -> u32 {
        self.owner.id()
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
                if !self.owner.lives() {
                    // As long as this process stands there, whoever opens the pool waits, and makes no control block of his own.
                    self.place.remove();
                    return Ok(Ended::OwnerDied);
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

impl Drop for SeparateCheckpointer {
    fn drop(&mut self) {
        leave(&self.control);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use towa_media::RamMedium;

    use super::*;
    use crate::{Checkpointer, Options, Pool};

    /// The owner dies between the look at whether it lives and the entry: whoever opens its pool next may have looked for a checkpointer
    /// before that, so nothing must be applied.
    #[test]
    fn nobody_attaches_to_a_pool_whose_owner_dies_meanwhile() {
        let medium = RamMedium::anonymous();
        let manual = || Options { heap_len: 4 << 20, lanes: 2, checkpointer: Checkpointer::Manual, ..Options::default() };
        Pool::create_on(medium.clone(), &manual()).unwrap().abandon();
        let mut owner = Command::new("sleep").arg("60").spawn().unwrap();
        let (control, meeting) = Meeting::call(&*medium).unwrap();
        let word = Process::of(owner.id()).unwrap().word();
        control.owner.store(word, Release);
        control.generation.store(Replayer::attach(&*medium).unwrap().generation(), Release);
        control.lanes_used.store(2, Release);
        control.magic.store(CONTROL_MAGIC, Release);
        // While the owner's own thread stands there for a round, who attaches has seen that the owner lives, and waits.
        control.checkpointer.store(word, Release);
        let attached = std::thread::scope(|scope| {
            let attaching = scope.spawn(|| SeparateCheckpointer::attach(&*medium).map(|_| ()));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!attaching.is_finished());
            owner.kill().unwrap();
            owner.wait().unwrap();
            attaching.join().unwrap()
        });
        assert!(matches!(attached, Err(Error::Usage(ref why)) if why.contains("no program has this pool open")), "{attached:?}");
        assert_eq!(control.checkpointer.load(Acquire), 0, "the next opening need not wait for it");
        drop(meeting);
        Pool::open_on(medium, &manual()).unwrap().close().unwrap();
    }
}
