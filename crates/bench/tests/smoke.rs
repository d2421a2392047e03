//! The benchmark's sections, each for a second or two, against the real engine and real peers.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use towa_bench::cache::{self, sequence::CacheLoad};
use towa_bench::cleanup::{Running, Scratch};
use towa_bench::engines::{Plan, Rig};
use towa_bench::peers::Setup;
use towa_bench::progress::Progress;
use towa_bench::recovery::{self, Children};
use towa_bench::serving;
use towa_bench::workload::Workload;

/// Memory-backed if there is such a place, so that a slow disk does not slow the tests.
fn scratch() -> Scratch {
    let shm = PathBuf::from("/dev/shm");
    Scratch::within(&if shm.is_dir() { shm } else { std::env::temp_dir() }).unwrap()
}

fn medium_of(scratch: &Scratch) -> towa_media::Kind {
    towa_media::detect(scratch.path()).unwrap().kind
}

/// The example program, which cargo builds along with the tests.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let program = test.parent()?.parent()?.join("examples/epoch_bench");
    if !program.is_file() {
        println!("SKIP: {} is not built; run the tests of the whole crate", program.display());
        return None;
    }
    Some(program)
}

#[test]
fn engines_take_turns_and_every_figure_is_there() {
    let scratch = scratch();
    let interval = Duration::from_millis(20);
    let progress = Progress::new();
    let mut rig = Rig::new(scratch.path(), medium_of(&scratch), 2000, interval, 1, &progress).unwrap();
    let plan = Plan {
        workloads: vec![Workload::YcsbA, Workload::HashmapWrite],
        threads: 2,
        rounds: 2,
        round: Duration::from_millis(150),
        stretches: vec![Workload::YcsbA],
        time: (0.0, 1.0),
    };
    let reports = rig.run(&plan, &progress).unwrap();
    assert_eq!(reports.keys().collect::<Vec<_>>(), ["hashmap_write", "ycsb_a"]);
    for (name, report) in &reports {
        for ops in [report.ops_volatile, report.ops_towa, report.ops_cpnvm, report.ops_control] {
            assert!(ops.unwrap() > 1000.0, "{name}: {report:?}");
        }
        let ratio = report.ratio_to_volatile.unwrap();
        // The median of two rounds is their mean, and so short a round may be taken from one engine: the lower of them counts.
        let [least, _] = report.ratio_to_volatile_range.unwrap();
        assert!(ratio > 0.0 && least < 5.0, "{name}: ratio {ratio}, {least} at least");
        for shares in [&report.volatile, &report.towa, &report.cpnvm, &report.control] {
            let shares = shares.as_ref().unwrap();
            assert_eq!(shares.windows, 3000, "{name}: two rounds of 1500 windows");
            assert!(shares.stop_share_10 <= shares.stop_share_30 && shares.stop_share_30 <= shares.stop_share_50);
        }
        let engine = report.towa_engine.as_ref().unwrap();
        assert!(engine.checkpoints > 0 && engine.logged_bytes_per_checkpoint > 1024, "{name}: {engine:?}");
        // Writes to one line within an epoch coalesce, so on so small a store the ratio may be far below 1; never 0.
        assert!(engine.write_amplification.unwrap() > 0.01, "{name}: {engine:?}");
    }
    assert_eq!(reports["ycsb_a"].stretch_100us.as_ref().unwrap().towa.len(), 1500);
    assert!(reports["hashmap_write"].stretch_100us.is_none());
}

#[test]
fn a_killed_heap_reopens_both_ways() {
    let Some(program) = program() else { return };
    let scratch = scratch();
    let medium = if medium_of(&scratch) == towa_media::Kind::Ram { "ram" } else { "file" };
    let children = Children { program, medium: medium.into(), interval: Duration::from_millis(20), seed: 3 };
    let mut skipped = Vec::new();
    let points = recovery::run(&children, &scratch, &[8], true, &mut Progress::new(), &mut skipped).unwrap();
    if points.is_empty() {
        println!("SKIP: {skipped:?}");
        return;
    }
    assert_eq!(points[0].heap_mb, 8);
    assert!(points[0].lazy_ms.unwrap() > 0.0 && points[0].eager_ms.unwrap() > 0.0, "{points:?}");
}

#[test]
fn servers_take_turns_and_are_killed() {
    let scratch = scratch();
    let medium = if medium_of(&scratch) == towa_media::Kind::Ram { "ram" } else { "file" };
    let towa = program().unwrap_or_else(|| "/proc/nonexistent/towa".into());
    let setup = Setup { towa, medium: medium.into(), interval: Duration::from_millis(50), threads: 1, memory_mb: 64 };
    let length = Duration::from_millis(200);
    let plan = serving::Plan { keys: 2000, rounds: 2, round: length, connections: 4, seed: 1, due: 1.0 };
    let mut skipped = Vec::new();
    let reports = serving::run(&setup, &plan, &scratch, &mut Progress::new(), &mut skipped).unwrap();
    for (name, kept) in [("memcached", 0.0), ("redis_aof", 1.0), ("towa", 1.0), ("towa_volatile", 0.0)] {
        let Some(report) = &reports[name] else {
            println!("SKIP: {skipped:?}");
            continue;
        };
        assert!(report.ops > 100.0 && report.p50 > 0.0, "{report:?}");
        assert!(report.p50 <= report.p99 && report.p99 <= report.p999 && report.p999 <= report.max, "{report:?}");
        assert_eq!(report.kept_share, Some(kept), "{name} after SIGKILL: {skipped:?}");
        assert!(report.restart_first_answer_ms.unwrap() > 0.0);
        let written = report.bytes_written.unwrap();
        assert_eq!(written > 2000 * 500, kept > 0.0, "{name} wrote {written} bytes");
    }
    assert_eq!(reports["towa"].is_some(), setup.towa.is_file(), "{skipped:?}");
}

