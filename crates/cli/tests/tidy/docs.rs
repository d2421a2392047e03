//! What the documentation promises exists.
//!
//! `docs/guarantees.md` holds one or more Markdown tables whose header names at least the columns **claim**, **assumption** and
//! **test**. An empty assumption means none. The test column names, in backticks and separated by commas, at least one of
//!
//! ```text
//!   `crates/heap/tests/recovery.rs::a_torn_commit_is_dropped`    a file of the repository, and a function or word in it
//!   `crates/heap/src/heap.rs::compile_fail`                     documentation that must not compile
//!   `tests/vm/run smoke`                                        a file of tests, or a program (arguments are not looked at)
//!   `make kill`                                                 a target of the Makefile
//!   `towa crash-test epoch`                                     a subcommand of the tool
//! ```

use std::collections::BTreeMap;
use std::process::Command;

use crate::{Findings, Source, has_word, must_be_empty, root, sources};

/// The tool's subcommands, `"bench epoch"`, with the long options each takes.
type Commands = BTreeMap<String, Vec<String>>;

/// Asks the built tool itself.
fn commands() -> Commands {
    let mut all = Commands::new();
    ask(&[], &mut all);
    all
}

fn ask(path: &[String], all: &mut Commands) {
    let out = Command::new(env!("CARGO_BIN_EXE_towa")).args(path).arg("--help").output().expect("towa runs");
    let help = String::from_utf8_lossy(&out.stdout).into_owned();
    let options = help.split(|c: char| c.is_whitespace() || "[]<>=,|`".contains(c)).filter(|w| w.starts_with("--"));
    all.insert(path.join(" "), options.map(str::to_owned).collect());
    for name in listed_subcommands(&help) {
        let deeper: Vec<String> = path.iter().cloned().chain([name]).collect();
        ask(&deeper, all);
    }
}

/// Names in the "Commands:" section of clap's help.
fn listed_subcommands(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|l| l.trim() != "Commands:").skip(1).take_while(|l| l.starts_with("  "));
    let names = section.filter(|l| !l.starts_with("   ")).filter_map(|l| l.split_whitespace().next());
    names.filter(|n| *n != "help").map(str::to_owned).collect()
}

/// Code in a Markdown text: lines of fenced blocks, and spans in backticks; with the line's number.
fn code(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            found.push((number + 1, line.to_owned()));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (number + 1, span.to_owned())));
        }
    }
    found
}

/// The commands in a line of shell: split where a new one begins, comments and prompts dropped.
fn shell(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" #").next().unwrap_or(line).trim().trim_start_matches("$ ");
    let parts = line.split(['|', ';', '&', '(', ')']);
    let words = |part: &str| part.split_whitespace().map(|w| w.trim_matches(['"', '\'', '[', ']']).to_owned()).collect::<Vec<_>>();
    parts
        .map(words)
        .map(|w| w.into_iter().skip_while(|w| w == "sudo" || w.contains('=') && !w.starts_with('-')).collect())
        .collect()
}

/// What is wrong with one command, if it is ours.
fn judge(words: &[String], commands: &Commands, targets: &[String]) -> Option<String> {
    let first = words.first()?;
    if first == "make" {
        let target = words.get(1).filter(|w| w.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !w.starts_with('-'))?;
        return (!targets.contains(target)).then(|| format!("the Makefile has no target '{target}'"));
    }
    if first != "towa" && !first.ends_with("/towa") {
        return None;
    }
    let is_name =
        |w: &&String| w.starts_with(|c: char| c.is_ascii_lowercase()) && w.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let mut path = String::new();
    for word in words[1..].iter().take_while(is_name) {
        let deeper = if path.is_empty() { word.clone() } else { format!("{path} {word}") };
        if !commands.contains_key(&deeper) {
            let has_children =
                commands.keys().any(|k| k.len() > path.len() && (path.is_empty() || k.starts_with(&format!("{path} "))));
            if has_children {
                return Some(format!("there is no `towa {deeper}`"));
            }
            break;
        }
        path = deeper;
    }
    let options = commands.get(&path)?;
    let given = words[1..].iter().filter(|w| w.starts_with("--") && w.len() > 2).map(|w| w.split('=').next().unwrap_or(w));
    let unknown = given.map(|w| w.trim_end_matches(['.', ',', ':'])).find(|w| !options.iter().any(|o| o == w));
    unknown.map(|option| format!("`towa {path}` has no option {option}"))
}

