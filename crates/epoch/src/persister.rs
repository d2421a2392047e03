//! The persister: takes one epoch after another to the log, and from there to the image.
//!
//! One checkpoint of epoch *e*:
//!
//! ```text
//!   1 advance   clock: e -> e+1; wait until every transaction of e has ended (those of e+1 run meanwhile)
//!   2 read      copy the lines of e's address lists into log frames; users of e+1 save a line of e before overwriting it
//!   3 saved     read_done = e; append the users' saved lines, which win at replay (lists.rs says why nobody is waited for)
//!   4 commit    fence, commit record, fence: e is durable
//!   5 apply     line media: copy the log's lines into the image at once; sync media: later, many epochs together
//!   6 cut       fence the image, superblock, fence; log space is free again
//! ```
//!
//! A heap in place (`towa_heap::undo`) has step 1 and, in place of all others, the head of its undo log.
//!
//! Stopping after any step is safe: before the end of 4 the image and log hold epoch e-1 (frames without a record are nothing);
//! after it, image + log hold e whatever part of 5 was done, until 6 says that the image alone does.

use std::sync::atomic::{AtomicU64 as StdU64, AtomicUsize as StdUsize, Ordering::*};
use std::time::{Duration, Instant};

use towa_heap::log::frame::unpack_run;
use towa_heap::log::{EpochWriter, FrameBuilder};
use towa_heap::undo::Undo;
use towa_media::persist::prefetch;
use towa_media::{Durability, LINE};

use crate::engine::Engine;
use crate::gate::Reason;
use crate::lists::SavedLines;
use crate::pacer::{Pacer, Scheduling};
use crate::sync::fence;
use crate::{Mode, Result};

/// Image bytes provided ahead of the allocator's frontier.
const PROVIDE_AHEAD: u64 = 32 << 20;

/// Where a checkpoint is, for tests that act in between.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The clock has advanced; transactions of the old epoch may still run.
    Advanced,
    /// All transactions of the old epoch have ended.
    Quiet,
    /// Some lines were read; more follow.
    Reading,
    /// All lines were read and the users' saved lines are next.
    Read,
    /// The epoch is committed.
    Committed,
    /// The image holds it durably and the log is cut (line media).
    Applied,
}

/// Work state of the one checkpoint that runs at a time.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    /// Checksum of the newest commit.
    prev: u64,
    frame: FrameBuilder,
    pacer: Pacer,
    /// When the running epoch began.
    epoch_began: Instant,
    /// Somebody waits for the epoch that is being taken.
    in_hurry: bool,
    /// Where the heap's frontier was at the checkpoint before.
    frontier: u64,
}

impl Checkpointer {
    pub fn new(engine: &Engine) -> Self {
        Self {
            prev: engine.heap.recovered().1,
            frame: FrameBuilder::new(),
            pacer: Pacer::new(),
            epoch_began: Instant::now(),
            in_hurry: false,
            frontier: engine.heap.allocator().frontier(),
        }
    }

    /// Takes the current epoch to the log (and on line media to the image), unless nothing was changed in it. Gives the newest
    /// durable epoch. An error has poisoned the pool.
    pub fn checkpoint(&mut self, engine: &Engine, observe: &mut dyn FnMut(Phase)) -> Result<u64> {
        engine.check()?;
        engine.check_files(false)?;
        self.in_hurry = engine.take_urgency();
        // Before the look: what is changed after that is younger.
        let now = Instant::now();
        if !engine.slots.any_dirty(engine.clock.epoch()) {
            engine.note_idle(now);
            // A reservation that came and went may have kept the gate closed at the last look, and nothing else opens it now.
            engine.review_gate();
            if !self.frees_blocks(engine) {
                engine.check()?;
                return Ok(engine.durable.load(Acquire));
            }
        }
        if let Err(e) = self.take(engine, observe) {
            engine.poison(e.to_string());
            return Err(e);
        }
        if self.is_short_of_blocks(engine) {
            // The blocks of the epoch just made durable come free with the next one. Threads wait for them, or would have to ask twice.
            self.take(engine, &mut |_| ()).inspect_err(|e| engine.poison(e.to_string()))?;
        }
        engine.check()?;
        Ok(engine.durable.load(Acquire))
    }

