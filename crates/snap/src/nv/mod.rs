//! **Mode `nv`**: a process's memory lies in a file of a file system that clones files, and a checkpoint clones that file. Nothing is copied.
//!
//! ```text
//!   memory of the process   heap, data, bss, anonymous mappings, stacks of threads     main stack, what it may not write
//!                                  │ MAP_SHARED, at the same addresses                         │
//!   pool (a nameless file)  ═══════╧═════                                                      │ copied, as in mode dram
//!                                  │ FICLONE, in the pause                                     │
//!   checkpoint N            pool ══╧═════                                       memory ────────┘
//!                                  │ FICLONE
//!   restarted process       its own pool, mapped
//! ```
//!
//! Made for XFS on persistent memory mounted with DAX, where the file's blocks *are* the memory. On other storage the file's pages are in the
//! page cache, and cloning waits until those that changed are written: the pool is synced before the pause, so that little is left for it.
//!
//! Private memory that has become a shared mapping differs from private memory in four ways. A filter of system calls, installed before the
//! program starts, hands those calls to the tool ([`guard`]):
//!
//! | call | on such memory | so |
//! |---|---|---|
//! | fork, clone, clone3 without CLONE_VM | the child would write into its parent's memory | fails with EAGAIN |
//! | madvise MADV_DONTNEED, MADV_FREE | the content would come back | the tool makes holes in the pool first |
//! | mremap that grows it, or leaves it where it was, too | what lies behind it in the pool would be mapped twice | fails with ENOMEM |
//! | madvise MADV_REMOVE, MADV_GUARD_INSTALL | would do what it does not do to private memory, or get lost | fails with EINVAL |
//!
//! What cannot be mended is that one mapping becomes several, since only pieces with content are adopted: before Linux 6.17, mremap does not move
//! several mappings at once, and fails with EFAULT.
//!
//! A signal that comes in the moment between one of these calls and the tool's reading of it interrupts the call; with a handler that does not have
//! calls made again (no SA_RESTART) it fails with EINTR, which forks do not elsewhere: a shell that such a program starts may then say that it
//! cannot fork. With the right to come before others (CAP_SYS_NICE) the tool keeps that moment short.
//!
//! Threads, vfork and posix_spawn work. Without a tool (it was killed) these calls fail with ENOSYS: an error, never stale data.
//!
//! Space: a write to a page that the last checkpoint shares, or to one that was given back, takes a new block of the file system; on a full one
//! that is a SIGBUS. So a checkpoint is refused where the file system has less room left than the pool takes up, and what is adopted is
//! reserved before; what others write to the file system afterwards is not in our hands: give the checkpoints a file system of their own.
//!
//! What must always hold: at each moment, whoever is killed, the process finds in its memory what it has written.

pub mod adopt;
pub mod filter;
pub mod guard;
pub mod handing;
pub mod pool;
pub mod restart;

use std::process::{Child, Command};
use std::sync::Arc;

use crate::error::Result;
use crate::store::Store;
use guard::Guard;
use pool::Pool;

/// What belongs to a process in this mode, besides the process.
#[derive(Clone, Debug)]
pub struct Nv {
    /// The file that its memory lies in.
    pub pool: Arc<Pool>,
}

/// Starts a program in this mode, with its checkpoints to be in `store`. Its calls are answered from then on, by a thread of this process.
pub fn spawn(command: &mut Command, store: &Store) -> Result<(Child, Nv)> {
    let pool = Arc::new(Pool::create(store)?);
    let (child, listener) = filter::spawn(command)?;
    Guard::start(listener, Arc::clone(&pool))?;
    Ok((child, Nv { pool }))
}
