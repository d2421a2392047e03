//! Both trees crashed everywhere, and on media that fail.
//!
//! What must hold: after any crash the state after the operations that had returned, or after one more (buffered commits: after at least those
//! that had returned before a `sync` or close), with every invariant and no block leaked. A medium that fails: the operation is refused and the tree good, or nothing is written any more; a crash then finds the state
//! before or after the operation that failed.
//!
//! TOWA_SEED and TOWA_IMAGES ask for others.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tree::{Settings, Shape, State, TinyBpTree, Tree, Which, World, check_image, sweep};
use towa_media::sim::{Effect, Explorer, Model, Point, SimMedium};
use towa_tree::FpTree;

/// A number from the environment.
fn given(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn swept(which: Which) {
    let images = given("TOWA_IMAGES", 12_000) as usize;
    // Few worlds: with some seeds all have room, and then others are asked.
    let seed = given("TOWA_SEED", 1);
    let refused = (seed..seed + 10).map(|seed| swept_with(which, seed, images)).find(|refused| *refused > 0);
    assert!(refused.is_some(), "small heaps and arenas have refused something");
}

/// How many operations were refused.
fn swept_with(which: Which, seed: u64, images: usize) -> usize {
    let mut refused = 0;
    for model in [Model::Line, Model::File] {
        let start = std::time::Instant::now();
        let settings = Settings { seed, images: images / 2, model: Some(model) };
        let report = sweep(&settings, which, &mut |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{which:?}, {model:?}, {:?}: {report:?}", start.elapsed());
        assert!(report.images_in_recovery > 0 && report.images_after_kill > 0 && report.exhaustive_points > 0, "{report:?}");
        assert_eq!(report.images_buffered > 0, which == Which::BpTree, "{report:?}");
        assert_eq!(report.images_of_bptree, if which == Which::BpTree { report.images } else { 0 });
        refused += report.refused;
    }
    refused
}

#[test]
fn every_crash_image_of_a_bptree_holds_what_had_returned() {
    swept(Which::BpTree);
}

#[test]
fn every_crash_image_of_an_fptree_holds_what_had_returned() {
    swept(Which::FpTree);
}

/// Worlds of each fault.
const WORLDS: u64 = 40;
/// Bytes of an FPTree's arena with room enough.
const ARENA: u64 = 512 << 10;
/// Bytes of a B+-tree's heap with room enough.
const HEAP: u64 = 24 * (128 << 10);

/// How often an operation was refused, and how often the tree failed.
fn strike<T: Tree>(model: Model, point: Point, effect: Effect, burst: u64, len: u64) -> (usize, usize) {
    let (mut refused, mut failed) = (0, 0);
    for seed in 0..WORLDS {
        let mut rng = SmallRng::seed_from_u64(seed);
        let shape =
            Shape { operations: 100, keys: 60, entries: rng.random_range(2..4), len, checkpoint_one_in: 20, ..Shape::default() };
        let medium = SimMedium::new(model);
        let after = if point == Point::Reserve { 2 } else { rng.random_range(10..150) };
        (after..after + burst).for_each(|after| medium.inject(point, after, effect));
        let world = World::<T>::run(&medium, &mut rng, State::<T::Key>::new(), &shape).unwrap();
        refused += usize::from(world.refused > 0);
        failed += usize::from(world.failed.is_some());
        let trace = medium.trace();
        let checked = Explorer::new(trace.clone(), seed)
            .starting_at(trace.len() / 2)
            .check(60, |image| check_image::<T>(&image.to_medium(), image.notes(), &world.states).map(|_| ()));
        checked.unwrap_or_else(|e| panic!("{model:?} {effect:?} at {point:?}, {:?}: {e}", world.failed));
    }
    println!("{} {model:?}, {effect:?} at {point:?}: {refused} refused, {failed} failed", T::NAME);
    (refused, failed)
}

#[test]
fn a_full_medium_refuses_and_harms_nothing() {
    for model in [Model::Line, Model::File] {
        let (refused, failed) = strike::<FpTree<u64>>(model, Point::Reserve, Effect::Full, 8, ARENA);
        assert!(refused > 10 && failed == 0, "{refused} {failed}");
        let (refused, failed) = strike::<FpTree<[u8]>>(model, Point::Reserve, Effect::Full, 8, ARENA);
        assert!(refused > 10 && failed == 0, "{refused} {failed}");
    }
}

fn a_failed_write_or_sync_ends_the_writing_of<T: Tree>(len: u64) {
    for model in [Model::Line, Model::File] {
        for (point, effect) in [(Point::Write, Effect::Io), (Point::Write, Effect::Full), (Point::Fence, Effect::Io)] {
            let (_, failed) = strike::<T>(model, point, effect, 1, len);
            assert!(failed > 5, "{failed}");
        }
    }
}

#[test]
fn a_failed_write_or_sync_ends_the_writing_of_an_fptree() {
    a_failed_write_or_sync_ends_the_writing_of::<FpTree<u64>>(ARENA);
    a_failed_write_or_sync_ends_the_writing_of::<FpTree<[u8]>>(ARENA);
}

#[test]
fn a_failed_write_or_sync_ends_the_writing_of_a_bptree() {
    a_failed_write_or_sync_ends_the_writing_of::<TinyBpTree<u64>>(HEAP);
    a_failed_write_or_sync_ends_the_writing_of::<TinyBpTree<[u8]>>(HEAP);
}
