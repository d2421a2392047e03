//! The store's durable root: what a server finds again under the pool's root name "serve".
//!
//! ```text
//!   line 0        magic, version, stripe bits, hash seed             written once
//!   line 1        table bits, splitting                              upkeep thread
//!   line 2        cas limit                                          upkeep thread
//!   line 3        oldest cas, flush at                               with all stripes locked
//!   lines 4-7     levels[32]: address of each level's segment list   upkeep thread
//!   lines 8-1031  per stripe: items, bytes, expiring items           with that stripe locked
//! ```
//!
//! Each line has one writer at a time, so concurrent transactions never meet on one. Level 0 lists the first segments; level
//! `k` those that the `k`-th doubling added. A list's entry is 0 until its segment is there.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

use towa_epoch::{Pool, Root as PoolRoot, Thread, Tx};

use super::table::{BITS_MAX, BITS_MIN, SEGMENT_BLOCK, SEGMENT_LINES, STRIPE_BITS, STRIPES, Shape, Table, align_to_line};
use crate::error::{Error, Result};

/// Name of the pool's root.
pub const NAME: &str = "serve";
const MAGIC: u64 = u64::from_le_bytes(*b"towasrv1");
const VERSION: u32 = 1;
/// Segments of a new table.
const SEGMENTS_MIN: usize = (1 << BITS_MIN) / SEGMENT_LINES;
/// CAS ids put in reserve at a time: at a million stores a second, enough for 71 minutes, renewed at half.
pub const CAS_RESERVE: u64 = 1 << 32;

#[repr(C, align(64))]
struct Fixed {
    magic: u64,
    version: u32,
    stripe_bits: u32,
    seed: u64,
}

#[repr(C, align(64))]
struct TableShape {
    bits: u32,
    splitting: u32,
}

#[repr(C, align(64))]
struct CasLimit {
    limit: u64,
}

#[repr(C, align(64))]
struct Flush {
    oldest_cas: u64,
    at: u32,
}

#[repr(C, align(64))]
struct StripeCounts {
    items: u64,
    bytes: u64,
    expiring: u64,
}

#[repr(C, align(64))]
struct Layout {
    fixed: Fixed,
    shape: TableShape,
    cas: CasLimit,
    flush: Flush,
    levels: [u64; 32],
    stripes: [StripeCounts; STRIPES],
}

const BLOCK: usize = std::mem::size_of::<Layout>() + 64;
const _: () = assert!(std::mem::size_of::<Layout>() == 64 * (8 + STRIPES));
const _: () = assert!((BITS_MAX - BITS_MIN) < 32);

/// Where the root is. All access goes through here.
pub struct Roots(NonNull<Layout>);

/// How many segments levels below `level` have: the index of its first.
pub fn first_segment(level: u32) -> usize {
    if level == 0 { 0 } else { SEGMENTS_MIN << (level - 1) }
}

/// How many segments `level` adds.
pub fn segments_of(level: u32) -> usize {
    if level == 0 { SEGMENTS_MIN } else { first_segment(level) }
}

impl Roots {
    /// Finds the root in `pool`, or makes an empty store, in one transaction.
    pub fn open_or_create(pool: &Pool, thread: &mut Thread) -> Result<Roots> {
        let root = match pool.root(NAME) {
            Some(root) => root,
            None => create(pool, thread)?,
        };
        check(root)?;
        Ok(Roots(align_to_line(root.ptr).cast()))
    }

    /// The root in `pool`, checked as far as the block that it says it lives in; `None` where there is no store.
    pub fn find(pool: &Pool) -> Result<Option<Roots>> {
        let Some(root) = pool.root(NAME) else { return Ok(None) };
        let (base, len) = pool.heap_range();
        let first = root.ptr.as_ptr().addr();
        if root.size > len || first < base || first - base > (len - root.size) as usize {
            return Err(Error::Damaged(format!("its root at {first:#x} lies outside the heap")));
        }
        check(root)?;
        Ok(Some(Roots(align_to_line(root.ptr).cast())))
    }

    fn at(&self) -> *mut Layout {
        self.0.as_ptr()
    }

    /// The table's recorded shape.
    pub fn shape(&self) -> Shape {
        // SAFETY: the root was checked and lives as long as the pool; only this process writes it.
        let shape = unsafe { (&raw const (*self.at()).shape).read() };
        Shape { bits: shape.bits, splitting: shape.splitting != 0 }
    }

    /// Seed of the key hash.
    pub fn seed(&self) -> u64 {
        // SAFETY: as in `shape`.
        unsafe { (*self.at()).fixed.seed }
    }

    /// CAS ids below this are reserved.
    pub fn cas_limit(&self) -> u64 {
        // SAFETY: as in `shape`.
        unsafe { (*self.at()).cas.limit }
    }

    /// The flush marker.
    pub fn oldest_cas(&self) -> u64 {
        // SAFETY: as in `shape`.
        unsafe { (*self.at()).flush.oldest_cas }
    }

