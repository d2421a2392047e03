//! The slow paths: from the slabs to the caches, from chunks to slabs and large objects, and back.
//!
//! Where a thread looks for blocks when its bin is empty, cheapest first: slabs with blocks that are in; a few slabs not
//! scanned yet; free runs; slabs that are wholly in, of any class; the frontier. Only when all that fails: every slab
//! not scanned yet, its own cache, blocks of larger classes. Free blocks in *other* threads' caches are out of reach, unless their
//! slab is evacuated.
//!
//! Locks: a class's lock and the runs' lock are never held together; no lock of another class is taken under one.
//! A run's header is written before the run is given to the pool, a remainder's, too. Space is provided again without the lock.

use super::cache::{Cache, Journal, Spare, batch};
use super::header::{Kind, Line, RunHeader, Seen, SlabKey};
use super::layout::{CHUNK, CLASSES, LINE, SIZES, SLAB_CHUNKS, block_index};
use super::runs::{Run, Runs};
use super::slabs::{Central, HELD};
use super::table::{Entry, SlabChunk};
use super::{Allocator, Marker, OutOfSpace, refuse};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Unscanned slabs read before a fresh one is carved.
const SCANS_BEFORE_CARVING: usize = 2;
/// Unscanned slabs that a lean thread reads before it is refused.
const LEAN_SCANS: usize = 8;
/// Classes above its own that a request may be served from when nothing else is left: up to twice the size.
const LARGER_CLASSES: usize = 8;
/// Space is asked for in steps of this many bytes.
const PROVIDE_STEP: u64 = 4 << 20;

impl Allocator {
    /// Fills the bin of `class` and takes a block from it; when space is short, a block of a larger class.
    #[cold]
    #[inline(never)]
    pub(super) fn refill<M: Marker>(
        &self,
        cache: &mut Cache,
        m: &M,
        class: usize,
        size: usize,
    ) -> Result<(u64, SlabChunk), OutOfSpace> {
        let epoch = m.epoch();
        // Again only if an evacuation of the slab began just after blocks were taken from it.
        while self.refill_cheaply(cache, m, class) || (!cache.lean && self.refill_at_any_cost(cache, m, class)) {
            if let Some(found) = self.pop(cache, class) {
                return Ok(found);
            }
        }
        let most = if cache.lean { 0 } else { LARGER_CLASSES };
        for larger in class + 1..(class + 1 + most).min(CLASSES) {
            let found = self.pop(cache, larger).or_else(|| {
                self.take_blocks(cache, larger, epoch, true);
                self.pop(cache, larger)
            });
            if let Some(found) = found {
                return Ok(found);
            }
        }
        Err(OutOfSpace { wanted: size, heap_len: self.geo.heap_len })
    }

    /// Refills from the class, or from chunks at hand.
    fn refill_cheaply<M: Marker>(&self, cache: &mut Cache, m: &M, class: usize) -> bool {
        let epoch = m.epoch();
        let scan = |cache: &mut Cache, most: usize| {
            (0..most).take_while(|_| self.scan_one(class)).any(|_| self.take_blocks(cache, class, epoch, false))
        };
        self.take_blocks(cache, class, epoch, false)
            || scan(cache, SCANS_BEFORE_CARVING)
            || self.carve_slab(cache, m, class)
            || (cache.lean && scan(cache, LEAN_SCANS))
    }

    /// Refills when there is neither a free run nor room beyond the frontier.
    fn refill_at_any_cost<M: Marker>(&self, cache: &mut Cache, m: &M, class: usize) -> bool {
        let epoch = m.epoch();
        while self.scan_one(class) {
            if self.take_blocks(cache, class, epoch, true) {
                return true;
            }
        }
        self.await_scans();
        if self.take_blocks(cache, class, epoch, true) {
            return true;
        }
        cache.flush(self);
        self.warm(u64::MAX);
        self.await_scans();
        self.take_blocks(cache, class, epoch, true) || self.carve_slab(cache, m, class)
    }

    /// Moves a batch of blocks into the empty bin of `class`; whether there were any.
    fn take_blocks(&self, cache: &mut Cache, class: usize, epoch: u64, thorough: bool) -> bool {
        let mut central = self.classes[class].lock();
        let held = cache.journal.iter().flat_map(|journal| &journal.slabs);
        let mut taken = 0;
        for &(_, index, _) in held.filter(|&&(of, ..)| of == class) {
            taken = self.take_from(&mut central, &mut cache.bins[class], class, index);
            if taken > 0 {
                break;
            }
        }
        if taken == 0 {
            let bin = &mut cache.bins[class];
            taken = central.take(epoch, batch(class), thorough, |head, block| bin.push(self.spare(class, head, block)));
            bin.reverse();
        }
        taken > 0
    }

