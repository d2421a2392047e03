//! Pools: opening, closing, and what is asked of the whole.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::thread::JoinHandle;

use crossbeam_utils::Backoff;
use parking_lot::Mutex;
use towa_heap::names::IMAGE;
use towa_heap::superblock::Door;
use towa_heap::{Heap, OpenOptions, Recovery, Root, alloc};
use towa_media::Medium;

use crate::control::{self, ControlMemory};
use crate::engine::{self, Engine};
use crate::error::{Error, Result};
use crate::meeting::Meeting;
use crate::options::{Checkpointer, Commit, Options, Tm};
use crate::stats::Stats;
use crate::thread::Thread;
use crate::view::WORD;
use crate::watch::Watch;
use crate::{checkpointer, clock::Clock, nesting, place};

/// An open pool of durable transactions. Clones share it; it is closed when the last clone and the last [`Thread`] are gone, or by
/// [`close`](Self::close), which tells whether that went well.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Both go before the engine: the watch looks at its control block, and the meeting's socket is removed under the pool's lock.
    _meeting: Option<Meeting>,
    _watch: Option<Watch>,
    engine: Arc<Engine>,
    background: Mutex<Vec<JoinHandle<()>>>,
    closed: Mutex<bool>,
}

impl Pool {
    /// Creates a pool in directory `dir`, which is made if need be (mode 0700).
    pub fn create(dir: &Path, options: &Options) -> Result<Pool> {
        options.check_to_create()?;
        Self::create_on(towa_media::open_dir(dir, options.medium, true)?, options)
    }

    /// Opens the pool in `dir`, recovering it if it was not closed.
    pub fn open(dir: &Path, options: &Options) -> Result<Pool> {
        Self::open_on(towa_media::open_dir(dir, options.medium, false)?, options)
    }

    /// Opens the pool in `dir`, or creates it where there is none.
    pub fn open_or_create(dir: &Path, options: &Options) -> Result<Pool> {
        towa_heap::open_or_create(
            || Self::open(dir, options),
            || Self::create(dir, options),
            |e| match e {
                Error::Heap(e) => Some(e),
                _ => None,
            },
        )
    }

    /// Creates a pool on `medium`.
    pub fn create_on(medium: Arc<dyn Medium>, options: &Options) -> Result<Pool> {
        options.check_to_create()?;
        Self::start(Heap::create(medium, &options.to_create())?, options)
    }

    /// Opens the pool on `medium`.
    pub fn open_on(medium: Arc<dyn Medium>, options: &Options) -> Result<Pool> {
        engine::choose(options.tm)?;
        let heap =
            Heap::open(Arc::clone(&medium), &OpenOptions { door: Door::Tx, eager: options.eager, prefault: options.prefault })?;
        place::clear_stale(&*medium);
        options.check(heap.lanes().count())?;
        Self::start(heap, options)
    }

    /// A pool that keeps nothing: the cost of transactions alone.
    pub fn volatile(options: &Options) -> Result<Pool> {
        Self::start(Heap::volatile(options.heap_len, options.prefault)?, options)
    }

