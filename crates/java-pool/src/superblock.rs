//! What the file is: the superblock, and the words that change.
//!
//! ```text
//!   0       slot 0 | 4096  slot 1      256 bytes each; the valid one with the greater `seq` wins, an update overwrites the other
//!   512     number of the last commit whose pages are all in the file; at the capacity: of the last one that was begun
//!   8192    words of 8 bytes           each changes by one store; 0 is no value of any but the hint
//!   65536   the heap, up to the frontier
//! ```
//!
//! What must always hold: one slot is whole at every moment, so a slot that is not is an update cut short as long as the other one is;
//! and what these fields say has been compared with the file's length before anybody follows them.

use crate::error::{Error, Result};
use crate::report::Problems;
use crate::source::{View, u32_of, u64_of};

/// First bytes of a slot.
pub const MAGIC: [u8; 8] = *b"TOWAJAVA";
/// The version that is read here.
pub const VERSION: u32 = 1;
/// Where the second slot begins.
pub const SLOT: u64 = 4096;
/// Where the words are.
pub const WORDS: u64 = 8192;
/// Where the heap begins.
pub const HEAP_START: u64 = 65536;
/// Collector cycles and recovery's mark numbers are below this.
pub const CYCLES: u64 = 1 << 28;

/// Bytes of a slot.
pub(crate) const RECORD: usize = 256;
const SUM: usize = 248;
/// The first byte that means nothing in this version.
const RESERVED: usize = 88;
/// Where the file says which commit it has whole; which one was begun it says at its capacity.
pub(crate) const DONE: u64 = 512;
/// Where among the words the head of the undo log is.
pub(crate) const UNDO: u64 = 40;
/// A head that leads nowhere. Not 0, so that zeros in its place are found out.
pub(crate) const NONE: u64 = 1;

/// What a pool's programs asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The file is mapped shared: it survives the process.
    Process,
    /// The file holds committed images: it survives power loss.
    Power,
}

/// A slot's fields, checked.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    /// Where the slot is.
    pub(crate) at: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) seq: u64,
    pub(crate) capacity: u64,
    pub(crate) created_unix_s: u64,
    pub(crate) clean: bool,
    pub(crate) durability: Durability,
    /// The process that opened it last, as that one knows itself.
    pub(crate) pid: u32,
    /// Of the last opening for commits.
    pub(crate) stamp: u64,
}

impl Superblock {
    /// Whether the file may lack a part of a commit, which its log has then.
    pub(crate) fn needs_log(&self) -> bool {
        self.durability == Durability::Power && !self.clean
    }
}

/// The words.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    pub(crate) frontier: u64,
    pub(crate) mark_number: u64,
    pub(crate) cycle: u64,
    pub(crate) classes: u64,
    pub(crate) roots: u64,
    pub(crate) undo: u64,
    pub(crate) stale_tables: u64,
    pub(crate) sections: u64,
}

/// The words' names and places, in this order.
const NAMES: [&str; 9] = [
    "frontier",
    "mark number of recovery",
    "collector cycle",
    "head of classes",
    "head of roots",
    "head of the undo log",
    "mark of stale tables",
    "bytes in use, a hint",
    "limit of section numbers",
];

/// Reads the newest whole slot.
pub(crate) fn read(view: &mut View) -> Result<Superblock> {
    let (name, len) = (view.pool(), view.len());
    let pool = || name.to_owned();
    let mut slots = [(0, [0; RECORD]), (SLOT, [0; RECORD])];
    let mut there = 0;
    for (at, slot) in &mut slots {
        if len >= *at + RECORD as u64 {
            view.read(*at, slot)?;
            there += 1;
        }
    }
    let is_ours = |slot: &[u8; RECORD]| slot[..8] == MAGIC;
    let is_whole = |slot: &[u8; RECORD]| is_ours(slot) && u64_of(slot, SUM) == u64::from(crc32c::crc32c(&slot[..SUM]));
    let version = |slot: &[u8; RECORD]| u32_of(slot, 8);
    let newer = |slot: &[u8; RECORD]| Error::Newer { pool: pool(), what: format!("format version {}", version(slot)) };
    if let Some((at, newest)) = slots.iter().filter(|(_, s)| is_whole(s)).max_by_key(|(_, s)| u64_of(s, 32)) {
        if version(newest) > VERSION {
            return Err(newer(newest));
        }
        return fields(view, *at, newest);
    }
    if let Some((at, slot)) = slots.iter().find(|(_, s)| is_ours(s)) {
        // A newer format may checksum differently: its version is worth more than our verdict on its checksum.
        if version(slot) > VERSION {
            return Err(newer(slot));
        }
        if there < 2 {
            return Err(Error::Truncated { pool: pool(), len, needed: HEAP_START, what: "the superblock and the words" });
        }
        return Err(Error::Damaged { pool: pool(), at: *at, what: "no superblock slot has a valid checksum".into() });
    }
    if holds_only_zeros(view)? {
        return Err(Error::Unfinished { pool: pool() });
    }
    let why = match len {
        0 => "it is empty",
        _ if len < RECORD as u64 => "it is too short for a superblock",
        _ => "it does not begin with TOWAJAVA",
    };
    Err(Error::Foreign { pool: pool(), why: why.into() })
}

