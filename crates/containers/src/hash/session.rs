//! [`Session`]: a map together with a thread's registration.

use super::update::Change;
use super::{HashMap, View};
use crate::{Error, Result};
use towa_epoch::Thread;

/// A [`HashMap`] as one thread uses it. Reads are the map's own (`session.get`, through `Deref`); writes need no more arguments.
#[derive(Debug)]
pub struct Session {
    map: HashMap,
    thread: Thread,
}

impl std::ops::Deref for Session {
    type Target = HashMap;
    fn deref(&self) -> &HashMap {
        &self.map
    }
}

impl Session {
    pub(super) fn new(map: HashMap, thread: Thread) -> Self {
        Self { map, thread }
    }

    /// The registration, for use with other containers of the pool.
    pub fn thread(&mut self) -> &mut Thread {
        &mut self.thread
    }

    /// See [`HashMap::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.map.insert(&mut self.thread, key, value)
    }

    /// See [`HashMap::insert_new`].
    ///
    /// # Errors
    /// As there.
    pub fn insert_new(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.map.insert_new(&mut self.thread, key, value)
    }

    /// See [`HashMap::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool> {
        self.map.remove(&mut self.thread, key)
    }

    /// See [`HashMap::take`].
    ///
    /// # Errors
    /// As there.
    pub fn take(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.map.take(&mut self.thread, key)
    }

    /// See [`HashMap::modify`].
    ///
    /// # Errors
    /// As there.
    pub fn modify(&mut self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> Change) -> Result<()> {
        self.map.modify(&mut self.thread, key, f)
    }

    /// See [`HashMap::update`].
    ///
    /// # Errors
    /// As there.
    pub fn update<R>(&mut self, key: &[u8], f: impl FnOnce(&mut [u8]) -> R) -> Result<Option<R>> {
        self.map.update(&mut self.thread, key, f)
    }

    /// See [`HashMap::transact`].
    ///
    /// # Errors
    /// As there.
    pub fn transact<R, E: From<Error>>(&mut self, keys: &[&[u8]], f: impl FnOnce(&mut View<'_>) -> Result<R, E>) -> Result<R, E> {
        self.map.transact(&mut self.thread, keys, f)
    }

    /// See [`HashMap::clear`].
    ///
    /// # Errors
    /// As there.
    pub fn clear(&mut self) -> Result<()> {
        self.map.clear(&mut self.thread)
    }
}
