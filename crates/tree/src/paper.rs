//! **The tree of the NV-HTM paper**, as a baseline: a B+-tree with sorted nodes of 128 slots, where each operation, its way down
//! included, is one transaction, and every word that is shifted is logged (Castro, Romano, Barreto, IPDPS 2018, and the code published
//! with it). It is meant for pools that repeat an aborted hardware transaction blindly. Nobody should use it for anything else.
//!
//! ```text
//!   header:  | magic | root | spare nodes | how many |
//!   node:    | count, level << 32 | 128 sorted keys | 129 children; in a leaf 128 values |
//! ```
//!
//! Nodes come from a list of spare ones, filled up outside, as the paper's come from a thread's own memory: the hardware path cannot
//! allocate. A removal shifts entries and never merges nodes.
//!
//! What must always hold: whatever is read and written is so in a transaction; a full node is split on the way down, so that its parent
//! has room.

use std::ops::{Bound, ControlFlow, RangeBounds};
use std::ptr::NonNull;

use towa_tx::{Abort, Addr, Error as TxError, Pool, Root, Thread, Tx};

use crate::map::{Direction, Error, OrderedMap, Result, Session};

const MAGIC: u64 = u64::from_le_bytes(*b"TOWAPAPR");
const SLOTS: usize = 128;
const NODE_WORDS: usize = 1 + SLOTS + SLOTS + 1;
/// Offsets in the header.
const ROOT: u64 = 8;
const SPARE: u64 = 16;
const SPARES: u64 = 24;
/// Spare nodes that an operation wants to find: one for each level it may split, for some threads; and how many are added at a time.
const SPARES_LEAST: u64 = 16;
const SPARES_ADDED: u64 = 16;

/// What a part of a transaction's body gives.
type Step<T> = std::result::Result<T, Abort>;

fn key_at(node: Addr, i: usize) -> Addr {
    node + 8 + 8 * i as u64
}

fn child_at(node: Addr, i: usize) -> Addr {
    node + 8 * (1 + SLOTS + i) as u64
}

/// Count and level.
fn head(tx: &mut Tx<'_>, node: Addr) -> Step<(usize, u64)> {
    let head = tx.read(node)?;
    Ok((head as u32 as usize, head >> 32))
}

/// Number of the node's keys below `key`, or, if `or_at`, not above it.
fn below(tx: &mut Tx<'_>, node: Addr, count: usize, key: u64, or_at: bool) -> Step<usize> {
    let (mut from, mut to) = (0, count);
    while from < to {
        let middle = (from + to) / 2;
        let found = tx.read(key_at(node, middle))?;
        if found < key || or_at && found == key { from = middle + 1 } else { to = middle }
    }
    Ok(from)
}

fn copy(tx: &mut Tx<'_>, from: Addr, to: Addr) -> Step<()> {
    let word = tx.read(from)?;
    tx.write(to, word)
}

/// The paper's tree, of `u64` keys.
#[derive(Debug)]
pub struct PaperTree {
    pool: Pool,
    header: Addr,
}

