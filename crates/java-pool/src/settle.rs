//! What a copy needs to be a pool of its own, closed cleanly, without a log.
//!
//! ```text
//!   the section that was not over is rolled back | commit numbers: none | the other superblock slot: clean, a stamp of its own
//! ```
//!
//! What must always hold: only a copy that has no name yet is written to, so that a stop leaves nothing that is taken for a pool; its owner
//! syncs it afterwards. Its uuid stays: it is the same pool, of another moment. Its stamp is no opening's: so a log that lies beside
//! it and has a commit is refused, not applied.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};
use crate::report::Problems;
use crate::source::{View, Whole};
use crate::superblock::{self, DONE, NONE, SLOT, WORDS};
use crate::undo;

/// What was done to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Bytes in use.
    pub used: u64,
    /// A section (`Towa.atomically`) was not over, and is undone in the copy.
    pub rolled_back: bool,
}

/// Makes `copy`, all the bytes of the pool `name` at one moment, a pool that was closed.
///
/// # Errors
/// It is no pool, or damaged, or cannot be written.
pub fn settle(name: &str, copy: &File) -> Result<Settled> {
    let io = |source| Error::Io { pool: name.into(), doing: "writing the copy", source };
    let whole = Whole { file: copy.try_clone().map_err(io)?, len: copy.metadata().map_err(io)?.len() };
    let mut view = View::of(&whole, name);
    let superblock = superblock::read(&mut view)?;
    let words = superblock::words(&mut view, &superblock)?;
    let mut problems = Problems::default();
    undo::follow(&mut view, &words, &mut problems, &mut |at, old| copy.write_all_at(old, at).map_err(io))?;
    if let Some(first) = problems.shown.into_iter().next() {
        return Err(Error::Damaged { pool: name.into(), at: first.at, what: first.what });
    }
    copy.write_all_at(&NONE.to_le_bytes(), WORDS + superblock::UNDO).map_err(io)?;
    copy.write_all_at(&0u64.to_le_bytes(), DONE).map_err(io)?;
    // Behind the heap is the other commit number; what is not there is 0.
    copy.set_len(whole.len.min(superblock.capacity)).map_err(io)?;
    let mut slot = [0; superblock::RECORD];
    view.read(superblock.at, &mut slot)?;
    superblock::close(&mut slot, RandomState::new().build_hasher().finish() | 1);
    copy.write_all_at(&slot, SLOT - superblock.at).map_err(io)?;
    Ok(Settled { used: words.frontier, rolled_back: words.undo != 0 })
}
