//! Which blocks are taken: each once, and all of a segment of one size.
//!
//! ```text
//!   heap:   | segment | segment | segment | ...          a segment: blocks of one class, or part of a large block
//!   here:   a region of 256 segments, made when something in it is first found:
//!             class of each segment; for each 16 bytes: a block begins here, and: what it refers to has been looked at
//! ```
//!
//! What must always hold: a block that was refused is not taken, so that no byte is ever looked at as part of two.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use towa_alloc::{SEGMENT, SIZES};

use crate::superblock::HEAP_START;

/// Segments of a region.
const SEGMENTS: u64 = 256;
const REGION: u64 = SEGMENTS * SEGMENT;
const WORDS: usize = (REGION / 16 / 64) as usize;

/// What became of the wish for a block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is taken now, and has so many bytes.
    New(u64),
    /// It was taken before.
    Again,
    /// It cannot be a block.
    Refused(String),
}

struct Region {
    /// 0: nothing known, else one more than the class.
    classes: [u8; SEGMENTS as usize],
    begins: [u64; WORDS],
    looked_at: [u64; WORDS],
}

/// Blocks that are taken.
pub(crate) struct Blocks {
    frontier: u64,
    regions: HashMap<u64, Box<Region>>,
    /// Their numbers, in order.
    numbers: BTreeSet<u64>,
    /// Large blocks: where they begin and end.
    large: BTreeMap<u64, u64>,
    /// Blocks of records, which no replica may be in.
    records: HashSet<u64>,
}

fn place(at: u64) -> (u64, usize, u64) {
    let granule = at % REGION / 16;
    (at / REGION, (granule / 64) as usize, 1 << (granule % 64))
}

impl Blocks {
    /// None yet, of a heap that ends at `frontier`.
    pub(crate) fn new(frontier: u64) -> Blocks {
        Blocks { frontier, regions: HashMap::new(), numbers: BTreeSet::new(), large: BTreeMap::new(), records: HashSet::new() }
    }

    /// Whether something may begin at `at`, with a header of `header` bytes.
    pub(crate) fn is_place(&self, at: u64, header: u64) -> bool {
        at.is_multiple_of(16) && at >= HEAP_START && at < self.frontier && self.frontier - at >= header
    }

    /// Whether a taken block begins at `at`.
    pub(crate) fn is_taken(&self, at: u64) -> bool {
        let (region, word, bit) = place(at);
        self.regions.get(&region).is_some_and(|region| region.begins[word] & bit != 0)
    }

    /// Whether it is a record's.
    pub(crate) fn is_record(&self, at: u64) -> bool {
        self.records.contains(&at)
    }

    /// Takes the block of `size` bytes at `at`, a place in the heap.
    pub(crate) fn claim(&mut self, at: u64, size: u64) -> Claim {
        let class = SIZES.partition_point(|class| u64::from(*class) < size);
        let claim = match SIZES.get(class) {
            Some(block) => self.claim_small(at, class, u64::from(*block)),
            None => self.claim_large(at, size),
        };
        if matches!(claim, Claim::New(_)) {
            let (region, word, bit) = place(at);
            self.region(region).begins[word] |= bit;
        }
        claim
    }

    /// The same for a record.
    pub(crate) fn claim_record(&mut self, at: u64, size: u64) -> Claim {
        let claim = self.claim(at, size);
        if matches!(claim, Claim::New(_)) {
            self.records.insert(at);
            self.look_at(at);
        }
        claim
    }

    fn claim_small(&mut self, at: u64, class: usize, block: u64) -> Claim {
        let (segment, within) = (at / SEGMENT, at % SEGMENT);
        if within % block != 0 || within + block > SEGMENT {
            let start = segment * SEGMENT;
            return Claim::Refused(format!(
                "needs a block of {block} bytes, and none begins there (they follow each other from {start:#x} on)"
            ));
        }
        let known = self.regions.get(&(segment / SEGMENTS)).map_or(0, |region| region.classes[(segment % SEGMENTS) as usize]);
        match known {
            0 => {
                if let Some((large, _)) = self.large.range(..=at).next_back().filter(|(_, end)| **end > at) {
                    return Claim::Refused(format!("lies in the large block at {large:#x}"));
                }
                self.region(segment / SEGMENTS).classes[(segment % SEGMENTS) as usize] = class as u8 + 1;
            }
            known if usize::from(known) != class + 1 => {
                let other = SIZES[usize::from(known) - 1];
                return Claim::Refused(format!("needs a block of {block} bytes, and its segment has blocks of {other}"));
            }
            _ => {}
        }
        if self.is_taken(at) { Claim::Again } else { Claim::New(block) }
    }

    fn claim_large(&mut self, at: u64, size: u64) -> Claim {
        if !at.is_multiple_of(SEGMENT) {
            return Claim::Refused(format!("has {size} bytes, more than a segment, and does not begin at one"));
        }
        let Some(block) = size.checked_next_multiple_of(SEGMENT).filter(|block| *block <= self.frontier - at) else {
            return Claim::Refused(format!("has {size} bytes, and ends behind the frontier {:#x}", self.frontier));
        };
        let end = at + block;
        if self.large.get(&at) == Some(&end) {
            return Claim::Again;
        }
        if let Some((other, _)) = self.large.range(..end).next_back().filter(|(_, end)| **end > at) {
            return Claim::Refused(format!("has {size} bytes, and overlaps the large block at {other:#x}"));
        }
        if let Some(segment) = self.small_between(at / SEGMENT, end / SEGMENT) {
            return Claim::Refused(format!("has {size} bytes, and overlaps the small blocks at {:#x}", segment * SEGMENT));
        }
        self.large.insert(at, end);
        Claim::New(block)
    }

