//! Roots that belong to something that is open: a tree, say, which keeps the address of what lies there.
//!
//! ```text
//!   hold ─► look the root up ─► use what lies there ... ─► hold dropped
//!     └ a transaction that sets or removes the root: refused, unless it shows a hold of it
//! ```
//!
//! What must always hold: while a root is held, nothing changes it but a transaction that shows a hold. It is looked
//! at once more when the transaction takes effect, under the lock that holding takes: one that set the root before
//! it was held has done so by then.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::engine::Engine;
use crate::error::Error;
use crate::pool::Pool;

/// The roots of a pool that are held.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<HashMap<String, Entry>>);

#[derive(Debug, Default)]
struct Entry {
    holds: usize,
    gate: Arc<Mutex<()>>,
}

/// The held roots, while none comes or goes.
pub(crate) struct Names<'h>(MutexGuard<'h, HashMap<String, Entry>>);

impl Names<'_> {
    /// Refuses a change of a root that is held.
    pub fn refuse(&self, name: &str) -> Result<(), Error> {
        if !self.0.contains_key(name) {
            return Ok(());
        }
        let why = format!("root {name:?} is that of a tree which is open; close the tree first, or choose another name");
        Err(Error::Usage(why))
    }
}

impl Held {
    /// Keeps what is held as it is.
    pub fn lock(&self) -> Names<'_> {
        Names(self.0.lock())
    }
}

/// A root that no transaction sets or removes but with this. There may be several holds of one root.
#[derive(Debug)]
pub struct RootHold {
    engine: Arc<Engine>,
    name: String,
    gate: Arc<Mutex<()>>,
}

impl Pool {
    /// Holds the root of this name, be there one or not.
    #[must_use]
    pub fn hold_root(&self, name: &str) -> RootHold {
        let engine = Arc::clone(self.engine_of());
        let mut roots = engine.held.0.lock();
        let entry = roots.entry(name.into()).or_default();
        entry.holds += 1;
        let gate = Arc::clone(&entry.gate);
        drop(roots);
        RootHold { engine, name: name.into(), gate }
    }
}

impl RootHold {
    /// The root's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Alone among those who hold this root and call this, for as long as the guard lives.
    pub fn enter(&self) -> RootEntered<'_> {
        RootEntered { hold: self, _gate: self.gate.lock() }
    }

    /// Whether it is a hold in that pool.
    pub(crate) fn is_in(&self, engine: &Arc<Engine>) -> bool {
        Arc::ptr_eq(&self.engine, engine)
    }
}

impl Drop for RootHold {
    fn drop(&mut self) {
        let mut roots = self.engine.held.0.lock();
        if let Some(entry) = roots.get_mut(&self.name) {
            entry.holds -= 1;
            if entry.holds == 0 {
                roots.remove(&self.name);
            }
        }
    }
}

/// One holder at a time is here; see [`RootHold::enter`].
pub struct RootEntered<'h> {
    hold: &'h RootHold,
    _gate: MutexGuard<'h, ()>,
}

impl std::fmt::Debug for RootEntered<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RootEntered").field("hold", self.hold).finish_non_exhaustive()
    }
}

impl RootEntered<'_> {
    /// Whether nothing else holds this root. What begins to hold it later and [enters](RootHold::enter) waits for
    /// this guard.
    pub fn is_only(&self) -> bool {
        self.hold.engine.held.0.lock().get(&self.hold.name).is_some_and(|entry| entry.holds == 1)
    }
}
