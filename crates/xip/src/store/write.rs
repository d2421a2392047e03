//! Files that appear whole or not at all.
//!
//! What must hold: a file is written under another name, synced, renamed, and its directory synced. Stopped after
//! - the temporary file: it has a name that no reader looks for; `gc` removes it, once nobody has it locked;
//! - the rename: the file is there, whole; only a power cut can take the name back, and then the old state is there, whole;
//! - the directory's sync: done.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::fs::{FlockOperation, flock};
use towa_media::files;

use super::{Writing, safety};
use crate::error::{Error, Result};
use crate::file;
use crate::format::{LOADER_NAME, PAGE};
use crate::loader;

/// How the names of unfinished files begin.
pub const TEMPORARY: &str = ".towa-xip-";

/// A name that nobody has, beside `path`, for as long as it is not finished.
pub fn temporary(path: &Path) -> PathBuf {
    path.with_file_name(format!("{TEMPORARY}{}", uuid::Uuid::new_v4().simple()))
}

/// Removes the unfinished file at `left`, unless its writer is still at work: a writer has it locked. If `dry`, only says whether.
///
/// A writer that has made its file and not locked it yet finds it gone, and makes another; one that has finished took the name away, so
/// that the file that is locked here is not at it any more.
pub(super) fn remove_unfinished(left: &Path, dry: bool) -> Result<bool> {
    let Ok((file, _)) = file::open_in_store(left) else { return Ok(false) };
    // A writer that was killed may have left a process on its way to an exec, which has the lock as long.
    for attempt in 0.. {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(_) if attempt == 50 || !is_at(&file, left) => return Ok(false),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    }
    let is_left = is_at(&file, left);
    let removed = if is_left && !dry { fs::remove_file(left) } else { Ok(()) };
    let _ = flock(&file, FlockOperation::Unlock);
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(left, "removing")(e)),
        _ => Ok(is_left),
    }
}

