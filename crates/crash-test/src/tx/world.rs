//! A generation of random transactions on a pool, and what came of it.
//!
//! One thread plays all sessions in turn, which the seed repeats; or each session is a thread of its own, on few cells, and the medium makes
//! them linger: then transactions that depend on each other have their records on the way at the same time.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::Medium;
use towa_media::sim::SimMedium;
use towa_tx::{Addr, Checkpointer, Commit, Error, Options, Pool, Root, WORD};

use super::history::{Base, History, Record, note};
use super::jitter::Jitter;
use super::session::{CELLS_LEN, Session};
use super::shape::Shape;

/// Name of the cells' root.
pub const ROOT: &str = "cells";

/// The work and its outcome.
#[derive(Debug)]
pub struct World {
    /// What was done.
    pub history: History,
    /// Transactions that took effect.
    pub transactions: u64,
    /// Checkpoints that brought up the image.
    pub checkpoints: u64,
    /// Events of the trace when the pool was open: what came before belongs to its creation or recovery.
    pub opened: usize,
    /// Events when the cells were there.
    pub rooted: usize,
    /// Events when closing began; all of them if it was left as a crash leaves it.
    pub closing: usize,
    /// Transactions that were refused for want of space.
    pub refused: u64,
    /// What ended the work before its time: opening failed, or the pool is poisoned.
    pub failed: Option<String>,
}

/// What the sessions of a generation did.
#[derive(Default)]
struct Done {
    records: Vec<Record>,
    refused: u64,
    failed: Option<Error>,
}

impl Done {
    fn add(&mut self, session: Session<'_>, result: Result<(), Error>) {
        self.records.extend(session.records);
        self.refused += session.refused;
        self.failed = self.failed.take().or(result.err());
    }
}

impl World {
    /// Opens (or creates) the pool on `medium`, which is at `base`, and works on it. The pool is left as a crash would leave it, unless
    /// `shape` says that it is closed.
    pub fn run(medium: &SimMedium, rng: &mut SmallRng, base: Base, generation: u64, shape: &Shape) -> Result<World, String> {
        match Self::run_with_faults(medium, rng, base, generation, shape)? {
            World { failed: Some(why), .. } => Err(why),
            world => Ok(world),
        }
    }

    /// [`run`](Self::run) on a medium that may fail. That refuses a transaction or the opening, or else it must poison the pool, which
    /// ends the work.
    pub fn run_with_faults(
        medium: &SimMedium,
        rng: &mut SmallRng,
        base: Base,
        generation: u64,
        shape: &Shape,
    ) -> Result<World, String> {
        medium.strict_space();
        let buffered = shape.commit == Commit::Buffered;
        let notes_before = medium.trace().notes().len();
        let history = History::new(base, buffered, notes_before, Vec::new())?;
        let mut world =
            World { history, transactions: 0, checkpoints: 0, opened: 0, rooted: 0, closing: 0, refused: 0, failed: None };
        let pool = match open(medium, shape) {
            Ok(pool) => pool,
            Err(why) => {
                let events = medium.events();
                (world.opened, world.rooted, world.closing) = (events, events, events);
                world.failed = Some(why.to_string());
                return Ok(world);
            }
        };
        medium.note(note::of(note::OPENED, 0));
        world.opened = medium.events();
        let mut done = Done::default();
        match find_cells(&pool, medium) {
            Ok(cells) => {
                world.rooted = medium.events();
                let make = |rng: &mut SmallRng, thread: usize| {
                    let rng = SmallRng::seed_from_u64(rng.random());
                    Session::new((&pool, medium, shape), rng, cells, (generation + 1, thread as u64))
                };
                if shape.concurrent { together(shape, rng, &make, &mut done) } else { in_turn(shape, rng, &make, &mut done) }
            }
            Err(e) => done.failed = Some(e),
        }
        world.transactions = done.records.len() as u64;
        world.refused = done.refused;
        world.history = History::new(base, buffered, notes_before, done.records)?;
        world.checkpoints = pool.stats().checkpoints;
        world.closing = medium.events();
        if let Some(why) = done.failed {
            // A full medium that refuses the cells or a lane is no reason to be poisoned.
            let refused =
                matches!(why, Error::OutOfSpace { .. } | Error::Heap(towa_heap::Error::Media(towa_media::Error::Full { .. })));
            if !refused && (pool.check().is_ok() || pool.register().is_ok()) {
                return Err(format!("the pool goes on after: {why}"));
            }
            pool.abandon();
            world.failed = Some(why.to_string());
        } else if !shape.close {
            pool.abandon();
        } else if let Err(e) = pool.close() {
            world.failed = Some(e.to_string());
        } else {
            medium.note(note::of(note::CLOSED, 0));
        }
        Ok(world)
    }
}

