//! What the requests do: memcached's semantics on top of the store, and the replies.
//!
//! [`Session`] is one connection's side of the protocol without any network: bytes in, bytes out. Everything a reply depends on
//! comes from the bytes and the store, never from how the bytes were cut, so replies are the same for any split.

mod meta;
mod session;
mod stats;
mod storing;
mod text;

pub use session::{OUTPUT_HIGH, Progress, Session};
pub use stats::CACHEDUMP_MAX;

use crate::protocol::number::push_u64;
use crate::store::Failure;

/// Appends a reply line.
pub(crate) fn line(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Appends the reply to a request that the store failed to carry out.
fn failure(out: &mut Vec<u8>, failure: &Failure, no_memory: &[u8]) {
    match failure {
        Failure::NoMemory => line(out, no_memory),
        // No answer: the session has the request carried out again.
        Failure::NoLogSpace => {}
        Failure::Engine(why) => {
            out.extend_from_slice(b"SERVER_ERROR ");
            out.extend(why.bytes().map(|b| if b.is_ascii_control() { b' ' } else { b }));
            out.extend_from_slice(b"\r\n");
        }
    }
}

const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object";

/// Appends " <letter>".
fn flag(out: &mut Vec<u8>, letter: u8) {
    out.extend_from_slice(&[b' ', letter]);
}

/// Appends " <letter><number>".
fn flag_u64(out: &mut Vec<u8>, letter: u8, value: u64) {
    flag(out, letter);
    push_u64(out, value);
}
