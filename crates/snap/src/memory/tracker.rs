//! Which pages of another process changed since they were last asked for.
//!
//! The process's memory is registered with a userfaultfd that write-protects asynchronously: a write to a protected ("armed") page costs
//! the writer one fault, leaves a mark in the page table, and nobody waits for anybody. PAGEMAP_SCAN finds the marks and arms again in
//! one pass. All state about a mapping is the kernel's own: a mapping that is not registered is one that we have not seen before
//! (new, put in place of another, moved by mremap), whatever its address, and counts as changed as a whole.
//!
//! ```text
//!                     scan and arm           look                    read
//!   page written   ─┬── told, armed ───────────────────────────────── copied
//!   written after  ─┘   (a write from here on is marked: the next round tells, at last the one of the process that stands still)
//!   page dropped   ────────────────────── found empty ─────────────── forgotten
//! ```
//!
//! What must always hold: a page is armed *before* it is read. So whatever is read, a later write is told later; and when the
//! process stands still for a last round, the copy of all rounds together is its memory at that moment.
//!
//! How the kernel shows a page, and what that means (categories of PAGEMAP_SCAN):
//!
//! | there | private, no file | private, of a file |
//! |---|---|---|
//! | present, marked | changed | changed |
//! | present, not marked | same | same |
//! | present, page of zeros | empty | empty |
//! | present, page of the file | - | empty |
//! | swapped, marked | changed | changed |
//! | swapped, not marked | same | **changed** |
//! | nothing | empty | empty |
//!
//! The one in bold: dropping an armed page of a file mapping leaves a marker in its place, which looks like a page that is swapped out.
//!
//! Shared memory without a name is not tracked: a write through another mapping of it, or by a child, leaves no mark in this page table,
//! and neither need be there any more when we look. It is copied whole while the process stands still; what of it has content, the
//! shared object says.
//!
//! Not seen are:
//! - what a device writes into a page after it was armed (a read with O_DIRECT that is under way during a round). For a process that has
//!   such descriptors, arm only while it stands still ([`Phase::Only`]): then none is under way.
//! - the file's content that is back in an armed page of a file mapping, dropped and then written to, if the process is stopped between
//!   the two faults of that very write: the first one copies the file's page in place of the marker, still armed.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::maps::{self, Kept, Mapping};
use super::sweep::{Awake, Look, Sweep};
use crate::error::{Error, Result};
use crate::pages::{PAGE, PageSet, Pages};
use crate::sys::pagemap::{self, FILE, PRESENT, Pagemap, Query, Region, SWAPPED, WRITTEN, ZERO};
use crate::sys::proc;
use crate::sys::uffd::{self, Uffd};

/// Pages from which on a mapping is first asked for marks alone.
const GLANCE: u64 = 1024;
/// Pages of a large mapping that are armed before what was written to them is told: some milliseconds.
const PORTION: u64 = 8192;

/// Is told pages that were written.
pub type Told<'a> = &'a mut dyn FnMut(&PageSet) -> Result<()>;

/// How changes are found.
pub enum Method {
    /// With a new userfaultfd of the target's own memory, made in its name (USER_MODE_ONLY will do) and taken over; Linux 6.7.
    WriteProtect(OwnedFd),
    /// Not at all: everything that has content counts as changed each time. For older kernels.
    Everything,
}

/// When changes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The process runs. What is told is armed again, new mappings are registered: the next call tells what was written from now on.
    /// What cannot be tracked is left to the last call.
    Running,
    /// The process stands still, for the last of several calls. To save time nothing is armed: the next call tells the same again.
    Last,
    /// The process stands still, and is armed at no other time.
    Only,
}

/// What changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Pages with content that may be different from what it was: to be copied.
    pub written: PageSet,
    /// Pages that had content and have none any more: the mapping is gone, or they read as zeros (or as the file below them).
    pub dropped: PageSet,
    /// Pages that may not be touched (MADV_GUARD_INSTALL). The kernel tells since 6.15; nothing is known before.
    pub guards: PageSet,
    /// Mappings that were not seen before.
    pub fresh: usize,
    /// Mappings that cannot be tracked: they count as changed each time, but while the process runs nothing is told of them.
    pub untracked: usize,
}

