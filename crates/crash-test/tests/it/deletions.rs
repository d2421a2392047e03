//! Every flush and fence is needed: a single one deleted from the trace must be missed.
//!
//! ```text
//!   world of a fresh pool:     creation | work ... | close
//!   the same pool, crashed:    recovery | work ... | close      a committed epoch is still to be applied
//!   the same pool, killed:     ... work | recovery              the next process reads what is not durable yet
//! ```
//!
//! A kind says in which part its events lie and how to tell them. Of each kind some events, drawn by seed (TOWA_SEED), are deleted,
//! one at a time, and each must be caught: all of a kind are then, too, for with them gone a crash can leave whatever it could with one
//! gone.
//!
//! Truly redundant, and therefore no kinds here:
//! - recovery's write-back of the *frames* it read (line media): a commit record is stored only after its frames were fenced, so
//!   whoever can read the record has durable frames. It stays as a defence against a log written by other means.
//! - the sync of names after the superblock got its own: creation goes on as opening does, and that syncs the names again for the sake
//!   of processes killed in between (which is tried).
//! - the superblock's update at the first opening: nothing was written yet, and the older record leads to the same empty log.

use std::collections::{HashMap, HashSet};

use Part::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::epoch::{History, Shape, World, check_image};
use towa_heap::log::RING_MIN;
use towa_heap::superblock::Door;
use towa_heap::{Heap, OpenOptions};
use towa_media::sim::{EventInfo, EventKind, Explorer, Model, SimMedium, Trace};

/// Commit slots of the worlds here, the fewest there can be: the record that a crash would need is soon overwritten.
const SLOTS: u32 = 4;
/// Worlds that the events are drawn from.
const WORLDS: u64 = 12;
/// Single events of each kind that are deleted.
const SINGLES: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Creation,
    Work,
    Close,
    /// After a kill between the superblock's naming and the sync of names.
    KilledInCreation,
    /// After a crash.
    Recovery,
    /// After a kill between the store of a commit record and its fence.
    KilledInCommit,
    /// After a kill between the store of a superblock and its fence.
    KilledInUpdate,
    /// After a kill between the store of the image's stamp and its fence.
    KilledInStamp,
}

/// A trace, and what must be found after a crash in it.
struct Recorded {
    trace: Trace,
    history: History,
    /// Its first part, and the event after it.
    opening: (Part, usize),
    /// Events of the work; what follows is closing.
    work: std::ops::Range<usize>,
    /// The first event of interest.
    first: usize,
}

impl Recorded {
    fn part_of(&self, event: &EventInfo<'_>) -> Option<Part> {
        match event.index() {
            i if i < self.first => None,
            i if i < self.opening.1 => Some(self.opening.0),
            i if i < self.work.start => None,
            i if i < self.work.end => Some(Work),
            _ => Some(Close),
        }
    }
}

/// What was done to an event's region before.
#[derive(Clone, Copy, Default)]
struct Before {
    last: Option<EventKind>,
    /// Something was stored or streamed there within the same part.
    written: bool,
    /// A fence of the region was within the same part.
    fenced: bool,
}

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

/// A log that soon wraps in ring and slots.
fn shape(rng: &mut SmallRng) -> Shape {
    let mut shape = Shape::plain(rng);
    shape.log_len = RING_MIN;
    shape.log_start = (RING_MIN - rng.random_range(64..40_000)) / 64 * 64;
    shape.commit_slots = SLOTS;
    shape.close = true;
    shape
}

