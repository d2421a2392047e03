//! Who takes part: every tree behind one interface. A tree is added here, and nowhere else.
//!
//! ```text
//!   Contender            what can be made            `bptree_tx` with `rtm`, say
//!     └─ Instance        one map that was made       gives the map, drains, tells where time went
//!          └─ OrderedMap    what the load runs on
//! ```
//!
//! What must hold: every contender is made on the medium of its [`Site`] and touches no other, so that the site's counters are
//! its flushes and fences and the site's model delays it like the others; making it may take as long as it likes, and memory that it
//! will use is touched then, not under the clock.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use towa_media::RamMedium;
use towa_tree::OrderedMap;
use towa_tx::TmChoice;

use super::durable::{Bp, Fp};
use super::volatile::{Ordered, Ranges, Skip};

/// The B+-tree on durable transactions.
pub const BPTREE_TX: &str = "bptree_tx";
/// The paper's own tree on the same transactions.
pub const BPTREE_PAPER: &str = "bptree_paper";
/// The tree to beat.
pub const FPTREE: &str = "fptree";
/// libpmemobj's example.
pub const PMDK_BTREE: &str = "pmdk_btree";
/// Maps that keep nothing: the ceiling.
pub const VOLATILE: &str = "volatile";

/// All trees, in the order of tables and plots.
pub const TREES: [&str; 5] = [BPTREE_TX, BPTREE_PAPER, FPTREE, PMDK_BTREE, VOLATILE];

/// Most log space that a thread of a transactional tree may have in the benchmark.
pub const LOG_BYTES_PER_THREAD: u64 = 16 << 20;

/// Where an instance is made.
#[derive(Clone, Debug)]
pub struct Site {
    /// An empty directory of its own, on tmpfs; gone afterwards.
    pub dir: PathBuf,
    /// The medium of that directory.
    pub medium: Arc<RamMedium>,
    /// Most keys it will hold.
    pub keys: u64,
    /// Most threads that will use it.
    pub threads: usize,
}

/// A tree with one way of isolating its operations.
pub trait Contender: Send + Sync {
    /// One of [`TREES`].
    fn tree(&self) -> &'static str;
    /// How operations are isolated: `rtm`, `stm`, `lock`; of a volatile map: which.
    fn tm(&self) -> &'static str;
    /// Whether it runs with so many threads.
    fn fits(&self, _threads: usize) -> bool {
        true
    }
    /// Whether it uses the site's medium.
    fn durable(&self) -> bool {
        true
    }
    /// Why it cannot be made on this machine, if so.
    fn missing(&self) -> Option<String> {
        None
    }
    /// Makes an empty one.
    fn make(&self, site: &Site) -> Result<Box<dyn Instance>>;
    /// Whether [`reopen`](Self::reopen) can be measured.
    fn recovers(&self) -> bool {
        false
    }
    /// Opens the one that another process made at the site and left, however it ended.
    fn reopen(&self, _site: &Site) -> Result<Box<dyn Instance>> {
        bail!("{} ({}) keeps nothing", self.tree(), self.tm())
    }
}

/// One map under measurement.
pub trait Instance: Send + Sync {
    /// The map.
    fn map(&self) -> &dyn OrderedMap<u64>;
    /// Returns when nothing is left to do behind the operations' backs: every log is applied. Part of the time of what writes.
    fn drain(&self) -> Result<()> {
        Ok(())
    }
    /// Time that threads lost so far, by cause; `None` if it is not known.
    fn lost(&self) -> Option<Lost> {
        None
    }
}

/// Running totals over all threads since the map was made, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// In transactions that were rolled back, and in waits between their tries.
    pub abort_ns: u64,
    /// Waiting for room in a full log.
    pub log_full_ns: u64,
    /// Waiting until what was written, or read, is durable.
    pub durability_wait_ns: u64,
}

impl Lost {
    /// What was lost since `before`.
    pub fn since(self, before: Lost) -> Lost {
        Lost {
            abort_ns: self.abort_ns.saturating_sub(before.abort_ns),
            log_full_ns: self.log_full_ns.saturating_sub(before.log_full_ns),
            durability_wait_ns: self.durability_wait_ns.saturating_sub(before.durability_wait_ns),
        }
    }
}

/// All that run within this program, in the order in which a round begins with them.
pub fn contenders() -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(Bp(TmChoice::Rtm)),
        Box::new(Bp(TmChoice::Stm)),
        Box::new(Bp(TmChoice::Lock)),
        Box::new(Fp),
        Box::new(Ordered),
        Box::new(Ranges),
        Box::new(Skip),
    ]
}
