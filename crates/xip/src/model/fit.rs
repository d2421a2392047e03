//! The costs of a machine, from measured runs: least squares without negative costs, and how far the model is off with them.
//!
//! A run took `base + load x major + t4 x nvm + map x minor + copy x cow`, where load stands for t1+t2+t3, map for t1+t3 and copy for t1+t5+t3 of the
//! paper; only these sums can be seen from outside, and equations 1 to 4 need no more. The base is what the program takes without a fault.
//!
//! What must hold: a cost that the runs do not tell is reported as such and has no value: never seen, or always in the same proportion to
//! another. What is told has a standard error. Errors are relative, so that a run of 10 ms counts as much as one of 10 s.

use serde::{Deserialize, Serialize};

use super::linear::{Eigen, Matrix, non_negative, normal};
use super::{Costs, Error, Result};

/// What was counted in a run, and how long it took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What ran; runs of the same name have the same base.
    pub program: String,
    /// Faults that waited for storage.
    pub major: f64,
    /// Minor faults that mapped pages of XYZ.
    pub nvm: f64,
    /// Other minor faults.
    pub minor: f64,
    /// Copies on write, not counted in `minor`.
    pub cow: f64,
    /// Wall time in milliseconds.
    pub wall_ms: f64,
}

/// What a run takes besides its faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// Nothing: the times are fault times.
    Nothing,
    /// The same in all runs.
    Common,
    /// The same in all runs of one program. Each program has to be run in several ways, or its one run tells nothing.
    #[default]
    PerProgram,
}

/// A cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    /// t1 + t2 + t3, of a major fault.
    Major,
    /// t4, of a page mapped from XYZ.
    Nvm,
    /// t1 + t3, of another minor fault.
    Minor,
    /// t1 + t5 + t3, of a copy on write.
    Cow,
    /// What a program takes without faults; of all programs if it has no name.
    Base(String),
}

impl Column {
    fn count(&self, run: &Run) -> f64 {
        match self {
            Column::Major => run.major,
            Column::Nvm => run.nvm,
            Column::Minor => run.minor,
            Column::Cow => run.cow,
            Column::Base(program) => f64::from(u8::from(program.is_empty() || *program == run.program)),
        }
    }

    fn name(&self) -> String {
        match self {
            Column::Major => "major faults".into(),
            Column::Nvm => "faults mapped from XYZ".into(),
            Column::Minor => "other minor faults".into(),
            Column::Cow => "copies on write".into(),
            Column::Base(program) if program.is_empty() => "the base".into(),
            Column::Base(program) => format!("the base of {program}"),
        }
    }
}

/// What the runs tell of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It lies more than two standard errors above zero.
    Told,
    /// Its standard error is more than half of it.
    Uncertain,
    /// Anything above zero makes the fit worse.
    Zero,
    /// The runs cannot tell it from others: their counts rise together.
    Indistinct,
    /// No run had any.
    Unseen,
}

/// A fitted cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// Which.
    pub cost: Column,
    /// Milliseconds each; `None` if [`Verdict::Indistinct`] or [`Verdict::Unseen`].
    pub ms: Option<f64>,
    /// Its standard error in milliseconds, if there are more runs than costs.
    pub error_ms: Option<f64>,
    /// What it is worth.
    pub verdict: Verdict,
}

/// A run, and what the model says of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// As measured.
    pub run: Run,
    /// Wall time with the fitted costs, in milliseconds.
    pub predicted_ms: f64,
    /// How much more that is than the measured time, in percent of it.
    pub error_percent: f64,
}

/// A fit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The costs.
    pub estimates: Vec<Estimate>,
    /// The runs.
    pub runs: Vec<Predicted>,
    /// Median of the absolute errors, in percent.
    pub median_error_percent: f64,
    /// Greatest absolute error, in percent.
    pub max_error_percent: f64,
    /// What cannot be told, and what to measure to tell it.
    pub notes: Vec<String>,
}

