//! Several connections of one worker, any of them dropped anywhere: each gets what it gets alone, never another's answer.
//!
//! The input is a list of steps of three bytes: which connection, what it does, and how much of it.
#![no_main]

#[path = "../../crates/server/tests/it/crowd.rs"]
mod crowd;

use crowd::{Crowd, request};
use libfuzzer_sys::fuzz_target;

const CONNECTIONS: usize = 4;

/// Runs the steps; connections that are broken are replaced by new ones.
fn run(crowd: &mut Crowd, steps: &[u8]) {
    let mut lives = [(); CONNECTIONS].map(|()| Some(crowd.connect()));
    for step in steps.chunks_exact(3) {
        let place = &mut lives[step[0] as usize % CONNECTIONS];
        let life = *place.get_or_insert_with(|| crowd.connect());
        let much = usize::from(step[2]) * usize::from(step[2]) / 8;
        match step[1] {
            kind @ 0..128 => crowd.send(life, &request(&crowd.name(life), kind, much)),
            // A request in two pieces.
            kind @ 128..160 => {
                let bytes = request(&crowd.name(life), kind, 50);
                let (head, tail) = bytes.split_at(usize::from(step[2]) * bytes.len() / 256);
                crowd.say(life, head);
                crowd.send(life, tail);
            }
            160..176 => crowd.set_room(life, much),
            176..192 => crowd.set_room(life, usize::MAX),
            192..208 => crowd.break_reading(life, much),
            208..224 => crowd.break_writing(life, much),
            224..228 => crowd.send(life, b"debugtime panic\r\n"),
            228..232 => crowd.close(life),
            _ => crowd.serve(life),
        }
        if (192..232).contains(&step[1]) {
            crowd.serve(life);
            crowd.compare(life);
            *place = None;
        } else if step[0] & 128 != 0 {
            crowd.serve(life);
            crowd.compare(life);
        }
    }
    for life in lives.into_iter().flatten() {
        crowd.set_room(life, usize::MAX);
        crowd.serve(life);
        crowd.compare_all(life);
    }
    crowd.forget_from(0);
}

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
