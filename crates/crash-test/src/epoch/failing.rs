//! The epoch door on a [device that fails](crate::failing).

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Explorer, ForgetsRewrite};

use super::world::CLOSED;
use super::{History, Shape, World, check_image};
use crate::Round;
use crate::failing::{IMAGES, Left, PROCESSES, device, let_a_sync_fail};

/// Syncs among which the one that fails is drawn: an opening makes four to six, an epoch one or two.
const SYNCS: u64 = 16;

/// A round; everything in it follows from `seed`.
pub fn failing_round(seed: u64, planted: Option<ForgetsRewrite>) -> Result<Round, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let fixed = Shape::draw(&mut rng);
    let (mut medium, mut history, mut round) = (device(planted), History::default(), Round::default());
    for process in 0..PROCESSES {
        let shape = fixed.reopened(&mut rng);
        let began = medium.events();
        let_a_sync_fail(&medium, SYNCS, &mut rng);
        let world = World::run_with_faults(medium.clone(), &mut rng, history, &shape)?;
        let place = |e: String| format!("process {process}, which {}: {e}", world.failed.as_deref().unwrap_or("did not fail"));
        history = world.history;
        round.failed += usize::from(world.failed.is_some());
        let trace = medium.trace();
        let coverage = Explorer::new(trace.clone(), rng.random())
            .starting_at(began)
            .check(IMAGES, |image| check_image(&image.to_medium(), image.notes(), &history).map(|_| ()))
            .map_err(|counterexample| place(counterexample.to_string()))?;
        round.images += coverage.images + 1;
        let left = Left::draw(&trace, began, planted, &mut rng);
        medium = left.medium();
        let notes = medium.trace().notes();
        match check_image(&left.medium(), &notes, &history).map_err(|e| place(format!("killed and opened again: {e}")))? {
            Some(epoch) => history.truncate(epoch),
            None => history = History::default(),
        }
        // From here on a pool that was closed is being opened: what was durable is, but it need not be clean.
        notes.last().into_iter().for_each(|last| medium.note(last & !CLOSED));
    }
    Ok(round)
}
