//! What the threads do with a map, and how long it takes them.
//!
//! ```text
//!   insert          n keys into the empty map          lookup           n keys that are there, uniform
//!   insert_more     n keys beside those n              lookup_zipfian   the same, scrambled Zipfian (0.99)
//!   mixed           n/2 new keys, n/2 look-ups         mixed_zipfian    n/2 upserts, n/2 look-ups, Zipfian
//!                                                      scan             100 entries each, from a random key
//! ```
//!
//! What must hold: keys are one random permutation, the same for every map of a run, and made before the clock starts; every answer
//! is checked, a wrong one ends the run; the time of what writes includes the drain: until every log is applied.

use std::ops::{Bound, ControlFlow, Range};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use towa_media::{CounterValues, Counters};
use towa_tree::{Direction, OrderedMap, Session};

use super::contenders::{Instance, Lost};
use crate::workload::{YCSB_THETA, Zipf};

/// Entries that a scan gives.
pub const SCAN_ENTRIES: usize = 100;
/// A scan is so many times as long as a look-up, about: fewer are made.
const SCAN_COST: usize = 25;

/// A part of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Into the empty map.
    Insert,
    /// Keys that are there.
    Lookup,
    /// The same, some much more often than others.
    LookupZipfian,
    /// [`SCAN_ENTRIES`] entries.
    Scan,
    /// Half upserts, half look-ups, of keys that are there.
    MixedZipfian,
    /// As many keys again.
    InsertMore,
    /// Half inserts of new keys, half look-ups of keys that are there.
    Mixed,
}

impl Phase {
    /// All of them, in the order in which a round runs them.
    pub const ALL: [Phase; 7] =
        [Phase::Insert, Phase::Lookup, Phase::LookupZipfian, Phase::Scan, Phase::MixedZipfian, Phase::InsertMore, Phase::Mixed];

    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Insert => "insert",
            Phase::Lookup => "lookup",
            Phase::LookupZipfian => "lookup_zipfian",
            Phase::Scan => "scan",
            Phase::MixedZipfian => "mixed_zipfian",
            Phase::InsertMore => "insert_more",
            Phase::Mixed => "mixed",
        }
    }

    /// Whether it changes the map.
    pub fn writes(self) -> bool {
        !matches!(self, Phase::Lookup | Phase::LookupZipfian | Phase::Scan)
    }
}

/// Bits of a value that say which key it goes with; keys lie below.
const OF_KEY: u64 = (1 << 48) - 1;

/// The `version`th value that goes with a key, so that every answer can be checked. An upsert writes another than the one before: a
/// map may well leave out a write that changes nothing.
pub fn value_of(key: u64, version: u64) -> u64 {
    (key ^ 0x5aa5_0000_0000) & OF_KEY | version << 48
}

/// Whether some version of `key` has this value.
pub fn goes_with(key: u64, value: Option<u64>) -> bool {
    value.is_some_and(|value| value & OF_KEY == value_of(key, 0))
}

/// Keys of all phases.
#[derive(Clone, Debug)]
pub struct Work {
    /// Inserted into the empty map.
    pub first: Vec<u64>,
    /// Inserted beside them.
    pub more: Vec<u64>,
    /// Inserted by `mixed`.
    pub fresh: Vec<u64>,
    /// Looked up: of `first`, uniform.
    pub uniform: Vec<u64>,
    /// Of `first`, Zipfian.
    pub zipfian: Vec<u64>,
    /// Where scans begin.
    pub scans: Vec<u64>,
}

impl Work {
    /// For `n` keys (at least 4).
    pub fn new(n: usize, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        // 0 is no key: the peer takes it for an empty place.
        let mut keys: Vec<u64> = (1..=(2 * n + n / 2) as u64).collect();
        keys.shuffle(&mut rng);
        let fresh = keys.split_off(2 * n);
        let more = keys.split_off(n);
        let uniform: Vec<u64> = (0..n).map(|_| keys[rng.random_range(0..n)]).collect();
        let zipf = Zipf::new(n as u64, YCSB_THETA);
        let zipfian = (0..n).map(|_| keys[zipf.scrambled(&mut rng) as usize]).collect();
        let scans = uniform[..n.div_ceil(SCAN_COST)].to_vec();
        Self { first: keys, more, fresh, uniform, zipfian, scans }
    }

    /// Keys in the map after all phases.
    pub fn keys(&self) -> u64 {
        (self.first.len() + self.more.len() + self.fresh.len()) as u64
    }
}

/// What a phase took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Which.
    pub phase: Phase,
    /// Operations of all threads.
    pub ops: u64,
    /// From the first operation to the end of the last, and of the drain.
    pub elapsed: Duration,
    /// What was done on the medium meanwhile, if the map uses one.
    pub used: Option<CounterValues>,
    /// Time that threads lost, if the map tells.
    pub lost: Option<Lost>,
}

impl Measured {
    /// Millions of operations per second.
    pub fn mops(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e6
    }
}

