//! Removing checkpoints, and marking one as used up.
//!
//! What must always hold: a checkpoint goes as a whole, by losing its name, before any of its files goes; what it shares with others
//! stays, since the file system counts; a restart that has opened it reads on.

use std::path::Path;

use towa_media::files;

use super::{CONSUMED, Store, failed, names, not_usable, sharing};
use crate::{Error, Result};

impl Store {
    /// Removes a checkpoint, damaged or not.
    pub fn remove(&self, number: u64) -> Result<()> {
        let _lock = self.lock()?;
        self.remove_locked(number)
    }

    fn remove_locked(&self, number: u64) -> Result<()> {
        let (path, unfinished) = (self.path(number), self.unfinished(number));
        // Before it loses its name: its number does not come again.
        if path.exists() {
            self.mark(number)?;
        }
        // Stopped before the rename nothing has happened; after it, or when power fails, it is there whole or it is `N.tmp`, which
        // the next writer removes. The sync comes before the files go: a name that came back would name a checkpoint without them.
        match names::rename(&path, &unfinished) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(self.no_checkpoint(number)),
            other => other.map_err(|e| failed("removing", &path, e))?,
        }
        self.sync_names()?;
        clear(&unfinished)
    }

    /// Removes the oldest, so that `count` remain that a process can be restarted from, and gives the numbers of those removed. The
    /// newest of them always stays; damaged ones count for nothing and stay, since somebody may want to look at them.
    pub fn keep(&self, count: usize) -> Result<Vec<u64>> {
        let _lock = self.lock()?;
        let (mut usable, mut old) = (0, Vec::new());
        for number in self.numbers()?.into_iter().rev() {
            match self.load(number) {
                Ok(_) if usable >= count.max(1) => old.push(number),
                Ok(checkpoint) => usable += usize::from(!checkpoint.consumed()),
                Err(Error::NotUsable { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        old.reverse();
        old.iter().try_for_each(|&number| self.remove_locked(number))?;
        Ok(old)
    }

    /// Marks a checkpoint as used up, for good: of several who want to restart it once only, one succeeds.
    pub fn consume(&self, number: u64) -> Result<()> {
        let _lock = self.lock()?;
        let path = self.path(number);
        if self.load(number)?.consumed() {
            return Err(not_usable(&path, "was used up by a once-only restart"));
        }
        // Stopped before the sync it may or may not be marked; but then it has not been restarted either.
        let mark = path.join(CONSUMED);
        sharing::create(&mark)?;
        // It is empty: its name is all there is of it.
        files::sync_dir(&path).map_err(|e| {
            // It was not used up, then.
            let _ = std::fs::remove_file(&mark);
            failed("syncing", &mark, e)
        })
    }
}

/// Removes a directory that has no checkpoint's name any more.
pub(super) fn clear(unfinished: &Path) -> Result<()> {
    names::remove_all(unfinished).map_err(|e| failed("removing", unfinished, e))
}
