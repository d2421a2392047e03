//! A look through a large page table by several threads at once, while a process stands still and waits for it.
//!
//! ```text
//!   caller    wake ───── other things ───── scan ├ 1 ┤├ 3 ┤├ 5 ┤ what nobody has finished, in order     Awake dropped
//!   helper      └─ comes up, spins ──────────────├ 2 ┤├ 4 ┤ ... spins ─────────────────────────────────────┘ sleeps
//! ```
//!
//! What must always hold: nobody waits for a helper. One that does not get a processor takes no piece, and one that loses it in the midst of
//! a piece is overtaken: the caller looks at that piece itself. Only looks are shared out that change nothing, so that a late one does no harm.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use crate::pages::Pages;
use crate::sys::machine;
use crate::sys::pagemap::{Pagemap, Query, Region};
use crate::sys::priority::Urgent;

/// Pages that are looked at in one piece: some 40 us.
const PIECE: u64 = 16384;
/// Runs that are nearer to each other than this are looked at together: a call costs as much as so many pages.
const NEAR: u64 = 128;

/// What is looked for.
#[derive(Clone, Copy)]
pub(super) struct Look {
    /// Finds all that `closely` does, and what is near it, in less time.
    pub glance: Option<Query>,
    pub closely: Query,
}

impl Look {
    fn through(&self, pagemap: &Pagemap, range: &Pages, found: &mut Vec<Region>) -> io::Result<()> {
        let Some(glance) = self.glance else { return pagemap.scan(range, self.closely, found) };
        let mut seen = Vec::new();
        pagemap.scan(range, glance, &mut seen)?;
        // Not always in order: where a huge page is split under way, the kernel tells its pages again.
        let mut runs = seen.iter().map(Region::pages).peekable();
        while let Some(mut run) = runs.next() {
            while let Some(next) = runs.next_if(|next| next.start < run.end + NEAR) {
                run = run.start.min(next.start)..run.end.max(next.end);
            }
            pagemap.scan(&run, self.closely, found)?;
        }
        Ok(())
    }
}

const ASLEEP: u32 = 0;
const AWAKE: u32 = 1;
const ENDED: u32 = 2;

/// A page table, and helpers to look through it.
pub(super) struct Sweep {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    pagemap: Pagemap,
    state: AtomicU32,
    work: Mutex<Option<Arc<Work>>>,
    /// Counts what was put into `work`.
    number: AtomicU64,
}

struct Work {
    range: Pages,
    look: Look,
    next: AtomicU64,
    found: Vec<OnceLock<Vec<Region>>>,
}

/// As long as it is there, helpers wait for work and do nothing else.
pub struct Awake(Option<Arc<Shared>>);

impl Sweep {
    pub fn new(pagemap: Pagemap) -> Sweep {
        let shared = Shared { pagemap, state: AtomicU32::new(ASLEEP), work: Mutex::new(None), number: AtomicU64::new(0) };
        Sweep { shared: Arc::new(shared), helpers: Vec::new() }
    }

    /// The page table.
    pub fn pagemap(&self) -> &Pagemap {
        &self.shared.pagemap
    }

    /// Helpers come up, if so many pages are worth it and there are processors for them.
    pub fn wake(&mut self, pages: u64) -> Awake {
        if pages < 2 * PIECE {
            return Awake(None);
        }
        if self.helpers.is_empty() {
            for _ in 0..machine::helpers() {
                let shared = Arc::clone(&self.shared);
                let helper = thread::Builder::new().name("towa-sweep".into()).spawn(move || shared.help());
                self.helpers.extend(helper); // it can be done without
            }
        }
        self.shared.state.store(AWAKE, Ordering::Release);
        self.helpers.iter().for_each(|helper| helper.thread().unpark());
        Awake(Some(Arc::clone(&self.shared)))
    }

    /// Appends the runs of `range` that are found to `found`. Nothing may be armed by it.
    pub fn look(&self, range: &Pages, look: Look, found: &mut Vec<Region>) -> io::Result<()> {
        let shared = &self.shared;
        if range.end - range.start < 2 * PIECE || self.helpers.is_empty() || shared.state.load(Ordering::Acquire) != AWAKE {
            return look.through(&shared.pagemap, range, found);
        }
        assert!(!look.closely.arm && !look.glance.is_some_and(|glance| glance.arm), "a look that changes nothing");
        let work = Arc::new(Work::new(range, look));
        *shared.work.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&work));
        shared.number.fetch_add(1, Ordering::Release);
        work.finish(&shared.pagemap, found)
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.shared.state.store(ENDED, Ordering::Release);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            let _ = helper.join();
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            // Not if it has ended.
            let _ = shared.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl Shared {
    /// A helper's life.
    fn help(&self) {
        let mut seen = 0;
        // The first memory that a thread is given takes long.
        drop(Vec::<Region>::with_capacity(1024));
        loop {
            match self.state.load(Ordering::Acquire) {
                ENDED => return,
                ASLEEP => thread::park(),
                _ => self.help_while_awake(&mut seen),
            }
        }
    }

    fn help_while_awake(&self, seen: &mut u64) {
        let _urgent = Urgent::begin();
        while self.state.load(Ordering::Acquire) == AWAKE {
            let number = self.number.load(Ordering::Acquire);
            if number == *seen {
                std::hint::spin_loop();
                continue;
            }
            *seen = number;
            let work = self.work.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(work) = work {
                // The caller finds what is wrong, too.
                let _ = work.take_part(&self.pagemap);
            }
        }
    }
}

