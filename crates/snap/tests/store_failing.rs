//! The device under a directory of checkpoints fails a sync at random; the process is killed or goes on; another one opens the directory
//! and works on; the power is cut. Whatever was acknowledged is there then, whole and its own, or the acknowledgement was an error.
//!
//! The device is simulated (`towa_media::files::failing`): it may lose any page of a file whose sync failed, and go on showing it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rand::prelude::*;
use towa_media::files::failing;
use towa_snap::Error;
use towa_snap::store::{Base, CheckpointId, Limits, Store, Which};

mod places;
use places::Place;

const PAGE: usize = 4096;
/// Rounds on one directory, before the next one is made.
const LIFE: u64 = 8;

/// What a checkpoint is to hold, by the number of its draft: pages, by the draft that wrote them.
#[derive(Clone, Default)]
struct Expected {
    pages: BTreeMap<u64, u64>,
    attached: bool,
}

/// What the programs of one directory were told.
#[derive(Default)]
struct Told {
    made: bool,
    there: BTreeMap<u64, CheckpointId>,
    removed: BTreeSet<u64>,
    consumed: BTreeSet<u64>,
    greatest: u64,
    drafts: u64,
    expected: HashMap<u64, Expected>,
}

struct World {
    dir: PathBuf,
    device: failing::Handle,
    told: Told,
    rng: SmallRng,
}

type Noticed = Result<(), String>;

macro_rules! must {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(format!($($what)*));
        }
    };
}

/// No two pages of two drafts are alike.
fn page(at: u64, draft: u64) -> Vec<u8> {
    let mut page: Vec<u8> = [at, draft].iter().flat_map(|word| word.to_le_bytes()).cycle().take(PAGE).collect();
    page[PAGE - 8..].copy_from_slice(&(!draft).to_le_bytes());
    page
}

impl World {
    fn new(root: &Path, seed: u64) -> World {
        let device = failing::install(root, seed);
        World { dir: root.join("checkpoints"), device, told: Told::default(), rng: SmallRng::seed_from_u64(seed) }
    }

    /// Whether an operation may fail: what was planned has happened.
    fn may_fail(&self, failures: u64) -> bool {
        self.device.is_killed() || self.device.has_ended() || self.device.failures() > failures
    }

    /// Opens the directory and works on it, until the process is killed; goes on after errors.
    fn live(&mut self, operations: u32) -> Noticed {
        let failures = self.device.failures();
        let store = match Store::open(&self.dir) {
            Err(Error::NotUsable { .. } | Error::NoCheckpoint { .. }) if !self.told.made => {
                match Store::open_or_create(&self.dir) {
                    Ok(store) => {
                        self.told.made = !self.may_fail(failures);
                        store
                    }
                    Err(e) => {
                        must!(self.may_fail(failures), "making it: {e}");
                        return Ok(());
                    }
                }
            }
            opened => opened.map_err(|e| format!("opening it: {e}"))?,
        };
        for n in 0..operations {
            let failures = self.device.failures();
            // Many programs look at what there is before they do anything.
            let done = if n == 0 && self.rng.random_bool(0.3) { self.list(&store) } else { self.operation(&store) };
            if self.device.is_killed() {
                return Ok(());
            }
            match done {
                Ok(()) => {}
                Err(Error::NotUsable { what, .. }) if what.contains("used up") => {}
                Err(e) => must!(self.may_fail(failures), "working: {e}"),
            }
        }
        Ok(())
    }

    fn operation(&mut self, store: &Store) -> Result<(), Error> {
        let numbers = store.numbers()?;
        let any = |rng: &mut SmallRng| numbers[rng.random_range(0..numbers.len())];
        match self.rng.random_range(0..12) {
            0..3 if numbers.len() > 2 => {
                let newest = *numbers.last().expect("three at least");
                let number = if self.rng.random_bool(0.3) { newest } else { any(&mut self.rng) };
                self.told.there.remove(&number);
                self.told.consumed.remove(&number);
                store.remove(number)?;
                self.told.removed.extend((!self.device.is_killed()).then_some(number));
            }
            3 if numbers.len() > 3 => {
                self.told.there.retain(|number, _| *number >= numbers[numbers.len() - 3]);
                self.told.removed.extend(store.keep(3)?);
            }
            4 => drop(store.merge_beyond(Limits { packs: 2, extents: 1 })?),
            5 if !numbers.is_empty() => {
                let number = any(&mut self.rng);
                store.consume(number)?;
                self.told.consumed.insert(number);
            }
            6 => self.list(store)?,
            _ => self.take(store, numbers.last().copied())?,
        }
        Ok(())
    }

