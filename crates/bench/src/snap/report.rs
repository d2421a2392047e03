//! What a run found, as it goes into JSON. Field names and units are stable; a figure that was not taken is `null`.
//!
//! ```text
//!   SnapReport
//!   ├─ pause       [PauseRow]       a row a size, pace, number of threads and mode; each with where the pause went
//!   ├─ restart     [RestartRow]     a row a size, mode and state of the page cache
//!   ├─ space       [SpaceRow]       what checkpoints take
//!   ├─ deferred    [DeferredRow]    what writes cost after a checkpoint
//!   ├─ criu        [CriuRow]        or null, and why in criu_note
//!   └─ targets     [Target]
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use crate::machine::Machine;
use crate::targets::Target;

/// Version of this layout; grows when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct SnapReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Always `snap`.
    pub benchmark: &'static str,
    /// When it began, UTC.
    pub date: String,
    /// How long it took, in seconds.
    pub took_s: f64,
    /// Directory of the checkpoints.
    pub location: String,
    /// Its file system.
    pub file_system: String,
    /// Whether that clones files.
    pub clones_files: bool,
    /// The machine.
    pub machine: Machine,
    /// What was asked for.
    pub settings: Settings,
    /// Units of the fields below, for readers of the JSON alone.
    pub units: BTreeMap<&'static str, &'static str>,
    /// How long the program stood still.
    pub pause: Vec<PauseRow>,
    /// How long it took until it ran again.
    pub restart: Vec<RestartRow>,
    /// What checkpoints take on the medium.
    pub space: Vec<SpaceRow>,
    /// What the program's next writes cost.
    pub deferred: Vec<DeferredRow>,
    /// The peer.
    pub criu: Option<Vec<CriuRow>>,
    /// Why it is not there.
    pub criu_note: Option<String>,
    /// What must hold, what was measured, and whether it was met.
    pub targets: Vec<Target>,
    /// What was not measured, and why.
    pub skipped: Vec<String>,
}

/// The settings of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Settings {
    /// `--quick`.
    pub quick: bool,
    /// Sizes of the program's memory, in MiB.
    pub sizes_mb: Vec<u64>,
    /// Paces, in pages a second.
    pub paces: Vec<u64>,
    /// Checkpoints of each row.
    pub checkpoints: usize,
    /// Restarts of each row.
    pub restarts: usize,
    /// Seed of the times at which checkpoints are taken.
    pub seed: u64,
}

/// Checkpoints of one program in one mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PauseRow {
    /// Memory of the program, in MiB.
    pub mb: u64,
    /// Pages that it is to write in a second.
    pub dirty_pages_per_s: u64,
    /// Pages that it wrote, stops and all.
    pub pages_per_s_reached: f64,
    /// Its threads.
    pub threads: usize,
    /// `dram`, `nv`, `copy` or `copy_all`.
    pub mode: String,
    /// As the program saw it.
    pub pause_ms_p50: f64,
    /// Of 100 the second largest.
    pub pause_ms_p99: f64,
    /// The largest.
    pub pause_ms_max: f64,
    /// As the tool measured it.
    pub tool_pause_ms_p50: f64,
    /// The same.
    pub tool_pause_ms_p99: f64,
    /// The same.
    pub tool_pause_ms_max: f64,
    /// What the program saw in as many windows of the same length in which there was no checkpoint.
    pub noise_ms_p50: f64,
    /// The same.
    pub noise_ms_p99: f64,
    /// The same.
    pub noise_ms_max: f64,
    /// Until the checkpoint was durable, median.
    pub total_ms: f64,
    /// Pages copied in the pause, median.
    pub pages_in_pause: f64,
    /// Pages copied while it ran, median.
    pub pages_while_running: f64,
    /// Rounds while it ran, median.
    pub rounds: f64,
    /// Checkpoints that count.
    pub checkpoints: usize,
    /// Where the tool's pause went.
    pub breakdown_us: BreakdownUs,
}

