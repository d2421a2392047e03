//! Recovery: finding the newest committed epoch and bringing the image up to it.
//!
//! The kernel has let go of what a failed sync left (`open.rs`).
//!
//! 1. Read the superblock and all commit records; follow the chain from the superblock's anchor, whose own record must still be in its
//!    slot. The chain must be gapless: a valid record beyond its end means that something before it was damaged, and the pool is
//!    refused.
//! 2. Check every frame of every live epoch, and the roots and run headers as these epochs leave them, before a single byte is
//!    written. An epoch that was written on a sync medium may have a record without all of its frames (one `fdatasync` covers
//!    both), if it is the newest: it was never acknowledged, and is dropped whole. The record says which kind of medium
//!    that was; the pool may be on another one by now, as a backup is.
//! 3. Make durable what was read. After a crash of the process alone, the superblock, its name, commit records and frames may still
//!    be in the CPU's or the kernel's cache; after a sync that failed, the kernel shows them and will never write them. So all of
//!    it is written again ([`Region::rewrite`]) and fenced. The image must never get ahead of a durable log, and the next
//!    superblock takes the place of the one before this. Stopping here: what was durable is written over with the same bytes, and
//!    only the newest epoch can have parts that were not durable; it was never acknowledged.
//! 4. Replay, which checks each frame again: what step 2 read from the page cache may have been what a failed sync
//!    left, in pages that something else held. If a frame is not there, opening begins once more at 1.
//!    Idempotent: stopping anywhere and starting again from 1 gives the same image, because the log is still live.
//! 5. Fence the image. Line media: say so in the superblock. Sync media: the log stays live until the persister next cuts it.

use std::time::Duration;

use towa_media::{LINE, Medium, Region};

use crate::checksum::checksum;
use crate::log::commit::{self, Commit};
use crate::log::{COMMIT_SLOT, Fault, Log};
use crate::overlay::Overlay;
use crate::stamp::Reach;
use crate::superblock::Superblock;
use crate::{Error, Result};

/// What recovery found and did.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Recovery {
    /// Newest committed epoch: the state the heap is in. Of tx pools 0.
    pub epoch: u64,
    /// Epochs replayed from the log.
    pub epochs_replayed: u64,
    /// Lines replayed; in place: lines undone; tx: lines of the image that were written for it.
    pub lines_replayed: u64,
    /// Records replayed from lanes (tx only).
    pub records_replayed: u64,
    /// Whether a commit record without all of its frames was dropped (of epochs written on sync media).
    pub dropped_incomplete: bool,
    /// Whether the pool had been closed cleanly.
    pub clean: bool,
    /// Time taken.
    pub elapsed: Duration,
}

/// The live chain: commits after the superblock's, oldest first.
#[derive(Debug)]
pub(crate) struct Chain {
    pub commits: Vec<Commit>,
    pub dropped_incomplete: bool,
    /// What these epochs wrote into the first `keep` bytes of the heap.
    pub lines: Overlay,
}

impl Chain {
    /// Epoch, commit checksum, log position and frontier at the chain's end.
    pub fn end(&self, sb: &Superblock) -> (u64, u64, u64, u64) {
        self.commits
            .last()
            .map_or((sb.applied_epoch, sb.anchor, sb.tail, sb.frontier), |c| (c.epoch, c.checksum, c.end, c.frontier))
    }

    /// How far the image goes: at the least, and at most.
    pub fn span(&self, sb: &Superblock) -> (Reach, Reach) {
        ((0, sb.applied_epoch), (0, self.end(sb).0))
    }

    /// Greatest generation seen.
    pub fn generation(&self, sb: &Superblock) -> u64 {
        self.commits.last().map_or(0, |c| c.generation).max(sb.generation)
    }
}

