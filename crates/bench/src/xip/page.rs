//! A report as one page: plots and tables, made with the parts of the epoch report's.
//!
//! What must hold: no script, no request; every figure that is drawn stands in the table under it.

use std::fmt::Write;

use super::report::{ModelFit, Row, SharingRow, Sweep, XipReport};
use super::table;
use crate::html::{figure, frame, section, skipped, table as rows_of, targets};
use crate::plot::{Plot, Scale, Series, escape};

fn class(layout: &str) -> &'static str {
    match layout {
        "off2f" | "split" => "c-towa",
        "block" | "whole" => "c-cpnvm",
        "off2f_main" | "off2f_huge" => "c-other",
        "tmpfs_whole" | "dax_whole" => "c-control",
        _ => "c-volatile",
    }
}

/// The page.
pub fn page(report: &XipReport) -> String {
    let mut body = String::new();
    head(&mut body, report);
    targets(&mut body, &report.targets, "Nothing is claimed for gzip, which has hardly any text.");
    matrix(&mut body, report);
    exec(&mut body, report);
    sharing(&mut body, report);
    report.model_fit.iter().for_each(|fit| model(&mut body, fit));
    report.sweep.iter().for_each(|found| sweep(&mut body, found));
    skipped(&mut body, &report.skipped);
    frame(&format!("towa bench xip, {}", report.date), &body)
}

fn head(body: &mut String, report: &XipReport) {
    let (m, s, ground, nvm) = (&report.machine, &report.settings, &report.ground, &report.nvm);
    let _ = write!(
        body,
        "<h1>towa bench xip</h1><p class=\"text\">{} with programs in <b>{}</b> ({}), text in <b>{}</b> ({}{}) · {} · {} cores · {} MiB · Linux {} · \
         commit {}<br>{} run, {:.0} s; {} rounds cold, {} warm; cold by: {}{}; seed {}; load average {:.2} at the start{}</p>",
        escape(&report.date),
        escape(&ground.location),
        escape(&ground.file_system),
        escape(&nvm.location),
        escape(&nvm.file_system),
        if nvm.dax { ", mapped directly" } else { "; memory stands for NVM" },
        escape(&m.cpu),
        m.cores,
        m.memory_mb,
        escape(&m.kernel),
        escape(m.commit.as_deref().unwrap_or("unknown")),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        s.rounds_cold,
        s.rounds_warm,
        ground.cold_by,
        ground.resident_when_cold.map(|v| format!(" ({:.1} % still in memory at most)", v * 100.0)).unwrap_or_default(),
        s.seed,
        m.load_at_start,
        m.others_cpu_share.map(|v| format!("; others took {:.1} % of the processors", v * 100.0)).unwrap_or_default(),
    );
}

/// The different texts of `all`, in their order.
fn different<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    all.for_each(|text| {
        if !found.contains(&text) {
            found.push(text)
        }
    });
    found
}

/// Bars by program, one a layout, on a scale of decades or from zero.
fn bars(label: &str, unit: &str, rows: &[&Row], decades: bool, value: fn(&Row) -> f64) -> String {
    let programs = different(rows.iter().map(|row| row.program.as_str()));
    let series: Vec<Series<'_>> =
        different(rows.iter().map(|row| row.layout.as_str())).into_iter().map(|layout| (layout, class(layout))).collect();
    let of =
        |program: &str, layout: &str| rows.iter().find(|row| row.program == program && row.layout == layout).map(|row| value(row));
    let groups: Vec<_> = programs
        .iter()
        .map(|program| ((*program).to_owned(), series.iter().map(|(layout, _)| of(program, layout)).collect::<Vec<_>>()))
        .collect();
    let (low, high) = rows.iter().map(|row| value(row)).fold((f64::MAX, 1.0f64), |(a, b), v| (a.min(v), b.max(v)));
    // A bar ends at the lower end of a scale that has no zero: below the lowest.
    let y = if decades { Scale::decades((low.min(high) / 2.0).max(0.1), high) } else { Scale::linear(0.0, high) };
    Plot::new(label, Scale::linear(0.0, groups.len() as f64), y, unit).bars(&series, &groups).finish(&series)
}

fn matrix(body: &mut String, report: &XipReport) {
    if report.matrix.is_empty() {
        return;
    }
    let mut content = String::new();
    for cache in ["cold", "warm"] {
        let rows: Vec<&Row> = report.matrix.iter().filter(|row| row.cache == cache).collect();
        if rows.is_empty() {
            continue;
        }
        content += &figure(
            &format!("time with {cache} pages (ms, logarithmic)"),
            &bars("time by layout", "ms", &rows, true, |row| row.wall_ms_p50),
        );
        if cache == "cold" {
            content += &figure(
                "faults that waited for storage, cold pages",
                &bars("major faults by layout", "faults", &rows, false, |row| row.major),
            );
        }
        content += &figure(
            &format!("other faults, {cache} pages"),
            &bars("minor faults by layout", "faults", &rows, false, |row| row.minor),
        );
    }
    content += &rows_of(&table::MATRIX, &report.matrix.iter().map(table::matrix).collect::<Vec<_>>());
    let text = "block: whole, on a block device. block_ra: the same, read into memory first, which counts. tmpfs_whole, dax_whole: whole, on what \
                stands for NVM, or is it. off2f: text of the program and its libraries on NVM. off2f_main: only that of the program. off2f_rodata: \
                read-only data as well. off2f_huge: aligned for huge pages. Layouts take turns; ratios are of the same round.";
    section(body, "Programs by layout", text, &content);
}

