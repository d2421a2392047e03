//! **FPTree**: leaves in durable memory, changed in place by ordered stores; inner nodes in DRAM (Oukid et al., SIGMOD'16).
//!
//! ```text
//!   DRAM         inner nodes (index, node) ── rebuilt at every opening (recover)
//!                  │        │         │
//!   durable      [leaf] ─►[leaf] ─►[leaf] ─► 0        one-byte fingerprints, a bitmap that entries come and go by (layout, leaf)
//!                micro-logs of splits (split)
//! ```
//!
//! | file | what |
//! |---|---|
//! | `layout` | what is stored |
//! | `leaf` | reading and writing one leaf while others do |
//! | `index`, `node` | from a key to its leaf |
//! | `session` | get, insert, upsert, remove: flushes and fences of each |
//! | `split` | leaves come and go: why stopping after each step is safe |
//! | `scan`, `load` | ranges; sorted input at once |
//! | `recover`, `check` | opening after anything; every invariant |
//!
//! What must always hold: an operation that returned is durable, and one that did not is there whole or not at all; what anyone sees is
//! durable, for a leaf stays locked until then; readers write nothing and lock nothing. Where the paper uses hardware transactions for the
//! inner nodes, these are read optimistically under versions, which needs no special hardware.
//!
//! Of the paper's micro-logs, deletion has none here: the paper's keeps a leaf that is being unlinked from leaking, and here
//! what cannot be reached at opening is free. Unlinking is then one store of eight bytes.

mod check;
mod index;
mod layout;
mod leaf;
mod load;
mod node;
mod recover;
mod scan;
mod session;
mod split;
#[cfg(test)]
mod tests;

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use towa_alloc::{Allocator, Arena, CreateOptions, SEGMENT};
use towa_media::Medium;

pub use layout::{ENTRIES_MAX, ENTRIES_MIN};
pub use session::FpSession;

use self::index::Index;
use self::layout::*;
use self::leaf::Leaf;
use crate::{Error, Key, OrderedMap, Result, Session};

/// What a new tree is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the arena; space is provided as it is used.
    pub len: u64,
    /// Entries of a leaf, from [`ENTRIES_MIN`] to [`ENTRIES_MAX`]. Less than the most is for tests, which see more splits.
    pub entries: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { len: 1 << 30, entries: ENTRIES_MAX }
    }
}

impl Options {
    /// Whether there can be such a tree of keys `K`, which has room for one at least. To be asked before its directory is made.
    ///
    /// # Errors
    /// Its length, or that of its leaves, is none that a tree can have.
    pub fn check<K: Key + ?Sized>(&self) -> Result<()> {
        if !(ENTRIES_MIN..=ENTRIES_MAX).contains(&self.entries) {
            let what = format!("{} entries in a leaf: not between {ENTRIES_MIN} and {ENTRIES_MAX}", self.entries);
            return Err(towa_alloc::Error::Options { what }.into());
        }
        // The first leaf takes a segment; keys that lie beside it take another one.
        let beside = if K::INLINE { 0 } else { SEGMENT };
        self.arena::<K>().check()?;
        let without = Options { len: self.len.saturating_sub(beside), ..*self };
        if without.arena::<K>().check().is_err() {
            let what = format!("a tree of {} bytes has no room for a key; make it at least {SEGMENT} bytes longer", self.len);
            return Err(towa_alloc::Error::Options { what }.into());
        }
        Ok(())
    }

    fn arena<K: Key + ?Sized>(&self) -> CreateOptions {
        CreateOptions { len: self.len, user_len: USER_LEN, kind: FpTree::<K>::KIND }
    }
}

/// What a tree consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Leaves in the list.
    pub leaves: u64,
    /// Keys.
    pub keys: u64,
    /// Leaves that were unlinked and wait for a split to use them.
    pub spare_leaves: u64,
    /// Inner nodes in DRAM, 1 KiB each.
    pub nodes: u64,
    /// Bytes taken in the arena.
    pub bytes: u64,
}

/// A durable ordered map of `u64` or byte strings to `u64`. Threads work through a [session](Self::session) each.
pub struct FpTree<K: Key + ?Sized> {
    arena: Arc<Arena>,
    allocator: Arc<Allocator>,
    index: Index<K>,
    /// A bit for each slot of a leaf that is used.
    full: u64,
    head: u64,
    /// Micro-logs nobody uses, as bits.
    idle_logs: AtomicU64,
    /// Leaves that were unlinked: taken in the allocator, free to be leaves again.
    spare: Mutex<Vec<u64>>,
}

