//! A report as one page: plots and tables, made with the parts of the epoch report's.
//!
//! What must hold: no script, no request; every figure that is drawn stands in the table under it.

use std::fmt::Write;

use super::pause::Mode;
use super::report::{BreakdownUs, PauseRow, SnapReport};
use super::restart::How;
use super::table::{self, breakdown_heads};
use crate::html::{figure, frame, section, skipped, table as rows_of, targets};
use crate::plot::{Plot, Scale, Series, escape};

fn class(name: &str) -> &'static str {
    match name {
        "dram" | "eager" => "c-towa",
        "copy" => "c-cpnvm",
        "nv" | "lazy" => "c-other",
        "copy_all" => "c-control",
        _ => "c-volatile",
    }
}

/// The page.
pub fn page(report: &SnapReport) -> String {
    let mut body = String::new();
    head(&mut body, report);
    targets(&mut body, &report.targets, "A pause is what the program itself saw.");
    pauses(&mut body, report);
    breakdowns(&mut body, report);
    restarts(&mut body, report);
    spaces(&mut body, report);
    later(&mut body, report);
    peer(&mut body, report);
    skipped(&mut body, &report.skipped);
    frame(&format!("towa bench snap, {}", report.date), &body)
}

fn head(body: &mut String, report: &SnapReport) {
    let (m, s) = (&report.machine, &report.settings);
    let _ = write!(
        body,
        "<h1>towa bench snap</h1><p class=\"text\">{} with checkpoints in <b>{}</b> ({}, {}) · {} · {} cores · {} MiB · Linux {} · huge pages: {} · commit {}<br>\
         {} run, {:.0} s; {} checkpoints and {} restarts of each row; seed {}; load average {:.2} at the start{}</p>",
        escape(&report.date),
        escape(&report.location),
        escape(&report.file_system),
        if report.clones_files { "clones files" } else { "does not clone files" },
        escape(&m.cpu),
        m.cores,
        m.memory_mb,
        escape(&m.kernel),
        escape(&m.huge_pages),
        escape(m.commit.as_deref().unwrap_or("unknown")),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        s.checkpoints,
        s.restarts,
        s.seed,
        m.load_at_start,
        m.others_cpu_share.map(|v| format!("; others took {:.1} % of the processors", v * 100.0)).unwrap_or_default(),
    );
}

