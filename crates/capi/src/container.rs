//! What the containers' entries share: opening by name, counting, and bytes from and to C.
//!
//! An open container counts as a user of its pool, so that the pool is not closed under it. All operations begin and end their own
//! transactions, and are refused inside one.

use crate::error::{self, Failure, guard};
use crate::given::Given;
use crate::pool::{self, pool_of, root_name};
use crate::thread::refuse_in_transaction;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A container, counted as open while it is.
#[derive(Debug)]
pub(crate) struct Used<T> {
    /// Declared first, so that it goes before the pool's count.
    pub(crate) container: T,
    counted: Counted,
}

impl<T> Used<T> {
    pub(crate) fn pool(&self) -> &Arc<pool::Handle> {
        &self.counted.0
    }
}

impl<A, B> Used<(A, B)> {
    /// The container alone, and what came with it.
    pub(crate) fn split(self) -> (Used<A>, B) {
        let (container, beside) = self.container;
        (Used { container, counted: self.counted }, beside)
    }
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
pub(crate) unsafe fn open<T>(
    pool: *mut Given<pool::Handle>,
    name: *const c_char,
    open: impl FnOnce(&towa_epoch::Pool, &str) -> towa_containers::Result<T>,
) -> Result<Used<T>, Failure> {
    // SAFETY: handed on.
    let (pool, name) = unsafe { (pool_of(pool)?, root_name(name, "container name")?) };
    refuse_in_transaction(&pool)?;
    let container = open(&pool.pool, name).map_err(|e| match Failure::from(e) {
        // What is refused outside transactions is a name that is open as something else.
        f if f.code == error::EUSAGE && pool.pool.root(name).is_some() => Failure::new(error::ETYPE, f.message),
        f => f,
    })?;
    pool.containers.fetch_add(1, Ordering::AcqRel);
    Ok(Used { container, counted: Counted(pool) })
}

/// # Safety
/// `bytes` is NULL, which only a length of 0 allows, or `len` readable bytes that stay as they are during the call.
pub(crate) unsafe fn bytes<'a>(bytes: *const c_void, len: usize, what: &str) -> Result<&'a [u8], Failure> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid(format!("no {what} (NULL), but a length of {len}"))),
        (false, _) if len > u32::MAX as usize => {
            Err(Failure::invalid(format!("a {what} of {len} bytes is too long: at most {} bytes", u32::MAX)))
        }
        // SAFETY: by this function's contract.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) }),
    }
}

/// Gives `value` to C: as much as there is room for, and its length.
///
/// # Safety
/// `into` is NULL or `room` writable bytes; `len` is NULL or writable.
pub(crate) unsafe fn give(value: &[u8], into: *mut c_void, room: usize, len: *mut usize) {
    if !into.is_null() {
        // SAFETY: writable, by this function's contract, and C's, so it is no part of the container.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), into.cast(), value.len().min(room)) };
    }
    // SAFETY: by this function's contract.
    unsafe { set(len, value.len()) };
}

/// Stores a result where C wants it, if anywhere.
///
/// # Safety
/// `to` is NULL or writable; any alignment will do.
pub(crate) unsafe fn set<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: by this function's contract.
        unsafe { to.write_unaligned(value) };
    }
}

/// 1 for yes, 0 for no, or the code of a failure.
pub(crate) fn guard_bool(entry: &str, body: impl FnOnce() -> Result<bool, Failure>) -> c_int {
    guard(entry, body).map_or_else(|code| code, c_int::from)
}

/// A number of items, or the code of a failure.
pub(crate) fn guard_count(entry: &str, body: impl FnOnce() -> Result<u64, Failure>) -> i64 {
    guard(entry, || Ok(i64::try_from(body()?).unwrap_or(i64::MAX))).unwrap_or_else(i64::from)
}
