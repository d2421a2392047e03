//! Pools: opening, closing, and waiting for durability.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use towa_heap::alloc::BlockState;
use towa_heap::superblock::Door;
use towa_heap::{CreateOptions, Heap, LogShape, OpenOptions, Recovery, Root};
use towa_media::{Durability, Kind, Medium};

use crate::detector::ForgottenMark;
use crate::engine::Engine;
use crate::gate::Reason;
use crate::persister::{self, Checkpointer, Phase};
use crate::thread::is_in_transaction;
use crate::{Error, Mode, Options, Result, Stats, warming};

/// An open pool. Clones share it; it is closed, with a last checkpoint, when the last clone and the last [`Thread`](crate::Thread)
/// are gone, or by [`close`](Self::close), which tells whether that went well.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.engine().heap.location())
    }
}

struct Inner {
    engine: Arc<Engine>,
    checkpointer: Arc<Mutex<Checkpointer>>,
    background: Mutex<Vec<JoinHandle<()>>>,
    registry: Mutex<HashMap<String, Arc<dyn Any + Send + Sync>>>,
    manual: bool,
    closed: Mutex<bool>,
}

impl Pool {
    /// Creates a pool in directory `dir`, which is made if need be (mode 0700).
    pub fn create(dir: &Path, options: &Options) -> Result<Pool> {
        if options.mode == Mode::Volatile {
            return Self::volatile(options);
        }
        // Before anything is made, its directory included.
        let on_memory =
            || Ok::<_, Error>(options.medium.map_or_else(|| Ok(towa_media::detect(dir)?.kind), Ok::<_, Error>)? == Kind::Ram);
        Self::to_create(options, options.in_place && on_memory()?).check()?;
        Self::create_on(towa_media::open_dir(dir, options.medium, true)?, options)
    }

    /// Opens the pool in `dir`, recovering it if it was not closed.
    pub fn open(dir: &Path, options: &Options) -> Result<Pool> {
        if options.mode == Mode::Volatile {
            return Self::volatile(options);
        }
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
        let in_place = options.in_place && medium.kind() == Kind::Ram;
        if in_place && options.detect_forgotten_marks {
            return Err(no_detector(medium.location()));
        }
        Self::start(Heap::create(medium, &Self::to_create(options, in_place))?, options)
    }

    /// What the heap's part of a new pool is like.
    fn to_create(options: &Options, in_place: bool) -> CreateOptions {
        let len = options.log_len;
        let log = if in_place { LogShape::Undo { len } } else { LogShape::Ring { len } };
        CreateOptions { door: Door::Epoch, heap_len: options.heap_len, log, base: options.base, prefault: options.prefault }
    }

    /// Opens the pool on `medium`.
    pub fn open_on(medium: Arc<dyn Medium>, options: &Options) -> Result<Pool> {
        Self::start(
            Heap::open(medium, &OpenOptions { door: Door::Epoch, eager: options.eager, prefault: options.prefault })?,
            options,
        )
    }

    /// A pool that keeps nothing ([`Mode::Volatile`]).
    pub fn volatile(options: &Options) -> Result<Pool> {
        Self::start(Heap::volatile(options.heap_len, options.prefault)?, options)
    }

    fn start(heap: Heap, options: &Options) -> Result<Pool> {
        if options.detect_forgotten_marks && heap.undo().is_some() {
            return Err(no_detector(heap.location()));
        }
        let engine = Engine::new(heap, options)?;
        let checkpointer = Arc::new(Mutex::new(Checkpointer::new(&engine)));
        let (mut background, mut failed) = (Vec::new(), None);
        if !engine.heap.is_volatile() {
            // Log space may be short from the start: what was recovered on a sync medium is still in the log.
            engine.account(engine.clock.epoch(), 0);
        }
        if !engine.heap.is_volatile() && !options.manual {
            let (e, c) = (Arc::clone(&engine), Arc::clone(&checkpointer));
            let mut start = |name, work| spawn(name, &engine, work).map(|thread| background.push(thread));
            let mut started = start("towa-persister", Box::new(move |_: &Engine| persister::run(&e, &c)) as Work);
            if engine.heap.medium().is_some_and(|m| m.durability() == Durability::Sync) {
                started = started.and_then(|()| start("towa-applier", Box::new(persister::run_applier)));
            }
            if engine.warming.is_some() {
                started = started.and_then(|()| start("towa-warmer", Box::new(warming::run)));
            }
            if let Err(e) = started {
                failed = Some(e);
            }
        }
        let pool = Pool(Arc::new(Inner {
            engine,
            checkpointer,
            background: Mutex::new(background),
            registry: Mutex::default(),
            manual: options.manual,
            closed: Mutex::new(false),
        }));
        match failed {
            // Dropping the pool stops what was started and closes it.
            Some(e) => Err(e),
            None => Ok(pool),
        }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Returns when everything completed before the call is durable; gives the newest durable epoch.
    ///
    /// # Errors
    /// [`Error::Usage`] inside a transaction of the same thread, which it would wait for; [`Error::Poisoned`].
    pub fn sync(&self) -> Result<u64> {
        self.refuse_in_transaction("sync")?;
        let engine = self.engine();
        if engine.heap.is_volatile() {
            return Ok(engine.clock.epoch());
        }
        let target = engine.completed_epoch();
        while engine.durable.load(Acquire) < target {
            if self.0.manual {
                self.checkpoint()?;
            } else {
                engine.request_checkpoint();
                engine.wait_durable(target, Some(Instant::now() + Duration::from_secs(1)))?;
            }
        }
        engine.check()?;
        engine.check_files(true)?;
        Ok(engine.durable.load(Acquire))
    }

    /// Looks whether the pool's files are still in their directory, and poisons the pool if not. Done by itself ten times a second, and by
    /// [`sync`](Self::sync); for those who say that something is durable which became so before.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn look_at_files(&self) -> Result<()> {
        self.engine().check_files(true)
    }

