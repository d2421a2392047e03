//! The crash sweeps of the trees: random operations, a crash at every event, and exactly what had returned, plus possibly the one in
//! flight, must be there.
//!
//! ```text
//!   world ─ generation 0 ─ images ─┬─► checked; some recoveries crashed in their turn, everywhere
//!                                  ├─► the process alone killed: the next one reads, works on, and is crashed
//!                                  └─► one image worked on: generation 1 ...
//! ```
//!
//! Leaves and nodes of few entries, so that a few dozen operations split, merge and unlink many, down to an empty root and up again; now
//! and then there is no room. What must always hold after recovery from an image: all keys and values of one of the two states; every
//! invariant of the tree, and that each block that is taken has exactly one owner. A recovery that is crashed must give the same again.

mod check;
mod failing;
mod kind;
mod world;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Explorer, Model, SimMedium, Trace};
use towa_tree::{BpTree, FpTree};
use towa_tx::Commit;

pub use crate::Failure;
pub use check::{Killed, check_image, killed, recovered};
pub use failing::failing_round;
pub use kind::{Drawn, LONG, Tree, everything};
pub use world::{BUFFERED, Shape, State, World};

pub use crate::epoch::Settings;

/// The B+-tree of the sweeps, of tiny nodes.
pub type TinyBpTree<K> = BpTree<K, 4, 4>;

/// Which trees are swept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// The B+-tree on transactions.
    BpTree,
    /// The FPTree.
    FpTree,
    /// One world of the one, one of the other.
    #[default]
    Both,
}

/// What of a sweep was explored.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Crash images recovered and checked, those of crashed recoveries included.
    pub images: usize,
    /// Of these: crashes of the B+-tree.
    pub images_of_bptree: usize,
    /// Of these: in pools whose commits are buffered.
    pub images_buffered: usize,
    /// Of these: crashes during recovery.
    pub images_in_recovery: usize,
    /// Of these: crashes of the machine after a process was killed and the next one recovered.
    pub images_after_kill: usize,
    /// Moments at which a crash was tried.
    pub crash_points: usize,
    /// Of these: every possible image was tried.
    pub exhaustive_points: usize,
    /// Of these: a sample was tried.
    pub sampled_points: usize,
    /// Trees from creation on.
    pub worlds: usize,
    /// Operations.
    pub operations: usize,
    /// Operations refused for want of space.
    pub refused: usize,
}

/// Generations of one world.
const GENERATIONS: usize = 3;
/// Images of one generation.
const IMAGES: usize = 400;
/// One image in so many has its recovery crashed.
const CRASH_RECOVERY_ONE_IN: u32 = 90;
/// Images of one crashed recovery.
const IMAGES_PER_RECOVERY: usize = 60;
/// Moments in a generation at which the process is killed.
const KILLS: usize = 4;

/// Explores about `settings.images` crash images; `progress` is called with the number done so far.
pub fn sweep(settings: &Settings, which: Which, progress: &mut dyn FnMut(usize)) -> Result<Report, Failure> {
    let mut report = Report::default();
    while report.images < settings.images {
        // Model, keys and tree by the seed, so that a world's own seed gives it again.
        let seed = settings.seed.wrapping_add(report.worlds as u64);
        let model = settings.model.unwrap_or(if seed.is_multiple_of(2) { Model::Line } else { Model::File });
        let words = (seed / 2).is_multiple_of(2);
        let of_transactions = which == Which::BpTree || which == Which::Both && (seed / 4).is_multiple_of(2);
        let run = match (of_transactions, words) {
            (true, true) => run_world::<TinyBpTree<u64>>,
            (true, false) => run_world::<TinyBpTree<[u8]>>,
            (false, true) => run_world::<FpTree<u64>>,
            (false, false) => run_world::<FpTree<[u8]>>,
        };
        let before = report.images;
        run(seed, model, settings.images, &mut report, progress).map_err(|(place, message)| Failure { seed, place, message })?;
        report.images_of_bptree += if of_transactions { report.images - before } else { 0 };
        report.worlds += 1;
    }
    Ok(report)
}

