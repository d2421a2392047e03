//! Transactions under versions: a software path for bodies that read and write only words guarded by version words, or new blocks. They
//! take effect under the locks of the versions that they touch (as in TL2: Dice, Shalev, Shavit, DISC 2006), so that those of different
//! threads meet only where their words do. Changes of a tree's leaves are such, and splits.
//!
//! ```text
//!   announce ─► body ─► record ─► lock what it touches ─► time ─► what else it read is the same? ─► write ─► stamp ─► durable
//!      │                  (a compare-and-set from the version that it read)
//!      └ software transactions run: all from the locks to the stamps under the sequence lock, too, which shows them that something changed
//! ```
//!
//! What must always hold:
//! 1. a body sees one state: whatever it reads, the versions that it read before are then still the same;
//! 2. a touched version is locked from before the first word that it guards is written until after the last, by one transaction, and
//!    the time is read in between: so it is later than that of whoever had it before, and sooner than that of whoever has it next. The
//!    time is read before the look at versions that it only read: whoever changes those afterwards is later, too;
//! 3. a version in a new block is locked, too, until it is stamped: what leads there may be stamped before;
//! 4. whatever ends a run that does not take effect, what its allocations wrote in place is undone, and the allocator's journal is ended;
//! 5. beside software transactions, which see no locks of words, it holds the sequence lock ([`Control::announce_guarded`]). Only there can
//!    a block be freed in the midst of a run. So with that lock it looks at all versions again before it stores to one.
//!
//! [`Control::announce_guarded`]: crate::control::Control::announce_guarded

use std::sync::atomic::{Ordering::*, fence};

use crossbeam_utils::Backoff;

use crate::error::{Abort, Result};
use crate::software::Effect;
use crate::stats::add;
use crate::thread::Core;
use crate::tx::{GaveUp, Path, Tx};
use crate::view::Addr;
use crate::{clock, nesting, version};

/// Writes that such a transaction notes at most: they are looked through at each read.
pub(crate) const NOTED_MAX: usize = 256;
/// Conflicts after which the software path is taken, which can run alone.
const CONFLICTS_MAX: u32 = 16;
/// Bytes of the longest record without new blocks: every word a run of its own, and the record's head.
const RECORD_MAX: u64 = NOTED_MAX as u64 * 16 + 64;
/// Versions that it reads at most: each read looks at all of them again.
const READS_MAX: usize = 64;

/// Undoes the run if its body panics.
struct Run<'c>(&'c mut Core);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // An error has poisoned the pool, and the panic says more.
        let _ = self.0.undo_guarded();
    }
}

/// Runs `body` until it takes effect or gives up; `None`: it must be run in software.
#[inline]
pub(crate) fn run<R>(core: &mut Core, body: &mut impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>) -> Result<Option<R>> {
    nesting::refuse(&core.engine, "a transaction")?;
    let (mut room, mut conflicts, backoff) = (RECORD_MAX, 0, Backoff::new());
    while conflicts < CONFLICTS_MAX {
        core.make_room(room)?;
        let beside = core.begin_guarded();
        if let Err(closed) = core.engine.check() {
            core.undo_guarded()?;
            return Err(closed);
        }
        let run = Run(&mut *core);
        let result = nesting::body(|| body(&mut Tx { core: &mut *run.0, path: Path::Versions }));
        std::mem::forget(run);
        let effect = match (core.gave_up, &result) {
            (None, Ok(_)) if !core.is_unguarded() => core.take_effect_guarded(beside),
            (Some(GaveUp::Software), _) | (None, Ok(_)) => {
                core.undo_guarded()?;
                return Ok(None);
            }
            (Some(GaveUp::Conflict), _) | (None, Err(Abort::Conflict)) => Effect::Conflict,
            (None, Err(_)) if core.lacks_space => {
                // In software it is found out whether there is none.
                core.undo_guarded()?;
                return Ok(None);
            }
            (None, Err(_)) => {
                let Err(abort) = result else { unreachable!("looked at above") };
                core.undo_and_answer_guarded(&abort)?;
                core.count_given_up(&abort);
                return Err(abort.into_error());
            }
        };
        match effect {
            Effect::Done(timestamp) => {
                core.finish_effect(timestamp)?;
                let Ok(result) = result else { unreachable!("it took effect") };
                return Ok(Some(result));
            }
            Effect::Failed(e) => {
                core.undo_guarded()?;
                return Err(e);
            }
            Effect::NoRoom(len) => {
                core.undo_guarded()?;
                room = len;
            }
            Effect::NoSpace => unreachable!("looked at above"),
            Effect::Conflict => {
                conflicts += 1;
                add(&core.counts.aborts_software, 1);
                add(&core.counts.abort_ns, (clock::tsc_about() - core.first_tick).saturating_sub(core.since));
                core.undo_guarded()?;
                backoff.snooze();
            }
        }
    }
    Ok(None)
}

