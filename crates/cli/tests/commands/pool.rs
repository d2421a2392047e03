//! verify, recover and info over pools that are missing, damaged, foreign, newer, busy or forbidden.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::{command, copy_program, fails, is_root, json, passes, s, text, towa};

/// A sound pool with some data, made once for each test.
fn pool(dir: &Path) -> PathBuf {
    let pool = dir.join("pool");
    passes(&["vm-load", s(&pool), "--transactions", "500"]);
    pool
}

/// Everything there is to know of a directory: names, lengths, content, times, modes.
fn snapshot(dir: &Path) -> BTreeMap<String, (u64, i64, i64, u32, u64)> {
    let facts = |path: &Path| {
        let meta = fs::symlink_metadata(path).unwrap();
        let sum = match meta.is_file() {
            true => fs::read(path)
                .unwrap()
                .chunks(8)
                .fold(0u64, |h, c| c.iter().fold(h, |h, b| h.rotate_left(7) ^ u64::from(*b)).wrapping_mul(31)),
            false => 0,
        };
        (meta.len(), meta.mtime(), meta.mtime_nsec(), meta.mode(), sum)
    };
    let mut all = BTreeMap::from([(".".to_owned(), facts(dir))]);
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        all.insert(entry.file_name().into_string().unwrap(), facts(&entry.path()));
    }
    all
}

/// `towa COMMAND pool` must refuse with `code`, in JSON too, and leave all as it was. Gives the message.
fn refused(code: i32, command: &str, pool: &Path) -> String {
    let before = snapshot(pool);
    let said = fails(code, &[command, s(pool)]);
    let out = towa(&[command, "--json", s(pool)]);
    assert_eq!(out.status.code(), Some(code));
    let report = json(&text(&out.stdout));
    assert_eq!((report["pool"].as_str(), report["exit_status"].as_i64()), (pool.to_str(), Some(i64::from(code))));
    assert!(said.contains(report["problem"].as_str().unwrap()), "{said}");
    if command == "verify" {
        assert_eq!(report["sound"].as_bool(), (code == 3).then_some(false));
    }
    assert_eq!(snapshot(pool), before, "{command} changed what it refused");
    said
}

#[test]
fn verify_says_sound_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let before = snapshot(&pool);
    let report = json(&passes(&["verify", "--json", s(&pool)]));
    assert_eq!((report["sound"].as_bool(), report["clean"].as_bool()), (Some(true), Some(true)));
    assert_eq!(report["roots"][0], "vm");
    assert!(passes(&["verify", s(&pool)]).contains("sound"));
    let info = json(&passes(&["info", "--json", s(&pool)]));
    assert_eq!(info["pool"]["uuid"], report["uuid"]);
    assert_eq!(info["pool"]["newest_epoch"], report["epoch"]);
    assert!(info["pool"]["owner_pid"].is_null());
    assert_eq!(snapshot(&pool), before);
}

#[test]
fn a_crash_is_verified_as_it_is_and_recovered_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    for medium in ["ram", "file"] {
        let pool = dir.path().join(medium);
        let mut child =
            crate::command(&["vm-load", s(&pool), "--medium", medium]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let something_is_durable = |line: std::io::Result<String>| line.unwrap().strip_prefix("ACK ").is_some_and(|n| n != "0");
        assert!(said.any(something_is_durable));
        std::thread::sleep(std::time::Duration::from_millis(200));
        child.kill().unwrap();
        child.wait().unwrap();
        let before = snapshot(&pool);
        let crashed = json(&passes(&["verify", "--json", "--medium", medium, s(&pool)]));
        assert_eq!(crashed["clean"], false);
        assert_eq!(snapshot(&pool), before);
        let recovered = json(&passes(&["recover", "--json", "--medium", medium, s(&pool)]));
        assert_eq!((&recovered["epoch"], &recovered["was_clean"]), (&crashed["epoch"], &false.into()));
        assert_eq!(recovered["epochs_replayed"], crashed["epochs_to_replay"]);
        let after = json(&passes(&["verify", "--json", "--medium", medium, s(&pool)]));
        assert_eq!((&after["clean"], &after["epochs_to_replay"], &after["epoch"]), (&true.into(), &0.into(), &crashed["epoch"]));
        passes(&["vm-check", s(&pool), "--medium", medium]);
        assert!(passes(&["recover", s(&pool), "--medium", medium]).contains("nothing to recover"));
    }
}

