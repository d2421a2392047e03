//! The store against a model: random drafts, removals in any order, merges and openings; each checkpoint always holds what a map says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rand::prelude::*;
use towa_snap::Error;
use towa_snap::pages::PageSet;
use towa_snap::store::{Base, CheckpointId, Draft, Limits, Merged, Mode, Store, Which};

mod places;
use places::Place;

const PAGE: usize = 4096;
/// Pages that the histories write to: few, so that everything meets everything.
const REACH: u64 = 300;

/// Tag of each page that is not zeros.
type Memory = BTreeMap<u64, u64>;

fn page(number: u64, tag: u64) -> Vec<u8> {
    // Zeros but for one word, at times in its middle: no page with a tag may be taken for an empty one.
    let mut page = vec![0; PAGE];
    let at = (number ^ tag) as usize % 512 * 8;
    page[at..at + 8].copy_from_slice(&((number << 32) ^ tag | 1).to_le_bytes());
    page
}

/// Finishes a checkpoint, whose number no other ever had.
fn finish(draft: Draft, greatest: &mut u64) -> CheckpointId {
    let (number, id) = (draft.number(), draft.id());
    assert_eq!(draft.finish(format!("this is {number}").as_bytes()).unwrap(), id);
    assert!(*greatest < number, "number {number} comes again: there was {greatest}");
    *greatest = number;
    id
}

