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
use std::ops::Range;
use std::time::Duration;

use towa_media::{LINE, Region};

use super::{Follow, Laid};
use crate::overlay::Overlay;
use crate::recovery::first_anchor;
use crate::stamp::Reach;
use crate::superblock::Superblock;
use crate::undo::{Before, Head, Seen, entries_from, newest_head};
use crate::{Error, Result};

/// Times that the end is tried while the owner goes on.
const TRIES: u32 = 20;
/// Times that heads are read of which neither is whole: one is being written, and then the other.
const READS: u32 = 10;
/// Lines that are read at once.
const PIECE: u64 = 16 << 10;

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
    noted: BTreeMap<u64, Vec<Range<u64>>>,
    /// Those that were read at the end.
    lines: Lines,
}

/// Lines as they were read.
#[derive(Default)]
struct Lines {
    /// The first line and the bytes of some in a row. What was read later is behind, and counts.
    read: Vec<(u64, Vec<u8>)>,
    /// What is laid over them at the end: what epochs that are not durable would undo.
    undone: Option<Overlay>,
}

impl Laid for Lines {
    fn lay(self: Box<Self>, copy: &dyn Region, upto: u64, later: &mut Overlay) -> Result<()> {
        // What lies behind `upto` is copied later than it was read here.
        for (first, bytes) in &self.read {
            let len = (upto.saturating_sub(first * LINE as u64)).min(bytes.len() as u64);
            later.add(*first, &bytes[..len as usize]);
        }
        if let Some(undone) = self.undone {
            // At the end, when nothing else is kept for later.
            later.append(undone);
        }
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
        let mut rows: Vec<Range<u64>> = std::mem::replace(&mut self.noted, later).into_values().flatten().collect();
        rows.sort_unstable_by_key(|row| row.start);
        let (mut read, mut end) = (Vec::new(), 0);
        for row in rows {
            // What the rows before have is read.
            while end.max(row.start) < row.end {
                let first = end.max(row.start);
                end = row.end.min(first + PIECE);
                let mut bytes = vec![0; (end - first) as usize * LINE];
                self.image.read(first * LINE as u64, &mut bytes)?;
                read.push((first, bytes));
            }
        }
        Ok(Lines { read, undone: None })
    }

