//! Bringing the image up from the working copy: what transactions wrote is taken as it is *now*, not as it was logged.
//!
//! ```text
//!   records, oldest first ──► marks: which words ──► lines of the working copy, in order ──► settle ──► image, written back
//!                               └─ headers, new blocks: the newest logged value ────────────────────────┘
//! ```
//!
//! A word that fifty records wrote is stored once, and the image is walked from front to back instead of at random: that is most of what
//! bringing it up costs.
//!
//! Why an image that is newer than its cut is right: recovery stores all records behind the cut again, oldest first, so each word that they
//! name ends as the newest of them has it, whatever the image held. What must always hold for that:
//! 1. no value gets into the image before the transaction that wrote it is durable: lines are held back until [`Working::settle`] says so;
//! 2. headers of blocks are written in place, by transactions that may yet be undone. So of words that records say were written in place the
//!    newest logged value counts; and a word of the working copy that is a header *there*, though no record of this round says so, is passed
//!    over: it was payload when it was logged, and that block is gone. (New blocks are filled in place, too: blocks that are free until
//!    then, and nobody misses what is in those);
//! 3. version words, which are never logged but in the new block that they begin in, stay out of the image: a lock in one would last for ever.

use towa_media::{LINE, Region, persist};

use super::dirty::DirtyLines;
use super::first_byte;
use super::record::{Few, LINE_WORDS, Words};
use super::replay::Sink;
use crate::Result;

/// Lines that are held back together: some MiB. (With fewer the wait for transactions that run comes more often than it pays.)
pub(super) const HELD_MAX: usize = 32 << 10;
/// Lines by which fetching runs ahead.
const AHEAD: usize = 16;
/// Lines of a piece of the marks: those of 2 MiB of the heap.
const PIECE_LINES: usize = 1 << 15;
/// Pieces that are kept from round to round: 16 MiB. More than that, a 32nd of what was written, is given back.
const KEPT_MAX: usize = 256;

/// The working copy of a pool, as its replayer reads it.
pub trait Working {
    /// The words of a line of the heap, each as it is now.
    fn line(&self, line: u64) -> [u64; 8];

    /// Has a line fetched.
    fn prefetch(&self, line: u64);

    /// Returns `true` once every transaction whose words [`line`](Self::line) gave before this call is durable or undone; `false` if that
    /// takes too long to wait for, or will not come.
    fn settle(&mut self) -> bool;

    /// Whether the first two words of a line are the header of a block. To be asked after [`settle`](Self::settle).
    fn begins_block(&self, line: u64) -> bool;

    /// Changes before a line that [began a block](Self::begins_block) ceases to.
    fn layout(&self) -> u64;
}

/// What is to be done about each word of the heap.
#[derive(Debug)]
pub(super) struct Current {
    /// Of each line: low byte, words to be taken from the working copy; high byte, words whose logged value counts.
    pieces: Vec<Option<Box<[u16; PIECE_LINES]>>>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    /// Words written in place, oldest first: number of the first, and where their values are.
    logged: Vec<(u64, std::ops::Range<usize>)>,
    values: Vec<u64>,
    held: Held,
}

/// Lines on their way from the working copy to the image.
#[derive(Debug, Default)]
struct Held {
    /// Number of each, and which of its words.
    lines: Vec<(u64, u8)>,
    /// Of each all words, once they are copied.
    words: Vec<[u64; LINE_WORDS]>,
}

impl Current {
    /// For a heap of so many words; nothing is marked.
    pub fn new(heap_words: u64) -> Current {
        let pieces = heap_words.div_ceil((PIECE_LINES * LINE_WORDS) as u64) as usize;
        Current {
            pieces: vec![None; pieces],
            touched: Vec::new(),
            is_touched: vec![false; pieces],
            logged: Vec::new(),
            values: Vec::new(),
            held: Held::default(),
        }
    }

    #[inline]
    fn marks(&mut self, line: u64) -> &mut u16 {
        let piece = line as usize / PIECE_LINES;
        if !self.is_touched[piece] {
            self.touch(piece);
        }
        &mut self.pieces[piece].as_mut().expect("a touched piece is there")[line as usize % PIECE_LINES]
    }