    /// When a flush is due, or 0.
    pub fn flush_at(&self) -> u32 {
        // SAFETY: as in `shape`.
        unsafe { (*self.at()).flush.at }
    }

    /// A stripe's items, bytes and expiring items.
    pub fn stripe(&self, stripe: usize) -> (u64, u64, u64) {
        assert!(stripe < STRIPES);
        // SAFETY: as in `shape`, and the index is in range.
        let counts = unsafe { (&raw const (*self.at()).stripes[stripe]).read() };
        (counts.items, counts.bytes, counts.expiring)
    }

    /// Adds to a stripe's counters; its items afterwards.
    ///
    /// # Safety
    /// The caller holds the stripe's lock inside `tx`.
    pub unsafe fn add_to_stripe(&self, tx: &Tx<'_>, stripe: usize, items: i64, bytes: i64, expiring: i64) -> u64 {
        // SAFETY: by the caller's lock; the index is a stripe's.
        unsafe {
            let counts = &raw mut (*self.at()).stripes[stripe];
            tx.mark(counts.cast(), std::mem::size_of::<StripeCounts>());
            (*counts).items = (*counts).items.wrapping_add_signed(items);
            (*counts).bytes = (*counts).bytes.wrapping_add_signed(bytes);
            (*counts).expiring = (*counts).expiring.wrapping_add_signed(expiring);
            (*counts).items
        }
    }

    /// Writes the flush marker.
    ///
    /// # Safety
    /// The caller holds all stripes' locks inside `tx`.
    pub unsafe fn put_flush(&self, tx: &Tx<'_>, oldest_cas: u64, at: u32) {
        // SAFETY: by the caller's locks.
        unsafe {
            let flush = &raw mut (*self.at()).flush;
            tx.mark(flush.cast(), 64);
            flush.write(Flush { oldest_cas, at });
        }
    }

    /// Puts more CAS ids in reserve: the first of them, and the epoch after which they may be used. Called by the upkeep thread
    /// alone, and by the opening thread before there is one.
    pub fn reserve_cas(&self, thread: &mut Thread) -> Result<(u64, u64)> {
        let tx = thread.begin()?;
        let epoch = tx.epoch();
        // SAFETY: only the upkeep thread, or the opening one before it, writes this line.
        let first = unsafe {
            let cas = &raw mut (*self.at()).cas;
            tx.mark(cas.cast(), 8);
            let first = (*cas).limit.max(1);
            (*cas).limit = first + CAS_RESERVE;
            first
        };
        tx.commit();
        Ok((first, epoch))
    }

    /// Records a shape. Called by the upkeep thread alone.
    pub fn put_shape(&self, thread: &mut Thread, shape: Shape) -> towa_epoch::Result<()> {
        let tx = thread.begin()?;
        // SAFETY: only the upkeep thread writes this line.
        unsafe {
            let place = &raw mut (*self.at()).shape;
            tx.mark(place.cast(), 64);
            place.write(TableShape { bits: shape.bits, splitting: u32::from(shape.splitting) });
        }
        tx.commit();
        Ok(())
    }

    /// Tells `table` where all segments are, those of a doubling among them that is not recorded yet: it goes on with them as they are.
    pub fn publish_segments(&self, table: &Table) {
        for level in (0..=BITS_MAX - BITS_MIN).filter(|level| self.list(*level) != 0) {
            for index in 0..segments_of(level) {
                if let Some(block) = self.segment(level, index) {
                    table.set_segment(first_segment(level) + index, block);
                }
            }
        }
    }

    /// Where the list of `level`'s segments is; 0 until there is one.
    pub(super) fn list(&self, level: u32) -> u64 {
        // SAFETY: as in `shape`.
        unsafe { (*self.at()).levels[level as usize] }
    }

    /// Bytes of the lists that there are.
    pub(super) fn lists(&self) -> impl Iterator<Item = usize> {
        (0..=BITS_MAX - BITS_MIN).filter(|level| self.list(*level) != 0).map(|level| segments_of(level) * 8)
    }

    /// Whether the root, a list or a segment of the table lies, in part, in this range of addresses.
    pub(super) fn stand_in(&self, (from, end): (usize, usize)) -> bool {
        let meets = |at: usize, len: usize| at < end && at + len > from;
        // SAFETY: the upkeep thread may be writing an entry: they are read as atomic words. A list has as many as its level says.
        let word = |at: *mut u64| unsafe { AtomicU64::from_ptr(at) }.load(Acquire) as usize;
        meets(self.at().addr(), size_of::<Layout>())
            || (0..=BITS_MAX - BITS_MIN).any(|level| {
                // SAFETY: as above; the root lives as long as the pool.
                let list = word(unsafe { (&raw mut (*self.at()).levels).cast::<u64>().add(level as usize) });
                let entry = |index| word((list as *mut u64).wrapping_add(index));
                list != 0
                    && (meets(list, segments_of(level) * 8)
                        || (0..segments_of(level)).any(|index| entry(index) != 0 && meets(entry(index), SEGMENT_BLOCK)))
            })
    }

