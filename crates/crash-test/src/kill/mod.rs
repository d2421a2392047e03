//! Kills of a process at every one of its stores to memory that outlives it.
//!
//! On `ram` whatever a process stored is there after it was killed, in the order of the program. So the states that kills leave are the
//! beginnings of the sequence of stores. A [`KillMedium`] records that sequence, of each instruction that stores into a file of the
//! pool, whether it goes through the medium's verbs or through the working copy of a heap in place (`recorder`).
//!
//! ```text
//!   program ──stores──► files in memory            Trace ──after n events──► Files ──► another medium ──► recovery, checks
//!                        └── each recorded ──────────┘
//! ```
//!
//! What must always hold: the files after the last event are what the program's files are.

mod files;
mod medium;
mod recorder;

pub use files::{Event, Files, Trace};
pub use medium::KillMedium;
