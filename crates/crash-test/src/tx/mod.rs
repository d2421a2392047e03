//! The crash sweep of the tx door.
//!
//! A [`World`] runs random transactions, several threads', on cells that they share, and remembers who saw and changed what. A
//! [`sweep`] looks at the crash images of the recorded trace. Recovery of each must give a state that [`History`] allows: **the
//! transactions that returned, plus possibly one in flight of each thread, whole or not at all, and none without those whose values it
//! saw**; with every object whole, no block leaked, none used twice. For some images recovery itself is crashed, at every one of its events, and
//! must then give that same state. At some moments only the process dies, and then the machine during the next one's recovery. One image (or
//! the closed pool, or what a killed process left) is worked on further, for several generations.
//!
//! Worlds of one thread follow from the seed. Those of real threads do not: their seed repeats what each thread wants to do, not who is when
//! where. A failure describes the trace it was found in.

mod check;
mod failing;
mod history;
mod jitter;
mod session;
mod shape;
mod world;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Explorer, Model, SimMedium, Trace};

pub use crate::Failure;
pub use check::{Found, check_image, read_image};
pub use failing::failing_round;
pub use history::{Base, Cells, History, note};
pub use shape::Shape;
pub use world::World;

pub use crate::epoch::Settings;

/// What was explored.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Crash images recovered and checked, those of crashed recoveries included.
    pub images: usize,
    /// Of these: crashes during recovery.
    pub images_in_recovery: usize,
    /// Of these: crashes of the machine during the recovery of what a killed process left.
    pub images_after_kill: usize,
    /// Of these: crashes while real threads worked.
    pub images_concurrent: usize,
    /// Moments at which a crash was tried.
    pub crash_points: usize,
    /// Of these: every possible image was tried.
    pub exhaustive_points: usize,
    /// Of these: a sample was tried.
    pub sampled_points: usize,
    /// Worlds (pools from creation on).
    pub worlds: usize,
    /// Checkpoints that brought up the image.
    pub checkpoints: u64,
    /// Transactions that took effect.
    pub transactions: u64,
}

/// Generations of one world.
const GENERATIONS: u64 = 4;
/// Images of one generation's trace.
const IMAGES_PER_GENERATION: usize = 700;
/// One image in so many has its recovery crashed too.
const CRASH_RECOVERY_ONE_IN: u32 = 80;
/// Moments in a generation at which the process is killed.
const KILLS: usize = 4;
/// Images of one crashed recovery.
const IMAGES_PER_RECOVERY: usize = 60;

/// Explores about `settings.images` crash images; `progress` is called with the number done so far.
pub fn sweep(settings: &Settings, progress: &mut dyn FnMut(usize)) -> Result<Report, Failure> {
    let mut report = Report::default();
    while report.images < settings.images {
        let seed = settings.seed.wrapping_add(report.worlds as u64);
        // By the seed, so that a world's own seed gives it again.
        let model = settings.model.unwrap_or(if seed.is_multiple_of(2) { Model::Line } else { Model::File });
        run_world(seed, model, settings, &mut report, progress).map_err(|(place, message)| Failure { seed, place, message })?;
        report.worlds += 1;
    }
    Ok(report)
}

/// What the next generation goes on with.
struct Survivor {
    medium: SimMedium,
    base: Base,
}

fn run_world(
    seed: u64,
    model: Model,
    settings: &Settings,
    report: &mut Report,
    progress: &mut dyn FnMut(usize),
) -> Result<(), (String, String)> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut next = Survivor { medium: SimMedium::new(model), base: Base::default() };
    let fixed = Shape::draw(&mut rng, (seed / 2).is_multiple_of(2));
    for generation in 0..GENERATIONS {
        let shape = fixed.reopened(&mut rng);
        let place = format!("{model:?} model, generation {generation}, {shape:?}");
        let fail = |message: String| (place.clone(), message);
        let Survivor { medium, base } = next;
        let killed_before = medium.events();
        let world = World::run(&medium, &mut rng, base, generation, &shape).map_err(fail)?;
        report.checkpoints += world.checkpoints;
        report.transactions += world.transactions;
        // Of what a killed process left it is known what it comes to once it is recovered.
        let first = if killed_before > 0 { world.opened } else { 0 };
        let trace = medium.trace();
        let most = if shape.large_max > 0 { IMAGES_PER_GENERATION / 3 } else { IMAGES_PER_GENERATION };
        let budget = most.min(settings.images.saturating_sub(report.images).max(1));
        let before = report.images;
        let explore = Explore { trace: &trace, seed: seed ^ generation, first, history: &world.history };
        let survivor = explore.all(budget, &mut rng, report).map_err(fail)?;
        report.images_concurrent += if shape.concurrent { report.images - before } else { 0 };
        progress(report.images);
        let going_on = match rng.random_range(0..4) {
            0 => explore.killed_anywhere(&mut rng).map_err(fail)?,
            1 if shape.close => explore.closed().map_err(fail)?,
            _ => survivor,
        };
        let Some(survivor) = going_on else { break };
        next = survivor;
    }
    Ok(())
}

