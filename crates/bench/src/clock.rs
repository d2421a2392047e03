//! A clock cheap enough to read after every operation: the time-stamp counter where it is invariant, else the monotonic clock.
//!
//! What must hold: reading it makes no system call; every engine reads the same clock equally often, so it cancels out of
//! the ratios.

use std::time::{Duration, Instant};

/// Reads ticks and turns them into nanoseconds and window numbers.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
    /// Nanoseconds per tick, as 32.32 fixed point.
    ns_per_tick: u64,
    origin: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    #[cfg(target_arch = "x86_64")]
    Tsc,
    Monotonic,
}

impl Clock {
    /// Picks the source and calibrates it (about 20 ms).
    pub fn new() -> Self {
        let origin = Instant::now();
        #[cfg(target_arch = "x86_64")]
        if tsc_is_invariant() {
            let (t0, i0) = (tsc(), Instant::now());
            while i0.elapsed() < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            let (ticks, ns) = (tsc().wrapping_sub(t0), i0.elapsed().as_nanos());
            if ticks > 0 {
                return Self { source: Source::Tsc, ns_per_tick: ((ns << 32) / u128::from(ticks)) as u64, origin };
            }
        }
        Self { source: Source::Monotonic, ns_per_tick: 1 << 32, origin }
    }

    /// Name of the source, for the report.
    pub fn name(&self) -> &'static str {
        match self.source {
            #[cfg(target_arch = "x86_64")]
            Source::Tsc => "tsc",
            Source::Monotonic => "clock_monotonic",
        }
    }

    /// Now, in ticks.
    #[inline]
    pub fn ticks(&self) -> u64 {
        match self.source {
            #[cfg(target_arch = "x86_64")]
            Source::Tsc => tsc(),
            Source::Monotonic => self.origin.elapsed().as_nanos() as u64,
        }
    }

    /// Nanoseconds in `ticks`.
    #[inline]
    pub fn ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32) as u64
    }

    /// Ticks in `duration`.
    pub fn ticks_in(&self, duration: Duration) -> u64 {
        ((duration.as_nanos() << 32) / u128::from(self.ns_per_tick)) as u64
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor, touches no memory, and Linux leaves it readable to user code.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Whether the counter runs at one rate through frequency changes and sleep (CPUID 8000_0007h, EDX bit 8).
#[cfg(target_arch = "x86_64")]
fn tsc_is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    // The maximal extended leaf is asked for first, so the second leaf is only read where it exists.
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_monotonic_clock() {
        let clock = Clock::new();
        let (t0, i0) = (clock.ticks(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let (ns, want) = (clock.ns(clock.ticks() - t0) as f64, i0.elapsed().as_nanos() as f64);
        // Loose: the two readings are not simultaneous on a busy machine.
        assert!((ns / want - 1.0).abs() < 0.05, "{ns} ns against {want} by {}", clock.name());
    }

    #[test]
    fn ticks_and_time_are_inverse() {
        let clock = Clock::new();
        let second = Duration::from_secs(1);
        let ns = clock.ns(clock.ticks_in(second));
        assert!(ns.abs_diff(1_000_000_000) < 1_000, "{ns}");
    }
}
