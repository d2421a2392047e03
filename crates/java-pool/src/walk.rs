//! The walk: every replica that can be reached from the roots.
//!
//! ```text
//!   replica:  class (4) | stamp (4) | mark (8) | identity hash (4) | length (4) | data
//! ```
//!
//! What must always hold: a replica is checked when the first reference to it is found, and what it refers to is looked at once, and only
//! if it was sound: so the work is bounded by the file's length, whatever the references are. The list of what is still to be looked at
//! is bounded, too; what found no room there is found again by the blocks' bits.

use std::collections::HashMap;

use crate::blocks::{Blocks, Claim};
use crate::class::{Class, Form, HEADER, check_constant};
use crate::error::Result;
use crate::records::Records;
use crate::report::{ClassCount, Problems};
use crate::source::{View, u32_of, u64_of};
use crate::superblock::{CYCLES, Words};

/// Most replicas on the list.
const LISTED_MAX: usize = 1 << 20;
/// Longest array and constant in Java; a constant is two names at most.
const LENGTH_MAX: u32 = i32::MAX as u32;
const CONSTANT_MAX: u32 = 2 * 65536;

/// Replicas of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    replicas: u64,
    bytes: u64,
    block_bytes: u64,
}

/// A walk on its way.
pub(crate) struct Walk<'w, 'v> {
    view: &'w mut View<'v>,
    blocks: &'w mut Blocks,
    problems: &'w mut Problems,
    words: &'w Words,
    classes: &'w HashMap<u32, Class>,
    counts: HashMap<u32, Count>,
    listed: Vec<u64>,
    listed_max: usize,
    /// Something found no room on the list.
    is_incomplete: bool,
}

impl<'w, 'v> Walk<'w, 'v> {
    pub(crate) fn new(
        view: &'w mut View<'v>,
        blocks: &'w mut Blocks,
        problems: &'w mut Problems,
        words: &'w Words,
        records: &'w Records,
    ) -> Walk<'w, 'v> {
        Walk {
            view,
            blocks,
            problems,
            words,
            classes: &records.classes,
            counts: HashMap::new(),
            listed: Vec::new(),
            listed_max: LISTED_MAX,
            is_incomplete: false,
        }
    }

