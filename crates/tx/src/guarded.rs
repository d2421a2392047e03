//! Transactions under versions: a software path for bodies that read and write only words guarded by version words. They take effect
//! under the locks of the versions that they touch (as in TL2: Dice, Shalev, Shavit, DISC 2006), so that those of different threads meet
//! only where their words do. Tree changes of one leaf are such.
//!
//! ```text
//!   announce ─► body ─► lock what it touches ─► time ─► what else it read is the same? ─► write ─► stamp ─► durable
//!      │                  (a compare-and-set from the version that it read)
//!      └ software transactions run: all from the locks to the stamps under the sequence lock, too, which shows them that something changed
//! ```
//!
//! What must always hold:
//! 1. a body sees one state: whatever it reads, the versions that it read before are then still the same;
//! 2. a touched version is locked from before the first word that it guards is written until after the last, by one transaction, and
//!    the time is read in between: so it is later than that of whoever had it before, and sooner than that of whoever has it next. The
//!    time is read before the look at versions that it only read: whoever changes those afterwards is later, too;
//! 3. beside software transactions, which see no locks of words, it holds the sequence lock ([`Control::announce_guarded`]).
//!
//! [`Control::announce_guarded`]: crate::control::Control::announce_guarded

use std::sync::atomic::{Ordering::*, fence};

use crossbeam_utils::Backoff;

use crate::error::{Abort, Result};
use crate::stats::add;
use crate::thread::Core;
use crate::tx::{GaveUp, Path, Tx};
use crate::view::Addr;
use crate::{clock, nesting, version};

/// Writes that such a transaction notes at most: they are looked through at each read.
pub(crate) const NOTED_MAX: usize = 64;
/// Conflicts after which the software path is taken, which can run alone.
const CONFLICTS_MAX: u32 = 16;
/// Bytes of the longest record: every word a run of its own, and the record's head.
const RECORD_MAX: u64 = NOTED_MAX as u64 * 16 + 64;

/// Takes the announcement back if the body panics.
struct Announced<'c>(&'c mut Core);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.end_guarded();
    }
}

/// Runs `body` until it takes effect or gives up; `None`: it must be run in software.
#[inline]
pub(crate) fn run<R>(core: &mut Core, body: &mut impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>) -> Result<Option<R>> {
    nesting::refuse(&core.engine, "a transaction")?;
    let backoff = Backoff::new();
    for _ in 0..CONFLICTS_MAX {
        core.make_room(RECORD_MAX)?;
        let beside = core.begin_guarded();
        if let Err(closed) = core.engine.check() {
            core.end_guarded();
            return Err(closed);
        }
        let announced = Announced(&mut *core);
        let result = nesting::body(|| body(&mut Tx { core: &mut *announced.0, path: Path::Versions }));
        std::mem::forget(announced);
        match (core.why_not(), result) {
            (Some(GaveUp::Software), _) => {
                core.end_guarded();
                return Ok(None);
            }
            (None, Ok(result)) => {
                if let Some(timestamp) = core.take_effect_guarded(beside) {
                    add(&core.counts.commits_software, 1);
                    core.finish_noted(timestamp)?;
                    return Ok(Some(result));
                }
            }
            (None, Err(abort)) if !matches!(abort, Abort::Conflict) => {
                core.end_guarded();
                add(if matches!(abort, Abort::Stale) { &core.counts.stale } else { &core.counts.aborts_user }, 1);
                return Err(abort.into_error());
            }
            _ => {}
        }
        core.end_guarded();
        add(&core.counts.aborts_software, 1);
        backoff.snooze();
        add(&core.counts.abort_ns, (clock::tsc_about() - core.first_tick).saturating_sub(core.since));
    }
    Ok(None)
}

impl Core {
    /// Announces such a transaction; whether software ones run beside it.
    #[inline]
    fn begin_guarded(&mut self) -> bool {
        let (since, beside) = self.engine.control.announce_guarded(self.lane);
        self.begin(since);
        self.reads.clear();
        self.gave_up = None;
        beside
    }

    /// It does not take effect: nothing was written.
    fn end_guarded(&mut self) {
        self.engine.control.end_guarded(self.lane);
        self.retract();
    }

    /// The run will not take effect. What its body is to pass on.
    #[cold]
    pub(crate) fn give_up(&mut self, why: GaveUp) -> Abort {
        self.gave_up.get_or_insert(why);
        Abort::Conflict
    }

    /// Why the run that has ended does not take effect, if that is known.
    #[inline]
    fn why_not(&self) -> Option<GaveUp> {
        // What it wrote no version guards.
        let unguarded = self.touched.is_empty() && !self.noted.is_empty();
        self.gave_up.or(unguarded.then_some(GaveUp::Software))
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

    /// The time at which it took effect, 0 if it wrote nothing; `None`: something it read has changed, and nothing was written.
    #[inline]
    fn take_effect_guarded(&mut self, beside: bool) -> Option<u64> {
        let timestamp = if self.noted.is_empty() && self.touched.is_empty() {
            self.versions_hold().then_some(0)
        } else {
            if beside {
                self.take_lock();
            }
            let timestamp = self.write_guarded();
            self.give_lock_back();
            timestamp
        };
        self.engine.control.end_guarded(self.lane);
        timestamp
    }

    #[inline]
    fn write_guarded(&self) -> Option<u64> {
        for (at, &a) in self.touched.iter().enumerate() {
            if !self.lock_version(a) {
                self.unlock_versions(&self.touched[..at]);
                return None;
            }
        }
        let timestamp = clock::tsc() - self.first_tick;
        if self.reads.len() > self.touched.len() {
            clock::before_loads();
            let same = |&(a, version): &(Addr, u64)| self.touched.contains(&a) || self.blocks.word(a).load(Acquire) == version;
            if !self.reads.iter().all(same) {
                self.unlock_versions(&self.touched);
                return None;
            }
        }
        // Readers that see a word written below see its version locked.
        fence(Release);
        for &(a, value) in &self.noted {
            self.view.store(a, value);
        }
        for &a in &self.touched {
            self.view.word(a).store(version::stamp(self.lane, timestamp), Release);
        }
        Some(timestamp)
    }

    /// The version at `a` as this transaction has read it.
    #[inline]
    pub(crate) fn version_read(&self, a: Addr) -> Option<u64> {
        self.reads.iter().find(|read| read.0 == a).map(|read| read.1)
    }

    #[inline]
    fn lock_version(&self, a: Addr) -> bool {
        let version = self.version_read(a).expect("what is touched was read");
        self.view.word(a).compare_exchange(version, version::locked(version), AcqRel, Relaxed).is_ok()
    }

    #[cold]
    fn unlock_versions(&self, locked: &[Addr]) {
        for &a in locked {
            self.view.word(a).store(self.version_read(a).expect("what is touched was read"), Release);
        }
    }
}
