//! `towa_vector_*`: items of one size by index.

use crate::container::{Used, bytes, give, guard_bool, guard_count, open, set};
use crate::error::{Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use crate::pool;
use crate::thread::{Handle as ThreadHandle, free_thread, refuse_in_transaction};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// `TOWA_VECTOR_ITEM_MAX`: bytes of the largest item.
pub const VECTOR_ITEM_MAX: usize = 64 << 10;

/// What a `towa_vector *` leads to.
#[derive(Debug)]
pub struct Vector(Used<towa_containers::Vector<[u8]>>);

impl Kind for Vector {
    const TAG: u64 = u64::from_le_bytes(*b"towa:vec");
    const WHAT: &'static str = "towa_vector";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<Vector> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

/// The vector named `name`, created if there is none.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_vector_open(
    pool: *mut Given<pool::Handle>,
    name: *const c_char,
    item_size: usize,
) -> *mut Given<Vector> {
    guard("towa_vector_open", || {
        if item_size == 0 || item_size > VECTOR_ITEM_MAX {
            return Err(Failure::invalid(format!(
                "towa_vector_open: items of {item_size} bytes; a vector holds items of 1 to {VECTOR_ITEM_MAX}"
            )));
        }
        // SAFETY: handed on.
        let used = unsafe { open(pool, name, |pool, name| towa_containers::Vector::<[u8]>::open_sized(pool, name, item_size)) }?;
        Ok(Given::give(Arc::new(Vector(used))))
    })
    .unwrap_or(ptr::null_mut())
}

/// Gives the handle back; the vector stays.
///
/// # Safety
/// `vector` is NULL or a vector's handle that nobody uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_vector_close(vector: *mut Given<Vector>) {
    if !vector.is_null() {
        // SAFETY: handed on.
        guard_code("towa_vector_close", || unsafe { Given::take(vector) }.map(drop));
    }
}

/// Copies the item at `index`; whether there is one.
///
/// # Safety
/// `vector` is NULL or a vector's handle; `item` is NULL or has room for an item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_vector_get(vector: *mut Given<Vector>, index: u64, item: *mut c_void) -> c_int {
    guard_bool("towa_vector_get", || {
        // SAFETY: handed on.
        let Vector(vector) = unsafe { &**Given::look(vector)? };
        refuse_in_transaction(vector.pool())?;
        // SAFETY: handed on.
        let found = vector.container.get_with(index, |found| unsafe { give(found, item, found.len(), ptr::null_mut()) })?;
        Ok(found.is_some())
    })
}

/// Replaces the item at `index`; whether there was one.
///
/// # Safety
/// `vector` is NULL or a vector's handle; `thread` is NULL or the calling thread's; `item` is NULL or an item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_vector_set(
    vector: *mut Given<Vector>,
    thread: *mut ThreadHandle,
    index: u64,
    item: *const c_void,
) -> c_int {
    guard_bool("towa_vector_set", || {
        // SAFETY: handed on.
        let Vector(vector) = unsafe { &**Given::look(vector)? };
        // SAFETY: an item, by this function's contract.
        let item = unsafe { bytes(item, vector.container.item_size(), "item") }?;
        Ok(vector.container.set_bytes(free_thread(vector.pool(), thread)?, index, item)?)
    })
}

/// Appends an item; `*index` becomes its index.
///
/// # Safety
/// As [`towa_vector_set`]; `index` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_vector_push(
    vector: *mut Given<Vector>,
    thread: *mut ThreadHandle,
    item: *const c_void,
    index: *mut u64,
) -> c_int {
    guard_code("towa_vector_push", || {
        // SAFETY: handed on.
        let Vector(vector) = unsafe { &**Given::look(vector)? };
        // SAFETY: an item, by this function's contract.
        let item = unsafe { bytes(item, vector.container.item_size(), "item") }?;
        let at = vector.container.push_bytes(free_thread(vector.pool(), thread)?, item)?;
        // SAFETY: by this function's contract.
        unsafe { set(index, at) };
        Ok(())
    })
}

/// Takes the last item; whether there was one.
///
/// # Safety
/// As [`towa_vector_set`]; `item` is NULL or has room for an item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_vector_pop(vector: *mut Given<Vector>, thread: *mut ThreadHandle, item: *mut c_void) -> c_int {
    guard_bool("towa_vector_pop", || {
        // SAFETY: handed on.
        let Vector(vector) = unsafe { &**Given::look(vector)? };
        let thread = free_thread(vector.pool(), thread)?;
        // SAFETY: handed on.
        let taken = vector.container.pop_with(thread, |last| unsafe { give(last, item, last.len(), ptr::null_mut()) })?;
        Ok(taken.is_some())
    })
}

/// Number of items, or a negative code.
///
/// # Safety
/// `vector` is NULL or a vector's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_vector_count(vector: *mut Given<Vector>) -> i64 {
    // SAFETY: handed on.
    guard_count("towa_vector_count", || Ok(unsafe { Given::look(vector) }?.0.container.len()))
}