    /// Walks from the roots; gives the replicas of each class, most bytes first. `progress` is told the bytes of blocks found.
    pub(crate) fn run(mut self, records: &Records, progress: &mut dyn FnMut(u64)) -> Result<Vec<ClassCount>> {
        for root in &records.roots {
            self.reach(root.at, root.value, || format!("root {}", root.name))?;
            self.drain(progress)?;
        }
        while std::mem::take(&mut self.is_incomplete) {
            let (listed, max) = (&mut self.listed, self.listed_max);
            self.blocks.not_looked_at(|at| {
                listed.push(at);
                listed.len() < max
            });
            // It was full once, so there may be more.
            self.is_incomplete = !self.listed.is_empty();
            self.drain(progress)?;
        }
        let mut counts: Vec<ClassCount> = self.counts.iter().map(|(index, count)| self.count(*index, *count)).collect();
        counts.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.index));
        Ok(counts)
    }

    fn count(&self, index: u32, Count { replicas, bytes, block_bytes }: Count) -> ClassCount {
        let class = &self.classes[&index];
        ClassCount { index, name: class.name.to_string(), form: class.form.name(), replicas, bytes, block_bytes }
    }

    fn drain(&mut self, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut steps = 0u32;
        while let Some(at) = self.listed.pop() {
            self.look_at(at)?;
            steps += 1;
            if steps.is_multiple_of(4096) {
                progress(self.counts.values().map(|count| count.block_bytes).sum());
            }
        }
        Ok(())
    }

    /// Looks at everything that the sound replica at `at` refers to.
    fn look_at(&mut self, at: u64) -> Result<()> {
        self.blocks.look_at(at);
        let mut header = [0; HEADER as usize];
        self.view.read(at, &mut header)?;
        // It was sound; should somebody have written to the file meanwhile, it may no longer be.
        let Some(class) = self.classes.get(&u32_of(&header, 0)) else { return Ok(()) };
        match class.form {
            Form::Object => {
                let mut rest = class.references.as_slice();
                while let Some((offset, name)) = rest.first() {
                    let slot = at + u64::from(*offset);
                    let content = self.view.content_after(slot);
                    if content >= slot + 8 {
                        // They are in order of their offsets.
                        rest = &rest[rest.partition_point(|(offset, _)| at + u64::from(*offset) + 8 <= content)..];
                        continue;
                    }
                    let target = self.view.u64(slot)?;
                    self.reach(slot, target, || format!("{name} of the replica at {at:#x} ({})", class.name))?;
                    rest = &rest[1..];
                }
            }
            Form::Array(_, true) => self.look_at_elements(at, u64::from(u32_of(&header, 20)), class)?,
            _ => {}
        }
        Ok(())
    }

    /// Looks at everything that the array of references at `at` refers to.
    fn look_at_elements(&mut self, at: u64, length: u64, class: &Class) -> Result<()> {
        let (data, len) = (at + HEADER, length * 8);
        let mut elements = [0; 4096];
        let mut from = 0;
        while from < len {
            // What lies in holes leads nowhere, and is not read: an array may be longer than all that its file holds.
            from = from.max((self.view.content_after(data + from) - data) / 8 * 8);
            let part = &mut elements[..len.saturating_sub(from).min(4096) as usize];
            if part.is_empty() {
                break;
            }
            self.view.read(data + from, part)?;
            for (place, bytes) in part.chunks_exact(8).enumerate() {
                let number = from / 8 + place as u64;
                self.reach(data + number * 8, u64_of(bytes, 0), || {
                    format!("element {number} of the array at {at:#x} ({})", class.name)
                })?;
            }
            from += part.len() as u64;
        }
        Ok(())
    }

    /// Follows the reference that lies at `slot`: `whose` says it in words.
    fn reach(&mut self, slot: u64, target: u64, whose: impl Fn() -> String) -> Result<()> {
        if target == 0 {
            return Ok(());
        }
        if !self.blocks.is_place(target, HEADER) {
            let why = if target.is_multiple_of(16) { "outside the heap" } else { "not a multiple of 16" };
            self.problems.add(slot, || format!("{} leads to {target:#x}, {why}", whose()));
            return Ok(());
        }
        if self.blocks.is_taken(target) {
            if self.blocks.is_record(target) {
                self.problems.add(slot, || format!("{} leads to {target:#x}, which is a record", whose()));
            }
            return Ok(());
        }
        let mut header = [0; HEADER as usize];
        self.view.read(target, &mut header)?;
        let (index, length) = (u32_of(&header, 0), u32_of(&header, 20));
        let Some(class) = self.classes.get(&index) else {
            self.problems.add(slot, || format!("{} leads to {target:#x}, whose class is {index}: there is none", whose()));
            return Ok(());
        };
        let (size, length_max) = match class.form {
            Form::Object => (class.instance, u32::MAX),
            Form::Array(width, _) => (HEADER + width * u64::from(length), LENGTH_MAX),
            _ => (HEADER + u64::from(length), CONSTANT_MAX),
        };
        if length > length_max {
            self.problems.add(target + 20, || format!("the {} at {target:#x} has a length of {length}", class.form.name()));
            return Ok(());
        }
        let block = match self.blocks.claim(target, size) {
            Claim::New(block) => block,
            Claim::Again => return Ok(()),
            Claim::Refused(why) => {
                self.problems.add(slot, || format!("{} leads to {target:#x}: the {} there {why}", whose(), class.name));
                return Ok(());
            }
        };
        self.check_header(target, &header, class);
        let count = self.counts.entry(index).or_default();
        (count.replicas, count.bytes, count.block_bytes) = (count.replicas + 1, count.bytes + size, count.block_bytes + block);
        let has_references = matches!(class.form, Form::Array(_, true)) || !class.references.is_empty();
        if !has_references {
            self.blocks.look_at(target);
        } else if self.listed.len() < self.listed_max {
            self.listed.push(target);
        } else {
            self.is_incomplete = true;
        }
        if matches!(class.form, Form::EnumConstant | Form::ClassConstant | Form::NamedConstant) {
            let mut text = vec![0; length as usize];
            self.view.read(target + HEADER, &mut text)?;
            if let Err(why) = check_constant(class.form, &text) {
                self.problems.add(target + HEADER, || format!("the {} at {target:#x} ({}) {why}", class.form.name(), class.name));
            }
        }
        Ok(())
    }

    /// What a header says beside class and length.
    fn check_header(&mut self, at: u64, header: &[u8; HEADER as usize], class: &Class) {
        let of = || format!("the replica at {at:#x} ({})", class.name);
        let (stamp, mark, hash) = (u64::from(u32_of(header, 4)), u64_of(header, 8) >> 36, u32_of(header, 16));
        let (cycle, number) = (self.words.cycle, self.words.mark_number);
        if stamp >= CYCLES || stamp > cycle {
            self.problems
                .add(at + 4, || format!("{} is of collector cycle {stamp}, which is yet to come: the pool is in {cycle}", of()));
        }
        if mark > number {
            self.problems.add(at + 8, || format!("{} has mark number {mark}, which is yet to come: the pool is at {number}", of()));
        }
        if hash > i32::MAX as u32 {
            self.problems.add(at + 16, || format!("{} has identity hash {hash:#x}, of more than 31 bits", of()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Root;
    use crate::source::Source;
    use crate::superblock::HEAP_START;

    /// Bytes that tell of each word of 8 whether it is of zeros.
    struct Sparse(Vec<u8>);

    impl Source for Sparse {
        fn len(&self) -> u64 {
            Source::len(&self.0)
        }
        fn read(&self, at: u64, into: &mut [u8]) -> std::io::Result<()> {
            self.0.read(at, into)
        }
        fn content(&self, at: u64) -> (u64, u64) {
            let words = |from: u64, is_content: bool| {
                let mut words = self.0[from as usize..].chunks(8);
                words.position(|word| word.iter().any(|byte| *byte != 0) == is_content).map_or(self.len(), |n| from + n as u64 * 8)
            };
            let data = words(at / 8 * 8, true).max(at);
            (data, words(data, false))
        }
    }

    /// Thousands of replicas of which only a few find room on the list are all found.
    #[test]
    fn a_list_that_is_full_loses_nothing() {
        let (nodes, at) = (5000u64, |n: u64| HEAP_START + n * 48);
        let place = |n: u64| at(n % 85) - HEAP_START % 4096 + n / 85 * 4096;
        let mut bytes = vec![0; (HEAP_START + (nodes / 85 + 1) * 4096) as usize];
        for n in 0..nodes {
            let at = place(n) as usize;
            bytes[at] = 1;
            // A tree, whose last level is half of it.
            for (slot, child) in [(24, 2 * n + 1), (32, 2 * n + 2)] {
                let target = if child < nodes { place(child) } else { 0 };
                bytes[at + slot..at + slot + 8].copy_from_slice(&target.to_le_bytes());
            }
        }
        let frontier = bytes.len() as u64;
        let node = Class {
            index: 1,
            form: Form::Object,
            instance: 40,
            name: "Node".into(),
            references: vec![(24, "left".into()), (32, "right".into())],
        };
        let root = Root { at: 0, value: place(0), name: "root".into(), descriptor: "LNode;".into() };
        let records = Records { classes: HashMap::from([(1, node)]), roots: vec![root] };
        let words = Words { frontier, mark_number: 1, cycle: 1, classes: 0, roots: 0, undo: 0, stale_tables: 1, sections: 1 };
        let sparse = Sparse(bytes.clone());
        let sources: [&dyn Source; 2] = [&bytes, &sparse];
        for (listed_max, source) in [1, 2, 7, 1 << 20].into_iter().flat_map(|max| sources.map(|source| (max, source))) {
            let (mut view, mut blocks, mut problems) = (View::of(source, "bytes"), Blocks::new(frontier), Problems::default());
            let mut walk = Walk::new(&mut view, &mut blocks, &mut problems, &words, &records);
            walk.listed_max = listed_max;
            let counts = walk.run(&records, &mut |_| {}).unwrap();
            assert_eq!((counts[0].replicas, counts[0].block_bytes), (nodes, nodes * 48), "{listed_max}");
            assert_eq!(problems.shown, []);
        }
    }
}
