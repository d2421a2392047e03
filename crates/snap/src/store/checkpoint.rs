//! A checkpoint, open to read.
//!
//! What must always hold: all its files were opened when it was, so that it can be read to the end even if it is removed; a page in
//! none of its runs is zeros.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::index::{Index, POOL, Run, page_sum};
use super::manifest::{Attached, Manifest};
use super::sealed::{self, Kind};
use super::sharing::{self, CHUNK, Space};
use super::{CONSUMED, CheckpointId, FILES, INDEX, MANIFEST, Mode, Store, content, failed, not_usable, opening};
use crate::pages::{PAGE, PageSet, Pages};
use crate::{Error, Result};

/// Pages that lie one after the other in a file.
#[derive(Clone, Debug)]
pub struct Stretch<'a> {
    /// Which pages.
    pub pages: Pages,
    /// The file, for `pread` or `mmap`. Others may be reading it, too: do not use its position.
    pub file: &'a File,
    /// Where in it the first of them is, in bytes; a multiple of the page size.
    pub offset: u64,
}

/// A checkpoint, open to read.
#[derive(Debug)]
pub struct Checkpoint {
    id: CheckpointId,
    path: PathBuf,
    manifest: Manifest,
    index: Index,
    pages: PageSet,
    /// In the order of the index.
    files: Vec<File>,
    /// In the order of the manifest.
    attached: Vec<File>,
    consumed: bool,
}

impl Checkpoint {
    /// Opens what is in `folder`. All names are looked up there, so that they are of one and the same directory.
    pub(super) fn open(store: &Store, number: u64, folder: &File) -> Result<Checkpoint> {
        let path = store.path(number);
        let read = |name: &str, kind| {
            let file = open_in(folder, &path, name)?;
            sealed::read(&file, &path.join(name), kind, Some(&store.uuid), number)
        };
        let (owner, body) = read(MANIFEST, Kind::Manifest)?;
        let manifest = Manifest::decode(&body, &path.join(MANIFEST))?;
        let (of_index, body) = read(INDEX, Kind::Index)?;
        if of_index != owner {
            return Err(not_usable(&path.join(INDEX), "belongs to another checkpoint that had the same number"));
        }
        let index = Index::decode(&body, &path.join(INDEX))?;
        drop(body);
        if index.base != manifest.base {
            let what = format!("was built on checkpoint {}, and its writer had asked for {}", index.base, manifest.base);
            return Err(not_usable(&path.join(INDEX), what));
        }
        let of_the_mode = match store.mode {
            Mode::Reflink => [&[0][..], &[0, POOL]].contains(&&index.files.iter().map(|file| file.id).collect::<Vec<u64>>()[..]),
            Mode::HardLinks => index.files.iter().all(|file| ![0, POOL].contains(&file.id)),
        };
        if !of_the_mode {
            return Err(not_usable(&path.join(INDEX), "names other files than a checkpoint of this directory has"));
        }
        let mut files = Vec::new();
        for file in &index.files {
            files.push(open_long(folder, &path, &file.name(), |len| len / PAGE >= file.pages)?);
        }
        let mut attached = Vec::new();
        if !manifest.attached.is_empty() {
            let within = path.join(FILES);
            let copies = opening::folder_in(folder.as_fd(), Path::new(FILES), &within)?;
            let copies = copies.ok_or_else(|| not_usable(&within, "is missing"))?;
            for (n, file) in manifest.attached.iter().enumerate() {
                attached.push(open_long(&copies, &within, &n.to_string(), |len| len == file.len)?);
            }
        }
        let consumed = match rustix::fs::statat(folder, CONSUMED, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => true,
            Err(rustix::io::Errno::NOENT) => false,
            Err(e) => return Err(failed("looking for", &path.join(CONSUMED), e.into())),
        };
        let pages = index.pages();
        Ok(Checkpoint { id: owner.checkpoint, path, manifest, index, pages, files, attached, consumed })
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.id.number
    }

    /// Which one it is.
    pub fn id(&self) -> CheckpointId {
        self.id
    }

    /// When it was taken.
    pub fn taken(&self) -> SystemTime {
        self.manifest.taken
    }

