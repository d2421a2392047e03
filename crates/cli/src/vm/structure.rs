//! The structure: what each transaction writes. Everything in it follows from the numbers of the transactions done.
//!
//! ```text
//!   root ──► header ──► lane 0: seq, list head, list length ──► counters (blocks of many sizes, first and last word)
//!                  │                                       └──► node ──► node ──► ...    a stack that grows and shrinks
//!                  ├──► lane 1: the same, written by another thread
//!                  └──► accounts, shared by the lanes
//! ```
//!
//! Transaction k of a lane: writes f(k) into all its counters, pushes a node or pops one, moves an amount between two accounts. So in
//! every whole state the counters agree with `seq`, the stack is the one that `seq` steps make, balances add up to what they were, and
//! moves to twice the number of all transactions: an epoch that held half a transaction, or an effect without its cause, shows.

use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use towa_epoch::{Pool, Root, Thread, Tx};

use super::block::Block;

/// Threads that write, each its own lane.
pub const LANES: usize = 2;
/// Counters of a lane.
pub const COUNTERS: usize = 8;
/// Accounts between which the lanes move amounts.
pub const ACCOUNTS: usize = 32;
/// Each account's balance at the beginning.
pub const BALANCE: u64 = 1_000_000;

const ROOT: &str = "vm";
const TYPE_TAG: u64 = u64::from_le_bytes(*b"towa-vm1");
/// Transactions in which a stack mostly grows, and as many again in which it mostly shrinks.
const TIDE: u64 = 2048;
/// Nodes at which a stack must shrink.
const NODES_MAX: u64 = 6000;

/// Bytes that making the structure may write: more than a transaction may without asking.
const CREATION: usize = 128 << 10;

const HEADER_WORDS: u64 = (LANES + ACCOUNTS) as u64;
const LANE_WORDS: u64 = 3 + COUNTERS as u64;
const ACCOUNT_WORDS: u64 = 2;
/// Words of a node before its payload: next, seq, payload words.
const NODE_WORDS: u64 = 3;
// Words of a lane ...
const SEQ: usize = 0;
const HEAD: usize = 1;
const NODES: usize = 2;
const FIRST_COUNTER: usize = 3;
// ... and of an account.
const BALANCE_WORD: usize = 0;
const MOVES: usize = 1;

/// A pseudo-random word that follows from `seed` (splitmix64).
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn chance(lane: usize, seq: u64, what: u64) -> u64 {
    mix(mix(seq ^ (lane as u64) << 56) ^ what)
}

/// Whether transaction `seq` of `lane` pushes, with `nodes` on the stack.
pub fn pushes(lane: usize, seq: u64, nodes: u64) -> bool {
    let quarter = chance(lane, seq, 1).is_multiple_of(4);
    let grows = (seq / TIDE).is_multiple_of(2);
    nodes == 0 || (nodes < NODES_MAX && grows != quarter)
}

/// Words of the payload that transaction `seq` pushes: mostly small, now and then several pages.
pub fn payload_words(lane: usize, seq: u64) -> u64 {
    let dice = chance(lane, seq, 2);
    if dice.is_multiple_of(64) { 1024 + dice / 64 % 1024 } else { dice / 64 % 64 }
}

/// Word `index` of that payload.
pub fn payload(lane: usize, seq: u64, index: u64) -> u64 {
    chance(lane, seq, 1000 + index)
}

/// What counter `index` of `lane` holds after transaction `seq`.
pub fn counter_value(lane: usize, seq: u64, index: usize) -> u64 {
    chance(lane, seq, 100 + index as u64)
}

/// Words of counter `index`: 2 to 706, so that the counters lie in blocks of many sizes.
fn counter_words(index: usize) -> u64 {
    2 + 704 * index as u64 / (COUNTERS as u64 - 1)
}

/// The structure in an open pool.
pub struct Structure<'p> {
    pool: &'p Pool,
    lanes: Vec<Mutex<Lane<'p>>>,
    accounts: Vec<Mutex<Block<'p>>>,
}

/// A lane's blocks.
#[derive(Clone, Debug)]
pub struct Lane<'p> {
    block: Block<'p>,
    counters: Vec<Block<'p>>,
}

/// A node of a lane's stack.
#[derive(Clone, Copy, Debug)]
pub struct Node<'p> {
    block: Block<'p>,
    next: u64,
    /// The transaction that pushed it.
    pub seq: u64,
    /// Words of its payload.
    pub words: u64,
}

