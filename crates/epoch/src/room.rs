//! Room in a full heap, for programs that can free things to get it: which blocks stand where, and how neighbouring
//! chunks become free together (see `towa_heap::alloc`, evacuation).
//!
//! What must always hold:
//! - Nothing here says what a block holds. A program that gets an address asks its own structures, under its own locks,
//!   what is there.
//! - Between `clear` and `settle` of one window every transaction that ran at `clear` has ended; and the transaction
//!   that makes free chunks of a window begins after the window was seen to be free. Both are looked after here.

use std::sync::atomic::Ordering::Relaxed;

pub use towa_heap::alloc::{BlockState, Space, Survey};
use towa_heap::alloc::{CHUNK, Inspected, SMALL_MAX, Window, blocks_in_chunks_for, chunks_for, class_for};

use crate::grace::Grace;
use crate::pool::Pool;
use crate::thread::Thread;
use crate::tx::Marks;
use crate::warming::Warming;
use crate::{Error, Result};

/// Blocks of a window that are looked at at once: some tenths of a millisecond. Few in debug builds, so that tests go on with the next.
const INSPECTED_AT_ONCE: usize = if cfg!(debug_assertions) { 64 } else { 16 << 10 };

/// Neighbouring chunks that are being cleared, begun by [`Thread::clear`]. Dropped before it is settled, it leaves all
/// as it was.
#[derive(Debug)]
#[must_use]
pub struct Clearing {
    pool: Pool,
    window: Option<Window>,
    grace: Grace,
}

/// How far a [`Clearing`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// The chunks are free, and kept for the thread's next allocation that needs some.
    Yes,
    /// Something in them is live.
    NotYet,
    /// A transaction that ran when it began has not ended.
    Wait,
    /// The log has no space now.
    NoLogSpace,
    /// All that was looked at is free, and there is more to look at.
    InPart,
}

impl Clearing {
    /// Calls `each` with the address of each block in it that is live now: from its `from`-th part on, until about
    /// `most` blocks were looked at. The part to go on with, or `None` when there is no other.
    pub fn live(&self, from: usize, most: usize, mut each: impl FnMut(usize)) -> Option<usize> {
        self.pool.engine().heap.allocator().live_in(self.window.as_ref()?, from, most, &mut each)
    }
}

impl Drop for Clearing {
    fn drop(&mut self) {
        let engine = self.pool.engine();
        // A forked child has neither the heap nor the threads that hold the allocator's locks.
        if !engine.is_forked()
            && let Some(window) = self.window.take()
        {
            engine.heap.allocator().put_back(window);
        }
    }
}

impl Pool {
    /// How the heap's chunks are used.
    pub fn space(&self) -> Space {
        self.engine().heap.allocator().space()
    }

    /// Lets allocations have at most `bytes` of chunks in use, but for those of threads that are
    /// [unbounded](Thread::set_unbounded).
    pub fn set_bound(&self, bytes: u64) {
        self.engine().heap.allocator().set_bound(bytes);
    }

    /// Gives memory of free chunks back to the system, at least `bytes` where there is as much, and what was taken ahead of the heap's growth.
    /// Returns how many bytes of free chunks it was. For a program that needs much less of a heap than it did: space that is to be used again is
    /// asked for again.
    ///
    /// Chunks count that were free, and durably so, at the call before this one: so a look at a block that was freed in between, as
    /// [`sample`](Self::sample) gives it, meets the block's memory. Of a pool with a copy beside its image, memory of the copy is given
    /// back. Nothing in a forked child, and where forgotten marks are looked for.
    pub fn release_memory(&self, bytes: u64) -> u64 {
        let engine = self.engine();
        if engine.is_forked() || engine.markers.is_some() {
            return 0;
        }
        let durable = if self.medium().is_none() { engine.clock.epoch() } else { self.durable_epoch() };
        let before = engine.releasable.swap(durable, Relaxed);
        let _still = engine.warming.as_ref().map(Warming::hold);
        engine.heap.release_memory(before, bytes)
    }

    /// Bytes of chunks that may still come into use.
    pub fn chunk_bytes_left(&self) -> u64 {
        self.engine().heap.allocator().chunk_bytes_left()
    }

    /// Addresses of at most `most` live blocks of the kind that one of `size` bytes would be, of a slab picked by a
    /// random number.
    pub fn sample_class(&self, size: usize, random: u64, most: usize, mut each: impl FnMut(usize)) {
        self.engine().heap.allocator().sample_class(size, random, most, &mut each);
    }

    /// What stands in the chunks, at a place picked by a random number, that a block of `size` bytes would take where
    /// its kind has none.
    pub fn survey(&self, random: u64, size: usize) -> Option<Survey> {
        self.engine().heap.allocator().survey(random, size)
    }