    /// What its writer had to say.
    pub fn manifest(&self) -> &[u8] {
        &self.manifest.blob
    }

    /// Whether it was used up by a once-only restart before it was opened.
    pub fn consumed(&self) -> bool {
        self.consumed
    }

    /// The pages that are not zeros.
    pub fn pages(&self) -> &PageSet {
        &self.pages
    }

    /// Where the pages of `range` are that are not zeros, ascending.
    pub fn runs(&self, range: Pages) -> impl Iterator<Item = Stretch<'_>> {
        self.index.within(range).map(|run| Stretch {
            pages: run.first..run.end(),
            file: &self.files[run.file as usize],
            offset: run.offset * PAGE,
        })
    }

    /// Reads whole pages from `first_page` on.
    ///
    /// # Panics
    /// If `into` is not a whole number of pages.
    pub fn read(&self, first_page: u64, into: &mut [u8]) -> Result<()> {
        assert!((into.len() as u64).is_multiple_of(PAGE), "whole pages");
        into.fill(0);
        for run in self.runs(first_page..first_page + into.len() as u64 / PAGE) {
            let from = ((run.pages.start - first_page) * PAGE) as usize;
            let len = ((run.pages.end - run.pages.start) * PAGE) as usize;
            run.file.read_exact_at(&mut into[from..from + len], run.offset).map_err(|e| self.unreadable(&run.pages, e))?;
        }
        Ok(())
    }

    /// Reads whole pages, as [`Checkpoint::read`] does; a page that does not match its checksum is an error.
    ///
    /// # Panics
    /// If `into` is not a whole number of pages.
    pub fn read_checked(&self, first_page: u64, into: &mut [u8]) -> Result<()> {
        self.read(first_page, into)?;
        let wanted = first_page..first_page + into.len() as u64 / PAGE;
        for (run, sums) in self.index.summed_within(wanted) {
            let from = ((run.first - first_page) * PAGE) as usize;
            self.compare(&run, sums, &into[from..from + sums.len() * PAGE as usize])?;
        }
        Ok(())
    }

    /// The same checkpoint with descriptors of its own, which read on when this one is closed.
    pub fn try_clone(&self) -> Result<Checkpoint> {
        let copies = |files: &[File]| files.iter().map(File::try_clone).collect::<io::Result<Vec<File>>>();
        let files = copies(&self.files).and_then(|files| Ok((files, copies(&self.attached)?)));
        let (files, attached) = files.map_err(|e| failed("opening again files of", &self.path, e))?;
        Ok(Checkpoint {
            id: self.id,
            path: self.path.clone(),
            manifest: self.manifest.clone(),
            index: self.index.clone(),
            pages: self.pages.clone(),
            files,
            attached,
            consumed: self.consumed,
        })
    }

    /// Whether `bytes`, those of pages of `run` from its first one on, are what was written.
    fn compare(&self, run: &Run, sums: &[u32], bytes: &[u8]) -> Result<()> {
        let wrong = bytes.chunks(PAGE as usize).zip(sums).position(|(page, &sum)| page_sum(page) != sum);
        let Some(n) = wrong else { return Ok(()) };
        let name = self.index.files[run.file as usize].name();
        let what = format!("page {:#x} of the memory is damaged: it does not match its checksum", run.first + n as u64);
        Err(not_usable(&self.path.join(name), what))
    }

    /// The files it holds copies of.
    pub fn attachments(&self) -> &[Attached] {
        &self.manifest.attached
    }

    /// The copy of the file that was attached by this name. Others may be reading it, too: do not use its position.
    pub fn attached(&self, name: &str) -> Option<&File> {
        let n = self.manifest.attached.iter().position(|file| file.name == name)?;
        Some(&self.attached[n])
    }

    /// Makes `to` hold what the file does that was attached by this name; false: none was.
    pub fn copy_attached(&self, name: &str, to: &File) -> Result<bool> {
        let Some(from) = self.attached(name) else { return Ok(false) };
        content::overwrite(from, to).map_err(|e| failed("copying a file of", &self.path, e)).map(|()| true)
    }

    /// The clone of the process's own memory, if it was taken in mode `nv`: where a page lies in it [`runs`](Self::runs) tells.
    pub fn pool(&self) -> Option<&File> {
        self.index.pool().map(|pool| self.file(pool))
    }

    /// Pages that have no checksum, since they were cloned and never read.
    pub fn pages_without_sums(&self) -> u64 {
        let pool = self.index.pool();
        self.index.runs().iter().filter(|run| Some(run.file) == pool).map(|run| run.pages).sum()
    }

    /// Reads everything and compares the checksums; `progress` is told how many pages of how many have been. Pages
    /// [without checksums](Self::pages_without_sums) can be read, that is all that is known of them then.
    pub fn verify(&self, mut progress: impl FnMut(u64, u64)) -> Result<()> {
        let (mut done, total) = (0, self.pages.count());
        let mut chunk = vec![0; CHUNK];
        for (run, sums) in self.index.summed() {
            if Some(run.file) == self.index.pool() {
                self.read_pool(run, &mut chunk)?;
                done += run.pages;
                progress(done, total);
                continue;
            }
            let mut first = run.first;
            while first < run.end() {
                let count = (run.end() - first).min(CHUNK as u64 / PAGE);
                let bytes = &mut chunk[..(count * PAGE) as usize];
                self.read(first, bytes)?;
                let sums = &sums[(first - run.first) as usize..];
                self.compare(&run.clipped(&(first..run.end())), sums, bytes)?;
                first += count;
                done += count;
                progress(done, total);
            }
        }
        for (n, (expected, file)) in self.manifest.attached.iter().zip(&self.attached).enumerate() {
            let Some(sum) = expected.sum else { continue };
            let path = self.path.join(format!("{FILES}/{n}"));
            if content::sum(file, expected.len).map_err(|e| failed("reading", &path, e))? != sum {
                return Err(not_usable(&path, format!("is damaged: the copy of {} does not match its checksum", expected.name)));
            }
        }
        Ok(())
    }

    /// Reads what lies in the pool of these pages, and not its holes: how long they are costs nothing, and says nothing.
    fn read_pool(&self, run: &Run, chunk: &mut [u8]) -> Result<()> {
        let (file, end) = (self.file(run.file), (run.offset + run.pages) * PAGE);
        let mut at = run.offset * PAGE;
        let unreadable = |at: u64, e| self.unreadable(&(run.first + (at / PAGE - run.offset)..run.end()), e);
        while let Some(data) = content::first_data(file, at..end).map_err(|e| unreadable(at, e))? {
            at = data.start;
            while at < data.end {
                let bytes = &mut chunk[..(data.end - at).min(CHUNK as u64) as usize];
                file.read_exact_at(bytes, at).map_err(|e| unreadable(at, e))?;
                at += bytes.len() as u64;
            }
        }
        Ok(())
    }

    /// What it takes on the medium.
    pub(super) fn space(&self) -> Result<Space> {
        let mut space = Space::default();
        for file in self.files.iter().chain(&self.attached) {
            space += sharing::space(file).map_err(|e| failed("reading the status of files in", &self.path, e))?;
        }
        Ok(space)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// The file of this number in the index.
    pub(super) fn file(&self, number: u32) -> &File {
        &self.files[number as usize]
    }

    fn unreadable(&self, pages: &Pages, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            return not_usable(&self.path, format!("is damaged: the file that holds page {:#x} was cut off", pages.start));
        }
        failed("reading", &self.path, source)
    }
}

/// Opens regular file `name` in the directory open as `folder`, which is or was at `path`.
fn open_in(folder: &File, path: &Path, name: &str) -> Result<File> {
    let path = path.join(name);
    let file = opening::regular_in(folder.as_fd(), Path::new(name), &path, rustix::fs::OFlags::RDONLY)?;
    file.ok_or_else(|| not_usable(&path, "is missing"))
}

/// [`open_in`] of a file that must be long enough.
fn open_long(folder: &File, path: &Path, name: &str, enough: impl Fn(u64) -> bool) -> Result<File> {
    let file = open_in(folder, path, name)?;
    let len = file.metadata().map_err(|e| failed("reading the status of", &path.join(name), e))?.len();
    if enough(len) { Ok(file) } else { Err(not_usable(&path.join(name), format!("is cut off or too long: {len} bytes"))) }
}
