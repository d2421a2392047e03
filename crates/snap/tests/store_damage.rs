//! What is damaged, cut off, foreign or newer is refused with a word that says what, and is left as it was.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rand::prelude::*;
use towa_snap::Error;
use towa_snap::store::{Base, Mode, Store, Which};
use xxhash_rust::xxh3::xxh3_64_with_seed;

mod places;
use places::Place;

/// All files under `dir`.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(files(&entry.path())),
            kind if kind.is_file() => drop(found.insert(entry.path(), fs::read(entry.path()).unwrap())),
            _ => {}
        }
    }
    found
}

/// Two checkpoints that share pages, with a file each.
fn two(dir: &Path) -> Store {
    let store = Store::open_or_create(dir).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[9; 30_000], 0).unwrap();
    let mut base = Base::Empty;
    for first in [10, 25] {
        let mut draft = store.begin(base).unwrap();
        draft.write(first, &(0..20 * 512).flat_map(|n: u64| (n + first).to_le_bytes()).collect::<Vec<_>>()).unwrap();
        draft.attach(&file, "a file").unwrap();
        base = Base::On(draft.finish(b"it was here").unwrap());
    }
    store
}

/// Everything a reader can see of both checkpoints.
fn seen(dir: &Path) -> Result<Vec<Vec<u8>>, Error> {
    let store = Store::open(dir)?;
    let mut all = Vec::new();
    assert_eq!(store.list()?.len(), 2, "the list goes on");
    for number in [1, 2] {
        let checkpoint = store.open_checkpoint(Which::Number(number))?;
        checkpoint.verify(|_, _| {})?;
        let mut memory = vec![0; 60 * 4096];
        checkpoint.read(0, &mut memory)?;
        all.push(memory);
        all.push(checkpoint.manifest().to_vec());
        let mut file = vec![0; 30_000];
        checkpoint.attached("a file").unwrap().read_exact_at(&mut file, 0).unwrap();
        all.push(file);
    }
    Ok(all)
}

#[test]
fn damage_is_refused_or_without_effect() {
    let mut rng = SmallRng::seed_from_u64(4);
    for place in Place::both() {
        let dir = place.dir();
        two(&dir);
        let whole = seen(&dir).unwrap();
        let before = files(&dir);
        for (path, bytes) in &before {
            let name = path.strip_prefix(&dir).unwrap().to_str().unwrap().to_owned();
            if name == "lock" {
                continue;
            }
            let small = ["store", "manifest", "index"].iter().any(|small| name.ends_with(small));
            let mut harms: Vec<(String, Vec<u8>)> = vec![("emptied".into(), Vec::new())];
            for n in 0..if small { bytes.len() } else { 60 } {
                let at = if small { n } else { rng.random_range(0..bytes.len()) };
                let mut harmed = bytes.clone();
                harmed[at] ^= 1 << rng.random_range(0..8);
                harms.push((format!("byte {at} flipped"), harmed));
            }
            for _ in 0..20 {
                let len = rng.random_range(0..bytes.len());
                harms.push((format!("cut off at {len}"), bytes[..len].to_vec()));
            }
            harms.push(("longer".into(), [&bytes[..], &[0; 1]].concat()));
            let mut refused = 0;
            for (how, harmed) in &harms {
                fs::write(path, harmed).unwrap();
                match seen(&dir) {
                    Ok(now) => assert!(now == whole && !small, "{name} {how}: not refused"),
                    Err(e @ Error::NotUsable { .. }) => {
                        let text = e.to_string();
                        assert!(text.contains(&name) || text.contains("/1") || text.contains("/2"), "{name} {how}: {text}");
                        refused += 1;
                    }
                    Err(e) => panic!("{name} {how}: {e}"),
                }
                assert!(fs::read(path).unwrap() == *harmed, "{name} {how}: it was changed");
            }
            assert!(refused * 3 > harms.len(), "{name}: {refused} of {} refused", harms.len());
            fs::write(path, bytes).unwrap();
            // Missing altogether.
            fs::remove_file(path).unwrap();
            assert!(matches!(seen(&dir), Err(Error::NotUsable { .. })), "{name} missing");
            // A hard-linked pack comes back as two files; that makes no difference to a reader.
            fs::write(path, bytes).unwrap();
            // Something else in its place.
            let aside = path.with_extension("aside");
            fs::rename(path, &aside).unwrap();
            symlink(&aside, path).unwrap();
            assert!(matches!(seen(&dir), Err(Error::NotUsable { .. })), "{name} a symbolic link");
            fs::remove_file(path).unwrap();
            fs::rename(&aside, path).unwrap();
        }
        assert!(files(&dir) == before);
        assert!(seen(&dir).unwrap() == whole);
    }
}

