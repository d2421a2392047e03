//! The examples are compiled and run: inserts, a dump, `kill -9` in the middle of a loop, and again.
//!
//! After each kill the structure must be one (the examples check their own links and counts when they dump) and hold at least what the
//! program had called durable.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Link, SANITIZE, compile, run, sanitizers_work, scratch};

/// Kills per example; enough to fall into different phases of a checkpoint.
const ROUNDS: u32 = 6;

fn text(program: &Path, pool: &Path, args: &[&str]) -> String {
    let mut all = vec![pool.as_os_str()];
    all.extend(args.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    String::from_utf8(run(program, &all).stdout).expect("UTF-8")
}

/// Starts `program POOL args`, lets it announce `lines` times "durable N", waits `extra`, kills it with SIGKILL; gives the last N.
fn run_and_kill(program: &Path, pool: &Path, args: &[&str], lines: usize, extra: Duration) -> u64 {
    let mut child = Command::new(program).arg(pool).args(args).stdout(Stdio::piped()).spawn().expect("the example starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut durable = 0;
    let mut read = |durable: &mut u64| {
        let mut line = String::new();
        let more = out.read_line(&mut line).expect("UTF-8") > 0;
        // A line cut short by the kill announces nothing.
        if let Some(n) = line.strip_suffix('\n').and_then(|l| l.strip_prefix("durable ")) {
            *durable = n.parse().expect("a number");
        }
        more
    };
    for _ in 0..lines {
        assert!(read(&mut durable), "{} ended before it was killed", program.display());
    }
    std::thread::sleep(extra);
    child.kill().expect("SIGKILL");
    while read(&mut durable) {}
    let status = child.wait().expect("a child");
    assert!(!status.success(), "{} ended by itself: {status}", program.display());
    durable
}

/// Different at every round, the same in every run.
fn pause(round: u32) -> Duration {
    Duration::from_millis(u64::from(round) * 37 % 110)
}

/// The `(key, value)` lines of a list's dump, as a set: four threads insert in any order.
fn check_list(dump: &str, at_least: u64, step: &str) -> u64 {
    let mut keys = std::collections::BTreeMap::new();
    for line in dump.lines() {
        let (key, value) = line.split_once(' ').expect("KEY VALUE");
        let (key, value): (i64, i64) = (key.parse().expect("a number"), value.parse().expect("a number"));
        assert_eq!(value, key * key, "{step}");
        *keys.entry(key).or_insert(0u64) += 1;
    }
    let count = dump.lines().count() as u64;
    assert!(count >= at_least, "{step}: {count} nodes, but {at_least} had been called durable");
    count
}

fn list(source: &str, flags: &[&str]) {
    let dir = scratch();
    if !flags.is_empty() && !sanitizers_work(dir.path(), flags) {
        return;
    }
    let Some(program) = compile(source, dir.path(), Link::Shared, flags) else { return };
    let pool = dir.path().join("pool");
    for (key, value) in [("3", "9"), ("1", "1"), ("2", "4")] {
        assert_eq!(text(&program, &pool, &["insert", key, value]), "");
    }
    assert_eq!(text(&program, &pool, &["dump"]), "3 9\n1 1\n2 4\n", "in order of insertion");
    let mut before = 3;
    for round in 0..ROUNDS {
        let step = format!("{source}, kill {round}");
        let durable = run_and_kill(&program, &pool, &["fill", "100000000"], 1 + round as usize % 3, pause(round));
        before = check_list(&text(&program, &pool, &["dump"]), durable.max(before), &step);
    }
    assert_eq!(text(&program, &pool, &["insert", "10", "100"]), "");
    assert!(text(&program, &pool, &["dump"]).ends_with("\n10 100\n"));
    let bad = Command::new(&program).arg(&pool).arg("dance").output().expect("the example starts");
    assert_eq!(bad.status.code(), Some(2), "{bad:?}");
}

#[test]
fn list_in_c() {
    list("examples/c/list.c", &[]);
    list("examples/c/list.c", &SANITIZE);
}

#[test]
fn list_in_cpp() {
    list("examples/cpp/list.cpp", &[]);
    list("examples/cpp/list.cpp", &SANITIZE);
}

/// `list.c` and `list.cpp` use one layout, root and type name.
#[test]
fn the_lists_read_each_other() {
    let dir = scratch();
    let (c, cpp) = (dir.path().join("c"), dir.path().join("cpp"));
    std::fs::create_dir(&c).and_then(|()| std::fs::create_dir(&cpp)).expect("directories");
    let Some(c) = compile("examples/c/list.c", &c, Link::Static, &[]) else { return };
    let Some(cpp) = compile("examples/cpp/list.cpp", &cpp, Link::Static, &[]) else { return };
    let pool = dir.path().join("pool");
    text(&c, &pool, &["insert", "1", "2"]);
    text(&cpp, &pool, &["insert", "3", "4"]);
    assert_eq!(text(&c, &pool, &["dump"]), "1 2\n3 4\n");
    assert_eq!(text(&cpp, &pool, &["dump"]), "1 2\n3 4\n");
}

#[test]
fn the_series_read_each_other() {
    let dir = scratch();
    let (c, cpp) = (dir.path().join("c"), dir.path().join("cpp"));
    std::fs::create_dir(&c).and_then(|()| std::fs::create_dir(&cpp)).expect("directories");
    let Some(c) = compile("examples/c/series.c", &c, Link::Static, &[]) else { return };
    let Some(cpp) = compile("examples/cpp/series.cpp", &cpp, Link::Static, &[]) else { return };
    let pool = dir.path().join("pool");
    text(&c, &pool, &["add", "1"]);
    text(&cpp, &pool, &["add", "2"]);
    text(&c, &pool, &["fix", "1", "3"]);
    assert_eq!(text(&cpp, &pool, &["dump"]), "0 1\n1 3\n");
}

/// A vector holds a prefix of what was pushed, each item whole.
fn series(source: &str, flags: &[&str]) {
    let dir = scratch();
    if !flags.is_empty() && !sanitizers_work(dir.path(), flags) {
        return;
    }
    let Some(program) = compile(source, dir.path(), Link::Shared, flags) else { return };
    let pool = dir.path().join("pool");
    for args in [&["add", "0"][..], &["add", "7"], &["fix", "1", "0.5"]] {
        assert_eq!(text(&program, &pool, args), "");
    }
    assert_eq!(text(&program, &pool, &["dump"]), "0 0\n1 0.5\n");
    for (args, code) in [(&["fix", "2", "1"][..], 1), (&["dance"], 2)] {
        assert_eq!(Command::new(&program).arg(&pool).args(args).output().expect("starts").status.code(), Some(code));
    }
    let mut before = 2;
    for round in 0..ROUNDS {
        let durable = run_and_kill(&program, &pool, &["fill"], 1 + round as usize % 3, pause(round));
        let dump = text(&program, &pool, &["dump"]);
        for (i, line) in dump.lines().enumerate() {
            let (number, value) = line.split_once(' ').expect("NUMBER VALUE");
            assert_eq!(number, i.to_string(), "kill {round}");
            let (value, half): (f64, f64) = (value.parse().expect("a number"), i as f64 / 2.0);
            assert!((value - half).abs() <= half * 1e-5, "kill {round}: number {i} is {value}");
        }
        let count = dump.lines().count() as u64;
        assert!(count >= durable.max(before), "kill {round}: {count} items, but {durable} had been called durable");
        before = count;
    }
}

#[test]
fn series_in_c() {
    series("examples/c/series.c", &[]);
    series("examples/c/series.c", &SANITIZE);
}

#[test]
fn series_in_cpp() {
    series("examples/cpp/series.cpp", &[]);
    series("examples/cpp/series.cpp", &SANITIZE);
}

#[test]
fn counter_survives_kill() {
    let dir = scratch();
    let Some(program) = compile("examples/c/counter.c", dir.path(), Link::Static, &[]) else { return };
    let pool = dir.path().join("pool");
    let mut before = 0;
    for round in 0..ROUNDS {
        let durable = run_and_kill(&program, &pool, &[], 1, pause(round));
        let count: u64 = text(&program, &pool, &["show"]).trim().parse().expect("a number");
        assert!(
            count >= durable && durable > before,
            "kill {round}: {count}, but {durable} had been called durable after {before}"
        );
        before = count;
    }
}

#[test]
fn map_survives_kill() {
    let dir = scratch();
    let Some(program) = compile("examples/cpp/map.cpp", dir.path(), Link::Shared, &[]) else { return };
    let pool = dir.path().join("pool");
    for (key, value) in [("pear", "1"), ("apple", "2"), ("pear", "3")] {
        text(&program, &pool, &["set", key, value]);
    }
    assert_eq!(text(&program, &pool, &["dump"]), "apple 2\npear 3\n");
    assert_eq!(text(&program, &pool, &["get", "pear"]), "3\n");
    text(&program, &pool, &["del", "pear"]);
    assert_eq!(text(&program, &pool, &["dump"]), "apple 2\n");
    for args in [&["get", "pear"][..], &["del", "pear"]] {
        assert_eq!(Command::new(&program).arg(&pool).args(args).output().expect("starts").status.code(), Some(1));
    }
    text(&program, &pool, &["del", "apple"]);
    for round in 0..ROUNDS {
        let durable = run_and_kill(&program, &pool, &["churn", "500"], 1 + round as usize % 3, pause(round));
        let dump = text(&program, &pool, &["dump"]);
        let side = |name: &str| -> Vec<String> { dump.lines().filter_map(|l| l.strip_prefix(name)).map(str::to_owned).collect() };
        assert_eq!(side("left "), side("right "), "kill {round}: half of a transaction");
        let reached: u64 = side("round ").first().expect("a round").parse().expect("a number");
        assert!(reached >= durable, "kill {round}: round {reached}, but {durable} had been called durable");
        text(&program, &pool, &["del", "round"]);
    }
}

#[test]
fn bank_keeps_every_transfer() {
    for link in [Link::Static, Link::Shared] {
        let dir = scratch();
        let Some(program) = compile("examples/c/bank.c", dir.path(), link, &[]) else { return };
        let pool = dir.path().join("pool");
        let mut before = 0;
        for round in 0..ROUNDS {
            // Not at the first line: a transfer of more than there is adds nothing. Of twenty some are done.
            let durable = run_and_kill(&program, &pool, &[], 22, pause(round));
            // It fails if money was lost or made.
            let count: u64 = text(&program, &pool, &["show"]).trim().parse().expect("a number");
            let expected = durable.max(before + 1);
            assert!(count >= expected, "kill {round}: {count} transfers, but {expected} had been called durable");
            before = count;
        }
    }
}

#[test]
fn tree_keeps_every_word() {
    let dir = scratch();
    let Some(program) = compile("examples/c/tree.c", dir.path(), Link::Shared, &[]) else { return };
    let pool = dir.path().join("pool");
    for round in 0..ROUNDS {
        let durable = run_and_kill(&program, &pool, &["fill"], 1 + round as usize % 3, pause(round));
        let dump = text(&program, &pool, &["dump"]);
        for (number, line) in dump.lines().enumerate() {
            assert_eq!(line, format!("word-{number:09} {number}"), "kill {round}");
        }
        let count = dump.lines().count() as u64;
        assert!(count >= durable, "kill {round}: {count} words, but {durable} had been called durable");
    }
    for (word, number) in [("pear", "1"), ("apple", "2"), ("pear", "3")] {
        assert_eq!(text(&program, &pool, &["set", word, number]), "");
    }
    assert_eq!(text(&program, &pool, &["dump", "a", "w"]), "apple 2\npear 3\n");
    assert_eq!(text(&program, &pool, &["get", "pear"]), "3\n");
    assert_eq!(text(&program, &pool, &["del", "pear"]), "");
    for (args, code) in [(&["get", "pear"][..], 1), (&["del", "pear"], 1), (&["dance"], 2), (&["set", "pear"], 2)] {
        assert_eq!(Command::new(&program).arg(&pool).args(args).output().expect("starts").status.code(), Some(code));
    }
}

/// It died on its first run, for want of a root.
#[test]
fn the_example_of_the_readme_runs_and_runs_again() {
    let readme = std::fs::read_to_string(support::root().join("README.md")).expect("README.md");
    let code = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of C");
    let body = code.replace("\"/mnt/pmem/pool\"", "argv[1]");
    assert_ne!(body, code, "it names its pool");
    let structs = "struct node { int key; struct node *next; };\nstruct list { struct node *head; };";
    let count =
        "towa_sync(); int count = 0; for (struct node *at = l->head; at; at = at->next) count++; return argc == 2 ? count : 99;";
    let dir = scratch();
    let source = dir.path().join("readme.c");
    std::fs::write(&source, format!("#include <towa.h>\n{structs}\nint main(int argc, char **argv)\n{{\n{body}\n{count}\n}}\n"))
        .expect("written");
    let Some(program) = compile(source.to_str().expect("UTF-8"), dir.path(), Link::Shared, &[]) else { return };
    for nodes in 1..=2 {
        let ran = Command::new(&program).arg(dir.path().join("pool")).status().expect("it starts");
        assert_eq!(ran.code(), Some(nodes), "as many nodes as runs: {ran}");
    }
}
