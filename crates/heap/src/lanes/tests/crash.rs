//! Crashes: whatever a crash leaves, recovery gives the fenced records, and at most the one in flight of each lane besides.
//!
//! A [`History`] of appends and fences on several lanes, with the replayer in between; its notes in the trace say what was acknowledged
//! when. Long records fill the lanes quickly, so that freed space is written again at once.

use std::collections::HashSet;

use towa_media::sim::{CrashImage, EventKind, Explorer, Trace};

use super::*;
use crate::alloc::CHUNK;

/// A note: record n was begun; a note of `FENCED + n`: it was acknowledged.
pub(super) const FENCED: u64 = 1 << 32;

/// What was done to a pool, and when.
pub(super) struct History {
    pub records: Vec<Written>,
    /// Of these: in the image or durable when the trace begins.
    pub durable: usize,
    pub medium: SimMedium,
    /// Events of creation, or opening; and of the work.
    pub opened: usize,
    pub closing: usize,
}

impl History {
    /// Creates a pool and works on it.
    pub fn begin(model: Model, seed: u64) -> History {
        let medium = SimMedium::new(model);
        let heap = create(medium.clone());
        Self::work(heap, medium, Vec::new(), seed, Some(vec![LANE_LEN - 192, LANE_LEN - 128, 0]))
    }

    /// Opens what a crash left, of which these records must be found, and works on it.
    pub fn go_on(medium: SimMedium, durable: Vec<Written>, seed: u64) -> History {
        let heap = open(&medium).unwrap();
        // Nothing but recovery's own cut says where the lanes begin.
        Self::work(heap, medium, durable, seed, None)
    }

    /// Lanes begin at `begin_at`, and soon wrap, or at 0.
    fn work(heap: Heap, medium: SimMedium, mut records: Vec<Written>, seed: u64, begin_at: Option<Vec<u64>>) -> History {
        let (opened, durable) = (medium.events(), records.len());
        let mut random = Random(seed);
        let lanes = heap.lanes();
        let mut replayer = Replayer::of(&heap).unwrap();
        if let Some(positions) = &begin_at {
            replayer.begin_at(positions);
        }
        let mut heads = begin_at.unwrap_or_else(|| vec![0; 3]);
        let first_ts = 1 + records.iter().map(|record| record.ts).max().unwrap_or(0);
        for ts in (0..).take(18).map(|i| first_ts + i * 2) {
            // Two lanes have one record each in flight, sometimes one of them.
            let flying: Vec<usize> =
                if random.next(3) == 0 { vec![random.next(3) as usize] } else { vec![0, 1 + random.next(2) as usize] };
            let mut begun = Vec::new();
            for (i, lane) in flying.into_iter().enumerate() {
                lanes.provide(lane).unwrap();
                // Long ones are one run: that is one store, and few things for a crash to choose from.
                let (words, stride) = if random.next(3) == 0 { (1500 + random.next(2400), 8) } else { (1 + random.next(9), 24) };
                let first = DATA + random.next(300) * 8;
                let value = |n: u64| (first + n * stride, 1 + random_value(ts, n));
                let written = Written { ts: ts + i as u64, lane, words: (0..words).map(value).collect() };
                let builder = written.builder();
                if lanes.end_of(heads[lane], builder.len()) - replayer.tails()[lane] > LANE_LEN {
                    // As of one of the records: newer ones stay.
                    let upto = if random.next(2) == 0 { u64::MAX } else { ts.saturating_sub(3) };
                    replayer.apply(&fenced_heads(&heads, &begun), upto, &mut || ()).unwrap();
                }
                if lanes.end_of(heads[lane], builder.len()) - replayer.tails()[lane] > LANE_LEN {
                    continue;
                }
                let n = records.len() as u64;
                medium.note(n);
                records.push(written);
                let before = heads[lane];
                heads[lane] = lanes.append(lane, heads[lane], &builder).unwrap();
                begun.push((n, lane, before));
            }
            lanes.fence().unwrap();
            begun.iter().for_each(|(n, ..)| medium.note(FENCED + n));
        }
        let closing = medium.events();
        if seed.is_multiple_of(2) {
            replayer.apply(&heads, u64::MAX, &mut || ()).unwrap();
            heap.close().unwrap();
        }
        drop(heap);
        History { records, durable, medium, opened, closing }
    }