fn in_turn<'w>(shape: &Shape, rng: &mut SmallRng, make: &dyn Fn(&mut SmallRng, usize) -> Session<'w>, done: &mut Done) {
    let mut sessions: Vec<_> = (0..shape.threads).map(|thread| make(rng, thread)).collect();
    let steps = shape.steps * shape.threads;
    let result = (0..steps).try_for_each(|_| sessions[rng.random_range(0..shape.threads)].step());
    let mut result = Some(result);
    sessions.into_iter().for_each(|session| done.add(session, result.take().unwrap_or(Ok(()))));
}

fn together<'w>(shape: &Shape, rng: &mut SmallRng, make: &dyn Fn(&mut SmallRng, usize) -> Session<'w>, done: &mut Done) {
    let sessions: Vec<_> = (0..shape.threads).map(|thread| make(rng, thread)).collect();
    std::thread::scope(|scope| {
        let work = |mut session: Session<'w>| {
            let result = (0..shape.steps).try_for_each(|_| session.step());
            (session, result)
        };
        let running: Vec<_> = sessions.into_iter().map(|session| scope.spawn(move || work(session))).collect();
        for thread in running {
            let (session, result) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.add(session, result);
        }
    });
}

/// Opens the pool on `medium`, which is created where there is none.
fn open(medium: &SimMedium, shape: &Shape) -> Result<Pool, Error> {
    let options = Options {
        heap_len: shape.heap_len,
        lanes: shape.lanes,
        lane_len: shape.lane_len,
        tm: shape.tm,
        commit: shape.commit,
        checkpointer: if shape.background { Checkpointer::Thread } else { Checkpointer::Manual },
        interval: Duration::from_millis(1),
        eager: true,
        base: Some(free_base()),
        ..Options::default()
    };
    let medium: Arc<dyn Medium> = if shape.concurrent { Arc::new(Jitter(medium.clone())) } else { Arc::new(medium.clone()) };
    match Pool::open_on(Arc::clone(&medium), &options) {
        Err(Error::Heap(towa_heap::Error::Missing { .. })) => Pool::create_on(medium, &options),
        other => other,
    }
}

/// An address for a pool of its own: worlds of parallel tests live in one process.
fn free_base() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5100_0000_0000);
    NEXT.fetch_add(64 << 20, Relaxed)
}

/// The cells, which are made where there are none.
fn find_cells(pool: &Pool, sim: &SimMedium) -> Result<Addr, Error> {
    if let Some(root) = pool.root(ROOT) {
        return Ok(root.ptr.as_ptr().addr() as Addr);
    }
    let mut thread = pool.register()?;
    let cells = thread.transaction(|tx| {
        let block = tx.alloc(CELLS_LEN as usize)?;
        tx.init(block, &vec![0; (CELLS_LEN / WORD) as usize])?;
        let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(block as usize)).expect("an address");
        tx.set_root(ROOT, Some(Root { ptr, type_tag: 1, size: CELLS_LEN }))?;
        Ok(block)
    })?;
    drop(thread);
    if pool.commit_mode() == Commit::Buffered {
        pool.sync()?;
    }
    sim.note(note::of(note::ROOTED, 0));
    Ok(cells)
}
