//! The inner nodes: from a key to its leaf, in DRAM, rebuilt at every opening.
//!
//! ```text
//!   readers   root ──► node (version) ──► child ──► node (version), parent still the same? ──► ... ──► leaf (version), parent the same?
//!   writers   one at a time (a mutex): lock the nodes that change, change them, unlock
//! ```
//!
//! What must always hold: readers write nothing and follow no pointer that they have not validated; a node that is taken out is locked
//! from before that until after, so that whoever came by it starts again; whoever holds the mutex waits for no leaf.
//!
//! One writer at a time is enough: adding a leaf takes 0.1 µs, once in two dozen inserts of ten times that each, and everything durable
//! is done outside, under the lock of the leaf alone.
//!
//! Separators of byte strings are copies of keys in memory of this process, with an allocator of its own; a reader may compare with one that was
//! just given back, and finds that out as with everything else.

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use parking_lot::Mutex;
use towa_alloc::{Allocator, Arena, Local};

use super::leaf::Leaf;
use super::node::{CHILDREN, KEYS, Node};
use crate::{Key, Result};

/// Nodes are made so many at a time.
const CHUNK: usize = 64;
/// Children of a node built at once: some room is left.
const FILL: usize = 48;

/// Where to go.
pub(super) enum Place<'k, K: ?Sized> {
    First,
    /// Where the key is, or would be.
    Of(&'k K),
    /// Where the keys just less than this one are.
    Before(&'k K),
    Last,
}

/// A leaf, and the version that it had when the index led to it.
pub(super) struct Found<'a> {
    pub leaf: Leaf<'a>,
    pub version: u64,
}

/// Keys that bound a leaf: from the low one, inclusive, to the high one.
#[derive(Clone, Debug)]
pub(super) struct Range<K: Key + ?Sized> {
    pub low: Option<K::Owned>,
    pub high: Option<K::Owned>,
}

impl<K: Key + ?Sized> Default for Range<K> {
    fn default() -> Self {
        Range { low: None, high: None }
    }
}

pub(super) struct Index<K: Key + ?Sized> {
    root: AtomicPtr<Node>,
    /// Of separators that are blobs.
    separators: Arc<Arena>,
    writer: Mutex<Writer>,
    _keys: PhantomData<fn(&K)>,
}

struct Writer {
    /// All nodes there are; never given back before the index.
    chunks: Vec<*mut [Node]>,
    free: Vec<*const Node>,
    local: Local,
}

// SAFETY: the pointers are to nodes in `chunks`, which go with the writer and are shared, and consist of atomics.
unsafe impl Send for Writer {}

impl Writer {
    fn fresh(&mut self) -> &'static Node {
        if self.free.is_empty() {
            let chunk: Box<[Node]> = (0..CHUNK).map(|_| Node::new()).collect();
            let chunk = Box::into_raw(chunk);
            // SAFETY: just made, and given back by `drop` alone.
            self.free.extend(unsafe { &*chunk }.iter().map(ptr::from_ref));
            self.chunks.push(chunk);
        }
        let node = self.free.pop().expect("just filled");
        // SAFETY: a node of a chunk, which lives as long as the index, as do all uses of it (none leaves this module).
        unsafe { &*node }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: made by `Box::into_raw`; the index goes, and nobody has a node any more.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}

fn address(node: &Node) -> u64 {
    ptr::from_ref(node).expose_provenance() as u64
}

impl<K: Key + ?Sized> Index<K> {
    /// An index of one leaf. `len`: bytes of the tree's arena, a bound for what separators can take.
    pub fn new(head: u64, len: u64) -> Result<Index<K>> {
        // Address space only. Every separator is a copy of a key that was in the arena, in a leaf of its own.
        let separators = Arc::new(Arena::volatile(if K::INLINE { 8192 } else { len.clamp(1 << 20, 1 << 39) * 2 })?);
        let allocator = Allocator::rebuild(separators.clone())?.finish()?;
        let mut writer = Writer { chunks: Vec::new(), free: Vec::new(), local: allocator.local() };
        let root = writer.fresh();
        root.set(0, &[], &[head]);
        let root = AtomicPtr::new(ptr::from_ref(root).cast_mut());
        Ok(Index { root, separators, writer: Mutex::new(writer), _keys: PhantomData })
    }

    fn node(&self, address: u64) -> &Node {
        let node = ptr::with_exposed_provenance::<Node>(address as usize);
        // SAFETY: callers give the root, or a child of a level above 0 that was read whole: both are nodes of this index, whose memory
        // stays until the index goes.
        unsafe { &*node }
    }

