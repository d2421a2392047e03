//! Words to be written into the image of a sync medium, where each write is a system call: gathered line by line, so that each line is
//! written once, the newest, with its neighbours in one write.
//!
//! What must always hold: of two values of a word the one added later is what is written; what no word was added for is written as it is.

use std::collections::HashMap;

use towa_media::{LINE, Region};

use super::record::{LINE_WORDS, Words};
use super::replay::Sink;
use crate::Result;

/// Lines after which the batch is written: it is not to take the memory of a whole log.
const LINES_MAX: usize = 256 << 10;
/// Longest write.
const SPAN: usize = 1 << 20;

/// Which words of a line count, and these.
type Line = (u8, [u64; LINE_WORDS]);

/// Words that were added and not written yet.
pub(super) struct Batch<'i> {
    image: &'i dyn Region,
    lines: HashMap<u64, Line>,
    written: u64,
}

impl<'i> Batch<'i> {
    pub fn new(image: &'i dyn Region) -> Self {
        Batch { image, lines: HashMap::new(), written: 0 }
    }

    /// Writes what is left. Gives the lines written in all.
    pub fn finish(mut self) -> Result<u64> {
        self.write()?;
        Ok(self.written)
    }

    fn write(&mut self) -> Result<()> {
        let mut lines: Vec<(u64, Line)> = self.lines.drain().collect();
        lines.sort_unstable_by_key(|line| line.0);
        let mut span: Vec<u64> = Vec::with_capacity((SPAN / 8).min(lines.len() * LINE_WORDS));
        let mut span_first = 0;
        for (line, (mask, mut words)) in lines {
            if mask != u8::MAX {
                let mut old = [0; LINE_WORDS];
                self.image.read(line * LINE as u64, bytemuck::bytes_of_mut(&mut old))?;
                (0..LINE_WORDS).filter(|at| mask & 1 << at == 0).for_each(|at| words[at] = old[at]);
            }
            if span_first + (span.len() / LINE_WORDS) as u64 != line || span.len() * 8 >= SPAN {
                self.flush(span_first, &mut span)?;
                span_first = line;
            }
            span.extend_from_slice(&words);
        }
        self.flush(span_first, &mut span)
    }

    fn flush(&mut self, first: u64, span: &mut Vec<u64>) -> Result<()> {
        if !span.is_empty() {
            self.image.stream(first * LINE as u64, bytemuck::cast_slice(span))?;
        }
        self.written += (span.len() / LINE_WORDS) as u64;
        span.clear();
        Ok(())
    }
}

impl Sink for Batch<'_> {
    fn words(&mut self, words: Words<'_>) -> Result<()> {
        for (index, value) in (words.first..).zip(words.values) {
            let (mask, words) = self.lines.entry(index / LINE_WORDS as u64).or_default();
            let at = (index % LINE_WORDS as u64) as usize;
            *mask |= 1 << at;
            words[at] = *value;
        }
        if self.lines.len() >= LINES_MAX { self.write() } else { Ok(()) }
    }
}
