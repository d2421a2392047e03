//! `towa_pool_*`, `towa_init`, `towa_finalize`: pools as C sees them.
//!
//! A `towa_pool *` leads to an `Arc<Handle>`; the threads attached to it hold clones, so it is freed by the close that finds none of them
//! left. Open pools are also listed in [`OPEN`], where a mark by address looks for the heap it falls in.

use crate::container::set;
use crate::error::{self, Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use crate::layout::{INTERVAL_US_MAX, OpenHow, Options, Stats};
use crate::thread;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;
use towa_epoch::{ForgottenMark, Mode, Pool, ROOT_NAME_MAX};

/// What a `towa_pool *` leads to.
#[derive(Debug)]
pub struct Handle {
    pub(crate) pool: Pool,
    pub(crate) name: String,
    pub(crate) base: usize,
    pub(crate) len: usize,
    /// Threads attached.
    pub(crate) threads: AtomicUsize,
    /// Containers open.
    pub(crate) containers: AtomicUsize,
}

impl Kind for Handle {
    const TAG: u64 = u64::from_le_bytes(*b"towapool");
    const WHAT: &'static str = "towa_pool";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<Handle> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

impl Handle {
    /// Refuses to close while anybody has something of the pool.
    fn refuse_if_used(&self, others_only: bool) -> Result<(), Failure> {
        let (threads, containers) = (self.threads.load(Ordering::Acquire), self.containers.load(Ordering::Acquire));
        if threads + containers == 0 {
            return Ok(());
        }
        let us = if others_only { "" } else { ", the calling one among them," };
        Err(Failure::new(
            error::EBUSY,
            format!(
                "{}: {threads} thread(s){us} are attached and {containers} container(s) are open; join or detach the former and close the \
                 latter before closing the pool",
                self.name
            ),
        ))
    }

    /// Whether any byte of the range lies in the heap.
    pub(crate) fn touches(&self, addr: usize, len: usize) -> bool {
        addr < self.base + self.len && addr.saturating_add(len) > self.base
    }

    /// Whether every byte of the range lies in the heap.
    pub(crate) fn contains(&self, addr: usize, len: usize) -> bool {
        addr >= self.base && len <= self.len && addr - self.base <= self.len - len
    }
}

/// Heaps of the open pools: first address, length, and where, for messages.
pub(crate) static OPEN: RwLock<Vec<(usize, usize, String)>> = RwLock::new(Vec::new());

/// The pool that NULL stands for: what `towa_init` opened.
static DEFAULT: AtomicPtr<Given<Handle>> = AtomicPtr::new(ptr::null_mut());

/// The pool behind a `towa_pool *`, for the time of a call; NULL is the pool of `towa_init`.
///
/// # Safety
/// `pool` is NULL or a pool's handle, and not closed before the reference is dropped.
unsafe fn pool_ref<'a>(pool: *const Given<Handle>) -> Result<&'a Arc<Handle>, Failure> {
    let pool = if pool.is_null() { DEFAULT.load(Ordering::Acquire).cast_const() } else { pool };
    if pool.is_null() {
        return Err(Failure::usage("no pool: call towa_init first, or give the towa_pool * of towa_pool_open"));
    }
    // SAFETY: handed on.
    unsafe { Given::look(pool) }
}

/// The same for longer.
///
/// # Safety
/// As [`pool_ref`].
pub(crate) unsafe fn pool_of(pool: *const Given<Handle>) -> Result<Arc<Handle>, Failure> {
    // SAFETY: handed on.
    unsafe { pool_ref(pool) }.map(Arc::clone)
}

/// A root's name.
///
/// # Safety
/// `name` is NULL or a C string.
pub(crate) unsafe fn root_name<'a>(name: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: handed on.
    let name = unsafe { utf8(name, what) }?;
    match name.len() {
        1..=ROOT_NAME_MAX => Ok(name),
        len => Err(Failure::invalid(format!("{what} {name:?} has {len} bytes; it may have 1 to {ROOT_NAME_MAX}"))),
    }
}

/// # Safety
/// `text` is NULL or a C string.
pub(crate) unsafe fn utf8<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("no {what} (NULL)")));
    }
    // SAFETY: a C string, by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("{what} {text:?} is not UTF-8")))
}

