//! [`Vector`]: plain values by index, growable at its end, in a pool. `Vector<[u8]>` is the same structure for items whose size only
//! the running program knows, as C's do; both open each other's.
//!
//! ```text
//!   Header   line 0  fixed: size of a value
//!            line 1  length, segments held; then the Directory                 (tail lock)
//!   Segment  | granule | granule | ...        a granule is the fewest values that fill whole lines: eight of 8 bytes in one
//!                                             line, eight of 24 bytes in three. One of 256 locks for each (granule lock).
//! ```
//! Order of locks: tail, then granule. What is at index `i` and *whether* it is there (`i < length`) change only under the lock of
//! its granule, so reading needs that lock alone, although the length itself is written under the tail lock.

mod bytes;

use crate::handle::{self, Kind};
use crate::segments::{Directory, SEGMENT};
use crate::store::{put, put_bytes};
use crate::{Error, Result};
use bytemuck::{Pod, bytes_of, pod_read_unaligned};
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towa_epoch::typed::scope;
use towa_epoch::{Pool, Thread, Tx};

const LOCKS: usize = 256;

#[repr(C, align(64))]
struct Header {
    item_size: u64,
    tail: Tail,
}

#[repr(C, align(64))]
struct Tail {
    len: u64,
    segments: u64,
    directory: Directory,
}

/// How values of a size are laid out.
#[derive(Clone, Copy)]
struct Shape {
    /// Bytes of a value.
    size: usize,
    /// Bytes from one value to the next.
    stride: usize,
    per_granule: usize,
    per_segment: usize,
}

impl Shape {
    const fn of(size: usize) -> Self {
        // The largest power of two, up to a line, that divides the size.
        let shared = if size == 0 { 64 } else { 1 << size.trailing_zeros() };
        let shared = if shared > 64 { 64 } else { shared };
        let granule = 64 / shared * size;
        // Odd large sizes would make large granules: pad the values to whole lines instead.
        let (stride, per_granule) = if granule <= 4096 && size > 0 { (size, 64 / shared) } else { (size.next_multiple_of(64), 1) };
        Self { size, stride, per_granule, per_segment: SEGMENT / (stride * per_granule) * per_granule }
    }
}

struct Shared {
    pool: Pool,
    header: NonNull<Header>,
    shape: Shape,
    tail: Mutex<()>,
    granules: Box<[CachePadded<RwLock<()>>]>,
    /// Copy of the header's; see the module about the locks it changes under.
    len: AtomicU64,
}

// SAFETY: the header is in the pool, which `pool` keeps mapped; what it leads to is accessed under the locks said above.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A growable array of plain values that survives; elements never move. Clones and further openings share it.
///
/// **Guarantee**: each operation is atomic; a crash leaves the vector as of an epoch boundary. **Complexity**: O(1) each; growth
/// adds 64 KiB at a time and copies nothing. **Concurrency**: reads together; changes to different granules (a few cache lines)
/// together; `push` and `pop` one after another.
///
/// ```
/// use towa_containers::Vector;
/// # use towa_epoch::{Options, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
/// let samples = Vector::<f64>::open(&pool, "samples")?;
/// let mut thread = pool.register()?;
/// samples.push(&mut thread, &1.5)?;
/// samples.push(&mut thread, &2.5)?;
/// samples.set(&mut thread, 0, &0.5)?;
/// assert_eq!(samples.iter().sum::<f64>(), 3.0);
/// assert_eq!(samples.pop(&mut thread)?, Some(2.5));
/// # Ok(())
/// # }
/// ```
pub struct Vector<T: ?Sized> {
    shared: Arc<Shared>,
    of: PhantomData<fn(Box<T>) -> Box<T>>,
}

impl<T: ?Sized> Clone for Vector<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), of: PhantomData }
    }
}

impl<T: ?Sized> fmt::Debug for Vector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vector").field("len", &self.shared.len.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

const KIND: Kind = Kind { layout: "towa vector 1", words: "vector" };

