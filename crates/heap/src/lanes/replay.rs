//! The replayer: takes records from the lanes into the image, and frees the lanes' space.
//!
//! ```text
//!   lanes ──merge by timestamp──► words ──store, write back──► image ──fence──► cut
//! ```
//!
//! The steps of [`Replayer::apply`]; stopping after any of them is safe:
//! 1. words are stored into the image, oldest record first, and their lines written back: all are in durable records that the newest cut does
//!    not pass over, and recovery stores them again, and every newer one of the same word after it;
//! 2. the image's stamp says so; fence: the image is durable up to the newest of these records;
//! 3. the cut says so, and is fenced: lane space before its tails is free. Only then is the caller told.
//!
//! What must always hold: of two values of a word the one of the newer record is stored last; there is one replayer of a pool at a time.
//! It needs no working copy, so that it can live in another process.

use std::sync::Arc;

use towa_media::{Access, Durability, LINE, Medium, Region};

use super::batch::Batch;
use super::cursor::{Cursor, merge};
use super::lines::Lines;
use super::record::{Few, Words};
use super::recover::says;
use super::{Cut, Geometry, record};
use crate::alloc::CHUNK;
use crate::stamp;
use crate::superblock::{self, Door, Superblock, read_superblock};
use crate::{Error, Heap, Result};

/// Records after which the caller may pause.
const RECORDS_BETWEEN_PAUSES: u64 = 1024;

/// Applies records to the image.
#[derive(Debug)]
pub struct Replayer {
    image: Arc<dyn Region>,
    log: Arc<dyn Region>,
    durability: Durability,
    pool: String,
    heap_len: u64,
    geometry: Geometry,
    cut: Cut,
}

/// What was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Of each lane: where its live part begins now. Space before it is free.
    pub tails: Vec<u64>,
    /// Timestamp of the newest record that the image holds.
    pub ts: u64,
    /// Records applied.
    pub records: u64,
    /// Words in them.
    pub words: u64,
    /// Image lines written for them.
    pub lines: u64,
}

/// What records came to.
#[derive(Clone, Default)]
struct Outcome {
    positions: Vec<u64>,
    ts: u64,
    frontier: u64,
    records: u64,
    words: u64,
}

impl Replayer {
    /// The first replayer of an open heap; shares its regions. Opening made durable what it goes on from.
    ///
    /// # Panics
    /// If the heap is not of a pool of the tx door.
    pub fn of(heap: &Heap) -> Result<Replayer> {
        let (lanes, medium) = (heap.lanes(), heap.medium().expect("lanes are on a medium"));
        let (log, sb) = (Arc::clone(&lanes.region), heap.superblock());
        let cut = Cut::read(&*log, &sb)?.map_err(|what| Error::Damaged { pool: medium.location(), what })?;
        Ok(Self::with_cut(&**medium, (Arc::clone(heap.image()), log), &sb, cut))
    }

    /// The replayer of an open heap whose replayer was another process until now.
    ///
    /// # Panics
    /// As [`of`](Self::of).
    pub fn take_over(heap: &Heap) -> Result<Replayer> {
        let (lanes, medium) = (heap.lanes(), heap.medium().expect("lanes are on a medium"));
        Self::after_another(&**medium, Arc::clone(heap.image()), Arc::clone(&lanes.region), &heap.superblock())
    }

    /// The replayer of a pool that another process owns. Takes no lock and writes nothing by itself; the owner sees to it that there is
    /// one replayer at a time.
    pub fn attach(medium: &dyn Medium) -> Result<Replayer> {
        let sb = read_superblock(medium, Door::Tx)?;
        let (image, log) = superblock::open_files(medium, &sb, Access::ReadWrite)?;
        Self::after_another(medium, image, log, &sb)
    }

    fn after_another(medium: &dyn Medium, image: Arc<dyn Region>, log: Arc<dyn Region>, sb: &Superblock) -> Result<Replayer> {
        let damaged = |what| Error::Damaged { pool: medium.location(), what };
        // Its sync may have failed: what goes into the image again must not go through the pages that it left.
        image.evict();
        log.evict();
        let cut = Cut::read(&*log, sb)?.map_err(damaged)?;
        // An earlier replayer may have left it visible and not durable: the next cut takes the place of the one before it.
        cut.rewrite(&*log)?;
        log.fence()?;
        // So with the image's stamp, for the same reason.
        if let Some(found) = stamp::newest(&*image)? {
            stamp::write_again(&*image, &found)?;
            image.fence()?;
        }
        Ok(Self::with_cut(medium, (image, log), sb, cut))
    }

