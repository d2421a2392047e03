//! The memcached protocol's parser, fed with anything: it never panics, never claims bytes that are not there, and what it
//! says of a request does not change when more bytes follow it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towa_server::protocol::{Limits, Step, parse};

fuzz_target!(|input: &[u8]| {
    let limits = Limits::default();
    let step = parse(input, &limits);
    match step {
        Step::Request { used, .. } | Step::Reply { used, .. } => {
            assert!(used > 0 && used <= input.len(), "claims {used} of {}", input.len())
        }
        Step::Incomplete(missing) => assert!(missing > 0, "waits for nothing"),
        Step::Close => {}
    }
    if let Step::Request { used, .. } = step {
        assert_eq!(parse(&input[..used], &limits), step, "a request reads otherwise without what follows it");
        let longer = [&input[..used], b"get x\r\n"].concat();
        assert_eq!(parse(&longer, &limits), step, "a request reads otherwise with another behind it");
    }
});
