//! The FPTree crashed everywhere, on media that fail, and with each flush and fence deleted.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_crash_test::tree::fptree::{Drawn, Shape, State, World, check_image, sweep};
use towa_media::sim::{Effect, Explorer, Model, Point, SimMedium};

fn seed() -> u64 {
    std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// `TOWA_IMAGES` for more.
#[test]
fn every_crash_image_holds_what_had_returned() {
    let images = std::env::var("TOWA_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    for model in [Model::Line, Model::File] {
        let start = std::time::Instant::now();
        let report = sweep(seed(), images / 2, Some(model)).unwrap_or_else(|e| panic!("TOWA_SEED: {e}"));
        println!("{model:?}, {:?}: {report:?}", start.elapsed());
        assert!(report.images_in_recovery > 0 && report.images_after_kill > 0 && report.refused > 0, "{report:?}");
    }
}

/// A medium that fails: the operation is refused and the tree good, or nothing is written any more; a crash then finds the state before or
/// after the operation that failed.
fn strike<K: Drawn + ?Sized>(model: Model, point: Point, effect: Effect, burst: u64) -> (usize, usize) {
    let (mut refused, mut failed) = (0, 0);
    for seed in 0..60 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let shape = Shape { len: 512 << 10, operations: 100, keys: 60, entries: rng.random_range(2..4) };
        let medium = SimMedium::new(model);
        let after = if point == Point::Reserve { 2 } else { rng.random_range(10..150) };
        (after..after + burst).for_each(|after| medium.inject(point, after, effect));
        let world = World::<K>::run(&medium, &mut rng, State::<K>::new(), &shape).unwrap();
        refused += usize::from(world.refused > 0);
        failed += usize::from(world.failed.is_some());
        let trace = medium.trace();
        let checked = Explorer::new(trace.clone(), seed)
            .starting_at(trace.len() / 2)
            .check(60, |image| check_image::<K>(&image.to_medium(), image.notes(), &world.states).map(|_| ()));
        checked.unwrap_or_else(|e| panic!("{model:?} {effect:?} at {point:?}, {:?}: {e}", world.failed));
    }
    (refused, failed)
}

#[test]
fn a_full_medium_refuses_and_harms_nothing() {
    for model in [Model::Line, Model::File] {
        let (refused, failed) = strike::<u64>(model, Point::Reserve, Effect::Full, 8);
        assert!(refused > 10 && failed == 0, "{refused} {failed}");
        let (refused, failed) = strike::<[u8]>(model, Point::Reserve, Effect::Full, 8);
        assert!(refused > 10 && failed == 0, "{refused} {failed}");
    }
}

#[test]
fn a_failed_write_or_sync_ends_the_writing() {
    for model in [Model::Line, Model::File] {
        for (point, effect) in [(Point::Write, Effect::Io), (Point::Write, Effect::Full), (Point::Fence, Effect::Io)] {
            let (_, failed) = strike::<u64>(model, point, effect, 1);
            assert!(failed > 10, "{failed}");
            let (_, failed) = strike::<[u8]>(model, point, effect, 1);
            assert!(failed > 10, "{failed}");
        }
    }
}
