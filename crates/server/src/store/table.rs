//! The durable hash table: lines of seven buckets, doubling in place, a line at a time.
//!
//! ```text
//!   hash:  | high half picks 1 of 7 buckets |        low bits pick the line |
//!
//!   line (64 bytes):  head0 head1 head2 head3 head4 head5 head6 | level
//!                       |
//!                       +--> item --> item --> 0
//!
//!   doubling from b to b+1 bits, line i:    before  i [level b]
//!                                           after   i [level b+1]   i + 2^b [level b+1]     one transaction
//! ```
//!
//! Line `i` and the line `i + 2^b` that it splits into share a stripe (their low bits are equal), so one lock covers the lookup,
//! whichever of the two it needs, and the split. While a doubling is under way a lookup asks the *lower* line's level: `b` means
//! not split yet, everything is there. The lines of the new half hold garbage until the split writes them whole; nobody reads
//! one before, because nobody gets there while the lower line says `b`.
//!
//! What must always hold, at every epoch: every line below `2^bits` (while splitting: below `2^(bits-1)`, and of the upper half
//! those whose lower line is split) is well formed; each item hangs in the line and bucket that its hash says. All changes happen
//! in transactions that the stripe's lock encloses.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use towa_epoch::{Pool, Tx};

use super::item::Item;

/// Buckets in a line.
pub const BUCKETS: usize = 7;
/// Lines in a segment, the unit of allocation.
pub const SEGMENT_LINES: usize = 1024;
const SEGMENT_BITS: u32 = SEGMENT_LINES.trailing_zeros();
/// Lines of a new table, as a power of two.
pub const BITS_MIN: u32 = 12;
/// No chain has as many items: the table doubles long before.
const HOPS_MAX: u32 = 1 << 16;
/// Largest table: 2^30 lines, 7.5 thousand million buckets.
pub const BITS_MAX: u32 = 30;
/// Locks, as a power of two; not more than the lines of the smallest table.
pub const STRIPE_BITS: u32 = 10;
/// Locks.
pub const STRIPES: usize = 1 << STRIPE_BITS;
const _: () = assert!(STRIPE_BITS <= BITS_MIN);

/// One line of buckets.
#[repr(C, align(64))]
pub struct Line {
    pub(super) heads: [u64; BUCKETS],
    pub(super) level: u64,
}
const _: () = assert!(std::mem::size_of::<Line>() == 64);

/// Bytes to ask the allocator for, so that a segment can start on a line.
pub const SEGMENT_BLOCK: usize = SEGMENT_LINES * 64 + 64;

/// Moves `block` up to the next line boundary.
pub fn align_to_line(block: NonNull<u8>) -> NonNull<u8> {
    let up = block.as_ptr().align_offset(64);
    // SAFETY: every block that is aligned so was asked for with 64 bytes to spare.
    unsafe { block.add(up) }
}

/// How many lines there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The table has `2^bits` lines.
    pub bits: u32,
    /// Some of the lower half may not be split yet.
    pub splitting: bool,
}

impl Shape {
    /// Lines of the table.
    pub fn lines(self) -> u64 {
        1 << self.bits
    }
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// A chain's item and the link that leads to it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The item.
    pub item: Item,
    /// The link: a bucket head or the `next` of the item before.
    pub slot: *mut u64,
}

/// The items of a chain. In a damaged pool a link that leads to no item ends it, and so do more links than a chain can have.
///
/// What must always hold: the lock of the chain's stripe is held.
struct Chain<'t> {
    table: &'t Table,
    /// The link to follow next.
    slot: *mut u64,
    hops: u32,
}

impl Iterator for Chain<'_> {
    type Item = Found;

    #[inline]
    fn next(&mut self) -> Option<Found> {
        let slot = self.slot;
        // SAFETY: the slot is a head of the table, or the `next` of an item in the heap, which is mapped while the pool lives.
        // Under the stripe's lock no other thread changes it.
        let (link, item) = unsafe { (*slot, Item::at(*slot, &self.table.heap)) };
        self.hops += 1;
        match item {
            Some(item) if self.hops < HOPS_MAX => {
                self.slot = item.next_slot();
                Some(Found { item, slot })
            }
            _ => {
                if link != 0 {
                    self.table.note_damage(link);
                }
                None
            }
        }
    }
}

/// The table's DRAM side: where the segments are, and the shape. Rebuilt at open from the durable root in time proportional to
/// the number of segments (one per 7168 buckets).
pub struct Table {
    segments: Box<[AtomicPtr<Line>]>,
    count: AtomicUsize,
    shape: AtomicU32,
    /// Where items can be.
    heap: Range<u64>,
    /// A link led elsewhere, and that was said.
    is_damaged: AtomicBool,
}

const SPLITTING: u32 = 1 << 31;

