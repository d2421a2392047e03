//! The pager of a lazy restart: the new process's memory is empty, and each page gets its content from a checkpoint when it is touched.
//!
//! ```text
//!   process  touches a page that is not there ──> waits ─────────────> goes on
//!   pager                     fault ──> read it and its neighbours from the source, put them there
//!            forks, moves, unmaps, drops memory ──> waits ──> goes on
//!   pager                     event ──> what is owed to which address changes
//!   pager    nobody waits ──> some of the rest is filled in; all filled: the end, the process is one like any other
//! ```
//!
//! What must always hold: a page that has content in the source and was not dropped by the process is never seen as zeros, by it or by
//! a child it forked. That rests on three things:
//! - *What is owed* (`Owed`: which page gets which page of the source) is changed by events in the order in which the kernel tells them,
//!   and a page leaves it only when its content is in place, or an event took the page away.
//! - From the moment the process begins to change its layout until the event was read, the kernel answers EAGAIN to whoever fills a
//!   page. So nothing is ever decided on a layout that is out of date: EAGAIN means to read events first and to look again.
//! - A page whose content cannot be read is poisoned (touching it is a SIGBUS), and if even that fails the process is killed, before the
//!   userfaultfd is closed: closing it gives zeros.
//!
//! Faults of pages that nothing is owed to are those of memory that was dropped, or had grown: zeros.
//!
//! A process may only be checkpointed once its pager has ended: until then its page table does not show all its content, and its memory
//! cannot be registered for tracking.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::pages::{PAGE, PageSet, Pages};
use crate::sys::uffd::{self, Event, Mode, Uffd};
use crate::sys::vm;

/// Pages that are filled along with the one that is waited for: an aligned group of so many.
const NEIGHBOURS: u64 = 16;
/// Pages that are filled at a time while nobody waits.
const BACKGROUND: u64 = 64;

/// Where the content comes from.
pub trait Source {
    /// Content of the pages from `first_page` on, all of which are in [`Source::pages`].
    fn read(&self, first_page: u64, into: &mut [u8]) -> Result<()>;

    /// The pages that have content.
    fn pages(&self) -> &PageSet;
}

/// What a pager did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Faults that were answered.
    pub faults: u64,
    /// Pages that were filled with content.
    pub filled_pages: u64,
    /// Pages whose content could not be read: touching them is a SIGBUS.
    pub poisoned_pages: u64,
    /// Children that were forked meanwhile and had a pager, too.
    pub children: u64,
}

/// Fills the memory of a process and of the children it forks.
pub struct Pager<S> {
    source: S,
    pidfd: OwnedFd,
    /// The process first, then its children.
    spaces: Vec<Space>,
    buffer: Vec<u8>,
    report: Report,
}

/// One memory: the process's, or a child's.
struct Space {
    uffd: Uffd,
    owed: Owed,
    /// Pages that are waited for.
    faults: Vec<u64>,
}

/// What became of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The layout is changing: read events, then look again.
    Again,
    /// The memory is gone: its process ended or runs another program.
    Ended,
}

impl<S: Source> Pager<S> {
    /// Takes over `ranges` (anonymous memory of `pid`, nothing touched yet) with `uffd`, a new userfaultfd of that memory. It must not be
    /// one for user mode only: system calls touch memory, too. Both that and following forks take CAP_SYS_PTRACE; who does not have it
    /// must fill the memory before the process runs: a child that is not followed would see zeros.
    pub fn new(uffd: OwnedFd, pid: i32, ranges: &[Pages], source: S) -> Result<Pager<S>> {
        let what = |what: &str| format!("userfaultfd of process {pid}: {what}");
        let pidfd = vm::pidfd(pid).map_err(|err| Error::io(format!("process {pid}"), err))?;
        let uffd = Uffd::enable(uffd, uffd::EVENTS).map_err(|err| Error::io(what("its events"), err))?;
        for range in ranges {
            uffd.register(range, Mode::Missing)
                .map_err(|err| Error::io(what(&format!("{:x?}", range.start * PAGE..range.end * PAGE)), err))?;
        }
        let owed = Owed::of(&source.pages().intersection(&PageSet::of(ranges.iter().cloned())));
        let space = Space { uffd, owed, faults: Vec::new() };
        let buffer = vec![0; (BACKGROUND.max(NEIGHBOURS) * PAGE) as usize];
        Ok(Pager { source, pidfd, spaces: vec![space], buffer, report: Report::default() })
    }

