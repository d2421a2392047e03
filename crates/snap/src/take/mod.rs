//! Takes checkpoints of a process.
//!
//! ```text
//!   survey ─► rounds of copying, while it runs ─► freeze ─► last round and kernel state, into memory ─► thaw ─► files, sync, publish
//!                                                 └────────────── the pause ──────────────────┘
//! ```
//!
//! In mode `nv` there are no rounds: memory that lies in the pool is cloned in the pause, and the little that does not is copied then.
//!
//! What must always hold: what is refused is refused before the process is touched; whatever fails, it runs on as it was; and a checkpoint is
//! offered when it is complete and durable, or not at all.

mod kept;
mod nameless;
mod report;
mod sleeps;
mod survey;

use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, Refusal, Result};
use crate::freeze::Frozen;
use crate::memory::Held;
use crate::memory::maps::{self, Mapping};
use crate::memory::precopy::{FrozenRound, Limits, Round, Sink, precopy};
use crate::memory::reader::Reader;
use crate::memory::tracker::{Method, Phase, Tracker};
use crate::nv::Nv;
use crate::nv::adopt::{self, Adopted, Patient};
use crate::pages::{PAGE, PageSet};
use crate::remote::{self, Call, Claim, Stub};
use crate::state::cpu::Machine;
use crate::state::descriptors::{Found, look};
use crate::state::process::{clock_ns, refusals, rehearse};
use crate::state::told;
use crate::state::{State, kernel, mapped};
use crate::store::{Base, CheckpointId, Draft, Mode, Store};
use crate::sys::priority::Urgent;
use crate::sys::ptrace::{self, Tid};
use crate::sys::{fd, machine};

use kept::{reads_directly, write_back, written_files};
use nameless::Nameless;
use report::Steps;
pub use report::{Breakdown, Taken};
use sleeps::Sleeps;
use survey::{Survey, once_each, region_of, regions, twice};

/// Room for pages that change between the last round of a running process and the one in the pause.
const FROZEN_PAGES: u64 = 4096;

/// How often a process is stopped anew, a millisecond later, that does not stand on its main stack.
const ENTRIES: u32 = 100;

/// How long another tool's checkpoint of the process is waited for.
const OTHERS_TAKE: Duration = Duration::from_secs(5);

/// How often a process is looked at again before it is refused.
const SURVEYS: u32 = 5;

/// A process of which checkpoints are taken, one or many.
pub struct Target {
    pid: Tid,
    process: fd::Process,
    stub: Option<Stub>,
    claim: Claim,
    tracker: Option<Tracker>,
    reader: Reader,
    held: Held,
    frozen_round: FrozenRound,
    /// The checkpoint that the tracker's changes are counted from.
    base: Option<CheckpointId>,
    /// A child that need not be kept.
    ours: Option<Tid>,
    sleeps: Sleeps,
    progress: Progress,
    limits: Limits,
    /// In mode `nv`, its pool.
    nv: Option<Nv>,
}

/// Is told how many pages of those that a round copies are copied, while the process runs.
pub type Progress = Box<dyn FnMut(u64, u64) + Send>;

/// What becomes of a process when its checkpoint is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoesOn,
    Ends,
}

/// What a pause gave.
struct Frame {
    state: State,
    pause: Duration,
    stopped_at_ns: u64,
    breakdown: Breakdown,
    rounds: Vec<Round>,
    last: Round,
    /// It stands still until it is ended.
    frozen: Option<Frozen>,
}

impl Sink for Draft {
    fn write(&mut self, first_page: u64, bytes: &[u8]) -> Result<()> {
        Draft::write(self, first_page, bytes)
    }

    fn forget(&mut self, pages: &PageSet) -> Result<()> {
        pages.ranges().iter().for_each(|range| Draft::forget(self, range.clone()));
        Ok(())
    }
}

