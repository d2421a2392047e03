//! Making room: the `-m` limit, the full heap, and whom to evict.
//!
//! Eviction is sampled LRU, as Redis does it: from a random line on, look at some items, drop an expired one at once, else the one
//! that was not accessed for longest. No list to maintain means that a read costs no lock but its own stripe's, and that nothing about
//! recency has to be durable.
//!
//! Victims are looked for with `try_lock` and dropped in transactions of their own, before the request takes its own stripe: nobody
//! waits for one stripe while holding another.

use std::sync::Arc;

use super::item::Item;
use super::table::STRIPES;
use super::{Failure, Life, Store, Worker};
use crate::counters::Counter;

/// Items compared for one eviction: ten as in Redis, and one more for each KiB wanted, because a large value costs more to lose and
/// to store than a longer look.
const SAMPLE_MIN: usize = 10;
const SAMPLE_MAX: usize = 512;
/// Rounds of eviction for one request when the heap itself is full.
const HEAP_ROUNDS: usize = 8;
/// Victims in one round at most.
const VICTIMS_MAX: usize = 4096;
/// Lines looked at for one victim: enough to find somebody in a nearly empty table.
const LINES_MAX: u64 = 8192;

/// What a sample found.
#[derive(Clone, Copy)]
struct Victim {
    hash: u64,
    address: u64,
    /// Last access, and among those of one second the order in which they were stored.
    age: (u32, u64),
    dead: bool,
}

impl Store {
    /// Makes sure that `bytes` more may be stored under `-m`, evicting if need be. Call before taking a stripe's lock.
    pub fn make_room(&self, worker: &mut Worker, bytes: usize) -> Result<(), Failure> {
        worker.headroom -= bytes as i64;
        if worker.headroom >= 0 {
            return Ok(());
        }
        let limit = self.limit();
        for _ in 0..HEAP_ROUNDS {
            let used = self.bytes();
            let free = limit.saturating_sub(used);
            if free >= bytes as u64 {
                // Other workers draw on the same rest: each takes a small part of it before it looks again.
                worker.headroom = (free - bytes as u64) as i64 / 64;
                return Ok(());
            }
            if !self.evict || bytes as u64 > limit {
                break;
            }
            if self.evict_bytes(worker, bytes as u64 + used.saturating_sub(limit))? == 0 {
                break;
            }
        }
        worker.headroom = 0;
        Err(Failure::NoMemory)
    }

    /// Runs `attempt` again and again while the heap is full and evicting helps.
    pub fn with_room<T>(
        &self,
        worker: &mut Worker,
        bytes: usize,
        mut attempt: impl FnMut(&mut Worker) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.make_room(worker, bytes)?;
        for round in 0.. {
            match attempt(worker) {
                Err(Failure::NoMemory) if self.evict && round < HEAP_ROUNDS => {
                    // What is freed must hold the new block in one piece: ask for more each time.
                    if self.evict_bytes(worker, (bytes as u64) << round)? == 0 {
                        return Err(Failure::NoMemory);
                    }
                }
                result => return result,
            }
        }
        unreachable!("the loop returns")
    }

    /// Evicts about `bytes`; how many it were. Fails only where the log has no space: what was evicted stays so, which no client sees.
    fn evict_bytes(&self, worker: &mut Worker, bytes: u64) -> Result<u64, Failure> {
        let mut freed = 0;
        let sample = (SAMPLE_MIN + bytes as usize / 1024).min(SAMPLE_MAX);
        for _ in 0..VICTIMS_MAX {
            if freed >= bytes {
                break;
            }
            let Some(victim) = self.pick_victim(worker, sample) else { break };
            match self.drop_victim(worker, victim) {
                Ok(size) => freed += size,
                Err(Failure::NoLogSpace) => return Err(Failure::NoLogSpace),
                Err(_) => break,
            }
        }
        Ok(freed)
    }

