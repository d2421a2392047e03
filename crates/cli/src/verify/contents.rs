//! What is in a sound pool: the structures behind its roots that this program knows, checked one item after the other.

use std::sync::Arc;

use anyhow::{Error, Result};
use serde::Serialize;
use towa_epoch::{Options, Pool};
use towa_heap::VerifyReport;
use towa_media::Medium;

use super::private::Private;
use crate::failure::{self, DAMAGED};
use crate::info::available_memory;
use crate::progress::Progress;
use crate::report::bytes;

/// A structure found sound.
#[derive(Debug, Serialize)]
pub struct Content {
    /// Name of its root.
    pub root: String,
    /// `hash map`, `ordered map`, `vector`, `queue`, `serve store`, a B+-tree or an FPTree.
    pub kind: &'static str,
    /// Its items.
    pub items: u64,
    /// Of a serve store: items that were evicted, and came back without key and value as a crash undid that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

impl Content {
    fn of(root: String, kind: &'static str, items: u64) -> Content {
        Content { root, kind, items, lost: None }
    }
}

/// What was found, or why nobody looked.
pub enum Contents {
    /// All that is known is sound.
    Sound(Vec<Content>),
    /// The machine does not allow a look; the reason.
    NotChecked(String),
}

/// Checks what is in the pool on `medium`, which the heap's own verification has found to be as `report` says. Damage is an error.
pub fn check(medium: Arc<dyn Medium>, report: &VerifyReport) -> Result<Contents> {
    let is_complete = report.epochs_to_replay == 0 && report.lines_to_replay == 0 && !report.incomplete_epoch;
    let needed = if is_complete { 0 } else { report.frontier + report.lines_to_replay * 64 };
    if let Some(why) = too_much(needed) {
        return Ok(why);
    }
    let _progress = Progress::spinner("checking what is in it".into());
    let options = Options { manual: true, eager: !is_complete, ..Options::default() };
    let pool = match Pool::open_on(Private::of(medium, is_complete), &options).map_err(Error::from) {
        Ok(pool) => pool,
        // An address that is taken, or no room for the mapping, says nothing of the pool.
        Err(error) if failure::code(&error) == failure::FAILED => return Ok(Contents::NotChecked(failure::message(&error))),
        Err(error) => return Err(error),
    };
    let checked = check_roots(&pool);
    pool.abandon();
    checked.map(Contents::Sound)
}

/// The same for a pool of transactions: the B+-trees in it.
pub fn check_tx(medium: Arc<dyn Medium>, report: &VerifyReport) -> Result<Contents> {
    let is_complete = report.records_to_replay == 0;
    let needed = if is_complete { 0 } else { report.frontier + report.words_to_replay * 16 };
    if let Some(why) = too_much(needed) {
        return Ok(why);
    }
    let _progress = Progress::spinner("checking what is in it".into());
    let options = towa_tx::Options {
        checkpointer: towa_tx::Checkpointer::Manual,
        tm: towa_tx::TmChoice::Stm,
        eager: !is_complete,
        ..towa_tx::Options::default()
    };
    let pool = match towa_tx::Pool::open_on(Private::of(medium, is_complete), &options).map_err(Error::from) {
        Ok(pool) => pool,
        Err(error) if failure::code(&error) == failure::FAILED => return Ok(Contents::NotChecked(failure::message(&error))),
        Err(error) => return Err(error),
    };
    let found = towa_tree::check_all(&pool);
    pool.abandon();
    Ok(Contents::Sound(found?.into_iter().map(|it| Content::of(it.name, it.kind, it.items)).collect()))
}

/// Checks the FPTree in the arena on `medium`.
pub fn check_arena(medium: Arc<dyn Medium>) -> Result<Content> {
    let _progress = Progress::spinner("checking the tree".into());
    let private: Arc<dyn Medium> = Private::of(medium, false);
    let it = towa_tree::check_arena(&private)?;
    Ok(Content::of(it.name, it.kind, it.items))
}

/// Why a pool is not read into memory, if it is too much for that.
fn too_much(needed: u64) -> Option<Contents> {
    let there = available_memory().filter(|there| needed > *there)?;
    Some(Contents::NotChecked(format!(
        "a pool after a crash is read into memory for that: {} of {} that are there; `towa recover` it first",
        bytes(needed),
        bytes(there)
    )))
}

fn check_roots(pool: &Pool) -> Result<Vec<Content>> {
    let damaged = |error: Error| match failure::code(&error) {
        DAMAGED => {
            let place = pool.medium().map_or_else(String::new, |medium| medium.location());
            failure::coded(DAMAGED, format!("{place}: {}", failure::message(&error)))
        }
        _ => error,
    };
    let known = towa_containers::check_all(pool).map_err(|e| damaged(e.into()))?;
    let mut found: Vec<Content> = known.into_iter().map(|it| Content::of(it.name, it.kind, it.items)).collect();
    let store = towa_server::check(pool).map_err(|e| damaged(e.into()))?;
    found.extend(store.map(|it| Content { lost: Some(it.lost), ..Content::of(towa_server::ROOT.into(), "serve store", it.items) }));
    found.sort_by(|a, b| a.root.cmp(&b.root));
    Ok(found)
}
