//! A checkpoint, being written.
//!
//! ```text
//!   reflink      memory  = clone of the base's; changed pages at the place they had, new ones in holes or behind the end
//!                pool    = clone of the file that the memory of a process in mode `nv` lies in
//!   hard links   pack-X  = the changed pages; the base's packs that are still used get a name here, too
//! ```
//!
//! What must always hold: until [`Draft::finish`] has made everything durable there is only `N.tmp`, which nobody is offered; no file
//! of another checkpoint is written; a draft that is dropped leaves nothing.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::SystemTime;

use towa_media::files;
use uuid::Uuid;

use super::content::{self, Limit, Pieces};
use super::index::{Index, PAGES_END, POOL, PageFile, file_name, page_sum};
use super::lock::Lock;
use super::manifest::{Attached, Manifest};
use super::overlay::{Change, Overlay};
use super::pool::PoolDraft;
use super::room::{GRAIN, Room};
use super::sealed::{self, Kind, Owner};
use super::sharing::{self, CHUNK};
use super::{ASIDE, Base, Checkpoint, CheckpointId, FILES, INDEX, MANIFEST, Mode, Store, failed, names};
use crate::pages::{PAGE, PageSet, Pages};
use crate::sys::fd;
use crate::{Error, Result};

const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// A copy of a file, which may come to belong to the checkpoint.
#[derive(Debug)]
pub struct Aside {
    path: PathBuf,
    file: File,
    len: u64,
    sum: Option<u64>,
}

/// A checkpoint that is being written. Holds the store's lock.
#[derive(Debug)]
pub struct Draft {
    store: Store,
    id: CheckpointId,
    /// `N.tmp`
    dir: PathBuf,
    base: Option<Checkpoint>,
    /// The identity that was asked for as the base; nil: none.
    asked: Uuid,
    /// The base's index, without what lies in its pool: the new pool holds all of that anew.
    below: Index,
    pub(super) pool: Option<PoolDraft>,
    /// The file that takes the pages: `memory` or a new pack.
    file: File,
    file_id: u64,
    room: Room,
    changes: Overlay,
    /// Pages of `file` that were given out.
    taken_up: Vec<Pages>,
    /// Each with the descriptor that it was written through: an error of the write-back is told to that one, if to any.
    attached: Vec<(Attached, File)>,
    /// Files that were set aside.
    aside: u64,
    taken: SystemTime,
    finished: bool,
    /// Last, so that it is let go when the rest is cleared away.
    _lock: Lock,
}

impl Store {
    /// Begins a checkpoint with the number after the greatest there ever was. No other process can change the store until the draft ends.
    pub fn begin(&self, base: Base) -> Result<Draft> {
        let lock = self.lock()?;
        let asked = match base {
            Base::Empty => Uuid::nil(),
            Base::On(id) => id.uuid,
        };
        let base = match base {
            Base::Empty => None,
            Base::On(id) => Some(self.load_exactly(id)?),
        };
        let id = CheckpointId::new(self.next_number()?);
        let dir = self.unfinished(id.number);
        let file_id = if self.mode == Mode::Reflink { 0 } else { new_pack_id() };
        DirBuilder::new().mode(0o700).create(&dir).map_err(|e| failed("making", &dir, e))?;
        let path = dir.join(file_name(file_id));
        let file = sharing::create(&path).inspect_err(|_| drop(names::remove_all(&dir)))?;
        let mut draft = Draft {
            store: self.clone(),
            id,
            dir,
            below: base.as_ref().map(|base| base.index().without_pool()).unwrap_or_default(),
            base,
            asked,
            pool: None,
            file,
            file_id,
            room: Room::default(),
            changes: Overlay::default(),
            taken_up: Vec::new(),
            attached: Vec::new(),
            aside: 0,
            taken: SystemTime::now(),
            finished: false,
            _lock: lock,
        };
        if let (Mode::Reflink, Some(base)) = (self.mode, &draft.base) {
            sharing::clone_by_block(&draft.file);
            let memory = base.file(0);
            let cloned = sharing::clone(memory, &draft.file);
            // A store that was copied to where files are not cloned still works.
            let cloned = cloned.and_then(|cloned| if cloned { Ok(()) } else { content::copy(memory, &draft.file).map(|_| ()) });
            cloned.map_err(|e| failed("cloning to", &path, e))?;
            draft.room = Room::beside(&base.index().used(0), base.index().files[0].pages);
        }
        Ok(draft)
    }
}

