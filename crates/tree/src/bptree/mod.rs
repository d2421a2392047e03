//! **The B+-tree on durable transactions**: the whole tree lies in the heap's working copy, and every change is a transaction of `tx`.
//!
//! ```text
//!                root name ─► header ─► root
//!                                        │            inner nodes: sorted keys and children
//!                             ┌──────────┴─────────┐
//!                           inner                inner
//!                        ┌────┴────┐          ┌────┴────┐
//!                       leaf      leaf       leaf      leaf      fingerprints, bitmap, 48 entries in no order; no links
//! ```
//!
//! | file | what |
//! |---|---|
//! | `layout` | the bytes |
//! | `walk` | down to a leaf, without locks |
//! | `session` | looking up, adding, changing, removing within a leaf: one small transaction |
//! | `change`, `split`, `merge` | changes of several nodes: worked out outside, made in one transaction |
//! | `scan`, `load`, `check` | scans; filling an empty tree; every invariant |
//! | `destroy` | giving back free nodes, and whole trees |
//!
//! What must always hold:
//! 1. every change of a node, and of a node's range of keys, stamps the node's version word (`walk.rs`);
//! 2. no node is given back to the allocator while the tree is open, so that version words stay version words. The
//!    tree keeps free nodes itself, and gives them back when it is opened or closed (`destroy.rs`);
//! 3. a leaf's version guards its entries, their blobs and its range; so what an operation needs to be durable is that version.
//!
//! What makes it fast where the tree measured by Castro et al. (NV-HTM, IPDPS 2018) was slow is said in ARCHITECTURE.md; that tree is
//! [`PaperTree`](crate::PaperTree).

mod change;
mod check;
mod destroy;
mod layout;
mod load;
mod merge;
mod scan;
mod session;
mod split;
mod walk;

use std::marker::PhantomData;
use std::ptr::NonNull;

use towa_tx::{Addr, Pool, Root, RootHold, Thread};

use crate::keys::Key;
use crate::map::{Error, OrderedMap, Result, Session};
use layout::{DESCRIPTION, FORMAT, MAGIC, SLACK, Shape, VERSION, aligned, header};

pub(crate) use layout::ROOT_TAG;
pub use session::BpSession;

/// A durable ordered map: a B+-tree whose every change is a transaction. Keys are `u64` or `[u8]`.
///
/// `LEAF` and `INNER` are the entries of a leaf and the keys of an inner node; others than the defaults are for tests, which want deep
/// trees of few keys. A tree is opened with the sizes that it was created with.
#[derive(Debug)]
pub struct BpTree<K: ?Sized, const LEAF: usize = 48, const INNER: usize = 62> {
    pool: Pool,
    header: Addr,
    /// No transaction sets or removes its root.
    hold: RootHold,
    _keys: PhantomData<fn(&K)>,
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpTree<K, LEAF, INNER> {
    /// Creates a tree as root `name` of `pool`.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: there is a root of this name; [`Error::OutOfSpace`]; a name that cannot be.
    pub fn create(pool: &Pool, name: &str) -> Result<Self> {
        let () = Shape::<LEAF, INNER>::POSSIBLE;
        let hold = pool.hold_root(name);
        if pool.root(name).is_some() {
            let what = format!("there is a root {name:?} already; open it, or choose another name");
            return Err(Error::Mismatch { pool: pool.location(), what });
        }
        let mut tree = Self::at(pool, hold, 0);
        let made = pool.register()?.transaction_software(|tx| {
            let block = tx.alloc((header::LEN + SLACK) as usize)?;
            let header = aligned(block);
            tx.init(block, &[0; ((header::LEN + SLACK) / 8) as usize])?;
            let empty = Shape::<LEAF, INNER>::leaf_words(0);
            let root = change::new_node::<LEAF, INNER>(tx, 0, empty)?;
            tx.init(root, &vec![0; empty])?;
            tx.init(header, &Self::described())?;
            tx.init(header + header::ROOT, &[root])?;
            tx.touch(header + header::VERSION)?;
            tx.touch(root + VERSION)?;
            let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(header as usize)).expect("an address in the heap");
            tx.create_held_root(&tree.hold, Root { ptr, type_tag: ROOT_TAG, size: header::LEN })?;
            Ok(header)
        });
        tree.header = made.map_err(|e| tree.failed(e))?;
        Ok(tree)
    }

    /// Opens the tree that is root `name` of `pool`. If nothing else in this program has it open, nodes that it has
    /// no use for are given back to the pool.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: there is no such root, it is no tree of such keys and sizes, or it was being
    /// [destroyed](Self::destroy). [`Error::Damaged`]: its header was overwritten.
    pub fn open(pool: &Pool, name: &str) -> Result<Self> {
        let tree = Self::look(pool, name)?;
        let entered = tree.hold.enter();
        let mut thread = tree.thread()?;
        if thread.load(tree.header + header::DESTROYED) != 0 {
            let what =
                format!("the tree {name:?} was being destroyed when its program ended; destroy it again, which goes on with that");
            return Err(Error::Mismatch { pool: pool.location(), what });
        }
        if entered.is_only() {
            tree.give_back_free_nodes(&mut thread)?;
        }
        drop(entered);
        Ok(tree)
    }

