//! Lanes: the redo log of pools of the `tx` door, one for each thread that writes.
//!
//! ```text
//!   file `log`:
//!   | cut slot 0 | cut slot 1 |  lane 0  |  lane 1  | ... |  lane n-1  |
//!     4096 bytes   4096 bytes   lane_len bytes each
//!
//!   a lane, by logical position (only ever growing within a generation; byte = position % lane_len):
//!        tail                              head
//!   ......|record record|pad..|record record|.......
//!                             ^ the next lap: records do not wrap
//! ```
//!
//! This layer does not know what a transaction is. A *record* is a timestamp and words of the heap; the *cut* says how far the image
//! goes. What must always hold:
//! 1. image + the records of all lanes from the cut's tails on, in the order of their timestamps = the heap, whatever was interrupted;
//! 2. a lane's live part ends at the first record that does not check out, and the next record is appended only after the fence of the
//!    one before: so what stands behind a gap was never acknowledged;
//! 3. lane space before a tail is written again only after the cut with that tail is durable;
//! 4. no word of the image is of a record that is not durable.
//!
//! A record becomes durable in these steps; stopping after any of them is safe:
//! 1. a pad, where the record would not fit into the rest of the lap: a lane that ends in a pad ends before it;
//! 2. the record, in free space: whole or torn. Torn, it fails its sum and is not there. Whole, it counts: its writer stores it only when
//!    everything it depends on is durable;
//! 3. fence: it is durable.
//!
//! One lane has one writer at a time. Who frees lane space is the [`Replayer`].

mod batch;
mod cursor;
mod cut;
mod lines;
mod reader;
mod record;
mod recover;
mod replay;
#[cfg(test)]
mod tests;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use towa_media::{LINE, Medium, Region, persist};

use crate::superblock::Superblock;
use crate::{Error, Result};
pub(crate) use cut::Cut;
pub(crate) use reader::Reader;
pub use record::RecordBuilder;
pub(crate) use recover::Live;
pub use replay::{Applied, Replayer};

/// Most lanes of a pool.
pub const LANES_MAX: u32 = 64;
/// Smallest lane, in bytes.
pub const LANE_LEN_MIN: u64 = 64 << 10;
/// Bytes of the cut slots, before the first lane.
pub(crate) const CUTS_LEN: u64 = 2 * cut::SLOT;

/// Where lanes lie, and what their records are checked against.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub count: usize,
    pub lane_len: u64,
    pub heap_words: u64,
    pub uuid: [u8; 16],
}

impl Geometry {
    pub fn of(sb: &Superblock) -> Geometry {
        let count = sb.commit_slots as usize;
        Geometry { count, lane_len: sb.ring_len / count as u64, heap_words: sb.heap_len / 8, uuid: sb.uuid }
    }

    /// Length of file `log`.
    pub fn file_len(ring_len: u64) -> u64 {
        CUTS_LEN + ring_len
    }

    /// Where in its lane a position lies.
    #[inline]
    fn place(&self, position: u64) -> u64 {
        // Lanes mostly are a power of two long, and a division takes longer than the rest of a short record.
        if self.lane_len.is_power_of_two() { position & (self.lane_len - 1) } else { position % self.lane_len }
    }

    /// Offset of a lane in the file.
    fn lane_off(&self, lane: usize) -> u64 {
        CUTS_LEN + lane as u64 * self.lane_len
    }
}

/// The open lanes of a pool.
#[derive(Debug)]
pub struct Lanes {
    pub(crate) region: Arc<dyn Region>,
    pub(crate) geometry: Geometry,
    pool: String,
    generation: u64,
    /// Of each lane: what the sums of its records are seeded with.
    seeds: Vec<u64>,
    provided: Vec<AtomicBool>,
    /// Where the region is mapped, for hints.
    mapped: usize,
}

/// Where a region is mapped, to have lines of it fetched; null where it is not.
fn first_byte(region: &dyn Region) -> *const u8 {
    region.bytes().map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast::<u8>().cast_const())
}

/// Has these bytes of a region mapped to be written all at once, where it is mapped and has them.
fn map_ahead(region: &dyn Region, off: u64, len: u64) {
    if let Some(bytes) = region.bytes().filter(|bytes| len > 0 && off + len <= bytes.len() as u64) {
        let first = bytes.cast::<u8>().map_addr(|first| first.saturating_add(off as usize));
        towa_media::map_ahead(NonNull::slice_from_raw_parts(first, len as usize));
    }
}

impl Lanes {
    pub(crate) fn new(medium: &dyn Medium, region: Arc<dyn Region>, geometry: Geometry, generation: u64) -> Lanes {
        let seeds = (0..geometry.count).map(|lane| record::lane_seed(&geometry.uuid, generation, lane)).collect();
        let provided = (0..geometry.count).map(|_| AtomicBool::new(false)).collect();
        let mapped = first_byte(&*region).addr();
        Lanes { region, pool: medium.location(), generation, seeds, provided, mapped, geometry }
    }