/// Parts of a pause in their order, medians in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BreakdownUs {
    /// Until all threads stood still.
    pub freeze: f64,
    /// Reading the mappings.
    pub maps: f64,
    /// Calls in the name of the process and its threads.
    pub told: f64,
    /// What the system shows of them.
    pub process: f64,
    /// The descriptors.
    pub descriptors: f64,
    /// Looking for changed pages.
    pub find: f64,
    /// Copying them.
    pub copy: f64,
    /// Cloning files that are open for writing.
    pub files: f64,
    /// Letting go.
    pub thaw: f64,
}

impl BreakdownUs {
    /// All parts, by name.
    pub fn parts(&self) -> [(&'static str, f64); 9] {
        [
            ("freeze", self.freeze),
            ("maps", self.maps),
            ("told", self.told),
            ("process", self.process),
            ("descriptors", self.descriptors),
            ("find", self.find),
            ("copy", self.copy),
            ("files", self.files),
            ("thaw", self.thaw),
        ]
    }
}

/// Restarts of one checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RestartRow {
    /// Memory of the program, in MiB.
    pub mb: u64,
    /// `eager`, `lazy`, or `copy`: the image read into memory, and nothing else.
    pub mode: String,
    /// `warm`: the image was in the page cache; `cold`: it was not.
    pub cache: &'static str,
    /// From before the restarting program was started to the first instruction of the restarted one, median.
    pub first_instruction_ms: f64,
    /// To when all its memory was there, median.
    pub total_ms: f64,
    /// What it took the program then to touch each page once, median.
    pub touch_all_ms: Option<f64>,
    /// Restarts.
    pub restarts: usize,
}

/// Checkpoints between which the program changes one per cent of its pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpaceRow {
    /// Memory of the program, in MiB.
    pub mb: u64,
    /// How checkpoints share: `reflink` or `hard links`.
    pub sharing: &'static str,
    /// Checkpoints after the first.
    pub checkpoints: usize,
    /// Bytes of pages that the program changed between two.
    pub changed_bytes: u64,
    /// What each took; with hard links counted over the store's files, with reflink the same as the next.
    pub bytes_per_checkpoint: f64,
    /// What each took, as the whole file system counts; others may have used it meanwhile.
    pub file_system_bytes_per_checkpoint: f64,
    /// What `towa snap list` says that a checkpoint has for itself alone, median.
    pub own_bytes_listed: f64,
    /// Bytes of memory that a checkpoint holds.
    pub memory_bytes: u64,
    /// `bytes_per_checkpoint` over `changed_bytes`.
    pub ratio_to_changed: f64,
}

/// What a write to a page costs the program, nanoseconds a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeferredRow {
    /// Memory of the program, in MiB.
    pub mb: u64,
    /// Before there was a checkpoint.
    pub untracked_write_ns: f64,
    /// The first write to a page after a checkpoint.
    pub first_write_ns: f64,
    /// The one after that.
    pub next_write_ns: f64,
}

/// One size with CRIU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CriuRow {
    /// Memory of the program, in MiB.
    pub mb: u64,
    /// As the program saw it, once.
    pub pause_ms: f64,
    /// As CRIU says.
    pub frozen_ms: Option<f64>,
    /// Until it had ended.
    pub total_ms: f64,
    /// From before its restore was started to the first instruction of the program.
    pub first_instruction_ms: f64,
}

impl SnapReport {
    /// The pause of a program of two threads.
    pub fn pause_of(&self, mb: u64, pace: u64, mode: &str) -> Option<&PauseRow> {
        self.pause.iter().find(|row| (row.mb, row.dirty_pages_per_s, row.threads, row.mode.as_str()) == (mb, pace, 2, mode))
    }

    /// The restart of a program.
    pub fn restart_of(&self, mb: u64, mode: &str, cache: &str) -> Option<&RestartRow> {
        self.restart.iter().find(|row| (row.mb, row.mode.as_str(), row.cache) == (mb, mode, cache))
    }
}

