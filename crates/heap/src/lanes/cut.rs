//! The cut: the record of how far the image goes, and so where the live part of each lane begins.
//!
//! ```text
//!   | cut slot 0 (4096 bytes) | cut slot 1 (4096 bytes) |      a cut is 640 bytes at the start of a slot
//! ```
//!
//! Update, as that of the superblock: write the slot that does not hold the newest cut, fence. Stopping before the fence leaves the
//! other slot untouched and valid; a torn one fails its checksum. So one whole cut is always there, and the one with the greater
//! `seq` wins. What must always hold before: the image is durable up to what the new cut says; and after: only now is the lane space
//! before its tails free, and are records of another generation gone.
//!
//! A pool that was never opened has none: its log is blank, and its image goes as far as an empty heap does.

use bytemuck::{Pod, Zeroable};
use towa_media::{LINE, Region};

use super::{Geometry, LANES_MAX};
use crate::Result;
use crate::alloc::CHUNK;
use crate::checksum::checksum;
use crate::superblock::{COUNTERS_END, Superblock};

/// First bytes of every cut.
const MAGIC: [u8; 8] = *b"TWCUTR01";
/// Bytes between slots.
pub(super) const SLOT: u64 = 4096;

/// A cut, as stored (little endian).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Cut {
    magic: [u8; 8],
    /// The pool's.
    uuid: [u8; 16],
    /// Grows by one with each cut; the greater wins.
    pub seq: u64,
    /// Records of this generation alone count.
    pub generation: u64,
    /// The image holds every record of this generation up to this timestamp, durably.
    pub ts: u64,
    /// Allocator frontier as of these.
    pub frontier: u64,
    /// Number of lanes.
    lanes: u32,
    /// Zero; others are refused.
    flags: u32,
    /// Of each lane: the position at which its live part begins. Those of lanes that are not there are zero.
    pub tails: [u64; LANES_MAX as usize],
    reserved: [u64; 7],
    /// Of all bytes before, seeded with the magic.
    checksum: u64,
}

const _: () = assert!(size_of::<Cut>() == 640);

impl Cut {
    /// Tails of empty lanes of a new generation.
    pub const EMPTY: [u64; LANES_MAX as usize] = [0; LANES_MAX as usize];

    /// What stands for the cut of a pool that was never opened.
    pub fn blank(sb: &Superblock) -> Cut {
        Cut { magic: MAGIC, uuid: sb.uuid, frontier: CHUNK, lanes: sb.commit_slots, ..Cut::zeroed() }
    }

    fn sum(&self) -> u64 {
        checksum(u64::from_le_bytes(MAGIC), &bytemuck::bytes_of(self)[..632])
    }

    /// Gives it the checksum that fits its fields.
    pub fn seal(&mut self) {
        self.checksum = self.sum();
    }

    fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.checksum == self.sum()
    }

    /// The newest whole cut in file `log`; what is wrong is said.
    pub fn read(log: &dyn Region, sb: &Superblock) -> Result<std::result::Result<Cut, String>> {
        let mut slots = [Cut::zeroed(); 2];
        for (i, slot) in slots.iter_mut().enumerate() {
            log.read(i as u64 * SLOT, bytemuck::bytes_of_mut(slot))?;
        }
        let Some(newest) = slots.iter().filter(|slot| slot.is_whole()).max_by_key(|slot| slot.seq) else {
            // The first cut is durable before the superblock says that the pool was opened, and before any lane is written: where records
            // are, the newer superblock and the cuts are damaged.
            let fresh = sb.generation == 0 && is_blank(log, &Geometry::of(sb))?;
            return Ok(if fresh { Ok(Cut::blank(sb)) } else { Err("no cut slot of the log has a valid checksum".into()) });
        };
        Ok(newest.check(sb).map(|()| *newest))
    }

    fn check(&self, sb: &Superblock) -> std::result::Result<(), String> {
        if self.uuid != sb.uuid {
            return Err("the log is that of another pool".into());
        }
        if self.flags != 0 {
            return Err("the newest cut of the log has flags that this version does not know".into());
        }
        let sane = self.lanes == sb.commit_slots
            && self.frontier.is_multiple_of(CHUNK)
            && (CHUNK..=sb.heap_len).contains(&self.frontier)
            && [self.seq, self.generation].iter().chain(&self.tails).all(|n| *n < COUNTERS_END)
            && self.tails.iter().all(|tail| tail.is_multiple_of(LINE as u64))
            && self.tails[self.lanes as usize..].iter().all(|tail| *tail == 0);
        if sane { Ok(()) } else { Err("fields of the newest cut of the log contradict each other".into()) }
    }

    /// Has the log's next fence make this cut durable, which was read from it.
    pub fn rewrite(&self, log: &dyn Region) -> Result<()> {
        // A pool that was never opened has none.
        let off = (self.seq % 2) * SLOT;
        if self.seq == 0 { Ok(()) } else { Ok(log.rewrite(off, bytemuck::bytes_of(self))?) }
    }

    /// Writes this with the next `seq` over the older slot, and makes it durable.
    pub fn write(&mut self, log: &dyn Region) -> Result<()> {
        let mut next = *self;
        next.seq += 1;
        next.seal();
        let off = (next.seq % 2) * SLOT;
        log.store(off, bytemuck::bytes_of(&next))?;
        log.write_back(off, size_of::<Cut>() as u64);
        log.fence()?;
        *self = next;
        Ok(())
    }
}

/// Whether no lane was ever written.
fn is_blank(log: &dyn Region, geometry: &Geometry) -> Result<bool> {
    for lane in 0..geometry.count {
        let mut first = [0; LINE];
        log.read(geometry.lane_off(lane), &mut first)?;
        if first != [0; LINE] {
            return Ok(false);
        }
    }
    Ok(true)
}