    /// Whether a checkpoint of nothing is wanted: in place the durable epoch's blocks are taken until the next one is durable.
    fn frees_blocks(&self, engine: &Engine) -> bool {
        let is_wanted = self.in_hurry || engine.manual || engine.gate.is_closed_for(Reason::LogSpace);
        is_wanted && engine.heap.undo().is_some_and(|undo| undo.in_use() > 0)
    }

    /// Whether a heap in place is short of blocks although an epoch has become durable.
    fn is_short_of_blocks(&self, engine: &Engine) -> bool {
        let is_short = |undo: &Undo| undo.in_use() > undo.capacity() / 2;
        let Some(undo) = engine.heap.undo().filter(|undo| undo.in_use() > 0) else { return false };
        engine.gate.is_closed_for(Reason::LogSpace) || engine.manual && is_short(undo)
    }

    fn take(&mut self, engine: &Engine, observe: &mut dyn FnMut(Phase)) -> Result<()> {
        if engine.heap.undo().is_none() {
            wait_for_commit_slot(engine)?;
        }
        let began = Instant::now();
        let stop_the_world = engine.mode == Mode::StopTheWorld;
        if stop_the_world {
            engine.gate.close(&engine.clock, Reason::Checkpoint);
            wait_all(engine, |slot| !slot.announcement.is_busy());
        }
        // Before the epoch is over: what its state's age is counted from must not be younger than the state.
        let ended = Instant::now();
        let epoch = engine.clock.advance();
        observe(Phase::Advanced);
        wait_all(engine, |slot| !slot.announcement.is_in(epoch));
        engine.counts.boundary_us_max.fetch_max(began.elapsed().as_micros() as u64, Relaxed);
        observe(Phase::Quiet);
        engine.check()?;
        if let Some(undo) = engine.heap.undo() {
            return self.take_in_place(engine, undo, epoch, ended, observe);
        }

        let writer = engine.heap.log().begin(epoch, self.prev);
        self.pace(engine, epoch);
        let lines = self.read_lines(engine, &writer, epoch, observe)?;
        engine.read_done.store(epoch, Release);
        // Pairs with the fence in `SavedLines::save`.
        fence(Acquire);
        observe(Phase::Read);
        let saved = self.append_saved(engine, &writer, epoch)?;
        writer.fence()?;
        if stop_the_world {
            engine.gate.open(&engine.clock, Reason::Checkpoint);
        }
        let commit = writer.commit(engine.heap.allocator().frontier())?;
        self.prev = commit.checksum;
        engine.forget_marked(epoch);
        let mut list_bytes = 0;
        for slot in engine.slots.iter() {
            // SAFETY: the persister, after epoch's transactions ended, before epoch + 2.
            let list = unsafe { slot.list(epoch) };
            // The other epoch's list is in use: taken to be as long.
            list_bytes += 2 * list.bytes() + slot.saved.iter().map(SavedLines::bytes).sum::<usize>();
            list.clear();
        }
        engine.counts.list_bytes.store(list_bytes as u64, Relaxed);
        // Who waited for this epoch finds it counted.
        engine.counts.checkpoints.fetch_add(1, Relaxed);
        engine.counts.lines_logged.fetch_add(lines + saved, Relaxed);
        engine.counts.lines_saved.fetch_add(saved, Relaxed);
        engine.counts.checkpoint_us_max.fetch_max(ended.elapsed().as_micros() as u64, Relaxed);
        // What cannot be found again must not be called durable.
        engine.check_files(true)?;
        engine.publish_durable(epoch, ended);
        observe(Phase::Committed);

        engine.pending.0.lock().push_back(commit);
        if durability(engine) == Durability::Line {
            let pacer = &mut self.pacer;
            apply_pending(engine, &mut || pace_tick(engine, pacer, true))?;
            self.pacer.end();
            observe(Phase::Applied);
        } else {
            engine.pending.1.notify_all();
        }
        self.end(engine, epoch);
        if engine.markers.is_some() {
            // A sync medium's image may be many epochs behind; the comparison is of the newest.
            apply_pending(engine, &mut || ())?;
            crate::detector::compare(engine)?;
        }
        Ok(())
    }

