//! Errors of media: what went wrong, on which bytes, and what to do about it.

use std::io;

/// Result of a medium's operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a medium refused or failed. `location` is a path or a word such as `sim`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No space left.
    #[error("{location}: no space left for {wanted} more bytes; free some space there or choose another path")]
    Full {
        /// Where.
        location: String,
        /// Bytes asked for.
        wanted: u64,
    },
    /// Another process owns it.
    #[error("{location}: in use by {holder}; one process owns a pool at a time, stop that one first")]
    Busy {
        /// Where.
        location: String,
        /// `process 1234`, or `another process` where unknown.
        holder: String,
    },
    /// The name is not there.
    #[error("{location}: not found")]
    NotFound {
        /// Where.
        location: String,
    },
    /// Something other than a regular file has the name: a directory, a symbolic link, a FIFO.
    #[error("{location}: is not a regular file; this is no pool of ours")]
    NotRegular {
        /// Where.
        location: String,
    },
    /// The name is taken.
    #[error("{location}: exists already")]
    Exists {
        /// Where.
        location: String,
    },
    /// The operating system refused.
    #[error("{location}: {doing}: {source}")]
    Io {
        /// Where.
        location: String,
        /// What was being done, as a gerund: `writing`, `mapping`.
        doing: &'static str,
        /// The system's word.
        source: io::Error,
    },
    /// The medium cannot do this.
    #[error("{location}: {what}")]
    Unsupported {
        /// Where.
        location: String,
        /// What is not possible and what to do instead.
        what: String,
    },
    /// Beyond the end of a region, or a write to one opened read-only: a bug of the caller, or a damaged length.
    #[error("{location}: {len} bytes at offset {off} lie outside the region of {region_len} bytes or may not be written")]
    Range {
        /// Where.
        location: String,
        /// First byte.
        off: u64,
        /// Length asked for.
        len: u64,
        /// Length there is.
        region_len: u64,
    },
}

impl Error {
    /// The error for `source`, met at `location` while `doing`; a full disk or quota becomes [`Error::Full`] for `wanted` bytes.
    pub(crate) fn from_io(location: impl Into<String>, doing: &'static str, wanted: u64, source: io::Error) -> Error {
        let location = location.into();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Error::Full { location, wanted },
            Some(libc::ENOENT) => Error::NotFound { location },
            Some(libc::EEXIST) => Error::Exists { location },
            // What O_NOFOLLOW and writable opening say to a symbolic link, a directory, a FIFO or socket without a reader.
            Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) if doing == "opening" => Error::NotRegular { location },
            _ => Error::Io { location, doing, source },
        }
    }
}

/// The offset of `off..off + len` in a region of `region_len` bytes, or [`Error::Range`] when it does not lie inside or the
/// access is not allowed.
#[inline]
pub(crate) fn in_range(location: &str, off: u64, len: u64, region_len: u64, allowed: bool) -> Result<usize> {
    match off.checked_add(len) {
        Some(end) if end <= region_len && allowed => Ok(off as usize),
        _ => Err(Error::Range { location: location.to_owned(), off, len, region_len }),
    }
}
