//! One line on stderr that says where a run is: rewritten in place on a terminal, one line per section elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Where the run is, and how long it may take.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    limit: Option<Duration>,
    live: bool,
    section: String,
}

impl Progress {
    /// Begins now, without a limit.
    pub fn new() -> Self {
        Self { start: Instant::now(), limit: None, live: std::io::stderr().is_terminal(), section: String::new() }
    }

    /// Begins now and should end within `limit`.
    pub fn within(limit: Duration) -> Self {
        Self { limit: Some(limit), ..Self::new() }
    }

    /// Whether more than `share` (0..=1) of the limit is spent: time to leave out what can be left out.
    pub fn spent(&self, share: f64) -> bool {
        self.limit.is_some_and(|limit| self.start.elapsed() > limit.mul_f64(share))
    }

    /// Seconds since the beginning.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Something new begins.
    pub fn section(&mut self, what: &str) {
        self.section = what.to_owned();
        if self.live {
            self.step("");
        } else {
            eprintln!("[{:4.0} s] {what}", self.seconds());
        }
    }

    /// A step of it.
    pub fn step(&self, what: &str) {
        if self.live {
            eprint!("\r\x1b[K[{:4.0} s] {} {what}", self.seconds(), self.section);
            let _ = std::io::stderr().flush();
        }
    }

    /// Takes the line away.
    pub fn done(&self) {
        if self.live {
            eprint!("\r\x1b[K");
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}
