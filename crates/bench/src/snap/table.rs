//! A report as tables for the terminal; the last lines are the targets.

use std::fmt::Write;

use super::report::{BreakdownUs, CriuRow, DeferredRow, PauseRow, RestartRow, SnapReport, SpaceRow};
use crate::table::{columns, notes, opt, part, targets};

/// Heads of [`pause`].
pub const PAUSE: [&str; 14] = [
    "mode",
    "MiB",
    "pages/s",
    "reached",
    "threads",
    "seen p50 ms",
    "p99",
    "max",
    "tool p50 ms",
    "p99",
    "noise p99 ms",
    "pages in it",
    "running",
    "total ms",
];

/// One row as text.
pub fn pause(r: &PauseRow) -> Vec<String> {
    let ms = |v: f64| format!("{v:.2}");
    let whole = |v: f64| format!("{v:.0}");
    vec![
        r.mode.clone(),
        r.mb.to_string(),
        r.dirty_pages_per_s.to_string(),
        whole(r.pages_per_s_reached),
        r.threads.to_string(),
        ms(r.pause_ms_p50),
        ms(r.pause_ms_p99),
        ms(r.pause_ms_max),
        ms(r.tool_pause_ms_p50),
        ms(r.tool_pause_ms_p99),
        ms(r.noise_ms_p99),
        whole(r.pages_in_pause),
        whole(r.pages_while_running),
        whole(r.total_ms),
    ]
}

/// Heads of [`breakdown`].
pub fn breakdown_heads() -> Vec<&'static str> {
    let parts = BreakdownUs::default().parts().map(|(name, _)| name);
    ["mode", "MiB", "pages/s", "threads"].into_iter().chain(parts).collect()
}

/// Where a row's pause went.
pub fn breakdown(r: &PauseRow) -> Vec<String> {
    let mut cells = vec![r.mode.clone(), r.mb.to_string(), r.dirty_pages_per_s.to_string(), r.threads.to_string()];
    cells.extend(r.breakdown_us.parts().map(|(_, us)| format!("{us:.0}")));
    cells
}

/// Heads of [`restart`].
pub const RESTART: [&str; 6] = ["mode", "cache", "MiB", "first instruction ms", "all memory ms", "touch all ms"];

/// One row as text.
pub fn restart(r: &RestartRow) -> Vec<String> {
    let ms = |v: f64| format!("{v:.1}");
    let touch = opt(r.touch_all_ms, ms);
    vec![r.mode.clone(), r.cache.into(), r.mb.to_string(), ms(r.first_instruction_ms), ms(r.total_ms), touch]
}

/// Heads of [`space`].
pub const SPACE: [&str; 8] =
    ["sharing", "MiB", "checkpoints", "changed KiB", "KiB each", "by file system", "own, listed", "to changed"];

/// One row as text.
pub fn space(r: &SpaceRow) -> Vec<String> {
    let kib = |v: f64| format!("{:.0}", v / 1024.0);
    vec![
        r.sharing.into(),
        r.mb.to_string(),
        r.checkpoints.to_string(),
        kib(r.changed_bytes as f64),
        kib(r.bytes_per_checkpoint),
        kib(r.file_system_bytes_per_checkpoint),
        kib(r.own_bytes_listed),
        format!("{:.2}", r.ratio_to_changed),
    ]
}

/// Heads of [`deferred`].
pub const DEFERRED: [&str; 4] = ["MiB", "untracked ns/page", "first after a checkpoint", "next"];

/// One row as text.
pub fn deferred(r: &DeferredRow) -> Vec<String> {
    let ns = |v: f64| format!("{v:.0}");
    vec![r.mb.to_string(), ns(r.untracked_write_ns), ns(r.first_write_ns), ns(r.next_write_ns)]
}

/// Heads of [`criu`].
pub const CRIU: [&str; 5] = ["MiB", "seen pause ms", "frozen, it says", "dump ms", "restore: first instruction ms"];

/// One row as text.
pub fn criu(r: &CriuRow) -> Vec<String> {
    let ms = |v: f64| format!("{v:.1}");
    vec![r.mb.to_string(), ms(r.pause_ms), opt(r.frozen_ms, ms), ms(r.total_ms), ms(r.first_instruction_ms)]
}

/// The whole report.
pub fn render(report: &SnapReport) -> String {
    let mut out = String::new();
    let (m, s) = (&report.machine, &report.settings);
    let _ = writeln!(
        out,
        "towa bench snap   {}   checkpoints in {} ({}, {})\n{}, {} cores, Linux {}, commit {}   {} run in {:.0} s   load average {:.2}\n",
        report.date,
        report.location,
        report.file_system,
        if report.clones_files { "clones files" } else { "does not clone files" },
        m.cpu,
        m.cores,
        m.kernel,
        m.commit.as_deref().unwrap_or("unknown"),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        m.load_at_start,
    );
    part(
        &mut out,
        "pause of a checkpoint, as the program saw it, as the tool did, and without a checkpoint",
        PAUSE,
        1,
        &report.pause,
        pause,
    );
    if !report.pause.is_empty() {
        let _ = writeln!(out, "where the pause went, median us");
        let heads = breakdown_heads().into_iter().map(str::to_owned).collect();
        columns(&mut out, 1, &std::iter::once(heads).chain(report.pause.iter().map(breakdown)).collect::<Vec<_>>());
    }
    part(&mut out, "restart; copy: only reading the image into memory", RESTART, 2, &report.restart, restart);
    part(&mut out, "space of checkpoints between which 1 % of the pages changed", SPACE, 1, &report.space, space);
    part(&mut out, "what a write to a page costs the program", DEFERRED, 0, &report.deferred, deferred);
    part(&mut out, "criu", CRIU, 0, report.criu.as_deref().unwrap_or_default(), criu);
    if let Some(note) = &report.criu_note {
        let _ = writeln!(out, "criu: {note}");
    }
    notes(&mut out, &report.skipped, &report.machine);
    targets(&mut out, &report.targets);
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_part_is_there() {
        let mut report = crate::snap::report::tests::sample();
        report.criu = Some(vec![super::CriuRow { mb: 512, pause_ms: 400.0, ..super::CriuRow::default() }]);
        report.targets = crate::snap::targets::judge(&report);
        report.skipped.push("restart, cold: tmpfs".into());
        let text = super::render(&report);
        for part in [
            "seen p50 ms",
            "copy_all",
            "where the pause went",
            "eager",
            "KiB each",
            "first after",
            "400.0",
            "not measured",
            "MISSED by",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
