//! A medium that fails: it is full where space is reserved, a write or a sync fails, names cannot be made or synced.
//!
//! What must hold: the operation is refused and the pool good, or the pool is poisoned; and whatever a crash of the process or of the
//! machine then leaves opens at an acknowledged epoch. Nothing is ever written where space was not reserved.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::epoch::{History, Shape, World, check_image};
use towa_media::sim::{Effect, Explorer, Model, Point, SimMedium};

/// Worlds for each fault and model.
const WORLDS: u64 = 40;

/// What came of the faults.
#[derive(Debug, Default)]
struct Outcomes {
    refused: usize,
    failed: usize,
    untouched: usize,
}

/// Runs worlds of two generations; in one of them `effect` strikes at one of the `calls` at `point`, counted from 0, and
/// `burst` times.
fn strike(model: Model, point: Point, effect: Effect, calls: Range<u64>, burst: u64) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for seed in 0..WORLDS {
        let mut rng = SmallRng::seed_from_u64(seed);
        let fixed = Shape::draw(&mut rng);
        let mut medium = SimMedium::new(model);
        let mut history = History::default();
        let struck = rng.random_range(0..2);
        for generation in 0..2 {
            let shape = fixed.reopened(&mut rng);
            if generation == struck {
                let after = rng.random_range(calls.clone());
                (after..after + burst).for_each(|after| medium.inject(point, after, effect));
            }
            let place = format!("{model:?}, {effect:?} at {point:?}, seed {seed}, generation {generation}");
            let world =
                World::run_with_faults(medium.clone(), &mut rng, history, &shape).unwrap_or_else(|e| panic!("{place}: {e}"));
            if generation == struck {
                match (&world.failed, world.refused) {
                    (Some(_), _) => outcomes.failed += 1,
                    (None, 1..) => outcomes.refused += 1,
                    (None, 0) => outcomes.untouched += 1,
                }
            } else {
                assert_eq!((&world.failed, world.refused), (&None, 0), "{place}: nothing failed here");
            }
            history = world.history;
            // The next process finds what was written; after a crash of the machine, what was durable.
            let trace = medium.trace();
            let check = |medium: &SimMedium, notes: &[u64]| {
                check_image(medium, notes, &history).unwrap_or_else(|e| panic!("{place}: {:?}: {e}", world.failed))
            };
            check(&trace.killed_after(trace.len()), &trace.notes());
            let mut left = None;
            Explorer::new(trace.clone(), seed).only_at(trace.len()).for_each_image(40, |image| {
                let epoch = check(&image.to_medium(), image.notes());
                left = Some((image.to_medium(), epoch.unwrap_or(0)));
            });
            let (next, epoch) = left.expect("one image at least");
            history.truncate(epoch);
            medium = next;
        }
    }
    println!("{model:?}, {effect:?} at {point:?}: {outcomes:?}");
    outcomes
}

#[test]
fn a_full_medium_refuses_and_harms_nothing() {
    for model in [Model::Line, Model::File] {
        // Creating and opening reserve first.
        let outcomes = strike(model, Point::Reserve, Effect::Full, 0..3, 1);
        assert!(outcomes.failed >= 5, "{outcomes:?}");
        let outcomes = strike(model, Point::Reserve, Effect::Full, 3..4, 8);
        assert!(outcomes.refused >= 5, "{outcomes:?}");
        strike(model, Point::Create, Effect::Full, 0..3, 1);
    }
    // A file whose blocks were not all there to begin with may be full when it is written.
    let outcomes = strike(Model::File, Point::Write, Effect::Full, 0..200, 1);
    assert!(outcomes.failed >= 10, "{outcomes:?}");
}

#[test]
fn a_failed_write_poisons() {
    for model in [Model::Line, Model::File] {
        let outcomes = strike(model, Point::Write, Effect::Io, 0..200, 1);
        assert!(outcomes.failed >= 10 && outcomes.refused == 0, "{outcomes:?}");
    }
}

#[test]
fn a_failed_sync_poisons_and_is_not_retried() {
    for model in [Model::Line, Model::File] {
        let outcomes = strike(model, Point::Fence, Effect::Io, 0..40, 1);
        assert!(outcomes.failed >= 10 && outcomes.refused == 0, "{outcomes:?}");
        let outcomes = strike(model, Point::SyncNames, Effect::Io, 0..2, 1);
        assert!(outcomes.failed >= 5 && outcomes.refused == 0, "{outcomes:?}");
    }
}

#[test]
fn a_medium_that_cannot_be_read_is_refused() {
    for model in [Model::Line, Model::File] {
        let outcomes = strike(model, Point::Read, Effect::Io, 0..30, 1);
        assert!(outcomes.failed >= 10 && outcomes.refused == 0, "{outcomes:?}");
    }
}
