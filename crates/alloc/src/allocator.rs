//! The allocator: which segments and blocks are free, in DRAM alone.
//!
//! ```text
//!   opening:   Allocator::rebuild ──► mark, mark, mark ... (every block that can be reached) ──► finish
//!
//!   a segment of a class:   free ──► HELD (some thread's current) ──► full ──► LISTED (has free blocks) ──► HELD ...
//!                             ▲                                                   │ all its blocks free, and space is short
//!                             └───────────────────────────────────────────────────┘
//! ```
//!
//! What must always hold: a segment's state changes under the lock of its class, and only its holder takes blocks from it; a run of
//! segments is in one place only: free, or some class's, or a large object's; no lock of a class is taken under the runs' lock.

use std::sync::Arc;

use parking_lot::Mutex;
use std::sync::atomic::Ordering::*;

use crate::classes::{CLASSES, SIZES, blocks, class_of};
use crate::large::Runs;
use crate::table::{BODY, FREE, HEAD, HELD, LISTED, Marked, Table, WHAT};
use crate::{Arena, Audit, Error, Local, Result, SEGMENT};

/// Space is provided, and the mark raised, by so many segments at a time: 1 MiB; in small arenas by a 64th of them.
const STEP: u64 = 256;

/// What is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks, large objects among them.
    pub blocks: u64,
    /// Their bytes, rounded up to their classes' sizes.
    pub bytes: u64,
    /// Bytes below the high-water mark.
    pub provided: u64,
}

/// An allocator inside an [`Arena`]. Threads work through a [`Local`] each.
#[derive(Debug)]
pub struct Allocator {
    arena: Arc<Arena>,
    table: Table,
    /// Of each class, the segments with free blocks that nobody holds.
    lists: [Mutex<Vec<u64>>; CLASSES],
    runs: Mutex<Runs>,
}

/// An allocator that is being told what is taken.
#[derive(Debug)]
pub struct Rebuild {
    arena: Arc<Arena>,
    table: Table,
    mark: u64,
}

impl Rebuild {
    /// The block of `size` bytes at `off` can be reached. Any number of threads may mark at once. An error says that the structure that
    /// led here is damaged: there is no such block, or it has an owner already.
    pub fn mark(&self, off: u64, size: usize) -> Result<()> {
        check(&self.arena, off, size, self.table.mark(self.arena.first_segment(), self.mark, off, size))
    }

    /// Whatever was not marked is free.
    pub fn finish(self) -> Result<Arc<Allocator>> {
        let first = self.arena.first_segment();
        let mut runs = Runs::new(self.mark);
        let lists: [Mutex<Vec<u64>>; CLASSES] = std::array::from_fn(|_| Mutex::default());
        let mut free_from = None;
        for segment in first..=self.mark {
            let meta = if segment < self.mark { self.table.line(segment).meta.load(Relaxed) } else { BODY };
            match (meta & WHAT, free_from) {
                (FREE, None) => free_from = Some(segment),
                (FREE, Some(_)) => {}
                (_, Some(from)) => {
                    runs.give(from, segment - from);
                    free_from = None;
                }
                _ => {}
            }
            if (1..=CLASSES as u64).contains(&(meta & WHAT)) {
                let class = (meta & WHAT) as usize - 1;
                if self.table.line(segment).count() < blocks(class) {
                    self.table.line(segment).meta.fetch_or(LISTED, Relaxed);
                    lists[class].lock().push(segment);
                }
            }
        }
        // The mark may be one that an earlier process stored and did not make durable; `rebuild` wrote it again.
        self.arena.fence()?;
        Ok(Arc::new(Allocator { arena: self.arena, table: self.table, lists, runs: Mutex::new(runs) }))
    }
}

/// The damage that marking found.
pub(crate) fn check(arena: &Arena, off: u64, size: usize, marked: Marked) -> Result<()> {
    let what = match marked {
        Marked::Fresh => return Ok(()),
        Marked::Twice => format!("the block of {size} bytes at {off:#x} has two owners"),
        Marked::NoBlock => format!("no block of {size} bytes can be at {off:#x}"),
    };
    Err(Error::Damaged { pool: arena.location().into(), what })
}

impl Allocator {
    /// Starts over: everything is free until it is marked.
    pub fn rebuild(arena: Arc<Arena>) -> Result<Rebuild> {
        let mark = arena.mark()?;
        arena.rewrite(crate::header::MARK_AT, 1)?;
        Ok(Rebuild { table: Table::new(arena.len() / SEGMENT)?, mark, arena })
    }

    /// The arena it allocates in.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// A thread's way to it.
    pub fn local(self: &Arc<Self>) -> Local {
        Local::new(self.clone())
    }

    /// What is taken now; exact while nobody allocates or frees.
    pub fn usage(&self) -> Usage {
        let (first, mark) = (self.arena.first_segment(), self.runs.lock().mark);
        let mut usage = Usage { provided: mark * SEGMENT, ..Usage::default() };
        for segment in first..mark {
            let line = self.table.line(segment);
            let meta = line.meta.load(Relaxed);
            match meta & WHAT {
                FREE | BODY => {}
                HEAD => {
                    usage.blocks += 1;
                    usage.bytes += (meta >> 32) * SEGMENT;
                }
                class => {
                    usage.blocks += line.count() as u64;
                    usage.bytes += line.count() as u64 * u64::from(SIZES[class as usize - 1]);
                }
            }
        }
        usage
    }

