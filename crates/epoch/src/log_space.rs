//! Log space: how the engine makes sure that the redo log never overflows, and that only a transaction's start waits for it.
//!
//! ```text
//!   |◄────────────────────────── the log's capacity ──────────────────────────►|
//!   | live (committed, not cut) | marked and saved | reserved | kept free |     |
//!                                                             └ what running transactions may still mark without asking
//! ```
//!
//! What must always hold: a transaction begins only while all of that fits. Marks are told in batches (`account`), so what is kept free
//! covers a batch of each thread, too. A line costs the log its bytes once, and once more if a user of the next epoch saves it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use towa_heap::Heap;
use towa_heap::undo::{self, Undo};

use crate::engine::Engine;
use crate::gate::Reason;
use crate::{Error, Result};

/// Bytes of a ring that a marked line costs at most: itself, a run, its share of headers.
const RING_LINE_COST: u64 = 73;
/// What frames may waste at the end of a ring.
const FRAMES_SLACK: u64 = 2 * towa_heap::log::frame::FRAME_MAX as u64;
/// Lines a thread marks before it tells the others, at most.
const ACCOUNT_LINES: u64 = 1024;

/// What a transaction may mark without asking, and how finely marks are told to the others: the more threads, the less, so that all
/// of them together leave a good part of the log to the work.
#[derive(Debug)]
pub(crate) struct Share {
    lines: AtomicU64,
    account: AtomicU64,
    /// Bytes of the log that an accounted line costs at most.
    accounted_cost: u64,
    /// Bytes of the log that a line may come to, an old one that is saved beside it being counted.
    line_cost: u64,
}

impl Share {
    /// The share of one thread in the log of `heap`; without bounds where that keeps nothing.
    pub fn of(heap: &Heap) -> Share {
        let (accounted_cost, line_cost) =
            if heap.undo().is_some() { (undo::LINE_COST, undo::LINE_COST) } else { (RING_LINE_COST, RING_LINE_COST * 2) };
        let share = Share { lines: AtomicU64::new(u64::MAX), account: AtomicU64::new(ACCOUNT_LINES), accounted_cost, line_cost };
        if !heap.is_volatile() {
            share.divide(heap.log_capacity(), 1);
        }
        share
    }

    /// A transaction may mark a 128th of the log, a line and an old one saved for it being counted; where more than 32 threads are
    /// registered, half of the log is divided among them.
    fn divide(&self, capacity: u64, threads: u64) {
        let lines = (capacity / (self.line_cost * 64)).min(capacity / (self.line_cost * 2) / threads.max(1)).clamp(1, 1 << 16);
        self.lines.store(lines, Relaxed);
        self.account.store((lines / 4).clamp(1, ACCOUNT_LINES), Relaxed);
    }
}

impl Engine {
    /// Adds `lines` to what transactions of `epoch` marked and saved, and closes the gate before the log can overflow.
    pub fn account(&self, epoch: u64, lines: u64) {
        let mine = self.marked[(epoch % 2) as usize].fetch_add(lines, Relaxed) + lines;
        let capacity = self.log_capacity();
        // Beside the running epoch's there are those of the one that ends, and in place those of the durable one.
        if mine * self.share.accounted_cost > capacity / 4 {
            self.end_epoch();
        }
        let used = self.log_space_used();
        if used > capacity / 8 * 5 {
            self.urgent.store(true, Relaxed); // before users must wait, the persister does not pause
        }
        if used + self.kept_free() > capacity {
            self.request_checkpoint();
            self.gate.close(&self.clock, Reason::LogSpace);
            self.requests.0.lock().bring_up = true;
            self.requests.1.notify_all();
            self.pending.1.notify_all();
            // The persister may have made space between our look and our closing: it looks again after each cut, and so do we.
            self.review_gate();
        }
    }

    /// The log holds `epoch` now, or never will: its lines no longer count beside the log's own bytes.
    pub fn forget_marked(&self, epoch: u64) {
        self.marked[(epoch % 2) as usize].store(0, Relaxed);
    }

    /// Bytes of log that there are.
    pub fn log_capacity(&self) -> u64 {
        self.heap.log_capacity()
    }

