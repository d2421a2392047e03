//! Transactions over several keys: all stripes locked in order, then one transaction, undone as a whole if it fails.

use super::HashMap;
use super::table::{Stripe, Table};
use crate::pair::Pair;
use crate::{Error, Result};
use parking_lot::RwLockWriteGuard;
use std::fmt;
use towa_epoch::typed::scope;
use towa_epoch::{Thread, Tx};

/// The keys of a running [`HashMap::transact`].
pub struct View<'v> {
    table: &'v Table,
    tx: &'v Tx<'v>,
    /// Stripes held, in order, and how many items each gained.
    held: &'v mut [(usize, i64)],
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("stripes", &self.held.len()).finish_non_exhaustive()
    }
}

impl HashMap {
    /// Runs `f` as one transaction over `keys`: it sees no other thread's changes to them, and all or none of its own survive.
    /// Undone when `f` fails or panics. Costs a copy of everything it overwrites.
    ///
    /// ```
    /// # use towa_containers::{Error, HashMap, HashMapOptions};
    /// # use towa_epoch::{Options, Pool};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() })?;
    /// # let map = HashMap::open(&pool, "m", &HashMapOptions::default())?;
    /// # let mut thread = pool.register()?;
    /// map.insert(&mut thread, b"from", b"7")?;
    /// map.transact(&mut thread, &[b"from", b"to"], |view| {
    ///     let moved = view.get(b"from")?.unwrap().to_vec();
    ///     view.remove(b"from")?;
    ///     view.insert(b"to", &moved)?;
    ///     Ok::<_, Error>(())
    /// })?;
    /// # assert_eq!(map.get(b"to")?.unwrap(), b"7");
    /// # assert!(!map.contains(b"from")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `f`, and of [`insert`](Self::insert); nothing has changed then.
    pub fn transact<R, E: From<Error>>(
        &self,
        thread: &mut Thread,
        keys: &[&[u8]],
        f: impl FnOnce(&mut View<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.transact_reserving(thread, 0, keys, f)
    }

    /// [`transact`](Self::transact) for more than some kilobytes: `bytes` is about what `f` will write, for which log space is
    /// reserved first.
    ///
    /// # Errors
    /// As there, and [`towa_epoch::Error::TooLarge`].
    pub fn transact_reserving<R, E: From<Error>>(
        &self,
        thread: &mut Thread,
        bytes: usize,
        keys: &[&[u8]],
        f: impl FnOnce(&mut View<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.check_thread(thread)?;
        let table = &*self.0;
        let mut held: Vec<(usize, i64)> = keys.iter().map(|key| (Table::stripe_of(table.hash(key)), 0)).collect();
        held.sort_unstable();
        held.dedup();
        let scope = scope::write().map_err(Error::from)?;
        // In ascending order, as everybody does, so that no two threads wait for each other.
        let mut guards: Vec<RwLockWriteGuard<'_, Stripe>> = held.iter().map(|(stripe, _)| table.write(*stripe)).collect();
        let tx = thread.begin_undoable_reserving(bytes).map_err(Error::from)?;
        let result = match f(&mut View { table, tx: &tx, held: &mut held }) {
            Ok(result) => result,
            Err(error) => {
                tx.abort();
                return Err(error);
            }
        };
        tx.commit();
        for (guard, (_, by)) in guards.iter_mut().zip(&held) {
            table.count(guard, *by);
        }
        drop(guards);
        drop(scope);
        table.grow_if_crowded(thread);
        Ok(result)
    }
}

impl View<'_> {
    /// The value of `key`.
    ///
    /// # Errors
    /// [`Error::KeyNotLocked`].
    pub fn get(&self, key: &[u8]) -> Result<Option<&[u8]>> {
        let (hash, _) = self.locked(key)?;
        // SAFETY: its stripe is held, and `&self` keeps changes away from what is returned.
        unsafe {
            let place = self.table.find(hash, key);
            Ok((!place.item.is_null()).then(|| Pair::value(&raw const (*place.item).pair)))
        }
    }

    /// Gives `key` the value; whether it is new.
    ///
    /// # Errors
    /// [`Error::KeyNotLocked`], [`Error::TooLong`], [`Error::Epoch`]; this insertion has changed nothing then.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        let (hash, i) = self.locked(key)?;
        crate::pair::size(key, value)?;
        // SAFETY: its stripe is held around the transaction.
        let new = unsafe {
            let place = self.table.find(hash, key);
            self.table.set(self.tx, &place, hash, key, value)?
        };
        self.held[i].1 += i64::from(new);
        Ok(new)
    }

    /// Removes `key`; whether it was there.
    ///
    /// # Errors
    /// [`Error::KeyNotLocked`].
    pub fn remove(&mut self, key: &[u8]) -> Result<bool> {
        let (hash, i) = self.locked(key)?;
        // SAFETY: its stripe is held around the transaction.
        unsafe {
            let place = self.table.find(hash, key);
            if place.item.is_null() {
                return Ok(false);
            }
            self.table.unlink(self.tx, &place);
        }
        self.held[i].1 -= 1;
        Ok(true)
    }

    /// The epoch of the transaction: durable once the pool's durable epoch reaches it.
    pub fn epoch(&self) -> u64 {
        self.tx.epoch()
    }

    /// The key's hash, and which of the held stripes covers it.
    fn locked(&self, key: &[u8]) -> Result<(u64, usize)> {
        let hash = self.table.hash(key);
        let stripe = Table::stripe_of(hash);
        match self.held.binary_search_by_key(&stripe, |(s, _)| *s) {
            Ok(i) => Ok((hash, i)),
            Err(_) => Err(Error::KeyNotLocked(String::from_utf8_lossy(key).into_owned())),
        }
    }
}
