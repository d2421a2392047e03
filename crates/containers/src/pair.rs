//! A key and its value, as both maps keep them in a block.
//!
//! ```text
//!   0        4          8        8+key_len     8+key_len+value_len     capacity
//!   | key_len | value_len | key ... | value ...   | unused ...            |
//! ```
//! A value is replaced in place when the block has room for the new one.

use crate::store::{put, put_bytes};
use crate::{Error, Result};
use towa_epoch::Tx;

#[repr(C)]
pub(crate) struct Pair {
    key_len: u32,
    value_len: u32,
}

/// Bytes that a pair takes.
pub(crate) fn size(key: &[u8], value: &[u8]) -> Result<usize> {
    for (what, len) in [("key", key.len()), ("value", value.len())] {
        if u32::try_from(len).is_err() {
            return Err(Error::TooLong { what, len });
        }
    }
    Ok(size_of::<Pair>() + key.len() + value.len())
}

impl Pair {
    /// Writes a pair into a block just allocated.
    ///
    /// # Safety
    /// `at` is valid for [`size`] bytes, aligned to 4, and already marked.
    pub(crate) unsafe fn init(at: *mut Pair, key: &[u8], value: &[u8]) {
        // SAFETY: room for all three parts is the caller's promise; lengths fit (checked by `size`).
        unsafe {
            at.write(Pair { key_len: key.len() as u32, value_len: value.len() as u32 });
            let bytes = at.add(1).cast::<u8>();
            bytes.copy_from_nonoverlapping(key.as_ptr(), key.len());
            bytes.add(key.len()).copy_from_nonoverlapping(value.as_ptr(), value.len());
        }
    }

    /// Bytes of key and value, as it says.
    ///
    /// # Safety
    /// `at` is valid for reads.
    pub(crate) unsafe fn len(at: *const Pair) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { u64::from((*at).key_len) + u64::from((*at).value_len) }
    }

    /// # Safety
    /// `at` is a live pair, not changed during `'a`.
    #[inline]
    pub(crate) unsafe fn key<'a>(at: *const Pair) -> &'a [u8] {
        // SAFETY: the key follows the header; live is the caller's promise.
        unsafe { std::slice::from_raw_parts(at.add(1).cast(), (*at).key_len as usize) }
    }

    /// # Safety
    /// As [`key`](Self::key).
    #[inline]
    pub(crate) unsafe fn value<'a>(at: *const Pair) -> &'a [u8] {
        // SAFETY: the value follows the key; live is the caller's promise.
        unsafe { std::slice::from_raw_parts(Self::value_at(at.cast_mut()), (*at).value_len as usize) }
    }

    /// Marks the value and gives it for writing.
    ///
    /// # Safety
    /// `at` is a live pair in the pool of `tx`, nobody else's during `'a`.
    pub(crate) unsafe fn value_mut<'a>(tx: &Tx<'_>, at: *mut Pair) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe {
            let (bytes, len) = (Self::value_at(at), (*at).value_len as usize);
            tx.mark(bytes, len);
            std::slice::from_raw_parts_mut(bytes, len)
        }
    }

    /// Replaces the value where it is, if it fits in a block of `capacity` bytes (from `at` on) and does not waste three
    /// quarters of it. Gives whether it did.
    ///
    /// # Safety
    /// As [`value_mut`](Self::value_mut); the block has that capacity.
    pub(crate) unsafe fn replace(tx: &Tx<'_>, at: *mut Pair, value: &[u8], capacity: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let needed = size_of::<Pair>() + (*at).key_len as usize + value.len();
            let same = value.len() == (*at).value_len as usize;
            if !same && (needed > capacity || (capacity > 256 && needed * 4 < capacity)) {
                return false;
            }
            if !same {
                put(tx, &raw mut (*at).value_len, value.len() as u32);
            }
            put_bytes(tx, Self::value_at(at), value);
            true
        }
    }

    unsafe fn value_at(at: *mut Pair) -> *mut u8 {
        // SAFETY: stays inside the pair's block.
        unsafe { at.add(1).cast::<u8>().add((*at).key_len as usize) }
    }
}