impl PaperTree {
    /// Opens the tree that is root `name` of `pool`, or creates it.
    pub fn open_or_create(pool: &Pool, name: &str) -> Result<PaperTree> {
        let mut thread = pool.register()?;
        if let Some(root) = pool.root(name) {
            let header = root.ptr.as_ptr().addr() as u64;
            if root.type_tag != MAGIC || !thread.holds(header) || thread.load(header) != MAGIC {
                let what = format!("root {name:?} is no tree of the paper's kind; open it as what it is");
                return Err(Error::Mismatch { pool: pool.location(), what });
            }
            return Ok(PaperTree { pool: pool.clone(), header });
        }
        let made = thread.transaction_software(|tx| {
            let (header, leaf) = (tx.alloc(32)?, tx.alloc(NODE_WORDS * 8)?);
            tx.init(header, &[MAGIC, leaf, 0, 0])?;
            tx.init(leaf, &[0; NODE_WORDS])?;
            let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(header as usize)).expect("an address in the heap");
            tx.create_root(name, Root { ptr, type_tag: MAGIC, size: 32 })?;
            Ok(header)
        });
        let tree = PaperTree { pool: pool.clone(), header: 0 };
        Ok(PaperTree { header: made.map_err(|e| tree.failed(e))?, ..tree })
    }

    fn failed(&self, error: TxError) -> Error {
        match error {
            TxError::OutOfSpace { wanted, heap_len } => Error::OutOfSpace {
                pool: self.pool.location(),
                what: format!("no room for a block of {wanted} bytes in a heap of {heap_len}"),
            },
            other => Error::Tx(other),
        }
    }

    fn new_session(&self) -> Result<PaperSession<'_>> {
        Ok(PaperSession { tree: self, thread: self.pool.register()? })
    }

    /// The node at `node` and all below: `low <= key < high`, sorted, of these levels.
    fn check_node(&self, t: &Thread, node: Addr, level: u64, low: u64, high: Option<u64>) -> Result<()> {
        let count = t.load(node) as u32 as usize;
        let keys: Vec<u64> = (0..count.min(SLOTS)).map(|i| t.load(key_at(node, i))).collect();
        let inside = |key: &u64| *key >= low && high.is_none_or(|high| *key < high);
        if t.load(node) >> 32 != level || count > SLOTS || !keys.is_sorted_by(|a, b| a < b) || !keys.iter().all(inside) {
            let what = format!("the node at {node:#x} of level {level} has the head {:#x} and keys {keys:?}", t.load(node));
            return Err(Error::Damaged { pool: self.pool.location(), what });
        }
        for i in (0..=count).filter(|_| level > 0) {
            let low = if i == 0 { low } else { keys[i - 1] };
            self.check_node(t, t.load(child_at(node, i)), level - 1, low, keys.get(i).copied().or(high))?;
        }
        Ok(())
    }
}

/// A node out of the spare ones.
fn take(tx: &mut Tx<'_>, header: Addr) -> Step<Addr> {
    let node = tx.read(header + SPARE)?;
    if node == 0 {
        return tx.alloc(NODE_WORDS * 8);
    }
    copy(tx, node, header + SPARE)?;
    let spares = tx.read(header + SPARES)?;
    tx.write(header + SPARES, spares - 1)?;
    Ok(node)
}

/// Splits the full `child`, child `i` of `parent`, which has room.
fn split(tx: &mut Tx<'_>, header: Addr, parent: Addr, i: usize, child: Addr) -> Step<()> {
    let (_, level) = head(tx, child)?;
    let new = take(tx, header)?;
    let half = SLOTS / 2;
    // Of an inner node the middle key goes up and stays in neither half.
    let first = if level == 0 { half } else { half + 1 };
    for from in first..SLOTS {
        copy(tx, key_at(child, from), key_at(new, from - first))?;
    }
    for from in first..SLOTS + usize::from(level > 0) {
        copy(tx, child_at(child, from), child_at(new, from - first))?;
    }
    tx.write(new, (SLOTS - first) as u64 | level << 32)?;
    tx.write(child, half as u64 | level << 32)?;
    let (count, level) = head(tx, parent)?;
    for from in (i..count).rev() {
        copy(tx, key_at(parent, from), key_at(parent, from + 1))?;
        copy(tx, child_at(parent, from + 1), child_at(parent, from + 2))?;
    }
    copy(tx, key_at(child, half), key_at(parent, i))?;
    tx.write(child_at(parent, i + 1), new)?;
    tx.write(parent, (count + 1) as u64 | level << 32)
}

