//! `towa xip model`: what page faults cost by the equations of the OFF2F paper, with its values or with yours.
//!
//! What must hold: without arguments it shows the paper's figures and the numbers that it states, beside what the equations give; each value that is
//! given replaces one of a preset, and nothing else.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use towa_xip::figure::{self, Figure, Table, short};
use towa_xip::model::{self, Costs, Program, paper};

use crate::failure::{self, coded};
use crate::report;

/// Compute what page faults cost, conventionally and with text on NVM.
///
/// The model is that of the OFF2F paper: a page is allocated (t1), read from storage (t2) and mapped (t3), or mapped from NVM (t4), or copied on
/// write (t5). Equation 1 is the time with everything on storage, 2 that with text on NVM, 3 what is saved, 4 the difference to a whole file on an NVM
/// that is used as a disk. It takes one fault for each page; Linux reads ahead, so that it overstates gains there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  towa xip model                                     the paper's figures, and its numbers beside the computed ones
  towa xip model --html model.html                   ... as a page to look at
  towa xip model --preset boot                       the FreeBSD boot of the paper: 51,610 faults
  towa xip model --preset boot --t2 0.05             ... on a storage that reads 4 KiB in 50 us
  towa xip model -P 3000 -S 0.8 -n 20 -C 0.1         a program of yours, on the paper's disk and SSD
  towa xip model --preset gzip --json | jq '.cases[].saved_ms'")]
pub struct ModelArgs {
    /// Values to begin with; without it the paper's program on its disk and its SSD.
    #[arg(long, value_enum, value_name = "PRESET")]
    preset: Option<Preset>,
    #[command(flatten)]
    costs: CostArgs,
    /// P: pages of text and data.
    #[arg(short = 'P', long, value_name = "PAGES")]
    pages: Option<f64>,
    /// S: share of text in them, 0 to 1.
    #[arg(short = 'S', long, value_name = "SHARE")]
    text_share: Option<f64>,
    /// C: share of the data pages that each further process copies, 0 to 1.
    #[arg(short = 'C', long, value_name = "SHARE")]
    cow: Option<f64>,
    /// n: processes that run the program.
    #[arg(short = 'n', long, value_name = "N")]
    processes: Option<u64>,
    /// Report as JSON, with the points of all figures.
    #[arg(long)]
    json: bool,
    /// Write a page with the figures as well; it needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Costs, each of which replaces one of a preset.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// Milliseconds to allocate a page.
    #[arg(long, value_name = "MS")]
    t1: Option<f64>,
    /// Milliseconds to read 4 KiB from storage.
    #[arg(long, value_name = "MS")]
    t2: Option<f64>,
    /// Milliseconds to map a page of memory.
    #[arg(long, value_name = "MS")]
    t3: Option<f64>,
    /// Milliseconds to map a page of NVM.
    #[arg(long, value_name = "MS")]
    t4: Option<f64>,
    /// Milliseconds to copy 4 KiB.
    #[arg(long, value_name = "MS")]
    t5: Option<f64>,
}

impl CostArgs {
    /// `base`, but for what was given.
    pub fn over(&self, base: Costs) -> Result<Costs> {
        let costs = Costs {
            t1: self.t1.unwrap_or(base.t1),
            t2: self.t2.unwrap_or(base.t2),
            t3: self.t3.unwrap_or(base.t3),
            t4: self.t4.unwrap_or(base.t4),
            t5: self.t5.unwrap_or(base.t5),
        };
        costs.check().map_err(usage)?;
        Ok(costs)
    }

    fn any(&self) -> bool {
        [self.t1, self.t2, self.t3, self.t4, self.t5].iter().any(Option::is_some)
    }
}

