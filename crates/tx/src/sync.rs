//! The words that the loom models watch, and the time: from the standard library and the processor, or from loom's model checker
//! (`RUSTFLAGS="--cfg loom"`).
//!
//! What must always hold: what the models take for granted of time, and of what reads and writes at once, is no more than an x86-64 gives.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU64;

#[cfg(loom)]
pub(crate) use modelled::{AtomicU64, tick};

#[cfg(loom)]
mod modelled {
    use std::sync::atomic::Ordering;

    /// Ticks between two readings of the time: more than the clocks of two cores differ by.
    const STEP: u64 = 1000;

    loom::lazy_static! {
        static ref TIME: loom::sync::atomic::AtomicU64 = loom::sync::atomic::AtomicU64::new(STEP);
    }

    /// The time stamp counter: the same for all cores, and greater at each reading. It is no memory: reading it orders nothing.
    pub(crate) fn tick() -> u64 {
        TIME.fetch_add(STEP, Ordering::Relaxed)
    }

    /// loom's atomic word, of which what reads and writes is what it is on x86-64: a full barrier. (loom takes only fences for that.)
    #[derive(Debug, Default)]
    pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        pub fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }
        pub fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }
        pub fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }
        pub fn swap(&self, value: u64, order: Ordering) -> u64 {
            let old = self.0.swap(value, order);
            loom::sync::atomic::fence(Ordering::SeqCst);
            old
        }
        pub fn compare_exchange(&self, old: u64, new: u64, ok: Ordering, failed: Ordering) -> Result<u64, u64> {
            self.0.compare_exchange(old, new, ok, failed)
        }
        pub fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            let old = self.0.fetch_add(value, order);
            loom::sync::atomic::fence(Ordering::SeqCst);
            old
        }
        pub fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
            let old = self.0.fetch_or(bits, order);
            loom::sync::atomic::fence(Ordering::SeqCst);
            old
        }
        pub fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_sub(value, order)
        }
    }

    impl From<u64> for AtomicU64 {
        fn from(value: u64) -> Self {
            Self::new(value)
        }
    }
}
