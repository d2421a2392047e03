//! Backups of pools by hand: what stops one leaves, and what its owner does while it copies.
//!
//! ```text
//!   owner ──► device ◄── kernel, which tells the test of each read ◄── backup ──► copy
//! ```

use std::sync::atomic::{AtomicBool, AtomicU32};

use parking_lot::Mutex;
use towa_media::sim::{EventKind, Explorer, Trace};

use super::kernel::Kernel;
use super::*;
use crate::log::COMMIT_SLOT;
use crate::names::{IMAGE, LOG, SUPERBLOCK};
use crate::{BackupReport, backup, verify};

/// Slots of a ring's commit records.
const SLOTS: u64 = 256;
/// The note of a backup that returned.
const DONE: u64 = 1;

fn run(from: &Kernel, to: &SimMedium) -> Result<BackupReport> {
    backup(from, to, &mut |_, _| ())
}

/// The device of a pool with two epochs in its log, and its owner.
fn pool(model: Model) -> (SimMedium, Heap, Commit) {
    let device = SimMedium::new(model);
    let heap = create(&device);
    let one = commit(&heap, heap.recovered(), &[(DATA, 1), (DATA + 1, 1)]);
    let two = commit(&heap, after(&one), &[(DATA, 2)]);
    (device, heap, two)
}

/// Everything that a crash leaves of a copy is no pool, or the whole one; and that one once the backup has returned.
fn explore(trace: Trace) -> std::result::Result<(), String> {
    let explored = Explorer::new(trace, 1).check(3000, |image| {
        let (medium, is_done) = (image.to_medium(), image.notes().contains(&DONE));
        if !medium.exists(SUPERBLOCK).unwrap() {
            return if is_done { Err("the copy is gone".into()) } else { Ok(()) };
        }
        let checked = verify(&medium, Door::Epoch, &mut |_, _| ()).map_err(|e| e.to_string())?;
        let heap = open(&medium).map_err(|e| e.to_string())?;
        let lines = [line_of(&heap, DATA)[0], line_of(&heap, DATA + 1)[0]];
        if (checked.clean, checked.epoch, lines) == (true, 2, [2, 1]) { Ok(()) } else { Err(format!("{checked:?} {lines:?}")) }
    });
    explored.map(|_| ()).map_err(|e| e.to_string())
}

/// Of the syncs of names before the superblock gets its name one is enough: each makes up for the others.
#[test]
fn every_sync_of_a_backup_is_needed() {
    for model in [Model::Line, Model::File] {
        let (device, heap, _) = pool(model);
        let copy = SimMedium::new(model);
        run(&Kernel::over(&device), &copy).unwrap();
        copy.note(DONE);
        drop(heap);
        let trace = copy.trace();
        explore(trace.clone()).unwrap_or_else(|e| panic!("{model:?}: {e}"));
        let of = |kind| trace.events().filter(move |e| e.kind() == kind).map(|e| e.index()).collect::<Vec<_>>();
        let (fences, names) = (of(EventKind::Fence), of(EventKind::SyncNames));
        let (last, before) = names.split_last().expect("syncs of names");
        let kinds = fences.iter().map(|fence| vec![*fence]).chain([before.to_vec(), vec![*last]]);
        for doomed in kinds {
            let missed = explore(trace.without(|event| doomed.contains(&event.index()))).is_err();
            assert!(missed, "{model:?}: events {doomed:?} are not missed");
        }
    }
}

/// What the owner does when the image is read for the first time, which nothing else reads from the log beside.
fn beside(device: &SimMedium, act: impl Fn() + Send + Sync + 'static, at_log: impl Fn(u64) + Send + Sync + 'static) -> Kernel {
    let (gate, began) = (Mutex::new(()), AtomicBool::new(false));
    let mut kernel = Kernel::over(device);
    kernel.before_read = Some(Arc::new(move |name, off| {
        let _alone = gate.lock();
        match name {
            IMAGE if !began.swap(true, Relaxed) => act(),
            LOG => at_log(off),
            _ => {}
        }
    }));
    kernel
}

