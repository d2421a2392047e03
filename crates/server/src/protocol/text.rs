//! The classic commands: which token means what, and what memcached answers when it does not fit.
//!
//! The checks come in memcached's order, because the order decides which error a client sees and whether `noreply` silences it.

use super::number::{parse_i32, parse_u32, parse_u64};
use super::{KEY_MAX, Limits, Request, Step, Store, Tokens, Verb, keys, meta};

pub(super) const ERROR: &[u8] = b"ERROR";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument";

/// One command line being read: what [`super::parse`] found, and shorthands for its outcomes.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub tokens: Tokens<'a>,
    /// What came after the line.
    pub after: &'a [u8],
    /// Bytes of the line with its end.
    pub used: usize,
    pub limits: Limits,
}

impl<'a> Line<'a> {
    pub fn done(&self, request: Request<'a>) -> Step<'a> {
        Step::Request { used: self.used, request }
    }

    pub fn reply(&self, line: &'static [u8]) -> Step<'a> {
        self.refuse(line, false, 0)
    }

    pub fn refuse(&self, line: &'static [u8], quiet: bool, swallow: u64) -> Step<'a> {
        Step::Reply { used: self.used, swallow, line, quiet }
    }

    fn noreply(&self) -> bool {
        self.tokens.last() == b"noreply"
    }

    /// The value of a store request and the bytes used with it, or how many bytes are missing.
    pub fn value(&self, len: usize) -> Result<(&'a [u8], usize), usize> {
        let with_end = len + 2;
        match self.after.get(..with_end) {
            Some(data) => Ok((data, self.used + with_end)),
            None => Err(with_end - self.after.len()),
        }
    }
}

/// A value's length: `None` where memcached answers with a format error.
pub(super) fn value_len(token: &[u8]) -> Option<usize> {
    let len = parse_i32(token)?;
    (0..=i32::MAX - 2).contains(&len).then_some(len as usize)
}

pub(super) fn request<'a>(line: &'a [u8], after: &'a [u8], used: usize, limits: Limits) -> Step<'a> {
    let tokens = Tokens::split(line);
    let line = Line { tokens, after, used, limits };
    let command = tokens.get(0);
    if command.len() < 2 {
        return line.reply(ERROR);
    }
    // Too many tokens for any command but a retrieval; meta commands check for themselves.
    let count = if tokens.more { usize::MAX } else { tokens.count() };
    let arity = |low: usize, high: usize| (low..=high).contains(&count);
    match command {
        b"mg" | b"ms" | b"md" | b"ma" | b"me" | b"mn" => meta::request(&line, command[1]),
        b"get" | b"gets" | b"gat" | b"gats" | b"bget" if tokens.count() >= 2 => retrieve(&line, command),
        b"set" if arity(5, 6) => store(&line, Verb::Set),
        b"add" if arity(5, 6) => store(&line, Verb::Add),
        b"replace" if arity(5, 6) => store(&line, Verb::Replace),
        b"append" if arity(5, 6) => store(&line, Verb::Append),
        b"prepend" if arity(5, 6) => store(&line, Verb::Prepend),
        b"cas" if arity(6, 7) => store(&line, Verb::Cas),
        b"incr" if arity(3, 4) => arithmetic(&line, true),
        b"decr" if arity(3, 4) => arithmetic(&line, false),
        b"touch" if arity(3, 4) => touch(&line),
        b"delete" if arity(2, 4) => delete(&line),
        b"flush_all" if arity(1, 3) => flush_all(&line),
        b"stats" => line.done(Request::Stats { what: tokens.get(1), more: tokens.get(2), rest: tokens.get(3) }),
        b"version" => line.done(Request::Version),
        b"quit" => line.done(Request::Quit),
        b"verbosity" if arity(2, 3) => match parse_u32(tokens.get(1)) {
            Some(level) => line.done(Request::Verbosity { level, noreply: line.noreply() }),
            None => line.refuse(BAD_FORMAT, line.noreply(), 0),
        },
        b"cache_memlimit" if arity(2, 3) => match parse_u32(tokens.get(1)) {
            Some(megabytes) => line.done(Request::MemoryLimit { megabytes, noreply: line.noreply() }),
            None => line.refuse(ERROR, line.noreply(), 0),
        },
        b"shutdown" => {
            let invalid = count > 2 || (count == 2 && tokens.get(1) != b"graceful");
            line.done(Request::Shutdown { invalid })
        }
        b"debugtime" if arity(1, 2) => line.done(Request::DebugTime { argument: tokens.get(1) }),
        b"durable" if count == 1 => line.done(Request::Durable { now: false }),
        b"durable" if count == 2 && tokens.get(1) == b"now" => line.done(Request::Durable { now: true }),
        b"slabs" => slabs(&line, count),
        b"lru_crawler" => crawler(&line, count),
        b"watch" => line.refuse(b"CLIENT_ERROR watch commands not allowed", line.noreply(), 0),
        _ if tokens.last().starts_with(b"HTTP/") && !memcached_knows(command[0]) => Step::Close,
        _ => line.reply(ERROR),
    }
}

/// Whether memcached dispatches on this first letter; elsewhere it looks for a lost HTTP request and hangs up on it.
fn memcached_knows(first: u8) -> bool {
    matches!(first, b'g' | b's' | b'a' | b'c' | b'i' | b'd' | b't')
}

fn retrieve<'a>(line: &Line<'a>, command: &[u8]) -> Step<'a> {
    let with_cas = command.ends_with(b"s");
    let (touch, first) = if command.starts_with(b"gat") {
        match parse_i32(line.tokens.get(1)) {
            Some(exptime) => (Some(exptime), 2),
            None => return line.reply(BAD_EXPTIME),
        }
    } else {
        (None, 1)
    };
    let list = line.tokens.rest_from(first);
    // All keys before the first answer: an answer may have left before a later key is seen to be too long.
    if keys(list).any(|key| key.len() > KEY_MAX) {
        return line.reply(BAD_FORMAT);
    }
    line.done(Request::Get { keys: list, with_cas, touch })
}

fn store<'a>(line: &Line<'a>, verb: Verb) -> Step<'a> {
    let tokens = &line.tokens;
    let noreply = line.noreply();
    let bad = line.refuse(BAD_FORMAT, noreply, 0);
    let key = tokens.get(1);
    let (Some(flags), Some(exptime), Some(len)) = (parse_u32(tokens.get(2)), parse_i32(tokens.get(3)), value_len(tokens.get(4)))
    else {
        return bad;
    };
    if key.len() > KEY_MAX {
        return bad;
    }
    let cas = match verb {
        Verb::Cas => match parse_u64(tokens.get(5)) {
            Some(cas) => cas,
            None => return bad,
        },
        _ => 0,
    };
    if !line.limits.item_fits(key.len(), flags, len) {
        let swallow = len as u64 + 2;
        return line.done(Request::TooLarge { key, binary: false, unlink: verb == Verb::Set, noreply, swallow });
    }
    match line.value(len) {
        Ok((data, used)) => {
            let request = Request::Store(Store { verb, key, flags, exptime, cas, data, noreply });
            Step::Request { used, request }
        }
        Err(missing) => Step::Incomplete(missing),
    }
}

