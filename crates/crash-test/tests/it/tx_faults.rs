//! The tx door on a medium that fails: it is full where space is reserved, a write or a sync fails, names cannot be made or synced.
//!
//! What must hold: the operation is refused and the pool good, or the pool is poisoned; and whatever a crash of the process or of the
//! machine then leaves opens with everything that had returned. Nothing is ever written where space was not reserved.

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tx::{Base, Shape, World, check_image};
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
        let fixed = Shape::draw(&mut rng, false);
        let mut medium = SimMedium::new(model);
        let mut base = Base::default();
        let struck = rng.random_range(0..2);
        for generation in 0..2 {
            let shape = fixed.reopened(&mut rng);
            if generation == struck {
                let after = rng.random_range(calls.clone());
                (after..after + burst).for_each(|after| medium.inject(point, after, effect));
            }
            let place = format!("{model:?}, {effect:?} at {point:?}, seed {seed}, generation {generation}");
            let world =
                World::run_with_faults(&medium, &mut rng, base, generation, &shape).unwrap_or_else(|e| panic!("{place}: {e}"));
            if generation == struck {
                match (&world.failed, world.refused) {
                    (Some(_), _) => outcomes.failed += 1,
                    (None, 1..) => outcomes.refused += 1,
                    (None, 0) => outcomes.untouched += 1,
                }
            } else {
                assert_eq!(world.failed, None, "{place}: nothing failed here");
            }
            // The next process finds what was written; after a crash of the machine, what was durable.
            let trace = medium.trace();
            let check = |medium: &SimMedium, notes: &[u64]| {
                check_image(medium, notes, &world.history).unwrap_or_else(|e| panic!("{place}: {:?}: {e}", world.failed))
            };
            check(&trace.killed_after(trace.len()), &trace.notes());
            let mut left = None;
            Explorer::new(trace.clone(), seed).only_at(trace.len()).for_each_image(40, |image| {
                let found = check(&image.to_medium(), image.notes());
                left = Some((image.to_medium(), found));
            });
            let (next, found) = left.expect("one image at least");
            base = found.map_or(Base::default(), |found| Base { opened: true, cells: found.cells });
            medium = next;
        }
    }
    println!("{model:?}, {effect:?} at {point:?}: {outcomes:?}");
    outcomes
}

#[test]
fn a_full_medium_refuses_and_harms_nothing() {
    for model in [Model::Line, Model::File] {
        // Creating, opening and registering reserve first.
        let outcomes = strike(model, Point::Reserve, Effect::Full, 0..5, 1);
        assert!(outcomes.failed >= 5, "{outcomes:?}");
        // Four times: a body that is refused space is run once more, when others have given back what they kept.
        let outcomes = strike(model, Point::Reserve, Effect::Full, 1..5, 4);
        assert!(outcomes.refused >= 5, "{outcomes:?}");
        strike(model, Point::Create, Effect::Full, 0..3, 1);
    }
    // A file whose blocks were not all there to begin with may be full when it is written.
    let outcomes = strike(Model::File, Point::Write, Effect::Full, 0..100, 1);
    assert!(outcomes.failed >= 10, "{outcomes:?}");
}

#[test]
fn a_failed_write_poisons() {
    for model in [Model::Line, Model::File] {
        let outcomes = strike(model, Point::Write, Effect::Io, 0..100, 1);
        assert!(outcomes.failed >= 10, "{outcomes:?}");
    }
}

#[test]
fn a_failed_sync_poisons_and_is_not_retried() {
    for model in [Model::Line, Model::File] {
        let outcomes = strike(model, Point::Fence, Effect::Io, 0..60, 1);
        assert!(outcomes.failed >= 10, "{outcomes:?}");
        let outcomes = strike(model, Point::SyncNames, Effect::Io, 0..2, 1);
        assert!(outcomes.failed >= 5, "{outcomes:?}");
    }
}

#[test]
fn a_medium_that_cannot_be_read_is_refused() {
    for model in [Model::Line, Model::File] {
        let outcomes = strike(model, Point::Read, Effect::Io, 0..30, 1);
        assert!(outcomes.failed >= 10, "{outcomes:?}");
    }
}
