//! What a run found, as it goes into JSON. Field names and units are stable; a figure that was not taken is `null`.
//!
//! ```text
//!   XipReport
//!   ├─ matrix         [Row]          a row a program, layout and state of the page cache
//!   ├─ exec_overhead  [ExecRow]      what the loader adds to starting a small program
//!   ├─ sharing        [SharingRow]   a row a layout and number of processes
//!   ├─ model_fit      ModelFit       costs of the paper's model on this machine, and how far off it is
//!   ├─ sweep          Sweep          programs that were split and asked for their version
//!   └─ targets        [Target]
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use crate::machine::Machine;
use crate::targets::Target;

/// Version of this layout; grows when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct XipReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Always `xip`.
    pub benchmark: &'static str,
    /// When it began, UTC.
    pub date: String,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Where programs lie, and how they are made cold.
    pub ground: Ground,
    /// What stands for NVM, or is it.
    pub nvm: Nvm,
    /// The machine.
    pub machine: Machine,
    /// What was asked for.
    pub settings: Settings,
    /// Units of the fields below, for readers of the JSON alone.
    pub units: BTreeMap<&'static str, &'static str>,
    /// Programs in all layouts.
    pub matrix: Vec<Row>,
    /// What starting a split program costs more.
    pub exec_overhead: Vec<ExecRow>,
    /// Processes that share a program.
    pub sharing: Vec<SharingRow>,
    /// The paper's model on this machine.
    pub model_fit: Option<ModelFit>,
    /// Programs of this machine, split.
    pub sweep: Option<Sweep>,
    /// What must hold, what was measured, and whether it was met.
    pub targets: Vec<Target>,
    /// What was not measured, and why.
    pub skipped: Vec<String>,
}

/// The block device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ground {
    /// Directory of the image, or of the programs.
    pub location: String,
    /// Its file system.
    pub file_system: String,
    /// How pages are made cold.
    pub cold_by: &'static str,
    /// Largest share of a program's and its libraries' pages that was still in memory then; `null` without a cold run.
    pub resident_when_cold: Option<f64>,
}

/// The NVM.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Nvm {
    /// Directory of the stores.
    pub location: String,
    /// Its file system.
    pub file_system: String,
    /// Whether `--dax` named it.
    pub dax_asked: bool,
    /// Whether the kernel maps files from there directly.
    pub dax: bool,
}

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// `--quick`.
    pub quick: bool,
    /// Rounds with cold pages.
    pub rounds_cold: usize,
    /// Rounds with warm pages.
    pub rounds_warm: usize,
    /// Seed of the order in which layouts take turns.
    pub seed: u64,
}

/// One program in one layout.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `cc1` (it compiles hello), `cc1_long` (100 functions), `python`, `gzip` or `java`.
    pub program: String,
    /// `block`, `block_ra`, `tmpfs_whole`, `dax_whole`, `off2f`, `off2f_main`, `off2f_rodata` or `off2f_huge`.
    pub layout: String,
    /// `cold` or `warm`.
    pub cache: &'static str,
    /// Faults that waited for storage, median.
    pub major: f64,
    /// Other faults, median.
    pub minor: f64,
    /// Of them those that mapped text from the store, as traced in a run of its own; `null` if none were traced.
    pub nvm_faults: Option<f64>,
    /// From before it was started until it had ended, median.
    pub wall_ms_p50: f64,
    /// Of 100 the second longest; of fewer, the longest.
    pub wall_ms_p99: f64,
    /// Processor time in user mode, median.
    pub user_ms: f64,
    /// Processor time in the kernel, median.
    pub system_ms: f64,
    /// Wall time over that of `block` in the same round, median.
    pub ratio_to_block: Option<f64>,
    /// Processor time over that of `block` in the same round, median.
    pub cpu_ratio_to_block: Option<f64>,
    /// Bytes that it takes on NVM.
    pub nvm_bytes: u64,
    /// Runs.
    pub runs: usize,
}

/// One way to start a small program.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExecRow {
    /// `whole`, `control` (another copy of it), `split`, or `split_libs`.
    pub variant: &'static str,
    /// From before it was started until it had ended, median.
    pub us_p50: f64,
    /// Longer than `whole` in the same round, median; `null` for that one.
    pub over_whole_us: Option<f64>,
    /// Minor faults, median.
    pub minor: f64,
    /// Runs.
    pub runs: usize,
}

/// One more process of a program that others run already.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SharingRow {
    /// As in the matrix.
    pub layout: String,
    /// Processes with this one.
    pub processes: usize,
    /// Faults of this one that waited for storage, median.
    pub major: f64,
    /// Its other faults, median.
    pub minor: f64,
    /// Until it was ready, median.
    pub wall_ms: f64,
    /// Pages of its files that it has a copy of, median.
    pub copied_pages: f64,
    /// Major faults of all so far.
    pub major_of_all: f64,
    /// Faults of all so far.
    pub faults_of_all: f64,
    /// The model: pages from storage of all so far.
    pub model_loads: f64,
    /// The model: faults of all so far, one a page, and a copy for each page that was copied.
    pub model_faults: f64,
    /// The model with this machine's costs: time in faults of all so far.
    pub model_ms: Option<f64>,
}

