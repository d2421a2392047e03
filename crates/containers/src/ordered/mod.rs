//! [`OrderedMap`]: byte strings to byte strings in key order, concurrent, in a pool.

mod check;
mod insert;
mod node;
mod range;
mod remove;
mod transact;
mod tree;
mod typed;

pub use range::Range;
pub use transact::OrderedView;
pub use typed::{OrderedKey, TypedOrderedMap};

use crate::handle::{self, Kind};
use crate::pair::Pair;
use crate::{Error, Result};
use insert::Fit;
use node::{Header, Leaf, Sought};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use remove::is_sparse;
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towa_epoch::typed::scope;
use towa_epoch::{Pool, Thread, Tx};
use tree::{Tree, UNKNOWN};

/// A map from byte strings to byte strings in key order that survives: a B+-tree. Clones and further openings share it.
///
/// **Guarantee**: each operation is atomic; a crash leaves the map as of an epoch boundary. **Complexity**: O(log n), 31 entries
/// a node; a scan is O(log n) for each 31 entries at most. **Concurrency**: readers run together, writers of different leaves
/// too; the one insertion in about 16 that splits a leaf, and merges after removals, run alone.
///
/// ```
/// use towa_containers::OrderedMap;
/// # use towa_epoch::{Options, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
/// let map = OrderedMap::open(&pool, "log")?;
/// let mut thread = pool.register()?;
/// for key in ["b", "c", "a"] {
///     map.insert(&mut thread, key.as_bytes(), b"")?;
/// }
/// let keys: Vec<_> = map.range(&b"a"[..]..&b"c"[..]).rev().map(|(k, _)| k).collect();
/// assert_eq!(keys, [b"b", b"a"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OrderedMap(Arc<Tree>);

impl fmt::Debug for OrderedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedMap").field("pool", &self.0.pool).finish_non_exhaustive()
    }
}

const KIND: Kind = Kind { layout: "towa ordered map 1", words: "ordered map" };

impl OrderedMap {
    /// The map named `name`, created if the pool has none.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if the name is taken by something else; [`Error::Epoch`].
    pub fn open(pool: &Pool, name: &str) -> Result<Self> {
        Self::open_sized(pool, name, (0, 0))
    }

