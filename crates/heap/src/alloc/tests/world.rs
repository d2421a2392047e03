//! A heap in memory and an engine that believes nothing.
//!
//! Two epochs may be open at a time, n and n + 1. A line that n + 1 marks while n is open has its content saved: that is
//! what the image of n gets. A mark of n on a line that n + 1 marked, or a write without a mark, fails the test.

use crate::alloc::{Allocator, CHUNK, Full, LINE, Marker};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Where the allocator's part begins in every test heap.
pub(super) const FIRST: u64 = 2 * CHUNK;

/// Anonymous memory, zero where never written.
pub(super) struct Memory {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
    /// Which lines have no memory.
    hollow: Arc<Mutex<Vec<bool>>>,
}

// SAFETY: plain memory; the tests order their accesses to it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(len: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping anywhere.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        Self {
            base: NonNull::new(at.cast()).expect("mmap never returns null"),
            len,
            hollow: Arc::new(Mutex::new(vec![false; len.div_ceil(LINE)])),
        }
    }

    pub(super) fn of(image: &[u8], len: usize) -> Self {
        let memory = Self::new(len);
        // SAFETY: just mapped, at least as long.
        unsafe { memory.base.as_ptr().copy_from_nonoverlapping(image.as_ptr(), image.len().min(len)) };
        memory
    }

    pub(super) fn bytes(&self, off: u64, len: usize) -> &[u8] {
        assert!(off as usize + len <= self.len);
        // SAFETY: in the mapping; the caller does not write it meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(off as usize), len) }
    }

    pub(super) fn off(&self, ptr: NonNull<u8>) -> u64 {
        (ptr.as_ptr() as usize - self.base.as_ptr() as usize) as u64
    }

    pub(super) fn at(&self, off: u64) -> NonNull<u8> {
        assert!((off as usize) < self.len);
        // SAFETY: in the mapping.
        unsafe { self.base.add(off as usize) }
    }

    pub(super) fn write(&self, off: u64, bytes: &[u8]) {
        assert!(off as usize + bytes.len() <= self.len);
        // SAFETY: in the mapping; the caller owns that range.
        unsafe { self.at(off).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn lines_of(range: Range<u64>) -> Range<usize> {
    range.start as usize / LINE..range.end as usize / LINE
}

/// Opens an allocator on `memory`, whose space grants never fail.
pub(super) fn open(memory: &Memory, frontier: u64) -> Allocator {
    let len = memory.len as u64;
    let hollow = Arc::clone(&memory.hollow);
    let provide = move |range: Range<u64>| {
        assert!(range.end <= len, "space beyond the heap");
        // What joins hollow chunks is asked for with them, so some of it may be there.
        hollow.lock().unwrap()[lines_of(range)].fill(false);
        Ok::<(), Full>(())
    };
    // SAFETY: one mapping, which the tests keep longer than the allocator, and write only where they may.
    unsafe { Allocator::new(memory.base, memory.len as u64, FIRST, frontier, Box::new(provide)) }.expect("an undamaged heap")
}

/// What lines held before an undoable transaction wrote them.
pub(super) type UndoLog = RefCell<Vec<(u64, [u8; LINE])>>;

#[derive(Default)]
struct Lines {
    /// Newest epoch that marked a line.
    marked: Vec<u64>,
    /// Lines marked since the shadow was last brought up.
    dirty: HashSet<u64>,
    /// What lines marked by n + 1 held at the end of n.
    saved: HashMap<u64, [u8; LINE]>,
    shadow: Vec<u8>,
}

/// The engine.
pub(super) struct World {
    pub(super) memory: Memory,
    lines: RefCell<Lines>,
    /// The older open epoch.
    pub(super) oldest: u64,
    /// The epoch new transactions join: `oldest` or one more.
    pub(super) newest: u64,
}

/// A transaction.
pub(super) struct Tx<'w> {
    world: &'w World,
    epoch: u64,
    /// For an undoable one: what its lines held.
    undo: Option<&'w UndoLog>,
}

impl World {
    pub(super) fn new(memory: Memory) -> Self {
        let (shadow, marked) = (memory.bytes(0, memory.len).to_vec(), vec![0; memory.len / LINE]);
        Self { memory, lines: RefCell::new(Lines { shadow, marked, ..Lines::default() }), oldest: 1, newest: 1 }
    }

    pub(super) fn tx<'w>(&'w self, epoch: u64, undo: Option<&'w UndoLog>) -> Tx<'w> {
        assert!(epoch == self.oldest || epoch == self.newest);
        Tx { world: self, epoch, undo }
    }

    fn line(&self, line: u64) -> [u8; LINE] {
        self.memory.bytes(line * LINE as u64, LINE).try_into().expect("a line")
    }

    /// Restores what an undoable transaction wrote.
    pub(super) fn undo(&self, log: &UndoLog) {
        for (line, old) in log.borrow_mut().drain(..).rev() {
            self.lines.borrow_mut().dirty.insert(line);
            self.memory.write(line * LINE as u64, &old);
        }
    }

    /// Checks that nothing changed without a mark since the last time.
    pub(super) fn verify_marks(&self, upto: u64) {
        let mut lines = self.lines.borrow_mut();
        for line in std::mem::take(&mut lines.dirty) {
            let at = line as usize * LINE;
            let now = self.line(line);
            lines.shadow[at..at + LINE].copy_from_slice(&now);
        }
        let (now, shadow) = (self.memory.bytes(0, upto as usize), &lines.shadow[..upto as usize]);
        if now != shadow {
            let at = now.iter().zip(shadow).position(|(a, b)| a != b).expect("they differ");
            panic!("offset {at:#x} was written without a mark");
        }
    }

    /// Lets go of the memory of chunks, which no epoch needs: none that is open has marked a line of it.
    pub(super) fn let_go(&self, range: Range<u64>) -> bool {
        let mut lines = self.lines.borrow_mut();
        for line in range.start / LINE as u64..range.end / LINE as u64 {
            let marked = lines.marked[line as usize];
            assert!(marked < self.oldest, "line {line:#x}, which epoch {marked} has marked, is let go of in epoch {}", self.oldest);
            assert!(!lines.saved.contains_key(&line));
        }
        self.memory.write(range.start, &vec![0; (range.end - range.start) as usize]);
        lines.shadow[range.start as usize..range.end as usize].fill(0);
        self.memory.hollow.lock().unwrap()[lines_of(range)].fill(true);
        true
    }

    /// All chunks below the frontier that are not in use have no memory.
    pub(super) fn hollow_out(&self, allocator: &Allocator) {
        let used = allocator.rows_in_use();
        let mut hollow = self.memory.hollow.lock().unwrap();
        hollow[lines_of(allocator.geo.data..allocator.frontier())].fill(true);
        used.into_iter().for_each(|row| hollow[lines_of(row)].fill(false));
        drop(hollow);
        allocator.forget_backing(true);
    }

    /// The image of the oldest epoch, once all of its transactions have ended; that epoch is over then.
    pub(super) fn end_oldest(&mut self) -> Vec<u8> {
        assert!(self.newest == self.oldest + 1);
        let lines = self.lines.get_mut();
        let mut image = self.memory.bytes(0, self.memory.len).to_vec();
        for (line, old) in lines.saved.drain() {
            image[line as usize * LINE..][..LINE].copy_from_slice(&old);
        }
        self.oldest = self.newest;
        image
    }
}

impl Marker for Tx<'_> {
    fn mark(&self, addr: usize, len: usize) {
        let off = (addr - self.world.memory.base.as_ptr() as usize) as u64;
        assert!(len > 0 && off as usize + len <= self.world.memory.len && off >= FIRST);
        let mut lines = self.world.lines.borrow_mut();
        for line in off / LINE as u64..(off + len as u64).div_ceil(LINE as u64) {
            let has_memory = !self.world.memory.hollow.lock().unwrap()[line as usize];
            assert!(has_memory, "line {line:#x} has none");
            let now = self.world.line(line);
            let before = std::mem::replace(&mut lines.marked[line as usize], self.epoch);
            assert!(before <= self.epoch, "epoch {} marks line {line:#x}, which epoch {before} has marked", self.epoch);
            if lines.dirty.insert(line) {
                let at = line as usize * LINE;
                assert!(now == lines.shadow[at..at + LINE], "line {line:#x} was written before it was marked");
            }
            if before < self.epoch && self.epoch > self.world.oldest {
                lines.saved.insert(line, now);
            }
            if let Some(undo) = self.undo {
                undo.borrow_mut().push((line, now));
            }
        }
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// SplitMix64.
pub(super) struct Random(u64);

impl Random {
    /// From `TOWA_SEED`, or the test's own seed; prints it, so that a failure can be repeated.
    pub(super) fn new(seed: u64) -> Self {
        let seed = std::env::var("TOWA_SEED").map_or(seed, |seed| seed.parse().expect("TOWA_SEED is a number"));
        println!("TOWA_SEED={seed}");
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Mostly small, sometimes of any class, now and then large.
    pub(super) fn size(&mut self) -> usize {
        match self.below(100) {
            0..60 => self.below(300),
            60..85 => self.below(4000),
            85..98 => self.below(130_000),
            _ => self.below(500_000),
        }
    }
}