/// Packs are told apart for ever: one of the same name in another checkpoint is the same.
pub(super) fn new_pack_id() -> u64 {
    loop {
        let id = Uuid::new_v4().as_u64_pair().1;
        if ![0, POOL].contains(&id) {
            return id;
        }
    }
}

impl Draft {
    /// The number that it will have.
    pub fn number(&self) -> u64 {
        self.id.number
    }

    /// Which one it will be.
    pub fn id(&self) -> CheckpointId {
        self.id
    }

    /// When the state was that it holds; else the time at which it was begun.
    pub fn taken_at(&mut self, taken: SystemTime) {
        self.taken = taken;
    }

    /// The pages from `first_page` on hold `bytes`. The last word on a page counts.
    ///
    /// # Panics
    /// If `bytes` is not a whole number of pages.
    pub fn write(&mut self, first_page: u64, bytes: &[u8]) -> Result<()> {
        assert!((bytes.len() as u64).is_multiple_of(PAGE), "whole pages");
        let mut first = first_page;
        for chunk in bytes.chunks(CHUNK) {
            let pages: Vec<&[u8]> = chunk.chunks(PAGE as usize).collect();
            for alike in pages.chunk_by(|a, b| (**a == ZEROS) == (**b == ZEROS)) {
                let end = first + alike.len() as u64;
                if *alike[0] == ZEROS {
                    self.forget(first..end);
                } else {
                    let at = ((first - first_page) * PAGE) as usize;
                    self.store_pages(first, &bytes[at..at + alike.len() * PAGE as usize])?;
                }
                first = end;
            }
        }
        Ok(())
    }

