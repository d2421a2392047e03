//! Merging, so that a checkpoint does not come to lie in ever more pieces, nor keep ever more pages that nobody uses.
//!
//! ```text
//!   hard links    7: A B C D        7: A   Q      Q holds the pages of B, C and D that any checkpoint uses, each once,
//!                 8: A   C D E  ->  8: A   Q E    so that 7 and 8 go on sharing what they shared
//!   reflink       7: memory         7: memory     the newest, in scattered blocks, is written anew in one piece; it shares nothing
//!                 8: me.mo.ry   ->  8: memory     with those before it then, and those after it share that
//! ```
//!
//! What must always hold: at each moment each checkpoint is complete, with the files of before or of after; no file of a checkpoint is
//! ever written.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use towa_media::files;

use super::draft::new_pack_id;
use super::index::{Index, PageFile, Run, file_name};
use super::remove::clear;
use super::sealed::{self, Kind, Owner};
use super::sharing::{self, CHUNK};
use super::{CONSUMED, Checkpoint, FILES, INDEX, MANIFEST, Mode, Store, Which, failed, names};
use crate::pages::{PAGE, PageSet, Pages};
use crate::{Error, Result};

/// Pieces of less than this many pages are small.
const SMALL: u64 = 4;

/// From where on it is worth to merge.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// With more packs than this (at least 2) the smallest of the newest checkpoint become one, so that half as many are left. Each
    /// page is then moved about once for each time its pack grows twofold.
    pub packs: usize,
    /// A memory file in more pieces than this, and small ones, is written anew: each checkpoint begins with a clone, which takes some
    /// 10 us for each.
    pub extents: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { packs: 16, extents: 1 << 16 }
    }
}

/// What a merge has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Merged {
    /// Packs that were made one; 1 for a memory file that was written anew.
    pub packs: u64,
    /// Pages that were copied.
    pub pages: u64,
    /// Checkpoints that use the new file now.
    pub checkpoints: u64,
}

/// A pack, and what all checkpoints together use of it.
struct Pack {
    path: PathBuf,
    pages: u64,
    used: PageSet,
}

/// Where the pages of merged packs are now: by pack, then by the first page in it, `(end, page in the new pack)`.
type Moved = BTreeMap<u64, BTreeMap<u64, (u64, u64)>>;

impl Store {
    /// Merges what is worth it: packs of which more than half is used by nobody, and what is beyond the usual [`Limits`]. Copies at
    /// most what these hold, and needs as much room meanwhile; where files are cloned, for good.
    pub fn merge(&self) -> Result<Merged> {
        self.merge_beyond(Limits::default())
    }

    /// [`merge`](Self::merge) with other limits.
    pub fn merge_beyond(&self, limits: Limits) -> Result<Merged> {
        let lock = self.lock()?;
        // The new file lies in a directory that the next writer removes, until the last checkpoint has its own name for it. Stopped
        // anywhere, some checkpoints use the old packs and some the new one; names in each keep alive what it uses.
        let workshop = self.unfinished(0);
        make_dir(&workshop)?;
        let merged = match self.mode {
            Mode::HardLinks => self.merge_packs(&workshop, limits),
            Mode::Reflink => self.write_anew(&workshop, limits),
        };
        // At once, and also when it failed: perhaps there is no space left. But not what an exchange has put aside that may not be durable:
        // if power fails that comes back to its number. The next one who takes the lock syncs first.
        match merged {
            Ok(_) => self.clear_unfinished(&lock)?,
            Err(_) => clear(&workshop)?,
        }
        merged
    }

    /// Gives the newest checkpoint a memory file in one piece.
    fn write_anew(&self, workshop: &Path, limits: Limits) -> Result<Merged> {
        let newest = match self.open_checkpoint(Which::Newest) {
            Ok(newest) => newest,
            Err(Error::NoCheckpoint { .. } | Error::NotUsable { .. }) => return Ok(Merged::default()),
            Err(e) => return Err(e),
        };
        // A pool is cloned from the memory of a process, not from the checkpoint before it: to write it anew would help nobody.
        if newest.pool().is_some() {
            return Ok(Merged::default());
        }
        let pages = newest.pages().count();
        let extents = towa_media::extents::of(newest.file(0)).map_or(0, |extents| extents.len() as u64);
        if extents <= limits.extents || pages >= extents * SMALL {
            return Ok(Merged::default());
        }
        let path = workshop.join(file_name(0));
        let new = PageFile { id: 0, pages };
        let mut index = Index::of(vec![new]);
        index.base = newest.index().base;
        let mut copy = Copy::to(&path)?;
        for (run, sums) in newest.index().summed() {
            let place = copy.pages(newest.file(run.file), newest.path(), run.offset..run.offset + run.pages)?;
            index.push(Run::new(run.first, run.pages, 0, place), sums);
        }
        copy.finish()?;
        let replaced = self.replace(&newest, &index, new, &path)?;
        Ok(if replaced { Merged { packs: 1, pages, checkpoints: 1 } } else { Merged::default() })
    }