    /// The rest of a checkpoint of a heap in place: what was written is in the image already, and is durable with the head of the undo log.
    fn take_in_place(
        &mut self,
        engine: &Engine,
        undo: &Undo,
        epoch: u64,
        ended: Instant,
        observe: &mut dyn FnMut(Phase),
    ) -> Result<()> {
        // What cannot be found again must not be called durable.
        engine.check_files(true)?;
        undo.publish(epoch, engine.heap.allocator().frontier())?;
        engine.read_done.store(epoch, Release);
        if engine.mode == Mode::StopTheWorld {
            engine.gate.open(&engine.clock, Reason::Checkpoint);
        }
        engine.counts.checkpoints.fetch_add(1, Relaxed);
        engine.counts.lines_logged.fetch_add(engine.marked[(epoch % 2) as usize].load(Relaxed), Relaxed);
        engine.counts.checkpoint_us_max.fetch_max(ended.elapsed().as_micros() as u64, Relaxed);
        engine.forget_marked(epoch);
        engine.publish_durable(epoch, ended);
        observe(Phase::Committed);
        observe(Phase::Applied);
        self.end(engine, epoch);
        Ok(())
    }

    /// What is left to do when `epoch` is durable.
    fn end(&mut self, engine: &Engine, epoch: u64) {
        engine.review_gate();
        if let Some(tags) = &engine.tags {
            tags.sweep(epoch + 1, engine.heap.allocator().frontier() / LINE as u64);
        }
        // Space is provided here and not where a transaction needs it: on tmpfs that means zeroing pages. A full medium is found by
        // the allocation that needs the space.
        self.provide_ahead(engine);
    }

    /// Provides space for what transactions may allocate until the next checkpoint has ended, so that none waits for the medium itself: twice
    /// what they allocated until this one, for on a slow disk a checkpoint takes as long as it takes to fill the log. Nothing for a heap
    /// that does not grow, which may have all the memory that it is to have.
    fn provide_ahead(&mut self, engine: &Engine) {
        let frontier = engine.heap.allocator().frontier();
        let grown = frontier.saturating_sub(std::mem::replace(&mut self.frontier, frontier));
        if grown > 0 {
            let _ = engine.heap.allocator().provide_ahead(PROVIDE_AHEAD.max(grown * 2));
        }
    }

    /// Tells the pacer how much there is to do. A manual or stop-the-world checkpoint does not dawdle.
    fn pace(&mut self, engine: &Engine, epoch: u64) {
        // SAFETY: the persister, after epoch's transactions ended, before epoch + 2.
        let lines = engine.slots.iter().map(|slot| unsafe { slot.list(epoch) }.lines).sum();
        // Epochs end early where the log would not hold a whole interval's lines.
        let period = std::mem::replace(&mut self.epoch_began, Instant::now()).elapsed();
        self.pacer.begin(lines, period.min(engine.interval()));
        if self.in_hurry || engine.manual || engine.mode == Mode::StopTheWorld {
            self.pacer.hurry();
        }
    }

