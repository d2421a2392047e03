//! `towa_dtx_register`, `towa_dtx_run`: threads of a pool of transactions, and bodies.
//!
//! ```text
//!   towa_dtx_thread * ─► Given ─► DtxThread { Mutex<Thread> }        locked by who runs a body, or gives it back
//!   towa_dtx * ─ the same address; good only while ─► RUNNING { of, tx, failed, again }      one per operating-system thread
//! ```
//!
//! What must always hold:
//! - of all transactions at most one runs in an operating-system thread: a second one, of whatever pool, would wait for what is announced
//!   and cannot end, or end inside another's hardware transaction;
//! - in hardware nothing fails: before anything becomes a failure the body goes to software ([`Running::in_software`]);
//! - a transaction in which a call failed does not take effect, whatever its body makes of that.
//!
//! Everything here and in `dtx_access` that changes while a body runs is plain memory of this thread, so an aborted hardware run leaves
//! no trace in it. Nothing allocates or calls the system unless something fails.

use crate::dtx_layout::DTX_AGAIN;
use crate::dtx_pool::{DtxPool, User};
use crate::error::{self, Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use towa_tx::{Abort, Error, Thread, Tx};

/// What a `towa_dtx_thread *` leads to.
#[derive(Debug)]
pub struct DtxThread {
    /// Goes before the pool's count does.
    thread: Mutex<Thread>,
    user: User,
}

impl Kind for DtxThread {
    const TAG: u64 = u64::from_le_bytes(*b"towa:dth");
    const WHAT: &'static str = "towa_dtx_thread";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<DtxThread> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

/// A body: `towa_dtx_body`. The transaction's handle is the thread's.
pub type Body = unsafe extern "C" fn(*mut Given<DtxThread>, *mut c_void) -> c_int;

/// The transaction that runs in this operating-system thread.
#[derive(Debug)]
pub(crate) struct Running<'r> {
    /// The handle that it was begun on.
    of: *const Given<DtxThread>,
    pub(crate) pool: &'r Arc<DtxPool>,
    /// NULL while the body does not run.
    tx: *mut Tx<'r>,
    /// The first failure in this run of the body.
    failed: Option<Failure>,
    /// The first call in this run that was refused beside the transaction, which may go on without it.
    refused: Option<Failure>,
    /// Another transaction was in the way in this run.
    again: bool,
}

thread_local! {
    /// On the stack of `run`, while that runs.
    static RUNNING: Cell<*mut Running<'static>> = const { Cell::new(ptr::null_mut()) };
}

/// Keeps [`RUNNING`] for as long as the one it points to is there.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        RUNNING.set(ptr::null_mut());
    }
}

impl<'r> Running<'r> {
    /// The transaction of `of`, if its body runs in this thread.
    ///
    /// # Safety
    /// The reference is dropped before the entry returns, and no second one made.
    #[inline]
    pub(crate) unsafe fn of<'a>(of: *const Given<DtxThread>) -> Option<&'a mut Running<'a>> {
        // SAFETY: NULL, or on the stack of `run` below us in this very thread, and used by nobody else, by this function's contract.
        // The lifetimes only shrink.
        let running: &mut Running<'a> = unsafe { RUNNING.get().cast::<Running<'a>>().as_mut() }?;
        (ptr::eq(running.of, of) && !running.tx.is_null()).then_some(running)
    }

    /// # Safety
    /// As [`of`](Self::of).
    unsafe fn any<'a>() -> Option<&'a mut Running<'a>> {
        // SAFETY: as in `of`.
        unsafe { RUNNING.get().cast::<Running<'a>>().as_mut() }
    }

    /// The transaction.
    #[inline]
    pub(crate) fn tx(&mut self) -> &mut Tx<'r> {
        // SAFETY: the body runs, so `run` has set it and holds it until the body returns.
        unsafe { &mut *self.tx }
    }

    /// From here on it runs in software: a hardware transaction starts anew there, and never gets past this call.
    #[cold]
    pub(crate) fn in_software(&mut self) {
        if !self.tx.is_null() {
            // In software this does nothing; what it gives is to be passed on, or not.
            let _ = self.tx().abort::<()>("goes on in software");
        }
    }

    /// What all further calls of this run give, if there was a failure.
    #[inline]
    pub(crate) fn spoiled(&self) -> Option<c_int> {
        if self.again { Some(DTX_AGAIN) } else { self.failed.as_ref().map(|f| f.code) }
    }

    /// Notes that the transaction cannot take effect, in software; gives the code for the body.
    #[cold]
    pub(crate) fn fail(&mut self, failure: Failure) -> c_int {
        let code = error::record(failure.clone());
        self.failed.get_or_insert(failure);
        code
    }

    /// The same for what an access of the transaction gave.
    #[cold]
    pub(crate) fn give_up(&mut self, abort: Abort) -> c_int {
        match abort {
            Abort::Failed(e) => self.fail(Failure::from(*e)),
            Abort::Conflict | Abort::Stale | Abort::User(_) => {
                self.again = true;
                DTX_AGAIN
            }
        }
    }
}

