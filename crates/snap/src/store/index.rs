//! File `index` of a checkpoint: in which file, and where in it, each page lies, and a checksum of each.
//!
//! ```text
//!   files 4 | 0 4 | runs 8 | pages 8 | uuid of the checkpoint that pages were taken over from, or 0 16
//!   for each file:   id 8 (0: `memory`, all ones: `pool`, else `pack-` and 16 hexadecimal digits) | its length in pages 8
//!   for each run:    first page 8 | pages 8 | offset in the file, in pages 8 | number of the file 4 | 0 4
//!   for each page, in the order of the runs:  checksum 4 (the low half of its xxh3); none for pages in `pool`
//! ```
//!
//! `pool` is a clone of a running process's own memory, taken without reading it: to know a checksum of what was not read is not possible,
//! and reading it would undo what the clone is for.
//!
//! What must always hold: runs ascend and do not overlap; each lies inside of its file; a page in no run is all zeros.

use std::path::Path;

use bytemuck::{Pod, Zeroable, bytes_of, cast_slice};
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

use super::not_usable;
use super::sealed::Fields;
use crate::Result;
use crate::pages::{PageSet, Pages};

/// Page numbers end here: addresses have 64 bits.
pub(super) const PAGES_END: u64 = 1 << 52;

/// The id of the file `pool`.
pub(super) const POOL: u64 = u64::MAX;

/// A file that holds pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct PageFile {
    /// 0 for `memory`, [`POOL`], else the number that names a pack.
    pub id: u64,
    /// No run reaches beyond this.
    pub pages: u64,
}

impl PageFile {
    pub(super) fn name(&self) -> String {
        file_name(self.id)
    }
}

/// The name of the file of this id in a checkpoint's directory.
pub(super) fn file_name(id: u64) -> String {
    match id {
        0 => "memory".to_owned(),
        POOL => "pool".to_owned(),
        id => format!("pack-{id:016x}"),
    }
}

/// Pages that lie one after the other, in memory and in a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub(super) struct Run {
    pub first: u64,
    pub pages: u64,
    /// In pages.
    pub offset: u64,
    /// Number of the file in the index.
    pub file: u32,
    zero: u32,
}

impl Run {
    pub(super) fn new(first: u64, pages: u64, file: u32, offset: u64) -> Run {
        Run { first, pages, offset, file, zero: 0 }
    }

    pub(super) fn end(&self) -> u64 {
        self.first + self.pages
    }

    /// The same, in the file of another number.
    pub(super) fn in_file(self, file: u32) -> Run {
        Run { file, ..self }
    }

    /// The part of it that lies in `pages`, which must touch it.
    pub(super) fn clipped(&self, pages: &Pages) -> Run {
        let (first, end) = (self.first.max(pages.start), self.end().min(pages.end));
        debug_assert!(first < end);
        Run { first, pages: end - first, offset: self.offset + (first - self.first), ..*self }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    files: u32,
    zero: u32,
    runs: u64,
    pages: u64,
    base: [u8; 16],
}

/// Where the pages of a checkpoint are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// The checkpoint whose pages were taken over when it was made; nil: none.
    pub base: Uuid,
    pub files: Vec<PageFile>,
    runs: Vec<Run>,
    /// For each run the place of its first page's checksum.
    at: Vec<usize>,
    sums: Vec<u32>,
}

/// The checksum of a page.
pub(super) fn page_sum(page: &[u8]) -> u32 {
    xxh3_64(page) as u32
}

impl Index {
    /// No pages, in these files.
    pub(super) fn of(files: Vec<PageFile>) -> Index {
        Index { files, ..Index::default() }
    }

    /// Adds pages behind all that are there. `sums`: of each page; none at all if its file is the pool.
    pub(super) fn push(&mut self, run: Run, sums: &[u32]) {
        debug_assert_eq!(self.sums_of(&run), sums.len() as u64);
        match self.runs.last_mut() {
            Some(last) if last.end() == run.first && last.file == run.file && last.offset + last.pages == run.offset => {
                last.pages += run.pages;
            }
            last => {
                assert!(last.is_none_or(|last| last.end() <= run.first), "runs ascend");
                self.runs.push(run);
                self.at.push(self.sums.len());
            }
        }
        self.sums.extend_from_slice(sums);
    }

    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The runs with the checksums of their pages; of those in the pool, with none.
    pub(super) fn summed(&self) -> impl Iterator<Item = (&Run, &[u32])> {
        self.runs.iter().zip(&self.at).map(|(run, &at)| (run, &self.sums[at..at + self.sums_of(run) as usize]))
    }

    /// How many checksums a run has.
    fn sums_of(&self, run: &Run) -> u64 {
        if self.files.get(run.file as usize).is_some_and(|file| file.id == POOL) { 0 } else { run.pages }
    }

    /// The number of the pool, if it has one.
    pub(super) fn pool(&self) -> Option<u32> {
        self.files.iter().position(|file| file.id == POOL).map(|n| n as u32)
    }

    /// The same without what lies in the pool.
    pub(super) fn without_pool(&self) -> Index {
        let mut rest = Index::of(self.files.iter().filter(|file| file.id != POOL).copied().collect());
        rest.base = self.base;
        let pool = self.pool();
        // The pool is the last file, so that the others keep their numbers.
        self.summed().filter(|(run, _)| Some(run.file) != pool).for_each(|(run, sums)| rest.push(*run, sums));
        rest
    }

