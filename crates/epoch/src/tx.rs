//! Transactions: the write barrier, allocation, and the end.
//!
//! What they cost: [`Tx::mark`] of lines already marked in this epoch is one load a line; ending is one store. First marks and
//! saving old lines are on the cold path, `mark_slow`.

mod in_place;

use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::ptr::{NonNull, without_provenance};
use std::sync::atomic::{AtomicU8, Ordering::*};

use towa_heap::Root;
use towa_heap::alloc::{BLOCK_HEADER, Marker};
use towa_media::LINE;

use crate::pool::Pool;
use crate::tags::tag_of;
use crate::thread::{Thread, Window};
use crate::{Error, Result};

/// No epoch: the bytes may belong to something.
const NEVER: u64 = u64::MAX;

/// What an undoable transaction can restore.
#[derive(Debug, Default)]
pub(crate) struct Rollback {
    lines: HashMap<u64, [u8; LINE]>,
    roots: bool,
}

/// A running transaction. Dropping it ends it, like [`commit`](Self::commit); dropping it while panicking aborts it.
///
/// What it wrote is durable when its epoch is: within an interval by itself, or when [`Pool::sync`] returns.
pub struct Tx<'t> {
    thread: &'t Thread,
    ended: bool,
    /// Stays on its thread.
    _not_send: PhantomData<*mut ()>,
}

impl std::fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tx(epoch {} on {:?})", self.epoch(), self.thread)
    }
}

impl<'t> Tx<'t> {
    /// How many bytes at the start of a [discarded](Self::discard) block keep their values in a crash, but for its lost word.
    pub const KEPT: usize = LINE - BLOCK_HEADER;

    #[inline]
    pub(crate) fn running(thread: &'t Thread) -> Tx<'t> {
        Tx { thread, ended: false, _not_send: PhantomData }
    }

    /// The epoch it belongs to: durable once [`Pool::durable_epoch`] is at least this.
    pub fn epoch(&self) -> u64 {
        self.thread.epoch.get()
    }

    /// The pool.
    pub fn pool(&self) -> &'t Pool {
        self.thread.pool()
    }

    /// Write barrier: call **before** writing `len` bytes at `address`.
    ///
    /// A transaction that finds its line marked by a later epoch panics in debug builds and poisons the pool in
    /// release builds, naming the address: it and all later ones are never durable ([`try_commit`](Self::try_commit)
    /// says so). The other order, and conflicts within an epoch, are not noticed.
    ///
    /// # Panics
    /// If the range does not lie in the heap.
    ///
    /// # Safety
    /// From this call until the transaction ends no other thread writes, or has a `&mut` to, any byte of the 64-byte
    /// lines that hold the range, and no other transaction marks them. (A marked line is read; an undoable
    /// transaction that [aborts](Self::abort) writes the bytes back that stood there when it marked, and so may
    /// whoever recovers the pool.)
    #[inline]
    #[track_caller]
    pub unsafe fn mark(&self, address: *const u8, len: usize) {
        self.mark_lines(address, len, NEVER);
    }

    /// [`mark`](Self::mark), of a block that is given out: as of the end of any epoch from `unused_since` on in which no line of it is marked
    /// its bytes behind the first line belong to nothing.
    #[inline]
    #[track_caller]
    fn mark_lines(&self, address: *const u8, len: usize, unused_since: u64) {
        let window = self.thread.window.get();
        if window.tags.is_null() || len == 0 {
            if self.thread.undoable.get() && len > 0 {
                self.mark_untracked(address, len, &window);
            }
            return;
        }
        let offset = address.addr().wrapping_sub(window.base);
        if offset >= window.len || len > window.len - offset {
            outside(address, len, &window);
        }
        let (first, last) = (offset / LINE, (offset + len - 1) / LINE);
        for line in first..=last {
            // SAFETY: within the tags: one byte for each line of the heap, and the range lies in the heap.
            let tag = unsafe { &*window.tags.add(line).cast::<AtomicU8>() };
            if tag.load(Relaxed) != window.tag {
                let unused_since = if line == first { unused_since } else { NEVER };
                return self.mark_slow(line as u64, last as u64, unused_since);
            }
        }
    }

