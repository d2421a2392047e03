//! The memcached text and meta protocol: bytes in, requests out.
//!
//! [`parse`] is a pure function over the bytes received so far: it keeps no state between calls, so a request parses the same
//! however the network cut it into pieces, and it can be fuzzed without a server. What it promises for **any** input: it never
//! panics, never allocates, and on [`Step::Incomplete`] asks for a bounded amount ([`Limits`]).
//!
//! ```text
//!   input ── first '\n' ──► line, cut at the first NUL, one '\r' dropped ── split at ' ' ──► tokens ──► Request
//!                                                                          set, ms, ...:  + <length> bytes and "\r\n"
//! ```
//!
//! Replies and error strings are those of memcached 1.6.18. Where memcached's answer depends on how the bytes arrived (a
//! command line longer than 2048 bytes is served if it comes in one piece and cuts the connection if not), this parser has one
//! limit, [`LINE_MAX`], whatever the pieces.

pub mod base64;
pub mod meta;
pub mod number;
pub mod text;

pub use meta::Meta;

/// Longest key in bytes.
pub const KEY_MAX: usize = 250;
/// Longest command line in bytes without its end. Only `get` and `gets` with many keys may be longer: [`Limits::multiget_max`].
pub const LINE_MAX: usize = 16 * 1024;
/// Tokens memcached looks at in a command that is not a multi-key retrieval.
pub const TOKENS_MAX: usize = 23;
/// What memcached adds to key and value when it compares an item with `-I`: its header of 48 bytes and the CAS id.
const ITEM_OVERHEAD: u64 = 48 + 8;

/// Bounds of what [`parse`] lets through.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `-I`: largest item in bytes, counted as memcached counts.
    pub item_size_max: u64,
    /// Longest `get` line in bytes.
    pub multiget_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { item_size_max: 1 << 20, multiget_max: 1 << 20 }
    }
}

impl Limits {
    /// Whether an item of this size would fit memcached's largest class: `value_len` without the line end.
    pub fn item_fits(&self, key_len: usize, client_flags: u32, value_len: usize) -> bool {
        let flags_len = if client_flags == 0 { 0 } else { 4 };
        ITEM_OVERHEAD + key_len as u64 + 1 + flags_len + value_len as u64 + 2 <= self.item_size_max
    }
}

/// What the bytes received so far amount to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step<'a> {
    /// At least this many bytes are missing.
    Incomplete(usize),
    /// A whole request in the first `used` bytes.
    Request {
        /// Bytes it takes.
        used: usize,
        /// What to do.
        request: Request<'a>,
    },
    /// Refused by the parser: answer `line` (unless `quiet`), skip `used` bytes and, as they come, `swallow` more.
    Reply {
        /// Bytes of the command line.
        used: usize,
        /// Bytes of the value that follows and is not wanted.
        swallow: u64,
        /// The answer without its line end.
        line: &'static [u8],
        /// The client said `noreply`.
        quiet: bool,
    },
    /// Hang up without an answer.
    Close,
}

