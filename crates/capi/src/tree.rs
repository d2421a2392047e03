//! `towa_tree_*`: durable ordered maps, on a pool of transactions or in a directory of their own.
//!
//! ```text
//!   towa_tree * ─► Given ─► Tree { kept: one of four, sessions counted, pool counted }
//!                             ▲
//!   towa_tree_session * ─► Given ─► TreeSession { Mutex<way to it>, tree }        tree_session; loading it: tree_load
//! ```
//!
//! What must always hold: a tree outlives its sessions, and a pool its trees; nothing here runs inside the body of a transaction, whose
//! end it could wait for.

use crate::container::guard_count;
use crate::dtx_pool::{DtxPool, User};
use crate::dtx_run::refuse_in_body;
use crate::error::{self, Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use crate::layout::{LEN_MAX, OpenHow, medium_of, read_sized};
use crate::pool::root_name;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use towa_tree::{BpTree, FpTree, Key, OrderedMap, fptree};

/// `towa_tree_open`'s keys: `uint64_t`.
pub const TREE_U64: c_uint = 0;
/// `towa_tree_open`'s keys: byte strings.
pub const TREE_BYTES: c_uint = 1;

/// `towa_tree_options`: how to open a tree in a directory; zero means the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TreeOptions {
    /// `sizeof(towa_tree_options)` of the caller's header.
    pub size: u32,
    /// `TOWA_OPEN_OR_CREATE` (0), `TOWA_OPEN_EXISTING` (1), `TOWA_CREATE_NEW` (2).
    pub open: u32,
    /// `TOWA_MEDIUM_DETECT` (0), `_DAX` (1), `_FILE` (2), `_RAM` (3).
    pub medium: u32,
    /// Zero.
    pub reserved: u32,
    /// Capacity in bytes.
    pub len: u64,
}

/// The maps that there are.
#[derive(Debug)]
pub(crate) enum Kept {
    BpU64(BpTree<u64>),
    BpBytes(BpTree<[u8]>),
    FpU64(FpTree<u64>),
    FpBytes(FpTree<[u8]>),
}

/// What a `towa_tree *` leads to.
#[derive(Debug)]
pub struct Tree {
    /// Written by who loads it, while no session is open.
    pub(crate) kept: RwLock<Kept>,
    pub(crate) name: String,
    /// Sessions open. It grows under the lock above.
    pub(crate) sessions: AtomicUsize,
    /// Of the pool that it lies in.
    _user: Option<User>,
}

impl Kind for Tree {
    const TAG: u64 = u64::from_le_bytes(*b"towatree");
    const WHAT: &'static str = "towa_tree";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<Tree> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

impl From<towa_tree::Error> for Failure {
    fn from(e: towa_tree::Error) -> Self {
        use towa_alloc::Error as A;
        use towa_tree::Error as E;
        let code = match e {
            E::Tx(e) => return e.into(),
            E::Media(e) => return towa_epoch::Error::Heap(e.into()).into(),
            E::Alloc(A::Exists { .. }) => error::EEXIST,
            E::Alloc(A::Missing { .. }) => error::ENOENT,
            E::Alloc(A::Options { .. }) => error::EINVAL,
            E::Alloc(A::Foreign { .. } | A::Newer { .. }) => error::EDAMAGED,
            E::Alloc(A::WrongKind { .. }) => error::ETYPE,
            E::Alloc(A::Failed { .. }) => error::EPOISONED,
            E::KeyTooLong { .. } => error::EINVAL,
            E::OutOfSpace { .. } => error::ENOSPC,
            E::Damaged { .. } => error::EDAMAGED,
            E::InUse { .. } => error::EBUSY,
            E::Mismatch { .. } => error::ETYPE,
            _ => error::EINTERNAL,
        };
        Self::new(code, e.to_string())
    }
}

fn check_keys(keys: c_uint) -> Result<(), Failure> {
    match keys {
        TREE_U64 | TREE_BYTES => Ok(()),
        other => Err(Failure::invalid(format!("a tree's keys are {other}, which towa_tx.h does not define"))),
    }
}

/// The B+-tree named `name`, created if there is none.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_open(pool: *mut Given<DtxPool>, name: *const c_char, keys: c_uint) -> *mut Given<Tree> {
    guard("towa_tree_open", || {
        refuse_in_body("towa_tree_open")?;
        check_keys(keys)?;
        // SAFETY: handed on.
        let (pool, name) = unsafe { (DtxPool::of(pool)?, root_name(name, "tree name")?) };
        let user = User::tree(pool);
        let kept = match keys {
            TREE_U64 => Kept::BpU64(BpTree::open_or_create(&pool.pool, name)?),
            _ => Kept::BpBytes(BpTree::open_or_create(&pool.pool, name)?),
        };
        let name = format!("{}, tree '{name}'", pool.name);
        Ok(Given::give(Arc::new(Tree { kept: RwLock::new(kept), name, sessions: AtomicUsize::new(0), _user: Some(user) })))
    })
    .unwrap_or(ptr::null_mut())
}

/// Removes the B+-tree named `name`, and gives its blocks back.
///
/// # Safety
/// As [`towa_tree_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_destroy(pool: *mut Given<DtxPool>, name: *const c_char, keys: c_uint) -> c_int {
    guard_code("towa_tree_destroy", || {
        refuse_in_body("towa_tree_destroy")?;
        check_keys(keys)?;
        // SAFETY: handed on.
        let (pool, name) = unsafe { (DtxPool::of(pool)?, root_name(name, "tree name")?) };
        if pool.pool.root(name).is_none() {
            return Err(Failure::new(error::ENOENT, format!("{}: there is no tree '{name}' to destroy", pool.name)));
        }
        let _user = User::tree(pool);
        Ok(match keys {
            TREE_U64 => BpTree::<u64>::destroy(&pool.pool, name),
            _ => BpTree::<[u8]>::destroy(&pool.pool, name),
        }?)
    })
}

