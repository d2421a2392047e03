//! Random transactional work on a pool, and what each epoch made of it.
//!
//! ```text
//!   root "cells" ─► | cell 0 | cell 1 | ... |   a line each: pointer, version, size
//!                      └─► object: a block filled with a pattern of (cell, version, position)
//! ```
//!
//! A transaction replaces, rewrites in part, or removes the objects of some cells. Several threads are played by one: each has its own
//! registration, and a transaction may stay open across the boundary of an epoch, holding its cells, while others of the new epoch
//! run on other cells between the steps of the checkpoint.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rand::Rng;
use rand::rngs::SmallRng;
use towa_epoch::{Options, Phase, Pool, Root, Thread, Tx};
use towa_media::sim::SimMedium;

/// Name of the root.
pub const ROOT: &str = "cells";
/// Number of cells.
pub const CELLS: usize = 20;
/// Bytes from cell to cell: a line, so that transactions on different cells share none.
pub const CELL: usize = 64;
const THREADS: usize = 3;
const EPOCHS: usize = 10;

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

/// Byte `at` of the object of cell `i`.
pub fn pattern(i: usize, cell: &Cell, at: usize) -> u8 {
    let version = if (at as u64) < cell.filled { cell.version } else { cell.version - 1 };
    (version.wrapping_mul(0x9E37_79B9).wrapping_add(i as u64 * 31 + at as u64 * 7) >> 3) as u8
}

/// What every epoch changed.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The epoch that the world began with.
    pub base: u64,
    changes: Vec<(u64, usize, Option<Cell>)>,
    newest: u64,
}

impl History {
    /// The cells at the end of `epoch`: everything that transactions of that epoch or an earlier one did.
    pub fn state(&self, epoch: u64) -> [Option<Cell>; CELLS] {
        let mut state = [None; CELLS];
        for (_, i, cell) in self.changes.iter().filter(|c| c.0 <= epoch) {
            state[*i] = *cell;
        }
        state
    }

    /// The newest epoch with changes.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Forgets what came after `epoch`: a crash dropped it.
    pub fn truncate(&mut self, epoch: u64) {
        self.changes.retain(|c| c.0 <= epoch);
        self.newest = epoch;
        self.base = epoch;
    }
}

/// A transaction that is open, with the changes it has made so far.
struct Open {
    thread: usize,
    cells: BTreeSet<usize>,
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
}

struct Worker<'r> {
    rng: &'r mut SmallRng,
    threads: Vec<Thread>,
    cells: NonNull<u8>,
    open: Vec<Open>,
    history: History,
    transactions: u64,
    size_max: u64,
}

impl World {
    /// Opens (or creates) the pool on `medium` and works on it for some epochs, noting each durable epoch in the medium's trace. The
    /// pool is left as a crash would: not closed.
    pub fn run(medium: SimMedium, rng: &mut SmallRng, history: History) -> Result<World, String> {
        let options = Options {
            heap_len: 40 * (128 << 10),
            log_len: Some(2 << 20),
            base: Some(free_base()),
            manual: true,
            ..Options::default()
        };
        let fresh = history.base == 0;
        let (on, sim) = (Arc::new(medium.clone()), medium);
        let pool = if fresh { Pool::create_on(on, &options) } else { Pool::open_on(on, &options) }.map_err(|e| e.to_string())?;
        sim.note(pool.durable_epoch());
        let threads = (0..THREADS).map(|_| pool.register()).collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
        let size_max = if rng.random_ratio(1, 4) { 4000 } else { 900 };
        let mut worker = Worker { rng, threads, cells: NonNull::dangling(), open: Vec::new(), history, transactions: 0, size_max };
        worker.find_cells(&pool);
        for _ in 0..EPOCHS {
            worker.work();
            worker.checkpoint(&pool, &sim)?;
        }
        worker.finish_open();
        let world = World { history: worker.history, epochs: EPOCHS as u64, transactions: worker.transactions };
        drop(worker.threads);
        // Left as a crash would leave it: without the last checkpoint.
        pool.abandon();
        Ok(world)
    }
}

/// An address for a pool of its own: worlds of parallel tests live in one process.
fn free_base() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x3100_0000_0000);
    NEXT.fetch_add(64 << 20, Relaxed)
}

