//! The trees, as a sweep sees them: what differs between one that changes leaves in place and one that logs transactions.
//!
//! What must always hold: [`leave`](Tree::leave) leaves on the medium what a process that ends there would, and nothing of the tree is open
//! any more, so that the next one can be opened.

use std::borrow::Borrow;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rand::Rng;
use rand::rngs::SmallRng;
use towa_media::sim::SimMedium;
use towa_tree::{BpTree, Direction, Error, FpTree, Key, OrderedMap, Result, Session, fptree};
use towa_tx::{Checkpointer, Commit, Options, Pool, TmChoice, hardware_transactions_commit};

use super::world::{Shape, State};

/// Byte strings of numbers from here on are long.
pub const LONG: u64 = 1000;

/// Keys that are drawn.
pub trait Drawn: Key {
    /// The key of a number.
    fn of(n: u64) -> Self::Owned;
}

impl Drawn for u64 {
    fn of(n: u64) -> u64 {
        n << 32 | n
    }
}

impl Drawn for [u8] {
    /// Of several size classes, some a beginning of others; from `LONG` on long ones.
    fn of(n: u64) -> Vec<u8> {
        let mut key = (n as u32 / 2).to_be_bytes().to_vec();
        let more = if n < LONG { n % 2 * (n * 7 % 90) } else { 500 + n * 97 % 500 };
        key.resize(4 + more as usize, 0);
        key
    }
}

/// A kind of tree, of a kind of keys.
pub trait Tree: OrderedMap<Self::Key> + Sized {
    /// Its keys.
    type Key: Drawn + ?Sized;
    /// Its name, for messages.
    const NAME: &'static str;

    /// A world's shape.
    fn shape(rng: &mut SmallRng) -> Shape;
    /// The tree on `medium`, which is made where there is none.
    fn open_or_create(medium: &SimMedium, shape: &Shape) -> Result<Self>;
    /// The tree on `medium`; `None` where there is none.
    fn open(medium: &SimMedium) -> Result<Option<Self>>;
    /// A way to work on it that any thread may go.
    fn worker(&self) -> Result<Box<dyn Session<Self::Key> + Send + '_>>;
    /// What a background thread would do now.
    fn checkpoint(&self) -> Result<()>;
    /// Makes durable what has returned.
    fn sync(&self) -> Result<()>;
    /// Ends it properly, which is none of an operation's promises.
    fn close(self) -> Result<()>;
    /// Ends it as a crash of the process would.
    fn leave(self);
}

impl<K: Drawn + ?Sized> Tree for FpTree<K> {
    type Key = K;
    const NAME: &'static str = "FPTree";

    /// Small arenas, so that the high-water mark rises often, and now and then there is no room.
    fn shape(rng: &mut SmallRng) -> Shape {
        let len = if rng.random_ratio(1, 4) { rng.random_range(24..48) << 10 } else { 512 << 10 };
        let (entries, keys, operations) = (rng.random_range(2..6), rng.random_range(8..40), rng.random_range(20..70));
        Shape { entries, len, keys, operations, ..Shape::default() }
    }

    fn open_or_create(medium: &SimMedium, shape: &Shape) -> Result<Self> {
        let options = fptree::Options { len: shape.len, entries: shape.entries };
        match Tree::open(medium)? {
            Some(tree) => Ok(tree),
            None => FpTree::create(Arc::new(medium.clone()), &options),
        }
    }

    fn open(medium: &SimMedium) -> Result<Option<Self>> {
        match FpTree::open(Arc::new(medium.clone())) {
            Err(Error::Alloc(towa_alloc::Error::Missing { .. })) => Ok(None),
            other => other.map(Some),
        }
    }

    fn worker(&self) -> Result<Box<dyn Session<K> + Send + '_>> {
        Ok(Box::new(FpTree::session(self)))
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self) -> Result<()> {
        Ok(())
    }

    fn leave(self) {}
}

/// Name of the tree's root.
const ROOT: &str = "tree";
/// What a heap gives out at a time; the least heap has eight.
const CHUNK: u64 = 128 << 10;

