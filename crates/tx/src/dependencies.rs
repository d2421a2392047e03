//! What a transaction must not be durable before, and how it waits for that.
//!
//! ```text
//!   versions that it read            ─► the transactions that stamped them      (version words, `version.rs`)
//!   lines that it read or changed    ─► the transactions that stamped them      (`writers.rs`)
//!   plain words                      ─► also all earlier transactions that stamp no lines, if there are such
//!   roots, or too many of these      ─► all earlier transactions
//! ```
//!
//! What must always hold: a transaction that takes effect depends only on transactions that took effect before it. So none waits for one
//! that waits for it, and the oldest waits for none.

use std::sync::atomic::Ordering::*;

use crossbeam_utils::Backoff;

use crate::error::Result;
use crate::options::Commit;
use crate::stats::add;
use crate::thread::Core;
use crate::version;
use crate::view::Addr;
use crate::writers;

/// Transactions that one depends on which are kept apart; with more it depends on everything older.
pub(crate) const DEPENDENCIES_MAX: usize = 8;

impl Core {
    /// Whether the transaction that stamped this version is known to be durable without a look at its thread.
    #[inline]
    pub fn is_durable(&self, version: u64) -> bool {
        version::lane(version) == self.lane || version::timestamp(version) <= self.known_durable
    }

    /// The transaction that runs must not be durable before the one that stamped this version.
    #[inline]
    pub fn depend_on(&mut self, version: u64) {
        if !self.is_durable(version) && !self.unguarded {
            self.note_dependency(version);
        }
    }

    /// [`depend_on`](Self::depend_on) of the transaction that changed the line of the word at `a` last.
    #[inline]
    pub fn depend_on_writer(&mut self, a: Addr) {
        if self.engine.writers.are_known() {
            self.depend_if_announced(self.engine.writers.last(writers::line(a)));
        }
    }

    /// [`depend_on`](Self::depend_on) of the transaction that set or removed a root last: the program may have looked that root up
    /// before this transaction began, and what this transaction does there must not be durable without it.
    #[inline]
    pub fn depend_on_roots(&mut self) {
        let last = self.engine.roots_writer.load(Acquire);
        if last != self.known_roots {
            self.note_roots(last);
        }
    }

    #[cold]
    fn note_roots(&mut self, last: u64) {
        if self.is_durable(last) || self.was_durable(last) {
            self.known_roots = last;
        } else {
            self.note_dependency(last);
        }
    }

    /// Stamps a line for the transaction that takes effect, which then depends on the one that had stamped it. The sequence lock is held.
    #[inline]
    pub fn stamp_line(&mut self, line: u64, stamp: u64) {
        let before = self.engine.writers.replace(line, stamp);
        self.depend_if_announced(before);
    }

    /// [`depend_on`](Self::depend_on) of a transaction that mostly is durable for a long time.
    #[inline]
    pub fn depend_if_announced(&mut self, stamp: u64) {
        if !self.unguarded && !self.is_durable(stamp) && !self.was_durable(stamp) {
            self.note_dependency(stamp);
        }
    }

    /// Whether the transaction with this stamp is durable: its thread announces nothing, or something newer.
    #[inline]
    pub fn was_durable(&self, stamp: u64) -> bool {
        let announced = self.engine.control.lanes[version::lane(stamp)].announced.load(Acquire);
        announced == 0 || announced > version::timestamp(stamp)
    }

    fn note_dependency(&mut self, version: u64) {
        if let Some(same) = self.dependencies.iter_mut().find(|other| version::lane(**other) == version::lane(version)) {
            *same = version.max(*same);
        } else if self.dependencies.len() < self.dependencies.capacity() {
            self.dependencies.push(version);
        } else {
            self.unguarded = true;
        }
    }

    /// Whether the transaction that runs depends on others.
    #[inline]
    pub fn has_dependencies(&self) -> bool {
        self.unguarded || self.plain || !self.dependencies.is_empty()
    }

    /// Waits until everything is durable that the transaction with this timestamp depends on.
    #[inline]
    pub fn wait_for_dependencies(&mut self, timestamp: u64) -> Result<()> {
        if self.has_dependencies() { self.wait_for_each(timestamp) } else { Ok(()) }
    }

    #[inline(never)]
    fn wait_for_each(&mut self, timestamp: u64) -> Result<()> {
        if self.unguarded {
            let before = timestamp.saturating_sub(1);
            return if before > self.known_durable { self.wait_until_durable(before) } else { Ok(()) };
        }
        if self.plain && self.engine.has_unstamped() {
            self.wait_for_unstamped(timestamp.saturating_sub(1))?;
        }
        while let Some(version) = self.dependencies.pop() {
            self.wait_for_version(version)?;
        }
        Ok(())
    }

    /// Waits until the transaction that stamped this version is durable: its thread announces nothing, or something newer.
    #[inline]
    pub fn wait_for_version(&mut self, version: u64) -> Result<()> {
        if self.was_durable(version) { Ok(()) } else { self.wait(|core| core.was_durable(version)) }
    }

    /// Waits until all is durable that transactions which stamp no lines did up to `timestamp`.
    fn wait_for_unstamped(&mut self, timestamp: u64) -> Result<()> {
        if timestamp <= self.known_unstamped {
            return Ok(());
        }
        self.wait(|core| {
            core.known_unstamped = core.engine.control.unstamped_frontier(core.lane);
            core.known_unstamped >= timestamp
        })
    }

    /// Waits until all that other threads did up to `timestamp` is durable.
    fn wait_until_durable(&mut self, timestamp: u64) -> Result<()> {
        self.wait(|core| {
            core.known_durable = core.engine.control.frontier(core.lane);
            core.known_durable >= timestamp
        })
    }

    /// Waits until `is_over`. Gives way to the other threads, for they may need this very core.
    #[cold]
    #[inline(never)]
    fn wait(&mut self, mut is_over: impl FnMut(&mut Core) -> bool) -> Result<()> {
        if self.engine.is_volatile() || self.engine.commit == Commit::Buffered {
            return Ok(());
        }
        let began = self.engine.ticks.now();
        let backoff = Backoff::new();
        while !is_over(self) {
            self.engine.check_failed()?;
            backoff.snooze();
        }
        add(&self.counts.dependency_ns, self.engine.ticks.now().saturating_sub(began));
        Ok(())
    }
}
