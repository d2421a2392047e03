//! Memory that pages are copied into while time counts.
//!
//! ```text
//!   reserved  ├───────────────────────────────────────────┤   address space
//!   touched   ├──────────────────────┤                        memory: this much can be used at once
//! ```
//!
//! What must always hold: all that is used has been touched. The kernel has to find and clear a page when it is touched for the first time,
//! which takes as long as several pages take to copy; ten times as long in a virtual machine that gives its host back what it does not use.
//! So it is touched beforehand, kept from one checkpoint to the next, and never moved.

use crate::pages::PAGE;

/// Memory that has been touched, and room for more.
#[derive(Default)]
pub(super) struct Room(Vec<u8>);

impl Room {
    /// Room for so many pages, all of it touched.
    pub fn of(pages: u64) -> Room {
        let mut room = Room::default();
        room.reserve(pages);
        room.make(pages);
        room
    }

    /// Makes room for so many pages, in place of what there was; none of it is memory yet. Where there is no such room (RLIMIT_AS), none.
    pub fn reserve(&mut self, pages: u64) {
        self.0 = Vec::new();
        if self.0.try_reserve_exact((pages * PAGE) as usize).is_ok() {
            self.rather_huge();
        }
    }

    /// Pages there is room for.
    pub fn reserved(&self) -> u64 {
        self.0.capacity() as u64 / PAGE
    }

    /// Pages that have been touched.
    pub fn touched(&self) -> u64 {
        self.0.len() as u64 / PAGE
    }

    /// Touches the first so many pages that are reserved; what is there stays.
    pub fn make(&mut self, pages: u64) {
        assert!(pages <= self.reserved(), "{pages} pages in room for {}", self.reserved());
        let bytes = (pages * PAGE) as usize;
        if bytes > self.0.len() {
            // Not zeros: memory of those might only be promised.
            self.0.resize(bytes, 0xa5);
        }
    }

    /// Gives back what is more than so many pages, if that is most of it.
    pub fn keep(&mut self, pages: u64) {
        if pages < self.touched() / 2 {
            self.reserve(self.reserved());
            self.make(pages.min(self.reserved()));
        }
    }

    /// `count` pages from `first` on.
    pub fn part(&self, first: u64, count: u64) -> &[u8] {
        &self.0[(first * PAGE) as usize..][..(count * PAGE) as usize]
    }

    /// `count` pages from `first` on.
    pub fn part_mut(&mut self, first: u64, count: u64) -> &mut [u8] {
        &mut self.0[(first * PAGE) as usize..][..(count * PAGE) as usize]
    }

    fn rather_huge(&mut self) {
        let room = self.0.spare_capacity_mut();
        let start = (room.as_ptr() as usize).next_multiple_of(PAGE as usize);
        let end = (room.as_ptr() as usize + room.len()) / PAGE as usize * PAGE as usize;
        if end > start {
            // SAFETY: whole pages of memory of ours, whose content stays. A wish: it does not matter whether it is granted.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_room_stays_where_it_is_and_what_is_not_used_is_given_back() {
        let mut room = Room::default();
        room.reserve(5000);
        room.make(3);
        room.part_mut(2, 1).fill(7);
        let place = room.part(2, 1).as_ptr();
        room.make(1000);
        assert!(room.touched() == 1000 && room.part(2, 1).iter().all(|byte| *byte == 7));
        assert_eq!(room.part(2, 1).as_ptr(), place);
        room.keep(600);
        assert_eq!(room.touched(), 1000);
        room.keep(400);
        assert_eq!((room.touched(), room.reserved()), (400, 5000));
    }

    #[test]
    fn room_that_cannot_be_had_is_none() {
        let mut room = Room::of(3);
        room.reserve(1 << 40);
        assert_eq!((room.touched(), room.reserved()), (0, 0));
        room.keep(0);
    }
}
