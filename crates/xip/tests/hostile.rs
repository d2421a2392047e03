//! What others could do to who splits, and accidents a store must live through. Each of these once went wrong.

mod sweep_support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sweep_support::{LIBS, Place, TEXT, command, is_root, program, run};
use towa_xip::format::{PATH_AT, RANGE_RODATA, XyzRecord};
use towa_xip::install::{self, How};
use towa_xip::split::{AbcHead, Options};
use towa_xip::store::{Collect, Text};
use towa_xip::{Error, needed};

const NOBODY: u32 = 65534;
const RODATA: How = How { split: Options { with_rodata: true, libs: false, huge: false }, sealed: false };

fn subject(place: &Place) -> PathBuf {
    place.copy(&program("sort").expect("sort is everywhere"), "programs")
}

fn runs(path: &Path) -> bool {
    run(command(path, &["--version"], path.parent().unwrap()), Duration::from_secs(10)).is_success()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Ends with a panic if it takes too long.
fn within_seconds<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let acting = scope.spawn(act);
        for _ in 0..500 {
            if acting.is_finished() {
                return acting.join().unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("it hangs");
        std::process::abort()
    })
}

#[test]
fn a_program_in_a_directory_that_others_can_change() {
    let place = Place::new();
    let path = subject(&place);
    let original = fs::read(&path).unwrap();
    let folder = path.parent().unwrap().to_owned();
    mode(&folder, 0o777);
    assert!(matches!(install::split(&place.store, &path, None, TEXT), Err(Error::Unsafe { .. })));
    mode(&folder, 0o755);
    if is_root() {
        chown(&folder, Some(NOBODY), None).unwrap();
        assert!(matches!(install::split(&place.store, &path, None, TEXT), Err(Error::Unsafe { .. })));
        chown(&folder, Some(0), None).unwrap();
    } else {
        eprintln!("SKIP: giving a directory to another user takes root");
    }
    assert!(fs::read(&path).unwrap() == original);
    install::split(&place.store, &path, None, TEXT).unwrap();
    mode(&folder, 0o777);
    assert!(matches!(install::join(&path, None, None), Err(Error::Unsafe { .. })));
}

/// Whoever can write to a split program could name another loader in it, with the right sum; who verifies must not run that.
#[test]
fn a_split_program_that_names_another_loader_is_not_started() {
    let place = Place::new();
    let path = subject(&place);
    install::split(&place.store, &path, None, TEXT).unwrap();
    let mut abc = fs::read(&path).unwrap();
    let proof = place.at("proof");
    let evil = place.store.path().join("evil");
    fs::write(&evil, format!("#!/bin/sh\ntouch {}\n", proof.display())).unwrap();
    mode(&evil, 0o755);
    let at = abc.windows(8).position(|bytes| bytes == b"TOWAABC1").unwrap();
    let loader = place.store.loader_path();
    let old = loader.as_os_str().as_encoded_bytes();
    let new = evil.as_os_str().as_encoded_bytes();
    abc[at + PATH_AT as usize..][..old.len()].fill(0);
    abc[at + PATH_AT as usize..][..new.len()].copy_from_slice(new);
    let sum = xxhash_rust::xxh3::xxh3_64(&[&abc[at..at + 240], new].concat());
    abc[at + 240..at + 248].copy_from_slice(&sum.to_le_bytes());
    let header = interpreter_header(&abc);
    abc[header + 32..header + 40].copy_from_slice(&(new.len() as u64 + 1).to_le_bytes());
    assert!(AbcHead::find(&abc).is_err(), "it names another loader");
    // And one that names the right loader, and has another of its headers changed.
    fs::write(&path, &abc).unwrap();
    let verified = place.store.verify(true, |_, _| {}).unwrap();
    assert_eq!((verified.programs, verified.problems.len()), (0, 1), "{verified:?}");
    assert!(
        place.store.write().unwrap().collect(Collect::default()).unwrap().texts.is_empty(),
        "its text is all there is to mend it with"
    );
    assert!(!proof.exists(), "it was started");
}

