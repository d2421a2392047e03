//! Evicting: items known by their addresses, in batches, and windows of chunks as a whole.
//!
//! What must always hold:
//! - A candidate is a guess, read without a lock. Only an item that hangs in its chain, found there by its address
//!   under its stripe's lock, is evicted; so whatever the guess was, the table's segments or another program's object
//!   are never taken for an item.
//! - The stripes of a batch are locked in ascending order, as `flush` locks all of them: a thread never waits for a
//!   stripe while it holds a higher one.
//! - A batch is one transaction, and short: some dozens of stripes, and a MiB of items or one that is larger, for a tenth of a millisecond.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;
use std::time::{Duration, Instant};

use towa_epoch::{Cleared, Clearing, Pool, Survey};

use super::item::{Guess, USES_MAX};
use super::{Failure, Life, Locked, Store, Worker, stripe_of};
use crate::counters::Counter;

/// Items, and stripes, in one batch.
const BATCH_ITEMS: usize = 128;
const BATCH_STRIPES: usize = 32;
/// Bytes of items after which a batch ends: in place each line of them is marked.
const BATCH_ROOM: u64 = 1 << 20;
/// Blocks of a window that are looked at at once: more make fuller batches. Few in debug builds, so that tests go on with the next part.
const LIVE_AT_ONCE: usize = if cfg!(debug_assertions) { 64 } else { 8192 };
/// Bytes that removing an item marks: its head, its chunks' header, the link to it, its stripe's counters. (In place, one line more for each 8 MiB
/// of it: the transaction's share has room for these.)
const REMOVAL: usize = 4 * 64;
/// Looks at a window before it is given up: what transactions were just storing in it is found by the second.
const LOOKS: usize = 4;
/// A worker that cleared a window compares others only after so many times as long as that took.
const REST_FACTOR: u32 = 9;
/// How long a worker clears a window at a time, and a batch more; then its other connections have their turns.
pub(super) const SLICE: Duration = Duration::from_micros(500);
/// After so long without a step a window is given back. Requests that wait for others' turns come back sooner.
const FORGOTTEN: Duration = Duration::from_millis(100);
/// How long a window waits for a transaction that does not end; its thread has lost its core.
const PATIENCE: Duration = Duration::from_secs(1);

/// A window that is being cleared.
pub(super) struct Work {
    /// Bytes of the value that it is for.
    wanted: usize,
    /// Its first address and the one behind the last.
    range: (usize, usize),
    clearing: Clearing,
    /// The part to look at next, and what is to be evicted of those that were looked at.
    part: Option<usize>,
    victims: Vec<Candidate>,
    /// How often all parts were looked at in vain.
    looks: usize,
    /// Since when it waits for a transaction that does not end.
    waits: Option<Instant>,
    /// When it was last worked on.
    stepped: Instant,
    /// Time spent on it.
    took: Duration,
}

impl Work {
    /// Whether its chunks are as many as a value of `bytes` takes.
    pub(super) fn is_for(&self, bytes: usize) -> bool {
        Pool::chunk_bytes_for(self.wanted) == Pool::chunk_bytes_for(bytes)
    }

    /// Its first address and the one behind the last.
    pub(super) fn range(&self) -> (usize, usize) {
        self.range
    }

    /// Requests wait for log space, and cannot go on with it.
    pub(super) fn renew(&mut self) {
        self.stepped = Instant::now();
    }

    /// Whether the request that it is for does not come back: it found room elsewhere, or its client has left.
    pub(super) fn is_forgotten(&self) -> bool {
        self.stepped.elapsed() > FORGOTTEN
    }
}

/// What may be an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) address: u64,
    hash: u64,
    cas: u64,
    room: u32,
    /// Seconds since its last access, and one more; fewer by half for each of the next few uses of its key after the first. What
    /// was used again is likely to be used again.
    idle: f32,
}

