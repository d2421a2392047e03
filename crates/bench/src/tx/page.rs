//! A report as one page: plots and tables, made with the parts of the epoch report's.
//!
//! What must hold: no script, no request; a plot shows each tree's fastest path, and every path stands in the table under it.

use std::fmt::Write;

use super::contenders::{BPTREE_PAPER, BPTREE_TX, FPTREE, PMDK_BTREE, TREES};
use super::load::Phase;
use super::report::TxReport;
use super::table::{BREAKDOWN_HEADS, HEADS, breakdown, cells, point, title};
use crate::html::{figure, frame, section, skipped, table, targets};
use crate::plot::{Plot, Scale, Series, escape};

fn class(tree: &str) -> &'static str {
    match tree {
        BPTREE_TX => "c-towa",
        FPTREE => "c-cpnvm",
        BPTREE_PAPER => "c-other",
        PMDK_BTREE => "c-control",
        _ => "c-volatile",
    }
}

fn series() -> [Series<'static>; 5] {
    TREES.map(|tree| (tree, class(tree)))
}

/// The page.
pub fn page(report: &TxReport) -> String {
    let mut body = String::new();
    head(&mut body, report);
    targets(&mut body, &report.targets, "Where a tree was run on several transaction paths, its fastest one counts.");
    for phase in Phase::ALL {
        throughput(&mut body, report, phase);
    }
    lost_time(&mut body, report);
    sweep(&mut body, report);
    recovery(&mut body, report);
    skipped(&mut body, &report.skipped);
    frame(&format!("towa bench tx, {}", report.date), &body)
}

fn head(body: &mut String, report: &TxReport) {
    let (m, s) = (&report.machine, &report.settings);
    let _ = write!(
        body,
        "<h1>towa bench tx</h1><p class=\"text\">{} on medium <b>{}</b> ({}): real write-backs and fences · {} · {} cores · {} MiB · Linux {} · commit {}<br>\
         {} run, {:.0} s; {} 8-byte keys, at most {} rounds, log of {} MiB a thread; seed {}; load average {:.2} at the start</p>",
        escape(&report.date),
        report.medium,
        escape(&report.location),
        escape(&m.cpu),
        m.cores,
        m.memory_mb,
        escape(&m.kernel),
        escape(m.commit.as_deref().unwrap_or("unknown")),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        s.keys,
        s.rounds,
        s.log_mb_per_thread,
        s.seed,
        m.load_at_start,
    );
}

fn throughput(body: &mut String, report: &TxReport, phase: Phase) {
    let rows = report.rows(phase);
    if rows.is_empty() {
        return;
    }
    let group = |threads: &usize| {
        let best = TREES.map(|tree| report.best(phase, tree, *threads).map(|row| row.mops));
        (format!("{threads} thread(s)"), best.to_vec())
    };
    let groups: Vec<_> = report.settings.threads.iter().map(group).collect();
    let top = groups.iter().flat_map(|g| &g.1).flatten().fold(0.1f64, |a, b| a.max(*b));
    let (x, y) = (Scale::linear(0.0, groups.len() as f64), Scale::linear(0.0, top));
    let svg =
        Plot::new(&format!("{}: throughput by tree", title(phase)), x, y, "M op/s").bars(&series(), &groups).finish(&series());
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let text = match phase {
        Phase::Insert | Phase::InsertMore | Phase::Mixed | Phase::MixedZipfian => {
            "Until the last log is applied. Flushes, fences and streamed bytes are counted by the medium, the drain's included."
        }
        Phase::Scan => "An operation is a whole scan.",
        Phase::Lookup | Phase::LookupZipfian => "Every answer is checked.",
    };
    section(body, title(phase), text, &(figure("fastest path of each tree", &svg) + &table(&HEADS, &rows)));
}

fn lost_time(body: &mut String, report: &TxReport) {
    if report.breakdown.is_empty() {
        return;
    }
    let causes = [("abort", "c-cpnvm"), ("log full", "c-other"), ("durability wait", "c-control"), ("other", "c-volatile")];
    let group = |b: &super::report::Breakdown| {
        let shares = [b.share_abort, b.share_log_full, b.share_durability_wait, b.share_other];
        (format!("{} thread(s), {}", b.threads, b.tm), shares.map(|s| Some(s * 100.0)).to_vec())
    };
    let mut content = String::new();
    for tree in TREES {
        let fastest = |b: &&super::report::Breakdown| {
            b.tree == tree && report.best(Phase::Insert, tree, b.threads).is_none_or(|row| row.tm == b.tm)
        };
        let groups: Vec<_> = report.breakdown.iter().filter(fastest).map(group).collect();
        if groups.is_empty() {
            continue;
        }
        let (x, y) = (Scale::linear(0.0, groups.len() as f64), Scale::linear(0.0, 100.0));
        let plot = Plot::new(&format!("{tree}: share of the threads' time by cause"), x, y, "% of time").bars(&causes, &groups);
        content += &figure(&format!("{tree}, its fastest path: share of all threads' time"), &plot.finish(&causes));
    }
    let text = "Inserts into an empty map. The paper gives shares of the extra time, beyond the operations' own work: the last three columns.";
    content += &table(&BREAKDOWN_HEADS, &breakdown(report));
    section(body, "Where the time went", text, &content);
}