impl<'p> Structure<'p> {
    /// The structure in `pool`, made if it is not there.
    pub fn open_or_create(pool: &'p Pool) -> Result<Structure<'p>> {
        if let Some(found) = Self::open(pool)? {
            return Ok(found);
        }
        let mut thread = pool.register()?;
        let tx = thread.begin_reserving(CREATION)?;
        if let Err(error) = create(pool, &tx) {
            tx.abort();
            return Err(error);
        }
        tx.commit();
        drop(thread);
        Self::open(pool)?.context("the structure was made and is not there")
    }

    /// The structure in `pool`; `None` where there is none.
    pub fn open(pool: &'p Pool) -> Result<Option<Structure<'p>>> {
        let Some(root) = pool.root(ROOT) else { return Ok(None) };
        ensure!(root.type_tag == TYPE_TAG, "root {ROOT:?} is something else: type {:#x}", root.type_tag);
        let header = Block::at(pool, root.ptr.as_ptr().addr() as u64, HEADER_WORDS)?;
        let lane = |index: usize| -> Result<Mutex<Lane<'p>>> {
            let block = Block::at(pool, header.get(index), LANE_WORDS)?;
            let counter = |i: usize| Block::at(pool, block.get(FIRST_COUNTER + i), counter_words(i));
            Ok(Mutex::new(Lane { block, counters: (0..COUNTERS).map(counter).collect::<Result<_>>()? }))
        };
        let account = |index: usize| Block::at(pool, header.get(LANES + index), ACCOUNT_WORDS).map(Mutex::new);
        Ok(Some(Structure {
            pool,
            lanes: (0..LANES).map(lane).collect::<Result<_>>()?,
            accounts: (0..ACCOUNTS).map(account).collect::<Result<_>>()?,
        }))
    }

    /// Carries out the next transaction of `lane`; gives its number.
    pub fn step(&self, thread: &mut Thread, lane: usize) -> Result<u64> {
        let it = self.lanes[lane].lock().expect("no writer panics");
        let seq = it.block.get(SEQ) + 1;
        let dice = chance(lane, seq, 3);
        let (from, step) = (dice as usize % ACCOUNTS, 1 + (dice >> 16) as usize % (ACCOUNTS - 1));
        let to = (from + step) % ACCOUNTS;
        // Locks enclose transactions, and are taken in one order.
        let low = self.accounts[from.min(to)].lock().expect("no writer panics");
        let high = self.accounts[from.max(to)].lock().expect("no writer panics");
        let (from, to) = if from < to { (*low, *high) } else { (*high, *low) };
        let tx = thread.begin()?;
        match self.write(&tx, &it, lane, seq, [from, to]) {
            Ok(()) => drop(tx.commit()),
            Err(error) => {
                tx.abort();
                return Err(error);
            }
        }
        Ok(seq)
    }

    fn write(&self, tx: &Tx<'_>, it: &Lane<'p>, lane: usize, seq: u64, [from, to]: [Block<'p>; 2]) -> Result<()> {
        transfer(tx, from, to, chance(lane, seq, 4) % 1000);
        for (index, counter) in it.counters.iter().enumerate() {
            let value = counter_value(lane, seq, index);
            counter.set(tx, 0, value);
            counter.set(tx, counter_words(index) as usize - 1, value);
        }
        if pushes(lane, seq, it.block.get(NODES)) {
            self.push(tx, it, lane, seq)?;
        } else {
            self.pop(tx, it)?;
        }
        it.block.set(tx, SEQ, seq);
        Ok(())
    }

    fn push(&self, tx: &Tx<'_>, lane: &Lane<'p>, number: usize, seq: u64) -> Result<()> {
        let words = payload_words(number, seq);
        let node = Block::new(self.pool, tx, NODE_WORDS + words)?;
        for (index, value) in [lane.block.get(HEAD), seq, words].into_iter().enumerate() {
            node.set(tx, index, value);
        }
        for index in 0..words {
            node.set(tx, (NODE_WORDS + index) as usize, payload(number, seq, index));
        }
        lane.block.set(tx, HEAD, node.address());
        lane.block.set(tx, NODES, lane.block.get(NODES) + 1);
        Ok(())
    }

    fn pop(&self, tx: &Tx<'_>, lane: &Lane<'p>) -> Result<()> {
        let node = self.node(lane.block.get(HEAD))?;
        lane.block.set(tx, HEAD, node.next);
        lane.block.set(tx, NODES, lane.block.get(NODES) - 1);
        node.block.free(tx);
        Ok(())
    }

    fn node(&self, address: u64) -> Result<Node<'p>> {
        let head = Block::at(self.pool, address, NODE_WORDS)?;
        let (next, seq, words) = (head.get(0), head.get(1), head.get(2));
        let block = Block::at(self.pool, address, words.saturating_add(NODE_WORDS))?;
        Ok(Node { block, next, seq, words })
    }

    /// Number of the last transaction of `lane`.
    pub fn seq(&self, lane: usize) -> Result<u64> {
        Ok(self.lanes[lane].lock().expect("no writer panics").block.get(SEQ))
    }

    /// First and last word of every counter of `lane`.
    pub fn counters(&self, lane: usize) -> Vec<(u64, u64)> {
        let it = self.lanes[lane].lock().expect("no writer panics");
        let ends = |(index, counter): (usize, &Block<'p>)| (counter.get(0), counter.get(counter_words(index) as usize - 1));
        it.counters.iter().enumerate().map(ends).collect()
    }

    /// Length of the stack of `lane` as recorded, and its nodes from the top, as far as they can be reached. No more than
    /// one beyond the recorded length: a damaged stack may be a circle.
    pub fn nodes(&self, lane: usize) -> Result<(u64, Vec<Node<'p>>)> {
        let it = self.lanes[lane].lock().expect("no writer panics");
        let recorded = it.block.get(NODES);
        let (mut found, mut at) = (Vec::new(), it.block.get(HEAD));
        while at != 0 && found.len() as u64 <= recorded {
            let node = self.node(at).with_context(|| format!("node {} from the top", found.len()))?;
            at = node.next;
            found.push(node);
        }
        Ok((recorded, found))
    }

    /// Balance and moves of every account.
    pub fn accounts(&self) -> Vec<(u64, u64)> {
        let both = |account: &Mutex<Block<'p>>| {
            let block = account.lock().expect("no writer panics");
            (block.get(BALANCE_WORD), block.get(MOVES))
        };
        self.accounts.iter().map(both).collect()
    }

    /// Every word that carries something, with its name.
    #[cfg(test)]
    pub fn places(&self) -> Vec<(&'static str, u64)> {
        let word = |what, block: Block<'_>, index: usize| (what, block.address() + 8 * index as u64);
        let mut found = Vec::new();
        for account in &self.accounts {
            let block = *account.lock().unwrap();
            found.extend([word("balance", block, BALANCE_WORD), word("moves", block, MOVES)]);
        }
        for lane in 0..LANES {
            for node in self.nodes(lane).unwrap().1 {
                found.extend((0..NODE_WORDS + node.words).map(|index| word("node", node.block, index as usize)));
            }
            let it = self.lanes[lane].lock().unwrap();
            found.extend([word("seq", it.block, SEQ), word("head", it.block, HEAD), word("nodes", it.block, NODES)]);
            for (index, counter) in it.counters.iter().enumerate() {
                let last = counter_words(index) as usize - 1;
                found.extend([word("counter", *counter, 0), word("counter's end", *counter, last)]);
            }
        }
        found
    }

    /// Blocks it consists of.
    pub fn blocks(&self) -> Result<u64> {
        let nodes = |lane: usize| self.lanes[lane].lock().expect("no writer panics").block.get(NODES);
        Ok((1 + LANES * (1 + COUNTERS) + ACCOUNTS) as u64 + (0..LANES).map(nodes).sum::<u64>())
    }
}

impl Node<'_> {
    /// Word `index` of its payload.
    pub fn payload(&self, index: u64) -> u64 {
        self.block.get((NODE_WORDS + index) as usize)
    }
}

