//! Whatever ends a connection, at whatever byte, its answers end with it: no other connection ever sees one.

use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use towa_epoch::{Options, Pool};
use towa_server::Config;

use crate::crowd::{Crowd, request, run};
use crate::peers::{Client, Running, config};

/// One of each kind of request, but those that would make the tests long.
fn exchange(name: &str) -> Vec<Vec<u8>> {
    (0..32).filter(|kind| ![27, 30].contains(kind)).map(|kind| request(name, kind, 20)).collect()
}

/// Three connections that stay: one idle between requests, one amid a value, one whose answers its socket does not take.
struct Witnesses {
    idle: usize,
    amid: usize,
    blocked: usize,
}

impl Witnesses {
    fn join(crowd: &mut Crowd) -> Witnesses {
        let (idle, amid, blocked) = (crowd.connect(), crowd.connect(), crowd.connect());
        for life in [idle, amid, blocked] {
            let set = request(&crowd.name(life), 0, 300);
            crowd.say(life, &set);
        }
        Witnesses { idle, amid, blocked }
    }

    /// Before another connection breaks.
    fn before(&self, crowd: &mut Crowd) {
        let [amid, blocked] = [self.amid, self.blocked].map(|life| crowd.name(life));
        let set = request(&amid, 17, 100);
        crowd.say(self.amid, &set[..set.len() / 2]);
        crowd.set_room(self.blocked, 99);
        crowd.say(self.blocked, &request(&blocked, 3, 0));
    }

    /// After it: everyone has all of the right answers, and no others.
    fn after(&self, crowd: &mut Crowd) {
        let [idle, amid, blocked] = [self.idle, self.amid, self.blocked].map(|life| crowd.name(life));
        crowd.say(self.idle, &request(&idle, 3, 0));
        let set = request(&amid, 17, 100);
        crowd.say(self.amid, &set[set.len() / 2..]);
        crowd.set_room(self.blocked, usize::MAX);
        crowd.say(self.blocked, &request(&blocked, 19, 0));
        [self.idle, self.amid, self.blocked].into_iter().for_each(|life| crowd.settle(life));
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Reading,
    Writing,
    /// The socket took so many bytes and no more; then the peer is gone.
    Blocked,
    /// The client closes its side amid a request.
    Closed,
}

fn end(crowd: &mut Crowd, ending: Ending, at: usize, is_pipelined: bool) {
    let life = crowd.connect();
    match ending {
        Ending::Reading => crowd.break_reading(life, at),
        Ending::Writing => crowd.break_writing(life, at),
        Ending::Blocked => crowd.set_room(life, at),
        Ending::Closed => {}
    }
    let mut left = if matches!(ending, Ending::Closed) { at } else { usize::MAX };
    for piece in exchange(&crowd.name(life)) {
        let piece = &piece[..piece.len().min(left)];
        left -= piece.len();
        crowd.send(life, piece);
        if !is_pipelined {
            crowd.serve(life);
        }
    }
    if matches!(ending, Ending::Closed) {
        crowd.close(life);
    }
    crowd.serve(life);
    crowd.compare(life);
}

#[test]
fn a_connection_may_break_at_every_byte_of_every_exchange() {
    let mut crowd = Crowd::new();
    let witnesses = Witnesses::join(&mut crowd);
    let sent: usize = exchange("breaking.").iter().map(Vec::len).sum();
    for ending in [Ending::Reading, Ending::Writing, Ending::Blocked, Ending::Closed] {
        for is_pipelined in [true, false] {
            for at in 0..=sent {
                witnesses.before(&mut crowd);
                end(&mut crowd, ending, at, is_pipelined);
                witnesses.after(&mut crowd);
                crowd.forget_from(3);
            }
        }
    }
}

#[test]
fn whatever_several_connections_do_each_gets_what_it_gets_alone() {
    let seed = std::env::var("TOWA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| StdRng::from_os_rng().random());
    println!("TOWA_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..40 {
        let steps: Vec<u8> = (0..900).map(|_| random.random()).collect();
        run(&mut Crowd::new(), &steps);
    }
}

#[test]
fn a_panic_amid_a_batch_takes_its_answers_with_it() {
    let mut crowd = Crowd::new();
    let witnesses = Witnesses::join(&mut crowd);
    for _ in 0..3 {
        witnesses.before(&mut crowd);
        let life = crowd.connect();
        crowd.say(life, b"version\r\nget nothing\r\ndebugtime panic\r\nversion\r\n");
        witnesses.after(&mut crowd);
        crowd.forget_from(3);
    }
}

#[test]
fn connections_that_wait_for_durability_break_alone() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open_or_create(dir.path(), &Options { heap_len: 64 << 20, manual: true, ..Options::default() }).unwrap();
    let mut crowd = Crowd::on(&pool);
    for at in 0..40 {
        let (waits, breaks, next) = (crowd.connect(), crowd.connect(), crowd.connect());
        crowd.break_writing(breaks, at);
        for life in [waits, breaks] {
            crowd.send(life, b"set k 0 0 1\r\nx\r\ndurable\r\nmn\r\nget none\r\n");
            crowd.serve(life);
        }
        assert_eq!(crowd.output(waits), b"STORED\r\n", "it does not wait");
        crowd.say(next, b"version\r\n");
        pool.checkpoint().unwrap();
        crowd.look_at_parked();
        let got = String::from_utf8(crowd.output(waits)).unwrap();
        let rest = got.strip_prefix("STORED\r\nDURABLE ").unwrap_or_else(|| panic!("{got:?}"));
        assert_eq!(rest.trim_start_matches(|c: char| c.is_ascii_digit()), "\r\nMN\r\nEND\r\n");
        crowd.say(next, b"version\r\n");
        crowd.compare_all(next);
        crowd.forget_from(0);
    }
    pool.close().unwrap();
}

/// Closes at once: what was not read, and what is on its way, is lost, and the server's next write fails.
fn reset(client: Client) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the descriptor is open, and the option's value is a linger that lives through the call.
    let result = unsafe {
        let (value, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
        libc::setsockopt(client.stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len)
    };
    assert_eq!(result, 0);
}

/// Asks for a key that only this client uses; anything but its value is another's answer.
fn check(witness: &mut Client, number: usize, round: usize) {
    let (key, other) = (format!("witness{number}"), format!("none{number}"));
    let wanted = format!("STORED\r\nVALUE {key} 0 6\r\n{round:06}\r\nEND\r\nEN\r\n");
    witness.send(format!("set {key} 0 0 6\r\n{round:06}\r\nget {key} {other}\r\nmg {other} v\r\n").as_bytes());
    let mut got = vec![0; wanted.len()];
    witness.stream.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), wanted);
    witness.stream.set_nonblocking(true).unwrap();
    let more = witness.stream.read(&mut [0; 1000]).map_err(|error| error.kind());
    witness.stream.set_nonblocking(false).unwrap();
    assert_eq!(more, Err(ErrorKind::WouldBlock), "more than was asked for");
}

