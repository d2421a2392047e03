//! Where a copy is until it is complete: a directory with a name of its own, beside DEST.
//!
//! ```text
//!   .towa-backup-RANDOM/   made by mkdir, which takes no name that is there
//!     towa-backup          the marker: says whose it is, and is locked for as long as the backup lives
//!     copy                 the copy: a directory, or the file of the Java door's pool
//! ```
//!
//! What must always hold: only what a backup made is removed. A draft is known by its marker, which tells the draft's own inode
//! number and birth: a copy of a draft, or a directory that looks like one, has others. A backup that is killed before it has written that
//! leaves a directory with a name that it drew, and nothing in it but an empty marker; a backup whose directory is taken for such a
//! one, before it has its marker and the lock, finds that out and makes another. Files are made, named and removed by the
//! descriptors of directories that were made or checked: a name that another user lets lead elsewhere by now changes nothing there.

use std::collections::hash_map::RandomState;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use towa_heap::names::{IMAGE, LOG, SUPERBLOCK, SUPERBLOCK_NEW};
use towa_media::{FileMedium, Medium, detect, files};

use crate::failure::{FAILED, MISSING, coded};
use crate::report;

const PREFIX: &str = ".towa-backup-";
const MARKER: &str = "towa-backup";
const COPY: &str = "copy";
/// All that a copy of a directory holds.
const FILES: [&str; 5] = [SUPERBLOCK, SUPERBLOCK_NEW, IMAGE, LOG, towa_alloc::NAME];
/// Random names that are tried before it is said that none is free.
const TRIES: u32 = 64;

/// A draft of the copy that is to be at `dest`. Dropped before it is published, it is removed.
pub struct Draft {
    opened: Opened,
    path: PathBuf,
    dest: PathBuf,
}

/// A draft's directory, its marker with the lock, and the name in the directory above.
struct Opened {
    parent: File,
    name: OsString,
    directory: File,
    marker: File,
}

impl Draft {
    /// Looks whether something can be made at `dest`, removes the drafts of killed backups beside it, and makes a draft.
    pub fn of(dest: &Path) -> Result<Draft> {
        let place = report::path(dest);
        if dest.file_name().is_none() {
            return Err(coded(FAILED, format!("{place}: names no file; give the copy a name")));
        }
        if dest.symlink_metadata().is_ok() {
            return Err(coded(
                FAILED,
                format!("{place}: is there already; nothing was changed; choose another place for the copy"),
            ));
        }
        let parent = parent(dest);
        if !parent.is_dir() {
            return Err(coded(MISSING, format!("{}: is no directory; make it first", report::path(&parent))));
        }
        let above = File::open(&parent).with_context(|| report::path(&parent))?;
        remove_left(&parent, &above);
        let making = || format!("{}: making a place for the copy; choose another directory", report::path(&parent));
        let (opened, path) = Opened::make(&parent, above).with_context(making)?;
        Ok(Draft { opened, path, dest: dest.to_owned() })
    }

    /// The copy's path, for messages.
    pub fn copy(&self) -> PathBuf {
        self.path.join(COPY)
    }