impl Target {
    /// The process `pid`. `ours`: a child of it that need not be kept.
    pub fn open(pid: Tid, ours: Option<Tid>) -> Result<Target> {
        machine::check()?;
        let process = fd::Process::open(pid)?;
        let reader = Reader::open(pid)?;
        // Looked at once, and never in a pause.
        Machine::here();
        Ok(Target {
            pid,
            process,
            stub: None,
            claim: Claim::open(pid),
            tracker: None,
            reader,
            held: Held::default(),
            frozen_round: FrozenRound::prepare(FROZEN_PAGES),
            base: None,
            ours,
            sleeps: Sleeps::default(),
            progress: Box::new(|_, _| ()),
            limits: Limits::default(),
            nv: None,
        })
    }

    /// A process in mode `nv`, which [`nv::spawn`](crate::nv::spawn) has started.
    pub fn open_nv(pid: Tid, nv: Nv) -> Result<Target> {
        Ok(Target { nv: Some(nv), ..Target::open(pid, None)? })
    }

    /// When the process is stopped for the rest of its changes; with no rounds at all, everything that changed since the last checkpoint is
    /// copied while it stands still, the first time all it has: `room` is for so many pages then.
    pub fn set_limits(&mut self, limits: Limits, room: u64) {
        self.limits = limits;
        self.frozen_round = FrozenRound::prepare(room.max(FROZEN_PAGES));
    }

    /// The next checkpoint holds everything anew, nothing of those before.
    pub fn forget(&mut self) {
        self.start_over();
    }

    /// Takes away what was put into the process for checkpoints; it runs on as if there had been none.
    pub fn leave(&mut self) -> Result<()> {
        self.start_over();
        self.tracker = None;
        let Some(mut stub) = self.stub.take() else { return Ok(()) };
        let frozen = self.freeze_to_enter()?;
        stub.choose_signal(frozen.threads())?;
        // What was still in use when we came.
        if self.claim.alone() {
            stub.clear_left(frozen.threads())?;
        }
        stub.remove(frozen.threads())
    }

