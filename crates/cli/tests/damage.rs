//! Damage that looks like nothing: each structure of each file of a pool, damaged in each way, one at a time.
//!
//! ```text
//!   a pool of the epoch door, of the tx door, an FPTree's directory; closed, or left as by a crash
//!     x   each file, whole: zeros, missing, half, of an earlier moment, of another pool
//!     x   each page that holds something: zeros, as it was at an earlier moment, one bit
//!   `towa verify` says "sound"  ==>  a program opens the pool and finds all that was acknowledged
//! ```
//!
//! Left out is what `towa verify` cannot notice: zeros in the blocks of containers, where a bucket line or a node of
//! zeros is an empty one; bits and older versions of the pages of programs' own blocks; and, of a pool that was not
//! closed, the newest records of its log (a crash may have kept them from being written).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use towa_media::Kind;

const PAGE: usize = 4096;
const KEYS: u64 = 400;
/// Heap bytes before programs' blocks: the root table, and the headers of runs.
const TABLES: usize = 2 * (128 << 10);
/// Bytes of the stamp at the end of files `image` and `log`.
const STAMP: usize = 8192;

/// The files of a directory.
type Files = BTreeMap<&'static str, Vec<u8>>;

/// A pool, and the program that knows what is in it.
struct Subject {
    name: &'static str,
    names: &'static [&'static str],
    /// Whether `towa verify` notices zeros in the blocks of what the program keeps.
    checks_blocks: bool,
    /// Adds keys up to this one; whether it closes then, or ends as by a crash.
    write: fn(&Path, u64, bool),
    /// How many keys a program finds, each with its value.
    count: fn(&Path) -> Result<u64, String>,
}

const POOL: &[&str] = &["superblock", "image", "log"];
const SUBJECTS: [Subject; 3] = [
    Subject { name: "epoch", names: POOL, checks_blocks: false, write: epoch::write, count: epoch::count },
    Subject { name: "tx", names: POOL, checks_blocks: true, write: tx::write, count: tx::count },
    Subject { name: "fptree", names: &["arena"], checks_blocks: true, write: fptree::write, count: fptree::count },
];

mod epoch {
    use super::*;
    use towa_containers::OrderedMap;
    use towa_epoch::{Options, Pool};

    fn options() -> Options {
        Options { heap_len: 2 << 20, log_len: Some(1 << 20), manual: true, medium: Some(Kind::File), ..Options::default() }
    }

    pub fn write(dir: &Path, upto: u64, close: bool) {
        let pool = Pool::open_or_create(dir, &options()).unwrap();
        let map = OrderedMap::open(&pool, "map").unwrap();
        let mut thread = pool.register().unwrap();
        for key in (0..upto).filter(|key| map.get(&key.to_le_bytes()).unwrap().is_none()) {
            map.insert(&mut thread, &key.to_le_bytes(), &(key * 3).to_le_bytes()).unwrap();
        }
        drop(thread);
        pool.checkpoint().unwrap();
        drop(map);
        if close { pool.close().unwrap() } else { pool.abandon() }
    }

    pub fn count(dir: &Path) -> Result<u64, String> {
        let pool = Pool::open(dir, &options()).map_err(|e| e.to_string())?;
        let map = OrderedMap::open(&pool, "map").map_err(|e| e.to_string())?;
        let is_there = |key: &u64| matches!(map.get(&key.to_le_bytes()), Ok(Some(value)) if value == (key * 3).to_le_bytes());
        let found = (0..KEYS).filter(is_there).count() as u64;
        drop(map);
        pool.abandon();
        Ok(found)
    }
}

mod tx {
    use super::*;
    use towa_tree::{BpTree, Session};
    use towa_tx::{Checkpointer, Options, Pool};

    fn options() -> Options {
        Options {
            heap_len: 2 << 20,
            lanes: 4,
            lane_len: 64 << 10,
            checkpointer: Checkpointer::Manual,
            medium: Some(Kind::File),
            ..Options::default()
        }
    }

