//! Evacuation: how neighbouring chunks become free together although other threads' caches hold free blocks of them.
//!
//! A slab whose blocks are all *in* is given up as a whole. Free blocks in another thread's cache are out, and no thread reaches into
//! another's cache; so a slab can be free and never be wholly in. An owner that can free the live blocks of a slab, a
//! cache that evicts, gets its chunks like this:
//!
//! ```text
//!   evacuate   under the class's lock: Known ──► Leaving; the flag in the slab's table entries        (free runs, large objects: held)
//!      │       every transaction that runs at that moment ends                                        grace: the engine's business
//!      │       the owner frees the live blocks, in as many transactions as it likes
//!   inspect    no header is live; then: which epoch is it?
//!   settle     in a transaction of that epoch or later, under the class's lock: Leaving ──► Vacant, table entries cleared, header: free
//!   grant      the chunks are the caller's
//! ```
//!
//! Why no block of the slab is given out after the grace. `pop` gives out a block only if the table entry bears its slab's seal and no flag,
//! within a transaction. One that ran when the flag was set has ended. One that began later sees the flag: it announced itself, then looked at
//! the entry; the evacuation set the flag, then looked for announcements, with the engine's barrier in between on both sides, so one
//! of the two saw the other. Bins are refilled from listed slabs, and one that leaves is not listed. So from the grace on live blocks only become
//! fewer, and a pass over the headers that finds each of them free, one after the other, finds all of them free together.
//!
//! Why nothing comes back afterwards. What lies in bins when the slab is vacated, freed before or after the flag was set, bears the seal of a slab that is no more: no two slabs have one seal (it is drawn from a counter; a slab that an earlier
//! process carved has the same with probability 2^-64). `pop` and `flush_bin` forget such blocks; `vacate` has taken them out of the count of
//! blocks that are out. Whoever puts a block into a slab does so under the class's lock, under which entry and slab agree.
//!
//! **The epoch rule.** Each header found free was written in some epoch n, with release; the pass ends with an acquire fence, and the
//! epoch is asked for after it: the clock showed n before that header was written, so the answer is at least n. `settle` refuses an
//! older transaction: a thread may have written a header and not have given the block back yet, so the slab's epoch, which
//! is what `remove_empty` goes by, does not tell. So what
//! the new tenant's transactions write comes after all that the old tenants' wrote, in every epoch.
//!
//! **Undoable transactions.** A block freed in one reads as free and may become live again. One that ran when the flag was set has
//! ended before the grace. One that frees a block of a slab that leaves calls the evacuation off before it writes the header:
//! `vacate`, which comes first or finds no ticket, has then seen the block live. Slabs of an undoable transaction that has not ended (`HELD`) cannot leave.
//! Large objects come free when the transaction that freed them commits.
//!
//! **A crash** at any step: all but the headers is DRAM's. Before the epoch of `settle` the slab is a slab, with the headers of that epoch;
//! from it on its header says free, and so it is. A slab that is vacated while others of its window are not is free chunks by itself.
//!
//! **In vain**: the owner cannot free some block, which is not its own. `put_back` lists the slabs again, and blocks in bins are good again: a block
//! that was given back meanwhile left its bin for it.
//!
//! Slabs not scanned since opening are scanned first. Damaged blocks count as live, so their slab stays.

use super::cache::Cache;
use super::header::{Kind, RunHeader, Seen};
use super::layout::{BLOCK_HEADER, CHUNK, SIZES, SLAB_BLOCKS, SLAB_CHUNKS, SMALL_MAX, class_of};
use super::runs::{Run, join};
use super::table::{Entry, SlabChunk};
use super::{Allocator, Marker};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};

/// How the heap's chunks are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of chunks in use, for slabs and large objects.
    pub in_use: u64,
    /// The most of them that there may be; see [`Allocator::set_bound`].
    pub bound: u64,
    /// Bytes of chunks that were used and are free.
    pub free: u64,
    /// Bytes of the longest run of those.
    pub longest_free: u64,
    /// Bytes of free blocks in slabs, but for those in threads' caches and in slabs not scanned yet.
    pub free_in_slabs: u64,
}

/// What stands in some neighbouring chunks, as seen in passing.
#[derive(Clone, Debug)]
pub struct Survey {
    tenants: Vec<Tenant>,
    range: (usize, usize),
}

#[derive(Clone, Copy, Debug)]
struct Tenant {
    head: u32,
    len: u32,
    kind: TenantKind,
    live_blocks: u32,
    /// Bytes of one of them.
    block: u64,
}

#[derive(Clone, Copy, Debug)]
enum TenantKind {
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

/// Chunks that are being evacuated. To be ended by [`Allocator::grant`] or [`Allocator::put_back`].
#[derive(Debug)]
#[must_use]
pub struct Window {
    parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    /// Out of the pool, ours.
    Free(Run),
    Slab {
        slab: SlabChunk,
        ticket: u64,
        /// No header was live at this epoch, or an earlier one.
        quiet: Option<u64>,
    },
    Large {
        head: u32,
    },
}

impl Window {
    /// Whether blocks were handed out from it without a look at its table entry by transactions that ran when it began: whether those
    /// have to end before it can be settled.
    pub fn needs_grace(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Slab { .. }))
    }

    fn is_free(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Free(_)))
    }
}

