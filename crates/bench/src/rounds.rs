//! One round: some user threads run one engine for a fixed time and count what they complete in each 100-us window.
//!
//! ```text
//!   t0 - warm-up      t0                                    t0 + n windows
//!   |-- not counted --|-- w0 --|-- w1 --| ...              |   threads stop
//! ```
//!
//! What must hold: between two operations a thread reads the clock and adds one to a preallocated array, nothing else: no
//! system call, no allocation, no shared line. Arrays are summed over the threads afterwards: a stop is a stop of the
//! program's throughput.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::clock::Clock;
use crate::windows::WINDOW_NS;
use crate::workload::{Op, OpTable};

/// Time a round runs before counting, to bring the caches back after another engine's round.
const WARM_UP: Duration = Duration::from_millis(30);

/// A keyed store that a round runs against.
pub trait Store: Sync {
    /// One user thread's handle.
    type Worker<'s>: Worker
    where
        Self: 's;
    /// Registers the calling thread.
    fn worker(&self) -> Result<Self::Worker<'_>>;
}

/// One user thread's handle on a store.
pub trait Worker {
    /// Does one whole operation, in its own transaction where it writes.
    fn run(&mut self, op: Op, key: u64) -> Result<()>;
}

/// What a round saw.
#[derive(Clone, Debug)]
pub struct Round {
    /// Operations completed in each 100-us window, over all user threads.
    pub counts: Vec<u32>,
    /// Values written, warm-up included.
    pub puts: u64,
    /// Operations, warm-up included.
    pub ops: u64,
    /// Processor time of the user threads for these, in nanoseconds: what an operation costs its caller, however much of the
    /// machine others take.
    pub cpu_ns: u64,
}

impl Round {
    /// Operations per second.
    pub fn ops_per_s(&self) -> f64 {
        let ops: u64 = self.counts.iter().map(|c| u64::from(*c)).sum();
        ops as f64 / (self.counts.len() as f64 * WINDOW_NS as f64 / 1e9)
    }
}

/// Copies memory in the bursts of a checkpoint, and does nothing else: the control's extra thread.
#[derive(Debug)]
pub struct Copier {
    from: Vec<u8>,
    to: Vec<u8>,
    at: usize,
}

/// How the control's thread copies.
#[derive(Debug)]
pub struct Burst<'c> {
    /// The buffers.
    pub copier: &'c mut Copier,
    /// Bytes copied in each burst.
    pub bytes: usize,
    /// Time from one burst's start to the next.
    pub interval: Duration,
}

impl Copier {
    /// Two touched buffers of `len` bytes, larger than the caches so that a copy is memory traffic.
    pub fn new(len: usize) -> Self {
        Self { from: vec![1; len], to: vec![2; len], at: 0 }
    }

    /// Copies the next `bytes`, going round the buffers.
    pub fn copy(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let n = bytes.min(self.from.len() - self.at);
            self.to[self.at..self.at + n].copy_from_slice(&self.from[self.at..self.at + n]);
            std::hint::black_box(&self.to);
            self.at = (self.at + n) % self.from.len();
            bytes -= n;
        }
    }
}

/// Runs `tables.len()` user threads, each over its own table from operation `first` on, for `windows` counted windows.
pub fn measure<S: Store>(store: &S, tables: &[OpTable], windows: usize, clock: Clock, burst: Option<Burst<'_>>) -> Result<Round> {
    let gate = Barrier::new(tables.len() + 1);
    let t0 = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if let Some(burst) = burst {
            let over = &over;
            std::thread::Builder::new().name("control".into()).spawn_scoped(scope, move || copy_bursts(burst, over))?;
        }
        let users: Vec<_> = tables
            .iter()
            .map(|table| {
                let (gate, t0) = (&gate, &t0);
                std::thread::Builder::new()
                    .name("user".into())
                    .spawn_scoped(scope, move || user(store, table, windows, clock, gate, t0))
            })
            .collect::<std::io::Result<_>>()?;
        gate.wait();
        // All are registered: only now is the start set, so a thread that was slow to come up does not look stopped.
        t0.store(clock.ticks() + clock.ticks_in(WARM_UP), Ordering::Relaxed);
        gate.wait();
        let mut round = Round { counts: vec![0; windows], puts: 0, ops: 0, cpu_ns: 0 };
        let mut failed = None;
        for user in users {
            match user.join().map_err(|_| anyhow::anyhow!("a user thread panicked")).and_then(|r| r) {
                Ok(user) => {
                    round.counts.iter_mut().zip(user.counts).for_each(|(sum, c)| *sum += c);
                    round.puts += user.puts;
                    round.ops += user.ops;
                    round.cpu_ns += user.cpu_ns;
                }
                Err(e) => failed = Some(e),
            }
        }
        over.store(true, Ordering::Relaxed);
        failed.map_or(Ok(round), Err)
    })
}

