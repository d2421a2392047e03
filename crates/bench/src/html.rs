//! A report as one page that needs nothing else: plots inline, light and dark, printable.
//!
//! What must hold: no script, no request; every drawn figure also stands in a table or tool tip; what was not measured is
//! said, not left out silently.

use std::fmt::Write;

use crate::plot::{Plot, Scale, Series, escape, short};
use crate::report::{Report, Stretch, WorkloadReport};
use crate::targets::{Target, number};
use crate::windows::{CLASS_NAMES, StopShares};

const STYLE: &str = include_str!("html.css");

const TOWA: Series<'_> = ("towa (non-stop)", "c-towa");
const CPNVM: Series<'_> = ("cpnvm (stop the world)", "c-cpnvm");
const CONTROL: Series<'_> = ("control (volatile + copying thread)", "c-control");
const VOLATILE: Series<'_> = ("volatile", "c-volatile");

/// The page.
pub fn page(report: &Report) -> String {
    let mut body = String::new();
    head(&mut body, report);
    targets(&mut body, &report.targets, "They are meant for the media ram and dax; on file the device sets the pace.");
    throughput(&mut body, report);
    stretches(&mut body, report);
    stops(&mut body, report);
    servers(&mut body, report);
    crate::cache::page::caches(&mut body, report);
    recovery(&mut body, report);
    skipped(&mut body, &report.skipped);
    frame(&format!("towa bench epoch, {}", report.date), &body)
}

/// A whole page around `body`.
pub(crate) fn frame(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n",
        escape(title)
    )
}

pub(crate) fn section(body: &mut String, title: &str, text: &str, content: &str) {
    let _ = write!(body, "<section><h2>{title}</h2><p class=\"text\">{text}</p>{content}</section>");
}

pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, cells: &[String]| -> String { cells.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect() };
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    let rows: String = rows.iter().map(|r| format!("<tr>{}</tr>", cells("td", r))).collect();
    format!("<div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>{rows}</tbody></table></div>", cells("th", &head))
}

pub(crate) fn figure(caption: &str, svg: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>{svg}</figure>", escape(caption))
}

pub(crate) fn opt(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

fn head(body: &mut String, report: &Report) {
    let (m, s) = (&report.machine, &report.settings);
    let _ = write!(
        body,
        "<h1>towa bench epoch</h1><p class=\"text\">{} on medium <b>{}</b> ({}, {}) · {} · {} cores · {} MiB · Linux {} · commit {}<br>\
         {} run, {:.0} s; interval {} ms, {} buckets, {}-byte values, {} rounds of {} ms; seed {}; load average {:.2} at the start{}</p>",
        escape(&report.date),
        escape(&report.medium),
        escape(&report.medium_detail.location),
        escape(&report.medium_detail.guarantee),
        escape(&m.cpu),
        m.cores,
        m.memory_mb,
        escape(&m.kernel),
        escape(m.commit.as_deref().unwrap_or("unknown")),
        if s.quick { "quick" } else { "full" },
        report.took_s,
        s.interval_ms,
        s.buckets,
        s.value_bytes,
        s.rounds,
        s.round_ms,
        s.seed,
        m.load_at_start,
        opt(m.others_cpu_share, |v| format!("; others took {:.1} % of the processors", v * 100.0)),
    );
}

/// What was not measured, and why.
pub(crate) fn skipped(body: &mut String, reasons: &[String]) {
    if !reasons.is_empty() {
        let items: String = reasons.iter().map(|s| format!("<li>{}</li>", escape(s))).collect();
        section(body, "Not measured", "", &format!("<ul>{items}</ul>"));
    }
}

/// The list of targets; `note` says what they are meant for.
pub(crate) fn targets(body: &mut String, targets: &[Target], note: &str) {
    let mut rows = String::new();
    for target in targets {
        let class = match target.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "absent",
        };
        let sign = if target.bound == crate::targets::Bound::AtLeast { "≥" } else { "≤" };
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{sign} {}</td><td>{}</td><td class=\"{class}\">{}</td><td class=\"text\">{}</td></tr>",
            escape(&target.name),
            number(target.target, target.unit),
            opt(target.measured, |m| number(m, target.unit)),
            target.verdict(),
            escape(&target.meaning)
        );
    }
    let content = format!(
        "<div class=\"scroll\"><table><thead><tr><th>target</th><th>line</th><th>measured</th><th></th><th>meaning</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>"
    );
    let met = targets.iter().filter(|t| t.met == Some(true)).count();
    let judged = targets.iter().filter(|t| t.met.is_some()).count();
    let text = format!("{met} of {judged} measured targets met. {note}");
    section(body, "Targets", &text, &content);
}

