//! Allocation in transactions: the heap's allocator, told by its journal when a transaction is durable or has never been.
//!
//! What must always hold:
//! 1. what an allocation writes in place (headers of blocks and runs) lies in lines that nobody else looks at before the transaction is
//!    durable: its journal is on, so what was carved and freed is shown to other threads only then;
//! 2. blocks are freed once the transaction can no longer fail: two transactions that would free one block conflict, or the second is an
//!    error;
//! 3. a run that does not take effect restores those lines. What was carved stays carved, and is shown once its headers are logged.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Release;

use towa_heap::alloc::Marker;

use crate::error::{Error, Result};
use crate::thread::Core;
use crate::tx::RootChange;
use crate::view::{Addr, View, WORD};
use crate::writers;

/// Bytes at the start of a range that may be a header: what an undo restores.
const HEADER_MAX: u64 = 64;
/// Headers of runs in one record of an undone transaction's: so few that the smallest log has room for it.
const HEADERS_LOGGED: usize = 256;

/// Notes what the allocator and the root table write.
struct Notes<'c> {
    view: View,
    ranges: RefCell<&'c mut Vec<(Addr, u64)>>,
    undo: RefCell<&'c mut Vec<(Addr, u64)>>,
}

impl Notes<'_> {
    fn note(&self, addr: usize, len: usize) {
        let (start, end) = (addr as u64 & !(WORD - 1), (addr as u64 + len as u64).next_multiple_of(WORD));
        self.ranges.borrow_mut().push((start, end - start));
        let mut undo = self.undo.borrow_mut();
        // Of a block its header; the rest of it nobody misses. A root's slot is two lines.
        let kept = if end - start <= 2 * HEADER_MAX { end } else { start + HEADER_MAX };
        undo.extend((start..kept).step_by(WORD as usize).map(|a| (a, self.view.load(a))));
    }
}

impl Marker for Notes<'_> {
    fn mark(&self, addr: usize, len: usize) {
        self.note(addr, len);
    }

    fn epoch(&self) -> u64 {
        // What one thread shows another is durable by then: one epoch is all there is.
        1
    }
}

impl Core {
    /// A block for the transaction that runs, whose first `logged` bytes are logged.
    pub(crate) fn alloc(&mut self, size: usize, logged: usize) -> Result<Addr> {
        if size as u64 > self.engine.heap.len() {
            return Err(Error::OutOfSpace { wanted: size, heap_len: self.engine.heap.len() });
        }
        self.begin_journal();
        let notes = Notes { view: self.view, ranges: RefCell::new(&mut self.ranges), undo: RefCell::new(&mut self.undo) };
        let block = self.engine.heap.allocator().alloc(&mut self.cache, &notes, size.max(1));
        let block = block.map_err(|e| {
            self.lacks_space = true;
            Error::OutOfSpace { wanted: e.wanted, heap_len: e.heap_len }
        })?;
        let at = block.as_ptr().addr() as u64;
        let logged = (logged.min(size) as u64).next_multiple_of(WORD);
        self.fresh.push((at, logged));
        // The range that it was noted with begins with its header, if that lies before it.
        let noted = self.ranges.iter_mut().rev().find(|range| at.wrapping_sub(range.0) < range.1);
        if let Some((start, len)) = noted {
            *len = at + logged - *start;
        }
        Ok(at)
    }

    /// Frees a live block when the transaction takes effect.
    pub(crate) fn free(&mut self, at: Addr) -> Result<()> {
        if self.frees.contains(&at) {
            return Err(Error::Usage(format!("the block at {at:#x} is freed twice in one transaction")));
        }
        self.frees.push(at);
        Ok(())
    }

    /// Whether a live block begins at `at`. Headers of blocks are not in the read set: see [`decide`](Self::decide).
    pub(crate) fn is_live(&self, at: Addr) -> bool {
        let block = self.engine.heap.allocator().block_of(at as usize);
        block.is_some_and(|block| block.live && block.start as u64 == at)
    }

    fn begin_journal(&mut self) {
        if !std::mem::replace(&mut self.allocating, true) {
            self.engine.turn_journal(self.lane);
            self.cache.begin_undoable();
        }
    }