#[test]
fn sockets_that_are_reset_or_closed_take_their_answers_with_them() {
    let server = Running::volatile(Config { threads: 2, ..config() });
    let mut witnesses: Vec<Client> = (0..4).map(|_| server.client()).collect();
    let secret = "S".repeat(200);
    assert_eq!(server.client().say(&format!("set secret 0 0 200\r\n{secret}\r\n")), "STORED\r\n");
    let big = "B".repeat(900_000);
    assert_eq!(server.client().say(&format!("set big 0 0 900000\r\n{big}\r\n")), "STORED\r\n");
    let exchange = exchange("breaking.").concat();
    for round in 0..600 {
        let mut client = server.client();
        match round % 6 {
            0 => client.send(&b"get secret\r\n".repeat(100)),
            1 => client.send(&b"get secret\r\n".repeat(4000)),
            2 => client.send(b"get big\r\nget big\r\nget big\r\n"),
            // The answer to the first lies there unread, so that the close is a reset.
            3 => {
                client.send(b"get secret\r\n");
                assert!(client.stream.peek(&mut [0]).unwrap() == 1);
                client.send(b"get secret\r\nget secret\r\n");
            }
            4 => client.send(&exchange[..round * exchange.len() / 600]),
            _ => client.send(b"get secret\r\nset half 0 0 1000\r\nhalf"),
        }
        if round % 12 < 6 {
            drop(client);
        } else {
            reset(client);
        }
        for (number, witness) in witnesses.iter_mut().enumerate() {
            check(witness, number, round);
        }
    }
    assert_eq!(witnesses[0].stat("panics"), 0);
}
