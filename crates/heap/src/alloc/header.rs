//! What the allocator writes into the heap: a line for each run of chunks, sixteen bytes for each block.
//!
//! ```text
//!  run header (a line of the table)                          block header (first 16 bytes of a block)
//!  0   magic "TwR1" │ kind │ class │ flags │ 0               0  tag    mix(seal, offset)
//!  8   length in chunks                                      8  info   27 bits: state, class, size
//!  16  seal (slab) or 0                                                37 bits: check of tag and info
//!  24  requested size (large) or 0
//!  32  0, 0, 0
//!  56  check: XXH3 of the above, seeded with the line's offset
//! ```
//!
//! An all-zero run header was never written, nor was anything in its chunk. The *seal* is drawn at random when a slab is carved. A slab carved from chunks
//! that were never used is *clean*: each of its block headers is zero (never allocated) or valid, everything else is damage.
//! One carved from used chunks has other people's bytes where its never-allocated blocks will have their headers: without
//! the seal these read as "never allocated". What this slab did not write passes for one of its live headers with
//! probability 2^-101 per block, and for a damaged one with 2^-46 (a false alarm of the offline check); both only where a
//! slab is not clean. No earlier header of the same place does: a slab is given up only when all its headers say free.
//! A tag without its info, or a live info without its tag, is reported as damage; when both halves of a header in a slab
//! that is not clean are overwritten, the block cannot be told from one never allocated.

use super::layout::{CHUNK, CLASSES, LINE, SLAB_CHUNKS};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const MAGIC: u32 = u32::from_le_bytes(*b"TwR1");
const FLAG_CLEAN: u8 = 1;
const LIVE: u32 = 1;
const FREE: u32 = 2;
/// Bits of a block's info word before its check.
const INFO_BITS: u32 = 27;
const SIZE_BITS: u32 = 18;
const CLASS_BITS: u32 = 7;

const _: () = assert!(CHUNK < 1 << SIZE_BITS && CLASSES <= 1 << CLASS_BITS && SIZE_BITS + CLASS_BITS + 2 == INFO_BITS);

/// The words of a line.
pub(super) type Line = [u64; LINE / 8];

/// What a run of chunks is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No header was ever written: of a chunk by itself, which nothing was ever stored in.
    Unwritten,
    Free,
    Slab {
        class: u8,
        seal: u64,
    },
    Large {
        size: u64,
    },
}

/// A run of chunks as its header line describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunHeader {
    pub(super) kind: Kind,
    /// Length in chunks.
    pub(super) len: u32,
    /// No byte of these chunks was ever written before they became this run.
    pub(super) clean: bool,
}

impl RunHeader {
    /// The line to be written at offset `off`.
    pub(super) fn encode(&self, off: u64) -> Line {
        let (kind, class, seal, size) = match self.kind {
            Kind::Unwritten => unreachable!("what is written is not unwritten"),
            Kind::Free => (1u64, 0, 0, 0),
            Kind::Slab { class, seal } => (2, class, seal, 0),
            Kind::Large { size } => (3, 0, 0, size),
        };
        let flags = if self.clean { FLAG_CLEAN } else { 0 };
        let head = u64::from(MAGIC) | kind << 32 | u64::from(class) << 40 | u64::from(flags) << 48;
        let mut line = [head, u64::from(self.len), seal, size, 0, 0, 0, 0];
        line[7] = line_check(&line, off);
        line
    }

    /// Reads the line at offset `off`: `None` if it was never written.
    pub(super) fn decode(line: &Line, off: u64) -> Result<Option<Self>, &'static str> {
        if line.iter().all(|&word| word == 0) {
            return Ok(None);
        }
        if line[0] as u32 != MAGIC {
            return Err("run header without its magic");
        }
        if line[7] != line_check(line, off) {
            return Err("run header with a wrong checksum");
        }
        let class = (line[0] >> 40) as u8;
        let kind = match (line[0] >> 32) as u8 {
            1 => Kind::Free,
            2 if usize::from(class) < CLASSES => Kind::Slab { class, seal: line[2] },
            3 => Kind::Large { size: line[3] },
            _ => return Err("run header of an unknown kind"),
        };
        let len = u32::try_from(line[1]).map_err(|_| "run header with an impossible length")?;
        let fits = match kind {
            Kind::Free | Kind::Unwritten => len > 0,
            Kind::Slab { class, .. } => len == u32::from(SLAB_CHUNKS[usize::from(class)]),
            Kind::Large { size } => len > 0 && size <= u64::from(len) * CHUNK,
        };
        if !fits {
            return Err("run header with an impossible length");
        }
        Ok(Some(Self { kind, len, clean: (line[0] >> 48) as u8 & FLAG_CLEAN != 0 }))
    }
}

