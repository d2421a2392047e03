//! **bench**: the measurements behind every figure in the documents; `towa bench epoch` is [`epoch::run`], `towa bench tx` is [`tx::run`],
//! `towa bench snap` is [`snap::run`], `towa bench xip` is [`xip::run`].
//!
//! ```text
//!   epoch ── engines ── rounds ── workload, clock      engines side by side in short rounds, one program
//!     │        └ store    └ windows                     the store measured; stops
//!     ├───── serving ─┬─ contender, client, peers       the server beside memcached and Redis, one load generator
//!     ├───── cache ───┘                                 the server as a cache beside memcached, sizes as caches have them
//!     ├───── recovery                                   SIGKILL and reopening, in processes of their own
//!     └───── report ──── targets, html, plot, table     what was found, as JSON, as a page, on the terminal
//!   tx ──── contenders, sides, load, pmdk, ...          the trees side by side; its own report in the same shapes
//!   snap ── pause, restart, space ── program, board   checkpoints and restarts of a program that watches the clock
//!   xip ─── matrix, exec, sharing, fit ── ground      programs in two files beside whole ones, on cold and warm pages
//! ```
//!
//! What must always hold:
//! - every ratio is of two figures taken side by side in one run, round by round (overview, rule 6);
//! - a figure that could not be taken is absent (null) with its reason, never zero or guessed;
//! - nothing is left behind: children and temporary directories go when the run ends, however it ends.

pub mod cache;
pub mod child;
pub mod cleanup;
pub mod client;
pub mod clock;
mod contender;
pub mod engines;
pub mod epoch;
mod files;
pub mod html;
pub mod machine;
pub mod output;
pub mod peers;
pub mod plot;
pub mod progress;
pub mod record;
pub mod recovery;
pub mod report;
pub mod rounds;
pub mod serving;
pub mod snap;
pub mod store;
pub mod table;
pub mod targets;
pub mod tx;
pub mod windows;
pub mod wire;
pub mod workload;
pub mod xip;

pub use recovery::child_main;
