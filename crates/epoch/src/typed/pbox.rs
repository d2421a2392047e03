//! [`PBox`], the owning pointer inside a pool, and [`Txn`], the running transaction that makes and frees them.
//!
//! A `PBox<'p, T>` is eight bytes, the address of a block that holds one `T` and is owned by whoever owns the box. `'p` is the
//! brand of the `write` or `read` it is seen in; it is invariant, so boxes of different calls never mix.

use super::{Layout, PMut, Persist};
use crate::{Result, Tx};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Invariant in `'p`, and nothing else.
pub(super) type Brand<'p> = PhantomData<fn(&'p ()) -> &'p ()>;

/// Owning pointer to a `T` in the pool. Reads as a reference; is written through [`PMut::follow`] or [`PBox::pmut`].
///
/// Dropping one does not free the block (nothing inside a pool has a destructor): give it to [`Txn::unbox`].
#[repr(transparent)]
#[must_use = "a box that is neither stored nor unboxed leaks its block until the pool is deleted"]
pub struct PBox<'p, T> {
    ptr: NonNull<T>,
    brand: Brand<'p>,
    owns: PhantomData<T>,
}

// SAFETY: a PBox owns its T as a Box does.
unsafe impl<T: Send> Send for PBox<'_, T> {}
// SAFETY: as above; a shared PBox gives a shared T only.
unsafe impl<T: Sync> Sync for PBox<'_, T> {}

// SAFETY: the one pointer whose target moves with it: pools map at a fixed address. It has no Drop, and its Deref gives `&T`
// of the target, which cannot be written without a PMut.
unsafe impl<T: Persist> Persist for PBox<'_, T> {
    type At<'p> = PBox<'p, T::At<'p>>;
    fn describe(layout: &mut Layout) {
        layout.pointer::<T>();
    }
}

// SAFETY: `None` is the null that a `repr(transparent)` NonNull leaves, as the language guarantees.
unsafe impl<T: Persist> Persist for Option<PBox<'_, T>> {
    type At<'p> = Option<PBox<'p, T::At<'p>>>;
    fn describe(layout: &mut Layout) {
        layout.scalar::<u64>("option");
        layout.pointer::<T>();
    }
}

impl<'p, T: Persist> PBox<'p, T> {
    pub(super) fn as_ptr(&self) -> NonNull<T> {
        self.ptr
    }

    /// Permission to change what an owned box holds.
    pub fn pmut<'a>(&'a mut self, tx: Txn<'p>) -> PMut<'a, T>
    where
        'p: 'a,
    {
        // SAFETY: the box owns a live T, and `&mut self` excludes everybody else for 'a.
        unsafe { PMut::new(self.ptr, tx.tx) }
    }
}

impl<T: Persist> std::ops::Deref for PBox<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the box owns a live T; whoever sees the box holds the root's lock, which the brand proves.
        unsafe { self.ptr.as_ref() }
    }
}

impl<T: Persist + fmt::Debug> fmt::Debug for PBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The transaction of a running [`Root::write`](super::Root::write): allocates and frees.
#[derive(Clone, Copy)]
pub struct Txn<'p> {
    tx: &'p Tx<'p>,
    brand: Brand<'p>,
    /// A transaction stays on its thread.
    not_send: PhantomData<*mut ()>,
}

impl fmt::Debug for Txn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Txn").field("epoch", &self.tx.epoch()).finish()
    }
}

impl<'p> Txn<'p> {
    pub(super) fn new(tx: &'p Tx<'p>) -> Self {
        Self { tx, brand: PhantomData, not_send: PhantomData }
    }

    /// The epoch this transaction belongs to: durable once `pool.durable_epoch()` reaches it.
    pub fn epoch(&self) -> u64 {
        self.tx.epoch()
    }

    /// Moves `value` into a new block.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`](crate::Error::OutOfSpace); `value` is lost then, and what it owned leaks unless the transaction is
    /// undone (see [`Root::try_write`](super::Root::try_write)).
    pub fn boxed<T: Persist>(&self, value: T) -> Result<PBox<'p, T>> {
        const {
            assert!(align_of::<T>() <= 16, "blocks are aligned to 16 bytes");
            assert!(!std::mem::needs_drop::<T>(), "nothing in a pool has a destructor");
        }
        let ptr = self.tx.alloc(size_of::<T>().max(1))?.cast::<T>();
        // SAFETY: the new block is ours, large enough, aligned (checked above) and marked.
        unsafe { ptr.write(value) };
        Ok(PBox { ptr, brand: PhantomData, owns: PhantomData })
    }

    /// Frees a box and gives what it held - including the boxes in there, which are the caller's now.
    pub fn unbox<T: Persist>(&self, boxed: PBox<'p, T>) -> T {
        // SAFETY: the box owned a live T of this pool and is consumed; nobody else can have a pointer to it.
        unsafe {
            let value = boxed.ptr.read();
            self.tx.free(boxed.ptr.cast());
            value
        }
    }
}
