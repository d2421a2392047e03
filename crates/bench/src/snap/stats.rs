//! Percentiles of few figures, and what of a program's gaps belongs to a pause.

use serde::Serialize;

/// A median, the 99th percentile and the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Median.
    pub p50: f64,
    /// Of 100 figures the second largest.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Of these; zeros if there are none.
    pub fn of(mut figures: Vec<f64>) -> Spread {
        figures.sort_by(f64::total_cmp);
        Spread { p50: rank(&figures, 0.5), p99: rank(&figures, 0.99), max: rank(&figures, 1.0) }
    }
}

/// The smallest figure that so great a share of all is not above (nearest rank: always one of them). `sorted` ascending.
fn rank(sorted: &[f64], share: f64) -> f64 {
    let nth = (share * sorted.len() as f64 - 1e-9).ceil().max(1.0) as usize;
    sorted.get(nth - 1).copied().unwrap_or(0.0)
}

/// Median; 0 of nothing.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(figures.into_iter().collect()).p50
}

/// The longest of the gaps that have something of `from..=to` in them, as a whole: what began before a pause and ends with it was waited
/// for, too.
pub fn longest(gaps: &[(u64, u64)], from: u64, to: u64) -> u64 {
    gaps.iter().filter(|gap| gap.0 <= to && gap.1 >= from).map(|gap| gap.1 - gap.0).max().unwrap_or(0)
}

/// Nanoseconds as milliseconds.
pub fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_figures_that_were_measured() {
        let spread = Spread::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { p50: 50.0, p99: 99.0, max: 100.0 });
        let spread = Spread::of((1..=30).map(f64::from).collect());
        assert_eq!(spread, Spread { p50: 15.0, p99: 30.0, max: 30.0 });
        assert_eq!(Spread::of(vec![7.0]), Spread { p50: 7.0, p99: 7.0, max: 7.0 });
        assert_eq!(Spread::of(vec![]), Spread::default());
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn a_gap_counts_where_it_touches() {
        let gaps = [(10, 12), (20, 29), (40, 100), (200, 201)];
        assert_eq!(longest(&gaps, 11, 30), 9);
        assert_eq!(longest(&gaps, 50, 60), 60, "around the window");
        assert_eq!(longest(&gaps, 29, 40), 60, "on its edges");
        assert_eq!(longest(&gaps, 101, 199), 0);
    }
}