impl Table {
    /// A table of no segments yet, in the heap of `pool`.
    pub fn new(pool: &Pool, shape: Shape) -> Table {
        let (base, len) = pool.heap_range();
        let count = 1usize << (BITS_MAX - SEGMENT_BITS);
        // 8 MiB of address space, zeroed by the kernel as it is touched: hence no loop over the entries.
        // SAFETY: all-zero bytes are null pointers.
        let segments = unsafe { Box::<[AtomicPtr<Line>]>::new_zeroed_slice(count).assume_init() };
        let heap = base as u64..base as u64 + len;
        let (count, is_damaged) = (AtomicUsize::new(0), AtomicBool::new(false));
        let table = Table { segments, count, shape: AtomicU32::new(0), heap, is_damaged };
        table.set_shape(shape);
        table
    }

    /// The shape now. Ask after taking a stripe's lock, when no split of that stripe can have gone unnoticed, and **before** the
    /// transaction begins, and use the answer until the lock is released. (Asked later, it might be a shape that a transaction of the
    /// next epoch has just recorded; splitting a line by it in this epoch would, if the next is lost, leave a split line in an old table.)
    pub fn shape(&self) -> Shape {
        let word = self.shape.load(Ordering::Acquire);
        Shape { bits: word & !SPLITTING, splitting: word & SPLITTING != 0 }
    }

    /// Publishes a shape, after the transaction that recorded it.
    pub fn set_shape(&self, shape: Shape) {
        self.shape.store(shape.bits | if shape.splitting { SPLITTING } else { 0 }, Ordering::Release);
    }

