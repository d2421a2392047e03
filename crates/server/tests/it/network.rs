//! The network side: many clients, bad clients, limits, and the end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use towa_epoch::Pool;
use towa_server::{Config, Server};

use crate::peers::{Client, Running, config, small};

#[test]
fn pipelines_and_large_values_pass_in_pieces() {
    let server = Running::volatile(Config { item_size_max: 8 << 20, ..config() });
    let mut client = server.client();
    let batch: String = (0..5000).map(|i| format!("set p{i} 0 0 5 noreply\r\n{i:05}\r\nget p{i}\r\n")).collect();
    let answer: String = (0..5000).map(|i| format!("VALUE p{i} 0 5\r\n{i:05}\r\nEND\r\n")).collect();
    let mut sender = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for piece in batch.as_bytes().chunks(1777) {
            sender.write_all(piece).unwrap();
        }
    });
    let mut got = Vec::new();
    while got.len() < answer.len() {
        let mut chunk = [0; 8192];
        let count = client.stream.read(&mut chunk).unwrap();
        assert!(count > 0);
        got.extend_from_slice(&chunk[..count]);
    }
    sending.join().unwrap();
    assert!(got == answer.as_bytes());
    let value: Vec<u8> = (0..5_000_000u32).map(|i| (i * 7 + i / 1000) as u8).collect();
    client.send(format!("set large 0 0 {}\r\n", value.len()).as_bytes());
    for piece in value.chunks(100_001) {
        client.send(piece);
    }
    assert_eq!(client.ask(b"\r\n"), b"STORED\r\n");
    let answer = client.ask(b"get large\r\n");
    assert!(answer.starts_with(b"VALUE large 0 5000000\r\n"));
    assert!(answer[23..].starts_with(&value), "the value came back changed");
}