fn cp(from: &Path, to: &Path) {
    assert!(std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// Applies a random change to draft and model.
fn change(draft: &mut Draft, memory: &mut Memory, rng: &mut SmallRng) {
    let first = rng.random_range(0..REACH);
    let end = (first + if rng.random_ratio(1, 4) { rng.random_range(0..200) } else { rng.random_range(0..6) }).min(REACH + 50);
    match rng.random_range(0..10) {
        0 => {
            draft.forget(first..end);
            memory.retain(|page, _| !(first..end).contains(page));
        }
        1 if rng.random_ratio(1, 4) => {
            let kept = PageSet::of((0..5).map(|_| {
                let start = rng.random_range(0..REACH);
                start..start + rng.random_range(0..150)
            }));
            draft.keep_only(&kept);
            memory.retain(|page, _| kept.contains(*page));
        }
        _ => {
            let zeros = rng.random_ratio(1, 3);
            let mut bytes = Vec::new();
            for number in first..end {
                let tag: u64 = rng.random();
                if zeros && rng.random_ratio(1, 3) {
                    bytes.extend_from_slice(&[0; PAGE]);
                    memory.remove(&number);
                } else {
                    bytes.extend_from_slice(&page(number, tag));
                    memory.insert(number, tag);
                }
            }
            draft.write(first, &bytes).unwrap();
        }
    }
}

fn check(store: &Store, number: u64, memory: &Memory) {
    let checkpoint = store.open_checkpoint(Which::Number(number)).unwrap();
    assert_eq!(checkpoint.manifest(), format!("this is {number}").as_bytes());
    let expected: PageSet = memory.keys().map(|&page| page..page + 1).collect();
    assert_eq!(*checkpoint.pages(), expected, "checkpoint {number}");
    let mut told = 0;
    checkpoint.verify(|done, of| told = if done <= of { done } else { panic!("{done} of {of}") }).unwrap();
    assert_eq!(told, memory.len() as u64);
    let mut all = vec![1; (REACH as usize + 60) * PAGE];
    checkpoint.read(0, &mut all).unwrap();
    for (number, bytes) in all.chunks(PAGE).enumerate() {
        let expected = memory.get(&(number as u64)).map_or(vec![0; PAGE], |&tag| page(number as u64, tag));
        assert!(bytes == expected, "page {number} of checkpoint {}", checkpoint.number());
    }
    let mut in_runs = PageSet::new();
    for run in checkpoint.runs(10..200) {
        let mut bytes = vec![0; PAGE];
        run.file.read_exact_at(&mut bytes, run.offset).unwrap();
        assert!(bytes == page(run.pages.start, memory[&run.pages.start]));
        in_runs.push(run.pages);
    }
    assert_eq!(in_runs, expected.intersection(&PageSet::of(std::iter::once(10..200))));
}

#[test]
fn each_checkpoint_holds_what_a_model_says() {
    let seed =
        std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| SmallRng::from_os_rng().random());
    println!("TOWA_SEED={seed}");
    for place in Place::both() {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut store = Store::open_or_create(place.dir()).unwrap();
        assert_eq!(store.mode(), place.mode);
        let mut model: BTreeMap<u64, Memory> = BTreeMap::new();
        let mut merged = Merged::default();
        // What two processes go on from that have checkpoints here, each of its own memory.
        let mut writers: [Option<(CheckpointId, Memory)>; 2] = [None, None];
        // A copy of some day before, with what it holds; and the greatest number that there ever was.
        let (mut copy, mut greatest, mut refused) = (None, 0, 0);
        // Until a merge has had something to do, which with an unlucky seed takes longer.
        for round in 0.. {
            if round >= 120 && (merged.checkpoints > 0 || round >= 1200) {
                break;
            }
            match rng.random_range(0..32) {
                0..12 => {
                    let base = model.keys().copied().choose(&mut rng).filter(|_| rng.random_ratio(9, 10));
                    // The newest, mostly, as a process does.
                    let base = base.map(|base| if rng.random_ratio(3, 4) { *model.keys().last().unwrap() } else { base });
                    let mut memory = base.map_or_else(Memory::new, |base| model[&base].clone());
                    let id = |number| store.open_checkpoint(Which::Number(number)).unwrap().id();
                    let mut draft = store.begin(base.map_or(Base::Empty, |base| Base::On(id(base)))).unwrap();
                    (0..rng.random_range(0..20)).for_each(|_| change(&mut draft, &mut memory, &mut rng));
                    if rng.random_ratio(1, 8) {
                        continue; // given up
                    }
                    let number = draft.number();
                    finish(draft, &mut greatest);
                    model.insert(number, memory);
                }
                12..15 => {
                    if let Some(number) = model.keys().copied().choose(&mut rng) {
                        store.remove(number).unwrap();
                        model.remove(&number);
                    }
                }
                15 => {
                    let count = rng.random_range(1..12);
                    let removed = store.keep(count).unwrap();
                    let expected: Vec<u64> = model.keys().copied().take(model.len().saturating_sub(count)).collect();
                    assert_eq!(removed, expected);
                    removed.iter().for_each(|number| drop(model.remove(number)));
                }
                16..18 => {
                    let limits = Limits { packs: rng.random_range(2..17), extents: if round < 120 { 30 } else { 3 } };
                    let done = store.merge_beyond(limits).unwrap();
                    merged.packs += done.packs;
                    merged.checkpoints += done.checkpoints;
                    assert_eq!(store.merge_beyond(limits).unwrap(), Merged::default(), "a second merge has nothing to do");
                }
                18..26 => {
                    let writer = &mut writers[rng.random_range(0..2)];
                    // What it wrote last, wherever that is now: removed, in a directory that was put aside, or still there.
                    let (mut draft, mut memory) = match writer.take() {
                        None => (store.begin(Base::Empty).unwrap(), Memory::new()),
                        Some((id, memory)) => match store.begin(Base::On(id)) {
                            Ok(draft) => (draft, memory),
                            Err(Error::NoCheckpoint { .. }) => {
                                refused += 1;
                                (store.begin(Base::Empty).unwrap(), Memory::new())
                            }
                            Err(e) => panic!("{e}"),
                        },
                    };
                    (0..rng.random_range(0..5)).for_each(|_| change(&mut draft, &mut memory, &mut rng));
                    let id = finish(draft, &mut greatest);
                    model.insert(id.number, memory.clone());
                    check(&store, id.number, &memory);
                    *writer = Some((id, memory));
                }
                26..30 => {
                    // The directory as it is; or one that was put aside comes back, and this one is that from now on.
                    let aside = place.mount_point().join("aside");
                    match copy.take() {
                        None => {
                            cp(&place.dir(), &aside);
                            copy = Some((model.clone(), greatest));
                        }
                        Some((then, number)) => {
                            std::fs::remove_dir_all(place.dir()).unwrap();
                            std::fs::rename(&aside, place.dir()).unwrap();
                            (model, greatest) = (then, number);
                        }
                    }
                }
                _ => store = Store::open(place.dir()).unwrap(),
            }
            let list = store.list().unwrap();
            assert_eq!(list.iter().map(|item| item.number).collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
            for item in &list {
                assert_eq!((item.pages, &item.damaged), (model[&item.number].len() as u64, &None));
                assert!(item.consumed || item.pages == 0 || item.bytes_own + item.bytes_shared > 0);
            }
            if let Some(number) = model.keys().copied().choose(&mut rng) {
                check(&store, number, &model[&number]);
            }
        }
        model.iter().for_each(|(&number, memory)| check(&store, number, memory));
        println!("{:?}: {merged:?}, {refused} bases were not there any more", place.mode);
        assert!(refused > 0, "no writer's base was removed: this test looks at too little");
        assert!(merged.checkpoints > 0, "there was nothing to merge: this test looks at nothing");
        let names = std::fs::read_dir(place.dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names.filter(|name| !name.starts_with("last-")).collect();
        assert_eq!(left.len(), model.len() + 2, "besides `store` and `lock` only checkpoints: {left:?}");
    }
}

/// Pages beside the ones written; the last page there is.
#[test]
fn the_ends_of_the_address_space_are_pages_like_any() {
    for place in Place::both() {
        let store = Store::open_or_create(place.dir()).unwrap();
        let mut draft = store.begin(Base::Empty).unwrap();
        let last = (1 << 52) - 1;
        draft.write(0, &page(0, 5)).unwrap();
        draft.write(last, &page(last, 6)).unwrap();
        draft.forget(1..last);
        let number = draft.finish(b"").unwrap().number;
        let checkpoint = store.open_checkpoint(Which::Number(number)).unwrap();
        assert_eq!(checkpoint.pages().ranges(), [0..1, last..last + 1]);
        let mut bytes = vec![0; PAGE];
        checkpoint.read(last, &mut bytes).unwrap();
        assert!(bytes == page(last, 6));
    }
}

#[test]
fn files_are_attached_as_they_were_and_read_on_after_the_checkpoint_is_gone() {
    for place in Place::both() {
        let store = Store::open_or_create(place.dir()).unwrap();
        let path = place.mount_point().join("data");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        file.set_len(5 << 20).unwrap();
        let mut draft = store.begin(Base::Empty).unwrap();
        draft.taken_at(SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5));
        draft.attach(&file, "data").unwrap();
        let elsewhere = tempfile::tempfile().unwrap();
        elsewhere.write_all_at(b"elsewhere", 0).unwrap();
        assert!(!draft.attach_clone(&elsewhere, "not cloned").unwrap());
        assert_eq!(draft.attach_clone(&file, "cloned").unwrap(), place.mode == Mode::Reflink);
        draft.attach(&elsewhere, "elsewhere").unwrap();
        file.write_all_at(&[8; 100], 0).unwrap();
        draft.write(3, &page(3, 3)).unwrap();
        let number = draft.finish(b"m").unwrap().number;
        let mut at = [0; 1];
        assert_eq!(file.read(&mut at).unwrap(), 1, "the position was left alone");

        let checkpoint = store.open_checkpoint(Which::Newest).unwrap();
        assert_eq!(checkpoint.taken(), SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5));
        assert!(checkpoint.attached("not cloned").is_none());
        assert!(checkpoint.attachments().iter().any(|file| file.name == "data" && file.len == 5 << 20));
        checkpoint.verify(|_, _| {}).unwrap();
        assert!(checkpoint.attached("data").unwrap().metadata().unwrap().blocks() < 1000, "holes stay holes");
        store.remove(number).unwrap();
        assert!(matches!(store.open_checkpoint(Which::Newest), Err(Error::NoCheckpoint { .. })));
        let mut bytes = vec![0; 10_000];
        checkpoint.attached("data").unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == [7; 10_000]);
        checkpoint.attached("elsewhere").unwrap().read_exact_at(&mut bytes[..9], 0).unwrap();
        assert_eq!(&bytes[..9], b"elsewhere");
        checkpoint.verify(|_, _| {}).unwrap();
    }
}