impl<K: Key + ?Sized> FpTree<K> {
    const KIND: &'static str = match K::INLINE {
        true => "fptree u64",
        false => "fptree bytes",
    };

    /// A new tree on `medium`, durable with its name when this returns. Before that there is no tree there.
    pub fn create(medium: Arc<dyn Medium>, options: &Options) -> Result<FpTree<K>> {
        options.check::<K>()?;
        let arena = Arc::new(Arena::create(medium, &options.arena::<K>())?);
        let allocator = Allocator::rebuild(arena.clone())?.finish()?;
        let head = allocator.local().reserve(LEAF_LEN)?;
        let leaf = Leaf::at(&arena, head).expect("a block of the arena");
        let mut image = [0; LEAF_WORDS];
        image[TAG] = LEAF_TAG;
        leaf.write(&arena, &image)?;
        leaf.reset_version();
        Root { entries: options.entries, head }.write(&arena)?;
        arena.publish()?;
        Self::assemble(arena, allocator, Root { entries: options.entries, head })
    }

    /// Opens the tree on `medium`, after whatever happened to it.
    pub fn open(medium: Arc<dyn Medium>) -> Result<FpTree<K>> {
        let pool = medium.location();
        let arena = match Arena::open(medium, Self::KIND) {
            Err(towa_alloc::Error::WrongKind { found, .. }) => {
                return Err(Error::Mismatch { pool, what: format!("holds {found:?}, not a tree of {}", K::NAME) });
            }
            other => Arc::new(other?),
        };
        recover::recover(arena)
    }

    fn assemble(arena: Arc<Arena>, allocator: Arc<Allocator>, root: Root) -> Result<FpTree<K>> {
        Ok(FpTree {
            index: Index::new(root.head, arena.len())?,
            full: (1 << root.entries) - 1,
            head: root.head,
            idle_logs: AtomicU64::new(u64::MAX),
            spare: Mutex::default(),
            arena,
            allocator,
        })
    }

    /// Closes it. Nothing needs to be done for that: every operation was durable when it returned.
    pub fn close(self) -> Result<()> {
        if self.arena.is_failed() { Err(self.arena.fail().into()) } else { Ok(()) }
    }

    /// A thread's way to the tree.
    pub fn session(&self) -> FpSession<'_, K> {
        FpSession::new(self)
    }

    /// What it consists of; exact while nobody writes.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            spare_leaves: self.spare.lock().len() as u64,
            nodes: self.index.nodes() as u64,
            bytes: self.allocator.usage().bytes,
            ..Stats::default()
        };
        self.index.for_each_leaf(&mut |off, _| {
            stats.leaves += 1;
            stats.keys += Leaf::at(&self.arena, off).map_or(0, |leaf| u64::from(leaf.bitmap().count_ones()));
            std::ops::ControlFlow::Continue(())
        });
        stats
    }

    fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Damaged { pool: self.arena.location().into(), what: what.into() }
    }
}

impl<K: Key + ?Sized> std::fmt::Debug for FpTree<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FpTree<{}>({})", K::NAME, self.arena.location())
    }
}

impl<K: Key + ?Sized> OrderedMap<K> for FpTree<K> {
    fn session(&self) -> Result<Box<dyn Session<K> + '_>> {
        Ok(Box::new(FpTree::session(self)))
    }
    fn count(&self) -> Result<u64> {
        Ok(self.stats().keys)
    }
    fn check(&self) -> Result<()> {
        self.check_all()
    }
    fn bulk_load<'e>(&mut self, entries: &mut dyn Iterator<Item = (&'e K, u64)>) -> Result<u64>
    where
        K: 'e,
    {
        FpTree::bulk_load(self, entries)
    }
}

/// Whether `key` lies before the end that is the bound.
fn within<K: Key + ?Sized>(key: &K, low: &Bound<&K>, high: &Bound<&K>) -> bool {
    let after = match low {
        Bound::Unbounded => true,
        Bound::Included(low) => key >= *low,
        Bound::Excluded(low) => key > *low,
    };
    after
        && match high {
            Bound::Unbounded => true,
            Bound::Included(high) => key <= *high,
            Bound::Excluded(high) => key < *high,
        }
}
