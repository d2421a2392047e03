//! A medium in memory whose process can be killed at each of its stores.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use towa_media::{Access, Allocation, Counters, Durability, Guarantee, Kind, Lock, Medium, RamMedium, Region, Result};

use super::files::{Event, Files, Trace};
use super::recorder::Recorder;

/// Memory that outlives the process; what is done to it is recorded. One thread stores there at a time, and one such medium records in a
/// process at a time: another one waits for it.
#[derive(Clone)]
pub struct KillMedium(Arc<Recorded>);

struct Recorded {
    inner: Arc<RamMedium>,
    recorder: Recorder,
    base: Files,
    names: Mutex<Names>,
}

/// The files by name, and the number of the next one.
struct Names {
    files: Vec<(String, u32)>,
    next: u32,
}

// SAFETY: the recorder's state is used by one thread at a time, by the type's promise.
unsafe impl Send for Recorded {}
// SAFETY: as above.
unsafe impl Sync for Recorded {}

impl KillMedium {
    /// Whether stores can be recorded here: the processor must be one whose single steps this program knows.
    pub fn is_supported() -> bool {
        cfg!(all(target_arch = "x86_64", target_os = "linux"))
    }

    /// A medium that holds `files`.
    pub fn new(files: Files) -> KillMedium {
        let mut base = files.unnoted();
        let inner = base.to_medium();
        base.take_superblock(&inner);
        let known: Vec<_> = base.names.iter().map(|(name, file)| (name.clone(), *file)).collect();
        let next = base.files.keys().max().map_or(0, |last| last + 1);
        KillMedium(Arc::new(Recorded { inner, recorder: Recorder::start(), base, names: Mutex::new(Names { files: known, next }) }))
    }

    /// What was done so far.
    pub fn trace(&self) -> Trace {
        Trace { base: self.0.base.clone(), events: self.0.recorder.taken() }
    }

    /// How many events there are.
    pub fn events(&self) -> usize {
        self.0.recorder.events()
    }

    /// The program has promised this.
    pub fn note(&self, note: u64) {
        self.0.recorder.record(Event::Note(note));
    }

    /// The file `name` is mapped at `first`, too, from its beginning on.
    pub fn watch(&self, name: &str, first: usize, len: usize) {
        let file = self.number(name);
        self.0.recorder.watch(file.expect("a file of that name"), first, len);
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.0.names.lock().files.iter().find(|(known, _)| known == name).map(|(_, file)| *file)
    }

    fn watched(&self, name: &str, region: Arc<dyn Region>) -> Arc<dyn Region> {
        if let Some(bytes) = region.bytes() {
            self.watch(name, bytes.cast::<u8>().as_ptr().addr(), bytes.len());
        }
        region
    }
}

impl fmt::Debug for KillMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KillMedium({} events)", self.events())
    }
}

// SAFETY: the medium that is recorded.
unsafe impl Medium for KillMedium {
    fn kind(&self) -> Kind {
        self.0.inner.kind()
    }
    fn durability(&self) -> Durability {
        self.0.inner.durability()
    }
    fn guarantee(&self) -> Guarantee {
        self.0.inner.guarantee()
    }
    fn location(&self) -> String {
        self.0.inner.location()
    }
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.0.inner.directory()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        let region = self.0.inner.create(name, len, allocation)?;
        let file = {
            let mut names = self.0.names.lock();
            let file = names.next;
            names.next += 1;
            names.files.push((name.into(), file));
            file
        };
        self.0.recorder.record(Event::Create { name: name.into(), file, len });
        Ok(self.watched(name, region))
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        let region = self.0.inner.open(name, access)?;
        Ok(if access == Access::ReadWrite { self.watched(name, region) } else { region })
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.0.inner.exists(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.0.inner.remove(name)?;
        self.0.names.lock().files.retain(|(known, _)| known != name);
        self.0.recorder.record(Event::Remove(name.into()));
        Ok(())
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.inner.rename(from, to)?;
        let mut names = self.0.names.lock();
        names.files.retain(|(known, _)| known != to);
        names.files.iter_mut().filter(|(known, _)| known == from).for_each(|(known, _)| *known = to.into());
        self.0.recorder.record(Event::Rename(from.into(), to.into()));
        Ok(())
    }
    fn sync_names(&self) -> Result<()> {
        self.0.inner.sync_names()
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        self.0.inner.lock()
    }
    fn counters(&self) -> &Counters {
        self.0.inner.counters()
    }
}
