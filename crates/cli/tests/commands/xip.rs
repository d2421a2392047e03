//! `towa xip` as its users meet it: a program that is split, run, looked at and joined; and everything that will not do.
//!
//! What must always hold: whatever is wrong, the program's bytes are as they were.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{command, copy_program, fails, is_root, json, passes, s, text, towa};

#[path = "xip_failures.rs"]
mod failures;
#[path = "xip_places.rs"]
mod places;
#[path = "xip_users.rs"]
mod users;

/// A directory with a program that was copied there, and the path of a store that is not there yet.
struct Scene {
    _dir: tempfile::TempDir,
    program: PathBuf,
    original: Vec<u8>,
    store: PathBuf,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("sort");
        let original = fs::read("/usr/bin/sort").expect("sort is everywhere");
        assert!(copy_program(Path::new("/usr/bin/sort"), &program));
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Scene { program, original, store: dir.path().join("store"), _dir: dir }
    }

    /// A path beside the program.
    fn beside(&self, name: &str) -> PathBuf {
        self.program.with_file_name(name)
    }

    /// Another program with the same bytes.
    fn copy(&self, name: &str) -> PathBuf {
        let to = self.beside(name);
        assert!(copy_program(&self.program, &to));
        to
    }

    fn split(&self, more: &[&str]) -> String {
        // Temporary directories lie on tmpfs here and there.
        let mut args = vec!["xip", "split", "--volatile", "--store", s(&self.store)];
        args.extend(more);
        args.push(s(&self.program));
        passes(&args)
    }

    fn is_original(&self) -> bool {
        fs::read(&self.program).unwrap() == self.original
    }

    /// What the program prints for two lines in the wrong order.
    fn sorts(&self) -> bool {
        let input = self.beside("input");
        fs::write(&input, "b\na\n").unwrap();
        let out = Command::new(&self.program).arg(&input).output().unwrap();
        out.status.success() && text(&out.stdout) == "a\nb\n"
    }

    fn text_path(&self) -> PathBuf {
        let stat = json(&passes(&["xip", "stat", "--json", s(&self.program)]));
        PathBuf::from(stat[0]["text"]["path"].as_str().expect("it is split"))
    }
}

#[test]
fn split_run_stat_verify_join_and_gc() {
    let scene = Scene::new();
    let times = fs::metadata(&scene.program).unwrap().mtime();
    let said = scene.split(&["--libs"]);
    assert!(said.contains("sort: program, ") && said.contains("library, "), "{said}");
    assert!(!scene.is_original() && scene.sorts());
    let about = fs::metadata(&scene.program).unwrap();
    assert_eq!((about.len(), about.mtime(), about.mode() & 0o7777), (scene.original.len() as u64, times, 0o755));

    let stat = json(&passes(&["xip", "stat", "--json", s(&scene.program)]));
    assert_eq!((&stat[0]["kind"], &stat[0]["libs"]), (&"program".into(), &true.into()));
    assert!(stat[0]["text_share"].as_f64().is_some_and(|share| share > 0.1 && share < 1.0), "{stat}");
    assert!(passes(&["xip", "stat", s(&scene.program)]).contains("text share"));
    let verified = json(&passes(&["xip", "verify", "--json", s(&scene.store)]));
    assert_eq!((&verified["programs"], &verified["problems"]), (&1.into(), &serde_json::json!([])));
    assert!(passes(&["xip", "gc", s(&scene.store)]).starts_with("0 texts removed"));

    let whole = scene.beside("whole");
    passes(&["xip", "join", "-o", s(&whole), s(&scene.program)]);
    assert!(fs::read(&whole).unwrap() == scene.original && !scene.is_original());
    passes(&["xip", "join", s(&scene.program)]);
    assert!(scene.is_original() && scene.sorts());
    // The texts of libraries are of use as long as the libraries are there.
    assert!(passes(&["xip", "gc", "-n", s(&scene.store)]).contains("1 texts would be removed"));
    assert!(passes(&["xip", "gc", s(&scene.store)]).contains("1 texts removed"));
    assert!(passes(&["xip", "gc", s(&scene.store)]).starts_with("0 texts removed"));
}