fn sweep(body: &mut String, report: &TxReport) {
    if report.sweep.is_empty() {
        return;
    }
    let mut content = String::new();
    let top = report.sweep.iter().fold(0.1f64, |a, p| a.max(p.mops));
    for varies in ["write_back_ns", "write_gb_s"] {
        for threads in &report.settings.threads {
            let points: Vec<_> = report.sweep.iter().filter(|p| p.varies == varies && p.threads == *threads).collect();
            let mut names: Vec<String> = Vec::new();
            points.iter().map(|p| point(p)).for_each(|name| {
                if !names.contains(&name) {
                    names.push(name);
                }
            });
            if names.is_empty() {
                continue;
            }
            let at = |name: &str, tree: &str| {
                let here = points.iter().filter(|p| p.tree == tree && point(p) == name);
                here.map(|p| p.mops).reduce(f64::max)
            };
            let groups: Vec<_> = names.iter().map(|name| (name.clone(), TREES.map(|tree| at(name, tree)).to_vec())).collect();
            let (x, y) = (Scale::linear(0.0, groups.len() as f64), Scale::linear(0.0, top));
            let plot = Plot::new(&format!("inserts by {varies}"), x, y, "M op/s").bars(&series(), &groups);
            content += &figure(&format!("{threads} thread(s)"), &plot.finish(&series()));
        }
    }
    let line = |p: &super::report::SweepPoint| {
        vec![p.tree.clone(), p.tm.clone(), point(p), p.threads.to_string(), format!("{:.3}", p.mops)]
    };
    let rows: Vec<_> = report.sweep.iter().map(line).collect();
    content += &table(&["tree", "tm", "memory", "threads", "M inserts/s"], &rows);
    let text = "Inserts into an empty map of a fifth of the keys, with calibrated delays added to each write-back, or a limit to the bandwidth of all writes.";
    section(body, "Slower memory", text, &content);
}

fn recovery(body: &mut String, report: &TxReport) {
    if report.recovery.is_empty() {
        return;
    }
    let low = report.recovery.iter().fold(f64::MAX, |a, p| a.min(p.first_answer_ms)).max(0.001);
    let high = report.recovery.iter().fold(low, |a, p| a.max(p.first_answer_ms));
    let (first, last) = report.recovery.iter().fold((u64::MAX, 1), |(a, b), p| (a.min(p.keys), b.max(p.keys)));
    let x = Scale::log(first.max(1) as f64 * 0.8, last as f64 * 1.25);
    let mut plot = Plot::new("time to the first answer by size", x, Scale::decades(low, high), "ms").x_numbers("keys");
    let mut drawn: Vec<Series<'_>> = Vec::new();
    for p in &report.recovery {
        let one = (p.tree.as_str(), class(&p.tree));
        if drawn.contains(&one) {
            continue;
        }
        let same = report.recovery.iter().filter(|q| q.tree == p.tree && q.tm == p.tm);
        plot = plot.line(one, &same.map(|q| (q.keys as f64, q.first_answer_ms)).collect::<Vec<_>>());
        drawn.push(one);
    }
    let line = |p: &super::report::RecoveryPoint| {
        vec![p.tree.clone(), p.tm.clone(), p.keys.to_string(), format!("{:.1}", p.first_answer_ms)]
    };
    let rows: Vec<_> = report.recovery.iter().map(line).collect();
    let content = figure("opening after SIGKILL to the first answered look-up (ms)", &plot.finish(&drawn))
        + &table(&["tree", "tm", "keys", "first answer ms"], &rows);
    section(body, "Recovery", "A process that upserts at full speed is killed; another opens its map.", &content);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_report_draws_everything_and_needs_nothing() {
        let mut report = crate::tx::report::tests::sample();
        report.targets = crate::tx::targets::judge(&report);
        report.skipped.push("pmdk_btree: skipped".into());
        let page = page(&report);
        for text in ["Targets", "insert (into empty)", "Where the time went", "Slower memory", "Recovery", "Not measured"] {
            assert!(page.contains(text), "{text}");
        }
        assert!(page.matches("<svg").count() >= 10, "{} plots", page.matches("<svg").count());
        for outside in ["http:", "https:", "<script", "url(", "NaN", "inf"] {
            assert!(!page.contains(outside), "the page contains {outside}");
        }
    }

    #[test]
    fn an_empty_report_is_still_a_page() {
        assert!(page(&crate::tx::report::tests::empty()).contains("</html>"));
    }
}