    /// All packs, and those of the newest checkpoint. A damaged checkpoint says nothing of its packs; it has names for them, and
    /// keeps them as they are.
    fn packs(&self) -> Result<(BTreeMap<u64, Pack>, Vec<u64>)> {
        let (mut packs, mut newest): (BTreeMap<u64, Pack>, _) = (BTreeMap::new(), Vec::new());
        for number in self.numbers()? {
            let checkpoint = match self.load(number) {
                Ok(checkpoint) => checkpoint,
                Err(Error::NotUsable { .. }) => continue,
                Err(e) => return Err(e),
            };
            newest = checkpoint.index().files.iter().map(|file| file.id).collect();
            for (n, file) in checkpoint.index().files.iter().enumerate() {
                let used = checkpoint.index().used(n as u32);
                match packs.get_mut(&file.id) {
                    Some(pack) => pack.used = pack.used.union(&used),
                    None => {
                        let path = checkpoint.path().join(file.name());
                        let status = checkpoint.file(n as u32).metadata().map_err(|e| failed("reading the status of", &path, e))?;
                        // Less the holes; and a file system may have given more than was written.
                        let pages = file.pages.min(status.blocks() * 512 / PAGE);
                        packs.insert(file.id, Pack { path, pages, used });
                    }
                }
            }
        }
        Ok((packs, newest))
    }

    fn merge_packs(&self, workshop: &Path, limits: Limits) -> Result<Merged> {
        let (packs, newest) = self.packs()?;
        let chosen = choose(&packs, newest, limits.packs.max(2));
        if chosen.is_empty() {
            return Ok(Merged::default());
        }
        let id = new_pack_id();
        let path = workshop.join(file_name(id));
        let (moved, pages) = copy_used(&packs, &chosen, &path)?;
        let new = PageFile { id, pages };
        let mut merged = Merged { packs: chosen.len() as u64, pages, checkpoints: 0 };
        for number in self.numbers()? {
            let checkpoint = match self.load(number) {
                Ok(checkpoint) if checkpoint.index().files.iter().any(|file| chosen.contains(&file.id)) => checkpoint,
                Ok(_) | Err(Error::NotUsable { .. }) => continue,
                Err(e) => return Err(e),
            };
            let index = moved_index(checkpoint.index(), &moved, new);
            if !self.replace(&checkpoint, &index, new, &path)? {
                return Ok(Merged::default());
            }
            merged.checkpoints += 1;
        }
        Ok(merged)
    }

    /// Puts a checkpoint with this index, and a new file that is now at `new_path`, in the place of `checkpoint`; false where the file
    /// system cannot.
    fn replace(&self, checkpoint: &Checkpoint, index: &Index, new: PageFile, new_path: &Path) -> Result<bool> {
        let number = checkpoint.number();
        let (old, next) = (self.path(number), self.unfinished(number));
        // 1. Beside the old one, everything durable: stopped here, the next writer removes it; so does this one if it fails.
        self.prepare(checkpoint, index, new, new_path).inspect_err(|_| drop(clear(&next)))?;
        // 2. The two exchange their names in one step: whichever has the number is whole and durable, before and after, and when
        // power fails in between. `N.tmp` is the one that is not needed.
        match names::exchange(&next, &old) {
            Ok(()) => {}
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) => {
                log::warn!("{}: this file system cannot exchange two names; nothing is merged", self.dir.display());
                return clear(&next).map(|()| false);
            }
            Err(e) => {
                clear(&next)?;
                return Err(failed("replacing", &old, e));
            }
        }
        // 3. Its files go when the exchange is durable; otherwise the number might come back to a directory without them.
        self.sync_names()?;
        clear(&next)?;
        Ok(true)
    }

    /// Makes `N.tmp` what is to replace checkpoint N, durably.
    fn prepare(&self, checkpoint: &Checkpoint, index: &Index, new: PageFile, new_path: &Path) -> Result<()> {
        let number = checkpoint.number();
        let (old, next) = (self.path(number), self.unfinished(number));
        make_dir(&next)?;
        let owner = Owner { store: self.uuid, checkpoint: checkpoint.id() };
        sealed::write(&next.join(INDEX), Kind::Index, &owner, &index.encode())?;
        for file in &index.files {
            let from = if file.id == new.id { new_path.to_owned() } else { old.join(file.name()) };
            sharing::link_or_copy(&from, &next.join(file.name()))?;
        }
        sharing::link_or_copy(&old.join(MANIFEST), &next.join(MANIFEST))?;
        if checkpoint.consumed() {
            sharing::link_or_copy(&old.join(CONSUMED), &next.join(CONSUMED))?;
        }
        if !checkpoint.attachments().is_empty() {
            make_dir(&next.join(FILES))?;
            for n in 0..checkpoint.attachments().len() {
                let name = format!("{FILES}/{n}");
                sharing::link_or_copy(&old.join(&name), &next.join(&name))?;
            }
            files::sync_dir(&next.join(FILES)).map_err(|e| failed("syncing", &next, e))?;
        }
        files::sync_dir(&next).map_err(|e| failed("syncing", &next, e))
    }
}

