//! `towa_dtx_read`, `towa_dtx_write` and the rest that a body does through its transaction.
//!
//! What must always hold: a handle that is not that of the body which runs in this thread is an error; and a call that fails leaves the
//! transaction unable to take effect (see `dtx_run`).

use crate::container::set;
use crate::dtx_run::{DtxThread, Running};
use crate::error::{self, Failure, guard_code};
use crate::given::Given;
use crate::pool::root_name;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use towa_tx::{Abort, Root, WORD};

/// Why an access fails: what the engine or we found.
enum Refused {
    Abort(Abort),
    Failure(Failure),
}

impl From<Abort> for Refused {
    fn from(abort: Abort) -> Self {
        Refused::Abort(abort)
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Refused::Failure(failure)
    }
}

/// Runs an access of the transaction.
///
/// # Safety
/// `tx` is NULL or any handle that was ever given; `access` makes no other reference to what runs.
#[inline]
unsafe fn access(entry: &str, tx: *mut Given<DtxThread>, access: impl FnOnce(&mut Running<'_>) -> Result<(), Refused>) -> c_int {
    // SAFETY: dropped before this returns, and the only one, by this function's contract.
    let Some(running) = (unsafe { Running::of(tx) }) else {
        // SAFETY: handed on.
        return unsafe { stray(entry, tx) };
    };
    if let Some(code) = running.spoiled() {
        return code;
    }
    // AssertUnwindSafe: after a panic the transaction cannot take effect.
    match catch_unwind(AssertUnwindSafe(|| access(running))) {
        Ok(Ok(())) => error::OK,
        Ok(Err(Refused::Abort(abort))) => running.give_up(abort),
        Ok(Err(Refused::Failure(failure))) => running.fail(failure),
        Err(payload) => {
            running.in_software();
            let text = error::panic_text(&*payload).to_owned();
            running.fail(Failure::new(error::EINTERNAL, format!("{entry}: internal error: {text}; please report it")))
        }
    }
}

/// Says what is wrong with a handle that is not the running transaction's.
///
/// # Safety
/// `tx` is NULL or any handle that was ever given.
#[cold]
unsafe fn stray(entry: &str, tx: *mut Given<DtxThread>) -> c_int {
    guard_code(entry, || {
        crate::dtx_run::refuse_in_body(&format!("{entry} on another transaction"))?;
        // SAFETY: handed on.
        unsafe { Given::look(tx) }?;
        Err(Failure::usage(format!(
            "{entry} outside a body: a towa_dtx is good while the body that got it runs, in its thread only"
        )))
    })
}

/// A place in the heap that can be none.
#[cold]
fn outside(running: &mut Running<'_>, entry: &str, at: u64) -> Refused {
    running.in_software();
    let name = &running.pool.name;
    Refused::Failure(Failure::new(
        error::ERANGE,
        format!("{name}: {entry}: {at:#x} is not the address of an aligned word of 8 bytes where blocks of its heap can be"),
    ))
}

#[cold]
fn nowhere(running: &mut Running<'_>, entry: &str) -> Refused {
    running.in_software();
    Refused::Failure(Failure::invalid(format!("{entry}: nowhere to put the result (NULL)")))
}

/// The word at `at`.
///
/// # Safety
/// `tx` is NULL or any handle; `value` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_read(tx: *mut Given<DtxThread>, at: *const u64, value: *mut u64) -> c_int {
    let at = at.addr() as u64;
    // SAFETY: handed on.
    unsafe {
        access("towa_dtx_read", tx, |running| {
            if !running.pool.holds_word(at) {
                return Err(outside(running, "towa_dtx_read", at));
            }
            if value.is_null() {
                return Err(nowhere(running, "towa_dtx_read"));
            }
            let word = running.tx().read(at)?;
            set(value, word);
            Ok(())
        })
    }
}

/// Writes the word at `at`.
///
/// # Safety
/// `tx` is NULL or any handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_write(tx: *mut Given<DtxThread>, at: *mut u64, value: u64) -> c_int {
    let at = at.addr() as u64;
    // SAFETY: handed on.
    unsafe {
        access("towa_dtx_write", tx, |running| {
            if !running.pool.holds_word(at) {
                return Err(outside(running, "towa_dtx_write", at));
            }
            Ok(running.tx().write(at, value)?)
        })
    }
}

