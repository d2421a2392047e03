//! **capi**: the doors epoch, tx, tree and snap for C and C++, as `libtowa.so` and `libtowa.a`.
//!
//! The contract is written in `include/towa.h` (epoch) and `include/towa_tx.h` (tx and tree: `dtx_*.rs`, `tree*.rs`), and `include/towa_snap.h` (snap); this crate is their
//! other side, and `tests/abi.rs` holds the two together. What must always hold here:
//!
//! - No panic crosses into C: every entry runs under [`error::guard`], which turns it into `TOWA_EINTERNAL`, and whoever holds a running
//!   transaction aborts it.
//! - A [`thread::Handle`] is touched only by the operating-system thread that attached it; entries check this.
//! - A handle (of a thread, a container) keeps its pool alive; `towa_pool_close` refuses while there are any, so closing really closes.
//! - A handle that is NULL, closed, of another kind or from before a `fork()` is refused, not followed: see [`given`].
//!
//! ```text
//!   towa_map ...  ─► Given ─► Map ... { container, pool }
//!                                             │
//!                                             ▼
//!   towa_pool ────► Given ─────────► pool::Handle (Arc) ──► epoch::Pool
//!                                             ▲
//!   towa_thread ─► thread::Handle { window, epoch::Thread, running Tx } ─ next ─► the thread's handle on another pool
//!                      ▲
//!   towa_self() ──► thread::SELF { window, first handle, current handle }         one per operating-system thread
//! ```

mod container;
mod dtx_access;
mod dtx_layout;
mod dtx_pool;
mod dtx_run;
pub mod error;
mod given;
mod layout;
mod map;
mod pool;
mod queue;
mod snap;
mod thread;
mod tree;
mod tree_load;
mod tree_session;
mod tx;
mod vector;

pub use dtx_access::*;
pub use dtx_layout::*;
pub use dtx_pool::*;
pub use dtx_run::*;
pub use given::Given;
pub use layout::{DETECT_FORGOTTEN_MARKS, EAGER, IN_PLACE, MANUAL, Options, PREFAULT, Stats, Window};
pub use map::*;
pub use pool::*;
pub use queue::*;
pub use snap::*;
pub use thread::{Handle as Thread, towa_self, towa_thread_attach, towa_thread_detach, towa_thread_on};
pub use tree::*;
pub use tree_load::*;
pub use tree_session::*;
pub use tx::*;
pub use vector::*;
