//! The server as a cache, on the page: ratios, rates round by round where sizes drift, and all figures.

use super::table::{COLUMNS, rows};
use crate::html::{figure, section, server_class, table};
use crate::plot::{Plot, Scale, Series, escape};
use crate::report::Report;

const SERIES: [&str; 2] = ["towa", "memcached"];

/// The section.
pub(crate) fn caches(body: &mut String, report: &Report) {
    if report.caches.is_empty() {
        return;
    }
    let series: [Series<'_>; 2] = SERIES.map(|name| (name, server_class(name)));
    let ratios: Vec<_> = report.caches.iter().map(|(name, cache)| (name.clone(), vec![cache.ratio_to_memcached])).collect();
    let top = ratios.iter().flat_map(|g| &g.1).flatten().fold(1.1f64, |a, b| a.max(*b));
    let (x, y) = (Scale::linear(0.0, ratios.len() as f64), Scale::linear(0.0, top));
    let plot = Plot::new("towa's operations a second over memcached's, by load", x, y, "of memcached");
    let svg = plot.bars(&series[..1], &ratios).level(1.0, "").finish(&series[..1]);
    let mut content = figure("towa's operations a second over memcached's", &svg);
    if let Some(svg) = report.caches.get("drift").and_then(|_| drift(report, &series)) {
        content += &figure("drift: operations a second, round by round, from small values to large ones and back", &svg);
    }
    content += &table(&COLUMNS, &rows(report));
    let loads = report.caches.iter().map(|(name, cache)| {
        let [mean, median, high] = cache.value_bytes;
        format!(
            "<li><b>{name}</b>: {}. -m {} MiB, {} keys, {:.0} MiB asked for at a time; values asked for: mean {mean:.0} B, median {median:.0} B, \
             99 % within {high:.0} B</li>",
            escape(&cache.what),
            cache.memory_mb,
            cache.keys,
            cache.working_set_mb,
        )
    });
    content += &format!("<ul>{}</ul>", loads.collect::<String>());
    let text = format!(
        "Both have the same limit (-m), the same items, whose lengths are functions of their keys, and the same operations: {} connections of one \
         client thread, one request in flight on each. More is asked for than the cache holds, so both evict all the time. A read that misses is \
         followed by a write of that key; the two count as one operation. Refused: writes that the server had no room for, those of filling \
         the cache among them. Resident: the process, and of towa the pool's files where the medium is memory. memcached keeps nothing over a restart.",
        report.settings.server_connections
    );
    section(body, "Cache", &text, &content);
}

/// Rates of both, round by round.
fn drift(report: &Report, series: &[Series<'_>; 2]) -> Option<String> {
    let servers = &report.caches.get("drift")?.server;
    let rates = SERIES.map(|name| servers.get(name).and_then(|s| s.as_ref()).map_or(&[][..], |s| &s.ops_by_round));
    let rounds = rates.iter().map(|rates| rates.len()).max()?;
    let of_round = |round: usize| (format!("round {}", round + 1), rates.iter().map(|rates| rates.get(round).copied()).collect());
    let groups: Vec<(String, Vec<Option<f64>>)> = (0..rounds).map(of_round).collect();
    let top = groups.iter().flat_map(|g| &g.1).flatten().fold(1.0f64, |a, b| a.max(*b));
    let plot =
        Plot::new("operations a second, round by round", Scale::linear(0.0, rounds as f64), Scale::linear(0.0, top * 1.05), "op/s");
    Some(plot.bars(series, &groups).finish(series))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_drawn_and_in_the_table() {
        let mut body = String::new();
        caches(&mut body, &super::super::table::tests::sample());
        assert_eq!(body.matches("<svg").count(), 2, "ratios and the drift's rounds");
        for text in ["Cache", "drift", "0.500", "75.0 %", "12k (50 % done)", "round 2, towa"] {
            assert!(body.contains(text), "{text}: {body}");
        }
        assert!(!body.contains("NaN") && !body.contains("inf"), "a plot has an impossible coordinate");
    }
}
