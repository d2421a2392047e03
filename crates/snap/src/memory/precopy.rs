//! The copy of a running process's memory, made in rounds: what changed while one round was copied is copied by the next, and what is
//! left when that is little, while the process stands still.
//!
//! ```text
//!   process  runs ───────────────────────────────────────────────┐ stands still ┌ runs
//!   rounds     all │ changed meanwhile │ changed meanwhile │ ...  │ the rest     │
//!                └─ arm, read, into the sink          └─ arm, read, held         │
//!                                                                 └─ read into a buffer
//!                                                                                 └─ what is held and the rest, into the sink
//! ```
//!
//! Rounds after the first are held in memory, if they are not too large: a sink that is a file takes pages several times slower than they are
//! read, and a program that writes as fast as that would never be caught up with.
//!
//! What must always hold: nothing is written to a file, and no large piece of memory is asked for, while the process stands still.
//! After an error the sink holds no state of the process at all, and the tracker starts over.

use std::time::{Duration, Instant};

use super::maps::{self, Mapping};
use super::reader::Reader;
use super::tracker::{Change, Phase, Tracker};
use crate::error::{Error, Result};
use crate::pages::{PAGE, PageSet, Pages};

/// Pages that are read and given on in one piece.
const PIECE: u64 = 256;
/// What is held takes at most this part of the memory that is available; only a program needs as much that changes it within one round.
const HELD_PART: u64 = 8;

/// Where the copy goes.
pub trait Sink {
    /// The pages from `first_page` on have this content now.
    fn write(&mut self, first_page: u64, bytes: &[u8]) -> Result<()>;

    /// These pages have no content any more.
    fn forget(&mut self, pages: &PageSet) -> Result<()>;
}

/// When the process is to be stopped for the rest.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// When a round has found no more changed pages than this.
    pub small_pages: u64,
    /// After this many rounds at the latest; with none, everything is copied while the process stands still.
    pub rounds: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { small_pages: 400, rounds: 8 }
    }
}

/// What a round did, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Round {
    /// Pages copied.
    pub written_pages: u64,
    /// Pages that had content and have none any more.
    pub dropped_pages: u64,
    /// Mappings that were not seen before.
    pub fresh_mappings: usize,
    /// Mappings that are copied whole in each round.
    pub untracked_mappings: usize,
    /// Time to find out what changed.
    pub find: Duration,
    /// Time to copy it.
    pub copy: Duration,
}

impl Round {
    fn of(change: &Change, find: Duration) -> Round {
        Round {
            written_pages: change.written.count(),
            dropped_pages: change.dropped.count(),
            fresh_mappings: change.fresh,
            untracked_mappings: change.untracked,
            find,
            copy: Duration::ZERO,
        }
    }
}

/// What was copied of a running process and not handed on yet. May be used again.
#[derive(Default)]
pub struct Held {
    /// What each round found, and the pages of it, one behind the other.
    rounds: Vec<(Change, Vec<u8>)>,
}

impl Held {
    /// Whether so many pages more may be held.
    fn has_room(&self, pages: u64) -> bool {
        let held: usize = self.rounds.iter().map(|(_, bytes)| bytes.len()).sum();
        held as u64 + pages * PAGE <= available() / HELD_PART
    }

    /// Gives what is held to the sink, in order, before anything that was copied later.
    pub fn hand_over(&mut self, sink: &mut dyn Sink) -> Result<()> {
        for (change, bytes) in std::mem::take(&mut self.rounds) {
            sink.forget(&change.dropped)?;
            hand_on(change.written.ranges(), &bytes, &PageSet::new(), sink)?;
        }
        Ok(())
    }

    /// Reads and holds what changed; the pages that could not be read are told, and not held.
    fn read(&mut self, reader: &Reader, mut change: Change) -> Result<PageSet> {
        let mut bytes = vec![0; (change.written.count() * PAGE) as usize];
        rather_huge(&mut bytes);
        let missed = reader.read(change.written.ranges(), &mut bytes)?;
        if !missed.is_empty() {
            let mut pages = change.written.ranges().iter().flat_map(Clone::clone);
            let kept = bytes.chunks_exact(PAGE as usize).filter(|_| pages.next().is_some_and(|page| !missed.contains(page)));
            bytes = kept.flatten().copied().collect();
            change.written = change.written.difference(&missed);
        }
        self.rounds.push((change, bytes));
        Ok(missed)
    }
}

