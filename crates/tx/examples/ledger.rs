//! A bank whose money survives `kill -9`. Run it, kill it, run it again: no transfer that it announced is lost, and none is half done.
//!
//!     cargo run --release -p towa-tx --example ledger -- /tmp/ledger          transfers money, for ever
//!     cargo run --release -p towa-tx --example ledger -- /tmp/ledger show     adds up the accounts
//!
//! In the heap lies an array of words: how many transfers were made, then the balance of each account. Accounts have no locks: two
//! transfers that meet at one run one after the other. The same program in C: `examples/c/bank.c`.

use std::ptr::NonNull;

use towa_tx::{Addr, Error, Options, Pool, Result, Root, Thread, WORD};

const ACCOUNTS: u64 = 1000;
const BEGINNING: u64 = 100;
const TAG: u64 = 1;

/// The ledger's address, found again by its name in every later run of the program.
fn ledger(pool: &Pool, thread: &mut Thread) -> Result<Addr> {
    if let Some(root) = pool.root("ledger") {
        return Ok(root.ptr.as_ptr().addr() as Addr);
    }
    // Allocating is for the software path. The block, its content and the root's name are durable together, or not at all.
    thread.transaction_software(|tx| {
        let mut words = vec![BEGINNING; 1 + ACCOUNTS as usize];
        words[0] = 0;
        let at = tx.alloc(words.len() * WORD as usize)?;
        tx.init(at, &words)?;
        let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(at as usize)).expect("an address in the heap");
        tx.set_root("ledger", Some(Root { ptr, type_tag: TAG, size: words.len() as u64 * WORD }))?;
        Ok(at)
    })
}

/// Moves money; false if there is not enough. In hardware, where the machine has it.
fn transfer(thread: &mut Thread, ledger: Addr, from: u64, to: u64, amount: u64) -> Result<bool> {
    let (from, to) = (ledger + (1 + from) * WORD, ledger + (1 + to) * WORD);
    // The body may run many times, and only its last run counts: it does nothing but through `tx`.
    let done = thread.transaction(|tx| {
        let has = tx.read(from)?;
        if has < amount {
            return tx.abort("not enough money");
        }
        tx.write(from, has - amount)?;
        let had = tx.read(to)?; // after the write: they may be one account
        tx.write(to, had + amount)?;
        let made = tx.read(ledger)?;
        tx.write(ledger, made + 1)
    });
    match done {
        Ok(()) => Ok(true), // and durable
        Err(Error::Aborted(_)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The number of transfers and the sum of all accounts, at one moment.
fn add_up(thread: &mut Thread, ledger: Addr) -> Result<(u64, u64)> {
    thread.transaction(|tx| {
        let mut sum = 0;
        for account in 1..=ACCOUNTS {
            sum += tx.read(ledger + account * WORD)?;
        }
        Ok((tx.read(ledger)?, sum))
    })
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: ledger DIRECTORY [show]")?;
    let pool = Pool::open_or_create(dir.as_ref(), &Options { heap_len: 16 << 20, ..Options::default() })?;
    let mut thread = pool.register()?;
    let ledger = ledger(&pool, &mut thread)?;
    let (mut made, sum) = add_up(&mut thread, ledger)?;
    println!("{made} transfers, {sum} in all accounts");
    assert_eq!(sum, ACCOUNTS * BEGINNING, "money was lost or made");
    if args.next().is_some() {
        return Ok(());
    }
    let mut random = made | 1;
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (from, to, amount) = ((random >> 40) % ACCOUNTS, (random >> 20) % ACCOUNTS, (random >> 58) + 1);
        if transfer(&mut thread, ledger, from, to, amount)? {
            made += 1;
            if made.is_multiple_of(10_000) {
                println!("durable {made}"); // it returned, so it is
            }
        }
    }
}
