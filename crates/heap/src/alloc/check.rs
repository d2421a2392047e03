//! The offline check: reads a heap through a function, verifies every header, and takes any bytes whatever.

use super::header::{Kind, Line, RunHeader, Seen, SlabKey};
use super::layout::{CHUNK, Geometry, LINE, SIZES, SLAB_BLOCKS};
use std::ops::ControlFlow;
use std::ptr::NonNull;

/// Damage listed one by one; more is only counted.
const LISTED_MAX: usize = 100;
/// Up to this block size a slab's chunks are read whole, above header by header.
const READ_WHOLE_MAX: u32 = 4096;

/// Fills a buffer with what lies at an offset of the heap.
pub type Read<'r, E> = dyn FnMut(u64, &mut [u8]) -> Result<(), E> + 'r;

/// Something in the heap that no correct run of the allocator leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("heap offset {offset:#x}: {what}")]
pub struct Damage {
    /// Offset in the heap.
    pub offset: u64,
    /// What is wrong.
    pub what: &'static str,
}

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Chunks below the frontier.
    pub chunks: u64,
    /// Of these: free.
    pub chunks_free: u64,
    /// Of these: not checked, because a run header before them is damaged.
    pub chunks_unchecked: u64,
    /// Slabs.
    pub slabs: u64,
    /// Large objects.
    pub large: u64,
    /// Live blocks, large objects included.
    pub blocks_live: u64,
    /// Free blocks in slabs.
    pub blocks_free: u64,
    /// Bytes that live blocks asked for.
    pub bytes_live: u64,
    /// Damaged places; see `damage`.
    pub damage_count: u64,
    /// The first hundred damaged places.
    pub damage: Vec<Damage>,
}

impl CheckReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damage_count == 0
    }

    fn add(&mut self, damage: Damage) {
        self.damage_count += 1;
        if self.damage.len() < LISTED_MAX {
            self.damage.push(damage);
        }
    }
}

impl Geometry {
    /// The frontier in chunks.
    pub(super) fn frontier_chunks(&self, frontier: u64) -> Result<u32, Damage> {
        if frontier <= self.data {
            return Ok(0);
        }
        let what = "the frontier is not the end of a chunk of this heap";
        let chunks = (frontier - self.data) / CHUNK;
        let exact = (frontier - self.data).is_multiple_of(CHUNK) && chunks <= u64::from(self.chunks);
        if exact { Ok(chunks as u32) } else { Err(Damage { offset: frontier, what }) }
    }
}

/// Walks the run headers from chunk 0 to the frontier. `visit` gets each run's first chunk, with its kind, length and whether it
/// is clean, or the damage found there; after damage the walk cannot go on and ends. A chunk whose header was never written is a clean free
/// run of its own: a transaction whose epoch did not become durable moved the frontier over it.
pub(super) fn walk<E>(
    geo: &Geometry,
    frontier: u32,
    mut read: impl FnMut(u64) -> Result<Line, E>,
    mut visit: impl FnMut(u32, Result<(Kind, u32, bool), Damage>) -> ControlFlow<()>,
) -> Result<(), E> {
    let mut chunk = 0;
    while chunk < frontier {
        let off = geo.header(chunk);
        let (kind, len, clean) = match RunHeader::decode(&read(off)?, off) {
            Ok(None) => (Kind::Unwritten, 1, true),
            Ok(Some(run)) if run.len <= frontier - chunk => (run.kind, run.len, run.clean),
            bad => {
                let what = bad.err().unwrap_or("run header reaches beyond the frontier");
                let _ = visit(chunk, Err(Damage { offset: off, what }));
                return Ok(());
            }
        };
        if visit(chunk, Ok((kind, len, clean))).is_break() {
            return Ok(());
        }
        chunk += len;
    }
    Ok(())
}

/// Offset after the table of run headers of a heap: all that [`check_runs`] reads lies before. `heap_len` and `first` as for
/// [`Allocator::new`](super::Allocator::new).
pub fn headers_end(heap_len: u64, first: u64) -> u64 {
    Geometry::new(NonNull::dangling(), heap_len, first).data
}

/// Offset after the last run header of a heap with this frontier. Parameters as for [`check`].
pub fn headers_in_use_end(heap_len: u64, first: u64, frontier: u64) -> u64 {
    let geo = Geometry::new(NonNull::dangling(), heap_len, first);
    geo.header((frontier.saturating_sub(geo.data) / CHUNK).min(u64::from(geo.chunks)) as u32)
}

/// Checks that nothing was ever stored in chunks without a run header: zeros where headers were would pass for chunks that are free.
fn check_blank<E>(read: &mut Read<'_, E>, geo: &Geometry, chunks: &[u32]) -> Result<Result<(), Damage>, E> {
    let mut bytes = vec![0; CHUNK as usize];
    for chunk in chunks {
        read(geo.offset(*chunk), &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            let what = "run header of zeros, and its chunk holds data";
            return Ok(Err(Damage { offset: geo.header(*chunk), what }));
        }
    }
    Ok(Ok(()))
}

