//! What both trees can do, so that every test and benchmark runs on both.

use std::ops::{Bound, ControlFlow};

/// Longest key of a map of byte strings.
pub const KEY_MAX: usize = 1024;

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the least key up.
    Forward,
    /// From the greatest key down.
    Backward,
}

/// Why an operation failed. Nothing was changed by it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is longer than [`KEY_MAX`].
    #[error("a key of {len} bytes is too long: at most {KEY_MAX} are allowed")]
    KeyTooLong {
        /// Its length.
        len: usize,
    },
    /// No room for another leaf, node or key, in the pool or on its medium.
    #[error("{pool}: out of space: {what}, or its medium is full; remove something, make space there, or create a larger one")]
    OutOfSpace {
        /// Where.
        pool: String,
        /// What did not fit.
        what: String,
    },
    /// The stored map cannot be what this program wrote.
    #[error("{pool}: the map is damaged: {what}; restore it from a copy")]
    Damaged {
        /// Where.
        pool: String,
        /// What is wrong.
        what: String,
    },
    /// It is open elsewhere in this program.
    #[error("{pool}: {what}")]
    InUse {
        /// Where.
        pool: String,
        /// What is.
        what: String,
    },
    /// There is something else under that name, or a map of other keys.
    #[error("{pool}: {what}")]
    Mismatch {
        /// Where.
        pool: String,
        /// What differs.
        what: String,
    },
    /// The medium refused or failed.
    #[error(transparent)]
    Media(#[from] towa_media::Error),
    /// The arena of a tree in place refused.
    #[error(transparent)]
    Alloc(towa_alloc::Error),
    /// The pool of transactions refused or failed.
    #[error(transparent)]
    Tx(#[from] towa_tx::Error),
}

impl From<towa_alloc::Error> for Error {
    fn from(error: towa_alloc::Error) -> Error {
        use towa_alloc::Error as Alloc;
        match error {
            Alloc::Media(error) => Error::Media(error),
            Alloc::OutOfSpace { pool, wanted, len } => {
                Error::OutOfSpace { pool, what: format!("no room for a block of {wanted} bytes in an arena of {len}") }
            }
            Alloc::Damaged { pool, what } => Error::Damaged { pool, what },
            other => Error::Alloc(other),
        }
    }
}

/// Of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A durable ordered map from `K` (`u64` or `[u8]`) to `u64`, shared by threads.
pub trait OrderedMap<K: ?Sized>: Send + Sync {
    /// What a thread works through. Each thread has its own.
    fn session(&self) -> Result<Box<dyn Session<K> + '_>>;
    /// Number of keys. Counted by walking the leaves; exact while nobody writes.
    fn count(&self) -> Result<u64>;
    /// Checks every invariant of the structure, and that every block is reachable exactly once, while nobody writes.
    fn check(&self) -> Result<()>;
    /// Fills the map, which is empty, with entries of rising keys: how many there were. A map that has no faster way inserts them.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: the map is not empty, or a key does not follow the one before it. What was loaded by then may remain; each
    /// map says so of its own `bulk_load`, which takes other iterators, too.
    fn bulk_load<'e>(&mut self, entries: &mut dyn Iterator<Item = (&'e K, u64)>) -> Result<u64>
    where
        K: Ord + 'e,
    {
        let mismatch = |what: String| Err(Error::Mismatch { pool: "the map to load".into(), what });
        if self.count()? != 0 {
            return mismatch("only an empty map is loaded; insert the entries instead".into());
        }
        let mut session = self.session()?;
        let (mut count, mut last) = (0, None::<&K>);
        for (key, value) in entries {
            if last.is_some_and(|last| last >= key) {
                return mismatch(format!("entry {count} to load does not follow the one before it; sort them"));
            }
            session.insert(key, value)?;
            (count, last) = (count + 1, Some(key));
        }
        Ok(count)
    }
}

/// One thread's way to an [`OrderedMap`]. Every change is durable when the call returns, and what is read is durable.
pub trait Session<K: ?Sized> {
    /// Adds `key`, unless it is there; whether it was added.
    fn insert(&mut self, key: &K, value: u64) -> Result<bool>;
    /// Adds `key` or changes its value; the value before.
    fn upsert(&mut self, key: &K, value: u64) -> Result<Option<u64>>;
    /// The value of `key`.
    fn get(&mut self, key: &K) -> Result<Option<u64>>;
    /// Removes `key`; the value it had.
    fn remove(&mut self, key: &K) -> Result<Option<u64>>;
    /// Calls `each` for the entries between the bounds in order, until it breaks. Others may write meanwhile: what was there all the
    /// time is given, what was not there at any time is not; each entry is durable.
    fn scan(
        &mut self,
        bounds: (Bound<&K>, Bound<&K>),
        direction: Direction,
        each: &mut dyn FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()>;
}
