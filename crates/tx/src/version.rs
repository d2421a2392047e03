//! Version words: who changed an object last, and when.
//!
//! ```text
//!   bit 0: locked | bits 1..7: lane of the thread that stamped it | bits 7..64: its timestamp        0: nobody since the pool was opened
//! ```
//!
//! What must always hold: a version word that is not locked names the newest transaction that took effect on what it guards. That
//! transaction is durable once its lane has announced nothing, or something newer.

/// Bits before the timestamp.
const SHIFT: u32 = 7;

/// The version that a transaction of `lane` with this timestamp stamps.
#[inline]
pub(crate) fn stamp(lane: usize, timestamp: u64) -> u64 {
    timestamp << SHIFT | (lane as u64) << 1
}

/// Whether a transaction is writing what it guards.
#[inline]
pub(crate) fn is_locked(version: u64) -> bool {
    version & 1 != 0
}

/// The same, locked.
#[inline]
pub(crate) fn locked(version: u64) -> u64 {
    version | 1
}

/// The lane of who stamped it.
#[inline]
pub(crate) fn lane(version: u64) -> usize {
    (version >> 1 & 63) as usize
}

/// When that took effect.
#[inline]
pub(crate) fn timestamp(version: u64) -> u64 {
    version >> SHIFT
}
