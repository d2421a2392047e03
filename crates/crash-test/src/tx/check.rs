//! What recovery makes of an image: the cells with all that belongs to them, and no block that nobody knows.

use std::sync::Arc;

use towa_heap::superblock::Door;
use towa_heap::{Error, Heap, OpenOptions, alloc};
use towa_media::sim::SimMedium;
use towa_tx::WORD;

use super::history::{CELLS, Cell, Cells, History, note, pattern};
use super::session::{CELL, CELLS_LEN, cell_of, mirror, root_name};
use super::world::ROOT;

/// A recovered pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its cells; `None` before they were made.
    pub cells: Option<Cells>,
    /// It had been closed.
    pub clean: bool,
    /// Records that were replayed.
    pub replayed: u64,
}

/// Recovers the pool on `medium` and checks it against `history`; `None` where there is rightly no pool. `notes`: those taken before the
/// crash.
pub fn check_image(medium: &SimMedium, notes: &[u64], history: &History) -> Result<Option<Found>, String> {
    let here = &notes[history.notes_before.min(notes.len())..];
    let said = |kind: u64| here.iter().any(|n| note::parts(*n).0 == kind);
    let Some(found) = read_image(medium)? else {
        let promised = history.base.opened || said(note::OPENED);
        return if promised { Err("the pool is gone".into()) } else { Ok(None) };
    };
    history.judge(found.cells.as_ref(), notes)?;
    if said(note::CLOSED) && found.replayed > 0 {
        return Err(format!("the pool was closed, and {} records were replayed", found.replayed));
    }
    // Until the next process opens it: how far that came, nobody knows.
    if said(note::CLOSED) && !said(note::OPENING) && !found.clean {
        return Err("the pool was closed, and is not clean".into());
    }
    Ok(Some(found))
}

/// Recovers the pool on `medium`; `None` if there is none.
pub fn read_image(medium: &SimMedium) -> Result<Option<Found>, String> {
    let heap = match Heap::open(Arc::new(medium.clone()), &OpenOptions { door: Door::Tx, eager: true, prefault: false }) {
        Ok(heap) => heap,
        Err(Error::Missing { .. }) => return Ok(None),
        Err(e) => return Err(format!("recovery refused: {e}")),
    };
    let (clean, replayed) = (heap.recovery().clean, heap.recovery().records_replayed);
    let image = Image { base: heap.base().as_ptr().addr() as u64, frontier: heap.allocator().frontier(), heap: &heap };
    let Some(root) = heap.roots().get(ROOT) else {
        image.check_blocks(0)?;
        return Ok(Some(Found { cells: None, clean, replayed }));
    };
    let at = root.ptr.as_ptr().addr() as u64;
    if root.size != CELLS_LEN || !image.holds(at, CELLS_LEN) {
        return Err(format!("the root says {} bytes at {at:#x}, outside the allocated heap", root.size));
    }
    let mut cells = [Cell::default(); CELLS];
    for (number, cell) in cells.iter_mut().enumerate() {
        *cell = image.cell(at, number)?;
    }
    image.check_blocks(1 + cells.iter().filter(|cell| cell.ptr != 0).count() as u64)?;
    Ok(Some(Found { cells: Some(cells), clean, replayed }))
}

struct Image<'h> {
    heap: &'h Heap,
    base: u64,
    frontier: u64,
}

impl Image<'_> {
    fn holds(&self, at: u64, len: u64) -> bool {
        at.checked_sub(self.base).is_some_and(|off| off <= self.frontier && len <= self.frontier - off)
    }

    /// The word at an address that [`holds`](Self::holds) it.
    fn word(&self, at: u64) -> u64 {
        assert!(self.holds(at, WORD));
        // SAFETY: within the heap's allocated part, just checked; nobody writes it; no alignment is asked for.
        unsafe { self.heap.base().as_ptr().add((at - self.base) as usize).cast::<u64>().read_unaligned() }
    }

    /// A cell, with its mirror, object and root as it says.
    fn cell(&self, cells: u64, number: usize) -> Result<Cell, String> {
        let first = cells + number as u64 * CELL;
        let cell = cell_of(std::array::from_fn(|word| self.word(first + word as u64 * WORD)));
        let mirrored = self.word(mirror(cells, number));
        if mirrored != cell.id {
            return Err(format!("{:#x} or {mirrored:#x} is torn: cell {number} says the one, its mirror the other", cell.id));
        }
        let version = self.word(first + 7 * WORD);
        if version != 0 {
            return Err(format!("cell {number} has version {version:#x}: versions are not kept"));
        }
        let tag = self.heap.roots().get(&root_name(number)).map_or(0, |root| root.type_tag);
        if tag != cell.rooted {
            return Err(format!("cell {number} says that its root is of {:#x}, it is of {tag:#x}", cell.rooted));
        }
        if cell.ptr == 0 {
            return Ok(cell);
        }
        if !self.holds(cell.ptr, cell.size) {
            return Err(format!("cell {number} points outside the allocated heap: {cell:x?}"));
        }
        for at in 0..cell.size / WORD {
            let wanted = pattern(if at < cell.filled { cell.filler } else { cell.object }, number, at);
            let there = self.word(cell.ptr + at * WORD);
            if there != wanted {
                return Err(format!("cell {number}: word {at} of its object is {there:#x}, should be {wanted:#x}: {cell:x?}"));
            }
        }
        Ok(cell)
    }

    /// Every block that is live is one the program knows: none leaked, none used twice.
    fn check_blocks(&self, live: u64) -> Result<(), String> {
        let base = self.heap.base().as_ptr();
        let mut read = |off: u64, into: &mut [u8]| -> Result<(), std::convert::Infallible> {
            // SAFETY: `check` reads within the heap; nobody writes it.
            unsafe { std::ptr::copy_nonoverlapping(base.add(off as usize), into.as_mut_ptr(), into.len()) };
            Ok(())
        };
        let Ok(report) = alloc::check(&mut read, self.heap.len(), alloc::CHUNK, self.frontier);
        if let Some(damage) = report.damage.first() {
            return Err(format!("allocator: {damage}"));
        }
        if report.blocks_live != live {
            return Err(format!("{} blocks are live, the program knows {live}", report.blocks_live));
        }
        Ok(())
    }
}