/// Commits epochs that fill a line each, and applies and cuts them, but for the last.
fn go_on(heap: &Heap, mut last: Commit, epochs: u64) -> Commit {
    for _ in 0..epochs {
        heap.apply(&[last], 1, &mut || ()).unwrap();
        heap.cut(&last).unwrap();
        last = commit(heap, after(&last), &[(DATA + last.epoch + 1, 7)]);
    }
    last
}

/// Lines of these epochs, as [`go_on`] fills them.
fn assert_has_all(copy: &SimMedium, oldest: u64, newest: u64) {
    let heap = open(copy).unwrap();
    assert!(
        (oldest..=newest).all(|epoch| line_of(&heap, DATA + epoch) == [7; LINE]),
        "a line of an epoch up to {newest} is not there"
    );
}

#[test]
fn what_is_committed_while_the_image_is_copied_is_in_the_copy() {
    let (device, heap, two) = pool(Model::File);
    let kernel = beside(&device, move || _ = go_on(&heap, two, 5), |_| ());
    let copy = SimMedium::new(Model::File);
    let report = run(&kernel, &copy).unwrap();
    drop(kernel);
    assert_eq!((report.copy.epoch, report.attempts), (7, 1));
    assert_has_all(&copy, 3, 7);
}

#[test]
fn a_backup_whose_log_was_lapped_begins_again() {
    let (device, heap, two) = pool(Model::File);
    let kernel = beside(&device, move || _ = go_on(&heap, two, SLOTS + 3), |_| ());
    let copy = SimMedium::new(Model::File);
    let report = run(&kernel, &copy).unwrap();
    drop(kernel);
    assert_eq!((report.copy.epoch, report.attempts), (SLOTS + 5, 2));
    // Epochs that were overwritten before they were read are in the image, which was copied anew. Lines of the newest are in the log.
    assert_has_all(&copy, SLOTS + 5, SLOTS + 5);
}

/// At the last look the slot of the next epoch holds half a record: of the epoch that comes a lap later, as it turns out.
#[test]
fn half_a_record_at_the_last_look_is_waited_for() {
    let (device, heap, two) = pool(Model::File);
    let slot = (two.epoch + 1) % SLOTS * COMMIT_SLOT;
    let whole = Arc::new(Mutex::new(Vec::new()));
    let lap = {
        let (device, whole) = (device.clone(), Arc::clone(&whole));
        move || {
            go_on(&heap, two, SLOTS + 1);
            let log = device.open(LOG, Access::ReadWrite).unwrap();
            let mut bytes = vec![0; size_of::<Commit>()];
            log.read(slot, &mut bytes).unwrap();
            log.store(slot + 16, &vec![0; bytes.len() - 16]).unwrap();
            *whole.lock() = bytes;
        }
    };
    // The backup's own thread looks in its last poll, then at the half, and then again and again.
    let (looks, me, below) = (AtomicU32::new(0), std::thread::current().id(), device.clone());
    let look = move |off| {
        if off == slot && std::thread::current().id() == me && !whole.lock().is_empty() && looks.fetch_add(1, Relaxed) == 3 {
            below.open(LOG, Access::ReadWrite).unwrap().store(slot, &whole.lock()).unwrap();
        }
    };
    let report = run(&beside(&device, lap, look), &SimMedium::new(Model::File)).unwrap();
    assert_eq!((report.copy.epoch, report.attempts), (two.epoch + SLOTS + 1, 2));
}

/// Flips a byte of the last frame of an epoch.
fn flip_last_frame(medium: &dyn Medium, epoch: &Commit) {
    let log = medium.open(LOG, Access::ReadWrite).unwrap();
    let (at, mut byte) = (SLOTS * COMMIT_SLOT + epoch.end - 1 - LINE as u64, [0]);
    log.read(at, &mut byte).unwrap();
    log.store(at, &[byte[0] ^ 1]).unwrap();
    log.fence().unwrap();
}