/// Whether the file is what a creation leaves that was stopped before the first superblock: the room of the words, all
/// zeros.
fn holds_only_zeros(view: &mut View) -> Result<bool> {
    let len = view.len();
    if len == 0 || len > HEAP_START {
        return Ok(false);
    }
    let mut bytes = vec![0; len as usize];
    view.read(0, &mut bytes)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Checks the fields against each other and the file, so that nothing later can be led astray by them.
fn fields(view: &View, at: u64, slot: &[u8; RECORD]) -> Result<Superblock> {
    let pool = || view.pool().to_owned();
    let damaged = |field: u64, what: String| Error::Damaged { pool: pool(), at: at + field, what: format!("superblock: {what}") };
    if version(slot) == 0 {
        return Err(damaged(8, "version 0 does not exist".into()));
    }
    if u32_of(slot, 12) != 0 {
        return Err(Error::Newer { pool: pool(), what: format!("flags {:#x}, of which none is known", u32_of(slot, 12)) });
    }
    if let Some(odd) = (RESERVED..SUM).find(|byte| slot[*byte] != 0) {
        return Err(Error::Newer { pool: pool(), what: format!("a superblock with something at {:#x}", at + odd as u64) });
    }
    match u32_of(slot, 64) {
        0 if view.len() > HEAP_START && view.fresh_u64(WORDS)? > HEAP_START => {
            return Err(damaged(64, "it says that the pool is being made, and the heap is in use".into()));
        }
        0 => return Err(Error::Unfinished { pool: pool() }),
        1 => {}
        other => return Err(damaged(64, format!("state {other}, neither being made (0) nor ready (1)"))),
    }
    let (capacity, heap_start) = (u64_of(slot, 40), u64_of(slot, 56));
    if heap_start != HEAP_START {
        return Err(damaged(56, format!("the heap begins at {heap_start:#x}, not at {HEAP_START:#x}")));
    }
    if capacity < HEAP_START {
        return Err(damaged(40, format!("a capacity of {capacity} bytes has no room for a heap")));
    }
    let clean = match u32_of(slot, 68) {
        clean @ 0..=1 => clean == 1,
        other => return Err(damaged(68, format!("clean is {other}, neither 0 nor 1"))),
    };
    let durability = match u32_of(slot, 72) {
        1 => Durability::Process,
        2 => Durability::Power,
        other => return Err(damaged(72, format!("durability {other}, neither process (1) nor power (2)"))),
    };
    let (seq, created_unix_s) = (u64_of(slot, 32), u64_of(slot, 48));
    let uuid = slot[16..32].try_into().expect("sixteen bytes");
    let (pid, stamp) = (u32_of(slot, 76), u64_of(slot, 80));
    Ok(Superblock { at, uuid, seq, capacity, created_unix_s, clean, durability, pid, stamp })
}

/// Makes the slot that counts the next one, of a pool that was closed, with this stamp.
pub(crate) fn close(slot: &mut [u8; RECORD], stamp: u64) {
    let seq = u64_of(slot, 32) + 1;
    slot[32..40].copy_from_slice(&seq.to_le_bytes());
    slot[68..72].copy_from_slice(&1u32.to_le_bytes());
    // No process has opened it.
    slot[76..80].copy_from_slice(&0u32.to_le_bytes());
    slot[80..88].copy_from_slice(&stamp.to_le_bytes());
    let sum = u64::from(crc32c::crc32c(&slot[..SUM]));
    slot[SUM..].copy_from_slice(&sum.to_le_bytes());
}

fn version(slot: &[u8; RECORD]) -> u32 {
    u32_of(slot, 8)
}

/// Reads the words; those that lead anywhere are checked, so that they lead into the heap.
///
/// The heads come first: where an owner works meanwhile, what they lead to lies below the frontier that is read after them.
pub(crate) fn words(view: &mut View, superblock: &Superblock) -> Result<Words> {
    let len = view.len();
    if len < HEAP_START {
        return Err(Error::Truncated { pool: view.pool().into(), len, needed: HEAP_START, what: "the superblock and the words" });
    }
    let mut all = [0; NAMES.len()];
    for (number, word) in all.iter_mut().enumerate().rev() {
        *word = view.fresh_u64(WORDS + number as u64 * 8)?;
    }
    for number in 3..6 {
        match all[number] {
            0 => {
                let place = WORDS + number as u64 * 8;
                let what = format!("{}: zeros, where 1 stands for none", NAMES[number]);
                return Err(Error::Damaged { pool: view.pool().into(), at: place, what });
            }
            NONE => all[number] = 0,
            _ => {}
        }
    }
    let [frontier, mark_number, cycle, classes, roots, undo, stale_tables, _, sections] = all;
    let damaged = |number: usize, what: String| Error::Damaged { pool: view.pool().into(), at: WORDS + number as u64 * 8, what };
    if frontier < HEAP_START || !frontier.is_multiple_of(4096) || frontier > superblock.capacity {
        let capacity = superblock.capacity;
        return Err(damaged(0, format!("frontier {frontier:#x} is no end of a segment from {HEAP_START:#x} to {capacity:#x}")));
    }
    if frontier > len {
        return Err(Error::Truncated { pool: view.pool().into(), len, needed: frontier, what: "what is in use" });
    }
    for number in 3..6 {
        let head = all[number];
        if head != 0 && (head < HEAP_START || head >= frontier || !head.is_multiple_of(16)) {
            return Err(damaged(number, format!("{}: {head:#x} is no place in the heap", NAMES[number])));
        }
    }
    Ok(Words { frontier, mark_number, cycle, classes, roots, undo, stale_tables, sections })
}

/// The commits that the file has whole, and has begun to take; 0 where there is nothing.
pub(crate) fn commits(view: &View, superblock: &Superblock) -> Result<(u64, u64)> {
    let number = |at: u64| if at.saturating_add(8) <= view.len() { view.fresh_u64(at) } else { Ok(0) };
    Ok((number(DONE)?, number(superblock.capacity)?))
}

/// What is wrong with the slots and words beyond what stops everything.
pub(crate) fn check(view: &mut View, superblock: &Superblock, words: &Words, problems: &mut Problems) -> Result<()> {
    for at in [0, SLOT] {
        let mut slot = [0; RECORD];
        view.read(at, &mut slot)?;
        if slot[..8] != MAGIC {
            problems.add(at, || "this superblock slot is gone: something else lies there".into());
            continue;
        }
        // A slot that is not whole is an update that was cut short.
        if u64_of(&slot, SUM) != u64::from(crc32c::crc32c(&slot[..SUM])) {
            continue;
        }
        if u64_of(&slot, 32) % 2 != at / SLOT {
            problems.add(at + 32, || format!("seq {} belongs into the other superblock slot", u64_of(&slot, 32)));
        }
        if slot[16..32] != superblock.uuid {
            problems.add(at + 16, || "this superblock slot is of another pool than the newest one (uuid)".into());
        }
        if at != superblock.at && u64_of(&slot, 32) == superblock.seq {
            problems.add(at + 32, || format!("both superblock slots have seq {}: nothing says which is newer", superblock.seq));
        } else if at != superblock.at && u64_of(&slot, 32).checked_add(1) != Some(superblock.seq) {
            problems.add(at + 32, || {
                format!("the superblock's slots have seq {} and {}: not one update apart", u64_of(&slot, 32), superblock.seq)
            });
        }
        if u64_of(&slot, 48) != superblock.created_unix_s {
            problems.add(at + 48, || "the superblock's slots differ in when the pool was made".into());
        }
    }
    if view.len() > superblock.capacity.saturating_add(SLOT) {
        let (len, capacity) = (view.len(), superblock.capacity);
        problems.add(40, || format!("the file has {len} bytes, more than its capacity of {capacity}"));
    }
    for (number, value) in [(1, words.mark_number), (2, words.cycle)] {
        if !(1..CYCLES).contains(&value) {
            problems.add(WORDS + number as u64 * 8, || format!("{} is {value}, not from 1 to {}", NAMES[number], CYCLES - 1));
        }
    }
    if !(1..=2).contains(&words.stale_tables) {
        problems.add(WORDS + 48, || format!("{} is {}, not 1 or 2", NAMES[6], words.stale_tables));
    }
    if words.sections == 0 || words.sections > i64::MAX as u64 {
        problems.add(WORDS + 64, || format!("{} is {}", NAMES[8], words.sections));
    }
    if superblock.clean && words.undo != 0 {
        problems.add(WORDS + 40, || "closed cleanly, yet there is an undo log".into());
    }
    Ok(())
}