/// A generation's trace, to be explored.
pub struct Explore<'t> {
    /// What was done.
    pub trace: &'t Trace,
    /// For the explorer.
    pub seed: u64,
    /// The first moment at which to crash.
    pub first: usize,
    /// What may be left.
    pub history: &'t History,
}

impl Explore<'_> {
    /// Checks images; gives one of them to go on with.
    fn all(&self, budget: usize, rng: &mut SmallRng, report: &mut Report) -> Result<Option<Survivor>, String> {
        let mut survivor = None;
        let mut in_recovery = 0;
        let coverage = Explorer::new(self.trace.clone(), self.seed)
            .starting_at(self.first)
            .check(budget, |image| {
                let medium = image.to_medium();
                let Some(found) = check_image(&medium, image.notes(), self.history)? else { return Ok(()) };
                if rng.random_ratio(1, CRASH_RECOVERY_ONE_IN) {
                    in_recovery += crash_recovery(&medium.trace(), self.seed, &found)?;
                }
                if survivor.is_none() || rng.random_ratio(1, 200) {
                    survivor = Some(Survivor { medium: image.to_medium(), base: base_of(&found) });
                }
                Ok(())
            })
            .map_err(|counterexample| counterexample.to_string())?;
        let mut after_kill = 0;
        for _ in 0..KILLS {
            after_kill += self.kill(rng.random_range(self.first..=self.trace.len()))?;
        }
        report.images += coverage.images + in_recovery + after_kill;
        report.images_in_recovery += in_recovery;
        report.images_after_kill += after_kill;
        report.crash_points += coverage.events;
        report.exhaustive_points += coverage.exhaustive_events;
        report.sampled_points += coverage.sampled_events;
        Ok(survivor)
    }

    /// Kills the process after `events` events: the next one must recover, and what it then calls durable must survive a crash of the
    /// machine at any moment from there on.
    pub fn kill(&self, events: usize) -> Result<usize, String> {
        self.killed(self.trace.killed_after(events), events)
    }

    /// [`kill`](Self::kill) of a process that left `medium`.
    fn killed(&self, medium: SimMedium, events: usize) -> Result<usize, String> {
        let place = |what: String| format!("process killed after {events} events: {what}");
        let notes = medium.trace().notes();
        medium.note(note::of(note::OPENING, 0));
        let Some(found) = check_image(&medium, &notes, self.history).map_err(place)? else { return Ok(1) };
        medium.note(note::of(note::RECOVERED, 0));
        let coverage = Explorer::new(medium.trace(), self.seed)
            .starting_at(events)
            .check(IMAGES_PER_RECOVERY, |image| {
                let again = check_image(&image.to_medium(), image.notes(), self.history)?;
                let recovered = image.notes().iter().any(|n| note::parts(*n).0 == note::RECOVERED);
                if recovered && again.as_ref().and_then(|f| f.cells) != found.cells {
                    return Err(format!("recovery gave {:x?}; after the crash there was {again:x?}", found.cells));
                }
                Ok(())
            })
            .map_err(|counterexample| place(counterexample.to_string()))?;
        Ok(coverage.images)
    }

    /// What a process killed somewhere leaves.
    fn killed_anywhere(&self, rng: &mut SmallRng) -> Result<Option<Survivor>, String> {
        let events = rng.random_range(self.first..=self.trace.len());
        let medium = self.trace.killed_after(events);
        let found = check_image(&self.trace.killed_after(events), &medium.trace().notes(), self.history)?;
        Ok(found.map(|found| Survivor { medium, base: base_of(&found) }))
    }

    /// The pool as it was closed.
    fn closed(&self) -> Result<Option<Survivor>, String> {
        let mut closed = Ok(None);
        Explorer::new(self.trace.clone(), self.seed).only_at(self.trace.len()).for_each_image(1, |image| {
            let found = check_image(&image.to_medium(), image.notes(), self.history);
            closed = found.map(|found| found.map(|found| Survivor { medium: image.to_medium(), base: base_of(&found) }));
        });
        closed
    }
}

fn base_of(found: &Found) -> Base {
    Base { opened: true, cells: found.cells }
}

/// Crashes the recovery that `trace` recorded, everywhere: recovering from that must give the same cells again.
fn crash_recovery(trace: &Trace, seed: u64, found: &Found) -> Result<usize, String> {
    let coverage = Explorer::new(trace.clone(), seed)
        .check(IMAGES_PER_RECOVERY, |image| match read_image(&image.to_medium())? {
            Some(again) if again.cells == found.cells => Ok(()),
            other => Err(format!("recovery gave {:x?}; crashed and repeated it gave {other:x?}", found.cells)),
        })
        .map_err(|counterexample| format!("crash during recovery: {counterexample}"))?;
    Ok(coverage.images)
}
