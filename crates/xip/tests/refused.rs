//! What is refused, and what is kept: whatever goes wrong, the program is as it was; whatever goes right, it stays what it was to others.

mod sweep_support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use sweep_support::{LIBS, Outcome, Place, TEXT, command, is_root, program, run, temp_dir};
use towa_xip::elf::Elf;
use towa_xip::layout::Layout;
use towa_xip::split::AbcHead;
use towa_xip::store::{Collect, Entry, Store};
use towa_xip::{Error, install};

/// In the environment of a child that splits: the store, and the program.
const CHILD: &str = "TOWA_XIP_SPLIT";

/// A program whose split half is to be made, small, and one that nobody else works with here.
fn subject(place: &Place) -> Option<PathBuf> {
    let found = program("sort").or_else(|| program("gzip"));
    if found.is_none() {
        eprintln!("SKIP: neither sort nor gzip is here");
    }
    found.map(|found| place.copy(&found, "programs"))
}

fn version(program: &Path) -> Outcome {
    let home = program.parent().unwrap();
    run(command(program, &["--version"], home), Duration::from_secs(10)).replacing(program, "@program")
}

fn is_split(path: &Path) -> bool {
    AbcHead::find(&fs::read(path).unwrap()).is_ok()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Everything below a folder: names, permissions, contents.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let about = fs::symlink_metadata(entry.path()).unwrap();
        if about.is_dir() {
            all.extend(snapshot(&entry.path()));
        }
        let bytes = if about.is_file() { fs::read(entry.path()).unwrap() } else { Vec::new() };
        all.insert(entry.path(), (about.mode(), bytes));
    }
    all
}

/// It fails as expected, and nothing below `folder` is another afterwards.
fn refuses<T>(folder: &Path, act: impl FnOnce() -> towa_xip::Result<T>, expected: impl FnOnce(&Error) -> bool) {
    let before = snapshot(folder);
    match act() {
        Ok(_) => panic!("it was not refused"),
        Err(why) => assert!(expected(&why), "refused with {why:?}"),
    }
    let after = snapshot(folder);
    let differing: Vec<_> = before.iter().filter(|(path, was)| after.get(*path) != Some(was)).map(|(path, _)| path).collect();
    let new: Vec<_> = after.keys().filter(|path| !before.contains_key(*path)).collect();
    assert!(differing.is_empty() && new.is_empty(), "changed: {differing:?}; new: {new:?}");
}

