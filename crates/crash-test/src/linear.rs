//! Was a recorded run of an ordered map linearizable? Histories, and the search that judges them.
//!
//! ```text
//!   thread 0   |--upsert a 1--|      |--get a -> 1--|         each operation must seem to happen at one moment
//!   thread 1        |---upsert a 2---|                        between its call and its return
//!   thread 2   |------- scan -> (a,2) (c,9) -------|          so must each entry of a scan, and each gap in it
//! ```
//!
//! What must hold:
//! - [`check`] rejects every history that no order of its operations explains, and accepts every other one: it is exact, not a
//!   heuristic. Operations on different keys commute, so each key is judged alone (Herlihy and Wing 1990: linearizability is local;
//!   each key is an object of its own);
//! - an operation whose process was killed ([`End::Lost`]) took effect before the kill or never (Izraelevitz et al., DISC 2016, durable
//!   linearizability with strict durability);
//! - a scan is not one moment but one for each key: a key it gave had that value, and a key of its range it left out was absent,
//!   at *some* moment between its call and its return. That is what `Session::scan` promises and no more: within each key the
//!   scan is a look-up, judged together with everything else that happened to the key.
//!
//! Time is any clock in which an operation that returned before another was called has the smaller figure. Equal figures overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write};
use std::ops::Bound;

mod record;
mod search;

pub use record::{Key, Plan, record, run};

/// What was asked about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Add the key with this value unless it is there.
    Insert(u64),
    /// Give the key this value.
    Upsert(u64),
    /// Look it up.
    Get,
    /// Take it away.
    Remove,
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of an insert: whether the key was added.
    Added(bool),
    /// Of all others: the value before the operation.
    Value(Option<u64>),
}

impl Call {
    /// The answer a key that holds `state` must give, and what it holds then.
    pub fn apply(self, state: Option<u64>) -> (Answer, Option<u64>) {
        match self {
            Call::Insert(value) => (Answer::Added(state.is_none()), state.or(Some(value))),
            Call::Upsert(value) => (Answer::Value(state), Some(value)),
            Call::Get => (Answer::Value(state), state),
            Call::Remove => (Answer::Value(state), None),
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned.
    Returned {
        /// When.
        at: u64,
        /// With what.
        answer: Answer,
    },
    /// It never returned: its process was gone.
    Lost {
        /// A moment by which the process was gone and before which nobody else could open the map; `u64::MAX` if nobody did.
        at: u64,
    },
}

/// One operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<K> {
    /// Who; for messages only.
    pub thread: usize,
    /// On what.
    pub key: K,
    /// What.
    pub call: Call,
    /// When it was called.
    pub invoked: u64,
    /// How it ended.
    pub end: End,
}

/// One scan that returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan<K> {
    /// Who; for messages only.
    pub thread: usize,
    /// When it was called.
    pub invoked: u64,
    /// When it returned.
    pub returned: u64,
    /// Lower and upper bound.
    pub bounds: (Bound<K>, Bound<K>),
    /// From the greatest key down.
    pub backward: bool,
    /// What it gave, in its order.
    pub entries: Vec<(K, u64)>,
    /// The caller broke it off after the last entry: nothing is said about keys beyond.
    pub broken_off: bool,
}

/// Everything that happened to a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History<K: Ord> {
    /// What it held before.
    pub initial: BTreeMap<K, u64>,
    /// Operations on single keys, in any order.
    pub events: Vec<Event<K>>,
    /// Scans, in any order.
    pub scans: Vec<Scan<K>>,
}

/// Why a history is not linearizable, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

