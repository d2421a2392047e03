//! **snap**: a running program is checkpointed without stopping to copy its memory, and started again where it was (NVM-C/R).
//!
//! ```text
//!   inspect ── what the program is made of, and what of it cannot be kept: said before it is touched
//!   memory  ── which pages changed; copied while the program runs, the rest while it stands still
//!   freeze  ── all threads stand still; remote: system calls in the target's name
//!   store   ── a directory of checkpoints, each complete, sharing what they have in common
//!   nv      ── the other way to keep memory: it lies in a file, which is cloned
//!   restart ── a new process with the same memory, threads, descriptors, timers
//! ```
//!
//! What must always hold: a program that cannot be checkpointed goes on unharmed; so does one whose checkpoint is cut off anywhere; and
//! a checkpoint that is listed is complete.

pub mod error;
pub mod freeze;
pub mod memory;
pub mod nv;
pub mod own;
pub mod pages;
pub mod remote;
pub mod restart;
pub mod state;
pub mod store;
pub mod sys;
pub mod take;

pub use error::{Error, Refusal, Result};
