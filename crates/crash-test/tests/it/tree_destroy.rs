//! The destruction of a B+-tree, crashed everywhere.
//!
//! ```text
//!   tree "tree", with free nodes | destroy ─ note      a crash at every event, and a kill: the tree is whole, or marked, or gone
//!   tree "beside"                  └ what was freed is taken by "beside" before the tree is destroyed again
//! ```
//!
//! What must hold: a crash before the first step leaves all keys; once one key is gone, no program can open the tree; once `destroy` has
//! returned, the tree is gone. Destroying what is left succeeds, frees every block of the tree, and no block that another tree has taken.

use std::borrow::Borrow;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tree::{Drawn, Shape, State, Tree, everything};
use towa_media::sim::{EventKind, Explorer, Model, SimMedium, Trace};
use towa_tree::{BpTree, Error, OrderedMap, Session, check_all};
use towa_tx::{Checkpointer, Commit, Options, Pool, TmChoice};

/// Name of the tree that is destroyed; the sweeps' trees have it.
const NAME: &str = "tree";
/// Name of the one that stays.
const BESIDE: &str = "beside";
/// The note of a destruction that returned.
const GONE: u64 = 1;
/// Crash images of one destruction.
const IMAGES: usize = 300;
/// Kills during it, and images of each destruction that goes on.
const KILLS: usize = 6;
const IMAGES_AFTER_KILL: usize = 15;

/// A trace that ends in a destruction.
struct Recorded<K: Drawn + ?Sized> {
    trace: Trace,
    /// Events before it.
    before: usize,
    /// What the tree held.
    keys: State<K>,
}

/// What was found after crashes.
#[derive(Debug, Default)]
struct Found {
    whole: usize,
    marked: usize,
    gone: usize,
}

/// Makes a tree with free nodes of both kinds, and one beside it, and destroys the first.
fn record<K: Drawn + ?Sized, const LEAF: usize, const INNER: usize>(model: Model, commit: Commit, count: u64) -> Recorded<K> {
    let medium = SimMedium::new(model);
    let shape = Shape { len: 32 * (128 << 10), commit, ..Shape::default() };
    let tree = <BpTree<K, LEAF, INNER> as Tree>::open_or_create(&medium, &shape).unwrap();
    let pool = tree.pool().clone();
    BpTree::<K, LEAF, INNER>::create(&pool, BESIDE).unwrap();
    // Then most of the nodes become free ones.
    let mut keys = fill(&tree, count);
    let mut session = tree.session().unwrap();
    for n in (0..count).filter(|n| n % 32 > 9) {
        let key = K::of(n);
        assert_eq!(session.remove(key.borrow()).unwrap(), keys.remove::<K>(key.borrow()));
    }
    drop(session);
    tree.check().unwrap();
    drop(tree);
    pool.sync().unwrap();
    pool.checkpoint().unwrap();
    let before = medium.events();
    BpTree::<K, LEAF, INNER>::destroy(&pool, NAME).unwrap();
    pool.sync().unwrap();
    medium.note(GONE);
    pool.abandon();
    Recorded { trace: medium.trace(), before, keys }
}

/// Gives the tree so many keys, if it has not as many.
fn fill<K: Drawn + ?Sized, const LEAF: usize, const INNER: usize>(tree: &BpTree<K, LEAF, INNER>, count: u64) -> State<K> {
    let keys: State<K> = (0..count).map(|n| (K::of(n), n)).collect();
    if tree.count().unwrap() == 0 {
        tree.bulk_load(keys.iter().map(|(key, value)| (key.borrow(), *value))).unwrap();
    } else {
        let mut session = tree.session().unwrap();
        for (key, value) in &keys {
            session.upsert(key.borrow(), *value).unwrap();
        }
    }
    keys
}

impl<K: Drawn + ?Sized> Recorded<K> {
    /// Looks at what a crash left, and destroys the tree if it is there.
    fn check<const LEAF: usize, const INNER: usize>(
        &self,
        medium: &SimMedium,
        notes: &[u64],
        found: &mut Found,
    ) -> Result<(), String> {
        let options = Options { tm: TmChoice::Stm, checkpointer: Checkpointer::Manual, eager: true, ..Options::default() };
        let pool = Pool::open_on(Arc::new(medium.clone()), &options).map_err(|e| format!("recovery refused: {e}"))?;
        let checked = self.check_pool::<LEAF, INNER>(&pool, notes, found);
        pool.abandon();
        checked
    }

