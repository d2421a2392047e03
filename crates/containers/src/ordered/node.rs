//! The B+-tree in the pool: layout and search.
//!
//! ```text
//!   Header  line 0  fixed: sizes of typed keys and values
//!           line 1  root node, height                                        (structure lock)
//!   Inner   | count | (prefix, separator) x 31 | child x 32 |                (structure lock)
//!   Leaf    | count | (prefix, pair) x 31 |                                  (structure lock shared + the leaf's lock,
//!                                └──► Pair: key, value                        or structure lock alone)
//! ```
//! Child `i` of an inner node holds the keys from separator `i - 1` (inclusive) to separator `i` (exclusive). `prefix` is the first
//! eight bytes of the key as a big-endian number, zero-filled: most comparisons end there, without a look at the key's block.
//! Every node and every pair is a block of its own, so different leaves never share a line.

use crate::pair::Pair;
use std::cmp::Ordering;

/// Entries in a leaf, separators in an inner node.
pub(super) const CAPACITY: usize = 31;

/// In every node.
pub(super) const SEAL: u64 = u64::from_le_bytes(*b"towanode");

#[repr(C, align(64))]
pub(super) struct Header {
    pub key_size: u32,
    pub value_size: u32,
    pub top: Top,
}

#[repr(C, align(64))]
pub(super) struct Top {
    /// A `Leaf` if `height` is zero, else an `Inner`.
    pub root: *mut u8,
    /// Levels of inner nodes.
    pub height: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub prefix: u64,
    /// Key and value in a leaf, a separator with an empty value in an inner node.
    pub pair: *mut Pair,
}

#[repr(C)]
pub(super) struct Leaf {
    pub count: u64,
    /// [`SEAL`]: what was zeroed does not pass for a node without entries.
    pub seal: u64,
    pub slots: [Slot; CAPACITY],
}

#[repr(C)]
pub(super) struct Inner {
    /// Separators; there is one child more.
    pub count: u64,
    /// [`SEAL`]: what was zeroed does not pass for a node without entries.
    pub seal: u64,
    pub slots: [Slot; CAPACITY],
    pub children: [*mut u8; CAPACITY + 1],
}

const _: () = assert!(size_of::<Leaf>() == 512 && size_of::<Inner>() == 768);

/// A key being looked for.
#[derive(Clone, Copy)]
pub(super) struct Sought<'k> {
    pub prefix: u64,
    pub key: &'k [u8],
}

impl<'k> Sought<'k> {
    pub fn new(key: &'k [u8]) -> Self {
        let mut prefix = [0; 8];
        let len = key.len().min(8);
        prefix[..len].copy_from_slice(&key[..len]);
        Self { prefix: u64::from_be_bytes(prefix), key }
    }
}

impl Slot {
    /// # Safety
    /// The slot's pair is live and not changed meanwhile.
    #[inline]
    unsafe fn cmp(&self, sought: Sought<'_>) -> Ordering {
        // SAFETY: the caller's promise.
        self.prefix.cmp(&sought.prefix).then_with(|| unsafe { Pair::key(self.pair) }.cmp(sought.key))
    }
}

/// Number of slots whose key is less than `sought`, and whether the next is equal.
///
/// # Safety
/// The slots' pairs are live and not changed meanwhile.
pub(super) unsafe fn lower_bound(slots: &[Slot], sought: Sought<'_>) -> (usize, bool) {
    let mut equal = false;
    let i = slots.partition_point(|slot| {
        // SAFETY: the caller's promise.
        let order = unsafe { slot.cmp(sought) };
        equal |= order == Ordering::Equal;
        order == Ordering::Less
    });
    (i, equal)
}

impl Leaf {
    /// # Safety
    /// `at` is a live leaf, not changed during `'a`.
    pub unsafe fn slots<'a>(at: *const Leaf) -> &'a [Slot] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts((&raw const (*at).slots).cast(), (*at).count as usize) }
    }

    /// Writes a leaf into a fresh block.
    ///
    /// # Safety
    /// `at` is valid for writes and marked; at most [`CAPACITY`] slots.
    pub unsafe fn init(at: *mut Leaf, slots: &[Slot]) {
        debug_assert!(slots.len() <= CAPACITY);
        // SAFETY: the caller's promise.
        unsafe {
            (&raw mut (*at).count).write(slots.len() as u64);
            (&raw mut (*at).seal).write(SEAL);
            (&raw mut (*at).slots).cast::<Slot>().copy_from_nonoverlapping(slots.as_ptr(), slots.len());
        }
    }
}

impl Inner {
    /// # Safety
    /// `at` is a live inner node, not changed during `'a`.
    pub unsafe fn slots<'a>(at: *const Inner) -> &'a [Slot] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts((&raw const (*at).slots).cast(), (*at).count as usize) }
    }

    /// # Safety
    /// As [`slots`](Self::slots).
    pub unsafe fn children<'a>(at: *const Inner) -> &'a [*mut u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts((&raw const (*at).children).cast(), (*at).count as usize + 1) }
    }

    /// Writes an inner node into a fresh block.
    ///
    /// # Safety
    /// `at` is valid for writes and marked; at most [`CAPACITY`] slots, and one child more.
    pub unsafe fn init(at: *mut Inner, slots: &[Slot], children: &[*mut u8]) {
        debug_assert!(slots.len() <= CAPACITY && children.len() == slots.len() + 1);
        // SAFETY: the caller's promise.
        unsafe {
            (&raw mut (*at).count).write(slots.len() as u64);
            (&raw mut (*at).seal).write(SEAL);
            (&raw mut (*at).slots).cast::<Slot>().copy_from_nonoverlapping(slots.as_ptr(), slots.len());
            (&raw mut (*at).children).cast::<*mut u8>().copy_from_nonoverlapping(children.as_ptr(), children.len());
        }
    }

    /// Which child holds `sought`.
    ///
    /// # Safety
    /// As [`slots`](Self::slots).
    pub unsafe fn child_of(at: *const Inner, sought: Sought<'_>) -> usize {
        // SAFETY: the caller's promise.
        let (i, equal) = unsafe { lower_bound(Self::slots(at), sought) };
        i + usize::from(equal)
    }
}

/// The shortest key above `left` and not above `right`.
pub(super) fn separator<'k>(left: &[u8], right: &'k [u8]) -> &'k [u8] {
    let common = left.iter().zip(right).take_while(|(l, r)| l == r).count();
    &right[..common + 1]
}
