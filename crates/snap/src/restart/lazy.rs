//! A process that runs before its memory is there: each page is filled when it is touched, the rest meanwhile.
//!
//! ```text
//!   main thread                                            pager (a thread)      keeper (a process)
//!   regions mapped; what cannot wait is read
//!   userfaultfd made by the stub, taken over, closed there
//!   regions registered; keeper and pager started ────────► answers faults        watches this process
//!   rseq, signals, threads, ...: the kernel itself
//!   touches the process's memory                           (answered, too)
//!   the process gets SIGKILL when this one ends; lets go
//!   wait: ───────────────────────────────────────────────► fills the rest
//!   keeper may end  ◄───────────────────────────────────── nothing is owed any more
//!   freezes; its own death signal again; stub out; lets go
//! ```
//!
//! Read before the process runs are: shared memory, memory with a file (own copies, small), locked memory (its owner counts on never waiting
//! for it), memory that is wiped in children (a child's pager would fill it again), and the pages that each thread touches first.
//!
//! What must always hold:
//! - Nobody is ever given zeros instead of content: not when this program dies (see `keeper`), and not when the pager fails: then the
//!   process and the children that have its memory are killed before any userfaultfd is closed.
//! - From its first instruction until the stub is out of it again, the process cannot be checkpointed: a page of the stub itself is
//!   registered with a userfaultfd that nothing ever waits at, so that its mappings say so (`um`).
//!
//! What remains: the stub stays in children that were forked meanwhile (48 KB that they never touch); and a process whose main thread has
//! ended, or that cannot be stopped because something else traces it to its end, keeps stub and death signal.

use std::io::{PipeReader, PipeWriter};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::keeper::{Keeper, Marked};
use crate::error::{Error, Result};
use crate::freeze::Frozen;
use crate::memory::pager::Report;
use crate::memory::{Pager, Source};
use crate::pages::{PAGE, PageSet, Pages};
use crate::remote::{self, Call, LABEL_LEN, Stub};
use crate::state::State;
use crate::state::region::{Backing, Region};
use crate::store::Checkpoint;
use crate::sys::ptrace::{self, Tid};
use crate::sys::uffd::{Mode, Uffd};
use crate::sys::{fd, memory};

/// Pages of a stack above (and with) the one its thread stands on that are read at once.
const STACK_PAGES: u64 = 4;
/// Time between two attempts to take the stub out.
const RETRY_MS: i32 = 50;

/// What is filled later.
#[derive(Debug)]
pub struct Later {
    /// Whole regions.
    ranges: Vec<Pages>,
    /// The pages in them that have content and were not read at once.
    pub pages: PageSet,
}

impl Later {
    /// Of this process.
    pub fn of(state: &State, checkpoint: &Checkpoint) -> Later {
        let can_wait = |region: &&Region| {
            matches!(region.backing, Backing::Anonymous { .. } | Backing::Stack)
                && !region.shared
                && !region.has("lo")
                && !region.has("wf")
                && checkpoint.runs(region.pages.clone()).next().is_some()
        };
        let ranges: Vec<Pages> = state.regions.iter().filter(can_wait).map(|region| region.pages.clone()).collect();
        let content = PageSet::of(ranges.iter().cloned()).intersection(checkpoint.pages());
        Later { pages: content.difference(&touched_first(state)), ranges }
    }
}

/// Pages that threads touch with their first steps, or the kernel when it makes them: not to be waited for one by one.
fn touched_first(state: &State) -> PageSet {
    let mut pages = Vec::new();
    for thread in &state.threads {
        let Some(registers) = thread.user_registers() else { continue };
        let stack = registers.rsp / PAGE;
        pages.push(stack.saturating_sub(1)..stack + STACK_PAGES);
        let others = [registers.rip, registers.fs_base, thread.rseq.address, thread.robust_list.0, thread.tid_address];
        pages.extend(others.map(|address| address / PAGE..address / PAGE + 1));
    }
    PageSet::of(pages)
}

/// The content that is owed.
struct Content {
    checkpoint: Checkpoint,
    pages: PageSet,
}

impl Source for Content {
    fn read(&self, first_page: u64, into: &mut [u8]) -> Result<()> {
        self.checkpoint.read_checked(first_page, into)
    }

    fn pages(&self) -> &PageSet {
        &self.pages
    }
}