/// A value that cannot be is wrong usage.
pub fn usage(error: towa_xip::Error) -> anyhow::Error {
    match error {
        towa_xip::Error::Wrong(what) => coded(failure::USAGE, what),
        other => other.into(),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preset {
    /// P = 100, S = 0.95, C = 0.3, n = 5; a disk read at random (6 ms).
    PaperDisk,
    /// The same; an SSD read at random (0.1 ms).
    PaperSsd,
    /// The FreeBSD boot; disk and SSD read in sequence (0.092 and 0.017 ms).
    Boot,
    /// gzip of a kernel; disk and SSD read in sequence.
    Gzip,
}

impl Preset {
    fn program(self) -> Program {
        match self {
            Preset::PaperDisk | Preset::PaperSsd => paper::BASIC,
            Preset::Boot => paper::boot(0.3),
            Preset::Gzip => paper::gzip(0.3),
        }
    }

    fn storages(self) -> Vec<(&'static str, Costs)> {
        match self {
            Preset::PaperDisk => vec![("disk", Costs::DISK)],
            Preset::PaperSsd => vec![("SSD", Costs::SSD)],
            Preset::Boot | Preset::Gzip => vec![("disk", Costs::DISK_SEQUENTIAL), ("SSD", Costs::SSD_SEQUENTIAL)],
        }
    }
}

/// What the equations give on one storage.
#[derive(Serialize)]
struct Case {
    storage: &'static str,
    costs: Costs,
    conventional_ms: f64,
    off2f_ms: f64,
    saved_ms: f64,
    over_whole_file_on_nvm_ms: f64,
}

impl Case {
    fn of((storage, costs): (&'static str, Costs), program: &Program) -> Case {
        Case {
            storage,
            costs,
            conventional_ms: model::conventional(&costs, program),
            off2f_ms: model::off2f(&costs, program),
            saved_ms: model::saved(&costs, program),
            over_whole_file_on_nvm_ms: model::over_whole_file_on_nvm(&costs, program),
        }
    }

    fn row(&self) -> Vec<String> {
        let Costs { t1, t2, t3, t4, t5 } = self.costs;
        let share = self.saved_ms / self.conventional_ms * 100.0;
        let percent = if share.is_finite() { format!("{share:.1} %") } else { "-".into() };
        let mut row = vec![self.storage.to_owned()];
        row.extend([t1, t2, t3, t4, t5, self.conventional_ms, self.off2f_ms, self.saved_ms].map(short));
        row.extend([percent, short(self.over_whole_file_on_nvm_ms)]);
        row
    }
}

const CASE_HEAD: [&str; 11] =
    ["storage", "t1", "t2", "t3", "t4", "t5", "(1) conventional", "(2) OFF2F", "(3) saved", "of (1)", "(4) to whole on NVM"];

/// What is reported: of the paper, or of given values.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Paper { stated: Vec<paper::Stated>, figures: Vec<Figure> },
    Given { program: Program, cases: Vec<Case>, figures: Vec<Figure> },
}

/// `towa xip model`.
pub fn run(args: &ModelArgs) -> Result<()> {
    let compute = || -> Result<Answer> {
        let answer = answer(args)?;
        if let Some(path) = &args.html {
            let place = || format!("{}: the page cannot be written", report::path(path));
            std::fs::write(path, answer.page()).with_context(place)?;
        }
        Ok(answer)
    };
    let preset = args.preset.as_ref().and_then(Preset::to_possible_value);
    let begun = preset.map_or("paper".into(), |preset| preset.get_name().to_owned());
    let answer = report::bad_news(args.json, ("preset", begun), compute())?;
    if args.json { report::json(&answer) } else { report::print(&answer.text()) }
}

fn answer(args: &ModelArgs) -> Result<Answer> {
    let given = args.preset.is_some() || args.costs.any() || args.pages.is_some() || args.text_share.is_some();
    if !given && args.cow.is_none() && args.processes.is_none() {
        return Ok(Answer::Paper { stated: paper::stated(), figures: paper::figures() });
    }
    let base = args.preset.map_or(paper::BASIC, Preset::program);
    let program = Program {
        pages: args.pages.unwrap_or(base.pages),
        text_share: args.text_share.unwrap_or(base.text_share),
        cow: args.cow.unwrap_or(base.cow),
        processes: args.processes.unwrap_or(base.processes),
    };
    program.check().map_err(usage)?;
    let mut storages = args.preset.map_or_else(|| vec![("disk", Costs::DISK), ("SSD", Costs::SSD)], Preset::storages);
    if args.costs.t2.is_some() {
        // t2 is all that they differ in.
        storages.truncate(1);
        storages[0].0 = "given";
    }
    let costs = storages.into_iter().map(|(name, costs)| Ok((name, args.costs.over(costs)?))).collect::<Result<Vec<_>>>()?;
    let figures = paper::sweeps(&costs, &program);
    Ok(Answer::Given { program, cases: costs.into_iter().map(|case| Case::of(case, &program)).collect(), figures })
}

impl Answer {
    fn figures(&self) -> &[Figure] {
        match self {
            Answer::Paper { figures, .. } | Answer::Given { figures, .. } => figures,
        }
    }

    fn table(&self) -> Table {
        match self {
            Answer::Paper { stated, .. } => Table {
                title: "The paper's numbers".into(),
                text: "As stated, and as the equations give them with the paper's values.".into(),
                head: ["number", "section", "paper", "computed", "unit", "reproduced"].map(String::from).into(),
                rows: stated.iter().map(stated_row).collect(),
            },
            Answer::Given { program: p, cases, .. } => Table {
                title: "Fault times in milliseconds".into(),
                text: format!(
                    "P = {} pages, S = {} ({} of text, {} of data), C = {}, n = {}.",
                    short(p.pages),
                    short(p.text_share),
                    short(p.text_pages()),
                    short(p.data_pages()),
                    short(p.cow),
                    p.processes
                ),
                head: CASE_HEAD.map(String::from).into(),
                rows: cases.iter().map(Case::row).collect(),
            },
        }
    }

    fn text(&self) -> String {
        let table = self.table();
        let left = if matches!(self, Answer::Paper { .. }) { 2 } else { 1 };
        let rows: Vec<_> = std::iter::once(table.head).chain(table.rows).collect();
        let mut text = format!("{}. {}\n\n{}", table.title, table.text, figure::columns(left, &rows));
        self.figures().iter().for_each(|figure| text += &format!("\n{}", figure::terminal(figure)));
        text
    }

    fn page(&self) -> String {
        let intro = "What page faults cost with a whole program on storage, and with its text mapped from NVM, by the model of the OFF2F paper: one \
                     fault for each page. Linux reads ahead and maps neighbours, so that the model overstates gains there.";
        figure::page("towa xip model", intro, &[self.table()], self.figures())
    }
}

fn stated_row(stated: &paper::Stated) -> Vec<String> {
    let verdict = if stated.reproduced() { "yes" } else { "NO" };
    let [paper, computed] = [stated.paper, stated.computed].map(short);
    vec![stated.what.into(), stated.section.into(), paper, computed, stated.unit.into(), verdict.into()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        args: ModelArgs,
    }

    fn asked(arguments: &[&str]) -> Result<Answer> {
        answer(&Wrapper::parse_from(std::iter::once(&"model").chain(arguments)).args)
    }

    fn cases(arguments: &[&str]) -> Vec<Case> {
        match asked(arguments).unwrap() {
            Answer::Given { cases, .. } => cases,
            Answer::Paper { .. } => panic!("values were given"),
        }
    }

    #[test]
    fn without_arguments_it_is_the_paper() {
        let answer = asked(&[]).unwrap();
        let text = answer.text();
        assert!(text.contains("28.9") && text.contains("Figure 10") && !text.contains("NO"), "{text}");
        assert!(answer.page().matches("<svg").count() == 6);
    }

    #[test]
    fn given_values_replace_those_of_the_preset() {
        let boot = cases(&["--preset", "boot"]);
        assert_eq!(boot.iter().map(|case| case.saved_ms.round()).collect::<Vec<_>>(), [3885.0, 752.0]);
        let other = cases(&["--preset", "boot", "--t2", "6", "--cow", "0"]);
        assert_eq!((other.len(), other[0].storage, other[0].costs), (1, "given", Costs::DISK));
        let small = cases(&["-P", "10", "-S", "0.5", "-n", "1"]);
        assert_eq!((small.len(), small[0].conventional_ms.round()), (2, 60.0));
    }

    #[test]
    fn what_cannot_be_is_wrong_usage() {
        for wrong in [&["--text-share", "2"][..], &["--processes", "0"], &["--t2", "nan"], &["--t4=-1"], &["--pages", "inf"]] {
            let error = asked(wrong).err().expect("it is refused");
            assert_eq!(failure::code(&error), failure::USAGE, "{wrong:?}: {error}");
        }
    }
}
