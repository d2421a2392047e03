//! The two wire formats of the load generator: memcached's text protocol and Redis' RESP, as far as a benchmark needs them.
//!
//! What must hold: the same operation carries the same key and value in both; a reply is parsed only when it is all there; a
//! reply that is not one of the few expected is an error with its text.

use std::ops::Range;

use anyhow::{Context, Result, bail};

use crate::workload::{Op, fnv1a};

/// Shortest and longest value, in bytes.
pub const VALUE_LEN: (usize, usize) = (100, 1024);

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol.
    Memcached,
    /// Redis' RESP.
    Resp,
}

/// Outcome of parsing the front of a connection's input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Not all there.
    Partial,
    /// A stored value, `value` within the input, and the length of the whole reply.
    Value { value: Range<usize>, len: usize },
    /// No such key; length of the reply.
    Missing { len: usize },
    /// Done (a write); length of the reply.
    Done { len: usize },
    /// The server has no room for it, or says another failure of its own; length of the reply.
    Refused { len: usize },
}

/// Lengths of an item, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemLen {
    /// Of the key's name, `KEY_DIGITS` at least.
    pub key: usize,
    /// Of the value.
    pub value: usize,
}

/// The item that write number `n` makes of `key`: a value uniform over [`VALUE_LEN`], the same for every server.
pub(crate) fn item_len(key: u64, n: u64) -> ItemLen {
    let (lo, hi) = VALUE_LEN;
    ItemLen { key: KEY_DIGITS, value: lo + (fnv1a(key ^ n.rotate_left(32)) % (hi - lo + 1) as u64) as usize }
}

/// Digits of a key. A name begins with them, and a value as far as it is long enough, so that a foreign answer is noticed.
pub(crate) const KEY_DIGITS: usize = 16;

pub(crate) fn key_stamp(key: u64) -> [u8; KEY_DIGITS] {
    let mut stamp = [b'0'; KEY_DIGITS];
    let mut rest = key;
    for digit in stamp.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 15) as usize];
        rest >>= 4;
    }
    stamp
}