    /// What epochs that are not durable would undo; `None` if they are not those two that there can be after the head.
    fn undone(&self) -> Result<Option<Overlay>> {
        let none = || Overlay::new(self.sb.heap_len);
        let (mut epochs, mut is_whole) = ([none(), none()], true);
        entries_from(self.log, &self.sb, self.head.epoch + 1, &mut |Before { epoch, first, lines, blank }| {
            let nth = epoch.checked_sub(self.head.epoch + 1);
            let Some(of) = nth.and_then(|nth| epochs.get_mut(nth as usize)) else {
                is_whole = false;
                return;
            };
            of.add(first, lines);
            is_whole &= of.add_blank(first + (lines.len() / LINE) as u64, blank);
        })?;
        let [older, mut undone] = epochs;
        // An older epoch's entry wins.
        is_whole &= undone.append(older);
        Ok(is_whole.then_some(undone))
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
        self.seen.look(self.log, &self.sb, self.head.epoch + 1, &mut |epoch, lines| noted.entry(epoch).or_default().push(lines))?;
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
            self.lines.read.append(&mut read.read);
            // Any entry wins over what was read.
            let undone = self.undone()?;
            if undone.is_none() || head(&self.pool, self.log, &self.sb)?.epoch != self.head.epoch {
                continue;
            }
            self.lines.undone = undone;
            return Ok(true);
        }
        Ok(false)
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(2)
    }

    fn kept(&self) -> usize {
        // Only what can be taken: at most what two epochs change is left.
        let noted = self.noted.range(..=self.head.epoch).flat_map(|(_, rows)| rows);
        noted.map(|row| size_of_val(row) + (row.end - row.start) as usize * LINE).sum()
    }

    fn take(&mut self) -> Result<Box<dyn Laid>> {
        let mut lines = self.read_noted(self.head.epoch)?;
        let mut last = std::mem::take(&mut self.lines);
        lines.read.append(&mut last.read);
        Ok(Box::new(Lines { undone: last.undone, ..lines }))
    }

    fn frontier(&self) -> u64 {
        self.head.frontier
    }

    fn write_log(&self, _: &dyn Region, sb: &mut Superblock) -> Result<Reach> {
        *sb = Superblock { applied_epoch: 0, anchor: first_anchor(&sb.uuid), tail: 0, frontier: self.head.frontier, ..*sb };
        Ok((0, 0))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use towa_media::{Access, Allocation, Kind, Medium};

    use super::*;
    use crate::alloc::CHUNK;
    use crate::create::{CreateOptions, LogShape};
    use crate::superblock::{self, Door};
    use crate::undo::Cursor;
    use crate::{Heap, describe};

    /// A follower that looks between an owner's epochs has what each durable one wrote, also to lines whose old bytes the log
    /// never had; and of those that are not durable nothing.
    #[test]
    fn blank_lines_are_followed() {
        const FIRST: u64 = 40 * CHUNK / LINE as u64;
        let shm = Path::new("/dev/shm");
        let at = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("towa-follower-").tempdir_in(at).unwrap();
        let medium: Arc<dyn Medium> = towa_media::open_dir(dir.path(), Some(Kind::Ram), true).unwrap();
        let (door, log) = (Door::Epoch, LogShape::Undo { len: None });
        let options = CreateOptions { door, heap_len: 64 * CHUNK, log, base: None, prefault: false };
        let heap = Heap::create(Arc::clone(&medium), &options).unwrap();
        heap.image().reserve(0, 64 * CHUNK).unwrap();
        let sb = describe::superblock_beside_owner(&*medium, None).unwrap();
        let (image, log) = superblock::open_files(&*medium, &sb, Access::ReadOnly).unwrap();
        let copy = medium.create("copy", sb.heap_len, Allocation::Full).unwrap();
        let mut follower = UndoFollower::of("pool".into(), &*image, &*log, &sb).unwrap();
        let (undo, mut cursor, durable) = (heap.undo().unwrap(), Cursor::default(), heap.undo().unwrap().durable());
        // As a transaction does with a new block of ten lines, two of which it saves.
        let mut write = |epoch: u64, first: u64, byte: u8| {
            let at = heap.base().as_ptr().wrapping_add(first as usize * LINE);
            // SAFETY: the cursor is this thread's own. The epochs come after the durable one. No other thread writes the heap.
            unsafe {
                undo.save(&mut cursor, epoch, first, (2, 8), at);
                at.write_bytes(byte, 10 * LINE);
            }
        };
        write(durable + 1, FIRST, 1);
        assert!(follower.poll().unwrap());
        write(durable + 1, FIRST + 20, 2);
        write(durable + 2, FIRST + 40, 3);
        undo.publish(durable + 1, 2 * CHUNK).unwrap();
        assert!(follower.poll().unwrap() && follower.kept() >= 20 * LINE);
        let frontier = sb.heap_len;
        let mut later = Overlay::new(frontier);
        follower.take().unwrap().lay(&*copy, frontier, &mut later).unwrap();
        write(durable + 2, FIRST + 60, 4);
        undo.publish(durable + 2, 2 * CHUNK).unwrap();
        write(durable + 3, FIRST + 80, 5);
        write(durable + 4, FIRST + 100, 6);
        assert!(follower.finish().unwrap());
        // What comes now is of no moment that counts.
        write(durable + 4, FIRST + 120, 7);
        follower.take().unwrap().lay(&*copy, frontier, &mut later).unwrap();
        for (row, wanted) in [1, 2, 3, 4, 0, 0, 0].into_iter().enumerate() {
            let mut found = [9; 10 * LINE];
            copy.read((FIRST + 20 * row as u64) * LINE as u64, &mut found).unwrap();
            assert_eq!(found, [wanted; 10 * LINE], "row {row}");
        }
    }
}
