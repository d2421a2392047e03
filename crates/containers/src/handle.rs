//! How a container is found by name: the root's type tag says what it is, and one handle per name is shared by everybody.
//!
//! ```text
//!   root name, tag, size ──► block, rounded up to a line ──► header { parameters ... }
//! ```

use crate::segments::SEGMENT;
use crate::store::line_aligned;
use crate::{Error, Result, bounds};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use towa_epoch::typed::{registry, scope};
use towa_epoch::{Pool, Root, Thread, Tx};

/// What a container is, for its root's tag and for messages.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Name with layout version, hashed into the tag: a new layout gets a new name.
    pub layout: &'static str,
    /// For messages.
    pub words: &'static str,
}

impl Kind {
    fn tag(self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.layout.as_bytes())
    }
}

/// Opens the header of type `H` under `name`, or creates it with `init`, then makes the shared state with `open`.
///
/// # Safety
/// `init` leaves a valid `H`; `H` needs no alignment beyond a line.
pub(crate) unsafe fn open<H, S: Any + Send + Sync>(
    pool: &Pool,
    name: &str,
    kind: Kind,
    init: impl FnOnce(&Tx<'_>, *mut H) -> Result<()>,
    open: impl FnOnce(NonNull<H>) -> Result<S>,
) -> Result<Arc<S>> {
    scope::check_write()?;
    registry::shared(pool, name, || {
        let root = match pool.root(name) {
            Some(root) => root,
            None => create::<H>(pool, name, kind, init)?,
        };
        if root.type_tag != kind.tag() || root.size != size_of::<H>() as u64 {
            return Err(Error::WrongKind {
                name: name.to_owned(),
                wanted: kind.words.to_owned(),
                found: format!("tag {:#018x}, {} bytes", root.type_tag, root.size),
            });
        }
        open(NonNull::new(line_aligned(root.ptr.as_ptr()).cast::<H>()).expect("blocks are not at address 0"))
    })
}

/// The header under `name` if that is a container of `kind`; refused if it does not lie in the heap.
pub(crate) fn header<H>(pool: &Pool, name: &str, kind: Kind) -> Result<Option<NonNull<H>>> {
    let Some(root) = pool.root(name).filter(|root| root.type_tag == kind.tag()) else { return Ok(None) };
    if root.size != size_of::<H>() as u64 {
        return Err(Error::Damaged(format!("its root says that it has {} bytes", root.size)));
    }
    let at = line_aligned(root.ptr.as_ptr()).cast::<H>();
    bounds::check(pool, at, 0, "its header")?;
    Ok(NonNull::new(at))
}

/// One transaction, which reserves room for a segment and some small blocks.
fn create<H>(pool: &Pool, name: &str, kind: Kind, init: impl FnOnce(&Tx<'_>, *mut H) -> Result<()>) -> Result<Root> {
    const { assert!(align_of::<H>() <= 64) };
    let mut thread = pool.register()?;
    let tx = thread.begin_undoable_reserving(2 * SEGMENT)?;
    let made = tx.alloc(size_of::<H>() + 64).map_err(Error::from).and_then(|ptr| {
        init(&tx, line_aligned(ptr.as_ptr()).cast())?;
        let root = Root { ptr, type_tag: kind.tag(), size: size_of::<H>() as u64 };
        // SAFETY: the header just made, in a live block of its own; the tag is that of its type.
        unsafe { tx.set_root(name, Some(root)) }?;
        Ok(root)
    });
    match made {
        Ok(_) => _ = tx.commit(),
        Err(_) => tx.abort(),
    }
    made
}

/// Refuses a thread of another pool: its marks would go to that pool's log.
#[inline]
pub(crate) fn same_pool(pool: &Pool, thread: &Thread) -> Result<()> {
    if pool.heap_range().0 == thread.pool().heap_range().0 {
        return Ok(());
    }
    Err(wrong_pool())
}

#[cold]
fn wrong_pool() -> Error {
    towa_epoch::Error::Usage("the thread is registered with another pool than the container's: register it with this pool".into())
        .into()
}

/// Begins a transaction that writes a block of `room` bytes beside what every transaction may.
#[inline]
pub(crate) fn begin(thread: &mut Thread, room: usize) -> Result<Tx<'_>> {
    // Most are small; asking costs little, but nothing is less.
    Ok(if room < 2048 { thread.begin() } else { thread.begin_reserving(room + 4096) }?)
}
