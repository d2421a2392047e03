//! [`TypedHashMap`]: plain values as keys and values, kept as their bytes.

use super::{HashMap, HashMapOptions};
use crate::Result;
use bytemuck::{Pod, bytes_of, pod_read_unaligned};
use std::marker::PhantomData;
use towa_epoch::{Pool, Thread};

/// A hash map of plain values. `Pod` means: every byte counts (no padding) and every bit pattern is a value, so whatever is read
/// back is one. The sizes of `K` and `V` are checked at open.
///
/// ```
/// use towa_containers::{HashMapOptions, TypedHashMap};
/// # use towa_epoch::{Options, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
/// let squares = TypedHashMap::<u64, u128>::open(&pool, "squares", &HashMapOptions::default())?;
/// let mut thread = pool.register()?;
/// squares.insert(&mut thread, &7, &49)?;
/// assert_eq!(squares.get(&7)?, Some(49));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TypedHashMap<K, V> {
    bytes: HashMap,
    of: PhantomData<fn(K) -> V>,
}

impl<K: Pod, V: Pod> TypedHashMap<K, V> {
    /// As [`HashMap::open`].
    ///
    /// # Errors
    /// As there; [`Error::WrongKind`](crate::Error::WrongKind) if `K` or `V` has another size than at creation.
    pub fn open(pool: &Pool, name: &str, options: &HashMapOptions) -> Result<Self> {
        const { assert!(size_of::<K>() > 0 && size_of::<K>() + size_of::<V>() < 1 << 30) };
        let sizes = (size_of::<K>() as u32, size_of::<V>() as u32);
        Ok(Self { bytes: HashMap::open_sized(pool, name, options, sizes)?, of: PhantomData })
    }

    /// As [`HashMap::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        self.bytes.get_with(bytes_of(key), pod_read_unaligned)
    }

    /// As [`HashMap::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn insert(&self, thread: &mut Thread, key: &K, value: &V) -> Result<bool> {
        self.bytes.insert(thread, bytes_of(key), bytes_of(value))
    }

    /// Changes the value of `key` in one step; gives the new one, or `None` if the key is absent. Undone if `f` panics.
    ///
    /// # Errors
    /// As [`HashMap::update`].
    pub fn update(&self, thread: &mut Thread, key: &K, f: impl FnOnce(&mut V)) -> Result<Option<V>> {
        self.bytes.update(thread, bytes_of(key), |bytes| {
            let mut value = pod_read_unaligned(bytes);
            f(&mut value);
            bytes.copy_from_slice(bytes_of(&value));
            value
        })
    }

    /// As [`HashMap::take`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&self, thread: &mut Thread, key: &K) -> Result<Option<V>> {
        Ok(self.bytes.take(thread, bytes_of(key))?.map(|bytes| pod_read_unaligned(&bytes)))
    }

    /// As [`HashMap::contains`].
    ///
    /// # Errors
    /// As there.
    pub fn contains(&self, key: &K) -> Result<bool> {
        self.bytes.contains(bytes_of(key))
    }

    /// As [`HashMap::for_each`].
    ///
    /// # Errors
    /// As there.
    pub fn for_each(&self, mut f: impl FnMut(K, V)) -> Result<()> {
        self.bytes.for_each(|key, value| f(pod_read_unaligned(key), pod_read_unaligned(value)))
    }

    /// As [`HashMap::len`].
    ///
    /// # Errors
    /// As there.
    pub fn len(&self) -> Result<u64> {
        self.bytes.len()
    }

    /// As [`HashMap::is_empty`].
    ///
    /// # Errors
    /// As there.
    pub fn is_empty(&self) -> Result<bool> {
        self.bytes.is_empty()
    }

    /// As [`HashMap::clear`].
    ///
    /// # Errors
    /// As there.
    pub fn clear(&self, thread: &mut Thread) -> Result<()> {
        self.bytes.clear(thread)
    }
}
