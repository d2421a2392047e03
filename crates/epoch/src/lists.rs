//! What a thread remembers of an epoch: which lines it marked, and which old lines it saved.
//!
//! Each slot has two of each, used alternately (the paper's double buffering). A list of epoch *e* is written by the thread until
//! its last transaction of *e* ends, then read by the persister, which empties it before *e + 2* begins.
//!
//! Saved lines (copy-on-write) go to DRAM, not to the log as in the paper: the thread pays a 64-byte copy and no medium's
//! latency, and the persister writes them behind its own entries. They belong to epoch *e* but are written by transactions of
//! *e + 1*, while the persister reads lines of *e*. See [`SavedLines`] for why nobody waits for anybody there.

use std::cell::UnsafeCell;
use std::ptr;

use towa_heap::log::frame::{RUN_LINES_MAX, pack_run, unpack_run};
use towa_media::LINE;

use crate::sync::{AtomicU64, AtomicUsize, Ordering::*, fence};

/// Runs of marked lines, in order, neighbours merged.
#[derive(Debug, Default)]
pub(crate) struct AddressList {
    pub runs: Vec<u64>,
    pub lines: u64,
    /// What the last epochs needed, about: the longest list, forgotten by halves.
    recent: usize,
}

impl AddressList {
    /// Adds `lines` lines from `first`.
    #[inline]
    pub fn push(&mut self, first: u64, lines: u64) {
        self.lines += lines;
        if let Some(last) = self.runs.last_mut() {
            let (last_first, last_lines) = unpack_run(*last);
            if last_first + last_lines == first && last_lines + lines <= RUN_LINES_MAX {
                *last = pack_run(last_first, last_lines + lines);
                return;
            }
        }
        self.runs.push(pack_run(first, lines));
    }

    /// Empties it, and gives memory back that the last epochs did not need.
    pub fn clear(&mut self) {
        self.recent = self.runs.len().max(self.recent / 2);
        self.runs.clear();
        self.lines = 0;
        if self.runs.capacity() > 8 * self.recent.max(1 << 12) {
            self.runs.shrink_to(2 * self.recent);
        }
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        self.runs.capacity() * size_of::<u64>()
    }
}

const BLOCK_LINES: usize = 512;

/// Old lines saved by one thread for one epoch.
///
/// The thread appends and publishes (release) **before** it overwrites the line; the persister reads all lines of its lists first
/// and looks here (acquire) **after**. So if the persister read any byte of the overwrite, it also sees the saved line here, and
/// replay applies saved lines last: they win. If it does not see the saved line, it has read none of the overwrite, and its
/// own copy is right. Hence the persister need not wait until no thread can still be adding (the paper's second wait, which
/// starves under back-to-back transactions).
#[derive(Debug)]
pub(crate) struct SavedLines {
    /// The epoch these lines belong to; older than the one wanted: empty.
    epoch: AtomicU64,
    count: AtomicUsize,
    /// Blocks allocated, for the gauge.
    allocated: AtomicUsize,
    blocks: UnsafeCell<BlockPtr>,
    /// The thread's place: the block it appends to. Only the thread touches it.
    tail: UnsafeCell<*mut Block>,
}

type BlockPtr = *mut Block;

#[derive(Debug)]
struct Block {
    next: BlockPtr,
    index: [u64; BLOCK_LINES],
    data: [[u8; LINE]; BLOCK_LINES],
}

// SAFETY: appended to by the one thread that owns the slot, read by the persister up to `count` (release/acquire); blocks are
// never moved or freed before drop, and `next` of a block is written before the count that makes the next one readable.
unsafe impl Send for SavedLines {}
// SAFETY: as above.
unsafe impl Sync for SavedLines {}

impl SavedLines {
    pub fn new() -> Self {
        Self {
            epoch: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            allocated: AtomicUsize::new(0),
            blocks: UnsafeCell::new(ptr::null_mut()),
            tail: UnsafeCell::new(ptr::null_mut()),
        }
    }

