//! Refuses, inside the body of a transaction, what would wait for that very transaction: another one, whatever its pool, and all that
//! waits until others are durable. It might never end, for the outer one has not taken effect and may hold the sequence lock. In a forked
//! child it refuses them all.
//!
//! ```text
//!   outer in hardware ─ sent to software by an abort ─►  outer in software, marked for this thread ─► Error::Usage
//! ```
//!
//! What must always hold: the mark of a thread is set while a body runs there in software, and at no other time. A hardware transaction
//! needs none: the processor knows it.

use std::cell::Cell;

use towa_media::fork;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::rtm;
use crate::tx::code;

thread_local! {
    /// A body runs in software in this thread.
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
}

/// Runs a body in software.
#[inline]
pub(crate) fn body<R>(run: impl FnOnce() -> R) -> R {
    struct Mark;
    impl Drop for Mark {
        fn drop(&mut self) {
            IN_BODY.set(false);
        }
    }
    IN_BODY.set(true);
    let _mark = Mark;
    run()
}

/// Refuses `what` inside a body. In a hardware transaction this does not return: its body is run again in software.
#[inline]
pub(crate) fn refuse(engine: &Engine, what: &str) -> Result<()> {
    if rtm::commits() { refuse_with_rtm(engine, what) } else { refuse_in_software(engine, what) }
}

/// [`refuse`] where it is known that hardware transactions commit.
#[inline(always)]
pub(crate) fn refuse_with_rtm(engine: &Engine, what: &str) -> Result<()> {
    if rtm::is_inside() {
        rtm::abort::<{ code::SOFTWARE }>();
    }
    refuse_in_software(engine, what)
}

#[inline(always)]
fn refuse_in_software(engine: &Engine, what: &str) -> Result<()> {
    if IN_BODY.get() || fork::is_child() { look_closer(engine, what) } else { Ok(()) }
}

#[cold]
fn look_closer(engine: &Engine, what: &str) -> Result<()> {
    refuse_in_child(engine, what)?;
    if !IN_BODY.get() {
        return Ok(());
    }
    let pool = engine.heap.location();
    Err(Error::Usage(format!("{pool}: {what} inside the body of a transaction, which it may wait for; do it before or after")))
}

/// Refuses `what` in a child that the pool's process forked.
pub(crate) fn refuse_in_child(engine: &Engine, what: &str) -> Result<()> {
    if !fork::is_child() || !engine.is_forked() {
        return Ok(());
    }
    Err(Error::Usage(fork::refused(&engine.heap.location(), what)))
}
