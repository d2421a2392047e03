//! Warming: after a lazy opening, bringing the working copy into anonymous memory while the program runs.
//!
//! A lazily opened working copy is a private mapping of the image: pages come in as touched, first writes copy them, and on DAX what is
//! never written stays at the speed of NVM. Warming moves it, chunk by chunk, to anonymous memory with huge pages. A chunk is copied
//! aside and put in place in one step (`mremap`), so readers see the same bytes before and after. Writers must stay out meanwhile:
//!
//! ```text
//!   chunk state:   MAPPED ──warmer──► OFFERED ──warmer, once all later marks see the offer──► COPYING ──► DONE
//!                    ▲                   │                                                      │
//!                    └──── a first mark ─┘  withdraws the offer                    a first mark waits (some 100 us)
//! ```
//!
//! A line that is already marked in the running epoch takes no slow path and would not see the offer. So the offer is made in
//! epoch e, and taken up when every transaction of e has ended: each later first mark in the chunk goes through `before_first_marks`.
//! (Or, in an idle pool, when the gate was closed for a moment and nothing was marked in the running epoch.)

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use towa_media::Mapping;

use crate::engine::Engine;
use crate::gate::Reason;
use crate::persister::wait_all;

/// Chunks are whole huge pages, one unless there would be more chunks than this: each costs the process a mapping.
const CHUNKS_MAX: usize = 16_384;
const HUGE_PAGE: usize = 2 << 20;
/// Chunks offered at a time.
const BATCH: usize = 64;

/// How long warming waits for a heap beyond its bound that does not shrink.
const PATIENCE: Duration = Duration::from_secs(1);

const MAPPED: u8 = 0;
const OFFERED: u8 = 1;
const COPYING: u8 = 2;
const DONE: u8 = 3;

/// The states of a lazily opened heap's chunks.
#[derive(Debug)]
pub(crate) struct Warming {
    chunk_len: usize,
    chunks: Vec<AtomicU8>,
    finished: AtomicBool,
    /// Held while a chunk is moved, and while memory is given back.
    moving: Mutex<()>,
}

impl Warming {
    pub fn new(lazy_part: &Mapping) -> Warming {
        let chunk_len = lazy_part.len().div_ceil(CHUNKS_MAX).next_multiple_of(HUGE_PAGE);
        let chunks = lazy_part.len().div_ceil(chunk_len);
        Warming {
            chunk_len,
            chunks: (0..chunks).map(|_| AtomicU8::new(MAPPED)).collect(),
            finished: AtomicBool::new(false),
            moving: Mutex::new(()),
        }
    }

    /// Called before lines in heap bytes `from..to` are first marked in an epoch.
    pub fn before_first_marks(&self, from: usize, to: usize) {
        if self.finished.load(Acquire) {
            return;
        }
        for chunk in self.chunks.iter().take(to.div_ceil(self.chunk_len)).skip(from / self.chunk_len) {
            let _ = chunk.compare_exchange(OFFERED, MAPPED, AcqRel, Acquire);
            while chunk.load(Acquire) == COPYING {
                std::hint::spin_loop();
            }
        }
    }

    /// No chunk is moved while this is held.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.moving.lock()
    }

    /// Share of chunks that are done, in per cent.
    pub fn percent(&self) -> u64 {
        let done = self.chunks.iter().filter(|c| c.load(Relaxed) == DONE).count();
        (done * 100 / self.chunks.len().max(1)) as u64
    }
}

/// The background thread: warms everything, then scans the allocator's slabs, then ends.
pub(crate) fn run(engine: &Engine) {
    let (Some(warming), Some(part)) = (&engine.warming, engine.heap.lazy_part()) else { return };
    loop {
        wait_while_it_shrinks(engine);
        let has_more = warm_batch(engine, warming, part);
        if is_stopped(engine) {
            return;
        }
        if !has_more {
            break;
        }
    }
    // What was given back in the meantime may have been moved, too.
    engine.heap.allocator().forget_backing(false);
    warming.finished.store(true, Release);
    while !is_stopped(engine) && engine.heap.allocator().warm(64) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns when the heap is within its bound, or does not come nearer to it any more: what is to be given up need not be moved.
fn wait_while_it_shrinks(engine: &Engine) {
    let allocator = engine.heap.allocator();
    let (mut least, mut since) = (u64::MAX, Instant::now());
    while allocator.is_beyond_bound() && !is_stopped(engine) && since.elapsed() < PATIENCE {
        let in_use = allocator.space().in_use;
        if in_use < least {
            (least, since) = (in_use, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_stopped(engine: &Engine) -> bool {
    engine.requests.0.lock().stop || engine.is_poisoned()
}

/// Moves the next chunks; `false` when none is left. Chunks in constant use are tried again in the next round.
fn warm_batch(engine: &Engine, warming: &Warming, part: &Mapping) -> bool {
    let offered: Vec<usize> =
        (0..warming.chunks.len()).filter(|i| warming.chunks[*i].load(Relaxed) == MAPPED).take(BATCH).collect();
    for &i in &offered {
        warming.chunks[i].store(OFFERED, SeqCst);
    }
    let seen = wait_until_offers_are_seen(engine);
    let began = Instant::now();
    for &i in &offered {
        if !seen || is_stopped(engine) {
            let _ = warming.chunks[i].compare_exchange(OFFERED, MAPPED, AcqRel, Acquire);
            continue;
        }
        let _still = warming.hold();
        if warming.chunks[i].compare_exchange(OFFERED, COPYING, AcqRel, Acquire).is_ok() {
            let moved = move_chunk(part, i * warming.chunk_len, warming.chunk_len);
            warming.chunks[i].store(if moved { DONE } else { MAPPED }, Release);
            if !moved {
                return false; // no memory to move to: the mapping serves as it is
            }
        }
    }
    std::thread::sleep(began.elapsed()); // half of a core at most
    !offered.is_empty()
}

/// Returns when every transaction that might not have seen the offers has ended; `false` when the pool is stopped.
fn wait_until_offers_are_seen(engine: &Engine) -> bool {
    // Whoever reads a later clock than this look at it must see the offers, so they must not be overtaken by it.
    crate::sync::fence(SeqCst);
    let epoch = engine.clock.epoch();
    while !is_stopped(engine) {
        if engine.clock.epoch() > epoch {
            wait_all(engine, |slot| !slot.announcement.is_in(epoch));
            return true;
        }
        if !engine.slots.any_dirty(epoch) {
            engine.gate.close(&engine.clock, Reason::Warming);
            wait_all(engine, |slot| !slot.announcement.is_busy());
            let idle = !engine.slots.any_dirty(engine.clock.epoch());
            engine.gate.open(&engine.clock, Reason::Warming);
            if idle {
                return true;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn move_chunk(part: &Mapping, off: usize, chunk_len: usize) -> bool {
    let len = chunk_len.min(part.len() - off);
    let from = part.as_ptr().wrapping_add(off);
    let fill = |into: &mut [u8]| {
        // SAFETY: `len` bytes of the mapping, which nobody writes now (below).
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), len) };
    };
    // SAFETY: transactions that would write the range wait, by the protocol above. Hints that programs write without a mark (access
    // times) may be lost here, as they may in a crash.
    match unsafe { part.replace_with_anonymous(off, len, fill) } {
        Ok(()) => true,
        Err(e) => {
            log::warn!("warming stops: {e}");
            false
        }
    }
}