    pub fn write(dir: &Path, upto: u64, close: bool) {
        let pool = Pool::open_or_create(dir, &options()).unwrap();
        let tree = BpTree::<u64>::open_or_create(&pool, "tree").unwrap();
        let mut session = tree.session().unwrap();
        for key in 0..upto {
            session.upsert(&key, key * 3).unwrap();
        }
        drop(session);
        drop(tree);
        pool.checkpoint().unwrap();
        if close { pool.close().unwrap() } else { pool.abandon() }
    }

    pub fn count(dir: &Path) -> Result<u64, String> {
        let pool = Pool::open(dir, &options()).map_err(|e| e.to_string())?;
        let tree = BpTree::<u64>::open_or_create(&pool, "tree").map_err(|e| e.to_string())?;
        let mut session = tree.session().map_err(|e| e.to_string())?;
        let found = (0..KEYS).filter(|key| matches!(session.get(key), Ok(Some(value)) if value == key * 3)).count() as u64;
        drop(session);
        drop(tree);
        pool.abandon();
        Ok(found)
    }
}

mod fptree {
    use super::*;
    use towa_tree::fptree::{FpTree, Options};

    pub fn write(dir: &Path, upto: u64, _close: bool) {
        let medium = towa_media::open_dir(dir, Some(Kind::File), true).unwrap();
        let tree = match FpTree::<u64>::open(medium.clone()) {
            Ok(tree) => tree,
            Err(_) => FpTree::<u64>::create(medium, &Options { len: 2 << 20, ..Options::default() }).unwrap(),
        };
        let mut session = tree.session();
        for key in 0..upto {
            session.upsert(&key, key * 3).unwrap();
        }
    }

    pub fn count(dir: &Path) -> Result<u64, String> {
        let medium = towa_media::open_dir(dir, Some(Kind::File), false).map_err(|e| e.to_string())?;
        let tree = FpTree::<u64>::open(medium).map_err(|e| e.to_string())?;
        let mut session = tree.session();
        Ok((0..KEYS).filter(|key| matches!(session.get(key), Ok(Some(value)) if value == key * 3)).count() as u64)
    }
}

/// A pool in a directory, whose files are put back before each damage: into the same files, as those are what a crash
/// leaves.
struct Victim<'s> {
    subject: &'s Subject,
    dir: PathBuf,
    sound: Files,
    tried: usize,
    noticed: usize,
    missed: Vec<String>,
}

impl Victim<'_> {
    fn put(&self, files: &Files) {
        for (name, bytes) in files {
            let path = self.dir.join(name);
            let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            file.write_all_at(bytes, 0).unwrap();
        }
    }

    /// Does the damage and looks what verify and the program say.
    fn try_damage(&mut self, what: &str, damage: impl FnOnce(&Path)) {
        self.put(&self.sound);
        damage(&self.dir);
        let out = Command::new(env!("CARGO_BIN_EXE_towa")).args(["verify", "--medium", "file"]).arg(&self.dir).output().unwrap();
        let which = format!("{}, {what}", self.subject.name);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let code = out.status.code().unwrap_or_else(|| panic!("{which}: verify died: {:?}", out.status));
        self.tried += 1;
        if code == 0 {
            let found = (self.subject.count)(&self.dir);
            if found != Ok(KEYS) {
                self.missed.push(format!("{which}: verify calls it sound, a program finds {found:?}"));
            }
        } else {
            assert!(matches!(code, 3 | 5), "{which}: verify ends with {code}: {said}");
            self.noticed += 1;
        }
    }
}

fn read(dir: &Path, names: &'static [&'static str]) -> Files {
    names.iter().map(|name| (*name, fs::read(dir.join(name)).unwrap())).collect()
}