/// A fresh world, the same pool crashed and recovered, and killed processes.
fn record(model: Model, seed: u64) -> Vec<Recorded> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = shape(&mut rng);
    let medium = SimMedium::new(model);
    let world = World::run_shaped(medium.clone(), &mut rng, History::default(), &shape).expect("work without faults");
    let trace = medium.trace();
    let named = trace
        .events()
        .filter(|e| e.kind() == EventKind::SyncNames)
        .nth(1)
        .expect("names are synced before the last one is given")
        .index();
    let fresh = Recorded {
        trace: trace.clone(),
        history: world.history.clone(),
        opening: (Creation, named + 1),
        work: world.opened..world.closing,
        first: 0,
    };

    // A crash right after a commit: the epoch is not in the image yet.
    let commits: Vec<usize> = trace.events().filter(|e| e.kind() == EventKind::Note).map(|e| e.index() + 1).collect();
    let at = commits[rng.random_range(1..commits.len() - 1)];
    let mut crashed = None;
    Explorer::new(trace.clone(), seed).only_at(at).for_each_image(2, |image| crashed = Some(image.to_medium()));
    let crashed = crashed.expect("one image at least");
    let mut history = world.history.clone();
    let epoch = check_image(&killed(&crashed.trace(), 0), &[], &history).expect("sound").expect("a pool");
    history.truncate(epoch);
    let world = World::run_shaped(crashed.clone(), &mut rng, history, &shape).expect("work without faults");
    let recovered = Recorded {
        trace: crashed.trace(),
        history: world.history,
        opening: (Recovery, world.opened),
        work: world.opened..world.closing,
        first: 0,
    };

    let mut all = vec![fresh, recovered];
    let start = all[0].work.start;
    let stores = |region: &'static str| {
        let stores = trace.events().filter(move |e| is(e, EventKind::Store, region) && e.index() > start);
        stores.map(|e| e.index() + 1).collect::<Vec<_>>()
    };
    let rename = trace.events().find(|e| e.kind() == EventKind::Rename).expect("the superblock gets its name").index() + 1;
    let stamps = trace.events().filter(|e| is_stamp(e) && e.kind() == EventKind::Store && e.index() > start);
    let kills = [
        (vec![rename], KilledInCreation),
        (stores("log"), KilledInCommit),
        (stores("superblock"), KilledInUpdate),
        (stamps.map(|e| e.index() + 1).collect(), KilledInStamp),
    ];
    for (moments, part) in kills {
        let at = moments[rng.random_range(0..moments.len())];
        let medium = killed(&trace, at);
        let heap =
            Heap::open(std::sync::Arc::new(medium.clone()), &OpenOptions { door: Door::Epoch, eager: true, prefault: false });
        medium.note(heap.expect("a killed process leaves a sound pool").recovery().epoch);
        let (trace, history) = (medium.trace(), all[0].history.clone());
        let end = trace.len();
        all.push(Recorded { trace, history, opening: (part, end), work: end..end, first: at });
    }
    all
}

fn killed(trace: &Trace, events: usize) -> SimMedium {
    trace.killed_after(events)
}

/// The events of a kind.
fn events_of(recorded: &Recorded, kind: &Kind) -> Vec<usize> {
    let mut regions: HashMap<String, Before> = HashMap::new();
    let mut found = Vec::new();
    let mut part = None;
    for event in recorded.trace.events() {
        let now = recorded.part_of(&event);
        if std::mem::replace(&mut part, now) != now {
            regions.values_mut().for_each(|before| (before.written, before.fenced) = (false, false));
        }
        let before = regions.entry(event.region().unwrap_or("").to_owned()).or_default();
        if part.is_some_and(|part| kind.parts.contains(&part)) && (kind.is)(&event, *before) {
            found.push(event.index());
        }
        before.last = Some(event.kind());
        before.fenced |= event.kind() == EventKind::Fence;
        before.written |= matches!(event.kind(), EventKind::Store | EventKind::Stream);
    }
    found
}

/// Whether somebody notices that `doomed` are gone, when the crash strikes between these events.
fn is_noticed(recorded: &Recorded, doomed: &HashSet<usize>, (from, to): (usize, usize), budget: usize, seed: u64) -> bool {
    let trace = recorded.trace.without(|event| doomed.contains(&event.index()));
    Explorer::new(trace, seed)
        .starting_at(from.max(recorded.first))
        .ending_at(to)
        .check(budget, |image| check_image(&image.to_medium(), image.notes(), &recorded.history).map(|_| ()))
        .is_err()
}

