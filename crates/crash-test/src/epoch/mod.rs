//! The crash sweep of the epoch door.
//!
//! A [`World`] runs random transactions on a pool, some of them across epoch boundaries and between the steps of
//! checkpoints, and remembers what each epoch changed. A [`sweep`] then looks at the crash images of the recorded trace. Recovery of
//! each must give **exactly the state at the end of one epoch, not older than the newest acknowledged as durable**: every byte of
//! every object, no block leaked, none used twice. For some images recovery itself is crashed, at every one of its events, and
//! must then give that same state. At some moments only the process dies: the next one reads what is not durable yet, recovers, and
//! then the machine crashes under it. Then one crashed image (or the closed pool) is worked on further, for several generations.
//!
//! Where no model is asked for, one world in some is a pool in place, in memory, whose process is killed at its stores ([`kill_round`]).

mod check;
mod failing;
mod history;
mod in_place;
mod shape;
mod world;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Explorer, Model, SimMedium, Trace};

pub use crate::Failure;
use crate::kill::KillMedium;
pub use check::{check_image, check_medium};
pub use failing::failing_round;
pub use history::History;
pub use in_place::{Killed, kill_round};
pub use shape::Shape;
pub use world::{Stage, World};

/// What to explore.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Everything random comes from it.
    pub seed: u64,
    /// About how many crash images to look at in all.
    pub images: usize,
    /// Line media, files, or (None) both in turn; of the epoch door also pools in place.
    pub model: Option<Model>,
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Crash images recovered and checked, those of crashed recoveries included.
    pub images: usize,
    /// Of these: crashes during recovery.
    pub images_in_recovery: usize,
    /// Of these: crashes of the machine during the recovery of what a killed process left.
    pub images_after_kill: usize,
    /// Of these: what kills of a process left of a pool in place.
    pub images_in_place: usize,
    /// Moments at which a crash was tried.
    pub crash_points: usize,
    /// Of these: every possible image was tried.
    pub exhaustive_points: usize,
    /// Of these: a sample was tried.
    pub sampled_points: usize,
    /// Worlds (pools from creation on).
    pub worlds: usize,
    /// Epochs checkpointed.
    pub epochs: u64,
    /// Transactions run.
    pub transactions: u64,
}

/// Generations (crash, recover, work on) of one world.
const GENERATIONS: usize = 4;
/// Images of one generation's trace.
const IMAGES_PER_GENERATION: usize = 700;
/// One image in so many has its recovery crashed too.
const CRASH_RECOVERY_ONE_IN: u32 = 80;
/// Moments in a generation at which the process is killed.
const KILLS: usize = 4;
/// One world in so many is a pool in place.
const IN_PLACE_ONE_IN: u64 = 8;
/// Images of one crashed recovery.
const IMAGES_PER_RECOVERY: usize = 60;

/// Explores about `settings.images` crash images; `progress` is called with the number done so far.
pub fn sweep(settings: &Settings, progress: &mut dyn FnMut(usize)) -> Result<Report, Failure> {
    let mut report = Report::default();
    while report.images < settings.images {
        let seed = settings.seed.wrapping_add(report.worlds as u64);
        if settings.model.is_none() && seed % IN_PLACE_ONE_IN == 1 && KillMedium::is_supported() {
            run_in_place(seed, settings, &mut report)?;
            progress(report.images);
            continue;
        }
        // By the seed, so that a world's own seed gives it again.
        let model = settings.model.unwrap_or(if seed.is_multiple_of(2) { Model::Line } else { Model::File });
        run_world(seed, model, settings, &mut report, progress).map_err(|(place, message)| Failure { seed, place, message })?;
        report.worlds += 1;
    }
    Ok(report)
}

fn run_in_place(seed: u64, settings: &Settings, report: &mut Report) -> Result<(), Failure> {
    let images = (IMAGES_PER_GENERATION / 3).min(settings.images.saturating_sub(report.images)).max(5);
    let killed = kill_round(seed, images).map_err(|message| Failure { seed, place: "a pool in place".into(), message })?;
    report.images += killed.images;
    report.images_in_place += killed.images;
    report.images_in_recovery += killed.in_recovery;
    report.crash_points += killed.events;
    report.sampled_points += killed.images;
    report.epochs += killed.epochs;
    report.transactions += killed.transactions;
    report.worlds += 1;
    Ok(())
}