fn transfer(tx: &Tx<'_>, from: Block<'_>, to: Block<'_>, wish: u64) {
    let amount = wish.min(from.get(BALANCE_WORD));
    from.set(tx, BALANCE_WORD, from.get(BALANCE_WORD) - amount);
    to.set(tx, BALANCE_WORD, to.get(BALANCE_WORD) + amount);
    from.set(tx, MOVES, from.get(MOVES) + 1);
    to.set(tx, MOVES, to.get(MOVES) + 1);
}

/// The structure before its first transaction.
fn create(pool: &Pool, tx: &Tx<'_>) -> Result<()> {
    let header = Block::new(pool, tx, HEADER_WORDS)?;
    for lane in 0..LANES {
        let block = Block::new(pool, tx, LANE_WORDS)?;
        for word in [SEQ, HEAD, NODES] {
            block.set(tx, word, 0);
        }
        for index in 0..COUNTERS {
            let counter = Block::new(pool, tx, counter_words(index))?;
            counter.set(tx, 0, counter_value(lane, 0, index));
            counter.set(tx, counter_words(index) as usize - 1, counter_value(lane, 0, index));
            block.set(tx, FIRST_COUNTER + index, counter.address());
        }
        header.set(tx, lane, block.address());
    }
    for index in 0..ACCOUNTS {
        let account = Block::new(pool, tx, ACCOUNT_WORDS)?;
        account.set(tx, BALANCE_WORD, BALANCE);
        account.set(tx, MOVES, 0);
        header.set(tx, LANES + index, account.address());
    }
    let ptr =
        std::ptr::NonNull::new(std::ptr::with_exposed_provenance_mut(header.address() as usize)).context("a block at address 0")?;
    // SAFETY: the header just made, in a live block of that size.
    unsafe { tx.set_root(ROOT, Some(Root { ptr, type_tag: TYPE_TAG, size: HEADER_WORDS * 8 })) }?;
    Ok(())
}
