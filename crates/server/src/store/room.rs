//! Making room: the `-m` limit, the full heap, and what to evict.
//!
//! `-m` bounds the chunks that items take, free blocks in them included, as memcached's bounds its slab pages; the
//! table comes on top. While there are chunks below the bound, nothing is evicted. After that a value that finds no
//! free block of its class takes the place
//!
//! - of the items of its class that were not accessed for longest, of some that were looked at: one victim makes room
//!   for one value. (Reads, and values stored anew under the key, count: what was used again is likely to be used again.)
//! - or of a whole *window*: neighbouring chunks, cleared of all that lives in them (`evict.rs`), where its class has
//!   nothing to give up, or where what it would give up was accessed more recently than what lives in the window. That
//!   is how memory moves between sizes.
//!
//! Eviction is sampled LRU: no list to maintain means that a read costs no lock but its own stripe's, and that nothing
//! about recency has to be durable. Samples are read without a lock, and may be wrong about everything: `evict` looks
//! again.
//!
//! Windows are compared now and then only ([`Worker::rested`]), and clearing them takes at most a tenth of a worker's
//! time: a request may always be served by its class, once that has anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use towa_epoch::{Pool, Survey};

use super::evict::{Candidate, SLICE};
use super::item::Item;
use super::table::{SEGMENT_BLOCK, STRIPES};
use super::{Failure, Life, Store, Worker, stripe_of};
use crate::counters::Counter;

/// Chunks are not bounded below this, however small `-m` is: some kinds of slabs take a mebibyte. (memcached gives each
/// class a page in any case.)
pub const LEAST: u64 = 4 << 20;
/// Rounds of eviction for one request. One is enough but for accidents.
const ROUNDS: usize = 8;
/// Slabs of the class that are looked at for victims, and blocks in each.
const SLABS: usize = 10;
const PER_SLAB: usize = 8;
/// Victims at a time: of as many as make up these bytes, sixteen at most.
const BATCH_BYTES: usize = 8 << 10;
const BATCH_MAX: usize = 16;
/// Windows compared when one is wanted.
const WINDOWS: usize = 12;
/// Large objects compared as victims, and one more for each of these bytes: a large value costs more to lose, and there are fewer.
const LARGE: usize = 12;
const LARGE_BYTES: usize = 8 << 10;
const LARGE_MAX: usize = 256;
/// Of these the oldest ones that are asked whether they are items.
const ASKED: usize = 8;
/// Windows tried before a request is refused.
const TRIES: usize = 6;
/// Windows that may turn out not to be clearable for one request, in all its turns.
const FAILED_MAX: usize = 12;
/// Between two comparisons of a worker that is not out of everything.
pub(super) const REST: Duration = Duration::from_millis(10);
/// A window must be better by this factor than the class's own victims.
const BETTER: f64 = 1.25;

/// A window that might be cleared.
struct Choice {
    survey: Survey,
    /// What is lost with it, per byte wanted: see [`Candidate::loss`].
    loss: f64,
}

impl Store {
    /// Runs `attempt`, which stores about `bytes`, again and again while there is no room and evicting helps. The item of the key with
    /// the hash `kept` stays: `attempt` builds on it, as `append` does.
    pub fn with_room<T>(
        &self,
        worker: &mut Worker,
        bytes: usize,
        kept: Option<u64>,
        attempt: impl FnMut(&mut Worker) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        worker.kept = kept;
        // A panic may have left it so.
        worker.thread.set_unbounded(false);
        let result = if self.could_hold(bytes) { self.make_room_for(worker, bytes, attempt) } else { Err(Failure::NoMemory) };
        if !matches!(result, Err(Failure::NoLogSpace)) {
            worker.failed = 0;
            self.end_wait(worker);
        }
        result
    }

    fn make_room_for<T>(
        &self,
        worker: &mut Worker,
        bytes: usize,
        mut attempt: impl FnMut(&mut Worker) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        worker.thread.set_lean(self.evict);
        // What is beyond the limit is not tried; the block that it lacks is about as large as what it stores.
        let mut attempt = |worker: &mut Worker, store: &Store| match store.is_over(bytes) {
            true => Err((Failure::NoMemory, bytes)),
            false => attempt(worker).map_err(|failure| (failure, worker.thread.refused())),
        };
        let mut result = match &worker.client.wait {
            // It has no chunks before it has looked.
            Some(wait) => Err((Failure::NoMemory, wait.wanted)),
            None => attempt(worker, self),
        };
        for _ in 0..ROUNDS {
            let Err((Failure::NoMemory, wanted)) = result else { break };
            if !self.evict {
                break;
            }
            if worker.client.wait.is_some() || !self.make_room(worker, wanted)? {
                if self.reserve(worker, wanted)? {
                    worker.thread.set_unbounded(true);
                    result = attempt(worker, self);
                    worker.thread.set_unbounded(false);
                }
                break;
            }
            result = attempt(worker, self);
            worker.thread.release_cleared();
        }
        if self.evict && matches!(result, Err((Failure::NoMemory, _))) {
            // Before it is refused: free blocks may lie where they are seldom looked for.
            worker.thread.set_lean(false);
            result = attempt(worker, self);
        }
        result.map_err(|(failure, _)| failure)
    }

