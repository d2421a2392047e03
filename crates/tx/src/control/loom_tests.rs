//! Models of announcing, of the frontier and of a log's hand-over, under every schedule that loom tells apart (`make loom`).
//!
//! `announce`, `frontier`, `no_later` and the sequence lock are the real ones, on loom's words. What a transaction does beyond them is
//! played as `durable.rs` and `thread.rs` do it, step by step:
//!
//! ```text
//!   announce ─ take effect at t ─ version ─ announced = t ─ record ─ head ─ announced = 0
//! ```
//!
//! Each model is run once more with one step undone, named by its test, and must then fail: so what is shown rests on that step.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

/// What is undone of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// `announce` stores its word, and does not wait until others see it.
    Barrier,
    /// `frontier` reads the time when it has seen the lanes.
    TimeFirst,
    /// The checkpointer looks how far logs go before it asks for the frontier.
    FrontierFirst,
    /// The time of the effect is announced before the transaction takes effect, and nothing before that.
    Announcing,
    /// An announcement is taken back without a promise of what came before.
    Release,
    /// A head moves without one.
    ReleaseOfHead,
    /// A tail moves without one.
    ReleaseOfTail,
    /// A transaction under versions does not say that it is one.
    Flag,
    /// It does not look whether software transactions run.
    Look,
    /// It has not taken effect when it says so.
    End,
    /// A software transaction does not wait for those under versions that did not see it.
    Waiting,
    /// Beside it one under versions does not take the sequence lock.
    Lock,
    /// What it writes may be seen before that lock is.
    Fence,
    /// A transaction that stamps no lines says so when it has taken effect.
    Stamped,
    /// The next one says that it stamps before the one before it is durable.
    StampedLater,
}

const PASSED_OVER: &str = "the frontier passes a transaction over";
const TAKEN: &str = "taken for durable";
const TORN: &str = "half of a transaction is seen";
const RACE: &str = "Causality violation";

/// Who of a model's two sides is the thread that loom begins with, and whether that lets the other go first.
#[derive(Clone, Copy, Debug)]
struct Turn {
    looks_first: bool,
    yields: bool,
}

/// What the two sides of a model come to.
fn beside<U: 'static, L: 'static>(turn: Turn, user: impl FnOnce() -> U + 'static, look: impl FnOnce() -> L + 'static) -> (U, L) {
    let give_way = || {
        if turn.yields {
            thread::yield_now()
        }
    };
    if turn.looks_first {
        let user = thread::spawn(user);
        give_way();
        let looked = look();
        (user.join().expect("no panic"), looked)
    } else {
        let look = thread::spawn(look);
        give_way();
        let used = user();
        (used, look.join().expect("no panic"))
    }
}

/// What loom finds wrong with a model, if anything. It goes through schedules from a first one on, and misses some: so from four of them.
fn found(model: impl Fn(Turn) + Copy + Sync + Send + 'static) -> Option<String> {
    let turns =
        [(true, false), (true, true), (false, false), (false, true)].map(|(looks_first, yields)| Turn { looks_first, yields });
    let first = turns.into_iter().find_map(|turn| catch_unwind(AssertUnwindSafe(|| loom::model(move || model(turn)))).err());
    let panic = first?;
    let said = panic.downcast_ref::<String>().cloned();
    Some(said.or(panic.downcast_ref::<&str>().map(|said| said.to_string())).unwrap_or_default())
}

/// Loom finds nothing wrong with `model` as it is, and just this without each of these steps.
fn assert_needed(model: impl Fn(Without) -> Option<String>, wrong: &str, steps: &[Without]) {
    assert_eq!(model(Without::Nothing), None);
    for without in steps {
        let found = model(*without).unwrap_or_else(|| panic!("without {without:?} nothing is wrong"));
        assert!(found.contains(wrong), "without {without:?}: {found}");
    }
}

/// A pool's shared words, and what stands for its data: of the one thread's transactions.
struct World {
    control: Control,
    /// The version word of what they change.
    version: AtomicU64,
    /// How many of their records are durable.
    durable: AtomicU64,
}

impl World {
    fn new(clock: Clock) -> Arc<World> {
        let word = || AtomicU64::new(0);
        let lane = || Lane {
            announced: word(),
            guarded: word(),
            stamped: word(),
            _line: [0; 13],
            head: word(),
            tail: word(),
            taken: AtomicU32::new(0),
            _reserved: 0,
        };
        let number = AtomicU32::new;
        let control = Control {
            sequence: Sequence::default(),
            magic: word(),
            generation: word(),
            owner: word(),
            checkpointer: word(),
            counter: number(u32::from(clock == Clock::Counter)),
            first_tick: word(),
            lanes_used: number(1),
            work: number(0),
            done: number(0),
            stop: number(0),
            asleep: number(0),
            attached: number(0),
            synced: number(0),
            applied: word(),
            guarded_lanes: word(),
            lanes: std::array::from_fn(|_| lane()),
        };
        Arc::new(World { control, version: word(), durable: word() })
    }