/// Opens or creates the FPTree in a directory.
fn open_fp<K: Key + ?Sized>(path: &Path, how: OpenHow, medium: Option<towa_media::Kind>, len: u64) -> Result<FpTree<K>, Failure> {
    let failed = |e: towa_media::Error| Failure::from(towa_epoch::Error::Heap(e.into()));
    let options = if len == 0 { fptree::Options::default() } else { fptree::Options { len, ..fptree::Options::default() } };
    let create = || {
        // Before there is a directory.
        options.check::<K>()?;
        Ok(FpTree::create(towa_media::open_dir(path, medium, true).map_err(failed)?, &options)?)
    };
    if how == OpenHow::CreateNew {
        return create();
    }
    let found = towa_media::open_dir(path, medium, false).map_err(failed).and_then(|m| FpTree::open(m).map_err(Failure::from));
    match found {
        Err(none) if none.code == error::ENOENT && how == OpenHow::OpenOrCreate => create(),
        other => other,
    }
}

/// The FPTree in directory `path`.
///
/// # Safety
/// `path` is NULL or a C string; `options` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_open_fp(path: *const c_char, options: *const TreeOptions, keys: c_uint) -> *mut Given<Tree> {
    guard("towa_tree_open_fp", || {
        refuse_in_body("towa_tree_open_fp")?;
        check_keys(keys)?;
        let defaults = TreeOptions { size: size_of::<TreeOptions>() as u32, ..TreeOptions::default() };
        // SAFETY: handed on; TreeOptions has no invalid bit patterns and begins with its size.
        let asked = unsafe { read_sized(options, defaults, "towa_tree_options", "TOWA_TREE_OPTIONS_INIT") }?;
        let unknown = |field: &str, value: u64| {
            Failure::invalid(format!("towa_tree_options.{field} is {value}, which towa_tx.h does not define"))
        };
        let how = OpenHow::of(asked.open).ok_or_else(|| unknown("open", asked.open.into()))?;
        let medium = medium_of(asked.medium).map_err(|()| unknown("medium", asked.medium.into()))?;
        if asked.reserved != 0 {
            return Err(unknown("reserved", asked.reserved.into()));
        }
        if asked.len > LEN_MAX {
            return Err(unknown("len", asked.len));
        }
        if path.is_null() {
            return Err(Failure::invalid("no path (NULL); name the directory of the tree"));
        }
        // SAFETY: a C string, by this function's contract.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let kept = match keys {
            TREE_U64 => Kept::FpU64(open_fp(path, how, medium, asked.len)?),
            _ => Kept::FpBytes(open_fp(path, how, medium, asked.len)?),
        };
        let name = path.display().to_string();
        Ok(Given::give(Arc::new(Tree { kept: RwLock::new(kept), name, sessions: AtomicUsize::new(0), _user: None })))
    })
    .unwrap_or(ptr::null_mut())
}

/// Gives the handle back; the tree stays.
///
/// # Safety
/// `tree` is NULL or a tree's handle that nobody uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_close(tree: *mut Given<Tree>) -> c_int {
    guard_code("towa_tree_close", || {
        refuse_in_body("towa_tree_close")?;
        // SAFETY: by this function's contract.
        let handle = unsafe { Given::look(tree) }?;
        let sessions = handle.sessions.load(Ordering::Acquire);
        if sessions != 0 {
            let why = format!("{}: {sessions} session(s) are open; close them before the tree", handle.name);
            return Err(Failure::new(error::EBUSY, why));
        }
        // SAFETY: by this function's contract.
        let handle = unsafe { Given::take(tree) }?;
        let tree = Arc::into_inner(handle)
            .ok_or_else(|| Failure::usage("the tree was used by another thread while it was being closed"))?;
        match tree.kept.into_inner() {
            Kept::BpU64(tree) => Ok(tree.close()?),
            Kept::BpBytes(tree) => Ok(tree.close()?),
            Kept::FpU64(tree) => Ok(tree.close()?),
            Kept::FpBytes(tree) => Ok(tree.close()?),
        }
    })
}

/// Number of keys, or a negative code.
///
/// # Safety
/// `tree` is NULL or a tree's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_count(tree: *mut Given<Tree>) -> i64 {
    guard_count("towa_tree_count", || {
        refuse_in_body("towa_tree_count")?;
        // SAFETY: handed on.
        Ok(match &*unsafe { Given::look(tree) }?.kept.read() {
            Kept::BpU64(tree) => tree.count(),
            Kept::BpBytes(tree) => tree.count(),
            Kept::FpU64(tree) => tree.count(),
            Kept::FpBytes(tree) => tree.count(),
        }?)
    })
}

/// Checks the whole structure.
///
/// # Safety
/// `tree` is NULL or a tree's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_tree_check(tree: *mut Given<Tree>) -> c_int {
    guard_code("towa_tree_check", || {
        refuse_in_body("towa_tree_check")?;
        // SAFETY: handed on.
        Ok(match &*unsafe { Given::look(tree) }?.kept.read() {
            Kept::BpU64(tree) => tree.check(),
            Kept::BpBytes(tree) => tree.check(),
            Kept::FpU64(tree) => tree.check(),
            Kept::FpBytes(tree) => tree.check(),
        }?)
    })
}