impl Candidate {
    /// Orders what should go first before what should stay: by how long it was not accessed, then by when it was
    /// stored.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        other.idle.total_cmp(&self.idle).then(self.cas.cmp(&other.cas)).then(self.address.cmp(&other.address))
    }

    /// What is lost with it, per byte: the less the longer it was not accessed, nothing if it is dead.
    pub(super) fn loss(&self) -> f64 {
        1.0 / f64::from(self.idle)
    }
}

impl Store {
    /// What stands at `address`, a block's, as far as can be told in passing.
    pub(super) fn candidate(&self, address: usize, now: u32) -> Candidate {
        // SAFETY: the address of a block of the heap, which is mapped as long as the pool lives.
        let guess = unsafe { Guess::at(address) };
        // The CAS id of a lost item is 0.
        let dead = guess.cas == 0 || self.is_dead(guess.cas, guess.expires, now);
        let since = now.saturating_sub(guess.access) as f32 + 1.0;
        let again = guess.uses.min(USES_MAX).saturating_sub(1);
        let idle = if dead { f32::INFINITY } else { since / f32::from(1u16 << again) };
        Candidate { address: address as u64, hash: guess.hash, cas: guess.cas, room: guess.room, idle }
    }

    /// Adds what stands at `address` to `found`, unless the request at hand builds on it.
    pub(super) fn consider(&self, worker: &Worker, address: usize, found: &mut Vec<Candidate>) {
        let candidate = self.candidate(address, worker.now);
        if worker.kept != Some(candidate.hash) {
            found.push(candidate);
        }
    }

    /// Whether it is an item.
    pub(super) fn is_item(&self, candidate: &Candidate) -> bool {
        let mut stripe = self.lock(candidate.hash);
        stripe.aim(candidate.hash);
        stripe.find_at(candidate.address).is_some()
    }

    /// Evicts those of `victims` that are items; how many there were.
    pub(super) fn evict(&self, worker: &mut Worker, mut victims: Vec<Candidate>) -> Result<usize, Failure> {
        let mut evicted = 0;
        sort(&mut victims);
        while !victims.is_empty() {
            evicted += self.evict_some(worker, &mut victims)?;
        }
        Ok(evicted)
    }

    /// Evicts a batch from the end of `victims`, which are sorted by stripe, highest first.
    fn evict_some(&self, worker: &mut Worker, victims: &mut Vec<Candidate>) -> Result<usize, Failure> {
        let (mut from, mut stripes, mut room) = (victims.len(), 0, 0);
        while from > 0 && victims.len() - from < BATCH_ITEMS && room < BATCH_ROOM {
            let is_new = victims.get(from).is_none_or(|next| stripe_of(next.hash) != stripe_of(victims[from - 1].hash));
            if is_new && stripes == BATCH_STRIPES {
                break;
            }
            stripes += usize::from(is_new);
            from -= 1;
            room += u64::from(victims[from].room);
        }
        victims[from..].reverse();
        let evicted = self.evict_batch(worker, &victims[from..]);
        match &evicted {
            Ok(_) => victims.truncate(from),
            Err(_) => victims[from..].reverse(),
        }
        evicted
    }

    /// Evicts a batch, which is sorted by stripe, lowest first.
    fn evict_batch(&self, worker: &mut Worker, victims: &[Candidate]) -> Result<usize, Failure> {
        let groups = || victims.chunk_by(|a, b| stripe_of(a.hash) == stripe_of(b.hash));
        let mut stripes: Vec<Locked<'_>> = groups().map(|group| self.lock(group[0].hash)).collect();
        let (mut evicted, now, counters) = (0, worker.now, Arc::clone(&worker.counters));
        // No client asked for an eviction: it must not make one's `durable` wait.
        let tx = worker.begin_upkeep(victims.len() * REMOVAL + 1024)?;
        for (stripe, group) in stripes.iter_mut().zip(groups()) {
            for victim in group {
                stripe.aim(victim.hash);
                let Some(found) = stripe.find_at(victim.address) else { continue };
                let (life, fetched, expiring) = (self.life(&found.item, now), found.item.fetched(), found.item.expires() != 0);
                stripe.give_up(&tx, found, life);
                evicted += 1;
                if life == Life::Live {
                    counters.inc(Counter::Evictions);
                    counters.add(Counter::EvictedUnfetched, u64::from(!fetched));
                    counters.add(Counter::EvictedExpiring, u64::from(expiring));
                } else {
                    counters.inc(Counter::Reclaimed);
                    counters.add(Counter::ExpiredUnfetched, u64::from(!fetched && life != Life::Lost));
                }
            }
        }
        tx.commit();
        Ok(evicted)
    }