fn line_check(line: &Line, off: u64) -> u64 {
    let mut bytes = [0; LINE - 8];
    for (to, word) in bytes.chunks_exact_mut(8).zip(line) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64_with_seed(&bytes, off)
}

/// The part of a slab's description that block headers are checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlabKey {
    pub(super) seal: u64,
    pub(super) class: u8,
    pub(super) clean: bool,
}

/// What the two words at a block's start say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Allocated, with this requested size.
    Live(usize),
    /// Freed; the size it had.
    Free(usize),
    /// Never allocated since its slab was carved.
    Unwritten,
    /// Neither: the header was overwritten by something else.
    Damaged(&'static str),
}

impl SlabKey {
    /// The first word of every header of the block at offset `off`.
    #[inline]
    pub(super) fn tag(&self, off: u64) -> u64 {
        mix(self.seal ^ off, 0x9E37_79B9_7F4A_7C15)
    }

    /// Second word of a live block of `size` requested bytes.
    #[inline]
    pub(super) fn live(&self, tag: u64, size: usize) -> u64 {
        self.info(tag, size, LIVE)
    }

    /// Second word of a freed block.
    #[inline]
    pub(super) fn free(&self, tag: u64, size: usize) -> u64 {
        self.info(tag, size, FREE)
    }

    #[inline]
    fn info(&self, tag: u64, size: usize, state: u32) -> u64 {
        let info = size as u64 | u64::from(self.class) << SIZE_BITS | u64::from(state) << (SIZE_BITS + CLASS_BITS);
        info | info_check(tag, info) << INFO_BITS
    }

    /// Reads the header words of the block whose tag is `tag`.
    #[inline]
    pub(super) fn read(&self, tag: u64, words: [u64; 2]) -> Seen {
        let size = (words[1] & ((1 << SIZE_BITS) - 1)) as usize;
        if words == [tag, self.live(tag, size)] {
            return Seen::Live(size);
        }
        self.read_other(tag, words, size)
    }

    #[cold]
    #[inline(never)]
    fn read_other(&self, tag: u64, words: [u64; 2], size: usize) -> Seen {
        match (words[0] == tag, words[1]) {
            (true, info) if info == self.free(tag, size) => Seen::Free(size),
            (true, _) => Seen::Damaged("block header with its tag but without valid info"),
            (_, info) if info == self.live(tag, size) => Seen::Damaged("live block header without its tag"),
            _ if self.clean && words != [0, 0] => Seen::Damaged("block header overwritten"),
            _ => Seen::Unwritten,
        }
    }
}

#[inline]
fn info_check(tag: u64, info: u64) -> u64 {
    mix(tag ^ info, 0xD6E8_FEB8_6659_FD93) >> INFO_BITS
}

/// Folds the 128-bit product: every bit of both factors reaches every bit of the result.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xA076_1D64_78BD_642F) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_headers_come_back_and_notice_every_flipped_bit() {
        let kinds = [Kind::Free, Kind::Slab { class: 16, seal: 0x1234_5678_9ABC_DEF0 }, Kind::Large { size: 100_000 }];
        for kind in kinds {
            let header = RunHeader { kind, len: 1, clean: true };
            let line = header.encode(4096);
            assert_eq!(RunHeader::decode(&line, 4096), Ok(Some(header)));
            assert!(RunHeader::decode(&line, 4160).is_err(), "a header moved elsewhere is refused");
            for bit in 0..LINE * 8 {
                let mut bad = line;
                bad[bit / 64] ^= 1 << (bit % 64);
                assert!(RunHeader::decode(&bad, 4096).is_err(), "bit {bit}");
            }
        }
        assert_eq!(RunHeader::decode(&[0; 8], 4096), Ok(None));
    }

    #[test]
    fn block_headers_come_back_and_notice_flipped_bits() {
        for clean in [true, false] {
            let key = SlabKey { seal: 0xFEED_5EA1_0000_0001, class: 3, clean };
            let tag = key.tag(640);
            assert_eq!(key.read(tag, [tag, key.live(tag, 200)]), Seen::Live(200));
            assert_eq!(key.read(tag, [tag, key.free(tag, 0)]), Seen::Free(0));
            assert_eq!(key.read(tag, [0, 0]), Seen::Unwritten);
            for bit in 0..128 {
                let mut bad = [tag, key.live(tag, 200)];
                bad[bit / 64] ^= 1 << (bit % 64);
                assert!(matches!(key.read(tag, bad), Seen::Damaged(_)), "bit {bit}");
            }
            let earlier = SlabKey { seal: 77, ..key };
            let stale = [earlier.tag(640), earlier.free(earlier.tag(640), 200)];
            assert_eq!(matches!(key.read(tag, stale), Seen::Damaged(_)), clean, "an earlier slab's header is no header here");
        }
    }
}
