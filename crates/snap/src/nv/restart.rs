//! A process in mode `nv` starts again without a copy: its pool is a clone of the checkpoint's, and mapped.
//!
//! ```text
//!   checkpoint's pool ── FICLONE ──► a new pool ── MAP_SHARED, at the same offsets ──► the regions that lay in the pool
//! ```
//!
//! The checkpoint stays as it is and can be restarted again; the file system counts who uses a block. What must always hold: the filter of
//! system calls is there before the process runs, and who answers it when it does.

use std::sync::Arc;

use super::filter;
use super::guard::Guard;
use super::pool::Pool;
use crate::error::Result;
use crate::remote::Stub;
use crate::sys::fd::Process;
use std::os::fd::OwnedFd;

/// Installs the filter in a new process that is complete but for this.
pub fn filter(pid: i32, stub: &Stub) -> Result<OwnedFd> {
    filter::install_in(&Process::open(pid)?, stub)
}

/// Begins to answer.
pub fn guard(listener: OwnedFd, pool: Pool) -> Result<()> {
    Guard::start(listener, Arc::new(pool))
}
