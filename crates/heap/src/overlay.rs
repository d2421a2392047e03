//! The heap as recovery would leave it, without writing it: lines and words of the live log over the image.
//!
//! What must always hold: what is read through it is what replaying the same log into the image would make of it.

use std::collections::BTreeMap;
use std::ops::Range;

use towa_media::{LINE, Region};

use crate::alloc::{self, CHUNK, Damage};
use crate::roots::{RootTable, TABLE_LEN};
use crate::superblock::Superblock;

/// Words of a line.
const WORDS: u64 = LINE as u64 / 8;

/// The newest of each line that the log holds, up to some offset.
#[derive(Debug)]
pub(crate) struct Overlay {
    /// With a bit for each word of the line that the log holds.
    lines: BTreeMap<u64, (u8, [u8; LINE])>,
    /// Rows of lines that are zero, whatever `lines` has of them: how many lines follow each first one. None overlaps another.
    blank: BTreeMap<u64, u64>,
    /// Lines from here on are not kept.
    end: u64,
}

impl Overlay {
    /// Keeps the lines of the first `len` bytes of the heap.
    pub fn new(len: u64) -> Overlay {
        Overlay { lines: BTreeMap::new(), blank: BTreeMap::new(), end: len.div_ceil(LINE as u64) }
    }

    /// Lays lines from `first` on over what is there.
    pub fn add(&mut self, first: u64, bytes: &[u8]) {
        for (line, bytes) in (first..self.end).zip(bytes.chunks_exact(LINE)) {
            self.lines.insert(line, (u8::MAX, bytes.try_into().expect("a line")));
        }
    }

