//! The simulated medium itself: keeps the newest bytes, and records every verb under one lock, so that the trace's order is the
//! order in which things took effect.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::ThreadId;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::Model;
use super::fault::{Effect, Faults, Point};
use super::locks::Locks;
use super::pages::{Pages, Snapshot};
use super::space::Reserved;
use super::trace::{Event, NameOp, Op, Trace};
use crate::directory::check_name;
use crate::error::in_range;
use crate::persist::lines_of;
use crate::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Lock, Medium, Region, Result};

/// A medium in memory that records what is done to it. Clones share it.
#[derive(Clone)]
pub struct SimMedium(Arc<Sim>);

struct Sim {
    model: Model,
    counters: Counters,
    locks: Arc<Locks>,
    state: Mutex<State>,
}

struct State {
    /// Names and bytes as the running program sees them.
    newest: Snapshot,
    trace: Trace,
    threads: HashMap<ThreadId, u32>,
    /// Threads of processes before this one.
    threads_before: u32,
    faults: Faults,
    /// Of each region: how many of its fences failed.
    failures: HashMap<u32, u64>,
    /// What is reserved of the regions created sparse.
    reserved: HashMap<u32, Reserved>,
    /// Whether writing elsewhere in those is a bug.
    strict_space: bool,
    /// Whether a rewrite of these bytes of the region of this name is left out.
    forgets_rewrite: ForgetsRewrite,
}

/// Of a region's name and an offset: whether the program forgets to [rewrite](Region::rewrite) what lies there.
pub type ForgetsRewrite = fn(&str, u64) -> bool;

struct SimRegion {
    sim: Arc<Sim>,
    number: u32,
    name: String,
    len: u64,
    writable: bool,
    /// How many failed fences of the region this handle has been told of, or came too late for. As the kernel does, each failure is
    /// told to every handle that was open, once.
    failures_seen: AtomicU64,
    /// Whether it was told of one: it stays failed.
    failed: AtomicBool,
}

impl SimMedium {
    /// An empty medium.
    pub fn new(model: Model) -> SimMedium {
        Self::from_snapshot(model, Snapshot::default())
    }

    /// A medium on which `base` is durable. Its regions are numbered from 0 in the order of their names.
    pub(super) fn from_snapshot(model: Model, base: Snapshot) -> SimMedium {
        let mut numbered = Snapshot::default();
        let mut region_names = Vec::new();
        for (name, old_number) in base.names {
            let number = region_names.len() as u32;
            numbered.regions.insert(number, base.regions[&old_number].clone());
            region_names.push(name.clone());
            numbered.names.insert(name, number);
        }
        let trace = Trace { model, base: numbered.clone(), events: Vec::new(), data: Vec::new(), region_names };
        Self::from_state(numbered, trace)
    }

    /// The medium as the next process finds it when this trace's process died and the machine lived on: everything written is
    /// there to read, but what was not durable still is not, and no fence of the new process covers the old one's writes.
    pub(super) fn from_trace(trace: Trace) -> SimMedium {
        let newest = trace.newest();
        let before = trace.events.iter().map(|event| event.thread + 1).max().unwrap_or(0);
        let medium = Self::from_state(newest, trace);
        medium.0.state.lock().threads_before = before;
        medium
    }

    fn from_state(newest: Snapshot, trace: Trace) -> SimMedium {
        let model = trace.model;
        let state = State {
            newest,
            trace,
            threads: HashMap::new(),
            threads_before: 0,
            faults: Faults::default(),
            failures: HashMap::new(),
            reserved: HashMap::new(),
            strict_space: false,
            forgets_rewrite: |_, _| false,
        };
        SimMedium(Arc::new(Sim { model, counters: Counters::default(), locks: Arc::default(), state: Mutex::new(state) }))
    }

    /// What was done so far.
    pub fn trace(&self) -> Trace {
        self.0.state.lock().trace.clone()
    }

    /// How many events there are so far; a place to [start exploring](super::Explorer::starting_at) at.
    pub fn events(&self) -> usize {
        self.0.state.lock().trace.events.len()
    }

    /// Records a note, which crash images from here on [carry](super::CrashImage::notes): what the program has promised by now.
    pub fn note(&self, note: u64) {
        self.0.state.lock().record(Op::Note(note));
    }

    /// From now on, a write to bytes of a region created sparse here that were not [reserved](Region::reserve) panics: on a full
    /// tmpfs it would be SIGBUS.
    pub fn strict_space(&self) {
        self.0.state.lock().strict_space = true;
    }

    /// Plants a fault ([`Model::File`]): rewrites for which `forgets` says so do nothing, as if they had been deleted from the program.
    pub fn forget_rewrites(&self, forgets: ForgetsRewrite) {
        self.0.state.lock().forgets_rewrite = forgets;
    }

    /// Plants a fault: locks of single regions are no locks, as if they were deleted from the program.
    pub fn forget_region_locks(&self) {
        self.0.locks.forgets_regions.store(true, Relaxed);
    }

