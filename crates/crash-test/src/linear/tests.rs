//! The checker is checked: against histories made by hand, against brute force over whole maps, and on maps that are right and wrong.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_tree::{Direction, OrderedMap, Session};

use super::*;
use Answer::{Added, Value};
use Call::{Get, Insert, Remove, Upsert};

type Result<T, E = towa_tree::Error> = std::result::Result<T, E>;

fn done(thread: usize, invoked: u64, at: u64, key: u64, call: Call, answer: Answer) -> Event<u64> {
    Event { thread, key, call, invoked, end: End::Returned { at, answer } }
}

fn lost(invoked: u64, at: u64, key: u64, call: Call) -> Event<u64> {
    Event { thread: 9, key, call, invoked, end: End::Lost { at } }
}

fn judged(events: &[Event<u64>]) -> Result<(), Violation> {
    check(&History { initial: BTreeMap::new(), events: events.to_vec(), scans: Vec::new() })
}

#[test]
fn a_stale_read_is_rejected() {
    let write = done(0, 1, 2, 5, Upsert(1), Value(None));
    let second = done(0, 3, 4, 5, Upsert(2), Value(Some(1)));
    let why = judged(&[write, second, done(1, 5, 6, 5, Get, Value(Some(1)))]).unwrap_err().to_string();
    assert!(why.contains("key 5") && why.contains("thread 1: Get") && why.contains("Some(2)"), "{why}");
    // Called before the second write returned, it is not stale.
    judged(&[write, second, done(1, 3, 6, 5, Get, Value(Some(1)))]).unwrap();
    // Two reads that see the writes in turn, the wrong way round, both within the second write's time.
    let second = done(0, 3, 20, 5, Upsert(2), Value(Some(1)));
    let reads = [done(1, 5, 6, 5, Get, Value(Some(2))), done(1, 7, 8, 5, Get, Value(Some(1)))];
    judged(&[write, second, reads[0], reads[1]]).unwrap_err();
}

#[test]
fn a_lost_update_is_rejected() {
    let writes = [done(0, 1, 4, 5, Upsert(1), Value(None)), done(1, 2, 3, 5, Upsert(2), Value(None))];
    judged(&writes).unwrap_err();
    judged(&[writes[1], done(0, 1, 4, 5, Upsert(1), Value(Some(2))), done(0, 5, 6, 5, Get, Value(Some(2)))]).unwrap_err();
    judged(&[writes[1], done(0, 1, 4, 5, Upsert(1), Value(Some(2))), done(0, 5, 6, 5, Get, Value(Some(1)))]).unwrap();
}

#[test]
fn two_inserts_cannot_both_add() {
    let twice = |second| [done(0, 1, 10, 5, Insert(1), Added(true)), done(1, 2, 9, 5, Insert(2), Added(second))];
    judged(&twice(true)).unwrap_err();
    judged(&twice(false)).unwrap();
    let between = done(2, 3, 8, 5, Remove, Value(Some(2)));
    judged(&[&twice(true)[..], &[between]].concat()).unwrap();
}

#[test]
fn values_and_removals_come_from_somewhere() {
    judged(&[done(0, 1, 2, 5, Get, Value(Some(7)))]).unwrap_err();
    judged(&[done(0, 1, 2, 5, Insert(7), Added(true)), done(0, 3, 4, 6, Get, Value(Some(7)))]).unwrap_err();
    let removals = |second| {
        let remove = |thread, at| done(thread, 3, at, 5, Remove, Value(Some(7)));
        judged(&[done(0, 1, 2, 5, Insert(7), Added(true)), remove(0, 5), Event { end: second, ..remove(1, 6) }])
    };
    removals(End::Returned { at: 6, answer: Value(Some(7)) }).unwrap_err();
    removals(End::Returned { at: 6, answer: Value(None) }).unwrap();
    removals(End::Lost { at: 6 }).unwrap();
}