    /// Bytes of log that are live.
    pub fn log_live(&self) -> u64 {
        self.heap.undo().map_or_else(|| self.heap.log().live(), Undo::in_use)
    }

    /// Bytes of log that are live, or will be: all marked and saved lines, and what large transactions reserved (each line once, and once
    /// more an old one saved). In place the blocks that are taken say how many lines were marked.
    fn log_space_used(&self) -> u64 {
        let marked: u64 = if self.heap.undo().is_some() { 0 } else { self.marked.iter().map(|m| m.load(Relaxed)).sum() };
        self.log_live() + marked * self.share.accounted_cost + self.reserved.load(Relaxed) * self.share.line_cost
    }

    /// Bytes of log kept free for what running transactions may mark without asking. In place that is told by blocks, of which a
    /// thread may have begun one in each of three epochs; at most half of the log, so that some threads can always go on. (Blocks
    /// beyond its length are there for the rest.)
    fn kept_free(&self) -> u64 {
        let threads = self.slots.taken() as u64;
        match self.heap.undo() {
            Some(undo) => {
                let each = Undo::most_for(self.share_lines() + self.account_lines()) + 2 * Undo::most_for(0);
                (threads * each).min(undo.capacity() / 2)
            }
            None => threads * (self.share_lines() + self.account_lines()) * self.share.line_cost + FRAMES_SLACK,
        }
    }

    /// Bytes of the log that no line gets.
    fn fixed_slack(&self) -> u64 {
        if self.heap.undo().is_some() { Undo::most_for(0) } else { FRAMES_SLACK }
    }

    /// Whether a transaction that starts now might overflow the ring.
    fn log_space_is_short(&self) -> bool {
        self.is_short_of(0)
    }

    /// Whether one that reserves `lines` might.
    fn is_short_of(&self, lines: u64) -> bool {
        self.log_space_used() + lines * self.share.line_cost + self.kept_free() > self.log_capacity()
    }

    /// Lines that any transaction may mark; log space for them is kept free at every start.
    #[inline]
    pub fn share_lines(&self) -> u64 {
        self.share.lines.load(Relaxed)
    }

    /// Lines a thread marks before it tells the others.
    #[inline]
    pub fn account_lines(&self) -> u64 {
        self.share.account.load(Relaxed)
    }

    /// The number of registered threads has changed, and with it what each may mark.
    pub fn threads_changed(&self) {
        if !self.heap.is_volatile() {
            self.share.divide(self.log_capacity(), self.slots.taken() as u64);
            self.review_gate();
        }
    }

    /// Log space for `lines` more of a running transaction, which cannot wait: whether there is any that nobody has marked or
    /// reserved. What is kept free for others is used if need be. Undone by [`unreserve`](Self::unreserve).
    pub fn reserve_more(&self, lines: u64) -> bool {
        self.reserved.fetch_add(lines, Relaxed);
        let fits = self.log_space_used() + self.fixed_slack() <= self.log_capacity();
        if !fits {
            self.unreserve(lines);
        }
        fits
    }

    /// Lines that a transaction of `bytes` has to reserve; none where its share is enough.
    fn lines_beyond_share(&self, bytes: usize) -> Result<u64> {
        let lines = (bytes as u64).div_ceil(towa_media::LINE as u64) + 2;
        if self.heap.is_volatile() || lines <= self.share_lines() {
            return Ok(0);
        }
        let (log_len, slack, cost) = (self.log_capacity(), self.fixed_slack(), lines * self.share.line_cost);
        let kept = self.kept_free().max(log_len / 4 + slack);
        if cost + kept > log_len {
            // What is kept free grows with the log, all but the slack.
            let need = (cost + slack) as f64 / (1.0 - (kept - slack) as f64 / log_len as f64).max(0.01);
            return Err(Error::TooLarge { wanted: bytes, log_len, need: need as u64 });
        }
        Ok(lines)
    }

