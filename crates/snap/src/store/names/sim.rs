//! The power of a file system fails that promises no order: of what was changed since the last sync, any part may be there afterwards.
//!
//! ```text
//!   process 1   rename 3 ─► 3.tmp │ killed              everything that it did is seen
//!   process 2   opens, lists, begins, finishes ...      each step of it, too, may be the last before the power fails
//! ```
//!
//! Names of one directory are simulated, beside the real one; what lies in the directories that they name is durable when its own sync
//! says so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::super::number_of;

pub(super) enum Step<'a> {
    Rename(&'a Path, &'a Path),
    Exchange(&'a Path, &'a Path),
    Sync(&'a Path),
    RemoveAll(&'a Path),
}

enum Change {
    Rename(String, String),
    Exchange(String, String),
    Remove(String),
}

/// Inodes by name.
type Names = BTreeMap<String, u64>;

/// What is simulated of a directory, for this thread.
#[derive(Default)]
struct Sim {
    dir: PathBuf,
    durable: Names,
    /// Since the last sync.
    changes: Vec<Change>,
    /// Steps until the process is killed.
    left: Option<usize>,
    killed: bool,
    /// The greatest number that was told of.
    greatest: u64,
}

thread_local! {
    static SIM: RefCell<Option<Sim>> = const { RefCell::new(None) };
}

fn names(dir: &Path) -> Names {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino())).collect()
}

impl Sim {
    fn is_of(&self, path: &Path) -> bool {
        path.parent() == Some(&self.dir)
    }

    /// Every state of the names that a power failure may leave.
    fn after_power_failures(&self) -> Vec<Names> {
        assert!(self.changes.len() < 16, "so many changes without a sync");
        let images = 0..1_u32 << self.changes.len();
        images
            .map(|image| self.changes.iter().enumerate().filter(|(n, _)| image >> n & 1 != 0).fold(self.durable.clone(), apply))
            .collect()
    }

    fn step(&mut self, step: &Step<'_>) {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        match step {
            Step::Sync(dir) if *dir == self.dir => (self.durable, self.changes) = (names(&self.dir), Vec::new()),
            Step::Rename(from, to) if self.is_of(from) => self.changes.push(Change::Rename(name(from), name(to))),
            Step::Exchange(one, other) if self.is_of(one) => self.changes.push(Change::Exchange(name(one), name(other))),
            Step::RemoveAll(dir) if self.is_of(dir) => {
                let inode = std::fs::metadata(dir).unwrap().ino();
                for image in self.after_power_failures() {
                    let back = image.iter().find(|(name, there)| **there == inode && number_of(name).is_some());
                    assert!(back.is_none(), "power fails, and checkpoint {back:?} is back without its files");
                }
                self.changes.push(Change::Remove(name(dir)));
            }
            _ => {}
        }
    }
}

fn apply(mut names: Names, (_, change): (usize, &Change)) -> Names {
    match change {
        Change::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Change::Exchange(one, other) => {
            if let (Some(a), Some(b)) = (names.get(one).copied(), names.get(other).copied()) {
                names.extend([(one.clone(), b), (other.clone(), a)]);
            }
        }
        Change::Remove(name) => drop(names.remove(name)),
    }
    names
}

/// What the code under test is about to do.
pub(super) fn step(step: Step<'_>) -> io::Result<()> {
    SIM.with_borrow_mut(|sim| {
        let Some(sim) = sim else { return Ok(()) };
        sim.killed |= sim.left == Some(0);
        if sim.killed {
            return Err(io::Error::other("killed"));
        }
        sim.left = sim.left.map(|left| left - 1);
        sim.step(&step);
        Ok(())
    })
}

mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::Result;
    use crate::store::{Base, Limits, Store};

    /// Begins a process on a directory as it is seen, that is killed after so many steps.
    fn process(dir: &Path, left: Option<usize>) {
        SIM.with_borrow_mut(|sim| match sim {
            Some(sim) => (sim.left, sim.killed) = (left, false),
            none => *none = Some(Sim { dir: dir.to_owned(), durable: names(dir), left, ..Sim::default() }),
        });
    }

    /// All of these are there whatever a power failure leaves.
    fn must_be_there(told: &BTreeSet<u64>) {
        SIM.with_borrow_mut(|sim| {
            let sim = sim.as_mut().unwrap();
            sim.greatest = sim.greatest.max(told.last().copied().unwrap_or(0));
            for image in sim.after_power_failures() {
                let there: BTreeSet<u64> = image.keys().filter_map(|name| number_of(name)).collect();
                assert!(there.is_superset(told), "told {told:?}, and after a power failure there are {there:?}");
                let used = image.keys().filter_map(|name| number_of(name.strip_prefix("last-").unwrap_or(name))).max();
                assert!(used.unwrap_or(0) >= sim.greatest, "{} was told, and comes again: {image:?}", sim.greatest);
            }
        });
    }

    fn take(store: &Store, base: Base, told: &mut BTreeSet<u64>) -> Result<Base> {
        let mut draft = store.begin(base)?;
        (0..4).try_for_each(|n| draft.write(draft.number() * 10 + n, &[7; 4096]))?;
        let id = draft.finish(b"")?;
        told.insert(id.number);
        must_be_there(told);
        Ok(Base::On(id))
    }

    /// A life: takes, removes the newest and an old one, merges.
    fn live(dir: &Path, looks: bool, told: &mut BTreeSet<u64>) -> Result<()> {
        let store = Store::open(dir)?;
        if looks {
            // What a list has shown counts as told.
            told.extend(store.list()?.last().map(|item| item.number));
            must_be_there(told);
        }
        let mut base = Base::Empty;
        for _ in 0..3 {
            base = take(&store, base, told)?;
        }
        let numbers = store.numbers()?;
        for number in [numbers[numbers.len() - 1], numbers[0]] {
            told.remove(&number);
            store.remove(number)?;
        }
        store.merge_beyond(Limits { packs: 2, extents: 1 })?;
        must_be_there(told);
        take(&store, Base::Empty, told).map(drop)
    }

    /// Two processes, one after the other, each killed after any number of steps, and the power fails at any time.
    #[test]
    fn nothing_is_lost_at_any_kill_and_any_power_failure() {
        let (mut lives, mut ended) = (0, false);
        for first in 0.. {
            let steps = if ended { break } else { [None, Some(first / 2), Some(first)] };
            for second in steps {
                let place = tempfile::tempdir().unwrap();
                let dir = place.path().join("store");
                drop(Store::open_or_create(&dir).unwrap());
                SIM.set(None);
                let mut told = BTreeSet::new();
                process(&dir, Some(first));
                ended |= live(&dir, false, &mut told).is_ok();
                process(&dir, second);
                let result = live(&dir, second == Some(first), &mut told);
                assert!(result.is_ok() || second.is_some(), "{result:?}");
                must_be_there(&told);
                process(&dir, None);
                live(&dir, false, &mut told).unwrap();
                lives += 1;
            }
        }
        SIM.set(None);
        println!("{lives} pairs of processes");
        assert!(lives > 30);
    }
}
