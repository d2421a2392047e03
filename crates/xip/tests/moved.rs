//! Programs that are not where they were: `gc` keeps what one of them may need, beside writers at work as well.

mod sweep_support;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sweep_support::{Place, TEXT, command, program, run};
use towa_xip::install;
use towa_xip::store::{Collect, Collected, Store};

const FORCE: Collect = Collect { force: true, dry: false };

/// What is done with a path.
type Act<'a> = &'a dyn Fn(&Path);

fn runs(path: &Path) -> bool {
    run(command(path, &["--version"], path.parent().unwrap()), Duration::from_secs(10)).is_success()
}

fn collect(store: &Store, how: Collect) -> Collected {
    store.write().unwrap().collect(how).unwrap()
}

#[test]
fn a_program_that_is_not_at_its_place_keeps_its_text_until_it_is_given_up() {
    let place = Place::new();
    let sort = program("sort").expect("sort is everywhere");
    let (elsewhere, programs) = (place.folder("elsewhere", false).join("sort"), place.folder("programs", false));
    // Moved; copied and removed; moved, and another program put there; moved, and a copy of the whole one put there.
    let ways: [(&str, Act); 4] = [
        ("moved", &|path| fs::rename(path, &elsewhere).unwrap()),
        ("copied", &|path| {
            fs::copy(path, &elsewhere).unwrap();
            fs::remove_file(path).unwrap();
        }),
        ("replaced", &|path| {
            fs::rename(path, &elsewhere).unwrap();
            fs::copy(program("cat").unwrap(), path).unwrap();
        }),
        ("restored", &|path| {
            fs::rename(path, &elsewhere).unwrap();
            fs::copy(&sort, path).unwrap();
        }),
    ];
    for (what, move_it) in ways {
        let path = place.copy(&sort, "programs");
        install::split(&place.store, &path, None, TEXT).unwrap();
        move_it(&path);
        for dry in [true, false, false] {
            let done = collect(&place.store, Collect { dry, force: false });
            assert!(done.texts.is_empty() && done.missed == [path.clone()] && done.forgotten.is_empty(), "{what}: {done:?}");
            assert!(runs(&elsewhere), "{what}");
        }
        assert_eq!(collect(&place.store, Collect { dry: true, force: true }).texts.len(), 1, "{what}");
        assert!(runs(&elsewhere), "{what}");
        install::join(&elsewhere, None, None).unwrap();
        let done = collect(&place.store, FORCE);
        assert!(done.texts.len() == 1 && done.forgotten == [path.clone()] && done.missed.is_empty(), "{what}: {done:?}");
        let _ = fs::remove_file(&path);
    }
    // A directory that is gone says nothing, whatever is asked for: it may not be mounted.
    let path = place.copy(&sort, "programs");
    install::split(&place.store, &path, None, TEXT).unwrap();
    fs::rename(&programs, place.at("unmounted")).unwrap();
    let done = collect(&place.store, FORCE);
    assert!(done.texts.is_empty() && done.kept == [path], "{done:?}");
    assert!(runs(&place.at("unmounted/sort")));
}

/// The whole file was never replaced: `split` was stopped before. Its text needs no word of anybody to go.
#[test]
fn a_program_that_was_never_replaced_needs_no_text() {
    let place = Place::new();
    let path = place.copy(&program("sort").expect("sort is everywhere"), "programs");
    let entries = place.store.path().join("files");
    install::split(&place.store, &path, None, TEXT).unwrap();
    let entry = fs::read_dir(&entries).unwrap().next().unwrap().unwrap().path();
    let kept = fs::read(&entry).unwrap();
    install::join(&path, None, None).unwrap();
    // The entry of that split, of a file that was another inode.
    fs::write(&entry, kept).unwrap();
    assert_eq!(collect(&place.store, Collect::default()).missed, std::slice::from_ref(&path));
    // And one of the file that is there.
    let mut entry = place.store.entry(&path).unwrap().unwrap();
    entry.identity = Some(towa_xip::store::Identity::of(&fs::metadata(&path).unwrap()));
    place.store.write().unwrap().enter(&entry).unwrap();
    let done = collect(&place.store, Collect::default());
    assert!(done.texts.len() == 1 && done.missed.is_empty() && done.forgotten == [path], "{done:?}");
}

/// `join` makes a program whole, and another process splits it anew before `join` has the store: its entry is that of the new half.
#[test]
fn a_program_that_was_split_anew_stays_entered() {
    let place = Place::new();
    let path = place.copy(&program("sort").expect("sort is everywhere"), "programs");
    install::split(&place.store, &path, None, TEXT).unwrap();
    place.store.write().unwrap().leave(&path).unwrap();
    assert!(collect(&place.store, Collect::default()).texts.is_empty());
    assert!(runs(&path));
}

#[test]
fn collecting_beside_a_writer_harms_neither() {
    let place = Place::new();
    let path = place.copy(&program("true").expect("true is everywhere"), "programs");
    // Of another store, so that nothing but the drafts themselves keeps the two apart.
    let other = Store::open_or_create(&place.folder("other-store", false)).unwrap();
    let beside = place.copy(&program("sort").unwrap(), "programs");
    install::split(&other, &beside, None, TEXT).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let collecting = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                collect(&other, Collect::default());
                collect(&place.store, Collect::default());
            }
        });
        let splitting = scope.spawn(|| {
            for round in 0..40 {
                install::split(&place.store, &path, None, TEXT).unwrap_or_else(|why| panic!("round {round}: {why}"));
                install::join(&path, None, None).unwrap_or_else(|why| panic!("round {round}: {why}"));
            }
        });
        let split = splitting.join();
        ended.store(true, Ordering::Relaxed);
        collecting.join().expect("gc fails");
        split.expect("split or join fails");
    });
}
