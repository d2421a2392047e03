//! The classic commands, and the store operations that the meta commands share with them.

use super::{NO_MEMORY, failure, line, meta, stats};
use crate::counters::Counter;
use crate::protocol::meta::decode_key;
use crate::protocol::number::{DIGITS_MAX, format_u64, parse_i32, parse_u64, push_u64};
use crate::protocol::{self, KEY_MAX, Request, Verb};
use crate::server::Shared;
use crate::store::item::{Content, HEAD_LEN, Item, STALE, TOKEN_SENT};
use crate::store::table::Found;
use crate::store::{Failure, Life, Locked, Store, Worker};

type Result<T> = std::result::Result<T, Failure>;

/// What became of a store request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// Stored, with this CAS id.
    Yes(u64),
    /// Its condition did not hold.
    No,
    /// Another CAS id.
    Exists,
    /// Nothing to compare with.
    NotFound,
}

/// A store request, classic or meta.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put<'a> {
    pub verb: Verb,
    pub key: &'a [u8],
    /// With its line end.
    pub data: &'a [u8],
    pub flags: u32,
    pub expires: u32,
    /// Compare with this CAS id; 0 for none.
    pub cas: u64,
    pub bits: u8,
    /// An older CAS id may overwrite, and the item is stale then.
    pub accept_stale: bool,
}

/// Carries out every request but those that concern the dialogue itself.
pub(super) fn execute(shared: &Shared, worker: &mut Worker, request: Request<'_>, out: &mut Vec<u8>) {
    let store = &*shared.store;
    match request {
        Request::Store(request) => store_command(shared, worker, &request, out),
        Request::Delete { key, noreply } => match delete(store, worker, key) {
            Ok(found) => say(out, noreply, if found { b"DELETED" } else { b"NOT_FOUND" }),
            Err(why) => say_failure(out, noreply, &why),
        },
        Request::Arithmetic { key, delta, increment, noreply } => arithmetic(store, worker, key, (increment, delta), noreply, out),
        Request::Touch { key, exptime, noreply } => {
            let expires = shared.clock.expiry(exptime, worker.now);
            match touch(store, worker, key, expires) {
                Ok(found) => say(out, noreply, if found { b"TOUCHED" } else { b"NOT_FOUND" }),
                Err(why) => say_failure(out, noreply, &why),
            }
        }
        Request::MetaGet(request) => meta::get(shared, worker, &request, out),
        Request::MetaSet(request, data) => meta::set(shared, worker, &request, data, out),
        Request::MetaDelete(request) => meta::delete(shared, worker, &request, out),
        Request::MetaArithmetic(request) => meta::arithmetic(shared, worker, &request, out),
        Request::MetaDebug { key, binary } => meta::debug(shared, worker, key, binary, out),
        Request::FlushAll { delay, invalid, noreply } => flush_all(shared, worker, (delay, invalid), noreply, out),
        Request::Stats { what, more, rest } => stats::stats(shared, worker, (what, more, rest), out),
        Request::Version => line(out, shared.version().as_bytes()),
        Request::Verbosity { level, noreply } => {
            shared.set_verbosity(level);
            say(out, noreply, b"OK");
        }
        Request::MemoryLimit { megabytes, noreply } => say(out, noreply, memory_limit(store, megabytes)),
        Request::Crawl => {
            store.crawl();
            line(out, b"OK");
        }
        Request::Crawler(on) => {
            store.enable_crawler(on);
            line(out, b"OK");
        }
        Request::DebugTime { argument } => debug_time(shared, worker, argument, out),
        // Served by the session.
        Request::Get { .. } | Request::TooLarge { .. } | Request::Quit | Request::Shutdown { .. } | Request::Durable { .. } => {}
    }
}

fn say(out: &mut Vec<u8>, noreply: bool, text: &[u8]) {
    if !noreply {
        line(out, text);
    }
}

fn say_failure(out: &mut Vec<u8>, noreply: bool, why: &Failure) {
    if !noreply {
        failure(out, why, NO_MEMORY);
    }
}

/// Finds `key`; says whether it may be seen, and counts when not.
pub(super) fn look_up(store: &Store, worker: &Worker, stripe: &Locked<'_>, key: &[u8]) -> (Option<Found>, bool) {
    let Some(found) = stripe.find(key) else { return (None, false) };
    let life = store.life(&found.item, worker.now);
    match life {
        Life::Live => {}
        Life::Expired => worker.counters.inc(Counter::GetExpired),
        Life::Flushed => worker.counters.inc(Counter::GetFlushed),
    }
    (Some(found), life == Life::Live)
}