    fn take_from(&self, central: &mut Central, bin: &mut Vec<Spare>, class: usize, index: u32) -> usize {
        let taken = central.take_from(index, batch(class), &mut |head, block| bin.push(self.spare(class, head, block)));
        // Bins are popped from their end: the lowest address goes out first.
        bin.reverse();
        taken
    }

    /// A block of the slab at `head`, which stands as long as the class is locked.
    fn spare(&self, class: usize, head: u32, block: usize) -> Spare {
        let off = self.geo.offset(head) + block as u64 * u64::from(SIZES[class]);
        Spare { off, seal: self.table.slab(head).key.seal }
    }

    /// Carves a slab and fills the bin of its class from it; false if there are no chunks for it.
    fn carve_slab<M: Marker>(&self, cache: &mut Cache, m: &M, class: usize) -> bool {
        let len = u32::from(SLAB_CHUNKS[class]);
        let Some(run) = self.take_run(cache, m, len) else {
            return false;
        };
        let key = SlabKey { seal: self.next_seal(), class: class as u8, clean: run.clean };
        let kind = Kind::Slab { class: key.class, seal: key.seal };
        let header = RunHeader { kind, len, clean: run.clean };
        self.put_header(m, run.chunk, header);
        let mut central = self.classes[class].lock();
        let index = central.next_index();
        let (head, unused_since) = (run.chunk, run.unused_since);
        self.table.set_slab(len, SlabChunk { key, index, head, unused_since, scanned: true, leaving: false });
        let epoch = if cache.journal.is_some() { HELD } else { m.epoch() };
        central.add_carved(run.chunk, epoch);
        self.take_from(&mut central, &mut cache.bins[class], class, index);
        if let Some(journal) = &mut cache.journal {
            journal.slabs.push((class, index, m.epoch()));
            journal.headers.push((run.chunk, header));
        }
        true
    }