fn run_world(
    seed: u64,
    model: Model,
    settings: &Settings,
    report: &mut Report,
    progress: &mut dyn FnMut(usize),
) -> Result<(), (String, String)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut medium = SimMedium::new(model);
    let mut history = History::default();
    let fixed = Shape::draw(&mut rng);
    for generation in 0..GENERATIONS {
        let shape = fixed.reopened(&mut rng);
        let place = format!("{model:?} model, generation {generation}, {shape:?}");
        let fail = |message: String| (place.clone(), message);
        let world = World::run_shaped(medium.clone(), &mut rng, history, &shape).map_err(fail)?;
        report.epochs += world.epochs;
        report.transactions += world.transactions;
        history = world.history;
        let trace = medium.trace();
        // Images with large objects take long: more worlds are worth more than more of them.
        let most = if shape.large_max > 0 { IMAGES_PER_GENERATION / 3 } else { IMAGES_PER_GENERATION };
        let budget = most.min(settings.images.saturating_sub(report.images).max(1));
        let mut survivor = explore(&trace, seed ^ generation as u64, budget, &history, &mut rng, report).map_err(fail)?;
        if shape.close && rng.random() {
            // Reopened as it was closed.
            Explorer::new(trace.clone(), seed).only_at(trace.len()).for_each_image(2, |image| {
                survivor = Some((image.to_medium(), history.newest()));
            });
        }
        progress(report.images);
        let Some((next, epoch)) = survivor else { break };
        history.truncate(epoch);
        medium = next;
    }
    Ok(())
}

/// Checks images of `trace`; gives one of them, with its epoch, to go on with.
fn explore(
    trace: &Trace,
    seed: u64,
    budget: usize,
    history: &History,
    rng: &mut SmallRng,
    report: &mut Report,
) -> Result<Option<(SimMedium, u64)>, String> {
    let mut survivor = None;
    let mut in_recovery = 0;
    let coverage = Explorer::new(trace.clone(), seed)
        .check(budget, |image| {
            let medium = image.to_medium();
            let found = check_image(&medium, image.notes(), history)?;
            let Some(epoch) = found else { return Ok(()) };
            if rng.random_ratio(1, CRASH_RECOVERY_ONE_IN) {
                in_recovery += crash_recovery(&medium.trace(), seed, epoch, history)?;
            }
            if survivor.is_none() || rng.random_ratio(1, 200) {
                survivor = Some((image.to_medium(), epoch));
            }
            Ok(())
        })
        .map_err(|counterexample| counterexample.to_string())?;
    let mut after_kill = 0;
    for _ in 0..KILLS {
        after_kill += kill(trace, rng.random_range(0..=trace.len()), seed, history)?;
    }
    report.images += coverage.images + in_recovery + after_kill;
    report.images_in_recovery += in_recovery;
    report.images_after_kill += after_kill;
    report.crash_points += coverage.events;
    report.exhaustive_points += coverage.exhaustive_events;
    report.sampled_points += coverage.sampled_events;
    Ok(survivor)
}

/// Crashes the recovery that `trace` recorded, everywhere: recovering from that must give `epoch` again.
fn crash_recovery(trace: &Trace, seed: u64, epoch: u64, history: &History) -> Result<usize, String> {
    let coverage = Explorer::new(trace.clone(), seed)
        .check(IMAGES_PER_RECOVERY, |image| match check_image(&image.to_medium(), &[epoch], history)? {
            Some(again) if again == epoch => Ok(()),
            other => Err(format!("recovery gave epoch {epoch}; crashed and repeated it gave {other:?}")),
        })
        .map_err(|counterexample| format!("crash during recovery: {counterexample}"))?;
    Ok(coverage.images)
}

/// Kills the process after `events` events of `trace`: the next one must recover, and what it then calls durable must survive a crash
/// of the machine at any moment from there on.
pub fn kill(trace: &Trace, events: usize, seed: u64, history: &History) -> Result<usize, String> {
    let medium = trace.killed_after(events);
    let place = |what: String| format!("process killed after {events} events: {what}");
    let notes = medium.trace().notes();
    if let Some(last) = notes.last() {
        // From here on a pool that was closed is being opened: what was durable is, but it need not be clean.
        medium.note(last & !world::CLOSED);
    }
    let Some(epoch) = check_image(&medium, &notes, history).map_err(place)? else { return Ok(1) };
    medium.note(epoch);
    let coverage = Explorer::new(medium.trace(), seed)
        .starting_at(events)
        .check(IMAGES_PER_RECOVERY, |image| check_image(&image.to_medium(), image.notes(), history).map(|_| ()))
        .map_err(|counterexample| place(counterexample.to_string()))?;
    Ok(coverage.images)
}
