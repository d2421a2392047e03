//! `towa_map_*` and `towa_queue_*`: the containers, with byte strings for keys and values.
//!
//! A `towa_map *` is either kind of map; the difference is in the order of visits and in `towa_map_range`. Handles count as users of
//! their pool, so that it is not closed under them. All operations begin and end their own transactions.

use crate::error::{self, Failure, guard, guard_code};
use crate::pool::{self, pool_of, utf8};
use crate::thread::{Handle as ThreadHandle, free_thread, refuse_in_transaction};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ops::Bound;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towa_containers::{HashMap, HashMapOptions, OrderedMap, Queue};

/// `towa_map_open`'s kind: unordered, the fastest.
pub const MAP_HASH: c_uint = 0;
/// `towa_map_open`'s kind: in order of keys.
pub const MAP_ORDERED: c_uint = 1;
/// `towa_map_range`'s flag: greatest key first.
pub const REVERSE: c_uint = 1;

/// Called for each item; what is not 0 ends the visit and is handed to the caller.
pub type Visit = unsafe extern "C" fn(*const c_void, usize, *const c_void, usize, *mut c_void) -> c_int;

#[derive(Debug)]
enum Kind {
    Hash(HashMap),
    Ordered(OrderedMap),
}

/// What a `towa_map *` points to.
#[derive(Debug)]
pub struct Map(Used<Kind>);

/// What a `towa_queue *` points to.
#[derive(Debug)]
pub struct FifoQueue(Used<Queue>);

/// A container, counted as open while it is.
#[derive(Debug)]
struct Used<T> {
    /// Declared first, so that it goes before the pool's count.
    container: T,
    pool: Counted,
}

#[derive(Debug)]
struct Counted(Arc<pool::Handle>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.containers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// # Safety
/// `pool` is NULL or open; `name` is NULL or a C string.
unsafe fn open<T>(
    pool: *mut pool::Handle,
    name: *const c_char,
    open: impl FnOnce(&towa_epoch::Pool, &str) -> towa_containers::Result<T>,
) -> Result<Used<T>, Failure> {
    // SAFETY: handed on.
    let pool = unsafe { pool_of(pool) }?;
    // SAFETY: handed on.
    let name = unsafe { utf8(name, "container name") }?;
    refuse_in_transaction(&pool)?;
    let container = open(&pool.pool, name).map_err(|e| match Failure::from(e) {
        // What is refused outside transactions is a name that is open as something else.
        f if f.code == error::EUSAGE && pool.pool.root(name).is_some() => Failure::new(error::ETYPE, f.message),
        f => f,
    })?;
    pool.containers.fetch_add(1, Ordering::AcqRel);
    Ok(Used { container, pool: Counted(pool) })
}

/// # Safety
/// `bytes` is NULL, which only a length of 0 allows, or `len` readable bytes that stay as they are during the call.
unsafe fn bytes<'a>(bytes: *const c_void, len: usize, what: &str) -> Result<&'a [u8], Failure> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid(format!("no {what} (NULL), but a length of {len}"))),
        // SAFETY: by this function's contract.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) }),
    }
}

/// # Safety
/// `at` is NULL or a container that is not closed.
unsafe fn there<'a, T>(at: *mut T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: by this function's contract.
    unsafe { at.as_ref() }.ok_or_else(|| Failure::invalid(format!("no {what} (NULL)")))
}

/// Gives `value` to C: as much as there is room for, and its length.
///
/// # Safety
/// `into` is NULL or `room` writable bytes; `len` is NULL or writable.
unsafe fn give(value: &[u8], into: *mut c_void, room: usize, len: *mut usize) {
    if !into.is_null() {
        // SAFETY: writable, by this function's contract, and C's, so it is no part of the container.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), into.cast(), value.len().min(room)) };
    }
    if !len.is_null() {
        // SAFETY: by this function's contract.
        unsafe { *len = value.len() };
    }
}

/// 1 for yes, 0 for no, or the code of a failure.
fn guard_bool(entry: &str, body: impl FnOnce() -> Result<bool, Failure>) -> c_int {
    guard(entry, body).map_or_else(|code| code, c_int::from)
}

/// The map named `name`, created if there is none.
///
/// # Safety
/// `pool` is NULL or open; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_open(pool: *mut pool::Handle, name: *const c_char, kind: c_uint) -> *mut Map {
    guard("towa_map_open", || {
        // SAFETY: handed on.
        let used = unsafe {
            open(pool, name, |pool, name| match kind {
                MAP_HASH => HashMap::open(pool, name, &HashMapOptions::default()).map(Kind::Hash).map(Some),
                MAP_ORDERED => OrderedMap::open(pool, name).map(Kind::Ordered).map(Some),
                _ => Ok(None),
            })
        }?;
        let Used { container, pool } = used;
        let container =
            container.ok_or_else(|| Failure::invalid(format!("towa_map_open: kind is {kind}, which towa.h does not define")))?;
        Ok(Box::into_raw(Box::new(Map(Used { container, pool }))))
    })
    .unwrap_or(ptr::null_mut())
}