#[test]
fn one_writes_at_a_time_and_one_restart_uses_up_a_checkpoint() {
    let place = Place::at_hand();
    let store = Store::open_or_create(place.dir()).unwrap();
    let mut draft = store.begin(Base::Empty).unwrap();
    draft.attach(&tempfile::tempfile().unwrap(), "empty").unwrap();
    let first = draft.finish(b"").unwrap();
    let draft = store.begin(Base::On(first)).unwrap();
    let other = Store::open(place.dir()).unwrap();
    assert!(matches!(other.begin(Base::Empty), Err(Error::Busy { .. })));
    assert!(matches!(other.remove(first.number), Err(Error::Busy { .. })));
    assert!(matches!(other.merge(), Err(Error::Busy { .. })));
    assert!(matches!(other.consume(first.number), Err(Error::Busy { .. })));
    // Readers do not mind a writer, nor he them.
    assert_eq!(other.list().unwrap().len(), 1);
    let reader = other.open_checkpoint(Which::Newest).unwrap();
    let second = draft.finish(b"").unwrap();
    drop(reader);
    other.consume(first.number).unwrap();
    assert!(matches!(store.consume(first.number), Err(Error::NotUsable { .. })));
    assert!(store.open_checkpoint(Which::Number(first.number)).unwrap().consumed());
    assert_eq!(store.list().unwrap().iter().map(|item| item.consumed).collect::<Vec<_>>(), [true, false]);
    // What is used up does not count.
    store.consume(second.number).unwrap();
    let third = store.begin(Base::On(second)).unwrap().finish(b"").unwrap();
    store.consume(third.number).unwrap();
    assert!(store.keep(1).unwrap().is_empty());
    let fourth = store.begin(Base::On(second)).unwrap().finish(b"").unwrap();
    assert_eq!(store.keep(1).unwrap(), [first.number, second.number, third.number]);
    assert_eq!(store.numbers().unwrap(), [fourth.number]);
}

