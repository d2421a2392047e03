//! What an FPTree keeps in its arena.
//!
//! ```text
//!   user area:  line 0       magic  entries  head leaf  checksum                written once, before the arena has a name
//!               line 1..=64  micro-logs of splits:  leaf  new leaf  - - -       idle unless both are there; see `split`
//!
//!   leaf (896 bytes, line-aligned):
//!     line 0    | version | bitmap | 48 fingerprints              |             version: in the view alone, see `leaf`
//!     line 1    | next | tag | - - - - - -                        |             next leaf in key order, 0: none
//!     line 2..  | key word, value | x 48                          |             an entry never crosses a line
//! ```
//!
//! What must always hold: an entry counts when its bit is set, and whatever it consists of (its words, its fingerprint, its key's blob)
//! was durable before the bit could be; the leaves follow each other in key order; the head leaf is always the first.

use towa_alloc::Arena;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::fingerprint::SLOTS;
use crate::{Error, Result};

/// Bytes of a leaf.
pub(super) const LEAF_LEN: usize = LEAF_WORDS * 8;
/// Words of a leaf.
pub(super) const LEAF_WORDS: usize = 16 + 2 * SLOTS;
/// Word of the bitmap.
pub(super) const BITMAP: usize = 1;
/// First word of the fingerprints.
pub(super) const FINGERPRINTS: usize = 2;
/// Word of the next pointer.
pub(super) const NEXT: usize = 8;
/// Word of the tag.
pub(super) const TAG: usize = 9;
/// First word of the entries.
pub(super) const ENTRIES: usize = 16;
/// In every leaf, so that a pointer to something else is noticed.
pub(super) const LEAF_TAG: u64 = u64::from_le_bytes(*b"FPTLEAF1");
/// Bytes of the user area.
pub(super) const USER_LEN: u64 = 8192;
/// Micro-logs: so many splits at a time.
pub(super) const LOGS: u32 = 64;
/// Entries of a leaf; fewer are for tests, which see splits sooner.
pub const ENTRIES_MAX: u32 = SLOTS as u32;
/// Fewest entries of a leaf.
pub const ENTRIES_MIN: u32 = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"TOWAFPT1");

const _: () = assert!(LEAF_LEN == 896 && LEAF_LEN.is_multiple_of(towa_media::LINE));

/// The record in line 0 of the user area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    pub entries: u32,
    pub head: u64,
}

impl Root {
    pub fn write(self, arena: &Arena) -> Result<()> {
        let at = arena.user_area().start;
        let words = [MAGIC, u64::from(self.entries), self.head];
        arena.store(at, &[words[0], words[1], words[2], sum(arena, words)])?;
        arena.write_back(at, 32);
        Ok(())
    }

    pub fn read(arena: &Arena) -> Result<Root> {
        let damaged = |what: &str| Err(Error::Damaged { pool: arena.location().into(), what: what.into() });
        let user = arena.user_area();
        if user.end - user.start != USER_LEN {
            return damaged("the area of the tree's record has another length");
        }
        let words = [0, 8, 16, 24].map(|at| arena.load(user.start + at));
        if words[0] != MAGIC || words[3] != sum(arena, [words[0], words[1], words[2]]) {
            return damaged("the tree's record has a wrong checksum");
        }
        let entries = words[1] as u32;
        if !(ENTRIES_MIN..=ENTRIES_MAX).contains(&entries) || u64::from(entries) != words[1] {
            return damaged("the tree's record has an impossible number of entries");
        }
        if words[2] == 0 {
            return damaged("the tree's record has no first leaf");
        }
        Ok(Root { entries, head: words[2] })
    }
}

/// Offset of a micro-log.
pub(super) fn log_at(arena: &Arena, log: u32) -> u64 {
    arena.user_area().start + (1 + u64::from(log)) * towa_media::LINE as u64
}

fn sum(arena: &Arena, words: [u64; 3]) -> u64 {
    let mut bytes = [0; 40];
    bytes[..16].copy_from_slice(&arena.uuid());
    for (bytes, word) in bytes[16..].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64_with_seed(&bytes, MAGIC)
}

#[cfg(test)]
mod tests {
    use towa_media::RamMedium;

    use super::*;

    /// Fuzzing found that such a tree opened, of no leaves, and was read at offset 0.
    #[test]
    fn a_record_without_a_first_leaf_is_refused() {
        let options = towa_alloc::CreateOptions { len: 64 << 10, user_len: USER_LEN, kind: "a test" };
        let arena = Arena::create(RamMedium::anonymous(), &options).unwrap();
        Root { entries: 4, head: 12288 }.write(&arena).unwrap();
        assert_eq!(Root::read(&arena).unwrap().head, 12288);
        Root { entries: 4, head: 0 }.write(&arena).unwrap();
        assert!(Root::read(&arena).unwrap_err().to_string().contains("no first leaf"));
    }
}
