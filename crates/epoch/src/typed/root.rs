//! [`Root`]: a typed name in the pool, with the lock that encloses its transactions.
//!
//! All handles of one name share one [`Shared`] (see [`registry`]), hence one lock. Everything reachable from a root is owned by
//! it alone, so transactions of different roots touch different blocks and never the same line.

use super::{PMut, Persist, Txn, registry, scope, type_tag};
use crate::{Error, Pool, Result, Thread, Tx};
use parking_lot::RwLock;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A root of type `T`; cheap to clone, all clones share the lock. Keeps its pool open.
pub struct Root<T: Persist> {
    shared: Arc<Shared>,
    of: PhantomData<fn() -> T>,
}

struct Shared {
    pool: Pool,
    name: String,
    tag: u64,
    ptr: NonNull<u8>,
    lock: RwLock<()>,
    /// A closure panicked inside a transaction that could not be undone.
    torn: AtomicBool,
}

// SAFETY: the pointer leads into the pool, which `pool` keeps mapped; it is followed under `lock` only, and what it leads to is
// Send and Sync (a supertrait of Persist).
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl<T: Persist> Clone for Root<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), of: PhantomData }
    }
}

impl<T: Persist> fmt::Debug for Root<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Pool {
    /// The root `name`, made with `init` if the pool has none of that name.
    ///
    /// # Errors
    /// [`Error::Usage`] if the root there has another type (its name, or the layout of anything it leads to, differs), or inside
    /// a transaction; those of `init` and of [`Thread::begin`].
    pub fn typed_root<T: Persist>(
        &self,
        name: &str,
        thread: &mut Thread,
        init: impl for<'p> FnOnce(Txn<'p>) -> Result<T::At<'p>>,
    ) -> Result<Root<T>> {
        scope::check_write()?;
        same_pool(self, thread)?;
        let tag = type_tag::<T>();
        let shared = registry::shared::<Shared, Error>(self, name, || {
            let ptr = match self.root(name) {
                Some(root) => root,
                None => create::<T>(name, tag, thread, init)?,
            };
            let shared = Shared {
                pool: self.clone(),
                name: name.to_owned(),
                tag: ptr.type_tag,
                ptr: ptr.ptr,
                lock: RwLock::new(()),
                torn: AtomicBool::new(false),
            };
            check_type::<T>(&shared, tag, ptr.size).map(|()| shared)
        })?;
        check_type::<T>(&shared, tag, size_of::<T>() as u64)?;
        Ok(Root { shared, of: PhantomData })
    }
}

fn create<T: Persist>(
    name: &str,
    tag: u64,
    thread: &mut Thread,
    init: impl for<'p> FnOnce(Txn<'p>) -> Result<T::At<'p>>,
) -> Result<crate::Root> {
    let _scope = scope::write()?;
    let tx = thread.begin_undoable()?;
    let made = init(Txn::new(&tx)).and_then(|value| {
        let boxed = Txn::new(&tx).boxed(value)?;
        let root = crate::Root { ptr: boxed.as_ptr().cast(), type_tag: tag, size: size_of::<T>() as u64 };
        // SAFETY: the value just written there, whose type the tag describes.
        unsafe { tx.set_root(name, Some(root)) }.map(|()| root)
    });
    finish(tx, made)
}

/// Commits if `result` is good, else rolls back.
fn finish<R, E>(tx: Tx<'_>, result: std::result::Result<R, E>) -> std::result::Result<R, E> {
    match result {
        Ok(_) => _ = tx.commit(),
        Err(_) => tx.abort(),
    }
    result
}

fn same_pool(pool: &Pool, thread: &Thread) -> Result<()> {
    if pool.heap_range() == thread.pool().heap_range() {
        return Ok(());
    }
    Err(Error::Usage("the thread is registered with another pool: register it with the pool whose root it uses".into()))
}

fn check_type<T>(shared: &Shared, tag: u64, size: u64) -> Result<()> {
    if shared.tag == tag && size == size_of::<T>() as u64 {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "root {:?} does not hold a {} as this program defines it (tag {:#018x}, here {tag:#018x}): open it with the type it was created \
         with; to change a type, copy the data to a root of another name",
        shared.name,
        std::any::type_name::<T>(),
        shared.tag,
    )))
}

