//! The tree's shared state: locks in DRAM, and the way down.
//!
//! **Locks.** The *structure lock* covers inner nodes and which leaves there are. Operations that stay within a leaf hold it
//! shared, and then one of 256 *leaf locks*, chosen by the leaf's address. Splits and merges hold it alone, and need no leaf
//! lock. Both kinds are taken before the transaction begins: a split is never decided inside one.

use super::node::{Header, Inner, Leaf, Sought, lower_bound};
use crate::pair::Pair;
use crossbeam_utils::CachePadded;
use parking_lot::RwLock;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use towa_epoch::Pool;

const LEAF_LOCKS: usize = 256;
/// [`Tree::len`] before anybody asked.
pub(super) const UNKNOWN: u64 = u64::MAX;

pub(super) struct Tree {
    pub pool: Pool,
    pub header: NonNull<Header>,
    pub structure: RwLock<()>,
    leaf_locks: Box<[CachePadded<RwLock<()>>]>,
    /// Changed under the structure lock, shared or not; counted under it alone.
    pub len: AtomicU64,
}

// SAFETY: the header is in the pool, which `pool` keeps mapped; what it leads to is accessed under the locks said above.
unsafe impl Send for Tree {}
// SAFETY: as above.
unsafe impl Sync for Tree {}

/// The inner nodes passed on the way down, root first, and which child was taken.
pub(super) type Path = Vec<(*mut Inner, usize)>;

impl Tree {
    pub fn new(pool: Pool, header: NonNull<Header>) -> Self {
        let leaf_locks = (0..LEAF_LOCKS).map(|_| CachePadded::default()).collect();
        Self { pool, header, structure: RwLock::new(()), leaf_locks, len: AtomicU64::new(UNKNOWN) }
    }

    pub fn leaf_lock(&self, leaf: *const Leaf) -> &RwLock<()> {
        let spread = (leaf.addr() as u64 >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.leaf_locks[(spread >> 56) as usize]
    }

    /// Notes that the number of items changed. Under the structure lock, shared or not.
    pub fn count(&self, by: i64) {
        if self.len.load(Ordering::Relaxed) != UNKNOWN {
            self.len.fetch_add(by as u64, Ordering::Relaxed);
        }
    }

    /// The leaf that holds `sought`, if it is there.
    ///
    /// # Safety
    /// The structure lock is held, shared or not.
    pub unsafe fn leaf_of(&self, sought: Sought<'_>) -> *mut Leaf {
        // SAFETY: inner nodes do not change while the structure lock is held.
        unsafe { self.descend(|inner| Inner::child_of(inner, sought)) }
    }

    /// The leaf reached by choosing a child at each inner node.
    ///
    /// # Safety
    /// As [`leaf_of`](Self::leaf_of); `choose` gives a child that is there.
    pub unsafe fn descend(&self, mut choose: impl FnMut(*mut Inner) -> usize) -> *mut Leaf {
        // SAFETY: the caller's promise.
        unsafe {
            let top = &raw const (*self.header.as_ptr()).top;
            let mut node = (*top).root;
            for _ in 0..(*top).height {
                let inner = node.cast::<Inner>();
                node = Inner::children(inner)[choose(inner)];
            }
            node.cast()
        }
    }

    /// Like [`leaf_of`](Self::leaf_of), noting the way.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn path_to(&self, sought: Sought<'_>) -> (Path, *mut Leaf) {
        let mut path = Path::new();
        // SAFETY: the caller's promise.
        let leaf = unsafe {
            self.descend(|inner| {
                let child = Inner::child_of(inner, sought);
                path.push((inner, child));
                child
            })
        };
        (path, leaf)
    }

    /// The pair with that key.
    ///
    /// # Safety
    /// The leaf's content does not change meanwhile: its lock is held, or the structure lock alone.
    pub unsafe fn pair_in(leaf: *mut Leaf, sought: Sought<'_>) -> Option<*mut Pair> {
        // SAFETY: the caller's promise.
        unsafe {
            let slots = Leaf::slots(leaf);
            let (i, found) = lower_bound(slots, sought);
            found.then(|| slots[i].pair)
        }
    }

    /// Room for a pair in its block.
    ///
    /// # Safety
    /// `pair` is live.
    pub unsafe fn capacity(&self, pair: *mut Pair) -> usize {
        // SAFETY: a live pair is a block.
        unsafe { self.pool.block_size(NonNull::new_unchecked(pair).cast()) }
    }
}