    fn root(&self) -> &Node {
        // SAFETY: the root is always a node of this index, as above.
        unsafe { &*self.root.load(Acquire) }
    }

    #[inline]
    fn step(&self, node: &Node, place: &Place<'_, K>) -> usize {
        match place {
            Place::First => 0,
            Place::Of(key) => node.search(|word| key.compare(word, &*self.separators).is_ge()),
            Place::Before(key) => node.search(|word| key.compare(word, &*self.separators).is_gt()),
            Place::Last => node.count(),
        }
    }

    /// One attempt to find the leaf: `None` when something changed under way.
    #[inline]
    pub fn try_find<'a>(&self, place: &Place<'_, K>, arena: &'a Arena) -> Option<Found<'a>> {
        let mut node = self.root();
        let mut version = node.version()?;
        // A root that got a parent meanwhile still leads to all that is under it, but it may be free by now.
        if !ptr::eq(self.root(), node) {
            return None;
        }
        loop {
            let level = node.level();
            let child = node.child(self.step(node, place));
            if level == 0 {
                // Bounds are checked: harmless even before it is validated, and the line is on its way meanwhile.
                let leaf = Leaf::at(arena, child)?;
                let leaf_version = leaf.version();
                return node.validate(version).then_some(Found { leaf, version: leaf_version });
            }
            if !node.validate(version) {
                return None;
            }
            let next = self.node(child);
            next.prefetch();
            let next_version = next.version()?;
            // The version read is of a time at which it was this node's child.
            if !node.validate(version) {
                return None;
            }
            (node, version) = (next, next_version);
        }
    }

    /// [`try_find`](Self::try_find), with the keys that bound the leaf.
    pub fn try_find_range<'a>(&self, place: &Place<'_, K>, arena: &'a Arena, range: &mut Range<K>) -> Option<Found<'a>> {
        let mut node = self.root();
        let mut version = node.version()?;
        if !ptr::eq(self.root(), node) {
            return None;
        }
        // Separators and the nodes they are in: copied at the end, for most are narrowed further down.
        let (mut low, mut high) = (None, None);
        loop {
            let level = node.level();
            let at = self.step(node, place);
            let child = node.child(at);
            if at > 0 {
                low = Some((node, version, node.key(at - 1)));
            }
            if at < node.count() {
                high = Some((node, version, node.key(at)));
            }
            if level == 0 {
                let leaf = Leaf::at(arena, child)?;
                let found = Found { leaf, version: leaf.version() };
                let copy = |bound: Option<(&Node, u64, u64)>, to: &mut Option<K::Owned>| {
                    let Some((node, version, word)) = bound else {
                        *to = None;
                        return true;
                    };
                    K::read(word, &*self.separators, to.get_or_insert_default()) && node.validate(version)
                };
                let whole = copy(low, &mut range.low) && copy(high, &mut range.high);
                return (node.validate(version) && whole).then_some(found);
            }
            if !node.validate(version) {
                return None;
            }
            let next = self.node(child);
            let next_version = next.version()?;
            if !node.validate(version) {
                return None;
            }
            (node, version) = (next, next_version);
        }
    }

    /// A separator for [`insert`](Self::insert): what can run out of space, before anything is durable.
    pub fn separator(&self, key: &K) -> Result<u64> {
        if K::INLINE {
            return Ok(key.word());
        }
        let mut blob = [0; crate::keys::BLOB_LEN];
        let n = key.blob(&mut blob);
        let off = self.writer.lock().local.reserve(n * 8)?;
        self.separators.store(off, &blob[..n])?;
        Ok(off)
    }

    /// Gives a separator back that was not used.
    pub fn drop_separator(&self, word: u64) {
        if !K::INLINE {
            self.writer.lock().local.free(word);
        }
    }

    /// Adds `leaf`, whose keys begin at `key`, of which `separator` is the word.
    pub fn insert(&self, key: &K, separator: u64, leaf: u64) {
        let mut writer = self.writer.lock();
        let path = self.path(key);
        let (mut word, mut child) = (separator, leaf);
        let mut locked: Vec<&Node> = Vec::new();
        for (node, at) in path.iter().rev() {
            node.lock();
            locked.push(node);
            if node.count() < KEYS {
                node.insert(*at, word, child);
                return locked.into_iter().for_each(Node::unlock);
            }
            // Full: its upper half goes to a new node, of which nobody knows before the parent does.
            let (mut keys, mut children) = node.content();
            keys.insert(*at, word);
            children.insert(*at + 1, child);
            let half = keys.len() / 2;
            let right = writer.fresh();
            right.set(node.level(), &keys[half + 1..], &children[half + 1..]);
            node.set(node.level(), &keys[..half], &children[..=half]);
            (word, child) = (keys[half], address(right));
        }
        let (old, new) = (self.root(), writer.fresh());
        new.set(old.level() + 1, &[word], &[address(old), child]);
        self.root.store(ptr::from_ref(new).cast_mut(), Release);
        locked.into_iter().for_each(Node::unlock);
    }

