//! Following the undo log of a pool in place, of which the copy becomes a pool with a ring.
//!
//! An undo log has the old bytes of lines, not the new ones. So the follower notes *which* lines each epoch changes, for as
//! long as the image is copied, and reads the lines that durable epochs changed once more when it is. As the owner goes on, that takes some
//! rounds, each shorter than the one before: its lines are those that became durable during the one before. At the end of a round it
//! reads what the epochs that are not durable would undo. Then the copy is as of the epoch that was durable at the round's beginning, if it
//! still is:
//!
//! - a line that no epoch changed since the beginning is in the copy as it is;
//! - a line that a durable epoch changed was noted; it is read after that epoch was durable;
//! - a line that an epoch changes which is not durable has an entry, written before the change: whatever was read of
//!   it, the entry is looked for afterwards, and wins. If the epoch becomes durable, the line is noted, and read again.
//!
//! What must always hold: after each look the owner still keeps the entries of all epochs that became durable since the look before; or the
//! attempt is given up. The owner says which it keeps; an older release, which does not, keeps those of the durable epoch. It may leave the
//! backup a fraction of a core, and write all over its log in 100 ms. So a look takes a few milliseconds: it reads words of memory,
//! by a mapping, and not by tens of thousands of calls.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use towa_media::{LINE, Region, Watched};

use super::line_set::LineSet;
use super::{Follow, Laid};
use crate::overlay::Overlay;
use crate::recovery::first_anchor;
use crate::stamp::Reach;
use crate::superblock::Superblock;
use crate::undo::{Before, Head, Owned, Seen, entries_from, kept_from, newest_head};
use crate::{Error, Result};

/// How long rounds are tried at the end while the owner goes on.
const ROUNDS_TIME: Duration = Duration::from_secs(20);
/// Times that heads are read of which neither is whole: one is being written, and then the other.
const READS: u32 = 10;
/// Lines that are read at once.
const PIECE: u64 = 16 << 10;
/// How long the log is left alone, at least; and so many times as long as a look took, for the rest of the time is for copying.
const PAUSE: Duration = Duration::from_millis(2);
const LOOKS_REST: u32 = 2;
/// How long an epoch is waited for.
const EPOCH: Duration = Duration::from_secs(1);
/// Bytes of lines that are kept in a piece of memory.
const PART: usize = 16 << 20;
/// Bytes of lines that are kept in memory until the end. Writing takes longer than reading, and while lines are written others change: beyond
/// this, a pool that changes faster than the copy is written cannot be copied.
const READ_MAX: usize = 1 << 30;

/// Which lines were changed since the beginning.
pub(super) struct UndoFollower<'f> {
    image: &'f dyn Region,
    /// Its bytes.
    bytes: Option<Watched>,
    log: Owned<'f>,
    heads: &'f dyn Region,
    pool: String,
    sb: Superblock,
    /// The epoch that was durable at the last look, and its frontier.
    head: Head,
    seen: Seen,
    /// The lines that each epoch changes which was not durable at the last look.
    noted: BTreeMap<u64, Vec<Range<u64>>>,
    /// The lines that durable epochs changed and that were not read since.
    changed: LineSet,
    /// When the last look ended, and how long it took.
    looked: Instant,
    took: Duration,
    lines: Lines,
}

/// Lines as they were read.
#[derive(Default)]
struct Lines {
    /// In the order of reading: what was read later counts.
    parts: Vec<Part>,
    /// Bytes of all.
    len: usize,
    /// What is laid over them at the end: what epochs that are not durable would undo.
    undone: Option<Overlay>,
}

/// Some of them, so many that no great memory is ever moved.
struct Part {
    /// The first line of some in a row, and how many of the bytes are theirs.
    rows: Vec<(u64, usize)>,
    bytes: Vec<u8>,
}

