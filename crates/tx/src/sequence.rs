//! The sequence lock: which software transaction takes effect now (NOrec: Dalessandro, Spear, Scott, PPoPP 2010).
//!
//! ```text
//!   number   even: nobody takes effect     odd: one transaction in software takes effect
//!   running  software transactions that run: while there are any, hardware transactions that wrote move the number on by 2, and
//!            transactions under versions take the lock
//! ```
//!
//! What must always hold: a software transaction that saw one even number all the while saw one state of memory. A hardware transaction
//! reads both words: it aborts when a software transaction begins, or takes effect, beside it.

use std::sync::atomic::Ordering::*;

use crossbeam_utils::{Backoff, CachePadded};

use crate::sync::AtomicU64;

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Sequence {
    number: CachePadded<AtomicU64>,
    running: CachePadded<AtomicU64>,
}

impl Sequence {
    /// The number now.
    #[inline]
    pub fn number(&self) -> u64 {
        self.number.load(Acquire)
    }

    /// For a hardware transaction, at its end: whether it may take effect, and whether software transactions run beside it.
    #[inline]
    pub fn subscribe(&self) -> Option<bool> {
        let free = self.number.load(Relaxed).is_multiple_of(2);
        free.then(|| self.running.load(Relaxed) > 0)
    }

    /// For a hardware transaction that wrote, beside software ones: they must look again.
    #[inline]
    pub fn disturb(&self) {
        self.number.store(self.number.load(Relaxed) + 2, Relaxed);
    }

    /// Waits for an even number.
    pub fn wait_even(&self) -> u64 {
        let backoff = Backoff::new();
        loop {
            let number = self.number();
            if number.is_multiple_of(2) {
                return number;
            }
            backoff.snooze();
        }
    }

    /// Takes the lock if the number is still `snapshot`.
    pub fn try_take(&self, snapshot: u64) -> bool {
        self.number.compare_exchange(snapshot, snapshot + 1, AcqRel, Relaxed).is_ok()
    }

    /// Gives the lock back; the number is the next even one.
    pub fn give_back(&self) {
        let number = self.number.load(Relaxed);
        debug_assert!(!number.is_multiple_of(2), "given back, but not taken");
        self.number.store(number + 1, Release);
    }

    /// A software transaction begins.
    pub fn enter(&self) {
        self.running.fetch_add(1, SeqCst);
    }

    /// Whether software transactions run.
    #[inline]
    pub fn is_entered(&self) -> bool {
        self.running.load(SeqCst) > 0
    }

    /// It has ended.
    pub fn leave(&self) {
        self.running.fetch_sub(1, SeqCst);
    }
}
