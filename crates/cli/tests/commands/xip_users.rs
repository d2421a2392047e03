//! `towa xip` of an ordinary user, and of one with unusual settings: what others may do works, and what has no effect is not said to have one.
//!
//! What must always hold: a program that can be read can be split elsewhere, run and joined by every user who can read it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Output;

use super::*;

const NOBODY: u32 = 65534;

/// A program that root owns, in a place where another user has a directory of its own; none, where this is not root.
fn scene_of_two_users() -> Option<(Scene, PathBuf)> {
    let scene = Scene::new();
    if !is_root() {
        eprintln!("SKIPPED: only root can be somebody else");
        return None;
    }
    let dir = scene.program.parent().unwrap();
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    let home = scene.beside("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    if as_nobody(&home, &["--version"]).is_none() {
        eprintln!("SKIPPED: another user may not start towa where it was built");
        return None;
    }
    Some((scene, home))
}

fn as_nobody(home: &Path, args: &[&str]) -> Option<Output> {
    command(args).uid(NOBODY).gid(NOBODY).current_dir(home).output().ok()
}

#[test]
fn an_ordinary_user_splits_runs_and_joins_roots_programs_elsewhere() {
    let Some((scene, home)) = scene_of_two_users() else { return };
    let nobody = |args: &[&str]| {
        let out = as_nobody(&home, args).unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {out:?}");
        text(&out.stdout)
    };
    let (store, half, whole) = (home.join("store"), home.join("half"), home.join("whole"));
    nobody(&["xip", "split", "--store", s(&store), "-o", s(&half), s(&scene.program)]);
    let about = fs::metadata(&half).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (NOBODY, 0o755));
    assert!(Command::new(&half).arg("--version").output().unwrap().status.success());
    nobody(&["xip", "join", "-o", s(&whole), s(&half)]);
    assert!(fs::read(&whole).unwrap() == scene.original);
    let said = nobody(&["xip", "run", "--store", s(&home.join("other")), s(&scene.program), "--version"]);
    assert!(said.contains("sort"), "{said}");
    nobody(&["xip", "verify", s(&store)]);
    nobody(&["xip", "stat", s(&half)]);
    nobody(&["xip", "gc", s(&store)]);
    // A program of root's, split in place, is whole elsewhere.
    scene.split(&[]);
    nobody(&["xip", "join", "-o", s(&home.join("roots")), s(&scene.program)]);
    assert!(fs::read(home.join("roots")).unwrap() == scene.original);
}

/// A group that may read a program is not the group of who copies it.
#[test]
fn a_copy_gives_no_group_what_it_could_not_do() {
    let Some((scene, home)) = scene_of_two_users() else { return };
    std::os::unix::fs::chown(&scene.program, None, Some(4711)).unwrap();
    fs::set_permissions(&scene.program, Permissions::from_mode(0o754)).unwrap();
    let half = home.join("half");
    let out = as_nobody(&home, &["xip", "split", "--store", s(&home.join("store")), "-o", s(&half), s(&scene.program)]).unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(fs::metadata(&half).unwrap().mode() & 0o7777, 0o744);
}