fn make_dir(path: &Path) -> Result<()> {
    DirBuilder::new().mode(0o700).create(path).map_err(|e| failed("making", path, e))
}

/// The packs that are to become one.
fn choose(packs: &BTreeMap<u64, Pack>, mut newest: Vec<u64>, most: usize) -> Vec<u64> {
    let wasted = packs.iter().filter(|(_, pack)| pack.used.count() * 2 < pack.pages).map(|(&id, _)| id);
    let mut chosen: Vec<u64> = wasted.collect();
    if newest.len() > most {
        newest.sort_by_key(|id| packs[id].used.count());
        chosen.extend(&newest[..newest.len() + 1 - most / 2]);
        chosen.sort_unstable();
        chosen.dedup();
    }
    chosen
}

/// Writes what is used of the chosen packs into a new one at `path`, durably; says where it is, and how many pages there are. Damaged
/// pages are copied as they are: their checksums stay, and tell.
fn copy_used(packs: &BTreeMap<u64, Pack>, chosen: &[u64], path: &Path) -> Result<(Moved, u64)> {
    let mut moved = Moved::new();
    let mut copy = Copy::to(path)?;
    for id in chosen {
        let pack = &packs[id];
        let from = File::open(&pack.path).map_err(|e| failed("opening", &pack.path, e))?;
        let places = moved.entry(*id).or_default();
        for range in pack.used.ranges() {
            let place = copy.pages(&from, &pack.path, range.clone())?;
            places.insert(range.start, (range.end, place));
        }
    }
    Ok((moved, copy.finish()?))
}

/// A new file that pages are copied to, one after the other.
struct Copy<'a> {
    file: File,
    path: &'a Path,
    end: u64,
    chunk: Vec<u8>,
}

impl Copy<'_> {
    fn to(path: &Path) -> Result<Copy<'_>> {
        Ok(Copy { file: sharing::create(path)?, path, end: 0, chunk: vec![0; CHUNK] })
    }

    /// Copies these pages of `from`, which is at `path`; gives the page at which they are now.
    fn pages(&mut self, from: &File, path: &Path, pages: Pages) -> Result<u64> {
        let (place, mut at) = (self.end, pages.start);
        while at < pages.end {
            let count = (pages.end - at).min(CHUNK as u64 / PAGE);
            let bytes = &mut self.chunk[..(count * PAGE) as usize];
            from.read_exact_at(bytes, at * PAGE).map_err(|e| failed("reading", path, e))?;
            self.file.write_all_at(bytes, self.end * PAGE).map_err(|e| failed("writing", self.path, e))?;
            (at, self.end) = (at + count, self.end + count);
        }
        Ok(place)
    }

    /// Makes it durable; gives its length in pages.
    fn finish(self) -> Result<u64> {
        files::sync(&self.file).map_err(|e| failed("syncing", self.path, e))?;
        Ok(self.end)
    }
}

/// `index` with what was moved where it is now. The pages are the same, and so are their checksums.
fn moved_index(index: &Index, moved: &Moved, new: PageFile) -> Index {
    let stays = |file: &&PageFile| !moved.contains_key(&file.id);
    let mut result = Index::of(index.files.iter().filter(stays).copied().collect());
    result.base = index.base;
    let own = result.files.len() as u32;
    let numbers: Vec<u32> =
        index.files.iter().map(|file| result.files.iter().position(|f| f == file).map_or(own, |n| n as u32)).collect();
    result.files.push(new);
    for (run, sums) in index.summed() {
        let Some(places) = moved.get(&index.files[run.file as usize].id) else {
            result.push(run.in_file(numbers[run.file as usize]), sums);
            continue;
        };
        let mut done = 0;
        while done < run.pages {
            let offset = run.offset + done;
            let (&first, &(end, place)) = places.range(..=offset).next_back().expect("what is used was moved");
            let pages = (end - offset).min(run.pages - done);
            let part = &sums[done as usize..(done + pages) as usize];
            result.push(Run::new(run.first + done, pages, own, place + (offset - first)), part);
            done += pages;
        }
    }
    result
}