    /// In a volatile pool nothing is tracked, but an undoable transaction must still be able to roll back.
    #[cold]
    #[track_caller]
    fn mark_untracked(&self, address: *const u8, len: usize, window: &Window) {
        let offset = address.addr().wrapping_sub(window.base);
        if offset >= window.len || len > window.len - offset {
            outside(address, len, window);
        }
        (offset / LINE..=(offset + len - 1) / LINE).for_each(|line| self.save_for_rollback(line as u64));
    }

    /// Marks lines `first..=last`, some of which this epoch has not marked yet (or the transaction is undoable).
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn mark_slow(&self, first: u64, last: u64, unused_since: u64) {
        let thread = self.thread;
        let engine = thread.engine();
        let slot = thread.slot();
        let tags = engine.tags.as_ref().expect("only tracked heaps come here");
        let epoch = thread.epoch.get();
        if let Some(undo) = engine.heap.undo() {
            return self.mark_in_place(undo, first, last, unused_since);
        }
        let (mine, before, after) = (tag_of(epoch), tag_of(epoch - 1), tag_of(epoch + 1));
        if let Some(warming) = &engine.warming {
            warming.before_first_marks(first as usize * LINE, (last as usize + 1) * LINE);
        }
        // Once the persister has read the epoch before, it has: within one call the answer may only be overtaken, harmlessly.
        let save = engine.read_done.load(Acquire) < epoch - 1;
        // SAFETY: the slot's thread, inside a transaction of `epoch`.
        let list = unsafe { slot.list(epoch) };
        if thread.undoable.get() {
            (first..=last).for_each(|line| self.save_for_rollback(line));
        }
        let (mut added, mut saved, mut run) = (0, 0, first);
        for line in first..=last {
            let tag = tags.get(line);
            let found = tag.load(Relaxed);
            if found == mine {
                if line > run {
                    list.push(run, line - run);
                }
                run = line + 1;
                continue;
            }
            if found == after {
                self.conflict(line);
            }
            if save && found == before {
                let address = self.address_of(line);
                // SAFETY: the slot's thread; the line lies in the heap; nobody else writes it during this transaction; two epochs
                // of one parity are never open at once.
                unsafe { slot.saved_for(epoch - 1).save(epoch - 1, line, address) };
                saved += 1;
            }
            tag.store(mine, Relaxed);
            added += 1;
        }
        if last + 1 > run {
            list.push(run, last + 1 - run);
        }
        if let Some(markers) = &engine.markers {
            markers.record(first, last, Location::caller());
        }
        if added > 0 {
            self.account(epoch, added, saved);
        }
    }

    /// Counts `added` lines marked first, and `saved` old ones that go to the log beside them.
    fn account(&self, epoch: u64, added: u64, saved: u64) {
        let slot = self.thread.slot();
        if slot.dirty_epoch.load(Relaxed) != epoch {
            slot.dirty_epoch.store(epoch, Release);
        }
        self.thread.marked.set(self.thread.marked.get() + added);
        let lines = self.thread.unaccounted.get() + added + saved;
        if lines >= self.thread.engine().account_lines() {
            self.thread.unaccounted.set(0);
            self.thread.engine().account(epoch, lines);
        } else {
            self.thread.unaccounted.set(lines);
        }
        if self.thread.marked.get() > self.thread.may_mark.get() {
            self.mark_beyond_share();
        }
    }

    /// The transaction marks more than it may. It takes what the log has left; where that is nothing, the pool is given up now,
    /// rather than later by a log that overflows: nobody else's transaction may fail for this one.
    #[cold]
    fn mark_beyond_share(&self) {
        let (thread, engine) = (self.thread, self.thread.engine());
        let more = thread.marked.get() - thread.may_mark.get() + engine.share_lines().min(1 << 10);
        if engine.reserve_more(more) {
            thread.may_mark.set(thread.may_mark.get() + more);
            thread.reserved.set(thread.reserved.get() + more);
        } else {
            engine.poison(format!(
                "a transaction marked {} bytes, more than the {} it may or has reserved, and the log has no more; begin it reserving",
                thread.marked.get() * LINE as u64,
                thread.may_mark.get() * LINE as u64
            ));
        }
    }