    /// Whether what a crash left is what it must be. Gives the records that were found.
    pub fn check(&self, left: &SimMedium, notes: &[u64]) -> std::result::Result<Vec<Written>, String> {
        let verified = crate::verify(left, Door::Tx, &mut |_, _| ());
        let heap = match open(left) {
            // Whether creation was done is not this check's question.
            Err(Error::Missing { .. }) if notes.is_empty() && self.durable == 0 => return Ok(Vec::new()),
            other => other.map_err(|e| format!("open: {e}"))?,
        };
        let report = verified.map_err(|e| format!("verify: {e}"))?;
        if report.records_to_replay != heap.recovery().records_replayed {
            return Err(format!("verify promised {} records, not {}", report.records_to_replay, heap.recovery().records_replayed));
        }
        let fenced = |n: usize| n < self.durable || notes.contains(&(FENCED + n as u64));
        let sure: Vec<&Written> = (0..self.records.len()).filter(|n| fenced(*n)).map(|n| &self.records[n]).collect();
        let flying = |n: &usize| notes.contains(&(*n as u64)) && !fenced(*n);
        let flying: Vec<&Written> = (0..self.records.len()).filter(flying).map(|n| &self.records[n]).collect();
        if flying.len() > 2 {
            return Err("the test has more records in flight than it knows".into());
        }
        let found = Words::read(&heap, &self.records);
        for chosen in 0..1 << flying.len() {
            let some = flying.iter().enumerate().filter(|(i, _)| chosen & 1 << i != 0).map(|(_, record)| *record);
            let all: Vec<&Written> = sure.iter().copied().chain(some).collect();
            if Words::of(all.iter().copied()) == found {
                return Ok(all.into_iter().cloned().collect());
            }
        }
        Err(format!("not the state after {} fenced records and some of {} in flight", sure.len(), flying.len()))
    }

    pub fn check_image(&self, image: &CrashImage<'_, '_>) -> std::result::Result<(), String> {
        self.check(&image.to_medium(), image.notes()).map(|_| ())
    }

    pub fn trace(&self) -> Trace {
        self.medium.trace()
    }
}

/// Different for records and words, and never the top bit, so that 1 more is not 0.
fn random_value(ts: u64, n: u64) -> u64 {
    (ts * 1_000_003 + n * 7919) & 0xFFFF_FFFF
}

/// Heads without what was begun and not fenced.
fn fenced_heads(heads: &[u64], begun: &[(u64, usize, u64)]) -> Vec<u64> {
    let mut heads = heads.to_vec();
    begun.iter().for_each(|&(_, lane, before)| heads[lane] = before);
    heads
}

fn explore(history: &History, from: usize, seed: u64, budget: usize) {
    let checked = Explorer::new(history.trace(), seed).starting_at(from).check(budget, |image| history.check_image(image));
    if let Err(counterexample) = checked {
        panic!("seed {seed}: {counterexample}");
    }
}

#[test]
fn fenced_records_survive_every_crash() {
    for seed in 0..6 {
        for model in [Model::Line, Model::File] {
            let history = History::begin(model, seed);
            explore(&history, 0, seed, 400);
        }
    }
}

/// A crash; recovery, crashed in turn; and work that goes on after it.
#[test]
fn recovery_survives_crashes_of_its_own() {
    for seed in 0..4 {
        for model in [Model::Line, Model::File] {
            let history = History::begin(model, 2 * seed + 1);
            let mut random = Random(seed);
            for _ in 0..3 {
                let span = (history.closing - history.opened) as u64;
                let at = history.opened + 1 + random.next(span) as usize;
                let mut left = None;
                Explorer::new(history.trace(), seed).only_at(at).for_each_image(3, |image| {
                    left = Some((image.to_medium(), image.notes().to_vec()));
                });
                let (left, notes) = left.unwrap();
                // What recovery finds does not depend on what becomes of it.
                let found = history.check(&left.trace().killed_after(0), &notes).unwrap();
                let recovered = History::go_on(left, found, seed + 9);
                explore(&recovered, 0, seed, 200);
            }
        }
    }
}

