//! The address spaces of all traced processes, as perf tells of them: what is mapped where, and whose page a fault was for.
//!
//! ```text
//!   FORK  parent ─────────► child: the same mappings, no page counted yet; its own fork, or its end, makes it count as a fork,
//!                            └─ EXEC: nothing mapped; it counts as an exec only
//!   MMAP  [start, end) is now this file (or none), executable or not; what was there before is gone
//!   FAULT address ─► mapping ─► object and class; a page is counted once for each run of a process
//! ```
//!
//! What must hold: events are given in the order of their time. munmap and mremap are not told: a stale mapping matters only when something
//! else comes to lie there unannounced, and a file's mapping that was moved counts as *other*.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use super::objects::Objects;
use super::sys::{self, Pid};

/// Something that happened to an address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A page fault.
    Fault {
        /// Whose.
        pid: Pid,
        /// Where.
        address: u64,
        /// Whether it waited for storage.
        is_major: bool,
    },
    /// A mapping.
    Map {
        /// Whose.
        pid: Pid,
        /// Where it begins.
        start: u64,
        /// Where it ends.
        end: u64,
        /// Where in the file it begins.
        offset: u64,
        /// Whether it can be executed.
        is_text: bool,
        /// The file, if it is one.
        file: Option<PathBuf>,
    },
    /// A new process.
    Fork {
        /// Its number.
        pid: Pid,
        /// Of whom it is a copy.
        parent: Pid,
    },
    /// A new thread.
    Thread {
        /// Of which process.
        pid: Pid,
    },
    /// A process begins a program.
    Exec {
        /// Which.
        pid: Pid,
    },
    /// A thread ended.
    Exit {
        /// Of which process.
        pid: Pid,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    end: u64,
    offset: u64,
    object: Option<usize>,
    is_text: bool,
}

impl Mapping {
    /// What is left of it from `start` on, when it began at `began`.
    fn from(self, began: u64, start: u64) -> Mapping {
        Mapping { offset: self.offset + (start - began), ..self }
    }
}

#[derive(Debug, Default)]
struct Space {
    mappings: BTreeMap<u64, Mapping>,
    mapped: HashSet<usize>,
    pages: HashSet<(Option<usize>, bool, u64)>,
    /// Of a fork that may yet be followed at once by an exec: what was mapped when it was made.
    undecided: Option<Vec<usize>>,
    threads: u32,
}

impl Space {
    fn put(&mut self, start: u64, new: Mapping) {
        let end = new.end;
        if let Some((&began, before)) = self.mappings.range_mut(..start).next_back()
            && before.end > start
        {
            let old = *before;
            before.end = start;
            if old.end > end {
                self.mappings.insert(end, old.from(began, end));
            }
        }
        while let Some((&began, &old)) = self.mappings.range(start..end).next() {
            self.mappings.remove(&began);
            if old.end > end {
                self.mappings.insert(end, old.from(began, end));
            }
        }
        self.mappings.insert(start, new);
    }