    pub(super) fn segment(&self, level: u32, index: usize) -> Option<NonNull<u8>> {
        // SAFETY: a level's list, once there, has an entry for each of its segments; only the upkeep thread writes it.
        unsafe {
            let list = (*self.at()).levels[level as usize] as *mut u64;
            if list.is_null() { None } else { NonNull::new(*list.add(index) as *mut u8) }
        }
    }

    /// Provides segment `index` of `level` and its list, where they are missing, and tells `table`. Called by the upkeep thread
    /// alone; one transaction per segment, so that no epoch has to carry a whole level.
    pub fn provide_segment(&self, thread: &mut Thread, table: &Table, level: u32, index: usize) -> towa_epoch::Result<()> {
        if self.segment(level, index).is_some() {
            return Ok(());
        }
        let tx = thread.begin_reserving(SEGMENT_BLOCK + segments_of(level) * 8 + 4096)?;
        // SAFETY: lists and the lines that lead to them are written by the upkeep thread alone; a new block is marked.
        let block = unsafe {
            let list_slot = &raw mut (*self.at()).levels[level as usize];
            if *list_slot == 0 {
                let list = tx.alloc(segments_of(level) * 8)?;
                list.as_ptr().write_bytes(0, segments_of(level) * 8);
                tx.mark(list_slot.cast(), 8);
                *list_slot = list.as_ptr() as u64;
            }
            let block = tx.alloc(SEGMENT_BLOCK)?;
            let entry = (*list_slot as *mut u64).add(index);
            tx.mark(entry.cast(), 8);
            *entry = block.as_ptr() as u64;
            block
        };
        tx.commit();
        table.set_segment(first_segment(level) + index, block);
        Ok(())
    }
}

fn type_tag() -> u64 {
    MAGIC ^ u64::from(VERSION)
}

/// Makes an empty store in one transaction.
fn create(pool: &Pool, thread: &mut Thread) -> Result<PoolRoot> {
    use std::hash::{BuildHasher, Hasher};
    let seed = std::hash::RandomState::new().build_hasher().finish();
    let tx = thread.begin_reserving(2 * BLOCK + SEGMENTS_MIN * (SEGMENT_BLOCK + 4096))?;
    let block = tx.alloc(BLOCK)?;
    let list = tx.alloc(SEGMENTS_MIN * 8)?;
    let table = Table::new(pool, Shape { bits: BITS_MIN, splitting: false });
    // SAFETY: all blocks are new, marked and large enough; nobody else knows them.
    unsafe {
        for index in 0..SEGMENTS_MIN {
            let segment = tx.alloc(SEGMENT_BLOCK)?;
            table.set_segment(index, segment);
            list.cast::<u64>().add(index).write(segment.as_ptr() as u64);
        }
        for line in 0..1 << BITS_MIN {
            table.clear_line(line, BITS_MIN);
        }
        let layout = align_to_line(block).cast::<Layout>().as_ptr();
        layout.write_bytes(0, 1);
        (&raw mut (*layout).fixed).write(Fixed { magic: MAGIC, version: VERSION, stripe_bits: STRIPE_BITS, seed });
        (&raw mut (*layout).shape).write(TableShape { bits: BITS_MIN, splitting: 0 });
        (&raw mut (*layout).levels[0]).write(list.as_ptr() as u64);
    }
    let root = PoolRoot { ptr: block, type_tag: type_tag(), size: BLOCK as u64 };
    // SAFETY: the table just built, in a live block of this size.
    unsafe { tx.set_root(NAME, Some(root)) }?;
    tx.commit();
    Ok(root)
}

/// Refuses a root that this version did not make.
fn check(root: PoolRoot) -> Result<()> {
    let foreign = |why: String| Err(Error::Foreign { name: NAME, why });
    if root.type_tag != type_tag() || root.size != BLOCK as u64 {
        return foreign(format!("type {:#x} of {} bytes instead of {:#x} of {BLOCK}", root.type_tag, root.size, type_tag()));
    }
    // SAFETY: type and size say that a layout was written here.
    let (fixed, bits) = unsafe {
        let layout = align_to_line(root.ptr).cast::<Layout>().as_ptr();
        ((&raw const (*layout).fixed).read(), (*layout).shape.bits)
    };
    if fixed.magic != MAGIC || fixed.version != VERSION || fixed.stripe_bits != STRIPE_BITS {
        return foreign(format!("version {}, {} stripe bits", fixed.version, fixed.stripe_bits));
    }
    if !(BITS_MIN..=BITS_MAX).contains(&bits) {
        return foreign(format!("a table of 2^{bits} lines"));
    }
    Ok(())
}
