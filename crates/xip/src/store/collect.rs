//! `gc`: texts that no program or library uses any more go.
//!
//! What must hold: an entry is forgotten before its text goes; a text goes only if no entry is left that may need it. A text cannot be made
//! anew without the whole program, so a program that is not at its place counts as moved, and its text stays until `force` says that it is
//! gone. An entry whose directory is not there is kept even then: a disk may not be mounted.
//!
//! Why stopping after each step is safe, also by a power cut: programs lie on another file system than the store, and what is seen of them
//! may not be on the medium yet. That a program is gone, or replaced, is written there ([`settle`]) before its entry goes; that the entry is
//! gone is synced before the text goes. So no order of writing leaves a program that is split, and has no text. A program that was joined
//! has no entry: its whole file was synced before that went.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use towa_media::files;

use super::entries::{folder_of, is_temporary};
use super::text::{Text, unseal};
use super::write::remove_unfinished;
use super::{Entry, Identity, Store, Writing};
use crate::elf::{Elf, Kind};
use crate::error::{Error, Result};
use crate::file;
use crate::split::{AbcHead, Key};

/// How much is collected.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collect {
    /// Nothing: it is only said what would be.
    pub dry: bool,
    /// Also the texts of programs that are not at their place, and may have been moved.
    pub force: bool,
}

/// A text that went, or would go.
#[derive(Clone, Debug, Serialize)]
pub struct Removed {
    /// Where it was.
    #[serde(with = "towa_media::paths::one")]
    pub path: PathBuf,
    /// Bytes it took.
    pub bytes: u64,
}

/// What was collected, or would be.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Collected {
    /// Texts.
    pub texts: Vec<Removed>,
    /// Programs and libraries that have no text there any more: never replaced; changed, of libraries; or gone, if that was forced.
    #[serde(serialize_with = "towa_media::paths::many")]
    pub forgotten: Vec<PathBuf>,
    /// Programs that are not at their place: moved, removed, or replaced. Their text is kept.
    #[serde(serialize_with = "towa_media::paths::many")]
    pub missed: Vec<PathBuf>,
    /// Programs and libraries whose directory is not there: kept.
    #[serde(serialize_with = "towa_media::paths::many")]
    pub kept: Vec<PathBuf>,
    /// Unfinished files of a writer that was stopped.
    pub unfinished: usize,
}

/// Whether a file still is what its entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The text with this key is used.
    InUse(Key),
    /// It never was replaced, or is a library that has changed: it needs no text.
    Stale,
    /// The program that was split is not there any more: removed, replaced by another, or moved.
    Missed,
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
        let gone = if self.library { Use::Stale } else { Use::Missed };
        let (file, metadata) = match file::open(&self.path) {
            Ok(opened) => opened,
            Err(Error::Unfit { .. }) => return gone,
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return gone,
            Err(_) => return Use::Unknown,
        };
        let is_as_it_was = self.identity == Some(Identity::of(&metadata));
        if self.library {
            return if is_as_it_was { Use::InUse(self.key) } else { Use::Stale };
        }
        let Ok(bytes) = file::rest_of(&file, &self.path) else { return Use::Unknown };
        match AbcHead::find(&bytes) {
            Ok(head) if head.record.key == self.key || head.store == store.path().as_os_str().as_bytes() => {
                Use::InUse(head.record.key)
            }
            // Damaged, but split: without its text it could not even be mended.
            Err(_) if Elf::read(&bytes).is_ok_and(|elf| elf.is_split()) => Use::InUse(self.key),
            _ if is_as_it_was => Use::Stale,
            _ => Use::Missed,
        }
    }
}

impl Writing<'_> {
    /// Removes what nobody uses.
    ///
    /// # Errors
    /// An entry is damaged: nothing is removed. Or a file cannot be removed.
    pub fn collect(&self, how: Collect) -> Result<Collected> {
        let (dry, mut done) = (how.dry, Collected::default());
        let (used, folders) = self.look_at_entries(how, &mut done)?;
        let runs = self.store.path().join("run");
        if !dry && runs.exists() {
            fs::remove_dir_all(&runs).map_err(Error::io(&runs, "removing"))?;
        }
        // First what is found by the entries, so that stopped in between nothing stays for good.
        for folder in folders {
            done.unfinished += collect_unfinished(&folder, dry)?;
        }
        if !dry {
            settle(&done.forgotten)?;
            done.forgotten.iter().try_for_each(|path| self.forget(path))?;
        }
        for text in files_below(&self.store.path().join("xyz"))? {
            self.collect_text(&text, &used, dry, &mut done)?;
        }
        self.collect_links_and_leftovers(dry, &mut done)?;
        Ok(done)
    }

    /// Which texts are used, and in which directories there are, or were, files that use them.
    fn look_at_entries(&self, how: Collect, done: &mut Collected) -> Result<(HashSet<Key>, BTreeSet<PathBuf>)> {
        let (mut used, mut folders, mut left, mut missed) = (HashSet::new(), BTreeSet::new(), BTreeSet::new(), Vec::new());
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
                Use::Stale => done.forgotten.push(entry.path),
                Use::Missed => {
                    left.extend(folder.clone());
                    missed.push((entry.path, entry.key));
                }
            }
            folders.extend(folder);
        }
        // Under another name in the same directory a program may live on: moved, or a hard link.
        let mut found = HashSet::new();
        for (path, key) in left.iter().flat_map(|folder| split_programs_in(folder, self.store)) {
            found.insert(key);
            if !how.dry {
                self.enter(&Entry::new(&path, key, Kind::Program, None))?;
            }
            missed.retain(|(missed, _)| *missed != path);
        }
        for (path, key) in missed {
            if how.force || found.contains(&key) {
                done.forgotten.push(path);
            } else {
                used.insert(key);
                done.missed.push(path);
            }
        }
        used.extend(found);
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
        // What a library was before its last change is of no use either.
        let of_entry = |entry: Entry| entry.identity.filter(|_| entry.library).map(|identity| self.store.library_path(&identity));
        let known: HashSet<PathBuf> = self.store.entries()?.into_iter().filter_map(of_entry).collect();
        let links = files_below(&self.store.path().join("lib"))?;
        let dead = links.into_iter().filter(|link| !(is_temporary(link) || link.exists() && known.contains(link)));
        let mut gone: Vec<PathBuf> = dead.collect();
        for folder in ["", "xyz", "lib", "files"] {
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

/// Makes durable on the programs' own file systems what was seen there of `paths`.
fn settle(paths: &[PathBuf]) -> Result<()> {
    let folders: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
    for folder in folders {
        let opened = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(folder);
        match opened {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            opened => {
                let folder_file = opened.map_err(Error::io(folder, "opening"))?;
                files::sync_file_system(&folder_file).map_err(Error::io(folder, "syncing its file system"))?;
            }
        }
    }
    Ok(())
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