    /// With the newest cut, as read before.
    pub(crate) fn with_cut(
        medium: &dyn Medium,
        (image, log): (Arc<dyn Region>, Arc<dyn Region>),
        sb: &Superblock,
        cut: Cut,
    ) -> Replayer {
        let (durability, pool, geometry) = (medium.durability(), medium.location(), Geometry::of(sb));
        Replayer { image, log, durability, pool, heap_len: sb.heap_len, geometry, cut }
    }

    /// Generation of the records that it applies.
    pub fn generation(&self) -> u64 {
        self.cut.generation
    }

    /// Of each lane: where its live part begins.
    pub fn tails(&self) -> &[u64] {
        &self.cut.tails[..self.geometry.count]
    }

    /// Applies the records up to timestamp `upto` that lie in each lane between its tail and `heads[lane]`, in the order of their
    /// timestamps; makes the image durable, and the cut that says so. Stops in a lane at the first newer record. All records before
    /// `heads` are durable; one that is not there is an error, and so is one older than another in its lane before it.
    /// Another error, before anything is stored: `heads` is not one head for each lane, at most
    /// [`lane_len`](super::Lanes::lane_len) behind its tail.
    ///
    /// No record up to `upto` may be appended behind `heads` later: its words would come after those of newer ones.
    ///
    /// `pause` is called now and then on the calling thread: a caller who would spread the work may sleep there.
    pub fn apply(&mut self, heads: &[u64], upto: u64, pause: &mut dyn FnMut()) -> Result<Applied> {
        stamp::settle(&*self.image)?;
        let stored = self.store(heads, upto, pause)?;
        stamp::advance(&*self.image, (self.cut.generation, stored.outcome.ts))?;
        self.image.fence()?;
        self.cut_behind(stored)
    }

    /// Step 3 of [`apply`](Self::apply).
    fn cut_behind(&mut self, stored: Stored) -> Result<Applied> {
        let Stored { outcome: Outcome { positions: tails, ts, frontier, records, words }, lines } = stored;
        let applied = Applied { tails, ts, records, words, lines };
        let mut next = self.cut;
        next.tails[..applied.tails.len()].copy_from_slice(&applied.tails);
        (next.ts, next.frontier) = (applied.ts, frontier);
        if next.tails != self.cut.tails {
            next.write(&*self.log)?;
            self.cut = next;
        }
        Ok(applied)
    }

    /// Step 1 of [`apply`](Self::apply): what is stored is durable behind a fence of the image by this thread.
    pub(crate) fn store(&mut self, heads: &[u64], upto: u64, pause: &mut dyn FnMut()) -> Result<Stored> {
        self.check_heads(heads)?;
        match self.durability {
            Durability::Line => self.store_lines(heads, upto, pause),
            Durability::Sync => self.store_batches(heads, upto, pause),
        }
    }

    /// Heads come from memory that other processes write.
    fn check_heads(&self, heads: &[u64]) -> Result<()> {
        let damaged = |what| Err(Error::Damaged { pool: self.pool.clone(), what });
        if heads.len() != self.geometry.count {
            return damaged(format!("{} heads are given for the {} lanes of the log", heads.len(), self.geometry.count));
        }
        for (lane, (head, tail)) in heads.iter().zip(&self.cut.tails).enumerate() {
            let live = head.checked_sub(*tail);
            if live.is_none_or(|live| live > self.geometry.lane_len || !live.is_multiple_of(LINE as u64)) {
                return damaged(format!("lane {lane} of the log, whose tail is {tail}, is given the impossible head {head}"));
            }
        }
        Ok(())
    }

    fn store_lines(&self, heads: &[u64], upto: u64, pause: &mut dyn FnMut()) -> Result<Stored> {
        let mut lines = Lines::new(&*self.image);
        let outcome = self.visit(heads, upto, pause, &mut lines)?;
        let lines = lines.finish();
        Ok(Stored { outcome, lines })
    }

