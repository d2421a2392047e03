//! The undo log of a heap *in place*: one whose image is its working copy.
//!
//! On memory that survives the process, tmpfs, what a program stores is where a later process finds it, without any
//! copy. What is missing is only the way back: a kill comes in the midst of an epoch, and the heap must be as it was at
//! the end of the one before. So the first time an epoch marks a line, the line's old bytes go here.
//!
//! ```text
//!   program ──reads, writes──► image, mapped shared (the working copy)
//!       │ a line's old bytes, before an epoch first changes it
//!       ▼
//!   file `log`:   | head | its copy |   block | block | block | ...
//!   head  (a page each):               epoch, frontier, check          the newer whole one names the durable epoch
//!   kept  (in the first head's page):  epoch, check                    for a backup: entries from this epoch on are whole
//!   block (2048 bytes):                epoch, how much is used | entries | the word of the block two places off
//!   entry (16 bytes, 64 for each line): span: the first line's index, how many lines, how many blank ones behind them;
//!                                      check; the lines' bytes
//!   word  (8 bytes):                   checksum of a block's number and of the epoch that took it
//! ```
//!
//! **The heap is** the image, with the lines of all epochs after the durable one as they are here: those of the
//! newest epoch first, those of older ones over them; and what they say is blank is zero.
//!
//! *Blank* are lines of a block that was free at the end of the durable epoch, in chunks that were free or the same slab
//! then. No state that a kill can leave needs their bytes, so a new block costs one entry, of its first line, and not one for
//! each line. They come back as zeros and not as anything, for what was never carved must be zero: that is how a run header
//! that was lost is told from one that never was (`alloc/check.rs`). A block that its program
//! discards has blank lines, too (a cache discards what it evicts). Its entry has the first line, with a word of zeros: by this word the program
//! knows after a kill that the block is lost.
//!
//! | step | stopping after it |
//! |---|---|
//! | *a thread takes a block*: it writes that nothing of it is used, with a checksum that fits the new epoch alone | the word says an epoch that is durable: the block is nothing, whatever it says of itself |
//! | it writes the epoch | the same; and the block has no entries |
//! | it writes the word, in the other page | the block is of that epoch, and has no entries |
//! | *lines are marked*: an entry is written | what is used ends before it, so it is nothing |
//! | the entry is added to what is used, by one store that has that and its checksum | the lines have their old bytes, in the image and here; the blank ones are of a free block, or of one that is discarded: it is lost from here on |
//! | the program overwrites the lines | they are undone, and the blank ones become zeros: the block is free, or lost and says so |
//! | *all transactions of epoch e have ended*: the head is written | whole: e is durable, its entries and those before are nothing any more. In part: the copy says that e - 1 is durable |
//! | the copy of the head is written | e is durable, and says so in two pages. In part: the head counts |
//! | the blocks of e - 1 are kept, and free for other epochs later | they were nothing before |
//! | *recovery*: the old lines are written into the image | log and head are as they were: all is done again |
//! | the new stamps are written | the same; the superblock accepts both (`stamp.rs`) |
//! | the copy of the head is made like the head | the same. Needed, as the next step may leave only the copy |
//! | the head is written, of an epoch beyond those of all blocks, and its copy | the image is whole, and no block counts any more. In part: the copy says the recovered epoch |
//! | the superblock gets the new generation | the pool is open; nothing was changed yet |
//!
//! Blocks of the durable epoch stay as they are until the next one is durable, and those of epochs before as long as a quarter of the log
//! holds them and no other is free. A backup that looks now and then finds each epoch's entries whole (`backup/undo.rs`): *kept* tells it
//! whether it came in time. That is written before a block of the epochs before it is taken. No recovery reads it, and no other
//! process believes that of an opening before.
//!
//! **Damage** in one page is noticed or does no harm. The head has its copy, and an epoch is called durable only when both say
//! so: a page that is lost takes no epoch with it. Each block that counts has its word in another page: a block that is
//! zeroed or older than its word is refused, and so is a word that is zeroed beside a block with entries.
//!
//! A killed process loses none of its stores, and a processor that takes an interrupt has done all that comes before it
//! in the program's order. So the order in the program is all that counts: there are no flushes and no fences, but the
//! compiler's. A thread that takes a block has seen the head that made it free (by the lock of `free`), so the
//! head was stored before whatever that thread stores.
//!
//! What must always hold: between the moments when a line is first changed in an epoch and when that epoch is durable, its
//! old bytes are here, or no state needs them, or the program that owned them has given them up (`Tx::discard`). An owner that runs out of blocks dies rather than changing a line without that.
//!
//! *Loss of power* takes all of it, image and log. So a heap in place is for memory alone.

