//! What must be there after a crash, and what a killed process' successor promises.
//!
//! What must always hold: an image taken behind note n holds the state after n operations or after n + 1 (where commits are buffered: after
//! as many as were durable, or returned, or any number in between, or one more), every invariant of the tree, and no
//! block without an owner; so does what the next process leaves, from its first note on.

use std::borrow::Borrow;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{SimMedium, Trace};
use towa_tree::Error;

use super::kind::{Drawn, Tree, everything};
use super::world::{BUFFERED, Shape, State, apart};

/// Everything in the tree on `medium`, which is recovered and checked; `None` where there is none.
pub fn recovered<T: Tree>(medium: &SimMedium) -> Result<Option<State<T::Key>>, String> {
    let Some(tree) = T::open(medium).map_err(|e| format!("recovery refused: {e}"))? else { return Ok(None) };
    let state = tree.check().map_err(|e| format!("after recovery: {e}")).and_then(|()| everything(&tree));
    tree.leave();
    state.map(Some)
}

/// Recovers `medium` and compares it with what must be there; gives the number of the state that is, or `None` where there is rightly no
/// tree. `notes`: those taken since the opening.
pub fn check_image<T: Tree>(medium: &SimMedium, notes: &[u64], states: &[State<T::Key>]) -> Result<Option<usize>, String> {
    let returned = notes.last().map_or(0, |note| note & !BUFFERED) as usize;
    let durable = notes.iter().rfind(|note| **note & BUFFERED == 0).map_or(0, |note| *note) as usize;
    match recovered::<T>(medium)? {
        None if notes.is_empty() && states[0].is_empty() => Ok(None),
        None => Err("the tree is gone".into()),
        Some(state) => {
            let allowed = durable..=(returned + 1).min(states.len() - 1);
            let found = allowed.into_iter().find(|n| states[*n] == state);
            found.map(Some).ok_or_else(|| {
                let wanted = &states[returned];
                let lost: Vec<_> = wanted.iter().filter(|(k, value)| state.get((*k).borrow() as &T::Key) != Some(value)).collect();
                let strange: Vec<_> =
                    state.iter().filter(|(k, value)| wanted.get((*k).borrow() as &T::Key) != Some(value)).collect();
                format!(
                    "after {returned} operations, {durable} of them durable: lost or changed {lost:?}, there instead {strange:?}"
                )
            })
        }
    }
}

/// Notes of the process after a killed one are greater than any before.
const KILLED: u64 = 1 << 32;

/// A trace that goes on after a kill.
pub struct Killed<T: Tree> {
    /// Of both processes.
    pub trace: Trace,
    /// Events of the second one's recovery.
    pub recovery: std::ops::Range<usize>,
    /// What the second one found, and after each of its operations.
    pub states: Vec<State<T::Key>>,
    /// The first one's.
    before: Vec<State<T::Key>>,
}

impl<T: Tree> Killed<T> {
    /// Checks an image of a crash under the second process.
    pub fn check(&self, medium: &SimMedium, notes: &[u64]) -> Result<(), String> {
        let (first, second): (Vec<u64>, Vec<u64>) = notes.iter().partition(|note| **note < KILLED);
        let second: Vec<u64> = second.into_iter().map(|note| note - KILLED).collect();
        // Until the second one has opened the tree, the first one's promises are all there are.
        let (notes, states) = if second.is_empty() { (first, &self.before) } else { (second, &self.states) };
        check_image::<T>(medium, &notes, states).map(|_| ())
    }
}

/// The trace of a process that was killed and left what `left` makes, and of the next one, which opens the tree and works on it; `None`
/// where there is no tree yet.
pub fn killed<T: Tree>(left: &dyn Fn() -> SimMedium, seed: u64, before: &[State<T::Key>]) -> Result<Option<Killed<T>>, String> {
    let medium = left();
    let events = medium.events();
    let Some(n) = check_image::<T>(&medium, &medium.trace().notes(), before)? else { return Ok(None) };
    // Afresh: that check has made all of it durable.
    let medium = left();
    let tree = T::open_or_create(&medium, &Shape::default()).map_err(|e| e.to_string())?;
    let recovery = events..medium.events();
    medium.note(KILLED);
    let mut rng = SmallRng::seed_from_u64(seed ^ events as u64);
    let mut states = vec![before[n].clone()];
    let mut session = tree.worker().map_err(|e| e.to_string())?;
    for i in 1..12 {
        let mut state = states[states.len() - 1].clone();
        let (key, value) = (T::Key::of(rng.random_range(0..40)), rng.random());
        match apart(|| session.upsert(key.borrow(), value)) {
            Ok(_) => drop(state.insert(key, value)),
            Err(Error::OutOfSpace { .. }) => {}
            Err(e) => return Err(e.to_string()),
        }
        states.push(state);
        medium.note(KILLED + i);
    }
    drop(session);
    let trace = medium.trace();
    tree.leave();
    Ok(Some(Killed { trace, recovery, states, before: before.to_vec() }))
}