    /// Step 2, on as many threads as there are persisters.
    fn read_lines(&mut self, engine: &Engine, writer: &EpochWriter<'_>, epoch: u64, observe: &mut dyn FnMut(Phase)) -> Result<u64> {
        let mut lists: Vec<&[u64]> = Vec::new();
        for slot in engine.slots.iter() {
            // SAFETY: the persister, after epoch's transactions ended, before epoch + 2.
            let list: &[u64] = &unsafe { slot.list(epoch) }.runs;
            lists.extend(list.chunks(1 << 10));
        }
        if engine.persisters == 1 || lists.len() < 2 {
            let mut lines = 0;
            let cores_are_short = engine.cores_are_short(epoch);
            for list in &lists {
                lines += log_runs(engine, writer, list, &mut self.frame)?;
                pace_tick(engine, &mut self.pacer, cores_are_short);
                observe(Phase::Reading);
            }
            writer.frame(&mut self.frame)?;
            return Ok(lines);
        }
        let (next, total) = (StdUsize::new(0), StdU64::new(0));
        let work = |frame: &mut FrameBuilder| -> Result<()> {
            while let Some(list) = lists.get(next.fetch_add(1, Relaxed)) {
                total.fetch_add(log_runs(engine, writer, list, frame)?, Relaxed);
            }
            writer.frame(frame)?;
            Ok(writer.fence()?)
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..engine.persisters).map(|_| scope.spawn(|| work(&mut FrameBuilder::new()))).collect();
            let mine = work(&mut self.frame);
            others.into_iter().try_for_each(|o| o.join().expect("logging does not panic")).and(mine)
        })?;
        Ok(total.into_inner())
    }

    /// Step 3: the users' saved lines, behind everything else.
    fn append_saved(&mut self, engine: &Engine, writer: &EpochWriter<'_>, epoch: u64) -> Result<u64> {
        let mut saved = 0;
        for slot in engine.slots.iter() {
            slot.saved_for(epoch).for_each(epoch, |index, line| -> Result<()> {
                if self.frame.room() == 0 {
                    writer.frame(&mut self.frame)?;
                }
                self.frame.run(index, 1).copy_from_slice(line);
                saved += 1;
                Ok(())
            })?;
        }
        writer.frame(&mut self.frame)?;
        Ok(saved)
    }
}

/// A commit record overwrites the one that had its slot before: that one must be cut.
fn wait_for_commit_slot(engine: &Engine) -> Result<()> {
    let slots = engine.heap.log().commit_slots() as usize;
    let mut pending = engine.pending.0.lock();
    while pending.len() + 2 > slots {
        engine.check()?;
        if engine.manual {
            drop(pending);
            return apply_pending(engine, &mut || ());
        }
        engine.pending.1.wait_for(&mut pending, Duration::from_millis(200));
    }
    Ok(())
}

fn durability(engine: &Engine) -> Durability {
    engine.heap.medium().map_or(Durability::Line, |m| m.durability())
}

/// Sleeps if the pacer says so, unless somebody waits for this epoch.
fn pace_tick(engine: &Engine, pacer: &mut Pacer, may_sleep: bool) {
    if engine.is_urgent() {
        pacer.hurry();
    }
    pacer.tick(may_sleep);
}

/// Steps 5 and 6 for all epochs that are committed and not yet cut; `pause` is called between pieces of work.
pub(crate) fn apply_pending(engine: &Engine, pause: &mut dyn FnMut()) -> Result<()> {
    let _one_at_a_time = engine.applying.lock();
    let commits: Vec<_> = engine.pending.0.lock().iter().copied().collect();
    let Some(last) = commits.last() else {
        return Ok(());
    };
    // The paper's stop-the-world checkpoint does this with several threads, too.
    let threads = if engine.mode == Mode::StopTheWorld { engine.persisters } else { 1 };
    engine.heap.apply(&commits, threads, pause)?;
    engine.heap.cut(last)?;
    engine.pending.0.lock().drain(..commits.len());
    engine.pending.1.notify_all();
    engine.review_gate();
    Ok(())
}