/// Verifies the headers of runs alone, and that chunks without one are blank: with these right, [`Allocator::new`](super::Allocator::new) succeeds. Parameters as for [`check`].
pub fn check_runs<E>(read: &mut Read<'_, E>, heap_len: u64, first: u64, frontier: u64) -> Result<Result<(), Damage>, E> {
    let geo = Geometry::new(NonNull::dangling(), heap_len, first);
    let chunks = match geo.frontier_chunks(frontier) {
        Ok(chunks) => chunks,
        Err(damage) => return Ok(Err(damage)),
    };
    let mut table = Window { read: &mut *read, start: 0, bytes: Vec::new(), end: geo.header(chunks) };
    let (mut found, mut blank) = (Ok(()), Vec::new());
    walk(
        &geo,
        chunks,
        |off| table.line(off),
        |chunk, run| match run {
            Ok((Kind::Unwritten, ..)) => {
                blank.push(chunk);
                ControlFlow::Continue(())
            }
            Ok(_) => ControlFlow::Continue(()),
            Err(damage) => {
                found = Err(damage);
                ControlFlow::Break(())
            }
        },
    )?;
    if found.is_ok() { check_blank(read, &geo, &blank) } else { Ok(found) }
}

/// Verifies every run and block header of a heap that is not in use. `read` fills a buffer from an offset of the heap; its errors
/// are passed on. `heap_len`, `first` and `frontier` as for [`Allocator::new`](super::Allocator::new).
pub fn check<E>(read: &mut Read<'_, E>, heap_len: u64, first: u64, frontier: u64) -> Result<CheckReport, E> {
    let geo = Geometry::new(NonNull::dangling(), heap_len, first);
    let mut report = CheckReport::default();
    let chunks = match geo.frontier_chunks(frontier) {
        Ok(chunks) => chunks,
        Err(damage) => {
            report.add(damage);
            return Ok(report);
        }
    };
    report.chunks = u64::from(chunks);
    let (mut slabs, mut blank) = (Vec::new(), Vec::new());
    let mut table = Window { read: &mut *read, start: 0, bytes: Vec::new(), end: geo.header(chunks) };
    walk(
        &geo,
        chunks,
        |off| table.line(off),
        |chunk, found| {
            match found {
                Ok((Kind::Unwritten, ..)) => {
                    report.chunks_free += 1;
                    blank.push(chunk);
                }
                Ok((Kind::Free, len, _)) => report.chunks_free += u64::from(len),
                Ok((Kind::Slab { class, seal }, _, clean)) => slabs.push((chunk, SlabKey { seal, class, clean })),
                Ok((Kind::Large { size }, ..)) => {
                    report.large += 1;
                    report.blocks_live += 1;
                    report.bytes_live += size;
                }
                Err(damage) => {
                    report.chunks_unchecked = u64::from(chunks - chunk);
                    report.add(damage);
                }
            }
            ControlFlow::Continue(())
        },
    )?;
    if let Err(damage) = check_blank(read, &geo, &blank)? {
        report.add(damage);
    }
    for (chunk, key) in slabs {
        report.slabs += 1;
        check_slab(read, &geo, chunk, key, &mut report)?;
    }
    Ok(report)
}

fn check_slab<E>(read: &mut Read<'_, E>, geo: &Geometry, chunk: u32, key: SlabKey, report: &mut CheckReport) -> Result<(), E> {
    let (size, blocks) = (SIZES[usize::from(key.class)], SLAB_BLOCKS[usize::from(key.class)]);
    let start = geo.offset(chunk);
    let end = start + u64::from(blocks) * u64::from(size);
    let mut whole = Window { read, start: 0, bytes: Vec::new(), end };
    for block in 0..blocks {
        let off = start + u64::from(block) * u64::from(size);
        if size > READ_WHOLE_MAX {
            whole.bytes.clear();
            whole.end = off + LINE as u64;
        }
        let line = whole.line(off)?;
        match key.read(key.tag(off), [line[0], line[1]]) {
            Seen::Live(len) => {
                report.blocks_live += 1;
                report.bytes_live += len as u64;
            }
            Seen::Free(_) | Seen::Unwritten => report.blocks_free += 1,
            Seen::Damaged(what) => report.add(Damage { offset: off, what }),
        }
    }
    Ok(())
}

/// Reads lines through a buffer of a chunk.
struct Window<'a, 'r, E> {
    read: &'a mut Read<'r, E>,
    start: u64,
    bytes: Vec<u8>,
    /// Nothing is read from here on.
    end: u64,
}

impl<E> Window<'_, '_, E> {
    fn line(&mut self, off: u64) -> Result<Line, E> {
        if off < self.start || off + LINE as u64 > self.start + self.bytes.len() as u64 {
            self.start = off;
            self.bytes.resize((self.end - off).min(CHUNK) as usize, 0);
            (self.read)(off, &mut self.bytes)?;
        }
        let at = (off - self.start) as usize;
        let word = |i: usize| <[u8; 8]>::try_from(&self.bytes[at + i * 8..at + i * 8 + 8]).expect("eight bytes");
        Ok(std::array::from_fn(|i| u64::from_le_bytes(word(i))))
    }
}
