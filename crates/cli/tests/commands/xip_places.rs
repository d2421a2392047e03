//! Where `towa xip` puts things: what it replaces, which stores last, and what it makes no second half of.
//!
//! What must always hold: nothing is replaced that somebody could miss; a program that is split in its place is there after a reboot, unless
//! its user said otherwise; `towa xip run` runs the program.

use std::fs;
use std::os::unix::process::CommandExt;

use super::*;

#[test]
fn an_output_replaces_what_is_empty_or_split_and_nothing_else() {
    let scene = Scene::new();
    let [folder, out] = ["folder", "out"].map(|name| scene.beside(name));
    fs::create_dir(&folder).unwrap();
    let (store, program) = (s(&scene.store), s(&scene.program));
    let split = ["xip", "split", "--store", store, program, "-o"];
    assert!(fails(2, &[&split[..], &[s(&folder)]].concat()).contains("name the file"));
    assert!(!scene.store.exists(), "nothing was begun");
    let split_out = [&split[..], &[s(&out)]].concat();
    passes(&split_out);
    passes(&split_out);
    fs::write(&out, "").unwrap();
    passes(&split_out);
    fs::write(&out, "mine").unwrap();
    assert!(fails(1, &split_out).contains("--force"));
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    passes(&[&split_out[..], &["--force"]].concat());
    assert!(scene.is_original(), "the program itself stays whole");
    assert!(fails(1, &[&split[..], &[program]].concat()).contains("--force"), "nor is it its own output");

    let whole = scene.beside("whole");
    let join = ["xip", "join", s(&out), "-o"];
    assert!(fails(2, &[&join[..], &[s(&folder)]].concat()).contains("name the file"));
    fs::write(&whole, "mine").unwrap();
    assert!(fails(1, &[&join[..], &[s(&whole)]].concat()).contains("--force"));
    assert_eq!(fs::read(&whole).unwrap(), b"mine");
    passes(&[&join[..], &[s(&whole), "--force"]].concat());
    assert!(fs::read(&whole).unwrap() == scene.original);
    fails(2, &["xip", "split", "--store", store, "-o", s(&out), program, program]);
}

#[test]
fn a_store_that_a_reboot_empties_gets_no_program_unasked() {
    let scene = Scene::new();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: nothing can be written to /dev/shm");
        return;
    };
    let store = memory.path().join("store");
    let found = json(&passes(&["info", "--json", s(&store)]));
    if found["medium"]["kind"] != "ram" {
        eprintln!("SKIPPED: /dev/shm is no tmpfs: {}", found["medium"]);
        return;
    }
    let (store, program) = (s(&store), s(&scene.program));
    let split = ["xip", "split", "--store", store];
    for what in [program, s(scene.program.parent().unwrap())] {
        let said = fails(1, &[&split[..], &[what]].concat());
        assert!(said.contains("a reboot loses the text") && said.contains("--volatile"), "{said}");
    }
    fails(1, &[&split[..], &["--force", "-o", program, program]].concat());
    assert!(scene.is_original() && !Path::new(store).exists());
    if towa(&[&split[..], &["-o", s(&scene.beside("out")), program]].concat()).status.code() == Some(1) {
        eprintln!("SKIPPED: /dev/shm is mounted noexec");
        return;
    }
    assert_eq!(passes(&["xip", "run", "--store", store, "echo", "hello"]), "hello\n");
    // A library stays whole: nothing is lost with its text.
    let listed = text(&Command::new("ldd").arg(program).output().unwrap().stdout);
    let library =
        listed.split_whitespace().find(|word| word.starts_with("/") && word.contains("libc.so")).expect("sort needs libc");
    passes(&[&split[..], &[library]].concat());
    assert!(scene.is_original());
    passes(&[&split[..], &["--volatile", program]].concat());
    assert!(!scene.is_original() && scene.sorts());
}

#[test]
fn a_program_with_more_rights_runs_whole() {
    let scene = Scene::new();
    let input = scene.beside("input");
    fs::write(&input, "b\na\n").unwrap();
    for (mode, what) in [(0o4755, "set-user-id"), (0o2755, "set-group-id")] {
        fs::set_permissions(&scene.program, Permissions::from_mode(mode)).unwrap();
        let out = towa(&["xip", "run", "--store", s(&scene.store), s(&scene.program), s(&input)]);
        let note = text(&out.stderr);
        assert!(out.status.success() && text(&out.stdout) == "a\nb\n", "{out:?}");
        assert!(note.contains(what) && note.contains("runs whole") && note.lines().count() == 1, "{note}");
    }
    fs::set_permissions(&scene.program, Permissions::from_mode(0o755)).unwrap();
    if Command::new("setcap").arg("cap_net_raw+ep").arg(&scene.program).output().is_ok_and(|out| out.status.success()) {
        let out = towa(&["xip", "run", "--store", s(&scene.store), s(&scene.program), s(&input)]);
        assert!(text(&out.stderr).contains("file capabilities"), "{out:?}");
    } else {
        eprintln!("SKIPPED in part: file capabilities cannot be given here");
    }
    assert!(!scene.store.join("run").exists(), "no copy of it was made");
}

#[test]
fn who_cannot_write_to_the_store_runs_what_is_there_or_the_whole_program() {
    let scene = Scene::new();
    let input = scene.beside("input");
    fs::write(&input, "b\na\n").unwrap();
    // Nobody can make a directory there, root neither.
    let out = towa(&["xip", "run", "--store", "/sys/towa-xip-store", s(&scene.program), s(&input)]);
    let note = text(&out.stderr);
    assert!(out.status.success() && text(&out.stdout) == "a\nb\n" && note.contains("runs whole"), "{out:?}");

    if !is_root() {
        eprintln!("SKIPPED in part: only root can be somebody else");
        return;
    }
    let dir = scene.program.parent().unwrap();
    fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |program: &Path| {
        let args = ["xip", "run", "--store", s(&scene.store), s(program), s(&input)];
        command(&args).uid(65534).gid(65534).current_dir("/").output()
    };
    passes(&["xip", "run", "--store", s(&scene.store), s(&scene.program), s(&input)]);
    let Ok(out) = as_nobody(&scene.program) else {
        eprintln!("SKIPPED in part: nobody else may start towa where it was built");
        return;
    };
    assert!(out.status.success() && text(&out.stdout) == "a\nb\n" && out.stderr.is_empty(), "the half that is there: {out:?}");
    let out = as_nobody(&scene.copy("other")).unwrap();
    let note = text(&out.stderr);
    assert!(out.status.success() && text(&out.stdout) == "a\nb\n" && note.contains("runs whole"), "{out:?}");
    // What others can write to is not run from, nor silently passed by.
    fs::set_permissions(&scene.store, Permissions::from_mode(0o777)).unwrap();
    let out = as_nobody(&scene.program).unwrap();
    assert!(out.status.code() == Some(1) && text(&out.stderr).contains("others can write there"), "{out:?}");
}
