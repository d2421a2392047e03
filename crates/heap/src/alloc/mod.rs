//! **alloc**: the allocator inside the working copy. Its state lies in the heap and is recovered with it, *by epoch*:
//! after a crash the heap is exactly as at the end of some epoch, and so is the allocator. Nothing leaks, nothing is used twice.
//!
//! ```text
//!   thread cache ──refill──◄ slabs of a class ──carve──◄ free runs of chunks ──extend──◄ frontier
//!   (no lock)    ──flush───►  (a lock a class) ──reclaim─►  (one lock)
//!
//!   in the heap:  a header line for each run of chunks, in the table     a 16-byte header in each block of a slab
//! ```
//!
//! What must always hold:
//!
//! 1. **A header is marked before it is written, and shares its line with no other header.** Transactions of epochs n and
//!    n + 1 that run at the same time must not write the same line, so there are no bitmaps or counters in the heap.
//! 2. **The epoch rule.** What a transaction of epoch n freed, or whose header it wrote, is taken only by transactions of
//!    epoch n or later. So for every run and block the writes up to the end of any epoch are a prefix of all writes to it.
//! 3. **At the end of every epoch the run headers tile the chunks below the frontier**: beginning with chunk 0, each
//!    header's length leads to the next. A transaction that splits a run writes both headers; one that joins runs (in
//!    DRAM) and takes them writes one header over all. Either is one transaction, so an epoch has all of it or nothing.
//! 4. **A chunk that this walk comes to and whose header line is zero is free and was never written.** The line is zero
//!    only if the chunk never was the start of a run, as of that epoch. Had it ever been inside one, that run would still
//!    cover it, or would have been split, which gives what remains a header. So it was carved by a dropped epoch, or by
//!    none. And the table holds nothing but such lines: what is neither zero nor valid is damage, never garbage.
//! 5. **A block is live exactly if its header says so** with its slab's seal (see `header`).
//!
//! A slab can be evacuated while other threads' caches hold free blocks of it: see `evacuate`.
//!
//! Opening walks the table only. Block headers are read when a block of that class is wanted, or by [`Allocator::warm`].

mod cache;
mod carve;
mod check;
mod evacuate;
mod header;
mod journal;
mod layout;
mod open;
mod release;
mod runs;
mod slabs;
mod survey;
mod table;
#[cfg(test)]
mod tests;

pub use cache::Cache;
pub use check::{CheckReport, Damage, Read, check, check_runs, headers_end, headers_in_use_end};
pub use evacuate::{Inspected, Window};
pub use layout::{BLOCK_HEADER, CHUNK, LINE, SMALL_MAX};

pub use survey::{Space, Survey, blocks_in_chunks_for, chunks_for, class_for};

use cache::{Spare, batch};
use header::{Kind, Seen};
use layout::{CLASSES, Geometry, SIZES, SLAB_BLOCKS, block_index, class_of};
use parking_lot::Mutex;
use runs::Runs;
use slabs::Central;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release};
use table::{Entry, SlabChunk, Table};
use towa_media::persist::prefetch;

/// What the allocator needs of a transaction.
pub trait Marker {
    /// Called before the bytes `addr..addr + len` are written.
    fn mark(&self, addr: usize, len: usize);
    /// The same of a block that is given out now. Its bytes but those of its first line belong to no state as of the end of
    /// any epoch from `unused_since` on in which no line of it is marked.
    fn mark_block(&self, addr: usize, len: usize, unused_since: u64) {
        let _ = unused_since;
        self.mark(addr, len);
    }
    /// A hint that the line at `addr` will be marked before long.
    fn prefetch_mark(&self, addr: usize) {
        let _ = addr;
    }
    /// The epoch (unit of commitment) the transaction belongs to. Of one thread's transactions it never decreases.
    fn epoch(&self) -> u64;
}

/// The caller could not provide space for more chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no space for more of the heap")]
pub struct Full;

/// No room for a block; no block was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of space: no room for a block of {wanted} bytes in a heap of {heap_len}; free something, or create a larger heap")]
pub struct OutOfSpace {
    /// Bytes asked for.
    pub wanted: usize,
    /// Capacity of the heap in bytes.
    pub heap_len: u64,
}

/// The block that holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of its first usable byte (what `alloc` returned).
    pub start: usize,
    /// Bytes that were asked for, or what it could hold if it is not live.
    pub len: usize,
    /// Whether it is allocated.
    pub live: bool,
}

/// What stands at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// A live block starts there.
    Live,
    /// A block started there, and was freed.
    Free,
    /// No block starts there, or its header was overwritten.
    NoBlock,
}

/// Makes sure that the heap has space for these offsets.
pub type Provide = Box<dyn Fn(Range<u64>) -> Result<(), Full> + Send + Sync>;

