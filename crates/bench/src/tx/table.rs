//! A report as tables for the terminal; the last lines are the targets.

use std::fmt::Write;

use super::load::Phase;
use super::report::{Row, TxReport};
use crate::plot::short;
use crate::table::{columns, notes, opt, row, targets};

/// What a phase is, in a table's head.
pub fn title(phase: Phase) -> &'static str {
    match phase {
        Phase::Insert => "insert (into empty)",
        Phase::InsertMore => "insert (into as many)",
        Phase::Lookup => "lookup",
        Phase::LookupZipfian => "lookup, zipfian",
        Phase::Scan => "scan of 100",
        Phase::Mixed => "mixed insert/lookup",
        Phase::MixedZipfian => "mixed upsert/lookup, zipfian",
    }
}

/// Heads of [`cells`].
pub const HEADS: [&str; 9] =
    ["tree", "tm", "threads", "M op/s", "range", "to fptree", "flushes/op", "fences/op", "streamed bytes/op"];

/// One row as text.
pub fn cells(r: &Row) -> Vec<String> {
    let figure = |v| opt(v, |v| format!("{v:.2}"));
    vec![
        r.tree.clone(),
        r.tm.clone(),
        r.threads.to_string(),
        format!("{:.3}", r.mops),
        format!("{:.2}-{:.2}", r.mops_range[0], r.mops_range[1]),
        opt(r.ratio_to_fptree, |v| format!("{v:.3}")),
        figure(r.flushes_per_op),
        figure(r.fences_per_op),
        figure(r.streamed_bytes_per_op),
    ]
}

/// Heads of the breakdown's rows.
pub const BREAKDOWN_HEADS: [&str; 10] =
    ["tree", "tm", "threads", "abort", "log full", "durability", "other", "of extra: abort", "log full", "durability"];

/// The breakdown as text: shares of all time, then of the extra time as the paper gives them.
pub fn breakdown(report: &TxReport) -> Vec<Vec<String>> {
    let percent = |v: f64| format!("{:.2} %", v * 100.0);
    let line = |b: &super::report::Breakdown| {
        let mut cells = vec![b.tree.clone(), b.tm.clone(), b.threads.to_string()];
        cells.extend([b.share_abort, b.share_log_full, b.share_durability_wait, b.share_other].map(percent));
        let of = b.of_extra;
        cells.extend([of.map(|o| o.abort), of.map(|o| o.log_full), of.map(|o| o.durability_wait)].map(|v| opt(v, percent)));
        cells
    };
    report.breakdown.iter().map(line).collect()
}

/// The whole report.
pub fn render(report: &TxReport) -> String {
    let mut out = String::new();
    let (m, s) = (&report.machine, &report.settings);
    let _ = writeln!(
        out,
        "towa bench tx   {}   medium {} ({})\n{}, {} cores, Linux {}, commit {}   {} run in {:.0} s, {} keys   load average {:.2}\n",
        report.date,
        report.medium,
        report.location,
        m.cpu,
        m.cores,
        m.kernel,
        m.commit.as_deref().unwrap_or("unknown"),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        s.keys,
        m.load_at_start,
    );
    for phase in Phase::ALL {
        let rows = report.rows(phase);
        if !rows.is_empty() {
            let _ = writeln!(out, "{}", title(phase));
            let all: Vec<_> = std::iter::once(row(HEADS)).chain(rows.iter().map(cells)).collect();
            columns(&mut out, 2, &all);
        }
    }
    if !report.breakdown.is_empty() {
        let _ = writeln!(out, "where the time of insert (into empty) went, of all threads' time and of the extra time");
        columns(&mut out, 2, &std::iter::once(row(BREAKDOWN_HEADS)).chain(breakdown(report)).collect::<Vec<_>>());
    }
    sweep(&mut out, report);
    if !report.recovery.is_empty() {
        let mut rows = vec![row(["recovery: tree", "tm", "keys", "first answer ms"])];
        let line = |p: &super::report::RecoveryPoint| {
            vec![p.tree.clone(), p.tm.clone(), p.keys.to_string(), format!("{:.1}", p.first_answer_ms)]
        };
        rows.extend(report.recovery.iter().map(line));
        columns(&mut out, 2, &rows);
    }
    notes(&mut out, &report.skipped, &report.machine);
    targets(&mut out, &report.targets);
    out
}

/// What varies at a point, and its figure.
pub fn point(p: &super::report::SweepPoint) -> String {
    match p.varies {
        "write_back_ns" => format!("+{} ns per write-back", short(p.write_back_ns)),
        _ => p.write_gb_s.map_or_else(|| "own bandwidth".into(), |gb| format!("{gb} GB/s of writes")),
    }
}

fn sweep(out: &mut String, report: &TxReport) {
    if report.sweep.is_empty() {
        return;
    }
    let mut rows = vec![row(["sweep: tree", "tm", "memory", "threads", "M inserts/s"])];
    for p in &report.sweep {
        rows.push(vec![p.tree.clone(), p.tm.clone(), point(p), p.threads.to_string(), format!("{:.3}", p.mops)]);
    }
    columns(out, 3, &rows);
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_part_is_there() {
        let mut report = crate::tx::report::tests::sample();
        report.targets = crate::tx::targets::judge(&report);
        report.skipped.push("pmdk_btree: skipped: gcc not found".into());
        let text = super::render(&report);
        for part in
            ["insert (into empty)", "scan of 100", "of extra", "per write-back", "first answer", "not measured: pmdk", "MISSED by"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