    #[cold]
    fn touch(&mut self, piece: usize) {
        self.is_touched[piece] = true;
        self.touched.push(piece as u32);
        let zeroes = || vec![0; PIECE_LINES].into_boxed_slice().try_into().expect("so many");
        self.pieces[piece].get_or_insert_with(zeroes);
    }

    /// A transaction wrote these words of a line.
    #[inline]
    fn written(&mut self, line: u64, bits: u16) {
        let marks = self.marks(line);
        *marks = *marks & !(bits << 8) | bits;
    }

    /// These words have these values, which were written in place.
    fn logged(&mut self, first: u64, values: &[u64]) {
        for (line, bits, _) in lines_of(first, values.len()) {
            let marks = self.marks(line);
            *marks = *marks & !bits | bits << 8;
        }
        let from = self.values.len();
        self.values.extend_from_slice(values);
        self.logged.push((first, from..self.values.len()));
    }

    /// Stores all marked words into the image and starts writing them back; `dirty` helps. `None`, with some of them stored, if the
    /// working copy did not [settle](Working::settle); else the lines written. Nothing is marked afterwards.
    pub fn store(&mut self, image: &dyn Region, working: &mut dyn Working, dirty: &mut DirtyLines) -> Result<Option<u64>> {
        let stored = self.store_logged(image, dirty).and_then(|()| self.store_written(image, working));
        for (at, piece) in self.touched.drain(..).enumerate() {
            self.is_touched[piece as usize] = false;
            let marks = &mut self.pieces[piece as usize];
            if at >= KEPT_MAX {
                *marks = None;
            } else if !matches!(stored, Ok(Some(_))) {
                marks.as_mut().expect("a touched piece is there").fill(0);
            }
        }
        self.held.lines.clear();
        let lines = dirty.write_back(image);
        Ok(stored?.map(|written| written + lines))
    }

    /// Stores the words that are taken from the working copy, front to back, and takes their marks away.
    fn store_written(&mut self, image: &dyn Region, working: &mut dyn Working) -> Result<Option<u64>> {
        self.touched.sort_unstable();
        let mut lines = 0;
        for &piece in &self.touched {
            let marks = self.pieces[piece as usize].as_mut().expect("a touched piece is there");
            // Four lines at a look: most are unmarked.
            for (at, four) in marks.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                if *four == [0; 4] {
                    continue;
                }
                let first = u64::from(piece) * PIECE_LINES as u64 + at as u64 * 4;
                let marked = (first..).zip(std::mem::take(four)).filter(|(_, marks)| *marks != 0);
                // The logged words are stored, and their marks are gone.
                self.held.lines.extend(marked.map(|(line, marks)| (line, marks as u8)));
                if self.held.lines.len() > HELD_MAX - 4 {
                    lines += self.held.lines.len() as u64;
                    if !self.held.bring_up(image, working)? {
                        return Ok(None);
                    }
                }
            }
        }
        lines += self.held.lines.len() as u64;
        Ok(self.held.bring_up(image, working)?.then_some(lines))
    }

    /// Stores the words whose logged values count: of each the newest.
    fn store_logged(&mut self, image: &dyn Region, dirty: &mut DirtyLines) -> Result<()> {
        while let Some((first, at)) = self.logged.pop() {
            for (line, bits, before) in lines_of(first, at.len()) {
                let marks = self.marks(line);
                let wanted = *marks >> 8 & bits;
                *marks &= !(wanted << 8);
                for (word, count) in runs(wanted) {
                    let from = at.start + before + (word - bits.trailing_zeros()) as usize;
                    let run = &self.values[from..from + count as usize];
                    image.store(line * LINE as u64 + u64::from(word) * 8, bytemuck::cast_slice(run))?;
                    dirty.mark(line);
                }
            }
        }
        self.values.clear();
        Ok(())
    }
}

