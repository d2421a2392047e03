//! A report as tables for the terminal.

use std::fmt::Write;

use crate::machine::Machine;
use crate::plot::short;
use crate::report::{Report, WorkloadReport};
use crate::targets::{Target, number};
use crate::windows::StopShares;

/// Above this share of the processors taken by others, the report says that it was disturbed.
const DISTURBED: f64 = 0.05;

/// The whole report; the last lines are the targets.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    let (m, s) = (&report.machine, &report.settings);
    let _ = writeln!(
        out,
        "towa bench epoch   {}   medium {} ({}; {})\n{}, {} cores, Linux {}, commit {}   {} run in {:.0} s   load average {:.2}{}\n",
        report.date,
        report.medium,
        report.medium_detail.location,
        report.medium_detail.guarantee,
        m.cpu,
        m.cores,
        m.kernel,
        m.commit.as_deref().unwrap_or("unknown"),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        m.load_at_start,
        m.others_cpu_share.map(|v| format!(", others took {:.1} % of the processors", v * 100.0)).unwrap_or_default(),
    );
    let huge = |share: Option<f64>| opt(share, |v| format!("{:.0} %", v * 100.0));
    if s.volatile_huge_page_share.is_some() {
        let (volatile, towa) = (huge(s.volatile_huge_page_share), huge(s.towa_huge_page_share));
        let _ = writeln!(out, "heap in huge pages: volatile {volatile}, towa {towa}\n");
    }
    throughput(&mut out, report);
    stops(&mut out, report);
    servers(&mut out, report);
    crate::cache::table::caches(&mut out, report);
    recovery(&mut out, report);
    notes(&mut out, &report.skipped, &report.machine);
    targets(&mut out, &report.targets);
    out
}

/// What was not measured, and what disturbed the run.
pub(crate) fn notes(out: &mut String, skipped: &[String], machine: &Machine) {
    for why in skipped {
        let _ = writeln!(out, "not measured: {why}");
    }
    if let Some(share) = machine.others_cpu_share.filter(|share| *share > DISTURBED) {
        let percent = share * 100.0;
        let _ = writeln!(
            out,
            "NOTE: other processes took {percent:.0} % of the processors meanwhile; repeat on a quiet machine before quoting a figure\n"
        );
    }
}

