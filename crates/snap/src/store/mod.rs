//! **store**: a directory of checkpoints, each complete in itself, sharing what they have in common.
//!
//! ```text
//!   DIR/             0700
//!     store          what the directory is: its uuid, and how its checkpoints share pages
//!     last-9         the greatest number that there ever was, where its checkpoint was removed
//!     lock           flocked by whoever takes, removes, marks or merges checkpoints
//!     7/             checkpoint number 7, complete; its files are 0600
//!       manifest     its identity, when it was taken, which files it holds, what its writer had to say
//!       index        where each page lies, and its checksum
//!       memory       reflink: one sparse file, a clone of that of the checkpoint before with the changed pages written over it
//!       pool         reflink, of a process in mode `nv`: a clone of the file that its memory lies in
//!       pack-*       hard links: files of pages that are never written again, one name in each checkpoint that uses them
//!       files/0      copies of files of the process (clones where that can be done)
//!       consumed     there once it has been used up by a once-only restart
//!     8.tmp/         being written, or being removed: the next writer removes it, nobody else looks at it
//! ```
//!
//! ```text
//!   begin ──► DIR synced, what is unfinished removed ──► N.tmp: files, index, manifest ──► all synced ──► renamed to N
//!         ──► DIR synced ──► the number is told
//! ```
//!
//! What must always hold: a directory whose name is a number is complete and durable, and is never written again but for `consumed`;
//! a number is never used again, and what is built on a checkpoint names it by its identity;
//! the file system's own counts, of blocks (reflink) or of names (hard links), say what is still in use, so that checkpoints can be
//! removed in any order, by anybody; what is damaged, foreign or newer is refused and left as it is. Readers take no lock: they open
//! all files of a checkpoint at once, and when it was removed or replaced meanwhile, look again.

mod checkpoint;
mod content;
mod draft;
mod id;
mod index;
mod lock;
mod manifest;
mod mark;
mod merge;
mod names;
mod opening;
mod overlay;
mod pool;
mod remove;
mod room;
mod sealed;
mod sharing;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytemuck::{Pod, Zeroable, bytes_of};
use towa_media::files;
use uuid::Uuid;

pub use checkpoint::{Checkpoint, Stretch};
pub use content::{Limit, Pieces, catch};
pub use draft::{Aside, Draft};
pub use id::CheckpointId;
pub use manifest::Attached;
pub use merge::{Limits, Merged};
pub(crate) use pool::give_back_all_but;

use crate::{Error, Result};
use lock::Lock;
use sealed::{Fields, Kind, Owner};
use sharing::Space;

const STORE: &str = "store";
const STORE_NEW: &str = "store.new";
const MANIFEST: &str = "manifest";
const INDEX: &str = "index";
const FILES: &str = "files";
/// Copies of files, until it is known whether they belong to the checkpoint.
const ASIDE: &str = "aside";
const CONSUMED: &str = "consumed";
/// The end of the names of what is unfinished.
const UNFINISHED: &str = ".tmp";

/// How the checkpoints of a directory share pages. Decided once, when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The file system clones files.
    Reflink,
    /// Files of pages with a name in each checkpoint that uses them; copies, where a file can have but one name.
    HardLinks,
}

/// Which checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one with the greatest number.
    Newest,
    /// This one.
    Number(u64),
}

/// What a new checkpoint starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// All pages are zeros.
    Empty,
    /// All pages are those of this checkpoint. Another one that has its number is none.
    On(CheckpointId),
}

/// What a list says of a checkpoint.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Summary {
    /// Its number.
    pub number: u64,
    /// When it was taken; unknown if it is damaged.
    pub taken: Option<SystemTime>,
    /// Pages that are not zeros.
    pub pages: u64,
    /// Bytes on the medium that are freed with it.
    pub bytes_own: u64,
    /// Bytes on the medium that others use too: other checkpoints, or the files that were attached.
    pub bytes_shared: u64,
    /// Whether it was used up by a once-only restart.
    pub consumed: bool,
    /// Why it cannot be used, if it cannot. Not being damaged here does not mean that each page was looked at
    /// ([`Checkpoint::verify`] does).
    pub damaged: Option<String>,
}

