//! `towa snap list`, `rm` and `verify`.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use towa_snap::state::State;
use towa_snap::store::{Store, Summary, Which};

use super::Place;
use crate::progress::Progress;
use crate::report::{self, Lines, bytes};

/// List checkpoints.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// Directory of the checkpoints.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Remove checkpoints, by number or all but the newest; the others stay complete.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Keep the newest N checkpoints, remove all others.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "numbers")]
    keep: Option<u32>,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// Directory of the checkpoints.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Their numbers.
    #[arg(value_name = "N", required_unless_present = "keep")]
    numbers: Vec<u64>,
}

#[derive(Serialize)]
struct Removed {
    removed: Vec<u64>,
    left: Vec<u64>,
}

/// Check every page of a checkpoint.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// The directory of the checkpoints; the newest one, or @N.
    #[arg(value_name = "DIR[@N]", value_parser = super::places())]
    place: Place,
}

#[derive(Serialize)]
struct Line {
    number: u64,
    process: Option<i32>,
    program: Option<String>,
    taken_unix_ms: Option<u128>,
    memory_bytes: u64,
    own_bytes: u64,
    shared_bytes: u64,
    consumed: bool,
    damaged: Option<String>,
}

impl Line {
    fn of(store: &Store, summary: Summary) -> Line {
        // Removed meanwhile, or not understood: it is listed without.
        let state =
            store.open_checkpoint(Which::Number(summary.number)).and_then(|checkpoint| State::decode(checkpoint.manifest()));
        let process = state.ok().map(|state| state.process);
        Line {
            number: summary.number,
            process: process.as_ref().map(|process| process.pid),
            program: process.map(|process| process.arguments.join(" ")),
            taken_unix_ms: summary.taken.and_then(|taken| Some(taken.duration_since(UNIX_EPOCH).ok()?.as_millis())),
            memory_bytes: summary.pages * 4096,
            own_bytes: summary.bytes_own,
            shared_bytes: summary.bytes_shared,
            consumed: summary.consumed,
            damaged: summary.damaged,
        }
    }
}

/// `towa snap list`.
pub fn list(args: &ListArgs) -> Result<()> {
    let listed = || -> Result<Vec<Line>> {
        let store = Store::open(&args.dir)?;
        Ok(store.list()?.into_iter().map(|summary| Line::of(&store, summary)).collect())
    };
    let lines = report::bad_news(args.json, ("directory", report::path(&args.dir)), listed())?;
    if args.json {
        return report::json(&lines);
    }
    if lines.is_empty() {
        return report::line("no checkpoint yet");
    }
    let mut table = Lines::default();
    table.row(format_args!(
        "{:>6}  {:>10}  {:>10}  {:>10}  {:>8}  {:>7}  {}",
        "number", "memory", "own", "shared", "age", "process", "program"
    ));
    for line in &lines {
        let now = UNIX_EPOCH.elapsed().map_or(0, |now| now.as_millis());
        let age = line.taken_unix_ms.map_or("?".into(), |taken| age(now.saturating_sub(taken) / 1000));
        let note = match (&line.damaged, line.consumed) {
            (Some(why), _) => format!("damaged: {why}"),
            (None, true) => "(used up) ".into(),
            _ => String::new(),
        };
        let [memory, own, shared] = [line.memory_bytes, line.own_bytes, line.shared_bytes].map(bytes);
        let process = line.process.map_or("?".into(), |pid| pid.to_string());
        // Enough to know it by.
        let program: String = report::plain(line.program.as_deref().unwrap_or("")).chars().take(60).collect();
        let number = line.number;
        table.row(format_args!("{number:>6}  {memory:>10}  {own:>10}  {shared:>10}  {age:>8}  {process:>7}  {note}{program}"));
    }
    table.print()
}

/// `42 s`, `7 min`, `3 h`, `12 d`
fn age(seconds: u128) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// `towa snap rm`.
pub fn rm(args: &RmArgs) -> Result<()> {
    let about = ("directory", report::path(&args.dir));
    let Removed { removed, left } = report::bad_news(args.json, about, try_rm(args))?;
    if args.json {
        return report::json(&Removed { removed, left });
    }
    let words = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    report::line(match removed.is_empty() {
        true => "nothing to remove".to_owned(),
        false => format!("removed {}; left {}", words(&removed), if left.is_empty() { "none".into() } else { words(&left) }),
    })
}

fn try_rm(args: &RmArgs) -> Result<Removed> {
    super::make_private();
    let store = Store::open(&args.dir)?;
    let there = store.numbers()?;
    // All or none: a number that was mistyped is no reason to remove the others.
    if let Some(missing) = args.numbers.iter().find(|number| !there.contains(number)) {
        store.open_checkpoint(Which::Number(*missing))?;
    }
    let removed = match args.keep {
        Some(keep) => store.keep(keep as usize)?,
        None => {
            let mut numbers = args.numbers.clone();
            numbers.sort_unstable();
            numbers.dedup();
            numbers.iter().try_for_each(|number| store.remove(*number))?;
            numbers
        }
    };
    let merging = Progress::spinner("merging what the others share".into());
    store.merge()?;
    drop(merging);
    Ok(Removed { removed, left: store.numbers()? })
}

/// `towa snap verify`.
pub fn verify(args: &VerifyArgs) -> Result<()> {
    let verified = report::bad_news(args.json, ("directory", report::path(&args.place.dir)), try_verify(args))?;
    if args.json {
        return report::json(&verified);
    }
    let but = match verified.bytes_without_checksums {
        0 => String::new(),
        cloned => format!(", of which {} were cloned and have no checksums: they can be read", bytes(cloned)),
    };
    report::line(format_args!("checkpoint {}: sound, {}{but}", verified.checkpoint, bytes(verified.bytes)))
}

#[derive(Serialize)]
struct Verified {
    checkpoint: u64,
    bytes: u64,
    /// Cloned and never read: they can be read, that is all that is known of them.
    bytes_without_checksums: u64,
    sound: bool,
}

fn try_verify(args: &VerifyArgs) -> Result<Verified> {
    let checkpoint = Store::open(&args.place.dir)?.open_checkpoint(args.place.which)?;
    State::decode(checkpoint.manifest())?;
    let bar = Progress::bytes("verifying");
    checkpoint.verify(|done, all| bar.at(done * 4096, all * 4096))?;
    let (all, cloned) = (checkpoint.pages().count() * 4096, checkpoint.pages_without_sums() * 4096);
    Ok(Verified { checkpoint: checkpoint.number(), bytes: all, bytes_without_checksums: cloned, sound: true })
}
