//! Timestamps: the order in which transactions took effect.
//!
//! What must always hold: of two transactions that touch a common word, the one that took effect first has the smaller timestamp.
//!
//! - **TSC**: `rdtscp`, read inside the transaction after its reads (it waits for earlier loads) and before its end. Whoever reads what it
//!   wrote does so after its end. Assumed: the counter runs at one rate and shows the same on all cores, closer than a line takes
//!   from one core to another. The kernel checks that at boot and goes on checking; we take its word (`clocksource`), and look
//!   ourselves ([`tsc_is_sound`]).
//! - **Counter**: the sequence lock's own number, where there is no such TSC; for software transactions, which hold that lock as they
//!   take effect.
//!
//! Timestamps are compared within one opening of the pool only (the log's generation), for the TSC begins anew with the machine.

use std::sync::atomic::{AtomicU64, Ordering::*};

/// Where timestamps come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The processor's time stamp counter.
    Tsc,
    /// A counter of the pool.
    Counter,
}

/// Reads the TSC once all earlier loads are done.
#[inline(always)]
pub(crate) fn tsc() -> u64 {
    #[cfg(loom)]
    return crate::sync::tick();
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    {
        let mut aux = 0;
        // SAFETY: reads a counter.
        unsafe { std::arch::x86_64::__rdtscp(&mut aux) }
    }
    #[cfg(not(any(all(target_arch = "x86_64", not(miri)), loom)))]
    0
}

/// Reads the TSC, perhaps before earlier loads are done: for lower bounds, and to measure with. Half the cost of [`tsc`].
#[inline(always)]
pub(crate) fn tsc_about() -> u64 {
    #[cfg(loom)]
    return crate::sync::tick();
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    {
        // SAFETY: reads a counter.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(any(all(target_arch = "x86_64", not(miri)), loom)))]
    0
}

/// What is loaded after this is loaded after the time was read.
#[inline(always)]
pub(crate) fn before_loads() {
    #[cfg(loom)]
    loom::sync::atomic::fence(SeqCst);
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: a fence.
    unsafe {
        std::arch::x86_64::_mm_lfence()
    };
    // Where the time is a counter, its load was an acquiring one.
}

/// The best clock of this machine.
pub(crate) fn best() -> Clock {
    static SOUND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if *SOUND.get_or_init(tsc_is_sound) { Clock::Tsc } else { Clock::Counter }
}

/// Whether the kernel trusts the TSC, and two threads that hand a word to and fro never see it go back.
fn tsc_is_sound() -> bool {
    if cfg!(not(all(target_arch = "x86_64", not(miri)))) {
        return false;
    }
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|s| s.trim() == "tsc") && handed_over_in_order(2000)
}

/// Two threads take turns: each reads the other's time, then its own, which must be later.
fn handed_over_in_order(turns: u64) -> bool {
    let (turn, last) = (AtomicU64::new(0), AtomicU64::new(0));
    let play = |me: u64| {
        let mut ordered = true;
        for n in (me..turns).step_by(2) {
            while turn.load(Acquire) != n {
                std::thread::yield_now();
            }
            let before = last.load(Acquire);
            let now = tsc();
            ordered &= now > before;
            last.store(now, Release);
            turn.store(n + 1, Release);
        }
        ordered
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(1));
        let mine = play(0);
        other.join().unwrap_or(false) && mine
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_sound_clock_never_goes_back() {
        if super::best() == super::Clock::Counter {
            eprintln!("SKIPPED: no sound TSC here");
            return;
        }
        assert!(super::handed_over_in_order(20_000));
    }
}