#[test]
fn run_changes_nothing_and_ends_as_the_program() {
    let scene = Scene::new();
    let input = scene.beside("input");
    fs::write(&input, "b\na\n").unwrap();
    let store = s(&scene.store);
    for _ in 0..2 {
        assert_eq!(passes(&["xip", "run", "--store", store, s(&scene.program), s(&input)]), "a\nb\n");
    }
    assert!(scene.is_original());
    let out = towa(&["xip", "run", "--store", store, s(&scene.program), "/no/such/file"]);
    assert_eq!(out.status.code(), Some(2), "sort's own status: {}", text(&out.stderr));
    fails(127, &["xip", "run", "--store", store, "no-such-program"]);
    // A script has no text of its own: it is run as it is.
    let script = scene.beside("script");
    // Written by another process: one that another test has just forked keeps what is open here open.
    let write = r##"printf '#!/bin/sh\necho "$1"\n' >"$0" && chmod 755 "$0""##;
    assert!(Command::new("sh").args(["-c", write, s(&script)]).status().unwrap().success());
    assert_eq!(passes(&["xip", "run", "--store", store, s(&script), "hello"]), "hello\n");
    assert!(passes(&["xip", "gc", store]).contains("1 texts removed"), "what run made is made again when needed");
}

#[test]
fn a_directory_is_split_as_far_as_it_can_be() {
    let scene = Scene::new();
    let dir = scene.beside("bin");
    fs::create_dir(&dir).unwrap();
    fs::rename(&scene.program, dir.join("sort")).unwrap();
    fs::write(dir.join("cut"), &scene.original[..5000]).unwrap();
    fs::write(dir.join("script"), "#!/bin/sh\n").unwrap();
    let said = json(&passes(&["xip", "split", "--volatile", "--json", "--store", s(&scene.store), s(&dir)]));
    let lines = said.as_array().unwrap();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0]["not_split"].as_str().is_some_and(|why| why.contains("cut off")), "{said}");
    assert_eq!(lines[1]["kind"], "program");
    assert_eq!(fs::read(dir.join("cut")).unwrap(), &scene.original[..5000]);
}

#[test]
fn what_cannot_be_split_is_as_it_was() {
    let scene = Scene::new();
    let store = s(&scene.store);
    let script = scene.beside("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    for (code, what, args) in [
        (1, "not an ELF file", vec!["xip", "split", "--volatile", "--store", store, s(&script)]),
        (1, "No such file", vec!["xip", "split", "--volatile", "--store", store, "/no/such/program"]),
        (1, "not a split program", vec!["xip", "join", s(&scene.program)]),
        (5, "no store", vec!["xip", "verify", "/no/such/store"]),
        (5, "no store", vec!["xip", "gc", s(scene.program.parent().unwrap())]),
        (3, "not empty", vec!["xip", "split", "--volatile", "--store", s(scene.program.parent().unwrap()), s(&scene.program)]),
        (2, "-o is for one program", vec!["xip", "join", "-o", "x", s(&scene.program), s(&scene.program)]),
    ] {
        let said = fails(code, &args);
        assert!(said.contains(what), "{args:?}: {said}");
    }
    let out = towa(&["xip", "split", s(&scene.program)]);
    assert!(out.status.code() == Some(2) && text(&out.stderr).contains("--store"));
    scene.split(&[]);
    let said = fails(1, &["xip", "split", "--volatile", "--store", store, s(&scene.program)]);
    assert!(said.contains("split already"), "{said}");
    assert!(scene.sorts());
}

#[test]
fn a_store_that_others_can_write_to_is_refused() {
    let scene = Scene::new();
    fs::create_dir(&scene.store).unwrap();
    fs::set_permissions(&scene.store, Permissions::from_mode(0o777)).unwrap();
    let said = fails(1, &["xip", "split", "--volatile", "--store", s(&scene.store), s(&scene.program)]);
    assert!(said.contains("others can write there"), "{said}");
    assert!(scene.is_original());
}

#[test]
fn a_program_without_its_text_says_which_file_is_missing() {
    let scene = Scene::new();
    scene.split(&[]);
    let path = scene.text_path();
    let away = path.with_extension("away");
    fs::rename(&path, &away).unwrap();
    let out = Command::new(&scene.program).output().unwrap();
    assert_eq!(out.status.code(), Some(127));
    assert!(text(&out.stderr).contains(s(&path)), "{}", text(&out.stderr));
    let said = fails(5, &["xip", "join", s(&scene.program)]);
    assert!(said.contains(s(&path)), "{said}");
    let out = towa(&["xip", "verify", s(&scene.store)]);
    assert!(out.status.code() == Some(3) && text(&out.stdout).contains("is not there"), "{out:?}");
    fs::rename(&away, &path).unwrap();
    passes(&["xip", "join", s(&scene.program)]);
    assert!(scene.is_original());
}