/// A killed process leaves records, cuts and names that only the cache has; the next recovers, and then the power fails.
#[test]
fn what_a_killed_process_left_is_made_durable_before_it_is_built_on() {
    for seed in 0..4 {
        for model in [Model::Line, Model::File] {
            let history = History::begin(model, 2 * seed + 1);
            let written = |kind| matches!(kind, EventKind::Store | EventKind::Stream);
            let trace = history.trace();
            let stores: Vec<usize> = trace.events().filter(|e| written(e.kind())).map(|e| e.index() + 1).collect();
            for at in stores.into_iter().filter(|at| *at > history.opened).step_by(3) {
                let notes: HashSet<u64> = notes_before(&trace, at);
                let killed = trace.killed_after(at);
                let notes: Vec<u64> = notes.into_iter().collect();
                let found = history.check(&killed, &notes).unwrap();
                // Each record that was whole is there, and stays.
                let after = History { records: found.clone(), durable: found.len(), medium: killed, opened: 0, closing: 0 };
                let checked = Explorer::new(after.trace(), seed).starting_at(at).check(30, |image| {
                    let only_sure = after.check(&image.to_medium(), &notes);
                    only_sure
                        .or_else(|first| history.check(&image.to_medium(), &notes).map_err(|second| format!("{first}; {second}")))
                        .map(|_| ())
                });
                checked.unwrap_or_else(|counterexample| panic!("seed {seed}, killed at {at}: {counterexample}"));
            }
        }
    }
}

/// The notes that a killed process had made.
pub(super) fn notes_before(trace: &Trace, events: usize) -> HashSet<u64> {
    let notes = trace.notes();
    let noted = trace.events().take(events).filter(|e| e.kind() == EventKind::Note).count();
    notes[..noted].iter().copied().collect()
}

/// A record may say that chunks are in use: the frontier comes back with it, and stays when the image has taken it.
#[test]
fn the_frontier_comes_back() {
    for medium in both_models() {
        let heap = create(medium.clone());
        let block = heap.allocator().alloc(&mut crate::alloc::Cache::new(), &Unmarked, 100).unwrap();
        let frontier = heap.allocator().frontier();
        let mut builder = RecordBuilder::new();
        builder.set_ts(1);
        // Everything that may have been written: the header table and the slab.
        let words = (frontier - CHUNK) / 8;
        let base = heap.base().as_ptr().cast::<u64>();
        // SAFETY: within the heap, and nobody writes.
        let bytes = unsafe { std::slice::from_raw_parts(base.add((CHUNK / 8) as usize), words as usize) };
        let last = bytes.iter().rposition(|word| *word != 0).unwrap();
        let runs = bytes[..=last].chunks(8).enumerate().filter(|(_, line)| line.iter().any(|word| *word != 0));
        runs.for_each(|(i, line)| builder.words(CHUNK + i as u64 * 64, line));
        builder.frontier(frontier);
        heap.lanes().provide(2).unwrap();
        let head = heap.lanes().append(2, 0, &builder).unwrap();
        heap.lanes().fence().unwrap();
        assert_eq!(crate::describe(&medium).unwrap().frontier, frontier);
        if medium.events() % 2 == 0 {
            Replayer::of(&heap).unwrap().apply(&[0, 0, head], 1, &mut || ()).unwrap();
        }
        let block = block.as_ptr() as u64 - heap.base().as_ptr() as u64;
        drop(heap);
        for _ in 0..2 {
            let heap = open(&medium).unwrap();
            assert_eq!(heap.allocator().frontier(), frontier);
            let next = heap.allocator().alloc(&mut crate::alloc::Cache::new(), &Unmarked, 100).unwrap();
            assert_ne!(next.as_ptr() as u64 - heap.base().as_ptr() as u64, block, "the block is live");
        }
    }
}

/// Marks nothing: the tests log by hand.
struct Unmarked;

impl crate::alloc::Marker for Unmarked {
    fn mark(&self, _: usize, _: usize) {}
    fn epoch(&self) -> u64 {
        1
    }
}
