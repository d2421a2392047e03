//! What survives: clean ends, SIGKILL, a failed pool.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rand::prelude::*;
use towa_epoch::{Options, Pool};
use towa_server::Config;

use crate::peers::{Client, Running, config, small};

fn manual() -> Options {
    Options { manual: true, ..small() }
}

#[test]
fn items_expiry_flush_and_cas_ids_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &small()).unwrap();
    let server = Running::start(config(), &pool);
    let mut client = server.client();
    // So that the flushed item stays, and is seen to be flushed after the restart.
    assert_eq!(client.say("lru_crawler disable\r\nset gone 0 0 1\r\nx\r\nflush_all\r\n"), "OK\r\nSTORED\r\nOK\r\n");
    assert_eq!(client.say("set k 7 0 5\r\nvalue\r\nset short 0 30 1\r\nx\r\nset long 0 1000 1\r\nx\r\n").lines().count(), 3);
    assert_eq!(client.say("md long I\r\nflush_all 500\r\n"), "HD\r\nOK\r\n");
    let cas: u64 = client.say("mg k c\r\n").trim_end()[4..].parse().unwrap();
    let epoch = client.say("durable\r\n");
    assert!(epoch.starts_with("DURABLE "), "{epoch}");
    let bytes = client.stat("bytes");
    server.stop().unwrap();
    pool.close().unwrap();

    let pool = Pool::open(dir.path(), &small()).unwrap();
    let server = Running::start(config(), &pool);
    let mut client = server.client();
    assert_eq!((client.stat("curr_items"), client.stat("bytes")), (4, bytes), "counters need no scan");
    assert_eq!(client.say("get k gone short\r\n"), "VALUE k 7 5\r\nvalue\r\nVALUE short 0 1\r\nx\r\nEND\r\n");
    assert_eq!(client.say("set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    let newer: u64 = client.say("mg k c\r\n").trim_end()[4..].parse().unwrap();
    assert!(newer > cas, "{newer} after {cas}");
    client.say("debugtime 100\r\n");
    assert_eq!(client.say("get short\r\n"), "END\r\n", "expiry goes by the wall clock");
    assert_eq!(client.say("mg long\r\n"), "HD X W\r\n");
    client.say("debugtime 400\r\n");
    assert_eq!(client.say("get k\r\n"), "END\r\n", "the delayed flush was remembered");
}

#[test]
fn what_was_flushed_gives_its_room_back_at_once() {
    let server = Running::volatile(config());
    let mut client = server.client();
    let sets: String = (0..1000).map(|i| format!("set k{i} 0 0 1000\r\n{}\r\n", "x".repeat(1000))).collect();
    assert_eq!(client.say(&sets), "STORED\r\n".repeat(1000));
    for round in 0..2 {
        assert_eq!(client.say(&format!("flush_all\r\nset kept{round} 0 0 1\r\nx\r\n")), "OK\r\nSTORED\r\n");
        let end = Instant::now() + Duration::from_secs(20);
        while client.stat("curr_items") > 1 {
            assert!(Instant::now() < end, "{} items are left", client.stat("curr_items"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(client.say("get kept0 kept1\r\n"), "VALUE kept1 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn durable_waits_without_holding_up_others() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &manual()).unwrap();
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let (mut writer, mut other) = (server.client(), server.client());
    assert!(other.say("durable\r\n").starts_with("DURABLE "), "who wrote nothing waits for nothing");
    writer.send(b"set k 0 0 1\r\nx\r\ndurable\r\nget k\r\n");
    assert_eq!(writer.read_until(b"STORED\r\n"), b"STORED\r\n");
    writer.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let early = std::io::Read::read(&mut writer.stream, &mut [0; 64]);
    assert!(early.is_err(), "nothing is durable yet, but: {early:?}");
    assert_eq!(other.say("get k\r\n"), "VALUE k 0 1\r\nx\r\nEND\r\n", "the same worker serves others meanwhile");
    writer.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let epoch = pool.checkpoint().unwrap();
    let answer = String::from_utf8(writer.read_until(b"END\r\n")).unwrap();
    assert_eq!(answer, format!("DURABLE {epoch}\r\nVALUE k 0 1\r\nx\r\nEND\r\n"));
}

/// Its transaction began, and changed nothing: no epoch comes of it that could become durable.
#[test]
fn durable_does_not_wait_for_a_store_that_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &manual()).unwrap();
    let server = Running::start(Config { threads: 1, memory_limit: Some(4 << 20), evict: false, ..config() }, &pool);
    let mut client = server.client();
    let value = "x".repeat(100_000);
    let mut number = 0;
    let mut set_until_refused = |client: &mut Client| {
        while client.say(&format!("set k{number} 0 0 100000\r\n{value}\r\n")) == "STORED\r\n" {
            number += 1;
            assert!(number < 100, "the cache takes 4 MiB");
        }
    };
    set_until_refused(&mut client);
    pool.checkpoint().unwrap();
    // What came free with the checkpoint may have room for another.
    set_until_refused(&mut client);
    pool.checkpoint().unwrap();
    for barrier in ["durable\r\n", "durable now\r\n"] {
        set_until_refused(&mut client);
        assert_eq!(client.say(barrier), format!("DURABLE {}\r\n", pool.durable_epoch()), "{} was refused", number);
    }
}

#[test]
fn a_failed_pool_still_serves_reads() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &manual()).unwrap();
    let server = Running::start(config(), &pool);
    let mut client = server.client();
    assert_eq!(client.say("set k 0 0 1\r\nx\r\nset n 0 0 1\r\n1\r\n"), "STORED\r\nSTORED\r\n");
    let mut waiting = server.client();
    waiting.send(b"set w 0 0 1\r\nx\r\ndurable\r\n");
    assert_eq!(waiting.read_until(b"STORED\r\n"), b"STORED\r\n");
    pool.register().unwrap().begin().unwrap().abort();
    for request in
        ["set k 0 0 1\r\ny\r\n", "add new 0 0 1\r\ny\r\n", "incr n 1\r\n", "delete k\r\n", "touch k 5\r\n", "gat 5 k\r\n"]
    {
        let answer = client.say(request);
        assert!(answer.starts_with("SERVER_ERROR ") && answer.contains("poisoned"), "to {request:?}: {answer}");
    }
    for request in ["ms k 1\r\ny\r\n", "md k\r\n", "ma n\r\n", "mg k T5\r\n", "mg other N5\r\n", "flush_all\r\n"] {
        let answer = client.say(request);
        assert!(answer.starts_with("SERVER_ERROR ") && answer.contains("poisoned"), "to {request:?}: {answer}");
    }
    assert_eq!(client.say("get k n new\r\n"), "VALUE k 0 1\r\nx\r\nVALUE n 0 1\r\n1\r\nEND\r\n");
    assert_eq!(client.say("mg k v\r\n"), "VA 1\r\nx\r\n");
    let answer = String::from_utf8(waiting.read_until(b"\r\n")).unwrap();
    assert!(answer.starts_with("SERVER_ERROR not durable: "), "{answer}");
    assert!(server.stop().is_err(), "the end says that not everything is durable");
}

/// Counts what is logged.
struct Logged(Mutex<Vec<String>>);

static LOGGED: Logged = Logged(Mutex::new(Vec::new()));

impl log::Log for Logged {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }
    fn flush(&self) {}
}

/// A delayed flush that a failed pool refuses stays due; it must not write a line of log for every batch of requests.
#[test]
fn a_server_whose_pool_is_removed_never_says_durable_again() {
    for writes in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let pool = Pool::create(&path, &small()).unwrap();
        let server = Running::start(config(), &pool);
        let mut client = server.client();
        assert!(client.say("set a 0 0 1\r\nx\r\ndurable now\r\n").contains("DURABLE "));
        std::fs::remove_dir_all(&path).unwrap();
        let said = client.say(if writes { "set b 0 0 1\r\ny\r\ndurable now\r\n" } else { "durable now\r\n" });
        assert!(!said.contains("DURABLE ") && said.contains("was removed"), "{said}");
        drop(server);
    }
}

