//! A thread's registration with a pool.

use std::cell::{Cell, RefCell};

use towa_heap::alloc::Cache;
use towa_heap::undo::Cursor;
use towa_media::LINE;
use towa_media::persist::prefetch;

use crate::engine::Engine;
use crate::pool::Pool;
use crate::slot::Slot;
use crate::tags::{NO_TAG, tag_of};
use crate::tx::{Rollback, Tx};
use crate::{Error, Result};

/// What the fast path of `mark` needs; the inlined C version reads the same struct.
///
/// A range is already marked if it lies in the heap and `tags[(address - base) / 64 ..]` of all its lines equals `tag`. `tags` is
/// null when nothing is tracked (volatile mode).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Window {
    /// First address of the heap.
    pub base: usize,
    /// Bytes of the heap.
    pub len: usize,
    /// One tag a line, or null.
    pub tags: *const u8,
    /// The running transaction's tag.
    pub tag: u8,
}

/// A thread's registration with a pool: one per operating-system thread and pool. May move between threads, not be shared.
pub struct Thread {
    pub(crate) window: Cell<Window>,
    pool: Pool,
    slot: usize,
    pub(crate) epoch: Cell<u64>,
    /// Lines the running transaction marked first, and how many it may.
    pub(crate) marked: Cell<u64>,
    pub(crate) may_mark: Cell<u64>,
    /// Lines it reserved beyond the usual.
    pub(crate) reserved: Cell<u64>,
    /// Lines marked and not yet accounted.
    pub(crate) unaccounted: Cell<u64>,
    pub(crate) cache: RefCell<Cache>,
    /// Bytes of the newest block that was refused.
    pub(crate) refused: Cell<usize>,
    /// Whether the running transaction can be rolled back.
    pub(crate) undoable: Cell<bool>,
    pub(crate) rollback: RefCell<Rollback>,
    /// Where the next old line goes, of a heap in place.
    pub(crate) undo_cursor: RefCell<Cursor>,
}

// SAFETY: the pointers in `window` and `undo_cursor` are to the engine's tags and log, which the pool keeps; a Thread is used by one thread at
// a time.
unsafe impl Send for Thread {}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Thread({} of {:?})", self.slot, self.pool)
    }
}

thread_local! {
    static ME: u8 = const { 0 };
}

/// A word that tells operating-system threads apart while they live.
fn this_thread() -> usize {
    ME.with(|me| std::ptr::from_ref(me).addr())
}

/// Whether the calling thread runs a transaction on this engine.
pub(crate) fn is_in_transaction(engine: &Engine) -> bool {
    use std::sync::atomic::Ordering::Relaxed;
    let me = this_thread();
    engine.slots.iter().any(|s| s.announcement.is_busy() && s.os_thread.load(Relaxed) == me)
}

impl Thread {
    pub(crate) fn new(pool: Pool, slot: usize) -> Thread {
        let engine = pool.engine();
        let window = Window {
            base: engine.heap.base().as_ptr().addr(),
            len: engine.heap.len() as usize,
            tags: engine.tags.as_ref().map_or(std::ptr::null(), |t| t.as_ptr()),
            tag: NO_TAG,
        };
        Thread {
            window: Cell::new(window),
            pool,
            slot,
            epoch: Cell::new(0),
            marked: Cell::new(0),
            may_mark: Cell::new(0),
            reserved: Cell::new(0),
            unaccounted: Cell::new(0),
            cache: RefCell::new(Cache::default()),
            refused: Cell::new(0),
            undoable: Cell::new(false),
            rollback: RefCell::default(),
            undo_cursor: RefCell::default(),
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.pool.engine()
    }

    pub(crate) fn slot(&self) -> &Slot {
        self.engine().slots.get(self.slot)
    }

    /// Starts a transaction. The only place that may block (for log space, a stop-the-world checkpoint) or fail (poisoned pool).
    ///
    /// Take locks **before**, release them **after** it ends: a transaction that started in one epoch and reads what a transaction
    /// of the next wrote would tear the order of epochs.
    #[inline]
    pub fn begin(&mut self) -> Result<Tx<'_>> {
        self.enter(true)?;
        Ok(Tx::running(self))
    }

