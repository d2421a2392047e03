//! [`Queue`]: byte strings, first in first out, for many producers and consumers.
//!
//! ```text
//!   Header   line 0  head: node, number taken   (head lock)
//!            line 1  tail: node, number put     (tail lock)
//!
//!   head ──► [spent] ──► [oldest] ──► ... ──► [newest] ◄── tail          empty: head and tail are the same, spent, node
//! ```
//! The head's node is spent: its content has been taken. `push` writes the newest node's `next` and the tail's line; `pop` reads
//! the spent node's `next`, writes the head's line and frees the spent node. These never meet in a line - except when the queue is
//! empty, where the spent node is the newest.
//!
//! **The empty case.** A consumer must not see an item whose `push` has not *ended*: in an older epoch it would move the head to a
//! node that only a newer epoch has. Hence `put`, the number of pushes that have ended, in DRAM: a consumer that finds
//! `taken == put` leaves the nodes alone; one that finds `taken < put` begins its transaction after that push ended, and its
//! epoch is the same or later.

use crate::handle::{self, Kind};
use crate::store::put;
use crate::{Error, Result, bounds};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use towa_epoch::typed::scope;
use towa_epoch::{Pool, Thread, Tx};

#[repr(C, align(64))]
struct Header {
    head: End,
    tail: End,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct End {
    node: *mut Node,
    /// Items that passed this end, ever.
    passed: u64,
}

#[repr(C)]
struct Node {
    next: *mut Node,
    len: u64,
}

impl Node {
    fn new(tx: &Tx<'_>, bytes: &[u8]) -> Result<*mut Node> {
        let node = tx.alloc(size_of::<Node>() + bytes.len())?.cast::<Node>().as_ptr();
        // SAFETY: a fresh block of that size, marked.
        unsafe {
            node.write(Node { next: ptr::null_mut(), len: bytes.len() as u64 });
            node.add(1).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(node)
    }
}

struct Shared {
    pool: Pool,
    header: NonNull<Header>,
    head: CachePadded<Mutex<()>>,
    tail: CachePadded<Mutex<()>>,
    /// Pushes that have ended.
    put: CachePadded<AtomicU64>,
    /// Pops that have ended.
    taken: CachePadded<AtomicU64>,
}

// SAFETY: the header is in the pool, which `pool` keeps mapped; what it leads to is accessed under the locks said above.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A queue of byte strings that survives. Clones and further openings share it.
///
/// **Guarantee**: each operation is atomic, and every item is given to one consumer; a crash leaves the queue as of an epoch
/// boundary, so an item taken just before it is there again. **Complexity**: O(1). **Concurrency**: one producer and one consumer
/// work at the same time, also on a queue of one item.
///
/// ```
/// use towa_containers::Queue;
/// # use towa_epoch::{Options, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
/// let jobs = Queue::open(&pool, "jobs")?;
/// let mut thread = pool.register()?;
/// jobs.push(&mut thread, b"first")?;
/// jobs.push(&mut thread, b"second")?;
/// assert_eq!(jobs.pop(&mut thread)?.unwrap(), b"first");
/// assert_eq!(jobs.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("len", &self.len()).finish_non_exhaustive()
    }
}

const KIND: Kind = Kind { layout: "towa queue 1", words: "queue" };