    /// Takes `leaf` out, in whose range `key` is. Its range becomes a neighbour's.
    pub fn remove(&self, key: &K, leaf: u64) -> bool {
        let mut writer = self.writer.lock();
        let mut path = self.path(key);
        let Some((last, at)) = path.last() else { return false };
        if last.child(*at) != leaf {
            return false;
        }
        // Nodes that have no other child go with it.
        let Some(keeps) = path.iter().rposition(|(node, _)| node.count() > 0) else { return false };
        let gone = path.split_off(keeps + 1);
        let (node, at) = path[keeps];
        node.lock();
        gone.iter().for_each(|(node, _)| node.lock());
        let word = node.remove(at);
        if !K::INLINE {
            writer.local.free(word);
        }
        gone.iter().for_each(|(node, _)| node.unlock());
        writer.free.extend(gone.iter().map(|(node, _)| ptr::from_ref(*node)));
        node.unlock();
        // A root with one child that is a node is one level too many.
        while self.root().level() > 0 && self.root().count() == 0 {
            let old = self.root();
            old.lock();
            self.root.store(ptr::from_ref(self.node(old.child(0))).cast_mut(), Release);
            old.unlock();
            writer.free.push(old);
        }
        true
    }

    /// The nodes from the root to the one above the leaf of `key`, with the children taken. For whoever holds the mutex.
    fn path(&self, key: &K) -> Vec<(&Node, usize)> {
        let mut path = Vec::with_capacity(12);
        let mut node = self.root();
        loop {
            let at = self.step(node, &Place::Of(key));
            path.push((node, at));
            if node.level() == 0 {
                return path;
            }
            node = self.node(node.child(at));
        }
    }

    /// Builds it of the leaves in order, each with the separator before it (the first one's is not used). Nobody reads meanwhile.
    pub fn build(&self, leaves: &[(u64, u64)]) {
        let mut writer = self.writer.lock();
        let mut below = leaves.to_vec();
        for level in 0.. {
            // Even shares, so that no node is left with a single child.
            let nodes = below.len().div_ceil(FILL.min(CHILDREN)).max(1);
            let mut above = Vec::with_capacity(nodes);
            let mut rest = &below[..];
            for i in 0..nodes {
                let (mine, others) = rest.split_at(rest.len() / (nodes - i));
                rest = others;
                let node = writer.fresh();
                let (keys, children): (Vec<_>, Vec<_>) = mine.iter().copied().unzip();
                node.set(level, &keys[1..], &children);
                above.push((mine[0].0, address(node)));
            }
            if nodes == 1 {
                let old = self.root();
                self.root.store(ptr::from_ref(self.node(above[0].1)).cast_mut(), Release);
                writer.free.push(old);
                return;
            }
            below = above;
        }
    }

    /// Calls `each` with every leaf in order and the keys that bound it, while nobody writes.
    pub fn for_each_leaf(&self, each: &mut dyn FnMut(u64, &Range<K>) -> ControlFlow<()>) {
        let _writer = self.writer.lock();
        let _ = self.visit(self.root(), Range::default(), each);
    }

    fn visit(&self, node: &Node, range: Range<K>, each: &mut dyn FnMut(u64, &Range<K>) -> ControlFlow<()>) -> ControlFlow<()> {
        let separator = |i: usize| {
            let mut key = K::Owned::default();
            K::read(node.key(i), &*self.separators, &mut key);
            Some(key)
        };
        for i in 0..=node.count() {
            let low = if i == 0 { range.low.clone() } else { separator(i - 1) };
            let high = if i == node.count() { range.high.clone() } else { separator(i) };
            let range = Range { low, high };
            if node.level() == 0 {
                each(node.child(i), &range)?;
            } else {
                self.visit(self.node(node.child(i)), range, each)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Inner nodes in use, for statistics.
    pub fn nodes(&self) -> usize {
        let writer = self.writer.lock();
        writer.chunks.len() * CHUNK - writer.free.len()
    }
}