/// The single events of a kind that nobody misses, of some drawn by seed.
fn missed_singles(worlds: &[Vec<Recorded>], kind: &Kind, seed: u64) -> Vec<String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let candidates: Vec<(&Recorded, usize)> =
        worlds.iter().flatten().flat_map(|r| events_of(r, kind).into_iter().map(move |event| (r, event))).collect();
    assert!(!candidates.is_empty(), "{}: the protocol has no such event", kind.name);
    let mut missed = Vec::new();
    for _ in 0..SINGLES {
        let (recorded, event) = candidates[rng.random_range(0..candidates.len())];
        let info = recorded.trace.events().nth(event).expect("an event of the trace");
        let doomed = HashSet::from([event]);
        let is_noticed = |from, to, budget| is_noticed(recorded, &doomed, (from, to), budget, seed);
        // First where it is likeliest to be missed: right after it (names), and beside the next writes of its region, which may be torn
        // together with what it should have made durable.
        let mut likely = vec![(event + 1, event + 6)];
        let writes = |e: &EventInfo<'_>| matches!(e.kind(), EventKind::Store | EventKind::Stream) && e.region() == info.region();
        likely.extend(recorded.trace.events().skip(event).filter(writes).take(2).map(|e| (e.index() + 1, e.index() + 1)));
        let noticed = likely.into_iter().any(|(from, to)| is_noticed(from, to, 150))
            || is_noticed(event, event + 100, 1000)
            || is_noticed(event, usize::MAX, 2000);
        if !noticed {
            missed.push(format!(
                "{}: {info} (of {}, opening {:?}, work {:?})",
                kind.name,
                recorded.trace.len(),
                recorded.opening,
                recorded.work
            ));
        }
    }
    missed
}

fn assert_needed(model: Model, kinds: &[Kind]) {
    let worlds: Vec<_> = (0..WORLDS).map(|seed| record(model, seed)).collect();
    let seed = std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let missed: Vec<_> = kinds.iter().flat_map(|kind| missed_singles(&worlds, kind, seed)).collect();
    assert!(missed.is_empty(), "{model:?}, TOWA_SEED={seed}: nobody notices when one of these is deleted:\n{}", missed.join("\n"));
}

/// Whether a write-back of the log concerns a commit record. (Frames are longer or elsewhere.)
fn is_record(event: &EventInfo<'_>) -> bool {
    is(event, EventKind::WriteBack, "log") && event.range().is_some_and(|(off, len)| off % 4096 == 0 && (len == 256 || len == 4096))
}

/// Whether an event concerns the stamp of the image. (Lines are 64 bytes, and whole runs of them are streamed.)
fn is_stamp(event: &EventInfo<'_>) -> bool {
    event.region() == Some("image") && event.range().is_some_and(|(off, len)| off % 4096 == 0 && len == 128)
}

