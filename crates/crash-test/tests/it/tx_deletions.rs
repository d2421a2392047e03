//! Every flush and fence of the tx door is needed: deleted from the trace, it must be missed.
//!
//! ```text
//!   world of a fresh pool:     creation | work ... | close
//!   the same pool, crashed:    recovery | work ... | close      records are still to be applied
//!   the same pool, killed:     ... work | recovery              the next process reads what is not durable yet
//! ```
//!
//! Of each kind, events drawn by seed (TOWA_SEED) are deleted, one at a time, until one is caught: what one of a kind is for, all are for, but
//! not every one of them is followed by what makes it matter. (Of the syncs of a cut, for instance, those alone matter behind which a lane
//! goes on over what the cut freed before the next fence.)
//!
//! Truly redundant, and therefore no kinds here:
//! - the superblock's update at opening (its write-back and fence): lanes are scanned whether the pool was closed or not, and records count by
//!   the generation of the cut. The mark tells people, and whether space under the frontier was provided before a power cut.
//! - the second sync of names at creation, and opening's sync of names and superblock in the process that made them: they are there for
//!   processes killed in between, where they are tried.

use std::collections::HashSet;

use Part::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tx::{Base, Cells, History, Shape, World, check_image, note, read_image};
use towa_media::sim::{EventInfo, EventKind, Explorer, Model, SimMedium, Trace};

/// Worlds that the events are drawn from.
const WORLDS: u64 = 16;
/// Events of a kind that are tried.
const TRIES: usize = 150;
/// Where lanes begin in the log.
const LANES: u64 = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Creation,
    Work,
    Close,
    /// After a crash.
    Recovery,
    /// After a kill between the superblock's naming and the sync of names.
    KilledInCreation,
    /// After a kill between the store of a record and its fence.
    KilledInCommit,
    /// After a kill between the store of a cut and its fence.
    KilledInCut,
    /// After a kill between the store of a superblock and its fence.
    KilledInUpdate,
}

/// A trace, and what must be found after a crash in it.
struct Recorded {
    trace: Trace,
    history: History,
    /// What a killed process's successor read.
    recovered: Option<Cells>,
    /// Its first part, and the event after it.
    opening: (Part, usize),
    /// Events of the work; what follows is closing.
    work: std::ops::Range<usize>,
    /// The first event of interest.
    first: usize,
}

impl Recorded {
    fn part_of(&self, index: usize) -> Option<Part> {
        match index {
            i if i < self.first => None,
            i if i < self.opening.1 => Some(self.opening.0),
            i if i < self.work.start => None,
            i if i < self.work.end => Some(Work),
            _ => Some(Close),
        }
    }

    fn check(&self, medium: &SimMedium, notes: &[u64]) -> Result<(), String> {
        let found = check_image(medium, notes, &self.history)?;
        let was_read = notes.iter().any(|n| note::parts(*n).0 == note::RECOVERED);
        if was_read && found.map(|found| found.cells) != Some(self.recovered) {
            return Err("what was recovered before is not there".into());
        }
        Ok(())
    }
}

/// What was last done to the log before an event: where, if it was a write or a write-back.
type Before = Option<u64>;