fn by_threads(report: &Report) -> Vec<(&str, Vec<(&str, &WorkloadReport)>)> {
    let mut all = vec![("1", report.workloads.iter().map(|(k, v)| (k.as_str(), v)).collect())];
    all.extend(report.threads.iter().map(|(n, w)| (n.as_str(), w.iter().map(|(k, v)| (k.as_str(), v)).collect())));
    all
}

fn throughput(body: &mut String, report: &Report) {
    if report.workloads.is_empty() && report.threads.is_empty() {
        return;
    }
    let series = [TOWA, CPNVM, CONTROL];
    let mut content = String::new();
    let mut rows = Vec::new();
    for (threads, workloads) in by_threads(report).into_iter().filter(|(_, w)| !w.is_empty()) {
        let ratios = |w: &WorkloadReport| vec![w.ratio_to_volatile, w.ratio_cpnvm_to_volatile, w.ratio_control_to_volatile];
        let groups: Vec<_> = workloads.iter().map(|(name, w)| ((*name).to_owned(), ratios(w))).collect();
        let top = groups.iter().flat_map(|g| &g.1).flatten().fold(1.1f64, |a, b| a.max(*b));
        let plot = Plot::new(
            "throughput over the volatile mode's, by workload and engine",
            Scale::linear(0.0, groups.len() as f64),
            Scale::linear(0.0, top),
            "of volatile",
        );
        let svg = plot.bars(&series, &groups).level(1.0, "").finish(&series);
        content += &figure(&format!("{threads} user thread(s)"), &svg);
        for (name, w) in workloads {
            let ops = |v| opt(v, short);
            let ratio = |v| opt(v, |v| format!("{v:.3}"));
            rows.push(vec![
                threads.to_owned(),
                name.to_owned(),
                ops(w.ops_volatile),
                ops(w.ops_towa),
                ops(w.ops_cpnvm),
                ops(w.ops_control),
                ratio(w.ratio_to_volatile),
                w.ratio_to_volatile_range.map_or_else(|| "-".into(), |[a, b]| format!("{a:.2} to {b:.2}")),
                ratio(w.ratio_cpnvm_to_volatile),
                opt(w.user_cpu_ns_per_op.volatile, short),
                opt(w.user_cpu_ns_per_op.towa, short),
                opt(w.towa_engine.as_ref().and_then(|e| e.write_amplification), |v| format!("{v:.2}")),
            ]);
        }
    }
    let columns = [
        "threads",
        "workload",
        "volatile op/s",
        "towa op/s",
        "cpnvm op/s",
        "control op/s",
        "towa ratio",
        "its range",
        "cpnvm ratio",
        "user ns/op volatile",
        "user ns/op towa",
        "write amplification",
    ];
    content += &table(&columns, &rows);
    let huge = |share| opt(share, |v| format!("{:.0} %", v * 100.0));
    let text = format!(
        "Operations a second over those of the volatile mode of the same engine (with huge pages) in the same round; medians over \
         rounds in which the engines take turns. YCSB runs on {}. Heap in huge pages: volatile {}, towa {}. User ns/op: processor time of the user threads alone, which \
         leaves out the persister's and everybody else's. Write amplification: bytes written to the medium over bytes of values written.",
        escape(&report.settings.ycsb_store),
        huge(report.settings.volatile_huge_page_share),
        huge(report.settings.towa_huge_page_share),
    );
    section(body, "Throughput", &text, &content);
}

