//! The sweep itself, in small; and that it would notice: every kind of flush and fence, deleted, must be caught.

use std::collections::{HashMap, HashSet};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use towa_crash_test::epoch::{History, Settings, Shape, World, check_image, sweep};
use towa_heap::superblock::Door;
use towa_heap::verify;
use towa_media::sim::{EventInfo, EventKind, Explorer, Model, SimMedium, Trace};

#[test]
fn every_crash_image_recovers_to_an_acknowledged_epoch() {
    for model in [Model::Line, Model::File] {
        let settings = Settings { seed: 1, images: 3000, model: Some(model) };
        let report = sweep(&settings, &mut |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.images_in_recovery > 0 && report.exhaustive_points > 0, "{report:?}");
        println!("{model:?}: {report:?}");
    }
}

/// A kind of flush or fence of the protocol: what it is called, and whether an event is one, given the event before it in its region.
type Kind = (&'static str, fn(&EventInfo<'_>, Option<EventKind>) -> bool);

fn is(event: &EventInfo<'_>, kind: EventKind, region: &str) -> bool {
    event.kind() == kind && event.region().is_some_and(|r| r.starts_with(region))
}

/// The trace without all events of one kind.
fn without(trace: &Trace, kind: &Kind) -> (Trace, usize) {
    let mut before: HashMap<String, EventKind> = HashMap::new();
    let mut doomed = HashSet::new();
    for event in trace.events() {
        let region = event.region().unwrap_or("").to_owned();
        if (kind.1)(&event, before.get(&region).copied()) {
            doomed.insert(event.index());
        }
        before.insert(region, event.kind());
    }
    (trace.without(|event| doomed.contains(&event.index())), doomed.len())
}

/// Whether the sweep notices that all flushes or fences of `kind` are gone, within some worlds.
fn is_caught(model: Model, kind: &Kind) -> bool {
    let mut deleted = 0;
    for seed in 0..12 {
        let medium = SimMedium::new(model);
        let mut rng = SmallRng::seed_from_u64(seed);
        let world = World::run(medium.clone(), &mut rng, History::default()).expect("work without faults");
        let (trace, count) = without(&medium.trace(), kind);
        deleted += count;
        let outcome = Explorer::new(trace, seed)
            .check(1500, |image| check_image(&image.to_medium(), image.notes(), &world.history).map(|_| ()));
        if outcome.is_err() {
            return true;
        }
    }
    assert!(deleted > 0, "{}: the protocol has no such event", kind.0);
    false
}

fn assert_all_caught(model: Model, kinds: &[Kind]) {
    let missed: Vec<_> = kinds.iter().filter(|kind| !is_caught(model, kind)).map(|kind| kind.0).collect();
    assert!(missed.is_empty(), "{model:?}: nobody notices when these are deleted: {missed:?}");
}

#[test]
fn every_flush_and_fence_is_needed_on_line_media() {
    assert_all_caught(
        Model::Line,
        &[
            ("fence between frames and commit record", |e, before| {
                is(e, EventKind::Fence, "log") && before == Some(EventKind::Stream)
            }),
            ("write-back of the commit record", |e, _| is(e, EventKind::WriteBack, "log")),
            ("fence after the commit record", |e, before| is(e, EventKind::Fence, "log") && before == Some(EventKind::WriteBack)),
            ("fence of the image before the log is cut", |e, _| is(e, EventKind::Fence, "image")),
            ("write-back of the superblock", |e, _| is(e, EventKind::WriteBack, "superblock")),
            ("sync of names", |e, _| e.kind() == EventKind::SyncNames),
        ],
    );
}

#[test]
fn every_sync_is_needed_on_files() {
    assert_all_caught(
        Model::File,
        &[
            ("sync of the log", |e, _| is(e, EventKind::Fence, "log")),
            ("sync of the image before the log is cut", |e, _| is(e, EventKind::Fence, "image")),
            ("sync of the superblock", |e, _| is(e, EventKind::Fence, "superblock")),
            ("sync of names", |e, _| e.kind() == EventKind::SyncNames),
        ],
    );
}

/// The worlds of a sweep do what their shapes are for: rings and commit slots wrap, with pad frames before the ring's end, on both
/// models, and pools are closed and reopened.
#[test]
fn worlds_wrap() {
    let mut seen = [0; 4];
    for seed in 0..40 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let medium = SimMedium::new(if seed % 2 == 0 { Model::Line } else { Model::File });
        let mut history = History::default();
        let fixed = Shape::draw(&mut rng);
        for _ in 0..3 {
            let shape = fixed.reopened(&mut rng);
            history = World::run_shaped(medium.clone(), &mut rng, history, &shape).expect("work without faults").history;
            seen[3] += usize::from(shape.close);
        }
        let report = verify(&medium, Door::Epoch, &mut |_, _| ()).expect("a sound pool");
        let newest = report.epoch;
        seen[0] += usize::from(newest > u64::from(fixed.commit_slots));
        let slots = u64::from(fixed.commit_slots) * 4096;
        let trace = medium.trace();
        let ends = trace.events().filter_map(|event| {
            let (off, len) = event.range().filter(|_| event.kind() == EventKind::Stream && event.region() == Some("log"))?;
            Some((off - slots, len))
        });
        let at: Vec<_> = ends.collect();
        seen[1] += usize::from(at.windows(2).any(|pair| pair[1].0 < pair[0].0));
        // A pad is a header alone, whose frame reaches the end.
        seen[2] += usize::from(at.windows(2).any(|pair| pair[0].1 == 64 && pair[1].0 == 0));
    }
    println!(
        "of 40 worlds: commit slots wrapped in {}, rings in {}, with pads in {}; {} closings",
        seen[0], seen[1], seen[2], seen[3]
    );
    assert!(seen.iter().all(|n| *n >= 5), "{seen:?}");
}
