//! The pool: the file that the memory of a process in mode `nv` lies in.
//!
//! ```text
//!   offset = address, where that is free          beyond all addresses: for what cannot have its own place, since
//!   0 ............................. 2^47          something that was moved (mremap) has it still ... 2^56, the file's end
//! ```
//!
//! That each page's offset is its address lets neighbours be one mapping again, and needs no list of what is free: what mappings the process
//! has says it. The file is sparse, so that its length costs nothing; and it is longer than any mapping of it reaches, so that none ends
//! beyond it.
//!
//! It has no name. Whoever is killed, and if power fails, the file system gives its space back as soon as nobody has it mapped or open.
//!
//! A write-back that fails makes the kernel forget that pages were changed: the process sees them, for as long as they are in the cache, and
//! a clone holds what was there before. No later sync or clone tells. So the first error is the last: the pool is *poisoned*, and no checkpoint is
//! taken of it any more.
//!
//! What must always hold: an offset is in the place of one page of memory at most; of a pool of which a write-back may have failed since it
//! was made there is no checkpoint that was begun later.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, fallocate, ioctl_ficlone};
use rustix::io::Errno;
use towa_media::files;

use crate::error::{Error, Result};
use crate::memory::maps::{self, Mapping};
use crate::pages::{PAGE, PageSet, Pages};
use crate::store::{self, Checkpoint, Mode, Store};
use crate::sys::{fd, writeback};

/// Addresses end here.
const ADDRESSES: u64 = 1 << 47;
const LEN: u64 = 1 << 56;
/// Space that is left free besides, for what the file system and the checkpoint itself need.
const SPARE: u64 = 4 << 20;

/// The file.
#[derive(Debug)]
pub struct Pool {
    dir: PathBuf,
    file: File,
    /// Opened apart: an error of a write-back is told once to each opening, and the process, which has the other one, may sync its memory, too.
    witness: File,
    /// The first error of a write-back.
    poisoned: OnceLock<String>,
    /// How mappings of it are known: device and inode, as `/proc/PID/maps` says them.
    known_by: ((u32, u32), u64),
}

impl Pool {
    /// An empty one, beside the checkpoints of `store`.
    pub fn create(store: &Store) -> Result<Pool> {
        if store.mode() != Mode::Reflink {
            return Err(Error::Unsupported {
                what: format!("{} is on a file system that does not clone files", store.dir().display()),
                remedy: "mode nv takes XFS or btrfs, best XFS on persistent memory with DAX; mode dram works everywhere",
            });
        }
        let pool = Pool::unnamed(store.dir())?;
        pool.file.set_len(LEN).map_err(|e| pool.failed("setting the length of", e))?;
        Ok(pool)
    }