fn stretches(body: &mut String, report: &Report) {
    if report.workloads.is_empty() {
        return;
    }
    let mut content = String::new();
    for (name, stretch) in report.workloads.iter().filter_map(|(n, w)| Some((n, w.stretch_100us.as_ref()?))) {
        let Stretch { volatile, towa, cpnvm } = stretch;
        let top = volatile.iter().chain(towa).chain(cpnvm).copied().max().unwrap_or(1);
        for (series, counts) in [(VOLATILE, volatile), (TOWA, towa), (CPNVM, cpnvm)] {
            let plot = Plot::new(
                &format!("{name}: operations per 100 us, {}", series.0),
                Scale::linear(0.0, counts.len() as f64 * 0.1),
                Scale::linear(0.0, f64::from(top)),
                "op / 100 us",
            );
            let svg = plot.steps(series, counts).x_numbers("ms").finish(&[series]);
            content += &figure(&format!("{name}, {}", series.0), &svg);
        }
    }
    let text =
        "Operations completed in each window of 100 us over a stretch that holds checkpoints, one user thread. A gap is a stop.";
    section(body, "Every 100 microseconds", text, &content);
}

fn stops(body: &mut String, report: &Report) {
    if report.workloads.is_empty() && report.threads.is_empty() {
        return;
    }
    let series = [VOLATILE, CONTROL, TOWA, CPNVM];
    let engines = |w: &WorkloadReport| [w.volatile.clone(), w.control.clone(), w.towa.clone(), w.cpnvm.clone()];
    let (mut content, mut rows) = (String::new(), Vec::new());
    for (threads, workloads) in by_threads(report) {
        for (name, w) in workloads {
            if threads == "1" {
                content += &figure(
                    &format!("{name}: share of time in stops at the 50 % line, by length of the stop (%)"),
                    &class_plot(name, &engines(w), &series),
                );
            }
            for (shares, (label, _)) in engines(w).iter().zip(series) {
                let Some(s) = shares else { continue };
                rows.push(stop_row(threads, name, label, s));
            }
        }
    }
    let columns =
        ["threads", "workload", "engine", "below 10 %", "below 30 %", "below 50 %", "500-us windows ≥ 50 %", "longest stop"];
    content += &table(&columns, &rows);
    let text = "A window of 100 us is stopped at a line if it holds less than that share of the volatile mode's mean of the same round; \
                neighbouring stopped windows make one stop. The control is the volatile mode beside a thread that merely copies as many \
                bytes in the same bursts as towa logged: what it loses, the machine takes, not the engine.";
    section(body, "Stops", text, &content);
}

fn class_plot(name: &str, engines: &[Option<StopShares>; 4], series: &[Series<'_>; 4]) -> String {
    let percent = |class: usize| {
        engines.iter().map(|s| s.as_ref().map(|s| s.stop_share_by_length.line_50[class] * 100.0)).collect::<Vec<_>>()
    };
    let groups: Vec<_> = CLASS_NAMES.iter().enumerate().map(|(n, class)| ((*class).to_owned(), percent(n))).collect();
    let top = groups.iter().flat_map(|g| &g.1).flatten().fold(0.1f64, |a, b| a.max(*b));
    let label = format!("{name}: share of time in stops by length");
    Plot::new(&label, Scale::linear(0.0, groups.len() as f64), Scale::linear(0.0, top), "% of time")
        .bars(series, &groups)
        .finish(series)
}

fn stop_row(threads: &str, name: &str, engine: &str, s: &StopShares) -> Vec<String> {
    let percent = |v: f64| format!("{:.2} %", v * 100.0);
    vec![
        threads.to_owned(),
        name.to_owned(),
        engine.to_owned(),
        percent(s.stop_share_10),
        percent(s.stop_share_30),
        percent(s.stop_share_50),
        percent(s.windows_500us_above_50pct),
        format!("{:.1} ms", s.longest_stop_ms),
    ]
}

pub(crate) fn server_class(name: &str) -> &'static str {
    match name {
        "towa" => "c-towa",
        "towa_volatile" => "c-volatile",
        "memcached" => "c-control",
        "redis_aof" => "c-cpnvm",
        _ => "c-other",
    }
}

