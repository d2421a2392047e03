//! Operations that change one key. Each: lock the stripe, find, begin, allocate, store, end, unlock - then perhaps grow.

use super::HashMap;
use super::table::{Item, Place, STRIPES, Stripe, Table, items};
use crate::handle::begin;
use crate::pair::Pair;
use crate::store::put;
use crate::{Error, Result, bounds};
use parking_lot::RwLockWriteGuard;
use std::ptr::{self, NonNull};
use towa_epoch::typed::scope;
use towa_epoch::{Thread, Tx};

/// What [`HashMap::modify`] shall do with the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Leave it.
    Keep,
    /// Give it this value.
    Set(Vec<u8>),
    /// Remove it, if it is there.
    Remove,
}

impl HashMap {
    /// Gives `key` the value, whether it is there or not; `true` if it was not.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Epoch`] (out of space, poisoned, inside a transaction); nothing has changed then.
    pub fn insert(&self, thread: &mut Thread, key: &[u8], value: &[u8]) -> Result<bool> {
        let room = crate::pair::size(key, value)?;
        let (mut stripe, hash, place) = self.hold(thread, key)?;
        // SAFETY: the stripe is held until after the transaction.
        let new = unsafe {
            let tx = begin(thread, room)?;
            let new = self.0.set(&tx, &place, hash, key, value)?;
            tx.commit();
            new
        };
        if new {
            self.0.count(&mut stripe, 1);
            drop(stripe);
            self.0.grow_if_crowded(thread);
        }
        Ok(new)
    }

    /// Gives `key` the value unless it has one; `true` if it had none.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_new(&self, thread: &mut Thread, key: &[u8], value: &[u8]) -> Result<bool> {
        let mut new = false;
        self.modify(thread, key, |old| {
            new = old.is_none();
            if new { Change::Set(value.to_vec()) } else { Change::Keep }
        })?;
        Ok(new)
    }

    /// Removes `key`; whether it was there.
    ///
    /// # Errors
    /// [`Error::Epoch`]; nothing has changed then.
    pub fn remove(&self, thread: &mut Thread, key: &[u8]) -> Result<bool> {
        Ok(self.take_with(thread, key, |_| ())?.is_some())
    }

    /// Removes `key` and gives a copy of its value.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn take(&self, thread: &mut Thread, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.take_with(thread, key, <[u8]>::to_vec)
    }

    fn take_with<R>(&self, thread: &mut Thread, key: &[u8], last: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        let (mut stripe, _, place) = self.hold(thread, key)?;
        // SAFETY: the stripe is held until after the transaction.
        unsafe {
            if place.item.is_null() {
                return Ok(None);
            }
            let tx = thread.begin()?;
            let result = last(Pair::value(&raw const (*place.item).pair));
            self.0.unlink(&tx, &place);
            tx.commit();
            self.0.count(&mut stripe, -1);
            Ok(Some(result))
        }
    }

    /// Reads and changes `key` in one step: `f` sees the value and says what to do. `f` runs under the key's lock: it must be
    /// short, and can use no other container.
    ///
    /// ```
    /// # use towa_containers::{Change, HashMap, HashMapOptions};
    /// # use towa_epoch::{Options, Pool};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
    /// # let map = HashMap::open(&pool, "m", &HashMapOptions::default())?;
    /// # let mut thread = pool.register()?;
    /// map.modify(&mut thread, b"names", |old| Change::Set([old.unwrap_or_default(), b"ada;"].concat()))?;
    /// # assert_eq!(map.get(b"names")?.unwrap(), b"ada;");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn modify(&self, thread: &mut Thread, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> Change) -> Result<()> {
        let (mut stripe, hash, place) = self.hold(thread, key)?;
        // SAFETY: the stripe is held until after the transaction.
        let by = unsafe {
            let there = !place.item.is_null();
            // Before the transaction begins, so that a panic in `f` changes nothing.
            let change = {
                let _scope = scope::write()?;
                f(there.then(|| Pair::value(&raw const (*place.item).pair)))
            };
            match change {
                Change::Keep => return Ok(()),
                Change::Remove if !there => return Ok(()),
                Change::Remove => {
                    let tx = thread.begin()?;
                    self.0.unlink(&tx, &place);
                    tx.commit();
                    -1
                }
                Change::Set(value) => {
                    let tx = begin(thread, crate::pair::size(key, &value)?)?;
                    let new = self.0.set(&tx, &place, hash, key, &value)?;
                    tx.commit();
                    i64::from(new)
                }
            }
        };
        self.0.count(&mut stripe, by);
        drop(stripe);
        if by > 0 {
            self.0.grow_if_crowded(thread);
        }
        Ok(())
    }

    /// Changes the bytes of a value where they are, without changing their number; `None` if the key is absent. Undone if `f`
    /// panics. `f` runs inside the transaction: it must be short, and can use no other container.
    ///
    /// # Errors
    /// [`Error::Epoch`]; nothing has changed then.
    pub fn update<R>(&self, thread: &mut Thread, key: &[u8], f: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        let (_stripe, _, place) = self.hold(thread, key)?;
        let _scope = scope::write()?;
        // SAFETY: the stripe is held until after the transaction.
        unsafe {
            if place.item.is_null() {
                return Ok(None);
            }
            let pair = &raw mut (*place.item).pair;
            let tx = thread.begin_undoable_reserving(Pair::value(pair).len())?;
            let result = f(Pair::value_mut(&tx, pair));
            tx.commit();
            Ok(Some(result))
        }
    }

    /// How every change of one key begins: its stripe, held, its hash, and where it is or would be.
    #[inline]
    fn hold(&self, thread: &Thread, key: &[u8]) -> Result<(RwLockWriteGuard<'_, Stripe>, u64, Place)> {
        self.check_thread(thread)?;
        let hash = self.0.hash(key);
        let stripe = self.0.write(Table::stripe_of(hash));
        // SAFETY: the stripe is held.
        let place = unsafe { self.0.find_to_change(thread, hash, key) };
        Ok((stripe, hash, place))
    }

    /// Removes everything that is there, one bucket line at a time: each line is emptied atomically, the whole is not.
    ///
    /// # Errors
    /// [`Error::Epoch`]; part may have been removed then.
    pub fn clear(&self, thread: &mut Thread) -> Result<()> {
        self.check_thread(thread)?;
        for i in 0..STRIPES {
            let mut stripe = self.0.write(i);
            for line in self.0.lines_of_stripe(i) {
                // SAFETY: the stripe is held until after the transaction.
                unsafe {
                    let count = (*line).count();
                    if count == 0 {
                        continue;
                    }
                    let tx = thread.begin()?;
                    let gone: Vec<*mut Item> = items(line).collect();
                    put(&tx, line, super::table::EMPTY);
                    gone.into_iter().for_each(|item| tx.free(NonNull::new_unchecked(item).cast()));
                    tx.commit();
                    self.0.count(&mut stripe, -(count as i64));
                }
            }
        }
        Ok(())
    }

    /// Verifies the whole structure: every item in the line, chain and count it belongs to. O(n), one stripe locked at a time.
    /// Gives the number of items.
    ///
    /// # Errors
    /// [`Error::Damaged`] says what and where.
    pub fn check(&self) -> Result<u64> {
        let is_nested = scope::check_read()?;
        let mut sum = 0;
        for i in 0..STRIPES {
            let stripe = self.0.read(i, is_nested);
            let mut found = 0;
            for line in self.0.lines_of_stripe(i) {
                // SAFETY: the stripe is held.
                found += unsafe { self.0.check_line(line)? };
            }
            if let Some(count) = stripe.count.filter(|c| *c != found) {
                return Err(Error::Damaged(format!("stripe {i} has {found} items, and was counted to have {count}")));
            }
            sum += found;
        }
        Ok(sum)
    }
}