/// Runs one phase with `threads` threads. `counters` are those of the map's medium.
pub fn run(instance: &dyn Instance, counters: Option<&Counters>, work: &Work, phase: Phase, threads: usize) -> Result<Measured> {
    let (used, lost) = (counters.map(Counters::values), instance.lost());
    let (began, mut ended, ops) = on_threads(instance.map(), work, phase, threads).context(phase.name())?;
    if phase.writes() {
        instance.drain().with_context(|| format!("draining after {}", phase.name()))?;
        ended = Instant::now();
    }
    let used = counters.zip(used).map(|(counters, before)| difference(counters.values(), before));
    let lost = instance.lost().zip(lost).map(|(now, before)| now.since(before));
    Ok(Measured { phase, ops, elapsed: ended - began, used, lost })
}

fn difference(now: CounterValues, before: CounterValues) -> CounterValues {
    CounterValues {
        bytes_stored: now.bytes_stored - before.bytes_stored,
        bytes_streamed: now.bytes_streamed - before.bytes_streamed,
        write_backs: now.write_backs - before.write_backs,
        fences: now.fences - before.fences,
    }
}

/// The first start, the last end, and the number of operations.
fn on_threads(map: &dyn OrderedMap<u64>, work: &Work, phase: Phase, threads: usize) -> Result<(Instant, Instant, u64)> {
    let (gate, shared) = (Barrier::new(threads), Shared::new(work, phase, threads));
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..threads)
            .map(|_| {
                let (gate, shared) = (&gate, &shared);
                let user = move || -> Result<(Instant, Instant, u64)> {
                    let session = map.session();
                    gate.wait();
                    let mut session = session?;
                    let began = Instant::now();
                    let ops = take_part(&mut *session, work, phase, shared)?;
                    Ok((began, Instant::now(), ops))
                };
                std::thread::Builder::new().name("user".into()).spawn_scoped(scope, user)
            })
            .collect::<std::io::Result<_>>()?;
        let parts: Vec<_> = users
            .into_iter()
            .map(|user| user.join().map_err(|_| anyhow::anyhow!("a user thread panicked")).and_then(|r| r))
            .collect::<Result<_>>()?;
        let began = parts.iter().map(|p| p.0).min().context("no thread")?;
        let ended = parts.iter().map(|p| p.1).max().context("no thread")?;
        Ok((began, ended, parts.iter().map(|p| p.2).sum()))
    })
}

/// The operations of a phase, which its threads take a few at a time, as they come. Parts that are fixed beforehand would show the slowest
/// thread instead of all of them: where more threads than cores have work (a checkpointer is one of them), the others wait for it in the end.
struct Shared {
    next: AtomicUsize,
    count: usize,
    few: usize,
}

impl Shared {
    fn new(work: &Work, phase: Phase, threads: usize) -> Self {
        let count = match phase {
            Phase::Insert => work.first.len(),
            Phase::InsertMore => work.more.len(),
            Phase::Lookup => work.uniform.len(),
            Phase::LookupZipfian => work.zipfian.len(),
            Phase::Scan => work.scans.len(),
            Phase::Mixed => work.fresh.len(),
            Phase::MixedZipfian => work.zipfian.len() / 2,
        };
        Self { next: AtomicUsize::new(0), count, few: (count / threads / 64).clamp(1, 512) }
    }

    /// The next few; `None`: all are taken.
    fn take(&self) -> Option<Range<usize>> {
        let from = self.next.fetch_add(self.few, Relaxed);
        (from < self.count).then(|| from..(from + self.few).min(self.count))
    }
}

/// Does what the other threads leave of a phase; operations done.
fn take_part(session: &mut dyn Session<u64>, work: &Work, phase: Phase, shared: &Shared) -> Result<u64> {
    let mut ops = 0;
    while let Some(few) = shared.take() {
        ops += match phase {
            Phase::Insert => insert_all(session, &work.first[few]),
            Phase::InsertMore => insert_all(session, &work.more[few]),
            Phase::Lookup => look_up_all(session, &work.uniform[few]),
            Phase::LookupZipfian => look_up_all(session, &work.zipfian[few]),
            Phase::Scan => scan_all(session, &work.scans[few]),
            Phase::Mixed => mixed(session, &work.fresh[few.clone()], &work.uniform[few]),
            Phase::MixedZipfian => upsert_and_look_up(session, &work.zipfian, few),
        }?;
    }
    Ok(ops)
}

fn mixed(session: &mut dyn Session<u64>, new: &[u64], there: &[u64]) -> Result<u64> {
    for (new, there) in new.iter().zip(there) {
        insert(session, *new)?;
        look_up(session, *there)?;
    }
    Ok(2 * new.len() as u64)
}