/// An owner that is killed leaves the socket for its separate checkpointer: whoever opens the pool next removes it, and not a look.
#[test]
fn verify_leaves_the_names_that_a_killed_owner_left() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let mut load = command(&["tx-load", "--separate", "--least", s(&pool)]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(load.stdout.take().unwrap()).read_line(&mut line).unwrap();
    load.kill().unwrap();
    load.wait().unwrap();
    let before = snapshot(&pool);
    assert!(before.contains_key("checkpointer"), "{line}: {before:?}");
    assert!(passes(&["verify", s(&pool)]).contains("sound"));
    assert_eq!(snapshot(&pool), before);
    passes(&["recover", s(&pool)]);
    assert!(!snapshot(&pool).contains_key("checkpointer"));
}

#[test]
fn what_is_not_there_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nowhere");
    for command in ["verify", "recover"] {
        fails(5, &[command, s(&nowhere)]);
        assert!(!nowhere.exists());
        refused(5, command, dir.path());
        let file = dir.path().join("file");
        fs::write(&file, "hello").unwrap();
        match command {
            // It may be a pool of the Java door.
            "verify" => assert!(fails(3, &[command, s(&file)]).contains("not a Towa pool")),
            _ => assert!(fails(1, &[command, s(&file)]).contains("not a directory")),
        }
        fs::remove_file(&file).unwrap();
    }
    // Creation cut short: its mark, and nothing in it yet.
    fs::write(dir.path().join("superblock.new"), [0; 8192]).unwrap();
    assert!(refused(5, "verify", dir.path()).contains("interrupted"));
    // Somebody's own file.
    fs::remove_file(dir.path().join("superblock.new")).unwrap();
    fs::write(dir.path().join("image"), "a picture").unwrap();
    refused(3, "recover", dir.path());
}

/// What somebody has put there instead of a file must not be waited for.
#[test]
fn a_fifo_is_waited_for_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    for name in ["lock", "serve.address"] {
        let _ = fs::remove_file(pool.join(name));
        let fifo = std::ffi::CString::new(pool.join(name).as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is NUL-terminated.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        passes(&["info", s(&pool)]);
        fails(8, &["stats", s(&pool)]);
    }
}

#[test]
fn garbage_is_foreign() {
    let dir = tempfile::tempdir().unwrap();
    for content in [vec![b'x'; 9000], vec![0; 8192], b"#!/bin/sh\n".repeat(1000)] {
        fs::write(dir.path().join("superblock"), content).unwrap();
        for command in ["verify", "recover"] {
            assert!(refused(3, command, dir.path()).contains("not a Towa pool"));
        }
        let out = towa(&["info", "--json", s(dir.path())]);
        assert_eq!(out.status.code(), Some(3));
        let info = json(&text(&out.stdout));
        assert!(info["medium"]["kind"].is_string() && info["pool"].is_null());
        assert!(info["pool_problem"].as_str().unwrap().contains("not a Towa pool"));
    }
}

#[test]
fn a_newer_pool_is_left_to_a_newer_program() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let superblock = fs::OpenOptions::new().write(true).open(pool.join("superblock")).unwrap();
    for slot in [0, 4096] {
        superblock.write_all_at(&99u32.to_le_bytes(), slot + 8).unwrap();
    }
    for command in ["verify", "recover"] {
        assert!(refused(3, command, &pool).contains("newer Towa"));
    }
}

#[test]
fn truncated_and_flipped_files_are_damage() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let original: Vec<(PathBuf, Vec<u8>)> =
        ["superblock", "image", "log"].map(|name| (pool.join(name), fs::read(pool.join(name)).unwrap())).into();
    for (path, bytes) in &original {
        for len in [0, 100, bytes.len() - 4096, bytes.len() - 1] {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len as u64).unwrap();
            for command in ["verify", "recover"] {
                refused(3, command, &pool);
            }
            if path.ends_with("image") {
                let out = towa(&["info", "--json", s(&pool)]);
                assert_eq!((out.status.code(), json(&text(&out.stdout))["pool_problem"].is_string()), (Some(3), true));
            }
            fs::write(path, bytes).unwrap();
        }
        let missing = pool.join("elsewhere");
        fs::rename(path, &missing).unwrap();
        let code = towa(&["verify", s(&pool)]).status.code();
        assert!(matches!(code, Some(3 | 5)), "verify without {}: {code:?}", path.display());
        if !path.ends_with("superblock") {
            assert!(fails(3, &["info", s(&pool)]).contains("is missing"));
        }
        fs::rename(&missing, path).unwrap();
    }
    // A header of the allocator in the image: the second line of its table, after the roots.
    let image = fs::OpenOptions::new().write(true).read(true).open(pool.join("image")).unwrap();
    let mut line = [0; 64];
    image.read_exact_at(&mut line, 128 << 10).unwrap();
    assert_ne!(line, [0; 64], "the table of chunks begins behind the roots");
    line[20] ^= 4;
    image.write_all_at(&line, 128 << 10).unwrap();
    assert!(refused(3, "verify", &pool).contains("damaged"));
}