    #[cold]
    fn conflict(&self, line: u64) {
        let address = self.thread.window.get().base + line as usize * LINE;
        let (mine, theirs) = (self.epoch(), self.epoch() + 1);
        let why = format!(
            "two transactions at once write the line at {address:#x} (epochs {mine} and {theirs}); guard each 64-byte line by one lock, \
             taken before the transaction starts and released after it ends"
        );
        self.thread.engine().poison(why.clone());
        if cfg!(debug_assertions) {
            panic!("{why}");
        }
    }

    /// Where a line of the heap is.
    fn address_of(&self, line: u64) -> *mut u8 {
        self.thread.engine().heap.base().as_ptr().wrapping_add(line as usize * LINE)
    }

    fn save_for_rollback(&self, line: u64) {
        let address = self.address_of(line);
        self.thread.rollback.borrow_mut().lines.entry(line).or_insert_with(|| {
            // SAFETY: the line lies in the heap, and only this transaction writes it now.
            unsafe { address.cast::<[u8; LINE]>().read() }
        });
    }

    /// A block of at least `size` bytes, aligned to 16, already marked; its content is unspecified.
    ///
    /// # Errors
    /// [`Error::OutOfSpace`], and [`Error::NotReserved`] for a block larger than the transaction's share of the log: nothing was
    /// changed, the transaction goes on.
    pub fn alloc(&self, size: usize) -> Result<NonNull<u8>> {
        let engine = self.thread.engine();
        let lines = size as u64 / LINE as u64;
        if lines > 64 && self.thread.marked.get() + lines > self.thread.may_mark.get() {
            return Err(Error::NotReserved { wanted: size, reserved: self.thread.may_mark.get() * LINE as u64 });
        }
        let found = engine.heap.allocator().alloc(&mut self.thread.cache.borrow_mut(), &Marks(self), size);
        found.map_err(|_| {
            self.thread.refused.set(size);
            Error::OutOfSpace { wanted: size, heap_len: engine.heap.len() }
        })
    }

    /// Frees a block. Transactions of this epoch or later may reuse it, never earlier ones: a crash that drops this epoch finds it
    /// intact.
    ///
    /// # Safety
    /// `block` came from [`alloc`](Self::alloc) of this pool, is live, and nobody uses it after the transaction's locks are
    /// released.
    pub unsafe fn free(&self, block: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { self.thread.engine().heap.allocator().free(&mut self.thread.cache.borrow_mut(), &Marks(self), block) };
    }

    /// Frees a block whose content the program will not need again, even after a crash: a cache discards what it evicts. In a pool in place the
    /// log then gets one line of the block (one more for each 8 MiB), and not all lines when the memory is used again. If the block was changed
    /// since the durable epoch, in an undoable transaction, and in other pools, this is [`free`](Self::free).
    ///
    /// A crash may drop this epoch, and a backup may leave it out. A block that was live at the durable epoch is then whole or *lost*. In a lost
    /// block the eight bytes at `offset` are 0, the rest of the first [`KEPT`](Self::KEPT) bytes are as they were, and all bytes behind them are
    /// undefined. Blocks to which only those bytes pointed stay allocated for ever. So the eight bytes must never be 0 in a block in use.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8 below [`KEPT`](Self::KEPT), and as [`free`](Self::free) does.
    ///
    /// # Safety
    /// As of [`free`](Self::free), and of [`mark`](Self::mark) for all of the block. After a crash, or in a backup, the program looks at those eight
    /// bytes before it believes any behind the first [`KEPT`](Self::KEPT).
    pub unsafe fn discard(&self, block: NonNull<u8>, offset: usize) {
        assert!(offset.is_multiple_of(8) && offset < Self::KEPT, "offset {offset} is not a multiple of 8 below {}", Self::KEPT);
        if let Some(undo) = self.thread.engine().heap.undo()
            && !self.thread.undoable.get()
        {
            self.save_as_lost(undo, block, offset);
        }
        // SAFETY: the caller's promise.
        unsafe { self.free(block) };
    }