/// What a body would do that finds this version at `a`, writes these words, which it guards, and touches it: the same steps, without
/// a body. False: nothing was done, a body must be run.
#[inline]
pub(crate) fn change<const N: usize>(core: &mut Core, a: Addr, version: u64, words: &[(Addr, u64); N]) -> Result<bool> {
    let blocks = core.blocks;
    if version::is_locked(version) || !blocks.holds(a) || !words.iter().all(|&(a, _)| blocks.holds(a)) {
        return Ok(false);
    }
    nesting::refuse(&core.engine, "a transaction")?;
    core.make_room(RECORD_MAX)?;
    let beside = core.begin_guarded();
    core.depend_on(version);
    let view = core.view;
    core.record.clear();
    core.record.each(words.iter().map(|&(a, value)| (view.offset(a), value)));
    if beside || core.engine.check().is_err() || !core.lock_version(a, Some(version)) {
        core.undo_guarded()?;
        return Ok(false);
    }
    let timestamp = clock::tsc() - core.first_tick;
    add(&core.counts.commits_software, 1);
    core.make_durable_with(timestamp, |core| {
        core.write_and_stamp(words, &[a], timestamp);
        core.engine.control.end_guarded(core.lane);
    })?;
    Ok(true)
}

impl Core {
    /// Announces such a transaction; whether software ones run beside it.
    #[inline]
    fn begin_guarded(&mut self) -> bool {
        let (since, beside) = self.engine.control.announce_guarded(self.lane);
        self.begin(since);
        self.forget_run();
        self.gave_up = None;
        beside
    }

    /// Ends a run that did not take effect: as if it had never been.
    #[cold]
    fn undo_guarded(&mut self) -> Result<()> {
        // Closing waits until what is kept is in the logs, as it does for bodies in software.
        let keeps = self.allocating;
        if keeps {
            self.engine.control.sequence.enter();
        }
        self.restore();
        self.engine.control.end_guarded(self.lane);
        self.retract();
        let kept = self.keep_structure();
        if keeps {
            self.engine.control.sequence.leave();
        }
        kept
    }

    /// As [`undo_and_answer`](Self::undo_and_answer).
    #[cold]
    fn undo_and_answer_guarded(&mut self, answer: &Abort) -> Result<()> {
        let read = (self.unguarded, self.plain, std::mem::take(&mut self.dependencies));
        self.undo_guarded()?;
        (self.unguarded, self.plain, self.dependencies) = read;
        self.await_what_answer_tells(answer)
    }

    /// The run will not take effect. What its body is to pass on.
    #[cold]
    pub(crate) fn give_up(&mut self, why: GaveUp) -> Abort {
        self.gave_up.get_or_insert(why);
        Abort::Conflict
    }

    /// Whether it wrote, and no version that it read says so.
    #[inline]
    fn is_unguarded(&self) -> bool {
        let wrote = self.allocating || !self.noted.is_empty() || !self.touched.is_empty();
        wrote && !self.touched.iter().any(|&a| self.version_read(a).is_some())
    }

    /// Whether all versions that it read are the same; asked after what they guard was loaded (with `Acquire`).
    #[inline]
    fn versions_hold(&self) -> bool {
        self.reads.iter().all(|&(a, version)| self.blocks.word(a).load(Acquire) == version)
    }

    /// [`Tx::read_version`].
    #[inline]
    pub(crate) fn read_version_guarded(&mut self, a: Addr) -> std::result::Result<u64, Abort> {
        let version = self.blocks.word(a).load(Acquire);
        if version::is_locked(version) || !self.versions_hold() {
            return Err(self.give_up(GaveUp::Conflict));
        }
        if self.version_read(a).is_none() {
            if self.reads.len() == READS_MAX {
                return Err(self.give_up(GaveUp::Software));
            }
            self.reads.push((a, version));
            self.depend_on(version);
        }
        Ok(version)
    }

