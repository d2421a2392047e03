//! Memory that connections make the server take: it stays within the bound, and those that hold it without need give way.

use towa_epoch::{Options, Pool};

use crate::crowd::{Link, Served};

const HEAP: u64 = 64 << 20;

fn served() -> Served {
    Served::on(&Pool::volatile(&Options { heap_len: HEAP, ..Options::default() }).unwrap())
}

fn connect<const N: usize>(served: &mut Served) -> [Link; N] {
    [(); N].map(|()| served.connect())
}

#[test]
fn answers_that_are_not_read_hold_up_the_others_for_a_second() {
    let mut served = served();
    let [reader, other] = connect(&mut served);
    let value = "v".repeat(200_000);
    for key in ["a", "b"] {
        assert_eq!(served.say(&reader, format!("set {key} 0 0 200000\r\n{value}\r\n").as_bytes()), "STORED\r\n");
    }
    let deaf: [Link; 100] = connect(&mut served);
    for link in &deaf {
        link.set_room(1000);
        let got = served.say(link, "get a b\r\n".repeat(100).as_bytes());
        assert_eq!(got.len(), if served.clients.are_held_back() { 0 } else { 1000 });
        if served.clients.are_held_back() {
            break;
        }
    }
    assert!(served.clients.are_held_back(), "100 deaf clients take no more than there is");
    // Others wait, and are served as soon as there is room: those that take nothing are closed.
    assert_eq!(served.say(&reader, b"get b\r\n"), "");
    assert_eq!(served.say(&other, b"version\r\n"), "");
    let there = served.clients.count();
    for tick in [1, 2] {
        served.clients.renew_time(tick).unwrap();
        // The deaf client that waits before them takes room once more.
        for _ in 0..2 {
            served.clients.go_on_with_held_back();
        }
        assert_eq!(served.clients.are_held_back(), tick == 1, "tick {tick}");
    }
    assert_eq!(reader.got(), format!("VALUE b 0 200000\r\n{value}\r\nEND\r\n"));
    assert!(other.got().starts_with("VERSION"));
    let (left, kicked) = (served.clients.count(), served.stat(&reader, "request_kicks"));
    assert!(left < there && kicked == (there - left) as u64, "{left} of {there}, {kicked} closed");
    assert!(left > 60, "only as many are closed as it takes, {left} are left");
    assert!(served.stat(&reader, "response_obj_bytes") < HEAP / 4);
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_it() {
    let mut served = served();
    let [slow, other] = connect(&mut served);
    let value = "v".repeat(250_000);
    assert_eq!(served.say(&other, format!("set a 0 0 250000\r\n{value}\r\n").as_bytes()), "STORED\r\n");
    slow.set_room(0);
    served.say(&slow, "get a\r\n".repeat(8).as_bytes());
    let held = served.stat(&other, "response_obj_bytes");
    assert!((500_000..600_000).contains(&held), "{held} bytes: two values and no third");
    let mut got = 0;
    for _ in 0..500 {
        slow.set_room(10_000);
        got += served.say(&slow, b"").len();
    }
    assert_eq!(got, 8 * "VALUE a 0 250000\r\n\r\nEND\r\n".len() + 8 * 250_000);
    assert_eq!(served.stat(&other, "response_obj_bytes"), 0);
}

#[test]
fn requests_that_never_end_are_refused_and_closed() {
    let mut served = served();
    let [reader] = connect(&mut served);
    // Each value is smaller than what a worker reads at once.
    let part = format!("set a 0 0 60000\r\n{}", "v".repeat(50_000));
    let mut links = Vec::new();
    let refused = loop {
        let link = served.connect();
        let said = served.say(&link, part.as_bytes());
        if !said.is_empty() {
            break said;
        }
        links.push(link);
        assert!(links.len() < 2000, "never refused");
    };
    assert_eq!(refused, "SERVER_ERROR out of memory storing object\r\n");
    let held = served.stat(&reader, "read_buf_bytes");
    assert!(held > HEAP / 4 && held <= HEAP / 2, "{held} bytes are held");
    // What a connection may keep in any case is stored as ever.
    assert_eq!(served.say(&reader, b"set b 0 0 1\r\nb\r\nget b\r\n"), "STORED\r\nVALUE b 0 1\r\nb\r\nEND\r\n");
    let many: String = (0..3000).map(|i| format!("set b{i} 0 0 10\r\n0123456789\r\n")).collect();
    assert_eq!(served.say(&reader, many.as_bytes()), "STORED\r\n".repeat(3000));
    // A second for each 4 KiB, and one more: then those that stand still are closed.
    for tick in [1, 3, 20] {
        served.clients.renew_time(tick).unwrap();
        served.clients.drop_overdue();
    }
    let again = format!("{part}{}\r\n", "v".repeat(10_000));
    assert_eq!(served.say(&reader, again.as_bytes()), "STORED\r\n");
    let kicked = served.stat(&reader, "request_kicks");
    assert!(kicked > 0 && (kicked as usize) < links.len() / 2, "{kicked} of {}", links.len());
}
