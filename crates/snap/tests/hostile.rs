//! A directory of checkpoints that somebody else has made: whatever lies in it, to look at it ends, and nothing in it is run, followed or waited
//! for.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use towa_snap::store::{Base, Store, Which};
use xxhash_rust::xxh3::xxh3_64_with_seed;

mod places;
use places::Place;

/// What `look` gives, in time.
fn in_time<T: Send + 'static>(what: &str, look: impl FnOnce() -> T + Send + 'static) -> T {
    let (give, take) = mpsc::channel();
    std::thread::spawn(move || give.send(look()));
    take.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| panic!("{what}: this does not end"))
}

fn one(dir: &Path) -> Store {
    let store = Store::open_or_create(dir).unwrap();
    let mut draft = store.begin(Base::Empty).unwrap();
    draft.write(3, &[7; 8192]).unwrap();
    draft.attach(&tempfile::tempfile().unwrap(), "a file").unwrap();
    draft.finish(b"words").unwrap();
    store
}

/// All that reads: nothing of it may wait.
fn look_at_all(dir: &Path) -> String {
    let dir = dir.to_owned();
    in_time(&dir.display().to_string(), {
        let dir = dir.clone();
        move || {
            let store = match Store::open(&dir) {
                Ok(store) => store,
                Err(e) => return e.to_string(),
            };
            let list = store.list().map(|list| list.into_iter().filter_map(|item| item.damaged).collect::<Vec<_>>());
            let newest = store.open_checkpoint(Which::Newest).and_then(|checkpoint| checkpoint.verify(|_, _| ()));
            format!("{list:?} {newest:?}")
        }
    })
}

#[test]
fn what_is_no_file_of_its_own_is_not_opened() {
    let place = Place::at_hand();
    let dir = place.dir();
    one(&dir);
    let elsewhere = Place::at_hand();
    one(&elsewhere.dir());
    let names = ["store", "lock", "1", "1/manifest", "1/index", "1/files", "1/files/0", "2"];
    for name in names {
        let path = dir.join(name);
        let aside = place.mount_point().join("put-aside");
        let there = path.exists();
        if there {
            fs::rename(&path, &aside).unwrap();
        }
        let mut kinds = vec!["pipe", "link"];
        // SAFETY: it asks for a number.
        if unsafe { libc::geteuid() } == 0 {
            kinds.push("device");
        }
        for kind in kinds {
            match kind {
                "pipe" => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
                "link" => symlink(if there { aside.clone() } else { elsewhere.dir().join("1") }, &path).unwrap(),
                // The terminal of whoever opens it; here it is enough that it is no file.
                _ => mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, rustix::fs::makedev(5, 0)).unwrap(),
            }
            let said = look_at_all(&dir);
            let refused = said.contains("is not a regular file") || said.contains("is not a directory");
            assert!(refused || name == "lock", "{name} is a {kind}: {said}");
            let to_write = {
                let dir = dir.clone();
                in_time(name, move || Store::open(dir).and_then(|store| store.begin(Base::Empty)).map(|draft| draft.number()))
            };
            assert!(to_write.is_err() || !["store", "lock"].contains(&name), "{name} is a {kind}");
            fs::remove_file(&path).unwrap();
        }
        if there {
            fs::rename(&aside, &path).unwrap();
        }
        assert!(look_at_all(&dir).contains("[]"), "{}", look_at_all(&dir));
    }
}

/// The same file with another body, and sums that fit.
fn put_body(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    let mut body = bytes.split_off(80);
    change(&mut body);
    let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    bytes[56..64].copy_from_slice(&(body.len() as u64).to_le_bytes());
    bytes[64..72].copy_from_slice(&xxh3_64_with_seed(&body, seed).to_le_bytes());
    let sum = xxh3_64_with_seed(&bytes[..72], seed);
    bytes[72..80].copy_from_slice(&sum.to_le_bytes());
    fs::write(path, [bytes, body].concat()).unwrap();
}