    /// Makes the call at `point` that follows the next `after` ones there have `effect`, once. `after` 0 is the next.
    pub fn inject(&self, point: Point, after: u64, effect: Effect) {
        self.0.state.lock().faults.add(point, after, effect);
    }

    fn region(&self, state: &State, number: u32, name: &str, writable: bool) -> Arc<dyn Region> {
        let len = state.newest.regions[&number].len();
        let failures_seen = AtomicU64::new(state.failures.get(&number).copied().unwrap_or(0));
        let (sim, name, failed) = (self.0.clone(), name.to_owned(), AtomicBool::new(false));
        Arc::new(SimRegion { sim, number, name, len, writable, failures_seen, failed })
    }
}

impl fmt::Debug for SimMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimMedium({:?}, {} events)", self.0.model, self.events())
    }
}

impl State {
    fn record(&mut self, op: Op) {
        let next = self.threads_before + self.threads.len() as u32;
        let thread = *self.threads.entry(std::thread::current().id()).or_insert(next);
        self.trace.events.push(Event { thread, op });
    }

    /// Whether the fault that strikes at `point` makes the call do nothing, or fail with the error returned.
    fn strike(&mut self, point: Point, location: &str, wanted: u64) -> Result<bool> {
        let error = match self.faults.strike(point) {
            None => return Ok(false),
            Some(Effect::Ignore) => return Ok(true),
            Some(Effect::Full) => Error::Full { location: location.into(), wanted },
            Some(Effect::Io) => {
                Error::Io { location: location.into(), doing: doing(point), source: io::Error::from_raw_os_error(libc::EIO) }
            }
        };
        Err(error)
    }

    fn number_of(&self, name: &str) -> Result<u32> {
        let number = self.newest.names.get(name).copied();
        number.ok_or_else(|| Error::NotFound { location: place(name) })
    }
}

fn doing(point: Point) -> &'static str {
    match point {
        Point::Fence => "syncing",
        Point::WriteBack => "writing back",
        Point::SyncNames => "syncing the directory",
        Point::Write => "writing",
        Point::Read => "reading",
        Point::Reserve => "reserving space",
        Point::Create => "creating",
        Point::Remove => "removing",
        Point::Rename => "renaming",
    }
}

fn place(name: &str) -> String {
    format!("sim/{name}")
}

fn check(name: &str) -> Result<()> {
    check_name(name).map_err(|what| Error::Unsupported { location: place(name), what: what.into() })
}

// SAFETY: regions of this medium by their names, and a flag that is its lock.
unsafe impl Medium for SimMedium {
    fn kind(&self) -> Kind {
        Kind::Sim
    }
    fn durability(&self) -> Durability {
        match self.0.model {
            Model::Line => Durability::Line,
            Model::File => Durability::Sync,
        }
    }
    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerSafe
    }
    fn location(&self) -> String {
        "sim".into()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        check(name)?;
        let mut state = self.0.state.lock();
        if state.newest.names.contains_key(name) {
            return Err(Error::Exists { location: place(name) });
        }
        state.strike(Point::Create, &place(name), len)?;
        let name: Arc<str> = name.into();
        let region = state.trace.region_names.len() as u32;
        state.trace.region_names.push(name.clone());
        if allocation == Allocation::Sparse {
            state.reserved.insert(region, Reserved::default());
        }
        state.newest.names.insert(name.clone(), region);
        state.newest.regions.insert(region, Pages::zeroed(len));
        state.record(Op::Name(NameOp::Create { name: name.clone(), region, len }));
        Ok(self.region(&state, region, &name, true))
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        check(name)?;
        let state = self.0.state.lock();
        let number = state.number_of(name)?;
        Ok(self.region(&state, number, name, access == Access::ReadWrite))
    }
    fn exists(&self, name: &str) -> Result<bool> {
        check(name)?;
        Ok(self.0.state.lock().newest.names.contains_key(name))
    }
    fn remove(&self, name: &str) -> Result<()> {
        check(name)?;
        let mut state = self.0.state.lock();
        let region = state.number_of(name)?;
        state.strike(Point::Remove, &place(name), 0)?;
        state.newest.names.remove(name);
        state.record(Op::Name(NameOp::Remove { name: name.into(), region }));
        Ok(())
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check(from)?;
        check(to)?;
        let mut state = self.0.state.lock();
        let region = state.number_of(from)?;
        state.strike(Point::Rename, &place(from), 0)?;
        state.newest.names.remove(from);
        state.newest.names.insert(to.into(), region);
        state.record(Op::Name(NameOp::Rename { from: from.into(), to: to.into(), region }));
        Ok(())
    }
    fn sync_names(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        match state.strike(Point::SyncNames, "sim", 0) {
            Ok(false) => state.record(Op::SyncNames),
            Ok(true) => state.record(Op::Ignored { what: Point::SyncNames, region: None }),
            Err(error) => {
                state.record(Op::Ignored { what: Point::SyncNames, region: None });
                return Err(error);
            }
        }
        Ok(())
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        Ok(Box::new(self.0.locks.own()?))
    }
    fn lock_file(&self, name: &str, patience: Duration, whose: &str) -> Result<Box<dyn Lock>> {
        let held = self.0.locks.none();
        held.take(name, patience, whose)?;
        Ok(Box::new(held))
    }
    fn counters(&self) -> &Counters {
        &self.0.counters
    }
}

