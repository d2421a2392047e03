//! Where things lie: the header table, the chunks behind it, and the size classes of slabs.
//!
//! ```text
//!  0          first                     data                                    frontier        heap_len
//!  ├──────────┼─────────────────────────┼────────┬────────┬────────┬───   ──────┼─ ─ ─ ─ ─ ─ ─ ─ ─┤
//!  │ caller's │ header table            │ chunk 0│ chunk 1│ chunk 2│    ...     │ never carved     │
//!  │ own area │ one line for each chunk │ 128 KiB│        │        │            │                  │
//!  └──────────┴─────────────────────────┴────────┴────────┴────────┴───   ──────┴─ ─ ─ ─ ─ ─ ─ ─ ─┘
//! ```
//!
//! The table costs 1/2048 of the heap's capacity. It stands apart from the chunks so that opening a heap reads it in one
//! sweep (4 MiB for 8 GiB), so that no user data can ever be taken for a chunk's header, and so that blocks of 4 KiB and
//! more, and large objects, start on page boundaries.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Bytes in a chunk, the unit in which space is cut for slabs and large objects.
pub const CHUNK: u64 = 128 << 10;
/// Bytes in a line, the unit of marking.
pub const LINE: usize = 64;
/// Bytes of header in front of every block of a slab.
pub const BLOCK_HEADER: usize = 16;
/// Largest request served from a slab; larger ones get chunks of their own.
pub const SMALL_MAX: usize = CHUNK as usize - BLOCK_HEADER;
/// Number of size classes.
pub(super) const CLASSES: usize = 72;
/// Classes up to this block size are a line apart; above, eight to a doubling.
const FINE_MAX: usize = 1024;
/// Most chunks a slab may take.
pub(super) const SLAB_CHUNKS_MAX: usize = 9;

/// Block size in bytes (header included) of every class.
pub(super) static SIZES: [u32; CLASSES] = sizes();
/// Chunks in a slab of every class.
pub(super) static SLAB_CHUNKS: [u8; CLASSES] = slab_chunks();
/// Blocks in a slab of every class.
pub(super) static SLAB_BLOCKS: [u16; CLASSES] = slab_blocks();
/// `ceil(2^32 / lines per block)`, to divide by multiplying.
static RECIPROCALS: [u32; CLASSES] = reciprocals();

const fn sizes() -> [u32; CLASSES] {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = if class < FINE_MAX / LINE {
            ((class + 1) * LINE) as u32
        } else {
            let coarse = class - FINE_MAX / LINE;
            let low = FINE_MAX << (coarse / 8);
            (low + (low / 8) * (coarse % 8 + 1)) as u32
        };
        class += 1;
    }
    assert!(sizes[CLASSES - 1] as u64 == CHUNK);
    sizes
}

/// The fewest chunks that hold at least four blocks and waste at most a sixteenth; else the least wasteful.
const fn slab_chunks() -> [u8; CLASSES] {
    let sizes = sizes();
    let mut chunks = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let size = sizes[class] as usize;
        let (mut best, mut best_waste) = (0, usize::MAX);
        let mut k = 1;
        while k <= SLAB_CHUNKS_MAX {
            let bytes = k * CHUNK as usize;
            let waste = (bytes % size) * 1024 / bytes;
            if bytes / size >= 4 && waste < best_waste && best_waste > 1024 / 16 {
                (best, best_waste) = (k, waste);
            }
            k += 1;
        }
        assert!(best > 0);
        chunks[class] = best as u8;
        class += 1;
    }
    chunks
}

const fn slab_blocks() -> [u16; CLASSES] {
    let (sizes, chunks) = (sizes(), slab_chunks());
    let mut blocks = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        blocks[class] = (chunks[class] as usize * CHUNK as usize / sizes[class] as usize) as u16;
        class += 1;
    }
    blocks
}

const fn reciprocals() -> [u32; CLASSES] {
    let sizes = sizes();
    let mut reciprocals = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let lines = sizes[class] as u64 / LINE as u64;
        // One line per block divides by 1: 2^32 does not fit, and `block_index` takes that class by itself.
        reciprocals[class] = if lines == 1 { 0 } else { (1u64 << 32).div_ceil(lines) as u32 };
        class += 1;
    }
    reciprocals
}

/// The class whose blocks hold `bytes` (header included); `bytes` in `1..=CHUNK`.
#[inline]
pub(super) fn class_of(bytes: usize) -> usize {
    if bytes <= FINE_MAX {
        return bytes.div_ceil(LINE) - 1;
    }
    let below = bytes - 1;
    let doubling = below.ilog2() as usize;
    FINE_MAX / LINE + (doubling - FINE_MAX.ilog2() as usize) * 8 + ((below - (1 << doubling)) >> (doubling - 3))
}