/// Adds `key`, or changes its value if it is there and `replace`; the value it had.
fn put(tx: &mut Tx<'_>, header: Addr, key: u64, value: u64, replace: bool) -> Step<Option<u64>> {
    let mut node = tx.read(header + ROOT)?;
    let (count, level) = head(tx, node)?;
    if count == SLOTS {
        let root = take(tx, header)?;
        tx.write(root, (level + 1) << 32)?;
        tx.write(child_at(root, 0), node)?;
        split(tx, header, root, 0, node)?;
        tx.write(header + ROOT, root)?;
        node = root;
    }
    loop {
        let (count, level) = head(tx, node)?;
        if level == 0 {
            return put_in_leaf(tx, node, count, key, value, replace);
        }
        let mut i = below(tx, node, count, key, true)?;
        let child = tx.read(child_at(node, i))?;
        if head(tx, child)?.0 == SLOTS {
            split(tx, header, node, i, child)?;
            i += usize::from(key >= tx.read(key_at(node, i))?);
        }
        node = tx.read(child_at(node, i))?;
    }
}

fn put_in_leaf(tx: &mut Tx<'_>, leaf: Addr, count: usize, key: u64, value: u64, replace: bool) -> Step<Option<u64>> {
    let i = below(tx, leaf, count, key, false)?;
    if i < count && tx.read(key_at(leaf, i))? == key {
        let old = tx.read(child_at(leaf, i))?;
        if replace {
            tx.write(child_at(leaf, i), value)?;
        }
        return Ok(Some(old));
    }
    for from in (i..count).rev() {
        copy(tx, key_at(leaf, from), key_at(leaf, from + 1))?;
        copy(tx, child_at(leaf, from), child_at(leaf, from + 1))?;
    }
    tx.write(key_at(leaf, i), key)?;
    tx.write(child_at(leaf, i), value)?;
    tx.write(leaf, count as u64 + 1)?;
    Ok(None)
}

/// Which leaf is looked for.
#[derive(Clone, Copy)]
enum Way {
    At(u64),
    Below(u64),
    Last,
}

/// The leaf, its count, and the keys from which and up to which it goes.
fn leaf(tx: &mut Tx<'_>, header: Addr, way: Way) -> Step<(Addr, usize, Option<u64>, Option<u64>)> {
    let mut node = tx.read(header + ROOT)?;
    let (mut low, mut high) = (None, None);
    loop {
        let (count, level) = head(tx, node)?;
        if level == 0 {
            return Ok((node, count, low, high));
        }
        let i = match way {
            Way::At(key) => below(tx, node, count, key, true)?,
            Way::Below(key) => below(tx, node, count, key, false)?,
            Way::Last => count,
        };
        if i > 0 {
            low = Some(tx.read(key_at(node, i - 1))?);
        }
        if i < count {
            high = Some(tx.read(key_at(node, i))?);
        }
        node = tx.read(child_at(node, i))?;
    }
}

/// The slot of `key`, and its value.
fn find(tx: &mut Tx<'_>, leaf: Addr, count: usize, key: u64) -> Step<Option<(usize, u64)>> {
    let i = below(tx, leaf, count, key, false)?;
    if i == count || tx.read(key_at(leaf, i))? != key {
        return Ok(None);
    }
    Ok(Some((i, tx.read(child_at(leaf, i))?)))
}

/// A thread's way to a [`PaperTree`].
#[derive(Debug)]
pub struct PaperSession<'m> {
    tree: &'m PaperTree,
    thread: Thread,
}

impl PaperSession<'_> {
    fn run<R>(&mut self, body: impl FnMut(&mut Tx<'_>) -> Step<R>) -> Result<R> {
        self.thread.transaction(body).map_err(|e| self.tree.failed(e))
    }

    fn put(&mut self, key: u64, value: u64, replace: bool) -> Result<Option<u64>> {
        let header = self.tree.header;
        if self.thread.load(header + SPARES) < SPARES_LEAST {
            let added = self.thread.transaction_software(|tx| {
                for _ in 0..SPARES_ADDED {
                    let node = tx.alloc(NODE_WORDS * 8)?;
                    let mut words = [0; NODE_WORDS];
                    words[0] = tx.read(header + SPARE)?;
                    tx.init(node, &words)?;
                    tx.write(header + SPARE, node)?;
                }
                let spares = tx.read(header + SPARES)?;
                tx.write(header + SPARES, spares + SPARES_ADDED)
            });
            match added {
                // Then it tries with what there is.
                Ok(()) | Err(TxError::OutOfSpace { .. }) => {}
                Err(e) => return Err(self.tree.failed(e)),
            }
        }
        self.run(|tx| put(tx, header, key, value, replace))
    }
}

