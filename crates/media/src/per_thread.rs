//! One cell per thread, which its thread alone writes, and anybody may read.
//!
//! ```text
//!   slot of the thread:   0 .. 15   16 .. 47   48 .. 111  ...        lowest free number, given back when the thread ends
//!   buckets:             [  16  ]  [   32   ] [   64    ] ...        made when first needed, never moved
//! ```
//!
//! It exists because a locked add waits for the write-combining buffers: counting a 64-byte stream that way would cost more
//! than the stream. What must always hold: no two live threads have the same slot, so a cell may be changed by plain loads
//! and stores; a thread that takes over a slot sees what its predecessor left (the free list's lock orders the two).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const FIRST_BUCKET: usize = 16;
const BUCKETS: usize = 24;

/// A cell of `T` for every thread that asked for one.
pub(crate) struct PerThread<T> {
    buckets: [OnceLock<Box<[Padded<T>]>>; BUCKETS],
}

/// Two lines, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

impl<T> Default for PerThread<T> {
    fn default() -> Self {
        PerThread { buckets: [const { OnceLock::new() }; BUCKETS] }
    }
}

impl<T: Default> PerThread<T> {
    /// The calling thread's cell.
    #[inline(always)]
    pub fn mine(&self) -> &T {
        // Most programs have no more threads than these.
        let slot = SLOT.get();
        match self.buckets[0].get() {
            Some(cells) if slot < FIRST_BUCKET => &cells[slot].0,
            _ => self.find_mine(slot),
        }
    }

    #[inline(never)]
    fn find_mine(&self, slot: usize) -> &T {
        let slot = if slot == NO_SLOT { take_slot() } else { slot };
        let bucket = ((slot / FIRST_BUCKET + 1).ilog2()) as usize;
        let before = FIRST_BUCKET * ((1 << bucket) - 1);
        let cells = match self.buckets[bucket].get() {
            Some(cells) => cells,
            None => self.make(bucket),
        };
        &cells[slot - before].0
    }

    /// All cells, those of threads that are gone too.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let made = self.buckets.iter().filter_map(|bucket| bucket.get());
        made.flat_map(|cells| cells.iter().map(|cell| &cell.0))
    }

    #[cold]
    fn make(&self, bucket: usize) -> &[Padded<T>] {
        self.buckets[bucket].get_or_init(|| (0..FIRST_BUCKET << bucket).map(|_| Padded::default()).collect())
    }
}

const NO_SLOT: usize = usize::MAX;

thread_local! {
    /// Without a destructor, so that reading it is one load.
    static SLOT: Cell<usize> = const { Cell::new(NO_SLOT) };
    static GIVE_BACK: GiveBack = const { GiveBack };
}

static FREE: Mutex<Slots> = Mutex::new(Slots { free: BTreeSet::new(), made: 0 });

/// The slots that no thread has. A mutex of the standard library, because Miri runs what is in this file, and takes the untyped system
/// call by which `parking_lot` waits for undefined behaviour.
fn free_slots() -> MutexGuard<'static, Slots> {
    // Nothing in here leaves the slots half changed.
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Slots {
    free: BTreeSet<usize>,
    made: usize,
}

/// Gives the thread's slot back when the thread ends.
struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        let slot = SLOT.replace(NO_SLOT);
        if slot != NO_SLOT {
            free_slots().free.insert(slot);
        }
    }
}

#[cold]
fn take_slot() -> usize {
    let mut slots = free_slots();
    let slot = slots.free.pop_first().unwrap_or_else(|| {
        slots.made += 1;
        slots.made - 1
    });
    SLOT.set(slot);
    // In a destructor that runs after ours the slot cannot be given back any more: one number is lost, nothing else.
    let _ = GIVE_BACK.try_with(|_| ());
    slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    #[test]
    fn live_threads_have_cells_of_their_own() {
        const THREADS: usize = 60;
        let cells: PerThread<AtomicU64> = PerThread::default();
        let barrier = Barrier::new(THREADS);
        for round in 1..=2 {
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        barrier.wait();
                        for _ in 0..100 {
                            let cell = cells.mine();
                            cell.store(cell.load(Relaxed) + 1, Relaxed);
                        }
                        barrier.wait();
                    });
                }
            });
            let total: u64 = cells.iter().map(|cell| cell.load(Relaxed)).sum();
            assert_eq!(total, round * THREADS as u64 * 100);
        }
    }
}
