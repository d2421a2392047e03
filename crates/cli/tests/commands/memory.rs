//! serve: how much memory it takes, and that it keeps to what it says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::server::{Client, Mount, Server};
use crate::{command, passes, s};

const MIB: u64 = 1 << 20;
/// What does not depend on `-m`: the log, space taken ahead, the program with its threads and buffers.
const PROGRAM: u64 = (8 + 20 + 16) * MIB;

fn args<'a>(pool: &'a Path, limit: &'a str) -> Vec<&'a str> {
    vec!["-p", "0", "-t", "2", "-c", "64", "-I", "256k", "--log-mb", "8", "--pool", s(pool), "-m", limit]
}

/// Memory that keeps its files, or else a directory anywhere, which is not looked at then.
fn in_memory() -> Option<tempfile::TempDir> {
    let dir = tempfile::Builder::new().prefix("towa-memory-").tempdir_in("/dev/shm").ok();
    if dir.is_none() {
        eprintln!("SKIP: what a pool in memory takes needs /dev/shm");
    }
    dir
}

/// Bytes that a server takes: its own, and those of its pool's files where they lie in memory.
fn taken(server: &Server, files: Option<&Path>) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    };
    let files =
        files.map_or(0, |pool| ["image", "log"].iter().map(|name| fs::metadata(pool.join(name)).unwrap().blocks() * 512).sum());
    kib("RssAnon:") + files
}

/// Stores that many items of 4000 bytes; how many were refused.
fn fill(client: &mut Client, items: usize) -> usize {
    (0..items).filter(|i| client.set(&format!("k{i}"), 4000) != "STORED").count()
}

fn kept(client: &mut Client, items: usize) -> usize {
    (0..items).filter(|i| client.get(&format!("k{i}"))).count()
}

/// The bound that a server says.
fn most(server: &Server) -> u64 {
    let said = server.ready.split("memory at most ").nth(1).unwrap();
    let mut words = said.split([' ', ',']);
    let number: f64 = words.next().unwrap().parse().unwrap();
    let unit = match words.next().unwrap() {
        "MiB" => MIB,
        "GiB" => 1 << 30,
        other => panic!("{other} in {said:?}"),
    };
    (number * unit as f64) as u64
}

