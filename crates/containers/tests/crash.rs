//! Crashes at every moment of a random history, on both simulated media: what recovery finds must be the content at an epoch
//! boundary, the newest that was promised durable or a later one.

mod subjects;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use subjects::{Content, NAMES, open};
use towa_epoch::{Options, Pool};
use towa_media::sim::{Explorer, Model, SimMedium};

const IMAGES: usize = 1200;

fn options() -> Options {
    Options { heap_len: 8 << 20, log_len: Some(4 << 20), manual: true, detect_forgotten_marks: true, ..Options::default() }
}

fn sweep(which: &str, model: Model, seed: u64) {
    println!("{which} on {model:?}, seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let sim = SimMedium::new(model);
    let pool = Pool::create_on(Arc::new(sim.clone()), &options()).expect("create");
    let mut thread = pool.register().expect("register");
    let mut subject = open(which, &pool);
    pool.checkpoint().expect("checkpoint");
    let (begun, mut boundaries) = (sim.events(), vec![subject.content()]);
    sim.note(0);
    for _ in 0..12 {
        for _ in 0..rng.random_range(1..40) {
            subject.step(&mut thread, &mut rng);
        }
        subject.check();
        boundaries.push(subject.content());
        pool.checkpoint().expect("checkpoint");
        sim.note(boundaries.len() as u64 - 1);
        let forgotten = pool.take_forgotten_marks();
        assert!(forgotten.is_empty(), "{which}: written but not marked: {forgotten:?}");
    }
    // What follows is never checkpointed, so no crash may show it.
    subject.step(&mut thread, &mut rng);
    let trace = sim.trace();
    drop((subject, thread));
    drop(pool);

    let verdict = Explorer::new(trace, seed).starting_at(begun).check(IMAGES, |image| {
        let pool = Pool::open_on(Arc::new(image.to_medium()), &options()).map_err(|e| e.to_string())?;
        let subject = open(which, &pool);
        subject.check();
        let found = subject.content();
        let promised = image.last_note().unwrap_or(0) as usize;
        agrees(&boundaries, promised, &found)
    });
    match verdict {
        Ok(coverage) => println!("{coverage:?}"),
        Err(failure) => panic!("{which} on {model:?}: {failure}"),
    }
}

fn agrees(boundaries: &[Content], promised: usize, found: &Content) -> Result<(), String> {
    // The checkpoint under way may have become durable already.
    if boundaries[promised..].iter().take(2).any(|boundary| boundary == found) {
        return Ok(());
    }
    let which = boundaries.iter().position(|boundary| boundary == found);
    Err(format!("found the content of boundary {which:?} with {} items, {promised} was promised", found.len()))
}

#[test]
fn a_crash_on_durable_memory_leaves_a_boundary() {
    for (seed, which) in NAMES.iter().enumerate() {
        sweep(which, Model::Line, seed as u64);
    }
}

#[test]
fn a_crash_on_a_file_leaves_a_boundary() {
    for (seed, which) in NAMES.iter().enumerate() {
        sweep(which, Model::File, 100 + seed as u64);
    }
}
