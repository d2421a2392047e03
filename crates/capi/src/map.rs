//! `towa_map_*`: byte strings to byte strings.
//!
//! A `towa_map *` is either kind of map; the difference is in the order of visits and in `towa_map_range`.

use crate::container::{Used, bytes, give, guard_bool, guard_count, open};
use crate::error::{self, Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use crate::pool;
use crate::thread::{Handle as ThreadHandle, free_thread, refuse_in_transaction};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ops::Bound;
use std::ptr;
use std::sync::Arc;
use towa_containers::{HashMap, HashMapOptions, OrderedMap};

/// `towa_map_open`'s kind: unordered, the fastest.
pub const MAP_HASH: c_uint = 0;
/// `towa_map_open`'s kind: in order of keys.
pub const MAP_ORDERED: c_uint = 1;
/// `towa_map_range`'s flag: greatest key first.
pub const REVERSE: c_uint = 1;

/// Called for each item; what is not 0 ends the visit and is handed to the caller.
pub type Visit = unsafe extern "C" fn(*const c_void, usize, *const c_void, usize, *mut c_void) -> c_int;

#[derive(Clone, Debug)]
enum Either {
    Hash(HashMap),
    Ordered(OrderedMap),
}

/// What a `towa_map *` leads to.
#[derive(Debug)]
pub struct Map(Used<Either>);

impl Kind for Map {
    const TAG: u64 = u64::from_le_bytes(*b"towa:map");
    const WHAT: &'static str = "towa_map";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<Map> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

/// The map named `name`, created if there is none.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_open(pool: *mut Given<pool::Handle>, name: *const c_char, kind: c_uint) -> *mut Given<Map> {
    guard("towa_map_open", || {
        let found = |pool: &towa_epoch::Pool, name: &str| {
            Ok(match kind {
                MAP_HASH => Either::Hash(HashMap::open(pool, name, &HashMapOptions::default())?),
                _ => Either::Ordered(OrderedMap::open(pool, name)?),
            })
        };
        if kind > MAP_ORDERED {
            return Err(Failure::invalid(format!("towa_map_open: kind is {kind}, which towa.h does not define")));
        }
        // SAFETY: handed on.
        Ok(Given::give(Arc::new(Map(unsafe { open(pool, name, found) }?))))
    })
    .unwrap_or(ptr::null_mut())
}

/// Gives the handle back; the map stays.
///
/// # Safety
/// `map` is NULL or a map's handle that nobody uses during the call. (A visit that is under way may end.)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_close(map: *mut Given<Map>) {
    if !map.is_null() {
        // SAFETY: handed on.
        guard_code("towa_map_close", || unsafe { Given::take(map) }.map(drop));
    }
}

/// Gives `key` the value; whether it is new.
///
/// # Safety
/// `map` is NULL or a map's handle; `thread` is NULL or the calling thread's; `key` and `value` have the lengths said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_put(
    map: *mut Given<Map>,
    thread: *mut ThreadHandle,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    value_len: usize,
) -> c_int {
    guard_bool("towa_map_put", || {
        // SAFETY: handed on.
        let (map, key, value) = unsafe { (Given::look(map)?, bytes(key, key_len, "key")?, bytes(value, value_len, "value")?) };
        let thread = free_thread(map.0.pool(), thread)?;
        Ok(match &map.0.container {
            Either::Hash(m) => m.insert(thread, key, value),
            Either::Ordered(m) => m.insert(thread, key, value),
        }?)
    })
}

/// Removes `key`; whether it was there.
///
/// # Safety
/// As [`towa_map_put`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_delete(
    map: *mut Given<Map>,
    thread: *mut ThreadHandle,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    guard_bool("towa_map_delete", || {
        // SAFETY: handed on.
        let (map, key) = unsafe { (Given::look(map)?, bytes(key, key_len, "key")?) };
        let thread = free_thread(map.0.pool(), thread)?;
        Ok(match &map.0.container {
            Either::Hash(m) => m.remove(thread, key),
            Either::Ordered(m) => m.remove(thread, key),
        }?)
    })
}

