//! `sim`: a medium that exists in memory only, records what is done to it, and yields **every state a crash could have left**.
//!
//! ```text
//!   program ──► SimMedium ──► Trace ──► Explorer ──► CrashImage ──to_medium()──► SimMedium ──► recovery, checks
//!               (records)                 │               ▲                        (records too: crash in recovery)
//!                                         └─ after each event, for each choice of what reached the medium
//! ```
//!
//! The model, which must stay at least as adverse as the hardware (and no more adverse than the contract of the traits, or
//! right programs would be called wrong):
//!
//! | | [`Model::Line`] | [`Model::File`] |
//! |---|---|---|
//! | `store` | cut into aligned 8-byte words; per 64-byte line a *prefix* of its words' stores survives, each line choosing for itself | as `stream` |
//! | `stream` | each 8-byte word survives or not, whatever the others do; of several writes of one word, a prefix | the same |
//! | `write_back` | the calling thread's next `fence` will cover what the line holds now; guarantees nothing by itself | nothing |
//! | `fence` | of the same region, by the same thread: what it covers has survived | everything in the region has survived, but for what an earlier failed fence left |
//! | failed `fence` | nothing | every process sees what was not durable, and no later fence makes it durable, unless its line is written again; a page of it may go back to what the device has ([`Trace::killed_and_evicted`]) |
//! | length | a region created and never fenced has no bytes, half, or all of them | the same |
//! | names | each operation since `sync_names` survives or not, but only after earlier ones on the same names; a rename is one step | the same |
//!
//! A crash *inside* a `store` or `stream` needs no event of its own: what it can leave is among what a crash after it can leave.
//!
//! ```
//! use towa_media::{Access, Allocation, Medium, sim::{Explorer, Model, SimMedium}};
//!
//! let sim = SimMedium::new(Model::Line);
//! let region = sim.create("cell", 128, Allocation::Full).unwrap();
//! region.fence().unwrap();
//! sim.sync_names().unwrap();
//! let created = sim.events();
//! region.store(64, &42u64.to_le_bytes()).unwrap(); // the data
//! region.write_back(64, 8);
//! region.fence().unwrap(); //                         without this line, the check below fails
//! region.store(0, &1u64.to_le_bytes()).unwrap(); //   "the data are valid"
//!
//! let coverage = Explorer::new(sim.trace(), 1).starting_at(created).check(1000, |image| {
//!     let region = image.to_medium().open("cell", Access::ReadOnly).unwrap();
//!     let (mut valid, mut data) = ([0; 8], [0; 8]);
//!     region.read(0, &mut valid).unwrap();
//!     region.read(64, &mut data).unwrap();
//!     if valid[0] == 1 && data[0] != 42 { Err("valid without data".to_owned()) } else { Ok(()) }
//! });
//! assert_eq!(coverage.unwrap().sampled_events, 0);
//! ```

mod explore;
mod fault;
mod image;
mod locks;
mod medium;
mod pages;
mod replay;
mod space;
mod trace;

pub use explore::{Counterexample, Coverage, Explorer};
pub use fault::{Effect, Point};
pub use image::CrashImage;
pub use medium::{ForgetsRewrite, SimMedium};
pub use trace::{EventInfo, EventKind, PageFate, Trace};

/// Which hardware the simulator plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Durable memory: cache lines, write-backs, fences per thread.
    Line,
    /// A file: writes torn into words, durable by a sync of the region.
    File,
}
