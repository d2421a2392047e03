//! The crash sweep of the FPTree.
//!
//! ```text
//!   create ─ note 0 ─ operation ─ note 1 ─ operation ─ note 2 ...        a crash after note n, before note n + 1:
//!                                                                        the state after n operations, or after n + 1
//! ```
//!
//! Leaves of few entries, so that a few dozen operations split and unlink many; small arenas, so that the high-water mark rises often, and
//! now and then there is no room. What must always hold after recovery from an image: all keys and values of one of the two states; every
//! invariant of the tree, and that each block that is taken has exactly one owner. For some images the recovery is crashed, too, everywhere:
//! the state that it gave must be given again. One image is worked on further, for several generations.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use towa_media::sim::{Explorer, Model, SimMedium, Trace};
use towa_tree::fptree::Options;
use towa_tree::{Direction, Error, FpTree, Key, OrderedMap};

/// Keys that are drawn.
pub trait Drawn: Key {
    /// The key of a number.
    fn of(n: u64) -> Self::Owned;
}

impl Drawn for u64 {
    fn of(n: u64) -> u64 {
        n << 32 | n
    }
}

impl Drawn for [u8] {
    /// Of several size classes, some a beginning of others.
    fn of(n: u64) -> Vec<u8> {
        let mut key = (n as u32 / 2).to_be_bytes().to_vec();
        key.resize(4 + (n % 2 * (n * 7 % 90)) as usize, 0);
        key
    }
}

/// What a tree holds.
pub type State<K> = BTreeMap<<K as Key>::Owned, u64>;

/// What a world is like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Entries of a leaf.
    pub entries: u32,
    /// Bytes of the arena.
    pub len: u64,
    /// Different keys.
    pub keys: u64,
    /// Operations of a generation.
    pub operations: usize,
}

impl Shape {
    /// A shape by chance.
    pub fn draw(rng: &mut SmallRng) -> Shape {
        let len = if rng.random_ratio(1, 4) { rng.random_range(24..48) << 10 } else { 512 << 10 };
        Shape { entries: rng.random_range(2..6), len, keys: rng.random_range(8..40), operations: rng.random_range(20..70) }
    }
}

/// A generation's work.
pub struct World<K: Key + ?Sized> {
    /// States after 0, 1, 2 ... operations since the pool was opened; the notes of the trace count from `first_note`.
    pub states: Vec<State<K>>,
    /// Operations that were refused for want of space.
    pub refused: usize,
    /// What a medium that fails made of it; the last state is that of the operation that failed, as if it had been done.
    pub failed: Option<String>,
}

/// What of a sweep was explored.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Crash images recovered and checked, those of crashed recoveries included.
    pub images: usize,
    /// Of these: crashes during recovery.
    pub images_in_recovery: usize,
    /// Of these: crashes of the machine after a process was killed and the next one recovered.
    pub images_after_kill: usize,
    /// Pools from creation on.
    pub worlds: usize,
    /// Operations.
    pub operations: usize,
    /// Operations refused for want of space.
    pub refused: usize,
}

impl<K: Drawn + ?Sized> World<K> {
    /// Opens (or creates) the tree on `medium`, which holds `state`, and works on it, noting each operation that returned.
    pub fn run(medium: &SimMedium, rng: &mut SmallRng, state: State<K>, shape: &Shape) -> Result<World<K>, String> {
        let mut world = World { states: vec![state], refused: 0, failed: None };
        medium.strict_space();
        let shared = Arc::new(medium.clone());
        let tree = match FpTree::<K>::open(shared.clone()) {
            Err(Error::Alloc(towa_alloc::Error::Missing { .. })) => {
                FpTree::create(shared, &Options { len: shape.len, entries: shape.entries })
            }
            other => other,
        };
        let tree = match tree {
            Ok(tree) => tree,
            Err(e) => {
                world.failed = Some(e.to_string());
                return Ok(world);
            }
        };
        medium.note(0);
        let mut session = tree.session();
        // Growing and shrinking in turn, so that leaves split and go.
        let mut growing = true;
        for n in 1..=shape.operations {
            if rng.random_ratio(1, 12) {
                growing = !growing;
            }
            let key = K::of(rng.random_range(0..shape.keys));
            let key: &K = key.borrow();
            let mut owned = K::Owned::default();
            key.copy_to(&mut owned);
            let value = rng.random();
            let before = world.states[world.states.len() - 1].clone();
            let mut state = before.clone();
            let result = match rng.random_range(0..10) {
                0..2 => {
                    let expected = state.insert(owned, value);
                    apart(|| session.upsert(key, value)).map(|old| old == expected)
                }
                2..6 if growing => {
                    let expected = !state.contains_key(key);
                    state.entry(owned).or_insert(value);
                    apart(|| session.insert(key, value)).map(|added| added == expected)
                }
                _ => {
                    let expected = state.remove(key);
                    apart(|| session.remove(key)).map(|old| old == expected)
                }
            };
            match result {
                Ok(true) => world.states.push(state),
                Ok(false) => return Err(format!("operation {n} did not find what was there")),
                Err(Error::OutOfSpace { .. }) => {
                    world.refused += 1;
                    world.states.push(before);
                }
                Err(e) => {
                    world.failed = Some(e.to_string());
                    world.states.push(state);
                    break;
                }
            }
            medium.note(n as u64);
        }
        if world.failed.is_none() {
            drop(session);
            tree.check().map_err(|e| format!("after the work: {e}"))?;
        }
        Ok(world)
    }
}

