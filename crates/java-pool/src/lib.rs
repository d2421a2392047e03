//! **java-pool**: the file in which the Java door keeps its objects, read and checked from outside.
//!
//! ```text
//!   pool     opens a file, describes it, checks it
//!     ├─ lock         who has it open; keeps owners out while it is checked
//!     ├─ superblock   what it is: two slots, and the words that change by one store each
//!     ├─ records      the chains of classes and roots; class: what a class' instances look like
//!     ├─ walk         every replica that can be reached from the roots
//!     │    └─ blocks  which blocks are taken, and by what
//!     ├─ undo         the section that was not over
//!     ├─ redo         the commit beside the file that is on its way into it
//!     ├─ live         a program that has it open, asked for what changes while the file is copied
//!     ├─ settle       makes a copy a pool that was closed
//!     ├─ report       what was found
//!     └─ source       bytes of the file
//! ```
//!
//! The format is in `docs/format.md`; who writes it is `java/towa`. A *replica* is the copy of a Java object in the file; a *record*
//! describes a class or a root.
//!
//! What must always hold: nothing here writes to a pool; `live` and `settle` write to a copy that is being made. Whatever the file holds, and whoever changes it meanwhile, its reader neither
//! panics, nor runs for ever, nor takes more memory than a small share of the file's length: every number that comes from it is checked
//! before it is used.

mod blocks;
mod class;
mod error;
mod live;
mod lock;
mod pool;
mod records;
mod redo;
mod report;
mod settle;
mod source;
mod superblock;
mod undo;
mod walk;

pub use error::{Error, Result};
pub use live::{Followed, Live};
pub use lock::Owner;
pub use pool::{Pool, is_pool};
pub use redo::{CommitLog, CommitState};
pub use report::{ClassCount, Description, PROBLEMS_SHOWN, Problem, Report, RootDescription};
pub use settle::{Settled, settle};
pub use source::stretch;
pub use superblock::{CYCLES, Durability, HEAP_START, MAGIC, SLOT, VERSION, WORDS};
