//! The upkeep thread: grows the table, removes expired items, keeps CAS ids in reserve, carries out delayed flushes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use towa_epoch::Space;

use super::root::CAS_RESERVE;
use super::table::{BITS_MAX, BUCKETS, SEGMENT_BLOCK, STRIPES};
use super::{Failure, Store, Worker};
use crate::clock::Clock;
use crate::error::{Result, io};

/// How often the thread looks around when nobody wakes it.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it can be woken.
const LOOK_MOST_OFTEN: Duration = Duration::from_millis(10);
/// How often expired items are searched for, and how often where there is no room but theirs.
const CRAWL_EVERY: Duration = Duration::from_secs(60);
const CRAWL_EVERY_WHEN_FULL: Duration = Duration::from_secs(10);
/// A search rests for so many times as long as it took, at least: many items, or flushes, leave the processor to the clients.
const CRAWL_RESTS: u32 = 8;
/// Lines worked on under one lock.
const LINES_AT_ONCE: u64 = 16;
/// Lines between two naps, so that growing and crawling leave the processor and the log to the clients.
const LINES_PER_NAP: u64 = 512;
/// Windows cleared between two naps.
const WINDOWS_PER_NAP: usize = 4;
const NAP: Duration = Duration::from_millis(1);
/// How long it waits when the log has no space: without a lock, which requests would wait for.
const LOG_NAP: Duration = Duration::from_millis(5);
/// Calls to shrink between two that give memory back.
const SHRINKS_PER_RELEASE: u32 = 16;
/// By which part of the bound there may be more memory than that before some is given back.
const RELEASE_SHARE: u64 = 32;
/// After a failure to grow.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether chunks have so much more memory than `-m` allows that some is given back.
pub(super) fn has_too_much_memory(space: &Space) -> bool {
    space.resident > space.bound.saturating_add(space.bound / RELEASE_SHARE)
}