    /// Lays words over what is there: `values` from word number `first` on.
    pub fn add_words(&mut self, first: u64, values: &[u64]) {
        for (index, value) in (first..self.end * WORDS).zip(values) {
            let (mask, bytes) = self.lines.entry(index / WORDS).or_insert((0, [0; LINE]));
            let at = (index % WORDS) as usize;
            *mask |= 1 << at;
            bytes[at * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Makes `count` lines from `first` on zero, over every line that is laid over them before or after this. `false`, and nothing, if some of
    /// them are blank already.
    #[must_use]
    pub fn add_blank(&mut self, first: u64, count: u64) -> bool {
        let count = count.min(self.end.saturating_sub(first));
        // Rows do not overlap: only the last one that begins before the end can reach behind the beginning.
        let is_free = self.blank.range(..first + count).next_back().is_none_or(|(at, len)| at + len <= first);
        if is_free && count > 0 {
            self.blank.insert(first, count);
        }
        is_free || count == 0
    }

    /// The bytes of the heap that it has, in rows.
    pub fn rows(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let row = |first: u64, count: u64| first * LINE as u64..(first + count) * LINE as u64;
        let lines = self.lines.keys().map(move |&line| row(line, 1));
        lines.chain(self.blank.iter().map(move |(&first, &count)| row(first, count)))
    }

    /// Lays the lines of `newer` over these, and makes zero what is blank in it; `false` as for [`add_blank`](Self::add_blank).
    pub fn append(&mut self, newer: Overlay) -> bool {
        self.lines.extend(newer.lines);
        newer.blank.into_iter().all(|(first, count)| self.add_blank(first, count))
    }

    /// Writes the lines that end at or before offset `end` over `image`, and forgets them. Durable behind a fence of the image.
    pub fn write_below(&mut self, image: &dyn Region, end: u64) -> crate::Result<()> {
        const SPAN: usize = 1 << 20;
        let later = self.lines.split_off(&(end / LINE as u64));
        let (mut span, mut span_first) = (Vec::new(), 0);
        for (line, (mask, mut bytes)) in std::mem::replace(&mut self.lines, later) {
            if mask != u8::MAX {
                let mut old = [0; LINE];
                image.read(line * LINE as u64, &mut old)?;
                let kept = (0..LINE).filter(|byte| mask & 1 << (byte / 8) == 0);
                kept.for_each(|byte| bytes[byte] = old[byte]);
            }
            if span_first + (span.len() / LINE) as u64 != line || span.len() >= SPAN {
                image.stream(span_first * LINE as u64, &span)?;
                span.clear();
                span_first = line;
            }
            span.extend_from_slice(&bytes);
        }
        image.stream(span_first * LINE as u64, &span)?;
        self.write_blank_below(image, end)
    }

    fn write_blank_below(&mut self, image: &dyn Region, end: u64) -> crate::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let end = end / LINE as u64;
        let later = self.blank.split_off(&end);
        for (first, count) in std::mem::replace(&mut self.blank, later) {
            let upto = (first + count).min(end);
            let bytes = first * LINE as u64..upto * LINE as u64;
            for off in bytes.clone().step_by(ZEROS.len()) {
                image.stream(off, &ZEROS[..(bytes.end - off).min(ZEROS.len() as u64) as usize])?;
            }
            if upto < first + count {
                self.blank.insert(upto, first + count - upto);
            }
        }
        Ok(())
    }

    /// Where in the heap the last of its lines ends.
    pub fn last_end(&self) -> u64 {
        self.rows().map(|row| row.end).max().unwrap_or(0)
    }

    /// Lines that it holds, whole or in part.
    pub fn len(&self) -> u64 {
        self.lines.len() as u64 + self.blank.values().sum::<u64>()
    }

    /// Reads heap bytes from `off` on: `image`, and the lines over it.
    pub fn read(&self, image: &dyn Region, off: u64, into: &mut [u8]) -> Result<(), String> {
        image.read(off, into).map_err(|e| e.to_string())?;
        let (line, end) = (LINE as u64, off + into.len() as u64);
        for (&index, (mask, bytes)) in self.lines.range(off / line..end.div_ceil(line)) {
            let at = index * line;
            let (from, to) = (at.max(off), (at + line).min(end));
            if *mask == u8::MAX {
                into[(from - off) as usize..(to - off) as usize].copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
                continue;
            }
            for byte in (from..to).filter(|byte| mask & 1 << ((byte - at) / 8) != 0) {
                into[(byte - off) as usize] = bytes[(byte - at) as usize];
            }
        }
        self.clear_blank(off, into);
        Ok(())
    }

    /// Makes zeros of what is blank in `into`, which is from offset `off` on.
    fn clear_blank(&self, off: u64, into: &mut [u8]) {
        let (line, end) = (LINE as u64, off + into.len() as u64);
        // The last row that begins before may reach into it.
        let before = self.blank.range(..off / line).next_back();
        for (&first, &count) in before.into_iter().chain(self.blank.range(off / line..end.div_ceil(line))) {
            let (from, to) = ((first * line).max(off), ((first + count) * line).min(end));
            if from < to {
                into[(from - off) as usize..(to - off) as usize].fill(0);
            }
        }
    }

    /// Checks what opening relies on, the roots and the headers of runs, as of an epoch with this frontier. Gives the roots' names.
    pub fn check(&self, image: &dyn Region, sb: &Superblock, frontier: u64) -> Result<Vec<String>, String> {
        let mut table = vec![0; TABLE_LEN as usize];
        self.read(image, 0, &mut table)?;
        let names = RootTable::check(&table, |a| a >= sb.base && a - sb.base < sb.heap_len)?;
        alloc::check_runs(&mut |off, into: &mut [u8]| self.read(image, off, into), sb.heap_len, CHUNK, frontier)?
            .map_err(|damage: Damage| damage.to_string())?;
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use towa_media::sim::{Model, SimMedium};
    use towa_media::{Allocation, Medium};

    use super::*;

    const LEN: usize = 64 * LINE;

    /// What is read in pieces of any length, and what is written, in parts, is the same: lines over the image, blank rows over both.
    #[test]
    fn what_is_written_is_what_was_read() {
        let medium = SimMedium::new(Model::Line);
        let image = medium.create("image", LEN as u64, Allocation::Full).unwrap();
        image.stream(0, &[1; LEN]).unwrap();
        let mut overlay = Overlay::new(LEN as u64);
        assert!(overlay.add_blank(10, 20));
        for (first, count) in [(10, 20), (5, 6), (29, 1), (15, 2), (0, 64), (28, 30)] {
            assert!(!overlay.add_blank(first, count), "{count} lines from {first} on overlap");
        }
        (5..35).for_each(|line| overlay.add(line, &[2; LINE]));
        assert!(overlay.add_blank(40, 1) && overlay.add_blank(60, 100) && overlay.add_blank(30, 0));
        let byte = |at: usize| match at / LINE {
            10..30 | 40 | 60.. => 0,
            5..35 => 2,
            _ => 1,
        };
        let wanted: Vec<u8> = (0..LEN).map(byte).collect();
        for len in [1, 40, LINE, 100, LEN] {
            for at in (0..=LEN - len).step_by(len) {
                let mut found = vec![9; len];
                overlay.read(&*image, at as u64, &mut found).unwrap();
                assert_eq!(found, wanted[at..at + len], "{len} bytes at {at}");
            }
        }
        assert_eq!((overlay.len(), overlay.last_end()), (30 + 20 + 1 + 4, LEN as u64));
        for end in [0, 7, 20, 25, 41, 64] {
            overlay.write_below(&*image, end * LINE as u64).unwrap();
            let mut found = vec![9; LEN];
            overlay.read(&*image, 0, &mut found).unwrap();
            assert_eq!(found, wanted, "once what lies before line {end} is written");
        }
        let mut found = vec![9; LEN];
        image.read(0, &mut found).unwrap();
        assert_eq!((found, overlay.len()), (wanted, 0));
    }
}
