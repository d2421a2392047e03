//! Errors of pools: which file, what is wrong with it, and what to do.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a pool could not be created, opened, or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium refused or failed.
    #[error(transparent)]
    Media(#[from] towa_media::Error),
    /// Not a Towa pool.
    #[error("{pool}: not a Towa pool: {why}; nothing was changed")]
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
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// Belongs to another door.
    #[error("{pool}: a pool of the {found} door, not of {wanted}; open it with that door; nothing was changed")]
    WrongDoor {
        /// Where.
        pool: String,
        /// Door on the medium.
        found: String,
        /// Door asked for.
        wanted: String,
    },
    /// A structure does not check out.
    #[error("{pool}: damaged: {what}; nothing was changed; restore a copy, or inspect it with `towa verify`")]
    Damaged {
        /// Where.
        pool: String,
        /// Which structure and how.
        what: String,
    },
    /// Its files are a copy that was made while a program had the pool open.
    #[error(
        "{pool}: its files are a copy of a pool that was in use, so they are of different moments; copy the pool with `towa backup`, or when it \
         is closed; if they were copied after a crash, while nothing used them, `towa recover --accept-copy` opens them; nothing was changed"
    )]
    CopiedWhileOpen {
        /// Where.
        pool: String,
    },
    /// A pool could not be copied.
    #[error("{pool}: {what}")]
    Backup {
        /// Where the pool is.
        pool: String,
        /// Why, and what to do.
        what: String,
    },
    /// A pool is there already.
    #[error("{pool}: a pool is there already; open it, or choose another directory")]
    Exists {
        /// Where.
        pool: String,
    },
    /// No pool there.
    #[error("{pool}: no pool there{hint}")]
    Missing {
        /// Where.
        pool: String,
        /// `: its creation was interrupted...`, or empty.
        hint: &'static str,
    },
    /// A size or address that cannot be.
    #[error("{what}")]
    Options {
        /// Which option, the value, the range.
        what: String,
    },
    /// The redo log has no room for the epoch: reservation at transaction start failed to keep it out.
    #[error("{pool}: the redo log of {capacity} bytes cannot hold this epoch; create the pool with a larger log")]
    LogFull {
        /// Where.
        pool: String,
        /// Bytes there are.
        capacity: u64,
    },
}
