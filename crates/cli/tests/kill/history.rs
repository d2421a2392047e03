//! What a client did, and whether what is found after a crash is a prefix of it.
//!
//! ```text
//!   base ──op──op──op──op──op──op──op──► sent last
//!              ▲ durable    ▲ cut       ▲ answered last         durable <= cut: every key is as after exactly `cut` operations
//! ```

use std::time::Instant;

/// What a key holds: nothing, or the item of this version (a counter: this number).
pub type State = Option<u64>;

/// One operation on one connection.
#[derive(Clone, Debug)]
pub struct Op {
    /// Which key, and what it holds afterwards; `None`: none of this client's keys.
    pub effect: Option<(usize, State)>,
    /// Whether it added one to the counter that all clients share.
    pub shared: bool,
    /// When its answer had arrived.
    pub answered: Option<Instant>,
}

/// What one client did since the last restart.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What its keys held before.
    pub base: Vec<State>,
    /// Operations in the order they were sent.
    pub ops: Vec<Op>,
    /// Of these, how many a barrier has acknowledged as durable.
    pub durable: usize,
}

impl History {
    /// The lowest and highest number of operations that lead to exactly `found`; `None` if no number does.
    pub fn cuts(&self, found: &[State]) -> Option<(usize, usize)> {
        assert_eq!(found.len(), self.base.len());
        let mut state = self.base.clone();
        let mut wrong = state.iter().zip(found).filter(|(a, b)| a != b).count();
        let mut cuts = (wrong == 0).then_some((0, 0));
        for (index, op) in self.ops.iter().enumerate() {
            if let Some((key, after)) = op.effect {
                wrong -= usize::from(state[key] != found[key]);
                state[key] = after;
                wrong += usize::from(state[key] != found[key]);
            }
            if wrong == 0 {
                cuts = Some((cuts.map_or(index + 1, |(low, _)| low), index + 1));
            }
        }
        cuts
    }

    /// Why there is no cut: the keys that fit no number of operations at all, or all of them if each fits one of its own.
    pub fn misfits(&self, found: &[State]) -> String {
        let mut lines = Vec::new();
        for (key, state) in found.iter().enumerate() {
            let states = || self.ops.iter().filter_map(|op| op.effect).filter(|(k, _)| *k == key).map(|(_, s)| s);
            if *state != self.base[key] && !states().any(|s| s == *state) {
                lines.push(format!("key {key} holds {state:?}: was {:?}, then {:?}", self.base[key], states().collect::<Vec<_>>()));
            }
        }
        if lines.is_empty() {
            lines.push("each key is as at some moment, but not all as at one moment".into());
        }
        lines.join("\n")
    }

    /// How many operations were answered before `moment`.
    pub fn answered_before(&self, moment: Instant) -> usize {
        self.ops.iter().take_while(|op| op.answered.is_some_and(|t| t < moment)).count()
    }

    /// How many of the first `count` operations were on the shared counter.
    pub fn shared_in(&self, count: usize) -> u64 {
        self.ops[..count].iter().filter(|op| op.shared).count() as u64
    }
}

#[test]
fn a_state_that_no_prefix_makes_is_found() {
    let op = |key, state| Op { effect: Some((key, state)), shared: false, answered: None };
    let noop = Op { effect: None, shared: true, answered: None };
    let ops = vec![op(0, Some(1)), op(1, Some(2)), noop, op(0, None), op(1, Some(3))];
    let history = History { base: vec![None, None], ops, durable: 0 };
    assert_eq!(history.cuts(&[None, None]), Some((0, 0)));
    assert_eq!(history.cuts(&[Some(1), Some(2)]), Some((2, 3)));
    assert_eq!(history.cuts(&[None, Some(3)]), Some((5, 5)));
    assert_eq!(history.cuts(&[Some(1), Some(3)]), None, "a later write without an earlier one");
    assert_eq!(history.cuts(&[Some(9), None]), None, "a version that was never written");
    assert!(history.misfits(&[Some(1), Some(3)]).contains("not all as at one moment"));
    assert!(history.misfits(&[Some(9), None]).contains("key 0 holds Some(9)"));
    assert_eq!((history.shared_in(2), history.shared_in(3)), (0, 1));
}
