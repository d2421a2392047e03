//! What to put on NVM: of the texts that there are, those that save the most time within a budget of bytes.
//!
//! The paper's rule (section 3.1) is to choose by how often a program runs, by the size of its text and by the NVM that there is. Made exact this is
//! the 0/1 knapsack, solved by dynamic programming over pages:
//!
//! ```text
//!   best[c] = the most milliseconds that fit in c columns          a column is one page, or several where there would be
//!   for each candidate, for c from the budget downwards:           more than COLUMNS of them
//!     best[c] = max(best[c], best[c - size] + saved)               one bit per candidate and column says which it was
//! ```
//!
//! What must hold: what is chosen never takes more than the budget, however sizes are scaled (they are rounded up); it never saves less than the
//! greedy choice that is reported beside it; what saves nothing is never chosen.

mod derive;

use std::cmp::Ordering;
use std::path::PathBuf;

use serde::Serialize;

use crate::format::PAGE;

pub use derive::{Basis, candidates};

/// Most columns of the table; 65,536 pages are 256 MiB.
pub const COLUMNS: u64 = 65_536;

/// A text that could lie on NVM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The program or library.
    #[serde(with = "towa_media::paths::one")]
    pub path: PathBuf,
    /// Times it was run, or mapped, in what was traced.
    pub runs: u64,
    /// NVM that it takes, in bytes; counted in whole pages.
    pub nvm_bytes: u64,
    /// Time that each of those runs saves, in milliseconds (equation 3).
    pub saved_ms_per_run: f64,
}

impl Candidate {
    /// Time that all of its runs save, in milliseconds.
    pub fn saved_ms(&self) -> f64 {
        self.runs as f64 * self.saved_ms_per_run
    }

    /// Bytes of NVM in whole pages.
    pub fn bytes(&self) -> u64 {
        self.nvm_bytes.div_ceil(PAGE).saturating_mul(PAGE)
    }

    /// Milliseconds saved per byte: what the greedy rule chooses by.
    pub fn density(&self) -> f64 {
        self.saved_ms() / self.bytes().max(1) as f64
    }

    fn is_worth_it(&self) -> bool {
        self.saved_ms().is_finite() && self.saved_ms() > 0.0
    }
}

/// Some of the candidates.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Choice {
    /// Those that save the most per byte first.
    pub chosen: Vec<Candidate>,
    /// NVM that they take together, in bytes.
    pub used_bytes: u64,
    /// Time that they save together, in milliseconds.
    pub saved_ms: f64,
}

impl Choice {
    fn of(mut chosen: Vec<Candidate>) -> Choice {
        chosen.sort_by(denser);
        let used_bytes = chosen.iter().map(Candidate::bytes).sum();
        let saved_ms = chosen.iter().map(Candidate::saved_ms).sum();
        Choice { chosen, used_bytes, saved_ms }
    }
}

/// What to put on NVM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// What there was to fill, in bytes.
    pub budget_bytes: u64,
    /// What to put there.
    pub choice: Choice,
    /// What stays where it is, those that would save the most per byte first.
    pub left_out: Vec<Candidate>,
    /// The paper's rule for comparison: by frequency and saved time per byte, each if it still fits.
    pub greedy: Choice,
    /// Whether nothing within the budget saves more. Sizes of a budget of more than [`COLUMNS`] pages are rounded up to `column_bytes`, and then a
    /// slightly better choice may exist.
    pub optimal: bool,
    /// What sizes were rounded up to.
    pub column_bytes: u64,
}

