//! Opening: the walk over the run headers, and the scans that follow as they are needed.

use super::check::{Damage, walk};
use super::header::{Kind, Line, Seen, SlabKey};
use super::layout::{CHUNK, CLASSES, Geometry, LINE, SIZES, SLAB_BLOCKS, SLAB_CHUNKS};
use super::runs::{Run, Runs};
use super::slabs::Central;
use super::table::{SlabChunk, Table};
use super::{Allocator, Provide};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

impl Allocator {
    /// The allocator of the heap at `base`, as it lies there. Reads the run headers only.
    ///
    /// - `first`: first offset that is the allocator's, a multiple of [`CHUNK`]. What lies before is the caller's.
    /// - `frontier`: `first` for a fresh heap, which is all zero from there on; else what [`frontier`](Self::frontier)
    ///   returned for the epoch the heap was recovered to.
    /// - `provide`: called before the first use of space beyond what it granted (or beyond `frontier`), and before the use of space whose
    ///   memory was [released](Self::release_memory).
    ///
    /// Fails, without having written, if a run header is damaged: nothing could be allocated safely then.
    ///
    /// # Panics
    /// If `base` is not aligned to a line, or `first` not to a chunk.
    ///
    /// # Safety
    /// `base..base + heap_len` is one readable and writable mapping that outlives the allocator, and nobody else writes
    /// to it from `first` on, but for the payload of blocks.
    pub unsafe fn new(base: NonNull<u8>, heap_len: u64, first: u64, frontier: u64, provide: Provide) -> Result<Self, Damage> {
        assert!(
            (base.as_ptr() as usize).is_multiple_of(LINE) && first.is_multiple_of(CHUNK),
            "base {base:p} or first {first} is not aligned"
        );
        let geo = Geometry::new(base, heap_len, first);
        let chunks = geo.frontier_chunks(frontier)?;
        let mut opened = Opened {
            geo,
            table: Table::new(geo.chunks),
            classes: (0..CLASSES).map(Central::new).collect(),
            runs: Runs::new(chunks, frontier),
            slabs: 0,
            large_chunks: 0,
            free: None,
        };
        opened.walk()?;
        Ok(Self {
            geo,
            table: opened.table,
            classes: opened.classes.into_iter().map(Mutex::new).collect(),
            runs: Mutex::new(opened.runs),
            provide,
            frontier: AtomicU64::new(geo.offset(chunks)),
            seals: AtomicU64::new(random()),
            unscanned: AtomicUsize::new(opened.slabs),
            empties: std::array::from_fn(|_| AtomicBool::new(false)),
            large_bytes: AtomicU64::new(opened.large_chunks * CHUNK),
            bound: AtomicU32::new(u32::MAX),
            tickets: AtomicU64::new(1),
            damaged: AtomicU64::new(0),
        })
    }

    /// Scans slabs not scanned since opening, about `budget` chunks of them; whether there are more. For the background:
    /// it writes nothing and holds no lock while it reads.
    pub fn warm(&self, budget: u64) -> bool {
        let mut left = budget;
        for (class, &chunks) in SLAB_CHUNKS.iter().enumerate() {
            while self.unscanned.load(Relaxed) > 0 && left > 0 && self.scan_one(class) {
                left = left.saturating_sub(u64::from(chunks));
            }
        }
        left == 0 && self.unscanned.load(Relaxed) > 0
    }

    /// Scans one slab of a class; false if none is left.
    pub(super) fn scan_one(&self, class: usize) -> bool {
        if self.unscanned.load(Relaxed) == 0 {
            return false;
        }
        let Some((index, head)) = self.classes[class].lock().scan_begin() else {
            return false;
        };
        self.scan_begun(class, index, head);
        true
    }

    /// Scans the slab for which a scan was noted as begun.
    pub(super) fn scan_begun(&self, class: usize, index: u32, head: u32) {
        let found = self.scan(&self.table.slab(head), class);
        let mut central = self.classes[class].lock();
        central.scan_end(index, found);
        self.table.set_scanned(head, u32::from(SLAB_CHUNKS[class]));
        self.note_empties(&central, class);
        drop(central);
        self.unscanned.fetch_sub(1, Relaxed);
    }

    /// A bit for each block of a slab that is free. Damaged ones are not.
    fn scan(&self, slab: &SlabChunk, class: usize) -> Box<[u64]> {
        let blocks = usize::from(SLAB_BLOCKS[class]);
        let mut found = vec![0; blocks.div_ceil(64)].into_boxed_slice();
        let start = self.geo.offset(slab.head);
        for block in 0..blocks {
            let off = start + block as u64 * u64::from(SIZES[class]);
            match self.seen(slab, off) {
                Seen::Free(_) | Seen::Unwritten => found[block / 64] |= 1 << (block % 64),
                Seen::Live(_) => {}
                Seen::Damaged(why) => {
                    self.damaged.fetch_add(1, Relaxed);
                    log::error!("heap offset {off:#x}: {why}; the block stays unused (`towa verify` lists all damage)");
                }
            }
        }
        found
    }

    /// Waits for scans that other threads began: what they find may be all there is.
    pub(super) fn await_scans(&self) {
        for class in &self.classes {
            while class.lock().scanning > 0 {
                std::thread::yield_now();
            }
        }
    }
}

/// The DRAM side while it is put together.
struct Opened {
    geo: Geometry,
    table: Table,
    classes: Vec<Central>,
    runs: Runs,
    slabs: usize,
    large_chunks: u64,
    /// The free run the walk is in.
    free: Option<Run>,
}

impl Opened {
    fn walk(&mut self) -> Result<(), Damage> {
        let geo = self.geo;
        let line = |off: u64| -> Line { std::array::from_fn(|at| geo.word(off + at as u64 * 8).load(Relaxed)) };
        let mut damage = None;
        let end = walk(
            &geo,
            self.runs.frontier,
            |off| Ok::<_, ()>(line(off)),
            |chunk, found| match found {
                Ok((kind, len, clean)) => {
                    self.add(chunk, kind, len, clean);
                    ControlFlow::Continue(())
                }
                Err(found) => {
                    damage = Some(found);
                    ControlFlow::Break(())
                }
            },
        );
        debug_assert!(end.is_ok());
        self.end_free();
        damage.map_or(Ok(()), Err)
    }

    fn add(&mut self, chunk: u32, kind: Kind, len: u32, clean: bool) {
        match kind {
            Kind::Free | Kind::Unwritten => {
                let before = self.free.take();
                let run = before.unwrap_or(Run::solid(chunk, 0, 0, true));
                self.free = Some(Run::solid(run.chunk, run.len + len, 0, run.clean && clean));
                return;
            }
            Kind::Slab { class, seal } => {
                let index = self.classes[usize::from(class)].add_unscanned(chunk);
                let key = SlabKey { seal, class, clean };
                self.table.set_slab(len, SlabChunk { key, index, head: chunk, unused_since: 0, scanned: false, leaving: false });
                self.slabs += 1;
            }
            Kind::Large { .. } => {
                self.table.set_large(chunk);
                self.runs.large.insert(chunk, len);
                self.large_chunks += u64::from(len);
            }
        }
        self.end_free();
    }

    fn end_free(&mut self) {
        if let Some(run) = self.free.take() {
            self.runs.insert(run);
        }
    }
}

/// Where seals begin. Only has to be unknown to whoever chooses the bytes stored in blocks.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: writes at most the eight bytes it is given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert!(got == bytes.len() as isize, "getrandom: {}", std::io::Error::last_os_error());
    u64::from_ne_bytes(bytes)
}
