//! The only way the containers write to the pool: every function here marks what it is about to store.
//!
//! What has just been allocated is marked already and may be written directly. `track_caller` lets the detector of forgotten marks
//! name the container's line.

use towa_epoch::Tx;

/// Marks `at` and stores `value`.
///
/// # Safety
/// `at` is valid for writes, inside the pool of `tx`, and nobody else writes its 64-byte line, or reads it, meanwhile.
#[inline]
#[track_caller]
pub(crate) unsafe fn put<T: Copy>(tx: &Tx<'_>, at: *mut T, value: T) {
    // SAFETY: the caller's promise, of the mark, too.
    unsafe {
        tx.mark(at.cast(), size_of::<T>());
        at.write(value);
    }
}

/// Like [`put`], and leaves the line alone if the value is there already.
///
/// # Safety
/// As [`put`].
#[inline]
#[track_caller]
pub(crate) unsafe fn put_if_changed<T: Copy + PartialEq>(tx: &Tx<'_>, at: *mut T, value: T) {
    // SAFETY: the caller's promise.
    unsafe {
        if at.read() != value {
            put(tx, at, value);
        }
    }
}

/// Marks and stores bytes.
///
/// # Safety
/// As [`put`], for all of `bytes.len()` bytes; `bytes` lies elsewhere.
#[inline]
#[track_caller]
pub(crate) unsafe fn put_bytes(tx: &Tx<'_>, at: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's promise, of the mark, too.
    unsafe {
        tx.mark(at, bytes.len());
        at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
    }
}

/// Marks the `count` values from `to` on and moves those at `from` there; the ranges may overlap.
///
/// # Safety
/// As [`put`], for all of the target.
#[inline]
#[track_caller]
pub(crate) unsafe fn shift<T: Copy>(tx: &Tx<'_>, from: *const T, to: *mut T, count: usize) {
    // SAFETY: the caller's promise, of the mark, too.
    unsafe {
        tx.mark(to.cast(), count * size_of::<T>());
        to.copy_from(from, count);
    }
}

/// `ptr` rounded up to a line: blocks are aligned to 16 only.
pub(crate) fn line_aligned(ptr: *mut u8) -> *mut u8 {
    ptr.map_addr(|a| a.next_multiple_of(64))
}