    /// Where the copy is to be written, whatever its path leads to by now.
    pub fn there(&self) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.opened.directory.as_raw_fd())).join(COPY)
    }

    /// Makes the copy's directory, and opens it.
    pub fn make_pool_directory(&self) -> Result<Arc<dyn Medium>> {
        let (name, directory) = (c_name(COPY), &self.opened.directory);
        // SAFETY: the name is NUL-terminated, the descriptor is open.
        let made = done(unsafe { libc::mkdirat(directory.as_raw_fd(), name.as_ptr(), 0o700) });
        let opened = made.and_then(|()| open_at(directory, &name, libc::O_RDONLY | libc::O_DIRECTORY));
        let copy = opened.with_context(|| format!("{}: making it", report::path(&self.copy())))?;
        Ok(FileMedium::of(copy, self.copy(), detect(&self.there())?.guarantee)?)
    }

    /// Gives the copy its name, durably. What took that name in between is not replaced. Then the draft goes; a stop before
    /// that leaves a draft without a copy, which the next backup removes.
    pub fn publish(self) -> Result<()> {
        let place = report::path(&self.dest);
        let Opened { parent: above, directory, .. } = &self.opened;
        let (from, to) = (c_name(COPY), c_name(self.dest.file_name().unwrap_or_default()));
        let rename = |flags| {
            // SAFETY: both names are NUL-terminated, both descriptors open.
            done(unsafe { libc::renameat2(directory.as_raw_fd(), from.as_ptr(), above.as_raw_fd(), to.as_ptr(), flags) })
        };
        let renamed = rename(libc::RENAME_NOREPLACE).or_else(|error| match error.raw_os_error() {
            // A file system that cannot promise it (some network ones): nothing was there a moment ago.
            Some(libc::EINVAL) if self.dest.symlink_metadata().is_err() => rename(0),
            _ => Err(error),
        });
        match renamed {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                return Err(coded(
                    FAILED,
                    format!(
                        "{place}: came to be there while the copy was made; it was left alone; choose another place for the copy"
                    ),
                ));
            }
            renamed => renamed.with_context(|| format!("{place}: giving the copy its name"))?,
        }
        let synced = files::sync(above).and_then(|()| files::sync_dir_and_above(&parent(&self.dest)));
        synced.with_context(|| format!("{place}: making its name durable"))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = self.opened.remove();
    }
}