    /// Tells `progress` how far the copying is.
    pub fn on_progress(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// Ends the process, by SIGKILL.
    pub fn kill(&self) -> Result<()> {
        self.process.kill()
    }

    /// Everything that stands in the way of a checkpoint; the process is not touched.
    pub fn refusals(&self) -> Result<Vec<Refusal>> {
        Ok(self.survey()?.1)
    }

    /// Of a process that runs, what is seen of one thing may be older than what is seen of another: so only what is in the way time after
    /// time is.
    ///
    /// A process that another tool takes a checkpoint of is waited for.
    fn survey(&self) -> Result<(Survey, Vec<Refusal>)> {
        let began = Instant::now();
        let mut seen = self.look_once()?;
        while seen.0.tracked {
            if began.elapsed() > OTHERS_TAKE {
                return Err(Error::Tracked { pid: self.pid });
            }
            std::thread::sleep(Duration::from_millis(5));
            seen = self.look_once()?;
        }
        for _ in 0..SURVEYS {
            if seen.1.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            seen = self.look_once()?;
        }
        Ok(seen)
    }

    fn look_once(&self) -> Result<(Survey, Vec<Refusal>)> {
        let mut refused = refusals(self.pid, self.ours, u64::from(self.nv.is_some()))?;
        refused.extend(look(&self.process)?.refused);
        let (mut flags, mut regions, mut tracked) = (Vec::new(), Vec::new(), false);
        for (mapping, of_it) in maps::read_with_flags(self.pid)? {
            match region_of(self.nv.as_ref(), &mapping, Some(&of_it)) {
                Some(Err(refusal)) => refused.push(refusal),
                Some(Ok(region)) => regions.push(region),
                None => {}
            }
            // Our own tracker's mark looks the same.
            tracked |= self.tracker.is_none() && (of_it.has("uw") || of_it.has("ui"));
            flags.push((mapping.pages, of_it));
        }
        refused.extend(twice(&regions));
        Ok((Survey { flags, tracked }, refused))
    }

    /// Takes a checkpoint into `store`.
    pub fn take(&mut self, store: &Store) -> Result<Taken> {
        self.take_and(store, Then::GoesOn)
    }

    /// Takes a checkpoint into `store` and ends the process in just that state: it does not run again before it is killed, so nothing that it
    /// has to do with is changed. If there is no checkpoint, it goes on.
    pub fn take_and_end(&mut self, store: &Store) -> Result<Taken> {
        self.take_and(store, Then::Ends)
    }

    fn take_and(&mut self, store: &Store, then: Then) -> Result<Taken> {
        let began = Instant::now();
        let (survey, refused) = self.survey()?;
        self.refuse(refused)?;
        self.prepare()?;
        // What came up since is not known well enough to be adopted: so it is looked at again.
        let survey = if self.adopt_ahead(&survey)? { self.survey()?.0 } else { survey };
        let mut draft = self.draft(store)?;
        let taken = self.take_into(store, &mut draft, &survey, then);
        let Frame { state, pause, stopped_at_ns, breakdown, rounds, last, frozen } = taken.inspect_err(|_| self.start_over())?;
        let finished = self.hand_over(&mut draft).and_then(|()| draft.finish(&state.encode()));
        let id = finished.inspect_err(|_| self.start_over())?;
        self.base = Some(id);
        if let Some(frozen) = frozen {
            self.kill()?;
            frozen.until_ended();
        }
        let (pid, name) = (self.pid, state.threads[0].name.clone());
        Ok(Taken { number: id.number, pid, name, pause, stopped_at_ns, breakdown, total: began.elapsed(), rounds, last })
    }

    fn refuse(&self, what: Vec<Refusal>) -> Result<()> {
        if what.is_empty() { Ok(()) } else { Err(Error::Refused { pid: self.pid, what: once_each(what) }) }
    }

    /// The next checkpoint holds everything anew.
    fn start_over(&mut self) {
        self.base = None;
        if let Some(tracker) = &mut self.tracker {
            tracker.start_over();
        }
    }

    /// A draft on the checkpoint that the changes are counted from, if just that one is still there: a number may have come to mean
    /// another program's.
    fn draft(&mut self, store: &Store) -> Result<Draft> {
        if let Some(base) = self.base {
            match store.begin(Base::On(base)) {
                Err(Error::NoCheckpoint { .. }) => self.start_over(),
                draft => return draft,
            }
        }
        store.begin(Base::Empty)
    }

    /// In mode `nv`: what is not in the pool yet comes there, in pauses of its own, and the pool is synced, so that the clone need not wait.
    /// Takes a while, then, and says so.
    fn adopt_ahead(&mut self, survey: &Survey) -> Result<bool> {
        const ROUNDS: u32 = 3;
        const QUICK: Duration = Duration::from_millis(5);
        let Some(nv) = self.nv.clone() else { return Ok(false) };
        loop {
            let frozen = self.freeze()?;
            let mappings = maps::read(self.pid)?;
            let Adopted { pages, left } = self.adopt(&frozen, survey, &mappings, adopt::PORTION)?;
            if pages == 0 || left < adopt::LITTLE {
                break;
            }
        }
        // Each round leaves what was written during it: the shorter it was, the less.
        for _ in 0..ROUNDS {
            let began = Instant::now();
            nv.pool.sync()?;
            if began.elapsed() < QUICK {
                break;
            }
        }
        nv.pool.check_room().map(|()| true)
    }

    /// Adopts so many pages at most of a process that stands still.
    fn adopt(&mut self, frozen: &Frozen, survey: &Survey, mappings: &[Mapping], most: u64) -> Result<Adopted> {
        let Some(nv) = &self.nv else { return Ok(Adopted::default()) };
        let stub = self.stub.as_mut().expect("prepared");
        stub.choose_signal(frozen.threads())?;
        let flags_of = |page| survey.flags_of(page);
        let patient = Patient { process: &self.process, frozen, reader: &self.reader, flags_of: &flags_of };
        adopt::adopt(nv, &patient, stub, mappings, most)
    }

    /// Stopped, and what its threads sleep in seen.
    fn freeze(&mut self) -> Result<Frozen> {
        let frozen = Frozen::freeze(self.pid)?;
        for tid in frozen.threads() {
            self.sleeps.seen(*tid, &ptrace::registers(*tid)?);
        }
        Ok(frozen)
    }

    /// Stopped where something can be put into it or taken out: a signal handler on a stack of its own ends soon.
    fn freeze_to_enter(&mut self) -> Result<Frozen> {
        for _ in 0..ENTRIES {
            let frozen = self.freeze()?;
            if remote::can_be_entered(self.pid)? {
                return Ok(frozen);
            }
            drop(frozen);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.freeze()
    }

    /// The stub and the tracker, once: a short pause of its own.
    fn prepare(&mut self) -> Result<()> {
        if self.tracker.is_some() {
            return Ok(());
        }
        let frozen = self.freeze_to_enter()?;
        let stub = match &self.stub {
            Some(stub) => stub.clone(),
            None if self.claim.alone() => Stub::install_or_adopt(frozen.threads())?,
            None => Stub::install(frozen.threads())?,
        };
        let mut stub = stub;
        stub.choose_signal(frozen.threads())?;
        let method = self.method(&stub);
        self.stub = Some(stub);
        drop(frozen);
        self.tracker = Some(Tracker::new(self.pid, method?)?);
        Ok(())
    }

    /// A userfaultfd of the target, made in its name, taken over, and closed there.
    fn method(&self, stub: &Stub) -> Result<Method> {
        const USER_MODE_ONLY: u64 = 1;
        let flags = libc::O_CLOEXEC as u64 | libc::O_NONBLOCK as u64 | USER_MODE_ONLY;
        let taken = stub.lend(self.pid, Call::new(libc::SYS_userfaultfd, &[flags]), |made| match i32::try_from(made) {
            Ok(fd) if fd >= 0 => Ok(Ok(self.process.descriptor(fd)?)),
            _ => Ok(Err(std::io::Error::from_raw_os_error(-made as i32))),
        })?;
        Ok(match taken? {
            Ok(uffd) => Method::WriteProtect(uffd),
            Err(e) => {
                log::warn!("process {}: userfaultfd: {e}; every checkpoint copies everything", self.pid);
                Method::Everything
            }
        })
    }

    fn take_into(&mut self, store: &Store, draft: &mut Draft, survey: &Survey, then: Then) -> Result<Frame> {
        // Before the rounds, so that they are short again when it stands still; and once more, if they took so long that it has changed.
        let mut nameless = Nameless::default();
        nameless.copy_ahead(&self.process, draft)?;
        let (mut rounds, phase) = self.rounds(draft)?;
        if nameless.copy_ahead(&self.process, draft)? {
            self.held.hand_over(draft)?;
            rounds.extend(self.rounds(draft)?.0);
        }
        if self.nv.is_some() {
            draft.begin_pool()?;
        }
        // Cloning waits for what is not written yet: as little as possible of that in the pause.
        if store.mode() == Mode::Reflink {
            write_back(&written_files(&look(&self.process)?));
        }
        self.rehearse();
        let (began, stopped_at_ns) = (Instant::now(), clock_ns(libc::CLOCK_MONOTONIC));
        let (mut steps, mut breakdown) = (Steps(began), Breakdown::default());
        let urgent = Urgent::begin();
        let frozen = self.freeze()?;
        breakdown.freeze = steps.step();
        draft.taken_at(SystemTime::now());
        let mut mappings = maps::read(self.pid)?;
        if self.adopt(&frozen, survey, &mappings, u64::MAX)?.pages > 0 {
            mappings = maps::read(self.pid)?;
        }
        let stub = self.stub.as_mut().expect("prepared");
        stub.choose_signal(frozen.threads())?;
        breakdown.maps = steps.step();
        let told = told::ask(&frozen, stub)?;
        // The process has nothing to do from here on: its processors are free.
        let awake = self.tracker.as_mut().expect("prepared").wake_helpers();
        breakdown.told = steps.step();
        let (process, mut threads) = told.look(&frozen, stub.signal())?;
        for thread in &mut threads {
            thread.sleeps_in = thread.user_registers().and_then(|registers| self.sleeps.seen(thread.tid, &registers));
        }
        breakdown.process = steps.step();
        let found = look(&self.process)?;
        self.refuse_late(&found, phase)?;
        breakdown.descriptors = steps.step();
        let tracker = self.tracker.as_mut().expect("prepared");
        let last = self.frozen_round.copy(tracker, &self.reader, &mappings, phase)?;
        drop(awake);
        steps.step();
        (breakdown.find, breakdown.copy) = (last.find, last.copy);
        if let Some(nv) = &self.nv {
            nv.pool.cloned(|memory| draft.clone_pool(memory))?;
        }
        // What it wrote in place changes with the next write: where the file system clones files, it is kept as it is now.
        if store.mode() == Mode::Reflink {
            for (file, name) in written_files(&found) {
                draft.attach_clone(&file, &name)?;
            }
        }
        self.refuse(nameless.catch(draft, &found)?)?;
        breakdown.files = steps.step();
        let frozen = (then == Then::Ends).then_some(frozen);
        breakdown.thaw = steps.step();
        drop(urgent);
        let pause = began.elapsed();

        nameless.hand_over(draft)?;
        if let Some(nv) = &self.nv {
            // An error between the last sync and the clone: the process's own sync may have been told it, and not the clone.
            nv.pool.check_written()?;
            let shown = nv.pool.shown(&mappings);
            nv.pool.give_back_all_but(&shown)?;
            draft.show_pool(shown);
        }
        let stub = self.stub.as_ref().expect("prepared").range();
        let regions = regions(self.nv.as_ref(), &mappings, survey, &stub).map_err(|what| Error::Refused { pid: self.pid, what })?;
        let mapped = mapped::look(&regions, &process.program);
        let descriptors = found.descriptors;
        let state = State { version: State::VERSION, kernel: kernel(), process, threads, descriptors, mapped, regions };
        Ok(Frame { state, pause, stopped_at_ns, breakdown, rounds, last, frozen })
    }

    /// Copies while it runs; and how it is armed in the pause.
    fn rounds(&mut self, draft: &mut Draft) -> Result<(Vec<Round>, Phase)> {
        if self.nv.is_some() {
            return Ok((Vec::new(), Phase::Only));
        }
        // What a device writes into a page is not seen there if it was armed at that time: then only while none can.
        let limits = match reads_directly(&look(&self.process)?) {
            true => Limits { rounds: 0, ..self.limits },
            false => self.limits,
        };
        let phase = if limits.rounds == 0 { Phase::Only } else { Phase::Last };
        let tracker = self.tracker.as_mut().expect("prepared");
        let rounds = precopy(tracker, &self.reader, limits, &mut self.held, draft, &mut self.progress)?;
        self.frozen_round.expect(rounds.last().map_or(0, |round| round.written_pages))?;
        Ok((rounds, phase))
    }

    /// What was not done for a while takes twice as long the first time: better while the process runs.
    fn rehearse(&self) {
        let _ = (maps::read(self.pid), look(&self.process));
        rehearse(self.pid);
    }

    /// What has come up since the survey.
    fn refuse_late(&self, found: &Found, phase: Phase) -> Result<()> {
        let mut refused = found.refused.clone();
        if phase != Phase::Only && reads_directly(found) {
            let what = "a file was opened for direct input and output (O_DIRECT) while the checkpoint was taken; try again";
            refused.push(Refusal { place: "descriptors".into(), what: what.into() });
        }
        self.refuse(refused)
    }

    fn hand_over(&mut self, draft: &mut Draft) -> Result<()> {
        self.held.hand_over(draft)?;
        self.frozen_round.hand_over(draft)?;
        let stub = self.stub.as_ref().expect("prepared").range();
        draft.forget(stub.start / PAGE..stub.end / PAGE);
        Ok(())
    }
}