    fn store_batches(&self, heads: &[u64], upto: u64, pause: &mut dyn FnMut()) -> Result<Stored> {
        let mut batch = Batch::new(&*self.image);
        let outcome = self.visit(heads, upto, pause, &mut batch)?;
        let lines = batch.finish()?;
        Ok(Stored { outcome, lines })
    }

    /// Gives the words of all records to apply to `sink`, in order.
    #[inline(always)]
    fn visit(&self, heads: &[u64], upto: u64, pause: &mut dyn FnMut(), sink: &mut impl Sink) -> Result<Outcome> {
        let damaged = |what: String| Error::Damaged { pool: self.pool.clone(), what };
        let missing = |cursor: &Cursor<'_>| damaged(says(&cursor.fault("is not there, or not whole")));
        let seed = |lane| record::lane_seed(&self.geometry.uuid, self.cut.generation, lane);
        let cursor = |lane| Cursor::new(&*self.log, &self.geometry, lane, seed(lane), (self.cut.tails[lane], heads[lane]), true);
        let mut cursors: Vec<_> = (0..heads.len()).map(cursor).collect();
        for cursor in &mut cursors {
            if !cursor.find()?.map_err(|fault| damaged(says(&fault)))? && !cursor.is_at_end() {
                return Err(missing(cursor));
            }
        }
        let mut outcome = Outcome { ts: self.cut.ts, frontier: self.cut.frontier, ..Outcome::default() };
        let merged = merge(&mut cursors, upto, |cursor| {
            cursor.ahead(|word| sink.ahead(word));
            let ts = cursor.ts();
            if ts <= self.cut.ts {
                return Ok(());
            }
            outcome.ts = ts;
            outcome.records += 1;
            if outcome.records.is_multiple_of(RECORDS_BETWEEN_PAUSES) {
                pause();
            }
            let words = cursor.record()?;
            if let Some(few) = record::few(words) {
                outcome.words += few.values.len() as u64;
                return sink.few(few);
            }
            if let Some(frontier) = record::frontier(words) {
                if frontier > self.heap_len || !frontier.is_multiple_of(CHUNK) {
                    return Err(damaged(format!("a record of the log has an impossible frontier, {frontier}")));
                }
                if frontier > outcome.frontier {
                    sink.rises(outcome.frontier, frontier);
                    outcome.frontier = frontier;
                }
            }
            record::each_run(words, |words| {
                outcome.words += words.values.len() as u64;
                sink.words(words)
            })
        });
        merged?.map_err(|fault| damaged(says(&fault)))?;
        if let Some(broken) = cursors.iter().find(|cursor| cursor.ts() == u64::MAX && !cursor.is_at_end()) {
            return Err(missing(broken));
        }
        outcome.positions = cursors.iter().map(|cursor| cursor.position).collect();
        Ok(outcome)
    }

    /// Has empty lanes begin at these positions: near a lap's end they soon wrap.
    #[cfg(test)]
    pub(super) fn begin_at(&mut self, positions: &[u64]) {
        self.cut.tails[..positions.len()].copy_from_slice(positions);
        self.cut.write(&*self.log).unwrap();
    }

    /// Ends the generation: the image holds all of it, durably. What its lanes hold does not count any more.
    pub(crate) fn retire(&mut self, frontier: u64) -> Result<()> {
        let mut next = self.cut;
        (next.generation, next.ts, next.frontier, next.tails) = (next.generation + 1, 0, frontier, Cut::EMPTY);
        next.write(&*self.log)?;
        self.cut = next;
        Ok(())
    }
}

/// Where words go.
pub(super) trait Sink {
    /// These come next.
    fn words(&mut self, words: Words<'_>) -> Result<()>;

    /// These come next.
    #[inline(always)]
    fn few(&mut self, few: Few<'_>) -> Result<()> {
        few.each().try_for_each(|words| self.words(words))
    }

    /// This word may come soon.
    #[inline]
    fn ahead(&mut self, _word: u64) {}

    /// Bytes `from..to` of the heap are in use from now on.
    fn rises(&mut self, _from: u64, _to: u64) {}
}

/// What was stored; the cut does not say so yet.
pub(crate) struct Stored {
    outcome: Outcome,
    pub lines: u64,
}
