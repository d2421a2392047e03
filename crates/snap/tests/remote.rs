//! System calls in a target's name: right results, and a target that does not notice, even if the tool is killed in the middle.

mod support;

use std::time::{Duration, Instant};

use rand::prelude::*;
use support::{Running, compile};
use towa_snap::freeze::Frozen;
use towa_snap::remote::{Call, Stub, TOGETHER};

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
    for some in frozen.threads().chunks(TOGETHER) {
        let asks = |tid: &i32| (*tid, (0..1 + *tid as usize % 7).map(|_| Call::new(libc::SYS_gettid, &[])).collect());
        let jobs: Vec<(i32, Vec<Call>)> = some.iter().map(asks).collect();
        let results = stub.run_each(&jobs).expect("they make the calls");
        for ((tid, calls), results) in jobs.iter().zip(&results) {
            assert_eq!(*results, vec![i64::from(*tid); calls.len()]);
        }
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

/// A forked tool works until it is killed. Should its target end before, so does it, and drops nothing that is its parent's.
fn as_tool(mut work: impl FnMut()) -> ! {
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        loop {
            work();
        }
    }));
    // SAFETY: ends this process.
    unsafe { libc::_exit(1) }
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
                as_tool(|| visit(pid, &mut stub));
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

/// Memory without a file that may be executed, and KiB of all memory.
fn foreign_to(pid: i32) -> (Vec<String>, u64) {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it lives");
    let is_code = |line: &&str| line.split_whitespace().nth(1).is_some_and(|prot| prot.contains('x'));
    let all = read("maps");
    let code = all.lines().filter(is_code).filter(|line| line.split_whitespace().count() == 5).map(str::to_owned).collect();
    let size = read("status").lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().trim_end_matches(" kB").parse().ok());
    (code, size.expect("a size"))
}

#[test]
fn what_a_killed_tool_had_begun_is_cleared_away() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("busy", dir.path(), &[]) else { return };
    let mut rng = SmallRng::seed_from_u64(3);
    let target = Running::start(&program, &["600"]);
    let pid = target.pid();
    // Its threads have their stacks.
    visit(pid, &mut None);
    clear(pid);
    let (none, before) = foreign_to(pid);
    assert_eq!(none, Vec::<String>::new());
    let (mut begun, mut whole, began) = (0, 0, Instant::now());
    while begun < 5 || whole == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "tools died with {whole} whole stubs, {begun} begun ones");
        // SAFETY: as above.
        let tool = unsafe { libc::fork() };
        if tool == 0 {
            as_tool(|| {
                let frozen = Frozen::freeze(pid).expect("it can be frozen");
                let stub = Stub::install(frozen.threads()).expect("there is a way in");
                stub.remove(frozen.threads()).expect("and out");
            });
        }
        std::thread::sleep(Duration::from_micros(rng.random_range(300..60_000)));
        // SAFETY: our own child, which is waited for.
        unsafe {
            libc::kill(tool, libc::SIGKILL);
            libc::waitpid(tool, std::ptr::null_mut(), 0);
        }
        let (left, _) = foreign_to(pid);
        let unfinished = left.iter().any(|line| line.contains(" -wx"));
        begun += u32::from(unfinished);
        whole += u32::from(!left.is_empty() && !unfinished);
        // Now and then only: so that several lie there, side by side.
        if rng.random_bool(0.3) {
            clear(pid);
            assert_eq!(foreign_to(pid), (Vec::new(), before));
        }
    }
    println!("{begun} begun, {whole} whole");
    clear(pid);
    assert_eq!(foreign_to(pid), (Vec::new(), before));
}

/// As a tool does that lives.
fn clear(pid: i32) {
    // A signal handler that returns to what is left may have been on a stack: the next one clears it away.
    for _ in 0..3 {
        let frozen = Frozen::freeze(pid).expect("it can be frozen");
        let stub = Stub::install_or_adopt(frozen.threads()).expect("there is a way in");
        stub.remove(frozen.threads()).expect("and out");
        drop(frozen);
        std::thread::sleep(Duration::from_millis(2));
    }
}
