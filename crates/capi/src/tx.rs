//! `towa_tx_*` and `towa_mark_slow`: transactions, the write barrier's long way, blocks and roots.
//!
//! A running transaction sits in its thread's handle; its [`Window`] is copied to the handle and to `towa_self()` when it begins and
//! closed when it is over, so that the inline barrier can never answer for a transaction that is gone.

use crate::error::{self, Failure, guard, guard_code};
use crate::layout::Window;
use crate::pool::{OPEN, root_name};
use crate::thread::{Handle, change, handle_at, handle_of};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use towa_epoch::{Root, Thread, Tx};

/// Bytes that a process can address.
const ADDRESSABLE: usize = 1 << 47;

/// `towa_tx_begin`'s flag: abort restores what was written.
pub const UNDOABLE: c_uint = 1;

impl Handle {
    fn begin(&mut self, undoable: bool, reserve: usize) -> Result<(), Failure> {
        if self.tx.is_some() {
            return Err(Failure::usage(format!(
                "{}: this thread is inside a transaction already; they do not nest",
                self.pool.name
            )));
        }
        // The engine multiplies it; beyond what a process can address all are the same: too much.
        let reserve = reserve.min(ADDRESSABLE);
        // SAFETY: `thread` is a live Box that only this handle uses, and no transaction borrows it now. 'static stands for "until the
        // transaction is taken out of `self.tx`", which always happens before the box is freed.
        let thread: &'static mut Thread = unsafe { &mut *self.thread };
        let tx = match (undoable, reserve) {
            (false, 0) => thread.begin()?,
            (true, 0) => thread.begin_undoable()?,
            (false, bytes) => thread.begin_reserving(bytes)?,
            (true, bytes) => thread.begin_undoable_reserving(bytes)?,
        };
        // SAFETY: as above; the transaction holds a shared borrow by now.
        self.window = Window::of(unsafe { &*self.thread }, undoable);
        self.tx = Some(tx);
        self.undoable = undoable;
        self.failed = None;
        Ok(())
    }

    /// Takes the running transaction out.
    fn take(&mut self, entry: &str) -> Result<Tx<'static>, Failure> {
        let tx = self.tx.take().ok_or_else(|| outside(&self.pool.name, entry))?;
        self.window = Window::CLOSED;
        Ok(tx)
    }

    fn end(&mut self) -> Result<(), Failure> {
        let tx = self.take("towa_tx_end")?;
        if let Some(why) = self.failed.take() {
            tx.abort();
            return Err(match why.code {
                error::EPOISONED => why,
                _ => Failure::usage(format!("{}: aborted instead of ended, because {}", self.pool.name, why.message)),
            });
        }
        tx.try_commit()?;
        Ok(())
    }

    fn abort(&mut self) -> Result<(), Failure> {
        self.take("towa_tx_abort")?.abort();
        self.failed = None;
        if self.undoable {
            return Ok(());
        }
        Err(Failure::new(
            error::EPOISONED,
            format!(
                "{}: aborted a transaction that was not begun with TOWA_UNDOABLE, so the pool is poisoned; open it anew to recover its last \
                 durable epoch",
                self.pool.name
            ),
        ))
    }

    /// Runs `call` with the transaction. If it panics, that is a failure like others, after which the transaction can commit only if
    /// the engine panics before it changes anything (`harmless`).
    fn with<T>(
        &mut self,
        entry: &str,
        harmless: bool,
        call: impl FnOnce(&Tx<'static>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(tx) = &self.tx else { return Err(outside(&self.pool.name, entry)) };
        // A transaction that may be half done is marked as failed below.
        let payload = match error::quietly(|| call(tx)) {
            Ok(result) => return result,
            Err(payload) => payload,
        };
        let text = error::panic_text(&*payload);
        if !harmless {
            self.failed = Some(Failure::usage(format!("{entry} failed: {text}")));
        }
        Err(Failure::usage(format!("{}: {entry}: {text}", self.pool.name)))
    }

    fn mark(&mut self, addr: *const c_void, size: usize) -> Result<(), Failure> {
        if self.tx.is_none() {
            return Err(outside(&self.pool.name, "towa_mark"));
        }
        if !self.pool.contains(addr as usize, size) {
            let what = format!(
                "a mark of {size} bytes at {addr:p} does not lie in the heap ({:#x}, {} bytes)",
                self.pool.base, self.pool.len
            );
            let failure = Failure::new(error::ERANGE, format!("{}: {what}", self.pool.name));
            if self.pool.touches(addr as usize, size) {
                self.failed = Some(Failure::usage(what));
            }
            return Err(failure);
        }
        let marked = self.with("towa_mark", false, |tx| {
            // SAFETY: rule 2 of towa.h, which the caller keeps.
            unsafe { tx.mark(addr.cast(), size) };
            Ok(())
        });
        self.pool.pool.check().map_err(Failure::from).inspect_err(|poisoned| self.failed = Some(poisoned.clone()))?;
        marked
    }
}

