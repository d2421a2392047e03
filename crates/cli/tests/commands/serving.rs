//! serve: pools in use, ports taken, disks full or failing, signals, and what verify finds in what was served.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::server::{Mount, SMALL, Server, small};
use crate::{assert_is_message, command, fails, json, passes, s, text};

#[test]
fn a_served_pool_is_busy_and_can_be_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let server = Server::start(&small(&pool, &[]), &dir.path().join("stderr"));
    for part in ["127.0.0.1:", s(&pool), "medium ", "-safe", "checkpoint every 100 ms"] {
        assert!(server.ready.contains(part), "{part:?} in {:?}", server.ready);
    }
    assert_eq!(server.client().set("k", 10), "STORED");
    assert_eq!(server.client().ask(b"durable now\r\n").split(' ').next(), Some("DURABLE"));

    let pid = server.child.id();
    for refused in [&["verify", s(&pool)][..], &["recover", s(&pool)], &["serve", "-p", "0", "--pool", s(&pool)]] {
        assert!(fails(4, refused).contains(&format!("process {pid}")));
    }
    let info = json(&passes(&["info", "--json", s(&pool)]));
    assert_eq!(
        (info["pool"]["owner_pid"].as_u64(), info["pool"]["served_at"].as_str()),
        (Some(u64::from(pid)), Some(server.address()))
    );
    assert!(passes(&["info", s(&pool)]).contains(&format!("in use by process {pid}")));

    let (by_pool, by_address) =
        (json(&passes(&["stats", "--json", s(&pool)])), json(&passes(&["stats", "--json", server.address()])));
    assert_eq!((&by_pool["server"]["pid"], &by_address["server"]["curr_items"]), (&pid.into(), &1.into()));
    assert!(by_pool["towa"]["durable_epoch"].as_u64().unwrap() > 0);
    assert!(passes(&["stats", server.address()]).contains("durability"));
    watch(server.address());

    let port = server.address().rsplit(':').next().unwrap().to_owned();
    assert!(fails(1, &["serve", "--volatile", "-p", &port, "-m", "32"]).contains("in use"));
    assert_eq!(server.end(libc::SIGTERM), Some(0));
    assert!(!pool.join("serve.address").exists(), "the note of the address is taken back");
    assert_eq!(json(&passes(&["verify", "--json", s(&pool)]))["clean"], true);
    assert!(fails(8, &["stats", s(&pool)]).contains("no server runs on this pool"));
}

fn watch(address: &str) {
    let mut child = command(&["stats", address, "--watch", "0.05", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = json(&lines.next().unwrap().unwrap());
        assert!(line["seconds"].as_f64().unwrap() >= 0.05 && line["towa"]["epoch"].is_u64());
    }
    drop(lines);
    let ended = child.wait().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGPIPE), "a watcher ends with its reader");
}

#[test]
fn a_pool_made_smaller_is_served_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, stderr) = (dir.path().join("pool"), dir.path().join("stderr"));
    assert_eq!(Server::start(&small(&pool, &[]), &stderr).end(libc::SIGINT), Some(0));
    let server = Server::start(
        &["--pool", s(&pool), "-p", "0", "-m", "512", "-I", "256k", "--log-mb", "64", "--base", "0x300000000000"],
        &stderr,
    );
    let said = server.said();
    for part in ["-m 512 becomes", "--log-mb is ignored", "--base is ignored"] {
        assert!(said.contains(part), "{part:?} in {said:?}");
    }
    assert_eq!(server.end(libc::SIGKILL), Some(-libc::SIGKILL));
    let server = Server::start(&small(&pool, &[]), &stderr);
    assert!(server.said().contains("was not closed cleanly; recovered epoch"), "{}", server.said());
}

#[test]
fn a_unix_socket_and_no_pool_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let server = Server::start(&["--volatile", "-s", s(&socket), "-m", "32", "-t", "1"], &dir.path().join("stderr"));
    assert!(server.ready.contains(s(&socket)) && server.ready.contains("nothing is kept"), "{}", server.ready);
    let stats = json(&passes(&["stats", "--json", s(&socket)]));
    assert_eq!(stats["towa"]["towa_mode"], "volatile");
    assert_eq!(server.end(libc::SIGTERM), Some(0));
}

#[test]
fn the_default_pool_follows_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str| {
        Server::start_with(&[&SMALL[..], &["--log-mb", "4"]].concat(), &dir.path().join("stderr"), |command| {
            command.env_remove("XDG_STATE_HOME").env_remove("HOME").env(name, dir.path());
        })
    };
    assert_eq!(start("XDG_STATE_HOME").end(libc::SIGTERM), Some(0));
    assert!(dir.path().join("towa/serve/superblock").exists());
    assert_eq!(start("HOME").end(libc::SIGTERM), Some(0));
    assert!(dir.path().join(".local/state/towa/serve/superblock").exists());
    let out = command(&["serve", "-p", "0"]).env_remove("XDG_STATE_HOME").env_remove("HOME").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_is_message(&text(&out.stderr));
}

