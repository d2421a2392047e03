//! Progress of long work: on standard error, and only where that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar or a spinner; gone when dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

fn target() -> ProgressDrawTarget {
    if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

impl Progress {
    /// A bar for bytes; its length is told with each step.
    pub fn bytes(what: &'static str) -> Progress {
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {bytes} of {total_bytes}, {eta} left");
        let bar = ProgressBar::with_draw_target(Some(0), target()).with_message(what);
        Progress(bar.with_style(style.expect("the template is valid")))
    }

    /// A bar for things that are counted; its length is told with each step.
    pub fn count(what: &'static str) -> Progress {
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {human_pos} of {human_len}, {eta} left");
        let bar = ProgressBar::with_draw_target(Some(0), target()).with_message(what);
        Progress(bar.with_style(style.expect("the template is valid")))
    }

    /// A spinner for work of unknown length.
    pub fn spinner(what: String) -> Progress {
        let bar = ProgressBar::with_draw_target(None, target()).with_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress(bar)
    }

    /// `done` of `all` bytes are done.
    pub fn at(&self, done: u64, all: u64) {
        if self.0.length() != Some(all) {
            self.0.set_length(all);
        }
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