    /// Number of lanes.
    pub fn count(&self) -> usize {
        self.geometry.count
    }

    /// Bytes of a lane.
    pub fn lane_len(&self) -> u64 {
        self.geometry.lane_len
    }

    /// The generation of lanes that is being written: it grows with each opening, and records of others do not count.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The allocator's frontier as of the newest cut.
    pub(crate) fn frontier(&self, sb: &Superblock) -> Result<u64> {
        let cut = Cut::read(&*self.region, sb)?;
        Ok(cut.map_err(|what| Error::Damaged { pool: self.pool.clone(), what })?.frontier)
    }

    /// Provides the space of a lane: before its first record after opening, or a full medium is SIGBUS where it is mapped.
    pub fn provide(&self, lane: usize) -> Result<()> {
        if !self.provided[lane].load(Acquire) {
            let (off, len) = (self.geometry.lane_off(lane), self.geometry.lane_len);
            self.region.reserve(off, len)?;
            map_ahead(&*self.region, off, len);
            self.provided[lane].store(true, Release);
        }
        Ok(())
    }

    /// Most bytes that a record of `words` words takes that come in `runs` calls of [`RecordBuilder::words`] (or single words).
    #[inline]
    pub fn record_len(words: u64, runs: u64) -> u64 {
        record::len_max(words, runs)
    }

    /// Longest record: half a lane, so that it fits into an empty lane wherever its pad begins.
    pub fn record_len_max(&self) -> u64 {
        self.geometry.lane_len / 2 / LINE as u64 * LINE as u64
    }

    /// The position after a record of `len` bytes that is appended at `position`: with the pad before it, if there is one.
    #[inline]
    pub fn end_of(&self, position: u64, len: u64) -> u64 {
        let room = self.geometry.lane_len - self.geometry.place(position);
        position + len + if len > room { room } else { 0 }
    }

    /// Stores `record` at `position` of a lane, the end of the one before (0 in a new generation), and a pad before it where it would
    /// wrap, and starts writing both back. Durable after the same thread's [`fence`](Self::fence), and only then may the next be appended.
    /// Gives the position after it.
    ///
    /// The caller sees to it that the lane is [`provide`](Self::provide)d, that nobody else writes it, and that
    /// [`end_of`](Self::end_of) the record is at most [`lane_len`](Self::lane_len) beyond the lane's tail.
    #[inline]
    pub fn append(&self, lane: usize, position: u64, record: &RecordBuilder) -> Result<u64> {
        debug_assert!(record.ts() > 0 && position.is_multiple_of(LINE as u64) && self.provided[lane].load(Relaxed));
        let seed = self.seeds[lane];
        let at = self.geometry.place(position);
        // A line always fits: laps and records are whole lines.
        if let Some(line) = record.compact(seed, position) {
            let off = self.geometry.lane_off(lane) + at;
            self.region.store_line(off, &line)?;
            self.fetch_next(off + LINE as u64);
            return Ok(position + LINE as u64);
        }
        self.append_long(lane, position, record)
    }

    /// The next record's line comes while the transaction that will need it still runs.
    #[inline]
    fn fetch_next(&self, off: u64) {
        persist::prefetch_to_write(std::ptr::without_provenance(self.mapped.wrapping_add(off as usize)));
    }

    fn append_long(&self, lane: usize, mut position: u64, record: &RecordBuilder) -> Result<u64> {
        let len = record.len();
        if len > self.record_len_max() {
            return Err(Error::LogFull { pool: self.pool.clone(), capacity: self.record_len_max() });
        }
        let seed = self.seeds[lane];
        let off = |position: u64| self.geometry.lane_off(lane) + position % self.geometry.lane_len;
        let room = self.geometry.lane_len - position % self.geometry.lane_len;
        if len > room {
            self.region.store(off(position), bytemuck::bytes_of(&record::pad(seed, position, room)))?;
            self.region.write_back(off(position), LINE as u64);
            position += room;
        }
        let off = off(position);
        // Stored, however long, and not streamed: what a killed process streamed and did not fence, no write-back by the next one makes
        // durable.
        record.long(seed, position, |first, rest| -> Result<()> {
            self.region.store(off, bytemuck::bytes_of(first))?;
            let rest: &[u8] = bytemuck::cast_slice(rest);
            if !rest.is_empty() {
                self.region.store(off + LINE as u64, rest)?;
            }
            self.region.write_back(off, len);
            Ok(())
        })?;
        self.fetch_next(off + len);
        Ok(position + len)
    }

    /// Returns when everything this thread appended is durable.
    #[inline]
    pub fn fence(&self) -> Result<()> {
        Ok(self.region.fence()?)
    }
}
