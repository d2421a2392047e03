//! A grace: the time until the transactions have ended that run at one moment.
//!
//! ```text
//!   who begins it                          transaction
//!     writes something                       slot = clock word
//!     slow barrier                           fast barrier
//!     notes each slot's word                 ... reads what was written
//!     waits until each is another            slot = 0
//! ```
//!
//! As with the epoch's end (`clock.rs`), one of the two sees the other: a transaction that is not waited for sees what
//! was written. What those that are waited for did happened before the end of the grace.
//!
//! A thread that has begun another transaction in the same epoch looks as if it were in the old one, so the end may be
//! seen late, at the latest when the epoch is over; it is never seen early. Transactions are shorter than the pauses
//! between them, so a look or two finds a pause.

use crate::clock::{Announcement, Clock};

/// A grace that has begun: slots and the words that stood there.
#[derive(Debug, Default)]
pub(crate) struct Grace(Vec<(usize, u64)>);

impl Grace {
    /// Begins. What the caller wrote before is seen by each transaction that is not waited for.
    pub fn begin<'a>(clock: &Clock, announcements: impl Iterator<Item = &'a Announcement>) -> Grace {
        clock.barrier();
        Grace(announcements.map(Announcement::word).enumerate().filter(|&(_, word)| word != 0).collect())
    }

    /// Whether those transactions have ended. What they wrote happened before.
    pub fn has_passed<'a>(&mut self, announcement: impl Fn(usize) -> &'a Announcement) -> bool {
        self.0.retain(|&(at, word)| announcement(at).word() == word);
        self.0.is_empty()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering::Relaxed};
    use loom::sync::Arc;
    use loom::thread;

    /// Transactions take something unless they see a flag. When the grace has passed that began after the flag was set,
    /// all that was taken is seen, and no more is taken.
    #[test]
    fn nothing_is_taken_after_the_grace() {
        loom::model(|| {
            let clock = Arc::new(Clock::new(1));
            let slot = Arc::new(Announcement::new());
            let (flag, taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (c, s, f, t) = (Arc::clone(&clock), Arc::clone(&slot), Arc::clone(&flag), Arc::clone(&taken));
            let user = thread::spawn(move || {
                for nth in 1..=2 {
                    c.enter(&s).expect("the gate is open");
                    if f.load(Relaxed) == 0 {
                        t.store(nth, Relaxed);
                    }
                    s.leave();
                }
            });
            // Without it loom never lets the user go first.
            thread::yield_now();
            flag.store(1, Relaxed);
            let mut grace = Grace::begin(&clock, std::iter::once(&*slot));
            let seen = grace.has_passed(|_| &slot).then(|| taken.load(Relaxed));
            user.join().expect("user does not panic");
            if let Some(seen) = seen {
                assert_eq!(taken.load(Relaxed), seen, "something was taken after the grace, or before it and was not seen");
            }
        });
    }
}
