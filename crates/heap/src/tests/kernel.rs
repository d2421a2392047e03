//! A kernel that goes on showing pages whose write-back failed, as ext4 keeps them: in folios longer than what is
//! rewritten.
//!
//! What must always hold: until a region is evicted as a whole, what is written to such a page gets no further than
//! that page.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use towa_media::sim::SimMedium;
use towa_media::{Access, Allocation, Counters, Durability, Guarantee, Kind, Lock, Medium, PAGE, Region, Result};

/// Bytes that the kernel holds together, and lets go of together.
const FOLIO: usize = 4 * PAGE;

/// Of each region: the pages that the device does not have as they are shown.
type Left = BTreeMap<String, BTreeMap<u64, Vec<u8>>>;
/// Called with the name that is renamed or removed next.
type Hook = Arc<dyn Fn(&str) + Send + Sync>;

/// Called with the region that is read next, and where.
type ReadHook = Arc<dyn Fn(&str, u64) + Send + Sync>;

/// [`SimMedium`], the device, below a page cache.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub device: SimMedium,
    state: Arc<Mutex<State>>,
    /// When its files were made; 0: that is not known.
    pub born: u64,
    pub before_names_change: Option<Hook>,
    pub before_read: Option<ReadHook>,
}

#[derive(Default)]
struct State {
    left: Left,
    /// Evictions still to come that let nothing go: something else holds the pages.
    kept: usize,
}

impl Kernel {
    pub fn over(device: &SimMedium) -> Kernel {
        Kernel { device: device.clone(), state: Arc::default(), born: 0, before_names_change: None, before_read: None }
    }

    /// What a failed sync leaves of `act`: the device keeps the bytes that regions `names` had before, and what `act`
    /// wrote is shown.
    pub fn fail(&self, names: &[&str], act: impl FnOnce()) {
        let bytes = |name: &str| {
            let region = self.device.open(name, Access::ReadOnly).unwrap();
            let mut bytes = vec![0; region.len() as usize];
            region.read(0, &mut bytes).unwrap();
            bytes
        };
        let before: Vec<_> = names.iter().map(|name| bytes(name)).collect();
        act();
        for (name, before) in names.iter().zip(before) {
            let region = self.device.open(name, Access::ReadWrite).unwrap();
            for (folio, (new, old)) in bytes(name).chunks(FOLIO).zip(before.chunks(FOLIO)).enumerate() {
                if new != old {
                    let (first, pages) = ((folio * FOLIO / PAGE) as u64, new.chunks(PAGE).map(<[u8]>::to_vec));
                    self.state.lock().left.entry(name.to_string()).or_default().extend((first..).zip(pages));
                    region.store((folio * FOLIO) as u64, old).unwrap();
                }
            }
            region.fence().unwrap();
        }
    }

    /// The same device with a cache of its own, which shows the same.
    pub fn apart(&self) -> Kernel {
        let State { left, kept } = &*self.state.lock();
        Kernel { state: Arc::new(Mutex::new(State { left: left.clone(), kept: *kept })), ..self.clone() }
    }

    /// The next `count` evictions let nothing go.
    pub fn keep(&self, count: usize) {
        self.state.lock().kept = count;
    }

    /// Memory was short: of all other regions the device's bytes are shown.
    pub fn let_go_of_all_but(&self, name: &str) {
        self.state.lock().left.retain(|left, _| left == name);
    }

    /// What is shown and not on the device: names of regions.
    pub fn left(&self) -> Vec<String> {
        self.state.lock().left.keys().cloned().collect()
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({:?})", self.device)
    }
}

// SAFETY: all of it is that of the medium behind it; what was stored last is read.
unsafe impl Medium for Kernel {
    fn kind(&self) -> Kind {
        self.device.kind()
    }
    fn durability(&self) -> Durability {
        self.device.durability()
    }
    fn guarantee(&self) -> Guarantee {
        self.device.guarantee()
    }
    fn location(&self) -> String {
        self.device.location()
    }
    fn create(&self, name: &str, len: u64, allocation: Allocation) -> Result<Arc<dyn Region>> {
        self.device.create(name, len, allocation)
    }
    fn open(&self, name: &str, access: Access) -> Result<Arc<dyn Region>> {
        let (name, state, before_read) = (name.to_owned(), Arc::clone(&self.state), self.before_read.clone());
        Ok(Arc::new(Cached { below: self.device.open(&name, access)?, name, state, born: self.born, before_read }))
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.device.exists(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.before_names_change.iter().for_each(|hook| hook(name));
        self.device.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.before_names_change.iter().for_each(|hook| hook(from));
        self.device.rename(from, to)
    }
    fn sync_names(&self) -> Result<()> {
        self.device.sync_names()
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        self.device.lock()
    }
    fn counters(&self) -> &Counters {
        self.device.counters()
    }
}

struct Cached {
    below: Arc<dyn Region>,
    name: String,
    state: Arc<Mutex<State>>,
    born: u64,
    before_read: Option<ReadHook>,
}

impl std::fmt::Debug for Cached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cached({})", self.name)
    }
}

impl Cached {
    /// Calls `each` with the parts of `off..off + len`, each in one page: where it begins, its length, and the page if
    /// it is one that is left.
    fn each_part(&self, off: u64, len: usize, mut each: impl FnMut(u64, usize, Option<&mut [u8]>) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let mut left = state.left.get_mut(&self.name);
        let (mut at, end) = (off, off + len as u64);
        while at < end {
            let (page, within) = (at / PAGE as u64, at as usize % PAGE);
            let part = (PAGE - within).min((end - at) as usize);
            let kept = left.as_mut().and_then(|pages| pages.get_mut(&page));
            each(at, part, kept.map(|bytes| &mut bytes[within..within + part]))?;
            at += part as u64;
        }
        Ok(())
    }
}

// SAFETY: no bytes and no file; what was stored last is read.
unsafe impl Region for Cached {
    fn len(&self) -> u64 {
        self.below.len()
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        self.before_read.iter().for_each(|hook| hook(&self.name, off));
        self.below.read(off, into)?;
        self.each_part(off, into.len(), |at, len, kept| {
            kept.into_iter().for_each(|kept| into[(at - off) as usize..][..len].copy_from_slice(kept));
            Ok(())
        })
    }
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.each_part(off, bytes.len(), |at, len, kept| {
            let part = &bytes[(at - off) as usize..][..len];
            match kept {
                Some(kept) => kept.copy_from_slice(part),
                None => self.below.store(at, part)?,
            }
            Ok(())
        })
    }
    fn write_back(&self, off: u64, len: u64) {
        self.below.write_back(off, len);
    }
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.store(off, bytes)
    }
    fn rewrite(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.store(off, bytes)
    }
    fn evict(&self) {
        let mut state = self.state.lock();
        if state.kept > 0 {
            state.kept -= 1;
        } else {
            state.left.remove(&self.name);
        }
    }
    fn fence(&self) -> Result<()> {
        self.below.fence()
    }
    fn reserve(&self, off: u64, len: u64) -> Result<()> {
        self.below.reserve(off, len)
    }
    fn bytes(&self) -> Option<NonNull<[u8]>> {
        None
    }
    fn birth(&self) -> Option<u64> {
        (self.born != 0).then_some(self.born)
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
