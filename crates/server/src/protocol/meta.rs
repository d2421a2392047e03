//! The meta commands: `mg`, `ms`, `md`, `ma`, `me`, `mn` and their flags.
//!
//! A flag is a token whose first letter is its name and whose rest is its argument. Flags are checked here; the answer echoes
//! some of them in the order given, so [`Meta::flags`] keeps the tokens as they came.

use super::number::{parse_i32, parse_u32, parse_u64};
use super::text::{BAD_FORMAT, ERROR, Line, value_len};
use super::{KEY_MAX, Request, Step, base64};

/// Tokens of one meta command at most, counting the command's name.
const META_TOKENS_MAX: usize = 19;
/// Longest opaque token, counting its letter.
const OPAQUE_MAX: usize = 32;
const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long";
const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format";
const BAD_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag";

/// A meta command's key and flags.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meta<'a> {
    key: &'a [u8],
    flags: &'a [u8],
    /// `b`: the key is base64.
    pub binary: bool,
    /// `v`: return the value.
    pub value: bool,
    /// `q`: no answer in the nominal case.
    pub quiet: bool,
    /// `u`: do not count this as an access.
    pub no_bump: bool,
    /// `I`: mark as stale instead of deleting; accept a stale CAS.
    pub stale: bool,
    /// `N`: create on a miss, with this expiry time.
    pub vivify: Option<i32>,
    /// `T`: new expiry time.
    pub ttl: Option<i32>,
    /// `R`: hand out the recache token when less than this is left.
    pub recache: Option<i32>,
    /// `F`: client flags.
    pub client_flags: u32,
    /// `C`: compare with this CAS id.
    pub cas: Option<u64>,
    /// `M`: mode letter, 0 for none.
    pub mode: u8,
    /// `J`: first value of a counter created by `N`.
    pub initial: u64,
    /// `D`: by how much to count.
    pub delta: u64,
    opaque_too_long: bool,
}

impl<'a> Meta<'a> {
    /// The key's bytes, decoded into `scratch` where it is base64.
    pub fn key<'s>(&'s self, scratch: &'s mut [u8; KEY_MAX]) -> &'s [u8] {
        decode_key(self.key, self.binary, scratch)
    }

    /// The flags as given, in order.
    pub fn flags(&self) -> impl Iterator<Item = &'a [u8]> {
        self.flags.split(|b| *b == b' ').filter(|flag| !flag.is_empty())
    }
}

/// `key`'s bytes, decoded into `scratch` where it is base64; it was checked when it was parsed.
pub fn decode_key<'s>(key: &'s [u8], binary: bool, scratch: &'s mut [u8; KEY_MAX]) -> &'s [u8] {
    if !binary {
        return key;
    }
    match base64::decode(key, scratch) {
        Some(len) => &scratch[..len],
        None => &[],
    }
}

fn decodes(key: &[u8]) -> Option<usize> {
    base64::decode(key, &mut [0; KEY_MAX])
}

pub(super) fn request<'a>(line: &Line<'a>, command: u8) -> Step<'a> {
    let tokens = &line.tokens;
    let key = tokens.get(1);
    match command {
        b'n' => return line.reply(b"MN"),
        b'e' => return debug(line, key),
        _ => {}
    }
    if tokens.count() < 2 {
        return line.reply(ERROR);
    }
    if key.len() > KEY_MAX || (command == b's' && tokens.count() == 2) {
        return line.reply(BAD_FORMAT);
    }
    if tokens.more || tokens.count() > META_TOKENS_MAX {
        return line.reply(match command {
            b'g' => b"CLIENT_ERROR options flags are too long",
            _ => b"CLIENT_ERROR options flags too long",
        });
    }
    match command {
        b's' => set(line, key),
        _ => match (flags(key, tokens.rest_from(2)), command) {
            (Err(why), b'g') => line.reply(why),
            (Err(_), _) => line.reply(BAD_FLAG),
            (Ok(meta), b'a') if !matches!(meta.mode, 0 | b'I' | b'+' | b'D' | b'-') => {
                line.reply(b"CLIENT_ERROR invalid mode for ma M token")
            }
            (Ok(meta), _) if meta.opaque_too_long => line.reply(OPAQUE_TOO_LONG),
            (Ok(meta), b'g') => line.done(Request::MetaGet(meta)),
            (Ok(meta), b'd') => line.done(Request::MetaDelete(meta)),
            (Ok(meta), _) => line.done(Request::MetaArithmetic(meta)),
        },
    }
}