/// Appends a request; `filler` is what follows the stamp in names and values.
pub(crate) fn encode(protocol: Protocol, op: Op, key: u64, len: ItemLen, filler: &[u8], out: &mut Vec<u8>) {
    let stamp = &key_stamp(key)[..];
    let padding = &filler[..len.key - KEY_DIGITS];
    let (head, tail) = (&stamp[..len.value.min(KEY_DIGITS)], &filler[..len.value.saturating_sub(KEY_DIGITS)]);
    let (key_len, value_len) = (len.key.to_string(), len.value.to_string());
    let (key_len, value_len) = (key_len.as_bytes(), value_len.as_bytes());
    let parts: &[&[u8]] = match (protocol, op) {
        (Protocol::Memcached, Op::Get) => &[b"get ", stamp, padding, b"\r\n"],
        (Protocol::Memcached, Op::Remove) => &[b"delete ", stamp, padding, b"\r\n"],
        (Protocol::Memcached, Op::Put) => &[b"set ", stamp, padding, b" 0 0 ", value_len, b"\r\n", head, tail, b"\r\n"],
        (Protocol::Resp, Op::Get) => &[b"*2\r\n$3\r\nGET\r\n$", key_len, b"\r\n", stamp, padding, b"\r\n"],
        (Protocol::Resp, Op::Remove) => &[b"*2\r\n$3\r\nDEL\r\n$", key_len, b"\r\n", stamp, padding, b"\r\n"],
        (Protocol::Resp, Op::Put) => {
            let set = b"*3\r\n$3\r\nSET\r\n$";
            &[set, key_len, b"\r\n", stamp, padding, b"\r\n$", value_len, b"\r\n", head, tail, b"\r\n"]
        }
    };
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Parses one reply from the front of `input`.
pub(crate) fn parse(protocol: Protocol, input: &[u8]) -> Result<Reply> {
    let Some(eol) = input.windows(2).position(|w| w == b"\r\n") else {
        return Ok(Reply::Partial);
    };
    let (line, head) = (&input[..eol], eol + 2);
    let text = || String::from_utf8_lossy(line).into_owned();
    let number = |digits: &[u8]| -> Result<usize> {
        std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok()).with_context(|| format!("bad length in {:?}", text()))
    };
    // `tail` is what ends a reply that carries a value.
    let value = |len: usize, tail: &[u8]| match input.get(head + len..head + len + tail.len()) {
        None => Ok(Reply::Partial),
        Some(end) if end == tail => Ok(Reply::Value { value: head..head + len, len: head + len + tail.len() }),
        Some(_) => bail!("value after {:?} does not end where it should", text()),
    };
    match protocol {
        Protocol::Memcached => match line {
            b"END" | b"NOT_FOUND" => Ok(Reply::Missing { len: head }),
            b"STORED" | b"DELETED" => Ok(Reply::Done { len: head }),
            _ if line.starts_with(b"SERVER_ERROR ") => Ok(Reply::Refused { len: head }),
            _ if line.starts_with(b"VALUE ") => {
                let digits = line.rsplit(|b| *b == b' ').next().unwrap_or_default();
                value(number(digits)?, b"\r\nEND\r\n")
            }
            _ => bail!("the server answered {:?}", text()),
        },
        Protocol::Resp => match line {
            b"$-1" => Ok(Reply::Missing { len: head }),
            b"+OK" | b":0" | b":1" => Ok(Reply::Done { len: head }),
            _ if line.starts_with(b"$") => value(number(&line[1..])?, b"\r\n"),
            _ => bail!("the server answered {:?}", text()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_parse_at_every_cut() {
        let value = b"0000000000000007abc";
        let cases: [(Protocol, Vec<u8>, Reply); 6] = [
            (
                Protocol::Memcached,
                [b"VALUE k 0 19\r\n", &value[..], b"\r\nEND\r\n"].concat(),
                Reply::Value { value: 14..33, len: 40 },
            ),
            (Protocol::Memcached, b"END\r\n".to_vec(), Reply::Missing { len: 5 }),
            (Protocol::Memcached, b"STORED\r\n".to_vec(), Reply::Done { len: 8 }),
            (Protocol::Memcached, b"SERVER_ERROR out of memory\r\n".to_vec(), Reply::Refused { len: 28 }),
            (Protocol::Resp, [b"$19\r\n", &value[..], b"\r\n"].concat(), Reply::Value { value: 5..24, len: 26 }),
            (Protocol::Resp, b"$-1\r\n".to_vec(), Reply::Missing { len: 5 }),
        ];
        for (protocol, bytes, want) in cases {
            for cut in 0..bytes.len() {
                assert_eq!(parse(protocol, &bytes[..cut]).unwrap(), Reply::Partial, "{cut} of {bytes:?}");
            }
            assert_eq!(parse(protocol, &bytes).unwrap(), want);
        }
    }

    #[test]
    fn errors_are_refused() {
        for (protocol, bytes) in [
            (Protocol::Memcached, &b"CLIENT_ERROR bad data chunk\r\n"[..]),
            (Protocol::Memcached, b"VALUE k 0 x\r\n"),
            (Protocol::Memcached, b"VALUE k 0 1\r\nabcdefghijklm"),
            (Protocol::Resp, b"-ERR no\r\n"),
        ] {
            assert!(parse(protocol, bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn values_have_the_lengths_they_say() {
        let lens: Vec<_> = (0..10_000).map(|n| item_len(n % 100, n).value).collect();
        assert!(lens.iter().all(|l| (VALUE_LEN.0..=VALUE_LEN.1).contains(l)));
        let mean = lens.iter().sum::<usize>() as f64 / lens.len() as f64;
        assert!((mean - 562.0).abs() < 20.0, "mean length {mean}");
        let set = |protocol, key, value| {
            let mut set = Vec::new();
            encode(protocol, Op::Put, 7, ItemLen { key, value }, b"abcdefgh", &mut set);
            String::from_utf8(set).unwrap()
        };
        assert_eq!(set(Protocol::Memcached, 16, 19), "set 0000000000000007 0 0 19\r\n0000000000000007abc\r\n");
        assert_eq!(set(Protocol::Memcached, 18, 3), "set 0000000000000007ab 0 0 3\r\n000\r\n");
        assert_eq!(set(Protocol::Memcached, 16, 0), "set 0000000000000007 0 0 0\r\n\r\n");
        let resp = "*3\r\n$3\r\nSET\r\n$17\r\n0000000000000007a\r\n$19\r\n0000000000000007abc\r\n";
        assert_eq!(set(Protocol::Resp, 17, 19), resp);
    }
}
