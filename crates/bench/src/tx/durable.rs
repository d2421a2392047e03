//! The durable trees: the B+-tree on transactions by every way of running them, the paper's on the same transactions, the FPTree.
//!
//! What must hold: a transactional tree's log is capped at [`LOG_BYTES_PER_THREAD`] a thread, and draining applies all of it; the media
//! are the site's, with real write-backs and fences.

use std::sync::Arc;

use anyhow::Result;
use towa_tree::{BpTree, FpTree, OrderedMap, PaperTree, fptree};
use towa_tx::{Options, Pool, Retry, TmChoice};

use super::contenders::{BPTREE_PAPER, BPTREE_TX, Contender, FPTREE, Instance, LOG_BYTES_PER_THREAD, Lost, Site};

/// Heap bytes for each key that will be there, generously: a leaf of 832 bytes is half full at the least.
pub const BYTES_PER_KEY: u64 = 64;
/// Heap bytes beside that.
const BYTES_BESIDE: u64 = 64 << 20;

fn name_of(tm: TmChoice) -> &'static str {
    match tm {
        TmChoice::Auto => "auto",
        TmChoice::Rtm => "rtm",
        TmChoice::Stm => "stm",
        TmChoice::Lock => "lock",
    }
}

fn missing(tm: TmChoice) -> Option<String> {
    let here = tm != TmChoice::Rtm || towa_tx::hardware_transactions_run();
    (!here).then(|| "this machine runs no hardware transactions".into())
}

fn options(site: &Site, tm: TmChoice) -> Options {
    Options {
        heap_len: site.keys * BYTES_PER_KEY + BYTES_BESIDE,
        lanes: site.threads as u32 + 2,
        lane_len: LOG_BYTES_PER_THREAD,
        tm,
        // The FPTree's memory is the medium's, all of which is there beforehand, too.
        prefault: true,
        ..Options::default()
    }
}

/// The B+-tree on durable transactions.
#[derive(Debug)]
pub struct Bp(pub TmChoice);

#[derive(Debug)]
struct BpInstance {
    map: BpTree<u64>,
}

impl Contender for Bp {
    fn tree(&self) -> &'static str {
        BPTREE_TX
    }
    fn tm(&self) -> &'static str {
        name_of(self.0)
    }
    fn missing(&self) -> Option<String> {
        missing(self.0)
    }
    fn make(&self, site: &Site) -> Result<Box<dyn Instance>> {
        let pool = Pool::create_on(site.medium.clone(), &options(site, self.0))?;
        Ok(Box::new(BpInstance { map: BpTree::create(&pool, "map")? }))
    }
    fn recovers(&self) -> bool {
        true
    }
    fn reopen(&self, site: &Site) -> Result<Box<dyn Instance>> {
        let pool = Pool::open_on(site.medium.clone(), &options(site, self.0))?;
        Ok(Box::new(BpInstance { map: BpTree::open(&pool, "map")? }))
    }
}

impl Instance for BpInstance {
    fn map(&self) -> &dyn OrderedMap<u64> {
        &self.map
    }
    fn drain(&self) -> Result<()> {
        Ok(self.map.pool().checkpoint()?)
    }
    fn lost(&self) -> Option<Lost> {
        Some(lost(self.map.pool()))
    }
}

/// The paper's tree: sorted leaves, every shifted word logged, whole operations in one transaction, 20 blind retries.
#[derive(Debug)]
pub struct Paper;

#[derive(Debug)]
struct PaperInstance {
    map: PaperTree,
    pool: Pool,
}

/// What public codes of NV-HTM do before they take the global lock.
const PAPER_RETRIES: u32 = 20;

fn paper_options(site: &Site) -> Options {
    let tm = if towa_tx::hardware_transactions_run() { TmChoice::Rtm } else { TmChoice::Lock };
    Options { retry: Retry::Blind(PAPER_RETRIES), ..options(site, tm) }
}

impl Contender for Paper {
    fn tree(&self) -> &'static str {
        BPTREE_PAPER
    }
    fn tm(&self) -> &'static str {
        if towa_tx::hardware_transactions_run() { "rtm" } else { "lock" }
    }
    fn make(&self, site: &Site) -> Result<Box<dyn Instance>> {
        let pool = Pool::create_on(site.medium.clone(), &paper_options(site))?;
        Ok(Box::new(PaperInstance { map: PaperTree::open_or_create(&pool, "map")?, pool }))
    }
}

impl Instance for PaperInstance {
    fn map(&self) -> &dyn OrderedMap<u64> {
        &self.map
    }
    fn drain(&self) -> Result<()> {
        Ok(self.pool.checkpoint()?)
    }
    fn lost(&self) -> Option<Lost> {
        Some(lost(&self.pool))
    }
}

fn lost(pool: &Pool) -> Lost {
    let stats = pool.stats();
    Lost { abort_ns: stats.abort_ns, log_full_ns: stats.log_full_ns, durability_wait_ns: stats.durability_ns }
}

/// The FPTree.
#[derive(Debug)]
pub struct Fp;

#[derive(Debug)]
struct FpInstance {
    map: FpTree<u64>,
}

impl Contender for Fp {
    fn tree(&self) -> &'static str {
        FPTREE
    }
    fn tm(&self) -> &'static str {
        "versions"
    }
    fn make(&self, site: &Site) -> Result<Box<dyn Instance>> {
        let options = fptree::Options { len: site.keys * BYTES_PER_KEY + BYTES_BESIDE, ..fptree::Options::default() };
        Ok(Box::new(FpInstance { map: FpTree::create(site.medium.clone(), &options)? }))
    }
    fn recovers(&self) -> bool {
        true
    }
    fn reopen(&self, site: &Site) -> Result<Box<dyn Instance>> {
        Ok(Box::new(FpInstance { map: FpTree::open(Arc::<towa_media::RamMedium>::clone(&site.medium))? }))
    }
}

impl Instance for FpInstance {
    fn map(&self) -> &dyn OrderedMap<u64> {
        &self.map
    }
}