mod found;

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, compiler_fence, fence};

use bytemuck::{Pod, Zeroable};
use parking_lot::Mutex;
use towa_media::{LINE, Mapping, Region};

use crate::Result;
use crate::checksum::checksum;
use crate::superblock::Superblock;
pub(crate) use found::{Before, Found, Owned, Seen, bytes_after, entries_from, kept_from, newest_head};

/// Where the copy of the head is: in a page of its own.
const HEAD_COPY: u64 = 4096;
/// Where it says from which epoch on entries are kept: two words, the epoch and its [check](kept_check).
const KEPT: u64 = 64;
/// Which part of the log's blocks is kept for backups at most, while no other is free: one of so many.
const KEPT_SHARE: u32 = 4;
/// Bytes of the head and its copy.
pub(crate) const HEADS_LEN: u64 = 2 * HEAD_COPY;
/// Bytes of a block.
const BLOCK: usize = 2048;
/// Blocks of two pages, each of which has the words of the other's: what is read and provided together.
pub(crate) const GROUP: u64 = 4;
/// Bytes of these.
const GROUP_LEN: u64 = GROUP * BLOCK as u64;
/// Blocks that a thread takes at a time while no more than a quarter of all are in use; else one, for there may be many threads.
const TAKEN_AT_ONCE: usize = 4;
/// Bytes of an entry before its lines, and the unit in which a block says how much of it is used.
const UNIT: usize = 16;
/// Units of a block that entries can take.
const UNITS: usize = 120;
/// Lines that a block holds at least when it is full: each may have an entry of its own.
const LINES_MIN: u64 = (UNITS * UNIT / (UNIT + LINE)) as u64;
/// Bits of a span that hold the index of the first line, and those that hold one less than the number of lines. Above are the blank ones.
const INDEX_BITS: u32 = 42;
const COUNT_BITS: u32 = 5;
/// Most blank lines that one entry can speak of.
pub const BLANK_MAX: u64 = (1 << (u64::BITS - INDEX_BITS - COUNT_BITS)) - 1;
/// Bytes of log that a line costs at most, in a full block.
pub const LINE_COST: u64 = (BLOCK as u64).div_ceil(LINES_MIN);
/// Least bytes of blocks: some for each thread that there may be.
pub(crate) const BLOCKS_LEN_MIN: u64 = 8 << 20;

/// What says which epoch is durable, as stored (little endian).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Head {
    pub epoch: u64,
    /// The allocator's, at the end of that epoch.
    pub frontier: u64,
    check: u64,
}

/// The lines that an entry speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    /// Lines whose bytes it has: at least one.
    count: u64,
    /// Blank lines behind them.
    blank: u64,
}

/// A block, as stored.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Block {
    epoch: u64,
    /// How many units of the body are used, [sealed](seal).
    used: u64,
    reserved: [u64; 6],
    /// Entries, one behind the other.
    body: [u64; UNITS * UNIT / 8],
    /// The [word](taken_word) of the block two places off.
    word: u64,
    unused: [u64; 7],
}

const _: () = assert!(size_of::<Block>() == BLOCK && UNITS <= 0xFF && (UNITS * UNIT - UNIT) / LINE <= 1 << COUNT_BITS);

/// Whether an undo log can have blocks of so many bytes: whole groups.
pub(crate) fn is_log_len(len: u64) -> bool {
    len >= BLOCKS_LEN_MIN && len.is_multiple_of(GROUP_LEN)
}