/// Steps 1 and 2, but for the roots and headers: reads and checks, writes nothing. The lines of the first `keep` bytes are kept.
pub(crate) fn find_chain(medium: &dyn Medium, log_region: &dyn Region, log: &Log, sb: &Superblock, keep: u64) -> Result<Chain> {
    let damaged = |what: String| Error::Damaged { pool: medium.location(), what };
    let all = commit::read_all(&medium.location(), log_region, sb.commit_slots, &sb.uuid)?;
    check_anchor(&all, sb).map_err(damaged)?;
    let mut commits: Vec<Commit> = all.into_iter().filter(|c| c.epoch > sb.applied_epoch).collect();
    let (mut epoch, mut prev, mut position) = (sb.applied_epoch, sb.anchor, sb.tail);
    let mut generation = 0;
    for c in &commits {
        if c.epoch != epoch + 1 {
            return Err(damaged(format!(
                "the commit record of epoch {} is missing, that of epoch {} is there",
                epoch + 1,
                c.epoch
            )));
        }
        if c.prev != prev || c.start != position || c.generation < generation || c.end - c.start > sb.ring_len {
            return Err(damaged(format!("the commit record of epoch {} does not follow the one before it", c.epoch)));
        }
        if c.frontier > sb.heap_len || c.frontier % u64::from(sb.chunk_len) != 0 {
            return Err(damaged(format!("the commit record of epoch {} has an impossible frontier", c.epoch)));
        }
        (epoch, prev, position, generation) = (c.epoch, c.checksum, c.end, c.generation);
    }
    if position - sb.tail > sb.ring_len {
        return Err(damaged("live epochs are longer than the log".into()));
    }
    let lines = sb.heap_len / LINE as u64;
    let mut dropped_incomplete = false;
    let mut kept = Overlay::new(keep);
    for i in 0..commits.len() {
        let mut its_lines = Overlay::new(keep);
        let checked = log.try_replay(&commits[i], &mut |first, bytes| {
            let end = first + (bytes.len() / LINE) as u64;
            if end <= lines {
                its_lines.add(first, bytes);
                Ok(())
            } else {
                Err(damaged(format!("redo log of epoch {}: a line lies outside the heap", commits[i].epoch)))
            }
        });
        match checked {
            Ok(()) => {
                kept.append(its_lines);
            }
            Err(Fault::Incomplete(_)) if i + 1 == commits.len() && commits[i].may_lack_frames() => {
                dropped_incomplete = true;
            }
            Err(Fault::Incomplete(why)) => return Err(log.damaged(&commits[i], why)),
            Err(Fault::Other(e)) => return Err(e),
        }
    }
    if dropped_incomplete {
        commits.pop();
    }
    Ok(Chain { commits, dropped_incomplete, lines: kept })
}

/// The commit record of `applied_epoch` must still be in its slot, as the superblock knows it: without this, a log that lost its
/// newest records would look like one that is empty beyond that epoch.
///
/// No crash makes it untrue. The superblock names epoch e only after e's record was fenced (`EpochWriter::commit`, or step 3 below).
/// The slot's next user is epoch e + slots; it is written only while at most slots - 2 epochs are live (the caller of `EpochWriter`
/// sees to it), so only after a later epoch was named, and [`cut`](crate::Heap::cut) frees live epochs only after the superblock that
/// says so was fenced. Until then the older superblock may come back, and nothing it needs was overwritten.
fn check_anchor(all: &[Commit], sb: &Superblock) -> std::result::Result<(), String> {
    let epoch = sb.applied_epoch;
    if epoch == 0 {
        // Within the first turn of the ring: a new log begins at 0, but for those that crash tests make (`create_with_log`).
        let fresh = sb.anchor == first_anchor(&sb.uuid) && sb.tail < sb.ring_len;
        return if fresh { Ok(()) } else { Err("superblock fields contradict each other".into()) };
    }
    match all.iter().find(|c| c.epoch == epoch) {
        Some(c) if (c.checksum, c.end, c.frontier) == (sb.anchor, sb.tail, sb.frontier) => Ok(()),
        Some(_) => Err(format!("the commit record of epoch {epoch} is not the one that the superblock knows")),
        None => Err(format!("the commit record of epoch {epoch}, up to which the image goes, is missing from the log")),
    }
}

/// What stands for the checksum of a commit record before the first epoch.
pub(crate) fn first_anchor(uuid: &[u8; 16]) -> u64 {
    checksum(0, uuid)
}

/// Steps 3 and 4. Gives the number of lines replayed.
pub(crate) fn replay(log_region: &dyn Region, log: &Log, image: &dyn Region, chain: &Chain, sb: &Superblock) -> Result<u64> {
    let slots = u64::from(sb.commit_slots);
    for c in &chain.commits {
        log_region.rewrite_range((c.epoch % slots) * COMMIT_SLOT, COMMIT_SLOT)?;
        let (ring, len) = (slots * COMMIT_SLOT, c.end - c.start);
        let at = c.start % sb.ring_len;
        let first = len.min(sb.ring_len - at);
        log_region.rewrite_range(ring + at, first)?;
        log_region.rewrite_range(ring, len - first)?;
    }
    if !chain.commits.is_empty() || sb.clean == 0 {
        log_region.fence()?;
        // What was held in the cache when opening began: the replay reads what the device has. (The image was let go of
        // before its stamp was written.)
        log_region.evict();
    }
    let mut lines = 0;
    for c in &chain.commits {
        log.replay(c, &mut |first, bytes| {
            lines += (bytes.len() / LINE) as u64;
            Ok(image.stream(first * LINE as u64, bytes)?)
        })?;
    }
    Ok(lines)
}
