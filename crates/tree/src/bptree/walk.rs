//! Walking down: outside of transactions, without locks, by versions.
//!
//! ```text
//!   version of the header ─ root ─► its version ─ header still the same? ─► child ─► its version ─ root still the same? ─► ...
//! ```
//!
//! What must always hold:
//! 1. when a child's version is loaded and then its parent's is found unchanged, the child was the parent's child at that moment, with
//!    the range of keys that the separators say; whatever changes a node's range changes its version, too (splits and merges touch
//!    every node whose range they change). So a leaf has that range as long as it has that version;
//! 2. what was loaded under a version that has changed is not believed: it is checked before it is used as an address, and the walk
//!    begins anew. It takes one level after the other down to 0, so it ends whatever it reads.

use towa_tx::{Addr, Span, Thread};

use super::BpTree;
use super::layout::{KEYS, Shape, WORD_1, header, keys_of};
use crate::keys::{Blobs, Key};
use crate::map::{Error, Result};
use crate::search;

/// Which leaf a walk looks for.
#[derive(Debug)]
pub(super) enum Target<'k, K: ?Sized> {
    /// The first.
    First,
    /// The one that has this key, if any has.
    At(&'k K),
    /// The one that has the greatest key below this one, if any has.
    Below(&'k K),
    /// The last.
    Last,
}

impl<K: ?Sized> Clone for Target<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized> Copy for Target<'_, K> {}

/// A leaf, and its version before anything else of it was loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub at: Addr,
    pub version: u64,
}

/// An inner node on the way down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub node: Addr,
    pub version: u64,
    /// Number of its keys.
    pub keys: usize,
    /// Which child the way goes to.
    pub child: usize,
}

/// The way down to a leaf.
#[derive(Debug)]
pub(super) struct Path {
    pub header_version: u64,
    pub root: Addr,
    pub level: u64,
    /// From the root down.
    pub steps: Vec<Step>,
    pub leaf: Leaf,
}

/// Who looks on as a walk goes down. What is seen counts only if the walk succeeds.
pub(super) trait Witness {
    /// A walk begins.
    fn begin(&mut self, _header_version: u64, _root: Addr, _level: u64) {}
    /// It goes on from an inner node to one of its children.
    fn step(&mut self, _thread: &Thread, _step: Step) {}
}

impl Witness for () {}

impl Witness for Path {
    fn begin(&mut self, header_version: u64, root: Addr, level: u64) {
        (self.header_version, self.root, self.level) = (header_version, root, level);
        self.steps.clear();
    }

    fn step(&mut self, _: &Thread, step: Step) {
        self.steps.push(step);
    }
}

/// The keys between which a leaf's keys lie.
#[derive(Debug)]
pub(super) struct Range<K: Key + ?Sized> {
    /// Not below this.
    pub low: Option<K::Owned>,
    /// Below this.
    pub high: Option<K::Owned>,
}

impl<K: Key + ?Sized> Witness for Range<K> {
    fn begin(&mut self, _: u64, _: Addr, _: u64) {
        (self.low, self.high) = (None, None);
    }

    fn step(&mut self, thread: &Thread, step: Step) {
        // Those of lower nodes are tighter.
        let keys = step.node + KEYS;
        if step.child > 0 {
            read_into::<K>(thread, keys + 8 * (step.child as u64 - 1), &mut self.low);
        }
        if step.child < step.keys {
            read_into::<K>(thread, keys + 8 * step.child as u64, &mut self.high);
        }
    }
}

fn read_into<K: Key + ?Sized>(thread: &Thread, at: Addr, into: &mut Option<K::Owned>) {
    // What is no key was not read under one version: the walk finds that out.
    K::read(thread.load(at), &Loads(thread), into.get_or_insert_default());
}

/// The heap's words, for keys that have blobs.
pub(super) struct Loads<'t>(pub &'t Thread);

impl Blobs for Loads<'_> {
    #[inline]
    fn word(&self, address: u64) -> Option<u64> {
        self.0.holds(address).then(|| self.0.load(address))
    }
}