/// Gives the handle back; the map stays.
///
/// # Safety
/// `map` is NULL or not closed, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_close(map: *mut Map) {
    if !map.is_null() {
        guard_code("towa_map_close", || {
            // SAFETY: from Box::into_raw in `towa_map_open`, given back once, by this function's contract.
            drop(unsafe { Box::from_raw(map) });
            Ok(())
        });
    }
}

/// Gives `key` the value; whether it is new.
///
/// # Safety
/// `map` is NULL or not closed; `thread` is NULL or the calling thread's; `key` and `value` have the lengths said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_put(
    map: *mut Map,
    thread: *mut ThreadHandle,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> c_int {
    guard_bool("towa_map_put", || {
        // SAFETY: handed on.
        let (map, key, value) = unsafe { (there(map, "map")?, bytes(key, key_len, "key")?, bytes(value, value_len, "value")?) };
        let thread = free_thread(&map.0.pool.0, thread)?;
        Ok(match &map.0.container {
            Kind::Hash(m) => m.insert(thread, key, value),
            Kind::Ordered(m) => m.insert(thread, key, value),
        }?)
    })
}

/// Removes `key`; whether it was there.
///
/// # Safety
/// As [`towa_map_put`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_delete(map: *mut Map, thread: *mut ThreadHandle, key: *const c_void, key_len: usize) -> c_int {
    guard_bool("towa_map_delete", || {
        // SAFETY: handed on.
        let (map, key) = unsafe { (there(map, "map")?, bytes(key, key_len, "key")?) };
        let thread = free_thread(&map.0.pool.0, thread)?;
        Ok(match &map.0.container {
            Kind::Hash(m) => m.remove(thread, key),
            Kind::Ordered(m) => m.remove(thread, key),
        }?)
    })
}

/// Copies the value of `key`; whether it is there.
///
/// # Safety
/// As [`towa_map_put`]; `value` is NULL or `room` writable bytes; `value_len` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_get(
    map: *mut Map,
    key: *const c_void,
    key_len: usize,
    value: *mut c_void,
    room: usize,
    value_len: *mut usize,
) -> c_int {
    guard_bool("towa_map_get", || {
        // SAFETY: handed on.
        let (map, key) = unsafe { (there(map, "map")?, bytes(key, key_len, "key")?) };
        refuse_in_transaction(&map.0.pool.0)?;
        // SAFETY: handed on.
        let copy = |found: &[u8]| unsafe { give(found, value, room, value_len) };
        let found = match &map.0.container {
            Kind::Hash(m) => m.get_with(key, copy),
            Kind::Ordered(m) => m.get_with(key, copy),
        }?;
        Ok(found.is_some())
    })
}

/// Number of items, or a negative code.
///
/// # Safety
/// `map` is NULL or not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_count(map: *mut Map) -> i64 {
    guard("towa_map_count", || {
        // SAFETY: handed on.
        let map = unsafe { there(map, "map") }?;
        refuse_in_transaction(&map.0.pool.0)?;
        let count = match &map.0.container {
            Kind::Hash(m) => m.len(),
            Kind::Ordered(m) => m.len(),
        }?;
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    })
    .unwrap_or_else(i64::from)
}

/// Calls `visit` with copies until it says stop.
///
/// # Safety
/// `visit` may be called with what [`Visit`] says and does not unwind.
unsafe fn visit_all(items: impl Iterator<Item = (Vec<u8>, Vec<u8>)>, visit: Visit, arg: *mut c_void) -> c_int {
    for (key, value) in items {
        // SAFETY: by this function's contract; nothing is locked meanwhile.
        let stop = unsafe { visit(key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len(), arg) };
        if stop != 0 {
            return stop;
        }
    }
    error::OK
}

/// Visits all items.
///
/// # Safety
/// `map` is NULL or not closed; `visit` is NULL or callable and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_each(map: *mut Map, visit: Option<Visit>, arg: *mut c_void) -> c_int {
    guard("towa_map_each", || {
        // SAFETY: handed on.
        let map = unsafe { there(map, "map") }?;
        let visit = visit.ok_or_else(|| Failure::invalid("towa_map_each: nothing to call (NULL)"))?;
        refuse_in_transaction(&map.0.pool.0)?;
        // SAFETY: handed on.
        Ok(unsafe {
            match &map.0.container {
                Kind::Hash(m) => visit_all(m.iter(), visit, arg),
                Kind::Ordered(m) => visit_all(m.iter(), visit, arg),
            }
        })
    })
    .unwrap_or_else(|code| code)
}

