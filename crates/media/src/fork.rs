//! Counts forks, in the child. What this crate maps does not cross `fork` (see [`Mapping`](crate::Mapping)), and neither do threads: a child
//! that goes on with its parent's pool would die at its first access, or wait for a thread that is not there. Layers above ask here and refuse.
//!
//! What must always hold: from the first mapping on, the count of a process differs from that of each process that it was forked from.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first mapping and this process.
#[inline]
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Whether this process was forked after the first mapping: what it has may be its parent's.
#[inline]
pub fn is_child() -> bool {
    count() != 0
}

/// Says why `what` of the pool at `pool` is refused in a child.
pub fn refused(pool: &str, what: &str) -> String {
    let why = "a child of the process that opened the pool, which has neither its memory nor its threads";
    format!("{pool}: {what} in {why}; open the pool there once its owner has closed it, or another one")
}

/// From now on forks are counted.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    extern "C" fn child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    ONCE.call_once(|| {
        // SAFETY: a function that lives for ever and does what is allowed in a child of fork(). If there is no memory for it, forks
        // are not noticed, as without it.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    });
}
