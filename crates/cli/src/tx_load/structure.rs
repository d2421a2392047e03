//! The structure: what each transaction writes. Everything in it follows from the numbers of the transactions done.
//!
//! ```text
//!   root ──► thread 0: seq, head, nodes, version      head ──► node ──► node ──► ...   a stack that grows and shrinks
//!            thread 1: ...
//!            account 0: balance, moves, version       shared by the threads
//!            account 1: ...
//! ```
//!
//! Transaction n of a thread moves an amount between two accounts, and pushes a node, pops one, or does neither: those that do neither can
//! run in hardware, and every other one of them relies on versions alone. In every whole state the stack is the one that `seq` steps make,
//! balances add up to what they were, and moves to twice the number of all transactions. A transaction whose cause is missing breaks the
//! sums: it wrote what it made of a balance that is not there.

use std::ptr::NonNull;

use anyhow::{Result, ensure};
use towa_tx::{Abort, Addr, Pool, Root, Thread, Tx, WORD};

/// Threads that write.
pub const THREADS: usize = 3;
const ACCOUNTS: u64 = 12;
const BALANCE: u64 = 1_000_000;
const ROOT: &str = "tx-load";
const TYPE_TAG: u64 = u64::from_le_bytes(*b"tx-load1");
/// Words of a thread's line and of an account's.
const LINE: u64 = 8;
const LEN: u64 = (THREADS as u64 + ACCOUNTS) * LINE * WORD;
/// Transactions in which a stack mostly grows, and as many again in which it mostly shrinks.
const TIDE: u64 = 1024;
/// Words of a node before its payload: next, seq, payload words.
const NODE: u64 = 3;
/// In both kinds of line.
const VERSION: u64 = 7;

