//! The bytes of the file, a segment at a time.
//!
//! What must always hold: an offset beyond the end gives an error, never a panic. The file is read, not mapped: should somebody cut it
//! short meanwhile, that is an error, too, where a mapping would end the process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use towa_alloc::SEGMENT;

use crate::error::{Error, Result};

/// Segments that are kept.
const KEPT: usize = 1024;
const SEGMENT_LEN: usize = SEGMENT as usize;

/// Where bytes come from.
pub(crate) trait Source {
    /// How many there are.
    fn len(&self) -> u64;
    /// Fills `into` with those from `at` on; all of them are there.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
    /// The first stretch at or after `at` that may hold anything but zeros; it begins and ends at the end if there is none.
    fn content(&self, at: u64) -> (u64, u64) {
        (at, self.len())
    }
}

/// A file, as long as it was when it was opened.
pub(crate) struct Whole {
    pub(crate) file: File,
    pub(crate) len: u64,
}

impl Source for Whole {
    fn len(&self) -> u64 {
        self.len
    }
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }
    fn content(&self, at: u64) -> (u64, u64) {
        if at < self.len { stretch(&self.file, at, self.len) } else { (at, at) }
    }
}

/// The first stretch with content between `at` and `end`, which begins and ends at `end` if there is none. Where the file system does not
/// tell, all is content.
pub fn stretch(file: &File, at: u64, end: u64) -> (u64, u64) {
    let seek = |from: u64, what| {
        // SAFETY: numbers only. Nobody reads by the position of this file.
        match unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, what) } {
            -1 => Err(io::Error::last_os_error()),
            place => Ok((place as u64).clamp(from, end)),
        }
    };
    match seek(at, libc::SEEK_DATA) {
        Ok(data) => (data, seek(data, libc::SEEK_HOLE).unwrap_or(end)),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => (end, end),
        Err(_) => (at, end),
    }
}

impl Source for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..into.len()));
        bytes.map(|bytes| into.copy_from_slice(bytes)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// A look at a source: numbers and bytes at offsets, through segments that are kept for the next look, as neighbours are often asked
/// for together.
pub(crate) struct View<'a> {
    source: &'a dyn Source,
    pool: &'a str,
    kept: Vec<Option<(u64, Box<[u8; SEGMENT_LEN]>)>>,
    /// Two stretches that follow each other: of zeros alone, and of what may be content.
    zeros: Range<u64>,
    content: Range<u64>,
}

impl<'a> View<'a> {
    pub(crate) fn of(source: &'a dyn Source, pool: &'a str) -> View<'a> {
        View { source, pool, kept: std::iter::repeat_with(|| None).take(KEPT).collect(), zeros: 0..0, content: 0..0 }
    }

    /// The file's name, for errors.
    pub(crate) fn pool(&self) -> &'a str {
        self.pool
    }

    pub(crate) fn len(&self) -> u64 {
        self.source.len()
    }

    /// Bytes from `at` on.
    pub(crate) fn read(&mut self, at: u64, into: &mut [u8]) -> Result<()> {
        let len = self.len();
        let end = at.checked_add(into.len() as u64).filter(|end| *end <= len);
        if end.is_none() {
            let needed = at.saturating_add(into.len() as u64);
            return Err(Error::Truncated { pool: self.pool.into(), len, needed, what: "what is read there" });
        }
        let mut done = 0;
        while done < into.len() {
            let from = at + done as u64;
            let within = (from % SEGMENT) as usize;
            let part = (SEGMENT_LEN - within).min(into.len() - done);
            let segment = self.segment(from / SEGMENT)?;
            into[done..done + part].copy_from_slice(&segment[within..within + part]);
            done += part;
        }
        Ok(())
    }

    /// A number of 8 bytes, from the source itself.
    pub(crate) fn fresh_u64(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        let read = self.source.read(at, &mut bytes);
        read.map_err(|source| Error::Io { pool: self.pool.into(), doing: "reading", source })?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn u64(&mut self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The first place at or after `at` where there may be anything but zeros, or the end: a file that is all length is soon passed.
    pub(crate) fn content_after(&mut self, at: u64) -> u64 {
        if !self.zeros.contains(&at) && !self.content.contains(&at) {
            let (data, hole) = self.source.content(at);
            (self.zeros, self.content) = (at..data, data..hole);
        }
        if self.zeros.contains(&at) { self.zeros.end } else { at }
    }

    /// A segment, zeros beyond the file's end.
    fn segment(&mut self, number: u64) -> Result<&[u8; SEGMENT_LEN]> {
        let place = &mut self.kept[number as usize % KEPT];
        if place.as_ref().is_none_or(|(kept, _)| *kept != number) {
            let mut bytes = place.take().map_or_else(|| Box::new([0; SEGMENT_LEN]), |(_, bytes)| bytes);
            let from = number * SEGMENT;
            let there = self.source.len().saturating_sub(from).min(SEGMENT) as usize;
            let read = self.source.read(from, &mut bytes[..there]);
            read.map_err(|source| Error::Io { pool: self.pool.into(), doing: "reading", source })?;
            bytes[there..].fill(0);
            *place = Some((number, bytes));
        }
        Ok(&place.as_ref().expect("it was just put there").1)
    }
}

/// The little-endian number at `at` of `bytes`, which has it.
pub(crate) fn u32_of(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The little-endian number at `at` of `bytes`, which has it.
pub(crate) fn u64_of(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_is_there_and_beyond_the_end_is_an_error() {
        let bytes: Vec<u8> = (0..3 * SEGMENT_LEN + 100).map(|n| (n / 7) as u8).collect();
        let mut view = View::of(&bytes, "bytes");
        for (at, len) in [(0, 10), (4090, 12), (4000, 8300), (3 * SEGMENT_LEN, 100), (bytes.len(), 0)] {
            let mut found = vec![0; len];
            view.read(at as u64, &mut found).unwrap();
            assert_eq!(found, bytes[at..at + len]);
        }
        for (at, len) in [(bytes.len() as u64, 1), (u64::MAX, 8), (u64::MAX - 4, 4), (3 * SEGMENT + 99, 2)] {
            assert!(matches!(view.read(at, &mut vec![0; len]), Err(Error::Truncated { .. })), "{at}");
        }
    }
}
