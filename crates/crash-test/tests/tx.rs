//! The sweep of the tx door, in small, and that its worlds do what they are for.

use towa_crash_test::tx::{Settings, sweep};
use towa_media::sim::Model;

#[test]
fn every_crash_image_holds_what_returned_whole_and_with_its_causes() {
    for model in [Model::Line, Model::File] {
        let settings = Settings { seed: 1, images: 3000, model: Some(model) };
        let report = sweep(&settings, &mut |_| ()).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.images_in_recovery > 0 && report.exhaustive_points > 0 && report.images_concurrent > 0, "{report:?}");
        println!("{model:?}: {report:?}");
    }
}