    /// A seal nobody can guess: a counter begun at random, scrambled.
    fn next_seal(&self) -> u64 {
        let mut seal = self.seals.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed);
        seal = (seal ^ (seal >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        seal = (seal ^ (seal >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        seal ^ (seal >> 31)
    }

    pub(super) fn alloc_large<M: Marker>(&self, cache: &mut Cache, m: &M, size: usize) -> Result<NonNull<u8>, OutOfSpace> {
        let none = OutOfSpace { wanted: size, heap_len: self.geo.heap_len };
        let len = u32::try_from((size as u64).div_ceil(CHUNK)).map_err(|_| none)?;
        let mut run = self.take_run(cache, m, len);
        if run.is_none() && !cache.lean {
            cache.flush(self);
            self.warm(u64::MAX);
            self.await_scans();
            run = self.take_run(cache, m, len);
        }
        let run = run.ok_or(none)?;
        self.put_header(m, run.chunk, RunHeader { kind: Kind::Large { size: size as u64 }, len, clean: false });
        let block = self.geo.at(self.geo.offset(run.chunk));
        m.mark_block(block.as_ptr() as usize, size, run.unused_since);
        self.table.set_large(run.chunk);
        self.runs.lock().large.insert(run.chunk, len);
        self.large_bytes.fetch_add(u64::from(len) * CHUNK, Relaxed);
        if let Some(journal) = &mut cache.journal {
            journal.large_allocs.push(Run { epoch: m.epoch(), unused_since: m.epoch(), clean: false, ..run });
        }
        Ok(block)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn free_large<M: Marker>(&self, cache: &mut Cache, m: &M, addr: usize) {
        let run = Run { epoch: m.epoch(), unused_since: m.epoch(), ..self.large_at(addr) };
        self.put_header(m, run.chunk, RunHeader { kind: Kind::Free, len: run.len, clean: false });
        cache.epoch = m.epoch();
        match &mut cache.journal {
            Some(journal) => journal.large_frees.push(run),
            None => self.release_large(run),
        }
    }

    /// The live large object at `addr`; panics if there is none.
    pub(super) fn large_at(&self, addr: usize) -> Run {
        self.find_large(addr).unwrap_or_else(|seen| refuse(addr, seen))
    }

    /// The large object that starts at an address, or what stands there instead.
    pub(super) fn find_large(&self, addr: usize) -> Result<Run, Seen> {
        let place = self.geo.offset_of(addr).and_then(|off| Some((off, self.geo.chunk_of(off)?)));
        let large = place.filter(|&(off, chunk)| off == self.geo.offset(chunk) && matches!(self.table.get(chunk), Entry::Large));
        let Some((_, chunk)) = large else { return Err(Seen::Unwritten) };
        match self.run_header(chunk) {
            Ok(Some(RunHeader { kind: Kind::Large { .. }, len, .. })) => Ok(Run::solid(chunk, len, 0, false)),
            Ok(Some(RunHeader { kind: Kind::Free, len, .. })) => Err(Seen::Free(len as usize * CHUNK as usize)),
            Err(why) => Err(Seen::Damaged(why)),
            _ => Err(Seen::Unwritten),
        }
    }

    /// Gives the chunks of a large object, whose header says free, to the pool.
    pub(super) fn release_large(&self, run: Run) {
        let mut runs = self.runs.lock();
        self.table.clear(run.chunk, 1);
        runs.large.remove(&run.chunk);
        match runs.leaving.get_mut(&run.chunk) {
            Some(left) => *left = Some(run),
            None => runs.insert(run),
        }
        self.large_bytes.fetch_sub(u64::from(run.len) * CHUNK, Relaxed);
    }

    /// Takes `len` chunks for the caller, who writes their header. What remains of a split run gets its header here.
    fn take_run<M: Marker>(&self, cache: &mut Cache, m: &M, len: u32) -> Option<Run> {
        let epoch = m.epoch();
        if let Some(journal) = &mut cache.journal {
            let fit = journal.runs.iter().enumerate().filter(|(_, run)| run.len >= len).min_by_key(|(_, run)| run.len);
            if let Some((at, _)) = fit {
                let run = journal.runs.swap_remove(at);
                return self.split(Some(journal), m, run, len);
            }
        }
        if let Some(run) = cache.granted.take_if(|run| run.len >= len && run.epoch <= epoch) {
            return self.split(cache.journal.as_deref_mut(), m, run, len);
        }
        loop {
            let mut runs = self.runs.lock();
            let run = if self.is_within_bound(cache, &runs, len) { runs.take(len, epoch) } else { None };
            drop(runs);
            if let Some(run) = run.and_then(|run| self.split(cache.journal.as_deref_mut(), m, run, len)) {
                return Some(run);
            }
            // A slab given up by an undoable transaction goes to its journal, where only a fitting one is of use.
            if let Some(run) = self.give_up_one(cache, m) {
                match &mut cache.journal {
                    Some(journal) if run.len >= len => return self.split(Some(journal), m, run, len),
                    Some(journal) => journal.runs.push(run),
                    None => self.runs.lock().insert(run),
                }
                continue;
            }
            let mut runs = self.runs.lock();
            return if self.is_within_bound(cache, &runs, len) { self.extend(&mut runs, epoch, len) } else { None };
        }
    }

    fn is_within_bound(&self, cache: &Cache, runs: &Runs, len: u32) -> bool {
        cache.unbounded || u64::from(runs.in_use()) + u64::from(len) <= u64::from(self.bound.load(Relaxed))
    }

    /// Cuts `len` chunks off the front of a run that is out of the pool, with space behind them. What remains gets its header, and goes to the
    /// journal or into the pool. `None` if there is no space for them; then all of the run goes there.
    fn split<M: Marker>(&self, mut journal: Option<&mut Journal>, m: &M, run: Run, len: u32) -> Option<Run> {
        let keep = |journal: Option<&mut Journal>, rest: Run| match journal {
            Some(journal) => journal.runs.push(rest),
            None => self.runs.lock().insert(rest),
        };
        if run.hollow && (self.provide)(self.geo.offset(run.chunk)..self.geo.offset(run.chunk + len)).is_err() {
            keep(journal, run);
            return None;
        }
        if run.len > len {
            let rest_len = run.len - len;
            let rest = Run { chunk: run.chunk + len, len: rest_len, epoch: m.epoch(), backed: run.backed.min(rest_len), ..run };
            let header = RunHeader { kind: Kind::Free, len: rest.len, clean: rest.clean };
            self.put_header(m, rest.chunk, header);
            if let Some(journal) = &mut journal {
                journal.headers.push((rest.chunk, header));
            }
            keep(journal, rest);
        }
        Some(Run { len, hollow: false, backed: len, ..run })
    }

    /// Takes `len` chunks at the frontier, with the free run that ends there.
    fn extend(&self, runs: &mut Runs, epoch: u64, len: u32) -> Option<Run> {
        let tail = runs.tail(epoch).filter(|tail| tail.len < len);
        let more = len - tail.map_or(0, |tail| tail.len);
        if more > self.geo.chunks - runs.frontier {
            return None;
        }
        let upto = self.geo.offset(runs.frontier + more);
        if upto > runs.provided {
            let ahead = upto.next_multiple_of(PROVIDE_STEP).min(self.geo.offset(self.geo.chunks));
            runs.provided = match (self.provide)(runs.provided..ahead) {
                Ok(()) => ahead,
                Err(_) => (self.provide)(runs.provided..upto).map(|()| upto).ok()?,
            };
        }
        if let Some(tail) = tail.filter(|tail| tail.hollow) {
            (self.provide)(self.geo.offset(tail.chunk)..self.geo.offset(tail.chunk + tail.len)).ok()?;
        }
        let run = runs.extend(tail, more);
        let run = Run { hollow: false, backed: run.len, ..run };
        self.frontier.store(self.geo.offset(runs.frontier), Release);
        Some(run)
    }

    /// Turns slabs without live or cached blocks back into free chunks, for any class to use, and returns how many bytes
    /// that gave. Allocation does the same by itself before it moves the frontier; this is for idle moments.
    pub fn reclaim<M: Marker>(&self, cache: &mut Cache, m: &M) -> u64 {
        cache.flush(self);
        let mut bytes = 0;
        while let Some(run) = self.give_up_one(cache, m) {
            bytes += u64::from(run.len) * CHUNK;
            match &mut cache.journal {
                Some(journal) => journal.runs.push(run),
                None => self.runs.lock().insert(run),
            }
        }
        bytes
    }

    /// Gives up one slab that is wholly in; its chunks are the caller's.
    fn give_up_one<M: Marker>(&self, cache: &mut Cache, m: &M) -> Option<Run> {
        for (class, &len) in SLAB_CHUNKS.iter().enumerate() {
            if !self.empties[class].load(Relaxed) {
                continue;
            }
            let mut central = self.classes[class].lock();
            let head = central.remove_empty(m.epoch());
            self.note_empties(&central, class);
            let Some(chunk) = head else { continue };
            let len = u32::from(len);
            self.table.clear(chunk, len);
            drop(central);
            let header = RunHeader { kind: Kind::Free, len, clean: false };
            self.put_header(m, chunk, header);
            if let Some(journal) = &mut cache.journal {
                journal.headers.push((chunk, header));
            }
            return Some(Run::solid(chunk, len, m.epoch(), false));
        }
        None
    }

    /// Keeps the hint, which saves taking every class's lock, in step with the class. Under its lock.
    pub(super) fn note_empties(&self, central: &Central, class: usize) {
        self.empties[class].store(central.may_have_empties(), Relaxed);
    }

    /// Notes, before the header of a block in an unscanned slab changes, that the scan must not judge it.
    #[cold]
    #[inline(never)]
    pub(super) fn decide(&self, slab: &SlabChunk, off: u64) {
        let class = usize::from(slab.key.class);
        self.classes[class].lock().decide(slab.index, block_index(class, off - self.geo.offset(slab.head)));
    }

    /// Marks and writes the header line of a run.
    pub(super) fn put_header<M: Marker>(&self, m: &M, chunk: u32, header: RunHeader) {
        let off = self.geo.header(chunk);
        m.mark(self.geo.at(off).as_ptr() as usize, LINE);
        for (at, word) in header.encode(off).into_iter().enumerate() {
            self.geo.word(off + at as u64 * 8).store(word, Relaxed);
        }
    }

    /// Reads the header line of a run.
    pub(super) fn run_header(&self, chunk: u32) -> Result<Option<RunHeader>, &'static str> {
        let off = self.geo.header(chunk);
        let line: Line = std::array::from_fn(|at| self.geo.word(off + at as u64 * 8).load(Relaxed));
        RunHeader::decode(&line, off)
    }
}
