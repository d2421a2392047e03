//! One state that a crash could have left: a moment of the trace, and a choice of what had reached the medium by then.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::medium::SimMedium;
use super::pages::Snapshot;
use super::replay::{Line, Replay, WORDS, apply_name};
use crate::PAGE;

/// A state that a crash could have left.
pub struct CrashImage<'r, 't> {
    pub(super) replay: &'r Replay<'t>,
    pub(super) choice: &'r Choice,
}

/// What survived of everything undecided, in the order of the replay's collections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub lines: Vec<LineChoice>,
    pub names: Vec<bool>,
    pub lengths: Vec<Length>,
}

/// How many of a line's cached stores, and of the streams of each of its words, survived: the first ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineChoice {
    pub stores: u32,
    pub words: [u32; WORDS],
}

/// What survived of the length of a new region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    None,
    /// Half, in whole pages.
    Half,
    All,
}

impl Length {
    /// What can survive of `len`, nothing first and everything last.
    pub fn survivals(len: u64) -> &'static [Length] {
        match half(len) {
            0 => &[Length::None, Length::All],
            _ => &[Length::None, Length::Half, Length::All],
        }
    }
}

impl Choice {
    /// Of each undecided thing, what `wanted(event, region, line, word)` wants. Where the model allows a prefix only, it is cut
    /// at the first piece that is not wanted, or with `generous` at the last one that is.
    pub fn of(replay: &Replay<'_>, generous: bool, mut wanted: impl FnMut(usize, u32, u64, usize) -> bool) -> Choice {
        let lines = replay
            .lines
            .iter()
            .map(|((region, number), line)| LineChoice::of(line, generous, |event, word| wanted(event, *region, *number, word)));
        let lines = lines.collect();
        let names = replay.name_ops.iter().map(|(event, _)| wanted(*event, u32::MAX, 0, 0)).collect();
        let lengths = replay.lengths.iter().map(|(region, event)| {
            match (wanted(*event, *region, u64::MAX, 0), wanted(*event, *region, u64::MAX, 1)) {
                (true, true) => Length::All,
                (false, false) => Length::None,
                _ => Length::Half,
            }
        });
        let mut choice = Choice { lines, names, lengths: lengths.collect() };
        choice.heed_names(replay);
        choice
    }

    /// An operation on names survives only after every earlier one that has a name or the region in common with it.
    pub fn heed_names(&mut self, replay: &Replay<'_>) {
        for later in 1..self.names.len() {
            let names = replay.name_ops[later].1.names();
            self.names[later] &= (0..later).all(|earlier| {
                let unrelated = replay.name_ops[earlier].1.names().iter().all(|name| !names.contains(name));
                unrelated || self.names[earlier]
            });
        }
    }

    /// Changes the choice so that all of `event` survived, and what must have if it did.
    pub fn revive(&mut self, replay: &Replay<'_>, event: usize) {
        for (line, choice) in replay.lines.values().zip(&mut self.lines) {
            let whole = LineChoice::of(line, true, |e, _| e == event);
            choice.stores = choice.stores.max(whole.stores);
            for (word, whole) in choice.words.iter_mut().zip(whole.words) {
                *word = (*word).max(whole);
            }
        }
        for ((e, _), survived) in replay.name_ops.iter().zip(&mut self.names) {
            *survived |= *e == event;
        }
        self.heed_names(replay);
        for (e, length) in replay.lengths.values().zip(&mut self.lengths) {
            if *e == event {
                *length = Length::All;
            }
        }
    }
}

impl LineChoice {
    fn of(line: &Line, generous: bool, mut wanted: impl FnMut(usize, usize) -> bool) -> LineChoice {
        // Slot 0 is the cached stores, the others are the words: each has a count of pieces seen and one of those that survive.
        let (mut seen, mut survive) = ([0; WORDS + 1], [0; WORDS + 1]);
        for piece in &line.pieces {
            let slot = if piece.streamed { piece.word() + 1 } else { 0 };
            if wanted(piece.event, piece.word()) && (generous || survive[slot] == seen[slot]) {
                survive[slot] = seen[slot] + 1;
            }
            seen[slot] += 1;
        }
        let mut words = [0; WORDS];
        words.copy_from_slice(&survive[1..]);
        LineChoice { stores: survive[0], words }
    }

