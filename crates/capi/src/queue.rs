//! `towa_queue_*`: byte strings, first in first out.

use crate::container::{Used, bytes, guard_bool, guard_count, open, set};
use crate::error::{self, Failure, guard, guard_code};
use crate::given::{Given, Kind, Spare};
use crate::pool;
use crate::thread::{Handle as ThreadHandle, free_thread};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use towa_containers::Queue;

/// What a `towa_queue *` leads to.
#[derive(Debug)]
pub struct FifoQueue {
    queue: Used<Queue>,
    /// Held by whoever takes an item, by whichever handle: so that the item copied is the item taken.
    pops: Arc<Mutex<()>>,
}

impl Kind for FifoQueue {
    const TAG: u64 = u64::from_le_bytes(*b"towa:que");
    const WHAT: &'static str = "towa_queue";
    fn spare() -> &'static Spare<Self> {
        static SPARE: Spare<FifoQueue> = Mutex::new(VecDeque::new());
        &SPARE
    }
}

/// The queue named `name`, created if there is none.
///
/// # Safety
/// `pool` is NULL or a pool's handle; `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_open(pool: *mut Given<pool::Handle>, name: *const c_char) -> *mut Given<FifoQueue> {
    guard("towa_queue_open", || {
        let found = |pool: &towa_epoch::Pool, name: &str| -> towa_containers::Result<_> {
            let pops = pool.shared(&format!("towa.h: taking from queue {name}"), Mutex::default)?;
            Ok((Queue::open(pool, name)?, pops))
        };
        // SAFETY: handed on.
        let (queue, pops) = unsafe { open(pool, name, found) }?.split();
        Ok(Given::give(Arc::new(FifoQueue { queue, pops })))
    })
    .unwrap_or(ptr::null_mut())
}

/// Gives the handle back; the queue stays.
///
/// # Safety
/// `queue` is NULL or a queue's handle that nobody uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_close(queue: *mut Given<FifoQueue>) {
    if !queue.is_null() {
        // SAFETY: handed on.
        guard_code("towa_queue_close", || unsafe { Given::take(queue) }.map(drop));
    }
}

/// Appends an item.
///
/// # Safety
/// `queue` is NULL or a queue's handle; `thread` is NULL or the calling thread's; `item` has the length said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_push(
    queue: *mut Given<FifoQueue>,
    thread: *mut ThreadHandle,
    item: *const c_void,
    len: usize,
) -> c_int {
    guard_code("towa_queue_push", || {
        // SAFETY: handed on.
        let (FifoQueue { queue, .. }, item) = unsafe { (&**Given::look(queue)?, bytes(item, len, "item")?) };
        Ok(queue.container.push(free_thread(queue.pool(), thread)?, item)?)
    })
}

/// Memory from `malloc` that nobody has yet.
struct Copied(*mut c_void);

impl Copied {
    /// None without memory.
    fn of(bytes: &[u8]) -> Option<Copied> {
        // SAFETY: malloc takes any size; one byte at least, so that NULL means out of memory.
        let copy = unsafe { libc::malloc(bytes.len().max(1)) };
        if copy.is_null() {
            return None;
        }
        // SAFETY: `copy` has the room, and is new.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len()) };
        Some(Copied(copy))
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // SAFETY: from malloc, and given to nobody.
        unsafe { libc::free(self.0) };
    }
}

/// Takes the oldest item; whether there was one. `*item` becomes a copy from `malloc`.
///
/// # Safety
/// As [`towa_queue_push`]; `item` and `len` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_pop(
    queue: *mut Given<FifoQueue>,
    thread: *mut ThreadHandle,
    item: *mut *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_bool("towa_queue_pop", || {
        // SAFETY: handed on.
        let FifoQueue { queue, pops } = unsafe { &**Given::look(queue)? };
        if item.is_null() || len.is_null() {
            return Err(Failure::invalid("towa_queue_pop: nowhere to put the item or its length (NULL)"));
        }
        let thread = free_thread(queue.pool(), thread)?;
        let _alone = pops.lock();
        // The copy comes first: without memory for it, the item stays.
        let Some((bytes, copy)) = queue.container.peek_with(|bytes| (bytes.len(), Copied::of(bytes)))? else { return Ok(false) };
        // `pop` makes a copy of its own, and a Rust program without memory ends: better find out here.
        let mut room = Vec::<u8>::new();
        let is_room = room.try_reserve_exact(bytes).is_ok();
        drop(std::hint::black_box(room));
        let copy = copy.filter(|_| is_room).ok_or_else(|| {
            Failure::new(
                error::ENOSPC,
                format!("{}: no memory for a copy of the item's {bytes} bytes; it stays in the queue", queue.pool().name),
            )
        })?;
        let taken = queue.container.pop(thread)?.map(|taken| taken.len());
        assert_eq!(taken, Some(bytes), "what was copied is what was taken");
        // SAFETY: writable, by this function's contract.
        unsafe {
            set(item, copy.0);
            set(len, bytes);
        }
        std::mem::forget(copy); // C's now
        Ok(true)
    })
}

/// Number of items, or a negative code.
///
/// # Safety
/// `queue` is NULL or a queue's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towa_queue_count(queue: *mut Given<FifoQueue>) -> i64 {
    // SAFETY: handed on.
    guard_count("towa_queue_count", || Ok(unsafe { Given::look(queue) }?.queue.container.len()))
}