#[test]
fn a_store_that_is_made_under_a_strict_umask_is_reached_by_all() {
    let scene = Scene::new();
    fs::set_permissions(scene.program.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let store = scene.beside("deep").join("store");
    let script =
        format!("umask 077; exec {} xip split --volatile --store {} {}", env!("CARGO_BIN_EXE_towa"), s(&store), s(&scene.program));
    let out = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    for made in [store.parent().unwrap(), &store, &store.join("xyz")] {
        assert_eq!(fs::metadata(made).unwrap().mode() & 0o777, 0o755, "{}", made.display());
    }
}

#[test]
fn a_full_store_lets_the_program_run_whole() {
    let scene = Scene::new();
    let limited = format!(
        "ulimit -f 8; exec {} xip run --store {} {} --version",
        env!("CARGO_BIN_EXE_towa"),
        s(&scene.store),
        s(&scene.program)
    );
    let out = Command::new("bash").args(["-c", &limited]).output().unwrap();
    assert!(out.status.success() && text(&out.stdout).contains("sort"), "{out:?}");
    assert!(text(&out.stderr).contains("runs whole"), "{out:?}");
}

/// A program without a page of text: its libraries' text comes from the store all the same.
#[test]
fn libraries_of_a_small_program_come_from_the_store() {
    let scene = Scene::new();
    let small = scene.beside("small");
    let source = scene.beside("small.c");
    fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { int c; FILE *f = fopen(\"/proc/self/maps\", \"r\"); while ((c = getc(f)) != EOF) putchar(c); }",
    )
    .unwrap();
    if !Command::new("cc").arg("-o").arg(&small).arg(&source).status().is_ok_and(|done| done.success()) {
        eprintln!("SKIPPED: no C compiler");
        return;
    }
    for _ in 0..2 {
        let out = towa(&["xip", "run", "--libs", "--store", s(&scene.store), s(&small)]);
        let (maps, note) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success() && maps.contains(".xyz"), "{out:?}");
        assert!(note.contains("only the text of its libraries") && !note.contains("runs whole"), "{note}");
    }
    let out = towa(&["xip", "run", "--store", s(&scene.store), s(&small)]);
    assert!(
        text(&out.stderr).contains("runs whole") && !text(&out.stdout).contains(".xyz"),
        "libraries were not asked for: {out:?}"
    );
}

/// What is said of libraries is what happens: a linker may leave no room for it, or may be lld.
#[test]
fn libraries_are_mapped_from_the_store_or_it_is_said_that_they_are_not() {
    let scene = Scene::new();
    let source = scene.beside("maps.c");
    fs::write(
        &source,
        "#include <stdio.h>\n__asm__(\".text; .skip 16384, 0x90\");\nint main(void) { int c; FILE *f = fopen(\"/proc/self/maps\", \"r\"); \
         while ((c = getc(f)) != EOF) putchar(c); }",
    )
    .unwrap();
    // Relocations are counted as lld does it, where no entry is spare; without a count nothing is left.
    let ways = [
        ("spare", vec![]),
        ("counted", vec!["-Wl,--spare-dynamic-tags=0"]),
        ("neither", vec!["-Wl,--spare-dynamic-tags=0", "-Wl,-z,nocombreloc"]),
    ];
    for (name, flags) in ways {
        let program = scene.beside(name);
        let built = Command::new("cc").args(["-o", s(&program), s(&source)]).args(&flags).status();
        if !built.is_ok_and(|done| done.success()) {
            eprintln!("SKIPPED: no C compiler that knows {flags:?}");
            continue;
        }
        let said = passes(&["xip", "split", "--volatile", "--libs", "--store", s(&scene.store), s(&program)]);
        let stat = json(&passes(&["xip", "stat", "--json", s(&program)]));
        let maps = text(&Command::new(&program).output().unwrap().stdout);
        let is_mapped = !maps.lines().any(|line| line.contains("r-xp") && line.contains("/libc"));
        assert_eq!(stat[0]["libs"], is_mapped, "{name}: {said}{maps}");
        assert_eq!(!said.contains("its libraries keep their own text"), is_mapped, "{name}: {said}");
        assert_eq!(is_mapped, name != "neither", "{name}: {maps}");
    }
}

#[test]
fn a_trace_is_printed_where_no_file_is_named() {
    let out = towa(&["xip", "trace", "--json", "--", "true"]);
    if out.status.code() == Some(1) && text(&out.stderr).contains("ot permitted") {
        eprintln!("SKIPPED: other programs cannot be traced here");
        return;
    }
    assert!(out.status.success(), "{out:?}");
    assert_eq!(json(&text(&out.stdout))["exit_status"], 0);
}

#[test]
fn an_immutable_program_is_refused_by_name() {
    let scene = Scene::new();
    if !Command::new("chattr").arg("+i").arg(&scene.program).output().is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED: no immutable files here");
        return;
    }
    let said = fails(1, &["xip", "split", "--volatile", "--store", s(&scene.store), s(&scene.program)]);
    let freed = Command::new("chattr").arg("-i").arg(&scene.program).status().unwrap();
    assert!(freed.success() && said.contains("chattr -i"), "{said}");
}