    /// For each piece of the line, whether it survived.
    fn survivors(self, line: &Line) -> impl Iterator<Item = bool> + '_ {
        let (mut stores, mut words) = (0, [0; WORDS]);
        line.pieces.iter().map(move |piece| {
            let (seen, survive) =
                if piece.streamed { (&mut words[piece.word()], self.words[piece.word()]) } else { (&mut stores, self.stores) };
            *seen += 1;
            *seen <= survive
        })
    }
}

impl CrashImage<'_, '_> {
    /// How many events had happened when the crash struck: it struck before the event of this number.
    pub fn event_index(&self) -> usize {
        self.replay.done
    }

    /// The notes taken before the crash, oldest first.
    pub fn notes(&self) -> &[u64] {
        &self.replay.notes
    }

    /// The newest of the [notes](Self::notes).
    pub fn last_note(&self) -> Option<u64> {
        self.replay.notes.last().copied()
    }

    /// A fresh medium that holds what survived, for recovery to run on. It records in its turn. Takes microseconds: contents
    /// are shared until written.
    pub fn to_medium(&self) -> SimMedium {
        let (replay, choice) = (self.replay, self.choice);
        let mut left = Snapshot { names: replay.durable.names.clone(), regions: BTreeMap::new() };
        for ((_, op), survived) in replay.name_ops.iter().zip(&choice.names) {
            if *survived {
                apply_name(&mut left, op);
            }
        }
        for region in left.names.values() {
            left.regions.insert(*region, replay.durable.regions[region].clone());
        }
        for ((region, _), length) in replay.lengths.iter().zip(&choice.lengths) {
            let Some(pages) = left.regions.get_mut(region) else {
                continue;
            };
            match length {
                Length::All => {}
                Length::Half => pages.truncate(half(pages.len())),
                Length::None => pages.truncate(0),
            }
        }
        for (((region, number), line), choice) in replay.lines.iter().zip(&choice.lines) {
            let Some(pages) = left.regions.get_mut(region) else {
                continue;
            };
            // A page is copied only if something of it survived.
            let mut survivors = line.pieces.iter().zip(choice.survivors(line)).filter(|(_, survived)| *survived).peekable();
            if survivors.peek().is_some() {
                let into = pages.line(*number);
                survivors.for_each(|(piece, _)| piece.apply(into));
            }
        }
        SimMedium::from_snapshot(replay.trace().model, left)
    }

    /// When the crash struck and what was lost, for people: one line per event of which not everything survived.
    pub fn describe(&self) -> String {
        const SHOWN: usize = 40;
        let trace = self.replay.trace();
        let mut text = match self.replay.done {
            0 => format!("crash before the first of {} events", trace.len()),
            done => format!("crash after {} (of {})", trace.info(done - 1), trace.len()),
        };
        if let Some(note) = self.last_note() {
            let _ = write!(text, ", last note {note}");
        }
        let lost = self.lost();
        let _ = match (lost.len(), self.replay.undecided.len()) {
            (0, _) => write!(text, "\n  everything survived"),
            (lost, undecided) => write!(text, "\n  of {undecided} undecided events, {lost} did not survive whole:"),
        };
        // The newest matter most: they are nearest to the crash.
        for (event, (lost, of)) in lost.iter().rev().take(SHOWN) {
            let what = if lost == of { "lost".to_owned() } else { format!("{lost} of {of} pieces lost") };
            let _ = write!(text, "\n    {what}: {}", trace.info(*event));
        }
        if lost.len() > SHOWN {
            let _ = write!(text, "\n    and {} older ones", lost.len() - SHOWN);
        }
        text
    }

    /// Per event of which something was lost: how many pieces, and of how many.
    pub(super) fn lost(&self) -> BTreeMap<usize, (usize, usize)> {
        let mut lost: BTreeMap<usize, usize> = BTreeMap::new();
        for (line, choice) in self.replay.lines.values().zip(&self.choice.lines) {
            for (piece, survived) in line.pieces.iter().zip(choice.survivors(line)) {
                *lost.entry(piece.event).or_default() += !survived as usize;
            }
        }
        for ((event, _), survived) in self.replay.name_ops.iter().zip(&self.choice.names) {
            *lost.entry(*event).or_default() += !survived as usize;
        }
        for (event, length) in self.replay.lengths.values().zip(&self.choice.lengths) {
            *lost.entry(*event).or_default() += (*length != Length::All) as usize;
        }
        let with_total = lost.into_iter().map(|(event, n)| (event, (n, self.replay.undecided[&event])));
        with_total.filter(|(_, (n, _))| *n > 0).collect()
    }
}

/// Half of a length, in whole pages.
fn half(len: u64) -> u64 {
    len / 2 / PAGE as u64 * PAGE as u64
}
