//! Processes that share a program: what each further one faults (the paper's Fig. 4, measured).
//!
//! ```text
//!   cold pages ── process 1 ── ready ── process 2 ── ready ── ...      all stay until the last is ready
//! ```
//!
//! What must hold: faults are those of a process until it is ready, as the kernel counts them for it; beside them stands what the model says
//! for a program of as many pages, one fault a page, whatever the kernel does.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use towa_xip::model::{self, Costs};
use towa_xip::stat;

use super::ground::Ground;
use super::layouts::{Laid, Layout};
use super::programs::Program;
use super::report::SharingRow;
use crate::cleanup::Running;
use crate::snap::stats::median;

/// Numbers of processes that get a row.
const COUNTS: [usize; 6] = [1, 2, 3, 4, 5, 10];

/// What python does: it says that it is there, and waits.
const WAIT: &str = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()";

/// One process when it was ready.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    major: u64,
    minor: u64,
    copied_pages: u64,
    wall_ms: f64,
}

/// Rows of the layouts in `all`, of which each is started with cold pages so many times.
pub fn measure(
    python: &Program,
    all: &[Laid],
    ground: &mut Ground,
    rounds: usize,
    costs: Option<Costs>,
    dax: bool,
) -> Result<Vec<SharingRow>> {
    let shape = shape(python)?;
    let mut found = vec![Vec::new(); all.len()];
    for _ in 0..rounds {
        for (laid, found) in all.iter().zip(&mut found) {
            found.push(start_all(laid, ground)?);
        }
    }
    let rows = all.iter().zip(&found).flat_map(|(laid, found)| rows(laid, found, &shape, costs, dax));
    Ok(rows.collect())
}

/// Pages of the program and its libraries.
fn shape(python: &Program) -> Result<model::Program> {
    let (mut text, mut all) = (0, 0);
    for path in [&python.path].into_iter().chain(&python.interpreter).chain(&python.libraries) {
        let pages = stat::stat(path, None)?.pages;
        text += pages.text;
        all += pages.text + pages.rodata + pages.data;
    }
    ensure!(all > 0, "no pages");
    Ok(model::Program { pages: all as f64, text_share: text as f64 / all as f64, cow: 0.0, processes: 1 })
}

fn start_all(laid: &Laid, ground: &mut Ground) -> Result<Vec<Ready>> {
    ground.make_cold(&laid.on_block)?;
    let count = COUNTS[COUNTS.len() - 1];
    let mut running = Vec::new();
    (0..count).map(|_| start(laid, &mut running)).collect()
}

fn start(laid: &Laid, running: &mut Vec<Running>) -> Result<Ready> {
    let args = ["-s", "-S", "-c", WAIT].map(OsString::from);
    let mut command = laid.command(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let begin = Instant::now();
    let mut process = Running::adopt(command.spawn().context("python cannot be started")?);
    let mut line = String::new();
    BufReader::new(process.child().stdout.as_mut().context("no output")?).read_line(&mut line)?;
    let wall_ms = begin.elapsed().as_secs_f64() * 1e3;
    ensure!(line == "ready\n", "python said {line:?} instead of being ready");
    let of = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", process.pid())).context("reading its figures");
    let (minor, major) = faults(&of("stat")?).context("figures of a process in an unknown form")?;
    let copied_pages = copied(&of("smaps")?);
    running.push(process);
    Ok(Ready { major, minor, copied_pages, wall_ms })
}

/// Minor and major faults in `/proc/PID/stat`.
fn faults(stat: &str) -> Option<(u64, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?))
}

/// Pages of mapped files that `/proc/PID/smaps` says the process has copies of.
fn copied(smaps: &str) -> u64 {
    let (mut of_file, mut kb) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first.contains('-') {
            of_file = line.contains(" /");
        } else if first == "Anonymous:" && of_file {
            kb += words.next().and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    kb / 4
}

fn rows(laid: &Laid, rounds: &[Vec<Ready>], shape: &model::Program, costs: Option<Costs>, dax: bool) -> Vec<SharingRow> {
    let of = |n: usize, figure: fn(&Ready) -> f64| median(rounds.iter().map(|round| figure(&round[n - 1])));
    let sum = |n: usize, figure: fn(&Ready) -> f64| (1..=n).map(|n| of(n, figure)).sum::<f64>();
    let from_nvm = match laid.layout {
        Layout::Block | Layout::BlockRa => 0.0,
        Layout::Whole => shape.pages,
        _ => shape.text_pages(),
    };
    let row = |n: usize| {
        let copies = sum(n, |ready| ready.copied_pages as f64) - of(1, |ready| ready.copied_pages as f64);
        let cow = (copies / shape.data_pages() / (n.max(2) - 1) as f64).min(1.0);
        let program = model::Program { cow, processes: n as u64, ..*shape };
        let model_ms = costs.map(|c| c.t4 * from_nvm + c.load() * (shape.pages - from_nvm) + model::copies(&c, &program));
        SharingRow {
            layout: laid.layout.name(dax).into(),
            processes: n,
            major: of(n, |ready| ready.major as f64),
            minor: of(n, |ready| ready.minor as f64),
            wall_ms: of(n, |ready| ready.wall_ms),
            copied_pages: of(n, |ready| ready.copied_pages as f64),
            major_of_all: sum(n, |ready| ready.major as f64),
            faults_of_all: sum(n, |ready| (ready.major + ready.minor) as f64),
            model_loads: shape.pages - from_nvm,
            model_faults: shape.pages + copies,
            model_ms,
        }
    };
    COUNTS.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_process_are_read() {
        assert_eq!(faults("12 (a) b) S 1 2 3 4 5 6 777 8 99 10"), Some((777, 99)));
        assert_eq!(faults("nothing"), None);
        let smaps = "00400000-00401000 r-xp 00000000 08:01 1 /bin/a\nRss: 4 kB\nAnonymous: 8 kB\nVmFlags: rd\n\
                     00500000-00501000 rw-p 00000000 00:00 0 [heap]\nAnonymous: 400 kB\n\
                     00600000-00601000 rw-p 00000000 08:01 1 /bin/a b\nAnonymous: 4 kB\n";
        assert_eq!(copied(smaps), 3);
        assert!(faults(&std::fs::read_to_string("/proc/self/stat").unwrap()).unwrap().0 > 0);
    }
}
