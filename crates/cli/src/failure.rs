//! How a failure reaches the caller: an exit status a script can act on, and one line a person can act on.

use std::fmt::Write;

use anyhow::Error;

/// Failed or refused, for a reason without a number of its own.
pub const FAILED: u8 = 1;
/// Options or arguments that cannot be; clap uses the same.
pub const USAGE: u8 = 2;
/// The pool, store, checkpoint or program is not what it should be.
pub const DAMAGED: u8 = 3;
/// Somebody else has it.
pub const BUSY: u8 = 4;
/// It is not there.
pub const MISSING: u8 = 5;
/// No space.
pub const FULL: u8 = 6;
/// The pool failed while it was in use.
pub const POISONED: u8 = 7;
/// Nobody answers.
pub const NO_ANSWER: u8 = 8;

/// Every exit status and what it means.
pub const CODES: [(u8, &str); 9] = [
    (0, "done; for verify: sound"),
    (FAILED, "refused or failed; the message says why"),
    (USAGE, "wrong usage: options or arguments that cannot be"),
    (
        DAMAGED,
        "not sound (a pool, a store, a checkpoint, a split program): damaged, foreign, newer, or of another door; nothing was changed",
    ),
    (BUSY, "in use by another process: the pool, the store, the program"),
    (MISSING, "no such pool, store or checkpoint, or the text of a split program is gone"),
    (FULL, "no space left, on the medium or in the pool"),
    (POISONED, "the pool failed while in use; what was durable is safe, reopen it"),
    (NO_ANSWER, "no server answers at that address, or it stopped answering"),
];

/// [`CODES`] as lines for the help.
pub fn table() -> String {
    CODES.iter().fold(String::new(), |mut text, (code, meaning)| {
        let _ = writeln!(text, "  {code}  {meaning}");
        text
    })
}

/// An error that brings its exit status along.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Coded {
    /// The status.
    pub code: u8,
    /// What, where, what to do.
    pub text: String,
}

/// An error with exit status `code`.
pub fn coded(code: u8, text: impl Into<String>) -> Error {
    Coded { code, text: text.into() }.into()
}

/// The exit status for `error`: that of the first error in its chain that has one.
pub fn code(error: &Error) -> u8 {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        if let Some(e) = cause.downcast_ref::<Coded>() {
            return Some(e.code);
        }
        if let Some(towa_server::Error::Pool(e)) = cause.downcast_ref() {
            return Some(of_epoch(e));
        }
        match cause.downcast_ref() {
            Some(towa_server::Error::Foreign { .. } | towa_server::Error::Damaged(_)) => return Some(DAMAGED),
            Some(towa_server::Error::Config(_)) => return Some(USAGE),
            _ => {}
        }
        if let Some(towa_containers::Error::Damaged(_)) = cause.downcast_ref() {
            return Some(DAMAGED);
        }
        if let Some(e) = cause.downcast_ref() {
            return Some(crate::snap::code(e));
        }
        if let Some(e) = cause.downcast_ref() {
            return Some(crate::xip::code(e));
        }
        if let Some(e) = cause.downcast_ref() {
            return Some(of_java(e));
        }
        let epoch = cause.downcast_ref().map(of_epoch);
        let tx = || cause.downcast_ref().map(of_tx);
        if let Some(e) = cause.downcast_ref() {
            return Some(of_tree(e));
        }
        let heap = || cause.downcast_ref().map(of_heap);
        let media = || cause.downcast_ref().map(of_media);
        epoch.or_else(tx).or_else(heap).or_else(media)
    };
    error.chain().find_map(of).unwrap_or(FAILED)
}

fn of_epoch(error: &towa_epoch::Error) -> u8 {
    match error {
        towa_epoch::Error::Heap(e) => of_heap(e),
        towa_epoch::Error::OutOfSpace { .. } => FULL,
        towa_epoch::Error::Poisoned { .. } => POISONED,
        _ => FAILED,
    }
}

fn of_tx(error: &towa_tx::Error) -> u8 {
    match error {
        towa_tx::Error::Heap(e) => of_heap(e),
        towa_tx::Error::OutOfSpace { .. } => FULL,
        towa_tx::Error::Poisoned { .. } => POISONED,
        _ => FAILED,
    }
}

fn of_tree(error: &towa_tree::Error) -> u8 {
    use towa_alloc::Error as Arena;
    use towa_tree::Error::*;
    match error {
        Tx(e) => of_tx(e),
        Media(e) | Alloc(Arena::Media(e)) => of_media(e),
        OutOfSpace { .. } => FULL,
        Damaged { .. } | Alloc(Arena::Foreign { .. } | Arena::Newer { .. } | Arena::Damaged { .. } | Arena::WrongKind { .. }) => {
            DAMAGED
        }
        Alloc(Arena::Missing { .. }) => MISSING,
        _ => FAILED,
    }
}

fn of_heap(error: &towa_heap::Error) -> u8 {
    use towa_heap::Error::*;
    match error {
        Media(e) => of_media(e),
        Foreign { .. } | Newer { .. } | WrongDoor { .. } | Damaged { .. } | CopiedWhileOpen { .. } => DAMAGED,
        Missing { .. } => MISSING,
        LogFull { .. } => FULL,
        _ => FAILED,
    }
}

fn of_java(error: &towa_java_pool::Error) -> u8 {
    use towa_java_pool::Error::*;
    match error {
        Foreign { .. } | Newer { .. } | Truncated { .. } | Damaged { .. } | Apart { .. } => DAMAGED,
        Busy { .. } | NotAsked { .. } | Refused { busy: true, .. } => BUSY,
        Silent { .. } => NO_ANSWER,
        Io { source, .. } if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => FULL,
        Missing { .. } | Unfinished { .. } => MISSING,
        _ => FAILED,
    }
}

fn of_media(error: &towa_media::Error) -> u8 {
    use towa_media::Error::*;
    match error {
        Full { .. } => FULL,
        Busy { .. } => BUSY,
        NotFound { .. } => MISSING,
        _ => FAILED,
    }
}

/// The error and its causes as one line, each said once: many of our errors quote their cause already.
pub fn message(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
    }
    // It may quote a path with a newline in it.
    crate::report::plain(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    fn io() -> towa_media::Error {
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        towa_media::Error::Io { location: "p/log".into(), doing: "writing", source }
    }

    #[test]
    fn a_cause_is_said_once() {
        let error = Error::from(towa_epoch::Error::from(io())).context("recovering p");
        assert_eq!(message(&error), "recovering p: p/log: writing: Input/output error (os error 5)");
    }

    #[test]
    fn codes_are_found_however_deep() {
        let busy = || towa_media::Error::Busy { location: "p".into(), holder: "process 7".into() };
        let found = |e: Error| code(&e);
        assert_eq!(found(busy().into()), BUSY);
        assert_eq!(found(towa_heap::Error::from(busy()).into()), BUSY);
        assert_eq!(found(towa_epoch::Error::from(busy()).into()), BUSY);
        assert_eq!(found(Error::from(towa_server::Error::from(towa_epoch::Error::from(busy()))).context("serving")), BUSY);
        assert_eq!(
            found(Err::<(), _>(towa_heap::Error::Missing { pool: "p".into(), hint: "" }).context("x").unwrap_err()),
            MISSING
        );
        assert_eq!(found(towa_epoch::Error::from(io()).into()), FAILED);
        assert_eq!(found(coded(NO_ANSWER, "nobody")), NO_ANSWER);
        let poisoned = towa_epoch::Error::Poisoned { pool: "p".into(), why: "x".into(), durable: 3 };
        assert_eq!(found(poisoned.into()), POISONED);
    }
}