#[test]
fn directories_that_are_no_store() {
    let dir = temp_dir();
    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter"), "dear").unwrap();
    let create = || Store::open_or_create(&foreign);
    refuses(dir.path(), create, |why| matches!(why, Error::NotUsable { .. }));
    refuses(dir.path(), || Store::open(&foreign), |why| matches!(why, Error::NoStore { .. }));
    for (marker, text) in [
        ("newer", r#"{"magic":"towa-xip-store","version":2}"#),
        ("of something else", r#"{"magic":"towa-pool","version":1}"#),
        ("damaged", "{"),
        ("empty", ""),
        ("not text", "\u{0}\u{1}"),
    ] {
        fs::write(foreign.join("store.json"), text).unwrap();
        println!("{marker}: {}", Store::open(&foreign).unwrap_err());
        refuses(dir.path(), create, |why| matches!(why, Error::NotUsable { .. }));
    }
    let long = dir.path().join("l".repeat(200)).join("o".repeat(200)).join("n".repeat(200));
    let longer = (0..10).fold(long, |path, _| path.join("g".repeat(200)));
    refuses(dir.path(), || Store::open_or_create(&longer), |why| matches!(why, Error::Wrong(_)));
}

#[test]
fn directories_that_others_can_write_to() {
    let dir = temp_dir();
    let above = dir.path().join("above");
    let store = above.join("store");
    fs::create_dir_all(&store).unwrap();
    let refused = || refuses(dir.path(), || Store::open_or_create(&store), |why| matches!(why, Error::Unsafe { .. }));
    for mode in [0o777, 0o757, 0o775, 0o1777] {
        set_mode(&store, mode);
        refused();
    }
    set_mode(&store, 0o755);
    for mode in [0o777, 0o757, 0o775] {
        set_mode(&above, mode);
        refused();
    }
    if is_root() {
        set_mode(&above, 0o755);
        chown(&above, Some(65534), None).unwrap();
        refused();
        chown(&above, Some(0), None).unwrap();
    } else {
        eprintln!("SKIP: only root can give a directory away");
    }
    set_mode(&above, 0o1777);
    Store::open_or_create(&store).expect("a sticky directory above does no harm");
}

#[test]
fn files_that_are_not_to_be_split() {
    let mut place = Place::new();
    let Some(path) = subject(&place) else { return };
    let unfit = |why: &Error| matches!(why, Error::Unfit { .. });
    set_mode(&path, 0o711);
    refuses(place.dir.path(), || install::split(&place.store, &path, None, LIBS), unfit);
    set_mode(&path, 0o755);
    let library = towa_xip::needed::libraries(&path).unwrap().pop().unwrap();
    let own = place.copy(&library, "libraries");
    let out = place.at("out");
    refuses(place.dir.path(), || install::split(&place.store, &own, Some(&out), TEXT), |why| matches!(why, Error::Wrong(_)));
    let (text, folder) = (place.at("programs/text"), place.at("programs"));
    fs::write(&text, "#!/bin/sh\n").unwrap();
    for no_program in [&text, &folder] {
        refuses(place.dir.path(), || install::split(&place.store, no_program, None, LIBS), unfit);
        refuses(
            place.dir.path(),
            || install::join(no_program, None, None),
            |why| matches!(why, Error::Unfit { .. } | Error::NotSplit { .. }),
        );
    }
    refuses(
        place.dir.path(),
        || install::split(&place.store, &place.at("absent"), None, LIBS),
        |why| matches!(why, Error::Io { .. }),
    );
    refuses(place.dir.path(), || install::join(&path, None, None), |why| matches!(why, Error::NotSplit { .. }));

    place.split_in_place(&path);
    refuses(place.dir.path(), || install::split(&place.store, &path, None, LIBS), unfit);
    refuses(place.dir.path(), || install::split(&place.store, &path, Some(&place.at("out")), LIBS), unfit);
}

#[test]
fn halves_that_were_changed() {
    let mut place = Place::new();
    let Some(path) = subject(&place) else { return };
    let original = fs::read(&path).unwrap();
    let done = place.split_in_place(&path);
    let damage = |file: &Path, at: usize, cut: Option<usize>| {
        let sound = fs::read(file).unwrap();
        let mode = fs::metadata(file).unwrap().mode();
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        bytes.truncate(cut.unwrap_or(bytes.len()));
        set_mode(file, 0o755);
        fs::write(file, bytes).unwrap();
        set_mode(file, mode);
        refuses(
            place.dir.path(),
            || install::join(&path, None, None),
            |why| matches!(why, Error::NotUsable { .. } | Error::NotSplit { .. } | Error::Io { .. }),
        );
        let problems = || place.store.verify(true, |_, _| {}).unwrap();
        let found = problems();
        // A damaged head makes it a file of which nothing is known: it is not the program that was entered any more.
        assert!(!found.problems.is_empty() || found.stale == [path.clone()], "{at:#x} {cut:?}: {found:?}");
        set_mode(file, 0o755);
        fs::write(file, &sound).unwrap();
        set_mode(file, mode);
        assert!(problems().problems.is_empty());
    };
    let (abc_len, xyz_len) = (original.len(), fs::metadata(&done.text).unwrap().len() as usize);
    let elf = Elf::read(&original).unwrap();
    let record = Layout::of(&elf, false).unwrap().record_at.unwrap() as usize;
    // Headers and tables of sections are in both halves, and those of XYZ count; data is in ABC alone.
    let data = elf.loaded().find(|segment| segment.flags & 2 != 0).unwrap().offset as usize + 8;
    for at in [record, record + 20, record + 60, record + 256 + 3, data] {
        damage(&path, at, None);
    }
    damage(&path, 0, Some(0x400));
    damage(&path, 0, Some(abc_len - 1));
    for at in [record, xyz_len - 4096, xyz_len - 4096 + 20, xyz_len - 4096 + 130, xyz_len - 3] {
        damage(&done.text, at, None);
    }
    for cut in [0, 100, 4096, xyz_len - 4096, xyz_len - 1] {
        damage(&done.text, 0, Some(cut));
    }
    fs::rename(&done.text, place.at("elsewhere")).unwrap();
    refuses(place.dir.path(), || install::join(&path, None, None), |why| matches!(why, Error::Missing { .. }));
    fs::rename(place.at("elsewhere"), &done.text).unwrap();
    install::join(&path, None, None).unwrap();
    assert!(fs::read(&path).unwrap() == original);
}

#[test]
fn names_and_links() {
    let mut place = Place::new();
    let Some(path) = subject(&place) else { return };
    let (original, whole) = (fs::read(&path).unwrap(), version(&path));

    let link = place.at("link");
    symlink(&path, &link).unwrap();
    let done = install::split(&place.store, &link, None, TEXT).unwrap();
    assert_eq!(done.path, path);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && is_split(&path));
    assert_eq!(install::join(&link, None, None).unwrap(), path);
    assert!(fs::read(&path).unwrap() == original && fs::symlink_metadata(&link).unwrap().is_symlink());

    let other = place.at("other-name");
    fs::hard_link(&path, &other).unwrap();
    let done = install::split(&place.store, &path, None, TEXT).unwrap();
    assert!(done.notes.iter().any(|note| note.contains("hard link")), "{:?}", done.notes);
    assert!(is_split(&path) && fs::read(&other).unwrap() == original);

    let strange = place.at("programs").join(OsStr::from_bytes(b"n\xffo\xfe \n'text"));
    fs::copy(&other, &strange).unwrap();
    place.split_in_place(&strange);
    assert!(is_split(&strange));
    assert_eq!(version(&strange), whole);
    let found = place.store.verify(true, |_, _| {}).unwrap();
    assert_eq!((found.programs, found.problems.len(), found.stale.len()), (2, 0, 0), "{found:?}");
    place.store.write().unwrap().collect(Collect::default()).unwrap();
    assert_eq!(version(&strange), whole);
    install::join(&strange, None, None).unwrap();
    assert!(fs::read(&strange).unwrap() == original);
    assert!(!place.store.entries().unwrap().iter().any(|entry| entry.path == strange));
}

#[test]
fn owner_permissions_times_and_attributes_are_kept() {
    let mut place = Place::new();
    let Some(found) = program("sort") else { return eprintln!("SKIP: no sort") };
    // On a disk: memory file systems have had attributes of users for a few years only.
    let disk = tempfile::tempdir().unwrap();
    set_mode(disk.path(), 0o755);
    let path = disk.path().join("sort");
    fs::copy(&found, &path).unwrap();
    let original = fs::read(&path).unwrap();
    let attributes = setxattr(&path, "user.towa", b"\0kept", XattrFlags::empty()).is_ok();
    if !attributes {
        eprintln!("SKIP: {} has no attributes of users", disk.path().display());
    }
    if is_root() {
        chown(&path, Some(65534), Some(65533)).unwrap();
    }
    let capable =
        is_root() && Command::new("setcap").arg("cap_net_raw+ep").arg(&path).status().is_ok_and(|status| status.success());
    if !capable {
        eprintln!("SKIP: no capabilities can be given to a file here");
    }
    set_mode(&path, 0o754);
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_000));
    fs::File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    let about = || {
        let metadata = fs::metadata(&path).unwrap();
        let attribute = |name| {
            let mut value = [0u8; 100];
            getxattr(&path, name, &mut value).map(|len| value[..len].to_vec()).ok()
        };
        let owner = (metadata.mode(), metadata.uid(), metadata.gid(), metadata.mtime(), metadata.mtime_nsec());
        (owner, attribute("user.towa"), attribute("security.capability"))
    };
    let before = about();
    assert_eq!((before.1.is_some(), before.2.is_some()), (attributes, capable));
    place.split_in_place(&path);
    assert!(is_split(&path));
    assert_eq!(about(), before);
    install::join(&path, None, None).unwrap();
    assert!(fs::read(&path).unwrap() == original);
    assert_eq!(about(), before);
}

