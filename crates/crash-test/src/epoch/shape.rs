//! What a world is like: sizes at which something wraps, runs full, or has several parts.

use rand::Rng;
use rand::rngs::SmallRng;
use towa_epoch::Mode;
use towa_heap::log::RING_MIN;

/// What a world is like. The first five are fixed at creation.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the heap.
    pub heap_len: u64,
    /// Whether the image is the working copy.
    pub in_place: bool,
    /// Bytes of the log's ring, or of its blocks.
    pub log_len: u64,
    /// Where in the ring it begins.
    pub log_start: u64,
    /// Commit slots.
    pub commit_slots: u32,
    /// Objects of up to this many bytes now and then; 0: none.
    pub large_max: u64,
    /// Objects are this large at most, otherwise.
    pub size_max: u64,
    /// Checkpoints in a generation.
    pub epochs: usize,
    /// Transactions between checkpoints: at least, at most.
    pub transactions: (usize, usize),
    /// How many of a hundred transactions can be rolled back; every other one is.
    pub undoable_percent: u32,
    /// Of a hundred objects that are removed, how many are discarded and not freed.
    pub discard_percent: u32,
    /// After one checkpoint in so many the image is brought up; 0: only when the pool does it by itself.
    pub apply_one_in: u32,
    /// Threads that read the lines of a checkpoint. With several, the order of their frames in the log is the machine's.
    pub persisters: usize,
    /// Which engine.
    pub mode: Mode,
    /// Whether the generation ends in closing the pool.
    pub close: bool,
}

impl Shape {
    /// A roomy log, as pools have it.
    pub fn plain(rng: &mut SmallRng) -> Shape {
        Shape {
            heap_len: 40 * (128 << 10),
            in_place: false,
            discard_percent: 0,
            log_len: 2 << 20,
            log_start: 0,
            commit_slots: 256,
            large_max: 0,
            size_max: if rng.random_ratio(1, 4) { 4000 } else { 900 },
            epochs: 10,
            transactions: (1, 5),
            undoable_percent: 0,
            apply_one_in: 3,
            persisters: 1,
            mode: Mode::NonStop,
            close: false,
        }
    }

    /// One of many. Half of the logs are the smallest there is, so that the ring wraps.
    pub fn draw(rng: &mut SmallRng) -> Shape {
        let mut shape = Shape::plain(rng);
        shape.undoable_percent = if rng.random() { 30 } else { 0 };
        if rng.random() {
            // As if much had been written before: it goes on anywhere in the ring, every other time soon before its end.
            let last = if rng.random() { 20_000 } else { RING_MIN };
            shape.log_len = RING_MIN;
            shape.log_start = (RING_MIN - rng.random_range(64..last)) / 64 * 64;
            shape.size_max = 4000;
        }
        if rng.random() {
            shape.commit_slots = [4, 5, 8, 16][rng.random_range(0..4)];
        }
        match rng.random_range(0..8) {
            // So many epochs that commit slots wrap over several generations, those of most pools too.
            0 | 1 => {
                shape.size_max = 60;
                shape.transactions = (1, 1);
                shape.epochs = if shape.commit_slots == 256 { 100 } else { 40 };
                shape.apply_one_in = 0;
            }
            2 => {
                shape.heap_len = 64 * (128 << 10);
                // The smallest log takes less in one transaction, and wraps in every generation.
                shape.large_max = if shape.log_len == RING_MIN { 30_000 } else { 300_000 };
            }
            _ => {}
        }
        shape
    }

    /// One in place. Objects are small: each store into them is an event.
    pub fn in_place(rng: &mut SmallRng) -> Shape {
        let heap_len = [40, 16][rng.random_range(0..2)] * (128 << 10);
        let (log_len, size_max, epochs) = (8 << 20, [60, 400][rng.random_range(0..2)], 6);
        let undoable_percent = if rng.random() { 30 } else { 0 };
        let discard_percent = [0, 60][rng.random_range(0..2)];
        Shape { heap_len, in_place: true, discard_percent, log_len, size_max, epochs, undoable_percent, ..Shape::plain(rng) }
    }

    /// Whether the next object that is removed is discarded. Shapes that never do so draw nothing: what follows from a seed stays as it was.
    pub(super) fn discards(&self, rng: &mut SmallRng) -> bool {
        self.discard_percent > 0 && rng.random_ratio(self.discard_percent, 100)
    }

    /// The same pool opened again.
    pub fn reopened(mut self, rng: &mut SmallRng) -> Shape {
        self.persisters = [1, 1, 2, 3][rng.random_range(0..4)];
        self.mode = if rng.random_ratio(1, 5) { Mode::StopTheWorld } else { Mode::NonStop };
        self.close = rng.random_ratio(1, 3);
        self
    }
}
