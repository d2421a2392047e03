//! info and verify over the Java door's file: sound, damaged, newer, unfinished, in use.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{fails, json, passes, s, text, towa};

fn vector(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/java-pool").join(name)
}

/// A copy of a vector, to be changed.
fn copy(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join("orders.towa");
    fs::copy(vector(name), &path).unwrap();
    path
}

fn edit(path: &Path, at: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn state(path: &Path) -> (Vec<u8>, i64, i64) {
    let meta = fs::metadata(path).unwrap();
    (fs::read(path).unwrap(), meta.mtime(), meta.mtime_nsec())
}

/// Must be refused by both, in JSON too, and stay as it was. Gives what verify said.
fn refused(code: i32, path: &Path) -> String {
    let before = state(path);
    let said = fails(code, &["verify", s(path)]);
    let out = towa(&["verify", "--json", s(path)]);
    let report = json(&text(&out.stdout));
    assert_eq!((out.status.code(), &report["exit_status"], &report["pool"]), (Some(code), &code.into(), &s(path).into()));
    assert_eq!(report["sound"], if code == 3 { Value::Bool(false) } else { Value::Null });
    assert!(said.contains(report["problem"].as_str().unwrap()), "{said}");
    assert_eq!(state(path), before);
    said
}

#[test]
fn sound_files_are_described_and_verified() {
    for name in ["empty", "graph", "crashed"] {
        let path = vector(name).with_extension("towa");
        let before = state(&path);
        let expected = json(&fs::read_to_string(vector(name).with_extension("json")).unwrap());
        let mut report = json(&passes(&["verify", "--json", s(&path)]));
        assert_eq!((&report["sound"], &report["pool"]), (&Value::Bool(true), &s(&path).into()));
        ["sound", "pool"].iter().for_each(|it| drop(report.as_object_mut().unwrap().remove(*it)));
        assert_eq!(report, expected, "{name}");
        let info = json(&passes(&["info", "--json", s(&path)]));
        assert!(info["medium"]["kind"].is_string() && info["pool_problem"].is_null());
        assert_eq!((&info["pool"]["door"], &info["pool"]["in_use"]), (&"java".into(), &false.into()));
        for fact in ["version", "uuid", "created_unix_s", "durability", "capacity", "used", "classes", "roots", "clean"] {
            assert_eq!(info["pool"][fact], expected[fact], "{name}: {fact}");
        }
        assert_eq!(state(&path), before);
    }
    let said = passes(&["verify", s(&vector("graph.towa"))]);
    for part in ["graph.towa: sound", "closed cleanly", "22 replicas of 10 classes", "5  280 bytes  java.util.HashMap$Node"] {
        assert!(said.split_whitespace().collect::<Vec<_>>().join(" ").contains(&part.replace("  ", " ")), "{part}: {said}");
    }
    let said = passes(&["info", s(&vector("crashed.towa"))]);
    for part in ["door java", "not closed cleanly", "process: ", "demo.Shop.history: java.util.List", "demo.Shop.primes: long[]"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(passes(&["info", s(&vector("graph.towa"))]).contains("demo.Shop.nothing: java.lang.Object, null"));
}

#[test]
fn what_is_wrong_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let graph = || copy(dir.path(), "graph.towa");
    fails(5, &["verify", s(&dir.path().join("nowhere.towa"))]);
    let path = graph();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(90_000).unwrap();
    assert!(refused(3, &path).contains("truncated: it has 90000 bytes"));
    let path = graph();
    [0, 4096].iter().for_each(|slot| edit(&path, slot + 8, &9u32.to_le_bytes()));
    assert!(refused(3, &path).contains("use a newer Towa"));
    // info says the same, and shows the rest.
    let out = towa(&["info", "--json", s(&path)]);
    let info = json(&text(&out.stdout));
    assert!(out.status.code() == Some(3) && info["pool"].is_null() && info["medium"]["kind"].is_string());
    assert!(info["pool_problem"].as_str().unwrap().contains("use a newer Towa"));
    let path = graph();
    edit(&path, 8192 + 24, &8u64.to_le_bytes());
    assert!(refused(3, &path).contains("damaged at 0x2018: head of classes"));
    assert!(fails(3, &["info", s(&path)]).contains("damaged at 0x2018"));
    // A file that is none is no pool to info either.
    fs::write(&path, "hello").unwrap();
    assert!(refused(3, &path).contains("not a Towa pool"));
    assert!(json(&passes(&["info", "--json", s(&path)]))["pool"].is_null());
    fs::write(&path, "").unwrap();
    assert!(refused(3, &path).contains("it is empty"));
}

/// A log of the opening with stamp 77 of a pool that was at commit 8, with commit 9: pages, each with its content.
fn commit(uuid: &[u8], pages: &[(u32, &[u8])]) -> Vec<u8> {
    let mut log = b"TOWAREDO".to_vec();
    [1u32, 4096].iter().for_each(|it| log.extend(it.to_le_bytes()));
    log.extend(uuid);
    [77u64, 8].iter().for_each(|it| log.extend(it.to_le_bytes()));
    log.extend(u64::from(crc32c::crc32c(&log)).to_le_bytes());
    log.resize(4096, 0);
    let mut head = b"TOWAPAGE".to_vec();
    [77, 9, pages.len() as u64].iter().for_each(|it| head.extend(it.to_le_bytes()));
    let mut summed = head.clone();
    let numbers: Vec<u8> = pages.iter().flat_map(|(number, _)| number.to_le_bytes()).collect();
    let content: Vec<u8> = pages.iter().flat_map(|(_, content)| content.iter().copied()).collect();
    [&numbers, &content].iter().for_each(|it| summed.extend(*it));
    head.extend(u64::from(crc32c::crc32c(&summed)).to_le_bytes());
    head.resize(64, 0);
    log.extend(head);
    log.extend(numbers);
    log.resize(log.len().next_multiple_of(4096), 0);
    log.extend(content);
    log
}

/// Makes the pool one that was open for commits with this stamp, and was not closed; the file is at these commits.
fn uncommitted(path: &Path, stamp: u64, done: u64, begun: u64) {
    let mut slot = fs::read(path).unwrap()[4096..4352].to_vec();
    slot[68..76].copy_from_slice(&[0, 0, 0, 0, 2, 0, 0, 0]);
    slot[76..80].copy_from_slice(&4242u32.to_le_bytes());
    slot[80..88].copy_from_slice(&stamp.to_le_bytes());
    let sum = u64::from(crc32c::crc32c(&slot[..248]));
    slot[248..].copy_from_slice(&sum.to_le_bytes());
    let capacity = u64::from_le_bytes(slot[40..48].try_into().unwrap());
    [(4096, &slot[..]), (512, &done.to_le_bytes()), (capacity, &begun.to_le_bytes())]
        .iter()
        .for_each(|(at, it)| edit(path, *at, it));
}

/// What verify says of pool and log: the log's state, and whether all is well. Nothing is changed.
fn log_state(path: &Path) -> (Value, bool) {
    let log = path.with_extension("towa.log");
    let state = || (fs::metadata(path).unwrap().modified().unwrap(), fs::read(&log).ok());
    let before = state();
    let out = towa(&["verify", "--json", s(path)]);
    let report = json(&text(&out.stdout));
    assert!([Some(0), Some(3)].contains(&out.status.code()), "{report}");
    assert_eq!(state(), before);
    (report["commit_log"]["state"].clone(), out.status.code() == Some(0))
}

#[test]
fn the_log_of_commits_is_read_with_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy(dir.path(), "graph.towa");
    let log = dir.path().join("orders.towa.log");
    let whole = fs::read(&path).unwrap();
    let page = |number: usize| (number as u32, &whole[number * 4096..][..4096]);
    let ours = commit(&whole[16..32], &[page(2), page(20)]);
    let said = || text(&towa(&["verify", s(&path)]).stdout);

    // Half of a commit's pages got into the file: what counts is in the log.
    uncommitted(&path, 77, 8, 9);
    fs::write(&log, &ours).unwrap();
    edit(&path, 2 * 4096, &[0; 4096]);
    assert_eq!(log_state(&path), ("whole".into(), true));
    let words = said();
    assert!(words.contains("number 9, of 2 pages") && words.contains("22 replicas of 10 classes"), "{words}");
    // And what the log brings is checked.
    let mut bad = page(2).1.to_vec();
    bad[8] = 0;
    fs::write(&log, commit(&whole[16..32], &[(2, &bad)])).unwrap();
    assert_eq!(log_state(&path), ("whole".into(), false));
    assert!(said().contains("mark number of recovery is 0"));

    // Cut short: the file is at the commit before.
    edit(&path, 2 * 4096, page(2).1);
    uncommitted(&path, 77, 8, 8);
    for (at, len) in [(9000, ours.len()), (4096 + 32, ours.len()), (0, 4200), (0, 12000)] {
        let mut torn = ours.clone();
        torn[at.max(1) + 7] ^= u8::from(at > 0);
        torn.truncate(len);
        fs::write(&log, torn).unwrap();
        assert_eq!(log_state(&path), ("torn".into(), true), "{at} {len}");
    }
    assert!(said().contains("counts for nothing"));
}

