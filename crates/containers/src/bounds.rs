//! Looking before following: addresses and lengths found in a pool that may be damaged.
//!
//! What must always hold: a verification follows no address that was not looked at here, so a damaged container is a message and not
//! a crash.

use crate::pair::Pair;
use crate::{Error, Result};
use towa_epoch::Pool;

/// Refuses an address that cannot hold a `T` and `more` bytes behind it.
pub(crate) fn check<T>(pool: &Pool, at: *const T, more: u64, what: &str) -> Result<()> {
    let (base, heap_len) = pool.heap_range();
    let (address, len) = (at.addr(), (size_of::<T>() as u64).saturating_add(more));
    let aligned = address.is_multiple_of(align_of::<T>());
    if aligned && address >= base && len <= heap_len && (address - base) as u64 <= heap_len - len {
        return Ok(());
    }
    Err(Error::Damaged(format!("{what} is at {at:p} with {len} bytes, which is not in the heap")))
}

/// The same for a key with its value.
pub(crate) fn check_pair(pool: &Pool, at: *const Pair, what: &str) -> Result<()> {
    check(pool, at, 0, what)?;
    // SAFETY: the two lengths lie in the heap.
    let len = unsafe { Pair::len(at) };
    check(pool, at, len, what)
}