/// The length that a log of at least `len` bytes gets.
pub(crate) fn whole_groups(len: u64) -> u64 {
    len.next_multiple_of(GROUP_LEN)
}

/// Blocks of an undo log of this nominal length: as many, and so many more as all lines of the heap take. A transaction that marks
/// more than it may makes an end of the pool, but not before its old lines are here.
fn blocks(sb: &Superblock) -> (u64, u64) {
    let nominal = sb.ring_len / BLOCK as u64;
    (nominal, (nominal + (sb.heap_len / LINE as u64).div_ceil(LINES_MIN) + 1024).next_multiple_of(GROUP))
}

/// The check of what an owner, whose stamp that is, says of the entries that it keeps.
fn kept_check(seed: u64, stamp: u64, epoch: u64) -> u64 {
    checksum(seed ^ stamp, bytemuck::bytes_of(&epoch))
}

/// Where the word of block `number` is: in the block two places off, which is in the group's other page.
fn keeper_of(number: u64) -> u64 {
    number ^ 2
}

/// The word that says that `epoch` took block `number`.
fn taken_word(seed: u64, epoch: u64, number: u64) -> u64 {
    checksum(!seed, bytemuck::bytes_of(&[epoch, number]))
}

/// How much is used of a block that has this word, with a checksum: one store changes both.
#[inline]
fn seal(word: u64, used: u64) -> u64 {
    let x = (word ^ used).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (x ^ (x >> 29)) & !0xFF | used
}

/// Bytes of file `log`, without its stamp.
pub(crate) fn file_len(sb: &Superblock) -> u64 {
    HEADS_LEN + blocks(sb).1 * BLOCK as u64
}

/// Bytes of it that have space from the beginning.
pub(crate) fn provided_len(sb: &Superblock) -> u64 {
    HEADS_LEN + blocks(sb).0 * BLOCK as u64
}

/// What the checks of a pool begin with: entries of another pool are none of this one's.
fn seed(sb: &Superblock) -> u64 {
    checksum(0x55_6E_64_6F, &sb.uuid)
}

impl Head {
    pub fn new(sb: &Superblock, epoch: u64, frontier: u64) -> Head {
        Self::sealed(seed(sb), epoch, frontier)
    }

    fn sealed(seed: u64, epoch: u64, frontier: u64) -> Head {
        Head { epoch, frontier, check: Self::sum(seed, epoch, frontier) }
    }

    fn sum(seed: u64, epoch: u64, frontier: u64) -> u64 {
        checksum(seed, bytemuck::bytes_of(&[epoch, frontier]))
    }

    fn is_whole(&self, seed: u64) -> bool {
        self.check == Self::sum(seed, self.epoch, self.frontier)
    }

    /// Writes it, and then its copy. Stopping in between: this one counts, for it is newer; within it: the copy does.
    pub fn write(&self, region: &dyn Region) -> Result<()> {
        region.store(0, bytemuck::bytes_of(self))?;
        compiler_fence(SeqCst);
        self.write_copy(region)
    }

    /// Writes the copy alone. The head must be this one, or unreadable.
    pub fn write_copy(&self, region: &dyn Region) -> Result<()> {
        region.store(HEAD_COPY, bytemuck::bytes_of(self))?;
        compiler_fence(SeqCst);
        Ok(())
    }
}

impl Span {
    fn pack(self) -> u64 {
        debug_assert!(self.first < 1 << INDEX_BITS && self.count - 1 < 1 << COUNT_BITS && self.blank <= BLANK_MAX);
        self.first | (self.count - 1) << INDEX_BITS | self.blank << (INDEX_BITS + COUNT_BITS)
    }

    fn unpack(span: u64) -> Span {
        let count = (span >> INDEX_BITS & ((1 << COUNT_BITS) - 1)) + 1;
        Span { first: span & ((1 << INDEX_BITS) - 1), count, blank: span >> (INDEX_BITS + COUNT_BITS) }
    }

    /// The line behind the last blank one.
    fn end(&self) -> u64 {
        self.first + self.count + self.blank
    }
}

