//! The hash table in the pool, and its locks in DRAM.
//!
//! ```text
//!   Header   line 0   fixed: version, hash seed, sizes of typed keys and values
//!            line 1   `lines`: how many bucket lines there are                 (growth lock)
//!            then     Directory of segments, 1024 bucket lines each            (growth lock)
//!   Line     | head 0 | head 1 | ... | head 6 | count |     64 bytes           (stripe lock)
//!                 └──► Item { next, hash, key, value } ──► Item ──► null       (stripe lock of their line)
//! ```
//!
//! **Linear hashing.** With `2^l <= lines < 2^(l+1)`, a hash belongs to line `hash mod 2^(l+1)` if there is such a line, else to
//! `hash mod 2^l`. Adding line `n` therefore splits line `n - 2^l` and touches nothing else: growth is one small transaction at a
//! time, whose state is the one word `lines`.
//!
//! **Stripes.** A hash's stripe is `hash mod 1024`, whatever `lines` is, since there are always at least 1024 lines. The line that
//! splits and the line that is added have the same stripe. So under the stripe's lock, neither the items of a hash nor the line
//! they belong to change, though `lines` may: whichever value a reader sees, it computes the same line.

use crate::pair::Pair;
use crate::segments::{Directory, SEGMENT};
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use towa_epoch::typed::scope;
use towa_epoch::{Pool, Thread, Tx};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(super) const STRIPES: usize = SEGMENT / size_of::<Line>();
pub(super) const HEADS: usize = 7;

#[repr(C, align(64))]
pub(super) struct Header {
    pub seed: u64,
    /// Sizes of the typed flavour's key and value; zero for byte strings.
    pub key_size: u32,
    pub value_size: u32,
    pub growth: Growth,
}

/// What the growth lock covers.
#[repr(C, align(64))]
pub(super) struct Growth {
    pub lines: u64,
    pub directory: Directory,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub heads: [*mut Item; HEADS],
    /// Items in all its chains, and above them [`SEAL`], which counting up and down leaves alone.
    pub sealed_count: u64,
}

/// Above the number of items in every line: what was zeroed does not pass for an empty one.
pub(super) const SEAL: u64 = 0x4c49_4e45 << COUNT_BITS;
const COUNT_BITS: u32 = 32;

pub(super) const EMPTY: Line = Line { heads: [ptr::null_mut(); HEADS], sealed_count: SEAL };

impl Line {
    /// Items in all its chains.
    pub fn count(&self) -> u64 {
        self.sealed_count & ((1 << COUNT_BITS) - 1)
    }

    /// Whether it is what a table made.
    pub fn is_sealed(&self) -> bool {
        self.sealed_count >> COUNT_BITS == SEAL >> COUNT_BITS
    }
}

#[repr(C)]
pub(super) struct Item {
    pub next: *mut Item,
    pub hash: u64,
    pub pair: Pair,
}

/// Bytes of an item before its pair.
pub(super) const ITEM_HEAD: usize = std::mem::offset_of!(Item, pair);

const _: () = assert!(size_of::<Line>() == 64 && STRIPES == 1024);

/// What a stripe's lock covers beside the items: how many there are, in DRAM.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    /// Unknown until somebody asks for the length.
    pub count: Option<u64>,
    /// Change not yet added to [`Table::items`].
    pending: i64,
}

/// Everything that handles of one map share.
pub(super) struct Table {
    pub pool: Pool,
    pub header: NonNull<Header>,
    pub seed: u64,
    /// Copy of the header's, for readers without the growth lock.
    pub lines: AtomicU64,
    pub growing: Mutex<()>,
    /// About how many items there are: decides when to grow.
    items: AtomicI64,
    stripes: Box<[CachePadded<RwLock<Stripe>>]>,
}

// SAFETY: the header is in the pool, which `pool` keeps mapped; what it leads to is accessed under the locks said above.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Where a key is, or would be.
pub(super) struct Place {
    pub line: *mut Line,
    pub head: usize,
    /// The word that points to `item`.
    pub link: *mut *mut Item,
    /// Null if the key is absent; `link` is then the end of the chain.
    pub item: *mut Item,
}

impl Table {
    pub fn new(pool: Pool, header: NonNull<Header>) -> Self {
        // SAFETY: a valid header, which nobody else has a handle to yet.
        let (seed, lines) = unsafe { ((*header.as_ptr()).seed, (*header.as_ptr()).growth.lines) };
        let stripes = (0..STRIPES).map(|_| CachePadded::default()).collect();
        let table =
            Self { pool, header, seed, lines: AtomicU64::new(lines), growing: Mutex::new(()), items: AtomicI64::new(0), stripes };
        table.items.store(table.estimate(lines), Ordering::Relaxed);
        table
    }

    /// Extrapolates the number of items from at most 1024 lines: enough to decide about growth.
    fn estimate(&self, lines: u64) -> i64 {
        let step = lines.div_ceil(1024);
        let sample: Vec<u64> = (0..lines)
            .step_by(step as usize)
            // SAFETY: the line is there, and nobody has a handle yet.
            .map(|i| unsafe { (*self.line(i)).count() })
            .collect();
        // A damaged line may say anything.
        let sum = sample.iter().map(|count| u128::from(*count)).sum::<u128>();
        i64::try_from(sum * u128::from(lines) / sample.len() as u128).unwrap_or(i64::MAX)
    }

    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    #[inline]
    pub fn stripe_of(hash: u64) -> usize {
        hash as usize % STRIPES
    }

