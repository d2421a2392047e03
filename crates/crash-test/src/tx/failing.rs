//! The tx door on a [device that fails](crate::failing).

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Explorer, ForgetsRewrite};

use super::{Base, Explore, Shape, World, base_of, check_image, note};
use crate::Round;
use crate::failing::{IMAGES, Left, PROCESSES, device, let_a_sync_fail};

/// Syncs among which the one that fails is drawn: an opening makes some eight, a strict transaction one.
const SYNCS: u64 = 40;

/// A round; all that its threads want to do follows from `seed`.
pub fn failing_round(seed: u64, planted: Option<ForgetsRewrite>) -> Result<Round, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let concurrent = rng.random_ratio(1, 3);
    let fixed = Shape::draw(&mut rng, concurrent);
    let (mut medium, mut base, mut round) = (device(planted), Base::default(), Round::default());
    // Of the last process that opened the pool, and the moment from which on it is known what there was before it.
    let mut last = None;
    for process in 0..PROCESSES {
        let shape = fixed.reopened(&mut rng);
        let before = medium.events();
        if before > 0 {
            // What was closed is being opened: how far that comes is open.
            medium.note(note::of(note::OPENING, 0));
        }
        let_a_sync_fail(&medium, SYNCS, &mut rng);
        let world = World::run_with_faults(&medium, &mut rng, base, process, &shape)?;
        let failed = world.failed.clone().unwrap_or_else(|| "did not fail".into());
        let place = |e: String| format!("process {process}, which {failed}: {e}");
        round.failed += usize::from(world.failed.is_some());
        let trace = medium.trace();
        // Of what a killed process left it is known what it comes to once it is recovered; how it gets there, `killed` looks at.
        let opened = world.opened < trace.len();
        if opened || before == 0 {
            last = Some((world.history, if before > 0 { world.opened } else { 0 }));
        }
        let (history, first) = last.as_ref().expect("the first process counts as one that opened");
        let coverage = Explorer::new(trace.clone(), rng.random())
            .starting_at((*first).max(before))
            .check(IMAGES, |image| check_image(&image.to_medium(), image.notes(), history).map(|_| ()))
            .map_err(|counterexample| place(counterexample.to_string()))?;
        let left = Left::draw(&trace, (*first).max(before), planted, &mut rng);
        let explore = Explore { trace: &trace, seed: rng.random(), first: *first, history };
        round.images += coverage.images + explore.killed(left.medium(), left.events).map_err(place)?;
        medium = left.medium();
        let found = check_image(&left.medium(), &medium.trace().notes(), history).map_err(place)?;
        base = found.map_or(Base::default(), |found| base_of(&found));
    }
    Ok(round)
}
