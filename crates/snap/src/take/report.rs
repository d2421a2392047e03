//! What is told of a checkpoint that was taken.

use std::time::{Duration, Instant};

use crate::memory::precopy::Round;

/// A checkpoint that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    /// Its number.
    pub number: u64,
    /// The process.
    pub pid: i32,
    /// The name of its main thread.
    pub name: String,
    /// How long the process stood still: from before the first thread was stopped until all had been let go.
    pub pause: Duration,
    /// CLOCK_MONOTONIC when that began, in nanoseconds: comparable with what the process itself saw.
    pub stopped_at_ns: u64,
    /// Where the pause went.
    pub breakdown: Breakdown,
    /// From the beginning until it was durable.
    pub total: Duration,
    /// The rounds while it ran.
    pub rounds: Vec<Round>,
    /// The one in the pause.
    pub last: Round,
}

/// Where a pause went, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Breakdown {
    /// Until all threads stood still.
    pub freeze: Duration,
    /// Mappings were read.
    pub maps: Duration,
    /// Calls in the name of the process and its threads.
    pub told: Duration,
    /// Registers, files of /proc.
    pub process: Duration,
    /// Descriptors.
    pub descriptors: Duration,
    /// Changed pages were looked for.
    pub find: Duration,
    /// ... and copied.
    pub copy: Duration,
    /// Files that are open for writing were cloned.
    pub files: Duration,
    /// Until the last thread had been let go.
    pub thaw: Duration,
}

/// Tells how long each of several steps took.
pub(super) struct Steps(pub(super) Instant);

impl Steps {
    pub(super) fn step(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}
