//! `gc`: texts that no program or library uses any more go.
//!
//! What must hold: an entry is forgotten before its text goes; a text goes only if no entry is left that may need it. An entry whose
//! directory is not there is kept, and so is its text: a disk that is not mounted is no reason to take a program's text away.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::entries::{folder_of, is_temporary};
use super::text::{Text, unseal};
use super::write::remove_unfinished;
use super::{Entry, Store, Writing};
use crate::elf::{Elf, Kind};
use crate::error::{Error, Result};
use crate::file;
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
        if self.folder.is_some() && folder_of(&self.path) != self.folder {
            return Use::Unknown;
        }
        let bytes = match file::read(&self.path) {
            Ok(bytes) => bytes,
            Err(Error::Unfit { .. }) => return Use::Stale,
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Use::Stale,
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
            // Damaged, but split: without its text it could not even be mended.
            Err(_) if Elf::read(&bytes).is_ok_and(|elf| elf.is_split()) => Use::InUse(self.key),
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
        let (used, folders) = self.look_at_entries(dry, &mut done)?;
        let runs = self.store.path().join("run");
        if !dry && runs.exists() {
            fs::remove_dir_all(&runs).map_err(Error::io(&runs, "removing"))?;
        }
        // First what is found by the entries, so that stopped in between nothing stays for good.
        for folder in folders {
            done.unfinished += collect_unfinished(&folder, dry)?;
        }
        for path in &done.forgotten {
            if !dry {
                self.forget(path)?;
            }
        }
        for text in files_below(&self.store.path().join("xyz"))? {
            self.collect_text(&text, &used, dry, &mut done)?;
        }
        self.collect_links_and_leftovers(dry, &mut done)?;
        Ok(done)
    }

    /// Which texts are used, and in which directories there are, or were, files that use them.
    fn look_at_entries(&self, dry: bool, done: &mut Collected) -> Result<(HashSet<Key>, BTreeSet<PathBuf>)> {
        let (mut used, mut folders, mut left) = (HashSet::new(), BTreeSet::new(), BTreeSet::new());
        let runs = self.store.path().join("run");
        for entry in self.store.entries()? {
            // What `run` made is made again when it is needed.
            let is_run = entry.path.starts_with(&runs);
            let folder = entry.path.parent().map(Path::to_owned);
            match if is_run { Use::Stale } else { entry.in_use(self.store) } {
                Use::InUse(key) => drop(used.insert(key)),
                Use::Unknown => {
                    used.insert(entry.key);
                    done.kept.push(entry.path);
                    continue;
                }
                Use::Stale => {
                    left.extend(folder.clone().filter(|_| !entry.library && !is_run));
                    done.forgotten.push(entry.path);
                }
            }
            folders.extend(folder);
        }
        // Under another name in the same directory a program may live on: moved, or a hard link.
        for (path, key) in left.iter().flat_map(|folder| split_programs_in(folder, self.store)) {
            used.insert(key);
            if !dry {
                self.enter(&Entry::new(&path, key, Kind::Program, None))?;
            }
            done.forgotten.retain(|forgotten| *forgotten != path);
        }
        Ok((used, folders))
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

/// Programs in `folder` whose text is in `store`, with its keys.
fn split_programs_in(folder: &Path, store: &Store) -> Vec<(PathBuf, Key)> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let look = |path: PathBuf| {
        let (file, _) = file::open(&path).ok()?;
        let mut head = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut head, 0).ok()?;
        let bytes =
            if head == object::elf::ELFMAG && !is_temporary(&path) { file::rest_of(&file, &path).ok()? } else { return None };
        let head = AbcHead::find(&bytes).ok().filter(|head| head.store == store.path().as_os_str().as_bytes())?;
        Some((path, head.record.key))
    };
    files.filter_map(look).collect()
}

/// Removes what writers that were stopped have left in `folder`; how many files. One that somebody is writing is none.
pub(super) fn collect_unfinished(folder: &Path, dry: bool) -> Result<usize> {
    let mut count = 0;
    let Ok(entries) = fs::read_dir(folder) else { return Ok(0) };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| is_temporary(path)) {
        count += usize::from(remove_unfinished(&path, dry)?);
    }
    Ok(count)
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