/// The check of an entry with this packed span and these lines.
fn entry_sum(seed: u64, epoch: u64, span: u64, lines: &[u8]) -> u64 {
    checksum(seed ^ epoch.rotate_left(32) ^ span, lines)
}

/// Where a thread's next entry goes.
#[derive(Debug)]
pub struct Cursor {
    epoch: u64,
    block: *mut u8,
    /// The block's.
    word: u64,
    /// Units of it that are used.
    used: usize,
    /// Blocks that were taken with it, for later.
    rest: Vec<u32>,
}

impl Default for Cursor {
    fn default() -> Self {
        Cursor { epoch: 0, block: std::ptr::null_mut(), word: 0, used: UNITS, rest: Vec::new() }
    }
}

impl Cursor {
    /// Lines that an entry can have which goes into this block.
    fn room(&self) -> u64 {
        ((UNITS - self.used) * UNIT).saturating_sub(UNIT) as u64 / LINE as u64
    }
}

/// The blocks of no epoch that counts.
#[derive(Debug)]
struct Free {
    /// Which may be taken.
    blocks: Vec<u32>,
    /// Those of durable epochs, oldest first, whose entries a backup may still want to see.
    kept: VecDeque<(u64, Vec<u32>)>,
    /// How many are kept.
    count: usize,
}

/// The undo log of an open heap.
#[derive(Debug)]
pub struct Undo {
    region: Arc<dyn Region>,
    bytes: NonNull<[u8]>,
    /// What `bytes` is where the region has no memory of its own.
    _private: Option<Mapping>,
    seed: u64,
    stamp: u64,
    /// Blocks of the nominal length, and of the file.
    nominal: u32,
    total: u32,
    free: Mutex<Free>,
    /// Blocks of an epoch, by its remainder; that of the newest durable epoch and of two after it.
    taken: [Mutex<Vec<u32>>; 3],
    /// How many blocks are taken.
    in_use: AtomicU32,
    /// The first block beyond the nominal length that was never taken.
    beyond: AtomicU32,
    durable: AtomicU64,
    frontier: AtomicU64,
}

// SAFETY: `bytes` is the region's mapping or the private one, which live as long as `region` and this do. A block is written by the one thread that
// took it, and not read in this process.
unsafe impl Send for Undo {}
// SAFETY: as above.
unsafe impl Sync for Undo {}

impl Undo {
    /// The log in `region`, whose newest head this is, and which has no entries of later epochs.
    pub(crate) fn new(region: Arc<dyn Region>, sb: &Superblock, head: Head) -> Result<Undo> {
        let (nominal, total) = blocks(sb);
        let (bytes, private) = match region.bytes() {
            Some(bytes) => (bytes, None),
            // A process that only looks has a log of its own, which is not read.
            None => {
                let private = Mapping::anonymous(None, file_len(sb) as usize, false)?;
                let first = NonNull::new(private.as_ptr()).expect("a mapping is not at address 0");
                (NonNull::slice_from_raw_parts(first, private.len()), Some(private))
            }
        };
        let (nominal, total) = (nominal as u32, total as u32);
        let undo = Undo {
            bytes,
            _private: private,
            seed: seed(sb),
            stamp: sb.stamp,
            nominal,
            total,
            free: Mutex::new(Free { blocks: (0..nominal).rev().collect(), kept: VecDeque::new(), count: 0 }),
            taken: Default::default(),
            in_use: AtomicU32::new(0),
            beyond: AtomicU32::new(nominal),
            durable: AtomicU64::new(head.epoch),
            frontier: AtomicU64::new(head.frontier),
            region,
        };
        undo.keep_from(head.epoch + 1);
        Ok(undo)
    }

    pub(crate) fn region(&self) -> &dyn Region {
        &*self.region
    }

    /// Bytes of blocks that there are, but for those that a transaction gets which marks more than it may.
    pub fn capacity(&self) -> u64 {
        u64::from(self.nominal) * BLOCK as u64
    }

    /// Bytes of blocks that are taken.
    pub fn in_use(&self) -> u64 {
        u64::from(self.in_use.load(Relaxed)) * BLOCK as u64
    }