/// # Safety
/// `path` is NULL or a C string; `options` as in [`Options::read`].
unsafe fn open(path: *const c_char, options: *const Options) -> Result<*mut Given<Handle>, Failure> {
    // SAFETY: handed on.
    let (how, options) = unsafe { Options::read(options) }?.to_engine()?;
    let (pool, name) = if options.mode == Mode::Volatile {
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
        }?;
        (pool, path.display().to_string())
    };
    let (base, len) = pool.heap_range();
    let handle = Handle { pool, name, base, len: len as usize, threads: AtomicUsize::new(0), containers: AtomicUsize::new(0) };
    OPEN.write().push((base, handle.len, handle.name.clone()));
    Ok(Given::give(Arc::new(handle)))
}

/// # Safety
/// `pool` is a pool's handle, and nobody uses it during the call.
unsafe fn close(pool: *mut Given<Handle>) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let handle = unsafe { Given::look(pool) }?;
    handle.refuse_if_used(thread::handle_on(Arc::as_ptr(handle)).is_null())?;
    // SAFETY: by this function's contract.
    let handle = unsafe { Given::take(pool) }?;
    OPEN.write().retain(|(base, ..)| *base != handle.base);
    let _ = DEFAULT.compare_exchange(pool, ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire);
    let handle =
        Arc::into_inner(handle).ok_or_else(|| Failure::usage("the pool was used by another thread while it was being closed"))?;
    Ok(handle.pool.close()?)
}

/// Opens, recovers or creates a pool.
///
/// # Safety
/// `path` is NULL or a C string; `options` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_open(path: *const c_char, options: *const Options) -> *mut Given<Handle> {
    // SAFETY: handed on.
    guard("towa_pool_open", || unsafe { open(path, options) }).unwrap_or(ptr::null_mut())
}

/// Closes a pool with a last checkpoint.
///
/// # Safety
/// `pool` is NULL or a pool's handle that nobody uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_close(pool: *mut Given<Handle>) -> c_int {
    guard_code("towa_pool_close", || {
        if pool.is_null() {
            return Err(Failure::invalid("towa_pool_close: no pool (NULL); the pool of towa_init is closed by towa_finalize"));
        }
        // SAFETY: handed on.
        unsafe { close(pool) }
    })
}

/// The pool of `towa_init`, or NULL.
#[unsafe(no_mangle)]
pub extern "C" fn towa_pool_default() -> *mut Given<Handle> {
    let pool = DEFAULT.load(Ordering::Acquire);
    // SAFETY: NULL, or from `open`. (In a child of fork() it is the parent's.)
    if unsafe { Given::look(pool) }.is_ok() { pool } else { ptr::null_mut() }
}

/// Opens the pool that NULL stands for.
///
/// # Safety
/// As [`towa_pool_open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_init(path: *const c_char, options: *const Options) -> c_int {
    guard_code("towa_init", || {
        let taken =
            || Failure::usage("towa_init was called already; call towa_finalize first, or use towa_pool_open for a second pool");
        let before = DEFAULT.load(Ordering::Acquire);
        if !towa_pool_default().is_null() {
            return Err(taken());
        }
        // SAFETY: handed on.
        let pool = unsafe { open(path, options) }?;
        if DEFAULT.compare_exchange(before, pool, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: just opened, and known to nobody else.
            unsafe { close(pool) }?;
            return Err(taken());
        }
        Ok(())
    })
}

/// Closes it.
///
/// # Safety
/// As [`towa_pool_close`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_finalize() -> c_int {
    guard_code("towa_finalize", || {
        let pool = DEFAULT.load(Ordering::Acquire);
        if pool.is_null() {
            return Err(Failure::usage("no pool to close: towa_init was not called, or its pool is closed already"));
        }
        // SAFETY: by this function's contract.
        let handle = unsafe { Given::look(pool) }?;
        let ours = usize::from(!thread::handle_on(Arc::as_ptr(handle)).is_null());
        if handle.threads.load(Ordering::Acquire) == ours && handle.containers.load(Ordering::Acquire) == 0 {
            thread::detach_from(Arc::as_ptr(handle))?;
        }
        // SAFETY: handed on.
        unsafe { close(pool) }
    })
}

