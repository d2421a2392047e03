//! The header: what an arena is, and how far it has ever been used.
//!
//! ```text
//!   file `arena`:  | header 4096 | user area (user_len) | segments ...                                     |
//!                    |                                  first            mark ▲                      len ▲
//!                    +- line 0, 1: identity, written once:  magic  version  uuid  len  user_len  kind  created  ...  checksum
//!                    +- line 8:    the high-water mark:     segments (40 bits) | checksum of them (24 bits)
//! ```
//!
//! What must always hold: every block that can be reached lies below the mark, and so does every byte that was ever provided with space.
//!
//! Update of the mark: provide the space, store the word, write back, fence; only then is anything beyond the old mark handed out.
//! Stopping before the fence leaves the old word or the new one, and nothing beyond the old one is used: both are right. **One** word is
//! enough, without a second slot, because no medium tears an aligned 8-byte word; its checksum is in the word itself.

use towa_media::{Access, Medium, Region};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Error, Result, SEGMENT};

/// First bytes of every arena.
pub const MAGIC: [u8; 8] = *b"TOWAAREN";
/// Version of the format written and read here.
pub const VERSION: u64 = 1;
/// Name of the file.
pub const NAME: &str = "arena";
/// Its name while it is being created.
pub(crate) const NAME_NEW: &str = "arena.new";
/// Longest name of a kind.
pub const KIND_LEN: usize = 16;
/// Bytes of the header.
pub(crate) const HEADER: u64 = SEGMENT;
/// Where the high-water mark is.
pub(crate) const MARK_AT: u64 = 512;
/// Longest arena: 1 TiB.
pub(crate) const LEN_MAX: u64 = 1 << 40;
const WORDS: usize = 16;
const MARK_BITS: u32 = 40;

/// What an arena is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub uuid: [u8; 16],
    pub len: u64,
    pub user_len: u64,
    /// What the user keeps in it, padded with zeroes.
    pub kind: [u8; KIND_LEN],
    pub created_unix_s: u64,
}

fn sum(seed: u64, words: &[u64]) -> u64 {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, seed).max(1)
}

fn halves(bytes: &[u8; 16]) -> [u64; 2] {
    let (low, high) = bytes.split_at(8);
    [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("eight bytes")))
}

fn joined(halves: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&halves[0].to_le_bytes());
    bytes[8..].copy_from_slice(&halves[1].to_le_bytes());
    bytes
}

impl Header {
    /// As stored.
    pub fn to_words(self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[0] = u64::from_le_bytes(MAGIC);
        words[1] = VERSION;
        words[2..4].copy_from_slice(&halves(&self.uuid));
        words[4] = self.len;
        words[5] = self.user_len;
        words[6..8].copy_from_slice(&halves(&self.kind));
        words[8] = self.created_unix_s;
        words[WORDS - 1] = sum(words[0], &words[..WORDS - 1]);
        words
    }

    /// The kind as text.
    pub fn kind(&self) -> String {
        String::from_utf8_lossy(&self.kind).trim_end_matches('\0').to_owned()
    }

    /// Reads and checks it; nothing is written.
    pub fn read(medium: &dyn Medium, region: &dyn Region) -> Result<Header> {
        let pool = medium.location();
        let damaged = |what: String| Err(Error::Damaged { pool: pool.clone(), what });
        let mut bytes = [0; WORDS * 8];
        let there = region.len().min(bytes.len() as u64) as usize;
        region.read(0, &mut bytes[..there])?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        if there < 8 || words[0] != u64::from_le_bytes(MAGIC) {
            return Err(Error::Foreign { pool, why: format!("file `{NAME}` does not begin with TOWAAREN") });
        }
        if there < bytes.len() {
            return damaged(format!("file `{NAME}` is truncated to {there} bytes"));
        }
        // A newer format may checksum differently: its version is worth more than our verdict on its checksum.
        if words[1] > VERSION {
            return Err(Error::Newer { pool, found: words[1], known: VERSION });
        }
        if words[WORDS - 1] != sum(words[0], &words[..WORDS - 1]) {
            return damaged("the header's checksum is wrong".into());
        }
        let header = Header {
            uuid: joined([words[2], words[3]]),
            len: words[4],
            user_len: words[5],
            kind: joined([words[6], words[7]]),
            created_unix_s: words[8],
        };
        let sane = words[1] == VERSION && check_lengths(header.len, header.user_len).is_ok();
        if !sane {
            return damaged("the header's fields contradict each other".into());
        }
        if region.len() != header.len {
            return damaged(format!("file `{NAME}` has {} bytes, not {}", region.len(), header.len));
        }
        Ok(header)
    }

    /// First segment that blocks may be in.
    pub fn first(&self) -> u64 {
        (HEADER + self.user_len) / SEGMENT
    }

    /// The word that says that segments below `mark` may hold blocks.
    pub fn mark_word(&self, mark: u64) -> u64 {
        let [low, high] = halves(&self.uuid);
        mark | sum(low ^ high, &[mark]) << MARK_BITS
    }

    /// The mark in a stored word.
    pub fn mark_of(&self, word: u64) -> Option<u64> {
        let mark = word & ((1 << MARK_BITS) - 1);
        (word == self.mark_word(mark) && (self.first()..=self.len / SEGMENT).contains(&mark)).then_some(mark)
    }
}

/// What an arena's directory shows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its identity.
    pub uuid: String,
    /// What is kept in it.
    pub kind: String,
    /// Capacity in bytes.
    pub len: u64,
    /// Bytes that were ever used.
    pub used: u64,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
}

/// Describes the arena on `medium`, while somebody uses it, too. Reads only, and checks only the header.
pub fn describe(medium: &dyn Medium) -> Result<Description> {
    let pool = medium.location();
    let region = match medium.open(NAME, Access::ReadOnly) {
        Err(towa_media::Error::NotFound { .. }) => return Err(Error::Missing { pool }),
        Err(towa_media::Error::NotRegular { .. }) => {
            return Err(Error::Foreign { pool, why: format!("`{NAME}` is not a regular file") });
        }
        other => other?,
    };
    let header = Header::read(medium, &*region)?;
    let mut word = [0; 8];
    region.read(MARK_AT, &mut word)?;
    let mark = header.mark_of(u64::from_le_bytes(word));
    let mark = mark.ok_or(Error::Damaged { pool, what: "the high-water mark's checksum is wrong".into() })?;
    Ok(Description {
        uuid: uuid::Uuid::from_bytes(header.uuid).to_string(),
        kind: header.kind(),
        len: header.len,
        used: mark * SEGMENT,
        created_unix_s: header.created_unix_s,
    })
}

/// Whether an arena can be of such lengths.
pub(crate) fn check_lengths(len: u64, user_len: u64) -> Result<()> {
    let whole = len.is_multiple_of(SEGMENT) && user_len.is_multiple_of(SEGMENT);
    if whole && user_len <= LEN_MAX && len <= LEN_MAX && len >= HEADER + user_len + SEGMENT {
        return Ok(());
    }
    let least = HEADER.saturating_add(user_len).saturating_add(SEGMENT);
    let what = format!("an arena of {len} bytes: not a multiple of {SEGMENT} between {least} bytes and 1 TiB");
    Err(Error::Options { what })
}
