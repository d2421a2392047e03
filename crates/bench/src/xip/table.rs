//! A report as tables for the terminal; the last lines are the targets.

use std::fmt::Write;

use super::report::{ExecRow, ModelFit, Predicted, Row, SharingRow, XipReport};
use crate::table::{notes, opt, part, targets};

/// Heads of [`matrix`].
pub const MATRIX: [&str; 13] = [
    "program",
    "layout",
    "cache",
    "major",
    "minor",
    "from store",
    "wall p50 ms",
    "p99",
    "user ms",
    "system ms",
    "to block",
    "cpu to block",
    "NVM KiB",
];

fn whole(v: f64) -> String {
    format!("{v:.0}")
}

fn ms(v: f64) -> String {
    format!("{v:.1}")
}

fn ratio(v: f64) -> String {
    format!("{v:.3}")
}

/// One row as text.
pub fn matrix(r: &Row) -> Vec<String> {
    vec![
        r.program.clone(),
        r.layout.clone(),
        r.cache.into(),
        whole(r.major),
        whole(r.minor),
        opt(r.nvm_faults, whole),
        ms(r.wall_ms_p50),
        ms(r.wall_ms_p99),
        ms(r.user_ms),
        ms(r.system_ms),
        opt(r.ratio_to_block, ratio),
        opt(r.cpu_ratio_to_block, ratio),
        (r.nvm_bytes >> 10).to_string(),
    ]
}

/// Heads of [`exec`].
pub const EXEC: [&str; 5] = ["variant", "us p50", "over whole us", "minor faults", "runs"];

/// One row as text.
pub fn exec(r: &ExecRow) -> Vec<String> {
    vec![r.variant.into(), whole(r.us_p50), opt(r.over_whole_us, ms), whole(r.minor), r.runs.to_string()]
}

/// Heads of [`sharing`].
pub const SHARING: [&str; 11] = [
    "layout",
    "processes",
    "major",
    "minor",
    "ready ms",
    "pages copied",
    "major of all",
    "faults of all",
    "model: loads",
    "model: faults",
    "model: ms",
];

/// One row as text.
pub fn sharing(r: &SharingRow) -> Vec<String> {
    let mut cells = vec![r.layout.clone(), r.processes.to_string(), whole(r.major), whole(r.minor), ms(r.wall_ms)];
    cells.extend([r.copied_pages, r.major_of_all, r.faults_of_all, r.model_loads, r.model_faults].map(whole));
    cells.push(opt(r.model_ms, ms));
    cells
}

/// Heads of [`costs`].
pub const COSTS: [&str; 2] = ["cost", "us"];

/// The costs as text.
pub fn costs(fit: &ModelFit) -> Vec<Vec<String>> {
    let named = [
        ("t1 allocate a page", fit.t1),
        ("t2 read a page", fit.t2),
        ("t3 map a page", fit.t3),
        ("t4 map a page of NVM", fit.t4),
        ("t5 copy a page", fit.t5),
    ];
    named.map(|(name, ms)| vec![name.to_owned(), opt(ms, |ms| format!("{:.2}", ms * 1e3))]).to_vec()
}

/// Heads of [`predicted`].
pub const PREDICTED: [&str; 6] = ["program", "layout", "cache", "wall ms", "model ms", "error %"];

/// One row as text.
pub fn predicted(r: &Predicted) -> Vec<String> {
    vec![r.program.clone(), r.layout.clone(), r.cache.into(), ms(r.wall_ms), ms(r.model_ms), ms(r.error_pct)]
}

/// The whole report.
pub fn render(report: &XipReport) -> String {
    let mut out = String::new();
    head(&mut out, report);
    part(&mut out, "programs by layout; from store: faults in text of the store, traced once", MATRIX, 3, &report.matrix, matrix);
    part(&mut out, "starting a small program, warm", EXEC, 1, &report.exec_overhead, exec);
    part(&mut out, "python: each further process, cold at the first", SHARING, 1, &report.sharing, sharing);
    if let Some(fit) = &report.model_fit {
        part(&mut out, "the paper's model, fitted to this machine", COSTS, 1, &costs(fit), Clone::clone);
        part(&mut out, "what it says", PREDICTED, 3, &fit.predicted, predicted);
        let _ = writeln!(
            out,
            "error of the model: median {:.1} %, largest {:.1} %, {} rows",
            fit.error_pct, fit.error_pct_max, fit.rows
        );
        for note in &fit.notes {
            let _ = writeln!(out, "  {note}");
        }
        out.push('\n');
    }
    if let Some(sweep) = &report.sweep {
        let _ = writeln!(out, "sweep: {} of {} programs split, {} identical", sweep.split, sweep.programs, sweep.identical);
        for exception in &sweep.exceptions {
            let _ = writeln!(out, "  {exception}");
        }
        out.push('\n');
    }
    notes(&mut out, &report.skipped, &report.machine);
    targets(&mut out, &report.targets);
    out
}

fn head(out: &mut String, report: &XipReport) {
    let (m, s, nvm) = (&report.machine, &report.settings, &report.nvm);
    let _ = writeln!(
        out,
        "towa bench xip   {}   programs in {} ({})   cold: {}{}\ntext in {} ({}, {})\n{}, {} cores, Linux {}, commit {}   {} run in {:.0} s   \
         load average {:.2}\n",
        report.date,
        report.ground.location,
        report.ground.file_system,
        report.ground.cold_by,
        report.ground.resident_when_cold.map(|v| format!(", {:.1} % still in memory at most", v * 100.0)).unwrap_or_default(),
        nvm.location,
        nvm.file_system,
        if nvm.dax { "mapped directly" } else { "memory stands for NVM: no DAX" },
        m.cpu,
        m.cores,
        m.kernel,
        m.commit.as_deref().unwrap_or("unknown"),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        m.load_at_start,
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_part_is_there() {
        let mut report = crate::xip::report::tests::sample();
        report.targets = crate::xip::targets::judge(&report);
        report.skipped.push("java: not on this machine".into());
        let text = super::render(&report);
        for part in [
            "wall p50 ms",
            "cc1_long",
            "split_libs",
            "model: faults",
            "t4 map a page of NVM",
            "38 identical",
            "a: static",
            "java",
            "MISSED by",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
