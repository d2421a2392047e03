//! The proof: is the structure in a state that whole transactions make, and which?

use anyhow::{Context, Result, ensure};

use super::structure::{self, ACCOUNTS, BALANCE, LANES, Structure, counter_value, payload, payload_words};

/// Checks everything; gives the number of transactions that made it.
pub fn check(structure: &Structure<'_>) -> Result<u64> {
    let mut total = 0;
    for lane in 0..LANES {
        total += check_lane(structure, lane).with_context(|| format!("lane {lane}"))?;
    }
    let accounts = structure.accounts();
    let (balance, moves) = accounts.iter().fold((0u64, 0u64), |(b, m), a| (b.wrapping_add(a.0), m.wrapping_add(a.1)));
    let wanted = ACCOUNTS as u64 * BALANCE;
    ensure!(balance == wanted, "balances add up to {balance}, not {wanted}: half a transfer was recovered");
    ensure!(moves == 2 * total, "{moves} moves for {total} transactions of two: accounts and lanes are of different moments");
    Ok(total)
}

fn check_lane(structure: &Structure<'_>, lane: usize) -> Result<u64> {
    let seq = structure.seq(lane)?;
    for (index, (first, last)) in structure.counters(lane).into_iter().enumerate() {
        let wanted = counter_value(lane, seq, index);
        ensure!(first == wanted, "at transaction {seq}, counter {index} holds {first:#x}, not {wanted:#x}");
        ensure!(last == wanted, "at transaction {seq}, the last word of counter {index} holds {last:#x}, not {wanted:#x}");
    }
    let stack = stack_after(lane, seq);
    let (recorded, nodes) = structure.nodes(lane)?;
    let (wanted, found) = (stack.len() as u64, nodes.len() as u64);
    ensure!(
        recorded == wanted && found == wanted,
        "at transaction {seq}, {wanted} nodes are due, {recorded} recorded, {found} found"
    );
    for (node, pushed) in nodes.iter().zip(stack.iter().rev()) {
        ensure!(node.seq == *pushed, "a node of transaction {} where that of {pushed} is due", node.seq);
        ensure!(node.words == payload_words(lane, *pushed), "the node of transaction {pushed} has {} words", node.words);
        for index in 0..node.words {
            let (found, due) = (node.payload(index), payload(lane, *pushed, index));
            ensure!(found == due, "the node of transaction {pushed}, word {index}: {found:#x}, not {due:#x}");
        }
    }
    Ok(seq)
}

/// The transactions whose nodes are on the stack of `lane` after transaction `seq`, the top last.
fn stack_after(lane: usize, seq: u64) -> Vec<u64> {
    let mut stack = Vec::new();
    for done in 1..=seq {
        if structure::pushes(lane, done, stack.len() as u64) {
            stack.push(done);
        } else {
            stack.pop();
        }
    }
    stack
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::block::Block;
    use towa_epoch::{Options, Pool};

    fn pool() -> Pool {
        Pool::volatile(&Options { heap_len: 64 << 20, ..Options::default() }).unwrap()
    }

    #[test]
    fn whole_transactions_pass() {
        let pool = pool();
        let structure = Structure::open_or_create(&pool).unwrap();
        assert_eq!(check(&structure).unwrap(), 0);
        let mut thread = pool.register().unwrap();
        for step in 1..=5000 {
            structure.step(&mut thread, step % LANES).unwrap();
        }
        assert_eq!(check(&structure).unwrap(), 5000);
        assert!(structure.blocks().unwrap() > 500, "the stacks have grown");
    }

    /// A check that cannot fail proves nothing: any word of the structure changed must be found.
    #[test]
    fn every_changed_word_is_found() {
        let pool = pool();
        let structure = Structure::open_or_create(&pool).unwrap();
        let mut thread = pool.register().unwrap();
        for step in 1..=300 {
            structure.step(&mut thread, step % LANES).unwrap();
        }
        let places = structure.places();
        assert!(places.len() > 1000, "{} words", places.len());
        for (what, address) in places {
            let word = Block::at(&pool, address, 1).unwrap();
            let tx = thread.begin().unwrap();
            let was = word.get(0);
            word.set(&tx, 0, was ^ 1 << (address % 61));
            assert!(check(&structure).is_err(), "{what} at {address:#x} was changed and not missed");
            word.set(&tx, 0, was);
        }
        assert_eq!(check(&structure).unwrap(), 300);
    }
}