    fn at(&self, address: u64) -> Option<(u64, Mapping)> {
        let (&start, &mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then_some((start, mapping))
    }
}

/// All of them, and the objects mapped in them.
#[derive(Debug)]
pub struct Spaces {
    spaces: HashMap<Pid, Space>,
    objects: Objects,
    page: u64,
    /// Forks that were told.
    pub forks: u64,
    /// Execs that were told.
    pub execs: u64,
    /// Faults that were told.
    pub faults: u64,
}

impl Default for Spaces {
    fn default() -> Spaces {
        Spaces { spaces: HashMap::new(), objects: Objects::default(), page: sys::page_size(), forks: 0, execs: 0, faults: 0 }
    }
}

impl Spaces {
    /// Takes in what happened next.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Fault { pid, address, is_major } => self.fault(pid, address, is_major),
            Event::Map { pid, start, end, offset, is_text, file } => {
                let object = file.and_then(|path| self.object(pid, &path, is_text));
                self.map(pid, start, Mapping { end, offset, object, is_text });
            }
            Event::Fork { pid, parent } => self.fork(pid, parent),
            Event::Thread { pid } => self.spaces.entry(pid).or_default().threads += 1,
            Event::Exec { pid } => {
                self.execs += 1;
                let threads = self.spaces.remove(&pid).map_or(0, |space| space.threads);
                self.spaces.insert(pid, Space { threads, ..Space::default() });
            }
            Event::Exit { pid } => self.exit(pid),
        }
    }

    /// The counts, when all is over.
    pub fn finish(mut self) -> Objects {
        for (_, mut space) in std::mem::take(&mut self.spaces) {
            self.decide(&mut space);
        }
        self.objects
    }

    fn object(&mut self, pid: Pid, path: &std::path::Path, is_text: bool) -> Option<usize> {
        let mapped = self.spaces.get(&pid).map(|space| &space.mapped);
        let first_half = mapped.and_then(|mapped| self.objects.first_half(path, mapped.iter().copied()));
        let index = first_half.unwrap_or_else(|| self.objects.find(pid, path));
        let object = self.objects.at(index);
        let is_gone = || !path.exists() && path.to_string_lossy().ends_with(" (deleted)") && !path.starts_with("/dev");
        if object.elf.is_none() && !(is_text && is_gone()) {
            return None;
        }
        object.is_executed |= is_text;
        Some(index)
    }

    fn map(&mut self, pid: Pid, start: u64, mapping: Mapping) {
        let space = self.spaces.entry(pid).or_default();
        space.put(start, mapping);
        let Some(object) = mapping.object else { return };
        if space.mapped.insert(object) && space.undecided.is_none() {
            self.objects.at(object).mapped_by += 1;
        }
    }

    fn fork(&mut self, pid: Pid, parent: Pid) {
        self.forks += 1;
        let mut space = self.spaces.remove(&parent).unwrap_or_default();
        self.decide(&mut space);
        let child = Space {
            mappings: space.mappings.clone(),
            mapped: space.mapped.clone(),
            undecided: Some(space.mapped.iter().copied().collect()),
            ..Space::default()
        };
        self.spaces.insert(parent, space);
        if let Some(mut gone) = self.spaces.insert(pid, child) {
            self.decide(&mut gone);
        }
    }

    /// A fork that was not followed at once by an exec counts, and so does the process as one that has all that mapped.
    fn decide(&mut self, space: &mut Space) {
        let Some(inherited) = space.undecided.take() else { return };
        inherited.iter().for_each(|&object| self.objects.at(object).forks += 1);
        space.mapped.iter().for_each(|&object| self.objects.at(object).mapped_by += 1);
    }

    fn exit(&mut self, pid: Pid) {
        let Some(space) = self.spaces.get_mut(&pid) else { return };
        if space.threads > 0 {
            space.threads -= 1;
        } else if let Some(mut space) = self.spaces.remove(&pid) {
            self.decide(&mut space);
        }
    }

    fn fault(&mut self, pid: Pid, address: u64, is_major: bool) {
        self.faults += 1;
        let space = self.spaces.entry(pid).or_default();
        let (object, is_text, page) = match space.at(address) {
            Some((start, Mapping { object: Some(object), is_text, offset, .. })) => {
                (Some(object), is_text, (address - start + offset) / self.page)
            }
            _ => (None, false, address / self.page),
        };
        let is_new = space.pages.insert((object, is_text, page));
        let counters = self.objects.counters(object, is_text);
        *(if is_major { &mut counters.major } else { &mut counters.minor }) += 1;
        counters.pages += if is_new { self.page / 4096 } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(end: u64, offset: u64, object: usize) -> Mapping {
        Mapping { end, offset, object: Some(object), is_text: false }
    }

    #[test]
    fn a_mapping_replaces_what_lay_there() {
        let mut space = Space::default();
        space.put(100, mapping(200, 0, 1));
        space.put(120, mapping(150, 7, 2));
        let found = |space: &Space, at| space.at(at).and_then(|(start, m)| Some((m.object?, m.offset + at - start)));
        assert_eq!(found(&space, 119), Some((1, 19)));
        assert_eq!(found(&space, 120), Some((2, 7)));
        assert_eq!(found(&space, 150), Some((1, 50)));
        assert_eq!((found(&space, 99), found(&space, 200)), (None, None));
        space.put(90, mapping(130, 0, 3));
        assert_eq!(found(&space, 129), Some((3, 39)));
        assert_eq!(found(&space, 130), Some((2, 17)));
        space.put(0, mapping(1000, 0, 4));
        assert_eq!((space.mappings.len(), found(&space, 150)), (1, Some((4, 150))));
    }

    fn map(spaces: &mut Spaces, pid: Pid) {
        let file = std::env::current_exe().unwrap();
        spaces.apply(Event::Map { pid, start: 0x10000, end: 0x20000, offset: 0x1000, is_text: true, file: Some(file) });
    }

    #[test]
    fn forks_followed_at_once_by_an_exec_are_not_counted() {
        let mut spaces = Spaces::default();
        spaces.apply(Event::Exec { pid: 1 });
        map(&mut spaces, 1);
        for pid in [2, 3, 4] {
            spaces.apply(Event::Fork { pid, parent: 1 });
        }
        spaces.apply(Event::Exec { pid: 2 });
        spaces.apply(Event::Exit { pid: 3 });
        spaces.apply(Event::Fork { pid: 5, parent: 4 });
        spaces.apply(Event::Exec { pid: 4 });
        map(&mut spaces, 4);
        let mut objects = spaces.finish();
        // Counted: 3, 4 and 5 as forks; 1, 3, 4 before and after its exec, and 5 as processes.
        assert_eq!((objects.at(0).forks, objects.at(0).mapped_by), (3, 5));
    }

    #[test]
    fn pages_count_once_in_each_run_and_faults_always() {
        let mut spaces = Spaces::default();
        spaces.apply(Event::Exec { pid: 1 });
        map(&mut spaces, 1);
        spaces.apply(Event::Fork { pid: 2, parent: 1 });
        for (pid, address) in [(1, 0x10000), (1, 0x10fff), (1, 0x11000), (2, 0x10000), (2, 0x30000)] {
            spaces.apply(Event::Fault { pid, address, is_major: address == 0x11000 });
        }
        let mut objects = spaces.finish();
        let text = objects.at(0).text;
        assert_eq!((text.major, text.minor, text.pages), (1, 3, 3));
        assert_eq!((objects.other.minor, objects.other.pages), (1, 1));
    }
}