    /// One with the content of a checkpoint's, which is not copied; `None` if that has none.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Pool>> {
        let Some(from) = checkpoint.pool() else { return Ok(None) };
        let dir = checkpoint.path().parent().unwrap_or(Path::new("/"));
        let pool = Pool::unnamed(dir)?;
        ioctl_ficlone(&pool.file, from).map_err(|e| pool.failed("cloning to", e.into()))?;
        Ok(Some(pool))
    }

    fn unnamed(dir: &Path) -> Result<Pool> {
        let file = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(dir);
        let file = file.map_err(|e| Error::io(format!("a file without a name in {}", dir.display()), e))?;
        let known_by = known_by(&file)?;
        let witness = fd::reopened(&file).map_err(|e| Error::io("opening again the file for the memory of the process", e))?;
        Ok(Pool { dir: dir.to_owned(), file, witness, poisoned: OnceLock::new(), known_by })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether a mapping is of it.
    pub fn has(&self, mapping: &Mapping) -> bool {
        mapping.shared && (mapping.device, mapping.inode) == self.known_by
    }

    /// Which pages of a process's memory lie where in it, by address.
    pub fn shown(&self, mappings: &[Mapping]) -> Vec<(Pages, u64)> {
        mappings.iter().filter(|mapping| self.has(mapping)).map(|mapping| (mapping.pages.clone(), mapping.offset / PAGE)).collect()
    }

    /// Writes what is dirty, so that cloning does not wait for it.
    pub fn sync(&self) -> Result<()> {
        self.check()?;
        files::sync(&self.witness).map_err(|e| self.poison(e))
    }

    /// Makes `to` a clone of it as it is now: `clone` does that.
    pub(crate) fn cloned(&self, clone: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        self.check()?;
        let cloned = clone(&self.file);
        // Cloning writes what is dirty first. For want of room it fails before that.
        if let Err(Error::Io { source, .. }) = &cloned {
            self.poisoned.get_or_init(|| source.to_string());
        }
        cloned
    }

    /// Whether all that was on its way to the device has come there. Waits for no page, and begins to write none.
    pub(crate) fn check_written(&self) -> Result<()> {
        self.check()?;
        writeback::error_of(&self.witness).map_err(|e| self.poison(e))
    }

    fn poison(&self, source: std::io::Error) -> Error {
        self.poisoned.get_or_init(|| source.to_string());
        self.failed("writing", source)
    }

    /// Refuses a pool that is poisoned.
    fn check(&self) -> Result<()> {
        let Some(why) = self.poisoned.get() else { return Ok(()) };
        Err(Error::Unsupported {
            what: format!(
                "a write of the memory of the process to {} failed before ({why}), so that the device may lack pages that the process \
                 sees, and a checkpoint would lack them, too",
                self.dir.display()
            ),
            remedy: "end the program, mend the device, and restart the program from its newest checkpoint (`towa snap restart`)",
        })
    }

    /// Whether the file system has room for every page to be written anew after the next checkpoint, which shares them.
    pub fn check_room(&self) -> Result<()> {
        let free = rustix::fs::fstatvfs(&self.file).map_err(|e| self.failed("asking for the space beside", e.into()))?;
        let taken = self.file.metadata().map_err(|e| self.failed("asking for the size of", e))?.blocks() * 512;
        if free.f_bavail * free.f_frsize < taken + SPARE { Err(Error::Full { path: self.dir.clone() }) } else { Ok(()) }
    }

    /// Reserves these pages of it, which are zeros then.
    pub(super) fn reserve(&self, pages: &Pages) -> Result<()> {
        let (at, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let zeroed = fallocate(&self.file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, at, len);
        let reserved = match zeroed {
            Err(Errno::OPNOTSUPP) => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, punch, at, len).and_then(|()| fallocate(&self.file, FallocateFlags::KEEP_SIZE, at, len))
            }
            other => other,
        };
        reserved.map_err(|e| self.failed("reserving space in", e.into()))
    }

    /// Makes zeros of these pages of it, and gives their space back.
    pub(super) fn drop_pages(&self, pages: &Pages) -> Result<()> {
        let (at, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
            .map_err(|e| self.failed("giving back space of", e.into()))
    }

    pub(super) fn write(&self, first_page: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, first_page * PAGE).map_err(|e| self.failed("writing", e))
    }

    /// Gives back what no mapping shows. While the process runs it can only come to show less: what shows more is adopted by us.
    pub(crate) fn give_back_all_but(&self, shown: &[(Pages, u64)]) -> Result<()> {
        let shown: PageSet = places(shown).collect();
        store::give_back_all_but(&self.file, &shown).map_err(|e| self.failed("giving back space of", e))
    }

    fn failed(&self, doing: &str, source: std::io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Error::Full { path: self.dir.clone() },
            _ => Error::io(format!("{doing} the memory of the process in {}", self.dir.display()), source),
        }
    }
}

/// The pages of the pool that are shown.
fn places(shown: &[(Pages, u64)]) -> impl Iterator<Item = Pages> + '_ {
    shown.iter().map(|(pages, offset)| *offset..offset + (pages.end - pages.start))
}

/// Where pages of memory go that are not in the pool yet.
pub(super) struct Places {
    taken: PageSet,
    /// Beyond all addresses, and all that is taken.
    beyond: u64,
}

impl Places {
    pub fn beside(shown: &[(Pages, u64)]) -> Places {
        let taken: PageSet = places(shown).collect();
        let beyond = taken.ranges().last().map_or(0, |last| last.end).max(ADDRESSES / PAGE);
        Places { taken, beyond }
    }

    /// The first page of the place for `pages`.
    pub fn take(&mut self, pages: &Pages) -> u64 {
        let wanted = PageSet::of([pages.clone()]);
        if self.taken.intersection(&wanted).is_empty() {
            return pages.start;
        }
        let place = self.beyond;
        self.beyond += pages.end - pages.start;
        place
    }
}

/// Device and inode as the kernel writes them in a list of mappings: not what stat says, on some file systems.
fn known_by(file: &File) -> Result<((u32, u32), u64)> {
    // SAFETY: a new mapping of our own, which is not touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE as usize, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(Error::last("mapping the file for the memory of the process"));
    }
    let all = maps::read(std::process::id() as i32);
    // SAFETY: the mapping made above.
    unsafe { libc::munmap(at, PAGE as usize) };
    let page = at as u64 / PAGE;
    let ours = all?.into_iter().find(|mapping| mapping.pages.contains(&page));
    let ours = ours.ok_or_else(|| Error::io("a mapping of our own", std::io::Error::other("it is not listed")))?;
    Ok((ours.device, ours.inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_is_taken_twice() {
        let moved = (0x900..0x910, 0x100);
        let far = (0x20..0x30, ADDRESSES / PAGE + 7);
        let mut places = Places::beside(&[far, moved]);
        assert_eq!(places.take(&(0x200..0x210)), 0x200);
        // Its own place is that of what was moved away.
        let place = places.take(&(0x10f..0x120));
        assert_eq!(place, ADDRESSES / PAGE + 7 + 0x10);
        assert_eq!(places.take(&(0xff..0x101)), place + 0x11);
        assert_eq!(places.take(&(0x110..0x120)), 0x110);
    }
}