fn arithmetic<'a>(line: &Line<'a>, increment: bool) -> Step<'a> {
    let (key, noreply) = (line.tokens.get(1), line.noreply());
    if key.len() > KEY_MAX {
        return line.refuse(BAD_FORMAT, noreply, 0);
    }
    match parse_u64(line.tokens.get(2)) {
        Some(delta) => line.done(Request::Arithmetic { key, delta, increment, noreply }),
        None => line.refuse(b"CLIENT_ERROR invalid numeric delta argument", noreply, 0),
    }
}

fn touch<'a>(line: &Line<'a>) -> Step<'a> {
    let (key, noreply) = (line.tokens.get(1), line.noreply());
    if key.len() > KEY_MAX {
        return line.refuse(BAD_FORMAT, noreply, 0);
    }
    match parse_i32(line.tokens.get(2)) {
        Some(exptime) => line.done(Request::Touch { key, exptime, noreply }),
        None => line.refuse(BAD_EXPTIME, noreply, 0),
    }
}

fn delete<'a>(line: &Line<'a>) -> Step<'a> {
    let (tokens, mut noreply) = (&line.tokens, false);
    if tokens.count() > 2 {
        let hold_is_zero = tokens.get(2) == b"0";
        noreply = line.noreply();
        let valid = match tokens.count() {
            3 => hold_is_zero || noreply,
            _ => hold_is_zero && noreply,
        };
        if !valid {
            let usage = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
            return line.refuse(usage, noreply, 0);
        }
    }
    let key = tokens.get(1);
    if key.len() > KEY_MAX {
        return line.refuse(BAD_FORMAT, noreply, 0);
    }
    line.done(Request::Delete { key, noreply })
}

fn flush_all<'a>(line: &Line<'a>) -> Step<'a> {
    let noreply = line.noreply();
    let given = line.tokens.count() != if noreply { 2 } else { 1 };
    // Whether flushing is allowed at all is asked first, so a delay that does not parse is told later.
    let (delay, invalid) = match parse_i32(line.tokens.get(1)) {
        Some(delay) if given => (delay, false),
        None if given => (0, true),
        _ => (0, false),
    };
    line.done(Request::FlushAll { delay, invalid, noreply })
}

/// There are no slabs here: accepted where that does no harm, refused as a memcached refuses that runs without.
fn slabs<'a>(line: &Line<'a>, count: usize) -> Step<'a> {
    let tokens = &line.tokens;
    match tokens.get(1) {
        b"reassign" if count == 4 => line.reply(b"CLIENT_ERROR slab reassignment disabled"),
        b"automove" if (3..=4).contains(&count) => {
            let quiet = line.noreply();
            match parse_u32(tokens.get(2)) {
                _ if tokens.get(2) == b"ratio" => line.refuse(if count == 4 { b"OK" } else { ERROR }, quiet, 0),
                Some(0..=2) => line.refuse(b"OK", quiet, 0),
                Some(_) => line.refuse(ERROR, quiet, 0),
                None => line.refuse(BAD_FORMAT, quiet, 0),
            }
        }
        _ => line.reply(ERROR),
    }
}

fn crawler<'a>(line: &Line<'a>, count: usize) -> Step<'a> {
    let tokens = &line.tokens;
    match (tokens.get(1), count) {
        (b"crawl", 3) => line.done(Request::Crawl),
        (b"metadump", 3) => line.reply(b"ERROR metadump not allowed"),
        (b"tocrawl", 3) => line.reply(if parse_u32(tokens.get(2)).is_some() { b"OK" } else { BAD_FORMAT }),
        (b"sleep", 3) => line.reply(match parse_u32(tokens.get(2)) {
            Some(0..=1_000_000) => b"OK",
            Some(_) => b"CLIENT_ERROR sleep must be one second or less",
            None => BAD_FORMAT,
        }),
        (b"enable", 2) => line.done(Request::Crawler(true)),
        (b"disable", 2) => line.done(Request::Crawler(false)),
        _ => line.reply(ERROR),
    }
}