/// A directory of checkpoints.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    uuid: Uuid,
    mode: Mode,
    /// Whether the names that lead to `dir` are known to be durable.
    rooted: Arc<AtomicBool>,
}

/// The body of file `store`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StoreBody {
    /// 1 reflink, 2 hard links.
    mode: u32,
    zero: u32,
    /// Seconds since 1970.
    created: u64,
}

impl Store {
    /// Opens the directory at `dir`.
    pub fn open(dir: impl AsRef<Path>) -> Result<Store> {
        let dir = std::path::absolute(&dir).map_err(|e| failed("looking for", dir.as_ref(), e))?;
        let path = dir.join(STORE);
        let Some(file) = opening::regular(&path)? else {
            return match std::fs::metadata(&dir) {
                Ok(_) => Err(not_usable(&dir, "is no directory of checkpoints: there is no file `store` in it")),
                Err(_) => Err(Error::NoCheckpoint { dir, what: "there is no such directory of checkpoints".into() }),
            };
        };
        let (owner, body) = sealed::read(&file, &path, Kind::Store, None, 0)?;
        let body = Fields(&body).one().filter(|_| body.len() == size_of::<StoreBody>());
        let mode = match body {
            Some(StoreBody { mode: 1, zero: 0, .. }) => Mode::Reflink,
            Some(StoreBody { mode: 2, zero: 0, .. }) => Mode::HardLinks,
            _ => return Err(not_usable(&path, "says of itself what this program does not understand")),
        };
        Ok(Store { dir, uuid: owner.store, mode, rooted: Arc::default() })
    }

