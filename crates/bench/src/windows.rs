//! Stops: how much of the time, and for how long at a stretch, a program ran far below its undisturbed speed.
//!
//! ```text
//!   completions   ▆▆▇▆▇▆▂▁▁▃▆▇▆▆▇▆▆▆▂▆▇      one count per 100-us window
//!   50 % line     ------[====]-------[]-      below the line: stopped; neighbouring stopped windows make one stop
//!   500-us window |    |    |    |    |       five windows; "above" if it holds >= 50 % of five windows' mean
//! ```
//!
//! What must hold:
//! - the line is a share of the *volatile* run's mean rate of the same round, for every engine and for the control;
//! - all shares are of time (of windows), in 0..=1, and the classes of a line add up to its stop share.

use serde::Serialize;

/// Length of the short window, in nanoseconds.
pub const WINDOW_NS: u64 = 100_000;
/// Short windows in a long one (500 us).
pub const LONG: usize = 5;
/// The lines: a window with less than this share of the volatile mean is stopped.
pub const LINES: [f64; 3] = [0.10, 0.30, 0.50];
/// Upper bounds of the length classes in windows (0.5, 1, 5, 10, 50 ms); longer stops are the last class.
const CLASS_BOUNDS: [usize; 5] = [5, 10, 50, 100, 500];
/// Names of the length classes, as in the report.
pub const CLASS_NAMES: [&str; 6] = ["< 0.5 ms", "< 1 ms", "< 5 ms", "< 10 ms", "< 50 ms", ">= 50 ms"];

/// Stops counted in windows; sums over rounds by [`merge`](StopTally::merge).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopTally {
    windows: u64,
    stopped: [u64; 3],
    by_class: [[u64; 6]; 3],
    longest: [u64; 3],
    long_windows: u64,
    long_above: u64,
}

/// Shares of a run's time; JSON as in the report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StopShares {
    /// Share of 100-us windows with less than 10 % of the volatile mean (0..=1).
    pub stop_share_10: f64,
    /// The same below 30 %.
    pub stop_share_30: f64,
    /// The same below 50 %.
    pub stop_share_50: f64,
    /// Share of 500-us windows with at least 50 % of the volatile mean (0..=1).
    pub windows_500us_above_50pct: f64,
    /// Share of time in stops at the 10 / 30 / 50 % line by the stop's length: < 0.5, < 1, < 5, < 10, < 50, >= 50 ms.
    pub stop_share_by_length: StopClasses,
    /// Longest stop at the 50 % line, in ms.
    pub longest_stop_ms: f64,
    /// 100-us windows looked at.
    pub windows: u64,
}

/// Shares of time by length class, one array of six per line.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StopClasses {
    /// At the 10 % line.
    pub line_10: [f64; 6],
    /// At the 30 % line.
    pub line_30: [f64; 6],
    /// At the 50 % line.
    pub line_50: [f64; 6],
}

fn class_of(len: usize) -> usize {
    CLASS_BOUNDS.iter().position(|bound| len < *bound).unwrap_or(CLASS_BOUNDS.len())
}

impl StopTally {
    /// Tallies one run: `counts` are completions per 100-us window, `mean` the volatile run's completions per window.
    pub fn of(counts: &[u32], mean: f64) -> Self {
        let mut tally = StopTally { windows: counts.len() as u64, ..Self::default() };
        for (line, share) in LINES.iter().enumerate() {
            let below = |count: &u32| f64::from(*count) < share * mean;
            for run in counts.chunk_by(|a, b| below(a) == below(b)).filter(|run| below(&run[0])) {
                let len = run.len() as u64;
                tally.stopped[line] += len;
                tally.by_class[line][class_of(run.len())] += len;
                tally.longest[line] = tally.longest[line].max(len);
            }
        }
        for long in counts.chunks_exact(LONG) {
            let sum: u64 = long.iter().map(|c| u64::from(*c)).sum();
            tally.long_windows += 1;
            tally.long_above += u64::from(sum as f64 >= 0.5 * mean * LONG as f64);
        }
        tally
    }

    /// Adds another run's tally; a stop never spans two runs.
    pub fn merge(&mut self, other: &StopTally) {
        self.windows += other.windows;
        self.long_windows += other.long_windows;
        self.long_above += other.long_above;
        for line in 0..LINES.len() {
            self.stopped[line] += other.stopped[line];
            self.longest[line] = self.longest[line].max(other.longest[line]);
            for class in 0..CLASS_NAMES.len() {
                self.by_class[line][class] += other.by_class[line][class];
            }
        }
    }

