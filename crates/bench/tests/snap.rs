//! `towa bench snap` in its smallest configuration, with real checkpoints and restarts.

#[path = "../../snap/tests/places/mod.rs"]
mod places;

use std::path::PathBuf;

use clap::Parser;
use places::Place;
use towa_bench::cleanup::Scratch;
use towa_bench::snap::{SnapBenchArgs, run};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: SnapBenchArgs,
}

/// The example program, which cargo builds along with the tests.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let program = test.parent()?.parent()?.join("examples/epoch_bench");
    if !program.is_file() {
        eprintln!("SKIPPED: {} is not built; run the tests of the whole crate", program.display());
        return None;
    }
    Some(program)
}

/// Whether a process with a given number can be made here, which a restart needs.
fn may_restart() -> bool {
    const CHECKPOINT_RESTORE: u32 = 40;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let has = u64::from_str_radix(effective, 16).unwrap() & (1 << CHECKPOINT_RESTORE | 1 << 21) != 0;
    if !has {
        eprintln!("SKIPPED: restarts need CAP_CHECKPOINT_RESTORE");
    }
    has
}

#[test]
fn where_files_are_cloned_there_is_mode_nv() {
    let (Some(program), Some(place)) = (program(), Place::xfs_of(1 << 10)) else { return };
    let (top, json) = (place.mount_point(), place.mount_point().join("out.json"));
    let [program, top, out] = [&program, &top, &json].map(|path| path.to_str().unwrap());
    let words =
        ["bench", "--mb", "32", "--checkpoints", "3", "--only", "pause", "--json", out, "--dir", top, "--children", program];
    run(Cli::parse_from(words).args).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let row = report["pause"].as_array().unwrap().iter().find(|row| row["mode"] == "nv").unwrap_or_else(|| panic!("{report}"));
    let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"));
    assert!(number("pause_ms_p50") > 0.02 && number("checkpoints") == 3.0, "{row}");
    // Thousands were written since the one before.
    assert!(number("pages_in_pause") < 100.0 && number("pages_per_s_reached") > 1000.0, "what is in the file is not copied: {row}");
}

#[test]
fn a_small_run_gives_every_figure() {
    let Some(program) = program() else { return };
    let dir = Scratch::within(&std::env::temp_dir()).unwrap();
    let (json, html) = (dir.path().join("out.json"), dir.path().join("out.html"));
    let words = [
        "bench",
        "--quick",
        "--mb",
        "16",
        "--checkpoints",
        "3",
        "--only",
        if may_restart() { "pause,restart,space,criu" } else { "pause,space,criu" },
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
        "--dir",
        dir.path().to_str().unwrap(),
        "--children",
        program.to_str().unwrap(),
    ];
    run(Cli::parse_from(words).args).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let list = |name: &str| report[name].as_array().unwrap().clone();
    let number = |row: &serde_json::Value, field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"));

    let modes: Vec<_> = list("pause").iter().map(|row| row["mode"].as_str().unwrap().to_owned()).collect();
    let clones = report["clones_files"].as_bool().unwrap();
    assert_eq!(modes, if clones { vec!["dram", "nv", "copy", "copy_all"] } else { vec!["dram", "copy", "copy_all"] });
    for row in list("pause") {
        assert_eq!((number(&row, "mb"), number(&row, "checkpoints")), (16.0, 3.0));
        let [p50, p99, max] = ["pause_ms_p50", "pause_ms_p99", "pause_ms_max"].map(|field| number(&row, field));
        assert!(0.02 < p50 && p50 <= p99 && p99 <= max, "{row}");
        // What the program saw of a stop is not less than half of what the tool measured, whatever else the machine does.
        assert!(p50 * 2.0 > number(&row, "tool_pause_ms_p50"), "{row}");
        assert!(number(&row, "total_ms") >= number(&row, "tool_pause_ms_p50"), "{row}");
        assert!(number(&row["breakdown_us"], "told") > 0.0, "{row}");
    }
    let in_pause = |mode: &str| {
        let row = list("pause").into_iter().find(|row| row["mode"] == mode);
        number(&row.unwrap_or_else(|| panic!("{mode}")), "pages_in_pause")
    };
    assert!(in_pause("copy_all") >= 4096.0, "all of its memory at least");
    assert!(in_pause("copy") < 4096.0 && in_pause("dram") < 4096.0, "not all of it: {} {}", in_pause("copy"), in_pause("dram"));

    if may_restart() {
        let warm: Vec<_> = list("restart").into_iter().filter(|row| row["cache"] == "warm").collect();
        assert!(warm.iter().any(|row| row["mode"] == "eager") && warm.iter().any(|row| row["mode"] == "copy"), "{warm:?}");
        for row in warm {
            assert!(number(&row, "first_instruction_ms") > 0.0 && number(&row, "total_ms") > 0.0, "{row}");
            assert_eq!(row["touch_all_ms"].is_null(), row["mode"] == "copy", "{row}");
        }
    }
    let space = &list("space")[0];
    assert_eq!(number(space, "checkpoints"), 10.0);
    // A file system with large blocks, or others that use it, may add to what was changed; nothing may take from it.
    assert!(number(space, "bytes_per_checkpoint") > 0.5 * number(space, "changed_bytes"), "{space}");
    let deferred = &list("deferred")[0];
    assert!(number(deferred, "first_write_ns") > 0.0 && number(deferred, "untracked_write_ns") > 0.0, "{deferred}");
    assert!(report["criu"].is_array() || report["criu_note"].is_string(), "{}", report["criu"]);
    assert!(!report["machine"]["kernel"].as_str().unwrap().is_empty() && report["file_system"].is_string());
    assert!(std::fs::read_to_string(html).unwrap().contains("<svg"));
    assert!(!dir.path().read_dir().unwrap().any(|e| e.unwrap().file_name().to_string_lossy().starts_with("towa-bench-")));
}
