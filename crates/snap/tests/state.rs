//! What the kernel keeps for a process and its threads is found out, and the process does not notice.

mod support;

use support::{Running, compile};
use towa_snap::freeze::Frozen;
use towa_snap::remote::Stub;
use towa_snap::state::process::refusals;
use towa_snap::state::told;

#[test]
fn a_process_and_its_threads_are_described() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("keeps", dir.path(), &[]) else { return };
    let file = dir.path().join("go-on");
    let mut target = Running::start(&program, &[file.to_str().unwrap()]);
    let pid = target.pid();
    assert_eq!(refusals(pid, None, 0).unwrap(), []);
    let (process, threads) = {
        let frozen = Frozen::freeze(pid).unwrap();
        let mut stub = Stub::install(frozen.threads()).unwrap();
        stub.choose_signal(frozen.threads()).unwrap();
        let mut look = || told::ask(&frozen, &mut stub).and_then(|told| told.look(&frozen, stub.signal())).unwrap();
        let (process, threads) = look();
        assert_eq!(process.layout, look().0.layout);
        (process, threads)
    };

    assert_eq!(
        (process.pid, process.program, process.umask, process.subreaper),
        (pid, program.canonicalize().unwrap(), 0o027, true)
    );
    assert_eq!(process.arguments, [program.to_str().unwrap(), file.to_str().unwrap()]);
    assert_eq!(process.limits[libc::RLIMIT_NOFILE as usize], (100, 200));
    let action = process.actions[libc::SIGUSR1 as usize - 1];
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64;
    assert_eq!((action[1] & flags, action[3]), (flags, 1 << (libc::SIGTERM - 1)));
    assert!(action[0] > 1 && process.actions[libc::SIGPIPE as usize - 1][0] == libc::SIG_IGN as u64);
    assert_eq!(process.pending.len(), 3);
    let (value, interval) = process.interval_timers[0];
    assert!((3_500_000_000_000..=3_600_000_000_000).contains(&value) && interval == 5_000_000, "{value} {interval}");
    let [timer] = &process.timers[..] else { panic!("{:?}", process.timers) };
    assert_eq!(
        (timer.clock, timer.signal, timer.value & 0xffff_ffff, timer.notify),
        (1, libc::SIGRTMIN() + 3, 42, libc::SIGEV_SIGNAL)
    );
    assert!(timer.value_ns > 7_000_000_000_000 && timer.interval_ns == 7_000_000_000, "{timer:?}");
    assert!(process.layout.brk.0 > 0 && process.layout.brk.1 >= process.layout.brk.0 && process.layout.stack > 0);

    let [leader, other] = &threads[..] else { panic!("{threads:?}") };
    assert_eq!((leader.tid, &leader.name[..], leader.scheduling.1, leader.death_signal), (pid, "keeps) it", 5, libc::SIGHUP));
    assert_eq!(leader.mask, 1 << (libc::SIGUSR2 - 1) | 1 << (libc::SIGRTMIN() + 5 - 1));
    assert_eq!((&other.name[..], other.altstack.2, other.mask), ("the-thread", 32768, leader.mask));
    for thread in &threads {
        assert!(thread.robust_list.0 > 0 && thread.tid_address > 0 && thread.rseq.size > 0, "{thread:?}");
        assert!(thread.user_registers().unwrap().rsp > 0 && thread.xstate.len() > 1000);
    }

    // Both sleep a moment, again and again: that is seen sooner or later.
    let sleeps = || {
        let frozen = Frozen::freeze(pid).unwrap();
        let mut stub = Stub::install(frozen.threads()).unwrap();
        stub.choose_signal(frozen.threads()).unwrap();
        let (_, threads) = told::ask(&frozen, &mut stub).and_then(|told| told.look(&frozen, stub.signal())).unwrap();
        threads[0].sleeps_in == Some(libc::SYS_clock_nanosleep as u64)
    };
    assert!((0..200).any(|_| sleeps()), "it was never seen to sleep");

    std::fs::write(&file, "").unwrap();
    assert_eq!(target.line(), "kept");
    target.must_succeed();
}

/// More than ask at once, and more questions than there is room for in one table.
#[test]
fn many_threads_and_timers_are_each_described() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("many", dir.path(), &[]) else { return };
    /// Nanoseconds by which one timer is later than another; they go off long after this.
    const APART: u64 = 100_000_000_000;
    for (threads, timers) in [(1, 0), (16, 5), (17, 20), (50, 200), (3, 400)] {
        let target = Running::start(&program, &[&threads.to_string(), &timers.to_string()]);
        // The thread that said so ends.
        let began = std::time::Instant::now();
        while std::fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap().count() as u64 > threads {
            assert!(began.elapsed() < std::time::Duration::from_secs(30), "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let frozen = Frozen::freeze(target.pid()).unwrap();
        let mut stub = Stub::install(frozen.threads()).unwrap();
        stub.choose_signal(frozen.threads()).unwrap();
        let (process, found) = told::ask(&frozen, &mut stub).and_then(|told| told.look(&frozen, stub.signal())).unwrap();
        let mut stacks: Vec<u64> = found.iter().map(|thread| thread.altstack.2).collect();
        assert_eq!(stacks[0], 16384, "the leader's");
        stacks.sort_unstable();
        assert_eq!(stacks, (0..threads).map(|n| 16384 + n * 64).collect::<Vec<u64>>());
        let mut times: Vec<u64> = process.timers.iter().map(|timer| timer.value_ns.div_ceil(APART)).collect();
        times.sort_unstable();
        assert_eq!(times, (0..timers).map(|n| 10 + n).collect::<Vec<u64>>());
    }
}

#[test]
fn a_thread_with_descriptors_of_its_own_is_refused() {
    const CLONE_FILES: u32 = libc::CLONE_FILES as u32;
    let program = format!(
        "import ctypes, threading, time\n\
         threading.Thread(target=lambda: (ctypes.CDLL(None).unshare({CLONE_FILES}), time.sleep(60)), daemon=True).start()\n\
         time.sleep(60)"
    );
    let mut python = std::process::Command::new("python3").args(["-c", &program]).spawn().unwrap();
    let began = std::time::Instant::now();
    let refused = loop {
        // Until it has made the thread it may be refused for what its start takes.
        let refused = refusals(python.id() as i32, None, 0).unwrap();
        let is_named = refused.iter().any(|one| one.what.contains("table of descriptors of its own"));
        if is_named || began.elapsed().as_secs() > 20 {
            break refused;
        }
    };
    python.kill().unwrap();
    python.wait().unwrap();
    assert!(refused.iter().any(|one| one.what.contains("table of descriptors of its own")), "{refused:?}");
}

#[test]
fn processes_that_are_not_alone_are_refused() {
    let mut shell = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
    let refused = loop {
        let refused = refusals(shell.id() as i32, None, 0).unwrap();
        if refused.iter().any(|one| one.what.contains("(sleep)")) {
            break refused;
        }
    };
    assert_eq!(refused.len(), 1, "{refused:?}");
    let child: i32 = refused[0].what.split_whitespace().find_map(|word| word.parse().ok()).expect("it names the child");
    assert_eq!(refusals(shell.id() as i32, Some(child), 0).unwrap(), []);
    // SAFETY: a child of our child, which we have just seen.
    unsafe { libc::kill(child, libc::SIGKILL) };
    shell.kill().unwrap();
    shell.wait().unwrap();
}
