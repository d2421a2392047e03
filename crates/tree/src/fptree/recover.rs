//! Opening a tree after whatever happened to it.
//!
//! ```text
//!   1  micro-logs: splits that were under way are ended; all logs cleared               (split says why that is right)
//!   2  the list, from the head: each leaf marked in the allocator, empty ones unlinked    one thread: pointers
//!   3  each leaf: checked, its keys marked, written again or back                         several threads
//!   4  order of the leaves; FENCE; whatever was not marked is free; inner nodes
//! ```
//!
//! What must always hold: nothing read here is believed before it is checked (a pointer by marking it: a loop marks a leaf twice and ends);
//! stopping anywhere is stopping before step 1 was done, in part or as a whole, and doing it again gives the same.
//!
//! Why leaves are written back (on sync media: written again): the process before may have been killed, or its sync may have failed,
//! and what it had stored but not made durable is there to be read. What we give to readers, or build on, must be durable. A key's
//! blob always is: it was fenced before the bit that leads to it was stored.

use std::borrow::Borrow;
use std::sync::Arc;

use towa_alloc::{Allocator, Arena, Rebuild};

use super::FpTree;
use super::index::Index;
use super::layout::*;
use super::leaf::{Leaf, sorted};
use crate::fingerprint::{self, slots};
use crate::{Error, Key, Result};

/// Fewer leaves than these are not worth a thread.
const SHARE_MIN: usize = 2048;

/// Opens the tree in `arena`.
pub(super) fn recover<K: Key + ?Sized>(arena: Arc<Arena>) -> Result<FpTree<K>> {
    let root = Root::read(&arena)?;
    apply_logs(&arena)?;
    let rebuild = Allocator::rebuild(arena.clone())?;
    let (leaves, emptied) = walk(&arena, &rebuild, root.head)?;
    let keys = examine_all::<K>(&arena, &rebuild, &leaves, root)?;
    check_order::<K>(&arena, &leaves, &keys)?;
    let allocator = rebuild.finish()?;
    let tree = FpTree::assemble(arena, allocator, root)?;
    let rest = keys.into_iter().zip(&leaves).skip(1);
    let rest: Vec<_> = rest.map(|(keys, off)| (keys.expect("only the head is empty").0, *off)).collect();
    build_index(&tree.arena, &tree.index, root.head, &rest)?;
    *tree.spare.lock() = emptied;
    Ok(tree)
}

fn damaged(arena: &Arena, what: String) -> Error {
    Error::Damaged { pool: arena.location().into(), what }
}

/// The leaf at `off`, which must be one.
fn leaf_at<'a>(arena: &'a Arena, off: u64, who: &str) -> Result<Leaf<'a>> {
    let leaf = Leaf::at(arena, off).filter(|leaf| leaf.word(TAG) == LEAF_TAG);
    leaf.ok_or_else(|| damaged(arena, format!("{who} points to {off:#x}, where there is no leaf")))
}

/// Ends the splits that were under way.
fn apply_logs(arena: &Arena) -> Result<()> {
    let (first, end) = (log_at(arena, 0), log_at(arena, LOGS));
    for log in 0..LOGS {
        let off = log_at(arena, log);
        let (from, to) = (arena.load(off), arena.load(off + 8));
        if from != 0 && to != 0 {
            apply_log(arena, from, to)?;
        }
        if from != 0 || to != 0 {
            arena.store(off, &[0, 0])?;
        }
    }
    // Those that are clear may be clear in a cache alone.
    arena.rewrite(first, ((end - first) / 8) as usize)?;
    // Fenced by this thread before the tree is given to anybody (`Rebuild::finish`).
    Ok(())
}

fn apply_log(arena: &Arena, from: u64, to: u64) -> Result<()> {
    let leaf = leaf_at(arena, from, "a micro-log")?;
    if leaf.next() != to {
        return Ok(());
    }
    let right = leaf_at(arena, to, "a micro-log")?;
    if from == to {
        return Err(damaged(arena, format!("leaf {from:#x} is its own successor")));
    }
    let both = slots(leaf.bitmap() & right.bitmap());
    if both.into_iter().any(|slot| leaf.key_word(slot) != right.key_word(slot)) {
        return Err(damaged(arena, format!("a micro-log says that leaf {to:#x} split off {from:#x}, and their keys differ")));
    }
    // The pointer must be durable before the keys that only it leads to are given up here.
    leaf.set_next(arena, to)?;
    arena.fence()?;
    leaf.commit(arena, leaf.bitmap() & !right.bitmap())
}

/// The leaves in the order of the list, and those that were in it, empty.
fn walk(arena: &Arena, rebuild: &Rebuild, head: u64) -> Result<(Vec<u64>, Vec<u64>)> {
    let (mut leaves, mut emptied) = (Vec::new(), Vec::new());
    let mut last: Option<Leaf<'_>> = None;
    let mut off = head;
    while off != 0 {
        rebuild.mark(off, LEAF_LEN)?;
        let leaf = leaf_at(arena, off, "the list of leaves")?;
        let next = leaf.next();
        arena.prefetch(next);
        leaf.reset_version();
        match last {
            // Emptied, and not unlinked before the end.
            Some(last) if leaf.word(BITMAP) == 0 => {
                last.set_next(arena, next)?;
                emptied.push(off);
            }
            _ => {
                leaves.push(off);
                last = Some(leaf);
            }
        }
        off = next;
    }
    Ok((leaves, emptied))
}

