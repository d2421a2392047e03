//! The log of commits beside a pool, `NAME.log`: whole pages on their way into the pool's file (durability power).
//!
//! ```text
//!   0     whose log it is: uuid, stamp of the opening, commit that the pool was at then
//!   4096  a commit: number, numbers of pages, pages
//! ```
//!
//! What must always hold: a log counts only for the pool and the opening that it names, its commit only if its sum fits, and is needed
//! only by a pool that was not closed. Its pages are then what the next opening writes, so a check reads them in place of the file's.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::source::{Source, Whole, stretch, u32_of, u64_of};
use crate::superblock::Superblock;

const MAGIC: [u8; 8] = *b"TOWAREDO";
const VERSION: u32 = 1;
const PAGE: u64 = 4096;
const COMMIT_MAGIC: [u8; 8] = *b"TOWAPAGE";
/// Where the commit begins.
const COMMIT: u64 = PAGE;
const HEADER: u64 = 64;
const OWNER_SUM: usize = 48;
const SUM: usize = 32;
/// More pages no writer puts into one commit.
const PAGES_MAX: u64 = i32::MAX as u64 / 8;
const TURN: u64 = 1 << 20;

/// What a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitState {
    /// Nothing that is not in the pool.
    Empty,
    /// A commit of this pool, which the next opening applies, once more perhaps.
    Whole,
    /// The beginning of a commit that never counted.
    Torn,
    /// It is another pool's: opening is refused.
    OtherPool,
    /// The page that says whose it is is damaged.
    Damaged,
    /// The file is no log. It is in the way of commits.
    Foreign,
}

/// The log beside a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommitLog {
    /// Its file.
    pub path: String,
    /// What it holds.
    pub state: CommitState,
    /// Number of the commit, and its pages of 4096 bytes; 0: it has none.
    pub sequence: u64,
    /// See `sequence`.
    pub pages: u64,
}

/// A log, and where in it the content of each page is.
pub(crate) struct Redo {
    pub(crate) found: CommitLog,
    stamp: u64,
    /// Commit that the pool was at when it was opened.
    first: u64,
    is_whole: bool,
    file: File,
    pages: HashMap<u64, u64>,
}

/// Reads the log at `path`, if there is a file, for the pool of this uuid.
pub(crate) fn read(path: &Path, uuid: &[u8; 16]) -> Result<Option<Redo>> {
    let name = path.display().to_string();
    let failed = |doing| {
        let pool = name.clone();
        move |source| Error::Io { pool, doing, source }
    };
    let file = match crate::pool::options().open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed("opening")(e)),
    };
    let metadata = file.metadata().map_err(failed("looking at"))?;
    let mut redo = Redo {
        found: CommitLog { path: name.clone(), state: CommitState::Foreign, sequence: 0, pages: 0 },
        stamp: 0,
        first: 0,
        is_whole: false,
        file,
        pages: HashMap::new(),
    };
    if metadata.is_file() {
        redo.look(metadata.len(), uuid).map_err(failed("reading"))?;
    }
    Ok(Some(redo))
}

fn pages_at(count: u64) -> u64 {
    COMMIT + (HEADER + 4 * count).next_multiple_of(PAGE)
}

impl Redo {
    fn look(&mut self, len: u64, uuid: &[u8; 16]) -> io::Result<()> {
        let mut header = [0; HEADER as usize];
        let there = len.min(HEADER) as usize;
        self.file.read_exact_at(&mut header[..there], 0)?;
        let is_owned = u64_of(&header, OWNER_SUM) == u64::from(crc32c::crc32c(&header[..OWNER_SUM]))
            && (u32_of(&header, 8), u32_of(&header, 12)) == (VERSION, PAGE as u32);
        self.found.state = match () {
            () if header == [0; HEADER as usize] => CommitState::Empty,
            () if header[..8] != MAGIC => CommitState::Foreign,
            () if !is_owned => CommitState::Damaged,
            () if header[16..32] != *uuid => CommitState::OtherPool,
            () => CommitState::Empty,
        };
        (self.stamp, self.first) = (u64_of(&header, 32), u64_of(&header, 40));
        if is_owned && len >= COMMIT + HEADER { self.look_at_commit(len) } else { Ok(()) }
    }

