//! **xip**: executables in two files, whose code pages are mapped from NVM, on a stock kernel (OFF2F).
//!
//! ```text
//!   install ── a program is replaced by its half, and back             verify, stat ── looking, changing nothing
//!     │  └──── needed        which libraries it has                    trace ── what a command forks, executes, faults
//!     │                                                                model, budget ── the paper's equations; what is worth its NVM
//!   split ──── layout ── elf       bytes to two halves, and back
//!     └─────── format              the records of both halves
//!   store ──── loader              where texts lie, and who maps them when a program starts (`loader/`, in C, without libc)
//! ```
//!
//! What must always hold: `join(split(x)) == x`; a program's name leads to the whole program or to a working split one, whenever the
//! tool is stopped; a library is never changed, and runs from its own text wherever the store has not exactly that.

mod bounded;
pub mod budget;
pub mod elf;
pub mod error;
pub mod figure;
pub(crate) mod file;
pub mod format;
pub mod install;
pub mod layout;
pub mod loader;
pub mod model;
pub mod needed;
pub mod split;
pub mod stat;
pub mod store;
pub(crate) mod tls;
pub mod trace;
pub mod traced;
pub mod verify;

pub use error::{Error, Result};
