//! Recovery of lanes: bringing the image up to the newest record of each.
//!
//! The kernel has let go of what a failed sync left (`open.rs`).
//!
//! 1. Read the newest whole cut, and scan each lane from its tail while records check out. A whole record behind the first that does
//!    not is damage: the next record is only appended behind a durable one. Everything is checked here, before a byte is written; the heap as these records leave it is laid over the image and its roots and run headers are checked by the caller.
//! 2. Make durable what was read. After a crash of the process alone, cut and records may still be in the CPU's or the kernel's
//!    cache; after a sync that failed, the kernel shows them and will never write them. So all of it is written again
//!    ([`Region::rewrite`]) and fenced. The image must never get ahead of durable records, and the next cut takes the place of the
//!    one before this.
//! 3. Replay: store the words into the image in the order of the timestamps; write back. A record that is not there
//!    any more was in a page that something else held, and not on the device: opening begins once more at 1.
//!    Idempotent: stopping anywhere and starting again from 1 gives the same image, because cut and records are as
//!    they were.
//! 4. A new stamp for both files, for which the lanes are of the next generation and empty (`stamp.rs`). Its fence of the image makes what
//!    was replayed durable.
//! 5. A new cut: the next generation, nothing in its lanes. This one write retires all records. Before its fence the older cut may come
//!    back, and with it 1; after it, the image is complete and the lanes are empty.

use towa_media::{Medium, Region};

use super::cursor::{Cursor, Fault, merge};
use super::replay::Replayer;
use super::{Cut, Geometry, record};
use crate::overlay::Overlay;
use crate::stamp::Reach;
use crate::superblock::Superblock;
use crate::{Error, Result};

/// What the lanes hold that the image does not.
#[derive(Debug)]
pub(crate) struct Live {
    pub cut: Cut,
    /// Where each lane's live part ends.
    pub heads: Vec<u64>,
    /// Frontier as of the newest record.
    pub frontier: u64,
    /// Words that are to be stored, and records that they are in.
    pub words: u64,
    /// See `words`.
    pub records: u64,
    /// Timestamp of the newest of these.
    pub newest_ts: u64,
    /// End of the last word in the heap.
    pub words_end: u64,
    /// What these records wrote into the first `keep` bytes of the heap.
    pub overlay: Overlay,
}

impl Live {
    /// Reads and checks, writes nothing. The words of the first `keep` bytes are kept. `in_place`: nobody writes meanwhile.
    pub fn find(medium: &dyn Medium, log: &dyn Region, sb: &Superblock, keep: u64, in_place: bool) -> Result<Live> {
        let damaged = |what| Error::Damaged { pool: medium.location(), what };
        let faulty = |fault| damaged(says(&fault));
        let cut = Cut::read(log, sb)?.map_err(damaged)?;
        let geometry = Geometry::of(sb);
        let cursors = || -> Vec<_> {
            let seed = |lane| record::lane_seed(&sb.uuid, cut.generation, lane);
            let span = |lane: usize| (cut.tails[lane], cut.tails[lane] + geometry.lane_len);
            (0..geometry.count).map(|lane| Cursor::new(log, &geometry, lane, seed(lane), span(lane), in_place)).collect()
        };
        let (mut first, mut live) = (cursors(), Live::nothing(cut, keep));
        for cursor in &mut first {
            cursor.find()?.map_err(faulty)?;
        }
        let merged = merge(&mut first, u64::MAX, |cursor| {
            let ts = cursor.ts();
            live.add(ts, cursor.record()?, sb).map_err(|what| Error::Damaged { pool: medium.location(), what })
        });
        merged?.map_err(faulty)?;
        // A pool that was closed has nothing in its lanes.
        for cursor in first.iter_mut().filter(|_| sb.clean == 0) {
            cursor.check_end()?.map_err(faulty)?;
        }
        live.heads = first.iter().map(|cursor| cursor.position).collect();
        Ok(live)
    }

    fn nothing(cut: Cut, keep: u64) -> Live {
        let overlay = Overlay::new(keep);
        Live { heads: Vec::new(), frontier: cut.frontier, words: 0, records: 0, newest_ts: cut.ts, words_end: 0, overlay, cut }
    }

    fn add(&mut self, ts: u64, words: &[u64], sb: &Superblock) -> std::result::Result<(), String> {
        if let Some(frontier) = record::frontier(words) {
            if frontier > sb.heap_len || !frontier.is_multiple_of(u64::from(sb.chunk_len)) {
                return Err(format!("a record of the log has an impossible frontier, {frontier}"));
            }
            if ts > self.cut.ts {
                self.frontier = self.frontier.max(frontier);
            }
        }
        if ts <= self.cut.ts {
            return Ok(());
        }
        self.records += 1;
        self.newest_ts = ts;
        let _: std::result::Result<(), ()> = record::each_run(words, |words| {
            self.words += words.values.len() as u64;
            self.words_end = self.words_end.max((words.first + words.values.len() as u64) * 8);
            self.overlay.add_words(words.first, words.values);
            Ok(())
        });
        Ok(())
    }

    /// Step 2.
    pub fn make_durable(&self, log: &dyn Region, sb: &Superblock) -> Result<()> {
        let geometry = Geometry::of(sb);
        self.cut.rewrite(log)?;
        for (lane, &head) in self.heads.iter().enumerate() {
            let (off, tail) = (geometry.lane_off(lane), self.cut.tails[lane]);
            let at = tail % geometry.lane_len;
            let first = (head - tail).min(geometry.lane_len - at);
            for (at, len) in [(at, first), (0, head - tail - first)] {
                if len > 0 {
                    log.rewrite_range(off + at, len)?;
                }
            }
        }
        Ok(log.fence()?)
    }

    /// Step 3. The image has space up to the frontier and [`words_end`](Self::words_end). Gives the lines written.
    pub fn replay(&self, replayer: &mut Replayer) -> Result<u64> {
        Ok(if self.records > 0 { replayer.store(&self.heads, u64::MAX, &mut || ())?.lines } else { 0 })
    }

    /// How far the image goes: at the least, and at most.
    pub fn span(&self) -> (Reach, Reach) {
        ((self.cut.generation, self.cut.ts), (self.cut.generation, self.newest_ts))
    }

    /// Bytes of lanes that are live.
    pub fn len(&self) -> u64 {
        self.heads.iter().zip(&self.cut.tails).map(|(head, tail)| head - tail).sum()
    }

    /// Lanes with live records.
    pub fn lanes_in_use(&self) -> u64 {
        self.heads.iter().zip(&self.cut.tails).filter(|(head, tail)| head > tail).count() as u64
    }
}

/// A fault, for messages.
pub(super) fn says(fault: &Fault) -> String {
    format!("the record at position {} of lane {} of the log {}", fault.position, fault.lane, fault.what)
}
