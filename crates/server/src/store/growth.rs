//! Doubling the table, in steps that can stop anywhere.
//!
//! Every step is a transaction of its own, and the next start goes on where the recovered epoch stopped: segments that are there
//! stay, lines that are split stay split.
//!
//! ```text
//!   widen:         provide the new level's segments, one a transaction -> record bits + 1, splitting -> publish
//!   split_stripe:  split some lines under their stripe's lock; stores split the line they insert into
//!   end_split:     all lines are split -> record not splitting -> publish
//! ```
//!
//! Called by the upkeep thread alone.

use std::sync::atomic::{AtomicBool, Ordering};

use towa_epoch::{Result, Thread};

use super::table::{BITS_MIN, STRIPES, Shape};
use super::{Failure, Store, Worker, root};

/// Bytes that splitting one line may write: its own two lines, and a link in each of some dozens of items.
const SPLIT_WRITES: usize = 4096;

impl Store {
    /// Doubles the number of lines, all still to be split. `false` when asked to stop before it was done.
    pub(super) fn widen(&self, thread: &mut Thread, stop: &AtomicBool) -> Result<bool> {
        let bits = self.shape().bits + 1;
        let level = bits - BITS_MIN;
        for index in 0..root::segments_of(level) {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            self.roots.provide_segment(thread, &self.table, level, index)?;
            self.fit_bound();
        }
        let shape = Shape { bits, splitting: true };
        self.roots.put_shape(thread, shape)?;
        self.table.set_shape(shape);
        self.fit_bound();
        Ok(true)
    }

    /// Splits lower lines of `stripe` from its `from`-th on, at most `most`; where to go on, or `None` when all are split.
    pub(super) fn split_stripe(
        &self,
        worker: &mut Worker,
        stripe: usize,
        from: u64,
        most: u64,
    ) -> std::result::Result<Option<u64>, Failure> {
        let mut locked = self.lock(stripe as u64);
        let lines = locked.shape.lines() / 2 / STRIPES as u64;
        let end = (from + most).min(lines);
        let tx = worker.begin_upkeep((end - from) as usize * SPLIT_WRITES)?;
        for line in from..end {
            locked.aim(stripe as u64 + line * STRIPES as u64);
            locked.split(&tx);
        }
        tx.commit();
        Ok((end < lines).then_some(end))
    }

    /// Notes that every line is split.
    pub(super) fn end_split(&self, thread: &mut Thread) -> Result<()> {
        let shape = Shape { splitting: false, ..self.shape() };
        self.roots.put_shape(thread, shape)?;
        self.table.set_shape(shape);
        Ok(())
    }
}
