//! A store: the directory, on NVM where there is any, that holds the texts of split programs.
//!
//! ```text
//!   store/
//!   ├─ store.json              what this is
//!   ├─ lock                    held by whoever writes here
//!   ├─ ld-towa-xip.so          the loader of all programs that are split into this store
//!   ├─ towa-xip-audit.so       maps the texts of their libraries
//!   ├─ xyz/ab/cd….xyz          texts, by key (SHA-256 of the original)
//!   ├─ lib/ab/cd….xyz          links to them, by the state of a library's file: how its text is found
//!   └─ files/<hash>.json       which programs and libraries have their text here: what `gc` keeps
//! ```
//!
//! What must hold: a file here appears by a rename, whole and synced, and so do the names that lead to it; a program's text is in place, and entered under `files/`, before the
//! program is replaced, and goes only after; nobody but its owner can write to the directory, or to those it lies in.

mod collect;
mod entries;
mod identity;
mod readers;
pub(crate) mod safety;
mod text;
pub mod write;

use std::fs::{self, DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::file;
use crate::format::{AUDIT_NAME, LOADER_NAME, STORE_PATH_MAX, XYZ_LIBRARY};
use crate::split::Key;

pub use collect::{Collect, Collected, Removed, Use};
pub use entries::Entry;
pub use identity::{IDENTITY_LEN, Identity};
pub use readers::Readers;
pub use text::Text;

const MARKER: &str = "store.json";
const MAGIC: &str = "towa-xip-store";
const VERSION: u32 = 1;
/// How long others are waited for.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
struct Marker {
    magic: String,
    version: u32,
    /// Tells one store from another. What a newer version has in its place must not hide which version it is.
    #[serde(default)]
    uuid: String,
}

/// A store that was looked at, and found to be one.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// Whether the names that lead to it are known to be durable. Its maker may have been stopped before it synced them.
    pub(crate) rooted: AtomicBool,
}

/// The right to write to a store; nobody else has it meanwhile.
#[derive(Debug)]
pub struct Writing<'a> {
    pub(crate) store: &'a Store,
    lock: File,
}

impl Drop for Writing<'_> {
    /// Not by closing alone: a process that another thread starts has a copy of it until its own exec, and the lock as long.
    fn drop(&mut self) {
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl Store {
    /// Opens the store in `path`.
    ///
    /// # Errors
    /// There is none, or one that this version does not know.
    pub fn open(path: &Path) -> Result<Store> {
        let path = fs::canonicalize(path).map_err(|_| Error::NoStore { path: path.to_owned() })?;
        let marker = path.join(MARKER);
        let text = match file::read_in_store(&marker, 4096) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Err(Error::NoStore { path }),
            other => other?,
        };
        let not_usable = |what: String| Error::NotUsable { path: marker.clone(), what };
        match serde_json::from_slice::<Marker>(&text) {
            Ok(marker) if marker.magic != MAGIC => Err(not_usable("not a store of texts".into())),
            Ok(marker) if marker.version != VERSION => {
                Err(not_usable(format!("a store of version {}; this tool knows version {VERSION}", marker.version)))
            }
            Ok(_) => Ok(Store { path, rooted: AtomicBool::new(false) }),
            Err(e) => Err(not_usable(format!("damaged: {e}"))),
        }
    }

    /// Opens the store in `path`, or makes one there. Programs can be started from it only where it allows that: not on a file system
    /// that is mounted `noexec`, nor where others can write.
    ///
    /// # Errors
    /// It is not suited, or not empty and no store.
    pub fn open_or_create(path: &Path) -> Result<Store> {
        let store = match Store::open(path) {
            Err(Error::NoStore { .. }) => Store::create(path)?,
            other => other?,
        };
        safety::check_owned(&store.path)?;
        safety::check_executable(&store.path)?;
        store.write()?.put_loader()?;
        Ok(store)
    }

    fn create(path: &Path) -> Result<Store> {
        let too_long = || Err(Error::Wrong(format!("the path of the store is longer than {STORE_PATH_MAX} bytes")));
        // Before anything is made; and again when links are followed.
        if std::path::absolute(path).is_ok_and(|path| path.as_os_str().len() > STORE_PATH_MAX) {
            return too_long();
        }
        // Nothing is made where it could not be used.
        let parent = std::path::absolute(path).map_err(Error::io(path, "finding"))?;
        let there = parent.ancestors().find_map(|above| fs::canonicalize(above).ok()).unwrap_or("/".into());
        let sticky = there.metadata().is_ok_and(|about| about.mode() & 0o1000 != 0);
        if !sticky {
            safety::check_owned(&there)?;
        }
        safety::check_executable(&there)?;
        make_folders(path)?;
        let path = fs::canonicalize(path).map_err(Error::io(path, "opening"))?;
        if path.as_os_str().len() > STORE_PATH_MAX {
            return too_long();
        }
        safety::check_owned(&path)?;
        safety::check_executable(&path)?;
        refuse_foreign(&path)?;
        let store = Store { path, rooted: AtomicBool::new(false) };
        let writing = store.write()?;
        // Another creator may have been first.
        if !store.path.join(MARKER).exists() {
            let marker = Marker { magic: MAGIC.into(), version: VERSION, uuid: uuid::Uuid::new_v4().to_string() };
            writing.put(&store.path.join(MARKER), &serde_json::to_vec(&marker).expect("JSON of strings"), 0o644)?;
        }
        drop(writing);
        Ok(store)
    }

    /// Where it is: absolute, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the text with `key` is, or would be.
    pub fn text_path(&self, key: &Key) -> PathBuf {
        self.path.join("xyz").join(hex(&key[..1])).join(hex(&key[1..16]) + ".xyz")
    }

    /// Where the link to the text of a library is, or would be, whose file is in this state.
    pub fn library_path(&self, identity: &Identity) -> PathBuf {
        let (first, rest) = identity.bytes().split_at(1);
        self.path.join("lib").join(hex(first)).join(hex(rest) + ".xyz")
    }

    /// The text of the library whose file is in this state, if the store has it.
    pub fn library_text(&self, identity: &Identity) -> Option<Text> {
        let link = fs::read_link(self.library_path(identity)).ok()?;
        let path = self.path.join(link.strip_prefix("../..").ok()?);
        let text = Text::open(&path).ok()?;
        (self.text_path(&text.record.key) == path && text.record.flags & XYZ_LIBRARY != 0).then_some(text)
    }

    /// The user whose store it is.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn owner(&self) -> Result<u32> {
        fs::metadata(&self.path).map(|about| about.uid()).map_err(Error::io(&self.path, "looking at"))
    }

    /// The loader.
    pub fn loader_path(&self) -> PathBuf {
        self.path.join(LOADER_NAME)
    }

    /// The audit object.
    pub fn audit_path(&self) -> PathBuf {
        self.path.join(AUDIT_NAME)
    }

    /// Waits for the right to write, for a while.
    ///
    /// # Errors
    /// Somebody else has it, and does not end.
    pub fn write(&self) -> Result<Writing<'_>> {
        safety::check_owned(&self.path)?;
        let path = self.path.join("lock");
        // Nobody else can open it, and so nobody else can hold it.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut options = File::options();
        let lock = options.create(true).write(true).truncate(false).mode(0o600).custom_flags(flags).open(&path);
        let lock = lock.map_err(Error::io(&path, "opening"))?;
        if !lock.metadata().is_ok_and(|about| about.is_file()) {
            return Err(Error::NotUsable { path, what: "not a regular file".into() });
        }
        lock_patiently(&lock, &self.path)?;
        Ok(Writing { store: self, lock })
    }

    /// Whether only root, or this user, could change what programs execute from there.
    pub fn is_safe(&self) -> bool {
        safety::check_owned(&self.path).is_ok()
    }

    /// Checks that a program which runs with more rights than its user's may have its text here: nobody but root can change it.
    ///
    /// # Errors
    /// Somebody could.
    pub fn check_for_privileged(&self) -> Result<()> {
        safety::check_root_owned(&self.path)
    }
}

