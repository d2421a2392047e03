//! Errors of the snap door.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One thing of a process that cannot be kept: what and where.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Refusal {
    /// Where: `fd 7`, `thread 812`, `memory 7f12…`, `process`.
    pub place: String,
    /// What it is, and what to do about it where something can be done.
    pub what: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// What can go wrong. Whatever it is: the program that was to be checkpointed goes on, and checkpoints that were there are there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process uses what cannot be kept. It was not touched.
    #[error("process {pid} cannot be checkpointed; it was not touched: {}", .what.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; "))]
    Refused {
        /// Its number.
        pid: i32,
        /// Everything that stands in the way.
        what: Vec<Refusal>,
    },
    /// There is no such process, or it has ended.
    #[error("process {pid} has ended, or there is none of that number")]
    Gone {
        /// Its number.
        pid: i32,
    },
    /// The kernel does not let this user do that to the process.
    #[error("process {pid}: {what} is not permitted; {remedy}")]
    NotPermitted {
        /// Its number.
        pid: i32,
        /// What was tried.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A program wanted a checkpoint of itself, and there is none.
    #[error("process {pid}: no checkpoint of itself; `towa snap take --self` said why on standard error, and ended with {}", match status { Some(status) => format!("status {status}"), None => "a signal".into() })]
    NotTaken {
        /// Its number.
        pid: i32,
        /// The exit status of `towa snap take`; `None`: it was ended by a signal.
        status: Option<i32>,
    },
    /// What cannot be done here, by this kernel or as things are.
    #[error("not possible here: {what}; {remedy}")]
    Unsupported {
        /// What is missing.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// No checkpoint of that number, or none at all.
    #[error("{dir}: {what}", dir = .dir.display())]
    NoCheckpoint {
        /// The directory.
        dir: PathBuf,
        /// Which was asked for.
        what: String,
    },
    /// Damaged, foreign, truncated, or of a newer version; nothing was changed.
    #[error("{path}: {what}; it was not changed", path = .path.display())]
    NotUsable {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Another process works on the directory.
    #[error("{dir}: in use by another `towa snap`; wait for it to end", dir = .dir.display())]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
    /// Another tool takes checkpoints of the process.
    #[error(
        "process {pid}: another program tracks its memory: it is in use by another `towa snap` (run --every?), which takes its checkpoints; end that first, its program goes on"
    )]
    Tracked {
        /// Its number.
        pid: i32,
    },
    /// No space; what was there before is as it was.
    #[error("{path}: no space left; the checkpoint was given up, those before it are complete (`towa snap rm`, or --keep N)", path = .path.display())]
    Full {
        /// What was written.
        path: PathBuf,
    },
    /// A call of the system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, on what.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Another process that works for this one has failed.
    #[error("{what}")]
    Elsewhere {
        /// What it says.
        what: String,
    },
    /// The target did something that is not understood.
    #[error("process {pid}: {what}")]
    Target {
        /// Its number.
        pid: i32,
        /// What.
        what: String,
    },
}

impl Error {
    /// With the system's error of the call just made.
    pub(crate) fn last(what: impl Into<String>) -> Error {
        Error::io(what, std::io::Error::last_os_error())
    }

    pub(crate) fn io(what: impl Into<String>, source: std::io::Error) -> Error {
        Error::Io { what: what.into(), source }
    }
}
