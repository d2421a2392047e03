//! What must hold for speed, and whether the run found it so. Judged here and nowhere else: the table, the JSON and the page
//! show these.

use anyhow::{Result, bail};
use serde::Serialize;

use crate::report::{Report, WorkloadReport};

/// Which way a figure must lie of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// At least the target.
    AtLeast,
    /// At most the target.
    AtMost,
}

/// One requirement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    /// Short name.
    pub name: String,
    /// What the figure means.
    pub meaning: String,
    /// `at_least` or `at_most`.
    pub bound: Bound,
    /// The line to hold.
    pub target: f64,
    /// What was measured; `null` if it was not.
    pub measured: Option<f64>,
    /// Unit of both: `x` (a ratio), `points` (of per cent), `ms`, or what it says.
    pub unit: &'static str,
    /// Whether it was met; `null` if it was not measured.
    pub met: Option<bool>,
}

impl Target {
    /// Judges `measured`.
    pub(crate) fn new(name: String, meaning: String, bound: Bound, target: f64, measured: Option<f64>, unit: &'static str) -> Self {
        let met = measured.map(|m| match bound {
            Bound::AtLeast => m >= target,
            Bound::AtMost => m <= target,
        });
        Self { name, meaning, bound, target, measured, unit, met }
    }

    /// `met`, `MISSED by 0.03 x` or `not measured`.
    pub fn verdict(&self) -> String {
        match (self.met, self.measured) {
            (Some(true), _) => "met".into(),
            (Some(false), Some(m)) => {
                format!("MISSED by {}", number((m - self.target).abs(), self.unit))
            }
            _ => "not measured".into(),
        }
    }
}

/// A figure with its unit.
pub fn number(value: f64, unit: &str) -> String {
    match unit {
        "ms" if value.abs() < 100.0 => format!("{value:.2} ms"),
        "ms" => format!("{value:.0} ms"),
        "points" => format!("{value:.2} points"),
        _ => format!("{value:.3} {unit}"),
    }
}

/// Speed ratios to the volatile mode, one user thread.
const RATIOS: [(&str, f64); 5] =
    [("ycsb_a", 0.90), ("ycsb_b", 0.95), ("hashmap_write", 0.75), ("hashmap_mixed", 0.85), ("hashmap_read", 0.93)];
/// How far below the control the share of good 500-us windows may lie, in points.
const WINDOW_SLACK_POINTS: f64 = 0.2;
/// Heap size of the restart target, in MiB.
const RESTART_HEAP_MB: u64 = 2048;

/// How a run ends: with an error if a section broke, or, if `check`, if a target was missed.
///
/// # Errors
/// What broke; how many were missed.
pub(crate) fn verdict(broken: &[String], targets: &[Target], check: bool) -> Result<()> {
    if !broken.is_empty() {
        bail!("{}", broken.join("; "));
    }
    let missed = targets.iter().filter(|t| t.met == Some(false)).count();
    if check && missed > 0 {
        bail!("{missed} target(s) missed; see the list above");
    }
    Ok(())
}

/// Judges a report.
pub fn judge(report: &Report) -> Vec<Target> {
    let mut targets = Vec::new();
    for (name, least) in RATIOS {
        let measured = report.workloads.get(name).and_then(|w| w.ratio_to_volatile);
        let meaning = format!("{name}: towa's throughput over our own volatile mode's, one user thread");
        targets.push(Target::new(format!("speed {name}"), meaning, Bound::AtLeast, least, measured, "x"));
    }
    let mut by_threads = vec![("1", &report.workloads)];
    by_threads.extend(report.threads.iter().map(|(n, workloads)| (n.as_str(), workloads)));
    for (threads, workloads) in by_threads {
        for (name, workload) in workloads {
            targets.push(windows_target(threads, name, workload));
        }
    }
    targets.extend(server_targets(report));
    // A kill that left nothing to replay shows nothing.
    let killed = report.recovery.iter().find(|p| p.heap_mb == RESTART_HEAP_MB && p.replayed_lines.is_some_and(|lines| lines > 0));
    let restart = killed.and_then(|p| p.lazy_ms);
    let meaning = "a 2-GB heap killed under full write load: opening to the first answer".to_owned();
    targets.push(Target::new("restart 2 GB".into(), meaning, Bound::AtMost, 300.0, restart, "ms"));
    targets
}