/// Chunks that it takes to get a block of `size` bytes where its class has none.
pub fn chunks_for(size: usize) -> u32 {
    match size {
        0..=SMALL_MAX => u32::from(SLAB_CHUNKS[class_of(size + BLOCK_HEADER)]),
        _ => u32::try_from((size as u64).div_ceil(CHUNK)).unwrap_or(u32::MAX),
    }
}

/// How many blocks of `size` bytes those chunks hold.
pub fn blocks_in_chunks_for(size: usize) -> usize {
    if size > SMALL_MAX { 1 } else { usize::from(SLAB_BLOCKS[class_of(size + BLOCK_HEADER)]) }
}

impl Allocator {
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
            longest_free: u64::from(runs.longest()) * CHUNK,
            free_in_slabs,
        }
    }

    /// Calls `each` with the addresses of at most `most` live blocks of the class of `size`, from a slab picked by a random number. They may be
    /// freed at any time.
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
        for nth in 0..most.min(blocks) {
            let block = (random as usize % blocks + nth * step) % blocks;
            self.visit_live(slab, block, each);
        }
    }

    fn visit_live(&self, slab: &SlabChunk, block: usize, each: &mut dyn FnMut(usize)) -> bool {
        let off = self.geo.offset(slab.head) + block as u64 * u64::from(SIZES[usize::from(slab.key.class)]);
        let seen = self.seen(slab, off);
        if let Seen::Live(_) = seen {
            each(self.geo.at(off).as_ptr() as usize + BLOCK_HEADER);
        }
        matches!(seen, Seen::Free(_) | Seen::Unwritten)
    }

    /// What stands in the chunks, from a place picked by a random number on, that would do for a block of `size`. `None` if there are too few, or
    /// one of them is about to change hands.
    pub fn survey(&self, random: u64, size: usize) -> Option<Survey> {
        let wanted = chunks_for(size);
        let frontier = ((self.frontier() - self.geo.data) / CHUNK) as u32;
        let places = frontier.checked_sub(wanted)? + 1;
        self.survey_from((random % u64::from(places)) as u32, wanted)
    }

    /// The same of some large object, picked by a random number, that would do for one of `size` and is not much larger.
    pub fn survey_large(&self, random: u64, size: usize) -> Option<Survey> {
        let wanted = chunks_for(size);
        let runs = self.runs.lock();
        let from = (random % u64::from(runs.frontier.max(1))) as u32;
        let head = runs.large_near(from, wanted, wanted.saturating_add(wanted / 4))?;
        drop(runs);
        self.survey_from(head, wanted)
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
        for tenant in &survey.tenants {
            match tenant.kind {
                TenantKind::Free => {}
                TenantKind::Slab(slab) => self.sample_slab(&slab, random, most, each),
                TenantKind::Large => each(self.geo.at(self.geo.offset(tenant.head)).as_ptr() as usize),
            }
        }
    }

    /// Begins to evacuate what was surveyed: no block and no chunk of it is given out from here on. `None` if something changed hands
    /// since.
    pub fn evacuate(&self, survey: &Survey) -> Option<Window> {
        let mut window = Window { parts: Vec::with_capacity(survey.tenants.len()) };
        for tenant in &survey.tenants {
            match self.begin_part(tenant) {
                Some(part) => window.parts.push(part),
                None => {
                    self.put_back(window);
                    return None;
                }
            }
        }
        Some(window)
    }

    fn begin_part(&self, tenant: &Tenant) -> Option<Part> {
        match tenant.kind {
            TenantKind::Free => Some(Part::Free(self.runs.lock().take_this(tenant.head, tenant.len)?)),
            TenantKind::Slab(slab) => self.begin_slab(slab),
            TenantKind::Large => {
                let mut runs = self.runs.lock();
                let stands = runs.large.get(&tenant.head) == Some(&tenant.len) && !runs.leaving.contains_key(&tenant.head);
                if stands {
                    runs.leaving.insert(tenant.head, None);
                }
                stands.then_some(Part::Large { head: tenant.head })
            }
        }
    }

    fn begin_slab(&self, slab: SlabChunk) -> Option<Part> {
        let class = usize::from(slab.key.class);
        let ticket = self.tickets.fetch_add(1, Relaxed);
        let mut central = self.classes[class].lock();
        // Under the lock the entry is exact: this very slab stands, or not.
        let stands = matches!(self.table.get(slab.head), Entry::Slab(now) if now.key.seal == slab.key.seal);
        if stands && central.scan_begin_at(slab.index) {
            drop(central);
            self.scan_begun(class, slab.index, slab.head);
            central = self.classes[class].lock();
        }
        let stands = matches!(self.table.get(slab.head), Entry::Slab(now) if now.key.seal == slab.key.seal);
        if !stands || !central.leave(slab.index, ticket) {
            return None;
        }
        self.table.set_leaving(slab.head, u32::from(SLAB_CHUNKS[class]), true);
        self.note_empties(&central, class);
        Some(Part::Slab { slab, ticket, quiet: None })
    }

    /// Calls `each` with the address of each live block of a window.
    pub fn live_in(&self, window: &Window, each: &mut dyn FnMut(usize)) {
        for part in &window.parts {
            match part {
                Part::Free(_) => {}
                Part::Slab { slab, .. } => (0..usize::from(SLAB_BLOCKS[usize::from(slab.key.class)])).for_each(|block| {
                    self.visit_live(slab, block, each);
                }),
                Part::Large { head } => {
                    if self.runs.lock().leaving.get(head).is_some_and(Option::is_none) {
                        each(self.geo.at(self.geo.offset(*head)).as_ptr() as usize);
                    }
                }
            }
        }
    }

    /// Looks which slabs of a window have no live block any more; whether all is free, or can be. After the grace. `epoch` tells the epoch that
    /// transactions join now.
    pub fn inspect(&self, window: &mut Window, epoch: impl Fn() -> u64) -> bool {
        let mut all = true;
        for part in &mut window.parts {
            match part {
                Part::Free(_) => {}
                Part::Slab { slab, quiet, .. } => {
                    let blocks = usize::from(SLAB_BLOCKS[usize::from(slab.key.class)]);
                    if quiet.is_none() && (0..blocks).all(|block| self.visit_live(slab, block, &mut |_| ())) {
                        // Before the clock is read: it shows what the newest of the headers' writers saw, or later.
                        fence(Acquire);
                        *quiet = Some(epoch());
                    }
                    all &= quiet.is_some();
                }
                Part::Large { head } => all &= self.runs.lock().leaving.get(head).is_some_and(Option::is_some),
            }
        }
        all
    }

    /// Makes free chunks of what `inspect` found to be free; whether that is all of the window. `m` is not undoable.
    pub fn settle<M: Marker>(&self, window: &mut Window, m: &M) -> bool {
        for part in &mut window.parts {
            let free = match *part {
                Part::Free(_) => None,
                Part::Slab { slab, ticket, quiet } => self.settle_slab(&slab, ticket, quiet, m),
                Part::Large { head } => {
                    let mut runs = self.runs.lock();
                    let left = runs.leaving.get(&head).copied().flatten().filter(|run| run.epoch <= m.epoch());
                    left.inspect(|_| {
                        runs.leaving.remove(&head);
                    })
                }
            };
            if let Some(run) = free {
                *part = Part::Free(run);
            }
        }
        window.is_free()
    }

    fn settle_slab<M: Marker>(&self, slab: &SlabChunk, ticket: u64, quiet: Option<u64>, m: &M) -> Option<Run> {
        let epoch = m.epoch();
        quiet.filter(|&since| since <= epoch)?;
        let class = usize::from(slab.key.class);
        let len = u32::from(SLAB_CHUNKS[class]);
        let mut central = self.classes[class].lock();
        if !central.vacate(slab.index, ticket, epoch) {
            return None;
        }
        self.table.clear(slab.head, len);
        drop(central);
        self.put_header(m, slab.head, RunHeader { kind: Kind::Free, len, clean: false });
        Some(Run { chunk: slab.head, len, epoch, clean: false })
    }

    /// Ends an evacuation whose window is settled: its chunks are for this thread's next allocation that needs chunks.
    ///
    /// # Panics
    /// If the window is not settled.
    pub fn grant(&self, window: Window, cache: &mut Cache) {
        let runs = window.parts.iter().map(|part| match part {
            Part::Free(run) => *run,
            other => panic!("{other:?} is not settled"),
        });
        let run = runs.reduce(join);
        self.release_grant(cache);
        cache.granted = run;
    }

    /// Gives back what a grant has left over.
    pub fn release_grant(&self, cache: &mut Cache) {
        if let Some(run) = cache.granted.take() {
            self.runs.lock().insert(run);
        }
    }

    /// Ends an evacuation, settled or not: its free chunks are for everybody, and its slabs are in use again.
    pub fn put_back(&self, window: Window) {
        for part in window.parts {
            match part {
                Part::Free(run) => self.runs.lock().insert(run),
                Part::Slab { slab, ticket, .. } => {
                    let class = usize::from(slab.key.class);
                    let mut central = self.classes[class].lock();
                    if central.stay(slab.index, ticket) {
                        self.table.set_leaving(slab.head, u32::from(SLAB_CHUNKS[class]), false);
                        self.note_empties(&central, class);
                    }
                }
                Part::Large { head } => {
                    let mut runs = self.runs.lock();
                    if let Some(run) = runs.leaving.remove(&head).flatten() {
                        runs.insert(run);
                    }
                }
            }
        }
    }

    /// An undoable transaction is about to free a block of a slab that leaves: it must not, for the block may come back.
    #[cold]
    #[inline(never)]
    pub(super) fn call_off(&self, slab: &SlabChunk) {
        let class = usize::from(slab.key.class);
        let mut central = self.classes[class].lock();
        if central.call_off(slab.index) {
            self.table.set_leaving(slab.head, u32::from(SLAB_CHUNKS[class]), false);
            self.note_empties(&central, class);
        }
    }
}
