//! One thread's random transactions.
//!
//! ```text
//!   cells:  | cell 0: id ptr size object filled filler rooted version | cell 1 | ... | mirrors: id 0, id 1, ... |
//!                      └─► object: a block filled with a pattern of who made it
//! ```
//!
//! Each change of a cell reads it first, gives it the transaction's number, there and in its mirror in another line, and stamps its version.
//! Besides, it may give the cell a new object and free the old one, remove it, write over its first words, or set or remove a root.
//! What must always hold: a transaction sees each cell as one other left it, its mirror and its object alike.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;
use towa_media::sim::SimMedium;
use towa_tx::{Abort, Addr, Error, Pool, Root, Thread, Tx, WORD};

use super::history::{CELLS, Cell, Record, note, pattern};
use super::shape::Shape;

/// Bytes from cell to cell.
pub const CELL: u64 = 64;
/// Bytes of all.
pub const CELLS_LEN: u64 = CELLS as u64 * (CELL + WORD);
const VERSION: u64 = 7 * WORD;

/// Address of word `word` of a cell.
fn at(cells: Addr, cell: usize, word: u64) -> Addr {
    cells + cell as u64 * CELL + word * WORD
}

/// Address of a cell's mirror.
pub fn mirror(cells: Addr, cell: usize) -> Addr {
    cells + CELLS as u64 * CELL + cell as u64 * WORD
}

/// Name of a cell's root.
pub fn root_name(cell: usize) -> String {
    format!("root-{cell}")
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Number,
    Fill(u64),
    Replace(usize),
    Remove,
    Root,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Commit,
    Abort,
    Stale,
    Panic,
}

/// What a transaction is to do, the same in each of its runs.
#[derive(Debug)]
struct Plan {
    reads: Vec<usize>,
    changes: Vec<(usize, Change)>,
    guarded: bool,
    software: bool,
    end: End,
}

impl Plan {
    /// The cell, if a number is all that changes, under its version: that needs no body.
    fn is_one_number(&self) -> Option<usize> {
        match (&self.reads[..], &self.changes[..], self.end) {
            (&[], &[(cell, Change::Number)], End::Commit) if self.guarded => Some(cell),
            _ => None,
        }
    }
}

/// A thread at work.
pub struct Session<'w> {
    pool: &'w Pool,
    sim: &'w SimMedium,
    shape: &'w Shape,
    rng: SmallRng,
    cells: Addr,
    thread: Option<Thread>,
    /// Generation and thread, as they stand in numbers.
    who: u64,
    count: u64,
    /// What took effect.
    pub records: Vec<Record>,
    /// Transactions that were refused for want of space.
    pub refused: u64,
}

impl<'w> Session<'w> {
    /// The `thread`-th of a generation.
    pub fn new(
        (pool, sim, shape): (&'w Pool, &'w SimMedium, &'w Shape),
        rng: SmallRng,
        cells: Addr,
        (generation, thread): (u64, u64),
    ) -> Session<'w> {
        let who = generation << 40 | thread << 32;
        Session { pool, sim, shape, rng, cells, thread: None, who, count: 0, records: Vec::new(), refused: 0 }
    }

