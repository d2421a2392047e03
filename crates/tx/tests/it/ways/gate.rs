//! A medium on which the records of chosen threads are not durable until a test says so.
//!
//! What must always hold: nothing but time is added; a thread that is not [held](Gate::hold) is not delayed.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use towa_media::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Lock, Medium, RamMedium, Region, Result};

thread_local! {
    /// Fences of the log by this thread wait at the gate.
    static IS_HELD: Cell<bool> = const { Cell::new(false) };
}

/// Where fences wait. It opens once, for all, and when it is dropped.
#[derive(Debug, Default)]
pub struct Gate {
    is_open: AtomicBool,
    waiting: AtomicU64,
    /// Syncs of this region fail.
    fails: Mutex<Option<&'static str>>,
}

impl Gate {
    /// The records that `work` writes on this thread wait at the gate.
    pub fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        IS_HELD.set(true);
        let done = work();
        IS_HELD.set(false);
        done
    }

    /// Returns when so many threads wait at the gate.
    pub fn await_held(&self, threads: u64) {
        while self.waiting.load(Acquire) < threads {
            thread::yield_now();
        }
    }

    pub fn open(&self) {
        self.is_open.store(true, Release);
    }

    /// From now on each sync of this region fails.
    pub fn fail(&self, name: &'static str) {
        *self.fails.lock().unwrap() = Some(name);
    }

    fn pass(&self) {
        if !IS_HELD.get() {
            return;
        }
        self.waiting.fetch_add(1, AcqRel);
        while !self.is_open.load(Acquire) {
            thread::yield_now();
        }
    }
}

/// Opens a gate when it is dropped, so that a test that fails ends.
pub struct Opens<'g>(pub &'g Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Memory whose log has a gate, and whose syncs can fail.
#[derive(Debug)]
pub struct Gated {
    inner: Arc<RamMedium>,
    gate: Arc<Gate>,
}

impl Gated {
    pub fn in_dir(path: &Path) -> (Gated, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        (Gated { inner: RamMedium::open(path, false, None).unwrap(), gate: Arc::clone(&gate) }, gate)
    }

    pub fn anonymous() -> (Gated, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        (Gated { inner: RamMedium::anonymous(), gate: Arc::clone(&gate) }, gate)
    }

    fn region(&self, name: &str, region: Arc<dyn Region>) -> Arc<dyn Region> {
        Arc::new(Part { name: name.into(), region, gate: Arc::clone(&self.gate) })
    }
}

#[derive(Debug)]
struct Part {
    name: String,
    region: Arc<dyn Region>,
    gate: Arc<Gate>,
}

// SAFETY: all of it is that of the medium behind it, later.
unsafe impl Medium for Gated {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }
    fn durability(&self) -> Durability {
        self.inner.durability()
    }
    fn guarantee(&self) -> Guarantee {
        self.inner.guarantee()
    }
    fn location(&self) -> String {
        self.inner.location()
    }
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.inner.directory()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        Ok(self.region(name, self.inner.create(name, len, allocation)?))
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        Ok(self.region(name, self.inner.open(name, access)?))
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.inner.exists(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.inner.rename(from, to)
    }
    fn sync_names(&self) -> Result<()> {
        self.inner.sync_names()
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        self.inner.lock()
    }
    fn lock_file(&self, name: &str, patience: Duration, whose: &str) -> Result<Box<dyn Lock>> {
        self.inner.lock_file(name, patience, whose)
    }
    fn counters(&self) -> &Counters {
        self.inner.counters()
    }
}

// SAFETY: all of it is that of the region behind it, later.
unsafe impl Region for Part {
    fn len(&self) -> u64 {
        self.region.len()
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        self.region.read(off, into)
    }
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.region.store(off, bytes)
    }
    fn write_back(&self, off: u64, len: u64) {
        self.region.write_back(off, len);
    }
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.region.stream(off, bytes)
    }
    fn fence(&self) -> Result<()> {
        if self.name == "log" {
            self.gate.pass();
        }
        if self.gate.fails.lock().unwrap().is_some_and(|name| name == self.name) {
            let location = self.name.clone();
            return Err(Error::Io { location, doing: "syncing", source: std::io::Error::other("the device failed") });
        }
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
