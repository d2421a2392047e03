//! The sweep itself, in small, and that its worlds do what they are for.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use towa_crash_test::epoch::{History, Settings, Shape, World, sweep};
use towa_heap::superblock::Door;
use towa_heap::verify;
use towa_media::sim::{EventKind, Model, SimMedium};

#[test]
fn every_crash_image_recovers_to_an_acknowledged_epoch() {
    for model in [Model::Line, Model::File] {
        let settings = Settings { seed: 1, images: 3000, model: Some(model) };
        let report = sweep(&settings, &mut |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.images_in_recovery > 0 && report.exhaustive_points > 0, "{report:?}");
        println!("{model:?}: {report:?}");
    }
}

/// The worlds of a sweep do what their shapes are for: rings and commit slots wrap, with pad frames before the ring's end, on both
/// models, pools are closed and reopened, and chunks are cleared.
#[test]
fn worlds_wrap() {
    let mut seen = [0; 5];
    for seed in 0..40 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let medium = SimMedium::new(if seed % 2 == 0 { Model::Line } else { Model::File });
        let mut history = History::default();
        let fixed = Shape::draw(&mut rng);
        for _ in 0..3 {
            let shape = fixed.reopened(&mut rng);
            let world = World::run_shaped(medium.clone(), &mut rng, history, &shape).expect("work without faults");
            history = world.history;
            seen[4] += usize::from(world.cleared > 0);
            seen[3] += usize::from(shape.close);
        }
        let report = verify(&medium, Door::Epoch, &mut |_, _| ()).expect("a sound pool");
        let newest = report.epoch;
        seen[0] += usize::from(newest > u64::from(fixed.commit_slots));
        let slots = u64::from(fixed.commit_slots) * 4096;
        let trace = medium.trace();
        let ends = trace.events().filter_map(|event| {
            let (off, len) = event.range().filter(|_| event.kind() == EventKind::Stream && event.region() == Some("log"))?;
            Some((off - slots, len))
        });
        let at: Vec<_> = ends.collect();
        seen[1] += usize::from(at.windows(2).any(|pair| pair[1].0 < pair[0].0));
        // A pad is a header alone, whose frame reaches the end.
        seen[2] += usize::from(at.windows(2).any(|pair| pair[0].1 == 64 && pair[1].0 == 0));
    }
    println!(
        "of 40 worlds: commit slots wrapped in {}, rings in {}, with pads in {}; {} closings, {} with chunks cleared",
        seen[0], seen[1], seen[2], seen[3], seen[4]
    );
    assert!(seen.iter().all(|n| *n >= 5), "{seen:?}");
}
