//! The state of the medium while a trace is replayed: what has survived for sure, and what may or may not have.
//!
//! ```text
//!   durable     names, pages                           changed by fences and sync_names only
//!   lines       per 64-byte line, its pieces           added by writes, moved to durable by fences; after a failed sync by none
//!                                                      that follows, until the line is written again
//!                 [store w0][store w3][stream w5] ...  a piece lies inside one aligned 8-byte word
//!                      ▲ mark of thread 1: its fence moves the stores before it
//!   name_ops    since the last sync_names
//!   lengths     of regions created and not fenced yet
//! ```
//!
//! What must always hold: everything not in `durable` appears exactly once in the other three, so that a choice for each of
//! them is exactly one crash image.

use std::collections::{BTreeMap, BTreeSet};

use super::Model;
use super::pages::{Pages, Snapshot};
use super::trace::{Event, NameOp, Op, Trace};
use crate::{LINE, PAGE};

const WORD: usize = 8;
const LINES_PER_PAGE: u64 = (PAGE / LINE) as u64;
/// Words of a line.
pub(super) const WORDS: usize = LINE / WORD;

/// State after some events of a trace.
pub(super) struct Replay<'t> {
    trace: &'t Trace,
    /// Events replayed.
    pub done: usize,
    pub durable: Snapshot,
    /// By region and line number.
    pub lines: BTreeMap<(u32, u64), Line>,
    /// Numbers of the events of which something is undecided, with how many pieces.
    pub undecided: BTreeMap<usize, usize>,
    /// With the event's number.
    pub name_ops: Vec<(usize, NameOp)>,
    /// Regions whose length is undecided, with the event that created them.
    pub lengths: BTreeMap<u32, usize>,
    pub notes: Vec<u64>,
    /// Lines that a thread's next fence of a region may concern.
    touched: BTreeMap<(u32, u32), Vec<u64>>,
}

/// What is undecided about one line.
#[derive(Default)]
pub(super) struct Line {
    pub pieces: Vec<Piece>,
    /// Whether a sync failed since its last write ([`Model::File`]): no later sync makes its pieces durable.
    lost: bool,
    /// Per thread: how many of the cached stores its next fence covers.
    marks: Vec<(u32, usize)>,
}

/// A write to one aligned word or a part of it.
pub(super) struct Piece {
    pub event: usize,
    pub streamed: bool,
    /// Offset in the line.
    pub off: u8,
    pub len: u8,
    thread: u32,
    bytes: [u8; WORD],
}

impl Piece {
    /// Number of its word in the line.
    pub fn word(&self) -> usize {
        self.off as usize / WORD
    }

    fn overlaps(&self, off: usize, len: usize) -> bool {
        (self.off as usize) < off + len && off < (self.off + self.len) as usize
    }

    /// Puts it into its line ([`Pages::line`]), as far as that lies inside its region.
    pub fn apply(&self, line: &mut [u8]) {
        let off = self.off as usize;
        let len = (self.len as usize).min(line.len().saturating_sub(off));
        if len > 0 {
            line[off..off + len].copy_from_slice(&self.bytes[..len]);
        }
    }
}

impl Line {
    /// How many cached stores, and how many streams per word, are undecided.
    pub fn sizes(&self) -> (u32, [u32; WORDS]) {
        let (mut stores, mut words) = (0, [0; WORDS]);
        for piece in &self.pieces {
            if piece.streamed {
                words[piece.word()] += 1;
            } else {
                stores += 1;
            }
        }
        (stores, words)
    }

    /// Takes out what a fence of `thread` (`None`: of anybody, and everything) makes durable, in order.
    fn fenced(&mut self, thread: Option<u32>) -> Vec<Piece> {
        let Some(thread) = thread else {
            self.marks.clear();
            return std::mem::take(&mut self.pieces);
        };
        let marked = self.marks.iter().find(|(t, _)| *t == thread).map_or(0, |(_, n)| *n);
        let mut last_stream = [0; WORDS];
        for (i, piece) in self.pieces.iter().enumerate() {
            if piece.streamed && piece.thread == thread {
                last_stream[piece.word()] = i + 1;
            }
        }
        let (mut stores, mut covered, mut rest) = (0, Vec::new(), Vec::new());
        for (i, piece) in std::mem::take(&mut self.pieces).into_iter().enumerate() {
            let durable = if piece.streamed {
                i < last_stream[piece.word()]
            } else {
                stores += 1;
                stores <= marked
            };
            if durable { covered.push(piece) } else { rest.push(piece) }
        }
        self.pieces = rest;
        self.marks.retain_mut(|(t, n)| {
            *n = n.saturating_sub(marked);
            *t != thread && *n > 0
        });
        covered
    }
}