/// Copies the value of `key`; whether it is there.
///
/// # Safety
/// As [`towa_map_put`]; `value` is NULL or `room` writable bytes; `value_len` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_get(
    map: *mut Given<Map>,
    key: *const c_void,
    key_len: usize,
    value: *mut c_void,
    room: usize,
    value_len: *mut usize,
) -> c_int {
    guard_bool("towa_map_get", || {
        // SAFETY: handed on.
        let (map, key) = unsafe { (Given::look(map)?, bytes(key, key_len, "key")?) };
        refuse_in_transaction(map.0.pool())?;
        // SAFETY: handed on.
        let copy = |found: &[u8]| unsafe { give(found, value, room, value_len) };
        let found = match &map.0.container {
            Either::Hash(m) => m.get_with(key, copy),
            Either::Ordered(m) => m.get_with(key, copy),
        }?;
        Ok(found.is_some())
    })
}

/// Number of items, or a negative code.
///
/// # Safety
/// `map` is NULL or a map's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_count(map: *mut Given<Map>) -> i64 {
    guard_count("towa_map_count", || {
        // SAFETY: handed on.
        let map = unsafe { Given::look(map) }?;
        refuse_in_transaction(map.0.pool())?;
        Ok(match &map.0.container {
            Either::Hash(m) => m.len(),
            Either::Ordered(m) => m.len(),
        }?)
    })
}

/// Calls `visit` with copies until it says stop.
///
/// # Safety
/// `visit` may be called with what [`Visit`] says and does not unwind.
unsafe fn visit_all(
    map: &Map,
    items: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    visit: Visit,
    arg: *mut c_void,
) -> Result<c_int, Failure> {
    for (key, value) in items {
        // SAFETY: by this function's contract; nothing is locked meanwhile.
        let stop = unsafe { visit(key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len(), arg) };
        if stop != 0 {
            return Ok(stop);
        }
        // What it began it must have ended: the rest cannot be read inside a transaction.
        refuse_in_transaction(map.0.pool())?;
    }
    Ok(error::OK)
}

/// Visits all items.
///
/// # Safety
/// `map` is NULL or a map's handle; `visit` is NULL or callable and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_each(map: *mut Given<Map>, visit: Option<Visit>, arg: *mut c_void) -> c_int {
    guard("towa_map_each", || {
        // SAFETY: handed on.
        let map = Arc::clone(unsafe { Given::look(map) }?); // there until the visit is over, even if `visit` closes it
        let visit = visit.ok_or_else(|| Failure::invalid("towa_map_each: nothing to call (NULL)"))?;
        refuse_in_transaction(map.0.pool())?;
        // SAFETY: handed on.
        unsafe {
            match &map.0.container {
                Either::Hash(m) => visit_all(&map, m.iter(), visit, arg),
                Either::Ordered(m) => visit_all(&map, m.iter(), visit, arg),
            }
        }
    })
    .unwrap_or_else(|code| code)
}

/// Visits the items of an ordered map with `from <= key < to`.
///
/// # Safety
/// As [`towa_map_each`]; `from` and `to` are NULL (no bound) or have the lengths said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_map_range(
    map: *mut Given<Map>,
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
        let map = Arc::clone(unsafe { Given::look(map) }?); // there until the visit is over, even if `visit` closes it
        let visit = visit.ok_or_else(|| Failure::invalid("towa_map_range: nothing to call (NULL)"))?;
        if flags & !REVERSE != 0 {
            return Err(Failure::invalid(format!("towa_map_range: flags are {flags:#x}, which towa.h does not define")));
        }
        let Either::Ordered(ordered) = &map.0.container else {
            return Err(Failure::usage(
                "towa_map_range: a hash map has no order; open the map as TOWA_MAP_ORDERED when it is created",
            ));
        };
        refuse_in_transaction(map.0.pool())?;
        // SAFETY: handed on.
        let (from, to) = unsafe {
            (
                if from.is_null() { Bound::Unbounded } else { Bound::Included(bytes(from, from_len, "lower bound")?) },
                if to.is_null() { Bound::Unbounded } else { Bound::Excluded(bytes(to, to_len, "upper bound")?) },
            )
        };
        let range = ordered.range((from, to));
        // SAFETY: handed on.
        unsafe { if flags & REVERSE != 0 { visit_all(&map, range.rev(), visit, arg) } else { visit_all(&map, range, visit, arg) } }
    })
    .unwrap_or_else(|code| code)
}
