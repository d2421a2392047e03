//! The search over one key's operations: Wing and Gong's (1993), with Lowe's memory of configurations (2017), in order of time.
//!
//! ```text
//!   call of o        o becomes open, in a slot of its own
//!   return of o      each configuration in which o has not happened yet lets open operations happen, one after the other, in every
//!                    order, until o has; configurations in which o's answer comes out different die
//!   o is lost        configurations in which it happened stay beside those in which it did not; it cannot happen later
//! ```
//!
//! A configuration is what the key holds and which open operations have happened. Letting operations happen only when a return
//! (or a loss) makes it necessary loses nothing: any valid order can be cut into runs, each moved to the first return after it.
//! What must hold: a configuration is looked at once for each step, so a step costs at most (values) * 2^(open operations), and
//! the whole is linear in the length of the history.

use std::collections::{BTreeSet, HashSet};

use super::{Call, End};

/// One operation on the key, or a scan's meeting with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub thread: usize,
    pub call: Call,
    pub invoked: u64,
    pub end: End,
    pub scan: bool,
}

/// Where the search ended.
#[derive(Debug)]
pub(super) struct Stuck {
    /// Index of the operation without explanation.
    pub operation: usize,
    /// What the key could hold before its return.
    pub states: BTreeSet<Option<u64>>,
}

/// What the key holds, and a bit for each slot whose operation has happened.
type Configuration = (Option<u64>, u64);

/// Open operations by slot.
type Open = [Option<usize>; 64];

/// Calls sort before ends of the same moment: equal figures overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Call(usize),
    End(usize),
}

/// Finds out whether some order of `operations`, of a key that holds `initial` at first, explains every answer.
pub(super) fn explain(initial: Option<u64>, operations: &[Operation]) -> Result<(), Stuck> {
    let mut steps: Vec<(u64, Step)> = Vec::with_capacity(operations.len() * 2);
    for (n, operation) in operations.iter().enumerate() {
        let (End::Returned { at, .. } | End::Lost { at }) = operation.end;
        // A look-up that nobody saw the answer of explains nothing and forbids nothing.
        if matches!((operation.call, operation.end), (Call::Get, End::Lost { .. })) {
            continue;
        }
        steps.push((operation.invoked, Step::Call(n)));
        steps.push((at, Step::End(n)));
    }
    steps.sort_unstable_by_key(|(at, step)| (*at, matches!(step, Step::End(_))));
    let mut open: Open = [None; 64];
    let mut now: HashSet<Configuration> = HashSet::from([(initial, 0)]);
    for (_, step) in steps {
        match step {
            Step::Call(n) => {
                let slot = open.iter().position(Option::is_none).expect("at most 64 operations on a key overlap");
                open[slot] = Some(n);
            }
            Step::End(n) => {
                let slot = open.iter().position(|o| *o == Some(n)).expect("it was called before it ended");
                let lost = matches!(operations[n].end, End::Lost { .. });
                let next = ended(&now, &open, slot, lost, operations);
                if next.is_empty() {
                    return Err(Stuck { operation: n, states: reachable(&now, &open, operations) });
                }
                open[slot] = None;
                now = next;
            }
        }
    }
    Ok(())
}

/// Lets the operation in `slot` happen, if it can, or if it returns and must; the configurations after it, its slot free.
fn ended(now: &HashSet<Configuration>, open: &Open, slot: usize, lost: bool, operations: &[Operation]) -> HashSet<Configuration> {
    let bit = 1 << slot;
    let mut seen = now.clone();
    let mut pending: Vec<Configuration> = now.iter().copied().collect();
    let mut after = HashSet::new();
    while let Some((state, happened)) = pending.pop() {
        if happened & bit != 0 {
            after.insert((state, happened & !bit));
            continue;
        }
        if lost {
            after.insert((state, happened));
        }
        for configuration in successors((state, happened), open, operations) {
            if seen.insert(configuration) {
                pending.push(configuration);
            }
        }
    }
    after
}

/// Each configuration that one more open operation leads to.
fn successors<'a>(
    (state, happened): Configuration,
    open: &'a Open,
    operations: &'a [Operation],
) -> impl Iterator<Item = Configuration> + 'a {
    open.iter().enumerate().filter_map(move |(slot, n)| {
        let operation = &operations[(*n)?];
        if happened & (1 << slot) != 0 {
            return None;
        }
        let (answer, next) = operation.call.apply(state);
        match operation.end {
            End::Returned { answer: given, .. } if given != answer => None,
            _ => Some((next, happened | 1 << slot)),
        }
    })
}

/// All that the key can hold now, for the message.
fn reachable(now: &HashSet<Configuration>, open: &Open, operations: &[Operation]) -> BTreeSet<Option<u64>> {
    let mut seen = now.clone();
    let mut pending: Vec<Configuration> = now.iter().copied().collect();
    while let Some(configuration) = pending.pop() {
        for next in successors(configuration, open, operations) {
            if seen.insert(next) {
                pending.push(next);
            }
        }
    }
    seen.into_iter().map(|(state, _)| state).collect()
}
