//! Following the ring of a pool of the epoch door: one epoch after the other, as their commit records appear.
//!
//! What must always hold: an epoch's lines are used only when all of its frames were read and checked; the next epoch
//! names the checksum of this one. A commit slot with a later epoch, and a frame that does not check out, mean that
//! the owner was faster. So does, at the end, a slot that is just being written: what it holds now may be of a later lap.

use std::sync::Arc;
use std::time::Duration;

use towa_media::{LINE, Medium, Region};

use super::{Follow, Laid};
use crate::image::{Batch, applied_together};
use crate::log::commit::Commit;
use crate::log::{COMMIT_SLOT, Fault, Identity, Log};
use crate::overlay::Overlay;
use crate::stamp::Reach;
use crate::superblock::Superblock;
use crate::{Error, Result};

/// The bytes of a commit record.
type Slot = [u8; size_of::<Commit>()];

/// Half a record that is being written is another one after so many looks, each of half a millisecond.
const LOOKS: u32 = 40;

/// How far a ring was read.
pub(super) struct Ring<'r> {
    region: &'r dyn Region,
    log: Log,
    pool: String,
    sb: Superblock,
    /// No program has the pool open, and it was verified.
    is_still: bool,
    /// The newest epoch that was read; `None`: that of the superblock.
    newest: Option<Commit>,
    runs: Runs,
}

/// Runs of lines in the order of the log, one after the other: the first line's index, the number of lines, the
/// lines.
#[derive(Default)]
struct Runs(Vec<u8>);

impl Runs {
    fn add(&mut self, first: u64, bytes: &[u8]) {
        self.0.extend_from_slice(&first.to_le_bytes());
        self.0.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }
}

impl Laid for Runs {
    fn lay(self: Box<Self>, copy: &dyn Region, upto: u64, later: &mut Overlay) -> Result<()> {
        later.write_below(copy, upto)?;
        let mut batch = Batch::new(copy, applied_together(self.0.len() as u64) as usize);
        let (mut rest, upto) = (&self.0[..], upto / LINE as u64);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(16);
            let (first, len) = (number(&head[..8]), number(&head[8..]) as usize);
            let (run, tail) = tail.split_at(len);
            let now = (upto.saturating_sub(first) as usize).saturating_mul(LINE).min(len);
            batch.add(first, &run[..now], &mut || ())?;
            later.add(first + (now / LINE) as u64, &run[now..]);
            rest = tail;
        }
        batch.write()
    }
}

