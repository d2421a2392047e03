//! The software path: NOrec. Reads are noted with their values and looked at again whenever the sequence has moved; writes are buffered
//! until the transaction takes effect, alone, under the sequence lock. With [`Tm::Lock`](crate::Tm::Lock) the lock is held from the start.
//!
//! ```text
//!   body ─► build the record ─► announce ─► take the lock ─► stamp lines ─► lock versions ─► write back ─►
//!                                     (reads looked at again)
//!   stamp versions ─► give the lock back ─► durable
//!
//!   with the lock held from the start, no tables changed, and room for the record whatever its words are:
//!   body ─► announce ─► stamp lines ─► ... ─► give the lock back ─► build the record ─► durable
//! ```
//!
//! Between `take the lock` and `give the lock back` one state becomes the next, for all threads.
//!
//! What must always hold:
//! - Whatever ends a run, everything it did in place (block headers of its allocations) is undone, the lock is given back, and the
//!   allocator's journal is ended.
//! - From giving the lock back on, nothing fails before the record is handed over: others see the change already, and the
//!   announcement alone keeps them from taking it for durable. A record that is built there is of words of the write set, never of
//!   what the heap holds by then.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{Ordering::*, fence};

use crossbeam_utils::Backoff;
use towa_heap::Root;
use towa_heap::lanes::Lanes;

use crate::clock::{self, Clock};
use crate::error::{Abort, Error, Result};
use crate::nesting;
use crate::options::Tm;
use crate::stats::add;
use crate::thread::Core;
use crate::tx::{Path, Tx};
use crate::view::Addr;
use crate::{version, writers};

/// Conflicts after which a transaction runs alone.
const CONFLICTS_MAX: u32 = 16;
/// Runs of a body that finds no room for a block, while other transactions allocate and free beside it.
const SPACE_TRIES_MAX: u32 = 32;
/// Passes over what was read, each of which another transaction cut short, before that counts as a conflict.
const LOOKS_MAX: u32 = 64;

/// What came of an attempt to take effect.
pub(crate) enum Effect {
    /// It did, with this timestamp; 0: nothing was written.
    Done(u64),
    /// What it read has changed.
    Conflict,
    /// Its record of so many bytes has no room in the log now.
    NoRoom(u64),
    /// It cannot.
    Failed(Error),
    /// Its body failed, and found no room for a block.
    NoSpace,
}

