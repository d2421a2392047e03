//! Errors of the epoch door.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool could not be created or opened, or its medium failed.
    #[error(transparent)]
    Heap(#[from] towa_heap::Error),
    /// No space for the block; nothing was changed and the pool stays good.
    #[error(
        "out of space: no room for a block of {wanted} bytes in a heap of {heap_len}; delete something, or create a larger pool"
    )]
    OutOfSpace {
        /// Bytes asked for.
        wanted: usize,
        /// Capacity of the heap in bytes.
        heap_len: u64,
    },
    /// The transaction would mark more than it reserved at its start; nothing was changed.
    #[error(
        "a block of {wanted} bytes is more than this transaction reserved ({reserved} bytes in all); begin it with `begin_reserving`"
    )]
    NotReserved {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes the transaction may mark.
        reserved: u64,
    },
    /// No transaction can be as large as asked for: the log could not hold it.
    #[error(
        "a transaction that writes {wanted} bytes does not fit into a redo log of {log_len}; split it, or create the pool with a log of {need}"
    )]
    TooLarge {
        /// Bytes to be reserved.
        wanted: usize,
        /// Capacity of the log.
        log_len: u64,
        /// Capacity it would take.
        need: u64,
    },
    /// The pool failed earlier and stays at its last durable epoch.
    #[error("{pool}: poisoned: {why}; what is durable up to epoch {durable} is safe, reopen the pool to recover it")]
    Poisoned {
        /// Where.
        pool: String,
        /// What happened.
        why: String,
        /// Last durable epoch.
        durable: u64,
    },
    /// Misuse of the interface: nested transaction, `sync` inside a transaction, too many threads, bad root name, ...
    #[error("{0}")]
    Usage(String),
}

impl From<towa_media::Error> for Error {
    fn from(e: towa_media::Error) -> Self {
        Error::Heap(e.into())
    }
}