    /// Serves until all is filled. With `fill` false, nothing but what is touched is filled, until it becomes true; only filling shows
    /// that the process has ended.
    ///
    /// After an error the process has been killed: its memory could not have been completed.
    pub fn run(&mut self, fill: &AtomicBool) -> Result<Report> {
        let result = self.serve(fill);
        if let Err(err) = &result {
            log::error!("the process is killed, its memory cannot be completed: {err}");
            if let Err(err) = vm::kill(&self.pidfd)
                && err.raw_os_error() != Some(libc::ESRCH)
            {
                log::error!("killing it: {err}");
            }
        }
        result
    }

    fn serve(&mut self, fill: &AtomicBool) -> Result<Report> {
        let failed = |err| Error::io("the pager's userfaultfd", err);
        while !self.spaces.is_empty() {
            let mut stalled = false;
            let mut at = 0;
            while at < self.spaces.len() {
                match self.serve_one(at).map_err(failed)? {
                    Outcome::Done => at += 1,
                    Outcome::Again => (stalled, at) = (true, at + 1),
                    Outcome::Ended => drop(self.spaces.remove(at)),
                }
            }
            // Closed when all events were read and nothing is owed: from here on the kernel does by itself what we would do.
            self.spaces.retain(|space| !space.owed.is_empty() || !space.faults.is_empty());
            let filling = fill.load(Ordering::Relaxed);
            if filling && !stalled {
                // The process's own memory first: a child often ends soon, or runs another program.
                match self.fill_one(0, None).map_err(failed)? {
                    Outcome::Done => {}
                    Outcome::Again => stalled = true,
                    Outcome::Ended => drop(self.spaces.remove(0)),
                }
            }
            if stalled || !filling {
                Uffd::wait(self.spaces.iter().map(|space| &space.uffd), if stalled { 1 } else { 20 }).map_err(failed)?;
            }
        }
        Ok(self.report)
    }

    /// Reads the messages of a space and answers its faults.
    fn serve_one(&mut self, at: usize) -> io::Result<Outcome> {
        self.read_messages(at)?;
        let mut unanswered = Vec::new();
        for page in std::mem::take(&mut self.spaces[at].faults) {
            match self.fill_one(at, Some(page))? {
                Outcome::Done => self.report.faults += 1,
                Outcome::Again => unanswered.push(page),
                Outcome::Ended => return Ok(Outcome::Ended),
            }
        }
        let again = !unanswered.is_empty();
        self.spaces[at].faults.extend(unanswered);
        Ok(if again { Outcome::Again } else { Outcome::Done })
    }

    /// Reads all messages: faults are noted, events are followed. The number of events.
    fn read_messages(&mut self, at: usize) -> io::Result<usize> {
        let mut events = 0;
        while let Some(event) = self.spaces[at].uffd.next()? {
            events += 1;
            let space = &mut self.spaces[at];
            match event {
                Event::Fault(page) => {
                    space.faults.push(page);
                    events -= 1;
                }
                // Zeros from now on; what is gone is owed nothing.
                Event::Remove(pages) | Event::Unmap(pages) => space.owed.remove(&pages),
                Event::Remap { from, to } => space.owed.shift(&from, to),
                Event::Fork(uffd) => {
                    // Pages that are in place were copied by the fork: the child is owed what its parent is.
                    let child = Space { uffd, owed: space.owed.clone(), faults: Vec::new() };
                    self.spaces.push(child);
                    self.report.children += 1;
                }
            }
        }
        Ok(events)
    }

