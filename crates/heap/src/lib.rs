//! **heap**: a DRAM working copy, its durable image, a redo log between them, and recovery.
//!
//! What the `epoch` and `tx` doors have in common. They differ only in *when a set of writes becomes one committed unit*, and so in
//! their redo log. That of `epoch` pools is a ring of lines ([`log`]); this crate calls its unit an **epoch** and does not ask how it
//! came about. That of `tx` pools are [`lanes`] of **records**, words with a timestamp, one lane for each thread.
//!
//! ```text
//!   program ──reads, writes──► working copy (DRAM, at a fixed address)
//!                                   │ lines of a finished epoch
//!                                   ▼
//!                              redo log  ──commit record──►  [durable from here on]
//!                                   │ replay (apply)
//!                                   ▼
//!                              image (durable, as of an epoch's end) ──► cut the log
//! ```
//!
//! What must always hold:
//! 1. image + live log = the heap at the end of the newest committed epoch (as of the newest records), whatever was interrupted;
//! 2. the image is written only from committed epochs (durable records), and only after their commit is durable;
//! 3. the log is cut only behind a durable image.
//!
//! Files of a pool: `superblock`, `image`, `log`, `lock`; their bytes are described in `docs/format.md`.

pub mod alloc;
mod backup;
mod checksum;
mod create;
mod describe;
mod error;
mod heap;
mod image;
pub mod lanes;
pub mod log;
mod open;
mod origin;
mod overlay;
mod recovery;
mod roots;
mod stamp;
pub mod superblock;
mod tables;
#[cfg(test)]
mod tests;
pub mod undo;
mod verify;
mod working;

pub use backup::{BackupReport, backup};
pub use create::{CreateOptions, LogShape, default_log_len, default_undo_len};
pub use describe::{Description, describe};
pub use error::{Error, Result};
pub use heap::Heap;
pub use image::applied_together;
pub use open::{OpenOptions, open_or_create};
pub use origin::accept_copy;
pub use recovery::Recovery;
pub use roots::{ROOT_NAME_MAX, Root, RootTable};
pub use verify::{VerifyReport, verify};

/// Names of a pool's regions.
pub mod names {
    /// Two checksummed slots that say what the pool is and where its log begins.
    pub const SUPERBLOCK: &str = "superblock";
    /// A superblock being created; renamed when complete.
    pub const SUPERBLOCK_NEW: &str = "superblock.new";
    /// The durable heap.
    pub const IMAGE: &str = "image";
    /// Commit slots and frames; of the tx door: cut slots and lanes.
    pub const LOG: &str = "log";
}
