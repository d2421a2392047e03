//! Codes, the thread's last error, and the wall that no panic passes.
//!
//! A failure is a [`Failure`] until the entry function returns; [`guard`] stores its message for `towa_last_error` and gives C the
//! code. The codes are those of `include/towa.h` (`tests/abi.rs` compares them).

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Success.
pub const OK: c_int = 0;
/// An argument makes no sense.
pub const EINVAL: c_int = -1;
/// Out of order.
pub const EUSAGE: c_int = -2;
/// Heap or medium full.
pub const ENOSPC: c_int = -3;
/// The pool stays at its last durable epoch.
pub const EPOISONED: c_int = -4;
/// Owned by another process, or threads are attached.
pub const EBUSY: c_int = -5;
/// No such pool or root.
pub const ENOENT: c_int = -6;
/// A pool is there already.
pub const EEXIST: c_int = -7;
/// The operating system refused or failed.
pub const EIO: c_int = -8;
/// Not possible here.
pub const EUNSUPPORTED: c_int = -9;
/// A root of another type or size.
pub const ETYPE: c_int = -10;
/// Not in the heap of an open pool.
pub const ERANGE: c_int = -11;
/// Not durable within the time given.
pub const ETIMEDOUT: c_int = -12;
/// A bug in the library.
pub const EINTERNAL: c_int = -13;
/// Not a pool, newer, or damaged.
pub const EDAMAGED: c_int = -14;
/// The transaction writes more than it reserved, or than the log can hold.
pub const ETOOBIG: c_int = -15;

/// Every code with its name in the header and what `towa_strerror` says.
pub const CODES: [(c_int, &str, &CStr); 16] = [
    (OK, "TOWA_OK", c"success"),
    (EINVAL, "TOWA_EINVAL", c"invalid argument"),
    (EUSAGE, "TOWA_EUSAGE", c"called out of order"),
    (ENOSPC, "TOWA_ENOSPC", c"out of space"),
    (EPOISONED, "TOWA_EPOISONED", c"pool poisoned; open it anew to recover its last durable epoch"),
    (EBUSY, "TOWA_EBUSY", c"pool in use"),
    (ENOENT, "TOWA_ENOENT", c"no such pool or root"),
    (EEXIST, "TOWA_EEXIST", c"pool exists already"),
    (EIO, "TOWA_EIO", c"input/output error"),
    (EUNSUPPORTED, "TOWA_EUNSUPPORTED", c"not supported by this medium or machine"),
    (ETYPE, "TOWA_ETYPE", c"root of another type or size"),
    (ERANGE, "TOWA_ERANGE", c"address outside the heap"),
    (ETIMEDOUT, "TOWA_ETIMEDOUT", c"not durable in time"),
    (EINTERNAL, "TOWA_EINTERNAL", c"internal error"),
    (ETOOBIG, "TOWA_ETOOBIG", c"transaction larger than reserved, or than the log"),
    (EDAMAGED, "TOWA_EDAMAGED", c"not a pool of this version, or damaged"),
];

/// A failure on its way to C.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: c_int, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(EUSAGE, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(EINVAL, message)
    }
}

impl From<towa_epoch::Error> for Failure {
    fn from(e: towa_epoch::Error) -> Self {
        use towa_epoch::Error as E;
        use towa_heap::Error as H;
        use towa_media::Error as M;
        let code = match &e {
            E::OutOfSpace { .. } => ENOSPC,
            E::NotReserved { .. } | E::TooLarge { .. } => ETOOBIG,
            E::Poisoned { .. } => EPOISONED,
            E::Usage(_) => EUSAGE,
            E::Heap(H::Missing { .. } | H::Media(M::NotFound { .. })) => ENOENT,
            E::Heap(H::Exists { .. } | H::Media(M::Exists { .. })) => EEXIST,
            E::Heap(
                H::Foreign { .. }
                | H::Newer { .. }
                | H::WrongDoor { .. }
                | H::Damaged { .. }
                | H::CopiedWhileOpen { .. }
                | H::Media(M::Range { .. }),
            ) => EDAMAGED,
            E::Heap(H::Options { .. }) => EINVAL,
            E::Heap(H::LogFull { .. } | H::Media(M::Full { .. })) => ENOSPC,
            E::Heap(H::Media(M::Busy { .. })) => EBUSY,
            E::Heap(H::Media(M::Unsupported { .. })) => EUNSUPPORTED,
            E::Heap(H::Media(M::Io { source, .. })) if source.kind() == io::ErrorKind::NotFound => ENOENT,
            _ => EIO,
        };
        Self::new(code, e.to_string())
    }
}