    /// Evicts something so that a block of `wanted` bytes can be had; `false` if nothing could be done.
    pub(super) fn make_room(&self, worker: &mut Worker, wanted: usize) -> Result<bool, Failure> {
        worker.drop_forgotten_window();
        if self.is_over(wanted) {
            return self.evict_until_within(worker, wanted);
        }
        // The window of another connection's request may hold the item that this one builds on.
        if worker.clearing.as_ref().is_some_and(|work| self.holds_kept(worker, work.range())) {
            worker.give_window_back();
        }
        // The window of another connection's request, for a value of another size, is left to that.
        if worker.clearing.as_ref().is_some_and(|work| work.is_for(wanted)) && self.go_on(worker)? {
            return Ok(true);
        }
        if !self.could_hold(wanted) {
            return Ok(false);
        }
        if Pool::is_large(wanted) { self.room_for_large(worker, wanted) } else { self.room_for_small(worker, wanted) }
    }

    fn room_for_small(&self, worker: &mut Worker, wanted: usize) -> Result<bool, Failure> {
        let count = (BATCH_BYTES / wanted.max(1)).clamp(1, BATCH_MAX);
        let victims = self.class_victims(worker, wanted, count);
        if !victims.is_empty() {
            if worker.clearing.is_none() && worker.has_rested() {
                let first = &victims[..count.min(victims.len())];
                let loss = first.iter().map(Candidate::loss).sum::<f64>() / first.len() as f64;
                let choice = self.best_window(worker, wanted).filter(|choice| choice.loss * BETTER < loss);
                if let Some(choice) = choice
                    && self.clear(worker, &choice.survey, wanted)?
                {
                    return Ok(true);
                }
            }
            // What looks oldest may be no item.
            let mut victims = victims;
            while !victims.is_empty() {
                let rest = victims.split_off(count.min(victims.len()));
                if self.evict(worker, std::mem::replace(&mut victims, rest))? > 0 {
                    return Ok(true);
                }
            }
        }
        self.any_window(worker, wanted)
    }

    fn room_for_large(&self, worker: &mut Worker, wanted: usize) -> Result<bool, Failure> {
        if worker.clearing.is_some() {
            return self.any_window(worker, wanted);
        }
        let mut choice = self.oldest_large(worker, wanted);
        let compares = choice.is_some() && worker.has_rested();
        if let (Some(own), true) = (&choice, compares) {
            let loss = own.loss;
            let other = self.best_window(worker, wanted).filter(|other| other.loss * BETTER < loss);
            choice = other.or(choice);
        }
        let cleared = match choice {
            Some(choice) => self.clear(worker, &choice.survey, wanted)?,
            None => false,
        };
        if cleared { Ok(true) } else { self.any_window(worker, wanted) }
    }

    /// Clears the best window for a value of `wanted` bytes, or the next best one.
    fn any_window(&self, worker: &mut Worker, wanted: usize) -> Result<bool, Failure> {
        self.clear_one(worker, wanted, Self::best_window)
    }

    /// Clears the best of the windows in which any chunk is in use.
    pub(super) fn used_window(&self, worker: &mut Worker) -> Result<bool, Failure> {
        self.clear_one(worker, 1, Self::best_used_window)
    }

