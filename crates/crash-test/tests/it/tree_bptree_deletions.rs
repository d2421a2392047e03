//! Every flush and fence under the B+-tree is needed: a single one deleted from the trace must be missed by who looks at the tree.
//!
//! ```text
//!   pool and tree | operation | operation | checkpoint | operation ...      each in a thread of its own: no fence covers another's
//!   ... killed | recovery | operation ...                                   write-backs
//! ```
//!
//! Of each kind events are drawn by seed (TOWA_SEED) and deleted, one at a time. Of those of records, each that is drawn must be missed:
//! without it an operation that returned is not there. Of the others one must be: an image or a cut matters where a lane goes on over what
//! they freed, and where an operation has several records the last may be that of a merge, without which the tree says the same. (What else
//! the transactions need, what recovery does with the log, and the fence of a cut, which the next record's mostly covers, is deleted in
//! `tx_deletions.rs`.)
//!
//! Truly redundant, and therefore no kinds here: of an operation of several transactions (one that made a root, or gave a node back first)
//! the fences before the last, which covers them. So the fence of a record is the last of its operation.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use towa_crash_test::tree::{Drawn, LONG, Shape, State, TinyBpTree, Tree, World, check_image, killed};
use towa_media::sim::{EventInfo, EventKind, Explorer, Model, SimMedium, Trace};

/// Worlds of each kind of key.
const WORLDS: u64 = 3;
/// Kills in each.
const KILLS: usize = 8;
/// Where lanes begin in the log.
const LANES: u64 = 8192;
/// Events of records that are deleted.
const SINGLES: usize = 40;

type Check = Box<dyn Fn(&SimMedium, &[u64]) -> Result<(), String>>;

struct Recorded {
    trace: Trace,
    /// Events of the recovery of a killed process' pool; none for a fresh one.
    recovery: std::ops::Range<usize>,
    /// The first event after which a crash is tried.
    first: usize,
    check: Check,
}

fn record<K: Drawn + ?Sized>(model: Model, seed: u64, all: &mut Vec<Recorded>) {
    let mut rng = SmallRng::seed_from_u64(seed);
    // Long byte strings: lanes wrap by them.
    let first_key = if K::INLINE { 0 } else { LONG };
    let fixed = <TinyBpTree<K> as Tree>::shape(&mut rng);
    let shape = Shape { len: 24 * (128 << 10), operations: 600, checkpoint_one_in: 25, first_key, close: false, ..fixed };
    let shape = Shape { commit: Shape::default().commit, ..shape };
    let medium = SimMedium::new(model);
    let world = World::<TinyBpTree<K>>::run(&medium, &mut rng, State::<K>::new(), &shape).expect("work without faults");
    let trace = medium.trace();
    // Right after a store, which is then visible and not durable: of a record, of a cut.
    let stores = |cut: bool| -> Vec<usize> {
        let stores = trace.events().filter(|e| is(e, EventKind::Store, "log") && is_cut(e) == cut);
        stores.map(|e| e.index() + 1).collect()
    };
    let moments = [stores(false), stores(true)];
    for i in 0..KILLS {
        let moments = &moments[i % 2];
        let at = moments[rng.random_range(0..moments.len())];
        if let Some(killed) =
            killed::<TinyBpTree<K>>(&|| trace.killed_after(at), seed, &world.states).expect("a killed process leaves a sound tree")
        {
            let (trace, recovery) = (killed.trace.clone(), killed.recovery.clone());
            let check: Check = Box::new(move |medium, notes| killed.check(medium, notes));
            all.push(Recorded { trace, first: recovery.end, recovery, check });
        }
    }
    let states = world.states;
    let check: Check = Box::new(move |medium, notes| check_image::<TinyBpTree<K>>(medium, notes, &states).map(|_| ()));
    all.push(Recorded { trace, recovery: 0..0, first: 0, check });
}

fn is(event: &EventInfo<'_>, kind: EventKind, region: &str) -> bool {
    event.kind() == kind && event.region() == Some(region)
}

fn is_cut(event: &EventInfo<'_>) -> bool {
    event.range().is_some_and(|(off, _)| off < LANES)
}

/// Where operations end, and where the fences of their records are.
struct Operations {
    notes: Vec<usize>,
    fences: Vec<usize>,
}

