//! What can go wrong in a container. After any of these the container is as it was before the call.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused or failed; see [`towa_epoch::Error`].
    #[error(transparent)]
    Epoch(#[from] towa_epoch::Error),
    /// The root of that name is something else.
    #[error("root {name:?} is not a {wanted} of this layout (found {found}): open it as what it was created, or use another name")]
    WrongKind {
        /// Name of the root.
        name: String,
        /// What was asked for.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// Lengths are kept in 32 bits.
    #[error("{what} of {len} bytes is too long: at most 4294967295 bytes")]
    TooLong {
        /// `key` or `value`.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// The transaction touched a key that it had not named, hence not locked.
    #[error("key {0:?} was not among the keys given to transact: name every key the transaction touches")]
    KeyNotLocked(String),
    /// The container cannot grow any more.
    #[error("full: {0}")]
    Full(String),
    /// [`check`](crate::HashMap::check) found the structure broken.
    #[error("damaged: {0}; restore the pool from a copy")]
    Damaged(String),
}