fn servers(body: &mut String, report: &Report) {
    let present: Vec<_> = report.server.iter().filter_map(|(n, s)| Some((n.as_str(), s.as_ref()?))).collect();
    if present.is_empty() {
        return;
    }
    let series: Vec<Series<'_>> = present.iter().map(|(name, _)| (*name, server_class(name))).collect();
    let points = present.iter().flat_map(|(_, s)| &s.percentiles).map(|p| p.1);
    let (low, high) = points.fold((f64::MAX, 1.0f64), |(a, b), v| (a.min(v), b.max(v)));
    // x is 1 / (1 - percentile): 50 % at 2, 99.9 % at 1000.
    let rank = |percentile: f64| 1.0 / (1.0 - percentile / 100.0);
    let mut plot =
        Plot::new("server latency by percentile", Scale::log(2.0, rank(99.99)), Scale::decades(low.max(1.0), high), "latency, us")
            .x_ticks([
                (rank(50.0), "50 %"),
                (rank(90.0), "90 %"),
                (rank(99.0), "99 %"),
                (rank(99.9), "99.9 %"),
                (rank(99.985), "99.99 %"),
            ]);
    for ((_, server), series) in present.iter().zip(&series) {
        let points: Vec<_> = server.percentiles.iter().map(|(p, us)| (rank(*p), *us)).collect();
        plot = plot.line(*series, &points);
    }
    let mut content =
        figure("latency by percentile over the whole run, checkpoints and snapshots included (us)", &plot.finish(&series));
    let us = |v: f64| format!("{v:.0}");
    let rows: Vec<_> = present
        .iter()
        .map(|(name, s)| {
            vec![
                (*name).to_owned(),
                short(s.ops),
                opt(s.ratio_to_memcached, |v| format!("{v:.3}")),
                us(s.p50),
                us(s.p99),
                us(s.p999),
                us(s.max),
                s.checkpoints.map_or_else(|| "-".into(), |c| c.to_string()),
                opt(s.rss_mb, |v| format!("{v:.0}")),
                s.bytes_written.map_or_else(|| "-".into(), |b| format!("{:.0}", b as f64 / (1 << 20) as f64)),
                opt(s.restart_first_answer_ms, |v| format!("{v:.0}")),
                opt(s.restart_full_speed_ms, |v| format!("{v:.0}")),
                opt(s.kept_share, |v| format!("{:.1} %", v * 100.0)),
            ]
        })
        .collect();
    let columns = [
        "server",
        "op/s",
        "to memcached",
        "p50 us",
        "p99",
        "p99.9",
        "max",
        "checkpoints",
        "RSS MiB",
        "written MiB",
        "first answer ms",
        "full speed ms",
        "keys kept",
    ];
    content += &table(&columns, &rows);
    let text = format!(
        "Half reads, half updates, Zipfian over {} keys, values of 100 to 1024 bytes; {} connections of one client thread, one request \
         in flight on each, {} worker thread(s) a server (Redis has one). The client is a closed loop: it waits with the server, so a stall \
         shows as one slow request per connection. The restart follows a SIGKILL under load. All servers keep their files on the \
         run's medium: in memory, Redis' syncs cost nothing.",
        report.settings.server_keys, report.settings.server_connections, report.settings.server_threads
    );
    section(body, "Server", &text, &content);
}