#[test]
fn every_flush_and_fence_is_needed_on_line_media() {
    assert_needed(
        Model::Line,
        &[
            kind("fence of the new image", &[Creation], |e, _| is(e, EventKind::Fence, "image")),
            kind("fence of the new log", &[Creation], |e, _| is(e, EventKind::Fence, "log")),
            kind("write-back of the superblock at creation", &[Creation], |e, _| is(e, EventKind::WriteBack, "superblock")),
            kind("fence of the superblock at creation", &[Creation], |e, _| is(e, EventKind::Fence, "superblock")),
            kind("sync of names", &[Creation], |e, _| e.kind() == EventKind::SyncNames),
            kind("fence between frames and commit record", &[Work, Close], |e, before| {
                is(e, EventKind::Fence, "log") && before.last == Some(EventKind::Stream)
            }),
            kind("write-back of the commit record", &[Work, Close], |e, _| is_record(e)),
            kind("fence after the commit record", &[Work, Close], |e, before| {
                is(e, EventKind::Fence, "log") && before.last == Some(EventKind::WriteBack)
            }),
            kind("fence of the image before the log is cut", &[Work, Close], |e, _| is(e, EventKind::Fence, "image")),
            kind("write-back of the superblock", &[Work], |e, _| is(e, EventKind::WriteBack, "superblock")),
            kind("fence of the superblock", &[Work], |e, _| is(e, EventKind::Fence, "superblock")),
            kind("write-back of the superblock at closing", &[Close], |e, _| is(e, EventKind::WriteBack, "superblock")),
            kind("fence of the superblock at closing", &[Close], |e, _| is(e, EventKind::Fence, "superblock")),
            kind("write-back of the image's stamp", &[Creation, Work, Close], |e, _| {
                is(e, EventKind::WriteBack, "image") && is_stamp(e)
            }),
            kind("fence of the recovered image", &[Recovery], |e, before| is(e, EventKind::Fence, "image") && before.fenced),
            kind("write-back of the stamp that opening read", &[KilledInStamp], |e, before| {
                is(e, EventKind::WriteBack, "image") && is_stamp(e) && !before.fenced
            }),
            kind("fence of the stamp that opening read", &[KilledInStamp], |e, before| {
                is(e, EventKind::Fence, "image") && !before.fenced
            }),
            kind("write-back of the superblock at opening", &[Recovery], |e, before| {
                is(e, EventKind::WriteBack, "superblock") && before.written
            }),
            kind("fence of the superblock at opening", &[Recovery], |e, before| {
                is(e, EventKind::Fence, "superblock") && before.written
            }),
            kind("write-back of the commit record that recovery read", &[KilledInCommit], |e, _| is_record(e)),
            kind("fence of the log that recovery read", &[KilledInCommit], |e, _| is(e, EventKind::Fence, "log")),
            kind("sync of the names that opening read", &[KilledInCreation], |e, _| e.kind() == EventKind::SyncNames),
            kind("write-back of the superblock that opening read", &[KilledInUpdate], |e, before| {
                is(e, EventKind::WriteBack, "superblock") && !before.written
            }),
            kind("fence of the superblock that opening read", &[KilledInUpdate], |e, before| {
                is(e, EventKind::Fence, "superblock") && !before.written
            }),
        ],
    );
}

#[test]
fn every_sync_is_needed_on_files() {
    assert_needed(
        Model::File,
        &[
            kind("sync of the new image", &[Creation], |e, _| is(e, EventKind::Fence, "image")),
            kind("sync of the new log", &[Creation], |e, _| is(e, EventKind::Fence, "log")),
            kind("sync of the superblock at creation", &[Creation], |e, _| is(e, EventKind::Fence, "superblock")),
            kind("sync of names", &[Creation], |e, _| e.kind() == EventKind::SyncNames),
            kind("sync of the log", &[Work, Close], |e, _| is(e, EventKind::Fence, "log")),
            kind("sync of the image before the log is cut", &[Work, Close], |e, _| is(e, EventKind::Fence, "image")),
            kind("sync of the stamp that opening read", &[KilledInStamp], |e, before| {
                is(e, EventKind::Fence, "image") && !before.fenced
            }),
            kind("sync of the superblock", &[Work], |e, _| is(e, EventKind::Fence, "superblock")),
            kind("sync of the superblock at closing", &[Close], |e, _| is(e, EventKind::Fence, "superblock")),
            kind("sync of the superblock at opening", &[Recovery], |e, before| {
                is(e, EventKind::Fence, "superblock") && before.fenced
            }),
            kind("sync of the log that recovery read", &[KilledInCommit], |e, _| is(e, EventKind::Fence, "log")),
            kind("sync of the names that opening read", &[KilledInCreation], |e, _| e.kind() == EventKind::SyncNames),
            kind("sync of the superblock that opening read", &[KilledInUpdate], |e, before| {
                is(e, EventKind::Fence, "superblock") && !before.fenced
            }),
        ],
    );
}
