//! What every file must be.

use crate::{Findings, Source, has_word, must_be_empty, sources};

const LINES_MAX: usize = 600;
const LINES_GOOD: usize = 450;
/// Written by a program, or a text that is not ours to shorten.
const ANY_LENGTH: [&str; 4] = ["Cargo.lock", "fuzz/Cargo.lock", "LICENSE-APACHE", "CHANGELOG.md"];
/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "common", "helpers", "misc", "helper"];
// Put together here, so that this file does not offend itself.
const NOTES: [&str; 4] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
const UNFINISHED: [&str; 2] = [concat!("todo", "!("), concat!("unimplemented", "!(")];
const SWITCHED_OFF: &str = concat!("#[ig", "nore");
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

fn is_code(path: &str) -> bool {
    [".rs", ".c", ".h", ".cpp", ".hpp", ".py", ".pl", ".sh"].iter().any(|e| path.ends_with(e)) || path.starts_with("scripts/")
}

fn length(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files.iter().filter(|f| !ANY_LENGTH.contains(&f.path.as_str())) {
        let lines = file.text.lines().count();
        if lines > LINES_MAX && is_code(&file.path) {
            found.push(format!("{}: {lines} lines, at most {LINES_MAX}; ask what second thing moved in", file.path));
        } else if lines > LINES_GOOD && is_code(&file.path) {
            eprintln!("note: {}: {lines} lines; a good file has up to {LINES_GOOD}", file.path);
        }
    }
    found
}

/// A Rust file opens with what it is; a crate with at least three lines of it.
fn opening(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files.iter().filter(|f| f.path.starts_with("crates/") && f.path.ends_with(".rs")) {
        let docs =
            file.text.lines().skip_while(|l| l.starts_with("#![") || l.is_empty()).take_while(|l| l.starts_with("//!")).count();
        let is_crate = file.path.ends_with("/src/lib.rs");
        if docs == 0 {
            found.push(format!("{}:1: opens without //! lines that say what it is and what must always hold", file.path));
        } else if is_crate && docs < 3 {
            found.push(format!("{}:1: a crate's documentation has more to say than {docs} line(s)", file.path));
        }
    }
    found
}

fn names(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files {
        for part in file.path.split('/') {
            let stem = part.split('.').next().unwrap_or(part);
            if EMPTY_NAMES.contains(&stem) {
                found.push(format!("{}: '{stem}' says nothing; name what is inside", file.path));
            }
        }
        if !file.path.ends_with(".rs") {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            let module = line.trim().trim_start_matches("pub ").trim_start_matches("pub(crate) ").strip_prefix("mod ");
            let name = module.map(|m| m.trim_end_matches([';', '{', ' ']));
            if name.is_some_and(|n| EMPTY_NAMES.contains(&n)) {
                found.push(format!("{}:{}: '{}' says nothing; name what is inside", file.path, number + 1, line.trim()));
            }
        }
    }
    found
}

fn finished(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files.iter().filter(|f| !ANY_LENGTH.contains(&f.path.as_str())) {
        for (number, line) in file.text.lines().enumerate() {
            let at = format!("{}:{}", file.path, number + 1);
            if let Some(note) = NOTES.iter().find(|n| has_word(line, n)) {
                found.push(format!("{at}: {note}: do it, or file it as an issue"));
            }
            if !file.path.ends_with(".rs") {
                continue;
            }
            if let Some(call) = UNFINISHED.iter().find(|c| line.contains(**c)) {
                found.push(format!("{at}: {call}...): unfinished"));
            }
            if line.contains(SWITCHED_OFF) {
                found.push(format!("{at}: a test that is switched off; let it skip loudly where something is absent"));
            }
        }
    }
    found
}

/// A path of the machine it was written on works nowhere else.
fn machine_paths(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            for path in MACHINE_PATHS {
                let alone = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-./}*".contains(c));
                if line.match_indices(path).any(|(at, _)| alone(at)) {
                    found.push(format!("{}:{}: names {path}, a path of one machine", file.path, number + 1));
                }
            }
        }
    }
    found
}

/// Every file under a crate's src is a module of it: nothing lies there dead.
fn reachable(files: &[Source]) -> Findings {
    let mut found = Findings::new();
    for file in files.iter().filter(|f| f.path.starts_with("crates/") && f.path.ends_with(".rs")) {
        let Some((krate, inside)) = file.path.split_once("/src/") else { continue };
        if inside == "lib.rs" || inside == "main.rs" || inside.starts_with("bin/") {
            continue;
        }
        let path = inside.trim_end_matches("/mod.rs").trim_end_matches(".rs");
        let name = path.rsplit('/').next().unwrap_or(path);
        let declares = |f: &&Source| {
            f.path.starts_with(&format!("{krate}/src/")) && has_word(&f.text, &format!("mod {name};").replace(';', ""))
        };
        if !files.iter().any(|f| declares(&f)) {
            found.push(format!("{}: no `mod {name};` in {krate}: a dead file", file.path));
        }
    }
    found
}

#[test]
fn files_have_a_readable_length() {
    must_be_empty(length(&sources()));
}

#[test]
fn files_open_with_what_they_are() {
    must_be_empty(opening(&sources()));
}

#[test]
fn names_say_what_is_inside() {
    must_be_empty(names(&sources()));
}

#[test]
fn nothing_is_left_unfinished() {
    must_be_empty(finished(&sources()));
}

#[test]
fn no_path_of_one_machine() {
    must_be_empty(machine_paths(&sources()));
}

#[test]
fn no_dead_files() {
    must_be_empty(reachable(&sources()));
}

#[test]
fn planted_offences_are_found() {
    let file = |path: &str, text: &str| vec![Source { path: path.into(), text: text.into() }];
    assert_eq!(length(&file("crates/a/src/lib.rs", &"x\n".repeat(LINES_MAX + 1))).len(), 1);
    assert_eq!(opening(&file("crates/a/src/b.rs", "use std::fmt;\n")).len(), 1);
    assert_eq!(opening(&file("crates/a/src/lib.rs", "//! short\n")).len(), 1);
    assert_eq!(names(&file("crates/a/src/utils.rs", "//! x\n")).len(), 1);
    assert_eq!(names(&file("crates/a/src/lib.rs", "pub mod common {\n}\n")).len(), 1);
    for offence in [format!("// {}: later", NOTES[0]), format!("{})", UNFINISHED[0]), format!("    {SWITCHED_OFF}]")] {
        assert_eq!(finished(&file("crates/a/src/lib.rs", &offence)).len(), 1, "{offence}");
    }
    assert_eq!(finished(&file("crates/a/src/lib.rs", "let mask = \"xxXXXX\";")), Findings::new());
    assert_eq!(machine_paths(&file("docs/a.md", &format!("see {}tree", MACHINE_PATHS[0]))).len(), 1);
    assert_eq!(machine_paths(&file("docs/a.md", &format!("target{}tree", MACHINE_PATHS[0]))), Findings::new());
    assert_eq!(reachable(&file("crates/a/src/dead.rs", "//! x\n")).len(), 1);
}
