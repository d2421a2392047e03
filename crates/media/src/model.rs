//! What real NVM takes longer than DRAM, added to the `ram` medium as calibrated delays.
//!
//! ```text
//!   stream, write_back ──► queue (accepts at once while it has room) ──► module, at write_gb_s, whole granules
//!                             └── full: the writer spins until there is room again
//!   fence ──► fence_ns                        a write is durable once the queue has it (ADR), so fences do not drain it
//! ```
//!
//! All threads share the module's bandwidth. Plain loads through [`Region::bytes`](crate::Region::bytes) are not delayed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::LINE;
use crate::per_thread::PerThread;

/// Delays that are added to those of the machine's own memory. All zero (or infinite bandwidth) adds nothing.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct NvmModel {
    /// Nanoseconds added per line written back.
    pub write_back_ns: f64,
    /// Nanoseconds added per fence.
    pub fence_ns: f64,
    /// Bandwidth of writes in GB/s (10^9 bytes), shared by all threads.
    pub write_gb_s: f64,
    /// Nanoseconds added per [`Region::read`](crate::Region::read).
    pub read_ns: f64,
    /// Bandwidth of reads in GB/s (10^9 bytes), per thread.
    pub read_gb_s: f64,
    /// Bytes the module writes at a time; shorter scattered writes cost as much.
    pub granule: usize,
    /// Bytes of writes that are accepted ahead of the module.
    pub queue: usize,
}

impl NvmModel {
    /// Six interleaved Intel Optane DC modules (first generation), one socket.
    ///
    /// From Izraelevitz et al., "Basic Performance Measurements of the Intel Optane DC Persistent Memory Module", 2019,
    /// arXiv:1903.05714: a random read takes 305 ns, "about 3 times slower than local DRAM"; six modules read at most 39.4 GB/s (with
    /// 17 threads) and write 13.9 GB/s (with four); a module works on 256 bytes at a time.
    ///
    /// From Yang et al., "An Empirical Guide to the Behavior and Use of Scalable Persistent Memory", FAST'20: DRAM's random read of
    /// 101 ns; a line is written and written back (CLWB, fence) in 62 ns against 57 ns of DRAM, streamed in 90 ns against 86 ns, as
    /// both end in the memory controller's queue; each module combines writes in a buffer of 16 KB, here the queue.
    ///
    /// Added are the differences to DRAM, 204 ns a read and 5 ns a fence. Two things are kinder than the hardware: each thread may
    /// read at the bandwidth of all, and what is written in random order costs no more than whole granules.
    pub fn optane() -> NvmModel {
        NvmModel {
            write_back_ns: 0.0,
            fence_ns: 5.0,
            write_gb_s: 13.9,
            read_ns: 204.0,
            read_gb_s: 39.4,
            granule: 256,
            queue: 6 * 16384,
        }
    }

    /// One such module: 6.6 GB/s read, 2.3 GB/s written (arXiv:1903.05714).
    pub fn optane_single() -> NvmModel {
        NvmModel { write_gb_s: 2.3, read_gb_s: 6.6, queue: 16384, ..NvmModel::optane() }
    }
}

/// A module that works off its queue.
pub(crate) struct Device {
    model: NvmModel,
    /// Tick at which everything accepted so far has been written.
    busy_until: AtomicU64,
    /// What each thread wrote and has not handed to the queue yet.
    writers: PerThread<Writer>,
}

/// A thread's writes since it last looked at the clock. Looking costs as much as a short write, so it is done once per
/// [`BATCH`] and before a fence.
#[derive(Default)]
struct Writer {
    /// Bytes of whole granules.
    bytes: AtomicU64,
    /// Number of the granule written last, plus one: writes that go on in it are merged.
    last_granule: AtomicUsize,
}

/// Bytes after which a thread hands its writes to the queue.
const BATCH: u64 = 4096;

impl Device {
    pub fn new(model: NvmModel) -> Device {
        ticks_per_ns();
        Device { model, busy_until: AtomicU64::new(0), writers: PerThread::default() }
    }

    /// `len` bytes at `addr` go to the module.
    #[inline]
    pub fn write(&self, addr: usize, len: usize) {
        if len == 0 {
            return;
        }
        let granule = self.model.granule.max(LINE);
        let (first, last) = (addr / granule, (addr + len - 1) / granule);
        let writer = self.writers.mine();
        let merged = writer.last_granule.load(Relaxed) == first + 1;
        writer.last_granule.store(last + 1, Relaxed);
        let bytes = writer.bytes.load(Relaxed) + ((last - first + 1 - merged as usize) * granule) as u64;
        writer.bytes.store(bytes, Relaxed);
        if bytes >= BATCH {
            self.enqueue(writer);
        }
    }

