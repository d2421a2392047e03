//! Creating: what is refused leaves nothing, what was interrupted can be done again, and nobody else's file is touched.

use std::fs;

use towa_media::sim::{Effect, Explorer, Point};

use super::*;
use crate::names;

fn in_dir(dir: &Path) -> Arc<dyn Medium> {
    towa_media::open_dir(dir, None, false).unwrap()
}

fn files(medium: &SimMedium) -> Vec<&'static str> {
    [names::SUPERBLOCK, names::SUPERBLOCK_NEW, names::IMAGE, names::LOG]
        .into_iter()
        .filter(|name| medium.exists(name).unwrap())
        .collect()
}

/// Wherever creation is cut off, there is a pool afterwards, or creating it again makes one; and cutting off that one, too.
#[test]
fn an_interrupted_creation_can_be_done_again() {
    for (i, medium) in both_models().into_iter().enumerate() {
        drop(create(&medium));
        let mut created_again = 0;
        let coverage = Explorer::new(medium.trace(), i as u64).check(600, |image| {
            let left = image.to_medium();
            match open(&left) {
                Ok(_) => return Ok(()),
                Err(Error::Missing { .. }) => {}
                Err(e) => return Err(e.to_string()),
            }
            Heap::create(Arc::new(left.clone()), &options()).map_err(|e| e.to_string())?;
            created_again += 1;
            if created_again % 40 == 0 {
                let second = Explorer::new(left.trace(), i as u64).check(40, |image| {
                    let left = image.to_medium();
                    match open(&left) {
                        Ok(_) => Ok(()),
                        Err(Error::Missing { .. }) => {
                            Heap::create(Arc::new(left), &options()).map(|_| ()).map_err(|e| e.to_string())
                        }
                        Err(e) => Err(e.to_string()),
                    }
                });
                second.map_err(|c| c.to_string())?;
            }
            Ok(())
        });
        coverage.unwrap_or_else(|counterexample| panic!("{counterexample}"));
        assert!(created_again > 40, "only {created_again} images had no pool");
    }
}

#[test]
fn creation_that_fails_leaves_nothing() {
    for point in [Point::Create, Point::Reserve, Point::Write, Point::Fence, Point::SyncNames, Point::Rename] {
        for after in 0..6 {
            for medium in both_models() {
                medium.inject(point, after, Effect::Io);
                if Heap::create(Arc::new(medium.clone()), &options()).is_err() {
                    assert_eq!(files(&medium), [""; 0], "{point:?} failed after {after}");
                } else {
                    assert!(after > 0);
                }
            }
        }
    }
}

#[test]
fn an_address_that_is_taken_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let taken = create(&SimMedium::new(Model::Line));
    let options = CreateOptions { base: Some(taken.base().as_ptr().addr()), ..options() };
    Heap::create(in_dir(dir.path()), &options).unwrap_err();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    drop(taken);
    Heap::create(in_dir(dir.path()), &options).unwrap();
}

#[test]
fn what_cannot_be_is_refused_before_there_are_files() {
    let dir = tempfile::tempdir().unwrap();
    for wrong in [
        CreateOptions { heap_len: u64::MAX, ..options() },
        CreateOptions { heap_len: 0, ..options() },
        CreateOptions { log_len: Some(u64::MAX), ..options() },
        CreateOptions { log_len: Some((1 << 20) - 1), ..options() },
        CreateOptions { base: Some(4096), ..options() },
        CreateOptions { base: Some((1 << 47) - (2 << 20)), ..options() },
        CreateOptions { base: Some(usize::MAX - (2 << 20) + 1), ..options() },
    ] {
        assert!(matches!(Heap::create(in_dir(dir.path()), &wrong), Err(Error::Options { .. })), "{wrong:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    assert!(matches!(Heap::volatile(u64::MAX), Err(Error::Options { .. })));
}

/// Refused by open and create alike, with a word that says what to do, and nothing is touched.
fn refused_untouched(dir: &Path, word: &str) {
    let before = snapshot(dir);
    let opened = Heap::open(in_dir(dir), &OpenOptions { door: Door::Epoch, eager: true }).unwrap_err();
    let created = Heap::create(in_dir(dir), &options()).unwrap_err();
    for error in [&opened, &created] {
        assert!(matches!(error, Error::Damaged { .. } | Error::Foreign { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(snapshot(dir), before);
}

#[test]
fn a_pool_that_lost_its_superblock_is_not_created_over() {
    let dir = tempfile::tempdir().unwrap();
    let heap = Heap::create(in_dir(dir.path()), &options()).unwrap();
    commit(&heap, heap.recovered(), &[(DATA, 1)]);
    drop(heap);
    fs::remove_file(dir.path().join(names::SUPERBLOCK)).unwrap();
    refused_untouched(dir.path(), "put back");
    let verdict = crate::verify(&*in_dir(dir.path()), Door::Epoch, &mut |_, _| ()).unwrap_err();
    assert!(matches!(verdict, Error::Damaged { .. }), "{verdict}");
    assert!(matches!(crate::describe(&*in_dir(dir.path())), Err(Error::Damaged { .. })));
    // A half-written one in its place is not the mark of an interrupted creation either: there is something in the log.
    fs::write(dir.path().join(names::SUPERBLOCK_NEW), [0; 8192]).unwrap();
    refused_untouched(dir.path(), "superblock.new");
}

#[test]
fn files_of_somebody_else_are_left_alone() {
    for name in [names::IMAGE, names::LOG, names::SUPERBLOCK_NEW] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), "mine").unwrap();
        refused_untouched(dir.path(), name);
        fs::remove_file(dir.path().join(name)).unwrap();
        fs::create_dir(dir.path().join(name)).unwrap();
        refused_untouched(dir.path(), name);
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lock"), "mine").unwrap();
    let error = Heap::create(in_dir(dir.path()), &options()).unwrap_err().to_string();
    assert!(error.contains("something else"), "{error}");
    assert_eq!(fs::read(dir.path().join("lock")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}