/// Tracks the memory that a process has when it is made. There must be one at a time for a process: what a second one arms, the first
/// would not know of.
pub struct Tracker {
    pid: i32,
    sweep: Sweep,
    uffd: Option<Uffd>,
    /// Whether the kernel has PAGEMAP_SCAN.
    scans: bool,
    /// What the kernel is asked to tell of each page, besides whether it is a file's.
    tell: u64,
    /// Pages that were told to have content, and not told to have none since: what a copy made by the changes holds.
    content: PageSet,
    /// Pages that were told but could not be copied.
    owed: PageSet,
    /// Whether nothing that was told before counts.
    start_over: bool,
    /// Where we have registered mappings.
    registered: PageSet,
    regions: Vec<Region>,
}

/// What was found in one call, before it is put together.
#[derive(Default)]
struct Found {
    written: Vec<Pages>,
    empty: Vec<Pages>,
    guards: Vec<Pages>,
    fresh: usize,
    untracked: usize,
}

impl Tracker {
    /// For process `pid`.
    pub fn new(pid: i32, method: Method) -> Result<Tracker> {
        let pagemap = Pagemap::open(pid).map_err(|err| match err.kind() {
            _ if proc::is_gone(&err) => Error::Gone { pid },
            io::ErrorKind::PermissionDenied => Error::NotPermitted {
                pid,
                what: "reading its page table",
                remedy: "be the same user and allowed to trace it, or root",
            },
            _ => Error::io(format!("/proc/{pid}/pagemap"), err),
        })?;
        let uffd = match method {
            Method::Everything => None,
            Method::WriteProtect(fd) => {
                let missing = |_| Error::Unsupported {
                    what: "userfaultfd that write-protects asynchronously (Linux 6.7)".into(),
                    remedy: "use a newer kernel; or copy everything at each checkpoint",
                };
                Some(Uffd::enable(fd, uffd::WP_ASYNC | uffd::WP_UNPOPULATED).map_err(missing)?)
            }
        };
        let told = WRITTEN | PRESENT | SWAPPED | ZERO;
        let tell = if pagemap.can_tell(told | pagemap::GUARD) { told | pagemap::GUARD } else { told };
        let scans = pagemap.can_tell(told);
        let (content, owed, registered) = (PageSet::new(), PageSet::new(), PageSet::new());
        Ok(Tracker {
            pid,
            sweep: Sweep::new(pagemap),
            uffd,
            scans,
            tell,
            content,
            owed,
            start_over: true,
            registered,
            regions: Vec::with_capacity(8192),
        })
    }

    /// The process whose memory it is.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Pages with content after the last call of [`Tracker::changed`].
    pub fn content(&self) -> &PageSet {
        &self.content
    }

    /// What is looked at until this is dropped is looked at by several threads, if it is large. While the process stands still, that is: the
    /// processors it ran on are free then.
    pub fn wake_helpers(&mut self) -> Awake {
        let pages = self.content.count();
        self.sweep.wake(pages)
    }

    /// These were told, but could not be copied: they will be told again if they are still there.
    pub fn owe(&mut self, pages: &PageSet) {
        if !pages.is_empty() {
            self.owed = self.owed.union(pages);
        }
    }

    /// The copy is lost (what was told did not get into a checkpoint): the next call tells everything that has content, for a copy that
    /// begins with nothing.
    pub fn start_over(&mut self) {
        self.start_over = true;
    }

    /// What changed since the last call that was not [`Phase::Last`]; at the first call, everything that has content. `mappings` are all that
    /// the process has, read after the last call.
    ///
    /// After an error it is as after [`Tracker::start_over`].
    pub fn changed(&mut self, mappings: &[Mapping], phase: Phase) -> Result<Change> {
        self.changed_by_portions(mappings, phase, &mut |_| Ok(()))
    }

    /// The same. Of large mappings of a running process, `written` is told what was written in each portion as soon as that is armed: what is
    /// copied then has had less time to be written to again. It is told once more in the end, but for what is not there any more.
    pub fn changed_by_portions(&mut self, mappings: &[Mapping], phase: Phase, written: Told) -> Result<Change> {
        let result = self.find(mappings, phase, written);
        self.start_over = result.is_err();
        result
    }