impl Work {
    fn new(range: &Pages, look: Look) -> Work {
        let pieces = (range.end - range.start).div_ceil(PIECE);
        Work { range: range.clone(), look, next: AtomicU64::new(0), found: (0..pieces).map(|_| OnceLock::new()).collect() }
    }

    fn piece(&self, number: u64) -> Pages {
        let start = self.range.start + number * PIECE;
        start..self.range.end.min(start + PIECE)
    }

    /// Looks at pieces that nobody has begun, until there are none.
    fn take_part(&self, pagemap: &Pagemap) -> io::Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = self.found.get(number as usize) else { return Ok(()) };
            let mut regions = Vec::new();
            self.look.through(pagemap, &self.piece(number), &mut regions)?;
            let _ = place.set(regions);
        }
    }

    /// Looks at what nobody else has finished, and puts all together.
    fn finish(&self, pagemap: &Pagemap, found: &mut Vec<Region>) -> io::Result<()> {
        self.take_part(pagemap)?;
        for (number, regions) in self.found.iter().enumerate() {
            match regions.get() {
                Some(regions) => found.extend_from_slice(regions),
                None => self.look.through(pagemap, &self.piece(number as u64), found)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{PAGE, PageSet};
    use crate::sys::pagemap::PRESENT;

    const ALL: u64 = 10 * PIECE + 77;

    /// Reserved memory of which every 1000th page is there, and a run across the end of a piece; what is there.
    fn memory() -> (towa_media::Mapping, Pages, PageSet) {
        let mapping = towa_media::Mapping::anonymous(None, (ALL * PAGE) as usize, false).unwrap();
        let first = mapping.as_ptr() as u64 / PAGE;
        let touched: Vec<u64> = (0..ALL).step_by(1000).chain(PIECE - 3..PIECE + 3).collect();
        for page in &touched {
            // SAFETY: within the mapping, which nobody else knows.
            unsafe { mapping.as_ptr().add((page * PAGE) as usize).write(1) };
        }
        (mapping, first..first + ALL, touched.into_iter().map(|page| first + page..first + page + 1).collect())
    }

    fn looks() -> [Look; 2] {
        let closely = Query { any: PRESENT, tell: PRESENT, ..Query::default() };
        [Look { glance: None, closely }, Look { glance: Some(closely), closely }]
    }

    fn is_there(regions: &[Region], expected: &PageSet) {
        assert!(regions.windows(2).all(|pair| pair[0].pages().end <= pair[1].pages().start), "in order, none twice");
        assert_eq!(&regions.iter().map(Region::pages).collect::<PageSet>(), expected);
    }

    fn sweep() -> Option<Sweep> {
        let pagemap = Pagemap::open(std::process::id() as i32).unwrap();
        if !pagemap.can_tell(PRESENT) {
            println!("SKIP PAGEMAP_SCAN: the kernel has none (Linux 6.7)");
            return None;
        }
        Some(Sweep::new(pagemap))
    }

    #[test]
    fn helpers_awake_and_asleep_find_what_is_there() {
        let (Some(mut sweep), (_mapping, range, expected)) = (sweep(), memory()) else { return };
        for round in 0..50 {
            let awake = (round % 3 > 0).then(|| sweep.wake(ALL));
            for range in [range.clone(), range.start..range.start + 5, range.clone()] {
                let mut found = Vec::new();
                sweep.look(&range, looks()[round % 2], &mut found).unwrap();
                is_there(&found, &expected.intersection(&PageSet::from(range)));
            }
            drop(awake);
        }
    }

    #[test]
    fn a_piece_that_somebody_began_and_does_not_finish_is_looked_at_again() {
        let (Some(sweep), (_mapping, range, expected)) = (sweep(), memory()) else { return };
        let work = Work::new(&range, looks()[0]);
        work.next.store(2, Ordering::Relaxed);
        let mut found = Vec::new();
        work.finish(sweep.pagemap(), &mut found).unwrap();
        is_there(&found, &expected);
    }

    #[test]
    fn little_wakes_nobody() {
        let Some(mut sweep) = sweep() else { return };
        assert!(sweep.wake(2 * PIECE - 1).0.is_none() && sweep.helpers.is_empty());
    }
}