    /// Compares what is taken with what can be reached, while nobody allocates or frees.
    pub fn audit(&self) -> Result<Audit<'_>> {
        Audit::new(&self.arena, &self.table, self.runs.lock().mark)
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// A segment of `class` with free blocks, for a thread to hold.
    #[cold]
    pub(crate) fn acquire(&self, class: usize) -> Result<u64> {
        loop {
            if let Some(segment) = self.take_listed(class) {
                return Ok(segment);
            }
            if let Some(segment) = self.take_run(1)? {
                self.table.line(segment).meta.store((class as u64 + 1) | HELD, Relaxed);
                return Ok(segment);
            }
            // What other threads gave back meanwhile, of this class or, whole segments, of any.
            if !self.scavenge() && self.lists[class].lock().is_empty() {
                return Err(self.out_of_space(SIZES[class] as usize));
            }
        }
    }

    fn take_listed(&self, class: usize) -> Option<u64> {
        let segment = self.lists[class].lock().pop()?;
        let meta = &self.table.line(segment).meta;
        debug_assert_eq!(meta.load(Relaxed), (class as u64 + 1) | LISTED);
        // Nobody else looks at the state of a segment that is neither listed nor held.
        meta.store((class as u64 + 1) | HELD, Relaxed);
        Some(segment)
    }

    /// The holder of `segment` has no use for it any more.
    pub(crate) fn release(&self, class: usize, segment: u64) {
        let mut list = self.lists[class].lock();
        let line = self.table.line(segment);
        let full = line.count() == blocks(class);
        line.meta.store((class as u64 + 1) | if full { 0 } else { LISTED }, Relaxed);
        if !full {
            list.push(segment);
        }
    }

    /// Frees the block at `off`; see [`Local::free`].
    pub(crate) fn free(&self, off: u64) {
        let segment = off / SEGMENT;
        let line = self.table.line(segment);
        let meta = line.meta.load(Relaxed);
        let what = meta & WHAT;
        let not_taken = || panic!("{}: no block is taken at {off:#x}", self.arena.location());
        if what == HEAD && off.is_multiple_of(SEGMENT) {
            let n = meta >> 32;
            (0..n).for_each(|i| self.table.line(segment + i).meta.store(FREE, Relaxed));
            return self.runs.lock().give(segment, n);
        }
        if !(1..=CLASSES as u64).contains(&what) {
            not_taken();
        }
        let class = what as usize - 1;
        let size = u64::from(SIZES[class]);
        let mut list = self.lists[class].lock();
        if !(off % SEGMENT).is_multiple_of(size) || !line.give((off % SEGMENT / size) as usize) {
            not_taken();
        }
        if line.meta.load(Relaxed) & (HELD | LISTED) == 0 {
            line.meta.fetch_or(LISTED, Relaxed);
            list.push(segment);
        }
    }

    /// A large object.
    pub(crate) fn reserve_large(&self, size: usize) -> Result<u64> {
        let n = (size as u64).div_ceil(SEGMENT);
        loop {
            if let Some(first) = self.take_run(n)? {
                (1..n).for_each(|i| self.table.line(first + i).meta.store(BODY, Relaxed));
                self.table.line(first).meta.store(HEAD | n << 32, Relaxed);
                return Ok(first * SEGMENT);
            }
            if !self.scavenge() {
                return Err(self.out_of_space(size));
            }
        }
    }

    /// `n` free segments in a row, if there are any: recycled ones, else fresh ones.
    fn take_run(&self, n: u64) -> Result<Option<u64>> {
        let mut runs = self.runs.lock();
        if let Some(first) = runs.take(n) {
            return Ok(Some(first));
        }
        let end = self.arena.len() / SEGMENT;
        let wanted = (runs.next - runs.before_next()).saturating_add(n);
        if wanted > end {
            return Ok(None);
        }
        if wanted > runs.mark {
            let step = (end / 64).clamp(1, STEP);
            let roomy = wanted.max(runs.mark + step).min(end);
            let raised = self.arena.raise_mark(runs.mark, roomy).map(|()| roomy);
            runs.mark = match raised {
                Err(Error::Media(towa_media::Error::Full { .. })) if !self.arena.is_failed() => {
                    // Not a whole step: what is needed may still be there.
                    match self.arena.raise_mark(runs.mark, wanted) {
                        Err(Error::Media(towa_media::Error::Full { .. })) if !self.arena.is_failed() => return Ok(None),
                        other => other.map(|()| wanted)?,
                    }
                }
                other => other?,
            };
        }
        Ok(Some(runs.extend(n)))
    }

    /// Takes the segments without any block away from their classes; whether there were any.
    fn scavenge(&self) -> bool {
        let mut found = Vec::new();
        for list in &self.lists {
            list.lock().retain(|segment| {
                let line = self.table.line(*segment);
                let empty = line.count() == 0;
                if empty {
                    line.meta.store(FREE, Relaxed);
                    found.push(*segment);
                }
                !empty
            });
        }
        let mut runs = self.runs.lock();
        found.iter().for_each(|segment| runs.give(*segment, 1));
        !found.is_empty()
    }

    fn out_of_space(&self, wanted: usize) -> Error {
        Error::OutOfSpace { pool: self.arena.location().into(), wanted, len: self.arena.len() }
    }

    /// The class for `size`, `None` for large objects.
    #[inline]
    pub(crate) fn class_of(size: usize) -> Option<usize> {
        class_of(size)
    }
}