    fn store_pages(&mut self, mut first: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let place = self.place(first..first + bytes.len() as u64 / PAGE);
            let (now, later) = bytes.split_at(((place.end - place.start) * PAGE) as usize);
            let written = self.file.write_all_at(now, place.start * PAGE);
            written.map_err(|e| failed("writing", &self.dir.join(file_name(self.file_id)), e))?;
            let sums: Vec<u32> = now.chunks(PAGE as usize).map(page_sum).collect();
            let end = first + sums.len() as u64;
            self.changes.set(first..end, Change::Stored { offset: place.start, sums });
            (first, bytes) = (end, later);
        }
        Ok(())
    }

    /// Where in the file the first of `pages` go that lie together: a page keeps its place.
    fn place(&mut self, mut pages: Pages) -> Pages {
        if let Some((stored, offset)) = self.changes.first_stored(pages.clone()) {
            if stored.start == pages.start {
                return offset..offset + (stored.end - stored.start);
            }
            pages.end = stored.start;
        }
        if self.store.mode == Mode::Reflink
            && let Some(run) = self.below.first_within(pages.clone())
        {
            if run.first == pages.start {
                return run.offset..run.offset + run.pages;
            }
            pages.end = run.first;
        }
        let place = self.room.take(pages.end - pages.start);
        self.taken_up.push(place.clone());
        place
    }

    /// These pages are zeros.
    pub fn forget(&mut self, pages: Pages) {
        self.changes.set(pages, Change::Gone);
    }

    /// All other pages are zeros.
    pub fn keep_only(&mut self, kept: &PageSet) {
        let all: PageSet = std::iter::once(0..PAGES_END).collect();
        all.difference(kept).ranges().iter().for_each(|gap| self.forget(gap.clone()));
    }

    /// Keeps a copy of `file`, which must be open to read, as it is now, by a name that no other has. A clone where the file system
    /// can; the file's position is neither used nor moved.
    ///
    /// # Panics
    /// If the name was given before.
    pub fn attach(&mut self, file: &File, name: &str) -> Result<()> {
        let aside = self.set_aside(file)?;
        match aside {
            Some(aside) => self.attach_aside(aside, name),
            None => Err(Error::io(format!("copying {name}"), std::io::Error::other("it grows while it is copied"))),
        }
    }

    /// Like [`attach`](Self::attach), but where the file cannot be cloned, which takes no time, does nothing and says false.
    ///
    /// # Panics
    /// If the name was given before.
    pub fn attach_clone(&mut self, file: &File, name: &str) -> Result<bool> {
        self.attach_new(name, |new| {
            let cloned = sharing::clone(file, new)?;
            Ok(if cloned { Some((new.metadata()?.size(), None)) } else { None })
        })
    }

    /// Keeps what was [caught](content::catch) of a file of this length.
    ///
    /// # Panics
    /// If the name was given before.
    pub fn attach_caught(&mut self, len: u64, pieces: &Pieces, name: &str) -> Result<()> {
        self.attach_new(name, |new| Ok(Some((len, Some(content::put(new, len, pieces)?))))).map(drop)
    }

    /// Whether the file system of the store takes a file of this length.
    pub fn can_hold(&mut self, len: u64) -> Result<bool> {
        let path = self.next_aside()?;
        let long = sharing::create(&path)?.set_len(len);
        std::fs::remove_file(&path).map_err(|e| failed("removing", &path, e))?;
        match long {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EFBIG | libc::EINVAL)) => Ok(false),
            Err(e) => Err(failed("setting the length of", &path, e)),
        }
    }

    /// A name for a file that may not come to belong to the checkpoint.
    fn next_aside(&mut self) -> Result<PathBuf> {
        let folder = self.dir.join(ASIDE);
        if self.aside == 0 {
            DirBuilder::new().mode(0o700).create(&folder).map_err(|e| failed("making", &folder, e))?;
        }
        self.aside += 1;
        Ok(folder.join(self.aside.to_string()))
    }

    /// Copies `file` as it is now, so that it can be attached in an instant. Nothing: it grew faster than it was copied.
    pub fn set_aside(&mut self, file: &File) -> Result<Option<Aside>> {
        let path = self.next_aside()?;
        let new = sharing::create(&path)?;
        let copy = || match sharing::clone(file, &new)? {
            true => Ok(Some((new.metadata()?.size(), None))),
            // With a position of its own, which looking for holes moves.
            false => Ok(content::copy_within(&fd::reopened(file)?, &new, Limit::of(file)?)?.map(|(len, sum)| (len, Some(sum)))),
        };
        match copy() {
            Ok(Some((len, sum))) => Ok(Some(Aside { path, file: new, len, sum })),
            Ok(None) => {
                // Its space is not needed any more.
                std::fs::remove_file(&path).map_err(|e| failed("removing", &path, e))?;
                Ok(None)
            }
            Err(e) => Err(failed("copying to", &path, e)),
        }
    }

    /// Keeps what was set aside.
    ///
    /// # Panics
    /// If the name was given before.
    pub fn attach_aside(&mut self, aside: Aside, name: &str) -> Result<()> {
        let path = self.next_attached(name)?;
        std::fs::rename(&aside.path, &path).map_err(|e| failed("naming", &path, e))?;
        self.attached.push((Attached { name: name.to_owned(), len: aside.len, sum: aside.sum }, aside.file));
        Ok(())
    }

    /// Attaches a new file that `fill` fills, and says the length and the checksum of; nothing if it cannot.
    fn attach_new(&mut self, name: &str, fill: impl FnOnce(&File) -> std::io::Result<Option<(u64, Option<u64>)>>) -> Result<bool> {
        let path = self.next_attached(name)?;
        let new = sharing::create(&path)?;
        let filled = fill(&new);
        if let Ok(Some((len, sum))) = filled {
            self.attached.push((Attached { name: name.to_owned(), len, sum }, new));
            return Ok(true);
        }
        // The next one has the same number.
        let removed = std::fs::remove_file(&path);
        filled.and(removed).map_err(|e| failed("copying to", &path, e)).map(|()| false)
    }

    /// Where the next file is to lie.
    fn next_attached(&self, name: &str) -> Result<PathBuf> {
        assert!(self.attached.iter().all(|(other, _)| other.name != name), "{name} is attached already");
        let folder = self.dir.join(FILES);
        if self.attached.is_empty() && !folder.exists() {
            DirBuilder::new().mode(0o700).create(&folder).map_err(|e| failed("making", &folder, e))?;
        }
        Ok(folder.join(self.attached.len().to_string()))
    }

    /// Makes everything durable, and then offers the checkpoint; says which one it is.
    pub fn finish(mut self, manifest: &[u8]) -> Result<CheckpointId> {
        let index = self.index()?;
        self.settle(&index)?;
        // 1. All bytes, then all names in the directory, while it is `N.tmp`: stopped here, the next writer removes it.
        if self.aside > 0 {
            std::fs::remove_dir_all(self.dir.join(ASIDE)).map_err(|e| failed("removing", &self.dir.join(ASIDE), e))?;
        }
        let mut attached = Vec::new();
        for (n, (file, written)) in std::mem::take(&mut self.attached).into_iter().enumerate() {
            files::sync(&written).map_err(|e| failed("syncing", &self.dir.join(format!("{FILES}/{n}")), e))?;
            attached.push(file);
        }
        let owner = Owner { store: self.store.uuid, checkpoint: self.id };
        sealed::write(&self.dir.join(INDEX), Kind::Index, &owner, &index.encode())?;
        let manifest = Manifest { taken: self.taken, base: self.asked, attached, blob: manifest.to_vec() };
        sealed::write(&self.dir.join(MANIFEST), Kind::Manifest, &owner, &manifest.encode())?;
        for folder in [self.dir.join(FILES), self.dir.clone()] {
            if folder.exists() {
                files::sync_dir(&folder).map_err(|e| failed("syncing", &folder, e))?;
            }
        }
        // 2. It gets its name. Stopped before the sync it may have either name after a power failure, and is whole under both.
        let path = self.store.path(self.id.number);
        names::rename(&self.dir, &path).map_err(|e| failed("naming", &path, e))?;
        self.finished = true;
        // 3. Only when the name is durable is the number told.
        self.store.sync_names()?;
        Ok(self.id)
    }

    /// Where all pages are. The base's packs that are still in use get their names here; the new file is the last.
    fn index(&self) -> Result<Index> {
        let mut index = self.places()?;
        index.base = self.base.as_ref().map_or(Uuid::nil(), |base| base.id().uuid);
        Ok(index)
    }

    fn places(&self) -> Result<Index> {
        let base = &self.below;
        // First with the base's numbers for its files, and one more for ours.
        let own = match self.store.mode {
            Mode::Reflink => 0,
            Mode::HardLinks => base.files.len() as u32,
        };
        let mut merged = Index::default();
        self.changes.apply(base, &mut merged, own);
        if self.store.mode == Mode::Reflink {
            merged.files = vec![PageFile { id: 0, pages: merged.used(0).ranges().last().map_or(0, |last| last.end) }];
            return match &self.pool {
                Some(pool) => Ok(merged.with_pool(pool.pages()?, &pool.runs()?)),
                None => Ok(merged),
            };
        }
        // Then with those alone that are used.
        let mut numbers = vec![None; base.files.len() + 1];
        for run in merged.runs() {
            numbers[run.file as usize] = Some(0);
        }
        let mut index = Index::default();
        for (n, number) in numbers.iter_mut().enumerate().filter(|(_, number)| number.is_some()) {
            *number = Some(index.files.len() as u32);
            let own = || PageFile { id: self.file_id, pages: merged.used(own).ranges().last().map_or(0, |last| last.end) };
            index.files.push(base.files.get(n).copied().unwrap_or_else(own));
        }
        for (run, sums) in merged.summed() {
            let file = numbers[run.file as usize].expect("a file with runs is used");
            index.push(run.in_file(file), sums);
        }
        if let Some(base) = &self.base {
            for file in index.files.iter().filter(|file| file.id != self.file_id) {
                sharing::link_or_copy(&base.path().join(file.name()), &self.dir.join(file.name()))?;
            }
        }
        Ok(index)
    }

    /// Gives back what pages took that are not needed any more, and makes the file durable; a pack that holds nothing goes.
    fn settle(&self, index: &Index) -> Result<()> {
        let path = self.dir.join(file_name(self.file_id));
        let Some(own) = index.files.iter().position(|file| file.id == self.file_id) else {
            return std::fs::remove_file(&path).map_err(|e| failed("removing", &path, e));
        };
        let used = index.used(own as u32);
        // The length grows and shrinks in steps, so that the file system lays the file out in large pieces.
        let end = index.files[own].pages.next_multiple_of(GRAIN);
        let mut had: PageSet = self.taken_up.iter().cloned().collect();
        if let (Mode::Reflink, Some(base)) = (self.store.mode, &self.base) {
            had = had.union(&base.index().used(0));
        }
        let settle = || {
            for gap in had.difference(&used).ranges().iter().filter(|gap| gap.start < end) {
                sharing::punch(&self.file, gap)?;
            }
            self.file.set_len(end * PAGE)?;
            files::sync(&self.file)
        };
        settle().map_err(|e| failed("writing", &path, e))?;
        self.pool.as_ref().map_or(Ok(()), PoolDraft::settle)
    }

    pub(super) fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    pub(super) fn mode(&self) -> Mode {
        self.store.mode
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.finished
            && let Err(e) = names::remove_all(&self.dir)
        {
            log::warn!("{}: {e}; the next checkpoint removes what is left", self.dir.display());
        }
    }
}