    fn pick_victim(&self, worker: &mut Worker, sample: usize) -> Option<Victim> {
        let (start, now) = (worker.random(), worker.now);
        let (mut seen, mut best): (usize, Option<Victim>) = (0, None);
        let lines = self.shape().lines();
        for step in 0..lines.min(LINES_MAX) {
            let index = start.wrapping_add(step) & (lines - 1);
            if self.table.looks_empty(index) {
                continue;
            }
            let Some(stripe) = self.try_lock(index) else { continue };
            let consider = |item: Item| {
                let dead = self.life(&item, now) != Life::Live;
                let age = (item.accessed(), item.cas());
                let candidate = Victim { hash: item.hash(), address: item.address(), age, dead };
                if dead || best.is_none_or(|best| age < best.age) {
                    best = Some(candidate);
                }
                seen += 1;
                !dead && seen < sample
            };
            stripe.for_each(index, consider);
            if seen >= sample || best.is_some_and(|b| b.dead) {
                break;
            }
        }
        best
    }

    /// Drops a victim if it is still there; the bytes freed. (If its block holds another item by now, that one goes: a random
    /// victim instead of an old one, which does no harm.)
    fn drop_victim(&self, worker: &mut Worker, victim: Victim) -> Result<u64, Failure> {
        let stripe = self.lock(victim.hash);
        let Some(found) = stripe.find_at(victim.address) else { return Ok(0) };
        let item = found.item;
        let (room, fetched, expiring) = (item.room() as u64, item.fetched(), item.expires() != 0);
        // No client asked for an eviction: it must not make one's `durable` wait.
        let tx = worker.begin_upkeep(0)?;
        stripe.remove(&tx, found);
        tx.commit();
        drop(stripe);
        let counters = &worker.counters;
        if victim.dead {
            counters.inc(Counter::Reclaimed);
            counters.add(Counter::ExpiredUnfetched, u64::from(!fetched));
        } else {
            counters.inc(Counter::Evictions);
            counters.add(Counter::EvictedUnfetched, u64::from(!fetched));
            counters.add(Counter::EvictedExpiring, u64::from(expiring));
        }
        Ok(room)
    }

    /// Calls `each` with live items, line by line, until it says `false` or all lines were seen.
    pub fn visit(&self, now: u32, mut each: impl FnMut(&Item) -> bool) {
        let mut more = true;
        for index in 0..self.shape().lines() {
            if self.table.looks_empty(index) {
                continue;
            }
            let stripe = self.lock(index);
            stripe.for_each(index, |item| {
                more &= self.life(&item, now) != Life::Live || each(&item);
                more
            });
            if !more {
                return;
            }
        }
    }

    /// Removes the expired and flushed items of lines `stripe`, `stripe + 1024`, ... from `from` on; `None` when all are done,
    /// else where to go on. At most `most` lines, one transaction.
    pub(super) fn crawl_stripe(&self, worker: &mut Worker, stripe: usize, from: u64, most: u64) -> Result<Option<u64>, Failure> {
        let mut locked = self.lock(stripe as u64);
        let lines = locked.shape.lines();
        let (mut dead, mut line) = (Vec::new(), from);
        let end = (from + most).min(lines / STRIPES as u64);
        while line < end {
            let note = |item: Item| {
                if self.life(&item, worker.now) != Life::Live {
                    dead.push((item.hash(), item.address()));
                }
                true
            };
            locked.for_each(stripe as u64 + line * STRIPES as u64, note);
            line += 1;
        }
        if !dead.is_empty() {
            let reserve = dead.len() * 256 + 4096;
            let counters = Arc::clone(&worker.counters);
            let tx = worker.begin_upkeep(reserve)?;
            for (hash, address) in dead {
                locked.aim(hash);
                if let Some(found) = locked.find_at(address) {
                    counters.add(Counter::ExpiredUnfetched, u64::from(!found.item.fetched()));
                    counters.inc(Counter::CrawlerReclaimed);
                    locked.remove(&tx, found);
                }
            }
            tx.commit();
        }
        Ok((line < lines / STRIPES as u64).then_some(line))
    }
}