/// Of two moments, or the log is gone: refused, as the Java door refuses it.
#[test]
fn a_log_that_does_not_go_with_the_pool_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy(dir.path(), "graph.towa");
    let log = dir.path().join("orders.towa.log");
    let whole = fs::read(&path).unwrap();
    let ours = commit(&whole[16..32], &[(2, &whole[2 * 4096..][..4096])]);
    let refused = |why: &str| {
        let said = fails(3, &["verify", s(&path)]);
        assert!(said.contains(why) && said.contains("nothing was changed"), "{said}");
    };
    uncommitted(&path, 77, 9, 9);
    refused("its log");
    fs::write(&log, "").unwrap();
    refused("its log");
    fs::write(&log, &ours).unwrap();
    assert_eq!(log_state(&path), ("whole".into(), true));
    for (done, begun) in [(7, 9), (9, 10), (7, 7), (10, 10), (0, 0), (9, 0)] {
        uncommitted(&path, 77, done, begun);
        refused("are not of one moment");
    }
    // The log's commit is not whole, and the file has a part of it.
    uncommitted(&path, 77, 8, 9);
    let mut torn = ours.clone();
    *torn.last_mut().unwrap() ^= 1;
    fs::write(&log, torn).unwrap();
    refused("are not of one moment");
    let mut gone = ours.clone();
    gone[4096..4160].fill(0);
    uncommitted(&path, 77, 9, 9);
    fs::write(&log, gone).unwrap();
    refused("are not of one moment");
    fs::write(&log, &ours).unwrap();
    uncommitted(&path, 78, 9, 9);
    refused("is of another opening");
    // A copy that was made when it was closed, beside a log of later.
    fs::write(&path, &whole).unwrap();
    refused("has a commit of another moment");
    fs::remove_file(&log).unwrap();
    edit(&path, 512, &[1]);
    refused("of two moments");
    fs::write(&path, &whole).unwrap();

    fs::write(&log, commit(&[7; 16], &[(2, &whole[..4096])])).unwrap();
    assert_eq!(log_state(&path), ("other_pool".into(), false));
    assert!(fails(3, &["verify", s(&path)]).contains("bring that pool's file back"));
    // In the way only of a pool that commits.
    fs::write(&log, "somebody's notes").unwrap();
    assert_eq!(log_state(&path), ("foreign".into(), true));
    fs::copy(vector("empty.towa"), &path).unwrap();
    assert_eq!(log_state(&path), ("foreign".into(), false));
    assert!(fails(3, &["verify", s(&path)]).contains("orders.towa.log: in the way"));
    for nothing in [&[][..], &[0; 8192]] {
        fs::write(&log, nothing).unwrap();
        assert_eq!(log_state(&path), ("empty".into(), true));
    }
    assert!(text(&towa(&["verify", s(&path)]).stdout).contains("nothing in it that is not in the pool"));
}

