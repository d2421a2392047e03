//! `towa bench xip` in its smallest configuration, with real programs on a real file system.

use std::path::Path;

use clap::Parser;
use towa_bench::xip::{XipBenchArgs, run};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: XipBenchArgs,
}

#[test]
fn a_small_run_gives_every_figure_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [ground, store, json, html] = ["ground", "store", "out.json", "out.html"].map(|name| dir.path().join(name));
    [&ground, &store].iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let words = ["bench", "--quick", "--rounds", "2", "--programs", "gzip", "--only", "matrix,sweep"].map(str::to_owned);
    let named = [("--dir", &ground), ("--store", &store), ("--json", &json), ("--html", &html)];
    let named = named.into_iter().flat_map(|(name, path)| [name.to_owned(), path.display().to_string()]);
    let args = Cli::parse_from(words.into_iter().chain(named)).args;
    // A thread of its own: its mounts are its own.
    std::thread::spawn(|| run(args)).join().unwrap().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rows = report["matrix"].as_array().unwrap();
    for layout in ["block", "block_ra", "tmpfs_whole", "off2f", "off2f_main", "off2f_rodata"] {
        let row = rows.iter().find(|row| row["layout"] == layout && row["cache"] == "warm").unwrap_or_else(|| panic!("{layout}"));
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"));
        assert!(number("wall_ms_p50") > 0.1 && number("minor") > 10.0 && number("runs") == 2.0, "{row}");
        assert_eq!(number("nvm_bytes") > 0.0, !layout.starts_with("block"), "{row}");
    }
    let skipped_cold = report["skipped"].to_string().contains("COLD");
    assert_eq!(rows.iter().any(|row| row["cache"] == "cold"), !skipped_cold, "cold, or said why not");
    assert!(report["sweep"]["identical"].as_u64().unwrap() > 20, "{}", report["sweep"]);
    assert!(std::fs::read_to_string(&html).unwrap().contains("</html>"));
    for left in [&ground, &store] {
        assert_eq!(Path::read_dir(left).unwrap().count(), 0, "something is left in {}", left.display());
    }
}
