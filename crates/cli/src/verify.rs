//! `towa verify`: the offline check of a pool.

mod contents;
mod java;
mod private;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use towa_heap::VerifyReport;
use towa_heap::superblock::Door;

use crate::failure;
use crate::pool_dir::MediumArg;
use crate::progress::Progress;
use crate::report::{self, Lines, bytes};
use contents::Contents;
pub use contents::check_arena;

/// Check a pool, and change nothing.
///
/// Looks at the pool as opening it would leave it. First its own structures: superblock, chain of commit records, every frame of the
/// redo log, roots, every header of the allocator. Then what the roots lead to, where this program knows what that is: every item of
/// hash maps, ordered maps and queues is in its place and counted, vectors have all their segments, and in the store of `towa serve`
/// every item is in the line and bucket that its hash asks for and is counted. In a pool of transactions every B+-tree: order, bounds, and
/// that each block in use is reachable once. The directory of an FPTree is checked the same way. Other roots, and the bytes of values, are not looked
/// into: nothing says what they should be.
///
/// A pool of the Java door is one file. Its superblock, the records of classes and roots, and every object that the roots lead to are
/// checked: each is of a known class, in a block of its own of the right size, and refers to objects alone. All that is wrong is told.
///
/// Nothing of the pool is written; a pool after a crash is checked as the crash left it. The pool must not be in use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa verify ~/.local/state/towa/serve
  towa verify --json /mnt/pmem/cache | jq .sound
  towa verify orders.towa

Exit status: 0 sound, 3 not a sound pool, 4 in use, 5 no pool there.")]
pub struct VerifyArgs {
    /// Directory of the pool, or its file (Java).
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The medium the pool was made for, where that was chosen by hand.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// What was found.
struct Found {
    report: VerifyReport,
    contents: Contents,
}

/// `towa verify`.
pub fn run(args: &VerifyArgs) -> Result<()> {
    if args.pool.is_file() {
        return java::run(args);
    }
    if args.pool.join("arena").exists() && !args.pool.join(towa_heap::names::SUPERBLOCK).exists() {
        return run_arena(args);
    }
    let found = look(args);
    match &found {
        Ok(found) if args.json => report::json(&sound(args, found)?)?,
        Ok(found) => print(args, found)?,
        Err(error) => bad_news(args, error)?,
    }
    found.map(|_| ())
}

/// What was found instead of a sound pool, where the report is JSON.
fn bad_news(args: &VerifyArgs, error: &anyhow::Error) -> Result<()> {
    if !args.json {
        return Ok(());
    }
    let mut value = report::problem(("pool", report::path(&args.pool)), error);
    // What is busy or not there was not found to be unsound.
    value["sound"] = if failure::code(error) == failure::DAMAGED { json!(false) } else { json!(null) };
    report::json(&value)
}

/// An FPTree's directory: one file, whose every block the tree accounts for.
fn run_arena(args: &VerifyArgs) -> Result<()> {
    let look = || contents::check_arena(towa_media::open_dir(&args.pool, args.medium.map(Into::into), false)?);
    let found = match look() {
        Ok(found) => found,
        Err(error) => {
            bad_news(args, &error)?;
            return Err(error);
        }
    };
    if args.json {
        return report::json(&json!({ "pool": report::path(&args.pool), "sound": true, "contents": [found] }));
    }
    let mut lines = Lines::default();
    lines.heading(&format!("{}: sound", report::path(&args.pool)));
    lines.line("checked", format!("{} with {} keys", found.kind, found.items));
    lines.print()
}

fn look(args: &VerifyArgs) -> Result<Found> {
    let medium = towa_media::open_dir(&args.pool, args.medium.map(Into::into), false)?;
    // An unknown door is refused by the check itself, which names it.
    let door = towa_heap::describe(&*medium)?.door.unwrap_or(Door::Epoch);
    let report = {
        let progress = Progress::bytes("verifying");
        towa_heap::verify(&*medium, door, &mut |done, all| progress.at(done, all))?
    };
    let contents = match door {
        Door::Epoch => contents::check(medium, &report)?,
        Door::Tx => contents::check_tx(medium, &report)?,
    };
    Ok(Found { report, contents })
}

fn sound(args: &VerifyArgs, found: &Found) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(&found.report)?;
    value["pool"] = json!(report::path(&args.pool));
    value["sound"] = json!(true);
    value["warning"] = json!(warning(&found.report));
    (value["contents"], value["contents_not_checked"]) = match &found.contents {
        Contents::Sound(contents) => (json!(contents), json!(null)),
        Contents::NotChecked(why) => (json!(null), json!(why)),
    };
    Ok(value)
}

/// What is no damage, and worth a look.
fn warning(report: &VerifyReport) -> Option<&'static str> {
    let is_lost = report.live_blocks > 0 && report.roots.is_empty();
    is_lost.then_some("there are live blocks, and no root leads to any of them: a program finds nothing here")
}

fn print(args: &VerifyArgs, Found { report, contents }: &Found) -> Result<()> {
    let mut lines = Lines::default();
    lines.heading(&format!("{}: sound", report::path(&args.pool)));
    lines.line("identity", &report.uuid);
    lines.line("state", if report.clean { "closed cleanly" } else { "not closed cleanly: opening recovers it" });
    if report.epoch > 0 {
        lines.line("epoch", report.epoch);
    }
    if report.records_to_replay > 0 {
        let (records, words, lanes) = (report.records_to_replay, report.words_to_replay, report.lanes_in_use);
        lines.line("to replay", format!("{records} records of transactions with {words} words, in {lanes} lanes"));
    }
    if report.epochs_to_replay > 0 {
        let (epochs, lines_to_replay) = (report.epochs_to_replay, report.lines_to_replay);
        lines.line("to replay", format!("{epochs} epochs with {lines_to_replay} lines ({})", bytes(lines_to_replay * 64)));
    }
    if report.in_place && report.lines_to_replay > 0 {
        let lines_to_undo = report.lines_to_replay;
        lines.line("to undo", format!("{lines_to_undo} lines ({}) of epochs that were not durable", bytes(lines_to_undo * 64)));
    }
    if report.incomplete_epoch {
        lines.line("unfinished", "one epoch that was never acknowledged; opening drops it");
    }
    lines.line("heap", format!("{}, {} ever used", bytes(report.heap_len), bytes(report.frontier)));
    lines.line("live", format!("{} blocks, {}", report.live_blocks, bytes(report.live_bytes)));
    if let Some(warning) = warning(report) {
        lines.line("warning", warning);
    }
    lines.line("roots", if report.roots.is_empty() { "none".into() } else { report.roots.join(", ") });
    match contents {
        Contents::Sound(known) => {
            for it in known {
                let lost = it
                    .lost
                    .filter(|lost| *lost > 0)
                    .map(|lost| format!(", {lost} of them lost when a crash undid their eviction"))
                    .unwrap_or_default();
                lines.line("checked", format!("{}: {} of {} items{lost}", it.root, it.kind, it.items));
            }
            let others: Vec<&str> =
                report.roots.iter().map(String::as_str).filter(|root| known.iter().all(|it| it.root != **root)).collect();
            if !others.is_empty() {
                lines.line("not checked", format!("{}: of a type that this program does not know", others.join(", ")));
            }
        }
        Contents::NotChecked(why) => lines.line("not checked", format!("what the roots lead to: {why}")),
    }
    lines.print()
}