    /// Reserves log space for a transaction of `bytes`, waiting for it. Undone by [`unreserve`](Self::unreserve).
    pub fn reserve(&self, bytes: usize) -> Result<u64> {
        let began = Instant::now();
        for tries in 0.. {
            self.check()?;
            // Asked again in each round: a thread that registers takes a share of the log, and the rest may become too
            // small.
            let lines = self.lines_beyond_share(bytes)?;
            if self.reserve_now(lines) {
                if tries > 0 {
                    self.count_stall(began);
                }
                return Ok(lines);
            }
            if self.manual {
                return Err(no_log_space_in_a_manual_pool());
            }
            self.ask_for_log_space();
            std::thread::sleep(Duration::from_millis(1));
        }
        unreachable!("the loop returns")
    }

    /// [`reserve`](Self::reserve) without waiting: `None` where there is no space now. The persister is asked for some.
    pub fn try_reserve(&self, bytes: usize) -> Result<Option<u64>> {
        let lines = self.lines_beyond_share(bytes)?;
        if self.reserve_now(lines) {
            return Ok(Some(lines));
        }
        self.check()?;
        self.ask_for_log_space();
        Ok(None)
    }

    /// Reserves `lines` if there is log space for them; none are always there.
    fn reserve_now(&self, lines: u64) -> bool {
        if lines == 0 {
            return true;
        }
        self.reserved.fetch_add(lines, Relaxed);
        let fits = !self.log_space_is_short();
        if !fits {
            // The persister may have looked at the gate while these lines were counted, and may not look again: it has no more to do.
            self.unreserve(lines);
        }
        fits
    }

    /// Whether a transaction of `bytes` could begin now without waiting for log space; if not, the persister is asked for some. A
    /// transaction that the log can never hold need not wait either: it is refused.
    pub fn has_log_space(&self, bytes: usize) -> bool {
        let Ok(lines) = self.lines_beyond_share(bytes) else { return true };
        self.review_gate();
        let has = !self.gate.is_closed_for(Reason::LogSpace) && (lines == 0 || !self.is_short_of(lines));
        if !has && !self.is_poisoned() {
            self.ask_for_log_space();
        }
        has || self.is_poisoned()
    }

    /// Asks the persister for a checkpoint, and for the log to be cut as soon as the image holds what it says.
    pub fn ask_for_log_space(&self) {
        self.request_checkpoint();
        self.requests.0.lock().bring_up = true;
        self.pending.1.notify_all();
    }

    pub fn count_stall(&self, began: Instant) {
        self.counts.stalls.fetch_add(1, Relaxed);
        self.counts.stall_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
    }

    /// The transaction that reserved `lines` has ended.
    pub fn unreserve(&self, lines: u64) {
        self.reserved.fetch_sub(lines, Relaxed);
        self.review_gate();
    }

    /// Opens the gate if log space suffices again.
    pub fn review_gate(&self) {
        if self.gate.is_closed_for(Reason::LogSpace) && !self.log_space_is_short() {
            self.gate.open(&self.clock, Reason::LogSpace);
        }
    }
}

pub(crate) fn no_log_space_in_a_manual_pool() -> Error {
    Error::Usage("no log space is left and no persister runs (a manual pool): take a checkpoint".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Pool};

    #[test]
    fn a_gate_that_was_kept_closed_for_a_reservation_that_is_gone_opens_with_the_next_checkpoint() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { heap_len: 64 << 20, log_len: Some(4 << 20), manual: true, ..Options::default() };
        let pool = Pool::create(dir.path(), &options).expect("create");
        let mut thread = pool.register().expect("register");
        while let Some(tx) = thread.try_begin_reserving(0).expect("a sound pool") {
            tx.alloc(4000).expect("space");
            tx.commit();
        }
        let engine = pool.engine();
        // A thread counts what it would reserve, the persister looks at the gate, the thread finds that it does not fit.
        engine.reserved.fetch_add(1 << 16, Relaxed);
        pool.checkpoint().expect("checkpoint");
        pool.apply_now().expect("apply");
        engine.reserved.fetch_sub(1 << 16, Relaxed);
        assert!(engine.gate.is_closed_for(Reason::LogSpace), "the test has not made the case");
        pool.checkpoint().expect("checkpoint");
        assert!(!engine.gate.is_closed_for(Reason::LogSpace));
        assert!(thread.begin().is_ok());
    }
}
