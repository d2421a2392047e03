//! The power of the file system is cut at a random moment, again and again: what was told is there when it comes back, and whole.
//!
//! XFS and ext4 can be told to stop as if their device had lost power: what they had not yet written there, their log included, is
//! gone. That shows a sync that is missing; a killed process does not, since the kernel's cache survives it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use rand::prelude::*;
use towa_snap::Error;
use towa_snap::store::{Base, Limits, Store, Which};

mod places;
use places::Place;

const PAGE: usize = 4096;
const PAGES: u64 = 400;
const ROUNDS: usize = 12;

/// What has been told of the checkpoints.
#[derive(Default)]
struct Told {
    there: BTreeSet<u64>,
    consumed: BTreeSet<u64>,
    /// Set before the cut. A real one ends the process, too; XFS lets syncs of directories that it has given up return without an
    /// error, so that what is said after the cut counts for nothing.
    cut: bool,
}

impl Told {
    fn finished(&mut self, number: u64) {
        if !self.cut {
            self.there.insert(number);
        }
    }

    fn consumed(&mut self, number: u64) {
        if !self.cut {
            self.consumed.insert(number);
        }
    }
}

/// The history of a page is in it: the numbers of the last checkpoint that wrote it and of the page.
fn page(number: u64, checkpoint: u64) -> Vec<u8> {
    [number, checkpoint].iter().flat_map(|word| word.to_le_bytes()).cycle().take(PAGE).collect()
}

/// Takes, removes, marks and merges until something fails.
fn live(store: &Store, told: &Mutex<Told>, rng: &mut SmallRng) -> Result<(), Error> {
    loop {
        let numbers = store.numbers()?;
        match rng.random_range(0..10) {
            0..2 if numbers.len() > 4 => {
                let number = numbers[rng.random_range(0..numbers.len())];
                told.lock().unwrap().there.remove(&number);
                told.lock().unwrap().consumed.remove(&number);
                store.remove(number)?;
            }
            2 => drop(store.merge_beyond(Limits { packs: 5, extents: 60 })?),
            3 if !numbers.is_empty() => {
                let number = numbers[rng.random_range(0..numbers.len())];
                match store.consume(number) {
                    Ok(()) => told.lock().unwrap().consumed(number),
                    Err(Error::NotUsable { what, .. }) if what.contains("used up") => {}
                    Err(e) => return Err(e),
                }
            }
            _ => {
                // The manifest: for each page who wrote it last, 0 for nobody.
                let mut written = vec![0_u64; PAGES as usize];
                let mut base = Base::Empty;
                if let Some(&newest) = numbers.last() {
                    let newest = store.open_checkpoint(Which::Number(newest))?;
                    base = Base::On(newest.id());
                    let words = newest.manifest().chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                    written = words.collect();
                }
                let mut draft = store.begin(base)?;
                let number = draft.number();
                for _ in 0..rng.random_range(1..20) {
                    let at = rng.random_range(0..PAGES);
                    draft.write(at, &page(at, number))?;
                    written[at as usize] = number;
                }
                let file = tempfile::tempfile().unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &[5; 9000], 0).unwrap();
                draft.attach(&file, "file")?;
                draft.finish(&written.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())?;
                told.lock().unwrap().finished(number);
            }
        }
    }
}

fn check(store: &Store, told: &Told) {
    let list = store.list().unwrap();
    let there: BTreeSet<u64> = list.iter().map(|item| item.number).collect();
    assert!(there.is_superset(&told.there), "told {:?}, and there are {there:?}", told.there);
    for item in &list {
        assert_eq!(item.damaged, None);
        assert!(item.consumed || !told.consumed.contains(&item.number), "{} was used up", item.number);
        let checkpoint = store.open_checkpoint(Which::Number(item.number)).unwrap();
        checkpoint.verify(|_, _| {}).unwrap();
        let mut bytes = vec![0; PAGE];
        for (at, written) in checkpoint.manifest().chunks(8).enumerate() {
            let written = u64::from_le_bytes(written.try_into().unwrap());
            checkpoint.read(at as u64, &mut bytes).unwrap();
            assert!(bytes == if written == 0 { vec![0; PAGE] } else { page(at as u64, written) }, "page {at} of {}", item.number);
        }
    }
}

fn cut_again_and_again(place: &Place) {
    let seed =
        std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| SmallRng::from_os_rng().random());
    println!("TOWA_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    // Before anything else happens on the file system: the directory itself is durable, too.
    let made = Store::open_or_create(place.dir()).unwrap();
    place.cut();
    place.back();
    assert_eq!(Store::open(place.dir()).unwrap().mode(), made.mode());
    // The first checkpoint, with nothing after it that might write it by the way.
    for merged in [false, true] {
        let told = Mutex::new(Told::default());
        let mut draft = made.begin(Base::Empty).unwrap();
        let number = draft.number();
        draft.write(3, &page(3, number)).unwrap();
        let mut written = vec![0_u64; PAGES as usize];
        written[3] = number;
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[5; 9000], 0).unwrap();
        draft.attach(&file, "file").unwrap();
        draft.finish(&written.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        told.lock().unwrap().there.insert(number);
        if merged {
            for _ in 0..17 {
                let newest = made.open_checkpoint(Which::Newest).unwrap().id();
                let mut draft = made.begin(Base::On(newest)).unwrap();
                let number = draft.number();
                draft.write(number * 2, &page(number * 2, number)).unwrap();
                written[number as usize * 2] = number;
                draft.finish(&written.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).unwrap();
                told.lock().unwrap().there.insert(number);
            }
            assert!(made.merge_beyond(Limits { packs: 2, extents: 3 }).unwrap().checkpoints > 0);
        }
        place.cut();
        place.back();
        check(&made, &told.into_inner().unwrap());
    }
    let newest = *made.numbers().unwrap().last().unwrap();
    made.consume(newest).unwrap();
    place.cut();
    place.back();
    assert!(made.open_checkpoint(Which::Newest).unwrap().consumed());
    let told = Mutex::new(Told::default());
    for _ in 0..ROUNDS {
        let store = Store::open(place.dir()).unwrap();
        let time = Duration::from_micros(rng.random_range(2_000..200_000));
        let mut lived = SmallRng::seed_from_u64(rng.random());
        std::thread::scope(|scope| {
            let life = scope.spawn(|| live(&store, &told, &mut lived));
            std::thread::sleep(time);
            told.lock().unwrap().cut = true;
            place.cut();
            let end = life.join().unwrap().unwrap_err();
            assert!(matches!(end, Error::Io { .. }), "{end}");
        });
        place.back();
        told.lock().unwrap().cut = false;
        check(&store, &told.lock().unwrap());
    }
    println!("{:?}: {:?} are there", place.mode, told.into_inner().unwrap().there);
}

#[test]
fn what_was_told_survives_a_power_cut() {
    for place in [Place::xfs_without_reflink(), Place::xfs(), Place::ext4()].into_iter().flatten() {
        assert_eq!(Store::open_or_create(place.mount_point().join("other")).unwrap().mode(), place.mode);
        cut_again_and_again(&place);
    }
}
