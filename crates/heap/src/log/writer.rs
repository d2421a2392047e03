//! Writing one epoch into the log.

use std::sync::atomic::Ordering::*;

use parking_lot::Mutex;
use towa_media::Durability;

use super::Log;
use super::commit::{Commit, fold_digest};
use super::frame::{self, FrameBuilder};
use crate::{Error, Result};

/// Writes the frames of one epoch, then its commit record. Frames may come from several threads; replay applies them in the order
/// in which [`frame`](Self::frame) was called. Dropped without `commit`, the epoch never was.
#[derive(Debug)]
pub struct EpochWriter<'l> {
    log: &'l Log,
    epoch: u64,
    prev: u64,
    start: u64,
    cursor: Mutex<Cursor>,
}

#[derive(Debug, Default)]
struct Cursor {
    position: u64,
    lines: u64,
    /// Frames' checksums, in order.
    sums: Vec<u64>,
}

impl<'l> EpochWriter<'l> {
    pub(super) fn new(log: &'l Log, epoch: u64, prev: u64) -> Self {
        let start = log.head.load(Acquire);
        Self { log, epoch, prev, start, cursor: Mutex::new(Cursor { position: start, ..Cursor::default() }) }
    }

    /// Streams `frame` into the log and clears it. It is durable after the thread's [`fence`](Self::fence).
    pub fn frame(&self, frame: &mut FrameBuilder) -> Result<()> {
        if frame.is_empty() {
            return Ok(());
        }
        let log = self.log;
        let lines = frame.room();
        let (position, sum_index, bytes, sum) = {
            let mut cursor = self.cursor.lock();
            self.skip_to_fit(&mut cursor, frame.len())?;
            let seq = cursor.sums.len() as u32;
            let position = cursor.position;
            cursor.position += frame.len();
            cursor.lines += (frame::LINES_MAX - lines) as u64;
            cursor.sums.push(0);
            drop(cursor);
            let (bytes, sum) = frame.finish(log.identity.generation, self.epoch, seq);
            (position, seq as usize, bytes, sum)
        };
        log.region.stream(log.ring_off(position), bytes)?;
        self.cursor.lock().sums[sum_index] = sum;
        frame.clear();
        Ok(())
    }

    /// Makes room for `len` bytes without a wrap, by a pad frame if need be.
    fn skip_to_fit(&self, cursor: &mut Cursor, len: u64) -> Result<()> {
        let log = self.log;
        let to_end = log.ring_len - cursor.position % log.ring_len;
        let skip = if to_end < len { to_end } else { 0 };
        let used = cursor.position - log.tail.load(Acquire);
        if used + skip + len > log.ring_len {
            return Err(Error::LogFull { pool: log.location.clone(), capacity: log.ring_len });
        }
        if skip > 0 {
            let (header, sum) = frame::pad(log.identity.generation, self.epoch, cursor.sums.len() as u32, skip);
            log.region.stream(log.ring_off(cursor.position), &header)?;
            cursor.sums.push(sum);
            cursor.position += skip;
        }
        Ok(())
    }

    /// Orders this thread's frames before the commit record. Each thread that wrote frames calls it before `commit`.
    pub fn fence(&self) -> Result<()> {
        match self.log.durability {
            Durability::Line => Ok(self.log.region.fence()?),
            // The commit's own fdatasync covers frames and record; the digest tells whether all frames arrived.
            Durability::Sync => Ok(()),
        }
    }

    /// Writes the commit record and makes the epoch durable.
    pub fn commit(self, frontier: u64) -> Result<Commit> {
        let log = self.log;
        let cursor = self.cursor.into_inner();
        let digest = cursor.sums.iter().fold(0, |d, &s| fold_digest(d, s));
        let frames = (cursor.sums.len() as u32, log.durability == Durability::Line);
        let span = (self.start, cursor.position);
        let commit = Commit::new(&log.identity, self.epoch, self.prev, span, frames, cursor.lines, frontier, digest);
        let off = log.slot_off(self.epoch);
        let bytes = bytemuck::bytes_of(&commit);
        log.region.store(off, bytes)?;
        log.region.write_back(off, bytes.len() as u64);
        log.region.fence()?;
        log.head.store(cursor.position, Release);
        Ok(commit)
    }
}
