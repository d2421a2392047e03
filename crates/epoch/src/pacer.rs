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
/// Share of the time until the next epoch ends that an epoch's work may be stretched over.
const STRETCH: f64 = 0.9;
/// Below this a sleep is not worth its wake-up.
const SLEEP_MIN: Duration = Duration::from_micros(20);
/// Never sleep longer at once: somebody may be waiting for the epoch.
const SLEEP_MAX: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Pacer {
    /// Nanoseconds of processor time a line costs, a moving average.
    ns_per_line: f64,
    slice_began: Instant,
    /// Processor time of this thread when the slice began: where cores are short, much of the time goes to others.
    slice_began_cpu: Duration,
    /// Sleep per unit of work; 0: do not sleep.
    sleep_ratio: f64,
    worked: Duration,
    lines: u64,
}

impl Pacer {
    pub fn new() -> Pacer {
        Pacer {
            ns_per_line: 50.0,
            slice_began: Instant::now(),
            slice_began_cpu: Duration::ZERO,
            sleep_ratio: 0.0,
            worked: Duration::ZERO,
            lines: 0,
        }
    }

    /// Starts an epoch of `lines` lines that has `period` until the next ends.
    pub fn begin(&mut self, lines: u64, period: Duration) {
        let work = self.ns_per_line * lines as f64;
        let room = period.as_nanos() as f64 * STRETCH;
        self.sleep_ratio = if work > 0.0 { (room / work - 1.0).clamp(0.0, 20.0) } else { 0.0 };
        self.lines = lines;
        self.worked = Duration::ZERO;
        self.slice_began = Instant::now();
        self.slice_began_cpu = thread_cpu_time();
    }

    /// Somebody waits: no more sleeping in this epoch.
    pub fn hurry(&mut self) {
        self.sleep_ratio = 0.0;
    }

    /// Called between pieces of work; sleeps if a slice is over and `may_sleep`.
    pub fn tick(&mut self, may_sleep: bool) {
        if self.slice_began.elapsed() < SLICE {
            return;
        }
        let sleep = self.end_slice().mul_f64(self.sleep_ratio).min(SLEEP_MAX);
        if may_sleep && sleep >= SLEEP_MIN {
            std::thread::sleep(sleep);
        }
        self.slice_began = Instant::now();
    }

    /// The epoch is done: learn what its lines cost.
    pub fn end(&mut self) {
        self.end_slice();
        if self.lines > 1000 {
            let cost = self.worked.as_nanos() as f64 / self.lines as f64;
            self.ns_per_line += (cost - self.ns_per_line) * 0.2;
        }
    }

    /// Work done in the slice that ends now.
    fn end_slice(&mut self) -> Duration {
        let now = thread_cpu_time();
        let work = now.saturating_sub(self.slice_began_cpu);
        self.slice_began_cpu = now;
        self.worked += work;
        work
    }
}

/// How the scheduler treats the persister's own thread. (A checkpoint may be taken on a user's thread, too: that one is left alone.)
#[derive(Debug)]
pub(crate) struct Scheduling {
    /// Whether the thread was last told that it must share a core; `None`: not at all yet.
    shares_core: Option<bool>,
}

impl Scheduling {
    /// For the calling thread, on which sleeps of tens of microseconds become possible (the kernel would add 50 us of slack).
    pub fn of_this_thread() -> Scheduling {
        #[cfg(target_os = "linux")]
        // SAFETY: prctl with numbers only.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1000, 0, 0, 0);
        }
        Scheduling { shares_core: None }
    }

    /// Adapts to whether users have every core.
    pub fn adapt(&mut self, shares_core: bool) {
        if self.shares_core.replace(shares_core) != Some(shares_core) {
            set_scheduling(shares_core);
        }
    }
}

/// Processor time of the calling thread so far.
fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to the valid, exclusively borrowed one it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Asks the scheduler that users hardly feel the calling thread. Whatever is refused is left out.
///
/// With a core to itself it must never take a running thread's core when it wakes (`SCHED_BATCH`: an idle core comes for it
/// instead). Where users have every core it must get its turn at once when it wakes, or its sleeps would be as long as users' time
/// slices, and give the core back soon: a slice as short as its own (Linux 6.12; older kernels ignore the wish).
fn set_scheduling(shares_core: bool) {
    #[cfg(target_os = "linux")]
    // SAFETY: the scheduler's calls take numbers, and a struct of the size said in it.
    unsafe {
        let policy = libc::sched_getscheduler(0);
        if policy != libc::SCHED_OTHER && policy != libc::SCHED_BATCH {
            return; // its owner has decided otherwise
        }
        let mut wish: libc::sched_attr = std::mem::zeroed();
        wish.size = size_of::<libc::sched_attr>() as u32;
        wish.sched_policy = if shares_core { libc::SCHED_OTHER } else { libc::SCHED_BATCH } as u32;
        wish.sched_nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        wish.sched_runtime = SLICE.as_nanos() as u64;
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = shares_core;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pacer that has begun a run of `lines` lines, at 50 ns each.
    fn begun(lines: u64, interval_ms: u64) -> Pacer {
        let mut pacer = Pacer::new();
        pacer.begin(lines, Duration::from_millis(interval_ms));
        pacer
    }

    /// Works for some slices; what passed besides, and how often this thread gave its processor up by itself, which no busy machine makes
    /// it do.
    fn slept(pacer: &mut Pacer, slices: u32) -> (Duration, i64) {
        let sleeps = || {
            // SAFETY: the struct is numbers; the kernel fills it.
            unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
                usage.ru_nvcsw
            }
        };
        let (began, before, mut busy) = (Instant::now(), sleeps(), Duration::ZERO);
        for _ in 0..slices {
            let from = Instant::now();
            while from.elapsed() < SLICE {}
            busy += from.elapsed();
            pacer.tick(true);
        }
        (began.elapsed() - busy, sleeps() - before)
    }

    #[test]
    fn small_epochs_are_stretched_and_large_ones_are_not() {
        // 5 ms of work in an interval of 100: stretched. (A busy machine may leave some slices without work, not most.)
        let (time, sleeps) = slept(&mut begun(100_000, 100), 50);
        assert!(time >= Duration::from_millis(10) && sleeps >= 10, "{time:?}, {sleeps} sleeps");
        // More work than interval.
        assert_eq!(slept(&mut begun(2_000_000, 100), 50).1, 0);
    }

    #[test]
    fn hurry_ends_the_sleeping() {
        let mut pacer = begun(10_000, 100);
        pacer.hurry();
        assert_eq!(slept(&mut pacer, 10).1, 0);
    }
}