impl Fit {
    /// The value of `cost`, if it is told.
    pub fn ms(&self, cost: &Column) -> Option<f64> {
        self.estimates.iter().find(|e| e.cost == *cost).and_then(|e| e.ms)
    }

    /// Costs for equations 1 to 4: `None` if those of storage or NVM are not told. t1 cannot be told from t3 and is put into it, which changes none of
    /// the equations; what was never seen is zero.
    pub fn costs(&self) -> Option<Costs> {
        let (load, t4) = (self.ms(&Column::Major)?, self.ms(&Column::Nvm)?);
        let t3 = self.ms(&Column::Minor).unwrap_or(0.0).min(load);
        let copy = self.ms(&Column::Cow).unwrap_or(0.0);
        Some(Costs { t1: 0.0, t2: load - t3, t3, t4, t5: (copy - t3).max(0.0) })
    }
}

/// Fits the costs to `runs`, which must have positive times.
pub fn fit(runs: &[Run], base: Base) -> Result<Fit> {
    check(runs)?;
    let (seen, unseen) = columns(runs, base);
    let weighted = |run: &Run| seen.iter().map(|column| column.count(run) / run.wall_ms).collect::<Vec<_>>();
    let mut rows: Vec<Vec<f64>> = runs.iter().map(weighted).collect();
    let length = |i: usize| rows.iter().map(|row| row[i] * row[i]).sum::<f64>().sqrt();
    let lengths: Vec<f64> = (0..seen.len()).map(length).collect();
    rows.iter_mut().for_each(|row| row.iter_mut().zip(&lengths).for_each(|(value, length)| *value /= length));
    let (gram, image) = normal(&rows, &vec![1.0; rows.len()]);
    let scaled = non_negative(&gram, &image);
    let costs: Vec<f64> = scaled.iter().zip(&lengths).map(|(value, length)| value / length).collect();

    let runs: Vec<_> = runs.iter().map(|run| predict(run, &seen, &costs)).collect();
    let groups = indistinct(&gram);
    let errors = standard_errors(&gram, &lengths, &runs);
    let mut estimates = Vec::new();
    for (i, cost) in seen.iter().enumerate() {
        let (ms, error) = (costs[i], errors.as_ref().map(|e| e[i]));
        let lost = groups.iter().any(|group| group.contains(&i));
        let verdict = match () {
            () if lost => Verdict::Indistinct,
            () if ms == 0.0 => Verdict::Zero,
            () if error.is_none_or(|error| 2.0 * error > ms) => Verdict::Uncertain,
            () => Verdict::Told,
        };
        let [ms, error_ms] = [Some(ms), error].map(|value| value.filter(|_| !lost));
        estimates.push(Estimate { cost: cost.clone(), ms, error_ms, verdict });
    }
    estimates.extend(unseen.into_iter().map(|cost| Estimate { cost, ms: None, error_ms: None, verdict: Verdict::Unseen }));
    let mut absolute: Vec<f64> = runs.iter().map(|p| p.error_percent.abs()).collect();
    absolute.sort_by(f64::total_cmp);
    let notes = notes(&seen, &groups, errors.is_none(), &estimates);
    let (median_error_percent, max_error_percent) = (median(&absolute), absolute[absolute.len() - 1]);
    Ok(Fit { estimates, runs, median_error_percent, max_error_percent, notes })
}

fn check(runs: &[Run]) -> Result<()> {
    if runs.is_empty() {
        return Err(Error::Wrong("no runs to fit costs to".into()));
    }
    for (i, run) in runs.iter().enumerate() {
        let counts = [run.major, run.nvm, run.minor, run.cow];
        let sound = counts.iter().all(|count| count.is_finite() && *count >= 0.0) && run.wall_ms.is_finite() && run.wall_ms > 0.0;
        if !sound {
            let what = format!("run {} of {:?}: counts must not be negative, and its time must be positive", i + 1, run.program);
            return Err(Error::Wrong(what));
        }
    }
    Ok(())
}

