//! A full log: requests that write wait for it in turn, the others do not notice.
//!
//! The pools here are manual, so that the log stays full until the test takes a checkpoint.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use towa_epoch::{Options, Pool, Thread};
use towa_server::Config;

use crate::crowd::Served;
use crate::peers::{Client, Running, config, small};

/// A pool with a small log that nothing empties but [`make_space`].
fn pool(dir: &tempfile::TempDir) -> Pool {
    Pool::create(dir.path(), &Options { manual: true, log_len: Some(8 << 20), ..small() }).unwrap()
}

fn make_space(pool: &Pool) {
    pool.checkpoint().unwrap();
    pool.apply_now().unwrap();
}

/// Answers that come within a tenth of a second.
fn soon(client: &mut Client) -> String {
    let mut got = Vec::new();
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    loop {
        let mut bytes = [0; 4096];
        match client.stream.read(&mut bytes) {
            Ok(0) => panic!("the server closed the connection after {:?}", String::from_utf8_lossy(&got)),
            Ok(count) => got.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
    }
    client.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    String::from_utf8(got).unwrap()
}

/// A connection that has filled the log.
struct Filler {
    client: Client,
    /// Sets that wait for log space.
    waiting: usize,
}

impl Filler {
    /// Stores values of 1000 bytes, `v0` and so on, until some are not answered.
    fn start(server: &Running) -> Filler {
        const AT_ONCE: usize = 500;
        let (mut client, value) = (server.client(), "v".repeat(1000));
        for batch in 0..100 {
            let sets = (0..AT_ONCE).map(|i| format!("set v{} 0 0 1000\r\n{value}\r\n", batch * AT_ONCE + i));
            client.send(sets.collect::<String>().as_bytes());
            let answered = soon(&mut client).lines().inspect(|line| assert_eq!(*line, "STORED")).count();
            if answered < AT_ONCE {
                return Filler { client, waiting: AT_ONCE - answered };
            }
        }
        panic!("a log of 8 MiB took 50 MB");
    }

    /// The log has space again: its sets are answered.
    fn finish(mut self) {
        let mut answers = Vec::new();
        while answers.len() < self.waiting * "STORED\r\n".len() {
            answers.extend(self.client.read_until(b"STORED\r\n"));
        }
        assert!(answers == b"STORED\r\n".repeat(self.waiting));
    }
}

#[test]
fn readers_go_on_while_writers_wait_and_each_request_is_carried_out_once() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let server = Running::start(Config { threads: 1, item_size_max: 1 << 18, ..config() }, &pool);
    let mut first = server.client();
    let begin = "set k 7 0 1\r\nx\r\nset n 0 0 2\r\n99\r\nset m 0 0 1\r\n5\r\nset gone 0 0 1\r\nx\r\nset big 0 0 1\r\nx\r\nset t 0 0 1\r\nx\r\n";
    assert_eq!(first.say(begin).lines().count(), 6);
    let filler = Filler::start(&server);

    // One of each kind, on connections of their own; each with a read behind it, which comes after it.
    let tail = "x".repeat(300_000);
    let too_large = format!("set big 0 0 {}\r\n{tail}\r\nget big\r\n", tail.len());
    let kinds: Vec<(&str, &str)> = vec![
        ("set s 1 0 2\r\nab\r\nget s\r\n", "STORED\r\nVALUE s 1 2\r\nab\r\nEND\r\n"),
        ("append k 0 0 1\r\ny\r\nget k\r\n", "STORED\r\nVALUE k 7 2\r\nxy\r\nEND\r\n"),
        ("incr n 1\r\nget n\r\n", "100\r\nVALUE n 0 3\r\n100\r\nEND\r\n"),
        ("ma m v t T100\r\nmg m v t\r\n", "VA 1 t-1\r\n6\r\nVA 1 t100\r\n6\r\n"),
        ("ma fresh N0 J41 v\r\nma fresh v\r\n", "VA 2\r\n41\r\nVA 2\r\n42\r\n"),
        ("delete gone\r\nget gone\r\n", "DELETED\r\nEND\r\n"),
        ("gat 100 nothing t\r\nmg t t\r\n", "VALUE t 0 1\r\nx\r\nEND\r\nHD t100\r\n"),
        ("ms meta 2 c\r\nab\r\nmg meta v\r\n", "HD c\r\nVA 2\r\nab\r\n"),
        ("mg vivid N100 v\r\nmg vivid v t\r\n", "VA 0 W\r\n\r\nVA 0 t100 Z\r\n\r\n"),
        (&too_large, "SERVER_ERROR object too large for cache\r\nEND\r\n"),
    ];
    let mut clients: Vec<Client> = kinds.iter().map(|_| server.client()).collect();
    for (client, (request, _)) in clients.iter_mut().zip(&kinds) {
        client.send(request.as_bytes());
    }
    for client in &mut clients {
        assert_eq!(soon(client), "", "there is no log space for it");
    }
    let mut reader = server.client();
    assert_eq!(reader.say("get k n gone\r\n"), "VALUE k 7 1\r\nx\r\nVALUE n 0 2\r\n99\r\nVALUE gone 0 1\r\nx\r\nEND\r\n");
    assert_eq!(reader.say("mg k v\r\n"), "VA 1\r\nx\r\n");
    let sets = reader.stat("cmd_set");

    make_space(&pool);
    let waited = filler.waiting as u64;
    filler.finish();
    for (client, (request, answer)) in clients.iter_mut().zip(&kinds) {
        // A CAS id is any number, and a second may have passed since the expiry time was set.
        let got = soon(client).replace("t99", "t100");
        let got: String =
            got.split_inclusive("\r\n").map(|line| if line.starts_with("HD c") { "HD c\r\n" } else { line }).collect();
        assert_eq!(&got, answer, "to {:?}", &request[..request.len().min(60)]);
    }
    // Those that waited, set, append, ms: each counted once.
    assert_eq!(reader.stat("cmd_set"), sets + waited + 3);
    assert!(reader.stat("stalls") >= 10 && reader.stat("stall_us") > 100_000);
}

