//! `towa xip plan`: which programs and libraries to put on NVM.
//!
//! What must hold: lists for other programs hold nothing but paths, exactly as they are; what a plan rests on (costs, which pages count, what a
//! trace only estimates) is printed with it.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use towa_xip::budget::{self, Basis, Candidate, Plan};
use towa_xip::figure::{columns, short};
use towa_xip::model::Costs;
use towa_xip::traced::Trace;

use super::model::{CostArgs, usage};
use crate::report::{self, bytes};

/// Choose what to put on NVM, from a trace of what runs.
///
/// Of the programs and libraries in the trace those are chosen whose text saves the most time together, and that fit: how often each was run, times the
/// pages of text that a run touches, times what a page saves (t1+t2+t3-t4). That last factor is the same for all of them: it changes the times that are
/// printed, not the choice. The choice is the best there is (a knapsack); the paper's rule, by frequency and time per byte, is shown beside it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa xip trace --json -- make > make.json
  towa xip plan --budget 64M --trace make.json
  towa xip plan --budget 8M --trace make.json /usr/lib              libraries only
  towa xip plan --budget 64M --trace make.json --count major        by the reads that the traced run waited for
  towa xip plan --budget 64M --trace make.json --print0 | xargs -0 towa xip split --store /mnt/pmem/xip")]
pub struct PlanArgs {
    /// NVM to fill: bytes, or with K, M, G or T.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    budget: u64,
    /// What `towa xip trace --json` wrote.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Where programs lie now: it sets t2.
    #[arg(long, value_enum, default_value = "ssd-sequential", value_name = "STORAGE")]
    storage: Storage,
    /// Which pages of text save time.
    #[arg(long, value_enum, default_value = "pages", value_name = "WHICH")]
    count: Count,
    #[command(flatten)]
    costs: CostArgs,
    /// Report as JSON.
    #[arg(long, conflicts_with_all = ["list", "print0"])]
    json: bool,
    /// Print the chosen paths only, one a line.
    #[arg(long, conflicts_with = "print0")]
    list: bool,
    /// Print the chosen paths only, each ended by a zero byte.
    #[arg(long)]
    print0: bool,
    /// Only these programs and libraries, or those below these directories.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Storage {
    /// 6 ms for 4 KiB.
    Disk,
    /// 0.1 ms.
    Ssd,
    /// 0.092 ms: programs that lie in one piece.
    DiskSequential,
    /// 0.017 ms.
    SsdSequential,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Count {
    /// All that a run touches: every run is a cold one.
    Pages,
    /// The faults that waited for storage in the traced run.
    Major,
}

impl Storage {
    fn costs(self) -> Costs {
        match self {
            Storage::Disk => Costs::DISK,
            Storage::Ssd => Costs::SSD,
            Storage::DiskSequential => Costs::DISK_SEQUENTIAL,
            Storage::SsdSequential => Costs::SSD_SEQUENTIAL,
        }
    }
}

/// `64M`, `1.5G`, `4096`.
fn size(text: &str) -> std::result::Result<u64, String> {
    let wrong = || format!("{text}: a size is a number of bytes, or a number with K, M, G or T");
    let (digits, unit) = match text.char_indices().last() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            let power = "KMGT".find(unit.to_ascii_uppercase()).ok_or_else(wrong)?;
            (&text[..at], 1u64 << (10 * (power + 1)))
        }
        _ => (text, 1),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(wrong);
    }
    let value = digits.parse::<f64>().ok().filter(|value| (0.0..1e7).contains(value) && unit > 1).ok_or_else(wrong)?;
    Ok((value * unit as f64) as u64)
}

/// What is reported.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    plan: Plan,
    costs: Costs,
    /// Time that would be saved if all candidates lay on NVM.
    saved_ms_at_most: f64,
    trace: About,
}

/// The trace, as far as a plan quotes it.
#[derive(Serialize)]
struct About {
    command: Vec<String>,
    wall_ms: f64,
    exact: bool,
    notes: Vec<String>,
}

/// `towa xip plan`.
pub fn run(args: &PlanArgs) -> Result<()> {
    let about = ("trace", report::path(&args.trace));
    let answer = report::bad_news(args.json, about, answer(args))?;
    match args {
        PlanArgs { json: true, .. } => report::json(&answer),
        PlanArgs { list: true, .. } => list(&answer.plan.choice.chosen, b"\n"),
        PlanArgs { print0: true, .. } => list(&answer.plan.choice.chosen, b"\0"),
        _ => report::print(&answer.text()),
    }
}

