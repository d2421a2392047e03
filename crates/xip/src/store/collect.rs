//! `gc`: texts that no program or library uses any more go.
//!
//! What must hold: an entry is forgotten before its text goes; a text goes only if no entry is left that may need it. An entry whose
//! directory is not there is kept, and so is its text: a disk that is not mounted is no reason to take a program's text away.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use super::entries::is_temporary;
use super::text::{Text, unseal};
use super::write::temporary;
use super::{Entry, Store, Writing};
use crate::elf::Elf;
use crate::error::{Error, Result};
use crate::split::{AbcHead, Key};

/// A text that went, or would go.
#[derive(Clone, Debug, Serialize)]
pub struct Removed {
    /// Where it was.
    pub path: PathBuf,
    /// Bytes it took.
    pub bytes: u64,
}

/// What was collected, or would be.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Collected {
    /// Texts.
    pub texts: Vec<Removed>,
    /// Programs and libraries that are split no more: gone, replaced by a package, or joined.
    pub forgotten: Vec<PathBuf>,
    /// Programs and libraries whose directory is not there: kept.
    pub kept: Vec<PathBuf>,
    /// Unfinished files of a writer that was stopped.
    pub unfinished: usize,
}

/// Whether a file still is what its entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The text with this key is used.
    InUse(Key),
    /// It is another file by now, or none.
    Stale,
    /// Nobody can tell.
    Unknown,
}

impl Entry {
    /// Whether the file still is what this says, of `store`. A program that was to be put in the place of another split one, and was not,
    /// has left that one there: its text is used.
    pub fn in_use(&self, store: &Store) -> Use {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && self.path.parent().is_some_and(Path::is_dir) => {
                return Use::Stale;
            }
            Err(_) => return Use::Unknown,
        };
        if self.library {
            let same = Elf::read(&bytes).is_ok_and(|elf| !elf.is_split() && elf.build_id == self.build_id);
            return if same { Use::InUse(self.key) } else { Use::Stale };
        }
        match AbcHead::find(&bytes) {
            Ok(head) if head.record.key == self.key || head.store == store.path().as_os_str().as_bytes() => {
                Use::InUse(head.record.key)
            }
            _ => Use::Stale,
        }
    }
}

impl Writing<'_> {
    /// Removes what nobody uses; if `dry`, only says what would go.
    ///
    /// # Errors
    /// An entry is damaged: nothing is removed. Or a file cannot be removed.
    pub fn collect(&self, dry: bool) -> Result<Collected> {
        let mut done = Collected::default();
        let mut used: HashSet<Key> = HashSet::new();
        let mut stale = Vec::new();
        let runs = self.store.path().join("run");
        for entry in self.store.entries()? {
            match entry.in_use(self.store) {
                // What `run` made is made again when it is needed.
                _ if entry.path.starts_with(&runs) => stale.push(entry.path),
                Use::Stale => stale.push(entry.path),
                Use::InUse(key) => {
                    used.insert(key);
                    done.unfinished += usize::from(collect_unfinished(&entry.path, dry)?);
                }
                Use::Unknown => {
                    used.insert(entry.key);
                    done.kept.push(entry.path);
                }
            }
        }
        if !dry && runs.exists() {
            fs::remove_dir_all(&runs).map_err(Error::io(&runs, "removing"))?;
        }
        for path in &stale {
            // First what is found by the entry, so that stopped in between nothing stays for good.
            done.unfinished += usize::from(collect_unfinished(path, dry)?);
            if !dry {
                self.forget(path)?;
            }
        }
        done.forgotten = stale;
        for text in files_below(&self.store.path().join("xyz"))? {
            self.collect_text(&text, &used, dry, &mut done)?;
        }
        self.collect_links_and_leftovers(dry, &mut done)?;
        Ok(done)
    }

    fn collect_text(&self, path: &Path, used: &HashSet<Key>, dry: bool, done: &mut Collected) -> Result<()> {
        if is_temporary(path) || used.iter().any(|key| self.store.text_path(key) == path) {
            return Ok(());
        }
        let bytes = Text::open(path).map_or(0, |text| text.allocated);
        if !dry {
            unseal(path)?;
            fs::remove_file(path).map_err(Error::io(path, "removing"))?;
        }
        done.texts.push(Removed { path: path.to_owned(), bytes });
        Ok(())
    }

    /// Links that lead nowhere, and files that were never finished: nobody writes meanwhile.
    fn collect_links_and_leftovers(&self, dry: bool, done: &mut Collected) -> Result<()> {
        let links = files_below(&self.store.path().join("build-id"))?;
        let dead = links.into_iter().filter(|link| !link.exists() && !is_temporary(link));
        let mut gone: Vec<PathBuf> = dead.collect();
        for folder in ["", "xyz", "build-id", "files"] {
            let left = files_below(&self.store.path().join(folder))?.into_iter().filter(|path| is_temporary(path));
            let before = gone.len();
            gone.extend(left);
            done.unfinished += gone.len() - before;
        }
        gone.sort();
        gone.dedup();
        if !dry {
            for path in gone {
                match fs::remove_file(&path) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io(&path, "removing")(e)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Removes what a writer that was stopped has left beside the program at `path`; whether there was something. A file that somebody is
/// writing there now is none: that one has the program locked.
fn collect_unfinished(path: &Path, dry: bool) -> Result<bool> {
    let left = temporary(path);
    if fs::symlink_metadata(&left).is_err() {
        return Ok(false);
    }
    let program = File::open(path).ok();
    if program.as_ref().is_some_and(|file| flock(file, FlockOperation::NonBlockingLockExclusive).is_err()) {
        return Ok(false);
    }
    if !dry {
        fs::remove_file(&left).map_err(Error::io(&left, "removing"))?;
    }
    Ok(true)
}

impl Store {
    /// All texts.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub fn text_paths(&self) -> Result<Vec<PathBuf>> {
        Ok(files_below(&self.path().join("xyz"))?.into_iter().filter(|path| !is_temporary(path)).collect())
    }
}

/// Files in `folder` and in its folders.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            other => other.map_err(Error::io(&folder, "reading"))?,
        };
        for entry in entries {
            let entry = entry.map_err(Error::io(&folder, "reading"))?;
            let kind = entry.file_type().map_err(Error::io(&folder, "reading"))?;
            if kind.is_dir() { folders.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files.sort();
    Ok(files)
}