fn make_targets(makefile: &str) -> Vec<String> {
    let steps = makefile.lines().find_map(|l| l.strip_prefix("STEPS :=")).unwrap_or("");
    let heads = makefile
        .lines()
        .filter(|l| l.starts_with(|c: char| c.is_ascii_lowercase()) && !l.contains(":="))
        .filter_map(|l| l.split_once(':'));
    heads.flat_map(|(names, _)| names.split_whitespace()).chain(steps.split_whitespace()).map(str::to_owned).collect()
}

fn promised_commands(files: &[Source], commands: &Commands, targets: &[String]) -> Findings {
    let mut found = Findings::new();
    for file in files.iter().filter(|f| f.path.ends_with(".md")) {
        for (number, text) in code(&file.text) {
            let wrong = shell(&text).iter().filter_map(|words| judge(words, commands, targets)).collect::<Vec<_>>();
            found.extend(wrong.into_iter().map(|w| format!("{}:{number}: {w}: {text}", file.path)));
        }
    }
    found
}

/// Links from one of our texts to another of our files.
fn broken_links(files: &[Source], exists: impl Fn(&str) -> bool) -> Findings {
    let mut found = Findings::new();
    for file in files.iter().filter(|f| f.path.ends_with(".md")) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in file.text.lines().enumerate() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let path = target.split('#').next().unwrap_or("");
                if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
                    continue;
                }
                let from_root = if folder.is_empty() { path.to_owned() } else { format!("{folder}/{path}") };
                if !exists(&from_root) {
                    found.push(format!("{}:{}: link to {path}, which does not exist", file.path, number + 1));
                }
            }
        }
    }
    found
}

fn guarantees(text: &str, files: &[Source], commands: &Commands, targets: &[String]) -> (usize, Findings) {
    let (mut rows, mut found) = (0, Findings::new());
    let mut columns: Option<[usize; 3]> = None;
    for (number, line) in text.lines().enumerate() {
        if !line.trim_start().starts_with('|') {
            columns = None;
            continue;
        }
        let line = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{1}");
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some([claim, assumption, test]) = columns else {
            let place = |name: &str| cells.iter().position(|c| c.to_lowercase().trim_matches('*').starts_with(name));
            columns = place("claim").zip(place("assumption")).zip(place("test")).map(|((a, b), c)| [a, b, c]);
            continue;
        };
        if cells.iter().all(|c| c.chars().all(|c| "-: ".contains(c))) {
            continue;
        }
        rows += 1;
        let at = format!("docs/guarantees.md:{}", number + 1);
        let cell = |n: usize| cells.get(n).copied().unwrap_or("");
        if cell(claim).is_empty() || cells.len() <= assumption {
            found.push(format!("{at}: no claim, or no column for its assumption"));
        }
        let tests: Vec<&str> = cell(test).split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            found.push(format!("{at}: names no test in backticks"));
        }
        found.extend(tests.iter().filter_map(|t| missing_test(t, files, commands, targets)).map(|why| format!("{at}: {why}")));
    }
    (rows, found)
}