fn answer(args: &PlanArgs) -> Result<Answer> {
    let costs = args.costs.over(args.storage.costs())?;
    let trace = Trace::read(&args.trace)?;
    let basis = match args.count {
        Count::Pages => Basis::Pages,
        Count::Major => Basis::Major,
    };
    // A trace names objects without links, and may be of another machine: a path counts as given, else as it resolves here.
    let known = |path: &PathBuf| trace.objects.iter().any(|object| object.path.starts_with(path));
    let resolved = |path: &PathBuf| path.canonicalize().ok().filter(|resolved| !known(path) && known(resolved));
    let paths: Vec<_> = args.paths.iter().map(|path| resolved(path).unwrap_or_else(|| path.clone())).collect();
    let candidates = budget::candidates(&trace, &costs, basis, &paths).map_err(usage)?;
    let saved_ms_at_most = candidates.iter().map(Candidate::saved_ms).filter(|ms| *ms > 0.0).sum();
    let plan = budget::plan(&candidates, args.budget);
    let Trace { command, wall_ms, exact, notes, .. } = trace;
    Ok(Answer { plan, costs, saved_ms_at_most, trace: About { command, wall_ms, exact, notes } })
}

fn list(chosen: &[Candidate], end: &[u8]) -> Result<()> {
    let mut text = Vec::new();
    chosen.iter().for_each(|candidate| text.extend([candidate.path.as_os_str().as_bytes(), end].concat()));
    let mut out = std::io::stdout().lock();
    out.write_all(&text).and_then(|()| out.flush()).context("writing to standard output")
}

/// Most lines of what is left out.
const LEFT_OUT: usize = 20;

impl Answer {
    fn text(&self) -> String {
        let Plan { choice, greedy, left_out, budget_bytes, .. } = &self.plan;
        let command = report::plain(&self.trace.command.join(" ")).into_owned();
        let mut text = format!("to put on {} of NVM, by the trace of: {command}\n\n", bytes(*budget_bytes));
        if choice.chosen.is_empty() {
            text += "  nothing: nothing that fits saves any time\n";
        } else {
            text += &table(&choice.chosen);
        }
        if !left_out.is_empty() {
            text += &format!("\nleft out: {}\n\n{}", left_out.len(), table(&left_out[..left_out.len().min(LEFT_OUT)]));
            let more = left_out.len().saturating_sub(LEFT_OUT);
            text += &if more > 0 { format!("  and {more} more, which save less for their size\n") } else { String::new() };
        }
        let share = |part: f64, whole: f64| {
            if whole > 0.0 { format!(" ({} %)", short((part / whole * 1000.0).round() / 10.0)) } else { String::new() }
        };
        let Costs { t1, t2, t3, t4, .. } = self.costs;
        let (used, saved) = (choice.used_bytes, choice.saved_ms);
        let lines = [
            ("NVM used", format!("{} of {}{}", bytes(used), bytes(*budget_bytes), share(used as f64, *budget_bytes as f64))),
            (
                "saved",
                format!(
                    "{} ms of the {} ms that the traced run took{}",
                    short(saved),
                    short(self.trace.wall_ms),
                    share(saved, self.trace.wall_ms)
                ),
            ),
            ("at most", format!("{} ms with everything on NVM", short(self.saved_ms_at_most))),
            ("greedy rule", format!("{} ms in {}", short(greedy.saved_ms), bytes(greedy.used_bytes))),
            ("a page saves", format!("{} ms (t1 {t1}, t2 {t2}, t3 {t3}, t4 {t4})", short(self.costs.saved_per_page()))),
        ];
        text += &lines.iter().fold("\n".to_owned(), |text, (name, value)| text + &format!("{name:<13} {value}\n"));
        text + &self.cautions()
    }

    fn cautions(&self) -> String {
        let mut text = String::new();
        if !self.plan.optimal {
            text +=
                &format!("note: sizes were rounded up to {}; a slightly better choice may exist\n", bytes(self.plan.column_bytes));
        }
        if !self.trace.exact {
            text += "note: the trace is an estimate\n";
        }
        self.trace.notes.iter().for_each(|note| text += &format!("note: {}\n", report::plain(note)));
        text
    }
}

fn table(candidates: &[Candidate]) -> String {
    let head = ["  NVM", "runs", "ms a run", "ms in all", "us per KiB", "program or library"].map(String::from).to_vec();
    let row = |c: &Candidate| {
        let density = c.density() * 1024.0 * 1000.0;
        let numbers = [short(c.saved_ms_per_run), short(c.saved_ms()), short(density), report::path(&c.path)];
        let size = [format!("  {}", bytes(c.bytes())), c.runs.to_string()];
        size.into_iter().chain(numbers).collect()
    };
    let mut rows: Vec<Vec<String>> = std::iter::once(head).chain(candidates.iter().map(row)).collect();
    // Paths come last and stand to the left.
    let width = rows.iter().map(|row| row[5].chars().count()).max().unwrap_or(0);
    rows.iter_mut().for_each(|row| row[5] = format!("{:<width$}", row[5]));
    columns(0, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!(size("1.5g"), Ok(3 << 29));
        assert_eq!(size("4096"), Ok(4096));
        for wrong in ["", "M", "1.5", "-1M", "64X", "1e9T", "99999999999T", "\u{e9}"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
