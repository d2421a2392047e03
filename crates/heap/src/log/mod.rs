//! The redo log: epochs of 64-byte lines, each made durable by one commit record.
//!
//! ```text
//!   file `log`:
//!   | commit slot 0 | commit slot 1 | ... | commit slot n-1 |            ring            |
//!     4096 bytes each; epoch e in slot e % n                  frames, end to end, wrapping
//!
//!   ring, by logical position (only ever growing; byte = position % ring length):
//!        tail                          head
//!   ......|frame frame|frame frame frame|.......
//!          \ epoch e / \   epoch e+1   /
//! ```
//!
//! An epoch becomes durable in these steps; stopping after any of them is safe:
//! 1. frames are streamed into free ring space - nobody refers to it: the epoch is not there;
//! 2. line media: fence, so that a commit record never stands before its frames. (Sync media: one `fdatasync` covers frames and
//!    record; the record's digest over the frames tells whether all of them arrived);
//! 3. the commit record is written to its own slot, whose former record is older than the tail: torn, it fails its checksum and
//!    the epoch is not there;
//! 4. fence: the epoch is durable.
//!
//! A commit record names its predecessor's checksum, so the live log is one unbroken chain from the superblock's anchor.

pub mod commit;
pub mod frame;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

use towa_media::{Durability, Medium, Region};

use crate::Result;
use crate::error::Error;
use commit::Commit;
pub use frame::FrameBuilder;
pub use writer::EpochWriter;

/// Bytes of a commit slot: a page of its own, so that no write ever touches the page of another commit.
pub const COMMIT_SLOT: u64 = 4096;
/// Smallest ring: what a door needs for one thread's transactions with room to go on, next to the two frames it keeps in hand.
pub const RING_MIN: u64 = 1 << 20;

const _: () = assert!(RING_MIN >= 4 * frame::FRAME_MAX as u64);

/// What a log's records are checked against.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The pool's.
    pub uuid: [u8; 16],
    /// This opening of the pool.
    pub generation: u64,
}

/// An open redo log.
#[derive(Debug)]
pub struct Log {
    region: Arc<dyn Region>,
    location: String,
    durability: Durability,
    identity: Identity,
    commit_slots: u64,
    ring_len: u64,
    /// Position where the oldest live epoch begins.
    tail: AtomicU64,
    /// Position after the newest committed epoch.
    head: AtomicU64,
}

impl Log {
    /// Length of file `log` for a ring of `ring_len` bytes.
    pub fn file_len(ring_len: u64, commit_slots: u32) -> u64 {
        u64::from(commit_slots) * COMMIT_SLOT + ring_len
    }

    /// The log in `region`, live from `tail` to `head`.
    pub(crate) fn new(
        medium: &dyn Medium,
        region: Arc<dyn Region>,
        identity: Identity,
        commit_slots: u32,
        ring_len: u64,
        (tail, head): (u64, u64),
    ) -> Log {
        Log {
            region,
            location: medium.location(),
            durability: medium.durability(),
            identity,
            commit_slots: u64::from(commit_slots),
            ring_len,
            tail: AtomicU64::new(tail),
            head: AtomicU64::new(head),
        }
    }

    /// File `log`.
    pub(crate) fn region(&self) -> &dyn Region {
        &*self.region
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> u64 {
        self.ring_len
    }

    /// Bytes of committed epochs that are not cut yet. Anyone may ask, beside the commits and the cuts.
    pub fn live(&self) -> u64 {
        loop {
            // The tail first, and again: between the two it may pass where the head was.
            let tail = self.tail.load(Acquire);
            let head = self.head.load(Acquire);
            if self.tail.load(Acquire) == tail {
                return head - tail;
            }
        }
    }

    /// Number of commit slots: at most this many minus one epochs may be live.
    pub fn commit_slots(&self) -> u64 {
        self.commit_slots
    }

    /// Offset in the file of ring position `position`.
    fn ring_off(&self, position: u64) -> u64 {
        self.commit_slots * COMMIT_SLOT + position % self.ring_len
    }

    /// Offset in the file of the commit slot of `epoch`.
    fn slot_off(&self, epoch: u64) -> u64 {
        (epoch % self.commit_slots) * COMMIT_SLOT
    }

    /// Frees ring space before `position`. The caller has made the image durable up to there, and said so in the superblock.
    pub(crate) fn cut(&self, position: u64) {
        debug_assert!(position >= self.tail.load(Relaxed) && position <= self.head.load(Relaxed));
        self.tail.store(position, Release);
    }

    /// Starts writing `epoch`, whose predecessor's commit checksum is `prev`. One epoch is written at a time.
    pub fn begin(&self, epoch: u64, prev: u64) -> EpochWriter<'_> {
        EpochWriter::new(self, epoch, prev)
    }

