//! What a world of transactions is like: sizes at which lanes wrap, few cells on which threads meet, all ways of running transactions.

use rand::Rng;
use rand::rngs::SmallRng;
use towa_tx::{Commit, TmChoice, hardware_transactions_commit};

use super::history::CELLS;

/// What a world is like. The first three are fixed at creation.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the heap.
    pub heap_len: u64,
    /// Logs.
    pub lanes: u32,
    /// Bytes of each.
    pub lane_len: u64,
    /// How transactions run.
    pub tm: TmChoice,
    /// When they are durable.
    pub commit: Commit,
    /// Cells that are used: the fewer, the more often transactions depend on each other.
    pub cells: usize,
    /// Real threads; else one plays all.
    pub concurrent: bool,
    /// Checkpoints come from a thread of the pool too, at moments of its own.
    pub background: bool,
    /// Sessions at a time.
    pub threads: usize,
    /// What each session does.
    pub steps: usize,
    /// Objects are this large at most.
    pub size_max: usize,
    /// Objects of up to this many bytes now and then; 0: none.
    pub large_max: usize,
    /// Of a hundred objects so many are.
    pub large_percent: u32,
    /// Of a hundred transactions so many rely on versions.
    pub guarded_percent: u32,
    /// Of a hundred so many allocate and free.
    pub allocating_percent: u32,
    /// One step in so many is a checkpoint.
    pub checkpoint_one_in: u32,
    /// Whether the generation ends in closing the pool.
    pub close: bool,
}

impl Shape {
    /// A world that one thread plays, with the smallest lanes.
    pub fn plain(rng: &mut SmallRng) -> Shape {
        Shape {
            heap_len: 24 * (128 << 10),
            lanes: 6,
            lane_len: 64 << 10,
            tm: if rng.random() { TmChoice::Stm } else { TmChoice::Lock },
            commit: Commit::Strict,
            cells: CELLS,
            concurrent: false,
            background: false,
            threads: 3,
            steps: 30,
            size_max: 700,
            large_max: 0,
            large_percent: 20,
            guarded_percent: 40,
            allocating_percent: 40,
            checkpoint_one_in: 12,
            close: false,
        }
    }

    /// One of many.
    pub fn draw(rng: &mut SmallRng, concurrent: bool) -> Shape {
        let mut shape = Shape::plain(rng);
        shape.concurrent = concurrent;
        if concurrent {
            shape.cells = [2, 3, 4, 8][rng.random_range(0..4)];
            shape.steps = 40;
            shape.allocating_percent = [0, 10, 40][rng.random_range(0..3)];
        }
        match rng.random_range(0..9) {
            // Few threads that log much: their lanes wrap.
            0 | 1 => {
                shape.size_max = 8000;
                shape.threads = 2;
                shape.allocating_percent = 80;
                shape.heap_len = 40 * (128 << 10);
            }
            // Objects of several chunks.
            2 => {
                shape.lane_len = 1 << 20;
                shape.heap_len = 64 * (128 << 10);
                shape.large_max = 300_000;
                shape.steps /= 2;
            }
            // So many small records that lanes wrap by them.
            3 => {
                shape.threads = 1 + usize::from(concurrent);
                shape.steps = 700;
                shape.allocating_percent = 2;
                shape.size_max = 60;
                shape.checkpoint_one_in = 100;
            }
            // Rounds and rounds beside small transactions on few cells: what one has just written is not durable yet when it is taken.
            4 if concurrent => {
                shape.checkpoint_one_in = 3;
                shape.cells = 2;
                shape.allocating_percent = 10;
                shape.steps = 60;
            }
            _ => {}
        }
        shape
    }

    /// The same pool opened again.
    pub fn reopened(mut self, rng: &mut SmallRng) -> Shape {
        self.tm = match rng.random_range(0..3) {
            0 if hardware_transactions_commit() => TmChoice::Rtm,
            1 => TmChoice::Lock,
            _ => TmChoice::Stm,
        };
        self.commit = if rng.random_ratio(1, 4) { Commit::Buffered } else { Commit::Strict };
        self.guarded_percent = [0, 40, 100][rng.random_range(0..3)];
        self.background = self.concurrent && rng.random_ratio(1, 3);
        self.close = rng.random_ratio(1, 3);
        self
    }
}
