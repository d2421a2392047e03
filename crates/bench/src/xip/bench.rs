//! A run under way: what is measured, in which order, and what is left out.
//!
//! What must hold: everything is laid out before anything is measured; what the targets need comes first, so that a quick run that is
//! short of time leaves out the rest, and says so.

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::path::Path;
use towa_xip::model::Costs;

use super::ground::{Ground, resident};
use super::layouts::{Laid, Layout, lay_out};
use super::programs::{self, Program};
use super::report::XipReport;
use super::{Plan, Section, XipBenchArgs, exec, fit, matrix, sharing, sweep};
use crate::cleanup::Scratch;
use crate::progress::Progress;

/// Layouts of the long run: where speed with all pages in memory may differ.
const LONG: [Layout; 4] = [Layout::Block, Layout::Whole, Layout::Off2f, Layout::Off2fHuge];
/// Layouts whose processes share.
const SHARED: [Layout; 3] = [Layout::Block, Layout::Whole, Layout::Off2f];

/// The run.
#[derive(Debug)]
pub struct Bench<'a> {
    args: &'a XipBenchArgs,
    plan: Plan,
    scratch: &'a Scratch,
    nvm: &'a Scratch,
    ground: Ground,
    laid: Vec<(Program, Vec<Laid>)>,
    cold: bool,
    rng: SmallRng,
    report: &'a mut XipReport,
    broken: Vec<String>,
}

