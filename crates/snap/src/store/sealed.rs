//! The frame of the small files of a store: `store`, `manifest`, `index`.
//!
//! ```text
//!   0  magic 8 | version 4 | 0 4 | uuid of the store 16 | number 8 | uuid of the checkpoint 16
//!   56 bytes of the body 8 | xxh3 of the body 8 | xxh3 of 0..72 8
//!   80 body
//! ```
//!
//! What must always hold: a file that is read is exactly one that was written whole, by a version that is known, for this store and
//! for this checkpoint; anything else is refused with a word that says what is wrong, and nothing of it is used. Reading one takes no
//! more memory than its kind may need.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytemuck::{Pod, Zeroable, bytes_of, pod_read_unaligned};
use towa_media::files;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{CheckpointId, failed, not_usable};
use crate::sys::memory;
use crate::{Error, Result};

/// The version of all formats of a store.
const VERSION: u32 = 1;

const _: () =
    assert!(cfg!(target_endian = "little"), "the formats are little-endian, and are read and written as they lie in memory");

/// Which of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `store`: what the directory is.
    Store,
    /// `manifest`: what a checkpoint is.
    Manifest,
    /// `index`: where its pages are.
    Index,
}

impl Kind {
    const fn magic(self) -> [u8; 8] {
        match self {
            Kind::Store => *b"TSNAPDIR",
            Kind::Manifest => *b"TSNAPMAN",
            Kind::Index => *b"TSNAPIDX",
        }
    }

    /// More than a body of this kind can be: descriptions of processes with all that lies in their pipes, an index with a checksum
    /// for each page of 4 TiB.
    const fn most(self) -> u64 {
        match self {
            Kind::Store => 4096,
            Kind::Manifest => 1 << 30,
            Kind::Index => 8 << 30,
        }
    }

    fn seed(self) -> u64 {
        u64::from_le_bytes(self.magic())
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Header {
    magic: [u8; 8],
    version: u32,
    zero: u32,
    store: [u8; 16],
    number: u64,
    checkpoint: [u8; 16],
    body_len: u64,
    body_sum: u64,
    header_sum: u64,
}

const HEADER: usize = size_of::<Header>();
/// A body of so many bytes is read however little memory there is.
const MUCH: u64 = 64 << 20;
const SUMMED: usize = HEADER - 8;
const _: () = assert!(HEADER == 80);

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The store that it belongs to.
    pub store: Uuid,
    /// The checkpoint that it belongs to; of `store`, number 0 and no uuid.
    pub checkpoint: CheckpointId,
}

/// Writes a new file, and makes its bytes durable; its name is the caller's to sync.
pub(super) fn write(path: &Path, kind: Kind, owner: &Owner, body: &[u8]) -> Result<()> {
    if body.len() as u64 > kind.most() {
        let what =
            format!("{}: {} bytes are to be written, {} are the most that are read", path.display(), body.len(), kind.most());
        return Err(Error::Unsupported { what, remedy: "let the process have less in its pipes and sockets, or less memory" });
    }
    let mut header = Header {
        magic: kind.magic(),
        version: VERSION,
        zero: 0,
        store: *owner.store.as_bytes(),
        number: owner.checkpoint.number,
        checkpoint: *owner.checkpoint.uuid.as_bytes(),
        body_len: body.len() as u64,
        body_sum: xxh3_64_with_seed(body, kind.seed()),
        header_sum: 0,
    };
    header.header_sum = xxh3_64_with_seed(&bytes_of(&header)[..SUMMED], kind.seed());
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes_of(&header))?;
        file.write_all(body)?;
        files::sync(&file)
    };
    write().map_err(|e| failed("writing", path, e))
}

/// The owner and the body of a file that was written for `store` (any, if `None`) and `number`.
pub(super) fn read(file: &File, path: &Path, kind: Kind, store: Option<&Uuid>, number: u64) -> Result<(Owner, Vec<u8>)> {
    let refuse = |what: String| Err(not_usable(path, what));
    let len = file.metadata().map_err(|e| failed("reading the status of", path, e))?.len();
    let mut bytes = Vec::new();
    file.take(HEADER as u64).read_to_end(&mut bytes).map_err(|e| failed("reading", path, e))?;
    if bytes.len() >= 8 && bytes[..8] != kind.magic() {
        return refuse("is a file of something else".into());
    }
    if bytes.len() < HEADER {
        return refuse(format!("is cut off: {len} bytes are less than its header"));
    }
    let header: Header = pod_read_unaligned(&bytes);
    if header.version > VERSION {
        return refuse(format!(
            "is of version {}, newer than the {VERSION} that this program knows; use a newer one",
            header.version
        ));
    }
    if header.header_sum != xxh3_64_with_seed(&bytes[..SUMMED], kind.seed()) {
        return refuse("is damaged: its header does not match its checksum".into());
    }
    if header.version != VERSION || header.zero != 0 {
        return refuse("says of itself what this program does not understand".into());
    }
    let uuid = Uuid::from_bytes(header.store);
    if store.is_some_and(|store| *store != uuid) {
        return refuse(format!("belongs to another directory of checkpoints ({uuid})"));
    }
    if header.number != number {
        return refuse(format!("belongs to checkpoint {}, not {number}", header.number));
    }
    if header.body_len > kind.most() || header.body_len != len - HEADER as u64 {
        let said = header.body_len.saturating_add(HEADER as u64);
        return refuse(format!("is cut off or too long: {len} bytes where its header says {said}"));
    }
    // A body that was made to be large must not take the memory of the machine.
    let most = memory::available() / 4;
    if header.body_len > MUCH.max(most) {
        return refuse(format!("takes {} bytes of memory to read, of which {most} can be had here", header.body_len));
    }
    let mut body = Vec::with_capacity(header.body_len as usize);
    file.take(header.body_len).read_to_end(&mut body).map_err(|e| failed("reading", path, e))?;
    if body.len() as u64 != header.body_len || header.body_sum != xxh3_64_with_seed(&body, kind.seed()) {
        return refuse("is damaged: it does not match its checksum".into());
    }
    let checkpoint = CheckpointId { number, uuid: Uuid::from_bytes(header.checkpoint) };
    Ok((Owner { store: uuid, checkpoint }, body))
}

/// The numbers and names in a body, from front to back; `None` when it ends too early.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(head)
    }

    /// The next plain value.
    pub(super) fn one<T: Pod>(&mut self) -> Option<T> {
        Some(pod_read_unaligned(self.bytes(size_of::<T>() as u64)?))
    }

    /// The next `count` plain values.
    pub(super) fn many<T: Pod>(&mut self, count: u64) -> Option<Vec<T>> {
        let bytes = self.bytes(count.checked_mul(size_of::<T>() as u64)?)?;
        Some(bytes.chunks_exact(size_of::<T>()).map(pod_read_unaligned).collect())
    }
}
