//! The undo log of an `atomically` that has not ended.
//!
//! ```text
//!   block:  next (8) | section (8) | TOWAUNDO | 0 (8) | 127 entries
//!   entry:  position (8) | old bytes (8) | how many (4) | reference (4) | check (8)
//! ```
//!
//! What must always hold: a block is durable before it is led to, so one that is led to and is none is damage; an entry whose check does
//! not fit ends the log.

use std::collections::HashSet;

use crate::error::Result;
use crate::report::Problems;
use crate::source::View;
use crate::superblock::{HEAP_START, NONE, WORDS, Words};

const BLOCK: u64 = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"TOWAUNDO");
const ENTRIES: u64 = 32;
const ENTRY: u64 = 32;

/// Is given a place in the pool, and what was there before the section.
type Entry<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// The finalizer of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Follows the log as rolling back does; what is wrong goes to `problems`. `entry` is given the place and the old bytes of each entry: each byte of the pool is
/// in one of them at most, so their order does not matter.
pub(crate) fn follow(view: &mut View, words: &Words, problems: &mut Problems, entry: Entry) -> Result<()> {
    let (mut from, mut block, mut section) = (WORDS + 40, words.undo, None);
    // A block that leads to an earlier one would be followed for ever; each that is new has content, so the file's own bounds the work.
    let mut seen = HashSet::new();
    while block != 0 && block != NONE {
        if block < HEAP_START || !block.is_multiple_of(BLOCK) || block + BLOCK > words.frontier {
            problems.add(from, || format!("the undo log leads to {block:#x}, which is no place of a block of it"));
            return Ok(());
        }
        if !seen.insert(block) {
            problems.add(from, || format!("the undo log leads to {block:#x}, a block of it that came before"));
            return Ok(());
        }
        let number = view.u64(block + 8)?;
        if view.u64(block + 16)? != MAGIC || *section.get_or_insert(number) != number {
            problems.add(block, || format!("the undo log leads to {block:#x}, where no block of it lies"));
            return Ok(());
        }
        for at in (block + ENTRIES..block + BLOCK).step_by(ENTRY as usize) {
            let fields = [view.u64(at)?, view.u64(at + 8)?, view.u64(at + 16)?];
            let sum = fields.iter().fold(mix(number), |sum, word| mix(sum ^ word));
            if sum != view.u64(at + 24)? {
                return Ok(());
            }
            let (place, len) = (fields[0], fields[2] & 0xffff_ffff);
            if !(1..=8).contains(&len) || !place.is_multiple_of(len) || place < HEAP_START || place > words.frontier - len {
                problems.add(at, || format!("the undo log's entry at {at:#x} is of {len} bytes at {place:#x}, which cannot be"));
                return Ok(());
            }
            entry(place, &fields[1].to_le_bytes()[..len as usize])?;
        }
        (from, block) = (block, view.u64(block)?);
    }
    if block == 0 && words.undo != 0 {
        problems.add(from, || format!("the undo log's block at {from:#x} leads to 0, where 1 stands for none"));
    }
    Ok(())
}
