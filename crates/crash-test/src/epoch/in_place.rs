//! Pools in place whose process is killed: at each of its stores, while it creates the pool, works, ends epochs, closes and recovers.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::check::check_counting;
use super::{History, Shape, World};
use crate::kill::{Event, Files, KillMedium, Trace};

/// Generations (killed, recovered, worked on) of one pool.
const GENERATIONS: usize = 3;
/// One state in so many has its recovery killed, too.
const KILL_RECOVERY_ONE_IN: u32 = 25;
/// States of one recovery that are looked at.
const IN_RECOVERY: usize = 12;

/// What was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Killed {
    /// States that kills left, recovered and checked, those of killed recoveries included.
    pub images: usize,
    /// Of these: kills during recovery.
    pub in_recovery: usize,
    /// Stores and other steps at which a kill could have come.
    pub events: usize,
    /// Epochs checkpointed.
    pub epochs: u64,
    /// Transactions run.
    pub transactions: u64,
    /// Recoveries that undid lines.
    pub undone: usize,
    /// Objects that were found lost, and had been discarded.
    pub lost: usize,
}

/// A pool's life, which follows from `seed` alone; about `images` states are looked at in each generation.
pub fn kill_round(seed: u64, images: usize) -> Result<Killed, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let fixed = Shape::in_place(&mut rng);
    let (mut files, mut history, mut killed) = (Files::default(), History::default(), Killed::default());
    for generation in 0..GENERATIONS {
        let shape = fixed.reopened(&mut rng);
        let place = |e: String| format!("seed {seed}, generation {generation}, {shape:?}: {e}");
        let medium = KillMedium::new(files);
        let world = World::run_shaped(medium.clone(), &mut rng, history, &shape).map_err(place)?;
        let trace = medium.trace();
        drop(medium);
        history = world.history;
        killed.epochs += world.epochs;
        killed.transactions += world.transactions;
        killed.events += trace.events.len();
        let mut survivor = None;
        trace
            .visit(moments(&trace, images, &mut rng), |_, files| {
                let found = look(files, &history, &mut rng, &mut killed)?;
                if let Some(epoch) = found
                    && (survivor.is_none() || rng.random_ratio(1, 20))
                {
                    survivor = Some((files.clone(), epoch));
                }
                Ok(())
            })
            .map_err(place)?;
        if shape.close && rng.random() {
            survivor = Some((trace.end(), history.newest()));
        }
        let Some((next, epoch)) = survivor else { break };
        history.truncate(epoch);
        files = next;
    }
    Ok(killed)
}

/// Recovers `files` and checks what comes of it; gives the epoch. Now and then recovery is killed in its turn.
fn look(files: &Files, history: &History, rng: &mut SmallRng, killed: &mut Killed) -> Result<Option<u64>, String> {
    killed.images += 1;
    if !rng.random_ratio(1, KILL_RECOVERY_ONE_IN) {
        return check_counting(files.to_medium(), files.notes(), history, &mut killed.lost);
    }
    let medium = KillMedium::new(files.clone());
    let found = check_counting(Arc::new(medium.clone()), files.notes(), history, &mut killed.lost)?;
    let Some(epoch) = found else { return Ok(None) };
    let trace = medium.trace();
    drop(medium);
    let mut recovered = history.clone();
    recovered.truncate(epoch);
    // What was undone had epochs, too, which a recovery that was killed may have passed over.
    recovered.pass_over(epoch + 2 * IN_RECOVERY as u64);
    killed.undone += usize::from(trace.events.len() > 40);
    trace
        .visit(moments(&trace, IN_RECOVERY, rng), |_, files| {
            killed.images += 1;
            killed.in_recovery += 1;
            check_counting(files.to_medium(), &[epoch], &recovered, &mut killed.lost).map(|_| ())
        })
        .map_err(|e| format!("recovery of epoch {epoch}, {e}"))?;
    Ok(found)
}

/// Numbers of events after which to look, about `count`, ascending. Those between stores into the log and the superblock are likelier than
/// those within a long copy into the image.
fn moments(trace: &Trace, count: usize, rng: &mut SmallRng) -> Vec<usize> {
    let is_long = |events: usize| {
        let of = |event: Option<&Event>| match event {
            Some(Event::Store { file, off, bytes }) => Some((*file, *off, off + bytes.len() as u64)),
            _ => None,
        };
        let before = events.checked_sub(1).and_then(|last| trace.events.get(last));
        matches!((of(before), of(trace.events.get(events))), (Some(before), Some(next)) if before.0 == next.0 && next.1 == before.2)
    };
    let (long, short): (Vec<usize>, Vec<usize>) = (0..=trace.events.len()).partition(|events| is_long(*events));
    let mut chosen: Vec<usize> = short.choose_multiple(rng, count * 4 / 5).copied().collect();
    chosen.extend(long.choose_multiple(rng, count / 5));
    chosen.push(trace.events.len());
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}