    /// Sets root `name` (1 to 40 bytes), or removes it.
    ///
    /// # Safety
    /// Whoever reads the root later believes its pointer, tag and size: an object of that type lies there, in a live block, for as long as
    /// the root names it. (The typed interface and the containers set theirs through safe functions.)
    pub unsafe fn set_root(&self, name: &str, root: Option<Root>) -> Result<()> {
        let heap = &self.thread.engine().heap;
        if let Some(r) = root
            && !heap.contains(r.ptr.as_ptr().addr() as u64)
        {
            return Err(Error::Usage(format!("root {name:?} would point outside the pool, to {:p}", r.ptr)));
        }
        if self.thread.undoable.get() {
            self.thread.rollback.borrow_mut().roots = true;
        }
        // SAFETY: slots of the root table, whose lock is held; each is written by transactions of one epoch at a time.
        let mark = |address: usize, len: usize| unsafe { self.mark(without_provenance(address), len) };
        // SAFETY: in a transaction of that epoch; the rest is this function's own condition.
        unsafe { heap.roots().set(self.epoch(), name, root, mark) }.map_err(Error::Usage)
    }

    /// Ends the transaction; it will be durable with its epoch, which is returned.
    #[inline]
    pub fn commit(mut self) -> u64 {
        let epoch = self.epoch();
        self.end(true);
        epoch
    }

    /// [`commit`](Self::commit), which also tells when the pool has failed meanwhile: this transaction marked a line that another epoch's
    /// holds, or more than the log has room for, or a checkpoint could not be written. What it wrote will then never be durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn try_commit(self) -> Result<u64> {
        let thread = self.thread;
        let epoch = self.commit();
        thread.engine().check()?;
        Ok(epoch)
    }

    /// Rolls everything back if the transaction was begun undoable; else poisons the pool, which stays at its last epoch.
    pub fn abort(mut self) {
        self.end(false);
    }

    #[inline]
    fn end(&mut self, good: bool) {
        self.ended = true;
        if !good || self.thread.undoable.get() {
            self.end_slow(good);
        }
        self.thread.slot().announcement.leave();
        if self.thread.reserved.get() > 0 {
            self.thread.engine().unreserve(self.thread.reserved.replace(0));
        }
    }

    #[cold]
    fn end_slow(&self, good: bool) {
        let engine = self.thread.engine();
        if !self.thread.undoable.replace(false) {
            return engine.poison("a transaction was aborted half done; begin it undoable to roll back instead");
        }
        let rollback = std::mem::take(&mut *self.thread.rollback.borrow_mut());
        let cache = &mut self.thread.cache.borrow_mut();
        if good {
            return engine.heap.allocator().commit(cache);
        }
        for (line, bytes) in &rollback.lines {
            let address = self.address_of(*line);
            // SAFETY: a line this transaction marked, and nobody else writes meanwhile.
            unsafe { address.cast::<[u8; LINE]>().write(*bytes) };
        }
        engine.heap.allocator().rollback(cache, &Marks(self));
        if rollback.roots
            && let Err(why) = engine.heap.roots().reload(|a| engine.heap.contains(a))
        {
            engine.poison(why);
        }
    }
}

#[cold]
#[track_caller]
fn outside(address: *const u8, len: usize, window: &Window) -> ! {
    let end = window.base + window.len;
    panic!("mark of {len} bytes at {address:p}: not in the pool's heap, which is {:#x}..{end:#x}", window.base);
}

/// What the allocator marks by. Not the transaction itself: through that anybody could mark any line, without `unsafe`.
pub(crate) struct Marks<'m>(&'m Tx<'m>);

impl<'m> Marks<'m> {
    pub(crate) fn of(tx: &'m Tx<'m>) -> Self {
        Marks(tx)
    }
}

impl Marker for Marks<'_> {
    #[inline]
    fn mark(&self, address: usize, len: usize) {
        // SAFETY: the allocator marks headers that no other transaction writes, by the epoch rule, and blocks that
        // it gives to this one.
        unsafe { self.0.mark(without_provenance(address), len) };
    }

    #[inline]
    fn mark_block(&self, address: usize, len: usize, unused_since: u64) {
        self.0.mark_lines(without_provenance(address), len, unused_since);
    }

    #[inline]
    fn prefetch_mark(&self, address: usize) {
        self.0.thread.prefetch_mark(without_provenance(address));
    }

    fn epoch(&self) -> u64 {
        self.0.epoch()
    }
}

impl Drop for Tx<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.ended {
            self.end(!std::thread::panicking());
        }
    }
}