/// Waits until a server takes less than that.
fn wait_until_below(limit: u64, server: &Server, files: Option<&Path>) {
    let end = Instant::now() + Duration::from_secs(30);
    while taken(server, files) >= limit {
        assert!(Instant::now() < end, "{} bytes are taken, and not below {limit}: {}", taken(server, files), server.ready);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until a server has given up the items beyond a lower limit, and tells how many of 4000 bytes it has kept.
///
/// Its memory can be below the bound before: the bound counts a log, threads and buffers that a small server never fills.
fn kept_within(limit: u64, server: &Server) -> usize {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let left = kept(&mut server.client(), 25_000);
        if left as u64 * 4000 <= limit {
            return left;
        }
        assert!(Instant::now() < end, "{left} items of 4000 bytes in {limit} bytes: {}", server.ready);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn memory_follows_the_limit_down_and_up() {
    let stderr = tempfile::NamedTempFile::new().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let memory = in_memory();
    for dir in memory.iter().chain([&disk]) {
        let pool = dir.path().join("pool");
        let is_in_memory = Some(dir.path()) == memory.as_ref().map(|dir| dir.path());
        let files = is_in_memory.then_some(&*pool);
        for round in 0..2 {
            let server = Server::start(&args(&pool, "64"), stderr.path());
            assert_eq!(fill(&mut server.client(), 25_000), 0);
            let (taken, least) = (taken(&server, files), 60 * MIB);
            assert!((least..67 * MIB + PROGRAM).contains(&taken), "{taken} bytes with -m 64, round {round}");
            assert!(taken <= most(&server), "{taken} bytes, and at most {} it said", most(&server));
            let (signal, status) = if round == 0 { (libc::SIGKILL, -libc::SIGKILL) } else { (libc::SIGTERM, 0) };
            assert_eq!(server.end(signal), Some(status));

            let server = Server::start(&args(&pool, "16"), stderr.path());
            assert!(server.ready.ends_with("once items beyond -m are given up"), "{}", server.ready);
            wait_until_below(17 * MIB + PROGRAM, &server, files);
            assert!(self::taken(&server, files) <= most(&server));
            let left = kept_within(16 * MIB, &server);
            assert!(left > 2000, "{left} items of 4000 bytes in 16 MiB");
            assert_eq!(server.end(libc::SIGTERM), Some(0));
            passes(&["verify", s(&pool)]);

            let server = Server::start(&args(&pool, "16"), stderr.path());
            assert!(!server.ready.contains("once"), "{}", server.ready);
            assert!(self::taken(&server, files) < 17 * MIB + PROGRAM, "what was given back stays so");
            // The other one may have given up some more after that.
            let there = kept(&mut server.client(), 25_000);
            assert!((2000..=left).contains(&there), "{there} items, of {left}");
            assert_eq!(server.end(libc::SIGTERM), Some(0));
        }
    }
}

/// Other files take the memory that a pool has given back.
#[test]
fn memory_that_others_took_is_no_fault() {
    let Some(disk) = Mount::of("96m") else { return };
    let pool = disk.path().join("pool");
    let stderr = tempfile::NamedTempFile::new().unwrap();
    let server = Server::start(&args(&pool, "56"), stderr.path());
    assert_eq!(fill(&mut server.client(), 20_000), 0);
    assert_eq!(server.end(libc::SIGTERM), Some(0));
    let server = Server::start(&args(&pool, "16"), stderr.path());
    wait_until_below(17 * MIB + PROGRAM, &server, Some(&pool));
    assert_eq!(server.end(libc::SIGTERM), Some(0));

    let filler = fs::File::create(disk.path().join("filler")).unwrap();
    let mut len = 0;
    // SAFETY: a call on a descriptor that is open.
    while unsafe { libc::fallocate(std::os::fd::AsRawFd::as_raw_fd(&filler), 0, len, MIB as i64) } == 0 {
        len += MIB as i64;
    }
    let server = Server::start(&args(&pool, "56"), stderr.path());
    let mut client = server.client();
    let there = kept(&mut client, 20_000);
    assert!(there > 2000, "{there} items are left");
    // It evicts as if `-m` were reached, or refuses; and it lives.
    let answers: Vec<String> = (0..10_000).map(|i| client.set(&format!("n{i}"), 4000)).collect();
    assert!(answers.iter().all(|a| a == "STORED" || a.starts_with("SERVER_ERROR out of memory")), "{answers:?}");
    assert!(client.ask(b"durable now\r\n").starts_with("DURABLE"));
    assert_eq!(server.end(libc::SIGKILL), Some(-libc::SIGKILL));
    drop((filler, fs::remove_file(disk.path().join("filler"))));
    passes(&["verify", s(&pool)]);
    let server = Server::start(&args(&pool, "56"), stderr.path());
    assert_eq!(fill(&mut server.client(), 20_000), 0);
    assert_eq!(server.end(libc::SIGTERM), Some(0));
}

/// A control group of this name with a limit, for the processes that are started in it; removed when dropped.
struct Group {
    dir: PathBuf,
}

impl Group {
    fn of(name: &str, limit: u64) -> Option<Group> {
        let places = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (above, file) in places {
            let dir = Path::new(above).join(format!("{name}-{}", std::process::id()));
            if Path::new(above).join("cgroup.procs").exists() && fs::create_dir(&dir).is_ok() {
                let group = Group { dir };
                if fs::write(group.dir.join(file), limit.to_string()).is_ok() {
                    return Some(group);
                }
            }
        }
        eprintln!("SKIP: a control group of one's own needs root and a mounted hierarchy");
        None
    }

    /// Has `command` run in it.
    fn take_in(&self, command: &mut Command) {
        let procs = self.dir.join("cgroup.procs");
        // SAFETY: between fork and exec, a write to a file whose name was made before; nothing else of the process is used.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }

    fn start(&self, args: &[&str], stderr: &Path) -> Server {
        Server::start_with(args, stderr, |command| self.take_in(command))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; the kernel may take a moment to see it.
        while fs::read_to_string(self.dir.join("cgroup.procs")).is_ok_and(|all| !all.is_empty()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::remove_dir(&self.dir).unwrap();
    }
}

#[test]
fn a_control_group_lowers_the_limit_and_is_survived() {
    let Some(group) = Group::of("towa-test-memory", 160 * MIB) else { return };
    let stderr = tempfile::NamedTempFile::new().unwrap();
    let disk = tempfile::tempdir().unwrap();
    let memory = in_memory();
    for dir in memory.iter().chain([&disk]) {
        let pool = dir.path().join("pool");
        for round in 0..2 {
            let server = group.start(&args(&pool, "256"), stderr.path());
            let said = server.said();
            assert!(said.contains("-m 256 becomes") && said.contains(s(&group.dir)), "{said:?}");
            assert!(most(&server) <= 160 * MIB, "{}", server.ready);
            assert_eq!(fill(&mut server.client(), 60_000), 0, "round {round}");
            assert_eq!(server.end(libc::SIGKILL), Some(-libc::SIGKILL), "it was alive");
        }
        let server = group.start(&args(&pool, "256"), stderr.path());
        assert!(kept(&mut server.client(), 60_000) > 5000);
        assert_eq!(server.end(libc::SIGTERM), Some(0));
        fs::remove_dir_all(&pool).unwrap();
    }
    let Some(small) = Group::of("towa-test-small", 24 * MIB) else { return };
    let pool = disk.path().join("pool");
    let mut command = command(&[&["serve"], &args(&pool, "256")[..]].concat());
    small.take_in(&mut command);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the control group allows") && said.contains(s(&small.dir)), "{said}");
    assert!(!output.status.success() && !pool.exists());
}

#[test]
fn a_bound_is_said_with_no_pool_too() {
    let stderr = tempfile::NamedTempFile::new().unwrap();
    let server = Server::start(&["--volatile", "-p", "0", "-m", "32", "-c", "16", "-I", "64k", "-t", "1"], stderr.path());
    assert!(most(&server) < 100 * MIB, "{}", server.ready);
    assert_eq!(fill(&mut server.client(), 12_000), 0);
    let taken = taken(&server, None);
    assert!(taken <= most(&server), "{taken} bytes: {}", server.ready);
    let stats = passes(&["stats", "--json", server.address()]);
    assert_eq!(crate::json(&stats)["towa"]["memory_most"].as_u64().unwrap() / MIB, most(&server) / MIB);
    assert_eq!(server.end(libc::SIGTERM), Some(0));
}