fn debug<'a>(line: &Line<'a>, key: &'a [u8]) -> Step<'a> {
    let binary = line.tokens.get(2) == b"b";
    if line.tokens.count() < 2 || key.len() > KEY_MAX || (binary && decodes(key).is_none()) {
        return line.reply(BAD_FORMAT);
    }
    line.done(Request::MetaDebug { key, binary })
}

fn set<'a>(line: &Line<'a>, key: &'a [u8]) -> Step<'a> {
    let Some(len) = value_len(line.tokens.get(2)) else {
        return line.reply(BAD_FORMAT);
    };
    // From here on the length is known, so the value is skipped when the command is refused.
    let swallow = len as u64 + 2;
    let meta = match flags(key, line.tokens.rest_from(3)) {
        Ok(meta) => meta,
        Err(why) => return line.refuse(why, false, swallow),
    };
    if !matches!(meta.mode, 0 | b'E' | b'A' | b'P' | b'R' | b'S') {
        return line.refuse(b"CLIENT_ERROR invalid mode for ms M token", false, swallow);
    }
    if meta.opaque_too_long {
        return line.refuse(OPAQUE_TOO_LONG, false, swallow);
    }
    let key_len = if meta.binary { decodes(key).unwrap_or(0) } else { key.len() };
    if !line.limits.item_fits(key_len, meta.client_flags, len) {
        let binary = meta.binary;
        return line.done(Request::TooLarge { key, binary, unlink: true, noreply: false, swallow });
    }
    match line.value(len) {
        Ok((data, used)) => Step::Request { used, request: Request::MetaSet(meta, data) },
        Err(missing) => Step::Incomplete(missing),
    }
}

/// Reads all flags; of several errors memcached tells the last, except that a duplicate or unknown flag ends the search.
fn flags<'a>(key: &'a [u8], list: &'a [u8]) -> Result<Meta<'a>, &'static [u8]> {
    let mut meta = Meta { key, flags: list, delta: 1, ..Meta::default() };
    let (mut seen, mut why, mut failed) = (0u128, BAD_FORMAT, false);
    for flag in list.split(|b| *b == b' ').filter(|flag| !flag.is_empty()) {
        let letter = flag[0];
        if letter >= 127 || seen >> letter & 1 == 1 {
            return Err(b"CLIENT_ERROR duplicate flag");
        }
        seen |= 1 << letter;
        if let Err(error) = meta.take(letter, flag) {
            failed = true;
            if let Some(message) = error {
                why = message;
            }
            if error == Some(b"CLIENT_ERROR invalid flag") {
                return Err(why);
            }
        }
    }
    if failed { Err(why) } else { Ok(meta) }
}

impl Meta<'_> {
    /// Takes in one flag. The error is the message to tell, or `None` to leave an earlier one in place.
    fn take(&mut self, letter: u8, flag: &[u8]) -> Result<(), Option<&'static [u8]>> {
        let argument = &flag[1..];
        let seconds = || parse_i32(argument).ok_or(Some(BAD_TOKEN));
        match letter {
            b'b' => {
                self.binary = true;
                decodes(self.key).ok_or(Some(&b"CLIENT_ERROR error decoding key"[..]))?;
            }
            b'N' => self.vivify = Some(seconds()?),
            b'T' => self.ttl = Some(seconds()?),
            b'R' => self.recache = Some(seconds()?),
            b'O' => self.opaque_too_long = flag.len() > OPAQUE_MAX,
            b'P' | b'L' | b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' => {}
            b'v' => self.value = true,
            b'u' => self.no_bump = true,
            b'q' => self.quiet = true,
            b'I' => self.stale = true,
            b'F' => self.client_flags = parse_u32(argument).ok_or(None)?,
            b'C' => self.cas = Some(parse_u64(argument).ok_or(Some(BAD_TOKEN))?),
            b'M' if flag.len() == 2 => self.mode = flag[1],
            b'M' => return Err(Some(b"CLIENT_ERROR incorrect length for M token")),
            b'J' => self.initial = parse_u64(argument).ok_or(Some(&b"CLIENT_ERROR invalid numeric initial value"[..]))?,
            b'D' => self.delta = parse_u64(argument).ok_or(Some(&b"CLIENT_ERROR invalid numeric delta value"[..]))?,
            _ => return Err(Some(b"CLIENT_ERROR invalid flag")),
        }
        Ok(())
    }
}