#[test]
fn a_flipped_byte_of_text_is_found_and_nothing_is_joined() {
    let scene = Scene::new();
    scene.split(&[]);
    let path = scene.text_path();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.iter().skip(0x4000).position(|byte| *byte == 0xc3).expect("a return instruction") + 0x4000;
    bytes[at] = 0xcc;
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, &bytes).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
    let before = fs::read(&scene.program).unwrap();
    let said = fails(3, &["xip", "join", s(&scene.program)]);
    assert!(said.contains("changed after it was split"), "{said}");
    assert!(fs::read(&scene.program).unwrap() == before);
    assert_eq!(towa(&["xip", "verify", s(&scene.store)]).status.code(), Some(3));
}

#[test]
fn an_upgraded_program_is_left_alone_and_its_text_collected() {
    let scene = Scene::new();
    scene.split(&[]);
    let new = scene.beside("new");
    fs::copy("/usr/bin/cat", &new).unwrap();
    fs::rename(&new, &scene.program).unwrap();
    let verified = json(&passes(&["xip", "verify", "--json", s(&scene.store)]));
    assert_eq!(verified["stale"].as_array().map(Vec::len), Some(1), "{verified}");
    // It may as well have been moved, and another one put there.
    let said = passes(&["xip", "gc", s(&scene.store)]);
    assert!(said.contains("--force") && said.contains("0 texts removed"), "{said}");
    assert!(passes(&["xip", "gc", "--force", s(&scene.store)]).contains("1 texts removed"));
    assert!(fs::read(&scene.program).unwrap() == fs::read("/usr/bin/cat").unwrap());
}

#[test]
fn a_trace_is_taken_and_planned_with() {
    let scene = Scene::new();
    scene.split(&["--libs"]);
    let trace = scene.beside("trace.json");
    let out = towa(&["xip", "trace", "--json", s(&trace), "--", "sh", "-c", &format!("{} --version; exit 3", s(&scene.program))]);
    let said = text(&out.stderr);
    if out.status.code() == Some(1) && said.contains("ot permitted") {
        eprintln!("SKIPPED: other programs cannot be traced here: {said}");
        return;
    }
    assert_eq!(out.status.code(), Some(3), "the command's own status: {said}");
    assert!(text(&out.stdout).contains("sort") && said.contains("program text"), "{said}");
    let traced = json(&fs::read_to_string(&trace).unwrap());
    assert_eq!((&traced["execs"], &traced["exit_status"]), (&2.into(), &3.into()));
    let plan = json(&passes(&["xip", "plan", "--budget", "1M", "--trace", s(&trace), "--json"]));
    assert!(plan.as_object().is_some_and(|plan| !plan.is_empty()), "{plan}");
    let everything = passes(&["xip", "plan", "--budget", "1G", "--trace", s(&trace), "--list"]);
    assert!(everything.lines().any(|line| line == s(&scene.program)), "{everything}");
    assert!(!everything.contains(s(&scene.store.join("xyz"))), "texts count for what they are the text of: {everything}");
    let said = fails(3, &["xip", "plan", "--budget", "1M", "--trace", "/etc/passwd"]);
    assert!(said.contains("not a trace"), "{said}");
    fails(127, &["xip", "trace", "--", "no-such-program"]);
}

#[test]
fn the_model_says_the_papers_numbers() {
    let model = json(&passes(&["xip", "model", "--json"]));
    assert!(model.as_object().is_some_and(|model| !model.is_empty()), "{model}");
    assert!(passes(&["xip", "model"]).contains("28.9"));
    let page = tempfile::tempdir().unwrap();
    let html = page.path().join("model.html");
    passes(&["xip", "model", "--preset", "boot", "--html", s(&html)]);
    assert!(fs::read_to_string(&html).unwrap().contains("<svg"));
    fails(2, &["xip", "model", "--text-share", "2"]);
}

#[test]
fn a_full_store_and_a_closed_pipe() {
    let scene = Scene::new();
    // A limit on the length of files is met like a full disk.
    let limited = format!(
        "ulimit -f 8; exec {} xip split --volatile --store {} {}",
        env!("CARGO_BIN_EXE_towa"),
        s(&scene.store),
        s(&scene.program)
    );
    let out = Command::new("bash").args(["-c", &limited]).output().unwrap();
    assert_eq!(out.status.code(), Some(6), "{}", text(&out.stderr));
    assert!(scene.is_original() && no_leftovers(scene.program.parent().unwrap()));
    scene.split(&[]);
    let piped = format!("{} xip stat {} | true", env!("CARGO_BIN_EXE_towa"), s(&scene.program));
    let out = Command::new("bash").args(["-c", &piped]).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
    assert!(command(&["xip"]).output().unwrap().status.code() == Some(2));
}

fn no_leftovers(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().all(|entry| !entry.unwrap().file_name().to_string_lossy().starts_with(".towa-xip-"))
}