/// Runs `body` until it takes effect or gives up.
pub(crate) fn run<R>(core: &mut Core, body: &mut impl FnMut(&mut Tx<'_>) -> std::result::Result<R, Abort>) -> Result<R> {
    nesting::refuse(&core.engine, "a transaction")?;
    let (mut room, mut conflicts, mut space) = (64, 0, Space::default());
    let backoff = Backoff::new();
    loop {
        core.make_room(room)?;
        core.begin_software(conflicts >= CONFLICTS_MAX)?;
        let result = nesting::body(|| catch_unwind(AssertUnwindSafe(|| body(&mut Tx { core, path: Path::Software }))));
        let effect = match &result {
            Ok(Ok(_)) => core.take_effect(),
            Ok(Err(Abort::Conflict)) => Effect::Conflict,
            Ok(Err(_)) if core.lacks_space && space.may_change(core) => Effect::NoSpace,
            Ok(Err(_)) => {
                let Ok(Err(abort)) = result else { unreachable!("looked at above") };
                core.undo_and_answer(&abort)?;
                core.count_given_up(&abort);
                return Err(abort.into_error());
            }
            Err(_) => {
                core.undo()?;
                let Err(panic) = result else { unreachable!("looked at above") };
                resume_unwind(panic);
            }
        };
        match effect {
            Effect::Done(timestamp) => {
                core.finish_software(timestamp)?;
                let Ok(Ok(result)) = result else { unreachable!("it took effect") };
                return Ok(result);
            }
            Effect::Failed(e) => {
                let abort = Abort::from(e);
                core.undo_and_answer(&abort)?;
                return Err(abort.into_error());
            }
            Effect::NoRoom(len) => {
                core.undo()?;
                room = len;
            }
            Effect::NoSpace => {
                core.undo()?;
                space.gather(core)?;
            }
            Effect::Conflict => {
                conflicts += 1;
                add(&core.counts.aborts_software, 1);
                let lost = core.engine.ticks.now().saturating_sub(core.began);
                core.undo()?;
                add(&core.counts.abort_ns, lost);
                backoff.snooze();
            }
        }
    }
}

/// Looks for space that a body could not see, before the body's refusal counts. Nothing in the read set says how
/// much space there is:
///
/// - inside a run, what its own frees, its cache and slabs that it gave up would make together is not to be had;
///   once it is undone, it is;
/// - blocks that other transactions freed are theirs until they are durable, and so are those that they allocated
///   and give back.
///
/// So the run is undone, the cache is given back, the transactions that have the allocator's journal on are waited
/// for, and the body is run again. It is refused space only by a run during which no other transaction had anything
/// of the allocator's in hand.
#[derive(Default)]
struct Space {
    tries: u32,
    /// The journals of all lanes, counted, when the last wait was over.
    journals: Vec<u64>,
}

impl Space {
    /// Whether another run may find what this one did not.
    fn may_change(&self, core: &Core) -> bool {
        self.tries == 0 || self.tries < SPACE_TRIES_MAX && core.engine.journals_but(core.lane) != self.journals
    }

    /// The run is undone: makes all that is free available, as far as it can be.
    fn gather(&mut self, core: &mut Core) -> Result<()> {
        self.tries += 1;
        core.cache.flush(core.engine.heap.allocator());
        core.engine.await_journals(core.lane)?;
        self.journals = core.engine.journals_but(core.lane);
        Ok(())
    }
}

impl Core {
    /// `alone`: with the lock from the start, so that it gets through.
    fn begin_software(&mut self, alone: bool) -> Result<()> {
        self.began = self.engine.ticks.now();
        self.forget_transaction();
        self.forget_run();
        self.writes.clear();
        if self.engine.tm == Tm::Rtm {
            touch_pages(&mut self.noted);
        }
        self.engine.control.enter_software();
        // Closing waits for those that have entered, and those that enter later see that it began.
        if let Err(closed) = self.engine.check() {
            self.engine.control.sequence.leave();
            return Err(closed);
        }
        self.depend_on_roots();
        self.snapshot = self.engine.control.sequence.wait_even();
        if alone || self.engine.tm == Tm::Lock {
            self.take_lock();
        }
        Ok(())
    }

    /// Forgets what the run before this one read, allocated, and was to free and set.
    #[inline]
    pub(crate) fn forget_run(&mut self) {
        self.lacks_space = false;
        self.reads.clear();
        self.roots_read.clear();
        self.fresh.clear();
        self.ranges.clear();
        self.undo.clear();
        self.roots.clear();
        self.frees.clear();
    }

    /// The word at `a` as of the transaction's snapshot, which moves on while all that was read is unchanged.
    pub(crate) fn read_software(&mut self, a: Addr) -> std::result::Result<u64, Abort> {
        if let Some(value) = self.writes.get(a) {
            return Ok(value);
        }
        let mut value = self.blocks.word(a).load(Acquire);
        if self.holds_lock {
            return Ok(value);
        }
        while self.engine.control.sequence.number() != self.snapshot {
            self.snapshot = self.look_again().ok_or(Abort::Conflict)?;
            value = self.blocks.word(a).load(Acquire);
        }
        self.reads.push((a, value));
        Ok(value)
    }

    /// The root of this name, as of the transaction's snapshot.
    pub(crate) fn read_root(&mut self, name: &str) -> std::result::Result<Option<Root>, Abort> {
        if let Some(change) = self.roots.iter().rev().find(|change| change.name == name) {
            return Ok(change.root);
        }
        let mut root = self.engine.heap.roots().get(name);
        if self.holds_lock {
            return Ok(root);
        }
        while self.engine.control.sequence.number() != self.snapshot {
            self.snapshot = self.look_again().ok_or(Abort::Conflict)?;
            root = self.engine.heap.roots().get(name);
        }
        self.roots_read.push((name.into(), root));
        Ok(root)
    }

    /// Whether everything read still has its value; gives the sequence number of which that is true. Also `None` if others never leave
    /// it the time to look at all of it.
    ///
    /// A value that is the same may come from another transaction than at the first look (ABA): so the transaction depends on the newest
    /// writer of each word, too.
    fn look_again(&mut self) -> Option<u64> {
        for _ in 0..LOOKS_MAX {
            let number = self.engine.control.sequence.wait_even();
            let roots = self.engine.heap.roots();
            if self.reads.iter().any(|&(a, value)| self.blocks.word(a).load(Acquire) != value)
                || self.roots_read.iter().any(|(name, root)| roots.get(name) != *root)
            {
                return None;
            }
            if self.plain {
                (0..self.reads.len()).for_each(|n| self.depend_on_writer(self.reads[n].0));
            }
            // What was loaded is loaded before the number is.
            fence(Acquire);
            if self.engine.control.sequence.number() == number {
                return Some(number);
            }
        }
        None
    }

    /// What `look` finds in shared state that is not in the read set (headers of blocks), as of a moment at which
    /// everything read has its value. `None`: what was read has changed, so nothing that `look` finds may decide
    /// anything.
    ///
    /// Values alone do not tell: between the reads and `look`, and between `look` and a check of the reads, others
    /// may change a word away and back (ABA). So `look` stands between two checks of the sequence number: while that
    /// stays the same, nothing takes effect.
    pub(crate) fn decide<T>(&mut self, look: impl Fn(&Core) -> T) -> Option<T> {
        if self.holds_lock {
            return Some(look(self));
        }
        for _ in 0..LOOKS_MAX {
            self.snapshot = self.look_again()?;
            let found = look(self);
            // What `look` loads is loaded before the number is.
            fence(Acquire);
            if self.engine.control.sequence.number() == self.snapshot {
                return Some(found);
            }
        }
        None
    }

    fn take_effect(&mut self) -> Effect {
        if self.writes.is_empty() && self.touched.is_empty() && !self.changes_tables() {
            return Effect::Done(0);
        }
        let later = self.may_build_later();
        if !later {
            self.build_record();
            if let Some(refused) = self.check_room() {
                return refused;
            }
        }
        let stamps = self.stamps_lines();
        self.announce_effect(stamps);
        if !self.holds_lock {
            while !self.engine.control.sequence.try_take(self.snapshot) {
                match self.look_again() {
                    Some(number) => self.snapshot = number,
                    None => return Effect::Conflict,
                }
            }
            self.holds_lock = true;
        }
        // From here on everything read is as it was, and stays.
        let timestamp = self.timestamp();
        let stamp = version::stamp(self.lane, timestamp);
        if self.changes_tables()
            && let Err(e) = self.change_tables(stamp)
        {
            self.failed_at = self.engine.writers.are_known().then_some(timestamp);
            return Effect::Failed(e);
        }
        if stamps {
            self.stamp_what_it_changes(stamp);
        }
        for &at in &self.touched {
            let word = self.view.word(at);
            word.store(version::locked(word.load(Relaxed)), Relaxed);
        }
        // Readers that see a word written below see its version locked.
        fence(Release);
        for (a, value) in self.writes.iter() {
            self.view.store(a, value);
        }
        for &at in &self.touched {
            self.view.word(at).store(stamp, Release);
        }
        self.give_lock_back();
        if later {
            debug_assert!(self.ranges.is_empty(), "the heap's words may be others' by now");
            self.build_record();
        }
        Effect::Done(timestamp)
    }

    /// Whether the record can wait until the lock is given back, which other threads may be waiting for: the lock is held already, nothing
    /// but the write set goes into the record, and it fits, whatever the words are.
    #[inline]
    fn may_build_later(&mut self) -> bool {
        if !self.holds_lock || self.changes_tables() {
            return false;
        }
        let words = self.writes.len() as u64;
        let most = Lanes::record_len(words, words);
        !self.engine.is_durable() || 2 * most <= self.engine.lane_len && self.has_room(most)
    }

    /// Puts what it wrote in place, and the words of the write set, into the record.
    #[inline]
    fn build_record(&mut self) {
        let view = self.view;
        self.record.clear();
        self.note_ranges();
        self.record.each(self.writes.iter().map(|(a, value)| (view.offset(a), value)));
    }

    /// Whether it changes the heap's tables: by allocating, by freeing, or roots.
    #[inline]
    fn changes_tables(&self) -> bool {
        self.allocating || !self.frees.is_empty() || !self.roots.is_empty()
    }

    /// Whether the transaction that is about to take effect stamps the lines that it changes. One that read and wrote
    /// nothing but guarded words does not: their readers find it by the versions. Plain readers wait for it as they do
    /// for transactions under versions.
    fn stamps_lines(&self) -> bool {
        let is_guarded = !self.plain && !self.touched.is_empty() && self.frees.is_empty() && self.roots.is_empty();
        self.engine.writers.are_known() && !is_guarded
    }

    /// Stamps the lines of what it writes, and of the blocks that it allocated.
    fn stamp_what_it_changes(&mut self, stamp: u64) {
        let mut line = Addr::MAX;
        for number in 0..self.writes.len() {
            let a = self.writes.address(number);
            if writers::line(a) != line {
                line = writers::line(a);
                self.stamp_line(line, stamp);
            }
        }
        for number in 0..self.ranges.len() {
            let (a, len) = self.ranges[number];
            writers::lines(a, len).for_each(|line| self.stamp_line(line, stamp));
        }
    }

    /// The time at which it takes effect, later than all before. The lock is held.
    pub(crate) fn timestamp(&self) -> u64 {
        match self.engine.control.clock() {
            Clock::Tsc => clock::tsc() - self.first_tick,
            Clock::Counter => self.engine.control.sequence.number() + 1,
        }
    }

    /// Whether the record has room in the log, with what `change_tables` may add.
    pub(crate) fn check_room(&mut self) -> Option<Effect> {
        if !self.engine.is_durable() {
            return None;
        }
        let later = self.roots.len() as u64 * 144 + self.frees.len() as u64 * 160;
        // What was written in place, and a frontier, make a long record of a compact one.
        let frontier = if self.allocating || later > 0 { 128 } else { 0 };
        let len = self.record.len() + later.next_multiple_of(64) + frontier;
        if 2 * len > self.engine.lane_len {
            return Some(Effect::Failed(Error::TooLarge { wanted: len, lane_len: self.engine.lane_len }));
        }
        (!self.has_room(len)).then_some(Effect::NoRoom(len))
    }

    pub(crate) fn give_lock_back(&mut self) {
        if std::mem::take(&mut self.holds_lock) {
            self.engine.control.sequence.give_back();
        }
    }

    /// A body gave up.
    pub(crate) fn count_given_up(&self, abort: &Abort) {
        add(if matches!(abort, Abort::Stale) { &self.counts.stale } else { &self.counts.aborts_user }, 1);
    }

    fn finish_software(&mut self, timestamp: u64) -> Result<()> {
        self.give_lock_back();
        self.engine.control.sequence.leave();
        self.finish_effect(timestamp)
    }

    /// After it took effect: waits until it is durable, and lets go of what it freed.
    #[inline]
    pub(crate) fn finish_effect(&mut self, timestamp: u64) -> Result<()> {
        add(&self.counts.commits_software, 1);
        let done = if timestamp == 0 { self.finish_read_only() } else { self.make_durable(timestamp) };
        if done.is_ok() {
            self.end_journal();
        }
        done
    }

    /// Ends a run that did not take effect: as if it had never been.
    fn undo(&mut self) -> Result<()> {
        self.restore();
        self.give_lock_back();
        self.end_undone()
    }

    /// The rest of [`undo`](Self::undo), without the lock.
    fn end_undone(&mut self) -> Result<()> {
        self.retract();
        let kept = self.keep_structure();
        // Closing waits for this, and must find in the logs what is kept.
        self.engine.control.sequence.leave();
        kept
    }

    /// [`undo`](Self::undo) of a run whose caller gets an answer. An answer tells of what the run read, as a result
    /// does: so that is durable before the caller has it. (Who is told that something is stale looks again.)
    fn undo_and_answer(&mut self, answer: &Abort) -> Result<()> {
        self.restore();
        self.give_lock_back();
        if let Err(e) = self.await_what_stamps_hide() {
            // The announcement stays.
            self.engine.control.sequence.leave();
            return Err(e);
        }
        // Undoing may log headers of blocks, in a transaction of its own.
        let read = (self.unguarded, self.plain, std::mem::take(&mut self.dependencies));
        self.end_undone()?;
        (self.unguarded, self.plain, self.dependencies) = read;
        self.await_what_answer_tells(answer)
    }

    /// After a run that stamped lines or roots and then failed: waits, announced as one that took effect, until the
    /// transactions are durable whose stamps it replaced. No stamp names these any more, and a transaction that finds
    /// this run's stamps waits until its announcement goes.
    fn await_what_stamps_hide(&mut self) -> Result<()> {
        let Some(timestamp) = self.failed_at.take() else { return Ok(()) };
        self.engine.control.lanes[self.lane].announced.store(timestamp, Release);
        self.wait_for_dependencies(timestamp)
    }

    pub(crate) fn await_what_answer_tells(&mut self, answer: &Abort) -> Result<()> {
        if matches!(answer, Abort::Stale | Abort::Conflict) {
            return Ok(());
        }
        self.wait_for_dependencies(self.engine.control.no_sooner() + 1)
    }

    /// Takes the sequence lock, whatever was read.
    pub(crate) fn take_lock(&mut self) {
        let sequence = &self.engine.control.sequence;
        while !self.holds_lock {
            self.holds_lock = sequence.try_take(sequence.wait_even());
        }
    }
}

/// Makes the pages of an empty list writable. Nothing but the hardware path writes to it, and a page fault there only aborts: without this,
/// a page that was never touched, or that a fork has made read-only, would send every transaction here, for ever.
fn touch_pages<T>(list: &mut Vec<T>) {
    let step = (towa_media::PAGE / size_of::<T>()).max(1);
    let spare = list.spare_capacity_mut();
    let last = spare.len().saturating_sub(1);
    for at in (0..spare.len()).step_by(step).chain(Some(last)) {
        if let Some(slot) = spare.get_mut(at) {
            // SAFETY: inside the list's own memory, where no element is; any byte will do there.
            unsafe { slot.as_mut_ptr().cast::<u8>().write_volatile(0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use towa_media::RamMedium;

    use super::*;
    use crate::{Commit, Options, Pool, TmChoice};

    /// What a transaction read has its values again, but in between it had others: what was seen then of a header is
    /// out of date.
    #[test]
    fn what_is_not_in_the_read_set_is_looked_at_while_the_reads_hold() {
        // Buffered: a strict transaction would wait for the body that runs it.
        let options = Options { heap_len: 1 << 20, lanes: 4, tm: TmChoice::Stm, commit: Commit::Buffered, ..Options::default() };
        let pool = Pool::create_on(RamMedium::anonymous(), &options).unwrap();
        let (mut one, two) = (pool.register().unwrap(), std::sync::Mutex::new(pool.register().unwrap()));
        let top = one.transaction(|tx| tx.alloc(16)).unwrap();
        let block = one.transaction(|tx| tx.alloc(16)).unwrap();
        one.transaction(|tx| tx.write(top, block)).unwrap();
        let beside = |body: &(dyn Fn(&mut Tx<'_>) -> std::result::Result<(), Abort> + Sync)| {
            let run = || two.lock().unwrap().transaction(body).unwrap();
            std::thread::scope(|scope| scope.spawn(run).join().unwrap());
        };
        let looks = std::cell::Cell::new(0);
        let decided = one.transaction_software(|tx| {
            tx.read(top)?;
            Ok(tx.core.decide(|core| {
                looks.set(looks.get() + 1);
                if looks.get() > 1 {
                    return core.is_live(block);
                }
                beside(&|tx| tx.write(top, 0).and_then(|()| tx.free(block)));
                let seen = core.is_live(block);
                beside(&|tx| {
                    assert_eq!(tx.alloc(16)?, block, "what it just freed");
                    tx.write(top, block)
                });
                seen
            }))
        });
        assert_eq!((decided.unwrap(), looks.get()), (Some(true), 2));
    }
}