    /// What a list has shown counts as told, unless it could not be made durable, which is a warning.
    fn list(&mut self, store: &Store) -> Result<(), Error> {
        let failures = self.device.failures();
        let list = store.list()?;
        for item in list {
            let id = store.open_checkpoint(Which::Number(item.number))?.id();
            if self.device.failures() == failures && !self.device.has_ended() && !self.device.is_killed() {
                self.told.there.insert(item.number, id);
            }
        }
        Ok(())
    }

    fn take(&mut self, store: &Store, newest: Option<u64>) -> Result<(), Error> {
        let (mut base, mut expected) = (Base::Empty, Expected::default());
        if let Some(newest) = newest.filter(|_| self.rng.random_bool(0.9)) {
            let newest = store.open_checkpoint(Which::Number(newest))?;
            expected.pages = self.told.expected[&draft_of(newest.manifest())].pages.clone();
            base = Base::On(newest.id());
        }
        let mut draft = store.begin(base)?;
        self.told.drafts += 1;
        let serial = self.told.drafts;
        for _ in 0..self.rng.random_range(1..4) {
            let at = self.rng.random_range(0..12);
            draft.write(at, &page(at, serial))?;
            expected.pages.insert(at, serial);
        }
        expected.attached = self.rng.random_bool(0.3);
        if expected.attached {
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&page(0, serial), 5).expect("a file");
            draft.attach(&file, "file")?;
        }
        self.told.expected.insert(serial, expected);
        let id = draft.finish(&serial.to_le_bytes())?;
        self.told.made = true;
        self.told.there.insert(id.number, id);
        self.told.greatest = id.number;
        Ok(())
    }

    /// What is there after the power was cut.
    fn check(&mut self) -> Noticed {
        let store = match Store::open(&self.dir) {
            Err(Error::NotUsable { .. } | Error::NoCheckpoint { .. }) if !self.told.made => return Ok(()),
            opened => opened.map_err(|e| format!("it was made: {e}"))?,
        };
        let list = store.list().map_err(|e| e.to_string())?;
        let there: BTreeMap<u64, _> = list.iter().map(|item| (item.number, item)).collect();
        for (number, id) in &self.told.there {
            must!(there.contains_key(number), "{id} was told, and there are {:?}", there.keys());
        }
        let back = self.told.removed.iter().find(|number| there.contains_key(number));
        must!(back.is_none(), "{back:?} was removed, and is back");
        for (number, item) in there {
            must!(item.damaged.is_none(), "{number}: {:?}", item.damaged);
            must!(item.consumed || !self.told.consumed.contains(&number), "{number} was used up");
            let checkpoint = store.open_checkpoint(Which::Number(number)).map_err(|e| e.to_string())?;
            must!(self.told.there.get(&number).is_none_or(|id| *id == checkpoint.id()), "{number} is another one");
            checkpoint.verify(|_, _| {}).map_err(|e| format!("{number}: {e}"))?;
            let serial = draft_of(checkpoint.manifest());
            let Some(expected) = self.told.expected.get(&serial) else { return Err(format!("{number} is none of ours")) };
            let mut bytes = vec![0; PAGE];
            for at in 0..12 {
                checkpoint.read(at, &mut bytes).map_err(|e| e.to_string())?;
                let wanted = expected.pages.get(&at).map_or_else(|| vec![0; PAGE], |draft| page(at, *draft));
                must!(bytes == wanted, "page {at} of {number}");
            }
            must!(checkpoint.attached("file").is_some() == expected.attached, "{number} and its file");
            if let Some(file) = checkpoint.attached("file") {
                file.read_exact_at(&mut bytes, 5).map_err(|e| e.to_string())?;
                must!(bytes == page(0, serial), "the file of {number}");
            }
        }
        let next = store.begin(Base::Empty).map_err(|e| e.to_string())?.number();
        must!(next > self.told.greatest, "number {} comes again", self.told.greatest);
        Ok(())
    }

    fn round(&mut self) -> Noticed {
        // One that has no failing sync is killed only.
        let fails_at = self.rng.random_bool(0.9).then(|| self.rng.random_range(1..25));
        let later = |rng: &mut SmallRng| fails_at.unwrap_or(1) + rng.random_range(0..6);
        let killed_at = (fails_at.is_none() || self.rng.random()).then(|| later(&mut self.rng));
        self.device.plan(fails_at, killed_at);
        self.live(6)?;
        self.device.restart();
        if self.device.hurries() {
            return self.cut_and_check();
        }
        if self.rng.random_bool(0.3) {
            let killed_at = Some(self.rng.random_range(1..20));
            self.device.plan(None, killed_at);
        }
        let operations = self.rng.random_range(0..5);
        self.live(operations)?;
        self.cut_and_check()
    }

    fn cut_and_check(&mut self) -> Noticed {
        self.device.cut();
        let left_out = self.device.leave_out(None);
        self.check()?;
        self.device.leave_out(left_out);
        Ok(())
    }
}

