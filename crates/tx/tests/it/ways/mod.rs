//! What tests of transactions share: the ways of running them, words to run them on, and a medium whose fences wait.

pub mod gate;

use towa_tx::{Addr, Thread, TmChoice, Tx, hardware_transactions_commit};

/// A block of `words` words of 0.
pub fn words(thread: &mut Thread, words: usize) -> Addr {
    let make = |tx: &mut Tx<'_>| {
        let block = tx.alloc(words * 8)?;
        tx.init(block, &vec![0; words])?;
        Ok(block)
    };
    thread.transaction(make).unwrap()
}

/// Every way that this machine has.
pub fn ways() -> Vec<TmChoice> {
    if !hardware_transactions_commit() {
        eprintln!("SKIPPED: rtm (this machine commits no hardware transactions); tried: stm, lock");
        return vec![TmChoice::Stm, TmChoice::Lock];
    }
    vec![TmChoice::Rtm, TmChoice::Stm, TmChoice::Lock]
}
