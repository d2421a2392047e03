//! A stripe's lock, and what may be done with the stripe's items while it is held.
//!
//! What must always hold: whoever has a [`Found`] holds the lock under which it was found; a transaction begins after the lock was
//! taken and ends before it is released.

use std::ops::Range;

use parking_lot::MutexGuard;
use towa_epoch::{BlockState, Tx};

use super::item::{self, Content, Item};
use super::table::{self, Found, STRIPES};
use super::{Failure, Life, SMALL_WRITES, Store, Worker, stripe_of};

/// A locked stripe, and the hash for which it was locked.
pub struct Locked<'s> {
    pub(super) store: &'s Store,
    pub(super) hash: u64,
    /// The table's shape when the lock was taken, before any transaction: see [`Table::shape`].
    pub(super) shape: table::Shape,
    pub(super) _guard: MutexGuard<'s, ()>,
}

impl Locked<'_> {
    /// Turns to another hash of the same stripe.
    pub(super) fn aim(&mut self, hash: u64) {
        assert_eq!(stripe_of(hash), stripe_of(self.hash), "a lock covers its own stripe only");
        self.hash = hash;
    }

    /// Starts a transaction in which a client's request changes this stripe, and stores `size` bytes of an item. Does not wait for log space:
    /// others may wait for the lock. Fails, before anything is changed, also where a flush is due that must come first, and where other
    /// connections of the worker wait for log space.
    pub fn begin<'w>(&self, worker: &'w mut Worker, size: usize) -> std::result::Result<Tx<'w>, Failure> {
        // A failed pool will never carry the flush out: the transaction says why.
        let may = !self.store.owes_flush() || self.store.pool.check().is_err();
        worker.begin(size + SMALL_WRITES, may)
    }

    /// Splits the lower line of this hash, if that is still to be done.
    pub(super) fn split(&self, tx: &Tx<'_>) -> bool {
        // SAFETY: the stripe is locked and encloses `tx`.
        unsafe { self.store.table.split(tx, self.shape, self.hash) }
    }

    /// Finds `key`, live or not.
    pub fn find(&self, key: &[u8]) -> Option<Found> {
        // SAFETY: the stripe is locked.
        let found = unsafe { self.store.table.find(self.shape, self.hash, key) }?;
        // In a damaged pool a chain may lead to an item that was freed.
        (!self.store.table.is_damaged() || self.is_live(found.item)).then_some(found)
    }

    /// Calls `each`, which changes nothing, with all items of line `index` of this stripe, until it says `false`.
    pub(super) fn for_each(&self, index: u64, each: impl FnMut(Item) -> bool) {
        assert_eq!(stripe_of(index), stripe_of(self.hash), "a lock covers its own stripe only");
        // SAFETY: the stripe is locked.
        unsafe { self.store.table.for_each(self.shape, index, each) }
    }

    pub(super) fn find_at(&self, address: u64) -> Option<Found> {
        // SAFETY: the stripe is locked.
        unsafe { self.store.table.find_at(self.shape, self.hash, address) }
    }

    /// The item of the hash turned to, if its address lies in `range`.
    pub(super) fn find_in(&self, range: &Range<u64>) -> Option<Found> {
        // SAFETY: the stripe is locked.
        unsafe { self.store.table.find_in(self.shape, self.hash, range) }
    }

    /// Links a new item. Fails, before anything is changed, when the heap is full.
    pub fn insert(&self, tx: &Tx<'_>, content: &Content<'_>) -> towa_epoch::Result<Item> {
        let item = self.create(tx, content)?;
        self.split(tx);
        let table = &self.store.table;
        // SAFETY: the stripe is locked and encloses `tx`; the new item is still ours alone.
        unsafe {
            let head = table.chain(self.shape, self.hash);
            *item.next_slot() = *head;
            table::link(tx, head, item.address());
        }
        self.account(tx, 1, item.room() as i64, i64::from(content.expires != 0));
        Ok(item)
    }

    /// Puts new content in the place of `found`, in its block where it fits. Fails before anything is changed, but for the
    /// link to an item that was freed already, in a damaged pool.
    pub fn replace(&self, tx: &Tx<'_>, found: Found, content: &Content<'_>) -> towa_epoch::Result<Item> {
        let old = found.item;
        let (behind, has_block) = self.leave(old);
        if !has_block {
            // The new item may get the very block that the old value lies in.
            let value = [content.value.0, content.value.1].concat();
            // SAFETY: the stripe is locked and encloses `tx`.
            unsafe { table::link(tx, found.slot, behind) };
            return self.insert(tx, &Content { value: (&value, &[]), ..*content });
        }
        let expiring = i64::from(content.expires != 0) - i64::from(old.expires() != 0);
        if content.value.1.is_empty() && old.can_hold(content.size()) {
            // SAFETY: the stripe is locked and encloses `tx`; the value comes from outside the heap.
            unsafe { old.overwrite(tx, content) };
            self.account(tx, 0, 0, expiring);
            return Ok(old);
        }
        let new = self.create(tx, content)?;
        new.count_use(old.uses());
        let grown = new.room() as i64 - old.room() as i64;
        // SAFETY: as above; the old block leaves the chain in the same transaction that frees it.
        unsafe {
            *new.next_slot() = behind;
            table::link(tx, found.slot, new.address());
            tx.free(old.block());
        }
        self.account(tx, 0, grown, expiring);
        Ok(new)
    }

    fn create(&self, tx: &Tx<'_>, content: &Content<'_>) -> towa_epoch::Result<Item> {
        let block = tx.alloc(content.size())?;
        // SAFETY: the block is ours, marked by the allocator, and long enough.
        unsafe {
            let room = self.store.pool.block_size(block);
            Ok(Item::create(block, room, content))
        }
    }

    /// Removes an item.
    pub fn remove(&self, tx: &Tx<'_>, found: Found) {
        if self.unlink(tx, found) {
            // SAFETY: the stripe is locked and encloses `tx`; no look-up finds the block once the link is gone.
            unsafe { tx.free(found.item.block()) };
        }
    }

    /// Removes an item that no request asked to remove.
    pub(super) fn give_up(&self, tx: &Tx<'_>, found: Found, life: Life) {
        match life {
            // A crash may undo the flush, too, and the item is live again: it must be whole.
            Life::Flushed => self.remove(tx, found),
            _ => self.evict(tx, found),
        }
    }

    /// Removes an item that no crash has to bring back: at most [lost](Item::is_lost).
    fn evict(&self, tx: &Tx<'_>, found: Found) {
        if self.unlink(tx, found) {
            // SAFETY: as in `remove`; no CAS id is 0, and a lost item has no life (`Store::life`).
            unsafe { tx.discard(found.item.block(), item::LOST_WORD) };
        }
    }

    /// Takes an item out of its chain; whether its block is there to be freed.
    fn unlink(&self, tx: &Tx<'_>, Found { item, slot }: Found) -> bool {
        let (behind, has_block) = self.leave(item);
        if has_block {
            self.account(tx, -1, -(item.room() as i64), -i64::from(item.expires() != 0));
        }
        // SAFETY: the stripe is locked and encloses `tx`.
        unsafe { table::link(tx, slot, behind) };
        has_block
    }

    /// Where the chain goes on behind an item that leaves it, and whether the item's block is there to be freed. In a damaged
    /// pool two links may lead to one item: at the second of them it is freed already, and counted as gone, and the chain ends.
    fn leave(&self, item: Item) -> (u64, bool) {
        let (state, is_circle) = (self.state(item), item.next() == item.address());
        if is_circle {
            self.store.table.note_damage(item.address());
        }
        let goes_on = state != BlockState::Free && !is_circle;
        (if goes_on { item.next() } else { 0 }, state == BlockState::Live)
    }

    /// Whether the item's block is its own. In a damaged pool it may be free, and about to be another item's.
    fn is_live(&self, item: Item) -> bool {
        self.state(item) == BlockState::Live
    }

    /// What stands where the item should.
    fn state(&self, item: Item) -> BlockState {
        let state = self.store.pool.block_state(item.block());
        if state != BlockState::Live {
            self.store.table.note_damage(item.address());
        }
        state
    }

    /// Changes an item's expiry time, bits and CAS id.
    pub fn put_state(&self, tx: &Tx<'_>, item: Item, expires: u32, bits: u8, cas: u64) {
        if !self.is_live(item) {
            return;
        }
        self.account(tx, 0, 0, i64::from(expires != 0) - i64::from(item.expires() != 0));
        // SAFETY: the stripe is locked and encloses `tx`.
        unsafe { item.put_state(tx, expires, bits, cas) };
    }

    /// Overwrites a counter's digits.
    pub fn put_number(&self, tx: &Tx<'_>, item: Item, digits: &[u8], cas: u64) {
        if !self.is_live(item) {
            return;
        }
        // SAFETY: the stripe is locked and encloses `tx`; the caller compared the lengths.
        unsafe { item.put_number(tx, digits, cas) };
    }

    fn account(&self, tx: &Tx<'_>, items: i64, bytes: i64, expiring: i64) {
        if items == 0 && bytes == 0 && expiring == 0 {
            return;
        }
        let stripe = stripe_of(self.hash);
        // SAFETY: the stripe is locked and encloses `tx`.
        let in_stripe = unsafe { self.store.roots.add_to_stripe(tx, stripe, items, bytes, expiring) };
        self.store.count(self.hash, items, bytes, expiring);
        if items > 0 && in_stripe > self.shape.lines() / STRIPES as u64 * table::BUCKETS as u64 {
            self.store.wake.now();
        }
    }
}