fn outside(pool: &str, entry: &str) -> Failure {
    Failure::usage(format!("{pool}: {entry} outside a transaction; start one on this thread first"))
}

/// Starts a transaction.
///
/// # Safety
/// No other call uses the handle at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_begin(thread: *mut Handle, flags: c_uint) -> c_int {
    // SAFETY: handed on.
    unsafe { towa_tx_begin_reserving(thread, flags, 0) }
}

/// Starts a transaction that writes up to `bytes`.
///
/// # Safety
/// As [`towa_tx_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_begin_reserving(thread: *mut Handle, flags: c_uint, bytes: usize) -> c_int {
    guard_code("towa_tx_begin", || {
        if flags & !UNDOABLE != 0 {
            return Err(Failure::invalid(format!("towa_tx_begin: flags are {flags:#x}, which towa.h does not define")));
        }
        change(thread, |handle| handle.begin(flags & UNDOABLE != 0, bytes))
    })
}

/// Ends it.
///
/// # Safety
/// As [`towa_tx_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_end(thread: *mut Handle) -> c_int {
    guard_code("towa_tx_end", || change(thread, Handle::end))
}

/// Gives it up.
///
/// # Safety
/// As [`towa_tx_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_abort(thread: *mut Handle) -> c_int {
    guard_code("towa_tx_abort", || change(thread, Handle::abort))
}

/// The running transaction's epoch, 0 outside one.
///
/// # Safety
/// As [`towa_tx_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_epoch(thread: *mut Handle) -> u64 {
    // SAFETY: handed on.
    guard("towa_tx_epoch", || Ok(unsafe { handle_of(thread) }?.tx.as_ref().map_or(0, Tx::epoch))).unwrap_or(0)
}

/// The write barrier's long way, on `thread`'s transaction.
///
/// # Safety
/// As [`towa_tx_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_mark_slow(thread: *mut Handle, addr: *const c_void, size: usize) -> c_int {
    guard_code("towa_tx_mark", || {
        // SAFETY: handed on.
        let handle = unsafe { handle_of(thread) }?;
        if size == 0 { Ok(()) } else { handle.mark(addr, size) }
    })
}

/// The write barrier's long way, on whichever pool holds the bytes.
#[unsafe(no_mangle)]
pub extern "C" fn towa_mark_slow(addr: *const c_void, size: usize) -> c_int {
    guard_code("towa_mark", || {
        if size == 0 {
            return Ok(());
        }
        if let Some(handle) = handle_at(addr as usize, size) {
            // SAFETY: a live handle of this thread, and no other reference to it in this call.
            return unsafe { handle_of(handle) }?.mark(addr, size);
        }
        let end = (addr as usize).saturating_add(size);
        let open = OPEN.read();
        match open.iter().find(|(base, len, _)| (addr as usize) < base + len && end > *base) {
            Some((_, _, name)) => Err(Failure::usage(format!(
                "{name}: towa_mark by a thread that is not attached to this pool; attach it and start a transaction first"
            ))),
            None => Err(Failure::new(error::ERANGE, format!("towa_mark: {size} bytes at {addr:p} lie in no open pool"))),
        }
    })
}

