//! `towa recover`: opens a pool, which recovers it, and closes it with its image complete and its log empty.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use towa_epoch::{Options, Pool};
use towa_heap::Recovery;
use towa_heap::superblock::Door;
use towa_media::Medium;

use crate::pool_dir::MediumArg;
use crate::progress::Progress;
use crate::report::{self, bytes, micros};

/// Recover a pool now, and leave it closed cleanly.
///
/// Opening a pool recovers it anyhow, so this is never necessary. It is useful before a pool is copied by other means than `towa backup`,
/// and to see what a crash cost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa recover /mnt/pmem/cache && cp -a --sparse=always /mnt/pmem/cache /backup
  towa recover --accept-copy /restored/cache    copied after a crash, before anything had opened it again")]
pub struct RecoverArgs {
    /// Directory of the pool.
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// The medium the pool was made for, where that was chosen by hand.
    #[arg(long, value_enum)]
    medium: Option<MediumArg>,
    /// Take a copy of a pool that was not closed for the pool.
    ///
    /// Such a copy is refused, for most are made while a program works in the pool, and then hold parts of different moments. Give this only
    /// if nothing had the pool open when its files were copied: after a crash, for instance.
    #[arg(long)]
    accept_copy: bool,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// What was found and done.
#[derive(Debug, Serialize)]
struct Outcome {
    pool: String,
    /// Whether it had been closed cleanly.
    was_clean: bool,
    /// Whether lines were undone rather than replayed: the image is the working copy.
    in_place: bool,
    epoch: u64,
    epochs_replayed: u64,
    /// Of a pool of transactions.
    records_replayed: u64,
    lines_replayed: u64,
    dropped_incomplete: bool,
    /// Reading, checking and replaying the log.
    recovery_us: u64,
    /// All of it: the above, making the image durable, closing.
    total_us: u64,
}

/// `towa recover`.
pub fn run(args: &RecoverArgs) -> Result<()> {
    let outcome = report::bad_news(args.json, ("pool", report::path(&args.pool)), recover(args))?;
    if args.json { report::json(&outcome) } else { print(&outcome) }
}

fn recover(args: &RecoverArgs) -> Result<Outcome> {
    let began = Instant::now();
    let progress = Progress::spinner(format!("recovering {}", report::path(&args.pool)));
    let medium = towa_media::open_dir(&args.pool, args.medium.map(Into::into), false)?;
    if args.accept_copy {
        towa_heap::accept_copy(&*medium)?;
    }
    let description = towa_heap::describe(&*medium)?;
    let recovery = match description.door {
        Some(Door::Tx) => recover_tx(medium)?,
        _ => recover_epoch(medium)?,
    };
    drop(progress);
    Ok(Outcome {
        pool: report::path(&args.pool),
        was_clean: recovery.clean,
        in_place: description.in_place,
        epoch: recovery.epoch,
        epochs_replayed: recovery.epochs_replayed,
        records_replayed: recovery.records_replayed,
        lines_replayed: recovery.lines_replayed,
        dropped_incomplete: recovery.dropped_incomplete,
        recovery_us: recovery.elapsed.as_micros() as u64,
        total_us: began.elapsed().as_micros() as u64,
    })
}

fn recover_epoch(medium: Arc<dyn Medium>) -> Result<Recovery> {
    let pool = Pool::open_on(medium, &Options { manual: true, ..Options::default() })?;
    let recovery = *pool.recovery();
    pool.close()?;
    Ok(recovery)
}

fn recover_tx(medium: Arc<dyn Medium>) -> Result<Recovery> {
    let options = towa_tx::Options { checkpointer: towa_tx::Checkpointer::Manual, ..towa_tx::Options::default() };
    let pool = towa_tx::Pool::open_on(medium, &options)?;
    let recovery = *pool.recovery();
    pool.close()?;
    Ok(recovery)
}

fn print(outcome: &Outcome) -> Result<()> {
    let Outcome { pool, epoch, epochs_replayed, records_replayed, lines_replayed, .. } = outcome;
    // Transactions have no epochs.
    let mut text = if *epoch > 0 { format!("{pool}: at epoch {epoch}; ") } else { format!("{pool}: ") };
    if outcome.was_clean && *epochs_replayed == 0 && *records_replayed == 0 {
        text += "was closed cleanly, nothing to recover";
    } else if outcome.in_place {
        let (size, time) = (bytes(lines_replayed * 64), micros(outcome.recovery_us));
        text += &format!("{lines_replayed} lines ({size}) of later epochs, which were not durable, undone in {time}");
    } else if *records_replayed > 0 {
        let (size, time) = (bytes(lines_replayed * 64), micros(outcome.recovery_us));
        text += &format!("{records_replayed} records of transactions replayed ({size}) in {time}");
    } else {
        let (size, time) = (bytes(lines_replayed * 64), micros(outcome.recovery_us));
        text += &format!("{epochs_replayed} epochs with {lines_replayed} lines ({size}) replayed in {time}");
    }
    if outcome.dropped_incomplete {
        text += "; dropped one epoch that was never acknowledged";
    }
    text += &format!("; closed cleanly after {} in all", micros(outcome.total_us));
    report::line(&text)
}