impl<'t> Replay<'t> {
    pub fn new(trace: &'t Trace) -> Replay<'t> {
        Replay {
            trace,
            done: 0,
            durable: trace.base.clone(),
            lines: BTreeMap::new(),
            undecided: BTreeMap::new(),
            name_ops: Vec::new(),
            lengths: BTreeMap::new(),
            notes: Vec::new(),
            touched: BTreeMap::new(),
        }
    }

    pub fn trace(&self) -> &'t Trace {
        self.trace
    }

    /// Replays the next event. `false` when a crash after it can leave nothing else, and nothing else is promised, than
    /// before it.
    pub fn step(&mut self) -> bool {
        let Event { thread, op } = &self.trace.events[self.done];
        self.done += 1;
        match op {
            Op::Write { region, off, at, len, streamed } => {
                self.write(*thread, *region, *off, &self.trace.data[*at..at + len], *streamed);
            }
            Op::WriteBack { region, off, len } => {
                self.write_back(*thread, *region, *off, *len);
                return false;
            }
            Op::Fence { region } => self.fence(*thread, *region),
            Op::FailedFence { region } => {
                self.lines.range_mut((*region, 0)..=(*region, u64::MAX)).for_each(|(_, line)| line.lost = true);
                return false;
            }
            Op::Evict { region, page, reached } => self.evict(*region, *page, *reached),
            Op::Name(op) => {
                if let NameOp::Create { region, len, .. } = op {
                    self.durable.regions.insert(*region, Pages::zeroed(*len));
                    if *len > 0 {
                        self.lengths.insert(*region, self.done - 1);
                        self.count(self.done - 1, 1);
                    }
                }
                self.name_ops.push((self.done - 1, op.clone()));
                self.count(self.done - 1, 1);
            }
            Op::SyncNames => {
                for (event, op) in std::mem::take(&mut self.name_ops) {
                    apply_name(&mut self.durable, &op);
                    self.uncount(event, 1);
                }
                self.forget_nameless();
            }
            Op::Note(note) => self.notes.push(*note),
            Op::Ignored { .. } => return false,
        }
        true
    }

    fn write(&mut self, thread: u32, region: u32, off: u64, bytes: &[u8], streamed: bool) {
        if !self.durable.regions.contains_key(&region) {
            return;
        }
        let line_model = self.trace.model == Model::Line;
        let (streamed, event) = (streamed || !line_model, self.done - 1);
        let mut done = 0;
        let mut pieces = 0;
        while done < bytes.len() {
            let number = (off + done as u64) / LINE as u64;
            let line = self.lines.entry((region, number)).or_default();
            line.lost = false;
            let begin = line.pieces.len();
            let mut in_line = ((off + done as u64) % LINE as u64) as usize;
            while in_line < LINE && done < bytes.len() {
                let len = (WORD - in_line % WORD).min(bytes.len() - done);
                let mut word = [0; WORD];
                word[..len].copy_from_slice(&bytes[done..done + len]);
                line.pieces.push(Piece { event, streamed, off: in_line as u8, len: len as u8, thread, bytes: word });
                (in_line, done) = (in_line + len, done + len);
            }
            let (before, new) = line.pieces.split_at(begin);
            pieces += new.len();
            if streamed && line_model {
                let breaks = |old: &&Piece| !old.streamed && new.iter().any(|p| old.overlaps(p.off as usize, p.len as usize));
                if let Some(clash) = before.iter().find(breaks) {
                    panic!(
                        "the program breaks the contract of Region::stream: {} overwrites unfenced cached bytes of {}",
                        self.trace.info(event),
                        self.trace.info(clash.event),
                    );
                }
                self.touch(thread, region, number);
            }
        }
        if pieces > 0 {
            self.count(event, pieces);
        }
    }

    fn write_back(&mut self, thread: u32, region: u32, off: u64, len: u64) {
        for number in off / LINE as u64..=(off + len - 1) / LINE as u64 {
            let Some(line) = self.lines.get_mut(&(region, number)) else {
                continue;
            };
            let stores = line.pieces.iter().filter(|piece| !piece.streamed).count();
            match line.marks.iter_mut().find(|(t, _)| *t == thread) {
                Some((_, mark)) => *mark = stores,
                None => line.marks.push((thread, stores)),
            }
            self.touch(thread, region, number);
        }
    }