#[test]
fn everything_is_for_its_owner_alone() {
    for place in Place::both() {
        let store = Store::open_or_create(place.dir()).unwrap();
        let mut draft = store.begin(Base::Empty).unwrap();
        draft.write(1, &page(1, 1)).unwrap();
        draft.attach(&tempfile::tempfile().unwrap(), "x").unwrap();
        let number = draft.finish(b"").unwrap().number;
        store.consume(number).unwrap();
        let mut folders = vec![place.dir()];
        while let Some(folder) = folders.pop() {
            assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700, "{folder:?}");
            for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
                match entry.metadata().unwrap() {
                    status if status.is_dir() => folders.push(entry.path()),
                    status => assert_eq!(status.permissions().mode() & 0o777, 0o600, "{entry:?}"),
                }
            }
        }
    }
}

/// A store that was made where files are cloned goes on where they are not.
#[test]
fn a_store_that_was_copied_elsewhere_works_there() {
    let Some(xfs) = Place::xfs() else { return };
    let store = Store::open_or_create(xfs.dir()).unwrap();
    let mut draft = store.begin(Base::Empty).unwrap();
    draft.write(1, &page(1, 1)).unwrap();
    draft.write(100, &page(100, 1)).unwrap();
    let first = draft.finish(b"this is 1").unwrap();
    let place = Place::at_hand();
    let copied = std::process::Command::new("cp").arg("-a").args([xfs.dir(), place.dir()]).status().unwrap();
    assert!(copied.success());
    let store = Store::open(place.dir()).unwrap();
    assert_eq!(store.mode(), Mode::Reflink);
    let mut draft = store.begin(Base::On(first)).unwrap();
    draft.write(100, &page(100, 2)).unwrap();
    draft.write(7, &page(7, 2)).unwrap();
    draft.forget(1..2);
    let second = draft.finish(b"this is 2").unwrap();
    store.merge_beyond(Limits { packs: 2, extents: 0 }).unwrap();
    check(&store, first.number, &Memory::from([(1, 1), (100, 1)]));
    store.remove(first.number).unwrap();
    check(&store, second.number, &Memory::from([(7, 2), (100, 2)]));
}