/// Judges a history.
///
/// # Errors
/// The first key in order whose operations have no explanation, with the operation at which the last one failed; or a scan that
/// gave keys out of order, twice, or out of its bounds.
///
/// # Panics
/// If more than 64 operations on one key overlap.
pub fn check<K: Ord + Clone + Debug>(history: &History<K>) -> Result<(), Violation> {
    for scan in &history.scans {
        shape(scan)?;
    }
    let mut keys: BTreeSet<&K> = history.initial.keys().chain(history.events.iter().map(|e| &e.key)).collect();
    keys.extend(history.scans.iter().flat_map(|s| s.entries.iter().map(|(key, _)| key)));
    let mut events: BTreeMap<&K, Vec<search::Operation>> = keys.into_iter().map(|key| (key, Vec::new())).collect();
    for event in &history.events {
        let operation =
            search::Operation { thread: event.thread, call: event.call, invoked: event.invoked, end: event.end, scan: false };
        events.get_mut(&event.key).expect("every key is there").push(operation);
    }
    for scan in &history.scans {
        let given: BTreeMap<&K, u64> = scan.entries.iter().map(|(key, value)| (key, *value)).collect();
        for (key, operations) in events.iter_mut().filter(|(key, _)| covers(scan, key)) {
            let answer = Answer::Value(given.get(key).copied());
            let end = End::Returned { at: scan.returned, answer };
            let (thread, invoked) = (scan.thread, scan.invoked);
            operations.push(search::Operation { thread, call: Call::Get, invoked, end, scan: true });
        }
    }
    for (key, operations) in events {
        let initial = history.initial.get(key).copied();
        search::explain(initial, &operations).map_err(|stuck| Violation(story(key, initial, &operations, &stuck)))?;
    }
    Ok(())
}

fn within<K: Ord>(bounds: &(Bound<K>, Bound<K>), key: &K) -> bool {
    use std::ops::RangeBounds;
    (bounds.0.as_ref(), bounds.1.as_ref()).contains(key)
}

/// Whether the scan says something about `key`: it lies in the bounds, and not beyond where the caller broke off.
fn covers<K: Ord>(scan: &Scan<K>, key: &K) -> bool {
    let reached = match scan.entries.last() {
        Some((last, _)) if scan.broken_off => {
            if scan.backward {
                key >= last
            } else {
                key <= last
            }
        }
        _ => true,
    };
    reached && within(&scan.bounds, key)
}

/// Keys in order, none twice, all within the bounds.
fn shape<K: Ord + Debug>(scan: &Scan<K>) -> Result<(), Violation> {
    let who = || format!("thread {}'s scan [{}, {}]", scan.thread, scan.invoked, scan.returned);
    for pair in scan.entries.windows(2) {
        let (a, b) = (&pair[0].0, &pair[1].0);
        if if scan.backward { a <= b } else { a >= b } {
            return Err(Violation(format!("{} gave key {a:?} and then {b:?}: out of order", who())));
        }
    }
    match scan.entries.iter().find(|(key, _)| !within(&scan.bounds, key)) {
        Some((key, _)) => Err(Violation(format!("{} gave key {key:?}, which lies outside {:?}", who(), scan.bounds))),
        None => Ok(()),
    }
}

/// Operations told before and after the one that cannot be explained.
const TOLD: usize = 12;

fn story<K: Debug>(key: &K, initial: Option<u64>, operations: &[search::Operation], stuck: &search::Stuck) -> String {
    let tell = |o: &search::Operation| {
        let what = if o.scan { "scan met".to_owned() } else { format!("{:?}", o.call) };
        match o.end {
            End::Returned { at, answer } => format!("  [{}, {at}] thread {}: {what} -> {answer:?}", o.invoked, o.thread),
            End::Lost { at } => format!("  [{}, lost by {at}] thread {}: {what}", o.invoked, o.thread),
        }
    };
    let culprit = &operations[stuck.operation];
    let mut order: Vec<_> = operations.iter().collect();
    order.sort_by_key(|o| o.invoked);
    let at = order.iter().position(|o| std::ptr::eq(*o, culprit)).unwrap_or(0);
    let around = &order[at.saturating_sub(TOLD)..(at + TOLD).min(order.len())];
    let mut text = format!(
        "key {key:?} (at first {initial:?}, {} operations): no order of the operations explains\n{}\n\
         just before its return the key could hold only {:?}; operations around it, by call:",
        operations.len(),
        tell(culprit),
        stuck.states
    );
    for operation in around {
        let _ = write!(text, "\n{}", tell(operation));
    }
    text
}

#[cfg(test)]
mod tests;
