//! Storing: `set` and its relatives, for the classic commands and the meta commands.
//!
//! What must always hold: whether a request may store is decided under the stripe's lock, before the transaction begins; a request
//! that is refused or fails changes nothing - but for `set` without room, which takes the old value with it.

use super::NO_MEMORY;
use super::text::{look_up, say, say_failure};
use crate::counters::Counter;
use crate::protocol::meta::decode_key;
use crate::protocol::{self, KEY_MAX, Request, Verb};
use crate::server::Shared;
use crate::store::item::{Content, HEAD_LEN, Item, STALE, TOKEN_SENT};
use crate::store::{Failure, Store, Worker};

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

pub(super) fn store_command(shared: &Shared, worker: &mut Worker, request: &protocol::Store<'_>, out: &mut Vec<u8>) {
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
    let store = &*shared.store;
    let size = HEAD_LEN + request.key.len() + request.data.len();
    let builds_on_old = !matches!(request.verb, Verb::Set | Verb::Add);
    let kept = builds_on_old.then(|| store.hash(request.key));
    let result = store.with_room(worker, size, kept, |worker| put_once(shared, worker, request));
    match &result {
        Err(Failure::NoLogSpace) => return result,
        Err(Failure::NoMemory) => {
            if request.verb == Verb::Set {
                drop_present(store, worker, request.key)?;
            }
            worker.counters.inc(Counter::StoreNoMemory);
        }
        Err(Failure::Engine(_)) => worker.counters.inc(Counter::StoreFailed),
        Ok(_) => {}
    }
    worker.counters.inc(Counter::SetCommands);
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
    let tx = stripe.begin(worker, content.size())?;
    match found {
        Some(found) => stripe.replace(&tx, found, &content)?,
        None => stripe.insert(&tx, &content)?,
    };
    tx.commit();
    worker.counters.inc(Counter::TotalItems);
    if request.verb == Verb::Cas {
        worker.counters.inc(Counter::CasHits);
    }
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
        Verb::Cas if request.cas != 0 && request.cas == old.cas() => None,
        Verb::Cas if request.accept_stale && request.cas != 0 && request.cas < old.cas() => {
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

/// Removes `key` if it is there, live or not. In a failed pool it stays. Fails where the log has no space now.
fn drop_present(store: &Store, worker: &mut Worker, key: &[u8]) -> Result<()> {
    let stripe = store.lock(store.hash(key));
    let Some(found) = stripe.find(key) else { return Ok(()) };
    match stripe.begin(worker, 0) {
        Ok(tx) => {
            stripe.remove(&tx, found);
            tx.commit();
            Ok(())
        }
        Err(Failure::NoLogSpace) => Err(Failure::NoLogSpace),
        Err(_) => Ok(()),
    }
}

/// Refuses a value beyond `-I`, or one that there is no room to receive; `false`: not yet, the log has no space to drop the old value.
pub(super) fn too_large(shared: &Shared, worker: &mut Worker, request: &Request<'_>, is_room: bool, out: &mut Vec<u8>) -> bool {
    let Request::TooLarge { key, binary, unlink, noreply, .. } = *request else { return true };
    let mut scratch = [0; KEY_MAX];
    if unlink && drop_present(&shared.store, worker, decode_key(key, binary, &mut scratch)).is_err() {
        return false;
    }
    worker.counters.inc(if is_room { Counter::StoreTooLarge } else { Counter::StoreNoMemory });
    say(out, noreply, if is_room { b"SERVER_ERROR object too large for cache" } else { NO_MEMORY });
    true
}
