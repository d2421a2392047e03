//! What the current thread is doing, so that a closure cannot start what would deadlock or break the order of epochs.
//!
//! Locks enclose transactions; a lock taken *inside* one could make an older epoch depend on a newer, and could wait for a
//! thread that waits for this very transaction. So: **inside a transaction nothing else may be locked**, inside a read only
//! further reads. This is checked at run time, per thread, for typed roots and for the containers alike.

use crate::{Error, Result};
use parking_lot::{RwLock, RwLockReadGuard};
use std::cell::Cell;

const WRITING: u32 = u32::MAX;

thread_local! {
    /// 0: free; WRITING: in a transaction; else: that many reads deep.
    static STATE: Cell<u32> = const { Cell::new(0) };
}

/// Ends what [`write()`] or [`read`] began, when dropped.
#[derive(Debug)]
#[must_use]
pub struct Scope(u32);

impl Scope {
    /// Whether a read of the same thread encloses this one. Its locks are then taken without waiting behind writers that wait
    /// for this thread (`read_recursive`); otherwise fairly, so that readers do not starve writers.
    pub fn is_nested(&self) -> bool {
        self.0 > 0
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        STATE.set(self.0);
    }
}

/// Enters a transaction.
///
/// # Errors
/// If the thread is in a transaction or a read already.
pub fn write() -> Result<Scope> {
    match STATE.replace(WRITING) {
        0 => Ok(Scope(0)),
        old => {
            STATE.set(old);
            Err(refuse(old, "a transaction"))
        }
    }
}

/// Enters a read.
///
/// # Errors
/// If the thread is in a transaction.
pub fn read() -> Result<Scope> {
    match STATE.get() {
        WRITING => Err(refuse(WRITING, "a read of something else")),
        depth => {
            STATE.set(depth + 1);
            Ok(Scope(depth))
        }
    }
}

/// For operations that run nobody else's code: fails where [`write()`] would, and enters nothing.
///
/// # Errors
/// If the thread is in a transaction or a read.
#[inline]
pub fn check_write() -> Result<()> {
    match STATE.get() {
        0 => Ok(()),
        old => Err(refuse(old, "a transaction")),
    }
}

/// Likewise for [`read`]; gives what [`Scope::is_nested`] would.
///
/// # Errors
/// If the thread is in a transaction.
#[inline]
pub fn check_read() -> Result<bool> {
    match STATE.get() {
        WRITING => Err(refuse(WRITING, "a read of something else")),
        depth => Ok(depth > 0),
    }
}

/// Locks for reading; see [`Scope::is_nested`].
#[inline]
pub fn lock<T>(lock: &RwLock<T>, is_nested: bool) -> RwLockReadGuard<'_, T> {
    if is_nested { lock.read_recursive() } else { lock.read() }
}

#[cold]
fn refuse(state: u32, what: &str) -> Error {
    let inside = if state == WRITING { "a transaction" } else { "a read" };
    Error::Usage(format!("{what} cannot start inside {inside} of the same thread: return from the closure first"))
}