    fn find(&mut self, mappings: &[Mapping], phase: Phase, told: Told) -> Result<Change> {
        if self.start_over {
            (self.content, self.owed) = (PageSet::new(), PageSet::new());
        }
        let mut found = Found::default();
        let mut kept = PageSet::new();
        for group in mappings.chunk_by(|one, next| phase == Phase::Last && one_look_does(one, next)) {
            let whole = group[0].pages.start..group[group.len() - 1].pages.end;
            if group.len() > 1 && self.all_ours(&whole) && self.look_at_all(&whole, &mut found)? {
                kept.push(whole);
                continue;
            }
            for mapping in group {
                self.one(mapping, phase, &mut kept, &mut found, told)?;
            }
        }
        // Asked last: if it was there then, all that was found is about it.
        if self.sweep.pagemap().ended().map_err(|err| Error::io(format!("page table of process {}", self.pid), err))? {
            return Err(self.memory_is_gone());
        }
        let empty = PageSet::of(found.empty);
        let owed = self.owed.intersection(&kept);
        let written = PageSet::of(found.written.into_iter().chain(owed.ranges().iter().cloned())).difference(&empty);
        let dropped = self.content.intersection(&empty).union(&self.content.difference(&kept));
        if !dropped.is_empty() {
            self.content = self.content.difference(&dropped);
        }
        if !written.difference(&self.content).is_empty() {
            self.content = self.content.union(&written);
        }
        self.owed = PageSet::new();
        if !self.registered.difference(&kept).is_empty() {
            self.registered = self.registered.intersection(&kept);
        }
        Ok(Change { written, dropped, guards: PageSet::of(found.guards), fresh: found.fresh, untracked: found.untracked })
    }

    /// One mapping.
    fn one(&mut self, mapping: &Mapping, phase: Phase, kept: &mut PageSet, found: &mut Found, told: Told) -> Result<()> {
        let Some(kind) = mapping.kept() else { return Ok(()) };
        let range = &mapping.pages;
        kept.push(range.clone());
        match kind {
            Kept::SharedAnonymous if phase == Phase::Running => Ok(()),
            Kept::SharedAnonymous => self.shared(mapping, found).map_err(|err| self.failed(range, err)),
            _ => self.private(range, kind, phase, found, told),
        }
    }

    /// The process has ended, even if its parent cannot be told yet, or it has other memory now.
    fn memory_is_gone(&self) -> Error {
        match maps::read(self.pid) {
            Err(gone @ Error::Gone { .. }) => gone,
            _ => Error::Target { pid: self.pid, what: "it runs another program now (exec)".into() },
        }
    }

    fn failed(&self, range: &Pages, err: io::Error) -> Error {
        // The memory that is looked at went away meanwhile.
        if err.raw_os_error() == Some(libc::ESRCH) {
            return self.memory_is_gone();
        }
        Error::io(format!("page table of process {}, {:x}-{:x}", self.pid, range.start * PAGE, range.end * PAGE), err)
    }

    /// Several mappings of files, side by side, all registered before: a call costs more than the few pages of a library's parts. Whether
    /// they still are.
    fn look_at_all(&mut self, whole: &Pages, found: &mut Found) -> Result<bool> {
        self.tracked(whole, Kept::OwnCopies, Phase::Last, found).map_err(|err| self.failed(whole, err))
    }

    /// A private mapping.
    fn private(&mut self, range: &Pages, kind: Kept, phase: Phase, found: &mut Found, told: Told) -> Result<()> {
        let before = found.mark();
        if self.is_ours(range) && self.tracked_by_portions(range, kind, phase, found, told)? {
            return Ok(());
        }
        found.forget_since(before);
        self.as_new(range, kind, phase, found).map_err(|err| self.failed(range, err))
    }

    /// As [`Tracker::tracked`], one portion after the other if others run meanwhile.
    fn tracked_by_portions(&mut self, range: &Pages, kind: Kept, phase: Phase, found: &mut Found, told: Told) -> Result<bool> {
        let len = range.end - range.start;
        let portion = if phase == Phase::Running && len > PORTION { PORTION } else { len };
        for start in range.clone().step_by(portion as usize) {
            let part = start..range.end.min(start + portion);
            let before = found.mark();
            if !self.tracked(&part, kind, phase, found).map_err(|err| self.failed(&part, err))? {
                return Ok(false);
            }
            if portion < len {
                told(&found.written_since(before))?;
            }
        }
        Ok(true)
    }

