//! The trees on a [device that fails](crate::failing).

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Explorer, ForgetsRewrite};

use super::{State, Tree, World, check_image, killed};
use crate::Round;
use crate::failing::{IMAGES, Left, device, let_a_sync_fail};

/// Syncs among which the one that fails is drawn: an operation makes one to four.
const SYNCS: u64 = 80;

/// A round of two processes; everything in it follows from `seed`.
pub fn failing_round<T: Tree>(seed: u64, planted: Option<ForgetsRewrite>) -> Result<Round, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = T::shape(&mut rng);
    let (medium, mut round) = (device(planted), Round::default());
    let_a_sync_fail(&medium, SYNCS, &mut rng);
    let world = World::<T>::run(&medium, &mut rng, State::<T::Key>::new(), &shape)?;
    let place = |e: String| format!("{} that {}: {e}", T::NAME, world.failed.as_deref().unwrap_or("did not fail"));
    round.failed += usize::from(world.failed.is_some());
    let trace = medium.trace();
    let coverage = Explorer::new(trace.clone(), rng.random())
        .check(IMAGES, |image| check_image::<T>(&image.to_medium(), image.notes(), &world.states).map(|_| ()))
        .map_err(|counterexample| place(counterexample.to_string()))?;
    round.images += coverage.images;
    let left = Left::draw(&trace, 0, planted, &mut rng);
    let Some(killed) = killed::<T>(&|| left.medium(), rng.random(), &world.states).map_err(place)? else { return Ok(round) };
    let coverage = Explorer::new(killed.trace.clone(), rng.random())
        .starting_at(left.events)
        .check(2 * IMAGES, |image| killed.check(&image.to_medium(), image.notes()))
        .map_err(|counterexample| place(format!("killed and worked on: {counterexample}")))?;
    round.images += coverage.images;
    Ok(round)
}
