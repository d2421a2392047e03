//! Where pools are: the default directory, the options that several commands share, and who uses a pool now.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use towa_media::{Kind, holder, open_dir};

use crate::report;

/// File in a pool's directory that says where its server listens. A hint for people and `towa stats`: nothing depends on it.
const ADDRESS: &str = "serve.address";
/// Its name until it is whole.
const ADDRESS_NEW: &str = "serve.address.new";

/// Lines of `stats` by which a server names its pool.
pub const STAT_UUID: &str = "towa_pool_uuid";
/// The pool's directory, without links.
pub const STAT_PATH: &str = "towa_pool_path";

/// A medium as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MediumArg {
    /// Durable memory: a file system mounted with DAX.
    Dax,
    /// Any file system; durable by fdatasync.
    File,
    /// Memory (tmpfs): survives the process, not the machine.
    Ram,
}

impl From<MediumArg> for Kind {
    fn from(arg: MediumArg) -> Kind {
        match arg {
            MediumArg::Dax => Kind::Dax,
            MediumArg::File => Kind::File,
            MediumArg::Ram => Kind::Ram,
        }
    }
}

/// The name of a medium.
pub fn medium_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Dax => "dax",
        Kind::File => "file",
        Kind::Ram => "ram",
        Kind::Sim => "sim",
    }
}

/// `towa serve`'s pool when none is named: `$XDG_STATE_HOME/towa/serve`, or `~/.local/state/towa/serve`. First the directory that the
/// environment names, then the pool's below it.
pub fn default_dir() -> Result<(PathBuf, PathBuf)> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let below = |base: PathBuf, rest: &str| (base.clone(), base.join(rest));
    let state = absolute("XDG_STATE_HOME").map(|base| below(base, "towa/serve"));
    let Some(found) = state.or_else(|| Some(below(absolute("HOME")?, ".local/state/towa/serve"))) else {
        bail!("no directory for the pool: neither XDG_STATE_HOME nor HOME is set; name one with --pool DIR");
    };
    Ok(found)
}

/// Makes the directories between `base`, which the environment names, and the pool's own, and their names durable: they may be missing
/// on a fresh account. Those that are there already may come from a start that was killed half-way: durable too.
pub fn make_parents(base: &Path, dir: &Path) -> Result<()> {
    let base = base.ancestors().find(|level| level.is_dir()).unwrap_or(Path::new("/"));
    make_levels(base, dir, &mut |parent| open_dir(parent, Some(Kind::File), false)?.sync_names())
}

/// Calls `sync` with each directory that got, or may just have got, an entry.
fn make_levels(base: &Path, dir: &Path, sync: &mut dyn FnMut(&Path) -> towa_media::Result<()>) -> Result<()> {
    let place = |path: &Path| format!("{}: the directory for the pool cannot be made", path.display());
    let mut levels: Vec<&Path> = dir.ancestors().take_while(|level| *level != base).collect();
    while let Some(level) = levels.pop() {
        // The pool makes its own.
        if level != dir {
            match fs::create_dir(level) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(e).with_context(|| place(level)),
                _ => {}
            }
        }
        if let Some(parent) = level.parent() {
            sync(parent).with_context(|| place(level))?;
        }
    }
    Ok(())
}

