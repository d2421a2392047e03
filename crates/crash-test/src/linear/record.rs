//! Runs threads on a map and records what each asked and was answered.
//!
//! What must hold:
//! - the clock is one counter that every call and return takes a number of: an operation that got its number before another was
//!   called did happen before it, on any machine, whatever its clocks do;
//! - every value is written once in a run, so that an answer tells whose write it saw;
//! - after the threads are gone one scan each way and a look-up of every key end the history: a change lost last is seen, too.

use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_tree::{Direction, OrderedMap, Result, Session};

use super::{Answer, Call, End, Event, History, Scan};

/// Keys that the driver can make: `u64` and byte strings.
pub trait Key: Ord + Sync + ToOwned<Owned: Ord + Clone + Debug + Send + Sync + Borrow<Self>> {
    /// The `n`th key of a run; ascending with `n`.
    fn nth(n: u64) -> Self::Owned;
}

impl Key for u64 {
    fn nth(n: u64) -> u64 {
        n
    }
}

impl Key for [u8] {
    /// Of 8 to 107 bytes, so that some lie in one line and some do not.
    fn nth(n: u64) -> Vec<u8> {
        let mut key = n.to_be_bytes().to_vec();
        key.resize(8 + (n as usize * 37) % 100, b'-');
        key
    }
}

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Threads, at most 64; more than there are cores get in each other's way best.
    pub threads: usize,
    /// Operations of each.
    pub ops: usize,
    /// Hot keys: half of the operations go to them.
    pub keys: u64,
    /// Other keys, around the hot ones, for the other half: they make leaves split and empty under the hot keys' operations.
    pub cold: u64,
    /// One operation in so many is a scan; 0: none.
    pub scan_every: u32,
    /// Of everything random.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self { threads: 4, ops: 2000, keys: 4, cold: 200, scan_every: 20, seed: 1 }
    }
}

impl Plan {
    pub(super) fn all_keys(&self) -> u64 {
        self.keys + self.cold
    }

    fn draw(&self, rng: &mut SmallRng) -> u64 {
        let all = self.all_keys();
        if self.cold > 0 && rng.random_bool(0.5) {
            return rng.random_range(0..all);
        }
        rng.random_range(0..self.keys) * (all / self.keys)
    }
}

