//! What a `towa_pool *`, `towa_map *`, `towa_queue *` or `towa_vector *` points to, so that a wrong one is an error and not a wild access.
//!
//! ```text
//!   open:    { tag of its kind, forks, value }         closed:  { 0, -, - }, kept, and given out again when 64 later ones are closed
//! ```
//! The storage is never freed, and its first word says what it is: a handle closed before, closed twice, or of another kind is refused.
//! (Two threads, one of which closes what the other uses at that moment, remain C's business.) A handle from before a `fork()` is refused
//! in the child, which has neither the heap nor the persister: closing it there would write to the parent's pool.

use crate::error::Failure;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Closed handles that are not given out again yet.
const KEPT: usize = 64;

/// Something that C gets handles to.
pub trait Kind: Sized + Send + Sync + 'static {
    /// First word of an open handle.
    const TAG: u64;
    /// For messages.
    const WHAT: &'static str;
    /// The closed ones, oldest first.
    fn spare() -> &'static Spare<Self>;
}

/// Closed handles.
pub type Spare<T> = Mutex<VecDeque<&'static Given<T>>>;

/// What the handle points to; see the module.
#[repr(C)]
pub struct Given<T> {
    tag: AtomicU64,
    forks: AtomicU32,
    /// Some while the tag is there. Written by who gives or takes it, read between.
    value: UnsafeCell<Option<Arc<T>>>,
}

// SAFETY: `value` changes only while nobody may use the handle: before it is given, and after the tag was taken away.
unsafe impl<T: Send + Sync> Sync for Given<T> {}

impl<T> fmt::Debug for Given<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").field("tag", &self.tag).finish_non_exhaustive()
    }
}

impl<T: Kind> Given<T> {
    /// A handle to `value`.
    pub(crate) fn give(value: Arc<T>) -> *mut Given<T> {
        let spare = {
            let mut closed = T::spare().lock();
            if closed.len() > KEPT { closed.pop_front() } else { None }
        };
        let given = spare.unwrap_or_else(|| {
            Box::leak(Box::new(Given { tag: AtomicU64::new(0), forks: AtomicU32::new(0), value: UnsafeCell::new(None) }))
        });
        // SAFETY: new, or closed long ago: nobody uses it.
        unsafe { *given.value.get() = Some(value) };
        given.forks.store(towa_media::fork::count(), Ordering::Relaxed);
        given.tag.store(T::TAG, Ordering::Release);
        ptr::from_ref(given).cast_mut()
    }

    /// What is behind the handle, if it is an open one of this kind.
    ///
    /// # Safety
    /// `at` is NULL or any handle that was ever given, and it is not closed while the reference is used.
    pub(crate) unsafe fn look<'a>(at: *const Given<T>) -> Result<&'a Arc<T>, Failure> {
        // SAFETY: by this function's contract.
        let given = unsafe { Self::at(at) }?;
        if given.tag.load(Ordering::Acquire) != T::TAG {
            return Err(closed::<T>());
        }
        if given.forks.load(Ordering::Relaxed) != towa_media::fork::count() {
            return Err(Failure::usage(format!(
                "this {} is the parent's: a child of fork() does not have the heap; exec, or open a pool of its own",
                T::WHAT
            )));
        }
        // SAFETY: nobody writes it while it is open.
        unsafe { &*given.value.get() }.as_ref().ok_or_else(closed::<T>)
    }

    /// Closes the handle; gives what was behind it.
    ///
    /// # Safety
    /// As [`look`](Self::look), and nobody uses the handle during the call.
    pub(crate) unsafe fn take(at: *const Given<T>) -> Result<Arc<T>, Failure> {
        // SAFETY: handed on; checks the fork, too.
        let (given, _) = unsafe { (Self::at(at)?, Self::look(at)?) };
        // Of two that close it at once, one does.
        given.tag.compare_exchange(T::TAG, 0, Ordering::AcqRel, Ordering::Relaxed).map_err(|_| closed::<T>())?;
        // SAFETY: whoever took the tag away has the value alone.
        let value = unsafe { (*given.value.get()).take() };
        T::spare().lock().push_back(given);
        value.ok_or_else(closed::<T>)
    }

    /// # Safety
    /// As [`look`](Self::look).
    unsafe fn at(at: *const Given<T>) -> Result<&'static Given<T>, Failure> {
        if !at.is_aligned() {
            return Err(closed::<T>());
        }
        // SAFETY: never freed, by this module. (Of a handle of another kind only the first word is looked at, which all have.)
        unsafe { at.as_ref() }.ok_or_else(|| Failure::invalid(format!("no {} (NULL)", T::WHAT)))
    }
}

fn closed<T: Kind>() -> Failure {
    Failure::usage(format!("this is no open {0}: it is closed already, or a handle of another kind was given for a {0}", T::WHAT))
}
