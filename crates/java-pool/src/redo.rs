//! The log of commits beside a pool, `NAME.log`: whole pages on their way into the pool's file (durability power).
//!
//! What must always hold: a log counts only if its sum fits, and only for the pool that it names; its pages are then what the next
//! opening writes, so a check reads them in place of the file's.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::source::{Source, Whole, u32_of, u64_of};

const MAGIC: [u8; 8] = *b"TOWAREDO";
const VERSION: u32 = 1;
const PAGE: u64 = 4096;
const HEADER: u64 = 64;
const SUM: usize = 48;
/// More pages no writer puts into one commit.
const PAGES_MAX: u64 = i32::MAX as u64 / 8;
const TURN: u64 = 1 << 20;

/// What a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitState {
    /// Nothing: its last commit is in the pool.
    Empty,
    /// A commit of this pool, which the next opening applies, once more perhaps.
    Whole,
    /// The beginning of a commit that never counted.
    Torn,
    /// A commit of another pool: opening is refused.
    OtherPool,
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
    /// Number of the commit, and its pages of 4096 bytes; 0 unless it is whole, or another pool's.
    pub sequence: u64,
    /// See `sequence`.
    pub pages: u64,
}

/// A log, and where in it the content of each page is.
pub(crate) struct Redo {
    pub(crate) found: CommitLog,
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
        file,
        pages: HashMap::new(),
    };
    if metadata.is_file() {
        redo.look(metadata.len(), uuid).map_err(failed("reading"))?;
    }
    Ok(Some(redo))
}

fn pages_at(count: u64) -> u64 {
    (HEADER + 4 * count).next_multiple_of(PAGE)
}

impl Redo {
    fn look(&mut self, len: u64, uuid: &[u8; 16]) -> io::Result<()> {
        let mut header = [0; HEADER as usize];
        let there = len.min(HEADER) as usize;
        self.file.read_exact_at(&mut header[..there], 0)?;
        self.found.state = match &header[..8] {
            _ if len == 0 => CommitState::Empty,
            _ if len < 8 => CommitState::Foreign,
            start if *start == [0; 8] => CommitState::Empty,
            start if *start != MAGIC => CommitState::Foreign,
            _ => CommitState::Torn,
        };
        let count = u64_of(&header, 40);
        if self.found.state != CommitState::Torn
            || (u32_of(&header, 8), u32_of(&header, 12)) != (VERSION, PAGE as u32)
            || !(1..=PAGES_MAX).contains(&count)
            || pages_at(count) + count * PAGE > len
        {
            return Ok(());
        }
        let mut sum = crc32c::crc32c(&header[..SUM]);
        for (from, bytes) in [(HEADER, 4 * count), (pages_at(count), count * PAGE)] {
            sum = self.sum(sum, from, bytes)?;
        }
        if u64_of(&header, SUM) != u64::from(sum) {
            return Ok(());
        }
        (self.found.sequence, self.found.pages) = (u64_of(&header, 32), count);
        if header[16..32] != *uuid {
            self.found.state = CommitState::OtherPool;
            return Ok(());
        }
        self.found.state = CommitState::Whole;
        let mut numbers = vec![0; 4 * count as usize];
        self.file.read_exact_at(&mut numbers, HEADER)?;
        self.pages = (0..count).map(|i| (u64::from(u32_of(&numbers, 4 * i as usize)), pages_at(count) + i * PAGE)).collect();
        Ok(())
    }

    fn sum(&self, mut sum: u32, from: u64, bytes: u64) -> io::Result<u32> {
        let mut piece = vec![0; TURN.min(bytes) as usize];
        let mut done = 0;
        while done < bytes {
            let part = TURN.min(bytes - done);
            self.file.read_exact_at(&mut piece[..part as usize], from + done)?;
            sum = crc32c::crc32c_append(sum, &piece[..part as usize]);
            done += part;
        }
        Ok(sum)
    }
}

/// The pool's file as it will be when the log's commit is applied.
pub(crate) struct Applied<'a> {
    pub(crate) file: &'a Whole,
    pub(crate) redo: &'a Redo,
}

impl Source for Applied<'_> {
    fn len(&self) -> u64 {
        let end = self.redo.pages.keys().max().map_or(0, |page| (page + 1) * PAGE);
        self.file.len().max(end)
    }
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let from = at + done as u64;
            let part = ((PAGE - from % PAGE) as usize).min(into.len() - done);
            let piece = &mut into[done..done + part];
            match self.redo.pages.get(&(from / PAGE)) {
                Some(place) => self.redo.file.read_exact_at(piece, place + from % PAGE)?,
                // Between the file's end and a page of the log there will be zeros.
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
