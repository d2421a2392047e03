//! `towa backup`: a complete copy of a pool, made while a program goes on working in it, or when it is closed.
//!
//! ```text
//!   POOL ──► the draft's copy (made, written, verified, durable) ──rename──► DEST
//! ```
//!
//! What must always hold: DEST is there only when it is complete and durable; nothing that is there already is
//! written over or removed (`draft`).

mod draft;
mod file;
mod java;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use towa_media::{Kind, open_dir};

use crate::failure::{MISSING, coded};
use crate::pool_dir::looks_like_pool;
use crate::progress::Progress;
use crate::report::{self, bytes, micros};
use draft::Draft;

/// Copy a pool, while a program uses it or not.
///
/// The copy is a complete pool of its own, closed cleanly, as the pool was at one moment: at the end of an epoch or,
/// of a pool of transactions, with every transaction that had returned before that moment, and whatever those depend
/// on. The program goes on at full speed and knows nothing of it. Where the file system can share bytes between files
/// (XFS, Btrfs), the copy takes no time and next to no space.
///
/// To restore, move the copy to where the pool was, which must be gone; or use it where it is.
///
/// A pool of the Java door that a program has open is copied with that program's help, by the socket beside it. An FPTree is copied
/// when no program has it open; else it is refused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa backup /mnt/pmem/cache /backup/cache-monday
  towa backup --json ~/.local/state/towa/serve /backup/serve | jq .epoch
  towa backup orders.towa /backup/orders.towa

Exit status: 0 done, 1 DEST is there already, or the program changes the pool too fast, 3 not a sound pool, 4 in use (an FPTree; a
Java program that cannot be asked), 5 no pool there, 6 no space.")]
pub struct BackupArgs {
    /// Directory of the pool, or its file (Java).
    #[arg(value_name = "POOL")]
    pool: PathBuf,
    /// Where the copy is to be. Nothing may be there; the directory above must be.
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
}

/// `towa backup`.
pub fn run(args: &BackupArgs) -> Result<()> {
    let began = Instant::now();
    let mut done = report::bad_news(args.json, ("pool", report::path(&args.pool)), back_up(args))?;
    done["pool"] = json!(report::path(&args.pool));
    done["dest"] = json!(report::path(&args.dest));
    done["total_us"] = json!(began.elapsed().as_micros() as u64);
    if args.json { report::json(&done) } else { print(&done) }
}

fn back_up(args: &BackupArgs) -> Result<Value> {
    let draft = Draft::of(&args.dest)?;
    let done = if args.pool.is_file() {
        java::copy(&args.pool, &draft)?
    } else if args.pool.join(towa_alloc::NAME).exists() && !args.pool.join(towa_heap::names::SUPERBLOCK).exists() {
        copy_arena(&args.pool, &draft)?
    } else {
        copy_pool(&args.pool, &draft)?
    };
    draft.publish()?;
    Ok(done)
}

fn copy_pool(pool: &Path, draft: &Draft) -> Result<Value> {
    if pool.is_dir() && !looks_like_pool(pool)? {
        return Err(coded(MISSING, format!("{}: no pool there", report::path(pool))));
    }
    // By calls and not by a mapping, on whatever medium: the owner writes what is read.
    let from = open_dir(pool, Some(Kind::File), false)?;
    let to = draft.make_pool_directory()?;
    let progress = Progress::bytes("copying");
    let report = towa_heap::backup(&*from, &*to, &mut |done, all| progress.at(done, all))?;
    let mut value = serde_json::to_value(&report.copy)?;
    value["was_open"] = json!(report.was_open);
    value["cloned"] = json!(report.cloned);
    value["attempts"] = json!(report.attempts);
    value["bytes"] = json!(report.copy.frontier);
    Ok(value)
}

/// An FPTree lies in one file, in which each change is durable when it is made: only one that does not change is of
/// one moment.
fn copy_arena(pool: &Path, draft: &Draft) -> Result<Value> {
    let from = open_dir(pool, None, false)?;
    let _lock = from.lock_by(towa_alloc::NAME, true, "")?;
    crate::verify::check_arena(from.clone())?;
    draft.make_pool_directory()?;
    let copied = file::copy_path(&pool.join(towa_alloc::NAME), &draft.there().join(towa_alloc::NAME))?;
    Ok(json!({ "was_open": false, "cloned": copied.cloned, "bytes": copied.len }))
}

fn print(done: &Value) -> Result<()> {
    let size = bytes(done["bytes"].as_u64().unwrap_or(0));
    let how = if done["cloned"] == true { "cloned" } else { "copied" };
    let time = micros(done["total_us"].as_u64().unwrap_or(0));
    let state = match (done["was_open"] == true, done["epoch"].as_u64()) {
        (true, Some(epoch)) if epoch > 0 => format!(" while a program used it, as of epoch {epoch}"),
        (true, _) => " while a program used it".into(),
        (false, _) => String::new(),
    };
    let (pool, dest) = (done["pool"].as_str().unwrap_or(""), done["dest"].as_str().unwrap_or(""));
    report::print(&format!("{dest}: a copy of {pool}{state}; {size} {how} and verified in {time}\n"))
}