impl Opened {
    /// Makes a draft in `parent`, whose directory `above` is. Gives its path, too.
    fn make(parent: &Path, mut above: File) -> io::Result<(Opened, PathBuf)> {
        for _ in 0..TRIES {
            let name = OsString::from(format!("{PREFIX}{:016x}", RandomState::new().build_hasher().finish()));
            // SAFETY: the name is NUL-terminated, the descriptor is open.
            match done(unsafe { libc::mkdirat(above.as_raw_fd(), c_name(&name).as_ptr(), 0o700) }) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let opened = open_at(&above, &c_name(&name), libc::O_RDONLY | libc::O_DIRECTORY).and_then(|directory| {
                let marker = open_at(&directory, &c_name(MARKER), libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
                Ok((directory, marker))
            });
            let (directory, marker) = match opened {
                // Another backup took it for one that was left.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                opened => opened?,
            };
            // Not this user's number: a network file system may give root's files another owner.
            if directory.metadata()?.uid() != marker.metadata()?.uid() {
                unlink_at(&directory, &c_name(MARKER), 0)?;
                return Err(io::Error::other("another user has put a directory in the place of the one that was made"));
            }
            let path = parent.join(&name);
            let mut opened = Opened { parent: above, name, directory, marker };
            match opened.mark() {
                Ok(true) => return Ok((opened, path)),
                Ok(false) => above = opened.parent,
                Err(e) => {
                    let _ = opened.remove();
                    return Err(e);
                }
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Says whose the draft is. It is locked first: what is marked and not locked is a killed backup's. Where nothing can be
    /// locked, there is no mark, and a draft that is left stays. `false`: another backup removes it, or has.
    fn mark(&mut self) -> io::Result<bool> {
        match lock(&self.marker) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(_) => return Ok(true),
            Ok(()) if self.marker.metadata()?.nlink() == 0 => return Ok(false),
            Ok(()) => {}
        }
        self.marker.write_all(mark_of(&self.directory)?.as_bytes())?;
        Ok(true)
    }

    /// The draft `name` of a backup of this user that was killed; `None`: there is no such draft of that name.
    fn left(above: &File, name: OsString) -> Option<Opened> {
        let directory = open_at(above, &c_name(&name), libc::O_RDONLY | libc::O_DIRECTORY).ok()?;
        let mut marker = open_at(&directory, &c_name(MARKER), libc::O_RDWR | libc::O_NONBLOCK).ok()?;
        let me = my_uid();
        let (of_directory, of_marker) = (directory.metadata().ok()?, marker.metadata().ok()?);
        if [of_directory.uid(), of_marker.uid()] != [me; 2]
            || !of_marker.is_file()
            || of_marker.nlink() != 1
            || lock(&marker).is_err()
        {
            return None;
        }
        let mut said = String::new();
        (&mut marker).take(4096).read_to_string(&mut said).ok()?;
        let is_unmarked = said.is_empty() && is_drawn(&name);
        if !is_unmarked && said != mark_of(&directory).ok()? {
            return None;
        }
        Some(Opened { parent: above.try_clone().ok()?, name, directory, marker })
    }

    /// Removes the draft: the copy's files, the copy, the marker, the directory. A stop on the way leaves a marked draft for the
    /// next backup, or an empty directory.
    fn remove(&self) -> io::Result<()> {
        match open_at(&self.directory, &c_name(COPY), libc::O_RDONLY | libc::O_DIRECTORY) {
            Ok(copy) => {
                for name in FILES {
                    gone(unlink_at(&copy, &c_name(name), 0))?;
                }
                unlink_at(&self.directory, &c_name(COPY), libc::AT_REMOVEDIR)?;
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOTDIR) => unlink_at(&self.directory, &c_name(COPY), 0)?,
            Err(e) => gone(Err(e))?,
        }
        gone(unlink_at(&self.directory, &c_name(MARKER), 0))?;
        unlink_at(&self.parent, &c_name(&self.name), libc::AT_REMOVEDIR)
    }
}

/// Removes what killed backups left in `parent`, whose directory `above` is. What cannot be removed stays, and is in no way of
/// the next copy.
fn remove_left(parent: &Path, above: &File) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    for name in names.filter(|name| name.as_bytes().starts_with(PREFIX.as_bytes())) {
        let Some(left) = Opened::left(above, name.clone()) else {
            remove_empty(above, &name);
            continue;
        };
        let path = parent.join(name);
        let removed = if holds_no_more(&path) { left.remove() } else { Err(io::Error::other("there are other files in it")) };
        match removed {
            Ok(()) => log::info!("{}: a killed backup left it; removed", report::path(&path)),
            Err(e) => log::warn!("{}: a killed backup left it, and it is not removed: {e}; remove it by hand", report::path(&path)),
        }
    }
}

/// Removes `name` if it is an empty directory of this user with a name that a backup drew.
fn remove_empty(above: &File, name: &OsStr) {
    let owner = open_at(above, &c_name(name), libc::O_RDONLY | libc::O_DIRECTORY).and_then(|directory| directory.metadata());
    if is_drawn(name) && owner.is_ok_and(|status| status.uid() == my_uid()) {
        // One that is not empty stays.
        let _ = unlink_at(above, &c_name(name), libc::AT_REMOVEDIR);
    }
}

fn my_uid() -> libc::uid_t {
    // SAFETY: a call without arguments.
    unsafe { libc::geteuid() }
}

/// Whether a backup may have drawn this name.
fn is_drawn(name: &OsStr) -> bool {
    let drawn = name.as_bytes().strip_prefix(PREFIX.as_bytes());
    drawn.is_some_and(|drawn| drawn.len() == 16 && drawn.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
}

/// Whether the draft at `path`, which this user alone can change, holds a marker and a copy, and the copy the files of a pool: else
/// somebody put things there since.
fn holds_no_more(path: &Path) -> bool {
    let only = |path: &Path, expected: &[&str]| -> io::Result<bool> {
        let mut names = fs::read_dir(path)?.map(|entry| Ok::<_, io::Error>(entry?.file_name()));
        names.try_fold(true, |all, name| name.map(|name| all && expected.iter().any(|it| *it == name)))
    };
    let copy = path.join(COPY);
    let is_copy = match copy.symlink_metadata() {
        Ok(status) if status.is_dir() => only(&copy, &FILES).unwrap_or(false),
        Ok(status) => status.is_file(),
        Err(e) => e.kind() == ErrorKind::NotFound,
    };
    is_copy && only(path, &[MARKER, COPY]).unwrap_or(false)
}

/// What the marker in `directory` says.
fn mark_of(directory: &File) -> io::Result<String> {
    let status = directory.metadata()?;
    // Some file systems tell no birth.
    let born = status.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_nanos();
    Ok(format!("`towa backup` makes a copy of a pool here, and removes this directory.\ninode {} born {born}\n", status.ino()))
}

/// Takes the lock of an open file, unless another has it ([`ErrorKind::WouldBlock`]).
fn lock(file: &File) -> io::Result<()> {
    // SAFETY: a call on a descriptor that we own.
    done(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })
}

/// Opens `name` in `directory`, and not what a link there leads to.
fn open_at(directory: &File, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name is NUL-terminated, the descriptor is open; what the call gives is ours alone.
    unsafe {
        match libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, 0o600) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

fn unlink_at(directory: &File, name: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the name is NUL-terminated, the descriptor is open.
    done(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), flags) })
}

