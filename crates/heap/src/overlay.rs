//! The heap as recovery would leave it, without writing it: lines of the live log over the image.
//!
//! What must always hold: what is read through it is what replaying the same epochs into the image would make of it.

use std::collections::BTreeMap;

use towa_media::{LINE, Region};

use crate::alloc::{self, CHUNK, Damage};
use crate::roots::{RootTable, TABLE_LEN};
use crate::superblock::Superblock;

/// The newest of each line that the log holds, up to some offset.
#[derive(Debug)]
pub(crate) struct Overlay {
    lines: BTreeMap<u64, [u8; LINE]>,
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
            self.lines.insert(line, bytes.try_into().expect("a line"));
        }
    }

    /// Lays the lines of `newer` over these.
    pub fn append(&mut self, newer: Overlay) {
        self.lines.extend(newer.lines);
    }

    /// Reads heap bytes from `off` on: `image`, and the lines over it.
    pub fn read(&self, image: &dyn Region, off: u64, into: &mut [u8]) -> Result<(), String> {
        image.read(off, into).map_err(|e| e.to_string())?;
        let (line, end) = (LINE as u64, off + into.len() as u64);
        for (&index, bytes) in self.lines.range(off / line..end.div_ceil(line)) {
            let at = index * line;
            let (from, to) = (at.max(off), (at + line).min(end));
            into[(from - off) as usize..(to - off) as usize].copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
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