#[test]
fn a_flush_that_fails_is_said_once() {
    log::set_logger(&LOGGED).unwrap();
    log::set_max_level(log::LevelFilter::Error);
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &manual()).unwrap();
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let mut client = server.client();
    assert_eq!(client.say("set k 0 0 1\r\nx\r\nflush_all 100\r\n"), "STORED\r\nOK\r\n");
    pool.register().unwrap().begin().unwrap().abort();
    assert_eq!(client.say("debugtime 200\r\n"), "OK\r\n");
    for _ in 0..50 {
        assert_eq!(client.say("get k\r\n"), "END\r\n", "what is due is seen, though it will never be durable");
    }
    let said = client.say("set k 0 0 1\r\ny\r\n");
    assert!(said.starts_with("SERVER_ERROR ") && said.contains("poisoned"), "{said}");
    let said = LOGGED.0.lock().unwrap().iter().filter(|line| line.contains("delayed flush_all")).count();
    assert_eq!(said, 1, "one worker, one failure");
}

/// A path may hold anything but a NUL; an answer to `stats` is lines all the same.
#[test]
fn stats_are_lines_whatever_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a\r\nEND\x1b[2J");
    let pool = Pool::create(&path, &manual()).unwrap();
    let labels = vec![("towa_label", "b\nc".to_owned())];
    let server = Running::start(Config { threads: 1, labels, ..config() }, &pool);
    let answer = server.client().say("stats\r\n");
    assert!(answer.lines().all(|line| line.starts_with("STAT ") || line == "END"), "{answer:?}");
    assert!(answer.contains("a\\r\\nEND\\x1b[2J\r\n") && answer.contains("STAT towa_label b\\nc\r\n"), "{answer:?}");
    assert!(!answer.contains('\x1b'));
}

