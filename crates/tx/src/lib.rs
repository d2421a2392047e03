//! **tx**: durable transactions on a heap in DRAM. Each is atomic, isolated, and durable when the call returns.
//!
//! ```text
//!   thread   body ─ reads, writes ─ takes effect at t ─ record: one line, one fence ─ returns: durable
//!                    (RTM; in software NOrec, or versions) │
//!   working copy (DRAM) ◄──────┘                           ▼
//!                                         the thread's log (lane) ── checkpointer ──► image
//! ```
//!
//! What must always hold:
//! 1. a record is in a log only when all that its transaction depends on is durable; so after a crash exactly the transactions that
//!    returned are there, plus possibly the one in flight of each thread, whole or not at all (`durable.rs`);
//! 2. transactions are strictly serializable, and timestamps follow the order in which conflicting ones took effect (`clock.rs`);
//! 3. a thread that is announced waits for no other that may wait for it (`thread.rs`).
//!
//! Sources: NV-HTM (Castro, Romano, Barreto, IPDPS 2018) for the working copy, redo logs and the checkpoint process; NOrec (Dalessandro,
//! Spear, Scott, PPoPP 2010) and TL2 (Dice, Shalev, Shavit, DISC 2006) for the software paths. What differs is said in ARCHITECTURE.md.

mod allocation;
mod buffered;
mod checkpointer;
mod clock;
mod control;
mod dependencies;
mod durable;
mod engine;
mod error;
mod guarded;
mod hardware;
mod held;
mod meeting;
mod nesting;
mod options;
mod place;
mod pool;
mod process;
mod rtm;
mod sequence;
mod software;
mod stats;
mod sync;
mod thread;
mod tx;
mod version;
mod view;
mod watch;
mod write_set;
mod writers;

pub use clock::Clock;
pub use error::{Abort, Error, Result};
pub use held::{RootEntered, RootHold};
pub use meeting::{Ended, Progress, SeparateCheckpointer, Standing, who_checkpoints};
pub use options::{Checkpointer, Commit, Options, Retry, Tm, TmChoice};
pub use pool::Pool;
pub use stats::Stats;
pub use thread::Thread;
pub use towa_heap::{Recovery, Root};
pub use tx::Tx;
pub use view::{Addr, Span, WORD};

/// Whether transactions run in hardware here, if not told otherwise: that takes a sound time stamp counter, too.
pub fn hardware_transactions_run() -> bool {
    rtm::commits() && clock::best() == Clock::Tsc
}

/// Whether this machine commits hardware transactions (RTM), found by committing some.
pub fn hardware_transactions_commit() -> bool {
    rtm::commits()
}
