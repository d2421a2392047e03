//! What the engine has been doing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The engine's figures at one moment.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Epoch that new transactions join.
    pub epoch: u64,
    /// Newest epoch that is durable.
    pub durable_epoch: u64,
    /// Microseconds of work that a crash now could lose: since the end of the newest durable epoch, or 0 when nothing was
    /// changed since.
    pub durable_age_us: u64,
    /// Checkpoints taken since the pool was opened.
    pub checkpoints: u64,
    /// Log bytes live now.
    pub log_bytes: u64,
    /// Log capacity in bytes.
    pub log_capacity: u64,
    /// Lines logged since the pool was opened; in place: lines whose old bytes were, as far as threads have told.
    pub lines_logged: u64,
    /// Of these, old lines saved by users (copy on write).
    pub lines_copied_on_write: u64,
    /// Times a transaction start waited for log space.
    pub stalls: u64,
    /// Microseconds so waited, over all threads.
    pub stall_us: u64,
    /// Longest wait for the transactions of an old epoch, in microseconds.
    pub boundary_us_max: u64,
    /// Longest time from an epoch's end until it was durable, in microseconds.
    pub checkpoint_us_max: u64,
    /// Bytes of DRAM that hold the lists of marked lines, as of the newest checkpoint, and saved lines.
    pub list_bytes: u64,
    /// Bytes in use by live blocks.
    pub heap_used: u64,
    /// Heap capacity in bytes.
    pub heap_len: u64,
    /// Registered threads.
    pub threads: u64,
    /// Share of a lazily opened heap that is in anonymous memory by now, in per cent.
    pub warm_percent: u64,
    /// Lines replayed from the log at open; in place: undone.
    pub recovered_lines: u64,
    /// Microseconds that recovery took at open.
    pub recovery_us: u64,
    /// Bytes written to the medium since the pool was opened, all files.
    pub medium_bytes: u64,
    /// Fences on the medium since the pool was opened (on `file`: fdatasync calls).
    pub medium_fences: u64,
}

/// Counters that threads and persister add to.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub checkpoints: AtomicU64,
    pub lines_logged: AtomicU64,
    pub lines_saved: AtomicU64,
    pub stalls: AtomicU64,
    pub stall_us: AtomicU64,
    pub boundary_us_max: AtomicU64,
    pub list_bytes: AtomicU64,
    pub checkpoint_us_max: AtomicU64,
}

impl Counts {
    pub fn fill(&self, stats: &mut Stats) {
        stats.checkpoints = self.checkpoints.load(Relaxed);
        stats.lines_logged = self.lines_logged.load(Relaxed);
        stats.lines_copied_on_write = self.lines_saved.load(Relaxed);
        stats.stalls = self.stalls.load(Relaxed);
        stats.stall_us = self.stall_us.load(Relaxed);
        stats.boundary_us_max = self.boundary_us_max.load(Relaxed);
        stats.list_bytes = self.list_bytes.load(Relaxed);
        stats.checkpoint_us_max = self.checkpoint_us_max.load(Relaxed);
    }
}