/// Costs of the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModelFit {
    /// Allocating a page: cannot be seen apart from `t3`, and is in it.
    pub t1: Option<f64>,
    /// Reading a page from storage.
    pub t2: Option<f64>,
    /// Mapping a page.
    pub t3: Option<f64>,
    /// Mapping a page of NVM.
    pub t4: Option<f64>,
    /// Copying a page.
    pub t5: Option<f64>,
    /// Median of the absolute errors of what the model predicts for the rows, in per cent.
    pub error_pct: f64,
    /// The largest.
    pub error_pct_max: f64,
    /// Rows that it was fitted to.
    pub rows: usize,
    /// What is not known, and why.
    pub notes: Vec<String>,
    /// Each row's time, and what the model says.
    pub predicted: Vec<Predicted>,
}

/// One row of the matrix in the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Predicted {
    /// Program.
    pub program: String,
    /// Layout.
    pub layout: String,
    /// Page cache.
    pub cache: &'static str,
    /// As measured.
    pub wall_ms: f64,
    /// As the model says.
    pub model_ms: f64,
    /// How much more that is, in per cent.
    pub error_pct: f64,
}

/// Programs that were split.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sweep {
    /// Programs that were tried.
    pub programs: usize,
    /// Those that could be split.
    pub split: usize,
    /// Those that said the same and ended the same, split and whole.
    pub identical: usize,
    /// The others, each with its reason.
    pub exceptions: Vec<String>,
}

impl XipReport {
    /// The row of a program.
    pub fn row(&self, program: &str, layout: &str, cache: &str) -> Option<&Row> {
        self.matrix.iter().find(|row| (row.program.as_str(), row.layout.as_str(), row.cache) == (program, layout, cache))
    }
}

/// Units by field name.
pub fn units() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("major, minor", "page faults of the program and its children (wait4)"),
        ("*_ms_*, *_ms", "milliseconds"),
        ("*_us", "microseconds"),
        ("t1..t5", "milliseconds"),
        ("*_ratio_*, ratio_*", "quotient of two figures of the same round, median of the rounds"),
        ("nvm_bytes", "bytes allocated: of texts in the store, or of whole files"),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report with nothing in it.
    pub(crate) fn empty() -> XipReport {
        XipReport {
            schema: SCHEMA,
            benchmark: "xip",
            date: "2026-01-01T00:00:00Z".into(),
            took_s: 0.0,
            ground: Ground::default(),
            nvm: Nvm::default(),
            machine: Machine::here(),
            settings: Settings::default(),
            units: units(),
            matrix: Vec::new(),
            exec_overhead: Vec::new(),
            sharing: Vec::new(),
            model_fit: None,
            sweep: None,
            targets: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// A report with something in each part.
    pub(crate) fn sample() -> XipReport {
        let row = |program: &str, layout: &str, cache, ms: f64, ratio: f64| Row {
            program: program.into(),
            layout: layout.into(),
            cache,
            wall_ms_p50: ms,
            wall_ms_p99: ms * 1.2,
            minor: 1000.0,
            ratio_to_block: Some(ratio),
            cpu_ratio_to_block: Some(ratio),
            nvm_bytes: 1 << 20,
            runs: 7,
            ..Row::default()
        };
        let exec = |variant, over| ExecRow { variant, us_p50: 500.0, over_whole_us: over, minor: 90.0, runs: 300 };
        let sharing = |layout: &str, processes| SharingRow {
            layout: layout.into(),
            processes,
            major: 10.0,
            minor: 500.0,
            faults_of_all: 510.0 * processes as f64,
            model_faults: 900.0 + processes as f64,
            ..SharingRow::default()
        };
        XipReport {
            matrix: vec![
                row("cc1", "block", "cold", 110.0, 1.0),
                row("cc1", "off2f", "cold", 44.0, 0.4),
                row("cc1", "off2f", "warm", 44.0, 1.1),
                row("cc1_long", "off2f", "warm", 2000.0, 1.01),
                row("gzip", "off2f", "cold", 50.0, 1.0),
            ],
            exec_overhead: vec![exec("whole", None), exec("split", Some(60.0)), exec("split_libs", Some(140.0))],
            sharing: vec![sharing("block", 1), sharing("block", 2), sharing("off2f", 1), sharing("off2f", 2)],
            model_fit: Some(ModelFit { t2: Some(0.1), t4: Some(0.001), error_pct: 12.0, rows: 8, ..ModelFit::default() }),
            sweep: Some(Sweep { programs: 40, split: 38, identical: 38, exceptions: vec!["a: static".into()] }),
            ..empty()
        }
    }

    #[test]
    fn the_fields_have_their_names() {
        let json = serde_json::to_value(sample()).unwrap();
        for (list, fields) in [
            ("matrix", &["program", "layout", "cache", "major", "minor", "wall_ms_p50", "wall_ms_p99", "nvm_bytes", "runs"][..]),
            ("exec_overhead", &["variant", "us_p50", "runs"]),
            ("sharing", &["layout", "processes", "major", "minor", "model_faults"]),
        ] {
            for field in fields {
                assert!(!json[list][0][field].is_null(), "{list}.{field}");
            }
        }
        for (part, fields) in [("model_fit", ["t2", "t4", "error_pct"]), ("sweep", ["programs", "identical", "exceptions"])] {
            fields.iter().for_each(|field| assert!(!json[part][field].is_null(), "{part}.{field}"));
        }
        assert!(json["model_fit"].get("t1").is_some_and(serde_json::Value::is_null), "what is not known is there, and null");
    }
}
