//! The classic commands, and the store operations that the meta commands share with them.

use super::storing::store_command;
use super::{NO_MEMORY, failure, line, meta, stats};
use crate::counters::Counter;
use crate::memory;
use crate::protocol::Request;
use crate::protocol::number::{DIGITS_MAX, format_u64, parse_i32, parse_u64, push_u64};
use crate::server::Shared;
use crate::store::item::{Content, HEAD_LEN, Item};
use crate::store::table::Found;
use crate::store::{Failure, Life, Locked, Store, Worker};
use crate::unsent;

type Result<T> = std::result::Result<T, Failure>;

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
        Request::MemoryLimit { megabytes, noreply } => say(out, noreply, memory_limit(shared, megabytes)),
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

pub(super) fn say(out: &mut Vec<u8>, noreply: bool, text: &[u8]) {
    if !noreply {
        line(out, text);
    }
}

pub(super) fn say_failure(out: &mut Vec<u8>, noreply: bool, why: &Failure) {
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
        Life::Lost => {}
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
    if let (Some(Found { item, .. }), Some(expires)) = (found, expires) {
        let tx = stripe.begin(worker, 0)?;
        stripe.put_state(&tx, item, expires, item.bits(), item.cas());
        tx.commit();
    }
    worker.counters.inc(all);
    worker.counters.inc(if found.is_some() { hits } else { misses });
    let Some(Found { item, .. }) = found else { return Ok(()) };
    item.touch_access(worker.now, true);
    let data = item.data();
    unsent::reserve(out, key.len() + data.len() + 64);
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

fn delete(store: &Store, worker: &mut Worker, key: &[u8]) -> Result<bool> {
    let stripe = store.lock(store.hash(key));
    let Some(found) = look_up_live(store, worker, &stripe, key) else {
        worker.counters.inc(Counter::DeleteMisses);
        return Ok(false);
    };
    let tx = stripe.begin(worker, 0)?;
    stripe.remove(&tx, found);
    tx.commit();
    worker.counters.inc(Counter::DeleteHits);
    Ok(true)
}

fn touch(store: &Store, worker: &mut Worker, key: &[u8], expires: u32) -> Result<bool> {
    let stripe = store.lock(store.hash(key));
    let Some(Found { item, .. }) = look_up_live(store, worker, &stripe, key) else {
        worker.counters.inc(Counter::TouchCommands);
        worker.counters.inc(Counter::TouchMisses);
        return Ok(false);
    };
    let tx = stripe.begin(worker, 0)?;
    stripe.put_state(&tx, item, expires, item.bits(), item.cas());
    tx.commit();
    item.touch_access(worker.now, true);
    worker.counters.inc(Counter::TouchCommands);
    worker.counters.inc(Counter::TouchHits);
    Ok(true)
}

/// What became of counting.
pub(super) enum Counted {
    /// The new number, the item that holds it now, and when that would have expired before.
    To(u64, Item, u32),
    NotFound,
    NotANumber,
    OtherCas,
}

/// Counts up or down, in place where the digits fit: then blanks fill up the old length, as in memcached. `expires` is a new expiry
/// time, set in the same transaction.
pub(super) fn count(
    store: &Store,
    worker: &mut Worker,
    stripe: &Locked<'_>,
    (key, hash): (&[u8], u64),
    (increment, delta): (bool, u64),
    cas: u64,
    expires: Option<u32>,
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
    let before = item.expires();
    let expires = expires.unwrap_or(before);
    let tx = stripe.begin(worker, 0)?;
    let item = if digits.len() <= item.value_len() {
        stripe.put_number(&tx, item, digits, new_cas);
        if expires != before {
            stripe.put_state(&tx, item, expires, item.bits(), new_cas);
        }
        item.touch_access(now, false);
        item
    } else {
        let flags = item.flags();
        let content = Content { key, hash, value: (digits, b"\r\n"), flags, expires, bits: 0, cas: new_cas, now };
        stripe.replace(&tx, found, &content)?
    };
    tx.commit();
    worker.counters.inc(if increment { Counter::IncrHits } else { Counter::DecrHits });
    Ok(Counted::To(new, item, before))
}

/// Room that a counter may need.
pub(super) fn counter_size(key: &[u8]) -> usize {
    HEAD_LEN + key.len() + DIGITS_MAX + 2
}

fn arithmetic(store: &Store, worker: &mut Worker, key: &[u8], by: (bool, u64), noreply: bool, out: &mut Vec<u8>) {
    let hash = store.hash(key);
    let result = store.with_room(worker, counter_size(key), Some(hash), |worker| {
        let stripe = store.lock(hash);
        count(store, worker, &stripe, (key, hash), by, 0, None)
    });
    match result {
        Ok(Counted::To(number, ..)) if !noreply => {
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
    // At the second that was given, as protocol.txt says. memcached flushes a second earlier: up to a whole second too soon, and
    // what is stored in that second is gone at once.
    let due = if delay > 0 { shared.clock.expiry(delay, worker.now) } else { 0 };
    let at = (due > worker.now).then_some(due);
    let answer: Result<&[u8]> = match (shared.config.flush_enabled, invalid) {
        (false, _) => Ok(b"CLIENT_ERROR flush_all not allowed"),
        (_, true) => Ok(b"CLIENT_ERROR invalid exptime argument"),
        _ => shared.store.flush(worker, at).map(|()| &b"OK"[..]),
    };
    match answer {
        Err(Failure::NoLogSpace) => return,
        Ok(answer) => say(out, noreply, answer),
        Err(why) => say_failure(out, noreply, &why),
    }
    worker.counters.inc(Counter::FlushCommands);
}

fn memory_limit(shared: &Shared, megabytes: u32) -> &'static [u8] {
    let store = &*shared.store;
    let bytes = u64::from(megabytes) << 20;
    match megabytes {
        0..8 => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        1_000_000_001.. => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        _ if bytes > store.pool().heap_range().1 || !memory::may_become(shared, bytes, memory::allowed().as_ref()) => {
            b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust"
        }
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