impl Lines {
    /// Memory for the next `len` bytes, those of lines from `first` on.
    fn next(&mut self, first: u64, len: usize) -> &mut [u8] {
        if self.parts.last().is_none_or(|part| part.bytes.len() + len > part.bytes.capacity()) {
            self.parts.push(Part { rows: Vec::new(), bytes: Vec::with_capacity(PART.max(len)) });
        }
        let part = self.parts.last_mut().expect("there is one");
        let from = part.bytes.len();
        part.bytes.resize(from + len, 0);
        part.rows.push((first, len));
        self.len += len;
        &mut part.bytes[from..]
    }

    /// Writes what was read over `copy`, calling `each` after every piece, and forgets it.
    fn write(&mut self, copy: &dyn Region, each: &mut dyn FnMut() -> Result<bool>) -> Result<bool> {
        self.len = 0;
        for Part { rows, bytes } in std::mem::take(&mut self.parts) {
            let mut rest = &bytes[..];
            for (first, len) in rows {
                let (row, later) = rest.split_at(len);
                copy.stream(first * LINE as u64, row)?;
                rest = later;
                if !each()? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl Laid for Lines {
    fn lay(mut self: Box<Self>, copy: &dyn Region, upto: u64, later: &mut Overlay) -> Result<()> {
        self.write(copy, &mut || Ok(true))?;
        if let Some(undone) = self.undone {
            // At the end, when nothing is kept for later.
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
        Ok(UndoFollower {
            image,
            bytes: Watched::of(image)?,
            log: Owned::of(log)?,
            heads: log,
            head: head(&pool, log, &sb)?,
            pool,
            sb,
            seen: Seen::default(),
            noted: BTreeMap::new(),
            changed: LineSet::of(sb.heap_len / LINE as u64),
            looked: Instant::now(),
            took: Duration::ZERO,
            lines: Lines::default(),
        })
    }

    /// Waits until another epoch is durable, for [`EPOCH`] at most. It looks at the log while it waits. `false`: a look came too late.
    fn wait_for_next_epoch(&mut self) -> Result<bool> {
        let begin = Instant::now();
        let epoch = head(&self.pool, self.heads, &self.sb)?.epoch;
        while begin.elapsed() < EPOCH && head(&self.pool, self.heads, &self.sb)?.epoch == epoch {
            if !self.poll_in_time()? {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(true)
    }

    /// A look, if the last one was long enough ago.
    fn poll_in_time(&mut self) -> Result<bool> {
        Ok(self.looked.elapsed() < self.pause() || self.poll()?)
    }

    /// Whether all entries of epochs from the last look's on, up to `durable`, are still there. (One that became durable since then may have more
    /// entries than were seen; the next look finds them.)
    fn came_in_time(&self, durable: u64) -> Result<bool> {
        for _ in 0..READS {
            if let Some(from) = kept_from(self.heads, &self.sb)? {
                return Ok(from <= self.head.epoch + 1);
            }
            super::wait();
        }
        // An owner of an older release.
        Ok(durable == self.head.epoch + 1 && head(&self.pool, self.heads, &self.sb)?.epoch == durable)
    }

    /// Reads the lines that durable epochs changed. It looks at the log between two pieces. `false`: a look came too late.
    fn read_changed(&mut self, copy: &dyn Region) -> Result<bool> {
        for row in self.changed.take() {
            for first in row.clone().step_by(PIECE as usize) {
                let len = (row.end - first).min(PIECE) as usize * LINE;
                let into = self.lines.next(first, len);
                match &self.bytes {
                    Some(bytes) => bytes.read(first * LINE as u64, into),
                    None => self.image.read(first * LINE as u64, into)?,
                }
                if !self.poll_in_time()? {
                    return Ok(false);
                }
            }
            if self.lines.len > READ_MAX {
                let mut lines = std::mem::take(&mut self.lines);
                if !lines.write(copy, &mut || self.poll_in_time())? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// What epochs after the head's would undo; `None` if that is no longer the durable one.
    fn undone(&self, of: Head) -> Result<Option<Overlay>> {
        let (mut entries, mut saved) = (Vec::new(), Vec::new());
        entries_from(&self.log, &self.sb, of.epoch + 1, &mut |Before { epoch, first, lines, blank }| {
            saved.extend_from_slice(lines);
            entries.push((epoch - of.epoch - 1, first, lines.len(), blank));
        })?;
        if head(&self.pool, self.heads, &self.sb)?.epoch != of.epoch {
            return Ok(None);
        }
        let none = || Overlay::new(self.sb.heap_len);
        let (mut epochs, mut is_whole, mut rest) = ([none(), none()], true, &saved[..]);
        for (nth, first, len, blank) in entries {
            let (lines, later) = rest.split_at(len);
            rest = later;
            match epochs.get_mut(nth as usize) {
                Some(epoch) => {
                    epoch.add(first, lines);
                    is_whole &= epoch.add_blank(first + (len / LINE) as u64, blank);
                }
                // The durable epoch is still the same, so at most two epochs follow it.
                None => is_whole = false,
            }
        }
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
        let begin = Instant::now();
        let before = head(&self.pool, self.heads, &self.sb)?;
        // Those of the epoch at the last look are noted: each was durable then.
        let noted = &mut self.noted;
        self.seen
            .look(&self.log, &self.sb, self.head.epoch + 1, &mut |epoch, lines| noted.entry(epoch).or_default().push(lines))?;
        if before.epoch > self.head.epoch && !self.came_in_time(before.epoch)? {
            log::debug!("{}: epochs {} to {} were not seen in time", self.pool, self.head.epoch + 1, before.epoch);
            return Ok(false);
        }
        let later = self.noted.split_off(&(before.epoch + 1));
        let durable = std::mem::replace(&mut self.noted, later);
        durable.into_values().flatten().for_each(|row| self.changed.add(row));
        (self.head, self.looked, self.took) = (before, Instant::now(), begin.elapsed());
        Ok(true)
    }

    fn finish(&mut self, copy: &dyn Region) -> Result<bool> {
        let begin = Instant::now();
        for round in 0.. {
            if begin.elapsed() > ROUNDS_TIME {
                break;
            }
            log::debug!("{}: round {round}, {} bytes of lines are kept", self.pool, self.lines.len);
            // Where a round takes about as long as an epoch: it begins with one.
            let is_in_time = round == 0 || self.wait_for_next_epoch()?;
            if !(is_in_time && self.poll()?) {
                return Ok(false);
            }
            let head = self.head;
            if !self.read_changed(copy)? {
                return Ok(false);
            }
            if self.head.epoch == head.epoch
                && let Some(undone) = self.undone(head)?
            {
                self.lines.undone = Some(undone);
                return Ok(true);
            }
        }
        log::debug!("{}: no epoch lasted until what it changed was read", self.pool);
        Ok(false)
    }

    fn pause(&self) -> Duration {
        PAUSE.max(self.took * LOOKS_REST)
    }

    fn kept(&self) -> usize {
        // Until the end only which lines changed.
        0
    }

    fn take(&mut self) -> Result<Box<dyn Laid>> {
        Ok(Box::new(std::mem::take(&mut self.lines)))
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

    const FIRST: u64 = 40 * CHUNK / LINE as u64;

    /// An owner's heap in place, on a medium that is given back with it.
    fn owner() -> (tempfile::TempDir, Arc<dyn Medium>, Heap) {
        let shm = Path::new("/dev/shm");
        let at = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("towa-follower-").tempdir_in(at).unwrap();
        let medium: Arc<dyn Medium> = towa_media::open_dir(dir.path(), Some(Kind::Ram), true).unwrap();
        let (door, log) = (Door::Epoch, LogShape::Undo { len: None });
        let options = CreateOptions { door, heap_len: 64 * CHUNK, log, base: None, prefault: false };
        let heap = Heap::create(Arc::clone(&medium), &options).unwrap();
        heap.image().reserve(0, 64 * CHUNK).unwrap();
        (dir, medium, heap)
    }

    /// Writes ten lines as a transaction does with a new block, two of which it saves.
    fn write(heap: &Heap, cursor: &mut Cursor, epoch: u64, first: u64, byte: u8) {
        let at = heap.base().as_ptr().wrapping_add(first as usize * LINE);
        // SAFETY: the cursor is the test's own. The epochs come after the durable one. No other thread writes the heap.
        unsafe {
            heap.undo().unwrap().save(cursor, epoch, first, (2, 8), at);
            at.write_bytes(byte, 10 * LINE);
        }
    }

    /// What a look may miss: epochs whose entries are kept, but no others.
    #[test]
    fn epochs_between_two_looks_are_seen_while_their_entries_are_kept() {
        let (_dir, medium, heap) = owner();
        let sb = describe::superblock_beside_owner(&*medium, None).unwrap();
        let (image, log) = superblock::open_files(&*medium, &sb, Access::ReadOnly).unwrap();
        let mut follower = UndoFollower::of("pool".into(), &*image, &*log, &sb).unwrap();
        let undo = heap.undo().unwrap();
        let many = |count: u64| {
            for nth in 0..count {
                let epoch = undo.durable() + 1;
                // A thread of its own: its blocks are of this epoch alone.
                write(&heap, &mut Cursor::default(), epoch, FIRST + 20 * (nth % 50), epoch as u8);
                undo.publish(epoch, 2 * CHUNK).unwrap();
            }
        };
        many(50);
        assert!(follower.poll().unwrap(), "a few blocks of thousands");
        assert_eq!(follower.changed.take().collect::<Vec<_>>().len(), 50);
        many(2000);
        assert!(!follower.poll().unwrap(), "other epochs took the blocks of those that were not seen");
        assert!(undo.in_use() < undo.capacity() / 64, "what is kept may be taken");
    }

    /// A follower that looks between an owner's epochs has what each durable one wrote, also to lines whose old bytes the log
    /// never had; and of those that are not durable nothing.
    #[test]
    fn blank_lines_are_followed() {
        let (_dir, medium, heap) = owner();
        let sb = describe::superblock_beside_owner(&*medium, None).unwrap();
        let (image, log) = superblock::open_files(&*medium, &sb, Access::ReadOnly).unwrap();
        let copy = medium.create("copy", sb.heap_len, Allocation::Full).unwrap();
        let mut follower = UndoFollower::of("pool".into(), &*image, &*log, &sb).unwrap();
        let (undo, mut cursor, durable) = (heap.undo().unwrap(), Cursor::default(), heap.undo().unwrap().durable());
        let mut write = |epoch: u64, first: u64, byte: u8| write(&heap, &mut cursor, epoch, first, byte);
        write(durable + 1, FIRST, 1);
        assert!(follower.poll().unwrap());
        write(durable + 1, FIRST + 20, 2);
        write(durable + 2, FIRST + 40, 3);
        undo.publish(durable + 1, 2 * CHUNK).unwrap();
        assert!(follower.poll().unwrap());
        let frontier = sb.heap_len;
        let mut later = Overlay::new(frontier);
        // As if that were much: it is written at once.
        assert!(follower.read_changed(&*copy).unwrap() && follower.lines.len >= 20 * LINE);
        assert!(std::mem::take(&mut follower.lines).write(&*copy, &mut || Ok(true)).unwrap());
        write(durable + 2, FIRST + 60, 4);
        undo.publish(durable + 2, 2 * CHUNK).unwrap();
        write(durable + 3, FIRST + 80, 5);
        write(durable + 4, FIRST + 100, 6);
        assert!(follower.finish(&*copy).unwrap());
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