/// Visits the items of an ordered map with `from <= key < to`.
///
/// # Safety
/// As [`towa_map_each`]; `from` and `to` are NULL (no bound) or have the lengths said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_range(
    map: *mut Map,
    from: *const c_void,
    from_len: usize,
    to: *const c_void,
    to_len: usize,
    flags: c_uint,
    visit: Option<Visit>,
    arg: *mut c_void,
) -> c_int {
    guard("towa_map_range", || {
        // SAFETY: handed on.
        let map = unsafe { there(map, "map") }?;
        let visit = visit.ok_or_else(|| Failure::invalid("towa_map_range: nothing to call (NULL)"))?;
        if flags & !REVERSE != 0 {
            return Err(Failure::invalid(format!("towa_map_range: flags are {flags:#x}, which towa.h does not define")));
        }
        let Kind::Ordered(ordered) = &map.0.container else {
            return Err(Failure::usage(
                "towa_map_range: a hash map has no order; open the map as TOWA_MAP_ORDERED when it is created",
            ));
        };
        refuse_in_transaction(&map.0.pool.0)?;
        // SAFETY: handed on.
        let (from, to) = unsafe {
            (
                if from.is_null() { Bound::Unbounded } else { Bound::Included(bytes(from, from_len, "lower bound")?) },
                if to.is_null() { Bound::Unbounded } else { Bound::Excluded(bytes(to, to_len, "upper bound")?) },
            )
        };
        let range = ordered.range((from, to));
        // SAFETY: handed on.
        Ok(unsafe { if flags & REVERSE != 0 { visit_all(range.rev(), visit, arg) } else { visit_all(range, visit, arg) } })
    })
    .unwrap_or_else(|code| code)
}

/// The queue named `name`, created if there is none.
///
/// # Safety
/// `pool` is NULL or open; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_open(pool: *mut pool::Handle, name: *const c_char) -> *mut FifoQueue {
    // SAFETY: handed on.
    guard("towa_queue_open", || unsafe { open(pool, name, Queue::open) })
        .map_or(ptr::null_mut(), |q| Box::into_raw(Box::new(FifoQueue(q))))
}

/// Gives the handle back; the queue stays.
///
/// # Safety
/// `queue` is NULL or not closed, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_close(queue: *mut FifoQueue) {
    if !queue.is_null() {
        guard_code("towa_queue_close", || {
            // SAFETY: from Box::into_raw in `towa_queue_open`, given back once, by this function's contract.
            drop(unsafe { Box::from_raw(queue) });
            Ok(())
        });
    }
}

/// Appends an item.
///
/// # Safety
/// `queue` is NULL or not closed; `thread` is NULL or the calling thread's; `item` has the length said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_push(
    queue: *mut FifoQueue,
    thread: *mut ThreadHandle,
    item: *const c_void,
    len: usize,
) -> c_int {
    guard_code("towa_queue_push", || {
        // SAFETY: handed on.
        let (queue, item) = unsafe { (there(queue, "queue")?, bytes(item, len, "item")?) };
        Ok(queue.0.container.push(free_thread(&queue.0.pool.0, thread)?, item)?)
    })
}

/// Takes the oldest item; whether there was one. `*item` becomes a copy from `malloc`.
///
/// # Safety
/// As [`towa_queue_push`]; `item` and `len` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_pop(
    queue: *mut FifoQueue,
    thread: *mut ThreadHandle,
    item: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_bool("towa_queue_pop", || {
        // SAFETY: handed on.
        let queue = unsafe { there(queue, "queue") }?;
        if item.is_null() || len.is_null() {
            return Err(Failure::invalid("towa_queue_pop: nowhere to put the item or its length (NULL)"));
        }
        let Some(taken) = queue.0.container.pop(free_thread(&queue.0.pool.0, thread)?)? else { return Ok(false) };
        // SAFETY: malloc takes any size; one byte at least, so that NULL means out of memory.
        let copy = unsafe { libc::malloc(taken.len().max(1)) };
        if copy.is_null() {
            // The item is taken already, as it is when Rust's own copy of it does not fit.
            std::alloc::handle_alloc_error(std::alloc::Layout::for_value(&*taken));
        }
        // SAFETY: `copy` has the room; `item` and `len` are writable, by this function's contract.
        unsafe {
            ptr::copy_nonoverlapping(taken.as_ptr(), copy.cast(), taken.len());
            *item = copy;
            *len = taken.len();
        }
        Ok(true)
    })
}

/// Number of items, or a negative code.
///
/// # Safety
/// `queue` is NULL or not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_count(queue: *mut FifoQueue) -> i64 {
    // SAFETY: handed on.
    guard("towa_queue_count", || Ok(unsafe { there(queue, "queue") }?.0.container.len() as i64)).unwrap_or_else(i64::from)
}
