//! The example, run as users run it, and killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The built example, which `cargo test` puts beside the tests; `None` (said loudly) when only some targets were built.
fn ledger(dir: &tempfile::TempDir) -> Option<Command> {
    let tests: PathBuf = std::env::current_exe().expect("this program").parent().expect("a directory").to_owned();
    let path = tests.with_file_name("examples").join("ledger");
    if !path.exists() {
        eprintln!("SKIP: {} is not built; run all targets of towa-tx", path.display());
        return None;
    }
    let mut command = Command::new(path);
    command.arg(dir.path().join("pool"));
    Some(command)
}

/// How many transfers it finds; it fails if money was lost or made.
fn found(line: &str) -> u64 {
    let (made, sum) = line.split_once(" transfers, ").expect("both numbers");
    assert_eq!(sum, "100000 in all accounts");
    made.parse().expect("a number")
}

#[test]
fn every_transfer_that_was_announced_is_there_after_a_kill() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    let mut promised = 0;
    for round in 0..4 {
        let Some(mut command) = ledger(&dir) else { return };
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
        let made = found(&lines.next().expect("a first line"));
        assert!(made >= promised, "found {made} transfers, {promised} were promised");
        let seen: Vec<String> = lines.by_ref().take(2 + round).collect();
        child.kill().expect("killed");
        child.wait().expect("gone");
        let numbers = seen.into_iter().chain(lines).filter_map(|l| l.strip_prefix("durable ")?.parse::<u64>().ok());
        promised = numbers.max().expect("it announced some");
    }
    let shown = ledger(&dir).expect("built").arg("show").output().expect("run");
    assert!(shown.status.success(), "{shown:?}");
    assert!(found(String::from_utf8(shown.stdout).expect("text").trim()) >= promised);
}