/// The allocator of one heap, shared by all threads.
pub struct Allocator {
    geo: Geometry,
    table: Table,
    classes: Box<[Mutex<Central>]>,
    runs: Mutex<Runs>,
    provide: Provide,
    /// Copy of the runs' frontier as an offset, readable without the lock.
    frontier: AtomicU64,
    /// Source of seals.
    seals: AtomicU64,
    /// Slabs not yet scanned.
    unscanned: AtomicUsize,
    /// Which classes may have slabs to give up.
    empties: [AtomicBool; CLASSES],
    large_bytes: AtomicU64,
    /// Most chunks that may be in use; see [`Allocator::set_bound`].
    bound: AtomicU32,
    /// Tells evacuations apart.
    tickets: AtomicU64,
    /// Block headers found damaged; their blocks stay unused.
    damaged: AtomicU64,
}

// SAFETY: `geo.base` is what keeps this from being automatic. The memory behind it is reached through atomic words only
// (headers), or handed out as blocks, each to one caller.
unsafe impl Send for Allocator {}
// SAFETY: as above; everything else is locks and atomics.
unsafe impl Sync for Allocator {}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("base", &self.geo.base)
            .field("heap_len", &self.geo.heap_len)
            .field("frontier", &self.frontier())
            .finish_non_exhaustive()
    }
}

impl Allocator {
    /// A block of at least `size` bytes, aligned to 16 (above [`SMALL_MAX`] as a chunk is). The lines of those `size` bytes
    /// are already marked; their content is unspecified.
    #[inline]
    pub fn alloc<M: Marker>(&self, cache: &mut Cache, m: &M, size: usize) -> Result<NonNull<u8>, OutOfSpace> {
        if size > SMALL_MAX {
            return self.alloc_large(cache, m, size);
        }
        let class = class_of(size + BLOCK_HEADER);
        let (off, slab) = match self.pop(cache, class) {
            Some(found) => found,
            None => self.refill(cache, m, class, size)?,
        };
        if let Some(next) = cache.bins[class].last() {
            // The next block of this class is cold, most likely; what its allocation looks at is fetched meanwhile.
            let next = self.geo.at(next.off).as_ptr();
            prefetch(next);
            m.prefetch_mark(next as usize);
        }
        let block = self.geo.at(off);
        let tag = slab.key.tag(off);
        if self.geo.word(off).load(Relaxed) == tag {
            self.check_reuse(&slab, off);
        }
        m.mark_block(block.as_ptr() as usize, BLOCK_HEADER + size, slab.unused_since);
        self.write_block_header(off, [tag, slab.key.live(tag, size)]);
        if let Some(journal) = &mut cache.journal {
            journal.allocs.push(off);
        }
        // SAFETY: the block is larger than its header.
        Ok(unsafe { block.add(BLOCK_HEADER) })
    }

    /// Frees a block. It may be reused by this thread's transactions and by those of this epoch or later.
    ///
    /// # Panics
    /// If `ptr` is no live block of this heap (freed twice, never allocated, its header overwritten); nothing is written.
    ///
    /// # Safety
    /// `ptr` came from `alloc` of this heap, in this run or an earlier one, and nobody uses the block any more.
    #[inline]
    pub unsafe fn free<M: Marker>(&self, cache: &mut Cache, m: &M, ptr: NonNull<u8>) {
        let addr = ptr.as_ptr() as usize;
        let Some((off, slab)) = self.small_block(addr) else {
            return self.free_large(cache, m, addr);
        };
        let seen = self.seen(&slab, off);
        let Seen::Live(size) = seen else { self.refuse_small(&slab, off, seen) };
        if !slab.scanned {
            self.decide(&slab, off);
        }
        if slab.leaving && cache.journal.is_some() {
            self.call_off(&slab);
        }
        m.mark(addr - BLOCK_HEADER, BLOCK_HEADER);
        let tag = slab.key.tag(off);
        self.write_block_header(off, [tag, slab.key.free(tag, size)]);
        cache.epoch = m.epoch();
        match &mut cache.journal {
            Some(journal) => journal.frees.push(off),
            None => self.cache_block(cache, &slab, off),
        }
    }

    /// What stands at `ptr`, which may be any address.
    pub fn block_state(&self, ptr: NonNull<u8>) -> BlockState {
        let addr = ptr.as_ptr() as usize;
        let seen = match self.small_block(addr) {
            Some((off, slab)) => self.seen(&slab, off),
            None => match self.find_large(addr) {
                Ok(_) => return BlockState::Live,
                Err(seen) => seen,
            },
        };
        match seen {
            Seen::Live(_) => BlockState::Live,
            Seen::Free(_) => BlockState::Free,
            Seen::Damaged(_) | Seen::Unwritten => BlockState::NoBlock,
        }
    }

