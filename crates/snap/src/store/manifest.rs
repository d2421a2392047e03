//! File `manifest` of a checkpoint: when it was taken, the copies of files that belong to it, and what its writer had to say.
//!
//! ```text
//!   seconds since 1970 8 | nanoseconds 4 | number of files 4 | uuid of the checkpoint that it was begun on, or 0 16
//!   for each file, in the order of files/0, files/1, ...:  length 8 | checksum 8, 0: none | bytes of the name 4 | 0 4 | name
//!   the writer's own bytes, to the end
//! ```
//!
//! What must always hold: the store does not look into the writer's bytes; it gives back exactly what it was given.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytemuck::{Pod, Zeroable, bytes_of};
use uuid::Uuid;

use super::not_usable;
use super::sealed::Fields;
use crate::Result;

/// A file of the process that a checkpoint holds a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// What it was called when it was attached.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// Of its bytes; `None` where they were cloned without being read.
    pub(super) sum: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub taken: SystemTime,
    /// The identity that its writer asked for as its base; nil: none.
    pub base: Uuid,
    pub attached: Vec<Attached>,
    pub blob: Vec<u8>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    seconds: u64,
    nanos: u32,
    files: u32,
    base: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct FileHead {
    len: u64,
    sum: u64,
    name_len: u32,
    zero: u32,
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let since = self.taken.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let head = Head {
            seconds: since.as_secs(),
            nanos: since.subsec_nanos(),
            files: self.attached.len() as u32,
            base: *self.base.as_bytes(),
        };
        let mut body = bytes_of(&head).to_vec();
        for file in &self.attached {
            let head = FileHead { len: file.len, sum: file.sum.unwrap_or(0), name_len: file.name.len() as u32, zero: 0 };
            body.extend_from_slice(bytes_of(&head));
            body.extend_from_slice(file.name.as_bytes());
        }
        body.extend_from_slice(&self.blob);
        body
    }

    pub(super) fn decode(body: &[u8], path: &Path) -> Result<Manifest> {
        Self::fields(Fields(body)).ok_or_else(|| not_usable(path, "does not hold what a manifest holds"))
    }

    fn fields(mut fields: Fields) -> Option<Manifest> {
        let head: Head = fields.one()?;
        let taken = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(head.seconds))?;
        let taken = taken.checked_add(Duration::from_nanos(head.nanos.into()))?;
        let mut attached = Vec::new();
        for _ in 0..head.files {
            let file: FileHead = fields.one()?;
            let name = String::from_utf8(fields.bytes(file.name_len.into())?.to_vec()).ok()?;
            attached.push(Attached { name, len: file.len, sum: (file.sum != 0).then_some(file.sum) });
        }
        Some(Manifest { taken, base: Uuid::from_bytes(head.base), attached, blob: fields.0.to_vec() })
    }
}