/// What fills the memory of a process that runs.
#[derive(Debug)]
pub struct Paging {
    pid: Tid,
    stub: Stub,
    /// The death signal that its main thread had.
    death_signal: i32,
    marked: Arc<Marked>,
    /// Whether the rest is filled, too.
    fill: Arc<AtomicBool>,
    pager: Option<JoinHandle<Result<Report>>>,
    /// At its end when the pager has ended.
    ended: PipeReader,
    keeper: Option<Keeper>,
    /// Says that the process cannot be checkpointed.
    not_yet: Option<Uffd>,
    began: Instant,
}

/// How a process got its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Filled {
    /// What the pager did.
    #[serde(flatten)]
    pub report: Report,
    /// From the moment the pager could be asked until all was there.
    pub took: Duration,
}

impl Paging {
    /// Takes over what is filled `later` of a process that stands still, and answers its faults from now on.
    pub(super) fn start(state: &State, checkpoint: &Checkpoint, stub: &Stub, later: &Later) -> Result<Paging> {
        let pid = state.process.pid;
        let process = fd::Process::open(pid)?;
        let uffd = userfaultfd(&process, stub)?;
        let not_yet = mark_unfinished(userfaultfd(&process, stub)?, stub)?;
        let label = *uuid::Uuid::new_v4().as_bytes();
        memory::write(pid, stub.label(), &label)?;
        let marked = Arc::new(Marked::new(pid, stub.label(), label)?);
        let content = Content { checkpoint: checkpoint.try_clone()?, pages: later.pages.clone() };
        let pager = Pager::new(uffd, pid, &later.ranges, content)?;
        let (ended, ends) = std::io::pipe().map_err(|e| Error::io("a pipe", e))?;
        let keeper = Keeper::start(&marked)?;
        let fill = Arc::new(AtomicBool::new(false));
        let mut paging = Paging {
            pid,
            stub: stub.clone(),
            death_signal: state.threads[0].death_signal,
            marked: Arc::clone(&marked),
            fill: Arc::clone(&fill),
            pager: None,
            ended,
            keeper: Some(keeper),
            not_yet: Some(not_yet),
            began: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("pager".into());
        let thread = thread.spawn(move || page(pager, &fill, &marked, ends)).map_err(|e| Error::io("starting the pager", e))?;
        paging.pager = Some(thread);
        Ok(paging)
    }

    /// From now on the process ends when this program does.
    pub(super) fn bind(&self) -> Result<()> {
        let args = [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64];
        self.stub.call(self.pid, libc::SYS_prctl, &args).map(drop)
    }

    /// Fills the rest, and makes the process one like any other: it no longer depends on this program then. Faults were answered all the
    /// time. Comes back also when the process has ended; it is still to be waited for.
    ///
    /// An error: its memory could not be completed, and it was killed.
    pub fn wait(mut self) -> Result<Filled> {
        self.fill.store(true, Ordering::Relaxed);
        self.watch_keeper();
        let report = self.join()?;
        let took = self.began.elapsed();
        self.let_go();
        Ok(Filled { report, took })
    }

    /// Until the pager has ended. There is always a keeper.
    fn watch_keeper(&mut self) {
        loop {
            let keeper = self.keeper.as_ref().map_or(-1, |keeper| keeper.pidfd().as_raw_fd());
            let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut watched = [entry(self.ended.as_raw_fd()), entry(keeper)];
            // SAFETY: two live entries.
            unsafe { libc::poll(watched.as_mut_ptr(), 2, -1) };
            if watched[0].revents != 0 {
                return;
            }
            if watched[1].revents != 0 {
                log::warn!("the keeper of process {} was killed; another takes its place", self.pid);
                self.keeper.take().into_iter().for_each(Keeper::end);
                match Keeper::start(&self.marked) {
                    Ok(keeper) => self.keeper = Some(keeper),
                    Err(e) => log::warn!("{e}: nothing keeps process {} from zeros if this program is killed now", self.pid),
                }
            }
        }
    }

    /// The pager's end, and the keeper's.
    fn join(&mut self) -> Result<Report> {
        let Some(pager) = self.pager.take() else { return Ok(Report::default()) };
        let result = pager.join().unwrap_or_else(|_| {
            // It was torn away from its work; its userfaultfds are still open.
            self.marked.end_all();
            Err(Error::Target {
                pid: self.pid,
                what: "its pager failed; it was killed, for its memory could not be completed".into(),
            })
        });
        self.keeper.take().into_iter().for_each(Keeper::end);
        result
    }

    /// Takes out of the process what was only needed while it was filled. One that cannot be stopped now is asked again.
    fn let_go(&mut self) {
        let mut said = false;
        loop {
            match self.try_let_go() {
                Ok(()) | Err(Error::Gone { .. }) => return,
                Err(e) if !said => log::warn!(
                    "all memory of process {} is there, but until it can be stopped, it ends with this program: {e}",
                    self.pid
                ),
                Err(_) => {}
            }
            said = true;
            if self.has_ended(RETRY_MS) {
                return;
            }
        }
    }

    /// Whether the process ends within that time.
    fn has_ended(&self, milliseconds: i32) -> bool {
        let mut ended = libc::pollfd { fd: self.marked.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live entry.
        unsafe { libc::poll(&raw mut ended, 1, milliseconds) == 1 }
    }

    fn try_let_go(&mut self) -> Result<()> {
        let frozen = Frozen::freeze(self.pid)?;
        // If it lives now, the number that was frozen is its own.
        if self.has_ended(0) {
            return Err(Error::Gone { pid: self.pid });
        }
        // While foreign instructions are borrowed, it dies with us.
        ptrace::set_options(self.pid, libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL)?;
        let mut label = [0u8; LABEL_LEN];
        let is_there = memory::read(self.pid, self.stub.label(), &mut label).is_ok() && label == self.marked.label;
        if is_there {
            self.stub.choose_signal(frozen.threads())?;
            self.unbind()?;
            self.stub.remove_own(self.pid)?;
        } else {
            // It runs another program, which inherits the death signal.
            let set = Call::new(libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as u64, self.death_signal as u64]);
            remote::call_own(self.pid, &set)?;
        }
        // Still frozen: there is no moment at which the stub is there and this is not.
        self.not_yet = None;
        Ok(())
    }

    /// The death signal that it had; unless it has chosen another one meanwhile.
    fn unbind(&self) -> Result<()> {
        let get = [libc::PR_GET_PDEATHSIG as u64, self.stub.scratch()];
        self.stub.call(self.pid, libc::SYS_prctl, &get)?;
        let mut now = [0u8; 4];
        memory::read(self.pid, self.stub.scratch(), &mut now)?;
        if i32::from_ne_bytes(now) == libc::SIGKILL {
            let set = [libc::PR_SET_PDEATHSIG as u64, self.death_signal as u64];
            self.stub.call(self.pid, libc::SYS_prctl, &set)?;
        }
        Ok(())
    }
}

impl Drop for Paging {
    fn drop(&mut self) {
        if self.pager.is_some() {
            self.fill.store(true, Ordering::Relaxed);
            self.watch_keeper();
            if self.join().is_ok() {
                self.let_go();
            }
        }
        self.keeper.take().into_iter().for_each(Keeper::end);
    }
}

/// The pager's thread.
fn page(pager: Pager<Content>, fill: &AtomicBool, marked: &Marked, _ends: PipeWriter) -> Result<Report> {
    // Not closed by a panic: that would give zeros.
    let mut pager = ManuallyDrop::new(pager);
    let result = pager.run(fill);
    if result.is_err() {
        marked.end_all();
    }
    drop(ManuallyDrop::into_inner(pager));
    result
}

/// A userfaultfd of the process, made in its name, taken over, and closed there. Not for user mode only: system calls touch memory, too.
fn userfaultfd(process: &fd::Process, stub: &Stub) -> Result<OwnedFd> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let made = stub.call(process.pid(), libc::SYS_userfaultfd, &[flags])?;
    let taken = process.descriptor(made as i32);
    stub.call(process.pid(), libc::SYS_close, &[made])?;
    taken
}

/// Registers the stub's code, which is there and so never waited for.
fn mark_unfinished(uffd: OwnedFd, stub: &Stub) -> Result<Uffd> {
    let failed = |e| Error::io("a userfaultfd for the stub", e);
    let code = stub.range().start / PAGE;
    let uffd = Uffd::enable(uffd, 0).map_err(failed)?;
    uffd.register(&(code..code + 1), Mode::Missing).map_err(failed)?;
    Ok(uffd)
}