    /// The changes of a mapping that was registered before; whether it was. If not, all that was found of it is of no use, and its
    /// pages may have been armed.
    fn tracked(&mut self, range: &Pages, kind: Kept, phase: Phase, found: &mut Found) -> io::Result<bool> {
        self.regions.clear();
        let armed = if phase == Phase::Last { Ok(()) } else { self.arm_written(range, kind) };
        match armed.and_then(|()| self.look(range, kind, phase)) {
            Err(err) if err.raw_os_error() == Some(libc::EPERM) => return Ok(false),
            other => other?,
        }
        for region in &self.regions {
            let (is, pages) = (|category: u64| region.categories & category != 0, region.pages());
            if is(pagemap::GUARD) {
                found.guards.push(pages.clone());
                found.empty.push(pages);
            } else if is(PRESENT) {
                if is(ZERO) || is(FILE) {
                    found.empty.push(pages);
                } else if is(WRITTEN) {
                    found.written.push(pages);
                }
            } else if is(SWAPPED) {
                if is(WRITTEN) || kind == Kept::OwnCopies {
                    found.written.push(pages);
                }
            } else {
                found.empty.push(pages);
            }
        }
        Ok(true)
    }

    /// Adds what was written to the regions, and arms it. Only what is there: arming what is not would fill the page table of a large
    /// reservation. Guards are left as they are, so that they show each time; so are the file's own pages, which are of no interest.
    fn arm_written(&mut self, range: &Pages, kind: Kept) -> io::Result<()> {
        let without = self.tell & pagemap::GUARD | file_of(kind);
        let (tell, any) = (self.tell | file_of(kind), PRESENT | SWAPPED);
        let query = Query { inverted: without, all: WRITTEN | without, any, tell, arm: true, registered_only: true };
        self.sweep.pagemap().scan(range, query, &mut self.regions)
    }

    /// Adds all that is written or not there to the regions; of a file mapping, what is swapped or a file's, too. What is written while the
    /// process runs the next call finds.
    fn look(&mut self, range: &Pages, kind: Kept, phase: Phase) -> io::Result<()> {
        let file = file_of(kind);
        let written = if phase == Phase::Running { 0 } else { WRITTEN };
        let (inverted, any, tell) = (PRESENT, written | PRESENT | file, self.tell | file);
        let closely = Query { inverted, any, tell, registered_only: true, ..Query::default() };
        // The kernel finds marks three times faster when it is asked for nothing else. What is not there counts as marked.
        let marked = Query { all: WRITTEN, tell: WRITTEN, registered_only: true, ..Query::default() };
        let has_glance = kind != Kept::OwnCopies && range.end - range.start >= GLANCE;
        self.sweep.look(range, Look { glance: has_glance.then_some(marked), closely }, &mut self.regions)
    }

    /// A mapping that was not seen before, or cannot be tracked: all its content. It is registered and armed if the phase says so.
    fn as_new(&mut self, range: &Pages, kind: Kept, phase: Phase, found: &mut Found) -> io::Result<()> {
        let (file, guard) = (file_of(kind), self.tell & pagemap::GUARD);
        let (without, tell) = (file | guard, self.tell | file);
        let there = Query { inverted: without, all: without, any: PRESENT | SWAPPED, tell, ..Query::default() };
        self.regions.clear();
        let mut armed = false;
        if let Some(uffd) = &self.uffd
            && phase != Phase::Last
        {
            if uffd.register(range, uffd::Mode::WriteProtect).is_ok() {
                self.registered = self.registered.union(&PageSet::of([range.clone()]));
                // It fails if the process has put yet another mapping there: that one is then new at the next call.
                armed = self
                    .sweep
                    .pagemap()
                    .scan(range, Query { arm: true, registered_only: true, ..there }, &mut self.regions)
                    .is_ok();
            } else {
                self.registered = self.registered.difference(&PageSet::of([range.clone()]));
            }
        }
        *(if armed || phase == Phase::Last && self.uffd.is_some() { &mut found.fresh } else { &mut found.untracked }) += 1;
        if !armed && phase == Phase::Running {
            return Ok(());
        }
        if !armed {
            self.regions.clear();
            if !self.scans {
                let mut content = Vec::new();
                self.sweep.pagemap().present(range, kind == Kept::OwnCopies, &mut content)?;
                found.put(range, PageSet::of(content));
                return Ok(());
            }
            self.sweep.pagemap().scan(range, there, &mut self.regions)?;
        }
        let content = self.regions.iter().filter(|region| region.categories & ZERO == 0).map(Region::pages);
        found.put(range, content.collect());
        self.guards(range).map(|guards| found.guards.extend(guards.ranges().iter().cloned()))
    }

