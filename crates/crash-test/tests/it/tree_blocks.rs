//! Blocks of a program's own to which a tree's values lead (docs/tx.md, "Trees"): the two patterns that can be kept, crashed and killed
//! everywhere.
//!
//! ```text
//!   1  made once:    new block, its address in a word of the program's ─ insert ─ word = 0 ...... changed in transactions
//!   2  replaced:     by one thread alone: new block, its address and the old one's in words ─ upsert ─ free the old one, words = 0
//! ```
//!
//! What must hold after a crash: what had returned is there, in the blocks; and once the program has looked at its words, as it does when it
//! starts, exactly one key leads to each block.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::Arc;

use towa_media::sim::{Explorer, Model, SimMedium};
use towa_tree::{BpTree, OrderedMap, Session};
use towa_tx::{Checkpointer, Options, Pool, Root, TmChoice};

type Tree = BpTree<u64, 4, 4>;

/// Words of a block: each holds the same number.
const WORDS: u64 = 12;
/// Crash images of one world, and of one process that followed a killed one.
const IMAGES: usize = 700;
const IMAGES_AFTER_KILL: usize = 40;
/// Keys that are in use, and operations.
const KEYS: u64 = 8;
const OPERATIONS: u64 = 24;

/// What the keys' blocks hold.
type State = BTreeMap<u64, u64>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pattern {
    MadeOnce,
    Replaced,
}

/// The program: its tree, and two words, with the addresses of blocks to which a key may lead or not.
struct Program {
    pool: Pool,
    tree: Tree,
    word: u64,
}

fn options() -> Options {
    Options {
        heap_len: 8 * (128 << 10),
        lanes: 4,
        lane_len: 64 << 10,
        tm: TmChoice::Stm,
        checkpointer: Checkpointer::Manual,
        eager: true,
        ..Options::default()
    }
}

impl Program {
    fn create(medium: &SimMedium) -> Program {
        let pool = Pool::create_on(Arc::new(medium.clone()), &options()).unwrap();
        let word = pool.register().unwrap().transaction(|tx| {
            let block = tx.alloc(64)?;
            tx.init(block, &[0; 8])?;
            let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(block as usize)).expect("an address in the heap");
            tx.set_root("word", Some(Root { ptr, type_tag: 1, size: 64 }))?;
            Ok(block)
        });
        Program { tree: Tree::create(&pool, "tree").unwrap(), word: word.unwrap(), pool }
    }

    /// Starts again: frees those blocks that the words name and no key leads to.
    fn open(medium: &SimMedium) -> Result<Program, String> {
        let pool = Pool::open_on(Arc::new(medium.clone()), &options()).map_err(|e| e.to_string())?;
        let word = pool.root("word").ok_or("the word is gone")?.ptr.as_ptr().addr() as u64;
        let program = Program { tree: Tree::open(&pool, "tree").map_err(|e| e.to_string())?, word, pool };
        let (mut thread, values) = (program.pool.register().map_err(|e| e.to_string())?, program.values());
        let noted: Vec<u64> = thread.load_all(word, 2).into_iter().filter(|block| *block != 0).collect();
        let cleared = thread.transaction(|tx| {
            (0..2).try_for_each(|n| tx.write(word + 8 * n, 0))?;
            let nobodys = noted.iter().filter(|block| !values.values().any(|led_to| led_to == *block));
            nobodys.into_iter().try_for_each(|block| tx.free(*block))
        });
        cleared.map_err(|e| e.to_string())?;
        Ok(program)
    }

    /// Ends as a crash of the process would.
    fn leave(self) {
        self.pool.clone().abandon();
    }

    /// The tree: of each key the block.
    fn values(&self) -> BTreeMap<u64, u64> {
        let mut session = self.tree.session().unwrap();
        (0..KEYS).filter_map(|key| Some((key, session.get(&key).unwrap()?))).collect()
    }

    /// A new block, whose address is in the first word; that of the block in whose place it comes is in the second.
    fn make(&self, number: u64, old: Option<u64>) -> u64 {
        let made = self.pool.register().unwrap().transaction(|tx| {
            let block = tx.alloc(8 * WORDS as usize)?;
            tx.init(block, &[number; WORDS as usize])?;
            tx.write(self.word, block)?;
            tx.write(self.word + 8, old.unwrap_or(0))?;
            Ok(block)
        });
        made.unwrap()
    }

    /// Gives `key` the number.
    fn put(&self, pattern: Pattern, key: u64, number: u64) {
        let mut session = self.tree.session().unwrap();
        let mut thread = self.pool.register().unwrap();
        match (session.get(&key).unwrap(), pattern) {
            (Some(block), Pattern::MadeOnce) => {
                thread.transaction(|tx| (0..WORDS).try_for_each(|n| tx.write(block + 8 * n, number))).unwrap();
            }
            (old, _) => {
                session.upsert(&key, self.make(number, old)).unwrap();
                let done = thread.transaction(|tx| {
                    (0..2).try_for_each(|n| tx.write(self.word + 8 * n, 0))?;
                    old.map_or(Ok(()), |old| tx.free(old))
                });
                done.unwrap();
            }
        }
    }

    /// What the blocks hold; each block has one key, and no other block is anybody's.
    fn state(&self) -> Result<State, String> {
        let (values, thread) = (self.values(), self.pool.register().map_err(|e| e.to_string())?);
        self.tree.check().map_err(|e| e.to_string())?;
        let mut state = State::new();
        for (&key, &block) in &values {
            let words: BTreeSet<u64> = thread.load_all(block, WORDS as usize).into_iter().collect();
            if words.len() != 1 {
                return Err(format!("the block of key {key} holds {words:?}"));
            }
            state.extend(words.into_iter().map(|number| (key, number)));
        }
        if values.values().collect::<BTreeSet<_>>().len() != values.len() {
            return Err(format!("two keys lead to one block: {values:?}"));
        }
        Ok(state)
    }
}

