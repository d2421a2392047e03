//! A store of texts of which any byte may be another: never a panic, and no program but the one that was split.
//!
//! What an input is: `crates/xip/tests/store_edits/mod.rs`, which an ordinary test runs with random inputs.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/xip/tests/store_edits/mod.rs"]
mod store_edits;

fuzz_target!(|input: &[u8]| {
    static SCENE: OnceLock<store_edits::Scene> = OnceLock::new();
    SCENE.get_or_init(store_edits::Scene::new).run(input);
});
