//! `towa_tree_session_*` and the operations on trees.
//!
//! What must always hold: a session is used by one thread at a time, and not by what a scan calls: it is locked meanwhile, and whoever
//! else comes is refused.

use crate::container::{bytes, guard_bool, set};
use crate::dtx_run::refuse_in_body;
use crate::error::{self, Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use crate::map::REVERSE;
use crate::tree::{Kept, Tree};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::{Bound, ControlFlow};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towa_tree::{Direction, Session};

/// `towa_tree_scan`'s flag: without `from` itself.
pub const TREE_AFTER_FROM: c_uint = 2;
/// `towa_tree_scan`'s flag: with `to` itself.
pub const TREE_WITH_TO: c_uint = 4;

/// Called for each entry; what is not 0 ends the scan and is handed to the caller.
pub type TreeVisit = unsafe extern "C" fn(*const c_void, usize, u64, *mut c_void) -> c_int;

/// A way to either kind of tree, by the kind of its keys.
enum Way {
    U64(Box<dyn Session<u64> + Send>),
    Bytes(Box<dyn Session<[u8]> + Send>),
}

/// What a `towa_tree_session *` leads to.
pub struct TreeSession {
    /// Borrows the tree, so it is declared first and goes first.
    way: Mutex<Way>,
    tree: Counted,
}

/// The tree, with one session more.
#[derive(Debug)]
struct Counted(Arc<Tree>);

impl std::fmt::Debug for TreeSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeSession").field("tree", &self.tree).finish_non_exhaustive()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Kind for TreeSession {
    const TAG: u64 = u64::from_le_bytes(*b"towatses");
    const WHAT: &'static str = "towa_tree_session";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<TreeSession> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

impl Way {
    fn to(kept: &'static Kept) -> Result<Way, Failure> {
        Ok(match kept {
            Kept::BpU64(tree) => Way::U64(Box::new(tree.session()?)),
            Kept::BpBytes(tree) => Way::Bytes(Box::new(tree.session()?)),
            Kept::FpU64(tree) => Way::U64(Box::new(tree.session())),
            Kept::FpBytes(tree) => Way::Bytes(Box::new(tree.session())),
        })
    }
}

/// A way to the tree for one thread at a time.
///
/// # Safety
/// `tree` is NULL or a tree's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_session_open(tree: *mut Given<Tree>) -> *mut Given<TreeSession> {
    guard("towa_tree_session_open", || {
        refuse_in_body("towa_tree_session_open")?;
        // SAFETY: handed on.
        let tree = Arc::clone(unsafe { Given::look(tree) }?);
        // Nobody loads it now, and then there is a session.
        let lock = tree.kept.read();
        // SAFETY: the session holds the Arc, so the tree stays where it is until after `way` is gone; 'static stands for that. Until then
        // it is counted, too, so nobody writes.
        let lasting: &'static Kept = unsafe { &*tree.kept.data_ptr() };
        let way = Mutex::new(Way::to(lasting)?);
        tree.sessions.fetch_add(1, Ordering::AcqRel);
        drop(lock);
        Ok(Given::give(Arc::new(TreeSession { way, tree: Counted(tree) })))
    })
    .unwrap_or(ptr::null_mut())
}

/// Gives it back.
///
/// # Safety
/// `session` is NULL or a handle that nobody uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_session_close(session: *mut Given<TreeSession>) -> c_int {
    guard_code("towa_tree_session_close", || {
        refuse_in_body("towa_tree_session_close")?;
        // SAFETY: by this function's contract.
        let handle = unsafe { Given::look(session) }?;
        drop(handle.way.try_lock().ok_or_else(|| in_use(handle))?);
        // SAFETY: by this function's contract.
        unsafe { Given::take(session) }.map(drop)
    })
}

fn in_use(session: &TreeSession) -> Failure {
    Failure::usage(format!(
        "{}: this session is in use, by another thread or by the scan that this is called from; open one more",
        session.tree.0.name
    ))
}

fn key_of(key: &[u8], session: &TreeSession) -> Result<u64, Failure> {
    let whole = <[u8; 8]>::try_from(key).map_err(|_| {
        Failure::invalid(format!("{}: its keys are uint64_t; this one has {} bytes, not 8", session.tree.0.name, key.len()))
    })?;
    Ok(u64::from_ne_bytes(whole))
}

/// Calls what is given for the session's kind of keys, with the key in that form.
macro_rules! with {
    ($session:expr, $key:expr, |$way:ident, $as:ident| $call:expr) => {
        match &mut *$session.way.try_lock().ok_or_else(|| in_use($session))? {
            Way::U64($way) => {
                let $as = &key_of($key, $session)?;
                $call?
            }
            Way::Bytes($way) => {
                let $as = $key;
                $call?
            }
        }
    };
}

/// The session and the key of an operation.
///
/// # Safety
/// `session` is NULL or a handle; `key` has the length said.
unsafe fn given<'a>(
    entry: &str,
    session: *mut Given<TreeSession>,
    key: *const c_void,
    key_len: usize,
) -> Result<(&'a TreeSession, &'a [u8]), Failure> {
    refuse_in_body(entry)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { (Given::look(session)?, bytes(key, key_len, "key")?) })
}

