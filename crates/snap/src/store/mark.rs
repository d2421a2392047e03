//! The greatest number that a checkpoint of this directory ever had, where no checkpoint has it any more.
//!
//! ```text
//!   7/  8/  9/      remove 9:  last-9 ──► DIR synced ──► 9 renamed ...      the next one is 10
//! ```
//!
//! The mark is an empty file whose name says the number, so that nothing of it can be damaged. Only who removes the checkpoint of the
//! greatest number needs it.
//!
//! What must always hold: a checkpoint that loses its name has a smaller number than another one, or than a durable mark. Stopping
//! between any two steps is safe: a mark without its removal takes one number too many, and of several marks the greatest counts.

use super::{Store, not_usable, number_of, remove_if_there, sharing};
use crate::Result;

/// The names of marks open with this.
const MARK: &str = "last-";

/// The number that a mark of this name stands for; names such as `last-07` are none.
fn mark_of(name: &str) -> Option<u64> {
    name.strip_prefix(MARK).and_then(number_of)
}

impl Store {
    /// The number that the next checkpoint gets.
    pub(super) fn next_number(&self) -> Result<u64> {
        let greatest = self.entries()?.iter().filter_map(|name| mark_of(name).or(number_of(name))).max();
        let next = greatest.unwrap_or(0).checked_add(1);
        next.ok_or_else(|| not_usable(&self.dir, "has no number left for another checkpoint; begin another directory"))
    }

    /// Marks `number`, whose checkpoint is about to lose its name, if nothing greater stays.
    pub(super) fn mark(&self, number: u64) -> Result<()> {
        let names = self.entries()?;
        let greater = |name: &String| number_of(name).is_some_and(|other| other > number);
        let marks: Vec<u64> = names.iter().filter_map(|name| mark_of(name)).collect();
        if names.iter().any(greater) || marks.iter().any(|&mark| mark >= number) {
            return Ok(());
        }
        let path = self.dir.join(format!("{MARK}{number}"));
        sharing::create(&path)?;
        self.sync_names()?;
        // Not needed any more, and no matter if they stay.
        marks.iter().try_for_each(|mark| remove_if_there(&self.dir.join(format!("{MARK}{mark}"))))
    }
}