/// Refuses what waits for transactions, or is one, inside a body.
pub(crate) fn refuse_in_body(entry: &str) -> Result<(), Failure> {
    // SAFETY: dropped before this returns.
    let Some(running) = (unsafe { Running::any() }) else { return Ok(()) };
    running.in_software();
    let why = format!(
        "{}: {entry} inside the body of a transaction; a body uses its own transaction only: call it before or after",
        running.pool.name
    );
    let failure = Failure::usage(why);
    running.refused.get_or_insert_with(|| failure.clone());
    Err(failure)
}

/// Takes a log of the pool.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_register(pool: *mut Given<DtxPool>) -> *mut Given<DtxThread> {
    guard("towa_dtx_register", || {
        refuse_in_body("towa_dtx_register")?;
        // SAFETY: handed on.
        let pool = unsafe { DtxPool::of(pool) }?;
        let user = User::thread(pool);
        let thread = Mutex::new(pool.pool.register()?);
        Ok(Given::give(Arc::new(DtxThread { thread, user })))
    })
    .unwrap_or(ptr::null_mut())
}

/// Gives it back.
///
/// # Safety
/// `thread` is NULL or a handle that nobody uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_unregister(thread: *mut Given<DtxThread>) -> c_int {
    guard_code("towa_dtx_unregister", || {
        refuse_in_body("towa_dtx_unregister")?;
        // SAFETY: handed on.
        let handle = unsafe { Given::look(thread) }?;
        drop(handle.thread.try_lock().ok_or_else(|| in_use(handle))?);
        // SAFETY: handed on.
        unsafe { Given::take(thread) }.map(drop)
    })
}

fn in_use(thread: &DtxThread) -> Failure {
    let pool = &thread.user.pool().name;
    Failure::usage(format!("{pool}: another thread uses this towa_dtx_thread now; register one for each thread"))
}

/// An inner body as a part of the transaction that runs.
///
/// # Safety
/// `body` is callable.
unsafe fn nested(handle: *mut Given<DtxThread>, body: Body, arg: *mut c_void) -> c_int {
    // SAFETY: callable, by this function's contract; no reference to what runs is held meanwhile.
    let got = unsafe { body(handle, arg) };
    // SAFETY: dropped before this returns.
    let Some(running) = (unsafe { Running::of(handle) }) else { return got };
    if let Some(spoiled) = running.spoiled() {
        return if got > 0 && spoiled != DTX_AGAIN { got } else { spoiled };
    }
    if got == DTX_AGAIN {
        running.in_software();
        running.again = true;
    } else if got != 0 {
        // The inner body's writes cannot be taken back alone.
        running.in_software();
        running.failed = Some(Failure::new(got, "an inner transaction gave up, and with it the outer one"));
    }
    got
}