#[test]
fn the_forbidden_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    let Some(nobody) = Nobody::new(dir.path()) else { return };
    for (path, mode) in [(&pool, 0o700), (&dir.path().to_owned(), 0o700)] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for command in ["verify", "recover", "stats", "info"] {
            // What media says of a path below a directory that it may not look into is its own business.
            if path == dir.path() && command != "stats" {
                continue;
            }
            for json_too in [&[][..], &["--json"]] {
                let out = nobody.towa(&[&[command, s(&pool)], json_too].concat());
                let said = text(&out.stderr);
                assert_eq!(out.status.code(), Some(1), "{command} {json_too:?}: {said}");
                assert!(said.contains("Permission denied"), "{command}: {said}");
                if !json_too.is_empty() {
                    json(&text(&out.stdout));
                }
            }
        }
    }
}

/// Runs the program as somebody who owns nothing.
struct Nobody(PathBuf);

impl Nobody {
    /// `None` where that cannot be tried.
    fn new(dir: &Path) -> Option<Nobody> {
        let copy = dir.with_extension("towa");
        if !is_root() || !copy_program(Path::new(env!("CARGO_BIN_EXE_towa")), &copy) {
            eprintln!("SKIP: only root can become somebody who may read nothing");
            return None;
        }
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        Some(Nobody(copy))
    }

    fn towa(&self, args: &[&str]) -> std::process::Output {
        std::process::Command::new(&self.0).args(args).env_clear().current_dir("/").uid(65534).gid(65534).output().unwrap()
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A name may hold anything but a slash and a NUL. All commands take it, say it on one line, and make JSON of it.
#[test]
fn odd_paths_are_taken_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    for (name, shown) in [(&b"a\nEND"[..], "a\\nEND"), (b"\xff\xfe", "\\xff\\xfe")] {
        let odd = dir.path().join(OsStr::from_bytes(name));
        fs::rename(&pool, &odd).unwrap();
        let run = |command: &str, more: &[&str]| crate::command(&[&[command], more].concat()).arg(&odd).output().unwrap();
        for command in ["verify", "recover", "info"] {
            let out = run(command, &[]);
            let said = text(&out.stdout);
            assert!(out.status.success(), "{command}: {}", text(&out.stderr));
            assert!(said.lines().next().unwrap().contains(shown), "{command}: {said}");
            let out = run(command, &["--json"]);
            let report = json(&text(&out.stdout));
            let path = report[if command == "info" { "path" } else { "pool" }].as_str().unwrap().to_owned();
            assert!(out.status.success() && path.ends_with(shown), "{command}: {path}");
        }
        assert_eq!(run("stats", &["--json"]).status.code(), Some(8));
        fs::write(odd.join("superblock"), "rubbish").unwrap();
        for command in ["verify", "recover", "info"] {
            let out = run(command, &["--json"]);
            assert_eq!(out.status.code(), Some(3));
            crate::assert_is_message(&text(&out.stderr));
            json(&text(&out.stdout));
        }
        fs::remove_dir_all(&odd).unwrap();
        passes(&["vm-load", s(&pool), "--transactions", "5"]);
    }
}

#[test]
fn promises_that_were_not_kept_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(dir.path());
    assert!(fails(1, &["vm-check", s(&pool), "--acked", "999999999"]).contains("acknowledged as durable"));
    let transcript = dir.path().join("said");
    fs::write(&transcript, "ACK 5\nACK 400\nACK 99999").unwrap();
    assert!(passes(&["vm-check", s(&pool), s(&transcript)]).contains("last=400"), "a line cut short is no promise");
    fs::write(&transcript, "ACK many\n").unwrap();
    fails(1, &["vm-check", s(&pool), s(&transcript)]);
}