/// What is wrong with what a crash left.
fn check(medium: &SimMedium, states: &[State], returned: usize) -> Result<(), String> {
    let program = Program::open(medium)?;
    let pool = program.pool.clone();
    let checked = program.state().and_then(|state| {
        if !states[returned..=(returned + 1).min(states.len() - 1)].contains(&state) {
            return Err(format!("after {returned} operations there is {state:?}"));
        }
        drop(program);
        Tree::destroy(&pool, "tree").map_err(|e| e.to_string())?;
        // Besides the tree's own: the program's words, and the keys' blocks.
        match pool.check_blocks()? {
            taken if taken == 1 + state.len() as u64 => Ok(()),
            taken => Err(format!("{taken} blocks are taken, and {} keys lead to one each", state.len())),
        }
    });
    pool.abandon();
    checked
}

fn crashed_everywhere(pattern: Pattern) {
    for model in [Model::Line, Model::File] {
        let medium = SimMedium::new(model);
        let program = Program::create(&medium);
        medium.note(0);
        let begun = medium.events();
        let mut states = vec![State::new()];
        for n in 1..=OPERATIONS {
            let key = n * 5 % KEYS;
            program.put(pattern, key, n);
            let mut state = states[states.len() - 1].clone();
            state.insert(key, n);
            states.push(state);
            medium.note(n);
            if n % 7 == 0 {
                program.pool.checkpoint().unwrap();
            }
        }
        program.leave();
        let trace = medium.trace();
        let returned = |notes: &[u64]| notes.last().map_or(0, |note| *note as usize);
        let explored = Explorer::new(trace.clone(), 1)
            .starting_at(begun)
            .check(IMAGES, |image| check(&image.to_medium(), &states, returned(image.notes())))
            .unwrap_or_else(|e| panic!("{pattern:?}, {model:?}: {e}"));
        println!("{pattern:?}, {model:?}: {explored:?}");
        for events in (begun..trace.len()).step_by(trace.len() / 12) {
            // Killed, started again, and then the power goes: what the next process saw is there.
            let medium = trace.killed_after(events);
            let seen = Program::open(&medium).and_then(|program| {
                let state = program.state();
                program.leave();
                state
            });
            let seen = [seen.unwrap_or_else(|e| panic!("{pattern:?}, {model:?}, killed after {events}: {e}"))];
            let after = medium.events();
            Explorer::new(medium.trace(), 1)
                .starting_at(after)
                .check(IMAGES_AFTER_KILL, |image| check(&image.to_medium(), &seen, 0))
                .unwrap_or_else(|e| panic!("{pattern:?}, {model:?}, killed after {events}: {e}"));
        }
    }
}

#[test]
fn blocks_that_are_made_once_and_changed_survive() {
    crashed_everywhere(Pattern::MadeOnce);
}

#[test]
fn blocks_that_one_thread_replaces_survive() {
    crashed_everywhere(Pattern::Replaced);
}
