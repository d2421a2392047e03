//! What the commands say of pools of transactions, of trees, and of a checkpointer that cannot be.

use std::path::Path;
use std::process::{Command, Output};

use towa_media::Kind;
use towa_tree::{BpTree, FpTree, OrderedMap, Session, fptree};
use towa_tx::{Checkpointer, Options, Pool};

fn towa(args: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_towa")).args(args).arg(dir).output().expect("towa runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A pool with a tree of 1000 numbers and one of a byte string, left as `leave` says.
fn pool(dir: &Path, leave: impl FnOnce(Pool)) {
    let options = Options { heap_len: 16 << 20, lanes: 4, lane_len: 1 << 20, medium: Some(Kind::Ram), ..Options::default() };
    let pool = Pool::create(dir, &options).unwrap();
    let numbers = BpTree::<u64>::create(&pool, "numbers").unwrap();
    let mut session = numbers.session().unwrap();
    (0..1000).for_each(|n| assert!(session.insert(&n, n).unwrap()));
    drop(session);
    assert!(BpTree::<[u8]>::create(&pool, "names").unwrap().session().unwrap().insert(b"towa", 1).unwrap());
    drop(numbers);
    leave(pool);
}

#[test]
fn trees_are_verified_in_closed_pools_and_as_a_crash_left_them() {
    for crashed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        pool(dir.path(), |pool| if crashed { pool.abandon() } else { pool.close().unwrap() });
        let before = std::fs::read(dir.path().join("log")).unwrap();
        let verified = towa(&["verify", "--medium", "ram"], dir.path());
        let text = said(&verified);
        assert!(verified.status.success(), "{text}");
        assert!(text.contains("numbers: B+-tree of numbers of 1000 items"), "{text}");
        assert!(text.contains("names: B+-tree of byte strings of 1 items"), "{text}");
        assert_eq!(text.contains("records of transactions"), crashed, "{text}");
        assert!(before == std::fs::read(dir.path().join("log")).unwrap(), "verify wrote");
        let info = said(&towa(&["info"], dir.path()));
        assert!(info.contains("door tx") && info.contains("4, one for each thread that writes"), "{info}");
        let recovered = towa(&["recover", "--medium", "ram"], dir.path());
        assert!(recovered.status.success(), "{}", said(&recovered));
        assert_eq!(said(&recovered).contains("records of transactions replayed"), crashed, "{}", said(&recovered));
    }
}

#[test]
fn an_fptree_is_verified_and_its_damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let medium = towa_media::open_dir(dir.path(), Some(Kind::Ram), false).unwrap();
    let tree = FpTree::<u64>::create(medium, &fptree::Options { len: 4 << 20, ..Default::default() }).unwrap();
    (0..500).for_each(|n| assert!(tree.session().insert(&n, n).unwrap()));
    assert_eq!(tree.count().unwrap(), 500);
    tree.close().unwrap();
    let verified = towa(&["verify", "--medium", "ram"], dir.path());
    assert!(said(&verified).contains("FPTree of numbers with 500 keys"), "{}", said(&verified));
    let info = said(&towa(&["info"], dir.path()));
    assert!(info.contains("fptree u64") && info.contains("4 MiB") && info.contains("not in use"), "{info}");
    let file = dir.path().join("arena");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[4096] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(towa(&["verify", "--medium", "ram"], dir.path()).status.code(), Some(3));
    let report = towa(&["verify", "--medium", "ram", "--json"], dir.path());
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["sound"], false, "{report}");
}