    /// Does one thing: mostly a transaction.
    ///
    /// # Errors
    /// The pool failed.
    pub fn step(&mut self) -> Result<(), Error> {
        if self.rng.random_ratio(1, self.shape.checkpoint_one_in) {
            return if self.rng.random_ratio(1, 3) { self.sync() } else { self.pool.checkpoint() };
        }
        if self.thread.is_none() || self.rng.random_ratio(1, 40) {
            // The lane goes, and another comes.
            self.thread = None;
            match self.pool.register() {
                Ok(thread) => self.thread = Some(thread),
                Err(Error::Heap(towa_heap::Error::Media(towa_media::Error::Full { .. }))) => {
                    self.refused += 1;
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        let plan = self.plan();
        self.transact(&plan)
    }

    fn sync(&mut self) -> Result<(), Error> {
        self.count += 1;
        let what = self.who | self.count;
        self.sim.note(note::of(note::SYNCING, what));
        self.pool.sync()?;
        self.sim.note(note::of(note::SYNCED, what));
        Ok(())
    }

    fn plan(&mut self) -> Plan {
        let (rng, shape) = (&mut self.rng, self.shape);
        let guarded = rng.random_ratio(shape.guarded_percent, 100);
        let mut cells = sample(rng, shape.cells, shape.cells.min(4)).into_vec();
        let reads = cells.split_off(rng.random_range(0..cells.len()));
        let reads = reads.into_iter().take(rng.random_range(0..3)).collect();
        cells.truncate(rng.random_range(0..=cells.len()));
        let change = |rng: &mut SmallRng| {
            let allocating = rng.random_ratio(shape.allocating_percent, 100);
            match rng.random_range(0..10) {
                0..2 => Change::Fill(rng.random_range(1..=24)),
                2 if allocating => Change::Remove,
                3 if allocating => Change::Root,
                4.. if allocating && shape.large_max > 0 && rng.random_ratio(shape.large_percent, 100) => {
                    Change::Replace(rng.random_range(4096..=shape.large_max))
                }
                4.. if allocating => Change::Replace(rng.random_range(1..=shape.size_max)),
                _ => Change::Number,
            }
        };
        let changes = cells.into_iter().map(|cell| (cell, change(rng))).collect();
        let end = match rng.random_range(0..60) {
            0..4 => End::Abort,
            4..8 => End::Stale,
            8 => End::Panic,
            _ => End::Commit,
        };
        Plan { reads, changes, guarded, software: rng.random_ratio(1, 4), end }
    }

    fn transact(&mut self, plan: &Plan) -> Result<(), Error> {
        self.count += 1;
        let id = self.who | self.count;
        let mut record = Record { note: id, id, ..Record::default() };
        let (cells, thread) = (self.cells, self.thread.as_mut().expect("registered"));
        self.sim.note(note::of(note::INVOKED, id));
        let alone = plan.is_one_number();
        let result = catch_unwind(AssertUnwindSafe(|| {
            if let Some(cell) = alone {
                return number(thread, (cells, cell), &mut record);
            }
            let mut body = |tx: &mut Tx<'_>| run(tx, plan, cells, &mut record);
            match (plan.guarded, plan.software) {
                (true, true) => thread.transaction_guarded_software(&mut body),
                (true, false) => thread.transaction_guarded(&mut body),
                (false, true) => thread.transaction_software(&mut body),
                (false, false) => thread.transaction(&mut body),
            }
        }));
        let failed = match result {
            Ok(Ok(())) => None,
            Err(_) if matches!(plan.end, End::Panic) => return Ok(()),
            Err(panic) => resume_unwind(panic),
            Ok(Err(Error::Aborted(_) | Error::Stale)) => return Ok(()),
            Ok(Err(Error::OutOfSpace { .. } | Error::TooLarge { .. })) => {
                self.refused += 1;
                return Ok(());
            }
            Ok(Err(e)) => Some(e),
        };
        record.unknown = failed.is_some();
        self.records.push(record);
        if failed.is_none() {
            self.sim.note(note::of(note::RETURNED, id));
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Gives a cell the transaction's number, as read outside of transactions.
fn number(thread: &mut Thread, (cells, cell): (Addr, usize), record: &mut Record) -> Result<(), Error> {
    loop {
        let version_at = at(cells, cell, 0) + VERSION;
        let Some(version) = thread.load_version(version_at) else {
            std::thread::yield_now();
            continue;
        };
        let old = cell_of(std::array::from_fn(|word| thread.load(at(cells, cell, word as u64))));
        let mirrored = thread.load(mirror(cells, cell));
        // If it fails, it may be there all the same.
        record.reads = vec![(cell, old.id)];
        record.writes = vec![(cell, Cell { id: record.id, ..old })];
        match thread.change_guarded(version_at, version, [(at(cells, cell, 0), record.id), (mirror(cells, cell), record.id)]) {
            Err(Error::Stale) => continue,
            done => done?,
        }
        if mirrored != old.id {
            record.torn = Some(format!("cell {cell} says {:#x}, its mirror {mirrored:#x}", old.id));
        }
        return Ok(());
    }
}

/// The body of a transaction.
fn run(tx: &mut Tx<'_>, plan: &Plan, cells: Addr, record: &mut Record) -> Result<(), Abort> {
    record.reads.clear();
    record.writes.clear();
    record.torn = None;
    for &cell in &plan.reads {
        read_cell(tx, plan, cells, cell, record)?;
    }
    for &(cell, change) in &plan.changes {
        let old = read_cell(tx, plan, cells, cell, record)?;
        let new = make(tx, plan, (cells, cell), old, change, record.id)?;
        for (word, (before, now)) in (0..).zip(words(&old).into_iter().zip(words(&new))) {
            if before != now {
                write(tx, plan, at(cells, cell, word), now)?;
            }
        }
        write(tx, plan, mirror(cells, cell), new.id)?;
        tx.touch(at(cells, cell, 0) + VERSION)?;
        record.writes.push((cell, new));
    }
    match plan.end {
        End::Commit => Ok(()),
        End::Abort => tx.abort("a test"),
        End::Stale => tx.stale(),
        End::Panic => resume_unwind(Box::new("on purpose")),
    }
}

fn words(c: &Cell) -> [u64; 7] {
    [c.id, c.ptr, c.size, c.object, c.filled, c.filler, c.rooted]
}

/// A cell of these words.
pub fn cell_of(w: [u64; 7]) -> Cell {
    Cell { id: w[0], ptr: w[1], size: w[2], object: w[3], filled: w[4], filler: w[5], rooted: w[6] }
}

fn read(tx: &mut Tx<'_>, plan: &Plan, a: Addr) -> Result<u64, Abort> {
    if plan.guarded { tx.read_guarded(a) } else { tx.read(a) }
}

fn write(tx: &mut Tx<'_>, plan: &Plan, a: Addr, value: u64) -> Result<(), Abort> {
    if plan.guarded { tx.write_guarded(a, value) } else { tx.write(a, value) }
}

fn read_cell(tx: &mut Tx<'_>, plan: &Plan, cells: Addr, cell: usize, record: &mut Record) -> Result<Cell, Abort> {
    if plan.guarded {
        tx.read_version(at(cells, cell, 0) + VERSION)?;
    }
    let mut words = [0; 7];
    for (number, word) in (0..).zip(&mut words) {
        *word = read(tx, plan, at(cells, cell, number))?;
    }
    let (found, mirrored) = (cell_of(words), read(tx, plan, mirror(cells, cell))?);
    if mirrored != found.id {
        record.torn = Some(format!("cell {cell} says {:#x}, its mirror {mirrored:#x}", found.id));
    }
    if found.ptr != 0 && found.size >= WORD {
        let word = record.id % (found.size / WORD);
        let wanted = pattern(if word < found.filled { found.filler } else { found.object }, cell, word);
        let there = read(tx, plan, found.ptr + word * WORD)?;
        if there != wanted {
            record.torn = Some(format!("word {word} of the object of {found:x?} is {there:#x}, should be {wanted:#x}"));
        }
    }
    record.reads.push((cell, found.id));
    Ok(found)
}

/// Changes a cell, but for its words.
fn make(tx: &mut Tx<'_>, plan: &Plan, (cells, cell): (Addr, usize), old: Cell, change: Change, id: u64) -> Result<Cell, Abort> {
    let numbered = Cell { id, ..old };
    match change {
        Change::Number => Ok(numbered),
        Change::Fill(words) => {
            // No fewer than before: what was written over stays so.
            let filled = words.max(old.filled).min(old.size / WORD);
            for word in 0..filled {
                write(tx, plan, old.ptr + word * WORD, pattern(id, cell, word))?;
            }
            Ok(Cell { filled, filler: if filled > 0 { id } else { old.filler }, ..numbered })
        }
        Change::Remove if old.ptr != 0 => {
            tx.free(old.ptr)?;
            Ok(Cell { ptr: 0, size: 0, object: 0, filled: 0, filler: 0, ..numbered })
        }
        Change::Replace(size) => {
            if old.ptr != 0 {
                tx.free(old.ptr)?;
            }
            let ptr = tx.alloc(size)?;
            let words: Vec<u64> = (0..size as u64 / WORD).map(|word| pattern(id, cell, word)).collect();
            tx.init(ptr, &words)?;
            Ok(Cell { ptr, size: size as u64, object: id, filled: 0, filler: 0, ..numbered })
        }
        Change::Root => {
            let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(cells as usize)).expect("the cells are there");
            let root = (old.rooted == 0).then_some(Root { ptr, type_tag: id, size: CELL });
            tx.set_root(&root_name(cell), root)?;
            Ok(Cell { rooted: root.map_or(0, |_| id), ..numbered })
        }
        Change::Remove => Ok(numbered),
    }
}