    /// Opens the directory at `dir`, or makes it. One that is there, holds something and is no directory of checkpoints is refused.
    pub fn open_or_create(dir: impl AsRef<Path>) -> Result<Store> {
        let dir = dir.as_ref();
        if std::fs::metadata(dir).is_ok_and(|status| !status.is_dir()) {
            return Err(not_usable(dir, "is no directory"));
        }
        if std::fs::exists(dir.join(STORE)).map_err(|e| failed("looking for", dir, e))? {
            return Self::open(dir);
        }
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed("making", dir, e)),
        }
        refuse_foreign(dir)?;
        let Some(_lock) = Self::lock_to_create(dir)? else { return Self::open(dir) };
        // Somebody may have made it while we came for the lock.
        if std::fs::exists(dir.join(STORE)).map_err(|e| failed("looking for", dir, e))? {
            return Self::open(dir);
        }
        // What an interrupted creation left holds nothing: without `store` nobody begins a checkpoint.
        remove_if_there(&dir.join(STORE_NEW))?;
        let mode = if can_clone(dir)? { 1 } else { 2 };
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let body = StoreBody { mode, zero: 0, created };
        // The name `store` appears when its bytes are durable; stopped before that, the next creation starts anew; after it, all is
        // there. The names that lead here are synced before anything is built on them.
        let owner = Owner { store: Uuid::new_v4(), checkpoint: CheckpointId::NONE };
        sealed::write(&dir.join(STORE_NEW), Kind::Store, &owner, bytes_of(&body))?;
        std::fs::rename(dir.join(STORE_NEW), dir.join(STORE)).map_err(|e| failed("naming", &dir.join(STORE), e))?;
        files::sync_dir_and_above(dir).map_err(|e| failed("syncing", dir, e))?;
        Self::open(dir)
    }

    /// The lock of a directory that is not made yet; `None` if it is, meanwhile: whoever has the lock is just making it.
    fn lock_to_create(dir: &Path) -> Result<Option<Lock>> {
        let began = Instant::now();
        loop {
            match Lock::take(dir) {
                Err(Error::Busy { .. }) if dir.join(STORE).exists() => return Ok(None),
                Err(Error::Busy { .. }) if began.elapsed() < Duration::from_secs(5) => std::thread::sleep(Duration::from_millis(1)),
                other => return other.map(Some),
            }
        }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How its checkpoints share pages.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The numbers of all checkpoints, ascending.
    pub fn numbers(&self) -> Result<Vec<u64>> {
        let mut numbers: Vec<u64> = self.entries()?.iter().filter_map(|name| number_of(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// What there is, by number. A damaged checkpoint is in the list, and says why.
    pub fn list(&self) -> Result<Vec<Summary>> {
        let mut list = Vec::new();
        for number in self.numbers()? {
            match self.load(number) {
                Ok(checkpoint) => {
                    let Space { own, shared } = checkpoint.space()?;
                    list.push(Summary {
                        number,
                        taken: Some(checkpoint.taken()),
                        pages: checkpoint.pages().count(),
                        bytes_own: own,
                        bytes_shared: shared,
                        consumed: checkpoint.consumed(),
                        damaged: None,
                    });
                }
                // Removed since we read the names.
                Err(Error::NoCheckpoint { .. }) => {}
                Err(e @ Error::NotUsable { .. }) => {
                    let consumed = self.path(number).join(CONSUMED).exists();
                    let damaged = Some(e.to_string());
                    list.push(Summary { number, taken: None, pages: 0, bytes_own: 0, bytes_shared: 0, consumed, damaged });
                }
                Err(e) => return Err(e),
            }
        }
        self.offer();
        Ok(list)
    }

    /// Opens a checkpoint to read. It can be read to the end whatever is removed meanwhile. The newest is refused if it is damaged:
    /// whether an older one will do is not ours to decide.
    pub fn open_checkpoint(&self, which: Which) -> Result<Checkpoint> {
        let checkpoint = match which {
            Which::Number(number) => self.load(number),
            Which::Newest => loop {
                let Some(&newest) = self.numbers()?.last() else {
                    return Err(Error::NoCheckpoint { dir: self.dir.clone(), what: "there is no checkpoint yet".into() });
                };
                match self.load(newest) {
                    // Removed since we read the names: there is another newest.
                    Err(Error::NoCheckpoint { .. }) => {}
                    other => break other,
                }
            },
        }?;
        self.offer();
        Ok(checkpoint)
    }

    /// What was seen is told now: so it must be durable. Its writer may have been killed between giving it its name and syncing that.
    fn offer(&self) {
        if let Err(e) = self.sync_names() {
            log::warn!("{e}; what is there may not outlive a power failure");
        }
    }

    fn load(&self, number: u64) -> Result<Checkpoint> {
        let path = self.path(number);
        loop {
            let Some(folder) = opening::folder(&path)? else { return Err(self.no_checkpoint(number)) };
            match Checkpoint::open(self, number, &folder) {
                // The files of a checkpoint go when it is removed, or replaced by a merge: then they are not missing but elsewhere.
                Err(_) if !is_still(&folder, &path)? => {}
                other => return other,
            }
        }
    }

    /// The checkpoint of this identity. One that was removed is not taken for another that has come to its number.
    fn load_exactly(&self, id: CheckpointId) -> Result<Checkpoint> {
        let there = self.load(id.number)?;
        if there.id() == id {
            return Ok(there);
        }
        let what = format!("there is no checkpoint {id}: its number is that of another one ({})", there.id().uuid);
        Err(Error::NoCheckpoint { dir: self.dir.clone(), what })
    }

    fn no_checkpoint(&self, number: u64) -> Error {
        Error::NoCheckpoint {
            dir: self.dir.clone(),
            what: format!("there is no checkpoint {number} (`towa snap list` shows what there is)"),
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(number.to_string())
    }

    fn unfinished(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number}{UNFINISHED}"))
    }

    fn entries(&self) -> Result<Vec<String>> {
        let all = std::fs::read_dir(&self.dir).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default())).collect::<io::Result<_>>()
        });
        all.map_err(|e| failed("listing", &self.dir, e))
    }

    /// Takes the lock of those who change something, makes durable what others before did last, and removes what they left unfinished.
    ///
    /// A process that was killed may have made the directory, named, removed or replaced a checkpoint, and not synced that: it is seen, and a
    /// power failure undoes it. So nothing is built on it, and no file goes that it would need if it came back, before it is durable.
    fn lock(&self) -> Result<Lock> {
        let lock = Lock::take(&self.dir)?;
        if self.rooted.load(Ordering::Relaxed) {
            self.sync_names()?;
        } else {
            names::sync_with_those_above(&self.dir).map_err(|e| failed("syncing", &self.dir, e))?;
            self.rooted.store(true, Ordering::Relaxed);
        }
        self.clear_unfinished(&lock)?;
        Ok(lock)
    }

    /// Removes what is unfinished. All names must be durable.
    fn clear_unfinished(&self, _lock: &Lock) -> Result<()> {
        for name in self.entries()? {
            if name.strip_suffix(UNFINISHED).and_then(number_of).is_some() {
                remove::clear(&self.dir.join(name))?;
            }
        }
        Ok(())
    }

    #[track_caller]
    fn sync_names(&self) -> Result<()> {
        names::sync(&self.dir).map_err(|e| failed("syncing", &self.dir, e))
    }
}