impl Operations {
    fn of(events: &[EventInfo<'_>]) -> Operations {
        let (mut notes, mut fences, mut last_was_cut) = (Vec::new(), Vec::new(), false);
        for (i, event) in events.iter().enumerate() {
            match event.kind() {
                EventKind::Note => notes.push(i),
                // Of a fence: by what was last done to the log.
                EventKind::Fence if event.region() == Some("log") && !last_was_cut => fences.push(i),
                _ if event.region() == Some("log") && event.range().is_some() => last_was_cut = is_cut(event),
                _ => {}
            }
        }
        Operations { notes, fences }
    }

    fn is_fence_of_record(&self, event: usize) -> bool {
        self.fences.binary_search(&event).is_ok()
    }

    /// Whether the operation of this event has one record.
    fn is_alone(&self, event: usize) -> bool {
        let note = self.notes.partition_point(|note| *note < event);
        let began = if note == 0 { 0 } else { self.notes[note - 1] };
        let before = |event| self.fences.partition_point(|fence| *fence < event);
        before(self.notes.get(note).copied().unwrap_or(usize::MAX)) - before(began) == 1
    }
}

/// What each write-back and fence of a trace is for, from the first note on; those of killed processes before their recovery are left out.
fn named(recorded: &Recorded) -> Vec<(usize, &'static str)> {
    let events: Vec<EventInfo<'_>> = recorded.trace.events().collect();
    let opened = events.iter().position(|e| e.kind() == EventKind::Note).unwrap_or(events.len());
    let from = if recorded.recovery.is_empty() { opened } else { recorded.recovery.start };
    let operations = Operations::of(&events);
    let mut found = Vec::new();
    for (i, event) in events.iter().enumerate() {
        let recovering = recorded.recovery.contains(&i);
        // The operation ends here.
        let ends = events.get(i + 1).is_some_and(|next| next.kind() == EventKind::Note);
        let (record, fence) = if operations.is_alone(i) {
            ("write-back of a record", "fence of a record")
        } else {
            ("write-back of the last of several records", "fence of the last of several records")
        };
        let name = match (event.kind(), event.region()) {
            (EventKind::WriteBack, Some("image")) if recovering => "write-back of the recovered image",
            (EventKind::Fence, Some("image")) if recovering => "fence of the recovered image",
            _ if !recorded.recovery.is_empty() => continue,
            (EventKind::WriteBack, Some("log")) if is_cut(event) => "write-back of a cut",
            (EventKind::WriteBack, Some("log")) => match events.get(i + 2) {
                Some(after) if after.kind() == EventKind::Note => record,
                _ => continue,
            },
            (EventKind::Fence, Some("log")) if ends && operations.is_fence_of_record(i) => fence,
            (EventKind::WriteBack, Some("image")) => "write-back of the image",
            (EventKind::Fence, Some("image")) => "fence of the image",
            _ => continue,
        };
        if i >= from {
            found.push((i, name));
        }
    }
    found
}

impl Recorded {
    /// Whether somebody notices that this event is gone.
    fn is_noticed(&self, doomed: usize, seed: u64) -> bool {
        let trace = self.trace.without(|event| event.index() == doomed);
        let tried = |from: usize, to: usize, budget| {
            let explorer = Explorer::new(trace.clone(), seed).starting_at(from.max(self.first)).ending_at(to.max(self.first));
            explorer.check(budget, |image| (self.check)(&image.to_medium(), image.notes())).is_err()
        };
        if !self.recovery.is_empty() {
            return tried(doomed, doomed + 60, 100);
        }
        tried(doomed + 1, doomed + 4, 400) || tried(doomed, doomed + 40, 120)
    }
}

fn assert_needed(model: Model) {
    let seed = std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut all = Vec::new();
    for seed in 0..WORLDS {
        record::<u64>(model, seed, &mut all);
        record::<[u8]>(model, seed, &mut all);
    }
    let mut names: BTreeMap<&str, Vec<(&Recorded, usize)>> = BTreeMap::new();
    for recorded in &all {
        named(recorded).into_iter().for_each(|(event, name)| names.entry(name).or_default().push((recorded, event)));
    }
    assert!(names.len() == if model == Model::Line { 9 } else { 4 }, "{:?}", names.keys());
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut missed = Vec::new();
    for (name, events) in &mut names {
        events.shuffle(&mut rng);
        let each = name.ends_with("of a record");
        let (mut tries, mut noticed) = (0, 0);
        for (recorded, doomed) in events.iter().take(if each { SINGLES } else { events.len() }) {
            noticed += usize::from(recorded.is_noticed(*doomed, seed));
            tries += 1;
            if noticed > 0 && !each {
                break;
            }
        }
        println!("{model:?}: {name}: {noticed} noticed of {tries}, {} in all", events.len());
        if noticed < if each { tries } else { 1 } {
            missed.push(format!("{name}: {noticed} of {tries}"));
        }
    }
    assert!(missed.is_empty(), "{model:?}, TOWA_SEED={seed}: nobody notices when one of these is deleted:\n{}", missed.join("\n"));
}

#[test]
fn every_flush_and_fence_is_needed_on_line_media() {
    assert_needed(Model::Line);
}

#[test]
fn every_sync_is_needed_on_files() {
    assert_needed(Model::File);
}