/// What is damaged of a file, page by page.
fn pages(name: &str, bytes: &[u8]) -> Vec<usize> {
    let used: Vec<usize> = (0..bytes.len() / PAGE).filter(|i| bytes[i * PAGE..][..PAGE].iter().any(|b| *b != 0)).collect();
    // Of many alike, some; the first and the last of a file are what all else hangs on.
    let step = used.len().div_ceil(if name == "arena" { 40 } else { 24 }).max(1);
    let ends = [0, 1, used.len().saturating_sub(2), used.len().saturating_sub(1)];
    used.iter().enumerate().filter(|(i, _)| i % step == 0 || ends.contains(i)).map(|(_, page)| *page).collect()
}

fn is_checked(name: &str, page: usize, len: usize) -> bool {
    let at = page * PAGE;
    match name {
        "image" => at < TABLES || at >= len - STAMP,
        "arena" => at < 3 * PAGE,
        _ => true,
    }
}

fn damage_all(subject: &Subject, close: bool) {
    let dirs = tempfile::tempdir().unwrap();
    let (dir, other) = (dirs.path().join("pool"), dirs.path().join("other"));
    (subject.write)(&dir, KEYS / 2, true);
    let earlier = read(&dir, subject.names);
    (subject.write)(&dir, KEYS, close);
    (subject.write)(&other, KEYS / 2, true);
    let other = read(&other, subject.names);
    let sound = read(&dir, subject.names);
    let mut victim = Victim { subject, dir, sound: sound.clone(), tried: 0, noticed: 0, missed: Vec::new() };
    victim.try_damage("nothing", |_| ());
    assert_eq!(victim.noticed, 0, "{}: without damage", subject.name);
    for (name, bytes) in &sound {
        let path = |dir: &Path| dir.join(name);
        victim.try_damage(&format!("{name} missing"), |dir| fs::rename(path(dir), dir.join("away")).unwrap());
        fs::rename(victim.dir.join("away"), path(&victim.dir)).unwrap();
        victim.try_damage(&format!("{name} cut in half"), |dir| {
            fs::OpenOptions::new().write(true).open(path(dir)).unwrap().set_len(bytes.len() as u64 / 2).unwrap();
        });
        let overwrite = |with: &[u8], at: usize| {
            let with = with.to_vec();
            move |dir: &Path| {
                fs::OpenOptions::new().write(true).open(dir.join(name)).unwrap().write_all_at(&with, at as u64).unwrap()
            }
        };
        victim.try_damage(&format!("{name} all zeros"), overwrite(&vec![0; bytes.len()], 0));
        if subject.names.len() > 1 {
            victim.try_damage(&format!("{name} of another pool"), overwrite(&other[name], 0));
            // One file alone, as it was when the pool was closed before.
            victim.try_damage(&format!("{name} of an earlier moment"), overwrite(&earlier[name], 0));
        }
        if *name == "log" && !close {
            continue;
        }
        for page in pages(name, bytes) {
            let at = page * PAGE;
            let is_checked = is_checked(name, page, bytes.len());
            if is_checked || subject.checks_blocks {
                victim.try_damage(&format!("page {page} of {name} zeros"), overwrite(&[0; PAGE], at));
            }
            if is_checked {
                victim.try_damage(&format!("page {page} of {name} as it was"), overwrite(&earlier[name][at..at + PAGE], at));
                let mut flipped = bytes[at..at + PAGE].to_vec();
                flipped[page % 64] ^= 1 << (page % 8);
                victim.try_damage(&format!("page {page} of {name}, a bit"), overwrite(&flipped, at));
            }
        }
    }
    println!("{}: {} of {} kinds of damage are noticed, the others do no harm", subject.name, victim.noticed, victim.tried);
    assert!(victim.missed.is_empty(), "{}", victim.missed.join("\n"));
    assert!(victim.noticed * 3 > victim.tried);
}

#[test]
fn of_a_closed_pool_is_noticed_or_harmless() {
    std::thread::scope(|scope| SUBJECTS.iter().for_each(|subject| drop(scope.spawn(|| damage_all(subject, true)))));
}

#[test]
fn of_a_pool_after_a_crash_is_noticed_or_harmless() {
    std::thread::scope(|scope| SUBJECTS[..2].iter().for_each(|subject| drop(scope.spawn(|| damage_all(subject, false)))));
}