#[test]
fn a_checkpointer_that_cannot_be_is_told_why() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(towa(&["checkpointer"], dir.path()).status.code(), Some(5), "no pool there");
    pool(dir.path(), |pool| pool.close().unwrap());
    let closed = towa(&["checkpointer"], dir.path());
    assert!(closed.status.code() == Some(1) && said(&closed).contains("start it first"), "{}", said(&closed));
    // Open, but with a thread of its own.
    let open = Pool::open(dir.path(), &Options { medium: Some(Kind::Ram), ..Options::default() }).unwrap();
    assert_eq!(towa(&["checkpointer"], dir.path()).status.code(), Some(1));
    open.close().unwrap();
    // Who checkpoints is told.
    let info = || {
        let report: serde_json::Value = serde_json::from_slice(&towa(&["info", "--json"], dir.path()).stdout).unwrap();
        (report["pool"]["checkpointer"].clone(), said(&towa(&["info"], dir.path())))
    };
    assert!(info().0.is_null(), "closed");

    let options = Options { checkpointer: Checkpointer::Process, medium: Some(Kind::Ram), ..Options::default() };
    let open = Pool::open(dir.path(), &options).unwrap();
    let (json, text) = info();
    assert_eq!(json, serde_json::json!({ "pid": null, "stopped": false }));
    assert!(text.contains("a thread of the program"), "{text}");
    let mut first = Command::new(env!("CARGO_BIN_EXE_towa"))
        .args(["checkpointer", "--wait", "10"])
        .arg(dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(first.stdout.as_mut().unwrap()), &mut ready).unwrap();
    assert!(ready.starts_with("ready: "), "{ready}");
    let second = towa(&["checkpointer"], dir.path());
    assert!(second.status.code() == Some(4) && said(&second).contains("another checkpointer"), "{}", said(&second));
    for (signal, stopped) in [(libc::SIGSTOP, true), (libc::SIGCONT, false)] {
        // SAFETY: a child of ours that nobody has waited for.
        assert_eq!(unsafe { libc::kill(first.id() as libc::pid_t, signal) }, 0);
        let wanted = serde_json::json!({ "pid": first.id(), "stopped": stopped });
        // Signals take a moment.
        let began = std::time::Instant::now();
        while info().0 != wanted {
            assert!(began.elapsed().as_secs() < 20, "{:?}", info());
        }
        let (_, text) = info();
        assert!(text.contains(&format!("process {}{}", first.id(), if stopped { ", stopped" } else { "\n" })), "{text}");
    }
    open.close().unwrap();
    assert!(first.wait().unwrap().success(), "it ends with the pool");
    // A pool of the epoch door.
    let other = tempfile::tempdir().unwrap();
    let epoch = towa_epoch::Options { heap_len: 8 << 20, medium: Some(Kind::Ram), ..Default::default() };
    towa_epoch::Pool::create(other.path(), &epoch).unwrap().close().unwrap();
    let began = std::time::Instant::now();
    let refused = towa(&["checkpointer", "--wait", "30"], other.path());
    assert!(refused.status.code() == Some(3) && said(&refused).contains("epoch door"), "{}", said(&refused));
    assert!(began.elapsed().as_secs() < 20, "waiting does not make it another pool");
    assert!(Pool::open(other.path(), &Options { medium: Some(Kind::Ram), ..Options::default() }).is_err());
}

/// A copy, made for a backup, say, has the identity of its pool; the checkpointer of one has nothing to do with the other.
#[test]
fn a_pool_and_its_copy_have_checkpointers_of_their_own() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    pool(dir.path(), |pool| pool.close().unwrap());
    for name in ["superblock", "image", "log"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    let copied = Command::new(env!("CARGO_BIN_EXE_towa"))
        .args(["tx-load", "--medium", "ram", "--separate"])
        .arg(copy.path())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut copied = copied.unwrap();
    let mut line = String::new();
    let mut acked = std::io::BufReader::new(copied.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut acked, &mut line).unwrap();
    assert!(line.starts_with("ACK"), "{line}");
    let refused = towa(&["checkpointer", "--medium", "ram"], dir.path());
    copied.kill().unwrap();
    copied.wait().unwrap();
    assert!(refused.status.code() == Some(1) && said(&refused).contains("start it first"), "{}", said(&refused));
    // Nothing stays in memory of the program that was killed.
    assert!(towa(&["recover", "--medium", "ram"], copy.path()).status.success());
}

/// A pool and an FPTree are directories both; neither is put into the other's, opened as the other, or taken for nothing.
#[test]
fn pools_and_fptrees_stay_apart() {
    let (pools, trees) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = Options { heap_len: 16 << 20, medium: Some(Kind::Ram), ..Options::default() };
    pool(pools.path(), |pool| pool.close().unwrap());
    let on = |dir: &Path| towa_media::open_dir(dir, Some(Kind::Ram), false).unwrap();
    drop(FpTree::<u64>::create(on(trees.path()), &fptree::Options { len: 4 << 20, ..Default::default() }).unwrap());
    let names = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let before = (names(pools.path()), names(trees.path()));

    let refused = FpTree::<u64>::create(on(pools.path()), &fptree::Options::default()).unwrap_err().to_string();
    assert!(refused.contains("a pool lies there"), "{refused}");
    let refused = FpTree::<u64>::open(on(pools.path())).unwrap_err().to_string();
    assert!(refused.contains("a pool lies there"), "{refused}");
    let refused = Pool::open_or_create(trees.path(), &options).unwrap_err().to_string();
    assert!(refused.contains("an FPTree lies there"), "{refused}");
    let epoch = towa_epoch::Options { medium: Some(Kind::Ram), ..Default::default() };
    let refused = towa_epoch::Pool::open_or_create(trees.path(), &epoch).unwrap_err().to_string();
    assert!(refused.contains("an FPTree lies there"), "{refused}");
    for command in ["recover", "checkpointer"] {
        let out = towa(&[command], trees.path());
        assert!(out.status.code() == Some(3) && said(&out).contains("needs neither recovery"), "{command}: {}", said(&out));
    }
    assert_eq!((names(pools.path()), names(trees.path())), before);
}