/// Columns as wide as their widest cell; the first `left` to the left, the rest to the right.
pub(crate) fn columns(out: &mut String, left: usize, rows: &[Vec<String>]) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..count).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (c, (text, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if c < left { write!(line, "{text:<width$}  ") } else { write!(line, "{text:>width$}  ") };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push('\n');
}

/// A title and its table, if there is something to tell.
pub(crate) fn part<T, const N: usize>(
    out: &mut String,
    title: &str,
    heads: [&str; N],
    left: usize,
    all: &[T],
    cells: fn(&T) -> Vec<String>,
) {
    if !all.is_empty() {
        let _ = writeln!(out, "{title}");
        columns(out, left, &std::iter::once(row(heads)).chain(all.iter().map(cells)).collect::<Vec<_>>());
    }
}

pub(crate) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

pub(crate) fn opt(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

fn each(report: &Report) -> impl Iterator<Item = (&str, &str, &WorkloadReport)> {
    let one = report.workloads.iter().map(|(name, w)| ("1", name.as_str(), w));
    let more = report.threads.iter().flat_map(|(n, all)| all.iter().map(move |(name, w)| (n.as_str(), name.as_str(), w)));
    one.chain(more)
}

fn throughput(out: &mut String, report: &Report) {
    let head = [
        "workload",
        "threads",
        "volatile op/s",
        "towa",
        "cpnvm",
        "control",
        "towa/volatile",
        "range",
        "cpnvm/vol.",
        "user ns/op vol.",
        "towa",
        "written/user",
    ];
    let mut rows = vec![row(head)];
    for (threads, name, w) in each(report) {
        let ratio = |v| opt(v, |v| format!("{v:.3}"));
        rows.push(vec![
            name.to_owned(),
            threads.to_owned(),
            opt(w.ops_volatile, short),
            opt(w.ops_towa, short),
            opt(w.ops_cpnvm, short),
            opt(w.ops_control, short),
            ratio(w.ratio_to_volatile),
            w.ratio_to_volatile_range.map_or_else(|| "-".into(), |[a, b]| format!("{a:.2}-{b:.2}")),
            ratio(w.ratio_cpnvm_to_volatile),
            opt(w.user_cpu_ns_per_op.volatile, short),
            opt(w.user_cpu_ns_per_op.towa, short),
            opt(w.towa_engine.as_ref().and_then(|e| e.write_amplification), |v| format!("{v:.2}x")),
        ]);
    }
    if rows.len() > 1 {
        columns(out, 2, &rows);
    }
}

fn stops(out: &mut String, report: &Report) {
    let head = ["stops: workload", "threads", "engine", "below 10 %", "below 30 %", "below 50 %", "500 us >= 50 %", "longest"];
    let mut rows = vec![row(head)];
    for (threads, name, w) in each(report) {
        for (engine, shares) in [("volatile", &w.volatile), ("control", &w.control), ("towa", &w.towa), ("cpnvm", &w.cpnvm)] {
            let Some(shares) = shares else { continue };
            rows.push(stop_row(threads, name, engine, shares));
        }
    }
    if rows.len() > 1 {
        columns(out, 3, &rows);
    }
}

fn stop_row(threads: &str, name: &str, engine: &str, s: &StopShares) -> Vec<String> {
    let percent = |v: f64| format!("{:.2} %", v * 100.0);
    let shares = [s.stop_share_10, s.stop_share_30, s.stop_share_50, s.windows_500us_above_50pct].map(percent);
    let mut row = row([name, threads, engine]);
    row.extend(shares);
    row.push(format!("{:.1} ms", s.longest_stop_ms));
    row
}

fn servers(out: &mut String, report: &Report) {
    let head = [
        "server",
        "op/s",
        "/memcached",
        "p50 us",
        "p99",
        "p99.9",
        "max",
        "ckpts",
        "RSS MiB",
        "written MiB",
        "first answer ms",
        "full speed ms",
        "kept",
    ];
    let mut rows = vec![row(head)];
    for (name, server) in &report.server {
        let Some(s) = server else {
            rows.push(row([name, "-"]));
            continue;
        };
        let whole = |v: f64| format!("{v:.0}");
        rows.push(vec![
            name.clone(),
            short(s.ops),
            opt(s.ratio_to_memcached, |v| format!("{v:.3}")),
            whole(s.p50),
            whole(s.p99),
            whole(s.p999),
            whole(s.max),
            s.checkpoints.map_or_else(|| "-".into(), |c| c.to_string()),
            opt(s.rss_mb, whole),
            s.bytes_written.map_or_else(|| "-".into(), |b| whole(b as f64 / (1 << 20) as f64)),
            opt(s.restart_first_answer_ms, whole),
            opt(s.restart_full_speed_ms, whole),
            opt(s.kept_share, |v| format!("{:.1} %", v * 100.0)),
        ]);
    }
    if rows.len() > 1 {
        columns(out, 1, &rows);
    }
}

fn recovery(out: &mut String, report: &Report) {
    if report.recovery.is_empty() {
        return;
    }
    let mut rows = vec![row(["recovery: live MiB", "lazy ms", "eager ms", "replayed MiB"])];
    for point in &report.recovery {
        let ms = |v| opt(v, |v| format!("{v:.1}"));
        rows.push(vec![point.heap_mb.to_string(), ms(point.lazy_ms), ms(point.eager_ms), ms(point.replayed_mb)]);
    }
    columns(out, 1, &rows);
}

/// The list of targets.
pub(crate) fn targets(out: &mut String, targets: &[Target]) {
    let mut rows = vec![row(["target", "verdict", "line", "measured"])];
    for target in targets {
        let sign = if target.bound == crate::targets::Bound::AtLeast { ">=" } else { "<=" };
        rows.push(vec![
            target.name.clone(),
            target.verdict(),
            format!("{sign} {}", number(target.target, target.unit)),
            opt(target.measured, |m| number(m, target.unit)),
        ]);
    }
    columns(out, 2, &rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut out = String::new();
        columns(&mut out, 1, &[row(["a", "b", "c"]), row(["long", "1", "22"])]);
        assert_eq!(out, "a     b   c\nlong  1  22\n\n");
    }

    #[test]
    fn an_absent_server_is_a_dash_and_its_reason_is_told() {
        let mut report = crate::report::tests::empty();
        report.server.insert("memcached".into(), None);
        report.skipped.push("memcached: skipped: memcached not installed (apt-get install memcached)".into());
        report.targets = crate::targets::judge(&report);
        let text = render(&report);
        assert!(text.contains("memcached     -"), "{text}");
        assert!(text.contains("not measured: memcached: skipped"), "{text}");
        assert!(text.contains("restart 2 GB"), "{text}");
    }
}