#[test]
fn what_a_killed_process_began_happened_before_the_kill_or_never() {
    let get = |at, value| done(1, at, at + 1, 5, Get, Value(value));
    for seen in [None, Some(7)] {
        judged(&[lost(1, 10, 5, Upsert(7)), get(11, seen), get(13, seen)]).unwrap();
    }
    judged(&[lost(1, 10, 5, Upsert(7)), get(11, None), get(13, Some(7))]).unwrap_err();
    judged(&[lost(1, 10, 5, Upsert(7)), get(11, Some(7)), get(13, None)]).unwrap_err();
    judged(&[lost(1, u64::MAX, 5, Upsert(7)), get(11, None), get(13, Some(7))]).unwrap();
    // It must not undo itself: seen before the kill, it happened.
    judged(&[lost(1, 10, 5, Upsert(7)), get(5, Some(7)), get(11, None)]).unwrap_err();
}

#[test]
fn scans_give_what_was_there_all_the_time_and_nothing_that_never_was() {
    let initial = BTreeMap::from([(1, 10), (2, 20), (3, 30)]);
    let events = vec![done(0, 5, 6, 2, Upsert(21), Value(Some(20))), done(0, 7, 8, 4, Insert(40), Added(true))];
    let scan = |entries: &[(u64, u64)], backward, broken_off| {
        let bounds = (Bound::Included(1), Bound::Excluded(9));
        let scan = Scan { thread: 1, invoked: 4, returned: 9, bounds, backward, entries: entries.to_vec(), broken_off };
        check(&History { initial: initial.clone(), events: events.clone(), scans: vec![scan] })
    };
    for fine in [&[(1, 10), (2, 20), (3, 30)][..], &[(1, 10), (2, 21), (3, 30)], &[(1, 10), (2, 20), (3, 30), (4, 40)]] {
        scan(fine, false, false).unwrap();
        let back: Vec<_> = fine.iter().rev().copied().collect();
        scan(&back, true, false).unwrap();
    }
    let wrong: [(&[(u64, u64)], bool); 7] = [
        (&[(1, 10), (2, 20)], false),                  // 3 was there all the time
        (&[(1, 10), (2, 22), (3, 30)], false),         // never had that value
        (&[(1, 10), (2, 20), (3, 30), (5, 5)], false), // never was
        (&[(2, 20), (1, 10), (3, 30)], false),
        (&[(1, 10), (2, 20), (2, 21), (3, 30)], false),
        (&[(2, 20)], true),
        (&[(1, 10), (2, 20), (3, 30), (9, 1)], false), // out of bounds
    ];
    for (entries, broken_off) in wrong {
        scan(entries, false, broken_off).unwrap_err();
    }
    scan(&[(1, 10), (2, 20)], false, true).unwrap();
    scan(&[(3, 30)], true, true).unwrap();
    scan(&[(2, 20)], true, true).unwrap_err();
    scan(&[(4, 40), (3, 30)], true, true).unwrap();
}

/// Whether some order of all operations at once, over the whole map, explains the history: no cleverness, for few operations.
fn brute_force(history: &History<u64>) -> bool {
    fn search(map: &BTreeMap<u64, u64>, left: &[Event<u64>]) -> bool {
        if left.iter().all(|e| matches!(e.end, End::Lost { .. })) {
            return true;
        }
        let end = |e: &Event<u64>| {
            let (End::Returned { at, .. } | End::Lost { at }) = e.end;
            at
        };
        left.iter().enumerate().any(|(n, event)| {
            let rest: Vec<_> = left.iter().enumerate().filter(|(i, _)| *i != n).map(|(_, e)| *e).collect();
            // It comes next, so nothing that is left may have ended before it was called; what was lost by then never happened.
            if rest.iter().any(|e| end(e) < event.invoked && matches!(e.end, End::Returned { .. })) {
                return false;
            }
            let rest: Vec<_> = rest.into_iter().filter(|e| end(e) >= event.invoked).collect();
            let (answer, next) = event.call.apply(map.get(&event.key).copied());
            if matches!(event.end, End::Returned { answer: given, .. } if given != answer) {
                return false;
            }
            let mut map = map.clone();
            match next {
                Some(value) => map.insert(event.key, value),
                None => map.remove(&event.key),
            };
            search(&map, &rest)
        })
    }
    search(&history.initial, &history.events)
}

