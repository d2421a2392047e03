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

/// A log of one commit: pages, each with its content.
fn commit(uuid: &[u8], pages: &[(u32, &[u8])]) -> Vec<u8> {
    let mut log = b"TOWAREDO".to_vec();
    [1u32, 4096].iter().for_each(|it| log.extend(it.to_le_bytes()));
    log.extend(uuid);
    [9, pages.len() as u64].iter().for_each(|it| log.extend(it.to_le_bytes()));
    let mut summed = log.clone();
    let numbers: Vec<u8> = pages.iter().flat_map(|(number, _)| number.to_le_bytes()).collect();
    let content: Vec<u8> = pages.iter().flat_map(|(_, content)| content.iter().copied()).collect();
    [&numbers, &content].iter().for_each(|it| summed.extend(*it));
    log.extend(u64::from(crc32c::crc32c(&summed)).to_le_bytes());
    log.resize(64, 0);
    log.extend(numbers);
    log.resize(log.len().next_multiple_of(4096), 0);
    log.extend(content);
    log
}

#[test]
fn the_log_of_commits_is_read_with_its_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy(dir.path(), "graph.towa");
    let log = dir.path().join("orders.towa.log");
    let whole = fs::read(&path).unwrap();
    let said = |expected: &str, problem: bool| {
        let before = (state(&path), fs::read(&log).unwrap());
        let out = towa(&["verify", "--json", s(&path)]);
        let report = json(&text(&out.stdout));
        assert_eq!((out.status.code(), &report["sound"]), (Some(if problem { 3 } else { 0 }), &(!problem).into()), "{report}");
        assert_eq!((&report["commit_log"]["state"], &report["commit_log"]["path"]), (&expected.into(), &s(&log).into()));
        assert_eq!((state(&path), fs::read(&log).unwrap()), before);
        text(&towa(&["verify", s(&path)]).stdout)
    };
    assert!(json(&passes(&["verify", "--json", s(&path)]))["commit_log"].is_null());
    fs::write(&log, "").unwrap();
    said("empty", false);
    fs::write(&log, [0; 8192]).unwrap();
    assert!(said("empty", false).contains("nothing in it that is not in the pool"));

    // Half of a commit's pages got into the file: what counts is in the log.
    let page = |number: usize| (number as u32, &whole[number * 4096..][..4096]);
    let ours = commit(&whole[16..32], &[page(2), page(20)]);
    fs::write(&log, &ours).unwrap();
    edit(&path, 2 * 4096, &[0; 4096]);
    let words = said("whole", false);
    assert!(words.contains("number 9, of 2 pages") && words.contains("22 replicas of 10 classes"), "{words}");
    // And what the log brings is checked.
    let mut bad = page(2).1.to_vec();
    bad[8] = 0;
    fs::write(&log, commit(&whole[16..32], &[(2, &bad)])).unwrap();
    assert!(said("whole", true).contains("mark number of recovery is 0"));
    fs::write(&path, &whole).unwrap();

    for (at, len) in [(5000, ours.len()), (33, ours.len()), (0, 60), (0, 8191)] {
        let mut torn = ours.clone();
        torn[at.max(1) + 7] ^= u8::from(at > 0);
        torn.truncate(len);
        fs::write(&log, torn).unwrap();
        assert!(said("torn", false).contains("counts for nothing"));
    }
    fs::write(&log, commit(&[7; 16], &[page(2)])).unwrap();
    assert!(said("other_pool", true).contains("not to be opened beside this log"));
    assert!(fails(3, &["verify", s(&path)]).contains("bring that pool's file back"));
    // In the way only of a pool that commits.
    fs::write(&log, "somebody's notes").unwrap();
    said("foreign", false);
    fs::copy(vector("empty.towa"), &path).unwrap();
    said("foreign", true);
    assert!(fails(3, &["verify", s(&path)]).contains("orders.towa.log: in the way"));
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

/// The Java door locks all of its file as `FileChannel.lock()` does.
#[test]
fn a_file_in_use_is_described_and_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let path = copy(dir.path(), "graph.towa");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: a structure of numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    // SAFETY: the descriptor is open, the structure ours.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) }, 0);
    let holder = format!("in use by process {}", std::process::id());
    let said = fails(4, &["verify", s(&path)]);
    assert!(said.contains(&holder), "{said}");
    let report = json(&text(&towa(&["verify", "--json", s(&path)]).stdout));
    assert!(report["sound"].is_null() && report["exit_status"] == 4);
    let info = json(&passes(&["info", "--json", s(&path)]));
    assert_eq!((&info["pool"]["in_use"], &info["pool"]["owner_pid"]), (&true.into(), &std::process::id().into()));
    assert_eq!(info["pool"]["classes"], 10);
    assert!(passes(&["info", s(&path)]).contains(&holder));
    drop(file);
    passes(&["verify", s(&path)]);
}
