//! Transactions over any keys of an ordered map: alone in the tree, undone as a whole if they fail.

use super::OrderedMap;
use super::node::Sought;
use super::tree::Tree;
use crate::pair::Pair;
use crate::{Error, Result};
use std::fmt;
use towa_epoch::Thread;
use towa_epoch::Tx;
use towa_epoch::typed::scope;

/// The map during [`OrderedMap::transact`].
pub struct OrderedView<'v> {
    tree: &'v Tree,
    tx: &'v Tx<'v>,
    gained: &'v mut i64,
}

impl fmt::Debug for OrderedView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedView").field("gained", &self.gained).finish_non_exhaustive()
    }
}

impl OrderedMap {
    /// Runs `f` as one transaction, with nobody else in the map: all or none of its changes survive. Undone when `f` fails or
    /// panics. Costs a copy of everything it overwrites.
    ///
    /// # Errors
    /// Those of `f`, and of [`insert`](Self::insert); nothing has changed then.
    pub fn transact<R, E: From<Error>>(
        &self,
        thread: &mut Thread,
        f: impl FnOnce(&mut OrderedView<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.transact_reserving(thread, 0, f)
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
        f: impl FnOnce(&mut OrderedView<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.check_thread(thread)?;
        let _scope = scope::write().map_err(Error::from)?;
        let _structure = self.0.structure.write();
        let tx = thread.begin_undoable_reserving(bytes).map_err(Error::from)?;
        let mut gained = 0;
        match f(&mut OrderedView { tree: &self.0, tx: &tx, gained: &mut gained }) {
            Ok(result) => {
                tx.commit();
                self.0.count(gained);
                Ok(result)
            }
            Err(error) => {
                tx.abort();
                Err(error)
            }
        }
    }
}

impl OrderedView<'_> {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let sought = Sought::new(key);
        // SAFETY: the structure lock is held alone, and `&self` keeps changes away from what is returned.
        unsafe { Tree::pair_in(self.tree.leaf_of(sought), sought).map(|pair| Pair::value(pair)) }
    }

    /// Gives `key` the value; whether it is new.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Epoch`]; this insertion has changed nothing then.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        crate::pair::size(key, value)?;
        // SAFETY: the structure lock is held alone around the transaction.
        let new = unsafe { self.tree.insert_alone(self.tx, Sought::new(key), value)? };
        *self.gained += i64::from(new);
        Ok(new)
    }

    /// Removes `key`; whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let sought = Sought::new(key);
        // SAFETY: the structure lock is held alone around the transaction.
        let left = unsafe {
            let (path, leaf) = self.tree.path_to(sought);
            let left = Tree::remove_from_leaf(self.tx, leaf, sought);
            if left.is_some_and(super::is_sparse) {
                self.tree.merge(self.tx, path);
            }
            left
        };
        *self.gained -= i64::from(left.is_some());
        left.is_some()
    }

    /// The epoch of the transaction: durable once the pool's durable epoch reaches it.
    pub fn epoch(&self) -> u64 {
        self.tx.epoch()
    }
}