/// The plan for a budget in bytes.
pub fn plan(candidates: &[Candidate], budget_bytes: u64) -> Plan {
    let (mut fit, mut left_out): (Vec<_>, Vec<_>) =
        candidates.iter().cloned().partition(|c| c.is_worth_it() && c.bytes() <= budget_bytes);
    fit.sort_by(denser);
    let greedy = greedy(&fit, budget_bytes);
    let column_bytes = PAGE * (budget_bytes / PAGE).div_ceil(COLUMNS).max(1);
    let everything = greedy.chosen.len() == fit.len();
    let taken = if everything { vec![true; fit.len()] } else { knapsack(&fit, budget_bytes, column_bytes) };
    let chosen = Choice::of(fit.iter().zip(&taken).filter(|(_, t)| **t).map(|(c, _)| c.clone()).collect());
    // Sums in another order differ in the last place: the greedy choice is taken only where it is better by more.
    let choice = if greedy.saved_ms > chosen.saved_ms * (1.0 + 1e-12) { greedy.clone() } else { chosen };
    let mut kept = choice.chosen.clone();
    left_out.extend(fit.into_iter().filter(|c| match kept.iter().position(|k| k == c) {
        Some(at) => {
            kept.swap_remove(at);
            false
        }
        None => true,
    }));
    left_out.sort_by(denser);
    Plan { budget_bytes, choice, left_out, greedy, optimal: everything || column_bytes == PAGE, column_bytes }
}

/// The most saved per byte first; then by path, so that a plan is the same each time.
fn denser(a: &Candidate, b: &Candidate) -> Ordering {
    b.density().total_cmp(&a.density()).then_with(|| a.path.cmp(&b.path))
}

/// Each candidate, in their order, if it still fits.
fn greedy(sorted: &[Candidate], budget_bytes: u64) -> Choice {
    let mut room = budget_bytes;
    let mut fits = |candidate: &&Candidate| match room.checked_sub(candidate.bytes()) {
        Some(rest) => {
            room = rest;
            true
        }
        None => false,
    };
    Choice::of(sorted.iter().filter(|c| fits(c)).cloned().collect())
}