#[test]
fn info_names_the_jdk() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("jdk");
    fs::create_dir_all(home.join("bin")).unwrap();
    fs::write(home.join("bin/javac"), "").unwrap();
    fs::write(home.join("release"), "JAVA_VERSION=\"99.0.1\"\n").unwrap();
    let info = |json: &[&str]| {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_towa"))
            .arg("info")
            .args(json)
            .arg(dir.path())
            .env("JAVA_HOME", &home)
            .output();
        text(&out.unwrap().stdout)
    };
    let report = json(&info(&["--json"]));
    assert_eq!((&report["jdk"]["version"], &report["jdk"]["home"]), (&99.into(), &s(&home).into()));
    let door = report["doors"].as_array().unwrap().iter().find(|door| door["door"] == "java").expect("a door");
    assert_eq!(
        (&door["process_crash"], door["power_loss"].is_null()),
        (&"strict".into(), report["medium"]["guarantee"] == "process-safe")
    );
    let said = info(&[]);
    assert!(said.contains("door java") && said.contains(&format!("version 99 in {}", s(&home))), "{said}");
}

#[test]
fn problems_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy(dir.path(), "crashed.towa");
    // The replica's class, and the mark number of recovery.
    edit(&path, 8192 + 8, &1u64.to_le_bytes());
    let said = refused(3, &path);
    assert!(said.contains("damaged: 2 problems, the first at ") && said.contains("restore a copy"), "{said}");
    let out = towa(&["verify", s(&path)]);
    let listed = text(&out.stdout);
    assert!(listed.starts_with(&format!("{}: damaged\n", s(&path))) && listed.matches("  problem  ").count() == 2, "{listed}");
    let report = json(&text(&towa(&["verify", "--json", s(&path)]).stdout));
    assert_eq!((&report["problems_found"], report["problems"].as_array().unwrap().len()), (&2.into(), 2));
    assert!(report["problems"][0]["at"].is_u64());
    passes(&["info", s(&path)]);
}

