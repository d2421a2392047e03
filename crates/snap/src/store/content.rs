//! What a file holds: copied, compared, kept in memory, without ever reading its holes.
//!
//! ```text
//!   file      │data│........ hole of some EiB ........│data│    length
//!   looked at  ────                                     ────
//! ```
//!
//! What must always hold: the time that it takes grows with the data that a file has, and not with its length, which costs nothing; and
//! a [`Limit`] holds whatever the file's owner does to it at that time. A checksum is the same wherever the same bytes lie, as data or as
//! a hole.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Instant;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::sharing::CHUNK;
use crate::pages::PAGE;

const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// How much of a file is read at most.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Bytes. A piece of data counts as a page at least.
    pub bytes: u64,
    /// Until then.
    pub until: Option<Instant>,
}

impl Limit {
    /// What a file holds now, and what may be added to it while it is read: one that goes on growing is not read for ever.
    pub(super) fn of(file: &File) -> io::Result<Limit> {
        const ADDED: u64 = 64 << 20;
        Ok(Limit { bytes: (file.metadata()?.blocks() * 512).saturating_mul(2).saturating_add(ADDED), until: None })
    }

    const NONE: Limit = Limit { bytes: u64::MAX, until: None };

    /// Whether so many bytes more may be read; then they count.
    fn allows(&mut self, bytes: u64) -> bool {
        let left = self.bytes.checked_sub(bytes.max(PAGE));
        self.bytes = left.unwrap_or(0);
        left.is_some() && self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// Data of a file, by where it lies.
pub type Pieces = Vec<(u64, Vec<u8>)>;

/// The first data of `file` in `range`. Where the file system knows of no holes, all of it is data.
pub(super) fn first_data(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(range.start)) {
        Ok(start) if start < range.end => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(range)),
        Err(e) => return Err(e.into()),
    };
    let end = match seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end.min(range.end),
        // Cut off since.
        Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    // A hole was made there since: a byte of it is read, so that there is an end to this.
    Ok(Some(start..end.max(start + 1)))
}

