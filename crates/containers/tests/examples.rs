//! The examples, run as users run them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The built example, which `cargo test` puts beside the tests; `None` (said loudly) when only some targets were built.
fn example(name: &str) -> Option<Command> {
    let tests: PathBuf = std::env::current_exe().expect("this program").parent().expect("a directory").to_owned();
    let path = tests.with_file_name("examples").join(name);
    if !path.exists() {
        eprintln!("SKIP: {} is not built; run all targets of towa-containers", path.display());
        return None;
    }
    Some(Command::new(path))
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

#[test]
fn the_map_goes_on_where_it_was_killed() {
    let dir = dir();
    let mut promised = 0;
    for _ in 0..3 {
        let Some(mut command) = example("survives") else { return };
        let mut child = command.arg(dir.path().join("pool")).stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
        let first = lines.next().expect("a first line");
        let found: u64 =
            first.strip_prefix("found ").and_then(|rest| rest.split_once(' ')).expect("a count").0.parse().expect("a count");
        assert!(found > promised || promised == 0, "found {found} squares, {promised} was promised");
        let numbers: Vec<u64> = lines.by_ref().take(3).map(|line| line.parse().expect("a number")).collect();
        child.kill().expect("killed");
        child.wait().expect("gone");
        let rest = lines.map(|line| line.parse().expect("a number"));
        promised = numbers.into_iter().chain(rest).max().expect("numbers");
    }
    assert!(promised > 0);
}

#[test]
fn the_list_keeps_its_order() {
    let dir = dir();
    let list = |words: &[&str]| {
        let output = example("persistent_list")?.arg(dir.path().join("pool")).args(words).output().expect("run");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Some((output.status.success(), text(output.stdout), text(output.stderr)))
    };
    for (key, value) in [("5", "50"), ("1", "10"), ("9", "90"), ("5", "55"), ("3", "30")] {
        let Some((good, _, error)) = list(&["insert", key, value]) else { return };
        assert!(good, "{error}");
    }
    assert!(list(&["remove", "1"]).expect("built").0);
    let (good, _, error) = list(&["remove", "1"]).expect("built");
    assert!(!good && error.contains("no key 1"), "{error}");
    assert_eq!(list(&["dump"]).expect("built").1, "3 30\n5 55\n9 90\n");
    assert!(!list(&["nonsense"]).expect("built").0);
}