/// A kind of flush or fence: what it is called, where it occurs, and whether an event is one.
struct Kind {
    name: &'static str,
    parts: &'static [Part],
    is: fn(&EventInfo<'_>, Before) -> bool,
}

const fn kind(name: &'static str, parts: &'static [Part], is: fn(&EventInfo<'_>, Before) -> bool) -> Kind {
    Kind { name, parts, is }
}

fn is(event: &EventInfo<'_>, kind: EventKind, region: &str) -> bool {
    event.kind() == kind && event.region().is_some_and(|r| r.starts_with(region))
}

fn is_at(event: &EventInfo<'_>, cut: bool) -> bool {
    event.range().is_some_and(|(off, _)| (off < LANES) == cut)
}

/// Few threads that log much: lanes wrap.
fn shape(rng: &mut SmallRng) -> Shape {
    let mut shape = Shape::plain(rng);
    shape.size_max = 9000;
    shape.threads = 2;
    shape.allocating_percent = 80;
    shape.heap_len = 40 * (128 << 10);
    shape.checkpoint_one_in = 25;
    shape.close = true;
    shape
}

/// A fresh world, the same pool crashed and recovered, and killed processes.
fn record(model: Model, seed: u64) -> Vec<Recorded> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = shape(&mut rng);
    let medium = SimMedium::new(model);
    let world = World::run(&medium, &mut rng, Base::default(), 0, &shape).expect("work without faults");
    let trace = medium.trace();
    let syncs = trace.events().filter(|e| e.kind() == EventKind::SyncNames).nth(1);
    let named = syncs.expect("names are synced before the last one is given").index();
    let mut all = vec![Recorded {
        trace: trace.clone(),
        history: world.history.clone(),
        recovered: None,
        opening: (Creation, named + 1),
        work: world.rooted..world.closing,
        first: 0,
    }];

    // A crash at work: records are not in the image yet.
    let returns = trace.events().filter(|e| e.kind() == EventKind::Note && e.index() > world.rooted);
    let moments: Vec<usize> = returns.map(|e| e.index() + 1).collect();
    let at = moments[rng.random_range(0..moments.len())];
    let mut crashed = None;
    Explorer::new(trace.clone(), seed).only_at(at).for_each_image(2, |image| crashed = Some(image.to_medium()));
    let crashed = crashed.expect("one image at least");
    let found = read_image(&crashed.trace().killed_after(0)).expect("sound").expect("a pool");
    let base = Base { opened: true, cells: found.cells };
    let again = World::run(&crashed, &mut rng, base, 1, &shape).expect("work without faults");
    all.push(Recorded {
        trace: crashed.trace(),
        history: again.history,
        recovered: None,
        opening: (Recovery, again.opened),
        work: again.rooted..again.closing,
        first: 0,
    });

    let writes = |region: &'static str, cut: Option<bool>| {
        let writes = trace.events().filter(move |e| {
            (is(e, EventKind::Store, region) || is(e, EventKind::Stream, region))
                && e.index() > world.rooted
                && cut.is_none_or(|cut| is_at(e, cut))
        });
        writes.map(|e| e.index() + 1).collect::<Vec<_>>()
    };
    let rename = trace.events().find(|e| e.kind() == EventKind::Rename).expect("the superblock gets its name").index() + 1;
    let kills = [
        (vec![rename], KilledInCreation),
        (writes("log", Some(false)), KilledInCommit),
        (writes("log", Some(true)), KilledInCut),
        (writes("superblock", None), KilledInUpdate),
    ];
    for (moments, part) in kills {
        let at = moments[rng.random_range(0..moments.len())];
        let medium = trace.killed_after(at);
        medium.note(note::of(note::OPENING, 0));
        let found = read_image(&medium).expect("a killed process leaves a sound pool").expect("a pool");
        medium.note(note::of(note::RECOVERED, 0));
        let (trace, history) = (medium.trace(), world.history.clone());
        let end = trace.len();
        all.push(Recorded { trace, history, recovered: found.cells, opening: (part, end), work: end..end, first: at });
    }
    all
}

/// The events of a kind.
fn events_of(recorded: &Recorded, kind: &Kind) -> Vec<usize> {
    let mut found = Vec::new();
    let mut log = None;
    for event in recorded.trace.events() {
        let part = recorded.part_of(event.index());
        if part.is_some_and(|part| kind.parts.contains(&part)) && (kind.is)(&event, log) {
            found.push(event.index());
        }
        if event.region() == Some("log") {
            log = event.range().map(|(off, _)| off).or(log);
        }
    }
    found
}

/// Whether somebody notices that this event is gone, when the crash strikes between these events.
fn is_noticed(recorded: &Recorded, doomed: usize, (from, to): (usize, usize), budget: usize, seed: u64) -> bool {
    let trace = recorded.trace.without(|event| event.index() == doomed);
    Explorer::new(trace, seed)
        .starting_at(from.max(recorded.first))
        .ending_at(to)
        .check(budget, |image| recorded.check(&image.to_medium(), image.notes()))
        .is_err()
}

