//! The two records of a split program: one in ABC, the file that stays where it was; one in XYZ, its text in a store.
//!
//! ```text
//!   ABC: the program itself; same length, same bytes, but for the text, and for marks in the program headers
//!   ┌────────┬───────────────┬───────────────────────────────┬──────────────────┐
//!   │headers │ read-only data│ text: a record, then a hole   │ data, and so on  │
//!   └───┬────┴───────────────┴▲──────────────────────────────┴──────────────────┘
//!       │ PT_INTERP.p_offset  │ the path of our loader lies PATH_AT bytes into the record's page
//!       └─────────────────────┘
//!   XYZ: <store>/xyz/ab/cdef...xyz; the same offsets
//!   ┌────────┬─ ─ ─ ─ ─ ─ ─ ─┬───────────────────────────────┬─ ─ ─┬────────────┬────────┐
//!   │headers │     hole      │ text                          │     │sect. table │ record │  one page, the last
//!   └────────┴─ ─ ─ ─ ─ ─ ─ ─┴───────────────────────────────┴─ ─ ─┴────────────┴────────┘
//! ```
//!
//! What must hold: all numbers are little-endian; both records begin with a magic and a version and end with a checksum; the key is
//! the SHA-256 of the whole original file, and the first 128 bits of it are the name of XYZ. The loader (`loader/format.h`) reads the
//! same bytes.

use bytemuck::{Pod, Zeroable};

/// Size of a page, and the alignment of everything that is mapped.
pub const PAGE: u64 = 4096;
/// Mark in `p_flags` of each text segment of ABC (within PF_MASKOS, which the kernel and ld.so pass over).
pub const SPLIT_MARK: u32 = 0x0f20_0000;
/// First bytes of [`AbcRecord`].
pub const ABC_MAGIC: [u8; 8] = *b"TOWAABC1";
/// First bytes of [`XyzRecord`].
pub const XYZ_MAGIC: [u8; 8] = *b"TOWAXYZ1";
/// Version of both.
pub const VERSION: u32 = 1;
/// Where in the record's page the path of the loader lies; it ends with a zero byte.
pub const PATH_AT: u64 = 256;
/// Longest path of a store, in bytes: what is left of the record's page after the loader's own name.
pub const STORE_PATH_MAX: usize = 2048;
/// Name of the loader within a store.
pub const LOADER_NAME: &str = "ld-towa-xip.so";
/// Name of the audit object within a store.
pub const AUDIT_NAME: &str = "towa-xip-audit.so";
/// Most ranges that an XYZ can have.
pub const RANGES_MAX: usize = 64;

/// [`AbcRecord::flags`]: the program's libraries may be mapped from the store as well.
pub const ABC_LIBS: u32 = 1;

/// [`XyzRecord::flags`]: the text of a library; no other is ever mapped over one.
pub const XYZ_LIBRARY: u32 = 1;

/// What ABC says of itself. It lies at the start of a page of the first text segment, where the program's own text is not.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct AbcRecord {
    /// [`ABC_MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// [`ABC_LIBS`].
    pub flags: u32,
    /// SHA-256 of the original.
    pub key: [u8; 32],
    /// Length of the original in bytes, which is that of ABC.
    pub original_len: u64,
    /// Bytes of the store's path, which the loader's path begins with; a slash follows.
    pub store_len: u32,
    /// Zero.
    pub reserved: u32,
    /// Zero.
    pub unused: [u8; 176],
    /// XXH3-64 of all bytes of the record before this, followed by the path of the loader without its zero byte.
    pub checksum: u64,
    /// Zero: up to [`PATH_AT`].
    pub pad: [u8; 8],
}

/// A stretch of the original that XYZ holds, at the same offset.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Range {
    /// First byte, in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// One of the `RANGE_` constants.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}

/// [`Range::kind`]: file header and program headers, and what else is in their pages.
pub const RANGE_HEADER: u32 = 1;
/// [`Range::kind`]: a text segment, whole pages: to be mapped over it.
pub const RANGE_TEXT: u32 = 2;
/// [`Range::kind`]: read-only data, whole pages of a segment: to be mapped over it.
pub const RANGE_RODATA: u32 = 3;
/// [`Range::kind`]: section headers, symbols, links to debugging information and the head of the unwinding table, for those who look at XYZ
/// by itself.
pub const RANGE_RELATION: u32 = 4;

/// What XYZ says of itself: its last page.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct XyzRecord {
    /// [`XYZ_MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// How many of `ranges` there are.
    pub range_count: u32,
    /// SHA-256 of the original.
    pub key: [u8; 32],
    /// Length of the original in bytes.
    pub original_len: u64,
    /// [`XYZ_LIBRARY`].
    pub flags: u32,
    /// Bytes of `build_id` in use.
    pub build_id_len: u32,
    /// The linker's build-id, if there is one.
    pub build_id: [u8; 64],
    /// What is held, by offset.
    pub ranges: [Range; RANGES_MAX],
    /// SHA-256 of `ranges`, as far as they are in use, and of what they hold, one after the other.
    pub content: [u8; 32],
    /// Zero.
    pub unused: [[u8; 8]; 299],
    /// XXH3-64 of all before.
    pub checksum: u64,
}

const _: () = assert!(size_of::<AbcRecord>() == PATH_AT as usize && size_of::<XyzRecord>() == PAGE as usize);