    fn check_pool<const LEAF: usize, const INNER: usize>(
        &self,
        pool: &Pool,
        notes: &[u64],
        found: &mut Found,
    ) -> Result<(), String> {
        let text = |e: Error| e.to_string();
        check_all(pool).map_err(text)?;
        match BpTree::<K, LEAF, INNER>::open(pool, NAME) {
            Ok(tree) => {
                tree.check().map_err(text)?;
                if everything(&tree)? != self.keys {
                    return Err("the tree can be opened, and has not all of its keys".into());
                }
                found.whole += 1;
            }
            Err(Error::Mismatch { what, .. }) if what.contains("was being destroyed") => found.marked += 1,
            Err(Error::Mismatch { what, .. }) if what.contains("no root") => found.gone += 1,
            Err(e) => return Err(e.to_string()),
        }
        let is_there = pool.root(NAME).is_some();
        if is_there && notes.contains(&GONE) {
            return Err("it was destroyed, and is there".into());
        }
        // What is free by now is taken by others, before the destruction goes on.
        let beside = BpTree::<K, LEAF, INNER>::open(pool, BESIDE).map_err(text)?;
        let others = fill(&beside, 500);
        if is_there {
            BpTree::<K, LEAF, INNER>::destroy(pool, NAME).map_err(|e| format!("destroying it again: {e}"))?;
        }
        // The tree beside it is the only root by now, so the check also finds blocks that belong to no tree.
        beside.check().map_err(text)?;
        if everything(&beside)? != others {
            return Err("the tree beside it has other keys".into());
        }
        Ok(())
    }
}

fn crashed_everywhere<K: Drawn + ?Sized, const LEAF: usize, const INNER: usize>(model: Model, commit: Commit, keys: u64) {
    let recorded = record::<K, LEAF, INNER>(model, commit, keys);
    let place = format!("{} keys, {LEAF} and {INNER}, {model:?}, {commit:?}", K::NAME);
    let mut found = Found::default();
    let check = |medium: &SimMedium, notes: &[u64], found: &mut Found| recorded.check::<LEAF, INNER>(medium, notes, found);
    let coverage = Explorer::new(recorded.trace.clone(), 1)
        .starting_at(recorded.before)
        .check(IMAGES, |image| check(&image.to_medium(), image.notes(), &mut found))
        .unwrap_or_else(|e| panic!("{place}: {e}"));
    println!("{place}: {found:?} in {coverage:?}");
    let parts_are_durable = commit == Commit::Strict;
    assert!(found.whole > 0 && (found.marked > 0 || !parts_are_durable) && found.gone > 0, "{place}: {found:?}");
    let mut rng = SmallRng::seed_from_u64(1);
    for _ in 0..KILLS {
        let events = rng.random_range(recorded.before..=recorded.trace.len());
        let medium = recorded.trace.killed_after(events);
        check(&medium, &[], &mut Found::default()).unwrap_or_else(|e| panic!("{place}, killed after {events}: {e}"));
        medium.note(GONE);
        Explorer::new(medium.trace(), 1)
            .starting_at(events)
            .check(IMAGES_AFTER_KILL, |image| {
                let notes: Vec<u64> = image.notes().iter().copied().filter(|note| *note == GONE).collect();
                check(&image.to_medium(), &notes, &mut Found::default())
            })
            .unwrap_or_else(|e| panic!("{place}, killed after {events}, and crashed later: {e}"));
    }
}

/// The trees of every kind that there is. Those of tiny nodes are deep: each step ends in another way.
fn every_kind(model: Model, commit: Commit) {
    crashed_everywhere::<u64, 4, 4>(model, commit, 0);
    crashed_everywhere::<u64, 4, 4>(model, commit, 3);
    crashed_everywhere::<u64, 4, 4>(model, commit, 700);
    crashed_everywhere::<[u8], 4, 4>(model, commit, 500);
    crashed_everywhere::<u64, 48, 62>(model, commit, 4000);
    crashed_everywhere::<[u8], 48, 62>(model, commit, 4000);
}

#[test]
fn a_destruction_that_crashes_on_line_media_goes_on() {
    every_kind(Model::Line, Commit::Strict);
}

#[test]
fn a_destruction_that_crashes_on_files_goes_on() {
    every_kind(Model::File, Commit::Strict);
}

#[test]
fn a_destruction_whose_commits_are_buffered_goes_on() {
    every_kind(Model::Line, Commit::Buffered);
}

/// Without the write-back of any of its records, and without the last fence, which covers those before, the tree would be back.
#[test]
fn every_write_back_of_a_destruction_is_needed() {
    for model in [Model::Line, Model::File] {
        let recorded = record::<u64, 4, 4>(model, Commit::Strict, 300);
        let of = |kind| recorded.trace.events().filter(move |e| e.index() >= recorded.before && e.kind() == kind);
        let last = of(EventKind::Fence).last().expect("it makes its records durable").index();
        for doomed in of(EventKind::WriteBack).map(|e| e.index()).chain([last]) {
            let trace = recorded.trace.without(|event| event.index() == doomed);
            let found = Explorer::new(trace, 1)
                .starting_at(recorded.trace.len())
                .check(200, |image| recorded.check::<4, 4>(&image.to_medium(), image.notes(), &mut Found::default()));
            assert!(found.is_err(), "{model:?}: event {doomed} of {} is not missed", recorded.trace.len());
        }
    }
}
