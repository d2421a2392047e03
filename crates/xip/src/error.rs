//! Errors of the xip door.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong. Whatever it is: programs and stores are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that is not split, for a reason that lies in it. Nothing was written.
    #[error("{path}: not split: {why}", path = .path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What stands in the way, and what to do where something can be done.
        why: String,
    },
    /// A file that ought to be split, and is not.
    #[error("{path}: not a split program: {why}", path = .path.display())]
    NotSplit {
        /// The file.
        path: PathBuf,
        /// How that is known.
        why: String,
    },
    /// A damaged, foreign, truncated or newer file of a store. It was not changed.
    #[error("{path}: {what}; it was not changed", path = .path.display())]
    NotUsable {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// No store there.
    #[error("{path}: no store of texts; `towa xip split` makes one", path = .path.display())]
    NoStore {
        /// The directory.
        path: PathBuf,
    },
    /// The text of a program is gone from its store.
    #[error("{path}: {what}", path = .path.display())]
    Missing {
        /// The file that is not there.
        path: PathBuf,
        /// Whose it is, and what to do.
        what: String,
    },
    /// Somebody else works on the store.
    #[error("{path}: in use by another `towa xip`; wait for it to end", path = .path.display())]
    Busy {
        /// The store.
        path: PathBuf,
    },
    /// No space; what was there before is as it was.
    #[error("{path}: no space left; the program is as it was", path = .path.display())]
    Full {
        /// What was written.
        path: PathBuf,
    },
    /// Others than its owner could change what programs would then execute.
    #[error("{path}: {what}", path = .path.display())]
    Unsafe {
        /// The file or directory.
        path: PathBuf,
        /// Who could, and what to do.
        what: String,
    },
    /// What cannot be done on this machine.
    #[error("not possible here: {what}")]
    Unsupported {
        /// What is missing, and what to do.
        what: String,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Wrong(String),
    /// A call of the system failed.
    #[error("{path}: {doing}: {source}", path = .path.display())]
    Io {
        /// On what.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

impl Error {
    /// A failed call; a full disk has an error of its own.
    pub fn io(path: &Path, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Error::Full { path },
            _ => Error::Io { path, doing, source },
        }
    }
}
