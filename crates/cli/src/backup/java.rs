//! The copy of a pool of the Java door: of one file, and what is in memory or in the log beside it.
//!
//! ```text
//!   open     the program follows changes | file copied | pages that changed laid over it: one moment | settled, synced, verified
//!   closed   owners kept out | verified | file copied | last commit laid over it | settled, synced, verified
//! ```
//!
//! Why a stop after each step is safe: nothing of the pool is written, and the draft has no name until all is done. A program that is
//! left alone amid a backup stops following changes; one that ends leaves a pool that is closed, or as a crash leaves it, which is
//! copied then.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};
use towa_java_pool::{Durability, Error, Followed, Live, Pool, Settled};
use towa_media::files;

use super::draft::Draft;
use super::file::{self, Copied};
use crate::failure::{DAMAGED, coded};
use crate::progress::Progress;
use crate::report;

/// A program that goes while its pool is copied is another chance, for so long.
const TRIES: u32 = 5;
const WAIT: Duration = Duration::from_secs(10);
/// So long another backup of the pool is waited for, and a program that opens or closes it.
const TURN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

/// Copies the pool at `pool` to the draft.
pub fn copy(pool: &Path, draft: &Draft) -> Result<Value> {
    let (began, mut tries) = (Instant::now(), 1);
    loop {
        let opened = Pool::open(pool)?;
        let copied = match opened.owner() {
            Some(owner) => copy_open(pool, &opened, &owner.to_string(), draft),
            None => copy_closed(pool, &opened, draft),
        };
        let Err(e) = copied else { return copied };
        match e.downcast_ref() {
            // It opened the pool just now, or goes and leaves it to be copied.
            Some(Error::Busy { .. }) if tries < TRIES => {}
            Some(Error::Gone { .. }) if tries < TRIES && comes_free(&opened) => {}
            // The program may not know yet that another tool was killed.
            Some(Error::Refused { busy: true, .. }) if began.elapsed() < TURN => {
                thread::sleep(LOOK);
                continue;
            }
            // It opens the pool, or closes it.
            Some(Error::NotAsked { may_come: true, .. }) if began.elapsed() < TURN => {
                thread::sleep(LOOK);
                continue;
            }
            _ => return Err(e),
        }
        tries += 1;
        std::fs::remove_file(draft.there()).or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })?;
    }
}

/// Whether the program that had the pool open leaves it soon.
fn comes_free(pool: &Pool) -> bool {
    let began = Instant::now();
    while pool.owner().is_some() {
        if began.elapsed() > WAIT {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

/// The file of `pool`, which is one.
fn file_of(pool: &Pool) -> Result<&File> {
    pool.file().ok_or_else(|| anyhow!("a pool without a file"))
}

fn copy_open(pool: &Path, opened: &Pool, owner: &str, draft: &Draft) -> Result<Value> {
    let mut live = Live::begin(opened, owner)?;
    let copy = file::make(&draft.there(), &draft.copy())?;
    let source = file_of(opened)?;
    // A store to a mapped block that is shared waits while the file system writes and clones, and takes new space: without any, it ends the
    // program. Commits write by calls, and are told.
    let may_clone = opened.durability()? == Durability::Power && files::has_room_for_a_clone(source.as_fd());
    let copied = file::copy_into(source, &copy, pool, may_clone, &mut || Ok(live.alive()?))?;
    let progress = Progress::spinner("taking what has changed since".into());
    let followed = live.finish(&copy, &mut |_| ())?;
    drop(progress);
    let settled = settle(pool, &copy, draft)?;
    Ok(said(true, &copied, &settled, Some(followed)))
}

fn copy_closed(pool: &Path, opened: &Pool, draft: &Draft) -> Result<Value> {
    // It keeps owners out for as long as it is open.
    verify(pool, opened)?;
    let copy = file::make(&draft.there(), &draft.copy())?;
    let copied = file::copy_into(file_of(opened)?, &copy, pool, true, &mut || Ok(()))?;
    opened.lay_commit(&copy)?;
    let settled = settle(pool, &copy, draft)?;
    Ok(said(false, &copied, &settled, None))
}

/// Makes the copy a pool of its own, durable, and verifies it.
fn settle(pool: &Path, copy: &File, draft: &Draft) -> Result<Settled> {
    let settled = towa_java_pool::settle(&report::path(pool), copy)?;
    file::sync(copy, &draft.copy())?;
    verify(pool, &Pool::open(&draft.there())?.called(&report::path(pool)))?;
    Ok(settled)
}

fn verify(pool: &Path, opened: &Pool) -> Result<()> {
    let progress = Progress::bytes("verifying");
    if opened.verify(&mut |done, all| progress.at(done, all))?.problems_found == 0 {
        return Ok(());
    }
    let place = report::path(pool);
    Err(coded(DAMAGED, format!("{place}: damaged, so it is not copied; `towa verify` says what is wrong")))
}

fn said(was_open: bool, copied: &Copied, settled: &Settled, followed: Option<Followed>) -> Value {
    let mut value = json!({
        "was_open": was_open, "cloned": copied.cloned, "bytes": settled.used, "clean": true, "rolled_back": settled.rolled_back,
    });
    if let Some(followed) = followed {
        value["changed_pages"] = json!(followed.pages);
        value["rounds"] = json!(followed.rounds);
        value["pause_us"] = json!(followed.pause.as_micros() as u64);
    }
    value
}