/// # Safety
/// As [`towa_tx_begin`]; `init` is NULL or `size` readable bytes; if `zero`, NULL means zeroes.
unsafe fn alloc(thread: *mut Handle, size: usize, init: *const c_void, zero: bool) -> Result<*mut c_void, Failure> {
    // SAFETY: handed on.
    let handle = unsafe { handle_of(thread) }?;
    if size == 0 || size > handle.pool.len {
        return Err(match size {
            0 => Failure::invalid("towa_alloc: 0 bytes; ask for at least 1"),
            _ => Failure::new(
                error::ENOSPC,
                format!("{}: {size} bytes do not fit in a heap of {} bytes", handle.pool.name, handle.pool.len),
            ),
        });
    }
    let block = handle.with("towa_alloc", false, |tx| Ok(tx.alloc(size)?))?.as_ptr();
    if !init.is_null() {
        // SAFETY: the block has at least `size` bytes. (It overlaps `init` if the caller reads what it has freed.)
        unsafe { ptr::copy(init.cast::<u8>(), block, size) };
    } else if zero {
        // SAFETY: the block has at least `size` bytes.
        unsafe { ptr::write_bytes(block, 0, size) };
    }
    Ok(block.cast())
}

/// A marked block.
///
/// # Safety
/// As [`towa_tx_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_alloc(thread: *mut Handle, size: usize) -> *mut c_void {
    // SAFETY: handed on.
    guard("towa_tx_alloc", || unsafe { alloc(thread, size, ptr::null(), false) }).unwrap_or(ptr::null_mut())
}

/// A marked block with a copy of `init`, or zeroes.
///
/// # Safety
/// As [`towa_tx_begin`]; `init` is NULL or `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_alloc_init(thread: *mut Handle, size: usize, init: *const c_void) -> *mut c_void {
    // SAFETY: handed on.
    guard("towa_tx_alloc_init", || unsafe { alloc(thread, size, init, true) }).unwrap_or(ptr::null_mut())
}

/// Frees a block.
///
/// # Safety
/// As [`towa_tx_begin`]; `block` is NULL or a live block of the pool (an address outside its heap is refused).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_free(thread: *mut Handle, block: *mut c_void) -> c_int {
    guard_code("towa_tx_free", || {
        let Some(ptr) = NonNull::new(block.cast::<u8>()) else { return Ok(()) };
        // SAFETY: handed on.
        let handle = unsafe { handle_of(thread) }?;
        if !handle.pool.contains(block as usize, 1) {
            return Err(Failure::new(
                error::ERANGE,
                format!("{}: towa_free of {block:p}, which is not in its heap", handle.pool.name),
            ));
        }
        // The engine refuses what is no live block before it changes anything.
        handle.with("towa_free", true, |tx| {
            // SAFETY: a live block, by this function's contract.
            unsafe { tx.free(ptr) };
            Ok(())
        })
    })
}

/// Sets or removes a root.
///
/// # Safety
/// As [`towa_tx_begin`]; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tx_set_root(
    thread: *mut Handle,
    name: *const c_char,
    type_tag: u64,
    size: usize,
    object: *mut c_void,
) -> c_int {
    guard_code("towa_tx_set_root", || {
        // SAFETY: handed on.
        let handle = unsafe { handle_of(thread) }?;
        // SAFETY: a C string or NULL, by this function's contract.
        let name = unsafe { root_name(name, "root name") }?;
        let root = NonNull::new(object.cast::<u8>()).map(|ptr| Root { ptr, type_tag, size: size as u64 });
        if root.is_some() && !handle.pool.contains(object as usize, size.max(1)) {
            return Err(Failure::new(
                error::ERANGE,
                format!(
                    "{}: root '{name}' cannot point to {size} bytes at {object:p}: they do not lie in its heap",
                    handle.pool.name
                ),
            ));
        }
        handle.with("towa_root_set", false, |tx| {
            // SAFETY: what the C caller promises of the root (towa.h).
            Ok(unsafe { tx.set_root(name, root) }?)
        })
    })
}