    fn open_sized(pool: &Pool, name: &str, sizes: (u32, u32)) -> Result<Self> {
        let init = |tx: &Tx<'_>, header: *mut Header| {
            let root = tx.alloc(size_of::<Leaf>())?.cast::<Leaf>().as_ptr();
            // SAFETY: fresh, marked blocks; nobody has a handle.
            unsafe {
                Leaf::init(root, &[]);
                let top = node::Top { root: root.cast(), height: 0 };
                header.write(Header { key_size: sizes.0, value_size: sizes.1, top });
            }
            Ok(())
        };
        let open = |header| Ok(Tree::new(pool.clone(), header));
        // SAFETY: `init` fills in every field, and a Header is aligned to a line.
        let map = Self(unsafe { handle::open::<Header, Tree>(pool, name, KIND, init, open) }?);
        // SAFETY: fixed at creation.
        let found = unsafe { ((*map.0.header.as_ptr()).key_size, (*map.0.header.as_ptr()).value_size) };
        if found != sizes {
            let words = |(k, v)| format!("ordered map of {k}-byte keys and {v}-byte values (0: byte strings)");
            return Err(Error::WrongKind { name: name.to_owned(), wanted: words(sizes), found: words(found) });
        }
        Ok(map)
    }

    /// [`check`](Self::check) of what is under `name`, whatever its keys and values, and whatever is broken in it; `None` if that
    /// is no ordered map.
    pub(crate) fn check_named(pool: &Pool, name: &str) -> Result<Option<u64>> {
        let Some(header) = handle::header::<Header>(pool, name, KIND)? else { return Ok(None) };
        // SAFETY: it lies in the heap, and nobody changes the pool meanwhile.
        let sizes = unsafe { ((*header.as_ptr()).key_size, (*header.as_ptr()).value_size) };
        Self::open_sized(pool, name, sizes)?.check().map(Some)
    }

    /// Its pool.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// A copy of the value of `key`.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Whether there is a value for `key`.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    /// Runs `f` on the value of `key`, under its locks: `f` must be short and may only read other containers.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let scope = scope::read()?;
        let sought = Sought::new(key);
        let _structure = scope::lock(&self.0.structure, scope.is_nested());
        // SAFETY: the structure lock is held, and then the leaf's.
        unsafe {
            let leaf = self.0.leaf_of(sought);
            let _leaf = scope::lock(self.0.leaf_lock(leaf), scope.is_nested());
            Ok(Tree::pair_in(leaf, sought).map(|pair| f(Pair::value(pair))))
        }
    }

    /// Gives `key` the value, whether it is there or not; `true` if it was not.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Epoch`] (out of space, poisoned, inside a transaction); nothing has changed then.
    pub fn insert(&self, thread: &mut Thread, key: &[u8], value: &[u8]) -> Result<bool> {
        self.check_thread(thread)?;
        let sought = Sought::new(key);
        let room = crate::pair::size(key, value)?;
        if let Fit::Done { new } = self.insert_shared(thread, sought, value, room)? {
            return Ok(new);
        }
        let _structure = self.0.structure.write();
        let tx = handle::begin(thread, room)?;
        // SAFETY: the structure lock is held alone around the transaction.
        let new = unsafe { self.0.insert_alone(&tx, sought, value)? };
        tx.commit();
        self.0.count(i64::from(new));
        Ok(new)
    }

    /// How a change within one leaf begins: the structure lock, shared, the leaf of `sought`, and its lock.
    #[inline]
    fn hold(&self, sought: Sought<'_>) -> (RwLockReadGuard<'_, ()>, *mut Leaf, RwLockWriteGuard<'_, ()>) {
        let structure = self.0.structure.read();
        // SAFETY: the structure lock is held.
        let leaf = unsafe { self.0.leaf_of(sought) };
        (structure, leaf, self.0.leaf_lock(leaf).write())
    }

    fn insert_shared(&self, thread: &mut Thread, sought: Sought<'_>, value: &[u8], room: usize) -> Result<Fit> {
        let (_structure, leaf, _leaf) = self.hold(sought);
        // SAFETY: the structure lock is held around the transaction, and so is the leaf's.
        unsafe {
            if !Tree::fits(leaf, sought) {
                return Ok(Fit::LeafIsFull);
            }
            let tx = handle::begin(thread, room)?;
            let fit = self.0.insert_in_leaf(&tx, leaf, sought, value)?;
            tx.commit();
            if let Fit::Done { new: true } = fit {
                self.0.count(1);
            }
            Ok(fit)
        }
    }

    /// Removes `key`; whether it was there.
    ///
    /// # Errors
    /// [`Error::Epoch`]; nothing has changed then.
    pub fn remove(&self, thread: &mut Thread, key: &[u8]) -> Result<bool> {
        Ok(self.take_with(thread, key, |_| ())?.is_some())
    }

    /// Removes `key` and gives a copy of its value.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn take(&self, thread: &mut Thread, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.take_with(thread, key, <[u8]>::to_vec)
    }

    fn take_with<R>(&self, thread: &mut Thread, key: &[u8], last: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.check_thread(thread)?;
        let sought = Sought::new(key);
        let (result, left) = {
            let (_structure, leaf, _leaf) = self.hold(sought);
            // SAFETY: the structure lock is held around the transaction, and so is the leaf's.
            unsafe {
                let Some(pair) = Tree::pair_in(leaf, sought) else { return Ok(None) };
                let tx = thread.begin()?;
                let result = last(Pair::value(pair));
                let left = Tree::remove_from_leaf(&tx, leaf, sought);
                tx.commit();
                self.0.count(-1);
                (result, left)
            }
        };
        if left.is_some_and(is_sparse) {
            // The removal is done; that the tree could not be tidied is for the next transaction to report.
            let _ = self.tidy(thread, sought);
        }
        Ok(Some(result))
    }

    /// Merges the leaf of `sought` with a neighbour, if it is still sparse.
    fn tidy(&self, thread: &mut Thread, sought: Sought<'_>) -> Result<()> {
        let _structure = self.0.structure.write();
        // SAFETY: the structure lock is held alone around the transaction.
        unsafe {
            let (path, leaf) = self.0.path_to(sought);
            if path.is_empty() || (*leaf).count > 7 {
                return Ok(());
            }
            let tx = thread.begin()?;
            self.0.merge(&tx, path);
            tx.commit();
        }
        Ok(())
    }

    /// Changes the bytes of a value where they are, without changing their number; `None` if the key is absent. Undone if `f`
    /// panics. `f` runs inside the transaction: it must be short, and can use no other container.
    ///
    /// # Errors
    /// [`Error::Epoch`]; nothing has changed then.
    pub fn update<R>(&self, thread: &mut Thread, key: &[u8], f: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        self.check_thread(thread)?;
        let sought = Sought::new(key);
        let _scope = scope::write()?;
        let (_structure, leaf, _leaf) = self.hold(sought);
        // SAFETY: the structure lock is held around the transaction, and so is the leaf's.
        unsafe {
            let Some(pair) = Tree::pair_in(leaf, sought) else { return Ok(None) };
            let tx = thread.begin_undoable_reserving(Pair::value(pair).len())?;
            let result = f(Pair::value_mut(&tx, pair));
            tx.commit();
            Ok(Some(result))
        }
    }

    /// Copies of the items whose keys are in `bounds`, from both ends; see [`Range`] for what others' changes do to it.
    pub fn range<'k>(&self, bounds: impl RangeBounds<&'k [u8]>) -> Range {
        let own = |key: &&[u8]| key.to_vec();
        Range::new(self.clone(), bounds.start_bound().map(own), bounds.end_bound().map(own))
    }

    /// Copies of all items, in order.
    pub fn iter(&self) -> Range {
        self.range(..)
    }

    /// The item with the least key.
    pub fn first(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.iter().next()
    }

    /// The item with the greatest key.
    pub fn last(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.iter().next_back()
    }

    /// Number of items. The first call after opening counts them, alone (a read of all leaves); exact when nobody writes.
    ///
    /// # Errors
    /// Inside a transaction or read of the same thread.
    pub fn len(&self) -> Result<u64> {
        scope::check_write()?;
        let known = self.0.len.load(Ordering::Relaxed);
        if known != UNKNOWN {
            return Ok(known);
        }
        let _structure = self.0.structure.write();
        // SAFETY: the structure lock is held alone.
        let count = unsafe { self.0.count_all() };
        self.0.len.store(count, Ordering::Relaxed);
        Ok(count)
    }

    /// Whether there are no items; see [`len`](Self::len).
    ///
    /// # Errors
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Removes everything that is there, a leaf at a time: each leaf is emptied atomically, the whole is not.
    ///
    /// # Errors
    /// [`Error::Epoch`]; part may have been removed then.
    pub fn clear(&self, thread: &mut Thread) -> Result<()> {
        self.check_thread(thread)?;
        while let Some((key, _)) = self.first() {
            let _structure = self.0.structure.write();
            // SAFETY: the structure lock is held alone around the transaction.
            unsafe {
                let (path, leaf) = self.0.path_to(Sought::new(&key));
                let tx = thread.begin()?;
                let gone = Tree::empty_leaf(&tx, leaf);
                self.0.merge(&tx, path);
                tx.commit();
                self.0.count(-(gone as i64));
            }
        }
        Ok(())
    }

    fn check_thread(&self, thread: &Thread) -> Result<()> {
        scope::check_write()?;
        handle::same_pool(&self.0.pool, thread)
    }
}