/// One user thread: registers, waits for the others, works until the last window is over.
fn user<S: Store>(store: &S, table: &OpTable, windows: usize, clock: Clock, gate: &Barrier, t0: &AtomicU64) -> Result<Round> {
    // Written, not just reserved: the first touch of a page must not look like a stop.
    let mut counts = vec![u32::MAX; windows];
    counts.fill(0);
    let worker = store.worker();
    gate.wait();
    gate.wait();
    let mut worker = worker.context("registering a user thread")?;
    let t0 = t0.load(Ordering::Relaxed);
    let cpu_before = thread_cpu_ns();
    let (mut puts, mut ops) = (0, 0);
    for i in 0.. {
        let (op, key) = table.at(i);
        worker.run(op, key)?;
        puts += u64::from(op == Op::Put);
        ops += 1;
        let now = clock.ticks();
        if now < t0 {
            continue;
        }
        let window = (clock.ns(now - t0) / WINDOW_NS) as usize;
        let Some(count) = counts.get_mut(window) else {
            break;
        };
        *count += 1;
    }
    Ok(Round { counts, puts, ops, cpu_ns: thread_cpu_ns().saturating_sub(cpu_before) })
}

/// Processor time of the calling thread so far.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to the valid, exclusively borrowed one it is given.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    if failed { 0 } else { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 }
}

/// Copies at fixed times until `over`; a late burst does not shift the next.
fn copy_bursts(burst: Burst<'_>, over: &AtomicBool) {
    let start = Instant::now();
    for n in 1.. {
        let due = start + burst.interval * n;
        while let Some(left) = due.checked_duration_since(Instant::now()) {
            if over.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
        if over.load(Ordering::Relaxed) {
            return;
        }
        burst.copier.copy(burst.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Keys, Workload};
    use std::collections::HashMap;
    use std::sync::{Mutex, RwLock};

    /// A plain map that stops the world now and then, to see that the driver sees it.
    struct Plain {
        map: Mutex<HashMap<u64, u64>>,
        world: RwLock<()>,
        fail_at: Option<u64>,
    }

    struct PlainWorker<'s>(&'s Plain);

    impl Store for Plain {
        type Worker<'s> = PlainWorker<'s>;
        fn worker(&self) -> Result<PlainWorker<'_>> {
            Ok(PlainWorker(self))
        }
    }

    impl Worker for PlainWorker<'_> {
        fn run(&mut self, op: Op, key: u64) -> Result<()> {
            let _running = self.0.world.read().unwrap();
            let mut map = self.0.map.lock().unwrap();
            anyhow::ensure!(self.0.fail_at != Some(key), "told to fail at key {key}");
            match op {
                Op::Get => drop(std::hint::black_box(map.get(&key))),
                Op::Put => drop(map.insert(key, key)),
                Op::Remove => drop(map.remove(&key)),
            }
            Ok(())
        }
    }

    fn plain(fail_at: Option<u64>) -> Plain {
        Plain { map: Mutex::default(), world: RwLock::default(), fail_at }
    }

    fn tables(n: u64) -> Vec<OpTable> {
        let keys = Keys::of(Workload::HashmapWrite, 100);
        (0..n).map(|seed| OpTable::new(Workload::HashmapWrite, &keys, seed, 1 << 12)).collect()
    }

    #[test]
    fn counts_every_window_of_every_thread() {
        let store = plain(None);
        let round = measure(&store, &tables(2), 5000, Clock::new(), None).unwrap();
        assert_eq!(round.counts.len(), 5000);
        assert!(round.ops_per_s() > 1000.0);
        let ops: u64 = round.counts.iter().map(|c| u64::from(*c)).sum();
        // Half of the operations are puts, and those of the warm-up come on top.
        assert!(round.puts as f64 > 0.4 * ops as f64, "{} puts in {ops} operations", round.puts);
        // On a busy machine a thread may lose its core for many windows; never for a whole quarter of a second.
        assert!(round.counts.chunks(2500).all(|part| part.iter().any(|c| *c > 0)), "a quarter without a completion");
    }

    #[test]
    fn sees_a_stopped_world() {
        let store = plain(None);
        let over = std::sync::atomic::AtomicBool::new(false);
        let round = std::thread::scope(|s| {
            s.spawn(|| {
                // Again and again: it need not begin when the measurement does.
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(60));
                    let _stopped = store.world.write().unwrap();
                    std::thread::sleep(Duration::from_millis(40));
                }
            });
            let round = measure(&store, &tables(1), 2000, Clock::new(), None);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            round
        })
        .unwrap();
        let longest = round.counts.chunk_by(|a, b| (*a == 0) == (*b == 0)).filter(|r| r[0] == 0).map(<[u32]>::len).max();
        assert!(longest.unwrap_or(0) >= 300, "a 40-ms stop shows as {longest:?} empty windows");
    }

    #[test]
    fn a_failing_operation_ends_the_round_with_its_reason() {
        let why = measure(&plain(Some(3)), &tables(2), 5000, Clock::new(), None).unwrap_err().to_string();
        assert!(why.contains("told to fail"), "{why}");
    }

    #[test]
    fn the_control_copies_at_its_pace() {
        let mut copier = Copier::new(1 << 20);
        let burst = Burst { copier: &mut copier, bytes: 300_000, interval: Duration::from_millis(10) };
        measure(&plain(None), &tables(1), 5000, Clock::new(), Some(burst)).unwrap();
        assert!(copier.to.iter().filter(|b| **b == 1).count() >= 300_000, "copied less than one burst");
    }
}
