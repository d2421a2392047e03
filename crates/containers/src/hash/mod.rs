//! [`HashMap`]: byte strings to byte strings, concurrent, in a pool.

mod grow;
mod iter;
mod session;
mod table;
mod transact;
mod typed;
mod update;

pub use iter::Iter;
pub use session::Session;
pub use transact::View;
pub use typed::TypedHashMap;
pub use update::Change;

use crate::handle::{self, Kind};
use crate::pair::Pair;
use crate::segments::Directory;
use crate::{Error, Result};
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use table::{EMPTY, HEADS, Header, Line, STRIPES, Table};
use towa_epoch::typed::scope;
use towa_epoch::{Pool, Thread};

/// How to create a hash map. Ignored when it exists already.
#[derive(Clone, Debug, Default)]
pub struct HashMapOptions {
    /// Items it should hold without growing; it grows by itself beyond that. Default: 7168, the least.
    pub capacity: u64,
}

/// A map from byte strings to byte strings that survives; clones and further openings of a name share it.
///
/// **Guarantee**: each operation is atomic; a crash leaves the map as of an epoch boundary. **Complexity**: expected O(1) for
/// each operation on a key, growth included (one bucket line at a time, never the whole table). Seven buckets share a 64-byte
/// line, which an operation reads, and an insertion or removal writes, beside the item. **Concurrency**: a reader-writer lock
/// for each 1024th of the lines. Hashes are seeded at random when the map is created.
///
/// ```
/// use towa_containers::{HashMap, HashMapOptions};
/// # use towa_epoch::{Options, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
/// let map = HashMap::open(&pool, "people", &HashMapOptions::default())?;
/// let mut thread = pool.register()?;
/// assert!(map.insert(&mut thread, b"ada", b"1815")?);
/// assert!(!map.insert(&mut thread, b"ada", b"1816")?); // replaces
/// assert_eq!(map.get(b"ada")?.unwrap(), b"1816");
/// assert!(map.remove(&mut thread, b"ada")?);
/// assert!(map.is_empty()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HashMap(Arc<Table>);

impl fmt::Debug for HashMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashMap").field("lines", &self.0.lines.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

const KIND: Kind = Kind { layout: "towa hash map 1", words: "hash map" };

impl HashMap {
    /// The map named `name`, created if the pool has none.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if the name is taken by something else; [`Error::Epoch`].
    pub fn open(pool: &Pool, name: &str, options: &HashMapOptions) -> Result<Self> {
        Self::open_sized(pool, name, options, (0, 0))
    }

