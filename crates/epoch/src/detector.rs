//! The forgotten-mark detector: finds lines that were written but not marked, the users' classic bug.
//!
//! At each epoch's end it holds transactions up for a moment and compares the working copy with the image. A line that differs, and
//! that the running epoch has not marked, was written without a mark: its change would be lost, or worse, be kept by accident with a
//! neighbour's. Slow (it reads the whole heap), so for tests only, like pmemcheck.

use std::collections::HashMap;
use std::panic::Location;

use parking_lot::Mutex;
use towa_media::LINE;

use crate::Result;
use crate::engine::Engine;
use crate::gate::Reason;
use crate::persister::wait_all;
use crate::tags::tag_of;

/// A line that was written but not marked.
#[derive(Clone, Debug)]
pub struct ForgottenMark {
    /// First byte that differs from the image.
    pub address: usize,
    /// The epoch at whose end it was found.
    pub epoch: u64,
    /// The block that holds it: first address, size; `None` outside every live block.
    pub block: Option<(usize, usize)>,
    /// The root whose object holds it, if one does directly.
    pub root: Option<String>,
    /// Where the line was last marked, if ever since the pool was opened: the forgotten mark is often near.
    pub last_marked: Option<&'static Location<'static>>,
}

impl std::fmt::Display for ForgottenMark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "written but not marked: address {:#x}", self.address)?;
        if let Some((start, len)) = self.block {
            write!(f, ", byte {} of a block of {len}", self.address.wrapping_sub(start))?;
        }
        if let Some(root) = &self.root {
            write!(f, " of root {root:?}")?;
        }
        match self.last_marked {
            Some(place) => write!(f, "; last marked at {place}"),
            None => write!(f, "; never marked"),
        }
    }
}

/// Where each line was last marked.
#[derive(Debug, Default)]
pub(crate) struct Markers(Mutex<HashMap<u64, &'static Location<'static>>>);

impl Markers {
    pub fn record(&self, first: u64, last: u64, place: &'static Location<'static>) {
        let mut map = self.0.lock();
        for line in first..=last {
            map.insert(line, place);
        }
    }
}

/// Compares working copy and image, which holds everything up to the epoch before the current one.
pub(crate) fn compare(engine: &Engine) -> Result<()> {
    const STEP: usize = 64 << 10;
    engine.gate.close(&engine.clock, Reason::Checkpoint);
    wait_all(engine, |slot| !slot.announcement.is_busy());
    let mut buffer = vec![0; STEP];
    let frontier = engine.heap.allocator().frontier();
    let result = (0..frontier).step_by(STEP).try_for_each(|off| {
        let len = STEP.min((frontier - off) as usize);
        engine.heap.image().read(off, &mut buffer[..len])?;
        // SAFETY: in the heap; transactions are held up. A writer outside any transaction is the very bug looked for.
        let working = unsafe { std::slice::from_raw_parts(engine.heap.base().as_ptr().add(off as usize), len) };
        compare_range(engine, off, working, &buffer[..len]);
        Ok(())
    });
    engine.gate.open(&engine.clock, Reason::Checkpoint);
    result
}

fn compare_range(engine: &Engine, off: u64, working: &[u8], image: &[u8]) {
    if working == image {
        return;
    }
    let tags = engine.tags.as_ref().expect("a durable heap has tags");
    let epoch = engine.clock.epoch();
    for (i, (w, m)) in working.chunks(LINE).zip(image.chunks(LINE)).enumerate() {
        let line = off / LINE as u64 + i as u64;
        if w == m || tags.get(line).load(std::sync::atomic::Ordering::Relaxed) == tag_of(epoch) {
            continue;
        }
        let byte = w.iter().zip(m).position(|(a, b)| a != b).unwrap_or(0);
        report(engine, line, line as usize * LINE + byte, epoch - 1);
    }
}

fn report(engine: &Engine, line: u64, offset: usize, epoch: u64) {
    let address = engine.heap.base().as_ptr().addr() + offset;
    let block = engine.heap.allocator().block_of(address).filter(|b| b.live).map(|b| (b.start, b.len));
    let roots = engine.heap.roots();
    let root = roots.names().into_iter().find(|name| {
        roots.get(name).is_some_and(|r| {
            let start = r.ptr.as_ptr().addr();
            (start..start + (r.size as usize).max(1)).contains(&address)
        })
    });
    let last_marked = engine.markers.as_ref().and_then(|m| m.0.lock().get(&line).copied());
    let found = ForgottenMark { address, epoch, block, root, last_marked };
    let mut list = engine.forgotten.lock();
    if !list.iter().any(|f| f.address / LINE == address / LINE) {
        log::error!("{}: {found}", engine.heap.location());
        list.push(found);
    }
}