pub(super) fn look_up_live(store: &Store, worker: &Worker, stripe: &Locked<'_>, key: &[u8]) -> Option<Found> {
    let (found, live) = look_up(store, worker, stripe, key);
    found.filter(|_| live)
}

/// One key of a retrieval. The value goes from the heap to the output under the stripe's lock, once.
pub(super) fn get(
    store: &Store,
    worker: &mut Worker,
    key: &[u8],
    with_cas: bool,
    expires: Option<u32>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let stripe = store.lock(store.hash(key));
    let found = look_up_live(store, worker, &stripe, key);
    let (all, hits, misses) = match expires {
        None => (Counter::GetCommands, Counter::GetHits, Counter::GetMisses),
        Some(_) => (Counter::TouchCommands, Counter::TouchHits, Counter::TouchMisses),
    };
    worker.counters.inc(all);
    worker.counters.inc(if found.is_some() { hits } else { misses });
    let Some(Found { item, .. }) = found else { return Ok(()) };
    if let Some(expires) = expires {
        let tx = worker.begin()?;
        stripe.put_state(&tx, item, expires, item.bits(), item.cas());
        tx.commit();
    }
    item.touch_access(worker.now, true);
    let data = item.data();
    out.reserve(key.len() + data.len() + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    push_u64(out, u64::from(item.flags()));
    out.push(b' ');
    push_u64(out, item.value_len() as u64);
    if with_cas {
        out.push(b' ');
        push_u64(out, item.cas());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    Ok(())
}

fn store_command(shared: &Shared, worker: &mut Worker, request: &protocol::Store<'_>, out: &mut Vec<u8>) {
    let noreply = request.noreply;
    if !request.data.ends_with(b"\r\n") {
        worker.counters.inc(Counter::SetCommands);
        return say(out, noreply, b"CLIENT_ERROR bad data chunk");
    }
    let request = Put {
        verb: request.verb,
        key: request.key,
        data: request.data,
        flags: request.flags,
        expires: shared.clock.expiry(request.exptime, worker.now),
        cas: request.cas,
        bits: 0,
        accept_stale: false,
    };
    match put(shared, worker, &request) {
        Ok(Stored::Yes(_)) => say(out, noreply, b"STORED"),
        Ok(Stored::No) => say(out, noreply, b"NOT_STORED"),
        Ok(Stored::Exists) => say(out, noreply, b"EXISTS"),
        Ok(Stored::NotFound) => say(out, noreply, b"NOT_FOUND"),
        Err(why) => say_failure(out, noreply, &why),
    }
}

/// Stores, if the verb's condition holds. What cannot be stored for want of room takes the old value with it where the client
/// would else take that for the new one (`set`), as in memcached.
pub(super) fn put(shared: &Shared, worker: &mut Worker, request: &Put<'_>) -> Result<Stored> {
    worker.counters.inc(Counter::SetCommands);
    let store = &*shared.store;
    let size = HEAD_LEN + request.key.len() + request.data.len();
    let result = store.with_room(worker, size, |worker| put_once(shared, worker, request));
    match &result {
        Err(Failure::NoMemory) => {
            worker.counters.inc(Counter::StoreNoMemory);
            if request.verb == Verb::Set {
                drop_present(store, worker, request.key);
            }
        }
        Err(Failure::Engine(_)) => worker.counters.inc(Counter::StoreFailed),
        Ok(_) => {}
    }
    result
}

fn put_once(shared: &Shared, worker: &mut Worker, request: &Put<'_>) -> Result<Stored> {
    let store = &*shared.store;
    let hash = store.hash(request.key);
    let stripe = store.lock(hash);
    let (found, live) = look_up(store, worker, &stripe, request.key);
    let mut content = Content {
        key: request.key,
        hash,
        value: (request.data, &[]),
        flags: request.flags,
        expires: request.expires,
        bits: request.bits,
        cas: 0,
        now: worker.now,
    };
    let old = found.filter(|_| live).map(|found| found.item);
    if let Some(refused) = decide(shared, worker, request, old.as_ref(), &mut content) {
        return Ok(refused);
    }
    content.cas = store.new_cas()?;
    let tx = worker.begin_for(content.size())?;
    match found {
        Some(found) => stripe.replace(&tx, found, &content)?,
        None => stripe.insert(&tx, &content)?,
    };
    tx.commit();
    worker.counters.inc(Counter::TotalItems);
    if found.is_some() && !live {
        worker.counters.inc(Counter::Reclaimed);
    }
    Ok(Stored::Yes(content.cas))
}

/// Whether the request may store, and what: `Some` is the refusal.
fn decide<'a>(
    shared: &Shared,
    worker: &Worker,
    request: &Put<'a>,
    old: Option<&'a Item>,
    content: &mut Content<'a>,
) -> Option<Stored> {
    let counters = &worker.counters;
    let Some(old) = old else {
        return match request.verb {
            Verb::Set | Verb::Add => None,
            Verb::Cas => {
                counters.inc(Counter::CasMisses);
                Some(Stored::NotFound)
            }
            Verb::Replace | Verb::Append | Verb::Prepend => Some(Stored::No),
        };
    };
    match request.verb {
        Verb::Set | Verb::Replace => None,
        Verb::Add => {
            old.touch_access(worker.now, false);
            Some(Stored::No)
        }
        Verb::Cas if request.cas != 0 && request.cas == old.cas() => {
            counters.inc(Counter::CasHits);
            None
        }
        Verb::Cas if request.accept_stale && request.cas != 0 && request.cas < old.cas() => {
            counters.inc(Counter::CasHits);
            content.expires = old.expires();
            content.bits |= STALE | (old.bits() & TOKEN_SENT);
            None
        }
        Verb::Cas => {
            counters.inc(Counter::CasMismatches);
            Some(Stored::Exists)
        }
        Verb::Append | Verb::Prepend => {
            if request.cas != 0 && request.cas != old.cas() {
                return Some(Stored::Exists);
            }
            let (old_len, len) = (old.value_len(), request.data.len() - 2);
            if !shared.limits.item_fits(request.key.len(), old.flags(), old_len + len) {
                return Some(Stored::No);
            }
            content.value = match request.verb {
                Verb::Append => (&old.data()[..old_len], request.data),
                _ => (&request.data[..len], old.data()),
            };
            (content.flags, content.expires, content.bits) = (old.flags(), old.expires(), 0);
            None
        }
    }
}

/// Removes `key` if it is there, live or not.
fn drop_present(store: &Store, worker: &mut Worker, key: &[u8]) {
    let stripe = store.lock(store.hash(key));
    if let Some(found) = stripe.find(key)
        && let Ok(tx) = worker.begin()
    {
        stripe.remove(&tx, found);
        tx.commit();
    }
}

/// A value beyond `-I`.
pub(super) fn too_large(shared: &Shared, worker: &mut Worker, request: &Request<'_>, out: &mut Vec<u8>) {
    let Request::TooLarge { key, binary, unlink, noreply, .. } = *request else { return };
    worker.counters.inc(Counter::StoreTooLarge);
    if unlink {
        let mut scratch = [0; KEY_MAX];
        drop_present(&shared.store, worker, decode_key(key, binary, &mut scratch));
    }
    say(out, noreply, b"SERVER_ERROR object too large for cache");
}

fn delete(store: &Store, worker: &mut Worker, key: &[u8]) -> Result<bool> {
    let stripe = store.lock(store.hash(key));
    let Some(found) = look_up_live(store, worker, &stripe, key) else {
        worker.counters.inc(Counter::DeleteMisses);
        return Ok(false);
    };
    let tx = worker.begin()?;
    stripe.remove(&tx, found);
    tx.commit();
    worker.counters.inc(Counter::DeleteHits);
    Ok(true)
}

fn touch(store: &Store, worker: &mut Worker, key: &[u8], expires: u32) -> Result<bool> {
    let stripe = store.lock(store.hash(key));
    worker.counters.inc(Counter::TouchCommands);
    let Some(Found { item, .. }) = look_up_live(store, worker, &stripe, key) else {
        worker.counters.inc(Counter::TouchMisses);
        return Ok(false);
    };
    let tx = worker.begin()?;
    stripe.put_state(&tx, item, expires, item.bits(), item.cas());
    tx.commit();
    item.touch_access(worker.now, true);
    worker.counters.inc(Counter::TouchHits);
    Ok(true)
}

/// What became of counting.
pub(super) enum Counted {
    /// The new number, and the item that holds it now.
    To(u64, Item),
    NotFound,
    NotANumber,
    OtherCas,
}

/// Counts up or down, in place where the digits fit: then blanks fill up the old length, as in memcached.
pub(super) fn count(
    store: &Store,
    worker: &mut Worker,
    stripe: &Locked<'_>,
    (key, hash): (&[u8], u64),
    (increment, delta): (bool, u64),
    cas: u64,
) -> Result<Counted> {
    let Some(found) = look_up_live(store, worker, stripe, key) else { return Ok(Counted::NotFound) };
    let item = found.item;
    if item.value_len() == 0 {
        return Ok(Counted::NotANumber);
    }
    if cas != 0 && cas != item.cas() {
        return Ok(Counted::OtherCas);
    }
    let Some(old) = parse_u64(item.data()) else { return Ok(Counted::NotANumber) };
    let new = if increment { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
    let new_cas = store.new_cas()?;
    let mut buffer = [0; DIGITS_MAX];
    let digits = format_u64(new, &mut buffer);
    let now = worker.now;
    let tx = worker.begin()?;
    let item = if digits.len() <= item.value_len() {
        stripe.put_number(&tx, item, digits, new_cas);
        item.touch_access(now, false);
        item
    } else {
        let (flags, expires) = (item.flags(), item.expires());
        let content = Content { key, hash, value: (digits, b"\r\n"), flags, expires, bits: 0, cas: new_cas, now };
        stripe.replace(&tx, found, &content)?
    };
    tx.commit();
    worker.counters.inc(if increment { Counter::IncrHits } else { Counter::DecrHits });
    Ok(Counted::To(new, item))
}

/// Room that a counter may need.
pub(super) fn counter_size(key: &[u8]) -> usize {
    HEAD_LEN + key.len() + DIGITS_MAX + 2
}

fn arithmetic(store: &Store, worker: &mut Worker, key: &[u8], by: (bool, u64), noreply: bool, out: &mut Vec<u8>) {
    let hash = store.hash(key);
    let result = store.with_room(worker, counter_size(key), |worker| {
        let stripe = store.lock(hash);
        count(store, worker, &stripe, (key, hash), by, 0)
    });
    match result {
        Ok(Counted::To(number, _)) if !noreply => {
            push_u64(out, number);
            out.extend_from_slice(b"\r\n");
        }
        Ok(Counted::To(..)) => {}
        Ok(Counted::NotFound | Counted::OtherCas) => {
            worker.counters.inc(if by.0 { Counter::IncrMisses } else { Counter::DecrMisses });
            say(out, noreply, b"NOT_FOUND");
        }
        Ok(Counted::NotANumber) => say(out, noreply, NOT_A_NUMBER),
        Err(why) if !noreply => failure(out, &why, b"SERVER_ERROR out of memory"),
        Err(_) => {}
    }
}

pub(super) const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value";

fn flush_all(shared: &Shared, worker: &mut Worker, (delay, invalid): (i32, bool), noreply: bool, out: &mut Vec<u8>) {
    worker.counters.inc(Counter::FlushCommands);
    if !shared.config.flush_enabled {
        return say(out, noreply, b"CLIENT_ERROR flush_all not allowed");
    }
    if invalid {
        return say(out, noreply, b"CLIENT_ERROR invalid exptime argument");
    }
    // memcached flushes what is older than the given second: the flush is due one second earlier.
    let due = if delay > 0 { shared.clock.expiry(delay, worker.now) - 1 } else { 0 };
    let at = (due > worker.now).then_some(due);
    match shared.store.flush(worker, at) {
        Ok(()) => say(out, noreply, b"OK"),
        Err(why) => say_failure(out, noreply, &why),
    }
}

fn memory_limit(store: &Store, megabytes: u32) -> &'static [u8] {
    let bytes = u64::from(megabytes) << 20;
    match megabytes {
        0..8 => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        1_000_000_001.. => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        _ if bytes > store.pool().heap_range().1 => b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
        _ => {
            store.set_limit(bytes);
            b"OK"
        }
    }
}

fn debug_time(shared: &Shared, worker: &mut Worker, argument: &[u8], out: &mut Vec<u8>) {
    if !shared.config.debug_commands {
        return line(out, b"ERROR");
    }
    match (argument, parse_i32(argument)) {
        (b"p", _) => shared.clock.stop(true),
        (b"r", _) => shared.clock.stop(false),
        (b"panic", _) => panic!("a client asked for it"),
        (_, Some(seconds)) => shared.clock.shift(i64::from(seconds)),
        _ => return line(out, b"ERROR"),
    }
    worker.now = shared.clock.now();
    line(out, b"OK");
}