#[test]
fn every_written_line_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { detect_forgotten_marks: true, heap_len: 32 << 20, ..manual() };
    let pool = Pool::create(dir.path(), &options).unwrap();
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let mut client = server.client();
    // Reads note accesses without marks, on purpose: leave them out, and the clock stands.
    client.say("debugtime p\r\n");
    let mut random = StdRng::seed_from_u64(7);
    for round in 0..20 {
        for _ in 0..300 {
            let (key, len) = (random.random_range(0..400), random.random_range(1..600));
            let value = "v".repeat(len);
            let answer = client.say(&match random.random_range(0..8) {
                0..4 => format!("set k{key} 1 {} {len}\r\n{value}\r\n", random.random_range(0..2) * 100),
                4 => format!("append k{key} 0 0 {len}\r\n{value}\r\n"),
                5 => format!("delete k{key}\r\n"),
                6 => format!("ma n{key} N0 J{len} MI D999\r\n"),
                _ => format!("md k{key} I T100\r\n"),
            });
            assert!(!answer.contains("ERROR"), "{answer}");
        }
        pool.checkpoint().unwrap();
        let forgotten = pool.take_forgotten_marks();
        assert!(forgotten.is_empty(), "round {round}: {forgotten:?}");
    }
}

#[test]
fn the_table_grows_while_it_serves_and_across_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), &small()).unwrap();
    let server = Running::start(config(), &pool);
    let mut client = server.client();
    let count = 100_000;
    for chunk in 0..count / 1000 {
        let batch: String = (chunk * 1000..(chunk + 1) * 1000).map(|i| format!("set key{i} 0 0 6 noreply\r\n{i:06}\r\n")).collect();
        assert_eq!(client.say(&batch), "");
    }
    // Stop at whatever point of a doubling this is.
    server.stop().unwrap();
    pool.close().unwrap();
    let pool = Pool::open(dir.path(), &small()).unwrap();
    let server = Running::start(config(), &pool);
    let mut client = server.client();
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.stat("hash_power_level") < 14 || client.stat("hash_is_expanding") == 1 {
        assert!(Instant::now() < deadline, "level {}", client.stat("hash_power_level"));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.stat("curr_items"), count);
    for chunk in 0..count / 50 {
        let keys = chunk * 50..(chunk + 1) * 50;
        let question = keys.clone().fold("get".to_owned(), |line, i| line + &format!(" key{i}")) + "\r\n";
        let answer: String = keys.map(|i| format!("VALUE key{i} 0 6\r\n{i:06}\r\n")).collect::<String>() + "END\r\n";
        assert_eq!(client.say(&question), answer);
    }
}

/// The example server as a process of its own.
struct Process {
    child: Child,
    port: u16,
}

fn serve_binary() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.parent()?.parent()?.join("examples/serve");
    path.exists().then_some(path)
}

