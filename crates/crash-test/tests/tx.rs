//! The sweep of the tx door, in small, and that its worlds do what they are for.

use towa_crash_test::tx::{Settings, sweep};
use towa_media::sim::Model;

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