impl Session<u64> for PaperSession<'_> {
    fn insert(&mut self, key: &u64, value: u64) -> Result<bool> {
        Ok(self.put(*key, value, false)?.is_none())
    }

    fn upsert(&mut self, key: &u64, value: u64) -> Result<Option<u64>> {
        self.put(*key, value, true)
    }

    fn get(&mut self, key: &u64) -> Result<Option<u64>> {
        let header = self.tree.header;
        self.run(|tx| {
            let (leaf, count, ..) = leaf(tx, header, Way::At(*key))?;
            Ok(find(tx, leaf, count, *key)?.map(|(_, value)| value))
        })
    }

    fn remove(&mut self, key: &u64) -> Result<Option<u64>> {
        let header = self.tree.header;
        self.run(|tx| {
            let (leaf, count, ..) = leaf(tx, header, Way::At(*key))?;
            let Some((i, value)) = find(tx, leaf, count, *key)? else { return Ok(None) };
            for from in i + 1..count {
                copy(tx, key_at(leaf, from), key_at(leaf, from - 1))?;
                copy(tx, child_at(leaf, from), child_at(leaf, from - 1))?;
            }
            tx.write(leaf, count as u64 - 1)?;
            Ok(Some(value))
        })
    }

    fn scan(
        &mut self,
        (from, to): (Bound<&u64>, Bound<&u64>),
        direction: Direction,
        each: &mut dyn FnMut(&u64, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let header = self.tree.header;
        let forward = direction == Direction::Forward;
        let mut way = match (forward, from, to) {
            (true, Bound::Included(key) | Bound::Excluded(key), _) => Way::At(*key),
            (true, Bound::Unbounded, _) => Way::At(0),
            (false, _, Bound::Included(key) | Bound::Excluded(key)) => Way::At(*key),
            (false, _, Bound::Unbounded) => Way::Last,
        };
        let mut entries = [(0, 0); SLOTS];
        loop {
            let (count, low, high) = self.run(|tx| {
                let (leaf, count, low, high) = leaf(tx, header, way)?;
                for (i, entry) in entries.iter_mut().enumerate().take(count) {
                    *entry = (tx.read(key_at(leaf, i))?, tx.read(child_at(leaf, i))?);
                }
                Ok((count, low, high))
            })?;
            let mut wanted = entries[..count].iter().filter(|(key, _)| {
                // A leaf only ever splits: what was given lies on the other side of where this one was looked for.
                let is_new = match way {
                    Way::Below(border) => *key < border,
                    Way::At(border) if forward => *key >= border,
                    _ => true,
                };
                is_new && (from, to).contains(key)
            });
            while let Some((key, value)) = if forward { wanted.next() } else { wanted.next_back() } {
                if each(key, *value).is_break() {
                    return Ok(());
                }
            }
            way = match (forward, low, high) {
                (true, _, Some(high)) if (Bound::Unbounded, to).contains(&high) => Way::At(high),
                (false, Some(low), _) if low > 0 && (from, Bound::Unbounded).contains(&(low - 1)) => Way::Below(low),
                _ => return Ok(()),
            };
        }
    }
}

impl OrderedMap<u64> for PaperTree {
    fn session(&self) -> Result<Box<dyn Session<u64> + '_>> {
        Ok(Box::new(self.new_session()?))
    }

    fn count(&self) -> Result<u64> {
        let mut count = 0;
        self.new_session()?.scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward, &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    fn check(&self) -> Result<()> {
        let thread = self.pool.register()?;
        let root = thread.load(self.header + ROOT);
        self.check_node(&thread, root, thread.load(root) >> 32, 0, None)
    }
}
