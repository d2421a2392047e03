//! Memory that connections make the server take: it stays within the bound, and those that hold it without need give way.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use towa_epoch::{Options, Pool};
use towa_server::Config;

use crate::crowd::{Link, Served};
use crate::peers::{Client, Running, config};

const HEAP: u64 = 64 << 20;

fn served() -> Served {
    Served::on(&Pool::volatile(&Options { heap_len: HEAP, ..Options::default() }).unwrap())
}

fn connect<const N: usize>(served: &mut Served) -> [Link; N] {
    [(); N].map(|()| served.connect())
}

/// A store with two values of 200,000 bytes, `a` and `b`.
fn with_values(served: &mut Served, link: &Link) -> String {
    let value = "v".repeat(200_000);
    for key in ["a", "b"] {
        assert_eq!(served.say(link, format!("set {key} 0 0 200000\r\n{value}\r\n").as_bytes()), "STORED\r\n");
    }
    value
}

#[test]
fn clients_that_read_are_served_at_once_while_deaf_ones_hold_all_there_is() {
    let mut served = served();
    let [reader] = connect(&mut served);
    let value = with_values(&mut served, &reader);
    let deaf: [Link; 100] = connect(&mut served);
    let mut most = 0;
    for link in &deaf {
        link.set_room(1000);
        assert_eq!(served.say(link, "get a b\r\n".repeat(100).as_bytes()).len(), 1000, "it is served, as any other");
        assert_eq!(served.say(&reader, b"get b\r\n"), format!("VALUE b 0 200000\r\n{value}\r\nEND\r\n"));
        most = most.max(served.stat(&reader, "response_obj_bytes"));
    }
    let (left, kicked) = (served.clients.count() as u64, served.stat(&reader, "request_kicks"));
    assert!(kicked > 30 && left + kicked == 101, "{left} are left, {kicked} closed");
    assert!((4 << 20..HEAP / 6).contains(&most), "{most} bytes were held");
    assert!(served.stat(&reader, "response_obj_bytes") > most / 2, "only as many are closed as it takes");
}

#[test]
fn the_largest_holder_of_answers_goes_first() {
    let mut served = served();
    let [reader, modest] = connect(&mut served);
    let value = with_values(&mut served, &reader);
    modest.set_room(0);
    served.say(&modest, b"get a\r\n");
    let deaf: [Link; 100] = connect(&mut served);
    for link in &deaf {
        link.set_room(0);
        served.say(link, "get a b\r\n".repeat(100).as_bytes());
        let [again] = connect(&mut served);
        again.set_room(0);
        served.say(&again, b"get b\r\n".repeat(100).as_slice());
    }
    assert!(served.stat(&reader, "request_kicks") > 50);
    modest.set_room(usize::MAX);
    assert_eq!(served.say(&modest, b""), format!("VALUE a 0 200000\r\n{value}\r\nEND\r\n"));
}

#[test]
fn a_turn_answers_less_while_much_is_held() {
    let mut served = served();
    let [reader, calm, pressed] = connect(&mut served);
    with_values(&mut served, &reader);
    assert_eq!(served.say(&reader, format!("set c 0 0 1000\r\n{}\r\n", "v".repeat(1000)).as_bytes()), "STORED\r\n");
    let small = "get c\r\n".repeat(1000);
    let held_by = |served: &mut Served, link: &Link| {
        let before = served.stat(&reader, "response_obj_bytes");
        link.set_room(0);
        served.say(link, small.as_bytes());
        served.stat(&reader, "response_obj_bytes") - before
    };
    assert!(held_by(&mut served, &calm) > 256 << 10);
    let deaf: [Link; 18] = connect(&mut served);
    for link in &deaf {
        link.set_room(0);
        served.say(link, b"get a b\r\n");
    }
    let less = held_by(&mut served, &pressed);
    assert!(((64 << 10)..(160 << 10)).contains(&less), "{less} bytes");
}

