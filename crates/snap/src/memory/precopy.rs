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
//! What must always hold: nothing is written to a file, and no large piece of memory is asked for, while the process stands still; the room
//! for what is held is kept from one checkpoint to the next, so that a round takes no longer than to read its pages.
//! After an error the sink holds no state of the process at all, and the tracker starts over.

use std::time::{Duration, Instant};

use super::held::Held;
use super::maps::{self, Mapping};
use super::reader::Reader;
use super::room::Room;
use super::tracker::{Change, Phase, Tracker};
use crate::error::{Error, Result};
use crate::pages::{PAGE, PageSet, Pages};

/// Pages that are read and given on in one piece.
const PIECE: u64 = 256;
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
        Limits { small_pages: 400, rounds: 16 }
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
    let (mut rounds, mut pace) = (Vec::<Round>::new(), Pace::default());
    held.clear();
    let result = (|| {
        while rounds.len() < limits.rounds {
            // The first one may be everything.
            let may_hold = !rounds.is_empty();
            let (round, was_held) = one_round(tracker, reader, may_hold.then_some(&mut *held), sink, progress)?;
            log::debug!("round {}: {round:?}, held: {was_held}", rounds.len());
            rounds.push(round);
            if round.written_pages <= limits.small_pages || !pace.another_helps(&round, was_held) {
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

/// Whether another round is of use. What is left for the pause is what was written during the last round: so the process is best stopped
/// after a short one.
///
/// ```text
///   time of a round   |#
///                     |#  #     #             after this one there is another: it was cut short of the processor
///                     |#  #     #
///                     |#  #  #  #  #  #  #    here: rounds get no shorter, and this one is about as short as any
/// ```
#[derive(Default)]
struct Pace {
    /// Pages of the last round that was given to the sink.
    given: Option<u64>,
    /// The shortest round that was held.
    best: Option<Duration>,
    /// Rounds since that were hardly shorter.
    in_vain: u32,
}

impl Pace {
    fn another_helps(&mut self, round: &Round, was_held: bool) -> bool {
        const IN_VAIN: u32 = 2;
        const MOST_IN_VAIN: u32 = 5;
        if !was_held {
            // Less than a quarter fewer than before: the process writes as fast as it is copied.
            return self.given.replace(round.written_pages).is_none_or(|before| round.written_pages < before / 4 * 3);
        }
        let time = round.find + round.copy;
        // The first one has what changed while pages were given to the sink: that tells nothing.
        let Some(best) = self.best.replace(self.best.map_or(time, |best| best.min(time))) else { return true };
        self.in_vain = if time < best / 10 * 9 { 0 } else { self.in_vain + 1 };
        let short = time < best / 4 * 5;
        self.in_vain < if short { IN_VAIN } else { MOST_IN_VAIN }
    }
}

/// The round, and whether it was held.
fn one_round(
    tracker: &mut Tracker,
    reader: &Reader,
    mut held: Option<&mut Held>,
    sink: &mut dyn Sink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Round, bool)> {
    let (began, mut ahead) = (Instant::now(), Duration::ZERO);
    let change = tracker.changed_by_portions(&maps::read(tracker.pid())?, Phase::Running, &mut |written| {
        let began = Instant::now();
        let read = held.as_mut().map_or(Ok(()), |held| held.read_ahead(reader, written));
        ahead += began.elapsed();
        read
    })?;
    let mut round = Round::of(&change, began.elapsed().saturating_sub(ahead));
    let began = Instant::now();
    if let Some(held) = held {
        held.settle(&change);
        if held.has_room(&change.written) {
            tracker.owe(&held.read(reader, &change.written)?);
            round.copy = ahead + began.elapsed();
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
    /// None of it is asked from the kernel in the pause, unless more pages changed than it was prepared for.
    room: Room,
    /// Pages that there is always room for.
    least: u64,
    change: Change,
}

impl FrozenRound {
    /// With room for so many pages.
    pub fn prepare(pages: u64) -> FrozenRound {
        FrozenRound { room: Room::of(pages), least: pages, change: Change::default() }
    }

    /// Prepares for so many.
    pub fn expect(&mut self, pages: u64) -> Result<()> {
        if pages > self.room.reserved() {
            self.room.reserve(pages);
        }
        if pages > self.room.reserved() {
            return Err(Error::io(format!("memory for {pages} pages"), std::io::ErrorKind::OutOfMemory.into()));
        }
        self.room.make(pages);
        Ok(())
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
        let pages = round.written_pages;
        if pages > self.room.touched() {
            log::debug!("{pages} pages changed, room was prepared for {}", self.room.touched());
            self.expect(pages)?;
        }
        let missed = reader.read(self.change.written.ranges(), self.room.part_mut(0, pages))?;
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
    pub fn hand_over(&mut self, sink: &mut dyn Sink) -> Result<()> {
        sink.forget(&self.change.dropped)?;
        let pages = self.change.written.count();
        hand_on(self.change.written.ranges(), self.room.part(0, pages), &PageSet::new(), sink)?;
        self.room.keep(pages.max(self.least));
        Ok(())
    }

    /// What the copy is of.
    pub fn change(&self) -> &Change {
        &self.change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of so many milliseconds, the first of which was given to the sink: how many there are.
    fn rounds(times: &[u64]) -> usize {
        let mut pace = Pace::default();
        let round = |ms: &u64| Round { written_pages: 1000, copy: Duration::from_millis(*ms), ..Round::default() };
        let stop = times.iter().enumerate().position(|(at, ms)| !pace.another_helps(&round(ms), at > 0));
        stop.map_or(times.len() + 1, |at| at + 1)
    }

    #[test]
    fn the_process_is_stopped_after_a_short_round() {
        assert_eq!(rounds(&[400, 100, 40, 16, 8, 8, 9, 7]), 7, "they get no shorter");
        assert_eq!(rounds(&[400, 100, 40, 16, 80, 40, 18, 9, 9]), 7, "not after one that took long");
        assert_eq!(rounds(&[400, 400, 410, 420, 400]), 4, "as fast as it is copied");
        assert_eq!(rounds(&[400, 100, 200, 300, 400, 500, 600, 700]), 7, "faster than it is copied");
        assert_eq!(rounds(&[400, 100, 50, 25, 12]), 6, "as long as they shrink");
    }
}