/// Where the program header of the interpreter lies.
fn interpreter_header(elf: &[u8]) -> usize {
    let count = u16::from_le_bytes(elf[56..58].try_into().unwrap()) as usize;
    (0..count).map(|index| 64 + 56 * index).find(|at| elf[*at..at + 4] == 3u32.to_le_bytes()).unwrap()
}

#[test]
fn headers_changed_after_splitting_are_found() {
    let place = Place::new();
    let path = subject(&place);
    install::split(&place.store, &path, None, TEXT).unwrap();
    let sound = fs::read(&path).unwrap();
    let header = interpreter_header(&sound);
    for at in [header + 16, 24, 64 + 24] {
        let mut changed = sound.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).unwrap();
        let verified = place.store.verify(false, |_, _| {}).unwrap();
        assert_eq!(verified.programs, 0, "byte {at}: {verified:?}");
    }
    fs::write(&path, &sound).unwrap();
    assert_eq!(place.store.verify(true, |_, _| {}).unwrap().programs, 1);
}

#[test]
fn a_program_that_brings_its_own_auditor_is_not_listed() {
    let place = Place::new();
    let folder = place.folder("made", false);
    fs::write(folder.join("a.c"), "int main(void) { return 0; }").unwrap();
    let mut cc = Command::new("cc");
    cc.current_dir(&folder).args(["-o", "a", "a.c", "-Wl,--audit=/dev/shm/no-such-auditor.so"]);
    if !cc.status().is_ok_and(|status| status.success()) {
        return eprintln!("SKIP: no C compiler that knows --audit");
    }
    let listed = needed::libraries(&folder.join("a"));
    assert!(matches!(&listed, Err(Error::Unfit { why, .. }) if why.contains("audit")), "{listed:?}");
}

/// ld.so opens the pipe and waits for a writer; what asks it does not.
#[test]
fn a_named_pipe_in_the_place_of_a_library() {
    let place = Place::new();
    let folder = place.folder("made", false);
    let pipe = folder.join("libpipe.so");
    fs::write(folder.join("a.c"), "int main(void) { return 0; }").unwrap();
    let cc =
        |arguments: &[&str]| Command::new("cc").current_dir(&folder).args(arguments).status().is_ok_and(|status| status.success());
    let soname = format!("-Wl,-soname={}", pipe.display());
    if !cc(&["-shared", "-o", "libpipe.so", "a.c", &soname]) || !cc(&["-o", "a", "a.c", "-Wl,--no-as-needed", "./libpipe.so"]) {
        return eprintln!("SKIP: no C compiler");
    }
    assert!(needed::libraries(&folder.join("a")).unwrap().contains(&pipe));
    fs::remove_file(&pipe).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let listed = needed::libraries(&folder.join("a")).unwrap_err();
    assert!(listed.to_string().contains("did not end within 10 s"), "{listed}");
}

#[test]
fn named_pipes_and_links_in_the_way() {
    let place = Place::new();
    let path = subject(&place);
    install::split(&place.store, &path, None, TEXT).unwrap();
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    let verified = within_seconds(|| place.store.verify(true, |_, _| {}).unwrap());
    assert_eq!((verified.stale.len(), verified.problems.len()), (1, 0), "{verified:?}");
    assert!(within_seconds(|| install::split(&place.store, &path, None, TEXT)).is_err());
    assert!(within_seconds(|| towa_xip::stat::stat(&path, None)).is_err());
    let force = Collect { force: true, dry: false };
    assert_eq!(within_seconds(|| place.store.write().unwrap().collect(force).unwrap()).texts.len(), 1);

    let lock = place.store.path().join("lock");
    assert_eq!(fs::metadata(&lock).unwrap().mode() & 0o777, 0o600, "nobody else can hold it");
    fs::remove_file(&lock).unwrap();
    let elsewhere = place.at("elsewhere");
    symlink(&elsewhere, &lock).unwrap();
    assert!(place.store.write().is_err() && !elsewhere.exists());
}