/// A history of a map behind a lock: each operation happens at a moment of its own, within a stretch of time around it.
fn simulated(rng: &mut SmallRng) -> History<u64> {
    let (threads, keys, count) = (rng.random_range(1..5usize), rng.random_range(1..3u64), rng.random_range(2..8u64));
    let mut map: BTreeMap<u64, u64> = (0..keys).filter(|_| rng.random()).map(|k| (k, 90 + k)).collect();
    let initial = map.clone();
    let mut free = vec![0; threads];
    let mut events = Vec::new();
    for n in 0..count {
        let moment = (n + 1) * 10;
        let thread = rng.random_range(0..threads);
        if free[thread] >= moment {
            continue;
        }
        let invoked = rng.random_range(free[thread].max(moment.saturating_sub(40)) + 1..=moment);
        let at = moment + rng.random_range(0..40);
        free[thread] = at;
        let key = rng.random_range(0..keys);
        let call = match rng.random_range(0..4) {
            0 => Insert(n),
            1 => Upsert(n),
            2 => Remove,
            _ => Get,
        };
        let (answer, next) = call.apply(map.get(&key).copied());
        let dead = rng.random_ratio(1, 8);
        if !(dead && rng.random()) {
            match next {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        let end = if dead { End::Lost { at } } else { End::Returned { at, answer } };
        events.push(Event { thread, key, call, invoked, end });
    }
    History { initial, events, scans: Vec::new() }
}

fn mutate(history: &mut History<u64>, rng: &mut SmallRng) {
    if history.events.is_empty() {
        return;
    }
    let n = rng.random_range(0..history.events.len());
    let event = &mut history.events[n];
    match &mut event.end {
        End::Returned { answer: Added(added), .. } => *added = !*added,
        End::Returned { answer: Value(value), .. } => {
            *value = match rng.random_range(0..3) {
                0 => None,
                1 => Some(rng.random_range(0..8)),
                _ => Some(90 + event.key),
            }
        }
        End::Lost { at } => *at = event.invoked,
    }
}

#[test]
fn agrees_with_brute_force() {
    let mut verdicts = [0; 2];
    for seed in 0..20_000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut history = simulated(&mut rng);
        assert!(check(&history).is_ok() && brute_force(&history), "seed {seed}: a true history is rejected: {history:#?}");
        mutate(&mut history, &mut rng);
        let verdict = check(&history);
        assert_eq!(verdict.is_ok(), brute_force(&history), "seed {seed}: {verdict:?} of {history:#?}");
        verdicts[usize::from(verdict.is_ok())] += 1;
    }
    assert!(verdicts.iter().all(|n| *n > 3000), "the mutations are one-sided: {verdicts:?} wrong and right");
}

/// A map behind a lock, and what may be wrong with it.
struct Locked<K>(Mutex<BTreeMap<K, u64>>, Fault);

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// An upsert looks, lets go of the lock, and writes.
    UpsertInTwoSteps,
    /// A scan collects the keys first and looks each up later, and gives 0 for those that are gone.
    ScanOfTheDead,
}

struct View<'m, K>(&'m Locked<K>);