impl Queue {
    /// The queue named `name`, created if the pool has none.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if the name is taken by something else; [`Error::Epoch`].
    pub fn open(pool: &Pool, name: &str) -> Result<Self> {
        let init = |tx: &Tx<'_>, header: *mut Header| {
            let end = End { node: Node::new(tx, &[])?, passed: 0 };
            // SAFETY: a fresh, marked block; nobody has a handle.
            unsafe { header.write(Header { head: end, tail: end }) };
            Ok(())
        };
        let open = |header: NonNull<Header>| {
            // SAFETY: a valid header; nobody has a handle yet.
            let (taken, put) = unsafe { ((*header.as_ptr()).head.passed, (*header.as_ptr()).tail.passed) };
            Ok(Shared {
                pool: pool.clone(),
                header,
                head: CachePadded::default(),
                tail: CachePadded::default(),
                put: CachePadded::new(AtomicU64::new(put)),
                taken: CachePadded::new(AtomicU64::new(taken)),
            })
        };
        // SAFETY: `init` fills in every field, and a Header is aligned to a line.
        Ok(Self(unsafe { handle::open::<Header, Shared>(pool, name, KIND, init, open) }?))
    }

    /// [`check`](Self::check) of what is under `name`, whatever is broken in it; `None` if that is no queue.
    pub(crate) fn check_named(pool: &Pool, name: &str) -> Result<Option<u64>> {
        match handle::header::<Header>(pool, name, KIND)? {
            Some(_) => Self::open(pool, name)?.check().map(Some),
            None => Ok(None),
        }
    }

    /// Its pool.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Number of items; exact when nobody works on the queue.
    pub fn len(&self) -> u64 {
        let taken = self.0.taken.load(Ordering::Acquire);
        self.0.put.load(Ordering::Acquire).saturating_sub(taken)
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends an item.
    ///
    /// # Errors
    /// [`Error::Epoch`] (out of space, ...); nothing has changed then.
    pub fn push(&self, thread: &mut Thread, bytes: &[u8]) -> Result<()> {
        self.check_thread(thread)?;
        let _tail = self.0.tail.lock();
        // SAFETY: the tail is held around the transaction.
        unsafe {
            let tail = &raw mut (*self.0.header.as_ptr()).tail;
            let tx = handle::begin(thread, bytes.len())?;
            let node = Node::new(&tx, bytes)?;
            put(&tx, &raw mut (*(*tail).node).next, node);
            let passed = (*tail).passed + 1;
            put(&tx, tail, End { node, passed });
            tx.commit();
            // Only now may a consumer see it: see the module.
            self.0.put.store(passed, Ordering::Release);
        }
        Ok(())
    }

    /// Takes the oldest item; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Epoch`]; the item is still there then.
    pub fn pop(&self, thread: &mut Thread) -> Result<Option<Vec<u8>>> {
        self.check_thread(thread)?;
        let _head = self.0.head.lock();
        // SAFETY: the head is held around the transaction.
        unsafe {
            let head = &raw mut (*self.0.header.as_ptr()).head;
            let Some(oldest) = self.oldest() else { return Ok(None) };
            let bytes = content(oldest).to_vec();
            let tx = thread.begin()?;
            let (spent, passed) = ((*head).node, (*head).passed + 1);
            put(&tx, head, End { node: oldest, passed });
            tx.free(NonNull::new_unchecked(spent).cast());
            tx.commit();
            self.0.taken.store(passed, Ordering::Release);
            Ok(Some(bytes))
        }
    }

    /// Runs `f` on the oldest item without taking it, while no consumer can: `f` must be short, and can use no other container.
    ///
    /// # Errors
    /// Inside a transaction or read of the same thread.
    pub fn peek_with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let _scope = scope::write()?;
        let _head = self.0.head.lock();
        // SAFETY: the head is held.
        Ok(unsafe { self.oldest().map(|node| f(content(node))) })
    }

    /// Takes and drops what is there, one item at a time.
    ///
    /// # Errors
    /// [`Error::Epoch`]; part may be gone then.
    pub fn clear(&self, thread: &mut Thread) -> Result<()> {
        for _ in 0..self.len() {
            if self.pop(thread)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Verifies the whole chain, alone in the queue. O(n). Gives the number of items.
    ///
    /// # Errors
    /// [`Error::Damaged`] says what and where.
    pub fn check(&self) -> Result<u64> {
        scope::check_write()?;
        let _both = (self.0.head.lock(), self.0.tail.lock());
        let look = |node: *mut Node| {
            bounds::check(&self.0.pool, node, 0, "a node")?;
            // SAFETY: the node's head lies in the heap.
            bounds::check(&self.0.pool, node, unsafe { (*node).len }, "a node's item")
        };
        // SAFETY: both ends are held; each pointer is checked before it is followed.
        unsafe {
            let Header { head, tail } = &*self.0.header.as_ptr();
            let expected = tail.passed.wrapping_sub(head.passed);
            let (mut node, mut found) = (head.node, 0);
            look(node)?;
            while node != tail.node {
                node = (*node).next;
                found += 1;
                look(node)?;
                if found > expected {
                    return Err(Error::Damaged(format!("a queue of {expected} items goes on at {node:p}, or in a circle")));
                }
            }
            if found != expected || !(*node).next.is_null() {
                return Err(Error::Damaged(format!("a queue of {expected} items has {found}, or goes on after its end")));
            }
            Ok(found)
        }
    }

    /// The node of the oldest item whose push has ended.
    ///
    /// # Safety
    /// The head is held.
    unsafe fn oldest(&self) -> Option<*mut Node> {
        // SAFETY: `passed` and `node` change under the head lock; `next` was written by a push that ended (Acquire).
        unsafe {
            let head = &raw const (*self.0.header.as_ptr()).head;
            (self.0.put.load(Ordering::Acquire) > (*head).passed).then(|| (*(*head).node).next)
        }
    }

    fn check_thread(&self, thread: &Thread) -> Result<()> {
        scope::check_write()?;
        handle::same_pool(&self.0.pool, thread)
    }
}

/// # Safety
/// The node is live during `'a`.
unsafe fn content<'a>(node: *const Node) -> &'a [u8] {
    // SAFETY: the content follows the header.
    unsafe { std::slice::from_raw_parts(node.add(1).cast(), (*node).len as usize) }
}
