//! What a load generator keeps of the answers it gets: their latencies, and when they came.
//!
//! What must hold: a latency is recorded for each answer, and counted in exactly one window.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::windows::WINDOW_NS;
use crate::workload::Op;

/// What an answer said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A value.
    Hit,
    /// A read found none.
    Missing,
    /// A write or a removal is done.
    Done,
    /// A write is refused.
    Refused,
}

/// Latencies and completions of one or many rounds.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Latencies of reads in nanoseconds.
    pub read_ns: Histogram<u64>,
    /// Latencies of writes and removals in nanoseconds.
    pub write_ns: Histogram<u64>,
    /// Completions per 100-us window, all rounds after each other.
    pub counts: Vec<u32>,
    /// Reads that found no value.
    pub misses: u64,
    /// Reads that found one.
    pub hits: u64,
    /// Writes that followed a miss.
    pub refills: u64,
    /// Writes that the server refused.
    pub refused: u64,
}

impl Recorder {
    /// Empty; keeps three digits, up to a minute.
    pub fn new() -> Self {
        let none = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds are valid");
        Self { read_ns: none.clone(), write_ns: none, counts: Vec::new(), misses: 0, hits: 0, refills: 0, refused: 0 }
    }

    /// Requests answered.
    pub fn completed(&self) -> u64 {
        self.read_ns.len() + self.write_ns.len()
    }

    /// Latencies of all requests.
    pub fn latency_ns(&self) -> Histogram<u64> {
        let mut all = self.read_ns.clone();
        all.add(&self.write_ns).expect("the bounds are the same");
        all
    }

    /// Notes the answer to `op`, sent at `sent`, that has just come; windows are counted from `start`, which is window `first`.
    pub(crate) fn note(&mut self, op: Op, answer: Answer, sent: Instant, first: usize, start: Instant) {
        let now = Instant::now();
        let latency_ns = if op == Op::Get { &mut self.read_ns } else { &mut self.write_ns };
        latency_ns.saturating_record((now - sent).as_nanos() as u64);
        let window = first + windows_in(now - start);
        if self.counts.len() <= window {
            self.counts.resize(window + 1, 0);
        }
        self.counts[window] += 1;
        match answer {
            Answer::Hit => self.hits += 1,
            Answer::Missing => self.misses += 1,
            Answer::Refused => self.refused += 1,
            Answer::Done => {}
        }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

/// Whole windows in `time`.
pub(crate) fn windows_in(time: Duration) -> usize {
    (time.as_nanos() as u64 / WINDOW_NS) as usize
}