impl Worker<'_> {
    fn find_cells(&mut self, pool: &Pool) {
        if let Some(root) = pool.root(ROOT) {
            self.cells = root.ptr;
            return;
        }
        let tx = self.threads[0].begin().expect("a fresh pool takes transactions");
        let block = tx.alloc(CELLS * CELL + CELL).expect("room for the cells");
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
    }

    /// Some transactions, one after another; now and then one stays open.
    fn work(&mut self) {
        for _ in 0..self.rng.random_range(1..6) {
            self.one();
        }
    }

    fn one(&mut self) {
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
        self.threads[thread].enter_raw(false).expect("the pool takes transactions");
        self.change(thread, &cells);
        if self.rng.random_ratio(1, 3) && self.open.len() + 1 < THREADS {
            self.open.push(Open { thread, cells });
        } else {
            self.end(thread);
        }
    }

    /// Ends the transactions that are open, each after one more change to its cells.
    fn finish_open(&mut self) {
        for open in std::mem::take(&mut self.open) {
            self.change(open.thread, &open.cells);
            self.end(open.thread);
        }
    }

    fn end(&mut self, thread: usize) {
        self.threads[thread].resume().expect("a running transaction").commit();
        self.transactions += 1;
    }

    fn change(&mut self, thread: usize, cells: &BTreeSet<usize>) {
        let tx = self.threads[thread].resume().expect("a running transaction");
        for &i in cells {
            let at = self.cells.as_ptr().wrapping_add(i * CELL).cast::<Cell>();
            // SAFETY: cell `i` is in the live block of cells and held by this transaction.
            let old = unsafe { at.read() };
            let new = change_cell(&tx, i, old, self.size_max, self.rng);
            tx.mark(at.cast(), size_of::<Cell>());
            // SAFETY: as above, and marked.
            unsafe { at.write(new) };
            self.history.changes.push((tx.epoch(), i, (new.ptr != 0).then_some(new)));
            self.history.newest = self.history.newest.max(tx.epoch());
        }
        std::mem::forget(tx);
    }

    /// A checkpoint, with transactions of the new epoch between its steps.
    fn checkpoint(&mut self, pool: &Pool, sim: &SimMedium) -> Result<(), String> {
        let result = pool.checkpoint_observed(&mut |phase| match phase {
            Phase::Advanced => {
                // Those of the old epoch still run; one or two of the new one get in before they end.
                self.one_ended();
                self.finish_open();
            }
            Phase::Committed => sim.note(pool.durable_epoch()),
            _ => self.one_ended(),
        });
        result.map_err(|e| e.to_string())?;
        if self.rng.random_ratio(1, 3) {
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
            self.end(open.thread);
        }
    }
}

/// Gives cell `i` a new object, a new filling in part, or none.
fn change_cell(tx: &Tx<'_>, i: usize, old: Cell, size_max: u64, rng: &mut SmallRng) -> Cell {
    let object = NonNull::new(old.ptr as *mut u8);
    match (object, rng.random_range(0..10)) {
        (Some(object), 0..3) => {
            // SAFETY: the cell's own live block; the cell forgets it in this transaction.
            unsafe { tx.free(object) };
            Cell { ptr: 0, ..old }
        }
        (Some(object), 3..7) if old.filled == old.size => {
            let filled = rng.random_range(1..=old.size);
            let new = Cell { version: old.version + 1, filled, ..old };
            fill(tx, i, &new, object, 0..filled as usize);
            new
        }
        (object, _) => {
            if let Some(object) = object {
                // SAFETY: as above.
                unsafe { tx.free(object) };
            }
            let size = rng.random_range(1..=size_max);
            let fresh = tx.alloc(size as usize).expect("room for twenty objects");
            let new = Cell { ptr: fresh.as_ptr().addr() as u64, version: old.version + 2, size, filled: size };
            fill(tx, i, &new, fresh, 0..size as usize);
            new
        }
    }
}

fn fill(tx: &Tx<'_>, i: usize, cell: &Cell, object: NonNull<u8>, range: std::ops::Range<usize>) {
    tx.mark(object.as_ptr().wrapping_add(range.start), range.len());
    for at in range {
        // SAFETY: within the object, a live block of `cell.size` bytes that this transaction holds; marked.
        unsafe { object.as_ptr().add(at).write(pattern(i, cell, at)) };
    }
}
