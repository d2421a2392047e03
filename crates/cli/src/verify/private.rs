//! A pool opened for a look: everything that opening writes stays in this process.
//!
//! ```text
//!   engine ──reads──► pages written here, else the pool's files        read-only
//!          ──writes─► pages in memory                                  gone with this process
//! ```
//!
//! The engine opens the pool as it always does, recovery included, on a medium that keeps what is written to itself. Where there is
//! nothing to replay, the working copy is a private mapping of the image; else the image is read into memory.
//!
//! What must always hold: the files are opened read-only, so that not even a bug here can change them; the engine does not get the
//! directory, so that it changes no name there; nobody else may own the pool meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use towa_media::{Access, Allocation, Counters, Durability, Error, Guarantee, Kind, Lock, Medium, PAGE, Region, Result};

/// The medium `under`, on which nothing is written.
#[derive(Debug)]
pub struct Private {
    under: Arc<dyn Medium>,
    /// Whether the image may be mapped: nothing will be replayed into it.
    is_complete: bool,
    regions: Mutex<HashMap<String, Arc<dyn Region>>>,
}

impl Private {
    /// A look at the pool on `under`.
    pub fn of(under: Arc<dyn Medium>, is_complete: bool) -> Arc<Private> {
        Arc::new(Private { under, is_complete, regions: Mutex::default() })
    }

    fn refuse<T>(&self, what: &str) -> Result<T> {
        Err(Error::Unsupported { location: self.under.location(), what: format!("is only looked at: {what} is no part of that") })
    }
}

// SAFETY: the regions of the medium behind it, with what is stored to them kept apart; a lock to read is enough, for
// nothing is stored there.
unsafe impl Medium for Private {
    fn kind(&self) -> Kind {
        self.under.kind()
    }
    fn durability(&self) -> Durability {
        self.under.durability()
    }
    fn guarantee(&self) -> Guarantee {
        self.under.guarantee()
    }
    fn location(&self) -> String {
        self.under.location()
    }
    /// None: through it names are made and removed, as that of the socket that a killed owner left.
    fn directory(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn create(&self, _: &str, _: u64, _: Allocation) -> Result<Arc<dyn Region>> {
        self.refuse("creating")
    }
    fn open(&self, name: &str, _: Access) -> Result<Arc<dyn Region>> {
        let mut regions = self.regions.lock().expect("nobody panics with it");
        if let Some(region) = regions.get(name) {
            return Ok(Arc::clone(region));
        }
        let under = self.under.open(name, Access::ReadOnly)?;
        let is_mapped = self.is_complete && name == towa_heap::names::IMAGE;
        let region: Arc<dyn Region> = Arc::new(PrivateRegion { under, is_mapped, pages: Mutex::default() });
        regions.insert(name.to_owned(), Arc::clone(&region));
        Ok(region)
    }
    fn exists(&self, name: &str) -> Result<bool> {
        self.under.exists(name)
    }
    fn remove(&self, _: &str) -> Result<()> {
        self.refuse("removing")
    }
    fn rename(&self, _: &str, _: &str) -> Result<()> {
        self.refuse("renaming")
    }
    fn sync_names(&self) -> Result<()> {
        Ok(())
    }
    fn lock(&self) -> Result<Box<dyn Lock>> {
        self.under.lock_to_read()
    }
    fn lock_by(&self, name: &str, _: bool, whose: &str) -> Result<Box<dyn Lock>> {
        self.under.lock_by(name, true, whose)
    }
    fn counters(&self) -> &Counters {
        self.under.counters()
    }
}

/// A region, and the pages of it that were written here.
#[derive(Debug)]
struct PrivateRegion {
    under: Arc<dyn Region>,
    is_mapped: bool,
    pages: Mutex<BTreeMap<u64, Box<[u8; PAGE]>>>,
}

impl PrivateRegion {
    /// Calls `each` with the number of a page, where in it, and which part of `0..len`, for all pages that hold `off..off + len`.
    fn parts(off: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>) -> Result<()>) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = off + done as u64;
            let within = (at % PAGE as u64) as usize;
            let part = (PAGE - within).min(len - done);
            each(at / PAGE as u64, within, done..done + part)?;
            done += part;
        }
        Ok(())
    }
}

// SAFETY: no bytes; the file is that of the region behind it; and what was stored here is read from the pages that
// were kept.
unsafe impl Region for PrivateRegion {
    fn len(&self) -> u64 {
        self.under.len()
    }
    fn read(&self, off: u64, into: &mut [u8]) -> Result<()> {
        self.under.read(off, into)?;
        let pages = self.pages.lock().expect("nobody panics with it");
        if pages.is_empty() {
            return Ok(());
        }
        Self::parts(off, into.len(), |page, within, part| {
            if let Some(bytes) = pages.get(&page) {
                let len = part.len();
                into[part].copy_from_slice(&bytes[within..within + len]);
            }
            Ok(())
        })
    }
    fn store(&self, off: u64, bytes: &[u8]) -> Result<()> {
        self.stream(off, bytes)
    }
    fn write_back(&self, _: u64, _: u64) {}
    fn stream(&self, off: u64, bytes: &[u8]) -> Result<()> {
        let region_len = self.len();
        if bytes.len() as u64 > region_len || off > region_len - bytes.len() as u64 {
            return Err(Error::Range { location: "a private look".into(), off, len: bytes.len() as u64, region_len });
        }
        let mut pages = self.pages.lock().expect("nobody panics with it");
        Self::parts(off, bytes.len(), |page, within, part| {
            let len = part.len();
            let kept = match pages.entry(page) {
                std::collections::btree_map::Entry::Occupied(kept) => kept.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    let (mut copy, first) = (Box::new([0; PAGE]), page * PAGE as u64);
                    let there = (region_len - first).min(PAGE as u64) as usize;
                    self.under.read(first, &mut copy[..there])?;
                    new.insert(copy)
                }
            };
            kept[within..within + len].copy_from_slice(&bytes[part]);
            Ok(())
        })
    }
    fn fence(&self) -> Result<()> {
        Ok(())
    }
    fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn bytes(&self) -> Option<NonNull<[u8]>> {
        None
    }
    fn birth(&self) -> Option<u64> {
        self.under.birth()
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        if self.is_mapped { self.under.file() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towa_media::RamMedium;

    #[test]
    fn what_is_written_is_read_and_the_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let medium = RamMedium::open(dir.path(), true, None).unwrap();
        let region = medium.create("image", 2 * PAGE as u64 + 64, Allocation::Full).unwrap();
        region.store(0, &[1; 2 * PAGE + 64]).unwrap();
        let looked = Private::of(medium, true);
        let private = looked.open("image", Access::ReadWrite).unwrap();
        assert!(private.file().is_some() && looked.open("image", Access::ReadOnly).unwrap().len() == private.len());
        private.store(PAGE as u64 - 8, &[2; 16]).unwrap();
        private.stream(2 * PAGE as u64, &[3; 64]).unwrap();
        assert!(private.stream(2 * PAGE as u64, &[3; 65]).is_err());
        let mut found = vec![0; 2 * PAGE + 64];
        looked.open("image", Access::ReadWrite).unwrap().read(0, &mut found).unwrap();
        let expected = [vec![1; PAGE - 8], vec![2; 16], vec![1; PAGE - 8], vec![3; 64]].concat();
        assert_eq!(found, expected);
        region.read(0, &mut found).unwrap();
        assert_eq!(found, vec![1; 2 * PAGE + 64]);
        assert!(looked.directory().is_none());
        assert!(looked.create("x", 64, Allocation::Full).is_err() && looked.remove("image").is_err());
    }
}