    #[inline]
    pub fn head_of(hash: u64) -> usize {
        (((hash >> 40) * HEADS as u64) >> 24) as usize
    }

    #[inline]
    pub fn read(&self, stripe: usize, is_nested: bool) -> RwLockReadGuard<'_, Stripe> {
        scope::lock(&self.stripes[stripe], is_nested)
    }

    pub fn write(&self, stripe: usize) -> RwLockWriteGuard<'_, Stripe> {
        self.stripes[stripe].write()
    }

    /// Line `i`, which must be there.
    #[inline]
    pub fn line(&self, i: u64) -> *mut Line {
        let i = i as usize;
        // SAFETY: lines below `lines` are in segments that were added before `lines` reached them.
        unsafe {
            let directory = &raw const (*self.header.as_ptr()).growth.directory;
            Directory::segment(directory, i / STRIPES).cast::<Line>().add(i % STRIPES)
        }
    }

    /// The line that `hash` belongs to when there are `lines`.
    #[inline]
    pub fn line_of(hash: u64, lines: u64) -> u64 {
        let low = 1 << lines.ilog2();
        let i = hash & (2 * low - 1);
        if i < lines { i } else { i & (low - 1) }
    }

    /// Finds `key`.
    ///
    /// # Safety
    /// The caller holds the stripe of `hash`, and has marked nothing it would invalidate.
    #[inline]
    pub unsafe fn find(&self, hash: u64, key: &[u8]) -> Place {
        // SAFETY: the caller's promise.
        unsafe { self.search(hash, key, |_| ()) }
    }

    /// [`find`](Self::find) for a caller who is about to change what is found: what marking it costs is fetched on the way.
    ///
    /// # Safety
    /// As [`find`](Self::find).
    #[inline]
    pub unsafe fn find_to_change(&self, thread: &Thread, hash: u64, key: &[u8]) -> Place {
        // SAFETY: the caller's promise.
        unsafe { self.search(hash, key, |at| thread.prefetch_mark(at)) }
    }

    /// # Safety
    /// As [`find`](Self::find). `passed` gets the addresses of the line and of each item, before they are looked at.
    #[inline]
    unsafe fn search(&self, hash: u64, key: &[u8], passed: impl Fn(*const u8)) -> Place {
        let line = self.line(Self::line_of(hash, self.lines.load(Ordering::Acquire)));
        let head = Self::head_of(hash);
        passed(line.cast());
        // SAFETY: the stripe's lock covers the line and the chain.
        unsafe {
            let mut link = (&raw mut (*line).heads).cast::<*mut Item>().add(head);
            loop {
                let item = *link;
                passed(item.cast());
                if item.is_null() || ((*item).hash == hash && Pair::key(&raw const (*item).pair) == key) {
                    return Place { line, head, link, item };
                }
                link = &raw mut (*item).next;
            }
        }
    }

    /// A new item, linked to nothing.
    pub fn new_item(tx: &Tx<'_>, hash: u64, key: &[u8], value: &[u8]) -> crate::Result<*mut Item> {
        let item = tx.alloc(ITEM_HEAD + crate::pair::size(key, value)?)?.cast::<Item>().as_ptr();
        // SAFETY: a fresh block of that size, marked.
        unsafe {
            (&raw mut (*item).next).write(ptr::null_mut());
            (&raw mut (*item).hash).write(hash);
            Pair::init(&raw mut (*item).pair, key, value);
        }
        Ok(item)
    }

    /// Room for a pair in the block of `item`.
    ///
    /// # Safety
    /// `item` is live.
    pub unsafe fn capacity(&self, item: *mut Item) -> usize {
        // SAFETY: a live item is a block.
        unsafe { self.pool.block_size(NonNull::new_unchecked(item).cast()) - ITEM_HEAD }
    }

    /// Notes that the stripe's number of items changed by `by`.
    #[inline]
    pub fn count(&self, stripe: &mut Stripe, by: i64) {
        if let Some(count) = &mut stripe.count {
            *count = count.wrapping_add_signed(by);
        }
        stripe.pending += by;
        if stripe.pending.abs() >= 4 {
            self.items.fetch_add(stripe.pending, Ordering::Relaxed);
            stripe.pending = 0;
        }
    }

    /// Whether there are more items than heads, about.
    pub fn is_crowded(&self) -> bool {
        self.items.load(Ordering::Relaxed) > (self.lines.load(Ordering::Relaxed) * HEADS as u64) as i64
    }

    /// The lines of a stripe.
    pub fn lines_of_stripe(&self, stripe: usize) -> impl Iterator<Item = *mut Line> + '_ {
        let lines = self.lines.load(Ordering::Acquire);
        (stripe as u64..lines).step_by(STRIPES).map(|i| self.line(i))
    }
}

/// The items of a line, in no particular order.
///
/// # Safety
/// The line's stripe is held, and the items are not changed, while the iterator lives.
pub(super) unsafe fn items(line: *mut Line) -> impl Iterator<Item = *mut Item> {
    // SAFETY: the stripe is held.
    let heads = unsafe { (*line).heads };
    heads.into_iter().flat_map(|head| {
        std::iter::successors((!head.is_null()).then_some(head), |item| {
            // SAFETY: the stripe is held, so that the chain stays as it is.
            let next = unsafe { (**item).next };
            (!next.is_null()).then_some(next)
        })
    })
}