#[test]
fn those_that_wait_are_served_in_turn_and_the_gone_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let idle_timeout = Some(Duration::from_secs(1));
    let server = Running::start(Config { threads: 1, idle_timeout, request_timeout: idle_timeout, ..config() }, &pool);
    let filler = Filler::start(&server);
    // Each sends 200 sets at once; the second hangs up while it waits.
    let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let value = "w".repeat(1000);
        let sets: String = (0..200).map(|i| format!("set c{number}.{i} 0 0 1000\r\n{value}\r\n")).collect();
        client.send(sets.as_bytes());
        assert_eq!(soon(client), "");
    }
    drop(clients.remove(1));
    // Longer than the time limits: a connection that waits is not idle.
    std::thread::sleep(Duration::from_millis(2500));
    make_space(&pool);
    filler.finish();
    for client in &mut clients {
        let mut got = Vec::new();
        while got.len() < 200 * "STORED\r\n".len() {
            got.extend(client.read_until(b"STORED\r\n"));
        }
        assert!(got == b"STORED\r\n".repeat(200));
    }
    let mut reader = server.client();
    assert_eq!(reader.stat("idle_kicks") + reader.stat("request_kicks"), 0);
}

#[test]
fn a_flush_that_comes_due_while_the_log_is_full_is_seen_at_once_and_comes_before_later_stores() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let (mut first, mut reader) = (server.client(), server.client());
    assert_eq!(first.say("set k 0 0 1\r\nx\r\nflush_all 100\r\n"), "STORED\r\nOK\r\n");
    let filler = Filler::start(&server);
    assert_eq!(reader.say("get k\r\n"), "VALUE k 0 1\r\nx\r\nEND\r\n");
    reader.say("debugtime 200\r\n");
    assert_eq!(reader.say("get k v0\r\n"), "END\r\n");
    let mut writer = server.client();
    writer.send(b"set k 0 0 1\r\ny\r\n");
    assert_eq!(soon(&mut writer), "");
    make_space(&pool);
    assert_eq!(writer.read_until(b"\r\n"), b"STORED\r\n");
    filler.finish();
    assert_eq!(reader.say("get k v0\r\n"), "VALUE k 0 1\r\ny\r\nEND\r\n");
}