/// What is not there is gone.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

fn done(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_name(name: impl AsRef<OsStr>) -> CString {
    CString::new(name.as_ref().as_bytes()).expect("what names a file has no NUL")
}

fn parent(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests {
    use towa_media::Allocation;

    use super::*;

    /// What a backup leaves that is killed before its draft has a mark is removed; what only looks like that is not.
    #[test]
    fn a_draft_without_its_mark_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(format!("{PREFIX}{name}"));
        let [empty, unmarked, marked, full, named] =
            ["00112233445566aa", "00112233445566ab", "00112233445566ac", "00112233445566ad", "named"].map(at);
        [&empty, &unmarked, &marked, &full, &named].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        fs::write(unmarked.join(MARKER), "").unwrap();
        fs::write(marked.join(MARKER), "of another").unwrap();
        fs::write(full.join(MARKER), "").unwrap();
        fs::write(full.join("other"), "").unwrap();
        let draft = Draft::of(&dir.path().join("dest")).unwrap();
        let there = [&empty, &unmarked, &marked, &full, &named].map(|path| path.exists());
        assert_eq!(there, [false, false, true, true, true]);
        // Another one does not take a live draft for one that was left.
        let other = Draft::of(&dir.path().join("other")).unwrap();
        assert!(draft.path.join(MARKER).exists() && other.path.join(MARKER).exists());
    }

    /// The owner of the directory lets the draft's name lead elsewhere.
    #[test]
    fn a_draft_whose_name_leads_elsewhere_is_made_and_published_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (above, victim) = (dir.path().join("above"), dir.path().join("victim"));
        fs::create_dir_all(&above).unwrap();
        fs::create_dir_all(victim.join(COPY)).unwrap();
        let draft = Draft::of(&above.join("dest")).unwrap();
        fs::rename(&draft.path, above.join("moved")).unwrap();
        std::os::unix::fs::symlink(&victim, &draft.path).unwrap();
        let medium = draft.make_pool_directory().unwrap();
        medium.create(IMAGE, 4096, Allocation::Full).unwrap();
        draft.publish().unwrap();
        assert!(above.join("dest").join(IMAGE).exists());
        assert!(victim.join(COPY).read_dir().unwrap().next().is_none());
    }

    /// The path of the directory leads to another one by the time that the copy gets its name.
    #[test]
    fn a_copy_gets_its_name_in_the_directory_that_was_meant() {
        let dir = tempfile::tempdir().unwrap();
        let (above, victim) = (dir.path().join("above"), dir.path().join("victim"));
        [&above, &victim].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        let draft = Draft::of(&above.join("dest")).unwrap();
        draft.make_pool_directory().unwrap();
        fs::rename(&above, dir.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&victim, &above).unwrap();
        draft.publish().unwrap();
        assert!(dir.path().join("moved/dest").exists() && victim.read_dir().unwrap().next().is_none());
    }
}