/// A file that can have no second name (here: an immutable one) is copied instead.
#[test]
fn where_files_have_but_one_name_packs_are_copied() {
    let place = Place::at_hand();
    let store = Store::open_or_create(place.dir()).unwrap();
    let mut draft = store.begin(Base::Empty).unwrap();
    draft.write(1, &page(1, 1)).unwrap();
    let first = draft.finish(b"").unwrap();
    let folder = place.dir().join(first.number.to_string());
    let pack = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).find(|p| p.to_str().unwrap().contains("pack-"));
    let pack = pack.unwrap();
    let chattr = |flag| std::process::Command::new("chattr").arg(flag).arg(&pack).status().is_ok_and(|status| status.success());
    if !chattr("+i") {
        println!("SKIP where_files_have_but_one_name_packs_are_copied: no file can be made immutable here");
        return;
    }
    let mut draft = store.begin(Base::On(first)).unwrap();
    draft.write(2, &page(2, 2)).unwrap();
    let second = draft.finish(b"this is 2");
    assert!(chattr("-i"));
    assert_eq!(std::fs::metadata(&pack).unwrap().nlink(), 1);
    store.remove(first.number).unwrap();
    check(&store, second.unwrap().number, &Memory::from([(1, 1), (2, 2)]));
}

/// The number of a checkpoint that was removed never comes again, and what was built on it is told from what came after it.
#[test]
fn a_checkpoint_is_known_by_more_than_its_number() {
    for place in Place::both() {
        let store = Store::open_or_create(place.dir()).unwrap();
        let take = |base, first| {
            let mut draft = store.begin(base).unwrap();
            draft.write(first, &page(first, 1)).unwrap();
            draft.finish(b"").unwrap()
        };
        let first = take(Base::Empty, 1);
        let second = take(Base::On(first), 2);
        let before = place.mount_point().join("before");
        cp(&place.dir(), &before);
        store.remove(second.number).unwrap();
        let third = take(Base::Empty, 3);
        assert_eq!((first.number, second.number, third.number), (1, 2, 3));
        assert!(matches!(store.begin(Base::On(second)), Err(Error::NoCheckpoint { .. })));
        store.numbers().unwrap().iter().for_each(|number| store.remove(*number).unwrap());
        let store = Store::open(place.dir()).unwrap();
        assert_eq!(store.begin(Base::Empty).unwrap().number(), 4, "also when all are gone");
        // Yesterday's copy comes back: there the numbers come again, of other checkpoints.
        std::fs::remove_dir_all(place.dir()).unwrap();
        std::fs::rename(before, place.dir()).unwrap();
        let again = store.begin(Base::On(second)).unwrap().finish(b"").unwrap();
        assert_eq!(again.number, third.number);
        let refused = store.begin(Base::On(third)).unwrap_err().to_string();
        assert!(refused.contains("that of another one"), "{refused}");
    }
}