    /// The first segment from `first` on and before `end` that has small blocks. No large block begins there, so of the regions between
    /// every one has some: however long the stretch is, three are looked at.
    fn small_between(&self, first: u64, end: u64) -> Option<u64> {
        let mut regions = self.numbers.range(first / SEGMENTS..end.div_ceil(SEGMENTS));
        regions.find_map(|number| {
            let classes = &self.regions[number].classes;
            let segments = number * SEGMENTS..(number + 1) * SEGMENTS;
            segments.zip(classes).find(|(at, class)| **class != 0 && (first..end).contains(at)).map(|(at, _)| at)
        })
    }

    fn region(&mut self, number: u64) -> &mut Region {
        self.regions.entry(number).or_insert_with(|| {
            self.numbers.insert(number);
            Box::new(Region { classes: [0; SEGMENTS as usize], begins: [0; WORDS], looked_at: [0; WORDS] })
        })
    }

    /// What the taken block at `at` refers to has been looked at.
    pub(crate) fn look_at(&mut self, at: u64) {
        let (region, word, bit) = place(at);
        self.region(region).looked_at[word] |= bit;
    }

    /// Calls `each` with taken blocks that were not looked at, until it has had enough.
    pub(crate) fn not_looked_at(&self, mut each: impl FnMut(u64) -> bool) {
        for (number, region) in &self.regions {
            for (word, (begins, looked_at)) in region.begins.iter().zip(&region.looked_at).enumerate() {
                let mut left = begins & !looked_at;
                while left != 0 {
                    let granule = word as u64 * 64 + u64::from(left.trailing_zeros());
                    if !each(number * REGION + granule * 16) {
                        return;
                    }
                    left &= left - 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = HEAP_START;

    fn refused(claim: Claim, why: &str) {
        assert!(matches!(&claim, Claim::Refused(what) if what.contains(why)), "{claim:?}");
    }

    #[test]
    fn blocks_are_taken_once_and_keep_apart() {
        let mut blocks = Blocks::new(AT + 100 * SEGMENT);
        assert_eq!(blocks.claim(AT, 24), Claim::New(32));
        assert_eq!(blocks.claim(AT, 32), Claim::Again);
        assert_eq!(blocks.claim(AT + 4064, 17), Claim::New(32));
        refused(blocks.claim(AT + 16, 24), "none begins there");
        refused(blocks.claim(AT + 48, 48), "has blocks of 32");
        assert_eq!(blocks.claim(AT + 4 * SEGMENT, SEGMENT + 1), Claim::New(2 * SEGMENT));
        assert_eq!(blocks.claim(AT + 4 * SEGMENT, 2 * SEGMENT), Claim::Again);
        refused(blocks.claim(AT + 4 * SEGMENT, 3 * SEGMENT), "overlaps the large block");
        refused(blocks.claim(AT + 5 * SEGMENT + 32, 32), "lies in the large block");
        refused(blocks.claim(AT + 3 * SEGMENT, 4 * SEGMENT), "overlaps the large block");
        refused(blocks.claim(AT + 16, 5000), "does not begin at one");
        refused(blocks.claim(AT + 99 * SEGMENT, 5000), "behind the frontier");
        refused(blocks.claim(AT + 99 * SEGMENT, u64::MAX), "behind the frontier");
        refused(blocks.claim(AT, 5000), "small blocks");
        assert_eq!(blocks.claim(AT + 6 * SEGMENT, 4096), Claim::New(4096));
        // The last block of a segment whose size does not divide it.
        assert_eq!(blocks.claim(AT + 7 * SEGMENT + 2 * 1360, 1360), Claim::New(1360));
        refused(blocks.claim(AT + 8 * SEGMENT + 3 * 1360, 1360), "none begins there");
    }

    /// The format asks for the smallest class; the allocator in Rust prefers whole lines for sizes that are. Both are the same.
    #[test]
    fn whole_lines_are_the_smallest_class_anyway() {
        for size in (64..=4096).step_by(64) {
            let smallest = SIZES.iter().find(|class| **class >= size).unwrap();
            assert!(smallest % 64 == 0, "{size}: {smallest}");
        }
    }

    #[test]
    fn what_was_not_looked_at_is_found() {
        let mut blocks = Blocks::new(AT + 1000 * SEGMENT);
        let places = [AT, AT + 64, AT + 300 * SEGMENT, AT + 999 * SEGMENT + 32];
        places.iter().for_each(|at| assert!(matches!(blocks.claim(*at, 32), Claim::New(32))));
        blocks.look_at(places[1]);
        let mut found = Vec::new();
        blocks.not_looked_at(|at| {
            found.push(at);
            true
        });
        found.sort_unstable();
        assert_eq!(found, [places[0], places[2], places[3]]);
    }
}