/// The costs that there are: those that some run has, and the others.
fn columns(runs: &[Run], base: Base) -> (Vec<Column>, Vec<Column>) {
    let mut all = vec![Column::Major, Column::Nvm, Column::Minor, Column::Cow];
    match base {
        Base::Nothing => {}
        Base::Common => all.push(Column::Base(String::new())),
        Base::PerProgram => {
            let mut names: Vec<_> = runs.iter().map(|run| run.program.clone()).collect();
            names.sort_unstable();
            names.dedup();
            all.extend(names.into_iter().map(Column::Base));
        }
    }
    all.into_iter().partition(|column| runs.iter().any(|run| column.count(run) > 0.0))
}

fn predict(run: &Run, columns: &[Column], costs: &[f64]) -> Predicted {
    let predicted_ms: f64 = columns.iter().zip(costs).map(|(column, ms)| column.count(run) * ms).sum();
    Predicted { run: run.clone(), predicted_ms, error_percent: (predicted_ms / run.wall_ms - 1.0) * 100.0 }
}

/// Groups of columns that cannot be told apart: those that a direction in which the runs say nothing has in common.
fn indistinct(gram: &Matrix) -> Vec<Vec<usize>> {
    let eigen = Eigen::of(gram);
    let least = eigen.least();
    let nothing: Vec<_> = eigen.values.iter().zip(&eigen.vectors).filter(|(value, _)| **value < least).map(|(_, v)| v).collect();
    // The projector on those directions; unlike the eigenvectors it does not depend on how they were chosen.
    let shared = |i: usize, j: usize| nothing.iter().map(|v| v[i] * v[j]).sum::<f64>().abs() > 1e-3;
    let mut left: Vec<usize> = (0..gram.len()).filter(|i| shared(*i, *i)).collect();
    let mut groups = Vec::new();
    while let Some(first) = left.pop() {
        let mut group = vec![first];
        let mut at = 0;
        while at < group.len() {
            let (joined, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|i| shared(group[at], *i));
            group.extend(joined);
            left = others;
            at += 1;
        }
        group.sort_unstable();
        groups.push(group);
    }
    groups.sort();
    groups
}

/// Standard errors of the costs, as if none were held at zero: two that rise nearly together stay uncertain both, even where one was held.
/// `None` with no more runs than costs.
fn standard_errors(gram: &Matrix, lengths: &[f64], runs: &[Predicted]) -> Option<Vec<f64>> {
    let eigen = Eigen::of(gram);
    let least = eigen.least();
    let rank = eigen.values.iter().filter(|value| **value > least).count();
    let over = runs.len().checked_sub(rank).filter(|over| *over > 0)?;
    let squares: f64 = runs.iter().map(|p| (p.error_percent / 100.0).powi(2)).sum();
    let inverse = eigen.inverse();
    let error = |i: usize| (inverse[i][i].max(0.0) * squares / over as f64).sqrt() / lengths[i];
    Some((0..gram.len()).map(error).collect())
}

fn notes(seen: &[Column], groups: &[Vec<usize>], no_errors: bool, estimates: &[Estimate]) -> Vec<String> {
    let mut notes = Vec::new();
    for group in groups {
        let names: Vec<_> = group.iter().map(|i| seen[*i].name()).collect();
        notes.push(format!("cannot be told apart: {}; measure runs in which they differ", names.join(", ")));
    }
    for estimate in estimates.iter().filter(|e| e.verdict == Verdict::Unseen) {
        notes.push(format!("no run had any {}", estimate.cost.name()));
    }
    for estimate in estimates.iter().filter(|e| e.verdict == Verdict::Uncertain && !no_errors) {
        notes.push(format!("uncertain: {}; its standard error is more than half of it", estimate.cost.name()));
    }
    if no_errors {
        notes.push("no more runs than costs: they fit whatever they are, and the errors say nothing; measure more runs".into());
    }
    notes
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
