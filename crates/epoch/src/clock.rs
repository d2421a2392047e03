//! The epoch hand-over: how a transaction takes its epoch so that the persister cannot miss it.
//!
//! ```text
//!   clock word:  | epoch (63 bits) | gate |        slot word (one per thread):  0, or the clock word its transaction took
//!
//!   transaction start                       persister
//!     w = clock                               clock = w + 2          (next epoch)
//!     slot = w                                slow barrier
//!     fast barrier                            for each slot: wait while slot == w
//!     if clock != w: slot = 0, again          -- every transaction of the old epoch has ended
//! ```
//!
//! Either the persister's scan sees the slot, or the transaction's second look sees the new clock and takes the new epoch: the
//! barrier's halves stand between store and load on both sides. The persister waits for a thread to have *left the transaction it
//! was in*, not for it to be idle, so back-to-back transactions do not starve it.
//!
//! The gate bit sends transaction starts to the slow path (`gate.rs`); setting it is a change of the clock like any other, so
//! the same second look catches it.

use crate::sync::{AsymmetricBarrier, AtomicU64, Ordering::*};

const GATE: u64 = 1;

/// The epoch that new transactions join, and the gate.
#[derive(Debug)]
pub(crate) struct Clock {
    word: AtomicU64,
    barrier: AsymmetricBarrier,
}

/// One thread's announcement of the transaction it is in.
#[derive(Debug)]
pub(crate) struct Announcement(AtomicU64);

impl Announcement {
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether a transaction runs.
    pub fn is_busy(&self) -> bool {
        self.word() != 0
    }

    /// The clock word that the running transaction took, or 0.
    pub fn word(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Whether a transaction of `epoch` runs. Once false for an epoch that the clock has left, false for ever, and everything
    /// those transactions wrote happened before.
    pub fn is_in(&self, epoch: u64) -> bool {
        self.0.load(Acquire) >> 1 == epoch
    }

    /// The transaction has ended.
    #[inline]
    pub fn leave(&self) {
        self.0.store(0, Release);
    }
}

impl Clock {
    pub fn new(epoch: u64) -> Self {
        Self { word: AtomicU64::new(epoch << 1), barrier: AsymmetricBarrier::new() }
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.word.load(Acquire) >> 1
    }

    /// Announces a transaction and gives its epoch; `None` while the gate is closed.
    #[inline]
    pub fn enter(&self, announcement: &Announcement) -> Option<u64> {
        loop {
            let word = self.word.load(Acquire);
            if word & GATE != 0 {
                return None;
            }
            // Release: the persister that finds this transaction where it looks for an earlier one of the thread must have seen the
            // earlier one's end, and what it wrote. (Release sequences no longer contain later stores of the same thread.)
            announcement.0.store(word, Release);
            self.barrier.fast();
            if self.word.load(Acquire) == word {
                return Some(word >> 1);
            }
            announcement.0.store(0, Release);
        }
    }

    /// Starts the next epoch and gives the one that ended. Afterwards every transaction of it is announced.
    pub fn advance(&self) -> u64 {
        let old = self.word.fetch_add(2, AcqRel);
        self.barrier.slow();
        old >> 1
    }

    /// Every transaction that began before is announced afterwards; one that begins later sees what the caller wrote before.
    pub fn barrier(&self) {
        self.barrier.slow();
    }

    /// Closes the gate. Afterwards every transaction that got through is announced.
    pub fn close_gate(&self) {
        self.word.fetch_or(GATE, AcqRel);
        self.barrier.slow();
    }

    /// Opens the gate.
    pub fn open_gate(&self) {
        self.word.fetch_and(!GATE, AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A transaction that the persister did not wait for must not be in the old epoch.
    #[test]
    fn persister_never_misses_a_transaction_of_the_old_epoch() {
        loom::model(|| {
            let clock = Arc::new(Clock::new(1));
            let slot = Arc::new(Announcement::new());
            let written = Arc::new(AtomicU64::new(0));
            let (c, s, w) = (Arc::clone(&clock), Arc::clone(&slot), Arc::clone(&written));
            let user = thread::spawn(move || {
                let epoch = c.enter(&s).expect("the gate is open");
                w.store(epoch, Relaxed);
                s.leave();
                epoch
            });
            let old = clock.advance();
            let busy = slot.is_in(old);
            let seen = if busy { None } else { Some(written.load(Relaxed)) };
            let epoch = user.join().expect("user does not panic");
            // Not busy: a transaction of the old epoch is over and its write is visible, or it is of the new epoch.
            if seen == Some(0) {
                assert_eq!(epoch, old + 1, "a transaction of the old epoch ran after the persister looked");
            }
        });
    }

    /// The same for back-to-back transactions: one of the new epoch, found where one of the old was looked for, must not hide what the
    /// old one wrote.
    #[test]
    fn a_later_transaction_does_not_hide_an_earlier_one() {
        loom::model(|| {
            let clock = Arc::new(Clock::new(1));
            let slot = Arc::new(Announcement::new());
            let written = Arc::new(AtomicU64::new(0));
            let (c, s, w) = (Arc::clone(&clock), Arc::clone(&slot), Arc::clone(&written));
            let user = thread::spawn(move || {
                let mut in_old = 0;
                for _ in 0..2 {
                    if c.enter(&s).expect("the gate is open") == 1 {
                        in_old += 1;
                        w.store(in_old, Relaxed);
                    }
                    s.leave();
                }
                in_old
            });
            let old = clock.advance();
            let seen = (!slot.is_in(old)).then(|| written.load(Relaxed));
            let in_old = user.join().expect("user does not panic");
            if let Some(seen) = seen {
                assert_eq!(seen, in_old, "a transaction of the old epoch was missed, or what it wrote");
            }
        });
    }

    /// Nobody passes a closed gate unseen.
    #[test]
    fn closed_gate_is_seen_or_sees() {
        loom::model(|| {
            let clock = Arc::new(Clock::new(1));
            let slot = Arc::new(Announcement::new());
            let (c, s) = (Arc::clone(&clock), Arc::clone(&slot));
            let user = thread::spawn(move || c.enter(&s).is_some());
            clock.close_gate();
            let busy = slot.is_busy();
            if user.join().expect("user does not panic") {
                assert!(busy, "a transaction passed the closed gate unannounced");
            }
        });
    }
}