    /// Evicts all that lives in what was surveyed for a value of `wanted` bytes, and keeps its chunks for this worker's
    /// next allocation; `false` if it holds something else than items, or changed hands: then it stays in use.
    /// [`Failure::NoLogSpace`]: for now; [`go_on`](Self::go_on) goes on.
    pub(super) fn clear(&self, worker: &mut Worker, survey: &Survey, wanted: usize) -> Result<bool, Failure> {
        let Some(clearing) = worker.thread.clear(survey) else { return Ok(false) };
        worker.clearing = Some(Work {
            wanted,
            range: survey.range(),
            clearing,
            part: Some(0),
            victims: Vec::new(),
            looks: 0,
            waits: None,
            stepped: Instant::now(),
            took: Duration::ZERO,
        });
        self.go_on(worker)
    }

    /// Goes on with the window that this worker clears.
    pub(super) fn go_on(&self, worker: &mut Worker) -> Result<bool, Failure> {
        let Some(mut work) = worker.clearing.take() else { return Ok(false) };
        let began = Instant::now();
        let result = self.work_on(worker, &mut work, began + SLICE);
        work.stepped = Instant::now();
        work.took += began.elapsed();
        if let Err(Failure::NoLogSpace) = result {
            worker.clearing = Some(work);
            return result;
        }
        let is_cleared = matches!(result, Ok(true));
        worker.counters.inc(if is_cleared { Counter::WindowsCleared } else { Counter::WindowsKept });
        worker.failed += usize::from(!is_cleared);
        worker.rested = worker.rested.max(Instant::now() + REST_FACTOR * work.took);
        result
    }

    fn work_on(&self, worker: &mut Worker, work: &mut Work, until: Instant) -> Result<bool, Failure> {
        while work.looks < LOOKS {
            while !work.victims.is_empty() || work.part.is_some() {
                if let (true, Some(part)) = (work.victims.is_empty(), work.part) {
                    let (victims, now) = (&mut work.victims, worker.now);
                    work.part = work.clearing.live(part, LIVE_AT_ONCE, |address| victims.push(self.candidate(address, now)));
                    sort(victims);
                } else {
                    let evicted = self.evict_some(worker, &mut work.victims)?;
                    worker.counters.add(Counter::WindowEvictions, evicted as u64);
                }
                if Instant::now() >= until {
                    return Err(worker.pause());
                }
            }
            match worker.thread.settle(&mut work.clearing)? {
                Cleared::Yes => return Ok(true),
                Cleared::NotYet => {
                    work.looks += 1;
                    work.part = Some(0);
                }
                Cleared::InPart if Instant::now() >= until => return Err(worker.pause()),
                Cleared::InPart => {}
                Cleared::NoLogSpace => return Err(worker.want_log(0)),
                Cleared::Wait if work.waits.get_or_insert_with(Instant::now).elapsed() < PATIENCE => return Err(worker.pause()),
                Cleared::Wait => return Ok(false),
            }
        }
        Ok(false)
    }
}

/// Sorts by stripe, highest first: batches are taken from the end.
fn sort(victims: &mut [Candidate]) {
    victims.sort_unstable_by_key(|victim| (Reverse(stripe_of(victim.hash)), victim.address));
}
