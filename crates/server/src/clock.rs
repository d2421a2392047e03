//! The server's clock: whole seconds since 1970, as memcached counts expiry times.
//!
//! The wall clock is read once, when the server starts, so that expiry goes on while the server is down. From then on the time since the
//! machine booted is added, a clock that cannot be set: an item with a minute to live lives a minute, even if NTP or an administrator
//! sets the wall clock. (Time that the machine sleeps counts.) memcached does the same. Reading the clock costs some nanoseconds and
//! happens once per batch of requests.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

/// Largest expiry time taken as seconds from now: 30 days. Greater ones are dates.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;
/// memcached pretends to have started this long ago, so that "one second after the start" is in the past.
const HEAD_START: u32 = 62;

/// A clock that tests can move.
#[derive(Debug)]
pub struct Clock {
    started: u32,
    /// The wall clock at the start, less the time since boot then.
    booted: Duration,
    offset: AtomicI64,
    /// The time at which it was stopped, or negative.
    stopped: AtomicI64,
}

impl Default for Clock {
    fn default() -> Self {
        Clock::starting_at(read(libc::CLOCK_REALTIME))
    }
}

impl Clock {
    /// A clock of a server that starts when the wall clock says `wall`.
    fn starting_at(wall: Duration) -> Clock {
        let booted = wall.saturating_sub(read(libc::CLOCK_BOOTTIME));
        let clock = Clock { started: 0, booted, offset: AtomicI64::new(0), stopped: AtomicI64::new(-1) };
        let started = clock.now();
        Clock { started, ..clock }
    }

    /// Seconds since 1970, by a clock that cannot be set.
    pub fn now(&self) -> u32 {
        let stopped = self.stopped.load(Relaxed);
        let base = if stopped >= 0 { stopped } else { self.running() };
        (base + self.offset.load(Relaxed)).clamp(0, i64::from(u32::MAX)) as u32
    }

    fn running(&self) -> i64 {
        (self.booted + read(libc::CLOCK_BOOTTIME)).as_secs() as i64
    }

    /// When the server started.
    pub fn started(&self) -> u32 {
        self.started
    }

    /// Moves the clock by `seconds`.
    pub fn shift(&self, seconds: i64) {
        self.offset.fetch_add(seconds, Relaxed);
    }

    /// Stops the clock, or lets it run again.
    pub fn stop(&self, stop: bool) {
        self.stopped.store(if stop { self.running() } else { -1 }, Relaxed);
    }

    /// The date that a client's expiry time means: 0 is never, up to 30 days count from `now`, more is a date, negative is at
    /// once. Dates before the server started become the same long-gone second.
    pub fn expiry(&self, given: i32, now: u32) -> u32 {
        let given = i64::from(given);
        let long_gone = self.started.saturating_sub(HEAD_START) + 1;
        match given {
            0 => 0,
            1..=RELATIVE_MAX => now.saturating_add(given as u32),
            _ if given < i64::from(long_gone) => long_gone,
            _ => given as u32,
        }
    }
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result; the call cannot fail with these clocks on Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_follows_the_30_day_rule() {
        let clock = Clock::default();
        let now = clock.now();
        assert_eq!(clock.expiry(0, now), 0);
        assert_eq!(clock.expiry(10, now), now + 10);
        assert_eq!(clock.expiry(2_592_000, now), now + 2_592_000);
        assert!(clock.expiry(2_592_001, now) < now);
        assert!(clock.expiry(-1, now) < now);
        assert!(clock.expiry(-1, now) > 0);
        assert_eq!(clock.expiry(now as i32 + 5, now), now + 5);
    }

    #[test]
    fn a_wall_clock_that_is_set_changes_nothing() {
        // The server started when the wall clock said this; it says something else now, as if it had been set since.
        let then = Duration::from_secs(1_700_000_000);
        let clock = Clock::starting_at(then);
        assert_eq!(clock.started(), 1_700_000_000);
        std::thread::sleep(Duration::from_millis(1100));
        let passed = clock.now() - clock.started();
        assert!((1..60).contains(&passed), "{passed} seconds passed");
    }

    #[test]
    fn tests_can_move_it() {
        let clock = Clock::default();
        clock.stop(true);
        let now = clock.now();
        clock.shift(100);
        assert_eq!(clock.now(), now + 100);
        clock.stop(false);
        assert!(clock.now() >= now + 100);
    }
}