#[test]
fn caches_take_turns_on_the_same_requests() {
    let scratch = scratch();
    let medium = if medium_of(&scratch) == towa_media::Kind::Ram { "ram" } else { "file" };
    let towa = program().unwrap_or_else(|| "/proc/nonexistent/towa".into());
    let setup = Setup { towa, medium: medium.into(), interval: Duration::from_millis(50), threads: 1, memory_mb: 64 };
    let plan = cache::Plan {
        loads: CacheLoad::ALL.to_vec(),
        memory_mb: 32,
        memory_small_mb: 16,
        rounds: 2,
        round: Duration::from_millis(120),
        connections: 4,
        seed: 1,
    };
    let mut skipped = Vec::new();
    let reports = cache::run(&setup, &plan, &scratch, &mut Progress::new(), &mut skipped);
    for load in CacheLoad::ALL {
        let report = &reports[load.name()];
        for (name, server) in &report.server {
            let Some(server) = server else {
                println!("SKIP: {skipped:?}");
                continue;
            };
            let told = skipped.iter().any(|why| why.contains(load.name()) && why.contains(name));
            assert!(!told || name == "towa", "{skipped:?}");
            assert!(server.ops > 0.0 && server.ops_by_round.len() == 2, "{load:?}, {name}: {server:?}");
            assert!(server.get.p50 > 0.0 && server.get.p50 <= server.get.p999 && server.get.p999 <= server.get.max, "{server:?}");
            let hits = server.hit_rate.unwrap();
            assert!(hits > 0.05 && hits < 1.0, "{load:?}, {name}: {hits} of the reads found a value");
            // memcached gives each class of sizes a page, however small its limit is, so a small cache of small items grows first.
            assert!(server.evictions.unwrap() > 0 || load == CacheLoad::Etc, "{load:?}, {name}: {server:?}");
            assert!(server.resident_mb.unwrap() > 6.0, "{load:?}, {name}: {server:?}");
            assert!(server.requests > 0 && server.requests <= report.requests, "{load:?}, {name}: {server:?}");
        }
        let both = report.server.values().all(Option::is_some);
        assert_eq!(report.ratio_to_memcached.is_some(), both, "{load:?}: {report:?}");
    }
}

#[test]
fn a_server_that_cannot_be_started_is_told_and_the_others_run_on() {
    let scratch = scratch();
    let setup =
        Setup { towa: "/bin/false".into(), medium: "ram".into(), interval: Duration::from_millis(50), threads: 1, memory_mb: 64 };
    let length = Duration::from_millis(50);
    let plan = serving::Plan { keys: 100, rounds: 1, round: length, connections: 2, seed: 1, due: 1.0 };
    let mut skipped = Vec::new();
    let reports = serving::run(&setup, &plan, &scratch, &mut Progress::new(), &mut skipped).unwrap();
    assert!(reports["towa"].is_none());
    assert!(skipped.iter().any(|s| s.contains("server towa: towa did not start")), "{skipped:?}");
    if reports["memcached"].is_none() {
        println!("SKIP: {skipped:?}");
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let Some(program) = program() else { return };
    let parent = scratch();
    let mut command = Command::new(program);
    command.args(["--quick", "--only", "recovery", "--pool"]).arg(parent.path());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Running::spawn(&mut command).unwrap();
    let entries = || std::fs::read_dir(parent.path()).unwrap().count();
    let patience = Instant::now() + Duration::from_secs(30);
    while children_of(run.pid()).is_empty() {
        assert!(Instant::now() < patience, "the run starts no child");
        std::thread::sleep(Duration::from_millis(20));
    }
    let children = children_of(run.pid());
    assert_eq!(entries(), 1, "a directory of its own");
    assert!(Command::new("kill").args(["-TERM", &run.pid().to_string()]).status().unwrap().success());
    while run.ended().unwrap().is_none() {
        assert!(Instant::now() < patience, "SIGTERM does not end the run");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(run.ended().unwrap().unwrap().code(), Some(128 + 15));
    assert_eq!(entries(), 0, "its directory is still there");
    for child in children {
        let gone = || !PathBuf::from(format!("/proc/{child}/cmdline")).exists() || is_zombie(child);
        while !gone() {
            assert!(Instant::now() < patience, "child {child} is still there");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn is_zombie(pid: u32) -> bool {
    stat_fields(pid).is_none_or(|fields| fields[0] == "Z")
}

fn children_of(parent: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat_fields(*pid).is_some_and(|fields| fields[1] == parent.to_string())).collect()
}