/// Calls `each` with the data of `file` up to `len`, in pieces that begin at a multiple of the page size and, but for the last one, end
/// at one. False: the limit was reached.
fn each_piece(file: &File, len: u64, limit: &mut Limit, mut each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<bool> {
    let (mut chunk, mut at) = (Vec::new(), 0);
    while let Some(data) = first_data(file, at..len)? {
        at = at.max(data.start / PAGE * PAGE);
        let end = data.end.next_multiple_of(PAGE).min(len);
        while at < end {
            let wanted = (end - at).min(CHUNK as u64) as usize;
            if !limit.allows(wanted as u64) {
                return Ok(false);
            }
            chunk.resize(wanted.max(chunk.len()), 0);
            let got = read_up_to(file, &mut chunk[..wanted], at)?;
            // What was cut off since reads as zeros.
            chunk[got..wanted].fill(0);
            each(at, &chunk[..wanted])?;
            at += wanted as u64;
        }
    }
    Ok(true)
}

/// Fills `bytes` as far as the file reaches.
fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The checksum of what a file holds: of each page that is not zeros, where it lies and its bytes.
struct Sum(Xxh3);

impl Sum {
    fn new() -> Sum {
        Sum(Xxh3::new())
    }

    fn add(&mut self, at: u64, bytes: &[u8]) {
        for (page, at) in bytes.chunks(PAGE as usize).zip((at..).step_by(PAGE as usize)) {
            if *page != ZEROS[..page.len()] {
                self.0.update(&at.to_le_bytes());
                self.0.update(page);
            }
        }
    }

    /// 0 stands for no checksum.
    fn end(&self) -> u64 {
        self.0.digest().max(1)
    }
}

/// The checksum of the first `len` bytes of `file`.
pub(super) fn sum(file: &File, len: u64) -> io::Result<u64> {
    let mut sum = Sum::new();
    each_piece(file, len, &mut { Limit::NONE }, |at, bytes| {
        sum.add(at, bytes);
        Ok(())
    })?;
    Ok(sum.end())
}

/// Writes what `from` holds into `to`, an empty file; gives the length and the checksum of it. Its position is moved, so it must not be
/// a descriptor that a process has, too.
pub(super) fn copy(from: &File, to: &File) -> io::Result<(u64, u64)> {
    let copied = copy_within(from, to, Limit::NONE)?;
    Ok(copied.expect("there is no limit"))
}

/// [`copy`], or nothing if that would read more than `limit`.
pub(super) fn copy_within(from: &File, to: &File, mut limit: Limit) -> io::Result<Option<(u64, u64)>> {
    let (len, mut sum) = (from.metadata()?.len(), Sum::new());
    let whole = each_piece(from, len, &mut limit, |at, bytes| {
        sum.add(at, bytes);
        write_data(to, at, bytes)
    })?;
    to.set_len(len)?;
    Ok(whole.then(|| (len, sum.end())))
}

/// Writes `bytes` but for pages of zeros, which stay holes.
fn write_data(to: &File, mut at: u64, bytes: &[u8]) -> io::Result<()> {
    let is_empty = |page: &&[u8]| **page == ZEROS[..page.len()];
    let pages: Vec<&[u8]> = bytes.chunks(PAGE as usize).collect();
    let mut from = 0;
    for alike in pages.chunk_by(|a, b| is_empty(a) == is_empty(b)) {
        let len: usize = alike.iter().map(|page| page.len()).sum();
        if !is_empty(&alike[0]) {
            to.write_all_at(&bytes[from..from + len], at)?;
        }
        (from, at) = (from + len, at + len as u64);
    }
    Ok(())
}

/// What `file` holds, in memory, and its length; nothing if that would read more than `limit`, from which what was read is taken.
pub fn catch(file: &File, limit: &mut Limit) -> io::Result<Option<(u64, Pieces)>> {
    let (len, mut pieces) = (file.metadata()?.len(), Pieces::new());
    let whole = each_piece(file, len, limit, |at, bytes| {
        pieces.push((at, bytes.to_vec()));
        Ok(())
    })?;
    Ok(whole.then_some((len, pieces)))
}

/// Writes what was caught into an empty file; gives the checksum.
pub(super) fn put(to: &File, len: u64, pieces: &Pieces) -> io::Result<u64> {
    let mut sum = Sum::new();
    for (at, bytes) in pieces {
        sum.add(*at, bytes);
        write_data(to, *at, bytes)?;
    }
    to.set_len(len)?;
    Ok(sum.end())
}

/// Makes `to` hold what `from` does, whatever it held before.
pub(super) fn overwrite(from: &File, to: &File) -> io::Result<()> {
    let (len, mut done) = (from.metadata()?.len(), 0);
    to.set_len(len)?;
    each_piece(from, len, &mut { Limit::NONE }, |at, bytes| {
        empty(to, done..at)?;
        done = at + bytes.len() as u64;
        to.write_all_at(bytes, at)
    })?;
    empty(to, done..len)
}

/// Makes zeros of what `file` holds in `range`.
fn empty(file: &File, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, how, range.start, range.end - range.start) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let mut at = range.start;
            while let Some(data) = first_data(file, at..range.end)? {
                at = data.start;
                while at < data.end {
                    let len = (data.end - at).min(CHUNK as u64);
                    file.write_all_at(&vec![0; len as usize], at)?;
                    at += len;
                }
            }
            Ok(())
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64, data: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        data.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        file
    }

    #[test]
    fn holes_are_not_read_and_make_no_difference() {
        const FAR: u64 = 8 << 40;
        let page = [7; 4096];
        let sparse = file(FAR, &[(4096, &page), (FAR - 100, &[9; 100])]);
        let copied = file(0, &[]);
        let (len, sum) = copy(&sparse, &copied).unwrap();
        assert_eq!((len, copied.metadata().unwrap().len()), (FAR, FAR));
        assert!(copied.metadata().unwrap().blocks() < 100);
        let (caught_len, pieces) = catch(&sparse, &mut { Limit { bytes: 1 << 20, until: None } }).unwrap().unwrap();
        let again = file(0, &[]);
        assert_eq!((caught_len, put(&again, caught_len, &pieces).unwrap()), (len, sum));
        // The same bytes, with zeros written where there was a hole.
        let dense = file(FAR, &[(0, &[0; 20_000]), (4096, &page), (FAR - 100, &[9; 100])]);
        for same in [&sparse, &copied, &again, &dense] {
            assert_eq!(self::sum(same, FAR).unwrap(), sum);
        }
        for (other, len) in [(file(FAR, &[(8192, &page), (FAR - 100, &[9; 100])]), FAR), (file(FAR, &[(4096, &page)]), FAR)] {
            assert_ne!(self::sum(&other, len).unwrap(), sum);
        }
        let was = file(3 * FAR / 2, &[(0, &[1; 30_000]), (FAR / 2, &[3; 5000]), (FAR, &page)]);
        overwrite(&sparse, &was).unwrap();
        assert_eq!((was.metadata().unwrap().len(), self::sum(&was, FAR).unwrap()), (FAR, sum));
    }

    #[test]
    fn a_limit_holds() {
        let full = file(0, &[(0, &[5; 1 << 20])]);
        assert!(catch(&full, &mut { Limit { bytes: (1 << 20) - 1, until: None } }).unwrap().is_none());
        assert!(catch(&full, &mut { Limit { bytes: 1 << 20, until: None } }).unwrap().is_some());
        assert!(catch(&full, &mut { Limit { bytes: 1 << 30, until: Some(Instant::now()) } }).unwrap().is_none());
        // Little data in many pieces counts by the pieces.
        let many: Vec<(u64, &[u8])> = (0..300).map(|n| (n * (1 << 20), &[1][..])).collect();
        let many = file(1 << 30, &many);
        assert!(catch(&many, &mut { Limit { bytes: 200 * PAGE, until: None } }).unwrap().is_none());
        let to = file(0, &[]);
        assert!(copy_within(&many, &to, Limit { bytes: 200 * PAGE, until: None }).unwrap().is_none());
    }
}