/// A pseudo-random word that follows from `seed` (splitmix64).
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn chance(thread: usize, seq: u64, what: u64) -> u64 {
    mix(mix(seq ^ (thread as u64) << 56) ^ what)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stack {
    Push,
    Pop,
    Neither,
}

/// What transaction `seq` does to its thread's stack, which has so many nodes.
fn stack(thread: usize, seq: u64, nodes: u64) -> Stack {
    let grows = (seq / TIDE).is_multiple_of(2);
    match chance(thread, seq, 1) % 8 {
        0..2 => Stack::Neither,
        2..7 if grows => Stack::Push,
        7 if !grows => Stack::Push,
        _ if nodes > 0 => Stack::Pop,
        _ => Stack::Neither,
    }
}

/// Payload words of the node that transaction `seq` pushes.
fn payload(thread: usize, seq: u64) -> u64 {
    let draw = chance(thread, seq, 2);
    if draw.is_multiple_of(50) { draw % 2000 } else { draw % 40 }
}

/// A pool's structure.
pub struct Structure {
    at: Addr,
}

/// A whole one.
pub struct Found {
    /// Each thread's last transaction.
    pub seqs: [u64; THREADS],
    /// Blocks that belong to it.
    pub blocks: u64,
}

impl Structure {
    /// That of the pool.
    pub fn open(pool: &Pool) -> Option<Structure> {
        let root = pool.root(ROOT).filter(|root| root.type_tag == TYPE_TAG && root.size == LEN)?;
        Some(Structure { at: root.ptr.as_ptr().addr() as Addr })
    }

    /// That of the pool, made where there is none.
    pub fn open_or_create(pool: &Pool) -> Result<Structure> {
        if let Some(structure) = Self::open(pool) {
            return Ok(structure);
        }
        let at = pool.register()?.transaction(|tx| {
            let at = tx.alloc(LEN as usize)?;
            let mut words = vec![0; (LEN / WORD) as usize];
            (0..ACCOUNTS).for_each(|account| words[((THREADS as u64 + account) * LINE) as usize] = BALANCE);
            tx.init(at, &words)?;
            let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize)).expect("an address");
            tx.set_root(ROOT, Some(Root { ptr, type_tag: TYPE_TAG, size: LEN }))?;
            Ok(at)
        })?;
        Ok(Structure { at })
    }

    fn thread(&self, thread: usize, word: u64) -> Addr {
        self.at + (thread as u64 * LINE + word) * WORD
    }

    fn account(&self, account: u64, word: u64) -> Addr {
        self.thread(THREADS, 0) + (account * LINE + word) * WORD
    }

    /// The last transaction of a thread.
    pub fn seq(&self, thread: &Thread, number: usize) -> u64 {
        thread.load(self.thread(number, 0))
    }

    /// Transaction `seq` of thread `number`.
    pub fn step(&self, thread: &mut Thread, number: usize, seq: u64) -> Result<()> {
        let nodes = thread.load(self.thread(number, 2));
        let done = match stack(number, seq, nodes) {
            Stack::Neither => {
                let guarded = chance(number, seq, 3).is_multiple_of(2);
                if guarded {
                    thread.transaction_guarded(|tx| self.advance(tx, number, seq, true))
                } else {
                    thread.transaction(|tx| self.advance(tx, number, seq, false))
                }
            }
            change => thread.transaction_software(|tx| {
                let head = self.thread(number, 1);
                let top = tx.read(head)?;
                if change == Stack::Push {
                    let words = payload(number, seq);
                    let node = tx.alloc(((NODE + words) * WORD) as usize)?;
                    let content: Vec<u64> = [top, seq, words].into_iter().chain((0..words).map(|word| mix(seq + word))).collect();
                    tx.init(node, &content)?;
                    tx.write(head, node)?;
                    tx.write(self.thread(number, 2), nodes + 1)?;
                } else {
                    let next = tx.read(top)?;
                    tx.free(top)?;
                    tx.write(head, next)?;
                    tx.write(self.thread(number, 2), nodes - 1)?;
                }
                self.advance(tx, number, seq, false)
            }),
        };
        Ok(done?)
    }

    /// What every transaction does.
    fn advance(&self, tx: &mut Tx<'_>, number: usize, seq: u64, guarded: bool) -> Result<(), Abort> {
        let (from, to) = (chance(number, seq, 4) % ACCOUNTS, chance(number, seq, 5) % ACCOUNTS);
        let to = if from == to { (to + 1) % ACCOUNTS } else { to };
        let amount = chance(number, seq, 6) % 100;
        let put = |tx: &mut Tx<'_>, a: Addr, value: u64| if guarded { tx.write_guarded(a, value) } else { tx.write(a, value) };
        if guarded {
            tx.read_version(self.thread(number, VERSION))?;
        }
        put(tx, self.thread(number, 0), seq)?;
        tx.touch(self.thread(number, VERSION))?;
        for (account, change) in [(from, amount.wrapping_neg()), (to, amount)] {
            let [balance, moves, version] = [0, 1, VERSION].map(|word| self.account(account, word));
            let (now, moved) = if guarded {
                tx.read_version(version)?;
                (tx.read_guarded(balance)?, tx.read_guarded(moves)?)
            } else {
                (tx.read(balance)?, tx.read(moves)?)
            };
            put(tx, balance, now.wrapping_add(change))?;
            put(tx, moves, moved + 1)?;
            tx.touch(version)?;
        }
        Ok(())
    }

    /// Checks all of it.
    pub fn check(&self, thread: &Thread) -> Result<Found> {
        let seqs = std::array::from_fn(|number| self.seq(thread, number));
        let mut blocks = 1;
        for (number, &seq) in seqs.iter().enumerate() {
            blocks += self.check_stack(thread, number, seq)?;
        }
        let sum = |word: u64| (0..ACCOUNTS).fold(0u64, |sum, account| sum.wrapping_add(thread.load(self.account(account, word))));
        ensure!(sum(0) == ACCOUNTS * BALANCE, "balances add up to {}, not to {}", sum(0), ACCOUNTS * BALANCE);
        let transactions: u64 = seqs.iter().sum();
        ensure!(sum(1) == 2 * transactions, "{} moves, but {transactions} transactions of two each", sum(1));
        Ok(Found { seqs, blocks })
    }

    /// Checks a thread's stack against what its transactions must have made; gives its nodes.
    fn check_stack(&self, thread: &Thread, number: usize, seq: u64) -> Result<u64> {
        let mut expected = Vec::new();
        for n in 1..=seq {
            match stack(number, n, expected.len() as u64) {
                Stack::Push => expected.push(n),
                Stack::Pop => _ = expected.pop(),
                Stack::Neither => {}
            }
        }
        let nodes = thread.load(self.thread(number, 2));
        ensure!(nodes == expected.len() as u64, "thread {number} at {seq}: {nodes} nodes, should be {}", expected.len());
        let mut node = thread.load(self.thread(number, 1));
        for &pushed in expected.iter().rev() {
            ensure!(thread.holds(node), "thread {number}: a node at {node:#x}, outside the heap");
            let (seq, words) = (thread.load(node + WORD), thread.load(node + 2 * WORD));
            ensure!(
                seq == pushed && words == payload(number, pushed),
                "thread {number}: a node of {seq} with {words} words, should be of {pushed}"
            );
            let torn = (0..words).find(|word| thread.load(node + (NODE + word) * WORD) != mix(pushed + word));
            ensure!(torn.is_none(), "thread {number}: the node of {pushed} is torn at word {torn:?}");
            node = thread.load(node);
        }
        ensure!(node == 0, "thread {number}: its stack goes on behind its last node");
        Ok(nodes)
    }
}