#[test]
fn a_store_is_not_split_itself() {
    let place = Place::new();
    let path = subject(&place);
    let text = install::split(&place.store, &path, None, TEXT).unwrap().text;
    for inside in [&text, &place.store.loader_path(), &place.store.audit_path()] {
        assert!(matches!(install::split(&place.store, inside, None, TEXT), Err(Error::Unfit { .. })), "{}", inside.display());
    }
    let copy = place.at("copy");
    fs::copy(&text, &copy).unwrap();
    mode(&copy, 0o755);
    assert!(matches!(install::split(&place.store, &copy, None, TEXT), Err(Error::Unfit { .. })), "a text, wherever it is");
    assert!(runs(&path));
}

#[test]
fn a_program_that_was_moved_or_has_other_names_keeps_its_text() {
    let place = Place::new();
    let path = subject(&place);
    install::split(&place.store, &path, None, TEXT).unwrap();
    let moved = path.with_file_name("moved");
    fs::rename(&path, &moved).unwrap();
    for _ in 0..2 {
        assert!(place.store.write().unwrap().collect(Collect::default()).unwrap().texts.is_empty());
        assert!(runs(&moved));
    }
    let linked = path.with_file_name("linked");
    fs::hard_link(&moved, &linked).unwrap();
    install::join(&moved, None, None).unwrap();
    for _ in 0..2 {
        assert!(place.store.write().unwrap().collect(Collect::default()).unwrap().texts.is_empty());
        assert!(runs(&linked) && runs(&moved));
    }
}

#[test]
fn a_directory_that_is_another_by_now_says_nothing() {
    let place = Place::new();
    let path = subject(&place);
    install::split(&place.store, &path, None, TEXT).unwrap();
    let (folder, away) = (place.at("programs"), place.at("away"));
    fs::rename(&folder, &away).unwrap();
    fs::create_dir(&folder).unwrap();
    let collected = place.store.write().unwrap().collect(Collect::default()).unwrap();
    assert!(collected.texts.is_empty() && collected.kept == [path.clone()], "as where nothing is mounted: {collected:?}");
    fs::remove_dir(&folder).unwrap();
    fs::rename(&away, &folder).unwrap();
    assert!(runs(&path));
}

/// Zeros in the middle of what is mapped.
fn damage(text: &Path, kind: u32) {
    let range = *Text::open(text).unwrap().record.ranges().iter().find(|range| range.kind == kind).unwrap();
    let mut bytes = fs::read(text).unwrap();
    let middle = (range.offset + range.len / 2) as usize;
    bytes[middle..middle + 64].fill(0x5a);
    mode(text, 0o644);
    fs::write(text, bytes).unwrap();
    mode(text, 0o444);
}

#[test]
fn damaged_texts_are_found_and_splitting_again_repairs_them() {
    let place = Place::new();
    let path = subject(&place);
    let libc = needed::libraries(&path).unwrap().into_iter().find(|path| path.to_string_lossy().contains("libc.so"));
    let Some(libc) = libc else { return eprintln!("SKIP: no libc.so here") };
    for kind in [towa_xip::format::RANGE_TEXT, RANGE_RODATA] {
        let text = install::split(&place.store, &libc, None, RODATA).unwrap().text;
        assert_eq!(place.store.verify(false, |_, _| {}).unwrap().problems.len(), 0);
        damage(&text, kind);
        assert!(!place.store.verify(false, |_, _| {}).unwrap().problems.is_empty(), "kind {kind}");
        install::split(&place.store, &libc, None, RODATA).unwrap();
        assert_eq!(place.store.verify(false, |_, _| {}).unwrap().problems.len(), 0, "kind {kind}");
    }
    let text = install::split(&place.store, &libc, None, TEXT).unwrap().text;
    let record = XyzRecord::read(&fs::read(&text).unwrap()).unwrap();
    assert!(record.ranges().iter().any(|range| range.kind == RANGE_RODATA), "what a program may need stays");
}

