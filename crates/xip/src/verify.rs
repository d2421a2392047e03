//! Whether a store is sound: its loader, its texts, and that each split program together with its text still is what it was.
//!
//! What must hold: nothing is changed, and no program's own code is run (see [`crate::install::CHECK`]).

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::elf::Reason;
use crate::error::{Error, Result};
use crate::file;
use crate::format::RANGE_RELATION;
use crate::install;
use crate::loader;
use crate::split::{self, Key};
use crate::store::{Entry, Readers, Store, Text, Use, safety};

/// Something that is not as it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// Where.
    #[serde(with = "towa_media::paths::one")]
    pub path: PathBuf,
    /// What, and what to do.
    pub what: String,
}

/// What was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// Split programs that are whole.
    pub programs: usize,
    /// Libraries whose text is theirs.
    pub libraries: usize,
    /// Texts in the store.
    pub texts: usize,
    /// Bytes that they take.
    pub bytes: u64,
    /// Programs and libraries that are split no more, of whose text `gc` gets rid.
    #[serde(serialize_with = "towa_media::paths::many")]
    pub stale: Vec<PathBuf>,
    /// Programs and libraries that cannot be looked at: their directory is not there.
    #[serde(serialize_with = "towa_media::paths::many")]
    pub unseen: Vec<PathBuf>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

impl Store {
    /// Looks at everything; programs are started as far as their first instruction if `start`. `progress` is told how many of how many entries
    /// are done.
    ///
    /// # Errors
    /// The store itself cannot be read.
    pub fn verify(&self, start: bool, mut progress: impl FnMut(u64, u64)) -> Result<Verified> {
        let mut found = Verified::default();
        self.verify_loader(&mut found)?;
        // What a program that is started executes first is the store's loader, and the store may be somebody else's.
        let start = start && found.problems.is_empty() && safety::check_owned(self.path()).is_ok();
        for path in self.text_paths()? {
            found.texts += 1;
            match Text::open(&path).and_then(|text| check_text(self, &text)) {
                Ok(bytes) => found.bytes += bytes,
                Err(error) => found.problems.push(problem(&path, &error)),
            }
        }
        let entries = self.entries()?;
        for (index, entry) in entries.iter().enumerate() {
            progress(index as u64, entries.len() as u64);
            match entry.in_use(self) {
                Use::Stale | Use::Missed => found.stale.push(entry.path.clone()),
                Use::Unknown => found.unseen.push(entry.path.clone()),
                Use::InUse(key) => match self.verify_entry(entry, &key, start) {
                    Ok(()) if entry.library => found.libraries += 1,
                    Ok(()) => found.programs += 1,
                    Err(error) => found.problems.push(problem(&entry.path, &error)),
                },
            }
        }
        Ok(found)
    }

    fn verify_loader(&self, found: &mut Verified) -> Result<()> {
        for (path, bytes) in [(self.loader_path(), loader::loader()?.to_vec()), (self.audit_path(), loader::audit(self.path())?)] {
            let remedy = "splitting any program into this store puts that of this version of towa there";
            let owners = [0, self.owner()?];
            let looked = file::open_in_store(&path).and_then(|(file, about)| {
                safety::check_file(&path, &about, &owners)?;
                Ok(about.len() == bytes.len() as u64 && file::rest_of(&file, &path)? == bytes)
            });
            let what = match looked {
                Ok(true) => continue,
                Ok(false) => format!("of another version, or damaged; {remedy}"),
                Err(error) => format!("{}; {remedy}", problem(&path, &error).what),
            };
            found.problems.push(Problem { path, what });
        }
        Ok(())
    }

    fn verify_entry(&self, entry: &Entry, key: &Key, start: bool) -> Result<()> {
        let (file, metadata) = file::open(&entry.path)?;
        let bytes = file::rest_of(&file, &entry.path)?;
        let text = self.text(key)?;
        let not_usable = |what: Reason| Error::NotUsable { path: entry.path.clone(), what };
        let readers = Readers::of_program(&entry.path, &file, &metadata);
        if entry.library {
            let linked = entry.identity.and_then(|identity| self.library_text(&identity));
            if linked.is_none_or(|linked| linked.path != text.path) {
                return Err(not_usable("nothing leads to its text, so that it runs from its own; split it again".into()));
            }
            return check_library(&bytes, &text).map_err(not_usable);
        }
        let is_privileged = install::rights_of(&entry.path)?.is_some();
        let readers = readers?;
        install::check_text(self, &text, &readers, is_privileged)?;
        readers.check_reach(entry.path.parent().unwrap_or(Path::new("/")), self.path()).map_err(not_usable)?;
        let (_, store) = install::store_of(&entry.path, &bytes)?;
        if store != self.path() {
            return Err(not_usable(format!("it looks for its text in {}", store.display())));
        }
        let original = split::join(&bytes, &text.read()?).map_err(not_usable)?;
        split::check_abc(&bytes, &original, self.path().as_os_str().as_bytes()).map_err(not_usable)?;
        // Where somebody else could exchange it between now and then, it is not started.
        let folder = entry.path.parent().unwrap_or(Path::new("/"));
        if start && safety::check_owned(folder).is_ok() { install::answers(&entry.path) } else { Ok(()) }
    }
}

/// The text's name, permissions, length and content; gives what it takes.
fn check_text(store: &Store, text: &Text) -> Result<u64> {
    if store.text_path(&text.record.key) != text.path {
        return Err(Error::NotUsable { path: text.path.clone(), what: "the text of another program than its name says".into() });
    }
    text.check_owner(store)?;
    if text.metadata.mode() & 0o222 != 0 {
        let what = "it can be written to, by its owner at least; chmod a-w".into();
        return Err(Error::Unsafe { path: text.path.clone(), what });
    }
    let content = text.record.check_content(&text.read()?);
    content.map_err(|what| Error::NotUsable { path: text.path.clone(), what })?;
    Ok(text.allocated)
}

/// What would be mapped over the library's text is the library's text.
fn check_library(library: &[u8], text: &Text) -> std::result::Result<(), Reason> {
    let xyz = text.read().map_err(|e| e.to_string())?;
    for range in text.record.ranges().iter().filter(|range| range.kind != RANGE_RELATION) {
        let (from, to) = (range.offset as usize, ((range.offset + range.len) as usize).min(library.len()));
        if library.get(from..to).is_none_or(|own| own != &xyz[from..to]) {
            return Err("it and its text in the store differ; split it again".into());
        }
    }
    Ok(())
}

fn problem(path: &Path, error: &Error) -> Problem {
    let text = error.to_string();
    let prefix = format!("{}: ", path.display());
    Problem { path: path.to_owned(), what: text.strip_prefix(&prefix).map_or(text.clone(), str::to_owned) }
}