impl<T: Persist> Root<T> {
    /// Reads, together with other readers. The newest state, durable or not.
    ///
    /// # Errors
    /// [`Error::Usage`] inside a transaction; [`Error::Poisoned`] if a writer panicked.
    pub fn read<R>(&self, f: impl for<'p> FnOnce(&'p T::At<'p>) -> R) -> Result<R> {
        let scope = scope::read()?;
        let _guard = scope::lock(&self.shared.lock, scope.is_nested());
        self.check_whole()?;
        // SAFETY: of this type (checked at open), live while the pool is, and not written while the lock is held.
        Ok(f(unsafe { self.shared.ptr.cast::<T::At<'_>>().as_ref() }))
    }

    /// One transaction, alone on this root.
    ///
    /// # Errors
    /// Those of [`Thread::begin`]; [`Error::Usage`] inside another transaction or read.
    ///
    /// # Panics
    /// If `f` does; the pool is poisoned then and stays at its last epoch. [`try_write`](Self::try_write) rolls back instead.
    pub fn write<R>(&self, thread: &mut Thread, f: impl for<'p> FnOnce(Txn<'p>, PMut<'p, T::At<'p>>) -> R) -> Result<R> {
        same_pool(&self.shared.pool, thread)?;
        let _scope = scope::write()?;
        let _guard = self.shared.lock.write();
        self.check_whole()?;
        let tx = thread.begin()?;
        let torn = TornUnlessDone(&self.shared);
        let result = f(Txn::new(&tx), self.pmut(&tx));
        std::mem::forget(torn);
        tx.commit();
        Ok(result)
    }

    /// Like [`write`](Self::write), and leaves everything as it was when `f` fails or panics. Costs a copy of what is marked.
    ///
    /// # Errors
    /// Those of `f` and of [`write`](Self::write).
    pub fn try_write<R, E: From<Error>>(
        &self,
        thread: &mut Thread,
        f: impl for<'p> FnOnce(Txn<'p>, PMut<'p, T::At<'p>>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        self.try_write_reserving(thread, 0, f)
    }

    /// [`try_write`](Self::try_write) for more than some kilobytes: `bytes` is about what `f` will write, for which log space is
    /// reserved first.
    ///
    /// # Errors
    /// As there, and [`Error::TooLarge`].
    pub fn try_write_reserving<R, E: From<Error>>(
        &self,
        thread: &mut Thread,
        bytes: usize,
        f: impl for<'p> FnOnce(Txn<'p>, PMut<'p, T::At<'p>>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        same_pool(&self.shared.pool, thread)?;
        let _scope = scope::write()?;
        let _guard = self.shared.lock.write();
        self.check_whole()?;
        let tx = thread.begin_undoable_reserving(bytes)?;
        let result = f(Txn::new(&tx), self.pmut(&tx));
        finish(tx, result)
    }

    /// One transaction on two roots of one pool; boxes may move between them.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::Usage`] if both are the same root or of different pools.
    pub fn write_both<U: Persist, R>(
        &self,
        other: &Root<U>,
        thread: &mut Thread,
        f: impl for<'p> FnOnce(Txn<'p>, PMut<'p, T::At<'p>>, PMut<'p, U::At<'p>>) -> R,
    ) -> Result<R> {
        same_pool(&self.shared.pool, thread)?;
        same_pool(&other.shared.pool, thread)?;
        let (a, b) = (&self.shared, &other.shared);
        if a.ptr == b.ptr {
            return Err(Error::Usage(format!("root {:?} given twice: use write", a.name)));
        }
        let _scope = scope::write()?;
        // Every thread locks the lower address first, so that two of them cannot wait for each other.
        let (first, second) = if a.ptr < b.ptr { (a, b) } else { (b, a) };
        let _guards = (first.lock.write(), second.lock.write());
        self.check_whole()?;
        other.check_whole()?;
        let tx = thread.begin()?;
        let torn = (TornUnlessDone(a), TornUnlessDone(b));
        let result = f(Txn::new(&tx), self.pmut(&tx), other.pmut(&tx));
        std::mem::forget(torn);
        tx.commit();
        Ok(result)
    }

    /// The name it was opened with.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its pool.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Only called between taking the lock for writing and releasing it.
    fn pmut<'p>(&self, tx: &'p Tx<'p>) -> PMut<'p, T::At<'p>> {
        // SAFETY: of this type (checked at open); the write lock is held around `tx`, hence for all of 'p.
        unsafe { PMut::new(self.shared.ptr.cast(), tx) }
    }

    fn check_whole(&self) -> Result<()> {
        if !self.shared.torn.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Poisoned {
            pool: format!("root {:?}", self.shared.name),
            why: "a closure panicked in the middle of a transaction".into(),
            durable: self.shared.pool.durable_epoch(),
        })
    }
}

/// Dropped by unwinding only.
struct TornUnlessDone<'s>(&'s Shared);

impl Drop for TornUnlessDone<'_> {
    fn drop(&mut self) {
        self.0.torn.store(true, Ordering::Relaxed);
    }
}