fn missing_test(test: &str, files: &[Source], commands: &Commands, targets: &[String]) -> Option<String> {
    if let Some((path, name)) = test.split_once("::") {
        let Some(file) = files.iter().find(|f| f.path == path) else { return Some(format!("`{test}`: there is no file {path}")) };
        let last = name.rsplit("::").next().unwrap_or(name);
        let there = if last == "compile_fail" {
            file.text.contains("```compile_fail")
        } else if path.ends_with(".rs") {
            file.text.contains(&format!("fn {last}("))
        } else {
            has_word(&file.text, last)
        };
        return (!there).then(|| format!("`{test}`: {path} has no test {last}"));
    }
    let words: Vec<String> = test.split_whitespace().map(str::to_owned).collect();
    let first = words.first()?;
    if ["make", "towa"].contains(&first.as_str()) {
        return judge(&words, commands, targets);
    }
    let there = files.iter().any(|f| &f.path == first);
    (!there).then(|| format!("`{test}`: neither path::name, nor make or towa, nor a program of the repository"))
}

#[test]
fn every_guarantee_names_a_test_that_exists() {
    let files = sources();
    let text = &files.iter().find(|f| f.path == "docs/guarantees.md").expect("docs/guarantees.md exists").text;
    let makefile = &files.iter().find(|f| f.path == "Makefile").expect("there is a Makefile").text;
    let (rows, found) = guarantees(text, &files, &commands(), &make_targets(makefile));
    must_be_empty(found);
    assert!(rows > 0, "docs/guarantees.md has no table with the columns claim, assumption and test");
}

#[test]
fn commands_in_the_documentation_exist() {
    let files = sources();
    let makefile = &files.iter().find(|f| f.path == "Makefile").expect("there is a Makefile").text;
    let commands = commands();
    assert!(commands.len() > 3, "`towa --help` lists no subcommands: this test looks at nothing");
    must_be_empty(promised_commands(&files, &commands, &make_targets(makefile)));
}

#[test]
fn links_between_our_documents_hold() {
    must_be_empty(broken_links(&sources(), |path| root().join(path).exists()));
}

#[test]
fn planted_offences_are_found() {
    let file = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let help = "Usage: towa <COMMAND>\n\nCommands:\n  serve  Serves\n           more\n  bench  Compares\n  help   Help\n\nOptions:\n  -h\n";
    assert_eq!(listed_subcommands(help), ["serve", "bench"]);
    let options = |o: &[&str]| o.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    let tool = Commands::from([
        (String::new(), options(&["--json"])),
        ("serve".into(), options(&["--pool"])),
        ("bench".into(), vec![]),
        ("bench epoch".into(), options(&["--quick"])),
    ]);
    let targets = make_targets("STEPS := unit kill\nrun:\n\t@x\ninstall uninstall:\n");
    assert_eq!(targets, ["run", "install", "uninstall", "unit", "kill"]);
    let judged = |text: &str| promised_commands(&[file("README.md", text)], &tool, &targets).len();
    assert_eq!(judged("Use `towa serve --pool DIR -l 1`, `make kill SEED=1` and `towa bench epoch --quick`; a towa flies."), 0);
    assert_eq!(judged("```\n$ sudo towa serve --pool=x && target/release/towa bench epoch\n```"), 0);
    for wrong in ["`towa swerve`", "`towa serve --pol x`", "`towa bench tx`", "`make kil`", "```sh\nmake run | towa fly\n```"] {
        assert_eq!(judged(wrong), 1, "{wrong}");
    }
    assert_eq!(broken_links(&[file("docs/a.md", "[x](b.md#y) [z](https://example.org)")], |p| p != "docs/b.md").len(), 1);

    let files = [file("crates/a/tests/b.rs", "fn holds() {}")];
    let table = |test: &str| format!("| Claim | Assumption | Test |\n|---|:--|---|\n| a | b | {test} |\n");
    let wrong = |test: &str| guarantees(&table(test), &files, &tool, &targets).1.len();
    assert_eq!(wrong("`crates/a/tests/b.rs::holds`, `make kill`"), 0);
    for test in
        ["", "believe me", "`crates/a/tests/b.rs::hold`", "`crates/a/tests/c.rs::holds`", "`make kil`", "`towa fly`", "`rm x`"]
    {
        assert_eq!(wrong(test), 1, "{test}");
    }
}
