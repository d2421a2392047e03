//! Fits to runs that were made up, so that the costs are known.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const LOAD: f64 = 0.1;
const NVM: f64 = 0.002;
const MINOR: f64 = 0.0007;
const COW: f64 = 0.0015;

fn made_up(program: &str, counts: [u32; 4], base: f64) -> Run {
    let [major, nvm, minor, cow] = counts.map(f64::from);
    let wall_ms = base + major * LOAD + nvm * NVM + minor * MINOR + cow * COW;
    Run { program: program.into(), major, nvm, minor, cow, wall_ms }
}

/// Runs of three programs in several ways, each time off by up to `noise` of itself.
fn many(seed: u64, noise: f64) -> Vec<Run> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut runs = Vec::new();
    for (program, base) in [("cc1", 20.0), ("gzip", 5.0), ("python", 12.0)] {
        for _ in 0..12 {
            let counts = [500, 8000, 20_000, 9000].map(|most| random.random_range(0..most));
            let mut run = made_up(program, counts, base);
            run.wall_ms *= 1.0 + noise * random.random_range(-1.0..1.0);
            runs.push(run);
        }
    }
    runs
}

fn verdict(fit: &Fit, cost: &Column) -> Verdict {
    fit.estimates.iter().find(|e| e.cost == *cost).unwrap().verdict
}

fn near(a: Option<f64>, b: f64, share: f64) {
    assert!(a.is_some_and(|a| (a - b).abs() <= share * b), "{a:?} is not {b}");
}

#[test]
fn exact_runs_give_the_costs_back() {
    let fit = fit(&many(1, 0.0), Base::PerProgram).unwrap();
    for (cost, ms) in [(Column::Major, LOAD), (Column::Nvm, NVM), (Column::Minor, MINOR), (Column::Cow, COW)] {
        near(fit.ms(&cost), ms, 1e-6);
        assert_eq!(verdict(&fit, &cost), Verdict::Told);
    }
    near(fit.ms(&Column::Base("gzip".into())), 5.0, 1e-6);
    assert!(fit.max_error_percent < 1e-6 && fit.notes.is_empty(), "{fit:?}");
    let costs = fit.costs().unwrap();
    near(Some(costs.load()), LOAD, 1e-6);
    near(Some(costs.copy()), COW, 1e-6);
    near(Some(costs.saved_per_page()), LOAD - NVM, 1e-6);
}

#[test]
fn noise_moves_costs_within_their_standard_errors() {
    for seed in 0..20 {
        let fit = fit(&many(seed, 0.05), Base::PerProgram).unwrap();
        near(fit.ms(&Column::Major), LOAD, 0.15);
        assert!(fit.median_error_percent < 5.0 && fit.max_error_percent < 12.0, "seed {seed}: {fit:?}");
        for (cost, ms) in [(Column::Major, LOAD), (Column::Nvm, NVM), (Column::Minor, MINOR), (Column::Cow, COW)] {
            let estimate = fit.estimates.iter().find(|e| e.cost == cost).unwrap();
            let off = (estimate.ms.unwrap() - ms).abs();
            assert!(off <= 4.5 * estimate.error_ms.unwrap(), "seed {seed}: {estimate:?}");
        }
    }
}

#[test]
fn costs_that_rise_together_have_no_value_and_the_others_keep_theirs() {
    let mut runs = many(3, 0.0);
    for run in &mut runs {
        let more = 2.0 * run.minor - run.cow;
        (run.cow, run.wall_ms) = (2.0 * run.minor, run.wall_ms + more * COW);
    }
    let fit = fit(&runs, Base::PerProgram).unwrap();
    assert_eq!((verdict(&fit, &Column::Minor), verdict(&fit, &Column::Cow)), (Verdict::Indistinct, Verdict::Indistinct));
    assert_eq!((fit.ms(&Column::Minor), fit.ms(&Column::Cow)), (None, None));
    near(fit.ms(&Column::Major), LOAD, 1e-6);
    near(fit.ms(&Column::Nvm), NVM, 1e-6);
    assert!(fit.max_error_percent < 1e-6, "what they are together is known: {}", fit.max_error_percent);
    assert_eq!(fit.notes, ["cannot be told apart: other minor faults, copies on write; measure runs in which they differ"]);
}

