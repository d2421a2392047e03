//! `towa_dtx_pool_*`: pools of durable transactions as C sees them.
//!
//! A `towa_dtx_pool *` leads to an `Arc<DtxPool>`, which registered threads and open trees hold, too; they are counted, and a pool is
//! closed only when there are none. What waits for the checkpointer is refused inside a body: it may wait for the transaction that runs.

use crate::container::set;
use crate::dtx_layout::{DTX_VOLATILE, DtxOptions, DtxStats};
use crate::dtx_run::refuse_in_body;
use crate::error::{self, Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use crate::layout::OpenHow;
use crate::pool::utf8;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use towa_tx::Pool;

/// What a `towa_dtx_pool *` leads to.
#[derive(Debug)]
pub struct DtxPool {
    pub(crate) pool: Pool,
    pub(crate) name: String,
    /// Where blocks may be: what bodies may read and write.
    base: u64,
    len: u64,
    /// Threads registered.
    threads: AtomicUsize,
    /// Trees open.
    trees: AtomicUsize,
}

impl Kind for DtxPool {
    const TAG: u64 = u64::from_le_bytes(*b"towa:dtx");
    const WHAT: &'static str = "towa_dtx_pool";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<DtxPool> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

impl DtxPool {
    /// Whether every byte of the range lies in the heap.
    #[inline]
    pub(crate) fn contains(&self, at: u64, len: u64) -> bool {
        at >= self.base && len <= self.len && at - self.base <= self.len - len
    }

    /// Whether `at` is the address of a word in the heap.
    #[inline]
    pub(crate) fn holds_word(&self, at: u64) -> bool {
        at.is_multiple_of(towa_tx::WORD) && self.contains(at, towa_tx::WORD)
    }

    /// The pool behind a `towa_dtx_pool *`, for the time of a call.
    ///
    /// # Safety
    /// `pool` is NULL or a handle, and not closed before the reference is dropped.
    pub(crate) unsafe fn of<'a>(pool: *const Given<DtxPool>) -> Result<&'a Arc<DtxPool>, Failure> {
        // SAFETY: handed on.
        unsafe { Given::look(pool) }
    }
}

/// Somebody who has something of a pool, counted while he has.
#[derive(Debug)]
pub(crate) struct User {
    pool: Arc<DtxPool>,
    of: fn(&DtxPool) -> &AtomicUsize,
}

impl User {
    /// A registered thread.
    pub(crate) fn thread(pool: &Arc<DtxPool>) -> User {
        User::counted(pool, |pool| &pool.threads)
    }

    /// An open tree.
    pub(crate) fn tree(pool: &Arc<DtxPool>) -> User {
        User::counted(pool, |pool| &pool.trees)
    }

    fn counted(pool: &Arc<DtxPool>, of: fn(&DtxPool) -> &AtomicUsize) -> User {
        of(pool).fetch_add(1, Ordering::AcqRel);
        User { pool: Arc::clone(pool), of }
    }

    pub(crate) fn pool(&self) -> &Arc<DtxPool> {
        &self.pool
    }
}

impl Drop for User {
    fn drop(&mut self) {
        (self.of)(&self.pool).fetch_sub(1, Ordering::AcqRel);
    }
}

impl From<towa_tx::Error> for Failure {
    fn from(e: towa_tx::Error) -> Self {
        use towa_tx::Error as E;
        let code = match e {
            // The codes of the heap's and the medium's failures are the same at every door.
            E::Heap(e) => return towa_epoch::Error::Heap(e).into(),
            E::OutOfSpace { .. } => error::ENOSPC,
            E::TooLarge { .. } => error::ETOOBIG,
            E::TooManyThreads { .. } => error::EBUSY,
            E::Poisoned { .. } => error::EPOISONED,
            E::Usage(_) | E::Aborted(_) | E::Stale => error::EUSAGE,
            _ => error::EINTERNAL,
        };
        Self::new(code, e.to_string())
    }
}

/// # Safety
/// `path` is NULL or a C string; `options` as in [`DtxOptions::read`].
unsafe fn open(path: *const c_char, options: *const DtxOptions) -> Result<*mut Given<DtxPool>, Failure> {
    refuse_in_body("towa_dtx_pool_open")?;
    // SAFETY: handed on.
    let asked = unsafe { DtxOptions::read(options) }?;
    let (how, options) = asked.to_engine()?;
    let (pool, name) = if asked.flags & DTX_VOLATILE != 0 {
        (Pool::volatile(&options)?, String::from("volatile pool"))
    } else {
        if path.is_null() {
            return Err(Failure::invalid("no path (NULL); name the directory of the pool"));
        }
        // SAFETY: a C string, by this function's contract.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
        let pool = match how {
            OpenHow::OpenOrCreate => Pool::open_or_create(path, &options),
            OpenHow::OpenExisting => Pool::open(path, &options),
            OpenHow::CreateNew => Pool::create(path, &options),
        };
        // What the engine calls wrong usage of its options is, from here, an argument or a machine that cannot do it.
        let pool = pool.map_err(|e| match e {
            towa_tx::Error::Usage(why) if asked.tm == 1 => Failure::new(error::EUNSUPPORTED, why),
            towa_tx::Error::Usage(why) => Failure::invalid(why),
            e => e.into(),
        })?;
        (pool, path.display().to_string())
    };
    let (base, len) = pool.block_range();
    Ok(Given::give(Arc::new(DtxPool { pool, name, base, len, threads: AtomicUsize::new(0), trees: AtomicUsize::new(0) })))
}

/// Opens, recovers or creates a pool of transactions.
///
/// # Safety
/// `path` is NULL or a C string; `options` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_pool_open(path: *const c_char, options: *const DtxOptions) -> *mut Given<DtxPool> {
    // SAFETY: handed on.
    guard("towa_dtx_pool_open", || unsafe { open(path, options) }).unwrap_or(ptr::null_mut())
}

/// Brings up the image and closes.
///
/// # Safety
/// `pool` is NULL or a pool's handle that nobody uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_pool_close(pool: *mut Given<DtxPool>) -> c_int {
    guard_code("towa_dtx_pool_close", || {
        refuse_in_body("towa_dtx_pool_close")?;
        // SAFETY: by this function's contract.
        let handle = unsafe { DtxPool::of(pool) }?;
        let (threads, trees) = (handle.threads.load(Ordering::Acquire), handle.trees.load(Ordering::Acquire));
        if threads + trees != 0 {
            return Err(Failure::new(
                error::EBUSY,
                format!(
                    "{}: {threads} thread(s) are registered and {trees} tree(s) are open; unregister the former and close the latter \
                     before closing the pool",
                    handle.name
                ),
            ));
        }
        // SAFETY: by this function's contract.
        let handle = unsafe { Given::take(pool) }?;
        let handle = Arc::into_inner(handle)
            .ok_or_else(|| Failure::usage("the pool was used by another thread while it was being closed"))?;
        Ok(handle.pool.close()?)
    })
}

