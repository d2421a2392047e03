//! What `towa xip` says when something of what was asked for fails: what was done, what was not, and how it exits.
//!
//! What must always hold: what was done is told whatever failed after it; with `--json` there is one JSON document.

use std::fs;

use super::*;

/// Runs it; it must fail with `code`. Gives its lines, and the message.
fn fails_with_lines(code: i32, args: &[&str]) -> (String, String) {
    let out = towa(args);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {}{}", text(&out.stdout), text(&out.stderr));
    (text(&out.stdout), text(&out.stderr))
}

/// Runs it; it must fail with `code`, and say so in JSON. Gives that.
fn fails_in_json(code: i32, args: &[&str]) -> serde_json::Value {
    let (said, _) = fails_with_lines(code, args);
    let said = json(&said);
    assert!(said["exit_status"] == code && said["problem"].is_string(), "{args:?}: {said}");
    said
}

#[test]
fn what_was_split_before_and_after_a_failure_is_told() {
    let scene = Scene::new();
    let other = scene.copy("other");
    let [store, program, nothing] = [&scene.store, &scene.program, &scene.beside("nothing")].map(|path| s(path).to_owned());
    let (lines, message) = fails_with_lines(1, &["xip", "split", "--volatile", "--store", &store, &program, &nothing, s(&other)]);
    let [first, second, third, summary] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    assert!(first.starts_with(&format!("{program}: program")) && third.starts_with(&format!("{}: program", s(&other))), "{lines}");
    assert!(second.starts_with("not split  ") && second.contains(&nothing) && summary.starts_with("2 split, 1 not"), "{lines}");
    assert!(message.starts_with("towa: ") && message.contains(&nothing) && message.lines().count() == 1, "{message}");
    assert!(!scene.is_original() && scene.sorts());

    // Both are joined, though the file between them cannot be; the first failure decides.
    let damaged = scene.copy("damaged");
    fs::write(&damaged, "#!/bin/sh\n").unwrap();
    let said = fails_in_json(1, &["xip", "join", "--json", &program, s(&damaged), &nothing, s(&other)]);
    assert_eq!(said["done"].as_array().map(Vec::len), Some(4), "{said}");
    assert_eq!(said["done"][0], serde_json::json!({ "path": program }));
    assert!(said["done"][1]["not_joined"].as_str().is_some_and(|why| why.contains("not a split program")), "{said}");
    assert!(said["problem"].as_str().is_some_and(|why| why.contains("not a split program") && why.contains("1 more")), "{said}");
    assert!(scene.is_original() && fs::read(&other).unwrap() == scene.original);

    let said = fails_in_json(1, &["xip", "split", "--volatile", "--json", "--store", &store, &program, &nothing]);
    assert_eq!((&said["done"][0]["path"], &said["store"]), (&program.clone().into(), &store.clone().into()));
    assert!(said["done"][1]["not_split"].is_string() && said["problem"].as_str().unwrap().contains(&nothing), "{said}");
    let joined = json(&passes(&["xip", "join", "--json", &program]));
    assert_eq!(joined, serde_json::json!([{ "path": program }]));
}

#[test]
fn an_error_of_the_store_ends_it() {
    let scene = Scene::new();
    let [first, second] = ["small", "large"].map(|name| scene.copy(name));
    let short = fs::read("/usr/bin/true").expect("true is everywhere");
    fs::write(&first, short).unwrap();
    // A limit on the length of files: enough for the small program and its text, and too little for the large one.
    let room = (fs::metadata(&first).unwrap().len() / 1024 + 16).max(64);
    assert!(scene.original.len() as u64 > room * 1024, "sort is larger than true");
    let script = format!(
        "ulimit -f {room}; exec {} xip split --volatile --json --store {} {} {} {}",
        env!("CARGO_BIN_EXE_towa"),
        s(&scene.store),
        s(&first),
        s(&second),
        s(&scene.program)
    );
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    let said = json(&text(&out.stdout));
    assert_eq!((out.status.code(), &said["exit_status"]), (Some(6), &6.into()), "{said}");
    assert_eq!(said["done"].as_array().map(Vec::len), Some(1), "the small one alone, and the third is not tried: {said}");
    assert!(scene.is_original() && fs::read(&second).unwrap() == scene.original);
}

#[test]
fn a_directory_of_which_nothing_is_split_is_a_failure() {
    let scene = Scene::new();
    let dir = scene.beside("bin");
    fs::create_dir(&dir).unwrap();
    let split = ["xip", "split", "--volatile", "--store", s(&scene.store), s(&dir)];
    assert!(fails(1, &split).contains("no program"));
    fs::write(dir.join("cut"), &scene.original[..5000]).unwrap();
    let (lines, message) = fails_with_lines(1, &split);
    assert!(lines.starts_with("not split  ") && message.contains("nothing in it could be split"), "{lines}{message}");
    // One is enough.
    fs::copy(&scene.program, dir.join("sort")).unwrap();
    passes(&split);
}

#[test]
fn a_program_of_a_directory_that_does_not_start_fails_and_the_others_are_split() {
    let scene = Scene::new();
    let dir = scene.beside("bin");
    fs::create_dir(&dir).unwrap();
    fs::copy(&scene.program, dir.join("sort")).unwrap();
    // Its ld.so is not there: there is nothing to go on to.
    let mut broken = scene.original.clone();
    let at = broken.windows(4).position(|name| name == b"/lib").expect("the name of its ld.so");
    broken[at..at + 4].copy_from_slice(b"/lob");
    fs::write(dir.join("broken"), &broken).unwrap();
    fs::set_permissions(dir.join("broken"), Permissions::from_mode(0o755)).unwrap();
    let (lines, message) = fails_with_lines(1, &["xip", "split", "--volatile", "--store", s(&scene.store), s(&dir)]);
    assert!(message.contains("does not start") && lines.contains("1 split, 1 not"), "{lines}{message}");
    assert!(fs::read(dir.join("broken")).unwrap() == broken && fs::read(dir.join("sort")).unwrap() != scene.original);
}

#[test]
fn bad_news_is_json_where_json_was_asked_for() {
    let scene = Scene::new();
    scene.split(&[]);
    let [program, nothing] = [&scene.program, &scene.beside("nothing")].map(|path| s(path).to_owned());
    let said = fails_in_json(2, &["xip", "model", "--json", "--text-share", "2"]);
    assert!(said["problem"].as_str().unwrap().contains("between 0 and 1"), "{said}");
    fails_in_json(1, &["xip", "model", "--json", "--html", s(&scene.program.join("x"))]);
    let said = fails_in_json(5, &["xip", "stat", "--json", "--store", &nothing, &program]);
    assert_eq!(said["store"], nothing.as_str());
    let said = fails_in_json(1, &["xip", "stat", "--json", &program, &nothing]);
    assert_eq!(said["file"], nothing.as_str(), "the one that cannot be looked at");
    let plan = ["xip", "plan", "--json", "--budget", "1M", "--trace"];
    assert_eq!(fails_in_json(1, &[&plan[..], &[&nothing]].concat())["trace"], nothing.as_str());
    fails_in_json(2, &[&plan[..], &[&nothing, "--t2", "nan"]].concat());
    let said = fails_in_json(1, &["xip", "join", "--json", &nothing]);
    assert_eq!((&said["program"], &said["done"]), (&nothing.clone().into(), &serde_json::json!([])));
    let said = fails_in_json(2, &["xip", "split", "--json", "--store", &nothing, "-o", "x", &program, &program]);
    assert!(said["done"] == serde_json::json!([]) && !Path::new(&nothing).exists(), "{said}");
}