impl<K: Key + ?Sized> OrderedMap<K> for Locked<K::Owned> {
    fn session(&self) -> Result<Box<dyn Session<K> + '_>> {
        Ok(Box::new(View(self)))
    }
    fn count(&self) -> Result<u64> {
        Ok(self.0.lock().len() as u64)
    }
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl<K: Key + ?Sized> Session<K> for View<'_, K::Owned> {
    fn insert(&mut self, key: &K, value: u64) -> Result<bool> {
        let mut map = self.0.0.lock();
        let absent = !map.contains_key(key);
        if absent {
            map.insert(key.to_owned(), value);
        }
        Ok(absent)
    }
    fn upsert(&mut self, key: &K, value: u64) -> Result<Option<u64>> {
        if self.0.1 == Fault::UpsertInTwoSteps {
            let before = self.0.0.lock().get(key).copied();
            std::thread::yield_now();
            self.0.0.lock().insert(key.to_owned(), value);
            return Ok(before);
        }
        Ok(self.0.0.lock().insert(key.to_owned(), value))
    }
    fn get(&mut self, key: &K) -> Result<Option<u64>> {
        Ok(self.0.0.lock().get(key).copied())
    }
    fn remove(&mut self, key: &K) -> Result<Option<u64>> {
        Ok(self.0.0.lock().remove(key))
    }
    fn scan(
        &mut self,
        bounds: (Bound<&K>, Bound<&K>),
        direction: Direction,
        each: &mut dyn FnMut(&K, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut entries: Vec<_> = self.0.0.lock().range::<K, _>(bounds).map(|(k, v)| (k.clone(), *v)).collect();
        if direction == Direction::Backward {
            entries.reverse();
        }
        for (key, mut value) in entries {
            if self.0.1 == Fault::ScanOfTheDead {
                std::thread::yield_now();
                value = self.0.0.lock().get(key.borrow()).copied().unwrap_or(0);
            }
            if each(key.borrow(), value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

fn verdict<K: Key + ?Sized>(fault: Fault, plan: &Plan) -> Result<(), Violation> {
    let map: Locked<K::Owned> = Locked(Mutex::default(), fault);
    // What is there before must be known to the checker, too.
    map.0.lock().insert(K::nth(0), u64::MAX);
    let history = record::<K>(&map, plan).unwrap();
    let operations = plan.threads * plan.ops + plan.all_keys() as usize;
    assert!(history.events.len() > operations / 2 && history.scans.len() > 2, "little was recorded");
    check(&history)
}

#[test]
fn a_map_behind_a_lock_is_linearizable() {
    for seed in 0..4 {
        let plan = Plan { seed, ..Plan::default() };
        verdict::<u64>(Fault::None, &plan).unwrap_or_else(|why| panic!("{plan:?}: {why}"));
        run::<[u8]>(&Locked(Mutex::default(), Fault::None), &plan).unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Threads must meet for a fault to show: on a busy machine that may take some runs.
fn must_be_caught(fault: Fault, plan: &Plan) {
    let caught = (0..40).any(|seed| verdict::<u64>(fault, &Plan { seed, ..*plan }).is_err());
    assert!(caught, "forty runs, and nothing was seen");
}

#[test]
fn an_upsert_in_two_steps_is_caught() {
    must_be_caught(Fault::UpsertInTwoSteps, &Plan { ops: 4000, ..Plan::default() });
}

#[test]
fn a_scan_that_gives_the_dead_is_caught() {
    must_be_caught(Fault::ScanOfTheDead, &Plan { ops: 4000, scan_every: 4, ..Plan::default() });
}

#[test]
fn a_changed_answer_of_a_recorded_run_is_rejected() {
    let map: Locked<u64> = Locked(Mutex::default(), Fault::None);
    let plan = Plan { ops: 500, ..Plan::default() };
    let history = record::<u64>(&map, &plan).unwrap();
    check(&history).unwrap();
    // Values are written once: one that nobody wrote is wrong wherever it stands.
    for n in (0..history.events.len()).step_by(97) {
        let mut wrong = history.clone();
        if let End::Returned { answer: Value(value), .. } = &mut wrong.events[n].end {
            *value = Some(12_345_678);
            check(&wrong).unwrap_err();
        }
    }
    for n in 0..history.scans.len().min(50) {
        let mut wrong = history.clone();
        if let Some((_, value)) = wrong.scans[n].entries.last_mut() {
            *value = 12_345_678;
            check(&wrong).unwrap_err();
        }
    }
}
