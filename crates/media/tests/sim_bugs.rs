//! Planted bugs that the simulator must find, beside the right program in which it must find nothing.
//!
//! Each program is a few lines of a real protocol, written once with a switch for the bug, so that nothing but the bug differs.

use std::sync::Arc;

use towa_media::sim::{Counterexample, Coverage, Effect, EventKind, Explorer, Model, Point, SimMedium};
use towa_media::{Access, Allocation, Error, Medium, Region};

const SEED: u64 = 7;
/// Miri takes a thousand times as long.
const BUDGET: usize = if cfg!(miri) { 100 } else { 20_000 };
const MODELS: [Model; 2] = [Model::Line, Model::File];

type Check = fn(&SimMedium, &[u64]) -> Result<(), String>;

fn explore(sim: &SimMedium, from: usize, check: Check) -> Result<Coverage, Box<Counterexample>> {
    explore_trace(sim.trace(), from, check)
}

fn explore_trace(trace: towa_media::sim::Trace, from: usize, check: Check) -> Result<Coverage, Box<Counterexample>> {
    let explorer = Explorer::new(trace, SEED).starting_at(from);
    explorer.check(BUDGET, |image| check(&image.to_medium(), image.notes()))
}

fn word(region: &dyn Region, off: u64) -> u64 {
    let mut bytes = [0; 8];
    region.read(off, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn ready(model: Model, name: &str, len: u64) -> (SimMedium, Arc<dyn Region>, usize) {
    let sim = SimMedium::new(model);
    let region = sim.create(name, len, Allocation::Full).unwrap();
    region.fence().unwrap();
    sim.sync_names().unwrap();
    let from = sim.events();
    (sim, region, from)
}

// ---------------------------------------------------------------------------------------------- a log with a commit word

const RECORD: usize = 200;

#[derive(Clone, Copy, PartialEq)]
enum LogBug {
    None,
    NoFenceBeforeCommit,
    NoFenceBeforeAcknowledging,
    CommitFirst,
    FenceOfAnotherThread,
}

/// Appends three records to a log: stream the record, fence, stream the count of records, fence, acknowledge.
fn log(model: Model, bug: LogBug) -> (SimMedium, usize) {
    let (sim, region, from) = ready(model, "log", 4096);
    for n in 1..=3u64 {
        let off = 64 + (n - 1) * RECORD as u64;
        let write_record = || region.stream(off, &[n as u8; RECORD]).unwrap();
        let commit = || region.stream(0, &n.to_le_bytes()).unwrap();
        let fence = || region.fence().unwrap();
        match bug {
            LogBug::CommitFirst => {
                commit();
                fence();
                write_record();
            }
            LogBug::NoFenceBeforeCommit => {
                write_record();
                commit();
            }
            LogBug::FenceOfAnotherThread => {
                write_record();
                std::thread::scope(|scope| scope.spawn(fence).join()).unwrap();
                commit();
            }
            LogBug::None | LogBug::NoFenceBeforeAcknowledging => {
                write_record();
                fence();
                commit();
            }
        }
        if bug != LogBug::NoFenceBeforeAcknowledging {
            fence();
        }
        sim.note(n);
    }
    (sim, from)
}

fn log_is_good(sim: &SimMedium, notes: &[u64]) -> Result<(), String> {
    let region = sim.open("log", Access::ReadOnly).map_err(|e| e.to_string())?;
    let committed = word(&*region, 0);
    let acknowledged = notes.last().copied().unwrap_or(0);
    if committed < acknowledged || committed > 3 {
        return Err(format!("{committed} records, but {acknowledged} were acknowledged"));
    }
    for n in 1..=committed {
        let mut record = [0; RECORD];
        region.read(64 + (n - 1) * RECORD as u64, &mut record).unwrap();
        if record != [n as u8; RECORD] {
            return Err(format!("record {n} of {committed} is torn"));
        }
    }
    Ok(())
}

#[test]
fn logs() {
    for model in MODELS {
        let (sim, from) = log(model, LogBug::None);
        let coverage = explore(&sim, from, log_is_good).unwrap();
        assert!(coverage.images > BUDGET / 20, "{coverage}");
        for bug in [LogBug::NoFenceBeforeCommit, LogBug::NoFenceBeforeAcknowledging, LogBug::CommitFirst] {
            let (sim, from) = log(model, bug);
            let found = explore(&sim, from, log_is_good).unwrap_err();
            assert!(found.to_string().contains("seed 7"), "{found}");
        }
        // A sync of a file covers every thread's writes; a fence of durable memory its own thread's only.
        let (sim, from) = log(model, LogBug::FenceOfAnotherThread);
        assert_eq!(explore(&sim, from, log_is_good).is_err(), model == Model::Line);
    }
}

#[test]
fn deleting_any_fence_is_noticed() {
    for model in MODELS {
        let (sim, from) = log(model, LogBug::None);
        let trace = sim.trace();
        let fences: Vec<usize> =
            trace.events().filter(|e| e.index() >= from && e.kind() == EventKind::Fence).map(|e| e.index()).collect();
        assert_eq!(fences.len(), 6);
        for fence in fences {
            let without = trace.without(|e| e.index() == fence);
            assert!(explore_trace(without, from, log_is_good).is_err(), "{model:?} without {fence}");
        }
        let (sim, region, from) = ready(model, "log", 4096);
        sim.inject(Point::Fence, 0, Effect::Ignore);
        region.stream(64, &[1; RECORD]).unwrap();
        region.fence().unwrap();
        region.stream(0, &1u64.to_le_bytes()).unwrap();
        region.fence().unwrap();
        let found = explore(&sim, from, log_is_good).unwrap_err();
        assert!(found.message.contains("torn"), "{found}");
    }
}

// ----------------------------------------------------------------------------------- cached stores of data and commit word

#[derive(Clone, Copy, PartialEq)]
enum CellBug {
    None,
    NoWriteBackOfSecondLine,
    NoFence,
}

/// Writes two lines of data, then the word that makes them valid.
fn cell(model: Model, bug: CellBug) -> (SimMedium, usize) {
    let (sim, region, from) = ready(model, "cell", 256);
    region.store(64, &[5; 128]).unwrap();
    region.write_back(64, if bug == CellBug::NoWriteBackOfSecondLine { 64 } else { 128 });
    if bug != CellBug::NoFence {
        region.fence().unwrap();
    }
    region.store(0, &1u64.to_le_bytes()).unwrap();
    region.write_back(0, 8);
    region.fence().unwrap();
    (sim, from)
}

fn cell_is_good(sim: &SimMedium, _: &[u64]) -> Result<(), String> {
    let region = sim.open("cell", Access::ReadOnly).map_err(|e| e.to_string())?;
    let mut data = [0; 128];
    region.read(64, &mut data).unwrap();
    match word(&*region, 0) {
        1 if data != [5; 128] => Err("valid without its data".into()),
        _ => Ok(()),
    }
}

#[test]
fn cells() {
    for model in MODELS {
        let (sim, from) = cell(model, CellBug::None);
        explore(&sim, from, cell_is_good).unwrap();
        let (sim, from) = cell(model, CellBug::NoFence);
        explore(&sim, from, cell_is_good).unwrap_err();
    }
    let (sim, from) = cell(Model::Line, CellBug::NoWriteBackOfSecondLine);
    let found = explore(&sim, from, cell_is_good).unwrap_err();
    // The cut-down trace names the one store that was lost, and no other.
    assert_eq!(found.description.matches("lost: event").count(), 1, "{found}");
    assert!(found.description.contains("thread 0: store cell 64+128"), "{found}");
    let (sim, from) = cell(Model::Line, CellBug::None);
    let trace = sim.trace().without(|e| e.kind() == EventKind::WriteBack && e.range() == Some((64, 128)));
    explore_trace(trace, from, cell_is_good).unwrap_err();
}

#[test]
fn stores_in_one_line_survive_in_order_but_not_across_lines() {
    let check: Check = |sim, _| {
        let region = sim.open("r", Access::ReadOnly).unwrap();
        let (first, same_line, next_line) = (word(&*region, 0), word(&*region, 56), word(&*region, 64));
        if same_line == 1 && first == 0 || next_line == 1 && same_line == 0 {
            return Err("reordered".into());
        }
        Ok(())
    };
    let run = |model, last| {
        let (sim, region, from) = ready(model, "r", 128);
        region.store(0, &1u64.to_le_bytes()).unwrap();
        region.store(last, &1u64.to_le_bytes()).unwrap();
        explore(&sim, from, check)
    };
    // Durable memory keeps the order within a line, which a program may rely on; a file does not.
    run(Model::Line, 56).unwrap();
    run(Model::File, 56).unwrap_err();
    run(Model::Line, 64).unwrap_err();
}

// --------------------------------------------------------------------------------------------- replacing a file by renaming

#[derive(Clone, Copy, PartialEq)]
enum ReplaceBug {
    None,
    NoSyncNames,
    NoFence,
    RemoveFirst,
}

/// Replaces `current` by a new version three times: write a new region, fence, rename over the old one, sync the names.
fn replace(model: Model, bug: ReplaceBug) -> (SimMedium, usize) {
    let (sim, region, from) = ready(model, "current", 64);
    drop(region);
    for version in 1..=3u64 {
        let new = sim.create("new", 64, Allocation::Full).unwrap();
        new.stream(0, &[version as u8; 64]).unwrap();
        if bug != ReplaceBug::NoFence {
            new.fence().unwrap();
        }
        if bug == ReplaceBug::RemoveFirst {
            sim.remove("current").unwrap();
        }
        sim.rename("new", "current").unwrap();
        if bug != ReplaceBug::NoSyncNames {
            sim.sync_names().unwrap();
        }
        sim.note(version);
    }
    (sim, from)
}

fn current_is_good(sim: &SimMedium, notes: &[u64]) -> Result<(), String> {
    let region = sim.open("current", Access::ReadOnly).map_err(|e| e.to_string())?;
    let mut bytes = [0; 64];
    region.read(0, &mut bytes).map_err(|e| e.to_string())?;
    let acknowledged = notes.last().copied().unwrap_or(0) as u8;
    if bytes[0] < acknowledged || bytes != [bytes[0]; 64] {
        return Err(format!("version {acknowledged} was acknowledged, found {bytes:?}"));
    }
    Ok(())
}

#[test]
fn replacing_by_rename() {
    for model in MODELS {
        let (sim, from) = replace(model, ReplaceBug::None);
        let coverage = explore(&sim, from, current_is_good).unwrap();
        assert_eq!(coverage.skipped_events, 0);
        for bug in [ReplaceBug::NoSyncNames, ReplaceBug::NoFence, ReplaceBug::RemoveFirst] {
            let (sim, from) = replace(model, bug);
            explore(&sim, from, current_is_good).unwrap_err();
        }
        let (sim, from) = replace(model, ReplaceBug::None);
        let trace = sim.trace();
        for sync in trace.events().filter(|e| e.index() >= from && e.kind() == EventKind::SyncNames) {
            let without = trace.without(|e| e.index() == sync.index());
            explore_trace(without, from, current_is_good).unwrap_err();
        }
    }
}

#[test]
fn names_survive_independently_but_not_before_what_they_follow() {
    // Each set as the names that are there, with the lengths that tell their regions apart.
    let sets = |sim: &SimMedium| {
        let mut sets = std::collections::BTreeSet::new();
        let explorer = Explorer::new(sim.trace(), SEED).only_at(sim.events());
        explorer.for_each_image(1000, |image| {
            let sim = image.to_medium();
            let there = ["a", "b", "c"].into_iter().filter_map(|name| {
                let region = sim.open(name, Access::ReadOnly).ok()?;
                Some(format!("{name}{}", region.len()))
            });
            sets.insert(there.collect::<String>());
        });
        sets.into_iter().collect::<Vec<_>>()
    };
    let sim = SimMedium::new(Model::File);
    let create = |name, len| sim.create(name, len, Allocation::Full).unwrap().fence().unwrap();
    create("a", 1);
    create("b", 2);
    assert_eq!(sets(&sim), ["", "a1", "a1b2", "b2"]);
    sim.sync_names().unwrap();
    assert_eq!(sets(&sim), ["a1b2"]);
    // The new `a` cannot be there before the old one has moved away: a region that always had a name is never lost.
    sim.rename("a", "c").unwrap();
    create("a", 3);
    assert_eq!(sets(&sim), ["a1b2", "a3b2c1", "b2c1"]);
    sim.remove("b").unwrap();
    assert_eq!(sets(&sim), ["a1", "a1b2", "a3b2c1", "a3c1", "b2c1", "c1"]);
    sim.sync_names().unwrap();
    assert_eq!(sets(&sim), ["a3c1"]);
}

#[test]
#[should_panic(expected = "sim/r: 8 bytes at 4090 are written but not reserved")]
fn writing_without_reserving_is_the_programs_bug() {
    let sim = SimMedium::new(Model::Line);
    sim.strict_space();
    let region = sim.create("r", 8192, Allocation::Sparse).unwrap();
    region.reserve(0, 4096).unwrap();
    region.store(0, &[1; 4096]).unwrap();
    region.store(4090, &[1; 8]).unwrap();
}

#[test]
fn a_new_region_may_be_short_until_it_is_fenced() {
    for model in MODELS {
        let sim = SimMedium::new(model);
        let region = sim.create("r", 16384, Allocation::Full).unwrap();
        sim.sync_names().unwrap();
        let lengths = |sim: &SimMedium| {
            let mut lengths = std::collections::BTreeSet::new();
            Explorer::new(sim.trace(), SEED).only_at(sim.events()).for_each_image(100, |image| {
                lengths.insert(image.to_medium().open("r", Access::ReadOnly).unwrap().len());
            });
            lengths.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(lengths(&sim), [0, 8192, 16384]);
        region.fence().unwrap();
        assert_eq!(lengths(&sim), [16384]);
    }
}

// ------------------------------------------------------------------------------------------------ crashes during recovery

/// Undo-log recovery of two words that must stay equal, which forgets to fence between undoing and clearing the log when `bug`.
fn recover(sim: &SimMedium, bug: bool) {
    let region = sim.open("pair", Access::ReadWrite).unwrap();
    if word(&*region, 0) == 1 {
        let old = word(&*region, 8);
        for off in [64, 128] {
            region.store(off, &old.to_le_bytes()).unwrap();
            region.write_back(off, 8);
        }
        if !bug {
            region.fence().unwrap();
        }
        region.store(0, &0u64.to_le_bytes()).unwrap();
        region.write_back(0, 8);
        region.fence().unwrap();
    }
}

fn pair_is_equal(sim: &SimMedium) -> Result<(), String> {
    let region = sim.open("pair", Access::ReadOnly).unwrap();
    let (active, a, b) = (word(&*region, 0), word(&*region, 64), word(&*region, 128));
    if active == 0 && a != b { Err(format!("{a} and {b}")) } else { Ok(()) }
}

#[test]
fn a_crash_during_recovery_is_explored_too() {
    let (sim, region, from) = ready(Model::Line, "pair", 192);
    region.store(8, &0u64.to_le_bytes()).unwrap();
    region.store(0, &1u64.to_le_bytes()).unwrap();
    region.write_back(0, 16);
    region.fence().unwrap();
    for off in [64, 128] {
        region.store(off, &9u64.to_le_bytes()).unwrap();
        region.write_back(off, 8);
    }
    region.fence().unwrap();
    let explorer = Explorer::new(sim.trace(), SEED).starting_at(from);
    let nested = |bug: bool| {
        explorer.check(1000, |image| {
            let recovering = image.to_medium();
            recover(&recovering, bug);
            pair_is_equal(&recovering)?;
            Explorer::new(recovering.trace(), SEED)
                .check(1000, |image| {
                    let again = image.to_medium();
                    pair_is_equal(&again)?;
                    recover(&again, bug);
                    pair_is_equal(&again)
                })
                .map(|_| ())
                .map_err(|inner| format!("crash during recovery: {inner}"))
        })
    };
    nested(false).unwrap();
    let found = nested(true).unwrap_err();
    assert!(found.message.contains("crash during recovery"), "{found}");
}

// --------------------------------------------------------------------------------------------------- injected errors, misuse

#[test]
fn injected_errors_come_when_told() {
    for model in MODELS {
        let (sim, region, _) = ready(model, "r", 4096);
        sim.inject(Point::Reserve, 1, Effect::Full);
        region.reserve(0, 10).unwrap();
        assert!(matches!(region.reserve(0, 10), Err(Error::Full { wanted: 10, .. })));
        region.reserve(0, 10).unwrap();
        sim.inject(Point::Create, 0, Effect::Full);
        assert!(matches!(sim.create("x", 1, Allocation::Full), Err(Error::Full { .. })));
        assert!(!sim.exists("x").unwrap());
        sim.inject(Point::Write, 1, Effect::Io);
        region.store(0, &[1]).unwrap();
        assert!(matches!(region.stream(0, &[2]), Err(Error::Io { .. })));
        let mut byte = [0];
        region.read(0, &mut byte).unwrap();
        assert_eq!(byte, [1], "a failed write was done");
        sim.inject(Point::SyncNames, 0, Effect::Io);
        assert!(sim.sync_names().is_err());
        sim.sync_names().unwrap();
        sim.inject(Point::Fence, 0, Effect::Io);
        assert!(region.fence().is_err());
        assert!(region.fence().unwrap_err().to_string().contains("earlier sync failed"));
        // What the failed fence was to cover is still undecided.
        let mut seen = std::collections::BTreeSet::new();
        Explorer::new(sim.trace(), SEED).only_at(sim.events()).for_each_image(100, |image| {
            let mut byte = [0];
            image.to_medium().open("r", Access::ReadOnly).unwrap().read(0, &mut byte).unwrap();
            seen.insert(byte[0]);
        });
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1]);
    }
}

#[test]
fn the_simulator_is_a_medium_like_the_others() {
    let sim = SimMedium::new(Model::Line);
    let region = sim.create("a", 100, Allocation::Sparse).unwrap();
    assert!(matches!(sim.create("a", 1, Allocation::Full), Err(Error::Exists { .. })));
    assert!(matches!(region.store(99, &[0; 2]), Err(Error::Range { .. })));
    assert!(sim.open("a", Access::ReadOnly).unwrap().stream(0, &[1]).is_err());
    assert!(matches!(sim.open("b", Access::ReadOnly), Err(Error::NotFound { .. })));
    sim.rename("a", "b").unwrap();
    assert!(sim.exists("b").unwrap() && !sim.exists("a").unwrap());
    let held = sim.lock().unwrap();
    assert!(matches!(sim.lock(), Err(Error::Busy { .. })));
    drop(held);
    drop(sim.lock().unwrap());
    region.store(60, &[1; 10]).unwrap();
    region.write_back(60, 10);
    region.fence().unwrap();
    let counted = sim.counters().values();
    assert_eq!((counted.bytes_stored, counted.write_backs, counted.fences), (10, 2, 1));
    let copy = towa_media::Mapping::private(&*region, None, 100).unwrap();
    // SAFETY: the mapping holds 100 bytes that nobody writes.
    let bytes = unsafe { std::slice::from_raw_parts(copy.as_ptr(), 100) };
    assert_eq!(bytes[59..71], *b"\0\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\0");
    assert!(format!("{:?}", sim.trace()).contains("write_back a 60+10"));
}

#[test]
#[should_panic(expected = "contract of Region::stream")]
fn streaming_over_unfenced_stores_is_the_programs_bug() {
    let (sim, region, _) = ready(Model::Line, "r", 4096);
    region.store(0, &[1; 8]).unwrap();
    region.stream(0, &[2; 64]).unwrap();
    Explorer::new(sim.trace(), SEED).for_each_image(10, |_| ());
}

#[test]
fn a_failure_can_be_reproduced() {
    let (sim, from) = log(Model::Line, LogBug::NoFenceBeforeCommit);
    let first = explore(&sim, from, log_is_good).unwrap_err();
    let again = explore(&sim, from, log_is_good).unwrap_err();
    assert_eq!(first.to_string(), again.to_string());
    let only = Explorer::new(sim.trace(), SEED).only_at(first.event_index);
    let alone = only.check(20_000, |image| log_is_good(&image.to_medium(), image.notes())).unwrap_err();
    assert_eq!(alone.event_index, first.event_index);
}

#[test]
fn a_panic_of_recovery_is_a_failure() {
    let (sim, from) = log(Model::Line, LogBug::None);
    let explorer = Explorer::new(sim.trace(), SEED).starting_at(from);
    let found = explorer.check(10, |_| panic!("recovery fell over")).unwrap_err();
    assert!(found.message.contains("recovery fell over"), "{found}");
}
