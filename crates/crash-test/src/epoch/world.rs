//! Random transactional work on a pool, and what each epoch made of it.
//!
//! ```text
//!   root "cells" ─► | cell 0 | cell 1 | ... |   a line each: pointer, version, size
//!                      └─► object: a block filled with a pattern of (cell, version, position)
//! ```
//!
//! A transaction replaces, rewrites in part, or removes the objects of some cells. Several threads are played by one: each has its own
//! registration, and a transaction may stay open across the boundary of an epoch, holding its cells, while others of the new epoch
//! run on other cells between the steps of the checkpoint. Some are undoable, and of these every other one aborts.
//!
//! Now and then chunks are cleared: the objects in them are removed, and their space goes to the thread that did it, whatever free blocks of them
//! other threads have at hand.
//!
//! What a pool is like, its log so small that it wraps, or its commit slots so few, is a [`Shape`](super::Shape).

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rand::Rng;
use rand::rngs::SmallRng;
use towa_epoch::{Cleared, Clearing, Error, Mode, Options, Phase, Pool, Root, Thread, Tx};
use towa_heap::superblock::Door;
use towa_heap::{CreateOptions, Heap, LogShape};
use towa_media::Medium;
use towa_media::sim::SimMedium;

use super::history::{Change, History};
use super::shape::Shape;
use crate::kill::KillMedium;

/// Name of the root.
pub const ROOT: &str = "cells";
/// Number of cells.
pub const CELLS: usize = 20;
/// Bytes from cell to cell: a line, so that transactions on different cells share none.
pub const CELL: usize = 64;
/// Notes with this bit: the pool was closed at the epoch in the other bits.
pub const CLOSED: u64 = 1 << 63;
const THREADS: usize = 3;
/// Most large objects at a time: each takes some chunks of the heap.
const LARGE_MAX: usize = 3;
/// What a change to a cell marks beside the object's own bytes: headers, and the cell's line.
const CHANGE_OVERHEAD: usize = 512;

/// A cell, as stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cell {
    /// Address of the object; 0: none.
    pub ptr: u64,
    /// Which filling.
    pub version: u64,
    /// Bytes of the object.
    pub size: u64,
    /// Bytes up to here have this version's filling, the others the one of `version - 1`.
    pub filled: u64,
}

/// The bytes from `from` on of the object of cell `i`.
pub fn pattern(i: usize, cell: &Cell, from: usize, into: &mut [u8]) {
    let new = (cell.filled as usize).clamp(from, from + into.len()) - from;
    let (new, old) = into.split_at_mut(new);
    let old_from = from + new.len();
    for (part, version, from) in [(new, cell.version, from), (old, cell.version - 1, old_from)] {
        let first = (version as u32).wrapping_mul(0x9E37_79B9).wrapping_add(i as u32 * 31);
        for (at, byte) in part.iter_mut().enumerate() {
            *byte = (first.wrapping_add((from + at) as u32 * 7) >> 3) as u8;
        }
    }
}

/// A medium that records what a world does to it.
pub trait Stage: Medium + Clone + 'static {
    /// Records a note: what the program has promised by now.
    fn note(&self, note: u64);
    /// How many events were recorded.
    fn events(&self) -> usize;
    /// What a program that writes where nothing was reserved would do on a full medium, it does here.
    fn strict_space(&self) {}
    /// The pool was opened.
    fn opened(&self, _pool: &Pool) {}
}

impl Stage for SimMedium {
    fn note(&self, note: u64) {
        SimMedium::note(self, note);
    }
    fn events(&self) -> usize {
        SimMedium::events(self)
    }
    fn strict_space(&self) {
        SimMedium::strict_space(self);
    }
}

impl Stage for KillMedium {
    fn note(&self, note: u64) {
        KillMedium::note(self, note);
    }
    fn events(&self) -> usize {
        KillMedium::events(self)
    }
    fn opened(&self, pool: &Pool) {
        let (first, len) = pool.heap_range();
        self.watch("image", first, len as usize);
    }
}