/// Lines by memory size, both axes by decades.
fn by_size(label: &str, lines: &[(Series<'_>, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let (low, high) = points().fold((f64::MAX, 0.001f64), |(a, b), p| (a.min(p.1), b.max(p.1)));
    let (first, last) = points().fold((f64::MAX, 1.0f64), |(a, b), p| (a.min(p.0), b.max(p.0)));
    let x = Scale::log(first.min(last) * 0.8, last * 1.25);
    let mut sizes: Vec<f64> = points().map(|p| p.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let names: Vec<String> = sizes.iter().map(|mb| format!("{mb} MiB")).collect();
    let ticks = sizes.iter().copied().zip(names.iter().map(String::as_str));
    let mut plot = Plot::new(label, x, Scale::decades(low.min(high).max(0.001), high), "ms").x_ticks(ticks);
    for (series, points) in lines {
        plot = plot.line(*series, points);
    }
    plot.finish(&lines.iter().map(|(series, _)| *series).collect::<Vec<_>>())
}

fn pauses(body: &mut String, report: &SnapReport) {
    if report.pause.is_empty() {
        return;
    }
    let names = Mode::ALL.map(Mode::name);
    let two = |row: &&PauseRow| row.threads == 2;
    let at = |mode: &str, pace: u64| -> Vec<(f64, f64)> {
        let rows = report.pause.iter().filter(two).filter(|row| row.mode == mode && row.dirty_pages_per_s == pace);
        rows.map(|row| (row.mb as f64, row.pause_ms_p50)).collect()
    };
    let lines: Vec<_> =
        names.iter().map(|mode| ((*mode, class(mode)), at(mode, super::PACE))).filter(|(_, p)| !p.is_empty()).collect();
    let mut content = String::new();
    if !lines.is_empty() {
        let caption = format!("median pause by memory size, {} pages/s written (the paper's Fig. 5; ms)", super::PACE);
        content += &figure(&caption, &by_size("pause by memory size", &lines));
    }
    let mut paces: Vec<u64> =
        report.pause.iter().filter(two).filter(|r| r.mb == super::PACED_MB).map(|r| r.dirty_pages_per_s).collect();
    paces.sort_unstable();
    paces.dedup();
    let of = |pace: u64, mode: &str| report.pause_of(super::PACED_MB, pace, mode).map(|row| row.pause_ms_p50);
    let groups: Vec<_> = paces.iter().map(|pace| (format!("{pace} pages/s"), names.map(|mode| of(*pace, mode)).to_vec())).collect();
    if !groups.is_empty() {
        let drawn = groups.iter().flat_map(|group| &group.1).flatten();
        let (low, high) = drawn.fold((f64::MAX, 0.001f64), |(a, b), v| (a.min(*v), b.max(*v)));
        // A bar ends at the lower end of a scale that has no zero: a decade below the lowest.
        let y = Scale::decades((low.min(high) / 2.0).max(0.001), high);
        let series = names.map(|mode| (mode, class(mode)));
        let plot = Plot::new("pause by pace of writing", Scale::linear(0.0, groups.len() as f64), y, "ms").bars(&series, &groups);
        content +=
            &figure(&format!("median pause by pace of writing, {} MiB (ms, logarithmic)", super::PACED_MB), &plot.finish(&series));
    }
    content += &rows_of(&table::PAUSE, &report.pause.iter().map(table::pause).collect::<Vec<_>>());
    let text = "A thread of the program looks at the clock every 20 us: seen is the longest time between two looks around the pause, which begins before \
                the first thread is stopped and ends when the last one runs. Noise: as many windows of the same length without a checkpoint. \
                dram: copied while the program runs, the rest in the pause. copy: all that changed since the last checkpoint is copied in the pause. \
                copy_all: all memory is. Nothing is written to a file in any of the pauses.";
    section(body, "Pause", text, &content);
}

fn breakdowns(body: &mut String, report: &SnapReport) {
    let dram: Vec<&PauseRow> = report.pause.iter().filter(|row| row.mode == Mode::Dram.name()).collect();
    if dram.is_empty() {
        return;
    }
    let parts = BreakdownUs::default().parts().map(|(name, _)| name);
    let groups: Vec<_> = dram
        .iter()
        .filter(|row| row.dirty_pages_per_s == super::PACE && row.mb >= super::PACED_MB.min(row.mb))
        .map(|row| {
            let values = row.breakdown_us.parts().map(|(_, us)| Some(us)).to_vec();
            (format!("{} MiB, {} threads", row.mb, row.threads), values)
        })
        .collect();
    let classes = ["c-towa", "c-cpnvm", "c-control", "c-volatile", "c-other"];
    let series: Vec<Series<'_>> = parts.iter().enumerate().map(|(n, name)| (*name, classes[n % classes.len()])).collect();
    let mut content = String::new();
    if !groups.is_empty() {
        let top = groups.iter().flat_map(|group| &group.1).flatten().fold(1.0f64, |a, b| a.max(*b));
        let (x, y) = (Scale::linear(0.0, groups.len() as f64), Scale::linear(0.0, top));
        let plot = Plot::new("parts of the pause", x, y, "us").bars(&series, &groups);
        // The colours repeat: the parts stand in their order, and each says its name.
        content += &figure(&format!("from left to right: {} (median us)", parts.join(", ")), &plot.finish(&series[..1]));
    }
    content += &rows_of(&breakdown_heads(), &report.pause.iter().map(table::breakdown).collect::<Vec<_>>());
    section(body, "Where the pause went", "As the tool measured it; medians, in microseconds.", &content);
}

fn restarts(body: &mut String, report: &SnapReport) {
    if report.restart.is_empty() {
        return;
    }
    let mut content = String::new();
    for cache in ["warm", "cold"] {
        let at = |mode: &str| -> Vec<(f64, f64)> {
            let rows = report.restart.iter().filter(|row| row.mode == mode && row.cache == cache);
            rows.map(|row| (row.mb as f64, row.first_instruction_ms)).collect()
        };
        let lines: Vec<_> = How::ALL
            .map(How::name)
            .into_iter()
            .map(|how| ((how, class(how)), at(how)))
            .filter(|(_, points)| !points.is_empty())
            .collect();
        if !lines.is_empty() {
            let caption = format!("time to the first instruction by memory size, page cache {cache} (the paper's Fig. 6; ms)");
            content += &figure(&caption, &by_size("restart by memory size", &lines));
        }
    }
    content += &rows_of(&table::RESTART, &report.restart.iter().map(table::restart).collect::<Vec<_>>());
    let text = "From before the restarting program is started until the restarted one looks at the clock. copy: the image is read into fresh memory, \
                and nothing else is done, which is the least that a restart by copying takes.";
    section(body, "Restart", text, &content);
}

fn spaces(body: &mut String, report: &SnapReport) {
    if report.space.is_empty() {
        return;
    }
    let series = [("pages that changed", "c-volatile"), ("a checkpoint takes", "c-towa")];
    let mb = |bytes: f64| Some(bytes / f64::from(1 << 20));
    let group = |row: &super::report::SpaceRow| {
        (format!("{} MiB, {}", row.mb, row.sharing), vec![mb(row.changed_bytes as f64), mb(row.bytes_per_checkpoint)])
    };
    let groups: Vec<_> = report.space.iter().map(group).collect();
    let top = groups.iter().flat_map(|group| &group.1).flatten().fold(0.1f64, |a, b| a.max(*b));
    let (x, y) = (Scale::linear(0.0, groups.len() as f64), Scale::linear(0.0, top));
    let plot = Plot::new("bytes of a checkpoint", x, y, "MiB").bars(&series, &groups);
    let content = figure("what each checkpoint takes (MiB)", &plot.finish(&series))
        + &rows_of(&table::SPACE, &report.space.iter().map(table::space).collect::<Vec<_>>());
    let text = "Between two checkpoints the program changes 1 % of its pages, each once. Each checkpoint is complete, and can be removed in any order.";
    section(body, "Space", text, &content);
}

fn later(body: &mut String, report: &SnapReport) {
    if !report.deferred.is_empty() {
        let content = rows_of(&table::DEFERRED, &report.deferred.iter().map(table::deferred).collect::<Vec<_>>());
        let text = "What a write to a page costs the program, over all pages, in ns: before there was a checkpoint, the first time after one, and after that. \
                    The first checkpoint takes huge pages apart.";
        section(body, "Writes after a checkpoint", text, &content);
    }
}

fn peer(body: &mut String, report: &SnapReport) {
    let rows: Vec<_> = report.criu.iter().flatten().map(table::criu).collect();
    let content = if rows.is_empty() { String::new() } else { rows_of(&table::CRIU, &rows) };
    if let Some(note) = &report.criu_note {
        section(body, "CRIU", &escape(&format!("Not measured: {note}.")), &content);
    } else if !rows.is_empty() {
        section(body, "CRIU", "The same program, dumped while it goes on, and restored.", &content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_report_draws_everything_and_needs_nothing() {
        let mut report = crate::snap::report::tests::sample();
        report.targets = crate::snap::targets::judge(&report);
        report.skipped.push("restart, cold: tmpfs".into());
        let page = page(&report);
        for text in ["Targets", "Fig. 5", "Fig. 6", "Where the pause went", "Space", "Writes after", "CRIU", "Not measured"] {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("<svg").count(), 6, "pause twice, its parts, restart warm and cold, space");
        for outside in ["http:", "https:", "<script", "url(", "NaN", "inf"] {
            assert!(!page.contains(outside), "the page contains {outside}");
        }
    }

    #[test]
    fn an_empty_report_is_still_a_page() {
        assert!(page(&crate::snap::report::tests::empty()).contains("</html>"));
    }
}
