//! Locks of a simulated medium. Threads that have a lock each stand for processes: a former owner's checkpointer beside the next owner.
//!
//! What must always hold: one has the medium, and one each region; what it has goes with the lock, or with the process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::{Error, Lock, Result};

#[derive(Default)]
pub(super) struct Locks {
    owned: AtomicBool,
    regions: Mutex<BTreeSet<String>>,
    /// Plants a fault: regions are not locked.
    pub(super) forgets_regions: AtomicBool,
}

/// What a process has locked.
pub(super) struct Held {
    locks: Arc<Locks>,
    owns: bool,
    regions: Mutex<BTreeSet<String>>,
}

impl Locks {
    /// The owner's lock.
    pub(super) fn own(self: &Arc<Self>) -> Result<Held> {
        if self.owned.swap(true, Relaxed) {
            return Err(busy("sim", &format!("this process ({})", std::process::id())));
        }
        let mut held = self.none();
        held.owns = true;
        Ok(held)
    }

    /// Nothing, until a region is taken.
    pub(super) fn none(self: &Arc<Self>) -> Held {
        Held { locks: Arc::clone(self), owns: false, regions: Mutex::default() }
    }
}

fn busy(location: &str, holder: &str) -> Error {
    Error::Busy { location: location.into(), holder: holder.into() }
}

impl Lock for Held {
    fn take(&self, name: &str, patience: Duration, whose: &str) -> Result<()> {
        let end = Instant::now() + patience;
        while !self.try_take(name)? {
            if Instant::now() >= end {
                return Err(busy(name, whose));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn try_take(&self, name: &str) -> Result<bool> {
        let mut mine = self.regions.lock();
        if self.locks.forgets_regions.load(Relaxed) || mine.contains(name) {
            return Ok(true);
        }
        let taken = self.locks.regions.lock().insert(name.to_owned());
        if taken {
            mine.insert(name.to_owned());
        }
        Ok(taken)
    }

    fn give_back(&self, name: &str) {
        if self.regions.lock().remove(name) {
            self.locks.regions.lock().remove(name);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for name in self.regions.lock().iter() {
            self.locks.regions.lock().remove(name);
        }
        if self.owns {
            self.locks.owned.store(false, Relaxed);
        }
    }
}