/// A transaction that is open, with the changes it has made so far.
struct Open {
    thread: usize,
    cells: BTreeSet<usize>,
    changes: Vec<Change>,
    undoable: bool,
}

/// The work and its outcome.
#[derive(Debug)]
pub struct World {
    /// What was done.
    pub history: History,
    /// Checkpoints taken.
    pub epochs: u64,
    /// Transactions ended.
    pub transactions: u64,
    /// Events of the trace when the pool was open: what came before belongs to its creation or recovery.
    pub opened: usize,
    /// Events when closing began; all of them if it was left as a crash leaves it.
    pub closing: usize,
    /// Allocations that were refused for want of space.
    pub refused: u64,
    /// Windows of chunks that were cleared.
    pub cleared: u64,
    /// What ended the work before its time: opening failed, or the pool is poisoned.
    pub failed: Option<String>,
}

struct Worker<'r> {
    rng: &'r mut SmallRng,
    shape: Shape,
    threads: Vec<Thread>,
    cells: NonNull<u8>,
    open: Vec<Open>,
    history: History,
    transactions: u64,
    refused: u64,
    /// Chunks that a thread clears.
    clearing: Option<(usize, Clearing)>,
    cleared: u64,
    /// A transaction found no log space: time for a checkpoint.
    short: bool,
}

impl World {
    /// [`run_shaped`](Self::run_shaped) on a pool with a roomy log.
    pub fn run(medium: SimMedium, rng: &mut SmallRng, history: History) -> Result<World, String> {
        let shape = Shape::plain(rng);
        Self::run_shaped(medium, rng, history, &shape)
    }

    /// Opens (or creates) the pool on `medium` and works on it for some epochs, noting each durable epoch in the medium's trace. The
    /// pool is left as a crash would, unless `shape` says that it is closed.
    pub fn run_shaped(medium: impl Stage, rng: &mut SmallRng, history: History, shape: &Shape) -> Result<World, String> {
        let world = Self::run_with_faults(medium, rng, history, shape)?;
        match world {
            World { failed: Some(why), .. } => Err(why),
            World { refused: 1.., .. } => Err("an allocation was refused".into()),
            world => Ok(world),
        }
    }

    /// [`run_shaped`](Self::run_shaped) on a medium that may fail. That refuses an allocation, or the opening, or else it must poison
    /// the pool, which ends the work.
    pub fn run_with_faults(medium: impl Stage, rng: &mut SmallRng, history: History, shape: &Shape) -> Result<World, String> {
        let sim = medium.clone();
        sim.strict_space();
        let mut world = World { history, epochs: 0, transactions: 0, opened: 0, closing: 0, refused: 0, cleared: 0, failed: None };
        let pool = match open(medium, shape) {
            Ok(pool) => pool,
            Err(why) => {
                (world.opened, world.closing, world.failed) = (sim.events(), sim.events(), Some(why));
                return Ok(world);
            }
        };
        sim.opened(&pool);
        if pool.is_in_place() {
            world.history.pass_over(pool.durable_epoch());
        }
        sim.note(pool.durable_epoch());
        world.opened = sim.events();
        let threads = (0..THREADS).map(|_| pool.register()).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
        let mut worker = Worker {
            rng,
            shape: *shape,
            threads,
            cells: NonNull::dangling(),
            open: Vec::new(),
            history: world.history,
            transactions: 0,
            refused: 0,
            clearing: None,
            cleared: 0,
            short: false,
        };
        let result = worker.find_cells(&pool).and_then(|()| {
            (0..shape.epochs).try_for_each(|_| {
                worker.work();
                world.epochs += 1;
                worker.checkpoint(&pool, &sim)
            })
        });
        worker.finish_open();
        worker.clearing = None;
        (world.history, world.transactions) = (worker.history, worker.transactions);
        (world.refused, world.cleared) = (worker.refused, worker.cleared);
        drop(worker.threads);
        world.closing = sim.events();
        if let Err(why) = result {
            if !matches!(pool.checkpoint(), Err(Error::Poisoned { .. })) || pool.register().is_ok() {
                return Err(format!("the pool goes on after: {why}"));
            }
            pool.abandon();
            world.failed = Some(why);
        } else if !shape.close {
            // Left as a crash would leave it: without the last checkpoint.
            pool.abandon();
        } else if let Err(e) = pool.close() {
            world.failed = Some(e.to_string());
        } else {
            sim.note(CLOSED | world.history.newest);
        }
        Ok(world)
    }
}

