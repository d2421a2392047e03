//! Evacuation: how neighbouring chunks become free together although other threads' caches hold free blocks of them.
//!
//! A slab whose blocks are all *in* is given up as a whole. Free blocks in another thread's cache are out, and no
//! thread reaches into another's cache; so a slab can be free and never be wholly in. An owner that can free the live
//! blocks of a slab, a cache that evicts, gets its chunks like this:
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
//! Why no block of the slab is given out after the grace. `pop` gives out a block only if the table entry bears its
//! slab's seal and no flag, within a transaction. One that ran when the flag was set has ended. One that began later
//! sees the flag: it announced itself, then looked at the entry; the evacuation set the flag, then looked for
//! announcements, with the engine's barrier in between on both sides, so one of the two saw the other. Bins are
//! refilled from listed slabs, and one that leaves is not listed. So from the grace on live blocks only become fewer,
//! and a pass over the headers that finds each of them free, one after the other, finds all of them free together.
//!
//! Why nothing comes back afterwards. What lies in bins when the slab is vacated, freed before or after the flag was
//! set, bears the seal of a slab that is no more: no two slabs have one seal (it is drawn from a counter; a slab that
//! an earlier process carved has the same with probability 2^-64). `pop` and `flush_bin` forget such blocks; `vacate`
//! has taken them out of the count of blocks that are out. A thread puts a block into a slab only under the class's
//! lock, under which entry and slab agree.
//!
//! **The epoch rule.** Each header found free was written in some epoch n, with release; the pass ends with an acquire
//! fence, and the epoch is asked for after it: the clock showed n before that header was written, so the answer is at
//! least n. `settle` refuses an older transaction: a thread may have written a header and not have given the block back
//! yet, so the slab's epoch, which is what `remove_empty` goes by, does not tell. So what the new tenant's transactions
//! write comes after all that the old tenants' wrote, in every epoch.
//!
//! **Undoable transactions.** A block freed in one reads as free and may become live again. One that ran when the flag
//! was set has ended before the grace. One that frees a block of a slab that leaves calls the evacuation off before it
//! writes the header: `vacate`, which comes first or finds no ticket, has then seen the block live. Slabs of an
//! undoable transaction that has not ended (`HELD`) cannot leave. Large objects come free when the transaction that
//! freed them commits.
//!
//! **A crash** at any step: all but the headers is DRAM's. Before the epoch of `settle` the slab is a slab, with the
//! headers of that epoch; from it on its header says free, and so it is. A slab that is vacated while others of its
//! window are not is free chunks by itself.
//!
//! **In vain**: the owner cannot free some block, which is not its own. `put_back` lists the slabs again, and blocks in
//! bins may be given out again. A block that went back to its slab in the meantime is in no bin any more.
//!
//! Slabs not scanned since opening are scanned first. Damaged blocks count as live, so their slab stays.

use super::cache::Cache;
use super::header::{Kind, RunHeader};
use super::layout::{SLAB_BLOCKS, SLAB_CHUNKS};
use super::runs::{Run, join};
use super::survey::{Survey, Tenant, TenantKind};
use super::table::{Entry, SlabChunk};
use super::{Allocator, Marker};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, fence};
use towa_media::LINE;

/// Chunks that are being evacuated. To be ended by [`Allocator::grant`] or [`Allocator::put_back`].
#[derive(Debug)]
#[must_use]
pub struct Window {
    parts: Vec<Part>,
}

/// What was found in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspected {
    /// All of it is free, or can be.
    Free,
    /// Something is live, or damaged.
    Live,
    /// What was looked at is free; there is more to look at.
    NotAll,
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
    /// Whether blocks were handed out from it without a look at its table entry by transactions that ran when it began:
    /// whether those have to end before it can be settled.
    pub fn needs_grace(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Slab { .. }))
    }

    /// Bytes that settling it writes: a header for each slab.
    pub fn written_bytes(&self) -> usize {
        self.parts.len() * LINE
    }

    fn is_free(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Free(_)))
    }
}

impl Allocator {
    /// Begins to evacuate what was surveyed: no block and no chunk of it is given out from here on. `None` if something
    /// changed hands since, or it was another heap's survey.
    pub fn evacuate(&self, survey: &Survey) -> Option<Window> {
        if !self.has_surveyed(survey) {
            return None;
        }
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
        let stands = || matches!(self.table.get(slab.head), Entry::Slab(now) if now.is_of_same_slab(&slab));
        if stands() && central.scan_begin_at(slab.index) {
            drop(central);
            self.scan_begun(class, slab.index, slab.head);
            central = self.classes[class].lock();
        }
        if !stands() || !central.leave(slab.index, ticket) {
            return None;
        }
        self.table.set_leaving(slab.head, u32::from(SLAB_CHUNKS[class]), true);
        self.note_empties(&central, class);
        Some(Part::Slab { slab, ticket, quiet: None })
    }

    /// Calls `each` with the addresses of the live blocks of a window, from its `from`-th part on until `most` blocks
    /// were looked at; the part to go on with, or `None` when there is no other.
    pub fn live_in(&self, window: &Window, from: usize, most: usize, each: &mut dyn FnMut(usize)) -> Option<usize> {
        let mut looked = 0;
        for (at, part) in window.parts.iter().enumerate().skip(from) {
            if looked >= most {
                return Some(at);
            }
            match part {
                Part::Free(_) => {}
                Part::Slab { slab, .. } => {
                    let blocks = usize::from(SLAB_BLOCKS[usize::from(slab.key.class)]);
                    looked += blocks;
                    (0..blocks).for_each(|block| {
                        self.visit_live(slab, block, each);
                    });
                }
                Part::Large { head } => {
                    looked += 1;
                    if self.runs.lock().leaving.get(head).is_some_and(Option::is_none) {
                        each(self.geo.at(self.geo.offset(*head)).as_ptr() as usize);
                    }
                }
            }
        }
        None
    }

    /// Looks which slabs of a window have no live block any more, at about `most` blocks of those not seen to be so.
    /// After the grace. `epoch` tells the epoch that transactions join now.
    pub fn inspect(&self, window: &mut Window, most: usize, epoch: impl Fn() -> u64) -> Inspected {
        let (mut all, mut looked) = (true, 0);
        for part in &mut window.parts {
            if looked >= most {
                return if all { Inspected::NotAll } else { Inspected::Live };
            }
            match part {
                Part::Free(_) => {}
                Part::Slab { slab, quiet, .. } => {
                    if quiet.is_some() {
                        continue;
                    }
                    let blocks = usize::from(SLAB_BLOCKS[usize::from(slab.key.class)]);
                    looked += blocks;
                    if (0..blocks).all(|block| self.visit_live(slab, block, &mut |_| ())) {
                        // Before the clock is read: it shows what the newest of the headers' writers saw, or later.
                        fence(Acquire);
                        *quiet = Some(epoch());
                    }
                    all &= quiet.is_some();
                }
                Part::Large { head } => all &= self.runs.lock().leaving.get(head).is_some_and(Option::is_some),
            }
        }
        if all { Inspected::Free } else { Inspected::Live }
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
        Some(Run::solid(slab.head, len, epoch, false))
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

    /// An undoable transaction is about to free a block of a slab that leaves: it must not, for the block may come
    /// back.
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