/// Adds a key that is not there.
///
/// # Safety
/// `session` is NULL or a session's handle; `key` has the length said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_insert(
    session: *mut Given<TreeSession>,
    key: *const c_void,
    key_len: usize,
    value: u64,
) -> c_int {
    guard_bool("towa_tree_insert", || {
        // SAFETY: handed on.
        let (session, raw) = unsafe { given("towa_tree_insert", session, key, key_len) }?;
        Ok(with!(session, raw, |way, key| way.insert(key, value)))
    })
}

/// Adds a key or changes its value.
///
/// # Safety
/// As [`towa_tree_insert`]; `old` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_upsert(
    session: *mut Given<TreeSession>,
    key: *const c_void,
    key_len: usize,
    value: u64,
    old: *mut u64,
) -> c_int {
    guard_bool("towa_tree_upsert", || {
        // SAFETY: handed on.
        let (session, raw) = unsafe { given("towa_tree_upsert", session, key, key_len) }?;
        let before = with!(session, raw, |way, key| way.upsert(key, value));
        // SAFETY: handed on.
        Ok(!unsafe { hand_out(before, old) })
    })
}

/// The value of a key.
///
/// # Safety
/// As [`towa_tree_insert`]; `value` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_get(
    session: *mut Given<TreeSession>,
    key: *const c_void,
    key_len: usize,
    value: *mut u64,
) -> c_int {
    guard_bool("towa_tree_get", || {
        // SAFETY: handed on.
        let (session, raw) = unsafe { given("towa_tree_get", session, key, key_len) }?;
        let found = with!(session, raw, |way, key| way.get(key));
        // SAFETY: handed on.
        Ok(unsafe { hand_out(found, value) })
    })
}

/// Removes a key.
///
/// # Safety
/// As [`towa_tree_insert`]; `old` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_remove(
    session: *mut Given<TreeSession>,
    key: *const c_void,
    key_len: usize,
    old: *mut u64,
) -> c_int {
    guard_bool("towa_tree_remove", || {
        // SAFETY: handed on.
        let (session, raw) = unsafe { given("towa_tree_remove", session, key, key_len) }?;
        let before = with!(session, raw, |way, key| way.remove(key));
        // SAFETY: handed on.
        Ok(unsafe { hand_out(before, old) })
    })
}

/// Stores a value that is there; whether it is.
///
/// # Safety
/// `to` is NULL or writable.
unsafe fn hand_out(found: Option<u64>, to: *mut u64) -> bool {
    if let Some(value) = found {
        // SAFETY: by this function's contract.
        unsafe { set(to, value) };
    }
    found.is_some()
}

/// Visits the entries between two keys.
///
/// # Safety
/// `session` is NULL or a session's handle; `from` and `to` are NULL (no bound) or have the lengths said; `visit` is NULL or callable,
/// and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_scan(
    session: *mut Given<TreeSession>,
    from: *const c_void,
    from_len: usize,
    to: *const c_void,
    to_len: usize,
    flags: c_uint,
    visit: Option<TreeVisit>,
    arg: *mut c_void,
) -> c_int {
    guard("towa_tree_scan", || {
        refuse_in_body("towa_tree_scan")?;
        let visit = visit.ok_or_else(|| Failure::invalid("towa_tree_scan: nothing to call (NULL)"))?;
        if flags & !(REVERSE | TREE_AFTER_FROM | TREE_WITH_TO) != 0 {
            return Err(Failure::invalid(format!("towa_tree_scan: flags are {flags:#x}, which towa_tx.h does not define")));
        }
        let direction = if flags & REVERSE != 0 { Direction::Backward } else { Direction::Forward };
        // SAFETY: by this function's contract. The Arc keeps the session if `visit` tries to close it.
        let session = &*Arc::clone(unsafe { Given::look(session) }?);
        // SAFETY: by this function's contract.
        let (from, to) = unsafe {
            (
                if from.is_null() { None } else { Some(bytes(from, from_len, "lower bound")?) },
                if to.is_null() { None } else { Some(bytes(to, to_len, "upper bound")?) },
            )
        };
        let mut stop = error::OK;
        // SAFETY: callable, by this function's contract. Nothing but this session is locked meanwhile.
        let mut each = |key: *const u8, len: usize, value: u64| match unsafe { visit(key.cast(), len, value, arg) } {
            0 => ControlFlow::Continue(()),
            code => {
                stop = code;
                ControlFlow::Break(())
            }
        };
        match &mut *session.way.try_lock().ok_or_else(|| in_use(session))? {
            Way::U64(way) => {
                let from = from.map(|key| key_of(key, session)).transpose()?;
                let to = to.map(|key| key_of(key, session)).transpose()?;
                let bounds = bounds(from.as_ref(), to.as_ref(), flags);
                way.scan(bounds, direction, &mut |key, value| each(ptr::from_ref(key).cast(), 8, value))?;
            }
            Way::Bytes(way) => {
                way.scan(bounds(from, to, flags), direction, &mut |key, value| each(key.as_ptr(), key.len(), value))?;
            }
        }
        Ok(stop)
    })
    .unwrap_or_else(|code| code)
}

fn bounds<T: Copy>(from: Option<T>, to: Option<T>, flags: c_uint) -> (Bound<T>, Bound<T>) {
    let low = if flags & TREE_AFTER_FROM != 0 { Bound::Excluded } else { Bound::Included };
    let high = if flags & TREE_WITH_TO != 0 { Bound::Included } else { Bound::Excluded };
    (from.map_or(Bound::Unbounded, low), to.map_or(Bound::Unbounded, high))
}