    /// The tree that is root `name`, as it is: to be looked at.
    pub(crate) fn look(pool: &Pool, name: &str) -> Result<Self> {
        let hold = pool.hold_root(name);
        // Who destroys it is waited for. From then on it is held, and is not destroyed.
        let entered = hold.enter();
        let header = Self::find(pool, name)?.1;
        drop(entered);
        Ok(Self::at(pool, hold, header))
    }

    /// The header of the tree that is root `name`, which is held.
    fn find(pool: &Pool, name: &str) -> Result<(Thread, Addr)> {
        let () = Shape::<LEAF, INNER>::POSSIBLE;
        let mismatch = |what| Err(Error::Mismatch { pool: pool.location(), what });
        let damaged = |what| Err(Error::Damaged { pool: pool.location(), what });
        let Some(root) = pool.root(name) else {
            return mismatch(format!("there is no root {name:?}; create the tree"));
        };
        if root.type_tag != ROOT_TAG {
            return mismatch(format!("root {name:?} is no B+-tree; open it as what it is"));
        }
        let at = root.ptr.as_ptr().addr() as u64;
        let thread = pool.register()?;
        // The root says that a tree is there: anything else is damage.
        if !at.is_multiple_of(64) || !thread.holds(at) || !thread.holds(at + header::LEN - 8) {
            return damaged(format!("root {name:?} leads to {at:#x}, where no B+-tree can be"));
        }
        let found: [u64; DESCRIPTION] = layout::copy(&thread, at, DESCRIPTION).try_into().expect("as many words");
        if found[0] != MAGIC || found[DESCRIPTION - 1] != layout::description_sum(&found) {
            return damaged(format!("the header of the B+-tree that root {name:?} names is overwritten"));
        }
        if found[1] != FORMAT {
            return mismatch(format!("root {name:?} is a B+-tree of format {}, this program knows {FORMAT}", found[1]));
        }
        if found != Self::described() {
            let kind = found[2].to_le_bytes();
            let kind = String::from_utf8_lossy(&kind);
            let (kind, leaf, inner) = (kind.trim_end_matches('\0'), found[3], found[4]);
            return mismatch(format!(
                "root {name:?} is a B+-tree of {kind} keys, with {leaf} entries in a leaf and {inner} keys in a node, not of {} keys \
                 with {LEAF} and {INNER}; open it as that",
                K::NAME
            ));
        }
        Ok((thread, at))
    }

    /// [Opens](Self::open) the tree, or [creates](Self::create) it where there is no root of that name.
    pub fn open_or_create(pool: &Pool, name: &str) -> Result<Self> {
        if pool.root(name).is_some() {
            return Self::open(pool, name);
        }
        match Self::create(pool, name) {
            // Another thread was faster.
            Err(Error::Mismatch { .. }) if pool.root(name).is_some() => Self::open(pool, name),
            other => other,
        }
    }

    fn at(pool: &Pool, hold: RootHold, header: Addr) -> Self {
        Self { pool: pool.clone(), header, hold, _keys: PhantomData }
    }

    /// The first line of its header.
    fn described() -> [u64; DESCRIPTION] {
        let mut kind = [0; 8];
        kind[..K::NAME.len()].copy_from_slice(K::NAME.as_bytes());
        let mut words = [MAGIC, FORMAT, u64::from_le_bytes(kind), LEAF as u64, INNER as u64, 0, 0, 0];
        words[DESCRIPTION - 1] = layout::description_sum(&words);
        words
    }

    /// The pool that it lies in.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A thread's way to it, for use without a trait object.
    pub fn session(&self) -> Result<BpSession<'_, K, LEAF, INNER>> {
        BpSession::new(self)
    }

    /// A thread to look at the tree with.
    fn thread(&self) -> Result<Thread> {
        Ok(self.pool.register()?)
    }
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> OrderedMap<K> for BpTree<K, LEAF, INNER> {
    fn session(&self) -> Result<Box<dyn Session<K> + '_>> {
        Ok(Box::new(BpSession::new(self)?))
    }

    fn count(&self) -> Result<u64> {
        self.count_leaves()
    }

    fn check(&self) -> Result<()> {
        self.check_all()
    }

    fn bulk_load<'e>(&mut self, entries: &mut dyn Iterator<Item = (&'e K, u64)>) -> Result<u64>
    where
        K: 'e,
    {
        BpTree::bulk_load(self, entries)
    }
}