/// Asks for huge pages: to be given memory page by page takes as long as to copy into it.
fn rather_huge(bytes: &mut [u8]) {
    let start = (bytes.as_ptr() as usize).next_multiple_of(PAGE as usize);
    let end = (bytes.as_ptr() as usize + bytes.len()) / PAGE as usize * PAGE as usize;
    if end > start {
        // SAFETY: whole pages of memory of ours, whose content stays. A wish: it does not matter whether it is granted.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Bytes of memory that can still be used.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Copies the memory of a running process, until so little is left that the process may be stopped for it. What is held afterwards is to be
/// handed over before the last round is.
///
/// `progress` is told how many pages of how many a round has copied.
pub fn precopy(
    tracker: &mut Tracker,
    reader: &Reader,
    limits: Limits,
    held: &mut Held,
    sink: &mut dyn Sink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Round>> {
    let mut rounds: Vec<Round> = Vec::new();
    held.rounds.clear();
    let result = (|| {
        while rounds.len() < limits.rounds {
            // The first one may be everything.
            let may_hold = !rounds.is_empty();
            let (round, was_held) = one_round(tracker, reader, may_hold.then_some(&mut *held), sink, progress)?;
            // Less than a quarter fewer than before: the process writes as fast as it is copied. A round that is held costs little: it is enough
            // that there are fewer; and the first of those tells nothing, it has what changed while pages were given to the sink.
            let before = rounds.last().map_or(u64::MAX, |before| before.written_pages);
            let shrinks = match held.rounds.len() {
                1 if was_held => true,
                _ if was_held => round.written_pages < before,
                _ => round.written_pages < before / 4 * 3,
            };
            log::debug!("round {}: {round:?}, held: {was_held}", rounds.len());
            rounds.push(round);
            if round.written_pages <= limits.small_pages || !shrinks {
                break;
            }
        }
        Ok(())
    })();
    match result {
        Ok(()) => Ok(rounds),
        Err(err) => {
            tracker.start_over();
            Err(err)
        }
    }
}

/// The round, and whether it was held.
fn one_round(
    tracker: &mut Tracker,
    reader: &Reader,
    held: Option<&mut Held>,
    sink: &mut dyn Sink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Round, bool)> {
    let began = Instant::now();
    let change = tracker.changed(&maps::read(tracker.pid())?, Phase::Running)?;
    let mut round = Round::of(&change, began.elapsed());
    let began = Instant::now();
    if let Some(held) = held {
        if held.has_room(round.written_pages) {
            tracker.owe(&held.read(reader, change)?);
            round.copy = began.elapsed();
            return Ok((round, true));
        }
        // The last word on a page counts.
        held.hand_over(sink)?;
    }
    sink.forget(&change.dropped)?;
    let mut buffer = vec![0; (PIECE * PAGE) as usize];
    let mut pieces = Vec::new();
    let mut missed = PageSet::new();
    let mut flush = |pieces: &mut Vec<Pages>| -> Result<()> {
        let missing = reader.read(pieces, &mut buffer)?;
        hand_on(pieces, &buffer, &missing, sink)?;
        missing.ranges().iter().for_each(|range| missed.push(range.clone()));
        pieces.clear();
        Ok(())
    };
    let (mut gathered, mut done) = (0, 0);
    for range in change.written.ranges() {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + PIECE - gathered);
            pieces.push(start..end);
            gathered += end - start;
            start = end;
            if gathered == PIECE {
                flush(&mut pieces)?;
                (gathered, done) = (0, done + PIECE);
                progress(done, round.written_pages);
            }
        }
    }
    flush(&mut pieces)?;
    tracker.owe(&missed);
    round.copy = began.elapsed();
    Ok((round, false))
}

/// Gives pages that lie behind one another in `bytes` to the sink, without those that are `missing`.
fn hand_on(ranges: &[Pages], bytes: &[u8], missing: &PageSet, sink: &mut dyn Sink) -> Result<()> {
    let mut at = 0;
    for range in ranges {
        for part in PageSet::of([range.clone()]).difference(missing).ranges() {
            let from = (at + (part.start - range.start) * PAGE) as usize;
            sink.write(part.start, &bytes[from..from + ((part.end - part.start) * PAGE) as usize])?;
        }
        at += (range.end - range.start) * PAGE;
    }
    Ok(())
}

/// The round while the process stands still: prepared before, copied then, handed over after. May be used again.
pub struct FrozenRound {
    /// Touched beforehand: none of it is asked from the kernel in the pause, unless more pages changed than it was prepared for.
    buffer: Vec<u8>,
    change: Change,
}

impl FrozenRound {
    /// With room for so many pages.
    pub fn prepare(pages: u64) -> FrozenRound {
        // Not zeros: memory of those would only be promised.
        FrozenRound { buffer: vec![0xa5; (pages * PAGE) as usize], change: Change::default() }
    }

    /// Copies what changed since the last round. The process stands still, and `mappings` were read since it does.
    ///
    /// [`Phase::Last`] after [`precopy`]; [`Phase::Only`] for processes that are armed at no other time.
    pub fn copy(&mut self, tracker: &mut Tracker, reader: &Reader, mappings: &[Mapping], phase: Phase) -> Result<Round> {
        let result = self.try_copy(tracker, reader, mappings, phase);
        if result.is_err() {
            tracker.start_over();
        }
        result
    }

    fn try_copy(&mut self, tracker: &mut Tracker, reader: &Reader, mappings: &[Mapping], phase: Phase) -> Result<Round> {
        let began = Instant::now();
        self.change = tracker.changed(mappings, phase)?;
        let mut round = Round::of(&self.change, began.elapsed());
        let began = Instant::now();
        let bytes = (round.written_pages * PAGE) as usize;
        if bytes > self.buffer.len() {
            log::debug!("{} pages changed, room was prepared for {}", round.written_pages, self.buffer.len() as u64 / PAGE);
            self.buffer.resize(bytes, 0);
        }
        let missed = reader.read(self.change.written.ranges(), &mut self.buffer[..bytes])?;
        round.copy = began.elapsed();
        match missed.ranges().first() {
            None => Ok(round),
            Some(first) => Err(Error::Target {
                pid: tracker.pid(),
                what: format!("memory at {:x} cannot be read ({} such pages)", first.start * PAGE, missed.count()),
            }),
        }
    }

    /// Gives what was copied to the sink; the process may run again.
    pub fn hand_over(&self, sink: &mut dyn Sink) -> Result<()> {
        sink.forget(&self.change.dropped)?;
        hand_on(self.change.written.ranges(), &self.buffer, &PageSet::new(), sink)
    }

    /// What the copy is of.
    pub fn change(&self) -> &Change {
        &self.change
    }
}