    /// Bytes of chunks that never were in use, all neighbours. A block fits there if that many bytes of chunks [may still come
    /// into use](Self::chunk_bytes_left).
    pub fn chunk_bytes_never_used(&self) -> u64 {
        self.engine().heap.allocator().chunk_bytes_never_used()
    }

    /// The same of the large block at `address`, and what lies behind it as far as one of `size` bytes goes.
    pub fn survey_large(&self, address: usize, size: usize) -> Option<Survey> {
        self.engine().heap.allocator().survey_large(address, size)
    }

    /// Addresses of up to `most` large blocks whose chunks one of `size` bytes would just about take, one after the other from a place
    /// picked by a random number.
    pub fn sample_large(&self, size: usize, random: u64, most: usize, mut each: impl FnMut(usize)) {
        self.engine().heap.allocator().sample_large(size, random, most, &mut each);
    }

    /// Addresses of some live blocks of what was surveyed: `most` of each slab. None of another pool's survey.
    pub fn sample(&self, survey: &Survey, random: u64, most: usize, mut each: impl FnMut(usize)) {
        self.engine().heap.allocator().sample(survey, random, most, &mut each);
    }

    /// Bytes of chunks that it takes to get a block of `size` bytes where its kind has none.
    pub fn chunk_bytes_for(size: usize) -> u64 {
        u64::from(chunks_for(size)) * CHUNK
    }

    /// Bytes of chunks that `count` blocks of `size` bytes take, less than a chunk each.
    pub fn chunk_bytes_of(count: usize, size: usize) -> u64 {
        count.div_ceil(blocks_in_chunks_for(size)) as u64 * Self::chunk_bytes_for(size)
    }

    /// Whether blocks of `one` and of `other` bytes take each other's places: of a slab of the same class, or both with chunks of
    /// their own.
    pub fn is_same_kind(one: usize, other: usize) -> bool {
        class_for(one) == class_for(other)
    }

    /// Whether a block of `size` bytes has chunks of its own.
    pub fn is_large(size: usize) -> bool {
        size > SMALL_MAX
    }
}

impl Thread {
    /// Whether this thread's allocations fail as soon as nothing is at hand, rather than look everywhere: for a program
    /// that frees something then.
    pub fn set_lean(&mut self, lean: bool) {
        self.cache.get_mut().set_lean(lean);
    }

    /// Whether this thread's allocations may take chunks beyond [`Pool::set_bound`].
    pub fn set_unbounded(&mut self, unbounded: bool) {
        self.cache.get_mut().set_unbounded(unbounded);
    }

    /// Bytes of the newest block that this thread was refused.
    pub fn refused(&self) -> usize {
        self.refused.get()
    }

    /// Begins to clear what was surveyed: none of it is given out from here on. The caller frees what is
    /// [live](Clearing::live) in it, then calls [`settle`](Self::settle). `None` if something changed hands since the
    /// survey, or it was another pool's.
    pub fn clear(&mut self, survey: &Survey) -> Option<Clearing> {
        let pool = self.pool().clone();
        let engine = pool.engine();
        let window = engine.heap.allocator().evacuate(survey)?;
        let grace = if window.needs_grace() {
            Grace::begin(&engine.clock, engine.slots.iter().map(|slot| &slot.announcement))
        } else {
            Grace::default()
        };
        Some(Clearing { window: Some(window), grace, pool })
    }

    /// Makes free chunks of a window in which nothing is live any more, and keeps them for this thread.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); [`Error::Usage`] for another pool's window, and for one that is settled.
    pub fn settle(&mut self, clearing: &mut Clearing) -> Result<Cleared> {
        let pool = self.pool().clone();
        let engine = pool.engine();
        if !std::ptr::eq(engine, clearing.pool.engine()) {
            return Err(Error::Usage("these chunks are another pool's".into()));
        }
        let Some(window) = &mut clearing.window else { return Err(Error::Usage("these chunks are settled already".into())) };
        if !clearing.grace.has_passed(|at| &engine.slots.get(at).announcement) {
            return Ok(Cleared::Wait);
        }
        let allocator = engine.heap.allocator();
        match allocator.inspect(window, INSPECTED_AT_ONCE, || engine.clock.epoch()) {
            Inspected::Free => {}
            Inspected::Live => return Ok(Cleared::NotYet),
            Inspected::NotAll => return Ok(Cleared::InPart),
        }
        let Some(tx) = self.try_begin_reserving(window.written_bytes())? else { return Ok(Cleared::NoLogSpace) };
        let free = allocator.settle(window, &Marks::of(&tx));
        tx.commit();
        if !free {
            return Ok(Cleared::NotYet);
        }
        if let Some(window) = clearing.window.take() {
            allocator.grant(window, self.cache.get_mut());
        }
        Ok(Cleared::Yes)
    }

    /// Gives back chunks that were cleared for this thread and not used.
    pub fn release_cleared(&mut self) {
        self.pool().clone().engine().heap.allocator().release_grant(self.cache.get_mut());
    }
}
