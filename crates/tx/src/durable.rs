//! From taking effect to being durable: the record, its place in the log, and what it waits for.
//!
//! ```text
//!   took effect at t ─► announced = t ─► what it depends on is durable ─► record + write-back + fence ─► head ─► announced = 0
//!
//!   will take effect at t ─► announced = t ─► record + write-back ─► takes effect ─► fence ─► head ─► announced = 0
//! ```
//!
//! The second way is for changes that depend on nothing and from here on cannot fail: the record is on its way while their words are.
//!
//! Stopping after each step is safe:
//! - before the record is whole and durable: it fails its sum, the transaction is not there, and it has not returned. Whoever depends
//!   on it waits for `announced` to go, so no record that needs this one is in any log;
//! - after it: the transaction is there, and so is everything it depends on.
//!
//! So every whole record counts, and one fence a transaction is enough: nothing like a second, "committed" mark is needed.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use crossbeam_utils::Backoff;
use towa_media::LINE;

use crate::control;
use crate::error::Result;
use crate::options::Commit;
use crate::stats::add;
use crate::thread::Core;

/// Of so many records that of one is timed, whatever its length: reading the clock takes some tenth of what a record does.
const TIMED_ONE_IN: u64 = 16;

impl Core {
    /// After a hardware transaction took effect.
    #[inline]
    pub fn finish_hardware(&mut self, timestamp: u64) -> Result<()> {
        add(&self.counts.commits_hardware, 1);
        if self.noted.is_empty() && self.touched.is_empty() {
            return self.finish_read_only();
        }
        self.record.clear();
        let view = self.view;
        self.record.each(self.noted.iter().map(|&(a, value)| (view.offset(a), value)));
        self.make_durable(timestamp)
    }

    /// After a transaction that wrote nothing: what it read must be durable.
    pub fn finish_read_only(&mut self) -> Result<()> {
        add(&self.counts.commits_read_only, 1);
        self.retract();
        self.wait_for_dependencies(self.engine.control.no_sooner() + 1)
    }

    /// Makes the transaction that took effect at `timestamp`, whose words are in `record`, durable, or hands them on where commits are
    /// buffered. An error has poisoned the pool; the announcement stays, so nobody takes for durable what depends on it.
    pub fn make_durable(&mut self, timestamp: u64) -> Result<()> {
        // The shared part is borrowed, never cloned, here: its count would be one word that all threads write, twice a transaction.
        if self.engine.is_volatile() {
            self.retract();
            return Ok(());
        }
        self.record.set_ts(timestamp);
        if self.engine.commit == Commit::Buffered {
            self.engine.buffers[self.lane].push(&self.record);
            self.retract();
            return Ok(());
        }
        self.engine.control.lanes[self.lane].announced.store(timestamp, Release);
        let waited = self.counts.dependency_ns.load(Relaxed);
        self.wait_for_dependencies(timestamp)?;
        add(&self.counts.durability_ns, self.counts.dependency_ns.load(Relaxed) - waited);
        self.append_and_retract(|_| ())
    }

    /// [`make_durable`](Self::make_durable) of what `effect` has take effect: where nothing is to be waited for, while its record is on its
    /// way already. Nobody can depend on it before, and whoever does then waits for the announcement to go, as ever.
    #[inline]
    pub fn make_durable_with(&mut self, timestamp: u64, effect: impl FnOnce(&Core)) -> Result<()> {
        if self.has_dependencies() || self.engine.is_volatile() || self.engine.commit == Commit::Buffered {
            effect(self);
            return self.make_durable(timestamp);
        }
        self.record.set_ts(timestamp);
        self.engine.control.lanes[self.lane].announced.store(timestamp, Release);
        self.append_and_retract(effect)
    }

    #[inline]
    fn append_and_retract(&mut self, meanwhile: impl FnOnce(&Core)) -> Result<()> {
        let began = self.is_timed().then(|| self.engine.ticks.now());
        self.append(meanwhile)?;
        self.retract();
        if let Some(began) = began {
            add(&self.counts.durability_ns, self.engine.ticks.now().saturating_sub(began) * TIMED_ONE_IN);
        }
        if self.position > self.hurry_at {
            self.hurry();
        }
        Ok(())
    }

    /// Whether it is measured how long the next record takes to be durable.
    #[inline]
    fn is_timed(&self) -> bool {
        (self.position / LINE as u64).is_multiple_of(TIMED_ONE_IN)
    }

    /// Appends the record to the lane, durably. What it depends on is durable. `meanwhile` is done, in any case, between writing the record and
    /// waiting for it.
    #[inline]
    fn append(&mut self, meanwhile: impl FnOnce(&Core)) -> Result<()> {
        let engine = &*self.engine;
        let lanes = engine.heap.lanes();
        let appended = lanes.append(self.lane, self.position, &self.record);
        meanwhile(self);
        let appended = appended.and_then(|end| lanes.fence().map(|()| end));
        let end = appended.inspect_err(|e| engine.poison(e.to_string()))?;
        add(&self.counts.log_bytes, end - self.position);
        add(&self.counts.log_words, self.record.count());
        self.position = end;
        engine.control.lanes[self.lane].head.store(end, Release);
        Ok(())
    }

    /// Much of the log is taken: looks again, and asks for a checkpoint long before it is full.
    #[cold]
    fn hurry(&mut self) {
        let control = &self.engine.control;
        self.seen_tail = control.lanes[self.lane].tail.load(Acquire);
        if self.position - self.seen_tail > self.engine.early {
            control.request();
            // It takes a while: asked again only if it has not come by then.
            self.hurry_at = self.position + self.engine.early / 4;
        } else {
            self.hurry_at = self.seen_tail + self.engine.early;
        }
    }

    /// Whether the lane has room for a record of `len` bytes, wherever it comes to lie (buffered commits: whether the buffer has).
    #[inline]
    pub fn has_room(&mut self, len: u64) -> bool {
        if self.engine.commit == Commit::Buffered {
            return !self.engine.buffers[self.lane].is_full();
        }
        // A pad is shorter than the record behind it: mostly that is all there is to know.
        if self.position + 2 * len - self.seen_tail <= self.engine.lane_len {
            return true;
        }
        let end = self.engine.heap.lanes().end_of(self.position, len);
        if end - self.seen_tail > self.engine.lane_len {
            self.seen_tail = self.engine.control.lanes[self.lane].tail.load(Acquire);
        }
        end - self.seen_tail <= self.engine.lane_len
    }

    /// Waits until there is room for a record of `len` bytes.
    #[inline]
    pub fn make_room(&mut self, len: u64) -> Result<()> {
        if self.engine.is_durable() && !self.has_room(len) { self.wait_for_room(len) } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_room(&mut self, len: u64) -> Result<()> {
        let engine = Arc::clone(&self.engine);
        let began = engine.ticks.now();
        let backoff = Backoff::new();
        loop {
            // Nobody waits here announced, so closing the pool need not wait for him.
            engine.check()?;
            let done = engine.control.done.load(Acquire);
            engine.control.request();
            if self.has_room(len) {
                break;
            }
            if engine.is_manual() {
                engine.checkpoint_here()?;
            } else if backoff.is_completed() {
                control::wait(&engine.control.done, done, Duration::from_millis(2));
            } else {
                backoff.snooze();
            }
        }
        add(&self.counts.log_full_ns, engine.ticks.now().saturating_sub(began));
        Ok(())
    }
}