/// How a walk ended.
enum Walk {
    Found(Leaf),
    /// Something changed beside it.
    Again,
    /// What is stored, not what changed, leads nowhere.
    Damaged(&'static str),
}

impl<K: Key + ?Sized, const LEAF: usize, const INNER: usize> BpTree<K, LEAF, INNER> {
    /// The leaf that `target` names.
    #[inline]
    pub(super) fn walk(&self, thread: &Thread, target: Target<'_, K>, witness: &mut impl Witness) -> Result<Leaf> {
        let mut tries = 0;
        loop {
            match self.try_walk(thread, target, witness) {
                Walk::Found(leaf) => return Ok(leaf),
                Walk::Again => self.pause(&mut tries)?,
                Walk::Damaged(what) => return Err(self.damaged(what)),
            }
        }
    }

    /// The way to the leaf of `key`.
    pub(super) fn path(&self, thread: &Thread, target: Target<'_, K>) -> Result<Path> {
        let mut path = Path { header_version: 0, root: 0, level: 0, steps: Vec::new(), leaf: Leaf { at: 0, version: 0 } };
        path.leaf = self.walk(thread, target, &mut path)?;
        Ok(path)
    }

    /// Lets others go on: they may need this very core to unlock what is waited for.
    #[cold]
    pub(super) fn pause(&self, tries: &mut u32) -> Result<()> {
        *tries += 1;
        if *tries > 6 {
            std::thread::yield_now();
        } else {
            (0..1 << *tries).for_each(|_| std::hint::spin_loop());
        }
        // Whoever held a lock may have failed.
        if tries.is_multiple_of(1024) { Ok(self.pool.check()?) } else { Ok(()) }
    }

    #[cold]
    pub(super) fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Damaged { pool: self.pool.location(), what: what.into() }
    }

    /// Its words, if a node of that level can lie there.
    #[inline(always)]
    pub(super) fn node<'t>(thread: &'t Thread, node: Addr, level: u64) -> Option<Span<'t>> {
        thread.find_span(node, Shape::<LEAF, INNER>::words(level)).filter(|_| node.is_multiple_of(64))
    }

    #[inline]
    fn try_walk(&self, thread: &Thread, target: Target<'_, K>, witness: &mut impl Witness) -> Walk {
        // Version, root, its level. Of a node, too, the version is word 0.
        let mut parent = thread.span(self.header + header::VERSION, 3);
        let Some(mut parent_version) = parent.load_version(0) else { return Walk::Again };
        let (mut child, mut below) = (parent.load(1), parent.load(2));
        witness.begin(parent_version, child, below);
        loop {
            let Some(node) = Self::node(thread, child, below) else {
                let changed = !parent.validate(0, parent_version);
                return if changed { Walk::Again } else { Walk::Damaged("a node's address is that of none") };
            };
            // All of it at once: a search would else wait for one line, and then for the next that this one names.
            // (Two lengths, each known when this is compiled: a line then is one instruction.)
            match below {
                0 => thread.prefetch(child, 8 * Shape::<LEAF, INNER>::LEAF_WORDS as u64),
                _ => thread.prefetch(child, 8 * Shape::<LEAF, INNER>::INNER_WORDS as u64),
            }
            let version = node.load_version(0);
            if !parent.validate(0, parent_version) {
                return Walk::Again;
            }
            let Some(version) = version else { return Walk::Again };
            if below == 0 {
                return Walk::Found(Leaf { at: child, version });
            }
            (parent, parent_version) = (node, version);
            let words = node.part(0, Shape::<LEAF, INNER>::INNER_WORDS);
            let keys = keys_of(words.load(WORD_1 as usize / 8));
            if keys > INNER {
                let changed = !parent.validate(0, parent_version);
                return if changed { Walk::Again } else { Walk::Damaged("an inner node has more keys than it can have") };
            }
            let key_at = |at: usize| words.load(KEYS as usize / 8 + at);
            let at = match target {
                Target::First => 0,
                Target::Last => keys,
                Target::At(key) => search::passing(keys, |at| key.compare(key_at(at), &Loads(thread)).is_ge()),
                Target::Below(key) => search::passing(keys, |at| key.compare(key_at(at), &Loads(thread)).is_gt()),
            };
            let step = Step { node: child, version, keys, child: at };
            child = words.load(Shape::<LEAF, INNER>::CHILDREN as usize / 8 + at);
            below -= 1;
            witness.step(thread, step);
        }
    }
}
