//! The program itself on a real file system whose device fails one sync, at random, and works again later: it goes on or is killed, another
//! process opens what is there and works on, and the power is cut. Everything that was acknowledged is there, or the acknowledgement was
//! an error.
//!
//! ```text
//!   LD_PRELOAD   the n-th fsync, fdatasync, syncfs or msync of the process fails with EIO, and does nothing
//!   power cut    of an ext4 or XFS on a loop device (needs root): what was not synced is gone, the page cache, too
//! ```
//!
//! The simulated devices of other tests lose any page of a failed sync; here the kernel, the file system and the program are the real ones.
//! TOWA_SEED repeats the moments of a run, though not the machine's timing.

#[path = "../../snap/tests/places/mod.rs"]
mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use places::Place;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const ROUNDS: u64 = 24;

struct Device {
    place: Place,
    /// With the library that fails syncs, and what it says.
    dir: tempfile::TempDir,
    rng: SmallRng,
    failures: usize,
}

impl Device {
    /// One whose power can be cut; nothing, where there is none, or no compiler.
    fn new(salt: u64) -> Option<Device> {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/failing_device.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(dir.path().join("fails.so")).arg(source).arg("-ldl");
        if !cc.status().is_ok_and(|status| status.success()) {
            eprintln!("SKIP: no C compiler, so no library that fails syncs");
            return None;
        }
        let Some(place) = Place::ext4() else {
            eprintln!("SKIP: no file system of its own, whose power could be cut (needs root and loop devices)");
            return None;
        };
        let seed = std::env::var("TOWA_SEED").ok().and_then(|text| text.trim().parse().ok());
        let seed = seed.unwrap_or_else(|| SmallRng::from_os_rng().random_range(0..1_u64 << 40));
        println!("TOWA_SEED={seed}");
        Some(Device { place, dir, rng: SmallRng::seed_from_u64(seed ^ salt), failures: 0 })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.mount_point().join(name)
    }

    /// The program, of which one sync fails: one of the first so many.
    fn failing(&mut self, program: impl AsRef<std::ffi::OsStr>, first: u64) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", self.dir.path().join("fails.so")).env("TOWA_FAIL_LOG", self.dir.path().join("log"));
        command.env("TOWA_FAIL_AT", self.rng.random_range(1..=first).to_string());
        command
    }

    fn towa(&mut self, first: Option<u64>) -> Command {
        let towa = env!("CARGO_BIN_EXE_towa");
        let mut command = first.map_or_else(|| Command::new(towa), |first| self.failing(towa, first));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A process of which one of the first so many syncs fails; and often another one, without, before the power is cut: it makes durable what
    /// it finds.
    fn processes(&mut self, first: u64) -> Vec<Option<u64>> {
        if self.rng.random_bool(0.5) { vec![Some(first)] } else { vec![Some(first), None] }
    }

    /// The power is cut, and comes back.
    fn cut(&mut self) {
        self.place.cut();
        self.place.back();
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        self.failures = log.matches('F').count();
    }

    /// That it was put to the test.
    fn summary(&self, acknowledged: usize) {
        println!("{} syncs failed, {acknowledged} things were acknowledged", self.failures);
        assert!(self.failures as u64 >= ROUNDS / 4 && acknowledged > 0, "{} failures, {acknowledged} told", self.failures);
    }
}

