//! Commit records: one per epoch, each in a slot of its own, chained by checksum.

use bytemuck::{Pod, Zeroable};
use towa_media::Region;

use super::{COMMIT_SLOT, Identity};
use crate::checksum::checksum;
use crate::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"TCOMMIT1");

/// Flag: the frames were durable before the record was written. Without it one sync made both durable, so a crash may leave the
/// record alone.
const FENCED: u32 = 1;

/// An epoch's commit record, as stored (little endian).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Commit {
    magic: u64,
    /// The pool's identity.
    pub uuid: [u8; 16],
    /// Opening of the pool that wrote it.
    pub generation: u64,
    /// The epoch.
    pub epoch: u64,
    /// Checksum of the commit record of the epoch before.
    pub prev: u64,
    /// Log position of the first frame.
    pub start: u64,
    /// Log position after the last frame.
    pub end: u64,
    /// Number of frames, pads included.
    pub frames: u32,
    /// 1: the frames were durable before this record was written; else 0.
    pub flags: u32,
    /// Lines in the frames.
    pub lines: u64,
    /// Allocator frontier: the end of every chunk carved by this epoch or before.
    pub frontier: u64,
    /// Digest over the frames' checksums in order ([`fold_digest`]).
    pub digest: u64,
    /// When, microseconds since 1970.
    pub unix_us: u64,
    reserved: [u64; 18],
    /// Checksum of all bytes before.
    pub checksum: u64,
}

const _: () = assert!(size_of::<Commit>() == 256);

/// The digest after one more frame with checksum `sum`.
pub fn fold_digest(digest: u64, sum: u64) -> u64 {
    checksum(digest, &sum.to_le_bytes())
}

impl Commit {
    /// A sealed record.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        identity: &Identity,
        epoch: u64,
        prev: u64,
        (start, end): (u64, u64),
        (frames, are_fenced): (u32, bool),
        lines: u64,
        frontier: u64,
        digest: u64,
    ) -> Commit {
        let unix_us = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        let mut c = Commit {
            magic: MAGIC,
            uuid: identity.uuid,
            generation: identity.generation,
            epoch,
            prev,
            start,
            end,
            frames,
            flags: if are_fenced { FENCED } else { 0 },
            lines,
            frontier,
            digest,
            unix_us,
            reserved: [0; 18],
            checksum: 0,
        };
        c.checksum = c.sum();
        c
    }

    fn sum(&self) -> u64 {
        checksum(MAGIC, &bytemuck::bytes_of(self)[..248])
    }

    /// Whether a crash may have left it without all of its frames.
    pub fn may_lack_frames(&self) -> bool {
        self.flags & FENCED == 0
    }

    /// Whether it is a whole record, of whichever pool.
    pub fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.checksum == self.sum() && self.start <= self.end
    }
}

/// All whole commit records in the slots of `region`, by epoch. One of another pool than `uuid` is an error: the files do not belong
/// together, and to ignore it would be to ignore what this pool had committed.
pub fn read_all(location: &str, region: &dyn Region, slots: u32, uuid: &[u8; 16]) -> Result<Vec<Commit>> {
    let mut found = Vec::new();
    let mut bytes = [0u8; size_of::<Commit>()];
    for slot in 0..u64::from(slots) {
        region.read(slot * COMMIT_SLOT, &mut bytes)?;
        let commit: Commit = bytemuck::pod_read_unaligned(&bytes);
        if !commit.is_whole() || commit.epoch % u64::from(slots) != slot {
            continue;
        }
        if commit.uuid != *uuid {
            let why = "file `log` belongs to another pool than file `superblock`".into();
            return Err(Error::Foreign { pool: location.into(), why });
        }
        if commit.flags & !FENCED != 0 || commit.reserved != [0; 18] {
            let what = format!(
                "the commit record of epoch {} is of a kind that this program does not know; use a newer Towa",
                commit.epoch
            );
            return Err(Error::Damaged { pool: location.into(), what });
        }
        found.push(commit);
    }
    found.sort_by_key(|c| c.epoch);
    Ok(found)
}
