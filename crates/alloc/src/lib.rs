//! **alloc**: an allocator inside durable bytes, for what lives there in place (the leaves of a tree, its keys).
//!
//! ```text
//!   Arena       durable bytes with a view for loads; stores go through the verbs of the medium
//!     ▲
//!   Allocator   which blocks are taken: in DRAM only ◄── rebuilt at opening: the user marks every block that can be reached
//!     ▲
//!   Local       one thread's way to it: a current segment per class
//! ```
//!
//! **Reserve, fill, publish.** [`Local::reserve`] hands out a block in DRAM only. The user fills it, makes it durable, and publishes it by
//! one durable store that makes it reachable. Whatever the moment of a crash: a block that cannot be reached is not marked by the next
//! opening, and is free; one that can be reached is marked, and taken. So nothing leaks and nothing is handed out twice, without a single
//! flush of the allocator's own. The reverse for [`Local::free`]: only after the store that made the block unreachable is durable.
//!
//! What must always hold: every block that can be reached lies below the high-water mark, which is the only thing that is durable here.

mod allocator;
mod arena;
mod audit;
mod classes;
mod error;
mod header;
mod large;
mod local;
mod table;

pub use allocator::{Allocator, Rebuild, Usage};
pub use arena::{Arena, CreateOptions};
pub use audit::Audit;
pub use classes::{CLASSES, SEGMENT, SIZES};
pub use error::{Error, Result};
pub use header::{Description, KIND_LEN, MAGIC, NAME, VERSION, describe};
pub use local::Local;

#[cfg(test)]
mod creation_tests;
#[cfg(test)]
mod tests;