impl<'r> Ring<'r> {
    /// From where the superblock says that the live log begins.
    pub fn of(medium: &dyn Medium, region: &'r Arc<dyn Region>, sb: &Superblock, is_still: bool) -> Ring<'r> {
        let identity = Identity { uuid: sb.uuid, generation: 0 };
        let log = Log::new(medium, Arc::clone(region), identity, sb.commit_slots, sb.ring_len, (sb.tail, sb.tail));
        Ring { region: &**region, log, pool: medium.location(), sb: *sb, is_still, newest: None, runs: Runs::default() }
    }

    fn slot(&self, epoch: u64) -> Result<Slot> {
        let mut bytes = [0u8; size_of::<Commit>()];
        self.region.read(epoch % u64::from(self.sb.commit_slots) * COMMIT_SLOT, &mut bytes)?;
        Ok(bytes)
    }

    /// The record in the slot of `epoch`, if it is whole.
    fn record(&self, epoch: u64) -> Result<Option<Commit>> {
        Ok(whole(&self.slot(epoch)?).filter(|commit| commit.uuid == self.sb.uuid))
    }

    /// Epoch, checksum, and end in the log of what was read.
    fn end(&self) -> (u64, u64, u64) {
        self.newest.map_or((self.sb.applied_epoch, self.sb.anchor, self.sb.tail), |c| (c.epoch, c.checksum, c.end))
    }
}

/// Whether a slot holds half a record, and becomes another one while it is looked at: the owner is writing it. That may be the record of
/// an epoch which comes a whole lap later. Half a record that stays as it is was left by a crash.
fn is_being_written(mut slot: impl FnMut() -> Result<Slot>) -> Result<bool> {
    let seen = slot()?;
    if whole(&seen).is_some() || seen == [0; size_of::<Commit>()] {
        return Ok(false);
    }
    for _ in 0..LOOKS {
        super::wait();
        if slot()? != seen {
            return Ok(true);
        }
    }
    Ok(false)
}

fn whole(slot: &Slot) -> Option<Commit> {
    let commit: Commit = bytemuck::pod_read_unaligned(slot);
    commit.is_whole().then_some(commit)
}

impl Follow for Ring<'_> {
    fn poll(&mut self) -> Result<bool> {
        loop {
            let (epoch, prev, position) = self.end();
            let Some(next) = self.record(epoch + 1)?.filter(|next| next.epoch > epoch) else { return Ok(true) };
            if (next.epoch, next.prev, next.start) != (epoch + 1, prev, position) {
                log::debug!("{}: epoch {} was overwritten by epoch {}", self.pool, epoch + 1, next.epoch);
                return Ok(false);
            }
            let before = self.runs.0.len();
            let runs = &mut self.runs;
            let read = self.log.try_replay(&next, &mut |first, bytes| {
                if first + (bytes.len() / LINE) as u64 > self.sb.heap_len / LINE as u64 {
                    let what = format!("redo log of epoch {}: a line lies outside the heap", next.epoch);
                    return Err(Error::Damaged { pool: self.pool.clone(), what });
                }
                runs.add(first, bytes);
                Ok(())
            });
            match read {
                Ok(()) => {}
                // After a crash the newest epoch may lack frames: it was never acknowledged, and is in no image. (An
                // owner that works has overwritten them.)
                Err(Fault::Incomplete(why)) if self.is_still && !next.may_lack_frames() => {
                    return Err(self.log.damaged(&next, why));
                }
                Err(Fault::Incomplete(why)) => {
                    log::debug!("{}: epoch {}: {why}", self.pool, epoch + 1);
                    self.runs.0.truncate(before);
                    return Ok(self.is_still);
                }
                Err(Fault::Other(e)) => return Err(e),
            }
            self.newest = Some(next);
        }
    }

    fn finish(&mut self, _: &dyn Region) -> Result<bool> {
        // Lines are written into the image only after their commit record.
        loop {
            if !self.poll()? {
                return Ok(false);
            }
            let next = self.end().0 + 1;
            if self.is_still || !is_being_written(|| self.slot(next))? {
                break;
            }
        }
        if self.newest.is_none() && self.sb.applied_epoch > 0 {
            self.newest = self.record(self.sb.applied_epoch)?.filter(|commit| commit.checksum == self.sb.anchor);
            return Ok(self.newest.is_some());
        }
        Ok(true)
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(2)
    }

    fn kept(&self) -> usize {
        self.runs.0.len()
    }

    fn take(&mut self) -> Result<Box<dyn Laid>> {
        Ok(Box::new(std::mem::take(&mut self.runs)))
    }

    fn frontier(&self) -> u64 {
        self.newest.map_or(self.sb.frontier, |commit| commit.frontier)
    }

    fn write_log(&self, log: &dyn Region, sb: &mut Superblock) -> Result<Reach> {
        if let Some(newest) = &self.newest {
            let off = newest.epoch % u64::from(sb.commit_slots) * COMMIT_SLOT;
            log.store(off, bytemuck::bytes_of(newest))?;
            log.write_back(off, size_of::<Commit>() as u64);
            (sb.applied_epoch, sb.anchor) = (newest.epoch, newest.checksum);
            (sb.tail, sb.frontier) = (newest.end, newest.frontier);
            sb.generation = sb.generation.max(newest.generation);
        }
        Ok((0, sb.applied_epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_record_is_looked_at_again() {
        let looks = |slots: &[u8]| {
            let mut slots = slots.iter();
            let mut last = 0;
            is_being_written(|| {
                last = slots.next().copied().unwrap_or(last);
                Ok([last; size_of::<Commit>()])
            })
            .unwrap()
        };
        assert!(!looks(&[0]), "an empty slot");
        assert!(!looks(&[7]), "what a crash left");
        assert!(looks(&[7, 7, 7, 8]), "the owner writes it");
        assert!(looks(&[7, 0]));
    }
}
