//! Memory of another process: which of it belongs to a checkpoint, which pages changed, their content; and its lazy return.
//!
//! ```text
//!   maps ──> tracker ── what changed ──> reader ── its content ──> sink (the store's draft)
//!                └── precopy: rounds of that while the process runs, one while it stands still
//!   source (a checkpoint) ──> pager ──> a new process's memory, page by page as it is touched
//! ```

mod held;
pub mod maps;
pub mod pager;
pub mod precopy;
pub mod reader;
mod room;
mod sweep;
pub mod tracker;

pub use held::Held;
pub use maps::{Kept, Mapping};
pub use pager::{Pager, Source};
pub use precopy::{FrozenRound, Limits, Round, Sink, precopy};
pub use reader::Reader;
pub use sweep::Awake;
pub use tracker::{Change, Method, Phase, Tracker};
