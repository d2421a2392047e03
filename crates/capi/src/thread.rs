//! `towa_thread_*`: an operating-system thread's registrations, and what happens to them when it dies.
//!
//! Each thread has one [`SelfState`] in plain thread-local storage (no destructor, so that C's cached `towa_self()` stays readable to the
//! thread's very end) and a list of [`Handle`]s, one per pool. A pthread key destructor detaches them when the thread ends; it runs
//! after the destructors of C++ `thread_local` objects, which may still use them. A transaction found running then is aborted: rolled
//! back if it can be, else the pool is poisoned.

use crate::error::{self, Failure, guard, guard_code};
use crate::given::Given;
use crate::layout::Window;
use crate::pool::{self, pool_of};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use towa_epoch::{Thread, Tx};

/// What a `towa_thread *` points to. The window comes first: the inline part of `towa_tx_mark` reads it there.
#[repr(C)]
pub struct Handle {
    pub(crate) window: Window,
    next: *mut Handle,
    /// Attaches not yet undone.
    attaches: u32,
    /// [`given::forks`] when it was attached: in a child of fork() it is not there any more.
    forks: u32,
    /// The running transaction. Borrows `*thread`, so it goes first.
    pub(crate) tx: Option<Tx<'static>>,
    /// From `Box::into_raw`; freed by [`Handle::drop`].
    pub(crate) thread: *mut Thread,
    /// Whether it can be rolled back.
    pub(crate) undoable: bool,
    /// Why the running transaction may not commit.
    pub(crate) failed: Option<Failure>,
    pub(crate) pool: Arc<pool::Handle>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            // The thread dies inside a transaction: what it wrote is torn, so it must never become part of an epoch.
            let _ = catch_unwind(AssertUnwindSafe(|| tx.abort()));
        }
        // SAFETY: from Box::into_raw in `attach`, freed only here, and the transaction that borrowed it is gone.
        let thread = unsafe { Box::from_raw(self.thread) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(thread)));
        self.pool.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One per operating-system thread. `towa_self()` gives its address, which is that of the window.
#[repr(C)]
pub(crate) struct SelfState {
    window: UnsafeCell<Window>,
    first: Cell<*mut Handle>,
    current: Cell<*mut Handle>,
}

thread_local! {
    static SELF: SelfState = const {
        SelfState { window: UnsafeCell::new(Window::CLOSED), first: Cell::new(ptr::null_mut()), current: Cell::new(ptr::null_mut()) }
    };
}

/// The calling thread's state. Plain storage without a destructor: there until the thread is gone.
fn me() -> &'static SelfState {
    // SAFETY: lives as long as the thread, and a SelfState is not Sync, so the reference cannot leave it.
    SELF.with(|me| unsafe { &*ptr::from_ref(me) })
}

impl SelfState {
    fn handles(&self) -> impl Iterator<Item = *mut Handle> + use<> {
        let mut at = self.first.get();
        let forks = towa_media::fork::count();
        std::iter::from_fn(move || {
            loop {
                let here = at;
                // SAFETY: the list holds live handles of this thread only; `next` is read before the caller can free `here`.
                let handle = unsafe { here.as_ref() }?;
                at = handle.next;
                if handle.forks == forks {
                    return Some(here);
                }
            }
        })
    }

    /// Called when a transaction of `handle` has begun or ended: makes the window and the current handle follow.
    fn follow(&self, handle: *mut Handle) {
        self.current.set(handle);
        // SAFETY: live handles of this thread; the references end with each closure.
        let running = |h: &*mut Handle| unsafe { h.as_ref().is_some_and(|h| h.tx.is_some()) };
        // The last begun one if it runs, else any that does.
        let of = Some(handle).filter(running).or_else(|| self.handles().find(running));
        // SAFETY: as above.
        let mut window = of.map_or(Window::CLOSED, |h| unsafe { (*h).window });
        if window.untracked != 0 && self.handles().filter(running).count() > 1 {
            // Other pools' addresses must not pass for untracked.
            window = Window::CLOSED;
        }
        // SAFETY: only this thread writes it, here, and C only reads it between calls.
        unsafe { *self.window.get() = window };
    }

