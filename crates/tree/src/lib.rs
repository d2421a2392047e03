//! **tree**: durable ordered maps. Each operation is durable when it returns.
//!
//! | map | durable because | keys |
//! |---|---|---|
//! | `BpTree` | every change is a transaction of `tx` | `u64`, byte strings |
//! | `FpTree` | leaves lie in durable memory, changed by ordered stores; inner nodes are rebuilt | `u64`, byte strings |
//!
//! What must always hold, of each: operations are linearizable, and after a crash exactly those that returned are there, plus possibly
//! one in flight for each thread, whole or not at all.

pub mod bptree;
mod fingerprint;
pub mod fptree;
mod keys;
mod known;
mod map;
mod paper;
mod search;

pub use bptree::BpTree;
pub use fptree::FpTree;
pub use keys::{Blobs, Key};
pub use known::{Checked, check_all, check_arena};
pub use map::{Direction, Error, KEY_MAX, OrderedMap, Result, Session};
pub use paper::PaperTree;