/// Verifies the vector under `name`, whatever its values, and whatever is broken in it; gives its length, or `None` if that is no
/// vector.
pub(crate) fn check_named(pool: &Pool, name: &str) -> Result<Option<u64>> {
    let Some(header) = handle::header::<Header>(pool, name, KIND)? else { return Ok(None) };
    // SAFETY: it lies in the heap, and nobody changes the pool meanwhile.
    unsafe { check(pool, header) }.map(Some)
}

/// # Safety
/// The header is valid for reads, and nobody changes it meanwhile.
unsafe fn check(pool: &Pool, header: NonNull<Header>) -> Result<u64> {
    // SAFETY: the caller's promise.
    let (size, tail) = unsafe { ((*header.as_ptr()).item_size, &raw const (*header.as_ptr()).tail) };
    // SAFETY: as above.
    let (len, segments) = unsafe { ((*tail).len, (*tail).segments) };
    if size == 0 || size > SEGMENT as u64 {
        return Err(Error::Damaged(format!("a vector of values of {size} bytes")));
    }
    // SAFETY: as above.
    unsafe { Directory::check(pool, &raw const (*tail).directory, segments)? };
    if len > segments * Shape::of(size as usize).per_segment as u64 {
        return Err(Error::Damaged(format!("a vector of {len} values has {segments} segments")));
    }
    Ok(len)
}

/// What both kinds do. The shape is an argument, so that for values of a type it is a constant.
impl Shared {
    fn open(pool: &Pool, name: &str, size: usize) -> Result<Arc<Shared>> {
        let init = |_: &Tx<'_>, header: *mut Header| {
            // SAFETY: a fresh, marked block; nobody has a handle.
            unsafe {
                (&raw mut (*header).item_size).write(size as u64);
                (&raw mut (*header).tail.len).write(0);
                (&raw mut (*header).tail.segments).write(0);
                Directory::init(&raw mut (*header).tail.directory);
            }
            Ok(())
        };
        let open = |header: NonNull<Header>| {
            // SAFETY: a valid header; nobody has a handle yet.
            let (size, len) = unsafe { ((*header.as_ptr()).item_size, (*header.as_ptr()).tail.len) };
            if size == 0 || size > SEGMENT as u64 {
                return Err(Error::Damaged(format!("vector {name:?} says that its values have {size} bytes")));
            }
            let granules = (0..LOCKS).map(|_| CachePadded::default()).collect();
            let shape = Shape::of(size as usize);
            Ok(Shared { pool: pool.clone(), header, shape, tail: Mutex::new(()), granules, len: AtomicU64::new(len) })
        };
        // SAFETY: `init` fills in every field, and a Header is aligned to a line.
        let shared = unsafe { handle::open::<Header, Shared>(pool, name, KIND, init, open) }?;
        if shared.shape.size != size {
            let words = |size| format!("vector of {size}-byte values");
            return Err(Error::WrongKind { name: name.to_owned(), wanted: words(size), found: words(shared.shape.size) });
        }
        Ok(shared)
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Runs `f` on the value at `i`, if there is one.
    #[inline]
    fn get<R>(&self, shape: Shape, i: u64, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let is_nested = scope::check_read()?;
        if i >= self.len() {
            return Ok(None);
        }
        let _granule = scope::lock(self.granule(shape, i), is_nested);
        if i >= self.len() {
            return Ok(None);
        }
        // SAFETY: there is a value at `i`, which stays while its granule is held.
        Ok(Some(f(unsafe { std::slice::from_raw_parts(self.at(shape, i), shape.size) })))
    }

    /// Replaces the value at `i`, if there is one, by what `f` makes of it (before the transaction begins).
    #[inline]
    fn update<V: AsRef<[u8]>>(&self, shape: Shape, thread: &mut Thread, i: u64, f: impl FnOnce(&[u8]) -> V) -> Result<Option<V>> {
        self.check_thread(thread)?;
        if i >= self.len() {
            return Ok(None);
        }
        let _scope = scope::write()?;
        let _granule = self.granule(shape, i).write();
        if i >= self.len() {
            return Ok(None);
        }
        // SAFETY: there is a value at `i`, and its granule is held around the transaction.
        unsafe {
            let at = self.at(shape, i);
            let value = f(std::slice::from_raw_parts(at, shape.size));
            let tx = handle::begin(thread, shape.size)?;
            put_bytes(&tx, at, value.as_ref());
            tx.commit();
            Ok(Some(value))
        }
    }

