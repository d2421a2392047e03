//! Growth: one bucket line per transaction, so that no operation ever waits for the whole table.
//!
//! ```text
//!   growth lock ─ stripe lock ─ begin ─ [add segment] ─ relink ─ lines += 1 ─ end ─ publish `lines` ─ unlock both
//! ```
//! Each step is atomic with the rest, as it is one transaction; a crash leaves the table before or after the split.

use super::table::{EMPTY, HEADS, Item, Line, SEAL, STRIPES, Table};
use crate::segments::{Directory, SEGMENT};
use crate::store::{put, put_if_changed};
use crate::{Result, handle};
use std::ptr;
use std::sync::atomic::Ordering;
use towa_epoch::{Thread, Tx};

impl Table {
    /// Adds a few lines if there are more items than heads. Whoever finds another thread growing leaves it to that one.
    ///
    /// Failing to grow makes chains longer and nothing worse, so errors (out of space) are left to the next allocation to report.
    #[inline]
    pub(super) fn grow_if_crowded(&self, thread: &mut Thread) {
        if self.is_crowded() {
            self.grow(thread);
        }
    }

    #[cold]
    fn grow(&self, thread: &mut Thread) {
        let Some(_growing) = self.growing.try_lock() else { return };
        // Two splits per insertion catch up with a table that others filled meanwhile.
        for _ in 0..2 {
            if !self.is_crowded() || self.split(thread).is_err() {
                return;
            }
        }
    }

    /// Adds one line. The caller holds `growing`.
    fn split(&self, thread: &mut Thread) -> Result<()> {
        let new = self.lines.load(Ordering::Relaxed);
        let bit = 1 << new.ilog2();
        let mut stripe = self.write(new as usize % STRIPES);
        let adds_segment = (new as usize).is_multiple_of(STRIPES);
        let tx = handle::begin(thread, if adds_segment { SEGMENT } else { 0 })?;
        // SAFETY: the growth lock is held around the transaction, and the stripe's, which covers both lines.
        unsafe {
            let growth = &raw mut (*self.header.as_ptr()).growth;
            if adds_segment {
                Directory::add(&tx, &raw mut (*growth).directory, new as usize / STRIPES)?;
            }
            relink(&tx, self.line(new - bit), self.line(new), bit);
            put(&tx, &raw mut (*growth).lines, new + 1);
        }
        tx.commit();
        // Before the stripe is released: its next user must see the new line.
        self.lines.store(new + 1, Ordering::Release);
        self.count(&mut stripe, 0);
        Ok(())
    }

    /// Adds whole segments of empty lines to a table just created, one transaction each, until it has `lines`.
    pub(super) fn presize(&self, thread: &mut Thread, lines: u64) -> Result<()> {
        let _growing = self.growing.lock();
        let mut have = self.lines.load(Ordering::Relaxed);
        while have < lines {
            let tx = handle::begin(thread, SEGMENT)?;
            // SAFETY: the growth lock is held around the transaction; nobody reaches the new lines before `lines` is stored.
            unsafe {
                let growth = &raw mut (*self.header.as_ptr()).growth;
                let segment = Directory::add(&tx, &raw mut (*growth).directory, have as usize / STRIPES)?.cast::<Line>();
                std::slice::from_raw_parts_mut(segment, STRIPES).fill(EMPTY);
                have += STRIPES as u64;
                put(&tx, &raw mut (*growth).lines, have);
            }
            tx.commit();
            self.lines.store(have, Ordering::Release);
        }
        Ok(())
    }
}

/// Moves the items of `old` whose hash has `bit` to `new`, keeping their order; stores only the links that change.
///
/// # Safety
/// The stripe of both lines is held around `tx`.
unsafe fn relink(tx: &Tx<'_>, old: *mut Line, new: *mut Line, bit: u64) {
    let mut moved = 0;
    // SAFETY: the stripe is held: nobody else sees the two lines or their items.
    unsafe {
        put(tx, new, EMPTY);
        for head in 0..HEADS {
            let mut stays = (&raw mut (*old).heads).cast::<*mut Item>().add(head);
            let mut goes = (&raw mut (*new).heads).cast::<*mut Item>().add(head);
            let mut item = *stays;
            while !item.is_null() {
                let next = (*item).next;
                let link = if (*item).hash & bit == 0 { &mut stays } else { &mut goes };
                put_if_changed(tx, *link, item);
                *link = &raw mut (*item).next;
                moved += u64::from((*item).hash & bit != 0);
                item = next;
            }
            put_if_changed(tx, stays, ptr::null_mut());
            put_if_changed(tx, goes, ptr::null_mut());
        }
        (*new).sealed_count = SEAL + moved;
        put_if_changed(tx, &raw mut (*old).sealed_count, (*old).sealed_count - moved);
    }
}