    fn unlink(&self, handle: *mut Handle) {
        let mut rest: Vec<*mut Handle> = self.handles().filter(|h| *h != handle).collect();
        self.first.set(ptr::null_mut());
        while let Some(h) = rest.pop() {
            // SAFETY: a live handle of this thread.
            unsafe { (*h).next = self.first.get() };
            self.first.set(h);
        }
        let current = self.current.get();
        self.follow(if current == handle { self.first.get() } else { current });
    }
}

/// The handle an entry was given, checked; NULL is the calling thread's current one. Only handles of the calling thread's list are looked
/// into, so a stale pointer, or another thread's, is an error and not a wild access.
///
/// # Safety
/// The reference must be dropped before the entry returns, and no second one made.
pub(crate) unsafe fn handle_of<'a>(thread: *mut Handle) -> Result<&'a mut Handle, Failure> {
    let me = me();
    let thread = if thread.is_null() { me.current.get() } else { thread };
    if thread.is_null() {
        return Err(Failure::usage(
            "this thread is not attached to a pool: call towa_thread_init (or towa_thread_attach) on it first",
        ));
    }
    if !me.handles().any(|h| h == thread) {
        return Err(Failure::usage(
            "this towa_thread is not the calling thread's: another thread attached it, it is detached already, or it is the parent's and this \
             is a child of fork()",
        ));
    }
    // SAFETY: a live handle of the calling thread, and the only reference, by this function's contract.
    Ok(unsafe { &mut *thread })
}

/// The calling thread's handle whose heap the range touches.
pub(crate) fn handle_at(addr: usize, len: usize) -> Option<*mut Handle> {
    // SAFETY: live handles of this thread.
    me().handles().find(|h| unsafe { (**h).pool.touches(addr, len) })
}

/// Begins or ends a transaction of `thread` by `change`; whatever becomes of that, the windows follow.
pub(crate) fn change(thread: *mut Handle, change: impl FnOnce(&mut Handle) -> Result<(), Failure>) -> Result<(), Failure> {
    struct Follow(*mut Handle);
    impl Drop for Follow {
        fn drop(&mut self) {
            me().follow(self.0);
        }
    }
    // SAFETY: the reference ends with `change`, before the windows follow.
    let handle = unsafe { handle_of(thread) }?;
    let handle = Follow(ptr::from_mut(handle));
    // SAFETY: just checked, and the only reference.
    change(unsafe { &mut *handle.0 })
}

/// Asks for [`thread_ends`] when the calling thread ends.
fn arm() -> Result<(), Failure> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let refused = || Failure::new(error::EIO, "no pthread key left for noticing the end of threads; the process uses too many");
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is writable; the destructor is a function of the right type that lives for ever.
        (unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0).then_some(key)
    });
    let key = key.ok_or_else(refused)?;
    // SAFETY: the key exists; the value only has to be non-null for the destructor to be called.
    if unsafe { libc::pthread_setspecific(key, ptr::dangling::<c_void>()) } != 0 {
        return Err(refused());
    }
    Ok(())
}