    /// The same, with a pool of `len` pages behind the other files, in which `runs` lie, ascending; what was said of their pages before
    /// counts no more.
    pub(super) fn with_pool(&self, len: u64, runs: &[Run]) -> Index {
        let mut all = Index::of(self.files.iter().copied().chain([PageFile { id: POOL, pages: len }]).collect());
        all.base = self.base;
        let in_pool: PageSet = runs.iter().map(|run| run.first..run.end()).collect();
        let mut runs = runs.iter().map(|run| run.in_file(self.files.len() as u32)).peekable();
        for (run, sums) in self.summed() {
            for part in PageSet::from(run.first..run.end()).difference(&in_pool).ranges() {
                while let Some(before) = runs.next_if(|next| next.first < part.start) {
                    all.push(before, &[]);
                }
                let from = (part.start - run.first) as usize;
                all.push(run.clipped(part), &sums[from..from + (part.end - part.start) as usize]);
            }
        }
        runs.for_each(|run| all.push(run, &[]));
        all
    }

    /// The runs in `pages`, clipped to it.
    pub(super) fn within(&self, pages: Pages) -> impl Iterator<Item = Run> + '_ {
        let from = self.runs.partition_point(|run| run.end() <= pages.start);
        let inside = pages.clone();
        self.runs[from..].iter().take_while(move |run| run.first < inside.end).map(move |run| run.clipped(&pages))
    }

    /// The runs in `pages`, clipped to it, with the checksums of their pages; of those in the pool, with none.
    pub(super) fn summed_within(&self, pages: Pages) -> impl Iterator<Item = (Run, &[u32])> {
        let from = self.runs.partition_point(|run| run.end() <= pages.start);
        let inside = pages.clone();
        let touched = self.runs[from..].iter().zip(&self.at[from..]).take_while(move |(run, _)| run.first < inside.end);
        touched.map(move |(run, &at)| {
            let part = run.clipped(&pages);
            if self.sums_of(run) == 0 {
                return (part, &[][..]);
            }
            let at = at + (part.first - run.first) as usize;
            (part, &self.sums[at..at + part.pages as usize])
        })
    }

    /// The first run in `pages`, clipped to it.
    pub(super) fn first_within(&self, pages: Pages) -> Option<Run> {
        if pages.is_empty() { None } else { self.within(pages).next() }
    }

    /// All pages that are not zeros.
    pub(super) fn pages(&self) -> PageSet {
        let mut set = PageSet::new();
        self.runs.iter().for_each(|run| set.push(run.first..run.end()));
        set
    }

    /// What of file number `file` it uses, in pages of the file.
    pub(super) fn used(&self, file: u32) -> PageSet {
        self.runs.iter().filter(|run| run.file == file).map(|run| run.offset..run.offset + run.pages).collect()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let head = Head {
            files: self.files.len() as u32,
            zero: 0,
            runs: self.runs.len() as u64,
            pages: self.sums.len() as u64,
            base: *self.base.as_bytes(),
        };
        let parts: [&[u8]; 4] = [bytes_of(&head), cast_slice(&self.files), cast_slice(&self.runs), cast_slice(&self.sums)];
        parts.concat()
    }

    pub(super) fn decode(body: &[u8], path: &Path) -> Result<Index> {
        let index = Self::fields(Fields(body)).filter(Index::is_sound);
        index.ok_or_else(|| not_usable(path, "does not hold what an index holds"))
    }

    fn fields(mut fields: Fields) -> Option<Index> {
        let head: Head = fields.one()?;
        let files = fields.many(head.files.into())?;
        let runs: Vec<Run> = fields.many(head.runs)?;
        let sums = fields.many(head.pages)?;
        let mut index = Index { base: Uuid::from_bytes(head.base), files, ..Index::default() };
        let mut pages: u64 = 0;
        for run in &runs {
            index.at.push(pages as usize);
            pages = pages.checked_add(index.sums_of(run))?;
        }
        (index.runs, index.sums) = (runs, sums);
        (pages == head.pages && fields.0.is_empty()).then_some(index)
    }

    /// A body that matches its checksum was written so; this holds it against a writer with a fault.
    fn is_sound(&self) -> bool {
        let inside = |run: &Run| {
            let file = self.files.get(run.file as usize);
            let end = run.offset.checked_add(run.pages);
            let fits = run.first.checked_add(run.pages).is_some_and(|end| end <= PAGES_END);
            run.pages > 0 && fits && file.zip(end).is_some_and(|(file, end)| end <= file.pages && file.pages <= PAGES_END)
        };
        let pool_is_last = self.pool().is_none_or(|pool| pool as usize + 1 == self.files.len());
        pool_is_last && self.runs.iter().all(inside) && self.runs.windows(2).all(|pair| pair[0].end() <= pair[1].first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_put_in_and_taken_out() {
        let mut index = Index::of(vec![PageFile { id: 0, pages: 100 }]);
        index.push(Run::new(10, 4, 0, 50), &[1, 2, 3, 4]);
        index.push(Run::new(20, 2, 0, 60), &[5, 6]);
        let with = index.with_pool(1000, &[Run::new(5, 2, 0, 5), Run::new(11, 2, 0, 11), Run::new(30, 1, 0, 900)]);
        let places: Vec<(u64, u64, u32, u64, usize)> =
            with.summed().map(|(run, sums)| (run.first, run.pages, run.file, run.offset, sums.len())).collect();
        assert_eq!(
            places,
            [(5, 2, 1, 5, 0), (10, 1, 0, 50, 1), (11, 2, 1, 11, 0), (13, 1, 0, 53, 1), (20, 2, 0, 60, 2), (30, 1, 1, 900, 0)]
        );
        let decoded = Index::decode(&with.encode(), Path::new("index")).unwrap();
        assert_eq!((&decoded, decoded.pool()), (&with, Some(1)));
        let without = with.without_pool();
        assert_eq!(without.pages(), PageSet::of([10..11, 13..14, 20..22]));
        assert_eq!(without.summed().flat_map(|(_, sums)| sums).copied().collect::<Vec<u32>>(), [1, 4, 5, 6]);
    }
}