/// Runs `plan` on `map`, whose other content must lie outside the plan's keys or stay as it is.
///
/// # Errors
/// The first error of any operation; the history is given up.
pub fn record<K: Key + ?Sized>(map: &dyn OrderedMap<K>, plan: &Plan) -> Result<History<K::Owned>> {
    assert!(plan.threads <= 64 && plan.keys > 0, "{plan:?}");
    let mut history = History { initial: Default::default(), events: Vec::new(), scans: Vec::new() };
    collect(&mut *map.session()?, &(Bound::Unbounded, Bound::Unbounded), Direction::Forward, usize::MAX, &mut |key: &K, value| {
        history.initial.insert(key.to_owned(), value);
    })?;
    let clock = AtomicU64::new(1);
    let gate = Barrier::new(plan.threads);
    let parts: Result<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                scope.spawn({
                    let (clock, gate) = (&clock, &gate);
                    move || user(map, plan, thread, clock, gate)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    for recorder in parts? {
        history.events.extend(recorder.0);
        history.scans.extend(recorder.1);
    }
    let mut last = Recorder { session: map.session()?, clock: &clock, thread: plan.threads, events: Vec::new(), scans: Vec::new() };
    for direction in [Direction::Forward, Direction::Backward] {
        last.scan((Bound::Unbounded, Bound::Unbounded), direction, usize::MAX)?;
    }
    for n in 0..plan.all_keys() {
        last.operation(K::nth(n), Call::Get)?;
    }
    history.events.extend(last.events);
    history.scans.extend(last.scans);
    Ok(history)
}

/// [`record`], the [`check`](super::check) of what was recorded, and the map's own check: what a test of a map calls.
///
/// # Errors
/// What was wrong, with the plan, whose seed makes the same operations again (their timing is the machine's).
pub fn run<K: Key + ?Sized>(map: &dyn OrderedMap<K>, plan: &Plan) -> std::result::Result<(), String> {
    let history = record(map, plan).map_err(|e| format!("{plan:?}: {e}"))?;
    super::check(&history).map_err(|e| format!("{plan:?}: {e}"))?;
    map.check().map_err(|e| format!("{plan:?}: {e}"))
}

type Bounds<K> = (Bound<K>, Bound<K>);
type Part<K> = (Vec<Event<K>>, Vec<Scan<K>>);

/// One thread's work.
fn user<K: Key + ?Sized>(
    map: &dyn OrderedMap<K>,
    plan: &Plan,
    thread: usize,
    clock: &AtomicU64,
    gate: &Barrier,
) -> Result<Part<K::Owned>> {
    let mut rng = SmallRng::seed_from_u64(plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ thread as u64);
    let session = map.session();
    gate.wait();
    let mut me = Recorder { session: session?, clock, thread, events: Vec::new(), scans: Vec::new() };
    for n in 0..plan.ops as u64 {
        // Unique within the run, and never what an earlier run with another seed wrote.
        let value = (plan.seed & 0xff_ffff) << 40 | (thread as u64) << 32 | n;
        if plan.scan_every > 0 && rng.random_ratio(1, plan.scan_every) {
            let direction = if rng.random() { Direction::Forward } else { Direction::Backward };
            let most = if rng.random() { usize::MAX } else { rng.random_range(1..20) };
            let (from, to) = (rng.random_range(0..plan.all_keys()), rng.random_range(0..plan.all_keys()));
            let bounds = match rng.random_range(0..3) {
                0 => (Bound::Unbounded, Bound::Unbounded),
                1 => (Bound::Included(K::nth(from.min(to))), Bound::Excluded(K::nth(from.max(to)))),
                _ => (Bound::Excluded(K::nth(from.min(to))), Bound::Included(K::nth(from.max(to)))),
            };
            // An empty range between two exclusive ends of one key is a caller's mistake in std; what trees do is not asked here.
            if from != to {
                me.scan(bounds, direction, most)?;
            }
        } else {
            let call = match rng.random_range(0..10) {
                0..2 => Call::Insert(value),
                2..5 => Call::Upsert(value),
                5..8 => Call::Get,
                _ => Call::Remove,
            };
            me.operation(K::nth(plan.draw(&mut rng)), call)?;
        }
        noise(&mut rng);
    }
    Ok((me.events, me.scans))
}

/// Threads that run in step never meet in the narrow places.
fn noise(rng: &mut SmallRng) {
    match rng.random_range(0..16) {
        0 => std::thread::yield_now(),
        1..4 => (0..rng.random_range(0..200)).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

/// A session whose operations are written down.
struct Recorder<'m, K: Key + ?Sized> {
    session: Box<dyn Session<K> + 'm>,
    clock: &'m AtomicU64,
    thread: usize,
    events: Vec<Event<K::Owned>>,
    scans: Vec<Scan<K::Owned>>,
}

impl<K: Key + ?Sized> Recorder<'_, K> {
    /// The next number. What comes before a number in one thread happened before what comes after a greater one in another.
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }

    fn operation(&mut self, key: K::Owned, call: Call) -> Result<()> {
        let k: &K = key.borrow();
        let invoked = self.now();
        let answer = match call {
            Call::Insert(value) => Answer::Added(self.session.insert(k, value)?),
            Call::Upsert(value) => Answer::Value(self.session.upsert(k, value)?),
            Call::Get => Answer::Value(self.session.get(k)?),
            Call::Remove => Answer::Value(self.session.remove(k)?),
        };
        let end = End::Returned { at: self.now(), answer };
        self.events.push(Event { thread: self.thread, key, call, invoked, end });
        Ok(())
    }

    fn scan(&mut self, bounds: Bounds<K::Owned>, direction: Direction, most: usize) -> Result<()> {
        let mut entries = Vec::new();
        let invoked = self.now();
        let mut each = |key: &K, value| entries.push((key.to_owned(), value));
        let broken_off = collect(&mut *self.session, &bounds, direction, most, &mut each)?;
        let returned = self.now();
        let backward = direction == Direction::Backward;
        self.scans.push(Scan { thread: self.thread, invoked, returned, bounds, backward, entries, broken_off });
        Ok(())
    }
}

/// Scans everything, or the first `most`; whether it was broken off.
fn collect<K: Key + ?Sized>(
    session: &mut dyn Session<K>,
    bounds: &Bounds<K::Owned>,
    direction: Direction,
    most: usize,
    each: &mut dyn FnMut(&K, u64),
) -> Result<bool> {
    let mut left = most;
    let bounds = (bounds.0.as_ref().map(Borrow::borrow), bounds.1.as_ref().map(Borrow::borrow));
    session.scan(bounds, direction, &mut |key, value| {
        each(key, value);
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(left == 0)
}
