//! The gate at transaction start: the only place that blocks or fails.
//!
//! Blocking inside a transaction would deadlock with the persister, which waits for that very transaction. So whatever must hold a
//! thread up - log space, a stop-the-world checkpoint, a poisoned or closed pool - closes the gate.

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;

/// Why the gate is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// The log has no room for more transactions.
    LogSpace = 1,
    /// A stop-the-world checkpoint is being taken.
    Checkpoint = 2,
    /// The pool failed, or is closed.
    Poisoned = 4,
    /// The warmer makes sure that no transaction runs.
    Warming = 8,
    /// The pool is being closed; then it is poisoned.
    Closing = 16,
}

/// The gate; see the module.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    reasons: Mutex<u8>,
    opened: Condvar,
}

impl Gate {
    /// Closes it.
    pub fn close(&self, clock: &Clock, reason: Reason) {
        let mut reasons = self.reasons.lock();
        *reasons |= reason as u8;
        clock.close_gate();
    }

    /// Takes a reason away; opens when none is left.
    pub fn open(&self, clock: &Clock, reason: Reason) {
        let mut reasons = self.reasons.lock();
        *reasons &= !(reason as u8);
        if *reasons == 0 {
            clock.open_gate();
        }
        // Also where another reason is left: it may be the one that a waiting thread does not wait for.
        self.opened.notify_all();
    }

    /// Waits until no reason is left that will pass. Gives the reason that it does not wait for: a failed pool, and, unless
    /// `for_log_space`, a full log.
    pub fn wait(&self, for_log_space: bool) -> Option<Reason> {
        let mut reasons = self.reasons.lock();
        while *reasons != 0 {
            if *reasons & Reason::Poisoned as u8 != 0 {
                return Some(Reason::Poisoned);
            }
            if !for_log_space && *reasons & Reason::LogSpace as u8 != 0 {
                return Some(Reason::LogSpace);
            }
            self.opened.wait(&mut reasons);
        }
        None
    }

    /// Wakes everybody, to see that the pool is poisoned.
    pub fn wake(&self) {
        let _reasons = self.reasons.lock();
        self.opened.notify_all();
    }

    /// Whether this reason holds now.
    pub fn is_closed_for(&self, reason: Reason) -> bool {
        *self.reasons.lock() & reason as u8 != 0
    }
}