/// How a store request treats what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Verb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// A store request's head and value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Store<'a> {
    /// Which of the six.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// Client flags.
    pub flags: u32,
    /// As given: seconds from now, or a date, or negative for "at once".
    pub exptime: i32,
    /// CAS id to compare with; 0 for none.
    pub cas: u64,
    /// The value **with** its line end, whatever these two bytes are.
    pub data: &'a [u8],
    /// No answer wanted.
    pub noreply: bool,
}

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`: `keys` is the rest of the line, each key checked.
    Get {
        /// Keys separated by spaces.
        keys: &'a [u8],
        /// Tell the CAS ids.
        with_cas: bool,
        /// New expiry time.
        touch: Option<i32>,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`.
    Store(Store<'a>),
    /// A store request whose value exceeds `-I`; the value is skipped. `unlink`: drop what the key holds, so that no client
    /// takes the old value for the new one.
    TooLarge {
        /// The key as given.
        key: &'a [u8],
        /// The key is base64.
        binary: bool,
        /// Drop the present value.
        unlink: bool,
        /// No answer wanted.
        noreply: bool,
        /// Bytes of value to skip after the line.
        swallow: u64,
    },
    /// `delete`.
    Delete {
        /// The key.
        key: &'a [u8],
        /// No answer wanted.
        noreply: bool,
    },
    /// `incr`, `decr`.
    Arithmetic {
        /// The key.
        key: &'a [u8],
        /// By how much.
        delta: u64,
        /// Up or down.
        increment: bool,
        /// No answer wanted.
        noreply: bool,
    },
    /// `touch`.
    Touch {
        /// The key.
        key: &'a [u8],
        /// New expiry time as given.
        exptime: i32,
        /// No answer wanted.
        noreply: bool,
    },
    /// `mg`.
    MetaGet(Meta<'a>),
    /// `ms` with its value and line end.
    MetaSet(Meta<'a>, &'a [u8]),
    /// `md`.
    MetaDelete(Meta<'a>),
    /// `ma`.
    MetaArithmetic(Meta<'a>),
    /// `me`: an item's inner state.
    MetaDebug {
        /// The key as given.
        key: &'a [u8],
        /// The key is base64.
        binary: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// When, as given; not positive is now.
        delay: i32,
        /// The delay did not parse.
        invalid: bool,
        /// No answer wanted.
        noreply: bool,
    },
    /// `stats` and what follows.
    Stats {
        /// First argument, or empty.
        what: &'a [u8],
        /// Second argument, or empty.
        more: &'a [u8],
        /// Third argument, or empty.
        rest: &'a [u8],
    },
    /// `version`.
    Version,
    /// `verbosity`.
    Verbosity {
        /// New level.
        level: u32,
        /// No answer wanted.
        noreply: bool,
    },
    /// `cache_memlimit`, in MiB.
    MemoryLimit {
        /// New limit.
        megabytes: u32,
        /// No answer wanted.
        noreply: bool,
    },
    /// `lru_crawler crawl`: look for expired items now.
    Crawl,
    /// `lru_crawler enable` and `disable`.
    Crawler(bool),
    /// `quit`.
    Quit,
    /// `shutdown`, `shutdown graceful`.
    Shutdown {
        /// The argument was neither absent nor `graceful`.
        invalid: bool,
    },
    /// `debugtime`: tests only, moves the clock.
    DebugTime {
        /// Seconds, or `p` and `r` to pause and resume; `panic` to see what that does.
        argument: &'a [u8],
    },
    /// `durable`: answer when everything this connection wrote is durable. Not memcached's.
    Durable {
        /// Take a checkpoint at once instead of waiting for the next.
        now: bool,
    },
}

/// Reads one request from the start of `input`.
pub fn parse<'a>(input: &'a [u8], limits: &Limits) -> Step<'a> {
    let Some(newline) = memchr::memchr(b'\n', input) else {
        return unfinished_line(input, limits);
    };
    if newline > LINE_MAX && (!is_multiget(input) || newline > limits.multiget_max) {
        return Step::Close;
    }
    let mut line = &input[..newline];
    if newline > 1 && line[newline - 1] == b'\r' {
        line = &line[..newline - 1];
    }
    if let Some(nul) = memchr::memchr(0, line) {
        line = &line[..nul];
    }
    text::request(line, &input[newline + 1..], newline + 1, *limits)
}

fn unfinished_line<'a>(input: &[u8], limits: &Limits) -> Step<'a> {
    if input.len() <= LINE_MAX || (is_multiget(input) && input.len() <= limits.multiget_max) {
        Step::Incomplete(1)
    } else {
        Step::Close
    }
}

/// Whether a line may be very long: a retrieval of many keys.
fn is_multiget(line: &[u8]) -> bool {
    let spaces = line.iter().take(101).take_while(|b| **b == b' ').count();
    let rest = &line[spaces..];
    spaces <= 100 && (rest.starts_with(b"get ") || rest.starts_with(b"gets "))
}

/// The first tokens of a line.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    list: [&'a [u8]; TOKENS_MAX],
    count: usize,
    /// What follows the first [`TOKENS_MAX`] tokens, if anything but the end.
    more: bool,
    line: &'a [u8],
}

impl<'a> Tokens<'a> {
    /// Splits `line` at spaces.
    pub fn split(line: &'a [u8]) -> Tokens<'a> {
        let mut tokens = Tokens { list: [&[]; TOKENS_MAX], count: 0, more: false, line };
        let mut start = 0;
        while start < line.len() {
            if line[start] == b' ' {
                start += 1;
                continue;
            }
            if tokens.count == TOKENS_MAX {
                tokens.more = true;
                break;
            }
            let len = line[start..].iter().position(|b| *b == b' ').unwrap_or(line.len() - start);
            tokens.list[tokens.count] = &line[start..start + len];
            tokens.count += 1;
            start += len;
        }
        tokens
    }

    /// How many, at most [`TOKENS_MAX`].
    pub fn count(&self) -> usize {
        self.count
    }

    /// Token `index`, empty where there is none.
    pub fn get(&self, index: usize) -> &'a [u8] {
        if index < self.count { self.list[index] } else { &[] }
    }

    /// The last token; empty where there is none.
    pub fn last(&self) -> &'a [u8] {
        self.get(self.count.wrapping_sub(1))
    }

    /// The line from token `index` on; empty where there is none.
    pub fn rest_from(&self, index: usize) -> &'a [u8] {
        if index >= self.count {
            return &[];
        }
        let at = self.list[index].as_ptr() as usize - self.line.as_ptr() as usize;
        &self.line[at..]
    }
}

/// The keys of a [`Request::Get`].
pub fn keys(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|b| *b == b' ').filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests;
