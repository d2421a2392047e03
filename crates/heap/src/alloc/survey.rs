//! How the chunks are used: sums, samples, and surveys of what stands in some neighbouring chunks.
//!
//! All of it is seen in passing, lock by lock. What is done about it looks again: see `evacuate`.

use super::Allocator;
use super::header::Seen;
use super::layout::{BLOCK_HEADER, CHUNK, SIZES, SLAB_BLOCKS, SLAB_CHUNKS, SMALL_MAX, class_of};
use super::table::{Entry, SlabChunk};
use std::sync::atomic::Ordering::Relaxed;
use towa_media::persist::prefetch;

/// How the heap's chunks are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of chunks in use, for slabs and large objects.
    pub in_use: u64,
    /// The most of them that there may be; see [`Allocator::set_bound`].
    pub bound: u64,
    /// Bytes of chunks that were used and are free.
    pub free: u64,
    /// Bytes of chunks that were used and have memory: all but those whose memory was [released](Allocator::release_memory).
    pub resident: u64,
    /// Bytes of the longest run of those.
    pub longest_free: u64,
    /// Bytes of free blocks in slabs, but for those in threads' caches and in slabs not scanned yet.
    pub free_in_slabs: u64,
}

/// What stands in some neighbouring chunks, as seen in passing.
#[derive(Clone, Debug)]
pub struct Survey {
    pub(super) tenants: Vec<Tenant>,
    range: (usize, usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tenant {
    pub(super) head: u32,
    pub(super) len: u32,
    pub(super) kind: TenantKind,
    live_blocks: u32,
    /// Bytes of one of them.
    block: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TenantKind {
    Free,
    Slab(SlabChunk),
    Large,
}

impl Survey {
    /// First address and the one behind the last.
    pub fn range(&self) -> (usize, usize) {
        self.range
    }

    /// Chunks that are in use.
    pub fn used_chunks(&self) -> u32 {
        self.tenants.iter().filter(|tenant| !matches!(tenant.kind, TenantKind::Free)).map(|tenant| tenant.len).sum()
    }

    /// Bytes of chunks that are in use.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.used_chunks()) * CHUNK
    }

    /// Bytes of the blocks that are live, or in threads' caches.
    pub fn live_bytes(&self) -> u64 {
        self.tenants.iter().map(|tenant| u64::from(tenant.live_blocks) * tenant.block).sum()
    }

    /// Blocks that are live, or in threads' caches.
    pub fn live_blocks(&self) -> u32 {
        self.tenants.iter().map(|tenant| tenant.live_blocks).sum()
    }
}

/// Chunks that it takes to get a block of `size` bytes where its class has none.
pub fn chunks_for(size: usize) -> u32 {
    match size {
        0..=SMALL_MAX => u32::from(SLAB_CHUNKS[class_of(size + BLOCK_HEADER)]),
        _ => u32::try_from((size as u64).div_ceil(CHUNK)).unwrap_or(u32::MAX),
    }
}

/// The class of slabs that has blocks of `size` bytes; `None` for those that have chunks of their own.
pub fn class_for(size: usize) -> Option<usize> {
    (size <= SMALL_MAX).then(|| class_of(size + BLOCK_HEADER))
}

/// How many blocks of `size` bytes those chunks hold.
pub fn blocks_in_chunks_for(size: usize) -> usize {
    if size > SMALL_MAX { 1 } else { usize::from(SLAB_BLOCKS[class_of(size + BLOCK_HEADER)]) }
}

impl Allocator {
    /// Whether what was surveyed lies in this heap: a survey is a plain value, and a process may have several pools.
    pub(super) fn has_surveyed(&self, survey: &Survey) -> bool {
        let (from, end) = survey.range;
        self.geo.offset_of(from).is_some() && self.geo.offset_of(end.saturating_sub(1)).is_some()
    }

    /// Refuses allocations that would have more than `bytes` of chunks in use. What is in use stays; no bound at first.
    pub fn set_bound(&self, bytes: u64) {
        self.bound.store(u32::try_from(bytes / CHUNK).unwrap_or(u32::MAX), Relaxed);
    }

    /// Bytes of chunks that may still come into use.
    pub fn chunk_bytes_left(&self) -> u64 {
        let bound = self.bound.load(Relaxed).min(self.geo.chunks);
        u64::from(bound.saturating_sub(self.runs.lock().in_use())) * CHUNK
    }

    /// How the chunks are used now.
    pub fn space(&self) -> Space {
        let free_in_slabs = self.classes.iter().zip(&SIZES).map(|(class, &size)| class.lock().all_in() * u64::from(size)).sum();
        let runs = self.runs.lock();
        Space {
            in_use: u64::from(runs.in_use()) * CHUNK,
            bound: u64::from(self.bound.load(Relaxed).min(self.geo.chunks)) * CHUNK,
            free: runs.free_chunks() * CHUNK,
            resident: u64::from(runs.resident()) * CHUNK,
            longest_free: u64::from(runs.longest()) * CHUNK,
            free_in_slabs,
        }
    }

    /// Calls `each` with the addresses of at most `most` live blocks of the class of `size`, from a slab picked by a
    /// random number. They may be freed at any time.
    pub fn sample_class(&self, size: usize, random: u64, most: usize, each: &mut dyn FnMut(usize)) {
        if size > SMALL_MAX {
            return;
        }
        let central = self.classes[class_of(size + BLOCK_HEADER)].lock();
        let slab = central.any(random).map(|head| self.table.slab(head));
        drop(central);
        if let Some(slab) = slab {
            self.sample_slab(&slab, random >> 32, most, each);
        }
    }

    /// Some live blocks of a slab, which may be no more: its headers fit no other.
    fn sample_slab(&self, slab: &SlabChunk, random: u64, most: usize, each: &mut dyn FnMut(usize)) {
        let class = usize::from(slab.key.class);
        let blocks = usize::from(SLAB_BLOCKS[class]);
        let step = (blocks / most.max(1)).max(1);
        let sampled = || (0..most.min(blocks)).map(|nth| (random as usize % blocks + nth * step) % blocks);
        // None of them is in the processor's cache, most likely: all are fetched at once.
        sampled().for_each(|block| prefetch(self.geo.at(self.block_offset(slab, block)).as_ptr()));
        sampled().for_each(|block| {
            self.visit_live(slab, block, each);
        });
    }

    fn block_offset(&self, slab: &SlabChunk, block: usize) -> u64 {
        self.geo.offset(slab.head) + block as u64 * u64::from(SIZES[usize::from(slab.key.class)])
    }

    /// Calls `each` with block `block` of a slab if it is live; whether it is free.
    pub(super) fn visit_live(&self, slab: &SlabChunk, block: usize, each: &mut dyn FnMut(usize)) -> bool {
        let off = self.block_offset(slab, block);
        let seen = self.seen(slab, off);
        if let Seen::Live(_) = seen {
            each(self.geo.at(off).as_ptr() as usize + BLOCK_HEADER);
        }
        matches!(seen, Seen::Free(_) | Seen::Unwritten)
    }

    /// What stands in the chunks, from a place picked by a random number on, that would do for a block of `size`.
    /// `None` if there are too few, or one of them is about to change hands.
    pub fn survey(&self, random: u64, size: usize) -> Option<Survey> {
        let wanted = chunks_for(size);
        let places = self.chunks_to_frontier().checked_sub(wanted)? + 1;
        self.survey_from((random % u64::from(places)) as u32, wanted)
    }

    /// Bytes of chunks that never were in use, all neighbours.
    pub fn chunk_bytes_never_used(&self) -> u64 {
        u64::from(self.geo.chunks - self.chunks_to_frontier()) * CHUNK
    }

    fn chunks_to_frontier(&self) -> u32 {
        ((self.frontier() - self.geo.data) / CHUNK) as u32
    }

    /// The same of the large object at `address`, and what lies behind it as far as one of `size` goes. `None` if there is none, too.
    pub fn survey_large(&self, address: usize, size: usize) -> Option<Survey> {
        let head = self.geo.chunk_of(self.geo.offset_of(address)?)?;
        let survey = self.survey_from(head, chunks_for(size))?;
        let first = survey.tenants.first()?;
        (matches!(first.kind, TenantKind::Large) && first.head == head).then_some(survey)
    }

    /// Calls `each` with the addresses of up to `most` large objects whose chunks one of `size` bytes would just about take, one after the
    /// other from a place picked by a random number. They may be freed at any time.
    pub fn sample_large(&self, size: usize, random: u64, most: usize, each: &mut dyn FnMut(usize)) {
        let wanted = chunks_for(size);
        let runs = self.runs.lock();
        let from = (random % u64::from(runs.frontier.max(1))) as u32;
        let heads = runs.large_from(from, wanted..=wanted.saturating_add(wanted / 4), most);
        drop(runs);
        let first = |head: &u32| self.geo.at(self.geo.offset(*head)).as_ptr();
        heads.iter().for_each(|head| prefetch(first(head)));
        heads.iter().for_each(|head| each(first(head) as usize));
    }

    fn survey_from(&self, chunk: u32, wanted: u32) -> Option<Survey> {
        let mut tenants = vec![self.tenant(chunk)?];
        let start = tenants[0].head;
        let mut end = start + tenants[0].len;
        while end - start < wanted {
            let next = self.tenant(end)?;
            end = next.head + next.len;
            tenants.push(next);
        }
        let address = |chunk| self.geo.base.as_ptr() as usize + self.geo.offset(chunk) as usize;
        Some(Survey { tenants, range: (address(start), address(end)) })
    }

    fn tenant(&self, chunk: u32) -> Option<Tenant> {
        if let Entry::Slab(slab) = self.table.get(chunk) {
            let class = usize::from(slab.key.class);
            let central = self.classes[class].lock();
            let known = central.slabs.get(slab.index as usize).filter(|known| known.head == slab.head)?;
            let live_blocks = u32::from(SLAB_BLOCKS[class]) - known.ins;
            let len = u32::from(SLAB_CHUNKS[class]);
            let (kind, block) = (TenantKind::Slab(slab), u64::from(SIZES[class]));
            return (!slab.leaving).then_some(Tenant { head: slab.head, len, kind, live_blocks, block });
        }
        let runs = self.runs.lock();
        if let Some(run) = runs.find_free(chunk) {
            return Some(Tenant { head: run.chunk, len: run.len, kind: TenantKind::Free, live_blocks: 0, block: 0 });
        }
        let head = runs.find_large(chunk)?;
        let (leaves, len) = (runs.leaving.contains_key(&head), runs.large[&head]);
        let block = u64::from(len) * CHUNK;
        (!leaves).then_some(Tenant { head, len, kind: TenantKind::Large, live_blocks: 1, block })
    }

    /// Calls `each` with the addresses of some live blocks of what was surveyed, `most` of each slab.
    pub fn sample(&self, survey: &Survey, random: u64, most: usize, each: &mut dyn FnMut(usize)) {
        if !self.has_surveyed(survey) {
            return;
        }
        for tenant in &survey.tenants {
            match tenant.kind {
                TenantKind::Free => {}
                TenantKind::Slab(slab) => self.sample_slab(&slab, random, most, each),
                TenantKind::Large => each(self.geo.at(self.geo.offset(tenant.head)).as_ptr() as usize),
            }
        }
    }
}