    /// Waits until `epoch` is durable, without hurrying the persister; `false` when `timeout` passed first.
    ///
    /// An epoch in which nothing was changed becomes durable only with the next change: where a transaction may have changed nothing, wait for
    /// [`completed_epoch`](Self::completed_epoch) or call [`sync`](Self::sync), which do not wait for such an epoch.
    pub fn wait_durable(&self, epoch: u64, timeout: Duration) -> Result<bool> {
        self.refuse_in_transaction("wait_durable")?;
        if self.engine().heap.is_volatile() {
            return Ok(true);
        }
        self.engine().wait_durable(epoch, Instant::now().checked_add(timeout))
    }

    /// Takes a checkpoint now, on the calling thread; gives the newest durable epoch. Does nothing when nothing was changed, but
    /// that in place it frees log space which the durable epoch still has.
    pub fn checkpoint(&self) -> Result<u64> {
        self.refuse_in_transaction("checkpoint")?;
        self.checkpoint_observed(&mut |_| ())
    }

    /// Asks for a checkpoint soon, without waiting.
    pub fn request_checkpoint(&self) {
        self.engine().request_checkpoint();
    }

    /// [`checkpoint`](Self::checkpoint), calling `observe` between its steps. A transaction of this thread that runs at the call must
    /// be ended at [`Phase::Advanced`].
    #[doc(hidden)]
    pub fn checkpoint_observed(&self, observe: &mut dyn FnMut(Phase)) -> Result<u64> {
        let engine = self.engine();
        if engine.heap.is_volatile() {
            return Ok(engine.clock.epoch());
        }
        let durable = self.0.checkpointer.lock().checkpoint(engine, observe)?;
        if self.0.manual && engine.heap.undo().is_none() && persister::log_is_half_full(engine, engine.pending.0.lock().len()) {
            self.apply_now()?;
        }
        Ok(durable)
    }

    /// Brings the image up to the newest durable epoch and cuts the log. Done by itself in time; for tests and before a copy.
    pub fn apply_now(&self) -> Result<()> {
        let engine = self.engine();
        engine.refuse_in_child("apply_now")?;
        if engine.heap.is_volatile() {
            return Ok(());
        }
        persister::apply_pending(engine, &mut || ()).inspect_err(|e| engine.poison(e.to_string()))
    }

    fn refuse_in_transaction(&self, what: &str) -> Result<()> {
        self.engine().refuse_in_child(what)?;
        if is_in_transaction(self.engine()) {
            return Err(Error::Usage(format!("{what} inside a transaction would wait for that transaction; end it first")));
        }
        Ok(())
    }

    /// Fails if the pool was poisoned: nothing more becomes durable, and it stays at its last durable epoch until it is opened again.
    /// Cheap enough to ask after every transaction ([`Tx::try_commit`](crate::Tx::try_commit) does).
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn check(&self) -> Result<()> {
        self.engine().check()
    }

    /// The epoch that new transactions join.
    pub fn epoch(&self) -> u64 {
        self.engine().clock.epoch()
    }

    /// The newest epoch that holds a change made before the call: durable when [`durable_epoch`](Self::durable_epoch) has come
    /// that far.
    pub fn completed_epoch(&self) -> u64 {
        self.engine().completed_epoch()
    }

    /// The newest durable epoch.
    pub fn durable_epoch(&self) -> u64 {
        self.engine().durable.load(Acquire)
    }

    /// Time between checkpoints.
    pub fn interval(&self) -> Duration {
        self.engine().interval()
    }

    /// Sets the time between checkpoints (at least 100 us), from now on.
    pub fn set_interval(&self, interval: Duration) {
        self.engine().set_interval(interval);
    }

    /// Which engine runs.
    pub fn mode(&self) -> Mode {
        self.engine().mode
    }

    /// The medium; `None` when volatile.
    pub fn medium(&self) -> Option<&Arc<dyn Medium>> {
        self.engine().heap.medium()
    }

    /// Whether its image is its working copy: see [`Options::in_place`].
    pub fn is_in_place(&self) -> bool {
        self.engine().heap.undo().is_some()
    }