/// Least and greatest key of a leaf; `None` if it is empty.
pub(super) type Ends<K> = Option<(<K as Key>::Owned, <K as Key>::Owned)>;

/// Checks a leaf, and calls `mark` for the blob of each of its keys.
pub(super) fn examine<K: Key + ?Sized>(
    arena: &Arena,
    leaf: &Leaf<'_>,
    full: u64,
    mark: &mut dyn FnMut(u64, usize) -> Result<()>,
) -> Result<Ends<K>> {
    let image = leaf.image();
    let bad = |what: String| damaged(arena, format!("leaf {:#x}: {what}", leaf.off));
    if image[TAG] != LEAF_TAG {
        return Err(bad("is none".into()));
    }
    if image[BITMAP] & !full != 0 {
        return Err(bad(format!("bitmap {:#x} has bits that no slot has", image[BITMAP])));
    }
    let keys = sorted::<K>(&image, arena)?;
    for (key, slot) in &keys {
        let key: &K = key.borrow();
        if fingerprint::of_slot(leaf.fingerprints()[slot / 8], *slot) != key.fingerprint() {
            return Err(bad(format!("the fingerprint in slot {slot} is not its key's")));
        }
        if !K::INLINE {
            let word = image[ENTRIES + 2 * slot];
            let len = K::blob_bytes(word, arena).ok_or_else(|| bad(format!("slot {slot} has no key")))?;
            mark(word, len)?;
        }
    }
    if keys.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(bad("has a key twice".into()));
    }
    Ok(match (keys.first(), keys.last()) {
        (Some((least, _)), Some((greatest, _))) => Some((least.clone(), greatest.clone())),
        _ => None,
    })
}

/// Step 3, by as many threads as there are processors.
fn examine_all<K: Key + ?Sized>(arena: &Arena, rebuild: &Rebuild, leaves: &[u64], root: Root) -> Result<Vec<Ends<K>>> {
    let full = (1 << root.entries) - 1;
    let share = |leaves: &[u64]| -> Result<Vec<Ends<K>>> {
        let mut ends = Vec::with_capacity(leaves.len());
        for (i, off) in leaves.iter().enumerate() {
            if let Some(next) = leaves.get(i + 1) {
                (0..LEAF_LEN as u64).step_by(towa_media::LINE).for_each(|line| arena.prefetch(next + line));
            }
            let leaf = leaf_at(arena, *off, "the list of leaves")?;
            ends.push(examine::<K>(arena, &leaf, full, &mut |off, len| Ok(rebuild.mark(off, len)?))?);
            arena.rewrite(*off, LEAF_LEN / 8)?;
        }
        // A fence covers what its own thread wrote back.
        arena.fence()?;
        Ok(ends)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(leaves.len() / SHARE_MIN).max(1);
    if threads == 1 {
        return share(leaves);
    }
    let shares: Result<Vec<Vec<Ends<K>>>> = std::thread::scope(|scope| {
        let share = &share;
        let shares = leaves.chunks(leaves.len().div_ceil(threads)).map(|leaves| scope.spawn(move || share(leaves)));
        let shares: Vec<_> = shares.collect();
        shares.into_iter().map(|thread| thread.join().expect("examining a leaf does not panic")).collect()
    });
    Ok(shares?.into_iter().flatten().collect())
}

/// The keys of a leaf must be greater than those of the leaves before it.
pub(super) fn check_order<K: Key + ?Sized>(arena: &Arena, leaves: &[u64], keys: &[Ends<K>]) -> Result<()> {
    let mut last: Option<&K::Owned> = None;
    for (off, ends) in leaves.iter().zip(keys) {
        let Some((least, greatest)) = ends else {
            if *off == leaves[0] {
                continue;
            }
            return Err(damaged(arena, format!("leaf {off:#x} is empty")));
        };
        if last.is_some_and(|last| last >= least) {
            return Err(damaged(arena, format!("leaf {off:#x} begins with {least:?}, not after the leaf before it")));
        }
        last = Some(greatest);
    }
    Ok(())
}

/// The inner nodes over the head and the `rest` of the leaves, each with its least key.
pub(super) fn build_index<K: Key + ?Sized>(arena: &Arena, index: &Index<K>, head: u64, rest: &[(K::Owned, u64)]) -> Result<()> {
    let mut leaves = Vec::with_capacity(rest.len() + 1);
    leaves.push((0, head));
    for (least, off) in rest {
        leaves.push((index.separator(least.borrow())?, *off));
    }
    debug_assert!(leaves.iter().all(|(_, off)| Leaf::at(arena, *off).is_some()));
    index.build(&leaves);
    Ok(())
}
