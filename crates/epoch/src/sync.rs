//! Atomics, from the standard library or from loom's model checker (`RUSTFLAGS="--cfg loom"`), and the asymmetric barrier.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// A store-load barrier between many fast sides and one slow side: if both sides call their half between their store and their
/// load, at least one of the two loads sees the other's store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AsymmetricBarrier {
    #[cfg_attr(any(loom, miri), allow(dead_code))]
    /// `membarrier(2)` interrupts every running thread of the process, so the fast half costs nothing.
    expedited: bool,
}

impl AsymmetricBarrier {
    /// Registers with the kernel where it offers `membarrier`; else both halves are full fences.
    pub fn new() -> Self {
        #[cfg(all(not(loom), target_os = "linux", not(miri)))]
        {
            const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
            // SAFETY: membarrier takes numbers only.
            let done = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) };
            Self { expedited: done == 0 }
        }
        #[cfg(any(loom, not(target_os = "linux"), miri))]
        Self { expedited: false }
    }

    /// The frequent half.
    #[inline(always)]
    pub fn fast(self) {
        #[cfg(not(loom))]
        if self.expedited {
            return std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// The rare half.
    pub fn slow(self) {
        #[cfg(all(not(loom), target_os = "linux", not(miri)))]
        if self.expedited {
            const PRIVATE_EXPEDITED: i32 = 1 << 3;
            // SAFETY: membarrier takes numbers only.
            let done = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) };
            assert_eq!(done, 0, "membarrier cannot fail once registered");
            return;
        }
        fence(Ordering::SeqCst);
    }
}
