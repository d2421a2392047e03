//! Where in its file a draft puts pages that have no place yet.
//!
//! What must always hold: no page is given out twice, and none that the draft's base uses. Holes that pages left are used again, the
//! smallest that suffices first, so that large ones stay large; the rest goes behind the end.

use std::collections::BTreeSet;

use crate::pages::{PageSet, Pages};

/// A hole of this size is worth filling with part of what is to be placed. It is also the grain of the file's length: 64 KiB.
pub(super) const GRAIN: u64 = 16;

/// The free pages of a file.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Holes as (pages, first).
    holes: BTreeSet<(u64, u64)>,
    end: u64,
}

impl Room {
    /// What `used` leaves free of a file of `end` pages.
    pub(super) fn beside(used: &PageSet, end: u64) -> Room {
        let all: PageSet = std::iter::once(0..end).collect();
        let holes = all.difference(used).ranges().iter().map(|hole| (hole.end - hole.start, hole.start)).collect();
        Room { holes, end }
    }

    /// Some pages that lie together: `wanted`, or fewer (never none) where a hole is to be filled.
    pub(super) fn take(&mut self, wanted: u64) -> Pages {
        assert!(wanted > 0);
        let fitting = self.holes.range((wanted, 0)..).next().copied();
        let largest = || self.holes.last().copied().filter(|(pages, _)| *pages >= GRAIN);
        let Some((pages, first)) = fitting.or_else(largest) else {
            let first = self.end;
            self.end += wanted;
            return first..self.end;
        };
        self.holes.remove(&(pages, first));
        let taken = pages.min(wanted);
        if taken < pages {
            self.holes.insert((pages - taken, first + taken));
        }
        first..first + taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled_best_first_and_then_the_end_grows() {
        let used = PageSet::of([0..10, 12..20, 50..64]);
        let mut room = Room::beside(&used, 64); // free: 10..12, 20..50
        assert_eq!(room.take(1), 10..11);
        assert_eq!(room.take(2), 20..22);
        assert_eq!(room.take(1), 11..12);
        assert_eq!(room.take(100), 22..50);
        assert_eq!(room.take(100), 64..164);
        assert_eq!(room.take(1), 164..165);
    }
}