/// Ends a thread, however the test ends.
struct Stop<'t>(&'t AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Answers to nine large values that are sent while the log is full; `None` if it was not, as the filler was only slow.
fn large_values_beside_a_full_log() -> Option<Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let server = Running::start(Config { threads: 1, memory_limit: Some(8 << 20), ..config() }, &pool);
    let filler = Filler::start(&server);
    let mut clients: Vec<Client> = (0..9).map(|_| server.client()).collect();
    let value = "x".repeat(900_000);
    for (number, client) in clients.iter_mut().enumerate() {
        // A thread sends: the server does not take all of it.
        let mut stream = client.stream.try_clone().unwrap();
        let set = format!("set large{number} 0 0 {}\r\n{value}\r\n", value.len());
        std::thread::spawn(move || stream.write_all(set.as_bytes()));
        if soon(client) == "STORED\r\n" {
            return None;
        }
    }
    // They hold all the memory there is to receive in, which a line of keys does not need, but for a very long one.
    let mut reader = server.client();
    assert_eq!(reader.say(&format!("get {}\r\n", "k ".repeat(1500))), "END\r\n");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                make_space(&pool);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let _stop = Stop(&stop);
        filler.finish();
        Some(clients.iter_mut().map(|client| String::from_utf8(client.read_until(b"\r\n")).unwrap()).collect())
    })
}

#[test]
fn large_values_wait_as_small_ones_do() {
    let answers = (0..20).find_map(|_| large_values_beside_a_full_log()).expect("the log was full in none of the attempts");
    assert!(answers.iter().all(|answer| answer == "STORED\r\n"), "{answers:?}");
}

#[test]
fn an_expiry_time_counts_from_when_it_is_set_not_from_when_it_began_to_wait() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let (mut first, mut other) = (server.client(), server.client());
    assert_eq!(first.say("set t 0 0 1\r\nx\r\nset u 0 0 1\r\nx\r\n"), "STORED\r\nSTORED\r\n");
    let filler = Filler::start(&server);
    first.send(b"gat 100 t\r\n");
    other.send(b"touch u 100\r\n");
    assert_eq!((soon(&mut first), soon(&mut other)), (String::new(), String::new()));
    assert_eq!(server.client().say("debugtime 1000\r\n"), "OK\r\n");
    make_space(&pool);
    filler.finish();
    assert_eq!((&*soon(&mut first), &*soon(&mut other)), ("VALUE t 0 1\r\nx\r\nEND\r\n", "TOUCHED\r\n"));
    assert_eq!(first.say("mg t\r\nmg u\r\n"), "HD\r\nHD\r\n");
}

/// Fills the log until no transaction of `bytes` can begin.
fn fill(thread: &mut Thread, bytes: usize) {
    while let Some(tx) = thread.try_begin_reserving(bytes).unwrap() {
        let block = tx.alloc(4000).unwrap();
        // SAFETY: a new block of this transaction.
        unsafe { tx.mark(block.as_ptr(), 4000) };
        tx.commit();
    }
}

#[test]
fn a_request_that_grew_while_it_waited_stays_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let mut filler = pool.register().unwrap();
    let (mut served, mut other) = Served::two_on(&pool);
    let [first, second] = [(); 2].map(|()| served.connect());
    let setter = other.connect();
    assert_eq!(served.say(&first, b"set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    fill(&mut filler, 0);
    assert_eq!(served.say(&first, b"append a 0 0 1\r\ny\r\n"), "");
    assert_eq!(served.say(&second, b"set b 0 0 1\r\ny\r\n"), "");
    make_space(&pool);
    let value = "z".repeat(200_000);
    assert_eq!(other.say(&setter, format!("set a 0 0 200000\r\n{value}\r\n").as_bytes()), "STORED\r\n");
    make_space(&pool);
    // Enough for what the append seemed to need, not for what it needs now.
    fill(&mut filler, 210_000);
    served.clients.go_on_with_queue();
    assert_eq!((first.got(), second.got(), served.clients.are_short_of_log()), (String::new(), String::new(), Some(true)));
    make_space(&pool);
    served.clients.go_on_with_queue();
    assert_eq!((&*first.got(), &*second.got()), ("STORED\r\n", "STORED\r\n"));
}

#[test]
fn a_connection_that_waits_is_passed_by_none_and_keeps_none_waiting_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let mut filler = pool.register().unwrap();
    let mut served = Served::on(&pool);
    let [first, second, third, reader] = [(); 4].map(|()| served.connect());
    fill(&mut filler, 0);
    let stored = |answers: String| {
        assert!(answers.lines().all(|line| line == "STORED"), "{answers}");
        answers.lines().count()
    };
    let sets = |name: &str| (0..100).map(|i| format!("set {name}{i} 0 0 1\r\nx\r\n")).collect::<String>();
    assert_eq!(served.say(&first, sets("a").as_bytes()), "");
    make_space(&pool);
    // There is space again, but the first was there before.
    assert_eq!(served.say(&second, sets("b").as_bytes()), "");
    served.clients.go_on_with_queue();
    let few = (stored(first.got()), stored(second.got()));
    assert!(few.0 == few.1 && (1..100).contains(&few.0), "{few:?} at first: each a little");
    assert_eq!(served.say(&third, b"set c 0 0 1\r\nx\r\n"), "");
    // The log has space for all: they store as they like.
    served.clients.go_on_with_queue();
    assert_eq!((stored(first.got()), stored(second.got()), stored(third.got())), (100, 100, 1));
    assert_eq!(served.clients.are_short_of_log(), None);
    let stats = served.say(&reader, b"stats\r\n");
    assert!(stats.contains("STAT stalls 1\r\n"), "the first waited for the log, the others for their turn: {stats}");
}