    /// Bytes the block can hold: at least what was asked for. Only those asked for were marked by `alloc`.
    ///
    /// # Panics
    /// If `ptr` is no live block of this heap.
    pub fn usable_size(&self, ptr: NonNull<u8>) -> usize {
        let addr = ptr.as_ptr() as usize;
        let Some((off, slab)) = self.small_block(addr) else {
            return self.large_at(addr).len as usize * CHUNK as usize;
        };
        match self.seen(&slab, off) {
            Seen::Live(_) => SIZES[usize::from(slab.key.class)] as usize - BLOCK_HEADER,
            seen => self.refuse_small(&slab, off, seen),
        }
    }

    /// Offset of the end of the last chunk ever carved. Belongs into the commit record of an epoch, read after its
    /// transactions have ended.
    pub fn frontier(&self) -> u64 {
        self.frontier.load(Relaxed)
    }

    /// Bytes of live blocks with their headers and rounding. Blocks in thread caches count as live, and so do all blocks of
    /// slabs that were not scanned since opening; see [`warm`](Self::warm).
    pub fn used_bytes(&self) -> u64 {
        let small: u64 = self.classes.iter().zip(&SIZES).map(|(class, &size)| class.lock().outs * u64::from(size)).sum();
        small + self.large_bytes.load(Relaxed)
    }

    /// Bytes of whole chunks that are free for any use: below the frontier, and beyond it up to the heap's end.
    #[cfg(test)]
    fn free_chunk_bytes(&self) -> u64 {
        let runs = self.runs.lock();
        (runs.free_chunks() + u64::from(self.geo.chunks - runs.frontier)) * CHUNK
    }

    /// Provides space for `bytes` beyond the frontier now, so that no allocation has to wait for it. For the background.
    pub fn provide_ahead(&self, bytes: u64) -> Result<(), Full> {
        // Only threads that the bound is not for carve beyond it, and heaps whose free chunks lie scattered.
        let end = self.geo.offset(self.geo.chunks.min(self.bound.load(Relaxed)));
        let upto = self.frontier().saturating_add(bytes).min(end);
        let (provided, releases) = {
            let runs = self.runs.lock();
            (runs.provided, runs.releases)
        };
        if upto <= provided {
            return Ok(());
        }
        // Not under the lock: that is the point. A thread that needs space before that asks for it itself.
        (self.provide)(provided..upto)?;
        let mut runs = self.runs.lock();
        // What was released since may be a part of it.
        if runs.releases == releases {
            runs.provided = runs.provided.max(upto);
        }
        Ok(())
    }

    /// Block headers found damaged since opening. Their blocks count as live for ever.
    pub fn damaged_blocks(&self) -> u64 {
        self.damaged.load(Relaxed)
    }

    /// The block that holds `addr`, if any does: for diagnostics. What other threads do meanwhile may be missed.
    pub fn block_of(&self, addr: usize) -> Option<Block> {
        let off = self.geo.offset_of(addr)?;
        let chunk = self.geo.chunk_of(off)?;
        if let Entry::Slab(slab) = self.table.get(chunk) {
            let index = block_index(usize::from(slab.key.class), off - self.geo.offset(slab.head));
            return self.block_at(&slab, index);
        }
        let head = self.runs.lock().find_large(chunk)?;
        let Kind::Large { size } = self.run_header(head).ok()??.kind else {
            return None;
        };
        Some(Block { start: self.geo.at(self.geo.offset(head)).as_ptr() as usize, len: size as usize, live: true })
    }

    /// Block `index` of a slab; `None` for what is left over at its end.
    fn block_at(&self, slab: &SlabChunk, index: usize) -> Option<Block> {
        let class = usize::from(slab.key.class);
        if index >= usize::from(SLAB_BLOCKS[class]) {
            return None;
        }
        let off = self.geo.offset(slab.head) + index as u64 * u64::from(SIZES[class]);
        let (len, live) = match self.seen(slab, off) {
            Seen::Live(size) => (size, true),
            _ => (SIZES[class] as usize - BLOCK_HEADER, false),
        };
        Some(Block { start: self.geo.at(off).as_ptr() as usize + BLOCK_HEADER, len, live })
    }

    /// The slab and the offset of the small block whose payload starts at `addr`, if `addr` lies in a slab.
    #[inline]
    fn small_block(&self, addr: usize) -> Option<(u64, SlabChunk)> {
        let off = self.geo.offset_of(addr)?;
        // A payload starts 16 bytes into a line; what does not is no small block, and is refused among the large ones.
        if off % LINE as u64 != BLOCK_HEADER as u64 {
            return None;
        }
        match self.table.get(self.geo.chunk_of(off)?) {
            Entry::Slab(slab) => Some((off - BLOCK_HEADER as u64, slab)),
            _ => None,
        }
    }

    /// The slab of a block the allocator itself holds.
    #[inline]
    fn slab_at(&self, off: u64) -> SlabChunk {
        self.table.slab(((off - self.geo.data) / CHUNK) as u32)
    }