    /// Starts a transaction that writes up to `bytes`, more than every transaction may: a 128th of the log, or, where more than 32 threads
    /// are registered, a quarter of the log divided by their number. Waits for log space as [`begin`](Self::begin) does.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the log could never hold it, with as many threads as are registered.
    pub fn begin_reserving(&mut self, bytes: usize) -> Result<Tx<'_>> {
        self.engine().refuse_in_child("a transaction")?;
        let lines = self.engine().reserve(bytes)?;
        if let Err(e) = self.enter(true) {
            self.engine().unreserve(lines);
            return Err(e);
        }
        Ok(self.run_with(lines))
    }

    /// [`begin_reserving`](Self::begin_reserving) for threads that serve many: it does not wait for log space. `None` where there is none
    /// now: nothing was begun, and the persister is at work. Ask again, after [`has_log_space`](Self::has_log_space) or some time.
    ///
    /// It does wait, for moments, where the gate is closed for another reason: a stop-the-world checkpoint, a lazily opened heap that moves.
    ///
    /// # Errors
    /// As [`begin_reserving`](Self::begin_reserving).
    pub fn try_begin_reserving(&mut self, bytes: usize) -> Result<Option<Tx<'_>>> {
        let engine = self.engine();
        engine.refuse_in_child("a transaction")?;
        let Some(lines) = engine.try_reserve(bytes)? else { return Ok(None) };
        let entered = self.enter(false);
        if !matches!(entered, Ok(true)) && lines > 0 {
            engine.unreserve(lines);
        }
        Ok(entered?.then(|| self.run_with(lines)))
    }

    /// Whether [`try_begin_reserving`](Self::try_begin_reserving) of `bytes` would begin now, as far as log space goes. Where it would not,
    /// the persister is asked for some.
    pub fn has_log_space(&self, bytes: usize) -> bool {
        self.engine().has_log_space(bytes)
    }

    /// The transaction that has just begun, with the `lines` that were reserved for it.
    fn run_with(&self, lines: u64) -> Tx<'_> {
        self.reserved.set(lines);
        self.may_mark.set(self.may_mark.get().saturating_add(lines));
        Tx::running(self)
    }

    /// Starts a transaction that [`Tx::abort`] can roll back. Costs a copy of each line it writes.
    pub fn begin_undoable(&mut self) -> Result<Tx<'_>> {
        self.begin_undoable_reserving(0)
    }

    /// [`begin_undoable`](Self::begin_undoable) and [`begin_reserving`](Self::begin_reserving) together.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the log could never hold it.
    pub fn begin_undoable_reserving(&mut self, bytes: usize) -> Result<Tx<'_>> {
        std::mem::forget(self.begin_reserving(bytes)?); // runs on, as the transaction returned below
        let mut window = self.window.get();
        window.tag = NO_TAG; // every mark takes the slow path, which saves the line
        self.window.set(window);
        self.undoable.set(true);
        self.cache.borrow_mut().begin_undoable();
        Ok(Tx::running(self))
    }

    /// Announces a transaction; `false` where log space is short and the caller does not wait for it.
    #[inline]
    fn enter(&self, waits: bool) -> Result<bool> {
        let engine = self.engine();
        engine.refuse_in_child("a transaction")?;
        let slot = self.slot();
        if slot.announcement.is_busy() {
            return Err(Error::Usage("a transaction is already running on this thread; transactions do not nest".into()));
        }
        slot.os_thread.store(this_thread(), std::sync::atomic::Ordering::Relaxed);
        loop {
            if let Some(epoch) = engine.clock.enter(&slot.announcement) {
                self.epoch.set(epoch);
                self.marked.set(0);
                self.may_mark.set(engine.share_lines());
                let mut window = self.window.get();
                window.tag = tag_of(epoch);
                self.window.set(window);
                return Ok(true);
            }
            if !engine.wait_at_gate(waits)? {
                return Ok(false);
            }
        }
    }

    /// A hint that the line at `address` will soon be [marked](Tx::mark): fetches what `mark` looks at beside the line itself. Worth its
    /// while as soon as a pointer is known whose object must still be fetched and compared. Any address is allowed.
    #[inline]
    pub fn prefetch_mark(&self, address: *const u8) {
        let window = self.window.get();
        let offset = address.addr().wrapping_sub(window.base);
        if !window.tags.is_null() && offset < window.len {
            prefetch(window.tags.wrapping_add(offset / LINE));
        }
    }

    /// [`Pool::sync`]; the borrow proves that no transaction runs here.
    pub fn sync(&mut self) -> Result<u64> {
        self.pool.sync()
    }

    /// Where the inlined `mark` of the C header finds its window: valid while the `Thread` is registered and does not move.
    #[doc(hidden)]
    pub fn window_ptr(&self) -> *const Window {
        self.window.as_ptr()
    }

    /// Starts a transaction without a borrow, for language bindings; [`resume`](Self::resume) gives it back.
    #[doc(hidden)]
    pub fn enter_raw(&mut self, undoable: bool) -> Result<()> {
        let tx = if undoable { self.begin_undoable()? } else { self.begin()? };
        std::mem::forget(tx);
        Ok(())
    }

    /// The transaction started by [`enter_raw`](Self::enter_raw), if one runs. Forget the value to keep it running.
    #[doc(hidden)]
    pub fn resume(&mut self) -> Option<Tx<'_>> {
        self.slot().announcement.is_busy().then(|| Tx::running(self))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let engine = self.pool.engine();
        if engine.is_forked() {
            return;
        }
        if self.slot().announcement.is_busy() {
            engine.poison("a thread ended inside a transaction, which is half done");
            self.slot().announcement.leave();
        }
        self.cache.borrow_mut().flush(engine.heap.allocator());
        if self.unaccounted.get() > 0 {
            engine.account(self.epoch.get(), self.unaccounted.get());
        }
        engine.slots.give_back(self.slot);
        engine.threads_changed();
    }
}

impl Pool {
    /// Registers the calling thread.
    ///
    /// # Errors
    /// [`Error::Usage`] when 1024 threads are registered already; [`Error::Poisoned`].
    pub fn register(&self) -> Result<Thread> {
        let engine = self.engine();
        engine.refuse_in_child("a thread")?;
        engine.check()?;
        let slot = engine.slots.take().ok_or_else(|| {
            let most = crate::slot::SLOTS;
            Error::Usage(format!("{most} threads are registered with the pool, the most there can be; drop a Thread first"))
        })?;
        engine.threads_changed();
        Ok(Thread::new(self.clone(), slot))
    }
}
