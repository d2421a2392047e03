//! Following the undo log of a pool in place, of which the copy becomes a pool with a ring.
//!
//! An undo log has the old bytes of lines, not the new ones. So the follower notes *which* lines each epoch changes, for as
//! long as the image is copied, and reads noted lines from the image once more when their epoch is durable. At the end it
//! reads those that are left, and lays over all of it what the epochs that are not durable would undo. Then the copy is as
//! of the epoch that is durable at that moment:
//!
//! - a line that no epoch changed since the beginning is in the copy as it is;
//! - a line that a durable epoch changed was noted, for its entry stays until the next epoch is durable, and each epoch
//!   was looked at in between; it is read after that epoch was durable, or copied with the image later still;
//! - a line that an epoch changes which is not durable has an entry, written before the change: whatever was read of
//!   it, the entry is looked for afterwards, and wins. If the epoch becomes durable, the line is noted, and read again.
//!
//! What must always hold: no epoch became durable, and the next one too, between two looks; or the attempt is given up.

use std::collections::BTreeMap;
use std::time::Duration;

use towa_media::{LINE, Region};

use super::{Follow, Laid};
use crate::overlay::Overlay;
use crate::recovery::first_anchor;
use crate::stamp::Reach;
use crate::superblock::Superblock;
use crate::undo::{Head, Seen, entries_from, newest_head};
use crate::{Error, Result};

/// Times that the end is tried while the owner goes on.
const TRIES: u32 = 20;
/// Times that heads are read of which neither is whole: one is being written, and then the other.
const READS: u32 = 10;
/// Bytes of memory that a noted line stands for when it is read.
const NOTED: usize = 4 * LINE;

/// Which lines were changed since the beginning.
pub(super) struct UndoFollower<'f> {
    image: &'f dyn Region,
    log: &'f dyn Region,
    pool: String,
    sb: Superblock,
    /// The epoch that was durable at the last look, and its frontier.
    head: Head,
    seen: Seen,
    /// The lines that each epoch changed and that were not read since that was durable.
    noted: BTreeMap<u64, Vec<u64>>,
    /// Those that were read at the end.
    lines: Lines,
}

/// Lines as they were read.
#[derive(Default)]
struct Lines(BTreeMap<u64, [u8; LINE]>);

impl Laid for Lines {
    fn lay(self: Box<Self>, copy: &dyn Region, upto: u64, later: &mut Overlay) -> Result<()> {
        // What lies behind `upto` is copied later than it was read here.
        self.0.range(..upto / LINE as u64).for_each(|(index, line)| later.add(*index, line));
        later.write_below(copy, upto)
    }
}

impl<'f> UndoFollower<'f> {
    /// From now on.
    pub fn of(pool: String, image: &'f dyn Region, log: &'f dyn Region, sb: &Superblock) -> Result<UndoFollower<'f>> {
        // It has an owner, who may have opened it since: what it said of its being closed is over.
        let sb = Superblock { clean: 0, ..*sb };
        let head = head(&pool, log, &sb)?;
        let (seen, noted, lines) = Default::default();
        Ok(UndoFollower { image, log, pool, sb, head, seen, noted, lines })
    }

    /// Reads the lines that epochs up to `upto` changed.
    fn read_noted(&mut self, upto: u64) -> Result<Lines> {
        let later = self.noted.split_off(&(upto + 1));
        let mut indexes: Vec<u64> = std::mem::replace(&mut self.noted, later).into_values().flatten().collect();
        indexes.sort_unstable();
        indexes.dedup();
        let read = |index: u64| {
            let mut line = [0; LINE];
            self.image.read(index * LINE as u64, &mut line)?;
            Ok((index, line))
        };
        Ok(Lines(indexes.into_iter().map(read).collect::<Result<_>>()?))
    }
}

fn head(pool: &str, log: &dyn Region, sb: &Superblock) -> Result<Head> {
    let mut found = newest_head(log, sb)?;
    for _ in 0..READS {
        if found.is_ok() {
            break;
        }
        super::wait();
        found = newest_head(log, sb)?;
    }
    found.map_err(|what| Error::Damaged { pool: pool.into(), what })
}

impl Follow for UndoFollower<'_> {
    fn poll(&mut self) -> Result<bool> {
        let before = head(&self.pool, self.log, &self.sb)?;
        if before.epoch > self.head.epoch + 1 {
            log::debug!("{}: {} epochs became durable between two looks", self.pool, before.epoch - self.head.epoch);
            return Ok(false);
        }
        // Those of the epoch at the last look are noted: each was durable then.
        let noted = &mut self.noted;
        self.seen
            .look(self.log, &self.sb, self.head.epoch + 1, &mut |epoch, lines| noted.entry(epoch).or_default().extend(lines))?;
        let after = head(&self.pool, self.log, &self.sb)?;
        // What became durable since the last look has its entries until the next epoch does. (One that becomes durable during the look
        // may get more entries than were seen; the next look finds them.)
        if before.epoch > self.head.epoch && after.epoch != before.epoch {
            return Ok(false);
        }
        self.head = before;
        Ok(true)
    }

    fn finish(&mut self) -> Result<bool> {
        for _ in 0..TRIES {
            if !self.poll()? {
                return Ok(false);
            }
            // What epochs that are not durable change is undone below, and stays noted for another try.
            let mut read = self.read_noted(self.head.epoch)?;
            self.lines.0.append(&mut read.0);
            // An older epoch's entry wins, and any entry over what was read.
            let mut undone: BTreeMap<u64, (u64, [u8; LINE])> = BTreeMap::new();
            entries_from(self.log, &self.sb, self.head.epoch + 1, &mut |epoch, index, line| {
                let entry = undone.entry(index).or_insert((epoch, *line));
                if epoch < entry.0 {
                    *entry = (epoch, *line);
                }
            })?;
            if head(&self.pool, self.log, &self.sb)?.epoch != self.head.epoch {
                continue;
            }
            self.lines.0.extend(undone.into_iter().map(|(index, (_, line))| (index, line)));
            return Ok(true);
        }
        Ok(false)
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(2)
    }

    fn kept(&self) -> usize {
        // Only what can be taken: at most what two epochs change is left.
        self.noted.range(..=self.head.epoch).map(|(_, lines)| lines.len()).sum::<usize>() * NOTED
    }

    fn take(&mut self) -> Result<Box<dyn Laid>> {
        let mut lines = self.read_noted(self.head.epoch)?;
        lines.0.append(&mut self.lines.0);
        Ok(Box::new(lines))
    }

    fn frontier(&self) -> u64 {
        self.head.frontier
    }

    fn write_log(&self, _: &dyn Region, sb: &mut Superblock) -> Result<Reach> {
        *sb = Superblock { applied_epoch: 0, anchor: first_anchor(&sb.uuid), tail: 0, frontier: self.head.frontier, ..*sb };
        Ok((0, 0))
    }
}
