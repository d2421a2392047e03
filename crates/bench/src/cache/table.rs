//! The server as a cache, as a table for the terminal and for the page.

use super::report::CacheServerReport;
use crate::plot::short;
use crate::report::Report;
use crate::table::{columns, opt, row};

/// Columns of both.
pub(super) const COLUMNS: [&str; 14] = [
    "cache load",
    "server",
    "op/s",
    "/memcached",
    "range",
    "get p50 us",
    "p99.9",
    "max",
    "set p99.9",
    "max",
    "hits",
    "evicted",
    "refused",
    "MiB resident",
];

/// Rows of both: one for each load and server.
pub(super) fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (load, cache) in &report.caches {
        for (name, server) in &cache.server {
            let towa = name == "towa";
            let ratio = opt(cache.ratio_to_memcached.filter(|_| towa), |v| format!("{v:.3}"));
            let range = cache.ratio_to_memcached_range.filter(|_| towa);
            let range = range.map_or_else(|| "-".into(), |[low, high]| format!("{low:.2}-{high:.2}"));
            let figures = server.as_ref().map_or_else(Vec::new, |s| figures(s, cache.requests, [ratio, range]));
            rows.push([vec![load.clone(), name.clone()], figures].concat());
        }
    }
    rows
}

fn figures(s: &CacheServerReport, planned: u64, [ratio, range]: [String; 2]) -> Vec<String> {
    let whole = |v: f64| format!("{v:.0}");
    // What was cut off has its share told beside the rate.
    let done = s.requests as f64 / planned.max(1) as f64;
    let cut = if done < 0.995 { format!(" ({:.0} % done)", done * 100.0) } else { String::new() };
    vec![
        short(s.ops) + &cut,
        ratio,
        range,
        whole(s.get.p50),
        whole(s.get.p999),
        whole(s.get.max),
        whole(s.set.p999),
        whole(s.set.max),
        opt(s.hit_rate, |v| format!("{:.1} %", v * 100.0)),
        s.evictions.map_or_else(|| "-".into(), |n| n.to_string()),
        (s.refused + s.refused_filling).to_string(),
        opt(s.resident_mb, whole),
    ]
}

/// For the terminal.
pub(crate) fn caches(out: &mut String, report: &Report) {
    if !report.caches.is_empty() {
        columns(out, 2, &[vec![row(COLUMNS)], rows(report)].concat());
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::report::{CacheReport, CacheServerReport};
    use super::*;

    /// One load of which one server was measured, and cut off half-way.
    pub(in super::super) fn sample() -> Report {
        let mut report = crate::report::tests::empty();
        let towa = CacheServerReport {
            ops: 12_345.0,
            ops_by_round: vec![12_000.0, 12_690.0],
            requests: 500,
            hit_rate: Some(0.75),
            refused: 3,
            refused_filling: 4,
            ..CacheServerReport::default()
        };
        let server = [("towa".to_owned(), Some(towa)), ("memcached".to_owned(), None)].into();
        let cache = CacheReport { ratio_to_memcached: Some(0.5), requests: 1000, server, ..CacheReport::default() };
        report.caches.insert("drift".into(), cache);
        report
    }

    #[test]
    fn each_server_has_its_row_and_what_was_cut_off_is_told() {
        let mut out = String::new();
        caches(&mut out, &sample());
        let lines: Vec<_> = out.lines().collect();
        assert!(lines[1].starts_with("drift") && lines[1].trim_end().ends_with("memcached"), "{out}");
        for text in ["towa", "12k (50 % done)", "0.500", "75.0 %", "  7  "] {
            assert!(lines[2].contains(text), "{text}: {out}");
        }
    }
}
