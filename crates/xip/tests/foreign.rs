//! Foreign code: no program executes what another user wrote, and no library another one's text. Each of these once went wrong, or could.

mod sweep_support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sweep_support::{LIBS, Place, TEXT, command, is_root, program, run};
use towa_xip::split::AbcHead;
use towa_xip::store::{Collect, Store};
use towa_xip::{Error, install, needed};

const NOBODY: u32 = 65534;
/// More than a page of text, and a function that tells one library from another.
const LIBRARY: &str = "__asm__(\".text; .skip 16384, 0x90\"); int answer(void) { return ANSWER; }";
const PROGRAM: &str = "
#include <stdio.h>
__asm__(\".text; .skip 16384, 0x90\");
int answer(void);
int main(void)
{
    char line[4096];
    FILE *maps = fopen(\"/proc/self/maps\", \"r\");
    const char *from = \"own\";
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long low, high;
        if (sscanf(line, \"%lx-%lx\", &low, &high) == 2 && low <= (unsigned long)answer && (unsigned long)answer < high) {
            for (const char *at = line; *at; at++)
                if (at[0] == '.' && at[1] == 'x' && at[2] == 'y' && at[3] == 'z')
                    from = \"store\";
        }
    }
    printf(\"%d %s\\n\", answer(), from);
    return 0;
}";

/// What is done with a path.
type Act<'a> = &'a dyn Fn(&Path);

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn compile(to: &Path, source: &str, flags: &[&str]) {
    let input = to.with_extension("c");
    fs::write(&input, source).unwrap();
    let mut cc = Command::new("cc");
    let done = cc.args(["-O1", "-w", "-o"]).arg(to).arg(&input).args(flags).output().expect("a C compiler");
    assert!(done.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A library in a folder of its own whose build-id is that of all others here, and whose headers are, too.
fn library(place: &Place, folder: &str, answer: u32) -> PathBuf {
    let path = place.folder(folder, false).join("libanswer.so");
    let define = format!("-DANSWER={answer}");
    compile(&path, LIBRARY, &["-shared", "-fPIC", "-Wl,--build-id=0xdeadbeefcafe", &define]);
    path
}

/// A program that needs that library, and finds it by its environment.
fn asks(place: &Place, library: &Path) -> PathBuf {
    let path = place.folder("programs", false).join("asks");
    let folder = format!("-L{}", library.parent().unwrap().display());
    compile(&path, PROGRAM, &[&folder, "-lanswer"]);
    path
}

fn says(program: &Path, library: &Path) -> String {
    let mut command = command(program, &[] as &[&str], Path::new("/"));
    command.env("LD_LIBRARY_PATH", library.parent().unwrap());
    let outcome = run(command, Duration::from_secs(10));
    String::from_utf8_lossy(&outcome.out).trim().to_owned()
}

#[test]
fn two_libraries_of_one_build_id_run_their_own_code() {
    let place = Place::new();
    let [first, second] = [("first", 1), ("second", 2)].map(|(folder, answer)| library(&place, folder, answer));
    let program = asks(&place, &first);
    install::split(&place.store, &first, None, TEXT).unwrap();
    install::split(&place.store, &program, None, LIBS).unwrap();
    assert_eq!(says(&program, &first), "1 store");
    assert_eq!(says(&program, &second), "2 own", "it has no text there");
    install::split(&place.store, &second, None, TEXT).unwrap();
    assert_eq!([says(&program, &first), says(&program, &second)], ["1 store", "2 store"]);
    // A copy is another file: it may be anything by the time that it is mapped.
    let copy = place.folder("copy", false).join("libanswer.so");
    fs::copy(&first, &copy).unwrap();
    assert_eq!(says(&program, &copy), "1 own");
}

/// As a tool does that writes into libraries and keeps their times.
#[test]
fn a_library_patched_in_its_place_runs_its_new_code() {
    let place = Place::new();
    let library = library(&place, "library", 0x1122_3344);
    let program = asks(&place, &library);
    install::split(&place.store, &library, None, TEXT).unwrap();
    install::split(&place.store, &program, None, LIBS).unwrap();
    assert_eq!(says(&program, &library), "287454020 store");
    let about = fs::metadata(&library).unwrap();
    let bytes = fs::read(&library).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == 0x1122_3344u32.to_le_bytes()).expect("the answer");
    let file = fs::File::options().write(true).open(&library).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &7u32.to_le_bytes(), at as u64).unwrap();
    file.set_modified(about.modified().unwrap()).unwrap();
    drop(file);
    assert_eq!(says(&program, &library), "7 own");
    assert_eq!(place.store.verify(true, |_, _| {}).unwrap().stale, std::slice::from_ref(&library));
    install::split(&place.store, &library, None, TEXT).unwrap();
    assert_eq!(says(&program, &library), "7 store");
    // What it was before leads nowhere, and its text goes.
    assert_eq!(place.store.write().unwrap().collect(Collect::default()).unwrap().texts.len(), 1);
    let links = Command::new("find").arg(place.store.path().join("lib")).args(["-type", "l"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&links.stdout).lines().count(), 1);
    assert_eq!(says(&program, &library), "7 store");
}

#[test]
fn a_library_that_somebody_else_can_change_has_no_text_in_the_store() {
    let place = Place::new();
    let library = library(&place, "library", 1);
    let folder = library.parent().unwrap().to_owned();
    let refused = |what: &str| {
        let done = install::split(&place.store, &library, None, TEXT);
        assert!(matches!(done, Err(Error::Unsafe { .. })), "{what}: {done:?}");
        assert_eq!(place.store.text_paths().unwrap().len(), 0, "{what}");
    };
    mode(&library, 0o775);
    refused("a group can write to it");
    mode(&library, 0o755);
    for bits in [0o777, 0o775] {
        mode(&folder, bits);
        refused("others can exchange it");
    }
    mode(&folder, 0o755);
    if is_root() {
        for path in [&library, &folder] {
            chown(path, Some(NOBODY), None).unwrap();
            refused("another user's");
            chown(path, Some(0), None).unwrap();
        }
        // Where names are sticky, but the file is another user's.
        mode(&folder, 0o1777);
        chown(&library, Some(NOBODY), None).unwrap();
        refused("another user's, in a directory as /tmp");
        chown(&library, Some(0), None).unwrap();
    } else {
        eprintln!("SKIP in part: giving a file to another user takes root");
    }
    mode(&folder, 0o755);
    let link = place.at("link.so");
    symlink(&library, &link).unwrap();
    install::split(&place.store, &link, None, TEXT).unwrap();
}

/// A text that others could have written, or with other bytes than the program's, is made anew; and `verify` does not call it sound.
#[test]
fn a_foreign_file_in_a_good_store_is_found_and_replaced() {
    let place = Place::new();
    let path = place.copy(&program("sort").expect("sort is everywhere"), "programs");
    let text = install::split(&place.store, &path, None, TEXT).unwrap().text;
    let sound = fs::read(&text).unwrap();
    let problems = || place.store.verify(true, |_, _| {}).unwrap().problems.len();
    let split_again = || {
        install::join(&path, None, None).unwrap();
        install::split(&place.store, &path, None, TEXT).unwrap();
        let about = fs::metadata(&text).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o7777), (fs::metadata("/proc/self").unwrap().uid(), 0o444));
        assert!(fs::read(&text).unwrap() == sound);
        assert_eq!(problems(), 0);
    };
    let loader = place.store.loader_path();
    for file in [&text, &loader] {
        let bits = fs::metadata(file).unwrap().mode();
        mode(file, bits | 0o020);
        assert!(problems() > 0, "{}: a group can write to it", file.display());
        if file == &text {
            split_again();
        } else {
            Store::open_or_create(place.store.path()).unwrap();
        }
        assert_eq!(problems(), 0);
        if is_root() {
            chown(file, Some(NOBODY), None).unwrap();
            assert!(problems() > 0, "{}: another user's", file.display());
            if file == &text {
                split_again()
            } else {
                drop(Store::open_or_create(place.store.path()).unwrap())
            }
            assert_eq!((problems(), fs::metadata(file).unwrap().uid()), (0, 0));
        }
    }
    // The directories in it.
    let folder = text.parent().unwrap();
    mode(folder, 0o777);
    install::join(&path, None, None).unwrap();
    assert!(matches!(install::split(&place.store, &path, None, TEXT), Err(Error::Unsafe { .. })));
    mode(folder, 0o755);
    // Elsewhere, by a link: who made that decides what is there.
    let away = place.at("away");
    fs::rename(folder, &away).unwrap();
    symlink(&away, folder).unwrap();
    assert!(install::split(&place.store, &path, None, TEXT).is_err());
    fs::remove_file(folder).unwrap();
    fs::rename(&away, folder).unwrap();
    // A sound text of other bytes under this name.
    install::split(&place.store, &path, None, TEXT).unwrap();
    let other = place.copy(&program("cat").expect("cat is everywhere"), "programs");
    let other = install::split(&place.store, &other, None, TEXT).unwrap().text;
    mode(&text, 0o644);
    fs::copy(&other, &text).unwrap();
    assert!(problems() > 0);
    fs::remove_file(&path).unwrap();
    fs::copy(program("sort").unwrap(), &path).unwrap();
    install::split(&place.store, &path, None, TEXT).unwrap();
    assert!(fs::read(&text).unwrap() == sound);
}

/// Programs that run with the rights of another user than root, and such that not everybody may run: all who may get to the text, which is
/// root's; and no other user does.
#[test]
fn set_id_programs_of_other_users_run() {
    if !is_root() {
        return eprintln!("SKIP: set-id programs are made by root");
    }
    let place = Place::new();
    if place.store.check_for_privileged().is_err() {
        return eprintln!("SKIP: this directory is not root's all the way up");
    }
    let path = place.copy(&program("id").expect("id is everywhere"), "programs");
    let original = fs::read(&path).unwrap();
    let says = |user: u32, group: u32| {
        let mut command = command(&path, &["-u"], Path::new("/"));
        std::os::unix::process::CommandExt::uid(&mut command, user);
        std::os::unix::process::CommandExt::gid(&mut command, group);
        let outcome = run(command, Duration::from_secs(10));
        (outcome.status.clone(), String::from_utf8_lossy(&outcome.out).trim().to_owned())
    };
    let capable = |on: bool| {
        let what: &[&str] = if on { &["cap_net_raw+ep"] } else { &["-r"] };
        let mut setcap = Command::new("setcap");
        if on {
            setcap.args(what)
        } else {
            setcap.arg("-r")
        };
        setcap.arg(&path).output().is_ok_and(|done| done.status.success())
    };
    for (owner, bits, caps) in
        [(4711, 0o4750, false), (4711, 0o4755, false), (4711, 0o2750, false), (4711, 0o750, true), (0, 0o750, true)]
    {
        let what = format!("{owner} {bits:o} {caps}");
        chown(&path, Some(owner), Some(4712)).unwrap();
        mode(&path, bits);
        if caps && !capable(true) {
            eprintln!("SKIP in part: no capabilities can be given to a file here");
            continue;
        }
        let runners = [(4711, 4711), (4713, 4712), (4713, 4713)];
        let whole = runners.map(|(user, group)| says(user, group));
        match install::split(&place.store, &path, None, TEXT) {
            Err(Error::Unsupported { what }) => {
                eprintln!("SKIP in part: {what}");
                assert!(fs::read(&path).unwrap() == original);
                continue;
            }
            other => drop(other.unwrap()),
        }
        assert!(AbcHead::find(&fs::read(&path).unwrap()).is_ok(), "{what}");
        assert_eq!(runners.map(|(user, group)| says(user, group)), whole, "{what}");
        assert_eq!(place.store.verify(true, |_, _| {}).unwrap().problems.len(), 0, "{what}");
        let text = place.store.text(&AbcHead::find(&fs::read(&path).unwrap()).unwrap().record.key).unwrap();
        chown(&text.path, Some(4711), None).unwrap();
        assert_eq!(place.store.verify(true, |_, _| {}).unwrap().problems.len(), 2, "{what}: the text, and the program");
        chown(&text.path, Some(0), None).unwrap();
        install::join(&path, None, None).unwrap();
        fs::remove_file(&text.path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, bits);
        if caps {
            assert!(capable(false), "{what}");
        }
    }
}

/// Whatever is in the place of a file of a store that somebody else made: an answer, and soon.
#[test]
fn a_store_with_pipes_links_and_endless_files() {
    let place = Place::new();
    let path = place.copy(&program("sort").expect("sort is everywhere"), "programs");
    let text = install::split(&place.store, &path, None, TEXT).unwrap().text;
    let store = place.store.path().to_owned();
    let entry = fs::read_dir(store.join("files")).unwrap().next().unwrap().unwrap().path();
    let kinds: [(&str, Act); 4] = [
        ("a pipe", &|at| rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap()),
        ("a link to what never ends", &|at| symlink("/dev/zero", at).unwrap()),
        ("a file of terabytes", &|at| fs::File::create(at).unwrap().set_len(1 << 42).unwrap()),
        ("a directory", &|at| fs::create_dir(at).unwrap()),
    ];
    let began = std::time::Instant::now();
    for file in [&store.join("store.json"), &entry, &store.join("ld-towa-xip.so"), &store.join("towa-xip-audit.so"), &text] {
        let away = place.at("away");
        fs::rename(file, &away).unwrap();
        for (what, make) in &kinds {
            make(file);
            let sound = Store::open(&store).and_then(|store| store.verify(true, |_, _| {}));
            assert!(!sound.is_ok_and(|found| found.problems.is_empty()), "{}: {what}", file.display());
            let _ = towa_xip::stat::stat(&path, Some(&place.store));
            if file == &text {
                assert!(install::join(&path, Some(&place.at("out")), None).is_err(), "{what}");
            }
            if file.is_dir() { fs::remove_dir(file).unwrap() } else { fs::remove_file(file).unwrap() }
        }
        fs::rename(&away, file).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(place.store.verify(true, |_, _| {}).unwrap().problems.len(), 0);
}

/// A store of another user is looked at, and its loader is not executed.
#[test]
fn verifying_another_users_store_starts_nothing() {
    if !is_root() {
        return eprintln!("SKIP: giving a store to another user takes root");
    }
    let place = Place::new();
    let path = place.copy(&program("sort").expect("sort is everywhere"), "programs");
    install::split(&place.store, &path, None, TEXT).unwrap();
    let proof = place.at("proof");
    let loader = place.store.loader_path();
    fs::remove_file(&loader).unwrap();
    fs::write(&loader, format!("#!/bin/sh\ntouch {}\n", proof.display())).unwrap();
    mode(&loader, 0o555);
    assert!(!place.store.verify(true, |_, _| {}).unwrap().problems.is_empty());
    chown(place.store.path(), Some(NOBODY), None).unwrap();
    assert!(!place.store.verify(true, |_, _| {}).unwrap().problems.is_empty());
    assert!(!proof.exists(), "it was started");
}

/// Paths that ld.so gives as it found them: relative to the directory in which the program was started.
#[test]
fn libraries_with_relative_paths_are_found() {
    let place = Place::new();
    let library = library(&place, "library", 1);
    let program = place.folder("programs", false).join("relative");
    let folder = format!("-L{}", library.parent().unwrap().display());
    let here = std::env::current_dir().unwrap();
    let up = "../".repeat(here.components().count() - 1);
    let relative = format!("-Wl,-rpath,{up}{}", library.parent().unwrap().strip_prefix("/").unwrap().display());
    compile(&program, PROGRAM, &[&folder, "-lanswer", &relative]);
    assert!(needed::libraries(&program).unwrap().contains(&library));
}

/// A program names its interpreter, which is run to list its libraries: no other program than a loader is, whoever may run it.
#[test]
fn an_interpreter_that_is_no_loader_is_not_run() {
    let place = Place::new();
    let folder = place.folder("programs", false);
    let proof = place.at("proof");
    for name in ["tool", "ld-tool.so"] {
        let tool = folder.join(name);
        fs::write(&tool, format!("#!/bin/sh\ntouch {}\n", proof.display())).unwrap();
        mode(&tool, 0o755);
        let program = folder.join(format!("asks-{name}"));
        compile(&program, "int main(void) { return 0; }", &[&format!("-Wl,--dynamic-linker={}", tool.display())]);
        let listed = needed::libraries(&program);
        assert!(!proof.exists(), "{name} was run");
        assert!(matches!(&listed, Err(Error::Unfit { why, .. }) if why.contains("is no ld.so")), "{listed:?}");
    }
    // Two names in one: the kernel would take another than we do.
    let program = folder.join("plain");
    compile(&program, "int main(void) { return 0; }", &[]);
    assert!(!needed::libraries(&program).unwrap().is_empty());
    let mut bytes = fs::read(&program).unwrap();
    let at = bytes.windows(8).position(|window| window == b"/ld-linu").expect("the name of its ld.so");
    bytes[at] = 0;
    fs::write(&program, bytes).unwrap();
    assert!(matches!(needed::libraries(&program), Err(Error::Unfit { .. })));
}

/// Where another user can exchange a program while its libraries are looked for, ld.so gets the very file that was looked at.
#[test]
fn libraries_beside_a_program_that_others_can_exchange_are_not_found() {
    let place = Place::new();
    let library = library(&place, "library", 1);
    let folder = library.parent().unwrap();
    let program = folder.join("beside");
    compile(&program, PROGRAM, &[&format!("-L{}", folder.display()), "-lanswer", "-Wl,-rpath,$ORIGIN"]);
    let plain = folder.join("plain");
    compile(&plain, "int main(void) { return 0; }", &[]);
    let whole = needed::libraries(&plain).unwrap();
    assert!(needed::libraries(&program).unwrap().contains(&library));
    mode(folder, 0o777);
    assert_eq!(needed::libraries(&plain).unwrap(), whole);
    let listed = needed::libraries(&program);
    assert!(matches!(&listed, Err(Error::Unsafe { what, .. }) if what.contains("$ORIGIN")), "{listed:?}");
    if is_root() {
        chown(&plain, Some(NOBODY), None).unwrap();
        assert_eq!(needed::libraries(&plain).unwrap(), whole, "with its owner's rights");
    }
    mode(folder, 0o755);
    mode(&program, 0o775);
    assert!(matches!(needed::libraries(&program), Err(Error::Unsafe { .. })), "a group can write to it");
    let done = install::split(&place.store, &program, None, LIBS).unwrap();
    assert!(done.notes.iter().any(|note| note.contains("not looked for")), "{:?}", done.notes);
}
