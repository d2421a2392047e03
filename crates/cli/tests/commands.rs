//! The commands as a user meets them: what they say, what they exit with, and what they leave alone - mostly with bad input.
//!
//! What must always hold: every failure is one line that opens with `towa: `, without a word of Rust, and an exit status of the table;
//! what is damaged, foreign, newer, busy or merely looked at is not modified by a byte or a time stamp; `--json` is JSON, whatever
//! happened.

#[path = "commands/backup.rs"]
mod backup;
#[path = "commands/java.rs"]
mod java;
#[path = "commands/memory.rs"]
mod memory;
#[path = "commands/pool.rs"]
mod pool;
#[path = "commands/server.rs"]
mod server;
#[path = "commands/serving.rs"]
mod serving;
#[path = "commands/snap.rs"]
mod snap;
#[path = "commands/stats.rs"]
mod stats;
#[path = "commands/untrusted.rs"]
mod untrusted;
#[path = "commands/xip.rs"]
mod xip;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use std::os::unix::process::ExitStatusExt;

fn towa(args: &[&str]) -> Output {
    command(args).output().expect("towa runs")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towa"));
    command.args(args).stdin(Stdio::null()).env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it; it must succeed. Gives what it said.
fn passes(args: &[&str]) -> String {
    let out = towa(args);
    assert!(out.status.success(), "towa {args:?}: {}: {}", out.status, text(&out.stderr));
    text(&out.stdout)
}

/// Runs it; it must fail as failures do. Gives the message.
fn fails(code: i32, args: &[&str]) -> String {
    let out = towa(args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "towa {args:?}: {said}");
    assert_is_message(&said);
    said
}

fn assert_is_message(said: &str) {
    assert!(said.starts_with("towa: ") && said.ends_with('\n') && said.lines().count() == 1, "not one line of ours: {said:?}");
    for rust in ["Error {", "Os {", "Err(", "Error(", "kind:", "panicked", "RUST_BACKTRACE", "unwrap"] {
        assert!(!said.contains(rust), "{rust:?} in {said:?}");
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("not JSON: {e}: {text}"))
}

fn is_root() -> bool {
    // SAFETY: takes nothing, changes nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Copies a program that will be started: by another process, since what this one has open for writing is kept open for a moment by each child
/// that another test begins to start, and a program that is open for writing cannot be started.
fn copy_program(from: &Path, to: &Path) -> bool {
    Command::new("cp").arg("--").args([from, to]).status().is_ok_and(|status| status.success())
}

fn s(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

#[test]
fn wrong_usage_exits_2_and_says_what_is_there() {
    let wrong: &[&[&str]] = &[
        &[],
        &["dance"],
        &["verify"],
        &["verify", "a", "b"],
        &["info", "--jsn"],
        &["serve", "-m", "0"],
        &["serve", "-p", "70000"],
        &["serve", "-t", "0"],
        &["serve", "-c", "0"],
        &["serve", "-I", "5"],
        &["serve", "-I", "2g"],
        &["serve", "-U", "11211"],
        &["serve", "-a", "999"],
        &["serve", "--interval-ms", "0"],
        &["serve", "--base", "0x1000"],
        &["serve", "--medium", "sim"],
        &["serve", "--volatile", "--pool", "x"],
        &["stats", "--watch", "0"],
        &["crash-test", "epoch", "--images", "0"],
        &["completions", "tcsh"],
        &["bench", "moon"],
    ];
    for args in wrong {
        let out = towa(args);
        assert_eq!(out.status.code(), Some(2), "towa {args:?}");
        assert!(
            text(&out.stderr).contains("Usage: towa") || text(&out.stderr).contains("--help"),
            "towa {args:?}: {}",
            text(&out.stderr)
        );
        assert!(out.stdout.is_empty(), "towa {args:?}: usage errors go to standard error");
    }
    fails(2, &["serve", "--volatile", "-o", "modern"]);
    fails(2, &["serve", "--volatile", "-o", "idle_timeout=soon"]);
    fails(2, &["serve", "--nvm-model", "optane", "--medium", "file"]);
}

#[test]
fn help_teaches_and_the_documentation_agrees() {
    let help = passes(&["--help"]).replace('\n', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let page = include_str!("../../../docs/towa-cli.md");
    let rows: Vec<(&str, &str)> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")).collect();
    let codes: Vec<_> = rows.iter().filter(|(code, _)| code.parse::<u8>().is_ok()).collect();
    assert_eq!(codes.len(), 9, "the table of exit statuses");
    for (code, meaning) in codes {
        assert!(help.contains(&format!("{code} {meaning}")), "docs/towa-cli.md says {code} is {meaning:?}; the help does not");
    }
    for name in ["serve", "info", "verify", "recover", "stats", "bench", "crash-test", "completions", "man"] {
        assert!(page.contains(&format!("towa {name}")), "docs/towa-cli.md does not mention towa {name}");
        assert!(passes(&[name, "--help"]).contains("Example"), "towa {name} --help has no example");
    }
    for hidden in ["vm-load", "vm-check", "bench-child"] {
        assert!(!help.contains(hidden));
    }
}

#[test]
fn completions_and_man_pages_are_made() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = passes(&["completions", shell]);
        assert!(script.contains("towa") && script.contains("verify"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man/man1");
    passes(&["man", s(&pages)]);
    for page in ["towa.1", "towa-serve.1", "towa-verify.1", "towa-bench-epoch.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap_or_else(|e| panic!("{page}: {e}"));
        assert!(text.contains(".TH"), "{page} is a man page");
    }
    assert!(!pages.join("towa-vm-load.1").exists(), "hidden commands have no page");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    fails(1, &["man", s(&file.join("below"))]);
}

#[test]
fn info_says_where_a_pool_would_be() {
    let dir = tempfile::tempdir().unwrap();
    let found = json(&passes(&["info", "--json", s(dir.path())]));
    assert!(["dax", "file", "ram"].contains(&found["medium"]["kind"].as_str().unwrap()));
    assert!(["process-safe", "power-safe"].contains(&found["medium"]["guarantee"].as_str().unwrap()));
    assert_eq!(found["doors"][0]["door"], "epoch");
    assert_eq!(found["doors"][0]["power_loss"].is_null(), found["medium"]["guarantee"] == "process-safe");
    assert!(found["pool"].is_null() && found["pool_problem"].is_null());
    assert!(found["cpu"]["clwb"].is_boolean() && found["kernel"]["release"].is_string());
    // A path that does not exist yet is judged by its parent.
    let text = passes(&["info", s(&dir.path().join("not/there/yet"))]);
    assert!(text.contains("nearest parent") && text.contains("guarantee"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "info left something behind");
    passes(&["info"]);
}

#[test]
fn a_reader_who_leaves_is_no_error() {
    for args in [&["info"][..], &["--help"], &["completions", "bash"]] {
        let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        let quietly = out.status.success() || out.status.signal() == Some(libc::SIGPIPE);
        assert!(quietly && out.stderr.is_empty(), "towa {args:?} | true: {}: {}", out.status, text(&out.stderr));
    }
}
