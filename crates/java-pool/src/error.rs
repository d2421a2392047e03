//! Errors: which file, what is wrong with it and where, and what to do.

use std::io;

use crate::superblock::VERSION;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a file cannot be described or checked. Whatever it is: the file was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing has the name.
    #[error("{pool}: no such file; `Towa.open` makes a pool")]
    Missing {
        /// Where.
        pool: String,
    },
    /// Not a pool of the Java door.
    #[error("{pool}: not a Towa pool: {why}; nothing was changed")]
    Foreign {
        /// Where.
        pool: String,
        /// What was found instead.
        why: String,
    },
    /// Written by a newer Towa.
    #[error("{pool}: {what}, this program knows version {known}; use a newer Towa; nothing was changed", known = VERSION)]
    Newer {
        /// Where.
        pool: String,
        /// What says so.
        what: String,
    },
    /// It ends before what is in use does.
    #[error("{pool}: truncated: it has {len} bytes, {needed} are needed for {what}; nothing was changed; restore a copy")]
    Truncated {
        /// Where.
        pool: String,
        /// Bytes that are there.
        len: u64,
        /// Bytes that must be there.
        needed: u64,
        /// What lies beyond the end.
        what: &'static str,
    },
    /// A structure does not check out.
    #[error("{pool}: damaged at {at:#x}: {what}; nothing was changed; restore a copy")]
    Damaged {
        /// Where.
        pool: String,
        /// Offset in the file.
        at: u64,
        /// Which structure and how.
        what: String,
    },
    /// The file and its log of commits are not of one moment.
    #[error(
        "{pool}: {what}; nothing was changed; bring the two files of one moment together, or restore both from a copy \
         that was made while no program had the pool open"
    )]
    Apart {
        /// Where.
        pool: String,
        /// Why they cannot be.
        what: String,
    },
    /// Its making did not come to an end.
    #[error("{pool}: being made, or its making was interrupted; it never held anything: `Towa.open` makes it again, or remove it")]
    Unfinished {
        /// Where.
        pool: String,
    },
    /// Somebody has it open.
    #[error("{pool}: in use by {holder}; one process owns a pool at a time, stop that one first")]
    Busy {
        /// Where.
        pool: String,
        /// `process 1234`, or `another process` where that is unknown.
        holder: String,
    },
    /// A program has it open, and cannot be asked for what changes while it is copied.
    #[error(
        "{pool}: in use by {holder}, which cannot be asked for a copy: {why}; close the pool, then copy it, or start the \
         program anew with the towa.jar of this release, on a pool in a directory where it can make a socket"
    )]
    NotAsked {
        /// Where.
        pool: String,
        /// `process 1234`, or `another process` where that is unknown.
        holder: String,
        /// What is in the way.
        why: String,
        /// Perhaps not for long: the program may be opening or closing the pool.
        may_come: bool,
    },
    /// The program that has it open says no.
    #[error("{what}")]
    Refused {
        /// Its words, which name the pool.
        what: String,
        /// Because of another backup.
        busy: bool,
    },
    /// The program that has it open takes too long.
    #[error(
        "{pool}: the program that has it open does not answer; is it stopped, or out of processor time? no copy was made; try again"
    )]
    Silent {
        /// Where.
        pool: String,
    },
    /// The program that had it open has gone, or has closed it.
    #[error("{pool}: the program that had it open {} while it was copied; no copy was made; try again", if *closed { "closed it" } else { "ended or closed it" })]
    Gone {
        /// Where.
        pool: String,
        /// It closed the pool, and said so.
        closed: bool,
    },
    /// The program that has it open says what makes no sense.
    #[error("{pool}: the program that has it open sent {what}; no copy was made; is its towa.jar of this release?")]
    Babble {
        /// Where.
        pool: String,
        /// What.
        what: String,
    },
    /// The system refused.
    #[error("{pool}: {doing}: {source}")]
    Io {
        /// Where.
        pool: String,
        /// What was being done.
        doing: &'static str,
        /// The system's word.
        source: io::Error,
    },
}