/// Of `keys` pairs of these numbers: the first is upserted, the second looked up.
fn upsert_and_look_up(session: &mut dyn Session<u64>, keys: &[u64], pairs: Range<usize>) -> Result<u64> {
    for pair in pairs.clone() {
        // Never 0, which is what was inserted.
        let (key, version) = (keys[2 * pair], (pair as u64 + 1) % 0xffff + 1);
        let before = session.upsert(&key, value_of(key, version))?;
        ensure!(goes_with(key, before), "key {key} had the value {before:?}");
        look_up(session, keys[2 * pair + 1])?;
    }
    Ok(2 * pairs.len() as u64)
}

#[inline]
fn insert(session: &mut dyn Session<u64>, key: u64) -> Result<()> {
    ensure!(session.insert(&key, value_of(key, 0))?, "key {key} was there before it was inserted");
    Ok(())
}

#[inline]
fn look_up(session: &mut dyn Session<u64>, key: u64) -> Result<()> {
    let found = session.get(&key)?;
    ensure!(goes_with(key, found), "key {key} has the value {found:?}");
    Ok(())
}

fn insert_all(session: &mut dyn Session<u64>, keys: &[u64]) -> Result<u64> {
    keys.iter().try_for_each(|key| insert(session, *key))?;
    Ok(keys.len() as u64)
}

fn look_up_all(session: &mut dyn Session<u64>, keys: &[u64]) -> Result<u64> {
    keys.iter().try_for_each(|key| look_up(session, *key))?;
    Ok(keys.len() as u64)
}

fn scan_all(session: &mut dyn Session<u64>, keys: &[u64]) -> Result<u64> {
    for from in keys {
        let (mut last, mut count, mut wrong) = (0, 0, None);
        session.scan((Bound::Included(from), Bound::Unbounded), Direction::Forward, &mut |key, value| {
            if *key <= last || !goes_with(*key, Some(value)) {
                wrong = Some((*key, value));
            }
            last = *key;
            count += 1;
            if count == SCAN_ENTRIES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        ensure!(wrong.is_none() && count > 0, "a scan from {from} met {wrong:?} among {count} entries");
    }
    Ok(keys.len() as u64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tx::contenders::{Contender, Site};
    use crate::tx::volatile::{Ordered, Ranges, Skip};

    /// A place that nothing is made in.
    pub(crate) fn site() -> Site {
        Site { dir: "/proc/nonexistent".into(), medium: towa_media::RamMedium::anonymous(), keys: 10_000, threads: 4 }
    }

    #[test]
    fn one_seed_one_work_and_no_key_twice() {
        let (a, b, c) = (Work::new(1000, 7), Work::new(1000, 7), Work::new(1000, 8));
        assert_eq!(a.first, b.first);
        assert_eq!(a.zipfian, b.zipfian);
        assert_ne!(a.first, c.first);
        let mut all: Vec<u64> = [&a.first[..], &a.more, &a.fresh].concat();
        all.sort_unstable();
        assert_eq!(all, (1..=2500).collect::<Vec<_>>());
        assert!(a.uniform.iter().chain(&a.zipfian).all(|k| a.first.contains(k)));
    }

    #[test]
    fn every_phase_runs_on_any_number_of_threads() {
        let work = Work::new(1001, 3);
        for (contender, threads) in [(&Ordered as &dyn Contender, 1), (&Skip, 1), (&Skip, 3), (&Ranges, 3)] {
            let instance = contender.make(&site()).unwrap();
            for phase in Phase::ALL {
                let measured = run(&*instance, None, &work, phase, threads).unwrap();
                assert!(measured.ops >= 40 && measured.mops() > 0.0, "{phase:?} {measured:?}");
            }
            assert_eq!(instance.map().count().unwrap(), work.keys());
        }
    }

    #[test]
    fn upserts_change_what_is_there() {
        let work = Work::new(1000, 3);
        let instance = Ordered.make(&site()).unwrap();
        run(&*instance, None, &work, Phase::Insert, 1).unwrap();
        run(&*instance, None, &work, Phase::MixedZipfian, 1).unwrap();
        let mut session = instance.map().session().unwrap();
        let written: std::collections::BTreeSet<_> = work.zipfian.chunks_exact(2).map(|pair| pair[0]).collect();
        for key in &work.first {
            let value = session.get(key).unwrap();
            assert!(goes_with(*key, value));
            assert_eq!(value != Some(value_of(*key, 0)), written.contains(key), "key {key}");
        }
    }

    #[test]
    fn a_lost_key_ends_the_run() {
        let work = Work::new(100, 3);
        let instance = Skip.make(&site()).unwrap();
        run(&*instance, None, &work, Phase::Insert, 2).unwrap();
        instance.map().session().unwrap().remove(&work.uniform[0]).unwrap();
        let why = format!("{:#}", run(&*instance, None, &work, Phase::Lookup, 2).unwrap_err());
        assert!(why.contains("lookup") && why.contains("None"), "{why}");
        let why = format!("{:#}", run(&*instance, None, &work, Phase::Insert, 2).unwrap_err());
        assert!(why.contains("was there"), "{why}");
    }
}