    /// Fills `page` and some around it, or some page if none is given. [`Outcome::Done`] says that whoever waits for `page` goes on.
    fn fill_one(&mut self, at: usize, page: Option<u64>) -> io::Result<Outcome> {
        let Some(space) = self.spaces.get(at) else { return Ok(Outcome::Done) };
        let run = match page {
            Some(page) => space.owed.around(page, NEIGHBOURS),
            None => space.owed.first(BACKGROUND),
        };
        match (run, page) {
            (Some((pages, from)), _) => self.put(at, pages, from, page),
            (None, Some(page)) => self.answer(at, page, space.uffd.zero(page)),
            (None, None) => Ok(Outcome::Done),
        }
    }

    /// Puts pages `from` of the source at `pages`; those, and `waited` among them, are no longer owed when it is done.
    fn put(&mut self, at: usize, pages: Pages, from: u64, waited: Option<u64>) -> io::Result<Outcome> {
        let bytes = ((pages.end - pages.start) * PAGE) as usize;
        if let Err(err) = self.source.read(from, &mut self.buffer[..bytes]) {
            if pages.end - pages.start > 1 {
                // Perhaps only one of them is bad.
                let one = waited.unwrap_or(pages.start);
                return self.put(at, one..one + 1, from + one - pages.start, waited);
            }
            log::error!("page {:x} cannot be filled, touching it will be a SIGBUS: {err}", pages.start * PAGE);
            let outcome = self.answer(at, pages.start, self.spaces[at].uffd.poison(pages.start))?;
            if outcome == Outcome::Done {
                self.spaces[at].owed.remove(&pages);
                self.report.poisoned_pages += 1;
            }
            return Ok(outcome);
        }
        let (mut start, mut most) = (pages.start, pages.end - pages.start);
        let mut again_at_once = true;
        while start < pages.end {
            let end = pages.end.min(start + most);
            let place = |page: u64| ((page - pages.start) * PAGE) as usize;
            let space = &mut self.spaces[at];
            let (done, result) = space.uffd.copy(start, &self.buffer[place(start)..place(end)]);
            space.owed.remove(&(start..start + done));
            self.report.filled_pages += done;
            start += done;
            let Err(err) = result else { continue };
            match err.raw_os_error() {
                _ if done > 0 => {} // stopped on the way: why, will be said at the page where it did
                Some(libc::EEXIST) => {
                    // Something is there already, and it is newer.
                    space.owed.remove(&(start..start + 1));
                    space.uffd.wake(start)?;
                    start += 1;
                }
                // Not within one mapping: fewer, down to a single page.
                Some(libc::ENOENT) if end - start > 1 => most = (end - start) / 2,
                Some(libc::ENOENT) => {
                    // The page is not mapped (any more). If it is an event that took it or moved it, that is read now; or it is under
                    // way, then the next attempt says EAGAIN. Only if neither is so is it gone without a word.
                    if self.read_messages(at)? > 0 {
                        return Ok(Outcome::Again);
                    }
                    if !again_at_once {
                        let space = &mut self.spaces[at];
                        space.owed.remove(&(start..start + 1));
                        space.uffd.wake(start)?;
                        start += 1;
                    }
                    again_at_once = !again_at_once;
                }
                Some(libc::EAGAIN) => return Ok(Outcome::Again),
                Some(libc::ESRCH | libc::ENOSPC) => return Ok(Outcome::Ended),
                Some(libc::ENOMEM) => return Ok(Outcome::Again),
                _ => return Err(err),
            }
        }
        Ok(Outcome::Done)
    }

    /// What the answer to a fault of one page, to which nothing is owed, has led to.
    fn answer(&self, at: usize, page: u64, result: io::Result<()>) -> io::Result<Outcome> {
        let Err(err) = result else { return Ok(Outcome::Done) };
        match err.raw_os_error() {
            // Another thread's fault was answered before; or the mapping is gone, and trying again ends as it must.
            Some(libc::EEXIST | libc::ENOENT) => self.spaces[at].uffd.wake(page).map(|()| Outcome::Done),
            Some(libc::EAGAIN | libc::ENOMEM) => Ok(Outcome::Again),
            Some(libc::ESRCH | libc::ENOSPC) => Ok(Outcome::Ended),
            _ => Err(err),
        }
    }
}

