//! The meta commands: `mg`, `ms`, `md`, `ma`, `me`.
//!
//! Flags act and answer in the order given (`t` before `T` tells the old time, after it the new one), so each command runs through
//! its flags once, building the answer on a local copy of the item's state; what changed is then written in one transaction, all
//! under one hold of the stripe's lock.

use super::storing::{self, Put, Stored};
use super::text::{Counted, NOT_A_NUMBER, count, counter_size, look_up, look_up_live};
use super::{NO_MEMORY, failure, flag, flag_u64, line};
use crate::counters::Counter;
use crate::protocol::meta::decode_key;
use crate::protocol::number::{DIGITS_MAX, format_u64, push_u64};
use crate::protocol::{KEY_MAX, Meta, Verb, base64};
use crate::server::Shared;
use crate::store::item::{Content, HEAD_LEN, Item, KEY_BINARY, STALE, TOKEN_SENT};
use crate::store::table::Found;
use crate::store::{Failure, Worker};
use crate::unsent;

/// Appends " k<key>", as base64 (and " b") if it came so.
fn flag_key(out: &mut Vec<u8>, key: &[u8], binary: bool) {
    flag(out, b'k');
    if binary {
        base64::encode(key, out);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

/// Appends " t<seconds left>": -1 for never. Modulo 2^32 for what is over already, as memcached prints it.
fn flag_ttl(out: &mut Vec<u8>, expires: u32, now: u32) {
    if expires == 0 {
        out.extend_from_slice(b" t-1");
    } else {
        flag_u64(out, b't', u64::from(expires.wrapping_sub(now)));
    }
}

/// Appends the flags that every answer may echo.
fn echo(out: &mut Vec<u8>, token: &[u8], key: &[u8], binary: bool) {
    match token[0] {
        b'O' => {
            out.push(b' ');
            out.extend_from_slice(token);
        }
        b'k' => flag_key(out, key, binary),
        _ => {}
    }
}

/// Appends a status and the echoed flags.
fn status(out: &mut Vec<u8>, status: &[u8], meta: &Meta<'_>, key: &[u8]) {
    out.extend_from_slice(status);
    for token in meta.flags() {
        echo(out, token, key, meta.binary);
    }
    out.extend_from_slice(b"\r\n");
}

/// `mg`.
pub(super) fn get(shared: &Shared, worker: &mut Worker, meta: &Meta<'_>, out: &mut Vec<u8>) {
    let mut scratch = [0; KEY_MAX];
    let key = meta.key(&mut scratch);
    let start = out.len();
    let result = match meta.vivify {
        None => get_once(shared, worker, meta, key, out),
        Some(_) => shared.store.with_room(worker, HEAD_LEN + key.len() + 2, None, |worker| {
            out.truncate(start);
            get_once(shared, worker, meta, key, out)
        }),
    };
    match result {
        Ok(true) => {}
        Ok(false) => {
            worker.counters.inc(Counter::GetCommands);
            worker.counters.inc(Counter::GetMisses);
            if !meta.quiet {
                status(out, b"EN", meta, key);
            }
        }
        Err(why) => {
            out.truncate(start);
            failure(out, &why, NO_MEMORY);
        }
    }
}

/// What `mg` sees of an item, and may change.
struct View<'a> {
    item: Option<Item>,
    value: &'a [u8],
    expires: u32,
    bits: u8,
    cas: u64,
    won: bool,
}

/// Whether there was an item, or is one now.
fn get_once(shared: &Shared, worker: &mut Worker, meta: &Meta<'_>, key: &[u8], out: &mut Vec<u8>) -> Result<bool, Failure> {
    let store = &*shared.store;
    let hash = store.hash(key);
    let stripe = store.lock(hash);
    let (found, live) = look_up(store, worker, &stripe, key);
    let item = found.filter(|_| live).map(|found| found.item);
    let mut view = match &item {
        Some(item) => {
            View { item: Some(*item), value: item.data(), expires: item.expires(), bits: item.bits(), cas: item.cas(), won: false }
        }
        None if meta.vivify.is_some() => {
            View { item: None, value: b"\r\n", expires: 0, bits: 0, cas: store.new_cas()?, won: false }
        }
        None => return Ok(false),
    };
    answer_get(shared, worker, meta, key, &mut view, out);
    let (expires, bits, cas) = (view.expires, view.bits, view.cas);
    let now = worker.now;
    let item = match item {
        Some(item) if expires == item.expires() && bits == item.bits() => item,
        Some(item) => {
            let tx = stripe.begin(worker, 0)?;
            stripe.put_state(&tx, item, expires, bits, cas);
            tx.commit();
            item
        }
        None => {
            let content = Content { key, hash, value: (b"\r\n", &[]), flags: 0, expires, bits, cas, now };
            let tx = stripe.begin(worker, 0)?;
            let item = match found {
                Some(dead) => stripe.replace(&tx, dead, &content)?,
                None => stripe.insert(&tx, &content)?,
            };
            tx.commit();
            worker.counters.inc(Counter::TotalItems);
            item
        }
    };
    if !meta.no_bump {
        item.touch_access(now, true);
    }
    let counters = &worker.counters;
    let touched = meta.ttl.is_some();
    counters.inc(if touched { Counter::TouchCommands } else { Counter::GetCommands });
    counters.inc(if touched { Counter::TouchHits } else { Counter::GetHits });
    Ok(true)
}

fn answer_get(shared: &Shared, worker: &Worker, meta: &Meta<'_>, key: &[u8], view: &mut View<'_>, out: &mut Vec<u8>) {
    let (now, clock) = (worker.now, &shared.clock);
    let len = view.value.len() - 2;
    unsent::reserve(out, len + 512);
    if meta.value {
        out.extend_from_slice(b"VA ");
        push_u64(out, len as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    let created = view.item.is_none();
    for token in meta.flags() {
        match token[0] {
            b'T' => view.expires = meta.ttl.map_or(0, |given| clock.expiry(given, now)),
            b'N' if created => {
                view.expires = meta.vivify.map_or(0, |given| clock.expiry(given, now));
                view.won = true;
            }
            b'R' => {
                let before = meta.recache.map_or(0, |given| clock.expiry(given, now));
                if !created && view.bits & TOKEN_SENT == 0 && view.expires != 0 && view.expires < before {
                    view.won = true;
                }
            }
            b's' => flag_u64(out, b's', len as u64),
            b't' => flag_ttl(out, view.expires, now),
            b'c' => flag_u64(out, b'c', view.cas),
            b'f' => flag_u64(out, b'f', view.item.map_or(0, |item| u64::from(item.flags()))),
            b'l' => flag_u64(out, b'l', view.item.map_or(0, |item| u64::from(now.saturating_sub(item.accessed())))),
            b'h' => out.extend_from_slice(if view.item.is_some_and(|item| item.fetched()) { b" h1" } else { b" h0" }),
            _ => echo(out, token, key, view.bits & KEY_BINARY != 0),
        }
    }
    if view.bits & TOKEN_SENT != 0 {
        out.extend_from_slice(b" Z");
    }
    if view.bits & STALE != 0 {
        out.extend_from_slice(b" X");
        // A stale item whose token nobody has: whoever sees it first gets it.
        view.won |= view.bits & TOKEN_SENT == 0;
    }
    if view.won {
        out.extend_from_slice(b" W");
        view.bits |= TOKEN_SENT;
    }
    out.extend_from_slice(b"\r\n");
    if meta.value {
        out.extend_from_slice(view.value);
    }
}

/// `ms`.
pub(super) fn set(shared: &Shared, worker: &mut Worker, meta: &Meta<'_>, data: &[u8], out: &mut Vec<u8>) {
    if !data.ends_with(b"\r\n") {
        worker.counters.inc(Counter::SetCommands);
        return line(out, b"CLIENT_ERROR bad data chunk");
    }
    let mut scratch = [0; KEY_MAX];
    let key = meta.key(&mut scratch);
    let verb = match meta.mode {
        b'E' => Verb::Add,
        b'A' => Verb::Append,
        b'P' => Verb::Prepend,
        _ if meta.cas.is_some() => Verb::Cas,
        b'R' => Verb::Replace,
        _ => Verb::Set,
    };
    let put = Put {
        verb,
        key,
        data,
        flags: meta.client_flags,
        expires: meta.ttl.map_or(0, |given| shared.clock.expiry(given, worker.now)),
        cas: meta.cas.unwrap_or(0),
        bits: if meta.binary { KEY_BINARY } else { 0 },
        accept_stale: meta.stale && verb == Verb::Cas,
    };
    let (code, cas) = match storing::put(shared, worker, &put) {
        Ok(Stored::Yes(_)) if meta.quiet => return,
        Ok(Stored::Yes(cas)) => (b"HD", cas),
        Ok(Stored::No) => (b"NS", 0),
        Ok(Stored::Exists) => (b"EX", 0),
        Ok(Stored::NotFound) => (b"NF", 0),
        Err(why) => return failure(out, &why, NO_MEMORY),
    };
    out.extend_from_slice(code);
    for token in meta.flags() {
        match token[0] {
            b'c' => flag_u64(out, b'c', cas),
            _ => echo(out, token, key, meta.binary),
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// `md`.
pub(super) fn delete(shared: &Shared, worker: &mut Worker, meta: &Meta<'_>, out: &mut Vec<u8>) {
    let mut scratch = [0; KEY_MAX];
    let key = meta.key(&mut scratch);
    match delete_once(shared, worker, meta, key) {
        Ok(b"HD") if meta.quiet => {}
        Ok(code) => status(out, code, meta, key),
        Err(why) => failure(out, &why, NO_MEMORY),
    }
}

fn delete_once(shared: &Shared, worker: &mut Worker, meta: &Meta<'_>, key: &[u8]) -> Result<&'static [u8; 2], Failure> {
    let store = &*shared.store;
    let stripe = store.lock(store.hash(key));
    let Some(found @ Found { item, .. }) = look_up_live(store, worker, &stripe, key) else {
        worker.counters.inc(Counter::DeleteMisses);
        return Ok(b"NF");
    };
    if meta.cas.is_some_and(|cas| cas != item.cas()) {
        worker.counters.inc(Counter::DeleteMisses);
        return Ok(b"EX");
    }
    if meta.stale {
        let expires = meta.ttl.map_or(item.expires(), |given| shared.clock.expiry(given, worker.now));
        let cas = store.new_cas()?;
        let tx = stripe.begin(worker, 0)?;
        stripe.put_state(&tx, item, expires, (item.bits() | STALE) & !TOKEN_SENT, cas);
        tx.commit();
    } else {
        let tx = stripe.begin(worker, 0)?;
        stripe.remove(&tx, found);
        tx.commit();
        worker.counters.inc(Counter::DeleteHits);
    }
    Ok(b"HD")
}

/// `ma`.
pub(super) fn arithmetic(shared: &Shared, worker: &mut Worker, meta: &Meta<'_>, out: &mut Vec<u8>) {
    let mut scratch = [0; KEY_MAX];
    let key = meta.key(&mut scratch);
    let start = out.len();
    let kept = Some(shared.store.hash(key));
    let result = shared.store.with_room(worker, counter_size(key), kept, |worker| {
        out.truncate(start);
        arithmetic_once(shared, worker, meta, key, out)
    });
    let increment = !matches!(meta.mode, b'D' | b'-');
    match result {
        Ok(Answer::Given) if meta.quiet => out.truncate(start),
        Ok(Answer::Given | Answer::Created) => {}
        Ok(Answer::NotFound) => {
            worker.counters.inc(if increment { Counter::IncrMisses } else { Counter::DecrMisses });
            status(out, b"NF", meta, key);
        }
        Ok(Answer::OtherCas) => status(out, b"EX", meta, key),
        Ok(Answer::NotANumber) => line(out, NOT_A_NUMBER),
        Err(why) => {
            out.truncate(start);
            failure(out, &why, b"SERVER_ERROR out of memory");
        }
    }
}

enum Answer {
    /// Counted, and the answer written.
    Given,
    /// Created, and the answer written: told even to those who asked for quiet.
    Created,
    NotFound,
    OtherCas,
    NotANumber,
}

fn arithmetic_once(
    shared: &Shared,
    worker: &mut Worker,
    meta: &Meta<'_>,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<Answer, Failure> {
    let store = &*shared.store;
    let hash = store.hash(key);
    let stripe = store.lock(hash);
    let increment = !matches!(meta.mode, b'D' | b'-');
    let now = worker.now;
    let expires = meta.ttl.map(|given| shared.clock.expiry(given, now));
    let cas = meta.cas.unwrap_or(0);
    let counted = count(store, worker, &stripe, (key, hash), (increment, meta.delta), cas, expires)?;
    match counted {
        Counted::To(number, item, before) => {
            answer_arithmetic(shared, meta, key, (number, item.cas(), before, now), false, out);
            Ok(Answer::Given)
        }
        Counted::NotFound if meta.vivify.is_some() => {
            let cas = store.new_cas()?;
            let expires = answer_arithmetic(shared, meta, key, (meta.initial, cas, 0, now), true, out);
            let mut buffer = [0; DIGITS_MAX];
            let digits = format_u64(meta.initial, &mut buffer);
            let content = Content { key, hash, value: (digits, b"\r\n"), flags: 0, expires, bits: 0, cas, now };
            let dead = stripe.find(key);
            let tx = stripe.begin(worker, 0)?;
            match dead {
                Some(dead) => stripe.replace(&tx, dead, &content)?,
                None => stripe.insert(&tx, &content)?,
            };
            tx.commit();
            worker.counters.inc(Counter::TotalItems);
            Ok(Answer::Created)
        }
        Counted::NotFound => Ok(Answer::NotFound),
        Counted::OtherCas => Ok(Answer::OtherCas),
        Counted::NotANumber => Ok(Answer::NotANumber),
    }
}

/// Writes the answer and gives the expiry time that the flags ask for.
fn answer_arithmetic(
    shared: &Shared,
    meta: &Meta<'_>,
    key: &[u8],
    (number, cas, mut expires, now): (u64, u64, u32, u32),
    created: bool,
    out: &mut Vec<u8>,
) -> u32 {
    let mut buffer = [0; DIGITS_MAX];
    let digits = format_u64(number, &mut buffer);
    if meta.value {
        out.extend_from_slice(b"VA ");
        push_u64(out, digits.len() as u64);
    } else {
        out.extend_from_slice(b"HD");
    }
    for token in meta.flags() {
        match token[0] {
            b'c' => flag_u64(out, b'c', cas),
            b't' => flag_ttl(out, expires, now),
            b'T' => expires = meta.ttl.map_or(expires, |given| shared.clock.expiry(given, now)),
            b'N' if created => expires = meta.vivify.map_or(expires, |given| shared.clock.expiry(given, now)),
            _ => echo(out, token, key, meta.binary),
        }
    }
    out.extend_from_slice(b"\r\n");
    if meta.value {
        line(out, digits);
    }
    expires
}

/// `me`: an item's inner state, for people. `cls` is always 1: there are no slab classes.
pub(super) fn debug(shared: &Shared, worker: &mut Worker, key: &[u8], binary: bool, out: &mut Vec<u8>) {
    use std::io::Write;
    worker.counters.inc(Counter::MetaCommands);
    let mut scratch = [0; KEY_MAX];
    let key = decode_key(key, binary, &mut scratch);
    let store = &*shared.store;
    let stripe = store.lock(store.hash(key));
    let Some(Found { item, .. }) = look_up_live(store, worker, &stripe, key) else {
        return line(out, b"EN");
    };
    out.extend_from_slice(b"ME ");
    if item.bits() & KEY_BINARY != 0 {
        base64::encode(key, out);
    } else {
        out.extend_from_slice(key);
    }
    let age = |since: u32| i64::from(worker.now) - i64::from(since);
    let expires = if item.expires() == 0 { -1 } else { age(item.expires()) };
    let (accessed, cas, size) = (age(item.accessed()).max(0), item.cas(), item.size());
    let fetched = if item.fetched() { "yes" } else { "no" };
    let state = format_args!(" exp={expires} la={accessed} cas={cas} fetch={fetched} cls=1 size={size}\r\n").to_string();
    let _ = out.write_all(state.as_bytes());
}
