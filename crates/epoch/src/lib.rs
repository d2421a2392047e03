//! **epoch**: in-memory data structures, checkpointed every 100 ms without ever stopping.
//!
//! The program works on a DRAM heap with plain loads and stores, inside transactions, and says [`Tx::mark`] before it writes. Time is
//! cut in epochs; a background persister takes one epoch after another to the durable log and image while transactions of the
//! next already run. After a crash the heap is exactly as it was at the end of a recent epoch: whole transactions only (buffered
//! durable linearizability).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use towa_epoch::{Options, Pool, Root};
//! let dir = tempfile::tempdir()?;
//! let pool = Pool::open_or_create(dir.path(), &Options { heap_len: 16 << 20, ..Options::default() })?;
//! let mut thread = pool.register()?;
//! let tx = thread.begin()?;
//! let counter = tx.alloc(8)?.cast::<u64>(); // marked already
//! // SAFETY: freshly allocated, 8 bytes, ours.
//! unsafe {
//!     counter.write(1);
//!     tx.set_root("counter", Some(Root { ptr: counter.cast(), type_tag: 1, size: 8 }))?;
//! }
//! tx.commit();
//! pool.sync()?; // durable now; without it, within 100 ms
//! # Ok(())
//! # }
//! ```
//!
//! The method is the paper's (digest, section 3) with four changes, each said where it is: one tag byte a line for two bitmaps
//! (`tags.rs`), users' saved lines in DRAM and no second wait (`lists.rs`), an asymmetric barrier at transaction start
//! (`clock.rs`), and recovery, which the paper lacks (`towa_heap`).

mod clock;
mod detector;
mod engine;
mod error;
mod gate;
mod grace;
mod lists;
mod log_space;
mod options;
mod pacer;
mod persister;
mod pool;
mod room;
mod slot;
mod stats;
mod sync;
mod tags;
mod thread;
mod tx;
pub mod typed;
mod warming;

pub use detector::ForgottenMark;
pub use error::{Error, Result};
pub use options::{Mode, Options};
#[doc(hidden)]
pub use persister::Phase;
pub use pool::Pool;
pub use room::{BlockState, Cleared, Clearing, Space, Survey};
pub use stats::Stats;
pub use thread::{Thread, Window};
pub use towa_heap::{ROOT_NAME_MAX, Recovery, Root, accept_copy, applied_together, default_log_len, default_undo_len};
pub use tx::Tx;