#[test]
fn a_dump_of_keys_takes_no_more_than_it_may_need() {
    let mut served = served();
    let [reader, deaf] = connect(&mut served);
    for batch in 0..9 {
        let sets: String = (0..1000).map(|i| format!("set {}{i:05} 0 0 1\r\nv\r\n", format!("{batch}").repeat(240))).collect();
        assert_eq!(served.say(&reader, sets.as_bytes()), "STORED\r\n".repeat(1000));
    }
    deaf.set_room(0);
    served.say(&deaf, b"stats cachedump 1 0\r\n");
    let held = served.stat(&reader, "response_obj_bytes");
    assert!(((2 << 20)..(2 << 20) + 4096).contains(&held), "{held} bytes");
    let few = served.connect();
    few.set_room(0);
    served.say(&few, b"stats cachedump 1 10\r\n");
    assert!(served.stat(&reader, "response_obj_bytes") - held < 8192);
}

/// Over a real socket, beside deaf clients that go on asking.
#[test]
fn a_steady_slow_reader_gets_all_of_it() {
    let limit = Some(16 << 20);
    let server = Running::volatile(Config { threads: 1, memory_limit: limit, item_size_max: 300_000, ..config() });
    let value = "v".repeat(1000);
    assert_eq!(server.client().say(&format!("set c 0 0 1000\r\n{value}\r\n")), "STORED\r\n");
    // More of it than the kernel takes for a client that does not read, and one of it is more than a batch of small ones.
    let large = "v".repeat(290_000);
    assert_eq!(server.client().say(&format!("set large 0 0 290000\r\n{large}\r\n")), "STORED\r\n");
    let mut slow = server.client();
    slow.send("get c\r\n".repeat(40_000).as_bytes());
    let mut deaf: Vec<Client> = Vec::new();
    let mut got = Vec::new();
    let wanted = format!("VALUE c 0 1000\r\n{value}\r\nEND\r\n").repeat(40_000);
    loop {
        // Once the kernel takes no more for it, either, and the server knows it for one that reads slowly.
        if got.len() > 16 << 20 && deaf.len() < 60 {
            let client = server.client();
            client.stream.set_nonblocking(true).unwrap();
            // What does not go through at once is not sent.
            let _ = (&client.stream).write(value_requests().as_bytes());
            deaf.push(client);
        }
        let mut piece = vec![0; 200_000];
        let read = slow.stream.read(&mut piece).unwrap();
        assert!(read > 0, "closed after {} bytes", got.len());
        got.extend_from_slice(&piece[..read]);
        if got.len() == wanted.len() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(got == wanted.as_bytes());
    // The deaf ones are answered until the kernel takes no more, and then there is no room for all of them.
    let end = Instant::now() + Duration::from_secs(30);
    while server.client().stat("request_kicks") == 0 {
        let held = server.client().stat("response_obj_bytes");
        assert!(Instant::now() < end, "there was room for all of them: {held} bytes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn value_requests() -> String {
    "get large\r\n".repeat(400)
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

/// New connections send the same beginning of a request until one stands still: those before it, and that one.
fn send_until_short(served: &mut Served, part: &str) -> (Vec<Link>, Link) {
    let mut links = Vec::new();
    loop {
        let link = served.connect();
        assert_eq!(served.say(&link, part.as_bytes()), "");
        if served.clients.are_starving() {
            return (links, link);
        }
        links.push(link);
        assert!(links.len() < 2000, "there is memory for all of them");
    }
}

/// What a connection that stands still is answered in the end, and after how long.
fn wait_for_answer(served: &mut Served, link: &Link) -> (String, Duration) {
    let begin = Instant::now();
    loop {
        served.clients.go_on_with_starving();
        let got = link.got();
        if !got.is_empty() {
            return (got, begin.elapsed());
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "never answered");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// New connections send the same beginning of a request until one is answered: those before it, and the answer.
fn send_until_refused(served: &mut Served, part: &str) -> (Vec<Link>, String) {
    let (links, link) = send_until_short(served, part);
    let (answer, after) = wait_for_answer(served, &link);
    assert!(after >= Duration::from_millis(900), "refused after {after:?}");
    (links, answer)
}

#[test]
fn requests_stand_still_while_memory_is_short_and_go_on_in_turn() {
    let mut served = served();
    let [reader] = connect(&mut served);
    let part = format!("set a 0 0 60000\r\n{}", "v".repeat(50_000));
    let (mut links, first) = send_until_short(&mut served, &part);
    let second = served.connect();
    assert_eq!(served.say(&second, part.as_bytes()), "");
    served.clients.go_on_with_starving();
    assert_eq!((first.got(), second.got()), (String::new(), String::new()));
    assert_eq!(served.say(&reader, b"set b 0 0 1\r\nb\r\nget b\r\n"), "STORED\r\nVALUE b 0 1\r\nb\r\nEND\r\n");
    // The kernel keeps what clients send while their requests stand still.
    let rest = format!("{}\r\n", "v".repeat(10_000));
    for link in [&second, &first] {
        assert_eq!(served.say(link, rest.as_bytes()), "");
    }
    let held = served.stat(&reader, "read_buf_bytes");
    assert!(held <= HEAP / 2, "{held} bytes are held");
    // One value is there: its memory does for the first.
    assert_eq!(served.say(&links.pop().unwrap(), rest.as_bytes()), "STORED\r\n");
    served.clients.go_on_with_starving();
    assert_eq!(first.got(), "STORED\r\n");
    served.clients.go_on_with_starving();
    assert_eq!((&*second.got(), served.clients.are_starving()), ("STORED\r\n", false));
    assert_eq!(served.stat(&reader, "request_kicks"), 0);
}

/// A connection for each of `N` values that has begun, and a share of some 128 KiB for what of it is there.
fn begin<const N: usize>(served: &mut Served) -> [Link; N] {
    let links = connect(served);
    let part = format!("set d 0 0 250000\r\n{}", "v".repeat(50_000));
    for link in &links {
        assert_eq!(served.say(link, part.as_bytes()), "");
    }
    links
}

/// The beginning of a value that is not much larger than what needs no share.
fn small_part() -> String {
    format!("set a 0 0 6000\r\n{}", "v".repeat(5000))
}

const REFUSED: &str = "SERVER_ERROR out of memory storing object\r\n";

#[test]
fn those_that_hold_memory_are_refused_one_by_one() {
    let mut served = served();
    let [reader] = connect(&mut served);
    let values: [Link; 3] = begin(&mut served);
    let part = format!("set a 0 0 60000\r\n{}", "v".repeat(50_000));
    let (_links, none) = send_until_short(&mut served, &part);
    for link in &values {
        assert_eq!(served.say(link, "v".repeat(150_000).as_bytes()), "");
    }
    std::thread::sleep(Duration::from_millis(1100));
    let begin = Instant::now();
    served.clients.go_on_with_starving();
    assert_eq!((&*none.got(), &*values[0].got()), (REFUSED, REFUSED), "the first gave nothing back that helps the second");
    let others = (values[1].got(), values[2].got());
    // A busy machine may have taken longer for that.
    assert!(
        others == (String::new(), String::new()) || begin.elapsed() > Duration::from_millis(20),
        "what the first gave back may do"
    );
    assert_eq!(wait_for_answer(&mut served, &values[2]).0, REFUSED);
    assert!(!served.clients.are_starving());
    assert_eq!(values[1].got(), "", "it goes on with what the first gave back");
    // The rest of a value that was refused is skipped.
    assert_eq!(served.say(&none, format!("{}\r\nget b\r\n", "v".repeat(10_000)).as_bytes()), "END\r\n");
    assert_eq!(served.stat(&reader, "curr_items"), 0);
}

#[test]
fn those_that_hold_none_are_refused_at_once() {
    let mut served = served();
    let (_links, _) = send_until_short(&mut served, &format!("set a 0 0 60000\r\n{}", "v".repeat(50_000)));
    let many: [Link; 100] = connect(&mut served);
    for link in &many {
        assert_eq!(served.say(link, format!("set a 0 0 200000\r\n{}", "v".repeat(50_000)).as_bytes()), "");
    }
    std::thread::sleep(Duration::from_millis(1100));
    served.clients.go_on_with_starving();
    assert!(many.iter().all(|link| link.got() == REFUSED), "and not one every 20 ms");
}

/// A client that sends one request after the other, for none of which there is memory, beside one that holds some and lacks more.
#[test]
fn who_is_refused_again_and_again_holds_up_none_behind() {
    let mut served = served();
    let [holder] = begin(&mut served);
    let (_links, _) = send_until_refused(&mut served, &format!("set a 0 0 60000\r\n{}", "v".repeat(50_000)));
    let (_more, sender) = send_until_short(&mut served, &small_part());
    assert_eq!(served.say(&holder, "v".repeat(150_000).as_bytes()), "");
    let begin = Instant::now();
    while holder.got().is_empty() {
        served.say(&sender, format!("{}\r\n{}", "v".repeat(1000), small_part()).as_bytes());
        served.clients.go_on_with_starving();
        assert!(begin.elapsed() < Duration::from_secs(5), "never answered");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(holder.got(), REFUSED);
}

/// Values that are announced hold memory for a time that does not depend on how much is left, if that is less than another one lacks.
#[test]
fn whoever_only_announces_gives_way_to_one_that_lacks_more_than_is_left() {
    let pool = Pool::volatile(&Options { heap_len: HEAP, ..Options::default() }).unwrap();
    let mut served = Served::with(&pool, 1 << 20);
    let [reader, other, sender] = connect(&mut served);
    let (most, mut held) = ((HEAP - HEAP / 8) / 2 - (128 << 10), 0);
    while most - held > 835_000 {
        let link = served.connect();
        assert_eq!(served.say(&link, b"set d 0 0 250000\r\n"), "");
        held = served.stat(&reader, "read_buf_bytes");
    }
    served.say(&other, format!("set v 0 0 290000\r\n{}", "v".repeat(150_000)).as_bytes());
    served.say(&sender, format!("set v 0 0 1000000\r\n{}", "v".repeat(300_000)).as_bytes());
    assert!(served.clients.are_starving(), "there is memory for all of them");
    let left = most - served.stat(&reader, "read_buf_bytes");
    assert!(left > 128 << 10, "{left} bytes are left, less than a turn may take");
    served.clients.renew_time(5).unwrap();
    served.clients.drop_overdue();
    served.clients.go_on_with_starving();
    let rest = format!("{}\r\n", "v".repeat(700_000));
    assert_eq!(served.say(&sender, rest.as_bytes()), "STORED\r\n");
}

/// Lines that wait for their client to read what it was answered so far.
#[test]
fn lines_that_wait_for_a_deaf_client_keep_their_memory_for_seconds_while_memory_is_short() {
    let mut served = served();
    let [reader, sender] = connect(&mut served);
    assert_eq!(served.say(&reader, b"set c 0 0 1\r\nc\r\n"), "STORED\r\n");
    let line = format!("get {}\r\n", "c ".repeat(450_000));
    let mut deaf = Vec::new();
    for _ in 0..40 {
        let link = served.connect();
        link.set_room(0);
        served.say(&link, line.as_bytes());
        deaf.push(link);
    }
    let value = format!("set v 0 0 290000\r\n{}\r\n", "v".repeat(290_000));
    assert_eq!((&*served.say(&sender, value.as_bytes()), served.clients.are_starving()), ("", true));
    for tick in [5, 20] {
        served.clients.renew_time(tick).unwrap();
        // Their sockets take a little, now and then.
        for link in &deaf {
            link.set_room(10);
            served.say(link, b"");
        }
        served.clients.drop_overdue();
    }
    assert!(served.stat(&reader, "request_kicks") > 20);
    served.clients.go_on_with_starving();
    assert_eq!(sender.got(), "STORED\r\n");
}

#[test]
fn deaf_clients_of_one_worker_cost_no_client_of_another() {
    let pool = Pool::volatile(&Options { heap_len: HEAP, ..Options::default() }).unwrap();
    let (mut one, mut other) = Served::two_on(&pool);
    let ([reader], [modest]) = (connect(&mut one), connect(&mut other));
    with_values(&mut one, &reader);
    let deaf: [Link; 100] = connect(&mut one);
    for link in &deaf {
        link.set_room(0);
        one.say(link, b"get a b\r\n");
    }
    assert!(one.stat(&reader, "request_kicks") > 50);
    modest.set_room(0);
    other.say(&modest, b"get a\r\n");
    modest.set_room(usize::MAX);
    assert_eq!(other.say(&modest, b"").len(), 200_000 + "VALUE a 0 200000\r\n\r\nEND\r\n".len());
}

/// What is short to ask for and long to do: others have their turns in between.
#[test]
fn a_turn_ends_after_some_work() {
    let mut served = served();
    let [client] = connect(&mut served);
    with_values(&mut served, &client);
    let one = served.say(&client, b"stats cachedump 1 0\r\n");
    for (requests, most) in [("stats cachedump 1 0\r\n".repeat(1000), 3 * one.len()), ("flush_all 1000\r\n".repeat(1000), 20)] {
        let got = served.say_for_one_turn(&client, requests.as_bytes());
        assert!(served.clients.have_more() && got.len() <= most, "{got:?}");
        served.say(&client, b"");
    }
    // One turn a round, however often its client sends.
    served.say_for_one_turn(&client, "stats cachedump 1 0\r\n".repeat(1000).as_bytes());
    for _ in 0..10 {
        assert_eq!(served.say_for_one_turn(&client, b"mn\r\n"), "");
    }
    assert_eq!(served.clients.take_again().len(), 1);
    served.hang_up(&client);
    let [client] = connect(&mut served);
    // As large as the values may become, or as many keys as a line may have.
    let appended = "append a 0 0 1 noreply\r\nv\r\n".repeat(2000) + "mn\r\n";
    let missed = format!("get {}\r\n", "k ".repeat(500_000));
    for (requests, last) in [(appended, "MN\r\n"), (missed, "END\r\n")] {
        let mut got = served.say_for_one_turn(&client, requests.as_bytes());
        let mut turns = 0;
        while served.clients.have_more() {
            assert_eq!(got, "", "after {turns} turns");
            turns += 1;
            got = served.say_again(&client);
        }
        assert_eq!(got, last);
        assert!(turns > 20, "{turns} turns");
    }
}

/// Much at once, and then some bytes now and then: the memory that it holds is wanted by others.
#[test]
fn a_value_that_drips_keeps_its_memory_for_seconds_while_memory_is_short() {
    let mut served = served();
    let [reader, drips] = connect(&mut served);
    let part = format!("set d 0 0 250000\r\n{}", "v".repeat(200_000));
    assert_eq!(served.say(&drips, part.as_bytes()), "");
    let line = format!("get {}", "k ".repeat(30_000));
    let mut lived = 0;
    for tick in 1..60 {
        served.clients.renew_time(tick).unwrap();
        served.clients.go_on_with_starving();
        if !served.clients.are_starving() {
            send_until_short(&mut served, &line);
        }
        let reads = drips.reads();
        served.say(&drips, &[b'v'; 500]);
        if drips.reads() == reads {
            break;
        }
        served.clients.drop_overdue();
        lived = tick;
    }
    assert!((10..20).contains(&lived), "it lives for {lived} s");
    assert!(served.stat(&reader, "request_kicks") > 0);
}

#[test]
fn requests_that_never_end_are_refused_and_closed() {
    let mut served = served();
    let [reader] = connect(&mut served);
    // Each value is smaller than what a worker reads at once.
    let part = format!("set a 0 0 60000\r\n{}", "v".repeat(50_000));
    let (links, refused) = send_until_refused(&mut served, &part);
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

#[test]
fn lines_that_never_end_are_refused_and_closed() {
    let mut served = served();
    let [reader, patient, late] = connect(&mut served);
    let line = format!("get {}", "k ".repeat(30_000));
    // It has a share for some bytes more than it has sent.
    served.say(&patient, &line.as_bytes()[..5000]);
    let (mut links, refused) = send_until_refused(&mut served, &line);
    assert_eq!(refused, "SERVER_ERROR out of memory reading request\r\n");
    assert_eq!(served.clients.count(), links.len() + 3, "it is closed");
    let held = served.stat(&reader, "read_buf_bytes");
    assert!(held > HEAP / 4 && held <= HEAP / 2, "{held} bytes are held");
    assert_eq!(served.say(&reader, b"get a\r\n"), "END\r\n");

    // A little is free again: a line of some length is read in pieces that are not tiny.
    served.hang_up(&links.pop().unwrap());
    let before = patient.reads();
    assert_eq!(served.say(&patient, format!("{}\r\n", "k ".repeat(10_000)).as_bytes()), "END\r\n");
    assert!(patient.reads() - before < 20, "{} reads of 20 KB", patient.reads() - before);
    // What is read behind a request that needs no share is kept uncounted.
    assert_eq!(served.say(&late, &line.as_bytes()[..4000]), "");
    assert_eq!(served.say(&late, b"\r\n"), "END\r\n");
}