impl<K: Drawn + ?Sized, const LEAF: usize, const INNER: usize> Tree for BpTree<K, LEAF, INNER> {
    type Key = K;
    const NAME: &'static str = "B+-tree";

    /// The smallest logs; and often a small heap, and byte strings that it has no room for.
    fn shape(rng: &mut SmallRng) -> Shape {
        let tight = rng.random_ratio(1, 2);
        let (chunks, first_key) = if tight { (8, LONG) } else { (24, 0) };
        let tm = match rng.random_range(0..3) {
            0 if hardware_transactions_commit() => TmChoice::Rtm,
            1 => TmChoice::Lock,
            _ => TmChoice::Stm,
        };
        Shape {
            len: chunks * CHUNK,
            first_key,
            keys: rng.random_range(8..90),
            operations: rng.random_range(40..140),
            tm,
            commit: if rng.random_ratio(1, 3) { Commit::Buffered } else { Commit::Strict },
            checkpoint_one_in: rng.random_range(4..40),
            close: rng.random_ratio(1, 4),
            ..Shape::default()
        }
    }

    fn open_or_create(medium: &SimMedium, shape: &Shape) -> Result<Self> {
        let options = Options { heap_len: shape.len, tm: shape.tm, commit: shape.commit, base: Some(free_base()), ..options() };
        let shared = Arc::new(medium.clone());
        let pool = match Pool::open_on(shared.clone(), &options) {
            Err(towa_tx::Error::Heap(towa_heap::Error::Missing { .. })) => Pool::create_on(shared, &options)?,
            other => other?,
        };
        let tree = BpTree::open_or_create(&pool, ROOT)?;
        // Where commits are buffered it may be new, and nothing durable yet.
        pool.sync()?;
        Ok(tree)
    }

    fn open(medium: &SimMedium) -> Result<Option<Self>> {
        let pool = match Pool::open_on(Arc::new(medium.clone()), &options()) {
            Err(towa_tx::Error::Heap(towa_heap::Error::Missing { .. })) => return Ok(None),
            other => other?,
        };
        if pool.root(ROOT).is_none() {
            pool.abandon();
            return Ok(None);
        }
        BpTree::open(&pool, ROOT).map(Some)
    }

    fn worker(&self) -> Result<Box<dyn Session<K> + Send + '_>> {
        Ok(Box::new(BpTree::session(self)?))
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(self.pool().checkpoint()?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.pool().sync()?)
    }

    fn close(self) -> Result<()> {
        Ok(self.pool().clone().close()?)
    }

    fn leave(self) {
        self.pool().clone().abandon();
    }
}

/// Of pools whose checkpoints come when the world says so.
fn options() -> Options {
    Options {
        lanes: 4,
        lane_len: 64 << 10,
        tm: TmChoice::Stm,
        checkpointer: Checkpointer::Manual,
        eager: true,
        ..Options::default()
    }
}

/// An address for a pool of its own: worlds of parallel tests live in one process.
fn free_base() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5300_0000_0000);
    NEXT.fetch_add(64 << 20, Relaxed)
}

/// Everything in a tree, by a scan; what a scan gives a search must find.
pub fn everything<T: Tree>(tree: &T) -> std::result::Result<State<T::Key>, String> {
    let mut state = State::<T::Key>::new();
    let mut session = tree.worker().map_err(|e| e.to_string())?;
    let mut each = |key: &T::Key, value| {
        state.insert(owned(key), value);
        std::ops::ControlFlow::Continue(())
    };
    session.scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward, &mut each).map_err(|e| e.to_string())?;
    for (key, value) in &state {
        let found = session.get(key.borrow()).map_err(|e| e.to_string())?;
        if found != Some(*value) {
            return Err(format!("{key:?} is there, and a search gives {found:?}"));
        }
    }
    Ok(state)
}

/// A key that is kept.
pub fn owned<K: Key + ?Sized>(key: &K) -> K::Owned {
    let mut owned = K::Owned::default();
    key.copy_to(&mut owned);
    owned
}
