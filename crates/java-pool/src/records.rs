//! The chains of records: classes and roots.
//!
//! ```text
//!   record:  next (8) | kind (4) | bytes (4) | CRC32C (4) | 1: may be the last (4) | payload
//! ```
//!
//! What must always hold: a chain is followed as far as its links can be believed, and never twice through one record.

use std::collections::{HashMap, HashSet};

use crate::blocks::{Blocks, Claim};
use crate::class::{self, Class, Root};
use crate::error::Result;
use crate::report::Problems;
use crate::source::{View, u32_of, u64_of};
use crate::superblock::{WORDS, Words};

const HEADER: u64 = 24;
/// Longest record, and most bytes of all of them. A class file that needs as much is refused by every Java.
const BYTES_MAX: u64 = 16 << 20;
const ALL_BYTES_MAX: u64 = 256 << 20;

/// What the records say.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) classes: HashMap<u32, Class>,
    pub(crate) roots: Vec<Root>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Class = 1,
    Root = 2,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Class => "class",
            Kind::Root => "root",
        }
    }
}

/// Reads all records.
pub(crate) fn read(view: &mut View, words: &Words, blocks: &mut Blocks, problems: &mut Problems) -> Result<Records> {
    let mut records = Records::default();
    let mut left = ALL_BYTES_MAX;
    let mut places = HashMap::new();
    let mut chain = Chain { view, blocks, problems, left: &mut left };
    chain.follow(Kind::Class, (WORDS + 24, words.classes), |problems, at, bytes| {
        match class::class(&bytes[HEADER as usize..]) {
            Err(why) => problems.add(at, || format!("class record: {why}")),
            Ok(class) => {
                if let Some(other) = places.get(&class.index) {
                    let name = &class.name;
                    problems.add(at, || format!("class {} ({name}) is described at {other:#x} already", class.index));
                } else {
                    places.insert(class.index, at);
                    records.classes.insert(class.index, class);
                }
            }
        }
    })?;
    let mut names = HashSet::new();
    chain.follow(Kind::Root, (WORDS + 32, words.roots), |problems, at, bytes| {
        match class::root(&bytes[HEADER as usize..], at + HEADER) {
            Err(why) => problems.add(at, || format!("root record: {why}")),
            Ok(root) => {
                if !names.insert(root.name.clone()) {
                    problems.add(at, || format!("root {} is there twice", root.name));
                }
                records.roots.push(root);
            }
        }
    })?;
    records.roots.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(records)
}

struct Chain<'c, 'v> {
    view: &'c mut View<'v>,
    blocks: &'c mut Blocks,
    problems: &'c mut Problems,
    /// Bytes of records that may still be read.
    left: &'c mut u64,
}

impl Chain<'_, '_> {
    /// Calls `each` with all records of a chain that begins where `link` (its place, and what it holds) leads to.
    fn follow(&mut self, kind: Kind, mut link: (u64, u64), mut each: impl FnMut(&mut Problems, u64, &[u8])) -> Result<()> {
        let name = kind.name();
        while link.1 != 0 {
            let (from, at) = link;
            if !self.blocks.is_place(at, HEADER) {
                self.problems.add(from, || format!("the chain of {name} records leads to {at:#x}, which is no place in the heap"));
                return Ok(());
            }
            if self.blocks.is_record(at) {
                self.problems.add(from, || format!("the chain of {name} records comes back to the record at {at:#x}"));
                return Ok(());
            }
            let mut header = [0; HEADER as usize];
            self.view.read(at, &mut header)?;
            let (found, len) = (u32_of(&header, 8), u64::from(u32_of(&header, 12)));
            if found != kind as u32 {
                self.problems.add(at + 8, || format!("a record of kind {found} in the chain of {name} records ({})", kind as u32));
                return Ok(());
            }
            if len <= HEADER || len > BYTES_MAX.min(*self.left) {
                self.problems.add(at + 12, || format!("a {name} record of {len} bytes, which cannot be"));
                return Ok(());
            }
            match self.blocks.claim_record(at, len) {
                Claim::New(_) => {}
                Claim::Again => {
                    self.problems.add(from, || format!("the chain of {name} records leads to {at:#x}, which is in use"));
                    return Ok(());
                }
                Claim::Refused(why) => {
                    self.problems.add(from, || format!("the {name} record at {at:#x} {why}"));
                    return Ok(());
                }
            }
            *self.left -= len;
            let mut bytes = vec![0; len as usize];
            self.view.read(at, &mut bytes)?;
            // A root's value changes by itself: the sum is of what follows it.
            let summed = if kind == Kind::Root { HEADER as usize + 8 } else { HEADER as usize };
            if bytes.get(summed..).is_none_or(|summed| crc32c::crc32c(summed) != u32_of(&header, 16)) {
                self.problems.add(at + 16, || format!("the checksum of the {name} record at {at:#x} does not fit"));
            } else {
                if u32_of(&header, 20) > 1 {
                    self.problems.add(at + 20, || format!("the {name} record at {at:#x} has a mark that is neither 0 nor 1"));
                }
                each(self.problems, at, &bytes);
            }
            link = (at, u64_of(&header, 0));
            if link.1 == 0 && u32_of(&header, 20) == 0 {
                self.problems.add(at, || format!("the chain of {name} records ends at {at:#x}, which is not marked as the last"));
            }
        }
        Ok(())
    }
}