    /// Clears the window that `best` finds, or the next one, unless there is one to go on with.
    fn clear_one(
        &self,
        worker: &mut Worker,
        wanted: usize,
        best: impl Fn(&Self, &mut Worker, usize) -> Option<Choice>,
    ) -> Result<bool, Failure> {
        if worker.clearing.is_some() && self.go_on(worker)? {
            return Ok(true);
        }
        for _ in 0..TRIES {
            if worker.failed >= FAILED_MAX {
                break;
            }
            if let Some(choice) = best(self, worker, wanted)
                && self.clear(worker, &choice.survey, wanted)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Evicts items, wherever they lie, until `bytes` more are within `-m`, where items are counted and not chunks.
    fn evict_until_within(&self, worker: &mut Worker, bytes: usize) -> Result<bool, Failure> {
        let until = Instant::now() + SLICE;
        while self.is_over(bytes) {
            let victims = self.victims_anywhere(worker);
            if victims.is_empty() {
                return Ok(false);
            }
            self.evict(worker, victims)?;
            if Instant::now() >= until {
                return Err(worker.pause());
            }
        }
        Ok(true)
    }

    /// Of some items, from a random line of the table on, those that were not accessed for longest.
    fn victims_anywhere(&self, worker: &mut Worker) -> Vec<Candidate> {
        let lines = self.shape().lines();
        let (from, mut found) = (worker.random() % lines, Vec::new());
        for line in (from..lines).chain(0..from) {
            if self.table.looks_empty(line) {
                continue;
            }
            self.lock(line).for_each(line, |item| {
                self.consider(worker, item.address() as usize, &mut found);
                true
            });
            if found.len() >= SLABS * PER_SLAB {
                break;
            }
        }
        found.sort_unstable_by(Candidate::order);
        found.truncate(found.len().div_ceil(SLABS).max(1));
        found
    }

    /// Some items whose blocks would do for one of `wanted` bytes, those first that were not accessed for longest: enough to find `count`.
    fn class_victims(&self, worker: &mut Worker, wanted: usize, count: usize) -> Vec<Candidate> {
        let mut found = Vec::with_capacity(SLABS * PER_SLAB);
        for _ in 0..SLABS.min(2 + count) {
            let random = worker.random();
            self.pool.sample_class(wanted, random, PER_SLAB, |address| self.consider(worker, address, &mut found));
        }
        found.sort_unstable_by(Candidate::order);
        found.dedup_by_key(|candidate| candidate.address);
        if Pool::is_same_kind(wanted, SEGMENT_BLOCK) {
            // The table's segments are blocks of this kind, and look dead or older than any item.
            found.retain(|candidate| !self.roots.stand_in((candidate.address as usize, candidate.address as usize + 1)));
        }
        found
    }

    /// The large item that was not accessed for longest, of some whose chunks would do for `wanted` bytes.
    fn oldest_large(&self, worker: &mut Worker, wanted: usize) -> Option<Choice> {
        let (random, most) = (worker.random(), (LARGE + wanted / LARGE_BYTES).min(LARGE_MAX));
        let mut found = Vec::with_capacity(most);
        self.pool.sample_large(wanted, random, most, |address| self.consider(worker, address, &mut found));
        found.sort_unstable_by(Candidate::order);
        let oldest = found.iter().take(ASKED).find(|candidate| self.is_item(candidate))?;
        let survey = self.pool.survey_large(oldest.address as usize, wanted)?;
        if self.holds_kept(worker, survey.range()) {
            return None;
        }
        let loss = self.loss_of(&survey, worker, wanted);
        Some(Choice { survey, loss })
    }

    /// The window with the least loss of some.
    fn best_window(&self, worker: &mut Worker, wanted: usize) -> Option<Choice> {
        let left = self.pool.chunk_bytes_left();
        self.best_of_windows(worker, wanted, |survey, loss| {
            // Chunks that are free, but beyond the bound: only if there is nothing else.
            let is_beyond = Pool::chunk_bytes_for(wanted) > survey.used_bytes() + left;
            Some(if is_beyond { loss + 1e9 } else { loss })
        })
    }

    /// The window with the least loss for each byte that comes free, of some of which any is in use.
    fn best_used_window(&self, worker: &mut Worker, wanted: usize) -> Option<Choice> {
        self.best_of_windows(worker, wanted, |survey, loss| (survey.used_bytes() > 0).then(|| loss / survey.used_bytes() as f64))
    }

    /// The window of some to which `rank`, given what is lost with it, gives the lowest place.
    fn best_of_windows(&self, worker: &mut Worker, wanted: usize, rank: impl Fn(&Survey, f64) -> Option<f64>) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for _ in 0..WINDOWS {
            let random = worker.random();
            let Some(survey) = self.pool.survey(random, wanted) else { continue };
            let Some(loss) = rank(&survey, self.loss_of(&survey, worker, wanted)) else { continue };
            // The look at the table's segments is the longest: last.
            let is_better = best.as_ref().is_none_or(|best| loss < best.loss);
            if is_better && !self.holds_kept(worker, survey.range()) && !self.roots.stand_in(survey.range()) {
                best = Some(Choice { survey, loss });
            }
        }
        best
    }

    /// Whether the item that the request at hand builds on lies in a range of addresses.
    fn holds_kept(&self, worker: &Worker, (from, end): (usize, usize)) -> bool {
        worker.kept.is_some_and(|hash| self.lock(hash).find_in(&(from as u64..end as u64)).is_some())
    }

    fn loss_of(&self, survey: &Survey, worker: &mut Worker, wanted: usize) -> f64 {
        let (random, now) = (worker.random(), worker.now);
        let (mut seen, mut sum) = (0u32, 0.0);
        self.pool.sample(survey, random, PER_SLAB, |address| {
            seen += 1;
            sum += self.candidate(address, now).loss();
        });
        let each = if seen > 0 { sum / f64::from(seen) } else { 0.0 };
        each * survey.live_bytes() as f64 / Pool::chunk_bytes_for(wanted) as f64
    }

    /// Bytes of chunks that may be in use: as many as `-m` says, and those that the table takes: its segments, the root, which is of their
    /// size, and a slab for each of its lists.
    ///
    /// Where other programs have objects in the pool, how many chunks theirs take is not known: then `-m` bounds the bytes of items.
    pub(super) fn chunk_bytes_allowed(&self) -> u64 {
        let shared = super::is_shared(&self.pool);
        self.shares_pool.store(shared, Ordering::Relaxed);
        let lists: u64 = self.roots.lists().map(|bytes| Pool::chunk_bytes_of(1, bytes)).sum();
        let table = Pool::chunk_bytes_of(self.table.segments() + 1, SEGMENT_BLOCK) + lists;
        if shared { u64::MAX } else { self.limit().max(LEAST).saturating_add(table) }
    }

    /// Whether other programs have objects in the pool.
    pub(super) fn shares_pool(&self) -> bool {
        self.shares_pool.load(Ordering::Relaxed)
    }

    /// Whether `bytes` more of items would be too many, where items are counted and not chunks.
    fn is_over(&self, bytes: usize) -> bool {
        self.shares_pool() && self.bytes() + bytes as u64 > self.limit()
    }

    /// Whether a value of `bytes` has room once all else is gone.
    pub(super) fn could_hold(&self, bytes: usize) -> bool {
        bytes as u64 <= self.limit() && Pool::chunk_bytes_for(bytes) <= self.limit().max(LEAST)
    }

    /// Gives up chunks while more are in use than there may be: `-m` was lowered, chunks are reserved, or windows have taken free
    /// ones. At most `most` windows; whether there is more to do.
    pub(super) fn shrink(&self, worker: &mut Worker, most: usize) -> Result<bool, Failure> {
        worker.failed = 0;
        if self.evict && self.is_over(0) {
            return self.evict_until_within(worker, 0);
        }
        for _ in 0..most {
            if worker.clearing.is_some() {
                self.go_on(worker)?;
                worker.thread.release_cleared();
            }
            // Other programs may take chunks, too: the items do not all go for them.
            let has_many = self.bytes() > self.limit() / 2;
            if !self.evict || !self.is_beyond_bound() || !has_many || !self.used_window(worker)? {
                return Ok(false);
            }
            worker.thread.release_cleared();
        }
        Ok(true)
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

    /// Removes the expired, flushed and lost items of lines `stripe`, `stripe + 1024`, ... from `from` on; `None` when all
    /// are done, else where to go on. At most `most` lines, one transaction.
    pub(super) fn crawl_stripe(&self, worker: &mut Worker, stripe: usize, from: u64, most: u64) -> Result<Option<u64>, Failure> {
        let mut locked = self.lock(stripe as u64);
        let lines = locked.shape.lines();
        let (mut dead, mut damaged, mut line) = (Vec::new(), None, from);
        let end = (from + most).min(lines / STRIPES as u64);
        while line < end {
            let note = |item: Item| {
                match self.life(&item, worker.now) {
                    Life::Live => {}
                    // No link of this stripe leads to an item of another but in a damaged pool.
                    _ if stripe_of(item.hash()) != stripe => damaged = damaged.or(Some(item.address())),
                    life => dead.push((item.hash(), item.address(), life)),
                }
                true
            };
            locked.for_each(stripe as u64 + line * STRIPES as u64, note);
            line += 1;
        }
        if let Some(address) = damaged {
            log::error!(
                "the item at {address:#x} is damaged, and is left alone; stop the server, and let `towa verify` look at the pool"
            );
        }
        if !dead.is_empty() {
            // In a damaged pool a circle of links shows its items again and again.
            dead.sort_unstable_by_key(|&(_, address, _)| address);
            dead.dedup_by_key(|&mut (_, address, _)| address);
            let reserve = dead.len() * 256 + 4096;
            let counters = Arc::clone(&worker.counters);
            let tx = worker.begin_upkeep(reserve)?;
            for (hash, address, life) in dead {
                locked.aim(hash);
                let Some(found) = locked.find_at(address) else { continue };
                counters.add(Counter::ExpiredUnfetched, u64::from(!found.item.fetched() && life != Life::Lost));
                counters.inc(Counter::CrawlerReclaimed);
                locked.give_up(&tx, found, life);
            }
            tx.commit();
        }
        Ok((line < lines / STRIPES as u64).then_some(line))
    }
}
