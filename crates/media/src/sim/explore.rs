//! Goes through the crash images of a trace: at every event all of them when they are few, else a sample by seed.
//!
//! A sample always holds the two extremes, nothing and everything undecided survived, and then draws from several shapes,
//! because independent coin flips alone hardly ever produce the plain mistakes: one write lost and all others there, one write
//! there and all others lost, everything old lost and everything new there, whole writes, sectors or lines torn apart.
//!
//! What must always hold: the images of an event depend on the trace, the seed and the event only, so that a reported failure
//! can be reproduced; every image is allowed by the model; the report does not call sampled what was exhaustive, or conversely.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::image::{Choice, CrashImage, Length, LineChoice};
use super::replay::{Replay, WORDS};
use super::trace::Trace;

/// Goes through crash images; see [`sim`](crate::sim).
#[derive(Clone, Debug)]
pub struct Explorer {
    trace: Trace,
    seed: u64,
    first: usize,
    last: usize,
}

/// What was gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Moments at which a crash was tried: before the first event, and after each one (from where exploration started).
    pub events: usize,
    /// Of these, the ones at which a crash leaves the same images as one event earlier, which were not repeated.
    pub same_events: usize,
    /// Of these, the ones of which every image was tried.
    pub exhaustive_events: usize,
    /// Of these, the ones of which a sample was tried.
    pub sampled_events: usize,
    /// Of these, the ones left out because the budget was smaller than their number.
    pub skipped_events: usize,
    /// Images tried.
    pub images: usize,
}

/// A crash that the program does not survive. `Display` tells all that is needed to see why and to reproduce it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The explorer's seed.
    pub seed: u64,
    /// The [moment](CrashImage::event_index) of the crash.
    pub event_index: usize,
    /// What the check said.
    pub message: String,
    /// What was lost, after everything that could be put back without the check passing was put back.
    pub description: String,
    /// Images tried until then.
    pub images: usize,
}

impl Explorer {
    /// An explorer of all of `trace`.
    pub fn new(trace: Trace, seed: u64) -> Explorer {
        let last = trace.len();
        Explorer { trace, seed, first: 0, last }
    }

    /// Lets the crash strike only once `events` events have happened, as counted by [`SimMedium::events`](super::SimMedium::events).
    pub fn starting_at(mut self, events: usize) -> Explorer {
        self.first = events;
        self
    }

    /// Lets the crash strike only until `events` events have happened.
    pub fn ending_at(mut self, events: usize) -> Explorer {
        self.last = self.last.min(events);
        self
    }

    /// Lets the crash strike only when exactly `events` events have happened: to reproduce a counterexample.
    pub fn only_at(mut self, events: usize) -> Explorer {
        self.first = events;
        self.last = self.last.min(events);
        self
    }

    /// Shows `visit` about `budget` images, shared among the events: those with few leave their share to the others.
    pub fn for_each_image(&self, budget: usize, mut visit: impl FnMut(&CrashImage<'_, '_>)) -> Coverage {
        let (coverage, stopped) = self.walk(budget, |image| {
            visit(image);
            Ok::<(), std::convert::Infallible>(())
        });
        debug_assert!(stopped.is_none());
        coverage
    }

    /// Runs `check` on about `budget` images until one fails, by `Err` or by panic, and cuts that one down: whatever can be put
    /// back with the check still failing is put back. Panics of `check` print as panics do.
    pub fn check(
        &self,
        budget: usize,
        mut check: impl FnMut(&CrashImage<'_, '_>) -> Result<(), String>,
    ) -> Result<Coverage, Box<Counterexample>> {
        let seed = self.seed;
        let mut images = 0;
        let (coverage, failure) = self.walk(budget, |image| {
            images += 1;
            let Err(message) = guarded(&mut check, image) else {
                return Ok(());
            };
            let (message, choice) = cut_down(image, message, &mut check);
            let description = CrashImage { replay: image.replay, choice: &choice }.describe();
            let event_index = image.event_index();
            Err(Box::new(Counterexample { seed, event_index, message, description, images }))
        });
        failure.map_or(Ok(coverage), Err)
    }

