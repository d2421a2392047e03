//! Several connections of one worker, any of them dropped anywhere: each gets what it gets alone, never another's answer.
//!
//! The input is a list of steps of three bytes, which `crowd` explains.
#![no_main]

#[path = "../../crates/server/tests/it/crowd.rs"]
mod crowd;

use crowd::{Crowd, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|steps: &[u8]| {
    // A panic of a request is part of what is tried, and caught; libFuzzer's hook would end the process.
    std::panic::set_hook(Box::new(|_| {}));
    let mut crowd = Crowd::new();
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut crowd, steps))) {
        let what = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
        eprintln!("{what}");
        std::process::abort();
    }
});