    /// `lines` cached lines from `addr` on go to the module.
    #[inline]
    pub fn write_back(&self, addr: usize, lines: usize) {
        self.write(addr & !(LINE - 1), lines * LINE);
        spin(self.model.write_back_ns * lines as f64);
    }

    pub fn fence(&self) {
        self.enqueue(self.writers.mine());
        spin(self.model.fence_ns);
    }

    /// Waits until the queue has room for what the writer wrote, and puts it there.
    fn enqueue(&self, writer: &Writer) {
        let bytes = writer.bytes.load(Relaxed);
        if bytes == 0 {
            return;
        }
        writer.bytes.store(0, Relaxed);
        let takes = to_ticks(bytes as f64 / self.model.write_gb_s);
        let queue = to_ticks(self.model.queue as f64 / self.model.write_gb_s);
        let now = ticks();
        let start = |busy: u64| busy.max(now);
        let before = self.busy_until.fetch_update(Relaxed, Relaxed, |busy| Some(start(busy) + takes));
        let (Ok(busy) | Err(busy)) = before;
        spin_until((start(busy) + takes).saturating_sub(queue));
    }

    pub fn read(&self, len: usize) {
        spin(self.model.read_ns + len as f64 / self.model.read_gb_s);
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.model.fmt(f)
    }
}

fn spin(ns: f64) {
    if ns > 0.0 {
        spin_until(ticks() + to_ticks(ns));
    }
}

fn spin_until(tick: u64) {
    while ticks() < tick {
        std::hint::spin_loop();
    }
}

fn to_ticks(ns: f64) -> u64 {
    (ns * ticks_per_ns()) as u64
}

/// Speed of [`ticks`], measured once against the system's clock.
fn ticks_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, first) = both_clocks();
        while start.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        let (end, last) = both_clocks();
        (last - first) as f64 / (end - start).as_nanos() as f64
    })
}

/// The two clocks at the same time: of some readings the closest, as this thread may lose its processor in between.
fn both_clocks() -> (Instant, u64) {
    let reading = || {
        let before = ticks();
        let now = Instant::now();
        (ticks() - before, now, before)
    };
    let (_, now, before) = (0..10).map(|_| reading()).min_by_key(|reading| reading.0).expect("ten");
    (now, before)
}

/// A clock that is cheap enough to wait for a few nanoseconds by.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn ticks() -> u64 {
    // SAFETY: every x86-64 has RDTSC, and Linux leaves it to programs.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(any(miri, not(target_arch = "x86_64")))]
fn ticks() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow() -> NvmModel {
        NvmModel { write_gb_s: 0.1, queue: 4096, ..NvmModel::optane() }
    }

    #[test]
    fn long_writes_run_at_the_bandwidth() {
        let device = Device::new(slow());
        let start = Instant::now();
        for i in 0..100 {
            device.write(i * 4096, 4096);
        }
        // 409,600 bytes at 0.1 GB/s take 4.1 ms, less the queue. No upper bound: the machine may be busy.
        assert!(start.elapsed() >= Duration::from_micros(3900), "{:?}", start.elapsed());
    }

    #[test]
    fn scattered_lines_cost_whole_granules() {
        let device = Device::new(slow());
        let start = Instant::now();
        for i in 0..1000 {
            device.write_back(i * 4096, 1);
        }
        assert!(start.elapsed() >= Duration::from_micros(2400), "{:?}", start.elapsed());
        let device = Device::new(slow());
        for i in 0..100 {
            device.write_back(i * 64, 1);
        }
        device.fence();
        let ahead = device.busy_until.load(Relaxed).saturating_sub(ticks());
        // 100 lines in sequence are 25 granules, 64 us; unmerged they would be 256 us.
        assert!(ahead < to_ticks(70_000.0), "{ahead}");
    }

    #[test]
    fn a_short_burst_fits_the_queue() {
        let device = Device::new(NvmModel { write_gb_s: 1e-6, queue: 1 << 20, ..NvmModel::optane() });
        // At 1 KB/s this would take minutes if it did not fit.
        device.write(0, 4096);
        device.fence();
    }
}