impl SimRegion {
    fn state(&self) -> MutexGuard<'_, State> {
        self.sim.state.lock()
    }

    fn place(&self) -> String {
        place(&self.name)
    }

    /// Whether a fence of the region failed since this handle was opened, and another handle was told.
    fn missed_failure(&self, state: &State) -> bool {
        let failures = state.failures.get(&self.number).copied().unwrap_or(0);
        self.failures_seen.swap(failures, Relaxed) != failures
    }

    fn write(&self, off: u64, bytes: &[u8], streamed: bool) -> Result<()> {
        in_range(&self.place(), off, bytes.len() as u64, self.len, self.writable)?;
        let mut state = self.state();
        if state.strict_space
            && let Some(reserved) = state.reserved.get(&self.number)
        {
            let (place, len) = (self.place(), bytes.len());
            let inside = reserved.holds(off, len as u64);
            assert!(inside, "{place}: {len} bytes at {off} are written but not reserved");
        }
        state.strike(Point::Write, &self.place(), bytes.len() as u64)?;
        let at = state.trace.data.len();
        state.trace.data.extend_from_slice(bytes);
        let pages = state.newest.regions.get_mut(&self.number).expect("regions are never dropped");
        pages.write(off, bytes);
        state.record(Op::Write { region: self.number, off, at, len: bytes.len(), streamed });
        Ok(())
    }
}

impl fmt::Debug for SimRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimRegion({}, {} bytes)", self.name, self.len)
    }
}

// SAFETY: neither bytes nor a file; what was stored is kept in memory.
unsafe impl Region for SimRegion {
    fn len(&self) -> u64 {
        self.len
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        in_range(&self.place(), off, into.len() as u64, self.len, true)?;
        let mut state = self.state();
        state.strike(Point::Read, &self.place(), 0)?;
        state.newest.regions[&self.number].read(off, into);
        Ok(())
    }
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.write(off, bytes, false)?;
        self.sim.counters.stored(bytes.len());
        Ok(())
    }
    fn write_back(&self, off: u64, len: u64) {
        let inside = in_range(&self.place(), off, len, self.len, true).is_ok();
        assert!(inside, "{}: write-back of {len} bytes at {off}, outside the region", self.place());
        if self.sim.model == Model::File || len == 0 {
            return;
        }
        let mut state = self.state();
        let op = match state.strike(Point::WriteBack, &self.place(), 0) {
            Ok(false) => Op::WriteBack { region: self.number, off, len },
            _ => Op::Ignored { what: Point::WriteBack, region: Some(self.number) },
        };
        state.record(op);
        self.sim.counters.wrote_back(lines_of(off as usize, len as usize));
    }
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.write(off, bytes, true)?;
        self.sim.counters.streamed(bytes.len());
        Ok(())
    }
    fn rewrite(&self, off: u64, bytes: &[u8]) -> Result<()> {
        let forgets = self.state().forgets_rewrite;
        match self.sim.model {
            Model::File if forgets(&self.name, off) => Ok(()),
            Model::File => self.store(off, bytes),
            Model::Line => {
                self.write_back(off, bytes.len() as u64);
                Ok(())
            }
        }
    }
    fn fence(&self) -> Result<()> {
        let mut state = self.state();
        self.sim.counters.fenced();
        let ignored = Op::Ignored { what: Point::Fence, region: Some(self.number) };
        if self.failed.load(Relaxed) || self.missed_failure(&state) {
            self.failed.store(true, Relaxed);
            state.record(ignored);
            let source = io::Error::other("an earlier sync failed, what is durable is unknown; reopen to recover");
            return Err(Error::Io { location: self.place(), doing: "syncing", source });
        }
        match state.strike(Point::Fence, &self.place(), self.len) {
            Ok(false) => state.record(Op::Fence { region: self.number }),
            Ok(true) => state.record(ignored),
            Err(error) => {
                *state.failures.entry(self.number).or_default() += 1;
                self.failed.store(true, Relaxed);
                state.record(match self.sim.model {
                    Model::File => Op::FailedFence { region: self.number },
                    Model::Line => ignored,
                });
                return Err(error);
            }
        }
        Ok(())
    }
    fn reserve(&self, off: u64, len: u64) -> Result<()> {
        in_range(&self.place(), off, len, self.len, self.writable)?;
        let mut state = self.state();
        state.strike(Point::Reserve, &self.place(), len)?;
        if let Some(reserved) = state.reserved.get_mut(&self.number) {
            reserved.add(off, len);
        }
        Ok(())
    }
    fn bytes(&self) -> Option<NonNull<[u8]>> {
        None
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