/// Runs an operation in a thread of its own, so that no fence of another covers what it wrote back.
fn apart<R: Send>(operation: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(operation).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Everything in the tree on `medium`, which is recovered and checked; `None` where there is none.
pub fn recovered<K: Drawn + ?Sized>(medium: &SimMedium) -> Result<Option<State<K>>, String> {
    let tree = match FpTree::<K>::open(Arc::new(medium.clone())) {
        Ok(tree) => tree,
        Err(Error::Alloc(towa_alloc::Error::Missing { .. })) => return Ok(None),
        Err(e) => return Err(format!("recovery refused: {e}")),
    };
    tree.check().map_err(|e| format!("after recovery: {e}"))?;
    let mut state = State::<K>::new();
    let each = |key: &K, value| {
        let mut owned = K::Owned::default();
        key.copy_to(&mut owned);
        state.insert(owned, value);
        ControlFlow::Continue(())
    };
    let mut session = tree.session();
    session.scan((Bound::Unbounded, Bound::Unbounded), Direction::Forward, each).map_err(|e| e.to_string())?;
    // What a scan gives a search finds.
    for (key, value) in &state {
        let found = session.get(key.borrow()).map_err(|e| e.to_string())?;
        if found != Some(*value) {
            return Err(format!("{key:?} is there, and a search gives {found:?}"));
        }
    }
    Ok(Some(state))
}

/// Recovers `medium` and compares it with what must be there; gives the number of the state that is, or `None` where there is rightly no
/// tree. `notes`: those taken since the opening.
pub fn check_image<K: Drawn + ?Sized>(medium: &SimMedium, notes: &[u64], states: &[State<K>]) -> Result<Option<usize>, String> {
    let returned = notes.last().copied().unwrap_or(0) as usize;
    match recovered::<K>(medium)? {
        None if notes.is_empty() && states[0].is_empty() => Ok(None),
        None => Err("the tree is gone".into()),
        Some(state) => {
            let allowed = returned..=(returned + 1).min(states.len() - 1);
            let found = allowed.into_iter().find(|n| states[*n] == state);
            found.map(Some).ok_or_else(|| {
                let wanted = &states[returned];
                let lost: Vec<_> = wanted.iter().filter(|(key, value)| state.get((*key).borrow() as &K) != Some(value)).collect();
                let strange: Vec<_> =
                    state.iter().filter(|(key, value)| wanted.get((*key).borrow() as &K) != Some(value)).collect();
                format!("after {returned} operations: lost or changed {lost:?}, there instead {strange:?}")
            })
        }
    }
}

/// Generations of one world.
const GENERATIONS: usize = 3;
/// Images of one generation.
const IMAGES: usize = 800;
/// One image in so many has its recovery crashed.
const CRASH_RECOVERY_ONE_IN: u32 = 60;
/// Images of one crashed recovery.
const IMAGES_PER_RECOVERY: usize = 60;
/// Moments in a generation at which the process is killed.
const KILLS: usize = 4;

/// Explores about `images` crash images, worlds drawn from `seed` on; an error tells the seed of its world.
pub fn sweep(seed: u64, images: usize, model: Option<Model>) -> Result<Report, String> {
    let mut report = Report::default();
    while report.images < images {
        let seed = seed.wrapping_add(report.worlds as u64);
        let model = model.unwrap_or(if seed.is_multiple_of(2) { Model::Line } else { Model::File });
        let result = match seed / 2 % 2 {
            0 => run_world::<u64>(seed, model, &mut report),
            _ => run_world::<[u8]>(seed, model, &mut report),
        };
        result.map_err(|e| format!("seed {seed}: {e}"))?;
        report.worlds += 1;
    }
    Ok(report)
}

fn run_world<K: Drawn + ?Sized>(seed: u64, model: Model, report: &mut Report) -> Result<(), String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = Shape::draw(&mut rng);
    let (mut medium, mut state) = (SimMedium::new(model), State::<K>::new());
    for generation in 0..GENERATIONS {
        let place = |e: String| format!("{} {model:?} {shape:?}, generation {generation}: {e}", K::NAME);
        let world = World::<K>::run(&medium, &mut rng, state, &shape).map_err(place)?;
        if let Some(e) = world.failed {
            return Err(place(e));
        }
        report.operations += world.states.len() - 1;
        report.refused += world.refused;
        let survivor = explore::<K>(&medium.trace(), seed, &world.states, &mut rng, report).map_err(place)?;
        let Some((next, n)) = survivor else { return Ok(()) };
        state = world.states[n].clone();
        medium = next;
    }
    Ok(())
}