/// Copies the lines of `runs` into frames.
fn log_runs(engine: &Engine, writer: &EpochWriter<'_>, runs: &[u64], frame: &mut FrameBuilder) -> Result<u64> {
    const AHEAD: usize = 6;
    let base = engine.heap.base().as_ptr().cast_const();
    let mut total = 0;
    for (i, &run) in runs.iter().enumerate() {
        if let Some(&soon) = runs.get(i + AHEAD) {
            prefetch(base.wrapping_add(unpack_run(soon).0 as usize * LINE));
        }
        let (mut first, mut lines) = unpack_run(run);
        total += lines;
        while lines > 0 {
            if frame.room() == 0 {
                writer.frame(frame)?;
            }
            let now = lines.min(frame.room() as u64);
            let into = frame.run(first, now as usize);
            // SAFETY: marked lines lie in the heap (`Tx::mark` checks), which stays mapped.
            unsafe { copy_while_written(base.add(first as usize * LINE), into) };
            (first, lines) = (first + now, lines - now);
        }
    }
    Ok(total)
}

/// Copies whole lines that a user thread may be overwriting at this moment. What is read then is worthless, and replaced by the
/// line that the user saved before; so only the reading itself must be sound: atomic words, as in a seqlock.
///
/// # Safety
/// `into.len()` bytes from `from` (64-byte aligned) are mapped.
unsafe fn copy_while_written(from: *const u8, into: &mut [u8]) {
    debug_assert!(from.addr().is_multiple_of(LINE) && into.len().is_multiple_of(LINE));
    for (i, word) in into.chunks_exact_mut(8).enumerate() {
        // SAFETY: mapped and aligned, by the caller's promise.
        let value = unsafe { &*from.cast::<StdU64>().add(i) }.load(Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
    }
}

/// Waits until `condition` holds for every slot: a moment of spinning for transactions that are about to end, then politely.
pub(crate) fn wait_all(engine: &Engine, condition: impl Fn(&crate::slot::Slot) -> bool) {
    for slot in engine.slots.iter() {
        let mut tries = 0u32;
        while !condition(slot) {
            tries += 1;
            match tries {
                0..64 => std::hint::spin_loop(),
                64..80 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    }
}

/// The background thread that takes checkpoints, every interval or when asked.
pub(crate) fn run(engine: &Engine, checkpointer: &parking_lot::Mutex<Checkpointer>) {
    let mut scheduling = Scheduling::of_this_thread();
    let mut due = Instant::now() + engine.interval();
    loop {
        {
            let mut requests = engine.requests.0.lock();
            while !requests.stop && !requests.checkpoint && Instant::now() < due {
                engine.requests.1.wait_until(&mut requests, due.min(Instant::now() + Duration::from_secs(1)));
                due = due.min(Instant::now() + engine.interval());
            }
            if requests.stop {
                return;
            }
            requests.checkpoint = false;
        }
        // Counted from when it was due, so that checkpoints do not drift; but one that was asked for ahead of time must not put the
        // next one off: nothing may get older than an interval.
        let now = Instant::now();
        due = (due + engine.interval()).clamp(now, now + engine.interval());
        scheduling.adapt(engine.cores_are_short(engine.clock.epoch()));
        // An error has poisoned the pool, which tells everybody; the thread stays to be stopped.
        let _ = checkpointer.lock().checkpoint(engine, &mut |_| ());
    }
}

/// The background thread that brings the image of a sync medium up and cuts the log, when the log is half full or when asked.
pub(crate) fn run_applier(engine: &Engine) {
    loop {
        {
            let mut pending = engine.pending.0.lock();
            loop {
                let requests = engine.requests.0.lock();
                let (stop, asked) = (requests.stop, requests.bring_up);
                drop(requests);
                if stop || engine.is_poisoned() {
                    return;
                }
                if !pending.is_empty() && (asked || log_is_half_full(engine, pending.len())) {
                    break;
                }
                engine.pending.1.wait_for(&mut pending, Duration::from_millis(200));
            }
        }
        engine.requests.0.lock().bring_up = false;
        if let Err(e) = apply_pending(engine, &mut || ()) {
            engine.poison(e.to_string());
        }
    }
}

/// Whether the image should follow: half the ring or half the commit slots are in use.
pub(crate) fn log_is_half_full(engine: &Engine, epochs: usize) -> bool {
    let log = engine.heap.log();
    log.live() > log.capacity() / 2 || epochs as u64 > log.commit_slots() / 2
}