/// Wakes the upkeep thread.
#[derive(Default)]
pub struct Wake {
    wanted: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Wake {
    /// There is work; cheap when it is known already.
    pub fn now(&self) {
        if !self.wanted.load(Ordering::Relaxed) && !self.wanted.swap(true, Ordering::Relaxed) {
            let _guard = self.lock.lock();
            self.changed.notify_one();
        }
    }

    fn wait(&self, timeout: Duration) {
        let mut guard = self.lock.lock();
        if !self.wanted.swap(false, Ordering::Relaxed) {
            self.changed.wait_for(&mut guard, timeout);
            self.wanted.store(false, Ordering::Relaxed);
        }
    }
}

/// The running thread.
pub struct Upkeep {
    store: Arc<Store>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Upkeep {
    /// Starts it. `keeps_memory`: memory that the heap has and does not use yet was taken on purpose.
    pub fn start(store: Arc<Store>, mut worker: Worker, clock: Arc<Clock>, keeps_memory: bool) -> Result<Upkeep> {
        // What the table takes comes on top of `-m`.
        worker.thread.set_unbounded(true);
        let stop = Arc::new(AtomicBool::new(false));
        let flushed_cas = store.oldest_cas.load(Ordering::Relaxed);
        let mut keeper = Keeper {
            store: Arc::clone(&store),
            worker,
            clock,
            stop: Arc::clone(&stop),
            keeps_memory,
            reserve: None,
            crawled: Instant::now(),
            crawl_took: Duration::ZERO,
            crawled_cas: 0,
            flushed_cas,
            grow_after: Instant::now(),
            worked: 0,
        };
        let thread = std::thread::Builder::new()
            .name("towa-upkeep".into())
            .spawn(move || keeper.run())
            .map_err(io("start the upkeep thread"))?;
        Ok(Upkeep { store, stop, thread: Some(thread) })
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.store.wake.now();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the upkeep thread panicked; expired items stay and the table no longer grows");
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Keeper {
    store: Arc<Store>,
    worker: Worker,
    clock: Arc<Clock>,
    stop: Arc<AtomicBool>,
    keeps_memory: bool,
    /// New limit of the CAS ids, and the epoch after which it counts.
    reserve: Option<(u64, u64)>,
    /// When the last search for expired items ended, and how long it took.
    crawled: Instant,
    crawl_took: Duration,
    /// What was flushed when a search last began; 0: none has.
    crawled_cas: u64,
    /// What was flushed before the start: an earlier run has probably removed it.
    flushed_cas: u64,
    grow_after: Instant,
    /// Lines since the last nap.
    worked: u64,
}

impl Keeper {
    fn run(&mut self) {
        let mut told = false;
        if !self.keeps_memory {
            // What an earlier run has taken ahead, beyond all that is in use.
            self.store.pool.release_memory(0);
        }
        while !self.stopping() {
            self.worker.now = self.clock.now();
            if let Err(failure) = self.round()
                && !std::mem::replace(&mut told, true)
            {
                log::error!("upkeep of the store fails, reads go on: {failure:?}");
            }
            std::thread::sleep(LOOK_MOST_OFTEN);
            self.store.wake.wait(LOOK_EVERY);
        }
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn round(&mut self) -> std::result::Result<(), Failure> {
        self.store.tick(&mut self.worker)?;
        self.store.fit_bound();
        self.shrink()?;
        self.release_memory();
        self.keep_cas_ids()?;
        self.grow()?;
        self.crawl()
    }

    /// Gives up chunks beyond the bound, if there are any.
    fn shrink(&mut self) -> std::result::Result<(), Failure> {
        let mut calls = 0;
        while !self.stopping() {
            match self.store.shrink(&mut self.worker, WINDOWS_PER_NAP) {
                Ok(true) | Err(Failure::NoLogSpace) => std::thread::sleep(NAP),
                done => return done.map(|_| ()),
            }
            calls += 1;
            if calls % SHRINKS_PER_RELEASE == 0 {
                self.release_memory();
            }
        }
        Ok(())
    }

    /// Gives back the memory of chunks that `-m` does not allow any more. Each call that of chunks which were free at the call before, and
    /// durably so.
    fn release_memory(&self) {
        let space = self.store.pool.space();
        if has_too_much_memory(&space) {
            self.store.pool.release_memory(space.resident - space.bound);
        }
    }

    /// Reserves more CAS ids when half are used; they count once the reservation is durable, so that no crash can bring an id back.
    fn keep_cas_ids(&mut self) -> std::result::Result<(), Failure> {
        let store = &self.store;
        let left = store.cas_limit.load(Ordering::Relaxed).saturating_sub(store.next_cas.load(Ordering::Relaxed));
        if left > CAS_RESERVE / 2 {
            return Ok(());
        }
        let (limit, epoch) = match self.reserve {
            Some(reserve) => reserve,
            None => {
                let (first, epoch) =
                    store.roots.reserve_cas(&mut self.worker.thread).map_err(|e| Failure::Engine(e.to_string()))?;
                (first + CAS_RESERVE, epoch)
            }
        };
        self.reserve = Some((limit, epoch));
        if store.pool.wait_durable(epoch, Duration::from_millis(200))? {
            store.cas_limit.store(limit, Ordering::Relaxed);
            self.reserve = None;
        }
        Ok(())
    }

    fn grow(&mut self) -> std::result::Result<(), Failure> {
        let shape = self.store.shape();
        if shape.splitting {
            return self.split();
        }
        let crowded = self.store.items() > shape.lines() * BUCKETS as u64;
        if !crowded || shape.bits >= BITS_MAX || Instant::now() < self.grow_after {
            return Ok(());
        }
        match self.store.widen(&mut self.worker.thread, &self.stop) {
            Ok(true) => self.split(),
            Ok(false) => Ok(()),
            Err(error) => {
                // Longer chains are slower, nothing worse; what was provided stays for the next attempt.
                self.grow_after = Instant::now() + PATIENCE;
                match error {
                    // Full to the heap's end: a window that items give up makes room for a segment.
                    towa_epoch::Error::OutOfSpace { .. } => {
                        if self.store.evicts() && self.make_room_for_segment() {
                            self.grow_after = Instant::now();
                        }
                        Ok(())
                    }
                    other => Err(Failure::Engine(other.to_string())),
                }
            }
        }
    }

    /// Whether room for another segment of the table was made.
    fn make_room_for_segment(&mut self) -> bool {
        self.worker.failed = 0;
        while !self.stopping() {
            match self.store.make_room(&mut self.worker, SEGMENT_BLOCK) {
                Err(Failure::NoLogSpace) => std::thread::sleep(NAP),
                made => return matches!(made, Ok(true)),
            }
        }
        false
    }

    fn split(&mut self) -> std::result::Result<(), Failure> {
        if self.each_stripe(Store::split_stripe)? {
            self.store.end_split(&mut self.worker.thread)?;
        }
        Ok(())
    }

    /// Calls `step` with each stripe, the line to go on from and the lines to work on, until it has no other; `false` when
    /// asked to stop before that. Where the log has no space, a step is tried again.
    fn each_stripe(
        &mut self,
        step: impl Fn(&Store, &mut Worker, usize, u64, u64) -> std::result::Result<Option<u64>, Failure>,
    ) -> std::result::Result<bool, Failure> {
        for stripe in 0..STRIPES {
            let mut next = Some(0);
            while let Some(from) = next {
                if self.stopping() {
                    return Ok(false);
                }
                self.worker.now = self.clock.now();
                match step(&self.store, &mut self.worker, stripe, from, LINES_AT_ONCE) {
                    Err(Failure::NoLogSpace) => std::thread::sleep(LOG_NAP),
                    done => {
                        next = done?;
                        if nap(&mut self.worked, LINES_AT_ONCE) {
                            // Requests may wait for that.
                            self.store.fit_bound();
                            self.release_memory();
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    /// Removes what has expired, or was flushed: now if that was asked for, or if there was a flush, else now and then.
    fn crawl(&mut self) -> std::result::Result<(), Failure> {
        let oldest = self.store.oldest_cas.load(Ordering::Relaxed);
        let asked = self.store.crawl.swap(false, Ordering::Relaxed);
        let is_due = asked || self.store.crawler_enabled() && self.is_crawl_due(oldest);
        if !is_due {
            return Ok(());
        }
        let begin = Instant::now();
        let done = self.each_stripe(Store::crawl_stripe);
        if matches!(done, Ok(true)) {
            self.crawled_cas = oldest;
            self.crawl_took = begin.elapsed();
        } else if asked {
            self.store.crawl.store(true, Ordering::Relaxed);
        }
        self.crawled = Instant::now();
        done.map(|_| ())
    }

    fn is_crawl_due(&self, oldest: u64) -> bool {
        let rested = self.crawled.elapsed();
        if rested < self.crawl_took * CRAWL_RESTS {
            return false;
        }
        if oldest > self.crawled_cas.max(self.flushed_cas) {
            return true;
        }
        let space = self.store.pool.space();
        let is_full = space.in_use.saturating_add(space.bound / RELEASE_SHARE) >= space.bound;
        let worth_it = self.store.expiring() > 0 || oldest > self.crawled_cas;
        worth_it && rested >= if is_full { CRAWL_EVERY_WHEN_FULL } else { CRAWL_EVERY }
    }
}

/// After every so many lines; whether it did.
fn nap(worked: &mut u64, lines: u64) -> bool {
    *worked += lines;
    let is_due = *worked >= LINES_PER_NAP;
    if is_due {
        *worked = 0;
        std::thread::sleep(NAP);
    }
    is_due
}