fn recovery(body: &mut String, report: &Report) {
    if report.recovery.is_empty() {
        return;
    }
    let series = [("lazy", "c-towa"), ("eager", "c-cpnvm")];
    let points = |get: fn(&crate::report::RecoveryPoint) -> Option<f64>| -> Vec<(f64, f64)> {
        report.recovery.iter().filter_map(|p| Some((p.heap_mb as f64, get(p)?))).collect()
    };
    let (lazy, eager) = (points(|p| p.lazy_ms), points(|p| p.eager_ms));
    let sizes: Vec<_> = report.recovery.iter().map(|p| (p.heap_mb as f64, format!("{} MiB", p.heap_mb))).collect();
    let (low, high) = lazy.iter().chain(&eager).fold((300.0f64, 301.0f64), |(a, b), p| (a.min(p.1), b.max(p.1)));
    let (first, last) = (sizes[0].0, sizes[sizes.len() - 1].0);
    let plot = Plot::new(
        "time to the first answer by heap size",
        Scale::log(first * 0.8, last * 1.25),
        Scale::decades(low.max(0.1), high),
        "ms",
    )
    .x_ticks(sizes.iter().map(|(v, t)| (*v, t.as_str())))
    .level(300.0, "300 ms")
    .line(series[0], &lazy)
    .line(series[1], &eager);
    let rows: Vec<_> = report
        .recovery
        .iter()
        .map(|p| {
            let ms = |v| opt(v, |v| format!("{v:.1}"));
            vec![p.heap_mb.to_string(), ms(p.lazy_ms), ms(p.eager_ms), opt(p.replayed_mb, |v| format!("{v:.1}"))]
        })
        .collect();
    let content = figure("opening after SIGKILL to the first answered look-up (ms)", &plot.finish(&series))
        + &table(&["live data MiB", "lazy ms", "eager ms", "replayed MiB"], &rows);
    let text = "A process that writes at full speed is killed; another opens its heap. Lazy: pages come in as touched. Eager: everything \
                is loaded first. The page cache is warm, as after any crash of a process.";
    section(body, "Recovery", text, &content);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{RecoveryPoint, ServerReport};

    #[test]
    fn an_empty_report_is_still_a_page() {
        let page = page(&crate::report::tests::empty());
        assert!(page.starts_with("<!doctype html>") && page.contains("</html>"));
    }

    #[test]
    fn a_full_report_draws_everything_and_needs_nothing() {
        let page = page(&sample());
        for text in ["Targets", "Throughput", "Every 100 microseconds", "Stops", "Server", "Recovery", "Not measured", "MISSED by"]
        {
            assert!(page.contains(text), "{text}");
        }
        assert!(page.matches("<svg").count() >= 7, "{} plots", page.matches("<svg").count());
        for outside in ["http:", "https:", "<script", "url("] {
            assert!(!page.contains(outside), "the page refers to {outside}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"), "a plot has an impossible coordinate");
    }

    fn sample() -> Report {
        let mut report = crate::report::tests::empty();
        let counts: Vec<u32> = (0..3000).map(|i| if i % 1000 < 40 { 20 } else { 90 + i % 17 }).collect();
        let shares = crate::windows::StopTally::of(&counts, 95.0).shares();
        let workload = WorkloadReport {
            ops_volatile: Some(1e6),
            ops_towa: Some(0.8e6),
            ratio_to_volatile: Some(0.8),
            ratio_cpnvm_to_volatile: Some(0.5),
            volatile: Some(shares.clone()),
            towa: Some(shares.clone()),
            control: Some(shares),
            stretch_100us: Some(Stretch { volatile: counts.clone(), towa: counts.clone(), cpnvm: counts }),
            ..WorkloadReport::default()
        };
        report.workloads.insert("ycsb_a".into(), workload.clone());
        report.threads.insert("2".into(), [("ycsb_a".to_owned(), workload)].into());
        let percentiles = vec![(50.0, 80.0), (99.0, 200.0), (99.9, 900.0)];
        report.server.insert("towa".into(), Some(ServerReport { ops: 1e5, percentiles, ..ServerReport::default() }));
        report.server.insert("redis_aof".into(), None);
        report.recovery.push(RecoveryPoint { heap_mb: 100, lazy_ms: Some(12.0), eager_ms: Some(40.0), ..RecoveryPoint::default() });
        report.skipped.push("redis_aof: skipped: redis-server not installed".into());
        report.targets = crate::targets::judge(&report);
        report
    }
}