    /// [`Tx::read_guarded`].
    #[inline]
    pub(crate) fn read_guarded(&mut self, a: Addr) -> std::result::Result<u64, Abort> {
        if let Some(&(_, written)) = self.noted.iter().rev().find(|write| write.0 == a) {
            return Ok(written);
        }
        let value = self.blocks.word(a).load(Acquire);
        if self.reads.is_empty() {
            // Nothing guards it.
            return Err(self.give_up(GaveUp::Software));
        }
        if !self.versions_hold() {
            return Err(self.give_up(GaveUp::Conflict));
        }
        Ok(value)
    }

    /// The version at `a` as this transaction has read it.
    #[inline]
    fn version_read(&self, a: Addr) -> Option<u64> {
        self.reads.iter().find(|read| read.0 == a).map(|read| read.1)
    }

    /// Whether it may stamp the version word at `a`: it has read it, or nobody else can, for it is in a block that it allocated.
    #[inline]
    pub(crate) fn may_touch(&self, a: Addr) -> bool {
        self.version_read(a).is_some() || self.fresh.iter().any(|&(start, len)| a.wrapping_sub(start) < len)
    }

    /// Has the run take effect, if nothing that it read has changed.
    #[inline]
    fn take_effect_guarded(&mut self, beside: bool) -> Effect {
        if self.noted.is_empty() && self.touched.is_empty() {
            if !self.versions_hold() {
                return Effect::Conflict;
            }
            self.engine.control.end_guarded(self.lane);
            return Effect::Done(0);
        }
        self.record.clear();
        self.note_ranges();
        let view = self.view;
        self.record.each(self.noted.iter().map(|&(a, value)| (view.offset(a), value)));
        if self.allocating {
            self.note_frontier();
            if let Some(refused) = self.check_room() {
                return refused;
            }
        }
        if beside {
            self.take_lock();
            if !self.versions_hold() {
                self.give_lock_back();
                return Effect::Conflict;
            }
        }
        let timestamp = self.write_under_locks();
        self.give_lock_back();
        let Some(timestamp) = timestamp else { return Effect::Conflict };
        self.engine.control.end_guarded(self.lane);
        Effect::Done(timestamp)
    }

    /// The time at which it took effect; `None`: something it read has changed, and nothing was written.
    #[inline]
    fn write_under_locks(&self) -> Option<u64> {
        let mut only_read = self.reads.len();
        for (at, &a) in self.touched.iter().enumerate() {
            let version = self.version_read(a);
            if !self.lock_version(a, version) {
                self.unlock_versions(&self.touched[..at]);
                return None;
            }
            only_read -= usize::from(version.is_some());
        }
        let timestamp = clock::tsc() - self.first_tick;
        if only_read > 0 {
            clock::before_loads();
            let mut only_read = self.reads.iter().filter(|read| !self.touched.contains(&read.0));
            if !only_read.all(|&(a, version)| self.blocks.word(a).load(Acquire) == version) {
                self.unlock_versions(&self.touched);
                return None;
            }
        }
        self.write_and_stamp(&self.noted, &self.touched, timestamp);
        Some(timestamp)
    }

    /// Writes words whose versions are locked, and stamps these.
    #[inline]
    fn write_and_stamp(&self, words: &[(Addr, u64)], versions: &[Addr], timestamp: u64) {
        // Readers that see a word written below see its version locked.
        fence(Release);
        for &(a, value) in words {
            self.view.store(a, value);
        }
        for &a in versions {
            self.view.word(a).store(version::stamp(self.lane, timestamp), Release);
        }
    }

    /// Locks the version at `a`, if it is what was read. One in a new block is nobody else's yet, and was not read.
    #[inline]
    fn lock_version(&self, a: Addr, read: Option<u64>) -> bool {
        let word = self.view.word(a);
        match read {
            Some(version) => word.compare_exchange(version, version::locked(version), AcqRel, Relaxed).is_ok(),
            None => {
                word.store(version::locked(word.load(Relaxed)), Relaxed);
                true
            }
        }
    }

    /// Those in new blocks go with these.
    #[cold]
    fn unlock_versions(&self, locked: &[Addr]) {
        let read = locked.iter().filter_map(|&a| Some((a, self.version_read(a)?)));
        read.for_each(|(a, version)| self.view.word(a).store(version, Release));
    }
}