impl Table {
    /// Stores the value at the place found; gives whether the key is new. On an error nothing has changed.
    ///
    /// # Safety
    /// The stripe of `hash` is held around `tx`, and `place` was found for `hash` and `key` under it.
    pub(super) unsafe fn set(&self, tx: &Tx<'_>, place: &Place, hash: u64, key: &[u8], value: &[u8]) -> Result<bool> {
        let old = place.item;
        // SAFETY: the stripe is held; the new item is ours.
        unsafe {
            if !old.is_null() {
                if Pair::replace(tx, &raw mut (*old).pair, value, self.capacity(old)) {
                    return Ok(false);
                }
                let item = Self::new_item(tx, hash, key, value)?;
                (*item).next = (*old).next;
                put(tx, place.link, item);
                tx.free(NonNull::new_unchecked(old).cast());
                return Ok(false);
            }
            let item = Self::new_item(tx, hash, key, value)?;
            let line = place.line;
            tx.mark(line.cast(), size_of::<super::table::Line>());
            (*item).next = (*line).heads[place.head];
            (*line).heads[place.head] = item;
            (*line).sealed_count += 1;
            Ok(true)
        }
    }

    /// Removes the item found.
    ///
    /// # Safety
    /// As [`set`](Self::set), and there is an item.
    pub(super) unsafe fn unlink(&self, tx: &Tx<'_>, place: &Place) {
        // SAFETY: the stripe is held.
        unsafe {
            put(tx, place.link, (*place.item).next);
            put(tx, &raw mut (*place.line).sealed_count, (*place.line).sealed_count - 1);
            tx.free(NonNull::new_unchecked(place.item).cast());
        }
    }

    /// # Safety
    /// The line's stripe is held.
    unsafe fn check_line(&self, line: *mut super::table::Line) -> Result<u64> {
        let lines = self.lines.load(std::sync::atomic::Ordering::Acquire);
        // SAFETY: the stripe is held; each pointer is checked before it is followed.
        unsafe {
            if !(*line).is_sealed() {
                return Err(Error::Damaged(format!("bucket line {line:p} is none: zeros, or something else, lie there")));
            }
            let (mut found, expected) = (0, (*line).count());
            for head in 0..super::table::HEADS {
                let mut item = (*line).heads[head];
                while !item.is_null() {
                    let at = item.addr();
                    bounds::check(&self.pool, item, 0, "an item")?;
                    bounds::check_pair(&self.pool, &raw const (*item).pair, "an item's pair")?;
                    if found > expected {
                        return Err(Error::Damaged(format!("a chain of bucket line {line:p} leads in a circle, or on and on")));
                    }
                    let hash = self.hash(Pair::key(&raw const (*item).pair));
                    if (*item).hash != hash || Self::head_of(hash) != head || !ptr::eq(self.line(Self::line_of(hash, lines)), line)
                    {
                        return Err(Error::Damaged(format!("the item at {at:#x} is not where its hash {hash:#x} belongs")));
                    }
                    found += 1;
                    item = (*item).next;
                }
            }
            if found != expected {
                return Err(Error::Damaged(format!("bucket line {line:p} has {found} items and says {expected}")));
            }
            Ok(found)
        }
    }
}
