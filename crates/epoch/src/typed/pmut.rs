//! [`PMut`]: the right to change a `T` in the pool, without having marked it yet.
//!
//! ```text
//!   PMut<Node> ──field!(.next)──► PMut<Option<PBox<Node>>> ──follow()──► PMut<Node> ──into_mut()──► &mut Node
//!      walking marks nothing                                              marks exactly the bytes of the T it gives
//! ```
//!
//! It behaves like `&'t mut T` under the borrow checker (exclusive, invariant), and cannot leave the thread.

use super::{PBox, Persist};
use crate::Tx;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Exclusive access to a `T` in the pool during a transaction; see the module's drawing.
pub struct PMut<'t, T> {
    ptr: NonNull<T>,
    tx: &'t Tx<'t>,
    /// Invariant and exclusive in T; the raw pointer keeps it on its thread.
    exclusive: PhantomData<(&'t mut T, *mut ())>,
}

impl<T: Persist + fmt::Debug> fmt::Debug for PMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl<'t, T: Persist> PMut<'t, T> {
    /// # Safety
    /// `ptr` is a live T in the pool of `tx`, and nobody else reads or writes it during `'t`.
    pub(super) unsafe fn new(ptr: NonNull<T>, tx: &'t Tx<'t>) -> Self {
        Self { ptr, tx, exclusive: PhantomData }
    }

    /// Reads.
    pub fn get(&self) -> &T {
        // SAFETY: live and ours (contract of `new`), and `&self` keeps `as_mut` away.
        unsafe { self.ptr.as_ref() }
    }

    /// Marks all of the `T` and gives it for writing.
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "AsMut promises a cheap conversion; this one marks")]
    pub fn as_mut(&mut self) -> &mut T {
        self.reborrow().into_mut()
    }

    /// Like [`as_mut`](Self::as_mut), for as long as the `PMut` would have lasted.
    #[track_caller]
    pub fn into_mut(mut self) -> &'t mut T {
        // SAFETY: ours for 't, with the whole block's lines: its root's lock is held until the transaction has ended.
        unsafe { self.tx.mark(self.ptr.as_ptr().cast(), size_of::<T>()) };
        // SAFETY: live and ours for 't (contract of `new`); `self` is consumed, so that this is the only way to it.
        unsafe { self.ptr.as_mut() }
    }

    /// Marks and overwrites. What the old value owned is the caller's to have taken before.
    #[track_caller]
    pub fn set(&mut self, value: T) {
        *self.as_mut() = value;
    }

    /// Marks, overwrites, and gives the old value.
    #[track_caller]
    pub fn replace(&mut self, value: T) -> T {
        std::mem::replace(self.as_mut(), value)
    }

    /// A shorter-lived copy, to use the original again afterwards.
    pub fn reborrow(&mut self) -> PMut<'_, T> {
        PMut { ptr: self.ptr, tx: self.tx, exclusive: PhantomData }
    }

    /// Narrows to a part; what [`field!`](crate::field) expands to. Marks nothing.
    ///
    /// # Panics
    /// If the part does not lie inside the `T`.
    ///
    /// # Safety
    /// `part` only computes the address of a field (of a field ...) and runs no other code.
    #[doc(hidden)]
    pub unsafe fn project<U: Persist>(self, part: impl FnOnce(*mut T) -> *mut U) -> PMut<'t, U> {
        // SAFETY: as promised, it computes an address inside the live T.
        unsafe { PMut::new(self.part(part), self.tx) }
    }

    /// Narrows to several parts at once; what [`fields!`](crate::fields) expands to.
    ///
    /// # Safety
    /// As [`project`](Self::project), and the parts do not overlap: each call's result excludes the others'.
    #[doc(hidden)]
    pub unsafe fn project_next<U: Persist>(&mut self, part: impl FnOnce(*mut T) -> *mut U) -> PMut<'t, U> {
        // SAFETY: as promised: inside the live T, and no part is given twice.
        unsafe { PMut::new(self.part(part), self.tx) }
    }

    fn part<U>(&self, part: impl FnOnce(*mut T) -> *mut U) -> NonNull<U> {
        let whole = self.ptr.addr().get();
        let ptr = NonNull::new(part(self.ptr.as_ptr())).expect("a field has an address");
        let at = ptr.addr().get();
        assert!(at >= whole && at + size_of::<U>() <= whole + size_of::<T>(), "the part lies outside the value");
        ptr
    }
}

impl<'t, T: Persist> PMut<'t, PBox<'_, T>> {
    /// From the box to what it owns. Marks nothing.
    pub fn follow(self) -> PMut<'t, T> {
        // SAFETY: having the box exclusively is having its T exclusively.
        unsafe { PMut::new(self.get().as_ptr(), self.tx) }
    }
}

impl<'t, 'p, T: Persist> PMut<'t, Option<PBox<'p, T>>> {
    /// From the box to what it owns, if there is one. Marks nothing.
    pub fn follow(self) -> Option<PMut<'t, T>> {
        self.some().map(PMut::<PBox<'p, T>>::follow)
    }

    /// The box itself, if there is one. Marks nothing.
    pub fn some(self) -> Option<PMut<'t, PBox<'p, T>>> {
        self.get().as_ref()?;
        // SAFETY: it is Some, and an Option<PBox> is then the PBox, byte for byte.
        Some(unsafe { PMut::new(self.ptr.cast(), self.tx) })
    }
}

impl<'t, T: Persist, const N: usize> PMut<'t, [T; N]> {
    /// Element `i`. Marks nothing.
    ///
    /// # Panics
    /// If `i` is not below `N`.
    pub fn index(self, i: usize) -> PMut<'t, T> {
        assert!(i < N, "index {i} of an array of {N}");
        // SAFETY: inside the array, which is ours.
        unsafe { PMut::new(self.ptr.cast::<T>().add(i), self.tx) }
    }

    /// All elements, one after the other. Marks nothing.
    pub fn elements(self) -> impl Iterator<Item = PMut<'t, T>> {
        // SAFETY: inside the array, which is ours, and each element is given once.
        (0..N).map(move |i| unsafe { PMut::new(self.ptr.cast::<T>().add(i), self.tx) })
    }
}

/// Narrows a [`PMut`](crate::typed::PMut) to a field, without marking: `field!(node, next)`, `field!(pair, a.x)`.
///
/// Consumes the `PMut`; use `field!(node.reborrow(), next)` to keep it.
#[macro_export]
macro_rules! field {
    ($pmut:expr, $($field:tt).+) => {{
        let pmut = $pmut;
        // SAFETY: a place expression of fields; stored types have no Deref, so that no code runs.
        unsafe { $crate::typed::PMut::project(pmut, |whole| &raw mut (*whole).$($field).+) }
    }};
}

/// Narrows a [`PMut`](crate::typed::PMut) to several of its fields at once: `let (key, next) = fields!(node, key, next);`
#[macro_export]
macro_rules! fields {
    ($pmut:expr, $($field:ident),+ $(,)?) => {{
        #[allow(dead_code)]
        struct EachFieldOnce { $($field: ()),+ }
        let mut pmut = $pmut;
        // SAFETY: place expressions of different fields (a duplicate does not compile); stored types have no Deref.
        unsafe { ($($crate::typed::PMut::project_next(&mut pmut, |whole| &raw mut (*whole).$field),)+) }
    }};
}
