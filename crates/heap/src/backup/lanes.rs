//! Following the lanes of a pool of the tx door: record after record of each lane, as they appear.
//!
//! A record depends on records in other lanes, all of which are durable before it is written, and have older
//! timestamps. A lane that is read early lacks what one that is read late depends on. So when the image is copied,
//! all lanes are read, and the newest timestamp found is the limit of what the copy holds. Then they are read again
//! and again, until no further record up to that limit is found. What the records of one reading depend on was in the
//! lanes before that reading, so the next one finds it; if that one finds nothing more, nothing is missing. This ends
//! soon: only transactions that had their timestamp before the limit was set can add to it, one for each lane.
//!
//! What must always hold: a record is used only when its checksum fits its lane and position. A lane whose tail is
//! beyond what was read, and where nothing more can be read, was overwritten before.

use std::time::Duration;

use towa_media::{Medium, Region};

use super::{Follow, Laid, wait};
use crate::lanes::{Cut, Geometry, Reader};
use crate::overlay::Overlay;
use crate::stamp::Reach;
use crate::superblock::Superblock;
use crate::{Error, Result};

/// A record that is not laid over the image yet.
struct Pending {
    ts: u64,
    lane: usize,
    words: Vec<u64>,
}

impl Pending {
    fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// Records of all lanes, in any order.
struct Records(Vec<Pending>);

impl Laid for Records {
    fn lay(self: Box<Self>, copy: &dyn Region, upto: u64, later: &mut Overlay) -> Result<()> {
        let mut records = self.0;
        // A stable sort: of one lane's records with the same timestamp the first comes first.
        records.sort_by_key(|record| (record.ts, record.lane));
        for record in records {
            Reader::each_run(&record.words, |first, values| later.add_words(first, values));
        }
        later.write_below(copy, upto)
    }
}

/// How far lanes were read.
pub(super) struct LanesFollower<'r> {
    reader: Reader<'r>,
    log: &'r dyn Region,
    pool: String,
    sb: Superblock,
    /// The cut that the copy of the image is at least as new as.
    cut: Cut,
    positions: Vec<u64>,
    pending: Vec<Pending>,
    /// Their bytes.
    kept: usize,
    /// Records up to this timestamp may be written.
    limit: u64,
    frontier: u64,
    /// Newest timestamp of a record that was read.
    newest: u64,
}

impl<'r> LanesFollower<'r> {
    /// From where the cut says that the live part of each lane begins. `None`: the cut cannot be read now.
    pub fn of(medium: &dyn Medium, log: &'r dyn Region, sb: &Superblock) -> Result<Option<LanesFollower<'r>>> {
        let Ok(cut) = Cut::read(log, sb)? else { return Ok(None) };
        let geometry = Geometry::of(sb);
        Ok(Some(LanesFollower {
            reader: Reader::new(log, sb, cut.generation),
            log,
            pool: medium.location(),
            sb: *sb,
            positions: cut.tails[..geometry.count].to_vec(),
            pending: Vec::new(),
            kept: 0,
            limit: cut.ts,
            frontier: cut.frontier,
            newest: cut.ts,
            cut,
        }))
    }

    /// Reads what is new in a lane; whether there was anything.
    fn read_lane(&mut self, lane: usize) -> Result<bool> {
        let before = self.positions[lane];
        let (cut, pending, kept) = (&self.cut, &mut self.pending, &mut self.kept);
        let (mut newest, mut frontier) = (self.newest, self.frontier);
        let read = self.reader.read(lane, before, &mut |ts, words, its_frontier| {
            if ts > cut.ts {
                newest = newest.max(ts);
                frontier = frontier.max(its_frontier.unwrap_or(0));
                *kept += words.len() * 8;
                pending.push(Pending { ts, lane, words: words.to_vec() });
            }
        })?;
        self.positions[lane] = read.map_err(|what| Error::Damaged { pool: self.pool.clone(), what })?;
        (self.newest, self.frontier) = (newest, frontier);
        Ok(self.positions[lane] > before)
    }

    /// The cut as it is now, of the same generation.
    fn cut_now(&self) -> Result<Option<Cut>> {
        for _ in 0..8 {
            if let Ok(cut) = Cut::read(self.log, &self.sb)? {
                return Ok(Some(cut).filter(|cut| cut.generation == self.cut.generation));
            }
            wait();
        }
        Ok(None)
    }

    /// Reads all lanes once. Gives the cut as it was after that; `None`: something was overwritten before it was
    /// read.
    fn read_all(&mut self) -> Result<Option<Cut>> {
        for lane in 0..self.positions.len() {
            self.read_lane(lane)?;
        }
        let Some(cut) = self.cut_now()? else { return Ok(None) };
        for lane in 0..self.positions.len() {
            // Records may have been written, applied and cut since this lane was read.
            while self.positions[lane] < cut.tails[lane] {
                if !self.read_lane(lane)? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(cut))
    }
}

impl Follow for LanesFollower<'_> {
    fn poll(&mut self) -> Result<bool> {
        let Some(cut) = self.read_all()? else { return Ok(false) };
        // All records up to the cut's timestamp are in the lanes: no older one comes later.
        self.limit = self.limit.max(cut.ts);
        Ok(true)
    }

    fn finish(&mut self, _: &dyn Region) -> Result<bool> {
        if self.read_all()?.is_none() {
            return Ok(false);
        }
        let limit = self.newest;
        loop {
            let count = |pending: &[Pending]| pending.iter().filter(|record| record.ts <= limit).count();
            let before = count(&self.pending);
            if self.read_all()?.is_none() {
                return Ok(false);
            }
            if count(&self.pending) == before {
                break;
            }
        }
        self.limit = limit;
        Ok(true)
    }

    fn pause(&self) -> Duration {
        // Lanes are short, and a thread may write a million records a second.
        Duration::from_micros(100)
    }

    fn kept(&self) -> usize {
        self.kept
    }

    fn take(&mut self) -> Result<Box<dyn Laid>> {
        let limit = self.limit;
        let (now, later): (Vec<_>, Vec<_>) = self.pending.drain(..).partition(|record| record.ts <= limit);
        self.pending = later;
        self.kept = self.pending.iter().map(Pending::bytes).sum();
        Ok(Box::new(Records(now)))
    }

    fn frontier(&self) -> u64 {
        self.frontier
    }

    fn write_log(&self, log: &dyn Region, sb: &mut Superblock) -> Result<Reach> {
        log.reserve(0, crate::lanes::CUTS_LEN)?;
        let generation = self.cut.generation + 1;
        let mut cut = self.cut;
        (cut.generation, cut.ts, cut.frontier, cut.tails) = (generation, 0, self.frontier, Cut::EMPTY);
        cut.write(log)?;
        sb.generation = sb.generation.max(1);
        Ok((generation, 0))
    }
}
