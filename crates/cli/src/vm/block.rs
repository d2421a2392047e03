//! Words in a pool's heap: the only place of the self-proving structure that touches raw memory.

use std::marker::PhantomData;
use std::ptr::NonNull;

use anyhow::{Result, bail};
use towa_epoch::{Pool, Tx};

const WORD: usize = size_of::<u64>();

/// Some words of a pool's heap. It lies in the heap, whatever it holds: damage is found by reading, never by a crash.
///
/// Who reads or writes holds the lock of the structure it belongs to; nobody writes it at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Block<'p> {
    first: NonNull<u64>,
    words: usize,
    pool: PhantomData<&'p Pool>,
}

// SAFETY: an address in the heap of a pool that outlives it; whoever uses it holds the lock that guards its words.
unsafe impl Send for Block<'_> {}
// SAFETY: as above.
unsafe impl Sync for Block<'_> {}

impl<'p> Block<'p> {
    /// The `words` words at `address`, refused if they do not lie in the heap.
    pub fn at(pool: &'p Pool, address: u64, words: u64) -> Result<Block<'p>> {
        let (base, len) = pool.heap_range();
        let inside = (address as usize).checked_sub(base).is_some_and(|off| {
            let end = words.checked_mul(WORD as u64).and_then(|n| n.checked_add(off as u64));
            end.is_some_and(|end| end <= len)
        });
        let first = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
        match NonNull::new(first) {
            Some(first) if inside && first.is_aligned() => Ok(Block { first, words: words as usize, pool: PhantomData }),
            _ => bail!("{address:#x} is no place for {words} words in the heap at {base:#x}..{:#x}", base as u64 + len),
        }
    }

    /// A new block of `words` words, of unspecified content.
    pub fn new(pool: &'p Pool, tx: &Tx<'_>, words: u64) -> Result<Block<'p>> {
        let first = tx.alloc(words as usize * WORD)?;
        Block::at(pool, first.as_ptr().expose_provenance() as u64, words)
    }

    /// Gives the block back. It must have come from [`new`](Self::new), with nothing pointing to it any more.
    pub fn free(self, tx: &Tx<'_>) {
        // SAFETY: the structure frees a node once, in the transaction that unlinks it, under the lane's lock.
        unsafe { tx.free(self.first.cast()) };
    }

    /// Its address, which stays valid across restarts.
    pub fn address(self) -> u64 {
        self.first.as_ptr().addr() as u64
    }

    /// Word `index`.
    pub fn get(self, index: usize) -> u64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: within the words that `at` found in the heap, aligned; the lock of the structure is held.
        unsafe { self.first.add(index).read() }
    }

    /// Sets word `index`.
    pub fn set(self, tx: &Tx<'_>, index: usize, value: u64) {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: as in `get`, and alone, with the whole block; marked first.
        unsafe {
            let word = self.first.add(index);
            tx.mark(word.as_ptr().cast(), WORD);
            word.write(value);
        }
    }
}
