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
use towa_media::{Access, Allocation, Counters, Durability, Guarantee, Kind, Medium, Region, Result};

/// [`SimMedium`] with pauses.
#[derive(Clone, Debug)]
pub struct Jitter(pub SimMedium);

#[derive(Debug)]
struct Slow(Arc<dyn Region>);

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

impl Medium for Jitter {
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
        Ok(Arc::new(Slow(self.0.create(name, len, allocation)?)))
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        Ok(Arc::new(Slow(self.0.open(name, access)?)))
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
    fn lock(&self) -> Result<Box<dyn Send + Sync>> {
        self.0.lock()
    }
    fn counters(&self) -> &Counters {
        self.0.counters()
    }
}

impl Region for Slow {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        self.0.read(off, into)
    }
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        linger();
        self.0.store(off, bytes)
    }
    fn write_back(&self, off: u64, len: u64) {
        self.0.write_back(off, len);
    }
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        linger();
        self.0.stream(off, bytes)
    }
    fn fence(&self) -> Result<()> {
        linger();
        self.0.fence()
    }
    fn reserve(&self, off: u64, len: u64) -> Result<()> {
        self.0.reserve(off, len)
    }
    fn bytes(&self) -> Option<NonNull<[u8]>> {
        self.0.bytes()
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file()
    }
}
