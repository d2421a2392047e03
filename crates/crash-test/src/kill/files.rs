//! What a process did to its files, and what they are after any part of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use towa_heap::names::SUPERBLOCK;
use towa_media::{Access, Allocation, Medium, PAGE, RamMedium};

/// Something that a process did.
#[derive(Clone, Debug)]
pub enum Event {
    /// It made file number `file`, of zeros.
    Create {
        /// Its name.
        name: String,
        /// Its number.
        file: u32,
        /// Its bytes.
        len: u64,
    },
    /// It gave a file another name.
    Rename(String, String),
    /// It removed a name.
    Remove(String),
    /// One of its instructions stored these bytes.
    Store {
        /// In which file.
        file: u32,
        /// Where.
        off: u64,
        /// What was there not before.
        bytes: Vec<u8>,
    },
    /// It had promised this.
    Note(u64),
}

/// Files in memory.
#[derive(Clone, Debug, Default)]
pub struct Files {
    pub(super) names: BTreeMap<String, u32>,
    /// Length, and the pages that were stored to.
    pub(super) files: BTreeMap<u32, (u64, BTreeMap<u64, Vec<u8>>)>,
    notes: Vec<u64>,
}

/// What a process found, and what it did.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The files at its beginning.
    pub base: Files,
    /// What it did, in its order.
    pub events: Vec<Event>,
}

impl Files {
    /// What the process had promised by now.
    pub fn notes(&self) -> &[u64] {
        &self.notes
    }

    /// The same files, without the promises.
    pub fn unnoted(mut self) -> Files {
        self.notes.clear();
        self
    }

    /// Whether one of them has this name.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// Changes `len` bytes at `off` of the file of this name: damage.
    pub fn change(&mut self, name: &str, off: u64, len: usize, with: impl Fn(&mut [u8])) {
        let file = self.names[name];
        let mut bytes = self.read(file, off, len);
        with(&mut bytes);
        self.store(file, off, &bytes);
    }

    /// `len` bytes at `off` of the file of this name.
    pub fn bytes(&self, name: &str, off: u64, len: usize) -> Vec<u8> {
        self.read(self.names[name], off, len)
    }

    /// The pages of the file of this name that were stored to.
    pub fn pages(&self, name: &str) -> Vec<u64> {
        self.files[&self.names[name]].1.keys().copied().collect()
    }

    /// The superblock is what it is on `medium`, which holds these files.
    pub(super) fn take_superblock(&mut self, medium: &RamMedium) {
        let Some(file) = self.names.get(SUPERBLOCK).copied() else { return };
        let region = medium.open(SUPERBLOCK, Access::ReadOnly).expect("a file of that name");
        let mut bytes = vec![0; region.len() as usize];
        region.read(0, &mut bytes).expect("as long as it is");
        self.store(file, 0, &bytes);
    }

    /// Does what the process did.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Create { name, file, len } => {
                self.names.insert(name.clone(), *file);
                self.files.insert(*file, (*len, BTreeMap::new()));
            }
            Event::Rename(from, to) => {
                let file = self.names.remove(from).expect("a file that is renamed");
                self.names.insert(to.clone(), file);
            }
            Event::Remove(name) => {
                self.names.remove(name);
            }
            Event::Store { file, off, bytes } => self.store(*file, *off, bytes),
            Event::Note(note) => self.notes.push(*note),
        }
    }

    fn store(&mut self, file: u32, mut off: u64, mut bytes: &[u8]) {
        let pages = &mut self.files.get_mut(&file).expect("a file that was made").1;
        while !bytes.is_empty() {
            let within = (off % PAGE as u64) as usize;
            let now = bytes.len().min(PAGE - within);
            let page = pages.entry(off / PAGE as u64).or_insert_with(|| vec![0; PAGE]);
            page[within..within + now].copy_from_slice(&bytes[..now]);
            (off, bytes) = (off + now as u64, &bytes[now..]);
        }
    }

    fn read(&self, file: u32, off: u64, len: usize) -> Vec<u8> {
        let pages = &self.files[&file].1;
        let at = |off: u64| pages.get(&(off / PAGE as u64)).map_or(0, |page| page[(off % PAGE as u64) as usize]);
        (off..off + len as u64).map(at).collect()
    }

    /// A medium that holds them, and has a pool of them accepted as a copy, which it is. Nothing that is done there is recorded.
    pub fn to_medium(&self) -> Arc<RamMedium> {
        let medium = RamMedium::anonymous();
        for (name, file) in &self.names {
            let (len, pages) = &self.files[file];
            let region = medium.create(name, *len, Allocation::Sparse).expect("a new name");
            for (number, page) in pages {
                let off = number * PAGE as u64;
                let page = &page[..PAGE.min((len - off) as usize)];
                region.store(off, page).expect("within the file");
            }
        }
        // Where they are no pool yet there is nothing to accept, and what is damaged is refused by those who open it.
        let _ = towa_heap::accept_copy(&*medium);
        medium
    }
}

impl Trace {
    /// Calls `visit` with the files after each of these numbers of events, which ascend.
    pub fn visit(
        &self,
        after: impl IntoIterator<Item = usize>,
        mut visit: impl FnMut(usize, &Files) -> Result<(), String>,
    ) -> Result<(), String> {
        let (mut files, mut done) = (self.base.clone(), 0);
        for events in after {
            self.events[done..events].iter().for_each(|event| files.apply(event));
            done = events;
            visit(events, &files)
                .map_err(|e| format!("killed after {events} of {} events ({}): {e}", self.events.len(), self.around(events)))?;
        }
        Ok(())
    }

    /// The files in the end.
    pub fn end(&self) -> Files {
        let mut files = self.base.clone();
        self.events.iter().for_each(|event| files.apply(event));
        files
    }

    /// What was done last, for messages.
    fn around(&self, events: usize) -> String {
        let name = |file: &u32| {
            let created = self.events.iter().rev().find_map(|event| match event {
                Event::Create { name, file: made, .. } if made == file => Some(name.as_str()),
                _ => None,
            });
            created
                .or_else(|| self.base.names.iter().find(|(_, number)| *number == file).map(|(name, _)| name.as_str()))
                .unwrap_or("?")
        };
        let last = self.events[..events].iter().rev().take(3).map(|event| match event {
            Event::Store { file, off, bytes } => format!("{} bytes at {off:#x} of {}", bytes.len(), name(file)),
            other => format!("{other:?}"),
        });
        last.collect::<Vec<_>>().join(", before that ")
    }
}
