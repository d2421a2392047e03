//! Every flush and fence of the FPTree is needed: a single one deleted from the trace must be missed.
//!
//! ```text
//!   create | operation | operation ...              each operation in a thread of its own: no fence covers another's write-backs
//!   ... killed | recovery | operation ...           the next process reads what is not durable yet
//! ```
//!
//! Each event is named by what it writes back, or comes after; of each name some events, drawn by seed (TOWA_SEED), are deleted, one at a
//! time (of a recovery all of that name).
//!
//! Truly redundant, and therefore no names here:
//! - the fence of the high-water mark: the operation that raised it fences again before it publishes anything beyond. It is there for
//!   other threads, which may use what it provided sooner than that. (Its write-back is needed.)
//! - one of the two last fences of a recovery: the first is for threads that examine leaves, of which small trees need none.
//! - the write-back of a leaf's next pointer when a recovery ends a split: the leaf is written back whole soon after, and what is
//!   fenced in between is the pointer's own fence, which makes it come first.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tree::{Drawn, Shape, State, World, check_image, killed};
use towa_media::sim::{EventInfo, EventKind, Explorer, Model, SimMedium, Trace};
use towa_tree::FpTree;

/// Of these, not every one can be missed: a mark is written back again with the next one, before anything beyond it may be published; and
/// while an arena has no name, the fence of its first mark comes before the one that counts.
const SOME: [&str; 2] = ["write-back of the mark", "fence before the arena has a name"];
/// Worlds of each kind of key.
const WORLDS: u64 = 4;
/// Kills in each.
const KILLS: usize = 12;
/// Where the micro-logs are.
const LOGS: std::ops::Range<u64> = 4096 + 64..4096 + 64 * 65;
/// Events of each name that are deleted.
const SINGLES: usize = 6;

type Check = Box<dyn Fn(&SimMedium, &[u64]) -> Result<(), String>>;

struct Recorded {
    trace: Trace,
    /// Events of the recovery of a killed process' tree; none for a fresh tree.
    recovery: std::ops::Range<usize>,
    /// The first event after which a crash is tried.
    first: usize,
    check: Check,
}

fn record<K: Drawn + ?Sized>(model: Model, seed: u64, all: &mut Vec<Recorded>) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = Shape { entries: rng.random_range(2..5), ..Shape::default() };
    let medium = SimMedium::new(model);
    let world = World::<FpTree<K>>::run(&medium, &mut rng, State::<K>::new(), &shape).expect("work without faults");
    let trace = medium.trace();
    // Right after a store, which is then visible and not durable: of the name, of the mark, of a micro-log, of anything.
    let after = |is: &dyn Fn(&EventInfo<'_>) -> bool| trace.events().filter(|e| is(e)).map(|e| e.index() + 1).collect::<Vec<_>>();
    let store_at = |range: std::ops::Range<u64>| {
        after(&|e| e.kind() == EventKind::Store && e.range().is_some_and(|(off, _)| range.contains(&off)))
    };
    let moments = [after(&|e| e.kind() == EventKind::Rename), store_at(512..513), store_at(LOGS), store_at(0..u64::MAX)];
    for i in 0..KILLS {
        let moments = &moments[i % moments.len()];
        let at = moments[rng.random_range(0..moments.len())];
        if let Some(killed) =
            killed::<FpTree<K>>(&|| trace.killed_after(at), seed, &world.states).expect("a killed process leaves a sound tree")
        {
            let (trace, recovery) = (killed.trace.clone(), killed.recovery.clone());
            let check: Check = Box::new(move |medium, notes| killed.check(medium, notes));
            all.push(Recorded { trace, first: recovery.end, recovery, check });
        }
    }
    let states = world.states;
    let check: Check = Box::new(move |medium, notes| check_image::<FpTree<K>>(medium, notes, &states).map(|_| ()));
    all.push(Recorded { trace, recovery: 0..0, first: 0, check });
}