#[test]
fn long_lines_of_keys_are_read_at_once_and_keep_no_memory() {
    let server = Running::volatile(Config { threads: 1, memory_limit: Some(8 << 20), ..config() });
    // Each has sent a line of 900 KB, got its answer, and stays.
    let began = Instant::now();
    let idle: Vec<Client> = (0..10)
        .map(|_| {
            let mut client = server.client();
            client.send(format!("get {}\r\n", "k ".repeat(450_000)).as_bytes());
            assert_eq!(client.read_until(b"END\r\n"), b"END\r\n");
            client
        })
        .collect();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let value = "v".repeat(900_000);
    assert_eq!(server.client().say(&format!("set large 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n");
    drop(idle);
}

#[test]
fn a_client_that_does_not_read_costs_bounded_memory_and_gets_everything_in_the_end() {
    let server = Running::volatile(config());
    let mut client = server.client();
    let value = "v".repeat(500_000);
    assert_eq!(client.say(&format!("set k 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n");
    // Half a gigabyte of answers to one line.
    let keys = " k".repeat(1000);
    client.send(format!("get{keys}\r\n").as_bytes());
    std::thread::sleep(Duration::from_millis(300));
    // Of the server alone: what this process has is that of other tests, too.
    let held = server.client().stat("response_obj_bytes");
    assert!(held < 8 << 20, "{} MB of answers are held", held >> 20);
    assert_eq!(server.client().say("get x\r\n"), "END\r\n");
    let expected = 1000 * ("VALUE k 0 500000\r\n".len() + value.len() + 2) + 5;
    let (mut total, mut chunk) = (0, vec![0; 1 << 20]);
    while total < expected {
        let count = client.stream.read(&mut chunk).unwrap();
        assert!(count > 0, "closed after {total} of {expected}");
        total += count;
    }
    assert_eq!(total, expected);
    assert_eq!(client.say("version\r\n").len(), "VERSION 1.6.18-towa-0.1.0\r\n".len());
}

#[test]
fn values_that_arrive_take_bounded_memory_together() {
    let server = Running::volatile(Config { memory_limit: Some(16 << 20), item_size_max: 8 << 20, ..config() });
    let value = vec![b'v'; 7_000_000];
    // The first client keeps its memory and sends nothing for some seconds: the server refuses each of the others after one second.
    let mut clients: Vec<Client> = (0..7).map(|_| server.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(format!("set k{index} 0 0 {}\r\n", value.len()).as_bytes());
        client.send(&value[..6_000_000]);
    }
    let mut stored = 0;
    for client in &mut clients {
        client.send(&value[6_000_000..]);
        client.send(b"\r\nmn\r\n");
        match &*client.read_until(b"MN\r\n") {
            b"STORED\r\nMN\r\n" => stored += 1,
            b"SERVER_ERROR out of memory storing object\r\nMN\r\n" => {}
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
    // One at a time is always received; of those that arrive together the first is, and the rest may come again.
    assert!((1..=4).contains(&stored), "{stored} stored of what would take three times the memory");
    for client in &mut clients {
        client.send(b"set again 0 0 7000000\r\n");
        client.send(&value);
        assert_eq!(client.ask(b"\r\n"), b"STORED\r\n");
    }
    assert_eq!(clients[0].stat("store_no_memory"), 7 - stored);
}

#[test]
fn idle_and_slow_clients_are_hung_up_on() {
    let second = Some(Duration::from_secs(1));
    let server = Running::volatile(Config { idle_timeout: second, request_timeout: None, ..config() });
    let mut idle = server.client();
    assert_eq!(idle.say("get a\r\n"), "END\r\n");
    std::thread::sleep(Duration::from_millis(3500));
    assert!(idle.is_closed());
    // Whoever asks may be too slow for that himself.
    let kicks = (0..20)
        .find_map(|_| server.client().say("stats\r\n").split("STAT idle_kicks ").nth(1)?.lines().next()?.parse::<u64>().ok());
    assert!(kicks.expect("an answer") >= 1);

    let server = Running::volatile(Config { request_timeout: second, ..config() });
    let (mut slow, mut fine) = (server.client(), server.client());
    for byte in b"set k 0 0 100000\r\nab" {
        // The other end may be gone already: that is the point.
        let _ = slow.stream.write_all(&[*byte]);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(slow.is_closed());
    assert_eq!(fine.say("get a\r\n"), "END\r\n", "idle between requests is no offence");
    assert_eq!(fine.stat("request_kicks"), 1);
}

#[test]
fn too_many_connections_are_refused_or_wait() {
    let server = Running::volatile(Config { max_connections: 3, ..config() });
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.say("get a\r\n"), "END\r\n");
    }
    let mut refused = server.client();
    assert_eq!(refused.read_until(b"connections\r\n"), b"ERROR Too many open connections\r\n");
    assert_eq!(clients[0].stat("rejected_connections"), 1);

    let server = Running::volatile(Config { max_connections: 3, reject_when_full: false, ..config() });
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.say("get a\r\n"), "END\r\n");
    }
    let mut waiting = server.client();
    waiting.send(b"get a\r\n");
    let began = std::time::Instant::now();
    while clients[0].stat("accepting_conns") != 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "a fourth was accepted");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(clients.pop());
    assert_eq!(waiting.read_until(b"END\r\n"), b"END\r\n");
}

#[test]
fn thousands_of_connections() {
    let server = Running::volatile(Config { max_connections: 20_000, ..config() });
    // Both ends live in this process: as many as its descriptors allow, 10,000 at most.
    let limit = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limit.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: usize = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    let count = 10_000.min(files.saturating_sub(500) / 2);
    println!("{count} connections");
    let mut streams: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(server.addr).unwrap()).collect();
    for (index, stream) in streams.iter_mut().enumerate() {
        // A third sends a whole request, a third half of one, a third nothing.
        match index % 3 {
            0 => stream.write_all(b"get a\r\n").unwrap(),
            1 => stream.write_all(b"get").unwrap(),
            _ => {}
        }
    }
    for stream in streams.iter_mut().step_by(3) {
        let mut answer = [0; 5];
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"END\r\n");
    }
    let mut client = server.client();
    assert_eq!(client.stat("curr_connections") as usize, count + 1);
    drop(streams);
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.stat("curr_connections") > 1 {
        assert!(Instant::now() < deadline, "{} connections left", client.stat("curr_connections"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn junk_hurts_nobody_else() {
    let server = Running::volatile(config());
    let mut good = server.client();
    assert_eq!(good.say("set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    let mut seed = 12345u64;
    for round in 0..200 {
        let junk: Vec<u8> = (0..3000)
            .map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (seed >> 33) as u8
            })
            .collect();
        let mut bad = server.client();
        // Some end in a reset, some in a half-closed socket.
        let _ = bad.stream.write_all(&junk);
        if round % 2 == 0 {
            let _ = bad.stream.shutdown(std::net::Shutdown::Write);
        }
    }
    assert_eq!(good.say("get k\r\n"), "VALUE k 0 1\r\nx\r\nEND\r\n");
    assert_eq!(good.stat("panics"), 0);
}

#[test]
fn a_panic_costs_one_connection() {
    let server = Running::volatile(Config { threads: 1, ..config() });
    let (mut good, mut bad) = (server.client(), server.client());
    assert_eq!(good.say("set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    bad.send(b"get k\r\ndebugtime panic\r\nget k\r\n");
    assert!(bad.is_closed());
    assert_eq!(good.say("get k\r\n"), "VALUE k 0 1\r\nx\r\nEND\r\n");
    assert_eq!(good.stat("panics"), 1);
    assert_eq!(good.stat("curr_connections"), 1);
}

#[test]
fn a_half_closed_client_gets_its_answers() {
    let server = Running::volatile(config());
    let mut client = server.client();
    client.send(b"set k 0 0 1\r\nx\r\nget k\r\n");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.read_until(b"never"), b"STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n<closed>");
}

#[test]
fn memory_limits_evict_or_refuse() {
    let evicting = Running::volatile(Config { memory_limit: Some(4 << 20), ..config() });
    let refusing = Running::volatile(Config { memory_limit: Some(4 << 20), evict: false, ..config() });
    let value = "v".repeat(8000);
    let mut client = evicting.client();
    assert_eq!(client.say("set kept 0 0 1\r\nx\r\n"), "STORED\r\n");
    for i in 0..2000 {
        assert_eq!(client.say(&format!("set k{i} 0 0 8000\r\n{value}\r\n")), "STORED\r\n");
    }
    assert!(client.stat("evictions") > 1000);
    assert!(client.stat("bytes") <= 4 << 20);
    assert_ne!(client.say("get k1999\r\n"), "END\r\n");
    let mut client = refusing.client();
    let full = (0..2000).find(|i| client.say(&format!("set k{i} 0 0 8000\r\n{value}\r\n")) != "STORED\r\n").unwrap();
    assert!(full > 400, "full after {full}");
    assert_eq!(client.say(&format!("set more 0 0 8000\r\n{value}\r\n")), "SERVER_ERROR out of memory storing object\r\n");
    for i in 0..full {
        assert_ne!(client.say(&format!("get k{i}\r\n")), "END\r\n");
    }
}

#[test]
fn a_full_heap_evicts_too() {
    let pool = Pool::volatile(&towa_epoch::Options { heap_len: 16 << 20, ..small() }).unwrap();
    let server = Running::start(Config { memory_limit: Some(1 << 30), ..config() }, &pool);
    let mut client = server.client();
    for i in 0..3000 {
        let value = "v".repeat(100 + i * 37 % 20_000);
        assert_eq!(client.say(&format!("set k{i} 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n", "item {i}");
    }
    assert!(client.stat("evictions") > 0);
}

#[test]
fn expired_items_are_collected() {
    let server = Running::volatile(config());
    let mut client = server.client();
    let batch: String = (0..2000).map(|i| format!("set k{i} 0 10 1 noreply\r\nx\r\n")).collect();
    assert_eq!(client.say(&batch), "");
    assert_eq!(client.stat("curr_items"), 2000);
    client.say("debugtime 20\r\nlru_crawler crawl all\r\n");
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.stat("curr_items") > 0 {
        assert!(Instant::now() < deadline, "{} items left", client.stat("curr_items"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(client.stat("bytes"), 0);
    assert_eq!(client.stat("crawler_reclaimed"), 2000);
}

#[test]
fn unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let pool = Pool::volatile(&small()).unwrap();
    let told = Config { unix_socket: Some(path.clone()), ..config() };
    let handle = Server::start(told.clone(), &pool).unwrap();
    assert!(handle.addr.is_none());
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(b"get a\r\n").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"END\r\n");
    let error = Server::start(told, &Pool::volatile(&small()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("another server"), "{error}");
    handle.shutdown();
    handle.join().unwrap();
    assert!(!path.exists(), "the socket's file goes with the server");
}

#[test]
fn the_end_answers_what_was_received() {
    let server = Running::volatile(Config { shutdown_command: true, ..config() });
    let mut client = server.client();
    assert_eq!(client.say("shutdown sideways\r\n"), "CLIENT_ERROR invalid shutdown mode\r\n");
    let mut other = server.client();
    assert_eq!(other.say("get a\r\n"), "END\r\n");
    client.send(b"get a\r\nshutdown\r\n");
    assert_eq!(client.read_until(b"never"), b"END\r\n<closed>");
    assert!(other.is_closed());
    server.stop().unwrap();
}

#[test]
fn nonsense_is_refused_at_the_start() {
    let pool = Pool::volatile(&small()).unwrap();
    for (told, why) in [
        (Config { threads: 0, ..config() }, "-t"),
        (Config { max_connections: 0, ..config() }, "-c"),
        (Config { item_size_max: 1000, ..config() }, "-I"),
        (Config { listen: vec![], ..config() }, "-l"),
        (Config { listen: vec!["no.such.host.invalid".into()], ..config() }, "no.such.host"),
    ] {
        let error = Server::start(told, &pool).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let server = Running::start(config(), &pool);
    let told = Config { port: server.addr.port(), ..config() };
    let error = Server::start(told, &Pool::volatile(&small()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("listen on"), "{error}");
}
