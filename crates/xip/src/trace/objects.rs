//! The files that faults are counted for, and the counts.
//!
//! What must hold: a file is known by its path, so two files that had the same path one after the other are one object; a file that is no
//! ELF file is no object; one that was only read by mapping it (by a linker, say) ends up under *other*, as data of the reader.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::elf::{self, Elf};
use super::tree::Program;
use crate::traced::{Faults, ObjectKind, TracedObject};

/// A file, and what was counted for it.
#[derive(Debug, Default)]
pub struct Object {
    /// Where it lies.
    pub path: PathBuf,
    /// What it is, where it can be read.
    pub elf: Option<Elf>,
    /// Whether anybody could execute it from a mapping.
    pub is_executed: bool,
    /// As in [`TracedObject`].
    pub forks: u64,
    /// As in [`TracedObject`].
    pub mapped_by: u64,
    /// In executable mappings.
    pub text: Faults,
    /// In its other mappings.
    pub data: Faults,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Objects {
    by_path: HashMap<PathBuf, usize>,
    list: Vec<Object>,
    /// Faults at addresses of no object.
    pub other: Faults,
}

impl Objects {
    /// The one at `path` as `pid` sees it; it is looked at when it is met first.
    pub fn find(&mut self, pid: i32, path: &Path) -> usize {
        if let Some(&index) = self.by_path.get(path) {
            return index;
        }
        self.list.push(Object { path: path.to_owned(), elf: elf::inspect(pid, path), ..Object::default() });
        self.by_path.insert(path.to_owned(), self.list.len() - 1);
        self.list.len() - 1
    }

    /// One of them.
    pub fn at(&mut self, index: usize) -> &mut Object {
        &mut self.list[index]
    }

    /// Counters for a fault.
    pub fn counters(&mut self, object: Option<usize>, is_text: bool) -> &mut Faults {
        match object {
            Some(index) if is_text => &mut self.list[index].text,
            Some(index) => &mut self.list[index].data,
            None => &mut self.other,
        }
    }

    /// The objects as they are reported, those with most faults first, and what is left.
    pub fn report(self, programs: Vec<Program>) -> (Vec<TracedObject>, Faults) {
        let (mut other, mut found) = (self.other, HashMap::new());
        for object in self.list {
            let is_program = programs.iter().any(|program| program.path == object.path);
            let is_only_read = !object.is_executed && object.elf.as_ref().is_none_or(|elf| elf.text_bytes > 0);
            if is_only_read && !is_program {
                [object.text, object.data].iter().for_each(|faults| other += *faults);
                continue;
            }
            found.insert(object.path.clone(), library(object));
        }
        for program in programs {
            let entry = found.entry(program.path.clone()).or_default();
            entry.path = program.path;
            entry.kind = ObjectKind::Program;
            (entry.execs, entry.forks) = (program.execs, program.forks);
            if let Some(elf) = program.elf {
                (entry.text_bytes, entry.data_bytes) = (elf.text_bytes, elf.data_bytes);
            }
        }
        let mut objects: Vec<TracedObject> = found.into_values().collect();
        objects.sort_by(|a, b| b.faults().cmp(&a.faults()).then_with(|| a.path.cmp(&b.path)));
        (objects, other)
    }
}

fn library(object: Object) -> TracedObject {
    let Object { path, elf, forks, mapped_by, text, data, .. } = object;
    let Elf { text_bytes, data_bytes, .. } = elf.unwrap_or_default();
    TracedObject { path, kind: ObjectKind::Library, execs: 0, forks, mapped_by, text_bytes, data_bytes, text, data }
}