/// As the Java door does.
fn lock(file: &fs::File) {
    // SAFETY: a structure of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    // SAFETY: the descriptor is open, the structure ours.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
}

/// The Java door locks the open file, of which the kernel does not say who has it: the superblock does.
#[test]
fn a_file_in_use_is_described_and_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy(dir.path(), "graph.towa");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    uncommitted(&path, 0, 0, 0);
    lock(&file);
    let holder = "in use by process 4242".to_string();
    let said = fails(4, &["verify", s(&path)]);
    assert!(said.contains(&holder), "{said}");
    let report = json(&text(&towa(&["verify", "--json", s(&path)]).stdout));
    assert!(report["sound"].is_null() && report["exit_status"] == 4);
    let info = json(&passes(&["info", "--json", s(&path)]));
    assert_eq!((&info["pool"]["in_use"], &info["pool"]["owner_pid"]), (&true.into(), &4242.into()));
    assert_eq!(info["pool"]["classes"], 10);
    assert!(passes(&["info", s(&path)]).contains(&holder));
    // Another open file of this process is closed: that takes no lock away.
    drop(fs::File::open(&path).unwrap());
    fails(4, &["verify", s(&path)]);
    drop(file);
    fs::copy(vector("graph.towa"), &path).unwrap();
    passes(&["verify", s(&path)]);
}

