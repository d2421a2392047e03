//! What each epoch of a world made of its cells: what a recovered pool is compared with.

use std::collections::BTreeSet;

use super::world::{CELLS, Cell};

/// What every epoch changed.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The epoch that the world began with.
    pub base: u64,
    pub(super) changes: Vec<Change>,
    pub(super) newest: u64,
    /// No object had this version yet, not in a transaction that was aborted or lost either.
    pub(super) next_version: u64,
    /// Epoch and version of objects that were discarded: a crash that drops this epoch may leave them lost.
    pub(super) discarded: Vec<(u64, u64)>,
    /// Versions of objects that a crash may have left lost.
    pub(super) lost: BTreeSet<u64>,
}

/// Epoch, cell, and what it became.
pub(super) type Change = (u64, usize, Option<Cell>);

impl History {
    /// The cells at the end of `epoch`: everything that transactions of that epoch or an earlier one did.
    pub fn state(&self, epoch: u64) -> [Option<Cell>; CELLS] {
        let mut state = [None; CELLS];
        for (_, i, cell) in self.changes.iter().filter(|c| c.0 <= epoch) {
            state[*i] = *cell;
        }
        state
    }

    /// The newest epoch with changes.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// Whether an object of this version may be lost after a crash that left `epoch`.
    pub(super) fn may_be_lost(&self, version: u64, epoch: u64) -> bool {
        self.lost.contains(&version) || self.discards_undone_at(epoch).any(|lost| lost == version)
    }

    /// Versions whose discard a crash undid that left `epoch`: it drops two epochs at most.
    fn discards_undone_at(&self, epoch: u64) -> impl Iterator<Item = u64> + '_ {
        self.discarded.iter().filter(move |(of, _)| (epoch + 1..=epoch + 2).contains(of)).map(|(_, version)| *version)
    }

    /// Epochs up to `epoch` are taken, without changes: those of what was undone, which recovery passed over.
    pub fn pass_over(&mut self, epoch: u64) {
        self.newest = self.newest.max(epoch);
    }

    /// Forgets what came after `epoch`: a crash dropped it.
    pub fn truncate(&mut self, epoch: u64) {
        let lost: Vec<u64> = self.discards_undone_at(epoch).collect();
        self.lost.extend(lost);
        self.discarded.clear();
        self.changes.retain(|c| c.0 <= epoch);
        self.newest = epoch;
        self.base = epoch;
    }
}
