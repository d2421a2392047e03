//! Lines of the image that were stored to and not written back yet: a bit each, in pieces that come into being where lines do.
//!
//! What must always hold: a line that was stored to has its bit until [`DirtyLines::write_back`] passed over it.

use towa_media::{LINE, Region};

/// Lines of a piece: those of 2 MiB of the heap.
const PIECE_LINES: u64 = 1 << 15;
const PIECE_WORDS: usize = (PIECE_LINES / 64) as usize;

/// The lines of a heap.
#[derive(Debug)]
pub(super) struct DirtyLines {
    pieces: Vec<Option<Box<[u64; PIECE_WORDS]>>>,
    /// Pieces with a bit, in the order in which they got one.
    touched: Vec<u32>,
    /// Per piece: whether it is among these.
    is_touched: Vec<bool>,
}

impl DirtyLines {
    /// For a heap of so many words; none is dirty.
    pub fn new(heap_words: u64) -> DirtyLines {
        let pieces = (heap_words * 8 / LINE as u64).div_ceil(PIECE_LINES) as usize;
        DirtyLines { pieces: vec![None; pieces], touched: Vec::new(), is_touched: vec![false; pieces] }
    }

    /// Marks a line.
    #[inline]
    pub fn mark(&mut self, line: u64) {
        let piece = (line / PIECE_LINES) as usize;
        if !self.is_touched[piece] {
            self.touch(piece);
        }
        let bits = self.pieces[piece].as_mut().expect("a touched piece is there");
        bits[(line % PIECE_LINES / 64) as usize] |= 1 << (line % 64);
    }

    #[cold]
    fn touch(&mut self, piece: usize) {
        self.is_touched[piece] = true;
        self.touched.push(piece as u32);
        self.pieces[piece].get_or_insert_with(|| Box::new([0; PIECE_WORDS]));
    }

    /// Starts writing back each marked line of `image`, once, neighbours together, and forgets them. Gives how many.
    pub fn write_back(&mut self, image: &dyn Region) -> u64 {
        let flush = |first: u64, count: u64| {
            if count > 0 {
                image.write_back(first * LINE as u64, count * LINE as u64);
            }
        };
        let mut lines = 0;
        let (mut first, mut count) = (0, 0);
        self.touched.sort_unstable();
        for piece in self.touched.drain(..) {
            self.is_touched[piece as usize] = false;
            let bits = self.pieces[piece as usize].as_mut().expect("a touched piece is there");
            for (at, word) in bits.iter_mut().enumerate() {
                let mut left = std::mem::take(word);
                while left != 0 {
                    let from = left.trailing_zeros();
                    let run = (left >> from).trailing_ones();
                    let line = u64::from(piece) * PIECE_LINES + at as u64 * 64 + u64::from(from);
                    if first + count != line {
                        flush(first, count);
                        (first, count) = (line, 0);
                    }
                    count += u64::from(run);
                    lines += u64::from(run);
                    left &= u64::MAX.checked_shl(from + run).unwrap_or(0);
                }
            }
        }
        flush(first, count);
        lines
    }
}