    fn fence(&mut self, thread: u32, region: u32) {
        if let Some(event) = self.lengths.remove(&region) {
            self.uncount(event, 1);
        }
        let (by, numbers) = match self.trace.model {
            Model::Line => (Some(thread), self.touched.remove(&(thread, region)).unwrap_or_default()),
            Model::File => {
                let all = self.lines.range((region, 0)..=(region, u64::MAX)).filter(|(_, line)| !line.lost);
                (None, all.map(|((_, number), _)| *number).collect())
            }
        };
        for number in numbers {
            // A line is listed once per touch: later mentions find it settled.
            let Some(line) = self.lines.get_mut(&(region, number)) else {
                continue;
            };
            let covered = line.fenced(by);
            if line.pieces.is_empty() {
                self.lines.remove(&(region, number));
            }
            if !covered.is_empty() {
                let into = self.durable.regions.get_mut(&region).expect("regions are never dropped").line(number);
                covered.iter().for_each(|piece| piece.apply(into));
                self.uncount_pieces(&covered);
            }
        }
    }

    /// Pages of which everything undecided was lost by failed syncs: they count as clean, and memory pressure may evict them.
    pub fn lost_pages(&self) -> Vec<(u32, u64)> {
        let mut pages: BTreeMap<(u32, u64), bool> = BTreeMap::new();
        for ((region, number), line) in &self.lines {
            *pages.entry((*region, number / LINES_PER_PAGE)).or_insert(true) &= line.lost;
        }
        pages.into_iter().filter(|(_, lost)| *lost).map(|(page, _)| page).collect()
    }

    /// Decides what the device has of a page.
    fn evict(&mut self, region: u32, page: u64, reached: bool) {
        let first = page * LINES_PER_PAGE;
        let numbers: Vec<_> = self.lines.range((region, first)..(region, first + LINES_PER_PAGE)).map(|((_, n), _)| *n).collect();
        for number in numbers {
            let pieces = self.lines.remove(&(region, number)).expect("just listed").pieces;
            if let (true, Some(pages)) = (reached, self.durable.regions.get_mut(&region)) {
                let into = pages.line(number);
                pieces.iter().for_each(|piece| piece.apply(into));
            }
            self.uncount_pieces(&pieces);
        }
    }

    /// A region that has durably lost its last name is in no crash image any more, whatever an open handle still does to it.
    fn forget_nameless(&mut self) {
        let named: BTreeSet<u32> = self.durable.names.values().copied().collect();
        self.durable.regions.retain(|region, _| named.contains(region));
        let gone: Vec<(u32, u64)> = self.lines.keys().filter(|(region, _)| !named.contains(region)).copied().collect();
        for key in gone {
            let pieces = self.lines.remove(&key).expect("just listed").pieces;
            self.uncount_pieces(&pieces);
        }
        let gone: Vec<u32> = self.lengths.keys().filter(|region| !named.contains(region)).copied().collect();
        for region in gone {
            let event = self.lengths.remove(&region).expect("just listed");
            self.uncount(event, 1);
        }
    }

    fn touch(&mut self, thread: u32, region: u32, line: u64) {
        let lines = self.touched.entry((thread, region)).or_default();
        if lines.last() != Some(&line) {
            lines.push(line);
        }
    }

    fn count(&mut self, event: usize, pieces: usize) {
        *self.undecided.entry(event).or_default() += pieces;
    }

    fn uncount_pieces(&mut self, pieces: &[Piece]) {
        pieces.chunk_by(|a, b| a.event == b.event).for_each(|of_one| self.uncount(of_one[0].event, of_one.len()));
    }

    fn uncount(&mut self, event: usize, pieces: usize) {
        let left = self.undecided.get_mut(&event).expect("what is undecided is counted");
        *left -= pieces;
        if *left == 0 {
            self.undecided.remove(&event);
        }
    }
}

/// Does `op` to the names. An operation moves its own region's name only, so that one that survived without an unrelated
/// other never takes the other's region along.
pub(super) fn apply_name(snapshot: &mut Snapshot, op: &NameOp) {
    let names = &mut snapshot.names;
    match op {
        NameOp::Create { name, region, .. } => {
            names.insert(name.clone(), *region);
        }
        NameOp::Remove { name, region } => {
            if names.get(name) == Some(region) {
                names.remove(name);
            }
        }
        NameOp::Rename { from, to, region } => {
            if names.get(from) == Some(region) {
                names.remove(from);
            }
            names.insert(to.clone(), *region);
        }
    }
}