    /// Publishes where segment `index` is.
    pub fn set_segment(&self, index: usize, block: NonNull<u8>) {
        if self.segments[index].swap(align_to_line(block).as_ptr().cast(), Ordering::Release).is_null() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many segments there are, those of a doubling that is not complete among them.
    pub fn segments(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Line `index`, whose segment was published.
    pub(super) fn line(&self, index: u64) -> *mut Line {
        let segment = self.segments[(index >> SEGMENT_BITS) as usize].load(Ordering::Acquire);
        debug_assert!(!segment.is_null(), "line {index} lies in a segment that was never published");
        // SAFETY: every index below the shape's line count lies in a published segment of SEGMENT_LINES lines.
        unsafe { segment.add(index as usize & (SEGMENT_LINES - 1)) }
    }

    /// Which line holds what hashes to `hash`, and whether it is a lower line that waits to be split.
    ///
    /// # Safety
    /// The caller holds the lock of `hash`'s stripe, taken before it asked for `shape`.
    unsafe fn locate(&self, shape: Shape, hash: u64) -> (u64, bool) {
        if shape.splitting {
            let lower = hash & mask(shape.bits - 1);
            // SAFETY: lower lines are always well formed, and the caller's lock covers this one.
            let level = unsafe { (*self.line(lower)).level };
            if level < u64::from(shape.bits) {
                return (lower, true);
            }
        }
        (hash & mask(shape.bits), false)
    }

    /// Where the chain of `hash` starts.
    ///
    /// # Safety
    /// The caller holds the lock of `hash`'s stripe, taken before it asked for `shape`.
    pub unsafe fn chain(&self, shape: Shape, hash: u64) -> *mut u64 {
        // SAFETY: by the caller's lock; the bucket index is below seven.
        unsafe {
            let (index, _) = self.locate(shape, hash);
            head_slot(self.line(index), bucket_of(hash))
        }
    }

    /// Finds `key`.
    ///
    /// # Safety
    /// The caller holds the lock of `hash`'s stripe, taken before it asked for `shape`, and keeps it while it uses the result.
    pub unsafe fn find(&self, shape: Shape, hash: u64, key: &[u8]) -> Option<Found> {
        // SAFETY: by the caller's lock, the chain does not change.
        unsafe { self.items(self.chain(shape, hash)) }.find(|Found { item, .. }| item.hash() == hash && item.key() == key)
    }

    /// Finds the item at `address`, if it is still linked under `hash`.
    ///
    /// # Safety
    /// The caller holds the lock of `hash`'s stripe, taken before it asked for `shape`, and keeps it while it uses the result.
    pub unsafe fn find_at(&self, shape: Shape, hash: u64, address: u64) -> Option<Found> {
        // SAFETY: as in `find`.
        unsafe { self.items(self.chain(shape, hash)) }.find(|found| found.item.address() == address)
    }

    /// Finds an item of `hash` whose address lies in a range.
    ///
    /// # Safety
    /// As of [`find_at`](Self::find_at).
    pub unsafe fn find_in(&self, shape: Shape, hash: u64, range: &Range<u64>) -> Option<Found> {
        // SAFETY: as in `find`.
        unsafe { self.items(self.chain(shape, hash)) }
            .find(|Found { item, .. }| item.hash() == hash && range.contains(&item.address()))
    }

    /// The items of the chain that starts at `slot`.
    ///
    /// # Safety
    /// The caller holds the lock of the chain's stripe while it uses the iterator and its results.
    unsafe fn items(&self, slot: *mut u64) -> Chain<'_> {
        Chain { table: self, slot, hops: 0 }
    }

    /// Whether a link was met that leads to no item.
    pub(super) fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    /// Says once that the pool is damaged, because a link leads to `link`.
    #[cold]
    #[inline(never)]
    pub(super) fn note_damage(&self, link: u64) {
        if !self.is_damaged.swap(true, Ordering::Relaxed) {
            log::error!(
                "the pool is damaged: at {link:#x} is no item, or one that was met before or is free; items may be missing. Stop the server and run `towa verify`"
            );
        }
    }

    /// Moves the items whose hash has `bit` from the chain at `low` to the empty chain at `high`, keeping their order and
    /// writing only the links that change.
    ///
    /// # Safety
    /// Both chains are covered by the caller's lock inside `tx`.
    unsafe fn split_chain(&self, tx: &Tx<'_>, mut low: *mut u64, mut high: *mut u64, bit: u64) {
        // SAFETY: by the caller; each link that changes is marked by `link`.
        unsafe {
            let mut chain = self.items(low);
            // An item's link changes only after it was followed.
            for Found { item, .. } in chain.by_ref() {
                let slot = if item.hash() & bit == 0 { &mut low } else { &mut high };
                link(tx, *slot, item.address());
                *slot = item.next_slot();
            }
            // 0, or the link of a damaged pool that ended the chain, which `verify` is to find.
            link(tx, low, *chain.slot);
            link(tx, high, 0);
        }
    }

    /// Calls `each` with all items of line `index`, stopping where it says `false`. None for a line of the
    /// upper half that was not split off yet: its items are still in the lower line.
    ///
    /// # Safety
    /// The caller holds the lock of the line's stripe, taken before it asked for `shape`, and `each` changes nothing.
    pub unsafe fn for_each(&self, shape: Shape, index: u64, mut each: impl FnMut(Item) -> bool) {
        // SAFETY: by the caller's lock.
        unsafe {
            if self.locate(shape, index).0 != index {
                return;
            }
            let line = self.line(index);
            for bucket in 0..BUCKETS {
                if !self.items(head_slot(line, bucket)).all(|found| each(found.item)) {
                    return;
                }
            }
        }
    }

    /// Whether line `index` looks empty; a hint, taken without a lock. (A line not split off yet holds anything, and may look either
    /// way: it has no items.)
    pub fn looks_empty(&self, index: u64) -> bool {
        let line = self.line(index).cast::<u64>();
        (0..BUCKETS).all(|bucket| {
            // SAFETY: the line is mapped and aligned, and its words are read atomically; a stale answer is allowed.
            unsafe { AtomicU64::from_ptr(line.add(bucket)) }.load(Ordering::Relaxed) == 0
        })
    }

    /// Writes an empty line.
    ///
    /// # Safety
    /// The line is marked and nobody else can see it.
    pub unsafe fn clear_line(&self, index: u64, level: u32) {
        // SAFETY: by the caller.
        unsafe { self.line(index).write(Line { heads: [0; BUCKETS], level: u64::from(level) }) }
    }

    /// Splits the lower line of `hash` if that is still to be done; says whether it did.
    ///
    /// # Safety
    /// The caller holds the lock of `hash`'s stripe, taken before it asked for `shape`, inside `tx`.
    pub unsafe fn split(&self, tx: &Tx<'_>, shape: Shape, hash: u64) -> bool {
        // SAFETY: by the caller's lock.
        let (lower, waits) = unsafe { self.locate(shape, hash) };
        if !waits {
            return false;
        }
        let level = shape.bits;
        let bit = 1u64 << (level - 1);
        let (from, to) = (self.line(lower), self.line(lower | bit));
        // SAFETY: both lines are covered by the lock, and marked first; the upper one is written whole before it is
        // read.
        unsafe {
            tx.mark(from.cast(), 64);
            tx.mark(to.cast(), 64);
            to.write(Line { heads: [0; BUCKETS], level: u64::from(level) });
            for bucket in 0..BUCKETS {
                self.split_chain(tx, head_slot(from, bucket), head_slot(to, bucket), bit);
            }
            (*from).level = u64::from(level);
        }
        true
    }
}

/// Which of a line's buckets `hash` belongs to; independent of the bits that pick the line.
pub(super) fn bucket_of(hash: u64) -> usize {
    (((hash >> 32) * BUCKETS as u64) >> 32) as usize
}

/// # Safety
/// `line` is a line of the table.
unsafe fn head_slot(line: *mut Line, bucket: usize) -> *mut u64 {
    // SAFETY: the bucket is below seven; no reference is made.
    unsafe { (&raw mut (*line).heads).cast::<u64>().add(bucket) }
}

/// Sets a link, if it is not set so already.
///
/// # Safety
/// `slot` is a link of a chain covered by the caller's lock inside `tx`.
pub unsafe fn link(tx: &Tx<'_>, slot: *mut u64, to: u64) {
    // SAFETY: by the caller.
    unsafe {
        if *slot != to {
            tx.mark(slot.cast(), 8);
            *slot = to;
        }
    }
}
