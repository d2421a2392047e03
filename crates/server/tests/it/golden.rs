//! Answers byte for byte, as memcached 1.6.18 gives them.

use crate::peers::{Running, config};

/// Asks each question in turn on one connection.
fn check(dialogue: &[(&str, &str)]) {
    let server = Running::volatile(config());
    let mut client = server.client();
    for (question, answer) in dialogue {
        assert_eq!(client.say(question), *answer, "to {question:?}");
    }
}

#[test]
fn storage_commands() {
    check(&[
        ("get nothing\r\n", "END\r\n"),
        ("set k 5 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get k\r\n", "VALUE k 5 3\r\nabc\r\nEND\r\n"),
        ("add k 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("add n 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("replace k 7 0 2\r\nde\r\n", "STORED\r\n"),
        ("replace absent 7 0 2\r\nde\r\n", "NOT_STORED\r\n"),
        ("append k 0 0 2\r\nfg\r\n", "STORED\r\n"),
        ("prepend k 0 0 1\r\nc\r\n", "STORED\r\n"),
        ("append absent 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("get k n\r\n", "VALUE k 7 5\r\ncdefg\r\nVALUE n 0 1\r\nx\r\nEND\r\n"),
        ("set k 0 0 0\r\n\r\n", "STORED\r\n"),
        ("get k\r\n", "VALUE k 0 0\r\n\r\nEND\r\n"),
        ("set k 0 0 2 noreply\r\nhi\r\n", ""),
        ("get k\r\n", "VALUE k 0 2\r\nhi\r\nEND\r\n"),
        ("cas k 0 0 1 999999\r\nx\r\n", "EXISTS\r\n"),
        ("cas absent 0 0 1 1\r\nx\r\n", "NOT_FOUND\r\n"),
        ("delete k\r\n", "DELETED\r\n"),
        ("delete k\r\n", "NOT_FOUND\r\n"),
        ("delete k 0\r\n", "NOT_FOUND\r\n"),
        ("delete k 0 noreply\r\n", ""),
        ("delete k 5\r\n", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"),
    ]);
}

#[test]
fn malformed_lines() {
    let long = "k".repeat(251);
    let fits = "k".repeat(250);
    check(&[
        ("\r\n", "ERROR\r\n"),
        ("\n", "ERROR\r\n"),
        ("x\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("set k 0 0\r\n", "ERROR\r\n"),
        ("set k a 0 1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set k 0 0 -1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("set k 0 0 3\r\nabcdef\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
        (&format!("get {long}\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        (&format!("get a {long} b\r\n"), "CLIENT_ERROR bad command line format\r\n"),
        // The value of a refused key is read as a command, as in memcached.
        (&format!("set {long} 0 0 5\r\nhello\r\n"), "CLIENT_ERROR bad command line format\r\nERROR\r\n"),
        (&format!("set {fits} 0 0 1\r\nx\r\n"), "STORED\r\n"),
    ]);
}

#[test]
fn too_large_values_are_skipped_and_take_the_old_one_along() {
    let server = Running::volatile(config());
    let mut client = server.client();
    assert_eq!(client.say("set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    let value = "v".repeat(1_048_600);
    assert_eq!(client.say(&format!("set k 0 0 {}\r\n{value}\r\n", value.len())), "SERVER_ERROR object too large for cache\r\n");
    assert_eq!(client.say("get k\r\n"), "END\r\n");
    // The largest that fits, by memcached's arithmetic.
    let value = "v".repeat((1 << 20) - 48 - 8 - 2 - 2);
    assert_eq!(client.say(&format!("set k 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n");
    assert_eq!(client.say("get k\r\n").len(), "VALUE k 0 1048516\r\n".len() + value.len() + "\r\nEND\r\n".len());
    let value = "v".repeat((1 << 20) - 48 - 8 - 2 - 1);
    assert_eq!(client.say(&format!("add k 0 0 {}\r\n{value}\r\n", value.len())), "SERVER_ERROR object too large for cache\r\n");
    assert_ne!(client.say("get k\r\n"), "END\r\n", "add takes nothing along");
}

#[test]
fn arithmetic() {
    check(&[
        ("incr n 1\r\n", "NOT_FOUND\r\n"),
        ("set n 0 0 2\r\n99\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "100\r\n"),
        ("decr n 95\r\n", "5\r\n"),
        ("get n\r\n", "VALUE n 0 3\r\n5  \r\nEND\r\n"),
        ("decr n 100\r\n", "0\r\n"),
        ("incr n x\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("set n 0 0 20\r\n18446744073709551615\r\n", "STORED\r\n"),
        ("incr n 2\r\n", "1\r\n"),
        ("set n 0 0 3\r\nabc\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("set n 0 0 0\r\n\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("set n 0 0 1\r\n7\r\n", "STORED\r\n"),
        ("incr n 1 noreply\r\n", ""),
        ("get n\r\n", "VALUE n 0 1\r\n8\r\nEND\r\n"),
    ]);
}

#[test]
fn expiry_touch_and_flush() {
    check(&[
        ("set k 0 10 1\r\nx\r\n", "STORED\r\n"),
        ("set past 0 -1 1\r\nx\r\n", "STORED\r\n"),
        ("get k past\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n"),
        ("touch k 100\r\n", "TOUCHED\r\n"),
        ("touch absent 100\r\n", "NOT_FOUND\r\n"),
        ("touch k x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("debugtime 50\r\n", "OK\r\n"),
        ("get k\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n"),
        ("gat 10 k absent\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n"),
        ("gat 10\r\n", "END\r\n"),
        ("gats x k\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("debugtime 20\r\n", "OK\r\n"),
        ("get k\r\n", "END\r\n"),
        ("add k 0 0 1\r\ny\r\n", "STORED\r\n"),
        ("flush_all\r\n", "OK\r\n"),
        ("get k\r\n", "END\r\n"),
        ("set k 0 0 1\r\nz\r\n", "STORED\r\n"),
        ("debugtime p\r\n", "OK\r\n"),
        ("flush_all 10\r\n", "OK\r\n"),
        ("debugtime 9\r\n", "OK\r\n"),
        ("get k\r\n", "VALUE k 0 1\r\nz\r\nEND\r\n"),
        ("debugtime 1\r\n", "OK\r\n"),
        ("get k\r\n", "END\r\n"),
        ("debugtime r\r\n", "OK\r\n"),
        ("set k 0 0 1\r\nz\r\n", "STORED\r\n"),
        ("get k\r\n", "VALUE k 0 1\r\nz\r\nEND\r\n"),
        ("flush_all noreply\r\n", ""),
        ("get k\r\n", "END\r\n"),
        ("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    ]);
}

#[test]
fn meta_commands() {
    check(&[
        ("mn\r\n", "MN\r\n"),
        ("mg\r\n", "ERROR\r\n"),
        ("mg k v\r\n", "EN\r\n"),
        ("mg k v q\r\n", ""),
        ("mg k v Oabc k\r\n", "EN Oabc kk\r\n"),
        ("ms k 2 T100 F5 Oabc k\r\nhi\r\n", "HD Oabc kk\r\n"),
        ("ms k 2 q\r\nho\r\n", ""),
        ("ms k 2 ME\r\nxx\r\n", "NS\r\n"),
        ("ms k 2 q ME\r\nxx\r\n", "NS\r\n"),
        ("ms k 2 MA\r\n!!\r\n", "HD\r\n"),
        ("ms k 2 c C99999999\r\nxx\r\n", "EX c0\r\n"),
        ("ms absent 2 C99999999\r\nxx\r\n", "NF\r\n"),
        ("mg k s v f t h\r\n", "VA 4 s4 f0 t-1 h0\r\nho!!\r\n"),
        ("mg k h\r\n", "HD h1\r\n"),
        ("mg k\r\n", "HD\r\n"),
        ("mg k t T90\r\n", "HD t-1\r\n"),
        ("mg k T80 t\r\n", "HD t80\r\n"),
        ("mg k t t\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        ("mg k t !\r\n", "CLIENT_ERROR invalid flag\r\n"),
        ("md k Oz k\r\n", "HD Oz kk\r\n"),
        ("md k q\r\n", "NF\r\n"),
        ("ms a2V5 1 b k\r\nx\r\n", "HD ka2V5 b\r\n"),
        ("get key\r\n", "VALUE key 0 1\r\nx\r\nEND\r\n"),
        ("mg key k\r\n", "HD ka2V5 b\r\n"),
        ("mg *** b\r\n", "CLIENT_ERROR error decoding key\r\n"),
        ("ma c\r\n", "NF\r\n"),
        ("ma c N0 J13 v t\r\n", "VA 2 t-1\r\n13\r\n"),
        ("ma c v D5\r\n", "VA 2\r\n18\r\n"),
        ("ma c v MD D100\r\n", "VA 1\r\n0\r\n"),
        ("ma c q\r\n", ""),
        ("ma c MX\r\n", "CLIENT_ERROR invalid mode for ma M token\r\n"),
        ("ms k S1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("ms k 1 MX\r\nx\r\n", "CLIENT_ERROR invalid mode for ms M token\r\n"),
        ("ms k 3\r\nabcd\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
    ]);
}

#[test]
fn recache_and_stale_tokens() {
    check(&[
        ("debugtime p\r\n", "OK\r\n"),
        ("mg k N30 t\r\n", "HD t30 W\r\n"),
        ("mg k N30 t v\r\n", "VA 0 t30 Z\r\n\r\n"),
        ("ms k 2 T30\r\nhi\r\n", "HD\r\n"),
        ("mg k R20\r\n", "HD\r\n"),
        ("mg k R60\r\n", "HD W\r\n"),
        ("mg k R60\r\n", "HD Z\r\n"),
        ("md k I T10\r\n", "HD\r\n"),
        ("mg k t v\r\n", "VA 2 t10 X W\r\nhi\r\n"),
        ("mg k t v\r\n", "VA 2 t10 Z X\r\nhi\r\n"),
        ("ms k 2 I C1 T90\r\nyo\r\n", "HD\r\n"),
        ("mg k t v\r\n", "VA 2 t10 Z X\r\nyo\r\n"),
        ("ms k 2 T90\r\nok\r\n", "HD\r\n"),
        ("mg k t v\r\n", "VA 2 t90\r\nok\r\n"),
    ]);
}

#[test]
fn the_rest() {
    check(&[
        ("verbosity\r\n", "ERROR\r\n"),
        ("verbosity 1\r\n", "OK\r\n"),
        ("verbosity x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("verbosity 1 noreply\r\n", ""),
        ("shutdown\r\n", "ERROR: shutdown not enabled\r\n"),
        ("cache_memlimit 4\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ("cache_memlimit 64\r\n", "OK\r\n"),
        ("slabs automove x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("slabs reassign 1 2\r\n", "CLIENT_ERROR slab reassignment disabled\r\n"),
        ("lru_crawler crawl all\r\n", "OK\r\n"),
        ("lru_crawler metadump all\r\n", "ERROR metadump not allowed\r\n"),
        ("watch\r\n", "CLIENT_ERROR watch commands not allowed\r\n"),
        ("stats reset\r\n", "RESET\r\n"),
        ("stats cachedump 1\r\n", "CLIENT_ERROR bad command line\r\n"),
        ("stats cachedump 64 0\r\n", "CLIENT_ERROR Illegal slab id\r\n"),
        ("set k 0 0 2\r\nhi\r\n", "STORED\r\n"),
        ("stats cachedump 1 0\r\n", "ITEM k [2 b; 0 s]\r\nEND\r\n"),
        ("stats cachedump 2 0\r\n", "END\r\n"),
        ("stats nonsense\r\n", "ERROR\r\n"),
        ("stats detail\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
        ("durable then\r\n", "ERROR\r\n"),
        ("durable\r\n", "SERVER_ERROR not durable: the server runs without a pool (--volatile); nothing will survive it\r\n"),
    ]);
}

#[test]
fn hang_ups() {
    for question in ["quit\r\n", "GET / HTTP/1.0\r\n", &"x".repeat(20_000)] {
        let server = Running::volatile(config());
        assert_eq!(server.client().say(question), "<closed>", "to {:.20}", question);
    }
    let server = Running::volatile(config());
    assert_eq!(server.client().ask(b"\x80\0\0\0"), b"ERROR\r\n<closed>");
}