    /// As shares of time.
    pub fn shares(&self) -> StopShares {
        let share = |n: u64| {
            if self.windows == 0 { 0.0 } else { n as f64 / self.windows as f64 }
        };
        let classes = |line: usize| self.by_class[line].map(share);
        StopShares {
            stop_share_10: share(self.stopped[0]),
            stop_share_30: share(self.stopped[1]),
            stop_share_50: share(self.stopped[2]),
            windows_500us_above_50pct: if self.long_windows == 0 { 0.0 } else { self.long_above as f64 / self.long_windows as f64 },
            stop_share_by_length: StopClasses { line_10: classes(0), line_30: classes(1), line_50: classes(2) },
            longest_stop_ms: self.longest[2] as f64 * WINDOW_NS as f64 / 1e6,
            windows: self.windows,
        }
    }
}

/// Mean completions per window.
pub fn mean(counts: &[u32]) -> f64 {
    if counts.is_empty() {
        return 0.0;
    }
    counts.iter().map(|c| f64::from(*c)).sum::<f64>() / counts.len() as f64
}

/// Median; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(parts: &[(usize, u32)]) -> Vec<u32> {
        parts.iter().flat_map(|(n, count)| std::iter::repeat_n(*count, *n)).collect()
    }

    #[test]
    fn a_steady_run_never_stops() {
        let shares = StopTally::of(&trace(&[(1000, 100)]), 100.0).shares();
        assert_eq!((shares.stop_share_10, shares.stop_share_30, shares.stop_share_50), (0.0, 0.0, 0.0));
        assert_eq!(shares.windows_500us_above_50pct, 1.0);
        assert_eq!(shares.longest_stop_ms, 0.0);
    }

    #[test]
    fn lines_are_strict_and_nested() {
        // 5 windows each at 9, 10, 29, 30, 49 and 50 of a mean of 100: a line counts what is below it, not on it.
        let shares = StopTally::of(&trace(&[(5, 9), (5, 10), (5, 29), (5, 30), (5, 49), (5, 50)]), 100.0).shares();
        assert_eq!(shares.stop_share_10, 5.0 / 30.0);
        assert_eq!(shares.stop_share_30, 15.0 / 30.0);
        assert_eq!(shares.stop_share_50, 25.0 / 30.0);
        assert_eq!(shares.windows_500us_above_50pct, 1.0 / 6.0, "only the window at the line itself is above");
    }

    #[test]
    fn stops_are_classed_by_length_and_add_up() {
        // Stops of 0.4, 0.5, 1, 4.9, 9, 30 and 60 ms, apart from each other.
        let lens = [4, 5, 10, 49, 90, 300, 600];
        let parts: Vec<_> = lens.iter().flat_map(|n| [(*n, 0), (7, 100)]).collect();
        let counts = trace(&parts);
        let tally = StopTally::of(&counts, 100.0);
        assert_eq!(tally.by_class[2], [4, 5, 10 + 49, 90, 300, 600]);
        let shares = tally.shares();
        let sum: f64 = shares.stop_share_by_length.line_50.iter().sum();
        assert!((sum - shares.stop_share_50).abs() < 1e-12);
        assert_eq!(shares.longest_stop_ms, 60.0);
    }

    #[test]
    fn a_short_dip_is_forgiven_by_the_long_window() {
        // Two of five windows at zero: 60 % of the mean is left in the 500 us.
        let shares = StopTally::of(&trace(&[(10, 100), (2, 0), (3, 100), (5, 100)]), 100.0).shares();
        assert_eq!(shares.windows_500us_above_50pct, 1.0);
        assert_eq!(shares.stop_share_50, 0.1);
        // Three of five are not.
        let shares = StopTally::of(&trace(&[(10, 100), (3, 0), (2, 100), (5, 100)]), 100.0).shares();
        assert_eq!(shares.windows_500us_above_50pct, 0.75);
    }

    #[test]
    fn rounds_merge_by_time() {
        let mut tally = StopTally::of(&trace(&[(100, 100)]), 100.0);
        tally.merge(&StopTally::of(&trace(&[(200, 100), (100, 0)]), 100.0));
        let shares = tally.shares();
        assert_eq!(shares.windows, 400);
        assert_eq!(shares.stop_share_10, 0.25);
        assert_eq!(shares.windows_500us_above_50pct, 0.75);
        assert_eq!(shares.longest_stop_ms, 10.0);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