#[test]
fn two_pairs_that_rise_together_are_two_pairs() {
    let mut runs = many(4, 0.0);
    for run in &mut runs {
        (run.nvm, run.cow) = (run.major, run.minor);
    }
    let fit = fit(&runs, Base::Nothing).unwrap();
    let pairs: Vec<_> = fit.notes.iter().filter(|note| note.starts_with("cannot")).collect();
    assert_eq!(pairs.len(), 2, "{pairs:?}");
    assert!(fit.costs().is_none());
}

#[test]
fn costs_that_rise_nearly_together_are_uncertain_under_noise() {
    let mut random = StdRng::seed_from_u64(5);
    let mut runs = many(5, 0.0);
    for run in &mut runs {
        run.cow = run.minor * random.random_range(0.99..1.01);
        run.wall_ms = made_up("", [run.major as u32, run.nvm as u32, run.minor as u32, run.cow as u32], 10.0).wall_ms;
        run.wall_ms *= random.random_range(0.95..1.05);
    }
    let fit = fit(&runs, Base::Common).unwrap();
    for cost in [Column::Minor, Column::Cow] {
        assert!(matches!(verdict(&fit, &cost), Verdict::Uncertain | Verdict::Zero), "{cost:?}: {:?}", fit.estimates);
    }
    assert_eq!(verdict(&fit, &Column::Major), Verdict::Told);
}

#[test]
fn no_cost_is_negative() {
    // The more pages were mapped from XYZ, the faster: a cost below zero would fit best.
    let runs: Vec<_> = (0..20)
        .map(|i| Run {
            major: f64::from(i % 7),
            nvm: f64::from(i),
            wall_ms: 50.0 + f64::from(i % 7) - f64::from(i),
            ..Run::default()
        })
        .collect();
    let fit = fit(&runs, Base::Common).unwrap();
    assert_eq!((fit.ms(&Column::Nvm), verdict(&fit, &Column::Nvm)), (Some(0.0), Verdict::Zero));
    assert!(fit.estimates.iter().all(|e| e.ms.is_none_or(|ms| ms >= 0.0)));
}

#[test]
fn what_was_never_seen_has_no_value() {
    let mut runs = many(6, 0.0);
    for run in &mut runs {
        (run.wall_ms, run.cow) = (run.wall_ms - run.cow * COW, 0.0);
    }
    let fit = fit(&runs, Base::PerProgram).unwrap();
    assert_eq!((verdict(&fit, &Column::Cow), fit.ms(&Column::Cow)), (Verdict::Unseen, None));
    near(fit.ms(&Column::Minor), MINOR, 1e-6);
    assert_eq!(fit.costs().unwrap().t5, 0.0);
}

#[test]
fn too_few_runs_say_that_they_are() {
    let fit = fit(&[made_up("a", [1, 2, 3, 4], 1.0)], Base::PerProgram).unwrap();
    assert!(fit.estimates.iter().all(|e| e.verdict == Verdict::Indistinct), "{fit:?}");
    assert!(fit.notes.iter().any(|note| note.contains("no more runs than costs")), "{:?}", fit.notes);
}

#[test]
fn runs_without_sense_are_refused() {
    let run = made_up("a", [1, 1, 1, 1], 1.0);
    let wrong = |run: Run| matches!(fit(&[run], Base::Nothing), Err(Error::Wrong(_)));
    assert!(matches!(fit(&[], Base::Nothing), Err(Error::Wrong(_))));
    assert!(wrong(Run { wall_ms: 0.0, ..run.clone() }));
    assert!(wrong(Run { major: -1.0, ..run.clone() }));
    assert!(wrong(Run { nvm: f64::NAN, ..run }));
}