    /// One transaction of lane 0, the `count`-th; gives the time at which it took effect.
    fn transact(&self, count: u64, without: Without) -> u64 {
        let (control, lane) = (&self.control, &self.control.lanes[0]);
        match without {
            Without::Announcing => {}
            Without::Barrier => lane.announced.store(control.no_later().max(1), Release),
            _ => assert!(control.announce(0, false) > 0),
        }
        let timestamp = match control.clock() {
            Clock::Tsc => clock::tsc(),
            Clock::Counter => {
                while !control.sequence.try_take(control.sequence.wait_even()) {}
                control.sequence.number() + 1
            }
        };
        self.version.store(timestamp, Release);
        if control.clock() == Clock::Counter {
            control.sequence.give_back();
        }
        lane.announced.store(timestamp, Release);
        self.durable.store(count, Relaxed);
        lane.head.store(count, Release);
        lane.announced.store(0, if without == Without::Release { Relaxed } else { Release });
        timestamp
    }

    fn frontier(&self, without: Without) -> u64 {
        if without != Without::TimeFirst {
            return self.control.frontier(usize::MAX);
        }
        let announced = self.control.lanes[0].announced.load(Acquire);
        clock::before_loads();
        let now = self.control.no_later();
        if announced != 0 { now.min(announced - 1) } else { now }
    }
}

/// A checkpointer applies all up to the frontier from what lies below the heads: so no transaction up to the frontier is behind them.
fn frontier(clock: Clock, transactions: u64, without: Without) -> Option<String> {
    found(move |turn| {
        let world = World::new(clock);
        let (user, looking) = (Arc::clone(&world), world);
        let user = move || (1..=transactions).map(|count| user.transact(count, without)).collect::<Vec<_>>();
        let look = move || {
            let head = || looking.control.lanes[0].head.load(Acquire);
            if without == Without::FrontierFirst {
                let head = head();
                return (looking.frontier(without), head);
            }
            (looking.frontier(without), head())
        };
        let (times, (upto, head)) = beside(turn, user, look);
        let older = times.iter().filter(|time| **time <= upto).count() as u64;
        assert!(head >= older, "{PASSED_OVER}: up to {upto} {older} took effect, {head} are in the log: {times:?}");
    })
}

#[test]
fn loom_the_frontier_passes_no_transaction_over() {
    let steps = [Without::Barrier, Without::TimeFirst, Without::FrontierFirst, Without::Announcing, Without::Release];
    assert_needed(|without| frontier(Clock::Tsc, 1, without), PASSED_OVER, &steps);
    assert_eq!(frontier(Clock::Tsc, 2, Without::Nothing), None);
}

/// The counter is a word like others: who reads it sees who announced himself before he moved it. The barrier is for the TSC alone.
#[test]
fn loom_the_frontier_of_a_counter_passes_no_transaction_over() {
    let steps = [Without::TimeFirst, Without::FrontierFirst, Without::Announcing, Without::Release];
    assert_needed(|without| frontier(Clock::Counter, 1, without), PASSED_OVER, &steps);
    assert_eq!(frontier(Clock::Counter, 1, Without::Barrier), None);
}

/// Who has read a version waits until its lane announces nothing, or something newer: then the record is durable.
fn dependency(without: Without) -> Option<String> {
    found(move |turn| {
        let world = World::new(Clock::Tsc);
        let (user, looking) = (Arc::clone(&world), world);
        let user = move || (1..=2).map(|count| user.transact(count, without)).collect::<Vec<_>>();
        let look = move || {
            let version = looking.version.load(Acquire);
            // One look is enough: who is not told that it is durable looks again.
            let announced = looking.control.lanes[0].announced.load(Acquire);
            (version, announced, looking.durable.load(Relaxed))
        };
        let (times, (version, announced, durable)) = beside(turn, user, look);
        if version != 0 && (announced == 0 || announced > version) {
            let count = 1 + times.iter().position(|time| *time == version).expect("one of them") as u64;
            assert!(durable >= count, "{TAKEN}: transaction {count} of {times:?}, announced {announced}");
        }
    })
}

