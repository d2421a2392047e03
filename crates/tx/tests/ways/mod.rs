//! The ways of running transactions that tests go through.

use towa_tx::{TmChoice, hardware_transactions_commit};

/// Every way that this machine has.
pub fn ways() -> Vec<TmChoice> {
    if !hardware_transactions_commit() {
        eprintln!("SKIPPED: rtm (this machine commits no hardware transactions); tried: stm, lock");
        return vec![TmChoice::Stm, TmChoice::Lock];
    }
    vec![TmChoice::Rtm, TmChoice::Stm, TmChoice::Lock]
}
