//! Errors of arenas: which file, what is wrong with it, and what to do.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an arena could not be created, opened, or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium refused or failed.
    #[error(transparent)]
    Media(#[from] towa_media::Error),
    /// Not an arena.
    #[error("{pool}: not a Towa arena: {why}; nothing was changed")]
    Foreign {
        /// Where.
        pool: String,
        /// What was found instead.
        why: String,
    },
    /// Written by a newer Towa.
    #[error("{pool}: format version {found}, this program knows up to {known}; use a newer Towa; nothing was changed")]
    Newer {
        /// Where.
        pool: String,
        /// Version on the medium.
        found: u64,
        /// Newest version known here.
        known: u64,
    },
    /// An arena of something else.
    #[error("{pool}: holds {found:?}, not {wanted:?}; open it as what it is; nothing was changed")]
    WrongKind {
        /// Where.
        pool: String,
        /// What it holds.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// A structure does not check out.
    #[error("{pool}: damaged: {what}; restore a copy")]
    Damaged {
        /// Where.
        pool: String,
        /// Which structure and how.
        what: String,
    },
    /// There is one already.
    #[error("{pool}: an arena is there already; open it, or choose another directory")]
    Exists {
        /// Where.
        pool: String,
    },
    /// There is none.
    #[error("{pool}: no arena there; create one first")]
    Missing {
        /// Where.
        pool: String,
    },
    /// A size that cannot be.
    #[error("{what}")]
    Options {
        /// Which option, the value, the range.
        what: String,
    },
    /// No room for a block. Nothing was changed.
    #[error(
        "{pool}: no room for a block of {wanted} bytes in an arena of {len}, or its medium is full; remove something, make space there, or create a larger one"
    )]
    OutOfSpace {
        /// Where.
        pool: String,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes of the arena.
        len: u64,
    },
    /// An earlier write or sync failed: what is durable is unknown.
    #[error("{pool}: an earlier write failed, and what is durable is unknown; open it again to recover")]
    Failed {
        /// Where.
        pool: String,
    },
}