/// Where a root points.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `name` is NULL or a C string; `object` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_root(
    pool: *mut Given<Handle>,
    name: *const c_char,
    type_tag: u64,
    size: usize,
    object: *mut *mut c_void,
) -> c_int {
    guard_code("towa_pool_root", || {
        // SAFETY: open or NULL, by this function's contract.
        let handle = unsafe { pool_ref(pool) }?;
        // SAFETY: a C string or NULL, by this function's contract.
        let name = unsafe { utf8(name, "root name") }?;
        if object.is_null() {
            return Err(Failure::invalid("towa_pool_root: nowhere to put the object's address (NULL)"));
        }
        let root = handle.pool.root(name).ok_or_else(|| {
            Failure::new(error::ENOENT, format!("{}: no root '{name}'; set it in a transaction first", handle.name))
        })?;
        if root.type_tag != type_tag || root.size != size as u64 {
            return Err(Failure::new(
                error::ETYPE,
                format!(
                    "{}: root '{name}' is of type tag {:#x} and {} bytes, asked for as {type_tag:#x} and {size} bytes; it was written by another \
                     program or by one with another layout",
                    handle.name, root.type_tag, root.size
                ),
            ));
        }
        // SAFETY: writable, by this function's contract.
        unsafe { set(object, root.ptr.as_ptr().cast()) };
        Ok(())
    })
}

/// Runs a call that gives an epoch.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `out` is NULL or writable.
unsafe fn epoch_of(
    entry: &str,
    pool: *mut Given<Handle>,
    out: *mut u64,
    call: impl FnOnce(&Pool) -> towa_epoch::Result<u64>,
) -> c_int {
    guard_code(entry, || {
        // SAFETY: by this function's contract.
        let value = call(&unsafe { pool_ref(pool) }?.pool)?;
        // SAFETY: NULL or writable, by this function's contract.
        unsafe { set(out, value) };
        Ok(())
    })
}

/// Returns when everything completed before the call is durable.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `durable` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_sync(pool: *mut Given<Handle>, durable: *mut u64) -> c_int {
    // SAFETY: handed on.
    unsafe { epoch_of("towa_pool_sync", pool, durable, Pool::sync) }
}

/// One checkpoint now.
///
/// # Safety
/// As [`towa_pool_sync`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_checkpoint(pool: *mut Given<Handle>, durable: *mut u64) -> c_int {
    // SAFETY: handed on.
    unsafe { epoch_of("towa_pool_checkpoint", pool, durable, Pool::checkpoint) }
}

/// Waits until `epoch` is durable.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_wait_durable(pool: *mut Given<Handle>, epoch: u64, timeout_us: u64) -> c_int {
    guard_code("towa_pool_wait_durable", || {
        // SAFETY: by this function's contract.
        let handle = unsafe { pool_ref(pool) }?;
        if handle.pool.wait_durable(epoch, Duration::from_micros(timeout_us))? {
            return Ok(());
        }
        let durable = handle.pool.durable_epoch();
        Err(Failure::new(
            error::ETIMEDOUT,
            format!("{}: epoch {epoch} is not durable after {timeout_us} us, epoch {durable} is", handle.name),
        ))
    })
}

/// The epoch that new transactions join.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_epoch(pool: *mut Given<Handle>) -> u64 {
    // SAFETY: handed on.
    guard("towa_pool_epoch", || Ok(unsafe { pool_ref(pool) }?.pool.epoch())).unwrap_or(0)
}

/// The newest durable epoch.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_durable_epoch(pool: *mut Given<Handle>) -> u64 {
    // SAFETY: handed on.
    guard("towa_pool_durable_epoch", || Ok(unsafe { pool_ref(pool) }?.pool.durable_epoch())).unwrap_or(0)
}