    #[inline]
    fn push(&self, shape: Shape, thread: &mut Thread, bytes: &[u8]) -> Result<u64> {
        self.check_thread(thread)?;
        let _tail = self.tail.lock();
        let tail = self.tail();
        // SAFETY: the tail is held around the transaction, and so is the granule of what it writes.
        unsafe {
            let (i, segments) = ((*tail).len, (*tail).segments);
            let _granule = self.granule(shape, i).write();
            let grows = i == segments * shape.per_segment as u64;
            let tx = handle::begin(thread, if grows { 2 * SEGMENT } else { shape.size })?;
            if grows {
                Directory::add(&tx, &raw mut (*tail).directory, segments as usize)?;
                put(&tx, &raw mut (*tail).segments, segments + 1);
            }
            put_bytes(&tx, self.at(shape, i), bytes);
            put(&tx, &raw mut (*tail).len, i + 1);
            tx.commit();
            self.len.store(i + 1, Ordering::Release);
            Ok(i)
        }
    }

    /// Removes the last value, if there is one, after running `f` on it (before the transaction begins).
    #[inline]
    fn pop<R>(&self, shape: Shape, thread: &mut Thread, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.check_thread(thread)?;
        let _scope = scope::write()?;
        let _tail = self.tail.lock();
        let tail = self.tail();
        // SAFETY: the tail is held around the transaction, and so is the granule of what goes.
        unsafe {
            let Some(i) = (*tail).len.checked_sub(1) else { return Ok(None) };
            let _granule = self.granule(shape, i).write();
            let value = f(std::slice::from_raw_parts(self.at(shape, i), shape.size));
            let tx = thread.begin()?;
            put(&tx, &raw mut (*tail).len, i);
            // One empty segment is kept, so that a push after a pop need not add it again.
            let segments = (*tail).segments;
            if segments > i.div_ceil(shape.per_segment as u64) + 1 {
                Directory::remove(&tx, &raw mut (*tail).directory, segments as usize - 1);
                put(&tx, &raw mut (*tail).segments, segments - 1);
            }
            tx.commit();
            self.len.store(i, Ordering::Release);
            Ok(Some(value))
        }
    }

    fn check_thread(&self, thread: &Thread) -> Result<()> {
        scope::check_write()?;
        handle::same_pool(&self.pool, thread)
    }

    fn tail(&self) -> *mut Tail {
        // SAFETY: inside the header.
        unsafe { &raw mut (*self.header.as_ptr()).tail }
    }

    #[inline]
    fn granule(&self, shape: Shape, i: u64) -> &RwLock<()> {
        &self.granules[(i / shape.per_granule as u64) as usize % LOCKS]
    }

    /// # Safety
    /// The segment of `i` is there.
    #[inline]
    unsafe fn at(&self, shape: Shape, i: u64) -> *mut u8 {
        let (segment, within) = (i as usize / shape.per_segment, i as usize % shape.per_segment);
        // SAFETY: the segment is there, and values lie inside it.
        unsafe { Directory::segment(&raw const (*self.tail()).directory, segment).add(within * shape.stride) }
    }
}