    /// Bytes of blocks that a thread takes at most for so many lines of one epoch, where many are in use.
    pub fn most_for(lines: u64) -> u64 {
        (lines.div_ceil(LINES_MIN) + 1) * BLOCK as u64
    }

    /// The allocator's frontier as of the durable epoch.
    pub(crate) fn frontier(&self) -> u64 {
        self.frontier.load(Acquire)
    }

    /// The durable epoch.
    pub fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    /// Saves `count` lines, which `epoch` is about to change: from line `first` of the heap on. Recovery writes back the bytes at `from`: the lines
    /// themselves, or a copy that was altered. Up to [`BLANK_MAX`] lines behind them are *blank*: recovery makes them zeros.
    ///
    /// # Safety
    /// `cursor` is the calling thread's own, and no other heap's. The calling thread runs a transaction of `epoch`, the durable epoch's
    /// next or the one after that. `count` lines are readable at `from`, aligned to 8 bytes, and no transaction writes them before this
    /// returns. The blank lines are of the heap, too.
    pub unsafe fn save(&self, cursor: &mut Cursor, epoch: u64, first: u64, (count, blank): (u64, u64), from: *const u8) {
        let mut saved = 0;
        while saved < count {
            if cursor.epoch != epoch || cursor.room() == 0 {
                self.begin_block(cursor, epoch);
            }
            let now = cursor.room().min(count - saved);
            let blank = if saved + now == count { blank } else { 0 };
            // SAFETY: the caller's; `room` lines fit into the block.
            unsafe { self.append(cursor, Span { first: first + saved, count: now, blank }, from.add(saved as usize * LINE)) };
            saved += now;
        }
        // The program's change of the lines must not come before, in the program, and for a backup on another processor (which takes no
        // instruction on x86).
        compiler_fence(SeqCst);
        fence(Release);
    }

    /// Adds an entry to the cursor's block.
    ///
    /// # Safety
    /// As for [`save`](Self::save), and the block has room for it.
    unsafe fn append(&self, cursor: &mut Cursor, span: Span, from: *const u8) {
        let (block, len, packed) = (cursor.block.cast::<Block>(), span.count as usize * LINE, span.pack());
        // SAFETY: the block is this thread's, and in the mapping; the entry ends within its body; the lines are readable.
        unsafe {
            let entry = (&raw mut (*block).body).cast::<u64>().add(cursor.used * UNIT / 8);
            let (from, kept) = (from.cast::<u64>().cast_mut(), entry.add(UNIT / 8));
            for word in 0..len / 8 {
                // Once, though the program may store there without a mark: the check is of what is kept.
                kept.add(word).write(AtomicU64::from_ptr(from.add(word)).load(Relaxed));
            }
            entry.write(packed);
            entry.add(1).write(entry_sum(self.seed, cursor.epoch, packed, std::slice::from_raw_parts(kept.cast(), len)));
            cursor.used += (UNIT + len) / UNIT;
            // Behind the entry.
            AtomicU64::from_ptr(&raw mut (*block).used).store(seal(cursor.word, cursor.used as u64), Release);
        }
    }

    #[cold]
    fn begin_block(&self, cursor: &mut Cursor, epoch: u64) {
        if cursor.epoch != epoch {
            // They are of the epoch that took them.
            cursor.rest.clear();
        }
        let number = cursor.rest.pop().unwrap_or_else(|| self.take_blocks(epoch, &mut cursor.rest));
        let word = taken_word(self.seed, epoch, u64::from(number));
        let (block, keeper) = (self.block(number), self.block(keeper_of(u64::from(number)) as u32));
        // SAFETY: in the mapping. The block is this thread's alone, and so is its word in the other one. Another process may look.
        unsafe {
            AtomicU64::from_ptr(&raw mut (*block).used).store(seal(word, 0), Release);
            AtomicU64::from_ptr(&raw mut (*block).epoch).store(epoch, Release);
            AtomicU64::from_ptr(&raw mut (*keeper).word).store(word, Release);
        }
        (cursor.epoch, cursor.block, cursor.word, cursor.used) = (epoch, block.cast(), word, 0);
    }

