//! Recovering one crash image and comparing it with the model.

use std::sync::Arc;

use towa_epoch::Tx;
use towa_heap::superblock::Door;
use towa_heap::{Error, Heap, OpenOptions, alloc};
use towa_media::Medium;
use towa_media::sim::SimMedium;

use super::history::History;
use super::world::{CELL, CELLS, CLOSED, Cell, ROOT, pattern};

/// Recovers the pool on `medium` and checks it against `history`; gives the epoch it is at, or `None` where there is rightly no pool.
/// `notes`: the epochs acknowledged as durable before the crash, oldest first, the first being the pool's creation.
pub fn check_image(medium: &SimMedium, notes: &[u64], history: &History) -> Result<Option<u64>, String> {
    check_medium(Arc::new(medium.clone()), notes, history)
}

/// [`check_image`] of any medium.
pub fn check_medium(medium: Arc<dyn Medium>, notes: &[u64], history: &History) -> Result<Option<u64>, String> {
    check_counting(medium, notes, history, &mut 0)
}

/// The same, which adds up the objects that are rightly lost.
pub(super) fn check_counting(
    medium: Arc<dyn Medium>,
    notes: &[u64],
    history: &History,
    lost: &mut usize,
) -> Result<Option<u64>, String> {
    let heap = match Heap::open(medium, &OpenOptions { door: Door::Epoch, eager: true, prefault: false }) {
        Ok(heap) => heap,
        Err(Error::Missing { .. }) if notes.is_empty() && history.base == 0 => return Ok(None),
        Err(e) => return Err(format!("recovery refused: {e}")),
    };
    let epoch = heap.recovery().epoch;
    let last = notes.last().copied().unwrap_or(history.base);
    let acknowledged = last & !CLOSED;
    if epoch < acknowledged {
        return Err(format!("epoch {acknowledged} was acknowledged as durable, recovery gave epoch {epoch}"));
    }
    if epoch > history.newest() {
        return Err(format!("recovery gave epoch {epoch}, the newest there was is {}", history.newest()));
    }
    let clean = heap.recovery().clean;
    if last & CLOSED != 0 && !clean {
        return Err("the pool was closed, and is not clean".into());
    }
    if clean && epoch != history.base && epoch != history.newest() {
        return Err(format!("the pool is clean at epoch {epoch}: neither where it was opened nor where it was closed"));
    }
    let may_be_lost = |version| history.may_be_lost(version, epoch);
    *lost += compare(&heap, &history.state(epoch), &may_be_lost).map_err(|e| format!("recovered epoch {epoch}: {e}"))?;
    Ok(Some(epoch))
}

/// Gives how many objects are rightly lost.
fn compare(heap: &Heap, state: &[Option<Cell>; CELLS], may_be_lost: &dyn Fn(u64) -> bool) -> Result<usize, String> {
    let Some(root) = heap.roots().get(ROOT) else {
        return if state.iter().all(Option::is_none) { check_blocks(heap, 0).map(|()| 0) } else { Err("the root is gone".into()) };
    };
    let base = heap.base().as_ptr();
    let frontier = heap.allocator().frontier();
    let offset = (root.ptr.as_ptr().addr() - base.addr()) as u64;
    if offset + (CELLS * CELL) as u64 > frontier {
        return Err(format!("the root points to offset {offset:#x}, beyond everything allocated"));
    }
    let (mut live, mut lost) = (1, 0);
    for (i, expected) in state.iter().enumerate() {
        // SAFETY: within the heap's allocated part, checked above; nobody writes it.
        let cell: Cell = unsafe { root.ptr.as_ptr().add(i * CELL).cast::<Cell>().read_unaligned() };
        match expected {
            None if cell.ptr == 0 => {}
            None => return Err(format!("cell {i} should be empty and points to {:#x}", cell.ptr)),
            Some(e) if (cell.version, cell.size) != (e.version, e.size) => {
                return Err(format!(
                    "cell {i} should have version {} of {} bytes, has version {} of {}",
                    e.version, e.size, cell.version, cell.size
                ));
            }
            Some(e) => {
                lost += usize::from(check_object(heap, (i, &cell), e, frontier, may_be_lost)?);
                live += 1;
            }
        }
    }
    check_blocks(heap, live).map(|()| lost)
}

/// Says whether the object is rightly lost; else it is whole.
fn check_object(
    heap: &Heap,
    (i, cell): (usize, &Cell),
    expected: &Cell,
    frontier: u64,
    may_be_lost: &dyn Fn(u64) -> bool,
) -> Result<bool, String> {
    let offset = cell.ptr.wrapping_sub(heap.base().as_ptr().addr() as u64);
    if offset > frontier || frontier - offset < expected.size {
        return Err(format!("cell {i} points outside the allocated heap"));
    }
    // SAFETY: within the heap, just checked; nobody writes it.
    let bytes = unsafe { std::slice::from_raw_parts(heap.base().as_ptr().add(offset as usize), expected.size as usize) };
    if bytes.len() > Tx::KEPT && bytes[..8] == [0; 8] && may_be_lost(expected.version) {
        let mut kept = [0; Tx::KEPT];
        pattern(i, expected, 0, &mut kept);
        return match bytes[8..Tx::KEPT] == kept[8..] {
            true => Ok(true),
            false => Err(format!("cell {i} version {}: its object is lost, and its first bytes are others", expected.version)),
        };
    }
    let mut part = [0; 1024];
    for from in (0..bytes.len()).step_by(part.len()) {
        let found = &bytes[from..(from + part.len()).min(bytes.len())];
        let wanted = &mut part[..found.len()];
        pattern(i, expected, from, wanted);
        if found != wanted {
            let at = (0..found.len()).find(|at| found[*at] != wanted[*at]).expect("they differ");
            return Err(format!(
                "cell {i} version {}: byte {} of {} is {:#x}, should be {:#x}",
                expected.version,
                from + at,
                expected.size,
                found[at],
                wanted[at]
            ));
        }
    }
    Ok(false)
}

/// Every block that is live is one the program knows: none leaked, none used twice.
fn check_blocks(heap: &Heap, live: u64) -> Result<(), String> {
    let base = heap.base().as_ptr();
    let mut read = |off: u64, into: &mut [u8]| -> Result<(), std::convert::Infallible> {
        // SAFETY: `check` reads within the heap; nobody writes it.
        unsafe { std::ptr::copy_nonoverlapping(base.add(off as usize), into.as_mut_ptr(), into.len()) };
        Ok(())
    };
    let Ok(report) = alloc::check(&mut read, heap.len(), alloc::CHUNK, heap.allocator().frontier());
    if let Some(damage) = report.damage.first() {
        return Err(format!("allocator: {damage}"));
    }
    if report.blocks_live != live {
        return Err(format!("{} blocks are live, the program knows {live}", report.blocks_live));
    }
    Ok(())
}