fn exec(body: &mut String, report: &XipReport) {
    if !report.exec_overhead.is_empty() {
        let content = rows_of(&table::EXEC, &report.exec_overhead.iter().map(table::exec).collect::<Vec<_>>());
        let text = "A program that says hello, started in turn whole, as another copy, split, and split with the text of its libraries in the store.";
        section(body, "Starting a program", text, &content);
    }
}

fn line_of(rows: &[SharingRow], layout: &str, value: fn(&SharingRow) -> f64) -> Vec<(f64, f64)> {
    rows.iter().filter(|row| row.layout == layout).map(|row| (row.processes as f64, value(row))).collect()
}

fn sharing(body: &mut String, report: &XipReport) {
    let rows = &report.sharing;
    if rows.is_empty() {
        return;
    }
    let layouts = different(rows.iter().map(|row| row.layout.as_str()));
    let most = rows.iter().map(|row| row.processes).max().unwrap_or(1) as f64;
    let mut content = String::new();
    type Of = fn(&SharingRow) -> f64;
    let plots: [(&str, Of, Of); 2] = [
        ("faults of all processes", |row| row.faults_of_all, |row| row.model_faults),
        ("faults that waited for storage", |row| row.major_of_all, |row| row.model_loads),
    ];
    for (what, measured, model) in plots {
        let top = rows.iter().flat_map(|row| [measured(row), model(row)]).fold(1.0f64, f64::max);
        let mut plot = Plot::new(what, Scale::linear(0.0, most), Scale::linear(0.0, top), "faults").x_numbers("processes");
        let names: Vec<(String, String)> =
            layouts.iter().map(|layout| ((*layout).to_owned(), format!("{layout}, the model"))).collect();
        let mut series: Vec<Series<'_>> = Vec::new();
        for (layout, (name, modelled)) in layouts.iter().zip(&names) {
            plot = plot.line((name, class(layout)), &line_of(rows, layout, measured));
            plot = plot.line((modelled, "c-volatile"), &line_of(rows, layout, model));
            series.push((name, class(layout)));
        }
        series.push(("the model", "c-volatile"));
        content += &figure(&format!("{what} (the paper's Fig. 4, measured)"), &plot.finish(&series));
    }
    content += &rows_of(&table::SHARING, &rows.iter().map(table::sharing).collect::<Vec<_>>());
    let text = "Python, started again and again while the others wait, with cold pages at the first. The model takes one fault for each page that the files \
                have, and none for text that another process has mapped; the kernel maps only what is used, with its neighbours, in every process anew.";
    section(body, "Processes that share a program", text, &content);
}

fn model(body: &mut String, fit: &ModelFit) {
    let (x, y) = (Scale::linear(0.0, fit.predicted.len().max(1) as f64), fit.predicted.iter().map(|p| p.wall_ms.max(p.model_ms)));
    let series: [Series<'_>; 2] = [("measured", "c-towa"), ("the model", "c-volatile")];
    let groups: Vec<_> = fit.predicted.iter().map(|p| (String::new(), vec![Some(p.wall_ms), Some(p.model_ms)])).collect();
    let low = fit.predicted.iter().map(|p| p.wall_ms.min(p.model_ms)).fold(f64::MAX, f64::min).clamp(0.2, 1e6);
    let mut content = String::new();
    if !groups.is_empty() {
        let plot =
            Plot::new("measured and predicted", x, Scale::decades(low / 2.0, y.fold(1.0, f64::max)), "ms").bars(&series, &groups);
        content += &figure("each row of the matrix, in the order of the table below (ms, logarithmic)", &plot.finish(&series));
    }
    content += &rows_of(&table::COSTS, &table::costs(fit));
    content += &rows_of(&table::PREDICTED, &fit.predicted.iter().map(table::predicted).collect::<Vec<_>>());
    let notes: String = fit.notes.iter().map(|note| format!("<li>{}</li>", escape(note))).collect();
    content += &format!("<ul>{notes}</ul>");
    let text = format!(
        "Its costs, fitted to the rows above: median error {:.1} %, largest {:.1} %, {} rows.",
        fit.error_pct, fit.error_pct_max, fit.rows
    );
    section(body, "The paper's model", &text, &content);
}

fn sweep(body: &mut String, found: &Sweep) {
    let items: String = found.exceptions.iter().map(|why| format!("<li>{}</li>", escape(why))).collect();
    let text =
        format!("{} of {} programs could be split; {} answer as the whole ones do.", found.split, found.programs, found.identical);
    section(body, "Programs of this machine", &text, &format!("<ul>{items}</ul>"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_report_draws_everything_and_needs_nothing() {
        let mut report = crate::xip::report::tests::sample();
        report.targets = crate::xip::targets::judge(&report);
        report.skipped.push("java: not there".into());
        if let Some(fit) = &mut report.model_fit {
            fit.predicted.push(crate::xip::report::Predicted { wall_ms: 10.0, model_ms: 12.0, ..Default::default() });
        }
        let page = page(&report);
        for text in ["Targets", "Programs by layout", "Starting a program", "Fig. 4", "paper's model", "a: static", "Not measured"]
        {
            assert!(page.contains(text), "{text}");
        }
        assert_eq!(page.matches("<svg").count(), 8, "time twice, faults three times, sharing twice, the model");
        for outside in ["http:", "https:", "<script", "url(", "NaN", "inf"] {
            assert!(!page.contains(outside), "the page contains {outside}");
        }
    }

    #[test]
    fn an_empty_report_is_still_a_page() {
        assert!(page(&crate::xip::report::tests::empty()).contains("</html>"));
    }
}