/// Tries single events of a kind; how many until one was noticed, `None` if none was.
fn tried_until_noticed(worlds: &[Vec<Recorded>], kind: &Kind, seed: u64) -> Option<usize> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let candidates: Vec<(&Recorded, usize)> =
        worlds.iter().flatten().flat_map(|r| events_of(r, kind).into_iter().map(move |event| (r, event))).collect();
    assert!(!candidates.is_empty(), "{}: the protocol has no such event", kind.name);
    let mut tried = HashSet::new();
    (1..=TRIES).find(|_| {
        let at = rng.random_range(0..candidates.len());
        if !tried.insert(at) {
            return false;
        }
        let (recorded, event) = candidates[at];
        let is_noticed = |from, to, budget| is_noticed(recorded, event, (from, to), budget, seed);
        // What recovery read matters once the last of it is in the image: the newest records come last.
        let fence = recorded.trace.events().skip(event + 1).find(|e| is(e, EventKind::Fence, "image")).map(|e| e.index());
        is_noticed(event + 1, event + 8, 100)
            || is_noticed(event, event + 40, 300)
            || fence.is_some_and(|fence| fence > event + 40 && is_noticed(fence - 40, fence, 300))
    })
}

fn assert_needed(model: Model, kinds: &[Kind]) {
    let worlds: Vec<_> = (0..WORLDS).map(|seed| record(model, seed)).collect();
    let seed = std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut missed = Vec::new();
    for kind in kinds {
        match tried_until_noticed(&worlds, kind, seed) {
            Some(tries) => println!("{model:?}: {}: noticed at try {tries}", kind.name),
            None => missed.push(kind.name),
        }
    }
    assert!(missed.is_empty(), "{model:?}, TOWA_SEED={seed}: nobody notices when one of these is deleted:\n{}", missed.join("\n"));
}

/// Of both models.
const FENCES: &[Kind] = &[
    kind("fence of the new image", &[Creation], |e, _| is(e, EventKind::Fence, "image")),
    kind("fence of the new log", &[Creation], |e, _| is(e, EventKind::Fence, "log")),
    kind("fence of the superblock at creation", &[Creation], |e, _| is(e, EventKind::Fence, "superblock")),
    kind("sync of names", &[Creation], |e, _| e.kind() == EventKind::SyncNames),
    kind("fence of a record", &[Work], |e, log| is(e, EventKind::Fence, "log") && log.is_some_and(|at| at >= LANES)),
    kind("fence of the image before the cut", &[Work, Close], |e, _| is(e, EventKind::Fence, "image")),
    kind("fence of a cut", &[Work], |e, log| is(e, EventKind::Fence, "log") && log.is_some_and(|at| at < LANES)),
    kind("fence of the superblock at closing", &[Close], |e, _| is(e, EventKind::Fence, "superblock")),
    kind("fence of the recovered image", &[Recovery], |e, _| is(e, EventKind::Fence, "image")),
    kind("fence of the log that recovery read", &[KilledInCommit], |e, _| is(e, EventKind::Fence, "log")),
    kind("fence of the cut that recovery read", &[KilledInCut], |e, _| is(e, EventKind::Fence, "log")),
    kind("sync of the names that opening read", &[KilledInCreation], |e, _| e.kind() == EventKind::SyncNames),
    kind("fence of the superblock that opening read", &[KilledInUpdate], |e, _| is(e, EventKind::Fence, "superblock")),
];

#[test]
fn every_sync_is_needed_on_files() {
    assert_needed(Model::File, FENCES);
}

#[test]
fn every_fence_is_needed_on_line_media() {
    assert_needed(Model::Line, FENCES);
}

#[test]
fn every_write_back_is_needed_on_line_media() {
    assert_needed(
        Model::Line,
        &[
            kind("write-back of the superblock at creation", &[Creation], |e, _| is(e, EventKind::WriteBack, "superblock")),
            kind("write-back of a record", &[Work], |e, _| is(e, EventKind::WriteBack, "log") && is_at(e, false)),
            kind("write-back of the image", &[Work, Close], |e, _| is(e, EventKind::WriteBack, "image")),
            kind("write-back of a cut", &[Work], |e, _| is(e, EventKind::WriteBack, "log") && is_at(e, true)),
            kind("write-back of the superblock at closing", &[Close], |e, _| is(e, EventKind::WriteBack, "superblock")),
            kind("write-back of the recovered image", &[Recovery], |e, _| is(e, EventKind::WriteBack, "image")),
            kind("write-back of records that recovery read", &[KilledInCommit], |e, _| {
                is(e, EventKind::WriteBack, "log") && is_at(e, false)
            }),
            kind("write-back of the cut that recovery read", &[KilledInCut], |e, _| {
                is(e, EventKind::WriteBack, "log") && is_at(e, true)
            }),
            kind("write-back of the superblock that opening read", &[KilledInUpdate], |e, _| {
                is(e, EventKind::WriteBack, "superblock")
            }),
        ],
    );
}
