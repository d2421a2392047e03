//! A medium that makes threads linger before what they do on it, so that their steps overlap in time as they seldom would otherwise.
//!
//! What must always hold: nothing but time is added; what is recorded is what the medium inside records.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::SimMedium;
use towa_media::{Access, Allocation, Counters, Durability, Guarantee, Kind, Lock, Medium, Region, Result};

/// [`SimMedium`] with pauses.
#[derive(Clone, Debug)]
pub struct Jitter(pub SimMedium);

#[derive(Debug)]
struct Slow {
    region: Arc<dyn Region>,
    is_log: bool,
}

thread_local! {
    static RNG: RefCell<SmallRng> = RefCell::new(SmallRng::seed_from_u64(
        std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64),
    ));
}

/// Mostly nothing; else gives way, for some steps of the others or for many.
fn linger() {
    let draw = RNG.with_borrow_mut(|rng| rng.random_range(0..100u32));
    match draw {
        0..70 => {}
        70..90 => std::thread::yield_now(),
        90..98 => (0..draw).for_each(|_| std::thread::yield_now()),
        _ => std::thread::sleep(std::time::Duration::from_micros(60)),
    }
}

/// Seldom, for longer than a round of the checkpointer takes: that may begin and end while a transaction has taken effect and its record
/// is not durable yet.
fn linger_over_a_record() {
    if RNG.with_borrow_mut(|rng| rng.random_ratio(1, 25)) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

impl Slow {
    fn region(name: &str, region: Arc<dyn Region>) -> Arc<dyn Region> {
        Arc::new(Slow { region, is_log: name.starts_with("log") })
    }
}

// SAFETY: all of it is that of the medium behind it, later.
unsafe impl Medium for Jitter {
    fn kind(&self) -> Kind {
        self.0.kind()
    }
    fn durability(&self) -> Durability {
        self.0.durability()
    }
    fn guarantee(&self) -> Guarantee {
        self.0.guarantee()
    }
    fn location(&self) -> String {
        self.0.location()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        Ok(Slow::region(name, self.0.create(name, len, allocation)?))
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        Ok(Slow::region(name, self.0.open(name, access)?))
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.0.exists(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(from, to)
    }
    fn sync_names(&self) -> Result<()> {
        self.0.sync_names()
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        self.0.lock()
    }
    fn counters(&self) -> &Counters {
        self.0.counters()
    }
}

// SAFETY: all of it is that of the region behind it, later.
unsafe impl Region for Slow {
    fn len(&self) -> u64 {
        self.region.len()
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        self.region.read(off, into)
    }
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        linger();
        if self.is_log {
            linger_over_a_record();
        }
        self.region.store(off, bytes)
    }
    fn write_back(&self, off: u64, len: u64) {
        self.region.write_back(off, len);
    }
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        linger();
        self.region.stream(off, bytes)
    }
    fn evict(&self) {
        self.region.evict();
    }
    fn rewrite(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.region.rewrite(off, bytes)
    }
    fn fence(&self) -> Result<()> {
        linger();
        self.region.fence()
    }
    fn reserve(&self, off: u64, len: u64) -> Result<()> {
        self.region.reserve(off, len)
    }
    fn bytes(&self) -> Option<NonNull<[u8]>> {
        self.region.bytes()
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.region.file()
    }
}
