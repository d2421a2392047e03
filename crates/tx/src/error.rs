//! Errors of the tx door.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong. Nothing that the failed transaction did remains.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool could not be created or opened, or its medium failed.
    #[error(transparent)]
    Heap(#[from] towa_heap::Error),
    /// The body gave up with [`Abort::Stale`]: what it had seen before the transaction has changed.
    #[error("what the transaction was begun for has changed meanwhile; look again and repeat it")]
    Stale,
    /// The body gave up with [`Abort::User`].
    #[error("the transaction was aborted: {0}")]
    Aborted(&'static str),
    /// No space for the block, in the heap or on its medium.
    #[error(
        "out of space: no room for a block of {wanted} bytes in a heap of {heap_len}, or its medium is full; free something, make space \
         there, or create a larger pool"
    )]
    OutOfSpace {
        /// Bytes asked for.
        wanted: usize,
        /// Capacity of the heap in bytes.
        heap_len: u64,
    },
    /// A root that was to be made is there already.
    #[error("{pool}: there is a root {name:?} already; open it, or choose another name")]
    RootExists {
        /// Where.
        pool: String,
        /// Its name.
        name: String,
    },
    /// The transaction's record can never fit into the thread's log.
    #[error(
        "a transaction that logs {wanted} bytes does not fit into a log of {lane_len} a thread; split it, or create the pool with larger logs"
    )]
    TooLarge {
        /// Bytes of its record.
        wanted: u64,
        /// Bytes of a thread's log.
        lane_len: u64,
    },
    /// Every log of the pool belongs to a thread.
    #[error("{pool}: all {lanes} logs are taken by threads; end one, or create the pool with more lanes")]
    TooManyThreads {
        /// Where.
        pool: String,
        /// Number of logs.
        lanes: usize,
    },
    /// The pool failed earlier; what was committed before is safe.
    #[error("{pool}: poisoned: {why}; what was committed is safe, reopen the pool to recover it")]
    Poisoned {
        /// Where.
        pool: String,
        /// What happened.
        why: String,
    },
    /// Misuse of the interface: an address outside the heap, a bad root name, ...
    #[error("{0}")]
    Usage(String),
}

impl From<towa_media::Error> for Error {
    fn from(e: towa_media::Error) -> Self {
        Error::Heap(e.into())
    }
}

/// Why a transaction's body ends without a result. Bodies pass it on with `?`.
#[derive(Debug)]
pub enum Abort {
    /// Another transaction was in the way: the body is run again.
    Conflict,
    /// What the body was begun for has changed: the transaction ends with [`Error::Stale`].
    Stale,
    /// The program's own wish: the transaction ends with [`Error::Aborted`].
    User(&'static str),
    /// Something failed: the transaction ends with this error.
    Failed(Box<Error>),
}

impl From<Error> for Abort {
    fn from(e: Error) -> Self {
        Abort::Failed(Box::new(e))
    }
}

impl Abort {
    pub(crate) fn into_error(self) -> Error {
        match self {
            // Who runs bodies repeats these; they do not come here.
            Abort::Conflict | Abort::Stale => Error::Stale,
            Abort::User(why) => Error::Aborted(why),
            Abort::Failed(e) => *e,
        }
    }
}