fn draft_of(manifest: &[u8]) -> u64 {
    manifest.try_into().map_or(0, u64::from_le_bytes)
}

/// Runs so many rounds below `root`, without the syncs of this place if one is named. Gives the places that have synced, and the rounds
/// that went well.
fn rounds(root: &Path, seed: u64, count: u64, left_out: Option<&str>) -> (BTreeSet<String>, u64, Noticed) {
    let mut sites = BTreeSet::new();
    for life in 0..count.div_ceil(LIFE) {
        let place = tempfile::tempdir_in(root).unwrap();
        let mut world = World::new(place.path(), seed + life);
        world.device.leave_out(left_out.map(str::to_owned));
        for round in 0..LIFE.min(count - life * LIFE) {
            let noticed = world.round();
            sites.append(&mut world.device.sites());
            if noticed.is_err() {
                return (sites, life * LIFE + round, noticed);
            }
        }
    }
    (sites, count, Ok(()))
}

fn seed() -> u64 {
    let seed = std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| SmallRng::from_os_rng().random_range(0..1 << 40));
    println!("TOWA_SEED={seed}");
    seed
}

#[test]
fn what_was_acknowledged_is_there() {
    let (seed, wanted) = (seed(), std::env::var("TOWA_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1000));
    let hard_links = Place::in_memory();
    let (_, went_well, noticed) = rounds(&hard_links.mount_point(), seed, wanted, None);
    noticed.unwrap_or_else(|e| panic!("hard links, round {went_well}: {e}"));
    if let Some(place) = Place::xfs() {
        let (_, went_well, noticed) = rounds(&place.mount_point(), seed, wanted.div_ceil(5), None);
        noticed.unwrap_or_else(|e| panic!("clones, round {went_well}: {e}"));
    }
}

/// Each place that syncs is left out alone, and missed, at the latest after so many rounds.
#[test]
fn each_sync_is_needed() {
    const LATEST: u64 = 60_000;
    let seed = seed();
    let mut all = BTreeSet::new();
    for place in [Some(Place::in_memory()), Place::xfs()].into_iter().flatten() {
        let root = place.mount_point();
        let (mut sites, _, noticed) = rounds(&root, seed, 100, None);
        noticed.unwrap();
        // Most are the same whichever way pages are shared.
        sites = sites.difference(&all).cloned().collect();
        for site in &sites {
            let (_, went_well, noticed) = rounds(&root, seed, LATEST, Some(site));
            println!("{:?} {site}: missed after {went_well} rounds: {noticed:?}", place.mode);
            assert!(noticed.is_err(), "nothing misses {site}");
        }
        all.append(&mut sites);
    }
    assert!(all.len() >= 16, "{all:?}");
}