/// Makes the directory `path`, and those above that are not there, for everybody to enter, whatever this process's umask: programs that all
/// may run look for their text there.
fn make_folders(path: &Path) -> Result<()> {
    let absolute = std::path::absolute(path).map_err(Error::io(path, "finding"))?;
    let missing: Vec<&Path> = absolute.ancestors().take_while(|above| fs::metadata(above).is_err()).collect();
    for folder in missing.into_iter().rev() {
        match DirBuilder::new().mode(0o755).create(folder) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
            other => other.map_err(Error::io(folder, "making the store"))?,
        }
        let made = File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(folder);
        let set = made.and_then(|made| made.set_permissions(fs::Permissions::from_mode(0o755)));
        set.map_err(Error::io(folder, "setting permissions"))?;
    }
    Ok(())
}

/// Whether `path` lies in a store, whichever.
pub fn is_within_one(path: &Path) -> bool {
    path.ancestors().skip(1).any(|above| above.join(MARKER).is_file() && Store::open(above).is_ok())
}

/// A directory in which there is anything that a creator of a store would not have put there stays as it is.
fn refuse_foreign(path: &Path) -> Result<()> {
    let ours =
        |name: &[u8]| ["lock", MARKER].iter().any(|own| own.as_bytes() == name) || name.starts_with(write::TEMPORARY.as_bytes());
    for entry in fs::read_dir(path).map_err(Error::io(path, "reading"))? {
        let name = entry.map_err(Error::io(path, "reading"))?.file_name();
        if !ours(name.as_bytes()) {
            let what = format!("not empty, and no store of texts (there is {name:?}); name an empty or new directory");
            return Err(Error::NotUsable { path: path.to_owned(), what });
        }
    }
    Ok(())
}

/// Locks `file`, which is that of `path`; waits for whoever has it, for half a minute.
fn lock_patiently(file: &File, path: &Path) -> Result<()> {
    const NAP: Duration = Duration::from_millis(20);
    let began = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => std::thread::sleep(NAP),
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::Busy { path: path.to_owned() }),
            Err(e) => return Err(Error::io(path, "locking")(e.into())),
        }
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