#[test]
fn privileged_programs_need_a_store_of_root() {
    if !is_root() {
        return eprintln!("SKIP: privileged programs are made by root");
    }
    let place = Place::new();
    let Some(path) = subject(&place) else { return };
    for mode in [0o4755, 0o2755] {
        set_mode(&path, mode);
        chown(place.store.path(), Some(65534), None).unwrap();
        refuses(place.dir.path(), || install::split(&place.store, &path, None, TEXT), |why| matches!(why, Error::Unsafe { .. }));
        chown(place.store.path(), Some(0), None).unwrap();
        install::split(&place.store, &path, None, TEXT).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
        assert!(is_split(&path) && version(&path).is_success());
        install::join(&path, None, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
    }
}

/// The child of the test below.
#[test]
fn child_that_splits_once() {
    let Some(what) = std::env::var_os(CHILD) else { return };
    let (store, path) = (PathBuf::from(&what).join("store"), PathBuf::from(&what).join("programs/sort"));
    match Store::open_or_create(&store).and_then(|store| install::split(&store, &path, None, TEXT)) {
        Ok(_) => println!("it was split"),
        Err(Error::Busy { .. }) => println!("it was busy"),
        // Too late: the other one has done it.
        Err(Error::Unfit { why, .. }) if why.contains("split already") || why.contains("meanwhile") => println!("it was done"),
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn two_at_once_do_not_harm_it() {
    let place = Place::new();
    let Some(found) = program("sort") else { return eprintln!("SKIP: no sort") };
    let path = place.copy(&found, "programs");
    let (original, whole) = (fs::read(&path).unwrap(), version(&path));
    let mut seen = BTreeMap::<String, usize>::new();
    for round in 0..15 {
        let start = |_| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "child_that_splits_once", "--nocapture"]).env(CHILD, place.dir.path());
            child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let children: Vec<_> = (0..2).map(start).collect();
        let mut split = 0;
        for child in children {
            let said = child.wait_with_output().unwrap();
            let out = String::from_utf8_lossy(&said.stdout);
            assert!(said.status.success(), "round {round}: {out} {}", String::from_utf8_lossy(&said.stderr));
            let what = out.lines().find_map(|line| line.strip_prefix("it was ")).expect("what became of it");
            split += usize::from(what == "split");
            *seen.entry(what.to_owned()).or_default() += 1;
        }
        assert!(split == 1 && is_split(&path), "round {round}: {split}");
        assert_eq!(version(&path), whole);
        install::join(&path, None, None).unwrap();
        assert!(fs::read(&path).unwrap() == original);
    }
    println!("{seen:?}");
}

#[test]
fn who_waits_for_the_store_splits_what_is_there_then() {
    let place = Place::new();
    let Some(path) = subject(&place) else { return };
    let newer = [fs::read(&path).unwrap(), b"newer".to_vec()].concat();
    let copy = place.at("programs/newer");
    fs::write(&copy, &newer).unwrap();
    set_mode(&copy, 0o755);
    let writing = place.store.write().unwrap();
    std::thread::scope(|scope| {
        let splitting = scope.spawn(|| install::split(&place.store, &path, None, TEXT));
        std::thread::sleep(Duration::from_millis(300));
        fs::rename(&copy, &path).unwrap();
        drop(writing);
        splitting.join().unwrap().unwrap();
    });
    assert!(is_split(&path));
    install::join(&path, None, None).unwrap();
    assert!(fs::read(&path).unwrap() == newer);
    assert_eq!(fs::read_dir(place.at("programs")).unwrap().count(), 1);
}

#[test]
fn a_split_program_that_was_not_replaced_keeps_its_text() {
    let mut place = Place::new();
    let Some(path) = subject(&place) else { return };
    let whole = version(&path);
    let done = place.split_in_place(&path);
    // `split -o` of another program over it was stopped after its entry.
    let other = Entry::new(&path, [7; 32], done.kind, None);
    place.store.write().unwrap().enter(&other).unwrap();
    let collected = place.store.write().unwrap().collect(Collect::default()).unwrap();
    assert!(collected.texts.is_empty(), "{collected:?}");
    assert_eq!(version(&path), whole);
    assert!(place.store.verify(true, |_, _| {}).unwrap().problems.is_empty());
}

/// What a file names as its ld.so is run to list its libraries; not if another user could have put it there.
#[test]
fn a_strangers_interpreter_is_not_run() {
    if !is_root() {
        return eprintln!("SKIP: giving a file to another user takes root");
    }
    let place = Place::new();
    let program = place.copy(&program("gzip").expect("gzip is everywhere"), "given");
    let mut bytes = fs::read(&program).unwrap();
    let name = b"/lib64/ld-linux-x86-64.so.2\0";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("the name of its ld.so");
    let (folder, proof) = (Path::new("/dev/shm/.towa-ld"), place.at("proof"));
    fs::create_dir_all(folder).unwrap();
    let stranger = folder.join("ld-abc.so");
    fs::write(&stranger, format!("#!/bin/sh\ntouch {}\n", proof.display())).unwrap();
    fs::set_permissions(&stranger, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(folder, Some(65534), None).unwrap();
    let path = stranger.to_str().unwrap().as_bytes();
    bytes[at..at + name.len()].fill(0);
    bytes[at..at + path.len()].copy_from_slice(path);
    fs::write(&program, &bytes).unwrap();
    let listed = towa_xip::needed::libraries(&program);
    fs::remove_dir_all(folder).unwrap();
    assert!(matches!(listed, Err(towa_xip::Error::Unsafe { .. })), "{listed:?}");
    assert!(!proof.exists(), "it was run");
}