/// What a body's end means for the engine, and the value to give if it does not take effect.
fn end(running: &mut Running<'_>, got: c_int) -> Result<(), (Abort, c_int)> {
    if running.again || got == DTX_AGAIN {
        return Err((Abort::Conflict, 0));
    }
    let failed = running.failed.as_ref().map_or(0, |f| f.code);
    // The program's own reason counts more than the failure that may have led to it.
    match if got == 0 { failed } else { got } {
        0 => Ok(()),
        code => Err((Abort::User("the body gave up"), code)),
    }
}

/// # Safety
/// `thread` is NULL or a handle, `body` NULL or callable.
unsafe fn run(handle: *mut Given<DtxThread>, body: Option<Body>, arg: *mut c_void, hardware: bool) -> Result<c_int, Failure> {
    // SAFETY: dropped before the inner body is called.
    if let Some(running) = unsafe { Running::of(handle) } {
        if let Some(spoiled) = running.spoiled() {
            return Ok(spoiled);
        }
        return match body {
            // SAFETY: callable, by this function's contract.
            Some(body) => Ok(unsafe { nested(handle, body, arg) }),
            None => {
                running.in_software();
                Err(no_body())
            }
        };
    }
    refuse_in_body("towa_dtx_run of another thread's handle")?;
    let body = body.ok_or_else(no_body)?;
    // SAFETY: by this function's contract.
    let thread = unsafe { Given::look(handle) }?;
    let mut locked = thread.thread.try_lock().ok_or_else(|| in_use(thread))?;
    let mut running =
        Running { of: handle, pool: thread.user.pool(), tx: ptr::null_mut(), failed: None, refused: None, again: false };
    let at: *mut Running<'_> = &raw mut running;
    RUNNING.set(at.cast());
    let entered = Entered;
    let mut value = 0;
    let each = |tx: &mut Tx<'_>| {
        // SAFETY: `running` is there until `entered` is gone, and no reference to it is held while the body runs, but by the calls in it.
        unsafe {
            (*at).tx = ptr::from_mut(tx).cast();
            (*at).failed = None;
            (*at).refused = None;
            (*at).again = false;
        }
        // SAFETY: callable, by this function's contract.
        let got = unsafe { body(handle, arg) };
        // SAFETY: as above.
        let running = unsafe { &mut *at };
        running.tx = ptr::null_mut();
        end(running, got).map_err(|(abort, code)| {
            value = code;
            abort
        })
    };
    let result = if hardware { locked.transaction(each) } else { locked.transaction_software(each) };
    drop(entered);
    match result {
        Ok(()) => Ok(error::OK),
        Err(Error::Aborted(_)) if value > 0 => Ok(value),
        Err(Error::Aborted(_)) => {
            let said = [running.failed.take(), running.refused.take()].into_iter().flatten().find(|f| f.code == value);
            Err(said.unwrap_or_else(|| gave_up(value)))
        }
        Err(e) => Err(e.into()),
    }
}

fn gave_up(value: c_int) -> Failure {
    // SAFETY: a C string that lives for ever.
    let means = unsafe { CStr::from_ptr(error::towa_strerror(value)) };
    Failure::new(value, format!("the body of the transaction gave up with {value} ({})", means.to_string_lossy()))
}

fn no_body() -> Failure {
    Failure::invalid("no body to run (NULL)")
}

/// Runs a body as one transaction.
///
/// # Safety
/// `thread` is NULL or a thread's handle; `body` is NULL or callable with `arg`, and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_run(thread: *mut Given<DtxThread>, body: Option<Body>, arg: *mut c_void) -> c_int {
    // SAFETY: handed on.
    guard("towa_dtx_run", || unsafe { run(thread, body, arg, true) }).unwrap_or_else(|code| code)
}

/// The same in software.
///
/// # Safety
/// As [`towa_dtx_run`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_run_software(thread: *mut Given<DtxThread>, body: Option<Body>, arg: *mut c_void) -> c_int {
    // SAFETY: handed on.
    guard("towa_dtx_run_software", || unsafe { run(thread, body, arg, false) }).unwrap_or_else(|code| code)
}