    /// Under the sequence lock, when nothing else can fail: frees blocks and sets roots, and logs that. `stamp`: the transaction's. After
    /// an error, some lines have that stamp, and perhaps the roots.
    pub(crate) fn change_tables(&mut self, stamp: u64) -> Result<()> {
        let from = self.ranges.len();
        for at in std::mem::take(&mut self.frees) {
            if !self.is_live(at) {
                return Err(no_live_block(at));
            }
            self.begin_journal();
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize)).expect("a live block");
            let notes = Notes { view: self.view, ranges: RefCell::new(&mut self.ranges), undo: RefCell::new(&mut self.undo) };
            // SAFETY: a live block of this heap, just looked at under the lock that every free holds. Whoever still has its address can
            // do no more than read and write words of the heap, atomically.
            unsafe { self.engine.heap.allocator().free(&mut self.cache, &notes, block) };
            if self.engine.writers.are_known() {
                // Another thread that frees it, too, is told so when this is durable.
                self.stamp_line(writers::line(at), stamp);
            }
        }
        if !self.roots.is_empty() {
            // Before the roots are seen. (The transaction depends on all earlier ones, so also on the one that was named here.)
            self.engine.roots_writer.store(stamp, Release);
            self.change_roots()?;
        }
        self.note_ranges_from(from);
        if self.allocating {
            self.note_frontier();
        }
        Ok(())
    }

    fn change_roots(&mut self) -> Result<()> {
        // What is held stays so until the roots are set.
        let held = self.engine.held.lock();
        for RootChange { name, root, is_new, by_holder } in &self.roots {
            if !by_holder {
                held.refuse(name)?;
            }
            if *is_new && self.engine.heap.roots().get(name).is_some() {
                return Err(Error::RootExists { pool: self.engine.heap.location(), name: name.clone() });
            }
            let notes = Notes { view: self.view, ranges: RefCell::new(&mut self.ranges), undo: RefCell::new(&mut self.undo) };
            // SAFETY: one transaction at a time is here; what the root is said to be is read back through checked addresses only.
            let set = unsafe { self.engine.heap.roots().set(1, name, *root, |addr, len| notes.note(addr, len)) };
            self.roots_changed = true;
            set.map_err(Error::Usage)?;
        }
        Ok(())
    }

    /// Puts the allocator's frontier into the record, unless the log has it.
    pub(crate) fn note_frontier(&mut self) {
        let frontier = self.engine.heap.allocator().frontier();
        if frontier > self.engine.logged_frontier() {
            self.record.frontier(frontier);
            self.frontier = frontier;
        }
    }

    /// Puts what was written in place into the record.
    #[inline]
    pub(crate) fn note_ranges(&mut self) {
        self.note_ranges_from(0);
    }

    /// Headers and new blocks with what is to be logged of them. That may include version words, which never are to get into the image.
    fn note_ranges_from(&mut self, from: usize) {
        for &(start, len) in &self.ranges[from..] {
            self.words.clear();
            self.view.load_all(start, start + len, &mut self.words);
            self.record.words(self.view.offset(start), &self.words);
        }
    }

    /// The transaction is durable: what it freed and carved is everybody's.
    pub(crate) fn end_journal(&mut self) {
        self.roots_changed = false;
        if std::mem::take(&mut self.allocating) {
            self.engine.heap.allocator().commit(&mut self.cache);
            self.engine.turn_journal(self.lane);
            let frontier = std::mem::take(&mut self.frontier);
            self.engine.frontier_logged(frontier);
        }
    }

    /// Restores what was written in place.
    pub(crate) fn restore(&mut self) {
        for &(a, word) in self.undo.iter().rev() {
            self.view.store(a, word);
        }
        self.undo.clear();
        self.ranges.clear();
        if std::mem::take(&mut self.roots_changed) {
            let heap = &self.engine.heap;
            if let Err(what) = heap.roots().reload(|a| heap.contains(a)) {
                self.engine.poison(what);
            }
        }
    }

    /// Ends the journal of a run that was undone: what it had carved is free space in other pieces. Their headers are logged before
    /// anybody else may use them; in as many records as it takes, for every part of them from the first on is a whole state.
    pub(crate) fn keep_structure(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.allocating) {
            return Ok(());
        }
        let notes = Notes { view: self.view, ranges: RefCell::new(&mut self.ranges), undo: RefCell::new(&mut self.undo) };
        self.engine.heap.allocator().undo(&mut self.cache, &notes);
        let headers = std::mem::take(&mut self.ranges);
        for headers in headers.chunks(HEADERS_LOGGED) {
            self.ranges.clear();
            self.ranges.extend_from_slice(headers);
            // Without its headers nothing of it is shown; but no thread waits for this journal any more.
            self.log_headers().inspect_err(|_| self.engine.turn_journal(self.lane))?;
        }
        self.ranges.clear();
        self.undo.clear();
        self.engine.heap.allocator().release_undone(&mut self.cache);
        self.engine.turn_journal(self.lane);
        Ok(())
    }

    /// A transaction of its own, which nobody can conflict with: the headers in `ranges` as they are.
    fn log_headers(&mut self) -> Result<()> {
        self.record.clear();
        self.note_ranges();
        let frontier = self.engine.heap.allocator().frontier();
        self.record.frontier(frontier);
        self.make_room(self.record.len())?;
        self.announce();
        self.take_lock();
        let timestamp = self.timestamp();
        self.give_lock_back();
        self.make_durable(timestamp)?;
        self.engine.frontier_logged(frontier);
        Ok(())
    }
}

/// That no live block begins at `at`.
pub(crate) fn no_live_block(at: Addr) -> Error {
    Error::Usage(format!("there is no live block at {at:#x} to free"))
}