    /// Guards, if the kernel tells.
    fn guards(&mut self, range: &Pages) -> io::Result<PageSet> {
        let guard = self.tell & pagemap::GUARD;
        self.regions.clear();
        if guard != 0 {
            let query = Query { all: guard, tell: guard, ..Query::default() };
            self.sweep.pagemap().scan(range, query, &mut self.regions)?;
        }
        Ok(self.regions.iter().map(Region::pages).collect())
    }

    /// A shared mapping without a name.
    fn shared(&mut self, mapping: &Mapping, found: &mut Found) -> io::Result<()> {
        found.untracked += 1;
        let guards = self.guards(&mapping.pages)?;
        let data = PageSet::of(data_of(self.pid, mapping)?).difference(&guards);
        found.guards.extend(guards.ranges().iter().cloned());
        found.put(&mapping.pages, data);
        Ok(())
    }

    /// Whether all of this was registered.
    fn all_ours(&self, range: &Pages) -> bool {
        !self.start_over && PageSet::of([range.clone()]).difference(&self.registered).is_empty()
    }

    /// Whether the mapping there may be one that we have registered: then it is, or it is not registered at all.
    fn is_ours(&self, range: &Pages) -> bool {
        let registered = self.registered.ranges();
        let next = registered.partition_point(|ours| ours.end <= range.start);
        !self.start_over && registered.get(next).is_some_and(|ours| ours.start < range.end)
    }
}

impl Found {
    fn mark(&self) -> [usize; 3] {
        [self.written.len(), self.empty.len(), self.guards.len()]
    }

    /// Since a mark, nothing was found.
    fn forget_since(&mut self, [written, empty, guards]: [usize; 3]) {
        self.written.truncate(written);
        self.empty.truncate(empty);
        self.guards.truncate(guards);
    }

    /// What was found to be written since a mark, and there.
    fn written_since(&self, [written, empty, _]: [usize; 3]) -> PageSet {
        let of = |ranges: &[Pages]| PageSet::of(ranges.iter().cloned());
        of(&self.written[written..]).difference(&of(&self.empty[empty..]))
    }

    /// All of the content of a mapping.
    fn put(&mut self, range: &Pages, content: PageSet) {
        self.empty.extend(PageSet::of([range.clone()]).difference(&content).ranges().iter().cloned());
        self.written.extend(content.ranges().iter().cloned());
    }
}

/// Whether these can be looked at together: parts of files without a gap between them.
fn one_look_does(one: &Mapping, next: &Mapping) -> bool {
    let is_part = |mapping: &Mapping| mapping.kept() == Some(Kept::OwnCopies) && mapping.pages.end - mapping.pages.start < GLANCE;
    one.pages.end == next.pages.start && is_part(one) && is_part(next)
}

/// The category that tells the file's own pages of a mapping from the process's copies; none where there is no file.
fn file_of(kind: Kept) -> u64 {
    if kind == Kept::OwnCopies { FILE } else { 0 }
}

/// Pages of a mapping for which the object below it has data; all, if it cannot be asked (that takes CAP_CHECKPOINT_RESTORE).
fn data_of(pid: i32, mapping: &Mapping) -> io::Result<Vec<Pages>> {
    let range = &mapping.pages;
    let path = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start * PAGE, range.end * PAGE);
    let object = match File::open(path) {
        Ok(object) => object,
        Err(_) => return Ok(vec![range.clone()]), // not permitted; or no longer mapped, as the next call will see
    };
    let end = mapping.offset + (range.end - range.start) * PAGE;
    let mut data = Vec::new();
    let mut at = mapping.offset;
    while at < end {
        // SAFETY: no memory is involved.
        let seek = |from: u64, what: i32| unsafe { libc::lseek(object.as_raw_fd(), from as i64, what) };
        let start = seek(at, libc::SEEK_DATA);
        if start < 0 {
            break; // nothing more
        }
        let hole = seek(start as u64, libc::SEEK_HOLE);
        if hole < 0 {
            return Err(io::Error::last_os_error());
        }
        let of = |place: i64| range.start + (place as u64).clamp(mapping.offset, end).saturating_sub(mapping.offset) / PAGE;
        data.push(of(start)..of(hole + PAGE as i64 - 1));
        at = hole as u64;
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        assert!(matches!(Tracker::new(0x3fff_ffff, Method::Everything), Err(Error::Gone { .. })));
    }
}