/// Returns when what was committed is durable.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_pool_sync(pool: *mut Given<DtxPool>) -> c_int {
    guard_code("towa_dtx_pool_sync", || {
        refuse_in_body("towa_dtx_pool_sync")?;
        // SAFETY: handed on.
        Ok(unsafe { DtxPool::of(pool) }?.pool.sync()?)
    })
}

/// Brings up the image.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_pool_checkpoint(pool: *mut Given<DtxPool>) -> c_int {
    guard_code("towa_dtx_pool_checkpoint", || {
        refuse_in_body("towa_dtx_pool_checkpoint")?;
        // SAFETY: handed on.
        Ok(unsafe { DtxPool::of(pool) }?.pool.checkpoint()?)
    })
}

/// Where a root points.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `name` is NULL or a C string; `object` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_pool_root(
    pool: *mut Given<DtxPool>,
    name: *const c_char,
    type_tag: u64,
    size: usize,
    object: *mut *mut c_void,
) -> c_int {
    guard_code("towa_dtx_pool_root", || {
        // SAFETY: by this function's contract.
        let (handle, name) = unsafe { (DtxPool::of(pool)?, utf8(name, "root name")?) };
        if object.is_null() {
            return Err(Failure::invalid("towa_dtx_pool_root: nowhere to put the object's address (NULL)"));
        }
        let root = handle.pool.root(name).ok_or_else(|| {
            Failure::new(error::ENOENT, format!("{}: no root '{name}'; set it in a transaction first", handle.name))
        })?;
        if root.type_tag != type_tag || root.size != size as u64 {
            return Err(Failure::new(
                error::ETYPE,
                format!(
                    "{}: root '{name}' has type tag {:#x} and {} bytes, not {type_tag:#x} and {size}",
                    handle.name, root.type_tag, root.size
                ),
            ));
        }
        // SAFETY: not NULL, so writable.
        unsafe { set(object, root.ptr.as_ptr().cast()) };
        Ok(())
    })
}

/// First address and length of the heap.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `base` and `len` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_pool_heap(pool: *mut Given<DtxPool>, base: *mut *mut c_void, len: *mut u64) -> c_int {
    guard_code("towa_dtx_pool_heap", || {
        // SAFETY: handed on.
        let handle = unsafe { DtxPool::of(pool) }?;
        // SAFETY: NULL or writable, by this function's contract.
        unsafe {
            let (first, all) = handle.pool.heap_range();
            set(base, first as *mut c_void);
            set(len, all);
        }
        Ok(())
    })
}

/// The pool's figures.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `stats` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_dtx_pool_stats(pool: *mut Given<DtxPool>, stats: *mut DtxStats) -> c_int {
    guard_code("towa_dtx_pool_stats", || {
        // SAFETY: handed on.
        let filled = DtxStats::of(&unsafe { DtxPool::of(pool) }?.pool);
        // SAFETY: handed on.
        unsafe { filled.write(stats) }
    })
}