impl<T: ?Sized> Vector<T> {
    /// Its pool.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Number of values.
    pub fn len(&self) -> u64 {
        self.shared.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes everything, from the end, a few segments at a time; alone in the vector.
    ///
    /// # Errors
    /// [`Error::Epoch`]; the beginning is still there then.
    pub fn clear(&self, thread: &mut Thread) -> Result<()> {
        let shared = &*self.shared;
        shared.check_thread(thread)?;
        let _tail = shared.tail.lock();
        let _granules: Vec<_> = shared.granules.iter().map(|lock| lock.write()).collect();
        let tail = shared.tail();
        // SAFETY: all locks are held around the transactions.
        unsafe {
            while (*tail).segments > 0 {
                let tx = thread.begin()?;
                let (mut segments, mut budget) = ((*tail).segments, 16);
                while segments > 0 && budget > 0 {
                    (segments, budget) = (segments - 1, budget - 1);
                    Directory::remove(&tx, &raw mut (*tail).directory, segments as usize);
                }
                put(&tx, &raw mut (*tail).segments, segments);
                let len = (*tail).len.min(segments * shared.shape.per_segment as u64);
                put(&tx, &raw mut (*tail).len, len);
                tx.commit();
                shared.len.store(len, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Verifies that the length fits the segments held. Gives the length.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn check(&self) -> Result<u64> {
        let _tail = self.shared.tail.lock();
        // SAFETY: the tail is held.
        unsafe { check(&self.shared.pool, self.shared.header) }
    }
}

/// A value beside its bytes, for [`Shared::update`].
struct Changed<T>(T);

impl<T: Pod> AsRef<[u8]> for Changed<T> {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0)
    }
}

impl<T: Pod> Vector<T> {
    const SHAPE: Shape = {
        assert!(size_of::<T>() > 0 && size_of::<T>() <= SEGMENT, "values of 1 byte to 64 KiB");
        Shape::of(size_of::<T>())
    };

    /// The vector named `name`, created if the pool has none.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if the name is taken by something else, or by a vector of values of another size; [`Error::Epoch`].
    pub fn open(pool: &Pool, name: &str) -> Result<Self> {
        Ok(Self { shared: Shared::open(pool, name, Self::SHAPE.size)?, of: PhantomData })
    }

    /// The value at `i`; `None` beyond the end.
    ///
    /// # Errors
    /// Inside a transaction of the same thread.
    pub fn get(&self, i: u64) -> Result<Option<T>> {
        self.shared.get(Self::SHAPE, i, pod_read_unaligned)
    }

    /// Stores `value` at `i`; `false` beyond the end.
    ///
    /// # Errors
    /// [`Error::Epoch`]; nothing has changed then.
    pub fn set(&self, thread: &mut Thread, i: u64, value: &T) -> Result<bool> {
        Ok(self.shared.update(Self::SHAPE, thread, i, |_| bytes_of(value))?.is_some())
    }

    /// Changes the value at `i` in one step; gives the new one, or `None` beyond the end. `f` runs under the value's lock,
    /// before the transaction: a panic in it changes nothing. It must be short, and can use no other container.
    ///
    /// # Errors
    /// [`Error::Epoch`]; nothing has changed then.
    pub fn update(&self, thread: &mut Thread, i: u64, f: impl FnOnce(&mut T)) -> Result<Option<T>> {
        let changed = self.shared.update(Self::SHAPE, thread, i, |bytes| {
            let mut value = pod_read_unaligned(bytes);
            f(&mut value);
            Changed(value)
        });
        Ok(changed?.map(|changed| changed.0))
    }

    /// Appends `value`; gives its index.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Epoch`] (out of space, ...); nothing has changed then.
    pub fn push(&self, thread: &mut Thread, value: &T) -> Result<u64> {
        self.shared.push(Self::SHAPE, thread, bytes_of(value))
    }

    /// Removes and gives the last value; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Epoch`]; nothing has changed then.
    pub fn pop(&self, thread: &mut Thread) -> Result<Option<T>> {
        self.shared.pop(Self::SHAPE, thread, pod_read_unaligned)
    }

    /// All values, in order, each copied when it is reached: what others push meanwhile is met, what they pop is not. Inside a
    /// transaction it ends.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<T> {
        let this = self.clone();
        (0..).map_while(move |i| this.get(i).ok().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_fill_whole_lines_and_segments_hold_whole_granules() {
        for size in 1..=4100 {
            let Shape { stride, per_granule, per_segment, .. } = Shape::of(size);
            assert!(stride >= size && (stride * per_granule).is_multiple_of(64), "size {size}");
            assert!(per_segment.is_multiple_of(per_granule) && per_segment * stride <= SEGMENT, "size {size}");
            assert!(stride * per_granule <= 4096 + 64, "size {size}");
            assert!(per_segment * stride > SEGMENT - 8192, "size {size} wastes space");
        }
        assert_eq!(Shape::of(SEGMENT).per_segment, 1);
    }
}