impl Process {
    fn start(binary: &Path, pool: &Path) -> Process {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(binary)
            .args(["-p", &port.to_string(), "-t", "2", "--interval", "20", "--heap", "64", "-m", "32", "--pool"])
            .arg(pool)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut process = Process { child, port };
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(process.child.try_wait().unwrap().is_none(), "the server ended");
            assert!(Instant::now() < deadline, "the server does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    fn client(&self) -> Client {
        Client::connect(([127, 0, 0, 1], self.port).into())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A value that tells its version and cannot be torn unnoticed.
fn value_of(version: u64) -> String {
    format!("{version:012}-").repeat(1 + (version % 40) as usize)
}

const KEYS: u64 = 50;

/// Writes versions in order, each to its key, asking for durability now and then, until the server dies. Gives the last version sent
/// and the last acknowledged as durable.
fn write_until_killed(client: &mut Client, who: u64, first: u64) -> (u64, u64) {
    let (mut sent, mut durable) = (first, first);
    let _ = (|| -> std::io::Result<()> {
        use std::io::{Read, Write};
        for version in first + 1.. {
            let value = value_of(version);
            let barrier = if version % 37 == 0 { "durable\r\n" } else { "" };
            let request = format!("set w{who}k{} 0 0 {}\r\n{value}\r\n{barrier}", version % KEYS, value.len());
            sent = version;
            client.stream.write_all(request.as_bytes())?;
            let (mut answer, mut chunk) = (Vec::new(), [0; 256]);
            let lines = if barrier.is_empty() { 1 } else { 2 };
            while answer.iter().filter(|b| **b == b'\n').count() < lines {
                match client.stream.read(&mut chunk)? {
                    0 => return Ok(()),
                    count => answer.extend_from_slice(&chunk[..count]),
                }
            }
            let answer = String::from_utf8_lossy(&answer).into_owned();
            assert!(answer.starts_with("STORED\r\n"), "{answer}");
            if lines == 2 {
                assert!(answer[8..].starts_with("DURABLE "), "{answer}");
                durable = version;
            }
        }
        Ok(())
    })();
    (sent, durable)
}

/// What the server holds of `who`: the version in each key, checked to be whole; and the greatest CAS id.
fn read_back(client: &mut Client, who: u64) -> (HashMap<u64, u64>, u64) {
    let (mut versions, mut newest_cas) = (HashMap::new(), 0);
    for key in 0..KEYS {
        let answer = client.say(&format!("gets w{who}k{key}\r\n"));
        if answer == "END\r\n" {
            continue;
        }
        let mut lines = answer.lines();
        let cas: u64 = lines.next().unwrap().split(' ').nth(4).unwrap().parse().unwrap();
        let value = lines.next().unwrap();
        let version: u64 = value[..12].parse().unwrap();
        assert_eq!(value, value_of(version), "a torn value");
        versions.insert(key, version);
        newest_cas = newest_cas.max(cas);
    }
    (versions, newest_cas)
}

/// After each SIGKILL a client's writes are there up to some point and none after it, and that point is not before the last write
/// that was acknowledged as durable.
#[test]
fn killed_servers_come_back_with_a_prefix() {
    let Some(binary) = serve_binary() else {
        println!("SKIP: the example server is not built (cargo test builds it)");
        return;
    };
    let rounds = std::env::var("TOWA_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(12);
    let dir = tempfile::tempdir().unwrap();
    let seed = StdRng::from_os_rng().random();
    println!("pauses from seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut reached, mut highest_cas) = ([0u64; 3], 0);
    for round in 0..rounds {
        let mut process = Process::start(&binary, dir.path());
        let clients: Vec<Client> = (0..3).map(|_| process.client()).collect();
        let writers: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(who, mut client)| {
                let first = reached[who];
                std::thread::spawn(move || write_until_killed(&mut client, who as u64, first))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(random.random_range(20..300)));
        process.kill();
        let results: Vec<(u64, u64)> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let began = Instant::now();
        let process = Process::start(&binary, dir.path());
        let mut client = process.client();
        assert!(client.say("version\r\n").starts_with("VERSION"));
        assert!(began.elapsed() < Duration::from_secs(30), "round {round}: up after {:?}", began.elapsed());
        for (who, (sent, durable)) in results.into_iter().enumerate() {
            let (versions, cas) = read_back(&mut client, who as u64);
            let end = versions.values().copied().max().unwrap_or(0);
            assert!(end >= durable, "round {round}, writer {who}: {end} is the newest, {durable} was durable");
            assert!(end <= sent);
            for key in 0..KEYS {
                // The newest version up to `end` that goes to this key.
                let expected = (0..=end).rev().take(KEYS as usize).find(|version| version % KEYS == key && *version > 0);
                assert_eq!(
                    versions.get(&key).copied(),
                    expected,
                    "round {round}, writer {who}, key {key}: not a prefix up to {end}"
                );
            }
            reached[who] = end;
            highest_cas = highest_cas.max(cas);
        }
        assert_eq!(client.say("set cas 0 0 1\r\nx\r\n"), "STORED\r\n");
        let new: u64 = client.say("mg cas c\r\n").trim_end()[4..].parse().unwrap();
        assert!(new > highest_cas, "round {round}: CAS id {new} after {highest_cas}");
        highest_cas = new;
    }
}