/// Checks images of a generation; gives one of them, with its state, to go on with.
fn explore<K: Drawn + ?Sized>(
    trace: &Trace,
    seed: u64,
    states: &[State<K>],
    rng: &mut SmallRng,
    report: &mut Report,
) -> Result<Option<(SimMedium, usize)>, String> {
    let mut survivor = None;
    let mut in_recovery = 0;
    let coverage = Explorer::new(trace.clone(), seed)
        .check(IMAGES, |image| {
            let medium = image.to_medium();
            let Some(n) = check_image::<K>(&medium, image.notes(), states)? else { return Ok(()) };
            if rng.random_ratio(1, CRASH_RECOVERY_ONE_IN) {
                in_recovery += crash_recovery::<K>(&medium.trace(), seed, &states[n])?;
            }
            if survivor.is_none() || rng.random_ratio(1, 300) {
                survivor = Some((image.to_medium(), n));
            }
            Ok(())
        })
        .map_err(|e| e.to_string())?;
    let mut after_kill = 0;
    for _ in 0..KILLS {
        after_kill += kill::<K>(trace, rng.random_range(0..=trace.len()), seed, states)?;
    }
    report.images += coverage.images + in_recovery + after_kill;
    report.images_in_recovery += in_recovery;
    report.images_after_kill += after_kill;
    Ok(survivor)
}

/// Crashes the recovery that `trace` recorded, everywhere: `state` must be given again.
fn crash_recovery<K: Drawn + ?Sized>(trace: &Trace, seed: u64, state: &State<K>) -> Result<usize, String> {
    let coverage = Explorer::new(trace.clone(), seed)
        .check(IMAGES_PER_RECOVERY, |image| match recovered::<K>(&image.to_medium())? {
            Some(again) if again == *state => Ok(()),
            again => Err(format!("recovery gave {state:?}; crashed and repeated it gave {again:?}")),
        })
        .map_err(|e| format!("crash during recovery: {e}"))?;
    Ok(coverage.images)
}

/// Kills the process after `events` events: the next one recovers, reads what may not be durable yet, works on, and what it read must then
/// survive a crash of the machine.
pub fn kill<K: Drawn + ?Sized>(trace: &Trace, events: usize, seed: u64, states: &[State<K>]) -> Result<usize, String> {
    let place = |e: String| format!("process killed after {events} events: {e}");
    let Some(killed) = killed::<K>(trace, events, seed, states).map_err(place)? else { return Ok(1) };
    let coverage = Explorer::new(killed.trace.clone(), seed)
        .starting_at(events)
        .check(IMAGES_PER_RECOVERY, |image| killed.check(&image.to_medium(), image.notes()))
        .map_err(|e| place(e.to_string()))?;
    Ok(coverage.images)
}

/// Notes of the process after a killed one are greater than any before.
const KILLED: u64 = 1 << 32;

/// A trace that goes on after a kill.
pub struct Killed<K: Key + ?Sized> {
    /// Of both processes.
    pub trace: Trace,
    /// Events of the second one's recovery.
    pub recovery: std::ops::Range<usize>,
    /// What the second one found, and after each of its operations.
    pub states: Vec<State<K>>,
}

impl<K: Drawn + ?Sized> Killed<K> {
    /// Checks an image of a crash under the second process.
    pub fn check(&self, medium: &SimMedium, notes: &[u64]) -> Result<(), String> {
        let notes: Vec<u64> = notes.iter().filter(|note| **note >= KILLED).map(|note| note - KILLED).collect();
        match notes.is_empty() {
            // Until it has opened the tree, it has promised nothing: what it found is what was in flight.
            true => recovered::<K>(medium).map(|_| ()),
            false => check_image::<K>(medium, &notes, &self.states).map(|_| ()),
        }
    }
}

/// The trace of a process that is killed after `events` events, and of the next one, which opens the tree and works on it; `None` where there
/// is no tree yet.
pub fn killed<K: Drawn + ?Sized>(
    trace: &Trace,
    events: usize,
    seed: u64,
    states: &[State<K>],
) -> Result<Option<Killed<K>>, String> {
    let medium = trace.killed_after(events);
    let Some(n) = check_image::<K>(&medium, &medium.trace().notes(), states)? else { return Ok(None) };
    // Afresh: that check has made all of it durable.
    let medium = trace.killed_after(events);
    let tree = FpTree::<K>::open(Arc::new(medium.clone())).map_err(|e| e.to_string())?;
    let recovery = events..medium.events();
    medium.note(KILLED);
    let mut session = tree.session();
    let mut rng = SmallRng::seed_from_u64(seed ^ events as u64);
    let mut states = vec![states[n].clone()];
    for i in 1..12 {
        let mut state = states[states.len() - 1].clone();
        let (key, value) = (K::of(rng.random_range(0..40)), rng.random());
        match apart(|| session.upsert(key.borrow(), value)) {
            Ok(_) => drop(state.insert(key, value)),
            Err(Error::OutOfSpace { .. }) => {}
            Err(e) => return Err(e.to_string()),
        }
        states.push(state);
        medium.note(KILLED + i);
    }
    Ok(Some(Killed { trace: medium.trace(), recovery, states }))
}
