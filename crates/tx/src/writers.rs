//! The last writers: of each line of the heap, which software transaction changed it last.
//!
//! ```text
//!   heap     | line 0 | line 1 | line 2 | ...        64 bytes each
//!   stamps   |   0    | lane 3, time 41 | ...        as in version words; lines a multiple of the table's length apart share one
//! ```
//!
//! A transaction in a strict pool must not be durable before what it read. For words that no version word guards, this table says which
//! transaction that is: the one that stamped the line. A line that the table shares with another one, or a neighbouring word, can name a
//! transaction that the reader does not need; waiting for that one is safe, and seldom needed, for it matters only until that one is durable.
//!
//! What must always hold:
//! 1. a software transaction that stamps does so with every line that it changes, under the sequence lock, before it stores the first
//!    word. So for a word that is read, its line names the transaction that wrote it, or one that changed the line later; or the
//!    transaction that wrote it stamps no lines;
//! 2. a transaction depends on the stamps that it replaces: so when the one that a stamp names is durable, all that changed the line
//!    earlier are durable. One that fails after it has stamped stays announced until they are;
//! 3. a transaction that stamped depends only on transactions that took effect before it, so none waits for one that waits for it.
//!
//! Transactions in hardware, under versions, and those in software that read and write guarded words alone do not stamp. A transaction that
//! reads a word of theirs without its version waits for all of them that are older
//! ([`Control::unstamped_frontier`](crate::control::Control::unstamped_frontier)).

use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::view::Addr;

/// Most stamps: 8 MiB, touched as lines are.
const STAMPS_MAX: u64 = 1 << 20;
/// Bits of an address within a line.
const LINE_BITS: u32 = 6;

/// The stamps.
#[derive(Debug)]
pub(crate) struct Writers(Box<[AtomicU64]>);

impl Writers {
    /// For a heap of this many bytes.
    pub fn of_heap(len: u64) -> Writers {
        let stamps = (len >> LINE_BITS).next_power_of_two().min(STAMPS_MAX);
        // SAFETY: zeros are a valid `AtomicU64`. (Memory that comes zeroed is provided page by page, as it is touched.)
        Writers(unsafe { Box::new_zeroed_slice(stamps as usize).assume_init() })
    }

    /// For a pool in which no transaction waits for another.
    pub fn none() -> Writers {
        Writers(Box::default())
    }

    /// Whether transactions stamp what they change.
    #[inline]
    pub fn are_known(&self) -> bool {
        !self.0.is_empty()
    }

    #[inline]
    fn of_line(&self, line: u64) -> &AtomicU64 {
        // A power of two long, so the mask is its greatest index.
        &self.0[line as usize & (self.0.len() - 1)]
    }

    /// Which transaction changed this line last; asked for after a word of it was loaded (with `Acquire`).
    ///
    /// # Panics
    /// If transactions do not stamp.
    #[inline]
    pub fn last(&self, line: u64) -> u64 {
        self.of_line(line).load(Acquire)
    }

    /// Stamps this line; gives the stamp before. The sequence lock is held.
    ///
    /// # Panics
    /// If transactions do not stamp.
    #[inline]
    pub fn replace(&self, line: u64, stamp: u64) -> u64 {
        let word = self.of_line(line);
        let before = word.load(Relaxed);
        word.store(stamp, Release);
        before
    }
}

/// The number of the line that the word at `a` lies in.
#[inline]
pub(crate) fn line(a: Addr) -> u64 {
    a >> LINE_BITS
}

/// The numbers of the lines that `len` bytes from `a` on lie in.
pub(crate) fn lines(a: Addr, len: u64) -> std::ops::Range<u64> {
    line(a)..(a + len).div_ceil(1 << LINE_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_small_heap_has_a_stamp_of_its_own() {
        let writers = Writers::of_heap(1 << 20);
        let first = line(0x5000_0040);
        for number in 0..(1 << 20) / 64 {
            assert_eq!(writers.replace(first + number, number + 1), 0);
        }
        let stamp = |a: Addr| writers.last(line(a));
        assert_eq!((stamp(0x5000_0040), stamp(0x5000_007f), stamp(0x5000_0080)), (1, 1, 2));
    }

    #[test]
    fn lines_of_a_large_heap_share_stamps() {
        let writers = Writers::of_heap(1 << 40);
        writers.replace(0, 7);
        assert_eq!((writers.last(STAMPS_MAX), writers.last(1)), (7, 0));
    }

    #[test]
    fn a_range_has_the_lines_that_it_touches() {
        assert_eq!((lines(64, 64), lines(72, 64), lines(72, 8)), (1..2, 1..3, 1..2));
    }
}
