//! The hardware path: the body inside one RTM transaction, tried again or given up by the reason of its abort.
//!
//! | reason | what follows |
//! |---|---|
//! | conflict | again, after a pause that grows, some times |
//! | capacity, or more writes than are noted | the software path at once: it would not fit next time either |
//! | version locked, sequence lock taken | again, once the lock is free |
//! | stale | the transaction ends |
//! | none given (interrupt, page fault, system call) | again twice, then the software path, which faults the page in |
//!
//! What must always hold: versions are stamped with the time read after everything else, and the sequence lock's words are read before
//! that: so no software transaction is taking effect when this one does. They are read last, for each software transaction writes them four
//! times, and aborts whoever has read them. One that took effect while this one ran wrote what this one had read before (then the
//! processor aborts this one) or what it read after (then it saw all of it). A body that read in the midst of it may see what never was
//! together; it does so inside a transaction that will not commit, through checked addresses.

use std::sync::atomic::Ordering::*;

use crossbeam_utils::Backoff;

use crate::error::Abort;
use crate::options::Retry;
use crate::rtm::{self, status};
use crate::stats::add;
use crate::thread::Core;
use crate::tx::{NOTED_MAX, Path, Tx, code};
use crate::{clock, version};

/// How a transaction ends here.
pub(crate) enum Outcome<R> {
    /// It took effect, with this timestamp.
    Done(R, u64),
    /// What its body was begun for has changed.
    Stale,
    /// It must be tried in software.
    Software,
}

const CONFLICTS_MAX: u32 = 24;
const BUSY_MAX: u32 = 64;
const SPURIOUS_MAX: u32 = 2;

/// Bytes of the longest record of a hardware transaction.
pub(crate) fn record_max() -> u64 {
    // Every word a run of its own, and the record's head.
    (NOTED_MAX as u64 * 16 + 64).next_multiple_of(64)
}

#[derive(Default)]
struct Tries {
    all: u32,
    conflicts: u32,
    busy: u32,
    spurious: u32,
}

/// Runs `body` until it takes effect or that is given up.
#[inline]
pub(crate) fn run<R>(core: &mut Core, body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, Abort>) -> Outcome<R> {
    let mut tries = Tries::default();
    loop {
        let status = rtm::begin();
        if status == rtm::STARTED {
            let Ok(result) = body(&mut Tx { core, path: Path::Hardware }) else { rtm::abort::<{ code::SOFTWARE }>() };
            let Some(beside_software) = core.engine.control.sequence.subscribe() else { rtm::abort::<{ code::BUSY }>() };
            if beside_software && !(core.noted.is_empty() && core.touched.is_empty()) {
                core.engine.control.sequence.disturb();
            }
            let timestamp = clock::tsc() - core.first_tick;
            for &at in &core.touched {
                core.view.store(at, version::stamp(core.lane, timestamp));
            }
            rtm::end();
            return Outcome::Done(result, timestamp);
        }
        if let Some(outcome) = after_abort(core, status, &mut tries) {
            return outcome;
        }
    }
}

/// Counts an abort, and waits if that helps; `None`: try again.
#[cold]
fn after_abort<R>(core: &mut Core, status: u32, tries: &mut Tries) -> Option<Outcome<R>> {
    let counts = &core.counts;
    let again = if status & status::EXPLICIT != 0 {
        match (status >> 24) as u8 {
            code::STALE => {
                count_time(core);
                return Some(Outcome::Stale);
            }
            code::BUSY => {
                add(&counts.aborts_explicit, 1);
                tries.busy += 1;
                core.engine.control.sequence.wait_even();
                wait(tries.busy);
                tries.busy < BUSY_MAX
            }
            code::FULL => {
                add(&counts.aborts_capacity, 1);
                false
            }
            _ => false,
        }
    } else if status & status::CAPACITY != 0 {
        add(&counts.aborts_capacity, 1);
        false
    } else if status & status::CONFLICT != 0 {
        add(&counts.aborts_conflict, 1);
        tries.conflicts += 1;
        wait(tries.conflicts);
        tries.conflicts < CONFLICTS_MAX
    } else {
        add(&counts.aborts_spurious, 1);
        tries.spurious += 1;
        tries.spurious <= SPURIOUS_MAX
    };
    tries.all += 1;
    let again = match core.engine.retry {
        Retry::ByCause => again,
        Retry::Blind(most) => tries.all <= most,
    };
    count_time(core);
    if again {
        // Nothing of the aborted run is left, so what is durable need not wait for it.
        let since = core.engine.control.no_later().max(core.since);
        core.since = since;
        core.engine.control.lanes[core.lane].announced.store(since, Release);
        return None;
    }
    Some(Outcome::Software)
}

fn wait(tries: u32) {
    let backoff = Backoff::new();
    (0..tries.min(7)).for_each(|_| backoff.snooze());
}

/// The time since the run was announced is lost.
fn count_time(core: &Core) {
    add(&core.counts.abort_ns, (clock::tsc() - core.first_tick).saturating_sub(core.since));
}