    /// Saves line `index`, found at `line`, for `epoch`. Gives how many are saved now.
    ///
    /// # Safety
    /// Called by the thread that owns the slot; `line` is readable and nobody writes it meanwhile; the persister is past with
    /// any earlier epoch of this parity.
    pub unsafe fn save(&self, epoch: u64, index: u64, line: *const u8) -> usize {
        if self.epoch.load(Relaxed) != epoch {
            self.count.store(0, Relaxed);
            self.epoch.store(epoch, Release);
        }
        let n = self.count.load(Relaxed);
        let place = n % BLOCK_LINES;
        // SAFETY: `tail` and the list of blocks change only here, on the owning thread (the caller's promise); `line` has 64
        // readable bytes.
        unsafe {
            let tail = self.tail.get();
            if place == 0 {
                *tail = self.block_for(n);
            }
            let block = *tail;
            (*block).index[place] = index;
            ptr::copy_nonoverlapping(line, (*block).data[place].as_mut_ptr(), LINE);
        }
        self.count.store(n + 1, Release);
        // The overwrite that follows must not become visible before the count (free on x86).
        fence(Release);
        n + 1
    }

    /// The block that line number `n` (a multiple of the block's size) starts.
    ///
    /// # Safety
    /// As for `save`.
    unsafe fn block_for(&self, n: usize) -> BlockPtr {
        // SAFETY: owning thread only; blocks are valid until drop.
        unsafe {
            let link: *mut BlockPtr = if n == 0 { self.blocks.get() } else { &raw mut (**self.tail.get()).next };
            if (*link).is_null() {
                let layout = std::alloc::Layout::new::<Block>();
                let fresh = std::alloc::alloc_zeroed(layout).cast::<Block>();
                if fresh.is_null() {
                    std::alloc::handle_alloc_error(layout);
                }
                *link = fresh;
                self.allocated.fetch_add(1, Relaxed);
            }
            *link
        }
    }

    /// Bytes of blocks it holds. They are kept for the next epochs; the log's room for saved lines bounds them.
    pub fn bytes(&self) -> usize {
        self.allocated.load(Relaxed) * size_of::<Block>()
    }

    /// Calls `each(line index, bytes)` for the lines saved for `epoch` that are published by now.
    pub fn for_each<E>(&self, epoch: u64, mut each: impl FnMut(u64, &[u8; LINE]) -> Result<(), E>) -> Result<(), E> {
        if self.epoch.load(Acquire) != epoch {
            return Ok(());
        }
        let n = self.count.load(Acquire);
        // SAFETY: everything up to `n` was written before it was published, and stays until `epoch + 2`.
        let mut block = unsafe { *self.blocks.get() };
        for i in 0..n {
            // SAFETY: as above; a block's `next` was linked before any line in the next block was published.
            unsafe {
                if i > 0 && i % BLOCK_LINES == 0 {
                    block = (*block).next;
                }
                each((*block).index[i % BLOCK_LINES], &(*block).data[i % BLOCK_LINES])?;
            }
        }
        Ok(())
    }
}

impl Drop for SavedLines {
    fn drop(&mut self) {
        let mut block = *self.blocks.get_mut();
        while !block.is_null() {
            // SAFETY: allocated in `block_for` with this layout; nobody else is left.
            unsafe {
                let next = (*block).next;
                std::alloc::dealloc(block.cast(), std::alloc::Layout::new::<Block>());
                block = next;
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The user saves the old value and overwrites the line; the persister reads the line, then looks for saved lines. What replay
    /// ends up with must be the old value, whichever of them came first.
    #[test]
    fn replay_never_sees_the_overwrite() {
        const OLD: u64 = 1;
        const NEW: u64 = 2;
        loom::model(|| {
            let line = Arc::new(AtomicU64::new(OLD));
            let saved = Arc::new(SavedLines::new());
            let (l, s) = (Arc::clone(&line), Arc::clone(&saved));
            let user = thread::spawn(move || {
                let mut old = [0; LINE];
                old[..8].copy_from_slice(&l.load(Relaxed).to_ne_bytes());
                // SAFETY: this thread owns the list; `old` is a line of its own.
                unsafe { s.save(7, 0, old.as_ptr()) };
                l.store(NEW, Relaxed);
            });
            let read = line.load(Relaxed);
            fence(Acquire);
            let mut replayed = read;
            let visit = |_, bytes: &[u8; LINE]| {
                replayed = u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"));
                Ok::<(), ()>(())
            };
            saved.for_each(7, visit).expect("the visitor does not fail");
            assert_eq!(replayed, OLD, "the log would hold a value of the next epoch");
            user.join().expect("user does not panic");
        });
    }
}
