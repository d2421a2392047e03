//! A generation of random operations on a tree, each noted in the trace when it has returned.
//!
//! ```text
//!   open or create ─ note 0 ─ operation ─ note 1 ─ operation ─ note 2 ...     a crash after note n, before note n + 1:
//!                                                                             the state after n operations, or after n + 1
//!   buffered:    note 0 ─ operation ─ (note 1) ─ operation ─ (note 2) ─ sync ─ note 2 ...     the state after any number of operations
//!                                                                             from the last note n that is not in parentheses on
//! ```
//!
//! What must always hold: each operation finds what the model says is there; one that is refused for want of space changes nothing; the tree
//! is sound when the work is done.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::SmallRng;
use towa_media::sim::SimMedium;
use towa_tree::{Error, Key};
use towa_tx::{Commit, TmChoice};

use super::kind::{Drawn, Tree, owned};

/// What a tree holds.
pub type State<K> = BTreeMap<<K as Key>::Owned, u64>;

/// What a world is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Entries of an FPTree's leaf.
    pub entries: u32,
    /// Bytes of the arena or heap.
    pub len: u64,
    /// The number of the first key.
    pub first_key: u64,
    /// Different keys.
    pub keys: u64,
    /// Operations of a generation.
    pub operations: usize,
    /// How transactions run.
    pub tm: TmChoice,
    /// When they are durable.
    pub commit: Commit,
    /// A checkpoint comes before one operation in so many; 0: never.
    pub checkpoint_one_in: u32,
    /// Whether the generation ends in closing the tree.
    pub close: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            entries: 4,
            len: 512 << 10,
            first_key: 0,
            keys: 30,
            operations: 70,
            tm: TmChoice::Stm,
            commit: Commit::Strict,
            checkpoint_one_in: 0,
            close: false,
        }
    }
}

/// In a note: that so many operations have returned, and may not be durable.
pub const BUFFERED: u64 = 1 << 31;

/// A generation's work.
pub struct World<T: Tree> {
    /// States after 0, 1, 2 ... operations since the tree was opened; the notes of the trace count them.
    pub states: Vec<State<T::Key>>,
    /// Operations that were refused for want of space.
    pub refused: usize,
    /// What a medium that fails made of it; the last state is that of the operation that failed, as if it had been done.
    pub failed: Option<String>,
}

impl<T: Tree> World<T> {
    /// Opens (or creates) the tree on `medium`, which holds `state`, and works on it.
    pub fn run(medium: &SimMedium, rng: &mut SmallRng, state: State<T::Key>, shape: &Shape) -> Result<World<T>, String> {
        let mut world = World { states: vec![state], refused: 0, failed: None };
        medium.strict_space();
        let tree = match T::open_or_create(medium, shape) {
            Ok(tree) => tree,
            Err(e) => {
                world.failed = Some(e.to_string());
                return Ok(world);
            }
        };
        medium.note(0);
        match world.work(&tree, medium, rng, shape) {
            Ok(()) if world.failed.is_none() => {
                world.end(tree, shape)?;
                if shape.close && world.failed.is_none() {
                    medium.note(world.states.len() as u64 - 1);
                }
            }
            Ok(()) => tree.leave(),
            Err(e) => {
                tree.leave();
                return Err(e);
            }
        }
        Ok(world)
    }

    /// Checks the tree and ends it.
    fn end(&mut self, tree: T, shape: &Shape) -> Result<(), String> {
        match tree.check() {
            // A medium may fail as late as when a session gives back what it kept for itself.
            Err(e @ (Error::Tx(_) | Error::Media(_))) => {
                self.failed = Some(e.to_string());
                tree.leave();
            }
            Err(e) => return Err(format!("after the work: {e}")),
            Ok(()) if shape.close => self.failed = tree.close().err().map(|e| format!("closing: {e}")),
            Ok(()) => tree.leave(),
        }
        Ok(())
    }

    fn work(&mut self, tree: &T, medium: &SimMedium, rng: &mut SmallRng, shape: &Shape) -> Result<(), String> {
        let mut session = match tree.worker() {
            Ok(session) => session,
            Err(e) => {
                self.failed = Some(e.to_string());
                return Ok(());
            }
        };
        // Growing and shrinking in turn, so that leaves split and go.
        let mut growing = true;
        for n in 1..=shape.operations {
            if rng.random_ratio(1, 12) {
                growing = !growing;
            }
            let before = self.states[self.states.len() - 1].clone();
            let due = shape.checkpoint_one_in > 0 && rng.random_ratio(1, shape.checkpoint_one_in);
            let sync = due && shape.commit == Commit::Buffered && rng.random();
            if let Some(Err(e)) = due.then(|| apart(|| if sync { tree.sync() } else { tree.checkpoint() })) {
                self.failed = Some(e.to_string());
                self.states.push(before);
                break;
            }
            if sync {
                medium.note(n as u64 - 1);
            }
            let key = T::Key::of(shape.first_key + rng.random_range(0..shape.keys));
            let key: &T::Key = key.borrow();
            let value = rng.random();
            let mut state = before.clone();
            let result = match rng.random_range(0..10) {
                0..2 => {
                    let expected = state.insert(owned(key), value);
                    apart(|| session.upsert(key, value)).map(|old| old == expected)
                }
                2..6 if growing => {
                    let expected = !state.contains_key(key);
                    state.entry(owned(key)).or_insert(value);
                    apart(|| session.insert(key, value)).map(|added| added == expected)
                }
                _ => {
                    let expected = state.remove(key);
                    apart(|| session.remove(key)).map(|old| old == expected)
                }
            };
            match result {
                Ok(true) => self.states.push(state),
                Ok(false) => return Err(format!("operation {n} did not find what was there")),
                Err(Error::OutOfSpace { .. }) => {
                    self.refused += 1;
                    self.states.push(before);
                }
                Err(e) => {
                    self.failed = Some(e.to_string());
                    self.states.push(state);
                    break;
                }
            }
            medium.note(if shape.commit == Commit::Buffered { BUFFERED } else { 0 } | n as u64);
        }
        Ok(())
    }
}

/// Runs an operation in a thread of its own, so that no fence of another covers what it wrote back.
pub fn apart<R: Send>(operation: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(operation).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
