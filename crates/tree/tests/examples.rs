//! The example, run as users run it, and killed.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The built example, which `cargo test` puts beside the tests; `None` (said loudly) when only some targets were built.
fn ordered(dir: &tempfile::TempDir, args: &[&str]) -> Option<Command> {
    let tests: PathBuf = std::env::current_exe().expect("this program").parent().expect("a directory").to_owned();
    let path = tests.with_file_name("examples").join("ordered");
    if !path.exists() {
        eprintln!("SKIP: {} is not built; run all targets of towa-tree", path.display());
        return None;
    }
    let mut command = Command::new(path);
    command.arg(dir.path().join("pool")).args(args);
    Some(command)
}

fn text(dir: &tempfile::TempDir, args: &[&str]) -> String {
    let output = ordered(dir, args).expect("built").output().expect("run");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_word_that_was_announced_is_there_after_a_kill() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
    for round in 0..3 {
        let Some(mut command) = ordered(&dir, &["fill"]) else { return };
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
        let seen: Vec<String> = lines.by_ref().take(2 + round).collect();
        child.kill().expect("killed");
        child.wait().expect("gone");
        let numbers = seen.into_iter().chain(lines).filter_map(|l| l.strip_prefix("durable ")?.parse::<usize>().ok());
        let promised = numbers.max().expect("it announced some");
        let dump = text(&dir, &["dump"]);
        assert!(dump.lines().count() >= promised, "{} words, {promised} were promised", dump.lines().count());
        for (number, line) in dump.lines().enumerate() {
            assert_eq!(line, format!("word-{number:09} {number}"));
        }
    }
    assert_eq!(text(&dir, &["set", "pear", "3"]), "None\n");
    assert_eq!(text(&dir, &["set", "apple", "5"]), "None\n");
    assert_eq!(text(&dir, &["set", "pear", "4"]), "Some(3)\n");
    assert_eq!(text(&dir, &["dump", "a", "q"]), "apple 5\npear 4\n");
    assert_eq!(text(&dir, &["del", "apple"]), "Some(5)\n");
    assert_eq!(text(&dir, &["get", "apple"]), "None\n");
    assert!(!ordered(&dir, &["dance"]).expect("built").status().expect("run").success());
}