/// Microseconds between checkpoints.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_interval_us(pool: *mut Given<Handle>) -> u64 {
    // SAFETY: handed on.
    guard("towa_pool_interval_us", || Ok(unsafe { pool_ref(pool) }?.pool.interval().as_micros() as u64)).unwrap_or(0)
}

/// Sets it.
///
/// # Safety
/// `pool` is NULL or a pool's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_set_interval_us(pool: *mut Given<Handle>, interval_us: u64) -> c_int {
    guard_code("towa_pool_set_interval_us", || {
        if interval_us == 0 {
            return Err(Failure::invalid("an interval of 0 us; give at least 1"));
        }
        // SAFETY: handed on.
        unsafe { pool_ref(pool) }?.pool.set_interval(Duration::from_micros(interval_us.min(INTERVAL_US_MAX)));
        Ok(())
    })
}

/// What the engine has been doing.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `stats` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_stats(pool: *mut Given<Handle>, stats: *mut Stats) -> c_int {
    guard_code("towa_pool_stats", || {
        // SAFETY: handed on.
        let filled = Stats::from(&unsafe { pool_ref(pool) }?.pool.stats());
        // SAFETY: handed on.
        unsafe { filled.write(stats) }
    })
}

/// First address and length of the heap.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `base` and `len` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_heap(pool: *mut Given<Handle>, base: *mut *mut c_void, len: *mut u64) -> c_int {
    guard_code("towa_pool_heap", || {
        // SAFETY: handed on.
        let handle = unsafe { pool_ref(pool) }?;
        // SAFETY: NULL or writable, by this function's contract.
        unsafe {
            set(base, handle.base as *mut c_void);
            set(len, handle.len as u64);
        }
        Ok(())
    })
}

/// Tells `report` about every line found written but not marked.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `report` is NULL or callable with these arguments, and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_forgotten_marks(
    pool: *mut Given<Handle>,
    report: Option<unsafe extern "C" fn(*const c_char, *const c_void, *mut c_void)>,
    arg: *mut c_void,
) -> c_int {
    guard("towa_pool_forgotten_marks", || {
        // SAFETY: handed on.
        let found = unsafe { pool_ref(pool) }?.pool.take_forgotten_marks();
        for mark in &found {
            // The engine also knows which line of *this crate* marked last, which tells a C program nothing.
            let nameless = ForgottenMark { last_marked: None, ..mark.clone() };
            let seen = if mark.last_marked.is_some() { "its line was marked at other times" } else { "its line was never marked" };
            let text = format!("{}; {seen}", nameless.to_string().trim_end_matches("; never marked"));
            if let (Some(report), Ok(text)) = (report, CString::new(text)) {
                // SAFETY: callable, by this function's contract.
                unsafe { report(text.as_ptr(), mark.address as *const c_void, arg) };
            }
        }
        Ok(c_int::try_from(found.len()).unwrap_or(c_int::MAX))
    })
    .unwrap_or_else(|code| code)
}

/// Usable bytes of a live block.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `block` is a live block of it (an address outside its heap is refused).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_pool_block_size(pool: *mut Given<Handle>, block: *const c_void) -> usize {
    guard("towa_pool_block_size", || {
        // SAFETY: handed on.
        let handle = unsafe { pool_ref(pool) }?;
        let ptr =
            NonNull::new(block.cast_mut().cast::<u8>()).ok_or_else(|| Failure::invalid("towa_pool_block_size: no block (NULL)"))?;
        if !handle.contains(ptr.as_ptr() as usize, 1) {
            return Err(Failure::new(error::ERANGE, format!("{}: {block:p} is not in its heap", handle.name)));
        }
        // SAFETY: a live block, by this function's contract; the engine panics on most that are not.
        error::quietly(|| unsafe { handle.pool.block_size(ptr) })
            .map_err(|payload| Failure::usage(format!("{}: towa_pool_block_size: {}", handle.name, error::panic_text(&*payload))))
    })
    .unwrap_or(0)
}