#[test]
fn a_damaged_checkpoint_is_no_base_and_can_be_removed() {
    let place = Place::at_hand();
    let store = two(&place.dir());
    let index = place.dir().join("2/index");
    let second = store.open_checkpoint(Which::Number(2)).unwrap().id();
    let bytes = fs::read(&index).unwrap();
    fs::write(&index, &bytes[..bytes.len() - 1]).unwrap();
    let before = files(&place.dir());
    assert!(matches!(store.begin(Base::On(second)), Err(Error::NotUsable { .. })));
    let list = store.list().unwrap();
    assert_eq!(list[0].damaged, None);
    assert!(list[1].damaged.as_ref().unwrap().contains("2/index: is cut off"), "{list:?}");
    // The newest is not quietly another one.
    assert!(matches!(store.open_checkpoint(Which::Newest), Err(Error::NotUsable { .. })));
    assert!(store.keep(1).unwrap().is_empty(), "the one that is whole stays, and the damaged one too");
    store.merge().unwrap();
    assert!(files(&place.dir()) == before);
    store.remove(2).unwrap();
    store.open_checkpoint(Which::Newest).unwrap().verify(|_, _| {}).unwrap();
    assert!(matches!(store.remove(2), Err(Error::NoCheckpoint { .. })));
}

#[test]
fn what_is_newer_or_of_another_directory_is_refused() {
    let (place, other) = (Place::at_hand(), Place::at_hand());
    let store = two(&place.dir());
    two(&other.dir());
    let refused = |number| match store.open_checkpoint(Which::Number(number)) {
        Err(Error::NotUsable { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let copy = |from: PathBuf, to: PathBuf| {
        assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success())
    };
    copy(other.dir().join("2"), place.dir().join("3"));
    assert!(refused(3).contains("another directory"), "{}", refused(3));
    copy(place.dir().join("2"), place.dir().join("4"));
    assert!(refused(4).contains("belongs to checkpoint 2"), "{}", refused(4));
    fs::write(place.dir().join("5"), "not a directory").unwrap();
    assert!(refused(5).contains("not a directory"), "{}", refused(5));
    fs::create_dir(place.dir().join("6")).unwrap();
    assert!(refused(6).contains("missing"), "{}", refused(6));

    // The same, of a newer version, with a checksum that is right.
    for name in ["2/manifest", "2/index", "store"] {
        let path = place.dir().join(name);
        let bytes = fs::read(&path).unwrap();
        let mut newer = bytes.clone();
        newer[8] = 2;
        let sum = xxh3_64_with_seed(&newer[..72], u64::from_le_bytes(newer[..8].try_into().unwrap()));
        newer[72..80].copy_from_slice(&sum.to_le_bytes());
        fs::write(&path, &newer).unwrap();
        let what = if name == "store" { Store::open(place.dir()).unwrap_err().to_string() } else { refused(2) };
        assert!(what.contains("newer"), "{name}: {what}");
        assert!(matches!(Store::open_or_create(place.dir()), Err(Error::NotUsable { .. })) == (name == "store"));
        assert!(fs::read(&path).unwrap() == newer);
        fs::write(&path, &bytes).unwrap();
    }
    store.open_checkpoint(Which::Number(2)).unwrap();
}

#[test]
fn directories_of_others_are_left_alone() {
    let place = Place::at_hand();
    fs::create_dir(place.dir()).unwrap();
    assert!(matches!(Store::open(place.dir()), Err(Error::NotUsable { .. })));
    assert!(matches!(Store::open(place.dir().join("none")), Err(Error::NoCheckpoint { .. })));
    for (name, bytes) in [("photo", &b"x"[..]), ("lock", b"1234")] {
        fs::write(place.dir().join(name), bytes).unwrap();
        let before = files(&place.dir());
        let refused = Store::open_or_create(place.dir()).unwrap_err();
        assert!(matches!(refused, Error::NotUsable { .. }) && refused.to_string().contains(name), "{refused}");
        assert!(files(&place.dir()) == before);
        fs::remove_file(place.dir().join(name)).unwrap();
    }
    // What a creation that was cut off leaves does not stand in the way; nor does a directory that was made for it.
    fs::write(place.dir().join("store.new"), "half").unwrap();
    fs::write(place.dir().join("probe.new"), "half").unwrap();
    fs::write(place.dir().join("lock"), "").unwrap();
    assert_eq!(Store::open_or_create(place.dir()).unwrap().mode(), Mode::HardLinks);
    assert_eq!(files(&place.dir()).len(), 2, "`store` and `lock`");
}
