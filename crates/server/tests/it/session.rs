//! Sessions without a network: any bytes, cut anywhere, give the same answers.

use proptest::prelude::*;
use towa_epoch::Pool;
use towa_server::commands::{Progress, Session};
use towa_server::{Config, Shared};

use crate::peers::config;

/// Feeds `pieces` as a connection would; the answers, and whether the server would hang up.
fn converse(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
    let options = towa_epoch::Options { heap_len: 16 << 20, ..Default::default() };
    let pool = Pool::volatile(&options).unwrap();
    let shared = Shared::new(Config { item_size_max: 2048, ..config() }, &pool).unwrap();
    let mut worker = shared.new_worker().unwrap();
    worker.now = 1_000_000_000;
    let (mut session, mut input, mut answers) = (Session::default(), Vec::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let mut out = Vec::new();
            worker.begin_turn();
            let (done, progress) = session.feed(&shared, &mut worker, &input, 256 << 10, &mut out);
            assert!(done <= input.len());
            input.drain(..done);
            answers.append(&mut out);
            match progress {
                Progress::More(need) => {
                    assert!(need > 0 && need <= 4096, "asks for {need}");
                    break;
                }
                Progress::Full | Progress::Pause => {}
                Progress::Parked(_) => session.resume(&shared, None, &mut answers),
                Progress::WantsMemory(_) => unreachable!("there is memory for one of the largest items"),
                Progress::WantsLog(_) => unreachable!("a volatile pool has no log"),
                Progress::Close => return (answers, true),
            }
        }
    }
    (answers, false)
}

/// Requests, whole and broken, and raw bytes.
fn fragments() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let key = prop_oneof![Just("a"), Just("b"), Just("num"), Just("YWJj"), "[a-z]{1,251}".prop_map(|s| &*s.leak())];
    let value = proptest::collection::vec(any::<u8>(), 0..40);
    let flags = "( [bqksvtcfhluIXZ]| [NTRFCDJ][0-9x]{0,3}| M[EAPRSID+-]?| O[a-z]{0,40}){0,6}";
    let fragment = prop_oneof![
        (key.clone(), value.clone(), "(set|add|replace|append|prepend)", "( noreply)?").prop_map(|(key, value, verb, tail)| {
            let mut bytes = format!("{verb} {key} 1 0 {}{tail}\r\n", value.len()).into_bytes();
            bytes.extend_from_slice(&value);
            bytes.extend_from_slice(b"\r\n");
            bytes
        }),
        (key.clone(), value.clone(), flags).prop_map(|(key, value, flags)| {
            let mut bytes = format!("ms {key} {}{flags}\r\n", value.len()).into_bytes();
            bytes.extend_from_slice(&value);
            bytes.extend_from_slice(b"\r\n");
            bytes
        }),
        (key.clone(), "m[gdae]", flags).prop_map(|(key, verb, flags)| format!("{verb} {key}{flags}\r\n").into_bytes()),
        (key.clone(), "(get|gets|gat 0|delete|incr|decr|touch|cas)", "( -?[0-9]{0,3}){0,3}")
            .prop_map(|(key, verb, tail)| format!("{verb} {key}{tail}\r\n").into_bytes()),
        "set [a-z]{1,3} 0 0 [0-9]{4}\r\n".prop_map(String::into_bytes),
        "(stats reset|version|flush_all|quit|mn|durable|verbosity 1|GET / HTTP/1.1|shutdown| *)(\r)?\n"
            .prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..30),
    ];
    proptest::collection::vec(fragment, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn splits_do_not_matter(fragments in fragments(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let bytes = fragments.concat();
        let whole = converse(&[&bytes]);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.sort_unstable();
        let (mut pieces, mut from) = (Vec::new(), 0);
        for place in places {
            pieces.push(&bytes[from..place]);
            from = place;
        }
        pieces.push(&bytes[from..]);
        prop_assert_eq!(&whole, &converse(&pieces));
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&whole, &converse(&single));
    }
}