    fn walk<E>(&self, budget: usize, mut visit: impl FnMut(&CrashImage<'_, '_>) -> Result<(), E>) -> (Coverage, Option<E>) {
        let mut replay = Replay::new(&self.trace);
        let mut coverage = Coverage::default();
        // The first moment explored has no predecessor that it could be the same as.
        let mut fresh = true;
        loop {
            if replay.done >= self.first {
                coverage.events += 1;
                let mut rng = SmallRng::seed_from_u64(self.seed ^ (replay.done as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                let to_come = (self.last + 1).saturating_sub(replay.done).max(1);
                let share = budget.saturating_sub(coverage.images) as f64 / to_come as f64;
                if !fresh {
                    coverage.same_events += 1;
                } else if share < 2.0 && rng.random::<f64>() >= share / 2.0 {
                    coverage.skipped_events += 1;
                } else if let Err(e) = one_moment(&replay, (share as usize).max(2), &mut rng, &mut coverage, &mut visit) {
                    return (coverage, Some(e));
                }
            }
            if replay.done >= self.last {
                return (coverage, None);
            }
            fresh = replay.step() || replay.done <= self.first;
        }
    }
}

/// Visits at most `limit` images of a crash at this moment.
fn one_moment<E>(
    replay: &Replay<'_>,
    limit: usize,
    rng: &mut SmallRng,
    coverage: &mut Coverage,
    visit: &mut impl FnMut(&CrashImage<'_, '_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut show = |choice: &Choice| {
        coverage.images += 1;
        visit(&CrashImage { replay, choice })
    };
    match axes(replay, limit) {
        Some(axes) => {
            coverage.exhaustive_events += 1;
            all_choices(replay, &axes, &mut show)
        }
        None => {
            coverage.sampled_events += 1;
            show(&Choice::of(replay, false, |_, _, _, _| false))?;
            show(&Choice::of(replay, false, |_, _, _, _| true))?;
            let undecided: Vec<usize> = replay.undecided.keys().copied().collect();
            (2..limit).try_for_each(|_| show(&draw(replay, &undecided, rng)))
        }
    }
}

/// One thing that chooses for itself.
#[derive(Clone, Copy)]
enum Axis {
    Stores { line: usize, most: u32 },
    Word { line: usize, word: usize, most: u32 },
    Name(usize),
    Length { region: usize, survivals: &'static [Length] },
}

impl Axis {
    fn most(self) -> u32 {
        match self {
            Axis::Stores { most, .. } | Axis::Word { most, .. } => most,
            Axis::Name(_) => 1,
            Axis::Length { survivals, .. } => survivals.len() as u32 - 1,
        }
    }
}

/// The axes, or `None` when they span more than `limit` images.
fn axes(replay: &Replay<'_>, limit: usize) -> Option<Vec<Axis>> {
    let mut axes = Vec::new();
    let mut images = 1usize;
    let mut add = |axis: Axis| {
        if axis.most() > 0 {
            images = images.saturating_mul(axis.most() as usize + 1);
            axes.push(axis);
        }
        images <= limit
    };
    for (line, content) in replay.lines.values().enumerate() {
        let (stores, words) = content.sizes();
        if !add(Axis::Stores { line, most: stores }) {
            return None;
        }
        for (word, most) in words.into_iter().enumerate() {
            if !add(Axis::Word { line, word, most }) {
                return None;
            }
        }
    }
    let lengths = replay.lengths.keys().enumerate().map(|(i, region)| {
        let survivals = Length::survivals(replay.durable.regions[region].len());
        Axis::Length { region: i, survivals }
    });
    let rest = (0..replay.name_ops.len()).map(Axis::Name).chain(lengths);
    for axis in rest {
        if !add(axis) {
            return None;
        }
    }
    Some(axes)
}

/// Shows every combination, once.
fn all_choices<E>(replay: &Replay<'_>, axes: &[Axis], show: &mut impl FnMut(&Choice) -> Result<(), E>) -> Result<(), E> {
    let mut at = vec![0u32; axes.len()];
    loop {
        let mut choice = Choice {
            lines: vec![LineChoice::default(); replay.lines.len()],
            names: vec![false; replay.name_ops.len()],
            lengths: vec![Length::None; replay.lengths.len()],
        };
        for (axis, at) in axes.iter().zip(&at) {
            match *axis {
                Axis::Stores { line, .. } => choice.lines[line].stores = *at,
                Axis::Word { line, word, .. } => choice.lines[line].words[word] = *at,
                Axis::Name(i) => choice.names[i] = *at == 1,
                Axis::Length { region, survivals } => choice.lengths[region] = survivals[*at as usize],
            }
        }
        // What the rules for names change is a combination that comes by itself.
        let names = choice.names.clone();
        choice.heed_names(replay);
        if choice.names == names {
            show(&choice)?;
        }
        // Count on, as an odometer does.
        let Some(turn) = (0..axes.len()).find(|i| at[*i] < axes[*i].most()) else {
            return Ok(());
        };
        at[..turn].fill(0);
        at[turn] += 1;
    }
}

/// A random choice, of one of several shapes.
fn draw(replay: &Replay<'_>, undecided: &[usize], rng: &mut SmallRng) -> Choice {
    let pivot = undecided[rng.random_range(0..undecided.len())];
    let generous = rng.random();
    // Mostly survived, mostly lost, or even; as a bound on 32 random bits.
    let bound = (rng.random_range(1..16u64) << 28) as u32;
    let salt: u64 = rng.random();
    let keep = |a: u64, b: u64| (mix(salt ^ a.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ mix(b)) >> 32) as u32 <= bound;
    let place = |region: u32, line: u64| (u64::from(region) << 48) ^ line;
    const LINES_PER_SECTOR: u64 = 8;
    match rng.random_range(0..9) {
        0 => uniform(replay, rng),
        1 => Choice::of(replay, generous, |event, _, _, _| event != pivot),
        2 => Choice::of(replay, generous, |event, _, _, _| event == pivot),
        3 => Choice::of(replay, generous, |event, _, _, _| event < pivot),
        4 => Choice::of(replay, generous, |event, _, _, _| event >= pivot),
        5 => Choice::of(replay, generous, |event, _, _, _| keep(event as u64, 0)),
        6 => Choice::of(replay, generous, |_, region, line, _| keep(place(region, line / LINES_PER_SECTOR), 1)),
        7 => Choice::of(replay, generous, |_, region, line, _| keep(place(region, line), 2)),
        _ => Choice::of(replay, generous, |event, region, line, word| keep(place(region, line), (event * WORDS + word) as u64)),
    }
}

/// Each axis uniformly.
fn uniform(replay: &Replay<'_>, rng: &mut SmallRng) -> Choice {
    let lines = replay.lines.values().map(|line| {
        let (stores, words) = line.sizes();
        LineChoice {
            stores: rng.random_range(0..=stores),
            words: words.map(|most| if most == 0 { 0 } else { rng.random_range(0..=most) }),
        }
    });
    let lines = lines.collect();
    let names = replay.name_ops.iter().map(|_| rng.random()).collect();
    let lengths = replay.lengths.iter().map(|_| [Length::None, Length::Half, Length::All][rng.random_range(0..3)]);
    let mut choice = Choice { lines, names, lengths: lengths.collect() };
    choice.heed_names(replay);
    choice
}

/// A well-mixed hash of one number (the finaliser of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Puts back, event by event, what can be put back with `check` still failing.
fn cut_down(
    image: &CrashImage<'_, '_>,
    mut message: String,
    check: &mut impl FnMut(&CrashImage<'_, '_>) -> Result<(), String>,
) -> (String, Choice) {
    const TRIES: usize = 300;
    let replay = image.replay;
    let mut choice = image.choice.clone();
    for event in image.lost().into_keys().take(TRIES) {
        let mut more = choice.clone();
        more.revive(replay, event);
        if let Err(again) = guarded(check, &CrashImage { replay, choice: &more }) {
            (message, choice) = (again, more);
        }
    }
    (message, choice)
}

/// A panic of the check is a failure with the panic's message.
fn guarded(check: &mut impl FnMut(&CrashImage<'_, '_>) -> Result<(), String>, image: &CrashImage<'_, '_>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| check(image))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("with a value that is no text")))
    })
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n{}\nreproduce: seed {}, crash after {} events (image {} of the search)",
            self.message, self.description, self.seed, self.event_index, self.images
        )
    }
}

impl std::error::Error for Counterexample {}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} images at {} moments: {} exhaustively, {} by sample, {} the same as the one before, {} left out",
            self.images, self.events, self.exhaustive_events, self.sampled_events, self.same_events, self.skipped_events
        )
    }
}
