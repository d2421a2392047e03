//! The pacer: spreads the persister's work over the interval, in slices too short to be felt.
//!
//! A persister that works through an epoch in one burst takes memory bandwidth from users, and, where there are more threads than
//! cores, a core: the scheduler then holds a user up for milliseconds (the paper's bad case). So the persister works for a slice and
//! sleeps for as long as the epoch's size allows: an epoch that takes 20 ms of work is stretched over some 90 of the 100 ms.
//! One that takes longer than that is worked through without sleeping: durability comes first.
//!
//! Reading an epoch's lines is stretched only where cores are short. While it lasts, users save lines before overwriting them, so
//! otherwise the shorter the better.

use std::time::{Duration, Instant};

/// Work between sleeps.
const SLICE: Duration = Duration::from_micros(100);
/// Share of the interval that an epoch's work may be stretched over.
const STRETCH: f64 = 0.9;
/// Below this a sleep is not worth its wake-up.
const SLEEP_MIN: Duration = Duration::from_micros(30);
/// Never sleep longer at once: somebody may be waiting for the epoch.
const SLEEP_MAX: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Pacer {
    /// Nanoseconds of work a line costs, a moving average.
    ns_per_line: f64,
    slice_began: Instant,
    /// Sleep per unit of work; 0: do not sleep.
    sleep_ratio: f64,
    worked: Duration,
    lines: u64,
}

impl Pacer {
    pub fn new() -> Pacer {
        Pacer { ns_per_line: 50.0, slice_began: Instant::now(), sleep_ratio: 0.0, worked: Duration::ZERO, lines: 0 }
    }

    /// Makes the calling thread one that users hardly feel: it sleeps for tens of microseconds where asked to (the kernel would add 50
    /// of slack), never takes a running thread's core when it wakes (`SCHED_BATCH`: an idle core comes for it instead), and where it
    /// must share a core, changes over in short slices (Linux 6.12; older kernels ignore the wish). Whatever is refused is left out.
    pub fn prepare_thread() {
        #[cfg(target_os = "linux")]
        // SAFETY: prctl and the scheduler's calls take numbers, and a struct of the size said in it.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0);
            if libc::sched_getscheduler(0) != libc::SCHED_OTHER {
                return; // its owner has decided otherwise
            }
            let mut wish: libc::sched_attr = std::mem::zeroed();
            wish.size = size_of::<libc::sched_attr>() as u32;
            wish.sched_policy = libc::SCHED_BATCH as u32;
            wish.sched_nice = libc::getpriority(libc::PRIO_PROCESS, 0);
            wish.sched_runtime = SLICE.as_nanos() as u64;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0);
        }
    }

    /// Starts an epoch of `lines` lines that has `interval` until the next.
    pub fn begin(&mut self, lines: u64, interval: Duration) {
        let work = self.ns_per_line * lines as f64;
        let room = interval.as_nanos() as f64 * STRETCH;
        self.sleep_ratio = if work > 0.0 { (room / work - 1.0).clamp(0.0, 20.0) } else { 0.0 };
        self.lines = lines;
        self.worked = Duration::ZERO;
        self.slice_began = Instant::now();
    }

    /// Somebody waits: no more sleeping in this epoch.
    pub fn hurry(&mut self) {
        self.sleep_ratio = 0.0;
    }

    /// Called between pieces of work; sleeps if a slice is over and `may_sleep`.
    pub fn tick(&mut self, may_sleep: bool) {
        let slice = self.slice_began.elapsed();
        if slice < SLICE {
            return;
        }
        self.worked += slice;
        let sleep = slice.mul_f64(self.sleep_ratio).min(SLEEP_MAX);
        if may_sleep && sleep >= SLEEP_MIN {
            std::thread::sleep(sleep);
        }
        self.slice_began = Instant::now();
    }

    /// The epoch is done: learn what its lines cost.
    pub fn end(&mut self) {
        self.worked += self.slice_began.elapsed();
        if self.lines > 1000 {
            let cost = self.worked.as_nanos() as f64 / self.lines as f64;
            self.ns_per_line += (cost - self.ns_per_line) * 0.2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a run of `lines` lines at `ns` each sleeps for, in milliseconds.
    fn slept_ms(pacer: &mut Pacer, lines: u64, interval_ms: u64) -> u128 {
        pacer.begin(lines, Duration::from_millis(interval_ms));
        let began = Instant::now();
        let mut busy = Duration::ZERO;
        while busy < Duration::from_millis(5) {
            let from = Instant::now();
            while from.elapsed() < Duration::from_micros(50) {}
            busy += from.elapsed();
            pacer.tick(true);
        }
        pacer.end();
        (began.elapsed() - busy).as_millis()
    }

    #[test]
    fn small_epochs_are_stretched_and_large_ones_are_not() {
        let mut pacer = Pacer::new();
        // 100,000 lines at 50 ns: 5 ms of work in an interval of 100: stretched.
        assert!(slept_ms(&mut pacer, 100_000, 100) >= 10);
        let mut pacer = Pacer::new();
        // 2,000,000 lines at 50 ns: more work than interval.
        assert_eq!(slept_ms(&mut pacer, 2_000_000, 100), 0);
    }

    #[test]
    fn hurry_ends_the_sleeping() {
        let mut pacer = Pacer::new();
        pacer.begin(10_000, Duration::from_millis(100));
        pacer.hurry();
        std::thread::sleep(Duration::from_millis(1));
        let began = Instant::now();
        pacer.tick(true);
        assert!(began.elapsed() < Duration::from_micros(500));
    }
}
