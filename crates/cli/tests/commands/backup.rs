//! backup: copies of pools that are closed, in use, killed under it; copies by other means of pools that were in use.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use crate::{command, fails, json, passes, s, towa};

/// A program that writes a structure that proves itself, in a pool, and says what is durable.
struct Load {
    child: Child,
    acked: Arc<AtomicU64>,
    check: &'static str,
    least: &'static str,
}

impl Load {
    /// Of pools of the epoch door, or of the tx door.
    fn start(door: &str, pool: &Path) -> Load {
        let (load, check, least): (&[&str], _, _) = match door {
            "epoch" => (&["vm-load", "--interval-ms", "5"], "vm-check", "--acked"),
            _ => (&["tx-load", "--least"], "tx-check", "--least"),
        };
        let mut child = command(load).arg(pool).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let acked = Arc::new(AtomicU64::new(0));
        let (lines, said) = (BufReader::new(child.stdout.take().unwrap()).lines(), Arc::clone(&acked));
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let number = line.rsplit(' ').next().and_then(|number| number.parse().ok());
                said.store(number.filter(|_| line.starts_with("ACK")).unwrap_or(said.load(SeqCst)), SeqCst);
            }
        });
        let load = Load { child, acked, check, least };
        load.wait_for(20);
        load
    }

    fn acked(&self) -> u64 {
        self.acked.load(SeqCst)
    }

    /// Waits until this much was acknowledged.
    fn wait_for(&self, number: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.acked() < number {
            assert!(Instant::now() < deadline, "the load stands still at {}", self.acked());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The pool `copy` is sound, and holds all that had been acknowledged: of programs, what they prove of
    /// themselves.
    fn assert_holds(&self, copy: &Path, acked: u64) {
        let report = json(&passes(&["verify", "--json", s(copy)]));
        assert_eq!((report["sound"].as_bool(), report["clean"].as_bool()), (Some(true), Some(true)));
        passes(&[self.check, self.least, &acked.to_string(), s(copy)]);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in ["superblock", "image", "log"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_pool_in_use_is_copied_as_of_one_moment() {
    for door in ["epoch", "tx"] {
        let dir = tempfile::tempdir().unwrap();
        let (pool, copy) = (dir.path().join("pool"), dir.path().join("copy"));
        let mut load = Load::start(door, &pool);
        for _ in 0..3 {
            let acked = load.acked();
            let report = json(&passes(&["backup", "--json", s(&pool), s(&copy)]));
            assert_eq!((report["was_open"].as_bool(), report["clean"].as_bool()), (Some(true), Some(true)), "{door}");
            load.assert_holds(&copy, acked);
            fs::remove_dir_all(&copy).unwrap();
            load.wait_for(load.acked() + 10);
        }
        load.kill();
        let acked = load.acked();
        passes(&["backup", s(&pool), s(&copy)]);
        load.assert_holds(&copy, acked);
        // The pool itself was left as the crash left it, and goes on.
        assert_eq!(json(&passes(&["verify", "--json", s(&pool)]))["clean"].as_bool(), Some(false));
        passes(&[load.check, load.least, &acked.to_string(), s(&pool)]);
        assert_eq!(names(dir.path()), ["copy", "pool"]);
    }
}

/// The program dies, or the backup does, at any moment of it: the pool is well, and what has the copy's name is a
/// whole pool.
#[test]
fn either_side_may_be_killed() {
    for (door, ms) in [("epoch", 3), ("epoch", 15), ("tx", 3), ("tx", 15)] {
        let dir = tempfile::tempdir().unwrap();
        let (pool, copy) = (dir.path().join("pool"), dir.path().join("copy"));
        let mut load = Load::start(door, &pool);
        let mut backup = command(&["backup", s(&pool), s(&copy)]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        backup.kill().unwrap();
        backup.wait().unwrap();
        if copy.exists() {
            load.assert_holds(&copy, 0);
            fs::remove_dir_all(&copy).unwrap();
        }
        let acked = load.acked();
        let backup = command(&["backup", s(&pool), s(&copy)]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        load.kill();
        let mut backup = backup;
        assert!(backup.wait().unwrap().success(), "{door}: the program died, and the backup failed");
        load.assert_holds(&copy, acked);
        assert_eq!(names(dir.path()), ["copy", "pool"], "{door}: what the killed backup left was not removed");
        passes(&[load.check, load.least, &acked.to_string(), s(&pool)]);
    }
}

#[test]
fn a_closed_pool_is_copied_and_nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let [pool, copy, missing, tree] = ["pool", "copy", "missing", "tree"].map(|name| dir.path().join(name));
    passes(&["vm-load", s(&pool), "--transactions", "300"]);
    let said = passes(&["backup", s(&pool), s(&copy)]);
    assert!(said.contains("verified"), "{said}");
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(copy.clone()), 0o700);
    assert_eq!(names(&copy), ["image", "log", "superblock"]);
    names(&copy).into_iter().for_each(|name| assert_eq!(mode(copy.join(name)), 0o600));
    passes(&["vm-check", s(&copy)]);
    let before = names(&copy);
    assert!(fails(1, &["backup", s(&pool), s(&copy)]).contains("is there already"));
    assert_eq!(names(&copy), before);
    fails(5, &["backup", s(&missing), s(&dir.path().join("x"))]);
    assert!(fails(5, &["backup", s(&pool), s(&missing.join("x"))]).contains("no directory"));
    // A damaged pool is not copied.
    let image = fs::OpenOptions::new().write(true).open(pool.join("image")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[0; 4096], 0).unwrap();
    assert!(fails(3, &["backup", s(&pool), s(&tree)]).contains("root slot 0"));
    assert!(!tree.exists());
    assert_eq!(names(dir.path()), ["copy", "pool"]);
}

/// Whatever its name is: a file, a sound pool, what looks like a killed backup's draft.
#[test]
fn nothing_that_backup_did_not_make_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let [pool, notes, other, x] = ["pool", "x.tmp", "y.tmp", "x"].map(|name| dir.path().join(name));
    passes(&["vm-load", s(&pool), "--transactions", "20"]);
    fs::write(&notes, "notes").unwrap();
    copy_files(&pool, &other);
    for dest in ["x", "y"] {
        passes(&["backup", s(&pool), s(&dir.path().join(dest))]);
    }
    assert_eq!(fs::read(&notes).unwrap(), b"notes");
    assert_eq!(names(&other), ["image", "log", "superblock"]);
    passes(&["vm-check", s(&other)]);
    // The draft of a backup that was killed.
    let left = || {
        let (pool, copy) = (dir.path().join("left-pool"), dir.path().join("left"));
        let load = Load::start("epoch", &pool);
        let is_draft = |name: &String| name.starts_with(".towa-backup-");
        let deadline = Instant::now() + Duration::from_secs(60);
        let draft = loop {
            assert!(Instant::now() < deadline, "no backup was killed while it wrote: {:?}", names(dir.path()));
            let mut backup = command(&["backup", s(&pool), s(&copy)]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let begun = Instant::now();
            let is_written = |name: &String| dir.path().join(name).join("copy/image").exists();
            while !names(dir.path()).iter().any(|name| is_draft(name) && is_written(name))
                && begun.elapsed() < Duration::from_secs(5)
            {
                std::thread::yield_now();
            }
            backup.kill().unwrap();
            backup.wait().unwrap();
            match names(dir.path()).into_iter().find(|name| is_draft(name) && is_written(name)) {
                Some(draft) => break dir.path().join(draft),
                None => fs::remove_dir_all(&copy).unwrap(),
            }
        };
        drop(load);
        fs::remove_dir_all(pool).unwrap();
        draft
    };
    let draft = left();
    // A copy of it, one in which somebody put something, and a directory whose name only is alike.
    let [copied, named] = ["copied", "named"].map(|name| dir.path().join(format!(".towa-backup-{name}")));
    assert!(std::process::Command::new("cp").arg("-a").args([&draft, &copied]).status().unwrap().success());
    copy_files(&pool, &named);
    fs::write(draft.join("copy/mine"), "mine").unwrap();
    let image = fs::read(draft.join("copy/image")).unwrap();
    fs::remove_dir_all(&x).unwrap();
    passes(&["backup", s(&pool), s(&x)]);
    assert_eq!(names(&named), ["image", "log", "superblock"]);
    assert!(copied.join("copy/image").exists() && fs::read(draft.join("copy/image")).unwrap() == image);
    // As the killed backup left it, it goes.
    fs::remove_file(draft.join("copy/mine")).unwrap();
    fs::remove_dir_all(&x).unwrap();
    passes(&["backup", s(&pool), s(&x)]);
    assert!(!draft.exists() && copied.exists());
}

/// Files that are copied while a program works in the pool are of different moments, whatever each of them says.
#[test]
fn a_copy_of_a_pool_in_use_is_refused_by_name() {
    for door in ["epoch", "tx"] {
        let dir = tempfile::tempdir().unwrap();
        let [pool, copy, crashed, moved] = ["pool", "copy", "crashed", "moved"].map(|name| dir.path().join(name));
        let mut load = Load::start(door, &pool);
        copy_files(&pool, &copy);
        for command in ["verify", "recover", load.check] {
            let out = towa(&[command, s(&copy)]);
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.code() == Some(3) && said.contains("copy of a pool that was in use"), "{command}: {said}");
        }
        assert_eq!(json(&passes(&["info", "--json", s(&copy)]))["pool"]["copied_while_open"].as_bool(), Some(true));
        load.kill();
        // After the crash nothing writes: who knows that says so.
        copy_files(&pool, &crashed);
        assert!(fails(3, &["recover", s(&crashed)]).contains("--accept-copy"));
        passes(&["recover", "--accept-copy", s(&crashed)]);
        load.assert_holds(&crashed, load.acked());
        // The pool itself may be moved, and closed it may be copied.
        fs::rename(&pool, &moved).unwrap();
        passes(&["recover", s(&moved)]);
        copy_files(&moved, &pool);
        load.assert_holds(&pool, load.acked());
    }
}