    /// Calls `each(first line index, line bytes)` for every run of a committed epoch, in replay order. Frames that do not check out are
    /// [`Error::Damaged`].
    pub(crate) fn replay(&self, commit: &Commit, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        self.try_replay(commit, each).map_err(|fault| match fault {
            Fault::Incomplete(why) => self.damaged(commit, why),
            Fault::Other(e) => e,
        })
    }

    /// [`replay`](Self::replay), telling frames that never arrived from frames that are wrong.
    pub(crate) fn try_replay(
        &self,
        commit: &Commit,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> std::result::Result<(), Fault> {
        let mut buffer = Vec::new();
        let mut position = commit.start;
        let mut digest = 0;
        for seq in 0..commit.frames {
            let (header, sum) = self.read_frame(position, commit, seq, &mut buffer)?;
            digest = commit::fold_digest(digest, sum);
            frame::runs(&header, &buffer, each)?;
            position += header.len;
        }
        if position != commit.end || digest != commit.digest {
            return Err(Fault::Incomplete("frames do not add up to what the commit record says".into()));
        }
        Ok(())
    }

    /// Like [`replay`](Self::replay) for an epoch that this process wrote and committed itself: on media with mapped bytes the frames
    /// are used where they lie, without another copy and another look at their checksums.
    pub(crate) fn replay_own(&self, commit: &Commit, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let Some(bytes) = self.region.bytes() else { return self.replay(commit, each) };
        let mut position = commit.start;
        while position < commit.end {
            let off = self.ring_off(position) as usize;
            // SAFETY: the region's mapped bytes, kept by `self.region`; live ring space is not written until it is cut.
            let rest = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>().add(off), bytes.len() - off) };
            let header: frame::Header = bytemuck::pod_read_unaligned(&rest[..frame::HEADER]);
            frame::runs(&header, &rest[..(header.len as usize)], each)?;
            position += header.len;
        }
        Ok(())
    }

    pub(crate) fn damaged(&self, commit: &Commit, why: String) -> Error {
        Error::Damaged { pool: self.location.clone(), what: format!("redo log of epoch {}: {why}", commit.epoch) }
    }

    /// Reads and checks frame `seq` of an epoch at `position`; its bytes are left in `buffer`.
    fn read_frame(
        &self,
        position: u64,
        commit: &Commit,
        seq: u32,
        buffer: &mut Vec<u8>,
    ) -> std::result::Result<(frame::Header, u64), Fault> {
        let room = self.ring_len - position % self.ring_len;
        let off = self.ring_off(position);
        let mut header = [0u8; frame::HEADER];
        self.region.read(off, &mut header).map_err(Error::from)?;
        let header: frame::Header = bytemuck::pod_read_unaligned(&header);
        header.check(commit, seq, room).map_err(Fault::Incomplete)?;
        buffer.resize(header.len as usize, 0);
        self.region.read(off, buffer).map_err(Error::from)?;
        let sum = frame::sum(buffer);
        if sum != header.checksum {
            return Err(Fault::Incomplete(format!("frame {seq} has a wrong checksum")));
        }
        frame::check_payload(&header, buffer).map_err(|why| self.damaged(commit, why))?;
        Ok((header, sum))
    }
}

/// Why an epoch's frames cannot be replayed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Some are not there, or in part: as after a crash before they were synced, or by damage.
    Incomplete(String),
    /// No crash leaves this.
    Other(Error),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Fault::Other(e)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use towa_media::Allocation;
    use towa_media::sim::{Model, SimMedium};

    use super::*;

    #[test]
    fn what_is_live_can_be_asked_beside_commits_and_cuts() {
        const EPOCH: u64 = 4096;
        let medium = SimMedium::new(Model::Line);
        let region = medium.create("log", Log::file_len(EPOCH, 2), Allocation::Full).unwrap();
        let log = Log::new(&medium, region, Identity { uuid: [0; 16], generation: 1 }, 2, EPOCH, (0, 0));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for end in (1..2_000_000).map(|n| n * EPOCH) {
                    log.head.store(end, Release);
                    log.cut(end);
                }
                over.store(true, Release);
            });
            while !over.load(Acquire) {
                let live = log.live();
                assert!(live == 0 || live == EPOCH, "{live} bytes");
            }
        });
    }
}