/// A block of `size` bytes.
///
/// # Safety
/// `tx` is NULL or any handle; `block` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_alloc(tx: *mut Given<DtxThread>, size: usize, block: *mut *mut c_void) -> c_int {
    // SAFETY: handed on.
    unsafe {
        access("towa_dtx_alloc", tx, |running| {
            running.in_software();
            if block.is_null() {
                return Err(nowhere(running, "towa_dtx_alloc"));
            }
            let at = running.tx().alloc(size)?;
            set(block, std::ptr::with_exposed_provenance_mut(at as usize));
            Ok(())
        })
    }
}

/// Words copied at a time.
const PIECE: usize = 64;

/// Copies bytes into a block that the transaction allocated.
///
/// # Safety
/// `tx` is NULL or any handle; `bytes` is NULL or `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_init(tx: *mut Given<DtxThread>, at: *mut c_void, bytes: *const c_void, size: usize) -> c_int {
    let start = at.addr() as u64;
    // SAFETY: handed on.
    unsafe {
        access("towa_dtx_init", tx, |running| {
            running.in_software();
            let ends = u64::try_from(size).ok().and_then(|size| size.checked_next_multiple_of(WORD));
            if !start.is_multiple_of(WORD) || !ends.is_some_and(|len| running.pool.contains(start, len)) {
                return Err(outside(running, "towa_dtx_init", start));
            }
            let bytes = crate::container::bytes(bytes, size, "content")?;
            for (number, piece) in bytes.chunks(8 * PIECE).enumerate() {
                let mut words = [0; PIECE];
                for (word, eight) in words.iter_mut().zip(piece.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..eight.len()].copy_from_slice(eight);
                    *word = u64::from_ne_bytes(whole);
                }
                let at = start + (number * 8 * PIECE) as u64;
                running.tx().init(at, &words[..piece.len().div_ceil(8)])?;
            }
            Ok(())
        })
    }
}

/// Frees a block when the transaction takes effect.
///
/// # Safety
/// `tx` is NULL or any handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_free(tx: *mut Given<DtxThread>, block: *mut c_void) -> c_int {
    // SAFETY: handed on.
    unsafe {
        access("towa_dtx_free", tx, |running| {
            running.in_software();
            if block.is_null() {
                return Ok(());
            }
            let at = block.addr() as u64;
            if !running.pool.holds_word(at) {
                return Err(outside(running, "towa_dtx_free", at));
            }
            Ok(running.tx().free(at)?)
        })
    }
}

/// Where a root points, as part of what the transaction reads.
///
/// # Safety
/// `tx` is NULL or any handle; `name` is NULL or a C string; `object` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_root(
    tx: *mut Given<DtxThread>,
    name: *const c_char,
    type_tag: u64,
    size: usize,
    object: *mut *mut c_void,
) -> c_int {
    // SAFETY: handed on.
    unsafe {
        access("towa_dtx_root", tx, |running| {
            running.in_software();
            let name = root_name(name, "root name")?;
            if object.is_null() {
                return Err(nowhere(running, "towa_dtx_root"));
            }
            let Some(root) = running.tx().root(name)? else {
                set(object, std::ptr::null_mut());
                return Ok(());
            };
            if root.type_tag != type_tag || root.size != size as u64 {
                let pool = &running.pool.name;
                let (tag, len) = (root.type_tag, root.size);
                let why = format!("{pool}: root '{name}' has type tag {tag:#x} and {len} bytes, not {type_tag:#x} and {size}");
                return Err(Failure::new(error::ETYPE, why).into());
            }
            set(object, root.ptr.as_ptr().cast());
            Ok(())
        })
    }
}

/// Sets or removes a root when the transaction takes effect.
///
/// # Safety
/// `tx` is NULL or any handle; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_set_root(
    tx: *mut Given<DtxThread>,
    name: *const c_char,
    type_tag: u64,
    size: usize,
    object: *mut c_void,
) -> c_int {
    // SAFETY: handed on.
    unsafe {
        access("towa_dtx_set_root", tx, |running| {
            running.in_software();
            let name = root_name(name, "root name")?;
            let root = NonNull::new(object.cast::<u8>()).map(|ptr| Root { ptr, type_tag, size: size as u64 });
            if root.is_some() && !running.pool.contains(object.addr() as u64, size.max(1) as u64) {
                let pool = &running.pool.name;
                let why = format!("{pool}: root '{name}' cannot point to {size} bytes at {object:p}: they do not lie in its heap");
                return Err(Failure::new(error::ERANGE, why).into());
            }
            Ok(running.tx().set_root(name, root)?)
        })
    }
}
