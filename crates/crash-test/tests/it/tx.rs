//! The sweep of the tx door, in small, and that its worlds do what they are for.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use towa_crash_test::tx::{Base, Settings, Shape, World, check_image, sweep};
use towa_media::sim::{Explorer, Model, SimMedium};
use towa_tx::{Commit, TmChoice};

/// A number from the environment.
fn given(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// TOWA_SEED and TOWA_IMAGES ask for others.
#[test]
fn every_crash_image_holds_what_returned_whole_and_with_its_causes() {
    for model in [Model::Line, Model::File] {
        let settings = Settings { seed: given("TOWA_SEED", 1), images: given("TOWA_IMAGES", 3000) as usize, model: Some(model) };
        let report = sweep(&settings, &mut |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.images_in_recovery > 0 && report.exhaustive_points > 0, "{report:?}");
        // So few worlds of another seed may all run one thread.
        assert!(report.images_concurrent > 0 || std::env::var_os("TOWA_SEED").is_some(), "{report:?}");
        println!("{model:?}: {report:?}");
    }
}

/// Crashes worlds of threads that give and take large objects on few cells; `shape` says the rest.
fn explored(worlds: u64, shape: impl Fn(Shape) -> Shape) {
    let mut transactions = 0;
    for seed in 0..given("TOWA_WORLDS", worlds) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let large = Shape {
            tm: TmChoice::Stm,
            lane_len: 1 << 20,
            cells: 3,
            concurrent: true,
            steps: 25,
            large_percent: 80,
            large_max: 200_000,
            allocating_percent: 100,
            ..Shape::plain(&mut rng)
        };
        let medium = SimMedium::new(Model::Line);
        let world = World::run(&medium, &mut rng, Base::default(), 0, &shape(large)).expect("work without faults");
        transactions += world.transactions;
        let explored = Explorer::new(medium.trace(), seed)
            .starting_at(world.rooted)
            .check(250, |image| check_image(&image.to_medium(), image.notes(), &world.history).map(|_| ()));
        explored.unwrap_or_else(|counterexample| panic!("seed {seed}: {counterexample}"));
    }
    assert!(transactions > worlds * 10, "{transactions}");
}

/// In a heap with room for little more, what one thread frees another takes, in transactions that depend on nothing but their own cell's
/// version. It must not be another's before that is durable: else both have it.
#[test]
fn blocks_that_were_freed_are_used_again_only_when_that_is_durable() {
    explored(24, |shape| Shape { heap_len: 12 * (128 << 10), guarded_percent: 100, checkpoint_one_in: 100, ..shape });
}

/// Large transactions take a while from their effect to their buffer, and others flush theirs meanwhile: beyond the frontier that would leave
/// out the older one.
#[test]
fn a_flush_of_buffered_commits_leaves_out_nobody_who_is_older() {
    explored(12, |shape| Shape { commit: Commit::Buffered, guarded_percent: 40, checkpoint_one_in: 3, steps: 60, ..shape });
}