/// Whether `file` is the one that `path` names.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |of: fs::Metadata| (of.dev(), of.ino());
    fs::symlink_metadata(path).is_ok_and(|named| file.metadata().is_ok_and(|open| same(open) == same(named)))
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
    /// Begins the file `path`.
    pub fn begin(path: &Path) -> Result<Draft> {
        loop {
            let temporary = temporary(path);
            let mut options = File::options();
            let options = options.write(true).read(true).create_new(true).mode(0o600);
            let file = options.open(&temporary).map_err(Error::io(path, "making a file beside it"))?;
            let draft = Draft { file, temporary, path: path.to_owned(), finished: false };
            lock(&draft.file, path)?;
            // Before it was locked, `gc` may have taken it for one that was left.
            if is_at(&draft.file, &draft.temporary) {
                return Ok(draft);
            }
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes `len` bytes of it, of which those of whole pages of zeros are left out: the file is `bytes`, sparse.
    pub fn write_sparse(&mut self, bytes: &[u8]) -> Result<()> {
        let path = self.path.clone();
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

    /// Gives up the right to write to it: a program that is open for writing cannot be started. (It is synced when it is finished.)
    pub fn settle(&mut self) -> Result<()> {
        let (file, _) = file::open_in_store(&self.temporary)?;
        // The locks overlap: at no moment could `gc` have it.
        lock(&file, &self.path)?;
        self.file = file;
        Ok(())
    }

    /// Makes it `path`, with the permissions `mode`.
    pub fn finish(self, mode: u32) -> Result<()> {
        let path = self.path.clone();
        self.file.set_permissions(fs::Permissions::from_mode(mode)).map_err(Error::io(&path, "setting permissions"))?;
        self.finish_as_it_is()
    }

    /// Makes it `path`, with the permissions that were set.
    pub fn finish_as_it_is(mut self) -> Result<()> {
        files::sync(&self.file).map_err(Error::io(&self.path, "syncing"))?;
        fs::rename(&self.temporary, &self.path).map_err(Error::io(&self.path, "renaming"))?;
        self.finished = true;
        let above = self.path.parent().unwrap_or(Path::new("/"));
        files::sync_dir(above).map_err(Error::io(above, "syncing"))
    }
}

/// Says that a writer is at work: the lock is one that several descriptors can have, and `gc` none of them at the same time.
fn lock(file: &File, path: &Path) -> Result<()> {
    flock(file, FlockOperation::LockShared).map_err(|e| Error::io(path, "locking its draft")(e.into()))
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

    /// Makes the folder that `path` is to lie in, durably. (Its own names are synced when a file in it is finished.)
    pub(crate) fn folder_of(&self, path: &Path) -> Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.is_dir() {
            fs::create_dir_all(folder).map_err(Error::io(folder, "making"))?;
            for made in folder.ancestors().take_while(|above| above.starts_with(self.store.path())) {
                fs::set_permissions(made, fs::Permissions::from_mode(0o755)).map_err(Error::io(made, "setting permissions"))?;
            }
        }
        safety::check_within(path, self.store.path())?;
        self.sync_way_to(folder)
    }

    /// Makes the names durable that lead to `path`, from the root of the file system on: it, and the store itself, may be there since a writer that
    /// was stopped before it did that.
    #[track_caller]
    pub(crate) fn sync_way_to(&self, path: &Path) -> Result<()> {
        let store = self.store.path();
        for above in path.ancestors().skip(1).take_while(|above| above.starts_with(store) && *above != store) {
            files::sync_dir(above).map_err(Error::io(above, "syncing"))?;
        }
        if self.store.rooted.load(Ordering::Relaxed) {
            return files::sync_dir(store).map_err(Error::io(store, "syncing"));
        }
        files::sync_dir_and_above(store).map_err(Error::io(store, "syncing"))?;
        self.store.rooted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Puts loader and audit object there, where they are not, or are another version's, or somebody else could write to them. A writer that was
    /// stopped may have left them with names that are not durable: what is put into the store next syncs the way to it, and so these.
    pub(crate) fn put_loader(&self) -> Result<()> {
        let store = self.store.path();
        for (name, bytes) in
            [(self.store.loader_path(), loader::loader()?.to_vec()), (self.store.audit_path(), loader::audit(store)?)]
        {
            let mode = if name.ends_with(LOADER_NAME) { 0o555 } else { 0o444 };
            let is_right = |(file, about): (File, fs::Metadata)| {
                let safe = safety::check_file(&name, &about, &[0, safety::me()]).is_ok() && about.mode() & 0o777 == mode;
                safe && about.len() == bytes.len() as u64 && file::rest_of(&file, &name).is_ok_and(|there| there == bytes)
            };
            if !file::open_in_store(&name).is_ok_and(is_right) {
                self.put(&name, &bytes, mode)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// `gc` waits for a draft's lock, and has it when the draft has its name already.
    #[test]
    fn a_draft_that_was_finished_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut draft = Draft::begin(&path).unwrap();
        draft.write_sparse(b"content").unwrap();
        let left = draft.temporary().to_owned();
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| remove_unfinished(&left, false).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(100));
            draft.finish(0o644).unwrap();
            assert!(!removing.join().unwrap(), "it says that it was removed");
        });
        assert_eq!(fs::read(&path).unwrap(), b"content");
    }

    /// `gc` may see a draft before its writer has locked it.
    #[test]
    fn a_draft_that_has_begun_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let ended = AtomicBool::new(false);
        let begin = |round| {
            let draft = Draft::begin(&dir.path().join("file")).unwrap();
            assert!(draft.temporary().exists(), "round {round}");
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        for left in fs::read_dir(dir.path()).unwrap().flatten() {
                            let _ = remove_unfinished(&left.path(), false);
                        }
                    }
                });
            }
            let begun = std::panic::catch_unwind(|| (0..4000).for_each(begin));
            ended.store(true, Ordering::Relaxed);
            begun.unwrap();
        });
    }
}