/// The number that a checkpoint of this name has; names such as `07` are none.
fn number_of(name: &str) -> Option<u64> {
    name.parse().ok().filter(|number: &u64| number.to_string() == name)
}

/// Whether the directory open as `folder` is the one at `path`.
fn is_still(folder: &File, path: &Path) -> Result<bool> {
    let ours = folder.metadata().map_err(|e| failed("reading the status of", path, e))?;
    match std::fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("reading the status of", path, e)),
    }
}

/// Refuses a directory with anything in it but what an interrupted creation leaves.
fn refuse_foreign(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir).map_err(|e| failed("listing", dir, e))? {
        let entry = entry.map_err(|e| failed("listing", dir, e))?;
        let name = entry.file_name();
        let ours = [lock::LOCK, STORE, STORE_NEW, PROBE, PROBE_CLONE].iter().any(|ours| name == *ours);
        let foreign_lock = name == lock::LOCK && entry.metadata().map_or(0, |status| status.len()) > 0;
        if !ours || foreign_lock {
            return Err(not_usable(dir, format!("is no directory of checkpoints and holds {}; name another one", name.display())));
        }
    }
    Ok(())
}

const PROBE: &str = "probe.new";
const PROBE_CLONE: &str = "probe-clone.new";

/// Whether the file system clones files, by trying.
fn can_clone(dir: &Path) -> Result<bool> {
    let (from, to) = (dir.join(PROBE), dir.join(PROBE_CLONE));
    remove_if_there(&from)?;
    remove_if_there(&to)?;
    let (file, empty) = (sharing::create(&from)?, sharing::create(&to)?);
    let cloned = io::Write::write_all(&mut &file, &[1; 1 << 16]).and_then(|()| sharing::clone(&file, &empty));
    remove_if_there(&from)?;
    remove_if_there(&to)?;
    cloned.map_err(|e| failed("cloning a file in", dir, e))
}

fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("removing", path, e)),
        _ => Ok(()),
    }
}

fn not_usable(path: &Path, what: impl Into<String>) -> Error {
    Error::NotUsable { path: path.to_owned(), what: what.into() }
}

/// The error for what the system said to `doing` something with `path`.
fn failed(doing: &str, path: &Path, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Error::Full { path: path.to_owned() },
        _ if source.kind() == io::ErrorKind::StorageFull => Error::Full { path: path.to_owned() },
        _ => Error::io(format!("{doing} {}", path.display()), source),
    }
}
