//! A creation that fails removes its file while it has the lock: later, the file of that name may be another's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use towa_media::sim::{Effect, Model, Point, SimMedium};
use towa_media::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Lock, Medium, Region, Result};

use crate::{Arena, CreateOptions};

/// Refuses removals by a process that does not have the lock.
#[derive(Debug)]
struct Guarded {
    medium: SimMedium,
    removals: AtomicUsize,
}

// SAFETY: all of it is that of the medium behind it.
unsafe impl Medium for Guarded {
    fn kind(&self) -> Kind {
        self.medium.kind()
    }
    fn durability(&self) -> Durability {
        self.medium.durability()
    }
    fn guarantee(&self) -> Guarantee {
        self.medium.guarantee()
    }
    fn location(&self) -> String {
        self.medium.location()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        self.medium.create(name, len, allocation)
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        self.medium.open(name, access)
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.medium.exists(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        assert!(matches!(self.medium.lock(), Err(Error::Busy { .. })), "`{name}` is removed, and the lock is free");
        self.removals.fetch_add(1, Relaxed);
        self.medium.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.medium.rename(from, to)
    }
    fn sync_names(&self) -> Result<()> {
        self.medium.sync_names()
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        self.medium.lock()
    }
    fn counters(&self) -> &Counters {
        self.medium.counters()
    }
}

#[test]
fn a_creation_that_fails_removes_its_file_under_the_lock() {
    for point in [Point::Write, Point::Reserve] {
        let medium = Arc::new(Guarded { medium: SimMedium::new(Model::File), removals: AtomicUsize::new(0) });
        medium.medium.inject(point, 0, Effect::Io);
        let options = CreateOptions { len: 1 << 20, user_len: 4096, kind: "test" };
        Arena::create(medium.clone(), &options).unwrap_err();
        assert_eq!(medium.removals.load(Relaxed), 1, "{point:?}");
        Arena::create(medium, &options).unwrap();
    }
}