    /// What the block header at `off` says.
    #[inline]
    fn seen(&self, slab: &SlabChunk, off: u64) -> Seen {
        slab.key.read(slab.key.tag(off), [self.geo.word(off).load(Relaxed), self.geo.word(off + 8).load(Relaxed)])
    }

    #[inline]
    fn write_block_header(&self, off: u64, words: [u64; 2]) {
        self.geo.word(off).store(words[0], Relaxed);
        // Release: an evacuation that finds this block free knows then what its transaction knew, its epoch above all.
        self.geo.word(off + 8).store(words[1], Release);
    }

    /// Takes a block of `class` out of the bin that may be given out. What is found there of slabs that leave goes back to them,
    /// and what is of slabs that are no more is forgotten.
    #[inline]
    fn pop(&self, cache: &mut Cache, class: usize) -> Option<(u64, SlabChunk)> {
        while let Some(spare) = cache.bins[class].pop() {
            match self.table.get(((spare.off - self.geo.data) / CHUNK) as u32) {
                Entry::Slab(slab) if slab.key.seal == spare.seal && !slab.leaving => return Some((spare.off, slab)),
                _ => self.give_back(cache, class, spare),
            }
        }
        None
    }

    /// Puts a free block of `slab` into its bin; when there are many, the oldest go back to their slabs.
    #[inline]
    fn cache_block(&self, cache: &mut Cache, slab: &SlabChunk, off: u64) {
        let class = usize::from(slab.key.class);
        let bin = &mut cache.bins[class];
        bin.push(Spare { off, seal: slab.key.seal });
        if bin.len() > 2 * batch(class) {
            self.flush_bin(cache, class, batch(class));
        }
    }

    /// Gives the oldest `count` blocks of a bin back to their slabs.
    #[cold]
    fn flush_bin(&self, cache: &mut Cache, class: usize, count: usize) {
        let epoch = cache.epoch;
        let mut central = self.classes[class].lock();
        for spare in cache.bins[class].drain(..count) {
            self.take_in(&mut central, class, spare, epoch);
        }
        self.note_empties(&central, class);
    }

    /// Gives one block back to its slab.
    #[cold]
    #[inline(never)]
    fn give_back(&self, cache: &Cache, class: usize, spare: Spare) {
        let mut central = self.classes[class].lock();
        self.take_in(&mut central, class, spare, cache.epoch);
        self.note_empties(&central, class);
    }

    /// A block comes in, if its slab still stands: under the class's lock, which no slab of the class goes without.
    fn take_in(&self, central: &mut Central, class: usize, spare: Spare, epoch: u64) {
        if let Entry::Slab(slab) = self.table.get(((spare.off - self.geo.data) / CHUNK) as u32)
            && slab.key.seal == spare.seal
        {
            central.give(slab.index, block_index(class, spare.off - self.geo.offset(slab.head)), epoch);
        }
    }

    /// There is no live block at `off`, where the program says there is.
    #[cold]
    #[inline(never)]
    fn refuse_small(&self, slab: &SlabChunk, off: u64, seen: Seen) -> ! {
        let starts_here = (off - self.geo.offset(slab.head)).is_multiple_of(u64::from(SIZES[usize::from(slab.key.class)]));
        let addr = self.geo.at(off).as_ptr() as usize + BLOCK_HEADER;
        refuse(addr, if starts_here { seen } else { Seen::Unwritten })
    }

    /// The block was allocated before. It must not be now.
    #[inline]
    fn check_reuse(&self, slab: &SlabChunk, off: u64) {
        if let Seen::Live(_) = self.seen(slab, off) {
            refuse_reuse(self.geo.at(off));
        }
    }
}

impl Cache {
    /// Gives all blocks and chunks back, for other threads to use. Do this when a thread ends.
    pub fn flush(&mut self, allocator: &Allocator) {
        allocator.release_grant(self);
        for class in 0..CLASSES {
            let count = self.bins[class].len();
            if count > 0 {
                allocator.flush_bin(self, class, count);
            }
        }
    }
}

#[cold]
#[inline(never)]
fn refuse(addr: usize, seen: Seen) -> ! {
    match seen {
        Seen::Free(size) => {
            panic!("{addr:#x}: this block of {size} bytes is already free (freed twice?)")
        }
        Seen::Damaged(why) => {
            panic!("{addr:#x}: {why}; something wrote over the 16 bytes before the block")
        }
        Seen::Unwritten | Seen::Live(_) => {
            panic!("{addr:#x}: no live block of this heap starts here")
        }
    }
}

#[cold]
#[inline(never)]
fn refuse_reuse(at: NonNull<u8>) -> ! {
    panic!("the free block at {at:p} has the header of a live one: it was freed by two threads at once");
}