#[test]
fn what_is_no_pool_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("superblock"), [b'x'; 9000]).unwrap();
    assert!(fails(3, &["serve", "-p", "0", "--pool", s(dir.path())]).contains("not a Towa pool"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something was left behind");
    assert!(fails(5, &["serve", "-p", "0", "--pool", s(&dir.path().join("a/b/c"))]).contains("directory above"));
    // A pool with another program's data.
    let pool = dir.path().join("vm");
    passes(&["vm-load", s(&pool), "--transactions", "1"]);
    // A part of a pool is missing: said, and not made anew.
    for name in ["image", "log"] {
        fs::rename(pool.join(name), dir.path().join("away")).unwrap();
        let out = crate::towa(&["serve", "-p", "0", "--pool", s(&pool)]);
        let said = text(&out.stderr);
        assert!(matches!(out.status.code(), Some(3 | 5)) && said.contains(name) && !said.contains("there already"), "{said}");
        assert!(!pool.join(name).exists());
        fs::rename(dir.path().join("away"), pool.join(name)).unwrap();
    }
    let args = small(&pool, &[]);
    assert_eq!(
        Server::start(&args, &dir.path().join("stderr")).end(libc::SIGTERM),
        Some(0),
        "several programs' roots may share a pool"
    );
    assert_eq!(json(&passes(&["verify", "--json", s(&pool)]))["roots"], json(r#"["vm", "serve"]"#));
}

#[test]
fn a_disk_too_small_leaves_nothing_behind() {
    let Some(disk) = Mount::of("2m") else { return };
    let pool = disk.path().join("pool");
    assert!(fails(6, &["serve", "-p", "0", "--pool", s(&pool)]).contains("no space left"));
    let left: Vec<_> = fs::read_dir(&pool).unwrap().map(|e| e.unwrap().file_name()).filter(|name| name != "lock").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn a_disk_that_fills_up_costs_new_items_only() {
    let Some(disk) = Mount::of("48m") else { return };
    let pool = disk.path().join("pool");
    let stderr = tempfile::NamedTempFile::new().unwrap();
    let args = ["--pool", s(&pool), "-p", "0", "-t", "1", "-m", "512", "-M", "-I", "256k", "--log-mb", "4"];
    let server = Server::start(&args, stderr.path());
    let mut client = server.client();
    let answers: Vec<String> = (0..400).map(|i| client.set(&format!("k{i}"), 200_000)).collect();
    let stored = answers.iter().filter(|a| *a == "STORED").count();
    assert!((50..390).contains(&stored), "{stored} of 400 items of 200 kB on a disk of 48 MiB");
    let said = fs::read_to_string(stderr.path()).unwrap();
    let told = said.matches(&format!("space for the heap runs out: {}/image: no space left", pool.display())).count();
    // Once a minute.
    assert!((1..=3).contains(&told), "{said}");
    assert!(answers.iter().all(|a| a == "STORED" || a.starts_with("SERVER_ERROR out of memory")), "{answers:?}");
    let kept: Vec<usize> = (0..400).filter(|i| client.get(&format!("k{i}"))).collect();
    assert!(kept.iter().all(|i| answers[*i] == "STORED") && kept.len() == stored, "{} are there, {stored} were stored", kept.len());
    // Room can be made, and what is there survives.
    assert_eq!(client.ask(b"delete k0\r\n"), "DELETED");
    assert_eq!(client.set("again", 200_000), "STORED");
    assert!(client.ask(b"durable now\r\n").starts_with("DURABLE"));
    assert_eq!(server.end(libc::SIGKILL), Some(-libc::SIGKILL));
    passes(&["verify", s(&pool)]);
    let server = Server::start(&args, stderr.path());
    let mut client = server.client();
    assert!(client.get("again") && !client.get("k0"));
    assert!(kept[1..].iter().all(|i| client.get(&format!("k{i}"))), "committed items were lost to a full disk");
    assert_eq!(server.end(libc::SIGTERM), Some(0));
}

/// The device fails: every write beyond 2 MiB of a file is refused, as `ulimit -f` does it.
#[test]
fn a_disk_that_fails_stops_writes_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    let (args, stderr) = (small(&pool, &["--medium", "file"]), dir.path().join("stderr"));
    let server = Server::start(&args, &stderr);
    assert_eq!(server.client().set("before", 1000), "STORED");
    assert_eq!(server.end(libc::SIGTERM), Some(0));

    // Opening writes to the ends of its files: from then on.
    let server = Server::start(&args, &stderr);
    server.limit_files(2 << 20);
    let mut client = server.client();
    let began = Instant::now();
    let refused = (0..).map(|i| client.set(&format!("k{}", i % 50), 100_000)).find(|answer| answer != "STORED");
    let refused = refused.unwrap();
    assert!(refused.starts_with("SERVER_ERROR") && refused.contains("poisoned"), "{refused}");
    assert!(client.ask(b"durable now\r\n").starts_with("SERVER_ERROR not durable"));
    assert!(client.get("before"), "reads go on");
    while !server.said().contains("poisoned") {
        assert!(began.elapsed() < Duration::from_secs(60), "a pool that failed was not told: {:?}", server.said());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.end(libc::SIGTERM), Some(7));
    // What was durable is there.
    passes(&["verify", "--medium", "file", s(&pool)]);
    let server = Server::start(&args, &stderr);
    assert!(server.client().get("before"));
    assert_eq!(server.end(libc::SIGTERM), Some(0));
}

#[test]
fn a_second_signal_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    // The next checkpoint is an hour away and a client waits for it: the first signal has something to wait for.
    let server = Server::start(&small(&pool, &["--interval-ms", "3600000"]), &dir.path().join("stderr"));
    let mut client = server.client();
    client.set("k", 10);
    client.0.get_mut().write_all(b"durable\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    // SAFETY: the child has not been waited for, so its number is its own.
    unsafe { libc::kill(server.child.id() as i32, libc::SIGTERM) };
    std::thread::sleep(Duration::from_millis(20));
    let code = server.end(libc::SIGTERM);
    assert!(code == Some(128 + libc::SIGTERM) || code == Some(0), "{code:?}");
    passes(&["verify", s(&pool)]);
}

#[test]
fn a_server_outlives_its_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&small(&dir.path().join("pool"), &[]), &dir.path().join("stderr"));
    let mut client = server.client();
    assert_eq!(client.set("k", 10), "STORED");
    for _ in 0..3 {
        // SAFETY: the child has not been waited for, so its number is its own.
        assert_eq!(unsafe { libc::kill(server.child.id() as i32, libc::SIGHUP) }, 0);
        std::thread::sleep(Duration::from_millis(50));
        assert!(client.get("k"));
    }
    assert_eq!(server.end(libc::SIGTERM), Some(0));
}

/// What cannot be served is not made; else the next start would find it, and could not serve it either.
#[test]
fn a_start_that_fails_leaves_no_pool() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("pool");
    assert!(fails(2, &["serve", "-p", "0", "-m", "32", "--log-mb", "4", "--pool", s(&pool)]).contains("too small for items"));
    assert!(!pool.exists(), "refused before anything is made");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    assert!(fails(1, &["serve", "-p", &port, "-m", "32", "--pool", s(&pool)]).contains("in use"));
    let left: Vec<_> = fs::read_dir(&pool).unwrap().map(|e| e.unwrap().file_name()).filter(|name| name != "lock").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let args = small(&pool, &[]);
    let server = Server::start(&args, &dir.path().join("stderr"));
    assert_eq!(server.client().set("k", 10), "STORED");
    assert_eq!(server.end(libc::SIGTERM), Some(0));
    // One that was there before stays.
    assert!(fails(1, &["serve", "-p", &port, "-m", "32", "-I", "256k", "--pool", s(&pool)]).contains("in use"));
    assert!(fails(2, &["serve", "-p", "0", "-m", "32", "-I", "8m", "--pool", s(&pool)]).contains("need a pool with a log"));
    let server = Server::start(&args, &dir.path().join("stderr"));
    assert!(server.client().get("k"));
}