#[test]
fn a_text_keeps_what_another_program_needs_of_it() {
    let place = Place::new();
    let first = subject(&place);
    let second = place.copy(&first, "second");
    mode(&first, 0o700);
    install::split(&place.store, &first, None, RODATA).unwrap();
    // The same program, for everybody, and without its read-only data: the text is written anew.
    install::split(&place.store, &second, None, LIBS).unwrap();
    assert!(runs(&first) && runs(&second));
    assert_eq!(
        fs::metadata(place.store.text_path(&AbcHead::find(&fs::read(&first).unwrap()).unwrap().record.key)).unwrap().mode() & 0o777,
        0o444
    );
}

#[test]
fn who_may_run_a_program_gets_to_its_text() {
    let place = Place::new();
    let path = subject(&place);
    mode(&path, 0o644);
    assert!(matches!(install::split(&place.store, &path, None, TEXT), Err(Error::Unfit { .. })), "nobody may run it");
    mode(&path, 0o755);
    let hidden = place.folder("hidden", false);
    mode(&hidden, 0o700);
    let private = towa_xip::store::Store::open_or_create(&hidden.join("store")).unwrap();
    assert!(matches!(install::split(&private, &path, None, TEXT), Err(Error::Unfit { .. })), "others would not get to the store");
    if !is_root() {
        return eprintln!("SKIP: giving a program to another user takes root");
    }
    for (bits, owner, group) in [(0o750, 0, NOBODY), (0o4750, NOBODY, NOBODY), (0o700, NOBODY, NOBODY)] {
        chown(&path, Some(owner), Some(group)).unwrap();
        mode(&path, bits);
        let done = install::split(&private, &path, None, TEXT);
        assert!(done.is_err(), "{bits:o}: a group, or the program's owner, would not get to the store");
    }
    mode(&path, 0o700);
    chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    // Its text stays root's: who owns a file can change it.
    let text = match install::split(&place.store, &path, None, TEXT) {
        Ok(done) => done.text,
        Err(why) => return eprintln!("SKIP: no access lists here: {why}"),
    };
    let about = fs::metadata(&text).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o777), (0, 0o440));
    let as_user = |user: u32| {
        let mut command = command(&path, &["--version"], path.parent().unwrap());
        std::os::unix::process::CommandExt::uid(&mut command, user);
        std::os::unix::process::CommandExt::gid(&mut command, user);
        run(command, Duration::from_secs(10)).is_success()
    };
    assert!(as_user(NOBODY));
    // Nor can anybody else read it.
    mode(&path, 0o755);
    assert!(!as_user(NOBODY - 1), "the program's mode was all that kept it");
    // The same program for another user, too: the first keeps its text.
    let second = place.copy(&path, "second");
    install::join(&path, None, None).unwrap();
    fs::copy(&path, &second).unwrap();
    mode(&path, 0o700);
    chown(&second, Some(NOBODY - 1), Some(NOBODY - 1)).unwrap();
    mode(&second, 0o750);
    install::split(&place.store, &path, None, TEXT).unwrap();
    install::split(&place.store, &second, None, TEXT).unwrap();
    assert!(as_user(NOBODY));
    assert!(place.store.verify(true, |_, _| {}).unwrap().problems.is_empty());
}

#[test]
fn a_copy_elsewhere_has_no_more_rights_than_its_user() {
    let place = Place::new();
    let path = subject(&place);
    mode(&path, 0o4755);
    if !is_root() || place.store.check_for_privileged().is_err() {
        return eprintln!("SKIP: a store of root's alone takes root");
    }
    let out = place.at("out");
    let done = install::split(&place.store, &path, Some(&out), TEXT).unwrap();
    assert_eq!(fs::metadata(&out).unwrap().mode() & 0o7777, 0o755);
    assert!(done.notes.iter().any(|note| note.contains("rights")), "{:?}", done.notes);
}
