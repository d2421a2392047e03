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

/// Whether there is a pool on what a crash left, or creating one again makes it.
fn can_be_created(left: SimMedium, created: &mut usize) -> std::result::Result<(), String> {
    match open(&left) {
        Ok(_) => Ok(()),
        Err(Error::Missing { .. }) => {
            *created += 1;
            Heap::create(Arc::new(left), &options()).map(|_| ()).map_err(|e| e.to_string())
        }
        Err(e) => Err(e.to_string()),
    }
}

/// Explores all crashes of what was done on `medium`; gives how many had no pool yet.
fn explore(medium: &SimMedium, seed: u64) -> usize {
    let mut created = 0;
    let checked = Explorer::new(medium.trace(), seed).check(600, |image| can_be_created(image.to_medium(), &mut created));
    checked.unwrap_or_else(|counterexample| panic!("{counterexample}"));
    created
}

/// Wherever creation is cut off, there is a pool afterwards, or creating it again makes one.
#[test]
fn an_interrupted_creation_can_be_done_again() {
    for (seed, medium) in both_models().into_iter().enumerate() {
        drop(create(&medium));
        assert!(explore(&medium, seed as u64) > 40);
    }
}

/// The removal of what an interrupted creation left, or a failed one made, may be cut off too.
#[test]
fn an_interrupted_removal_can_be_done_again() {
    for (seed, medium) in both_models().into_iter().enumerate() {
        medium.inject(Point::Rename, 0, Effect::Io);
        Heap::create(Arc::new(medium.clone()), &options()).unwrap_err();
        assert!(explore(&medium, seed as u64) > 40);
    }
    for (seed, medium) in both_models().into_iter().enumerate() {
        // All that creation makes, but for the last name.
        drop(create(&medium));
        medium.rename(names::SUPERBLOCK, names::SUPERBLOCK_NEW).unwrap();
        medium.sync_names().unwrap();
        let after = medium.events();
        drop(create(&medium));
        let mut created = 0;
        let checked = Explorer::new(medium.trace(), seed as u64)
            .starting_at(after)
            .check(600, |image| can_be_created(image.to_medium(), &mut created));
        checked.unwrap_or_else(|counterexample| panic!("{counterexample}"));
        assert!(created > 40);
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

/// From the moment it has its name, a pool is there to be opened: a creation that fails later than that removes it
/// while it still has the lock.
#[test]
fn nothing_is_removed_that_another_process_may_have_opened() {
    for (point, count) in [(Point::Fence, 9), (Point::SyncNames, 4), (Point::Write, 9)] {
        let mut removed = 0;
        for after in 0..count {
            for medium in both_models() {
                let mut ours = super::kernel::Kernel::over(&medium);
                let (other, changes) = (medium.clone(), Arc::new(AtomicUsize::new(0)));
                let counted = Arc::clone(&changes);
                ours.before_names_change = Some(Arc::new(move |name| {
                    if name != names::SUPERBLOCK_NEW || counted.load(Relaxed) > 0 {
                        assert!(matches!(other.lock(), Err(towa_media::Error::Busy { .. })), "`{name}` goes, and the lock is free");
                        counted.fetch_add(1, Relaxed);
                    }
                }));
                medium.inject(point, after, Effect::Io);
                if Heap::create(Arc::new(ours), &options()).is_err() {
                    assert_eq!(files(&medium), [""; 0], "{point:?} failed after {after}");
                    removed += usize::from(changes.load(Relaxed) > 2);
                }
                medium.lock().unwrap();
            }
        }
        assert!(removed > 0, "{point:?}: no creation failed behind the name `superblock`");
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
        CreateOptions { log: LogShape::Ring { len: Some(u64::MAX) }, ..options() },
        CreateOptions { log: LogShape::Ring { len: Some((1 << 20) - 1) }, ..options() },
        CreateOptions { base: Some(4096), ..options() },
        CreateOptions { base: Some((1 << 47) - (2 << 20)), ..options() },
        CreateOptions { base: Some(usize::MAX - (2 << 20) + 1), ..options() },
    ] {
        assert!(matches!(Heap::create(in_dir(dir.path()), &wrong), Err(Error::Options { .. })), "{wrong:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    assert!(matches!(Heap::volatile(u64::MAX, false), Err(Error::Options { .. })));
}

#[test]
fn prefault_takes_the_memory_beforehand() {
    let resident = |heap: &Heap| {
        let mut pages = vec![0u8; heap.len() as usize / towa_media::PAGE];
        // SAFETY: the kernel fills in a byte for each page of the working copy.
        assert_eq!(unsafe { libc::mincore(heap.base().as_ptr().cast(), heap.len() as usize, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|page| **page & 1 == 1).count() as u64 * towa_media::PAGE as u64
    };
    let dir = tempfile::tempdir().unwrap();
    let asked = CreateOptions { prefault: true, ..options() };
    let heap = Heap::create(in_dir(dir.path()), &asked).unwrap();
    assert_eq!(resident(&heap), heap.len());
    heap.close().unwrap();
    drop(heap);
    for eager in [false, true] {
        let open = |prefault| Heap::open(in_dir(dir.path()), &OpenOptions { door: Door::Epoch, eager, prefault }).unwrap();
        let heap = open(true);
        let mapped = heap.lazy_part().map_or(0, |mapped| mapped.len() as u64);
        assert!(resident(&heap) >= heap.len() - mapped, "eager {eager}");
        drop(heap);
        assert!(resident(&open(false)) < asked.heap_len, "eager {eager}");
    }
    assert_eq!(resident(&Heap::volatile(8 << 20, true).unwrap()), 8 << 20);
}

/// Refused by open and create alike, with a word that says what to do, and nothing is touched.
fn refused_untouched(dir: &Path, word: &str) {
    let before = snapshot(dir);
    let opened = Heap::open(in_dir(dir), &OpenOptions { door: Door::Epoch, eager: true, prefault: false }).unwrap_err();
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
fn a_whole_mark_beside_a_log_with_epochs_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let heap = Heap::create(in_dir(dir.path()), &options()).unwrap();
    commit(&heap, heap.recovered(), &[(DATA, 1)]);
    drop(heap);
    fs::remove_file(dir.path().join("lock")).unwrap();
    let bytes = fs::read(dir.path().join(names::SUPERBLOCK)).unwrap();
    // As creation wrote it: the second slot alone.
    fs::write(dir.path().join(names::SUPERBLOCK_NEW), [&[0; 4096], &bytes[4096..]].concat()).unwrap();
    fs::remove_file(dir.path().join(names::SUPERBLOCK)).unwrap();
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

/// A backup is restored while a creation runs: what comes between the creation's look at the directory and its own files stays.
#[test]
fn creation_that_fails_removes_its_own_files_only() {
    for medium in both_models() {
        // What an interrupted creation left goes first, and then the backup's files begin to come.
        drop(create(&medium));
        medium.rename(names::SUPERBLOCK, names::SUPERBLOCK_NEW).unwrap();
        let mut ours = super::kernel::Kernel::over(&medium);
        let (other, came) = (medium.clone(), AtomicUsize::new(0));
        ours.before_names_change = Some(Arc::new(move |name| {
            if name == names::SUPERBLOCK_NEW && came.fetch_add(1, Relaxed) == 0 {
                other.create(names::LOG, 4096, towa_media::Allocation::Full).unwrap();
            }
        }));
        let error = Heap::create(Arc::new(ours), &options()).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");
        assert_eq!(files(&medium), [names::LOG]);
    }
}

/// A file that says it is terabytes long, and holds nothing, is looked through at once.
#[test]
fn looking_at_leftovers_takes_time_for_what_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (dir.path().join("one"), dir.path().join("other"));
    [&one, &other].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    drop(Heap::create(in_dir(&one), &options()).unwrap());
    fs::copy(one.join(names::SUPERBLOCK), other.join(names::SUPERBLOCK_NEW)).unwrap();
    let log = fs::File::create(other.join(names::LOG)).unwrap();
    if log.set_len(15 << 40).is_err() {
        return eprintln!("SKIP: no files of 15 TiB here");
    }
    let began = std::time::Instant::now();
    let medium = in_dir(&other);
    crate::create::leftovers(&*medium).unwrap();
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
}