/// Units by field name.
pub fn units() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        (
            "pause_ms_*",
            "milliseconds between two looks at the clock by a thread of the program, the longest that touches the pause",
        ),
        ("tool_pause_ms_*", "milliseconds from before the first thread was stopped until the last had been let go"),
        ("noise_ms_*", "milliseconds, seen the same way in windows of the same length without a checkpoint"),
        ("breakdown_us.*", "microseconds, median; of the tool's pause"),
        ("*_ms", "milliseconds, median"),
        ("*_write_ns", "nanoseconds for each page of all"),
        ("mb", "MiB"),
    ])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report with nothing in it.
    pub(crate) fn empty() -> SnapReport {
        SnapReport {
            schema: SCHEMA,
            benchmark: "snap",
            date: "2026-01-01T00:00:00Z".into(),
            took_s: 0.0,
            location: "/dev/shm".into(),
            file_system: "tmpfs".into(),
            clones_files: false,
            machine: Machine::here(),
            settings: Settings::default(),
            units: units(),
            pause: Vec::new(),
            restart: Vec::new(),
            space: Vec::new(),
            deferred: Vec::new(),
            criu: None,
            criu_note: Some("criu is not installed".into()),
            targets: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// A report with something in each part.
    pub(crate) fn sample() -> SnapReport {
        let pause = |mb, pace, threads, mode: &str, p99| PauseRow {
            mb,
            dirty_pages_per_s: pace,
            threads,
            mode: mode.into(),
            pause_ms_p50: p99 / 2.0,
            pause_ms_p99: p99,
            pause_ms_max: p99 * 2.0,
            checkpoints: 100,
            breakdown_us: BreakdownUs { freeze: 100.0, find: 200.0, ..BreakdownUs::default() },
            ..PauseRow::default()
        };
        let restart = |mb, mode: &str, cache, ms| RestartRow {
            mb,
            mode: mode.into(),
            cache,
            first_instruction_ms: ms,
            total_ms: ms,
            ..RestartRow::default()
        };
        SnapReport {
            pause: vec![
                pause(64, 10_000, 2, "dram", 1.0),
                pause(512, 10_000, 2, "dram", 2.0),
                pause(512, 10_000, 8, "dram", 3.0),
                pause(4096, 10_000, 2, "dram", 5.5),
                pause(512, 200_000, 2, "dram", 4.0),
                pause(512, 200_000, 2, "copy", 100.0),
                pause(512, 10_000, 2, "copy_all", 300.0),
            ],
            restart: vec![
                restart(64, "eager", "warm", 20.0),
                restart(512, "eager", "warm", 90.0),
                restart(512, "copy", "warm", 100.0),
                restart(512, "eager", "cold", 300.0),
            ],
            space: vec![SpaceRow { mb: 512, sharing: "hard links", checkpoints: 10, ratio_to_changed: 1.1, ..SpaceRow::default() }],
            deferred: vec![DeferredRow { mb: 512, untracked_write_ns: 10.0, first_write_ns: 700.0, next_write_ns: 12.0 }],
            ..empty()
        }
    }

    #[test]
    fn the_fields_have_their_names() {
        let json = serde_json::to_value(sample()).unwrap();
        for (list, fields) in [
            (
                "pause",
                &["mb", "dirty_pages_per_s", "mode", "pause_ms_p50", "pause_ms_p99", "pause_ms_max", "total_ms", "checkpoints"][..],
            ),
            ("restart", &["mb", "mode", "first_instruction_ms", "total_ms"]),
            ("space", &["checkpoints", "bytes_per_checkpoint"]),
        ] {
            for field in fields {
                assert!(!json[list][0][field].is_null(), "{list}.{field}");
            }
        }
        assert!(json["criu"].is_null() && json["criu_note"].is_string());
    }
}