/// The lines of words `first..first + count`: number of each, a bit for each of these words in it, and how many of them come before.
#[inline]
fn lines_of(first: u64, count: usize) -> impl Iterator<Item = (u64, u16, usize)> {
    let (mut line, mut from, mut done) = (first / LINE_WORDS as u64, first as usize % LINE_WORDS, 0);
    std::iter::from_fn(move || {
        let now = (count - done).min(LINE_WORDS - from);
        let found = (now > 0).then_some((line, ((1u16 << now) - 1) << from, done));
        (line, from, done) = (line + 1, 0, done + now);
        found
    })
}

/// Runs of set bits: the first of each, and how many.
#[inline]
fn runs(mut bits: u16) -> impl Iterator<Item = (u32, u32)> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let (first, count) = (bits.trailing_zeros(), (bits >> bits.trailing_zeros()).trailing_ones());
        bits &= u16::MAX.checked_shl(first + count).unwrap_or(0);
        Some((first, count))
    })
}

impl Sink for Current {
    #[inline]
    fn words(&mut self, words: Words<'_>) -> Result<()> {
        match words.values {
            _ if words.in_place => self.logged(words.first, words.values),
            many => lines_of(words.first, many.len()).for_each(|(line, bits, _)| self.written(line, bits)),
        }
        Ok(())
    }

    #[inline(always)]
    fn few(&mut self, few: Few<'_>) -> Result<()> {
        // Words of one line mostly come together.
        let (mut line, mut bits) = (0, 0);
        for word in few.numbers() {
            let (its_line, bit) = (word / LINE_WORDS as u64, 1 << (word % LINE_WORDS as u64));
            if its_line != line && bits != 0 {
                self.written(line, bits);
                bits = 0;
            }
            (line, bits) = (its_line, bits | bit);
        }
        if bits != 0 {
            self.written(line, bits);
        }
        Ok(())
    }

    #[inline]
    fn ahead(&mut self, word: u64) {
        let line = word as usize / LINE_WORDS;
        if let Some(Some(marks)) = self.pieces.get(line / PIECE_LINES) {
            persist::prefetch((&raw const marks[line % PIECE_LINES]).cast());
        }
    }
}

/// The words of a line that are its block's header, if a block begins there.
const HEADER: u8 = 0b11;
/// Times that lines are copied anew because blocks ceased to be meanwhile.
const TRIES: u32 = 4;

impl Held {
    /// Takes the words of these lines from the working copy, waits until they are durable, and stores them into the image.
    fn bring_up(&mut self, image: &dyn Region, working: &mut dyn Working) -> Result<bool> {
        if !self.lines.is_empty() && !(0..TRIES).map_while(|_| self.copy(working)).any(|fits| fits) {
            return Ok(false);
        }
        let base = first_byte(image);
        for (at, (&(line, mask), words)) in self.lines.iter().zip(&self.words).enumerate() {
            if let Some((later, _)) = self.lines.get(at + AHEAD) {
                persist::prefetch(base.wrapping_add(*later as usize * LINE));
            }
            image.store_line(line * LINE as u64, words, mask)?;
        }
        self.lines.clear();
        Ok(true)
    }

    /// Copies these lines from the working copy, and takes what are headers there out of their masks. False: it must be done again; `None`:
    /// it did not settle.
    ///
    /// A header that was copied is one of a block that was there then. Unless a slab was dissolved since, it still is when all that was
    /// copied has settled, and is found.
    fn copy(&mut self, working: &mut dyn Working) -> Option<bool> {
        let layout = working.layout();
        self.words.clear();
        self.words.extend(self.lines.iter().enumerate().map(|(at, &(line, _))| {
            if let Some((later, _)) = self.lines.get(at + AHEAD) {
                working.prefetch(*later);
            }
            working.line(line)
        }));
        if !working.settle() {
            return None;
        }
        for (line, mask) in &mut self.lines {
            if *mask & HEADER != 0 && working.begins_block(*line) {
                *mask &= !HEADER;
            }
        }
        Some(working.layout() == layout)
    }
}