/// What `towa serve` keeps is verified item by item, after a crash as after a clean end, and nothing is changed by that.
#[test]
fn verify_looks_at_every_item_served() {
    let dir = tempfile::tempdir().unwrap();
    for medium in ["ram", "file"] {
        let pool = dir.path().join(medium);
        let verify = ["verify", "--json", "--medium", medium, s(&pool)];
        let args = small(&pool, &["--medium", medium]);
        let server = Server::start(&args, &dir.path().join("stderr"));
        let mut client = server.client();
        (0..2000).for_each(|i| assert_eq!(client.set(&format!("key-{i}"), 100), "STORED"));
        assert!(client.ask(b"durable now\r\n").starts_with("DURABLE"));
        assert_eq!(server.end(libc::SIGKILL), Some(-libc::SIGKILL));
        let files = || ["superblock", "image", "log", "lock"].map(|name| fs::read(pool.join(name)).unwrap());
        let before = files();
        let wanted = json(r#"[{ "root": "serve", "kind": "serve store", "items": 2000, "lost": 0 }]"#);
        let report = json(&passes(&verify));
        assert_eq!((&report["contents"], &report["clean"]), (&wanted, &false.into()), "{medium}");
        assert!(files() == before, "{medium}: something was written");
        passes(&["recover", "--medium", medium, s(&pool)]);
        assert_eq!(json(&passes(&verify))["contents"], wanted, "{medium}");
        assert!(passes(&["verify", "--medium", medium, s(&pool)]).contains("serve store of 2000 items"));
        // One letter of one key: no checksum covers it.
        let image = fs::OpenOptions::new().read(true).write(true).open(pool.join("image")).unwrap();
        let bytes = fs::read(pool.join("image")).unwrap();
        let at = bytes.windows(8).position(|window| window == b"key-1234").unwrap() as u64;
        image.write_all_at(b"K", at).unwrap();
        let said = fails(3, &["verify", "--medium", medium, s(&pool)]);
        assert!(said.contains("has not the hash") && said.contains("of its key"), "{said}");
        assert_eq!(json(&text(&crate::towa(&verify).stdout))["sound"], false);
    }
}