/// Which pages get which pages of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Owed(BTreeMap<u64, Piece>);

/// Pages from the key to `end` get those of the source from `from` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    end: u64,
    from: u64,
}

impl Owed {
    fn of(pages: &PageSet) -> Owed {
        Owed(pages.ranges().iter().map(|range| (range.start, Piece { end: range.end, from: range.start })).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `page` and those owed beside it, in its aligned group of `most` pages, with the first one's page of the source.
    fn around(&self, page: u64, most: u64) -> Option<(Pages, u64)> {
        let (&start, piece) = self.0.range(..=page).next_back()?;
        if piece.end <= page {
            return None;
        }
        let group = page / most * most;
        let pages = start.max(group)..piece.end.min(group + most);
        Some((pages.clone(), piece.from + (pages.start - start)))
    }

    /// The first pages that are owed, `most` at most.
    fn first(&self, most: u64) -> Option<(Pages, u64)> {
        let (&start, piece) = self.0.first_key_value()?;
        Some((start..piece.end.min(start + most), piece.from))
    }

    fn remove(&mut self, pages: &Pages) {
        self.take(pages);
    }

    /// Removes `pages`, and gives what was owed to them.
    fn take(&mut self, pages: &Pages) -> Vec<(u64, Piece)> {
        let mut taken = Vec::new();
        while let Some((&start, &piece)) = self.0.range(..pages.end).next_back() {
            if piece.end <= pages.start || pages.is_empty() {
                break;
            }
            self.0.remove(&start);
            let (from, to) = (start.max(pages.start), piece.end.min(pages.end));
            if start < from {
                self.0.insert(start, Piece { end: from, from: piece.from });
            }
            if to < piece.end {
                self.0.insert(to, Piece { end: piece.end, from: piece.from + (to - start) });
            }
            taken.push((from, Piece { end: to, from: piece.from + (from - start) }));
        }
        taken
    }

    /// The pages `from` have moved to `to`.
    fn shift(&mut self, from: &Pages, to: u64) {
        let moved = self.take(from);
        self.remove(&(to..to + (from.end - from.start)));
        let place = |page: u64| page - from.start + to;
        self.0.extend(moved.into_iter().map(|(start, piece)| (place(start), Piece { end: place(piece.end), from: piece.from })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::prelude::*;

    #[test]
    fn what_is_owed_is_what_a_model_says() {
        let mut rng = SmallRng::seed_from_u64(3);
        for _ in 0..300 {
            let set = PageSet::of([10..30, 40..45, 50..51]);
            let mut owed = Owed::of(&set);
            let mut model: BTreeMap<u64, u64> = set.ranges().iter().cloned().flatten().map(|page| (page, page)).collect();
            for _ in 0..20 {
                let start = rng.random_range(0..60);
                let pages = start..start + rng.random_range(0..12);
                if rng.random() {
                    owed.remove(&pages);
                    model.retain(|page, _| !pages.contains(page));
                } else {
                    // mremap's new place does not overlap the old one.
                    let to = pages.end + rng.random_range(0..20);
                    owed.shift(&pages, to);
                    let moved: Vec<_> = pages.clone().filter_map(|page| Some((page - start + to, model.remove(&page)?))).collect();
                    model.retain(|page, _| !(to..to + pages.end - start).contains(page));
                    model.extend(moved);
                }
                let is = |(&start, piece): (&u64, &Piece)| (start..piece.end).zip(piece.from..).collect::<Vec<_>>();
                assert_eq!(owed.0.iter().flat_map(is).collect::<BTreeMap<u64, u64>>(), model);
                for page in 0..80 {
                    let around = owed.around(page, 16);
                    assert_eq!(around.as_ref().map(|(pages, from)| from + page - pages.start), model.get(&page).copied());
                }
            }
        }
    }
}