impl<'a> Bench<'a> {
    /// Makes the ground.
    pub fn new(
        args: &'a XipBenchArgs,
        plan: Plan,
        scratch: &'a Scratch,
        nvm: &'a Scratch,
        report: &'a mut XipReport,
    ) -> Result<Bench<'a>> {
        let (ground, note) = Ground::open(scratch)?;
        report.skipped.extend(note);
        report.ground.cold_by = ground.how();
        let rng = SmallRng::seed_from_u64(args.seed);
        Ok(Bench { args, plan, scratch, nvm, ground, laid: Vec::new(), cold: true, rng, report, broken: Vec::new() })
    }

    /// Measures everything that is asked for; what broke.
    pub fn run(mut self, progress: &mut Progress) -> Vec<String> {
        let wanted = |section| self.args.only.is_empty() || self.args.only.contains(&section);
        let [exec, matrix, sharing, sweep] = [Section::Exec, Section::Matrix, Section::Sharing, Section::Sweep].map(wanted);
        if exec {
            progress.section("starting a program");
            self.exec();
        }
        if matrix || sharing {
            progress.section("laying programs out");
            self.prepare(matrix, sharing, progress);
        }
        if matrix {
            progress.section("programs by layout");
            self.matrix(progress);
        }
        if sharing {
            progress.section("processes that share a program");
            self.sharing(progress);
        }
        if sweep {
            progress.section("programs of this machine");
            self.sweep(progress);
        }
        self.broken
    }

    fn exec(&mut self) {
        let (nvm, rounds) = (self.nvm.path(), self.plan.starts);
        let rng = &mut self.rng;
        let rows = self.scratch.fresh("exec").and_then(|dir| exec::measure(&dir, nvm, rounds, rng));
        self.keep("starting a program", rows, |report, rows| report.exec_overhead = rows);
    }

    fn prepare(&mut self, matrix: bool, sharing: bool, progress: &Progress) {
        let chosen = |name: &str| self.args.programs.is_empty() || self.args.programs.iter().any(|chosen| chosen == name);
        let names = programs::NAMES.into_iter().filter(|name| (matrix && chosen(name)) || (sharing && *name == "python"));
        let layouts = Layout::all(self.args.dax.is_some());
        let Ok(work) = self.scratch.fresh("work") else { return };
        for name in names.collect::<Vec<_>>() {
            progress.step(name);
            let program = match Program::find(name, &work) {
                Ok(program) => program,
                Err(why) => {
                    self.report.skipped.push(format!("{name}: {why:#}"));
                    continue;
                }
            };
            let laid = lay_out(&program, self.ground.root(), self.nvm.path(), &layouts);
            let laid = laid.with_context(|| format!("laying {name} out"));
            match laid {
                Ok(laid) => {
                    self.report.skipped.extend(laid.iter().flat_map(|laid| laid.notes.iter().cloned()));
                    self.laid.push((program, laid));
                }
                Err(why) => self.broken.push(format!("{why:#}")),
            }
        }
        let settled = self.ground.settle().and_then(|()| self.gets_cold());
        if let Err(why) = settled {
            self.cold = false;
            self.report.skipped.push(format!("ALL COLD RUNS: {why:#}; name a directory on a disk with --dir"));
        }
    }

    /// Whether pages can be made cold here.
    fn gets_cold(&mut self) -> Result<()> {
        let Some(files) = self.laid.first().and_then(|(_, laid)| laid.first()).map(|laid| laid.on_block.clone()) else {
            return Ok(());
        };
        self.ground.make_cold(&files)?;
        let share = resident(&files)?;
        anyhow::ensure!(share < 0.1, "{:.0} % of the pages stay in memory", share * 100.0);
        Ok(())
    }

    fn matrix(&mut self, progress: &Progress) {
        let all: Vec<_> = self
            .laid
            .iter()
            .filter(|(p, _)| self.args.programs.is_empty() || self.args.programs.iter().any(|c| c == p.name))
            .cloned()
            .collect();
        for (program, laid) in &all {
            if self.cold {
                self.rows(program.name, &program.args, laid, true, self.plan.cold, progress);
            }
            if let Some(args) = &program.long {
                let some: Vec<Laid> = laid.iter().filter(|laid| LONG.contains(&laid.layout)).cloned().collect();
                self.rows(&format!("{}_long", program.name), args, &some, false, self.plan.long, progress);
            }
            self.rows(program.name, &program.args, laid, false, self.plan.warm, progress);
            self.trace(program, laid, progress);
        }
        if !self.report.matrix.is_empty() {
            let found = fit::of(&self.report.matrix);
            self.keep("the model", found, |report, (found, _)| report.model_fit = Some(found));
        }
    }

    fn rows(&mut self, name: &str, args: &[std::ffi::OsString], laid: &[Laid], cold: bool, rounds: usize, progress: &Progress) {
        let what = format!("{name}, {}", if cold { "cold" } else { "warm" });
        if progress.spent(0.8) {
            self.report.skipped.push(format!("{what}: no time left"));
            return;
        }
        progress.step(&what);
        let config = matrix::Config { name, args, cold, rounds, dax: self.args.dax.is_some() };
        let found = matrix::measure(config, laid, &mut self.ground, &mut self.rng);
        self.keep(&what, found, |report, (rows, still)| {
            report.matrix.extend(rows);
            let most = &mut report.ground.resident_when_cold;
            *most = still.map(|share| share.max(most.unwrap_or(0.0))).or(*most);
        });
    }

    /// Fills in which faults were in text of the store.
    fn trace(&mut self, program: &Program, laid: &[Laid], progress: &Progress) {
        progress.step(&format!("{}, traced", program.name));
        let dax = self.args.dax.is_some();
        let runs = [
            Some((program.name.to_owned(), &program.args)),
            program.long.as_ref().map(|args| (format!("{}_long", program.name), args)),
        ];
        for (name, args) in runs.into_iter().flatten() {
            for laid in laid {
                let layout = laid.layout.name(dax);
                if !self.report.matrix.iter().any(|row| row.program == name && row.layout == layout) {
                    continue;
                }
                match matrix::nvm_faults(laid, args) {
                    Ok(faults) => {
                        let rows = self.report.matrix.iter_mut().filter(|row| row.program == name && row.layout == layout);
                        rows.for_each(|row| row.nvm_faults = faults);
                    }
                    Err(why) => self.report.skipped.push(format!("faults in the text of {name}, {layout}: {why:#}")),
                }
            }
        }
    }

    fn costs(&self) -> Option<Costs> {
        fit::of(&self.report.matrix).ok()?.1
    }

    fn sharing(&mut self, progress: &Progress) {
        let Some((python, laid)) = self.laid.iter().find(|(program, _)| program.name == "python").cloned() else { return };
        if !self.cold || progress.spent(0.9) {
            let why = if self.cold { "no time left" } else { "no cold pages" };
            self.report.skipped.push(format!("sharing: {why}"));
            return;
        }
        let some: Vec<Laid> = laid.into_iter().filter(|laid| SHARED.contains(&laid.layout)).collect();
        let (costs, dax) = (self.costs(), self.args.dax.is_some());
        let rows = sharing::measure(&python, &some, &mut self.ground, self.plan.shared, costs, dax);
        self.keep("sharing", rows, |report, rows| report.sharing = rows);
    }

    fn sweep(&mut self, progress: &Progress) {
        let (nvm, count) = (self.nvm.path(), self.plan.swept);
        let rng = &mut self.rng;
        let spent = || progress.spent(1.0);
        let found =
            self.scratch.fresh("sweep").and_then(|work| sweep::measure(Path::new("/usr/bin"), &work, nvm, count, rng, spent));
        self.keep("sweep", found, |report, found| report.sweep = Some(found));
    }

    fn keep<T>(&mut self, what: &str, found: Result<T>, put: impl FnOnce(&mut XipReport, T)) {
        match found {
            Ok(found) => put(self.report, found),
            Err(e) => {
                eprintln!("{what}: {e:#}");
                self.broken.push(format!("{what}: {e:#}"));
            }
        }
    }
}
