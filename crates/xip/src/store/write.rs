//! Files that appear whole or not at all.
//!
//! What must hold: a file is written under another name, synced, renamed, and its directory synced. Stopped after
//! - the temporary file: it has a name that no reader looks for; the next writer of the same file, or `gc`, removes it;
//! - the rename: the file is there, whole; only a power cut can take the name back, and then the old state is there, whole;
//! - the directory's sync: done.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use towa_media::files;

use super::Writing;
use crate::error::{Error, Result};
use crate::format::{LOADER_NAME, PAGE};
use crate::loader;

/// How the names of unfinished files begin.
pub const TEMPORARY: &str = ".towa-xip-";

/// The name that `path` has until it is finished.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = OsString::from(TEMPORARY);
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// A file that is being written; without [`Draft::finish`] it goes.
#[derive(Debug)]
pub struct Draft {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    finished: bool,
}

impl Draft {
    /// Begins the file `path`; what an earlier writer left of it goes. The caller sees to it that there is one writer only.
    pub fn begin(path: &Path) -> Result<Draft> {
        let temporary = temporary(path);
        match fs::remove_file(&temporary) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::io(&temporary, "removing what was left")(e)),
            _ => {}
        }
        let mut options = File::options();
        let file = options
            .write(true)
            .read(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(Error::io(&temporary, "making"))?;
        Ok(Draft { file, temporary, path: path.to_owned(), finished: false })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes `len` bytes of it, of which those of whole pages of zeros are left out: the file is `bytes`, sparse.
    pub fn write_sparse(&mut self, bytes: &[u8]) -> Result<()> {
        let path = self.temporary.clone();
        let io = |doing| Error::io(&path, doing);
        for (index, page) in bytes.chunks(PAGE as usize).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                self.file.seek(SeekFrom::Start(index as u64 * PAGE)).map_err(io("seeking"))?;
                self.file.write_all(page).map_err(io("writing"))?;
            }
        }
        self.file.set_len(bytes.len() as u64).map_err(io("setting the length"))
    }

    /// Its name until it is finished.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Syncs it, and gives up the right to write to it: a program that is open for writing cannot be started.
    pub fn settle(&mut self) -> Result<()> {
        files::sync(&self.file).map_err(Error::io(&self.temporary, "syncing"))?;
        self.file = File::open(&self.temporary).map_err(Error::io(&self.temporary, "opening"))?;
        Ok(())
    }

    /// Makes it `path`, with the permissions `mode`.
    pub fn finish(self, mode: u32) -> Result<()> {
        let path = self.temporary.clone();
        self.file.set_permissions(fs::Permissions::from_mode(mode)).map_err(Error::io(&path, "setting permissions"))?;
        self.finish_as_it_is()
    }

    /// Makes it `path`, with the permissions that were set.
    pub fn finish_as_it_is(mut self) -> Result<()> {
        files::sync(&self.file).map_err(Error::io(&self.temporary, "syncing"))?;
        fs::rename(&self.temporary, &self.path).map_err(Error::io(&self.path, "renaming"))?;
        self.finished = true;
        let above = self.path.parent().unwrap_or(Path::new("/"));
        files::sync_dir(above).map_err(Error::io(above, "syncing"))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

impl Writing<'_> {
    /// Puts a file with these bytes at `path`, within the store.
    pub(crate) fn put(&self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        self.folder_of(path)?;
        let mut draft = Draft::begin(path)?;
        draft.write_sparse(bytes)?;
        draft.finish(mode)
    }

    /// Makes the folder that `path` is to lie in, durably.
    pub(crate) fn folder_of(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        if folder.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(folder).map_err(Error::io(folder, "making"))?;
        for made in folder.ancestors().take_while(|above| above.starts_with(self.store.path())) {
            fs::set_permissions(made, fs::Permissions::from_mode(0o755)).map_err(Error::io(made, "setting permissions"))?;
            files::sync_dir(made).map_err(Error::io(made, "syncing"))?;
        }
        Ok(())
    }

    /// Puts loader and audit object there, where they are not, or are another version's.
    pub(crate) fn put_loader(&self) -> Result<()> {
        let store = self.store.path();
        for (name, bytes) in
            [(self.store.loader_path(), loader::loader()?.to_vec()), (self.store.audit_path(), loader::audit(store)?)]
        {
            let mode = if name.ends_with(LOADER_NAME) { 0o555 } else { 0o444 };
            if fs::read(&name).is_ok_and(|there| there == bytes) {
                continue;
            }
            self.put(&name, &bytes, mode)?;
        }
        Ok(())
    }
}
