//! A store of which any byte may be another: see `store_edits`. The fuzz target `xip_store` goes on from here.
//!
//! `TOWA_SEED` repeats a run; `TOWA_ROUNDS` says how long it is.

mod store_edits;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn a_store_of_any_bytes_is_looked_at_and_never_joined_to_another_program() {
    let (seed, rounds) = (setting("TOWA_SEED", 20_261_126), setting("TOWA_ROUNDS", 300));
    println!("TOWA_SEED={seed} TOWA_ROUNDS={rounds}");
    let scene = store_edits::Scene::new();
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..rounds {
        let mut input = vec![0; 2 + 6 * rng.random_range(1..4)];
        rng.fill_bytes(&mut input);
        scene.run(&input);
    }
}
