//! The parser by itself; what whole dialogues look like is in the crate's tests.

use proptest::prelude::*;

use super::*;

fn limits() -> Limits {
    Limits { item_size_max: 4096, multiget_max: 64 * 1024 }
}

fn parsed(input: &[u8]) -> Step<'_> {
    // The result borrows from the input alone.
    parse(input, &limits())
}

#[test]
fn a_store_waits_for_its_value() {
    assert_eq!(parsed(b"set k 0 0 3"), Step::Incomplete(1));
    assert_eq!(parsed(b"set k 0 0 3\r\n"), Step::Incomplete(5));
    assert_eq!(parsed(b"set k 0 0 3\r\nabc\r"), Step::Incomplete(1));
    let Step::Request { used: 18, request: Request::Store(store) } = parsed(b"set k 0 0 3\r\nabc\r\nget k\r\n") else { panic!() };
    assert_eq!((store.verb, store.key, store.data, store.noreply), (Verb::Set, &b"k"[..], &b"abc\r\n"[..], false));
}

#[test]
fn lines_end_at_newlines_and_nul_bytes() {
    let Step::Request { used: 6, request: Request::Get { keys, .. } } = parsed(b"get k\n") else { panic!() };
    assert_eq!(keys, b"k");
    let Step::Request { used: 13, request: Request::Get { keys, .. } } = parsed(b"get k\0 junk\r\n") else { panic!() };
    assert_eq!(keys, b"k");
    assert_eq!(parsed(b"\r\n"), Step::Reply { used: 2, swallow: 0, line: b"ERROR", quiet: false });
}

#[test]
fn long_lines_are_for_retrievals_alone() {
    let keys = " 0123456789".repeat(4000);
    assert_eq!(parsed(&b"x".repeat(LINE_MAX)), Step::Incomplete(1));
    assert_eq!(parsed(&b"x".repeat(LINE_MAX + 1)), Step::Close);
    assert_eq!(parsed(format!("get{keys}").as_bytes()), Step::Incomplete(1));
    assert!(matches!(parsed(format!("get{keys}\r\n").as_bytes()), Step::Request { .. }));
    assert_eq!(parsed(format!("get{keys}{keys}").as_bytes()), Step::Close, "but not without end");
    assert_eq!(parsed(format!("get{keys}{keys}\r\n").as_bytes()), Step::Close);
    assert_eq!(parsed(format!("set{keys}\r\n").as_bytes()), Step::Close);
}

#[test]
fn too_large_is_told_before_the_value_comes() {
    let Step::Request { used: 16, request: Request::TooLarge { swallow, unlink, .. } } = parsed(b"set k 0 0 4096\r\n") else {
        panic!()
    };
    assert_eq!((swallow, unlink), (4098, true));
    let Step::Reply { swallow, .. } = parsed(b"ms k 100 !\r\n") else { panic!() };
    assert_eq!(swallow, 102);
}

#[test]
fn all_keys_are_checked_before_any_is_served() {
    let long = "k".repeat(251);
    let step = format!("get a b {long}\r\n");
    assert_eq!(parsed(step.as_bytes()), Step::Reply { used: step.len(), swallow: 0, line: text::BAD_FORMAT, quiet: false });
}

proptest! {
    /// Whatever comes: no panic, no more asked for than a request can need, never more used than given.
    #[test]
    fn any_bytes(input in proptest::collection::vec(any::<u8>(), 0..600)) {
        check(&input);
    }

    /// The same for bytes that look like commands.
    #[test]
    fn near_commands(input in "(get|gets|gat|set|add|cas|incr|touch|delete|ms|mg|md|ma|me|mn|stats|flush_all|verbosity|slabs|lru_crawler)( [ -~]{0,12}){0,26}\r\n[ -~]{0,40}(\r\n)?") {
        check(input.as_bytes());
    }
}

fn check(input: &[u8]) {
    match parsed(input) {
        Step::Incomplete(need) => assert!(need > 0 && need <= 4096 + 2),
        Step::Request { used, .. } | Step::Reply { used, .. } => assert!(used > 0 && used <= input.len()),
        Step::Close => {}
    }
}
