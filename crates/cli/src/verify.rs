//! `towa verify`: the offline check of a pool.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use towa_heap::VerifyReport;

use crate::failure;
use crate::pool_dir::MediumArg;
use crate::progress::Progress;
use crate::report::{self, Lines, bytes};

/// Check every structure and checksum of a pool, and change nothing.
///
/// Looks at the pool as opening it would leave it: superblock, chain of commit records, every frame of the redo log, roots, every
/// header of the allocator. Nothing is written, not even a time stamp; a pool after a crash is checked as the crash left it. The pool
/// must not be in use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa verify ~/.local/state/towa/serve
  towa verify --json /mnt/pmem/cache | jq .sound

Exit status: 0 sound, 3 not a sound pool, 4 in use, 5 no pool there.")]
pub struct VerifyArgs {
    /// Directory of the pool.
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The medium the pool was made for, where that was chosen by hand.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// `towa verify`.
pub fn run(args: &VerifyArgs) -> Result<()> {
    let found = look(args);
    match &found {
        Ok(report) if args.json => report::json(&sound(args, report)?)?,
        Ok(report) => print(args, report)?,
        Err(error) if args.json => {
            let (code, problem) = (failure::code(error), failure::message(error));
            // What is busy or not there was not found to be unsound.
            let sound = if code == failure::DAMAGED { json!(false) } else { json!(null) };
            report::json(
                &json!({ "pool": args.pool.display().to_string(), "sound": sound, "problem": problem, "exit_status": code }),
            )?;
        }
        Err(_) => {}
    }
    found.map(|_| ())
}

fn look(args: &VerifyArgs) -> Result<VerifyReport> {
    let medium = towa_media::open_dir(&args.pool, args.medium.map(Into::into), false)?;
    // An unknown door is refused by the check itself, which names it.
    let door = towa_heap::describe(&*medium)?.door.unwrap_or(towa_heap::superblock::Door::Epoch);
    let progress = Progress::bytes("verifying");
    Ok(towa_heap::verify(&*medium, door, &mut |done, all| progress.at(done, all))?)
}

fn sound(args: &VerifyArgs, report: &VerifyReport) -> Result<serde_json::Value> {
    let mut value = serde_json::to_value(report)?;
    value["pool"] = json!(args.pool.display().to_string());
    value["sound"] = json!(true);
    Ok(value)
}

fn print(args: &VerifyArgs, report: &VerifyReport) -> Result<()> {
    let mut lines = Lines::default();
    lines.heading(&format!("{}: sound", args.pool.display()));
    lines.line("identity", &report.uuid);
    lines.line("state", if report.clean { "closed cleanly" } else { "not closed cleanly: opening recovers it" });
    lines.line("epoch", report.epoch);
    if report.epochs_to_replay > 0 {
        let (epochs, lines_to_replay) = (report.epochs_to_replay, report.lines_to_replay);
        lines.line("to replay", format!("{epochs} epochs with {lines_to_replay} lines ({})", bytes(lines_to_replay * 64)));
    }
    if report.incomplete_epoch {
        lines.line("unfinished", "one epoch that was never acknowledged; opening drops it");
    }
    lines.line("heap", format!("{}, {} ever used", bytes(report.heap_len), bytes(report.frontier)));
    lines.line("live", format!("{} blocks, {}", report.live_blocks, bytes(report.live_bytes)));
    lines.line("roots", if report.roots.is_empty() { "none".into() } else { report.roots.join(", ") });
    lines.print()
}