/// What `towa backup --json` says of a copy that it made; the copy is sound and closed.
fn backed_up(path: &Path, dest: &Path) -> Value {
    let report = json(&passes(&["backup", "--json", s(path), s(dest)]));
    let copy = json(&passes(&["verify", "--json", s(dest)]));
    assert_eq!((&copy["sound"], &copy["clean"], &copy["commit_log"]), (&true.into(), &true.into(), &Value::Null));
    assert_eq!(fs::metadata(dest).unwrap().mode() & 0o777, 0o600);
    report
}

#[test]
fn a_pool_that_nothing_has_open_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("copy.towa");
    for name in ["empty.towa", "graph.towa", "crashed.towa"] {
        let path = copy(dir.path(), name);
        let before = state(&path);
        let report = backed_up(&path, &dest);
        assert_eq!((&report["was_open"], &report["rolled_back"]), (&false.into(), &false.into()), "{name}");
        let [of_pool, of_copy] = [&path, &dest].map(|it| json(&passes(&["verify", "--json", s(it)])));
        for fact in ["uuid", "created_unix_s", "durability", "capacity", "used", "replicas", "bytes", "roots", "by_class"] {
            assert_eq!(of_pool[fact], of_copy[fact], "{name}: {fact}");
        }
        assert_eq!(state(&path), before);
        let taken = state(&dest);
        assert!(fails(1, &["backup", s(&path), s(&dest)]).contains("is there already"));
        assert_eq!(state(&dest), taken);
        fs::remove_file(&dest).unwrap();
        edit(&path, 8192 + 8, &(1u64 << 40).to_le_bytes());
        assert!(fails(3, &["backup", s(&path), s(&dest)]).contains("damaged, so it is not copied"));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// A commit that is in the log, and not wholly in the file, is in the copy, which needs no log.
#[test]
fn a_pool_that_was_left_amid_a_commit_is_copied_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, dest) = (copy(dir.path(), "graph.towa"), dir.path().join("copy.towa"));
    let whole = fs::read(&path).unwrap();
    let page = |number: usize| (number as u32, &whole[number * 4096..][..4096]);
    uncommitted(&path, 77, 8, 9);
    let log = commit(&whole[16..32], &[page(2), page(20)]);
    fs::write(dir.path().join("orders.towa.log"), &log).unwrap();
    edit(&path, 2 * 4096, &[0; 4096]);
    edit(&path, 20 * 4096, &[0; 4096]);
    backed_up(&path, &dest);
    let mut used = vec![0; 90_000];
    fs::File::open(&dest).unwrap().read_exact_at(&mut used, 0).unwrap();
    assert_eq!(used[8192..], whole[8192..90_000]);
    // A log of the pool that comes to lie beside the copy is not taken for its own.
    fs::write(dir.path().join("copy.towa.log"), &log).unwrap();
    assert!(fails(3, &["verify", s(&dest)]).contains("has a commit of another moment"));
}

/// Whatever is or is not beside the pool: the refusal says who has it, why there is no copy, and what to do.
#[test]
fn a_pool_whose_program_cannot_be_asked_is_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (path, dest) = (copy(dir.path(), "graph.towa"), dir.path().join("copy.towa"));
    let socket = dir.path().join("orders.towa.sock");
    uncommitted(&path, 0, 0, 0);
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    lock(&file);
    let refusal = |code| {
        let said = fails(code, &["backup", s(&path), s(&dest)]);
        assert!(said.contains(s(&path)) && !dest.exists(), "{said}");
        said
    };
    let said = refusal(4);
    for part in ["in use by process 4242", "orders.towa.sock: is not there", "close the pool, then copy it"] {
        assert!(said.contains(part), "{said}");
    }
    // A program of another kind answers, or hangs up.
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let answers = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut stream, b"220 mail ESMTP\r\n0123456789").unwrap();
        let _ = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
    });
    assert!(refusal(1).contains("no copy was made; is its towa.jar of this release?"));
    answers.join().unwrap();
    assert!(refusal(4).contains("was left by an earlier program"));
    drop(file);
    fs::copy(vector("graph.towa"), &path).unwrap();
    assert_eq!(backed_up(&path, &dest)["was_open"], false);
}