/// Whether some of a pool's files are in `dir`; an error where one may not look.
pub fn looks_like_pool(dir: &Path) -> Result<bool> {
    use towa_heap::names::{IMAGE, LOG, SUPERBLOCK};
    for name in [SUPERBLOCK, IMAGE, LOG] {
        let path = dir.join(name);
        if path
            .try_exists()
            .or_else(|e| if e.raw_os_error() == Some(libc::ELOOP) { Ok(true) } else { Err(e) })
            .with_context(|| format!("{}: looking for a pool there", dir.display()))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A small file of a pool's directory, whole. Only a regular file: nothing is followed, and nobody is waited for.
fn read_small(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(8192).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The process that has the pool in `dir` open, as the kernel's table of locks says: asking for the lock would disturb somebody
/// who opens it at the same moment.
pub fn owner(dir: &Path) -> Option<u32> {
    let text = read_small(&dir.join("lock")).unwrap_or_default();
    let said = String::from_utf8_lossy(&text).split_whitespace().next().and_then(|word| word.parse::<u32>().ok());
    // The superblock's (an arena's) decides. The directory's, which others can take, is held beside it; that of the note is, too, and takes its
    // place where directories cannot be locked.
    let of = |name: &str| fs::symlink_metadata(dir.join(name));
    let places = [of(towa_heap::names::SUPERBLOCK), of(towa_alloc::NAME), fs::metadata(dir), of("lock")];
    places.into_iter().flatten().find_map(|place| holder::of(place.dev(), place.ino(), said))
}

/// The note of where a pool's server listens; taken back when dropped, if it is still this one.
#[derive(Debug)]
pub struct Note {
    path: PathBuf,
    /// Kept open, so that its inode's number is no other file's meanwhile.
    file: fs::File,
}

impl Note {
    /// Says in the pool's directory where its server listens. Made under another name, then renamed: whatever has the name now, a
    /// link or a FIFO among them, is replaced and not written through. Without it all works but `towa stats POOL`.
    pub fn of_address(dir: &Path, address: &OsStr) -> Option<Note> {
        let path = dir.join(ADDRESS);
        let result = Note::write(dir, &path, address);
        if let Err(e) = &result {
            log::warn!("{}: not written, so `towa stats POOL` will not find the server: {e}", report::path(&path));
        }
        result.ok()
    }

    fn write(dir: &Path, path: &Path, address: &OsStr) -> std::io::Result<Note> {
        let new = dir.join(ADDRESS_NEW);
        // What a start that was killed here has left. (A link is removed itself, not what it leads to.)
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&new)?;
        let written = file.write_all(address.as_bytes()).and_then(|()| file.write_all(b"\n")).and_then(|()| fs::rename(&new, path));
        if let Err(e) = written {
            let _ = fs::remove_file(&new);
            return Err(e);
        }
        Ok(Note { path: path.to_owned(), file })
    }

    /// Whether the name is still that of this file: the directory may have been replaced by another server's.
    fn is_there(&self) -> bool {
        let ours = |(ours, there): (fs::Metadata, fs::Metadata)| (ours.dev(), ours.ino()) == (there.dev(), there.ino());
        self.file.metadata().ok().zip(fs::symlink_metadata(&self.path).ok()).is_some_and(ours)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where the server of the pool in `dir` listens, or last did.
pub fn noted_address(dir: &Path) -> Option<OsString> {
    let mut text = read_small(&dir.join(ADDRESS)).ok()?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    (!text.is_empty() && text.len() < 4096).then(|| OsString::from_vec(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_note_replaces_what_it_finds_and_goes_when_it_is_still_there() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join(ADDRESS), dir.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        let is_note = |text: &str| {
            let meta = fs::symlink_metadata(&path).unwrap();
            assert!(meta.is_file() && meta.permissions().mode() & 0o777 == 0o600, "{meta:?}");
            assert_eq!(noted_address(dir.path()).as_deref(), Some(OsStr::new(text)));
        };
        for name in [ADDRESS, ADDRESS_NEW] {
            symlink(&victim, dir.path().join(name)).unwrap();
            assert_eq!(noted_address(dir.path()), None, "a link is not followed");
            let note = Note::of_address(dir.path(), OsStr::new("one:1")).unwrap();
            is_note("one:1");
            drop(note);
            assert!(!path.exists() && fs::read_to_string(&victim).unwrap() == "mine");
        }
        let fifo = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is NUL-terminated.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        assert_eq!(noted_address(dir.path()), None, "a FIFO is not waited for");
        let first = Note::of_address(dir.path(), OsStr::new("one:1")).unwrap();
        let second = Note::of_address(dir.path(), OsStr::new("two\n:2")).unwrap();
        drop(first);
        is_note("two\n:2");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn each_new_level_has_its_name_made_durable() {
        let dir = tempfile::tempdir().unwrap();
        let pool = dir.path().join("a/b/c");
        for _ in 0..2 {
            let mut synced = Vec::new();
            let mut sync = |parent: &Path| {
                synced.push(parent.to_owned());
                Ok(())
            };
            make_levels(dir.path(), &pool, &mut sync).unwrap();
            assert_eq!(synced, [dir.path().to_owned(), dir.path().join("a"), dir.path().join("a/b")]);
        }
        assert!(pool.parent().unwrap().is_dir() && !pool.exists());
        make_parents(&dir.path().join("not/there"), &dir.path().join("not/there/yet/pool")).unwrap();
        assert!(dir.path().join("not/there/yet").is_dir());
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(make_parents(&dir.path().join("file"), &dir.path().join("file/x/pool")).is_err());
    }
}
