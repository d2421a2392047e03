//! Pages that were copied of a running process and not handed on yet.
//!
//! ```text
//!   places   page 7 ──┐   page 8 ──┐   page 3 ──┐
//!   room             [0]          [1]          [2]     first come, first placed; copied again, a page keeps its place
//! ```
//!
//! What must always hold: of each page the copy that was made last is held, and nothing of a page that could not be read or that was dropped
//! since. So no more is held than the process has memory, however many rounds there are, and each page is handed on once.

use std::collections::HashMap;

use super::precopy::Sink;
use super::reader::{Piece, Reader};
use super::room::Room;
use super::tracker::Change;
use crate::error::Result;
use crate::pages::{PAGE, PageSet};
use crate::sys::memory::available;

/// What is held takes at most this part of the memory that is available; only a program needs as much that changes it within one round.
const HELD_PART: u64 = 8;
/// Between checkpoints, the room for it takes at most this part.
const KEPT_PART: u64 = 32;

/// What was copied of a running process and not handed on yet: of each page, what was copied last. May be used again.
#[derive(Default)]
pub struct Held {
    /// Where in the room the page lies.
    places: HashMap<u64, u64>,
    /// To be forgotten before anything is written.
    dropped: PageSet,
    room: Room,
    /// Pages of it.
    used: u64,
    /// Read in this round, before all of what changed was known.
    ahead: PageSet,
}

impl Held {
    /// Whether what was written in this round may be held, too.
    pub(super) fn has_room(&mut self, written: &PageSet) -> bool {
        let most = available() / HELD_PART / PAGE;
        if self.room.reserved() == 0 {
            self.room.reserve(most);
        }
        let fits = |more: u64| {
            let all = self.used + more;
            all <= self.room.reserved() && all.saturating_sub(self.room.touched()) <= most
        };
        fits(written.count()) || fits(each(written).filter(|page| !self.places.contains_key(page)).count() as u64)
    }

    /// Nothing is held any more.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        (self.dropped, self.ahead) = (PageSet::new(), PageSet::new());
        self.used = 0;
    }

    /// Reads and holds part of what was written in this round, if there is room. It counts only if it is told as written when the round is
    /// [settled](Held::settle).
    pub(super) fn read_ahead(&mut self, reader: &Reader, written: &PageSet) -> Result<()> {
        if self.used + written.count() > self.room.touched() {
            return Ok(());
        }
        let missed = self.copy(reader, written)?;
        self.ahead = self.ahead.union(&written.difference(&missed));
        Ok(())
    }

    /// What changed in the round: what it dropped, and what was read ahead and is not there any more, is not held.
    pub(super) fn settle(&mut self, change: &Change) {
        let gone = self.ahead.difference(&change.written).union(&change.dropped);
        if !gone.is_empty() {
            self.places.retain(|page, _| !gone.contains(*page));
        }
        if !change.dropped.is_empty() {
            self.dropped = self.dropped.union(&change.dropped);
        }
    }

    /// Gives what is held to the sink, before anything that was copied later. Room that was not needed is given back.
    pub fn hand_over(&mut self, sink: &mut dyn Sink) -> Result<()> {
        sink.forget(&self.dropped)?;
        let mut places: Vec<(u64, u64)> = self.places.drain().collect();
        places.sort_unstable();
        for run in places.chunk_by(|one, next| (one.0 + 1, one.1 + 1) == *next) {
            sink.write(run[0].0, self.room.part(run[0].1, run.len() as u64))?;
        }
        self.room.keep(self.used.min(available() / KEPT_PART / PAGE));
        self.clear();
        Ok(())
    }

    /// Reads and holds the rest of what was written in this round; the pages that could not be read are told, and not held.
    pub(super) fn read(&mut self, reader: &Reader, written: &PageSet) -> Result<PageSet> {
        let ahead = std::mem::take(&mut self.ahead);
        self.copy(reader, &written.difference(&ahead))
    }

    fn copy(&mut self, reader: &Reader, written: &PageSet) -> Result<PageSet> {
        let mut pieces: Vec<Piece> = Vec::new();
        for page in each(written) {
            let to = *self.places.entry(page).or_insert_with(|| {
                self.used += 1;
                self.used - 1
            });
            match pieces.last_mut() {
                Some(last) if last.pages.end == page && last.to + (page - last.pages.start) == to => last.pages.end += 1,
                _ => pieces.push(Piece { pages: page..page + 1, to }),
            }
        }
        self.room.make(self.used.max(self.room.touched()));
        let missed = reader.read_to(&pieces, self.room.part_mut(0, self.used))?;
        for page in each(&missed) {
            self.places.remove(&page);
        }
        Ok(missed)
    }
}

/// The pages of a set, one by one.
fn each(pages: &PageSet) -> impl Iterator<Item = u64> {
    pages.ranges().iter().flat_map(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// What became of each page: its first byte.
    impl Sink for BTreeMap<u64, Option<u8>> {
        fn write(&mut self, first_page: u64, bytes: &[u8]) -> Result<()> {
            self.extend((first_page..).zip(bytes.chunks(PAGE as usize).map(|page| Some(page[0]))));
            Ok(())
        }

        fn forget(&mut self, pages: &PageSet) -> Result<()> {
            self.extend(each(pages).map(|page| (page, None)));
            Ok(())
        }
    }

    #[test]
    fn of_each_page_what_was_copied_last_is_held_and_nothing_of_what_could_not_be() {
        let reader = Reader::open(std::process::id() as i32).unwrap();
        let mut memory = vec![0u8; 10 * PAGE as usize];
        let first = (memory.as_ptr() as u64).div_ceil(PAGE);
        let offset = (first * PAGE - memory.as_ptr() as u64) as usize;
        let nowhere = 3u64; // nobody maps what is that low
        let mut set = |page: usize, byte: u8| memory[offset + page * PAGE as usize] = byte;
        let change = |written: &[u64], dropped: &[u64]| {
            let of = |pages: &[u64]| pages.iter().map(|page| *page..*page + 1).collect();
            Change { written: of(written), dropped: of(dropped), ..Change::default() }
        };
        let mut held = Held::default();
        (0..6).for_each(|page| set(page, page as u8 + 1));
        let all = change(&[nowhere, first, first + 2, first + 3, first + 5], &[]);
        assert!(held.has_room(&all.written));
        held.settle(&all);
        assert_eq!(held.read(&reader, &all.written).unwrap(), PageSet::from(nowhere..nowhere + 1));
        (0..6).for_each(|page| set(page, page as u8 + 11));
        let second = change(&[first + 1, first + 2], &[first + 3, first + 4]);
        // Of what is read ahead one page is not there any more, one never was; what is written afterwards counts in the next round.
        held.room.make(20);
        for ahead in [nowhere, first + 1, first + 4, first + 6] {
            held.read_ahead(&reader, &PageSet::from(ahead..ahead + 1)).unwrap();
        }
        set(1, 99);
        held.settle(&second);
        assert_eq!(held.read(&reader, &second.written).unwrap(), PageSet::new());
        let mut sink = BTreeMap::new();
        held.hand_over(&mut sink).unwrap();
        let expected = [Some(1), Some(12), Some(13), None, None, Some(6)];
        assert_eq!(sink, (first..).zip(expected).collect());
        let mut empty = BTreeMap::new();
        held.hand_over(&mut empty).unwrap();
        assert!(empty.is_empty());
    }
}
