//! What can go wrong with the server as a whole. What goes wrong with one request is told to its client.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the server does not start, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool refused or failed.
    #[error(transparent)]
    Pool(#[from] towa_epoch::Error),
    /// The operating system refused.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried, with its object.
        what: String,
        /// Its answer.
        source: std::io::Error,
    },
    /// [`check`](crate::check) found the store broken.
    #[error("the store under the root \"serve\" is damaged: {0}; restore the pool from a copy")]
    Damaged(String),
    /// An option makes no sense.
    #[error("{0}")]
    Config(String),
    /// The pool holds something else under the server's root name.
    #[error(
        "the pool's root \"{name}\" is not a store of this server ({why}); use another pool directory, or the version that made it"
    )]
    Foreign {
        /// Root name.
        name: &'static str,
        /// What does not fit.
        why: String,
    },
}

/// Adds what was tried to an input/output error.
pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}
