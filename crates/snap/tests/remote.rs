//! System calls in a target's name: right results, and a target that does not notice, even if the tool is killed in the middle.

mod support;

use std::time::{Duration, Instant};

use rand::prelude::*;
use support::{Running, compile};
use towa_snap::freeze::Frozen;
use towa_snap::remote::{Call, Stub};

/// Freezes, has every thread make calls, and lets it go.
fn visit(pid: i32, stub: &mut Option<Stub>) {
    let frozen = Frozen::freeze(pid).expect("it can be frozen");
    if stub.is_none() {
        *stub = Some(Stub::install(frozen.threads()).expect("there is a way in"));
    }
    let stub = stub.as_mut().expect("installed");
    stub.choose_signal(frozen.threads()).expect("one is free");
    for &tid in frozen.threads() {
        let calls: Vec<Call> = (0..20).flat_map(|_| [Call::new(libc::SYS_getpid, &[]), Call::new(libc::SYS_gettid, &[])]).collect();
        let results = stub.run(tid, &calls).expect("it makes the calls");
        assert!(results.chunks(2).all(|pair| pair == [i64::from(pid), i64::from(tid)]), "{results:?}");
    }
}

#[test]
fn threads_make_calls_and_do_not_notice() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("busy", dir.path(), &[]) else { return };
    let mut rng = SmallRng::seed_from_u64(1);
    let target = Running::start(&program, &["2.5"]);
    let mut stub = None;
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        visit(target.pid(), &mut stub);
        std::thread::sleep(Duration::from_micros(rng.random_range(0..15_000)));
    }
    target.must_succeed();
}

#[test]
fn a_killed_tool_leaves_the_target_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("busy", dir.path(), &[]) else { return };
    let mut rng = SmallRng::seed_from_u64(2);
    for _ in 0..8 {
        let target = Running::start(&program, &["1.2"]);
        let (pid, began) = (target.pid(), Instant::now());
        while began.elapsed() < Duration::from_millis(700) {
            // SAFETY: the child goes on alone with nothing but this thread, makes no use of locks that others may hold (none run), and ends.
            let tool = unsafe { libc::fork() };
            if tool == 0 {
                let mut stub = None;
                loop {
                    visit(pid, &mut stub);
                }
            }
            std::thread::sleep(Duration::from_micros(rng.random_range(0..12_000)));
            // SAFETY: our own child, which is waited for.
            unsafe {
                libc::kill(tool, libc::SIGKILL);
                libc::waitpid(tool, std::ptr::null_mut(), 0);
            }
        }
        target.must_succeed();
    }
}
