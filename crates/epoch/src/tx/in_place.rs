//! Marking in a heap in place. Before an epoch first changes a line, the undo log gets the line's old bytes, or an entry that calls it blank.
//!
//! What must always hold: a line is tagged with an epoch only when the log has an entry of that epoch for it. A line is called blank only if no
//! transaction marked it since the end of the durable epoch, and if at that end it belonged to no block, or to one that is being discarded
//! ([`Tx::discard`]).

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};

use towa_heap::undo::{BLANK_MAX, Undo};
use towa_media::LINE;

use super::Tx;
use crate::tags::{Tags, tag_of};

impl Tx<'_> {
    /// [`mark_slow`](Self::mark_slow) of a heap in place: the old bytes go to the undo log, before the line may be written.
    pub(super) fn mark_in_place(&self, undo: &Undo, first: u64, last: u64, unused_since: u64) {
        let (thread, epoch) = (self.thread, self.epoch());
        let tags = thread.engine().tags.as_ref().expect("only tracked heaps come here");
        let (mine, after) = (tag_of(epoch), tag_of(epoch + 1));
        if thread.undoable.get() {
            (first..=last).for_each(|line| self.save_for_rollback(line));
        }
        let durable = undo.durable();
        if first < last && unused_since <= durable && self.are_unmarked(durable, tags, first..last + 1) {
            return self.mark_blank(undo, tags, first..last + 1, None);
        }
        let (mut added, mut run) = (0, first);
        for line in first..=last {
            let found = tags.get(line).load(Relaxed);
            if found != mine && found != after {
                continue;
            }
            added += self.save_lines(undo, tags, run..line);
            run = line + 1;
            if found == after {
                // The entry of the later epoch has the bytes of this one's end, or an earlier entry of this one has those before it. What
                // stands in the line now was never durable.
                self.conflict(line);
            }
        }
        added += self.save_lines(undo, tags, run..last + 1);
        if added > 0 {
            self.account(epoch, added, 0);
        }
    }

    /// Saves and marks lines that this epoch has not marked yet; gives their number.
    fn save_lines(&self, undo: &Undo, tags: &Tags, lines: Range<u64>) -> u64 {
        let (count, epoch) = (lines.end - lines.start, self.epoch());
        if count > 0 {
            let address = self.address_of(lines.start);
            // SAFETY: this thread's cursor, inside a transaction of `epoch`, which is not durable before that ends; two epochs at most are not
            // durable. The lines lie in the heap, and no other thread writes them during this transaction.
            unsafe { undo.save(&mut self.thread.undo_cursor.borrow_mut(), epoch, lines.start, (count, 0), address) };
            lines.for_each(|line| tags.get(line).store(tag_of(epoch), Relaxed));
        }
        count
    }

    /// Whether no line was marked since the end of epoch `durable`: then each has the bytes that it had at that end.
    fn are_unmarked(&self, durable: u64, tags: &Tags, lines: Range<u64>) -> bool {
        let epoch = self.epoch();
        // Marks of the epoch before count only while that is not durable.
        let before = if durable + 1 < epoch { tag_of(epoch - 1) } else { tag_of(epoch) };
        let marked = [tag_of(epoch), tag_of(epoch + 1), before];
        lines.into_iter().all(|line| !marked.contains(&tags.get(line).load(Relaxed)))
    }

    /// Marks unmarked `lines`, of which all but the first are blank. Recovery gives the first one the bytes of `first_line`, or else those that it has
    /// now.
    fn mark_blank(&self, undo: &Undo, tags: &Tags, lines: Range<u64>, first_line: Option<&[AtomicU64; LINE / 8]>) {
        let (thread, epoch) = (self.thread, self.epoch());
        let mut cursor = thread.undo_cursor.borrow_mut();
        let mut added = 0;
        for first in lines.clone().step_by(BLANK_MAX as usize + 1) {
            let blank = (lines.end - first - 1).min(BLANK_MAX);
            let in_heap = self.address_of(first).cast_const();
            let from = first_line.filter(|_| first == lines.start).map_or(in_heap, |line| line.as_ptr().cast());
            // SAFETY: as in `save_lines`, or the copy of a line; the caller says that the lines behind it are blank.
            unsafe { undo.save(&mut cursor, epoch, first, (1, blank), from) };
            added += 1;
        }
        drop(cursor);
        lines.for_each(|line| tags.get(line).store(tag_of(epoch), Relaxed));
        self.account(epoch, added, 0);
    }

    /// Writes to the log that a live block is lost, should this epoch be dropped: its first line, with eight bytes of 0 at `offset` of the block,
    /// and the lines behind it as blank.
    ///
    /// Does nothing if a line was marked since the durable epoch. Then the log has that line's old bytes, or the block is newer than the durable
    /// epoch. Whatever takes the memory saves the lines, as after `free`.
    pub(super) fn save_as_lost(&self, undo: &Undo, block: NonNull<u8>, offset: usize) {
        let engine = self.thread.engine();
        let tags = engine.tags.as_ref().expect("a heap in place is tracked");
        let start = block.addr().get() - engine.heap.base().addr().get();
        let len = engine.heap.allocator().usable_size(block);
        let lines = (start / LINE) as u64..(start + len).div_ceil(LINE) as u64;
        // One line costs the log no more when it is saved as it is.
        if lines.end - lines.start < 2 || !self.are_unmarked(undo.durable(), tags, lines.clone()) {
            return;
        }
        let address = self.address_of(lines.start).cast::<u64>();
        let line: [AtomicU64; LINE / 8] = std::array::from_fn(|word| {
            // SAFETY: the first line of a live block. No thread writes it now, but for hints, which are written as atomic words.
            let word = unsafe { AtomicU64::from_ptr(address.add(word)) };
            AtomicU64::new(word.load(Relaxed))
        });
        line[(start % LINE + offset) / 8].store(0, Relaxed);
        self.mark_blank(undo, tags, lines, Some(&line));
    }
}
