//! What DRAM knows of every chunk: enough for `free` to check a pointer and for `alloc` to write a header without a lock.
//!
//! An entry is written while its chunk changes hands (under a lock, before any block of it is given out) and only read
//! otherwise. A thread that holds a pointer to a live block got it through something that orders it after that write. 24
//! bytes a chunk, zero pages until used: 12 MiB of address space for 64 GiB of heap.
//!
//! A thread's bin may hold blocks of a slab that is no more (see `evacuate`). So an entry may be read while it changes: the seal is
//! stored before the rest of the entry (release) and loaded after it (acquire), so what reads as a slab comes with the seal of that
//! slab or of a later one, never of an earlier one.

use super::header::SlabKey;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

const SLAB: u64 = 1;
const LARGE: u64 = 2;
const KIND: u64 = 3;
const SCANNED: u64 = 1 << 2;
const CLEAN: u64 = 1 << 3;
const LEAVING: u64 = 1 << 4;
const CLASS_SHIFT: u32 = 8;
const DISTANCE_SHIFT: u32 = 16;
const INDEX_SHIFT: u32 = 32;

#[derive(Debug)]
struct Slot {
    info: AtomicU64,
    seal: AtomicU64,
    /// Of a slab's chunks.
    unused_since: AtomicU64,
}

/// What a chunk belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// Nothing: free, never carved, or inside a large object.
    Other,
    /// A slab.
    Slab(SlabChunk),
    /// The first chunk of a large object.
    Large,
}

/// A chunk of a slab.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlabChunk {
    pub(super) key: SlabKey,
    /// Index in its class.
    pub(super) index: u32,
    /// The slab's first chunk.
    pub(super) head: u32,
    /// See [`Run::unused_since`](super::runs::Run::unused_since): of the run that it was carved from; 0 for one found at opening.
    pub(super) unused_since: u64,
    /// Whether DRAM knows every block's state.
    pub(super) scanned: bool,
    /// Whether it is being evacuated: no block of it is given out.
    pub(super) leaving: bool,
}

impl SlabChunk {
    /// Whether both are chunks of one slab, at one place of its class. The seal alone does not tell where an entry was read without its
    /// class's lock: it may come from a later slab than the rest.
    pub(super) fn is_of_same_slab(&self, other: &Self) -> bool {
        let place = |slab: &Self| (slab.key.seal, slab.key.class, slab.index, slab.head);
        place(self) == place(other)
    }
}

/// An entry for each chunk.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[Slot]>,
}

impl Table {
    pub(super) fn new(chunks: u32) -> Self {
        let slots = Box::<[Slot]>::new_zeroed_slice(chunks as usize);
        // SAFETY: a slot is three integers, for which zero is a value. (Zeroed by the kernel as touched, not here.)
        let slots = unsafe { slots.assume_init() };
        Self { slots }
    }

    #[inline]
    pub(super) fn get(&self, chunk: u32) -> Entry {
        let slot = &self.slots[chunk as usize];
        let info = slot.info.load(Acquire);
        match info & KIND {
            SLAB => Entry::Slab(SlabChunk {
                key: SlabKey { seal: slot.seal.load(Relaxed), class: (info >> CLASS_SHIFT) as u8, clean: info & CLEAN != 0 },
                index: (info >> INDEX_SHIFT) as u32,
                head: chunk - u32::from((info >> DISTANCE_SHIFT) as u8),
                unused_since: slot.unused_since.load(Relaxed),
                scanned: info & SCANNED != 0,
                leaving: info & LEAVING != 0,
            }),
            LARGE => Entry::Large,
            _ => Entry::Other,
        }
    }

    /// The chunk of a block the allocator itself holds.
    #[inline]
    pub(super) fn slab(&self, chunk: u32) -> SlabChunk {
        match self.get(chunk) {
            Entry::Slab(slab) => slab,
            other => unreachable!("a cached block lies in chunk {chunk}, which is {other:?}"),
        }
    }

    pub(super) fn set_slab(&self, len: u32, slab: SlabChunk) {
        let flags = if slab.scanned { SCANNED } else { 0 } | if slab.key.clean { CLEAN } else { 0 };
        let info = SLAB | flags | u64::from(slab.key.class) << CLASS_SHIFT | u64::from(slab.index) << INDEX_SHIFT;
        for distance in 0..len {
            let slot = &self.slots[(slab.head + distance) as usize];
            slot.seal.store(slab.key.seal, Relaxed);
            slot.unused_since.store(slab.unused_since, Relaxed);
            slot.info.store(info | u64::from(distance) << DISTANCE_SHIFT, Release);
        }
    }

    pub(super) fn set_scanned(&self, head: u32, len: u32) {
        for chunk in head..head + len {
            self.slots[chunk as usize].info.fetch_or(SCANNED, Release);
        }
    }

    /// Says that a slab leaves, or that it stays after all.
    pub(super) fn set_leaving(&self, head: u32, len: u32, leaving: bool) {
        for chunk in head..head + len {
            let info = &self.slots[chunk as usize].info;
            if leaving {
                info.fetch_or(LEAVING, Release)
            } else {
                info.fetch_and(!LEAVING, Release)
            };
        }
    }

    pub(super) fn set_large(&self, head: u32) {
        self.slots[head as usize].info.store(LARGE, Release);
    }

    pub(super) fn clear(&self, head: u32, len: u32) {
        for chunk in head..head + len {
            self.slots[chunk as usize].info.store(0, Release);
        }
    }
}