/// The owner has a record of an epoch in its slot, and has begun to write over the epoch's frames.
#[test]
fn a_backup_whose_frames_were_overwritten_begins_again() {
    let (device, heap, two) = pool(Model::File);
    let three = commit(&heap, after(&two), &[(DATA + 3, 7)]);
    flip_last_frame(&device, &three);
    let (below, looks, me) = (device.clone(), AtomicU32::new(0), std::thread::current().id());
    // The third time that the backup's own thread reads the slot, it is in its second attempt.
    let slot = three.epoch % SLOTS * COMMIT_SLOT;
    let mend = move |off| {
        if off == slot && std::thread::current().id() == me && looks.fetch_add(1, Relaxed) == 1 {
            flip_last_frame(&below, &three);
        }
    };
    let kernel = beside(&device, || (), mend);
    let report = run(&kernel, &SimMedium::new(Model::File)).unwrap();
    assert!(report.copy.epoch == 3 && report.attempts > 1, "{report:?}");
    drop(heap);
}

/// A crash left the newest epoch with its first frame and without its last: it never was, and nothing of it is in the copy.
#[test]
fn an_epoch_that_a_crash_left_in_part_is_not_in_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let medium = towa_media::FileMedium::open(dir.path(), false, towa_media::Guarantee::PowerSafe).unwrap();
    let heap = Heap::create(medium.clone(), &options()).unwrap();
    let one = commit(&heap, heap.recovered(), &[(DATA, 1)]);
    let lines: Vec<(u64, u8)> = (0..6000).map(|n| (DATA + n, 2)).collect();
    let two = commit(&heap, after(&one), &lines);
    flip_last_frame(&*medium, &two);
    drop(heap);
    let copy = SimMedium::new(Model::File);
    let report = backup(&*medium, &copy, &mut |_, _| ()).unwrap();
    assert_eq!((report.copy.epoch, report.was_open, report.attempts), (1, false, 1));
    let heap = open(&copy).unwrap();
    assert_eq!((line_of(&heap, DATA), line_of(&heap, DATA + 1)), ([1; LINE], [0; LINE]));
}

#[test]
fn a_backup_of_a_pool_that_was_opened_again_begins_again() {
    let (device, heap, two) = pool(Model::File);
    let owner = Mutex::new(Some(heap));
    let again = {
        let device = device.clone();
        move || {
            drop(owner.lock().take());
            let heap = open(&device).unwrap();
            *owner.lock() = Some(heap);
        }
    };
    let report = run(&beside(&device, again, |_| ()), &SimMedium::new(Model::File)).unwrap();
    assert_eq!((report.copy.epoch, report.attempts, report.was_open), (two.epoch, 2, true));
}

/// What is wrong with the copy when it has its name is found before the backup returns.
#[test]
fn a_copy_is_verified() {
    let (device, _owner, _) = pool(Model::File);
    let copy = SimMedium::new(Model::File);
    let mut to = Kernel::over(&copy);
    to.before_names_change = Some(Arc::new(move |_| tamper(&copy, IMAGE, 64, |bytes| bytes[0] ^= 1, 1)));
    let found = backup(&device, &to, &mut |_, _| ());
    assert!(matches!(found, Err(Error::Damaged { .. })), "{found:?}");
}

#[test]
fn a_copy_of_a_pool_in_use_is_not_copied() {
    let device = SimMedium::new(Model::File);
    let mut kernel = Kernel::over(&device);
    kernel.born = 1;
    drop(Heap::create(Arc::new(kernel.clone()), &options()).unwrap());
    kernel.born = 2;
    let refused = run(&kernel, &SimMedium::new(Model::File));
    assert!(matches!(refused, Err(Error::CopiedWhileOpen { .. })), "{refused:?}");
}
