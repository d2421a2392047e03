//! The working copy as words: what transactions and readers outside of them load and store.
//!
//! What must always hold: every access is one relaxed (or stronger) atomic access of an aligned word inside the heap. So no address,
//! however wrong, is more than a wrong value or a panic, and a racing reader sees some word that was written.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::version;

/// An address in the heap's working copy: of a word where it is read or written.
pub type Addr = u64;

/// Bytes of a word, the unit of reading and writing.
pub const WORD: u64 = 8;

/// Words of the heap in a row, whose place was looked at once for all of them.
#[derive(Clone, Copy, Debug)]
pub struct Span<'h>(&'h [AtomicU64]);

impl<'h> Span<'h> {
    /// Word `at`, as it is now.
    ///
    /// # Panics
    /// If there are no more than so many.
    #[inline(always)]
    pub fn load(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    /// The version that word `at` is, before words that it guards are loaded; `None` while it is locked.
    ///
    /// # Panics
    /// As [`load`](Self::load).
    #[inline(always)]
    pub fn load_version(self, at: usize) -> Option<u64> {
        let version = self.0[at].load(Ordering::Acquire);
        (!version::is_locked(version)).then_some(version)
    }

    /// Whether the version that word `at` is, is still `version`: then what was loaded in between was one state.
    ///
    /// # Panics
    /// As [`load`](Self::load).
    #[inline(always)]
    pub fn validate(self, at: usize, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.load(at) == version
    }

    /// `count` words from word `from` on.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline(always)]
    pub fn part(self, from: usize, count: usize) -> Span<'h> {
        Span(&self.0[from..][..count])
    }
}

/// The heap's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    base: u64,
    words: u64,
}

impl View {
    /// # Panics
    /// If that does not begin with a word.
    ///
    /// # Safety
    /// `base..base + len` stays mapped and writable for as long as the view or a copy of it is used, and is written by nobody but
    /// through atomic accesses while it is.
    pub unsafe fn new(base: *mut u8, len: u64) -> View {
        let base = base.expose_provenance() as u64;
        assert!(base.is_multiple_of(WORD), "a heap begins with a word");
        View { base, words: len / WORD }
    }

    /// The part from address `first` on.
    pub fn from(&self, first: Addr) -> View {
        View { base: first, words: self.words - (first - self.base) / WORD }
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    pub fn len(&self) -> u64 {
        self.words * WORD
    }

    /// Whether `a` is that of a word.
    #[inline]
    pub fn holds(&self, a: Addr) -> bool {
        // One comparison for both: what is left over of a word becomes the highest bits.
        a.wrapping_sub(self.base).rotate_right(WORD.trailing_zeros()) < self.words
    }

    /// The word at `a`.
    ///
    /// # Panics
    /// If that is no word of the heap.
    #[inline]
    pub fn word(&self, a: Addr) -> &AtomicU64 {
        if !self.holds(a) {
            outside(a, self);
        }
        // SAFETY: inside the mapping (its length is a multiple of a word) and aligned, just checked; the constructor's promise
        // covers the rest.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(a as usize) }
    }

    #[inline]
    pub fn load(&self, a: Addr) -> u64 {
        self.word(a).load(Ordering::Relaxed)
    }

    #[inline]
    pub fn store(&self, a: Addr, value: u64) {
        self.word(a).store(value, Ordering::Relaxed);
    }

    /// The words from `a` on, as many as there are in `..end`.
    ///
    /// # Panics
    /// If these are not words of the heap.
    #[inline]
    fn words(&self, a: Addr, end: Addr) -> &[AtomicU64] {
        if a == end {
            return &[];
        }
        assert!(a < end && end.is_multiple_of(WORD), "{a:#x}..{end:#x} are no words");
        let found = self.find_span(a, ((end - a) / WORD) as usize);
        found.unwrap_or_else(|| outside(if self.holds(a) { end - WORD } else { a }, self)).0
    }

    /// The word at `a`, as a span of one.
    ///
    /// # Panics
    /// If that is no word of the heap.
    #[inline]
    pub fn one(&self, a: Addr) -> Span<'_> {
        Span(std::slice::from_ref(self.word(a)))
    }

    /// The words from `a` to `end`.
    ///
    /// # Panics
    /// If these are not words of the heap.
    #[inline]
    pub fn span(&self, a: Addr, end: Addr) -> Span<'_> {
        Span(self.words(a, end))
    }

    /// The `count` words from `a` on; `None` if these are not words of the heap.
    #[inline(always)]
    pub fn find_span(&self, a: Addr, count: usize) -> Option<Span<'_>> {
        // One comparison for both, as in `holds`.
        let first = a.wrapping_sub(self.base).rotate_right(WORD.trailing_zeros());
        if self.words < count as u64 || first > self.words - count as u64 {
            return None;
        }
        let first = std::ptr::with_exposed_provenance::<AtomicU64>(a as usize);
        // SAFETY: words of the mapping, just checked; as in `word`.
        Some(Span(unsafe { std::slice::from_raw_parts(first, count) }))
    }

    /// Adds the words from `a` to `end` to `into`, each as it is.
    pub fn load_all(&self, a: Addr, end: Addr, into: &mut Vec<u64>) {
        into.extend(self.words(a, end).iter().map(|word| word.load(Ordering::Relaxed)));
    }

    /// Stores `values` from `a` on.
    pub fn store_all(&self, a: Addr, values: &[u64]) {
        let words = self.words(a, a + values.len() as u64 * WORD);
        words.iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    }

    /// Offset in the heap, as the log keeps it.
    #[inline]
    pub fn offset(&self, a: Addr) -> u64 {
        a - self.base
    }
}

#[cold]
#[inline(never)]
fn outside(a: Addr, view: &View) -> ! {
    panic!("address {a:#x} is not that of a word in the heap at {:#x}..{:#x}", view.base, view.base + view.len())
}
