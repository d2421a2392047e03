//! What has its text in a store: one small file for each program and library, by the hash of its path.
//!
//! What must hold: an entry is made before a program is replaced by ABC, so that at no time there is an ABC whose text `gc` would take.

use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use towa_media::files;

use super::{Identity, Store, Writing, hex};
use crate::elf::Kind;
use crate::error::{Error, Result};
use crate::file;
use crate::split::Key;

/// Most bytes of an entry: its path can be written twice, and each byte of it as six.
const ENTRY_MAX: u64 = 64 << 10;

/// A program or library whose text is in the store, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub path: PathBuf,
    /// Its key when it was split.
    pub key: Key,
    /// Whether it is a library, which is not changed when it is split.
    pub library: bool,
    /// The state of the library whose text it is; of a program, that of the whole file in its place before it was replaced.
    pub identity: Option<Identity>,
    /// Device and number of the directory it lies in: another directory under that name (not mounted, another container's) says nothing
    /// of this file.
    pub folder: Option<(u64, u64)>,
}

/// As it is written: paths may hold any byte.
#[derive(Serialize, Deserialize)]
struct Written {
    path: String,
    path_bytes: Option<Vec<u8>>,
    key: String,
    library: bool,
    identity: Option<String>,
    folder: Option<(u64, u64)>,
}

impl Entry {
    /// Of a file at `path`.
    pub fn new(path: &Path, key: Key, kind: Kind, identity: Option<Identity>) -> Entry {
        Entry { path: path.to_owned(), key, library: kind == Kind::Library, identity, folder: folder_of(path) }
    }

    fn to_json(&self) -> Vec<u8> {
        let text = self.path.to_str();
        let written = Written {
            path: text.map_or_else(|| self.path.to_string_lossy().into_owned(), str::to_owned),
            path_bytes: text.is_none().then(|| self.path.as_os_str().as_bytes().to_vec()),
            key: hex(&self.key),
            library: self.library,
            identity: self.identity.map(Identity::to_hex),
            folder: self.folder,
        };
        serde_json::to_vec(&written).expect("JSON of strings")
    }

    fn from_json(bytes: &[u8]) -> Option<Entry> {
        let written: Written = serde_json::from_slice(bytes).ok()?;
        let path = match written.path_bytes {
            Some(bytes) => std::ffi::OsString::from_vec(bytes).into(),
            None => written.path.into(),
        };
        let identity = match &written.identity {
            Some(text) => Some(Identity::from_bytes(&unhex(text)?)?),
            None => None,
        };
        Some(Entry { path, key: unhex(&written.key)?.try_into().ok()?, library: written.library, identity, folder: written.folder })
    }
}

/// Device and number of the directory that `path` lies in, if it is there.
pub(super) fn folder_of(path: &Path) -> Option<(u64, u64)> {
    let about = fs::metadata(path.parent()?).ok().filter(fs::Metadata::is_dir)?;
    Some((about.dev(), about.ino()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit) {
        digits.chunks(2).map(pair).collect()
    } else {
        None
    }
}

impl Store {
    pub(super) fn entry_path(&self, path: &Path) -> PathBuf {
        let digest = Sha256::digest(path.as_os_str().as_bytes());
        self.path().join("files").join(hex(&digest[..16]) + ".json")
    }

    /// All entries, by path.
    ///
    /// # Errors
    /// One of them is damaged.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let folder = self.path().join("files");
        let names = match fs::read_dir(&folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(Error::io(&folder, "reading"))?,
        };
        let mut entries = Vec::new();
        for name in names {
            let path = name.map_err(Error::io(&folder, "reading"))?.path();
            if path.extension().is_none_or(|extension| extension != "json") || is_temporary(&path) {
                continue;
            }
            let Some(bytes) = read(&path)? else { continue };
            let what = || "a damaged entry: no text is collected until it is removed by hand".into();
            entries.push(Entry::from_json(&bytes).ok_or_else(|| Error::NotUsable { path, what: what() })?);
        }
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    /// The entry of the file at `path`.
    ///
    /// # Errors
    /// It is damaged.
    pub fn entry(&self, path: &Path) -> Result<Option<Entry>> {
        let at = self.entry_path(path);
        let Some(bytes) = read(&at)? else { return Ok(None) };
        let entry = Entry::from_json(&bytes);
        entry.map(Some).ok_or_else(|| Error::NotUsable { path: at, what: "a damaged entry".into() })
    }
}

/// The bytes of an entry; none, if it is not there.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match file::read_in_store(path, ENTRY_MAX) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

pub(super) fn is_temporary(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(super::write::TEMPORARY.as_bytes()))
}

impl Writing<'_> {
    /// Enters a file whose text is in the store, or is about to be.
    pub fn enter(&self, entry: &Entry) -> Result<()> {
        let at = self.store.entry_path(&entry.path);
        if self.store.entry(&entry.path).is_ok_and(|there| there.as_ref() == Some(entry)) {
            return self.sync_way_to(&at);
        }
        self.put(&at, &entry.to_json(), 0o644)
    }

    /// Forgets a file that is whole again; and first removes what earlier writers have left beside it, for it is by entries that `gc`
    /// finds that. One that was split anew while the store was waited for stays entered.
    pub fn leave(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            super::collect::collect_unfinished(folder, false)?;
        }
        if let Some(entry) = self.store.entry(path)?
            && matches!(entry.in_use(self.store), super::Use::InUse(_) | super::Use::Unknown)
        {
            return Ok(());
        }
        self.forget(path)
    }

    /// Forgets a file whose text is of no use any more.
    pub fn forget(&self, path: &Path) -> Result<()> {
        let at = self.store.entry_path(path);
        match fs::remove_file(&at) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(Error::io(&at, "removing"))?,
        }
        let above = at.parent().unwrap_or(&at);
        files::sync_dir(above).map_err(Error::io(above, "syncing"))
    }
}
