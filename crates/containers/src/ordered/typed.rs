//! [`TypedOrderedMap`]: numbers as keys, in numeric order, and plain values.

use super::{OrderedMap, Range};
use crate::Result;
use bytemuck::{Pod, bytes_of, pod_read_unaligned};
use std::marker::PhantomData;
use std::ops::RangeBounds;
use towa_epoch::{Pool, Thread};

/// Keys with an encoding of fixed length whose byte order is their own order.
pub trait OrderedKey: Copy {
    /// The encoding: an array of bytes.
    type Bytes: AsRef<[u8]>;
    /// Encodes.
    fn encode(self) -> Self::Bytes;
    /// Decodes what `encode` gave.
    fn decode(bytes: &[u8]) -> Self;
}

macro_rules! keys {
    ($($t:ty, $sign:expr;)*) => { $(
        impl OrderedKey for $t {
            type Bytes = [u8; size_of::<$t>()];
            // Big-endian, the sign flipped so that negative numbers come first.
            fn encode(self) -> Self::Bytes { (self ^ $sign).to_be_bytes() }
            fn decode(bytes: &[u8]) -> Self { <$t>::from_be_bytes(bytes.try_into().expect("a key of this type")) ^ $sign }
        }
    )* };
}
keys! { u8, 0; u16, 0; u32, 0; u64, 0; u128, 0; i8, i8::MIN; i16, i16::MIN; i32, i32::MIN; i64, i64::MIN; i128, i128::MIN; }

/// An ordered map from numbers to plain values. The sizes of `K` and `V` are checked at open.
///
/// ```
/// use towa_containers::TypedOrderedMap;
/// # use towa_epoch::{Options, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
/// let map = TypedOrderedMap::<i64, u32>::open(&pool, "temperatures")?;
/// let mut thread = pool.register()?;
/// for (day, kelvin) in [(3, 300), (-1, 270), (2, 290)] {
///     map.insert(&mut thread, day, &kelvin)?;
/// }
/// assert_eq!(map.range(..=2).collect::<Vec<_>>(), [(-1, 270), (2, 290)]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TypedOrderedMap<K, V> {
    bytes: OrderedMap,
    of: PhantomData<fn(K) -> V>,
}

impl<K: OrderedKey, V: Pod> TypedOrderedMap<K, V> {
    /// As [`OrderedMap::open`].
    ///
    /// # Errors
    /// As there; [`Error::WrongKind`](crate::Error::WrongKind) if `K` or `V` has another size than at creation.
    pub fn open(pool: &Pool, name: &str) -> Result<Self> {
        let sizes = (size_of::<K::Bytes>() as u32, size_of::<V>() as u32);
        Ok(Self { bytes: OrderedMap::open_sized(pool, name, sizes)?, of: PhantomData })
    }

    /// As [`OrderedMap::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self, key: K) -> Result<Option<V>> {
        self.bytes.get_with(key.encode().as_ref(), pod_read_unaligned)
    }

    /// As [`OrderedMap::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn insert(&self, thread: &mut Thread, key: K, value: &V) -> Result<bool> {
        self.bytes.insert(thread, key.encode().as_ref(), bytes_of(value))
    }

    /// As [`OrderedMap::take`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&self, thread: &mut Thread, key: K) -> Result<Option<V>> {
        Ok(self.bytes.take(thread, key.encode().as_ref())?.map(|bytes| pod_read_unaligned(&bytes)))
    }

    /// Changes the value of `key` in one step; gives the new one, or `None` if the key is absent. Undone if `f` panics.
    ///
    /// # Errors
    /// As [`OrderedMap::update`].
    pub fn update(&self, thread: &mut Thread, key: K, f: impl FnOnce(&mut V)) -> Result<Option<V>> {
        self.bytes.update(thread, key.encode().as_ref(), |bytes| {
            let mut value = pod_read_unaligned(bytes);
            f(&mut value);
            bytes.copy_from_slice(bytes_of(&value));
            value
        })
    }

    /// As [`OrderedMap::range`].
    pub fn range<B: RangeBounds<K>>(&self, bounds: B) -> impl DoubleEndedIterator<Item = (K, V)> + use<K, V, B> {
        let own = |key: &K| key.encode().as_ref().to_vec();
        let (from, to) = (bounds.start_bound().map(own), bounds.end_bound().map(own));
        Range::new(self.bytes.clone(), from, to).map(|(key, value)| (K::decode(&key), pod_read_unaligned(&value)))
    }

    /// The item with the least key.
    pub fn first(&self) -> Option<(K, V)> {
        self.range(..).next()
    }

    /// The item with the greatest key.
    pub fn last(&self) -> Option<(K, V)> {
        self.range(..).next_back()
    }

    /// As [`OrderedMap::len`].
    ///
    /// # Errors
    /// As there.
    pub fn len(&self) -> Result<u64> {
        self.bytes.len()
    }

    /// As [`OrderedMap::is_empty`].
    ///
    /// # Errors
    /// As there.
    pub fn is_empty(&self) -> Result<bool> {
        self.bytes.is_empty()
    }

    /// As [`OrderedMap::clear`].
    ///
    /// # Errors
    /// As there.
    pub fn clear(&self, thread: &mut Thread) -> Result<()> {
        self.bytes.clear(thread)
    }
}