/// Which of the candidates save the most together; each takes whole columns.
fn knapsack(candidates: &[Candidate], budget_bytes: u64, column_bytes: u64) -> Vec<bool> {
    let columns = (budget_bytes / column_bytes) as usize;
    let sizes: Vec<usize> = candidates.iter().map(|c| c.bytes().div_ceil(column_bytes) as usize).collect();
    let mut best = vec![0.0f64; columns + 1];
    let words = columns / 64 + 1;
    let mut taken = vec![0u64; words * candidates.len()];
    for ((candidate, size), taken) in candidates.iter().zip(&sizes).zip(taken.chunks_mut(words)) {
        let saved = candidate.saved_ms();
        for column in (*size..=columns).rev() {
            let with = best[column - size] + saved;
            if with > best[column] {
                best[column] = with;
                taken[column / 64] |= 1 << (column % 64);
            }
        }
    }
    let mut column = columns;
    let mut chosen = vec![false; candidates.len()];
    for (i, size) in sizes.iter().enumerate().rev() {
        if taken[i * words + column / 64] >> (column % 64) & 1 == 1 {
            chosen[i] = true;
            column -= size;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(name: &str, runs: u64, pages: u64, saved_ms_per_run: f64) -> Candidate {
        Candidate { path: name.into(), runs, nvm_bytes: pages * PAGE, saved_ms_per_run }
    }

    fn names(candidates: &[Candidate]) -> Vec<&str> {
        candidates.iter().map(|c| c.path.to_str().unwrap()).collect()
    }

    #[test]
    fn the_greedy_rule_can_be_beaten() {
        let all = [candidate("dense", 1, 1, 3.0), candidate("large", 1, 10, 20.0), candidate("huge", 1, 11, 1.0)];
        let plan = plan(&all, 10 * PAGE);
        assert_eq!(names(&plan.choice.chosen), ["large"]);
        assert_eq!(names(&plan.left_out), ["dense", "huge"]);
        assert_eq!(names(&plan.greedy.chosen), ["dense"]);
        assert!(plan.optimal);
        assert_eq!((plan.choice.used_bytes, plan.choice.saved_ms), (10 * PAGE, 20.0));
    }

    #[test]
    fn how_often_something_runs_counts() {
        let plan = plan(&[candidate("rarely", 1, 4, 5.0), candidate("often", 100, 4, 0.1)], 4 * PAGE);
        assert_eq!(names(&plan.choice.chosen), ["often"]);
    }

    #[test]
    fn everything_is_chosen_where_there_is_room_but_what_saves_nothing() {
        let all =
            [candidate("a", 1, 2, 1.0), candidate("slower", 1, 1, -1.0), candidate("never", 0, 1, 9.0), candidate("b", 1, 0, 1.0)];
        let all = [&all[..], &[candidate("odd", 1, 1, f64::NAN)]].concat();
        let plan = plan(&all, u64::MAX);
        assert_eq!(names(&plan.choice.chosen), ["b", "a"]);
        assert_eq!(plan.left_out.len(), 3);
        assert!(plan.optimal);
        assert_eq!(super::plan(&all, 0).choice.used_bytes, 0);
    }

    #[test]
    fn parts_of_pages_take_pages() {
        let part = Candidate { nvm_bytes: PAGE + 1, ..candidate("a", 1, 0, 1.0) };
        assert!(plan(std::slice::from_ref(&part), 2 * PAGE - 1).choice.chosen.is_empty());
        assert_eq!(plan(&[part], 2 * PAGE).choice.used_bytes, 2 * PAGE);
    }

    #[test]
    fn large_budgets_are_scaled_and_kept() {
        let all: Vec<_> =
            (0..300).map(|i| candidate(&format!("{i}"), 1 + i % 7, 4000 + i * 37 % 5000, 1.0 + (i % 11) as f64)).collect();
        let budget = 4_000_000_000;
        let plan = plan(&all, budget);
        assert!(!plan.optimal && plan.column_bytes > PAGE && plan.budget_bytes / plan.column_bytes <= COLUMNS);
        assert!(plan.choice.used_bytes <= budget && plan.choice.saved_ms >= plan.greedy.saved_ms);
    }

    /// The most that any subset saves.
    fn brute_force(all: &[Candidate], budget: u64) -> f64 {
        let sums = (0u32..1 << all.len()).map(|set| {
            let chosen = || all.iter().enumerate().filter(move |(i, _)| set >> i & 1 == 1).map(|(_, c)| c);
            let fits = chosen().map(Candidate::bytes).sum::<u64>() <= budget;
            if fits { chosen().map(Candidate::saved_ms).sum::<f64>() } else { 0.0 }
        });
        sums.fold(0.0, f64::max)
    }

    fn some(count: usize) -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0u64..20, 0u64..60 * PAGE, 0.0f64..10.0).prop_map(|(runs, nvm_bytes, saved_ms_per_run)| Candidate {
            path: "p".into(),
            runs,
            nvm_bytes,
            saved_ms_per_run,
        });
        prop::collection::vec(one, 0..count)
    }

    proptest! {
        #[test]
        fn no_subset_saves_more(all in some(13), budget in 0u64..300 * PAGE) {
            let plan = plan(&all, budget);
            let best = brute_force(&all, budget);
            prop_assert!((plan.choice.saved_ms - best).abs() <= 1e-9 * best, "{} {best}", plan.choice.saved_ms);
        }

        #[test]
        fn the_budget_is_kept_and_nothing_is_lost(all in some(80), budget in 0u64..2_000 * PAGE) {
            let plan = plan(&all, budget);
            prop_assert!(plan.choice.used_bytes <= budget && plan.greedy.used_bytes <= budget);
            prop_assert!(plan.choice.saved_ms >= plan.greedy.saved_ms * (1.0 - 1e-12));
            prop_assert_eq!(plan.choice.chosen.len() + plan.left_out.len(), all.len());
        }

        /// Scaled tables round sizes up, so they can only leave room unused.
        #[test]
        fn scaled_tables_keep_the_budget(all in some(40), budget in 0u64..1_000 * PAGE, scale in 1u64..40) {
            let fit: Vec<_> = all.into_iter().filter(|c| c.bytes() <= budget).collect();
            let taken = knapsack(&fit, budget, scale * PAGE);
            let used: u64 = fit.iter().zip(&taken).filter(|(_, t)| **t).map(|(c, _)| c.bytes()).sum();
            prop_assert!(used <= budget);
        }
    }
}