/// What each write-back, fence and sync of a trace is for; those of killed processes before their recovery are left out.
fn named(recorded: &Recorded) -> Vec<(usize, &'static str)> {
    let events: Vec<EventInfo<'_>> = recorded.trace.events().collect();
    let mut leaves = BTreeSet::new();
    let (mut found, mut last) = (Vec::new(), "");
    let mut created = false;
    let in_log = |off: u64| LOGS.contains(&off);
    for (i, event) in events.iter().enumerate() {
        let recovering = recorded.recovery.contains(&i);
        let before = i.checked_sub(1).map(|i| events[i].kind());
        let name = match event.kind() {
            EventKind::WriteBack => {
                let (off, len) = event.range().expect("a write-back has a range");
                let leaf = leaves.range(..=off).next_back().copied().filter(|leaf| off < leaf + 896);
                match (off, len) {
                    (0, _) => "write-back of the header",
                    (512, _) if recovering => "write-back of the mark that recovery read",
                    (512, _) => "write-back of the mark",
                    (4096, 32) => "write-back of the tree's record",
                    (off, 16) if in_log(off) && last == "write-back of a new leaf" => "write-back of a micro-log",
                    (off, 16) if in_log(off) => "write-back of a micro-log that is cleared",
                    (off, _) if in_log(off) => "write-back of the micro-logs that recovery read",
                    (_, 896) if recovering => "write-back of a leaf that recovery read",
                    (off, 896) => {
                        leaves.insert(off);
                        if created { "write-back of a new leaf" } else { "write-back of the head leaf" }
                    }
                    // Recovery writes the leaf back whole, too.
                    _ if recovering => "",
                    (off, 64) if leaf == Some(off) => "write-back of the bitmap",
                    (off, 8) if leaf == Some(off - 64) => "write-back of a next pointer",
                    (_, 8) if leaf.is_some() => "write-back of a value",
                    (_, 16) if leaf.is_some() => "write-back of an entry",
                    _ => "write-back of a key",
                }
            }
            EventKind::Fence if recovering => "fence of what recovery read",
            // The mark of the head leaf's segment: nothing has a name yet.
            EventKind::Fence if !created && events[..i].iter().rev().find_map(|e| e.range()).is_some_and(|(off, _)| off == 512) => {
                ""
            }
            EventKind::Fence if !created => "fence before the arena has a name",
            EventKind::Fence if before == Some(EventKind::Store) && recorded.trace_is_line() => "fence before the bitmap",
            EventKind::Fence if recorded.trace_is_line() => match last {
                "write-back of the bitmap" => match events.get(i + 1).and_then(|e| e.range()) {
                    Some((off, 16)) if in_log(off) => "fence before a micro-log is cleared",
                    _ => "fence after the bitmap",
                },
                "write-back of a micro-log" => "fence of a new leaf and its micro-log",
                "write-back of a next pointer" => "fence of a next pointer",
                "write-back of a value" => "fence of a value",
                _ => "",
            },
            // Without write-backs: by what was stored last.
            EventKind::Fence => match events[..i].iter().rev().find_map(|e| e.range()) {
                Some((512, _)) => "",
                Some((off, _)) if in_log(off) => "sync of a new leaf and its micro-log",
                Some(_) => "sync of a leaf",
                None => "",
            },
            EventKind::Rename => {
                created = true;
                ""
            }
            EventKind::SyncNames if recovering => "sync of the name that recovery found",
            EventKind::SyncNames => "sync of the name",
            _ => continue,
        };
        if event.kind() == EventKind::WriteBack {
            last = name;
        }
        if !name.is_empty() && i >= recorded.recovery.start {
            found.push((i, name));
        }
    }
    found
}

impl Recorded {
    fn trace_is_line(&self) -> bool {
        self.trace.events().any(|event| event.kind() == EventKind::WriteBack)
    }

    /// Whether somebody notices that `doomed` are gone.
    fn is_noticed(&self, doomed: &HashSet<usize>, seed: u64) -> bool {
        let trace = self.trace.without(|event| doomed.contains(&event.index()));
        let first = doomed.iter().min().expect("one event at least") + 1;
        let tried = |from: usize, to: usize, budget| {
            let explorer = Explorer::new(trace.clone(), seed).starting_at(from.max(self.first)).ending_at(to.max(self.first));
            explorer.check(budget, |image| (self.check)(&image.to_medium(), image.notes())).is_err()
        };
        if !self.recovery.is_empty() {
            return tried(self.first, usize::MAX, 400);
        }
        // First where it is likeliest to be missed.
        tried(first, first + 4, 200) || tried(first, first + 60, 2000) || tried(first, usize::MAX, 2000)
    }
}

fn assert_needed(model: Model) {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let seed = std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut all = Vec::new();
    for seed in 0..WORLDS {
        record::<u64>(model, seed, &mut all);
        record::<[u8]>(model, seed, &mut all);
    }
    let mut names: BTreeMap<&str, Vec<(&Recorded, HashSet<usize>)>> = BTreeMap::new();
    for recorded in &all {
        let mut groups: BTreeMap<&str, HashSet<usize>> = BTreeMap::new();
        for (event, name) in named(recorded) {
            if recorded.recovery.contains(&event) {
                groups.entry(name).or_default().insert(event);
            } else if recorded.recovery.is_empty() {
                names.entry(name).or_default().push((recorded, HashSet::from([event])));
            }
        }
        groups.into_iter().for_each(|(name, doomed)| names.entry(name).or_default().push((recorded, doomed)));
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut missed = Vec::new();
    for (name, events) in &names {
        let of_recovery = name.contains("recovery");
        // Of recoveries, most kills leave nothing that is not durable: it is enough that some are noticed.
        let tries = if of_recovery { events.len() } else { SINGLES };
        let mut noticed = 0;
        for i in 0..tries {
            let (recorded, doomed) = &events[if of_recovery { i } else { rng.random_range(0..events.len()) }];
            noticed += usize::from(recorded.is_noticed(doomed, seed));
            if of_recovery && noticed > 0 {
                break;
            }
        }
        println!("{model:?}: {name}: {noticed} noticed of {tries}, {} in all", events.len());
        if noticed < if of_recovery || SOME.contains(name) { 1 } else { tries } {
            missed.push(format!("{name}: {noticed} of {tries}"));
        }
    }
    std::panic::set_hook(quiet);
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
