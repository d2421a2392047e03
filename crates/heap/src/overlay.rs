//! The heap as recovery would leave it, without writing it: lines and words of the live log over the image.
//!
//! What must always hold: what is read through it is what replaying the same log into the image would make of it.

use std::collections::BTreeMap;

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
    /// Lines from here on are not kept.
    end: u64,
}

impl Overlay {
    /// Keeps the lines of the first `len` bytes of the heap.
    pub fn new(len: u64) -> Overlay {
        Overlay { lines: BTreeMap::new(), end: len.div_ceil(LINE as u64) }
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

    /// Which lines it has, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.lines.keys().copied()
    }

    /// Lays the lines of `newer` over these.
    pub fn append(&mut self, newer: Overlay) {
        self.lines.extend(newer.lines);
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
        Ok(image.stream(span_first * LINE as u64, &span)?)
    }

    /// Where in the heap the last of its lines ends.
    pub fn last_end(&self) -> u64 {
        self.lines.last_key_value().map_or(0, |(index, _)| (index + 1) * LINE as u64)
    }

    /// Lines that it holds, whole or in part.
    pub fn len(&self) -> u64 {
        self.lines.len() as u64
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
        Ok(())
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