fn run_world<T: Tree>(
    seed: u64,
    model: Model,
    most: usize,
    report: &mut Report,
    progress: &mut dyn FnMut(usize),
) -> Result<(), (String, String)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut shape = T::shape(&mut rng);
    let (mut medium, mut state) = (SimMedium::new(model), State::<T::Key>::new());
    for generation in 0..GENERATIONS {
        let place = format!("{} of {}, {model:?} model, {shape:?}, generation {generation}", T::NAME, key_name::<T>());
        let fail = |message: String| (place.clone(), message);
        let world = World::<T>::run(&medium, &mut rng, state, &shape).map_err(fail)?;
        if let Some(e) = world.failed {
            return Err(fail(e));
        }
        report.operations += world.states.len() - 1;
        report.refused += world.refused;
        let budget = IMAGES.min(most.saturating_sub(report.images).max(1));
        let before = report.images;
        let survivor = explore::<T>(&medium.trace(), seed, budget, &world.states, &mut rng, report).map_err(fail)?;
        report.images_buffered += if shape.commit == Commit::Buffered { report.images - before } else { 0 };
        progress(report.images);
        let Some((next, n)) = survivor else { return Ok(()) };
        state = world.states[n].clone();
        medium = next;
        // What is not fixed at creation.
        let again = T::shape(&mut rng);
        shape =
            Shape { tm: again.tm, commit: again.commit, checkpoint_one_in: again.checkpoint_one_in, close: again.close, ..shape };
    }
    Ok(())
}

fn key_name<T: Tree>() -> &'static str {
    <T::Key as towa_tree::Key>::NAME
}

/// Checks images of a generation; gives one of them, with its state, to go on with.
fn explore<T: Tree>(
    trace: &Trace,
    seed: u64,
    budget: usize,
    states: &[State<T::Key>],
    rng: &mut SmallRng,
    report: &mut Report,
) -> Result<Option<(SimMedium, usize)>, String> {
    let mut survivor = None;
    let mut in_recovery = 0;
    let coverage = Explorer::new(trace.clone(), seed)
        .check(budget, |image| {
            let medium = image.to_medium();
            let Some(n) = check_image::<T>(&medium, image.notes(), states)? else { return Ok(()) };
            if rng.random_ratio(1, CRASH_RECOVERY_ONE_IN) {
                in_recovery += crash_recovery::<T>(&medium.trace(), seed, &states[n])?;
            }
            if survivor.is_none() || rng.random_ratio(1, 300) {
                survivor = Some((image.to_medium(), n));
            }
            Ok(())
        })
        .map_err(|e| e.to_string())?;
    let mut after_kill = 0;
    for _ in 0..KILLS {
        after_kill += kill::<T>(trace, rng.random_range(0..=trace.len()), seed, states)?;
    }
    report.images += coverage.images + in_recovery + after_kill;
    report.images_in_recovery += in_recovery;
    report.images_after_kill += after_kill;
    report.crash_points += coverage.events;
    report.exhaustive_points += coverage.exhaustive_events;
    report.sampled_points += coverage.sampled_events;
    Ok(survivor)
}

/// Crashes the recovery that `trace` recorded, everywhere: `state` must be given again.
fn crash_recovery<T: Tree>(trace: &Trace, seed: u64, state: &State<T::Key>) -> Result<usize, String> {
    let coverage = Explorer::new(trace.clone(), seed)
        .check(IMAGES_PER_RECOVERY, |image| match recovered::<T>(&image.to_medium())? {
            Some(again) if again == *state => Ok(()),
            again => Err(format!("recovery gave {state:?}; crashed and repeated it gave {again:?}")),
        })
        .map_err(|e| format!("crash during recovery: {e}"))?;
    Ok(coverage.images)
}

/// Kills the process after `events` events: the next one recovers, reads what may not be durable yet, works on, and what it read must then
/// survive a crash of the machine.
pub fn kill<T: Tree>(trace: &Trace, events: usize, seed: u64, states: &[State<T::Key>]) -> Result<usize, String> {
    let place = |e: String| format!("process killed after {events} events: {e}");
    let left = || trace.killed_after(events);
    let Some(killed) = killed::<T>(&left, seed, states).map_err(place)? else { return Ok(1) };
    let coverage = Explorer::new(killed.trace.clone(), seed)
        .starting_at(events)
        .check(IMAGES_PER_RECOVERY, |image| killed.check(&image.to_medium(), image.notes()))
        .map_err(|e| place(e.to_string()))?;
    Ok(coverage.images)
}