fn windows_target(threads: &str, name: &str, workload: &WorkloadReport) -> Target {
    let share = |s: &Option<crate::windows::StopShares>| s.as_ref().map(|s| s.windows_500us_above_50pct);
    let behind = share(&workload.control).zip(share(&workload.towa)).map(|(c, t)| (c - t) * 100.0);
    let meaning = format!(
        "{name}, {threads} user thread(s): how far the share of 500-us windows at half the volatile speed or more lies below the control's"
    );
    Target::new(format!("windows {name} x{threads}"), meaning, Bound::AtMost, WINDOW_SLACK_POINTS, behind, "points")
}

fn server_targets(report: &Report) -> [Target; 2] {
    let server = |name: &str| report.server.get(name).and_then(|s| s.as_ref());
    let ratio = server("towa").and_then(|t| t.ratio_to_memcached);
    let tail = server("towa").zip(server("towa_volatile")).filter(|(_, v)| v.p999 > 0.0).map(|(t, v)| t.p999 / v.p999);
    [
        Target::new(
            "server speed".into(),
            "towa serve's throughput over memcached's, same client and threads".into(),
            Bound::AtLeast,
            0.9,
            ratio,
            "x",
        ),
        Target::new(
            "server p99.9".into(),
            "p99.9 latency of towa serve over its own volatile mode's, checkpoints included".into(),
            Bound::AtMost,
            2.0,
            tail,
            "x",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ServerReport;
    use crate::windows::StopShares;

    fn report() -> Report {
        let mut report = crate::report::tests::empty();
        let shares = |above| Some(StopShares { windows_500us_above_50pct: above, ..StopShares::default() });
        let workload = WorkloadReport {
            ratio_to_volatile: Some(0.91),
            towa: shares(0.9950),
            control: shares(0.9975),
            ..WorkloadReport::default()
        };
        report.workloads.insert("ycsb_a".into(), workload.clone());
        report.workloads.insert("ycsb_b".into(), workload);
        let server = |p999, ratio| Some(ServerReport { p999, ratio_to_memcached: ratio, ..ServerReport::default() });
        report.server.insert("towa".into(), server(300.0, Some(0.9)));
        report.server.insert("towa_volatile".into(), server(100.0, None));
        report.server.insert("memcached".into(), None);
        report
    }

    #[test]
    fn each_is_judged_on_its_side_of_the_line() {
        let targets = judge(&report());
        let met = |name: &str| targets.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}")).met;
        assert_eq!(met("speed ycsb_a"), Some(true));
        assert_eq!(met("speed ycsb_b"), Some(false));
        assert_eq!(met("speed hashmap_write"), None, "not measured is not missed");
        assert_eq!(met("windows ycsb_a x1"), Some(false), "0.25 points behind the control");
        assert_eq!(met("server speed"), Some(true), "on the line is met");
        assert_eq!(met("server p99.9"), Some(false));
        assert_eq!(met("restart 2 GB"), None);
    }

    #[test]
    fn a_miss_says_by_how_much() {
        let targets = judge(&report());
        let verdict = |name: &str| targets.iter().find(|t| t.name == name).unwrap().verdict();
        assert_eq!(verdict("speed ycsb_b"), "MISSED by 0.040 x");
        assert_eq!(verdict("windows ycsb_a x1"), "MISSED by 0.05 points");
        assert_eq!(verdict("server p99.9"), "MISSED by 1.000 x");
        assert_eq!(verdict("restart 2 GB"), "not measured");
    }
}