/// A thread runs a transaction that stamps lines, one that does not, and one that does. Another thread that has seen the second waits until
/// it is durable.
fn unstamped(without: Without) -> Option<String> {
    found(move |turn| {
        let world = World::new(Clock::Tsc);
        let (user, looking) = (Arc::clone(&world), world);
        let user = move || {
            let (control, lane) = (&user.control, &user.control.lanes[0]);
            control.announce(0, true);
            user.durable.store(1, Relaxed);
            lane.announced.store(0, Release);
            control.announce(0, without == Without::Stamped);
            let timestamp = clock::tsc();
            user.version.store(timestamp, Release);
            if matches!(without, Without::Stamped | Without::StampedLater) {
                lane.stamped.store(u64::from(without == Without::StampedLater), Release);
            }
            user.durable.store(2, Relaxed);
            lane.announced.store(0, Release);
            control.announce(0, true);
        };
        let look = move || {
            let version = looking.version.load(Acquire);
            (version, looking.control.unstamped_frontier(usize::MAX), looking.durable.load(Relaxed))
        };
        let ((), (version, frontier, durable)) = beside(turn, user, look);
        assert!(version == 0 || frontier < version || durable == 2, "{TAKEN}: frontier {frontier}, version {version}");
    })
}

#[test]
fn loom_who_stamps_no_lines_is_waited_for() {
    assert_needed(unstamped, TAKEN, &[Without::Stamped, Without::StampedLater]);
}

#[test]
fn loom_nobody_depends_on_what_is_not_durable() {
    assert_needed(dependency, TAKEN, &[Without::Announcing, Without::Release]);
}

/// Log space of one record: its writer stores into it what the checkpointer has read, and the checkpointer reads what is there.
fn log_space(without: Without) -> Option<String> {
    found(move |turn| {
        let world = World::new(Clock::Tsc);
        let (writing, reading) = (Arc::clone(&world), world);
        let space = Arc::new(UnsafeCell::new(0_u64));
        let log = Arc::clone(&space);
        let user = move || {
            let lane = &writing.control.lanes[0];
            for count in 1..=2 {
                // As `has_room` looks; who finds none waits elsewhere, and here gives up.
                if count - 1 > lane.tail.load(Acquire) {
                    return;
                }
                // SAFETY: loom finds whoever else uses it meanwhile.
                log.with_mut(|log| unsafe { *log = count });
                lane.head.store(count, if without == Without::ReleaseOfHead { Relaxed } else { Release });
            }
        };
        let look = move || {
            let lane = &reading.control.lanes[0];
            let head = lane.head.load(Acquire);
            if head == 1 {
                // SAFETY: as above.
                assert_eq!(space.with(|space| unsafe { *space }), 1);
                lane.tail.store(head, if without == Without::ReleaseOfTail { Relaxed } else { Release });
            }
        };
        beside(turn, user, look);
    })
}

#[test]
fn loom_a_log_is_written_again_when_it_was_read() {
    assert_needed(log_space, RACE, &[Without::ReleaseOfHead, Without::ReleaseOfTail]);
}

/// A transaction under versions writes two words; a software one, which no lock of a version tells anything, reads both or neither.
fn beside_software(without: Without) -> Option<String> {
    found(move |turn| {
        let world = World::new(Clock::Tsc);
        let (writing, reading) = (Arc::clone(&world), world);
        let user = move || {
            let control = &writing.control;
            let (_, mut beside) = control.announce_guarded(0);
            match without {
                Without::Flag => control.end_guarded(0),
                Without::Look => beside = false,
                _ => {}
            }
            if beside && without != Without::Lock {
                // Who does not get it tries again; here he gives up.
                let number = control.sequence.number();
                if !number.is_multiple_of(2) || !control.sequence.try_take(number) {
                    return;
                }
            }
            if without != Without::Fence {
                loom::sync::atomic::fence(Release);
            }
            writing.version.store(1, Relaxed);
            if without == Without::End {
                control.end_guarded(0);
            }
            writing.durable.store(1, Relaxed);
            if beside && without != Without::Lock {
                control.sequence.give_back();
            }
            control.end_guarded(0);
        };
        let look = move || {
            let control = &reading.control;
            control.sequence.enter();
            let waits_for = control.still_guarded(control.guarded_lanes.load(SeqCst));
            if waits_for != 0 && without != Without::Waiting {
                return (0, 0);
            }
            let number = control.sequence.number();
            let read = (reading.version.load(Acquire), reading.durable.load(Acquire));
            // Another number: what was read is looked at again.
            if number.is_multiple_of(2) && control.sequence.number() == number { read } else { (0, 0) }
        };
        let ((), (one, other)) = beside(turn, user, look);
        assert!(one == other, "{TORN}: {one} and {other}");
    })
}

#[test]
fn loom_software_transactions_see_all_or_nothing_of_those_under_versions() {
    let steps = [Without::Flag, Without::Look, Without::End, Without::Waiting, Without::Lock, Without::Fence];
    assert_needed(beside_software, TORN, &steps);
}