impl From<towa_containers::Error> for Failure {
    fn from(e: towa_containers::Error) -> Self {
        use towa_containers::Error as E;
        let code = match e {
            E::Epoch(e) => return e.into(),
            E::WrongKind { .. } => ETYPE,
            E::TooLong { .. } => EINVAL,
            E::KeyNotLocked(_) => EUSAGE,
            E::Full(_) => ENOSPC,
            E::Damaged(_) => EDAMAGED,
            _ => EINTERNAL,
        };
        Self::new(code, e.to_string())
    }
}

thread_local! {
    static LAST: RefCell<(c_int, Option<CString>)> = const { RefCell::new((OK, None)) };
}

/// Makes `failure` the thread's last error; gives its code.
pub(crate) fn record(failure: Failure) -> c_int {
    let code = failure.code;
    let text = CString::new(failure.message).unwrap_or_else(|e| {
        // A path with a NUL inside: keep what comes before it.
        let end = e.nul_position();
        CString::new(&e.into_vec()[..end]).unwrap_or_default()
    });
    // The thread may be past its destructors; then nobody can ask for the message any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (code, Some(text)));
    code
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs what panics when the caller has made a mistake, without the panic's report on standard error: what it says is in the error that
/// the caller gets.
pub(crate) fn quietly<T>(call: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                report(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    // AssertUnwindSafe: whoever calls this treats what may be half done as failed.
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_QUIET.set(false);
    result
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

/// Runs an entry's body; a failure or a panic becomes the last error and `Err(code)`.
pub(crate) fn guard<T>(entry: &str, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, c_int> {
    // AssertUnwindSafe: after a panic the transaction it happened in is aborted by its holder, and the engine's own state is behind locks
    // that it poisons or keeps right itself.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => Err(record(failure)),
        Err(payload) => {
            let text = panic_text(&*payload).to_owned();
            Err(record(Failure::new(EINTERNAL, format!("{entry}: internal error: {text}; please report it"))))
        }
    }
}

/// [`guard`] for entries that return a code only.
pub(crate) fn guard_code(entry: &str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guard(entry, body).err().unwrap_or(OK)
}

/// What `code` means.
#[unsafe(no_mangle)]
pub extern "C" fn towa_strerror(code: c_int) -> *const c_char {
    CODES.iter().find(|c| c.0 == code).map_or(c"unknown error code", |c| c.2).as_ptr()
}

/// The calling thread's last failure; valid until its next one.
#[unsafe(no_mangle)]
pub extern "C" fn towa_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_deref().map(CStr::as_ptr)).ok().flatten().unwrap_or(c"".as_ptr())
}

/// The code of the calling thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn towa_last_error_code() -> c_int {
    LAST.try_with(|last| last.borrow().0).unwrap_or(OK)
}

/// `TOWA_VERSION` of this library.
#[unsafe(no_mangle)]
pub extern "C" fn towa_version() -> u32 {
    const fn number(text: &str) -> u32 {
        let (bytes, mut i, mut n) = (text.as_bytes(), 0, 0);
        while i < bytes.len() {
            n = n * 10 + (bytes[i] - b'0') as u32;
            i += 1;
        }
        n
    }
    const {
        number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
            + number(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
            + number(env!("CARGO_PKG_VERSION_PATCH"))
    }
}