    fn start(heap: Heap, options: &Options) -> Result<Pool> {
        let (control, meeting) = if options.checkpointer == Checkpointer::Process && !heap.is_volatile() {
            let medium = heap.medium().expect("a pool that is kept");
            let (control, meeting) = Meeting::call(&**medium)?;
            (control, Some(meeting))
        } else {
            (ControlMemory::private()?, None)
        };
        let engine = Engine::new(heap, control, options)?;
        if options.commit == Commit::Buffered && !engine.is_volatile() {
            engine.heap.lanes().provide(engine.lanes - 1)?;
        }
        let cannot = |e: std::io::Error| Error::Usage(format!("the checkpointer's thread cannot be started: {e}"));
        // Whatever fails from here on, the meeting goes before the engine, and with it the socket before the lock.
        let meeting = meeting;
        meeting.as_ref().map_or(Ok(()), Meeting::open)?;
        let watch = meeting.is_some().then(|| Watch::over(Arc::clone(&engine))).transpose().map_err(cannot)?;
        let inner = Inner {
            engine: Arc::clone(&engine),
            background: Mutex::default(),
            closed: Mutex::new(false),
            _watch: watch,
            _meeting: meeting,
        };
        if !engine.is_volatile() && options.checkpointer != Checkpointer::Manual {
            let interval = options.interval;
            let work = move || {
                let panic = std::panic::catch_unwind(AssertUnwindSafe(|| checkpointer::run(&engine, interval)));
                if panic.is_err() {
                    // Nothing would free the logs any more.
                    engine.poison("the checkpointer's thread panicked".into());
                }
            };
            let thread = std::thread::Builder::new().name("towa-checkpoint".into()).spawn(work);
            inner.background.lock().push(thread.map_err(cannot)?);
        }
        if let Some(lock) = inner.engine.heap.lock().filter(|_| inner._meeting.is_some()) {
            // All is recovered: from here on the checkpointer that has the image's lock writes it.
            lock.give_back(IMAGE);
        }
        Ok(Pool(Arc::new(inner)))
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    /// This thread's way to the pool. One a thread: a transaction begun inside a transaction through another one is refused, for it might
    /// wait for the outer one for ever.
    ///
    /// # Errors
    /// [`Error::TooManyThreads`]; a full medium; [`Error::Poisoned`].
    pub fn register(&self) -> Result<Thread> {
        nesting::refuse_in_child(self.engine(), "a thread")?;
        self.engine().check()?;
        Ok(Thread::new(self.clone(), self.engine().take_lane()?))
    }

    pub(crate) fn engine_of(&self) -> &Arc<Engine> {
        self.engine()
    }

    /// Returns when everything committed before the call is durable.
    ///
    /// Waits for transactions of other threads that began before: they may come before what the caller committed.
    ///
    /// # Errors
    /// [`Error::Usage`] in a body; [`Error::Poisoned`].
    pub fn sync(&self) -> Result<()> {
        nesting::refuse(self.engine(), "`sync`")?;
        self.engine().check()?;
        self.engine().flush_upto_now()
    }

    /// Brings the image up to all that is durable now and frees the logs. Done by itself in time; for tests and before a copy.
    ///
    /// # Errors
    /// [`Error::Usage`] in a body; [`Error::Poisoned`].
    pub fn checkpoint(&self) -> Result<()> {
        nesting::refuse(self.engine(), "`checkpoint`")?;
        self.engine().check()?;
        self.engine().checkpoint_here()
    }

    /// Fails if the pool was closed or failed earlier.
    pub fn check(&self) -> Result<()> {
        self.engine().check()
    }

    /// The root of this name, as it is now: whoever set it may be waiting for his transaction to be durable.
    pub fn root(&self, name: &str) -> Option<Root> {
        self.engine().heap.roots().get(name)
    }

    /// Names of all roots, sorted.
    pub fn root_names(&self) -> Vec<String> {
        self.engine().heap.roots().names()
    }

    /// How transactions run here.
    pub fn tm(&self) -> Tm {
        self.engine().tm
    }

    /// Where timestamps come from.
    pub fn clock(&self) -> Clock {
        self.engine().control.clock()
    }

    /// When transactions are durable.
    pub fn commit_mode(&self) -> Commit {
        self.engine().commit
    }

    /// The medium; `None` when volatile.
    pub fn medium(&self) -> Option<&Arc<dyn Medium>> {
        self.engine().heap.medium()
    }

    /// Where it is, for messages.
    pub fn location(&self) -> String {
        self.engine().heap.location()
    }

    /// What opening found and did.
    pub fn recovery(&self) -> &Recovery {
        self.engine().heap.recovery()
    }

    /// First address and length in bytes of the heap.
    pub fn heap_range(&self) -> (u64, u64) {
        (self.engine().view.base(), self.engine().view.len())
    }

    /// Where blocks may be: first address and length in bytes. What [`Thread::load`] and transactions may read.
    pub fn block_range(&self) -> (u64, u64) {
        let blocks = self.engine().view.from(self.engine().data);
        (blocks.base(), blocks.len())
    }

    /// Checks the headers of all blocks, while no transaction runs: how many are live, or what is wrong.
    pub fn check_blocks(&self) -> std::result::Result<u64, String> {
        let (heap, view) = (&self.engine().heap, self.engine().view);
        // The allocator reads whole lines.
        let mut read = |offset: u64, into: &mut [u8]| -> std::result::Result<(), Infallible> {
            for (at, bytes) in (view.base() + offset..).step_by(WORD as usize).zip(into.chunks_exact_mut(WORD as usize)) {
                bytes.copy_from_slice(&view.load(at).to_le_bytes());
            }
            Ok(())
        };
        let Ok(report) = alloc::check(&mut read, heap.len(), alloc::CHUNK, heap.allocator().frontier());
        report.damage.first().map_or(Ok(report.blocks_live), |damage| Err(damage.to_string()))
    }

    /// The pool's figures now.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Live blocks below this address space are checked by `towa verify`; for tests: the heap itself.
    #[doc(hidden)]
    pub fn heap(&self) -> &Heap {
        &self.engine().heap
    }

    /// Closes as a crash would: nothing is brought up. For crash tests.
    #[doc(hidden)]
    pub fn abandon(self) {
        *self.0.closed.lock() = true;
        self.0.stop_background();
        self.engine().shut();
    }

    /// Waits for running transactions, brings up the image and closes. Other clones and threads of the pool find it poisoned ("closed").
    ///
    /// # Errors
    /// What had been committed could not be brought up: it is still in the logs, and the next opening recovers it. [`Error::Usage`] in a
    /// body, where nothing is closed as long as there are other clones or threads.
    pub fn close(self) -> Result<()> {
        nesting::refuse(self.engine(), "`close`")?;
        self.0.close()
    }
}

impl Inner {
    fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            return Ok(());
        }
        let engine = &self.engine;
        engine.shut();
        // From here on no transaction begins; those that announced themselves or entered before end. The checkpointer still works for them.
        let (control, backoff) = (&engine.control, Backoff::new());
        let runs = || control.sequence.is_entered() || control.lanes.iter().any(|lane| lane.announced.load(SeqCst) != 0);
        while engine.check_failed().is_ok() && runs() {
            backoff.snooze();
        }
        self.stop_background();
        engine.await_checkpointer()?;
        engine.check_failed()?;
        if engine.is_volatile() {
            return Ok(());
        }
        engine.flush_upto_now()?;
        engine.checkpoint_here()?;
        Ok(engine.heap.close()?)
    }

    fn stop_background(&self) {
        self.engine.control.stop.store(1, SeqCst);
        self.engine.control.work.fetch_add(1, SeqCst);
        control::wake(&self.engine.control.work);
        for thread in self.background.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            // A child's copy. There is no thread to be joined and no memory to be closed; all stays as it is until the child ends.
            std::mem::forget(Arc::clone(&self.engine));
            std::mem::forget(std::mem::take(self.background.get_mut()));
            std::mem::forget((self._watch.take(), self._meeting.take()));
            return;
        }
        if let Err(e) = self.close() {
            log::warn!("{}: not closed cleanly: {e}", self.engine.heap.location());
        }
    }
}