/// Opens the pool on `medium`, which is created where there is none.
fn open(medium: impl Stage, shape: &Shape) -> Result<Pool, String> {
    let options = Options { manual: true, mode: shape.mode, persisters: shape.persisters, ..Options::default() };
    let medium = Arc::new(medium);
    match Pool::open_on(medium.clone(), &options) {
        Err(Error::Heap(towa_heap::Error::Missing { .. })) => {}
        other => return other.map_err(|e| e.to_string()),
    }
    let len = Some(shape.log_len);
    let log = if shape.in_place { LogShape::Undo { len } } else { LogShape::Ring { len } };
    let create = CreateOptions { door: Door::Epoch, heap_len: shape.heap_len, log, base: Some(free_base()), prefault: false };
    let slots = if shape.in_place { 0 } else { shape.commit_slots };
    Heap::create_with_log(medium.clone(), &create, slots, shape.log_start).map_err(|e| e.to_string())?;
    Pool::open_on(medium, &options).map_err(|e| e.to_string())
}

/// An address for a pool of its own: worlds of parallel tests live in one process.
fn free_base() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x3100_0000_0000);
    NEXT.fetch_add(64 << 20, Relaxed)
}

impl Worker<'_> {
    fn find_cells(&mut self, pool: &Pool) -> Result<(), String> {
        if let Some(root) = pool.root(ROOT) {
            self.cells = root.ptr;
            self.find_lost();
            return Ok(());
        }
        if !self.begin(0, false, 2 * CELLS * CELL + CHANGE_OVERHEAD) {
            // What was recovered may fill the log.
            pool.apply_now().map_err(|e| e.to_string())?;
            assert!(self.begin(0, false, 2 * CELLS * CELL + CHANGE_OVERHEAD), "an empty log takes a transaction");
        }
        let tx = self.threads[0].resume().expect("just begun");
        // What a medium refuses now, it has later.
        let block =
            std::iter::from_fn(|| Some(tx.alloc(CELLS * CELL + CELL))).inspect(|block| self.refused += u64::from(block.is_err()));
        let block = block.take(100).find_map(Result::ok).expect("room for the cells");
        // Blocks are aligned to 16: cells begin at the next line.
        let cells = block.as_ptr().map_addr(|a| a.next_multiple_of(CELL));
        // SAFETY: within the fresh block, already marked.
        unsafe { std::ptr::write_bytes(cells, 0, CELLS * CELL) };
        self.cells = NonNull::new(cells).expect("not null");
        let root = Root { ptr: self.cells, type_tag: 1, size: (CELLS * CELL) as u64 };
        // SAFETY: the cells just zeroed, in a live block.
        unsafe { tx.set_root(ROOT, Some(root)) }.expect("a free root slot");
        let epoch = tx.commit();
        self.history.newest = self.history.newest.max(epoch);
        Ok(())
    }

    /// Notes which objects the crash left lost. No later crash makes another of them lost, unless it is discarded again.
    fn find_lost(&mut self) {
        let mut lost = BTreeSet::new();
        for i in 0..CELLS {
            // SAFETY: cell `i` is in the live block of cells, which no transaction changes now.
            let cell = unsafe { self.cells.as_ptr().wrapping_add(i * CELL).cast::<Cell>().read() };
            if NonNull::new(cell.ptr as *mut u8).is_some_and(|object| is_lost(object, &cell)) {
                lost.insert(cell.version);
            }
        }
        self.history.lost = lost;
    }

    /// Some transactions, one after another; now and then one stays open.
    fn work(&mut self) {
        for _ in 0..self.rng.random_range(self.shape.transactions.0..=self.shape.transactions.1) {
            self.one();
        }
    }

    /// Begins a transaction that writes up to `bytes`, unless the log has no space for it now.
    fn begin(&mut self, thread: usize, undoable: bool, bytes: usize) -> bool {
        let thread = &mut self.threads[thread];
        let begun = if undoable { thread.begin_undoable_reserving(bytes) } else { thread.begin_reserving(bytes) };
        match begun.map(std::mem::forget) {
            Ok(()) => true,
            Err(Error::Usage(why)) if why.contains("no log space") => {
                self.short = true;
                false
            }
            Err(e) => panic!("the pool takes transactions: {e}"),
        }
    }

    fn one(&mut self) {
        if self.rng.random_ratio(1, 6) {
            self.clear();
        }
        let busy: BTreeSet<usize> = self.open.iter().map(|o| o.thread).collect();
        let Some(thread) = (0..THREADS).filter(|t| !busy.contains(t)).max_by_key(|_| self.rng.random::<u32>()) else {
            return self.finish_open();
        };
        let held: BTreeSet<usize> = self.open.iter().flat_map(|o| o.cells.iter().copied()).collect();
        let mut cells = BTreeSet::new();
        for _ in 0..self.rng.random_range(1..4) {
            let cell = self.rng.random_range(0..CELLS);
            if !held.contains(&cell) {
                cells.insert(cell);
            }
        }
        let undoable = self.rng.random_ratio(self.shape.undoable_percent, 100);
        let large = if self.shape.large_max > 0 && self.rng.random_ratio(1, 6) && self.large_objects() < LARGE_MAX {
            self.rng.random_range(4097..=self.shape.large_max)
        } else {
            0
        };
        // It may change its cells twice: again before it ends, if it stays open.
        let bytes = cells.len() * 2 * (self.shape.size_max as usize + CHANGE_OVERHEAD) + large as usize;
        if !self.begin(thread, undoable, bytes) {
            return;
        }
        let mut open = Open { thread, cells, changes: Vec::new(), undoable };
        self.change(&mut open, large);
        if self.rng.random_ratio(1, 3) && self.open.len() + 1 < THREADS {
            self.open.push(open);
        } else {
            self.end(open);
        }
    }

    /// Begins to clear some chunks, or goes on with it: removes the objects in them, as far as their cells are not held, and settles.
    fn clear(&mut self) {
        let Some((thread, clearing)) = self.clearing.take() else {
            let thread = self.rng.random_range(0..THREADS);
            let free = self.open.iter().all(|open| open.thread != thread);
            let survey = self.threads[thread].pool().survey(self.rng.random(), self.rng.random_range(1..200_000));
            let begun = survey.filter(|_| free).and_then(|survey| self.threads[thread].clear(&survey));
            self.clearing = begun.map(|clearing| (thread, clearing));
            return;
        };
        if self.open.iter().any(|open| open.thread == thread) {
            self.clearing = Some((thread, clearing));
            return;
        }
        let mut live = BTreeSet::new();
        clearing.live(0, usize::MAX, |address| {
            live.insert(address as u64);
        });
        self.remove_objects(thread, &live);
        self.settle(thread, clearing);
    }

    fn settle(&mut self, thread: usize, mut clearing: Clearing) {
        match self.threads[thread].settle(&mut clearing) {
            Ok(Cleared::Yes) => self.cleared += 1,
            // Else it is given up, now or later.
            Ok(_) if self.rng.random_ratio(3, 4) => self.clearing = Some((thread, clearing)),
            _ => {}
        }
    }

    /// Removes the objects at these addresses, in one transaction, but for those whose cells others hold.
    fn remove_objects(&mut self, thread: usize, live: &BTreeSet<u64>) {
        let held: BTreeSet<usize> = self.open.iter().flat_map(|o| o.cells.iter().copied()).collect();
        if !self.begin(thread, false, CELLS * CHANGE_OVERHEAD) {
            return;
        }
        let tx = self.threads[thread].resume().expect("just begun");
        for i in (0..CELLS).filter(|i| !held.contains(i)) {
            let at = self.cells.as_ptr().wrapping_add(i * CELL).cast::<Cell>();
            // SAFETY: cell `i` is in the live block of cells, and held by no other transaction.
            let old = unsafe { at.read() };
            let Some(object) = NonNull::new(old.ptr as *mut u8).filter(|_| live.contains(&old.ptr)) else { continue };
            let discard = self.shape.discards(self.rng);
            // SAFETY: the cell's own live block, which the cell forgets; marked.
            unsafe {
                give_up(&tx, object, &old, discard, &mut self.history);
                tx.mark(at.cast(), size_of::<Cell>());
                at.write(Cell { ptr: 0, ..old });
            }
            self.history.changes.push((tx.epoch(), i, None));
            self.history.newest = self.history.newest.max(tx.epoch());
        }
        tx.commit();
        self.transactions += 1;
    }

    /// Cells whose objects are large.
    fn large_objects(&self) -> usize {
        let state = self.history.state(u64::MAX);
        state.iter().flatten().filter(|cell| cell.size > 4096).count()
    }

    /// Ends the transactions that are open, each after one more change to its cells.
    fn finish_open(&mut self) {
        for mut open in std::mem::take(&mut self.open) {
            self.change(&mut open, 0);
            self.end(open);
        }
    }

    fn end(&mut self, open: Open) {
        self.transactions += 1;
        let tx = self.threads[open.thread].resume().expect("a running transaction");
        if open.undoable && self.rng.random() {
            return tx.abort();
        }
        tx.commit();
        self.history.changes.extend(open.changes);
    }

    /// Changes each of the transaction's cells; the first becomes an object of `large` bytes, if that is not 0.
    fn change(&mut self, open: &mut Open, mut large: u64) {
        let tx = self.threads[open.thread].resume().expect("a running transaction");
        for &i in &open.cells {
            let at = self.cells.as_ptr().wrapping_add(i * CELL).cast::<Cell>();
            // SAFETY: cell `i` is in the live block of cells and held by this transaction.
            let old = unsafe { at.read() };
            let size = match std::mem::take(&mut large) {
                0 => None,
                large => Some(large),
            };
            // In an undoable transaction, to discard is to free.
            let shape = Shape { discard_percent: if open.undoable { 0 } else { self.shape.discard_percent }, ..self.shape };
            let new = change_cell(&tx, (i, old), &mut self.history, (size, &shape), &mut self.refused, self.rng);
            // SAFETY: as above, and marked.
            unsafe {
                tx.mark(at.cast(), size_of::<Cell>());
                at.write(new);
            }
            open.changes.push((tx.epoch(), i, (new.ptr != 0).then_some(new)));
            // Aborted or not: what it marked is in its epoch.
            self.history.newest = self.history.newest.max(tx.epoch());
        }
        std::mem::forget(tx);
    }

    /// A checkpoint, with transactions of the new epoch between its steps.
    fn checkpoint(&mut self, pool: &Pool, sim: &impl Stage) -> Result<(), String> {
        let stops = self.shape.mode == Mode::StopTheWorld;
        if stops {
            // It waits for every transaction, and lets none begin, until it is committed.
            self.finish_open();
        }
        let result = pool.checkpoint_observed(&mut |phase| match phase {
            Phase::Committed => sim.note(pool.durable_epoch()),
            Phase::Applied => self.one_ended(),
            _ if stops => {}
            Phase::Advanced => {
                // Those of the old epoch still run; one or two of the new one get in before they end.
                self.one_ended();
                self.finish_open();
            }
            _ => self.one_ended(),
        });
        result.map_err(|e| e.to_string())?;
        let tired = self.shape.apply_one_in > 0 && self.rng.random_ratio(1, self.shape.apply_one_in);
        if std::mem::take(&mut self.short) || tired {
            self.finish_open();
            pool.apply_now().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// A transaction of the new epoch that does not stay open.
    fn one_ended(&mut self) {
        let before = self.open.len();
        self.one();
        if self.open.len() > before {
            let open = self.open.pop().expect("just pushed");
            self.end(open);
        }
    }
}

/// Gives cell `i` a new object (of `large` bytes, if any), a new filling in part, or none: the last also if there is no space.
fn change_cell(
    tx: &Tx<'_>,
    (i, old): (usize, Cell),
    history: &mut History,
    (large, shape): (Option<u64>, &Shape),
    refused: &mut u64,
    rng: &mut SmallRng,
) -> Cell {
    let object = NonNull::new(old.ptr as *mut u8);
    let discard = shape.discards(rng);
    match (object, rng.random_range(0..10)) {
        (Some(object), 0..3) if large.is_none() => {
            // SAFETY: the cell's own live block; the cell forgets it in this transaction.
            unsafe { give_up(tx, object, &old, discard, history) };
            Cell { ptr: 0, ..old }
        }
        // A large object is rewritten in part, too: as far as the transaction has reserved for.
        (Some(object), 3..7) if large.is_none() && old.filled == old.size && !is_lost(object, &old) => {
            let filled = rng.random_range(1..=old.size.min(shape.size_max));
            let new = Cell { version: old.version + 1, filled, ..old };
            fill(tx, i, &new, object, filled as usize);
            new
        }
        (object, _) => {
            if let Some(object) = object {
                // SAFETY: as above.
                unsafe { give_up(tx, object, &old, discard, history) };
            }
            let small = rng.random_range(1..=shape.size_max);
            let allocated = match large.map(|size| (tx.alloc(size as usize), size)) {
                Some((Ok(fresh), size)) => Ok((fresh, size)),
                _ => tx.alloc(small as usize).map(|fresh| (fresh, small)),
            };
            let Ok((fresh, size)) = allocated else {
                *refused += 1;
                return Cell { ptr: 0, ..old };
            };
            // Two numbers for each: of the object, and of its filling in part.
            history.next_version += 2;
            let new = Cell { ptr: fresh.as_ptr().addr() as u64, version: history.next_version, size, filled: size };
            fill(tx, i, &new, fresh, size as usize);
            new
        }
    }
}

/// Whether a crash left the object of a cell lost: no filling begins with eight zeros.
fn is_lost(object: NonNull<u8>, cell: &Cell) -> bool {
    // SAFETY: a live block of more than eight bytes.
    cell.size > Tx::KEPT as u64 && unsafe { object.cast::<u64>().read() } == 0
}

/// Frees the object of a cell, or discards it and says so.
///
/// # Safety
/// As of [`Tx::discard`].
unsafe fn give_up(tx: &Tx<'_>, object: NonNull<u8>, cell: &Cell, discard: bool, history: &mut History) {
    if discard {
        history.discarded.push((tx.epoch(), cell.version));
        // SAFETY: the caller's; what is found after a crash is asked whether it is lost.
        unsafe { tx.discard(object, 0) };
    } else {
        // SAFETY: the caller's.
        unsafe { tx.free(object) };
    }
}

/// Fills the first `len` bytes.
fn fill(tx: &Tx<'_>, i: usize, cell: &Cell, object: NonNull<u8>, len: usize) {
    // SAFETY: within the object, a live block of `cell.size` bytes that this transaction holds; marked.
    let bytes = unsafe {
        tx.mark(object.as_ptr(), len);
        std::slice::from_raw_parts_mut(object.as_ptr(), len)
    };
    pattern(i, cell, 0, bytes);
}