    /// What opening found and did.
    pub fn recovery(&self) -> &Recovery {
        self.engine().heap.recovery()
    }

    /// Root `name`.
    pub fn root(&self, name: &str) -> Option<Root> {
        self.engine().heap.roots().get(name)
    }

    /// Names of all roots, sorted.
    pub fn root_names(&self) -> Vec<String> {
        self.engine().heap.roots().names()
    }

    /// The engine's figures now.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// First address and length in bytes of the heap.
    pub fn heap_range(&self) -> (usize, u64) {
        (self.engine().heap.base().as_ptr().addr(), self.engine().heap.len())
    }

    /// What stands at any address. For programs whose links may be damaged: `free` panics where no live block starts.
    pub fn block_state(&self, block: NonNull<u8>) -> BlockState {
        self.engine().heap.allocator().block_state(block)
    }

    /// Usable bytes of a live block.
    ///
    /// # Safety
    /// `block` came from `alloc` of this pool and is live.
    pub unsafe fn block_size(&self, block: NonNull<u8>) -> usize {
        self.engine().heap.allocator().usable_size(block)
    }

    /// Lines found written but not marked since last asked ([`Options::detect_forgotten_marks`]).
    pub fn take_forgotten_marks(&self) -> Vec<ForgottenMark> {
        std::mem::take(&mut self.engine().forgotten.lock())
    }

    /// The value shared under `name` by everybody who has this pool open in this process, made by `init` if nobody did. For locks
    /// that guard durable structures: they must be one per structure, not one per handle.
    ///
    /// # Errors
    /// [`Error::Usage`] if the name is shared already as a value of another type.
    pub fn shared<T: Any + Send + Sync>(&self, name: &str, init: impl FnOnce() -> T) -> Result<Arc<T>> {
        let mut registry = self.0.registry.lock();
        let value = registry.entry(name.into()).or_insert_with(|| Arc::new(init()));
        Arc::clone(value)
            .downcast()
            .map_err(|_| Error::Usage(format!("{name:?} is open already in this process, as something of another type")))
    }

    /// Closes without the last checkpoint, as a crash would. For crash tests.
    #[doc(hidden)]
    pub fn abandon(self) {
        *self.0.closed.lock() = true;
        self.0.stop_background();
        self.engine().shut();
    }

    /// Waits for running transactions, takes the last checkpoint and closes; fails if that could not be made durable. Other clones and
    /// threads of the pool find it poisoned ("closed").
    ///
    /// # Errors
    /// [`Error::Usage`] inside a transaction of the same thread, which it would wait for: the pool stays open for its other clones.
    pub fn close(self) -> Result<()> {
        self.refuse_in_transaction("close")?;
        self.0.close()
    }
}

impl Inner {
    fn close(&self) -> Result<()> {
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            return Ok(());
        }
        self.stop_background();
        let engine = &self.engine;
        if engine.heap.is_volatile() {
            return Ok(());
        }
        let result = self.last_checkpoint();
        engine.shut();
        result
    }

    fn stop_background(&self) {
        self.engine.requests.0.lock().stop = true;
        self.engine.requests.1.notify_all();
        self.engine.pending.1.notify_all();
        for thread in self.background.lock().drain(..) {
            let _ = thread.join();
        }
    }

    fn last_checkpoint(&self) -> Result<()> {
        let engine = &self.engine;
        // No transaction begins any more, and none runs: what was committed is in this checkpoint.
        engine.gate.close(&engine.clock, Reason::Closing);
        persister::wait_all(engine, |slot| !slot.announcement.is_busy());
        self.checkpointer.lock().checkpoint(engine, &mut |_| ())?;
        persister::apply_pending(engine, &mut || ())?;
        Ok(engine.heap.close()?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.engine.is_forked() {
            // A child's copy. There is no thread to be joined and no memory to be closed; all stays as it is until the child ends.
            std::mem::forget((Arc::clone(&self.engine), Arc::clone(&self.checkpointer)));
            std::mem::forget(std::mem::take(self.background.get_mut()));
            return;
        }
        if let Err(e) = self.close() {
            log::warn!("{}: not closed cleanly: {e}", self.engine.heap.location());
        }
    }
}

type Work = Box<dyn FnOnce(&Engine) + Send>;

/// Starts a background thread. If it panics, the pool is poisoned: nothing would become durable any more.
fn spawn(name: &'static str, engine: &Arc<Engine>, work: Work) -> Result<JoinHandle<()>> {
    let shared = Arc::clone(engine);
    let guarded = move || {
        if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| work(&shared))) {
            let what = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            shared.poison(format!("thread {name} panicked: {what}"));
        }
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(guarded);
    thread.map_err(|e| Error::Usage(format!("thread {name} cannot be started: {e}; raise the limit of threads")))
}

fn no_detector(pool: String) -> Error {
    Error::Usage(format!(
        "{pool}: forgotten marks are found by comparing the working copy with the image, and this pool's image is its working copy; \
         test with a pool that is not in place"
    ))
}