fn said(out: &Output) -> String {
    format!("{}: {}{}", out.status, String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A server and the only client it has; killed when dropped.
struct Server {
    child: Child,
    stream: Option<(TcpStream, BufReader<TcpStream>)>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(device: &mut Device, first: Option<u64>) -> Server {
        let pool = device.at("pool");
        let mut command = device.towa(first);
        command.args([
            "serve",
            "--medium",
            "file",
            "--interval-ms",
            "5",
            "-p",
            "0",
            "-t",
            "1",
            "-m",
            "32",
            "--log-mb",
            "8",
            "--pool",
        ]);
        let mut child = command.arg(pool).stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        let address = line.strip_prefix("ready: ").and_then(|rest| rest.split_once(',')).map(|(address, _)| address.to_owned());
        let stream = address.map(|address| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            (stream.try_clone().unwrap(), BufReader::new(stream))
        });
        Server { child, stream }
    }

    fn ask(&mut self, text: &str, lines: usize) -> Vec<String> {
        let Some((stream, reader)) = &mut self.stream else { return Vec::new() };
        let _ = stream.write_all(text.as_bytes());
        reader.lines().take(lines).map_while(Result::ok).collect()
    }

    /// Whether it says that this is durable.
    fn keeps(&mut self, key: &str) -> bool {
        let answers = self.ask(&format!("set {key} 0 0 {}\r\n{key}\r\ndurable now\r\n", key.len()), 2);
        answers.len() == 2 && answers[0] == "STORED" && answers[1].starts_with("DURABLE ")
    }
}

#[test]
fn what_a_server_called_durable_is_there() {
    let Some(mut device) = Device::new(1) else { return };
    let mut told = Vec::new();
    for round in 0..ROUNDS {
        for (first, count) in device.processes(40).into_iter().map(|first| (first, if first.is_some() { 25 } else { 5 })) {
            let mut server = Server::start(&mut device, first);
            assert!(server.stream.is_some() || first.is_some(), "round {round}: it does not start");
            for n in 0..count {
                let key = format!("key-{round}-{}-{n}", first.is_some());
                let kept = server.keeps(&key);
                assert!(kept || first.is_some(), "round {round}: nothing fails, and {key} is not durable");
                told.extend(kept.then_some(key));
            }
        }
        device.cut();
        let mut server = Server::start(&mut device, None);
        for key in &told {
            let found = server.ask(&format!("get {key}\r\n"), 3);
            assert_eq!(found.get(1), Some(key), "round {round}: {found:?}");
        }
    }
    device.summary(told.len());
}

#[test]
fn transactions_that_returned_are_there() {
    let Some(mut device) = Device::new(2) else { return };
    let pool = device.at("pool");
    let mut acked: BTreeMap<u64, u64> = BTreeMap::new();
    let mut total = 0;
    for round in 0..ROUNDS {
        for first in device.processes(40) {
            let mut load = device.towa(first).arg("tx-load").arg(&pool).args(["--medium", "file"]).spawn().unwrap();
            let out = BufReader::new(load.stdout.take().unwrap());
            let id = load.id() as libc::pid_t;
            let killer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(if first.is_some() { 250 } else { 100 }));
                // SAFETY: the child is waited for when this has ended.
                unsafe { libc::kill(id, libc::SIGKILL) };
            });
            for line in out.lines().map_while(Result::ok) {
                let words: Vec<&str> = line.split_whitespace().collect();
                // The last line may be cut short: it counts only if it is whole.
                if let ["ACK", thread, n] = words[..] {
                    acked.insert(thread.parse().unwrap(), n.parse().unwrap());
                    total += 1;
                }
            }
            killer.join().unwrap();
            load.wait().unwrap();
        }
        device.cut();
        let text = (0..3).map(|n| acked.get(&n).copied().unwrap_or(0).to_string()).collect::<Vec<_>>().join(",");
        let check = device.towa(None).arg("tx-check").arg(&pool).args(["--medium", "file", "--acked", &text]).output().unwrap();
        // Where nothing returned there may be no pool.
        assert!(check.status.success() || acked.is_empty(), "round {round}: acked {text}: {}", said(&check));
    }
    device.summary(total);
}

/// Ends a program when dropped.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn checkpoints_that_were_told_are_there() {
    let Some(mut device) = Device::new(3) else { return };
    let mut sleep = Command::new("sleep");
    sleep.arg("10000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: one call of the system, with numbers. What the test has open would be the program's, too.
    unsafe {
        sleep.pre_exec(|| {
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32);
            Ok(())
        });
    }
    let program = Ends(sleep.spawn().unwrap());
    let (store, pid) = (device.at("checkpoints"), program.0.id().to_string());
    let mut told = BTreeSet::new();
    for round in 0..ROUNDS {
        for first in device.processes(12) {
            let taken = device.towa(first).args(["snap", "take", "--json"]).arg(&store).arg(&pid).output().unwrap();
            if !taken.status.success() {
                assert!(first.is_some(), "round {round}: nothing fails: {}", said(&taken));
                continue;
            }
            let said: serde_json::Value = serde_json::from_slice(&taken.stdout).unwrap();
            told.insert(said["checkpoint"].as_u64().unwrap());
        }
        device.cut();
        for number in &told {
            let out = device.towa(None).args(["snap", "verify"]).arg(format!("{}@{number}", store.display())).output().unwrap();
            assert!(out.status.success(), "round {round}: {number} of {told:?}: {}", said(&out));
        }
    }
    device.summary(told.len());
}

#[test]
fn programs_that_were_split_or_joined_run() {
    let Some(mut device) = Device::new(4) else { return };
    let (store, program) = (device.at("store"), device.at("echo"));
    std::fs::copy("/usr/bin/printf", &program).unwrap();
    assert!(Command::new("sync").status().unwrap().success());
    let mut told = 0;
    for round in 0..ROUNDS {
        for (what, first) in [("split", Some(25)), ("join", Some(8)), ("split", None), ("join", Some(8))] {
            let mut command = device.towa(first);
            command.args(["xip", what]);
            if what == "split" {
                command.arg("--store").arg(&store);
            }
            let done = command.arg(&program).output().unwrap();
            told += usize::from(done.status.success());
            let is_that_already =
                ["is split", "not split", "no program that", "mark of a text"].iter().any(|text| said(&done).contains(text));
            assert!(done.status.success() || first.is_some() || is_that_already, "round {round}: {}", said(&done));
            if device.rng.random_bool(0.4) {
                device.cut();
            }
            let out = Command::new(&program).args(["%s", "it runs"]).output().unwrap();
            assert!(out.status.success() && out.stdout == b"it runs", "round {round}, {what}: {}", said(&out));
        }
    }
    device.cut();
    device.summary(told);
}
