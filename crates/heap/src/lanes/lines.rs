//! Words to be stored into the image of a line medium, and the lines written back.
//!
//! ```text
//!   word ──► stored;  its line ──► the same line waits in its place?  yes: one write-back will do for both
//!                                                                     no: what waits there is written back, and makes way
//! ```
//!
//! Most lines that a tree's records name are named once in a round. To find all words of a line before it is written, with marks for the
//! whole heap, takes longer than to write the others twice. But a line that every record names, a counter's, must not be written back for
//! each of them: every write-back of it waits for the one before. So the last few lines wait, as in a cache of one way.
//!
//! What must always hold: of two values of a word the one added later is stored last; what no word was added for stays as it is; a line
//! that was stored to waits, until it is written back.

use towa_media::{LINE, Region, persist};

use super::record::{Few, LINE_WORDS, Words};
use super::replay::Sink;
use super::{first_byte, map_ahead};
use crate::Result;

/// Lines that wait to be written back.
const PLACES: usize = 64;
/// No line.
const NONE: u64 = u64::MAX;

/// Stores words into an image.
pub(super) struct Lines<'i> {
    image: &'i dyn Region,
    /// Where it is mapped.
    mapped: *const u8,
    /// Lines that were stored to.
    waiting: [u64; PLACES],
    written: u64,
}

impl<'i> Lines<'i> {
    pub fn new(image: &'i dyn Region) -> Self {
        Lines { image, mapped: first_byte(image), waiting: [NONE; PLACES], written: 0 }
    }

    /// Has the lines that wait written back. Gives the lines written in all; they are durable behind a fence of this thread.
    pub fn finish(mut self) -> u64 {
        (0..PLACES).for_each(|place| self.replace(place, NONE));
        self.written
    }

    /// This line was stored to.
    #[inline(always)]
    fn stored(&mut self, line: u64) {
        let place = line as usize % PLACES;
        if self.waiting[place] != line {
            self.replace(place, line);
        }
    }

    #[inline(always)]
    fn replace(&mut self, place: usize, line: u64) {
        let before = std::mem::replace(&mut self.waiting[place], line);
        if before != NONE {
            self.image.write_back(before * LINE as u64, LINE as u64);
            self.written += 1;
        }
    }
}

impl Sink for Lines<'_> {
    fn words(&mut self, Words { first, values }: Words<'_>) -> Result<()> {
        self.image.store(first * 8, bytemuck::cast_slice(values))?;
        let end = (first + values.len() as u64).div_ceil(LINE_WORDS as u64);
        (first / LINE_WORDS as u64..end).for_each(|line| self.stored(line));
        Ok(())
    }

    /// Words of one line mostly come together.
    #[inline(always)]
    fn few(&mut self, few: Few<'_>) -> Result<()> {
        let (mut line, mut mask, mut words) = (NONE, 0u8, [0; LINE_WORDS]);
        let mut store = |line: u64, words: &[u64; LINE_WORDS], mask| -> Result<()> {
            if mask != 0 {
                self.image.store_words(line * LINE as u64, words, mask)?;
                self.stored(line);
            }
            Ok(())
        };
        for (number, value) in few.numbers().zip(few.values) {
            let (its_line, at) = (number / LINE_WORDS as u64, number as usize % LINE_WORDS);
            if its_line != line {
                store(line, &words, mask)?;
                (line, mask) = (its_line, 0);
            }
            words[at] = *value;
            mask |= 1 << at;
        }
        store(line, &words, mask)
    }

    #[inline]
    fn ahead(&mut self, word: u64) {
        persist::prefetch_to_write(self.mapped.wrapping_add(word.wrapping_mul(8) as usize));
    }

    /// Chunks that were not in use before are going to be written all over.
    fn rises(&mut self, from: u64, to: u64) {
        map_ahead(self.image, from, to - from);
    }
}