    /// With the sizes of the typed flavour's keys and values.
    fn open_sized(pool: &Pool, name: &str, options: &HashMapOptions, sizes: (u32, u32)) -> Result<Self> {
        let mut created = false;
        let init = |tx: &towa_epoch::Tx<'_>, header: *mut Header| {
            created = true;
            // SAFETY: a fresh, marked block; nobody has a handle.
            unsafe {
                (&raw mut (*header).seed).write(std::hash::RandomState::new().build_hasher().finish());
                (&raw mut (*header).key_size).write(sizes.0);
                (&raw mut (*header).value_size).write(sizes.1);
                let directory = &raw mut (*header).growth.directory;
                Directory::init(directory);
                let lines = Directory::add(tx, directory, 0)?.cast::<Line>();
                std::slice::from_raw_parts_mut(lines, STRIPES).fill(EMPTY);
                (&raw mut (*header).growth.lines).write(STRIPES as u64);
            }
            Ok(())
        };
        let open = |header| Ok(Table::new(pool.clone(), header));
        // SAFETY: `init` fills in every field, and a Header is aligned to a line.
        let map = Self(unsafe { handle::open::<Header, Table>(pool, name, KIND, init, open) }?);
        // SAFETY: fixed at creation.
        let found = unsafe { ((*map.0.header.as_ptr()).key_size, (*map.0.header.as_ptr()).value_size) };
        if found != sizes {
            let words = |sizes| match sizes {
                (0, 0) => "hash map of byte strings".to_owned(),
                (k, v) => format!("hash map of {k}-byte keys and {v}-byte values"),
            };
            return Err(Error::WrongKind { name: name.to_owned(), wanted: words(sizes), found: words(found) });
        }
        if created {
            map.0.presize(&mut pool.register()?, options.capacity.div_ceil(HEADS as u64))?;
        }
        Ok(map)
    }

    /// [`check`](Self::check) of what is under `name`, whatever its keys and values, and whatever is broken in it; `None` if that
    /// is no hash map.
    pub(crate) fn check_named(pool: &Pool, name: &str) -> Result<Option<u64>> {
        let Some(header) = handle::header::<Header>(pool, name, KIND)? else { return Ok(None) };
        // SAFETY: it lies in the heap, and nobody changes the pool meanwhile.
        let (lines, sizes) =
            unsafe { ((*header.as_ptr()).growth.lines, ((*header.as_ptr()).key_size, (*header.as_ptr()).value_size)) };
        if lines < STRIPES as u64 {
            return Err(Error::Damaged(format!("{lines} bucket lines, of {STRIPES} at least")));
        }
        // SAFETY: as above.
        unsafe { Directory::check(pool, &raw const (*header.as_ptr()).growth.directory, lines.div_ceil(STRIPES as u64))? };
        Self::open_sized(pool, name, &HashMapOptions::default(), sizes)?.check().map(Some)
    }

    /// Its pool.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// A handle with a thread registration of its own, so that nothing else need be passed; one per operating-system thread.
    ///
    /// # Errors
    /// Those of [`Pool::register`].
    pub fn session(&self) -> Result<Session> {
        Ok(Session::new(self.clone(), self.0.pool.register()?))
    }

    /// A copy of the value of `key`.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.look(key, scope::check_read()?, <[u8]>::to_vec))
    }

    /// Copies the value of `key` into `into`, replacing what is there; `false` (and empty) if the key is absent. Allocates
    /// nothing when `into` has the room.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn get_into(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        Ok(self.look(key, scope::check_read()?, |value| into.extend_from_slice(value)).is_some())
    }

    /// Runs `f` on the value of `key`, under its lock: `f` must be short and may only read other containers.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let scope = scope::read()?;
        Ok(self.look(key, scope.is_nested(), f))
    }

    /// Whether there is a value for `key`.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.look(key, scope::check_read()?, |_| ()).is_some())
    }

    #[inline]
    fn look<R>(&self, key: &[u8], is_nested: bool, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let hash = self.0.hash(key);
        let _stripe = self.0.read(Table::stripe_of(hash), is_nested);
        // SAFETY: the stripe is held.
        unsafe {
            let item = self.0.find(hash, key).item;
            (!item.is_null()).then(|| f(Pair::value(&raw const (*item).pair)))
        }
    }

    /// Number of items. The first call after opening counts them (a read of the bucket lines); exact when nobody writes.
    ///
    /// # Errors
    /// Inside a transaction or read of the same thread.
    pub fn len(&self) -> Result<u64> {
        scope::check_write()?;
        let mut sum = 0;
        for stripe in 0..STRIPES {
            if let Some(count) = self.0.read(stripe, false).count {
                sum += count;
                continue;
            }
            let mut guard = self.0.write(stripe);
            // SAFETY: the stripe is held.
            let count = self.0.lines_of_stripe(stripe).map(|line| unsafe { (*line).count() }).sum();
            guard.count = Some(count);
            sum += count;
        }
        Ok(sum)
    }

    /// Whether there are no items; see [`len`](Self::len).
    ///
    /// # Errors
    /// As [`len`](Self::len).
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    fn check_thread(&self, thread: &Thread) -> Result<()> {
        scope::check_write()?;
        handle::same_pool(&self.0.pool, thread)
    }
}