/// Sets per second of `clients` connections that have many to send at once.
fn rate(server: &Running, pool: &Pool, clients: usize) -> f64 {
    const SETS: usize = 50_000;
    let mut all: Vec<Client> = (0..clients).map(|_| server.client()).collect();
    let sets = format!("{}mn\r\n", "set k 0 0 1 noreply\r\nx\r\n".repeat(SETS));
    let senders: Vec<_> = all.iter_mut().map(|client| (client.stream.try_clone().unwrap(), sets.clone())).collect();
    for (mut stream, sets) in senders {
        std::thread::spawn(move || stream.write_all(sets.as_bytes()));
    }
    std::thread::sleep(Duration::from_millis(200));
    make_space(pool);
    let began = Instant::now();
    for client in &mut all {
        assert_eq!(client.read_until(b"MN\r\n"), b"MN\r\n");
    }
    (clients * SETS) as f64 / began.elapsed().as_secs_f64()
}

#[test]
fn a_log_that_was_full_once_slows_nothing_down_later() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let filler = Filler::start(&server);
    let mut reader = server.client();
    let waits = reader.stat("stalls");
    let rate = rate(&server, &pool, 3);
    filler.finish();
    // A pause of a millisecond for each 32 sets of a connection would let 96,000 through. A busy machine does less than it can.
    assert!(rate > 150_000.0, "{rate:.0} sets a second");
    assert!(reader.stat("stalls") <= waits + 8, "turns are not waits");
}

#[test]
fn a_pool_that_fails_ends_the_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let mut thread = pool.register().unwrap();
    let tx = thread.begin().unwrap();
    let mut filler = Filler::start(&server);
    tx.abort();
    let answers = String::from_utf8(filler.client.read_until(b"\r\n")).unwrap();
    assert!(answers.lines().all(|line| line.starts_with("SERVER_ERROR ") && line.contains("poisoned")), "{answers}");
}

#[test]
fn a_pool_that_fails_while_a_flush_is_owed_ends_the_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(&dir);
    let server = Running::start(Config { threads: 1, ..config() }, &pool);
    let (mut first, mut reader) = (server.client(), server.client());
    assert_eq!(first.say("set k 0 0 1\r\nx\r\nflush_all 100\r\n"), "STORED\r\nOK\r\n");
    let mut thread = pool.register().unwrap();
    let tx = thread.begin().unwrap();
    let mut filler = Filler::start(&server);
    reader.say("debugtime 200\r\n");
    assert_eq!(reader.say("get k v0\r\n"), "END\r\n");
    tx.abort();
    let answers = String::from_utf8(filler.client.read_until(b"\r\n")).unwrap();
    assert!(answers.lines().all(|line| line.starts_with("SERVER_ERROR ") && line.contains("poisoned")), "{answers}");
    let said = first.say("set k 0 0 1\r\ny\r\n");
    assert!(said.starts_with("SERVER_ERROR ") && said.contains("poisoned"), "{said}");
}