unsafe extern "C" fn thread_ends(_: *mut c_void) {
    let me = me();
    let handles: Vec<*mut Handle> = me.handles().collect();
    me.first.set(ptr::null_mut());
    me.follow(ptr::null_mut());
    for handle in handles {
        // SAFETY: from Box::into_raw in `attach`, and out of the list. Drop catches what may panic.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// # Safety
/// `pool` is NULL or a pool's handle.
unsafe fn attach(pool: *mut Given<pool::Handle>) -> Result<*mut Handle, Failure> {
    // SAFETY: handed on.
    let pool = unsafe { pool_of(pool) }?;
    let me = me();
    let handle = handle_on(Arc::as_ptr(&pool));
    if !handle.is_null() {
        // SAFETY: a live handle of this thread, and no other reference to it.
        let attaches = unsafe { &mut (*handle).attaches };
        *attaches = attaches.checked_add(1).ok_or_else(|| Failure::usage("this thread is attached 4294967295 times"))?;
        return Ok(handle);
    }
    arm()?;
    let thread = Box::into_raw(Box::new(pool.pool.register()?));
    pool.threads.fetch_add(1, Ordering::AcqRel);
    let handle = Box::into_raw(Box::new(Handle {
        window: Window::CLOSED,
        next: me.first.get(),
        attaches: 1,
        forks: towa_media::fork::count(),
        tx: None,
        thread,
        undoable: false,
        failed: None,
        pool,
    }));
    me.first.set(handle);
    me.follow(handle);
    Ok(handle)
}

fn detach(handle: *mut Handle) {
    me().unlink(handle);
    // SAFETY: from Box::into_raw in `attach`, and no longer in the list.
    drop(unsafe { Box::from_raw(handle) });
}

/// The calling thread's handle on `pool`, or NULL.
pub(crate) fn handle_on(pool: *const pool::Handle) -> *mut Handle {
    // SAFETY: live handles of this thread.
    me().handles().find(|h| unsafe { ptr::eq(Arc::as_ptr(&(**h).pool), pool) }).unwrap_or(ptr::null_mut())
}

/// The calling thread's registration with `pool`, outside transactions: `thread` if not NULL, else the one it has there.
pub(crate) fn free_thread<'a>(pool: &Arc<pool::Handle>, thread: *mut Handle) -> Result<&'a mut Thread, Failure> {
    let thread = if thread.is_null() { handle_on(Arc::as_ptr(pool)) } else { thread };
    if thread.is_null() {
        return Err(Failure::usage(format!(
            "{}: this thread is not attached to the pool: call towa_thread_attach on it first",
            pool.name
        )));
    }
    // SAFETY: the only reference to the handle in this call.
    let handle = unsafe { handle_of(thread) }?;
    if !Arc::ptr_eq(&handle.pool, pool) {
        return Err(Failure::usage(format!("{}: the towa_thread is attached to another pool, {}", pool.name, handle.pool.name)));
    }
    refuse_in_transaction(pool)?;
    // SAFETY: a live box that only this handle uses, and no transaction borrows it, as just checked.
    Ok(unsafe { &mut *handle.thread })
}

/// Containers take locks, and locks enclose transactions.
pub(crate) fn refuse_in_transaction(pool: &pool::Handle) -> Result<(), Failure> {
    let handle = handle_on(pool);
    // SAFETY: NULL or a live handle of this thread.
    if unsafe { handle.as_ref() }.is_some_and(|h| h.tx.is_some()) {
        return Err(Failure::usage(format!(
            "{}: a container is used inside a transaction; it locks, and locks enclose transactions: end the transaction first",
            pool.name
        )));
    }
    Ok(())
}

/// Detaches the calling thread from `pool`, however often it attached; refuses inside a transaction.
pub(crate) fn detach_from(pool: *const pool::Handle) -> Result<(), Failure> {
    let handle = handle_on(pool);
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: a live handle of this thread, and no other reference to it.
    if unsafe { (*handle).tx.is_some() } {
        return Err(Failure::new(error::EBUSY, "this thread is inside a transaction; end it before closing the pool"));
    }
    detach(handle);
    Ok(())
}

/// Registers the calling thread with `pool`.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_thread_attach(pool: *mut Given<pool::Handle>) -> *mut Handle {
    // SAFETY: handed on.
    guard("towa_thread_attach", || unsafe { attach(pool) }).unwrap_or(ptr::null_mut())
}

/// Undoes one attach.
///
/// # Safety
/// Nobody uses the handle during the call or, unless it was attached more than once, after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_thread_detach(thread: *mut Handle) -> c_int {
    guard_code("towa_thread_detach", || {
        // SAFETY: handed on.
        let handle = unsafe { handle_of(thread) }?;
        if handle.attaches > 1 {
            handle.attaches -= 1;
            return Ok(());
        }
        if handle.tx.is_some() {
            return Err(Failure::usage("towa_thread_detach inside a transaction: end or abort it first"));
        }
        detach(ptr::from_mut(handle));
        Ok(())
    })
}

/// The calling thread's handle on `pool`, or NULL.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_thread_on(pool: *mut Given<pool::Handle>) -> *mut Handle {
    let pool = if pool.is_null() { pool::towa_pool_default() } else { pool };
    // SAFETY: handed on.
    unsafe { Given::look(pool) }.map_or(ptr::null_mut(), |pool| handle_on(Arc::as_ptr(pool)))
}

/// The calling thread's window.
#[unsafe(no_mangle)]
pub extern "C" fn towa_self() -> *const Window {
    me().window.get()
}