    fn block(&self, number: u32) -> *mut Block {
        assert!(number < self.total, "block {number} of {}", self.total);
        // SAFETY: blocks are within the file, and the mapping is as long as that.
        unsafe { self.bytes.cast::<u8>().as_ptr().add(HEADS_LEN as usize + number as usize * BLOCK).cast() }
    }

    /// A block for the calling thread's entries of `epoch`, and some more for later ones.
    fn take_blocks(&self, epoch: u64, more: &mut Vec<u32>) -> u32 {
        let at_once = if self.in_use.load(Relaxed) <= self.nominal / 4 { TAKEN_AT_ONCE } else { 1 };
        {
            let mut free = self.free.lock();
            while free.blocks.is_empty() && self.release_oldest(&mut free) {}
            let left = free.blocks.len().saturating_sub(at_once);
            more.extend(free.blocks.drain(left..));
        }
        if more.is_empty() {
            more.push(self.block_beyond());
        }
        self.in_use.fetch_add(more.len() as u32, Relaxed);
        self.taken[(epoch % 3) as usize].lock().extend(&*more);
        more.pop().expect("there is one at least")
    }

    /// Lets the blocks of the oldest epoch that are kept be taken; `false` if there are none.
    fn release_oldest(&self, free: &mut Free) -> bool {
        let Some((epoch, blocks)) = free.kept.pop_front() else { return false };
        self.keep_from(epoch + 1);
        free.count -= blocks.len();
        free.blocks.extend(blocks);
        true
    }

    /// Tells backups that entries of `epoch`, and of later ones, are kept, but no others: before a block of those is taken.
    fn keep_from(&self, epoch: u64) {
        let check = kept_check(self.seed, self.stamp, epoch);
        for (at, word) in [(KEPT, epoch), (KEPT + 8, check)] {
            // SAFETY: in the first page of the mapping, behind the head; aligned. Another process may look.
            unsafe { AtomicU64::from_ptr(self.bytes.cast::<u8>().as_ptr().add(at as usize).cast()).store(word, Release) };
        }
        // The blocks are written behind it.
        fence(Release);
    }

    /// A block beyond the nominal length. Without one the lines that are to be changed could not be undone: then the process ends here,
    /// and the next one undoes what there is.
    fn block_beyond(&self) -> u32 {
        let number = self.beyond.fetch_add(1, Relaxed);
        // Its word, too, is in its group.
        let off = HEADS_LEN + u64::from(number) / GROUP * GROUP_LEN;
        let provided = if number < self.total {
            self.region.reserve(off, GROUP_LEN).map_err(|e| e.to_string())
        } else {
            Err("it is at its end".into())
        };
        if let Err(why) = provided {
            log::error!("no space for the undo log, without which nothing may be changed: {why}; the process ends");
            std::process::abort();
        }
        number
    }

    /// Makes `epoch` durable, the next one, all of whose transactions have ended. `frontier`: the allocator's.
    pub fn publish(&self, epoch: u64, frontier: u64) -> Result<()> {
        Head::sealed(self.seed, epoch, frontier).write(&*self.region)?;
        // The head is there before a block that it makes free is taken: by the lock of `free`.
        compiler_fence(SeqCst);
        self.frontier.store(frontier, Release);
        self.durable.store(epoch, Release);
        let former = std::mem::take(&mut *self.taken[((epoch + 2) % 3) as usize].lock());
        self.in_use.fetch_sub(former.len() as u32, Relaxed);
        let mut free = self.free.lock();
        if !former.is_empty() {
            free.count += former.len();
            free.kept.push_back((epoch - 1, former));
        }
        while free.count > (self.nominal / KEPT_SHARE) as usize && self.release_oldest(&mut free) {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_come_back() {
        for first in [0, 1, 12_345_678, (1 << INDEX_BITS) - 1] {
            for count in [1, 2, 1 << COUNT_BITS] {
                for blank in [0, 1, BLANK_MAX] {
                    let span = Span { first, count, blank };
                    assert_eq!(Span::unpack(span.pack()), span);
                }
            }
        }
    }
}
