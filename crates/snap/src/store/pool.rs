//! The pool in a checkpoint of a process in mode `nv`: a clone of the file that the process's memory lies in.
//!
//! ```text
//!   before the pause        in it                    after it
//!   N.tmp/pool, empty ────► FICLONE of the pool ───► what no mapping shows is given back ─► synced
//!                                                    where there is data, the file system says: the runs of the index
//! ```
//!
//! What must always hold: in the pause nothing is made, read or written but the clone itself; a page of the index's runs is at the place in
//! the file where the process had it; nothing of the file that no mapping showed is anybody's.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use towa_media::files;

use super::index::{POOL, Run, file_name};
use super::{Draft, Mode, content, failed, not_usable, sharing};
use crate::Result;
use crate::pages::{PAGE, PageSet, Pages};

/// A pool that is being written.
#[derive(Debug)]
pub(super) struct PoolDraft {
    path: PathBuf,
    file: File,
    /// Which pages of memory lie from which page of the file on, ascending.
    shown: Vec<(Pages, u64)>,
}

impl Draft {
    /// There will be a pool. Not in the pause: it makes a file.
    pub fn begin_pool(&mut self) -> Result<()> {
        if self.mode() != Mode::Reflink {
            return Err(not_usable(self.dir(), "is on a file system that does not clone files, which mode nv takes (XFS, btrfs)"));
        }
        let path = self.dir().join(file_name(POOL));
        let file = sharing::create(&path)?;
        self.pool = Some(PoolDraft { path, file, shown: Vec::new() });
        Ok(())
    }

    /// The pool is `memory` as it is now.
    ///
    /// # Panics
    /// Without [`begin_pool`](Self::begin_pool).
    pub fn clone_pool(&mut self, memory: &File) -> Result<()> {
        let pool = self.pool.as_ref().expect("begun");
        match sharing::clone(memory, &pool.file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(not_usable(&pool.path, "could not be cloned: the process's memory lies on another file system")),
            Err(e) => Err(failed("cloning to", &pool.path, e)),
        }
    }

    /// Which pages of memory the process had mapped from which page of the pool on, ascending.
    ///
    /// # Panics
    /// Without [`begin_pool`](Self::begin_pool).
    pub fn show_pool(&mut self, shown: Vec<(Pages, u64)>) {
        self.pool.as_mut().expect("begun").shown = shown;
    }
}

impl PoolDraft {
    /// Where the pages are that have content.
    pub(super) fn runs(&self) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        for (pages, offset) in &self.shown {
            let len = pages.end - pages.start;
            let data = data_within(&self.file, *offset..offset + len).map_err(|e| failed("looking for data in", &self.path, e))?;
            runs.extend(
                data.iter().map(|data| Run::new(pages.start + (data.start - offset), data.end - data.start, 0, data.start)),
            );
        }
        Ok(runs)
    }

    /// Its length; sparse, and beyond all addresses.
    pub(super) fn pages(&self) -> Result<u64> {
        let status = self.file.metadata().map_err(|e| failed("reading the status of", &self.path, e))?;
        Ok(status.size() / PAGE)
    }

    /// Gives back what belongs to mappings that are gone, and makes it durable.
    pub(super) fn settle(&self) -> Result<()> {
        let shown: PageSet = self.shown.iter().map(|(pages, offset)| *offset..offset + (pages.end - pages.start)).collect();
        give_back_all_but(&self.file, &shown).and_then(|()| files::sync(&self.file)).map_err(|e| failed("writing", &self.path, e))
    }
}

/// The pages of a file within `range` that have data.
pub(super) fn data_within(file: &File, range: Pages) -> std::io::Result<Vec<Pages>> {
    let (mut found, mut at) = (Vec::new(), range.start * PAGE);
    while let Some(data) = content::first_data(file, at..range.end * PAGE)? {
        found.push(data.start / PAGE..data.end.div_ceil(PAGE));
        at = data.end;
    }
    Ok(found)
}

/// Makes holes of all data of a file outside of `shown`.
pub(crate) fn give_back_all_but(file: &File, shown: &PageSet) -> std::io::Result<()> {
    let end = file.metadata()?.size() / PAGE;
    for gap in PageSet::from(0..end).difference(shown).ranges() {
        for data in data_within(file, gap.clone())? {
            sharing::punch(file, &data)?;
        }
    }
    Ok(())
}
