//! `towa snap`: checkpoints of whole programs, and their restart.

mod inspect;
mod list;
mod restart;
mod run;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use towa_snap::store::Which;

use crate::failure;

/// Checkpoint running programs without stopping them to copy their memory, and start them again where they were.
///
/// A checkpoint is the whole program: memory, threads, open files, timers. While the program runs its memory is copied; it stands still for a
/// moment only, for what it changed meanwhile. Each checkpoint is complete in itself, and shares with the others what they have in common.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  towa snap run --every 10s --keep 5 ~/snaps -- python3 long.py    run a program, with a checkpoint each 10 s
  towa snap take ~/snaps 4711                                      one checkpoint of a program that runs already
  towa snap list ~/snaps
  towa snap restart ~/snaps                                        start it again, from the newest one
  towa snap restart ~/snaps@7                                      ... from number 7
  towa snap restart --pid-namespace ~/snaps                        ... though its number is taken
  towa snap rm ~/snaps 3 4

Exit status: as for `towa`; of `run` and `restart` that of the program, 128 and its number if a signal ended it; of `run` 127 if the program
is not there and 126 if it cannot be started."
)]
pub struct SnapArgs {
    #[command(subcommand)]
    command: SnapCommand,
}

#[derive(Debug, Subcommand)]
enum SnapCommand {
    Run(run::RunArgs),
    Take(run::TakeArgs),
    List(list::ListArgs),
    Restart(restart::RestartArgs),
    Rm(list::RmArgs),
    Inspect(inspect::InspectArgs),
    Verify(list::VerifyArgs),
}

/// `towa snap`.
pub fn run(args: SnapArgs) -> Result<()> {
    match args.command {
        SnapCommand::Run(args) => run::run(&args),
        SnapCommand::Take(args) => run::take(&args),
        SnapCommand::List(args) => list::list(&args),
        SnapCommand::Restart(args) => restart::run(&args),
        SnapCommand::Rm(args) => list::rm(&args),
        SnapCommand::Inspect(args) => inspect::inspect(&args),
        SnapCommand::Verify(args) => list::verify(&args),
    }
}

/// A checkpoint: its directory, and which of those in it.
#[derive(Clone, Debug)]
struct Place {
    dir: PathBuf,
    which: Which,
}

/// The parser of `DIR` or `DIR@N`.
fn places() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(|text| place(&text))
}

fn place(text: &OsStr) -> std::result::Result<Place, String> {
    let bytes = text.as_bytes();
    let halves = bytes.iter().rposition(|byte| *byte == b'@').map(|at| (OsStr::from_bytes(&bytes[..at]), &bytes[at + 1..]));
    match halves {
        Some((dir, number)) if number.iter().all(u8::is_ascii_digit) && !number.is_empty() => {
            let number = String::from_utf8_lossy(number);
            Ok(Place { dir: dir.into(), which: Which::Number(number.parse().map_err(|e| format!("{number}: {e}"))?) })
        }
        Some((dir, after)) if !dir.is_empty() && !Path::new(text).exists() => {
            Err(format!("behind the @ comes the number of a checkpoint, not {:?}", String::from_utf8_lossy(after)))
        }
        _ if text.is_empty() => Err("it is empty: name the directory of the checkpoints".into()),
        _ => Ok(Place { dir: text.into(), which: Which::Newest }),
    }
}

/// What this command makes is its user's alone, and usable by it, whatever its umask: images hold all that the program knows. Gives the umask
/// that it had, which is the program's.
fn make_private() -> libc::mode_t {
    // SAFETY: a number; it cannot fail.
    unsafe { libc::umask(0o077) }
}

/// Ends this process as the program ended.
fn end_as(status: std::process::ExitStatus) -> ! {
    use std::os::unix::process::ExitStatusExt;
    std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// The exit status for an error of the snap door.
pub fn code(error: &towa_snap::Error) -> u8 {
    use towa_snap::Error::*;
    match error {
        NoCheckpoint { .. } | Gone { .. } => failure::MISSING,
        NotUsable { .. } => failure::DAMAGED,
        Busy { .. } | Tracked { .. } => failure::BUSY,
        Full { .. } => failure::FULL,
        _ => failure::FAILED,
    }
}