    fn look_at_commit(&mut self, len: u64) -> io::Result<()> {
        let mut header = [0; HEADER as usize];
        self.file.read_exact_at(&mut header, COMMIT)?;
        let count = u64_of(&header, 24);
        if header[..8] != COMMIT_MAGIC || u64_of(&header, 8) != self.stamp || !(1..=PAGES_MAX).contains(&count) {
            return Ok(());
        }
        (self.found.sequence, self.found.pages) = (u64_of(&header, 16), count);
        if pages_at(count) + count * PAGE > len {
            return Ok(());
        }
        // First, for it ends early where a file's length is all that a log has: no writer names a page twice.
        let Some(pages) = self.numbers(count)? else { return Ok(()) };
        let mut sum = crc32c::crc32c(&header[..SUM]);
        for (from, bytes) in [(COMMIT + HEADER, 4 * count), (pages_at(count), count * PAGE)] {
            sum = self.sum(sum, from, bytes)?;
        }
        self.is_whole = u64_of(&header, SUM) == u64::from(sum);
        if self.is_whole {
            self.pages = pages;
        }
        Ok(())
    }

    /// Where the content of each page is; `None`: one is there twice.
    fn numbers(&self, count: u64) -> io::Result<Option<HashMap<u64, u64>>> {
        let mut pages = HashMap::new();
        let mut piece = [0; 4096];
        for first in (0..count).step_by(piece.len() / 4) {
            let some = (count - first).min(piece.len() as u64 / 4);
            self.file.read_exact_at(&mut piece[..4 * some as usize], COMMIT + HEADER + 4 * first)?;
            for i in 0..some {
                if pages.insert(u64::from(u32_of(&piece, 4 * i as usize)), pages_at(count) + (first + i) * PAGE).is_some() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(pages))
    }

    /// Calls `with` with each page of the commit and its place in the pool. Gives the bytes.
    pub(crate) fn each_page(&self, with: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<u64> {
        let mut page = [0; PAGE as usize];
        for (number, at) in &self.pages {
            self.file.read_exact_at(&mut page, *at)?;
            with(number * PAGE, &page)?;
        }
        Ok(self.pages.len() as u64 * PAGE)
    }

    /// Whether a log of another pool, or something that is none, lies here.
    fn is_strange(&self) -> bool {
        matches!(self.found.state, CommitState::OtherPool | CommitState::Foreign | CommitState::Damaged)
    }

    /// Compares the log with the pool's file; `Err`: why they are not of one moment. The rules are those of `Opening.java`.
    pub(crate) fn fit(&mut self, superblock: &Superblock, commits: (u64, u64)) -> std::result::Result<(), String> {
        if self.is_strange() {
            return if superblock.needs_log() { Err(missing(&self.found.path)) } else { complete(commits) };
        }
        let (number, has_commit) = (self.found.sequence, self.found.pages > 0);
        if !superblock.needs_log() {
            complete(commits)?;
            let is_next = !self.is_whole && Some(number) == commits.0.checked_add(1);
            if has_commit && (self.stamp != superblock.stamp || number != commits.0 && !is_next) {
                return Err(format!("needs no log, and {} has a commit of another moment: the file is a copy", self.found.path));
            }
            return Ok(());
        }
        if self.stamp == 0 {
            return Err(missing(&self.found.path));
        }
        if self.stamp != superblock.stamp {
            let log = &self.found.path;
            return Err(format!("was not closed, and {log} is of another opening: one of the two is a copy of another moment"));
        }
        let (done, begun) = commits;
        let near = |it: u64| it == number || Some(number) == it.checked_add(1);
        let fits = match (self.is_whole, has_commit) {
            (true, _) => number > self.first && near(done) && near(begun),
            (false, true) => done == begun && (Some(number) == done.checked_add(1) || number == done && done > self.first),
            (false, false) => done == begun && done == self.first,
        };
        if !fits {
            return Err(format!(
                "was not closed, and the file (commits {done} and {begun}) and {} (commit {number}) are not of one moment: one is \
                 damaged, or was copied while a program had the pool open",
                self.found.path
            ));
        }
        self.found.state = match (self.is_whole, has_commit) {
            (true, _) => CommitState::Whole,
            (false, true) => CommitState::Torn,
            _ => CommitState::Empty,
        };
        Ok(())
    }

    /// `sum` with so many bytes from there on. What the file has no blocks for are zeros, which need not be read one by one: the time it takes is
    /// in proportion to what the file holds.
    fn sum(&self, mut sum: u32, from: u64, bytes: u64) -> io::Result<u32> {
        let mut piece = vec![0; TURN.min(bytes) as usize];
        let (mut at, end) = (from, from + bytes);
        while at < end {
            let (data, hole) = stretch(&self.file, at, end);
            sum = crc32c::crc32c_combine(sum, zeros(data - at), (data - at) as usize);
            at = data;
            while at < hole {
                let part = TURN.min(hole - at);
                self.file.read_exact_at(&mut piece[..part as usize], at)?;
                sum = crc32c::crc32c_append(sum, &piece[..part as usize]);
                at += part;
            }
        }
        Ok(sum)
    }
}

/// The sum of so many zeros.
fn zeros(count: u64) -> u32 {
    let (mut sum, mut of_some, mut some) = (0, crc32c::crc32c(&[0]), 1);
    while some <= count {
        if count & some != 0 {
            sum = crc32c::crc32c_combine(sum, of_some, some as usize);
        }
        (of_some, some) = (crc32c::crc32c_combine(of_some, of_some, some as usize), some * 2);
    }
    sum
}

/// Why a pool that was not closed cannot be told without its log.
pub(crate) fn missing(log: &str) -> String {
    format!("was not closed, and its log {log} is not there, which may have a part of what was committed")
}

/// A file that needs no log is at one commit.
pub(crate) fn complete((done, begun): (u64, u64)) -> std::result::Result<(), String> {
    if done == begun {
        return Ok(());
    }
    Err(format!(
        "the file is of two moments (commits {done} and {begun}): it is damaged, or was copied while a program had the pool open"
    ))
}

/// The pool's file as it will be when the log's commit is applied.
pub(crate) struct Applied<'a> {
    file: &'a Whole,
    redo: &'a Redo,
    /// Numbers of the log's pages, in order.
    numbers: Vec<u64>,
}

impl<'a> Applied<'a> {
    pub(crate) fn of(file: &'a Whole, redo: &'a Redo) -> Applied<'a> {
        let mut numbers: Vec<u64> = redo.pages.keys().copied().collect();
        numbers.sort_unstable();
        Applied { file, redo, numbers }
    }
}