/// Lengths that cost nothing to claim: sums that fit, of files with nothing in them.
#[test]
fn lengths_that_are_claimed_take_neither_time_nor_memory() {
    let Some(place) = Place::xfs() else { return };
    let dir = place.dir();
    let store = one(&dir);
    // 8 EiB of an attached file, and 2^52 pages of a pool: holes.
    const LONG: u64 = (1 << 62) + 4096;
    File::options().write(true).open(dir.join("1/files/0")).unwrap().set_len(LONG).unwrap();
    let manifest = dir.join("1/manifest");
    put_body(&manifest, |body| body[32..40].copy_from_slice(&LONG.to_le_bytes()));
    let pool = File::create(dir.join("1/pool")).unwrap();
    pool.set_len(1 << 62).unwrap();
    pool.write_all_at(&[5; 4096], 1 << 61).unwrap();
    let word = |word: u64| word.to_le_bytes();
    put_body(&dir.join("1/index"), |body| {
        // One more file, and one run of all its pages behind what was there: 40 bytes of head, then a file, then runs.
        body[0..4].copy_from_slice(&2_u32.to_le_bytes());
        body[8..16].copy_from_slice(&word(2));
        body.splice(56..56, [word(u64::MAX), word(1 << 50)].concat());
        body.splice(56 + 16 + 32..56 + 16 + 32, [word(100), word((1 << 50) - 100), word(100), word(1)].concat());
    });
    let said = look_at_all(&dir);
    assert!(said.contains("Ok([]) Ok(())"), "{said}");
    let checkpoint = store.open_checkpoint(Which::Newest).unwrap();
    assert_eq!(checkpoint.pages().count(), 2 + (1 << 50) - 100);
    // A body that takes more memory than there is.
    let index = File::options().write(true).open(dir.join("1/index")).unwrap();
    let mut header = fs::read(dir.join("1/index")).unwrap()[..80].to_vec();
    for (len, why) in [((8_u64 << 30) + 1, "is cut off or too long"), (8 << 30, "index")] {
        header[56..64].copy_from_slice(&len.to_le_bytes());
        let sum = xxh3_64_with_seed(&header[..72], u64::from_le_bytes(header[..8].try_into().unwrap()));
        header[72..80].copy_from_slice(&sum.to_le_bytes());
        index.write_all_at(&header, 0).unwrap();
        index.set_len(80 + len).unwrap();
        let said = look_at_all(&dir);
        assert!(said.contains(why), "{said}");
    }
}

/// A manifest and an index of two checkpoints that had the same number do not make a third.
#[test]
fn what_belongs_to_another_identity_is_refused() {
    let place = Place::at_hand();
    let (dir, copy) = (place.dir(), place.mount_point().join("copy"));
    let store = one(&dir);
    let cp =
        |from: &Path, to: &Path| assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    cp(&dir, &copy);
    let first = store.open_checkpoint(Which::Newest).unwrap().id();
    // The same directory goes on twice: both have a checkpoint 2.
    let both = [Store::open(&dir).unwrap(), Store::open(&copy).unwrap()];
    both.iter().for_each(|store| {
        let mut draft = store.begin(Base::On(first)).unwrap();
        draft.write(9, &[1; 4096]).unwrap();
        draft.finish(b"words").unwrap();
    });
    fs::copy(copy.join("2/manifest"), dir.join("2/manifest")).unwrap();
    let said = look_at_all(&dir);
    assert!(said.contains("belongs to another checkpoint that had the same number"), "{said}");
    // As a writer would leave it that had built on another base than it was asked to.
    let id = both[1].open_checkpoint(Which::Newest).unwrap().id();
    assert_ne!(id, first);
    put_body(&copy.join("2/index"), |body| body[24..40].copy_from_slice(id.uuid.as_bytes()));
    let said = look_at_all(&copy);
    assert!(said.contains("was built on checkpoint"), "{said}");
}