/// Index of the block that holds byte `within` of a slab of class `class`; may be one past the last block (the slab's tail).
#[inline]
pub(super) fn block_index(class: usize, within: u64) -> usize {
    let line = within / LINE as u64;
    // Exact: line < 2^15 and lines per block <= 2^11, so the error of the reciprocal stays below one block.
    if class == 0 { line as usize } else { ((line * u64::from(RECIPROCALS[class])) >> 32) as usize }
}

/// The places of one heap: turns chunk numbers into offsets and offsets into memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) base: NonNull<u8>,
    pub(super) heap_len: u64,
    /// Offset of the header table.
    pub(super) first: u64,
    /// Offset of chunk 0.
    pub(super) data: u64,
    /// Chunks that fit between `data` and `heap_len`.
    pub(super) chunks: u32,
}

impl Geometry {
    /// Lays out a heap. One that is too small for a single chunk has none, and every allocation from it fails.
    pub(super) fn new(base: NonNull<u8>, heap_len: u64, first: u64) -> Self {
        let all = heap_len.saturating_sub(first) / CHUNK;
        let table = (all * LINE as u64).div_ceil(CHUNK);
        let chunks = u32::try_from(all.saturating_sub(table)).unwrap_or(u32::MAX);
        Self { base, heap_len, first, data: first + table * CHUNK, chunks }
    }

    /// Offset of chunk `chunk`.
    #[inline]
    pub(super) fn offset(&self, chunk: u32) -> u64 {
        self.data + u64::from(chunk) * CHUNK
    }

    /// Offset of the header line of chunk `chunk`.
    #[inline]
    pub(super) fn header(&self, chunk: u32) -> u64 {
        self.first + u64::from(chunk) * LINE as u64
    }

    /// The chunk that holds offset `off`, if one does.
    #[inline]
    pub(super) fn chunk_of(&self, off: u64) -> Option<u32> {
        let chunk = off.checked_sub(self.data)? / CHUNK;
        (chunk < u64::from(self.chunks)).then_some(chunk as u32)
    }

    /// Offset of address `addr` in the heap, if it lies in it.
    #[inline]
    pub(super) fn offset_of(&self, addr: usize) -> Option<u64> {
        let off = addr.checked_sub(self.base.as_ptr() as usize)? as u64;
        (off < self.heap_len).then_some(off)
    }

    /// Memory at offset `off`.
    #[inline]
    pub(super) fn at(&self, off: u64) -> NonNull<u8> {
        debug_assert!(off < self.heap_len);
        // SAFETY: every offset the allocator forms is below heap_len, and `Allocator::new` was promised that base..base + heap_len
        // is one mapping.
        unsafe { self.base.add(off as usize) }
    }

    /// The eight-byte word at offset `off`. Atomic because the engine's persister and diagnostics read lines while they are written.
    #[inline]
    pub(super) fn word(&self, off: u64) -> &AtomicU64 {
        debug_assert!(off.is_multiple_of(8));
        // SAFETY: inside the mapping (see `at`), aligned (base is aligned to a line, off to eight), and header words are
        // accessed through atomics only.
        unsafe { AtomicU64::from_ptr(self.at(off).as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_promise() {
        for bytes in 1..=CHUNK as usize {
            let class = class_of(bytes);
            assert!(SIZES[class] as usize >= bytes, "{bytes} bytes do not fit class {class}");
            assert!(class == 0 || (SIZES[class - 1] as usize) < bytes, "{bytes} bytes fit a smaller class than {class}");
        }
        for class in 0..CLASSES {
            assert_eq!(SIZES[class] as usize % LINE, 0);
            let (bytes, used) = (SLAB_CHUNKS[class] as u64 * CHUNK, u64::from(SLAB_BLOCKS[class]) * u64::from(SIZES[class]));
            assert!(used <= bytes && bytes - used <= bytes / 16, "class {class} wastes {} of {bytes}", bytes - used);
        }
    }

    #[test]
    fn blocks_are_found_by_multiplication() {
        for class in 0..CLASSES {
            for within in (0..SLAB_CHUNKS[class] as u64 * CHUNK).step_by(16) {
                assert_eq!(block_index(class, within), (within / u64::from(SIZES[class])) as usize);
            }
        }
    }

    #[test]
    fn table_and_chunks_fit_any_length() {
        for len in (0..600 * CHUNK).step_by(7 * 4096).chain([1 << 40, (1 << 40) + 4096, u64::MAX / 2]) {
            let geo = Geometry::new(NonNull::dangling(), len, CHUNK);
            if geo.chunks > 0 {
                assert!(geo.offset(geo.chunks - 1) + CHUNK <= len);
                assert!(geo.header(geo.chunks - 1) + LINE as u64 <= geo.data);
            }
        }
    }
}