impl Source for Applied<'_> {
    fn len(&self) -> u64 {
        let end = self.numbers.last().map_or(0, |page| (page + 1) * PAGE);
        self.file.len().max(end)
    }
    fn content(&self, at: u64) -> (u64, u64) {
        // Between the file's end and a page of the log there will be zeros.
        let (data, hole) = if at < self.file.len() { self.file.content(at) } else { (self.len(), self.len()) };
        match self.numbers.get(self.numbers.partition_point(|page| (page + 1) * PAGE <= at)) {
            Some(page) if page * PAGE <= data => (at.max(page * PAGE), (page + 1) * PAGE),
            Some(page) => (data, hole.min(page * PAGE)),
            None => (data, hole),
        }
    }
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let from = at + done as u64;
            let part = ((PAGE - from % PAGE) as usize).min(into.len() - done);
            let piece = &mut into[done..done + part];
            match self.redo.pages.get(&(from / PAGE)) {
                Some(place) => self.redo.file.read_exact_at(piece, place + from % PAGE)?,
                // As `content` says.
                None => {
                    let there = self.file.len().saturating_sub(from).min(part as u64) as usize;
                    self.file.read(from, &mut piece[..there])?;
                    piece[there..].fill(0);
                }
            }
            done += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const UUID: [u8; 16] = [7; 16];

    /// A log with a commit of these pages, `content` for the first of them, zeros for the others, and the sum that fits them.
    fn log(numbers: &[u32], content: &[u8]) -> tempfile::NamedTempFile {
        let mut owner = [&MAGIC[..], &VERSION.to_le_bytes(), &(PAGE as u32).to_le_bytes(), &UUID, &[1; 8], &[0; 8]].concat();
        owner.extend(u64::from(crc32c::crc32c(&owner)).to_le_bytes());
        let count = numbers.len() as u64;
        let mut commit = [&COMMIT_MAGIC[..], &[1; 8], &9u64.to_le_bytes(), &count.to_le_bytes()].concat();
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut pages = content.to_vec();
        pages.resize((count * PAGE) as usize, 0);
        let sum = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&commit), &numbers), &pages);
        commit.extend(u64::from(sum).to_le_bytes());
        commit.resize(HEADER as usize, 0);
        commit.extend(numbers);
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&owner, 0).unwrap();
        file.as_file().write_all_at(&commit, COMMIT).unwrap();
        file.as_file().write_all_at(content, pages_at(count)).unwrap();
        file.as_file().set_len(pages_at(count) + count * PAGE).unwrap();
        file
    }

    #[test]
    fn zeros_have_a_sum_without_being_read() {
        for count in [0, 1, 2, 3, 4096, 12_345] {
            assert_eq!(zeros(count), crc32c::crc32c(&vec![0; count as usize]), "{count}");
        }
    }

    #[test]
    fn a_commit_of_zeros_that_lie_in_holes_is_whole() {
        let numbers: Vec<u32> = (0..3000).rev().collect();
        let file = log(&numbers, &[5; 5000]);
        let redo = read(file.path(), &UUID).unwrap().unwrap();
        assert!(redo.is_whole && redo.pages.len() == numbers.len());
        file.as_file().write_all_at(&[1], pages_at(3000) + 2000 * PAGE).unwrap();
        assert!(!read(file.path(), &UUID).unwrap().unwrap().is_whole);
        let file = log(&[1, 2, 1], &[]);
        assert!(!read(file.path(), &UUID).unwrap().unwrap().is_whole, "a page that is there twice");
    }

    /// A file of some kilobytes that says it has a terabyte of pages: neither read nor remembered.
    /// What is passed over as zeros is zeros, in the file and in the log and between them.
    #[test]
    fn the_stretches_with_content_are_those_of_the_file_and_of_the_log() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[1; 100], 20 * PAGE).unwrap();
        let len = 40 * PAGE;
        file.as_file().set_len(len).unwrap();
        let whole = Whole { file: file.reopen().unwrap(), len };
        let log = log(&[5, 6, 39, 1000], &[9; 4 * PAGE as usize]);
        let redo = read(log.path(), &UUID).unwrap().unwrap();
        let applied = Applied::of(&whole, &redo);
        let (mut at, mut found) = (0, Vec::new());
        while at < applied.len() {
            let (data, hole) = applied.content(at);
            assert!(hole > at && data >= at);
            found.extend((data / PAGE..hole.div_ceil(PAGE)).filter(|page| !found.contains(page)).collect::<Vec<_>>());
            at = hole;
        }
        // A file system without holes tells more.
        for page in [5, 6, 20, 39, 1000] {
            assert!(found.contains(&page), "{page} of {found:?}");
        }
        assert!(!found.contains(&500), "between file and log");
    }

    #[test]
    fn a_log_that_is_all_holes_is_soon_looked_at() {
        let file = log(&[1], &[]);
        let count = PAGES_MAX;
        file.as_file().write_all_at(&count.to_le_bytes(), COMMIT + 24).unwrap();
        if file.as_file().set_len(pages_at(count) + count * PAGE).is_err() {
            return eprintln!("SKIP: no sparse files of a terabyte here");
        }
        let began = Instant::now();
        let redo = read(file.path(), &UUID).unwrap().unwrap();
        assert!(!redo.is_whole && redo.pages.is_empty());
        let sum = redo.sum(0, COMMIT, pages_at(count) + count * PAGE - COMMIT).unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}, sum {sum}", began.elapsed());
    }
}
